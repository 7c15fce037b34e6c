// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Windows: memory that one side of a connection lets the other read, write and map.
//!
//! Not about the calls on windows (`registration`, `rma`). Registration moves pages into the arena
//! of the connection and writes an entry into a table. The peer looks up entries and maps the arena
//! by itself, so only the deletion of a window involves both sides.

pub(crate) mod copies;
mod filled;
pub(crate) mod inflight_dsts;
pub(crate) mod loans;
pub(crate) mod mover;
mod orphan_arenas;
pub(crate) mod sharers;
pub(crate) mod space;
pub(crate) mod state;
pub(crate) mod table;

pub(crate) use filled::Filled;
pub(crate) use inflight_dsts::InflightDsts;
pub(crate) use mover::TriedBack;
pub(crate) use orphan_arenas::OrphanArenas;
pub(crate) use state::WindowState;

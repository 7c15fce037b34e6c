// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Windows: memory that one side of a connection lets the other read, write and map.
//!
//! Not about connections (`endpoint`). Registration moves pages into the arena of the connection
//! and writes an entry into a table. The peer looks up entries and maps the arena by itself, so
//! only the deletion of a window involves both sides. Source: registration, mapping, RMA and fences
//! of `scif.h`.

mod copies;
mod dma;
mod fence;
mod fence_signaller;
mod filled;
mod inflight_dsts;
mod loans;
mod map;
mod mover;
mod orphan_arenas;
mod page_restore;
mod register;
mod rma;
pub(crate) mod sharers;
pub(crate) mod space;
mod spots;
mod state;
pub(crate) mod table;

pub(crate) use dma::Workers;
pub(crate) use filled::Filled;
pub(crate) use inflight_dsts::InflightDsts;
pub(crate) use mover::TriedBack;
pub(crate) use orphan_arenas::OrphanArenas;
pub(crate) use register::is_movable;
pub(crate) use rma::{Near, Way};
pub(crate) use state::WindowState;

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Processes that test together: who starts them ([`driver`]), how they speak to their parent ([`control`]), what one
//! of them can ask for ([`rank`]), and what a case and its result are ([`case`]).
//!
//! Not about libfabric: the harness never calls it. One program plays all parts; a rank is the same executable started
//! again with its control socket as standard input, so no rank inherits state from another.

pub mod case;
pub mod confine;
pub mod control;
pub mod driver;
pub mod leftovers;
pub mod rank;
pub mod rng;
pub mod seccomp;
pub mod start;

pub use case::{Case, Fail, Outcome, case};
pub use rank::{Rank, Setup};
pub use rng::Rng;

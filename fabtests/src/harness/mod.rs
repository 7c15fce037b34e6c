// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Processes that test together. Their parent is [`driver`], the protocol with it [`control`]. The
//! requests that a process can make are in [`rank`], a case in [`case`], and its result in
//! [`fail`].
//!
//! The harness never calls libfabric. One program plays all parts. A rank is the same executable
//! started again with its control socket as standard input, so no rank inherits state from another.
//! The suite of `scif.h` forks its processes instead ([`process`]).

pub mod case;
pub mod control;
pub mod cpus;
pub mod driver;
pub mod fail;
pub mod leak_check;
pub mod memory_group;
pub mod output;
pub mod process;
pub mod rank;
pub mod rng;
pub mod sandbox;
pub mod seccomp;
pub mod start;

pub use case::{Case, case};
pub use fail::{Fail, Outcome};
pub use rank::{Rank, Setup};
pub use rng::Rng;

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Endpoints of `scif.h`: named by descriptors, used by calls that may block, shared by fork and
//! dup.
//!
//! Not about C (`libscif`), nor about the endpoints of the provider ([`scif::Endpoint`]), which
//! poll, never block and start no thread. Both kinds share names, ports and nodes.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod backend;
mod connect;
mod dma;
mod ending;
mod endpoint;
mod endpoints;
mod failure;
#[cfg(test)]
mod faults;
mod fd_handoff;
mod fence_signaller;
pub mod introspect;
mod kernel_mode;
mod link;
mod lock;
mod mainline;
mod memory;
mod messages;
mod node_events;
mod node_failure;
mod nodes;
mod numbers;
mod pins;
mod poll;
mod registration;
mod registry;
mod rma;
mod service;
mod sharer;
mod sharing;
mod silent_callers;
mod stat;
mod state;
mod window;
mod wire;

pub use backend::Backend;
pub use endpoints::Endpoints;
pub use failure::{Failure, Result};
#[cfg(test)]
pub(crate) use kernel_mode::tests::{connected, endpoints};
pub use kernel_mode::{PeerPages, PinnedPages};
pub use libc::pollfd as PollFd;
pub use memory::Pages;
pub use node_events::NodeEvent;
pub use node_failure::{Answers, FailedNode, ping, restore};
pub use poll::{WaitsFor, check_entries};
pub use scif::{FenceSide, Signal};
pub use window::table::ARENA_BYTES;

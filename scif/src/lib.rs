// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! SCIF, the symmetric communication interface, as a safe Rust library: nodes, ports, connections,
//! and the memory of peers.
//!
//! An [`Endpoint`] is bound to a port of a [`Node`], listens, and holds one [`Connection`] per
//! peer. A connection consists of a pair of rings in shared memory, a socket that proves the peer's
//! liveness, and the paths to its memory. The layers above define the meaning of ring records; this
//! one never inspects them. Only the waits of a [`Waiter`] block, and no thread is started.
//!
//! [`epd`] is the second interface: endpoints as in `scif.h`, named by descriptors, with blocking
//! calls, windows, RMA and a service thread.
//!
//! The peer is hostile: everything that it sends or writes is checked, and the worst consequence is
//! a reset of its connection.

#![warn(missing_docs)]

mod addr;
mod backend;
mod board;
mod config;
mod connection;
mod denial;
mod endpoint;
pub mod epd;
mod error;
mod failure;
mod fence;
mod keys;
mod life;

pub mod look;
mod memory;
mod migrate;
mod node;
mod segment;
mod slab;
mod spelling;
mod sys;
mod transport;
mod waiter;
mod window;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;

pub use addr::{DYNAMIC_PORTS, PortId};
pub use backend::Backend;
pub use board::{Board, BoardLock};
pub use config::{Carrier, Config};
pub use connection::{ConnId, Connection};
pub use denial::{Denial, DenialCause};
pub use endpoint::{CloseHow, Endpoint, LinkEvent};
pub use error::{Error, Reason, Refusal, Result, Scope};
pub use keys::{Exports, SharedKeys};
pub use memory::{Access, AccessError, PeerMemory, RemoteMem};
pub use migrate::{Arrival, Movable, Unmoved};
pub use node::{Node, TransportKind};
pub use spelling::unknown_settings;
pub use sys::errno::keep_errno;
pub use sys::fork::Maker;
pub use sys::logging;
pub use sys::pages::threads;
pub use sys::process::memory_limit;
pub use sys::time::{cpu_relax_or_yield, now_ns};
pub use transport::kernel::{Device, Driver, abi};
pub use waiter::{Waiter, Woken};

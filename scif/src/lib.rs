// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! SCIF, the symmetric communication interface, as a safe Rust library: nodes, ports, connections,
//! and the memory of peers.
//!
//! An [`Endpoint`] is bound to a port of a [`Node`], listens, and holds one [`Connection`] per
//! peer. A connection consists of a pair of rings in shared memory, a socket that proves the peer's
//! liveness, and the paths to its memory. The layers above define the meaning of ring records; this
//! one never inspects them. Only the waits of a [`Waiter`] block, and no thread is started.
//!
//! The crate `scif-api` builds the second interface on this one: endpoints as in `scif.h`, named by
//! descriptors, with blocking calls, windows, RMA and a service thread. It also uses the hidden
//! modules, which are no interface for others.
//!
//! The peer is hostile: everything that it sends or writes is checked, and the worst consequence is
//! a reset of its connection.

#![warn(missing_docs)]

/// Implements `Debug` for the objects of a trait: the name of the trait.
///
/// A supertrait `Debug` would keep the formatter of each implementor, and those of all its fields,
/// in every library.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_by_name {
    ($name:ident) => {
        impl std::fmt::Debug for dyn $name + '_ {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    };
}

mod addr;
mod arena;
mod carried;
mod config;
mod connection;
#[doc(hidden)]
pub mod denial;
mod endpoint;
mod error;
mod export;
pub mod failure;
mod fence;
mod keys;
#[doc(hidden)]
pub mod launcher;
#[doc(hidden)]
pub mod liveness;
mod scif_calls;
mod shared_table;

mod mapped;
mod memory;
mod migrate;
pub mod monitor;
mod node;
mod outside_body;
mod peer_windows;
mod places;
mod remote_reads;
#[doc(hidden)]
pub mod segment;
pub mod slab;
#[doc(hidden)]
pub mod sorted;
mod spelling;
#[doc(hidden)]
pub mod sys;
#[doc(hidden)]
pub mod trace;
mod transport;
mod waiter;
mod window_calls;

#[cfg(any(test, feature = "testing"))]
pub mod conformance;

pub use addr::{DYNAMIC_PORTS, PortId, dynamic_ports};
pub use arena::ARENA_BYTES;
pub use carried::{CarriedCounts, CarriedOp, OpCount, OpDecoder};
pub use config::{Carrier, Config};
pub use connection::Connection;
pub use denial::{Denial, DenialCause};
pub use endpoint::{CloseHow, Endpoint, LinkEvent};
pub use error::{Error, Reason, Refusal, Result, Scope};
pub use failure::Failure;
pub use fence::{FenceSide, Signal};
pub use keys::{Exports, KeyRights, RemovedKey, SharedKeys};
pub use mapped::{MapPolicy, MappedKey, Unmapped};
pub use memory::{Access, AccessError, PeerMemory, RemoteMem};
pub use migrate::{Arrival, Movable, Unmoved};
pub use node::{Node, TransportKind};
pub use outside_body::{LongSend, OutsideBody};
pub use peer_windows::{KeyLookup, KeyWindow, PeerWindows, WindowCounts, WindowError};
pub use remote_reads::{ReadBegun, ReadState, ReadSupport, RemoteReads, WireMemory};
pub use scif_calls::{ScifCalls, WindowKind};
pub use shared_table::{SharedTable, SharedTableLock};
pub use slab::ConnId;
pub use spelling::unknown_settings;
pub use sys::errno::{ErrnoKeepingAllocator, keep_errno};
pub use sys::fork::Maker;
pub use sys::logging;
pub use sys::pages::threads;
pub use sys::process::{ShownPid, host_name, memory_limit};
pub use sys::thread::at_exit;
pub use sys::time::{cpu_relax_or_yield, now_ns, thread_cpu_ns};
pub use transport::kernel::{Device, Driver, abi};
pub use transport::net::{
    BODY_OUTSIDE, JobKey, LONG_BODY_MAX, MESSAGE_MAX, NetWire, PeerLimits, ReadPosted, WireEvent,
    WirePeer,
};
#[doc(hidden)]
pub use transport::soft::{names, whereabouts};
pub use waiter::{Waiter, Woken};
pub use window_calls::{RmaMode, RmaWay, WindowAccess, WindowCalls};

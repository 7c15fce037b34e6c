// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Connections to other hosts over a network that someone else opens. Records of the rings cross it
//! in messages.
//!
//! Not about the network itself, which is behind the trait [`NetWire`]. The rings are ordinary
//! ones, in private memory of either side, as over the calls of `scif.h`. Endpoints of this host
//! meet over another transport, whose port a [`NetPort`] contains.

#[cfg(test)]
mod carried_tests;
mod changes;
mod dead_names;
#[cfg(test)]
mod double;
mod expectation;
mod frame;
mod handshake;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod incarnation_tests;
mod key;
#[cfg(test)]
mod key_tests;
mod link;
#[cfg(test)]
mod log_tests;
#[cfg(test)]
mod long_tests;
mod mux;
#[cfg(test)]
mod mux_tests;
mod outside;
mod pending;
mod port;
mod reads;
mod replies;
mod resting;
mod shared_mux;
mod sleep_watch;
mod stream;
mod streams;
#[cfg(test)]
mod tests;
mod watch;
mod window;
mod wire;

pub use key::JobKey;
pub(crate) use port::NetPort;
pub use wire::{
    BODY_OUTSIDE, LONG_BODY_MAX, MESSAGE_MAX, NetWire, PeerLimits, ReadPosted, WireEvent, WirePeer,
};

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Data path of an endpoint, from a posted operation to its completion.
//!
//! The engine knows one endpoint and the parts of its domain that an operation uses (`parts`).
//! Calls on a domain are in `domain::calls`. Each module uses only modules above it in this list:
//!
//! * `types`, `tables`, `channel`: values, tables without I/O, connections and their rings
//! * `recorder`: events of an endpoint, for reports and traces
//! * `exit_stats`: counters of open endpoints at the exit of the program
//! * `endpoint`, `parts`: state of an endpoint, and what its operations work on
//! * `peers`, `completions`: connect, control records, queues of pending operations; reports
//! * `protocols`: messages, rendezvous, RMA, atomics, collectives, connection management
//! * `fast_path`: inline messages, on both sides of the receive
//! * `dispatch`: the protocol of a record or of a pending operation
//! * `peer_failure`, `source_watch`, `connections`, `liveness`: accepts, losses, failures
//! * `monitor`: snapshots for scifctl
//! * `progress`: polling loop
//! * `loopback`, `peek`, `poison`: operations that make progress themselves, and the end by a panic

pub(crate) mod channel;
pub(crate) mod completions;
pub(crate) mod connections;
pub(crate) mod dispatch;
pub(crate) mod endpoint;
mod exit_stats;
pub(crate) mod fast_path;
pub(crate) mod liveness;
pub(crate) mod loopback;
pub(crate) mod monitor;
#[cfg(test)]
pub(crate) mod panic_test;
pub(crate) mod parts;
pub(crate) mod peek;
pub(crate) mod peer_failure;
pub(crate) mod peer_sweep;
pub(crate) mod peers;
pub(crate) mod poison;
pub(crate) mod progress;
pub(crate) mod protocols;
pub(crate) mod recorder;
pub(crate) mod short_poll;
pub(crate) mod source_watch;
pub(crate) mod tables;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod types;

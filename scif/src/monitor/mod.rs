// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Monitoring: the state of endpoints, published for other processes of the same user.
//!
//! A process keeps the records of its endpoints in one memfd, which readers find in
//! `/proc/PID/fd`. The kernel shows that directory only to processes that may inspect this one. A
//! reader maps the memory read-only, so that it also reads a process that is stopped or hangs.
//! Monitoring sends no message, and the owner waits for no reader.
//!
//! Not about the meaning of operations and peers, which the provider stores.

pub mod layout;
pub mod report;
mod table;

pub use table::{EndpointRecord, ProcessIdentity, port_word, publish_process};

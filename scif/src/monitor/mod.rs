// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Monitoring: the state of endpoints, published for other processes of the same user.
//!
//! A process keeps the records of its endpoints in one memfd, which readers find in
//! `/proc/PID/fd`. The kernel shows that directory only to processes that may inspect this one. A
//! reader maps the memory read-only, so that it also reads a process that is stopped or hangs. The
//! peers of a process keep a descriptor of its memory, by which it is read after a kill.
//! Monitoring sends no message, and the owner waits for no reader.
//!
//! Not about the meaning of operations and peers, which the provider stores.

mod kept;
pub mod layout;
pub mod report;
mod shown_memory;
pub mod sisci;
mod table;

pub use kept::keep_peers;
pub use table::{EndpointRecord, ProcessIdentity, port_word, publish_process};

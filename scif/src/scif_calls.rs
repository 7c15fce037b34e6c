// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Calls of `scif.h` as a trait: all that the transport `scif` uses of the implementation below it.
//!
//! Not about the implementations: a driver of the kernel ([`Device`](crate::Device)), or the engine
//! of the crate `scif-api`, which needs no driver.

use std::os::fd::RawFd;

use scif_ring::Mem;

use crate::addr::PortId;
use crate::failure::Failure;
use crate::sys::mmap::Mapping;
use crate::window_calls::WindowCalls;

/// Memory of windows, as far as an implementation of the calls leaves care for it to its user.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WindowKind {
    /// Ordinary memory that the implementation shares. It handles forks and exits.
    Shared,
    /// Memory that a driver pins. A forked child must not have it: a later store of this process
    /// would move to another page. A mapping must be removed before its endpoint is closed, and
    /// before the process exits. Mappings of another node are write-combined.
    Pinned,
    /// Memory of a segment. Mappings hold it and need no care, and peers keep what was mapped.
    /// Mappings of another node are write-combined.
    Segment,
}

/// Calls of `scif.h` on endpoints named by descriptors.
///
/// `connect` waits for the peer, and `close` too if the endpoint has a window. `accept_into`,
/// `share` and `map` may wait for the driver of the peer's node. No other call waits.
#[allow(clippy::missing_errors_doc, reason = "each returns the error of its call of scif.h")]
pub trait ScifCalls: Send + Sync {
    /// `scif_open`; close-on-exec.
    fn open(&self) -> Result<RawFd, Failure>;

    /// `scif_close`
    fn close(&self, fd: RawFd);

    /// `scif_bind`; returns the port.
    fn bind(&self, fd: RawFd, port: u16) -> Result<u16, Failure>;

    /// `scif_listen`
    fn listen(&self, fd: RawFd, backlog: i32) -> Result<(), Failure>;

    /// `scif_connect`
    fn connect(&self, fd: RawFd, dst: PortId) -> Result<(), Failure>;

    /// `scif_accept` without SCIF_ACCEPT_SYNC, into the unused endpoint `new`; returns the peer.
    fn accept_into(&self, fd: RawFd, new: RawFd) -> Result<PortId, Failure>;

    /// `scif_send` without SCIF_SEND_BLOCK; returns the number of bytes sent.
    fn send(&self, fd: RawFd, src: &Mem) -> Result<usize, Failure>;

    /// `scif_recv` without SCIF_RECV_BLOCK; returns the number of bytes received.
    fn receive(&self, fd: RawFd, dst: &Mem) -> Result<usize, Failure>;

    /// Returns the care that windows with rings need; `None`: rings may not lie in windows.
    fn window_kind(&self) -> Option<WindowKind>;

    /// `scif_register` of new, zeroed pages for reading and writing; returns them and the offset.
    /// The caller keeps them until the endpoint is closed.
    fn share(&self, fd: RawFd, len: usize) -> Result<(Mapping, i64), Failure>;

    /// `scif_mmap` of a window of the peer for reading and writing.
    fn map(&self, fd: RawFd, len: usize, offset: i64) -> Result<Mapping, Failure>;

    /// Returns the calls for windows of memory keys; `None`: the owner executes all operations.
    fn key_windows(&self) -> Option<&dyn WindowCalls> {
        None
    }

    /// `scif_get_nodeIDs`; returns the online nodes and the own node.
    fn nodes(&self) -> Result<(Vec<u16>, u16), Failure>;

    /// Returns the name of the implementation, for a line of the log.
    fn name(&self) -> String;
}

debug_by_name!(ScifCalls);

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Calls of `scif.h` for windows of memory keys: registration at a chosen offset, RMA between
//! memory of this process and a window of the peer, and the fence.
//!
//! Not about connections and streams ([`ScifCalls`](crate::ScifCalls)).

use std::os::fd::RawFd;

use scif_ring::Mem;

use crate::failure::Failure;
use crate::fence::Signal;

/// Access that a window grants to the peer.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct WindowAccess {
    /// SCIF_PROT_READ
    pub read: bool,
    /// SCIF_PROT_WRITE
    pub write: bool,
}

impl WindowAccess {
    /// Returns the flags of `scif.h`.
    #[must_use]
    pub fn flags(self) -> i32 {
        i32::from(self.read) | i32::from(self.write) << 1
    }
}

/// Executor of an RMA.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RmaMode {
    /// The calling thread, before the call returns: SCIF_RMA_USECPU.
    Cpu,
    /// A DMA engine, possibly after the return: SCIF_RMA_USECACHE. A fence reports the end.
    Dma,
}

impl RmaMode {
    /// Returns the flags of `scif.h`.
    #[must_use]
    pub fn flags(self) -> i32 {
        match self {
            RmaMode::Cpu => 1,
            RmaMode::Dma => 2,
        }
    }
}

/// Direction of an RMA.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RmaWay {
    /// From the peer's window: `scif_vreadfrom`.
    Read,
    /// To the peer's window: `scif_vwriteto`.
    Write,
}

/// Calls of `scif.h` on the windows of an endpoint named by its descriptor.
#[allow(clippy::missing_errors_doc, reason = "each returns the error of its call of scif.h")]
pub trait WindowCalls: Send + Sync {
    /// `scif_register` of whole pages with SCIF_MAP_FIXED. The caller names an offset at which no
    /// window lies.
    fn register_at(
        &self,
        fd: RawFd,
        memory: (usize, usize),
        offset: i64,
        access: WindowAccess,
    ) -> Result<(), Failure>;

    /// `scif_register` like [`WindowCalls::register_at`], of memory that the peer reads for one
    /// message.
    fn lend_at(&self, fd: RawFd, memory: (usize, usize), offset: i64) -> Result<(), Failure> {
        self.register_at(fd, memory, offset, WindowAccess { read: true, write: false })
    }

    /// Whether RMA on lent windows accesses the memory that the addresses have at that time.
    /// Otherwise a window shows the pages of its registration, and serves no later message: the
    /// program may have replaced them.
    fn lends_addresses(&self) -> bool {
        false
    }

    /// `scif_unregister` of one window; returns after the RMAs in progress on it.
    fn unregister(&self, fd: RawFd, offset: i64, len: usize) -> Result<(), Failure>;

    /// Hides a window from RMA that has not begun: the first step of [`WindowCalls::unregister`],
    /// where that has two.
    fn hide(&self, _fd: RawFd, _offset: i64, _len: usize) -> Result<(), Failure> {
        Ok(())
    }

    /// Ends `scif_unregister` of a window that was hidden at `since_ns` of the monotonic clock.
    /// Limits of the implementation count from then. Returns after the RMAs in progress on it.
    fn unregister_hidden(
        &self,
        fd: RawFd,
        (offset, len): (i64, usize),
        _since_ns: u64,
    ) -> Result<(), Failure> {
        self.unregister(fd, offset, len)
    }

    /// `scif_unregister` of a window of [`WindowCalls::lend_at`].
    fn end_lent(&self, fd: RawFd, offset: i64, len: usize) -> Result<(), Failure> {
        self.unregister(fd, offset, len)
    }

    /// `scif_vreadfrom` or `scif_vwriteto` between memory of this process and offset `far` of the
    /// peer.
    fn transfer(
        &self,
        fd: RawFd,
        way: RmaWay,
        near: &Mem,
        far: i64,
        mode: RmaMode,
    ) -> Result<(), Failure>;

    /// Returns the length in bytes from which RMA is left to DMA. `None`: it is to be measured.
    fn dma_min(&self) -> Option<u64>;

    /// `scif_fence_signal` with SCIF_FENCE_INIT_SELF and SCIF_SIGNAL_LOCAL: stores a value in a
    /// window of this side after all RMAs that this side has started so far.
    fn signal_after_own(&self, fd: RawFd, signal: Signal) -> Result<(), Failure>;
}

debug_by_name!(WindowCalls);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_access_have_the_flags_of_the_header() {
        assert_eq!([RmaMode::Cpu, RmaMode::Dma].map(RmaMode::flags), [1, 2]);
        let access = |read, write| WindowAccess { read, write }.flags();
        assert_eq!([access(true, false), access(false, true), access(true, true)], [1, 2, 3]);
    }
}

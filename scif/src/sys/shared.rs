// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! More views of mapped memory: words, locks, byte streams. The invariant of `mmap` covers them
//! too.
#![expect(unsafe_code, reason = "views of mapped memory whose range is checked")]

use std::ptr::NonNull;

use scif_ring::{STREAM_BYTES, SharedU32, SharedU64, SharedWords, StreamRx, StreamTx};

use super::lock::{LOCK_BYTES, SharedLock};
use super::mmap::{Mapping, OutOfRange};

impl Mapping {
    fn place(
        &self,
        offset: usize,
        len: usize,
        align: usize,
        write: bool,
    ) -> Result<NonNull<u8>, OutOfRange> {
        NonNull::new(self.at(offset, len, align, write)?).ok_or(OutOfRange)
    }

    /// Returns a 32-bit word that this side may write.
    pub fn word32(&self, offset: usize) -> Result<SharedU32, OutOfRange> {
        let at = self.place(offset, 4, 4, true)?;
        // SAFETY: `at` checked range, alignment and writability; the range outlives the view
        // (invariant of `mmap`).
        Ok(unsafe { SharedU32::new(at) })
    }

    /// Returns a 64-bit word that this side may write.
    pub fn word64(&self, offset: usize) -> Result<SharedU64, OutOfRange> {
        let at = self.place(offset, 8, 8, true)?;
        // SAFETY: as in `word32`.
        Ok(unsafe { SharedU64::new(at) })
    }

    /// Returns words that this side only reads, unless the mapping is writable.
    pub fn words(&self, offset: usize, count: usize) -> Result<SharedWords, OutOfRange> {
        let len = count.checked_mul(8).ok_or(OutOfRange)?;
        let at = self.place(offset, len, 8, false)?;
        // SAFETY: as in `word32`; the callers write only to mappings that they made writable.
        Ok(unsafe { SharedWords::new(at, count) })
    }

    /// Creates a lock. The caller creates one at each offset, in memory that no peer maps.
    pub fn lock(&self, offset: usize) -> Result<SharedLock, OutOfRange> {
        let at = self.place(offset, LOCK_BYTES, LOCK_BYTES, true)?;
        // SAFETY: as in `word32`; one lock per offset by this function's contract, aligned as `at`
        // checked.
        Ok(unsafe { SharedLock::make(at) })
    }

    /// Returns the sending side of the byte stream at `offset`.
    pub fn stream_tx(
        &self,
        offset: usize,
        own: SharedU64,
        seen: SharedU64,
    ) -> Result<StreamTx, OutOfRange> {
        let at = self.place(offset, STREAM_BYTES, 128, true)?;
        // SAFETY: as in `word32`.
        Ok(unsafe { StreamTx::new(at, own, seen) })
    }

    /// Returns the receiving side of the byte stream at `offset`.
    pub fn stream_rx(&self, offset: usize, own: SharedU64) -> Result<StreamRx, OutOfRange> {
        let at = self.place(offset, STREAM_BYTES, 128, true)?;
        // SAFETY: as in `word32`.
        Ok(unsafe { StreamRx::new(at, own) })
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory for a ring, with canaries on both sides.

#![allow(dead_code, clippy::unwrap_used, reason = "a test, and each binary uses a part of it")]

use scif_ring::{CREDITS_BYTES, Consumer, DIRECTION_BYTES, Forwarder, Producer};

const PAGE: usize = 4096;
const CANARY: u8 = 0xa5;

/// Zeroed page-aligned bytes between two pages of canaries.
pub(crate) struct Guarded {
    base: *mut u8,
    len: usize,
    layout: std::alloc::Layout,
}

impl Guarded {
    pub(crate) fn new(len: usize) -> Guarded {
        let layout = std::alloc::Layout::from_size_align(len + 2 * PAGE, PAGE).unwrap();
        // SAFETY: the size is not 0.
        let all = unsafe { std::alloc::alloc_zeroed(layout) };
        assert!(!all.is_null());
        // SAFETY: the first page of the allocation.
        unsafe { all.write_bytes(CANARY, PAGE) };
        // SAFETY: the last page of the allocation.
        unsafe { all.wrapping_add(PAGE + len).write_bytes(CANARY, PAGE) };
        Guarded { base: all.wrapping_add(PAGE), len, layout }
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Writes one byte, as a hostile peer could.
    pub(crate) fn scribble(&self, at: usize, byte: u8) {
        // SAFETY: within the allocation; no other thread runs.
        unsafe { self.base.wrapping_add(at % self.len).write(byte) };
    }

    /// Reads one byte.
    pub(crate) fn peek(&self, at: usize) -> u8 {
        // SAFETY: within the allocation; no other thread runs.
        unsafe { self.base.wrapping_add(at % self.len).read() }
    }

    /// Fails if any byte outside the memory was written.
    pub(crate) fn check(&self) {
        for at in (0..PAGE)
            .flat_map(|i| [self.base.wrapping_sub(PAGE - i), self.base.wrapping_add(self.len + i)])
        {
            // SAFETY: within the first or the last page of the allocation.
            assert_eq!(unsafe { at.read() }, CANARY, "written out of bounds");
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`.
        unsafe { std::alloc::dealloc(self.base.wrapping_sub(PAGE), self.layout) };
    }
}

/// Returns both ends of a ring whose consumer writes its words to other memory; as [`ring`].
pub(crate) fn ring_apart(memory: &Guarded, credits: &Guarded) -> (Producer, Consumer) {
    assert!(credits.len >= CREDITS_BYTES);
    // SAFETY: as in `ring`, for both memories.
    let tx = unsafe { Producer::apart(memory.base(), DIRECTION_BYTES, credits.base()) };
    // SAFETY: as above.
    let rx = unsafe { Consumer::apart(memory.base(), DIRECTION_BYTES, credits.base()) };
    (tx.unwrap(), rx.unwrap())
}

/// Returns both ends of a ring of which the producer writes a copy, and its forwarder; as [`ring`].
pub(crate) fn ring_forwarded(
    copy: &Guarded,
    mapped: &Guarded,
    credits: &Guarded,
) -> (Producer, Consumer, Forwarder) {
    let (tx, _) = ring_apart(copy, credits);
    // SAFETY: as in `ring`, for all memories.
    let rx = unsafe { Consumer::apart(mapped.base(), DIRECTION_BYTES, credits.base()) };
    let mut rx = rx.unwrap();
    rx.fence_credits();
    // SAFETY: as above.
    let forwarder =
        unsafe { Forwarder::new(copy.base(), mapped.base(), DIRECTION_BYTES, credits.base()) };
    (tx, rx, forwarder.unwrap())
}

/// Returns both ends of a ring, which must be dropped before the memory.
pub(crate) fn ring(memory: &Guarded) -> (Producer, Consumer) {
    // SAFETY: aligned and zeroed; every test drops the ends before the memory, and makes them once.
    let tx = unsafe { Producer::new(memory.base(), DIRECTION_BYTES) };
    // SAFETY: as above.
    let rx = unsafe { Consumer::new(memory.base(), DIRECTION_BYTES) };
    (tx.unwrap(), rx.unwrap())
}

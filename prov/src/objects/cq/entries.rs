// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Entries of a read of a completion queue, in the caller's buffer.
#![expect(unsafe_code, reason = "writes entries to memory of the application")]

use std::ffi::c_void;
use std::ptr;

use libfabric_sys as fi;

use crate::state::completion::Completion;
use crate::state::cq_queue::Format;

/// Destination of the entries that a read returns: the caller's buffer.
#[derive(Clone, Copy)]
pub(super) struct Entries {
    buf: *mut u8,
    src: *mut fi::fi_addr_t,
    pub(super) count: usize,
}

impl Entries {
    /// # Safety
    /// `buf` is null or has space for `count` entries of the queue's format. `src` is null or has
    /// space for `count` addresses. Both stay valid until the value is dropped.
    #[inline]
    pub(super) unsafe fn new(buf: *mut c_void, count: usize, src: *mut fi::fi_addr_t) -> Entries {
        // A call without a buffer makes progress only.
        Entries { buf: buf.cast(), src, count: if buf.is_null() { 0 } else { count } }
    }

    #[inline(always)]
    pub(super) fn put(&self, format: Format, at: usize, c: &Completion) {
        if format == Format::Tagged {
            // Inlined, since it is the most frequent one.
            self.copy::<{ size_of::<fi::fi_cq_tagged_entry>() }>(at, c);
        } else {
            // A copy by fields leaves the original in registers.
            let Entries { buf, src, count } = *self;
            Entries { buf, src, count }.put_short(format, at, &{ *c });
        }
        if !self.src.is_null() {
            // SAFETY: `at` is below `count` (drain), and `new` promised that many addresses.
            let src = unsafe { self.src.add(at) };
            // SAFETY: as above.
            unsafe { src.write(c.src) };
        }
    }

    /// Variant of [`Entries::put`] for a format with fewer fields than a completion.
    #[inline(never)]
    fn put_short(&self, format: Format, at: usize, c: &Completion) {
        match format {
            Format::Context => self.copy::<{ size_of::<fi::fi_cq_entry>() }>(at, c),
            Format::Msg => self.copy::<{ size_of::<fi::fi_cq_msg_entry>() }>(at, c),
            Format::Data => self.copy::<{ size_of::<fi::fi_cq_data_entry>() }>(at, c),
            Format::Tagged => {}
        }
    }

    /// Copies the entry; every format is the first N bytes of a completion.
    #[inline(always)]
    fn copy<const N: usize>(&self, at: usize, c: &Completion) {
        const { assert!(N <= size_of::<fi::fi_cq_tagged_entry>()) };
        // SAFETY: `at` is below `count` (drain), so this stays within the buffer that `new`
        // promised.
        let to = unsafe { self.buf.add(at * N) };
        // SAFETY: `to` has space for one entry. A completion begins with one, and the two do not
        // overlap.
        unsafe { ptr::copy_nonoverlapping(ptr::from_ref(c).cast::<u8>(), to, N) };
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory that a provider accesses asynchronously.
//!
//! A [`Buf`] is never freed: an operation may outlive the case that posted it, and no borrow can
//! express that. A rank is a short-lived process, so the case limits the leak. No reference to the
//! bytes is ever made; bytes are copied in and out.
#![expect(unsafe_code, reason = "memory shared with a provider is reached through pointers only")]

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

/// Range of memory, or a null pointer with a length, and the descriptor of its region.
#[derive(Clone, Copy, Debug)]
pub struct Buf {
    ptr: *mut u8,
    len: usize,
    desc: usize,
}

// SAFETY: the memory is never freed, and it is only copied, like memory that another process
// writes.
unsafe impl Send for Buf {}
// SAFETY: as above.
unsafe impl Sync for Buf {}

/// Keeps the address of memory that is never freed, so that a memory checker does not report a
/// leak.
pub(super) fn keep<T>(at: *mut T) {
    static KEPT: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(at.expose_provenance());
}

impl Buf {
    /// Null pointer without a length.
    pub const NULL: Buf = Buf { ptr: std::ptr::null_mut(), len: 0, desc: 0 };

    /// Returns zeroed memory on its own pages.
    pub fn new(len: usize) -> Buf {
        const PAGE: usize = 4096;
        let Ok(layout) = Layout::from_size_align(len.max(1), PAGE) else {
            return Buf::NULL;
        };
        // SAFETY: the size is not zero.
        let ptr = unsafe { alloc_zeroed(layout) };
        if ptr.is_null() {
            handle_alloc_error(layout);
        }
        keep(ptr);
        Buf { ptr, len, desc: 0 }
    }

    /// Returns a range that the caller has mapped and keeps mapped during its use.
    pub(super) const fn at(ptr: *mut u8, len: usize) -> Buf {
        Buf { ptr, len, desc: 0 }
    }

    /// Returns zeroed memory in a shared mapping.
    pub fn shared(len: usize) -> rustix::io::Result<Buf> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address chosen by the kernel, never unmapped.
        let at =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len.max(1), prot, MapFlags::SHARED) }?;
        Ok(Buf { ptr: at.cast(), len, desc: 0 })
    }

    /// Returns memory with a copy of `bytes`.
    pub fn of(bytes: &[u8]) -> Buf {
        let buf = Buf::new(bytes.len());
        buf.put(0, bytes);
        buf
    }

    /// Returns memory with the pattern of `seed`.
    pub fn pattern(len: usize, seed: u64) -> Buf {
        let buf = Buf::new(len);
        buf.fill_pattern(seed);
        buf
    }

    /// Returns a null pointer with a length.
    pub const fn null(len: usize) -> Buf {
        Buf { ptr: std::ptr::null_mut(), len, desc: 0 }
    }

    /// Returns this range with the local descriptor of a region.
    #[must_use]
    pub const fn described(mut self, desc: usize) -> Buf {
        self.desc = desc;
        self
    }

    /// Returns address, length and descriptor for a call.
    pub(super) fn parts(&self) -> (*mut c_void, usize, *mut c_void) {
        (self.ptr.cast(), self.len, self.desc())
    }

    /// Returns a part of the range.
    ///
    /// # Panics
    /// If the part is not inside.
    #[must_use]
    pub fn sub(&self, off: usize, len: usize) -> Buf {
        assert!(
            off.checked_add(len).is_some_and(|end| end <= self.len),
            "{off}+{len} of {}",
            self.len
        );
        Buf { ptr: self.ptr.wrapping_add(off), len, desc: self.desc }
    }

    /// Splits the range into `count` consecutive parts of about equal, odd sizes.
    pub fn split(&self, count: usize) -> Vec<Buf> {
        let count = count.max(1);
        let mut parts = Vec::with_capacity(count);
        let mut at = 0;
        for left in (1..=count).rev() {
            let rest = self.len - at;
            let len = if left == 1 { rest } else { ((rest / left) | 1).min(rest) };
            parts.push(self.sub(at, len));
            at += len;
        }
        parts
    }

    /// Address of the range.
    pub fn addr(&self) -> usize {
        self.ptr.addr()
    }

    /// Address of the range as a 64-bit number.
    pub fn addr64(&self) -> u64 {
        self.addr() as u64
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) const fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    pub(super) fn desc(&self) -> *mut std::ffi::c_void {
        std::ptr::without_provenance_mut(self.desc)
    }

    /// Writes bytes at an offset.
    ///
    /// # Panics
    /// If the bytes do not fit.
    pub fn put(&self, off: usize, bytes: &[u8]) {
        let to = self.sub(off, bytes.len());
        if !to.ptr.is_null() {
            // SAFETY: `to` is inside memory that is never freed and to which no reference exists,
            // so `bytes` does not overlap it.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.ptr, to.len) }
        }
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If the bytes are not all inside.
    pub fn get(&self, off: usize, len: usize) -> Vec<u8> {
        let from = self.sub(off, len);
        let mut out = vec![0; len];
        if !from.ptr.is_null() {
            // SAFETY: `from` is inside memory that is never freed, and `out` is a new allocation of
            // the same length.
            unsafe { std::ptr::copy_nonoverlapping(from.ptr, out.as_mut_ptr(), len) }
        }
        out
    }

    /// Copies all bytes out.
    pub fn bytes(&self) -> Vec<u8> {
        self.get(0, self.len)
    }

    /// Sets every byte.
    pub fn fill(&self, byte: u8) {
        if !self.ptr.is_null() {
            // SAFETY: the whole range is memory that is never freed.
            unsafe { std::ptr::write_bytes(self.ptr, byte, self.len) }
        }
    }

    /// Loads an aligned word that another thread or process may write, once.
    ///
    /// # Panics
    /// If the word is not inside or not aligned.
    pub fn load_u64(&self, off: usize) -> u64 {
        let at = self.sub(off, 8).ptr.cast::<u64>();
        assert!(at.is_aligned() && !at.is_null(), "an aligned word");
        // SAFETY: eight aligned bytes inside memory that is never freed; volatile, because another
        // process may write them.
        unsafe { at.read_volatile() }
    }

    /// Stores an aligned word that another thread or process may read, once.
    ///
    /// # Panics
    /// If the word is not inside or not aligned.
    pub fn store_u64(&self, off: usize, value: u64) {
        let at = self.sub(off, 8).ptr.cast::<u64>();
        assert!(at.is_aligned() && !at.is_null(), "an aligned word");
        // SAFETY: eight aligned bytes inside memory that is never freed; volatile, because another
        // process may read them.
        unsafe { at.write_volatile(value) }
    }

    /// Fills the range with bytes that depend on `seed` and on the position.
    pub fn fill_pattern(&self, seed: u64) {
        self.put(0, &pattern_bytes(self.len, seed));
    }

    /// Returns the offset of the first byte that differs from the pattern, among the first `len`.
    pub fn differs(&self, len: usize, seed: u64) -> Option<usize> {
        let (have, want) = (self.get(0, len), pattern_bytes(len, seed));
        if have == want { None } else { have.iter().zip(&want).position(|(a, b)| a != b) }
    }
}

/// Returns the bytes of a pattern. No two seeds agree, and no part equals another part shifted.
pub fn pattern_bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + 8);
    let mut at = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    while out.len() < len {
        at = at.wrapping_add(0xbf58_476d_1ce4_e5b9);
        let mixed = (at ^ (at >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb);
        out.extend_from_slice(&(mixed ^ (mixed >> 32)).to_le_bytes());
    }
    out.truncate(len);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_whole() {
        for len in [0, 1, 2, 3, 7, 64, 4096] {
            for count in 1..=5 {
                let buf = Buf::pattern(len, 3);
                let joined: Vec<u8> = buf.split(count).iter().flat_map(Buf::bytes).collect();
                assert_eq!(joined, buf.bytes());
            }
        }
    }

    #[test]
    fn changed_byte_is_detected() {
        let buf = Buf::pattern(100, 5);
        assert_eq!(buf.differs(100, 5), None);
        assert!(buf.differs(100, 6).is_some());
        buf.put(77, &[!buf.get(77, 1)[0]]);
        assert_eq!(buf.differs(100, 5), Some(77));
    }
}

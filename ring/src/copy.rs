// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory that Rust does not own (user buffers and shared pages), and the only copies in and out of
//! it.
//!
//! Not about: control words (`spsc` and its neighbours), other processes' memory. Other processes
//! may change such bytes at any time. So no reference is made to them: they are copied, and only
//! the copy is inspected.

#![expect(unsafe_code, reason = "copies through raw pointers")]

use crate::sync::Ordering;
use core::sync::atomic::compiler_fence;

/// Length in bytes from which copies use non-temporal stores, measured on x86-64 only. Shorter
/// copies take less time through the caches.
pub const NT_THRESHOLD: usize = 4 << 20;
/// Lengths in bytes for which the string instruction of x86-64 takes less time than memmove(3) of
/// the C library, on processors with [`has_fast_strings`]. The library itself uses it for longer
/// ones; shorter ones take more time to start it.
const STRING_LENGTHS: core::ops::RangeInclusive<usize> = 3072..=8192;
/// Minimum length in bytes of a run for requested non-temporal stores. Shorter runs consist mostly
/// of their unaligned ends.
const NT_MIN: usize = 512;

/// A run of bytes outside Rust's aliasing rules: never a `&[u8]`.
#[derive(Clone, Copy, Debug)]
pub struct Mem {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: a Mem is an address and a length; the contract of `Mem::new` covers accesses from any
// thread.
unsafe impl Send for Mem {}
// SAFETY: as above; it has no interior state.
unsafe impl Sync for Mem {}

impl Mem {
    /// Names `len` bytes at `ptr`.
    ///
    /// # Safety
    ///
    /// `ptr..ptr + len` stays readable, and writable where it is written, until the last use of
    /// this value and its copies (for libfabric buffers: until the operation completed), and no
    /// Rust reference is used on it meanwhile.
    #[inline]
    pub const unsafe fn new(ptr: *mut u8, len: usize) -> Mem {
        Mem { ptr, len }
    }

    /// Returns an empty run.
    #[inline]
    pub const fn empty() -> Mem {
        Mem { ptr: core::ptr::dangling_mut(), len: 0 }
    }

    /// Returns the address of the first byte.
    #[inline]
    pub fn addr(&self) -> usize {
        self.ptr.addr()
    }

    /// Returns a pointer to the first byte.
    #[inline]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Returns the length in bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the run is empty.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns `len` bytes from `off` on, if they all lie inside.
    #[inline]
    pub fn sub(&self, off: usize, len: usize) -> Option<Mem> {
        (off <= self.len && len <= self.len - off)
            .then(|| Mem { ptr: self.ptr.wrapping_add(off), len })
    }

    /// Returns the rest from `off` on; empty past the end.
    #[inline]
    fn after(&self, off: usize) -> Mem {
        let off = off.min(self.len);
        Mem { ptr: self.ptr.wrapping_add(off), len: self.len - off }
    }

    /// Copies from `src` up to the shorter length; returns the number of bytes.
    #[inline]
    pub fn copy_from_slice(&self, src: &[u8]) -> usize {
        let n = self.len.min(src.len());
        // SAFETY: n bytes are writable by the contract of `new` and readable in the slice; by the
        // same contract no Mem that is written aliases a slice in use.
        unsafe { copy_disjoint(self.ptr, src.as_ptr(), n) };
        n
    }

    /// Copies to `dst` up to the shorter length; returns the number of bytes.
    #[inline]
    pub fn copy_to_slice(&self, dst: &mut [u8]) -> usize {
        let n = self.len.min(dst.len());
        // SAFETY: n bytes are readable by the contract of `new` and writable in the slice, which is
        // exclusive.
        unsafe { copy_disjoint(dst.as_mut_ptr(), self.ptr, n) };
        compiler_barrier();
        n
    }

    /// Calls `f` with the memory of `bytes`, which it may read only until it returns.
    pub fn of_bytes<R>(bytes: &[u8], f: impl FnOnce(Mem) -> R) -> R {
        f(Mem { ptr: bytes.as_ptr().cast_mut(), len: bytes.len() })
    }

    /// Appends a copy of the bytes to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        out.reserve(self.len);
        let end = out.len();
        let room = out.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: the bytes are readable by the contract of `new`, and as many are reserved in the
        // vector, which is exclusive.
        unsafe { copy_disjoint(room, self.ptr, self.len) };
        compiler_barrier();
        // SAFETY: those bytes are initialized now.
        unsafe { out.set_len(end + self.len) };
    }

    /// Copies from `src` up to the shorter length; returns the number of bytes. The two may
    /// overlap. From [`NT_THRESHOLD`] on the copy may use non-temporal stores, ordered by a store
    /// fence before everything that follows.
    #[inline]
    pub fn copy_from(&self, src: &Mem) -> usize {
        let n = self.len.min(src.len);
        // SAFETY: n bytes are writable in `self` and readable in `src` by the contract of `new`.
        unsafe { copy_any(self.ptr, src.ptr, n, NT_THRESHOLD) };
        n
    }

    /// Copies from `src`, which has the same length, by the string instruction. Returns whether it
    /// has: not for other processors and lengths, nor where a copy from the front would overwrite
    /// bytes of `src`.
    #[inline]
    pub fn copy_by_string(&self, src: &Mem) -> bool {
        let ahead = self.ptr.addr().wrapping_sub(src.ptr.addr());
        if !STRING_LENGTHS.contains(&self.len) || src.len != self.len || ahead < self.len {
            return false;
        }
        #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
        // SAFETY: the bytes are writable in `self` and readable in `src` by the contract of `new`.
        // The direction flag is clear between functions.
        unsafe {
            core::arch::asm!(
                "rep movsb",
                inout("rdi") self.ptr => _,
                inout("rsi") src.ptr => _,
                inout("rcx") self.len => _,
                options(nostack, preserves_flags)
            );
        }
        cfg!(all(target_arch = "x86_64", not(any(miri, loom))))
    }
}

/// Whether [`Mem::copy_by_string`] takes less time than other copies on this processor.
#[must_use]
pub fn has_fast_strings() -> bool {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    return std::arch::is_x86_feature_detected!("ermsb");
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
    false
}

/// Returns the total length in bytes of a scatter list.
#[inline]
pub fn total_len(iov: &[Mem]) -> usize {
    iov.iter().fold(0, |sum, m| sum.saturating_add(m.len))
}

/// Copies between scatter lists from byte offsets on, up to `max` and the shorter rest; returns the
/// number of bytes.
#[inline]
pub fn copy_iov(dst: &[Mem], dst_off: usize, src: &[Mem], src_off: usize, max: usize) -> usize {
    copy_runs(dst, dst_off, src, src_off, max, NT_THRESHOLD)
}

/// Variant of [`copy_iov`] into one run; `non_temporal` requests non-temporal stores, where
/// available.
#[inline]
pub(crate) fn copy_iov_to(
    dst: &Mem,
    src: &[Mem],
    src_off: usize,
    max: usize,
    non_temporal: bool,
) -> usize {
    let nt = if non_temporal { NT_MIN } else { NT_THRESHOLD };
    copy_runs(core::slice::from_ref(dst), 0, src, src_off, max, nt)
}

/// Variant of [`copy_iov_to`] for a source in a slice.
#[inline]
pub(crate) fn copy_slice_to(dst: &Mem, src: &[u8], non_temporal: bool) -> usize {
    let nt = if non_temporal { NT_MIN } else { NT_THRESHOLD };
    let n = dst.len.min(src.len());
    // SAFETY: n bytes are writable in `dst` by the contract of `new` and readable in the slice,
    // which by that contract is other memory.
    unsafe { copy_any(dst.ptr, src.as_ptr(), n, nt) };
    n
}

#[inline]
fn copy_runs(
    dst: &[Mem],
    dst_off: usize,
    src: &[Mem],
    src_off: usize,
    max: usize,
    nt: usize,
) -> usize {
    let mut to = Cursor::new(dst, dst_off);
    let mut from = Cursor::new(src, src_off);
    let mut done = 0;
    while done < max {
        let (d, s) = (to.run(), from.run());
        let n = d.len.min(s.len).min(max - done);
        if n == 0 {
            break;
        }
        // SAFETY: n is within both runs, which are readable and writable by the contract of
        // `Mem::new`.
        unsafe { copy_any(d.ptr, s.ptr, n, nt) };
        to.advance(n);
        from.advance(n);
        done += n;
    }
    done
}

/// Puts into `out`, cleared first, the parts of `iov` that cover `off..off + len`, as far as `iov`
/// reaches.
pub fn slice_iov(iov: &[Mem], off: usize, len: usize, out: &mut Vec<Mem>) {
    out.clear();
    let mut cursor = Cursor::new(iov, off);
    let mut left = len;
    while left > 0 {
        let run = cursor.run();
        let n = run.len.min(left);
        if n == 0 {
            break;
        }
        out.push(Mem { ptr: run.ptr, len: n });
        cursor.advance(n);
        left -= n;
    }
}

/// A position in a scatter list.
struct Cursor<'a> {
    run: Mem,
    rest: core::slice::Iter<'a, Mem>,
}

impl<'a> Cursor<'a> {
    #[inline]
    fn new(iov: &'a [Mem], off: usize) -> Cursor<'a> {
        let mut cursor = Cursor { run: Mem::empty(), rest: iov.iter() };
        let mut off = off;
        for m in cursor.rest.by_ref() {
            if off < m.len {
                cursor.run = m.after(off);
                break;
            }
            off -= m.len;
        }
        cursor
    }

    /// Returns the contiguous bytes at this position; empty only at the end of the list.
    #[inline]
    fn run(&mut self) -> Mem {
        while self.run.len == 0 {
            match self.rest.next() {
                Some(m) => self.run = *m,
                None => break,
            }
        }
        self.run
    }

    #[inline]
    fn advance(&mut self, n: usize) {
        self.run = self.run.after(n);
    }
}

/// Prevents the compiler from reading shared memory again in place of a copy made before.
#[inline(always)]
pub(crate) fn compiler_barrier() {
    compiler_fence(Ordering::SeqCst);
}

/// Prefetches the line of `at` for writing: a hint without effect on the content.
///
/// Written in assembly. On targets that do not name the feature, the intrinsic becomes a prefetch
/// for reading, which is useless for this purpose.
#[inline(always)]
pub(crate) fn prefetch_for_write<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    // SAFETY: reads and writes nothing and never faults; processors without the instruction execute
    // it as no operation.
    unsafe {
        core::arch::asm!(
            "prefetchw [{}]",
            in(reg) at,
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(all(target_arch = "aarch64", not(any(miri, loom))))]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "prfm pstl1keep, [{}]",
            in(reg) at,
            options(nostack, preserves_flags, readonly)
        );
    }
    let _ = at;
}

/// Calls `f` with the address of every 64th byte of `at`.
#[inline(always)]
fn each_line(at: &Mem, mut f: impl FnMut(*mut u8)) {
    // Not `step_by`, which divides first: ten instructions for a body of one line.
    let mut line = 0;
    while line < at.len() {
        f(at.as_ptr().wrapping_add(line));
        line += 64;
    }
}

/// Prefetches each line of `at` for writing.
#[inline(always)]
pub(crate) fn prefetch_lines(at: &Mem) {
    each_line(at, |line| prefetch_for_write(line));
}

/// Moves the lines of `at` from the caches of this core to the shared one, from which another core
/// loads them in less time. A hint without effect on the content.
#[inline(always)]
pub(crate) fn demote_lines(at: &Mem) {
    each_line(at, |line| demote(line));
}

/// Variant of [`demote_lines`] for the line of `at`.
#[inline(always)]
pub(crate) fn demote<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    // SAFETY: changes no content and never faults; processors without the instruction execute it
    // as no operation.
    unsafe {
        core::arch::asm!("cldemote [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    let _ = at;
}

/// Prefetches the first line of `at` for reading.
#[inline(always)]
pub(crate) fn prefetch(at: &Mem) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    // SAFETY: a hint, which never faults; every x86-64 has SSE.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.as_ptr().cast());
    }
    #[cfg(all(target_arch = "aarch64", not(any(miri, loom))))]
    // SAFETY: a hint, which never faults.
    unsafe {
        core::arch::asm!(
            "prfm pldl1keep, [{}]",
            in(reg) at.as_ptr(),
            options(nostack, preserves_flags, readonly)
        );
    }
    let _ = at;
}

/// Writes to each line of `at`, so that this core owns it. The former content is lost.
#[inline]
pub(crate) fn scrub_lines(at: &Mem) {
    // SAFETY: a byte of `at`, which is writable by the contract of `new`.
    each_line(at, |line| unsafe { line.write_volatile(0) });
}

/// Copies `n` bytes between memory that does not overlap; up to 64 without a call.
///
/// # Safety
///
/// `src..src + n` is readable, `dst..dst + n` writable, and they do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_disjoint(dst: *mut u8, src: *const u8, n: usize) {
    if n <= 64 {
        // SAFETY: the caller's contract, and n <= 64.
        unsafe { copy_short(dst, src, n) };
    } else {
        // SAFETY: the caller's contract.
        unsafe { dst.copy_from_nonoverlapping(src, n) };
    }
}

/// Copies `n` bytes between memory that may overlap; up to 64 without a call, and from `nt` on with
/// non-temporal stores, if it does not overlap.
///
/// # Safety
///
/// `src..src + n` is readable and `dst..dst + n` writable.
#[inline(always)]
unsafe fn copy_any(dst: *mut u8, src: *const u8, n: usize, nt: usize) {
    if n <= 64 {
        // SAFETY: the caller's contract, and n <= 64.
        unsafe { copy_short(dst, src, n) };
    } else {
        // SAFETY: the caller's contract.
        unsafe { copy_long(dst, src, n, nt) };
    }
}

/// Copies up to 64 bytes by at most two moves of one width, the second one aligned to the end of
/// the run. Both are read before either is written, so the runs may overlap.
#[inline(always)]
unsafe fn copy_short(dst: *mut u8, src: *const u8, n: usize) {
    if n == 8 {
        // The most frequent length, handled before the match on widths. SAFETY: 8 bytes are
        // readable, by the caller's contract.
        let word = unsafe { src.cast::<u64>().read_unaligned() };
        // SAFETY: 8 bytes are writable, by the caller's contract.
        return unsafe { dst.cast::<u64>().write_unaligned(word) };
    }
    match n {
        0 => {}
        // SAFETY: n is within size..=2 * size of the named width; the rest is the caller's
        // contract. The same holds for each arm.
        1 => unsafe { copy_ends::<u8>(dst, src, n) },
        // SAFETY: as above.
        2..4 => unsafe { copy_ends::<u16>(dst, src, n) },
        // SAFETY: as above.
        4..8 => unsafe { copy_ends::<u32>(dst, src, n) },
        // SAFETY: as above.
        8..16 => unsafe { copy_ends::<u64>(dst, src, n) },
        // SAFETY: as above.
        16..32 => unsafe { copy_ends::<[u64; 2]>(dst, src, n) },
        // SAFETY: as above.
        _ => unsafe { copy_ends::<[u64; 4]>(dst, src, n) },
    }
}

/// # Safety
///
/// `size_of::<T>() <= n <= 2 * size_of::<T>()`, `src..src + n` is readable and `dst..dst + n`
/// writable.
#[inline(always)]
unsafe fn copy_ends<T: Copy>(dst: *mut u8, src: *const u8, n: usize) {
    let last = n - size_of::<T>();
    // SAFETY: the first size_of::<T>() <= n bytes are readable.
    let head = unsafe { src.cast::<T>().read_unaligned() };
    // SAFETY: the last size_of::<T>() <= n bytes are readable.
    let tail = unsafe { src.wrapping_add(last).cast::<T>().read_unaligned() };
    // SAFETY: the first size_of::<T>() <= n bytes are writable.
    unsafe { dst.cast::<T>().write_unaligned(head) };
    // SAFETY: the last size_of::<T>() <= n bytes are writable.
    unsafe { dst.wrapping_add(last).cast::<T>().write_unaligned(tail) };
}

/// # Safety
///
/// `src..src + n` is readable and `dst..dst + n` writable.
unsafe fn copy_long(dst: *mut u8, src: *const u8, n: usize, nt: usize) {
    #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
    if n >= nt && dst.addr().abs_diff(src.addr()) >= n {
        // SAFETY: the caller's contract, and the runs are n apart.
        unsafe { stream::copy(dst, src, n) };
        return;
    }
    // SAFETY: the caller's contract; the runs may overlap.
    unsafe { dst.copy_from(src, n) };
    let _ = nt;
}

/// Returns a processor counter that advances evenly, some 10^9 times a second; 0 where none is
/// known.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    // SAFETY: reads a register that every x86-64 has and lets programs read.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(all(target_arch = "aarch64", not(any(miri, loom))))]
    {
        let (count, hertz): (u64, u64);
        // SAFETY: reads the virtual counter and its frequency, which Linux lets programs read.
        unsafe {
            core::arch::asm!(
                "mrs {}, cntvct_el0",
                "mrs {}, cntfrq_el0",
                out(reg) count,
                out(reg) hertz,
                options(nostack, nomem, preserves_flags)
            );
        }
        // From 2.1 to 4.3 GHz, like the counters of x86-64: limits in ticks hold for both.
        // Firmware may leave the frequency unset. The shift is then that of a counter of 24 MHz.
        let shift = if hertz < 1 << 20 { 7 } else { hertz.leading_zeros().saturating_sub(32) };
        count << shift
    }
    #[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri, loom))]
    0
}

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod stream {
    //! Copy with non-temporal stores: of SSE2, which every x86-64 has, or STNP of AArch64.

    /// # Safety
    ///
    /// `n >= 64`, `src..src + n` is readable, `dst..dst + n` writable, and they do not overlap.
    pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, n: usize) {
        // The stores need whole lines: an ordinary copy up to the first line boundary, and after
        // the last.
        let head = dst.align_offset(64).min(n);
        let body = (n - head) & !63;
        // SAFETY: head <= n.
        unsafe { dst.copy_from_nonoverlapping(src, head) };
        for at in (head..head + body).step_by(64) {
            // SAFETY: at + 64 <= n, and dst + head is aligned to 64.
            unsafe { line(dst.wrapping_add(at), src.wrapping_add(at)) };
        }
        let at = head + body;
        // SAFETY: at <= n.
        unsafe { dst.wrapping_add(at).copy_from_nonoverlapping(src.wrapping_add(at), n - at) };
        // SYNC POINT: streamed stores of x86-64 are not ordered by a later Release. This fence puts
        // them before any publication that follows (`push` in spsc/producer.rs,
        // `Claim::complete_front` in claim.rs, a completion in the process).
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 has SSE.
        unsafe {
            core::arch::x86_64::_mm_sfence();
        }
    }

    /// # Safety
    ///
    /// `from` has 64 readable bytes, `to` 64 writable ones, at a multiple of 64.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn line(to: *mut u8, from: *const u8) {
        use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
        let (to, from) = (to.cast::<__m128i>(), from.cast::<__m128i>());
        // SAFETY: each 16-byte quarter is readable.
        let a = unsafe { _mm_loadu_si128(from) };
        // SAFETY: as above.
        let b = unsafe { _mm_loadu_si128(from.wrapping_add(1)) };
        // SAFETY: as above.
        let c = unsafe { _mm_loadu_si128(from.wrapping_add(2)) };
        // SAFETY: as above.
        let d = unsafe { _mm_loadu_si128(from.wrapping_add(3)) };
        // SAFETY: each quarter is writable, and aligned to 16.
        unsafe { _mm_stream_si128(to, a) };
        // SAFETY: as above.
        unsafe { _mm_stream_si128(to.wrapping_add(1), b) };
        // SAFETY: as above.
        unsafe { _mm_stream_si128(to.wrapping_add(2), c) };
        // SAFETY: as above.
        unsafe { _mm_stream_si128(to.wrapping_add(3), d) };
    }

    /// # Safety
    ///
    /// `from` has 64 readable bytes, `to` 64 writable ones.
    #[cfg(target_arch = "aarch64")]
    #[inline(always)]
    unsafe fn line(to: *mut u8, from: *const u8) {
        // SAFETY: reads and writes these bytes only. A later Release orders the stores: the hint
        // weakens the order of loads alone.
        unsafe {
            core::arch::asm!(
                "ldp {a:q}, {b:q}, [{from}]",
                "ldp {c:q}, {d:q}, [{from}, #32]",
                "stnp {a:q}, {b:q}, [{to}]",
                "stnp {c:q}, {d:q}, [{to}, #32]",
                from = in(reg) from,
                to = in(reg) to,
                a = out(vreg) _,
                b = out(vreg) _,
                c = out(vreg) _,
                d = out(vreg) _,
                options(nostack, preserves_flags)
            );
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Mapped memory that owns its range, and the ring crate's views of parts of it. See `mmap(2)`.
//!
//! Not about access rights: the caller decides about the place of each view.
//!
//! INVARIANT: a view is dropped before its [`Mapping`]: the owner of a view keeps the mapping in
//! the same struct (`Connection`, `Endpoint`, `SharedKeys`; in the crate `scif-api`
//! `Link`, `Sharer` and `OwnTable`).
#![expect(unsafe_code, reason = "mmap, and views of mapped memory whose range is checked here")]

use std::any::Any;
use std::os::fd::AsFd;
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap, mmap_anonymous, mremap, munmap};
use scif_ring::{
    BELL_BYTES, Bell, BellHandle, CLAIM_BLOCKS, CLAIM_BYTES, CREDITS_BYTES, Claim, Consumer,
    DIRECTION_BYTES, Forwarder, HAZARD_BYTES, HazardPointer, KEYTABLE_BYTES, KeyReader, KeyTable,
    Mem, Producer, REPLY_LINE_BYTES,
};

use super::fork::{self, Maker};
use super::parts::parts;
use super::{at_exit, large, sigbus};
use crate::sorted::SortedMap;

/// Size in bytes of a small page.
pub const PAGE: usize = 4096;

/// A range of shared memory, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    /// Process that entered it in `parts`, if it is entered.
    part: Option<Maker>,
    /// Whether it is removed when the process exits.
    is_temporary: bool,
    /// Object that unmaps the range when it is dropped.
    unmapper: Option<Box<dyn Any + Send + Sync>>,
}

// SAFETY: the range is not tied to a thread; all access is through the ring crate's views, which
// tolerate writes of other processes at any time.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` only returns such views.
unsafe impl Sync for Mapping {}

/// Error: a requested view is outside the mapping, misaligned, or not writable.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OutOfRange;

impl Mapping {
    /// Maps `len` bytes of `fd` from its start, shared.
    pub fn shared(fd: impl AsFd, len: usize, writable: bool) -> Result<Mapping, Errno> {
        let mut prot = ProtFlags::READ;
        prot.set(ProtFlags::WRITE, writable);
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: without MAP_FIXED the kernel picks an unused range.
        let at = unsafe { mmap(null_mut(), len, prot, flags, fd, 0) }?;
        Mapping::own(at.cast(), len, writable)
    }

    /// Maps `len` bytes of `fd` from `offset` on, shared; not inherited by a forked child.
    pub fn part(fd: impl AsFd, offset: u64, len: usize, writable: bool) -> Result<Mapping, Errno> {
        let mut prot = ProtFlags::READ;
        prot.set(ProtFlags::WRITE, writable);
        let _section = fork::section();
        let mut parts = parts();
        let place = large::reserve(len, offset)?;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: replaces the range just reserved, which is known to this function only.
        let at = unsafe { mmap(place, len, prot, flags, fd, offset) }.inspect_err(|_| {
            // SAFETY: as above.
            let _ = unsafe { munmap(place, len) };
        })?;
        Mapping::own_part(at, len, writable, &mut parts)
    }

    /// Maps again `len` bytes from address `at` on of a shared mapping of this process; not
    /// inherited by a forked child. The caller has to check the file, since the program may have
    /// replaced its mapping.
    pub fn duplicate(at: usize, len: usize, writable: bool) -> Result<Mapping, Errno> {
        let _section = fork::section();
        let mut parts = parts();
        let from = std::ptr::with_exposed_provenance_mut(at);
        // SAFETY: with old length 0 the original mapping stays unchanged; the kernel picks an
        // unused range for the new one.
        let at = unsafe { mremap(from, 0, len, MremapFlags::MAYMOVE) }?;
        Mapping::own_part(at, len, writable, &mut parts)
    }

    /// Takes over a range just mapped, which becomes unknown to forked children and to
    /// `areas_of_program`.
    fn own_part(
        at: *mut std::ffi::c_void,
        len: usize,
        writable: bool,
        parts: &mut SortedMap<usize, usize>,
    ) -> Result<Mapping, Errno> {
        for advice in [rustix::mm::Advice::LinuxDontFork, rustix::mm::Advice::LinuxDontDump] {
            // SAFETY: changes no byte of the range just mapped.
            let _ = unsafe { rustix::mm::madvise(at, len, advice) };
        }
        let mut map = Mapping::own(at.cast(), len, writable)?;
        let begin = map.base.addr().get();
        parts.insert(begin, begin + len);
        map.part = Some(Maker::here());
        Ok(map)
    }

    /// Maps `len` zeroed bytes, shared with processes that this one forks.
    pub fn anonymous(len: usize) -> Result<Mapping, Errno> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: without MAP_FIXED the kernel picks an unused range.
        let at = unsafe { mmap_anonymous(null_mut(), len, prot, flags) }?;
        Mapping::own(at.cast(), len, true)
    }

    /// Allocates its pages, so that no later access waits for one. Without memory for all, the rest
    /// is allocated on access.
    pub(crate) fn populate(&self) {
        let at = self.base.as_ptr().cast();
        // SAFETY: changes no byte of the range, which is mapped.
        let _ =
            unsafe { rustix::mm::madvise(at, self.len, rustix::mm::Advice::LinuxPopulateWrite) };
    }

    /// Gives pages of a private mapping back to the system. They contain zeros afterwards.
    pub(crate) fn release_pages(&self, offset: usize, len: usize) {
        let Ok(at) = self.at(offset, len, PAGE, true) else { return };
        let advice = rustix::mm::Advice::LinuxDontNeed;
        // SAFETY: the range lies in this mapping (`at`), whose bytes are only accessed by the views
        // of the ring crate, which accept any value.
        let _ = unsafe { rustix::mm::madvise(at.cast(), len, advice) };
    }

    /// Maps `len` zeroed bytes of this process alone.
    pub fn private(len: usize) -> Result<Mapping, Errno> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without MAP_FIXED the kernel picks an unused range.
        let at = unsafe { mmap_anonymous(null_mut(), len, prot, MapFlags::PRIVATE) }?;
        Mapping::own(at.cast(), len, true)
    }

    /// Takes over a range that was mapped for a program and that the program gives up.
    pub fn adopt(at: usize, len: usize, writable: bool) -> Result<Mapping, Errno> {
        Mapping::own(std::ptr::with_exposed_provenance_mut(at), len, writable)
    }

    /// Takes over a range that is mapped for writing until `unmapper` is dropped.
    ///
    /// # Errors
    /// EFAULT for a range at address 0.
    pub(crate) fn held(
        at: usize,
        len: usize,
        unmapper: Box<dyn Any + Send + Sync>,
    ) -> Result<Mapping, Errno> {
        let mut map = Mapping::own(std::ptr::with_exposed_provenance_mut(at), len, true)?;
        map.unmapper = Some(unmapper);
        Ok(map)
    }

    /// Takes over the range that `map` maps for the library itself, and whose address it returns;
    /// not inherited by a forked child. From its beginning the mapping is unknown to
    /// `areas_of_program`.
    ///
    /// # Errors
    /// Errors of `map`.
    pub fn for_library<E: From<Errno>>(
        len: usize,
        writable: bool,
        map: impl FnOnce() -> Result<usize, E>,
    ) -> Result<Mapping, E> {
        let _section = fork::section();
        let mut parts = parts();
        let at = std::ptr::with_exposed_provenance_mut(map()?);
        Ok(Mapping::own_part(at, len, writable, &mut parts)?)
    }

    /// Maps `len` zeroed bytes of this process alone; not inherited by a forked child.
    pub fn private_for_library(len: usize) -> Result<Mapping, Errno> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        Mapping::for_library(len, true, || {
            // SAFETY: without MAP_FIXED the kernel picks an unused range.
            let at = unsafe { mmap_anonymous(null_mut(), len, prot, MapFlags::PRIVATE) }?;
            Ok(at.expose_provenance())
        })
    }

    /// Makes [`Mapping::detach`] happen at the latest when the process exits.
    ///
    /// # Errors
    /// ECANCELED: the process exits.
    pub fn detach_at_exit(&mut self) -> Result<(), Errno> {
        at_exit::enter(self.base.addr().get(), self.len)?;
        self.is_temporary = true;
        Ok(())
    }

    /// Puts private memory in place of a mapping that [`Mapping::detach_at_exit`] was called for.
    /// Views of it stay valid.
    pub fn detach(&self) {
        if self.is_temporary {
            at_exit::replace(self.base.addr().get());
        }
    }

    /// Makes accesses to it have no effect once a driver has removed its pages, after
    /// [`Mapping::detach_at_exit`]. Without this they raise SIGBUS.
    pub fn detach_at_loss(&self) {
        if self.is_temporary {
            sigbus::install();
        }
    }

    fn own(at: *mut u8, len: usize, writable: bool) -> Result<Mapping, Errno> {
        let base = NonNull::new(at).ok_or(Errno::FAULT)?;
        Ok(Mapping { base, len, writable, part: None, is_temporary: false, unmapper: None })
    }

    /// Returns the start address, exposed for conversion to a pointer.
    pub fn address(&self) -> usize {
        self.base.as_ptr().expose_provenance()
    }

    /// Whether it has this length and this access.
    pub fn is_like(&self, len: usize, writable: bool) -> bool {
        self.len == len && self.writable == writable
    }

    /// Returns the address of `len` bytes at `offset`, if they lie inside, at a multiple of
    /// `align`.
    #[inline]
    pub(super) fn at(
        &self,
        offset: usize,
        len: usize,
        align: usize,
        write: bool,
    ) -> Result<*mut u8, OutOfRange> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if !inside || offset % align != 0 || (write && !self.writable) {
            return Err(OutOfRange);
        }
        Ok(self.base.as_ptr().wrapping_add(offset))
    }

    /// Returns plain bytes. Others may write them at any time.
    #[inline]
    pub fn bytes(&self, offset: usize, len: usize) -> Result<Mem, OutOfRange> {
        let at = self.at(offset, len, 1, true)?;
        // SAFETY: `at` checked the range; it stays mapped while the view exists (module invariant).
        Ok(unsafe { Mem::new(at, len) })
    }

    /// Returns plain bytes that this side only reads. Others may write them at any time.
    #[inline]
    pub fn bytes_to_read(&self, offset: usize, len: usize) -> Result<Mem, OutOfRange> {
        let at = self.at(offset, len, 1, false)?;
        // SAFETY: as in `bytes`; the callers do not write.
        Ok(unsafe { Mem::new(at, len) })
    }

    /// Returns the producer of the direction at `offset`, with half number `half` of the reply line
    /// at `reply_line`. The caller creates one per direction.
    pub(crate) fn producer(
        &self,
        offset: usize,
        reply_line: usize,
        half: usize,
    ) -> Result<Producer, OutOfRange> {
        let at = self.at(offset, DIRECTION_BYTES, PAGE, true)?;
        let line = self.at(reply_line, REPLY_LINE_BYTES, REPLY_LINE_BYTES, true)?;
        // SAFETY: `at` checked range, alignment and writability; the range outlives the view
        // (module invariant). The one caller, `Views::new`, creates one producer and one consumer
        // per connection, of different directions. If a peer did not leave zeros, its data is
        // checked like everything else that it writes.
        let mut tx = unsafe { Producer::new(at, DIRECTION_BYTES) }.map_err(|_| OutOfRange)?;
        // SAFETY: as above; a connection has one producer for each half.
        unsafe { tx.set_reply_line(line, half != 0) };
        Ok(tx)
    }

    /// Returns the producer of the direction at `offset`, whose consumer writes its words at
    /// `credits_at` of `credits`. The caller creates one per direction.
    pub(crate) fn producer_apart(
        &self,
        offset: usize,
        credits: &Mapping,
        credits_at: usize,
    ) -> Result<Producer, OutOfRange> {
        let at = self.at(offset, DIRECTION_BYTES, PAGE, true)?;
        let credits = credits.at(credits_at, CREDITS_BYTES, PAGE, true)?;
        // SAFETY: as in `producer`; the caller keeps both mappings.
        unsafe { Producer::apart(at, DIRECTION_BYTES, credits) }.map_err(|_| OutOfRange)
    }

    /// Returns the forwarder from the ring at the start of this mapping to the direction at
    /// `offset` of `mapped`. Their consumer writes its words at `credits_at` of `credits`. The
    /// caller creates one per direction.
    pub(crate) fn forwarder(
        &self,
        (mapped, offset): (&Mapping, usize),
        (credits, credits_at): (&Mapping, usize),
    ) -> Result<Forwarder, OutOfRange> {
        let copy = self.at(0, DIRECTION_BYTES, PAGE, true)?;
        let mapped = mapped.at(offset, DIRECTION_BYTES, PAGE, true)?;
        let credits = credits.at(credits_at, CREDITS_BYTES, PAGE, true)?;
        // SAFETY: as in `producer_apart`; the only producer writes to the copy.
        unsafe { Forwarder::new(copy, mapped, DIRECTION_BYTES, credits) }.map_err(|_| OutOfRange)
    }

    /// Returns the consumer of the direction at `offset`, which writes its words at `credits_at` of
    /// `credits`. The caller creates one per direction.
    pub(crate) fn consumer_apart(
        &self,
        offset: usize,
        credits: &Mapping,
        credits_at: usize,
    ) -> Result<Consumer, OutOfRange> {
        let at = self.at(offset, DIRECTION_BYTES, PAGE, true)?;
        let credits = credits.at(credits_at, CREDITS_BYTES, PAGE, true)?;
        // SAFETY: as in `producer_apart`.
        unsafe { Consumer::apart(at, DIRECTION_BYTES, credits) }.map_err(|_| OutOfRange)
    }

    /// Returns the consumer of the direction at `offset`, whose producer replies in half number
    /// `half`. The caller creates one per direction.
    pub(crate) fn consumer(
        &self,
        offset: usize,
        reply_line: usize,
        half: usize,
    ) -> Result<Consumer, OutOfRange> {
        let at = self.at(offset, DIRECTION_BYTES, PAGE, true)?;
        let line = self.at(reply_line, REPLY_LINE_BYTES, REPLY_LINE_BYTES, true)?;
        // SAFETY: as in `producer`.
        let mut rx = unsafe { Consumer::new(at, DIRECTION_BYTES) }.map_err(|_| OutOfRange)?;
        // SAFETY: as in `producer`.
        unsafe { rx.set_reply_line(line, half != 0) };
        Ok(rx)
    }

    /// Returns the owner's view of the doorbell that fills this mapping.
    pub(crate) fn bell(&self) -> Result<Bell, OutOfRange> {
        let at = self.at(0, BELL_BYTES, PAGE, true)?;
        // SAFETY: as in `producer`.
        Ok(unsafe { Bell::new(at) })
    }

    /// Returns a peer's view of the doorbell that fills this mapping.
    pub(crate) fn bell_handle(&self) -> Result<BellHandle, OutOfRange> {
        let at = self.at(0, BELL_BYTES, PAGE, true)?;
        // SAFETY: as in `producer`.
        Ok(unsafe { BellHandle::new(at) })
    }

    /// Returns the owner's view of the key table that fills this mapping. The caller creates one.
    pub(crate) fn key_table(&self) -> Result<KeyTable, OutOfRange> {
        let at = self.at(0, KEYTABLE_BYTES, PAGE, true)?;
        // SAFETY: as in `producer`.
        Ok(unsafe { KeyTable::new(at) })
    }

    /// Returns a peer's view of the key table that fills this mapping.
    pub(crate) fn key_reader(&self) -> Result<KeyReader, OutOfRange> {
        let at = self.at(0, KEYTABLE_BYTES, PAGE, false)?;
        // SAFETY: `at` checked range and alignment; the view only reads; the range outlives it
        // (module invariant).
        Ok(unsafe { KeyReader::new(at) })
    }

    pub(crate) fn hazard_pointer(&self, offset: usize) -> Result<HazardPointer, OutOfRange> {
        let at = self.at(offset, HAZARD_BYTES, HAZARD_BYTES, true)?;
        // SAFETY: as in `producer`.
        Ok(unsafe { HazardPointer::new(at) })
    }

    /// Returns the claim blocks at `offset`.
    pub(crate) fn claims(&self, offset: usize) -> Result<Claims, OutOfRange> {
        Ok(Claims { base: self.at(offset, CLAIM_BLOCKS * CLAIM_BYTES, CLAIM_BYTES, true)? })
    }
}

/// The claim blocks of one direction.
#[derive(Debug)]
pub(crate) struct Claims {
    base: *mut u8,
}

// SAFETY: a claim block is shared between processes and consists of atomics, which any thread may
// access.
unsafe impl Send for Claims {}

impl Claims {
    /// Returns one claim block; numbers wrap.
    #[inline]
    pub(crate) fn get(&self, block: usize) -> Claim {
        let at = self.base.wrapping_add(block % CLAIM_BLOCKS * CLAIM_BYTES);
        // SAFETY: `Mapping::claims` checked range, alignment and writability of the whole array;
        // the range outlives the view (module invariant).
        unsafe { Claim::new(at) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.unmapper.is_some() {
            return;
        }
        if self.part.is_some_and(Maker::is_ancestor) {
            // A forked child does not inherit the range: its addresses may be in other use.
            return;
        }
        if self.is_temporary {
            at_exit::leave(self.base.addr().get());
        }
        let _section = self.part.map(|_| fork::section());
        let mut parts = self.part.map(|_| parts());
        if let Some(parts) = &mut parts {
            parts.remove(&self.base.addr().get());
        }
        // SAFETY: the range is ours since `own`, and every view of it is gone (module invariant).
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of an owned range");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_outside_are_refused() {
        let map = Mapping::anonymous(2 * DIRECTION_BYTES).unwrap();
        assert!(map.producer(0, DIRECTION_BYTES, 0).is_ok());
        assert!(map.consumer(DIRECTION_BYTES, 0, 1).is_ok());
        assert!(map.producer(DIRECTION_BYTES + PAGE, 0, 0).is_err());
        assert!(map.producer(64, 0, 0).is_err());
        assert!(map.producer(0, 2 * DIRECTION_BYTES, 0).is_err());
        assert!(map.consumer(0, 64, 0).is_err());
        assert!(map.hazard_pointer(64).is_err());
        assert!(map.claims(usize::MAX - 3).is_err());
        assert!(map.claims(2 * DIRECTION_BYTES - CLAIM_BYTES).is_err());
        assert!(map.bytes(2 * DIRECTION_BYTES, 1).is_err());
        assert!(map.key_reader().is_err());
    }

    #[test]
    fn read_only_memory_gives_no_writing_view() {
        let fd = crate::sys::memfd::create("scif-test", KEYTABLE_BYTES).unwrap();
        let map = Mapping::shared(&fd, KEYTABLE_BYTES, false).unwrap();
        assert!(map.key_reader().is_ok());
        assert!(map.key_table().is_err());
        assert!(map.bell().is_err());
    }
}

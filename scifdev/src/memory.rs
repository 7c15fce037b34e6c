// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory that a program passes to an ioctl. A driver returns EFAULT if it does not exist, and so
//! does this library.
//!
//! `MADV_POPULATE_READ` and `MADV_POPULATE_WRITE` (Linux 5.14) check whether a range can be read or
//! written before it is accessed. On an older kernel only NULL is detected. See `madvise(2)`.
#![expect(unsafe_code, reason = "memory that a program names")]

use std::marker::PhantomData;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::mm::Advice;
use scif_api::{Failure, Result};
use scif_ring::Mem;
use zerocopy::{FromBytes, IntoBytes};

const PAGE: usize = 4096;

/// Whether the kernel supports the check.
static KNOWS: OnceLock<bool> = OnceLock::new();

fn ask(at: usize, len: usize, advice: Advice) -> std::result::Result<(), Errno> {
    let begin = at & !(PAGE - 1);
    let end = at
        .checked_add(len)
        .and_then(|end| end.checked_next_multiple_of(PAGE))
        .ok_or(Errno::FAULT)?;
    let place = std::ptr::with_exposed_provenance_mut(begin);
    // SAFETY: populating changes no byte; for a range that is not mapped it is an error.
    unsafe { rustix::mm::madvise(place, end - begin, advice) }
}

/// Checks that a range of the program can be read, or written.
fn reach(at: usize, len: usize, write: bool) -> Result<()> {
    if at == 0 {
        return Err(Failure::BadAddress);
    }
    let here = 0u8;
    let knows = *KNOWS.get_or_init(|| {
        ask((&raw const here).expose_provenance(), 1, Advice::LinuxPopulateRead).is_ok()
    });
    if !knows {
        return Ok(());
    }
    let advice = if write { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    ask(at, len, advice).map_err(|_| Failure::BadAddress)
}

fn read<T: FromBytes>(at: usize) -> T {
    let from: *const T = std::ptr::with_exposed_provenance(at);
    // SAFETY: the callers have checked the range (at least for NULL), and any bytes are a T.
    unsafe { from.read_unaligned() }
}

fn write<T: IntoBytes>(at: usize, value: T) {
    let to: *mut T = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: the callers have checked that the range is writable, and the program passed it for
    // that.
    unsafe { to.write_unaligned(value) };
}

/// Reads a value at a pointer of the program.
///
/// # Errors
/// [`Failure::BadAddress`].
pub(crate) fn get<T: FromBytes>(at: usize) -> Result<T> {
    reach(at, size_of::<T>(), false)?;
    Ok(read(at))
}

/// Writes a value at a pointer of the program.
///
/// # Errors
/// [`Failure::BadAddress`].
pub(crate) fn put<T: IntoBytes>(at: usize, value: T) -> Result<()> {
    reach(at, size_of::<T>(), true)?;
    write(at, value);
    Ok(())
}

/// Structure that a call reads and, when it is done, writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InOut<T> {
    at: usize,
    kind: PhantomData<T>,
}

impl<T: FromBytes + IntoBytes> InOut<T> {
    /// Checks the structure once, before any step that cannot be undone. Writable memory is
    /// readable too.
    ///
    /// # Errors
    /// [`Failure::BadAddress`].
    pub(crate) fn new(at: usize) -> Result<InOut<T>> {
        reach(at, size_of::<T>(), true)?;
        Ok(InOut { at, kind: PhantomData })
    }

    pub(crate) fn get(self) -> T {
        read(self.at)
    }

    pub(crate) fn put(self, value: T) {
        write(self.at, value);
    }
}

/// Checks that `n` values can be written at a pointer, before any step that cannot be undone.
///
/// # Errors
/// [`Failure::BadAddress`].
pub(crate) fn check_put<T>(at: usize, n: usize) -> Result<()> {
    let len = size_of::<T>().checked_mul(n).ok_or(Failure::BadAddress)?;
    if len == 0 { Ok(()) } else { reach(at, len, true) }
}

/// Makes a [`Mem`] of a buffer of the program, after a check of its first `sure` bytes.
///
/// # Errors
/// [`Failure::BadAddress`].
pub(crate) fn buffer(at: usize, len: usize, sure: usize, write: bool) -> Result<Mem> {
    reach(at, sure.min(len), write)?;
    let place = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: the program passes it for this call, and its start exists (checked above); not NULL,
    // no longer than an int.
    Ok(unsafe { Mem::new(place, len) })
}

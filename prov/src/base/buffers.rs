// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "names the buffers that C passes")]
//! Buffers of data transfer calls: short lists on the stack, converted from C's descriptions.
//!
//! A buffer at address 0 is described like any other, since MPI programs pass absolute addresses
//! that way. Bytes to be sent cannot lie there, which the data path refuses.

use libfabric_sys as fi;
use scif_ring::{Mem, total_len};

use crate::base::attr::IOV_LIMIT;
use crate::base::entry;
use crate::base::errno::Errno;

/// Short list on the stack.
#[derive(Debug)]
pub(crate) struct ShortList<T, const N: usize> {
    items: [T; N],
    len: usize,
}

/// Buffers of one call.
pub(crate) type Buffers = ShortList<Mem, IOV_LIMIT>;

impl<T, const N: usize> ShortList<T, N> {
    #[inline]
    pub(crate) fn as_slice(&self) -> &[T] {
        self.items.get(..self.len).unwrap_or_default()
    }

    /// Fills a list. Returns `FI_EINVAL` when it is too long.
    pub(crate) fn of<S>(
        sources: &[S],
        empty: T,
        mut convert: impl FnMut(&S) -> Result<T, Errno>,
    ) -> Result<ShortList<T, N>, Errno>
    where
        T: Copy,
    {
        if sources.len() > N {
            return Err(fi::FI_EINVAL);
        }
        let mut items = [empty; N];
        for (item, source) in items.iter_mut().zip(sources) {
            *item = convert(source)?;
        }
        Ok(ShortList { items, len: sources.len() })
    }
}

impl Buffers {
    pub(crate) const fn none() -> Buffers {
        ShortList { items: [Mem::empty(); IOV_LIMIT], len: 0 }
    }

    /// Converts an `iovec` list.
    ///
    /// # Errors
    /// `FI_EINVAL` for a list that is too long or missing, or lengths above `isize::MAX`.
    ///
    /// # Safety
    /// `iov` is null or points to `count` elements whose buffers satisfy [`buffer`].
    // Not inlined, for the size of the library: 40 entry points call it.
    #[inline(never)]
    pub(crate) unsafe fn from_iovec(iov: *const fi::iovec, count: usize) -> Result<Buffers, Errno> {
        // SAFETY: null or `count` elements, by the caller's contract.
        let iov = unsafe { entry::slice(iov, count) }?;
        let list = ShortList::of(iov, Mem::empty(), |v| {
            // SAFETY: the buffer of an element, by the caller's contract.
            unsafe { buffer(v.iov_base.cast_const(), v.iov_len) }
        })?;
        list.fits()
    }

    /// Converts a list whose lengths count elements of `size` bytes.
    ///
    /// # Safety
    /// `ioc` is null or points to `count` elements whose buffers satisfy [`buffer`].
    #[inline(never)]
    pub(crate) unsafe fn from_ioc(
        ioc: *const fi::fi_ioc,
        count: usize,
        size: usize,
    ) -> Result<Buffers, Errno> {
        // SAFETY: null or `count` elements, by the caller's contract.
        let ioc = unsafe { entry::slice(ioc, count) }?;
        let list = ShortList::of(ioc, Mem::empty(), |v| {
            let len = v.count.checked_mul(size).ok_or(fi::FI_EINVAL)?;
            // SAFETY: the buffer of an element, by the caller's contract.
            unsafe { buffer(v.addr.cast_const(), len) }
        })?;
        list.fits()
    }

    fn fits(self) -> Result<Buffers, Errno> {
        check_total(self.as_slice())?;
        Ok(self)
    }
}

/// Refuses lists with a total above `isize::MAX`.
fn check_total(list: &[Mem]) -> Result<(), Errno> {
    isize::try_from(total_len(list)).map_err(|_| fi::FI_EINVAL)?;
    Ok(())
}

/// Converts an `iovec` list of any length.
///
/// # Errors
/// `FI_EINVAL` for a missing list, or lengths above `isize::MAX`.
///
/// # Safety
/// The contract of [`Buffers::from_iovec`] holds.
pub(crate) unsafe fn buffers(iov: *const fi::iovec, count: usize) -> Result<Vec<Mem>, Errno> {
    // SAFETY: null or `count` elements, by the caller's contract.
    let iov = unsafe { entry::slice(iov, count) }?;
    let list: Result<Vec<Mem>, Errno> = iov
        .iter()
        // SAFETY: the buffer of an element, by the caller's contract.
        .map(|v| unsafe { buffer(v.iov_base.cast_const(), v.iov_len) })
        .collect();
    let list = list?;
    check_total(&list)?;
    Ok(list)
}

/// Describes a buffer of a data transfer call. A null pointer is no error.
///
/// # Errors
/// `FI_EINVAL` for a length above `isize::MAX`.
///
/// # Safety
/// The application keeps the buffer valid until the operation completes, as fi_msg(3) and similar
/// pages require (for inject calls until the call returns). It is writable if the operation writes
/// it.
#[inline]
pub(crate) unsafe fn buffer(buf: *const std::ffi::c_void, len: usize) -> Result<Mem, Errno> {
    if isize::try_from(len).is_err() {
        return Err(fi::FI_EINVAL);
    }
    // SAFETY: valid until the operation completed, by the caller's contract; the data path drops it
    // then.
    Ok(unsafe { Mem::new(buf.cast_mut().cast(), len) })
}

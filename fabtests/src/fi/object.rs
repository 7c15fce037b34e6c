// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Common part of all libfabric objects: the base operations, and a single close.
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use libfabric_sys as sys;

use super::errno::{self, Errno, Result};

/// Open object of type `T`, a C structure that begins with `struct fid`.
#[derive(Debug)]
pub(super) struct Object<T> {
    at: NonNull<T>,
    closed: OnceLock<()>,
}

// SAFETY: an object of libfabric is bound to no thread. The threading level limits concurrent
// calls, and the caller must respect it, as the module documentation states.
unsafe impl<T> Send for Object<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Object<T> {}

impl<T> Object<T> {
    /// # Safety
    /// `at` is null or an open object of libfabric that begins with a `struct fid`, and only the
    /// result closes it.
    pub(super) unsafe fn adopt(at: *mut T) -> Result<Object<T>> {
        let at = NonNull::new(at).ok_or(Errno::EOTHER)?;
        Ok(Object { at, closed: OnceLock::new() })
    }

    /// Returns the object, if it is open.
    #[inline]
    pub(super) fn raw(&self) -> Result<*mut T> {
        if self.closed.get().is_some() {
            Err(Errno::EBADF)
        } else {
            errno::mark();
            Ok(self.at.as_ptr())
        }
    }

    pub(super) fn fid(&self) -> Result<*mut sys::fid> {
        Ok(self.raw()?.cast())
    }
}

/// Base operations of an object of any class.
pub trait Fid {
    #[doc(hidden)]
    fn raw_fid(&self) -> Result<*mut sys::fid>;

    #[doc(hidden)]
    fn mark_closed(&self);

    #[doc(hidden)]
    fn base_ops(&self) -> Result<&sys::fi_ops> {
        let fid = self.raw_fid()?;
        // SAFETY: an open object begins with a `struct fid`.
        let ops = unsafe { (*fid).ops };
        // SAFETY: every object has base operations, valid while it is open.
        Ok(unsafe { &*ops })
    }

    /// `fi_close`, for cases that check its result. After a success every later call on the object
    /// returns `EBADF`.
    fn close(&self) -> Result {
        let fid = self.raw_fid()?;
        let close = self.base_ops()?.close;
        // SAFETY: the object is open, and marked as closed before any other use.
        Errno::check_int(unsafe { close(fid) })?;
        self.mark_closed();
        Ok(())
    }

    /// `fi_*_bind`.
    fn bind(&self, other: &dyn Fid, flags: u64) -> Result {
        let (fid, other) = (self.raw_fid()?, other.raw_fid()?);
        let bind = self.base_ops()?.bind;
        // SAFETY: both objects are open.
        Errno::check_int(unsafe { bind(fid, other, flags) }).map(drop)
    }

    /// `fi_control` with a 64-bit argument that is read and written.
    fn control_u64(&self, command: i32, value: &mut u64) -> Result {
        let fid = self.raw_fid()?;
        let control = self.base_ops()?.control;
        // SAFETY: the argument of these commands has at most 64 bits and outlives the call.
        let code = unsafe { control(fid, command, ptr::from_mut(value).cast()) };
        Errno::check_int(code).map(drop)
    }

    /// `fi_control` without an argument.
    fn control_null(&self, command: i32) -> Result {
        let fid = self.raw_fid()?;
        let control = self.base_ops()?.control;
        // SAFETY: the provider accepts or refuses a null argument.
        Errno::check_int(unsafe { control(fid, command, ptr::null_mut()) }).map(drop)
    }

    /// Descriptor to poll (`FI_GETWAIT` of an object with `FI_WAIT_FD`).
    ///
    /// # Errors
    /// Errors of the call; `EBADF` for a negative descriptor.
    fn wait_fd(&self) -> Result<BorrowedFd<'_>> {
        let mut fd = u64::MAX;
        self.control_u64(sys::FI_GETWAIT, &mut fd)?;
        // The provider has written an int over the lower half.
        #[expect(clippy::cast_possible_truncation, reason = "the upper half was not written")]
        let fd = fd as i32;
        if fd < 0 {
            return Err(Errno::EBADF);
        }
        // SAFETY: the provider keeps the descriptor open as long as the borrowed object.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Kind of wait object (`FI_GETWAITOBJ`).
    fn wait_obj(&self) -> Result<u32> {
        let fid = self.raw_fid()?;
        let control = self.base_ops()?.control;
        let mut kind: sys::fi_wait_obj = u32::MAX;
        // SAFETY: the object is open; the argument of this command is an enum, which outlives the
        // call.
        let code = unsafe { control(fid, sys::FI_GETWAITOBJ, (&raw mut kind).cast()) };
        Errno::check_int(code)?;
        Ok(kind)
    }

    /// Descriptors to poll and their events (`FI_GETWAIT` of an object with `FI_WAIT_POLLFD`), in a
    /// list of `room` elements.
    ///
    /// # Errors
    /// Errors of the call, with the number of descriptors that the provider reports. `EBADF` for a
    /// negative descriptor, and for a list without a change index.
    fn wait_list(
        &self,
        room: usize,
    ) -> std::result::Result<Vec<(BorrowedFd<'_>, i16)>, (Errno, usize)> {
        let fid = self.raw_fid().map_err(|e| (e, 0))?;
        let control = self.base_ops().map_err(|e| (e, 0))?.control;
        let free = libc::pollfd { fd: -1, events: 0, revents: 0 };
        let mut list = vec![free; room];
        const UNTOLD: u64 = 99;
        let mut arg =
            sys::fi_wait_pollfd { change_index: UNTOLD, nfds: room, fd: list.as_mut_ptr() };
        // SAFETY: the object is open; the argument and its list of the stated length outlive the
        // call.
        let code = unsafe { control(fid, sys::FI_GETWAIT, (&raw mut arg).cast()) };
        Errno::check_int(code).map_err(|e| (e, arg.nfds))?;
        let told = list.get(..arg.nfds).ok_or((Errno::EOTHER, arg.nfds))?;
        if arg.change_index == UNTOLD || told.iter().any(|entry| entry.fd < 0) {
            return Err((Errno::EBADF, arg.nfds));
        }
        let borrow = |entry: &libc::pollfd| {
            // SAFETY: the provider keeps the descriptor open as long as the borrowed object.
            let fd = unsafe { BorrowedFd::borrow_raw(entry.fd) };
            (fd, entry.events)
        };
        Ok(told.iter().map(borrow).collect())
    }

    /// `fi_ops_open` of an unknown name.
    fn ops_open(&self, name: &std::ffi::CStr) -> Result {
        let fid = self.raw_fid()?;
        let open = self.base_ops()?.ops_open;
        let mut ops: *mut c_void = ptr::null_mut();
        // SAFETY: the name is a C string, and `ops` holds one pointer.
        let code: c_int = unsafe { open(fid, name.as_ptr(), 0, &raw mut ops, ptr::null_mut()) };
        Errno::check_int(code).map(drop)
    }

    /// Class of the object (`FI_CLASS_*`).
    fn class(&self) -> Result<usize> {
        let fid = self.raw_fid()?;
        // SAFETY: an open object begins with a `struct fid`.
        Ok(unsafe { (*fid).fclass })
    }
}

impl<T> Fid for Object<T> {
    fn raw_fid(&self) -> Result<*mut sys::fid> {
        self.fid()
    }

    fn mark_closed(&self) {
        let _ = self.closed.set(());
    }
}

impl<T> Drop for Object<T> {
    fn drop(&mut self) {
        if let (Ok(fid), Ok(ops)) = (self.fid(), self.base_ops()) {
            // SAFETY: the object is open and this is the last use of it.
            unsafe { (ops.close)(fid) };
        }
    }
}

/// Implements [`Fid`] for a structure that holds its [`Object`] as `object`.
macro_rules! is_fid {
    ($type:ty) => {
        impl $crate::fi::Fid for $type {
            fn raw_fid(&self) -> $crate::fi::Result<*mut libfabric_sys::fid> {
                self.object.raw_fid()
            }

            fn mark_closed(&self) {
                self.object.mark_closed();
            }
        }
    };
}
pub(super) use is_fid;

/// Defines a method that returns the raw object and one of its tables of operations; `ENOSYS`
/// without this table.
macro_rules! table {
    ($vis:vis fn $name:ident: $raw:ident.$field:ident -> $ops:ident) => {
        #[inline]
        $vis fn $name(
            &self,
        ) -> $crate::fi::Result<(*mut libfabric_sys::$raw, &libfabric_sys::$ops)> {
            let raw = self.object.raw()?;
            // SAFETY: the object is open.
            let ops = unsafe { (*raw).$field };
            if ops.is_null() {
                return Err($crate::fi::Errno::ENOSYS);
            }
            // SAFETY: the table of an open object lives as long as the object.
            Ok((raw, unsafe { &*ops }))
        }
    };
}
pub(super) use table;

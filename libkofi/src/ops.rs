// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Operation tables of objects from other libraries. An old one is shorter than the current layout,
//! and unsupported functions are null. Therefore they are not of type `fi_ops`, whose functions all
//! exist.
//!
//! Mirrors `FI_CHECK_OP` of `rdma/fabric.h`.
#![expect(unsafe_code, reason = "reads tables of whatever size they say")]

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::ptr;

use libfabric_sys::{fi_ops, fid};

pub(crate) type CloseFn = unsafe extern "C" fn(fid: *mut fid) -> c_int;
pub(crate) type BindFn = unsafe extern "C" fn(fid: *mut fid, other: *mut fid, flags: u64) -> c_int;
pub(crate) type ControlFn =
    unsafe extern "C" fn(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int;
pub(crate) type ByNameFn = unsafe extern "C" fn(
    fid: *mut fid,
    name: *const c_char,
    flags: u64,
    ops: *mut c_void,
    context: *mut c_void,
) -> c_int;
pub(crate) type ToStrFn =
    unsafe extern "C" fn(fid: *const fid, buf: *mut c_char, len: usize) -> c_int;

/// `struct fi_ops`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpsTable {
    pub(crate) size: usize,
    pub(crate) close: Option<CloseFn>,
    pub(crate) bind: Option<BindFn>,
    pub(crate) control: Option<ControlFn>,
    pub(crate) ops_open: Option<ByNameFn>,
    pub(crate) tostr: Option<ToStrFn>,
    pub(crate) ops_set: Option<ByNameFn>,
}

impl OpsTable {
    pub(crate) const EMPTY: Self = Self {
        size: size_of::<Self>(),
        close: None,
        bind: None,
        control: None,
        ops_open: None,
        tostr: None,
        ops_set: None,
    };

    /// Returns a copy of an object's table, up to the size in the table; `None` without one.
    /// `close` is included for any size, as `fi_close` does not check the size.
    ///
    /// # Safety
    /// `ops` is null or a table that stays unchanged during the call.
    pub(crate) unsafe fn of(ops: *const fi_ops) -> Option<Self> {
        if ops.is_null() {
            return None;
        }
        // SAFETY: a table begins with its size.
        let size = unsafe { ops.cast::<usize>().read() };
        let there = size.clamp(offset_of!(Self, bind), size_of::<Self>());
        // A partial pointer at the end is ignored.
        let there = there - there % size_of::<usize>();
        let mut copy = Self::EMPTY;
        // SAFETY: the table has this length, and the copy has space for it; a null function is a
        // `None`.
        unsafe { ptr::copy_nonoverlapping(ops.cast::<u8>(), (&raw mut copy).cast::<u8>(), there) };
        copy.size = size.min(size_of::<Self>());
        Some(copy)
    }

    /// Returns a copy of the table of an object.
    ///
    /// # Safety
    /// `object` is null or an object.
    pub(crate) unsafe fn of_object(object: *const fid) -> Option<Self> {
        // SAFETY: null or an object, by the caller's contract.
        let head = unsafe { object.as_ref() }?;
        // SAFETY: the table of an object.
        unsafe { Self::of(head.ops) }
    }

    /// Returns the values by which tables are compared.
    pub(crate) fn addresses(&self) -> [usize; 7] {
        [
            self.size,
            self.close.map_or(0, |f| (f as *const ()).addr()),
            self.bind.map_or(0, |f| (f as *const ()).addr()),
            self.control.map_or(0, |f| (f as *const ()).addr()),
            self.ops_open.map_or(0, |f| (f as *const ()).addr()),
            self.tostr.map_or(0, |f| (f as *const ()).addr()),
            self.ops_set.map_or(0, |f| (f as *const ()).addr()),
        ]
    }
}

const _: () = {
    assert!(size_of::<OpsTable>() == size_of::<fi_ops>());
    assert!(offset_of!(OpsTable, close) == offset_of!(fi_ops, close));
    assert!(offset_of!(OpsTable, bind) == offset_of!(fi_ops, bind));
    assert!(offset_of!(OpsTable, control) == offset_of!(fi_ops, control));
    assert!(offset_of!(OpsTable, ops_open) == offset_of!(fi_ops, ops_open));
    assert!(offset_of!(OpsTable, tostr) == offset_of!(fi_ops, tostr));
    assert!(offset_of!(OpsTable, ops_set) == offset_of!(fi_ops, ops_set));
};

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn close(_: *mut fid) -> c_int {
        0
    }

    unsafe extern "C" fn bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
        0
    }

    #[test]
    fn table_length_comes_from_its_size_field() {
        // SAFETY: null is allowed.
        assert!(unsafe { OpsTable::of(ptr::null()) }.is_none());
        for (size, has_bind) in
            [(0, false), (16, false), (20, false), (24, true), (56, true), (400, true)]
        {
            let table = OpsTable { size, close: Some(close), bind: Some(bind), ..OpsTable::EMPTY };
            // SAFETY: a whole table.
            let read = unsafe { OpsTable::of((&raw const table).cast()) }.unwrap();
            assert_eq!((read.close.is_some(), read.bind.is_some()), (true, has_bind), "{size}");
            assert!(read.control.is_none() && read.tostr.is_none(), "{size}");
            assert!(read.size <= size_of::<OpsTable>());
        }
    }
}

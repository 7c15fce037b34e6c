// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Event queues (fi_eq(3)).
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::ffi::CStr;
use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;

use super::errno::{Errno, Result};
use super::fabric::Fabric;
use super::object::{Object, is_fid, table};

/// An open event queue.
#[derive(Debug)]
pub struct Eq {
    pub(super) object: Object<sys::fid_eq>,
    _fabric: Arc<Fabric>,
}

is_fid!(Eq);

/// Attributes of a queue to open.
#[derive(Debug, Clone, Copy, Default)]
pub struct EqAttr {
    pub size: usize,
    pub flags: u64,
    pub wait_obj: u32,
}

/// One event: its number and its `fi_eq_entry`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EqEvent {
    pub event: u32,
    /// Address of the object that the event is about.
    pub fid: usize,
    pub context: usize,
    pub data: u64,
    /// Number of bytes written.
    pub len: usize,
}

/// One error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EqErr {
    pub fid: usize,
    pub context: usize,
    pub data: u64,
    pub err: i32,
    pub prov_errno: i32,
    pub err_data: Vec<u8>,
}

const NO_ENTRY: sys::fi_eq_entry =
    sys::fi_eq_entry { fid: ptr::null_mut(), context: ptr::null_mut(), data: 0 };

impl Eq {
    /// `fi_eq_open`.
    pub fn open(fabric: &Arc<Fabric>, attr: EqAttr) -> Result<Arc<Eq>> {
        Eq::open_with(fabric, attr, ptr::null_mut())
    }

    /// `fi_eq_open` with a wait set.
    pub(super) fn open_with(
        fabric: &Arc<Fabric>,
        attr: EqAttr,
        wait_set: *mut sys::fid_wait,
    ) -> Result<Arc<Eq>> {
        let raw = fabric.object.raw()?;
        let mut attr = sys::fi_eq_attr {
            size: attr.size,
            flags: attr.flags,
            wait_obj: attr.wait_obj,
            signaling_vector: 0,
            wait_set,
        };
        let mut eq = ptr::null_mut();
        let open = fabric.ops()?.eq_open;
        // SAFETY: the fabric is open and one pointer is written to `eq`.
        Errno::check_int(unsafe { open(raw, &raw mut attr, &raw mut eq, ptr::null_mut()) })?;
        // SAFETY: the provider has just opened the object for this call.
        let object = unsafe { Object::adopt(eq) }?;
        Ok(Arc::new(Eq { object, _fabric: Arc::clone(fabric) }))
    }

    table!(pub(super) fn ops: fid_eq.ops -> fi_ops_eq);

    /// `fi_eq_read` of one `fi_eq_entry`.
    pub fn read(&self, flags: u64) -> Result<EqEvent> {
        let (eq, ops) = self.ops()?;
        let (mut event, mut entry) = (0, NO_ENTRY);
        let room = size_of::<sys::fi_eq_entry>();
        // SAFETY: the queue is open; `entry` has `room` bytes.
        let code = unsafe { (ops.read)(eq, &raw mut event, (&raw mut entry).cast(), room, flags) };
        Ok(took(event, &entry, Errno::check(code)?))
    }

    /// `fi_eq_read` with a null buffer and the length `len`. Returns the event and the return
    /// value.
    pub fn read_nothing(&self, len: usize, flags: u64) -> Result<(u32, usize)> {
        let (eq, ops) = self.ops()?;
        let mut event = 0;
        // SAFETY: the queue is open; without a buffer only the event is written.
        let code = unsafe { (ops.read)(eq, &raw mut event, ptr::null_mut(), len, flags) };
        Ok((event, Errno::check(code)?))
    }

    /// `fi_eq_sread` of one `fi_eq_entry`.
    pub fn sread(&self, timeout_ms: i32, flags: u64) -> Result<EqEvent> {
        let (eq, ops) = self.ops()?;
        let (mut event, mut entry) = (0, NO_ENTRY);
        let room = size_of::<sys::fi_eq_entry>();
        // SAFETY: the queue is open; `entry` has `room` bytes.
        let code = unsafe {
            (ops.sread)(eq, &raw mut event, (&raw mut entry).cast(), room, timeout_ms, flags)
        };
        Ok(took(event, &entry, Errno::check(code)?))
    }

    /// `fi_eq_write` of one `fi_eq_entry`.
    pub fn write(&self, event: u32, context: usize, data: u64) -> Result<usize> {
        let (eq, ops) = self.ops()?;
        let entry = sys::fi_eq_entry {
            fid: eq.cast(),
            context: ptr::without_provenance_mut(context),
            data,
        };
        // SAFETY: the queue is open and copies the entry.
        let code = unsafe {
            (ops.write)(eq, event, (&raw const entry).cast(), size_of::<sys::fi_eq_entry>(), 0)
        };
        Errno::check(code)
    }

    /// `fi_eq_readerr`.
    pub fn readerr(&self) -> Result<EqErr> {
        let (eq, ops) = self.ops()?;
        let mut room = [0_u8; 256];
        let mut entry = sys::fi_eq_err_entry {
            fid: ptr::null_mut(),
            context: ptr::null_mut(),
            data: 0,
            err: 0,
            prov_errno: 0,
            err_data: room.as_mut_ptr().cast(),
            err_data_size: room.len(),
        };
        // SAFETY: the queue is open; the entry and its data buffer are writable.
        Errno::check(unsafe { (ops.readerr)(eq, &raw mut entry, 0) })?;
        let len = entry.err_data_size.min(room.len());
        Ok(EqErr {
            fid: entry.fid.addr(),
            context: entry.context.addr(),
            data: entry.data,
            err: entry.err,
            prov_errno: entry.prov_errno,
            err_data: room.get(..len).unwrap_or_default().to_vec(),
        })
    }

    /// `fi_eq_strerror`.
    pub fn strerror(&self, prov_errno: i32) -> Result<String> {
        let (eq, ops) = self.ops()?;
        // SAFETY: the queue is open; without a buffer the provider returns its own text.
        let text = unsafe { (ops.strerror)(eq, prov_errno, ptr::null(), ptr::null_mut(), 0) };
        if text.is_null() {
            return Ok(String::new());
        }
        // SAFETY: the text is a C string, valid until the next call.
        Ok(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    /// Address of the object, as reported in events and contexts.
    pub fn address(&self) -> Result<usize> {
        Ok(self.object.raw()?.addr())
    }
}

fn took(event: u32, entry: &sys::fi_eq_entry, len: usize) -> EqEvent {
    EqEvent { event, fid: entry.fid.addr(), context: entry.context.addr(), data: entry.data, len }
}

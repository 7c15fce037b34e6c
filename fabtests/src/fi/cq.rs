// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Completion queues (fi_cq(3)).
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;

use super::errno::{Errno, Result};
use super::fabric::Domain;
use super::object::{Object, is_fid, table};

/// Maximum number of entries that one read returns.
const BATCH: usize = 16;

/// An open completion queue.
#[derive(Debug)]
pub struct Cq {
    pub(super) object: Object<sys::fid_cq>,
    format: u32,
    _domain: Arc<Domain>,
}

is_fid!(Cq);

/// Attributes of a queue to open.
#[derive(Debug, Clone, Copy, Default)]
pub struct CqAttr {
    pub size: usize,
    pub flags: u64,
    pub format: u32,
    pub wait_obj: u32,
    pub wait_cond: u32,
}

/// One completion. Fields that the format of the queue does not carry are zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Entry {
    pub context: usize,
    pub flags: u64,
    pub len: usize,
    pub buf: usize,
    pub data: u64,
    pub tag: u64,
    /// Address of the sender, after `readfrom`.
    pub src: Option<u64>,
}

/// One failed operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CqErr {
    pub context: usize,
    pub flags: u64,
    pub len: usize,
    pub buf: usize,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: Errno,
    pub prov_errno: i32,
    pub err_data: Vec<u8>,
    pub src: u64,
}

type Room = [MaybeUninit<sys::fi_cq_tagged_entry>; BATCH];

const ROOM: Room = [MaybeUninit::zeroed(); BATCH];

impl Cq {
    /// `fi_cq_open`.
    pub fn open(domain: &Arc<Domain>, attr: CqAttr) -> Result<Arc<Cq>> {
        Cq::open_with(domain, attr, ptr::null_mut())
    }

    /// `fi_cq_open` with a wait set.
    pub(super) fn open_with(
        domain: &Arc<Domain>,
        attr: CqAttr,
        wait_set: *mut sys::fid_wait,
    ) -> Result<Arc<Cq>> {
        let (raw, ops) = domain.ops()?;
        let format = attr.format;
        let mut attr = sys::fi_cq_attr {
            size: attr.size,
            flags: attr.flags,
            format: attr.format,
            wait_obj: attr.wait_obj,
            signaling_vector: 0,
            wait_cond: attr.wait_cond,
            wait_set,
        };
        let mut cq = ptr::null_mut();
        // SAFETY: the domain is open and one pointer is written to `cq`.
        Errno::check_int(unsafe {
            (ops.cq_open)(raw, &raw mut attr, &raw mut cq, ptr::null_mut())
        })?;
        // SAFETY: the provider has just opened the object for this call.
        let object = unsafe { Object::adopt(cq) }?;
        Ok(Arc::new(Cq { object, format, _domain: Arc::clone(domain) }))
    }

    /// `fi_cq_open` with `FI_PEER`.
    ///
    /// # Safety
    /// `context` is a `struct fi_peer_cq_context` whose queue outlives this one.
    pub(super) unsafe fn open_peer(
        domain: &Arc<Domain>,
        context: *mut std::ffi::c_void,
    ) -> Result<Arc<Cq>> {
        let (raw, ops) = domain.ops()?;
        let mut attr = sys::fi_cq_attr {
            size: 0,
            flags: sys::FI_PEER,
            format: sys::FI_CQ_FORMAT_UNSPEC,
            wait_obj: sys::FI_WAIT_NONE,
            signaling_vector: 0,
            wait_cond: sys::FI_CQ_COND_NONE,
            wait_set: ptr::null_mut(),
        };
        let mut cq = ptr::null_mut();
        // SAFETY: the domain is open, the context is the caller's, and one pointer is written to
        // `cq`.
        Errno::check_int(unsafe { (ops.cq_open)(raw, &raw mut attr, &raw mut cq, context) })?;
        // SAFETY: the provider has just opened the object for this call.
        let object = unsafe { Object::adopt(cq) }?;
        Ok(Arc::new(Cq { object, format: sys::FI_CQ_FORMAT_CONTEXT, _domain: Arc::clone(domain) }))
    }

    table!(fn ops: fid_cq.ops -> fi_ops_cq);

    /// `fi_cq_read` of up to `max` entries.
    pub fn read(&self, max: usize) -> Result<Vec<Entry>> {
        let (cq, ops) = self.ops()?;
        let mut room = ROOM;
        // SAFETY: the queue is open; `room` holds `BATCH` entries of the longest format.
        let code = unsafe { (ops.read)(cq, room.as_mut_ptr().cast(), max.min(BATCH)) };
        Ok(self.entries(&room, Errno::check(code)?))
    }

    /// `fi_cq_read` that only counts the entries, for loops that must not spend time on them.
    #[inline]
    pub fn read_count(&self) -> Result<usize> {
        let (cq, ops) = self.ops()?;
        let mut room = [const { MaybeUninit::<sys::fi_cq_tagged_entry>::uninit() }; BATCH];
        // SAFETY: the queue is open; `room` holds `BATCH` entries of the longest format.
        Errno::check(unsafe { (ops.read)(cq, room.as_mut_ptr().cast(), BATCH) })
    }

    /// `fi_cq_read(cq, NULL, 0)`: progress alone.
    pub fn progress(&self) -> Result<usize> {
        let (cq, ops) = self.ops()?;
        // SAFETY: the queue is open; no entry is requested.
        Errno::check(unsafe { (ops.read)(cq, ptr::null_mut(), 0) })
    }

    /// `fi_cq_readfrom` of up to `max` entries.
    pub fn readfrom(&self, max: usize) -> Result<Vec<Entry>> {
        let (cq, ops) = self.ops()?;
        let (mut room, mut sources) = (ROOM, [0; BATCH]);
        // SAFETY: the queue is open; both arrays hold `BATCH` elements.
        let code = unsafe {
            (ops.readfrom)(cq, room.as_mut_ptr().cast(), max.min(BATCH), sources.as_mut_ptr())
        };
        let mut entries = self.entries(&room, Errno::check(code)?);
        for (entry, source) in entries.iter_mut().zip(sources) {
            entry.src = Some(source);
        }
        Ok(entries)
    }

    /// `fi_cq_sread` of up to `max` entries; `cond` is the threshold of `FI_CQ_COND_THRESHOLD`.
    pub fn sread(&self, max: usize, cond: usize, timeout_ms: i32) -> Result<Vec<Entry>> {
        let (cq, ops) = self.ops()?;
        let mut room = ROOM;
        let cond: *const c_void = ptr::without_provenance(cond);
        // SAFETY: the queue is open; `room` holds `BATCH` entries; a threshold is passed as a
        // number in the pointer.
        let code =
            unsafe { (ops.sread)(cq, room.as_mut_ptr().cast(), max.min(BATCH), cond, timeout_ms) };
        Ok(self.entries(&room, Errno::check(code)?))
    }

    /// `fi_cq_sreadfrom` of up to `max` entries.
    pub fn sreadfrom(&self, max: usize, timeout_ms: i32) -> Result<Vec<Entry>> {
        let (cq, ops) = self.ops()?;
        let (mut room, mut sources) = (ROOM, [0; BATCH]);
        // SAFETY: the queue is open; both arrays hold `BATCH` elements.
        let code = unsafe {
            (ops.sreadfrom)(
                cq,
                room.as_mut_ptr().cast(),
                max.min(BATCH),
                sources.as_mut_ptr(),
                ptr::null(),
                timeout_ms,
            )
        };
        let mut entries = self.entries(&room, Errno::check(code)?);
        for (entry, source) in entries.iter_mut().zip(sources) {
            entry.src = Some(source);
        }
        Ok(entries)
    }

    /// `fi_cq_readerr` with a buffer of `room` bytes for error data. With 0 the provider returns
    /// its own buffer.
    pub fn readerr(&self, room: usize) -> Result<CqErr> {
        let (cq, ops) = self.ops()?;
        let mut data = vec![0_u8; room];
        let mut entry = sys::fi_cq_err_entry {
            op_context: ptr::null_mut(),
            flags: 0,
            len: 0,
            buf: ptr::null_mut(),
            data: 0,
            tag: 0,
            olen: 0,
            err: 0,
            prov_errno: 0,
            err_data: if room == 0 { ptr::null_mut() } else { data.as_mut_ptr().cast() },
            err_data_size: room,
            src_addr: sys::FI_ADDR_NOTAVAIL,
        };
        // SAFETY: the queue is open; the entry and its data buffer are writable.
        Errno::check(unsafe { (ops.readerr)(cq, &raw mut entry, 0) })?;
        let err_data = if entry.err_data.is_null() {
            Vec::new()
        } else if room == 0 {
            // SAFETY: without a buffer of the caller the provider's data is valid until the next
            // read (fi_cq(3)).
            unsafe { std::slice::from_raw_parts(entry.err_data.cast::<u8>(), entry.err_data_size) }
                .to_vec()
        } else {
            data.truncate(entry.err_data_size);
            data
        };
        Ok(CqErr {
            context: entry.op_context.addr(),
            flags: entry.flags,
            len: entry.len,
            buf: entry.buf.addr(),
            data: entry.data,
            tag: entry.tag,
            olen: entry.olen,
            err: Errno(entry.err),
            prov_errno: entry.prov_errno,
            err_data,
            src: entry.src_addr,
        })
    }

    /// `fi_cq_signal`.
    pub fn signal(&self) -> Result {
        let (cq, ops) = self.ops()?;
        // SAFETY: the queue is open.
        Errno::check_int(unsafe { (ops.signal)(cq) }).map(drop)
    }

    /// `fi_cq_strerror`.
    pub fn strerror(&self, prov_errno: i32) -> Result<String> {
        let (cq, ops) = self.ops()?;
        // SAFETY: the queue is open; without a buffer the provider returns its own text.
        let text = unsafe { (ops.strerror)(cq, prov_errno, ptr::null(), ptr::null_mut(), 0) };
        if text.is_null() {
            return Ok(String::new());
        }
        // SAFETY: the text is a C string, valid until the next call.
        Ok(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    /// Decodes entries in the format of the queue.
    fn entries(&self, room: &Room, count: usize) -> Vec<Entry> {
        let base: *const u8 = room.as_ptr().cast(); // aligned for words, as is every size and field
        let size = match self.format {
            sys::FI_CQ_FORMAT_MSG => size_of::<sys::fi_cq_msg_entry>(),
            sys::FI_CQ_FORMAT_DATA => size_of::<sys::fi_cq_data_entry>(),
            sys::FI_CQ_FORMAT_TAGGED => size_of::<sys::fi_cq_tagged_entry>(),
            _ => size_of::<sys::fi_cq_entry>(),
        };
        let word = |index: usize, field: usize| {
            if (field + 1) * 8 > size {
                return 0;
            }
            let at = base.wrapping_add(index * size + field * 8).cast::<u64>();
            // SAFETY: `index < BATCH` entries of `size` bytes lie in `room`, which was initialised
            // to zero.
            unsafe { at.read() }
        };
        let number = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        (0..count.min(BATCH))
            .map(|index| Entry {
                context: number(word(index, 0)),
                flags: word(index, 1),
                len: number(word(index, 2)),
                buf: number(word(index, 3)),
                data: word(index, 4),
                tag: word(index, 5),
                src: None,
            })
            .collect()
    }
}

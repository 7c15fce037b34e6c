// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "thunks: events are copied to and from the caller's buffers")]
//! Event queues: ordered events of objects, data transfers excluded. The C object around an
//! [`EqShared`].
//!
//! The objects that report events are elsewhere.
//!
//! Mirrors `struct fi_ops_eq` of `rdma/fi_eq.h`; fi_eq(3).

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::ptr;
use std::sync::Arc;

use libfabric_sys as fi;

use crate::base::entry;
use crate::base::errno::{self, Errno};
use crate::base::log::Subsys;
use crate::objects::handle::Fabric;
use crate::objects::wait_set::{SetEntry, SetShared, wait_object};
use crate::state::eq_queue::{EqShared, Event};
use crate::state::waiters::{WaitObj, poll_list};

/// Object behind `struct fid_eq`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Eq {
    fid: fi::fid_eq,
    shared: Arc<EqShared>,
    /// Wait set that watches the queue.
    set: Option<Arc<SetShared>>,
}

// SAFETY: repr(C) with a fid_eq first; FI_CLASS_EQ is in Eq objects only. An Arc of a Sync type
// follows the fid.
unsafe impl entry::Object for Eq {
    const FCLASS: usize = fi::FI_CLASS_EQ;
}

entry::created_by!(Eq, |object| object.shared.creator());

static FID_OPS: fi::fi_ops = fi::fi_ops { close, control, ..fi::FI_OPS_NOSYS };
static OPS: fi::fi_ops_eq =
    fi::fi_ops_eq { read, readerr, write, sread, strerror, ..fi::FI_OPS_EQ_NOSYS };

/// `fi_eq_open`
///
/// # Errors
/// `FI_EINVAL`: unsupported flags or wait object. Errors of the system, when no descriptor is left.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fi::fid_fabric,
    attr: *mut fi::fi_eq_attr,
    eq: *mut *mut fi::fid_eq,
    context: *mut c_void,
) -> c_int {
    entry::guard_int("fi_eq_open", || {
        // SAFETY: a live fabric, by the contract of fi_eq_open.
        let fabric = unsafe { entry::own::<Fabric, _>(fabric) }?;
        // SAFETY: null, or attributes that stay unchanged during the call.
        let attr = unsafe { attr.as_ref() }.copied().unwrap_or_default();
        // fi_peer(3): a provider that does not import event queues returns FI_EINVAL.
        if eq.is_null() || attr.flags & !(fi::FI_WRITE | fi::FI_AFFINITY) != 0 {
            return Err(fi::FI_EINVAL);
        }
        // SAFETY: a live set where one is required, by the contract of fi_eq_open.
        let object = unsafe { wait_object(attr.wait_obj, attr.wait_set) };
        let mut set = None;
        let shared = object.and_then(|(obj, of)| {
            set = of;
            EqShared::new(Arc::clone(fabric.shared()), &attr, obj)
        });
        let shared = Arc::new(entry::log_err(
            Subsys::Fabric,
            format_args!(
                "fi_eq_open with flags {:#x} and wait object {}",
                attr.flags, attr.wait_obj
            ),
            shared,
        )?);
        if let (Some(set), Some(fd)) = (&set, shared.fd()) {
            set.add(SetEntry::Eq(Arc::downgrade(&shared)), fd)?;
        }
        let head = fi::fid { fclass: fi::FI_CLASS_EQ, context, ops: &raw const FID_OPS };
        let new = Box::new(Eq { fid: fi::fid_eq { fid: head, ops: &raw const OPS }, shared, set });
        // SAFETY: not null; the caller passes space for the result.
        unsafe { entry::put(eq, entry::give(new)) }
    })
}

/// Closes a queue. A thread may be waiting on its wait set meanwhile, which binds no object to the
/// queue (fi_eq(3), "fi_close").
///
/// # Errors
/// `FI_EBUSY`: an object still reports through this queue.
unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    entry::guard_int("fi_close of an event queue", || {
        // SAFETY: an open queue of this provider, not closed concurrently, by the contract of
        // fi_close.
        let eq = unsafe { entry::own::<Eq, _>(fid) }?;
        let unbound = || Arc::strong_count(&eq.shared) == 1;
        let over = match (&eq.set, eq.shared.fd()) {
            (Some(set), Some(fd)) => {
                set.remove_if(&SetEntry::Eq(Arc::downgrade(&eq.shared)), fd, unbound)
            }
            _ => unbound(),
        };
        if !over {
            let busy = Err(fi::FI_EBUSY);
            return entry::log_err(
                Subsys::Fabric,
                format_args!("fi_close of an event queue"),
                busy,
            );
        }
        // SAFETY: made by `open` and not used after fi_close.
        drop(unsafe { entry::take::<Eq, _>(fid) }?);
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut fi::fid, command: c_int, arg: *mut c_void) -> c_int {
    entry::guard_int("fi_control of an event queue", || {
        // SAFETY: a live queue, by the contract of fi_control.
        let eq = unsafe { entry::own::<Eq, _>(fid) }?;
        match command {
            // SAFETY: space for the wait object's kind, by the contract of FI_GETWAITOBJ.
            fi::FI_GETWAITOBJ => unsafe { entry::put(arg.cast(), eq.shared.obj.to_c()) },
            fi::FI_GETWAIT if eq.shared.obj == WaitObj::PollFd => {
                // SAFETY: null or a list for FI_GETWAIT of FI_WAIT_POLLFD.
                unsafe { poll_list(eq.shared.raw_fd()?, arg.cast()) }
            }
            // SAFETY: space for a descriptor, by the contract of FI_GETWAIT.
            fi::FI_GETWAIT => unsafe { entry::put(arg.cast(), eq.shared.raw_fd()?) },
            _ => Err(fi::FI_ENOSYS),
        }
    })
}

unsafe extern "C" fn read(
    eq: *mut fi::fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    entry::guard("fi_eq_read", || {
        // SAFETY: a live queue, by the contract of fi_eq_read.
        let eq = unsafe { entry::own::<Eq, _>(eq) }?;
        takes(event, buf, len)?;
        eq.shared.progress();
        let found = eq.shared.read(len, flags & fi::FI_PEEK != 0)?;
        // SAFETY: space for the event and for len bytes.
        unsafe { deliver(&found, event, buf) }
    })
}

unsafe extern "C" fn sread(
    eq: *mut fi::fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    entry::guard("fi_eq_sread", || {
        // SAFETY: a live queue, by the contract of fi_eq_sread.
        let eq = unsafe { entry::own::<Eq, _>(eq) }?;
        takes(event, buf, len)?;
        let found = eq.shared.sread(len, timeout, flags & fi::FI_PEEK != 0)?;
        // SAFETY: space for the event and for len bytes.
        unsafe { deliver(&found, event, buf) }
    })
}

/// Refuses a call that could not take an event, before the event is taken out of the queue.
fn takes(event: *const u32, buf: *const c_void, len: usize) -> Result<(), Errno> {
    if event.is_null() || (buf.is_null() && len > 0) {
        return Err(fi::FI_EINVAL);
    }
    Ok(())
}

/// Copies an event to the caller. Returns its length.
///
/// # Safety
/// `event` is null or valid for writing. `buf` has space for the event's bytes, which were
/// truncated to it.
unsafe fn deliver(found: &Event, event: *mut u32, buf: *mut c_void) -> Result<isize, Errno> {
    // SAFETY: null or valid, by the caller's contract.
    unsafe { entry::put(event, found.kind) }?;
    if !found.bytes.is_empty() {
        // SAFETY: space for them by the caller's contract; the queue's own bytes do not overlap a
        // caller's buffer.
        unsafe {
            ptr::copy_nonoverlapping(found.bytes.as_ptr(), buf.cast::<u8>(), found.bytes.len())
        };
    }
    isize::try_from(found.bytes.len()).map_err(|_| fi::FI_EINVAL)
}

/// Reads and writes only the fields that the interface version of the application has.
unsafe extern "C" fn readerr(
    eq: *mut fi::fid_eq,
    buf: *mut fi::fi_eq_err_entry,
    flags: u64,
) -> isize {
    /// Size of the entry before version 1.5, which has no size of the error data.
    const OLD_LEN: usize = offset_of!(fi::fi_eq_err_entry, err_data_size);
    entry::guard("fi_eq_readerr", || {
        let own = eq;
        // SAFETY: a live queue, by the contract of fi_eq_readerr.
        let eq = unsafe { entry::own::<Eq, _>(eq) }?;
        if buf.is_null() {
            return Err(fi::FI_EINVAL);
        }
        let len =
            if eq.shared.sizes_err_data() { size_of::<fi::fi_eq_err_entry>() } else { OLD_LEN };
        let mut out = fi::fi_eq_err_entry::ZERO;
        // SAFETY: the caller's entry has len bytes in its interface version, and the local one has
        // no fewer.
        unsafe { ptr::copy_nonoverlapping(buf.cast::<u8>(), (&raw mut out).cast::<u8>(), len) };
        let room = if out.err_data.is_null() { 0 } else { out.err_data_size };
        let (error, state) = eq.shared.take_error(flags & fi::FI_PEEK != 0)?;
        if room == 0 {
            // Lent: the queue keeps the data until its next error is read.
            let data = &state.lent;
            out.err_data =
                if data.is_empty() { ptr::null_mut() } else { data.as_ptr().cast_mut().cast() };
            out.err_data_size = data.len();
        } else {
            out.err_data_size = room.min(state.lent.len());
            // SAFETY: the caller has space for `room` bytes at err_data; `lent` is the queue's own
            // memory.
            unsafe {
                ptr::copy_nonoverlapping(
                    state.lent.as_ptr(),
                    out.err_data.cast::<u8>(),
                    out.err_data_size,
                )
            };
        }
        drop(state);
        if error.fid == 0 {
            (out.fid, out.context) = (own.cast(), eq.fid.fid.context);
        } else {
            out.fid = ptr::with_exposed_provenance_mut(error.fid);
            out.context = ptr::with_exposed_provenance_mut(error.context);
        }
        out.data = error.data;
        out.err = error.err;
        out.prov_errno = error.prov_errno;
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping((&raw const out).cast::<u8>(), buf.cast::<u8>(), len) };
        isize::try_from(len).map_err(|_| fi::FI_EINVAL)
    })
}

unsafe extern "C" fn write(
    eq: *mut fi::fid_eq,
    event: u32,
    buf: *const c_void,
    len: usize,
    _flags: u64,
) -> isize {
    entry::guard("fi_eq_write", || {
        // SAFETY: a live queue, by the contract of fi_eq_write.
        let eq = unsafe { entry::own::<Eq, _>(eq) }?;
        // SAFETY: len bytes that stay unchanged during the call.
        let bytes = unsafe { entry::slice(buf.cast::<u8>(), len) }?;
        eq.shared.write(event, bytes)?;
        isize::try_from(len).map_err(|_| fi::FI_EINVAL)
    })
}

unsafe extern "C" fn strerror(
    _eq: *mut fi::fid_eq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: buf is null or has space for len bytes, by the contract of fi_eq_strerror.
    unsafe { errno::strerror(prov_errno, buf, len) }
}

impl Eq {
    pub(crate) fn shared(&self) -> &Arc<EqShared> {
        &self.shared
    }
}

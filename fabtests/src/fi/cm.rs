// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Connection management: passive endpoints, connect, accept, reject (fi_cm(3)).
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use libfabric_sys as sys;

use super::eq::Eq;
use super::errno::{Errno, Result};
use super::fabric::Fabric;
use super::info::Info;
use super::object::{Fid, Object, is_fid, table};

/// A passive endpoint.
pub struct Pep {
    object: Object<sys::fid_pep>,
    /// Bound objects, which stay open at least as long as the endpoint.
    bound: Mutex<Vec<Arc<Eq>>>,
    _fabric: Arc<Fabric>,
}

is_fid!(Pep);

/// Handle of a connection request, with which the accepting endpoint is opened.
pub struct Request {
    info: Info,
}

impl Request {
    /// Takes the request of the event info `info`, which must have no other user.
    ///
    /// # Errors
    /// `EINVAL` for an info without a handle.
    pub fn of(info: Info) -> Result<Request> {
        if info.has_handle() { Ok(Request { info }) } else { Err(Errno::EINVAL) }
    }

    /// Rejects the request, which ends it.
    pub fn reject(&self, pep: &Pep) -> Result {
        pep.reject(&self.info, &[])
    }
}

/// Close is not needed: the request ends when it is accepted or rejected.
impl Fid for Request {
    fn raw_fid(&self) -> Result<*mut sys::fid> {
        Ok(self.info.handle())
    }

    fn mark_closed(&self) {}
}

/// Event of connection management.
#[derive(Debug)]
pub struct CmEvent {
    pub event: u32,
    /// Address of the object that the event is about.
    pub fid: usize,
    /// Info of a connection request.
    pub info: Option<Info>,
    pub data: Vec<u8>,
}

impl Pep {
    /// `fi_passive_ep`.
    pub fn open(fabric: &Arc<Fabric>, info: &Info) -> Result<Arc<Pep>> {
        let raw = fabric.object.raw()?;
        let open = fabric.ops()?.passive_ep;
        let mut pep = ptr::null_mut();
        // SAFETY: the fabric is open, the info outlives the call, and one pointer is written to
        // `pep`.
        Errno::check_int(unsafe { open(raw, info.as_ptr(), &raw mut pep, ptr::null_mut()) })?;
        // SAFETY: the provider has just opened the object for this call.
        let object = unsafe { Object::adopt(pep) }?;
        Ok(Arc::new(Pep { object, bound: Mutex::new(Vec::new()), _fabric: Arc::clone(fabric) }))
    }

    /// `fi_pep_bind` of an event queue, which stays open with the endpoint.
    pub fn attach(&self, eq: &Arc<Eq>) -> Result {
        self.bind(eq.as_ref(), 0)?;
        self.bound.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(eq));
        Ok(())
    }

    table!(fn cm: fid_pep.cm -> fi_ops_cm);

    /// `fi_listen`.
    pub fn listen(&self) -> Result {
        let (pep, cm) = self.cm()?;
        // SAFETY: the endpoint is open.
        Errno::check_int(unsafe { (cm.listen)(pep) }).map(drop)
    }

    /// `fi_control` with `FI_BACKLOG`.
    pub fn set_backlog(&self, count: i32) -> Result {
        let fid = self.raw_fid()?;
        let control = self.base_ops()?.control;
        let mut count = count;
        // SAFETY: the endpoint is open; the argument of this command is an int, which outlives the
        // call.
        Errno::check_int(unsafe { control(fid, sys::FI_BACKLOG, (&raw mut count).cast()) })
            .map(drop)
    }

    /// `fi_getname`.
    pub fn name(&self) -> Result<Vec<u8>> {
        let (pep, cm) = self.cm()?;
        let mut out = vec![0_u8; 64];
        let mut len = out.len();
        // SAFETY: the endpoint is open and `out` has `len` bytes.
        Errno::check_int(unsafe {
            (cm.getname)(pep.cast(), out.as_mut_ptr().cast(), &raw mut len)
        })?;
        out.truncate(len);
        Ok(out)
    }

    /// `fi_setname`.
    pub fn set_name(&self, name: &[u8]) -> Result {
        let (pep, cm) = self.cm()?;
        let mut name = name.to_vec();
        // SAFETY: the endpoint is open and `name` has that many bytes.
        Errno::check_int(unsafe { (cm.setname)(pep.cast(), name.as_mut_ptr().cast(), name.len()) })
            .map(drop)
    }

    /// `fi_reject` of the request in `info`, which is invalid afterwards.
    pub fn reject(&self, info: &Info, data: &[u8]) -> Result {
        let (pep, cm) = self.cm()?;
        // SAFETY: the endpoint is open, the handle belongs to the request, and `data` has the
        // stated length.
        Errno::check_int(unsafe {
            (cm.reject)(pep, info.handle(), data.as_ptr().cast(), data.len())
        })
        .map(drop)
    }

    /// `fi_getopt` of a `size_t`.
    pub fn getopt(&self, option: i32) -> Result<usize> {
        let raw = self.object.raw()?;
        // SAFETY: the endpoint is open.
        let ops = unsafe { (*raw).ops };
        // SAFETY: the table of an open endpoint lives as long as the endpoint.
        let getopt = unsafe { (*ops).getopt };
        let (mut value, mut len) = (0_usize, size_of::<usize>());
        // SAFETY: the endpoint is open and `value` has `len` bytes.
        let code = unsafe {
            getopt(raw.cast(), sys::FI_OPT_ENDPOINT, option, (&raw mut value).cast(), &raw mut len)
        };
        Errno::check_int(code).map(|_| value)
    }

    /// Address of the object, as reported in events.
    pub fn address(&self) -> Result<usize> {
        Ok(self.object.raw()?.addr())
    }
}

impl Eq {
    /// `fi_eq_sread` of a connection management event with up to `room` bytes of data.
    pub fn sread_cm(&self, lib_of: &Info, room: usize, timeout_ms: i32) -> Result<CmEvent> {
        const ENTRY: usize = size_of::<sys::fi_eq_cm_entry>();
        let (eq, ops) = self.ops()?;
        let mut event = 0;
        // An array of words is aligned for the entry.
        let mut words = vec![0_u64; (ENTRY + room).div_ceil(8)];
        // SAFETY: the queue is open, and `words` has the stated length.
        let code = unsafe {
            (ops.sread)(eq, &raw mut event, words.as_mut_ptr().cast(), ENTRY + room, timeout_ms, 0)
        };
        let len = Errno::check(code)?;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        // SAFETY: the buffer is larger than an entry, aligned and initialised.
        let entry = unsafe { words.as_ptr().cast::<sys::fi_eq_cm_entry>().read() };
        let info = if event == sys::FI_CONNREQ {
            Info::list(lib_of.lib(), entry.info).into_iter().next()
        } else {
            None
        };
        Ok(CmEvent {
            event,
            fid: entry.fid.addr(),
            info,
            data: bytes.get(ENTRY..len).unwrap_or_default().to_vec(),
        })
    }
}

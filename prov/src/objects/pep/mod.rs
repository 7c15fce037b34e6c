// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "C calls in, with pointers")]
//! Passive endpoints: the C object that listens for connections, and the handle of a connection
//! request.
//!
//! The handling of requests is in `listen`, the connection protocol of connected endpoints in
//! `engine::cm`.
//!
//! Mirrors `struct fid_pep` of `rdma/fi_endpoint.h`; fi_cm(3), fi_endpoint(3).

pub(crate) mod listen;

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libfabric_sys as fi;
use libfabric_sys::{fid, fid_t};
use scif::Maker;

use crate::base::addr::ADDR_LEN;
use crate::base::attr;
use crate::base::entry::{self, guard_int, object, own};
use crate::base::errno::Errno;
use crate::base::log::Subsys;
use crate::objects::eq::Eq;
use crate::objects::fabric::Fabric;
use crate::objects::getinfo::owned::OwnedInfo;

use crate::state::eq_queue::UnreadRequest;

use listen::{ConnRequest, PepShared};

/// `struct fid_pep`.
#[repr(C)]
pub(crate) struct Pep {
    fid: fi::fid_pep,
    pub(crate) shared: Arc<PepShared>,
    creator: Maker,
}

// SAFETY: repr(C) with a fid_pep first; FI_CLASS_PEP is in Pep objects only. An Arc of a Sync type
// follows the fid.
unsafe impl entry::Object for Pep {
    const FCLASS: usize = fi::FI_CLASS_PEP;
}

impl entry::CreatedBy for Pep {
    fn creator(&self) -> Maker {
        self.creator
    }
}

/// Object behind `fi_info::handle` of a connection request.
#[repr(C)]
struct ConnReq {
    fid: fid,
    answer: Mutex<Answer>,
}

#[derive(Debug)]
struct Answer {
    /// Request; `None` once it is answered.
    request: Option<ConnRequest>,
    /// Whether an endpoint was opened for the request, and frees the handle.
    kept: bool,
}

// SAFETY: repr(C) with a fid first; FI_CLASS_CONNREQ is in ConnReq objects only. The fields after
// it are Sync.
unsafe impl entry::Object for ConnReq {
    const FCLASS: usize = fi::FI_CLASS_CONNREQ;
}

static FID_OPS: fi::fi_ops = fi::fi_ops { close, bind, control, ..fi::FI_OPS_NOSYS };
static REQUEST_OPS: fi::fi_ops = fi::FI_OPS_NOSYS;
static EP_OPS: fi::fi_ops_ep = fi::fi_ops_ep { getopt, setopt, ..fi::FI_OPS_EP_NOSYS };
static CM_OPS: fi::fi_ops_cm =
    fi::fi_ops_cm { setname, getname, listen, reject, ..fi::FI_OPS_CM_NOSYS };

/// `int fi_passive_ep(struct fid_fabric *, struct fi_info *, struct fid_pep **, void *context)`
///
/// # Errors
/// `-FI_EINVAL` for an info that is incomplete or not of a connected endpoint. `-FI_EADDRINUSE`
/// when the port of the source address is in use, `-FI_EADDRNOTAVAIL` for an address of another
/// host.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fi::fid_fabric,
    info: *mut fi::fi_info,
    pep: *mut *mut fi::fid_pep,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_passive_ep", || {
        // SAFETY: a live fabric, by the contract of fi_passive_ep.
        let fabric = unsafe { own::<Fabric, _>(fabric) }?;
        // SAFETY: null, or an info that stays unchanged during the call.
        let (of, copy) =
            (unsafe { info.as_ref() }.ok_or(fi::FI_EINVAL)?, unsafe { OwnedInfo::copy(info) });
        // SAFETY: null or the attributes of an info.
        let ep_attr = unsafe { of.ep_attr.as_ref() }.ok_or(fi::FI_EINVAL)?;
        let len = if of.src_addr.is_null() { 0 } else { of.src_addrlen };
        // SAFETY: an address of the given length, or none.
        let src = unsafe { entry::slice(of.src_addr.cast_const().cast::<u8>(), len) }?;
        if pep.is_null() || ep_attr.type_ != fi::FI_EP_MSG {
            return Err(fi::FI_EINVAL);
        }
        let copy = copy.ok_or(fi::FI_EINVAL)?;
        let new = Box::new(Pep {
            fid: fi::fid_pep {
                fid: fid { fclass: fi::FI_CLASS_PEP, context, ops: &raw const FID_OPS },
                ops: &raw const EP_OPS,
                cm: &raw const CM_OPS,
            },
            shared: PepShared::open(fabric.shared(), copy, src)?,
            creator: Maker::here(),
        });
        new.shared.named((&raw const *new).expose_provenance());
        // SAFETY: not null; space for the new object.
        unsafe { entry::put(pep, entry::give(new)) }
    })
}

/// `int fi_close(struct fid *pep)`
///
/// Requests that were read and not answered can still be answered.
unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard_int("fi_close of a passive endpoint", || {
        // SAFETY: C passes an open passive endpoint.
        unsafe { own::<Pep, _>(fid) }?;
        // SAFETY: returned by `open`, and not used by C any more.
        let pep = unsafe { entry::take::<Pep, _>(fid) }?;
        pep.shared.close();
        Ok(())
    })
}

/// `int fi_pep_bind(struct fid_pep *pep, struct fid *bfid, uint64_t flags)`
///
/// # Errors
/// `-FI_EINVAL` for any object but a first event queue, `-FI_EBADFLAGS` for any flag.
unsafe extern "C" fn bind(fid: *mut fid, bfid: *mut fid, flags: u64) -> c_int {
    guard_int("fi_pep_bind", || {
        // SAFETY: C passes an open passive endpoint.
        let pep = unsafe { own::<Pep, _>(fid) }?;
        // SAFETY: C passes null or an open object; other classes are refused.
        let eq = unsafe { object::<Eq, _>(bfid) }?;
        if flags != 0 {
            return Err(fi::FI_EBADFLAGS);
        }
        pep.shared.bind(eq.shared())
    })
}

/// `int fi_control(struct fid *pep, int command, void *arg)`
///
/// Accepts any backlog. The number of waiting requests is not limited by it, but by the transport.
///
/// # Errors
/// `-FI_EINVAL` for a negative or missing backlog, `-FI_ENOSYS` for other commands.
unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    guard_int("fi_control of a passive endpoint", || {
        // SAFETY: C passes an open passive endpoint.
        unsafe { own::<Pep, _>(fid) }?;
        match command {
            fi::FI_BACKLOG => {
                // SAFETY: null or an int, by the contract of this command.
                let backlog = unsafe { arg.cast::<c_int>().as_ref() }.ok_or(fi::FI_EINVAL)?;
                if *backlog < 0 {
                    return Err(fi::FI_EINVAL);
                }
                Ok(())
            }
            _ => Err(fi::FI_ENOSYS),
        }
    })
}

/// `int fi_getopt(struct fid *pep, int level, int optname, void *optval, size_t *optlen)`
///
/// # Errors
/// `-FI_ENOPROTOOPT` for all but `FI_OPT_CM_DATA_SIZE`, `-FI_ETOOSMALL` when its value does not
/// fit.
unsafe extern "C" fn getopt(
    fid: fid_t,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: *mut usize,
) -> c_int {
    guard_int("fi_getopt", || {
        // SAFETY: C passes an open passive endpoint.
        unsafe { own::<Pep, _>(fid) }?;
        let put = if level != fi::FI_OPT_ENDPOINT || optname != fi::FI_OPT_CM_DATA_SIZE {
            Err(fi::FI_ENOPROTOOPT)
        } else {
            // SAFETY: null, or the caller's buffer and its length.
            unsafe { entry::put_option(attr::CM_DATA_SIZE, optval, optlen) }
        };
        let call = format_args!("fi_getopt of option {optname} at level {level}");
        entry::log_err(Subsys::EpCtrl, call, put)
    })
}

/// `int fi_setopt(struct fid *pep, int level, int optname, const void *optval, size_t optlen)`
///
/// # Errors
/// `-FI_ENOPROTOOPT`: a passive endpoint has no option that can be set.
unsafe extern "C" fn setopt(
    fid: fid_t,
    level: c_int,
    optname: c_int,
    _optval: *const c_void,
    _optlen: usize,
) -> c_int {
    guard_int("fi_setopt", || {
        // SAFETY: C passes an open passive endpoint.
        unsafe { own::<Pep, _>(fid) }?;
        let call = format_args!("fi_setopt of option {optname} at level {level}");
        entry::log_err(Subsys::EpCtrl, call, Err::<(), _>(fi::FI_ENOPROTOOPT))
    })
}

/// `int fi_setname(fid_t pep, void *addr, size_t addrlen)`
///
/// # Errors
/// `-FI_EINVAL` for a malformed address, `-FI_EADDRNOTAVAIL` for an address of another host,
/// `-FI_EADDRINUSE` for one in use, `-FI_EOPBADSTATE` once it listens.
unsafe extern "C" fn setname(fid: fid_t, addr: *mut c_void, addrlen: usize) -> c_int {
    guard_int("fi_setname", || {
        // SAFETY: C passes an open passive endpoint.
        let pep = unsafe { own::<Pep, _>(fid) }?;
        // SAFETY: null or an address of the given length.
        let addr = unsafe { entry::slice(addr.cast_const().cast::<u8>(), addrlen) }?;
        pep.shared.set_name(addr)
    })
}

/// `int fi_getname(fid_t pep, void *addr, size_t *addrlen)`
///
/// # Errors
/// `-FI_ETOOSMALL` when the address does not fit; `*addrlen` is its length in any case.
unsafe extern "C" fn getname(fid: fid_t, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    guard_int("fi_getname", || {
        // SAFETY: C passes an open passive endpoint.
        let pep = unsafe { own::<Pep, _>(fid) }?;
        let name = pep.shared.name()?;
        // SAFETY: null, or the caller's buffer and its length.
        unsafe { entry::put_name(&name, addr, addrlen) }
    })
}

/// `int fi_listen(struct fid_pep *pep)`
///
/// # Errors
/// `-FI_ENOEQ` without an event queue.
unsafe extern "C" fn listen(pep: *mut fi::fid_pep) -> c_int {
    guard_int("fi_listen", || {
        // SAFETY: C passes an open passive endpoint.
        let pep = unsafe { own::<Pep, _>(pep) }?;
        entry::log_err(Subsys::EpCtrl, format_args!("fi_listen"), pep.shared.listen())
    })
}

/// `int fi_reject(struct fid_pep *pep, fid_t handle, const void *param, size_t paramlen)`
///
/// The call frees the handle, unless an endpoint was opened with it. Then the handle stays valid as
/// long as the endpoint, and a request that `fi_accept` has not answered can still be rejected.
///
/// # Errors
/// `-FI_EINVAL` for a handle that is not a connection request's, a request that was answered, or
/// too much data.
unsafe extern "C" fn reject(
    pep: *mut fi::fid_pep,
    handle: fid_t,
    param: *const c_void,
    paramlen: usize,
) -> c_int {
    guard_int("fi_reject", || {
        // SAFETY: C passes an open passive endpoint.
        unsafe { own::<Pep, _>(pep) }?;
        // SAFETY: null or data of the given length.
        let data = unsafe { entry::slice(param.cast::<u8>(), paramlen) };
        let data = data.and_then(|data| match data.len() {
            0..=attr::CM_DATA_SIZE => Ok(data),
            _ => Err(fi::FI_EINVAL),
        });
        let call = format_args!("fi_reject with {paramlen} bytes of data");
        let data = entry::log_err(Subsys::EpCtrl, call, data)?;
        // SAFETY: null, or the handle of a request.
        let request = unsafe { object::<ConnReq, _>(handle) };
        let call = format_args!("fi_reject of a handle that is no connection request");
        let request = entry::log_err(Subsys::EpCtrl, call, request)?;
        let (open, kept) = {
            let mut answer = request.answer();
            (answer.request.take(), answer.kept)
        };
        let call = format_args!("fi_reject of a connection request that was answered");
        entry::log_err(Subsys::EpCtrl, call, open.ok_or(fi::FI_EINVAL))?.refuse(data);
        if !kept {
            // SAFETY: made by `handle_of`; no endpoint has it, and C does not use it any more.
            drop(unsafe { entry::take::<ConnReq, _>(handle) }?);
        }
        Ok(())
    })
}

/// Creates the handle of a request, which C passes to `fi_reject` or, in the info, to
/// `fi_endpoint`.
fn handle_of(request: ConnRequest) -> usize {
    let handle = Box::new(ConnReq {
        fid: fid {
            fclass: fi::FI_CLASS_CONNREQ,
            context: std::ptr::null_mut(),
            ops: &raw const REQUEST_OPS,
        },
        answer: Mutex::new(Answer { request: Some(request), kept: false }),
    });
    entry::give::<ConnReq, fid>(handle).expose_provenance()
}

impl ConnReq {
    /// Locks the answer. A panic elsewhere leaves it consistent: every change is one store.
    fn answer(&self) -> MutexGuard<'_, Answer> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Address of the handle of a request, kept by the endpoint opened for it, since C may use it as
/// long. Address 0: given back.
#[derive(Debug)]
pub(crate) struct HeldRequest(usize);

impl HeldRequest {
    /// Keeps the handle of an unanswered request that no other endpoint keeps.
    ///
    /// # Errors
    /// `FI_EINVAL` for any other handle.
    ///
    /// # Safety
    /// `handle` is an open object.
    pub(crate) unsafe fn keep(handle: *mut fid) -> Result<HeldRequest, Errno> {
        // SAFETY: an open object, by the caller's contract.
        let mut answer = unsafe { object::<ConnReq, _>(handle) }?.answer();
        if answer.request.is_none() || std::mem::replace(&mut answer.kept, true) {
            return Err(fi::FI_EINVAL);
        }
        Ok(HeldRequest(handle.expose_provenance()))
    }

    fn answer(&self) -> Option<MutexGuard<'_, Answer>> {
        let handle = std::ptr::with_exposed_provenance::<fid>(self.0);
        // SAFETY: kept by this value, which alone frees it.
        let request = unsafe { object::<ConnReq, _>(handle) };
        request.ok().map(ConnReq::answer)
    }

    /// Whether the request is unanswered.
    pub(crate) fn is_open(&self) -> bool {
        self.answer().is_some_and(|answer| answer.request.is_some())
    }

    /// Returns the address that the accepting endpoint uses; `None` once the request is answered.
    pub(crate) fn name(&self) -> Option<[u8; ADDR_LEN]> {
        self.answer()?.request.as_ref().map(|request| request.name)
    }

    /// Takes the request itself, to answer it.
    pub(crate) fn take(&self) -> Option<ConnRequest> {
        self.answer()?.request.take()
    }

    /// Returns the handle to C.
    pub(crate) fn give_back(mut self) {
        if let Some(mut answer) = self.answer() {
            answer.kept = false;
        }
        self.0 = 0;
    }
}

impl Drop for HeldRequest {
    /// Rejects an unanswered request.
    fn drop(&mut self) {
        if self.0 != 0 {
            forget_handle(self.0);
        }
    }
}

/// Frees a handle that C never saw, or uses no more.
fn forget_handle(handle: usize) {
    // SAFETY: made by `handle_of`. C never saw it, or passed it to an endpoint that is closed.
    drop(unsafe { entry::take::<ConnReq, fid>(std::ptr::with_exposed_provenance_mut(handle)) });
}

/// Unread connection request in an event queue; dropping it rejects the request.
#[derive(Debug)]
pub(crate) struct Unread {
    info: Option<OwnedInfo>,
    handle: usize,
}

impl UnreadRequest for Unread {
    fn info(&self) -> usize {
        self.info.as_ref().map_or(0, OwnedInfo::addr)
    }

    fn give(mut self: Box<Self>) {
        if let Some(info) = self.info.take() {
            info.give();
            self.handle = 0;
        }
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        if self.handle != 0 {
            forget_handle(self.handle);
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "recovers the handles that C passes")]
//! Handle of a connection request, as long as C or an endpoint uses it.
//!
//! Mirrors `FI_CLASS_CONNREQ` of `rdma/fabric.h`; fi_cm(3).

use std::sync::{Mutex, MutexGuard, PoisonError};

use libfabric_sys as fi;
use libfabric_sys::fid;

use crate::base::addr::{ADDR_LEN, Addr};
use crate::base::entry::{self, object};
use crate::base::errno::Errno;
use crate::engine::types::conn_request::ConnRequest;
use crate::objects::getinfo::owned::OwnedInfo;
use crate::state::eq_queue::UnreadRequest;

/// Object behind `fi_info::handle` of a connection request.
#[repr(C)]
pub(super) struct ConnReq {
    fid: fid,
    answer: Mutex<Answer>,
}

#[derive(Debug)]
pub(super) struct Answer {
    /// Request; `None` once it is answered.
    pub(super) request: Option<ConnRequest>,
    /// Whether an endpoint was opened for the request, and frees the handle.
    pub(super) kept: bool,
}

// SAFETY: repr(C) with a fid first; FI_CLASS_CONNREQ is in ConnReq objects only. The fields after
// it are Sync.
unsafe impl entry::Object for ConnReq {
    const FCLASS: usize = fi::FI_CLASS_CONNREQ;
}

static OPS: fi::fi_ops = fi::FI_OPS_NOSYS;

/// Creates the handle of a request, which C passes to `fi_reject` or, in the info, to
/// `fi_endpoint`.
pub(super) fn handle_of(request: ConnRequest) -> usize {
    let handle = Box::new(ConnReq {
        fid: fid {
            fclass: fi::FI_CLASS_CONNREQ,
            context: std::ptr::null_mut(),
            ops: &raw const OPS,
        },
        answer: Mutex::new(Answer { request: Some(request), kept: false }),
    });
    entry::give::<ConnReq, fid>(handle).expose_provenance()
}

impl ConnReq {
    /// Locks the answer. A panic elsewhere leaves it consistent: every change is one store.
    pub(super) fn answer(&self) -> MutexGuard<'_, Answer> {
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

    /// Whether the caller is on another host.
    pub(crate) fn is_from_abroad(&self) -> bool {
        self.answer()
            .is_some_and(|answer| answer.request.as_ref().is_some_and(|call| call.from.place != 0))
    }

    /// Returns the source address of the accepting endpoint: for a caller of another host any port
    /// at the IP address that the caller reaches, else none.
    pub(crate) fn source(&self) -> Vec<u8> {
        let name = self.name().filter(|_| self.is_from_abroad());
        let ip = name.and_then(|name| Addr::from_bytes(&name)).map(|name| name.ip);
        ip.map_or_else(Vec::new, |ip| Addr::this_host(ip, 0).to_bytes().to_vec())
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
    pub(super) info: Option<OwnedInfo>,
    pub(super) handle: usize,
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

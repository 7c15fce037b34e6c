// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "C calls in, with pointers")]
//! Connection management of active endpoints: `fi_connect`, `fi_accept`, `fi_shutdown`,
//! `fi_getpeer`.
//!
//! The event queue reports their results, and reading it drives the connection. None of the calls
//! waits for the peer, except that `fi_shutdown` waits briefly for space in the ring. The protocol
//! is in `engine::protocols`, the passive side in `pep`.
//!
//! Mirrors fi_cm(3).

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libfabric_sys as fi;
use libfabric_sys::{fid, fid_ep};
use scif::PortId;

use super::enable::enable;
use super::name::{getname, setname};
use crate::base::addr::ADDR_LEN;
use crate::base::attr::CM_DATA_SIZE;
use crate::base::entry::{self, guard_int, own};
use crate::base::errno::Errno;
use crate::base::log::Subsys;
use crate::domain::cm;
use crate::objects::endpoint::ep::{Ep, EpCore};
use crate::objects::pep::Pep;
use crate::objects::pep::listen::PepShared;
use crate::objects::pep::request::HeldRequest;
use crate::objects::port;

pub(super) static OPS: fi::fi_ops_cm =
    fi::fi_ops_cm { setname, getname, getpeer, connect, accept, shutdown, ..fi::FI_OPS_CM_NOSYS };

/// Role of a connected endpoint, derived from the handle of its info.
pub(super) enum Origin {
    /// Endpoint that connects from a port of its own.
    Active,
    /// Endpoint that connects from the port of a passive endpoint.
    Port(Arc<PepShared>),
    /// Endpoint that answers this request.
    Request(HeldRequest),
}

impl Origin {
    /// # Safety
    /// `handle` is null, an open passive endpoint, or the handle of a connection request.
    pub(super) unsafe fn of(handle: *mut fid) -> Result<Origin, Errno> {
        if handle.is_null() {
            return Ok(Origin::Active);
        }
        // SAFETY: an open object, by the caller's contract.
        match unsafe { entry::class_of(handle) }? {
            fi::FI_CLASS_PEP => {
                // SAFETY: an open passive endpoint.
                let pep = unsafe { own::<Pep, _>(handle) }?;
                Ok(Origin::Port(Arc::clone(&pep.shared)))
            }
            fi::FI_CLASS_CONNREQ => {
                // SAFETY: the handle of a request.
                unsafe { HeldRequest::keep(handle) }.map(Origin::Request)
            }
            _ => Err(fi::FI_EINVAL),
        }
    }
}

/// `fi_connect`
///
/// Enables the endpoint. The event queue reports the result: `FI_CONNECTED`, or an error with the
/// data of the peer that refused.
///
/// # Errors
/// `-FI_EINVAL` for too much data or a malformed address, `-FI_EADDRNOTAVAIL` for an address of
/// another host. `-FI_EALREADY` and `-FI_EISCONN` after an earlier call, `-FI_EOPBADSTATE` once it
/// was connected. Errors of enabling.
unsafe extern "C" fn connect(
    ep: *mut fid_ep,
    addr: *const c_void,
    param: *const c_void,
    paramlen: usize,
) -> c_int {
    guard_int("fi_connect", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { own::<Ep, _>(ep) }?;
        // SAFETY: null, or an address of the format of this provider.
        let addr = unsafe { addr.cast::<[u8; ADDR_LEN]>().as_ref() };
        // SAFETY: null or data of the given length.
        let data = unsafe { entry::slice(param.cast::<u8>(), paramlen) };
        let (to, name) = match addr {
            None => (PortId::new(0, 0), [0; ADDR_LEN]),
            // A malformed address is logged where it is decoded.
            Some(addr) => (port::destination(&ep.core.dom.fabric, addr)?, *addr),
        };
        entry::log_err(
            Subsys::EpCtrl,
            format_args!("fi_connect to {to} with {paramlen} bytes of data"),
            data.and_then(|data| connect_to(&ep.core, (to, name), data)),
        )
    })
}

/// `fi_accept`
///
/// Enables the endpoint. The event queue reports when it is connected.
///
/// # Errors
/// `-FI_EINVAL` for too much data, `-FI_EOPBADSTATE` for an endpoint that was not opened for a
/// request or whose request was answered, and errors of enabling.
unsafe extern "C" fn accept(ep: *mut fid_ep, param: *const c_void, paramlen: usize) -> c_int {
    guard_int("fi_accept", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { own::<Ep, _>(ep) }?;
        // SAFETY: null or data of the given length.
        let data = unsafe { entry::slice(param.cast::<u8>(), paramlen) };
        let accepted = data.and_then(|data| accept_with(&ep.core, data));
        entry::log_err(
            Subsys::EpCtrl,
            format_args!("fi_accept with {paramlen} bytes of data"),
            accepted,
        )
    })
}

/// `fi_shutdown`
///
/// Posted receives end with `FI_ECANCELED`. The peer's event queue reports `FI_SHUTDOWN`.
///
/// # Errors
/// `-FI_EBADFLAGS` for any flag, `-FI_ENOTCONN` before it was connected, `-FI_EOPBADSTATE` before
/// it was enabled.
unsafe extern "C" fn shutdown(ep: *mut fid_ep, flags: u64) -> c_int {
    guard_int("fi_shutdown", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { own::<Ep, _>(ep) }?;
        let ended = if flags == 0 {
            cm::shutdown(&mut ep.core.dom.gate.lock(), ep.core.idx())
        } else {
            Err(fi::FI_EBADFLAGS)
        };
        entry::log_err(Subsys::EpCtrl, format_args!("fi_shutdown with flags {flags:#x}"), ended)
    })
}

/// `fi_getpeer`
///
/// # Errors
/// `-FI_ENOTCONN` while it is not connected. `-FI_ETOOSMALL` when the address does not fit;
/// `*addrlen` is its length then.
unsafe extern "C" fn getpeer(ep: *mut fid_ep, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    guard_int("fi_getpeer", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { own::<Ep, _>(ep) }?;
        let core = &ep.core;
        let name = entry::log_err(
            Subsys::EpCtrl,
            format_args!("fi_getpeer"),
            cm::peer_name(&core.dom.gate.lock(), core.idx()),
        )?;
        // SAFETY: null, or the caller's buffer and its length.
        unsafe { entry::put_name(&name, addr, addrlen) }
    })
}

fn connect_to(core: &Arc<EpCore>, to: (PortId, [u8; ADDR_LEN]), data: &[u8]) -> Result<(), Errno> {
    if data.len() > CM_DATA_SIZE || to.0.port == 0 {
        return Err(fi::FI_EINVAL);
    }
    enable(core)?;
    cm::connect(&mut core.dom.gate.lock(), core.idx(), to, data)
}

fn accept_with(core: &Arc<EpCore>, data: &[u8]) -> Result<(), Errno> {
    if data.len() > CM_DATA_SIZE {
        return Err(fi::FI_EINVAL);
    }
    let why = match core.request().as_ref() {
        None => "fi_accept of an endpoint that was not opened for a connection request",
        Some(request) if !request.is_open() => {
            "fi_accept of a connection request that was answered"
        }
        Some(_) => "",
    };
    if !why.is_empty() {
        return entry::refused(Subsys::EpCtrl, format_args!("{why}"), fi::FI_EOPBADSTATE);
    }
    enable(core)?;
    let call = core.request().as_ref().and_then(HeldRequest::take);
    let call = call.ok_or(fi::FI_EOPBADSTATE)?;
    cm::accept(&mut core.dom.gate.lock(), core.idx(), call, data)
}

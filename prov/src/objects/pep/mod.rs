// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "C calls in, with pointers")]
//! Passive endpoints: the C object that listens for connections.
//!
//! Connection requests are received in `listen`, and named by handles in `request`. The connection
//! protocol of connected endpoints is in `engine::cm`.
//!
//! Mirrors `struct fid_pep` of `rdma/fi_endpoint.h`; fi_cm(3), fi_endpoint(3).

pub(crate) mod listen;
pub(crate) mod request;

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libfabric_sys as fi;
use libfabric_sys::{fid, fid_t};
use scif::Maker;

use crate::base::attr;
use crate::base::entry::{self, guard_int, object, own};
use crate::base::log::Subsys;
use crate::objects::eq::Eq;
use crate::objects::getinfo::owned::OwnedInfo;
use crate::objects::handle::Fabric;
use listen::PepShared;
use request::ConnReq;

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

entry::created_by!(Pep, |object| object.creator);

static FID_OPS: fi::fi_ops = fi::fi_ops { close, bind, control, ..fi::FI_OPS_NOSYS };
static EP_OPS: fi::fi_ops_ep = fi::fi_ops_ep { getopt, setopt, ..fi::FI_OPS_EP_NOSYS };
static CM_OPS: fi::fi_ops_cm =
    fi::fi_ops_cm { setname, getname, listen, reject, ..fi::FI_OPS_CM_NOSYS };

/// `fi_passive_ep`
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

/// `fi_close`
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

/// `fi_pep_bind`
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

/// `fi_control`
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

/// `fi_getopt`
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
        entry::log_err(
            Subsys::EpCtrl,
            format_args!("fi_getopt of option {optname} at level {level}"),
            put,
        )
    })
}

/// `fi_setopt`
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
        entry::log_err(
            Subsys::EpCtrl,
            format_args!("fi_setopt of option {optname} at level {level}"),
            Err::<(), _>(fi::FI_ENOPROTOOPT),
        )
    })
}

/// `fi_setname`
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

/// `fi_getname`
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

/// `fi_listen`
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

/// `fi_reject`
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
        let data = entry::log_err(
            Subsys::EpCtrl,
            format_args!("fi_reject with {paramlen} bytes of data"),
            data,
        )?;
        // SAFETY: null, or the handle of a request.
        let request = unsafe { object::<ConnReq, _>(handle) };
        let request = entry::log_err(
            Subsys::EpCtrl,
            format_args!("fi_reject of a handle that is no connection request"),
            request,
        )?;
        let (open, kept) = {
            let mut answer = request.answer();
            (answer.request.take(), answer.kept)
        };
        entry::log_err(
            Subsys::EpCtrl,
            format_args!("fi_reject of a connection request that was answered"),
            open.ok_or(fi::FI_EINVAL),
        )?
        .refuse(data);
        if !kept {
            // SAFETY: made by `handle_of`; no endpoint has it, and C does not use it any more.
            drop(unsafe { entry::take::<ConnReq, _>(handle) }?);
        }
        Ok(())
    })
}

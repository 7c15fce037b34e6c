// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "thunks: objects and attributes come as C pointers")]
//! The fabric: a SCIF node, on which other objects are opened.
//!
//! Objects opened on a [`Fabric`] hold its [`FabricShared`]; while one of them exists, the fabric
//! cannot be closed.
//!
//! Mirrors `struct fi_ops_fabric` of `rdma/fabric.h`; fi_fabric(3).

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libfabric_sys as fi;
use scif::{Node, TransportKind};

use crate::base::attr::NAME;
use crate::base::log::{Subsys, info};
use crate::base::{entry, env};
use crate::objects::cntr::Cntr;
use crate::objects::cq::Cq;
use crate::objects::eq::{self, Eq};
use crate::objects::handle::{Domain, Fabric};
use crate::objects::open_fabrics::{forget, remember, remember_domain};
use crate::objects::wait_set::{self, WaitSet};
use crate::objects::{domain, pep};
use crate::state::fabric::{FabricShared, open_node, publish_process};

static FID_OPS: fi::fi_ops = fi::fi_ops { close, ..fi::FI_OPS_NOSYS };
static OPS: fi::fi_ops_fabric = fi::fi_ops_fabric {
    domain,
    passive_ep: pep::open,
    eq_open: eq::open,
    wait_open: wait_set::open,
    trywait,
    domain2,
    ..fi::FI_OPS_FABRIC_NOSYS
};

/// `fabric`
///
/// # Errors
/// `FI_EINVAL`: another name than the one of this provider's fabric. Errors of [`open_node`].
pub(crate) unsafe extern "C" fn open(
    attr: *mut fi::fi_fabric_attr,
    fabric: *mut *mut fi::fid_fabric,
    context: *mut c_void,
) -> c_int {
    entry::guard_int("fi_fabric", || {
        // SAFETY: null, or an attribute that stays unchanged during the call.
        let attr = unsafe { attr.as_ref() }.ok_or(fi::FI_EINVAL)?;
        // SAFETY: null or a C string.
        let name = unsafe { entry::string(attr.name) };
        if fabric.is_null()
            || name.is_some_and(|name| !name.to_bytes().eq_ignore_ascii_case(NAME.to_bytes()))
        {
            return Err(fi::FI_EINVAL);
        }
        let node = open_node()?;
        publish_process(&node);
        log_properties(&node);
        let shared = FabricShared::new(attr.api_version, node);
        let head = fi::fid { fclass: fi::FI_CLASS_FABRIC, context, ops: &raw const FID_OPS };
        let fid = fi::fid_fabric { fid: head, ops: &raw const OPS, api_version: attr.api_version };
        let new = entry::give(Box::new(Fabric { fid, shared }));
        remember(new);
        // SAFETY: not null; the caller passes space for the result.
        unsafe { entry::put(fabric, new) }
    })
}

/// # Errors
/// `FI_EBUSY`: an object opened on it is still open.
unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    entry::guard_int("fi_close of a fabric", || {
        // SAFETY: an open fabric of this provider, not closed concurrently, by the contract of
        // fi_close.
        let fabric = unsafe { entry::own::<Fabric, _>(fid) }?;
        if Arc::strong_count(&fabric.shared) > 1 {
            let busy = Err(fi::FI_EBUSY);
            return entry::log_err(Subsys::Fabric, format_args!("fi_close of a fabric"), busy);
        }
        forget(fid.cast());
        // SAFETY: made by `open` and not used after fi_close.
        drop(unsafe { entry::take::<Fabric, _>(fid) }?);
        Ok(())
    })
}

unsafe extern "C" fn domain(
    fabric: *mut fi::fid_fabric,
    info: *mut fi::fi_info,
    dom: *mut *mut fi::fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the contract of fi_domain, which fi_domain2 without flags has as well.
    unsafe { domain2(fabric, info, dom, 0, context) }
}

unsafe extern "C" fn domain2(
    of: *mut fi::fid_fabric,
    info: *mut fi::fi_info,
    dom: *mut *mut fi::fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    entry::guard_int("fi_domain", || {
        // SAFETY: a live fabric, by the contract of fi_domain.
        let fabric = unsafe { entry::own::<Fabric, _>(of) }?;
        if dom.is_null() {
            return Err(fi::FI_EINVAL);
        }
        // SAFETY: null, or an info that stays unchanged during the call.
        let new = unsafe { domain::open(&fabric.shared, info, flags, context) };
        let new =
            entry::log_err(Subsys::Fabric, format_args!("fi_domain with flags {flags:#x}"), new)?;
        // SAFETY: opened in the line above.
        let opened = unsafe { entry::own::<Domain, _>(new) }?;
        remember_domain(of, new, &opened.shared);
        // SAFETY: not null; the caller passes space for the result.
        unsafe { entry::put(dom, new) }
    })
}

/// `fi_trywait`
///
/// # Errors
/// `FI_EAGAIN`: one of them has an entry to read. `FI_EINVAL`: one of them has no descriptor.
unsafe extern "C" fn trywait(
    fabric: *mut fi::fid_fabric,
    fids: *mut *mut fi::fid,
    count: c_int,
) -> c_int {
    entry::guard_int("fi_trywait", || {
        // SAFETY: a live fabric, by the contract of fi_trywait.
        unsafe { entry::own::<Fabric, _>(fabric) }?;
        let count = usize::try_from(count).map_err(|_| fi::FI_EINVAL)?;
        // SAFETY: an array of count objects, by the contract of fi_trywait.
        for &fid in unsafe { entry::slice(fids.cast_const(), count) }? {
            // SAFETY: a live object, by the contract of fi_trywait.
            match unsafe { entry::class_of(fid) }? {
                // SAFETY: as above, and of that class.
                fi::FI_CLASS_EQ => unsafe { entry::own::<Eq, _>(fid) }?.shared().try_wait()?,
                // SAFETY: as above, and of that class.
                fi::FI_CLASS_CQ => unsafe { entry::own::<Cq, _>(fid) }?.try_wait()?,
                // SAFETY: as above, and of that class.
                fi::FI_CLASS_CNTR => unsafe { entry::own::<Cntr, _>(fid) }?.try_wait()?,
                fi::FI_CLASS_WAIT => {
                    // SAFETY: as above, and of that class.
                    unsafe { entry::own::<WaitSet, _>(fid) }?.shared().try_wait()?
                }
                _ => return Err(fi::FI_EINVAL),
            }
        }
        Ok(())
    })
}

/// Logs at info the properties of a fabric: version, file, transport, copy path.
fn log_properties(node: &Node) {
    let file = fi::own_file().unwrap_or_default();
    let transport = match node.kind() {
        TransportKind::Kernel => "kernel",
        TransportKind::Scif => "scif",
        TransportKind::Sisci => "sisci",
        _ => "soft",
    };
    let copies = match node.copy_path() {
        Ok(_) if !env::env().process_vm => "through the ring, by FI_SCIF_PROCESS_VM".to_owned(),
        Ok(direct) => direct,
        Err(why) => format!("through the ring: {why}"),
    };
    info(
        Subsys::Fabric,
        format_args!(
            "scif {} from {}; transport {transport}: {}; large messages and RMA {copies}",
            env!("CARGO_PKG_VERSION"),
            file.to_string_lossy(),
            node.settings(),
        ),
    );
}

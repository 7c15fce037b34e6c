// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "thunks: objects and attributes come as C pointers")]
//! The fabric: a SCIF node, on which other objects are opened.
//!
//! A [`Fabric`] is the C object. Objects opened on it hold its [`FabricShared`]; while one of them
//! exists, the fabric cannot be closed.
//!
//! Mirrors `struct fi_ops_fabric` of `rdma/fabric.h`; fi_fabric(3).

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use libfabric_sys as fi;
use scif::{Config, Maker, Node, TransportKind};

use crate::base::attr::NAME;
use crate::base::errno::{self, Errno};
use crate::base::log::{Subsys, info};
use crate::base::reason::warn_about_call;
use crate::base::{entry, env};
use crate::domain::DomainShared;
use crate::objects::cntr::Cntr;
use crate::objects::cq::Cq;
use crate::objects::domain::{self, Domain};
use crate::objects::eq::{self, Eq};
use crate::objects::pep;
use crate::objects::wait_set::{self, WaitSet};
use crate::state::fabric::FabricShared;

/// Object behind `struct fid_fabric`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Fabric {
    fid: fi::fid_fabric,
    shared: Arc<FabricShared>,
}

// SAFETY: repr(C) with a fid_fabric first; FI_CLASS_FABRIC is in Fabric objects only. An Arc of a
// Sync type follows the fid.
unsafe impl entry::Object for Fabric {
    const FCLASS: usize = fi::FI_CLASS_FABRIC;
}

impl entry::CreatedBy for Fabric {
    fn creator(&self) -> Maker {
        self.shared.creator
    }
}

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

/// `int fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)`
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
        tell(&node);
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

/// `int fi_trywait(struct fid_fabric *, struct fid **fids, int count)`
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

impl Fabric {
    pub(crate) fn shared(&self) -> &Arc<FabricShared> {
        &self.shared
    }
}

/// Opens the SCIF node of this process, as set in the environment.
///
/// # Errors
/// Errors of the engine, as libfabric's numbers; the reason is logged.
pub(crate) fn open_node() -> Result<Arc<Node>, Errno> {
    let config = Config::from_env();
    let config = Config {
        ptracer: config.ptracer && env::env().ptracer,
        refuse_after_ms: env::env().connect_timeout_ns / 1_000_000,
        // Endpoints of a test connect only within this process.
        #[cfg(test)]
        domain: Some(format!("test-{}", std::process::id())),
        ..config
    };
    Node::open(config, env::env().transport).map_err(|error| failed(&error))
}

/// Logs at info the properties of a fabric: version, file, transport, copy path.
fn tell(node: &Node) {
    let file = fi::own_file().unwrap_or_default();
    let transport = match node.kind() {
        TransportKind::Kernel => "kernel",
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

fn failed(error: &scif::Error) -> Errno {
    warn_about_call(Subsys::Fabric, format_args!("cannot open the SCIF node: {error}"));
    errno::errno(error)
}

/// Fabric that C holds, and the domains opened on it that C may hold.
#[derive(Debug)]
struct Open {
    fabric: usize,
    creator: Maker,
    /// Domains by address; a closed one cannot be upgraded any more.
    domains: Vec<(usize, Weak<DomainShared>)>,
}

/// Open fabrics, oldest first.
static OPEN: Mutex<Vec<Open>> = Mutex::new(Vec::new());

fn lock_open() -> MutexGuard<'static, Vec<Open>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remember(fabric: *mut fi::fid_fabric) {
    lock_open().push(Open {
        fabric: fabric.expose_provenance(),
        creator: Maker::here(),
        domains: Vec::new(),
    });
}

fn remember_domain(
    fabric: *mut fi::fid_fabric,
    domain: *mut fi::fid_domain,
    shared: &Arc<DomainShared>,
) {
    if let Some(open) = lock_open().iter_mut().find(|open| open.fabric == fabric.addr()) {
        open.domains.retain(|(_, domain)| domain.strong_count() > 0);
        open.domains.push((domain.expose_provenance(), Arc::downgrade(shared)));
    }
}

fn forget(fabric: *mut fi::fid_fabric) {
    lock_open().retain(|open| open.fabric != fabric.addr());
}

/// Returns the fabric and the domain that a program has open, for fi_getinfo(3); null without any.
/// A forked child ignores the objects of its parent.
pub(crate) fn first_open() -> (*mut fi::fid_fabric, *mut fi::fid_domain) {
    let open = lock_open();
    let Some(first) = open.iter().find(|open| !open.creator.is_ancestor()) else {
        return (ptr::null_mut(), ptr::null_mut());
    };
    let mut domains = first.domains.iter().filter(|(_, domain)| domain.strong_count() > 0);
    let domain = domains.next().map_or(0, |(domain, _)| *domain);
    (ptr::with_exposed_provenance_mut(first.fabric), ptr::with_exposed_provenance_mut(domain))
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Poll sets and wait sets (fi_poll(3)), and the objects opened with a wait set.
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;

use super::cntr::{Cntr, CntrAttr};
use super::cq::{Cq, CqAttr};
use super::eq::{Eq, EqAttr};
use super::errno::{Errno, Result};
use super::fabric::{Domain, Fabric};
use super::object::{Fid, Object, is_fid, table};

/// An open poll set.
#[derive(Debug)]
pub struct PollSet {
    object: Object<sys::fid_poll>,
    _domain: Arc<Domain>,
}

/// An open wait set.
#[derive(Debug)]
pub struct WaitSet {
    pub(super) object: Object<sys::fid_wait>,
    fabric: Arc<Fabric>,
}

is_fid!(PollSet);
is_fid!(WaitSet);

impl PollSet {
    /// `fi_poll_open`.
    pub fn open(domain: &Arc<Domain>, flags: u64) -> Result<PollSet> {
        let (raw, ops) = domain.ops()?;
        let mut attr = sys::fi_poll_attr { flags };
        let mut set = ptr::null_mut();
        // SAFETY: the domain is open and one pointer is written to `set`.
        Errno::check_int(unsafe { (ops.poll_open)(raw, &raw mut attr, &raw mut set) })?;
        // SAFETY: the provider has just opened the object for this call.
        let object = unsafe { Object::adopt(set) }?;
        Ok(PollSet { object, _domain: Arc::clone(domain) })
    }

    table!(fn ops: fid_poll.ops -> fi_ops_poll);

    /// `fi_poll_add` of an object under a context.
    pub fn add(&self, member: &dyn Fid, context: usize) -> Result {
        let (set, ops) = self.ops()?;
        let fid = member.raw_fid()?;
        // SAFETY: an open object begins with a struct fid, whose context its opener may choose.
        unsafe { (*fid).context = ptr::without_provenance_mut(context) };
        // SAFETY: both objects are open.
        Errno::check_int(unsafe { (ops.poll_add)(set, fid, 0) }).map(drop)
    }

    /// `fi_poll_del`.
    pub fn del(&self, member: &dyn Fid) -> Result {
        let (set, ops) = self.ops()?;
        let fid = member.raw_fid()?;
        // SAFETY: both objects are open.
        Errno::check_int(unsafe { (ops.poll_del)(set, fid, 0) }).map(drop)
    }

    /// `fi_poll` for at most `count` contexts.
    pub fn poll(&self, count: usize) -> Result<Vec<usize>> {
        let (set, ops) = self.ops()?;
        let mut contexts = vec![ptr::null_mut(); count];
        let room = i32::try_from(count).map_err(|_| Errno::EINVAL)?;
        // SAFETY: the set is open, and `contexts` has `count` elements.
        let found = Errno::check_int(unsafe { (ops.poll)(set, contexts.as_mut_ptr(), room) })?;
        contexts.truncate(found);
        Ok(contexts.into_iter().map(|c: *mut _| c.addr()).collect())
    }
}

impl WaitSet {
    /// `fi_wait_open`.
    pub fn open(fabric: &Arc<Fabric>, wait_obj: u32, flags: u64) -> Result<WaitSet> {
        let raw = fabric.object.raw()?;
        let mut attr = sys::fi_wait_attr { wait_obj, flags };
        let mut set = ptr::null_mut();
        let open = fabric.ops()?.wait_open;
        // SAFETY: the fabric is open and one pointer is written to `set`.
        Errno::check_int(unsafe { open(raw, &raw mut attr, &raw mut set) })?;
        // SAFETY: the provider has just opened the object for this call.
        let object = unsafe { Object::adopt(set) }?;
        Ok(WaitSet { object, fabric: Arc::clone(fabric) })
    }

    /// `fi_wait`.
    pub fn wait(&self, timeout_ms: i32) -> Result {
        let set = self.object.raw()?;
        // SAFETY: the object is open.
        let ops = unsafe { (*set).ops };
        // SAFETY: an open set has its operations, valid while the set is open.
        let ops = unsafe { &*ops };
        // SAFETY: the set is open.
        Errno::check_int(unsafe { (ops.wait)(set, timeout_ms) }).map(drop)
    }

    /// `fi_cq_open` with this wait set.
    pub fn cq(&self, domain: &Arc<Domain>) -> Result<Arc<Cq>> {
        let attr = CqAttr {
            format: sys::FI_CQ_FORMAT_TAGGED,
            wait_obj: sys::FI_WAIT_SET,
            ..CqAttr::default()
        };
        Cq::open_with(domain, attr, self.object.raw()?)
    }

    /// `fi_cntr_open` with this wait set.
    pub fn cntr(&self, domain: &Arc<Domain>) -> Result<Arc<Cntr>> {
        let attr = CntrAttr { wait_obj: sys::FI_WAIT_SET, ..CntrAttr::default() };
        Cntr::open_with(domain, attr, self.object.raw()?)
    }

    /// `fi_eq_open` with this wait set.
    pub fn eq(&self) -> Result<Arc<Eq>> {
        let attr = EqAttr { flags: sys::FI_WRITE, wait_obj: sys::FI_WAIT_SET, ..EqAttr::default() };
        Eq::open_with(&self.fabric, attr, self.object.raw()?)
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Fabric and domain, on which all other objects are opened (fi_fabric(3), fi_domain(3)).
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;

use super::errno::{Errno, Result};
use super::info::Info;
use super::object::{Fid, Object, is_fid, table};

/// An open fabric.
#[derive(Debug)]
pub struct Fabric {
    pub(super) object: Object<sys::fid_fabric>,
}

/// An open domain.
#[derive(Debug)]
pub struct Domain {
    pub(super) object: Object<sys::fid_domain>,
    /// Fabric of the domain.
    pub fabric: Arc<Fabric>,
}

is_fid!(Fabric);
is_fid!(Domain);

impl Fabric {
    /// `fi_fabric`.
    pub fn open(info: &Info) -> Result<Arc<Fabric>> {
        // SAFETY: the attributes belong to `info`.
        let fabric = unsafe { info.lib().open_fabric(info.fabric_attr()) }?;
        // SAFETY: the library has just opened the object for this call.
        let object = unsafe { Object::adopt(fabric) }?;
        Ok(Arc::new(Fabric { object }))
    }

    pub(super) fn ops(&self) -> Result<&sys::fi_ops_fabric> {
        let raw = self.object.raw()?;
        // SAFETY: the object is open.
        let ops = unsafe { (*raw).ops };
        // SAFETY: an open fabric has its operations, valid while the fabric is open.
        Ok(unsafe { &*ops })
    }

    /// `fi_trywait`.
    ///
    /// # Errors
    /// Errors of the call; `EAGAIN` means that the caller must not sleep.
    pub fn trywait(&self, fids: &[&dyn Fid]) -> Result {
        let fabric = self.object.raw()?;
        let mut list = fids.iter().map(|fid| fid.raw_fid()).collect::<Result<Vec<_>>>()?;
        let count = i32::try_from(list.len()).map_err(|_| Errno::EINVAL)?;
        let trywait = self.ops()?.trywait;
        // SAFETY: `list` holds `count` open objects.
        Errno::check_int(unsafe { trywait(fabric, list.as_mut_ptr(), count) }).map(drop)
    }
}

impl Domain {
    /// `fi_domain`.
    pub fn open(fabric: &Arc<Fabric>, info: &Info) -> Result<Arc<Domain>> {
        let raw = fabric.object.raw()?;
        let mut domain = ptr::null_mut();
        let open = fabric.ops()?.domain;
        // SAFETY: the fabric is open, the info outlives the call, and one pointer is written to
        // `domain`.
        Errno::check_int(unsafe { open(raw, info.as_ptr(), &raw mut domain, ptr::null_mut()) })?;
        // SAFETY: the provider has just opened the object for this call.
        let object = unsafe { Object::adopt(domain) }?;
        Ok(Arc::new(Domain { object, fabric: Arc::clone(fabric) }))
    }

    table!(pub(super) fn ops: fid_domain.ops -> fi_ops_domain);

    /// `fi_query_atomic`. Returns the element count and the element size.
    pub fn query_atomic(&self, datatype: u32, op: u32, flags: u64) -> Result<(usize, usize)> {
        let (domain, ops) = self.ops()?;
        let mut attr = sys::fi_atomic_attr::default();
        // SAFETY: the domain is open and `attr` is writable.
        let code = unsafe { (ops.query_atomic)(domain, datatype, op, &raw mut attr, flags) };
        Errno::check_int(code)?;
        Ok((attr.count, attr.size))
    }
}

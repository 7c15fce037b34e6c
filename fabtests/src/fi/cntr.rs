// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Counters (fi_cntr(3)).
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;

use super::errno::{Errno, Result, op};
use super::fabric::Domain;
use super::object::{Object, is_fid, table};

/// An open counter.
#[derive(Debug)]
pub struct Cntr {
    pub(super) object: Object<sys::fid_cntr>,
    _domain: Arc<Domain>,
}

is_fid!(Cntr);

/// Attributes of a counter to open.
#[derive(Debug, Clone, Copy, Default)]
pub struct CntrAttr {
    pub events: u32,
    pub wait_obj: u32,
    pub flags: u64,
}

impl Cntr {
    /// `fi_cntr_open`.
    pub fn open(domain: &Arc<Domain>, attr: CntrAttr) -> Result<Arc<Cntr>> {
        Cntr::open_with(domain, attr, ptr::null_mut())
    }

    /// `fi_cntr_open` with a wait set.
    pub(super) fn open_with(
        domain: &Arc<Domain>,
        attr: CntrAttr,
        wait_set: *mut sys::fid_wait,
    ) -> Result<Arc<Cntr>> {
        let (raw, ops) = domain.ops()?;
        let mut attr = sys::fi_cntr_attr {
            events: attr.events,
            wait_obj: attr.wait_obj,
            wait_set,
            flags: attr.flags,
        };
        let mut cntr = ptr::null_mut();
        // SAFETY: the domain is open and one pointer is written to `cntr`.
        Errno::check_int(unsafe {
            (ops.cntr_open)(raw, &raw mut attr, &raw mut cntr, ptr::null_mut())
        })?;
        // SAFETY: the provider has just opened the object for this call.
        let object = unsafe { Object::adopt(cntr) }?;
        Ok(Arc::new(Cntr { object, _domain: Arc::clone(domain) }))
    }

    /// `fi_cntr_open` with `FI_PEER`.
    ///
    /// # Safety
    /// `context` is a `struct fi_peer_cntr_context` whose counter outlives this one.
    pub(super) unsafe fn open_peer(
        domain: &Arc<Domain>,
        context: *mut std::ffi::c_void,
    ) -> Result<Arc<Cntr>> {
        let (raw, ops) = domain.ops()?;
        let mut attr = sys::fi_cntr_attr {
            events: sys::FI_CNTR_EVENTS_COMP,
            wait_obj: sys::FI_WAIT_NONE,
            wait_set: ptr::null_mut(),
            flags: sys::FI_PEER,
        };
        let mut cntr = ptr::null_mut();
        // SAFETY: the domain is open, the context is the caller's, and one pointer is written to
        // `cntr`.
        Errno::check_int(unsafe { (ops.cntr_open)(raw, &raw mut attr, &raw mut cntr, context) })?;
        // SAFETY: the provider has just opened the object for this call.
        let object = unsafe { Object::adopt(cntr) }?;
        Ok(Arc::new(Cntr { object, _domain: Arc::clone(domain) }))
    }

    table!(fn ops: fid_cntr.ops -> fi_ops_cntr);

    /// `fi_cntr_read`.
    pub fn read(&self) -> Result<u64> {
        let (cntr, ops) = self.ops()?;
        // SAFETY: the counter is open.
        Ok(unsafe { (ops.read)(cntr) })
    }

    /// `fi_cntr_readerr`.
    pub fn readerr(&self) -> Result<u64> {
        let (cntr, ops) = self.ops()?;
        // SAFETY: the counter is open.
        Ok(unsafe { (ops.readerr)(cntr) })
    }

    /// `fi_cntr_add`.
    pub fn add(&self, value: u64) -> Result {
        op!(self.ops(), add(value))
    }

    /// `fi_cntr_set`.
    pub fn set(&self, value: u64) -> Result {
        op!(self.ops(), set(value))
    }

    /// `fi_cntr_adderr`.
    pub fn adderr(&self, value: u64) -> Result {
        op!(self.ops(), adderr(value))
    }

    /// `fi_cntr_seterr`.
    pub fn seterr(&self, value: u64) -> Result {
        op!(self.ops(), seterr(value))
    }

    /// `fi_cntr_wait`.
    pub fn wait(&self, threshold: u64, timeout_ms: i32) -> Result {
        op!(self.ops(), wait(threshold, timeout_ms))
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory regions (fi_mr(3)).
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;

use super::buf::Buf;
use super::errno::{Errno, Result};
use super::fabric::Domain;
use super::object::{Fid, Object, is_fid};

/// An open memory region.
#[derive(Debug)]
pub struct Mr {
    pub(super) object: Object<sys::fid_mr>,
    _domain: Arc<Domain>,
}

is_fid!(Mr);

/// Parameters of a registration beside the memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct MrRequest {
    pub access: u64,
    pub key: u64,
    pub flags: u64,
}

impl Mr {
    /// `fi_mr_reg`.
    pub fn reg(domain: &Arc<Domain>, buf: Buf, spec: MrRequest) -> Result<Arc<Mr>> {
        let (fid, ops) = mr_ops(domain)?;
        let mut mr = ptr::null_mut();
        // SAFETY: the domain is open; the memory is never freed; one pointer is written to `mr`.
        let code = unsafe {
            (ops.reg)(
                fid,
                buf.ptr().cast(),
                buf.len(),
                spec.access,
                0,
                spec.key,
                spec.flags,
                &raw mut mr,
                ptr::null_mut(),
            )
        };
        Mr::adopt(domain, code, mr)
    }

    /// `fi_mr_regv`.
    pub fn regv(domain: &Arc<Domain>, bufs: &[Buf], spec: MrRequest) -> Result<Arc<Mr>> {
        let (fid, ops) = mr_ops(domain)?;
        let iov = iovecs(bufs);
        let mut mr = ptr::null_mut();
        // SAFETY: as in `reg`; `iov` has the stated length.
        let code = unsafe {
            (ops.regv)(
                fid,
                iov.as_ptr(),
                iov.len(),
                spec.access,
                0,
                spec.key,
                spec.flags,
                &raw mut mr,
                ptr::null_mut(),
            )
        };
        Mr::adopt(domain, code, mr)
    }

    /// `fi_mr_regattr`.
    pub fn regattr(
        domain: &Arc<Domain>,
        bufs: &[Buf],
        spec: MrRequest,
        context: usize,
    ) -> Result<Arc<Mr>> {
        Mr::regattr_in(domain, bufs, spec, context, ptr::null())
    }

    /// `fi_mr_regattr` with another object as `base_mr`.
    pub fn regattr_within(
        domain: &Arc<Domain>,
        bufs: &[Buf],
        spec: MrRequest,
        base: &dyn Fid,
    ) -> Result<Arc<Mr>> {
        Mr::regattr_in(domain, bufs, spec, 0, base.raw_fid()?.cast())
    }

    fn regattr_in(
        domain: &Arc<Domain>,
        bufs: &[Buf],
        spec: MrRequest,
        context: usize,
        base_mr: *const sys::fid_mr,
    ) -> Result<Arc<Mr>> {
        let (fid, ops) = mr_ops(domain)?;
        let iov = iovecs(bufs);
        let attr = sys::fi_mr_attr {
            context: ptr::without_provenance_mut(context),
            base_mr,
            ..attributes(iov.as_ptr(), iov.len(), spec)
        };
        let mut mr = ptr::null_mut();
        // SAFETY: as in `reg`; the attributes and their pointers outlive the call.
        let code = unsafe { (ops.regattr)(fid, &raw const attr, spec.flags, &raw mut mr) };
        Mr::adopt(domain, code, mr)
    }

    /// `fi_mr_regattr` with `FI_MR_DMABUF`: device memory with this descriptor.
    pub fn regattr_dmabuf(
        domain: &Arc<Domain>,
        fd: BorrowedFd<'_>,
        buf: Buf,
        spec: MrRequest,
    ) -> Result<Arc<Mr>> {
        let (raw, ops) = mr_ops(domain)?;
        let dmabuf = sys::fi_mr_dmabuf {
            fd: fd.as_raw_fd(),
            offset: 0,
            len: buf.len(),
            base_addr: buf.ptr().cast(),
        };
        let attr = attributes((&raw const dmabuf).cast(), 1, spec);
        let mut mr = ptr::null_mut();
        // SAFETY: as in `regattr_in`; with this flag the attributes point to a `struct
        // fi_mr_dmabuf` instead of an iovec.
        let code = unsafe {
            (ops.regattr)(raw, &raw const attr, spec.flags | sys::FI_MR_DMABUF, &raw mut mr)
        };
        Mr::adopt(domain, code, mr)
    }

    fn adopt(domain: &Arc<Domain>, code: i32, mr: *mut sys::fid_mr) -> Result<Arc<Mr>> {
        Errno::check_int(code)?;
        // SAFETY: the provider has just opened the object for this call.
        let object = unsafe { Object::adopt(mr) }?;
        Ok(Arc::new(Mr { object, _domain: Arc::clone(domain) }))
    }

    /// `fi_mr_key`.
    pub fn key(&self) -> Result<u64> {
        let mr = self.object.raw()?;
        // SAFETY: the region is open.
        Ok(unsafe { (*mr).key })
    }

    /// Address of the object, as reported in events.
    pub fn address(&self) -> Result<usize> {
        Ok(self.object.raw()?.addr())
    }

    /// `fi_mr_desc`, as a number.
    pub fn desc(&self) -> Result<usize> {
        let mr = self.object.raw()?;
        // SAFETY: the region is open.
        Ok(unsafe { (*mr).mem_desc }.addr())
    }

    /// `fi_mr_raw_attr` into a key buffer of `room` bytes. Returns the base address and the key.
    ///
    /// # Errors
    /// Errors of the call, with the length that the key requires.
    pub fn raw_attr(&self, room: usize) -> std::result::Result<(u64, Vec<u8>), (Errno, usize)> {
        let fid = self.raw_fid().map_err(|e| (e, 0))?;
        let control = self.base_ops().map_err(|e| (e, 0))?.control;
        let (mut base, mut key, mut len) = (0, vec![0_u8; room], room);
        let mut arg = sys::fi_mr_raw_attr {
            flags: 0,
            base_addr: &raw mut base,
            raw_key: key.as_mut_ptr(),
            key_size: &raw mut len,
        };
        // SAFETY: the region is open; the argument and its pointers outlive the call.
        let code = unsafe { control(fid, sys::FI_GET_RAW_MR, (&raw mut arg).cast()) };
        Errno::check_int(code).map_err(|e| (e, len))?;
        key.truncate(len);
        Ok((base, key))
    }

    /// `fi_mr_map_raw`.
    pub fn map_raw(domain: &Arc<Domain>, base: u64, key: &[u8]) -> Result<u64> {
        let (mut raw, mut out) = (key.to_vec(), 0);
        let mut arg = sys::fi_mr_map_raw {
            flags: 0,
            base_addr: base,
            raw_key: raw.as_mut_ptr(),
            key_size: raw.len(),
            key: &raw mut out,
        };
        let control = domain.base_ops()?.control;
        // SAFETY: the domain is open; the argument and its pointers outlive the call.
        let code = unsafe { control(domain.raw_fid()?, sys::FI_MAP_RAW_MR, (&raw mut arg).cast()) };
        Errno::check_int(code)?;
        Ok(out)
    }

    /// `fi_mr_unmap_key`.
    pub fn unmap_key(domain: &Arc<Domain>, key: u64) -> Result {
        let mut key = key;
        domain.control_u64(sys::FI_UNMAP_KEY, &mut key)
    }

    /// `fi_mr_refresh` of `bufs`, parts of the region.
    pub fn refresh(&self, bufs: &[Buf], flags: u64) -> Result {
        let iov = iovecs(bufs);
        // SAFETY: all fields are integers and pointers, for which zero is valid.
        let mut arg: sys::fi_mr_modify = unsafe { std::mem::zeroed() };
        arg.flags = flags;
        (arg.attr.mr_iov, arg.attr.iov_count) = (iov.as_ptr(), iov.len());
        let control = self.base_ops()?.control;
        // SAFETY: the region is open; the argument and its pointers outlive the call.
        let code = unsafe { control(self.raw_fid()?, sys::FI_REFRESH, (&raw mut arg).cast()) };
        Errno::check_int(code).map(drop)
    }

    /// `fi_mr_enable`.
    pub fn enable(&self) -> Result {
        self.control_null(sys::FI_ENABLE)
    }
}

/// Returns the attributes of host memory for `fi_mr_regattr`.
fn attributes(mr_iov: *const sys::iovec, iov_count: usize, spec: MrRequest) -> sys::fi_mr_attr {
    sys::fi_mr_attr {
        mr_iov,
        iov_count,
        access: spec.access,
        offset: 0,
        requested_key: spec.key,
        context: ptr::null_mut(),
        auth_key_size: 0,
        auth_key: ptr::null_mut(),
        iface: sys::FI_HMEM_SYSTEM,
        device: sys::fi_mr_device { reserved: 0 },
        hmem_data: ptr::null_mut(),
        page_size: 0,
        base_mr: ptr::null(),
        sub_mr_cnt: 0,
    }
}

pub(super) fn iovecs(bufs: &[Buf]) -> Vec<sys::iovec> {
    bufs.iter().map(|buf| sys::iovec { iov_base: buf.ptr().cast(), iov_len: buf.len() }).collect()
}

fn mr_ops(domain: &Domain) -> Result<(*mut sys::fid, &sys::fi_ops_mr)> {
    let raw = domain.object.raw()?;
    // SAFETY: the domain is open.
    let ops = unsafe { (*raw).mr };
    if ops.is_null() {
        return Err(Errno::ENOSYS);
    }
    // SAFETY: the table of an open domain lives as long as the domain.
    Ok((raw.cast(), unsafe { &*ops }))
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Remote memory access (fi_rma(3)): every slot of `fi_ops_rma`.
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::ptr;

use libfabric_sys as sys;

use super::buf::Buf;
use super::ep::Ep;
use super::errno::{Errno, Result};
use super::mr::iovecs;
use super::msg::descs;

/// Range of remote memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RmaIov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

impl Ep {
    #[inline]
    fn rma_ops(&self) -> Result<(*mut sys::fid_ep, &sys::fi_ops_rma)> {
        let ep = self.object.raw()?;
        // SAFETY: the endpoint is open.
        let ops = unsafe { (*ep).rma };
        if ops.is_null() {
            return Err(Errno::ENOSYS);
        }
        // SAFETY: the table of an open endpoint lives as long as the endpoint.
        Ok((ep, unsafe { &*ops }))
    }

    /// `fi_read`.
    ///
    /// # Errors
    /// Errors of the call.
    #[inline]
    pub fn read(&self, buf: Buf, src: u64, addr: u64, key: u64, context: usize) -> Result {
        let (ep, ops) = self.rma_ops()?;
        let context = ptr::without_provenance_mut(context);
        // SAFETY: the endpoint is open, and the memory is never freed.
        let code = unsafe {
            (ops.read)(ep, buf.ptr().cast(), buf.len(), buf.desc(), src, addr, key, context)
        };
        Errno::check(code).map(drop)
    }

    /// `fi_readv`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn readv(&self, bufs: &[Buf], src: u64, addr: u64, key: u64, context: usize) -> Result {
        let (ep, ops) = self.rma_ops()?;
        let (iov, mut desc) = (iovecs(bufs), descs(bufs));
        let context = ptr::without_provenance_mut(context);
        // SAFETY: the endpoint is open; the lists outlive the call, and the memory is never freed.
        let code = unsafe {
            (ops.readv)(ep, iov.as_ptr(), desc.as_mut_ptr(), iov.len(), src, addr, key, context)
        };
        Errno::check(code).map(drop)
    }

    /// `fi_readmsg`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn readmsg(
        &self,
        bufs: &[Buf],
        src: u64,
        remote: &[RmaIov],
        context: usize,
        flags: u64,
    ) -> Result {
        let (ep, ops) = self.rma_ops()?;
        with_message(bufs, src, remote, context, 0, |msg| {
            // SAFETY: the endpoint is open; the message outlives the call, and the memory is never
            // freed.
            Errno::check(unsafe { (ops.readmsg)(ep, msg, flags) }).map(drop)
        })
    }

    /// `fi_write`.
    ///
    /// # Errors
    /// Errors of the call.
    #[inline]
    pub fn write(&self, buf: Buf, dest: u64, addr: u64, key: u64, context: usize) -> Result {
        let (ep, ops) = self.rma_ops()?;
        let context = ptr::without_provenance_mut(context);
        // SAFETY: the endpoint is open, and the memory is never freed.
        let code = unsafe {
            (ops.write)(ep, buf.ptr().cast(), buf.len(), buf.desc(), dest, addr, key, context)
        };
        Errno::check(code).map(drop)
    }

    /// `fi_writev`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn writev(&self, bufs: &[Buf], dest: u64, addr: u64, key: u64, context: usize) -> Result {
        let (ep, ops) = self.rma_ops()?;
        let (iov, mut desc) = (iovecs(bufs), descs(bufs));
        let context = ptr::without_provenance_mut(context);
        // SAFETY: the endpoint is open; the lists outlive the call, and the memory is never freed.
        let code = unsafe {
            (ops.writev)(ep, iov.as_ptr(), desc.as_mut_ptr(), iov.len(), dest, addr, key, context)
        };
        Errno::check(code).map(drop)
    }

    /// `fi_writemsg`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn writemsg(
        &self,
        bufs: &[Buf],
        dest: u64,
        remote: &[RmaIov],
        context: usize,
        data: u64,
        flags: u64,
    ) -> Result {
        let (ep, ops) = self.rma_ops()?;
        with_message(bufs, dest, remote, context, data, |msg| {
            // SAFETY: the endpoint is open; the message outlives the call, and the memory is never
            // freed.
            Errno::check(unsafe { (ops.writemsg)(ep, msg, flags) }).map(drop)
        })
    }

    /// `fi_inject_write`.
    ///
    /// # Errors
    /// Errors of the call.
    #[inline]
    pub fn inject_write(&self, buf: Buf, dest: u64, addr: u64, key: u64) -> Result {
        let (ep, ops) = self.rma_ops()?;
        // SAFETY: the endpoint is open, and the memory is never freed.
        Errno::check(unsafe { (ops.inject)(ep, buf.ptr().cast(), buf.len(), dest, addr, key) })
            .map(drop)
    }

    /// `fi_writedata`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn writedata(
        &self,
        buf: Buf,
        data: u64,
        dest: u64,
        addr: u64,
        key: u64,
        context: usize,
    ) -> Result {
        let (ep, ops) = self.rma_ops()?;
        let context = ptr::without_provenance_mut(context);
        // SAFETY: the endpoint is open, and the memory is never freed.
        let code = unsafe {
            (ops.writedata)(
                ep,
                buf.ptr().cast(),
                buf.len(),
                buf.desc(),
                data,
                dest,
                addr,
                key,
                context,
            )
        };
        Errno::check(code).map(drop)
    }

    /// `fi_inject_writedata`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn inject_writedata(&self, buf: Buf, data: u64, dest: u64, addr: u64, key: u64) -> Result {
        let (ep, ops) = self.rma_ops()?;
        // SAFETY: the endpoint is open, and the memory is never freed.
        Errno::check(unsafe {
            (ops.injectdata)(ep, buf.ptr().cast(), buf.len(), data, dest, addr, key)
        })
        .map(drop)
    }

    /// `fi_readmsg` or `fi_writemsg` of a null message.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn null_rma_message(&self, write: bool) -> Result {
        let (ep, ops) = self.rma_ops()?;
        let call = if write { ops.writemsg } else { ops.readmsg };
        // SAFETY: the provider refuses a null message.
        Errno::check(unsafe { call(ep, ptr::null(), 0) }).map(drop)
    }
}

fn with_message(
    bufs: &[Buf],
    peer: u64,
    remote: &[RmaIov],
    context: usize,
    data: u64,
    call: impl FnOnce(*const sys::fi_msg_rma) -> Result,
) -> Result {
    let (iov, mut desc) = (iovecs(bufs), descs(bufs));
    let rma: Vec<sys::fi_rma_iov> = remote
        .iter()
        .map(|piece| sys::fi_rma_iov { addr: piece.addr, len: piece.len, key: piece.key })
        .collect();
    let msg = sys::fi_msg_rma {
        msg_iov: iov.as_ptr(),
        desc: desc.as_mut_ptr(),
        iov_count: iov.len(),
        addr: peer,
        rma_iov: rma.as_ptr(),
        rma_iov_count: rma.len(),
        context: ptr::without_provenance_mut(context),
        data,
    };
    call(&raw const msg)
}

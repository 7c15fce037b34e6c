// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tagged messages (fi_tagged(3)): every slot of `fi_ops_tagged`.
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::ptr;

use libfabric_sys as sys;

use super::buf::Buf;
use super::ep::Ep;
use super::errno::{Errno, Result};
use super::mr::iovecs;
use super::msg::descs;

impl Ep {
    #[inline]
    fn tagged_ops(&self) -> Result<(*mut sys::fid_ep, &sys::fi_ops_tagged)> {
        let ep = self.object.raw()?;
        // SAFETY: the endpoint is open.
        let ops = unsafe { (*ep).tagged };
        if ops.is_null() {
            return Err(Errno::ENOSYS);
        }
        // SAFETY: the table of an open endpoint lives as long as the endpoint.
        Ok((ep, unsafe { &*ops }))
    }

    /// `fi_tsend`.
    ///
    /// # Errors
    /// Errors of the call.
    #[inline]
    pub fn tsend(&self, buf: Buf, dest: u64, tag: u64, context: usize) -> Result {
        let (ep, ops) = self.tagged_ops()?;
        let context = ptr::without_provenance_mut(context);
        // SAFETY: the endpoint is open, and the memory is never freed.
        let code =
            unsafe { (ops.send)(ep, buf.ptr().cast(), buf.len(), buf.desc(), dest, tag, context) };
        Errno::check(code).map(drop)
    }

    /// `fi_tsendv`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn tsendv(&self, bufs: &[Buf], dest: u64, tag: u64, context: usize) -> Result {
        let (ep, ops) = self.tagged_ops()?;
        let (iov, mut desc) = (iovecs(bufs), descs(bufs));
        let context = ptr::without_provenance_mut(context);
        // SAFETY: the endpoint is open; the lists outlive the call, and the memory is never freed.
        let code = unsafe {
            (ops.sendv)(ep, iov.as_ptr(), desc.as_mut_ptr(), iov.len(), dest, tag, context)
        };
        Errno::check(code).map(drop)
    }

    /// `fi_tsendmsg`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn tsendmsg(
        &self,
        bufs: &[Buf],
        dest: u64,
        tag: u64,
        context: usize,
        data: u64,
        flags: u64,
    ) -> Result {
        let (ep, ops) = self.tagged_ops()?;
        let (iov, mut desc) = (iovecs(bufs), descs(bufs));
        let msg = sys::fi_msg_tagged {
            msg_iov: iov.as_ptr(),
            desc: desc.as_mut_ptr(),
            iov_count: iov.len(),
            addr: dest,
            tag,
            ignore: 0,
            context: ptr::without_provenance_mut(context),
            data,
        };
        // SAFETY: the endpoint is open; the message and its lists outlive the call, and the memory
        // is never freed.
        Errno::check(unsafe { (ops.sendmsg)(ep, &raw const msg, flags) }).map(drop)
    }

    /// `fi_tinject`.
    ///
    /// # Errors
    /// Errors of the call.
    #[inline]
    pub fn tinject(&self, buf: Buf, dest: u64, tag: u64) -> Result {
        let (ep, ops) = self.tagged_ops()?;
        // SAFETY: the endpoint is open, and the memory is never freed.
        Errno::check(unsafe { (ops.inject)(ep, buf.ptr().cast(), buf.len(), dest, tag) }).map(drop)
    }

    /// `fi_tsenddata`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn tsenddata(&self, buf: Buf, data: u64, dest: u64, tag: u64, context: usize) -> Result {
        let (ep, ops) = self.tagged_ops()?;
        let context = ptr::without_provenance_mut(context);
        // SAFETY: the endpoint is open, and the memory is never freed.
        let code = unsafe {
            (ops.senddata)(ep, buf.ptr().cast(), buf.len(), buf.desc(), data, dest, tag, context)
        };
        Errno::check(code).map(drop)
    }

    /// `fi_tinjectdata`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn tinjectdata(&self, buf: Buf, data: u64, dest: u64, tag: u64) -> Result {
        let (ep, ops) = self.tagged_ops()?;
        // SAFETY: the endpoint is open, and the memory is never freed.
        Errno::check(unsafe { (ops.injectdata)(ep, buf.ptr().cast(), buf.len(), data, dest, tag) })
            .map(drop)
    }

    /// `fi_trecv`.
    ///
    /// # Errors
    /// Errors of the call.
    #[inline]
    pub fn trecv(&self, buf: Buf, src: u64, tag: u64, ignore: u64, context: usize) -> Result {
        let (ep, ops) = self.tagged_ops()?;
        let context = ptr::without_provenance_mut(context);
        // SAFETY: the endpoint is open, and the memory is never freed.
        let code = unsafe {
            (ops.recv)(ep, buf.ptr().cast(), buf.len(), buf.desc(), src, tag, ignore, context)
        };
        Errno::check(code).map(drop)
    }

    /// `fi_trecvv`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn trecvv(&self, bufs: &[Buf], src: u64, tag: u64, ignore: u64, context: usize) -> Result {
        let (ep, ops) = self.tagged_ops()?;
        let (iov, mut desc) = (iovecs(bufs), descs(bufs));
        let context = ptr::without_provenance_mut(context);
        // SAFETY: the endpoint is open; the lists outlive the call, and the memory is never freed.
        let code = unsafe {
            (ops.recvv)(ep, iov.as_ptr(), desc.as_mut_ptr(), iov.len(), src, tag, ignore, context)
        };
        Errno::check(code).map(drop)
    }

    /// `fi_trecvmsg`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn trecvmsg(
        &self,
        bufs: &[Buf],
        src: u64,
        tag: u64,
        ignore: u64,
        context: usize,
        flags: u64,
    ) -> Result {
        let (ep, ops) = self.tagged_ops()?;
        let (iov, mut desc) = (iovecs(bufs), descs(bufs));
        let msg = sys::fi_msg_tagged {
            msg_iov: iov.as_ptr(),
            desc: desc.as_mut_ptr(),
            iov_count: iov.len(),
            addr: src,
            tag,
            ignore,
            context: ptr::without_provenance_mut(context),
            data: 0,
        };
        // SAFETY: the endpoint is open; the message and its lists outlive the call, and the memory
        // is never freed. With FI_PEEK and FI_CLAIM the context is the address of a `Buf` if the
        // caller passes one.
        Errno::check(unsafe { (ops.recvmsg)(ep, &raw const msg, flags) }).map(drop)
    }

    /// `fi_tsendmsg` or `fi_trecvmsg` of a null message.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn null_tagged_message(&self, receive: bool) -> Result {
        let (ep, ops) = self.tagged_ops()?;
        let call = if receive { ops.recvmsg } else { ops.sendmsg };
        // SAFETY: the provider refuses a null message.
        Errno::check(unsafe { call(ep, ptr::null(), 0) }).map(drop)
    }
}

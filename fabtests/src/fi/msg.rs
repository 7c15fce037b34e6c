// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Untagged messages (fi_msg(3)): every slot of `fi_ops_msg`.
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::ptr;

use libfabric_sys as sys;

use super::buf::Buf;
use super::ep::Ep;
use super::errno::{Errno, Result};
use super::mr::iovecs;

impl Ep {
    #[inline]
    fn msg_ops(&self) -> Result<(*mut sys::fid_ep, &sys::fi_ops_msg)> {
        let ep = self.object.raw()?;
        // SAFETY: the endpoint is open.
        let ops = unsafe { (*ep).msg };
        if ops.is_null() {
            return Err(Errno::ENOSYS);
        }
        // SAFETY: the table of an open endpoint lives as long as the endpoint.
        Ok((ep, unsafe { &*ops }))
    }

    /// `fi_send`.
    ///
    /// # Errors
    /// Errors of the call.
    #[inline]
    pub fn send(&self, buf: Buf, dest: u64, context: usize) -> Result {
        let (ep, ops) = self.msg_ops()?;
        let context = ptr::without_provenance_mut(context);
        // SAFETY: the endpoint is open, and the memory is never freed.
        let code =
            unsafe { (ops.send)(ep, buf.ptr().cast(), buf.len(), buf.desc(), dest, context) };
        Errno::check(code).map(drop)
    }

    /// `fi_sendv`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn sendv(&self, bufs: &[Buf], dest: u64, context: usize) -> Result {
        let (ep, ops) = self.msg_ops()?;
        let (iov, mut desc) = (iovecs(bufs), descs(bufs));
        let context = ptr::without_provenance_mut(context);
        // SAFETY: the endpoint is open; the lists outlive the call, and the memory is never freed.
        let code =
            unsafe { (ops.sendv)(ep, iov.as_ptr(), desc.as_mut_ptr(), iov.len(), dest, context) };
        Errno::check(code).map(drop)
    }

    /// `fi_sendmsg`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn sendmsg(
        &self,
        bufs: &[Buf],
        dest: u64,
        context: usize,
        data: u64,
        flags: u64,
    ) -> Result {
        let (ep, ops) = self.msg_ops()?;
        let (iov, mut desc) = (iovecs(bufs), descs(bufs));
        let msg = message(&iov, &mut desc, dest, context, data);
        // SAFETY: the endpoint is open; the message and its lists outlive the call, and the memory
        // is never freed.
        Errno::check(unsafe { (ops.sendmsg)(ep, &raw const msg, flags) }).map(drop)
    }

    /// `fi_inject`.
    ///
    /// # Errors
    /// Errors of the call.
    #[inline]
    pub fn inject(&self, buf: Buf, dest: u64) -> Result {
        let (ep, ops) = self.msg_ops()?;
        // SAFETY: the endpoint is open, and the memory is never freed.
        Errno::check(unsafe { (ops.inject)(ep, buf.ptr().cast(), buf.len(), dest) }).map(drop)
    }

    /// `fi_senddata`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn senddata(&self, buf: Buf, data: u64, dest: u64, context: usize) -> Result {
        let (ep, ops) = self.msg_ops()?;
        let context = ptr::without_provenance_mut(context);
        // SAFETY: the endpoint is open, and the memory is never freed.
        let code = unsafe {
            (ops.senddata)(ep, buf.ptr().cast(), buf.len(), buf.desc(), data, dest, context)
        };
        Errno::check(code).map(drop)
    }

    /// `fi_injectdata`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn injectdata(&self, buf: Buf, data: u64, dest: u64) -> Result {
        let (ep, ops) = self.msg_ops()?;
        // SAFETY: the endpoint is open, and the memory is never freed.
        Errno::check(unsafe { (ops.injectdata)(ep, buf.ptr().cast(), buf.len(), data, dest) })
            .map(drop)
    }

    /// `fi_recv`.
    ///
    /// # Errors
    /// Errors of the call.
    #[inline]
    pub fn recv(&self, buf: Buf, src: u64, context: usize) -> Result {
        let (ep, ops) = self.msg_ops()?;
        let context = ptr::without_provenance_mut(context);
        // SAFETY: the endpoint is open, and the memory is never freed.
        let code = unsafe { (ops.recv)(ep, buf.ptr().cast(), buf.len(), buf.desc(), src, context) };
        Errno::check(code).map(drop)
    }

    /// `fi_recvv`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn recvv(&self, bufs: &[Buf], src: u64, context: usize) -> Result {
        let (ep, ops) = self.msg_ops()?;
        let (iov, mut desc) = (iovecs(bufs), descs(bufs));
        let context = ptr::without_provenance_mut(context);
        // SAFETY: the endpoint is open; the lists outlive the call, and the memory is never freed.
        let code =
            unsafe { (ops.recvv)(ep, iov.as_ptr(), desc.as_mut_ptr(), iov.len(), src, context) };
        Errno::check(code).map(drop)
    }

    /// `fi_recvmsg`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn recvmsg(&self, bufs: &[Buf], src: u64, context: usize, flags: u64) -> Result {
        let (ep, ops) = self.msg_ops()?;
        let (iov, mut desc) = (iovecs(bufs), descs(bufs));
        let msg = message(&iov, &mut desc, src, context, 0);
        // SAFETY: the endpoint is open; the message and its lists outlive the call, and the memory
        // is never freed.
        Errno::check(unsafe { (ops.recvmsg)(ep, &raw const msg, flags) }).map(drop)
    }

    /// `fi_sendmsg` or `fi_recvmsg` of a null message; `fi_sendv` or `fi_recvv` of a null list with
    /// the length `count`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn null_message(&self, subject: NullMessage, count: usize, peer: u64) -> Result {
        let (ep, ops) = self.msg_ops()?;
        let (null, none) = (ptr::null(), ptr::null_mut());
        let code = match subject {
            // SAFETY: the provider refuses a null message.
            NullMessage::Sendmsg => unsafe { (ops.sendmsg)(ep, ptr::null(), 0) },
            // SAFETY: the provider refuses a null message.
            NullMessage::Recvmsg => unsafe { (ops.recvmsg)(ep, ptr::null(), 0) },
            // SAFETY: the provider refuses a null list.
            NullMessage::Sendv => unsafe { (ops.sendv)(ep, null, none, count, peer, none.cast()) },
            // SAFETY: the provider refuses a null list.
            NullMessage::Recvv => unsafe { (ops.recvv)(ep, null, none, count, peer, none.cast()) },
        };
        Errno::check(code).map(drop)
    }
}

/// Calls that take a pointer to a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NullMessage {
    Sendmsg,
    Recvmsg,
    Sendv,
    Recvv,
}

pub(super) fn descs(bufs: &[Buf]) -> Vec<*mut std::ffi::c_void> {
    bufs.iter().map(Buf::desc).collect()
}

fn message(
    iov: &[sys::iovec],
    desc: &mut [*mut std::ffi::c_void],
    peer: u64,
    context: usize,
    data: u64,
) -> sys::fi_msg {
    sys::fi_msg {
        msg_iov: iov.as_ptr(),
        desc: desc.as_mut_ptr(),
        iov_count: iov.len(),
        addr: peer,
        context: ptr::without_provenance_mut(context),
        data,
    }
}

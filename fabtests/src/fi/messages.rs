// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Messages (fi_msg(3)) and tagged messages (fi_tagged(3)): every slot of `fi_ops_msg` and
//! `fi_ops_tagged`.
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
    pub fn tsendmsg(&self, bufs: &[Buf], msg: TaggedMsg, flags: u64) -> Result {
        let (ep, ops) = self.tagged_ops()?;
        let (iov, mut desc) = (iovecs(bufs), descs(bufs));
        let msg = msg.over(&iov, &mut desc);
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
    pub fn trecvmsg(&self, bufs: &[Buf], msg: TaggedMsg, flags: u64) -> Result {
        let (ep, ops) = self.tagged_ops()?;
        let (iov, mut desc) = (iovecs(bufs), descs(bufs));
        let msg = msg.over(&iov, &mut desc);
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

/// Fields of a `struct fi_msg_tagged` besides its buffers.
#[derive(Debug, Clone, Copy)]
pub struct TaggedMsg {
    pub peer: u64,
    pub tag: u64,
    pub ignore: u64,
    pub context: usize,
    pub data: u64,
}

impl TaggedMsg {
    /// Message to send, without CQ data.
    pub const fn to(dest: u64, tag: u64, context: usize) -> TaggedMsg {
        TaggedMsg { peer: dest, tag, ignore: 0, context, data: 0 }
    }

    /// Message to receive.
    pub const fn from(src: u64, tag: u64, ignore: u64, context: usize) -> TaggedMsg {
        TaggedMsg { peer: src, tag, ignore, context, data: 0 }
    }

    fn over(self, iov: &[sys::iovec], desc: &mut [*mut std::ffi::c_void]) -> sys::fi_msg_tagged {
        sys::fi_msg_tagged {
            msg_iov: iov.as_ptr(),
            desc: desc.as_mut_ptr(),
            iov_count: iov.len(),
            addr: self.peer,
            tag: self.tag,
            ignore: self.ignore,
            context: ptr::without_provenance_mut(self.context),
            data: self.data,
        }
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

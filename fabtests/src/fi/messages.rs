// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Messages (fi_msg(3)) and tagged messages (fi_tagged(3)): every slot of `fi_ops_msg` and
//! `fi_ops_tagged`.
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::ptr::{self, without_provenance_mut as ctx};

use libfabric_sys as sys;

use super::buf::Buf;
use super::ep::Ep;
use super::errno::{Result, op};
use super::mr::iovecs;
use super::object::table;

/// Defines the calls with one buffer (`buf`), one buffer that is sent at once (`inject`) or a list
/// of buffers (`list`). A row has the name, the slot, and the arguments between buffer and context.
macro_rules! calls {
    ($($form:ident $call:ident = $ops:ident.$slot:ident($($arg:ident),*);)*) => {
        $(calls! { @$form $call = $ops.$slot($($arg),*); })*
    };
    (@buf $call:ident = $ops:ident.$slot:ident($($arg:ident),*);) => {
        #[inline]
        pub fn $call(&self, buf: Buf, $($arg: u64,)* context: usize) -> Result {
            let (at, len, desc) = buf.parts();
            op!(self.$ops(), $slot(at, len, desc, $($arg,)* ctx(context)))
        }
    };
    (@inject $call:ident = $ops:ident.$slot:ident($($arg:ident),*);) => {
        #[inline]
        pub fn $call(&self, buf: Buf, $($arg: u64),*) -> Result {
            let (at, len, _) = buf.parts();
            op!(self.$ops(), $slot(at, len, $($arg),*))
        }
    };
    (@list $call:ident = $ops:ident.$slot:ident($($arg:ident),*);) => {
        pub fn $call(&self, bufs: &[Buf], $($arg: u64,)* context: usize) -> Result {
            let (iov, mut desc) = (iovecs(bufs), descs(bufs));
            let (list, n, desc) = (iov.as_ptr(), iov.len(), desc.as_mut_ptr());
            op!(self.$ops(), $slot(list, desc, n, $($arg,)* ctx(context)))
        }
    };
}
pub(super) use calls;

impl Ep {
    calls! {
        buf send = msg_ops.send(dest);
        list sendv = msg_ops.sendv(dest);
        inject inject = msg_ops.inject(dest);
        buf senddata = msg_ops.senddata(data, dest);
        inject injectdata = msg_ops.injectdata(data, dest);
        buf recv = msg_ops.recv(src);
        list recvv = msg_ops.recvv(src);
        buf tsend = tagged_ops.send(dest, tag);
        list tsendv = tagged_ops.sendv(dest, tag);
        inject tinject = tagged_ops.inject(dest, tag);
        buf tsenddata = tagged_ops.senddata(data, dest, tag);
        inject tinjectdata = tagged_ops.injectdata(data, dest, tag);
        buf trecv = tagged_ops.recv(src, tag, ignore);
        list trecvv = tagged_ops.recvv(src, tag, ignore);
    }

    table!(pub(super) fn msg_ops: fid_ep.msg -> fi_ops_msg);
    table!(pub(super) fn tagged_ops: fid_ep.tagged -> fi_ops_tagged);

    /// `fi_sendmsg`.
    pub fn sendmsg(
        &self,
        bufs: &[Buf],
        dest: u64,
        context: usize,
        data: u64,
        flags: u64,
    ) -> Result {
        let (iov, mut desc) = (iovecs(bufs), descs(bufs));
        let msg = message(&iov, &mut desc, dest, context, data);
        op!(self.msg_ops(), sendmsg(&raw const msg, flags))
    }

    /// `fi_recvmsg`.
    pub fn recvmsg(&self, bufs: &[Buf], src: u64, context: usize, flags: u64) -> Result {
        let (iov, mut desc) = (iovecs(bufs), descs(bufs));
        let msg = message(&iov, &mut desc, src, context, 0);
        op!(self.msg_ops(), recvmsg(&raw const msg, flags))
    }

    /// `fi_sendmsg` or `fi_recvmsg` of a null message; `fi_sendv` or `fi_recvv` of a null list with
    /// the length `count`. The provider refuses both.
    pub fn null_message(&self, subject: NullMessage, count: usize, peer: u64) -> Result {
        let (null, none) = (ptr::null(), ptr::null_mut());
        match subject {
            NullMessage::Sendmsg => op!(self.msg_ops(), sendmsg(ptr::null(), 0)),
            NullMessage::Recvmsg => op!(self.msg_ops(), recvmsg(ptr::null(), 0)),
            NullMessage::Sendv => op!(self.msg_ops(), sendv(null, none, count, peer, ctx(0))),
            NullMessage::Recvv => op!(self.msg_ops(), recvv(null, none, count, peer, ctx(0))),
        }
    }

    /// `fi_tsendmsg`.
    pub fn tsendmsg(&self, bufs: &[Buf], msg: TaggedMsg, flags: u64) -> Result {
        let (iov, mut desc) = (iovecs(bufs), descs(bufs));
        let msg = msg.over(&iov, &mut desc);
        op!(self.tagged_ops(), sendmsg(&raw const msg, flags))
    }

    /// `fi_trecvmsg`. With `FI_PEEK` and `FI_CLAIM` the context is the address of a `Buf` if the
    /// caller passes one.
    pub fn trecvmsg(&self, bufs: &[Buf], msg: TaggedMsg, flags: u64) -> Result {
        let (iov, mut desc) = (iovecs(bufs), descs(bufs));
        let msg = msg.over(&iov, &mut desc);
        op!(self.tagged_ops(), recvmsg(&raw const msg, flags))
    }

    /// `fi_tsendmsg` or `fi_trecvmsg` of a null message, which the provider refuses.
    pub fn null_tagged_message(&self, receive: bool) -> Result {
        if receive {
            op!(self.tagged_ops(), recvmsg(ptr::null(), 0))
        } else {
            op!(self.tagged_ops(), sendmsg(ptr::null(), 0))
        }
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
            context: ctx(self.context),
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
        context: ctx(context),
        data,
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Remote memory access (fi_rma(3)) and atomic operations on remote memory (fi_atomic(3)): every
//! slot of `fi_ops_rma` and `fi_ops_atomic`.
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::ptr::{self, without_provenance_mut as ctx};

use libfabric_sys as sys;

use super::buf::Buf;
use super::ep::Ep;
use super::errno::{Result, op};
use super::messages::{calls, descs};
use super::mr::iovecs;
use super::object::table;

/// Range of remote memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RmaIov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

/// Fields of a `struct fi_msg_rma` besides its buffers.
#[derive(Debug, Clone, Copy)]
pub struct RmaMsg<'a> {
    pub peer: u64,
    pub remote: &'a [RmaIov],
    pub context: usize,
    pub data: u64,
}

impl RmaMsg<'_> {
    /// Message without CQ data.
    pub const fn at(peer: u64, remote: &[RmaIov], context: usize) -> RmaMsg<'_> {
        RmaMsg { peer, remote, context, data: 0 }
    }
}

/// Local elements. Counts are in elements of the datatype.
#[derive(Debug, Clone, Copy)]
pub struct Ioc {
    pub buf: Buf,
    pub count: usize,
}

/// Remote elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RmaIoc {
    pub addr: u64,
    pub count: usize,
    pub key: u64,
}

/// Target, datatype and operation: the arguments that all calls share.
#[derive(Debug, Clone, Copy)]
pub struct AtomicTarget {
    pub dest: u64,
    pub addr: u64,
    pub key: u64,
    pub datatype: u32,
    pub op: u32,
    pub context: usize,
}

impl AtomicTarget {
    /// Returns the target of a sum of 64-bit numbers.
    pub fn sum(dest: u64, addr: u64, key: u64, context: usize) -> AtomicTarget {
        let (datatype, op) = (sys::FI_UINT64, sys::FI_SUM);
        AtomicTarget { dest, addr, key, datatype, op, context }
    }
}

type Descs = Vec<*mut std::ffi::c_void>;

fn iocs(list: &[Ioc]) -> (Vec<sys::fi_ioc>, Descs) {
    let iov = list.iter().map(|ioc| sys::fi_ioc { addr: ioc.buf.ptr().cast(), count: ioc.count });
    (iov.collect(), list.iter().map(|ioc| ioc.buf.desc()).collect())
}

/// Calls an operation that ends with the arguments that all atomics share.
macro_rules! atomic_op {
    ($ep:ident, $at:ident, $op:ident($($arg:expr),* $(,)?)) => {{
        let at = $at;
        let context = ctx(at.context);
        op!(
            $ep.atomic_ops(),
            $op($($arg,)* at.dest, at.addr, at.key, at.datatype, at.op, context)
        )
    }};
}

impl Ep {
    calls! {
        buf read = rma_ops.read(src, addr, key);
        list readv = rma_ops.readv(src, addr, key);
        buf write = rma_ops.write(dest, addr, key);
        list writev = rma_ops.writev(dest, addr, key);
        inject inject_write = rma_ops.inject(dest, addr, key);
        inject inject_writedata = rma_ops.injectdata(data, dest, addr, key);
    }

    table!(pub(super) fn rma_ops: fid_ep.rma -> fi_ops_rma);
    table!(pub(super) fn atomic_ops: fid_ep.atomic -> fi_ops_atomic);

    /// `fi_readmsg`.
    pub fn readmsg(&self, bufs: &[Buf], msg: RmaMsg<'_>, flags: u64) -> Result {
        with_rma_message(bufs, msg, |msg| op!(self.rma_ops(), readmsg(msg, flags)))
    }

    /// `fi_writemsg`.
    pub fn writemsg(&self, bufs: &[Buf], msg: RmaMsg<'_>, flags: u64) -> Result {
        with_rma_message(bufs, msg, |msg| op!(self.rma_ops(), writemsg(msg, flags)))
    }

    /// `fi_writedata`.
    pub fn writedata(
        &self,
        buf: Buf,
        data: u64,
        dest: u64,
        (addr, key): (u64, u64),
        context: usize,
    ) -> Result {
        let (at, len, desc) = buf.parts();
        op!(self.rma_ops(), writedata(at, len, desc, data, dest, addr, key, ctx(context)))
    }

    /// `fi_readmsg` or `fi_writemsg` of a null message, which the provider refuses.
    pub fn null_rma_message(&self, write: bool) -> Result {
        if write {
            op!(self.rma_ops(), writemsg(ptr::null(), 0))
        } else {
            op!(self.rma_ops(), readmsg(ptr::null(), 0))
        }
    }

    /// `fi_atomic`.
    #[inline]
    pub fn atomic(&self, at: &AtomicTarget, operand: Ioc) -> Result {
        let (buf, _, desc) = operand.buf.parts();
        atomic_op!(self, at, write(buf, operand.count, desc))
    }

    /// `fi_atomicv`.
    pub fn atomicv(&self, at: &AtomicTarget, operand: &[Ioc]) -> Result {
        let (iov, mut desc) = iocs(operand);
        atomic_op!(self, at, writev(iov.as_ptr(), desc.as_mut_ptr(), iov.len()))
    }

    /// `fi_atomicmsg`.
    pub fn atomicmsg(
        &self,
        at: &AtomicTarget,
        operand: &[Ioc],
        remote: &[RmaIoc],
        data: u64,
        flags: u64,
    ) -> Result {
        with_atomic_message(at, operand, remote, data, |msg| {
            op!(self.atomic_ops(), writemsg(msg, flags))
        })
    }

    /// `fi_inject_atomic`.
    #[inline]
    pub fn inject_atomic(&self, at: &AtomicTarget, operand: Ioc) -> Result {
        let (buf, n) = (operand.buf.ptr().cast(), operand.count);
        op!(self.atomic_ops(), inject(buf, n, at.dest, at.addr, at.key, at.datatype, at.op))
    }

    /// `fi_fetch_atomic`.
    #[inline]
    pub fn fetch_atomic(&self, at: &AtomicTarget, operand: Ioc, result: Buf) -> Result {
        let ((buf, _, desc), (to, _, to_desc)) = (operand.buf.parts(), result.parts());
        atomic_op!(self, at, readwrite(buf, operand.count, desc, to, to_desc))
    }

    /// `fi_fetch_atomicv`.
    pub fn fetch_atomicv(&self, at: &AtomicTarget, operand: &[Ioc], result: &[Ioc]) -> Result {
        let ((iov, mut desc), (mut to, mut to_desc)) = (iocs(operand), iocs(result));
        let (n, desc) = (iov.len(), desc.as_mut_ptr());
        let (to, to_n, to_desc) = (to.as_mut_ptr(), to.len(), to_desc.as_mut_ptr());
        atomic_op!(self, at, readwritev(iov.as_ptr(), desc, n, to, to_desc, to_n))
    }

    /// `fi_fetch_atomicmsg`.
    pub fn fetch_atomicmsg(
        &self,
        at: &AtomicTarget,
        operand: &[Ioc],
        remote: &[RmaIoc],
        result: &[Ioc],
        flags: u64,
    ) -> Result {
        let (mut to, mut desc) = iocs(result);
        let (to, n, desc) = (to.as_mut_ptr(), to.len(), desc.as_mut_ptr());
        with_atomic_message(at, operand, remote, 0, |msg| {
            op!(self.atomic_ops(), readwritemsg(msg, to, desc, n, flags))
        })
    }

    /// `fi_compare_atomic`.
    pub fn compare_atomic(
        &self,
        at: &AtomicTarget,
        operand: Ioc,
        compare: Buf,
        result: Buf,
    ) -> Result {
        let (buf, _, desc) = operand.buf.parts();
        let ((with, _, with_desc), (to, _, to_desc)) = (compare.parts(), result.parts());
        atomic_op!(self, at, compwrite(buf, operand.count, desc, with, with_desc, to, to_desc))
    }

    /// `fi_compare_atomicv`.
    pub fn compare_atomicv(
        &self,
        at: &AtomicTarget,
        operand: &[Ioc],
        compare: &[Ioc],
        result: &[Ioc],
    ) -> Result {
        let (iov, mut desc) = iocs(operand);
        let ((with, mut with_desc), (mut to, mut to_desc)) = (iocs(compare), iocs(result));
        let (n, desc) = (iov.len(), desc.as_mut_ptr());
        let (with, with_n, with_desc) = (with.as_ptr(), with.len(), with_desc.as_mut_ptr());
        let (to, to_n, to_desc) = (to.as_mut_ptr(), to.len(), to_desc.as_mut_ptr());
        atomic_op!(
            self,
            at,
            compwritev(iov.as_ptr(), desc, n, with, with_desc, with_n, to, to_desc, to_n)
        )
    }

    /// `fi_compare_atomicmsg`.
    pub fn compare_atomicmsg(
        &self,
        at: &AtomicTarget,
        operand: &[Ioc],
        remote: &[RmaIoc],
        (compare, result): (&[Ioc], &[Ioc]),
        flags: u64,
    ) -> Result {
        let ((with, mut with_desc), (mut to, mut to_desc)) = (iocs(compare), iocs(result));
        let (with, with_n, with_desc) = (with.as_ptr(), with.len(), with_desc.as_mut_ptr());
        let (to, to_n, to_desc) = (to.as_mut_ptr(), to.len(), to_desc.as_mut_ptr());
        with_atomic_message(at, operand, remote, 0, |msg| {
            op!(
                self.atomic_ops(),
                compwritemsg(msg, with, with_desc, with_n, to, to_desc, to_n, flags)
            )
        })
    }

    /// `fi_atomicvalid`, `fi_fetch_atomicvalid` or `fi_compare_atomicvalid`: maximum number of
    /// elements of one operation.
    pub fn atomic_valid(&self, kind: Kind, datatype: u32, op: u32) -> Result<usize> {
        let mut count = 0;
        let at = &raw mut count;
        match kind {
            Kind::Write => op!(self.atomic_ops(), writevalid(datatype, op, at)),
            Kind::Fetch => op!(self.atomic_ops(), readwritevalid(datatype, op, at)),
            Kind::Compare => op!(self.atomic_ops(), compwritevalid(datatype, op, at)),
        }?;
        Ok(count)
    }

    /// `fi_atomicmsg` of a null message, which the provider refuses.
    pub fn null_atomic_message(&self) -> Result {
        op!(self.atomic_ops(), writemsg(ptr::null(), 0))
    }
}

/// The three families of atomic calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Write,
    Fetch,
    Compare,
}

fn with_atomic_message(
    at: &AtomicTarget,
    operand: &[Ioc],
    remote: &[RmaIoc],
    data: u64,
    call: impl FnOnce(*const sys::fi_msg_atomic) -> Result,
) -> Result {
    let (iov, mut desc) = iocs(operand);
    let rma: Vec<sys::fi_rma_ioc> = remote
        .iter()
        .map(|piece| sys::fi_rma_ioc { addr: piece.addr, count: piece.count, key: piece.key })
        .collect();
    let msg = sys::fi_msg_atomic {
        msg_iov: iov.as_ptr(),
        desc: desc.as_mut_ptr(),
        iov_count: iov.len(),
        addr: at.dest,
        rma_iov: rma.as_ptr(),
        rma_iov_count: rma.len(),
        datatype: at.datatype,
        op: at.op,
        context: ctx(at.context),
        data,
    };
    call(&raw const msg)
}

fn with_rma_message(
    bufs: &[Buf],
    fields: RmaMsg<'_>,
    call: impl FnOnce(*const sys::fi_msg_rma) -> Result,
) -> Result {
    let (iov, mut desc) = (iovecs(bufs), descs(bufs));
    let rma: Vec<sys::fi_rma_iov> = fields
        .remote
        .iter()
        .map(|piece| sys::fi_rma_iov { addr: piece.addr, len: piece.len, key: piece.key })
        .collect();
    let msg = sys::fi_msg_rma {
        msg_iov: iov.as_ptr(),
        desc: desc.as_mut_ptr(),
        iov_count: iov.len(),
        addr: fields.peer,
        rma_iov: rma.as_ptr(),
        rma_iov_count: rma.len(),
        context: ctx(fields.context),
        data: fields.data,
    };
    call(&raw const msg)
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Remote memory access (fi_rma(3)) and atomic operations on remote memory (fi_atomic(3)): every
//! slot of `fi_ops_rma` and `fi_ops_atomic`.
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::ptr;

use libfabric_sys as sys;

use super::buf::Buf;
use super::ep::Ep;
use super::errno::{Errno, Result};
use super::messages::descs;
use super::mr::iovecs;

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

type Descs = Vec<*mut std::ffi::c_void>;

fn iocs(list: &[Ioc]) -> (Vec<sys::fi_ioc>, Descs) {
    let iov = list.iter().map(|ioc| sys::fi_ioc { addr: ioc.buf.ptr().cast(), count: ioc.count });
    (iov.collect(), list.iter().map(|ioc| ioc.buf.desc()).collect())
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
    pub fn readmsg(&self, bufs: &[Buf], msg: RmaMsg<'_>, flags: u64) -> Result {
        let (ep, ops) = self.rma_ops()?;
        with_rma_message(bufs, msg, |msg| {
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
    pub fn writemsg(&self, bufs: &[Buf], msg: RmaMsg<'_>, flags: u64) -> Result {
        let (ep, ops) = self.rma_ops()?;
        with_rma_message(bufs, msg, |msg| {
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
        (addr, key): (u64, u64),
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

    #[inline]
    fn atomic_ops(&self) -> Result<(*mut sys::fid_ep, &sys::fi_ops_atomic)> {
        let ep = self.object.raw()?;
        // SAFETY: the endpoint is open.
        let ops = unsafe { (*ep).atomic };
        if ops.is_null() {
            return Err(Errno::ENOSYS);
        }
        // SAFETY: the table of an open endpoint lives as long as the endpoint.
        Ok((ep, unsafe { &*ops }))
    }

    /// `fi_atomic`.
    ///
    /// # Errors
    /// Errors of the call.
    #[inline]
    pub fn atomic(&self, at: &AtomicTarget, operand: Ioc) -> Result {
        let (ep, ops) = self.atomic_ops()?;
        // SAFETY: the endpoint is open, and the memory is never freed.
        let code = unsafe {
            (ops.write)(
                ep,
                operand.buf.ptr().cast(),
                operand.count,
                operand.buf.desc(),
                at.dest,
                at.addr,
                at.key,
                at.datatype,
                at.op,
                ptr::without_provenance_mut(at.context),
            )
        };
        Errno::check(code).map(drop)
    }

    /// `fi_atomicv`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn atomicv(&self, at: &AtomicTarget, operand: &[Ioc]) -> Result {
        let (ep, ops) = self.atomic_ops()?;
        let (iov, mut desc) = iocs(operand);
        // SAFETY: the endpoint is open; the lists outlive the call, and the memory is never freed.
        let code = unsafe {
            (ops.writev)(
                ep,
                iov.as_ptr(),
                desc.as_mut_ptr(),
                iov.len(),
                at.dest,
                at.addr,
                at.key,
                at.datatype,
                at.op,
                ptr::without_provenance_mut(at.context),
            )
        };
        Errno::check(code).map(drop)
    }

    /// `fi_atomicmsg`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn atomicmsg(
        &self,
        at: &AtomicTarget,
        operand: &[Ioc],
        remote: &[RmaIoc],
        data: u64,
        flags: u64,
    ) -> Result {
        let (ep, ops) = self.atomic_ops()?;
        with_atomic_message(at, operand, remote, data, |msg| {
            // SAFETY: the endpoint is open; the message outlives the call, and the memory is never
            // freed.
            Errno::check(unsafe { (ops.writemsg)(ep, msg, flags) }).map(drop)
        })
    }

    /// `fi_inject_atomic`.
    ///
    /// # Errors
    /// Errors of the call.
    #[inline]
    pub fn inject_atomic(&self, at: &AtomicTarget, operand: Ioc) -> Result {
        let (ep, ops) = self.atomic_ops()?;
        // SAFETY: the endpoint is open, and the memory is never freed.
        let code = unsafe {
            (ops.inject)(
                ep,
                operand.buf.ptr().cast(),
                operand.count,
                at.dest,
                at.addr,
                at.key,
                at.datatype,
                at.op,
            )
        };
        Errno::check(code).map(drop)
    }

    /// `fi_fetch_atomic`.
    ///
    /// # Errors
    /// Errors of the call.
    #[inline]
    pub fn fetch_atomic(&self, at: &AtomicTarget, operand: Ioc, result: Buf) -> Result {
        let (ep, ops) = self.atomic_ops()?;
        // SAFETY: the endpoint is open, and the memory is never freed.
        let code = unsafe {
            (ops.readwrite)(
                ep,
                operand.buf.ptr().cast(),
                operand.count,
                operand.buf.desc(),
                result.ptr().cast(),
                result.desc(),
                at.dest,
                at.addr,
                at.key,
                at.datatype,
                at.op,
                ptr::without_provenance_mut(at.context),
            )
        };
        Errno::check(code).map(drop)
    }

    /// `fi_fetch_atomicv`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn fetch_atomicv(&self, at: &AtomicTarget, operand: &[Ioc], result: &[Ioc]) -> Result {
        let (ep, ops) = self.atomic_ops()?;
        let ((iov, mut desc), (mut results, mut result_desc)) = (iocs(operand), iocs(result));
        // SAFETY: the endpoint is open; the lists outlive the call, and the memory is never freed.
        let code = unsafe {
            (ops.readwritev)(
                ep,
                iov.as_ptr(),
                desc.as_mut_ptr(),
                iov.len(),
                results.as_mut_ptr(),
                result_desc.as_mut_ptr(),
                results.len(),
                at.dest,
                at.addr,
                at.key,
                at.datatype,
                at.op,
                ptr::without_provenance_mut(at.context),
            )
        };
        Errno::check(code).map(drop)
    }

    /// `fi_fetch_atomicmsg`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn fetch_atomicmsg(
        &self,
        at: &AtomicTarget,
        operand: &[Ioc],
        remote: &[RmaIoc],
        result: &[Ioc],
        flags: u64,
    ) -> Result {
        let (ep, ops) = self.atomic_ops()?;
        let (mut results, mut desc) = iocs(result);
        with_atomic_message(at, operand, remote, 0, |msg| {
            let (list, count) = (results.as_mut_ptr(), results.len());
            // SAFETY: the endpoint is open; the message and the lists outlive the call, and the
            // memory is never freed.
            let code =
                unsafe { (ops.readwritemsg)(ep, msg, list, desc.as_mut_ptr(), count, flags) };
            Errno::check(code).map(drop)
        })
    }

    /// `fi_compare_atomic`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn compare_atomic(
        &self,
        at: &AtomicTarget,
        operand: Ioc,
        compare: Buf,
        result: Buf,
    ) -> Result {
        let (ep, ops) = self.atomic_ops()?;
        // SAFETY: the endpoint is open, and the memory is never freed.
        let code = unsafe {
            (ops.compwrite)(
                ep,
                operand.buf.ptr().cast(),
                operand.count,
                operand.buf.desc(),
                compare.ptr().cast(),
                compare.desc(),
                result.ptr().cast(),
                result.desc(),
                at.dest,
                at.addr,
                at.key,
                at.datatype,
                at.op,
                ptr::without_provenance_mut(at.context),
            )
        };
        Errno::check(code).map(drop)
    }

    /// `fi_compare_atomicv`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn compare_atomicv(
        &self,
        at: &AtomicTarget,
        operand: &[Ioc],
        compare: &[Ioc],
        result: &[Ioc],
    ) -> Result {
        let (ep, ops) = self.atomic_ops()?;
        let (iov, mut desc) = iocs(operand);
        let (compares, mut compare_desc) = iocs(compare);
        let (mut results, mut result_desc) = iocs(result);
        // SAFETY: the endpoint is open; the lists outlive the call, and the memory is never freed.
        let code = unsafe {
            (ops.compwritev)(
                ep,
                iov.as_ptr(),
                desc.as_mut_ptr(),
                iov.len(),
                compares.as_ptr(),
                compare_desc.as_mut_ptr(),
                compares.len(),
                results.as_mut_ptr(),
                result_desc.as_mut_ptr(),
                results.len(),
                at.dest,
                at.addr,
                at.key,
                at.datatype,
                at.op,
                ptr::without_provenance_mut(at.context),
            )
        };
        Errno::check(code).map(drop)
    }

    /// `fi_compare_atomicmsg`.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn compare_atomicmsg(
        &self,
        at: &AtomicTarget,
        operand: &[Ioc],
        remote: &[RmaIoc],
        (compare, result): (&[Ioc], &[Ioc]),
        flags: u64,
    ) -> Result {
        let (ep, ops) = self.atomic_ops()?;
        let (compares, mut compare_desc) = iocs(compare);
        let (mut results, mut result_desc) = iocs(result);
        with_atomic_message(at, operand, remote, 0, |msg| {
            // SAFETY: the endpoint is open; the message and the lists outlive the call, and the
            // memory is never freed.
            let code = unsafe {
                (ops.compwritemsg)(
                    ep,
                    msg,
                    compares.as_ptr(),
                    compare_desc.as_mut_ptr(),
                    compares.len(),
                    results.as_mut_ptr(),
                    result_desc.as_mut_ptr(),
                    results.len(),
                    flags,
                )
            };
            Errno::check(code).map(drop)
        })
    }

    /// `fi_atomicvalid`, `fi_fetch_atomicvalid` or `fi_compare_atomicvalid`: maximum number of
    /// elements of one operation.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn atomic_valid(&self, kind: Kind, datatype: u32, op: u32) -> Result<usize> {
        let (ep, ops) = self.atomic_ops()?;
        let call = match kind {
            Kind::Write => ops.writevalid,
            Kind::Fetch => ops.readwritevalid,
            Kind::Compare => ops.compwritevalid,
        };
        let mut count = 0;
        // SAFETY: the endpoint is open and `count` is writable.
        Errno::check_int(unsafe { call(ep, datatype, op, &raw mut count) })?;
        Ok(count)
    }

    /// `fi_atomicmsg` of a null message.
    ///
    /// # Errors
    /// Errors of the call.
    pub fn null_atomic_message(&self) -> Result {
        let (ep, ops) = self.atomic_ops()?;
        // SAFETY: the provider refuses a null message.
        Errno::check(unsafe { (ops.writemsg)(ep, ptr::null(), 0) }).map(drop)
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
        context: ptr::without_provenance_mut(at.context),
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
        context: ptr::without_provenance_mut(fields.context),
        data: fields.data,
    };
    call(&raw const msg)
}

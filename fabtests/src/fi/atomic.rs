// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Atomic operations on remote memory (fi_atomic(3)): every slot of `fi_ops_atomic`.
//!
//! Counts are in elements of the datatype, so [`Ioc`] holds a count beside the buffer.
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::ptr;

use libfabric_sys as sys;

use super::buf::Buf;
use super::ep::Ep;
use super::errno::{Errno, Result};

/// Local elements.
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
        with_message(at, operand, remote, data, |msg| {
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
        with_message(at, operand, remote, 0, |msg| {
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
        compare: &[Ioc],
        result: &[Ioc],
        flags: u64,
    ) -> Result {
        let (ep, ops) = self.atomic_ops()?;
        let (compares, mut compare_desc) = iocs(compare);
        let (mut results, mut result_desc) = iocs(result);
        with_message(at, operand, remote, 0, |msg| {
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

fn with_message(
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

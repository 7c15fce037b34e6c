// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Data transfer calls: their errors, and the arguments that each of them passes to the data path.

#![expect(unsafe_code, reason = "calls the tables as C does")]

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use libfabric_sys as fi;

use super::{ALL, BOTH, EpRig, call, errno, fid_call, made};
use crate::base::atomic_ops::MAX_ATOMIC_BYTES;
use crate::base::attr::{INJECT_SIZE, IOV_LIMIT};

#[test]
fn arguments_of_messages_are_checked() {
    let (rig, ep, me) = EpRig::with_itself();
    let big = vec![0u8; INJECT_SIZE + 1];
    let einval = -(fi::FI_EINVAL as isize);
    let badflags = -(fi::FI_EBADFLAGS as isize);
    assert_eq!(call!(ep, msg.inject(big.as_ptr().cast(), big.len(), me)), einval);
    assert_eq!(call!(ep, tagged.injectdata(big.as_ptr().cast(), big.len(), 0, me, 0)), einval);
    assert_eq!(call!(ep, msg.sendmsg(null(), 0)), einval);
    assert_eq!(call!(ep, tagged.recvmsg(null(), 0)), einval);
    assert_eq!(call!(ep, msg.sendv(null(), null_mut(), 1, me, null_mut())), einval);
    let many = [fi::iovec { iov_base: null_mut(), iov_len: 0 }; IOV_LIMIT + 1];
    assert_eq!(call!(ep, msg.sendv(many.as_ptr(), null_mut(), many.len(), me, null_mut())), einval);
    assert_eq!(call!(ep, msg.send(null(), usize::MAX, null_mut(), me, null_mut())), einval);
    let huge = [fi::iovec { iov_base: null_mut(), iov_len: isize::MAX.unsigned_abs() }; 2];
    assert_eq!(call!(ep, msg.sendv(huge.as_ptr(), null_mut(), huge.len(), me, null_mut())), einval);
    let msg = fi::fi_msg { addr: me, ..fi::fi_msg::default() };
    assert_eq!(call!(ep, msg.sendmsg(&raw const msg, fi::FI_PEEK)), badflags);
    assert_eq!(call!(ep, msg.sendmsg(&raw const msg, fi::FI_TRIGGER)), badflags);
    let tagged = fi::fi_msg_tagged { addr: me, ..fi::fi_msg_tagged::default() };
    let trecvmsg = |flags| call!(ep, tagged.recvmsg(&raw const tagged, flags));
    assert_eq!(trecvmsg(fi::FI_INJECT), badflags);
    assert_eq!(trecvmsg(fi::FI_DISCARD), badflags, "neither peeked nor claimed");
    assert_eq!(trecvmsg(fi::FI_MULTI_RECV), badflags);
    assert_eq!(trecvmsg(fi::FI_PEEK | fi::FI_CLAIM), einval, "a claim without a context");
    rig.close(&[ep]);
}

#[test]
fn messages_to_oneself_arrive() {
    let (mut rig, ep, me) = EpRig::with_itself();
    let mut halves = [[0u8; 4]; 2];
    let iov: Vec<fi::iovec> = halves
        .iter_mut()
        .map(|h| fi::iovec { iov_base: h.as_mut_ptr().cast(), iov_len: 4 })
        .collect();
    let context: *mut c_void = (&raw mut rig).cast();
    let src = fi::FI_ADDR_UNSPEC;
    assert_eq!(call!(ep, tagged.recvv(iov.as_ptr(), null_mut(), 2, src, 0x50, 0xf, context)), 0);
    assert_eq!(call!(ep, tagged.injectdata(b"abcdefgh".as_ptr().cast(), 8, 77, me, 0x5a)), 0);
    let done = rig.completions();
    let [c] = done.as_slice() else { panic!("{done:?}") };
    assert_eq!(c.flags, fi::FI_RECV | fi::FI_TAGGED | fi::FI_REMOTE_CQ_DATA);
    assert_eq!((c.op_context, c.len, c.data, c.tag), (context, 8, 77, 0x5a));
    assert_eq!(halves, [*b"abcd", *b"efgh"]);
    rig.close(&[ep]);
}

#[test]
fn arguments_of_atomics_are_checked() {
    let (rig, ep, me) = EpRig::with_itself();
    let mut count = 0;
    assert_eq!(call!(ep, atomic.writevalid(fi::FI_INT64, fi::FI_SUM, &raw mut count)), 0);
    assert_eq!(count, MAX_ATOMIC_BYTES / 8);
    assert_eq!(call!(ep, atomic.writevalid(fi::FI_INT64, fi::FI_SUM, null_mut())), -fi::FI_EINVAL);
    let unsupported = -fi::FI_EOPNOTSUPP;
    assert_eq!(call!(ep, atomic.writevalid(fi::FI_FLOAT, fi::FI_BOR, &raw mut count)), unsupported);
    assert_eq!(
        call!(ep, atomic.writevalid(fi::FI_INT8, fi::FI_ATOMIC_READ, &raw mut count)),
        unsupported
    );
    assert_eq!(
        call!(ep, atomic.readwritevalid(fi::FI_INT8, fi::FI_ATOMIC_READ, &raw mut count)),
        0
    );
    assert_eq!(call!(ep, atomic.compwritevalid(fi::FI_FLOAT, fi::FI_CSWAP_LE, &raw mut count)), 0);
    let buf = vec![0u64; MAX_ATOMIC_BYTES / 8 + 1];
    let post = |count, datatype, op| {
        let buf = buf.as_ptr().cast();
        errno(call!(ep, atomic.write(buf, count, null_mut(), me, 0, 0, datatype, op, null_mut())))
    };
    assert_eq!(post(1, fi::FI_FLOAT, fi::FI_BXOR), fi::FI_EOPNOTSUPP);
    assert_eq!(post(1, fi::FI_INT64, fi::FI_CSWAP), fi::FI_EOPNOTSUPP);
    assert_eq!(post(0, fi::FI_INT64, fi::FI_SUM), fi::FI_EINVAL);
    assert_eq!(post(buf.len(), fi::FI_INT64, fi::FI_SUM), fi::FI_EINVAL);
    assert_eq!(post(usize::MAX / 2, fi::FI_INT64, fi::FI_SUM), fi::FI_EINVAL);
    let ioc = fi::fi_ioc { addr: buf.as_ptr().cast_mut().cast(), count: 2 };
    let range = fi::fi_rma_ioc { addr: 0, count: 1, key: 0 };
    let msg = fi::fi_msg_atomic {
        msg_iov: &raw const ioc,
        iov_count: 1,
        addr: me,
        rma_iov: &raw const range,
        rma_iov_count: 1,
        datatype: fi::FI_INT64,
        op: fi::FI_SUM,
        ..fi::fi_msg_atomic::default()
    };
    assert_eq!(
        errno(call!(ep, atomic.writemsg(&raw const msg, 0))),
        fi::FI_EINVAL,
        "lengths differ"
    );
    rig.close(&[ep]);
}

#[test]
fn remote_and_local_lengths_agree() {
    let (rig, ep, me) = EpRig::with_itself();
    let mut buf = [0u8; 16];
    let iov = fi::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: 16 };
    let range = fi::fi_rma_iov { addr: 0, len: 15, key: 0 };
    let mut msg = fi::fi_msg_rma {
        msg_iov: &raw const iov,
        iov_count: 1,
        addr: me,
        rma_iov: &raw const range,
        rma_iov_count: 1,
        ..fi::fi_msg_rma::default()
    };
    assert_eq!(errno(call!(ep, rma.writemsg(&raw const msg, 0))), fi::FI_EINVAL);
    assert_eq!(errno(call!(ep, rma.readmsg(&raw const msg, fi::FI_INJECT))), fi::FI_EBADFLAGS);
    msg.rma_iov_count = 0;
    assert_eq!(errno(call!(ep, rma.readmsg(&raw const msg, 0))), fi::FI_EINVAL);
    rig.close(&[ep]);
}

/// Registered buffer with its key.
struct TestRegion<T> {
    buf: Box<[T]>,
    mr: *mut fi::fid_mr,
    key: u64,
}

impl<T: Copy> TestRegion<T> {
    fn new(rig: &EpRig, content: &[T], access: u64) -> TestRegion<T> {
        let buf: Box<[T]> = content.into();
        let (at, len) = (buf.as_ptr().cast(), size_of_val(content));
        let mr: *mut fi::fid_mr =
            made(|out| call!(rig.domain, mr.reg(at, len, access, 0, 4711, 0, out, null_mut())))
                .unwrap();
        // SAFETY: an open region.
        let key = unsafe { (*mr).key };
        TestRegion { buf, mr, key }
    }

    /// Returns the current content of the buffer.
    fn content(&self) -> Vec<T> {
        // SAFETY: an element of the buffer; volatile, since the provider changes it without the
        // compiler's knowledge.
        (0..self.buf.len()).map(|at| unsafe { (&raw const self.buf[at]).read_volatile() }).collect()
    }

    fn close(self) {
        assert_eq!(fid_call!(self.mr, close()), 0);
    }
}

#[test]
fn memory_is_written_and_read() {
    let (rig, ep, me) = EpRig::with_itself();
    let region = TestRegion::new(&rig, &[0u8; 64], fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE);
    let (text, key) = (b"0123456789abcdef", region.key);
    let at = text.as_ptr().cast();
    assert_eq!(call!(ep, rma.inject(at, 16, me, 8, key)), 0);
    assert!(rig.completions().is_empty());
    assert_eq!(call!(ep, rma.write(at, 16, null_mut(), me, 40, key, null_mut())), 0);
    let mut back = [[0u8; 10]; 2];
    let iov: Vec<fi::iovec> = back
        .iter_mut()
        .map(|b| fi::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: 10 })
        .collect();
    assert_eq!(call!(ep, rma.readv(iov.as_ptr(), null_mut(), 2, me, 6, key, null_mut())), 0);
    let done: Vec<u64> = rig.completions().iter().map(|c| c.flags).collect();
    assert_eq!(done, [fi::FI_RMA | fi::FI_WRITE, fi::FI_RMA | fi::FI_READ]);
    assert_eq!(back, [*b"\0\x0001234567", *b"89abcdef\0\0"]);
    let content = region.content();
    assert_eq!((&content[8..24], &content[40..56]), (&text[..], &text[..]));
    region.close();
    rig.close(&[ep]);
}

#[test]
fn atomics_fetch_the_old_value() {
    let (mut rig, ep, me) = EpRig::with_itself();
    let region = TestRegion::new(&rig, &[10i64, 20, 30], fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE);
    let (key, i64s) = (region.key, fi::FI_INT64);
    let operands = [1i64, 2, 3];
    let at = operands.as_ptr().cast();
    let mut old = [0i64; 3];
    let result = old.as_mut_ptr().cast();
    let (none, context): (_, *mut c_void) = (null_mut(), (&raw mut rig).cast());
    assert_eq!(call!(ep, atomic.inject(at, 3, me, 0, key, i64s, fi::FI_SUM)), 0);
    assert_eq!(
        call!(
            ep,
            atomic.readwrite(at, 3, none, result, none, me, 0, key, i64s, fi::FI_PROD, context)
        ),
        0
    );
    let done = rig.completions();
    assert_eq!(old, [11, 22, 33]);
    assert_eq!(region.content(), [11, 44, 99]);
    let compare = [11i64, 0, 99];
    let with = compare.as_ptr().cast();
    assert_eq!(
        call!(
            ep,
            atomic.compwrite(
                at,
                3,
                none,
                with,
                none,
                result,
                none,
                me,
                0,
                key,
                i64s,
                fi::FI_CSWAP,
                context
            )
        ),
        0
    );
    let done = [done, rig.completions()].concat();
    assert_eq!(old, [11, 44, 99]);
    assert_eq!(region.content(), [1, 44, 3]);
    let mut read = [0i64; 2];
    let result = read.as_mut_ptr().cast();
    let op = fi::FI_ATOMIC_READ;
    assert_eq!(
        call!(ep, atomic.readwrite(null(), 2, none, result, none, me, 8, key, i64s, op, context)),
        0
    );
    let done = [done, rig.completions()].concat();
    assert_eq!(read, [44, 3]);
    assert!(done.iter().all(|c| c.flags == fi::FI_ATOMIC | fi::FI_READ && c.op_context == context));
    assert_eq!(done.len(), 3);
    region.close();
    rig.close(&[ep]);
}

#[test]
fn selective_completion_asks_each_call() {
    let mut rig = EpRig::new(ALL);
    let ep = rig.enabled(BOTH | fi::FI_SELECTIVE_COMPLETION);
    let me = rig.insert(ep);
    let mut buf = [0u8; 8];
    let mut msg = fi::fi_msg_tagged { addr: me, tag: 1, ..fi::fi_msg_tagged::default() };
    let sends = |flags| call!(ep, tagged.sendmsg(&raw const msg, flags));
    assert_eq!(sends(0), 0);
    assert!(rig.completions().is_empty(), "not asked for");
    assert_eq!(sends(fi::FI_COMPLETION), 0);
    assert_eq!(rig.completions().len(), 1);
    assert_eq!(call!(ep, tagged.send(null(), 0, null_mut(), me, 1, null_mut())), 0);
    assert!(rig.completions().is_empty(), "the endpoint's flags do not ask for it");
    let at = buf.as_mut_ptr().cast();
    assert_eq!(call!(ep, tagged.recv(at, 8, null_mut(), fi::FI_ADDR_UNSPEC, 1, 0, null_mut())), 0);
    assert!(rig.completions().is_empty());
    msg.addr = fi::FI_ADDR_UNSPEC;
    assert_eq!(call!(ep, tagged.recvmsg(&raw const msg, fi::FI_COMPLETION)), 0);
    assert_eq!(rig.completions().len(), 1);
    rig.close(&[ep]);
}

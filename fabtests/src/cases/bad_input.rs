// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Calls with invalid arguments: unknown flags, null pointers, lengths and addresses out of range.
//! Each returns its error number, posts no operation, and leaves the endpoint unchanged. Regions
//! are tested in `bad_rma`, opening and binding in `ep`.

use std::time::Duration;

use scif_fabtests::fi::{NullMessage, Result};
use scif_fabtests::prelude::*;

use super::call_variants::{self, RecvCall, SendCall, Timing};

pub(crate) const CASES: &[Case] = &[
    case("bad_input/unknown_flags", 2, |r| with_peer(r, unknown_flags)),
    case("bad_input/contradicting_flags", 2, |r| with_peer(r, contradictions)),
    case("bad_input/null_messages", 2, |r| with_peer(r, null_messages)),
    case("bad_input/buffers_at_null", 2, |r| with_peer(r, null_buffers)),
    case("bad_input/too_many_pieces", 2, |r| with_peer(r, too_many_pieces)),
    case("bad_input/impossible_lengths", 2, |r| with_peer(r, lengths)),
    case("bad_input/wrong_address", 2, |r| with_peer(r, wrong_address)),
    case("bad_input/no_listener", 2, |r| with_peer(r, no_listener)),
    case("bad_input/cancel_unknown", 2, |r| with_peer(r, cancel_unknown)),
    case("bad_input/atomic_counts", 2, |r| with_peer(r, atomic_counts)),
];

const UNKNOWN: &[u64] = &[1 << 50, 1 << 35, 1 << 62, 1];

/// Executes the invalid calls on rank 0 and then shows that both ranks still work.
fn with_peer(rank: &Rank, misuse: fn(&Rig<'_>) -> Outcome) -> Outcome {
    rank.only_scif("error numbers of another provider")?;
    let caps = sys::FI_MSG | sys::FI_TAGGED | sys::FI_RMA | sys::FI_ATOMIC;
    let rig = Rig::open(
        rank,
        &Spec::caps(caps).with(|spec| {
            spec.hints.tx.msg_order = sys::FI_ORDER_SAS;
            spec.hints.rx.msg_order = sys::FI_ORDER_SAS;
            // The maximum number of list entries.
            spec.hints.tx.iov_limit = 8;
            spec.hints.rx.iov_limit = 8;
        }),
    )?;
    call_variants::plain_message(&rig, 64, Timing::Expected)?;
    if rank.index == 0 {
        misuse(&rig)?;
        rig.silence(Duration::from_millis(10))?;
    }
    rig.barrier()?;
    call_variants::one_message(
        &rig,
        SendCall::Send,
        RecvCall::Recv,
        true,
        100_000,
        Timing::Expected,
    )?;
    call_variants::one_message(
        &rig,
        SendCall::Inject,
        RecvCall::Recv,
        false,
        64,
        Timing::Unexpected,
    )
}

#[track_caller]
fn refused(result: Result, allowed: &[Errno], subject: &str) -> Outcome {
    match result {
        Err(error) if allowed.contains(&error) => Ok(()),
        other => Err(Fail::here(format_args!("{subject}: {other:?}, expected {allowed:?}"))),
    }
}

const FLAGS: &[Errno] = &[Errno::EBADFLAGS];
const VALUE: &[Errno] = &[Errno::EINVAL];

fn unknown_flags(rig: &Rig<'_>) -> Outcome {
    let (ep, to, buf) = (&rig.ep, rig.peer(), Buf::new(8));
    let remote = [RmaIov { addr: 0, len: 8, key: 1 }];
    for &flags in UNKNOWN {
        refused(ep.sendmsg(&[buf], to, 1, 0, flags), FLAGS, "sendmsg")?;
        refused(ep.recvmsg(&[buf], to, 1, flags), FLAGS, "recvmsg")?;
        refused(ep.tsendmsg(&[buf], TaggedMsg::to(to, 1, 1), flags), FLAGS, "tsendmsg")?;
        refused(ep.trecvmsg(&[buf], TaggedMsg::from(to, 1, 0, 1), flags), FLAGS, "trecvmsg")?;
        refused(ep.writemsg(&[buf], RmaMsg::at(to, &remote, 1), flags), FLAGS, "writemsg")?;
        refused(ep.readmsg(&[buf], RmaMsg::at(to, &remote, 1), flags), FLAGS, "readmsg")?;
        let at = target(rig);
        let one = [Ioc { buf, count: 1 }];
        let there = [scif_fabtests::fi::RmaIoc { addr: 0, count: 1, key: 1 }];
        refused(ep.atomicmsg(&at, &one, &there, 0, flags), FLAGS, "atomicmsg")?;
        refused(ep.fetch_atomicmsg(&at, &one, &there, &one, flags), FLAGS, "fetch_atomicmsg")?;
    }
    Ok(())
}

fn target(rig: &Rig<'_>) -> AtomicTarget {
    AtomicTarget::sum(rig.peer(), 0, 1, 1)
}

fn contradictions(rig: &Rig<'_>) -> Outcome {
    let (ep, buf) = (&rig.ep, Buf::new(8));
    let any = sys::FI_ADDR_UNSPEC;
    refused(
        ep.trecvmsg(&[buf], TaggedMsg::from(any, 1, 0, 1), sys::FI_DISCARD),
        FLAGS,
        "discard alone",
    )?;
    let both = sys::FI_PEEK | sys::FI_MULTI_RECV;
    refused(
        ep.trecvmsg(&[buf], TaggedMsg::from(any, 1, 0, 1), both),
        FLAGS,
        "peek and multi-receive",
    )?;
    // A claim of a message that was not found.
    let context = Buf::new(64);
    let claim = ep.trecvmsg(&[buf], TaggedMsg::from(any, 1, 0, context.addr()), sys::FI_CLAIM);
    check!(claim.is_err() || rig.next_error(&rig.rx).is_ok(), "a claim of nothing was taken");
    refused(
        ep.trecvmsg(&[buf], TaggedMsg::from(any, 1, 0, 0), sys::FI_CLAIM),
        VALUE,
        "claim without a context",
    )?;
    let too_long = Buf::new(rig.info.tx().inject_size + 1);
    let inject = ep.sendmsg(&[too_long], rig.peer(), 1, 0, sys::FI_INJECT);
    check!(matches!(inject, Err(e) if e != Errno::EAGAIN), "inject of too much: {inject:?}");
    Ok(())
}

fn null_messages(rig: &Rig<'_>) -> Outcome {
    let ep = &rig.ep;
    refused(ep.null_message(NullMessage::Sendmsg, 0, rig.peer()), VALUE, "sendmsg")?;
    refused(ep.null_message(NullMessage::Recvmsg, 0, rig.peer()), VALUE, "recvmsg")?;
    refused(ep.null_message(NullMessage::Sendv, 2, rig.peer()), VALUE, "sendv")?;
    refused(ep.null_message(NullMessage::Recvv, 2, rig.peer()), VALUE, "recvv")?;
    refused(ep.null_tagged_message(false), VALUE, "tsendmsg")?;
    refused(ep.null_tagged_message(true), VALUE, "trecvmsg")?;
    refused(ep.null_rma_message(false), VALUE, "readmsg")?;
    refused(ep.null_rma_message(true), VALUE, "writemsg")?;
    refused(ep.null_atomic_message(), VALUE, "atomicmsg")
}

/// Tests unmapped buffers of reads and writes. Receive buffers are not checked before a message
/// arrives.
fn null_buffers(rig: &Rig<'_>) -> Outcome {
    const FAULT: &[Errno] = &[Errno::EFAULT];
    let (ep, to) = (&rig.ep, rig.peer());
    for len in [8, 100_000] {
        let null = Buf::null(len);
        refused(ep.send(null, to, 1), FAULT, "send")?;
        refused(ep.tsend(null, to, 1, 1), FAULT, "tsend")?;
        refused(ep.write(null, to, 0, 1, 1), FAULT, "write")?;
        refused(ep.read(null, to, 0, 1, 1), FAULT, "read")?;
    }
    let (at, one) = (target(rig), Buf::new(8));
    let ioc = |buf| Ioc { buf, count: 1 };
    let null = Buf::null(8);
    refused(ep.atomic(&at, ioc(null)), FAULT, "atomic")?;
    refused(ep.fetch_atomic(&at, ioc(one), null), FAULT, "fetch_atomic")?;
    let at = AtomicTarget { op: sys::FI_CSWAP, ..target(rig) };
    refused(ep.compare_atomic(&at, ioc(one), null, one), FAULT, "compare_atomic's comparand")?;
    refused(ep.compare_atomic(&at, ioc(one), one, null), FAULT, "compare_atomic's result")
}

fn too_many_pieces(rig: &Rig<'_>) -> Outcome {
    let (ep, to) = (&rig.ep, rig.peer());
    let bufs = |limit: usize| vec![Buf::new(4); limit + 1];
    let (tx, rx) = (bufs(rig.info.tx().iov_limit), bufs(rig.info.rx().iov_limit));
    refused(ep.sendv(&tx, to, 1), VALUE, "sendv")?;
    refused(ep.sendmsg(&tx, to, 1, 0, 0), VALUE, "sendmsg")?;
    refused(ep.recvv(&rx, to, 1), VALUE, "recvv")?;
    refused(ep.recvmsg(&rx, to, 1, 0), VALUE, "recvmsg")?;
    refused(ep.tsendv(&tx, to, 1, 1), VALUE, "tsendv")?;
    refused(ep.trecvv(&rx, to, 1, 0, 1), VALUE, "trecvv")?;
    refused(ep.writev(&tx, to, 0, 1, 1), VALUE, "writev")?;
    refused(ep.readv(&tx, to, 0, 1, 1), VALUE, "readv")?;
    let remote = vec![RmaIov { addr: 0, len: 4, key: 1 }; rig.info.tx().rma_iov_limit + 1];
    let whole = [Buf::new(4 * remote.len())];
    refused(ep.writemsg(&whole, RmaMsg::at(to, &remote, 1), 0), VALUE, "writemsg")?;
    refused(ep.readmsg(&whole, RmaMsg::at(to, &remote, 1), 0), VALUE, "readmsg")
}

fn lengths(rig: &Rig<'_>) -> Outcome {
    let (ep, to) = (&rig.ep, rig.peer());
    let huge = Buf::null(usize::MAX);
    refused(ep.send(huge, to, 1), &[Errno::EINVAL, Errno::EMSGSIZE], "send")?;
    refused(ep.tsend(huge, to, 1, 1), &[Errno::EINVAL, Errno::EMSGSIZE], "tsend")?;
    refused(ep.inject(huge, to), &[Errno::EINVAL, Errno::EMSGSIZE], "inject")?;
    refused(ep.write(huge, to, 0, 1, 1), &[Errno::EINVAL, Errno::EMSGSIZE], "write")?;
    refused(ep.recv(huge, to, 1), VALUE, "recv")?;
    let half = Buf::null(usize::MAX / 2);
    refused(ep.sendv(&[half, half, half], to, 1), &[Errno::EINVAL, Errno::EMSGSIZE], "sendv")?;
    // Both sides of an RMA must have the same length.
    let remote = [RmaIov { addr: 0, len: 4, key: 1 }];
    refused(ep.writemsg(&[Buf::new(8)], RmaMsg::at(to, &remote, 1), 0), VALUE, "8 bytes into 4")?;
    refused(ep.readmsg(&[Buf::new(8)], RmaMsg::at(to, &remote, 1), 0), VALUE, "4 bytes into 8")
}

fn wrong_address(rig: &Rig<'_>) -> Outcome {
    let (ep, buf) = (&rig.ep, Buf::new(8));
    const ADDRESS: &[Errno] = &[Errno::EINVAL, Errno::EADDRNOTAVAIL];
    for to in [2, 77, 1 << 20, 1 << 40, u64::MAX - 1, sys::FI_ADDR_NOTAVAIL] {
        refused(ep.send(buf, to, 1), ADDRESS, "send")?;
        refused(ep.inject(buf, to), ADDRESS, "inject")?;
        refused(ep.sendmsg(&[buf], to, 1, 0, 0), ADDRESS, "sendmsg")?;
        refused(ep.tsend(buf, to, 1, 1), ADDRESS, "tsend")?;
        refused(ep.write(buf, to, 0, 1, 1), ADDRESS, "write")?;
        refused(ep.read(buf, to, 0, 1, 1), ADDRESS, "read")?;
        let at = AtomicTarget { dest: to, ..target(rig) };
        refused(ep.atomic(&at, Ioc { buf, count: 1 }), ADDRESS, "atomic")?;
    }
    Ok(())
}

/// Tests an address without a listener: the operation ends with an error.
fn no_listener(rig: &Rig<'_>) -> Outcome {
    let other = scif_fabtests::fi::Ep::open(&rig.domain, &rig.info)?;
    let name = other.name()?;
    drop(other);
    let absent = rig.av.insert(&name)?;
    for size in [8, 100_000] {
        let error = rig.failure(&rig.tx, 5, || rig.ep.send(Buf::new(size), absent, 5))?;
        check_eq!(error, Errno::ECONNREFUSED);
    }
    rig.failure(&rig.tx, 6, || rig.ep.write(Buf::new(8), absent, 0, 1, 6))?;
    Ok(())
}

fn cancel_unknown(rig: &Rig<'_>) -> Outcome {
    for context in [0, 1, 0xdead_beef, usize::MAX] {
        let answer = rig.ep.cancel(context);
        check!(matches!(answer, Ok(()) | Err(Errno::ENOENT)), "{answer:?}");
    }
    Ok(())
}

fn atomic_counts(rig: &Rig<'_>) -> Outcome {
    let (ep, buf) = (&rig.ep, Buf::new(64));
    let at = target(rig);
    for count in [0, usize::MAX, usize::MAX / 8, 1 << 40] {
        let result = ep.atomic(&at, Ioc { buf, count });
        check!(matches!(result, Err(e) if e != Errno::EAGAIN), "{count} elements: {result:?}");
    }
    // The number of fetched elements must equal the number of operands.
    let one = [Ioc { buf, count: 1 }];
    let two = [Ioc { buf, count: 2 }];
    refused(ep.fetch_atomicv(&at, &one, &two), VALUE, "two results of one element")?;
    let cswap = AtomicTarget { op: sys::FI_CSWAP, ..at };
    refused(ep.compare_atomicv(&cswap, &one, &two, &one), VALUE, "two comparisons of one element")
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! `FI_MATCH_COMPLETE`: a send completes once the target has matched or discarded its message, not
//! before. Mirrors fi_cq(3) and fi_tagged(3).
//!
//! Sizes and data of such messages are tested in `msg` and `tagged`.

use std::time::Duration;

use scif_fabtests::prelude::*;

use super::call_variants::{self, Msg, SendCall};
use super::peek;

pub(crate) const CASES: &[Case] = &[
    case("match/waits_for_the_receive", 2, |r| waits(&Rig::open(r, &spec())?)),
    case("match/waits_for_the_discard", 2, |r| discarded(&Rig::open(r, &spec())?)),
    case("match/to_itself", 1, |r| to_itself(&Rig::open(r, &spec())?)),
    case("match/counters", 2, counters),
    case("match/peer_dies", 2, |r| peer_dies(&Rig::open(r, &spec())?)),
];

/// Message sizes: inline in a slot, with a body, and two that the receiver fetches.
const SIZES: [usize; 4] = [8, 4096, 65_536, 1 << 20];
/// Time in which a premature completion would appear.
const SILENCE: Duration = Duration::from_millis(20);

/// Flags of the endpoint, of the call, and the flags that MPICH uses.
const WAYS: [SendCall; 3] = [
    SendCall::Send,
    SendCall::Flags(sys::FI_MATCH_COMPLETE),
    SendCall::Flags(sys::FI_MATCH_COMPLETE | sys::FI_DELIVERY_COMPLETE),
];

fn spec() -> Spec {
    Spec::caps(sys::FI_MSG | sys::FI_TAGGED)
        .with(|spec| spec.hints.tx.op_flags = sys::FI_MATCH_COMPLETE)
}

/// Sends `buf` from `rig`, with `context`.
fn send(
    rig: &Rig<'_>,
    way: SendCall,
    tag: Option<u64>,
    buf: Buf,
    dest: u64,
    context: usize,
) -> Outcome {
    let letter = Msg { buf, dest, tag, context, data: 0 };
    rig.post(|| call_variants::send(rig, way, &letter))
}

/// Posts a receive for the message of [`send`].
fn receive(rig: &Rig<'_>, tag: Option<u64>, buf: Buf, context: usize) -> Outcome {
    rig.post(|| match tag {
        Some(tag) => rig.inbox.trecv(buf, sys::FI_ADDR_UNSPEC, tag, 0, context),
        None => rig.inbox.recv(buf, sys::FI_ADDR_UNSPEC, context),
    })
}

fn waits(rig: &Rig<'_>) -> Outcome {
    for way in WAYS {
        for tag in [None, Some(7)] {
            for size in SIZES {
                if rig.rank.index == 0 {
                    send(rig, way, tag, Buf::pattern(size, 1), rig.peer(), 1)?;
                    rig.silence(SILENCE)?;
                    rig.barrier()?;
                    rig.sent(1)?;
                } else {
                    rig.barrier()?;
                    let buf = Buf::new(size);
                    receive(rig, tag, buf, 2)?;
                    rig.received(2)?;
                    call_variants::check_bytes(&buf, size, 1, 0)?;
                }
                rig.barrier()?;
            }
        }
    }
    Ok(())
}

/// Tests that a peeked message stays incomplete, also when claimed, and that a discarded message is
/// complete.
fn discarded(rig: &Rig<'_>) -> Outcome {
    for way in WAYS {
        for size in SIZES {
            if rig.rank.index == 0 {
                for tag in [1, 2] {
                    send(rig, way, Some(tag), Buf::pattern(size, tag), rig.peer(), 1)?;
                }
                rig.barrier()?;
                rig.silence(SILENCE)?;
                rig.barrier()?;
                rig.sent(1)?;
                rig.sent(1)?;
            } else {
                let (looked_at, claimed) = (peek::context(), peek::context());
                peek::find(rig, 1, 0, looked_at)?;
                peek::find(rig, 2, sys::FI_CLAIM, claimed)?;
                rig.barrier()?;
                rig.barrier()?;
                peek::find(rig, 1, sys::FI_DISCARD, looked_at)?;
                let buf = Buf::new(size);
                check_eq!(peek::take(rig, buf, 0, claimed)?.len, size);
                call_variants::check_bytes(&buf, size, 2, 0)?;
            }
            rig.barrier()?;
        }
    }
    Ok(())
}

fn to_itself(rig: &Rig<'_>) -> Outcome {
    for way in WAYS {
        for size in SIZES {
            send(rig, way, Some(3), Buf::pattern(size, 3), rig.to(0), 1)?;
            rig.silence(SILENCE)?;
            let buf = Buf::new(size);
            receive(rig, Some(3), buf, 2)?;
            rig.received(2)?;
            rig.sent(1)?;
            call_variants::check_bytes(&buf, size, 3, 0)?;
        }
    }
    Ok(())
}

/// Tests that counters count such sends at their completion, also without an entry in the queue.
fn counters(rank: &Rank) -> Outcome {
    let rig = Rig::open(
        rank,
        &spec().with(|spec| {
            spec.selective = true;
            spec.counters = sys::FI_SEND;
        }),
    )?;
    for (done, size) in (0..).zip(SIZES) {
        if rank.index == 0 {
            send(&rig, SendCall::Send, Some(4), Buf::pattern(size, 1), rig.peer(), 1)?;
            rig.silence(SILENCE)?;
            check_eq!(rig.counter(sys::FI_SEND)?.read()?, done);
            rig.barrier()?;
            rig.counted(sys::FI_SEND, done + 1)?;
        } else {
            rig.barrier()?;
            let flags = sys::FI_COMPLETION;
            let buf = Buf::new(size);
            rig.post(|| {
                rig.inbox.trecvmsg(&[buf], TaggedMsg::from(sys::FI_ADDR_UNSPEC, 4, 0, 2), flags)
            })?;
            rig.received(2)?;
        }
        rig.barrier()?;
    }
    Ok(())
}

/// Tests the death of a peer with unmatched messages: their sends fail.
fn peer_dies(rig: &Rig<'_>) -> Outcome {
    if rig.rank.index == 1 {
        // When the last message has arrived, all have.
        receive(rig, Some(9), Buf::new(8), 9)?;
        rig.received(9)?;
        rig.rank.expect_death()?;
        rig.barrier()?;
        return sandbox::die();
    }
    for (context, size) in SIZES.into_iter().enumerate() {
        send(rig, SendCall::Send, Some(8), Buf::pattern(size, 1), rig.to(1), context)?;
    }
    send(rig, SendCall::Send, Some(9), Buf::new(8), rig.to(1), 9)?;
    rig.sent(9)?;
    rig.barrier()?;
    rig.rank.kill(1)?;
    let mut failed = Vec::new();
    for _ in SIZES {
        let error = rig.next_error(&rig.tx)?;
        check!(
            matches!(error.err, Errno::ECONNRESET | Errno::EHOSTUNREACH | Errno::ENOTCONN),
            "{error:?}"
        );
        failed.push(error.context);
    }
    failed.sort_unstable();
    check_eq!(failed, [0, 1, 2, 3]);
    Ok(())
}

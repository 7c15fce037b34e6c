// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tagged messages: every call, and tag matching. Mirrors fi_tagged(3).

use std::time::Duration;

use scif_fabtests::prelude::*;

use super::call_variants::{self, RecvCall, SendCall, Timing};

pub(crate) const CASES: &[Case] = &[
    case("tagged/send", 2, |r| sizes(r, SendCall::Send, RecvCall::Recv)),
    case("tagged/sendv", 2, |r| sizes(r, SendCall::Sendv, RecvCall::Recv)),
    case("tagged/sendmsg", 2, |r| sizes(r, SendCall::Sendmsg, RecvCall::Recv)),
    case("tagged/inject", 2, |r| sizes(r, SendCall::Inject, RecvCall::Recv)),
    case("tagged/senddata", 2, |r| sizes(r, SendCall::Senddata, RecvCall::Recv)),
    case("tagged/injectdata", 2, |r| sizes(r, SendCall::Injectdata, RecvCall::Recv)),
    case("tagged/recvv", 2, |r| sizes(r, SendCall::Sendv, RecvCall::Recvv)),
    case("tagged/recvmsg", 2, |r| sizes(r, SendCall::Send, RecvCall::Recvmsg)),
    case("tagged/sendmsg_cq_data", 2, |r| {
        sizes(r, SendCall::Flags(sys::FI_REMOTE_CQ_DATA), RecvCall::Recvmsg)
    }),
    case("tagged/sendmsg_inject", 2, |r| sizes(r, SendCall::Flags(sys::FI_INJECT), RecvCall::Recv)),
    case("tagged/delivery_complete", 2, |r| {
        sizes(r, SendCall::Flags(sys::FI_DELIVERY_COMPLETE), RecvCall::Recv)
    }),
    case("tagged/match_complete", 2, |r| {
        sizes(r, SendCall::Flags(sys::FI_MATCH_COMPLETE), RecvCall::Recv)
    }),
    case("tagged/transmit_complete", 2, |r| {
        sizes(r, SendCall::Flags(sys::FI_TRANSMIT_COMPLETE), RecvCall::Recv)
    }),
    case("tagged/reverse_tags", 2, reverse_tags),
    case("tagged/ignore_bits", 2, |r| ignore_bits(&Rig::open(r, &spec())?)),
    case("tagged/same_tag_in_order", 2, |r| same_tag(&Rig::open(r, &spec())?)),
    case("tagged/not_mixed_with_msg", 2, not_mixed),
    case("tagged/all_64_bits", 2, |r| all_bits(&Rig::open(r, &spec())?)),
    case("tagged/truncation", 2, |r| truncation(&Rig::open(r, &spec())?)),
    case("tagged/cancel", 2, |r| cancel(&Rig::open(r, &spec())?)),
    case("tagged/directed", 3, directed),
    case("tagged/source_ignored_without_cap", 2, |r| undirected(&Rig::open(r, &spec())?)),
    case("tagged/to_itself", 1, |r| to_itself(&Rig::open(r, &spec())?)),
    case("tagged/null_buffer", 2, |r| null_buffer(&Rig::open(r, &spec())?)),
];

fn spec() -> Spec {
    Spec::messages(true)
}

fn sizes(rank: &Rank, way: SendCall, into: RecvCall) -> Outcome {
    let flags = match way {
        SendCall::Flags(flags) => {
            flags & (sys::FI_TRANSMIT_COMPLETE | sys::FI_DELIVERY_COMPLETE | sys::FI_MATCH_COMPLETE)
        }
        _ => 0,
    };
    let rig = Rig::open(rank, &spec().with(|spec| spec.hints.tx.op_flags = flags))?;
    call_variants::every_size(&rig, way, into, true)
}

/// Tests receives in the reverse order of arrival.
fn reverse_tags(rank: &Rank) -> Outcome {
    const COUNT: usize = 200;
    let rig = Rig::open(rank, &spec())?;
    for size in [8, 3000, 80_000] {
        if rank.index == 0 {
            for tag in 0..COUNT {
                let buf = Buf::pattern(size, tag as u64);
                rig.post(|| rig.ep.tsend(buf, rig.peer(), tag as u64, tag))?;
            }
            rig.barrier()?;
            for _ in 0..COUNT {
                rig.next(&rig.tx)?;
            }
        } else {
            rig.barrier()?;
            for tag in (0..COUNT).rev() {
                let buf = Buf::new(size);
                rig.post(|| rig.inbox.trecv(buf, sys::FI_ADDR_UNSPEC, tag as u64, 0, tag))?;
                call_variants::check_received(&rig.received(tag)?, size, Some(tag as u64), None)?;
                call_variants::check_bytes(&buf, size, tag as u64, 0)?;
            }
        }
        rig.barrier()?;
    }
    Ok(())
}

/// Tests that ignored bits match any value, the others must be equal, and the oldest matching
/// receive is taken.
fn ignore_bits(rig: &Rig<'_>) -> Outcome {
    let (exact, low, all) = (0x10_0000_0001, 0x10_0000_00ff, u64::MAX);
    if rig.rank.index == 0 {
        rig.barrier()?;
        for tag in [0x10_0000_0001_u64, 0x10_0000_0077, 0xdead, 0x10_0000_0001] {
            rig.complete(1, || rig.ep.tsend(Buf::new(4), rig.peer(), tag, 1))?;
        }
    } else {
        let buf = Buf::new(4);
        rig.post(|| rig.inbox.trecv(buf, sys::FI_ADDR_UNSPEC, exact, 0, 1))?;
        rig.post(|| rig.inbox.trecv(buf, sys::FI_ADDR_UNSPEC, low & !0xff, 0xff, 2))?;
        rig.post(|| rig.inbox.trecv(buf, sys::FI_ADDR_UNSPEC, 0, all, 3))?;
        rig.post(|| rig.inbox.trecv(buf, sys::FI_ADDR_UNSPEC, exact, 0, 4))?;
        rig.barrier()?;
        for (context, tag) in [(1, exact), (2, 0x10_0000_0077), (3, 0xdead), (4, exact)] {
            check_eq!(rig.received(context)?.tag, tag);
        }
    }
    rig.barrier()?;
    // Again with unexpected messages.
    if rig.rank.index == 0 {
        for tag in [5_u64, 6, 7] {
            rig.post(|| rig.ep.tinject(Buf::new(4), rig.peer(), tag))?;
        }
        rig.barrier()?;
    } else {
        rig.barrier()?;
        let buf = Buf::new(4);
        for (tag, ignore, want) in [(4, 3, 5), (0, u64::MAX, 6), (7, 0, 7)] {
            rig.post(|| rig.inbox.trecv(buf, sys::FI_ADDR_UNSPEC, tag, ignore, 9))?;
            check_eq!(rig.received(9)?.tag, want);
        }
    }
    rig.barrier()
}

/// Tests that messages with equal tags stay in order, small and large ones mixed.
fn same_tag(rig: &Rig<'_>) -> Outcome {
    let sizes = [3, 200_000, 64, 17_000, 0, 4096, 1 << 20, 9];
    if rig.rank.index == 0 {
        for (index, &size) in sizes.iter().enumerate() {
            let buf = Buf::pattern(size, index as u64);
            rig.post(|| rig.ep.tsend(buf, rig.peer(), 5, index))?;
        }
        rig.barrier()?;
        for _ in sizes {
            rig.next(&rig.tx)?;
        }
    } else {
        rig.barrier()?;
        for (index, &size) in sizes.iter().enumerate() {
            let buf = Buf::new(size);
            rig.post(|| rig.inbox.trecv(buf, sys::FI_ADDR_UNSPEC, 5, 0, index))?;
            check_eq!(rig.received(index)?.len, size);
            call_variants::check_bytes(&buf, size, index as u64, 0)?;
        }
    }
    rig.barrier()
}

/// Tests that tagged and untagged messages never match receives of the other kind.
fn not_mixed(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &spec().with(|spec| spec.hints.caps |= sys::FI_MSG))?;
    if rank.index == 0 {
        rig.barrier()?;
        rig.complete(1, || rig.ep.tsend(Buf::pattern(32, 1), rig.peer(), 0, 1))?;
        rig.complete(2, || rig.ep.send(Buf::pattern(32, 2), rig.peer(), 2))?;
    } else {
        let (plain, tagged) = (Buf::new(32), Buf::new(32));
        rig.post(|| rig.inbox.recv(plain, sys::FI_ADDR_UNSPEC, 1))?;
        rig.post(|| rig.inbox.trecv(tagged, sys::FI_ADDR_UNSPEC, 0, u64::MAX, 2))?;
        rig.barrier()?;
        let (a, b) = (rig.next(&rig.rx)?, rig.next(&rig.rx)?);
        check_eq!(a.context + b.context, 3);
        call_variants::check_bytes(&tagged, 32, 1, 0)?;
        call_variants::check_bytes(&plain, 32, 2, 0)?;
    }
    rig.barrier()
}

/// Tests that every bit of a tag counts.
fn all_bits(rig: &Rig<'_>) -> Outcome {
    let format = rig.info.ep().mem_tag_format;
    let usable: Vec<u64> = (0..64).map(|bit| 1_u64 << bit).filter(|bit| *bit <= format).collect();
    for &tag in &usable {
        if rig.rank.index == 0 {
            rig.post(|| rig.ep.tsend(Buf::new(1), rig.peer(), tag, 1))?;
        } else {
            rig.post(|| rig.inbox.trecv(Buf::new(1), sys::FI_ADDR_UNSPEC, tag, 0, 1))?;
        }
    }
    for _ in &usable {
        if rig.rank.index == 0 {
            rig.sent(1)?;
        } else {
            rig.received(1)?;
        }
    }
    rig.barrier()
}

fn truncation(rig: &Rig<'_>) -> Outcome {
    for (sent, room) in [(64, 10), (20_000, 4096), (1 << 20, 1000)] {
        if rig.rank.index == 0 {
            let buf = Buf::pattern(sent, 4);
            rig.post(|| rig.ep.tsend(buf, rig.peer(), 8, 1))?;
            rig.barrier()?;
            rig.sent(1)?;
        } else {
            rig.barrier()?;
            let buf = Buf::new(room);
            rig.post(|| rig.inbox.trecv(buf, sys::FI_ADDR_UNSPEC, 8, 0, 2))?;
            let error = rig.next_error(&rig.rx)?;
            check_eq!((error.err, error.context, error.olen), (Errno::ETRUNC, 2, sent - room));
            check_eq!(error.tag, 8);
        }
        rig.barrier()?;
    }
    call_variants::one_message(rig, SendCall::Send, RecvCall::Recv, true, 100, Timing::Expected)
}

fn cancel(rig: &Rig<'_>) -> Outcome {
    if rig.rank.index == 1 {
        for (tag, context) in [(0, 100), (1, 101), (2, 102), (3, 103)] {
            rig.post(|| rig.inbox.trecv(Buf::new(8), sys::FI_ADDR_UNSPEC, tag, 0, context))?;
        }
        for context in [102, 100] {
            rig.inbox.cancel(context)?;
            let error = rig.next_error(&rig.rx)?;
            check_eq!((error.err, error.context), (Errno::ECANCELED, context));
        }
        rig.silence(Duration::from_millis(20))?;
        rig.barrier()?;
        rig.received(101)?;
        rig.received(103)?;
    } else {
        rig.barrier()?;
        for tag in [1, 3] {
            rig.complete(1, || rig.ep.tsend(Buf::new(8), rig.peer(), tag, 1))?;
        }
    }
    rig.barrier()
}

fn directed(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &spec().with(|spec| spec.hints.caps |= sys::FI_DIRECTED_RECV))?;
    for size in [8, 100_000] {
        if rank.index == 0 {
            let (from_two, from_one) = (Buf::new(size), Buf::new(size));
            rig.post(|| rig.inbox.trecv(from_two, rig.to(2), 1, 0, 2))?;
            rig.barrier()?;
            // Both have sent. The message of rank 1 waits although a receive with its tag is
            // posted.
            rig.received(2)?;
            rig.post(|| rig.inbox.trecv(from_one, rig.to(1), 1, 0, 1))?;
            rig.received(1)?;
            call_variants::check_bytes(&from_one, size, 1, 0)?;
            call_variants::check_bytes(&from_two, size, 2, 0)?;
        } else {
            rig.barrier()?;
            let buf = Buf::pattern(size, rank.index as u64);
            rig.complete(5, || rig.ep.tsend(buf, rig.to(0), 1, 5))?;
        }
        rig.barrier()?;
    }
    Ok(())
}

/// Tests that without `FI_DIRECTED_RECV` the source of a receive is ignored.
fn undirected(rig: &Rig<'_>) -> Outcome {
    if rig.info.caps() & sys::FI_DIRECTED_RECV != 0 {
        return Ok(());
    }
    if rig.rank.index == 0 {
        rig.complete(1, || rig.ep.tsend(Buf::new(8), rig.peer(), 1, 1))?;
    } else {
        rig.post(|| rig.inbox.trecv(Buf::new(8), rig.to(1), 1, 0, 1))?;
        rig.received(1)?;
    }
    rig.barrier()
}

fn to_itself(rig: &Rig<'_>) -> Outcome {
    for &size in call_variants::SIZES {
        let (from, to) = (Buf::pattern(size, 3), Buf::new(size));
        rig.post(|| rig.ep.tsend(from, rig.to(0), 9, 1))?;
        rig.post(|| rig.inbox.trecv(to, sys::FI_ADDR_UNSPEC, 9, 0, 2))?;
        rig.received(2)?;
        rig.sent(1)?;
        call_variants::check_bytes(&to, size, 3, 0)?;
    }
    Ok(())
}

fn null_buffer(rig: &Rig<'_>) -> Outcome {
    if rig.rank.index == 0 {
        rig.complete(1, || rig.ep.tsend(Buf::NULL, rig.peer(), 1, 1))?;
        rig.post(|| rig.ep.tinject(Buf::NULL, rig.peer(), 1))?;
        rig.post(|| rig.ep.tinjectdata(Buf::NULL, 77, rig.peer(), 1))?;
    } else {
        for data in [None, None, Some(77)] {
            rig.post(|| rig.inbox.trecv(Buf::NULL, sys::FI_ADDR_UNSPEC, 1, 0, 2))?;
            call_variants::check_received(&rig.received(2)?, 0, Some(1), data)?;
        }
    }
    rig.barrier()
}

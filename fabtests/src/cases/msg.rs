// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Untagged messages: every call, every size, every completion level. Mirrors fi_msg(3).

use std::time::Duration;

use scif_fabtests::prelude::*;

use super::call_variants::{self, Msg, RecvCall, SendCall, Timing};

pub(crate) const CASES: &[Case] = &[
    case("msg/send", 2, |r| sizes(r, SendCall::Send, RecvCall::Recv)),
    case("msg/sendv", 2, |r| sizes(r, SendCall::Sendv, RecvCall::Recv)),
    case("msg/sendmsg", 2, |r| sizes(r, SendCall::Sendmsg, RecvCall::Recv)),
    case("msg/inject", 2, |r| sizes(r, SendCall::Inject, RecvCall::Recv)),
    case("msg/senddata", 2, |r| sizes(r, SendCall::Senddata, RecvCall::Recv)),
    case("msg/injectdata", 2, |r| sizes(r, SendCall::Injectdata, RecvCall::Recv)),
    case("msg/recvv", 2, |r| sizes(r, SendCall::Send, RecvCall::Recvv)),
    case("msg/recvmsg", 2, |r| sizes(r, SendCall::Send, RecvCall::Recvmsg)),
    case("msg/sendv_recvv", 2, |r| sizes(r, SendCall::Sendv, RecvCall::Recvv)),
    case("msg/sendmsg_cq_data", 2, |r| {
        sizes(r, SendCall::Flags(sys::FI_REMOTE_CQ_DATA), RecvCall::Recvmsg)
    }),
    case("msg/sendmsg_inject", 2, |r| sizes(r, SendCall::Flags(sys::FI_INJECT), RecvCall::Recv)),
    case("msg/sendmsg_more", 2, |r| sizes(r, SendCall::Flags(sys::FI_MORE), RecvCall::Recv)),
    case("msg/inject_complete", 2, |r| {
        sizes(r, SendCall::Flags(sys::FI_INJECT_COMPLETE), RecvCall::Recv)
    }),
    case("msg/transmit_complete", 2, |r| {
        sizes(r, SendCall::Flags(sys::FI_TRANSMIT_COMPLETE), RecvCall::Recv)
    }),
    case("msg/delivery_complete", 2, |r| {
        sizes(r, SendCall::Flags(sys::FI_DELIVERY_COMPLETE), RecvCall::Recv)
    }),
    case("msg/match_complete", 2, |r| {
        sizes(r, SendCall::Flags(sys::FI_MATCH_COMPLETE), RecvCall::Recv)
    }),
    case("msg/sender_makes_no_more_calls", 2, sender_makes_no_more_calls),
    case("msg/fence", 2, fence),
    case("msg/delivery_waits_for_the_receive", 2, delivery_waits),
    case("msg/op_flags_inject", 2, op_flags_inject),
    case("msg/null_buffer", 2, |r| null_buffer(&Rig::open(r, &Spec::messages(false))?)),
    case("msg/to_itself", 1, |r| to_itself(&Rig::open(r, &Spec::messages(false))?)),
    case("msg/both_at_once", 2, |r| both_at_once(&Rig::open(r, &Spec::messages(false))?)),
    case("msg/truncation", 2, |r| truncation(&Rig::open(r, &Spec::messages(false))?)),
    case("msg/order_of_receives", 2, |r| order_of_receives(&Rig::open(r, &Spec::messages(false))?)),
    case("msg/unexpected_flood", 2, unexpected_flood),
    case("msg/sender_is_the_faster", 2, sender_is_the_faster),
    case("msg/many_outstanding", 2, many_outstanding),
    case("msg/all_to_all", 4, all_to_all),
    case("msg/one_peer_stands_still", 3, one_stands_still),
    case("msg/cancel", 2, |r| cancel(&Rig::open(r, &Spec::messages(false))?)),
    case("msg/selective_completion", 2, selective),
    case("msg/av_table", 2, av_table),
    case("msg/directed", 3, directed),
    case("msg/inject_too_long", 1, |r| inject_too_long(&Rig::open(r, &Spec::messages(false))?)),
];

fn sizes(rank: &Rank, way: SendCall, into: RecvCall) -> Outcome {
    let flags = match way {
        SendCall::Flags(flags) => {
            const LEVELS: u64 = sys::FI_INJECT_COMPLETE
                | sys::FI_TRANSMIT_COMPLETE
                | sys::FI_DELIVERY_COMPLETE
                | sys::FI_MATCH_COMPLETE;
            flags & LEVELS
        }
        _ => 0,
    };
    let spec = Spec::messages(false).with(|spec| spec.hints.tx.op_flags = flags);
    call_variants::every_size(&Rig::open(rank, &spec)?, way, into, false)
}

fn fence(rank: &Rank) -> Outcome {
    let spec = Spec::messages(false).with(|spec| spec.hints.caps |= sys::FI_FENCE);
    call_variants::every_size(
        &Rig::open(rank, &spec)?,
        SendCall::Flags(sys::FI_FENCE),
        RecvCall::Recv,
        false,
    )
}

/// Tests that a completed or injected message arrives although its sender never calls libfabric
/// again.
fn sender_makes_no_more_calls(rank: &Rank) -> Outcome {
    const COUNT: u8 = 2;
    let rig = Rig::open(rank, &Spec::messages(false))?;
    let silent = || rank.barrier(&mut || Ok(()));
    let sizes = [8, 4096, 16_384, 65_536, 1 << 20];
    for (size, inject) in sizes.into_iter().flat_map(|size| [(size, false), (size, true)]) {
        let short = size <= rig.info.tx().inject_size;
        if inject && !short {
            continue;
        }
        if rank.index == 0 {
            for i in 0..COUNT {
                let buf = Buf::pattern(size, i.into());
                if inject {
                    rig.post(|| rig.ep.inject(buf, rig.peer()))?;
                } else {
                    rig.complete(1, || rig.ep.send(buf, rig.peer(), 1))?;
                }
            }
            silent()?;
        } else {
            // Short messages are complete before the receiver polls.
            if short {
                silent()?;
            }
            for i in 0..COUNT {
                let buf = Buf::new(size);
                rig.post(|| rig.inbox.recv(buf, sys::FI_ADDR_UNSPEC, 2))?;
                rig.received(2)?;
                call_variants::check_bytes(&buf, size, i.into(), 0)?;
            }
            if !short {
                silent()?;
            }
        }
        silent()?;
    }
    Ok(())
}

/// Tests that with `FI_DELIVERY_COMPLETE` an unmatched message is not complete.
fn delivery_waits(rank: &Rank) -> Outcome {
    let spec =
        Spec::messages(false).with(|spec| spec.hints.tx.op_flags = sys::FI_DELIVERY_COMPLETE);
    let rig = Rig::open(rank, &spec)?;
    for size in [8, 4096, 65_536, 1 << 20] {
        if rank.index == 0 {
            let buf = Buf::pattern(size, 1);
            rig.post(|| rig.ep.send(buf, rig.peer(), 1))?;
            rig.silence(Duration::from_millis(30))?;
            rig.barrier()?;
            rig.sent(1)?;
        } else {
            rig.barrier()?;
            let buf = Buf::new(size);
            rig.post(|| rig.inbox.recv(buf, sys::FI_ADDR_UNSPEC, 2))?;
            rig.received(2)?;
            call_variants::check_bytes(&buf, size, 1, 0)?;
        }
        rig.barrier()?;
    }
    Ok(())
}

/// Tests that with `FI_INJECT` in the operation flags of the endpoint every plain send leaves its
/// buffer reusable.
fn op_flags_inject(rank: &Rank) -> Outcome {
    let spec = Spec::messages(false).with(|spec| spec.hints.tx.op_flags = sys::FI_INJECT);
    let rig = Rig::open(rank, &spec)?;
    for &size in call_variants::SIZES.iter().filter(|&&size| size <= rig.info.tx().inject_size) {
        if rank.index == 0 {
            let buf = Buf::pattern(size, 9);
            rig.post(|| rig.ep.send(buf, rig.peer(), 1))?;
            buf.fill(0);
            rig.sent(1)?;
        } else {
            let buf = Buf::new(size);
            rig.post(|| rig.inbox.recv(buf, sys::FI_ADDR_UNSPEC, 2))?;
            rig.received(2)?;
            call_variants::check_bytes(&buf, size, 9, 0)?;
        }
    }
    rig.barrier()
}

/// Tests that a null pointer is a buffer of no bytes, in every call.
fn null_buffer(rig: &Rig<'_>) -> Outcome {
    for way in [SendCall::Send, SendCall::Inject, SendCall::Senddata, SendCall::Injectdata] {
        if rig.rank.index == 0 {
            let letter = Msg { buf: Buf::NULL, dest: rig.peer(), tag: None, context: 1, data: 5 };
            rig.post(|| call_variants::send(rig, way, &letter))?;
            if !way.silent() {
                rig.sent(1)?;
            }
        } else {
            rig.post(|| rig.inbox.recv(Buf::NULL, sys::FI_ADDR_UNSPEC, 2))?;
            let entry = rig.received(2)?;
            call_variants::check_received(&entry, 0, None, way.has_data().then_some(5))?;
        }
        rig.barrier()?;
    }
    if rig.rank.index == 0 {
        rig.complete(3, || rig.ep.sendmsg(&[], rig.peer(), 3, 0, sys::FI_COMPLETION))?;
    } else {
        rig.post(|| rig.inbox.recvmsg(&[], sys::FI_ADDR_UNSPEC, 4, sys::FI_COMPLETION))?;
        check_eq!(rig.received(4)?.len, 0);
    }
    rig.barrier()
}

/// Tests messages of an endpoint to itself.
fn to_itself(rig: &Rig<'_>) -> Outcome {
    for &size in call_variants::SIZES {
        for first in [true, false] {
            let (from, to) = (Buf::pattern(size, 3), Buf::new(size));
            if first {
                rig.post(|| rig.inbox.recv(to, sys::FI_ADDR_UNSPEC, 2))?;
            }
            rig.post(|| rig.ep.send(from, rig.to(0), 1))?;
            if !first {
                rig.post(|| rig.inbox.recv(to, sys::FI_ADDR_UNSPEC, 2))?;
            }
            rig.received(2)?;
            rig.sent(1)?;
            call_variants::check_bytes(&to, size, 3, 0)?;
        }
    }
    Ok(())
}

/// Tests that both sides can send first and receive afterwards without a deadlock.
fn both_at_once(rig: &Rig<'_>) -> Outcome {
    for &size in call_variants::SIZES {
        let mine = u64::try_from(rig.rank.index).unwrap_or(0);
        let (from, to) = (Buf::pattern(size, mine), Buf::new(size));
        rig.post(|| rig.ep.send(from, rig.peer(), 1))?;
        rig.post(|| rig.inbox.recv(to, sys::FI_ADDR_UNSPEC, 2))?;
        rig.received(2)?;
        rig.sent(1)?;
        call_variants::check_bytes(&to, size, 1 - mine, 0)?;
    }
    rig.barrier()
}

/// Tests truncation: the receive of a longer message fails and reports the lost bytes, and the send
/// succeeds.
fn truncation(rig: &Rig<'_>) -> Outcome {
    for (sent, room) in
        [(8, 4), (64, 0), (4096, 100), (16_385, 16_384), (100_000, 64), (1 << 20, 65_536)]
    {
        for timing in [Timing::Expected, Timing::Unexpected] {
            if rig.rank.index == 0 {
                if timing == Timing::Expected {
                    rig.barrier()?;
                }
                let buf = Buf::pattern(sent, 4);
                rig.post(|| rig.ep.send(buf, rig.peer(), 1))?;
                if timing == Timing::Unexpected {
                    rig.barrier()?;
                }
                rig.sent(1)?;
            } else {
                let buf = Buf::new(room + 64);
                if timing == Timing::Unexpected {
                    rig.barrier()?;
                }
                rig.post(|| rig.inbox.recv(buf.sub(0, room), sys::FI_ADDR_UNSPEC, 2))?;
                if timing == Timing::Expected {
                    rig.barrier()?;
                }
                let error = rig.next_error(&rig.rx)?;
                check_eq!(error.err, Errno::ETRUNC);
                check_eq!(error.context, 2);
                check_eq!(error.olen, sent - room, "{sent} into {room}");
                call_variants::check_bytes(&buf, 0, 4, 0)
                    .or_else(|_| call_variants::check_bytes(&buf, room, 4, 0))?;
            }
            rig.barrier()?;
        }
    }
    // The endpoint still works.
    call_variants::plain_message(rig, 100, Timing::Expected)
}

/// Tests that receives are filled oldest first, whatever the sizes of the messages.
fn order_of_receives(rig: &Rig<'_>) -> Outcome {
    let mut sizes = vec![100_000, 1, 300_000, 64, 4096, 0, 70_000, 8];
    // Several of them are fetched by one system call.
    sizes.extend([17_000, 31_000, 20_000, 17_000, 24_000, 17_000, 31_000, 30_000, 17_000, 8]);
    if rig.rank.index == 0 {
        rig.barrier()?;
        for (index, &size) in sizes.iter().enumerate() {
            let buf = Buf::pattern(size, index as u64);
            rig.post(|| rig.ep.send(buf, rig.peer(), index))?;
        }
        for _ in &sizes {
            rig.next(&rig.tx)?;
        }
    } else {
        let bufs: Vec<Buf> = sizes.iter().map(|_| Buf::new(300_000)).collect();
        for (index, &buf) in bufs.iter().enumerate() {
            rig.post(|| rig.inbox.recv(buf, sys::FI_ADDR_UNSPEC, index))?;
        }
        rig.barrier()?;
        for _ in &sizes {
            let entry = rig.next(&rig.rx)?;
            let size = sizes.get(entry.context).copied().unwrap_or(usize::MAX);
            check_eq!(entry.len, size, "receive {}", entry.context);
            if let Some(buf) = bufs.get(entry.context) {
                call_variants::check_bytes(buf, size, entry.context as u64, 0)?;
            }
        }
    }
    rig.barrier()
}

/// Tests that thousands of unexpected messages stay in order, and do not block later traffic.
fn unexpected_flood(rank: &Rank) -> Outcome {
    const COUNT: usize = 2048;
    let rig =
        Rig::open(rank, &Spec::messages(false).with(|spec| spec.hints.caps |= sys::FI_TAGGED))?;
    for size in [1, 512, 16_000, 20_000] {
        if rank.index == 0 {
            let buf = Buf::new(size);
            for index in 0..COUNT {
                let buf = if size > 512 { Buf::pattern(size, index as u64) } else { buf };
                buf.fill_pattern(index as u64);
                rig.post(|| rig.ep.send(buf, rig.peer(), index))?;
                if size <= 512 {
                    rig.sent(index)?;
                }
            }
            let done = Buf::NULL;
            rig.post(|| rig.ep.tsend(done, rig.peer(), 7, COUNT))?;
            for _ in 0..if size <= 512 { 1 } else { COUNT + 1 } {
                rig.next(&rig.tx)?;
            }
        } else {
            // The tagged message arrived last, and its receive is posted first.
            rig.post(|| rig.inbox.trecv(Buf::NULL, sys::FI_ADDR_UNSPEC, 7, 0, 1))?;
            rig.received(1)?;
            let buf = Buf::new(size);
            for index in 0..COUNT {
                rig.post(|| rig.inbox.recv(buf, sys::FI_ADDR_UNSPEC, 2))?;
                check_eq!(rig.received(2)?.len, size);
                call_variants::check_bytes(&buf, size, index as u64, 0)?;
            }
        }
        rig.barrier()?;
    }
    Ok(())
}

/// Tests backpressure: a sender faster than its receiver gets `FI_EAGAIN`, so that few messages are
/// unreceived and the receiver's memory does not fill.
fn sender_is_the_faster(rank: &Rank) -> Outcome {
    const COUNT: u64 = 5000;
    const UNDER_WAY: u64 = 4000;
    rank.only_scif("the number of kept messages depends on the provider")?;
    // A progress thread could not know whether its program will receive.
    let rig = Rig::open(
        rank,
        &Spec::messages(false).with(|spec| {
            spec.hints.caps |= sys::FI_TAGGED;
            spec.hints.data_progress = sys::FI_PROGRESS_MANUAL;
            spec.hints.control_progress = sys::FI_PROGRESS_MANUAL;
        }),
    )?;
    rig.barrier()?;
    let word = Buf::new(8);
    if rank.index == 0 {
        // Rank 1 only receives from this message on, until the second one.
        rig.post(|| rig.inbox.trecv(Buf::NULL, sys::FI_ADDR_UNSPEC, 7, 0, 1))?;
        rig.received(1)?;
        rig.post(|| rig.inbox.trecv(Buf::NULL, sys::FI_ADDR_UNSPEC, 7, 0, 1))?;
        let mut sent = 0;
        loop {
            match rig.ep.inject(word, rig.peer()) {
                Ok(()) => {
                    sent += 1;
                    word.store_u64(0, sent);
                }
                Err(Errno::EAGAIN) => rig.pump()?,
                Err(e) => return Err(Fail::here(e)),
            }
            if sent % 16 == 0 {
                rig.pump()?;
            }
            match rig.rx.take() {
                None => {}
                Some(Ok(enough)) => {
                    check_eq!(enough.context, 1);
                    break;
                }
                Some(Err(e)) => return Err(Fail::here(format_args!("an error entry came: {e:?}"))),
            }
        }
        let total = Buf::of(&sent.to_ne_bytes());
        rig.complete(2, || rig.ep.tsend(total, rig.peer(), 8, 2))?;
    } else {
        let total = Buf::new(8);
        rig.post(|| rig.inbox.trecv(total, sys::FI_ADDR_UNSPEC, 8, 0, 9))?;
        let mut received = 0;
        let mut all = None;
        rig.complete(4, || rig.ep.tsend(Buf::NULL, rig.peer(), 7, 4))?;
        while all.is_none_or(|all| received < all) {
            rig.post(|| rig.inbox.recv(word, sys::FI_ADDR_UNSPEC, 3))?;
            let mut came = rig.next(&rig.rx)?.context;
            if came == 9 {
                all = Some(total.load_u64(0));
                if Some(received) == all {
                    break;
                }
                came = rig.next(&rig.rx)?.context;
            }
            check_eq!((came, word.load_u64(0)), (3, received));
            received += 1;
            if received == COUNT {
                rig.complete(4, || rig.ep.tsend(Buf::NULL, rig.peer(), 7, 4))?;
            }
            check!(received < COUNT + UNDER_WAY, "{received} messages and no end");
        }
        check!(received >= COUNT, "only {received} messages");
    }
    rig.barrier()
}

/// Tests as many concurrent sends and receives as the provider accepts.
fn many_outstanding(rank: &Rank) -> Outcome {
    const COUNT: usize = 3000;
    let rig = Rig::open(rank, &Spec::messages(false))?;
    for size in [8, 5000, 40_000] {
        let bufs: Vec<Buf> = (0..COUNT).map(|_| Buf::new(size)).collect();
        let mut done = 0;
        let queue = if rank.index == 0 { &rig.tx } else { &rig.rx };
        for (index, &buf) in bufs.iter().enumerate() {
            if rank.index == 0 {
                buf.fill_pattern(index as u64);
                rig.post(|| rig.ep.send(buf, rig.peer(), index))?;
            } else {
                rig.post(|| rig.inbox.recv(buf, sys::FI_ADDR_UNSPEC, index))?;
            }
            while queue.kept() > 0 {
                rig.next(queue)?;
                done += 1;
            }
        }
        for _ in done..COUNT {
            rig.next(queue)?;
        }
        if rank.index == 1 {
            for (index, buf) in bufs.iter().enumerate() {
                call_variants::check_bytes(buf, size, index as u64, 0)?;
            }
        }
        rig.barrier()?;
    }
    Ok(())
}

/// Tests messages from every rank to every rank, itself included.
fn all_to_all(rank: &Rank) -> Outcome {
    let rig = Rig::open(
        rank,
        &Spec::messages(false).with(|spec| spec.hints.caps |= sys::FI_DIRECTED_RECV),
    )?;
    for &size in call_variants::SIZES {
        let name = |from: usize, to: usize| (from * 16 + to + 1) as u64;
        let mut into = Vec::new();
        for from in 0..rank.count {
            let buf = Buf::new(size);
            rig.post(|| rig.inbox.recv(buf, rig.to(from), from))?;
            into.push(buf);
        }
        for to in 0..rank.count {
            let buf = Buf::pattern(size, name(rank.index, to));
            rig.post(|| rig.ep.send(buf, rig.to(to), to))?;
        }
        for _ in 0..rank.count {
            rig.next(&rig.tx)?;
            rig.next(&rig.rx)?;
        }
        for (from, buf) in into.iter().enumerate() {
            call_variants::check_bytes(buf, size, name(from, rank.index), 0)?;
        }
    }
    rig.barrier()
}

/// Tests that a cancelled receive ends with `FI_ECANCELED`, once, and takes no message.
fn cancel(rig: &Rig<'_>) -> Outcome {
    if rig.rank.index == 1 {
        let bufs: Vec<Buf> = (0..3).map(|_| Buf::new(64)).collect();
        for (index, &buf) in bufs.iter().enumerate() {
            rig.post(|| rig.inbox.recv(buf, sys::FI_ADDR_UNSPEC, 10 + index))?;
        }
        rig.inbox.cancel(11)?;
        let error = rig.next_error(&rig.rx)?;
        check_eq!(error.err, Errno::ECANCELED);
        check_eq!(error.context, 11);
        // No receive with this context is left.
        let _ = rig.inbox.cancel(11);
        let _ = rig.inbox.cancel(99);
        rig.silence(Duration::from_millis(20))?;
        rig.barrier()?;
        rig.received(10)?;
        rig.received(12)?;
    } else {
        rig.barrier()?;
        for index in 0..2 {
            rig.complete(index, || rig.ep.send(Buf::new(8), rig.peer(), index))?;
        }
    }
    rig.barrier()
}

/// Tests that with selective completion only requested completions are written, and that errors
/// always are.
fn selective(rank: &Rank) -> Outcome {
    let spec = Spec::messages(false).with(|spec| spec.selective = true);
    let rig = Rig::open(rank, &spec)?;
    if rank.index == 0 {
        let buf = Buf::new(8);
        rig.post(|| rig.ep.send(buf, rig.peer(), 1))?;
        rig.post(|| rig.ep.sendmsg(&[buf], rig.peer(), 2, 0, 0))?;
        rig.post(|| rig.ep.sendmsg(&[buf], rig.peer(), 3, 0, sys::FI_COMPLETION))?;
        rig.complete(3, || rig.ep.inject(buf, rig.peer()))?;
        rig.silence(Duration::from_millis(20))?;
        rig.barrier()?;
    } else {
        let (small, buf) = (Buf::new(4), Buf::new(8));
        rig.post(|| rig.inbox.recv(buf, sys::FI_ADDR_UNSPEC, 1))?;
        rig.post(|| rig.inbox.recvmsg(&[small], sys::FI_ADDR_UNSPEC, 2, 0))?;
        rig.post(|| rig.inbox.recvmsg(&[buf], sys::FI_ADDR_UNSPEC, 3, sys::FI_COMPLETION))?;
        rig.post(|| rig.inbox.recvmsg(&[buf], sys::FI_ADDR_UNSPEC, 4, 0))?;
        check_eq!(rig.next_error(&rig.rx)?.context, 2, "the truncated one");
        rig.received(3)?;
        rig.barrier()?;
        rig.silence(Duration::from_millis(20))?;
    }
    rig.barrier()?;
    // FI_COMPLETION in the operation flags makes plain calls complete again.
    let spec = spec.with(|spec| {
        spec.hints.tx.op_flags = sys::FI_COMPLETION;
        spec.hints.rx.op_flags = sys::FI_COMPLETION;
    });
    drop(rig);
    let rig = Rig::open(rank, &spec)?;
    call_variants::plain_message(&rig, 100, Timing::Expected)
}

/// Tests that the addresses of a table are 0, 1 and so on.
fn av_table(rank: &Rank) -> Outcome {
    let spec = Spec::messages(false).with(|spec| spec.hints.av_type = sys::FI_AV_TABLE);
    let rig = Rig::open(rank, &spec)?;
    check_eq!(rig.peers, vec![0, 1]);
    call_variants::plain_message(&rig, 100, Timing::Expected)
}

/// Tests that a directed receive takes messages of its peer only, and an undirected one any.
fn directed(rank: &Rank) -> Outcome {
    let spec = Spec::messages(false).with(|spec| spec.hints.caps |= sys::FI_DIRECTED_RECV);
    let rig = Rig::open(rank, &spec)?;
    for size in [8, 5000, 100_000] {
        if rank.index == 0 {
            let bufs: Vec<Buf> = (0..4).map(|_| Buf::new(size)).collect();
            let sources = [rig.to(2), rig.to(1), rig.to(2), sys::FI_ADDR_UNSPEC];
            for (index, (&buf, source)) in bufs.iter().zip(sources).enumerate() {
                rig.post(|| rig.inbox.recv(buf, source, index))?;
            }
            rig.barrier()?;
            // Rank 1 sends two, then rank 2 sends two.
            for context in [1, 3] {
                rig.received(context)?;
            }
            rig.barrier()?;
            for context in [0, 2] {
                rig.received(context)?;
            }
            for (buf, from) in bufs.iter().zip([20, 10, 21, 11]) {
                call_variants::check_bytes(buf, size, from, 0)?;
            }
        } else {
            rig.barrier()?;
            if rank.index == 2 {
                rig.barrier()?;
            }
            for index in 0..2_u64 {
                let buf = Buf::pattern(size, rank.index as u64 * 10 + index);
                rig.complete(5, || rig.ep.send(buf, rig.to(0), 5))?;
            }
            if rank.index == 1 {
                rig.barrier()?;
            }
        }
        rig.barrier()?;
    }
    Ok(())
}

/// Tests that a message longer than `inject_size` cannot be injected.
fn inject_too_long(rig: &Rig<'_>) -> Outcome {
    let buf = Buf::new(rig.info.tx().inject_size + 1);
    for result in [rig.ep.inject(buf, rig.to(0)), rig.ep.injectdata(buf, 1, rig.to(0))] {
        check_eq!(result.is_err(), true);
        check_eq!(result == Err(Errno::EAGAIN), false);
    }
    Ok(())
}

/// Tests that an idle living peer with more outstanding large messages than a sender checks for
/// cooperative copy blocks no others.
fn one_stands_still(rank: &Rank) -> Outcome {
    const LARGE: usize = 1 << 20;
    const OUTSTANDING: usize = 16;
    let rig = Rig::open(rank, &Spec::messages(false))?;
    let pause = || rank.barrier(&mut || Ok(()));
    rig.barrier()?;
    if rank.index == 2 {
        pause()?;
        for at in 0..OUTSTANDING {
            let buf = Buf::new(LARGE);
            rig.post(|| rig.inbox.recv(buf, sys::FI_ADDR_UNSPEC, at))?;
            rig.received(at)?;
            check_eq!(buf.differs(LARGE, 9), None);
        }
        return rig.barrier();
    }
    let (out, back) = (Buf::pattern(LARGE, 9), Buf::new(LARGE));
    if rank.index == 0 {
        for _ in 0..OUTSTANDING {
            rig.post(|| rig.ep.send(out, rig.to(2), 100))?;
        }
    }
    let to = rig.to(1 - rank.index);
    for _ in 0..20 {
        for len in [8, LARGE] {
            rig.post(|| rig.inbox.recv(back, sys::FI_ADDR_UNSPEC, len))?;
            rig.post(|| rig.ep.send(out, to, len))?;
            rig.received(len)?;
            rig.sent(len)?;
        }
    }
    check_eq!(back.differs(LARGE, 9), None);
    pause()?;
    if rank.index == 0 {
        for _ in 0..OUTSTANDING {
            rig.sent(100)?;
        }
    }
    rig.barrier()
}

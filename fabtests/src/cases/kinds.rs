// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Kinds of endpoints beside the reliable ones, and message prefixes for each. Mirrors
//! fi_getinfo(3) and fi_endpoint(3).

use std::time::Duration;

use scif_fabtests::prelude::*;

use super::peek;

pub(crate) const CASES: &[Case] = &[
    case("kinds/datagrams", 2, |r| messages(r, sys::FI_EP_DGRAM, false)),
    case("kinds/datagrams_with_prefix", 2, |r| messages(r, sys::FI_EP_DGRAM, true)),
    case("kinds/reliable_with_prefix", 2, |r| messages(r, sys::FI_EP_RDM, true)),
    case("kinds/datagrams_without_a_receive", 2, unreceived),
    case("kinds/datagrams_before_the_close", 2, before_the_close),
    case("kinds/datagrams_taken_slowly_before_the_close", 2, taken_slowly),
    case("kinds/datagrams_before_the_close_of_a_stopped_sender", 2, stopped_in_the_close),
    case("kinds/more_datagrams_than_are_kept", 2, more_than_kept),
    case("kinds/prefix_when_named", 1, named),
    case("kinds/prefix_does_not_fit", 1, too_short),
    case("kinds/prefix_of_each_message", 1, |r| one_each(r, 0)),
    case("kinds/prefix_of_each_message_triggered", 1, |r| one_each(r, sys::FI_TRIGGER)),
];

fn spec(ep_type: u32, prefix: bool) -> Spec {
    Spec::caps(sys::FI_MSG | sys::FI_TAGGED).with(|spec| {
        spec.hints.ep_type = ep_type;
        spec.hints.mode = if prefix { sys::FI_MSG_PREFIX } else { 0 };
    })
}

fn messages(rank: &Rank, ep_type: u32, prefix: bool) -> Outcome {
    let rig = Rig::open(rank, &spec(ep_type, prefix))?;
    let room = rig.info.ep().msg_prefix_size;
    check_eq!(room > 0, prefix);
    for (round, len) in [0, 1, 8, 40, 56, 64, 4000, 20_000, 1 << 20].into_iter().enumerate() {
        let seed = round as u64;
        let (to, from) = (Buf::new(room + len), Buf::new(room + len));
        to.sub(room, len).fill_pattern(seed);
        from.fill(0xee);
        let tag = seed;
        rig.inbox.trecv(from, sys::FI_ADDR_UNSPEC, tag, 0, 1)?;
        rig.barrier()?;
        rig.complete(2, || rig.ep.tsend(to, rig.peer(), tag, 2))?;
        check_eq!(rig.received(1)?.len, room + len);
        check_eq!(from.sub(room, len).differs(len, seed), None);
        // The prefix belongs to the provider, which has nothing to write to it.
        check_eq!(from.get(0, room), vec![0xee; room]);
        // Again as an unexpected message, in two pieces.
        rig.post(|| rig.ep.send(to, rig.peer(), 3))?;
        rig.barrier()?;
        rig.inbox.recvv(&[from.sub(0, room), from.sub(room, len)], sys::FI_ADDR_UNSPEC, 4)?;
        rig.sent(3)?;
        check_eq!(rig.received(4)?.len, room + len);
        check_eq!(from.sub(room, len).differs(len, seed), None);
        // After a peek, which reports the length of the later receive.
        let context = peek::context();
        rig.post(|| rig.ep.tsend(to, rig.peer(), tag, 5))?;
        check_eq!(peek::find(&rig, tag, 0, context)?.len, room + len);
        rig.inbox.trecv(from, sys::FI_ADDR_UNSPEC, tag, 0, 6)?;
        rig.sent(5)?;
        check_eq!(rig.received(6)?.len, room + len);
        rig.barrier()?;
    }
    Ok(())
}

/// Tests that a sender of datagrams waits neither for a receive nor for progress of the receiver,
/// and can reuse the buffer.
fn unreceived(rank: &Rank) -> Outcome {
    const LENS: [usize; 4] = [8, 20_000, 300_000, 1 << 20];
    let caps = sys::FI_MSG | sys::FI_TAGGED | sys::FI_FENCE;
    let rig =
        Rig::open(rank, &Spec::caps(caps).with(|spec| spec.hints.ep_type = sys::FI_EP_DGRAM))?;
    // The endpoints are connected already.
    let first = Buf::new(8);
    rig.inbox.trecv(first, sys::FI_ADDR_UNSPEC, 0, 0, 1)?;
    rig.barrier()?;
    rig.complete(2, || rig.ep.tsend(first, rig.peer(), 0, 2))?;
    rig.received(1)?;
    rig.barrier()?;
    if rank.index == 0 {
        let buf = Buf::new(1 << 20);
        for (round, len) in LENS.into_iter().enumerate() {
            let seed = round as u64;
            let piece = buf.sub(0, len);
            piece.fill_pattern(seed);
            rig.complete(3, || rig.ep.tsend(piece, rig.peer(), 1 + seed, 3))?;
            // Again in two pieces.
            let pieces = [buf.sub(0, len / 2), buf.sub(len / 2, len - len / 2)];
            rig.complete(4, || rig.ep.tsendv(&pieces, rig.peer(), 11 + seed, 4))?;
            piece.fill(0xee);
        }
        rank.barrier(&mut || Ok(()))?;
        // A fenced message that requests completion waits for no receive either.
        let flags = sys::FI_FENCE | sys::FI_COMPLETION;
        rig.complete(6, || rig.ep.tsendmsg(&[first], TaggedMsg::to(rig.peer(), 21, 6), flags))?;
        rig.barrier()?;
        return rig.barrier();
    }
    rank.barrier(&mut || Ok(()))?;
    rig.barrier()?;
    let buf = Buf::new(1 << 20);
    for (round, len) in LENS.into_iter().enumerate() {
        let seed = round as u64;
        for tag in [1 + seed, 11 + seed] {
            buf.fill(0);
            rig.inbox.trecv(buf, sys::FI_ADDR_UNSPEC, tag, 0, 5)?;
            check_eq!(rig.received(5)?.len, len);
            check_eq!(buf.sub(0, len).differs(len, seed), None);
        }
    }
    rig.barrier()
}

/// Tests that a datagram complete before the close of its sender is received, if its receive is
/// posted and makes progress.
fn before_the_close(rank: &Rank) -> Outcome {
    const LEN: usize = 1 << 20;
    let rig = Rig::open(rank, &spec(sys::FI_EP_DGRAM, false))?;
    let buf = Buf::new(LEN);
    if rank.index == 1 {
        rig.inbox.recv(buf, sys::FI_ADDR_UNSPEC, 1)?;
        rig.barrier()?;
        // The close comes first; it waits twenty times as long for the receive.
        std::thread::sleep(Duration::from_millis(5));
        check_eq!(rig.received(1)?.len, LEN);
        check_eq!(buf.differs(LEN, 7), None);
        return rig.barrier();
    }
    buf.fill_pattern(7);
    rig.barrier()?;
    rig.complete(1, || rig.ep.send(buf, rig.peer(), 1))?;
    drop(rig);
    rank.barrier(&mut || Ok(()))
}

/// Tests that a close waits longer while the receiver takes datagrams, one after the other.
fn taken_slowly(rank: &Rank) -> Outcome {
    const LEN: usize = 100_000;
    const COUNT: u64 = 10;
    const PAUSE: Duration = Duration::from_millis(30);
    rank.only_scif("the limit of a close depends on the provider")?;
    let rig = Rig::open(rank, &spec(sys::FI_EP_DGRAM, false))?;
    let buf = Buf::new(LEN);
    if rank.index == 1 {
        rig.barrier()?;
        for seed in 0..COUNT {
            std::thread::sleep(PAUSE);
            rig.inbox.recv(buf, sys::FI_ADDR_UNSPEC, 1)?;
            check_eq!(rig.received(1)?.len, LEN);
            check_eq!(buf.differs(LEN, seed), None);
        }
        return rig.barrier();
    }
    for seed in 0..COUNT {
        buf.fill_pattern(seed);
        rig.complete(1, || rig.ep.send(buf, rig.peer(), 1))?;
    }
    rig.barrier()?;
    drop(rig);
    rank.barrier(&mut || Ok(()))
}

/// Tests that a close waits for a receiver as long as it runs itself: a sender that was stopped
/// meanwhile does not give up when it continues.
fn stopped_in_the_close(rank: &Rank) -> Outcome {
    const LEN: usize = 1 << 20;
    const BEGIN: Duration = Duration::from_millis(20);
    const STOPPED: Duration = Duration::from_millis(200);
    rank.only_scif("the limit of a close depends on the provider")?;
    let rig = Rig::open(rank, &spec(sys::FI_EP_DGRAM, false))?;
    let buf = Buf::new(LEN);
    if rank.index == 1 {
        rig.barrier()?;
        // The close begins.
        std::thread::sleep(BEGIN);
        rank.stop(0)?;
        std::thread::sleep(STOPPED);
        rank.resume(0)?;
        std::thread::sleep(BEGIN);
        rig.inbox.recv(buf, sys::FI_ADDR_UNSPEC, 1)?;
        check_eq!(rig.received(1)?.len, LEN);
        check_eq!(buf.differs(LEN, 7), None);
        return rig.barrier();
    }
    buf.fill_pattern(7);
    rig.complete(1, || rig.ep.send(buf, rig.peer(), 1))?;
    rig.barrier()?;
    drop(rig);
    rank.barrier(&mut || Ok(()))
}

/// Tests datagrams beyond the memory for unreceived ones: a send completes when its datagram is
/// received, and none is lost.
fn more_than_kept(rank: &Rank) -> Outcome {
    const LEN: usize = 1 << 20;
    const KEPT: usize = 64;
    const COUNT: usize = KEPT + 3;
    rank.only_scif("the number of kept messages depends on the provider")?;
    let rig = Rig::open(rank, &spec(sys::FI_EP_DGRAM, false))?;
    let buf = Buf::pattern(LEN, 7);
    if rank.index == 1 {
        rig.barrier()?;
        rig.barrier()?;
        for _ in 0..COUNT {
            buf.fill(0);
            rig.inbox.recv(buf, sys::FI_ADDR_UNSPEC, 1)?;
            check_eq!(rig.received(1)?.len, LEN);
            check_eq!(buf.differs(LEN, 7), None);
        }
        return rig.barrier();
    }
    for context in 0..COUNT {
        rig.post(|| rig.ep.send(buf, rig.peer(), context))?;
    }
    for context in 0..KEPT {
        rig.sent(context)?;
    }
    rig.barrier()?;
    rig.pump()?;
    check_eq!(rig.tx.kept(), 0);
    rig.barrier()?;
    for context in KEPT..COUNT {
        rig.sent(context)?;
    }
    rig.barrier()
}

fn named(rank: &Rank) -> Outcome {
    let lib = load(rank)?;
    for (mode, granted) in [
        (0, 0),
        (u64::MAX, 0),
        (sys::FI_CONTEXT, 0),
        (sys::FI_MSG_PREFIX | sys::FI_CONTEXT, sys::FI_MSG_PREFIX),
    ] {
        for ep_type in [sys::FI_EP_RDM, sys::FI_EP_MSG, sys::FI_EP_DGRAM] {
            let mut spec = Spec::caps(sys::FI_MSG);
            (spec.hints.ep_type, spec.hints.mode) = (ep_type, mode);
            for info in offers(rank, lib, &spec.hints)? {
                check_eq!(info.mode() & sys::FI_MSG_PREFIX, granted);
                check_eq!((info.tx().mode, info.rx().mode), (info.mode(), info.mode()));
                check_eq!(info.ep().msg_prefix_size > 0, granted != 0);
            }
        }
    }
    Ok(())
}

fn too_short(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &spec(sys::FI_EP_RDM, true))?;
    let room = rig.info.ep().msg_prefix_size;
    let short = Buf::new(room - 1);
    check_eq!(rig.ep.send(short, rig.peer(), 1), Err(Errno::EINVAL));
    check_eq!(rig.ep.inject(short, rig.peer()), Err(Errno::EINVAL));
    check_eq!(rig.inbox.recv(short, sys::FI_ADDR_UNSPEC, 1), Err(Errno::EINVAL));
    let most = rig.info.tx().inject_size;
    let whole = Buf::new(room + most);
    check!(rig.ep.inject(whole, rig.to(0)).is_ok(), "the prefix does not count");
    Ok(())
}

/// Tests that multi-receive buffers are refused with message prefixes.
fn one_each(rank: &Rank, caps: u64) -> Outcome {
    let spec = spec(sys::FI_EP_RDM, true).with(|spec| spec.hints.caps |= caps);
    let rig = Rig::open(rank, &spec)?;
    let buf = Buf::new(4096);
    check_eq!(
        rig.inbox.recvmsg(&[buf], sys::FI_ADDR_UNSPEC, 1, sys::FI_MULTI_RECV),
        Err(Errno::EOPNOTSUPP)
    );
    rig.ep.set_op_flags(sys::FI_RECV | sys::FI_MULTI_RECV)?;
    check_eq!(rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 1), Err(Errno::EOPNOTSUPP));
    rig.ep.set_op_flags(sys::FI_RECV)?;
    check_eq!(rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 1), Ok(()));
    Ok(())
}

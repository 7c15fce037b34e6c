// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Multi-receive: one buffer for many messages, `FI_MULTI_RECV`. Mirrors fi_msg(3) and
//! fi_endpoint(3), `FI_OPT_MIN_MULTI_RECV`.

use scif_fabtests::prelude::*;

pub(crate) const CASES: &[Case] = &[
    case("multi_recv/small", 2, |r| stream(r, &[8, 100, 0, 64, 33], 4000)),
    case("multi_recv/large", 2, |r| stream(r, &[20_000, 70_000, 1, 300_000], 60)),
    case("multi_recv/mixed", 2, |r| stream(r, &[1, 16_384, 16_385, 65, 4096, 100_000, 12], 300)),
    case("multi_recv/op_flags", 2, op_flags),
    case("multi_recv/two_senders", 3, two_senders),
    case("multi_recv/message_does_not_fit", 2, |r| message_does_not_fit(&Rig::open(r, &spec())?)),
    case("multi_recv/cancel", 2, |r| cancel(&Rig::open(r, &spec())?)),
    case("multi_recv/cq_data", 2, |r| cq_data(&Rig::open(r, &spec())?)),
    case("multi_recv/unexpected", 2, unexpected),
    case("multi_recv/option", 2, |r| option(&Rig::open(r, &spec())?)),
];

fn spec() -> Spec {
    Spec::messages(false).with(|spec| spec.hints.caps |= sys::FI_MULTI_RECV)
}

/// Receiving side: buffers that are posted again when the provider releases them.
///
/// Every message carries its number as CQ data. Messages are placed in order, but may complete in
/// another, because a long message takes longer than a short one behind it.
struct Pool {
    bufs: Vec<Buf>,
    /// Messages of each buffer since it was posted: number, position, length.
    got: Vec<Vec<(u64, usize, usize)>>,
}

/// Message in a buffer.
struct Came {
    number: u64,
    bytes: Buf,
}

impl Pool {
    fn post(rig: &Rig<'_>, count: usize, size: usize) -> Outcome<Pool> {
        let bufs: Vec<Buf> = (0..count).map(|_| Buf::new(size)).collect();
        let pool = Pool { got: vec![Vec::new(); count], bufs };
        for index in 0..count {
            pool.post_one(rig, index)?;
        }
        Ok(pool)
    }

    fn post_one(&self, rig: &Rig<'_>, index: usize) -> Outcome {
        let buf = *self.bufs.get(index).ok_or_else(|| Fail::here("no such buffer"))?;
        let flags = sys::FI_MULTI_RECV | sys::FI_COMPLETION;
        rig.post(|| rig.inbox.recvmsg(&[buf], sys::FI_ADDR_UNSPEC, index, flags))
    }

    /// Receives the next message. Calls `check` with it before its buffer is used again.
    fn next(&mut self, rig: &Rig<'_>, mut check: impl FnMut(&Came) -> Outcome) -> Outcome {
        loop {
            let entry = rig.next(&rig.rx)?;
            let index = entry.context;
            let (Some(buf), Some(got)) = (self.bufs.get(index), self.got.get_mut(index)) else {
                return Err(Fail::here(format_args!(
                    "completion of an unknown buffer: {entry:x?}"
                )));
            };
            let message = entry.flags & sys::FI_REMOTE_CQ_DATA != 0;
            if message {
                let at = if entry.len == 0 { 0 } else { entry.buf.wrapping_sub(buf.addr()) };
                check!(
                    at <= buf.len() && entry.len <= buf.len() - at,
                    "{entry:x?} is outside of its buffer"
                );
                got.push((entry.data, at, entry.len));
                check(&Came { number: entry.data, bytes: buf.sub(at, entry.len) })?;
            }
            if entry.flags & sys::FI_MULTI_RECV != 0 {
                let mut placed = std::mem::take(got);
                placed.retain(|(_, _, len)| *len > 0);
                placed.sort_by_key(|(_, at, _)| *at);
                let apart = placed.iter().zip(placed.iter().skip(1)).all(|(a, b)| a.1 + a.2 <= b.1);
                check!(apart, "messages overlap: {placed:?}");
                self.post_one(rig, index)?;
            }
            if message {
                return Ok(());
            }
        }
    }
}

/// Tests a stream of messages through three buffers: each arrives whole and once, and each buffer
/// is released.
fn stream(rank: &Rank, sizes: &[usize], count: usize) -> Outcome {
    let rig = Rig::open(rank, &spec())?;
    let longest = sizes.iter().copied().max().unwrap_or(0);
    let sizes: Vec<usize> = sizes.iter().copied().cycle().take(count).collect();
    if rank.index == 0 {
        rig.barrier()?;
        for (index, &size) in sizes.iter().enumerate() {
            let buf = Buf::pattern(size, index as u64);
            rig.post(|| rig.ep.senddata(buf, index as u64, rig.peer(), index))?;
            while rig.tx.kept() > 0 {
                rig.next(&rig.tx)?;
            }
        }
        return rig.barrier();
    }
    rig.inbox.setopt(sys::FI_OPT_MIN_MULTI_RECV, longest)?;
    let mut pool = Pool::post(&rig, 3, longest * 4 + 64)?;
    rig.barrier()?;
    let mut seen = vec![false; count];
    for _ in 0..count {
        pool.next(&rig, |came| {
            let index = usize::try_from(came.number).map_err(Fail::here)?;
            let (Some(&size), Some(seen)) = (sizes.get(index), seen.get_mut(index)) else {
                return Err(Fail::here(format_args!("message {index} was never sent")));
            };
            check!(!std::mem::replace(seen, true), "message {index} came twice");
            check_eq!(came.bytes.len(), size, "message {index}");
            check_eq!(came.bytes.differs(size, came.number), None, "message {index}");
            Ok(())
        })?;
    }
    rig.barrier()
}

/// Tests that `FI_MULTI_RECV` in the operation flags applies to plain receives.
fn op_flags(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &spec().with(|spec| spec.hints.rx.op_flags = sys::FI_MULTI_RECV))?;
    if rank.index == 0 {
        rig.barrier()?;
        for index in 0..4 {
            rig.complete(1, || rig.ep.send(Buf::pattern(100, index), rig.peer(), 1))?;
        }
    } else {
        rig.inbox.setopt(sys::FI_OPT_MIN_MULTI_RECV, 64)?;
        let buf = Buf::new(420);
        rig.post(|| rig.inbox.recv(buf, sys::FI_ADDR_UNSPEC, 5))?;
        rig.barrier()?;
        let (mut messages, mut ends) = (0_u64, 0);
        while messages < 4 || ends < 1 {
            let entry = rig.received(5)?;
            if entry.len > 0 {
                let at = entry.buf - buf.addr();
                check_eq!(buf.sub(at, 100).differs(100, messages), None);
                messages += 1;
            }
            if entry.flags & sys::FI_MULTI_RECV != 0 {
                ends += 1;
            }
        }
        check_eq!((messages, ends), (4, 1));
    }
    rig.barrier()
}

fn two_senders(rank: &Rank) -> Outcome {
    const COUNT: usize = 500;
    let sizes = [8, 3000, 50_000];
    let rig = Rig::open(rank, &spec())?;
    if rank.index != 0 {
        rig.barrier()?;
        for (index, &size) in sizes.iter().cycle().take(COUNT).enumerate() {
            let buf = Buf::pattern(size, (rank.index * COUNT + index) as u64);
            let data = ((rank.index as u64) << 32) | index as u64;
            rig.post(|| rig.ep.senddata(buf, data, rig.to(0), 1))?;
            while rig.tx.kept() > 0 {
                rig.next(&rig.tx)?;
            }
        }
        return rig.barrier();
    }
    rig.inbox.setopt(sys::FI_OPT_MIN_MULTI_RECV, 50_000)?;
    let mut pool = Pool::post(&rig, 4, 200_000)?;
    rig.barrier()?;
    let mut seen = [[false; COUNT]; 3];
    for _ in 0..2 * COUNT {
        pool.next(&rig, |came| {
            let from = usize::try_from(came.number >> 32).map_err(Fail::here)?;
            let index = usize::try_from(came.number & 0xffff_ffff).map_err(Fail::here)?;
            let seen = seen.get_mut(from).and_then(|seen| seen.get_mut(index));
            let seen = seen.ok_or_else(|| Fail::here("a message nobody sent"))?;
            check!(!std::mem::replace(seen, true), "message {index} of rank {from} came twice");
            check_eq!(came.bytes.len(), sizes.get(index % sizes.len()).copied().unwrap_or(0));
            check_eq!(came.bytes.differs(came.bytes.len(), (from * COUNT + index) as u64), None);
            Ok(())
        })?;
    }
    rig.barrier()
}

/// Tests that a message too long for the rest of a buffer uses the next one, and that one too long
/// for any is truncated.
fn message_does_not_fit(rig: &Rig<'_>) -> Outcome {
    if rig.rank.index == 0 {
        rig.barrier()?;
        for size in [600, 700, 5000] {
            rig.complete(1, || rig.ep.send(Buf::pattern(size, size as u64), rig.peer(), 1))?;
        }
        return rig.barrier();
    }
    rig.inbox.setopt(sys::FI_OPT_MIN_MULTI_RECV, 16)?;
    let bufs = [Buf::new(1000), Buf::new(1000), Buf::new(1000)];
    for (index, &buf) in bufs.iter().enumerate() {
        let flags = sys::FI_MULTI_RECV | sys::FI_COMPLETION;
        rig.post(|| rig.inbox.recvmsg(&[buf], sys::FI_ADDR_UNSPEC, index, flags))?;
    }
    rig.barrier()?;
    let mut seen = Vec::new();
    let mut cut = false;
    while seen.len() < 2 || !cut {
        match rig.wait("a message or its loss", || Ok(rig.rx.take()))? {
            Ok(entry) if entry.len > 0 => {
                let buf = bufs.get(entry.context).ok_or_else(|| Fail::here("no such buffer"))?;
                let at = entry.buf - buf.addr();
                check_eq!(buf.sub(at, entry.len).differs(entry.len, entry.len as u64), None);
                seen.push(entry.len);
            }
            Ok(entry) => check!(entry.flags & sys::FI_MULTI_RECV != 0, "{entry:x?}"),
            Err(error) => {
                check_eq!(error.err, Errno::ETRUNC);
                cut = true;
            }
        }
    }
    check_eq!(seen, vec![600, 700]);
    rig.barrier()
}

/// Tests that a partly filled buffer can be cancelled, or is refused with `FI_EAGAIN` during a
/// transfer.
fn cancel(rig: &Rig<'_>) -> Outcome {
    if rig.rank.index == 0 {
        rig.barrier()?;
        rig.complete(1, || rig.ep.send(Buf::new(100), rig.peer(), 1))?;
        return rig.barrier();
    }
    let flags = sys::FI_MULTI_RECV | sys::FI_COMPLETION;
    let buf = Buf::new(10_000);
    rig.post(|| rig.inbox.recvmsg(&[buf], sys::FI_ADDR_UNSPEC, 3, flags))?;
    rig.barrier()?;
    rig.received(3)?;
    rig.wait("the cancel to be taken", || match rig.inbox.cancel(3) {
        Ok(()) => Ok(Some(())),
        Err(Errno::EAGAIN) => Ok(None),
        Err(e) => Err(e.into()),
    })?;
    match rig.wait("the end of the buffer", || Ok(rig.rx.take()))? {
        Err(error) => check_eq!((error.err, error.context), (Errno::ECANCELED, 3)),
        Ok(entry) => check!(entry.flags & sys::FI_MULTI_RECV != 0, "{entry:x?}"),
    }
    rig.barrier()
}

fn cq_data(rig: &Rig<'_>) -> Outcome {
    if rig.rank.index == 0 {
        rig.barrier()?;
        for index in 0..20 {
            rig.post(|| rig.ep.injectdata(Buf::pattern(16, index), index, rig.peer()))?;
        }
        return rig.barrier();
    }
    let mut pool = Pool::post(rig, 1, 4096)?;
    rig.barrier()?;
    for index in 0..20 {
        pool.next(rig, |came| {
            check_eq!((came.bytes.len(), came.number), (16, index));
            check_eq!(came.bytes.differs(16, index), None);
            Ok(())
        })?;
    }
    rig.barrier()
}

/// Tests that messages from before the buffer was posted fill it as well.
fn unexpected(rank: &Rank) -> Outcome {
    let sizes = [8, 20_000, 64, 0, 100_000, 5];
    let rig = Rig::open(rank, &spec())?;
    if rank.index == 0 {
        for (index, &size) in sizes.iter().enumerate() {
            rig.post(|| {
                rig.ep.senddata(Buf::pattern(size, index as u64), index as u64, rig.peer(), 1)
            })?;
        }
        rig.barrier()?;
        for _ in sizes {
            rig.sent(1)?;
        }
        return rig.barrier();
    }
    rig.barrier()?;
    let mut pool = Pool::post(&rig, 1, 400_000)?;
    for _ in sizes {
        pool.next(&rig, |came| {
            let size =
                usize::try_from(came.number).ok().and_then(|number| sizes.get(number).copied());
            check_eq!(Some(came.bytes.len()), size, "message {}", came.number);
            check_eq!(came.bytes.differs(came.bytes.len(), came.number), None);
            Ok(())
        })?;
    }
    rig.barrier()
}

fn option(rig: &Rig<'_>) -> Outcome {
    for value in [1, 64, 4096, 1 << 20] {
        rig.inbox.setopt(sys::FI_OPT_MIN_MULTI_RECV, value)?;
        check_eq!(rig.inbox.getopt(sys::FI_OPT_MIN_MULTI_RECV)?, (value, size_of::<usize>()));
    }
    Ok(())
}

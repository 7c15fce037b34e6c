// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One buffer for many messages: `FI_MULTI_RECV`. Mirrors fi_msg(3) and fi_endpoint(3), `FI_OPT_MIN_MULTI_RECV`.

use libfabric_sys as sys;
use scif_fabtests::fi::{Buf, Errno};
use scif_fabtests::harness::{Case, Fail, Outcome, Rank, case};
use scif_fabtests::rig::{Ask, Rig};
use scif_fabtests::{check, check_eq};

pub(crate) const CASES: &[Case] = &[
    case("multi_recv/small", 2, |r| stream(r, &[8, 100, 0, 64, 33], 4000)),
    case("multi_recv/large", 2, |r| {
        stream(r, &[20_000, 70_000, 1, 300_000], 60)
    }),
    case("multi_recv/mixed", 2, |r| {
        stream(r, &[1, 16_384, 16_385, 65, 4096, 100_000, 12], 300)
    }),
    case("multi_recv/op_flags", 2, op_flags),
    case("multi_recv/two_senders", 3, two_senders),
    case("multi_recv/message_does_not_fit", 2, message_does_not_fit),
    case("multi_recv/cancel", 2, cancel),
    case("multi_recv/cq_data", 2, cq_data),
    case("multi_recv/unexpected", 2, unexpected),
    case("multi_recv/option", 1, option),
];

fn ask() -> Ask {
    Ask::messages(false).with(|ask| ask.hints.caps |= sys::FI_MULTI_RECV)
}

/// The receiving side: buffers that are posted again when the provider gives them back.
struct Pool {
    bufs: Vec<Buf>,
    /// The end of what came last, by buffer.
    used: Vec<usize>,
}

/// What one completion brought.
struct Came {
    at: usize,
    len: usize,
    data: u64,
    buffer: usize,
    /// The buffer was given back with it.
    last: bool,
    /// There was a message, not only the end of a buffer.
    message: bool,
}

impl Pool {
    fn post(rig: &Rig<'_>, count: usize, size: usize) -> Outcome<Pool> {
        let pool = Pool {
            bufs: (0..count).map(|_| Buf::new(size)).collect(),
            used: vec![0; count],
        };
        for index in 0..count {
            pool.post_one(rig, index)?;
        }
        Ok(pool)
    }

    fn post_one(&self, rig: &Rig<'_>, index: usize) -> Outcome {
        let buf = *self.bufs.get(index).ok_or_else(|| Fail::here("no such buffer"))?;
        let flags = sys::FI_MULTI_RECV | sys::FI_COMPLETION;
        rig.post(|| rig.ep.recvmsg(&[buf], sys::FI_ADDR_UNSPEC, index, flags))
    }

    fn next(&mut self, rig: &Rig<'_>) -> Outcome<Came> {
        let entry = rig.next(&rig.rx)?;
        let index = entry.context;
        let (Some(buf), Some(used)) = (self.bufs.get(index), self.used.get_mut(index)) else {
            return Err(Fail::here(format_args!(
                "completion of an unknown buffer: {entry:x?}"
            )));
        };
        let last = entry.flags & sys::FI_MULTI_RECV != 0;
        let message = entry.flags & sys::FI_RECV != 0 && !(last && entry.len == 0 && entry.buf == 0);
        let at = if message {
            entry.buf.wrapping_sub(buf.addr())
        } else {
            *used
        };
        if message && entry.len > 0 {
            check!(
                at >= *used && at + entry.len <= buf.len(),
                "{} B at {at}, {used} used before",
                entry.len
            );
            *used = at + entry.len;
        }
        if last {
            *used = 0;
        }
        Ok(Came {
            at,
            len: entry.len,
            data: entry.data,
            buffer: index,
            last,
            message,
        })
    }

    fn bytes(&self, came: &Came) -> Outcome<Buf> {
        let buf = self
            .bufs
            .get(came.buffer)
            .ok_or_else(|| Fail::here("no such buffer"))?;
        Ok(buf.sub(came.at.min(buf.len() - came.len), came.len))
    }
}

/// A stream of messages through three buffers: each arrives whole, in order, and each buffer comes back once.
fn stream(rank: &Rank, sizes: &[usize], count: usize) -> Outcome {
    let rig = Rig::open(rank, &ask())?;
    let longest = sizes.iter().copied().max().unwrap_or(0);
    let sizes = || sizes.iter().copied().cycle().take(count);
    if rank.index == 0 {
        rig.barrier()?;
        for (index, size) in sizes().enumerate() {
            let buf = Buf::pattern(size, index as u64);
            rig.post(|| rig.ep.send(buf, rig.peer(), index))?;
            while rig.tx.kept() > 0 {
                rig.next(&rig.tx)?;
            }
        }
        return rig.barrier();
    }
    rig.ep.setopt(sys::FI_OPT_MIN_MULTI_RECV, longest)?;
    let mut pool = Pool::post(&rig, 3, longest * 4 + 64)?;
    rig.barrier()?;
    let mut returned = 0;
    for (index, size) in sizes().enumerate() {
        loop {
            let came = pool.next(&rig)?;
            if came.message {
                check_eq!(came.len, size, "message {index}");
                check_eq!(
                    pool.bytes(&came)?.differs(size, index as u64),
                    None,
                    "message {index}"
                );
            }
            if came.last {
                returned += 1;
                pool.post_one(&rig, came.buffer)?;
            }
            if came.message {
                break;
            }
        }
    }
    check!(returned > 0, "no buffer came back");
    rig.barrier()
}

/// `FI_MULTI_RECV` among the operation flags holds for plain receives.
fn op_flags(rank: &Rank) -> Outcome {
    let rig = Rig::open(
        rank,
        &ask().with(|ask| ask.hints.rx.op_flags = sys::FI_MULTI_RECV),
    )?;
    if rank.index == 0 {
        rig.barrier()?;
        for index in 0..4 {
            rig.post(|| rig.ep.send(Buf::pattern(100, index), rig.peer(), 1))?;
            rig.sent(1)?;
        }
    } else {
        rig.ep.setopt(sys::FI_OPT_MIN_MULTI_RECV, 64)?;
        let buf = Buf::new(420);
        rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 5))?;
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
    let rig = Rig::open(rank, &ask())?;
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
    rig.ep.setopt(sys::FI_OPT_MIN_MULTI_RECV, 50_000)?;
    let mut pool = Pool::post(&rig, 4, 200_000)?;
    rig.barrier()?;
    let mut next = [0_u64; 3];
    let mut messages = 0;
    while messages < 2 * COUNT {
        let came = pool.next(&rig)?;
        if came.message {
            messages += 1;
            let (from, index) = (
                usize::try_from(came.data >> 32).unwrap_or(0),
                came.data & 0xffff_ffff,
            );
            let slot = next.get_mut(from).ok_or_else(|| Fail::here("data of nobody"))?;
            check_eq!(index, *slot, "from rank {from}");
            *slot += 1;
            let seed = (from * COUNT) as u64 + index;
            check_eq!(pool.bytes(&came)?.differs(came.len, seed), None);
        }
        if came.last {
            pool.post_one(&rig, came.buffer)?;
        }
    }
    rig.barrier()
}

/// What does not fit into the rest of a buffer goes to the next one; what fits into none is cut.
fn message_does_not_fit(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &ask())?;
    if rank.index == 0 {
        rig.barrier()?;
        for size in [600, 700, 5000] {
            rig.post(|| rig.ep.send(Buf::pattern(size, size as u64), rig.peer(), 1))?;
            rig.sent(1)?;
        }
        return rig.barrier();
    }
    rig.ep.setopt(sys::FI_OPT_MIN_MULTI_RECV, 16)?;
    let bufs = [Buf::new(1000), Buf::new(1000), Buf::new(1000)];
    for (index, &buf) in bufs.iter().enumerate() {
        let flags = sys::FI_MULTI_RECV | sys::FI_COMPLETION;
        rig.post(|| rig.ep.recvmsg(&[buf], sys::FI_ADDR_UNSPEC, index, flags))?;
    }
    rig.barrier()?;
    let mut seen = Vec::new();
    let mut cut = false;
    while seen.len() < 2 || !cut {
        match rig.wait("a message or its loss", || Ok(rig.rx.take()))? {
            Ok(entry) if entry.len > 0 => {
                let buf = bufs
                    .get(entry.context)
                    .ok_or_else(|| Fail::here("no such buffer"))?;
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

/// A buffer that holds messages already may be cancelled, or is refused with `FI_EAGAIN` while one is under way.
fn cancel(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &ask())?;
    if rank.index == 0 {
        rig.barrier()?;
        rig.post(|| rig.ep.send(Buf::new(100), rig.peer(), 1))?;
        rig.sent(1)?;
        return rig.barrier();
    }
    let flags = sys::FI_MULTI_RECV | sys::FI_COMPLETION;
    let buf = Buf::new(10_000);
    rig.post(|| rig.ep.recvmsg(&[buf], sys::FI_ADDR_UNSPEC, 3, flags))?;
    rig.barrier()?;
    rig.received(3)?;
    rig.wait("the cancel to be taken", || match rig.ep.cancel(3) {
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

fn cq_data(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &ask())?;
    if rank.index == 0 {
        rig.barrier()?;
        for index in 0..20 {
            rig.post(|| rig.ep.injectdata(Buf::pattern(16, index), index, rig.peer()))?;
        }
        return rig.barrier();
    }
    let mut pool = Pool::post(&rig, 1, 4096)?;
    rig.barrier()?;
    for index in 0..20 {
        let came = pool.next(&rig)?;
        check_eq!((came.len, came.data), (16, index));
        check_eq!(pool.bytes(&came)?.differs(16, index), None);
    }
    rig.barrier()
}

/// Messages that were there before the buffer fill it just the same.
fn unexpected(rank: &Rank) -> Outcome {
    let sizes = [8, 20_000, 64, 0, 100_000, 5];
    let rig = Rig::open(rank, &ask())?;
    if rank.index == 0 {
        for (index, &size) in sizes.iter().enumerate() {
            rig.post(|| {
                rig.ep
                    .senddata(Buf::pattern(size, index as u64), 1, rig.peer(), 1)
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
    for (index, &size) in sizes.iter().enumerate() {
        let came = pool.next(&rig)?;
        check_eq!(came.len, size);
        check_eq!(pool.bytes(&came)?.differs(size, index as u64), None);
    }
    rig.barrier()
}

fn option(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &ask())?;
    for value in [1, 64, 4096, 1 << 20] {
        rig.ep.setopt(sys::FI_OPT_MIN_MULTI_RECV, value)?;
        check_eq!(
            rig.ep.getopt(sys::FI_OPT_MIN_MULTI_RECV)?,
            (value, size_of::<usize>())
        );
    }
    Ok(())
}

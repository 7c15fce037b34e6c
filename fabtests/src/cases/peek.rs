// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Peeking at messages before receiving them: `FI_PEEK`, `FI_CLAIM`, `FI_DISCARD`. Mirrors
//! fi_tagged(3). `MPI_Probe` and `MPI_Mprobe` are built on these flags.

use std::time::Duration;

use scif_fabtests::prelude::*;

use super::call_variants::check_bytes;

pub(crate) const CASES: &[Case] = &[
    case("peek/nothing", 2, |r| nothing(&Rig::open(r, &spec())?)),
    case("peek/finds", 2, |r| finds(&Rig::open(r, &spec())?)),
    case("peek/claim", 2, |r| claim(&Rig::open(r, &spec())?)),
    case("peek/claimed_message_is_exclusive", 2, |r| claimed_is_kept(&Rig::open(r, &spec())?)),
    case("peek/discard", 2, |r| discard(&Rig::open(r, &spec())?)),
    case("peek/claim_and_discard", 2, |r| claim_and_discard(&Rig::open(r, &spec())?)),
    case("peek/source", 3, source),
    case("peek/order", 2, |r| order(&Rig::open(r, &spec())?)),
    case("peek/many_misses", 2, |r| many_misses(&Rig::open(r, &spec())?)),
    case("peek/selective_completion", 2, selective),
    case("peek/to_itself", 1, |r| to_itself(&Rig::open(r, &spec())?)),
];

const SIZES: &[usize] = &[0, 8, 64, 4096, 16_384, 16_385, 100_000, 1 << 20];

fn spec() -> Spec {
    Spec::messages(true)
}

/// Returns the context of a peek or claim: memory that the provider may use until the message is
/// received.
pub(super) fn context() -> Buf {
    Buf::new(size_of::<sys::fi_context2>())
}

/// Peeks once; `None` when there is no such message.
pub(super) fn look(
    rig: &Rig<'_>,
    src: u64,
    tag: u64,
    ignore: u64,
    flags: u64,
    context: Buf,
) -> Outcome<Option<Entry>> {
    let flags = flags | sys::FI_PEEK | sys::FI_COMPLETION;
    rig.post(|| rig.inbox.trecvmsg(&[], TaggedMsg::from(src, tag, ignore, context.addr()), flags))?;
    match rig.wait("the answer to a peek", || Ok(rig.rx.take()))? {
        Ok(entry) => {
            check_eq!(entry.context, context.addr());
            Ok(Some(entry))
        }
        Err(error) => {
            check_eq!((error.err, error.context), (Errno::ENOMSG, context.addr()));
            check!(error.flags & sys::FI_TAGGED != 0, "flags {:#x}", error.flags);
            Ok(None)
        }
    }
}

/// Peeks until the message has arrived.
pub(super) fn find(rig: &Rig<'_>, tag: u64, flags: u64, context: Buf) -> Outcome<Entry> {
    rig.rank.step(format_args!("looking for tag {tag}"));
    loop {
        if let Some(entry) = look(rig, sys::FI_ADDR_UNSPEC, tag, 0, flags, context)? {
            return Ok(entry);
        }
    }
}

pub(crate) fn take(rig: &Rig<'_>, buf: Buf, flags: u64, context: Buf) -> Outcome<Entry> {
    let flags = flags | sys::FI_CLAIM | sys::FI_COMPLETION;
    rig.post(|| {
        rig.inbox.trecvmsg(
            &[buf],
            TaggedMsg::from(sys::FI_ADDR_UNSPEC, 0, 0, context.addr()),
            flags,
        )
    })?;
    rig.received(context.addr())
}

fn nothing(rig: &Rig<'_>) -> Outcome {
    let context = context();
    if rig.rank.index == 1 {
        for flags in [0, sys::FI_CLAIM, sys::FI_DISCARD] {
            check!(look(rig, sys::FI_ADDR_UNSPEC, 1, 0, flags, context)?.is_none());
            check!(look(rig, sys::FI_ADDR_UNSPEC, 0, u64::MAX, flags, context)?.is_none());
        }
        rig.barrier()?;
        // Another tag does not match.
        find(rig, 5, 0, context)?;
        check!(look(rig, sys::FI_ADDR_UNSPEC, 4, 0, 0, context)?.is_none());
        check!(look(rig, sys::FI_ADDR_UNSPEC, 4, 1, 0, context)?.is_some());
        rig.post(|| rig.inbox.trecv(Buf::new(8), sys::FI_ADDR_UNSPEC, 5, 0, 1))?;
        rig.received(1)?;
        check!(look(rig, sys::FI_ADDR_UNSPEC, 5, 0, 0, context)?.is_none());
    } else {
        rig.barrier()?;
        rig.complete(1, || rig.ep.tsend(Buf::new(8), rig.peer(), 5, 1))?;
    }
    rig.barrier()
}

/// Tests that a peek reports length, tag and data, and leaves the message in the queue.
fn finds(rig: &Rig<'_>) -> Outcome {
    for &size in SIZES {
        if rig.rank.index == 0 {
            rig.complete(1, || rig.ep.tsenddata(Buf::pattern(size, 1), 0x77, rig.peer(), 9, 1))?;
        } else {
            let context = context();
            for _ in 0..2 {
                let entry = find(rig, 9, 0, context)?;
                check_eq!((entry.len, entry.tag, entry.data), (size, 9, 0x77));
                let want = sys::FI_RECV | sys::FI_TAGGED | sys::FI_REMOTE_CQ_DATA;
                check_eq!(entry.flags & want, want, "flags {:#x}", entry.flags);
            }
            let buf = Buf::new(size);
            rig.post(|| rig.inbox.trecv(buf, sys::FI_ADDR_UNSPEC, 9, 0, 2))?;
            check_eq!(rig.received(2)?.len, size);
            check_bytes(&buf, size, 1, 0)?;
        }
        rig.barrier()?;
    }
    Ok(())
}

fn claim(rig: &Rig<'_>) -> Outcome {
    for &size in SIZES {
        if rig.rank.index == 0 {
            rig.complete(1, || rig.ep.tsenddata(Buf::pattern(size, 2), 3, rig.peer(), 9, 1))?;
        } else {
            let context = context();
            check_eq!(find(rig, 9, sys::FI_CLAIM, context)?.len, size);
            let buf = Buf::new(size + 10);
            let entry = take(rig, buf, 0, context)?;
            check_eq!((entry.len, entry.data), (size, 3));
            check_bytes(&buf, size, 2, 0)?;
            check!(look(rig, sys::FI_ADDR_UNSPEC, 9, 0, 0, context)?.is_none());
        }
        rig.barrier()?;
    }
    Ok(())
}

/// Tests that between claim and receive no other receive or peek gets the message.
fn claimed_is_kept(rig: &Rig<'_>) -> Outcome {
    for &size in SIZES {
        if rig.rank.index == 0 {
            for index in 0..2 {
                rig.post(|| rig.ep.tsend(Buf::pattern(size, index), rig.peer(), 9, 1))?;
            }
            rig.barrier()?;
            rig.sent(1)?;
            rig.sent(1)?;
        } else {
            rig.barrier()?;
            let (first, second, probe) = (context(), context(), context());
            find(rig, 9, sys::FI_CLAIM, first)?;
            find(rig, 9, sys::FI_CLAIM, second)?;
            check!(
                look(rig, sys::FI_ADDR_UNSPEC, 9, 0, 0, probe)?.is_none(),
                "a claimed message was found"
            );
            let open = Buf::new(size);
            rig.post(|| rig.inbox.trecv(open, sys::FI_ADDR_UNSPEC, 9, 0, 7))?;
            rig.silence(Duration::from_millis(5))?;
            // In the reverse order of arrival.
            for (context, seed) in [(second, 1), (first, 0)] {
                let buf = Buf::new(size);
                check_eq!(take(rig, buf, 0, context)?.len, size);
                check_bytes(&buf, size, seed, 0)?;
            }
            rig.inbox.cancel(7)?;
            check_eq!(rig.next_error(&rig.rx)?.err, Errno::ECANCELED);
        }
        rig.barrier()?;
    }
    Ok(())
}

fn discard(rig: &Rig<'_>) -> Outcome {
    for &size in SIZES {
        if rig.rank.index == 0 {
            for index in 0..2 {
                rig.post(|| rig.ep.tsend(Buf::pattern(size, index), rig.peer(), 9, 1))?;
            }
            rig.sent(1)?;
            rig.sent(1)?;
        } else {
            let context = context();
            check_eq!(find(rig, 9, sys::FI_DISCARD, context)?.len, size);
            let buf = Buf::new(size);
            rig.post(|| rig.inbox.trecv(buf, sys::FI_ADDR_UNSPEC, 9, 0, 2))?;
            check_eq!(rig.received(2)?.len, size);
            check_bytes(&buf, size, 1, 0)?;
        }
        rig.barrier()?;
    }
    Ok(())
}

fn claim_and_discard(rig: &Rig<'_>) -> Outcome {
    for &size in SIZES {
        if rig.rank.index == 0 {
            rig.complete(1, || rig.ep.tsend(Buf::new(size), rig.peer(), 9, 1))?;
        } else {
            let context = context();
            find(rig, 9, sys::FI_CLAIM, context)?;
            let flags = sys::FI_CLAIM | sys::FI_DISCARD | sys::FI_COMPLETION;
            rig.post(|| {
                rig.inbox.trecvmsg(
                    &[],
                    TaggedMsg::from(sys::FI_ADDR_UNSPEC, 9, 0, context.addr()),
                    flags,
                )
            })?;
            rig.received(context.addr())?;
            check!(look(rig, sys::FI_ADDR_UNSPEC, 9, 0, 0, context)?.is_none());
        }
        rig.barrier()?;
    }
    Ok(())
}

/// Tests that with directed receives a peek may name a source.
fn source(rank: &Rank) -> Outcome {
    let spec = spec().with(|spec| {
        spec.hints.caps |= sys::FI_DIRECTED_RECV | sys::FI_SOURCE;
        spec.sources = true;
    });
    let rig = Rig::open(rank, &spec)?;
    if rank.index != 0 {
        rig.complete(1, || rig.ep.tsend(Buf::new(rank.index), rig.to(0), 9, 1))?;
        return rig.barrier();
    }
    let context = context();
    for from in [2, 1] {
        rank.step(format_args!("looking for rank {from}"));
        let entry = loop {
            if let Some(entry) = look(&rig, rig.to(from), 9, 0, 0, context)? {
                break entry;
            }
        };
        check_eq!((entry.len, entry.src), (from, Some(rig.to(from))));
    }
    for from in [2, 1] {
        rig.post(|| rig.inbox.trecv(Buf::new(8), rig.to(from), 9, 0, 5))?;
        check_eq!(rig.received(5)?.len, from);
    }
    rig.barrier()
}

/// Tests that a peek finds the oldest matching message.
fn order(rig: &Rig<'_>) -> Outcome {
    if rig.rank.index == 0 {
        for size in 1..=20 {
            rig.complete(1, || rig.ep.tsend(Buf::new(size), rig.peer(), 100 + size as u64 % 3, 1))?;
        }
        rig.barrier()?;
        return rig.barrier();
    }
    rig.barrier()?;
    let context = context();
    check_eq!(find(rig, 100, 0, context)?.len, 3);
    check_eq!(find(rig, 101, 0, context)?.len, 1);
    check_eq!(find(rig, 102, 0, context)?.len, 2);
    for size in 1..=20 {
        let entry = look(rig, sys::FI_ADDR_UNSPEC, 0, u64::MAX, sys::FI_CLAIM, context)?;
        check_eq!(entry.map(|entry| entry.len), Some(size));
        check_eq!(take(rig, Buf::new(size), 0, context)?.len, size);
    }
    rig.barrier()
}

/// Tests that thousands of unsuccessful peeks affect neither memory nor order.
fn many_misses(rig: &Rig<'_>) -> Outcome {
    let context = context();
    for _ in 0..5000 {
        check!(look(rig, sys::FI_ADDR_UNSPEC, 1, 0, 0, context)?.is_none());
    }
    rig.barrier()?;
    rig.complete(1, || rig.ep.tsend(Buf::new(8), rig.peer(), 1, 1))?;
    find(rig, 1, sys::FI_DISCARD, context)?;
    rig.barrier()
}

/// Tests that an unsuccessful peek on a selective queue is reported even without `FI_COMPLETION`.
fn selective(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &spec().with(|spec| spec.selective = true))?;
    if rank.index == 1 {
        let context = context();
        rig.post(|| {
            rig.inbox.trecvmsg(
                &[],
                TaggedMsg::from(sys::FI_ADDR_UNSPEC, 1, 0, context.addr()),
                sys::FI_PEEK,
            )
        })?;
        check_eq!(rig.next_error(&rig.rx)?.err, Errno::ENOMSG);
        rig.barrier()?;
        check_eq!(find(&rig, 1, sys::FI_CLAIM, context)?.len, 100);
        check_eq!(take(&rig, Buf::new(100), 0, context)?.len, 100);
    } else {
        rig.barrier()?;
        rig.post(|| rig.ep.tsend(Buf::new(100), rig.peer(), 1, 1))?;
    }
    rig.barrier()
}

fn to_itself(rig: &Rig<'_>) -> Outcome {
    for &size in SIZES {
        let context = context();
        rig.post(|| rig.ep.tsend(Buf::pattern(size, 4), rig.to(0), 3, 1))?;
        check_eq!(find(rig, 3, sys::FI_CLAIM, context)?.len, size);
        let buf = Buf::new(size);
        take(rig, buf, 0, context)?;
        check_bytes(&buf, size, 4, 0)?;
        match rig.wait("the send", || Ok(rig.tx.take()))? {
            Ok(entry) => check_eq!(entry.context, 1),
            Err(error) => return Err(Fail::here(format_args!("{error:?}"))),
        }
    }
    Ok(())
}

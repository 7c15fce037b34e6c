// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Completion queues: formats, sources, blocking reads, signals, errors. Mirrors fi_cq(3).

use std::time::Duration;

use scif_fabtests::prelude::*;

pub(crate) const CASES: &[Case] = &[
    case("cq/format_context", 2, |r| format(r, sys::FI_CQ_FORMAT_CONTEXT)),
    case("cq/format_msg", 2, |r| format(r, sys::FI_CQ_FORMAT_MSG)),
    case("cq/format_data", 2, |r| format(r, sys::FI_CQ_FORMAT_DATA)),
    case("cq/format_tagged", 2, |r| format(r, sys::FI_CQ_FORMAT_TAGGED)),
    case("cq/open_every_kind", 1, |r| open_every_kind(&Rig::open(r, &Spec::messages(false))?)),
    case("cq/readfrom", 3, readfrom),
    case("cq/source_not_asked_for", 2, source_not_asked_for),
    case("cq/unknown_source", 2, unknown_source),
    case("cq/empty", 1, |r| nothing_there(&Rig::open(r, &Spec::messages(false))?)),
    case("cq/more_than_it_holds", 2, more_than_it_holds),
    case("cq/progress_with_unread_entries", 2, progress_beside_unread),
    case("cq/progress_with_immediate_completions", 2, progress_beside_immediate),
    case("cq/successes_before_an_error", 2, |r| {
        successes_before_an_error(&Rig::open(r, &Spec::messages(false))?)
    }),
    case("cq/shared_by_directions", 2, shared_by_directions),
    case("cq/shared_by_endpoints", 1, |r| {
        shared_by_endpoints(&Rig::open(r, &Spec::messages(false))?)
    }),
    case("cq/no_wait_object", 1, |r| no_wait_object(&Rig::open(r, &Spec::messages(false))?)),
    case("cq/busy_close", 1, |r| busy_close(&Rig::open(r, &Spec::messages(false))?)),
    case("cq/error_text", 1, |r| error_text(&Rig::open(r, &Spec::messages(false))?)),
];

fn format(rank: &Rank, format: u32) -> Outcome {
    let rig = Rig::open(rank, &Spec::messages(true).with(|spec| spec.format = format))?;
    let (tag, data) = (0xfeed_0000_0000_0001, 0x55);
    if rank.index == 0 {
        rig.complete(17, || rig.ep.tsenddata(Buf::pattern(100, 1), data, rig.peer(), tag, 17))?;
    } else {
        let buf = Buf::new(200);
        rig.post(|| rig.ep.trecv(buf, sys::FI_ADDR_UNSPEC, tag, 0, 23))?;
        let entry = rig.received(23)?;
        if format >= sys::FI_CQ_FORMAT_MSG {
            check_eq!(entry.len, 100);
            let want = sys::FI_RECV | sys::FI_TAGGED;
            check_eq!(entry.flags & want, want);
        }
        if format >= sys::FI_CQ_FORMAT_DATA {
            check_eq!(entry.data, data);
            check!(entry.flags & sys::FI_REMOTE_CQ_DATA != 0, "flags {:#x}", entry.flags);
        }
        if format >= sys::FI_CQ_FORMAT_TAGGED {
            check_eq!(entry.tag, tag);
        }
    }
    rig.barrier()
}

fn open_every_kind(rig: &Rig<'_>) -> Outcome {
    for format in sys::FI_CQ_FORMAT_UNSPEC..=sys::FI_CQ_FORMAT_TAGGED {
        for size in [0, 1, 2, 7, 128, 4096] {
            for wait_obj in
                [sys::FI_WAIT_NONE, sys::FI_WAIT_UNSPEC, sys::FI_WAIT_FD, sys::FI_WAIT_YIELD]
            {
                let cq =
                    Cq::open(&rig.domain, CqAttr { size, format, wait_obj, ..CqAttr::default() });
                match cq {
                    Ok(cq) => {
                        check_eq!(cq.class()?, sys::FI_CLASS_CQ);
                        check_eq!(cq.read(1), Err(Errno::EAGAIN));
                        check!(wait_obj != sys::FI_WAIT_FD || cq.wait_fd().is_ok());
                    }
                    Err(Errno::ENOSYS) if rig.rank.target.prov != "scif" => {}
                    Err(e) => {
                        return Err(Fail::here(format_args!("{format} {size} {wait_obj}: {e}")));
                    }
                }
            }
        }
    }
    let bad = |attr: CqAttr| Cq::open(&rig.domain, attr).is_err();
    check!(bad(CqAttr { format: 99, ..CqAttr::default() }), "an unknown format was taken");
    check!(bad(CqAttr { wait_obj: 99, ..CqAttr::default() }), "an unknown wait object was taken");
    Ok(())
}

/// Tests `FI_SOURCE`: the sender, as its number in the vector.
fn readfrom(rank: &Rank) -> Outcome {
    let rig = Rig::open(
        rank,
        &Spec::messages(false).with(|spec| {
            spec.hints.caps |= sys::FI_SOURCE;
            spec.sources = true;
        }),
    )?;
    check!(rig.info.caps() & sys::FI_SOURCE != 0);
    for size in [8, 5000, 100_000] {
        if rank.index == 0 {
            let mut seen = Vec::new();
            for _ in 0..2 {
                let buf = Buf::new(size);
                rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 1))?;
                let entry = rig.received(1)?;
                let from = [1, 2].into_iter().find(|&from| entry.src == Some(rig.to(from)));
                let from =
                    from.ok_or_else(|| Fail::here(format_args!("source {:?}", entry.src)))?;
                check_eq!(buf.differs(size, from as u64), None);
                seen.push(from);
            }
            seen.sort_unstable();
            check_eq!(seen, vec![1, 2]);
        } else {
            rig.complete(1, || rig.ep.send(Buf::pattern(size, rank.index as u64), rig.to(0), 1))?;
        }
        rig.barrier()?;
    }
    Ok(())
}

fn source_not_asked_for(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &Spec::messages(false).with(|spec| spec.sources = true))?;
    if rig.info.caps() & sys::FI_SOURCE != 0 {
        return Err(Fail::NotRun("the provider always tells the source".into()));
    }
    if rank.index == 0 {
        rig.complete(1, || rig.ep.send(Buf::new(8), rig.peer(), 1))?;
    } else {
        rig.post(|| rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, 1))?;
        check_eq!(rig.received(1)?.src, Some(sys::FI_ADDR_NOTAVAIL));
    }
    rig.barrier()
}

/// Tests `FI_SOURCE_ERR`: a sender outside the vector is reported with its address.
fn unknown_source(rank: &Rank) -> Outcome {
    let spec = Spec::messages(false).with(|spec| {
        spec.hints.caps |= sys::FI_SOURCE | sys::FI_SOURCE_ERR;
        spec.sources = true;
    });
    let rig = Rig::open(rank, &spec)?;
    if rank.index == 0 {
        rig.av.remove(&[rig.peer()], 0)?;
        rig.barrier()?;
        let buf = Buf::new(64);
        rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 1))?;
        let error = rig.next_error(&rig.rx)?;
        check_eq!((error.err, error.context, error.len), (Errno::EADDRNOTAVAIL, 1, 64));
        check_eq!(Some(&error.err_data), rig.names.get(1));
        check_eq!(buf.differs(64, 3), None);
    } else {
        rig.barrier()?;
        rig.complete(1, || rig.ep.send(Buf::pattern(64, 3), rig.peer(), 1))?;
    }
    rig.barrier()
}

fn nothing_there(rig: &Rig<'_>) -> Outcome {
    for _ in 0..100 {
        check_eq!(rig.rx.cq.read(1), Err(Errno::EAGAIN));
        check_eq!(rig.rx.cq.readfrom(1), Err(Errno::EAGAIN));
        check_eq!(rig.rx.cq.readerr(0).err(), Some(Errno::EAGAIN));
        check!(matches!(rig.rx.cq.progress(), Ok(0) | Err(Errno::EAGAIN)));
    }
    // A read of no entries removes none.
    rig.post(|| rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, 5))?;
    rig.post(|| rig.ep.send(Buf::new(8), rig.to(0), 6))?;
    for _ in 0..100 {
        check!(matches!(rig.rx.cq.progress(), Ok(0) | Err(Errno::EAGAIN)));
        check!(matches!(rig.tx.cq.progress(), Ok(0) | Err(Errno::EAGAIN)));
    }
    rig.received(5)?;
    rig.sent(6)?;
    Ok(())
}

/// Tests that a queue of four entries loses none of hundreds of unread completions.
fn more_than_it_holds(rank: &Rank) -> Outcome {
    const COUNT: usize = 500;
    let rig = Rig::open(rank, &Spec::messages(false).with(|spec| spec.cq_size = 4))?;
    if rank.index == 0 {
        for index in 0..COUNT {
            // The transmit queue is read only when the provider requires it.
            loop {
                match rig.ep.send(Buf::new(8), rig.peer(), index) {
                    Ok(()) => break,
                    Err(Errno::EAGAIN) => rig.pump()?,
                    Err(e) => return Err(e.into()),
                }
            }
        }
        for index in 0..COUNT {
            rig.sent(index)?;
        }
    } else {
        for index in 0..COUNT {
            loop {
                match rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, index) {
                    Ok(()) => break,
                    Err(Errno::EAGAIN) => rig.pump()?,
                    Err(e) => return Err(e.into()),
                }
            }
        }
        for index in 0..COUNT {
            rig.received(index)?;
        }
    }
    rig.barrier()
}

/// Tests that a read of no entries makes progress while completions are unread.
fn progress_beside_unread(rank: &Rank) -> Outcome {
    const LEN: usize = 1 << 20;
    let rig = Rig::open(rank, &Spec::messages(false))?;
    if rank.index == 1 {
        rig.barrier()?;
        rig.complete(1, || rig.ep.send(Buf::pattern(8, 1), rig.peer(), 1))?;
        rig.barrier()?;
        rig.complete(2, || rig.ep.send(Buf::pattern(LEN, 2), rig.peer(), 2))?;
        return rig.barrier();
    }
    let (first, second) = (Buf::new(8), Buf::new(LEN));
    for (context, buf) in [(1, first), (2, second)] {
        rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, context))?;
    }
    rig.barrier()?;
    let cq = &rig.rx.cq;
    rig.rank.step("something to read");
    while cq.progress() == Err(Errno::EAGAIN) {
        std::thread::yield_now();
    }
    rig.rank.step("the other receive, with nothing read");
    for _ in 0..2 {
        rank.barrier(&mut || {
            check_eq!(cq.progress(), Ok(0));
            Ok(())
        })?;
    }
    rig.received(1)?;
    rig.received(2)?;
    check_eq!(first.differs(8, 1), None);
    check_eq!(second.differs(LEN, 2), None);
    Ok(())
}

/// Tests that a program whose reads always find entries, because it keeps posting operations that
/// complete at once, still makes progress for its peers.
fn progress_beside_immediate(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &Spec::messages(true).with(|spec| spec.queues = Queues::One))?;
    if rank.index == 1 {
        rig.barrier()?;
        rig.complete(1, || rig.ep.tsend(Buf::pattern(8, 1), rig.peer(), 1, 1))?;
        return rig.barrier();
    }
    // A message to the endpoint itself completes within the call, at both ends.
    let connected = rig.info.ep().type_ == sys::FI_EP_MSG;
    let (to, ends) = if connected { (rig.peer(), 1) } else { (rig.to(0), 2) };
    let (buf, own) = (Buf::new(8), Buf::new(8));
    rig.ep.trecv(buf, sys::FI_ADDR_UNSPEC, 1, 0, 1)?;
    rig.barrier()?;
    rig.rank.step("a message among completions of our own");
    let mut heard = false;
    while !heard {
        if !connected {
            rig.ep.trecv(own, sys::FI_ADDR_UNSPEC, 2, 0, 2)?;
        }
        match rig.ep.tsend(own, to, 2, 2) {
            Ok(()) | Err(Errno::EAGAIN) => {}
            Err(e) => return Err(e.into()),
        }
        for _ in 0..ends {
            match rig.rx.cq.read(1) {
                Ok(read) => heard |= read.iter().any(|entry| entry.context == 1),
                Err(Errno::EAGAIN) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
    check_eq!(buf.differs(8, 1), None);
    rig.barrier()
}

/// Tests that completions before an error are read before it, and that the error stays until it is
/// taken.
fn successes_before_an_error(rig: &Rig<'_>) -> Outcome {
    if rig.rank.index == 0 {
        rig.barrier()?;
        for _ in 0..4 {
            rig.complete(1, || rig.ep.send(Buf::new(8), rig.peer(), 1))?;
        }
        rig.barrier()?;
        return rig.barrier();
    }
    for (context, len) in [(1, 8), (2, 8), (3, 4), (4, 8)] {
        rig.post(|| rig.ep.recv(Buf::new(len), sys::FI_ADDR_UNSPEC, context))?;
    }
    rig.rank.barrier(&mut || Ok(()))?;
    let cq = &rig.rx.cq;
    let mut seen = Vec::new();
    rig.rank.step("reading one by one");
    while seen.len() < 2 {
        match cq.read(1) {
            Ok(entries) => seen.extend(entries.iter().map(|entry| entry.context)),
            Err(Errno::EAGAIN) => std::thread::yield_now(),
            Err(e) => return Err(Fail::here(format_args!("{e} before two completions"))),
        }
    }
    check_eq!(seen, vec![1, 2]);
    let error = loop {
        match cq.read(1) {
            Err(Errno::EAVAIL) => {
                // The error stays until it is taken.
                check_eq!(cq.read(1), Err(Errno::EAVAIL));
                break cq.readerr(0)?;
            }
            Err(Errno::EAGAIN) => std::thread::yield_now(),
            other => return Err(Fail::here(format_args!("{other:?} instead of the error"))),
        }
    };
    check_eq!((error.context, error.err), (3, Errno::ETRUNC));
    check_eq!(cq.readerr(0).err(), Some(Errno::EAGAIN));
    rig.received(4)?;
    rig.barrier()?;
    rig.barrier()
}

fn shared_by_directions(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &Spec::messages(false).with(|spec| spec.queues = Queues::One))?;
    let buf = Buf::new(8);
    for _ in 0..200 {
        rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 1))?;
        rig.post(|| rig.ep.send(buf, rig.peer(), 2))?;
        let (a, b) = (rig.next(&rig.tx)?, rig.next(&rig.tx)?);
        check_eq!(a.context + b.context, 3);
    }
    rig.barrier()
}

/// Tests two endpoints on one queue.
fn shared_by_endpoints(rig: &Rig<'_>) -> Outcome {
    let other = scif_fabtests::fi::Ep::open(&rig.domain, &rig.info)?;
    other.attach(&rig.av, 0)?;
    other.attach(&rig.tx.cq, sys::FI_TRANSMIT)?;
    other.attach(&rig.rx.cq, sys::FI_RECV)?;
    other.enable()?;
    let name = other.name()?;
    check!(Some(&name) != rig.names.first(), "two endpoints have one name");
    let there = rig.av.insert(&name)?;
    let buf = Buf::new(64);
    rig.post(|| other.recv(buf, sys::FI_ADDR_UNSPEC, 1))?;
    rig.post(|| rig.ep.send(Buf::pattern(64, 5), there, 2))?;
    rig.received(1)?;
    rig.sent(2)?;
    check_eq!(buf.differs(64, 5), None);
    rig.post(|| other.send(Buf::pattern(64, 6), rig.to(0), 3))?;
    rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 4))?;
    rig.received(4)?;
    rig.sent(3)?;
    check_eq!(buf.differs(64, 6), None);
    drop(other);
    rig.silence(Duration::from_millis(5))
}

fn no_wait_object(rig: &Rig<'_>) -> Outcome {
    let cq = Cq::open(&rig.domain, CqAttr { wait_obj: sys::FI_WAIT_NONE, ..CqAttr::default() })?;
    check_eq!(cq.sread(1, 0, 0), Err(Errno::ENOSYS));
    check!(cq.wait_fd().is_err());
    Ok(())
}

fn busy_close(rig: &Rig<'_>) -> Outcome {
    check_eq!(rig.rx.cq.close(), Err(Errno::EBUSY));
    check_eq!(rig.rx.cq.read(1), Err(Errno::EAGAIN));
    Ok(())
}

fn error_text(rig: &Rig<'_>) -> Outcome {
    for number in [0, 1, -1, 265, i32::MAX, i32::MIN] {
        check!(!rig.rx.cq.strerror(number)?.is_empty() || number == 0, "no text for {number}");
    }
    Ok(())
}

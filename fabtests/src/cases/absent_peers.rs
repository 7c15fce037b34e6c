// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Peers that do not exist yet, exist without being enabled, or have closed gracefully and come
//! back.

use std::time::{Duration, Instant};

use scif_fabtests::prelude::*;

pub(crate) const CASES: &[Case] = &[
    case("absent_peers/no_listener", 2, no_listener).under(&[("FI_SCIF_CONNECT_TIMEOUT", "100ms")]),
    case("absent_peers/sent_before_the_other_opens", 2, sent_before),
    case("absent_peers/awaited_before_the_other_opens", 2, awaited_before)
        .under(&[("FI_SCIF_CONNECT_TIMEOUT", "100ms")]),
    case("absent_peers/request_before_enabling", 2, |r| {
        before_enabling(r, sys::FI_PROGRESS_MANUAL)
    }),
    case("absent_peers/request_before_enabling_under_auto_progress", 2, |r| {
        before_enabling(r, sys::FI_PROGRESS_AUTO)
    }),
    case("absent_peers/receives_outlast_a_close", 2, receives_outlast),
    case("absent_peers/closed_before_the_answer", 2, closed_early),
    case("absent_peers/the_next_life_comes_with_the_end_of_the_former", 2, next_life),
    case("absent_peers/no_memory_for_the_one_that_answers", 2, no_memory).within(30),
    case("absent_peers/no_descriptor_for_the_opener", 2, no_descriptor)
        .under(&[("FI_SCIF_CONNECT_TIMEOUT", "100ms")]),
];

fn spec() -> Spec {
    Spec::messages(false).with(|spec| spec.hints.caps |= sys::FI_TAGGED | sys::FI_DIRECTED_RECV)
}

/// Returns the address of an endpoint that was closed before any traffic.
fn former_name(rank: &Rank) -> Outcome<Vec<u8>> {
    let rig = Rig::open_alone(rank, &spec())?;
    Ok(rig.ep.name()?)
}

/// Returns the contribution of rank 1 to an exchange.
fn theirs(parts: &[Vec<u8>]) -> Outcome<Vec<u8>> {
    parts.get(1).cloned().ok_or_else(|| Fail::here("rank 1 said nothing"))
}

/// Tests that an operation to an address without a listener fails, and that the error names the
/// cause.
fn no_listener(rank: &Rank) -> Outcome {
    if rank.index == 1 {
        let name = former_name(rank)?;
        rank.exchange(&name, &mut || Ok(()))?;
        return rank.barrier(&mut || Ok(()));
    }
    let rig = Rig::open_alone(rank, &spec())?;
    let to = rig.av.insert(&theirs(&rig.exchange(&[])?)?)?;
    for size in [8, 100_000] {
        let error = rig.failure(&rig.tx, 3, || rig.ep.send(Buf::new(size), to, 3))?;
        check_eq!(error, Errno::ECONNREFUSED);
    }
    rig.barrier()
}

/// Tests that messages sent before the start of a peer arrive once the peer exists.
fn sent_before(rank: &Rank) -> Outcome {
    if rank.index == 1 {
        let name = former_name(rank)?;
        rank.exchange(&name, &mut || Ok(()))?;
        std::thread::sleep(Duration::from_millis(300));
        let rig = Rig::open_at(rank, &spec(), &name)?;
        for size in [8, 100_000] {
            let buf = Buf::new(size);
            rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, size))?;
            rig.received(size)?;
            check_eq!(buf.differs(size, 4), None);
        }
        return rig.barrier();
    }
    let rig = Rig::open_alone(rank, &spec())?;
    let to = rig.av.insert(&theirs(&rig.exchange(&[])?)?)?;
    for size in [8, 100_000] {
        rig.post(|| rig.ep.send(Buf::pattern(size, 4), to, size))?;
    }
    for _ in 0..2 {
        rig.next(&rig.tx)?;
    }
    rig.barrier()
}

/// Tests a directed receive from a process that starts 2 s later, for longer than sends may wait:
/// background attempts fail nothing, and the message of the process arrives.
fn awaited_before(rank: &Rank) -> Outcome {
    if rank.index == 1 {
        let name = former_name(rank)?;
        let parts = rank.exchange(&name, &mut || Ok(()))?;
        std::thread::sleep(Duration::from_secs(2));
        let rig = Rig::open_at(rank, &spec(), &name)?;
        let to = rig.av.insert(parts.first().ok_or_else(|| Fail::here("rank 0 said nothing"))?)?;
        rig.complete(2, || rig.ep.tsend(Buf::pattern(64, 6), to, 1, 2))?;
        return rig.barrier();
    }
    let rig = Rig::open_alone(rank, &spec())?;
    let name = rig.ep.name()?;
    let from = rig.av.insert(&theirs(&rig.exchange(&name)?)?)?;
    let buf = Buf::new(64);
    rig.post(|| rig.ep.trecv(buf, from, 1, 0, 5))?;
    let entry = rig.received(5)?;
    check_eq!((entry.len, buf.differs(64, 6)), (64, None));
    rig.barrier()
}

/// Tests a connection request to an endpoint that is not enabled: no thread spins meanwhile, and
/// the endpoint receives once it is enabled.
fn before_enabling(rank: &Rank, progress: u32) -> Outcome {
    let spec = spec().with(|spec| {
        spec.hints.data_progress = progress;
        spec.wait_obj = sys::FI_WAIT_UNSPEC;
    });
    if rank.index == 0 {
        let rig = Rig::open_alone(rank, &spec)?;
        let to = rig.av.insert(&theirs(&rig.exchange(&[])?)?)?;
        rig.complete(1, || rig.ep.send(Buf::pattern(64, 9), to, 1))?;
        rig.barrier()?;
        return rig.barrier();
    }
    let (info, _fabric, domain) = first_domain(rank, &spec)?;
    let attr = CqAttr {
        format: sys::FI_CQ_FORMAT_TAGGED,
        wait_obj: sys::FI_WAIT_UNSPEC,
        ..CqAttr::default()
    };
    let cq = Cq::open(&domain, attr)?;
    let av = Av::open(&domain, info.domain().av_type, 2)?;
    let ep = Ep::open(&domain, &info)?;
    ep.attach(&av, 0)?;
    ep.attach(&cq, sys::FI_TRANSMIT | sys::FI_RECV)?;
    rank.exchange(&ep.name()?, &mut || Ok(()))?;
    // The request has arrived.
    rank.barrier(&mut || Ok(()))?;
    let (start, used) = (Instant::now(), sandbox::processor_time());
    std::thread::sleep(Duration::from_millis(300));
    check_eq!(cq.sread(1, 0, 300), Err(Errno::EAGAIN));
    let (waited, worked) = (start.elapsed(), sandbox::processor_time() - used);
    check!(worked < waited / 4, "{worked:?} of work in {waited:?} of waiting");
    ep.enable()?;
    let buf = Buf::new(64);
    ep.recv(buf, sys::FI_ADDR_UNSPEC, 5)?;
    loop {
        match cq.sread(1, 0, -1) {
            Ok(_) => break,
            Err(Errno::EAGAIN) => {}
            Err(e) => return Err(e.into()),
        }
    }
    check_eq!(buf.differs(64, 9), None);
    rank.barrier(&mut || Ok(()))
}

/// Tests that a receive does not depend on a connection. The named peer closes its endpoint
/// gracefully: sends to it fail, but the receive stays and is filled when the peer returns at its
/// address. Only a death fails the receive.
fn receives_outlast(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &spec())?;
    rig.post(|| rig.ep.tinject(Buf::new(8), rig.peer(), 1))?;
    rig.post(|| rig.ep.trecv(Buf::new(8), rig.peer(), 1, 0, 1))?;
    rig.received(1)?;
    rig.barrier()?;
    if rank.index == 1 {
        let (name, other) = (rig.ep.name()?, rig.names.first().cloned().unwrap_or_default());
        drop(rig);
        rank.barrier(&mut || Ok(()))?;
        rank.barrier(&mut || Ok(()))?;
        let rig = Rig::open_at(rank, &spec(), &name)?;
        let to = rig.av.insert(&other)?;
        rig.complete(2, || rig.ep.send(Buf::pattern(64, 6), to, 2))?;
        return rig.barrier();
    }
    let buf = Buf::new(64);
    rig.post(|| rig.ep.recv(buf, rig.peer(), 5))?;
    rig.barrier()?;
    rank.step("sending until the close is noticed");
    loop {
        rig.post(|| rig.ep.tsend(Buf::new(8), rig.peer(), 9, 3))?;
        if rig.wait("the send or its failure", || Ok(rig.tx.take()))?.is_err() {
            break;
        }
    }
    rig.silence(Duration::from_millis(100))?;
    rig.barrier()?;
    let entry = rig.received(5)?;
    check_eq!((entry.len, buf.differs(64, 6)), (64, None));
    rig.barrier()
}

/// Tests that a message sent before the peer has accepted the connection arrives, though its sender
/// closes at once.
fn closed_early(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &spec())?;
    rank.barrier(&mut || Ok(()))?;
    if rank.index == 0 {
        rig.post(|| rig.ep.tinject(Buf::pattern(64, 7), rig.peer(), 1))?;
        drop(rig);
        return rank.barrier(&mut || Ok(()));
    }
    let buf = Buf::new(64);
    rig.post(|| rig.ep.trecv(buf, sys::FI_ADDR_UNSPEC, 1, 0, 2))?;
    let entry = rig.received(2)?;
    check_eq!((entry.len, buf.differs(64, 7)), (64, None));
    rig.barrier()
}

/// Tests a peer that closes its endpoint before it has read this rank's connection request, and
/// connects from the next endpoint at the same address. This rank reads both events at once, and
/// the new connection stays.
fn next_life(rank: &Rank) -> Outcome {
    const LARGE: usize = 300_000;
    let rig = Rig::open(rank, &spec())?;
    let pause = || rank.barrier(&mut || Ok(()));
    if rank.index == 1 {
        let (name, other) = (rig.ep.name()?, rig.names.first().cloned().unwrap_or_default());
        pause()?;
        drop(rig);
        let rig = Rig::open_at(rank, &spec(), &name)?;
        let to = rig.av.insert(&other)?;
        rig.ep.send(Buf::pattern(LARGE, 3), to, 2)?;
        pause()?;
        rig.sent(2)?;
        return rig.barrier();
    }
    // No progress on this side.
    rig.ep.send(Buf::new(8), rig.peer(), 1)?;
    pause()?;
    let buf = Buf::new(LARGE);
    rig.ep.recv(buf, rig.peer(), 4)?;
    pause()?;
    let entry = rig.received(4)?;
    check_eq!((entry.len, buf.differs(LARGE, 3)), (LARGE, None));
    rig.barrier()
}

/// Tests simultaneous open without memory on one side for the connection that the other has
/// accepted. That connection ends, and both communicate again once there is memory.
fn no_memory(rank: &Rank) -> Outcome {
    const LARGE: usize = 300_000;
    let rig = Rig::open(rank, &spec())?;
    let pause = || rank.barrier(&mut || Ok(()));
    pause()?;
    if rank.index == 1 {
        rig.ep.send(Buf::pattern(LARGE, 5), rig.peer(), 1)?;
        pause()?;
        pause()?;
        let ended = sandbox::without_more_memory(|| {
            rig.wait("the send or its failure", || Ok(rig.tx.take()))
        })??;
        if let Err(error) = ended {
            // Without memory for the key table of the peer, this side refuses the connection.
            let is_end = [Errno::ECONNRESET, Errno::ECONNREFUSED].contains(&error.err);
            check!(is_end, "{error:?}");
        }
        rig.barrier()?;
        rig.complete(2, || rig.ep.send(Buf::pattern(64, 6), rig.peer(), 2))?;
        return rig.barrier();
    }
    pause()?;
    // No progress on this side, so the request of rank 1 stays unread.
    rig.ep.send(Buf::new(8), rig.peer(), 3)?;
    let buf = Buf::new(LARGE);
    rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 4))?;
    // Rank 1 makes no progress meanwhile. If its memory cannot be accessed, the operation waits for
    // it.
    let begin = Instant::now();
    let mut ended = None;
    while ended.is_none() && begin.elapsed() < Duration::from_millis(300) {
        rig.pump()?;
        ended = rig.rx.take();
    }
    pause()?;
    rig.barrier()?;
    let ended = match ended {
        Some(ended) => ended,
        None => rig.wait("the receive or its failure", || Ok(rig.rx.take()))?,
    };
    match ended {
        Ok(_) => check_eq!(buf.differs(LARGE, 5), None),
        Err(error) => check_eq!(error.err, Errno::ECONNRESET),
    }
    let buf = Buf::new(64);
    rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 5))?;
    rig.received(5)?;
    check_eq!(buf.differs(64, 6), None);
    rig.barrier()
}

/// Tests a side without a descriptor for a connection. Its error names the cause, not a death of
/// the peer. It communicates with the peer afterwards, and receives from the peer are still posted.
fn no_descriptor(rank: &Rank) -> Outcome {
    rank.only_scif("the descriptors of a connection depend on the provider")?;
    let rig = Rig::open(rank, &spec())?;
    let buf = Buf::new(64);
    if rank.index == 1 {
        rig.barrier()?;
        rig.complete(1, || rig.ep.send(Buf::pattern(64, 7), rig.peer(), 1))?;
        rig.post(|| rig.ep.recv(buf, rig.peer(), 2))?;
        rig.received(2)?;
        check_eq!(buf.differs(64, 8), None);
        return rig.barrier();
    }
    rig.post(|| rig.ep.recv(buf, rig.peer(), 4))?;
    let error = sandbox::without_more_files(|| {
        rig.failure(&rig.tx, 3, || rig.ep.send(Buf::new(8), rig.peer(), 3))
    })??;
    check_eq!(error, Errno::EMFILE);
    check!(rig.rx.take().is_none(), "the receive ended with the send");
    rig.barrier()?;
    rig.received(4)?;
    check_eq!(buf.differs(64, 7), None);
    rig.complete(5, || rig.ep.send(Buf::pattern(64, 8), rig.peer(), 5))?;
    rig.barrier()
}

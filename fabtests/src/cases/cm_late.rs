// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Connected endpoints with late or repeated events: rejections, receives, wake-ups, connects.
//! Mirrors fi_cm(3) and fi_poll(3).

use std::sync::Arc;
use std::time::{Duration, Instant};

use scif_fabtests::prelude::*;

use super::cm::{CmRig, Line, PATIENCE_MS, bare, first, readable};

pub(crate) const CASES: &[Case] = &[
    case("cm/callers_that_hang_up", 2, hanging_up),
    case("cm/late_refusal", 2, late_refusal),
    case("cm/event_queue_read_before_sleeping", 2, taken_wakes),
    case("cm/asleep_before_the_endpoint", 2, |r| asleep_before(&bare(r)?)),
    case("cm/posted_after_the_end", 2, posted_after),
    case("cm/end_of_the_first_is_read_last", 2, |r| end_is_last(r, 0)),
    case("cm/end_of_the_second_is_read_last", 2, |r| end_is_last(r, 1)),
    case("cm/events_name_remaining_objects", 2, |r| named_by_the_rest(&bare(r)?)),
];

/// Tests that unanswered requests of peers that connect and close repeatedly are limited. Once they
/// are handled, new requests are read again.
fn hanging_up(rank: &Rank) -> Outcome {
    const CALLS: usize = 6000;
    const MOST: usize = 4096;
    rank.only_scif("the limit depends on the provider")?;
    let bare = bare(rank)?;
    if rank.index == 0 {
        let pep = bare.listening_for_all()?;
        bare.barrier()?;
        // All requests that are still unread.
        for _ in 0..CALLS {
            bare.idle()?;
        }
        let mut heard = 0;
        loop {
            match bare.eq.sread_cm(&bare.info, 256, 0) {
                Ok(event) => {
                    check_eq!(event.event, sys::FI_CONNREQ);
                    heard += 1;
                    let info = event.info.ok_or_else(|| Fail::here("no info"))?;
                    pep.reject(&info, &[])?;
                }
                Err(Errno::EAGAIN) => break,
                Err(e) => return Err(Fail::here(e)),
            }
        }
        check!(heard > 0 && heard <= MOST, "{heard} requests were kept");
        bare.barrier()?;
        bare.answer(&pep)?.greet()?;
        return bare.barrier();
    }
    let names = bare.exchange(&[])?;
    for _ in 0..CALLS {
        let line = bare.line(&bare.info)?;
        line.ep.connect(first(&names)?, &[])?;
    }
    bare.barrier()?;
    while bare.eq.sread_cm(&bare.info, 0, 0).is_ok() {}
    bare.barrier()?;
    bare.call(first(&names)?)?.greet()?;
    bare.barrier()
}

/// Tests the lifetime of a request handle: until `fi_accept` of the endpoint opened with it the
/// request can be rejected, and not afterwards.
fn late_refusal(rank: &Rank) -> Outcome {
    rank.only_scif("other providers free a handle that was used")?;
    let bare = bare(rank)?;
    if rank.index == 0 {
        let pep = bare.listening_for_all()?;
        let (info, _) = bare.request(&pep)?;
        let line = bare.line(&info)?;
        check_eq!(Ep::open(&bare.domain, &info).err(), Some(Errno::EINVAL));
        pep.reject(&info, b"late")?;
        check_eq!(pep.reject(&info, b"again"), Err(Errno::EINVAL));
        check_eq!(line.ep.accept(&[]), Err(Errno::EOPBADSTATE));
        drop(line);
        let (info, _) = bare.request(&pep)?;
        let line = bare.line(&info)?;
        line.ep.accept(&[])?;
        check_eq!(pep.reject(&info, b"too late"), Err(Errno::EINVAL));
        bare.expect(sys::FI_CONNECTED, line.ep.address()?)?;
        check_eq!(pep.reject(&info, b"too late"), Err(Errno::EINVAL));
        line.greet()?;
        return bare.barrier();
    }
    let names = bare.exchange(&[])?;
    let line = bare.line(&bare.info)?;
    line.ep.connect(first(&names)?, &[])?;
    check_eq!(bare.eq.sread_cm(&bare.info, 0, PATIENCE_MS).err(), Some(Errno::EAVAIL));
    let error = bare.eq.readerr()?;
    check_eq!((error.err, error.err_data), (sys::FI_ECONNREFUSED, b"late".to_vec()));
    bare.call(first(&names)?)?.greet()?;
    bare.barrier()
}

/// Tests that a reader of the event queue passes on the wake-ups of threads that sleep on other
/// queues of the connection.
fn taken_wakes(rank: &Rank) -> Outcome {
    let bare = CmRig { wait: sys::FI_WAIT_FD, ..bare(rank)? };
    let line = bare.pair()?;
    line.greet()?;
    bare.barrier()?;
    for round in 0..20 {
        if rank.index == 1 {
            line.recv(Buf::new(64), round)?;
            check_eq!(line.cq.read(1).err(), Some(Errno::EAGAIN));
            while bare.fabric.trywait(&[&*line.cq]) == Err(Errno::EAGAIN) {}
        }
        rank.barrier(&mut || Ok(()))?;
        if rank.index == 0 {
            line.send(Buf::new(16), round)?;
        }
        rank.barrier(&mut || Ok(()))?;
        if rank.index == 1 {
            check_eq!(bare.eq.read(0).err(), Some(Errno::EAGAIN));
            check!(readable(&*line.cq)?, "nothing woke the sleeper in round {round}");
        }
        check_eq!(line.done()?, (round, 16));
    }
    bare.barrier()
}

/// Tests that a receive posted to an ended connection wakes a thread that sleeps on its queue.
fn posted_after(rank: &Rank) -> Outcome {
    let bare = CmRig { wait: sys::FI_WAIT_FD, ..bare(rank)? };
    let line = bare.pair()?;
    bare.barrier()?;
    if rank.index == 0 {
        line.ep.shutdown(0)?;
    }
    bare.expect(sys::FI_SHUTDOWN, line.ep.address()?)?;
    for context in 0..20 {
        line.recv(Buf::new(8), context)?;
        bare.sleep_on(&*line.cq)?;
        check_eq!(line.failed()?, (context, Errno::ECANCELED));
    }
    bare.barrier()
}

/// Tests two connections on one queue, one of which ends. Messages sent before over either are read
/// before the failures of the end, however often the queue was read before.
fn end_is_last(rank: &Rank, ending: usize) -> Outcome {
    let bare = bare(rank)?;
    let pep = if rank.index == 0 { Some(bare.listening()?) } else { None };
    let names = bare.exchange(&pep.as_ref().map_or(Ok(Vec::new()), |pep| pep.name())?)?;
    for reads in 0..16 {
        let mut lines: Vec<Line> = Vec::new();
        for _ in 0..2 {
            let request = pep.as_ref().map(|pep| bare.request(pep)).transpose()?;
            let info = request.as_ref().map_or(&bare.info, |(info, _)| info);
            let line = match lines.first() {
                None => bare.line(info)?,
                Some(line) => bare.line_on(info, Arc::clone(&line.cq))?,
            };
            match request {
                Some(_) => line.ep.accept(&[])?,
                None => line.ep.connect(first(&names)?, &[])?,
            }
            bare.expect(sys::FI_CONNECTED, line.ep.address()?)?;
            lines.push(line);
        }
        let [one, other] = &*lines else {
            return Err(Fail::here("not two connections"));
        };
        let end = if ending == 0 { one } else { other };
        if rank.index == 0 {
            for (context, line) in [one, one, other, other].into_iter().enumerate() {
                line.recv(Buf::new(8), context)?;
            }
            for _ in 0..reads {
                check_eq!(one.cq.read(1).err(), Some(Errno::EAGAIN));
            }
            // No poll happens before all events have.
            rank.barrier(&mut || Ok(()))?;
            rank.barrier(&mut || Ok(()))?;
            let mut seen = [one.done()?, one.done()?];
            seen.sort_unstable();
            check_eq!(seen, [(0, 8), (2, 8)], "after {reads} reads");
            check_eq!(one.failed()?, (2 * ending + 1, Errno::ECANCELED));
        } else {
            rank.barrier(&mut || Ok(()))?;
            for line in [one, other] {
                line.send(Buf::new(8), 9)?;
                check_eq!(one.done()?.0, 9);
            }
            end.ep.shutdown(0)?;
            rank.barrier(&mut || Ok(()))?;
        }
        rank.barrier(&mut || Ok(()))?;
        bare.expect(sys::FI_SHUTDOWN, end.ep.address()?)?;
        rank.barrier(&mut || Ok(()))?;
        for line in &lines {
            line.ep.close()?;
        }
        // The other connection may have ended before the close of this one. No request of the next
        // round exists yet.
        while bare.eq.read(0).is_ok() {}
        rank.barrier(&mut || Ok(()))?;
    }
    rank.barrier(&mut || Ok(()))
}

/// Tests that an event names the remaining alias of an endpoint, not the closed endpoint.
fn named_by_the_rest(bare: &CmRig<'_>) -> Outcome {
    if bare.rank.index == 0 {
        let pep = bare.listening_for_all()?;
        let line = bare.answer(&pep)?;
        line.greet()?;
        bare.barrier()?;
        drop(line);
        return bare.barrier();
    }
    let names = bare.exchange(&[])?;
    let line = bare.call(first(&names)?)?;
    line.greet()?;
    let alias = line.ep.alias(sys::FI_TRANSMIT)?;
    line.ep.close()?;
    bare.barrier()?;
    bare.expect(sys::FI_SHUTDOWN, alias.address()?)?;
    bare.barrier()
}

/// Tests that the events of an endpoint wake a thread that slept on their queue before the endpoint
/// was opened.
fn asleep_before(bare: &CmRig<'_>) -> Outcome {
    const ROUNDS: usize = 5;
    /// Time in which the thread falls asleep.
    const PAUSE: Duration = Duration::from_millis(50);
    /// Maximum time of the fastest round: a connection takes some milliseconds, and a sleep that
    /// ends by a timer takes a second.
    const LATE_MAX: Duration = Duration::from_millis(300);
    if bare.rank.index == 0 {
        let pep = bare.listening_for_all()?;
        for _ in 0..ROUNDS {
            drop(bare.answer(&pep)?);
        }
        return bare.barrier();
    }
    let names = bare.exchange(&[])?;
    let mut fastest = Duration::MAX;
    for _ in 0..ROUNDS {
        let (line, event, took) = std::thread::scope(|scope| -> Outcome<_> {
            let sleeper = scope.spawn(|| (bare.eq.sread(PATIENCE_MS, 0), Instant::now()));
            std::thread::sleep(PAUSE);
            let line = bare.line(&bare.info)?;
            let begin = Instant::now();
            line.ep.connect(first(&names)?, &[])?;
            let (event, end) = sleeper.join().map_err(|_| Fail::here("a panic"))?;
            Ok((line, event?, end - begin))
        })?;
        check_eq!((event.event, event.fid), (sys::FI_CONNECTED, line.ep.address()?));
        fastest = fastest.min(took);
        bare.expect(sys::FI_SHUTDOWN, line.ep.address()?)?;
    }
    check!(fastest < LATE_MAX, "the thread was woken after {fastest:?}");
    bare.barrier()
}

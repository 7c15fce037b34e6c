// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Queues, counters and receive contexts of another provider that this one fills; the case acts as
//! the other provider. Mirrors fi_peer(3).
//!
//! Libraries before 2.3 have other layouts, which the provider must refuse.

use std::sync::Arc;

use scif_fabtests::fi::{Written, when};
use scif_fabtests::prelude::*;

use super::cm;

pub(crate) const CASES: &[Case] = &[
    case("peer/offered", 1, offered),
    case("peer/receives_first", 2, |r| messages(r, false)),
    case("peer/messages_first", 2, |r| messages(r, true)),
    case("peer/receives_in_many_pieces", 2, pieces),
    case("peer/to_itself", 1, to_itself),
    case("peer/errors_and_discards", 2, errors),
    case("peer/full_queue", 1, full_queue),
    case("peer/no_receive_requested_by_close", 2, closing),
    case("peer/no_receive_requested_by_event_read", 2, events),
    case("peer/no_receive_requested_at_a_connection_end", 2, ends),
    case("peer/an_answered_request_ends_nothing", 2, answered),
    case("peer/reading_is_the_owner_s", 1, refused),
    case("peer/triggered", 1, triggered),
    case("peer/unexpected_beyond_the_limit", 2, beyond_the_limit)
        .under(&[("FI_SCIF_UNEXPECTED_MAX", "2M")]),
];

pub(super) fn spec() -> Spec {
    Spec::caps(sys::FI_MSG | sys::FI_TAGGED | sys::FI_PEER)
}

/// First libfabric release with the layouts that the provider supports.
const SINCE: u32 = version(2, 3);

fn known(rank: &Rank) -> Outcome<bool> {
    Ok(load(rank)?.version() >= SINCE)
}

/// Ends a case if the library has other layouts.
pub(super) fn needs_peers(rank: &Rank) -> Outcome {
    needs_library(rank, SINCE, "peers in the provider's layout")
}

fn offered(rank: &Rank) -> Outcome {
    let lib = load(rank)?;
    let plain = offers(rank, lib, &Spec::caps(sys::FI_MSG).hints)?;
    let info = plain.first().ok_or_else(|| Fail::here("an empty list"))?;
    check_eq!(info.caps() & sys::FI_PEER, 0);
    match offers(rank, lib, &spec().hints) {
        Ok(list) => {
            check!(known(rank)?, "offered to a library of other layouts");
            check!(list.iter().all(|info| info.caps() & sys::FI_PEER != 0));
            // A limit above that of lnx makes its endpoints fail to open.
            check!(list.iter().all(|info| info.tx().rma_iov_limit <= 4));
        }
        Err(_) => check!(!known(rank)?, "not offered"),
    }
    if !known(rank)? {
        let fabric = Fabric::open(info)?;
        let domain = Domain::open(&fabric, info)?;
        let owner = Owner::new();
        check_eq!(owner.open_cq(&domain).err(), Some(Errno::EINVAL));
        check_eq!(owner.open_cntr(&domain).err(), Some(Errno::EINVAL));
        check_eq!(owner.open_srx(&domain).err(), Some(Errno::ENOSYS));
    }
    Ok(())
}

/// Endpoint whose queue, counter and receive context belong to an owner.
pub(super) struct Side<'r> {
    pub(super) rank: &'r Rank,
    pub(super) owner: &'static Owner,
    pub(super) domain: Arc<Domain>,
    pub(super) ep: Arc<Ep>,
    cq: Arc<Cq>,
    cntr: Arc<Cntr>,
    srx: Arc<Ep>,
    pub(super) av: Arc<Av>,
    /// Separate counter for triggered operations.
    when: Arc<Cntr>,
    /// Event queue for joins of groups.
    eq: Option<Arc<Eq>>,
    info: Info,
}

fn side(rank: &Rank) -> Outcome<Side<'_>> {
    side_with(rank, &spec())
}

pub(super) fn side_with<'r>(rank: &'r Rank, spec: &Spec) -> Outcome<Side<'r>> {
    needs_peers(rank)?;
    let (info, fabric, domain) = first_domain(rank, spec)?;
    let owner = Owner::new();
    let (cq, cntr, srx) =
        (owner.open_cq(&domain)?, owner.open_cntr(&domain)?, owner.open_srx(&domain)?);
    let when = Cntr::open(&domain, CntrAttr::default())?;
    let av = Av::open(&domain, sys::FI_AV_TABLE, 4)?;
    let ep = Ep::open(&domain, &info)?;
    ep.attach(&av, 0)?;
    ep.attach(&cq, sys::FI_TRANSMIT | sys::FI_RECV)?;
    let initiates =
        if spec.hints.caps & sys::FI_RMA == 0 { 0 } else { sys::FI_READ | sys::FI_WRITE };
    ep.attach(&cntr, sys::FI_SEND | initiates)?;
    ep.attach(&srx, 0)?;
    let eq = if spec.hints.caps & sys::FI_COLLECTIVE == 0 {
        None
    } else {
        let attr = EqAttr { wait_obj: sys::FI_WAIT_UNSPEC, ..EqAttr::default() };
        let eq = Eq::open(&fabric, attr)?;
        ep.attach(&eq, 0)?;
        Some(eq)
    };
    ep.enable()?;
    Ok(Side { rank, owner, domain, ep, cq, cntr, srx, av, when, eq, info })
}

impl Side<'_> {
    pub(super) fn pump(&self) -> Outcome {
        match self.cq.progress() {
            Ok(_) | Err(Errno::EAGAIN) => {}
            Err(e) => return Err(Fail::here(e)),
        }
        self.cntr.read()?;
        Ok(())
    }

    pub(super) fn until(&self, mut ready: impl FnMut(&Owner) -> bool) -> Outcome {
        while !ready(self.owner) {
            self.pump()?;
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Repeats a send call until it is accepted.
    pub(super) fn post(&self, mut call: impl FnMut(&Ep) -> Result<(), Errno>) -> Outcome {
        loop {
            match call(&self.ep) {
                Err(Errno::EAGAIN) => self.pump()?,
                taken => return Ok(taken?),
            }
            std::thread::yield_now();
        }
    }

    pub(super) fn meet(&self) -> Outcome<Vec<u64>> {
        let names = self.rank.exchange(&self.ep.name()?, &mut || self.pump())?;
        let addrs = names.iter().map(|name| self.av.insert(name));
        Ok(addrs.collect::<Result<_, _>>()?)
    }

    pub(super) fn barrier(&self) -> Outcome {
        self.rank.barrier(&mut || self.pump())?;
        self.pump()
    }

    /// Waits until `count` entries were written since the last call, and returns them.
    pub(super) fn written(&self, count: usize) -> Outcome<Vec<Written>> {
        self.until(|owner| owner.call_log().written.len() >= count)?;
        Ok(std::mem::take(&mut self.owner.call_log().written))
    }
}

pub(super) const LENS: [usize; 5] = [8, 48, 3000, 100_000, 2_000_000];

fn messages(rank: &Rank, first: bool) -> Outcome {
    let side = side(rank)?;
    let to = side.meet()?.get(rank.peer()).copied().unwrap_or(0);
    for (round, len) in LENS.into_iter().enumerate() {
        let tag = 100 + round as u64;
        if rank.index == 1 {
            if !first {
                side.barrier()?;
            }
            let (tagged, plain) = (Buf::pattern(len, tag), Buf::pattern(len, tag + 50));
            side.post(|ep| ep.tsend(tagged, to, tag, 1))?;
            side.post(|ep| ep.send(plain, to, 2))?;
            if first {
                side.barrier()?;
            }
            let mut sent = side.written(2)?;
            sent.sort_by_key(|w| w.context);
            check_eq!(sent.iter().map(|w| w.context).collect::<Vec<_>>(), vec![1, 2]);
            check!(sent.iter().all(|w| w.err == 0 && w.flags & sys::FI_SEND != 0));
        } else {
            let bufs = [Buf::new(len), Buf::new(len)];
            let [tagged, plain] = bufs;
            let post = || -> Outcome {
                side.owner.receive(Some((tag, 0)), tagged, 11)?;
                Ok(side.owner.receive(None, plain, 12)?)
            };
            let before = side.owner.call_log().freed;
            if first {
                side.barrier()?;
                side.until(|owner| owner.waiting() == 2)?;
                post()?;
            } else {
                post()?;
                side.barrier()?;
            }
            let mut came = side.written(2)?;
            came.sort_by_key(|w| w.context);
            let want =
                [(11, sys::FI_RECV | sys::FI_TAGGED, tag), (12, sys::FI_RECV | sys::FI_MSG, 0)];
            for (have, (context, flags, tag)) in came.iter().zip(want) {
                check_eq!(
                    (have.context, have.flags, have.len, have.tag, have.err),
                    (context, flags, len, tag, 0)
                );
            }
            check_eq!(tagged.differs(len, tag), None);
            check_eq!(plain.differs(len, tag + 50), None);
            side.until(|owner| owner.call_log().freed == before + 2)?;
        }
        side.barrier()?;
    }
    if rank.index == 1 {
        side.until(|owner| owner.call_log().good == 2 * LENS.len() as u64)?;
    }
    check_eq!(side.owner.call_log().bad, 0);
    side.barrier()
}

/// Tests receives with more list elements than the provider permits in its own.
fn pieces(rank: &Rank) -> Outcome {
    const PIECES: usize = 12;
    let side = side(rank)?;
    let to = side.meet()?.get(rank.peer()).copied().unwrap_or(0);
    for (round, len) in LENS.into_iter().enumerate() {
        let tags = [2 * round as u64, 2 * round as u64 + 1];
        let [posted, unexpected] = tags;
        if rank.index == 1 {
            side.barrier()?;
            for tag in tags {
                side.post(|ep| ep.tsend(Buf::pattern(len, tag), to, tag, 1))?;
            }
            check!(side.written(2)?.iter().all(|w| w.err == 0));
        } else {
            let bufs = [Buf::new(len), Buf::new(len)];
            let [first, second] = bufs;
            let freed = side.owner.call_log().freed;
            side.owner.receive_in_pieces(posted, (first, PIECES), 11)?;
            side.barrier()?;
            side.until(|owner| owner.waiting() == 1)?;
            side.owner.receive_in_pieces(unexpected, (second, PIECES), 12)?;
            let mut came = side.written(2)?;
            came.sort_by_key(|w| w.context);
            let came: Vec<_> = came.iter().map(|w| (w.context, w.err, w.len)).collect();
            check_eq!(came, vec![(11, 0, len), (12, 0, len)]);
            check!(bufs.iter().zip(tags).all(|(buf, tag)| buf.differs(len, tag).is_none()));
            side.until(|owner| owner.call_log().freed == freed + 2)?;
        }
        side.barrier()?;
    }
    Ok(())
}

/// Tests that the owner is called only where it lets the peer make progress, not within a send.
fn to_itself(rank: &Rank) -> Outcome {
    let side = side(rank)?;
    let own = side.meet()?.first().copied().unwrap_or(0);
    for len in LENS {
        let (sent, buf) = (Buf::pattern(len, 3), Buf::new(len));
        side.post(|ep| ep.tsend(sent, own, 7, 1))?;
        check_eq!(side.owner.waiting(), 0, "asked while sending");
        side.until(|owner| owner.waiting() == 1)?;
        side.owner.receive(Some((7, 0)), buf, 2)?;
        side.written(2)?;
        check_eq!(buf.differs(len, 3), None);
    }
    Ok(())
}

fn errors(rank: &Rank) -> Outcome {
    let side = side(rank)?;
    let to = side.meet()?.get(rank.peer()).copied().unwrap_or(0);
    if rank.index == 1 {
        for (tag, len) in [(1, 3000), (2, 200_000), (3, 3000), (4, 200_000)] {
            let buf = Buf::pattern(len, tag);
            side.post(|ep| ep.tsend(buf, to, tag, 1))?;
        }
        side.written(4)?;
        side.barrier()?;
        return Ok(());
    }
    side.until(|owner| owner.waiting() == 4)?;
    // Two messages are discarded: their sends complete, and the receiver gets no entry.
    check!(side.owner.discard(1)? && side.owner.discard(2)?);
    for tag in [3, 4] {
        side.owner.receive(Some((tag, 0)), Buf::new(100), 9)?;
        let came = side.written(1)?;
        let error = came.first().copied().ok_or_else(|| Fail::here("an entry"))?;
        check_eq!((error.context, error.err, error.tag), (9, sys::FI_ETRUNC, tag));
    }
    side.barrier()
}

/// Tests that entries that the owner refuses are kept in order, together with their receives.
fn full_queue(rank: &Rank) -> Outcome {
    let side = side(rank)?;
    let own = side.meet()?.first().copied().unwrap_or(0);
    let into = [Buf::new(8), Buf::new(8), Buf::new(4)];
    for (tag, buf) in (1..).zip(into) {
        side.owner.receive(Some((tag, 0)), buf, 10 + buf.len())?;
    }
    side.owner.call_log().full = true;
    for tag in 1..=3 {
        let buf = Buf::pattern(8, tag);
        side.post(|ep| ep.tsend(buf, own, tag, 1))?;
    }
    // Offered repeatedly.
    side.until(|owner| owner.call_log().refused >= 100)?;
    let (written, freed) = {
        let call_log = side.owner.call_log();
        (call_log.written.len(), call_log.freed)
    };
    check_eq!((written, freed), (0, 0));
    check!(into.iter().take(2).zip(1..).all(|(buf, tag)| buf.differs(8, tag).is_none()));
    side.owner.call_log().full = false;
    let came = side.written(6)?;
    check_eq!(came.len(), 6);
    let received = came.iter().filter(|w| w.flags & sys::FI_RECV != 0);
    let received: Vec<_> = received.map(|w| (w.tag, w.context, w.err)).collect();
    check_eq!(received, vec![(1, 18, 0), (2, 18, 0), (3, 14, sys::FI_ETRUNC)]);
    side.until(|owner| owner.call_log().freed == 3)
}

/// Tests that a sender above the limit of unexpected messages is reset. Each entry of the owner is
/// then queued or freed.
fn beyond_the_limit(rank: &Rank) -> Outcome {
    const SENDS_MAX: usize = 10_000;
    let side = side(rank)?;
    let to = side.meet()?.get(rank.peer()).copied().unwrap_or(0);
    if rank.index == 1 {
        let buf = Buf::pattern(16_000, 1);
        let failed = |w: &Written| w.err != 0;
        let mut sends = 0;
        while sends < SENDS_MAX && !side.owner.call_log().written.iter().any(failed) {
            side.post(|ep| ep.tsend(buf, to, 1, 1))?;
            side.pump()?;
            sends += 1;
        }
        check!(sends < SENDS_MAX, "no send failed");
        return side.barrier();
    }
    side.barrier()?;
    let call_log = side.owner.call_log();
    check!(call_log.freed > 0, "no entry came back");
    check_eq!(call_log.asked, call_log.waiting() + call_log.freed);
    Ok(())
}

/// Tests that no receive is requested during the close of an endpoint, when the owner holds no
/// lock.
fn closing(rank: &Rank) -> Outcome {
    let side = side(rank)?;
    let to = side.meet()?.get(rank.peer()).copied().unwrap_or(0);
    // Both are connected.
    let buf = Buf::pattern(8, 1);
    side.post(|ep| ep.tsend(buf, to, 1, 1))?;
    side.owner.receive(Some((1, 0)), Buf::new(8), 2)?;
    side.written(2)?;
    side.barrier()?;
    // From this point only the sender makes progress.
    if rank.index == 1 {
        for _ in 0..3 {
            side.ep.tsend(buf, to, 2, 3)?;
        }
    }
    rank.barrier(&mut || Ok(()))?;
    if rank.index == 0 {
        let asked = side.owner.call_log().asked;
        // More than the ring can hold: the close waits for space.
        let long = Buf::pattern(4000, 2);
        while side.ep.tsend(long, to, 3, 4).is_ok() {}
        check_eq!(side.owner.call_log().asked, asked, "asked while sending");
        check_eq!(side.ep.close(), Ok(()));
        check_eq!(side.owner.call_log().asked, asked, "asked while closing");
    }
    rank.barrier(&mut || Ok(()))?;
    Ok(())
}

/// Tests that no receive is requested during a read of events either, although it makes progress on
/// other endpoints.
fn events(rank: &Rank) -> Outcome {
    let side = side_with(rank, &spec().with(|spec| spec.hints.caps |= sys::FI_COLLECTIVE))?;
    let to = side.meet()?.get(rank.peer()).copied().unwrap_or(0);
    let pause = || rank.barrier(&mut || Ok(()));
    // The receiver makes no progress from here on.
    pause()?;
    if rank.index == 1 {
        for tag in 1..=3 {
            side.post(|ep| ep.tsend(Buf::pattern(8, tag), to, tag, 1))?;
        }
        side.written(3)?;
        pause()?;
        return side.barrier();
    }
    pause()?;
    let eq = side.eq.as_ref().ok_or_else(|| Fail::here("no event queue"))?;
    for _ in 0..1000 {
        check_eq!(eq.sread_cm(&side.info, 256, 0).err(), Some(Errno::EAGAIN));
    }
    check_eq!(side.owner.call_log().asked, 0, "asked while reading events");
    side.until(|owner| owner.waiting() == 3)?;
    side.barrier()
}

/// Makes progress until the owner holds `count` messages.
fn keep(owner: &Owner, cq: &Cq, count: usize) -> Outcome {
    while owner.waiting() < count {
        match cq.progress() {
            Ok(_) | Err(Errno::EAGAIN) => std::thread::yield_now(),
            Err(e) => return Err(Fail::here(e)),
        }
    }
    Ok(())
}

/// Tests that no receive is requested when the end of a connection is read. Messages that arrived
/// over it are delivered when the owner permits progress.
fn ends(rank: &Rank) -> Outcome {
    needs_peers(rank)?;
    // Peers of such endpoints are not offered, but owners may give them a receive context.
    let bare = cm::bare(rank)?;
    let pause = || rank.barrier(&mut || Ok(()));
    if rank.index == 1 {
        let names = bare.exchange(&[])?;
        let line = bare.call(cm::first(&names)?)?;
        pause()?;
        for tag in 1..=3 {
            line.ep.tsend(Buf::pattern(8, tag), 0, tag, 1)?;
            line.done()?;
        }
        check_eq!(line.ep.close(), Ok(()));
        pause()?;
        return pause();
    }
    let owner = Owner::new();
    let (cq, srx) = (owner.open_cq(&bare.domain)?, owner.open_srx(&bare.domain)?);
    let pep = bare.listening_for_all()?;
    let (info, _) = bare.request(&pep)?;
    let ep = Ep::open(&bare.domain, &info)?;
    ep.attach(&bare.eq, 0)?;
    ep.attach(&cq, sys::FI_TRANSMIT | sys::FI_RECV)?;
    ep.attach(&srx, 0)?;
    ep.enable()?;
    ep.accept(&[])?;
    bare.expect(sys::FI_CONNECTED, ep.address()?)?;
    pause()?;
    // The peer has sent and shut down.
    pause()?;
    bare.expect(sys::FI_SHUTDOWN, ep.address()?)?;
    check_eq!(owner.call_log().asked, 0, "asked while reading events");
    keep(owner, &cq, 3)?;
    check_eq!(bare.eq.sread_cm(&bare.info, 256, 100).err(), Some(Errno::EAGAIN));
    pause()
}

/// Tests a caller that reads the accept and the end of the request's connection at once: it is
/// connected and stays so.
fn answered(rank: &Rank) -> Outcome {
    needs_peers(rank)?;
    let bare = cm::bare(rank)?;
    let pause = || rank.barrier(&mut || Ok(()));
    if rank.index == 0 {
        let pep = bare.listening_for_all()?;
        let line = bare.answer(&pep)?;
        pause()?;
        pause()?;
        line.ep.tsend(Buf::pattern(8, 1), 0, 1, 1)?;
        line.done()?;
        return pause();
    }
    let owner = Owner::new();
    let (cq, srx) = (owner.open_cq(&bare.domain)?, owner.open_srx(&bare.domain)?);
    let names = bare.exchange(&[])?;
    let ep = Ep::open(&bare.domain, &bare.info)?;
    ep.attach(&bare.eq, 0)?;
    ep.attach(&cq, sys::FI_TRANSMIT | sys::FI_RECV)?;
    ep.attach(&srx, 0)?;
    ep.enable()?;
    ep.connect(cm::first(&names)?, &[])?;
    pause()?;
    bare.expect(sys::FI_CONNECTED, ep.address()?)?;
    check_eq!(bare.eq.sread_cm(&bare.info, 256, 100).err(), Some(Errno::EAGAIN));
    pause()?;
    keep(owner, &cq, 1)?;
    pause()
}

/// Tests that triggered operations complete in the queue of the owner, by reads of the owner alone.
fn triggered(rank: &Rank) -> Outcome {
    let side = side_with(rank, &spec().with(|spec| spec.hints.caps |= sys::FI_TRIGGER))?;
    let own = side.meet()?.first().copied().unwrap_or(0);
    let context = when(&side.when, 1)?;
    let (buf, into) = (Buf::pattern(8, 3), Buf::new(8));
    side.owner.receive(Some((7, 0)), into, 2)?;
    let flags = sys::FI_TRIGGER | sys::FI_COMPLETION;
    side.post(|ep| ep.tsendmsg(&[buf], TaggedMsg::to(own, 7, context.addr()), flags))?;
    for _ in 0..100 {
        side.pump()?;
    }
    check!(side.owner.call_log().written.is_empty(), "before its time");
    side.when.add(1)?;
    let mut came = side.written(2)?;
    came.sort_by_key(|w| w.context != 2);
    let contexts: Vec<usize> = came.iter().map(|w| w.context).collect();
    check_eq!(contexts, vec![2, context.addr()]);
    check_eq!(into.differs(8, 3), None);
    Ok(())
}

fn refused(rank: &Rank) -> Outcome {
    let side = side(rank)?;
    check_eq!(side.cq.read(1).err(), Some(Errno::ENOSYS));
    check_eq!(side.cq.readerr(8).err(), Some(Errno::ENOSYS));
    check_eq!(side.cq.sread(1, 0, 0).err(), Some(Errno::ENOSYS));
    check_eq!(side.cq.signal().err(), Some(Errno::ENOSYS));
    check_eq!(side.cntr.add(1).err(), Some(Errno::ENOSYS));
    check_eq!(side.cntr.wait(1, 0).err(), Some(Errno::ENOSYS));
    check_eq!(side.srx.recv(Buf::new(8), 0, 1).err(), Some(Errno::ENOSYS));
    check_eq!(side.srx.close(), Err(Errno::EBUSY));
    check_eq!(side.cq.close(), Err(Errno::EBUSY));
    Ok(())
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Connected endpoints: connect, accept, reject, shutdown, and data transfer. Mirrors fi_cm(3).

use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use scif_fabtests::fi::CmEvent;
use scif_fabtests::prelude::*;

pub(crate) const CASES: &[Case] = &[
    case("cm/connect_and_talk", 2, |r| talk(&bare(r)?)),
    case("cm/data_both_ways", 2, |r| data(&bare(r)?)),
    case("cm/refused", 2, |r| refused(&bare(r)?)),
    case("cm/no_listener", 1, |r| absent(&bare(r)?)),
    case("cm/shutdown", 2, shutdown),
    case("cm/sent_before_the_end", 2, |r| last_words(&bare(r)?)),
    case("cm/dead_peer", 2, |r| dead_peer(&bare(r)?)),
    case("cm/one_sided", 2, |r| one_sided(&bare(r)?)),
    case("cm/tagged_and_large", 2, large),
    case("cm/passive_names", 1, |r| passive_names(&bare(r)?)),
    case("cm/port_of_a_passive_endpoint", 2, |r| reuse(&bare(r)?)),
    case("cm/port_is_not_lost", 1, |r| kept_port(&bare(r)?)),
    case("cm/backlog", 2, backlog),
    case("cm/states", 2, |r| states(&bare(r)?)),
    case("cm/many_connections", 2, many),
    case("cm/unread_requests", 2, |r| unread(&bare(r)?)),
    case("cm/descriptor", 2, descriptor),
    case("cm/closed_while_it_calls", 2, |r| closed_while_calling(&bare(r)?)),
];

/// Time limit in milliseconds for an event. It guards against hangs; no measurement uses it.
pub(super) const PATIENCE_MS: i32 = 20_000;
const ALL_CAPS: u64 = sys::FI_MSG | sys::FI_TAGGED | sys::FI_RMA;

pub(super) struct CmRig<'r> {
    pub(super) rank: &'r Rank,
    /// Wait object of the completion queues.
    pub(super) wait: u32,
    pub(super) info: Info,
    pub(super) fabric: Arc<Fabric>,
    pub(super) domain: Arc<Domain>,
    pub(super) eq: Arc<Eq>,
}

/// Endpoint with its one queue.
pub(super) struct Line {
    pub(super) ep: Arc<Ep>,
    pub(super) cq: Arc<Cq>,
}

fn bare_with(rank: &Rank, wait_obj: u32) -> Outcome<CmRig<'_>> {
    let mut spec = Spec::caps(ALL_CAPS);
    spec.hints.ep_type = sys::FI_EP_MSG;
    let (info, fabric, domain) = first_domain(rank, &spec)?;
    let attr = EqAttr { wait_obj, ..EqAttr::default() };
    let eq = Eq::open(&fabric, attr)?;
    Ok(CmRig { rank, wait: sys::FI_WAIT_NONE, info, fabric, domain, eq })
}

pub(super) fn bare(rank: &Rank) -> Outcome<CmRig<'_>> {
    bare_with(rank, sys::FI_WAIT_UNSPEC)
}

impl CmRig<'_> {
    /// Advances connections and leaves events in the queue.
    pub(super) fn idle(&self) -> Outcome {
        match self.fabric.trywait(&[&*self.eq]) {
            Ok(()) | Err(Errno::EAGAIN) => Ok(()),
            Err(e) => Err(Fail::here(e)),
        }
    }

    pub(super) fn barrier(&self) -> Outcome {
        self.rank.barrier(&mut || self.idle())?;
        self.idle()
    }

    pub(super) fn exchange(&self, mine: &[u8]) -> Outcome<Vec<Vec<u8>>> {
        self.rank.exchange(mine, &mut || self.idle())
    }

    fn event(&self) -> Outcome<CmEvent> {
        Ok(self.eq.sread_cm(&self.info, 256, PATIENCE_MS)?)
    }

    pub(super) fn expect(&self, event: u32, fid: usize) -> Outcome<CmEvent> {
        let got = self.event()?;
        check_eq!((got.event, got.fid), (event, fid));
        Ok(got)
    }

    pub(super) fn listening(&self) -> Outcome<Arc<Pep>> {
        let pep = Pep::open(&self.fabric, &self.info)?;
        pep.attach(&self.eq)?;
        pep.listen()?;
        Ok(pep)
    }

    /// Listens, and exchanges the name with the other ranks.
    pub(super) fn listening_for_all(&self) -> Outcome<Arc<Pep>> {
        let pep = self.listening()?;
        self.exchange(&pep.name()?)?;
        Ok(pep)
    }

    pub(super) fn line(&self, info: &Info) -> Outcome<Line> {
        let cq = Cq::open(
            &self.domain,
            CqAttr { format: sys::FI_CQ_FORMAT_TAGGED, wait_obj: self.wait, ..CqAttr::default() },
        )?;
        self.line_on(info, cq)
    }

    /// Opens an endpoint on a queue that others may share.
    pub(super) fn line_on(&self, info: &Info, cq: Arc<Cq>) -> Outcome<Line> {
        let ep = Ep::open(&self.domain, info)?;
        ep.attach(&self.eq, 0)?;
        ep.attach(&cq, sys::FI_TRANSMIT | sys::FI_RECV)?;
        ep.enable()?;
        Ok(Line { ep, cq })
    }

    /// Returns the next request to `pep`.
    pub(super) fn request(&self, pep: &Pep) -> Outcome<(Info, Vec<u8>)> {
        let event = self.expect(sys::FI_CONNREQ, pep.address()?)?;
        let info = event.info.ok_or_else(|| Fail::here("a request without an info"))?;
        Ok((info, event.data))
    }

    pub(super) fn answer(&self, pep: &Pep) -> Outcome<Line> {
        let (info, _) = self.request(pep)?;
        let line = self.line(&info)?;
        line.ep.accept(&[])?;
        self.expect(sys::FI_CONNECTED, line.ep.address()?)?;
        Ok(line)
    }

    pub(super) fn call(&self, name: &[u8]) -> Outcome<Line> {
        let line = self.line(&self.info)?;
        line.ep.connect(name, &[])?;
        self.expect(sys::FI_CONNECTED, line.ep.address()?)?;
        Ok(line)
    }

    /// Sleeps on the descriptor of a queue until it has an entry.
    pub(super) fn sleep_on(&self, queue: &dyn Fid) -> Outcome {
        loop {
            match self.fabric.trywait(&[queue]) {
                Err(Errno::EAGAIN) => return Ok(()),
                Err(e) => return Err(Fail::here(e)),
                Ok(()) => check!(readable(queue)?, "nothing woke the sleeper"),
            }
        }
    }

    /// Connects the ranks: rank 0 listens and accepts, rank 1 connects.
    pub(super) fn pair(&self) -> Outcome<Line> {
        if self.rank.index == 0 {
            let pep = self.listening()?;
            self.exchange(&pep.name()?)?;
            self.answer(&pep)
        } else {
            let names = self.exchange(&[])?;
            self.call(first(&names)?)
        }
    }
}

/// Whether the descriptor of a queue becomes readable.
pub(super) fn readable(queue: &dyn Fid) -> Outcome<bool> {
    let fd = queue.wait_fd()?;
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let patience = Timespec { tv_sec: i64::from(PATIENCE_MS / 1000), tv_nsec: 0 };
    Ok(poll(&mut fds, Some(&patience)) == Ok(1))
}

pub(super) fn first(names: &[Vec<u8>]) -> Outcome<&[u8]> {
    names.first().map(Vec::as_slice).ok_or_else(|| Fail::here("no name of rank 0"))
}

impl Line {
    pub(super) fn recv(&self, buf: Buf, context: usize) -> Outcome {
        Ok(self.ep.recv(buf, sys::FI_ADDR_UNSPEC, context)?)
    }

    pub(super) fn send(&self, buf: Buf, context: usize) -> Outcome {
        Ok(self.ep.send(buf, 0, context)?)
    }

    /// Returns context and length of the next completion.
    pub(super) fn done(&self) -> Outcome<(usize, usize)> {
        loop {
            match self.cq.read(1) {
                Ok(list) => {
                    if let Some(entry) = list.first() {
                        return Ok((entry.context, entry.len));
                    }
                }
                Err(Errno::EAGAIN) => std::thread::yield_now(),
                Err(Errno::EAVAIL) => {
                    let e = self.cq.readerr(0)?;
                    return Err(Fail::here(format_args!(
                        "completion of {} failed with {}",
                        e.context, e.err
                    )));
                }
                Err(e) => return Err(Fail::here(e)),
            }
        }
    }

    /// Returns context and error number of the next error entry.
    pub(super) fn failed(&self) -> Outcome<(usize, Errno)> {
        loop {
            match self.cq.read(1) {
                Ok(_) => return Err(Fail::here("a completion, not an error")),
                Err(Errno::EAGAIN) => std::thread::yield_now(),
                Err(Errno::EAVAIL) => {
                    let e = self.cq.readerr(0)?;
                    return Ok((e.context, e.err));
                }
                Err(e) => return Err(Fail::here(e)),
            }
        }
    }

    /// Sends and receives one message on each side.
    pub(super) fn greet(&self) -> Outcome {
        let (to, from) = (Buf::of(b"hello over there"), Buf::new(64));
        self.recv(from, 7)?;
        self.send(to, 8)?;
        let mut seen = vec![self.done()?, self.done()?];
        seen.sort_unstable();
        check_eq!(seen, [(7, 16), (8, 16)]);
        check_eq!(from.get(0, 16), to.get(0, 16));
        Ok(())
    }
}

fn talk(bare: &CmRig<'_>) -> Outcome {
    let line = bare.pair()?;
    for _ in 0..100 {
        line.greet()?;
    }
    check!(!line.ep.peer()?.is_empty(), "a connected endpoint has a peer");
    bare.barrier()
}

/// Tests connection data of every length up to the maximum, with request, accept and reject, and
/// that longer data is refused.
fn data(bare: &CmRig<'_>) -> Outcome {
    let pattern = |len: usize, add: usize| -> Vec<u8> {
        (0..len).map(|at| u8::try_from((at * 7 + add) % 251).unwrap_or(0)).collect()
    };
    let lengths = [0, 1, 16, 255, 256];
    if bare.rank.index == 0 {
        let pep = bare.listening()?;
        check!(pep.getopt(sys::FI_OPT_CM_DATA_SIZE)? >= 256, "at least 256 bytes");
        bare.exchange(&pep.name()?)?;
        for len in lengths {
            let (info, said) = bare.request(&pep)?;
            check_eq!(said, pattern(len, 1));
            check_eq!(pep.reject(&info, &pattern(4096, 0)), Err(Errno::EINVAL));
            pep.reject(&info, &pattern(len, 2))?;
            let (info, said) = bare.request(&pep)?;
            check_eq!(said, pattern(len, 3));
            let line = bare.line(&info)?;
            line.ep.accept(&pattern(len, 4))?;
            check_eq!(bare.expect(sys::FI_CONNECTED, line.ep.address()?)?.data.len(), 0);
            bare.barrier()?;
        }
        return Ok(());
    }
    let names = bare.exchange(&[])?;
    for len in lengths {
        let line = bare.line(&bare.info)?;
        let most = line.ep.getopt(sys::FI_OPT_CM_DATA_SIZE)?.0;
        check_eq!(line.ep.connect(first(&names)?, &vec![0; most + 1]), Err(Errno::EINVAL));
        line.ep.connect(first(&names)?, &pattern(len, 1))?;
        check_eq!(bare.eq.sread_cm(&bare.info, 256, PATIENCE_MS).err(), Some(Errno::EAVAIL));
        let error = bare.eq.readerr()?;
        check_eq!((error.fid, error.err), (line.ep.address()?, sys::FI_ECONNREFUSED));
        check_eq!(error.err_data, pattern(len, 2));
        let line = bare.line(&bare.info)?;
        line.ep.connect(first(&names)?, &pattern(len, 3))?;
        let event = bare.expect(sys::FI_CONNECTED, line.ep.address()?)?;
        check_eq!(event.data, pattern(len, 4));
        bare.barrier()?;
    }
    Ok(())
}

/// Tests that a request whose endpoint never accepts it, and the close of a passive endpoint, act
/// as rejections.
fn refused(bare: &CmRig<'_>) -> Outcome {
    if bare.rank.index == 0 {
        let pep = bare.listening_for_all()?;
        let (info, _) = bare.request(&pep)?;
        drop(bare.line(&info)?);
        bare.barrier()?;
        // The second request stays unread.
        drop(pep);
        return bare.barrier();
    }
    let names = bare.exchange(&[])?;
    for round in 0..2 {
        let line = bare.line(&bare.info)?;
        line.recv(Buf::new(8), 3)?;
        line.ep.connect(first(&names)?, b"please")?;
        if round == 1 {
            bare.barrier()?;
        }
        check_eq!(bare.eq.sread_cm(&bare.info, 0, PATIENCE_MS).err(), Some(Errno::EAVAIL));
        check_eq!(bare.eq.readerr()?.err, sys::FI_ECONNREFUSED);
        check_eq!(line.failed()?, (3, Errno::ECANCELED));
    }
    bare.barrier()
}

fn absent(bare: &CmRig<'_>) -> Outcome {
    let pep = bare.listening()?;
    let name = pep.name()?;
    drop(pep);
    let line = bare.line(&bare.info)?;
    line.ep.connect(&name, &[])?;
    check_eq!(bare.eq.sread_cm(&bare.info, 0, PATIENCE_MS).err(), Some(Errno::EAVAIL));
    let error = bare.eq.readerr()?;
    check_eq!((error.err, error.fid), (sys::FI_ECONNREFUSED, line.ep.address()?));
    Ok(())
}

fn shutdown(rank: &Rank) -> Outcome {
    let bare = bare(rank)?;
    let line = bare.pair()?;
    line.recv(Buf::new(8), 5)?;
    bare.barrier()?;
    if rank.index == 0 {
        check_eq!(line.ep.shutdown(1), Err(Errno::EBADFLAGS));
        line.ep.shutdown(0)?;
    }
    bare.expect(sys::FI_SHUTDOWN, line.ep.address()?)?;
    check_eq!(line.failed()?, (5, Errno::ECANCELED));
    check_eq!(line.ep.send(Buf::new(8), 0, 0), Err(Errno::ESHUTDOWN));
    // Posted too late, it fails as well.
    line.recv(Buf::new(8), 6)?;
    check_eq!(line.failed()?, (6, Errno::ECANCELED));
    bare.barrier()
}

/// Tests that messages sent before the end of the connection are received afterwards.
fn last_words(bare: &CmRig<'_>) -> Outcome {
    let line = bare.pair()?;
    if bare.rank.index == 0 {
        for context in 0..10 {
            line.send(Buf::pattern(1000, context as u64), context)?;
            check_eq!(line.done()?.0, context);
        }
        line.ep.shutdown(0)?;
        return bare.barrier();
    }
    bare.expect(sys::FI_SHUTDOWN, line.ep.address()?)?;
    for context in 0..10 {
        let buf = Buf::new(1000);
        line.recv(buf, context)?;
        check_eq!(line.done()?, (context, 1000));
        check_eq!(buf.differs(1000, context as u64), None);
    }
    bare.barrier()
}

/// Tests the death of a peer: rank 1 kills rank 0.
fn dead_peer(bare: &CmRig<'_>) -> Outcome {
    let line = bare.pair()?;
    line.greet()?;
    bare.barrier()?;
    if bare.rank.index == 0 {
        bare.rank.expect_death()?;
        return bare.barrier();
    }
    line.recv(Buf::new(8), 5)?;
    bare.rank.kill(0)?;
    bare.expect(sys::FI_SHUTDOWN, line.ep.address()?)?;
    check_eq!(line.failed()?.0, 5);
    check_eq!(line.ep.send(Buf::new(8), 0, 0), Err(Errno::ESHUTDOWN));
    Ok(())
}

fn one_sided(bare: &CmRig<'_>) -> Outcome {
    let line = bare.pair()?;
    let target = Buf::new(4096);
    let mr = Mr::reg(
        &bare.domain,
        target,
        MrRequest {
            access: sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE,
            key: 77,
            ..MrRequest::default()
        },
    )?;
    let keys = bare.exchange(&mr.key()?.to_ne_bytes())?;
    let key = keys
        .get(bare.rank.peer())
        .and_then(|k| k.first_chunk().copied())
        .map(u64::from_ne_bytes)
        .ok_or_else(|| Fail::here("no key"))?;
    let source = Buf::pattern(4096, bare.rank.index as u64);
    line.ep.write(source, 0, 0, key, 1)?;
    check_eq!(line.done()?.0, 1);
    bare.barrier()?;
    check_eq!(target.differs(4096, bare.rank.peer() as u64), None);
    let back = Buf::new(4096);
    line.ep.read(back, 0, 0, key, 2)?;
    check_eq!(line.done()?.0, 2);
    check_eq!(back.differs(4096, bare.rank.index as u64), None);
    bare.barrier()
}

fn large(rank: &Rank) -> Outcome {
    const LEN: usize = 3 << 20;
    let bare = bare(rank)?;
    let line = bare.pair()?;
    for round in 0..4_u64 {
        let (to, from) = (Buf::pattern(LEN, round), Buf::new(LEN));
        line.ep.trecv(from, sys::FI_ADDR_UNSPEC, round, 0, 1)?;
        line.ep.tsend(to, 0, round, 2)?;
        let mut seen = vec![line.done()?, line.done()?];
        seen.sort_unstable();
        check_eq!(seen, [(1, LEN), (2, LEN)]);
        check_eq!(from.differs(LEN, round), None);
    }
    bare.barrier()
}

fn passive_names(bare: &CmRig<'_>) -> Outcome {
    let pep = Pep::open(&bare.fabric, &bare.info)?;
    let name = pep.name()?;
    check_eq!(pep.listen(), Err(Errno::ENOEQ));
    pep.attach(&bare.eq)?;
    check_eq!(pep.attach(&bare.eq), Err(Errno::EINVAL));
    check_eq!(bare.eq.close(), Err(Errno::EBUSY));
    let other = Pep::open(&bare.fabric, &bare.info)?;
    check_eq!(other.set_name(&name), Err(Errno::EADDRINUSE));
    check_eq!(other.set_name(&[1, 2, 3]), Err(Errno::EINVAL));
    drop(pep);
    other.set_name(&name)?;
    check_eq!(other.name()?, name);
    other.attach(&bare.eq)?;
    other.listen()?;
    check_eq!(other.set_name(&name), Err(Errno::EOPBADSTATE));
    check_eq!(other.class()?, sys::FI_CLASS_PEP);
    Ok(())
}

/// Tests that an endpoint opened with the handle of a passive endpoint connects from its port.
fn reuse(bare: &CmRig<'_>) -> Outcome {
    if bare.rank.index == 0 {
        let pep = bare.listening_for_all()?;
        let (info, _) = bare.request(&pep)?;
        let line = bare.line(&info)?;
        line.ep.accept(&[])?;
        bare.expect(sys::FI_CONNECTED, line.ep.address()?)?;
        check_eq!(line.ep.name()?, pep.name()?);
        let names = bare.exchange(&[])?;
        let theirs = names.get(1).cloned().unwrap_or_default();
        let port = |name: &[u8]| name.get(2..4).map(<[u8]>::to_vec);
        check_eq!(port(&line.ep.peer()?), port(&theirs));
        return bare.barrier();
    }
    let names = bare.exchange(&[])?;
    let pep = Pep::open(&bare.fabric, &bare.info)?;
    let name = pep.name()?;
    let mut info = bare.info.dup()?;
    info.set_handle(&*pep)?;
    let line = bare.line(&info)?;
    info.clear_handle();
    check_eq!(line.ep.name()?, name);
    line.ep.connect(first(&names)?, &[])?;
    bare.expect(sys::FI_CONNECTED, line.ep.address()?)?;
    check_eq!(line.ep.peer()?, first(&names)?);
    bare.exchange(&name)?;
    bare.barrier()
}

/// Tests that a passive endpoint keeps its port until an endpoint opened with its handle takes it.
fn kept_port(bare: &CmRig<'_>) -> Outcome {
    let pep = Pep::open(&bare.fabric, &bare.info)?;
    let name = pep.name()?;
    let mut info = bare.info.dup()?;
    info.set_handle(&*pep)?;
    let opened = sandbox::without_more_files(|| Ep::open(&bare.domain, &info))?;
    let ep = match opened {
        Ok(ep) => ep,
        Err(error) => {
            check_eq!(pep.name()?, name, "after {error}");
            Ep::open(&bare.domain, &info)?
        }
    };
    check_eq!(ep.name()?, name);
    check_eq!(Ep::open(&bare.domain, &info).err(), Some(Errno::EOPBADSTATE));
    // A listening passive endpoint keeps its port.
    let listening = bare.listening()?;
    let name = listening.name()?;
    info.set_handle(&*listening)?;
    check_eq!(Ep::open(&bare.domain, &info).err(), Some(Errno::EOPBADSTATE));
    check_eq!(listening.name()?, name);
    info.clear_handle();
    Ok(())
}

fn states(bare: &CmRig<'_>) -> Outcome {
    let early = Ep::open(&bare.domain, &bare.info)?;
    check_eq!(early.enable(), Err(Errno::ENOCQ));
    check_eq!(early.shutdown(0), Err(Errno::EOPBADSTATE));
    check_eq!(early.accept(&[]), Err(Errno::EOPBADSTATE));
    drop(early);
    let idle = bare.line(&bare.info)?;
    check_eq!(idle.ep.send(Buf::new(1), 0, 0), Err(Errno::ENOTCONN));
    check_eq!(idle.ep.shutdown(0), Err(Errno::ENOTCONN));
    check_eq!(idle.ep.peer(), Err(Errno::ENOTCONN));
    check_eq!(idle.ep.connect(&[0; 16], &[]), Err(Errno::EINVAL));
    let line = bare.pair()?;
    check_eq!(line.ep.accept(&[]), Err(Errno::EOPBADSTATE));
    check_eq!(line.ep.connect(&line.ep.peer()?, &[]), Err(Errno::EISCONN));
    line.greet()?;
    check_eq!(bare.eq.close(), Err(Errno::EBUSY));
    bare.barrier()
}

/// Tests that a backlog is accepted without being a limit: more callers than that wait for an
/// accept.
fn backlog(rank: &Rank) -> Outcome {
    const CALLERS: usize = 5;
    let bare = bare(rank)?;
    rank.only_scif("the backlog depends on the provider")?;
    if rank.index == 0 {
        let pep = Pep::open(&bare.fabric, &bare.info)?;
        pep.attach(&bare.eq)?;
        for count in [0, i32::MAX, 1] {
            check_eq!(pep.set_backlog(count), Ok(()), "{count}");
        }
        for count in [-1, i32::MIN] {
            check_eq!(pep.set_backlog(count), Err(Errno::EINVAL), "{count}");
        }
        check_eq!(pep.control_null(sys::FI_BACKLOG), Err(Errno::EINVAL));
        check_eq!(pep.control_null(12_345), Err(Errno::ENOSYS));
        pep.listen()?;
        bare.exchange(&pep.name()?)?;
        bare.barrier()?;
        let requests: Vec<_> = (0..CALLERS).map(|_| bare.request(&pep)).collect::<Outcome<_>>()?;
        let mut lines = Vec::new();
        for (info, _) in &requests {
            let line = bare.line(info)?;
            line.ep.accept(&[])?;
            bare.expect(sys::FI_CONNECTED, line.ep.address()?)?;
            lines.push(line);
        }
        return bare.barrier();
    }
    let names = bare.exchange(&[])?;
    let mut lines = Vec::new();
    for _ in 0..CALLERS {
        let line = bare.line(&bare.info)?;
        line.ep.connect(first(&names)?, &[])?;
        lines.push(line);
    }
    bare.barrier()?;
    let mut waiting = lines.iter().map(|line| line.ep.address()).collect::<Result<Vec<_>, _>>()?;
    while !waiting.is_empty() {
        let event = bare.event()?;
        check_eq!(event.event, sys::FI_CONNECTED);
        check!(waiting.contains(&event.fid), "connected twice, or nobody's");
        waiting.retain(|fid| *fid != event.fid);
    }
    bare.barrier()
}

/// Tests many connections on one queue, each with its own order.
fn many(rank: &Rank) -> Outcome {
    const COUNT: usize = 40;
    let bare = bare(rank)?;
    let mut lines = Vec::new();
    if rank.index == 0 {
        let pep = bare.listening_for_all()?;
        for _ in 0..COUNT {
            lines.push(bare.answer(&pep)?);
        }
    } else {
        let names = bare.exchange(&[])?;
        for _ in 0..COUNT {
            lines.push(bare.call(first(&names)?)?);
        }
    }
    for _ in 0..3 {
        for line in &lines {
            line.greet()?;
        }
    }
    bare.barrier()
}

/// Tests requests in a queue that is closed: they leave nothing behind and are rejected.
fn unread(bare: &CmRig<'_>) -> Outcome {
    if bare.rank.index == 0 {
        let pep = bare.listening_for_all()?;
        bare.barrier()?;
        // Turns the request into an event, which stays unread.
        check_eq!(bare.fabric.trywait(&[&*bare.eq]), Err(Errno::EAGAIN));
        drop(pep);
        check_eq!(bare.eq.read(0).err(), Some(Errno::EAGAIN));
        return bare.barrier();
    }
    let names = bare.exchange(&[])?;
    let line = bare.line(&bare.info)?;
    line.ep.connect(first(&names)?, b"x")?;
    bare.barrier()?;
    check_eq!(bare.eq.sread_cm(&bare.info, 0, PATIENCE_MS).err(), Some(Errno::EAVAIL));
    check_eq!(bare.eq.readerr()?.err, sys::FI_ECONNREFUSED);
    bare.barrier()
}

/// Tests that the descriptor of the queue signals requests and replies.
fn descriptor(rank: &Rank) -> Outcome {
    let bare = bare_with(rank, sys::FI_WAIT_FD)?;
    let wait = || bare.sleep_on(&*bare.eq);
    let line = if rank.index == 0 {
        let pep = bare.listening_for_all()?;
        wait()?;
        let (info, _) = bare.request(&pep)?;
        let line = bare.line(&info)?;
        line.ep.accept(&[])?;
        line
    } else {
        let names = bare.exchange(&[])?;
        let line = bare.line(&bare.info)?;
        line.ep.connect(first(&names)?, &[])?;
        line
    };
    wait()?;
    bare.expect(sys::FI_CONNECTED, line.ep.address()?)?;
    bare.barrier()?;
    if rank.index == 0 {
        drop(line);
    } else {
        wait()?;
        bare.expect(sys::FI_SHUTDOWN, line.ep.address()?)?;
    }
    bare.barrier()
}

/// Tests a caller that closes: its request can be read and accepted, but the connection ends at
/// once.
fn closed_while_calling(bare: &CmRig<'_>) -> Outcome {
    if bare.rank.index == 0 {
        let pep = bare.listening_for_all()?;
        let (info, _) = bare.request(&pep)?;
        bare.barrier()?;
        bare.barrier()?;
        let line = bare.line(&info)?;
        line.ep.accept(&[])?;
        match bare.eq.sread_cm(&bare.info, 0, PATIENCE_MS) {
            Err(Errno::EAVAIL) => check!(bare.eq.readerr()?.err != 0, "an error has a number"),
            Err(e) => return Err(Fail::here(e)),
            Ok(event) => check_eq!(event.event, sys::FI_CONNECTED),
        }
        return bare.barrier();
    }
    let names = bare.exchange(&[])?;
    let line = bare.line(&bare.info)?;
    line.ep.connect(first(&names)?, &[])?;
    bare.barrier()?;
    drop(line);
    bare.barrier()?;
    bare.barrier()
}

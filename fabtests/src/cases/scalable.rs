// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Scalable endpoints: several contexts behind one address. Mirrors fi_endpoint(3), "Scalable
//! Endpoints".

use std::sync::Arc;

use scif_fabtests::fi::rx_addr;
use scif_fabtests::prelude::*;
use scif_fabtests::rig::RINGFUL;

pub(crate) const CASES: &[Case] = &[
    case("scalable/offered_when_asked", 1, offered),
    case("scalable/every_context_to_every_other", 2, all_to_all),
    case("scalable/receives_of_one_source", 3, directed),
    case("scalable/one_context_is_polled", 2, |r| one_polled(r, false)),
    case("scalable/one_context_sleeps", 2, |r| one_polled(r, true)),
    case("scalable/one_context_is_polled_with_a_key", 2, |r| one_polled(r, false))
        .under(&[("FI_SCIF_NET_KEY", "a key")]),
    case("scalable/address_typed_by_a_user", 2, typed),
    case("scalable/with_an_ordinary_endpoint", 2, ordinary),
    case("scalable/memory", 2, memory),
    case("scalable/counters", 2, counters),
    case("scalable/one_way", 1, one_way),
    case("scalable/binding", 1, binding),
    case("scalable/closing_order", 1, closing),
    case("scalable/source_address", 1, source_address),
    case("scalable/attributes_of_a_context", 1, attributes),
];

const CONTEXTS: usize = 3;
/// Number of address bits that select a context.
const BITS: u32 = 2;
/// Time after which a message was waited for in vain.
const SPENT: std::time::Duration = std::time::Duration::from_secs(10);

/// Scalable endpoint with enabled contexts, each with a queue.
struct Sep {
    domain: Arc<Domain>,
    av: Arc<Av>,
    sep: Arc<Ep>,
    tx: Vec<(Arc<Ep>, Arc<Cq>)>,
    rx: Vec<(Arc<Ep>, Arc<Cq>)>,
}

fn spec(caps: u64) -> Spec {
    Spec::caps(caps | sys::FI_NAMED_RX_CTX)
}

fn info(rank: &Rank, caps: u64) -> Outcome<Info> {
    let mut info = first_offer(rank, &spec(caps))?;
    info.set_contexts(CONTEXTS, CONTEXTS);
    Ok(info)
}

fn vector(domain: &Arc<Domain>, bits: u32) -> Outcome<Arc<Av>> {
    let attr = AvAttr { rx_ctx_bits: i32::try_from(bits).unwrap_or(0), ..AvAttr::default() };
    Ok(Av::open_with(domain, &attr)?.0)
}

fn queue(domain: &Arc<Domain>) -> Outcome<Arc<Cq>> {
    waiting_queue(domain, sys::FI_WAIT_NONE)
}

fn waiting_queue(domain: &Arc<Domain>, wait_obj: u32) -> Outcome<Arc<Cq>> {
    let attr = CqAttr { format: sys::FI_CQ_FORMAT_TAGGED, wait_obj, ..CqAttr::default() };
    Ok(Cq::open(domain, attr)?)
}

fn number(index: usize) -> i32 {
    i32::try_from(index).unwrap_or(-1)
}

impl Sep {
    fn open(rank: &Rank, caps: u64) -> Outcome<Sep> {
        Sep::open_waiting(rank, caps, sys::FI_WAIT_NONE)
    }

    /// Opens an endpoint whose queues have that wait object.
    fn open_waiting(rank: &Rank, caps: u64, wait_obj: u32) -> Outcome<Sep> {
        let info = info(rank, caps)?;
        let fabric = Fabric::open(&info)?;
        let domain = Domain::open(&fabric, &info)?;
        let sep = supported("fi_scalable_ep", Ep::scalable(&domain, &info))?;
        let av = vector(&domain, BITS)?;
        sep.attach(&av, 0)?;
        let (mut tx, mut rx) = (Vec::new(), Vec::new());
        for at in 0..CONTEXTS {
            let (out, sent) =
                (sep.tx_context(number(at), None)?, waiting_queue(&domain, wait_obj)?);
            out.attach(&sent, sys::FI_TRANSMIT)?;
            out.enable()?;
            tx.push((out, sent));
            let (into, received) =
                (sep.rx_context(number(at), None)?, waiting_queue(&domain, wait_obj)?);
            into.attach(&received, sys::FI_RECV)?;
            into.enable()?;
            rx.push((into, received));
        }
        sep.enable()?;
        Ok(Sep { domain, av, sep, tx, rx })
    }

    /// Makes progress on every queue, all of which must be empty.
    fn pump(&self) -> Outcome {
        for (_, cq) in self.tx.iter().chain(&self.rx) {
            match cq.progress() {
                Ok(_) | Err(Errno::EAGAIN | Errno::EAVAIL) => {}
                Err(e) => return Err(Fail::here(e)),
            }
        }
        Ok(())
    }

    /// Returns the next completion of one queue, with progress on all.
    #[track_caller]
    fn next(&self, cq: &Cq) -> Outcome<Entry> {
        let at = std::panic::Location::caller();
        loop {
            match cq.readfrom(1) {
                Ok(list) => {
                    return list.first().copied().ok_or_else(|| Fail::here("an empty completion"));
                }
                Err(Errno::EAGAIN) => {
                    self.pump()?;
                    std::thread::yield_now();
                }
                Err(e) => return Err(Fail::here(format_args!("{at}: {e}, {:?}", cq.readerr(0)))),
            }
        }
    }

    fn post(&self, mut call: impl FnMut() -> Result<(), Errno>) -> Outcome {
        loop {
            match call() {
                Err(Errno::EAGAIN) => self.pump()?,
                other => return Ok(other?),
            }
        }
    }

    fn barrier(&self, rank: &Rank) -> Outcome {
        rank.barrier(&mut || self.pump())?;
        (0..RINGFUL).try_for_each(|_| self.pump())
    }

    /// Exchanges names and returns the addresses of all ranks, in rank order.
    fn meet(&self, rank: &Rank) -> Outcome<Vec<u64>> {
        let names = rank.exchange(&self.sep.name()?, &mut || self.pump())?;
        names.iter().map(|name| Ok(self.av.insert(name)?)).collect()
    }
}

fn at<T>(list: &[T], index: usize) -> Outcome<&T> {
    list.get(index).ok_or_else(|| Fail::here("no such place"))
}

fn to(addr: u64, index: usize) -> u64 {
    rx_addr(addr, index as u64, BITS)
}

/// Tests that programs without a request for them see one context and no named contexts, because
/// they would choose other code paths.
fn offered(rank: &Rank) -> Outcome {
    let lib = load(rank)?;
    let more = |spec: &Spec| -> Outcome<Vec<(usize, usize, u64)>> {
        let list = offers(rank, lib, &spec.hints)?;
        let told = |info: &Info| {
            let domain = info.domain();
            (domain.max_ep_tx_ctx, domain.max_ep_rx_ctx, info.caps() & sys::FI_NAMED_RX_CTX)
        };
        Ok(list.iter().map(told).collect())
    };
    for unasked in [Spec::caps(0), Spec::caps(sys::FI_MSG | sys::FI_TAGGED)] {
        for offer in more(&unasked)? {
            check_eq!(offer, (1, 1, 0));
        }
    }
    let counted = Spec::caps(sys::FI_MSG).with(|spec| spec.hints.tx_ctx_cnt = 4);
    for (spec, named) in [(spec(sys::FI_MSG), sys::FI_NAMED_RX_CTX), (counted, 0)] {
        for (tx, rx, caps) in more(&spec)? {
            check!(tx > 1 && rx > 1, "{tx} and {rx} contexts");
            check_eq!(caps, named);
        }
    }
    let too_many = Spec::caps(sys::FI_MSG).with(|spec| spec.hints.rx_ctx_cnt = 100_000);
    check!(
        matches!(offers(rank, lib, &too_many.hints), Err(Fail::NotRun(_))),
        "contexts that no endpoint has"
    );
    let triggered = spec(sys::FI_MSG | sys::FI_TRIGGER);
    for (tx, rx, _) in more(&triggered)? {
        check_eq!((tx, rx), (1, 1));
    }
    let connected = spec(sys::FI_MSG).with(|spec| spec.hints.ep_type = sys::FI_EP_MSG);
    check!(
        matches!(offers(rank, lib, &connected.hints), Err(Fail::NotRun(_))),
        "contexts of a connected endpoint"
    );
    Ok(())
}

/// Tests that each transmit context reaches each receive context, with the endpoint as the source.
fn all_to_all(rank: &Rank) -> Outcome {
    const LENS: [usize; 5] = [8, 200, 9000, 20_000, 300_000];
    let sep = Sep::open(rank, sys::FI_MSG | sys::FI_TAGGED | sys::FI_SOURCE)?;
    let peer = *at(&sep.meet(rank)?, rank.peer())?;
    for (round, len) in LENS.into_iter().enumerate() {
        let tagged = round % 2 == 0;
        let mut posted = Vec::new();
        for (into, _) in &sep.rx {
            let bufs: Vec<Buf> = (0..CONTEXTS).map(|_| Buf::new(len)).collect();
            for (from, buf) in bufs.iter().enumerate() {
                if tagged {
                    into.trecv(*buf, sys::FI_ADDR_UNSPEC, from as u64, 0, from)?;
                } else {
                    into.recv(*buf, sys::FI_ADDR_UNSPEC, from)?;
                }
            }
            posted.push(bufs);
        }
        for (from, (out, _)) in sep.tx.iter().enumerate() {
            for into in 0..CONTEXTS {
                let seed = (from * CONTEXTS + into) as u64;
                let (buf, dest) = (Buf::pattern(len, seed), to(peer, into));
                if tagged {
                    sep.post(|| out.tsend(buf, dest, from as u64, into))?;
                } else {
                    sep.post(|| out.senddata(buf, seed, dest, into))?;
                }
            }
        }
        for (into, ((_, cq), bufs)) in sep.rx.iter().zip(&posted).enumerate() {
            for _ in 0..CONTEXTS {
                let entry = sep.next(cq)?;
                check_eq!((entry.len, entry.src), (len, Some(peer)));
                let from = if tagged {
                    check_eq!(entry.context as u64, entry.tag);
                    entry.context
                } else {
                    check_eq!(usize::try_from(entry.data).ok().map(|d| d % CONTEXTS), Some(into));
                    usize::try_from(entry.data).unwrap_or(0) / CONTEXTS
                };
                let seed = (from * CONTEXTS + into) as u64;
                check_eq!(at(bufs, entry.context)?.differs(len, seed), None);
            }
        }
        for (_, cq) in &sep.tx {
            for _ in 0..CONTEXTS {
                sep.next(cq)?;
            }
        }
        sep.barrier(rank)?;
    }
    Ok(())
}

/// Tests that a directed receive takes messages of any context of its source, before and after it
/// is posted, and no others.
fn directed(rank: &Rank) -> Outcome {
    const LEN: usize = 24;
    let sep = Sep::open(rank, sys::FI_TAGGED | sys::FI_SOURCE | sys::FI_DIRECTED_RECV)?;
    let peers = sep.meet(rank)?;
    for posted_first in [true, false] {
        for context in 0..CONTEXTS {
            if rank.index == 0 {
                let (into, cq) = at(&sep.rx, 1)?;
                // In the order of the ranks, of which rank 2 sends first.
                let bufs = [Buf::new(LEN), Buf::new(LEN), Buf::new(LEN)];
                if !posted_first {
                    sep.barrier(rank)?;
                    sep.barrier(rank)?;
                }
                for (nth, buf) in bufs.iter().enumerate() {
                    let source = match nth {
                        2 => sys::FI_ADDR_UNSPEC,
                        // The context in the address is irrelevant for the source.
                        _ => to(*at(&peers, nth + 1)?, nth),
                    };
                    into.trecv(*buf, source, 7, 0, nth)?;
                }
                if posted_first {
                    sep.barrier(rank)?;
                    sep.barrier(rank)?;
                }
                let mut seen = [0_u64; 3];
                for _ in 0..bufs.len() {
                    let entry = sep.next(cq)?;
                    let source = peers.iter().position(|p| Some(*p) == entry.src);
                    let place =
                        seen.get_mut(entry.context).ok_or_else(|| Fail::here("a context"))?;
                    *place = source.unwrap_or(99) as u64;
                    check_eq!(at(&bufs, entry.context)?.differs(LEN, *place), None);
                }
                check_eq!(seen, [1, 2, 2]);
            } else {
                let (out, cq) = at(&sep.tx, context)?;
                let buf = Buf::pattern(LEN, rank.index as u64);
                let dest = to(*at(&peers, 0)?, 1);
                let count = if rank.index == 2 { 2 } else { 1 };
                // Rank 2 sends first.
                if !posted_first || rank.index == 1 {
                    sep.barrier(rank)?;
                }
                if posted_first && rank.index == 2 {
                    sep.barrier(rank)?;
                }
                for _ in 0..count {
                    sep.post(|| out.tsend(buf, dest, 7, 0))?;
                }
                sep.barrier(rank)?;
                for _ in 0..count {
                    sep.next(cq)?;
                }
            }
            sep.barrier(rank)?;
        }
    }
    source_dies(rank, &sep, &peers)
}

/// Tests that a program may poll, or sleep on, the queue of one context only, as long as it waits
/// for the effect of messages that other contexts have sent and completed.
fn one_polled(rank: &Rank, sleeps: bool) -> Outcome {
    const LEN: usize = 8;
    // The first messages open the connections.
    const ROUNDS: usize = 2 * CONTEXTS;
    let wait = if sleeps { sys::FI_WAIT_FD } else { sys::FI_WAIT_NONE };
    let sep = Sep::open_waiting(rank, sys::FI_MSG, wait)?;
    let peer = *at(&sep.meet(rank)?, rank.peer())?;
    let bufs: Vec<Buf> = (0..ROUNDS).map(|_| Buf::new(LEN)).collect();
    for (round, buf) in bufs.iter().enumerate() {
        at(&sep.rx, round % CONTEXTS)?.0.recv(*buf, sys::FI_ADDR_UNSPEC, round)?;
    }
    sep.barrier(rank)?;
    for (round, buf) in bufs.iter().enumerate() {
        let (into, from) = (round % CONTEXTS, (round + 1) % CONTEXTS);
        let send = || -> Outcome {
            let (out, sent) = at(&sep.tx, from)?;
            while out.inject(Buf::pattern(LEN, round as u64), to(peer, into)) == Err(Errno::EAGAIN)
            {
                // Nothing completes.
                check_eq!(sent.read(1), Err(Errno::EAGAIN));
            }
            Ok(())
        };
        if rank.index == 0 {
            send()?;
        }
        let received = &at(&sep.rx, into)?.1;
        let began = std::time::Instant::now();
        loop {
            let read = if sleeps { received.sread(1, 0, 1000) } else { received.read(1) };
            match read {
                Ok(_) => break,
                Err(Errno::EAGAIN) if began.elapsed() < SPENT => std::thread::yield_now(),
                other => {
                    let text =
                        format_args!("round {round}, after {:?}: {other:?}", began.elapsed());
                    return Err(Fail::here(text));
                }
            }
        }
        check_eq!(buf.differs(LEN, round as u64), None);
        if rank.index == 1 {
            send()?;
        }
    }
    sep.barrier(rank)
}

/// Tests that the death of a source fails the receives that wait for it.
fn source_dies(rank: &Rank, sep: &Sep, peers: &[u64]) -> Outcome {
    const LEN: usize = 24;
    if rank.index == 2 {
        let (out, cq) = at(&sep.tx, 2)?;
        sep.post(|| out.tsend(Buf::pattern(LEN, 0), to(*at(peers, 0).unwrap_or(&0), 0), 1, 0))?;
        sep.next(cq)?;
        rank.expect_death()?;
        sep.barrier(rank)?;
        loop {
            sep.pump()?;
        }
    }
    if rank.index == 0 {
        let (into, cq) = at(&sep.rx, 0)?;
        into.trecv(Buf::new(LEN), *at(peers, 2)?, 1, 0, 1)?;
        sep.next(cq)?;
        into.trecv(Buf::new(LEN), to(*at(peers, 2)?, 2), 1, 0, 2)?;
        sep.barrier(rank)?;
        rank.kill(2)?;
        loop {
            match cq.read(1) {
                Err(Errno::EAGAIN) => std::thread::yield_now(),
                Err(Errno::EAVAIL) => break,
                other => return Err(Fail::here(format_args!("{other:?}"))),
            }
        }
        check_eq!(cq.readerr(0)?.context, 2);
    } else {
        sep.barrier(rank)?;
    }
    Ok(())
}

/// Tests that an address with nothing but IP address and port reaches each context, and that its
/// replies are reported with it.
fn typed(rank: &Rank) -> Outcome {
    let sep = Sep::open(rank, sys::FI_MSG | sys::FI_SOURCE)?;
    let name = sep.sep.name()?;
    let names = rank.exchange(&name, &mut || sep.pump())?;
    let theirs = at(&names, rank.peer())?;
    let (ip, port) = match theirs.get(2..8) {
        Some(&[high, low, a, b, c, d]) => {
            (format!("{a}.{b}.{c}.{d}"), u16::from_be_bytes([high, low]))
        }
        _ => return Err(Fail::NotRun("addresses are not sockaddr_in".into())),
    };
    let (count, peer) = sep.av.insert_service(&ip, &port.to_string())?;
    check_eq!(count, 1);
    for context in 0..CONTEXTS {
        let buf = Buf::new(8);
        at(&sep.rx, context)?.0.recv(buf, sys::FI_ADDR_UNSPEC, context)?;
        let (out, sent) = at(&sep.tx, context)?;
        let mine = Buf::pattern(8, context as u64);
        sep.post(|| out.send(mine, to(peer, context), 1))?;
        let entry = sep.next(&at(&sep.rx, context)?.1)?;
        check_eq!((entry.context, entry.src), (context, Some(peer)));
        check_eq!(buf.differs(8, context as u64), None);
        sep.next(sent)?;
    }
    sep.barrier(rank)
}

/// Tests that for an ordinary endpoint a scalable one is its first context, and an ordinary source.
fn ordinary(rank: &Rank) -> Outcome {
    let caps = sys::FI_MSG | sys::FI_SOURCE;
    if rank.index == 1 {
        let rig = Rig::open_alone(rank, &Spec::caps(caps).with(|spec| spec.sources = true))?;
        let names = rig.exchange(&rig.ep.name()?)?;
        let peer = rig.av.insert(at(&names, 0)?)?;
        let buf = Buf::new(8);
        for context in 0..CONTEXTS {
            rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 1)?;
            rig.post(|| rig.ep.send(Buf::pattern(8, 1), peer, 2))?;
            check_eq!(rig.received(1)?.src, Some(peer));
            check_eq!(buf.differs(8, context as u64), None);
            rig.sent(2)?;
        }
        return rig.barrier();
    }
    let sep = Sep::open(rank, caps)?;
    let peer = *at(&sep.meet(rank)?, 1)?;
    for context in 0..CONTEXTS {
        let buf = Buf::new(8);
        let (into, received) = at(&sep.rx, 0)?;
        into.recv(buf, sys::FI_ADDR_UNSPEC, 1)?;
        check_eq!(sep.next(received)?.src, Some(peer));
        let (out, sent) = at(&sep.tx, context)?;
        let mine = Buf::pattern(8, context as u64);
        sep.post(|| out.send(mine, peer, 1))?;
        sep.next(sent)?;
    }
    sep.barrier(rank)
}

/// Tests that memory belongs to the domain: every transmit context accesses it, through any receive
/// context.
fn memory(rank: &Rank) -> Outcome {
    const LEN: usize = 50_000;
    let sep = Sep::open(rank, sys::FI_MSG | sys::FI_RMA | sys::FI_ATOMIC)?;
    let peer = *at(&sep.meet(rank)?, rank.peer())?;
    let region = Buf::new(CONTEXTS * LEN + 8);
    region.fill(0);
    let spec = MrRequest { access: sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE, key: 7, flags: 0 };
    let mr = Mr::reg(&sep.domain, region, spec)?;
    mr.bind(at(&sep.rx, 0)?.0.as_ref(), 0)?;
    mr.bind(sep.sep.as_ref(), 0)?;
    let parts = rank.exchange(&mr.key()?.to_ne_bytes(), &mut || sep.pump())?;
    let key = at(&parts, rank.peer())?
        .first_chunk()
        .copied()
        .map(u64::from_ne_bytes)
        .ok_or_else(|| Fail::here("no key"))?;
    for (context, (out, cq)) in sep.tx.iter().enumerate() {
        for kind in [AtomicKind::Write, AtomicKind::Fetch, AtomicKind::Compare] {
            let op = if kind == AtomicKind::Compare { sys::FI_CSWAP } else { sys::FI_SUM };
            check!(out.atomic_valid(kind, sys::FI_UINT64, op)? > 0);
        }
        let (dest, offset) = (to(peer, context), (context * LEN) as u64);
        let data = Buf::pattern(LEN, context as u64);
        sep.post(|| out.write(data, dest, offset, key, 1))?;
        check_eq!(sep.next(cq)?.context, 1);
        let back = Buf::new(LEN);
        sep.post(|| out.read(back, dest, offset, key, 2))?;
        check_eq!(sep.next(cq)?.context, 2);
        check_eq!(back.differs(LEN, context as u64), None);
        let one = Buf::of(&1_u64.to_ne_bytes());
        let target = AtomicTarget::sum(dest, (CONTEXTS * LEN) as u64, key, 3);
        sep.post(|| out.atomic(&target, Ioc { buf: one, count: 1 }))?;
        check_eq!(sep.next(cq)?.context, 3);
    }
    sep.barrier(rank)?;
    for context in 0..CONTEXTS {
        check_eq!(region.sub(context * LEN, LEN).differs(LEN, context as u64), None);
    }
    check_eq!(region.get(CONTEXTS * LEN, 8), (CONTEXTS as u64).to_ne_bytes());
    Ok(())
}

/// Tests that counters belong to a context, and suffice to enable it.
fn counters(rank: &Rank) -> Outcome {
    const COUNT: u64 = 5;
    let info = info(rank, sys::FI_MSG)?;
    let fabric = Fabric::open(&info)?;
    let domain = Domain::open(&fabric, &info)?;
    let sep = supported("fi_scalable_ep", Ep::scalable(&domain, &info))?;
    let av = vector(&domain, BITS)?;
    sep.attach(&av, 0)?;
    let open = |ep: &Arc<Ep>, flag: u64| -> Outcome<Arc<Cntr>> {
        let cntr = Cntr::open(&domain, CntrAttr::default())?;
        ep.attach(&cntr, flag)?;
        ep.enable()?;
        Ok(cntr)
    };
    let (out, into) = (sep.tx_context(2, None)?, sep.rx_context(1, None)?);
    let (sent, received) = (open(&out, sys::FI_SEND)?, open(&into, sys::FI_RECV)?);
    sep.enable()?;
    let mut pump = || -> Outcome {
        sent.read()?;
        received.read()?;
        Ok(())
    };
    let names = rank.exchange(&sep.name()?, &mut pump)?;
    let peer = to(av.insert(at(&names, rank.peer())?)?, 1);
    for at in 0..COUNT {
        into.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, 0)?;
        while out.send(Buf::pattern(8, at), peer, 0) == Err(Errno::EAGAIN) {
            pump()?;
        }
    }
    while sent.read()? < COUNT || received.read()? < COUNT {
        std::thread::yield_now();
    }
    check_eq!((sent.read()?, received.read()?), (COUNT, COUNT));
    rank.barrier(&mut pump)
}

/// Tests that a context refuses operations of the other direction.
fn one_way(rank: &Rank) -> Outcome {
    let sep = Sep::open(rank, sys::FI_MSG | sys::FI_TAGGED | sys::FI_RMA)?;
    let own = sep.av.insert(&sep.sep.name()?)?;
    let buf = Buf::new(8);
    let ((out, _), (into, received)) = (at(&sep.tx, 0)?, at(&sep.rx, 2)?);
    check_eq!(out.class()?, sys::FI_CLASS_TX_CTX);
    check_eq!(into.class()?, sys::FI_CLASS_RX_CTX);
    check_eq!(sep.sep.class()?, sys::FI_CLASS_SEP);
    check_eq!(out.recv(buf, own, 1), Err(Errno::ENOSYS));
    check_eq!(out.trecv(buf, own, 1, 0, 1), Err(Errno::ENOSYS));
    check_eq!(into.send(buf, own, 1), Err(Errno::ENOSYS));
    check_eq!(into.tsend(buf, own, 1, 1), Err(Errno::ENOSYS));
    check_eq!(into.write(buf, own, 0, 1, 1), Err(Errno::ENOSYS));
    check_eq!(sep.sep.send(buf, own, 1), Err(Errno::ENOSYS));
    check_eq!(sep.sep.recv(buf, own, 1), Err(Errno::ENOSYS));
    // No such context: two bits can select a fourth.
    check_eq!(out.send(buf, to(own, CONTEXTS), 1), Err(Errno::EINVAL));
    check_eq!(out.send(buf, to(own + 1, 0), 1), Err(Errno::EINVAL));
    // To itself, cancelled, and through an alias.
    into.recv(buf, sys::FI_ADDR_UNSPEC, 5)?;
    into.cancel(5)?;
    check!(matches!(received.read(1), Err(Errno::EAVAIL)), "a cancelled receive is told");
    check_eq!(received.readerr(0)?.err, Errno::ECANCELED);
    let alias = out.alias(sys::FI_TRANSMIT)?;
    check_eq!(alias.class()?, sys::FI_CLASS_TX_CTX);
    into.recv(buf, sys::FI_ADDR_UNSPEC, 6)?;
    sep.post(|| alias.send(Buf::pattern(8, 3), to(own, 2), 7))?;
    check_eq!(sep.next(received)?.context, 6);
    check_eq!(buf.differs(8, 3), None);
    check_eq!(into.getopt(sys::FI_OPT_MIN_MULTI_RECV)?.1, size_of::<usize>());
    check_eq!(into.setopt(sys::FI_OPT_MIN_MULTI_RECV, 128), Ok(()));
    Ok(())
}

fn binding(rank: &Rank) -> Outcome {
    let info = info(rank, sys::FI_MSG)?;
    let fabric = Fabric::open(&info)?;
    let domain = Domain::open(&fabric, &info)?;
    let sep = supported("fi_scalable_ep", Ep::scalable(&domain, &info))?;
    check_eq!(sep.enable(), Err(Errno::ENOAV));
    let (av, cq) = (vector(&domain, BITS)?, queue(&domain)?);
    let eq = Eq::open(&fabric, EqAttr::default())?;
    let out = sep.tx_context(0, None)?;
    check_eq!(out.send(Buf::new(8), 0, 1), Err(Errno::EOPBADSTATE));
    check_eq!(out.enable(), Err(Errno::ENOAV));
    check_eq!(out.bind(&*av, 0), Err(Errno::EINVAL));
    check_eq!(out.bind(&*cq, sys::FI_RECV), Err(Errno::EBADFLAGS));
    check_eq!(sep.bind(&*cq, 0), Err(Errno::EINVAL));
    check_eq!(sep.bind(&*av, 1), Err(Errno::EBADFLAGS));
    sep.attach(&av, 0)?;
    check_eq!(sep.bind(&*av, 0), Err(Errno::EINVAL));
    sep.attach(&eq, 0)?;
    check_eq!(out.enable(), Err(Errno::ENOCQ));
    out.attach(&cq, sys::FI_TRANSMIT)?;
    check_eq!(out.bind(&*cq, sys::FI_TRANSMIT), Err(Errno::EINVAL));
    check_eq!(out.enable(), Ok(()));
    check_eq!(out.enable(), Ok(()));
    check_eq!(sep.enable(), Ok(()));
    check_eq!(sep.bind(&*eq, 0), Err(Errno::EOPBADSTATE));
    check!(
        Av::open_with(&domain, &AvAttr { rx_ctx_bits: -1, ..AvAttr::default() }).is_err(),
        "less than no bits"
    );
    Ok(())
}

/// Tests that parents are closed after their children, and that a closed context can be opened
/// again.
fn closing(rank: &Rank) -> Outcome {
    let sep = Sep::open(rank, sys::FI_MSG)?;
    check_eq!(sep.sep.close(), Err(Errno::EBUSY));
    check_eq!(sep.av.close(), Err(Errno::EBUSY));
    check_eq!(sep.sep.tx_context(0, None).err(), Some(Errno::EBUSY));
    check_eq!(sep.sep.tx_context(-1, None).err(), Some(Errno::EINVAL));
    check_eq!(sep.sep.rx_context(number(CONTEXTS), None).err(), Some(Errno::EINVAL));
    for (context, cq) in sep.tx.iter().chain(&sep.rx) {
        check_eq!(cq.close(), Err(Errno::EBUSY));
        check_eq!(context.close(), Ok(()));
        check_eq!(cq.close(), Ok(()));
    }
    let own = sep.av.insert(&sep.sep.name()?)?;
    let (sent, received) = (queue(&sep.domain)?, queue(&sep.domain)?);
    let (out, into) = (sep.sep.tx_context(0, None)?, sep.sep.rx_context(1, None)?);
    check_eq!(out.bind(&*sent, sys::FI_TRANSMIT), Ok(()));
    check_eq!(into.bind(&*received, sys::FI_RECV), Ok(()));
    check_eq!(out.enable(), Ok(()));
    check_eq!(into.enable(), Ok(()));
    let buf = Buf::new(8);
    into.recv(buf, sys::FI_ADDR_UNSPEC, 3)?;
    while out.send(Buf::pattern(8, 9), to(own, 1), 4) == Err(Errno::EAGAIN) {
        let _ = sent.progress();
    }
    loop {
        match received.read(1) {
            Ok(_) => break,
            Err(Errno::EAGAIN) => drop(sent.progress()),
            Err(e) => return Err(Fail::here(e)),
        }
    }
    check_eq!(buf.differs(8, 9), None);
    check_eq!(sep.sep.close(), Err(Errno::EBUSY));
    check_eq!(out.close(), Ok(()));
    check_eq!(into.close(), Ok(()));
    check_eq!(sep.av.close(), Err(Errno::EBUSY));
    check_eq!(sep.domain.close(), Err(Errno::EBUSY));
    check_eq!(sep.sep.close(), Ok(()));
    check_eq!(sep.av.close(), Ok(()));
    Ok(())
}

/// Tests that the requested address becomes that of the first context, and that all contexts'
/// addresses are reserved with it.
fn source_address(rank: &Rank) -> Outcome {
    let mut info = info(rank, sys::FI_MSG)?;
    let fabric = Fabric::open(&info)?;
    let domain = Domain::open(&fabric, &info)?;
    let first = supported("fi_scalable_ep", Ep::scalable(&domain, &info))?;
    let name = first.name()?;
    match first.name_with_room(3) {
        Err((e, len)) => check_eq!((e, len), (Errno::ETOOSMALL, name.len())),
        Ok(_) => return Err(Fail::here("a name in three bytes")),
    }
    info.set_src_addr(&name);
    check_eq!(Ep::scalable(&domain, &info).err(), Some(Errno::EADDRINUSE));
    let second = Ep::scalable(&domain, &{
        let mut any = info.dup()?;
        any.set_src_addr(&[]);
        any
    })?;
    check!(second.name()? != name, "two endpoints of one name");
    check_eq!(second.set_name(&name), Err(Errno::EADDRINUSE));
    check_eq!(first.close(), Ok(()));
    check_eq!(second.set_name(&name), Ok(()));
    check_eq!(second.name()?, name);
    let context = second.tx_context(0, None)?;
    check_eq!(second.set_name(&name), Err(Errno::EOPBADSTATE));
    check_eq!(context.close(), Ok(()));
    check_eq!(second.close(), Ok(()));
    let third = Ep::scalable(&domain, &info)?;
    check_eq!(third.name()?, name);
    Ok(())
}

fn attributes(rank: &Rank) -> Outcome {
    let info = info(rank, sys::FI_MSG | sys::FI_TAGGED)?;
    let fabric = Fabric::open(&info)?;
    let domain = Domain::open(&fabric, &info)?;
    let sep = supported("fi_scalable_ep", Ep::scalable(&domain, &info))?;
    let tx = |change: &dyn Fn(&mut sys::fi_tx_attr)| {
        let mut attr = sys::fi_tx_attr::default();
        change(&mut attr);
        sep.tx_context(1, Some(attr))
    };
    check_eq!(tx(&|a| a.caps = sys::FI_RMA).err(), Some(Errno::EINVAL));
    check_eq!(tx(&|a| a.inject_size = 1 << 30).err(), Some(Errno::EINVAL));
    let tagged =
        tx(&|a| (a.caps, a.op_flags) = (sys::FI_TAGGED | sys::FI_SEND, sys::FI_DELIVERY_COMPLETE))?;
    check_eq!(tagged.op_flags(sys::FI_TRANSMIT)?, sys::FI_DELIVERY_COMPLETE);
    check_eq!(tagged.send(Buf::new(8), 0, 1), Err(Errno::ENOSYS));
    check_eq!(tagged.tsend(Buf::new(8), 0, 1, 1), Err(Errno::EOPBADSTATE));
    let attr = sys::fi_rx_attr { caps: sys::FI_MSG, size: 16, ..sys::fi_rx_attr::default() };
    let small = sep.rx_context(0, Some(attr))?;
    check_eq!(small.trecv(Buf::new(8), 0, 1, 0, 1), Err(Errno::ENOSYS));
    check_eq!(small.recv(Buf::new(8), 0, 1), Err(Errno::EOPBADSTATE));
    check!(
        Ep::open(&domain, &info).err() == Some(Errno::EINVAL),
        "an ordinary endpoint has no contexts"
    );
    Ok(())
}

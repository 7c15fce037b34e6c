// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Shared contexts: receives that serve two endpoints. Mirrors fi_endpoint(3), "Shared Contexts".

use std::sync::Arc;

use scif_fabtests::prelude::*;

pub(crate) const CASES: &[Case] = &[
    case("shared/receives", 2, |r| receives(r, false)),
    case("shared/messages_first", 2, |r| receives(r, true)),
    case("shared/claim", 2, claim),
    case("shared/cancel", 1, cancel),
    case("shared/busy", 1, busy),
    case("shared/source_died", 2, source_died),
    case("shared/offered_when_asked", 1, offered),
];

/// Two endpoints on one receive context.
struct Pair {
    srx: Arc<Ep>,
    eps: [Arc<Ep>; 2],
    cq: Arc<Cq>,
    av: Arc<Av>,
    stx: Arc<Stx>,
}

fn spec() -> Spec {
    Spec::caps(sys::FI_MSG | sys::FI_TAGGED).with(|spec| {
        spec.hints.tx_ctx_cnt = sys::FI_SHARED_CONTEXT;
        spec.hints.rx_ctx_cnt = sys::FI_SHARED_CONTEXT;
    })
}

fn pair(rank: &Rank) -> Outcome<Pair> {
    pair_with(rank, &spec())
}

fn pair_with(rank: &Rank, spec: &Spec) -> Outcome<Pair> {
    let (info, _fabric, domain) = first_domain(rank, spec)?;
    let srx = supported("fi_srx_context", Ep::shared_receive(&domain))?;
    let stx = supported("fi_stx_context", Stx::open(&domain))?;
    let attr = CqAttr { format: sys::FI_CQ_FORMAT_TAGGED, ..CqAttr::default() };
    let cq = Cq::open(&domain, attr)?;
    let av = Av::open(&domain, sys::FI_AV_UNSPEC, 4)?;
    let open = || -> Outcome<Arc<Ep>> {
        let ep = Ep::open(&domain, &info)?;
        ep.attach(&av, 0)?;
        ep.attach(&cq, sys::FI_TRANSMIT | sys::FI_RECV)?;
        ep.attach(&srx, 0)?;
        ep.attach(&stx, 0)?;
        check_eq!(ep.bind(&*srx, 0), Err(Errno::EINVAL));
        ep.enable()?;
        Ok(ep)
    };
    let eps = [open()?, open()?];
    Ok(Pair { srx, eps, cq, av, stx })
}

/// Tests alternating messages of rank 1 to both endpoints of rank 0: the receive posted first takes
/// the message that arrives first.
fn receives(rank: &Rank, messages_first: bool) -> Outcome {
    const COUNT: usize = 40;
    const LENS: [usize; 3] = [8, 3000, 100_000];
    if rank.index == 1 {
        let rig = Rig::open_alone(rank, &Spec::caps(sys::FI_MSG | sys::FI_TAGGED))?;
        let names = rig.exchange(&[])?;
        let both = names.first().ok_or_else(|| Fail::here("no names"))?;
        let (first, second) = both.split_at(both.len() / 2);
        let to = [rig.av.insert(first)?, rig.av.insert(second)?];
        for (round, len) in LENS.into_iter().enumerate() {
            for at in 0..COUNT {
                let dest = to.get(at % 2).copied().unwrap_or_default();
                let tag = (round * COUNT + at) as u64;
                rig.post(|| rig.ep.tsend(Buf::pattern(len, tag), dest, tag, at))?;
            }
            if messages_first {
                rig.barrier()?;
            }
            for _ in 0..COUNT {
                rig.next(&rig.tx)?;
            }
            rig.barrier()?;
        }
        return Ok(());
    }
    let pair = pair(rank)?;
    let [a, b] = &pair.eps;
    let mut pump = || -> Outcome {
        pair.cq.progress().map(drop).or_else(|e| match e {
            Errno::EAGAIN => Ok(()),
            e => Err(Fail::here(e)),
        })
    };
    rank.exchange(&[a.name()?, b.name()?].concat(), &mut pump)?;
    for (round, len) in LENS.into_iter().enumerate() {
        if messages_first {
            rank.barrier(&mut pump)?;
        }
        let bufs: Vec<Buf> = (0..COUNT).map(|_| Buf::new(len)).collect();
        for (at, buf) in bufs.iter().enumerate() {
            let tag = (round * COUNT + at) as u64;
            pair.srx.trecv(*buf, sys::FI_ADDR_UNSPEC, tag, 0, at)?;
        }
        let mut left = COUNT;
        while left > 0 {
            match pair.cq.read(4) {
                Ok(list) => {
                    for entry in list {
                        let tag = (round * COUNT + entry.context) as u64;
                        check_eq!((entry.tag, entry.len), (tag, len));
                        let buf = bufs.get(entry.context).ok_or_else(|| Fail::here("a context"))?;
                        check_eq!(buf.differs(len, tag), None);
                        left -= 1;
                    }
                }
                Err(Errno::EAGAIN) => std::thread::yield_now(),
                Err(e) => return Err(Fail::here(e)),
            }
        }
        rank.barrier(&mut pump)?;
    }
    Ok(())
}

/// Tests that a claim through the context completes as a receive does, because the queue is bound
/// for every operation.
fn claim(rank: &Rank) -> Outcome {
    const LEN: usize = 100;
    if rank.index == 1 {
        let rig = Rig::open_alone(rank, &Spec::caps(sys::FI_MSG | sys::FI_TAGGED))?;
        let names = rig.exchange(&[])?;
        let to = rig.av.insert(names.first().ok_or_else(|| Fail::here("no names"))?)?;
        rig.post(|| rig.ep.tsend(Buf::pattern(LEN, 3), to, 5, 1))?;
        rig.next(&rig.tx)?;
        return rig.barrier();
    }
    let pair = pair(rank)?;
    let [_, second] = &pair.eps;
    let context = Buf::new(size_of::<sys::fi_context2>());
    let look = |bufs: &[Buf], flags: u64| -> Outcome<Option<usize>> {
        pair.srx.trecvmsg(
            bufs,
            TaggedMsg::from(sys::FI_ADDR_UNSPEC, 5, 0, context.addr()),
            flags,
        )?;
        loop {
            match pair.cq.read(1) {
                Ok(list) => {
                    if let Some(entry) = list.first() {
                        check_eq!((entry.context, entry.tag), (context.addr(), 5));
                        return Ok(Some(entry.len));
                    }
                }
                Err(Errno::EAVAIL) => {
                    check_eq!(pair.cq.readerr(0)?.err, Errno::ENOMSG);
                    return Ok(None);
                }
                Err(Errno::EAGAIN) => std::thread::yield_now(),
                Err(e) => return Err(Fail::here(e)),
            }
        }
    };
    let mut pump = || -> Outcome {
        pair.cq.progress().map(drop).or_else(|e| match e {
            Errno::EAGAIN => Ok(()),
            e => Err(Fail::here(e)),
        })
    };
    rank.exchange(&second.name()?, &mut pump)?;
    check_eq!(
        pair.srx.trecvmsg(
            &[],
            TaggedMsg::from(sys::FI_ADDR_UNSPEC, 5, 0, 0),
            sys::FI_PEEK | sys::FI_CLAIM
        ),
        Err(Errno::EINVAL)
    );
    rank.step(format_args!("looking for the message"));
    while look(&[], sys::FI_PEEK | sys::FI_CLAIM)?.is_none() {}
    rank.step(format_args!("claiming it"));
    let buf = Buf::new(LEN);
    check_eq!(look(&[buf], sys::FI_CLAIM)?, Some(LEN));
    check_eq!(buf.differs(LEN, 3), None);
    rank.barrier(&mut pump)
}

fn cancel(rank: &Rank) -> Outcome {
    let pair = pair(rank)?;
    pair.srx.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, 11)?;
    pair.srx.trecv(Buf::new(8), sys::FI_ADDR_UNSPEC, 1, 0, 12)?;
    pair.srx.cancel(12)?;
    check_eq!(pair.cq.read(1).err(), Some(Errno::EAVAIL));
    let error = pair.cq.readerr(0)?;
    check_eq!((error.context, error.err), (12, Errno::ECANCELED));
    pair.srx.cancel(12)?;
    check_eq!(pair.cq.read(1).err(), Some(Errno::EAGAIN));
    check_eq!(pair.srx.send(Buf::new(8), 0, 0), Err(Errno::ENOSYS));
    check_eq!(pair.srx.class()?, sys::FI_CLASS_SRX_CTX);
    check_eq!(pair.stx.class()?, sys::FI_CLASS_STX_CTX);
    Ok(())
}

fn busy(rank: &Rank) -> Outcome {
    let pair = pair(rank)?;
    check_eq!(pair.srx.close(), Err(Errno::EBUSY));
    check_eq!(pair.stx.close(), Err(Errno::EBUSY));
    for ep in &pair.eps {
        ep.close()?;
    }
    pair.srx.close()?;
    pair.stx.close()?;
    Ok(())
}

/// Tests that the death of a peer fails the receives directed to it, posted before or after the
/// death, and that others stay.
fn source_died(rank: &Rank) -> Outcome {
    const DIRECTED: [usize; 3] = [1, 2, 3];
    const OPEN: usize = 4;
    let spec = spec().with(|spec| spec.hints.caps |= sys::FI_DIRECTED_RECV);
    if rank.index == 1 {
        let rig = Rig::open_alone(rank, &spec_alone())?;
        let names = rig.exchange(&rig.ep.name()?)?;
        let to = rig.av.insert(names.first().ok_or_else(|| Fail::here("no names"))?)?;
        rig.post(|| rig.ep.tsend(Buf::new(8), to, 1, 1))?;
        rig.next(&rig.tx)?;
        // The rank is killed in this barrier.
        return rig.barrier();
    }
    let pair = pair_with(rank, &spec)?;
    let [first, second] = &pair.eps;
    let mut pump = || -> Outcome {
        pair.cq.progress().map(drop).or_else(|e| match e {
            Errno::EAGAIN => Ok(()),
            e => Err(Fail::here(e)),
        })
    };
    let names = rank.exchange(&first.name()?, &mut pump)?;
    let peer = pair.av.insert(names.get(1).ok_or_else(|| Fail::here("no names"))?)?;
    let own = pair.av.insert(&second.name()?)?;
    let next = || loop {
        match pair.cq.read(1) {
            Err(Errno::EAGAIN) => std::thread::yield_now(),
            other => return other,
        }
    };
    pair.srx.trecv(Buf::new(8), peer, 1, 0, 9)?;
    check_eq!(next()?.first().map(|entry| entry.context), Some(9));
    let [tagged, untagged, late] = DIRECTED;
    pair.srx.trecv(Buf::new(8), peer, 1, 0, tagged)?;
    pair.srx.recv(Buf::new(8), peer, untagged)?;
    pair.srx.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, OPEN)?;
    rank.kill(1)?;
    for context in [tagged, untagged] {
        check_eq!(next().err(), Some(Errno::EAVAIL));
        let error = pair.cq.readerr(0)?;
        check_eq!((error.context, error.err), (context, Errno::ECONNRESET));
    }
    pair.srx.recv(Buf::new(8), peer, late)?;
    check_eq!(next().err(), Some(Errno::EAVAIL));
    let error = pair.cq.readerr(0)?;
    check_eq!((error.context, error.err), (late, Errno::ECONNRESET));
    second.inject(Buf::new(8), own)?;
    check_eq!(next()?.first().map(|entry| entry.context), Some(OPEN));
    Ok(())
}

fn spec_alone() -> Spec {
    Spec::caps(sys::FI_MSG | sys::FI_TAGGED)
}

/// Tests that contexts are reported on request only, because programs that see them choose other
/// code paths.
fn offered(rank: &Rank) -> Outcome {
    let lib = load(rank)?;
    for info in offers(rank, lib, &spec().hints)? {
        check_eq!(
            (info.ep().tx_ctx_cnt, info.ep().rx_ctx_cnt),
            (sys::FI_SHARED_CONTEXT, sys::FI_SHARED_CONTEXT)
        );
    }
    for info in offers(rank, lib, &Spec::messages(false).hints)? {
        check_eq!((info.ep().tx_ctx_cnt, info.ep().rx_ctx_cnt), (1, 1));
    }
    Ok(())
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One endpoint with hundreds of peers: three processes open a hundred endpoints each, and all of
//! them exchange data with rank 0.

use std::sync::Arc;

use scif_fabtests::prelude::*;

use super::rma::{REMOTE, from};

pub(crate) const CASES: &[Case] = &[
    case("many_peers/three_hundred", 4, |r| hub(r, 100)).within(180),
    case("many_peers/few_descriptors", 4, few_descriptors).within(180),
    case("many_peers/many_processes", 24, processes).within(180),
];

const SIZES: &[usize] = &[8, 3000, 40_000];

fn few_descriptors(rank: &Rank) -> Outcome {
    sandbox::limit_open_files(96)?;
    hub(rank, 50)
}

fn id(from: usize, ep: usize) -> u64 {
    ((from as u64) << 32) | ep as u64
}

fn hub(rank: &Rank, each: usize) -> Outcome {
    let spec = Spec::caps(sys::FI_MSG | sys::FI_RMA | sys::FI_SOURCE).with(|spec| {
        spec.hints.tx.msg_order = sys::FI_ORDER_SAS;
        spec.hints.rx.msg_order = sys::FI_ORDER_SAS;
        spec.sources = true;
    });
    let rig = Rig::open(rank, &spec)?;
    let (memory, _mr, remotes) = rig.share_buf(Buf::new(64 * each), REMOTE)?;
    if rank.index == 0 { center(&rig, each, &remotes) } else { leaves(&rig, each, memory) }
}

fn leaves(rig: &Rig<'_>, each: usize, memory: Buf) -> Outcome {
    let mut eps: Vec<Arc<Ep>> = vec![Arc::clone(&rig.ep)];
    while eps.len() < each {
        let ep = Ep::open(&rig.domain, &rig.info)?;
        ep.attach(&rig.av, 0)?;
        ep.attach(&rig.tx.cq, sys::FI_TRANSMIT)?;
        ep.attach(&rig.rx.cq, sys::FI_RECV)?;
        ep.enable()?;
        eps.push(ep);
    }
    let names: Vec<Vec<u8>> = eps.iter().map(|ep| ep.name()).collect::<Result<_, _>>()?;
    rig.exchange(&names.concat())?;
    let center = rig.to(0);
    for (round, &size) in SIZES.iter().enumerate() {
        let replies: Vec<Buf> = (0..each).map(|_| Buf::new(size)).collect();
        for (index, (ep, &reply)) in eps.iter().zip(&replies).enumerate() {
            rig.post(|| ep.recv(reply, sys::FI_ADDR_UNSPEC, index))?;
            let me = id(rig.rank.index, index);
            rig.post(|| ep.senddata(Buf::pattern(size, me + round as u64), me, center, index))?;
        }
        for _ in 0..each {
            rig.next(&rig.tx)?;
            rig.next(&rig.rx)?;
        }
        for (index, reply) in replies.iter().enumerate() {
            let me = id(rig.rank.index, index);
            check_eq!(reply.differs(size, me + 1000 + round as u64), None, "endpoint {index}");
        }
        rig.barrier()?;
    }
    rig.barrier()?;
    // Rank 0 has written a word through each endpoint.
    rig.barrier()?;
    for index in 0..each {
        check_eq!(memory.load_u64(index * 64), id(rig.rank.index, index) + 1);
    }
    rig.barrier()
}

fn center(rig: &Rig<'_>, each: usize, remotes: &[scif_fabtests::rig::Remote]) -> Outcome {
    let parts = rig.exchange(&[])?;
    let mut numbers = vec![Vec::new(); rig.rank.count];
    for (numbers, names) in numbers.iter_mut().zip(&parts).skip(1) {
        for name in names.chunks(names.len() / each) {
            numbers.push(rig.av.insert(name)?);
        }
    }
    let number = |from: usize, ep: usize| -> Outcome<u64> {
        let found = numbers.get(from).and_then(|list| list.get(ep));
        found.copied().ok_or_else(|| Fail::here("no such endpoint"))
    };
    let all = each * (rig.rank.count - 1);
    for (round, &size) in SIZES.iter().enumerate() {
        let bufs: Vec<Buf> = (0..32).map(|_| Buf::new(size)).collect();
        for (index, &buf) in bufs.iter().enumerate() {
            rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, index))?;
        }
        let mut posted = bufs.len();
        for _ in 0..all {
            let entry = rig.next(&rig.rx)?;
            let buf = *bufs.get(entry.context).ok_or_else(|| Fail::here("no such buffer"))?;
            check_eq!(buf.differs(size, entry.data + round as u64), None);
            let from = usize::try_from(entry.data >> 32).map_err(Fail::here)?;
            let ep = usize::try_from(entry.data & 0xffff_ffff).map_err(Fail::here)?;
            check_eq!(entry.src, Some(number(from, ep)?));
            let reply = Buf::pattern(size, entry.data + 1000 + round as u64);
            let to = number(from, ep)?;
            rig.post(|| rig.ep.send(reply, to, 1))
                .map_err(|fail| fail.with(format_args!("to endpoint {ep} of rank {from}")))?;
            if posted < all {
                posted += 1;
                rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, entry.context))?;
            }
        }
        for _ in 0..all {
            rig.next(&rig.tx)?;
        }
        rig.barrier()?;
    }
    rig.barrier()?;
    for from_rank in 1..rig.rank.count {
        for ep in 0..each {
            let at = from(remotes, from_rank, ep * 64)?;
            let word = Buf::of(&(id(from_rank, ep) + 1).to_le_bytes());
            let to = number(from_rank, ep)?;
            rig.complete(2, || {
                rig.ep.writemsg(&[word], RmaMsg::at(to, &[rma_iov(at)], 2), COMPLETE)
            })?;
        }
    }
    rig.barrier()?;
    rig.barrier()
}

const COMPLETE: u64 = sys::FI_COMPLETION | sys::FI_DELIVERY_COMPLETE;

fn rma_iov(at: scif_fabtests::rig::Remote) -> scif_fabtests::fi::RmaIov {
    scif_fabtests::fi::RmaIov { addr: at.addr, len: 8, key: at.key }
}

/// Tests two dozen processes, each connected with each.
fn processes(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &Spec::messages(true))?;
    for size in [8, 20_000] {
        let into: Vec<Buf> = (0..rank.count).map(|_| Buf::new(size)).collect();
        for (other, &buf) in into.iter().enumerate() {
            rig.post(|| rig.ep.trecv(buf, sys::FI_ADDR_UNSPEC, other as u64, 0, other))?;
        }
        for other in 0..rank.count {
            let buf = Buf::pattern(size, id(rank.index, other));
            rig.post(|| rig.ep.tsend(buf, rig.to(other), rank.index as u64, other))?;
        }
        for _ in 0..rank.count {
            rig.next(&rig.tx)?;
            rig.next(&rig.rx)?;
        }
        for (other, buf) in into.iter().enumerate() {
            check!(buf.differs(size, id(other, rank.index)).is_none(), "from rank {other}");
        }
        rig.barrier()?;
    }
    Ok(())
}

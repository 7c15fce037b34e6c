// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Operations that wait for all earlier ones: `FI_FENCE`. Mirrors fi_msg(3).

use scif_fabtests::prelude::*;

use super::deferred_work::place;
use super::rma::{REMOTE, from};

pub(crate) const CASES: &[Case] = &[
    case("fence/messages", 2, |r| fence_messages(r, sys::FI_EP_RDM)),
    case("fence/rma_and_atomics", 2, fence_rma),
    case("fence/nothing_to_wait_for", 2, nothing_to_wait_for),
    case("fence/offered", 1, |r| fence_offered(&Rig::open(r, &Spec::messages(true))?)),
];

/// Tests that a fenced message follows all earlier operations and precedes later ones.
fn fence_messages(rank: &Rank, ep_type: u32) -> Outcome {
    let fenced = Spec::caps(sys::FI_MSG | sys::FI_RMA | sys::FI_FENCE).with(|spec| {
        spec.hints.ep_type = ep_type;
        spec.hints.tx.msg_order = sys::FI_ORDER_SAS;
        spec.hints.rx.msg_order = sys::FI_ORDER_SAS;
    });
    let rig = Rig::open(rank, &fenced)?;
    check!(rig.info.caps() & sys::FI_FENCE != 0, "the capability is answered");
    const SIZE: usize = 300_000;
    let (mine, _mr, remotes) = rig.share_buf(Buf::new(SIZE), REMOTE)?;
    for round in 1..=20_u64 {
        if rank.index == 0 {
            let at = from(&remotes, 1, 0)?;
            let (data, peer) = (Buf::pattern(SIZE, round), rig.peer());
            rig.post(|| rig.ep.write(data, peer, at.addr, at.key, 1))?;
            rig.post(|| rig.ep.send(data, peer, 2))?;
            let flags = sys::FI_FENCE | sys::FI_COMPLETION;
            rig.post(|| rig.ep.sendmsg(&[Buf::new(8)], peer, 3, 0, flags))?;
            rig.post(|| rig.ep.send(data, peer, 4))?;
            for context in [1, 2, 3, 4] {
                rig.sent(context)?;
            }
        } else {
            let (first, last) = (Buf::new(SIZE), Buf::new(SIZE));
            for (buf, context) in [(first, 1), (Buf::new(8), 2), (last, 3)] {
                rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, context))?;
            }
            for context in [1, 2, 3] {
                rig.received(context)?;
                if context == 2 {
                    check_eq!(mine.differs(SIZE, round), None, "written before the fence");
                }
            }
            check_eq!((first.differs(SIZE, round), last.differs(SIZE, round)), (None, None));
        }
        rig.barrier()?;
    }
    Ok(())
}

/// Tests that fenced RMA and atomics see the results of earlier operations.
fn fence_rma(rank: &Rank) -> Outcome {
    let rig =
        Rig::open(rank, &Spec::caps(sys::FI_MSG | sys::FI_RMA | sys::FI_ATOMIC | sys::FI_FENCE))?;
    let (_mr, remotes) = rig.share(Buf::new(200_000), REMOTE)?;
    if rank.index == 0 {
        let (at, peer) = (from(&remotes, 1, 0)?, rig.peer());
        let flags = sys::FI_FENCE | sys::FI_COMPLETION;
        for round in 1..=20_u64 {
            let (data, got, old) = (Buf::pattern(200_000, round), Buf::new(200_000), Buf::new(8));
            rig.post(|| rig.ep.write(data, peer, at.addr, at.key, 1))?;
            let whole = place(at, 0, 200_000);
            rig.post(|| rig.ep.readmsg(&[got], RmaMsg::at(peer, &[whole], 2), flags))?;
            // An unfenced operation after a fence may overtake the fenced one.
            for context in [1, 2] {
                rig.sent(context)?;
            }
            let target = at.sum(peer, 3);
            let one = Ioc { buf: Buf::of(&1_u64.to_ne_bytes()), count: 1 };
            rig.post(|| rig.ep.fetch_atomic(&target, one, old))?;
            let word = place(at, 0, 8);
            let after = Buf::new(8);
            rig.post(|| rig.ep.readmsg(&[after], RmaMsg::at(peer, &[word], 4), flags))?;
            for context in [3, 4] {
                rig.sent(context)?;
            }
            check_eq!(got.differs(200_000, round), None);
            check_eq!(after.load_u64(0), old.load_u64(0).wrapping_add(1));
        }
    }
    rig.barrier()
}

/// Tests that fences are available to every endpoint, and triggers on request.
fn fence_offered(rig: &Rig<'_>) -> Outcome {
    check!(rig.info.caps() & sys::FI_FENCE != 0 || rig.rank.target.prov != "scif");
    Ok(())
}

/// Tests that a fence without outstanding operations does not wait: an injected message leaves
/// without a further call of its sender.
fn nothing_to_wait_for(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &Spec::caps(sys::FI_MSG | sys::FI_FENCE))?;
    // Over a driver a connection needs progress until it is up. The other rank opens it: a fence
    // waits until the peer has consumed what this rank sent.
    if rank.index == 0 {
        rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, 9)?;
        rig.received(9)?;
    } else {
        rig.post(|| rig.ep.send(Buf::new(8), rig.peer(), 9))?;
        rig.sent(9)?;
    }
    rig.barrier()?;
    if rank.index == 0 {
        let flags = sys::FI_FENCE | sys::FI_INJECT;
        let posted = rig.ep.sendmsg(&[Buf::new(8)], rig.peer(), 1, 0, flags);
        check_eq!(posted, Ok(()));
        rank.barrier(&mut || Ok(()))?;
    } else {
        rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, 1)?;
        rig.received(1)?;
        rig.barrier()?;
    }
    rig.barrier()
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The kinds of endpoints beside the reliable ones, and message prefixes for each. Mirrors fi_getinfo(3) and fi_endpoint(3).

use libfabric_sys as sys;
use scif_fabtests::fi::{Buf, Errno};
use scif_fabtests::harness::{Case, Outcome, Rank, case};
use scif_fabtests::rig::{Ask, Rig, load, offers};
use scif_fabtests::{check, check_eq};

use super::peek;

pub(crate) const CASES: &[Case] = &[
    case("kinds/datagrams", 2, |r| messages(r, sys::FI_EP_DGRAM, false)),
    case("kinds/datagrams_with_prefix", 2, |r| {
        messages(r, sys::FI_EP_DGRAM, true)
    }),
    case("kinds/reliable_with_prefix", 2, |r| {
        messages(r, sys::FI_EP_RDM, true)
    }),
    case("kinds/prefix_when_named", 1, named),
    case("kinds/prefix_does_not_fit", 1, too_short),
];

fn ask(ep_type: u32, prefix: bool) -> Ask {
    Ask::caps(sys::FI_MSG | sys::FI_TAGGED).with(|ask| {
        ask.hints.ep_type = ep_type;
        ask.hints.mode = if prefix { sys::FI_MSG_PREFIX } else { 0 };
    })
}

fn messages(rank: &Rank, ep_type: u32, prefix: bool) -> Outcome {
    let rig = Rig::open(rank, &ask(ep_type, prefix))?;
    let room = rig.info.ep().msg_prefix_size;
    check_eq!(room > 0, prefix);
    for (round, len) in [0, 1, 8, 40, 56, 64, 4000, 20_000, 1 << 20]
        .into_iter()
        .enumerate()
    {
        let seed = round as u64;
        let (to, from) = (Buf::new(room + len), Buf::new(room + len));
        to.sub(room, len).fill_pattern(seed);
        from.fill(0xee);
        let tag = seed;
        rig.inbox.trecv(from, sys::FI_ADDR_UNSPEC, tag, 0, 1)?;
        rig.barrier()?;
        rig.post(|| rig.ep.tsend(to, rig.peer(), tag, 2))?;
        rig.sent(2)?;
        check_eq!(rig.received(1)?.len, room + len);
        check_eq!(from.sub(room, len).differs(len, seed), None);
        // The prefix is the provider's, and it has nothing to write there.
        check_eq!(from.get(0, room), vec![0xee; room]);
        // The same without a posted buffer, in two pieces.
        rig.post(|| rig.ep.send(to, rig.peer(), 3))?;
        rig.barrier()?;
        rig.inbox
            .recvv(&[from.sub(0, room), from.sub(room, len)], sys::FI_ADDR_UNSPEC, 4)?;
        rig.sent(3)?;
        check_eq!(rig.received(4)?.len, room + len);
        check_eq!(from.sub(room, len).differs(len, seed), None);
        // Looked at first: what is there is as long as what will be received.
        let context = peek::context();
        rig.post(|| rig.ep.tsend(to, rig.peer(), tag, 5))?;
        check_eq!(peek::find(&rig, tag, 0, context)?.len, room + len);
        rig.inbox.trecv(from, sys::FI_ADDR_UNSPEC, tag, 0, 6)?;
        rig.sent(5)?;
        check_eq!(rig.received(6)?.len, room + len);
        rig.barrier()?;
    }
    Ok(())
}

fn named(rank: &Rank) -> Outcome {
    let lib = load(rank)?;
    for (mode, granted) in [
        (0, 0),
        (u64::MAX, 0),
        (sys::FI_CONTEXT, 0),
        (sys::FI_MSG_PREFIX | sys::FI_CONTEXT, sys::FI_MSG_PREFIX),
    ] {
        for ep_type in [sys::FI_EP_RDM, sys::FI_EP_MSG, sys::FI_EP_DGRAM] {
            let mut ask = Ask::caps(sys::FI_MSG);
            (ask.hints.ep_type, ask.hints.mode) = (ep_type, mode);
            for info in offers(rank, lib, &ask.hints)? {
                check_eq!(info.mode() & sys::FI_MSG_PREFIX, granted);
                check_eq!((info.tx().mode, info.rx().mode), (info.mode(), info.mode()));
                check_eq!(info.ep().msg_prefix_size > 0, granted != 0);
            }
        }
    }
    Ok(())
}

fn too_short(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &ask(sys::FI_EP_RDM, true))?;
    let room = rig.info.ep().msg_prefix_size;
    let short = Buf::new(room - 1);
    check_eq!(rig.ep.send(short, rig.peer(), 1), Err(Errno::EINVAL));
    check_eq!(rig.ep.inject(short, rig.peer()), Err(Errno::EINVAL));
    check_eq!(rig.inbox.recv(short, sys::FI_ADDR_UNSPEC, 1), Err(Errno::EINVAL));
    let most = rig.info.tx().inject_size;
    let whole = Buf::new(room + most);
    check!(
        rig.ep.inject(whole, rig.to(0)).is_ok(),
        "the prefix does not count"
    );
    Ok(())
}

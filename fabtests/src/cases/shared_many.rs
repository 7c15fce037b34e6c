// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Multi-receive buffers in a receive context that several endpoints share, and endpoints with
//! message prefixes. Mirrors fi_endpoint(3), "Shared Contexts", and fi_msg(3), "FI_MULTI_RECV".

use scif_fabtests::prelude::*;

pub(crate) const CASES: &[Case] = &[
    case("shared/many_messages", 2, many),
    case("shared/many_cancel", 1, |r| cancel(&Rig::open_alone(r, &spec())?)),
    case("shared/many_endpoint_closed", 2, closed),
    case("shared/options", 1, |r| options(&Rig::open_alone(r, &spec())?)),
    case("shared/no_prefix", 1, no_prefix),
];

const MANY: u64 = sys::FI_MULTI_RECV | sys::FI_COMPLETION;

fn spec() -> Spec {
    Spec::caps(sys::FI_MSG | sys::FI_MULTI_RECV).with(|spec| {
        spec.hints.rx_ctx_cnt = sys::FI_SHARED_CONTEXT;
        spec.queues = Queues::One;
    })
}

fn names(rig: &Rig<'_>, mine: &[u8]) -> Outcome<Vec<u64>> {
    let names = rig.exchange(mine)?;
    let both = names.first().ok_or_else(|| Fail::here("no names"))?;
    let (first, second) = both.split_at(both.len() / 2);
    Ok(vec![rig.av.insert(first)?, rig.av.insert(second)?])
}

/// Opens a second endpoint on the same receive context, which completes into the same queue.
fn second(rig: &Rig<'_>) -> Outcome<std::sync::Arc<Ep>> {
    let ep = Ep::open(&rig.domain, &rig.info)?;
    ep.attach(&rig.av, 0)?;
    ep.attach(&rig.rx.cq, sys::FI_TRANSMIT | sys::FI_RECV)?;
    ep.attach(&rig.inbox, 0)?;
    ep.enable()?;
    Ok(ep)
}

/// Tests messages to both endpoints in buffers of one context: each whole, once, and separate from
/// the others. Each buffer is released once and posted again.
fn many(rank: &Rank) -> Outcome {
    const COUNT: usize = 240;
    const SIZES: [usize; 6] = [8, 3000, 100_000, 0, 17_000, 64];
    const ROOM: usize = 350_000;
    let size_of_message = |at: usize| SIZES.get(at % SIZES.len()).copied().unwrap_or(0);
    if rank.index == 1 {
        let rig = Rig::open_alone(rank, &Spec::caps(sys::FI_MSG))?;
        let to = names(&rig, &[])?;
        for at in 0..COUNT {
            let dest = to.get(at % 2).copied().unwrap_or_default();
            let buf = Buf::pattern(size_of_message(at), at as u64);
            rig.post(|| rig.ep.senddata(buf, at as u64, dest, at))?;
            // Half of them arrive before any is read.
            if at == COUNT / 2 {
                rig.barrier()?;
            }
        }
        for _ in 0..COUNT {
            rig.next(&rig.tx)?;
        }
        return rig.barrier();
    }
    let rig = Rig::open_alone(rank, &spec())?;
    let other = second(&rig)?;
    rig.exchange(&[rig.ep.name()?, other.name()?].concat())?;
    rank.barrier(&mut || Ok(()))?;
    rig.inbox.setopt(sys::FI_OPT_MIN_MULTI_RECV, 4096)?;
    let bufs = [Buf::new(ROOM), Buf::new(ROOM), Buf::new(ROOM)];
    let post = |index: usize| -> Outcome {
        let buf = bufs.get(index).ok_or_else(|| Fail::here("no such buffer"))?;
        Ok(rig.inbox.recvmsg(&[*buf], sys::FI_ADDR_UNSPEC, index, MANY)?)
    };
    (0..bufs.len()).try_for_each(post)?;
    let mut places: [Vec<(usize, usize)>; 3] = Default::default();
    let (mut seen, mut back) = ([false; COUNT], 0);
    let mut left = COUNT;
    while left > 0 {
        let entry = rig.next(&rig.rx)?;
        let (Some(buf), Some(places)) = (bufs.get(entry.context), places.get_mut(entry.context))
        else {
            return Err(Fail::here(format_args!("nobody's completion: {entry:x?}")));
        };
        if entry.flags & sys::FI_RECV != 0 {
            let at = usize::try_from(entry.data).map_err(Fail::here)?;
            let seen = seen.get_mut(at).ok_or_else(|| Fail::here("nobody's message"))?;
            check!(!std::mem::replace(seen, true), "message {at} came twice");
            check_eq!(entry.len, size_of_message(at), "message {at}");
            if entry.len > 0 {
                let start = entry.buf.wrapping_sub(buf.addr());
                check!(start + entry.len <= ROOM, "{entry:x?} is outside of its buffer");
                check_eq!(
                    buf.sub(start, entry.len).differs(entry.len, at as u64),
                    None,
                    "message {at}"
                );
                places.push((start, entry.len));
            }
            left -= 1;
        }
        if entry.flags & sys::FI_MULTI_RECV != 0 {
            places.sort_unstable();
            let apart = places.iter().zip(places.iter().skip(1)).all(|(a, b)| a.0 + a.1 <= b.0);
            check!(apart, "messages overlap: {places:?}");
            places.clear();
            back += 1;
            post(entry.context)?;
        }
    }
    check!(back >= 10, "{back} buffers came back");
    rig.barrier()
}

fn cancel(rig: &Rig<'_>) -> Outcome {
    let own = rig.av.insert(&rig.ep.name()?)?;
    rig.inbox.recvmsg(&[Buf::new(4096)], sys::FI_ADDR_UNSPEC, 5, MANY)?;
    rig.post(|| rig.ep.inject(Buf::new(100), own))?;
    let entry = rig.next(&rig.rx)?;
    check_eq!((entry.context, entry.len, entry.flags & sys::FI_MULTI_RECV), (5, 100, 0));
    rig.inbox.cancel(5)?;
    let error = rig.next_error(&rig.rx)?;
    check_eq!((error.context, error.err), (5, Errno::ECANCELED));
    check!(error.flags & sys::FI_MULTI_RECV != 0, "flags {:#x}", error.flags);
    rig.inbox.cancel(5)?;
    let pieces = [Buf::new(64), Buf::new(64)];
    check_eq!(rig.inbox.recvmsg(&pieces, sys::FI_ADDR_UNSPEC, 6, MANY), Err(Errno::EINVAL));
    rig.silence(std::time::Duration::from_millis(5))
}

/// Tests that a buffer is released also by the close of an endpoint with a message in transit into
/// it.
fn closed(rank: &Rank) -> Outcome {
    const LARGE: usize = 16 << 20;
    const SMALL: usize = 5000;
    if rank.index == 1 {
        let rig = Rig::open_alone(rank, &Spec::caps(sys::FI_MSG))?;
        let to = names(&rig, &[])?;
        let [first, second] = to.as_slice() else {
            return Err(Fail::here("two addresses were given"));
        };
        rig.post(|| rig.ep.send(Buf::pattern(LARGE, 1), *first, 1))?;
        // The send succeeds or fails.
        rig.wait("the end of the large message", || Ok(rig.tx.take()))?.ok();
        rig.complete(2, || rig.ep.send(Buf::new(SMALL), *second, 2))?;
        return rig.barrier();
    }
    let rig = Rig::open_alone(rank, &spec())?;
    let other = second(&rig)?;
    let buf = Buf::new(LARGE + SMALL);
    rig.inbox.setopt(sys::FI_OPT_MIN_MULTI_RECV, SMALL)?;
    rig.inbox.recvmsg(&[buf], sys::FI_ADDR_UNSPEC, 7, MANY)?;
    rig.exchange(&[other.name()?, rig.ep.name()?].concat())?;
    // Copied from either end, or from both (cooperative copy).
    rig.wait("the beginning of the large message", || {
        let begun = [0, LARGE - 64].map(|at| buf.get(at, 64).iter().any(|byte| *byte != 0));
        Ok(begun.contains(&true).then_some(()))
    })?;
    other.close()?;
    let (mut came, mut back) = (false, 0);
    rig.wait("the small message, and the buffer", || {
        while let Some(entry) = rig.rx.take() {
            let entry = entry.map_err(|error| Fail::here(format_args!("{error:?}")))?;
            check_eq!(entry.context, 7);
            came |= entry.len == SMALL;
            back += usize::from(entry.flags & sys::FI_MULTI_RECV != 0);
        }
        Ok((came && back > 0).then_some(()))
    })?;
    check_eq!(back, 1);
    rig.barrier()
}

fn options(rig: &Rig<'_>) -> Outcome {
    for value in [1, 4096] {
        rig.inbox.setopt(sys::FI_OPT_MIN_MULTI_RECV, value)?;
        check_eq!(rig.inbox.getopt(sys::FI_OPT_MIN_MULTI_RECV)?, (value, size_of::<usize>()));
    }
    check_eq!(rig.inbox.setopt(sys::FI_OPT_INJECT_MSG_SIZE, 8), Err(Errno::ENOPROTOOPT));
    check_eq!(rig.inbox.getopt(sys::FI_OPT_INJECT_MSG_SIZE).err(), Some(Errno::ENOPROTOOPT));
    Ok(())
}

/// Tests that receives of a shared context have no space for prefixes. Hints of both yield no
/// offer, and an endpoint with prefixes is not bound.
fn no_prefix(rank: &Rank) -> Outcome {
    let lib = load(rank)?;
    for ep_type in [sys::FI_EP_RDM, sys::FI_EP_MSG, sys::FI_EP_DGRAM] {
        let spec = Spec::caps(sys::FI_MSG).with(|spec| {
            (spec.hints.ep_type, spec.hints.mode) = (ep_type, sys::FI_MSG_PREFIX);
        });
        for info in offers(rank, lib, &spec.hints)? {
            check!(info.mode() & sys::FI_MSG_PREFIX != 0);
            // Each message of a multi-receive buffer would need a prefix.
            check_eq!(info.caps() & sys::FI_MULTI_RECV, 0);
        }
        let shared = spec.clone().with(|spec| spec.hints.rx_ctx_cnt = sys::FI_SHARED_CONTEXT);
        let many = spec.clone().with(|spec| spec.hints.caps |= sys::FI_MULTI_RECV);
        let flags = spec.clone().with(|spec| spec.hints.rx.op_flags = sys::FI_MULTI_RECV);
        for spec in [shared, many, flags] {
            for info in offers(rank, lib, &spec.hints)? {
                check_eq!((info.mode() & sys::FI_MSG_PREFIX, info.ep().msg_prefix_size), (0, 0));
                check!(info.caps() & sys::FI_MULTI_RECV != 0);
            }
        }
    }
    let prefixed = Spec::caps(sys::FI_MSG).with(|spec| spec.hints.mode = sys::FI_MSG_PREFIX);
    let rig = Rig::open_alone(rank, &prefixed)?;
    let ep = Ep::open(&rig.domain, &rig.info)?;
    let srx = supported("fi_srx_context", Ep::shared_receive(&rig.domain))?;
    check_eq!(ep.bind(srx.as_ref(), 0), Err(Errno::EINVAL));
    Ok(srx.close()?)
}

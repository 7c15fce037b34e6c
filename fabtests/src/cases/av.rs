// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Address vectors: inserting, removing, looking up. Mirrors fi_av(3).

use scif_fabtests::prelude::*;

use super::call_variants::{self, Timing};

pub(crate) const CASES: &[Case] = &[
    case("av/numbers_in_order", 1, |r| numbers(&rig(r)?)),
    case("av/lookup", 1, |r| lookup(&rig(r)?)),
    case("av/remove", 1, |r| remove(&rig(r)?)),
    case("av/same_address_twice", 1, |r| same_twice(&rig(r)?)),
    case("av/without_numbers", 1, |r| without_numbers(&rig(r)?)),
    case("av/many_at_once", 2, many_at_once),
    case("av/sync_errors", 1, |r| sync_errors(&rig(r)?)),
    case("av/foreign_address", 1, foreign),
    case("av/text", 1, text),
    case("av/service", 1, |r| service(&rig(r)?)),
    case("av/unknown_type", 1, |r| unknown_type(&rig(r)?)),
    case("av/busy_close", 1, |r| busy_close(&rig(r)?)),
    case("av/removed_and_back", 2, removed_and_back),
    case("av/peer_not_inserted", 2, |r| not_inserted(&rig(r)?)),
    case("av/shared_by_endpoints", 1, |r| shared(&Rig::open(r, &Spec::messages(false))?)),
    case("av/after_bind", 2, after_bind),
    case("av/events", 1, |r| events(&rig(r)?)),
];

fn rig(rank: &Rank) -> Outcome<Rig<'_>> {
    Rig::open_alone(rank, &Spec::messages(false))
}

/// Returns the own address and similar ones, all different.
fn names(rig: &Rig<'_>, count: usize) -> Outcome<Vec<Vec<u8>>> {
    let name = rig.ep.name()?;
    let mut out = vec![name.clone()];
    for port in 20_000_u16.. {
        if out.len() == count {
            break;
        }
        let mut other = name.clone();
        // In struct sockaddr_in the port is the second half word, in network order.
        if let Some(bytes) = other.get_mut(2..4) {
            bytes.copy_from_slice(&port.to_be_bytes());
        }
        if other != name {
            out.push(other);
        }
    }
    Ok(out)
}

fn sockaddr_only(rig: &Rig<'_>) -> Outcome {
    if rig.info.addr_format() == sys::FI_SOCKADDR_IN {
        Ok(())
    } else {
        Err(Fail::NotRun("addresses are not sockaddr_in".into()))
    }
}

fn numbers(rig: &Rig<'_>) -> Outcome {
    sockaddr_only(rig)?;
    let names = names(rig, 400)?;
    for kind in [sys::FI_AV_TABLE, sys::FI_AV_MAP, sys::FI_AV_UNSPEC] {
        // The count is a hint, not a limit.
        let av = Av::open(&rig.domain, kind, 10)?;
        let all: Vec<u64> = names.iter().map(|name| av.insert(name)).collect::<Result<_, _>>()?;
        if kind == sys::FI_AV_TABLE {
            check_eq!(all, (0..400).collect::<Vec<u64>>());
        }
        for (name, &addr) in names.iter().zip(&all) {
            check_eq!(&av.lookup(addr, 64)?.0, name);
        }
    }
    Ok(())
}

fn lookup(rig: &Rig<'_>) -> Outcome {
    let name = rig.ep.name()?;
    let addr = rig.av.insert(&name)?;
    check_eq!(rig.av.lookup(addr, 256)?, (name.clone(), name.len()));
    // A shorter buffer receives fewer bytes, and the true length is still reported.
    let (_, len) = rig.av.lookup(addr, 4)?;
    check_eq!(len, name.len());
    for bad in [addr + 1, 12_345, u64::MAX, u64::MAX - 1, 1 << 40] {
        check_eq!(rig.av.lookup(bad, 64), Err(Errno::EINVAL), "{bad:#x}");
    }
    Ok(())
}

fn remove(rig: &Rig<'_>) -> Outcome {
    sockaddr_only(rig)?;
    let names = names(rig, 10)?;
    let all: Vec<u64> = names.iter().map(|name| rig.av.insert(name)).collect::<Result<_, _>>()?;
    rig.av.remove(&[3, 5, 7].map(|index: usize| all.get(index).copied().unwrap_or(0)), 0)?;
    for (index, &addr) in all.iter().enumerate() {
        check_eq!(rig.av.lookup(addr, 64).is_err(), [3, 5, 7].contains(&index), "{index}");
    }
    let gone = all.get(3).copied().unwrap_or(0);
    check!(rig.av.remove(&[gone], 0).is_err(), "removed twice");
    check!(rig.av.remove(&[99_999], 0).is_err(), "removed what was never there");
    check!(rig.av.remove(&[0], 1 << 50).is_err(), "removed with unknown flags");
    check!(rig.av.lookup(0, 64).is_ok());
    for name in [3, 5, 7].iter().filter_map(|&index: &usize| names.get(index)) {
        let addr = rig.av.insert(name)?;
        check_eq!(&rig.av.lookup(addr, 64)?.0, name);
    }
    Ok(())
}

fn same_twice(rig: &Rig<'_>) -> Outcome {
    let name = rig.ep.name()?;
    let first = rig.av.insert(&name)?;
    check_eq!(rig.av.insert(&name)?, first);
    rig.av.remove(&[first], 0)?;
    check!(rig.av.lookup(first, 64).is_ok(), "inserted twice and removed once, it is still there");
    rig.av.remove(&[first], 0)?;
    check!(rig.av.lookup(first, 64).is_err());
    Ok(())
}

fn without_numbers(rig: &Rig<'_>) -> Outcome {
    sockaddr_only(rig)?;
    let names = names(rig, 5)?;
    let av = Av::open(&rig.domain, sys::FI_AV_TABLE, 5)?;
    check_eq!(av.insert_blind(&names.concat(), 5)?, 5);
    for (name, addr) in names.iter().zip(0..) {
        check_eq!(&av.lookup(addr, 64)?.0, name);
    }
    Ok(())
}

/// Tests a table of all names, inserted in one call in the order of the ranks.
fn many_at_once(rank: &Rank) -> Outcome {
    let rig =
        Rig::open(rank, &Spec::messages(false).with(|spec| spec.hints.av_type = sys::FI_AV_TABLE))?;
    sockaddr_only(&rig)?;
    let av = Av::open(&rig.domain, sys::FI_AV_TABLE, 2)?;
    for flags in [0, sys::FI_MORE] {
        let (done, addrs) = av.insert_many(&rig.names.concat(), 2, flags)?;
        check_eq!((done, addrs), (2, vec![0, 1]));
    }
    rig.barrier()
}

fn sync_errors(rig: &Rig<'_>) -> Outcome {
    sockaddr_only(rig)?;
    let mut names = names(rig, 4)?;
    let bad = names.get_mut(2).ok_or_else(|| Fail::here("no third name"))?;
    // An unknown address family.
    if let Some(family) = bad.get_mut(0..2) {
        family.copy_from_slice(&[0xee, 0xee]);
    }
    let (done, addrs, errors) = rig.av.insert_sync(&names.concat(), 4)?;
    check_eq!(done, 3);
    let failed: Vec<bool> = errors.iter().map(|&error| error != 0).collect();
    check_eq!(failed, vec![false, false, true, false]);
    check!(errors.iter().all(|&error| error >= 0), "errors are positive here: {errors:?}");
    check_eq!(addrs.get(2).copied(), Some(sys::FI_ADDR_NOTAVAIL));
    let (done, addrs) = rig.av.insert_many(&names.concat(), 4, 0)?;
    check_eq!(done, 3);
    check_eq!(addrs.get(2).copied(), Some(sys::FI_ADDR_NOTAVAIL));
    check_eq!(rig.av.insert_many(&names.concat(), 4, 1 << 50).is_err(), true);
    Ok(())
}

/// Tests that an address of another host is refused at insertion.
fn foreign(rank: &Rank) -> Outcome {
    rank.only_scif("the provider reaches other hosts")?;
    let rig = rig(rank)?;
    let name = rig.ep.name()?;
    let (ip, identity) = (4..8, 8..16);
    let mut foreign = [name.clone(), name];
    let [other_host, other_ip] = &mut foreign;
    // The identity of another host.
    if let Some(last) = other_host.last_mut() {
        *last ^= 0x55;
    }
    // Without an identity, and with an address of a documentation network, which no host has.
    other_ip.splice(identity, [0; 8]);
    other_ip.splice(ip, [192, 0, 2, 1]);
    for name in &foreign {
        check_eq!(rig.av.insert_many(name, 1, 0)?, (0, vec![sys::FI_ADDR_NOTAVAIL]), "{name:?}");
    }
    Ok(())
}

fn text(rank: &Rank) -> Outcome {
    let rig = rig(rank)?;
    let name = rig.ep.name()?;
    let (text, len) = rig.av.straddr(&name, 256)?;
    check!(text.starts_with("fi_"), "{text:?}");
    check_eq!(len, text.len() + 1);
    let (short, needed) = rig.av.straddr(&name, 8)?;
    check!(short.len() < 8 && text.starts_with(&short), "{short:?}");
    check_eq!(needed, len);
    check_eq!(rig.av.straddr(&name, 0)?.1, len);
    Ok(())
}

fn service(rig: &Rig<'_>) -> Outcome {
    sockaddr_only(rig)?;
    let (done, addr) = match rig.av.insert_service("127.0.0.1", "9228") {
        Err(Errno::ENOSYS) => return Err(Fail::NotRun("fi_av_insertsvc".into())),
        other => other?,
    };
    check_eq!(done, 1);
    let (name, _) = rig.av.lookup(addr, 64)?;
    check_eq!(name.get(2..4), Some(9228_u16.to_be_bytes().as_slice()));
    check!(!matches!(rig.av.insert_service("no.such.host.invalid", "9228"), Ok((1, _))));
    Ok(())
}

fn unknown_type(rig: &Rig<'_>) -> Outcome {
    check!(Av::open_named(&rig.domain, 99, 1, None, 0).is_err(), "an unknown type was taken");
    Ok(())
}

fn busy_close(rig: &Rig<'_>) -> Outcome {
    check_eq!(rig.av.close(), Err(Errno::EBUSY));
    check_eq!(rig.av.class()?, sys::FI_CLASS_AV);
    let free = Av::open(&rig.domain, sys::FI_AV_MAP, 1)?;
    check_eq!(free.close(), Ok(()));
    Ok(())
}

/// Tests that a peer removed and inserted again, possibly with another `fi_addr_t`, is the same
/// peer.
fn removed_and_back(rank: &Rank) -> Outcome {
    let mut rig = Rig::open(rank, &Spec::messages(false))?;
    for _ in 0..5 {
        call_variants::plain_message(&rig, 1000, Timing::Expected)?;
        call_variants::plain_message(&rig, 100_000, Timing::Unexpected)?;
        if rank.index == 0 {
            rig.av.remove(&[rig.peer()], 0)?;
            let name = rig.names.get(1).ok_or_else(|| Fail::here("no name"))?;
            let addr = rig.av.insert(name)?;
            if let Some(slot) = rig.peers.get_mut(1) {
                *slot = addr;
            }
        }
        rig.barrier()?;
    }
    Ok(())
}

/// Tests that a peer outside the receiver's vector can send.
fn not_inserted(rig: &Rig<'_>) -> Outcome {
    let names = rig.exchange(&rig.ep.name()?)?;
    if rig.rank.index == 0 {
        let to = rig.av.insert(names.get(1).ok_or_else(|| Fail::here("no name"))?)?;
        for size in [8, 5000, 200_000] {
            rig.complete(1, || rig.ep.send(Buf::pattern(size, 1), to, 1))?;
        }
    } else {
        for size in [8, 5000, 200_000] {
            let buf = Buf::new(size);
            rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 1))?;
            check_eq!(rig.received(1)?.len, size);
            check_eq!(buf.differs(size, 1), None);
        }
    }
    rig.barrier()
}

fn shared(rig: &Rig<'_>) -> Outcome {
    let mut others = Vec::new();
    for _ in 0..8 {
        let ep = scif_fabtests::fi::Ep::open(&rig.domain, &rig.info)?;
        ep.attach(&rig.av, 0)?;
        ep.attach(&rig.tx.cq, sys::FI_TRANSMIT)?;
        ep.attach(&rig.rx.cq, sys::FI_RECV)?;
        ep.enable()?;
        others.push(ep);
    }
    for (index, ep) in others.iter().enumerate() {
        rig.post(|| ep.send(Buf::pattern(16, index as u64), rig.to(0), 1))?;
        let buf = Buf::new(16);
        rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 2))?;
        rig.received(2)?;
        rig.sent(1)?;
        check_eq!(buf.differs(16, index as u64), None);
    }
    Ok(())
}

/// Tests that addresses can be inserted before and after the endpoint is bound and enabled.
fn after_bind(rank: &Rank) -> Outcome {
    let rig = Rig::open_alone(rank, &Spec::messages(false))?;
    let rig = rig.meet()?;
    call_variants::plain_message(&rig, 64, Timing::Expected)
}

/// Tests `FI_EVENT`: an event queue reports the outcome of an insertion (before libfabric 2.0).
fn events(rig: &Rig<'_>) -> Outcome {
    let eq = Eq::open(&rig.fabric, EqAttr { size: 8, flags: 0, wait_obj: sys::FI_WAIT_NONE })?;
    let av = match Av::open_named(&rig.domain, sys::FI_AV_TABLE, 4, None, sys::FI_EVENT) {
        Ok(av) => av,
        Err(e) => return Err(Fail::NotRun(format!("insertion with events: {e}"))),
    };
    if let Err(e) = av.bind(eq.as_ref(), 0) {
        return Err(Fail::NotRun(format!("a vector bound to an event queue: {e}")));
    }
    let (_, addrs) = av.insert_many(&rig.ep.name()?, 1, 0)?;
    let event = rig.wait("the event", || match eq.read(0) {
        Err(Errno::EAGAIN) => Ok(None),
        other => Ok(Some(other?)),
    })?;
    check_eq!((event.event, event.data), (sys::FI_AV_COMPLETE, 1));
    check_eq!(addrs, vec![0]);
    Ok(())
}

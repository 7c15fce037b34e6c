// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Source addresses of messages: numbers of the vector, or identifiers of the application; and
//! ranges of addresses. Mirrors fi_av(3), "FI_AV_USER_ID" and "fi_av_insertsym".

use scif_fabtests::prelude::*;

pub(crate) const CASES: &[Case] = &[
    case("av/user_id_offered", 1, offered),
    case("av/user_id_inserted", 2, inserted),
    case("av/user_id_set", 1, set),
    case("av/user_id_set_later", 1, |r| identifier_set_later(&Rig::open_alone(r, &spec())?)),
    case("av/service_range", 1, |r| service_range(&Rig::open_alone(r, &spec())?)),
];

const CAPS: u64 = sys::FI_MSG | sys::FI_SOURCE | sys::FI_AV_USER_ID;

fn spec() -> Spec {
    Spec::caps(CAPS).with(|spec| spec.sources = true)
}

fn offered(rank: &Rank) -> Outcome {
    let lib = load(rank)?;
    for caps in [sys::FI_AV_USER_ID, sys::FI_SHARED_AV] {
        for info in offers(rank, lib, &Spec::caps(sys::FI_MSG).hints)? {
            check_eq!(info.caps() & caps, 0);
        }
        let wanted = Spec::caps(sys::FI_MSG | caps);
        let in_domain = Spec::caps(sys::FI_MSG).with(|spec| spec.hints.domain_caps = caps);
        for spec in [wanted, in_domain] {
            for info in offers(rank, lib, &spec.hints)? {
                check_eq!((info.caps() & caps, info.domain().caps & caps), (caps, caps));
            }
        }
    }
    Ok(())
}

/// Receives one message from the peer and returns the reported source.
fn source(rig: &Rig<'_>, to: u64) -> Outcome<Option<u64>> {
    let buf = Buf::new(8);
    rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 1)?;
    rig.post(|| rig.ep.send(Buf::pattern(8, 5), to, 2))?;
    let entry = rig.received(1)?;
    check_eq!(buf.differs(8, 5), None);
    rig.sent(2)?;
    rig.barrier()?;
    Ok(entry.src)
}

/// Tests that the identifier of an insertion is reported as the source, while the `fi_addr_t` stays
/// the address.
fn inserted(rank: &Rank) -> Outcome {
    const ID: u64 = 0xdead_beef_0000_1234;
    let rig = Rig::open_alone(rank, &spec())?;
    let names = rig.exchange(&rig.ep.name()?)?;
    let theirs = names.get(rank.peer()).ok_or_else(|| Fail::here("no name"))?;
    let to = rig.av.insert_told(theirs, ID)?;
    check_eq!(to, 0);
    check_eq!(source(&rig, to)?, Some(ID));
    // Another identifier for the same peer, which is now inserted twice.
    check_eq!(rig.av.insert_told(theirs, ID + 1), Ok(to));
    check_eq!(source(&rig, to)?, Some(ID + 1));
    check!(
        rig.av.set_user_id(to, 1, 0).is_err(),
        "the vector was opened for identifiers at insertion"
    );
    check_eq!(rig.av.remove(&[to], 0), Ok(()));
    check_eq!(rig.av.remove(&[to], 0), Ok(()));
    check_eq!(rig.av.insert(theirs), Ok(to));
    check_eq!(source(&rig, to)?, Some(to));
    Ok(())
}

fn set(rank: &Rank) -> Outcome {
    let rig = Rig::open_alone(rank, &spec())?;
    let attr = AvAttr { flags: sys::FI_AV_USER_ID, ..AvAttr::default() };
    let (av, _) = Av::open_with(&rig.domain, &attr)?;
    let name = rig.ep.name()?;
    check_eq!(av.insert_told(&name, 1), Err(Errno::EINVAL));
    let addr = av.insert(&name)?;
    check_eq!(av.set_user_id(addr, 77, 0), Ok(()));
    check_eq!(av.set_user_id(addr, 78, 0), Ok(()));
    check_eq!(av.set_user_id(addr + 1, 77, 0), Err(Errno::EINVAL));
    check_eq!(av.set_user_id(sys::FI_ADDR_NOTAVAIL, 77, 0), Err(Errno::EINVAL));
    check_eq!(av.set_user_id(addr, 77, 1), Err(Errno::EBADFLAGS));
    // Only a vector opened for identifiers accepts them.
    check_eq!(rig.av.insert(&name), Ok(0));
    check_eq!(rig.av.set_user_id(0, 77, 0), Err(Errno::EINVAL));
    check_eq!(av.lookup(addr, 64)?.0, name);
    Ok(())
}

/// Tests that no source is reported before an identifier is set, and that it is reported afterwards
/// although the peer is known.
fn identifier_set_later(rig: &Rig<'_>) -> Outcome {
    let attr = AvAttr { flags: sys::FI_AV_USER_ID, ..AvAttr::default() };
    let (av, _) = Av::open_with(&rig.domain, &attr)?;
    let other = Rig::open_on(rig.rank, rig.info.dup()?, (&rig.fabric, &rig.domain), av, &spec())?;
    let to = other.av.insert(&other.ep.name()?)?;
    check_eq!(source(&other, to)?, Some(sys::FI_ADDR_NOTAVAIL));
    other.av.set_user_id(to, 4711, 0)?;
    check_eq!(source(&other, to)?, Some(4711));
    Ok(())
}

/// Tests ranges of nodes and services: one address for each pair.
fn service_range(rig: &Rig<'_>) -> Outcome {
    if rig.info.addr_format() != sys::FI_SOCKADDR_IN {
        return Err(Fail::NotRun("addresses are not sockaddr_in".into()));
    }
    let addrs = rig.av.insert_range("127.0.0.1", 2, "5000", 3)?;
    check_eq!(addrs.len(), 6);
    let mut ports = Vec::new();
    for addr in &addrs {
        let (name, _) = rig.av.lookup(*addr, 64)?;
        let port = name.get(2..4).and_then(<[u8]>::first_chunk::<2>);
        ports.push(port.copied().map_or(0, u16::from_be_bytes));
    }
    check_eq!(ports, [5000, 5001, 5002, 5000, 5001, 5002]);
    check!(
        rig.av.insert_range("no.such.host.invalid", 1, "5000", 2)?.is_empty(),
        "a node that is none"
    );
    Ok(())
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Endpoints as objects: names, options, flags, binding, enabling, closing. Mirrors fi_endpoint(3)
//! and fi_cm(3).

use std::sync::Arc;

use scif_fabtests::prelude::*;

pub(crate) const CASES: &[Case] = &[
    case("ep/name", 1, name),
    case("ep/set_name", 1, |r| set_name(&bare(r)?)),
    case("ep/source_address", 1, |r| source_address(&bare(r)?)),
    case("ep/distinct_names", 1, |r| distinct_names(&bare(r)?)),
    case("ep/not_enabled", 1, |r| not_enabled(&bare(r)?)),
    case("ep/enable_needs", 1, |r| enable_needs(&bare(r)?)),
    case("ep/bind_rules", 1, |r| bind_rules(&bare(r)?)),
    case("ep/options", 1, options),
    case("ep/operation_flags", 2, operation_flags),
    case("ep/alias", 2, alias),
    case("ep/parents_with_children", 1, |r| parents(&bare(r)?)),
    case("ep/close_with_everything_open", 2, close_busy),
    case("ep/open_and_close_often", 1, |r| open_close(&bare(r)?)),
    case("ep/unknown_commands", 1, |r| unknown_commands(&bare(r)?)),
    case("ep/two_domains", 1, two_domains),
    case("ep/classes_not_asked_for", 1, |r| classes(&Rig::open(r, &Spec::messages(false))?)),
];

/// Fabric, domain and info without an endpoint.
struct Bare {
    info: Info,
    fabric: Arc<Fabric>,
    domain: Arc<Domain>,
}

fn bare(rank: &Rank) -> Outcome<Bare> {
    let (info, fabric, domain) = first_domain(rank, &Spec::messages(false))?;
    Ok(Bare { info, fabric, domain })
}

impl Bare {
    fn ep(&self) -> Outcome<Arc<Ep>> {
        Ok(Ep::open(&self.domain, &self.info)?)
    }

    fn cq(&self) -> Outcome<Arc<Cq>> {
        Ok(Cq::open(&self.domain, CqAttr::default())?)
    }

    fn av(&self) -> Outcome<Arc<Av>> {
        Ok(Av::open(&self.domain, sys::FI_AV_UNSPEC, 1)?)
    }

    fn ready(&self) -> Outcome<Arc<Ep>> {
        let ep = self.ep()?;
        ep.attach(&self.av()?, 0)?;
        ep.attach(&self.cq()?, sys::FI_TRANSMIT | sys::FI_RECV)?;
        ep.enable()?;
        Ok(ep)
    }
}

fn name(rank: &Rank) -> Outcome {
    let ep = bare(rank)?.ready()?;
    let (name, len) = ep.name_with_room(256).map_err(|(e, _)| Fail::here(e))?;
    check_eq!(name.len(), len);
    check!(len <= 64, "MPI libraries have 64 bytes for a name, it is {len}");
    check_eq!(ep.name_with_room(len), Ok((name, len)));
    for room in [0, 1, len - 1] {
        check_eq!(ep.name_with_room(room), Err((Errno::ETOOSMALL, len)));
    }
    check_eq!(ep.class()?, sys::FI_CLASS_EP);
    Ok(())
}

fn set_name(bare: &Bare) -> Outcome {
    let (first, second) = (bare.ep()?, bare.ep()?);
    let name = first.name()?;
    drop(first);
    supported("fi_setname", second.set_name(&name))?;
    check_eq!(second.name()?, name);
    check!(second.set_name(&[1, 2, 3]).is_err(), "three bytes are no address");
    let third = bare.ep()?;
    check_eq!(third.set_name(&name), Err(Errno::EADDRINUSE));
    let ready = bare.ready()?;
    check_eq!(ready.set_name(&name).is_err(), true);
    Ok(())
}

/// Tests that the source address of the info becomes the address of the endpoint, and is free again
/// after its close.
fn source_address(bare: &Bare) -> Outcome {
    let name = bare.ready()?.name()?;
    let mut info = bare.info.dup()?;
    info.set_src_addr(&name);
    for _ in 0..10 {
        let ep = Ep::open(&bare.domain, &info)?;
        check_eq!(ep.name()?, name);
        check_eq!(Ep::open(&bare.domain, &info).err(), Some(Errno::EADDRINUSE));
    }
    Ok(())
}

fn distinct_names(bare: &Bare) -> Outcome {
    let eps: Vec<Arc<Ep>> = (0..50).map(|_| bare.ready()).collect::<Outcome<_>>()?;
    let mut names: Vec<Vec<u8>> = eps.iter().map(|ep| ep.name()).collect::<Result<_, _>>()?;
    names.sort();
    names.dedup();
    check_eq!(names.len(), 50);
    Ok(())
}

fn not_enabled(bare: &Bare) -> Outcome {
    let ep = bare.ep()?;
    let av = bare.av()?;
    ep.attach(&av, 0)?;
    ep.attach(&bare.cq()?, sys::FI_TRANSMIT | sys::FI_RECV)?;
    let peer = av.insert(&bare.ready()?.name()?)?;
    let buf = Buf::new(8);
    check_eq!(ep.send(buf, peer, 1), Err(Errno::EOPBADSTATE));
    check_eq!(ep.inject(buf, peer), Err(Errno::EOPBADSTATE));
    check_eq!(ep.sendmsg(&[buf], peer, 1, 0, 0), Err(Errno::EOPBADSTATE));
    check_eq!(ep.recv(buf, peer, 1), Err(Errno::EOPBADSTATE));
    check_eq!(ep.recvmsg(&[buf], peer, 1, 0), Err(Errno::EOPBADSTATE));
    ep.enable()?;
    check_eq!(ep.recv(buf, sys::FI_ADDR_UNSPEC, 1), Ok(()));
    Ok(())
}

fn enable_needs(bare: &Bare) -> Outcome {
    let ep = bare.ep()?;
    check!(matches!(ep.enable(), Err(Errno::ENOCQ | Errno::ENOAV)), "{:?}", ep.enable());
    ep.attach(&bare.av()?, 0)?;
    check_eq!(ep.enable(), Err(Errno::ENOCQ));
    ep.attach(&bare.cq()?, sys::FI_TRANSMIT)?;
    check_eq!(ep.enable(), Err(Errno::ENOCQ));
    ep.attach(&bare.cq()?, sys::FI_RECV)?;
    check_eq!(ep.enable(), Ok(()));
    let ep = bare.ep()?;
    ep.attach(&bare.cq()?, sys::FI_TRANSMIT | sys::FI_RECV)?;
    check_eq!(ep.enable(), Err(Errno::ENOAV));
    Ok(())
}

fn bind_rules(bare: &Bare) -> Outcome {
    let ep = bare.ep()?;
    let (cq, av) = (bare.cq()?, bare.av()?);
    check_eq!(ep.bind(cq.as_ref(), sys::FI_READ | sys::FI_TRANSMIT), Err(Errno::EBADFLAGS));
    check_eq!(ep.bind(cq.as_ref(), 1 << 50), Err(Errno::EBADFLAGS));
    check_eq!(ep.attach(&cq, sys::FI_TRANSMIT), Ok(()));
    let second = bare.cq()?;
    check_eq!(ep.bind(second.as_ref(), sys::FI_TRANSMIT), Err(Errno::EINVAL));
    check_eq!(ep.attach(&av, 0), Ok(()));
    check!(ep.bind(bare.av()?.as_ref(), 0).is_err(), "a second vector was bound");
    check!(ep.bind(bare.fabric.as_ref(), 0).is_err(), "a fabric was bound");
    check!(ep.bind(ep.as_ref(), 0).is_err(), "an endpoint was bound to itself");
    let cntr = supported("fi_cntr_open", Cntr::open(&bare.domain, CntrAttr::default()))?;
    check!(ep.bind(cntr.as_ref(), 1 << 50).is_err(), "a counter was bound for nothing");
    check_eq!(ep.attach(&cntr, sys::FI_SEND), Ok(()));
    Ok(())
}

fn options(rank: &Rank) -> Outcome {
    let bare = bare(rank)?;
    let ep = bare.ready()?;
    check_eq!(ep.getopt(9999).err(), Some(Errno::ENOPROTOOPT));
    check_eq!(ep.setopt(9999, 1), Err(Errno::ENOPROTOOPT));
    check_eq!(ep.setopt_raw(77, sys::FI_OPT_MIN_MULTI_RECV, 1, 8), Err(Errno::ENOPROTOOPT));
    check!(
        ep.setopt_raw(sys::FI_OPT_ENDPOINT, sys::FI_OPT_MIN_MULTI_RECV, 1, 2).is_err(),
        "two bytes"
    );
    check_eq!(ep.setopt(sys::FI_OPT_MIN_MULTI_RECV, 128), Ok(()));
    if let Ok((tx, rx)) = ep.sizes_left() {
        check!(tx > 0 && rx > 0, "{tx} and {rx} left of a fresh endpoint");
    }
    Ok(())
}

fn operation_flags(rank: &Rank) -> Outcome {
    let rig = Rig::open(
        rank,
        &Spec::messages(false).with(|spec| {
            spec.selective = true;
            spec.hints.tx.op_flags = sys::FI_COMPLETION;
            spec.hints.rx.op_flags = sys::FI_COMPLETION;
        }),
    )?;
    check!(rig.ep.op_flags(sys::FI_TRANSMIT)? & sys::FI_COMPLETION != 0);
    check!(rig.ep.op_flags(sys::FI_RECV)? & sys::FI_COMPLETION != 0);
    if rank.index == 0 {
        rig.complete(1, || rig.ep.send(Buf::new(8), rig.peer(), 1))?;
        rig.ep.set_op_flags(sys::FI_TRANSMIT | sys::FI_INJECT_COMPLETE)?;
        check!(rig.ep.op_flags(sys::FI_TRANSMIT)? & sys::FI_COMPLETION == 0);
        rig.post(|| rig.ep.send(Buf::new(8), rig.peer(), 2))?;
        rig.ep.set_op_flags(sys::FI_TRANSMIT | sys::FI_COMPLETION)?;
        rig.complete(3, || rig.ep.send(Buf::new(8), rig.peer(), 3))?;
    } else {
        for index in 0..3 {
            rig.post(|| rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, index))?;
        }
        for index in 0..3 {
            rig.received(index)?;
        }
    }
    rig.barrier()
}

/// Tests that an alias is the same endpoint with other operation flags.
fn alias(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &Spec::messages(false).with(|spec| spec.selective = true))?;
    let flags = sys::FI_TRANSMIT | sys::FI_COMPLETION;
    let alias = supported("fi_ep_alias", rig.ep.alias(flags))?;
    if rank.index == 0 {
        rig.post(|| rig.ep.send(Buf::new(8), rig.peer(), 1))?;
        rig.complete(2, || alias.send(Buf::new(8), rig.peer(), 2))?;
        check_eq!(alias.name()?, rig.ep.name()?);
    } else {
        for index in 0..2 {
            let flags = sys::FI_COMPLETION;
            rig.post(|| rig.ep.recvmsg(&[Buf::new(8)], sys::FI_ADDR_UNSPEC, index, flags))?;
        }
        rig.received(0)?;
        rig.received(1)?;
    }
    rig.barrier()
}

/// Tests that no object can be closed before the objects opened on it.
fn parents(bare: &Bare) -> Outcome {
    check_eq!(bare.fabric.close(), Err(Errno::EBUSY));
    let ep = bare.ep()?;
    check_eq!(bare.domain.close(), Err(Errno::EBUSY));
    drop(ep);
    let cq = bare.cq()?;
    check_eq!(bare.domain.close(), Err(Errno::EBUSY));
    drop(cq);
    let av = bare.av()?;
    check_eq!(bare.domain.close(), Err(Errno::EBUSY));
    drop(av);
    check_eq!(bare.domain.close(), Ok(()));
    check_eq!(bare.fabric.close(), Ok(()));
    Ok(())
}

/// Tests the close of an endpoint with outstanding operations of every kind.
fn close_busy(rank: &Rank) -> Outcome {
    for size in [8, 100_000, 1 << 20] {
        let rig =
            Rig::open(rank, &Spec::messages(true).with(|spec| spec.hints.caps |= sys::FI_MSG))?;
        for index in 0..20 {
            rig.post(|| rig.ep.recv(Buf::new(size), sys::FI_ADDR_UNSPEC, 1))?;
            rig.post(|| rig.ep.tsend(Buf::new(size), rig.peer(), index, 2))?;
        }
        if rank.index == 0 {
            rig.barrier()?;
            drop(rig);
            rank.barrier(&mut || Ok(()))?;
        } else {
            rig.barrier()?;
            rank.barrier(&mut || Ok(()))?;
            for _ in 0..100 {
                rig.pump()?;
            }
            drop(rig);
        }
    }
    Ok(())
}

fn open_close(bare: &Bare) -> Outcome {
    bare.ready()?;
    let before = scif_fabtests::harness::sandbox::open_files()?;
    for _ in 0..300 {
        bare.ready()?;
    }
    check_eq!(scif_fabtests::harness::sandbox::open_files()?, before);
    Ok(())
}

fn unknown_commands(bare: &Bare) -> Outcome {
    let (ep, cq, av) = (bare.ready()?, bare.cq()?, bare.av()?);
    let objects: [&dyn Fid; 5] =
        [ep.as_ref(), cq.as_ref(), av.as_ref(), bare.domain.as_ref(), bare.fabric.as_ref()];
    for object in objects {
        let class = object.class()?;
        check!(object.control_null(4321).is_err(), "class {class}");
        check_eq!(object.ops_open(c"nobody"), Err(Errno::ENOSYS), "class {class}");
    }
    check_eq!(bare.domain.class()?, sys::FI_CLASS_DOMAIN);
    check_eq!(bare.fabric.class()?, sys::FI_CLASS_FABRIC);
    Ok(())
}

/// Tests that domains of one fabric refuse objects of each other.
fn two_domains(rank: &Rank) -> Outcome {
    let bare = bare(rank)?;
    let other = Domain::open(&bare.fabric, &bare.info)?;
    let cq = Cq::open(&other, CqAttr::default())?;
    let av = Av::open(&other, sys::FI_AV_UNSPEC, 1)?;
    let ep = bare.ep()?;
    if rank.target.prov == "scif" {
        check_eq!(ep.bind(cq.as_ref(), sys::FI_TRANSMIT), Err(Errno::EDOMAIN));
        check_eq!(ep.bind(av.as_ref(), 0), Err(Errno::EDOMAIN));
    }
    Ok(())
}

/// Tests that an endpoint refuses operations for which it was not opened.
fn classes(rig: &Rig<'_>) -> Outcome {
    if rig.rank.target.prov == "scif" {
        check_eq!(rig.info.caps() & (sys::FI_TAGGED | sys::FI_RMA | sys::FI_ATOMIC), 0);
        check_eq!(rig.ep.tsend(Buf::new(8), rig.to(0), 1, 1), Err(Errno::ENOSYS));
        check_eq!(rig.ep.write(Buf::new(8), rig.to(0), 0, 0, 1), Err(Errno::ENOSYS));
    }
    Ok(())
}

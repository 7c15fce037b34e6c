// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Wait objects by kind, and the list of descriptors of `FI_WAIT_POLLFD`. Mirrors fi_poll(3),
//! fi_cq(3), fi_cntr(3), fi_eq(3).
//!
//! The descriptor of `FI_WAIT_FD` and blocking calls are tested in `wait`, `eq` and `sets`.

use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use scif_fabtests::prelude::*;

pub(crate) const CASES: &[Case] = &[
    case("waitobj/kinds", 1, kinds),
    case("waitobj/nothing_to_poll", 1, nothing_to_poll),
    case("waitobj/room_for_the_list", 1, room),
    case("waitobj/list_reports_changes", 1, changes),
    case("waitobj/list_reports_messages", 2, messages),
];

/// Time limit in milliseconds for a descriptor to signal an event. It guards against hangs; no
/// measurement uses it.
const PATIENCE_MS: i64 = 20_000;

type Named = (&'static str, Arc<dyn Fid>);

fn rig(rank: &Rank, wait_obj: u32) -> Outcome<Rig<'_>> {
    if rank.target.prov == "scif" {
        Rig::open(rank, &Spec::messages(false).with(|spec| spec.wait_obj = wait_obj))
    } else {
        Err(Fail::NotRun("answers of another provider".into()))
    }
}

fn counter(rig: &Rig<'_>, wait_obj: u32) -> Outcome<Arc<Cntr>> {
    let attr = CntrAttr { wait_obj, ..CntrAttr::default() };
    Ok(Cntr::open(&rig.domain, attr)?)
}

fn event_queue(rig: &Rig<'_>, wait_obj: u32) -> Outcome<Arc<Eq>> {
    let attr = EqAttr { wait_obj, flags: sys::FI_WRITE, ..EqAttr::default() };
    Ok(Eq::open(&rig.fabric, attr)?)
}

fn wait_set(rig: &Rig<'_>, wait_obj: u32) -> Outcome<WaitSet> {
    supported("fi_wait_open", WaitSet::open(&rig.fabric, wait_obj, 0))
}

/// Opens one object of each class that can have this wait object.
fn everything(rig: &Rig<'_>, wait_obj: u32) -> Outcome<Vec<Named>> {
    let attr = CqAttr { wait_obj, ..CqAttr::default() };
    let mut all: Vec<Named> = vec![
        ("completion queue", Cq::open(&rig.domain, attr)?),
        ("counter", counter(rig, wait_obj)?),
        ("event queue", event_queue(rig, wait_obj)?),
    ];
    if wait_obj != sys::FI_WAIT_NONE {
        all.push(("wait set", Arc::new(wait_set(rig, wait_obj)?)));
    }
    Ok(all)
}

/// Tests that each object reports the kind it was opened with, or a usable kind where the provider
/// chose it.
fn kinds(rank: &Rank) -> Outcome {
    let rig = rig(rank, sys::FI_WAIT_NONE)?;
    for (opened, told) in [
        (sys::FI_WAIT_NONE, sys::FI_WAIT_NONE),
        (sys::FI_WAIT_UNSPEC, sys::FI_WAIT_FD),
        (sys::FI_WAIT_FD, sys::FI_WAIT_FD),
        (sys::FI_WAIT_POLLFD, sys::FI_WAIT_POLLFD),
        (sys::FI_WAIT_YIELD, sys::FI_WAIT_YIELD),
    ] {
        for (subject, object) in everything(&rig, opened)? {
            check_eq!(object.wait_obj(), Ok(told), "{subject} with {opened}");
            check!(object.control_null(sys::FI_GETWAITOBJ).is_err(), "{subject}: no place");
            if told == sys::FI_WAIT_FD {
                check!(object.wait_fd().is_ok(), "{subject} with {opened} has no descriptor");
            }
        }
    }
    let set = wait_set(&rig, sys::FI_WAIT_FD)?;
    let members: [Named; 3] = [
        ("completion queue", set.cq(&rig.domain)?),
        ("counter", set.cntr(&rig.domain)?),
        ("event queue", set.eq()?),
    ];
    for (subject, member) in &members {
        check_eq!(member.wait_obj(), Ok(sys::FI_WAIT_SET), "{subject}");
    }
    check_eq!(set.wait_obj(), Ok(sys::FI_WAIT_FD), "with members");
    Ok(())
}

fn nothing_to_poll(rank: &Rank) -> Outcome {
    let rig = rig(rank, sys::FI_WAIT_NONE)?;
    for wait_obj in [sys::FI_WAIT_NONE, sys::FI_WAIT_YIELD] {
        for (subject, object) in everything(&rig, wait_obj)? {
            let fd = object.wait_fd().map(drop);
            check_eq!(fd, Err(Errno::ENODATA), "{subject} with {wait_obj}");
        }
    }
    Ok(())
}

/// Tests that a list without space gets the required length, and that a longer one gets the single
/// descriptor.
fn room(rank: &Rank) -> Outcome {
    let rig = rig(rank, sys::FI_WAIT_NONE)?;
    for (subject, object) in everything(&rig, sys::FI_WAIT_POLLFD)? {
        let none = object.wait_list(0).map(drop);
        check_eq!(none, Err((Errno::ETOOSMALL, 1)), "{subject}");
        check!(object.control_null(sys::FI_GETWAIT).is_err(), "{subject}: no list");
        for room in [1, 7] {
            let list = object.wait_list(room).map_err(|(e, _)| e)?;
            let events: Vec<i16> = list.iter().map(|(_, events)| *events).collect();
            check_eq!(events, [libc::POLLIN], "{subject}, room for {room}");
        }
    }
    Ok(())
}

/// Whether a descriptor of the list becomes readable in this time.
fn readable(object: &dyn Fid, millis: i64) -> Outcome<bool> {
    let list = object.wait_list(1).map_err(|(e, _)| e)?;
    let fds = list.iter().map(|(fd, _)| PollFd::from_borrowed_fd(*fd, PollFlags::IN));
    let limit = Timespec { tv_sec: millis / 1000, tv_nsec: millis % 1000 * 1_000_000 };
    Ok(poll(&mut fds.collect::<Vec<_>>(), Some(&limit))? > 0)
}

/// Tests that the descriptor of a list is readable exactly when there is an event, once
/// `fi_trywait` has permitted a sleep.
fn changes(rank: &Rank) -> Outcome {
    let rig = rig(rank, sys::FI_WAIT_NONE)?;
    let eq = event_queue(&rig, sys::FI_WAIT_POLLFD)?;
    let cntr = counter(&rig, sys::FI_WAIT_POLLFD)?;
    let set = wait_set(&rig, sys::FI_WAIT_POLLFD)?;
    let member = set.cntr(&rig.domain)?;
    let around = |subject: &str,
                  object: &dyn Fid,
                  change: &dyn Fn() -> Outcome,
                  take: &dyn Fn() -> Outcome| {
        for _ in 0..10 {
            check_eq!(rig.fabric.trywait(&[object]), Ok(()), "{subject}");
            check!(!readable(object, 1)?, "{subject}: readable, and nothing has happened");
            change()?;
            check!(readable(object, PATIENCE_MS)?, "{subject}: nothing woke the sleeper");
            check_eq!(rig.fabric.trywait(&[object]), Err(Errno::EAGAIN), "{subject}");
            take()?;
        }
        Ok(())
    };
    let write = || Ok(eq.write(sys::FI_NOTIFY, 1, 2).map(drop)?);
    around("event queue", &*eq, &write, &|| Ok(eq.read(0).map(drop)?))?;
    around("counter", &*cntr, &|| Ok(cntr.add(1)?), &|| Ok(cntr.read().map(drop)?))?;
    around("wait set", &set, &|| Ok(member.add(1)?), &|| Ok(member.read().map(drop)?))
}

/// Tests that a message of another process wakes a thread that sleeps on the list of a queue, and
/// of a counter.
fn messages(rank: &Rank) -> Outcome {
    const ROUNDS: usize = 200;
    let rig = rig(rank, sys::FI_WAIT_POLLFD)?;
    // A second endpoint, whose receives are counted.
    let cntr = counter(&rig, sys::FI_WAIT_POLLFD)?;
    let cq = Cq::open(&rig.domain, CqAttr::default())?;
    let counted = Ep::open(&rig.domain, &rig.info)?;
    counted.attach(&cq, sys::FI_TRANSMIT | sys::FI_RECV)?;
    counted.attach(&cntr, sys::FI_RECV)?;
    counted.attach(&rig.av, 0)?;
    counted.enable()?;
    let names = rig.exchange(&counted.name()?)?;
    let name = names.get(rank.peer()).ok_or_else(|| Fail::here("nothing heard"))?;
    let second = rig.av.insert(name)?;
    if rank.index == 0 {
        for round in 0..ROUNDS {
            rig.post(|| rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, round))?;
            for to in [rig.peer(), second] {
                rig.complete(1, || rig.ep.send(Buf::new(8), to, 1))?;
            }
            rig.received(round)?;
        }
        return rig.barrier();
    }
    let sleep = |object: &dyn Fid| -> Outcome {
        match rig.fabric.trywait(&[object]) {
            Ok(()) => check!(readable(object, PATIENCE_MS)?, "nothing woke the sleeper"),
            Err(Errno::EAGAIN) => {}
            Err(e) => return Err(e.into()),
        }
        Ok(())
    };
    rank.step("sleeping on lists of descriptors");
    for round in 0..ROUNDS {
        rig.post(|| rig.ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, round))?;
        rig.post(|| counted.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, round))?;
        let entry = loop {
            match rig.rx.take() {
                Some(done) => break done.map_err(|error| Fail::here(format_args!("{error:?}")))?,
                None => sleep(rig.rx.cq.as_ref())?,
            }
            rig.pump()?;
        };
        check_eq!(entry.context, round);
        while cntr.read()? <= round as u64 {
            sleep(&*cntr)?;
        }
        rig.complete(2, || rig.ep.send(Buf::new(8), rig.peer(), 2))?;
    }
    rig.barrier()
}

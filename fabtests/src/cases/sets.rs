// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Poll sets and wait sets, and every option of an endpoint. Mirrors fi_poll(3), fi_endpoint(3).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use scif_fabtests::prelude::*;

pub(crate) const CASES: &[Case] = &[
    case("pollset/queues_and_counters", 2, queues_and_counters),
    case("pollset/membership", 1, |r| membership(&Rig::open(r, &Spec::messages(false))?)),
    case("waitset/unspec", 2, |r| messages(r, sys::FI_WAIT_UNSPEC)),
    case("waitset/fd", 2, |r| messages(r, sys::FI_WAIT_FD)),
    case("waitset/yield", 2, |r| messages(r, sys::FI_WAIT_YIELD)),
    case("waitset/every_member", 1, every_member),
    case("waitset/closing_a_queue_meanwhile", 1, closing_meanwhile),
    case("waitset/descriptor", 1, descriptor),
    case("waitset/refused", 1, refused),
    case("option/sizes", 1, sizes),
    case("option/kinds", 1, |r| kinds(&Rig::open(r, &Spec::messages(false))?)),
];

/// Tests that `fi_poll` reports the members with entries, and makes progress for them.
fn queues_and_counters(rank: &Rank) -> Outcome {
    const TX: usize = 1;
    const RX: usize = 2;
    const SENT: usize = 3;
    const GOT: usize = 4;
    let rig = Rig::open(
        rank,
        &Spec::messages(false).with(|spec| spec.counters = sys::FI_SEND | sys::FI_RECV),
    )?;
    let set = supported("fi_poll_open", PollSet::open(&rig.domain, 0))?;
    let (sent, got) = (rig.counter(sys::FI_SEND)?, rig.counter(sys::FI_RECV)?);
    set.add(rig.tx.cq.as_ref(), TX)?;
    set.add(rig.rx.cq.as_ref(), RX)?;
    set.add(sent.as_ref(), SENT)?;
    set.add(got.as_ref(), GOT)?;
    set.poll(9)?;
    check_eq!(set.poll(9), Ok(vec![]));
    rig.barrier()?;
    for round in 0..10_u64 {
        let buf = Buf::new(8);
        if rank.index == 0 {
            rig.post(|| rig.ep.send(Buf::of(&round.to_ne_bytes()), rig.peer(), 1))?;
            check_eq!(set.poll(9), Ok(vec![TX, SENT]));
            check_eq!(set.poll(9), Ok(vec![TX]), "a counter is news once");
            check_eq!(set.poll(0), Ok(vec![]), "no room");
            rig.sent(1)?;
        } else {
            rig.post(|| rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 2))?;
            // Only the poll set makes progress.
            let mut seen = Vec::new();
            while !seen.contains(&GOT) {
                seen.append(&mut set.poll(9)?);
            }
            check!(seen.contains(&RX));
            rig.received(2)?;
            check_eq!(buf.load_u64(0), round);
        }
        check_eq!(set.poll(9), Ok(vec![]));
        // A change by the application is no event.
        sent.add(1)?;
        check_eq!(set.poll(9), Ok(vec![]));
        rig.barrier()?;
    }
    set.del(rig.tx.cq.as_ref())?;
    set.del(rig.rx.cq.as_ref())?;
    set.del(sent.as_ref())?;
    set.del(got.as_ref())?;
    check_eq!(set.close(), Ok(()));
    rig.barrier()
}

fn membership(rig: &Rig<'_>) -> Outcome {
    let set = supported("fi_poll_open", PollSet::open(&rig.domain, 0))?;
    check_eq!(PollSet::open(&rig.domain, 1).map(drop), Err(Errno::EINVAL), "flags");
    let cntr = Cntr::open(&rig.domain, CntrAttr::default())?;
    check_eq!(set.del(cntr.as_ref()), Err(Errno::EINVAL), "no member");
    check_eq!(set.add(cntr.as_ref(), 5), Ok(()));
    check_eq!(set.add(cntr.as_ref(), 5), Err(Errno::EINVAL), "twice");
    check_eq!(set.add(rig.ep.as_ref(), 5), Err(Errno::EINVAL), "an endpoint");
    let other = Rig::open(rig.rank, &Spec::messages(false))?;
    check_eq!(set.add(other.tx.cq.as_ref(), 5), Err(Errno::EDOMAIN));
    check_eq!(cntr.close(), Err(Errno::EBUSY));
    check_eq!(set.close(), Err(Errno::EBUSY));
    check_eq!(set.del(cntr.as_ref()), Ok(()));
    check_eq!(cntr.close(), Ok(()));
    check_eq!(set.class()?, sys::FI_CLASS_POLL);
    check_eq!(rig.domain.close(), Err(Errno::EBUSY));
    check_eq!(set.close(), Ok(()));
    Ok(())
}

/// Endpoint whose queues belong to a wait set.
struct Member {
    domain: Arc<Domain>,
    cq: Arc<Cq>,
    ep: Arc<Ep>,
    av: Arc<Av>,
    /// Dropped last, because it cannot be closed before its members.
    set: WaitSet,
}

fn member(rank: &Rank, wait_obj: u32) -> Outcome<Member> {
    let (info, fabric, domain) = first_domain(rank, &Spec::messages(false))?;
    let set = supported("fi_wait_open", WaitSet::open(&fabric, wait_obj, 0))?;
    let cq = set.cq(&domain)?;
    let av = Av::open(&domain, info.domain().av_type, rank.count)?;
    let ep = Ep::open(&domain, &info)?;
    ep.attach(&av, 0)?;
    ep.attach(&cq, sys::FI_TRANSMIT | sys::FI_RECV)?;
    ep.enable()?;
    Ok(Member { domain, cq, ep, av, set })
}

/// Tests that `fi_wait` sleeps until a message has arrived, in every round.
fn messages(rank: &Rank, wait_obj: u32) -> Outcome {
    let m = member(rank, wait_obj)?;
    let names = rank.exchange(&m.ep.name()?, &mut || Ok(()))?;
    let name = names.get(rank.peer()).ok_or_else(|| Fail::here("no such rank"))?;
    let peer = m.av.insert(name)?;
    check_eq!(m.set.wait(5), Err(Errno::ETIMEDOUT));
    check_eq!(m.cq.sread(1, 0, 0).map(drop), Err(Errno::ENOSYS), "only the set may sleep");
    rank.step("sleeping in fi_wait");
    for round in 0..30_u64 {
        let buf = Buf::new(8);
        m.ep.recv(buf, sys::FI_ADDR_UNSPEC, 1)?;
        if (round + rank.index as u64) % 2 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut sent = m.ep.send(Buf::of(&round.to_ne_bytes()), peer, 2);
        let mut left = vec![1, 2];
        while !left.is_empty() {
            if sent == Err(Errno::EAGAIN) {
                sent = m.ep.send(Buf::of(&round.to_ne_bytes()), peer, 2);
            }
            m.set.wait(-1)?;
            match m.cq.read(4) {
                Ok(found) => left.retain(|context| !found.iter().any(|e| e.context == *context)),
                Err(Errno::EAGAIN) => {}
                Err(e) => return Err(Fail::here(format_args!("reading: {e}"))),
            }
        }
        check_eq!((sent, buf.load_u64(0)), (Ok(()), round));
    }
    rank.barrier(&mut || {
        let _ = m.cq.read(1);
        Ok(())
    })
}

/// Tests that counters and event queues wake a set too, also from another thread, and that a closed
/// object is no member.
fn every_member(rank: &Rank) -> Outcome {
    let m = member(rank, sys::FI_WAIT_UNSPEC)?;
    let cntr = m.set.cntr(&m.domain)?;
    check_eq!(m.set.wait(0), Err(Errno::ETIMEDOUT));
    for round in 1..=5 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(2));
                cntr.add(1)
            });
            m.set.wait(-1)
        })?;
        check_eq!(cntr.read()?, round);
        check_eq!(m.set.wait(0), Err(Errno::ETIMEDOUT), "read is not new");
    }
    let eq = m.set.eq()?;
    eq.write(sys::FI_NOTIFY, 1, 2)?;
    check_eq!(m.set.wait(-1), Ok(()));
    check_eq!(eq.sread(0, 0).map(drop), Err(Errno::ENOSYS));
    eq.read(0)?;
    check_eq!(m.set.wait(0), Err(Errno::ETIMEDOUT));
    check_eq!(m.set.close(), Err(Errno::EBUSY));
    cntr.add(1)?;
    check_eq!((cntr.close(), eq.close()), (Ok(()), Ok(())));
    check_eq!(m.set.wait(1), Err(Errno::ETIMEDOUT), "what is closed is forgotten");
    m.ep.close()?;
    m.cq.close()?;
    check_eq!(m.set.close(), Ok(()));
    Ok(())
}

/// Tests that a wait holds no reference to members: an event queue can be closed while another
/// thread waits (fi_eq(3)).
fn closing_meanwhile(rank: &Rank) -> Outcome {
    const CLOSES: usize = 20_000;
    let m = member(rank, sys::FI_WAIT_UNSPEC)?;
    let over = Mutex::new(false);
    let is_over = || over.lock().map_or(true, |over| *over);
    let closed = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over() {
                    let _ = m.set.wait(0);
                }
            });
        }
        let closed = (0..CLOSES).try_for_each(|_| m.set.eq()?.close());
        if let Ok(mut over) = over.lock() {
            *over = true;
        }
        closed
    });
    check_eq!(closed, Ok(()));
    Ok(())
}

/// Tests the descriptor of the set, with `fi_trywait`.
fn descriptor(rank: &Rank) -> Outcome {
    let m = member(rank, sys::FI_WAIT_FD)?;
    let cntr = m.set.cntr(&m.domain)?;
    check_eq!(m.set.class()?, sys::FI_CLASS_WAIT);
    let fabric = &m.domain.fabric;
    check_eq!(fabric.trywait(&[&m.set]), Ok(()));
    let fd = m.set.wait_fd()?;
    let ready = |ms: i64| -> Outcome<bool> {
        let mut list = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: 0, tv_nsec: ms * 1_000_000 };
        let found = rustix::event::poll(&mut list, Some(&limit));
        Ok(found.map_err(|e| Fail::here(format_args!("poll: {e}")))? > 0)
    };
    check!(!ready(1)?, "nothing has happened");
    cntr.add(1)?;
    check!(ready(900)?, "a member has something");
    check_eq!(fabric.trywait(&[&m.set]), Err(Errno::EAGAIN));
    cntr.read()?;
    check_eq!(fabric.trywait(&[&m.set]), Ok(()));
    check!(!ready(1)?, "all is read");
    Ok(())
}

fn refused(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &Spec::messages(false))?;
    supported("fi_wait_open", WaitSet::open(&rig.fabric, sys::FI_WAIT_UNSPEC, 0))?;
    for (wait_obj, flags) in [
        (sys::FI_WAIT_NONE, 0),
        (sys::FI_WAIT_SET, 0),
        (sys::FI_WAIT_MUTEX_COND, 0),
        (sys::FI_WAIT_UNSPEC, 1),
    ] {
        let opened = WaitSet::open(&rig.fabric, wait_obj, flags).map(drop);
        check_eq!(opened, Err(Errno::EINVAL), "object {wait_obj}, flags {flags}");
    }
    let nowhere = CntrAttr { wait_obj: sys::FI_WAIT_SET, ..CntrAttr::default() };
    check_eq!(Cntr::open(&rig.domain, nowhere).map(drop), Err(Errno::EINVAL), "no set");
    Ok(())
}

/// Tests that the options for size limits can be read and lowered, not raised.
fn sizes(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &Spec::caps(sys::FI_MSG | sys::FI_RMA | sys::FI_ATOMIC))?;
    for option in sys::FI_OPT_MAX_MSG_SIZE..=sys::FI_OPT_INJECT_ATOMIC_SIZE {
        let (most, len) = rig.ep.getopt(option)?;
        check_eq!(len, size_of::<usize>(), "option {option}");
        check!(most >= 64, "option {option} is {most}");
        check_eq!(rig.ep.setopt(option, most), Ok(()));
        check_eq!(rig.ep.setopt(option, most / 2), Ok(()), "option {option}");
        check_eq!(rig.ep.getopt(option), Ok((most / 2, len)));
        check_eq!(rig.ep.setopt(option, most), Err(Errno::EINVAL), "option {option} raised");
        check!(rig.ep.setopt_raw(sys::FI_OPT_ENDPOINT, option, 1, 4).is_err());
    }
    let (inject, _) =
        Rig::open(rank, &Spec::messages(false))?.ep.getopt(sys::FI_OPT_INJECT_MSG_SIZE)?;
    check_eq!(inject, rig.info.tx().inject_size);
    check_eq!(rig.ep.setopt(sys::FI_OPT_MIN_MULTI_RECV, 100), Ok(()));
    check_eq!(rig.ep.getopt(sys::FI_OPT_MIN_MULTI_RECV), Ok((100, size_of::<usize>())));
    Ok(())
}

/// Tests every other option: supported, known but refused, or unknown.
fn kinds(rig: &Rig<'_>) -> Outcome {
    let truth = |option, value| rig.ep.setopt_raw(sys::FI_OPT_ENDPOINT, option, value, 1);
    check_eq!(truth(sys::FI_OPT_SHARED_MEMORY_PERMITTED, 1), Ok(()));
    check_eq!(truth(sys::FI_OPT_SHARED_MEMORY_PERMITTED, 0), Err(Errno::EOPNOTSUPP));
    check_eq!(truth(sys::FI_OPT_CUDA_API_PERMITTED, 0), Err(Errno::EINVAL));
    for option in [
        sys::FI_OPT_CM_DATA_SIZE,
        sys::FI_OPT_BUFFERED_MIN,
        sys::FI_OPT_BUFFERED_LIMIT,
        sys::FI_OPT_SEND_BUF_SIZE,
        sys::FI_OPT_RECV_BUF_SIZE,
        sys::FI_OPT_TX_SIZE,
        sys::FI_OPT_RX_SIZE,
        sys::FI_OPT_FI_HMEM_P2P,
        sys::FI_OPT_XPU_TRIGGER,
        sys::FI_OPT_FIREWALL_ADDR,
    ] {
        check_eq!(rig.ep.getopt(option).map(drop), Err(Errno::ENOPROTOOPT), "{option}");
        check_eq!(rig.ep.setopt(option, 0), Err(Errno::ENOPROTOOPT), "{option}");
    }
    // Commands of other objects, or unknown ones.
    for command in [
        sys::FI_GETFIDFLAG,
        sys::FI_GETWAIT,
        sys::FI_BACKLOG,
        sys::FI_QUEUE_WORK,
        sys::FI_REFRESH,
        sys::FI_GET_VAL,
        sys::FI_SET_VAL,
        sys::FI_EXPORT_FID,
        sys::FI_GET_FD,
    ] {
        check_eq!(rig.ep.control_null(command), Err(Errno::ENOSYS), "command {command}");
        check_eq!(rig.tx.cq.control_null(command).is_err(), true, "command {command}");
    }
    for command in [sys::FI_GETOPSFLAG, sys::FI_SETOPSFLAG, sys::FI_ALIAS] {
        check_eq!(rig.ep.control_null(command), Err(Errno::EINVAL), "command {command}");
    }
    Ok(())
}

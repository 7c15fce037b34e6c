// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Event queues: writing, reading, waiting, errors. Mirrors fi_eq(3).

use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use scif_fabtests::prelude::*;

pub(crate) const CASES: &[Case] = &[
    case("eq/in_order", 1, |r| in_order(&rig(r)?)),
    case("eq/without_room", 1, |r| without_room(&rig(r)?)),
    case("eq/holds_its_size", 1, |r| holds_its_size(&rig(r)?)),
    case("eq/not_writable", 1, |r| not_writable(&rig(r)?)),
    case("eq/wait", 1, |r| wait(&rig(r)?)),
    case("eq/wait_woken", 1, |r| wait_woken(&rig(r)?)),
    case("eq/descriptor", 1, |r| descriptor(&rig(r)?)),
    case("eq/no_wait_object", 1, |r| no_wait_object(&rig(r)?)),
    case("eq/short_buffer_and_text", 1, |r| text(&rig(r)?)),
    case("eq/bound_is_busy", 1, bound_is_busy),
];

fn open(rig: &Rig<'_>, size: usize, wait_obj: u32) -> Outcome<Arc<Eq>> {
    Ok(Eq::open(&rig.fabric, EqAttr { size, flags: sys::FI_WRITE, wait_obj })?)
}

fn rig(rank: &Rank) -> Outcome<Rig<'_>> {
    Rig::open(rank, &Spec::messages(false))
}

fn in_order(rig: &Rig<'_>) -> Outcome {
    let eq = open(rig, 16, sys::FI_WAIT_NONE)?;
    check_eq!(eq.read(0), Err(Errno::EAGAIN));
    check_eq!(eq.readerr().err(), Some(Errno::EAGAIN));
    for index in 0..10 {
        check_eq!(
            eq.write(sys::FI_NOTIFY, index, index as u64 * 3)?,
            size_of::<sys::fi_eq_entry>()
        );
    }
    for index in 0..10 {
        // A peek leaves the event in the queue.
        for flags in [sys::FI_PEEK, sys::FI_PEEK, 0] {
            let event = eq.read(flags)?;
            check_eq!(
                (event.event, event.context, event.data),
                (sys::FI_NOTIFY, index, index as u64 * 3)
            );
            check_eq!((event.fid, event.len), (eq.address()?, size_of::<sys::fi_eq_entry>()));
        }
    }
    check_eq!(eq.read(0), Err(Errno::EAGAIN));
    Ok(())
}

/// Tests that a read without a buffer returns the event number and removes the event.
fn without_room(rig: &Rig<'_>) -> Outcome {
    let eq = open(rig, 16, sys::FI_WAIT_NONE)?;
    check_eq!(eq.read_nothing(0, 0), Err(Errno::EAGAIN));
    for index in 0..2 {
        eq.write(sys::FI_NOTIFY, index, 7)?;
    }
    check_eq!(eq.read_nothing(8, 0), Err(Errno::EINVAL));
    check_eq!(eq.read_nothing(0, sys::FI_PEEK), Ok((sys::FI_NOTIFY, 0)));
    check_eq!(eq.read_nothing(0, 0), Ok((sys::FI_NOTIFY, 0)));
    check_eq!(eq.read(0)?.context, 1);
    check_eq!(eq.read_nothing(0, 0), Err(Errno::EAGAIN));
    Ok(())
}

fn holds_its_size(rig: &Rig<'_>) -> Outcome {
    for size in [1, 2, 32, 1000] {
        let eq = open(rig, size, sys::FI_WAIT_NONE)?;
        for round in 0..3 {
            for index in 0..size {
                eq.write(sys::FI_NOTIFY, index, round)?;
            }
            for index in 0..size {
                let event = eq.read(0)?;
                check_eq!((event.context, event.data), (index, round));
            }
        }
    }
    Ok(())
}

fn not_writable(rig: &Rig<'_>) -> Outcome {
    let eq = Eq::open(&rig.fabric, EqAttr { size: 8, flags: 0, wait_obj: sys::FI_WAIT_NONE })?;
    check!(eq.write(sys::FI_NOTIFY, 1, 1).is_err());
    check_eq!(eq.read(0), Err(Errno::EAGAIN));
    Ok(())
}

fn wait(rig: &Rig<'_>) -> Outcome {
    for wait_obj in [sys::FI_WAIT_UNSPEC, sys::FI_WAIT_FD] {
        let eq = open(rig, 8, wait_obj)?;
        check_eq!(eq.sread(0, 0), Err(Errno::EAGAIN));
        check_eq!(eq.sread(20, 0), Err(Errno::EAGAIN));
        eq.write(sys::FI_NOTIFY, 4, 5)?;
        check_eq!(eq.sread(-1, sys::FI_PEEK)?.data, 5);
        check_eq!(eq.sread(-1, 0)?.data, 5);
        check_eq!(eq.sread(5, 0), Err(Errno::EAGAIN));
    }
    Ok(())
}

fn wait_woken(rig: &Rig<'_>) -> Outcome {
    let eq = open(rig, 8, sys::FI_WAIT_UNSPEC)?;
    for round in 0..20 {
        let event = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(2));
                eq.write(sys::FI_NOTIFY, 0, round)
            });
            eq.sread(-1, 0)
        })?;
        check_eq!(event.data, round);
    }
    Ok(())
}

/// Tests that the descriptor is readable exactly when there is an event, once `fi_trywait` has
/// permitted a sleep.
fn descriptor(rig: &Rig<'_>) -> Outcome {
    let eq = open(rig, 8, sys::FI_WAIT_FD)?;
    let fd = eq.wait_fd()?;
    let readable = |millis: i64| -> Outcome<bool> {
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        Ok(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: millis * 1_000_000 }))? > 0)
    };
    for _ in 0..10 {
        check_eq!(rig.fabric.trywait(&[eq.as_ref()]), Ok(()));
        check!(!readable(1)?, "readable without an event");
        eq.write(sys::FI_NOTIFY, 0, 0)?;
        check!(readable(500)?, "not readable with an event");
        check_eq!(rig.fabric.trywait(&[eq.as_ref()]), Err(Errno::EAGAIN));
        eq.read(0)?;
    }
    Ok(())
}

fn no_wait_object(rig: &Rig<'_>) -> Outcome {
    let eq = open(rig, 8, sys::FI_WAIT_NONE)?;
    check_eq!(eq.sread(0, 0), Err(Errno::ENOSYS));
    check!(Eq::open(&rig.fabric, EqAttr { size: 8, flags: 0, wait_obj: 99 }).is_err());
    Ok(())
}

fn text(rig: &Rig<'_>) -> Outcome {
    let eq = open(rig, 8, sys::FI_WAIT_NONE)?;
    for number in [1, 111, -1, i32::MAX, i32::MIN] {
        check!(!eq.strerror(number)?.is_empty(), "no text for {number}");
    }
    check_eq!(eq.class()?, sys::FI_CLASS_EQ);
    Ok(())
}

fn bound_is_busy(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &Spec::messages(false).with(|spec| spec.eq = true))?;
    let eq = rig.eq.as_ref().ok_or_else(|| Fail::here("no event queue"))?;
    check_eq!(eq.close(), Err(Errno::EBUSY));
    check_eq!(eq.read(0), Err(Errno::EAGAIN));
    Ok(())
}

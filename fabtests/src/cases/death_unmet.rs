// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests of a killed peer with which nothing was exchanged: receives that name it still end with an
//! error.
//!
//! Rank 0 survives and only receives. The others die once the survivor has connected to them.

use rustix::event::{PollFd, PollFlags, poll};
use scif_fabtests::harness::sandbox::{self, Holdings};
use scif_fabtests::prelude::*;

const VICTIMS: usize = 4;

pub(crate) const CASES: &[Case] = &[
    case("death/unconnected_source", VICTIMS + 1, |r| never_met(r, Survivor::Polls)).within(60),
    case("death/unconnected_source_under_auto_progress", VICTIMS + 1, |r| {
        never_met(r, Survivor::Computes)
    })
    .within(60),
    case("death/unconnected_source_asleep_in_the_queue", VICTIMS + 1, |r| {
        never_met(r, Survivor::SleepsInQueue)
    })
    .within(60),
    case("death/unconnected_source_asleep_on_a_descriptor", VICTIMS + 1, |r| {
        never_met(r, Survivor::SleepsOnDescriptor)
    })
    .within(60),
];

/// Behaviour of the survivor after it has posted its receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Survivor {
    Polls,
    /// Polls only after all victims have died. The thread of automatic progress connects.
    Computes,
    SleepsInQueue,
    SleepsOnDescriptor,
}

/// Resources of a rank before anyone could connect.
struct Before {
    mappings: usize,
    sockets: usize,
}

/// Returns the number of open sockets of this process.
fn sockets() -> Outcome<usize> {
    let links = std::fs::read_dir("/proc/self/fd")?.flatten();
    let links = links.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    Ok(links.filter(|link| link.to_string_lossy().starts_with("socket:")).count())
}

/// Whether a thread of this process awaits the answer of a driver to a connect.
fn is_connecting() -> Outcome<bool> {
    let threads = std::fs::read_dir("/proc/self/task")?.flatten();
    let mut names = threads.filter_map(|at| std::fs::read_to_string(at.path().join("comm")).ok());
    Ok(names.any(|name| name.trim_end() == "scif-connect"))
}

/// Whether the connections are those of a driver, whose listeners accept without polls.
fn is_over_driver() -> bool {
    std::env::var_os("FI_SCIF_TRANSPORT")
        .is_some_and(|name| name == "kernel" || name == "scif" || name == "sisci")
}

fn never_met(rank: &Rank, survivor: Survivor) -> Outcome {
    rank.only_scif("libfabric does not promise it")?;
    let caps = sys::FI_MSG | sys::FI_TAGGED | sys::FI_DIRECTED_RECV;
    let spec = Spec::caps(caps).with(|spec| {
        if survivor == Survivor::Computes {
            spec.hints.data_progress = sys::FI_PROGRESS_AUTO;
        }
        spec.wait_obj = match survivor {
            Survivor::Polls | Survivor::Computes => spec.wait_obj,
            Survivor::SleepsInQueue => sys::FI_WAIT_UNSPEC,
            Survivor::SleepsOnDescriptor => sys::FI_WAIT_FD,
        };
    });
    let rig = Rig::open_alone(rank, &spec)?;
    // Nobody can connect before the names are exchanged.
    let before = Before { mappings: Holdings::now()?.mappings, sockets: sockets()? };
    let rig = rig.meet()?;
    if rank.index != 0 {
        return victim(&rig, survivor, &before);
    }
    for victim in 1..=VICTIMS {
        rig.post(|| rig.ep.trecv(Buf::new(8), rig.to(victim), 1, 0, victim))?;
        rig.post(|| rig.ep.recv(Buf::new(8), rig.to(victim), victim))?;
    }
    match survivor {
        Survivor::Polls => {
            // Only this thread opens sockets, and none stays open but those of connections.
            rig.wait("connections without any send", || {
                Ok((sockets()? >= before.sockets + VICTIMS).then_some(()))
            })?;
            rank.barrier(&mut || rig.pump())?;
            // A driver refuses connects to a victim that dies before it has accepted, as if it had
            // never listened.
            rig.wait("answers of the driver", || Ok((!is_connecting()?).then_some(())))?;
            rank.barrier(&mut || rig.pump())?;
        }
        Survivor::Computes => {
            rank.barrier(&mut || Ok(()))?;
            while is_connecting()? {
                std::thread::yield_now();
            }
            rank.barrier(&mut || Ok(()))?;
        }
        Survivor::SleepsInQueue | Survivor::SleepsOnDescriptor => {}
    }
    let mut ended = 0;
    while ended < 2 * VICTIMS {
        rank.step(format_args!("{ended} receives have ended"));
        // Posts and barriers may have read the first errors.
        rig.rx.pump()?;
        match rig.rx.take() {
            Some(Err(error)) => {
                check_eq!(error.err, Errno::ECONNRESET);
                ended += 1;
            }
            Some(Ok(entry)) => return Err(Fail::here(format_args!("{entry:?}"))),
            None => sleep(&rig, survivor)?,
        }
    }
    Ok(())
}

/// Waits for an event of the receive queue without polling it.
fn sleep(rig: &Rig<'_>, survivor: Survivor) -> Outcome {
    match survivor {
        Survivor::Polls | Survivor::Computes => std::thread::yield_now(),
        Survivor::SleepsInQueue => match rig.rx.cq.sread(1, 0, -1) {
            Err(Errno::EAVAIL | Errno::EAGAIN) => {}
            other => return Err(Fail::here(format_args!("{other:?}"))),
        },
        Survivor::SleepsOnDescriptor => {
            let fd = rig.rx.cq.wait_fd()?;
            if rig.fabric.trywait(&[rig.rx.cq.as_ref()]).is_ok() {
                poll(&mut [PollFd::new(&fd, PollFlags::IN)], None)?;
            }
        }
    }
    Ok(())
}

/// Dies once the survivor has connected. Half of the victims of a polling survivor never poll, so
/// that they die before they have accepted, except over a driver.
fn victim(rig: &Rig<'_>, survivor: Survivor, before: &Before) -> Outcome {
    rig.rank.expect_death()?;
    if survivor != Survivor::Polls || rig.rank.index % 2 == 1 || is_over_driver() {
        rig.wait("a connection", || {
            // Not by a descriptor, which a sleep opens as well.
            Ok((Holdings::now()?.mappings > before.mappings).then_some(()))
        })?;
    }
    if matches!(survivor, Survivor::Polls | Survivor::Computes) {
        // For the connections, and for the answers to the survivor.
        rig.rank.barrier(&mut || Ok(()))?;
        rig.rank.barrier(&mut || Ok(()))?;
    }
    sandbox::die()
}

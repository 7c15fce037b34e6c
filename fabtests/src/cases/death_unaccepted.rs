// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests of a peer killed before it has accepted the survivor's connection: every operation with it
//! still ends with an error and an event.
//!
//! Rank 0 survives. The others do not poll, or have no descriptor for a connection, and die one
//! after another.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use scif_fabtests::prelude::*;

const VICTIMS: usize = 8;
const LARGE: usize = 4 << 20;

pub(crate) const CASES: &[Case] = &[
    case("death/unaccepted_busy", VICTIMS + 1, |r| unaccepted(r, Victim::Busy)),
    case("death/unaccepted_without_descriptors", VICTIMS + 1, |r| {
        unaccepted(r, Victim::WithoutDescriptors)
    }),
    case("death/called_again", VICTIMS + 1, |r| unaccepted(r, Victim::CalledAgain))
        .under(&[("FI_SCIF_CONNECT_TIMEOUT", "600s")]),
];

/// Reason for which a victim does not accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Busy,
    WithoutDescriptors,
    /// Busy as well, and the survivor sends to it once more after its death.
    CalledAgain,
}

fn unaccepted(rank: &Rank, victim: Victim) -> Outcome {
    let spec = Spec::caps(sys::FI_MSG | sys::FI_TAGGED | sys::FI_DIRECTED_RECV)
        .with(|spec| spec.eq = true);
    // The kernel takes long to free this memory, between the end of the listener and that of the
    // process.
    let _lower = (rank.index != 0).then(slow_to_close).transpose()?;
    let rig = Rig::open(rank, &spec)?;
    if rank.index == 0 {
        survivor(&rig)?;
        return match victim {
            Victim::CalledAgain => call_again(&rig),
            Victim::Busy | Victim::WithoutDescriptors => Ok(()),
        };
    }
    let _higher = slow_to_close()?;
    let patience = Duration::from_millis(20) * u32::try_from(rank.index).map_err(Fail::here)?;
    rank.expect_death()?;
    if victim != Victim::WithoutDescriptors {
        rank.barrier(&mut || Ok(()))?;
        // The survivor polls by then.
        std::thread::sleep(patience);
        return sandbox::die();
    }
    sandbox::without_more_files(|| {
        rank.barrier(&mut || Ok(()))?;
        let until = Instant::now() + patience;
        while Instant::now() < until {
            rig.pump()?;
        }
        sandbox::die()
    })?
}

/// Returns a descriptor that takes the kernel milliseconds to close: memory of this process alone.
fn slow_to_close() -> Outcome<File> {
    let mut file = File::from(memfd_create("slow", MemfdFlags::CLOEXEC)?);
    let block = vec![1; 1 << 20];
    for _ in 0..24 {
        file.write_all(&block)?;
    }
    Ok(file)
}

fn survivor(rig: &Rig<'_>) -> Outcome {
    for victim in 1..=VICTIMS {
        rig.post(|| rig.ep.trecv(Buf::new(8), rig.to(victim), 1, 0, victim))?;
        rig.post(|| rig.ep.tsend(Buf::new(8), rig.to(victim), 1, 0x10 + victim))?;
        rig.post(|| rig.ep.tsend(Buf::new(LARGE), rig.to(victim), 1, 0x20 + victim))?;
    }
    rig.rank.barrier(&mut || Ok(()))?;
    let over_driver = std::env::var_os("FI_SCIF_TRANSPORT")
        .is_some_and(|name| name == "kernel" || name == "scif" || name == "sisci");
    let mut open = 3 * VICTIMS;
    rig.wait("the end of everything under way", || {
        while let Some(ended) = rig.tx.take().or_else(|| rig.rx.take()) {
            match ended {
                Ok(entry) => check_eq!(entry.context & !0xf, 0x10, "a success"),
                // A peer that died before a driver connected it does not listen.
                Err(error) if error.err == Errno::ECONNREFUSED => check!(over_driver, "{error:?}"),
                Err(error) => check_eq!(error.err, Errno::ECONNRESET, "{error:?}"),
            }
            open -= 1;
        }
        Ok((open == 0).then_some(()))
    })?;
    let eq = rig.eq.as_ref().ok_or_else(|| Fail::here("no event queue"))?;
    let mut named = Vec::new();
    rig.wait("an event for each", || {
        match eq.read(0) {
            Err(Errno::EAGAIN) => {}
            Err(Errno::EAVAIL) => {
                let error = eq.readerr()?;
                check!(!error.err_data.is_empty(), "{error:?}");
                named.push(error.data);
            }
            other => return Err(Fail::here(format_args!("{other:?}"))),
        }
        Ok((named.len() == VICTIMS).then_some(()))
    })?;
    named.sort_unstable();
    let mut dead: Vec<u64> = (1..=VICTIMS).map(|victim| rig.to(victim)).collect();
    dead.sort_unstable();
    check_eq!(named, dead);
    Ok(())
}

/// Sends to the dead peers. Each was found at its address before, so no send waits for their start.
/// The kernel may close the listener of a dead process late: only a send that awaits its delivery
/// fails in any case.
fn call_again(rig: &Rig<'_>) -> Outcome {
    let flags = sys::FI_DELIVERY_COMPLETE | sys::FI_COMPLETION;
    for victim in 1..=VICTIMS {
        let msg = TaggedMsg::to(rig.to(victim), 1, victim);
        rig.post(|| rig.ep.tsendmsg(&[Buf::new(8)], msg, flags))?;
    }
    let mut open = VICTIMS;
    rig.wait("the end of what was sent to the dead", || {
        while let Some(ended) = rig.tx.take() {
            check_eq!(ended.err().map(|error| error.err), Some(Errno::ECONNRESET));
            open -= 1;
        }
        Ok((open == 0).then_some(()))
    })
}

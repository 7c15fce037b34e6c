// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Groups whose members die, leave, or restart: no other member waits for them forever. Mirrors
//! fi_collective(3).

use std::time::{Duration, Instant};

use scif_fabtests::fi::EqErr;
use scif_fabtests::prelude::*;

use super::coll::{barrier, join, joined, rig, set_of};

pub(crate) const CASES: &[Case] = &[
    case("coll_death/killed", 4, |r| killed(r, false)),
    case("coll_death/killed_with_a_fork", 4, |r| killed(r, true)),
    case("coll_death/before_joining", 3, |r| before_joining(&rig(r)?)),
    case("coll_death/left_with_operations", 3, |r| left(&rig(r)?)),
    case("coll_death/left_before_it_began", 2, |r| left_early(&rig(r)?)),
    case("coll_death/left_with_a_message_on_its_way", 2, |r| left_amid(&rig(r)?)),
    case("coll_death/closed_in_order", 2, |r| closed(&rig(r)?)),
];

/// Posts every collective that waits for rank 1.
fn posted(rig: &Rig<'_>, group: u64) -> Outcome<usize> {
    let (buf, result) = (Buf::new(4096), Buf::new(4096));
    let kinds = [sys::FI_BARRIER, sys::FI_ALLREDUCE, sys::FI_ALLGATHER, sys::FI_ALLTOALL];
    for (at, kind) in kinds.into_iter().enumerate() {
        let call = Collective {
            kind,
            buf,
            result,
            count: 100,
            datatype: sys::FI_UINT64,
            op: sys::FI_SUM,
            ..barrier(group, at)
        };
        call.post(&rig.ep)?;
    }
    Ok(kinds.len())
}

/// Checks that all posted operations fail, and the next call too.
fn fail(rig: &Rig<'_>, group: u64, count: usize, why: Errno) -> Outcome {
    for at in 0..count {
        let error = rig.next_error(&rig.tx)?;
        check_eq!((error.context, error.err), (at, why));
        check_eq!(error.flags, sys::FI_COLLECTIVE);
    }
    check_eq!(barrier(group, 0).post(&rig.ep), Err(why));
    Ok(())
}

fn killed(rank: &Rank, forked: bool) -> Outcome {
    let rig = rig(rank)?;
    let all = join(&rig, &[0, 1, 2, 3])?;
    let group = all.addr()?;
    barrier(group, 9).post(&rig.ep)?;
    rig.sent(9)?;
    if rank.index == 1 {
        if forked {
            sandbox::fork_sleeper()?;
        }
        rank.expect_death()?;
        rig.barrier()?;
        loop {
            rig.pump()?;
        }
    }
    let count = posted(&rig, group)?;
    rig.barrier()?;
    if rank.index == 0 {
        rank.kill(1)?;
    }
    fail(&rig, group, count, Errno::ECONNRESET)?;
    // The other ranks continue in a group without the dead one.
    let rest = join_without(&rig, &[0, 2, 3])?;
    barrier(rest.addr()?, 5).post(&rig.ep)?;
    rig.sent(5)?;
    all.close()?;
    rig.barrier()?;
    Ok(())
}

/// Joins a group as [`join`] does, with a possible death event in the queue before.
fn join_without(rig: &Rig<'_>, ranks: &[usize]) -> Outcome<Mc> {
    let set = set_of(rig, ranks)?;
    let mc = Mc::join(&rig.ep, set.addr()?, Some(&set), 0, 4)?;
    let eq = rig.eq.as_ref().ok_or_else(|| Fail::here("no event queue"))?;
    rig.wait("a group", || match eq.read(0) {
        Ok(event) => {
            check_eq!((event.event, event.context), (sys::FI_JOIN_COMPLETE, 4));
            Ok(Some(()))
        }
        Err(Errno::EAVAIL) => {
            check!(eq.readerr()?.fid != mc.address()?, "the join failed");
            Ok(None)
        }
        Err(Errno::EAGAIN) => Ok(None),
        Err(e) => Err(Fail::here(e)),
    })?;
    Ok(mc)
}

/// Returns the error event of this group.
fn refused(rig: &Rig<'_>, mc: &Mc) -> Outcome<EqErr> {
    let eq = rig.eq.as_ref().ok_or_else(|| Fail::here("no event queue"))?;
    let name = mc.address()?;
    rig.wait("the end of a group", || match eq.read(0) {
        Err(Errno::EAVAIL) => {
            let error = eq.readerr()?;
            Ok((error.fid == name).then_some(error))
        }
        Err(Errno::EAGAIN) => Ok(None),
        other => Err(Fail::here(format_args!("{other:?}"))),
    })
}

fn before_joining(rig: &Rig<'_>) -> Outcome {
    if rig.rank.index == 1 {
        rig.rank.expect_death()?;
        rig.barrier()?;
        loop {
            rig.pump()?;
        }
    }
    let set = set_of(rig, &[0, 1, 2])?;
    let mc = Mc::join(&rig.ep, set.addr()?, Some(&set), 0, 6)?;
    check_eq!(barrier(mc.addr()?, 0).post(&rig.ep), Err(Errno::EOPBADSTATE));
    rig.barrier()?;
    if rig.rank.index == 0 {
        rig.rank.kill(1)?;
    }
    let error = refused(rig, &mc)?;
    check_eq!(error.context, 6);
    check!(error.err != 0);
    mc.close()?;
    rig.barrier()?;
    Ok(())
}

/// Makes progress until every rank has received all that was sent.
fn quiesce(rig: &Rig<'_>) -> Outcome {
    rig.barrier()?;
    // A rank without a processor for that time must still poll as often.
    let (start, mut looks) = (Instant::now(), 0);
    while looks < 1000 || start.elapsed() < Duration::from_millis(20) {
        rig.pump()?;
        looks += 1;
    }
    rig.barrier()
}

/// Tests that a member that leaves ends all outstanding operations, at all members.
fn left(rig: &Rig<'_>) -> Outcome {
    for leaver in 0..3 {
        let mc = join(rig, &[0, 1, 2])?;
        let group = mc.addr()?;
        let idle = rig.rank.index == (leaver + 1) % 3;
        // One rank has no outstanding operation, so that none can complete.
        let count = if idle { 0 } else { posted(rig, group)? };
        rig.barrier()?;
        if rig.rank.index == leaver {
            mc.close()?;
        }
        for _ in 0..count {
            check_eq!(rig.next_error(&rig.tx)?.err, Errno::ECANCELED);
        }
        quiesce(rig)?;
        if rig.rank.index != leaver {
            check_eq!(barrier(group, 0).post(&rig.ep), Err(Errno::ECANCELED));
        }
        rig.barrier()?;
    }
    Ok(())
}

/// Tests that a member that joins and leaves at once has not joined, whichever rank leads.
fn left_early(rig: &Rig<'_>) -> Outcome {
    let set = set_of(rig, &[0, 1])?;
    for leaver in [0, 1] {
        if rig.rank.index == leaver {
            let mc = Mc::join(&rig.ep, set.addr()?, Some(&set), 0, 1)?;
            for _ in 0..1000 {
                rig.pump()?;
            }
            mc.close()?;
        }
        quiesce(rig)?;
        let mc = Mc::join(&rig.ep, set.addr()?, Some(&set), 0, 2)?;
        joined(rig, &mc, 2)?;
        barrier(mc.addr()?, 3).post(&rig.ep)?;
        rig.sent(3)?;
        rig.barrier()?;
    }
    Ok(())
}

/// Tests that messages in flight to a leaving member are dropped, without an effect on other
/// traffic of the two.
fn left_amid(rig: &Rig<'_>) -> Outcome {
    let mc = join(rig, &[0, 1])?;
    let broadcast = Collective {
        kind: sys::FI_BROADCAST,
        buf: Buf::pattern(1 << 20, 1),
        count: 1 << 20,
        root: rig.to(0),
        datatype: sys::FI_UINT8,
        ..barrier(mc.addr()?, 3)
    };
    let wait = || rig.rank.barrier(&mut || Ok(()));
    if rig.rank.index == 0 {
        broadcast.post(&rig.ep)?;
        wait()?;
        wait()?;
        rig.sent(3)?;
    } else {
        wait()?;
        // The first fragments have arrived, and the others cannot have yet.
        for _ in 0..100 {
            rig.pump()?;
        }
        mc.close()?;
        wait()?;
    }
    rig.barrier()?;
    let again = join(rig, &[0, 1])?;
    barrier(again.addr()?, 4).post(&rig.ep)?;
    rig.sent(4)?;
    rig.barrier()
}

/// Tests that data of a member sent before its close is received, and that operations that need the
/// member fail.
fn closed(rig: &Rig<'_>) -> Outcome {
    let mc = join(rig, &[0, 1])?;
    let gather = Collective {
        kind: sys::FI_GATHER,
        buf: Buf::pattern(70_000, 1 + rig.rank.index as u64),
        result: Buf::new(140_000),
        count: 70_000,
        root: rig.to(0),
        datatype: sys::FI_UINT8,
        ..barrier(mc.addr()?, 3)
    };
    if rig.rank.index == 1 {
        gather.post(&rig.ep)?;
        rig.sent(3)?;
        mc.close()?;
        rig.ep.close()?;
        rig.rank.barrier(&mut || Ok(()))?;
        return Ok(());
    }
    rig.barrier()?;
    for _ in 0..1000 {
        rig.pump()?;
    }
    gather.post(&rig.ep)?;
    rig.sent(3)?;
    check_eq!(gather.result.sub(70_000, 70_000).differs(70_000, 2), None);
    // An error of the call, or of the operation.
    rig.failure(&rig.tx, 4, || barrier(mc.addr()?, 4).post(&rig.ep))?;
    Ok(())
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Groups and collective operations. Mirrors fi_av_set(3), fi_collective(3).
//!
//! Sets and refused calls are tested in `coll_sets`, dying members in `coll_death`.

use std::sync::Arc;
use std::time::Duration;

use scif_fabtests::fi::pattern_bytes;
use scif_fabtests::prelude::*;

pub(crate) const CASES: &[Case] = &[
    case("coll/alone", 1, every_kind),
    case("coll/two", 2, every_kind),
    case("coll/three", 3, every_kind),
    case("coll/five", 5, every_kind),
    case("coll/operations_on_types", 3, |r| types(&rig(r)?)),
    case("coll/many_groups", 4, many_groups),
    case("coll/apart_from_messages", 3, apart_from_messages),
    case("coll/members_come_late", 3, late),
    case("coll/subgroups", 4, |r| subgroups(&Rig::open(r, &spec())?)),
    case("coll/joins_in_any_order", 3, |r| join_order(&rig(r)?)),
    case("coll/join_wakes", 2, |r| join_wakes(&rig(r)?)),
    case("coll/completions", 2, completions),
    case("coll/without_calls", 2, without_calls),
];

/// Byte that fills memory that must not be written.
const UNTOUCHED: u8 = 0xee;

pub(super) fn spec() -> Spec {
    let caps = sys::FI_MSG | sys::FI_TAGGED | sys::FI_COLLECTIVE;
    Spec::caps(caps).with(|spec| {
        spec.eq = true;
        spec.hints.av_type = sys::FI_AV_TABLE;
    })
}

/// Opens an endpoint whose vector has the members in an order specific to the rank.
pub(super) fn rig(rank: &Rank) -> Outcome<Rig<'_>> {
    let mut rig = Rig::open_alone(rank, &spec())?;
    let name = rig.ep.name()?;
    rig.names = rig.exchange(&name)?;
    rig.peers = vec![sys::FI_ADDR_NOTAVAIL; rank.count];
    for step in 0..rank.count {
        let of = (rank.index + step) % rank.count;
        let addr = rig.av.insert(rig.names.get(of).ok_or_else(|| Fail::here("a name"))?)?;
        if let Some(place) = rig.peers.get_mut(of) {
            *place = addr;
        }
    }
    rig.barrier()?;
    Ok(rig)
}

/// Returns a set of these ranks, in this order.
pub(super) fn set_of(rig: &Rig<'_>, ranks: &[usize]) -> Outcome<Arc<AvSet>> {
    let set = AvSet::open(&rig.av, AvSetAttr::NONE)?;
    for rank in ranks {
        set.insert(rig.to(*rank))?;
    }
    Ok(set)
}

pub(super) fn joined(rig: &Rig<'_>, mc: &Mc, context: usize) -> Outcome {
    let eq = rig.eq.as_ref().ok_or_else(|| Fail::here("no event queue"))?;
    let event = rig.wait("a group", || match eq.read(0) {
        Ok(event) => Ok(Some(event)),
        Err(Errno::EAGAIN) => Ok(None),
        Err(e) => Err(Fail::here(e)),
    })?;
    check_eq!(
        (event.event, event.fid, event.context),
        (sys::FI_JOIN_COMPLETE, mc.address()?, context)
    );
    Ok(())
}

/// Joins a group of these ranks.
pub(super) fn join(rig: &Rig<'_>, ranks: &[usize]) -> Outcome<Mc> {
    let set = set_of(rig, ranks)?;
    let mc = Mc::join(&rig.ep, set.addr()?, Some(&set), 0, 0x77)?;
    // A joined group does not depend on its set.
    set.close()?;
    joined(rig, &mc, 0x77)?;
    Ok(mc)
}

pub(super) fn barrier(group: u64, context: usize) -> Collective {
    Collective {
        kind: sys::FI_BARRIER,
        buf: Buf::null(0),
        result: Buf::null(0),
        count: 0,
        group,
        root: sys::FI_ADDR_UNSPEC,
        datatype: sys::FI_VOID,
        op: sys::FI_NOOP,
        flags: 0,
        context,
    }
}

/// Returns the block that rank `from` contributes for rank `to`.
fn block(kind: u32, from: usize, to: usize, len: usize) -> Vec<u8> {
    pattern_bytes(len, (u64::from(kind) * 64 + from as u64) * 64 + to as u64)
}

fn added(n: usize, blocks: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
    let mut sum = blocks(0);
    for rank in 1..n {
        for (a, b) in sum.iter_mut().zip(blocks(rank)) {
            *a = a.wrapping_add(b);
        }
    }
    sum
}

/// Posts one operation of `kind` and returns the buffer and contents of the expected result.
/// `order` lists the members of the group.
fn one(
    rig: &Rig<'_>,
    kind: u32,
    (group, order): (u64, &[usize]),
    (root, len): (usize, usize),
    context: usize,
) -> Outcome<(Buf, Vec<u8>)> {
    let (n, me) = (order.len(), rig.rank.index);
    // The address must be valid even without a byte.
    let room = len.max(1);
    let mine = |to: usize| block(kind, me, to, len);
    let all_mine = || order.iter().flat_map(|to| mine(*to)).collect::<Vec<u8>>();
    let from_all =
        |to: usize| order.iter().flat_map(|from| block(kind, *from, to, len)).collect::<Vec<u8>>();
    let sum = |to: usize| added(n, |at| block(kind, order.get(at).copied().unwrap_or(0), to, len));
    let at_root = |bytes: Vec<u8>| if me == root { bytes } else { Vec::new() };
    let (give, expect) = match kind {
        sys::FI_BARRIER => (Vec::new(), Vec::new()),
        sys::FI_BROADCAST => (at_root(mine(0)), block(kind, root, 0, len)),
        sys::FI_ALLTOALL => (all_mine(), from_all(me)),
        sys::FI_ALLREDUCE => (mine(0), sum(0)),
        sys::FI_ALLGATHER => (mine(0), from_all(0)),
        sys::FI_REDUCE_SCATTER => (all_mine(), sum(me)),
        sys::FI_REDUCE => (mine(0), at_root(sum(0))),
        sys::FI_SCATTER => (at_root(all_mine()), block(kind, root, me, len)),
        _ => (mine(0), at_root(from_all(0))),
    };
    let result = Buf::new(room * n);
    result.fill(UNTOUCHED);
    let buf = if kind == sys::FI_BROADCAST {
        result.put(0, &give);
        result
    } else if give.is_empty() {
        // Where no byte is read the buffer may be null.
        if len == 0 { Buf::new(1) } else { Buf::null(0) }
    } else {
        Buf::of(&give)
    };
    let call = Collective {
        kind,
        buf,
        result,
        count: len,
        group,
        root: rig.to(root),
        datatype: sys::FI_UINT8,
        op: sys::FI_SUM,
        flags: 0,
        context,
    };
    rig.post(|| {
        if len % 2 == 0 || kind == sys::FI_BARRIER {
            call.post(&rig.ep)
        } else {
            call.post_msg(&rig.ep)
        }
    })?;
    Ok((result, expect))
}

fn verify(kind: u32, result: Buf, expect: &[u8]) -> Outcome {
    let have = result.bytes();
    let (written, rest) = have.split_at(expect.len());
    check!(written == expect, "collective {kind}: wrong result");
    check!(rest.iter().all(|b| *b == UNTOUCHED), "collective {kind}: written behind the result");
    Ok(())
}

const KINDS: [u32; 9] = [
    sys::FI_BARRIER,
    sys::FI_BROADCAST,
    sys::FI_ALLTOALL,
    sys::FI_ALLREDUCE,
    sys::FI_ALLGATHER,
    sys::FI_REDUCE_SCATTER,
    sys::FI_REDUCE,
    sys::FI_SCATTER,
    sys::FI_GATHER,
];

fn every_kind(rank: &Rank) -> Outcome {
    let rig = rig(rank)?;
    // The same members on all ranks, in an order specific to each.
    let order: Vec<usize> = (0..rank.count).map(|at| (at * 2 + rank.index) % rank.count).collect();
    let order = if rank.count % 2 == 0 { (0..rank.count).rev().collect() } else { order };
    let mc = join(&rig, &order)?;
    let group = (mc.addr()?, order.as_slice());
    for len in [1, 8, 0, 1001, 70_000, 300_000] {
        for kind in KINDS {
            for root in 0..rank.count {
                let (result, expect) = one(&rig, kind, group, (root, len), 9)?;
                rig.sent(9)?;
                verify(kind, result, &expect)?;
            }
        }
    }
    Collective::plain_barrier(&rig.ep, group.0, 10)?;
    rig.sent(10)?;
    rig.barrier()?;
    Ok(())
}

fn types(rig: &Rig<'_>) -> Outcome {
    let order: Vec<usize> = (0..rig.rank.count).collect();
    let mc = join(rig, &order)?;
    let me = rig.rank.index as u64;
    for (datatype, op, gives, expect) in [
        (sys::FI_UINT64, sys::FI_SUM, (me + 1).to_ne_bytes(), 6_u64.to_ne_bytes()),
        (sys::FI_UINT64, sys::FI_PROD, (me + 2).to_ne_bytes(), 24_u64.to_ne_bytes()),
        (sys::FI_UINT64, sys::FI_BOR, (1_u64 << me).to_ne_bytes(), 7_u64.to_ne_bytes()),
        (sys::FI_UINT64, sys::FI_BAND, (!(1_u64 << me)).to_ne_bytes(), (!7_u64).to_ne_bytes()),
        (sys::FI_UINT64, sys::FI_BXOR, (3_u64 << me).to_ne_bytes(), 9_u64.to_ne_bytes()),
        (sys::FI_UINT64, sys::FI_LAND, me.to_ne_bytes(), 0_u64.to_ne_bytes()),
        (sys::FI_UINT64, sys::FI_LOR, me.to_ne_bytes(), 1_u64.to_ne_bytes()),
        (sys::FI_UINT64, sys::FI_LXOR, me.to_ne_bytes(), 0_u64.to_ne_bytes()),
        (sys::FI_INT64, sys::FI_MIN, (4 - 3 * me as i64).to_ne_bytes(), (-2_i64).to_ne_bytes()),
        (
            sys::FI_DOUBLE,
            sys::FI_MAX,
            [1.5_f64, -2.0, 7.25].get(rig.rank.index).copied().unwrap_or(0.0).to_ne_bytes(),
            7.25_f64.to_ne_bytes(),
        ),
        (
            sys::FI_DOUBLE,
            sys::FI_SUM,
            [0.5_f64, 0.25, 4.0].get(rig.rank.index).copied().unwrap_or(0.0).to_ne_bytes(),
            4.75_f64.to_ne_bytes(),
        ),
    ] {
        // In place, as applications do.
        let buf = Buf::of(&gives);
        let call = Collective {
            kind: sys::FI_ALLREDUCE,
            buf,
            result: buf,
            count: 1,
            datatype,
            op,
            ..barrier(mc.addr()?, 3)
        };
        call.post(&rig.ep)?;
        rig.sent(3)?;
        check_eq!(buf.bytes(), expect.to_vec(), "datatype {datatype}, operation {op}");
    }
    rig.barrier()?;
    Ok(())
}

/// Tests overlapping groups, with concurrent operations of all kinds in all of them.
fn many_groups(rank: &Rank) -> Outcome {
    const ROUNDS: usize = 12;
    const DEEP: usize = 6;
    let rig = rig(rank)?;
    let sets: [&[usize]; 6] = [&[0, 1, 2, 3], &[0, 1, 2, 3], &[1, 3], &[2, 0, 1], &[3, 2], &[0, 3]];
    let mut groups = Vec::new();
    for set in sets.iter().filter(|set| set.contains(&rank.index)) {
        groups.push((join(&rig, set)?, *set));
    }
    let mut choice = rank.shared_rng();
    for _ in 0..ROUNDS {
        let plan: Vec<(u32, usize, usize)> = (0..DEEP)
            .map(|_| {
                let kind = KINDS.get(choice.below(9)).copied().unwrap_or(0);
                let len = [0, 8, 333, 20_000, 66_000].get(choice.below(5)).copied().unwrap_or(0);
                (kind, choice.below(60), len)
            })
            .collect();
        let mut under_way = Vec::new();
        // Each rank uses the groups in its own order; within a group the order is the same for all.
        for turn in 0..groups.len() {
            let at = (turn + rank.index) % groups.len();
            let (mc, set) = groups.get(at).ok_or_else(|| Fail::here("a group"))?;
            for (kind, root, len) in &plan {
                let root = set.get(root % set.len()).copied().unwrap_or(0);
                let context = under_way.len() + 1;
                let group = (mc.addr()?, *set);
                let (result, expect) = one(&rig, *kind, group, (root, *len), context)?;
                under_way.push((*kind, result, expect));
            }
        }
        let mut seen = vec![false; under_way.len()];
        for _ in 0..under_way.len() {
            let entry = rig.next(&rig.tx)?;
            let at = entry.context.wrapping_sub(1);
            let flag = seen.get_mut(at).ok_or_else(|| Fail::here("an unknown context"))?;
            check!(!std::mem::replace(flag, true), "completed twice");
            let (kind, result, expect) =
                under_way.get(at).ok_or_else(|| Fail::here("a context"))?;
            verify(*kind, *result, expect)?;
        }
    }
    rig.barrier()?;
    Ok(())
}

/// Tests that receives of any message from any source never match the messages of a collective, and
/// vice versa.
fn apart_from_messages(rank: &Rank) -> Outcome {
    const COUNT: usize = 50;
    let rig = rig(rank)?;
    let order: Vec<usize> = (0..rank.count).collect();
    let mc = join(&rig, &order)?;
    let group = (mc.addr()?, order.as_slice());
    let total = COUNT * (rank.count - 1);
    let bufs: Vec<Buf> = (0..total).map(|_| Buf::new(64)).collect();
    for (at, buf) in bufs.iter().enumerate() {
        if at % 2 == 0 {
            rig.ep.trecv(*buf, sys::FI_ADDR_UNSPEC, 0, u64::MAX, at)?;
        } else {
            rig.ep.recv(*buf, sys::FI_ADDR_UNSPEC, at)?;
        }
    }
    let mut results = Vec::new();
    for round in 0..COUNT {
        let kind = KINDS.get(round % KINDS.len()).copied().unwrap_or(0);
        let context = 1000 + round;
        let (result, expect) = one(&rig, kind, group, (round % rank.count, 40), context)?;
        results.push((kind, result, expect));
        for to in order.iter().filter(|to| **to != rank.index) {
            let buf = Buf::pattern(64, round as u64);
            // As many tagged messages as untagged ones, over all senders.
            if round % 2 == 0 {
                rig.post(|| rig.ep.tsend(buf, rig.to(*to), u64::MAX, 5))?;
            } else {
                rig.post(|| rig.ep.send(buf, rig.to(*to), 5))?;
            }
        }
    }
    for _ in 0..COUNT + total {
        let entry = rig.next(&rig.tx)?;
        check!(entry.context == 5 || entry.context >= 1000);
    }
    for _ in 0..total {
        let entry = rig.next(&rig.rx)?;
        check_eq!(entry.len, 64);
        check_eq!(entry.flags & sys::FI_COLLECTIVE, 0);
    }
    for (kind, result, expect) in &results {
        verify(*kind, *result, expect)?;
    }
    rig.silence(Duration::from_millis(20))?;
    rig.barrier()?;
    Ok(())
}

/// Tests members that post long after all others.
fn late(rank: &Rank) -> Outcome {
    let rig = rig(rank)?;
    let order: Vec<usize> = (0..rank.count).collect();
    let mc = join(&rig, &order)?;
    let group = (mc.addr()?, order.as_slice());
    for absent in 0..rank.count {
        let mut waiting = Vec::new();
        for (at, kind) in KINDS.iter().enumerate() {
            if rank.index == absent && at == 0 {
                // Operations that need this rank cannot complete, and the others check that.
                rig.rank.barrier(&mut || rig.pump())?;
                rig.rank.barrier(&mut || rig.pump())?;
            }
            waiting.push((at, *kind, one(&rig, *kind, group, (absent, 5000), at)?));
            if *kind == sys::FI_BARRIER && rank.index != absent {
                rig.rank.barrier(&mut || rig.pump())?;
                check!(rig.tx.take().is_none(), "a barrier ended without a member");
                rig.rank.barrier(&mut || rig.pump())?;
            }
        }
        let mut left = waiting.len();
        while left > 0 {
            rig.next(&rig.tx)?;
            left -= 1;
        }
        for (_, kind, (result, expect)) in &waiting {
            verify(*kind, *result, expect)?;
        }
    }
    rig.barrier()?;
    Ok(())
}

/// Tests groups made from the address of a set, and from that of a group.
fn subgroups(rig: &Rig<'_>) -> Outcome {
    let world: Vec<usize> = (0..rig.rank.count).collect();
    let all = AvSet::open(&rig.av, AvSetAttr { flags: sys::FI_UNIVERSE, ..AvSetAttr::NONE })?;
    let mc = Mc::join(&rig.ep, all.addr()?, Some(&all), 0, 1)?;
    joined(rig, &mc, 1)?;
    let odd = AvSet::open(
        &rig.av,
        AvSetAttr { start: 1, end: rig.rank.count as u64 - 1, stride: 2, flags: 0 },
    )?;
    let members: Vec<usize> = world.iter().copied().filter(|at| at % 2 == 1).collect();
    if rig.rank.index % 2 == 1 {
        let sub = Mc::join(&rig.ep, mc.addr()?, Some(&odd), 0, 2)?;
        joined(rig, &sub, 2)?;
        let group = (sub.addr()?, members.as_slice());
        let (result, expect) = one(rig, sys::FI_ALLREDUCE, group, (0, 80), 4)?;
        rig.sent(4)?;
        verify(sys::FI_ALLREDUCE, result, &expect)?;
        // More members than the parent group has.
        check_eq!(Mc::join(&rig.ep, sub.addr()?, Some(&all), 0, 3).err(), Some(Errno::EINVAL));
    } else {
        check_eq!(Mc::join(&rig.ep, mc.addr()?, Some(&odd), 0, 2).err(), Some(Errno::EINVAL));
    }
    let (result, expect) = one(rig, sys::FI_ALLGATHER, (mc.addr()?, &world), (0, 11), 5)?;
    rig.sent(5)?;
    verify(sys::FI_ALLGATHER, result, &expect)?;
    rig.barrier()?;
    Ok(())
}

/// Tests concurrent joins of different sets, started in another order by each member.
fn join_order(rig: &Rig<'_>) -> Outcome {
    let sets: [&[usize]; 3] = [&[0, 1, 2], &[2, 1], &[0, 2]];
    let mine: Vec<&[usize]> = sets.into_iter().filter(|s| s.contains(&rig.rank.index)).collect();
    for round in 0..5 {
        let mut groups = Vec::new();
        for turn in 0..mine.len() {
            let at = (turn + rig.rank.index + round) % mine.len();
            let set = mine.get(at).copied().unwrap_or_default();
            let members = set_of(rig, set)?;
            let mc = Mc::join(&rig.ep, sys::FI_ADDR_NOTAVAIL, Some(&members), 0, at)?;
            groups.push((mc, set));
        }
        let eq = rig.eq.as_ref().ok_or_else(|| Fail::here("no event queue"))?;
        let mut left = groups.len();
        while left > 0 {
            let event = rig.wait("a group", || match eq.read(0) {
                Ok(event) => Ok(Some(event)),
                Err(Errno::EAGAIN) => Ok(None),
                Err(e) => Err(Fail::here(e)),
            })?;
            check_eq!(event.event, sys::FI_JOIN_COMPLETE);
            left -= 1;
        }
        // All operations start before any wait; each is the only one in its group.
        let mut results = Vec::new();
        for (mc, set) in &groups {
            results.push(one(rig, sys::FI_ALLGATHER, (mc.addr()?, *set), (0, 16), 1)?);
        }
        for _ in &results {
            rig.sent(1)?;
        }
        for (result, expect) in &results {
            verify(sys::FI_ALLGATHER, *result, expect)?;
        }
    }
    rig.barrier()?;
    Ok(())
}

/// Tests that the last joining member wakes a thread that sleeps on the event queue.
fn join_wakes(rig: &Rig<'_>) -> Outcome {
    let set = set_of(rig, &[0, 1])?;
    let eq = rig.eq.as_ref().ok_or_else(|| Fail::here("no event queue"))?;
    for late in [0, 1, 0, 1] {
        if rig.rank.index == late {
            std::thread::sleep(Duration::from_millis(30));
        }
        let mc = Mc::join(&rig.ep, set.addr()?, Some(&set), 0, late)?;
        let event = eq.sread(20_000, 0)?;
        check_eq!(
            (event.event, event.fid, event.context),
            (sys::FI_JOIN_COMPLETE, mc.address()?, late)
        );
        barrier(mc.addr()?, 8).post(&rig.ep)?;
        rig.sent(8)?;
    }
    rig.barrier()?;
    Ok(())
}

/// Tests selective completion and counters of collectives.
fn completions(rank: &Rank) -> Outcome {
    let rig = Rig::open(
        rank,
        &spec().with(|spec| {
            spec.selective = true;
            spec.counters = sys::FI_WRITE | sys::FI_SEND;
        }),
    )?;
    let mc = join(&rig, &[0, 1])?;
    let group = mc.addr()?;
    for round in 1..=4 {
        let flags = if round % 2 == 0 { sys::FI_COMPLETION } else { 0 };
        Collective { flags, ..barrier(group, round) }.post(&rig.ep)?;
        rig.counted(sys::FI_WRITE, round as u64)?;
        if flags != 0 {
            let entry = rig.sent(round)?;
            check_eq!((entry.flags, entry.len), (sys::FI_COLLECTIVE, 0));
        }
    }
    rig.silence(Duration::from_millis(5))?;
    check_eq!(rig.counter(sys::FI_SEND)?.read()?, 0);
    check_eq!(rig.counter(sys::FI_WRITE)?.read()?, 4);
    rig.barrier()?;
    Ok(())
}

/// Tests that with automatic progress a member that has posted needs no further call for the others
/// to complete.
fn without_calls(rank: &Rank) -> Outcome {
    let auto = spec().with(|spec| spec.hints.data_progress = sys::FI_PROGRESS_AUTO);
    let rig = Rig::open(rank, &auto)?;
    let mc = join(&rig, &[0, 1])?;
    let group = (mc.addr()?, [0, 1].as_slice());
    for quiet in [0, 1] {
        let (result, expect) = one(&rig, sys::FI_ALLREDUCE, group, (0, 200_000), 2)?;
        if rank.index == quiet {
            rank.barrier(&mut || {
                std::thread::sleep(Duration::from_millis(1));
                Ok(())
            })?;
            rig.sent(2)?;
        } else {
            rig.sent(2)?;
            rig.barrier()?;
        }
        verify(sys::FI_ALLREDUCE, result, &expect)?;
    }
    rig.barrier()?;
    Ok(())
}

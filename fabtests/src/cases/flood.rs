// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests of a peer that keeps sending messages that the other never receives: its connection ends,
//! and other peers are unaffected.
//!
//! Rank 0 receives tagged messages only, rank 1 sends untagged ones, rank 2 is a well-behaved
//! client of rank 0.

use std::ops::Range;

use scif_fabtests::harness::memory_group::MemoryGroup;
use scif_fabtests::prelude::*;

/// Setting with which the receiver stores each message. The default may leave it with the sender.
const EAGER: (&str, &str) = ("FI_SCIF_EAGER_SIZE", "16K");

pub(crate) const CASES: &[Case] = &[
    case("flood/beyond_the_limit", 3, |r| flood(r, talk, None))
        .under(&[EAGER, ("FI_SCIF_UNEXPECTED_MAX", "64M")]),
    case("flood/beyond_the_limit_over_two_connections", 3, |r| flood(r, talk_at_once, None))
        .under(&[EAGER, ("FI_SCIF_UNEXPECTED_MAX", "64M")]),
    // The limit is out of reach, because memory allocation fails first.
    case("flood/beyond_available_memory", 3, |r| flood(r, talk, Some(64 << 20)))
        .under(&[EAGER, ("FI_SCIF_UNEXPECTED_MAX", "1G")]),
    case("flood/in_a_control_group", 3, in_a_control_group)
        .under(&[EAGER, ("FI_SCIF_UNEXPECTED_MAX", "auto")]),
];

/// Function that makes the connections between rank 0 and each of the others.
type Talk = fn(&Rig<'_>) -> Outcome;

/// Maximum growth of the receiver in bytes: half the limit, the overhead of the allocator, and a
/// reserve.
const GROWTH_MAX: u64 = 48 << 20;
const LEN: usize = 16 << 10;
/// Maximum number of messages that the flooding rank may send, ten times as many as the receiver
/// may keep.
const MESSAGES_MAX: usize = 30_000;
const ROUNDS: usize = 200;

fn flood(rank: &Rank, talk: Talk, memory: Option<u64>) -> Outcome {
    let spec = Spec::caps(sys::FI_MSG | sys::FI_TAGGED).with(|spec| spec.eq = true);
    let rig = Rig::open(rank, &spec)?;
    talk(&rig)?;
    rig.barrier()?;
    match (rank.index, memory) {
        (0, None) => serve(&rig, GROWTH_MAX)?,
        // All of the spare memory may be in use before allocation fails.
        (0, Some(spare)) => sandbox::with_memory(spare, || serve(&rig, spare + (16 << 20)))??,
        (1, _) => send_for_ever(&rig)?,
        _ => repeat_small_messages(&rig)?,
    }
    rig.barrier()
}

/// Context of the receives of the first message.
const FIRST: usize = 0x9ee7;

/// Sends one small tagged message to rank 0 from each of the others, then one back: one connection
/// with each.
fn talk(rig: &Rig<'_>) -> Outcome {
    if rig.rank.index != 0 {
        send_first(rig, 0)?;
    }
    for other in partners(rig) {
        receive_first(rig, other)?;
        if rig.rank.index == 0 {
            send_first(rig, other)?;
        }
    }
    Ok(())
}

/// Sends one small tagged message each way, before either side makes progress: two connections with
/// each (simultaneous open).
fn talk_at_once(rig: &Rig<'_>) -> Outcome {
    for other in partners(rig) {
        send_first(rig, other)?;
    }
    rig.barrier()?;
    for other in partners(rig) {
        receive_first(rig, other)?;
    }
    Ok(())
}

/// Ranks to talk to: every other rank for rank 0, and rank 0 for every other.
fn partners(rig: &Rig<'_>) -> Range<usize> {
    if rig.rank.index == 0 { 1..rig.rank.count } else { 0..1 }
}

/// Tag of the first message of rank `from`.
fn first_tag(from: usize) -> u64 {
    0x100 + from as u64
}

fn send_first(rig: &Rig<'_>, to: usize) -> Outcome {
    let tag = first_tag(rig.rank.index);
    rig.post(|| rig.ep.tinject(Buf::new(8), rig.to(to), tag))
}

fn receive_first(rig: &Rig<'_>, from: usize) -> Outcome {
    let tag = first_tag(from);
    rig.post(|| rig.ep.trecv(Buf::new(8), sys::FI_ADDR_UNSPEC, tag, 0, FIRST))?;
    rig.received(FIRST)?;
    Ok(())
}

/// Tests that the default limit keeps the receiver below the memory limit of its control group.
fn in_a_control_group(rank: &Rank) -> Outcome {
    // A quarter is for unexpected messages. Entered first, since the provider reads the limit when
    // it is loaded.
    const LIMIT: u64 = 256 << 20;
    let _group = (rank.index == 0).then(|| MemoryGroup::enter(LIMIT)).transpose()?;
    flood(rank, talk, None)
}

/// Replies to rank 2 until it has enough, during the flood.
fn serve(rig: &Rig<'_>, growth_max: u64) -> Outcome {
    let before = sandbox::memory("VmRSS:")?;
    let mut most = 0;
    for round in 0..ROUNDS {
        rig.post(|| rig.ep.trecv(Buf::new(8), sys::FI_ADDR_UNSPEC, 2, 0, round))?;
        rig.received(round)?;
        rig.post(|| rig.ep.tinject(Buf::new(8), rig.to(2), 3))?;
        most = most.max(sandbox::memory("VmRSS:")?);
    }
    let eq = rig.eq.as_ref().ok_or_else(|| Fail::here("no event queue"))?;
    let error = rig.wait("the end of the flooder", || match eq.read(0) {
        Err(Errno::EAVAIL) => Ok(Some(eq.readerr()?)),
        _ => Ok(None),
    })?;
    check_eq!(error.err, sys::FI_ENOMEM);
    let grown = most.saturating_sub(before);
    check!(grown <= growth_max, "grew by {grown} bytes");
    Ok(())
}

/// Sends until a completion reports the end of the connection. By then another connection may have
/// begun.
fn send_for_ever(rig: &Rig<'_>) -> Outcome {
    let buf = Buf::new(LEN);
    for sent in 0..MESSAGES_MAX {
        rig.post(|| rig.ep.send(buf, rig.to(0), sent))?;
        if let Err(error) = rig.wait("a completion", || Ok(rig.tx.take()))? {
            check_eq!(error.err, Errno::ECONNRESET);
            break;
        }
    }
    Ok(())
}

fn repeat_small_messages(rig: &Rig<'_>) -> Outcome {
    for round in 0..ROUNDS {
        rig.post(|| rig.ep.trecv(Buf::new(8), rig.to(0), 3, 0, round))?;
        rig.post(|| rig.ep.tinject(Buf::new(8), rig.to(0), 2))?;
        rig.received(round)?;
    }
    Ok(())
}

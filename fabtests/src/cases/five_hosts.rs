// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Flow control among five hosts: a receiver that makes no progress for ten seconds stops the ranks
//! of four other hosts. Its memory does not grow, and two other ranks of its host go on
//! talking. Then everything arrives in order.
//!
//! Rank 0 receives, ranks 1 to 4 send, and ranks 5 and 6 talk. `CONFORMANCE_MIB` is the number of
//! MiB of each sender, of which there are 1024 by default.

use std::time::{Duration, Instant};

use scif_fabtests::harness::cpus::{pin, two_cpus};
use scif_fabtests::prelude::*;

use super::flow::{
    Growth, Inbox, Outbox, RECEIVES, SHORT, absent, check_taken, held_memory, talk_often, warm_up,
};

pub(crate) const CASES: &[Case] = &[
    case("five_hosts/short_messages", 7, |r| flow(r, SHORT)).within(600),
    case("five_hosts/announced_messages", 7, |r| flow(r, 1 << 20)).within(600),
];

const SENDERS: usize = 4;
/// Ranks that talk to each other.
const TALKERS: [usize; 2] = [5, 6];
/// Time for which the receiver makes no progress, and with fewer bytes than usual.
const PAUSE: Duration = Duration::from_secs(10);
const SHORT_PAUSE: Duration = Duration::from_secs(2);
/// Maximum growth in bytes of the receiver's memory once it takes messages: 256 unexpected ones, at
/// which it reads its rings less often, and 256 KiB for each sender.
const GROWN_MAX: u64 = (256 * SHORT + SENDERS * (256 << 10)) as u64;
/// Share of the round trips of the talkers that is judged, as a divisor.
const QUARTER: usize = 4;
/// Maximum duration of a round trip during the stop, in percent of one before. The senders try to
/// send every two milliseconds, on the same processors.
const SLOWER_MAX: u32 = 150;

/// Returns `NotHere` unless the ranks are on the five hosts.
fn needs_hosts(rank: &Rank) -> Outcome {
    let here = std::fs::read("/proc/sys/kernel/hostname")?;
    let mut hosts = rank.exchange(&here, &mut || Ok(()))?;
    let talkers = hosts.split_off(SENDERS + 1);
    let own = hosts.first().cloned();
    let are_near = talkers.iter().all(|host| Some(host) == own.as_ref());
    hosts.sort_unstable();
    hosts.dedup();
    if are_near && hosts.len() == SENDERS + 1 {
        Ok(())
    } else {
        Err(Fail::NotHere("the ranks are not on five hosts".into()))
    }
}

/// Amount of data.
struct Amount {
    /// Length in bytes of a message.
    len: usize,
    /// Number of messages of each sender before the test.
    first: usize,
    /// Number of messages of each sender in the test.
    count: usize,
    pause: Duration,
}

fn flow(rank: &Rank, len: usize) -> Outcome {
    needs_hosts(rank)?;
    let mib = std::env::var("CONFORMANCE_MIB").ok().and_then(|mib| mib.parse::<usize>().ok());
    let amount = Amount {
        len,
        first: warm_up(len),
        count: (mib.unwrap_or(1024) << 20) / len,
        pause: if mib.is_some() { SHORT_PAUSE } else { PAUSE },
    };
    let rig = Rig::open(rank, &Spec::caps(sys::FI_MSG | sys::FI_TAGGED | sys::FI_DIRECTED_RECV))?;
    match rank.index {
        0 => receiver(&rig, &amount)?,
        talker if TALKERS.contains(&talker) => talker_of(&rig)?,
        _ => sender(&rig, &amount)?,
    }
    rig.barrier()
}

fn receiver(rig: &Rig<'_>, amount: &Amount) -> Outcome {
    let bufs: Vec<Buf> = (0..RECEIVES).map(|_| Buf::pattern(amount.len, 1)).collect();
    // The rings and buffers have been in use before the memory is measured.
    let mut inbox = Inbox::new(rig.rank.count);
    inbox.receive(rig, &bufs, amount.first * SENDERS)?;
    rig.barrier()?;
    absent(rig.rank)?;
    let before = held_memory()?;
    absent(rig.rank)?;
    // The senders begin here.
    let begin = Instant::now();
    absent(rig.rank)?;
    std::thread::sleep(amount.pause.saturating_sub(begin.elapsed()));
    absent(rig.rank)?;
    let asleep = held_memory()?.saturating_sub(before);
    absent(rig.rank)?;
    let growth = Growth { before, asleep, senders: SENDERS, grown_max: GROWN_MAX };
    inbox.receive_rest(rig, &bufs, amount.count * SENDERS, growth)
}

fn sender(rig: &Rig<'_>, amount: &Amount) -> Outcome {
    let mut outbox = Outbox::new(rig, amount.len);
    let all = (amount.first + amount.count) as u64;
    outbox.finish(amount.first as u64)?;
    // The last ones leave the ring while this rank makes progress.
    rig.barrier()?;
    let begin = outbox.done;
    absent(rig.rank)?;
    absent(rig.rank)?;
    rig.rank.step("sending until the receiver stops it");
    outbox.send_until_stopped(all)?;
    let step = |outbox: &mut Outbox<'_>| {
        rig.rank.barrier(&mut || {
            std::thread::sleep(Duration::from_millis(2));
            outbox.step(all)
        })
    };
    step(&mut outbox)?;
    step(&mut outbox)?;
    let taken = (outbox.done - begin) * amount.len;
    rig.rank.figure(format_args!("{taken} bytes taken, {} posts refused", outbox.refused));
    check_taken(taken)?;
    absent(rig.rank)?;
    rig.rank.step("sending the rest");
    outbox.finish(all)
}

fn talker_of(rig: &Rig<'_>) -> Outcome {
    let [first, second] = two_cpus()?;
    let is_first = rig.rank.index == TALKERS[0];
    pin(if is_first { first } else { second })?;
    let other = if is_first { TALKERS[1] } else { TALKERS[0] };
    rig.barrier()?;
    absent(rig.rank)?;
    let quiet = talk_often(rig, other, QUARTER)?;
    absent(rig.rank)?;
    absent(rig.rank)?;
    let stopped = talk_often(rig, other, QUARTER)?;
    absent(rig.rank)?;
    absent(rig.rank)?;
    rig.rank.figure(format_args!("round trips {quiet:?} then {stopped:?}"));
    check!(stopped * 100 <= quiet * SLOWER_MAX, "{stopped:?} a round trip, {quiet:?} before");
    Ok(())
}

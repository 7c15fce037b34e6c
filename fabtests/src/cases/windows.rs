// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! RMA on windows, over the calls of `scif.h`: without calls of the target, by the CPU and by DMA,
//! on memory that is used again after the close of its region, and beside a close that waits. Also
//! payloads of messages, which the receiver reads from windows.
//!
//! Rank 1 owns the memory. The results of all operations are tested in `rma`.

use std::sync::Arc;
use std::time::Duration;

use scif_fabtests::harness::{sandbox, seccomp};
use scif_fabtests::prelude::*;

use super::atomic::spec;
use super::rma::{REMOTE, announce, from, wait_for_announcement};

/// Settings with which no RMA is left to DMA, and with which all are.
const BY_CPU: &[(&str, &str)] = &[
    ("FI_SCIF_TRANSPORT", "scif"),
    ("SCIF_TRANSPORT", "soft"),
    ("SCIF_DMA_MIN", "1000000000"),
    ("FI_SCIF_STATS", "1"),
];
const BY_DMA: &[(&str, &str)] = &[
    ("FI_SCIF_TRANSPORT", "scif"),
    ("SCIF_TRANSPORT", "soft"),
    ("SCIF_DMA_MIN", "0"),
    ("FI_SCIF_STATS", "1"),
];
/// Settings of a close that waits for a stopped peer, for long enough to poll beside it.
const WAITING_CLOSE: &[(&str, &str)] = &[
    ("FI_SCIF_TRANSPORT", "scif"),
    ("SCIF_TRANSPORT", "soft"),
    ("SCIF_DMA_MIN", "1000000000"),
    ("FI_SCIF_MR_CLOSE_TIMEOUT", "1s"),
];

pub(crate) const CASES: &[Case] = &[
    case("windows/silent_target", 2, |r| silent_target(r, "window_cpu")).under(BY_CPU),
    case("windows/silent_target_of_dma", 2, |r| silent_target(r, "window_dma")).under(BY_DMA),
    case("windows/one_fence_for_many", 2, one_fence_for_many).under(BY_DMA),
    case("windows/memory_used_again", 2, memory_used_again).under(BY_CPU),
    case("windows/memory_used_again_by_dma", 2, memory_used_again).under(BY_DMA),
    case("windows/local_buffer_used_again", 2, local_buffer_used_again).under(BY_CPU),
    case("windows/local_buffer_used_again_by_dma", 2, local_buffer_used_again).under(BY_DMA),
    case("windows/payload_read", 2, |r| payload_read(r, "window_cpu")).under(BY_CPU),
    case("windows/payload_read_by_dma", 2, |r| payload_read(r, "window_dma")).under(BY_DMA),
    case("windows/messages_between_pollers", 2, |r| pingpong(r, RingPlace::Windows)).under(BY_CPU),
    case("windows/messages_without_windows", 2, |r| pingpong(r, RingPlace::Stream)).under(BY_CPU),
    case("windows/close_beside_polls", 2, |r| close_beside_polls(r, false)).under(WAITING_CLOSE),
    case("windows/endpoint_close_beside_polls", 2, |r| close_beside_polls(r, true))
        .under(WAITING_CLOSE),
    case("windows/many_keys", 2, many_keys).under(BY_CPU).within(300),
];

const LEN: usize = (1 << 20) + 4096;
const PAGE: usize = 4096;
/// Interval at which the silent target looks at its memory.
const LOOK: Duration = Duration::from_millis(1);

/// Runs `body` and returns the counters of the endpoint that it closes.
pub(super) fn counted(body: impl FnOnce() -> Outcome) -> Outcome<String> {
    let (done, text) = sandbox::stderr_of(body)?;
    done?;
    Ok(text)
}

/// Returns the value of a counter: operations, and bytes where it has them.
pub(super) fn counter(text: &str, name: &str) -> Outcome<(u64, u64)> {
    let mut words = text.split_whitespace().skip_while(|word| *word != name);
    let value = words.nth(1).and_then(|value| {
        let (operations, bytes) = value.split_once('/').unwrap_or((value, "0"));
        Some((operations.parse().ok()?, bytes.parse().ok()?))
    });
    value.ok_or_else(|| Fail::here(format_args!("no counter {name} in {text}")))
}

fn operations(text: &str, name: &str) -> Outcome<u64> {
    Ok(counter(text, name)?.0)
}

/// Writes and reads while the target makes no call: it only loads and stores words of its memory.
fn silent_target(rank: &Rank, path: &str) -> Outcome {
    rank.only_scif("its transport")?;
    let text = counted(|| {
        let rig = Rig::open(rank, &spec())?;
        let memory = Buf::new(LEN);
        let (_mr, remotes) = rig.share(memory, REMOTE)?;
        let at = |off| from(&remotes, 1, off);
        if rank.index == 1 {
            wait_for_announcement(&rig)?;
            while memory.load_u64(0) == 0 {
                std::thread::sleep(LOOK);
            }
            check_eq!(memory.sub(8, LEN - 16).differs(LEN - 16, 3), None);
            memory.store_u64(LEN - 8, 7);
            return rig.barrier();
        }
        announce(&rig, rig.peer())?;
        let put = |off: usize, buf: Buf| {
            let there = at(off)?;
            rig.complete(1, || rig.ep.write(buf, rig.peer(), there.addr, there.key, 1))
        };
        put(8, Buf::pattern(LEN - 16, 3))?;
        put(0, Buf::of(&1_u64.to_le_bytes()))?;
        let (word, there) = (Buf::new(8), at(LEN - 8)?);
        while word.load_u64(0) == 0 {
            rig.complete(2, || rig.ep.read(word, rig.peer(), there.addr, there.key, 2))?;
        }
        check_eq!(word.load_u64(0), 7);
        rig.barrier()
    })?;
    if rank.index == 0 {
        check_eq!(operations(&text, "rma")?, operations(&text, path)?, "{text}");
        check_eq!(operations(&text, "ring")?, 0, "{text}");
    } else {
        check_eq!(operations(&text, "windows")?, 1, "{text}");
    }
    Ok(())
}

/// Writes posted without a poll in between share a fence, and complete in order.
fn one_fence_for_many(rank: &Rank) -> Outcome {
    const WRITES: usize = 64;
    rank.only_scif("its transport")?;
    let text = counted(|| {
        let rig = Rig::open(rank, &spec())?;
        let memory = Buf::new(WRITES * PAGE);
        let (_mr, remotes) = rig.share(memory, REMOTE)?;
        if rank.index == 0 {
            let first = from(&remotes, 1, 0)?;
            // The first one learns of the key.
            let word = Buf::new(8);
            rig.complete(9, || rig.ep.write(word, rig.peer(), first.addr, first.key, 9))?;
            for n in 0..WRITES {
                let there = from(&remotes, 1, n * PAGE)?;
                let buf = Buf::pattern(PAGE, n as u64);
                // No poll in between.
                rig.ep.write(buf, rig.peer(), there.addr, there.key, n)?;
            }
            for n in 0..WRITES {
                rig.sent(n)?;
            }
            announce(&rig, rig.peer())?;
        } else {
            wait_for_announcement(&rig)?;
            for n in 0..WRITES {
                check_eq!(memory.sub(n * PAGE, PAGE).differs(PAGE, n as u64), None, "write {n}");
            }
        }
        rig.barrier()
    })?;
    if rank.index == 0 {
        let (writes, fences) = (operations(&text, "window_dma")?, operations(&text, "fences")?);
        check_eq!(writes, WRITES as u64 + 1, "{text}");
        check!(fences >= 2 && fences <= writes / 4, "{fences} fences of {writes} writes: {text}");
    }
    Ok(())
}

/// Registers the same addresses again and again, with new pages behind them, under one key.
fn memory_used_again(rank: &Rank) -> Outcome {
    const ROUNDS: u64 = 20;
    rank.only_scif("its transport")?;
    let rig = Rig::open(rank, &spec())?;
    let memory = Buf::private(16 * PAGE)?;
    for round in 1..=ROUNDS {
        memory.fill(0);
        let (mr, remotes) = rig.share(memory.sub(100, 15 * PAGE), REMOTE)?;
        if rank.index == 0 {
            let there = from(&remotes, 1, 0)?;
            let buf = Buf::pattern(15 * PAGE, round);
            rig.complete(1, || rig.ep.write(buf, rig.peer(), there.addr, there.key, 1))?;
            announce(&rig, rig.peer())?;
        } else {
            wait_for_announcement(&rig)?;
            check_eq!(memory.sub(100, 15 * PAGE).differs(15 * PAGE, round), None, "{round}");
        }
        rig.barrier()?;
        mr.close()?;
        // Alternately new pages at the same address, and the same pages without their contents.
        if round % 2 == 0 { memory.renew()? } else { memory.drop_contents()? }
    }
    rig.barrier()
}

/// Writes from and reads into the same addresses, with new pages behind them in each round. No
/// cache of local buffers serves the pages of an earlier round, nor the pages that are now at
/// another address.
fn local_buffer_used_again(rank: &Rank) -> Outcome {
    const ROUNDS: u64 = 24;
    rank.only_scif("its transport")?;
    let rig = Rig::open(rank, &spec())?;
    let (_mr, remotes) = rig.share(Buf::private(LEN)?, REMOTE)?;
    if rank.index == 1 {
        return rig.barrier();
    }
    let (there, local) = (from(&remotes, 1, 0)?, Buf::private(LEN)?);
    let other = Buf::private(LEN)?;
    for round in 1..=ROUNDS {
        let part = local.sub(100, LEN - 200);
        let renew = |step: u64| -> Outcome {
            match (round + step) % 4 {
                0 => Ok(local.renew()?),
                1 => Ok(local.drop_contents()?),
                2 => Ok(local.move_to(other)?),
                // Both processes get copies of the pages when they are written to.
                _ => sandbox::in_child(|| 0).map(drop),
            }
        };
        part.fill_pattern(round);
        rig.complete(1, || rig.ep.write(part, rig.peer(), there.addr, there.key, 1))?;
        renew(0)?;
        part.fill(0);
        rig.complete(2, || rig.ep.read(part, rig.peer(), there.addr, there.key, 2))?;
        check_eq!(part.differs(part.len(), round), None, "round {round}");
        renew(1)?;
    }
    rig.barrier()
}

/// Sends long messages from addresses with new pages in each round. The receiver reads them from
/// windows of the sender, and never from pages of an earlier round.
fn payload_read(rank: &Rank, path: &str) -> Outcome {
    const ROUNDS: u64 = 40;
    /// Messages that cross the ring all the same, since the sender registered memory for another
    /// question at that time.
    const OTHERS: u64 = 10;
    rank.only_scif("its transport")?;
    let text = counted(|| {
        let rig = Rig::open(rank, &spec())?;
        let memory = Buf::private(LEN)?;
        let (_mr, remotes) = rig.share(Buf::new(8), REMOTE)?;
        if rank.index == 1 {
            // Its channel to the sender exists from then on.
            let (there, word) = (from(&remotes, 0, 0)?, Buf::new(8));
            rig.complete(1, || rig.ep.write(word, rig.peer(), there.addr, there.key, 1))?;
        }
        rig.barrier()?;
        for round in 1..=ROUNDS {
            let part = memory.sub(100, LEN - 200);
            if rank.index == 0 {
                part.fill_pattern(round);
                rig.complete(2, || rig.ep.send(part, rig.peer(), 2))?;
                // Alternately new pages at the same address, and the same without their contents.
                if round % 2 == 0 { memory.renew()? } else { memory.drop_contents()? }
            } else {
                rig.post(|| rig.ep.recv(part, rig.peer(), 3))?;
                rig.received(3)?;
                check_eq!(part.differs(part.len(), round), None, "round {round}");
            }
        }
        rig.barrier()
    })?;
    // Pages that are lent in place are read by process_vm_readv. Without it, all crosses the ring.
    if rank.index == 1 && sandbox::may_call_process_vm() {
        check!(operations(&text, path)? + OTHERS >= ROUNDS, "{text}");
    }
    Ok(())
}

/// Place of the rings of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum RingPlace {
    Windows,
    Stream,
}

/// Exchanges short messages. Between ranks that poll, none crosses the stream if the rings lie in
/// windows, and each one does where no page moves into a window.
fn pingpong(rank: &Rank, place: RingPlace) -> Outcome {
    const MESSAGES: u64 = 200;
    /// Sends of the last frame, and of a doorbell before the ranks poll.
    const OTHERS: u64 = 4;
    rank.only_scif("its transport")?;
    if place == RingPlace::Stream {
        seccomp::deny(&[libc::SYS_userfaultfd])?;
    }
    let text = counted(|| {
        let rig = Rig::open(rank, &spec())?;
        let (from, to) = (Buf::new(8), Buf::new(8));
        for number in 0..MESSAGES {
            rig.post(|| rig.ep.recv(to, rig.peer(), 1))?;
            if rank.index == 0 {
                from.store_u64(0, number);
                rig.complete(2, || rig.ep.send(from, rig.peer(), 2))?;
                rig.received(1)?;
                check_eq!(to.load_u64(0), number);
            } else {
                rig.received(1)?;
                rig.complete(2, || rig.ep.send(to, rig.peer(), 2))?;
            }
        }
        rig.barrier()
    })?;
    let sends = operations(&text, "stream")?;
    match place {
        RingPlace::Windows => check!(sends <= OTHERS, "{text}"),
        RingPlace::Stream => check!(sends >= MESSAGES, "{text}"),
    }
    Ok(())
}

/// Closes a region that a stopped peer is writing to, while another thread polls. The close waits
/// for the peer, and the polls do not wait for the close. With `ep_first`, the endpoint is closed
/// before: that close does not wait for the peer, and the close of the region still does.
fn close_beside_polls(rank: &Rank, ep_first: bool) -> Outcome {
    const WRITTEN: usize = 16 << 20;
    const PAUSE: Duration = Duration::from_millis(5);
    /// Polls beside the close, of about 200 that its limit has time for. A poll that waits for the
    /// lock of the domain is the second one at most.
    const POLLS: usize = 10;
    rank.only_scif("its transport")?;
    let spec = spec().with(|spec| spec.hints.threading = sys::FI_THREAD_SAFE);
    let rig = Rig::open(rank, &spec)?;
    let memory = Buf::private(WRITTEN)?;
    let (mr, remotes) = rig.share(memory, REMOTE)?;
    rig.barrier()?;
    if rank.index == 1 {
        let (there, buf) = (from(&remotes, 0, 0)?, Buf::private(WRITTEN)?);
        for round in 1.. {
            buf.store_u64(0, round);
            buf.store_u64(WRITTEN - 8, round);
            rig.complete(1, || rig.ep.write(buf, rig.peer(), there.addr, there.key, 1))?;
        }
    }
    rank.step("stopping the writer in the middle of a copy");
    loop {
        rank.stop(1)?;
        std::thread::sleep(PAUSE);
        if memory.load_u64(0) != memory.load_u64(WRITTEN - 8) {
            break;
        }
        rank.resume(1)?;
        rig.pump()?;
        std::thread::yield_now();
    }
    rank.step("polling beside the close");
    let polls = std::thread::scope(|scope| -> Outcome<usize> {
        let ep = Arc::clone(&rig.ep);
        let closing = scope.spawn(move || match ep_first {
            true => {
                ep.close()?;
                // Another thread has begun to unregister the window by then.
                std::thread::sleep(2 * PAUSE);
                mr.close()
            }
            false => mr.close(),
        });
        let mut polls = 0;
        while !closing.is_finished() {
            rig.pump()?;
            polls += 1;
            std::thread::sleep(PAUSE);
        }
        closing.join().map_err(|_| Fail::here("a panic"))??;
        Ok(polls)
    })?;
    rank.kill(1)?;
    check!(polls >= POLLS, "{polls} polls beside the close");
    Ok(())
}

/// Registers, writes and closes many regions, each with its own window.
fn many_keys(rank: &Rank) -> Outcome {
    const KEYS: u64 = 10_000;
    /// Mappings that a process may gain meanwhile, for its allocator.
    const SPARE: usize = 16;
    rank.only_scif("its transport")?;
    let maps = || std::fs::read_to_string("/proc/self/maps").map(|maps| maps.lines().count());
    let text = counted(|| {
        let rig = Rig::open(rank, &spec())?;
        let memory = Buf::private(2 * PAGE)?;
        let (word, mut before) = (Buf::new(8), 0);
        for round in 0..KEYS {
            let (mr, remotes) = rig.share(memory, REMOTE)?;
            if rank.index == 0 {
                let there = from(&remotes, 1, 8)?;
                word.store_u64(0, round);
                rig.complete(1, || rig.ep.write(word, rig.peer(), there.addr, there.key, 1))?;
                announce(&rig, rig.peer())?;
            } else {
                wait_for_announcement(&rig)?;
                check_eq!(memory.load_u64(8), round);
            }
            mr.close()?;
            if round == KEYS / 10 {
                before = maps()?;
            }
        }
        let after = maps()?;
        check!(after <= before + SPARE, "{after} mappings, {before} before");
        rig.barrier()
    })?;
    if rank.index == 1 {
        check_eq!(operations(&text, "windows")?, KEYS, "{text}");
    }
    Ok(())
}

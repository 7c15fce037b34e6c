// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Flow control: a receiver that makes no progress for a while stops its senders, and its memory
//! does not grow. The senders talk to each other meanwhile. Then everything arrives in order.
//!
//! Rank 0 receives, and all others send to it. Between two hosts, ranks 1 and 3 are on the other
//! host, and rank 2 is on the receiver's.

use std::time::{Duration, Instant};

use scif_fabtests::prelude::*;

pub(crate) const CASES: &[Case] = &[
    case("flow/short_messages", 4, |r| flow(r, SHORT)),
    case("flow/announced_messages", 4, |r| flow(r, 1 << 20)),
    case("flow/without_receives", 2, without_receives),
];

/// Size in bytes of messages that travel in the ring.
pub(super) const SHORT: usize = 8 << 10;
/// Number of receives that are posted at the same time.
pub(super) const RECEIVES: usize = 32;
/// Number of round trips between two senders.
const ROUNDS: usize = 3000;
/// Share of the round trips that is judged, as a divisor. Where other programs share the
/// processors, most round trips wait for a processor.
const QUICK: usize = 100;
/// Maximum number of bytes that a sender may complete while the receiver makes no progress: the
/// rings of both sides and what the network has in its buffers.
const TAKEN_MAX: usize = 512 << 10;
/// Maximum growth in bytes of the receiver's memory for each peer while it makes no progress: one
/// direction of a ring, which has 64 KiB of bodies and 20 KiB of records.
const RING: u64 = 84 << 10;
/// Maximum growth in bytes for each peer once the receiver takes messages: a ring of 64 KiB twice,
/// since a sender may fill it again while one poll empties it, and as much for copies.
const GROWTH_MAX: u64 = 256 << 10;
/// Maximum duration of a round trip during the stop, as a multiple of one before. Any larger factor
/// would hide a transport that waits for the receiver.
const SLOWER_MAX: u32 = 3;
/// Number of talks during the stop. With fewer, one phase in which another program takes both
/// processors covers all of them.
const TALKS: usize = 5;
/// Time between two talks. With less, one such phase covers all of them.
const PAUSE: Duration = Duration::from_millis(20);
/// Time without a completion after which a sender is stopped.
const STOPPED: Duration = Duration::from_millis(200);
const SEND: usize = 0x5e;
const TALK: u64 = 0x7a1c;

/// Bytes that each rank sends, and the time for which the receiver makes no progress. On one host
/// the kernel moves nothing by itself, so less shows as much: twice the buffers of a sender.
fn amount() -> (usize, Duration) {
    if std::env::var_os("FI_SCIF_NET").is_some() {
        (1 << 30, Duration::from_secs(10))
    } else {
        (64 << 20, Duration::from_secs(1))
    }
}

fn flow(rank: &Rank, len: usize) -> Outcome {
    let rig = Rig::open(rank, &Spec::caps(sys::FI_MSG | sys::FI_TAGGED | sys::FI_DIRECTED_RECV))?;
    let (bytes, pause) = amount();
    let count = bytes / len;
    if rank.index == 0 { receiver(&rig, len, count, pause) } else { sender(&rig, len, count) }
}

/// Waits for all ranks without a call of the library.
pub(super) fn absent(rank: &Rank) -> Outcome {
    rank.barrier(&mut || {
        std::thread::sleep(Duration::from_millis(2));
        Ok(())
    })
}

fn receiver(rig: &Rig<'_>, len: usize, count: usize, pause: Duration) -> Outcome {
    let senders = rig.rank.count - 1;
    let bufs: Vec<Buf> = (0..RECEIVES).map(|_| Buf::pattern(len, 1)).collect();
    // The rings and buffers have been in use before the memory is measured.
    let mut inbox = Inbox::new(rig.rank.count);
    inbox.receive(rig, &bufs, warm_up(len) * senders)?;
    absent(rig.rank)?;
    let before = held_memory()?;
    absent(rig.rank)?;
    std::thread::sleep(pause);
    let asleep = held_memory()?.saturating_sub(before);
    absent(rig.rank)?;
    let grown_max = GROWTH_MAX * senders as u64;
    inbox.receive_rest(
        rig,
        &bufs,
        count * senders,
        Growth { before, asleep, senders, grown_max },
    )?;
    rig.barrier()
}

/// Number of messages of each sender before the test.
pub(super) fn warm_up(len: usize) -> usize {
    ((4 << 20) / len).max(2 * RECEIVES)
}

/// Messages of one sender that have arrived. Announced ones complete in any order.
#[derive(Clone, Debug, Default)]
struct Arrived {
    /// Number up to which all have arrived.
    all: u64,
    /// Later messages, one bit each.
    later: u64,
}

impl Arrived {
    /// Notes a message; returns false if it has arrived before, or is too far ahead.
    fn note(&mut self, number: u64) -> bool {
        let Some(bit) = number.checked_sub(self.all).filter(|ahead| *ahead < 64) else {
            return false;
        };
        let is_new = self.later >> bit & 1 == 0;
        self.later |= 1 << bit;
        while self.later & 1 != 0 {
            self.later >>= 1;
            self.all += 1;
        }
        is_new
    }
}

/// Memory of a receiver.
pub(super) struct Growth {
    /// Bytes before the senders began.
    pub(super) before: u64,
    /// Growth in bytes without progress.
    pub(super) asleep: u64,
    pub(super) senders: usize,
    /// Maximum growth in bytes once the receiver takes messages.
    pub(super) grown_max: u64,
}

/// Receiver's view of the messages.
pub(super) struct Inbox {
    /// Arrived messages by rank.
    senders: Vec<Arrived>,
    /// Largest resident memory.
    most: u64,
}

impl Inbox {
    pub(super) fn new(ranks: usize) -> Inbox {
        Inbox { senders: vec![Arrived::default(); ranks], most: 0 }
    }

    /// Receives `total` messages after a time without progress, and checks the memory.
    pub(super) fn receive_rest(
        &mut self,
        rig: &Rig<'_>,
        bufs: &[Buf],
        total: usize,
        memory: Growth,
    ) -> Outcome {
        let Growth { before, asleep, senders, grown_max } = memory;
        let begin = Instant::now();
        self.most = 0;
        self.receive(rig, bufs, total)?;
        let grown = self.most.saturating_sub(before);
        rig.rank.figure(format_args!(
            "grew by {asleep} bytes without progress, {grown} in all; {} MiB arrived in {:.2} s",
            (total * bufs.first().map_or(0, Buf::len)) >> 20,
            begin.elapsed().as_secs_f64()
        ));
        check!(asleep < RING * senders as u64, "grew by {asleep} bytes without progress");
        check!(grown <= grown_max, "grew by {grown} bytes");
        Ok(())
    }

    /// Receives `total` messages and checks their order and both of their ends.
    pub(super) fn receive(&mut self, rig: &Rig<'_>, bufs: &[Buf], total: usize) -> Outcome {
        let any = u64::from(u32::MAX);
        let post =
            |at: usize, buf: Buf| rig.post(|| rig.ep.trecv(buf, sys::FI_ADDR_UNSPEC, 0, any, at));
        for (at, &buf) in bufs.iter().enumerate().take(total) {
            post(at, buf)?;
        }
        for done in 0..total {
            let entry = rig.next(&rig.rx)?;
            let buf = *bufs.get(entry.context).ok_or_else(|| Fail::here("no such receive"))?;
            let from = usize::try_from(entry.tag).unwrap_or(usize::MAX);
            let sender = self.senders.get_mut(from).ok_or_else(|| Fail::here("no such rank"))?;
            let (first, last) = (buf.load_u64(0), buf.load_u64(entry.len - 8));
            check_eq!(last, !first, "of rank {from}");
            check!(sender.note(first), "message {first} of rank {from} after {sender:?}");
            check!(
                entry.len > SHORT || sender.later == 0,
                "message {first} of rank {from} is early"
            );
            if done % 64 == 0 {
                self.most = self.most.max(held_memory()?);
            }
            if done + bufs.len() < total {
                post(entry.context, buf)?;
            }
        }
        Ok(())
    }
}

/// Sender's view of its messages.
pub(super) struct Outbox<'a> {
    rig: &'a Rig<'a>,
    bufs: Vec<Buf>,
    /// Buffers of no message in progress.
    free: Vec<usize>,
    pub(super) posted: u64,
    /// Number of completed messages.
    pub(super) done: usize,
    /// Number of posts that were refused.
    pub(super) refused: u64,
}

impl<'a> Outbox<'a> {
    pub(super) fn new(rig: &'a Rig<'a>, len: usize) -> Outbox<'a> {
        let bufs: Vec<Buf> = (0..RECEIVES).map(|_| Buf::pattern(len, 1)).collect();
        let free = (0..bufs.len()).collect();
        Outbox { rig, bufs, free, posted: 0, done: 0, refused: 0 }
    }

    /// Posts what the provider takes, of at most `most` messages, and takes completions.
    pub(super) fn step(&mut self, most: u64) -> Outcome {
        let rig = self.rig;
        rig.pump()?;
        while let Some(done) = rig.tx.take() {
            let entry = done.map_err(|error| Fail::here(format_args!("{error:?}")))?;
            if let Some(at) = entry.context.checked_sub(SEND) {
                self.free.push(at);
                self.done += 1;
            }
        }
        while let Some(&at) = self.free.last().filter(|_| self.posted < most) {
            let Some(buf) = self.bufs.get(at) else { return Err(Fail::here("no such buffer")) };
            buf.store_u64(0, self.posted);
            buf.store_u64(self.len() - 8, !self.posted);
            match rig.ep.tsend(*buf, rig.to(0), rig.rank.index as u64, SEND + at) {
                Ok(()) => self.free.truncate(self.free.len() - 1),
                Err(Errno::EAGAIN) => {
                    self.refused += 1;
                    break;
                }
                Err(e) => return Err(e.into()),
            }
            self.posted += 1;
        }
        Ok(())
    }

    fn len(&self) -> usize {
        self.bufs.first().map_or(8, Buf::len)
    }

    /// Sends until `most` messages are posted and complete.
    pub(super) fn finish(&mut self, most: u64) -> Outcome {
        while self.free.len() < self.bufs.len() || self.posted < most {
            self.step(most)?;
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Sends until nothing completes for a while, and `most` messages at most. Returns the number
    /// that were complete then.
    pub(super) fn send_until_stopped(&mut self, most: u64) -> Outcome<usize> {
        let (mut seen, mut since) = (self.done, Instant::now());
        while since.elapsed() < STOPPED {
            self.step(most)?;
            if self.done != seen {
                (seen, since) = (self.done, Instant::now());
            }
            std::thread::yield_now();
        }
        check!(self.posted < most, "nothing stopped the sender");
        Ok(seen)
    }
}

/// Checks the number of bytes that were complete before the receiver took any.
pub(super) fn check_taken(taken: usize) -> Outcome {
    check!(taken <= TAKEN_MAX, "{taken} bytes were complete before the receiver took any");
    Ok(())
}

/// Length in bytes and number of messages without a receive.
const UNRECEIVED: (usize, usize) = (48 << 10, 1000);
/// Maximum growth in bytes of a process to which messages are sent that have no receive: 16 MiB of
/// messages and the entries of all. The rest must stay with the sender.
const UNRECEIVED_MAX: u64 = 20 << 20;

/// Tests that messages that no receive matches occupy little memory of a process that makes
/// progress, and that all of them can be received later.
fn without_receives(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &Spec::caps(sys::FI_MSG | sys::FI_TAGGED | sys::FI_DIRECTED_RECV))?;
    let (len, count) = UNRECEIVED;
    let last = Buf::new(8);
    if rank.index == 1 {
        let bufs: Vec<Buf> = (0..count).map(|_| Buf::pattern(len, 1)).collect();
        for (at, buf) in bufs.iter().enumerate() {
            buf.store_u64(0, at as u64);
            buf.store_u64(len - 8, !(at as u64));
            rig.post(|| rig.ep.tsend(*buf, rig.to(0), 1, SEND + at))?;
        }
        // The other side has seen all of them when this one arrives.
        rig.post(|| rig.ep.tinject(last, rig.to(0), 2))?;
        for _ in 0..count {
            rig.next(&rig.tx)?;
        }
        return rig.barrier();
    }
    let before = held_memory()?;
    rig.post(|| rig.ep.trecv(last, rig.to(1), 2, 0, 0))?;
    rig.received(0)?;
    let grown = held_memory()?.saturating_sub(before);
    rank.figure(format_args!("grew by {grown} bytes"));
    let buf = Buf::new(len);
    for at in 0..count as u64 {
        rig.post(|| rig.ep.trecv(buf, rig.to(1), 1, 0, 1))?;
        rig.received(1)?;
        check_eq!((buf.load_u64(0), buf.load_u64(len - 8)), (at, !at));
    }
    check!(grown <= UNRECEIVED_MAX, "grew by {grown} bytes");
    rig.barrier()
}

fn sender(rig: &Rig<'_>, len: usize, count: usize) -> Outcome {
    let rank = rig.rank;
    let mut outbox = Outbox::new(rig, len);
    let first = warm_up(len) as u64;
    outbox.finish(first)?;
    let partner = [None, Some(3), None, Some(1)].get(rank.index).copied().flatten();
    let quiet = partner.map(|other| talk(rig, other, QUICK)).transpose()?;
    absent(rank)?;
    absent(rank)?;
    rank.step("sending until the receiver stops it");
    let (all, begin) = (first + count as u64, outbox.done);
    let seen = outbox.send_until_stopped(all)?;
    let stopped = partner.map(|other| talk_often(rig, other, QUICK)).transpose()?;
    rank.barrier(&mut || {
        std::thread::sleep(Duration::from_millis(2));
        outbox.step(all)
    })?;
    let taken = (seen - begin) * len;
    rank.figure(format_args!(
        "stopped after {taken} bytes; round trips {quiet:?} then {stopped:?}"
    ));
    check_taken(taken)?;
    if let (Some(quiet), Some(stopped)) = (quiet, stopped) {
        check!(stopped <= SLOWER_MAX * quiet, "{stopped:?} a round trip, {quiet:?} before");
    }
    rank.step("sending the rest");
    outbox.finish(all)?;
    rig.barrier()
}

/// Returns the memory of this process in bytes without the pages of files. Some of these may be
/// touched for the first time at any moment.
pub(super) fn held_memory() -> Outcome<u64> {
    Ok(sandbox::memory("RssAnon:")? + sandbox::memory("RssShmem:")?)
}

/// Returns the shortest result of several talks with another sender at intervals. Other programs
/// may slow some of them.
pub(super) fn talk_often(rig: &Rig<'_>, other: usize, part: usize) -> Outcome<Duration> {
    let mut shortest = Duration::MAX;
    for _ in 0..TALKS {
        shortest = shortest.min(talk(rig, other, part)?);
        std::thread::sleep(PAUSE);
    }
    Ok(shortest)
}

/// Returns the duration that one in `part` of the round trips with another rank do not exceed.
fn talk(rig: &Rig<'_>, other: usize, part: usize) -> Outcome<Duration> {
    let (from, to) = (Buf::new(8), Buf::new(8));
    let round_trip = || {
        let send = || rig.post(|| rig.ep.tinject(from, rig.to(other), TALK));
        if rig.rank.index < other {
            send()?;
        }
        rig.post(|| rig.ep.trecv(to, rig.to(other), TALK, 0, 1))?;
        rig.received(1)?;
        if rig.rank.index > other { send() } else { Ok(()) }
    };
    // The other may come later.
    round_trip()?;
    let mut times = vec![Duration::ZERO; ROUNDS];
    for time in &mut times {
        let begin = Instant::now();
        round_trip()?;
        *time = begin.elapsed();
    }
    times.sort_unstable();
    times.get(ROUNDS / part).copied().ok_or_else(|| Fail::here("no round trip"))
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Two senders and one receiver that names none of them: order of each sender, peeks, claims,
//! discards and cancels. With ranks on two hosts, one sender is on the host of the receiver.
//! Mirrors fi_msg(3), fi_tagged(3) and `FI_ADDR_UNSPEC`.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use scif_fabtests::harness::Rng;
use scif_fabtests::harness::output::now_ns;
use scif_fabtests::prelude::*;

use super::call_variants::check_bytes;
use super::peek::{context, look, take};

pub(crate) const CASES: &[Case] = &[
    case("any_source/order", 3, order),
    case("any_source/peek_claim_discard_cancel", 3, every_way),
];

const TAG: u64 = 7;
const ANY: u64 = sys::FI_ADDR_UNSPEC;

fn spec() -> Spec {
    Spec::messages(true).with(|spec| {
        spec.hints.caps |= sys::FI_DIRECTED_RECV | sys::FI_SOURCE;
        spec.sources = true;
    })
}

/// Number of messages of each sender at least.
const MESSAGES: u64 = 10_000;
/// Number of receives, and of sends of each sender, in progress.
const WINDOW: usize = 64;
/// Length in bytes of most messages, and of a few.
const USUAL: usize = 32;
const SELDOM: usize = 20_000;
/// Context of the receive for the message that ends a sender.
const STOP: usize = 1000;
/// Maximum time between two messages of a sender, or since the second one was sent.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Maximum time that one poll counts in that. All processes were stopped during a longer one.
const POLL_MAX: Duration = Duration::from_millis(100);

/// Tests that wild-card receives get the messages of each sender in order, and those of both. Each
/// sends until the receiver has enough of both, so none may wait until another has finished.
fn order(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &spec())?;
    if rank.index == 0 {
        receive_all(&rig)?
    } else {
        send_until_stopped(&rig)?
    }
    rig.barrier()
}

fn send_until_stopped(rig: &Rig<'_>) -> Outcome {
    let stop = Buf::new(8);
    rig.post(|| rig.inbox.trecv(stop, rig.to(0), TAG, 0, STOP))?;
    rig.barrier()?;
    let bufs: Vec<Buf> = (0..WINDOW).map(|_| Buf::new(SELDOM)).collect();
    let mut free: Vec<usize> = (0..WINDOW).collect();
    let mut is_stopped = false;
    for number in 0.. {
        let slot = match free.pop() {
            Some(slot) => slot,
            None => rig.next(&rig.tx)?.context,
        };
        let len = if number % 50 == 49 { SELDOM } else { USUAL };
        let buf = bufs.get(slot).ok_or_else(|| Fail::here("no such slot"))?.sub(0, len);
        let is_last = is_stopped && number >= MESSAGES;
        buf.put(0, &u64::from(is_last).to_le_bytes());
        buf.put(8, &number.to_le_bytes());
        buf.put(16, &now_ns().to_le_bytes());
        buf.put(len - 8, &number.to_le_bytes());
        rig.post(|| rig.ep.tsend(buf, rig.to(0), TAG, slot))?;
        if is_last {
            break;
        }
        is_stopped |= rig.rx.take().is_some();
    }
    for _ in free.len()..WINDOW {
        rig.next(&rig.tx)?;
    }
    Ok(())
}

/// Time for which the messages of each sender have waited.
struct Waits {
    /// Time since the last message, by rank.
    since: Vec<Duration>,
    /// Longest wait, by rank.
    longest: Vec<Duration>,
    polled: Instant,
}

impl Waits {
    fn begin(ranks: usize) -> Waits {
        let none = vec![Duration::ZERO; ranks];
        Waits { since: none.clone(), longest: none, polled: Instant::now() }
    }

    /// Notes a poll.
    fn note_poll(&mut self) {
        let now = Instant::now();
        let step = (now - self.polled).min(POLL_MAX);
        self.polled = now;
        self.since.iter_mut().for_each(|since| *since += step);
    }

    /// Notes a message that `from` sent at `sent_ns`, and checks how long it has waited since, or
    /// since the message before.
    fn note_message(&mut self, from: usize, sent_ns: u64) -> Outcome {
        let in_flight = Duration::from_nanos(now_ns().saturating_sub(sent_ns));
        let (Some(since), Some(longest)) = (self.since.get_mut(from), self.longest.get_mut(from))
        else {
            return Err(Fail::here("no such rank"));
        };
        let wait = std::mem::take(since).min(in_flight);
        *longest = wait.max(*longest);
        check!(wait <= WAIT_MAX, "a message of rank {from} waited for {wait:?} after another");
        Ok(())
    }
}

fn receive_all(rig: &Rig<'_>) -> Outcome {
    let bufs: Vec<Buf> = (0..WINDOW).map(|_| Buf::new(SELDOM)).collect();
    for (slot, buf) in bufs.iter().enumerate() {
        rig.post(|| rig.inbox.trecv(*buf, ANY, 0, u64::MAX, slot))?;
    }
    rig.barrier()?;
    let mut waits = Waits::begin(rig.rank.count);
    let mut counts = vec![0_u64; rig.rank.count];
    let (mut is_stopped, mut running) = (false, rig.rank.count - 1);
    // Receives in their order, each with its slot, and the source once it is complete. A long
    // message completes later than the next one.
    let mut posted: VecDeque<(usize, Option<usize>)> = (0..WINDOW).map(|at| (at, None)).collect();
    while running > 0 {
        let entry = rig.wait("a message", || {
            waits.note_poll();
            Ok(rig.rx.take())
        })?;
        let entry = entry.map_err(|error| Fail::here(format_args!("{error:?}")))?;
        let from = (1..rig.rank.count).find(|&rank| entry.src == Some(rig.to(rank)));
        let from = from.ok_or_else(|| Fail::here(format_args!("source {:?}", entry.src)))?;
        let buf = bufs.get(entry.context).ok_or_else(|| Fail::here("no such slot"))?;
        waits.note_message(from, buf.load_u64(16))?;
        let receive = posted.iter_mut().find(|(slot, _)| *slot == entry.context);
        receive.ok_or_else(|| Fail::here("no such slot"))?.1 = Some(from);
        while let Some((slot, Some(from))) = posted.front().copied() {
            let buf = bufs.get(slot).ok_or_else(|| Fail::here("no such slot"))?;
            if let Some(count) = counts.get_mut(from) {
                let len = if *count % 50 == 49 { SELDOM } else { USUAL };
                check_eq!(buf.load_u64(8), *count, "message of rank {from}");
                check_eq!(buf.load_u64(len - 8), *count, "end of the message of rank {from}");
                *count += 1;
            }
            running -= usize::from(buf.load_u64(0) == 1);
            rig.post(|| rig.inbox.trecv(*buf, ANY, 0, u64::MAX, slot))?;
            posted.pop_front();
            posted.push_back((slot, None));
        }
        if !is_stopped && counts.iter().skip(1).all(|count| *count >= MESSAGES) {
            is_stopped = true;
            for to in 1..rig.rank.count {
                rig.complete(to, || rig.ep.tsend(Buf::new(8), rig.to(to), TAG, to))?;
            }
        }
    }
    let longest = &waits.longest;
    rig.rank.figure(format_args!("longest waits by rank {longest:?}; messages {counts:?}"));
    Ok(())
}

/// Number of messages of each sender that are received in every way.
const VARIED: u64 = 400;
const SIZES: &[usize] = &[0, 8, 64, 5000, 20_000, 100_000];

fn size_of_message(from: usize, number: u64) -> usize {
    let at = from + usize::try_from(number).unwrap_or(0);
    SIZES.get(at % SIZES.len()).copied().unwrap_or(0)
}

/// Call that meets a message of a sender, and its result.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Handling {
    Peek,
    Discard,
    /// Claim, then the receive.
    Claim,
    ClaimAndDiscard,
    Receive,
    /// Receive for this sender that was cancelled before a message came.
    Cancel,
    /// Cancel of a receive that had its message already.
    LateCancel,
}

const HANDLINGS: &[Handling] = &[
    Handling::Peek,
    Handling::Discard,
    Handling::Claim,
    Handling::ClaimAndDiscard,
    Handling::Receive,
    Handling::Cancel,
    Handling::LateCancel,
];

/// Tests peeks, claims, discards, cancels and receives, with source and without, in random order:
/// each message comes once, those of each sender in order, and each of these meets both senders.
fn every_way(rank: &Rank) -> Outcome {
    let rig = Rig::open(rank, &spec())?;
    if rank.index != 0 {
        rig.barrier()?;
        for number in 0..VARIED {
            let buf = Buf::pattern(size_of_message(rank.index, number), number);
            rig.post(|| rig.ep.tsenddata(buf, number, rig.to(0), TAG, 1))?;
        }
        for _ in 0..VARIED {
            rig.sent(1)?;
        }
        return rig.barrier();
    }
    let mut receiver = Receiver {
        rig: &rig,
        rng: rank.own_rng(),
        counts: vec![0; rank.count],
        claimed: Vec::new(),
        met: Vec::new(),
        buf: Buf::new(100_000),
    };
    for from in 1..rank.count {
        receiver.cancelled(rig.to(from))?;
    }
    rig.barrier()?;
    while receiver.left() > 0 {
        receiver.step()?;
    }
    receiver.take_claimed(0)?;
    for from in 1..rank.count {
        for &way in HANDLINGS {
            check!(receiver.met.contains(&(way, from)), "{way:?} met no message of rank {from}");
        }
    }
    rig.barrier()
}

/// Receiver of the messages, in random ways.
struct Receiver<'a> {
    rig: &'a Rig<'a>,
    rng: Rng,
    /// Messages that came of each rank.
    counts: Vec<u64>,
    /// Messages that are claimed: context, source and number.
    claimed: Vec<(Buf, usize, u64)>,
    /// Calls that met messages, each with the sender.
    met: Vec<(Handling, usize)>,
    buf: Buf,
}

impl Receiver<'_> {
    fn left(&self) -> u64 {
        self.counts.iter().skip(1).map(|count| VARIED - count).sum()
    }

    /// Checks that an entry is the next message of its source; returns source and number.
    fn next_of(&self, entry: &Entry) -> Outcome<(usize, u64)> {
        let from = (1..self.counts.len()).find(|&rank| entry.src == Some(self.rig.to(rank)));
        let from = from.ok_or_else(|| Fail::here(format_args!("source {:?}", entry.src)))?;
        let number = self.counts.get(from).copied().unwrap_or(0);
        check_eq!(entry.data, number, "message of rank {from}");
        check_eq!(entry.len, size_of_message(from, number));
        Ok((from, number))
    }

    fn note(&mut self, entry: &Entry) -> Outcome<(usize, u64)> {
        let (from, number) = self.next_of(entry)?;
        if let Some(count) = self.counts.get_mut(from) {
            *count += 1;
        }
        Ok((from, number))
    }

    /// Returns a source that has messages left, or any.
    fn source(&mut self) -> u64 {
        let from = 1 + self.rng.below(self.counts.len() - 1);
        let has_more = self.counts.get(from).is_some_and(|count| *count < VARIED);
        if has_more && self.rng.one_in(2) { self.rig.to(from) } else { ANY }
    }

    fn step(&mut self) -> Outcome {
        let src = self.source();
        match self.rng.below(6) {
            0 => {
                if let Some(entry) = look(self.rig, src, TAG, 0, 0, context())? {
                    let (from, _) = self.next_of(&entry)?;
                    self.met.push((Handling::Peek, from));
                }
            }
            1 => {
                if let Some(entry) = look(self.rig, src, TAG, 0, sys::FI_DISCARD, context())? {
                    let (from, _) = self.note(&entry)?;
                    self.met.push((Handling::Discard, from));
                }
            }
            2 => {
                let kept = context();
                if let Some(entry) = look(self.rig, src, TAG, 0, sys::FI_CLAIM, kept)? {
                    let (from, number) = self.note(&entry)?;
                    self.claimed.push((kept, from, number));
                }
                self.take_claimed(3)?;
            }
            3 => self.cancelled(src)?,
            _ => {
                self.rig.post(|| self.rig.inbox.trecv(self.buf, src, TAG, 0, 1))?;
                let entry = self.rig.received(1)?;
                self.received(&entry, Handling::Receive)?;
            }
        }
        Ok(())
    }

    fn received(&mut self, entry: &Entry, way: Handling) -> Outcome {
        let (from, number) = self.note(entry)?;
        self.met.push((way, from));
        check_bytes(&self.buf.sub(0, entry.len), entry.len, number, 0)
    }

    /// Posts a receive and cancels it; a message may come first.
    fn cancelled(&mut self, src: u64) -> Outcome {
        self.rig.post(|| self.rig.inbox.trecv(self.buf, src, TAG, 0, 2))?;
        match self.rig.inbox.cancel(2) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(error) => return Err(Fail::here(error)),
        }
        match self.rig.wait("a receive or its cancellation", || Ok(self.rig.rx.take()))? {
            Ok(entry) => self.received(&entry, Handling::LateCancel),
            Err(error) => {
                check_eq!((error.err, error.context), (Errno::ECANCELED, 2));
                let from = (1..self.counts.len()).find(|&rank| src == self.rig.to(rank));
                self.met.extend(from.map(|from| (Handling::Cancel, from)));
                Ok(())
            }
        }
    }

    /// Receives or discards claimed messages in random order, until `rest` are left.
    fn take_claimed(&mut self, rest: usize) -> Outcome {
        while self.claimed.len() > rest {
            let at = self.rng.below(self.claimed.len());
            let (kept, from, number) = self.claimed.swap_remove(at);
            if self.rng.one_in(2) {
                take(self.rig, Buf::NULL, sys::FI_DISCARD, kept)?;
                self.met.push((Handling::ClaimAndDiscard, from));
                continue;
            }
            self.met.push((Handling::Claim, from));
            let len = take(self.rig, self.buf, 0, kept)?.len;
            check_eq!(len, size_of_message(from, number));
            check_bytes(&self.buf.sub(0, len), len, number, 0)?;
        }
        Ok(())
    }
}

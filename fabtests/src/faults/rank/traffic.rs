// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Operations of one rank of the storm: posting, and checks of their results.

use std::sync::Arc;

use scif_fabtests::fi::CqErr;
use scif_fabtests::harness::output::now_ns;
use scif_fabtests::payload::{ACK, Head, RankId, SEQUENCES};
use scif_fabtests::prelude::*;

use super::state::{HANG_NS, POLLS_ENOUGH, SILENT_NS, Storm};
use crate::coll::CONTEXT;
use crate::links::{Link, Op, OpKind, WINDOW};
use crate::net::{Kind, part_of, word_of};

/// Completion queue reads of one step. More of them delay the posting of operations.
const READS: usize = 64;
/// Age in nanoseconds up to which pauses between polls count as recent: about the longest time from
/// a death to its last error.
const PAUSES_NS: u64 = 200_000_000;

impl Storm<'_> {
    /// Advances all operations with one peer.
    pub(super) fn serve(&mut self, id: RankId) -> Outcome<bool> {
        let Some(mut link) = self.links.remove(&id) else {
            return Ok(false);
        };
        let outcome = self.serve_link(id, &mut link);
        let over = link.open == 0 && link.gone.is_some();
        if !over {
            self.links.insert(id, link);
        } else if let Some(av) = &self.net.av {
            av.remove(&[link.addr], 0)?;
        }
        outcome
    }

    pub(super) fn serve_link(&mut self, id: RankId, link: &mut Link) -> Outcome<bool> {
        if let Some(gone) = link.gone {
            let probes = link.open > 0
                && !link.history.called
                && !link.limits.broken
                && link.ready
                && (!link.limits.silent || now_ns().saturating_sub(gone) > SILENT_NS);
            if let Some(ep) = link.ep.clone().filter(|_| probes) {
                // For the provider a peer that died before the first attempt to connect has not
                // started. A send ends the receives that name it.
                check!(
                    !link.limits.silent || link.polls < POLLS_ENOUGH,
                    "{} polls before the death of {id}, and open 1 s after it: {}",
                    link.polls,
                    self.open_with(id)
                );
                if link.limits.silent {
                    self.report.push_str(&format!("unseen {id}\n"));
                }
                self.send(id, link, &ep, ACK, 0);
            }
            let hangs = link.open > 0 && now_ns().saturating_sub(gone) > HANG_NS;
            check!(!hangs, "open 10 s after the death of {id}: {}", self.open_with(id));
            return Ok(false);
        }
        let Some(ep) = link.ep.clone().filter(|_| !link.limits.broken) else {
            return Ok(false);
        };
        let (mut busy, addr) = (false, link.addr);
        for class in 0..WINDOW.len() {
            while link.posted.get(class) < WINDOW.get(class)
                && !(link.history.started && self.rng.one_in(2))
            {
                let buf = self.room(class);
                let post = |context| ep.trecv(buf, addr, class as u64, 0, context);
                let ticket = link.next.get(class).copied().unwrap_or(0);
                if !self.post(id, link, OpKind::Recv(ticket), (class, buf), post) {
                    break;
                }
                link.count_in(class);
            }
        }
        if !link.ready {
            return Ok(false);
        }
        if link.limits.silent {
            link.count_poll(now_ns());
            return Ok(false);
        }
        while let Some(class) = link.acks.pop() {
            if !self.send(id, link, &ep, ACK, u16::from(class)) {
                link.acks.push(class);
                break;
            }
            busy = true;
        }
        if self.draining {
            return Ok(busy);
        }
        let roll = self.rng.below(64);
        let class = match roll {
            0..20 => 0_u8,
            20..30 => 1,
            30 => 2,
            _ => ACK,
        };
        let place = usize::from(class);
        if class != ACK && link.credit.get(place).is_some_and(|credit| *credit > 0) {
            let seq = link.out.get(place).copied().unwrap_or(0);
            if self.send(id, link, &ep, class, seq) {
                busy = true;
                link.count_out(place);
            }
        } else if (40..50).contains(&roll) && link.remote.is_some() && self.net.remote.is_some() {
            busy |= self.access(id, link, &ep);
        }
        Ok(busy)
    }

    pub(super) fn send(
        &mut self,
        id: RankId,
        link: &mut Link,
        ep: &Arc<Ep>,
        class: u8,
        seq: u16,
    ) -> bool {
        let head = Head { from: self.me, to: id, class, seq };
        let place = usize::from(class);
        let buf = self.room(place);
        head.write(buf);
        let addr = link.addr;
        let post = |context| ep.tsend(buf, addr, u64::from(class), context);
        self.post(id, link, OpKind::Send, (place, buf), post)
    }

    /// Posts RMA and atomics, at most one of each at a time. Written bytes are read back, and
    /// counters are checked.
    pub(super) fn access(&mut self, id: RankId, link: &mut Link, ep: &Arc<Ep>) -> bool {
        let Some((key, base)) = link.remote else {
            return false;
        };
        let (at, addr) = (base + part_of(self.me), link.addr);
        let word = base + word_of(self.me);
        if !link.counting && self.rng.one_in(3) {
            let (buf, result) = (self.one, self.room(0));
            let target = |context| AtomicTarget {
                dest: addr,
                addr: word,
                key,
                datatype: sys::FI_UINT64,
                op: sys::FI_SUM,
                context,
            };
            let post = |context| ep.fetch_atomic(&target(context), Ioc { buf, count: 1 }, result);
            let posted = self.post(id, link, OpKind::Atomic, (0, result), post);
            link.counting |= posted;
            return posted;
        }
        if link.busy {
            return false;
        }
        let (class, kind) = match link.written {
            Some(head) => (usize::from(head.class), OpKind::Read(head)),
            None => {
                let class = if self.rng.one_in(20) { 2 } else { self.rng.below(2) };
                let head = Head {
                    from: self.me,
                    to: id,
                    class: u8::try_from(class).unwrap_or(0),
                    seq: u16::try_from(self.rng.below(usize::from(SEQUENCES))).unwrap_or(0),
                };
                (class, OpKind::Write(head))
            }
        };
        let buf = self.room(class);
        let posted = if let OpKind::Write(head) = kind {
            head.write(buf);
            let there = [RmaIov { addr: at, len: buf.len(), key }];
            let flags = sys::FI_DELIVERY_COMPLETE | sys::FI_COMPLETION;
            let post = |context| ep.writemsg(&[buf], RmaMsg::at(addr, &there, context), flags);
            self.post(id, link, kind, (class, buf), post)
        } else {
            let post = |context| ep.read(buf, addr, at, key, context);
            self.post(id, link, kind, (class, buf), post)
        };
        link.busy |= posted;
        posted
    }

    /// Posts an operation under a new context. Returns whether it was posted.
    pub(super) fn post(
        &mut self,
        peer: RankId,
        link: &mut Link,
        kind: OpKind,
        (class, buf): (usize, Buf),
        call: impl FnOnce(usize) -> Result<(), Errno>,
    ) -> bool {
        let place = self.free.pop().unwrap_or_else(|| {
            self.ops.push(None);
            self.ops.len() - 1
        });
        let posted = now_ns();
        match call(place + 1) {
            Ok(()) => {
                if let Some(room) = self.ops.get_mut(place) {
                    *room = Some(Op { peer, kind, class, buf, posted });
                }
                link.open += 1;
                link.history.called |= !matches!(kind, OpKind::Recv(_));
                true
            }
            Err(e) => {
                self.free.push(place);
                self.give_room(class, buf);
                if e != Errno::EAGAIN {
                    self.fail_link(link, peer, 'p', posted, e);
                }
                false
            }
        }
    }

    /// Reads completions and errors until the queue is empty, or many were read. An error that
    /// waits for other work of this loop would count as late. Returns whether any was read.
    pub(super) fn progress(&mut self) -> Outcome<bool> {
        let begin = now_ns();
        self.pauses.insert(begin, begin - self.polled);
        self.pauses = self.pauses.split_off(&(begin - PAUSES_NS));
        let mut some = false;
        for _ in 0..READS {
            match self.net.cq.read(16) {
                Ok(entries) if entries.is_empty() => break,
                Ok(entries) => entries.into_iter().try_for_each(|entry| self.completed(entry))?,
                Err(Errno::EAGAIN) => break,
                Err(Errno::EAVAIL) => {
                    let error = self.net.cq.readerr(64)?;
                    self.failed(&error)?;
                }
                Err(e) => return Err(Fail::here(format_args!("reading the queue: {e}"))),
            }
            some = true;
        }
        self.polled = now_ns();
        Ok(some)
    }

    /// Removes an operation from the table.
    pub(super) fn take(&mut self, context: usize) -> Outcome<Op> {
        let place = context.wrapping_sub(1);
        let op = self.ops.get_mut(place).and_then(Option::take);
        let op = op.ok_or_else(|| {
            Fail::here(format_args!("an operation ended that never was: {context:#x}"))
        })?;
        self.free.push(place);
        if let Some(link) = self.links.get_mut(&op.peer) {
            link.open -= 1;
        }
        Ok(op)
    }

    pub(super) fn failed(&mut self, error: &CqErr) -> Outcome {
        if error.context >= CONTEXT {
            let group = self.group.as_mut().filter(|group| group.context() == error.context);
            if let Some(group) = group {
                group.failed(error, &mut self.report);
            }
            return Ok(());
        }
        let op = self.take(error.context)?;
        let kind = match op.kind {
            OpKind::Send => 's',
            OpKind::Recv(_) => 'r',
            OpKind::Write(_) => 'w',
            OpKind::Read(_) => 'd',
            OpKind::Atomic => 'a',
        };
        if let Some(mut link) = self.links.remove(&op.peer) {
            self.fail_link(&mut link, op.peer, kind, op.posted, error.err);
            self.links.insert(op.peer, link);
        }
        self.give_room(op.class, op.buf);
        Ok(())
    }

    pub(super) fn completed(&mut self, entry: Entry) -> Outcome {
        if entry.context >= CONTEXT {
            self.count(5);
            // Operations of a group that was left may still end.
            return match self.group.as_mut().filter(|group| group.context() == entry.context) {
                Some(group) => group.done(&self.group_rooms),
                None => Ok(()),
            };
        }
        let op = self.take(entry.context)?;
        let mut link =
            self.links.remove(&op.peer).ok_or_else(|| Fail::here("an operation without a peer"))?;
        link.history.met |= op.kind != OpKind::Send;
        let outcome = self.take_in(&op, &mut link, entry.len);
        self.links.insert(op.peer, link);
        self.give_room(op.class, op.buf);
        outcome
    }

    pub(super) fn count(&mut self, kind: usize) {
        if let Some(count) = self.done.get_mut(kind) {
            *count += 1;
        }
    }

    pub(super) fn take_in(&mut self, op: &Op, link: &mut Link, len: usize) -> Outcome {
        match op.kind {
            OpKind::Send => self.count(0),
            OpKind::Write(head) => {
                self.count(2);
                link.written = Some(head);
                link.busy = false;
            }
            OpKind::Read(head) => {
                self.count(3);
                let word = op.buf.load_u64(0);
                check!(word == head.pack(), "read {word:#x} from {}, not {head:?}", op.peer);
                check_eq!(head.differs(op.buf, op.buf.len()), None, "a byte read from {}", op.peer);
                link.written = None;
                link.busy = false;
            }
            OpKind::Atomic => {
                self.count(4);
                let number = op.buf.load_u64(0);
                // The word may have belonged to another incarnation before.
                let expected = link.counted.unwrap_or(number);
                check_eq!(number, expected, "a number fetched from {}", op.peer);
                link.counted = Some(number + 1);
                link.counting = false;
            }
            OpKind::Recv(ticket) => {
                self.count(1);
                if let Some(posted) = link.posted.get_mut(op.class) {
                    *posted -= 1;
                }
                self.message(op, link, ticket, len)?;
            }
        }
        Ok(())
    }

    pub(super) fn message(&mut self, op: &Op, link: &mut Link, ticket: u16, len: usize) -> Outcome {
        let word = op.buf.load_u64(0);
        let head = Head::unpack(word).ok_or_else(|| {
            Fail::here(format_args!("a message of {} begins with {word:#x}", op.peer))
        })?;
        let class = usize::from(head.class);
        check!(class == op.class, "{head:?} of class {class} taken by a receive of {}", op.class);
        check_eq!(len, op.buf.len(), "length of {head:?}");
        check_eq!(head.differs(op.buf, len), None, "a byte of {head:?}");
        if head.from != op.peer || head.to != self.me {
            // Right if an address was reused.
            link.limits.readdressed = true;
            self.report.push_str(&format!("odd {} {} {}\n", op.peer, head.from, head.to));
            return Ok(());
        }
        if head.class == ACK {
            let acked = usize::from(head.seq);
            if let Some(credit) = link.credit.get_mut(acked) {
                *credit += 1;
            }
            return Ok(());
        }
        // Messages match receives in order; large ones may complete in another order.
        if self.net.kind != Kind::Dgram && !link.limits.readdressed {
            check_eq!(head.seq, ticket, "sequence number of {head:?}");
        }
        link.history.started = true;
        link.acks.push(head.class);
        Ok(())
    }

    pub(super) fn open_with(&self, id: RankId) -> String {
        let open = self.ops.iter().flatten().filter(|op| op.peer == id);
        open.map(|op| {
            format!(
                "{:?} of class {} for {} ms; ",
                op.kind,
                op.class,
                (now_ns() - op.posted) / 1_000_000
            )
        })
        .collect()
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Large messages: announced by the sender, fetched by the receiver with one copy, by both sides at once where both are here.
//!
//! The receiver decides how. It reads the sender's pages directly if the kernel lets it. If the sender gave a claim block, the
//! receiver offers its buffer there and both take parts of the message, the sender from the front, the receiver from the
//! back; a part is copied within the call that took it, and the receive completes when no taken part is open. Where direct
//! access fails, or is slower (`route`), the receiver asks for the payload through the ring (`CTS`), and the sender streams it
//! (`streams`).

use libfabric_sys as fi;
use scif::{Access, AccessError, ConnId, Connection, PeerMemory, RemoteMem};
use scif_ring::Share;
use scif_ring::copy::Mem;

use super::iov::Iov;
use super::ops::Asked;
use super::peer::{is_denied, note_denial};
use super::route::Way;
use super::rx::{Arrival, RecordError, Target, sub_iov};
use super::wire::{self, Head, Words};
use super::{Env, EpState, Stats};

/// From this size on a sender lets the receiver share the work.
pub(crate) const BOTH_SIDES_MIN: usize = 32 * 1024;
/// Largest part of a shared message, bounds how long one claim is held.
const PART_MAX: usize = scif_ring::PART;
/// Smallest part: below, the fixed cost of a cross-process copy is felt.
const PART_MIN: usize = 16 * 1024;
/// Most parts taken at once: while much is left, fewer and larger calls to the kernel.
const TAKE_MAX: u32 = 8;
/// Bytes one progress call copies before it looks at its rings again.
const BUDGET: usize = 4 * 1024 * 1024;
/// How many of the oldest large sends a progress call offers its help to; and to as many of the others, in turn.
const HELP_DEPTH: usize = 4;
/// So long may nothing come of a message that was to come through the ring by choice.
const SILENCE_NS: u64 = 100_000;
/// Pieces of an announced scatter list.
const REMOTE_MAX: usize = 64;
/// Bytes of one of them in a record: address and length.
const PIECE_BYTES: usize = 16;

/// An announced message: where its payload is in the sender.
#[derive(Debug)]
pub(crate) struct Rts {
    conn: ConnId,
    op: u64,
    len: u64,
    block: Option<(usize, u32)>,
    pieces: Pieces,
}

#[derive(Debug)]
enum Pieces {
    One(RemoteMem),
    Many(Vec<RemoteMem>),
}

impl Rts {
    /// Reads {op, len, addr, block and generation} and the list of pieces, if there is one.
    pub(crate) fn decode(conn: ConnId, words: &mut Words<'_>, body: Mem) -> Result<Rts, RecordError> {
        let (op, len, addr, misc) = (words.word(), words.word(), words.word(), words.word());
        if len > isize::MAX as u64 {
            return Err(RecordError::Nonsense);
        }
        let block = match usize::from(misc.to_le_bytes()[0]) {
            0 => None,
            n if n <= scif_ring::CLAIM_BLOCKS => {
                Some((n - 1, u32::try_from(misc >> 16 & 0xffff).unwrap_or(0)))
            }
            _ => return Err(RecordError::Nonsense),
        };
        let pieces = if body.is_empty() {
            Pieces::One(RemoteMem { addr, len })
        } else {
            Pieces::Many(Rts::list(body, len)?)
        };
        Ok(Rts {
            conn,
            op,
            len,
            block,
            pieces,
        })
    }

    /// A scatter list of `len` bytes.
    fn list(body: Mem, len: u64) -> Result<Vec<RemoteMem>, RecordError> {
        if !body.len().is_multiple_of(PIECE_BYTES) || body.len() / PIECE_BYTES > REMOTE_MAX {
            return Err(RecordError::Nonsense);
        }
        let mut room = [0; REMOTE_MAX * PIECE_BYTES];
        let bytes = room.get_mut(..body.len()).ok_or(RecordError::Nonsense)?;
        body.copy_to_slice(bytes);
        let (pairs, _) = bytes.as_chunks::<PIECE_BYTES>();
        let mut pieces = Vec::new();
        pieces
            .try_reserve_exact(pairs.len())
            .map_err(|_| RecordError::NoMemory)?;
        let mut sum = 0u64;
        for pair in pairs {
            let (a, l) = pair.split_at(8);
            let word = |b: &[u8]| b.first_chunk::<8>().map_or(0, |w| u64::from_ne_bytes(*w));
            sum = sum.checked_add(word(l)).ok_or(RecordError::Nonsense)?;
            pieces.push(RemoteMem {
                addr: word(a),
                len: word(l),
            });
        }
        if sum == len {
            Ok(pieces)
        } else {
            Err(RecordError::Nonsense)
        }
    }

    /// Bytes it takes beside itself.
    pub(super) fn kept(&self) -> usize {
        match &self.pieces {
            Pieces::One(_) => 0,
            Pieces::Many(list) => list.len() * PIECE_BYTES,
        }
    }

    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.len).unwrap_or(usize::MAX)
    }

    pub(crate) fn op(&self) -> u64 {
        self.op
    }

    pub(crate) fn conn(&self) -> ConnId {
        self.conn
    }

    /// Copies bytes `off..off+len` of the message into `iov`.
    fn fetch(&self, from: &PeerMemory, iov: &Iov, off: usize, len: usize) -> Result<(), AccessError> {
        match (&self.pieces, iov.contiguous().and_then(|to| to.sub(off, len))) {
            (Pieces::One(piece), Some(to)) => {
                let remote = RemoteMem {
                    addr: piece.addr.wrapping_add(off as u64),
                    // The kernel pins all that it is told of, however little is copied.
                    len: piece.len.saturating_sub(off as u64).min(len as u64),
                };
                from.read(&[to], &[remote])
            }
            _ => from.read(
                &sub_iov(iov.as_slice(), off, len),
                &self.remote(off as u64, len as u64),
            ),
        }
    }

    /// The sender's memory for bytes `off..off+len` of the message.
    fn remote(&self, mut off: u64, mut len: u64) -> Vec<RemoteMem> {
        let pieces = match &self.pieces {
            Pieces::One(piece) => core::slice::from_ref(piece),
            Pieces::Many(list) => list,
        };
        let mut out = Vec::new();
        for piece in pieces {
            if len == 0 {
                break;
            }
            if off >= piece.len {
                off -= piece.len;
                continue;
            }
            let n = (piece.len - off).min(len);
            out.push(RemoteMem {
                addr: piece.addr.wrapping_add(off),
                len: n,
            });
            len -= n;
            off = 0;
        }
        out
    }
}

#[derive(Debug)]
pub(super) enum How {
    /// This side copies alone.
    Alone { done: usize },
    /// Both sides take parts.
    Shared {
        block: usize,
        generation: u32,
        part: usize,
        parts: u32,
        mended: bool,
        /// Bytes this side copied.
        own: usize,
    },
    /// No more claims; parts the sender took are still open. Then through the ring.
    Closing { block: usize },
    /// Asked for through the ring.
    Streaming { done: usize },
    /// Over, with `err`, as soon as parts that the sender took are not open any more (`parting`).
    Ending { block: usize, err: i32 },
}

/// A matched large message on its way into its buffer.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(super) target: Target,
    pub(super) arrival: Arrival,
    rts: Rts,
    pub(super) want: usize,
    pub(super) how: How,
    pub(super) stamp: u32,
    /// The way it took, if there was a choice.
    route: Option<Way>,
    /// If that was the ring: how much had come when it was last looked, and since when.
    heard: (usize, u64),
    /// Where pages may move: while the sender copies too, those of the buffer do not.
    _arrival: Option<scif::Arrival>,
}

impl Incoming {
    pub(crate) fn peer(&self) -> u32 {
        self.arrival.peer
    }

    pub(crate) fn conn(&self) -> ConnId {
        self.rts.conn()
    }

    /// The sender's number for it.
    pub(super) fn op(&self) -> u64 {
        self.rts.op
    }
}

/// What one step of an incoming message came to.
enum Step {
    Done,
    Waiting,
    Failed(i32),
}

/// A short message is one take for each side. Halves, where others are being fetched before it. If it is `alone`, both are to end
/// together: the receiver begins a line's way earlier than the sender learns of it, and reading is faster than writing what the
/// other side's core holds, so its take is larger by a sixteenth of the message.
fn part_size(len: usize, alone: bool) -> usize {
    let part = if alone {
        (len / 2 - len / 32).next_multiple_of(64)
    } else {
        (len / 2).next_multiple_of(4096)
    };
    part.clamp(PART_MIN, PART_MAX)
}

/// How many of a message's parts one exchange takes. With `more` messages behind it the sides need not end this one together:
/// each takes half of it, in one call to the kernel and the same half each time, and whoever is through first goes on with the
/// next.
fn takes(parts: u32, more: bool) -> (u32, Share) {
    if more {
        (parts.div_ceil(2).min(TAKE_MAX), Share::All)
    } else {
        (TAKE_MAX, Share::Half)
    }
}

impl Incoming {
    /// Copies what there is to copy here, within the budget; whether all is in place.
    fn copy(
        &mut self,
        conn: &Connection,
        more: bool,
        budget: &mut usize,
        stats: &mut Stats,
    ) -> Result<bool, AccessError> {
        match &mut self.how {
            How::Alone { done } => {
                while *done < self.want {
                    if *budget == 0 {
                        return Ok(false);
                    }
                    let n = (self.want - *done).min(*budget);
                    self.rts.fetch(conn.memory(), &self.target.iov, *done, n)?;
                    *done += n;
                    *budget -= n;
                    if conn.memory().access() == Access::Mapped {
                        stats.mapped.add(n)
                    } else {
                        stats.process_vm.add(n)
                    }
                }
                Ok(true)
            }
            How::Shared {
                block,
                generation,
                part,
                parts,
                mended,
                own,
            } => {
                let claim = conn.rx_claim(*block);
                let (most, share) = takes(*parts, more);
                loop {
                    if *budget == 0 {
                        return Ok(false);
                    }
                    let taken = match claim.take_back(*generation, *parts, most, share) {
                        Some(taken) => taken,
                        None if claim.open_parts() > 0 => return Ok(false),
                        None => match claim.failed_front(*parts) {
                            Some(failed) if !*mended => {
                                *mended = true;
                                failed
                            }
                            _ => return Ok(true),
                        },
                    };
                    let off = taken.start as usize * *part;
                    let n = (taken.len() * *part).min(self.want - off);
                    self.rts.fetch(conn.memory(), &self.target.iov, off, n)?;
                    *budget = budget.saturating_sub(n);
                    *own += n;
                    stats.both_sides.add(n);
                }
            }
            How::Streaming { .. } | How::Closing { .. } | How::Ending { .. } => Ok(false),
        }
    }
}

impl EpState {
    pub(crate) fn start_incoming(&mut self, env: &mut Env<'_>, target: Target, arrival: Arrival, rts: Rts) {
        let want = target.room.min(arrival.len);
        let conn = rts.conn();
        // The end of the connection has been handled and ends no receive any more; the sender takes back what it announced.
        if self.is_parting(conn) {
            return self.complete_recv(env, &target, &arrival, 0, fi::FI_ECONNRESET);
        }
        let access = match self.sock.conn(conn) {
            Some(c) if crate::env::env().process_vm || c.memory().access() == Access::Mapped => {
                c.memory().access()
            }
            Some(_) => Access::None,
            // Its sender is gone, and the payload with it.
            None => return self.complete_recv(env, &target, &arrival, 0, fi::FI_ECONNRESET),
        };
        let stamp = self.incoming_stamp.wrapping_add(1);
        self.incoming_stamp = stamp;
        let mut how = How::Alone { done: 0 };
        let mut still = None;
        let mut route = None;
        if access == Access::ProcessVm
            && want >= BOTH_SIDES_MIN
            && crate::env::env().both_sides
            && let (Some((block, generation)), Some(to)) = (rts.block, target.iov.contiguous())
        {
            route = self.choose_route(arrival.peer, want);
            let part = part_size(want, self.incoming_order.is_empty());
            let parts = u32::try_from(want.div_ceil(part)).unwrap_or(u32::MAX);
            if route != Some(Way::Ring)
                && let (Some(c), Ok(part_len)) = (self.sock.conn(rts.conn()), u32::try_from(part))
            {
                if crate::env::env().migrate {
                    still = Some(scif::Arrival::new(to.addr(), to.len()));
                }
                c.rx_claim(block)
                    .offer(generation, to.addr() as u64, want as u64, part_len, parts);
                how = How::Shared {
                    block,
                    generation,
                    part,
                    parts,
                    mended: false,
                    own: 0,
                };
            }
        }
        let refused = access == Access::None;
        let stream = want > 0 && (refused || route == Some(Way::Ring));
        let Some(index) = self.incoming.insert(Incoming {
            target,
            arrival,
            rts,
            want,
            how,
            stamp,
            route,
            heard: (0, 0),
            _arrival: still,
        }) else {
            return;
        };
        self.incoming_order.push_back(index);
        if stream {
            let denied = refused && self.sock.conn(conn).is_some_and(|c| is_denied(c));
            self.stats.fallbacks += u64::from(denied);
            self.ask_for_stream(index, refused);
        }
    }

    /// The way of a message of `want` bytes that both sides can copy, if there is a choice.
    fn choose_route(&mut self, peer: u32, want: usize) -> Option<Way> {
        let alone = self.incoming_order.is_empty();
        let p = self.peers.get_mut(peer as usize)?;
        p.routes.get_or_insert_default().choose(want, alone)
    }

    /// A message has ended that could take one way or the other.
    fn route_ended(&mut self, m: &Incoming, failed: bool) {
        let Some(way) = m.route else { return };
        let Some(routes) = self
            .peers
            .get_mut(m.arrival.peer as usize)
            .and_then(|p| p.routes.as_mut())
        else {
            return;
        };
        match (way, &m.how) {
            (Way::Shared, How::Shared { own, .. }) if !failed => {
                routes.ended(m.want, way, *own < m.want, scif::now_ns());
            }
            (Way::Ring, How::Streaming { .. }) if !failed => routes.ended(m.want, way, true, scif::now_ns()),
            (Way::Ring, How::Alone { .. }) => routes.left_alone(m.want),
            _ => routes.interrupted(m.want),
        }
    }

    /// A message that was to come through the ring, though it could be fetched: if nothing of it has come for a while, its
    /// sender does other things, and the rest is fetched. What it still sends is for a receive that is no more.
    fn fetch_after_all(&mut self, index: u32) -> bool {
        let now = scif::now_ns();
        let stamp = self.incoming_stamp.wrapping_add(1);
        // Until then this is not the moment to sleep.
        self.more = true;
        let Some(m) = self.incoming.get_mut(index) else {
            return false;
        };
        let How::Streaming { done } = m.how else {
            return false;
        };
        let (heard, since) = m.heard;
        if since == 0 || heard != done {
            m.heard = (done, now);
            return false;
        }
        if now.saturating_sub(since) < SILENCE_NS {
            return false;
        }
        self.incoming_stamp = stamp;
        m.stamp = stamp;
        m.how = How::Alone { done };
        true
    }

    /// Copies what can be copied, oldest message first, within the budget of one call.
    pub(crate) fn run_incoming(&mut self, env: &mut Env<'_>) {
        let mut budget = BUDGET;
        let mut at = 0;
        while let Some(index) = self.incoming_order.get(at).copied() {
            match self.step(index, &mut budget) {
                Step::Done => self.end_incoming(env, at, index, 0),
                Step::Failed(err) => self.end_incoming(env, at, index, err),
                Step::Waiting => at += 1,
            }
            if budget == 0 {
                self.more = true;
                break;
            }
        }
    }

    pub(super) fn end_incoming(&mut self, env: &mut Env<'_>, at: usize, index: u32, err: i32) {
        if err != 0 && self.withdraw(index, err) {
            return;
        }
        self.incoming_order.remove(at);
        let Some(m) = self.incoming.remove(index) else {
            return;
        };
        self.route_ended(&m, err != 0);
        let status = u64::from(err.unsigned_abs());
        // Over a connection that has ended nobody waits for it.
        if !self.is_parting(m.conn()) {
            let head = Head::new().word(m.rts.op).word(status);
            self.answer(m.arrival.peer, wire::FIN, head, &[]);
        }
        let copied = if err == 0 { m.want } else { 0 };
        self.complete_recv(env, &m.target, &m.arrival, copied, err);
    }

    fn step(&mut self, index: u32, budget: &mut usize) -> Step {
        let more = self.incoming_order.len() > 1;
        let Some(m) = self.incoming.get_mut(index) else {
            return Step::Done;
        };
        if m.want == 0 {
            return Step::Done;
        }
        let Some(conn) = self.sock.conn(m.rts.conn) else {
            return Step::Failed(fi::FI_ECONNRESET);
        };
        match &mut m.how {
            How::Streaming { done } if *done == m.want => return Step::Done,
            How::Streaming { .. } if m.route == Some(Way::Ring) => {
                return if self.fetch_after_all(index) {
                    self.step(index, budget)
                } else {
                    Step::Waiting
                };
            }
            How::Streaming { .. } => return Step::Waiting,
            How::Closing { block } => {
                if conn.rx_claim(*block).open_parts() == 0 {
                    self.ask_for_stream(index, true);
                }
                return Step::Waiting;
            }
            How::Ending { block, err } => {
                let err = *err;
                return if conn.rx_claim(*block).open_parts() > 0 && conn.alive() {
                    Step::Waiting
                } else {
                    Step::Failed(err)
                };
            }
            How::Alone { .. } | How::Shared { .. } => {}
        }
        // Of who has left, or died, the end of the connection is heard next: that ends the receive.
        if !conn.enter() {
            return Step::Waiting;
        }
        let copied = m.copy(conn, more, budget, &mut self.stats);
        conn.exit();
        let error = match copied {
            Ok(true) => None,
            Ok(false) => return Step::Waiting,
            Err(error) => Some(error),
        };
        match error {
            None => Step::Done,
            Some(AccessError::Gone) => Step::Failed(fi::FI_ECONNRESET),
            Some(error) => {
                self.stats.fallbacks += 1;
                if matches!(error, AccessError::Denied) {
                    conn.memory_mut().deny();
                    let peer = self.peers.get_mut(m.arrival.peer as usize);
                    note_denial(conn, peer, &mut self.stats);
                } else {
                    crate::log::fall_back(conn.peer(), conn.peer_pid(), &error);
                }
                if let How::Shared { block, .. } = m.how {
                    conn.rx_claim(block).close();
                    m.how = How::Closing { block };
                    return Step::Waiting;
                }
                m.route = None;
                self.ask_for_stream(index, true);
                Step::Waiting
            }
        }
    }

    /// The sender's part: copies parts of messages whose receiver has offered its buffer.
    pub(crate) fn help(&mut self) {
        let mut at = 0;
        while at < HELP_DEPTH.min(self.helping.len()) {
            let Some(id) = self.helping.get(at).copied() else {
                return;
            };
            if self.help_one(id) {
                self.helping.remove(at);
            } else {
                at += 1;
            }
        }
        // The oldest may all be for a peer that stands still.
        for _ in HELP_DEPTH..self.helping.len().min(2 * HELP_DEPTH) {
            let at = match self.help_next {
                next if (HELP_DEPTH..self.helping.len()).contains(&next) => next,
                _ => HELP_DEPTH,
            };
            self.help_next = at + 1;
            if let Some(id) = self.helping.get(at).copied()
                && self.help_one(id)
            {
                self.helping.remove(at);
                self.help_next = at;
            }
        }
    }

    /// True when there is nothing left to help with.
    fn help_one(&mut self, id: u64) -> bool {
        let more = self.helping.len() > 1;
        let Some(op) = self.ops.get_mut(id).filter(|op| op.asked == Asked::Never) else {
            return true;
        };
        let (Some((block, generation)), Some(from)) = (op.block, op.iov.contiguous()) else {
            return true;
        };
        let to = op.peer;
        let Some(p) = self.peers.get(to as usize) else {
            return true;
        };
        let Some(conn) = p.tx.and_then(|c| self.sock.conn(c)) else {
            return true;
        };
        if conn.memory().access() != Access::ProcessVm || !crate::env::env().process_vm {
            return conn.is_up();
        }
        if !conn.alive_recently() {
            return true;
        }
        let claim = conn.tx_claim(usize::from(block));
        let Some(offer) = claim.offered(generation) else {
            return false;
        };
        let (part, len) = (offer.part as usize, usize::try_from(offer.len).unwrap_or(0));
        if len > from.len() {
            return true;
        }
        let (most, share) = takes(offer.parts, more);
        // What a receiver that writes garbage can make us copy in one call has a bound.
        let mut left = offer.parts;
        while left > 0
            && let Some(taken) = claim.take_front(generation, offer.parts, most, share)
        {
            let (off, count) = (taken.start as usize * part, taken.end - taken.start);
            left = left.saturating_sub(count);
            let Some(local) = from.sub(off, (taken.len() * part).min(len.saturating_sub(off))) else {
                claim.front_done(count, false);
                conn.notify();
                return true;
            };
            let remote = RemoteMem {
                addr: offer.dst_addr.wrapping_add(off as u64),
                len: local.len() as u64,
            };
            match conn.memory().write(&[local], &[remote]) {
                Ok(()) => {
                    claim.front_done(count, true);
                    // The receiver may sleep until the last part is in place.
                    conn.notify();
                    self.stats.both_sides.add(local.len());
                }
                Err(error) => {
                    claim.front_done(count, false);
                    conn.notify();
                    if matches!(error, AccessError::Denied) {
                        conn.memory_mut().deny();
                        note_denial(conn, self.peers.get_mut(to as usize), &mut self.stats);
                    }
                    return true;
                }
            }
        }
        true
    }

    /// Whether anything is being fetched from `peer`.
    pub(crate) fn fetches_from(&self, peer: u32) -> bool {
        self.incoming.iter().any(|(_, m)| m.peer() == peer)
    }
}

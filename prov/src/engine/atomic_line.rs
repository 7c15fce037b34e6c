// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Inline atomics: one range of at most 8 bytes, executed by the target.
//!
//! An atomic that returns nothing and need not await the target completes when it is in the ring,
//! like a message. The key table of the target must permit it. It has no reply of its own. The
//! target reports at intervals how many it has executed (`DONE`), since direct operations must not
//! overtake them.
//!
//! Not here: other atomics (`atomic`, and `atomic_here` without the target).

use libfabric_sys as fi;
use scif::ConnId;

use super::atomic::{SEGMENT, execute, rights};
use super::envelope::ProtocolError;
use super::iov::{Iov, gather_into};
use super::ops::{Label, Ops, OutOp, What};
use super::peer::{Done, Peer};
use super::peer_id::PeerId;
use super::rma::place;
use super::wire::{self, AtomicWord, Head, Words};
use super::{AWAITS_TARGET, AtomicArgs, Effect, Env, EpState, Errno, RmaIov};
use crate::base::atomic_ops::element::AtomicKind;

/// Bytes of an operand.
const OPERAND: usize = 8;

/// Whether an operation number is the stamp of an operation without a reply. Numbers of outstanding
/// operations have a non-zero upper half.
fn is_stamp(id: u64) -> bool {
    id >> 32 == 0
}

/// Returns the stamp of operations over the current connection. It differs from stamps of earlier
/// connections, of this endpoint or of an earlier endpoint at its port.
fn stamp(ops: &Ops, peer: &Peer) -> u64 {
    u64::from(ops.life().wrapping_add(peer.life))
}

impl EpState {
    /// Sends an operation to a peer without pending work. Returns false if nothing was done.
    pub(super) fn atomic_in_line(
        &mut self,
        env: &mut Env<'_>,
        peer: PeerId,
        a: &AtomicArgs<'_>,
    ) -> bool {
        let [segment] = a.rma else { return false };
        if segment.len > OPERAND || a.flags & fi::FI_FENCE != 0 || self.out_of_credits(peer) {
            return false;
        }
        let (Ok(op), Ok(datatype)) = (u8::try_from(a.op), u8::try_from(a.datatype)) else {
            return false;
        };
        let Some(conn) = self.tx_conn(peer) else {
            return false;
        };
        let needed = rights(a.op, a.kind != AtomicKind::Write);
        let at_once = a.kind == AtomicKind::Write
            && a.flags & AWAITS_TARGET == 0
            && self.permitted(conn, segment, needed);
        let Some(c) = self.links.conn(conn) else {
            return false;
        };
        let p = self.peers.at_mut(peer);
        if !c.tx().room(0) {
            return false;
        }
        let (mut operand, mut compare) = ([0; OPERAND], [0; OPERAND]);
        gather_into(a.operand, &mut operand);
        gather_into(a.compare, &mut compare);
        let what = What::of_atomic(a.kind);
        let id = if at_once {
            stamp(&self.ops, p)
        } else {
            let label =
                Label { what, context: a.context, flags: a.flags, tag: 0, len: segment.len };
            self.ops.insert(OutOp { ring_rma: true, ..OutOp::new(peer, label, Iov::new(a.result)) })
        };
        let word = AtomicWord {
            op,
            datatype,
            kind: a.kind as u8,
            segments: 1,
            len: u16::try_from(segment.len).unwrap_or(0),
            has_data: a.data.is_some(),
        };
        let head = Head::new()
            .word(id)
            .word(word.pack())
            .word(segment.addr)
            .word(segment.key)
            .word(u64::from_ne_bytes(operand))
            .word(u64::from_ne_bytes(compare))
            .word(a.data.unwrap_or(0));
        if c.tx().push_head(wire::ATOMIC_LINE, head.as_slice()).is_err() {
            if !at_once {
                self.ops.remove(id);
            }
            return false;
        }
        c.notify();
        p.rma.outstanding += 1;
        self.stats.inline.add(segment.len);
        if at_once {
            self.tx_complete(env, what, a.context, a.flags, 0, segment.len, 0);
        }
        true
    }

    /// Whether the key table of the target has the key and permits the operation.
    fn permitted(&mut self, conn: ConnId, segment: &RmaIov, needed: u64) -> bool {
        let keys = self.links.conn(conn).and_then(|c| c.keys());
        keys.and_then(|keys| keys.find(segment.key))
            .is_some_and(|(_, _, entry)| place(&entry, segment, needed).is_ok())
    }

    /// Executes an inline atomic, as a target.
    pub(crate) fn on_atomic_line(
        &mut self,
        env: &mut Env<'_>,
        peer: PeerId,
        words: &mut Words<'_>,
    ) -> Result<(), ProtocolError> {
        let (id, word) = (words.word(), AtomicWord::unpack(words.word()));
        let (addr, key) = (words.word(), words.word());
        let (operand, compare) = (words.word().to_ne_bytes(), words.word().to_ne_bytes());
        let data = words.word();
        let kind = word.kind().ok_or(ProtocolError)?;
        let mut old = [0; OPERAND];
        let done = execute_line(env, word, kind, (addr, key), &operand, &compare, &mut old)?;
        match done {
            _ if is_stamp(id) => self.count_done(peer, id),
            Ok(()) if kind != AtomicKind::Write => {
                let head = Head::new().word(id).word(0).word(u64::from_ne_bytes(old));
                self.answer(peer, wire::ATOMIC_REPLY, head, &[]);
            }
            _ => {
                let status = done.err().map_or(0, |err| u64::from(err.unsigned_abs()));
                self.answer(peer, wire::ACK, Head::new().word(id).word(status), &[]);
            }
        }
        match done {
            Ok(()) => {
                let effect = Effect::of_atomic(kind != AtomicKind::Write, u32::from(word.op));
                let data = word.has_data.then_some(data);
                self.rma_event(env, peer, effect, data, usize::from(word.len), key);
            }
            // The initiator found the key in our table, but the region was closed since.
            Err(err) => {
                log::debug!(target: "ep_data", "an atomic of peer {peer} on key {key:#x} failed: {err}")
            }
        }
        Ok(())
    }

    fn count_done(&mut self, peer: PeerId, stamp: u64) {
        let p = self.peers.at_mut(peer);
        if p.rma.done.count == 0 || p.rma.done.stamp != stamp {
            if p.rma.done.count == 0 {
                self.rma_target.done.push(peer);
            }
            p.rma.done = Done { stamp, count: 0 };
        }
        p.rma.done.count += 1;
    }

    /// Reports to peers how many of their operations without a reply were executed.
    #[cold]
    pub(super) fn tell_done(&mut self) {
        for peer in std::mem::take(&mut self.rma_target.done) {
            let p = self.peers.at_mut(peer);
            let Done { stamp, count } = std::mem::take(&mut p.rma.done);
            self.answer(peer, wire::DONE, Head::new().word(stamp).word(count), &[]);
        }
    }

    /// Handles a report that `count` operations without a reply were executed.
    pub(crate) fn on_done(&mut self, peer: PeerId, told: u64, count: u64) {
        let p = self.peers.at_mut(peer);
        if told == stamp(&self.ops, p) {
            p.rma.outstanding =
                p.rma.outstanding.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
        }
    }
}

/// Applies the operation. A range in one piece, the usual case, needs no segment list.
fn execute_line(
    env: &Env<'_>,
    word: AtomicWord,
    kind: AtomicKind,
    (addr, key): (u64, u64),
    operand: &[u8; OPERAND],
    compare: &[u8; OPERAND],
    old: &mut [u8; OPERAND],
) -> Result<Result<(), Errno>, ProtocolError> {
    let len = usize::from(word.len);
    let (op, datatype) = (u32::from(word.op), u32::from(word.datatype));
    let operand = operand.get(..len).ok_or(ProtocolError)?;
    let compare = compare.get(..len).ok_or(ProtocolError)?;
    let old = old.get_mut(..len).ok_or(ProtocolError)?;
    let fetches = kind != AtomicKind::Write;
    if !crate::base::atomic_ops::valid(op, datatype, kind) {
        return Ok(Err(fi::FI_EOPNOTSUPP));
    }
    Ok(match env.mrs.piece(key, addr, len as u64, rights(op, fetches)) {
        Err(err) => Err(err),
        Ok(Some(target)) => {
            let old = if fetches { old } else { &mut [] };
            crate::base::atomic_ops::apply(op, datatype, &target, operand, compare, old)
        }
        Ok(None) => {
            let mut list = [0; SEGMENT];
            for (to, part) in list.chunks_exact_mut(8).zip([addr, len as u64, key]) {
                to.copy_from_slice(&part.to_ne_bytes());
            }
            let word = AtomicWord { segments: 1, ..word };
            match execute(env, word, kind, &list, operand, compare, old) {
                (0, _) => Ok(()),
                (err, _) => Err(err),
            }
        }
    })
}

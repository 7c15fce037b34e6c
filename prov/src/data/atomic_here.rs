// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Atomics that their initiator executes itself: those on memory of its own process or in a window that is mapped here, of
//! operands that the CPU has atomic instructions for.
//!
//! Everything else is the target's to execute (`atomic`), errors included: what looks wrong here is left to it.

use libfabric_sys as fi;
use scif::{Access, ConnId, RemoteMem};

use super::atomic::{AtomicOp, SEGMENT};
use super::rx::scatter;
use super::wire::{self, Head};
use super::{AtomicKind, Env, EpState};

/// Widest operand with atomic instructions.
const WIDEST: usize = 8;

impl EpState {
    /// Executes `op` and completes it. False: nothing was done, the target has to.
    pub(crate) fn atomic_here(&mut self, env: &mut Env<'_>, peer: u32, conn: ConnId, op: &AtomicOp) -> bool {
        let Some(at) = self.execute_here(peer, conn, op) else {
            return false;
        };
        let read = u32::from(op.word.op) == fi::FI_ATOMIC_READ;
        if op.word.has_data || at.notify {
            let mut flags = if read { wire::F_READ } else { 0 };
            if op.word.has_data {
                flags |= wire::F_DATA;
            }
            let head = Head::new().word(flags).word(op.data).word(op.len as u64);
            self.control(peer, wire::RMA_EVENT, head.word(at.key), &[]);
        }
        self.stats.mapped.add(op.len);
        self.tx_complete(env, op.what, op.context, op.flags, 0, op.len, 0);
        true
    }

    /// Looks the memory up as RMA does, and does what the target would.
    fn execute_here(&mut self, peer: u32, conn: ConnId, op: &AtomicOp) -> Option<Done> {
        let (operation, datatype) = (u32::from(op.word.op), u32::from(op.word.datatype));
        let size = crate::atomic_ops::size_of(datatype).filter(|size| *size <= WIDEST)?;
        if self.peers.get(peer as usize)?.ring_rma > 0
            || self.waits_for_messages(conn, operation != fi::FI_ATOMIC_READ)
        {
            return None;
        }
        let (list, operands) = op
            .body
            .split_at_checked(SEGMENT * usize::from(op.word.segments))?;
        let ([segment], _) = list.as_chunks::<SEGMENT>() else {
            return None;
        };
        let (operand, compare) = operands.split_at_checked(op.len)?;
        let c = self.sock.conn(conn)?;
        if !c.is_up() {
            return None;
        }
        let near = c.memory().access() == Access::Mapped;
        let mut words = segment.as_chunks::<8>().0.iter().map(|w| u64::from_ne_bytes(*w));
        let (addr, len, key) = (words.next()?, words.next()?, words.next()?);
        let keys = c.keys()?;
        let (slot, generation, entry) = keys.find(key)?;
        let within = addr.checked_sub(entry.start)?;
        let inside = within.checked_add(len).is_some_and(|end| end <= entry.len);
        let base = entry.base.wrapping_add(within);
        if entry.access & op.rights() != op.rights() || !inside || !base.is_multiple_of(size as u64) {
            return None;
        }
        let remote = RemoteMem { addr: base, len };
        let target = if near {
            c.memory().here(&remote)?
        } else {
            c.window(&entry, &remote)?
        };
        let keys = c.keys()?;
        let mut old = [0; crate::atomic_ops::MAX_ATOMIC_BYTES];
        let old = if op.word.kind == AtomicKind::Write as u8 {
            &mut []
        } else {
            old.get_mut(..op.len)?
        };
        c.my_mark().set(slot);
        let done = keys.still(slot, generation)
            && crate::atomic_ops::apply(operation, datatype, &target, operand, compare, old).is_ok();
        c.my_mark().clear();
        if !done {
            return None;
        }
        let notify = keys.notify();
        scatter(op.result.as_slice(), old);
        Some(Done { key, notify })
    }
}

/// What is left to do for an executed operation.
struct Done {
    key: u64,
    /// The target counts operations on its memory.
    notify: bool,
}

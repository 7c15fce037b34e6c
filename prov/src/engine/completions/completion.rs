// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Completions of transmit operations.
//!
//! Not here: receives (`recv`), and work queued to the domain (`triggered`).

use libfabric_sys as fi;
use scif::trace::{EventKind, TraceEvent};

use crate::base::errno::Errno;
use crate::engine::completions::work_report;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::tables::op_table::{CompletionInfo, FLAG_DEFERRED_WORK, OpKind, OutstandingOp};
use crate::engine::types::peer_id::PeerId;
use crate::state::completion::{Completion, CqError};

/// Writes the completion of a transmit operation: a success if requested, an error always.
#[inline(always)]
pub(crate) fn tx_complete(ep: &mut Endpoint, env: &mut Env<'_>, op: CompletionInfo, err: Errno) {
    if op.flags & FLAG_DEFERRED_WORK != 0 {
        let c = Completion::new(op.context, op.op_kind.cq_flags(), op.tag);
        work_report::complete_tx_work(ep, env, c, op.len, err, tx_cntr(ep, op.op_kind));
    } else {
        tx_posted(ep, env, op, err);
    }
}

/// Returns the counter for operations of one kind.
#[inline(always)]
pub(crate) fn tx_cntr(ep: &Endpoint, op_kind: OpKind) -> Option<u32> {
    match op_kind {
        OpKind::Message | OpKind::Tagged => ep.cfg.cntr_send,
        OpKind::Write | OpKind::AtomicWrite | OpKind::Collective => ep.cfg.cntr_write,
        OpKind::Read | OpKind::AtomicFetch => ep.cfg.cntr_read,
    }
}

/// Writes the completion of an operation that is not work queued to the domain.
#[inline(always)]
pub(crate) fn tx_posted(ep: &mut Endpoint, env: &mut Env<'_>, op: CompletionInfo, err: Errno) {
    let cntr = tx_cntr(ep, op.op_kind);
    if err != 0 {
        let c = Completion::new(op.context, op.op_kind.cq_flags(), op.tag);
        return tx_failed(ep, env, c, op.len, err, cntr);
    }
    if let Some(cntr) = cntr.and_then(|c| env.cntrs.get_mut(c)) {
        cntr.add(1);
    }
    if op.flags & fi::FI_COMPLETION != 0 {
        if let Some(cq) = ep.cfg.tx_cq.and_then(|c| env.cqs.get_mut(c)) {
            let c = Completion::new(op.context, op.op_kind.cq_flags(), op.tag);
            cq.success(Completion { len: op.len, ..c });
        }
    }
}

#[cold]
fn tx_failed(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    c: Completion,
    len: usize,
    err: Errno,
    cntr: Option<u32>,
) {
    if let Some(cntr) = cntr.and_then(|c| env.cntrs.get_mut(c)) {
        cntr.add_err(1);
    }
    if let Some(cq) = ep.cfg.tx_cq.and_then(|c| env.cqs.get_mut(c)) {
        cq.error(CqError::new(c, err, len));
    }
}

/// Ends operation `id` if it belongs to `peer`: releases its resources and completes it.
pub(crate) fn finish_op(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId, id: u64, err: Errno) {
    // The network writes into the buffers of a read until that has ended.
    let is_reading = |op: &OutstandingOp| op.network.as_ref().is_some_and(|n| n.is_reading);
    if ep.ops.get_mut(id).is_none_or(|op| op.peer != peer || is_reading(op)) {
        log::debug!(
            target: "ep_data",
            "peer {peer} answered operation {id:#x}, which is not outstanding"
        );
        return;
    }
    let Some(op) = ep.ops.remove(id) else {
        return;
    };
    ep.peers.note(peer, || TraceEvent::new(EventKind::Ended, op.tag, op.len, id).failed(err));
    let p = ep.peers.at_mut(peer);
    if let Some((block, _)) = op.block {
        p.blocks.give_back(block);
    }
    if op.ring_rma {
        p.rma.outstanding = p.rma.outstanding.saturating_sub(1);
    }
    if op.network.is_some() {
        p.queue.held.remove();
    }
    if op.block.is_some() {
        ep.rndv.end_coop(id);
    }
    if let Some(key) = op.exposed {
        ep.links.sock.revoke(key);
    }
    if op.kept.is_none() {
        tx_complete(ep, env, op.info(), err);
    }
}

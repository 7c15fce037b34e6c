// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Parts of multi-receive buffers (`multi`) in progress, and the report of a released buffer.

use libfabric_sys as fi;
use scif::slab::Slab;

use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::tables::multi::Multi;
use crate::engine::types::envelope::MultiRecvId;
use crate::state::completion::Completion;

/// Returns the table that contains a buffer, and its number there.
fn table<'a>(
    ep: &'a mut Endpoint,
    env: &'a mut Env<'_>,
    many: MultiRecvId,
) -> Option<(&'a mut Slab<Multi>, u32)> {
    match many {
        MultiRecvId::Own(number) => Some((&mut ep.recv.multis, number)),
        MultiRecvId::Shared(number) => Some((&mut env.srxs.get_mut(ep.cfg.srx?)?.multis, number)),
    }
}

pub(crate) fn buffer<'a>(
    ep: &'a mut Endpoint,
    env: &'a mut Env<'_>,
    many: MultiRecvId,
) -> Option<&'a mut Multi> {
    let (multis, number) = table(ep, env, many)?;
    multis.get_mut(number)
}

/// Removes a buffer without list entry and without messages in progress. Returns whether it
/// did.
fn end_many(ep: &mut Endpoint, env: &mut Env<'_>, many: MultiRecvId) -> bool {
    let Some((multis, number)) = table(ep, env, many) else {
        return false;
    };
    let over = multis.get(number).is_some_and(|b| b.retired && !b.is_filling());
    over && multis.remove(number).is_some()
}

/// Notes that the list entry of a buffer is gone. Returns true if the buffer was released.
pub(crate) fn unlist_many(ep: &mut Endpoint, env: &mut Env<'_>, many: MultiRecvId) -> bool {
    if let Some(buffer) = buffer(ep, env, many) {
        buffer.retired = true;
    }
    end_many(ep, env, many)
}

/// Notes that the list entry of a buffer is gone. Reports a release by a completion of its own.
pub(crate) fn release(ep: &mut Endpoint, env: &mut Env<'_>, many: MultiRecvId) {
    let context = buffer(ep, env, many).map(|buffer| buffer.context);
    if unlist_many(ep, env, many) {
        if let Some(context) = context {
            report_released_buffer(ep, env, context);
        }
    }
}

/// Notes that a message of a buffer has ended. Returns true if the buffer was released.
pub(crate) fn end_piece(ep: &mut Endpoint, env: &mut Env<'_>, many: MultiRecvId) -> bool {
    if let Some(buffer) = buffer(ep, env, many) {
        buffer.in_flight = buffer.in_flight.saturating_sub(1);
    }
    end_many(ep, env, many)
}

fn report_released_buffer(ep: &Endpoint, env: &mut Env<'_>, context: usize) {
    if let Some(cq) = ep.cfg.rx_cq.and_then(|c| env.cqs.get_mut(c)) {
        cq.success(Completion::new(context, fi::FI_MULTI_RECV, 0));
    }
}

/// Returns the parts of shared buffers that this endpoint is filling.
pub(crate) fn shared_pieces(ep: &Endpoint) -> Vec<(MultiRecvId, usize)> {
    let pieces = ep.rndv.incoming.iter().filter_map(|(_, m)| match m.target.multi {
        Some(many @ MultiRecvId::Shared(_)) => Some((many, m.target.context)),
        _ => None,
    });
    pieces.collect()
}

/// Releases parts of shared buffers when the endpoint closes and no peer writes into them any
/// more.
pub(crate) fn leave_pieces(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    pieces: Vec<(MultiRecvId, usize)>,
) {
    for (many, context) in pieces {
        if end_piece(ep, env, many) {
            report_released_buffer(ep, env, context);
        }
    }
}

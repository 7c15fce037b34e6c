// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Operations that wait for a counter: triggered operations, and work queued to a domain.
//!
//! Operations wait in order of their thresholds, and at equal thresholds in posting order. Counters
//! do not know them. The progress of a domain with such work compares the counters in [`run`]. An
//! endpoint or counter without triggers therefore costs nothing. Work queued to a domain reports to
//! a counter of its own. While it is in progress, its endpoint keeps a [`Note`] and the operation
//! has the flag [`FLAG_DEFERRED_WORK`].
//!
//! Not here: the C structures for this work (`ep::trigger`).
//!
//! Semantics: fi_trigger(3).

use libfabric_sys as fi;

use crate::base::errno::Errno;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::tables::op_table::mark;
use crate::state::completion::{Completion, CqError};

/// Result of an operation.
pub(crate) struct Outcome {
    pub(crate) c: Completion,
    pub(crate) err: Errno,
    pub(crate) olen: usize,
}

/// Ends a transmit operation of queued work, of `len` bytes, as `tx_complete` does for others.
#[cold]
pub(crate) fn complete_tx_work(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    c: Completion,
    len: usize,
    err: Errno,
    cntr: Option<u32>,
) {
    let (len, olen) = if err == 0 { (len, 0) } else { (0, len) };
    complete_work(ep, env, Completion { len, ..c }, err, olen, cntr);
}

/// Ends queued work. `c` has the context of its note, and `cntr` is the endpoint's counter for
/// such operations.
#[cold]
pub(crate) fn complete_work(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    c: Completion,
    err: Errno,
    olen: usize,
    cntr: Option<u32>,
) {
    let note = u32::try_from(!c.context).ok().and_then(|at| ep.ops.notes.remove(at));
    let Some(note) = note else { return };
    let c = Completion { context: note.context, ..c };
    // Counted once if both are the same counter.
    let cntr = cntr.filter(|cntr| note.report && note.cntr != Some(*cntr));
    report_to(ep, env, (note.cntr, cntr), note.report, Outcome { c, err, olen });
}

pub(crate) fn report_to(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (own, cntr): (Option<u32>, Option<u32>),
    report: bool,
    outcome: Outcome,
) {
    let Outcome { c, err, olen } = outcome;
    for at in [own, cntr].into_iter().flatten() {
        if let Some(cntr) = env.cntrs.get_mut(at) {
            if err == 0 { cntr.add(1) } else { cntr.add_err(1) }
        }
    }
    let receives = c.flags & fi::FI_RECV != 0;
    let at = if receives { ep.cfg.rx_cq } else { ep.cfg.tx_cq };
    let Some(cq) = at.and_then(|c| env.cqs.get_mut(c)) else {
        return;
    };
    if err == 0 {
        if report {
            cq.success(c);
        }
    } else {
        cq.error(CqError::new(c, err, olen));
    }
}

/// Returns the internal context of queued work of this endpoint, given that of the application.
pub(crate) fn noted(ep: &Endpoint, context: usize) -> Option<usize> {
    ep.ops.notes.iter().find(|(_, note)| note.context == context).map(|(at, _)| mark(at))
}

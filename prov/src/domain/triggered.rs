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

use crate::base::atomic_ops::element::AtomicKind;
use crate::base::errno::Errno;
use crate::domain::bindings;
use crate::domain::calls::{self, usable};
use crate::domain::state::DomainState;
use crate::domain::triggers::{Action, Condition, Work};
use crate::engine::completions::work_report::{self, Outcome};
use crate::engine::completions::{completion, recv_completion};
use crate::engine::endpoint::Endpoint;
use crate::engine::tables::op_table::{FLAG_DEFERRED_WORK, Note, OpKind, mark};
use crate::engine::types::args::{AtomicArgs, RecvArgs, RmaArgs, SendArgs};
use crate::state::completion::Completion;

/// Cancels a triggered operation with this context, or else the oldest receive, tagged ones first.
/// An error entry `FI_ECANCELED` reports it. Succeeds if none is found.
pub(crate) fn cancel_operation(st: &mut DomainState, ep: u32, context: usize) -> Result<(), Errno> {
    calls::guarded(st, ep, |st| {
        if !st.triggers.is_empty() && cancel(st, ep, context) {
            return Ok(());
        }
        let (e, mut env) = usable(st, ep)?;
        let context = work_report::noted(e, context).unwrap_or(context);
        recv_completion::cancel_recv(e, &mut env, context)
    })
}

/// Posts `work`, to start when its condition holds, which may be now.
///
/// # Errors
/// `FI_EOPBADSTATE`: the endpoint is not enabled. Errors of the system: no descriptor to wait on.
pub(crate) fn post(st: &mut DomainState, when: Condition, work: Work) -> Result<(), Errno> {
    if let Some(ep) = work.ep {
        if !st.eps.get(ep).is_some_and(|e| e.enabled) {
            return Err(fi::FI_EOPBADSTATE);
        }
    }
    // A thread that waits for the changed counter must also progress the condition of this work.
    if let Some(cntr) = work.changes() {
        if st.cntrs.get(cntr).is_some_and(|c| !c.waits.is_wide()) {
            bindings::widen(st, cntr)?;
        }
    }
    st.triggers.push(when, work);
    run(st);
    Ok(())
}

/// Starts all work that is due. Work that finds its transmit queue full stays, and so does later
/// work at the same counter.
pub(crate) fn run(st: &mut DomainState) {
    let mut held = Vec::new();
    while let Some((place, turn, work)) = st.triggers.take_due(&st.cntrs, &held) {
        match start(st, &work) {
            Ok(()) => {}
            Err(fi::FI_EAGAIN) => {
                held.push(place);
                st.triggers.waiting.get_or_insert_with(place, Default::default).insert(turn, work);
            }
            Err(err) => {
                fail(st, &work, err);
                // The completion reports the error. It is not the reason of a later call on this
                // thread.
                crate::base::reason::forget();
            }
        }
    }
}

/// Cancels the first triggered operation of `ep` with this context, in order of counters and
/// thresholds, with an error entry `FI_ECANCELED`. Returns false if there is none.
pub(crate) fn cancel(st: &mut DomainState, ep: u32, context: usize) -> bool {
    let mut found = false;
    let works = st.triggers.take(|_, work| {
        let this =
            !found && work.queued.is_none() && work.ep == Some(ep) && work.context == context;
        found |= this;
        this
    });
    for work in &works {
        fail(st, work, fi::FI_ECANCELED);
    }
    found
}

/// Drops the work of endpoint `ep`, which is closing.
pub(crate) fn forget_ep(st: &mut DomainState, ep: u32) {
    st.triggers.take(|_, work| work.ep == Some(ep));
}

/// Starts an operation, or changes a counter.
fn start(st: &mut DomainState, work: &Work) -> Result<(), Errno> {
    match work.action {
        Action::Set { cntr, value } => {
            st.cntrs.get_mut(cntr).ok_or(fi::FI_EINVAL)?.set(value);
            return Ok(());
        }
        Action::Add { cntr, value } => {
            st.cntrs.get_mut(cntr).ok_or(fi::FI_EINVAL)?.add(value);
            return Ok(());
        }
        _ => {}
    }
    let ep = work.ep.ok_or(fi::FI_EINVAL)?;
    let Some(queued) = work.queued else {
        return operate(st, ep, &work.action, work.context, work.flags);
    };
    let notes = &mut st.eps.get_mut(ep).ok_or(fi::FI_EINVAL)?.ops.notes;
    let note = notes.insert(Note {
        context: work.context,
        report: work.flags & fi::FI_COMPLETION != 0,
        cntr: queued.completion,
    });
    let note = note.ok_or(fi::FI_EAGAIN)?;
    let begun = operate(st, ep, &work.action, mark(note), work.flags | FLAG_DEFERRED_WORK);
    if begun.is_err() {
        if let Some(e) = st.eps.get_mut(ep) {
            e.ops.notes.remove(note);
        }
    }
    begun
}

fn operate(
    st: &mut DomainState,
    ep: u32,
    action: &Action,
    context: usize,
    flags: u64,
) -> Result<(), Errno> {
    match action {
        Action::Send { iov, tag, data, dest } => {
            let args = SendArgs {
                iov: iov.as_slice(),
                tag: *tag,
                data: *data,
                dest: *dest,
                context,
                flags,
            };
            calls::send(st, ep, &args)
        }
        Action::Recv { iov, tag, src } => {
            let args = RecvArgs { iov: iov.as_slice(), src: *src, tag: *tag, context, flags };
            calls::recv_slow(st, ep, &args)
        }
        Action::Rma { write, iov, rma, data, dest } => {
            let args = RmaArgs {
                write: *write,
                iov: iov.as_slice(),
                rma,
                dest: *dest,
                data: *data,
                context,
                flags,
            };
            calls::rma(st, ep, &args)
        }
        Action::Atomic {
            kind,
            op,
            datatype,
            lists: [operand, compare, result],
            rma,
            data,
            dest,
        } => {
            let args = AtomicArgs {
                kind: *kind,
                op: *op,
                datatype: *datatype,
                operand: operand.as_slice(),
                compare: compare.as_slice(),
                result: result.as_slice(),
                rma,
                dest: *dest,
                data: *data,
                context,
                flags,
            };
            calls::atomic(st, ep, &args)
        }
        Action::Set { .. } | Action::Add { .. } => Err(fi::FI_EINVAL),
    }
}

/// Returns flags, tag and counter for the completion of a failed operation.
fn label(action: &Action, e: &Endpoint) -> (u64, u64, Option<u32>) {
    let of = |op_kind: OpKind| (op_kind.cq_flags(), completion::tx_cntr(e, op_kind));
    let ((flags, cntr), tag) = match action {
        Action::Send { tag, .. } => (of(OpKind::of(*tag)), *tag),
        Action::Recv { tag, .. } => {
            let kind = if tag.is_some() { fi::FI_TAGGED } else { fi::FI_MSG };
            ((fi::FI_RECV | kind, e.cfg.cntr_recv), tag.map(|(tag, _)| tag))
        }
        Action::Rma { write: true, .. } => (of(OpKind::Write), None),
        Action::Rma { write: false, .. } => (of(OpKind::Read), None),
        Action::Atomic { kind: AtomicKind::Write, .. } => (of(OpKind::AtomicWrite), None),
        Action::Atomic { .. } => (of(OpKind::AtomicFetch), None),
        Action::Set { .. } | Action::Add { .. } => ((0, None), None),
    };
    (flags, tag.unwrap_or(0), cntr)
}

/// Completes with `err` an operation that could not start.
fn fail(st: &mut DomainState, work: &Work, err: Errno) {
    let Some(ep) = work.ep else { return };
    let Ok((e, mut env)) = calls::split(st, ep) else {
        return;
    };
    let (flags, tag, cntr) = label(&work.action, e);
    let c = Completion::new(work.context, flags, tag);
    let (report, own) = match work.queued {
        None => (true, None),
        Some(queued) => (work.flags & fi::FI_COMPLETION != 0, queued.completion),
    };
    let outcome = Outcome { c, err, olen: 0 };
    work_report::report_to(e, &mut env, (own, cntr.filter(|_| report)), report, outcome);
}

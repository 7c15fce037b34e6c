// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Operations that wait for a counter: triggered operations, and work queued to a domain.
//!
//! Operations wait in order of their thresholds, and at equal thresholds in posting order. Counters do
//! not know them. The progress of a domain with such work compares the counters in [`run`]. An
//! endpoint or counter without triggers therefore costs nothing. Work queued to a domain reports to
//! a counter of its own. While it is in progress, its endpoint keeps a [`Note`] and the operation
//! has the flag [`NOTED`].
//!
//! Not here: the C structures for this work (`ep::trigger`).
//!
//! Semantics: fi_trigger(3).

use std::collections::BTreeMap;

use libfabric_sys as fi;

use super::iov::Iov;
use super::ops::{NOTED, Note, What, mark};
use super::{AtomicArgs, Env, EpState, Errno, RecvArgs, RmaArgs, RmaIov, SendArgs};
use crate::base::atomic_ops::element::AtomicKind;
use crate::base::slab::Slab;
use crate::domain::{DomainState, wait};
use crate::state::completion::{Completion, CqError};
use crate::state::counter::CntrState;

/// Condition that an operation waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Condition {
    pub cntr: u32,
    pub threshold: u64,
    /// Whether failures count like successes.
    pub errors: bool,
}

/// Operation or counter change to execute.
#[derive(Debug)]
pub(crate) enum Action {
    Send {
        iov: Iov,
        tag: Option<u64>,
        data: Option<u64>,
        dest: u64,
    },
    Recv {
        iov: Iov,
        tag: Option<(u64, u64)>,
        src: u64,
    },
    Rma {
        write: bool,
        iov: Iov,
        rma: Vec<RmaIov>,
        data: Option<u64>,
        dest: u64,
    },
    Atomic {
        kind: AtomicKind,
        op: u32,
        datatype: u32,
        /// Operand, compare and result lists.
        lists: [Iov; 3],
        rma: Vec<RmaIov>,
        data: Option<u64>,
        dest: u64,
    },
    Set {
        cntr: u32,
        value: u64,
    },
    Add {
        cntr: u32,
        value: u64,
    },
}

/// Properties of work queued to a domain, besides its operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queued {
    /// Address of the application's structure, which identifies the work for a cancel.
    pub id: usize,
    pub completion: Option<u32>,
}

/// Operation or counter change that waits for a counter.
#[derive(Debug)]
pub(crate) struct Work {
    pub action: Action,
    /// Endpoint of an operation.
    pub ep: Option<u32>,
    pub context: usize,
    pub flags: u64,
    /// `None` for a triggered operation, which completes like any other.
    pub queued: Option<Queued>,
}

impl Work {
    /// Returns the counter that the work itself changes.
    fn changes(&self) -> Option<u32> {
        match self.action {
            Action::Set { cntr, .. } | Action::Add { cntr, .. } => Some(cntr),
            _ => self.queued.and_then(|q| q.completion),
        }
    }
}

/// Counter, and whether its failures count.
type Place = (u32, bool);
/// Threshold, and an increasing sequence number.
type Turn = (u64, u64);

/// Waiting work of a domain.
#[derive(Debug, Default)]
pub(crate) struct Triggers {
    waiting: BTreeMap<Place, BTreeMap<Turn, Work>>,
    posted: u64,
}

impl Triggers {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn push(&mut self, when: Condition, work: Work) {
        self.posted += 1;
        let turn = (when.threshold, self.posted);
        let place = self.waiting.entry((when.cntr, when.errors)).or_default();
        place.insert(turn, work);
    }

    /// Removes the first work whose condition holds, except at the places in `held`.
    fn take_due(&mut self, cntrs: &Slab<CntrState>, held: &[Place]) -> Option<(Place, Turn, Work)> {
        let reached = |(place, list): (&Place, &BTreeMap<Turn, Work>)| {
            let now = cntrs.get(place.0)?.reached(place.1);
            let (turn, _) = list.first_key_value()?;
            (turn.0 <= now && !held.contains(place)).then_some((*place, *turn))
        };
        let (place, turn) = self.waiting.iter().find_map(reached)?;
        let list = self.waiting.get_mut(&place)?;
        let work = list.remove(&turn)?;
        if list.is_empty() {
            self.waiting.remove(&place);
        }
        Some((place, turn, work))
    }

    /// Removes all work that `choose` accepts. The first argument of `choose` is the counter.
    pub(crate) fn take(&mut self, mut choose: impl FnMut(u32, &Work) -> bool) -> Vec<Work> {
        let mut taken = Vec::new();
        for (place, list) in &mut self.waiting {
            taken.extend(list.extract_if(.., |_, work| choose(place.0, work)).map(|(_, w)| w));
        }
        self.waiting.retain(|_, list| !list.is_empty());
        taken
    }

    /// Whether some work waits for counter `cntr`, or will change it.
    pub(crate) fn uses_cntr(&self, cntr: u32) -> bool {
        let changes = |work: &Work| work.changes() == Some(cntr);
        self.waiting.iter().any(|(place, list)| place.0 == cntr || list.values().any(changes))
    }
}

/// Posts `work`, to start when its condition holds, which may be now.
///
/// # Errors
/// `FI_EOPBADSTATE`: the endpoint is not enabled. Errors of the system: no descriptor to wait on.
pub(crate) fn post(st: &mut DomainState, when: Condition, work: Work) -> Result<(), Errno> {
    if let Some(ep) = work.ep
        && !st.eps.get(ep).is_some_and(|e| e.enabled)
    {
        return Err(fi::FI_EOPBADSTATE);
    }
    // A thread that waits for the changed counter must also progress the condition of this work.
    if let Some(cntr) = work.changes()
        && st.cntrs.get(cntr).is_some_and(|c| !c.waits.is_wide())
    {
        wait::widen(st, cntr)?;
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
                st.triggers.waiting.entry(place).or_default().insert(turn, work);
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
    let begun = operate(st, ep, &work.action, mark(note), work.flags | NOTED);
    if begun.is_err()
        && let Some(e) = st.eps.get_mut(ep)
    {
        e.ops.notes.remove(note);
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
            super::send(st, ep, &args)
        }
        Action::Recv { iov, tag, src } => {
            let args = RecvArgs { iov: iov.as_slice(), src: *src, tag: *tag, context, flags };
            super::recv_generally(st, ep, &args)
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
            super::rma(st, ep, &args)
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
            super::atomic(st, ep, &args)
        }
        Action::Set { .. } | Action::Add { .. } => Err(fi::FI_EINVAL),
    }
}

/// Returns flags, tag and counter for the completion of a failed operation.
fn label(action: &Action, e: &EpState) -> (u64, u64, Option<u32>) {
    let of = |what: What| (what.cq_flags(), e.tx_cntr(what));
    let ((flags, cntr), tag) = match action {
        Action::Send { tag, .. } => (of(What::of(*tag)), *tag),
        Action::Recv { tag, .. } => {
            let kind = if tag.is_some() { fi::FI_TAGGED } else { fi::FI_MSG };
            ((fi::FI_RECV | kind, e.cfg.cntr_recv), tag.map(|(tag, _)| tag))
        }
        Action::Rma { write: true, .. } => (of(What::Write), None),
        Action::Rma { write: false, .. } => (of(What::Read), None),
        Action::Atomic { kind: AtomicKind::Write, .. } => (of(What::AtomicWrite), None),
        Action::Atomic { .. } => (of(What::AtomicFetch), None),
        Action::Set { .. } | Action::Add { .. } => ((0, None), None),
    };
    (flags, tag.unwrap_or(0), cntr)
}

/// Completes with `err` an operation that could not start.
fn fail(st: &mut DomainState, work: &Work, err: Errno) {
    let Some(ep) = work.ep else { return };
    let Ok((e, mut env)) = super::split(st, ep) else {
        return;
    };
    let (flags, tag, cntr) = label(&work.action, e);
    let c = Completion::new(work.context, flags, tag);
    let (report, own) = match work.queued {
        None => (true, None),
        Some(queued) => (work.flags & fi::FI_COMPLETION != 0, queued.completion),
    };
    let outcome = Outcome { c, err, olen: 0 };
    e.report_to(&mut env, (own, cntr.filter(|_| report)), report, outcome);
}

/// Result of an operation.
struct Outcome {
    c: Completion,
    err: Errno,
    olen: usize,
}

impl EpState {
    /// Ends a transmit operation of queued work, as `tx_complete` does for others.
    #[cold]
    #[expect(clippy::too_many_arguments, reason = "those of `tx_complete`")]
    pub(crate) fn tx_noted(
        &mut self,
        env: &mut Env<'_>,
        what: What,
        context: usize,
        tag: u64,
        len: usize,
        err: Errno,
        cntr: Option<u32>,
    ) {
        let c = Completion {
            len: if err == 0 { len } else { 0 },
            ..Completion::new(context, what.cq_flags(), tag)
        };
        let olen = if err == 0 { 0 } else { len };
        self.end_noted(env, c, err, olen, cntr);
    }

    /// Ends queued work. `c` has the context of its note, and `cntr` is the endpoint's counter for
    /// such operations.
    #[cold]
    pub(crate) fn end_noted(
        &mut self,
        env: &mut Env<'_>,
        c: Completion,
        err: Errno,
        olen: usize,
        cntr: Option<u32>,
    ) {
        let note = u32::try_from(!c.context).ok().and_then(|at| self.ops.notes.remove(at));
        let Some(note) = note else { return };
        let c = Completion { context: note.context, ..c };
        // Counted once if both are the same counter.
        let cntr = cntr.filter(|cntr| note.report && note.cntr != Some(*cntr));
        self.report_to(env, (note.cntr, cntr), note.report, Outcome { c, err, olen });
    }

    fn report_to(
        &mut self,
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
        let at = if receives { self.cfg.rx_cq } else { self.cfg.tx_cq };
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
    pub(crate) fn noted(&self, context: usize) -> Option<usize> {
        self.ops.notes.iter().find(|(_, note)| note.context == context).map(|(at, _)| mark(at))
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Faults that `SISCI_FAULT` injects: errors of hardware, for tests of programs.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use scif_ring::counter::AtomicCounter;

use crate::lock::{take, wait};
use crate::node::NodeId;

/// Accepted form of `SISCI_FAULT`, for the warning about another.
pub(crate) const FORM: &str =
    "not a list of retriable:N/M and lost:nodeN@Ts or @Tms, separated by commas";

/// Loss of a node at a time after `SCIInitialize`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct NodeLoss {
    pub(crate) node: NodeId,
    after: Duration,
}

/// Faults to inject.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct FaultPlan {
    /// Number of checks that fail out of a number of checks.
    retriable: Option<(u64, u64)>,
    /// Losses of nodes, the earliest first.
    losses: Vec<NodeLoss>,
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn share(text: &str) -> Option<(u64, u64)> {
    let (part, whole) = text.split_once('/')?;
    let (part, whole) = (number(part)?, number(whole)?);
    (part > 0 && part <= whole && whole <= u64::from(u32::MAX)).then_some((part, whole))
}

fn loss(text: &str) -> Option<NodeLoss> {
    let (node, after) = text.strip_prefix("node")?.split_once('@')?;
    let node = NodeId::new(u32::try_from(number(node)?).ok()?)?;
    let after = match after.strip_suffix("ms") {
        Some(ms) => Duration::from_millis(u32::try_from(number(ms)?).ok()?.into()),
        None => Duration::from_secs(u32::try_from(number(after.strip_suffix('s')?)?).ok()?.into()),
    };
    Some(NodeLoss { node, after })
}

impl FaultPlan {
    /// Reads the value of `SISCI_FAULT`; `None` for a value of another form than [`FORM`].
    pub(crate) fn parse(text: &str) -> Option<FaultPlan> {
        let mut plan = FaultPlan::default();
        for item in text.split(',') {
            match item.split_once(':')? {
                ("retriable", rest) if plan.retriable.is_none() => {
                    plan.retriable = Some(share(rest)?);
                }
                ("lost", rest) => plan.losses.push(loss(rest)?),
                _ => return None,
            }
        }
        plan.losses.sort_by_key(|loss| loss.after);
        Some(plan)
    }
}

/// Faults of an initialized library.
#[derive(Debug)]
pub(crate) struct Faults {
    plan: FaultPlan,
    start: Instant,
    /// Number of checks so far.
    checks: AtomicCounter,
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Faults {
    /// Begins to count the time of losses.
    pub(crate) fn new(plan: FaultPlan) -> Faults {
        Faults {
            plan,
            start: Instant::now(),
            checks: AtomicCounter::new(0),
            stopped: Mutex::new(false),
            changed: Condvar::new(),
        }
    }

    /// Whether the check that a program makes now fails. Failures are spread evenly.
    pub(crate) fn take_retriable(&self) -> bool {
        let Some((part, whole)) = self.plan.retriable else { return false };
        let at = self.checks.add_relaxed(1) % whole;
        (at + 1) * part / whole > at * part / whole
    }

    /// Whether the path between the own node and another is lost.
    pub(crate) fn is_lost(&self, own: NodeId, other: NodeId) -> bool {
        let now = || self.start.elapsed();
        own != other
            && self
                .plan
                .losses
                .iter()
                .any(|loss| (loss.node == own || loss.node == other) && loss.after <= now())
    }

    pub(crate) fn losses(&self) -> &[NodeLoss] {
        &self.plan.losses
    }

    /// Waits for the time of a loss. Returns false if the library ends before.
    pub(crate) fn wait(&self, loss: &NodeLoss) -> bool {
        let (mut stopped, mut due) = (take(&self.stopped), false);
        while !*stopped && !due {
            (stopped, due) = wait(&self.changed, stopped, Some(self.start + loss.after));
        }
        !*stopped
    }

    /// Ends the waits for losses.
    pub(crate) fn stop(&self) {
        *take(&self.stopped) = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parsed_strictly() {
        let node = |number| NodeId::new(number).unwrap();
        let loss = |number, ms| NodeLoss { node: node(number), after: Duration::from_millis(ms) };
        assert_eq!(
            FaultPlan::parse("retriable:1/1000,lost:node8@5s,lost:node4@250ms"),
            Some(FaultPlan {
                retriable: Some((1, 1000)),
                losses: vec![loss(4, 250), loss(8, 5000)]
            })
        );
        for wrong in [
            "",
            ",",
            "retriable",
            "retriable:1",
            "retriable:0/5",
            "retriable:6/5",
            "retriable:1/0",
            "retriable:+1/5",
            "retriable:1/5,",
            "retriable:1/5,retriable:1/6",
            "retriable: 1/5",
            "lost:8@5s",
            "lost:node8",
            "lost:node8@5",
            "lost:node8@5m",
            "lost:node8@-5s",
            "lost:node8@s",
            "lost:node6@5s",
            "lost:node252@5s",
            "lost:node8@5000000000s",
            "Lost:node8@5s",
            "late:node8@5s",
        ] {
            assert_eq!(FaultPlan::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn failures_have_their_share() {
        for (part, whole) in [(1, 1), (1, 3), (2, 3), (3, 1000), (999, 1000)] {
            let plan = FaultPlan { retriable: Some((part, whole)), losses: Vec::new() };
            let faults = Faults::new(plan);
            let failed = (0..2 * whole).filter(|_| faults.take_retriable()).count() as u64;
            assert_eq!(failed, 2 * part, "{part}/{whole}");
        }
        assert!(!Faults::new(FaultPlan::default()).take_retriable());
    }

    #[test]
    fn a_loss_cuts_the_node_from_all_others() {
        let node = |number| NodeId::new(number).unwrap();
        let faults = Faults::new(FaultPlan::parse("lost:node8@0s,lost:node12@9999s").unwrap());
        for (own, other, lost) in
            [(4, 8, true), (8, 4, true), (8, 8, false), (4, 12, false), (4, 16, false)]
        {
            assert_eq!(faults.is_lost(node(own), node(other)), lost, "{own} {other}");
        }
        let losses = faults.losses().to_vec();
        assert!(faults.wait(&losses[0]));
        faults.stop();
        assert!(!faults.wait(&losses[1]));
    }
}

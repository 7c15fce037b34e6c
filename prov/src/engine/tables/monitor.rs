// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Counters of an endpoint, in memory that other processes of the user can read, and the schedule
//! of the snapshots beside them.
//!
//! Not here: the contents of the snapshots (`engine::monitor`).

use std::ops::{Deref, DerefMut};

use scif::monitor::EndpointRecord;

use crate::engine::types::peer_id::PeerId;
use crate::engine::types::stats::Stats;

/// Shortest interval in nanoseconds between two snapshots of the operations by polls. A longer one
/// delays the display of a hung operation.
const OPS_NS: u64 = 5_000_000;
/// Shortest interval in nanoseconds between two snapshots of the peers.
const PEERS_NS: u64 = 50_000_000;
/// Interval to the next snapshot as a multiple of the duration of the last one. It limits the cost
/// to a part in this many of the time of a polling thread.
const COST_LIMIT: u64 = 200;

/// Operation that waits in a queue without a time of its own.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct QueuedOp {
    pub(crate) peer: PeerId,
    pub(crate) context: usize,
    pub(crate) tag: u64,
    pub(crate) len: usize,
    /// Number of messages sent so far: a queue that moves holds other operations.
    pub(crate) sent: u64,
}

/// Counters and published state of one endpoint.
#[derive(Debug)]
pub(crate) struct Monitor {
    record: EndpointRecord<Stats>,
    /// Times in nanoseconds at which the next snapshots are due.
    pub(crate) ops_due_ns: u64,
    pub(crate) peers_due_ns: u64,
    /// Queued operations of the last snapshot, with the time at which each was first seen.
    queued: Vec<(QueuedOp, u64)>,
}

impl Monitor {
    pub(crate) fn new() -> Monitor {
        Monitor {
            record: EndpointRecord::open(),
            ops_due_ns: 0,
            peers_due_ns: 0,
            queued: Vec::new(),
        }
    }

    /// Returns the record for readers.
    #[inline]
    pub(crate) fn record(&self) -> &EndpointRecord<Stats> {
        &self.record
    }

    /// Returns the counters.
    pub(crate) fn counters(&self) -> &Stats {
        &self.record
    }

    /// Schedules the snapshots after those that took from `began` to `now`.
    pub(crate) fn schedule(&mut self, began: u64, now: u64, with_peers: bool) {
        let pause = now.saturating_sub(began) * COST_LIMIT;
        self.ops_due_ns = now + pause.max(OPS_NS);
        if with_peers {
            self.peers_due_ns = now + pause.max(PEERS_NS);
        }
    }

    /// Returns the times at which the queued operations `ops` were first seen, and remembers them.
    pub(crate) fn first_seen(&mut self, ops: &[QueuedOp], now: u64) -> Vec<u64> {
        let since = |op: &QueuedOp| {
            let known = self.queued.iter().find(|(known, _)| known == op);
            known.map_or(now, |(_, since)| *since)
        };
        let times: Vec<u64> = ops.iter().map(since).collect();
        self.queued = ops.iter().copied().zip(times.iter().copied()).collect();
        times
    }
}

impl Deref for Monitor {
    type Target = Stats;

    #[inline(always)]
    fn deref(&self) -> &Stats {
        &self.record
    }
}

impl DerefMut for Monitor {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Stats {
        &mut self.record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_does_not_move_ages() {
        let mut monitor = Monitor::new();
        let op = QueuedOp { peer: PeerId::new(1), context: 2, tag: 3, len: 4, sent: 5 };
        let moved = QueuedOp { sent: 6, ..op };
        assert_eq!(monitor.first_seen(&[op], 10), [10]);
        assert_eq!(monitor.first_seen(&[moved, op], 20), [20, 10]);
        assert_eq!(monitor.first_seen(&[], 30), [0_u64; 0]);
        assert_eq!(monitor.first_seen(&[op], 40), [40]);
    }

    #[test]
    fn long_snapshots_are_rare() {
        let mut monitor = Monitor::new();
        monitor.schedule(100, 200, false);
        assert_eq!((monitor.ops_due_ns, monitor.peers_due_ns), (200 + OPS_NS, 0));
        monitor.schedule(0, OPS_NS, true);
        assert_eq!(monitor.ops_due_ns, OPS_NS * (COST_LIMIT + 1));
        assert_eq!(monitor.peers_due_ns, monitor.ops_due_ns);
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! State of an endpoint as the target of accesses.

use std::collections::HashMap;

use scif::ConnId;

use crate::base::errno::Errno;
use crate::engine::tables::network_rma::NetworkRma;
use crate::engine::types::peer_id::PeerId;

/// Bytes after which a poll takes part in no further cooperative RMA. With more, a malicious peer
/// delays the polls of other rings for longer.
const COOP_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Cooperative RMA in which the current poll has taken part.
#[derive(Debug, Default)]
pub(crate) struct CoopBudget {
    /// Number of the poll, and its bytes.
    poll: u32,
    bytes: usize,
}

impl CoopBudget {
    /// Whether poll number `poll` may take part in an operation of `len` bytes, which are counted.
    pub(crate) fn admits(&mut self, poll: u32, len: usize) -> bool {
        if self.poll != poll {
            *self = CoopBudget { poll, bytes: 0 };
        }
        let has_budget = self.bytes < COOP_BYTES_MAX;
        self.bytes = self.bytes.saturating_add(len);
        has_budget
    }
}

/// State of an endpoint as the target of accesses.
#[derive(Debug, Default)]
pub(crate) struct RmaTarget {
    /// Limit of the cooperative RMA of one poll.
    pub(crate) coop: CoopBudget,
    /// Errors of writes whose fragments are still arriving, by connection.
    pub(crate) write_errors: HashMap<ConnId, Errno>,
    /// Reads of which a part failed and the last part has not arrived, by connection.
    pub(crate) failed_reads: HashMap<ConnId, u64>,
    /// Peers whose one-sided operations without a reply were executed and must be acknowledged.
    pub(crate) done: Vec<PeerId>,
    /// Large RMA with other hosts, in both directions.
    pub(crate) network: NetworkRma,
}

impl RmaTarget {
    /// Drops the state of a connection that has ended.
    pub(crate) fn on_conn_lost(&mut self, conn: ConnId) {
        self.write_errors.remove(&conn);
        self.failed_reads.remove(&conn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_poll_takes_part_in_a_bounded_number_of_bytes() {
        let mut budget = CoopBudget::default();
        assert!(budget.admits(1, COOP_BYTES_MAX - 1) && budget.admits(1, 1));
        assert!(!budget.admits(1, 1) && budget.admits(2, usize::MAX) && !budget.admits(2, 0));
    }

    #[test]
    fn a_lost_connection_leaves_no_errors_behind() {
        let mut target = RmaTarget::default();
        let [lost, other] = [1, 2].map(|index| ConnId { index, generation: 1 });
        for conn in [lost, other] {
            target.write_errors.insert(conn, 5);
            target.failed_reads.insert(conn, 6);
        }
        target.on_conn_lost(lost);
        assert_eq!(target.write_errors, HashMap::from([(other, 5)]));
        assert_eq!(target.failed_reads, HashMap::from([(other, 6)]));
    }
}

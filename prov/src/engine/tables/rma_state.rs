// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! State of an endpoint as the target of accesses.

use std::collections::HashMap;

use scif::ConnId;

use crate::base::errno::Errno;
use crate::engine::types::peer_id::PeerId;

/// State of an endpoint as the target of accesses.
#[derive(Debug, Default)]
pub(crate) struct RmaTarget {
    /// Errors of writes whose fragments are still arriving, by connection.
    pub(crate) write_errors: HashMap<ConnId, Errno>,
    /// Reads of which a part failed and the last part has not arrived, by connection.
    pub(crate) failed_reads: HashMap<ConnId, u64>,
    /// Peers whose one-sided operations without a reply were executed and must be acknowledged.
    pub(crate) done: Vec<PeerId>,
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

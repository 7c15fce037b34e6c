// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Early ends of large RMA with peers on other hosts: that of its connection, endpoint or region.
//!
//! Not here: the operations (`network_rma`). No memory is released while the network may write it.

use scif::ConnId;

use crate::engine::endpoint::Endpoint;
use crate::engine::protocols::network_read;
use crate::engine::tables::network_rma::PullFor;
use crate::engine::types::peer_id::PeerId;

/// Ends the operations over a lost connection: revokes exposed memory, and begins no more reads.
/// Returns the own reads whose buffers the network may still write. They end when it does not.
pub(crate) fn on_conn_lost(
    ep: &mut Endpoint,
    conn: ConnId,
    peer: PeerId,
    sent_on_it: bool,
) -> Vec<u64> {
    if ep.rma_target.network.lanes.is_empty() {
        return Vec::new();
    }
    let (keys, ops) = ep.rma_target.network.note_lost(conn, peer, sent_on_it);
    keys.into_iter().for_each(|key| ep.links.sock.revoke(key));
    for op in &ops {
        if let Some(op) = ep.ops.get_mut(*op) {
            // The counts of its peer are those of later connections.
            (op.network, op.ring_rma) = (None, false);
        }
    }
    ep.rma_target.network.sweep();
    ops
}

/// Ends the reads of a closing endpoint, until `end_ns` of the monotonic clock. Then the endpoint
/// loses its network.
pub(crate) fn end_reads(ep: &mut Endpoint, end_ns: u64) {
    for lane in std::mem::take(&mut ep.rma_target.network.lanes) {
        for pull in &lane.pulls {
            for number in &pull.reads {
                network_read::finish(ep, lane.conn, *number, end_ns);
            }
            if let PullFor::Read { op } = pull.purpose {
                if let Some(op) = ep.ops.get_mut(op) {
                    op.network = None;
                }
            }
        }
    }
}

/// Ends the reads into the region with this key, which is being closed. The endpoint loses its
/// network if one has not ended.
pub(crate) fn end_reads_into(ep: &mut Endpoint, key: u64) {
    let reads: Vec<(ConnId, u64)> = ep.rma_target.network.reads_revoked(key).collect();
    for (conn, number) in &reads {
        network_read::finish(ep, *conn, *number, 0);
    }
    for pull in ep.rma_target.network.lanes.iter_mut().flat_map(|lane| &mut lane.pulls) {
        pull.reads.retain(|number| reads.iter().all(|(_, ended)| ended != number));
    }
}

#[cfg(test)]
mod tests {
    use libfabric_sys as fi;
    use scif::WireMemory;

    use super::*;
    use crate::engine::completions::completion;
    use crate::engine::protocols::network_rma;
    use crate::engine::tables::network_rma::{Pull, PullResult};
    use crate::engine::tables::op_table::{CompletionInfo, NetworkOp, OpKind, OutstandingOp};
    use crate::engine::tests::{Bed, buffer, connect};
    use crate::engine::types::args::RmaIov;
    use crate::engine::types::iov::Iov;

    #[test]
    fn a_read_of_a_lost_connection_ends_after_the_network() {
        let mut pair = Bed::pair();
        connect(&mut pair);
        let (peer, local) = (pair[0].peer(), buffer(vec![0; 64]));
        let info = CompletionInfo {
            op_kind: OpKind::Read,
            context: 9,
            flags: fi::FI_COMPLETION,
            tag: 0,
            len: 64,
        };
        let ep = &mut pair[0].ep;
        let rma = RmaIov { addr: 0, len: 64, key: 5 };
        let id = ep.ops.insert(OutstandingOp {
            network: Some(Box::new(NetworkOp { rma, data: None, is_reading: true })),
            ..OutstandingOp::new(peer, info, Iov::new(&[local.sub(0, 64).unwrap()]))
        });
        let conn = ep.peers.at(peer).tx.unwrap();
        let (from, to) = (WireMemory { addr: 0, key: 7 }, vec![local]);
        let mut pull = Pull::new(PullFor::Read { op: id }, from, to, PullResult::Good);
        pull.note_begun(1);
        ep.rma_target.network.lane(conn, peer).unwrap().1.pulls.push_back(pull);
        pair[0].run(|ep, env| completion::finish_op(ep, env, peer, id, 0));
        assert!(pair[0].completion().is_none(), "the buffer may be written");
        let ep = &mut pair[0].ep;
        assert_eq!(on_conn_lost(ep, conn, peer, true), [id]);
        assert!(ep.rma_target.network.is_filled_for(id));
        // No network knows the read.
        ep.rma_target.network.lanes[0].pulls[0].reads.clear();
        pair[0].run(network_rma::progress);
        assert!(pair[0].ep.rma_target.network.lanes.is_empty());
        pair[0].run(|ep, env| completion::finish_op(ep, env, peer, id, fi::FI_ECONNRESET));
        assert!(pair[0].completion().unwrap().is_err());
    }

    #[test]
    fn reads_of_a_closed_endpoint_and_region_are_forgotten() {
        let mut pair = Bed::pair();
        connect(&mut pair);
        let (peer, local) = (pair[0].peer(), buffer(vec![0; 64]));
        let ep = &mut pair[0].ep;
        let conn = ep.peers.at(peer).tx.unwrap();
        let (from, to) = (WireMemory { addr: 0, key: 7 }, vec![local]);
        let purpose = PullFor::Write { op: 1, key: 5, data: None };
        let mut pull = Pull::new(purpose, from, to, PullResult::Good);
        pull.note_begun(1);
        ep.rma_target.network.lane(conn, peer).unwrap().1.pulls.push_back(pull);
        assert!(ep.rma_target.network.revoke(5));
        end_reads_into(ep, 5);
        assert!(!ep.rma_target.network.is_revoking(5));
        end_reads(ep, 0);
        assert!(ep.rma_target.network.lanes.is_empty());
    }
}

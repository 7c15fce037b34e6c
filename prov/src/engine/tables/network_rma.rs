// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Large RMA between hosts: reads of peers' memory in progress, and own memory that peers read.
//!
//! Not here: the records, and the reads themselves (`protocols::network_rma`).

use std::collections::VecDeque;

use scif::{ConnId, WireMemory};
use scif_ring::copy::{Mem, total_len};

use crate::base::errno::Errno;
use crate::engine::types::peer_id::PeerId;

/// Maximum number of operations in progress over one connection, in each direction. A larger one
/// occupies more memory of both sides, a smaller one leaves the network idle.
pub(crate) const IN_PROGRESS_MAX: usize = 64;

/// Operation that a read of a peer's memory executes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PullFor {
    /// Write of the peer, with its number there, into the region with this key.
    Write { op: u64, key: u64, data: Option<u64> },
    /// Own read with this number.
    Read { op: u64 },
    /// Own read that has failed, and ends once its buffers are not written any more.
    LostRead { op: u64 },
}

/// Result of a read of a peer's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum PullResult {
    /// Complete, unless parts of it are in progress.
    Good,
    /// The network does not read it.
    Refused,
    /// The operation fails with this error.
    Failed(Errno),
}

/// Read of a peer's memory by the network.
#[derive(Debug)]
pub(crate) struct Pull {
    pub(crate) purpose: PullFor,
    pub(crate) from: WireMemory,
    /// Destination, and the number of its ranges for which a read was begun.
    pub(crate) to: Vec<Mem>,
    begun: usize,
    /// Offset of the next range in the source.
    offset: u64,
    /// Numbers of the reads that have begun.
    pub(crate) reads: Vec<u64>,
    pub(crate) result: PullResult,
    /// Whether a region of its memory is being closed.
    is_revoked: bool,
}

impl Pull {
    pub(crate) fn new(
        purpose: PullFor,
        from: WireMemory,
        to: Vec<Mem>,
        result: PullResult,
    ) -> Pull {
        let (begun, offset, reads) = (0, 0, Vec::new());
        Pull { purpose, from, to, begun, offset, reads, result, is_revoked: false }
    }

    pub(crate) fn len(&self) -> usize {
        total_len(&self.to)
    }

    /// Returns the next range to read and its source; `None` if no read has to begin.
    pub(crate) fn next_piece(&self) -> Option<(WireMemory, &Mem)> {
        let piece = self.to.get(self.begun).filter(|_| self.result == PullResult::Good)?;
        let addr = self.from.addr.wrapping_add(self.offset);
        Some((WireMemory { addr, ..self.from }, piece))
    }

    /// Notes that the read of the next range has begun.
    pub(crate) fn note_begun(&mut self, number: u64) {
        self.offset += self.to.get(self.begun).map_or(0, |piece| piece.len() as u64);
        self.begun += 1;
        self.reads.push(number);
    }

    /// Whether no read is in progress, and none has to begin.
    pub(crate) fn has_ended(&self) -> bool {
        self.reads.is_empty() && self.next_piece().is_none()
    }

    /// Whether this is a write into the region with that key.
    fn writes_to(&self, region: u64) -> bool {
        matches!(self.purpose, PullFor::Write { key, .. } if key == region)
    }

    /// Whether this write must follow another one, since both write to a byte.
    fn must_follow(&self, earlier: &Pull) -> bool {
        let is_write = |pull: &Pull| matches!(pull.purpose, PullFor::Write { .. });
        let end = |piece: &Mem| piece.addr().saturating_add(piece.len());
        let overlap = |a: &Mem, b: &Mem| a.addr() < end(b) && b.addr() < end(a);
        is_write(self)
            && is_write(earlier)
            && self.to.iter().any(|a| earlier.to.iter().any(|b| overlap(a, b)))
    }
}

/// Own memory that a peer reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Exposure {
    /// Key by which the network reads it.
    pub(crate) network_key: u64,
    /// Key of its region, and bytes.
    pub(crate) key: u64,
    pub(crate) len: usize,
    /// Whether the region is being closed.
    pub(crate) is_revoked: bool,
}

/// Operations over one connection.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) conn: ConnId,
    pub(crate) peer: PeerId,
    /// Reads of the peer's memory, in the order in which they end.
    pub(crate) pulls: VecDeque<Pull>,
    pub(crate) exposed: Vec<Exposure>,
    /// Whether writes are refused, until the peer sends one by the ring. It sends those that were
    /// refused before in their order.
    pub(crate) refuses: bool,
    /// Whether the connection has ended.
    pub(crate) is_lost: bool,
}

impl Lane {
    /// Whether the reads of pull number `at` may begin.
    pub(crate) fn may_begin(&self, at: usize) -> bool {
        let Some(pull) = self.pulls.get(at) else { return false };
        !self.pulls.iter().take(at).any(|earlier| pull.must_follow(earlier))
    }

    fn is_unused(&self) -> bool {
        self.pulls.is_empty() && self.exposed.is_empty() && (self.is_lost || !self.refuses)
    }
}

/// Large RMA between hosts of one endpoint.
#[derive(Debug, Default)]
pub(crate) struct NetworkRma {
    pub(crate) lanes: Vec<Lane>,
}

impl NetworkRma {
    /// Whether no memory of a peer is being read.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.lanes.is_empty() || self.lanes.iter().all(|lane| lane.pulls.is_empty())
    }

    /// Returns the operations over a connection, new or known, with their index.
    pub(crate) fn lane(&mut self, conn: ConnId, peer: PeerId) -> Option<(usize, &mut Lane)> {
        let known = self.lanes.iter().position(|lane| lane.conn == conn);
        let at = known.unwrap_or_else(|| {
            let (pulls, exposed) = (VecDeque::new(), Vec::new());
            self.lanes.push(Lane { conn, peer, pulls, exposed, refuses: false, is_lost: false });
            self.lanes.len() - 1
        });
        Some((at, self.lanes.get_mut(at)?))
    }

    /// Forgets connections without operations.
    pub(crate) fn sweep(&mut self) {
        self.lanes.retain(|lane| !lane.is_unused());
    }

    /// Notes that the peer of a connection writes by the ring.
    #[inline]
    pub(crate) fn note_ring_write(&mut self, conn: ConnId) {
        if !self.lanes.is_empty() {
            let lane = self.lanes.iter_mut().find(|lane| lane.conn == conn);
            lane.into_iter().for_each(|lane| lane.refuses = false);
            self.sweep();
        }
    }

    /// Whether the network may write for operations of a connection.
    pub(crate) fn is_filled_over(&self, conn: ConnId) -> bool {
        self.lanes.iter().any(|lane| lane.conn == conn && !lane.pulls.is_empty())
    }

    /// Whether the network may write into the buffers of own read `op`.
    pub(crate) fn is_filled_for(&self, op: u64) -> bool {
        let reads = |pull: &Pull| pull.purpose == PullFor::LostRead { op };
        self.lanes.iter().any(|lane| lane.pulls.iter().any(reads))
    }

    /// Whether operations with a peer are in progress.
    pub(crate) fn concerns(&self, peer: PeerId) -> bool {
        self.lanes.iter().any(|lane| lane.peer == peer)
    }

    /// Returns the peers of the operations, with repetitions.
    pub(crate) fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.lanes.iter().map(|lane| lane.peer)
    }

    /// Ends the operations of a lost connection, and own reads from `peer` if `sent_on_it`. Returns
    /// the keys of the exposed memory, and the own reads whose buffers may still be written.
    pub(crate) fn note_lost(
        &mut self,
        conn: ConnId,
        peer: PeerId,
        sent_on_it: bool,
    ) -> (Vec<u64>, Vec<u64>) {
        let (mut keys, mut ops) = (Vec::new(), Vec::new());
        for lane in self.lanes.iter_mut().filter(|lane| lane.peer == peer) {
            let is_lost = lane.conn == conn;
            if is_lost {
                lane.is_lost = true;
                keys.extend(lane.exposed.drain(..).map(|exposure| exposure.network_key));
            }
            for pull in &mut lane.pulls {
                match pull.purpose {
                    PullFor::Read { op } if is_lost || sent_on_it => {
                        pull.purpose = PullFor::LostRead { op };
                        ops.push(op);
                    }
                    PullFor::Write { .. } if !is_lost => continue,
                    _ => {}
                }
                // Nothing more of it begins.
                pull.result = PullResult::Refused;
            }
        }
        (keys, ops)
    }

    /// Ends the operations on a region that is being closed, as far as they have not begun. Returns
    /// whether others are in progress.
    pub(crate) fn revoke(&mut self, key: u64) -> bool {
        let mut is_any = false;
        for lane in &mut self.lanes {
            for exposure in lane.exposed.iter_mut().filter(|exposure| exposure.key == key) {
                exposure.is_revoked = true;
                is_any = true;
            }
            let of_key = |pull: &&mut Pull| pull.writes_to(key);
            for pull in lane.pulls.iter_mut().filter(of_key) {
                pull.is_revoked = true;
                pull.result = PullResult::Failed(libfabric_sys::FI_EINVAL);
                is_any = true;
            }
        }
        is_any
    }

    /// Whether operations on closing region `key` are in progress.
    pub(crate) fn is_revoking(&self, key: u64) -> bool {
        self.exposures_revoked(key).next().is_some() || self.reads_revoked(key).next().is_some()
    }

    /// Returns the connections whose peers read closing region `key`.
    pub(crate) fn exposures_revoked(&self, key: u64) -> impl Iterator<Item = ConnId> {
        let is_left = move |e: &Exposure| e.is_revoked && e.key == key;
        let left = move |lane: &&Lane| lane.exposed.iter().any(is_left);
        self.lanes.iter().filter(left).map(|lane| lane.conn)
    }

    /// Returns the reads into closing region `key`, each with its connection.
    pub(crate) fn reads_revoked(&self, key: u64) -> impl Iterator<Item = (ConnId, u64)> {
        let is_left = move |pull: &&Pull| pull.is_revoked && pull.writes_to(key);
        self.lanes.iter().flat_map(move |lane| {
            let left = lane.pulls.iter().filter(is_left);
            left.flat_map(|pull| pull.reads.iter().map(|read| (lane.conn, *read)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::buffer;

    const CONN: ConnId = ConnId { index: 1, generation: 1 };
    const FROM: WireMemory = WireMemory { addr: 100, key: 7 };

    fn pull(purpose: PullFor, to: &[(&Mem, usize, usize)]) -> Pull {
        let to = to.iter().map(|(mem, at, len)| mem.sub(*at, *len).unwrap()).collect();
        Pull::new(purpose, FROM, to, PullResult::Good)
    }

    const fn write(key: u64) -> PullFor {
        PullFor::Write { op: 1, key, data: None }
    }

    #[test]
    fn ranges_are_read_one_after_the_other_from_one_source() {
        let memory = buffer(vec![0; 64]);
        let mut pull = pull(write(5), &[(&memory, 0, 10), (&memory, 32, 20)]);
        let mut found = Vec::new();
        while let Some((from, to)) = pull.next_piece() {
            found.push((from.addr, from.key, to.len()));
            pull.note_begun(found.len() as u64);
        }
        assert_eq!(found, [(100, 7, 10), (110, 7, 20)]);
        assert!(!pull.has_ended() && pull.len() == 30);
        pull.reads.clear();
        assert!(pull.has_ended());
    }

    #[test]
    fn writes_to_the_same_bytes_follow_each_other() {
        let memory = buffer(vec![0; 64]);
        let mut rma = NetworkRma::default();
        let (_, lane) = rma.lane(CONN, PeerId::new(1)).unwrap();
        lane.pulls.push_back(pull(write(5), &[(&memory, 0, 10)]));
        lane.pulls.push_back(pull(write(6), &[(&memory, 10, 10)]));
        lane.pulls.push_back(pull(write(7), &[(&memory, 30, 1), (&memory, 19, 5)]));
        lane.pulls.push_back(pull(PullFor::Read { op: 1 }, &[(&memory, 0, 64)]));
        assert_eq!([0, 1, 2, 3, 4].map(|at| lane.may_begin(at)), [true, true, false, true, false]);
    }

    #[test]
    fn a_lost_connection_leaves_only_buffers_that_may_be_written() {
        let memory = buffer(vec![0; 64]);
        let (peer, other) = (PeerId::new(1), ConnId { index: 2, generation: 1 });
        let mut rma = NetworkRma::default();
        let (_, lane) = rma.lane(CONN, peer).unwrap();
        let exposure = Exposure { network_key: 9, key: 5, len: 64, is_revoked: false };
        lane.exposed.push(exposure);
        let mut begun = pull(write(5), &[(&memory, 0, 10)]);
        begun.note_begun(3);
        lane.pulls.push_back(begun);
        lane.pulls.push_back(pull(write(5), &[(&memory, 10, 10)]));
        let (_, lane) = rma.lane(other, peer).unwrap();
        lane.pulls.push_back(pull(write(5), &[(&memory, 20, 10)]));
        lane.pulls.push_back(pull(PullFor::Read { op: 4 }, &[(&memory, 40, 10)]));
        assert_eq!(rma.note_lost(CONN, peer, true), (vec![9], vec![4]));
        assert!(rma.is_filled_over(CONN) && rma.is_filled_for(4) && !rma.is_filled_for(5));
        let ended = |lane: &Lane| lane.pulls.iter().map(Pull::has_ended).collect::<Vec<_>>();
        assert_eq!(ended(&rma.lanes[0]), [false, true]);
        assert_eq!(ended(&rma.lanes[1]), [false, true]);
        rma.lanes[0].pulls.clear();
        rma.sweep();
        assert!(!rma.is_filled_over(CONN) && rma.is_filled_over(other) && rma.concerns(peer));
    }

    #[test]
    fn a_closing_region_waits_for_reads_in_progress() {
        let memory = buffer(vec![0; 64]);
        let mut rma = NetworkRma::default();
        let (_, lane) = rma.lane(CONN, PeerId::new(1)).unwrap();
        let exposure = Exposure { network_key: 9, key: 5, len: 64, is_revoked: false };
        lane.exposed.push(exposure);
        lane.pulls.push_back(pull(write(5), &[(&memory, 0, 10)]));
        assert!(!rma.revoke(6) && !rma.is_revoking(5) && rma.revoke(5));
        assert_eq!(rma.exposures_revoked(5).collect::<Vec<_>>(), [CONN]);
        assert_eq!(rma.reads_revoked(5).count(), 0, "none has begun");
        let lane = &mut rma.lanes[0];
        assert!(lane.pulls[0].has_ended());
        lane.exposed.clear();
        lane.pulls[0].reads.push(3);
        assert_eq!(rma.reads_revoked(5).collect::<Vec<_>>(), [(CONN, 3)]);
        rma.lanes[0].pulls.clear();
        assert!(!rma.is_revoking(5));
    }

    #[test]
    fn writes_are_refused_until_one_comes_by_the_ring() {
        let mut rma = NetworkRma::default();
        rma.lane(CONN, PeerId::new(1)).unwrap().1.refuses = true;
        rma.sweep();
        assert!(rma.lanes[0].refuses && rma.is_idle());
        rma.note_ring_write(CONN);
        assert!(rma.lanes.is_empty());
    }
}

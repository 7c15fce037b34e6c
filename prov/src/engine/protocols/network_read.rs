// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Payloads of large messages that are read from the sender's memory into the receive buffer: by
//! the engine of a network, or from a window over the calls of `scif.h`.
//!
//! Not here: the announcement (`send`), and the reply (`rendezvous`). A read that is refused, or
//! that fails, is replaced by fragments through the ring.

use scif::{ConnId, Connection, ReadBegun, ReadState, RmaMode, RmaWay, WireMemory};
use scif_ring::copy::Mem;

use crate::engine::endpoint::Endpoint;
use crate::engine::tables::incoming::RndvState;
use crate::engine::types::envelope::RecvTarget;
use crate::engine::types::rts::Rts;

/// Result of one step of a read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ReadStep {
    Waiting,
    Done,
    /// The payload must come another way.
    Failed,
}

/// Lets the peer of a connection read the payload of a message.
pub(crate) fn expose(conn: &mut Connection, payload: &Mem) -> Option<WireMemory> {
    conn.remote_reads()?.expose(payload)
}

/// Begins to read the payload of a message; `None` if it must come another way.
pub(crate) fn begin(
    ep: &mut Endpoint,
    rts: &Rts,
    target: &RecvTarget,
    want: usize,
) -> Option<RndvState> {
    let to = target.iov.contiguous()?.sub(0, want)?;
    let reads = ep.links.conn(rts.conn())?.remote_reads()?;
    let Some(from) = rts.network else {
        reads.prepare();
        return None;
    };
    match reads.read(from, &to) {
        ReadBegun::Reading(number) => Some(RndvState::Reading { number: Some(number) }),
        ReadBegun::Later => Some(RndvState::Reading { number: None }),
        ReadBegun::Refused => None,
    }
}

/// Advances the read of incoming message `index`.
pub(crate) fn step(ep: &mut Endpoint, index: u32) -> ReadStep {
    let step = advance(ep, index);
    let Some(m) = ep.rndv.incoming.get(index) else { return step };
    let (conn, want) = (m.conn(), m.want);
    let Some(c) = ep.links.sock.conn(conn) else { return step };
    match step {
        ReadStep::Waiting if c.remote_reads().is_some_and(|reads| !reads.need_owner()) => {
            // No descriptor reports its end.
            ep.throttle.more = true;
        }
        ReadStep::Done => match c.windows().map(|windows| windows.mode(RmaWay::Read, want)) {
            Some(RmaMode::Cpu) => ep.stats.windows.cpu.add(want),
            Some(RmaMode::Dma) => ep.stats.windows.dma.add(want),
            None => {}
        },
        ReadStep::Waiting | ReadStep::Failed => {}
    }
    step
}

fn advance(ep: &mut Endpoint, index: u32) -> ReadStep {
    let Some(m) = ep.rndv.incoming.get_mut(index) else { return ReadStep::Done };
    let RndvState::Reading { number } = &mut m.how else { return ReadStep::Failed };
    let reads = ep.links.sock.conn(m.rts.conn()).and_then(Connection::remote_reads);
    let Some(reads) = reads else { return ReadStep::Failed };
    let Some(begun) = *number else {
        let to = m.target.iov.contiguous().and_then(|to| to.sub(0, m.want));
        let (Some(from), Some(to)) = (m.rts.network, to) else { return ReadStep::Failed };
        return match reads.read(from, &to) {
            ReadBegun::Reading(begun) => {
                *number = Some(begun);
                ReadStep::Waiting
            }
            ReadBegun::Later => ReadStep::Waiting,
            ReadBegun::Refused => ReadStep::Failed,
        };
    };
    match reads.state(begun) {
        ReadState::Reading => ReadStep::Waiting,
        ReadState::Done => ReadStep::Done,
        ReadState::Failed => {
            // Its number is forgotten.
            *number = None;
            ReadStep::Failed
        }
    }
}

/// Returns whether a read may still write into its buffer.
pub(crate) fn is_writing(ep: &mut Endpoint, conn: ConnId, number: u64) -> bool {
    let reads = ep.links.conn(conn).and_then(Connection::remote_reads);
    reads.is_some_and(|reads| reads.state(number) == ReadState::Reading)
}

/// Waits for the end of a read, until `end_ns` of the monotonic clock. Then the endpoint loses its
/// network.
pub(crate) fn finish(ep: &mut Endpoint, conn: ConnId, number: u64, end_ns: u64) {
    if let Some(reads) = ep.links.conn(conn).and_then(Connection::remote_reads) {
        reads.finish(number, end_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{Bed, buffer, completed, head_of};
    use crate::engine::types::iov::Iov;
    use crate::engine::types::rts::NETWORK_KEY;
    use crate::engine::types::wire::Words;

    #[test]
    fn memory_of_a_peer_of_this_host_is_not_read_by_a_network() {
        let mut pair = Bed::pair();
        let payload = buffer(vec![1; 8]);
        pair[1].recv(&payload);
        pair[0].send(&payload).unwrap();
        completed(&mut pair, 1);
        let peer = pair[0].peer();
        let ep = &mut pair[0].ep;
        let conn = ep.peers.at(peer).tx.unwrap();
        assert_eq!(expose(ep.links.conn(conn).unwrap(), &payload), None);
        // The peer claims it.
        let head = head_of(&[7, 8, payload.addr() as u64, NETWORK_KEY, 5]);
        let rts = Rts::decode(conn, &mut Words::new(&head, 40), Mem::empty()).unwrap();
        let target = RecvTarget::new(false, Iov::new(&[payload]), 8, 0, 0);
        assert!(rts.network.is_some() && begin(ep, &rts, &target, 8).is_none());
        assert!(!is_writing(ep, conn, 1));
    }
}

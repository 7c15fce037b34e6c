// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Parts of a cooperative copy that are claimed from the front: by the sender of a message, and by
//! the target of RMA.
//!
//! Not here: parts from the back, whose side ends the operation (`tables::incoming`, `coop_rma`).

use scif::{AccessError, Connection, RemoteMem};
use scif_ring::copy::Mem;
use scif_ring::{Claim, ClaimShare};

use crate::engine::types::stats::Stats;

/// Copy of one payload, as the side that claims from the front sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrontCopy {
    /// Generation of the claim block.
    pub(crate) generation: u32,
    /// Bytes of each part but the last, and the number of parts.
    pub(crate) part: usize,
    pub(crate) parts: u32,
    /// Payload on this side, and its address at the peer.
    pub(crate) local: Mem,
    pub(crate) remote: u64,
    /// Whether the payload is written to the peer. Otherwise it is read.
    pub(crate) write: bool,
    /// Largest claim in parts, and the share of the rest that it takes.
    pub(crate) limits: (u32, ClaimShare),
}

/// Copies parts until none is left.
///
/// # Errors
/// The error of the kernel. The peer then copies the rest.
pub(crate) fn copy_front(
    conn: &mut Connection,
    claim: &Claim,
    copy: &FrontCopy,
    stats: &mut Stats,
) -> Result<(), AccessError> {
    let (most, share) = copy.limits;
    // Bounds the work that a malicious peer can cause in one call.
    let mut left = copy.parts;
    while left > 0 {
        let Some(taken) = claim.claim_front(copy.generation, copy.parts, most, share) else {
            break;
        };
        let (off, count) = (taken.start as usize * copy.part, taken.end - taken.start);
        left = left.saturating_sub(count);
        let len = (taken.len() * copy.part).min(copy.local.len().saturating_sub(off));
        let local = copy.local.sub(off, len).unwrap_or(Mem::empty());
        let remote = RemoteMem { addr: copy.remote.wrapping_add(off as u64), len: len as u64 };
        let memory = conn.memory();
        let copied = if copy.write {
            memory.write(&[local], &[remote])
        } else {
            memory.read(&[local], &[remote])
        };
        claim.complete_front(count, copied.is_ok());
        // The peer may sleep until the last part is in place.
        conn.notify();
        copied?;
        stats.coop_copy.add(len);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{Bed, buffer, bytes_of, connect};

    #[test]
    fn all_unclaimed_parts_are_copied_in_both_directions() {
        let mut pair = Bed::pair();
        connect(&mut pair);
        let peer = pair[0].peer();
        let there = buffer(vec![1; 10]);
        for (write, expected) in [(false, [1; 10]), (true, [2; 10])] {
            let local = buffer(vec![2; 10]);
            pair[0].run(|ep, _| {
                let conn = ep.links.conn(ep.peers.at(peer).tx.unwrap()).unwrap();
                let claim = conn.tx_claim(0);
                claim.reset(1);
                let remote = there.addr() as u64;
                let limits = (1, ClaimShare::Half);
                let copy =
                    FrontCopy { generation: 1, part: 4, parts: 3, local, remote, write, limits };
                copy_front(conn, &claim, &copy, &mut ep.stats).unwrap();
                assert_eq!((claim.open_parts(), ep.stats.coop_copy.ops % 3), (0, 0));
                assert!(claim.claim_back(1, 3, 1, ClaimShare::All).is_none());
            });
            assert_eq!(bytes_of(&local), if write { [2; 10] } else { expected });
            assert_eq!(bytes_of(&there), expected, "written: {write}");
        }
    }
}

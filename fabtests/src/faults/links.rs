// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! State that one rank of the storm keeps of one peer, and names as text.

use std::sync::Arc;

use scif_fabtests::fi::{Buf, Ep};
use scif_fabtests::harness::Rng;

use crate::net::Kind;
use scif_fabtests::payload::{Head, RankId, SEQUENCES};

/// Maximum outstanding messages of each class in one direction; the last class are
/// acknowledgements.
pub(crate) const WINDOW: [usize; 4] = [4, 2, 1, 7];

/// Nanoseconds between two polls that [`Link::polls`] counts, more than between two liveness checks
/// of the provider.
const POLL_NS: u64 = 10_000_000;

/// Whether the two ranks of a pair never send to each other: only their receives can show that the
/// other has died. Both draw the same from the seed.
pub(crate) fn is_silent(seed: u64, kind: Kind, a: RankId, b: RankId) -> bool {
    let word = |id: RankId| u64::from(id.slot) << 16 | u64::from(id.life);
    let (low, high) = (word(a).min(word(b)), word(a).max(word(b)));
    kind == Kind::Rdm && Rng::new(seed ^ low << 40 ^ high << 8).one_in(6)
}

/// Kind of an outstanding operation; RMA holds the head of the bytes that it writes or expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    Send,
    /// Receive, with the sequence number of the message that it is to match.
    Recv(u16),
    Write(Head),
    Read(Head),
    Atomic,
}

/// One outstanding operation.
pub(crate) struct Op {
    pub(crate) peer: RankId,
    pub(crate) kind: OpKind,
    pub(crate) class: usize,
    pub(crate) buf: Buf,
    pub(crate) posted: u64,
}

/// Events of a link that have happened at least once.
#[derive(Default)]
pub(crate) struct History {
    /// Whether an operation with the peer has succeeded.
    pub(crate) met: bool,
    /// Whether an operation other than a receive was posted.
    pub(crate) called: bool,
    /// Whether messages have arrived.
    pub(crate) started: bool,
}

/// Restrictions of a link.
#[derive(Default)]
pub(crate) struct Restrictions {
    pub(crate) broken: bool,
    /// Whether a receive took a message of another incarnation at the same address, so that
    /// sequence numbers no longer match.
    pub(crate) readdressed: bool,
    /// Whether nothing is sent to the peer, see [`is_silent`].
    pub(crate) silent: bool,
}

/// State of one peer, as this rank sees it.
#[derive(Default)]
pub(crate) struct Link {
    pub(crate) ep: Option<Arc<Ep>>,
    pub(crate) addr: u64,
    pub(crate) name: Vec<u8>,
    pub(crate) remote: Option<(u64, u64)>,
    pub(crate) ready: bool,
    pub(crate) gone: Option<u64>,
    /// For each class: sequence numbers sent and expected, send credits, and posted receives.
    pub(crate) out: [u16; 4],
    pub(crate) next: [u16; 4],
    pub(crate) credit: [usize; 4],
    pub(crate) posted: [usize; 4],
    pub(crate) acks: Vec<u8>,
    pub(crate) history: History,
    pub(crate) limits: Restrictions,
    /// Head of the written bytes that are to be read back.
    pub(crate) written: Option<Head>,
    pub(crate) busy: bool,
    pub(crate) counting: bool,
    pub(crate) counted: Option<u64>,
    pub(crate) open: usize,
    /// Number of polls with posted receives before the death, at least [`POLL_NS`] apart.
    pub(crate) polls: u32,
    polled_ns: u64,
}

impl Link {
    pub(crate) fn unconnected() -> Link {
        Link { credit: WINDOW, ..Link::default() }
    }

    /// Counts a poll at `now_ns`.
    pub(crate) fn count_poll(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.polled_ns) >= POLL_NS {
            self.polled_ns = now_ns;
            self.polls += 1;
        }
    }

    pub(crate) fn is(&self, fid: usize) -> bool {
        self.ep.as_ref().is_some_and(|ep| ep.address() == Ok(fid))
    }

    pub(crate) fn count_in(&mut self, class: usize) {
        if let (Some(next), Some(posted)) = (self.next.get_mut(class), self.posted.get_mut(class)) {
            *next = (*next + 1) % SEQUENCES;
            *posted += 1;
        }
    }

    pub(crate) fn count_out(&mut self, class: usize) {
        if let (Some(seq), Some(credit)) = (self.out.get_mut(class), self.credit.get_mut(class)) {
            *seq = (*seq + 1) % SEQUENCES;
            *credit -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ranks_of_a_pair_draw_the_same() {
        let rank = |slot, life| RankId { slot, life };
        let mut silent = 0;
        for life in 0..600 {
            let (a, b) = (rank(0, 0), rank(3, life));
            let drawn = is_silent(5, Kind::Rdm, a, b);
            assert_eq!(drawn, is_silent(5, Kind::Rdm, b, a));
            assert!(!is_silent(5, Kind::Msg, a, b));
            silent += usize::from(drawn);
        }
        assert!((50..200).contains(&silent), "{silent} of 600");
    }
}

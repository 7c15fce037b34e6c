// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Short poll for one-sided records: executes posted writes and short atomics of peers, and
//! completes own ones. All other work is left to a full poll (`progress`).

use crate::engine::endpoint::Endpoint;
use crate::engine::fast_path;
use crate::engine::parts::Env;
use crate::engine::protocols::{atomic_inline, posted_records};

/// Result of a short poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    /// There was nothing to do.
    Nothing,
    /// One-sided operations were executed or completed.
    OneSided,
    /// A full poll is due.
    Due,
}

/// Polls the rings, and handles one-sided records and posted writes.
#[inline]
pub(crate) fn poll(ep: &mut Endpoint, env: &mut Env<'_>) -> Polled {
    if ep.links.is_clock_due(ep.links.polls.wrapping_add(1))
        || ep.links.armed
        || ep.links.rx_closed
        || !ep.rndv.is_idle()
        || !ep.rma_target.network.is_idle()
        || ep.links.sock.bell().any()
    {
        return Polled::Due;
    }
    ep.links.polls = ep.links.polls.wrapping_add(1);
    let mut handled = 0;
    for at in 0..ep.links.active.len() {
        let Some(link) = ep.links.poll_ready(at) else { continue };
        let Some(count) = fast_path::execute_front(ep, env, link) else { return Polled::Due };
        handled += count;
        if let Some(link) = ep.links.active.get_mut(at) {
            link.empty = u32::from(count == 0);
        }
    }
    if !ep.rma_target.done.is_empty() {
        atomic_inline::progress(ep);
    }
    ep.throttle.more = handled > 1;
    let waiting = ep.peers.busy.len();
    if !complete(ep, env) {
        return Polled::Due;
    }
    ep.recv.note_cq(&ep.cfg, env.cqs);
    if handled > 0 || ep.peers.busy.len() < waiting { Polled::OneSided } else { Polled::Nothing }
}

/// Completes the posted writes that their targets have executed. Returns false if other work for a
/// peer is pending.
#[inline]
fn complete(ep: &mut Endpoint, env: &mut Env<'_>) -> bool {
    let mut at = 0;
    while let Some(peer) = ep.peers.busy.get(at).copied() {
        let p = ep.peers.at(peer);
        if !p.queue.is_idle() || p.rma.posted.is_empty() {
            return false;
        }
        // For unreported writes alone, only full polls load the target's progress. The target then
        // keeps that cache line.
        if p.rma.posted.writes.has_reported() {
            posted_records::progress(ep, env, peer);
        }
        let p = ep.peers.at(peer);
        if p.rma.posted.is_empty() && p.queue.is_idle() {
            ep.peers.unmark_busy(at);
        } else {
            at += 1;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use libfabric_sys as fi;
    use scif_ring::copy::Mem;

    use super::*;
    use crate::base::atomic_ops::element::AtomicKind;
    use crate::base::env::RmaPath;
    use crate::engine::channel::link_set::TICK_POLLS;
    use crate::engine::progress;
    use crate::engine::protocols::posted_write;
    use crate::engine::tests::{Bed, buffer, bytes_of, completed, connect, sum_args};
    use crate::engine::types::args::{AtomicArgs, RmaArgs, RmaIov};

    /// Returns connected endpoints, of which both have memory and post writes.
    fn bed() -> ([Bed; 2], [Mem; 2]) {
        let mut pair = Bed::pair();
        let memory = [buffer(vec![0; 64]), buffer(vec![0; 64])];
        for (bed, memory) in pair.iter_mut().zip(&memory) {
            bed.register(&[memory.sub(0, 64).unwrap()]);
            bed.ep.cfg.rma_path = RmaPath::Ring;
        }
        connect(&mut pair);
        (pair, memory)
    }

    fn write(bed: &mut Bed, byte: u8, flags: u64) {
        let (iov, rma) = ([buffer(vec![byte; 8])], [RmaIov { addr: 0, len: 8, key: 5 }]);
        let args =
            RmaArgs { write: true, iov: &iov, rma: &rma, dest: 0, data: None, context: 3, flags };
        bed.run(|ep, env| posted_write::post(ep, env, &args)).unwrap();
    }

    /// Makes full polls until the next `polls` ones need no timed work.
    fn skip_timed_work(bed: &mut Bed, polls: u32) {
        while (1..=polls).any(|n| bed.ep.links.is_clock_due(bed.ep.links.polls.wrapping_add(n))) {
            bed.run(progress::progress);
        }
    }

    #[test]
    fn writes_of_both_directions_need_no_full_poll() {
        let (mut pair, memory) = bed();
        for byte in 1..=3 {
            skip_timed_work(&mut pair[1], 2);
            write(&mut pair[0], byte, fi::FI_COMPLETION);
            assert_eq!(pair[1].run(poll), Polled::OneSided);
            assert_eq!(bytes_of(&memory[1])[..9], [[byte; 8].as_slice(), &[0]].concat());
            assert_eq!(pair[1].run(poll), Polled::Nothing);
            skip_timed_work(&mut pair[0], 0);
            assert!(pair[0].completion().is_none(), "not looked for yet");
            if !pair[0].ep.links.is_clock_due(pair[0].ep.links.polls.wrapping_add(1)) {
                assert_eq!(pair[0].run(poll), Polled::OneSided);
                assert!(pair[0].ep.peers.busy.is_empty());
            }
            assert_eq!(completed(&mut pair, 0).context, 3);
        }
    }

    #[test]
    fn messages_are_left_to_a_full_poll() {
        let (mut pair, memory) = bed();
        pair[1].recv(&buffer(vec![0; 8]));
        skip_timed_work(&mut pair[1], 2);
        write(&mut pair[0], 7, 0);
        pair[0].send(&buffer(vec![1; 8])).unwrap();
        assert_eq!(pair[1].run(poll), Polled::OneSided);
        assert_eq!(bytes_of(&memory[1])[0], 7);
        assert_eq!(pair[1].run(poll), Polled::Due);
        assert!(pair[1].completion().is_none());
        assert_eq!(completed(&mut pair, 1).len, 8);
    }

    #[test]
    fn unreported_writes_leave_the_polls_short() {
        let (mut pair, _memory) = bed();
        let peer = pair[0].peer();
        write(&mut pair[0], 1, 0);
        assert!(pair[0].ep.is_quiescent() && !pair[0].ep.peers.busy.is_empty());
        write(&mut pair[0], 2, fi::FI_COMPLETION);
        assert!(!pair[0].ep.is_quiescent());
        pair[1].run(progress::progress);
        let _reported = completed(&mut pair, 0);
        write(&mut pair[0], 3, 0);
        pair[1].run(progress::progress);
        for _ in 0..=8 * TICK_POLLS {
            if pair[0].run(poll) == Polled::Due {
                pair[0].run(progress::progress);
            }
        }
        let peers = &pair[0].ep.peers;
        assert!(peers.busy.is_empty() && peers.at(peer).rma.posted.is_empty());
        assert!(pair[0].completion().is_none());
    }

    #[test]
    fn a_fetching_atomic_needs_no_full_poll_on_either_side() {
        let (mut pair, memory) = bed();
        let (operand, result) = ([buffer(vec![3; 8])], [buffer(vec![0; 8])]);
        let rma = [RmaIov { addr: 8, len: 8, key: 5 }];
        let args = AtomicArgs {
            kind: AtomicKind::Fetch,
            datatype: fi::FI_UINT8,
            result: &result,
            flags: fi::FI_COMPLETION,
            ..sum_args(&operand, &rma)
        };
        let peer = pair[0].peer();
        for before in [0, 3] {
            pair.iter_mut().for_each(|bed| skip_timed_work(bed, 1));
            assert!(pair[0].run(|ep, env| atomic_inline::try_inline(ep, env, peer, &args)));
            assert_eq!(pair[1].run(poll), Polled::OneSided);
            assert_eq!(bytes_of(&memory[1])[8..16], [before + 3; 8]);
            assert_eq!(pair[0].run(poll), Polled::OneSided);
            assert_eq!(pair[0].completion().unwrap().unwrap().context, 4);
            assert_eq!(bytes_of(&result[0])[..8], [before; 8]);
        }
    }

    #[test]
    fn executed_sums_are_reported_by_short_polls() {
        let (mut pair, memory) = bed();
        let (operand, rma) = ([buffer(vec![1; 8])], [RmaIov { addr: 0, len: 8, key: 5 }]);
        let args = AtomicArgs { datatype: fi::FI_UINT8, ..sum_args(&operand, &rma) };
        pair.iter_mut().for_each(|bed| skip_timed_work(bed, 2));
        let peer = pair[0].peer();
        assert!(pair[0].run(|ep, env| atomic_inline::try_inline(ep, env, peer, &args)));
        assert_eq!(pair[0].ep.peers.at(peer).rma.outstanding, 1);
        assert_eq!(pair[1].run(poll), Polled::OneSided);
        assert_eq!(bytes_of(&memory[1])[..9], [1, 1, 1, 1, 1, 1, 1, 1, 0]);
        assert!(pair[1].ep.is_quiescent(), "reported");
        assert_eq!(pair[0].run(poll), Polled::OneSided);
        assert_eq!(pair[0].ep.peers.at(peer).rma.outstanding, 0);
    }
}

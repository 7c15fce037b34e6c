// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! RMA on windows of the peer's keys, over the calls of `scif.h`.
//!
//! An operation executed by the CPU is complete at its return. One executed by DMA stays at the
//! head of the pending operations until a fence reports its end, so later operations keep their
//! order. RMAs to other memory posted meanwhile start at once, also by DMA. One fence follows all
//! RMAs that were started since the last progress.
//!
//! Not here: the protocol without windows (`rma`), and the windows themselves (crate `scif`).

use libfabric_sys as fi;
use scif::{ConnId, KeyLookup, KeyWindow, PeerWindows, RemoteMem, RmaMode, RmaWay, WindowError};
use scif_ring::copy::{Mem, total_len};

use crate::base::errno::Errno;
use crate::engine::endpoint::Endpoint;
use crate::engine::protocols::rma_target::{place, right};
use crate::engine::tables::pending::PendingOp;
use crate::engine::types::args::{RmaArgs, RmaIov};
use crate::engine::types::iov::sub_iov;
use crate::engine::types::peer_id::PeerId;

/// Reason why an operation was not direct.
pub(crate) enum NotDirect {
    /// The target has to execute it.
    Ring,
    /// The peer has not described the window of a key yet.
    Later,
    /// DMA executes it. It is complete once this number of DMA operations have ended.
    Started(u64),
    /// The target has not finished its part of a cooperative copy. It has to execute the operation
    /// again, which frees the claim block.
    Unfinished((u8, u32)),
    /// The operation is impossible.
    Failed(Errno),
}

/// Direction of an operation, and whether it must end before the return.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RmaKind {
    pub(crate) write: bool,
    /// Whether the local buffers may change after the return.
    pub(crate) inject: bool,
}

/// Whether an operation must follow messages that a relay may still carry: it then takes the same
/// way.
pub(crate) fn follows_relay(ep: &mut Endpoint, peer: PeerId, write: bool, flags: u64) -> bool {
    let order = if write { fi::FI_ORDER_WAS } else { fi::FI_ORDER_RAS };
    if ep.cfg.msg_order & order == 0 && flags & fi::FI_FENCE == 0 {
        return false;
    }
    let conn = ep.peers.at(peer).tx;
    conn.and_then(|conn| ep.links.conn(conn)).is_some_and(|c| !c.is_consumed_by_peer())
}

/// State of an operation that DMA executes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DmaState {
    Complete,
    InProgress,
    /// No end will be reported: the target has to execute it.
    Lost,
}

/// Executes an operation on windows, or starts DMA.
pub(crate) fn reach(
    ep: &mut Endpoint,
    conn: ConnId,
    kind: RmaKind,
    iov: &[Mem],
    rma: &[RmaIov],
) -> Result<(), NotDirect> {
    let len = total_len(iov);
    let windows = ep.links.conn(conn).and_then(|c| c.windows()).ok_or(NotDirect::Ring)?;
    let is_cpu = kind.inject || !is_one_part(iov, rma);
    let mode = if is_cpu { RmaMode::Cpu } else { windows.mode(way(kind.write), len) };
    match run(windows, (kind.write, mode), iov, rma) {
        Ok(()) if mode == RmaMode::Cpu => {
            ep.stats.windows.cpu.add(len);
            Ok(())
        }
        Ok(()) => {
            let started = windows.started();
            ep.stats.windows.dma.add(len);
            Err(NotDirect::Started(started))
        }
        Err(why) => {
            ep.stats.denials.fallbacks += u64::from(matches!(why, NotDirect::Ring));
            Err(why)
        }
    }
}

/// Whether one RMA executes an operation. DMA executes no other: a later part could fail while
/// earlier ones still use the buffers.
fn is_one_part(iov: &[Mem], rma: &[RmaIov]) -> bool {
    iov.len() == 1 && rma.len() == 1
}

fn way(write: bool) -> RmaWay {
    if write { RmaWay::Write } else { RmaWay::Read }
}

/// Starts the copies of all segments.
fn run(
    windows: &mut dyn PeerWindows,
    (write, mode): (bool, RmaMode),
    iov: &[Mem],
    rma: &[RmaIov],
) -> Result<(), NotDirect> {
    let way = way(write);
    if let ([_], [segment]) = (iov, rma) {
        let (window, remote) = find(windows, write, segment)?;
        return windows.start(way, iov, &window, &remote, mode).map_err(not_started);
    }
    let mut ranges = Vec::with_capacity(rma.len());
    for segment in rma {
        ranges.push(find(windows, write, segment)?);
    }
    let mut offset = 0;
    for ((window, remote), segment) in ranges.iter().zip(rma) {
        let local = sub_iov(iov, offset, segment.len);
        windows.start(way, &local, window, remote, mode).map_err(not_started)?;
        offset += segment.len;
    }
    Ok(())
}

/// Returns the window of a segment, and its range.
fn find(
    windows: &mut dyn PeerWindows,
    write: bool,
    segment: &RmaIov,
) -> Result<(KeyWindow, RemoteMem), NotDirect> {
    let window = match windows.find(segment.key) {
        KeyLookup::Known(window) => window,
        KeyLookup::Queried => return Err(NotDirect::Later),
        KeyLookup::Absent => return Err(NotDirect::Ring),
    };
    // The description may be that of an earlier key. The target decides in the end.
    let remote = place(&window.entry, segment, right(write)).map_err(|_| NotDirect::Ring)?;
    Ok((window, remote))
}

fn not_started(error: WindowError) -> NotDirect {
    match error {
        WindowError::Stale => NotDirect::Later,
        WindowError::Failed(failure) => {
            log::debug!(target: "ep_data", "RMA on a window: {failure}; left to the target");
            NotDirect::Ring
        }
    }
}

/// Whether an operation may start behind those that DMA executes, before they have ended. Its
/// memory must differ from theirs: `scif_writeto` and `scif_readfrom` promise no order.
pub(crate) fn may_follow(ep: &Endpoint, peer: PeerId, a: &RmaArgs<'_>) -> bool {
    let queue = &ep.peers.at(peer).queue;
    let is_dma = |op: &PendingOp| match op {
        PendingOp::Rma(op) => {
            let read_only = !op.write && !a.write;
            op.dma.is_some() && (read_only || are_disjoint(&op.rma, a.rma))
        }
        _ => false,
    };
    a.flags & (fi::FI_FENCE | fi::FI_INJECT) == 0
        && is_one_part(a.iov, a.rma)
        && queue.control.is_empty()
        && !queue.pending.is_empty()
        && queue.pending.iter().all(is_dma)
}

/// Whether two lists of ranges at the target share no byte. Two keys may name the same memory.
fn are_disjoint(ranges: &[RmaIov], others: &[RmaIov]) -> bool {
    let end = |range: &RmaIov| range.addr.saturating_add(range.len as u64);
    let differ = |a: &RmaIov, b: &RmaIov| a.key == b.key && (end(a) <= b.addr || end(b) <= a.addr);
    ranges.iter().all(|a| others.iter().all(|b| differ(a, b)))
}

/// Starts an operation behind those that DMA executes. Returns its number, or `None` if it has to
/// wait for them.
pub(crate) fn follow(ep: &mut Endpoint, peer: PeerId, a: &RmaArgs<'_>) -> Option<u64> {
    let conn = ep.peers.at(peer).tx?;
    let windows = ep.links.conn(conn)?.windows()?;
    run(windows, (a.write, RmaMode::Dma), a.iov, a.rma).ok()?;
    let started = windows.started();
    ep.stats.windows.dma.add(total_len(a.iov));
    Some(started)
}

/// Returns the state of the operation with a number, and orders a fence where one is due.
pub(crate) fn state_of(ep: &mut Endpoint, conn: ConnId, number: u64) -> DmaState {
    let Some(windows) = ep.links.conn(conn).and_then(|c| c.windows()) else {
        return DmaState::Lost;
    };
    if windows.ended() >= number {
        return DmaState::Complete;
    }
    match windows.fence() {
        Ok(()) if windows.ended() >= number => DmaState::Complete,
        Ok(()) => DmaState::InProgress,
        Err(_) if windows.ended() >= number => DmaState::Complete,
        Err(error) => {
            log::debug!(target: "ep_data", "fence of RMA: {error:?}; the target executes it");
            DmaState::Lost
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use scif_ring::KeyEntry;

    use super::*;
    use crate::engine::tests::buffer;

    /// Windows that note the RMAs.
    #[derive(Debug, Default)]
    struct NotedWindows {
        known: HashMap<u64, KeyLookup>,
        refusal: Option<WindowError>,
        noted: Vec<(RmaWay, usize, u64, RmaMode)>,
    }

    impl PeerWindows for NotedWindows {
        fn find(&mut self, key: u64) -> KeyLookup {
            self.known.get(&key).copied().unwrap_or(KeyLookup::Absent)
        }

        fn mode(&self, _: RmaWay, _: usize) -> RmaMode {
            RmaMode::Cpu
        }

        fn start(
            &mut self,
            way: RmaWay,
            local: &[Mem],
            _: &KeyWindow,
            remote: &RemoteMem,
            mode: RmaMode,
        ) -> Result<(), WindowError> {
            self.noted.push((way, total_len(local), remote.addr, mode));
            self.refusal.map_or(Ok(()), Err)
        }

        fn started(&self) -> u64 {
            self.noted.len() as u64
        }

        fn ended(&self) -> u64 {
            0
        }

        fn fence(&mut self) -> Result<(), WindowError> {
            Ok(())
        }

        fn notify(&self) -> bool {
            false
        }
    }

    fn windows() -> NotedWindows {
        let window = |key, access| {
            let entry = KeyEntry { key, base: 4096 * key, len: 64, access, ..KeyEntry::default() };
            KeyLookup::Known(KeyWindow { entry, begin: 4096 * key, len: 4096, offset: 0 })
        };
        let (read, write) = (fi::FI_REMOTE_READ, fi::FI_REMOTE_WRITE);
        let known = [(1, window(1, read | write)), (2, window(2, read)), (3, KeyLookup::Queried)];
        NotedWindows { known: HashMap::from(known), ..NotedWindows::default() }
    }

    fn segment(key: u64, len: usize) -> RmaIov {
        RmaIov { addr: 8, len, key }
    }

    #[test]
    fn segments_are_found_before_the_first_byte_moves() {
        let iov = [buffer(vec![0; 24])];
        let outcome = |windows: &mut NotedWindows, write, keys: [u64; 2]| {
            let rma = [segment(keys[0], 16), segment(keys[1], 8)];
            run(windows, (write, RmaMode::Dma), &iov, &rma)
        };
        let mut all = windows();
        assert!(outcome(&mut all, false, [1, 2]).is_ok());
        let expected =
            [(RmaWay::Read, 16, 4104, RmaMode::Dma), (RmaWay::Read, 8, 8200, RmaMode::Dma)];
        assert_eq!(all.noted, expected);
        for (write, keys) in [(true, [1, 2]), (false, [1, 4])] {
            let mut none = windows();
            assert!(matches!(outcome(&mut none, write, keys), Err(NotDirect::Ring)));
            assert!(none.noted.is_empty(), "{keys:?}");
        }
        let mut none = windows();
        assert!(matches!(outcome(&mut none, false, [1, 3]), Err(NotDirect::Later)));
        assert!(none.noted.is_empty());
    }

    #[test]
    fn an_operation_of_several_parts_is_not_executed_by_dma() {
        let parts = [buffer(vec![0; 8]), buffer(vec![0; 8])];
        let segments = [segment(1, 8), segment(1, 8)];
        assert!(is_one_part(&parts[..1], &segments[..1]));
        for (iov, rma) in [(2, 1), (1, 2), (2, 2)] {
            assert!(!is_one_part(&parts[..iov], &segments[..rma]), "{iov} and {rma}");
        }
    }

    #[test]
    fn a_removed_window_is_searched_again() {
        let (iov, rma) = ([buffer(vec![0; 8])], [segment(1, 8)]);
        let attempt = |refusal| {
            let mut windows = NotedWindows { refusal: Some(refusal), ..windows() };
            run(&mut windows, (true, RmaMode::Cpu), &iov, &rma)
        };
        assert!(matches!(attempt(WindowError::Stale), Err(NotDirect::Later)));
        let failed = WindowError::Failed(scif::Failure::Broken);
        assert!(matches!(attempt(failed), Err(NotDirect::Ring)));
    }

    #[test]
    fn ranges_of_other_keys_may_be_the_same_memory() {
        let at = |addr, len, key| RmaIov { addr, len, key };
        assert!(are_disjoint(&[at(0, 8, 1)], &[at(8, 8, 1), at(16, 0, 1)]));
        for other in [at(7, 8, 1), at(0, 1, 1), at(100, 8, 2), at(u64::MAX, 1, 2)] {
            assert!(!are_disjoint(&[at(0, 8, 1)], &[other]), "{other:?}");
        }
    }
}

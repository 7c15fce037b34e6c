// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Posted reads, as initiator: short reads that a polling target executes from its ring, without a
//! system call.
//!
//! The target takes the bytes in the order of the ring, and its reply ends the read. If it is
//! silent, reads are withdrawn like writes, and this side executes them directly.
//!
//! Not here: withdrawals (`posted_records`), the reply (`rma`), and the target
//! (`posted_read_target`).

use libfabric_sys as fi;
use scif::Connection;
use scif::trace::{EventKind, TraceEvent};

use crate::base::env::RmaPath;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::protocols::key_maps::{self, UsePath};
use crate::engine::protocols::posted_records::{
    await_space, is_service_due, progress, push_record, serve, wait_for,
};
use crate::engine::tables::op_table::{CompletionInfo, FLAG_READ, OpKind, OutstandingOp};
use crate::engine::tables::peer::POSTED_READ_WINDOW;
use crate::engine::tables::posted_writes::Posting;
use crate::engine::types::args::RmaArgs;
use crate::engine::types::iov::Iov;
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::wire;

/// Largest read in bytes that is posted. Longer ones gain little, since the bytes are copied twice.
const READ_MAX: usize = 4096;

/// Posts a read, unless it has to take another path.
pub(crate) fn try_post(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    a: &RmaArgs<'_>,
) -> Posting {
    let ([segment], [local]) = (a.rma, a.iov) else { return Posting::Untouched };
    let len = segment.len;
    if len == 0 || len > READ_MAX || local.len() != len || a.flags & fi::FI_FENCE != 0 {
        return Posting::Untouched;
    }
    let p = ep.peers.at_mut(peer);
    // Operations that the target has to execute precede this one in the ring.
    let is_next = p.queue.is_quiet() && p.rma.outstanding == 0 && !p.over_reply_limit();
    let Some(conn) = p.tx.filter(|_| is_next) else { return Posting::Untouched };
    let Some(c) = ep.links.conn(conn) else { return Posting::Untouched };
    let produced = c.tx().produced();
    let by_ring = p.rma.posted.take_ring(|| c.polled_ns()) || ep.cfg.rma_path == RmaPath::Ring;
    if p.rma.posted.is_poll_due(produced) || !by_ring && is_service_due(&ep.stats) {
        serve(ep, env, conn, peer);
        progress(ep, env, peer);
    }
    if !by_ring {
        return Posting::Untouched;
    }
    let has_credit =
        |ep: &mut Endpoint| ep.peers.at(peer).rma.read_bytes + len as u64 <= POSTED_READ_WINDOW;
    wait_for(ep, env, peer, |ep| !has_credit(ep) && !ep.peers.at(peer).rma.posted.is_empty());
    let region = await_space(ep, env, (conn, peer), segment, false);
    let Some(region) = region.filter(|_| has_credit(ep)) else { return Posting::Untouched };
    let info =
        CompletionInfo { op_kind: OpKind::Read, context: a.context, flags: a.flags, tag: 0, len };
    let op = OutstandingOp::new(peer, info, Iov::new(a.iov));
    let id = ep.ops.insert(OutstandingOp { left: len, ..op });
    let Ok(context) = usize::try_from(id) else { return Posting::Untouched };
    let entry = RmaArgs { context, flags: FLAG_READ, data: None, ..*a };
    let words = [segment.key, segment.addr, id, len as u64];
    let push = |c: &mut Connection| {
        let head = words.iter().fold(wire::Head::new(), |head, &word| head.word(word));
        c.tx().push_head(wire::POSTED_READ, head.as_slice()).ok().map(|()| None)
    };
    if !push_record(ep, (conn, peer), (&entry, segment), true, push) {
        ep.ops.remove(id);
        return Posting::Untouched;
    }
    ep.peers.at_mut(peer).rma.read_bytes += len as u64;
    ep.stats.rma.add(len);
    ep.stats.writes.posted.add(len);
    ep.peers.note(peer, || TraceEvent::new(EventKind::Read, 0, len, a.context as u64));
    key_maps::note_use(ep, peer, segment.key, len, UsePath::Target);
    Posting::Done(region)
}

#[cfg(test)]
mod tests {
    use scif::ConnId;
    use scif_ring::copy::Mem;

    use super::*;
    use crate::engine::progress;
    use crate::engine::protocols::posted_write_target::Batch;
    use crate::engine::protocols::{posted_records, posted_write, posted_write_target};
    use crate::engine::tests::{
        Bed, buffer, bytes_of, completed, poll_until, post_write, posting_pair,
    };
    use crate::engine::types::args::RmaIov;

    /// Starts a read into `local`, with context 4.
    fn read(bed: &mut Bed, addr: u64, local: Mem) {
        let (iov, rma) = ([local], [RmaIov { addr, len: local.len(), key: 5 }]);
        let flags = fi::FI_COMPLETION;
        let args =
            RmaArgs { write: false, iov: &iov, rma: &rma, dest: 0, data: None, context: 4, flags };
        bed.run(|ep, env| posted_write::post(ep, env, &args)).unwrap();
    }

    #[test]
    fn a_polling_target_replies_to_reads_of_every_length() {
        let bytes: Vec<u8> = (0..=250).cycle().take(5000).collect();
        for len in [1, 8, 40, 41, READ_MAX] {
            let (mut pair, memory) = posting_pair(5000);
            memory.copy_from_slice(&bytes);
            let local = buffer(vec![0; len]);
            read(&mut pair[0], 3, local);
            assert!(pair[0].completion().is_none(), "the target has executed nothing yet");
            pair[1].run(progress::progress);
            let done = completed(&mut pair, 0);
            assert_eq!((done.context, done.len), (4, len));
            assert_eq!(bytes_of(&local), bytes[3..3 + len]);
            let (peer, stats) = (pair[0].peer(), &pair[0].ep.stats);
            assert_eq!((stats.writes.posted.ops, stats.writes.withdrawn.ops), (1, 0));
            assert_eq!(pair[0].ep.peers.at(peer).rma.read_bytes, 0);
        }
    }

    #[test]
    fn a_silent_target_delays_no_read_and_the_order_of_the_ring_holds() {
        let (mut pair, memory) = posting_pair(64);
        let before = buffer(vec![9; 8]);
        let between = buffer(vec![9; 8]);
        read(&mut pair[0], 0, before);
        post_write(&mut pair[0], (5, 0), &[buffer(vec![1; 8])], None);
        read(&mut pair[0], 0, between);
        post_write(&mut pair[0], (5, 0), &[buffer(vec![2; 8])], None);
        for context in [4, 3, 4, 3] {
            let done = loop {
                pair[0].run(progress::progress);
                if let Some(done) = pair[0].completion() {
                    break done.unwrap();
                }
            };
            assert_eq!(done.context, context);
        }
        assert_eq!((bytes_of(&before), bytes_of(&between)), (vec![0; 8], vec![1; 8]));
        assert_eq!((bytes_of(&memory)[0], pair[0].ep.stats.writes.withdrawn.ops), (2, 4));
        memory.copy_from_slice(&[7; 64]);
        for _ in 0..100 {
            pair.iter_mut().for_each(|bed| bed.run(progress::progress));
        }
        assert!(pair[0].completion().is_none(), "each has ended once");
        assert_eq!((bytes_of(&memory)[0], bytes_of(&between)[0]), (7, 1), "nothing again");
        let local = buffer(vec![0; 8]);
        read(&mut pair[0], 0, local);
        completed(&mut pair, 0);
        assert_eq!(bytes_of(&local)[0], 7);
    }

    #[test]
    fn a_read_of_a_closed_region_fails_once() {
        let (mut pair, _memory) = posting_pair(64);
        read(&mut pair[0], 0, buffer(vec![0; 8]));
        pair[1].run(|_, env| env.mrs.remove(0).map(drop)).unwrap();
        pair[1].run(progress::progress);
        let failed = poll_until(&mut pair, |pair| pair[0].completion()).unwrap_err();
        assert_eq!((failed.err, pair[0].completion().is_none()), (fi::FI_EINVAL, true));
        let peer = pair[0].peer();
        assert_eq!(pair[0].ep.peers.at(peer).rma.read_bytes, 0);
    }

    #[test]
    fn a_reply_without_space_follows_later() {
        let (mut pair, memory) = posting_pair(64);
        memory.copy_from_slice(&[6; 64]);
        pair[1].run(progress::progress);
        let (peer, conn) = fill_ring(&mut pair[1]);
        let local = buffer(vec![0; 8]);
        read(&mut pair[0], 0, local);
        post_write(&mut pair[0], (5, 0), &[buffer(vec![7; 8])], None);
        let execute = |ep: &mut Endpoint, env: &mut Env<'_>| {
            posted_write_target::execute(ep, env, (conn, peer), 8)
        };
        assert_eq!(pair[1].run(execute), Batch::Handled(2));
        assert_eq!((bytes_of(&memory)[0], bytes_of(&local)[0]), (7, 0));
        let done = [completed(&mut pair, 0).context, completed(&mut pair, 0).context];
        assert_eq!((done, bytes_of(&local)[0]), ([3, 4], 6), "bytes of before the write");
        assert_eq!(pair[1].ep.peers.at(peer).queue.reply_bytes, 0);
    }

    /// Fills the ring to the peer with records. Returns the peer and its connection.
    fn fill_ring(bed: &mut Bed) -> (PeerId, ConnId) {
        let peer = bed.peer();
        let conn = bed.ep.peers.at(peer).tx.unwrap();
        let tx = bed.ep.links.conn(conn).unwrap().tx();
        let hint = wire::Head::new().word(1).word(0);
        while tx.push_head(wire::ACCESS_HINT, hint.as_slice()).is_ok() {}
        (peer, conn)
    }

    /// Two full rings, with a read at the front that cannot be withdrawn. Either reply needs space
    /// that only the other side can free, by the execution of its read.
    #[test]
    fn reads_of_both_sides_end_behind_full_rings() {
        let (mut pair, _memory) = posting_pair(64);
        pair[0].register(&[buffer(vec![3; 64])]);
        pair[1].ep.cfg.rma_path = RmaPath::Ring;
        let into = [buffer(vec![0; 8]), buffer(vec![0; 8])];
        pair.iter_mut().for_each(|bed| bed.run(progress::progress));
        for (bed, local) in pair.iter_mut().zip(&into) {
            read(bed, 0, local.sub(0, 8).unwrap());
            let peer = bed.peer();
            bed.ep.peers.at_mut(peer).rma.outstanding = 1;
            post_write(bed, (5, 8), &[buffer(vec![7; 8])], None);
            assert_eq!(bed.ep.stats.writes.posted.ops, 2);
            fill_ring(bed);
        }
        for at in [0, 1] {
            let done = [completed(&mut pair, at).context, completed(&mut pair, at).context];
            assert_eq!((done[0].min(done[1]), done[0].max(done[1])), (3, 4));
        }
        assert_eq!((bytes_of(&into[0])[0], bytes_of(&into[1])[0]), (0, 3));
    }

    /// The target only posts, so that no full poll pushes its replies.
    #[test]
    fn a_reply_without_space_follows_while_the_target_posts() {
        let (mut pair, memory) = posting_pair(64);
        memory.copy_from_slice(&[6; 64]);
        pair[0].register(&[buffer(vec![3; 64])]);
        pair.iter_mut().for_each(|bed| bed.run(progress::progress));
        let (peer, conn) = fill_ring(&mut pair[1]);
        let local = buffer(vec![0; 8]);
        read(&mut pair[0], 0, local);
        pair[1].run(|ep, env| serve(ep, env, conn, peer));
        assert_eq!(pair[1].ep.peers.at(peer).queue.streams.len(), 1);
        (0..1000).for_each(|_| pair[0].run(progress::progress));
        pair[1].run(|ep, env| serve(ep, env, conn, peer));
        (0..1000).for_each(|_| pair[0].run(progress::progress));
        assert_eq!((pair[0].completion().unwrap().unwrap().context, bytes_of(&local)[0]), (4, 6));
    }

    #[test]
    fn a_read_before_operations_of_the_target_is_withdrawn_and_a_write_behind_stays() {
        let (mut pair, memory) = posting_pair(64);
        let (local, peer) = (buffer(vec![0; 8]), pair[0].peer());
        memory.copy_from_slice(&[6; 64]);
        read(&mut pair[0], 0, local);
        pair[0].ep.peers.at_mut(peer).rma.outstanding = 1;
        post_write(&mut pair[0], (5, 0), &[buffer(vec![7; 8])], None);
        assert_eq!(pair[0].ep.stats.writes.posted.ops, 2);
        let done = loop {
            pair[0].run(progress::progress);
            if let Some(done) = pair[0].completion() {
                break done;
            }
        };
        assert_eq!((done.unwrap().context, bytes_of(&local)[0]), (4, 6));
        for _ in 0..1000 {
            pair[0].run(progress::progress);
        }
        assert!(pair[0].completion().is_none());
        assert_eq!((bytes_of(&memory)[0], pair[0].ep.stats.writes.withdrawn.ops), (6, 1));
        pair[0].ep.peers.at_mut(peer).rma.outstanding = 0;
        assert_eq!((completed(&mut pair, 0).context, bytes_of(&memory)[0]), (3, 7));
    }

    #[test]
    fn a_reply_that_completes_a_write_ends_the_wait_for_the_target() {
        let (mut pair, _memory) = posting_pair(64);
        let peer = pair[0].peer();
        post_write(&mut pair[0], (5, 0), &[buffer(vec![7; 8])], None);
        read(&mut pair[0], 0, buffer(vec![0; 8]));
        // The first poll without progress begins the wait.
        pair[0].run(|ep, env| posted_records::progress(ep, env, peer));
        pair[1].run(progress::progress);
        std::thread::sleep(std::time::Duration::from_millis(1));
        let conn = pair[0].ep.peers.at(peer).tx.unwrap();
        assert!(pair[0].run(|ep, env| serve(ep, env, conn, peer)));
        assert!(pair[0].completion().is_some() && pair[0].completion().is_some());
        post_write(&mut pair[0], (5, 0), &[buffer(vec![7; 8])], None);
        pair[0].run(|ep, env| posted_records::progress(ep, env, peer));
        assert_eq!(pair[0].ep.stats.writes.withdrawn.ops, 0, "the wait has begun anew");
        assert_eq!(completed(&mut pair, 0).context, 3);
    }

    #[test]
    fn the_end_of_a_connection_fails_a_read_once() {
        let (mut pair, _memory) = posting_pair(64);
        read(&mut pair[0], 0, buffer(vec![0; 8]));
        let peer = pair[0].peer();
        pair[0].run(|ep, env| posted_records::on_conn_lost(ep, env, peer, fi::FI_ECONNRESET));
        assert_eq!(pair[0].completion().unwrap().unwrap_err().err, fi::FI_ECONNRESET);
        assert!(pair[0].completion().is_none() && pair[0].ep.ops.of_peer(peer).is_empty());
    }
}

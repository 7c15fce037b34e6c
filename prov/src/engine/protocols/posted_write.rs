// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Posted writes, as initiator: short writes that a polling target executes from its ring, without
//! a system call and without a reply.
//!
//! A write completes when the target has executed it. If the target is silent, the writes are
//! withdrawn (`scif_ring`), and this side executes them directly, in order. So a target that
//! computes or sleeps delays nothing. One that is stopped during an execution delays its writes.
//! Direct operations first wait for the posted writes or withdraw them.
//!
//! Not here: writes of several records (`posted_parts`), waits, ends and withdrawals
//! (`posted_records`), the target (`posted_write_target`), and the choice of the path
//! (`tables::posted_writes`).

use libfabric_sys as fi;
use scif::Connection;
use scif::trace::{EventKind, TraceEvent};
use scif_ring::HEAD_MAX;
use scif_ring::copy::{Mem, total_len};

use crate::base::env::RmaPath;
use crate::base::errno::Errno;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::peer_conn;
use crate::engine::protocols::key_maps::{self, UsePath};
use crate::engine::protocols::posted_parts::{self, PARTS_MAX};
use crate::engine::protocols::posted_read;
use crate::engine::protocols::posted_records::{
    POSTED_MAX, await_space, is_reported, is_service_due, now_ticks, progress, push_record, serve,
    settle, words_before,
};
use crate::engine::protocols::rma;
use crate::engine::tables::op_table::FLAG_DEFERRED_WORK;
use crate::engine::tables::posted_writes::{Posting, PostingRegion};
use crate::engine::types::args::{RmaArgs, RmaIov};
use crate::engine::types::iov::gather_into;
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::wire;

/// Posts a write that repeats the last one: the same peer and region. Returns false if nothing was
/// done.
///
/// # Errors
/// `FI_EINVAL` or `FI_ENOAV` for a destination that no address vector names.
#[inline(always)]
pub(crate) fn post_again(ep: &mut Endpoint, env: &Env<'_>, a: &RmaArgs<'_>) -> Result<bool, Errno> {
    let ([segment], [payload], true) = (a.rma, a.iov, a.write) else {
        return Ok(false);
    };
    let len = segment.len;
    if len != payload.len() || len > POSTED_MAX || a.flags & fi::FI_FENCE != 0 {
        return Ok(false);
    }
    let peer = peer_conn::peer_of(ep, env, a.dest)?;
    let polls = ep.links.polls;
    let p = ep.peers.at_mut(peer);
    let quiet = p.tx.filter(|_| p.queue.is_quiet() && p.rma.outstanding == 0);
    let Some(c) = quiet.and_then(|conn| ep.links.conn(conn)) else { return Ok(false) };
    let (posted, number) = (&mut p.rma.posted, c.tx().produced());
    let is_ready = c.is_up() && c.is_polled() && c.tx().has_reserve();
    if !is_ready || !posted.is_repeated(segment, number) {
        return Ok(false);
    }
    // Between polls, a peer that answers each write probably looks at the line of the next one.
    if std::mem::replace(&mut posted.posted_at, polls) == polls {
        c.tx().prefetch_ahead(if len <= HEAD_MAX - words_before(a.data) { 0 } else { len });
    }
    let Some(body) = push_plain(c, segment, payload, a.data) else { return Ok(false) };
    c.notify();
    posted.one_sided_end = number + 1;
    posted.note_position(number, false);
    posted.repeats += 1;
    let is_reported = is_reported(&ep.cfg, a);
    posted.writes.push(number, a, segment, body, is_reported);
    ep.peers.mark_posted(peer, is_reported);
    ep.stats.rma.add(len);
    ep.stats.writes.posted.add(len);
    ep.peers.note(peer, || TraceEvent::new(EventKind::Write, 0, len, a.context as u64));
    Ok(true)
}

/// Starts an RMA operation: a posted write if possible.
pub(crate) fn post(ep: &mut Endpoint, env: &mut Env<'_>, a: &RmaArgs<'_>) -> Result<(), Errno> {
    let peer = peer_conn::peer_of(ep, env, a.dest)?;
    if rma::try_mapped(ep, env, peer, a) {
        return Ok(());
    }
    if ep.cfg.rma_path == RmaPath::Direct {
        return rma::post(ep, env, peer, a);
    }
    let posting = match a.write {
        true => try_post(ep, env, peer, a),
        false => posted_read::try_post(ep, env, peer, a),
    };
    if matches!(posting, Posting::Done(_)) {
        return Ok(());
    }
    settle(ep, env, peer);
    let is_untouched = matches!(posting, Posting::Untouched);
    if a.flags & FLAG_DEFERRED_WORK == 0 && is_untouched && is_executing(ep, peer) {
        // Without this return, the operation would take the slower path of records with an
        // acknowledgement. So would all later ones until it is acknowledged.
        if a.write {
            ep.peers.at_mut(peer).rma.posted.note_refusal(total_len(a.iov));
        }
        return Err(fi::FI_EAGAIN);
    }
    rma::post(ep, env, peer, a)
}

/// Whether the target is executing posted writes.
#[inline]
fn is_executing(ep: &mut Endpoint, peer: PeerId) -> bool {
    let p = ep.peers.at(peer);
    let conn = p.tx.filter(|_| !p.rma.posted.is_empty());
    conn.and_then(|id| ep.links.conn(id)).is_some_and(|c| c.tx().is_consumer_executing())
}

/// Posts a write, unless it has to take another path.
fn try_post(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId, a: &RmaArgs<'_>) -> Posting {
    let [segment] = a.rma else { return Posting::Untouched };
    let len = segment.len;
    if len > PARTS_MAX || total_len(a.iov) != len || a.flags & fi::FI_FENCE != 0 {
        return Posting::Untouched;
    }
    let p = ep.peers.at_mut(peer);
    // Operations that the target has to execute precede this one in the ring.
    let Some(conn) = p.tx.filter(|_| p.queue.is_quiet()) else { return Posting::Untouched };
    let Some(c) = ep.links.conn(conn) else { return Posting::Untouched };
    let (path, produced) = (ep.cfg.rma_path, c.tx().produced());
    let posted = &mut p.rma.posted;
    // The time of the target's last poll, which its core writes, is read only for a write that may
    // take the ring.
    let may_take_ring =
        len <= POSTED_MAX || posted.takes_parts(len, now_ticks(), || c.is_initiating());
    let by_ring = may_take_ring && posted.take_ring(|| c.polled_ns()) || path == RmaPath::Ring;
    if posted.is_poll_due(produced) || !by_ring && is_service_due(&ep.stats) {
        serve(ep, env, conn, peer);
        progress(ep, env, peer);
    }
    if !by_ring {
        return Posting::Untouched;
    }
    let to = (conn, peer);
    let posting = if len <= POSTED_MAX {
        let region = await_space(ep, env, to, segment, true);
        let is_reported = is_reported(&ep.cfg, a);
        let mut push = || push_record(ep, to, (a, segment), is_reported, |c| push(c, a, len));
        region.filter(|_| push()).map_or(Posting::Untouched, Posting::Done)
    } else {
        posted_parts::push_all(ep, env, to, a)
    };
    if let Posting::Done(region) = posting {
        note_posted(ep, peer, a, region);
    }
    posting
}

/// Notes a write to `region` whose records are in the ring.
#[inline]
fn note_posted(ep: &mut Endpoint, peer: PeerId, a: &RmaArgs<'_>, region: PostingRegion) {
    let len = total_len(a.iov);
    let posted = &mut ep.peers.at_mut(peer).rma.posted;
    let former = posted.last_region.replace(region);
    let repeats = std::mem::take(&mut posted.repeats);
    ep.stats.rma.add(len);
    ep.stats.writes.posted.add(len);
    ep.peers.note(peer, || TraceEvent::new(EventKind::Write, 0, len, a.context as u64));
    if let Some(former) = former.filter(|_| repeats > 0) {
        key_maps::note_uses(ep, peer, former.key, repeats, UsePath::Target);
    }
    key_maps::note_use(ep, peer, region.key, len, UsePath::Target);
}

/// Pushes the record. Returns the position of its body, or `None` inside for a payload in the head;
/// `None` if the ring has no space.
#[inline]
fn push(c: &mut Connection, a: &RmaArgs<'_>, len: usize) -> Option<Option<u64>> {
    let segment = a.rma.first()?;
    if let [payload] = a.iov {
        return push_plain(c, segment, payload, a.data);
    }
    let inline = len <= HEAD_MAX - words_before(a.data);
    let position = (!inline).then(|| c.tx().body_position(len));
    let mut kind = wire::POSTED_WRITE;
    let mut head = wire::Head::new().word(segment.key).word(segment.addr);
    if let Some(data) = a.data {
        kind |= wire::DATA;
        head = head.word(data);
    }
    let pushed = if inline {
        gather_into(a.iov, head.tail(len)?);
        c.tx().push_head(kind | wire::INLINE, head.as_slice())
    } else {
        c.tx().push(kind, head.as_slice(), a.iov, 0, len)
    };
    pushed.ok().map(|()| position)
}

/// Variant of [`push`] for one buffer.
#[inline(always)]
fn push_plain(
    c: &mut Connection,
    segment: &RmaIov,
    payload: &Mem,
    data: Option<u64>,
) -> Option<Option<u64>> {
    match data {
        None => push_with(c, wire::POSTED_WRITE, [segment.key, segment.addr], payload),
        Some(data) => {
            let kind = wire::POSTED_WRITE | wire::DATA;
            push_with(c, kind, [segment.key, segment.addr, data], payload)
        }
    }
}

/// Pushes a record of these words, and of a payload in the head where it fits.
#[inline(always)]
fn push_with<const N: usize>(
    c: &mut Connection,
    kind: u8,
    words: [u64; N],
    payload: &Mem,
) -> Option<Option<u64>> {
    if payload.len() <= HEAD_MAX - N * 8 {
        return c.tx().push_words(kind | wire::INLINE, words, N, payload).ok().map(|()| None);
    }
    let position = c.tx().body_position(payload.len());
    c.tx().push_body(kind, words, N, payload).ok().map(|()| Some(position))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::progress;
    use crate::engine::tests::{
        Bed, buffer, bytes_of, completed, poll_until, post_write, posting_pair,
    };

    #[test]
    fn only_a_write_to_the_same_region_repeats_the_last_one() {
        let (mut pair, _memory) = posting_pair(64);
        let again = |bed: &mut Bed, addr| {
            let (iov, rma) = ([buffer(vec![7; 8])], [RmaIov { addr, len: 8, key: 5 }]);
            let flags = fi::FI_COMPLETION;
            let args = RmaArgs {
                write: true,
                iov: &iov,
                rma: &rma,
                dest: 0,
                data: None,
                context: 3,
                flags,
            };
            bed.run(|ep, env| post_again(ep, env, &args)).unwrap()
        };
        assert!(!again(&mut pair[0], 1), "no write before it");
        write(&mut pair[0], 1, vec![9; 8], None);
        assert!(again(&mut pair[0], 9));
        assert!(!again(&mut pair[0], 1000), "outside of the region");
        pair[1].ep.links.sock.bell().set_sleeping(true);
        assert!(!again(&mut pair[0], 9), "the target sleeps");
    }

    #[test]
    fn a_polling_target_executes_writes_of_every_shape() {
        let (mut pair, memory) = posting_pair(5000);
        for (len, data) in
            [(0, None), (8, None), (40, None), (41, None), (32, Some(7)), (33, Some(8))]
        {
            write(&mut pair[0], 1, vec![9; len], data);
            assert!(pair[0].completion().is_none(), "the target has executed nothing yet");
            pair[1].run(progress::progress);
            assert_eq!(completed(&mut pair, 0).context, 3);
            assert_eq!(&bytes_of(&memory)[..len + 2][1..], [vec![9; len], vec![0]].concat());
            if let Some(data) = data {
                let event = completed(&mut pair, 1);
                assert_eq!((event.data, event.len), (data, len));
            }
            memory.copy_from_slice(&[0; 64]);
        }
        write(&mut pair[0], 0, vec![4; POSTED_MAX], None);
        pair[1].run(progress::progress);
        assert_eq!(completed(&mut pair, 0).len, POSTED_MAX);
        let stats = &pair[0].ep.stats;
        assert_eq!((stats.writes.posted.ops, stats.writes.withdrawn.ops), (7, 0));
        assert_eq!(bytes_of(&memory)[POSTED_MAX - 1..=POSTED_MAX], [4, 0]);
    }

    #[test]
    fn a_direct_operation_follows_the_posted_writes() {
        let (mut pair, memory) = posting_pair(80_000);
        write(&mut pair[0], 0, vec![1; 8], None);
        write(&mut pair[0], 0, vec![2; 70_000], None);
        assert_eq!((completed(&mut pair, 0).len, completed(&mut pair, 0).len), (8, 70_000));
        completed_nothing(&mut pair);
        assert_eq!(bytes_of(&memory)[..9], [2; 9]);
    }

    fn write(bed: &mut Bed, addr: u64, bytes: Vec<u8>, data: Option<u64>) {
        post_write(bed, (5, addr), &[buffer(bytes)], data);
    }

    fn completed_nothing(pair: &mut [Bed; 2]) {
        for _ in 0..100 {
            pair.iter_mut().for_each(|bed| bed.run(progress::progress));
        }
        assert!(pair[0].completion().is_none());
    }

    #[test]
    fn a_write_to_a_closed_region_fails_and_the_next_ones_succeed() {
        let (mut pair, memory) = posting_pair(64);
        write(&mut pair[0], 0, vec![1; 8], None);
        pair[1].run(|_, env| env.mrs.remove(0).map(drop)).unwrap();
        pair[1].run(progress::progress);
        let failed = poll_until(&mut pair, |pair| pair[0].completion());
        assert_eq!((failed.unwrap_err().err, bytes_of(&memory)[0]), (fi::FI_EINVAL, 0));
        pair[1].register(&[memory.sub(0, 64).unwrap()]);
        write(&mut pair[0], 0, vec![1; 8], None);
        pair[1].run(progress::progress);
        assert_eq!(completed(&mut pair, 0).len, 8);
    }
}

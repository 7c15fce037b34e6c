// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Posted writes of several records, as initiator.
//!
//! The target executes the records in their order, and the last one completes the write. If it
//! falls silent before the last one is pushed, the records in the ring are withdrawn, and the whole
//! write takes another path. It then writes the same bytes again.

use scif::{ConnId, Connection};

use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::protocols::posted_records::{
    POSTED_MAX, await_space, is_reported, push_record, serve,
};
use crate::engine::tables::op_table::FLAG_PART;
use crate::engine::tables::posted_writes::{Posting, WriteInParts};
use crate::engine::types::args::{RmaArgs, RmaIov};
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::wire;

/// Largest write in bytes that is posted. Longer ones gain more from a copy by both sides, without
/// the ring.
pub(crate) const PARTS_MAX: usize = 64 * 1024;

/// Pushes all records of a write, and waits for space in the ring meanwhile. If that fails, another
/// path has to execute the whole write.
pub(crate) fn push_all(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    to: (ConnId, PeerId),
    a: &RmaArgs<'_>,
) -> Posting {
    let Some(segment) = a.rma.first().copied() else { return Posting::Untouched };
    let (mut offset, mut posting) = (0, Posting::Untouched);
    while offset < segment.len {
        if offset > 0 {
            // The peer, if it posts writes too, would otherwise take this side for silent.
            serve(ep, env, to.0, to.1);
        }
        let region = await_space(ep, env, to, &segment, true);
        let len = (segment.len - offset).min(POSTED_MAX);
        let Some(region) = region.filter(|_| push_one(ep, to, a, (offset, len))) else {
            if offset == 0 {
                return Posting::Untouched;
            }
            // Its records that are still in the ring then end without a report.
            ep.peers.at_mut(to.1).rma.posted.parts.pop_back();
            return Posting::Begun;
        };
        posting = Posting::Done(region);
        offset += len;
    }
    posting
}

/// Pushes one record of a write: `len` bytes from `offset` on. Returns false if the ring has no
/// space.
fn push_one(
    ep: &mut Endpoint,
    to: (ConnId, PeerId),
    a: &RmaArgs<'_>,
    (offset, len): (usize, usize),
) -> bool {
    let ([whole], Some(c)) = (a.rma, ep.links.conn(to.0)) else { return false };
    let number = c.tx().produced();
    let is_last = offset + len == whole.len;
    let segment = RmaIov { addr: whole.addr.wrapping_add(offset as u64), len, ..*whole };
    let part = RmaArgs { data: a.data.filter(|_| is_last), flags: a.flags | FLAG_PART, ..*a };
    let is_reported = is_last && is_reported(&ep.cfg, a);
    let push = |c: &mut Connection| push_part(c, &part, &segment, offset, is_last);
    if !push_record(ep, to, (&part, &segment), is_reported, push) {
        return false;
    }
    let parts = &mut ep.peers.at_mut(to.1).rma.posted.parts;
    if offset == 0 {
        parts.push_back(WriteInParts { first: number, last: u64::MAX, len: whole.len, err: 0 });
    }
    if let Some(write) = parts.back_mut().filter(|_| is_last) {
        write.last = number;
    }
    true
}

/// Pushes the record of the part to `segment`, `offset` bytes into the buffers of `part`. Returns
/// the position of its body; `None` if the ring has no space.
fn push_part(
    c: &mut Connection,
    part: &RmaArgs<'_>,
    segment: &RmaIov,
    offset: usize,
    is_last: bool,
) -> Option<Option<u64>> {
    let whole_len = part.rma.first()?.len;
    let (RmaIov { key, addr, .. }, data) = (*segment, part.data);
    let (kind, words, count) = match data {
        Some(data) => (wire::LAST_PART | wire::DATA, [key, addr, data, whole_len as u64], 4),
        None if is_last => (wire::LAST_PART, [key, addr, whole_len as u64, 0], 3),
        None => (wire::PART, [key, addr, 0, 0], 2),
    };
    let kind = wire::POSTED_WRITE | kind;
    let position = c.tx().body_position(segment.len);
    let pushed = match part.iov {
        [one] => c.tx().push_body(kind, words, count, &one.sub(offset, segment.len)?),
        many => {
            let words = words.iter().take(count);
            let head = words.fold(wire::Head::new(), |head, &word| head.word(word));
            c.tx().push(kind, head.as_slice(), many, offset, segment.len)
        }
    };
    pushed.ok().map(|()| Some(position))
}

#[cfg(test)]
mod tests {
    use libfabric_sys as fi;
    use scif_ring::copy::Mem;

    use super::*;
    use crate::engine::progress;
    use crate::engine::protocols::posted_records;
    use crate::engine::tests::{
        Bed, buffer, bytes_of, completed, poll_until, post_write, posting_pair,
    };

    fn write(bed: &mut Bed, addr: u64, iov: &[Mem], data: Option<u64>) {
        post_write(bed, (5, addr), iov, data);
    }

    /// Returns `len` bytes without a period of a record's length.
    fn pattern(len: usize) -> Vec<u8> {
        (0..=250).cycle().take(len).collect()
    }

    #[test]
    fn a_polling_target_executes_all_records_and_reports_one_write() {
        for (len, split, data) in
            [(4097, 0, None), (8192, 1, Some(7)), (20_000, 5000, Some(8)), (20_001, 4096, None)]
        {
            let (mut pair, memory) = posting_pair(len + 2);
            let source = buffer(pattern(len));
            let iov = [source.sub(0, split).unwrap(), source.sub(split, len - split).unwrap()];
            write(&mut pair[0], 1, if split == 0 { &iov[1..] } else { &iov }, data);
            assert!(pair[0].completion().is_none(), "the target has executed nothing yet");
            let done = completed(&mut pair, 0);
            assert_eq!((done.context, done.len), (3, len));
            assert_eq!(bytes_of(&memory), [vec![0], pattern(len), vec![0]].concat());
            if let Some(data) = data {
                let event = completed(&mut pair, 1);
                assert_eq!((event.data, event.len), (data, len));
            }
            completed_nothing(&mut pair);
            let writes = &pair[0].ep.stats.writes;
            assert_eq!((writes.posted.ops, writes.withdrawn.ops), (1, 0), "{len} bytes");
        }
    }

    #[test]
    fn a_silent_target_delays_no_write_of_any_length() {
        for len in [10_000, PARTS_MAX] {
            let (mut pair, memory) = posting_pair(len);
            write(&mut pair[0], 0, &[buffer(pattern(len))], Some(9));
            while pair[0].completion().is_none_or(|done| done.is_err()) {
                pair[0].run(progress::progress);
            }
            assert!(pair[0].ep.stats.writes.withdrawn.ops > 0);
            assert_eq!(bytes_of(&memory), pattern(len));
            let event = completed(&mut pair, 1);
            assert_eq!((event.data, event.len), (9, len));
            completed_nothing(&mut pair);
            write(&mut pair[0], 0, &[buffer(vec![1; len])], None);
            assert_eq!((completed(&mut pair, 0).len, bytes_of(&memory)), (len, vec![1; len]));
        }
    }

    #[test]
    fn a_write_to_a_closed_region_fails_once() {
        let (mut pair, memory) = posting_pair(10_000);
        write(&mut pair[0], 0, &[buffer(vec![1; 10_000])], None);
        pair[1].run(|_, env| env.mrs.remove(0).map(drop)).unwrap();
        let failed = poll_until(&mut pair, |pair| pair[0].completion());
        assert_eq!(failed.unwrap_err().err, fi::FI_EINVAL);
        completed_nothing(&mut pair);
        assert_eq!(bytes_of(&memory), vec![0; 10_000]);
        pair[1].register(&[memory.sub(0, 10_000).unwrap()]);
        write(&mut pair[0], 0, &[buffer(vec![1; 10_000])], None);
        assert_eq!(completed(&mut pair, 0).len, 10_000);
    }

    #[test]
    fn the_end_of_a_connection_fails_a_write_once() {
        let (mut pair, _memory) = posting_pair(10_000);
        write(&mut pair[0], 0, &[buffer(vec![1; 10_000])], None);
        let peer = pair[0].peer();
        pair[0].run(|ep, env| posted_records::on_conn_lost(ep, env, peer, fi::FI_ECONNRESET));
        assert_eq!(pair[0].completion().unwrap().unwrap_err().err, fi::FI_ECONNRESET);
        assert!(pair[0].completion().is_none());
        assert!(pair[0].ep.peers.at(peer).rma.posted.parts.is_empty());
    }

    fn completed_nothing(pair: &mut [Bed; 2]) {
        for _ in 0..100 {
            pair.iter_mut().for_each(|bed| bed.run(progress::progress));
        }
        assert!(pair.iter_mut().all(|bed| bed.completion().is_none()));
    }
}

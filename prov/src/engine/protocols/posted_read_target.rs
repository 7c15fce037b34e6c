// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Posted reads, as target: the reply with the bytes.
//!
//! A read is executed when its bytes are taken. If the ring has no space for them, a copy follows
//! later. So a read never blocks the records behind it.

use libfabric_sys as fi;
use scif::ConnId;
use scif_ring::SHORT_BODY_MAX;
use scif_ring::copy::{Mem, total_len};
use scif_ring::spsc::Record;

use crate::base::errno::Errno;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::tx_queue;
use crate::engine::protocols::rma_target;
use crate::engine::types::args::Effect;
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::wire::{self, Head, Words};

/// Request of a read.
#[derive(Clone, Copy, Debug)]
struct ReadRequest {
    key: u64,
    addr: u64,
    op: u64,
    len: u64,
}

impl ReadRequest {
    /// Reads a record. `None`: it is no read, or too long.
    fn parse(record: &Record) -> Option<ReadRequest> {
        let mut words = Words::new(&record.head, record.head_len);
        let [key, addr, op, len] = [(); 4].map(|()| words.word());
        let is_read = record.kind == wire::POSTED_READ && record.body.is_empty();
        let fits = (1..=SHORT_BODY_MAX as u64).contains(&len);
        (is_read && fits).then_some(ReadRequest { key, addr, op, len })
    }
}

/// Executes the read at the front of a ring, and frees its record. Returns the number of bytes in
/// the reply; `None` if the record is no valid read.
pub(crate) fn execute(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (conn, peer): (ConnId, PeerId),
) -> Option<usize> {
    let record = ep.links.conn(conn)?.rx().peek().ok()??;
    let read = ReadRequest::parse(&record)?;
    let replied = match env.mrs.piece(read.key, read.addr, read.len, fi::FI_REMOTE_READ) {
        Ok(Some(from)) => reply(ep, peer, read.op, &[from]),
        Ok(None) => {
            let mut from = Vec::new();
            let found = env.mrs.check(read.key, read.addr, read.len, fi::FI_REMOTE_READ, &mut from);
            found.and_then(|()| reply(ep, peer, read.op, &from))
        }
        Err(err) => Err(err),
    };
    let c = ep.links.conn(conn)?;
    c.rx().advance();
    if let Err(err) = replied {
        // The initiator finds the error.
        c.rx().note_failure(u16::try_from(err).unwrap_or(1));
        return Some(0);
    }
    note_read(ep, env, peer, read);
    usize::try_from(read.len).ok()
}

/// Frees the read at the front of a ring, which its initiator has executed. Returns false if it is
/// no valid read.
#[cold]
pub(crate) fn skip(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (conn, peer): (ConnId, PeerId),
    record: &Record,
) -> bool {
    let (Some(read), Some(c)) = (ReadRequest::parse(record), ep.links.conn(conn)) else {
        return false;
    };
    c.rx().advance();
    note_read(ep, env, peer, read);
    true
}

/// Sends the reply, or queues a copy of the bytes behind earlier replies.
fn reply(ep: &mut Endpoint, peer: PeerId, op: u64, from: &[Mem]) -> Result<(), Errno> {
    let p = ep.peers.at_mut(peer);
    let is_next = p.queue.control.is_empty() && p.queue.streams.is_empty();
    if let Some(c) = p.tx.filter(|_| is_next).and_then(|id| ep.links.conn(id)) {
        let pushed = tx_queue::push_one_sided(c, &mut p.rma.posted, |c| match from {
            [one] => c.tx().push_body(wire::READ_DATA, [op, 0], 2, one),
            many => {
                let head = Head::new().word(op).word(0);
                c.tx().push(wire::READ_DATA, head.as_slice(), many, 0, total_len(many))
            }
        });
        if pushed.is_ok() {
            c.notify();
            return Ok(());
        }
    }
    rma_target::queue_reply(ep, peer, (op, 0), from).ok_or(fi::FI_ENOMEM)
}

/// Notes a read that took place, in the order of the ring.
fn note_read(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId, read: ReadRequest) {
    if ep.cfg.rma_event || env.mrs.migrates() {
        let len = usize::try_from(read.len).unwrap_or(0);
        rma_target::rma_event(ep, env, peer, Effect::Read, None, (read.key, len));
    }
}

#[cfg(test)]
mod tests {
    use scif_ring::HEAD_MAX;

    use super::*;

    #[test]
    fn only_records_of_a_read_with_a_short_reply_are_valid() {
        let record = |kind, len| {
            let words = Head::new().word(5).word(1).word(9).word(len);
            let mut head = [0; HEAD_MAX];
            head[..32].copy_from_slice(words.as_slice());
            Record { kind, head_len: 32, head, body: Mem::empty() }
        };
        let read = ReadRequest::parse(&record(wire::POSTED_READ, 8)).unwrap();
        assert_eq!([read.key, read.addr, read.op, read.len], [5, 1, 9, 8]);
        let longest = SHORT_BODY_MAX as u64;
        assert!(ReadRequest::parse(&record(wire::POSTED_READ, longest)).is_some());
        for len in [0, longest + 1, u64::MAX] {
            assert!(ReadRequest::parse(&record(wire::POSTED_READ, len)).is_none(), "{len} bytes");
        }
        assert!(ReadRequest::parse(&record(wire::READ, 8)).is_none());
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Posted writes, as target: execution of the records in the ring, with posted reads among them.
//!
//! The initiator may withdraw records that are not executed yet, so each batch of them asks the
//! ring for permission (`scif_ring::spsc::Execution`). Not here: reads (`posted_read_target`).

use std::panic::{AssertUnwindSafe, catch_unwind};

use libfabric_sys as fi;
use scif::ConnId;
use scif_ring::copy::{Mem, copy_iov, ticks};
use scif_ring::spsc::{Execution, InlineHandler, InlineRecord, PollOutcome, Record};

use crate::base::errno::Errno;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::protocols::rma_target;
use crate::engine::protocols::{fragment, posted_read_target};
use crate::engine::types::args::Effect;
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::wire::{self, Words};
use crate::state::mr_table::MrTable;

/// Largest number of records in a batch. An initiator that withdraws waits for the batch.
const BATCH: usize = 16;
/// Number of bytes after which a batch ends. The initiator sees its writes end batch by batch. With
/// more, it takes a target that copies for a silent one, and withdraws writes.
const BATCH_BYTES: usize = 4096;

/// Largest number of records of a batch that ends by its bytes, if they are long: two parts and the
/// shorter end of a write. With more, short writes would be taken for them.
const LONG_COUNT: usize = 3;

/// Result of one write.
#[derive(Clone, Copy, Debug, Default)]
struct Executed {
    err: Errno,
    key: u64,
    len: usize,
    data: Option<u64>,
    /// Length of the write; `None` if later records complete it.
    whole: Option<usize>,
}

/// Region of one part to which a batch has written last.
#[derive(Clone, Copy, Debug)]
struct LastRegion {
    key: u64,
    start: u64,
    memory: Mem,
}

impl LastRegion {
    /// Looks up region `key`.
    fn find(mrs: &MrTable, key: u64) -> Option<LastRegion> {
        let (start, memory) = mrs.whole(key, fi::FI_REMOTE_WRITE)?;
        Some(LastRegion { key, start, memory })
    }

    /// Returns the memory at `addr..addr + len` of the region.
    #[inline(always)]
    fn piece(&self, addr: u64, len: usize) -> Option<Mem> {
        let skip = addr.checked_sub(self.start)?;
        self.memory.sub(usize::try_from(skip).ok()?, len)
    }
}

/// Handler of a posted write whose region has one part.
struct Executor<'a> {
    mrs: &'a MrTable,
    last: &'a mut Option<LastRegion>,
    executed: &'a mut Executed,
}

/// Whether a record is a posted write or read.
#[inline(always)]
pub(crate) fn is_posted(kind: u8) -> bool {
    is_posted_write(kind) || kind == wire::POSTED_READ
}

/// Whether a record is a posted write.
#[inline(always)]
fn is_posted_write(kind: u8) -> bool {
    kind & !(wire::LAST_PART | wire::DATA | wire::PART | wire::INLINE) == wire::POSTED_WRITE
}

/// Returns the number of words in the head of a posted write before its payload.
#[inline(always)]
fn words_of(kind: u8) -> usize {
    2 + usize::from(kind & wire::DATA != 0) + usize::from(kind & wire::LAST_PART != 0)
}

/// Returns the length of the write that a record of `len` bytes completes; `None` if a later record
/// does. `last_word`: the last word before the payload.
#[inline(always)]
fn whole_len(kind: u8, len: usize, last_word: impl FnOnce() -> u64) -> Option<usize> {
    match kind & (wire::PART | wire::LAST_PART) {
        0 => Some(len),
        wire::LAST_PART => usize::try_from(last_word()).ok(),
        _ => None,
    }
}

impl InlineHandler for Executor<'_> {
    #[inline(always)]
    fn take(self, kind: u8, line: &InlineRecord<'_>) -> bool {
        if !is_posted_write(kind) || line.has_body() == (kind & wire::INLINE != 0) {
            return false;
        }
        let has_data = kind & wire::DATA != 0;
        let words = words_of(kind);
        let Some(len) = line.payload_len(words) else { return false };
        let (key, addr) = (line.word(0), line.word(1));
        let data = has_data.then(|| line.word(2));
        if self.last.is_none_or(|last| last.key != key) {
            *self.last = LastRegion::find(self.mrs, key);
        }
        let found = match self.last.and_then(|last| last.piece(addr, len)) {
            Some(to) => Ok(Some(to)),
            None => self.mrs.piece(key, addr, len as u64, fi::FI_REMOTE_WRITE),
        };
        let err = match found {
            Ok(Some(to)) => {
                line.copy_payload(words, &to);
                0
            }
            Ok(None) => return false,
            Err(err) => err,
        };
        let whole = whole_len(kind, len, || line.word(words - 1));
        *self.executed = Executed { err, key, len, data, whole };
        true
    }
}

/// Result of the execution of records at the front of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Batch {
    /// Number of posted operations that were handled.
    Handled(usize),
    /// The next record is no posted operation, or there is none.
    Other,
    /// The initiator is about to execute the next operation.
    Held,
    /// An operation caused a panic, and stays in the ring.
    Panicked,
}

/// Executes at most `most` posted operations at the front of a ring.
pub(crate) fn execute(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (conn, peer): (ConnId, PeerId),
    most: usize,
) -> Batch {
    let now = ep.links.clock_ticks();
    let Some(c) = ep.links.conn(conn) else { return Batch::Other };
    if !c.rx().next_kind().is_some_and(is_posted) {
        return Batch::Other;
    }
    ep.peers.at_mut(peer).rma.posted.note_heard(now);
    let begun = c.rx().begin_execution();
    if begun == Execution::Hold {
        return Batch::Held;
    }
    let (mut count, mut bytes) = (0, 0);
    let is_timed = ep.peers.at(peer).rma.posted.times_service();
    let begun_ticks = if is_timed { ticks() } else { 0 };
    // Inner panic boundary, as for other records. An initiator must not wait for an execution that
    // has panicked.
    let handled = catch_unwind(AssertUnwindSafe(|| match begun {
        Execution::Execute => {
            let mut last = None;
            while count < most.min(BATCH) && bytes < BATCH_BYTES {
                let Some(len) = execute_one(ep, env, (conn, peer), &mut last) else { break };
                bytes += len;
                count += 1;
            }
        }
        _ => {
            while count < most && skip_one(ep, env, conn, peer) {
                count += 1;
            }
        }
    }));
    if begun == Execution::Execute {
        if let Some(c) = ep.links.conn(conn) {
            c.rx().publish_executed();
            c.rx().end_execution();
        }
        // The records of such a batch are long.
        if count <= LONG_COUNT && bytes >= BATCH_BYTES {
            let ticks = if is_timed { ticks().saturating_sub(begun_ticks) } else { 0 };
            ep.peers.at_mut(peer).rma.posted.note_service(bytes, ticks);
        }
        fragment::push_replies(ep, peer);
    }
    match (handled, count) {
        (Err(_), _) => Batch::Panicked,
        (Ok(()), 0) => Batch::Other,
        (Ok(()), count) => Batch::Handled(count),
    }
}

/// Frees the next posted operation, if its initiator has executed it. Returns false otherwise.
#[cold]
fn skip_one(ep: &mut Endpoint, env: &mut Env<'_>, conn: ConnId, peer: PeerId) -> bool {
    let Some(c) = ep.links.conn(conn) else { return false };
    if !c.rx().is_settled() {
        return false;
    }
    let Ok(Some(record)) = c.rx().peek() else { return false };
    if record.kind == wire::POSTED_READ {
        return posted_read_target::skip(ep, env, (conn, peer), &record);
    }
    let Some((written, _)) = parse(&record) else { return false };
    c.rx().advance();
    note_written(ep, env, peer, written);
    true
}

/// Notes a write that took place, in the order of the ring.
#[inline]
fn note_written(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId, written: Executed) {
    let Executed { key, whole: Some(len), data, .. } = written else { return };
    if data.is_some() || ep.cfg.rma_event || env.mrs.migrates() {
        rma_target::rma_event(ep, env, peer, Effect::Write, data, (key, len));
    }
}

/// Executes the next posted operation. Returns its number of bytes; `None` if the record is no
/// valid posted operation, or there is none.
#[inline(always)]
fn execute_one(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (conn, peer): (ConnId, PeerId),
    last: &mut Option<LastRegion>,
) -> Option<usize> {
    let mut executed = Executed::default();
    let c = ep.links.conn(conn)?;
    let kind = c.rx().next_kind()?;
    if kind == wire::POSTED_READ {
        return posted_read_target::execute(ep, env, (conn, peer));
    }
    let executor = Executor { mrs: env.mrs, last, executed: &mut executed };
    let outcome =
        if kind & wire::INLINE != 0 { c.poll_inline(executor) } else { c.poll_body(executor) };
    match outcome {
        PollOutcome::Empty => return None,
        PollOutcome::Consumed => {}
        PollOutcome::Unhandled => {
            let record = c.rx().peek().ok()??;
            executed = execute_any(env.mrs, &record)?;
            c.rx().advance();
        }
    }
    if executed.err != 0 {
        c.rx().note_failure(u16::try_from(executed.err).unwrap_or(1));
    } else {
        note_written(ep, env, peer, executed);
    }
    Some(executed.len)
}

/// Reads a posted write of any shape, with its address. `None`: the record is no posted write.
fn parse(record: &Record) -> Option<(Executed, u64)> {
    let is_inline = record.kind & wire::INLINE != 0;
    if !is_posted_write(record.kind) || is_inline != record.body.is_empty() {
        return None;
    }
    let mut words = Words::new(&record.head, record.head_len);
    let (key, addr) = (words.word(), words.word());
    let data = (record.kind & wire::DATA != 0).then(|| words.word());
    let last_word = if record.kind & wire::LAST_PART != 0 { words.word() } else { 0 };
    let len = if is_inline { words.rest().len() } else { record.body.len() };
    let whole = whole_len(record.kind, len, || last_word);
    Some((Executed { err: 0, key, len, data, whole }, addr))
}

/// Executes a posted write of any shape. `None`: the record is no posted write.
#[cold]
fn execute_any(mrs: &MrTable, record: &Record) -> Option<Executed> {
    let (mut written, addr) = parse(record)?;
    let Executed { key, len, .. } = written;
    let mut to: Vec<Mem> = Vec::new();
    match mrs.check(key, addr, len as u64, fi::FI_REMOTE_WRITE, &mut to) {
        Err(err) => written.err = err,
        Ok(()) if record.body.is_empty() => {
            let head = record.head.get(..usize::from(record.head_len)).unwrap_or_default();
            let payload = head.get(head.len() - len..).unwrap_or_default();
            crate::engine::types::iov::scatter(&to, payload);
        }
        Ok(()) => {
            copy_iov(&to, 0, &[record.body], 0, len);
        }
    }
    Some(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{Bed, buffer, bytes_of};

    #[test]
    fn a_record_writes_its_payload_to_all_parts_of_its_region() {
        let mut bed = Bed::new(|_| {});
        let parts = [buffer(vec![0; 3]), buffer(vec![0; 5])];
        bed.register(&[parts[0].sub(0, 3).unwrap(), parts[1].sub(0, 5).unwrap()]);
        let head = wire::Head::new().word(5).word(1);
        let record = |kind, len: usize| {
            let mut bytes = [7; scif_ring::HEAD_MAX];
            bytes[..16].copy_from_slice(head.as_slice());
            Record { kind, head_len: u8::try_from(len).unwrap(), head: bytes, body: Mem::empty() }
        };
        let execute = |bed: &mut Bed, record: &Record| {
            bed.run(|_, env| execute_any(env.mrs, record).map(|done| done.err))
        };
        let kind = wire::POSTED_WRITE | wire::INLINE;
        assert_eq!(execute(&mut bed, &record(kind, 16 + 6)), Some(0));
        assert_eq!([bytes_of(&parts[0]), bytes_of(&parts[1])].concat(), [0, 7, 7, 7, 7, 7, 7, 0]);
        assert_eq!(execute(&mut bed, &record(kind, 16 + 8)), Some(fi::FI_EACCES));
        assert_eq!(execute(&mut bed, &record(wire::POSTED_WRITE, 22)), None, "without its body");
        assert_eq!(execute(&mut bed, &record(wire::ACK, 22)), None);
    }
}

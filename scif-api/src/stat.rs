// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Statistics of a process's endpoints for other processes: one memfd a process, kept open and only
//! written.
//!
//! Not about reading it ([`crate::introspect`]). The process reads nothing back, so a foreign write
//! changes only the displayed values. A forked child shows its own new endpoints in a memfd of its
//! own and keeps its parent's.
//!
//! | offset | content |
//! |---|---|
//! | 0 | magic; 8 version; 12 pid; 16 node; 20 bytes of a record; 24 records that were ever used |
//! | 4096 | records |
//!
//! A record: 0 number, 0 if free; 4 state; 8 own node and port; 12 the peer's; 16 inode of the
//! descriptor; 24 inode of the window table; 32, 40 bytes sent, received; 48, 56 reads and their
//! bytes; 64, 72 writes and their bytes; 80 pid of the peer; 88 number of windows of the peer that
//! were mapped.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use scif::PortId;
use scif::sys::mmap::Mapping;
use scif::sys::{fork, memfd, process};
use scif_ring::{SharedU32, SharedU64};

use crate::failure::Result;
use crate::lock::take;

/// Name of a memfd of this kind.
pub(crate) const NAME: &str = "scif:stat";
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"SCIFstat");
pub(crate) const VERSION: u32 = 1;
/// Offset of the first record.
pub(crate) const RECORDS: usize = 4096;
/// Size of a record in bytes: two cache lines, so that endpoints do not share one.
pub(crate) const RECORD: usize = 128;
/// Maximum number of endpoints of a process that are shown. Further ones are not visible to
/// `scifctl`.
pub(crate) const RECORDS_MAX: usize = 65536;

/// Records of one memfd.
#[derive(Debug)]
struct Shown {
    map: Mapping,
    free: Mutex<Vec<usize>>,
    /// Fork generation of the process that allocates records.
    generation: u64,
    _fd: OwnedFd,
}

impl Shown {
    fn new(node: u16) -> Result<Shown> {
        let bytes = RECORDS + RECORDS_MAX * RECORD;
        let fd = memfd::create(NAME, bytes)?;
        memfd::seal(&fd, memfd::FIXED_SIZE)?;
        let map = Mapping::shared(&fd, bytes, true)?;
        map.word32(8)?.set(VERSION);
        map.word32(12)?.set(process::pid().unsigned_abs());
        map.word32(16)?.set(u32::from(node));
        map.word32(20)?.set(u32::try_from(RECORD).unwrap_or(0));
        map.word64(0)?.set(MAGIC);
        Ok(Shown { map, free: Mutex::new(Vec::new()), generation: fork::generation(), _fd: fd })
    }

    /// Returns the index of a free record.
    fn pick(&self) -> Result<Option<usize>> {
        let mut free = take(&self.free);
        if let Some(at) = free.pop() {
            return Ok(Some(at));
        }
        let used = self.map.word32(24)?;
        let at = used.get_relaxed() as usize;
        if at >= RECORDS_MAX {
            return Ok(None);
        }
        used.add(1);
        Ok(Some(at))
    }
}

/// Memfds of this process.
#[derive(Debug)]
pub(crate) struct Stats {
    node: u16,
    shown: Mutex<Arc<Shown>>,
    /// Memfds of its parents.
    inherited: Mutex<Vec<Arc<Shown>>>,
}

impl Stats {
    pub(crate) fn new(node: u16) -> Result<Stats> {
        Ok(Stats {
            node,
            shown: Mutex::new(Arc::new(Shown::new(node)?)),
            inherited: Mutex::new(Vec::new()),
        })
    }

    fn shown(&self) -> Result<Arc<Shown>> {
        let mut shown = take(&self.shown);
        if shown.generation != fork::generation() {
            let old = std::mem::replace(&mut *shown, Arc::new(Shown::new(self.node)?));
            take(&self.inherited).push(old);
        }
        Ok(Arc::clone(&shown))
    }

    /// Allocates a record for a new endpoint.
    pub(crate) fn record(&self, number: u64, inode: u64) -> Result<Record> {
        let shown = self.shown()?;
        let picked = shown.pick()?;
        // Endpoints above `RECORDS_MAX` get no record of their own. All of them share the last
        // `RECORD` bytes of the header, which readers never read.
        let at = picked.map_or(RECORDS - RECORD, |index| RECORDS + index * RECORD);
        let word32 = |offset: usize| shown.map.word32(at + offset);
        let word64 = |offset: usize| shown.map.word64(at + offset);
        let record = Record {
            number: word32(0)?,
            state: word32(4)?,
            own: word32(8)?,
            peer: word32(12)?,
            windows: word64(24)?,
            sent: word64(32)?,
            received: word64(40)?,
            reads: [word64(48)?, word64(56)?],
            writes: [word64(64)?, word64(72)?],
            peer_pid: word32(80)?,
            mapped: word64(88)?,
            node: self.node,
            index: picked,
            shown: Arc::clone(&shown),
        };
        for word in [record.state, record.own, record.peer, record.peer_pid] {
            word.set_relaxed(0);
        }
        let [reads, read_bytes] = record.reads;
        let [writes, written_bytes] = record.writes;
        for word in [record.windows, record.sent, record.received, record.mapped] {
            word.set_relaxed(0);
        }
        for word in [reads, read_bytes, writes, written_bytes] {
            word.set_relaxed(0);
        }
        word64(16)?.set_relaxed(inode);
        record.own.set_relaxed(u32::from(self.node) << 16);
        #[expect(clippy::cast_possible_truncation, reason = "a number to tell endpoints apart")]
        record.number.set((number as u32).max(1));
        Ok(record)
    }
}

/// Record of one endpoint, freed when dropped.
#[derive(Debug)]
pub(crate) struct Record {
    number: SharedU32,
    state: SharedU32,
    own: SharedU32,
    peer: SharedU32,
    windows: SharedU64,
    sent: SharedU64,
    received: SharedU64,
    /// Number of operations, and their bytes.
    reads: [SharedU64; 2],
    writes: [SharedU64; 2],
    peer_pid: SharedU32,
    mapped: SharedU64,
    node: u16,
    index: Option<usize>,
    shown: Arc<Shown>,
}

impl Record {
    pub(crate) fn set_state(&self, state: u32) {
        self.state.set_relaxed(state);
    }

    pub(crate) fn set_port(&self, port: u16) {
        self.own.set_relaxed(u32::from(self.node) << 16 | u32::from(port));
    }

    pub(crate) fn set_peer(&self, peer: PortId) {
        self.peer.set_relaxed(u32::from(peer.node) << 16 | u32::from(peer.port));
    }

    /// Records the connection: the pid of the peer and the inode of the window table.
    pub(crate) fn set_link(&self, peer_pid: i32, windows: u64) {
        self.windows.set_relaxed(windows);
        self.peer_pid.set_relaxed(u32::from_ne_bytes(peer_pid.to_ne_bytes()));
    }

    /// Counts one more message. The caller holds the sending lock.
    #[inline]
    pub(crate) fn sent(&self, n: usize) {
        self.sent.set_relaxed(self.sent.get_relaxed().wrapping_add(n as u64));
    }

    /// Counts one more received message. The caller holds the receiving lock.
    #[inline]
    pub(crate) fn received(&self, n: usize) {
        self.received.set_relaxed(self.received.get_relaxed().wrapping_add(n as u64));
    }

    /// Counts one more RMA.
    #[inline]
    pub(crate) fn rma(&self, read: bool, n: usize) {
        let [count, bytes] = if read { self.reads } else { self.writes };
        count.add(1);
        bytes.add(n as u64);
    }

    /// Counts a window of the peer that the program mapped.
    pub(crate) fn mapped(&self) {
        self.mapped.add(1);
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.number.set(0);
        if let Some(index) = self.index.filter(|_| self.shown.generation == fork::generation()) {
            take(&self.shown.free).push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_used_again() {
        let stats = Stats::new(3).unwrap();
        let one = stats.record(1, 77).unwrap();
        let two = stats.record(2, 78).unwrap();
        assert_ne!(one.index, two.index);
        let index = one.index;
        one.sent(5);
        one.rma(true, 9);
        drop(one);
        let three = stats.record(3, 79).unwrap();
        assert_eq!(three.index, index);
        assert_eq!((three.sent.get(), three.reads[1].get()), (0, 0));
        assert_eq!(three.shown.map.word32(24).unwrap().get(), 2);
    }
}

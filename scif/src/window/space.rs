// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! What each side of a connection shows the other of its memory: its table of windows, and the arena in which the pages
//! of windows lie.
//!
//! Not about what is registered there. An arena is one sparse memfd a connection and side: a peer never gets a
//! descriptor that covers pages of another connection.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::SealFlags;

use super::table::{ARENA_BYTES, OwnTable, TABLE_BYTES, Table};
use crate::epd::{Failure, Result};
use crate::sys::memfd::{self, FIXED_SIZE};
use crate::sys::mmap::Mapping;

/// The table cannot be written through a mapping made after it was sealed: ours was made before.
const SEALED: SealFlags = FIXED_SIZE.union(SealFlags::FUTURE_WRITE);

/// What this side shows.
#[derive(Debug)]
pub(crate) struct OwnSpace {
    pub(crate) table: OwnTable,
    table_fd: OwnedFd,
    arena: OwnedFd,
}

/// What the peer shows.
#[derive(Debug)]
pub(crate) struct PeerSpace {
    pub(crate) table: Table,
    arena: OwnedFd,
}

impl OwnSpace {
    pub(crate) fn new() -> Result<OwnSpace> {
        let table_fd = memfd::create("scif:windows", TABLE_BYTES)?;
        let table = OwnTable::over(Mapping::shared(&table_fd, TABLE_BYTES, true)?)?;
        memfd::seal(&table_fd, SEALED)?;
        let arena = memfd::create("scif:arena", ARENA_BYTES)?;
        memfd::seal(&arena, FIXED_SIZE)?;
        Ok(OwnSpace {
            table,
            table_fd,
            arena,
        })
    }

    /// What the peer is to be given, in this order.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.table_fd.as_fd(), self.arena.as_fd()]
    }

    pub(crate) fn arena(&self) -> BorrowedFd<'_> {
        self.arena.as_fd()
    }
}

impl PeerSpace {
    /// From the two descriptors of the peer.
    ///
    /// # Errors
    /// They are not what they must be.
    pub(crate) fn adopt(table: &OwnedFd, arena: OwnedFd) -> Result<PeerSpace> {
        memfd::check(table, TABLE_BYTES, SEALED).map_err(|_| Failure::Broken)?;
        memfd::check(&arena, ARENA_BYTES, FIXED_SIZE).map_err(|_| Failure::Broken)?;
        Ok(PeerSpace {
            table: Table::over(Mapping::shared(table, TABLE_BYTES, false)?)?,
            arena,
        })
    }

    pub(crate) fn arena(&self) -> BorrowedFd<'_> {
        self.arena.as_fd()
    }
}

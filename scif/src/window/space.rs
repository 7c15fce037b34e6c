// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! What each side of a connection shows the other of its memory: its table of windows, and the arena in which the pages
//! of windows lie.
//!
//! Not about what is registered there. An arena is one sparse memfd a connection and side: a peer never gets a
//! descriptor that covers pages of another connection.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::SealFlags;
use scif_ring::counter::Flag;

use super::table::{ARENA_BYTES, OwnTable, TABLE_BYTES, Table};
use crate::epd::{Failure, Result};
use crate::sys::memfd::{self, FIXED_SIZE};
use crate::sys::mmap::Mapping;
use crate::sys::pages;

/// The table cannot be written through a mapping made after it was sealed: ours was made before.
const SEALED: SealFlags = FIXED_SIZE.union(SealFlags::FUTURE_WRITE);

/// A table of windows, and its descriptor. Only a process that had it before a fork, or made it, can write it.
#[derive(Clone, Debug)]
pub(crate) struct OwnBook {
    table: Arc<OwnTable>,
    fd: Arc<OwnedFd>,
    inode: u64,
}

/// What this side shows.
#[derive(Debug)]
pub(crate) struct OwnSpace {
    pub(crate) table: Arc<OwnTable>,
    table_fd: Arc<OwnedFd>,
    arena: Arc<OwnedFd>,
    inode: u64,
    /// Whether the kernel counts who has the arena.
    counted: Flag,
}

/// What the peer shows.
#[derive(Debug)]
pub(crate) struct PeerSpace {
    pub(crate) table: Table,
    arena: OwnedFd,
}

impl OwnBook {
    pub(crate) fn new() -> Result<OwnBook> {
        let fd = memfd::create("scif:windows", TABLE_BYTES)?;
        let table = OwnTable::over(Mapping::shared(&fd, TABLE_BYTES, true)?)?;
        memfd::seal(&fd, SEALED)?;
        let inode = pages::file_id(&fd)?.ino;
        Ok(OwnBook {
            table: Arc::new(table),
            fd: Arc::new(fd),
            inode,
        })
    }
}

impl OwnSpace {
    pub(crate) fn new() -> Result<OwnSpace> {
        OwnSpace::of(OwnBook::new()?)
    }

    /// A new arena, and a table that may be older: nobody had windows in it yet.
    pub(crate) fn of(book: OwnBook) -> Result<OwnSpace> {
        let arena = memfd::create(pages::ARENA_NAME, ARENA_BYTES)?;
        memfd::seal(&arena, FIXED_SIZE)?;
        Ok(OwnSpace::inherit(book, arena, false))
    }

    /// What another holder made of the same table.
    pub(crate) fn inherit(book: OwnBook, arena: OwnedFd, counted: bool) -> OwnSpace {
        OwnSpace {
            table: book.table,
            table_fd: book.fd,
            arena: Arc::new(arena),
            inode: book.inode,
            counted: Flag::new(counted),
        }
    }

    pub(crate) fn book(&self) -> OwnBook {
        OwnBook {
            table: Arc::clone(&self.table),
            fd: Arc::clone(&self.table_fd),
            inode: self.inode,
        }
    }

    pub(crate) fn is_counted(&self) -> bool {
        self.counted.get()
    }

    /// What the peer is to be given: the table and the arena. The arena is opened anew and locked as shared, which it is
    /// until the last descriptor and mapping made of that are gone.
    pub(crate) fn show(&self) -> Result<(BorrowedFd<'_>, OwnedFd)> {
        let arena = match memfd::reopen_shared(&*self.arena) {
            Ok(arena) => {
                self.counted.set(true);
                arena
            }
            Err(errno) => {
                log::debug!("mappings of peers that are gone are not noticed: {errno}");
                self.arena.try_clone().map_err(|_| Failure::NoMemory)?
            }
        };
        Ok((self.table_fd.as_fd(), arena))
    }

    /// Whether a peer has the arena, or a mapping of it.
    pub(crate) fn is_arena_referred_to(&self) -> bool {
        !self.counted.get() || memfd::is_shared(&*self.arena)
    }

    /// The arena, if any of it was ever given out, for after the end of the endpoint.
    pub(crate) fn used_arena(&self) -> Option<(Arc<OwnedFd>, bool)> {
        let used = self.table.has_given().unwrap_or(true);
        used.then(|| (Arc::clone(&self.arena), self.counted.get()))
    }

    /// Of the table.
    pub(crate) fn inode(&self) -> u64 {
        self.inode
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

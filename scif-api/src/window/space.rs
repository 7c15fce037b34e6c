// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory that each side of a connection makes visible to the other: its window table, and the
//! arena with the pages of its windows.
//!
//! Not about the registered content. An arena is one sparse memfd per connection and side: a peer
//! never gets a descriptor that covers pages of another connection.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::SealFlags;
use scif::sys::memfd::{self, FIXED_SIZE};
use scif::sys::mmap::Mapping;
use scif::sys::pages;
use scif_ring::counter::AtomicFlag;

use super::table::{ARENA_BYTES, OwnTable, TABLE_BYTES, Table};

use crate::failure::{Failure, Result};

/// Seals of a table. Mappings made after the sealing, such as the peer's, are read-only. The
/// library's own writable mapping is older.
const SEALED: SealFlags = FIXED_SIZE.union(SealFlags::FUTURE_WRITE);

/// Window table with its descriptor. Only the process that made it, and its later forked children,
/// can write it.
#[derive(Clone, Debug)]
pub(crate) struct OwnBook {
    table: Arc<OwnTable>,
    fd: Arc<OwnedFd>,
    inode: u64,
}

/// Memory of this side that the peer can see.
#[derive(Debug)]
pub(crate) struct OwnSpace {
    pub(crate) table: Arc<OwnTable>,
    table_fd: Arc<OwnedFd>,
    arena: Arc<OwnedFd>,
    inode: u64,
    /// Whether the kernel counts the owners of the arena.
    counted: AtomicFlag,
}

/// Memory of the peer that this side can see.
#[derive(Debug)]
pub(crate) struct PeerSpace {
    pub(crate) table: Table,
    arena: OwnedFd,
}

/// Memory that each side of a connection shows the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spaces<'a> {
    pub(crate) own: &'a OwnSpace,
    pub(crate) peer: &'a PeerSpace,
}

impl OwnBook {
    pub(crate) fn new() -> Result<OwnBook> {
        let fd = memfd::create("scif:windows", TABLE_BYTES)?;
        let table = OwnTable::over(Mapping::shared(&fd, TABLE_BYTES, true)?)?;
        memfd::seal(&fd, SEALED)?;
        let inode = pages::file_id(&fd)?.ino;
        Ok(OwnBook { table: Arc::new(table), fd: Arc::new(fd), inode })
    }
}

impl OwnSpace {
    pub(crate) fn new() -> Result<OwnSpace> {
        OwnSpace::of(OwnBook::new()?)
    }

    /// Makes a new arena for a table, which may be older but has no windows yet.
    pub(crate) fn of(book: OwnBook) -> Result<OwnSpace> {
        let arena = memfd::create(pages::ARENA_NAME, ARENA_BYTES)?;
        memfd::seal(&arena, FIXED_SIZE)?;
        Ok(OwnSpace::inherit(book, arena, false))
    }

    /// Takes over the arena that another sharer made for the same table.
    pub(crate) fn inherit(book: OwnBook, arena: OwnedFd, counted: bool) -> OwnSpace {
        OwnSpace {
            table: book.table,
            table_fd: book.fd,
            arena: Arc::new(arena),
            inode: book.inode,
            counted: AtomicFlag::new(counted),
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

    /// Returns the descriptors for the peer: the table and the arena. The arena is opened again and
    /// locked as shared. The lock lasts until the last descriptor and mapping made from it are
    /// closed.
    pub(crate) fn show(&self) -> Result<(BorrowedFd<'_>, OwnedFd)> {
        let arena = match memfd::reopen_shared(&*self.arena) {
            Ok(arena) => {
                self.counted.set(true);
                arena
            }
            Err(errno) => {
                log::debug!(
                    "arena could not be opened again for the peer: {errno}; pages of deleted \
                     windows stay in it, since the end of its use by the peer cannot be \
                     detected. Raise the limit of open files (ulimit -n)"
                );
                self.arena.try_clone().map_err(|_| Failure::NoMemory)?
            }
        };
        Ok((self.table_fd.as_fd(), arena))
    }

    /// Whether a peer has the arena, or a mapping of it.
    pub(crate) fn is_arena_referred_to(&self) -> bool {
        !self.counted.get() || memfd::is_shared(&*self.arena)
    }

    /// Returns the arena, if any part was ever allocated, to keep it after the end of the endpoint.
    pub(crate) fn used_arena(&self) -> Option<(Arc<OwnedFd>, bool)> {
        let used = self.table.has_given().unwrap_or(true);
        used.then(|| (Arc::clone(&self.arena), self.counted.get()))
    }

    /// Returns the inode of the table.
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    pub(crate) fn arena(&self) -> BorrowedFd<'_> {
        self.arena.as_fd()
    }
}

impl PeerSpace {
    /// Maps the table and the arena of the peer.
    ///
    /// # Errors
    /// [`Failure::Broken`] if size or seals of a descriptor are wrong.
    pub(crate) fn adopt(table: &OwnedFd, arena: OwnedFd) -> Result<PeerSpace> {
        memfd::check(table, TABLE_BYTES, SEALED).map_err(|_| Failure::Broken)?;
        memfd::check(&arena, ARENA_BYTES, FIXED_SIZE).map_err(|_| Failure::Broken)?;
        Ok(PeerSpace { table: Table::over(Mapping::shared(table, TABLE_BYTES, false)?)?, arena })
    }

    pub(crate) fn arena(&self) -> BorrowedFd<'_> {
        self.arena.as_fd()
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The sparse memfd of a domain into which registered pages move, and which peers map.
//!
//! Not about the pages in it (`migrate`).

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use crate::sys::fork::PrivateFd;
use crate::sys::memfd::{self, FIXED_SIZE};
use crate::sys::pages::{self, FileId};

/// Size in bytes of an arena: address space, not memory.
pub const ARENA_BYTES: usize = 64 << 30;

/// Memory that a domain exports to its peers.
#[derive(Debug)]
pub(crate) struct Arena {
    fd: PrivateFd,
    pub(crate) file: FileId,
}

impl Arena {
    pub(crate) fn new() -> Result<Arena, Errno> {
        let fd = memfd::create(pages::WINDOW_NAME, ARENA_BYTES)?;
        memfd::seal(&fd, FIXED_SIZE)?;
        let file = pages::file_id(&fd)?;
        Ok(Arena { fd: PrivateFd::new(fd), file })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

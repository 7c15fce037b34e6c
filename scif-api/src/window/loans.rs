// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Loans: pages in the arena of one connection that belong to a window of another.
//!
//! The peer of the other connection maps them through the arena that the owner's process has open,
//! if the system permits it. Until the loan ends, the lender does not move the pages. It ends when
//! the borrowing window is deleted and its peer maps none of its pages. If the connection of that
//! window has ended, its peer cannot be asked, and the loan lasts until the lender's connection
//! ends.

use std::sync::Arc;

use scif::sys::pages::FileId;
use scif_ring::counter::AtomicFlag;

/// Pages of a new window that lie in the arena of another connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lent {
    pub(crate) arena: FileId,
    pub(crate) range: (u64, u64),
}

/// Pages lent to one window.
#[derive(Debug)]
pub(crate) struct Loan {
    /// Range of the lender's arena.
    range: (u64, u64),
    /// Serial number of the borrower's window.
    serial: u32,
    ended: AtomicFlag,
}

impl Loan {
    pub(crate) fn new(range: (u64, u64), serial: u32) -> Arc<Loan> {
        Arc::new(Loan { range, serial, ended: AtomicFlag::new(false) })
    }

    pub(crate) fn is_of(&self, serial: u32) -> bool {
        self.serial == serial
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.get()
    }

    pub(crate) fn end(&self) {
        self.ended.set(true);
    }

    /// Returns the lent part of a range of the lender's arena.
    pub(crate) fn part_of(&self, (begin, end): (u64, u64)) -> Option<(u64, u64)> {
        let part = (begin.max(self.range.0), end.min(self.range.1));
        (part.0 < part.1).then_some(part)
    }
}

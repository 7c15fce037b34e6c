// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Loans: pages in the arena of one connection that belong to a window of another.
//!
//! The peer of the other connection maps them through the arena that the owner's process has open,
//! if the system permits it. Until the loan ends, the lender does not move the pages. It ends when
//! the borrowing window is deleted and its peer maps none of its pages. If the connection of that
//! window has ended, its peer cannot be asked, and the loan lasts until the lender's connection
//! ends.

use std::sync::Arc;

use scif::sys::pages;
use scif_ring::counter::AtomicFlag;

use super::register::Lent;
use super::state::WindowState;
use super::table::{Place, Window};
use crate::{Epd, Inner};

/// Pages lent to one window.
#[derive(Debug)]
pub(super) struct Loan {
    /// Range of the lender's arena.
    range: (u64, u64),
    /// Serial number of the borrower's window.
    serial: u32,
    ended: AtomicFlag,
}

impl Loan {
    pub(super) fn new(range: (u64, u64), serial: u32) -> Arc<Loan> {
        Arc::new(Loan {
            range,
            serial,
            ended: AtomicFlag::new(false),
        })
    }

    pub(super) fn is_of(&self, serial: u32) -> bool {
        self.serial == serial
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.get()
    }

    pub(super) fn end(&self) {
        self.ended.set(true);
    }

    /// Returns the lent part of a range of the lender's arena.
    pub(super) fn part_of(&self, (begin, end): (u64, u64)) -> Option<(u64, u64)> {
        let part = (begin.max(self.range.0), end.min(self.range.1));
        (part.0 < part.1).then_some(part)
    }
}

impl Inner {
    /// Records the loans of other connections' arenas to a new window of `borrower`.
    pub(super) fn borrow(&self, borrower: &Epd, serial: u32, lent: &[Lent]) {
        for lent in lent {
            let loan = Loan::new(lent.range, serial);
            let lends = |epd: &Arc<Epd>| {
                epd.link()
                    .is_some_and(|link| pages::file_id(link.own.arena()) == Ok(lent.arena))
            };
            // The arena of an ended connection counts its references itself.
            if let Some(lender) = self.every().into_iter().find(lends) {
                lender.windows.lend(Arc::clone(&loan));
            }
            borrower.windows.borrow(loan);
        }
    }
}

impl WindowState {
    /// Ends the loans to windows that were deleted.
    pub(super) fn give_back(&self, gone: &[&Window]) {
        for window in gone {
            if matches!(window.place, Place::InPlace { .. }) {
                self.end_loans(window.serial);
            }
        }
    }
}

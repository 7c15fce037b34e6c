// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Two ranks meeting in shared memory, without a system call and without the provider.
//!
//! The parent kills a pair of which one side no longer comes, so waiting has no end here.

use std::cell::Cell;

use scif_fabtests::harness::Outcome;

use super::segment::{Segment, Use, Word};

/// One rank's place at the meetings.
pub(crate) struct Meeting {
    pub(crate) segment: Segment,
    pub(crate) rank: usize,
    been: Cell<u64>,
}

impl Meeting {
    /// Nobody has met yet.
    pub(crate) fn new(segment: Segment, rank: usize) -> Meeting {
        Meeting {
            segment,
            rank,
            been: Cell::new(0),
        }
    }

    /// This rank's word of two.
    pub(crate) fn mine(&self, both: [Use; 2]) -> Word {
        self.segment.word_of(self.rank, both)
    }

    /// The other rank's word of two.
    pub(crate) fn theirs(&self, both: [Use; 2]) -> Word {
        self.segment.word_of(1 - self.rank, both)
    }

    /// Waits for the other rank, calling `idle` meanwhile; what either wrote before, both see after.
    pub(crate) fn meet(&self, mut idle: impl FnMut() -> Outcome) -> Outcome {
        const BOTH: [Use; 2] = [Use::Arrived0, Use::Arrived1];
        let turn = self.been.get() + 1;
        self.been.set(turn);
        self.mine(BOTH).set(turn);
        let theirs = self.theirs(BOTH);
        let mut spins = 0_u32;
        while theirs.get() < turn {
            idle()?;
            spins = spins.wrapping_add(1);
            if spins.is_multiple_of(1024) {
                // Where both ranks share a processor the other one must come to its turn.
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Waits for the other rank and does nothing meanwhile.
    pub(crate) fn meet_idly(&self) {
        let _ = self.meet(|| Ok(()));
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Barrier of two ranks in shared memory, without a system call and without the provider.
//!
//! The parent kills a pair with a missing side, so a wait has no time limit.

use std::cell::Cell;

use scif_fabtests::harness::Outcome;

use super::segment::{Segment, Use, Word};

/// Side of one rank at the barrier.
pub(crate) struct ShmBarrier {
    pub(crate) segment: Segment,
    pub(crate) rank: usize,
    been: Cell<u64>,
}

impl ShmBarrier {
    /// Returns the side of `rank`, before any barrier.
    pub(crate) fn new(segment: Segment, rank: usize) -> ShmBarrier {
        ShmBarrier { segment, rank, been: Cell::new(0) }
    }

    /// Returns the word of this rank among two.
    pub(crate) fn mine(&self, both: [Use; 2]) -> Word {
        self.segment.word_of(self.rank, both)
    }

    /// The other rank's word of two.
    pub(crate) fn theirs(&self, both: [Use; 2]) -> Word {
        self.segment.word_of(1 - self.rank, both)
    }

    /// Waits for the other rank, calling `idle` meanwhile. Earlier writes of either rank are
    /// visible to both afterwards.
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
            if spins % 1024 == 0 {
                // If both ranks share a processor, the other one has to run.
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Waits for the other rank without any work meanwhile.
    pub(crate) fn meet_idly(&self) {
        let _ = self.meet(|| Ok(()));
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory of the program that RMAs of this process store to, for as long as they do. The kernel does that for them, and no guard
//! holds it up: pages that moved meanwhile would lose it.
//!
//! Not about memory in windows, which the table of the endpoint knows.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::epd::{Inner, take};
use crate::sys::fork;
use crate::sys::time::now_ns;

const PAUSE: Duration = Duration::from_micros(20);
/// The longest wait for RMAs to end.
const PATIENCE_NS: u64 = 30_000_000_000;

/// From an address up to another, in the process of so many forks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Range {
    begin: u64,
    end: u64,
    generation: u64,
}

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct Targets(Mutex<Vec<Range>>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Target {
    all: Arc<Targets>,
    range: Range,
}

impl Targets {
    fn add(self: &Arc<Self>, begin: u64, len: u64) -> Target {
        let range = Range::here(begin, len);
        take(&self.0).push(range);
        Target {
            all: Arc::clone(self),
            range,
        }
    }

    /// What a parent stores to is the parent's.
    pub(super) fn ranges(&self) -> Vec<(u64, u64)> {
        let here = fork::generation();
        let all = take(&self.0);
        let mine = all.iter().filter(|range| range.generation == here);
        mine.map(|range| (range.begin, range.end)).collect()
    }
}

impl Range {
    fn here(begin: u64, len: u64) -> Range {
        Range {
            begin,
            end: begin.saturating_add(len),
            generation: fork::generation(),
        }
    }

    fn touches(&self, other: &Range) -> bool {
        self.generation == other.generation && self.begin < other.end && self.end > other.begin
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let mut all = take(&self.all.0);
        if let Some(at) = all.iter().position(|range| *range == self.range) {
            all.swap_remove(at);
        }
    }
}

impl Inner {
    /// An RMA is about to store to so much of the program's memory. Not while pages move.
    pub(super) fn target(&self, addr: usize, len: usize) -> Target {
        let _moving = take(&self.moving);
        self.targets.add(addr as u64, len as u64)
    }

    /// Until none stores to so much memory, whose pages can move then. If that takes too long they stay.
    pub(crate) fn wait_for_targets(&self, addr: usize, len: usize) {
        let wanted = Range::here(addr as u64, len as u64);
        let begin = now_ns();
        while take(&self.targets.0).iter().any(|range| range.touches(&wanted))
            && now_ns() - begin < PATIENCE_NS
        {
            std::thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_there_until_they_are_dropped() {
        let all = Arc::new(Targets::default());
        let (first, second, again) = (
            all.add(0x1000, 0x10),
            all.add(u64::MAX - 1, 9),
            all.add(0x1000, 0x10),
        );
        drop(first);
        assert_eq!(all.ranges(), [(0x1000, 0x1010), (u64::MAX - 1, u64::MAX)]);
        drop(again);
        assert_eq!(all.ranges(), [(u64::MAX - 1, u64::MAX)]);
        let touches = |begin, len| {
            take(&all.0)
                .iter()
                .any(|range| range.touches(&Range::here(begin, len)))
        };
        assert!(touches(u64::MAX - 8, 9) && !touches(u64::MAX - 8, 7));
        drop(second);
        assert!(all.ranges().is_empty());
    }
}

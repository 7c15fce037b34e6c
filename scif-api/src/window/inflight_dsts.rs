// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory of the program that RMAs of this process write to, while they do. The kernel performs
//! these writes, and write protection does not block them. So pages must not move meanwhile: data
//! would be written to the old page.
//!
//! Not about memory in windows, which the table of the endpoint records.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use scif::sys::fork;
use scif::sys::pages::PAGE;
use scif::sys::time::now_ns;

use crate::lock::take;

const PAUSE: Duration = Duration::from_micros(20);
/// Nanoseconds to wait for RMAs to end. Afterwards the pages count as not movable.
const PATIENCE_NS: u64 = 30_000_000_000;

#[derive(Clone, Copy, Debug)]
struct Range {
    begin: u64,
    end: u64,
    /// Fork generation of the process.
    generation: u64,
    /// Number of ranges before it.
    number: u64,
}

#[derive(Debug, Default)]
struct All {
    now: Vec<Range>,
    /// Number of ranges that ever existed.
    count: u64,
}

/// Memory of the program that RMAs of this process write to.
#[derive(Debug, Default)]
pub(crate) struct InflightDsts(Mutex<All>);

/// Range that an RMA writes to, until it is dropped.
#[derive(Debug)]
pub(crate) struct Target {
    all: Arc<InflightDsts>,
    number: u64,
}

impl Range {
    /// Makes a range of whole pages, the unit in which they move.
    fn here(begin: u64, len: u64, number: u64) -> Range {
        let page = PAGE as u64;
        let end = begin.saturating_add(len);
        Range {
            begin: begin - begin % page,
            end: end.checked_next_multiple_of(page).unwrap_or(u64::MAX),
            generation: fork::generation(),
            number,
        }
    }

    fn is_before_and_in(&self, other: &Range) -> bool {
        self.number < other.number
            && self.generation == other.generation
            && self.begin < other.end
            && self.end > other.begin
    }
}

impl InflightDsts {
    /// Adds a range of the program's memory that an RMA is about to write to. Waits while pages
    /// move, which the lock `moving` shows.
    pub(crate) fn target(self: &Arc<Self>, moving: &Mutex<()>, addr: usize, len: usize) -> Target {
        let _moving = take(moving);
        self.add(addr as u64, len as u64)
    }

    /// Waits until no RMA that exists now writes to the memory, so that its pages can move. They
    /// stay if this takes longer than `PATIENCE_NS`, or if new RMAs come.
    pub(crate) fn wait_for(&self, addr: usize, len: usize) {
        let wanted = self.wanted(addr as u64, len as u64);
        let begin = now_ns();
        while self.has_in(&wanted) && now_ns() - begin < PATIENCE_NS {
            std::thread::sleep(PAUSE);
        }
    }

    fn add(self: &Arc<Self>, begin: u64, len: u64) -> Target {
        let mut all = take(&self.0);
        let number = all.count;
        all.count += 1;
        all.now.push(Range::here(begin, len, number));
        Target { all: Arc::clone(self), number }
    }

    /// Returns the ranges of this process. Ranges of a parent belong to the parent.
    pub(crate) fn ranges(&self) -> Vec<(u64, u64)> {
        let here = fork::generation();
        let all = take(&self.0);
        let mine = all.now.iter().filter(|range| range.generation == here);
        mine.map(|range| (range.begin, range.end)).collect()
    }

    pub(crate) fn any(&self) -> bool {
        !self.ranges().is_empty()
    }

    /// Makes a range to look for with [`InflightDsts::has_in`], which finds only ranges added
    /// earlier.
    fn wanted(&self, begin: u64, len: u64) -> Range {
        Range::here(begin, len, take(&self.0).count)
    }

    fn has_in(&self, wanted: &Range) -> bool {
        let all = take(&self.0);
        all.now.iter().any(|range| range.is_before_and_in(wanted))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        take(&self.all.0).now.retain(|range| range.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pages, endpoints};

    #[test]
    fn memory_is_pinned_between_rmas_that_overlap() {
        let scif = endpoints("pin-rma", 0);
        let memory = Pages::new(PAGE).unwrap();
        let first = scif.0.targets.target(&scif.0.moving, memory.addr() + 8, 8);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                let next = scif.0.targets.target(&scif.0.moving, memory.addr() + 64, 8);
                drop(first);
                std::thread::sleep(Duration::from_millis(20));
                drop(next);
            });
            assert!(scif.pin_pages(memory.addr(), PAGE, 3, 0).is_ok());
        });
    }

    #[test]
    fn targets_are_listed_until_dropped() {
        let all = Arc::new(InflightDsts::default());
        let early = all.wanted(0, u64::MAX);
        let first = all.add(0x1010, 0x10);
        let second = all.add(u64::MAX - 1, 9);
        let again = all.add(0x1ff0, 0x11);
        assert!(!all.has_in(&early), "they came later");
        drop(first);
        let mut ranges = all.ranges();
        ranges.sort_unstable();
        let last = u64::MAX - 0xfff;
        assert_eq!(ranges, [(0x1000, 0x3000), (last, u64::MAX)], "whole pages");
        drop(again);
        assert!(all.has_in(&all.wanted(last - 1, 2)));
        assert!(!all.has_in(&all.wanted(last - 8, 8)));
        assert!(all.any());
        drop(second);
        assert!(!all.any());
    }
}

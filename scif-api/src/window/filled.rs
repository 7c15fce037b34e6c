// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Mappings of windows that replaced a part of the program's own memory (SCIF_MAP_FIXED). When the
//! program unmaps them, private memory takes their place: an allocator that gets its buffer back
//! may store to it.
//!
//! Not about munmap(2), of which the library gets no notice. Source: `scif_munmap`.

use std::sync::Mutex;

use rustix::io::Errno;
use scif::sys::pages::{self, PAGE};

use super::mover::without;
use crate::lock::take;

/// Ranges of addresses where such mappings were made, and may still exist.
#[derive(Debug, Default)]
pub(crate) struct Filled(Mutex<Ranges>);

#[derive(Debug, Default)]
struct Ranges {
    all: Vec<ByteRange>,
    /// Number of ranges above which each is checked, since other calls may have removed its
    /// mapping.
    look_at: usize,
}

/// First address, and the one behind the last.
type ByteRange = (u64, u64);

/// Minimum number of ranges for a check.
const LOOK_MIN: usize = 64;

/// Returns the parts of a range that show windows now; `None` if this is unknown.
fn windows_in(range: ByteRange) -> Option<Vec<ByteRange>> {
    let (begin, end) = (usize::try_from(range.0).ok()?, usize::try_from(range.1).ok()?);
    let areas = pages::areas(begin, end).ok()?;
    let shown = areas.iter().filter(|area| area.is_of_arena());
    let parts = shown.map(|area| area.between(begin, end));
    Some(parts.map(|part| (part.begin as u64, part.end as u64)).collect())
}

impl Ranges {
    fn add(&mut self, range: ByteRange, shown: impl Fn(ByteRange) -> Option<Vec<ByteRange>>) {
        self.all = without(std::mem::take(&mut self.all), vec![range]);
        self.all.push(range);
        // Checked at every doubling, so that the cost of a mapping is independent of their number.
        if self.all.len() > self.look_at.max(LOOK_MIN) {
            let looked = self.all.iter().flat_map(|&range| shown(range).unwrap_or(vec![range]));
            self.all = looked.collect();
            self.look_at = 2 * self.all.len();
        }
    }
}

impl Filled {
    /// Records a mapping that replaced a part of the program's memory.
    pub(crate) fn enter(&self, begin: usize, end: usize) {
        take(&self.0).add((begin as u64, end as u64), windows_in);
    }

    /// Calls munmap(2), but puts private memory in place of the recorded mappings.
    pub(crate) fn unmap(&self, at: usize, len: usize) -> Result<(), Errno> {
        let mut ranges = take(&self.0);
        let end = len.checked_next_multiple_of(PAGE).and_then(|len| at.checked_add(len));
        let end = end.filter(|&end| end > at && at % PAGE == 0 && !ranges.all.is_empty());
        let Some(end) = end else {
            drop(ranges);
            return pages::unmap(at, len);
        };
        let all = (at as u64, end as u64);
        let parts: Vec<ByteRange> = ranges
            .all
            .iter()
            .map(|range| (range.0.max(all.0), range.1.min(all.1)))
            .filter(|part| part.0 < part.1)
            .flat_map(|part| windows_in(part).unwrap_or_default())
            .collect();
        let each = |of: Vec<ByteRange>, call: fn(usize, usize) -> Result<(), Errno>| {
            of.into_iter().try_for_each(|(begin, end)| {
                let begin = usize::try_from(begin).map_err(|_| Errno::INVAL)?;
                call(begin, usize::try_from(end).map_err(|_| Errno::INVAL)? - begin)
            })
        };
        each(parts.clone(), pages::put_private)?;
        ranges.all = without(std::mem::take(&mut ranges.all), vec![all]);
        drop(ranges);
        each(without(vec![all], parts), pages::unmap)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn the_cost_of_a_mapping_does_not_grow_with_their_number() {
        let mut ranges = Ranges::default();
        let looks = Cell::new(0);
        let shown = |range: ByteRange| {
            looks.set(looks.get() + 1);
            Some(vec![range])
        };
        for i in 0..10_000 {
            ranges.add((2 * i, 2 * i + 1), shown);
        }
        assert_eq!(ranges.all.len(), 10_000);
        assert!(looks.get() <= 20_000, "{}", looks.get());
    }

    #[test]
    fn ranges_without_a_window_are_forgotten() {
        let mut ranges = Ranges::default();
        for i in 0..10_000 {
            // One in a hundred still exists, with its first half.
            let shown = |(begin, _): ByteRange| {
                Some(vec![(begin, begin + 1)].split_off(usize::from(begin % 800 != 0)))
            };
            ranges.add((8 * i, 8 * i + 2), shown);
        }
        assert!(ranges.all.len() <= 300, "{}", ranges.all.len());
        assert!(ranges.all.contains(&(0, 1)) && ranges.all.contains(&(800, 801)));
        let blind = |_: ByteRange| None;
        for i in 0..1000 {
            ranges.add((100_000 + 8 * i, 100_000 + 8 * i + 1), blind);
        }
        assert!(ranges.all.len() > 1000, "what cannot be looked at is kept");
    }
}

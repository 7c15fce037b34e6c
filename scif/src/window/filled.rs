// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Mappings of windows that the program has put in place of a part of its own memory, with SCIF_MAP_FIXED. When it removes them,
//! private memory takes their place: an allocator that gets its buffer back may store to it.
//!
//! Not about munmap(2), of which the library learns nothing. Source: `scif_munmap`.

use std::sync::Mutex;

use rustix::io::Errno;

use super::back::without;
use crate::epd::take;
use crate::sys::pages::{self, PAGE};

/// Ranges of addresses where such mappings were made, and may be still.
#[derive(Debug, Default)]
pub(crate) struct Filled(Mutex<Vec<(u64, u64)>>);

/// Whether all of a range shows windows.
fn shows_windows((begin, end): (u64, u64)) -> bool {
    let (Ok(begin), Ok(end)) = (usize::try_from(begin), usize::try_from(end)) else {
        return false;
    };
    let mut reached = begin;
    for area in pages::areas(begin, end).unwrap_or_default() {
        if area.begin > reached || !area.is_of_arena() {
            return false;
        }
        reached = area.end;
    }
    reached >= end
}

impl Filled {
    /// A mapping was made there in place of a part of the program's memory.
    pub(super) fn enter(&self, begin: usize, end: usize) {
        let range = (begin as u64, end as u64);
        let mut ranges = take(&self.0);
        *ranges = without(std::mem::take(&mut *ranges), vec![range]);
        ranges.retain(|&range| shows_windows(range));
        ranges.push(range);
    }

    /// munmap(2), but for what is to be memory again.
    pub(crate) fn unmap(&self, at: usize, len: usize) -> Result<(), Errno> {
        let mut ranges = take(&self.0);
        let end = len
            .checked_next_multiple_of(PAGE)
            .and_then(|len| at.checked_add(len));
        let end = end.filter(|&end| end > at && at.is_multiple_of(PAGE) && !ranges.is_empty());
        let Some(end) = end else {
            drop(ranges);
            return pages::unmap(at, len);
        };
        let all = (at as u64, end as u64);
        let parts: Vec<(u64, u64)> = ranges
            .iter()
            .map(|range| (range.0.max(all.0), range.1.min(all.1)))
            .filter(|part| part.0 < part.1 && shows_windows(*part))
            .collect();
        let each = |of: Vec<(u64, u64)>, call: fn(usize, usize) -> Result<(), Errno>| {
            of.into_iter().try_for_each(|(begin, end)| {
                let begin = usize::try_from(begin).map_err(|_| Errno::INVAL)?;
                call(begin, usize::try_from(end).map_err(|_| Errno::INVAL)? - begin)
            })
        };
        each(parts.clone(), pages::put_private)?;
        *ranges = without(std::mem::take(&mut *ranges), vec![all]);
        drop(ranges);
        each(without(vec![all], parts), pages::unmap)
    }
}

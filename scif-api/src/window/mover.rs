// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Permission to move pages of a window back to private memory, the move, and its repetition.
//!
//! Not about the pages that must stay (`page_restore`).

use std::os::fd::BorrowedFd;

use scif::sys::pages::{self, Area, WriteFence};
use scif::sys::thread;

/// Nanoseconds after the last attempt to move pages back at which the next one is due, even if
/// `Inner::released_unmoved` has not changed. It finds pages that became free by a deletion in
/// another process of the fork group, or by the end of a temporary failure.
const AGAIN_NS: u64 = 50_000_000;

/// Time of an attempt, and the value of `Inner::released_unmoved` at that time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tries {
    pub(crate) gone: u64,
    pub(crate) now: u64,
}

/// Last attempt to move pages that had to stay.
#[derive(Debug, Default)]
pub(crate) struct TriedBack(Option<Tries>);

impl TriedBack {
    pub(crate) fn is_due(&self, now: Tries) -> bool {
        self.0.is_none_or(|last| {
            last.gone != now.gone || now.now.saturating_sub(last.now) >= AGAIN_NS
        })
    }

    pub(crate) fn have(&mut self, now: Tries) {
        self.0 = Some(now);
    }
}

/// Permission to move pages now, and the protection to use.
#[derive(Debug)]
pub(crate) struct Mover {
    guard: Option<WriteFence>,
    alone: bool,
}

impl Mover {
    /// Creates the guard. `ours` is the number of threads of the library.
    pub(crate) fn new(ours: usize) -> Mover {
        // On a thread of the library, the program's threads run beside it.
        let alone = !thread::is_ours() && pages::threads() <= 1 + ours;
        let guard = if alone { WriteFence::not_needed() } else { WriteFence::new() };
        Mover { guard, alone }
    }

    /// Whether pages may move. Without a guard, other threads could lose stores.
    pub(crate) fn may_move(&self) -> bool {
        self.alone || self.guard.is_some()
    }

    /// Whether the private pages of an area may move, from `at` on. Anonymous pages are not tested,
    /// because the test would split a huge page.
    pub(crate) fn may_move_from(&self, area: &Area, at: usize) -> bool {
        let is_anonymous = area.file.ino == 0;
        let can_hold =
            |guard: &WriteFence| !area.write || is_anonymous || pages::can_hold(guard, at);
        self.alone || self.guard.as_ref().is_some_and(can_hold)
    }

    /// Returns the guard that blocks stores of other threads. It is used even if all other threads
    /// belong to the library: registered memory may share a page with the heap of the library.
    pub(crate) fn guard(&self) -> Option<&WriteFence> {
        self.guard.as_ref()
    }

    /// Moves an area's part of a file range back, except addresses in `used`. Returns the parts of
    /// the file that stay. Moved pages are freed if only this area shows the range (`sole`).
    pub(crate) fn back(
        &self,
        area: &Area,
        range: (u64, u64),
        used: &[(u64, u64)],
        file: BorrowedFd<'_>,
        sole: bool,
    ) -> Vec<(u64, u64)> {
        let (first, last) = (range.0.max(area.offset), range.1.min(area.last_offset()));
        if first >= last {
            return Vec::new();
        }
        if !self.may_move() {
            return vec![(first, last)];
        }
        let all = (area.place(first) as u64, area.place(last) as u64);
        let mut moved = without(vec![all], used.to_vec());
        moved.retain(|&(begin, end)| {
            let (Ok(from), Ok(to)) = (usize::try_from(begin), usize::try_from(end)) else {
                return false;
            };
            let moved = if sole {
                pages::restore_and_free(area, from, to, self.guard(), file)
            } else {
                pages::restore(area, from, to, self.guard(), Some(file))
            };
            moved
                .inspect_err(|errno| {
                    log::debug!(
                        "pages of a window could not be moved back to private memory: {area:?}: \
                         {errno}; the move is repeated later"
                    );
                })
                .is_ok()
        });
        let stay = without(vec![all], moved).into_iter();
        stay.map(|(begin, end)| {
            (begin.wrapping_add(area.origin()), end.wrapping_add(area.origin()))
        })
        .collect()
    }
}

/// Returns the parts of `of` that are in none of `others`, sorted and merged.
pub(crate) fn without(mut of: Vec<(u64, u64)>, mut others: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    of.sort_unstable();
    others.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (begin, end) in of {
        match joined.last_mut() {
            Some((_, last)) if *last >= begin => *last = end.max(*last),
            _ => joined.push((begin, end)),
        }
    }
    let mut out = Vec::new();
    let mut others = others.into_iter().peekable();
    // End of the others, which may reach into a later range.
    let mut reached = 0;
    for (mut begin, end) in joined {
        while let Some(&(from, to)) = others.peek() {
            if from >= end {
                break;
            }
            begin = begin.max(reached);
            if from > begin {
                out.push((begin, from));
            }
            reached = reached.max(to);
            others.next();
        }
        begin = begin.max(reached);
        if begin < end {
            out.push((begin, end));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_has_no_part_of_the_others() {
        assert_eq!(without(vec![(10, 20), (0, 10)], vec![]), [(0, 20)]);
        assert_eq!(without(vec![(0, 10), (20, 30)], vec![(5, 25)]), [(0, 5), (25, 30)]);
        assert_eq!(without(vec![(0, 10)], vec![(0, 10)]), []);
        assert_eq!(without(vec![(5, 10)], vec![(0, 6), (8, 9), (10, 90)]), [(6, 8), (9, 10)]);
        assert_eq!(without(vec![(0, 4), (6, 9)], vec![(0, 7), (1, 2)]), [(7, 9)]);
        for seed in 0..2000u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut next = |n: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % n
            };
            let mut some = |n: u64| -> Vec<(u64, u64)> {
                (0..next(n))
                    .map(|_| {
                        let at = next(40);
                        (at, at + 1 + next(9))
                    })
                    .collect()
            };
            let (of, others) = (some(6), some(6));
            let out = without(of.clone(), others.clone());
            let has = |list: &[(u64, u64)], n: u64| list.iter().any(|&(b, e)| (b..e).contains(&n));
            for n in 0..60 {
                assert_eq!(
                    has(&out, n),
                    has(&of, n) && !has(&others, n),
                    "{of:?} {others:?} {out:?}"
                );
            }
        }
    }
}

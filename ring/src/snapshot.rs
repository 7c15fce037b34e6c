// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Snapshots of a state in shared memory: one writer that never waits, readers in other processes.
//!
//! Two copies are written in turn, so one of them is complete at any time. A writer that stops or
//! dies in the middle of a copy leaves the other one readable. A reader repeats its read only if
//! the writer has begun two more snapshots meanwhile.
//!
//! | word | content |
//! |---|---|
//! | 0 | number of snapshots begun |
//! | 1 | number of snapshots completed; number n lies in copy n mod 2 |
//! | 2 | copy 0, then copy 1 |

use crate::shared_word::{SharedU64, SharedWords};
use crate::sync::{Ordering, fence};

/// Words before the first copy.
const HEAD: usize = 2;

/// Returns the number of words that snapshots of `len` words occupy.
#[must_use]
pub const fn snapshot_words(len: usize) -> usize {
    HEAD + 2 * len
}

/// View of the memory of snapshots of one state.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotCell {
    begun: SharedU64,
    completed: SharedU64,
    words: SharedWords,
    first: usize,
    len: usize,
}

/// Copy that is being written.
#[derive(Debug)]
pub struct SnapshotWriter {
    words: SharedWords,
    first: usize,
    len: usize,
}

impl SnapshotWriter {
    /// Stores a word of the copy. An index beyond its end changes nothing.
    #[inline]
    pub fn put(&self, at: usize, value: u64) {
        if at < self.len {
            if let Some(word) = self.words.get(self.first + at) {
                word.set_relaxed(value);
            }
        }
    }
}

impl SnapshotCell {
    /// Returns a view of snapshots of `len` words, from word `first` of `words` on. Returns `None`
    /// if they do not lie inside.
    #[must_use]
    pub fn new(words: SharedWords, first: usize, len: usize) -> Option<SnapshotCell> {
        let end = len.checked_mul(2)?.checked_add(HEAD)?.checked_add(first)?;
        words.get(end.checked_sub(1)?)?;
        let (begun, completed) = (words.get(first)?, words.get(first + 1)?);
        Some(SnapshotCell { begun, completed, words, first: first + HEAD, len })
    }

    fn copy(&self, number: u64) -> usize {
        self.first + if number & 1 == 0 { 0 } else { self.len }
    }

    /// Writes the next snapshot. The caller is the only writer; words that `fill` does not store
    /// keep values of an older snapshot.
    pub fn write(&self, fill: impl FnOnce(&SnapshotWriter)) {
        // Only this side writes the numbers: its own last values.
        let number = self.completed.get_relaxed().wrapping_add(1);
        self.begun.set_relaxed(number);
        // SYNC POINT: pairs with the fence in `SnapshotCell::read`. A reader that sees a word of
        // this copy also sees that the copy was begun.
        fence(Ordering::Release);
        fill(&SnapshotWriter { words: self.words, first: self.copy(number), len: self.len });
        // SYNC POINT: pairs with the load in `SnapshotCell::read`.
        self.completed.set(number);
    }

    /// Copies the newest complete snapshot into `out`, which has its length. Returns its number, or
    /// `None` if the writer has overwritten the copy meanwhile.
    pub fn read(&self, out: &mut [u64]) -> Option<u64> {
        // SYNC POINT: pairs with the store in `SnapshotCell::write`.
        let number = self.completed.get();
        let first = self.copy(number);
        for (at, value) in out.iter_mut().take(self.len).enumerate() {
            *value = self.words.get(first + at)?.get_relaxed();
        }
        // SYNC POINT: pairs with the fence in `SnapshotCell::write`.
        fence(Ordering::Acquire);
        let begun = self.begun.get_relaxed();
        // The next snapshot is written to the other copy, the one after it to this copy.
        (begun.wrapping_sub(number) <= 1).then_some(number)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![expect(unsafe_code, reason = "makes words of memory of the test")]

    use core::ptr::NonNull;

    use super::*;

    const LEN: usize = 24;
    const WORDS: usize = snapshot_words(LEN);

    fn cell(memory: &mut [u64]) -> Option<SnapshotCell> {
        let count = memory.len();
        let base = NonNull::from(memory).cast::<u8>();
        // SAFETY: the memory outlives the view in each test, and is not used otherwise meanwhile.
        let words = unsafe { SharedWords::new(base, count) };
        SnapshotCell::new(words, 0, LEN)
    }

    #[test]
    fn the_last_complete_snapshot_is_read() {
        let mut memory = [0; WORDS];
        let cell = cell(&mut memory).unwrap();
        let mut seen = [9; LEN];
        assert_eq!((cell.read(&mut seen), seen), (Some(0), [0; LEN]));
        for number in 1..5 {
            cell.write(|copy| (0..LEN + 3).for_each(|at| copy.put(at, number)));
            assert_eq!((cell.read(&mut seen), seen), (Some(number), [number; LEN]));
        }
    }

    #[test]
    fn a_writer_that_stops_in_a_copy_leaves_the_other() {
        let mut memory = [0; WORDS];
        let cell = cell(&mut memory).unwrap();
        cell.write(|copy| (0..LEN).for_each(|at| copy.put(at, 7)));
        let mut seen = [0; LEN];
        cell.write(|copy| {
            copy.put(0, 8);
            assert_eq!((cell.read(&mut seen), seen), (Some(1), [7; LEN]));
        });
        assert_eq!((cell.read(&mut seen), seen[0]), (Some(2), 8));
    }

    #[test]
    fn snapshots_beyond_the_memory_are_refused() {
        let mut memory = [0u64; WORDS];
        let base = NonNull::from(&mut memory).cast::<u8>();
        // SAFETY: as in `cell`.
        let words = unsafe { SharedWords::new(base, WORDS) };
        for (first, len) in [(1, LEN), (0, LEN + 1), (usize::MAX, 1), (0, usize::MAX)] {
            assert!(SnapshotCell::new(words, first, len).is_none(), "{first} {len}");
        }
    }

    #[test]
    fn no_snapshot_is_torn() {
        let mut memory = [0; WORDS];
        let cell = cell(&mut memory).unwrap();
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        std::thread::scope(|scope| {
            let writer = scope.spawn(move || {
                for number in 1..=rounds {
                    cell.write(|copy| (0..LEN).for_each(|at| copy.put(at, number * at as u64)));
                }
            });
            let mut seen = [0; LEN];
            let mut last = 0;
            while last < rounds {
                let Some(number) = cell.read(&mut seen) else { continue };
                assert!(number >= last);
                last = number;
                let expected = core::array::from_fn(|at| number * at as u64);
                assert_eq!(seen, expected, "snapshot {number}");
            }
            writer.join().unwrap();
        });
    }
}

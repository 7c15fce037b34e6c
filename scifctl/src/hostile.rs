// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Hostile inputs of tests: words and bytes drawn from a seed.

/// Number of inputs of a test. More of them find rarer faults; builds for speed run as many as an
/// acceptance test requires.
pub(crate) const INPUTS: usize = if cfg!(debug_assertions) { 500 } else { 1_000_000 };

/// Source of words.
pub(crate) struct Words(pub(crate) u64);

impl Words {
    /// Returns the next word.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).unwrap_or(0)
    }

    /// Returns a word that a reader may stumble over: small, an end of a range, or any.
    pub(crate) fn odd(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => u64::MAX - self.next() % 4,
            3 => 1 << self.below(64),
            4 => self.next() >> self.below(64),
            _ => self.next() % 400,
        }
    }

    /// Changes some bytes.
    pub(crate) fn spoil(&mut self, bytes: &mut [u8]) {
        for _ in 0..=self.below(8) {
            let (at, len) = (self.below(bytes.len()), 1 + self.below(8));
            let word = self.odd().to_le_bytes();
            bytes.iter_mut().skip(at).zip(word).take(len).for_each(|(to, from)| *to = from);
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Whether the bodies of records are written past this core's caches.
//!
//! The consumer has had the lines of the area that are written again. Where its core is near, fetching them back for that costs
//! little; where it is not (another socket, another part of the cache) it may cost more than writing past the caches and
//! leaving it to the consumer to fetch them from memory. So the two are compared now and then. Not about: how such a copy
//! is made (`copy`).

use crate::copy;

/// Bytes from which on bodies are written past them: shorter ones gain little by it.
const MIN: usize = 12 * 1024;
/// Bodies of a comparison, written the one way and the other in turn; the next one begins 256 bodies after its beginning.
const TRIALS: u8 = 6;
/// So many times as fast must writing past them be, since what is in memory takes the consumer longer.
const GAIN: u16 = 2;

/// What one producer knows about it: small, for it lies in the line that every push uses.
#[derive(Debug)]
pub(crate) struct Bypass {
    bodies: u8,
    /// Pairs of the comparison that goes on in which the way past the caches was better.
    votes: u8,
    /// What the last comparison came to.
    past: bool,
    /// Ticks for 4 KiB through the caches, the last time.
    through: u16,
}

impl Bypass {
    pub(crate) const fn new() -> Bypass {
        Bypass {
            bodies: 0,
            votes: 0,
            past: false,
            through: 0,
        }
    }

    /// Writes a body of `len` bytes by `write`, which is told whether to do so past the caches.
    #[inline]
    pub(crate) fn write<T>(&mut self, len: usize, write: impl FnOnce(bool) -> T) -> T {
        if len < MIN {
            return write(false);
        }
        if self.bodies < TRIALS {
            return self.compare(len, write);
        }
        self.bodies = self.bodies.wrapping_add(1);
        write(self.past)
    }

    #[cold]
    fn compare<T>(&mut self, len: usize, write: impl FnOnce(bool) -> T) -> T {
        let past = self.bodies % 2 == 1;
        let begun = copy::ticks();
        let done = write(past);
        self.took(past, len, copy::ticks().wrapping_sub(begun));
        done
    }

    fn took(&mut self, past: bool, len: usize, ticks: u64) {
        let ticks = ticks.saturating_mul(4096) / len.max(1) as u64;
        let ticks = u16::try_from(ticks).unwrap_or(u16::MAX);
        if self.bodies == 0 {
            self.votes = 0;
        }
        if past {
            self.votes += u8::from(self.through > ticks.saturating_mul(GAIN));
        } else {
            self.through = ticks;
        }
        self.bodies += 1;
        if self.bodies == TRIALS {
            self.past = self.votes > TRIALS / 4;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A comparison of bodies of `lens` bytes, through the caches and past them, that take so many ticks for each 4 KiB; the times
    /// of pair `disturbed` are the other way round.
    fn compared(lens: [usize; 2], ticks: [u64; 2], disturbed: Option<u8>) -> bool {
        let mut bypass = Bypass::new();
        for i in 0..TRIALS {
            let way = usize::from(i % 2);
            let ticks = ticks[if disturbed == Some(i / 2) { 1 - way } else { way }];
            bypass.took(way == 1, lens[way], ticks * lens[way] as u64 / 4096);
        }
        bypass.past
    }

    #[test]
    fn goes_past_the_caches_where_that_is_twice_as_fast() {
        let same = [2 * MIN; 2];
        assert!(compared(same, [1000, 400], None));
        assert!(!compared(same, [1000, 600], None));
        assert!(compared(same, [1000, 400], Some(1)), "two of three");
        assert!(!compared(same, [400, 1000], Some(1)), "one of three");
        assert!(compared([MIN, 2 * MIN], [1000, 400], None), "for each byte");
        assert!(!compared([2 * MIN, MIN], [1000, 600], None), "for each byte");
        assert!(compared(same, [100_000, 20_000], None), "more than is kept");
        assert!(!compared(same, [100_000, 60_000], None), "more than is kept");
        assert!(!compared(same, [0, 0], None), "a clock that stands still");
    }

    #[test]
    fn compares_again_and_leaves_short_bodies_alone() {
        let mut bypass = Bypass::new();
        (0..TRIALS).for_each(|i| bypass.took(i % 2 == 1, MIN, if i % 2 == 1 { 100 } else { 1000 }));
        assert!(!bypass.write(MIN - 1, |past| past));
        assert!((u32::from(TRIALS)..256).all(|_| bypass.write(MIN, |past| past)));
        let ways: Vec<bool> = (0..TRIALS).map(|_| bypass.write(MIN, |past| past)).collect();
        assert_eq!(ways, [false, true, false, true, false, true]);
    }
}

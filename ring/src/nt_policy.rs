// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Choice between cached and non-temporal stores for record bodies.
//!
//! The lines of the data area that a producer writes again are in the cache of the consumer's core.
//! Between near cores it costs little to fetch them back. Between distant cores (another socket,
//! another part of the cache) non-temporal stores may cost less, although the consumer then fetches
//! the body from memory. So both are measured at intervals.
//!
//! Not about: the copy itself (`copy`).

use crate::copy;

/// Length in bytes from which non-temporal stores are considered. Shorter bodies gain little.
const MIN: usize = 12 * 1024;
/// Number of bodies per comparison, alternately cached and non-temporal. A comparison starts every
/// 256 bodies.
const TRIALS: u8 = 6;
/// Factor by which non-temporal stores must be faster to be chosen, because the consumer reads
/// memory more slowly than a cache.
const GAIN: u16 = 2;

/// Statistics of one producer. Kept small, because every push uses their line.
#[derive(Debug)]
pub(crate) struct Bypass {
    bodies: u8,
    /// Number of pairs in the current comparison that non-temporal stores won.
    votes: u8,
    /// Whether non-temporal stores won the last comparison.
    past: bool,
    /// Ticks for 4 KiB with cached stores in the last measurement.
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

    /// Writes a body of `len` bytes through `write`, whose argument requests non-temporal stores.
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

    /// Runs a comparison of bodies of `lens` bytes, cached and non-temporal, that take `ticks` per
    /// 4 KiB. Pair `disturbed` has its times swapped. Returns the result.
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

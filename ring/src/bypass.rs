// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Whether the bodies of records are written past this core's caches.
//!
//! The consumer has read the lines of the area that are written again. Where its core is near, writing takes them back as
//! quickly as anything; where it is not (another socket, another part of the cache), each line comes slowly and in the
//! order of the stores: 16 KiB took 12.4 us to the other side and 4.7 us past the caches, and between near cores it is
//! the other way round. So the two are compared now and then. Not about: how such a copy is made (`copy`).

use crate::copy;

/// KiB from which on bodies are written past them: shorter ones are there as soon either way.
const ANY: u8 = 4;
const MIN: usize = ANY as usize * 1024;
/// Bodies of a comparison, written the one way and the other in turn; the next one begins 256 bodies after its beginning.
const TRIALS: u8 = 6;
/// What is written past the caches the consumer fetches from memory, which takes it longer: so many times faster must writing be.
const GAIN: u16 = 4;
/// For bodies of so many KiB, of which one is fetched while the next is written.
const LONG: u8 = 12;
const GAIN_LONG: u16 = 2;
/// No body is as long.
const NONE: u8 = u8::MAX;

/// What one producer knows about it: small, for it lies in the line that every push uses.
#[derive(Debug)]
pub(crate) struct Bypass {
    bodies: u8,
    /// Pairs of the comparison that goes on in which the way past the caches was better, for any body and for long ones.
    votes: [u8; 2],
    /// KiB of the least body that is written past them.
    past_from: u8,
    /// Ticks for 4 KiB through the caches, the last time.
    through: u16,
}

impl Bypass {
    pub(crate) const fn new() -> Bypass {
        Bypass {
            bodies: 0,
            votes: [0; 2],
            past_from: NONE,
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
        write(len >= usize::from(self.past_from) * 1024)
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
        let ticks = ticks.saturating_mul(MIN as u64) / len.max(1) as u64;
        let ticks = u16::try_from(ticks).unwrap_or(u16::MAX);
        if self.bodies == 0 {
            self.votes = [0; 2];
        }
        if past {
            let [any, long] = &mut self.votes;
            *any += u8::from(self.through > ticks.saturating_mul(GAIN));
            *long += u8::from(self.through > ticks.saturating_mul(GAIN_LONG));
        } else {
            self.through = ticks;
        }
        self.bodies += 1;
        if self.bodies == TRIALS {
            let [any, long] = self.votes.map(|votes| votes > TRIALS / 4);
            self.past_from = match (any, long) {
                (true, _) => ANY,
                (false, true) => LONG,
                (false, false) => NONE,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(through: u64, beside: u64) -> Bypass {
        let mut bypass = Bypass::new();
        for i in 0..u64::from(TRIALS) {
            let past = i % 2 == 1;
            // One pair is disturbed.
            let late = if i == 2 { 50_000 } else { 0 };
            bypass.took(past, 2 * MIN, late + 2 * if past { beside } else { through });
        }
        bypass
    }

    #[test]
    fn goes_past_the_caches_where_that_is_much_faster() {
        assert_eq!(compared(1000, 200).past_from, ANY);
        assert_eq!(compared(1000, 400).past_from, LONG);
        assert_eq!(compared(1000, 600).past_from, NONE);
        assert_eq!(compared(0, 0).past_from, NONE, "a clock that stands still");
    }

    #[test]
    fn compares_again_and_leaves_short_bodies_alone() {
        let mut bypass = compared(1000, 200);
        assert!(!bypass.write(MIN - 1, |past| past));
        assert!((u32::from(TRIALS)..256).all(|_| bypass.write(MIN, |past| past)));
        let ways: Vec<bool> = (0..TRIALS).map(|_| bypass.write(MIN, |past| past)).collect();
        assert_eq!(ways, [false, true, false, true, false, true]);
    }
}

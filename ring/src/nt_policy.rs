// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Choice between cached and non-temporal stores for record bodies.
//!
//! The lines of the data area that a producer writes again are in the cache of the consumer's core.
//! Between near cores it costs little to fetch them back. Between distant cores (another socket,
//! another part of the cache) non-temporal stores may cost less, although the consumer then fetches
//! the body from memory. So both are measured at intervals (`adaptive`).
//!
//! Not about: the copy itself (`copy`).

use crate::adaptive::Prober;
use crate::copy;

/// Length in bytes from which non-temporal stores are considered. Shorter bodies gain little.
const NT_BODY_MIN: usize = 12 * 1024;
/// Factor by which non-temporal stores must be faster to be chosen, because the consumer reads
/// memory more slowly than a cache.
const MIN_SPEEDUP: u64 = 2;

/// Choice of one producer.
#[derive(Debug, Default)]
pub(crate) struct NtPolicy(Prober);

impl NtPolicy {
    /// Writes a body of `len` bytes through `write`, whose argument requests non-temporal stores.
    #[inline]
    pub(crate) fn write<T>(&mut self, len: usize, write: impl FnOnce(bool) -> T) -> T {
        if len < NT_BODY_MIN {
            return write(false);
        }
        let non_temporal = self.0.takes_alternative();
        if !self.0.is_probing() {
            self.0.record(0);
            return write(non_temporal);
        }
        let begun = copy::ticks();
        let done = write(non_temporal);
        self.0.record(cost(non_temporal, len, copy::ticks().wrapping_sub(begun)));
        done
    }
}

/// Returns the cost of a body: ticks for 4 KiB, times the required speedup.
fn cost(non_temporal: bool, len: usize, ticks: u64) -> u32 {
    let factor = if non_temporal { MIN_SPEEDUP } else { 1 };
    u32::try_from(ticks.saturating_mul(4096 * factor) / len as u64).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compares_ticks_per_byte_and_requires_twice_the_speed() {
        const LEN: usize = 2 * NT_BODY_MIN;
        assert!(cost(true, LEN, 400) < cost(false, LEN, 1000));
        assert!(cost(true, LEN, 600) > cost(false, LEN, 1000));
        assert!(cost(true, LEN, 800) < cost(false, NT_BODY_MIN, 1000));
        assert!(cost(true, NT_BODY_MIN, 300) > cost(false, LEN, 1000));
        assert!(cost(true, LEN, u64::MAX) >= cost(false, LEN, u64::MAX), "no overflow");
    }

    #[test]
    fn probes_long_bodies_only() {
        let mut policy = NtPolicy::default();
        for _ in 0..1000 {
            assert!(!policy.write(NT_BODY_MIN - 1, |non_temporal| non_temporal));
        }
        assert!(!policy.0.is_probing());
        while !policy.0.is_probing() {
            policy.write(NT_BODY_MIN, |_| ());
        }
        assert!((0..10).any(|_| policy.write(NT_BODY_MIN, |non_temporal| non_temporal)));
    }
}

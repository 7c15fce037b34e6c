// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Counts of accesses to the keys of a peer that need a system call or the target.
//!
//! Not here: the consequences (`key_maps`).

/// Number of access counters for each peer. Keys that are equal modulo this number share one.
const COUNTS: usize = 16;
/// Number of accesses before the first report. With a smaller number, rarely used memory migrates.
const FIRST: u32 = 64;
/// Number of bytes of one access that count as a further access. With more, memory that is accessed
/// in large pieces is mapped late.
const BYTES: usize = 32 * 1024;

/// Returns the weight of an access to `len` bytes, as a number of accesses.
#[inline]
pub(crate) fn accesses(len: usize) -> u32 {
    u32::try_from(1 + len / BYTES).unwrap_or(u32::MAX)
}

/// Accesses to a key.
#[derive(Clone, Copy, Debug, Default)]
struct KeyUses {
    count: u32,
    /// Generation of the key, if an access has shown it.
    generation: Option<u64>,
}

/// Access counts of the keys of a peer.
#[derive(Debug, Default)]
pub(crate) struct AccessCounter([KeyUses; COUNTS]);

impl AccessCounter {
    /// Adds `more` accesses to the count of a key. Returns the count if it is to be reported. The
    /// count restarts if `generation` shows that another region has taken the key of a closed one.
    #[inline]
    pub(crate) fn count(&mut self, key: u64, generation: Option<u64>, more: u32) -> Option<u32> {
        let [low, ..] = key.to_le_bytes();
        let uses = self.0.get_mut(usize::from(low) % COUNTS)?;
        if generation.is_some() && uses.generation != generation {
            *uses = KeyUses { count: 0, generation };
        }
        let before = uses.count;
        uses.count = before.saturating_add(more);
        let has_doubled = before.checked_ilog2() != uses.count.checked_ilog2();
        (uses.count >= FIRST && has_doubled).then_some(uses.count)
    }

    /// Sets the count of a key to 0, because accesses to it no longer need a system call.
    pub(crate) fn restart(&mut self, key: u64) {
        let [low, ..] = key.to_le_bytes();
        if let Some(uses) = self.0.get_mut(usize::from(low) % COUNTS) {
            uses.count = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_counts_are_reported_when_they_double() {
        let mut uses = AccessCounter::default();
        let reported: Vec<u32> = (0..1000).filter_map(|_| uses.count(5, None, 1)).collect();
        assert_eq!(reported, [64, 128, 256, 512]);
        assert_eq!(uses.count(6, None, 1), None);
        assert_eq!(uses.count(6 + 16, None, accesses(64 * BYTES)), Some(66));
        uses.restart(5);
        assert_eq!((0..1000).filter_map(|_| uses.count(5, None, 1)).count(), 4);
        for generation in [2, 6] {
            let count = |_| uses.count(7, Some(generation), 1);
            assert_eq!((0..100).filter_map(count).collect::<Vec<_>>(), [64], "{generation}");
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Counts of accesses to the keys of a peer that need a system call or the target.
//!
//! Not here: the consequences (`key_maps`).

/// Number of access counters for each peer. Keys that are equal modulo this number share one.
const COUNTS: usize = 16;
/// Accesses before the first report. A smaller number would migrate memory that is used rarely.
const FIRST: u32 = 64;
/// Bytes of an access that count as one more access.
const BYTES: usize = 32 * 1024;

/// Access counts of the keys of a peer.
#[derive(Debug, Default)]
pub(crate) struct AccessCounter([u32; COUNTS]);

impl AccessCounter {
    fn of(&mut self, key: u64) -> Option<&mut u32> {
        let [low, ..] = key.to_le_bytes();
        self.0.get_mut(usize::from(low) % COUNTS)
    }

    /// Begins again to count the accesses to a key, which now need no call.
    pub(crate) fn restart(&mut self, key: u64) {
        if let Some(count) = self.of(key) {
            *count = 0;
        }
    }

    /// Counts an access to a key. Returns the count if it is to be reported.
    #[inline]
    pub(crate) fn count(&mut self, key: u64, len: usize) -> Option<u32> {
        let count = self.of(key)?;
        let before = *count;
        *count = before.saturating_add(u32::try_from(1 + len / BYTES).unwrap_or(u32::MAX));
        (*count >= FIRST && before.checked_ilog2() != count.checked_ilog2()).then_some(*count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_told_as_they_double() {
        let mut uses = AccessCounter::default();
        let reported: Vec<u32> = (0..1000).filter_map(|_| uses.count(5, 8)).collect();
        assert_eq!(reported, [64, 128, 256, 512]);
        assert_eq!(uses.count(6, 8), None);
        assert_eq!(uses.count(6 + 16, 64 * BYTES), Some(66));
        uses.restart(5);
        assert_eq!((0..1000).filter_map(|_| uses.count(5, 8)).count(), 4);
    }
}

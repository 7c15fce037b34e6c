// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Mutations of records, words, and bytes of packets: pure functions of the seed and of the
//! victim's messages.
//!
//! Kinds of records and the words of their headers follow `prov/src/engine/types/wire.rs`. A header
//! consists of words that the victim might accept. These are small numbers, words it has sent
//! itself, addresses and keys of its memory, and ends of ranges.

use scif_fabtests::harness::Rng;
use scif_ring::{BODY_MAX, HEAD_MAX, chunks};

/// Ranges of kinds that are likely to be valid; others are drawn as well.
const KINDS: [std::ops::RangeInclusive<u8>; 5] =
    [0x01..=0x05, 0x10..=0x17, 0x18..=0x1e, 0x20..=0x23, 0x40..=0x5f];
/// Number of words of the victim that are kept.
const WORDS: usize = 64;

/// One record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: u8,
    pub(crate) head: Vec<u8>,
    pub(crate) body: usize,
}

/// Source of mutations.
#[derive(Debug)]
pub(crate) struct Mutator {
    pub(crate) rng: Rng,
    words: Vec<u64>,
    /// Key, address and length of memory that the victim has registered.
    region: [u64; 3],
}

impl Mutator {
    pub(crate) fn new(seed: u64, region: [u64; 3]) -> Mutator {
        Mutator { rng: Rng::new(seed), words: Vec::new(), region }
    }

    /// Keeps the words of a header that the victim has sent.
    pub(crate) fn learn(&mut self, head: &[u8]) {
        for word in chunks(head) {
            if self.words.len() >= WORDS {
                let at = self.rng.below(WORDS);
                self.words.swap_remove(at);
            }
            self.words.push(u64::from_ne_bytes(*word));
        }
    }

    /// Returns a plausible word.
    pub(crate) fn word(&mut self) -> u64 {
        let [key, base, len] = self.region;
        let near = (self.rng.below(33) as u64).wrapping_sub(16);
        match self.rng.below(16) {
            0..4 => self.rng.below(64) as u64,
            4..7 => {
                let words = self.rng.pick(&self.words).unwrap_or(1);
                if self.rng.one_in(3) { words.wrapping_add(near) } else { words }
            }
            7 => key,
            8 => base.wrapping_add(near),
            9 => base.wrapping_add(len).wrapping_add(near),
            10 => len.wrapping_add(near),
            11 => 1 << self.rng.below(64),
            12 => u64::MAX.wrapping_add(near).wrapping_sub(16),
            13 => (self.rng.below(BODY_MAX + 1) as u64) << (8 * self.rng.below(8)),
            14 => u64::from(u32::MAX).wrapping_add(near),
            _ => self.rng.next_u64(),
        }
    }

    pub(crate) fn record(&mut self) -> Record {
        let kind = if self.rng.one_in(16) {
            self.rng.next_u64().to_le_bytes().first().copied().unwrap_or(0)
        } else {
            let range = self.rng.pick(&[0, 1, 2, 3, 4, 4]).and_then(|at| KINDS.get(at));
            let (first, last) = range.map_or((0, 0), |range| (*range.start(), *range.end()));
            first + u8::try_from(self.rng.below(usize::from(last - first) + 1)).unwrap_or(0)
        };
        let len =
            if self.rng.one_in(4) { self.rng.below(HEAD_MAX + 1) } else { 8 * self.rng.below(8) };
        let mut head: Vec<u8> = (0..8).flat_map(|_| self.word().to_ne_bytes()).collect();
        head.truncate(len);
        let body = match self.rng.below(16) {
            0..9 => 0,
            9..14 => self.rng.below(256),
            14 => self.rng.pick(&[1, 63, 64, 4096, BODY_MAX]).unwrap_or(0),
            _ => self.rng.below(BODY_MAX + 1),
        };
        Record { kind, head, body }
    }

    /// Returns a plausible reply to a record of the victim: its first word names the operation.
    pub(crate) fn answer(&mut self, kind: u8, head: &[u8]) -> Record {
        let mut record = self.record();
        // Announcements, reads and atomics, and requests for a payload.
        record.kind = match kind {
            0x50..=0x5f => self.rng.pick(&[0x01, 0x02]),
            0x11 => self.rng.pick(&[0x12, 0x04]),
            0x13 | 0x17 => self.rng.pick(&[0x14, 0x05]),
            0x02 => Some(0x03),
            _ => self.rng.pick(&[0x04, 0x01, 0x12, 0x14]),
        }
        .unwrap_or(0);
        let keep = head.len().min(record.head.len()).min(8 * (1 + self.rng.below(3)));
        if let (Some(to), Some(from)) = (record.head.get_mut(..keep), head.get(..keep)) {
            to.copy_from_slice(from);
        }
        record
    }

    /// Returns the bytes of a packet, changed a little or a lot.
    pub(crate) fn packet(&mut self, honest: &[u8]) -> Vec<u8> {
        let mut bytes = honest.to_vec();
        match self.rng.below(8) {
            0 => bytes.truncate(self.rng.below(bytes.len() + 1)),
            1 => bytes.extend(
                (0..1 + self.rng.below(64)).map(|n| n.to_le_bytes().first().copied().unwrap_or(0)),
            ),
            2 => {
                let kinds =
                    [b".".as_slice(), b"B", b"R", b"N", b"N\x01", b"a", b"A", b"H", b"W", b""];
                bytes = self.rng.pick(&kinds).unwrap_or_default().to_vec();
            }
            3 => {}
            _ => {
                for _ in 0..1 + self.rng.below(3) {
                    let at = self.rng.below(bytes.len());
                    let word = self.word().to_ne_bytes();
                    if self.rng.one_in(2) {
                        let word = word.iter().copied();
                        bytes.iter_mut().skip(at & !7).zip(word).for_each(|(to, from)| *to = from);
                    } else if let (Some(byte), Some(bit)) = (bytes.get_mut(at), word.first()) {
                        *byte ^= 1 << (bit & 7);
                    }
                }
            }
        }
        bytes
    }

    /// Returns an aligned offset in shared memory of `len` bytes: control lines are drawn more
    /// often than the rest.
    pub(crate) fn place(&mut self, len: usize) -> usize {
        let at = match self.rng.below(8) {
            0..3 => self.rng.below(4096),
            3 => 4096 + self.rng.below(16384),
            // Lines at the beginning of a page.
            4..6 => 4096 * self.rng.below(len.div_ceil(4096)) + self.rng.below(1024),
            _ => self.rng.below(len),
        };
        (at % len.max(8)) & !7
    }

    /// Returns the new value of a word of shared memory.
    pub(crate) fn change(&mut self, word: u64) -> u64 {
        match self.rng.below(8) {
            0 => word ^ 1 << self.rng.below(64),
            1 => word.wrapping_add(1),
            2 => word.wrapping_sub(1),
            3 => 0,
            4 => u64::MAX,
            5 => word.rotate_left(8),
            _ => self.word(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutator(seed: u64) -> Mutator {
        Mutator::new(seed, [0x1000, 0x7f00_0000_0000, 1 << 20])
    }

    #[test]
    fn one_seed_is_one_attack() {
        let of = |seed| {
            let mut mutator = mutator(seed);
            mutator.learn(&[7; 32]);
            let records: Vec<Record> = (0..500).map(|_| mutator.record()).collect();
            let packets: Vec<Vec<u8>> = (0..500).map(|_| mutator.packet(&[1; 48])).collect();
            (records, packets, (0..500).map(|_| mutator.place(192_512)).collect::<Vec<_>>())
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn records_fit_a_ring_and_come_in_every_kind() {
        let mut mutator = mutator(3);
        let mut kinds = std::collections::BTreeSet::new();
        for _ in 0..20_000 {
            let record = mutator.record();
            assert!(record.head.len() <= HEAD_MAX && record.body <= BODY_MAX);
            kinds.insert(record.kind);
            let answer = mutator.answer(0x51, &[9; 16]);
            assert!(matches!(answer.kind, 1 | 2) && answer.head.len() <= HEAD_MAX);
        }
        assert!(kinds.len() > 240, "{}", kinds.len());
    }

    #[test]
    fn packets_and_places_stay_in_range() {
        let mut mutator = mutator(4);
        let honest: Vec<u8> = (0..48).collect();
        let mut same = 0;
        for _ in 0..5000 {
            let packet = mutator.packet(&honest);
            assert!(packet.len() <= 48 + 64);
            same += usize::from(packet == honest);
            for len in [8, 4096, 192_512] {
                let at = mutator.place(len);
                assert!(at + 8 <= len && at % 8 == 0, "{at} of {len}");
            }
        }
        assert!(same > 100 && same < 2500, "{same}");
    }

    #[test]
    fn words_of_the_victim_come_back() {
        let mut mutator = mutator(5);
        mutator.learn(&0x1122_3344_5566_7788_u64.to_ne_bytes());
        assert!((0..100).any(|_| mutator.word() == 0x1122_3344_5566_7788));
    }
}

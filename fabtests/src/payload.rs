// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Contents of the messages of a kill storm. The first word names sender, receiver, class and
//! sequence number under a checksum; a pattern derived from this word fills the rest.
//!
//! A comparison with the pattern finds each byte of another message, another process or another
//! time.

use crate::fi::Buf;

/// One incarnation of a rank: its slot, and the number of earlier incarnations in that slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RankId {
    pub slot: u8,
    pub life: u16,
}

impl std::fmt::Display for RankId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.slot, self.life)
    }
}

impl std::str::FromStr for RankId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<RankId, Self::Err> {
        let (slot, life) = text.split_once(':').unwrap_or((text, ""));
        Ok(RankId { slot: slot.parse()?, life: life.parse()? })
    }
}

/// Bytes of the messages of each class.
pub const SIZES: [usize; 3] = [8, 64 << 10, 4 << 20];
/// Class of acknowledgements, 8 bytes each.
pub const ACK: u8 = 3;
/// Number of sequence numbers before they repeat.
pub const SEQUENCES: u16 = 1 << 14;

/// First word of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub from: RankId,
    pub to: RankId,
    pub class: u8,
    pub seq: u16,
}

impl Head {
    fn body(self) -> u64 {
        u64::from(self.from.life)
            | u64::from(self.to.life) << 16
            | u64::from(self.seq & (SEQUENCES - 1)) << 32
            | u64::from(self.from.slot & 7) << 46
            | u64::from(self.to.slot & 7) << 49
            | u64::from(self.class & 3) << 52
    }

    /// Returns the head as one word, with a checksum of 10 bits on top.
    pub fn pack(self) -> u64 {
        self.body() | checksum(self.body()) << 54
    }

    /// Decodes a word; `None` when the checksum does not fit.
    pub fn unpack(word: u64) -> Option<Head> {
        let bits = |from: u32, count: u32| word >> from & ((1 << count) - 1);
        let small = |value: u64| u8::try_from(value).unwrap_or(0);
        let wide = |value: u64| u16::try_from(value).unwrap_or(0);
        let id = |slot, life| RankId { slot: small(slot), life: wide(life) };
        let head = Head {
            from: id(bits(46, 3), bits(0, 16)),
            to: id(bits(49, 3), bits(16, 16)),
            class: small(bits(52, 2)),
            seq: wide(bits(32, 14)),
        };
        (bits(54, 10) == checksum(head.body())).then_some(head)
    }

    /// Fills a message with the head and its pattern.
    pub fn write(self, buf: Buf) {
        let word = self.pack();
        buf.store_u64(0, word);
        if buf.len() > 8 {
            buf.sub(8, buf.len() - 8).fill_pattern(word);
        }
    }

    /// Returns the offset of the first wrong byte after the first word.
    pub fn differs(self, buf: Buf, len: usize) -> Option<usize> {
        let rest = len.checked_sub(8).filter(|rest| *rest > 0)?;
        buf.sub(8, rest).differs(rest, self.pack()).map(|at| at + 8)
    }
}

fn checksum(body: u64) -> u64 {
    let mixed = (body ^ 0x5851_f42d_4c95_7f2d).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 54
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads() -> impl Iterator<Item = Head> {
        (0..2000_u16).map(|n| Head {
            from: RankId { slot: u8::try_from(n % 6).unwrap(), life: n.wrapping_mul(71) },
            to: RankId { slot: u8::try_from(n % 5).unwrap(), life: n.wrapping_mul(1009) },
            class: u8::try_from(n % 4).unwrap(),
            seq: n.wrapping_mul(37) % SEQUENCES,
        })
    }

    #[test]
    fn heads_survive_the_word() {
        for head in heads() {
            assert_eq!(Head::unpack(head.pack()), Some(head));
        }
        assert_eq!("3:17".parse(), Ok(RankId { slot: 3, life: 17 }));
    }

    #[test]
    fn changed_bit_is_detected() {
        let missed = heads()
            .flat_map(|head| (0..64).map(move |bit| head.pack() ^ 1 << bit))
            .filter(|word| Head::unpack(*word).is_some())
            .count();
        assert!(missed < 2000 * 64 / 256, "{missed} of {}", 2000 * 64);
    }

    #[test]
    fn wrong_byte_is_detected() {
        let head = heads().nth(5).unwrap();
        let buf = Buf::new(4096);
        head.write(buf);
        assert_eq!(head.differs(buf, 4096), None);
        buf.put(4001, &[buf.get(4001, 1)[0] ^ 1]);
        assert_eq!(head.differs(buf, 4096), Some(4001));
        assert_eq!(head.differs(buf, 4001), None);
    }
}

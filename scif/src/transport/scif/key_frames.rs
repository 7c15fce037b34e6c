// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Frames of a key channel: the question for a key, and the answer with its window.
//!
//! Not about the exchange (`key_channel`, `key_server`). Both ends are little endian, as is every
//! machine with a SCIF driver.

use scif_ring::KeyEntry;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::peer_windows::KeyWindow;

const ASK: u32 = u32::from_le_bytes(*b"ScKq");
const TELL: u32 = u32::from_le_bytes(*b"ScKa");

/// Flags of an answer: the key has a window; its owner requests notifications.
const HAS_WINDOW: u32 = 1;
const NOTIFY: u32 = 2;

/// Frame with the question for a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct KeyQuestion {
    magic: u32,
    zero: u32,
    key: u64,
}

/// Frame with the answer to a question.
#[derive(Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct KeyAnswer {
    magic: u32,
    flags: u32,
    key: u64,
    start: u64,
    base: u64,
    len: u64,
    access: u64,
    begin: u64,
    window_len: u64,
    offset: i64,
    /// Proof of the pass of this connection.
    proof: u64,
}

/// Size in bytes of a question.
pub(super) const QUESTION: usize = size_of::<KeyQuestion>();
/// Size in bytes of an answer.
pub(super) const ANSWER: usize = size_of::<KeyAnswer>();

const _: () = assert!(QUESTION == 16 && ANSWER == 80);

impl KeyQuestion {
    pub(super) fn encode(key: u64) -> [u8; QUESTION] {
        zerocopy::transmute!(KeyQuestion { magic: ASK, zero: 0, key })
    }

    /// Returns the key; `None` for any other bytes.
    pub(super) fn decode(bytes: [u8; QUESTION]) -> Option<u64> {
        let question: KeyQuestion = zerocopy::transmute!(bytes);
        (question.magic == ASK && question.zero == 0).then_some(question.key)
    }
}

/// Content of an answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct DecodedAnswer {
    pub(super) key: u64,
    /// `None`: the owner has to execute operations on the key.
    pub(super) window: Option<KeyWindow>,
    pub(super) notify: bool,
    /// Proof of the pass: the answer is of the peer of the connection.
    pub(super) proof: u64,
}

impl DecodedAnswer {
    pub(super) fn encode(&self) -> [u8; ANSWER] {
        let KeyWindow { entry, begin, len, offset } = self.window.unwrap_or(KeyWindow {
            entry: KeyEntry::default(),
            begin: 0,
            len: 0,
            offset: 0,
        });
        let has_window = if self.window.is_some() { HAS_WINDOW } else { 0 };
        zerocopy::transmute!(KeyAnswer {
            magic: TELL,
            flags: has_window | if self.notify { NOTIFY } else { 0 },
            key: self.key,
            start: entry.start,
            base: entry.base,
            len: entry.len,
            access: entry.access,
            begin,
            window_len: len,
            offset,
            proof: self.proof,
        })
    }

    /// Returns the content; `None` for any other bytes, or a key outside of its window.
    pub(super) fn decode(bytes: [u8; ANSWER]) -> Option<DecodedAnswer> {
        let answer: KeyAnswer = zerocopy::transmute!(bytes);
        if answer.magic != TELL || answer.flags & !(HAS_WINDOW | NOTIFY) != 0 {
            return None;
        }
        let KeyAnswer { key, start, base, len, access, begin, window_len, offset, .. } = answer;
        let entry = KeyEntry { key, start, base, len, access, window: 0, window_len: 0 };
        let window = KeyWindow { entry, begin, len: window_len, offset };
        let has_window = answer.flags & HAS_WINDOW != 0;
        let lies_inside = || {
            let end = base.checked_add(len)?;
            offset.checked_add_unsigned(window_len).filter(|_| offset >= 0)?;
            (begin <= base && end <= begin.checked_add(window_len)?).then_some(())
        };
        if has_window && lies_inside().is_none() {
            return None;
        }
        let window = has_window.then_some(window);
        Some(DecodedAnswer { key, window, notify: answer.flags & NOTIFY != 0, proof: answer.proof })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window() -> KeyWindow {
        let entry =
            KeyEntry { key: 7, base: 4100, start: 3, len: 50, access: 9, ..KeyEntry::default() };
        KeyWindow { entry, begin: 4096, len: 4096, offset: 1 << 40 }
    }

    #[test]
    fn frames_survive() {
        assert_eq!(KeyQuestion::decode(KeyQuestion::encode(7)), Some(7));
        for (window, notify) in [(Some(window()), false), (Some(window()), true), (None, true)] {
            let answer = DecodedAnswer { key: 7, window, notify, proof: 5 };
            assert_eq!(DecodedAnswer::decode(answer.encode()), Some(answer));
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        assert_eq!(KeyQuestion::decode([0; QUESTION]), None);
        assert_eq!(DecodedAnswer::decode([0; ANSWER]), None);
        let refused = [
            KeyWindow { begin: 4101, ..window() },
            KeyWindow { len: 53, ..window() },
            KeyWindow { begin: u64::MAX, ..window() },
            KeyWindow { offset: -4096, ..window() },
            KeyWindow { offset: i64::MAX - 1, ..window() },
        ];
        for window in refused {
            let answer = DecodedAnswer { key: 7, window: Some(window), notify: false, proof: 5 };
            assert_eq!(DecodedAnswer::decode(answer.encode()), None, "{window:?}");
        }
    }
}

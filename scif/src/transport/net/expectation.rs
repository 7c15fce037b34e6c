// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Whether messages of other hosts are expected soon.

/// Time in nanoseconds after the last message for which more are expected. A longer one slows
/// traffic inside the host, a shorter one delays answers of peers that compute in between.
const EXPECT_NS: u64 = 200_000;

/// Times of the last messages of a port.
#[derive(Debug, Default)]
pub(super) struct Expectation {
    received_ns: u64,
    /// Whether records were sent since the owner asked. A program that only sends does not ask, so
    /// its answers are expected from the next question on.
    has_sent: bool,
    sent_ns: u64,
}

impl Expectation {
    pub(super) fn note_received(&mut self, now: u64) {
        self.received_ns = now;
    }

    pub(super) fn note_sent(&mut self) {
        self.has_sent = true;
    }

    /// Returns the time of the last message of a peer.
    pub(super) fn received_ns(&self) -> u64 {
        self.received_ns
    }

    /// Whether a message is expected at `now`.
    pub(super) fn is_due(&mut self, now: u64) -> bool {
        if std::mem::take(&mut self.has_sent) {
            self.sent_ns = now;
        }
        now.saturating_sub(self.received_ns.max(self.sent_ns)) < EXPECT_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_expected_after_each_one_in_either_direction() {
        let mut expectation = Expectation::default();
        assert!(!expectation.is_due(EXPECT_NS));
        expectation.note_received(EXPECT_NS);
        assert!(expectation.is_due(2 * EXPECT_NS - 1) && !expectation.is_due(2 * EXPECT_NS));
        expectation.note_sent();
        assert!(expectation.is_due(9 * EXPECT_NS), "the answer");
        assert!(expectation.is_due(10 * EXPECT_NS - 1) && !expectation.is_due(10 * EXPECT_NS));
        assert_eq!(expectation.received_ns(), EXPECT_NS);
    }
}

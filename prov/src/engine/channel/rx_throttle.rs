// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Throttle of the polling loop (backpressure): number of records that a poll reads while many
//! unexpected messages wait.

/// Records read from one ring before the next ring is polled. A larger batch lets a busy peer delay
/// the others.
pub(crate) const BATCH: usize = 32;
/// High-water mark of unexpected messages. At or above it the throttle applies, and reads about as
/// many records as the application takes messages. The ring of a fast sender then fills
/// (backpressure). With more than `BATCH` active rings it reads somewhat more.
const UNEXPECTED_HIGH_WATER: usize = 256;
/// Number of polls for which the throttle applies after the application has taken an unexpected
/// message. Reading then continues, since the application may wait for a message that is behind
/// them. A larger number holds senders back longer.
const THROTTLE_POLLS: u32 = 8;

/// State of the throttle of one endpoint.
#[derive(Debug, Default)]
pub(crate) struct RxThrottle {
    /// Polls left in which the throttle can apply.
    polls_left: u32,
    /// Unexpected messages that the application has taken since the throttle last permitted a read.
    drained: usize,
    /// Whether the last poll left records unread or data uncopied. No doorbell announces these.
    pub(crate) more: bool,
}

impl RxThrottle {
    /// Notes that the application has taken an unexpected message, which starts the throttle.
    pub(crate) fn note_drained(&mut self) {
        self.polls_left = THROTTLE_POLLS;
        self.drained += 1;
    }

    /// Ends the throttle, since the application waits for a message that has not arrived.
    pub(crate) fn lift(&mut self) {
        self.polls_left = 0;
    }

    /// Returns the number of records that this poll reads from each of `rings` active rings, while
    /// `waiting` unexpected messages wait: at most one while the throttle applies. It does not
    /// apply while a thread is about to sleep (`armed`), since no doorbell would announce the
    /// unread records.
    #[inline]
    pub(crate) fn budget<F>(&mut self, rings: usize, armed: bool, waiting: F) -> usize
    where
        F: FnOnce() -> usize,
    {
        if self.polls_left == 0 {
            return BATCH;
        }
        self.polls_left -= 1;
        if waiting() < UNEXPECTED_HIGH_WATER || armed {
            return BATCH;
        }
        self.more = true;
        if self.drained < rings.min(BATCH) {
            return 0;
        }
        self.drained = 0;
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polls(t: &mut RxThrottle, rings: usize, waiting: usize, count: usize) -> Vec<usize> {
        (0..count).map(|_| t.budget(rings, false, || waiting)).collect()
    }

    #[test]
    fn one_record_is_read_for_each_message_taken() {
        let mut throttle = RxThrottle::default();
        assert_eq!(polls(&mut throttle, 1, 1000, 2), [BATCH; 2], "nothing was taken");
        throttle.note_drained();
        assert_eq!(polls(&mut throttle, 1, UNEXPECTED_HIGH_WATER, 3), [1, 0, 0]);
        assert!(throttle.more);
        throttle.note_drained();
        assert_eq!(polls(&mut throttle, 2, 1000, 2), [0, 0], "one of two rings");
        throttle.note_drained();
        assert_eq!(polls(&mut throttle, 2, 1000, 2), [1, 0]);
    }

    #[test]
    fn the_throttle_ends() {
        type Budget = fn(&mut RxThrottle) -> usize;
        let ends: [(&str, Budget); 4] = [
            ("few messages wait", |t| t.budget(1, false, || UNEXPECTED_HIGH_WATER - 1)),
            ("a thread is about to sleep", |t| t.budget(1, true, || 1000)),
            ("the application waits", |t| {
                t.lift();
                t.budget(1, false, || 1000)
            }),
            ("polls without a message taken", |t| {
                let last = usize::try_from(THROTTLE_POLLS).unwrap();
                polls(t, 1, 1000, last);
                t.budget(1, false, || 1000)
            }),
        ];
        for (end, budget) in ends {
            let mut throttle = RxThrottle::default();
            throttle.note_drained();
            assert_eq!(budget(&mut throttle), BATCH, "{end}");
        }
    }
}

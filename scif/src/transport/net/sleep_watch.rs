// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Presence of the network's descriptor in the set on which the owner of a port sleeps.
//!
//! Not about the set itself (`port`). A descriptor in a set delays each message of the network: the
//! processor of its sender passes the wake-up on through every set. So it is there while the owner
//! sleeps at times, and not while the owner polls only.

/// Number of polls without a sleep after which the descriptor leaves the set. With fewer, owners
/// that sleep after short polling pay two system calls for each sleep. With more, messages are slow
/// for longer, by 0.3 us each.
const AWAKE_POLLS: u32 = 4096;

/// State of the descriptor.
#[derive(Debug, Default)]
pub(super) struct SleepWatch {
    is_added: bool,
    /// Whether the owner may sleep at any time.
    is_kept: bool,
    is_asleep: bool,
    /// Number of polls since the last sleep.
    polls: u32,
}

impl SleepWatch {
    /// Whether the descriptor is in the set.
    pub(super) fn is_added(&self) -> bool {
        self.is_added
    }

    /// Notes that the descriptor is in the set.
    pub(super) fn note_added(&mut self) {
        (self.is_added, self.polls) = (true, 0);
    }

    /// Notes that the owner may sleep at any time, without notice.
    pub(super) fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Notes the begin or the end of a sleep.
    pub(super) fn set_asleep(&mut self, asleep: bool) {
        (self.is_asleep, self.polls) = (asleep, 0);
    }

    /// Notes a poll. Returns whether the descriptor leaves the set.
    #[inline]
    pub(super) fn is_unused(&mut self) -> bool {
        if !self.is_added || self.is_kept || self.is_asleep {
            return false;
        }
        self.polls += 1;
        if self.polls < AWAKE_POLLS {
            return false;
        }
        self.is_added = false;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polls_until_unused(watch: &mut SleepWatch) -> Option<u32> {
        (1..=2 * AWAKE_POLLS).find(|_| watch.is_unused())
    }

    #[test]
    fn the_descriptor_leaves_the_set_of_an_owner_that_polls_only() {
        let mut watch = SleepWatch::default();
        assert_eq!(polls_until_unused(&mut watch), None, "it is not in the set");
        watch.note_added();
        watch.set_asleep(true);
        assert_eq!(polls_until_unused(&mut watch), None, "another thread sleeps");
        watch.set_asleep(false);
        for _ in 0..AWAKE_POLLS - 1 {
            assert!(!watch.is_unused());
        }
        watch.set_asleep(true);
        watch.set_asleep(false);
        assert_eq!(polls_until_unused(&mut watch), Some(AWAKE_POLLS), "counted from each sleep");
        assert!(!watch.is_added());
        watch.note_added();
        watch.keep();
        assert_eq!(polls_until_unused(&mut watch), None, "the owner sleeps without notice");
    }
}

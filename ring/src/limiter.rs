// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Rate limiter for events of one process, such as log lines that a peer can cause.
//!
//! The generic cell rate algorithm: one word holds the time at which the whole burst is available
//! again. Not about: shared memory, and what an event is.

use core::sync::atomic::{AtomicU64, Ordering};

/// Limits events to a burst and a steady rate behind it, and counts the suppressed ones.
///
/// Any span of time sees at most `burst` events plus one for each interval in it.
#[derive(Debug)]
pub struct Limiter {
    /// Time in nanoseconds at which the whole burst is available again.
    whole_at: AtomicU64,
    /// Number of events suppressed and not reported yet.
    suppressed: AtomicU64,
    interval_ns: u64,
    burst: u64,
}

impl Limiter {
    /// Returns a limiter that grants `burst` events at once and one more for each `interval_ns`. A
    /// `burst` below two counts as two: after suppressed events, the next one is granted only
    /// together with its report, which costs as much.
    #[must_use]
    pub const fn new(burst: u64, interval_ns: u64) -> Limiter {
        Limiter {
            whole_at: AtomicU64::new(0),
            suppressed: AtomicU64::new(0),
            interval_ns,
            burst: if burst < 2 { 2 } else { burst },
        }
    }

    /// Requests one event at time `now_ns` of a monotonic clock.
    ///
    /// Returns the number of events suppressed since the last report, or `None` when this one is
    /// suppressed too. A number above zero is charged as a second event: the caller reports it.
    pub fn grant(&self, now_ns: u64) -> Option<u64> {
        // Relaxed throughout: the words order nothing else, and each is changed by one instruction.
        let mut whole_at = self.whole_at.load(Ordering::Relaxed);
        loop {
            let reports = self.suppressed.load(Ordering::Relaxed) != 0;
            let cost = self.interval_ns.saturating_mul(1 + u64::from(reports));
            let next = whole_at.max(now_ns).saturating_add(cost);
            if next - now_ns > self.interval_ns.saturating_mul(self.burst) {
                self.suppressed.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            match self.whole_at.compare_exchange_weak(
                whole_at,
                next,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) if reports => return Some(self.take_suppressed()),
                Ok(_) => return Some(0),
                Err(other) => whole_at = other,
            }
        }
    }

    /// Whether suppressed events exist that no report has covered.
    pub fn has_suppressed(&self) -> bool {
        self.suppressed.load(Ordering::Relaxed) != 0
    }

    /// Takes the number of suppressed events that no report has covered, for a final report.
    pub fn take_suppressed(&self) -> u64 {
        self.suppressed.swap(0, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn any_second_of_a_flood_has_at_most_ten_lines() {
        let limiter = Limiter::new(5, 200 * MS);
        let (mut lines, mut reported, mut asked) = (Vec::new(), 0, 0);
        for now in (28_000..148_000).map(|quarter| quarter * MS / 4) {
            asked += 1;
            if let Some(suppressed) = limiter.grant(now) {
                reported += suppressed;
                lines.push(now);
                lines.extend((suppressed > 0).then_some(now));
            }
        }
        for from in &lines {
            let within = lines.iter().filter(|at| (*from..from + 1_000 * MS).contains(at));
            assert!(within.count() <= 10);
        }
        // Five per second continue, of which every second one is a report.
        assert!((150..=156).contains(&lines.len()), "{}", lines.len());
        let granted =
            lines.len() as u64 - lines.windows(2).filter(|two| two[0] == two[1]).count() as u64;
        assert_eq!(granted + reported + limiter.take_suppressed(), asked);
        assert_eq!(limiter.take_suppressed(), 0);
    }

    #[test]
    fn slow_events_all_pass_and_a_clock_may_start_anywhere() {
        let limiter = Limiter::new(1, 100 * MS);
        assert_eq!((limiter.grant(0), limiter.grant(0)), (Some(0), Some(0)));
        assert_eq!((limiter.grant(0), limiter.grant(99 * MS)), (None, None));
        // Two are due: the event and the report.
        assert_eq!(limiter.grant(200 * MS), Some(2));
        for i in 0..50 {
            assert_eq!(limiter.grant(1_000 * MS + i * 100 * MS), Some(0));
        }
        assert_eq!(limiter.grant(u64::MAX - 1), Some(0));
    }

    #[test]
    fn threads_share_one_burst() {
        let limiter = Limiter::new(64, u64::MAX / 128);
        let granted: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..100).filter(|_| limiter.grant(1).is_some()).count()))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((granted, limiter.take_suppressed()), (64, 336));
    }
}

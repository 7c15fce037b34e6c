// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Adaptive poll delay after a published reply: a part of the usual response time of the peer.
//!
//! A poll fetches the cache line from the core that is about to write it. If the peer has not
//! written its half of the reply line yet, the poll finds nothing. The peer then has to fetch the
//! line back.
//!
//! Times are ticks of the processor's time stamp counter; without one, no poll is delayed. Not
//! about: the time to poll before sleeping. A caller that is about to sleep, or needs the current
//! state, calls `cancel`.

use crate::copy::ticks;

/// Maximum delay in ticks, about 400 ns. An early record is noticed at most this much late.
const DELAY_MAX_TICKS: u64 = 1024;
/// Response time in ticks that counts as no delay. A peer that takes longer computes or sleeps, so
/// its time predicts nothing.
const RESPONSE_MAX_TICKS: u64 = 8 * DELAY_MAX_TICKS;
/// Number of records in a row, each found by the first poll, after which both sides are assumed to
/// send at the same time. With 0, one reply that is faster than usual would end the delay.
const EXCHANGE_MIN: u8 = 1;

/// State of the poll delay for one ring.
#[derive(Debug, Default)]
pub(crate) struct PollDelay {
    /// Time in ticks at which our last reply was published; 0 once a record has arrived since.
    started_ticks: u64,
    /// Delay in ticks after a reply: moving average.
    delay_ticks: u64,
    /// Whether polls are currently suppressed.
    holding_off: bool,
    /// Number of records in a row that the first poll after the delay found.
    found_at_once: u8,
}

impl PollDelay {
    /// Starts the delay: a reply was published just now.
    #[inline(always)]
    pub(crate) fn begin(&mut self) {
        self.started_ticks = ticks();
        self.holding_off = self.delay_ticks > 0;
    }

    /// Whether polls are still suppressed. A counter that runs backwards, as between cores, ends
    /// the delay.
    #[inline(always)]
    pub(crate) fn is_holding_off(&mut self) -> bool {
        if !self.holding_off {
            return false;
        }
        self.holding_off = ticks().wrapping_sub(self.started_ticks) < self.delay_ticks;
        self.holding_off
    }

    /// Whether a delay has begun and no poll since has found it over.
    #[inline(always)]
    pub(crate) fn is_started(&self) -> bool {
        self.holding_off
    }

    /// Ends the delay at once.
    #[inline]
    pub(crate) fn cancel(&mut self) {
        self.holding_off = false;
    }

    /// Notes a poll that found no record.
    #[inline(always)]
    pub(crate) fn note_empty(&mut self) {
        if self.started_ticks != 0 {
            self.found_at_once = 0;
        }
    }

    /// Notes the arrival of a record. A record found by the first poll arrived during the delay, at
    /// an unknown time. After more than one such record in a row, the two sides probably send at
    /// the same time. Each would then measure its own delay as the response time of the other, so
    /// the response time counts as 0.
    #[inline(always)]
    pub(crate) fn end(&mut self) {
        if self.started_ticks != 0 {
            let started = core::mem::take(&mut self.started_ticks);
            self.holding_off = false;
            let is_exchange = self.found_at_once >= EXCHANGE_MIN;
            self.found_at_once = self.found_at_once.saturating_add(1);
            self.update(if is_exchange { 0 } else { ticks().wrapping_sub(started) });
        }
    }

    /// Moves the delay an eighth of the way (the weight of TCP's round-trip time, RFC 6298) to 5/8
    /// of a `response` time in ticks.
    #[inline]
    fn update(&mut self, response: u64) {
        let target =
            if response > RESPONSE_MAX_TICKS { 0 } else { (response * 5 / 8).min(DELAY_MAX_TICKS) };
        self.delay_ticks = (7 * self.delay_ticks + target) / 8;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn delay_follows_the_response_time() {
        let mut delay = PollDelay::default();
        let mut after = |response| {
            for _ in 0..100 {
                delay.update(response);
            }
            delay.delay_ticks
        };
        assert!((490..=500).contains(&after(800)));
        assert!((DELAY_MAX_TICKS - 8..=DELAY_MAX_TICKS).contains(&after(5000)));
        assert!((100..=108).contains(&after(160)));
        assert_eq!(after(RESPONSE_MAX_TICKS + 1), 0);
        assert_eq!(after(u64::MAX), 0, "a counter that went back");
    }

    #[test]
    fn records_found_by_the_first_poll_end_the_delay() {
        let mut delay = PollDelay::default();
        let mut exchange = |polled_empty: bool| {
            delay.begin();
            while delay.is_holding_off() {}
            if polled_empty {
                let now = ticks();
                while ticks().wrapping_sub(now) < 200 {}
                delay.note_empty();
            }
            delay.end();
            delay.delay_ticks
        };
        let waited = (0..100).map(|_| exchange(true)).last();
        let found_at_once = (0..100).map(|_| exchange(false)).last();
        assert!(waited > Some(100) && found_at_once < Some(8), "{waited:?}, {found_at_once:?}");
    }

    #[test]
    fn holding_off_always_ends() {
        let mut delay = PollDelay::default();
        assert!(!delay.is_holding_off());
        delay.begin();
        assert!(!delay.is_holding_off(), "no reply has taken any time yet");
        for _ in 0..100 {
            delay.update(DELAY_MAX_TICKS);
        }
        delay.begin();
        while delay.is_holding_off() {}
        delay.begin();
        delay.cancel();
        assert!(!delay.is_holding_off());
        delay.begin();
        delay.started_ticks = u64::MAX / 2;
        assert!(!delay.is_holding_off(), "begun on a core that was ahead");
    }
}

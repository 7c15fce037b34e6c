// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Selection of the method for a large message that arrives alone: cooperative copy, or fragments
//! through the ring.
//!
//! If two cores are distant and the program touches its buffers between messages, cooperative copy
//! is slowest. Each line that a core writes into the memory of the other is fetched from the cache
//! of that core, and read back later. The ring, written with non-temporal stores, is then fastest.
//! With untouched buffers the opposite holds. Only the time distinguishes the cases, so both
//! methods are tried at intervals. The measure is the cycle time: from the end of a message to the
//! end of the next, work of the program on its buffers included.
//!
//! The ring needs the sender. It is tried only while senders are found inside the library, and a
//! message that stalls is pulled. Not here: the methods themselves (`rendezvous`, `streams`).

/// Shortest message in bytes with a choice of methods: the shortest one that both sides copy.
pub(super) const MIN: usize = super::rts::BOTH_SIDES_MIN;
/// Number of length classes, by powers of two. The last one holds all longer messages.
const CLASSES: usize = 10;
/// Messages before the first trial, and after a trial that changed the method. A trial without
/// change doubles the gap.
const GAP_MIN: u16 = 64;
/// Largest gap between trials in messages. A larger one delays the adaptation to a change.
const GAP_MAX: u16 = 512;
/// Messages in a row with a deviating cycle time after which the next trial begins early. A
/// deviation is more than 3/2 or less than 2/3 of the usual time, as after a change of cores or
/// program phase.
const STRIKES: u8 = 6;
/// Messages after a trial before which no early trial begins.
const GAP_STRIKES: u16 = 96;
/// Largest gap in messages while senders are outside the library. Each stalled message multiplies
/// the gap by four.
const GAP_ELSEWHERE: u16 = 8192;
/// Messages in a row with one method in a trial. The first of them is not measured.
const RUN: u16 = 4;
/// Messages of a trial: four runs, every second one through the ring.
const TRIAL: u16 = 4 * RUN;
/// Measured cycles of a trial for each method.
const CYCLES: usize = 6;
/// Messages by which one message without help of its sender moves back the next trial. So a trial
/// begins only while more than two of three messages have help.
const UNHELPED: u16 = 2;

/// Method of a transfer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Way {
    /// Cooperative copy.
    Shared,
    /// Fragments: the sender writes the payload into the ring.
    Ring,
}

/// State of one length class.
#[derive(Clone, Copy, Debug)]
struct Class {
    way: Way,
    /// Messages since the last trial.
    at: u16,
    /// Value of `at` at which the next trial begins.
    gap: u16,
    last: Option<(Way, u64)>,
    /// Usual cycle time in nanoseconds, from the last decision.
    usual: u64,
    /// Messages in a row whose cycle time deviated from it.
    strikes: u8,
    /// Measured cycle times in nanoseconds: cooperative copy, ring.
    cycles: [[u32; CYCLES]; 2],
    counts: [u16; 2],
}

/// Selector of the methods for the messages of one peer.
#[derive(Debug)]
pub(crate) struct Routes([Class; CLASSES]);

impl Default for Routes {
    fn default() -> Routes {
        Routes(
            [Class {
                way: Way::Shared,
                at: 0,
                gap: GAP_MIN,
                last: None,
                usual: 0,
                strikes: 0,
                cycles: [[0; CYCLES]; 2],
                counts: [0; 2],
            }; CLASSES],
        )
    }
}

impl Routes {
    fn class(&mut self, len: usize) -> Option<&mut Class> {
        let class = (len / MIN).checked_ilog2()?;
        self.0.get_mut((class as usize).min(CLASSES - 1))
    }

    /// Selects the method for a message of `len` bytes. `alone`: no other message is being fetched.
    /// Returns `None` without a choice; the end of such a message is not reported.
    pub(super) fn choose(&mut self, len: usize, alone: bool) -> Option<Way> {
        let class = self.class(len)?;
        if !alone {
            class.interrupted();
            return None;
        }
        Some(match class.in_trial() {
            Some(i) if (i / RUN).is_multiple_of(2) => Way::Shared,
            Some(_) => Way::Ring,
            None => class.way,
        })
    }

    /// Notes that a message has arrived by the selected method. `helped`: its sender took part.
    pub(super) fn ended(&mut self, len: usize, way: Way, helped: bool, now_ns: u64) {
        if let Some(class) = self.class(len) {
            class.ended(way, helped, now_ns);
        }
    }

    /// Notes that a message stalled in the ring and was pulled: its sender was outside the library.
    pub(super) fn left_alone(&mut self, len: usize) {
        if let Some(class) = self.class(len) {
            class.way = Way::Shared;
            class.usual = 0;
            class.begin((4 * class.gap).min(GAP_ELSEWHERE));
        }
    }

    /// Notes that a message failed or needed another method.
    pub(super) fn interrupted(&mut self, len: usize) {
        if let Some(class) = self.class(len) {
            class.interrupted();
        }
    }
}

impl Class {
    /// Returns the progress of the trial, if one is running.
    fn in_trial(&self) -> Option<u16> {
        self.at.checked_sub(self.gap)
    }

    /// Discards the current cycle, and a running trial.
    fn interrupted(&mut self) {
        self.last = None;
        if self.in_trial().is_some() {
            self.begin(self.gap);
        }
    }

    fn ended(&mut self, way: Way, helped: bool, now_ns: u64) {
        let last = self.last.replace((way, now_ns));
        if !helped {
            if self.in_trial().is_some() {
                self.way = Way::Shared;
                self.usual = 0;
                self.begin(self.gap);
            }
            self.at = self.at.saturating_sub(UNHELPED);
            return;
        }
        let cycle = last
            .filter(|(before, _)| *before == way)
            .map(|(_, at)| now_ns.saturating_sub(at));
        if self.in_trial().is_none() {
            self.watch(cycle);
        } else if let (Some(i), Some(cycle)) = (self.in_trial(), cycle)
            && !i.is_multiple_of(RUN)
        {
            let (cycles, count) = match (&mut self.cycles, &mut self.counts) {
                ([shared, _], [count, _]) if way == Way::Shared => (shared, count),
                ([_, ring], [_, count]) => (ring, count),
            };
            if let Some(place) = cycles.get_mut(usize::from(*count)) {
                *place = u32::try_from(cycle).unwrap_or(u32::MAX);
                *count += 1;
            }
        }
        self.at += 1;
        if self.in_trial() == Some(TRIAL) || self.hopeless() {
            self.decide();
        }
    }

    /// Begins the next trial early if the cycle time has changed.
    fn watch(&mut self, cycle: Option<u64>) {
        let Some(cycle) = cycle else { return };
        let as_usual = (self.usual * 2..=self.usual * 9 / 2).contains(&(cycle * 3));
        self.strikes = if as_usual {
            0
        } else {
            self.strikes.saturating_add(1)
        };
        if self.strikes >= STRIKES && self.usual != 0 && (GAP_STRIKES..self.gap).contains(&self.at) {
            // This message is the last before the trial.
            self.at = self.gap - 1;
        }
    }

    fn begin(&mut self, gap: u16) {
        self.strikes = 0;
        self.at = 0;
        self.gap = gap;
        self.counts = [0; 2];
    }

    /// Whether the first messages through the ring were too slow to continue the trial.
    fn hopeless(&self) -> bool {
        let [shared, [first, second, ..]] = &self.cycles;
        let slowest = shared.iter().take(usize::from(RUN) - 1).max();
        self.counts == [RUN - 1, 2] && slowest.is_some_and(|slowest| first.min(second) / 5 > slowest / 4)
    }

    fn decide(&mut self) {
        let counts = self.counts;
        let [shared, ring] = &mut self.cycles;
        // The median, since a program may take long between two messages once.
        let middle = |cycles: &mut [u32; CYCLES], count: u16| {
            let cycles = cycles.get_mut(..usize::from(count))?;
            cycles.sort_unstable();
            cycles
                .get(cycles.len().checked_sub(1)? / 2)
                .copied()
                .map(u64::from)
        };
        let (Some(shared), Some(ring)) = (middle(shared, counts[0]), middle(ring, counts[1])) else {
            return self.begin(self.gap);
        };
        let way = if ring * 20 < shared * 19 {
            Way::Ring
        } else {
            Way::Shared
        };
        let gap = if way == self.way {
            (2 * self.gap).min(GAP_MAX)
        } else {
            GAP_MIN
        };
        self.way = way;
        self.usual = if way == Way::Ring { ring } else { shared };
        self.begin(gap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 64 * 1024;

    /// Sends messages of one length that arrive alone, with a fixed time per method. Returns how
    /// many went through the ring.
    fn run(routes: &mut Routes, now: &mut u64, count: usize, shared: u64, ring: u64, helped: bool) -> usize {
        let mut through = 0;
        for _ in 0..count {
            let way = routes.choose(LEN, true).unwrap();
            *now += if way == Way::Ring { ring } else { shared };
            through += usize::from(way == Way::Ring);
            routes.ended(LEN, way, helped, *now);
        }
        through
    }

    #[test]
    fn the_faster_way_is_taken() {
        let (mut routes, mut now) = (Routes::default(), 0);
        let mut run = |count: u16, shared, ring| {
            let through = run(&mut routes, &mut now, usize::from(count), shared, ring, true);
            (through, routes.choose(LEN, true))
        };
        assert_eq!(run(GAP_MIN - 1, 20_000, 9_000), (0, Some(Way::Shared)));
        assert_eq!(run(TRIAL + 1, 20_000, 9_000), (8, Some(Way::Ring)));
        assert_eq!(run(GAP_MIN, 20_000, 9_000).0, usize::from(GAP_MIN));
        // The conditions change: the next trial notices it, and later trials are rare.
        let (through, way) = run(200, 6_000, 9_000);
        assert!(through < 200);
        assert_eq!(way, Some(Way::Shared));
        assert!(run(5000, 6_000, 9_000).0 < 45);
    }

    /// A trial begins early after a lasting change of the cycle time, and not after one slow
    /// message.
    #[test]
    fn what_has_changed_is_tried_early() {
        let (mut routes, mut now) = (Routes::default(), 0);
        run(&mut routes, &mut now, 2000, 6_000, 9_000, true);
        let class = &routes.0[1];
        assert_eq!((class.gap, class.usual, class.way), (GAP_MAX, 6_000, Way::Shared));
        while routes.0[1].at < GAP_STRIKES + 10 {
            run(&mut routes, &mut now, 1, 6_000, 9_000, true);
        }
        run(&mut routes, &mut now, 1, 60_000, 9_000, true);
        assert_eq!(run(&mut routes, &mut now, 20, 6_000, 9_000, true), 0);
        run(
            &mut routes,
            &mut now,
            usize::from(u16::from(STRIKES) + TRIAL),
            20_000,
            9_000,
            true,
        );
        assert_eq!(routes.choose(LEN, true), Some(Way::Ring));
    }

    #[test]
    fn nothing_is_tried_while_the_sender_is_elsewhere() {
        let (mut routes, mut now) = (Routes::default(), 0);
        assert_eq!(run(&mut routes, &mut now, 10_000, 20_000, 9_000, false), 0);
        assert_eq!(
            run(
                &mut routes,
                &mut now,
                usize::from(GAP_MIN + TRIAL),
                20_000,
                9_000,
                true
            ),
            8
        );
        assert_eq!(routes.choose(LEN, true), Some(Way::Ring));
        routes.left_alone(LEN);
        let gap = 4 * usize::from(GAP_MIN);
        assert_eq!(run(&mut routes, &mut now, gap, 20_000, 9_000, true), 0);
    }

    #[test]
    fn messages_that_come_together_have_no_choice() {
        let (mut routes, mut now) = (Routes::default(), 0);
        run(
            &mut routes,
            &mut now,
            usize::from(GAP_MIN + RUN),
            20_000,
            9_000,
            true,
        );
        assert_eq!(routes.choose(LEN, true), Some(Way::Ring));
        assert_eq!(routes.choose(LEN, false), None);
        assert_eq!(
            routes.choose(LEN, true),
            Some(Way::Shared),
            "the trial is for nothing"
        );
        assert_eq!(routes.choose(MIN - 1, true), None);
        assert!(routes.choose(1 << 30, true).is_some());
    }
}

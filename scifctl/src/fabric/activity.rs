// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Activity of a process: whether it polls, sleeps in the library, or is elsewhere.

use scif::monitor::report::{EndpointReport, ProcessReport};

/// Nanoseconds without a progress call after which a process counts as being outside the library.
/// A polling process that waits for a processor is silent for shorter times.
const AWAY_NS: u64 = 500_000_000;

/// Activity of a process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Activity {
    /// Stopped by a signal or a debugger.
    Stopped,
    /// Ended, but not reaped.
    Ended,
    /// In a wait of the library.
    Asleep,
    Polling,
    /// No progress call for this number of nanoseconds.
    Away(u64),
}

impl Activity {
    /// Returns the activity of a process at time `now`.
    pub(crate) fn of(process: &ProcessReport, now: u64) -> Activity {
        match process.state {
            'T' | 't' => return Activity::Stopped,
            'Z' | 'X' | 'x' => return Activity::Ended,
            _ => {}
        }
        if process.endpoints.iter().any(|endpoint| endpoint.asleep) {
            return Activity::Asleep;
        }
        let last = process.endpoints.iter().map(|endpoint| endpoint.progress_ns).max();
        match last.map(|last| now.saturating_sub(last)) {
            Some(silent) if silent > AWAY_NS => Activity::Away(silent),
            _ => Activity::Polling,
        }
    }

    /// Whether the process may wait for operations in calls of the library.
    pub(crate) fn may_wait(self) -> bool {
        matches!(self, Activity::Asleep | Activity::Polling)
    }

    /// Returns a short name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Activity::Stopped => "stopped",
            Activity::Ended => "ended",
            Activity::Asleep => "asleep",
            Activity::Polling => "polling",
            Activity::Away(_) => "away",
        }
    }
}

/// Returns the time since the last progress call of an endpoint.
pub(crate) fn silence(endpoint: &EndpointReport, now: u64) -> u64 {
    now.saturating_sub(endpoint.progress_ns)
}

/// Formats a duration with three digits at most.
pub(crate) fn duration(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => format!("{}us", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{}ms", ns / 1_000_000),
        1_000_000_000..100_000_000_000 => {
            format!("{}.{}s", ns / 1_000_000_000, ns / 100_000_000 % 10)
        }
        _ => format!("{}s", ns / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        let rows = [
            (0, "0ns"),
            (1_999, "1us"),
            (12_000_000, "12ms"),
            (3_250_000_000, "3.2s"),
            (600_000_000_000, "600s"),
        ];
        for (ns, text) in rows {
            assert_eq!(duration(ns), text);
        }
    }

    #[test]
    fn the_state_of_the_process_comes_first() {
        let process = |state| ProcessReport { state, ..ProcessReport::default() };
        assert_eq!(Activity::of(&process('T'), 1), Activity::Stopped);
        assert_eq!(Activity::of(&process('R'), 1), Activity::Polling);
        assert!(!Activity::Away(1).may_wait() && Activity::Asleep.may_wait());
    }
}

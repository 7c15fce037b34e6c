// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Recorder of the events between an endpoint and its peers. Only an endpoint of a process that
//! reports its traffic or traces its events has one.
//!
//! The data path tests one pointer for it, and calls it out of line.

mod pace;
mod stats_file;
mod traffic;

use std::ops::Range;
use std::sync::{Arc, Mutex, Once, PoisonError};

use scif::trace::{self, TraceEvent, TraceNames, TraceRing, TraceWriter};
use scif::{Maker, PortId};

use crate::base::env::{self, StatsReport};
use crate::base::log::{Subsys, warn};
use crate::engine::types::args::EpConfig;
use crate::engine::types::peer_id::{ANY, NOWHERE, PeerId};

pub(crate) use pace::Done;
use pace::{BUSY_NS, Pace};
use traffic::EndpointTraffic;

/// Nanoseconds after which a receive of a busy endpoint is recorded that still waits, at twice this
/// time at the latest. With fewer, an endpoint that posts many receives records most of them; with
/// more, a trace shows later for which messages an endpoint waits.
const LATE_NS: u64 = 100_000;

/// Recorder of one endpoint.
#[derive(Debug)]
pub(crate) struct Recorder {
    traffic: Option<Arc<Mutex<EndpointTraffic>>>,
    trace: TraceWriter,
    /// Peer of the last event that took the slow path, and its part of records.
    last: (PeerId, TraceNames),
    pace: Pace,
    /// Reading of the clock since which posts of receives are not recorded; `None`: they are.
    unrecorded_ns: Option<u64>,
    creator: Maker,
}

impl Recorder {
    /// Opens the recorder of an endpoint, if the settings require one.
    pub(crate) fn open(own: PortId, cfg: &EpConfig) -> Option<Box<Recorder>> {
        let trace = trace(own.node).map_or(TraceWriter::off(own), |ring| ring.writer(own));
        let traffic = (env::env().stats == StatsReport::Json).then(|| traffic(own, cfg));
        if !trace.is_on() && traffic.is_none() {
            return None;
        }
        Some(Box::new(Recorder::new(traffic, trace)))
    }

    fn new(traffic: Option<Arc<Mutex<EndpointTraffic>>>, trace: TraceWriter) -> Recorder {
        let last = (ANY, trace.names(NOWHERE));
        let (pace, creator) = (Pace::default(), Maker::here());
        Recorder { traffic, trace, last, pace, unrecorded_ns: None, creator }
    }

    /// Fast path of [`Recorder::record`]. Returns false, and has recorded nothing, if that is
    /// needed.
    #[inline]
    pub(crate) fn try_record(&mut self, peer: PeerId, event: TraceEvent) -> bool {
        self.traffic.is_none()
            && self.names_of(peer).is_some_and(|(trace, names)| trace.try_record(names, &event))
    }

    /// Records the arrival of a message in the same way. Counted events share no readings of the
    /// clock, so [`Recorder::record`] gets them.
    #[inline]
    pub(crate) fn try_record_arrival(&mut self, peer: PeerId, event: TraceEvent) -> bool {
        self.names_of(peer).is_some_and(|(trace, names)| trace.try_record_arrival(names, &event))
    }

    /// Most frequent case of [`Recorder::try_record_arrival`]. It takes so few instructions that a
    /// call would take about as many.
    #[inline(always)]
    pub(crate) fn try_record_short(&mut self, peer: PeerId, event: TraceEvent) -> bool {
        self.names_of(peer).is_some_and(|(trace, names)| trace.try_record_short(names, &event))
    }

    /// Records a message sent, in the same way as an arrival.
    #[inline]
    pub(crate) fn try_record_send(&mut self, peer: PeerId, event: TraceEvent) -> bool {
        self.names_of(peer).is_some_and(|(trace, names)| trace.try_record_send(names, &event))
    }

    /// Returns the trace, and the part of records that names the peer, if it is the last one.
    #[inline(always)]
    fn names_of(&mut self, peer: PeerId) -> Option<(&mut TraceWriter, TraceNames)> {
        let (last, names) = self.last;
        (last == peer).then_some((&mut self.trace, names))
    }

    /// Records an event with a peer, at the port `other`, and counts it.
    pub(crate) fn record(&mut self, peer: PeerId, other: PortId, event: TraceEvent) {
        if self.trace.is_on() {
            let names = self.trace.names(other);
            self.last = (peer, names);
            self.trace.record(names, &event);
        }
        self.change(|traffic| traffic.count(other, event.kind, event.len, event.id));
    }

    /// Notes that a number stands for another peer from now on.
    pub(crate) fn forget_peer(&mut self) {
        self.last = (ANY, self.trace.names(NOWHERE));
    }

    /// Whether posts of receives are recorded when they happen.
    #[inline]
    pub(crate) fn records_posts(&self) -> bool {
        self.unrecorded_ns.is_none()
    }

    /// Notes a reading of the clock, as [`EndpointTraffic::tick`] does. Returns the times of posts
    /// that are to be recorded now, of receives that still wait.
    pub(crate) fn tick(
        &mut self,
        (before, now): (u64, u64),
        done: Done,
        outstanding: bool,
    ) -> Option<Range<u64>> {
        self.change(|traffic| {
            let counts = (done.polls, done.received);
            traffic.tick(now, counts, outstanding, scif::thread_cpu_ns);
        });
        if !self.trace.is_on() {
            return None;
        }
        let time = now.saturating_sub(before);
        let is_busy = self.pace.tick(time, done) && self.traffic.is_none();
        self.trace.note_progress(is_busy.then_some(BUSY_NS));
        self.late_posts(now, is_busy)
    }

    /// Returns the times of posts that are to be recorded at `now`. Of a busy endpoint they are
    /// looked up once in [`LATE_NS`], since its ticks are frequent and its receives may be many.
    fn late_posts(&mut self, now: u64, is_busy: bool) -> Option<Range<u64>> {
        let Some(since) = self.unrecorded_ns else {
            self.unrecorded_ns = is_busy.then_some(now);
            return None;
        };
        let end = if is_busy { now.saturating_sub(LATE_NS) } else { u64::MAX };
        if end.saturating_sub(since) < LATE_NS {
            return None;
        }
        self.unrecorded_ns = is_busy.then_some(end);
        Some(since..end)
    }

    /// Notes a sleep from `began` until now.
    pub(crate) fn slept(&mut self, began: u64) {
        let now = scif::now_ns();
        self.change(|traffic| traffic.slept(now, now.saturating_sub(began)));
    }

    /// Changes the traffic. Only the report of the process takes the lock as well. A forked child
    /// leaves its copy alone, which may be locked for ever.
    fn change(&mut self, change: impl FnOnce(&mut EndpointTraffic)) {
        if let Some(traffic) = &self.traffic {
            if !self.creator.is_ancestor() {
                change(&mut traffic.lock().unwrap_or_else(PoisonError::into_inner));
            }
        }
    }
}

/// Adds an endpoint to the report of the process.
fn traffic(own: PortId, cfg: &EpConfig) -> Arc<Mutex<EndpointTraffic>> {
    let kind = match (cfg.connected, cfg.datagram) {
        (true, _) => "msg",
        (false, true) => "dgram",
        (false, false) => "rdm",
    };
    stats_file::enter(EndpointTraffic::new(own, kind, scif::now_ns()))
}

/// Returns the trace of this process, a process of node `node`, if the settings require one.
fn trace(node: u16) -> Option<&'static TraceRing> {
    let file = &env::env().trace;
    if file.as_os_str().is_empty() {
        return None;
    }
    match trace::start(file, &stats_file::command(), env::launcher().rank, node) {
        Ok(ring) => Some(ring),
        Err(errno) => {
            static LOGGED: Once = Once::new();
            LOGGED.call_once(|| {
                warn(
                    Subsys::Core,
                    format_args!(
                        "no trace (FI_SCIF_TRACE): {errno}. It takes 33 MiB of memory; a forked \
                         child of a traced process has none"
                    ),
                );
            });
            None
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.change(|traffic| traffic.close(scif::now_ns()));
        if self.traffic.is_some() && !self.creator.is_ancestor() {
            stats_file::on_close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_posts_are_looked_up_at_intervals_and_at_the_end() {
        let mut recorder = Recorder::new(None, TraceWriter::off(PortId::new(0, 0)));
        let mut at = |now, is_busy| recorder.late_posts(now, is_busy);
        assert_eq!((at(7, false), at(1000, true)), (None, None));
        assert_eq!(at(999 + 2 * LATE_NS, true), None);
        let first = 1000 + LATE_NS;
        assert_eq!(at(first + LATE_NS, true), Some(1000..first));
        assert_eq!(at(first + 2 * LATE_NS - 1, true), None);
        assert_eq!(at(first + 2 * LATE_NS, false), Some(first..u64::MAX));
        assert_eq!(at(first + 3 * LATE_NS, false), None);
        assert!(recorder.records_posts());
    }
}

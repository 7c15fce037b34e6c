// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Recorder of the events between an endpoint and its peers. Only an endpoint of a process that
//! reports its traffic or traces its events has one.
//!
//! The data path tests one pointer for it, and calls it out of line.

mod stats_file;
mod traffic;

use std::sync::{Arc, Mutex, Once, PoisonError};

use scif::trace::{self, TraceEvent, TraceRing, TraceWriter};
use scif::{Maker, PortId};

use crate::base::env::{self, StatsReport};
use crate::base::log::{Subsys, warn};
use crate::engine::types::args::EpConfig;

use traffic::EndpointTraffic;

/// Recorder of one endpoint.
#[derive(Debug)]
pub(crate) struct Recorder {
    traffic: Option<Arc<Mutex<EndpointTraffic>>>,
    trace: Option<TraceWriter>,
    creator: Maker,
}

impl Recorder {
    /// Opens the recorder of an endpoint, if the settings require one.
    pub(crate) fn open(own: PortId, cfg: &EpConfig) -> Option<Box<Recorder>> {
        let trace = trace(own.node).map(|ring| ring.writer(own));
        let traffic = (env::env().stats == StatsReport::Json).then(|| traffic(own, cfg));
        if trace.is_none() && traffic.is_none() {
            return None;
        }
        Some(Box::new(Recorder { traffic, trace, creator: Maker::here() }))
    }

    /// Records an event with the peer at a port.
    #[inline]
    pub(crate) fn record(&mut self, peer: PortId, event: TraceEvent) {
        if self.traffic.is_some() {
            return self.count(peer, event);
        }
        if let Some(trace) = &mut self.trace {
            trace.record(peer, &event);
        }
    }

    /// Records an event, and counts it. Apart from the trace alone, which has less to do.
    #[inline(never)]
    fn count(&mut self, peer: PortId, event: TraceEvent) {
        if let Some(trace) = &mut self.trace {
            trace.record(peer, &event);
        }
        self.change(|traffic| traffic.count(peer, event.kind, event.len, event.id));
    }

    /// Notes a reading of the clock, as [`EndpointTraffic::tick`] does.
    pub(crate) fn tick(&mut self, now: u64, polls: u32, received: u64, outstanding: bool) {
        self.change(|traffic| {
            traffic.tick(now, (polls, received), outstanding, scif::thread_cpu_ns)
        });
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

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Counters of endpoints that are open at the exit of the program, for `FI_SCIF_STATS=1`. An
//! endpoint that closes prints its own (`domain::calls`).

use std::sync::Once;

use scif::WindowCounts;
use scif::monitor::report::{self, EndpointReport};
use zerocopy::FromBytes;

use crate::base::env::{self, StatsReport};
use crate::base::log::stats_line;
use crate::engine::types::stats::Stats;

/// Registers the print of the open endpoints at the exit of the program, if the user wants it.
pub(crate) fn register() {
    static REGISTERED: Once = Once::new();
    if env::env().stats == StatsReport::Line {
        REGISTERED.call_once(|| scif::at_exit(print));
    }
}

/// Prints a line for each open endpoint of this process. Reads the published memory, since a thread
/// that has ended may hold a lock. A forked child has published none.
fn print() {
    let own = i32::try_from(std::process::id()).map(report::process_at);
    if let Ok(Ok(Some(process))) = own {
        process.endpoints.iter().filter_map(line).for_each(|line| stats_line(&line));
    }
}

/// Returns the line of an endpoint. Fences and windows are not published, and count as 0.
fn line(endpoint: &EndpointReport) -> Option<String> {
    let bytes: Vec<u8> = endpoint.counters.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let stats = Stats::read_from_bytes(&bytes).ok()?;
    let peers = usize::try_from(endpoint.known_peers).ok()?;
    Some(stats.line(&endpoint.port.to_string(), peers, WindowCounts::default()))
}

#[cfg(test)]
mod tests {
    use scif::PortId;
    use scif::monitor::layout::COUNTERS;
    use scif::monitor::report::OpsReport;

    use super::*;

    #[test]
    fn the_line_has_the_published_counters() {
        let mut counters = [0; COUNTERS.len()];
        (counters[0], counters[1]) = (3, 24);
        let endpoint = EndpointReport {
            number: 1,
            port: PortId::new(2, 77),
            ep_type: 3,
            opened_ns: 0,
            progress_ns: 0,
            asleep: false,
            network: String::new(),
            counters,
            ops: OpsReport::default(),
            known_peers: 5,
            peers: Vec::new(),
        };
        let line = line(&endpoint).unwrap();
        assert!(line.starts_with("scif: endpoint 2:77 peers 5 sent 3/24 received 0/0 "), "{line}");
    }
}

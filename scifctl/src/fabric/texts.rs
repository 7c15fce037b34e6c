// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tables of the provider's endpoints.

use std::fmt::Write;

use scif::monitor::layout::COUNTERS;
use scif::monitor::report::{EndpointReport, PeerReport, ProcessReport};

use super::activity::{Activity, duration, silence};
use super::waits::{self, owner, state, tag};
use super::watch;
use crate::table::{bytes, columns};

/// Columns of the output.
const WIDTH: usize = 100;

/// Returns at most `width` characters of a text.
pub(crate) fn cut(text: &str, width: usize) -> String {
    text.chars().take(width).collect()
}

/// Returns a line, and another one behind each 100 columns. Breaks between words.
pub(crate) fn fold(line: &str) -> String {
    let (mut text, mut column) = (String::new(), 0);
    for word in line.split(' ') {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > WIDTH {
            text.push_str("\n   ");
            column = 3;
        }
        if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += width;
    }
    text.push('\n');
    text
}

/// Returns libfabric's name of an endpoint type.
pub(crate) fn type_name(ep_type: u64) -> &'static str {
    match ep_type {
        1 => "MSG",
        2 => "DGRAM",
        3 => "RDM",
        _ => "?",
    }
}

/// Host of a peer, and the means by which it is reached.
pub(crate) struct PeerPlace<'a> {
    /// Address of another host; `None` for this one.
    pub(crate) host: Option<String>,
    /// Transport of this host, or `net`.
    pub(crate) transport: &'a str,
    /// Provider of the network to another host.
    pub(crate) network: Option<&'a str>,
}

impl PeerPlace<'_> {
    pub(crate) fn of<'a>(
        process: &'a ProcessReport,
        endpoint: &'a EndpointReport,
        peer: &PeerReport,
    ) -> PeerPlace<'a> {
        match peer.port.network_name() {
            None => PeerPlace { host: None, transport: &process.transport, network: None },
            Some(name) => PeerPlace {
                host: Some(name.ip().to_string()),
                transport: "net",
                network: Some(&endpoint.network),
            },
        }
    }
}

fn rank(process: &ProcessReport) -> String {
    process.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string())
}

/// Returns one row for each endpoint.
pub(crate) fn endpoints(all: &[ProcessReport]) -> String {
    let now = scif::now_ns();
    let mut rows = Vec::new();
    for process in all {
        for endpoint in &process.endpoints {
            let ops = &endpoint.ops;
            rows.push(vec![
                process.pid.to_string(),
                rank(process),
                type_name(endpoint.ep_type).to_owned(),
                endpoint.port.to_string(),
                endpoint.known_peers.to_string(),
                bytes(endpoint.counter("sent_bytes")),
                bytes(endpoint.counter("received_bytes")),
                ops.receives.to_string(),
                ops.unexpected.to_string(),
                ops.outstanding
                    .saturating_add(ops.pending)
                    .saturating_add(ops.incoming)
                    .to_string(),
                Activity::of(process, now).name().to_owned(),
                duration(silence(endpoint, now)),
                cut(&process.command, 12),
            ]);
        }
    }
    let head = [
        "PID", "RANK", "TYPE", "OWN", "PEERS", "SENT", "RECVD", "RECVS", "UNEXP", "OPS",
        "ACTIVITY", "CALL", "COMMAND",
    ];
    let mut text = columns(&head, &rows);
    for process in all.iter().filter(|process| process.unpublished > 0) {
        let _ = writeln!(
            text,
            "process {}: {} more endpoints were opened, which are not shown",
            process.pid, process.unpublished
        );
    }
    for reason in all.iter().filter_map(watch::other_version) {
        let _ = writeln!(text, "{reason}");
    }
    text
}

/// Returns one row for each peer of a process.
pub(crate) fn peers(process: &ProcessReport, all: &[ProcessReport]) -> String {
    let mut text = String::new();
    for endpoint in &process.endpoints {
        let network = match endpoint.network.as_str() {
            "" => "no network to other hosts".to_owned(),
            provider => format!("network {provider} to other hosts"),
        };
        let _ = writeln!(text, "endpoint {}, {network}", endpoint.port);
        let rows: Vec<Vec<String>> =
            endpoint.peers.iter().map(|peer| peer_row(process, endpoint, peer, all)).collect();
        let head = [
            "PEER",
            "HOST",
            "RANK",
            "PID",
            "STATE",
            "TRANSPORT",
            "PATH",
            "SENT",
            "RECVD",
            "OUT",
            "IN",
            "OPS",
        ];
        text.push_str(&columns(&head, &rows));
        for peer in endpoint.peers.iter().filter(|peer| peer.errno != 0) {
            let _ = writeln!(text, "{} refuses connections: error {}", peer.port, peer.errno);
        }
        let listed = endpoint.peers.len() as u64;
        if endpoint.known_peers > listed {
            let more = endpoint.known_peers - listed;
            let _ = writeln!(text, "{more} more peers of {} are not listed", endpoint.port);
        }
    }
    text
}

fn peer_row(
    process: &ProcessReport,
    endpoint: &EndpointReport,
    peer: &PeerReport,
    all: &[ProcessReport],
) -> Vec<String> {
    let place = PeerPlace::of(process, endpoint, peer);
    let remote = owner(all, endpoint, peer.port);
    vec![
        format!("{}:{}", peer.port.node, peer.port.port),
        place.host.unwrap_or_else(|| "-".to_owned()),
        remote.map_or_else(|| "-".to_owned(), rank),
        peer.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
        peer.state.name().to_owned(),
        place.network.map_or_else(|| place.transport.to_owned(), |name| format!("net:{name}")),
        peer.path.name().to_owned(),
        peer.sent.to_string(),
        peer.received.to_string(),
        bytes(peer.sent_bytes),
        bytes(peer.received_bytes),
        peer.outstanding.saturating_add(peer.pending).to_string(),
    ]
}

/// Returns everything about a process.
pub(crate) fn dump(process: &ProcessReport, all: &[ProcessReport]) -> String {
    let now = scif::now_ns();
    let mut text = format!(
        "process {} ({}), {}\n",
        process.pid,
        process.command,
        Activity::of(process, now).name()
    );
    let _ = writeln!(
        text,
        "rank {} of {}, launcher {}, job {}",
        rank(process),
        process.size.map_or_else(|| "-".to_owned(), |size| size.to_string()),
        or_dash(&process.launcher),
        or_dash(&process.job),
    );
    let _ = writeln!(
        text,
        "provider {}, libfabric {}.{}, transport {}",
        process.provider, process.libfabric.0, process.libfabric.1, process.transport
    );
    for endpoint in &process.endpoints {
        dump_endpoint(&mut text, endpoint, all, now);
    }
    text.push_str(&peers(process, all));
    for wait in waits::of(process, all, now) {
        text.push_str(&fold(&format!("waits: {}", waits::describe(&wait))));
    }
    text
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

fn dump_endpoint(text: &mut String, endpoint: &EndpointReport, all: &[ProcessReport], now: u64) {
    let ops = &endpoint.ops;
    let _ = writeln!(
        text,
        "endpoint {} {}, open for {}, last progress call {} ago{}",
        endpoint.port,
        type_name(endpoint.ep_type),
        duration(now.saturating_sub(endpoint.opened_ns)),
        duration(silence(endpoint, now)),
        if endpoint.asleep { ", asleep" } else { "" },
    );
    for pair in COUNTERS.iter().zip(&endpoint.counters).filter(|(_, value)| **value > 0) {
        let _ = writeln!(text, "  {:<18} {:>16}", pair.0, pair.1);
    }
    let _ = writeln!(
        text,
        "  receives {}, multi-receive buffers {}, unexpected {} ({} bytes), outstanding {}, \
         pending {}, incoming {}",
        ops.receives,
        ops.multi_recvs,
        ops.unexpected,
        bytes(ops.unexpected_bytes),
        ops.outstanding,
        ops.pending,
        ops.incoming,
    );
    if endpoint.has_moved_on() {
        let age = duration(now.saturating_sub(ops.time_ns));
        let _ = writeln!(text, "  operations of {age} ago; others have started or ended since");
    }
    for op in &ops.listed {
        let peer = match op.peer {
            None => "any".to_owned(),
            Some(port) => owner(all, endpoint, port).map_or_else(|| port.to_string(), waits::name),
        };
        let _ = writeln!(
            text,
            "  {:<12} {peer}, {}{} of {} bytes, {}, {}",
            op.kind.name(),
            tag(op),
            bytes(op.done),
            bytes(op.len),
            state(op),
            duration(now.saturating_sub(op.since_ns)),
        );
    }
}

/// Returns the counters of each endpoint in one line, in the form of FI_SCIF_STATS=1.
pub(crate) fn stats(process: &ProcessReport) -> String {
    let mut text = String::new();
    for endpoint in &process.endpoints {
        let _ = write!(text, "scif: endpoint {} peers {}", endpoint.port, endpoint.known_peers);
        let mut pairs = COUNTERS.iter().zip(&endpoint.counters);
        while let Some((name, value)) = pairs.next() {
            match name.strip_suffix("_ops") {
                Some(path) => {
                    let path = if path == "coop_copy" { "both_sides" } else { path };
                    let bytes = pairs.next().map_or(0, |(_, bytes)| *bytes);
                    let _ = write!(text, " {path} {value}/{bytes}");
                }
                None => {
                    let _ = write!(text, " {name} {value}");
                }
            }
        }
        text.push_str(" (operations/bytes)\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use scif::PortId;
    use scif::monitor::layout::{CopyPath, PeerState};
    use scif::monitor::report::OpsReport;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn long_lines_are_broken_between_words() {
        assert_eq!(fold("a short one"), "a short one\n");
        let text = fold(&"word ".repeat(50));
        assert!(
            text.lines().count() == 3 && text.lines().all(|line| line.len() <= WIDTH),
            "{text}"
        );
        assert!(text.lines().skip(1).all(|line| line.starts_with("    word")), "{text}");
        let long = fold(&format!("a {} b", "x".repeat(150)));
        assert_eq!(long.lines().count(), 3, "{long}");
    }

    #[test]
    fn a_peer_has_its_host_and_the_means_that_reach_it() {
        let at = |port: PortId, sent_bytes| PeerReport {
            port,
            state: PeerState::Connected,
            path: CopyPath::Network,
            pid: None,
            sent: 3,
            received: 4,
            pending: 1,
            outstanding: 2,
            errno: 0,
            sent_bytes,
            received_bytes: 5,
        };
        let far = PortId::abroad(0, "10.1.2.3:700".parse().unwrap());
        let endpoint = EndpointReport {
            number: 1,
            port: PortId::new(0, 600),
            ep_type: 3,
            opened_ns: 0,
            progress_ns: 0,
            asleep: false,
            network: "tcp".to_owned(),
            counters: [0; COUNTERS.len()],
            ops: OpsReport::default(),
            known_peers: 2,
            peers: vec![at(PortId::new(0, 601), 2048), at(far, 7), at(far, 8)],
        };
        let transport = "soft".to_owned();
        let mut process =
            ProcessReport { transport, endpoints: vec![endpoint], ..ProcessReport::default() };
        process.endpoints[0].peers[2].errno = 111;
        let text = peers(&process, &[]);
        let rows: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0].join(" "), "endpoint 0:600, network tcp to other hosts");
        assert_eq!(rows[2][..2], ["0:601", "-"]);
        assert_eq!(rows[2][5..], ["soft", "network", "3", "4", "2K", "5", "3"]);
        assert_eq!(rows[3][..2], ["0:700", "10.1.2.3"]);
        assert_eq!(rows[3][5..], ["net:tcp", "network", "3", "4", "7", "5", "3"]);
        assert_eq!(rows[5].join(" "), "10.1.2.3:700 (node 0) refuses connections: error 111");
        let document = crate::fabric::document::process(&process, &[]);
        let peers = &document["endpoints"][0]["peers"];
        for (at, host, transport, network, sent) in [
            (0, Value::Null, "soft", Value::Null, 2048),
            (1, json!("10.1.2.3"), "net", json!("tcp"), 7),
        ] {
            let peer = &peers[at];
            assert_eq!((&peer["host"], &peer["network"]), (&host, &network));
            assert_eq!(peer["transport"], transport);
            assert_eq!((&peer["bytes_sent"], &peer["bytes_received"]), (&json!(sent), &json!(5)));
        }
    }

    #[test]
    fn a_process_of_another_version_is_listed_with_the_remedy() {
        let process = ProcessReport { pid: 7, other_version: Some(99), ..Default::default() };
        let text = endpoints(&[process]);
        assert!(text.contains("process 7 publishes state of version 99"), "{text}");
    }
}

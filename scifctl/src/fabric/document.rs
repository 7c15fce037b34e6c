// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! JSON documents of the provider's endpoints.

use scif::monitor::layout::COUNTERS;
use scif::monitor::report::{EndpointReport, OpReport, PeerReport, ProcessReport};
use serde_json::{Map, Value, json};

use super::activity::{Activity, silence};
use super::texts::{PeerPlace, type_name};
use super::waits::{self, Wait, owner};

fn counters(values: &[u64]) -> Value {
    let pairs = COUNTERS.iter().zip(values);
    Value::Object(
        pairs.map(|(name, value)| ((*name).to_owned(), json!(value))).collect::<Map<_, _>>(),
    )
}

fn op(op: &OpReport, now: u64) -> Value {
    json!({
        "kind": op.kind.name(),
        "state": op.state.name(),
        "peer": op.peer.map(|port| port.to_string()),
        "tag": op.tag,
        "ignore": op.ignore,
        "bytes": op.len,
        "done": op.done,
        "age_ns": now.saturating_sub(op.since_ns),
    })
}

fn peer(peer: &PeerReport, place: &PeerPlace<'_>, rank: Option<u64>) -> Value {
    json!({
        "address": peer.port.to_string(),
        "host": place.host,
        "transport": place.transport,
        "network": place.network,
        "rank": rank,
        "pid": peer.pid,
        "state": peer.state.name(),
        "path": peer.path.name(),
        "records_sent": peer.sent,
        "records_received": peer.received,
        "bytes_sent": peer.sent_bytes,
        "bytes_received": peer.received_bytes,
        "unacknowledged": peer.outstanding,
        "pending": peer.pending,
        "errno": peer.errno,
    })
}

fn endpoint(
    process: &ProcessReport,
    endpoint: &EndpointReport,
    all: &[ProcessReport],
    now: u64,
) -> Value {
    let ops = &endpoint.ops;
    let peer_object = |seen: &PeerReport| {
        let rank = owner(all, endpoint, seen.port).and_then(|process| process.rank);
        peer(seen, &PeerPlace::of(process, endpoint, seen), rank)
    };
    json!({
        "address": endpoint.port.to_string(),
        "type": type_name(endpoint.ep_type),
        "asleep": endpoint.asleep,
        "network": Some(&endpoint.network).filter(|network| !network.is_empty()),
        "silent_ns": silence(endpoint, now),
        "counters": counters(&endpoint.counters),
        "snapshot": {
            "age_ns": now.saturating_sub(ops.time_ns),
            "moved_on": endpoint.has_moved_on(),
            "counters": counters(&ops.counters),
            "receives": ops.receives,
            "multi_receive_buffers": ops.multi_recvs,
            "unexpected": ops.unexpected,
            "unexpected_bytes": ops.unexpected_bytes,
            "outstanding": ops.outstanding,
            "pending": ops.pending,
            "incoming": ops.incoming,
            "operations": ops.listed.iter().map(|listed| op(listed, now)).collect::<Vec<_>>(),
        },
        "known_peers": endpoint.known_peers,
        "peers": endpoint.peers.iter().map(peer_object).collect::<Vec<_>>(),
    })
}

/// Returns a process with its endpoints and waits.
pub(crate) fn process(process: &ProcessReport, all: &[ProcessReport]) -> Value {
    let now = scif::now_ns();
    let endpoints: Vec<Value> =
        process.endpoints.iter().map(|one| endpoint(process, one, all, now)).collect();
    json!({
        "pid": process.pid,
        "command": process.command,
        "activity": Activity::of(process, now).name(),
        "rank": process.rank,
        "size": process.size,
        "launcher": process.launcher,
        "job": process.job,
        "provider": process.provider,
        "libfabric": format!("{}.{}", process.libfabric.0, process.libfabric.1),
        "transport": process.transport,
        "unpublished": process.unpublished,
        "endpoints": endpoints,
        "waits": waits::of(process, all, now).iter().map(wait).collect::<Vec<_>>(),
    })
}

/// Returns all processes with their endpoints.
pub(crate) fn endpoints(all: &[ProcessReport]) -> Value {
    all.iter().map(|one| process(one, all)).collect()
}

/// Returns the counters of a process.
pub(crate) fn stats(process: &ProcessReport) -> Value {
    let counted = |endpoint: &EndpointReport| {
        let counters = counters(&endpoint.counters);
        json!({"address": endpoint.port.to_string(), "counters": counters})
    };
    let endpoints: Vec<Value> = process.endpoints.iter().map(counted).collect();
    json!({"pid": process.pid, "endpoints": endpoints})
}

/// Returns an operation that a process waits for.
pub(crate) fn wait(wait: &Wait<'_>) -> Value {
    let op = wait.op;
    json!({
        "kind": op.kind.name(),
        "state": op.state.name(),
        "endpoint": wait.endpoint.port.to_string(),
        "peer": op.peer.map(|port| port.to_string()),
        "peer_pid": wait.peer.map(|process| process.pid),
        "peer_rank": wait.peer.and_then(|process| process.rank),
        "tag": op.tag,
        "ignore": op.ignore,
        "bytes": op.len,
        "done": op.done,
        "age_ns": wait.age_ns,
    })
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Operations that processes wait for, and the processes that could end these waits.

use scif::PortId;
use scif::monitor::layout::{OpKind, OpState};
use scif::monitor::report::{EndpointReport, OpReport, ProcessReport};

use super::activity::{Activity, duration};
use crate::table::bytes;

/// Age in nanoseconds from which on an operation counts as a wait. Younger ones are in progress.
pub(crate) const WAIT_NS: u64 = 200_000_000;
/// Bits of libfabric's tag in which the MPIs keep the tag of a message.
const MPI_TAG: u64 = 0x7fff_ffff;

/// Operation that a process waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait<'a> {
    pub(crate) endpoint: &'a EndpointReport,
    pub(crate) op: &'a OpReport,
    /// Process of the peer, where its state is published.
    pub(crate) peer: Option<&'a ProcessReport>,
    pub(crate) age_ns: u64,
}

/// Returns the process that has opened the endpoint at an address, as `from` knows it.
pub(crate) fn owner<'a>(
    all: &'a [ProcessReport],
    from: &EndpointReport,
    port: PortId,
) -> Option<&'a ProcessReport> {
    let known = from.peers.iter().find(|peer| peer.port == port).and_then(|peer| peer.pid);
    let mut owners = all.iter().filter(|process| {
        process.endpoints.iter().any(|endpoint| endpoint.port == port)
            && known.is_none_or(|pid| pid == process.pid)
    });
    owners.next()
}

/// Returns the operations that a process has waited for long enough.
pub(crate) fn of<'a>(
    process: &'a ProcessReport,
    all: &'a [ProcessReport],
    now: u64,
) -> Vec<Wait<'a>> {
    if !Activity::of(process, now).may_wait() {
        return Vec::new();
    }
    let mut waits: Vec<Wait<'a>> = process
        .endpoints
        .iter()
        .flat_map(|endpoint| {
            let ops = endpoint.ops.listed.iter().filter(|op| is_wait(op));
            ops.map(move |op| Wait {
                endpoint,
                op,
                peer: op.peer.and_then(|port| owner(all, endpoint, port)),
                age_ns: now.saturating_sub(op.since_ns),
            })
        })
        .filter(|wait| wait.age_ns >= WAIT_NS)
        .collect();
    waits.sort_by_key(|wait| std::cmp::Reverse(wait.age_ns));
    waits
}

/// Whether a program may wait for the end of an operation. The MPIs keep receives without a tag
/// posted for messages that may never come.
fn is_wait(op: &OpReport) -> bool {
    let is_spare = op.kind == OpKind::Recv && op.peer.is_none() && op.state == OpState::Unmatched;
    op.kind != OpKind::Unexpected && !is_spare
}

/// Returns the name of a process in texts: its rank, if there is one.
pub(crate) fn name(process: &ProcessReport) -> String {
    match process.rank {
        Some(rank) => format!("rank {rank}"),
        None => format!("process {}", process.pid),
    }
}

/// Describes an operation in one line.
pub(crate) fn describe(wait: &Wait<'_>) -> String {
    let op = wait.op;
    let is_receive = matches!(op.kind, OpKind::Recv | OpKind::RecvTagged);
    let peer = match (op.peer, wait.peer) {
        (None, _) => "any source".to_owned(),
        (_, Some(process)) => name(process),
        (Some(port), None) => format!("address {port}"),
    };
    let size = if op.done > 0 {
        format!("{} of {}", bytes(op.done), bytes(op.len))
    } else {
        bytes(op.len)
    };
    format!(
        "{} {} {peer}, {}{size} bytes, {}, for {}",
        op.kind.name(),
        if is_receive { "from" } else { "to" },
        tag(op),
        state(op),
        duration(wait.age_ns),
    )
}

/// Returns the tag of an operation with a comma; empty for one without a tag.
pub(crate) fn tag(op: &OpReport) -> String {
    if !matches!(op.kind, OpKind::RecvTagged | OpKind::SendTagged | OpKind::Unexpected) {
        return String::new();
    }
    let mpi = if op.ignore & MPI_TAG == MPI_TAG {
        "any".to_owned()
    } else {
        (op.tag & MPI_TAG).to_string()
    };
    format!("tag {:#x} (MPI {mpi}), ", op.tag)
}

/// Returns the state of an operation in words.
pub(crate) fn state(op: &OpReport) -> &'static str {
    match (op.state, op.kind) {
        (OpState::Unmatched, OpKind::Unexpected) => "not received",
        (OpState::Unmatched, _) => "no message",
        (OpState::Transfer, _) => "in transfer",
        (OpState::Announced, OpKind::Send | OpKind::SendTagged) => "not received by the peer",
        (OpState::Announced, _) => "not executed by the peer",
        (OpState::Pending, _) => "no room at the peer, or no connection",
    }
}

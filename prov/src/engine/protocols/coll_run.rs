// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Collective operations: groups of endpoints that exchange data, and the messages of each member.
//!
//! Members exchange messages of a separate kind, identified by group and operation number. Any
//! number of groups and operations may be in progress, and members may start them at any time. A
//! message crosses the ring in fragments, in order with all other records for that peer. A message
//! for an operation that is not posted yet waits. An operation works on its own memory: the buffer
//! of the application is read when it is posted, and the result is written when it completes.
//!
//! Events drive all work: a call, a record, space in a ring. A group ends when a member has ended.
//! The member that detects this notifies the others.
//!
//! Not here: the messages of an operation (`plan`), waiting messages (`inbox`), creation of a group
//! (`join`).
//!
//! Semantics: fi_collective(3).

use std::ptr;

use libfabric_sys as fi;
use scif::trace::{EventKind, TraceEvent};
use scif_ring::copy::Mem;
use scif_ring::layout::BODY_MAX;

use crate::base::atomic_ops;
use crate::base::errno::Errno;
use crate::engine::completions::completion;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::peer_conn;
use crate::engine::peers::tx_queue::{self, Submit};
use crate::engine::tables::coll_group::{Coll, CollArgs, Group, Op, READY_MAX, Refused, element};
use crate::engine::tables::coll_inbox::{Key, Put};
use crate::engine::tables::coll_plan::{self, Ranks, Step};
use crate::engine::tables::pending::{CollOut, PendingOp};
use crate::engine::types::envelope::RecordError;
use crate::engine::types::peer_id::{ANY, PeerId};
use crate::engine::types::wire::{self, Head, Words};
use crate::state::eq_queue::{EqError, eq_entry};

pub(crate) struct Shape {
    pub(crate) size: usize,
    pub(crate) members: usize,
    pub(crate) root: usize,
    pub(crate) is_root: bool,
}

pub(crate) fn group(ep: &mut Endpoint, addr: u64) -> Option<&mut Group> {
    ep.coll.as_mut()?.groups.get_mut(&addr)
}

/// Whether a collective waits for members.
pub(crate) fn is_collecting(ep: &Endpoint) -> bool {
    ep.coll.as_ref().is_some_and(|c| c.groups.values().any(Group::is_open))
}

/// Whether a collective waits for this member.
pub(crate) fn collects_from(ep: &Endpoint, peer: PeerId) -> bool {
    let waits = |g: &Group| g.is_open() && g.rank_of(peer).is_some();
    ep.coll.as_ref().is_some_and(|c| c.groups.values().any(waits))
}

pub(crate) fn shape(ep: &mut Endpoint, env: &mut Env<'_>, a: &CollArgs) -> Result<Shape, Errno> {
    let size = element(a.kind, a.datatype, a.op)?;
    let root = if a.kind.is_rooted() {
        let id = env.avs.get(ep.cfg.av).and_then(|av| av.port_id(a.root));
        let id = id.ok_or(fi::FI_EINVAL)?;
        Some(if id == ep.links.sock.id() { ANY } else { peer_conn::peer_at(ep, id) })
    } else {
        None
    };
    let group = group(ep, a.group).ok_or(fi::FI_EINVAL)?;
    if let Some(err) = group.broken {
        return Err(err);
    }
    if group.id == 0 {
        return Err(fi::FI_EOPBADSTATE);
    }
    let root = match root {
        Some(peer) => group.rank_of(peer).ok_or(fi::FI_EINVAL)?,
        None => 0,
    };
    Ok(Shape { size, members: group.peers.len(), root, is_root: root == group.rank })
}

pub(crate) fn post(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    a: &CollArgs,
    buf: &Mem,
    result: Mem,
) -> Result<(), Errno> {
    let shape = shape(ep, env, a)?;
    let group = group(ep, a.group).ok_or(fi::FI_EINVAL)?;
    let place = Ranks { rank: group.rank, root: shape.root, slots: &group.slots };
    let plan = coll_plan::plan(a.kind, place, a.count * shape.size);
    let mut work = Vec::new();
    work.try_reserve_exact(plan.work).map_err(|_| fi::FI_ENOMEM)?;
    work.resize(plan.work, 0);
    for (from, to) in plan.load {
        let source = buf.sub(from.start, from.len()).ok_or(fi::FI_EINVAL)?;
        let place = work.get_mut(to..to + from.len()).ok_or(fi::FI_EINVAL)?;
        source.copy_to_slice(place);
    }
    group.last += 1;
    let seq = group.last;
    let op = Op {
        steps: plan.steps,
        work,
        sends: 0,
        store: plan.store,
        result,
        datatype: a.datatype,
        op: a.op,
        context: a.context,
        flags: a.flags,
    };
    group.ops.insert(seq, op);
    progress(ep, env, a.group, seq);
    resume(ep);
    Ok(())
}

/// Executes the steps of an operation that can be done now.
fn progress(ep: &mut Endpoint, env: &mut Env<'_>, addr: u64, seq: u64) {
    loop {
        let Some(coll) = ep.coll.as_mut() else {
            return;
        };
        let Some(group) = coll.groups.get_mut(&addr) else {
            return;
        };
        let (id, Some(op)) = (group.id, group.ops.get_mut(&seq)) else {
            return;
        };
        let Some(step) = op.steps.front() else {
            if op.sends == 0 {
                complete(ep, env, addr, seq);
            }
            return;
        };
        let (Step::Send { to: rank, .. }
        | Step::Receive { from: rank, .. }
        | Step::Merge { from: rank, .. }) = step;
        let peer = group.peers.get(*rank).copied().unwrap_or(ANY);
        if let Step::Send { from, .. } = step {
            let out =
                CollOut::Data { group: addr, seq, range: from.clone(), sent: 0, begun: false };
            op.sends += 1;
            op.steps.pop_front();
            if group.lost.contains(&peer) {
                return fail_group(ep, env, addr, fi::FI_ECONNRESET);
            }
            tx_queue::defer(ep, peer, PendingOp::Coll(out));
            continue;
        }
        let Some(message) = coll.inbox.take(Key { id, seq, peer }) else {
            if group.lost.contains(&peer) {
                fail_group(ep, env, addr, fi::FI_ECONNRESET);
            } else {
                touch(ep, addr, peer);
            }
            return;
        };
        let outcome = match op.steps.pop_front() {
            Some(Step::Receive { to, .. }) => match op.work.get_mut(to) {
                Some(place) if place.len() == message.len() => {
                    place.copy_from_slice(&message);
                    Ok(())
                }
                _ => Err(fi::FI_ETRUNC),
            },
            Some(Step::Merge { with, .. }) => match op.work.get_mut(with) {
                Some(place) if place.len() == message.len() => {
                    atomic_ops::fold(op.op, op.datatype, place, &message)
                }
                _ => Err(fi::FI_ETRUNC),
            },
            Some(Step::Send { .. }) | None => Ok(()),
        };
        if let Err(err) = outcome {
            return fail_group(ep, env, addr, err);
        }
    }
}

fn complete(ep: &mut Endpoint, env: &mut Env<'_>, addr: u64, seq: u64) {
    let Some(op) = group(ep, addr).and_then(|g| g.ops.remove(&seq)) else {
        return;
    };
    for (range, at) in &op.store {
        if let (Some(bytes), Some(place)) =
            (op.work.get(range.clone()), op.result.sub(*at, range.len()))
        {
            place.copy_from_slice(bytes);
        }
    }
    completion::tx_complete(ep, env, op.info(), 0);
}

/// Ensures a connection to `peer`, so that its end is detected.
pub(crate) fn touch(ep: &mut Endpoint, addr: u64, peer: PeerId) {
    let known = ep.peers.get(peer).is_none_or(|p| p.tx.is_some() || !p.queue.pending.is_empty());
    if !known && ep.links.conns_of(peer).next().is_none() {
        tx_queue::defer(ep, peer, PendingOp::Coll(CollOut::Touch { group: addr }));
    }
}

/// Sends as much as the ring has space for.
pub(crate) fn submit(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    out: &mut CollOut,
) -> Submit {
    let Some(conn) = ep.peers.at(peer).tx else {
        return Submit::Retry;
    };
    let Some(conn) = ep.links.conn(conn) else {
        return Submit::Retry;
    };
    match out {
        CollOut::Touch { .. } => Submit::Done,
        CollOut::Note { kind, head, .. } => {
            let pushed = conn.tx().push_slice(*kind, head.as_slice(), &[]);
            if pushed.is_ok() { Submit::Done } else { Submit::Retry }
        }
        CollOut::Data { group, seq, range, sent, begun } => {
            let found = ep.coll.as_ref().and_then(|c| c.groups.get(group));
            let Some((id, op)) = found.and_then(|g| Some((g.id, g.ops.get(seq)?))) else {
                // The operation has ended meanwhile.
                return Submit::Done;
            };
            let message = op.work.get(range.clone()).unwrap_or_default();
            while !*begun || *sent < message.len() {
                let rest = message.get(*sent..).unwrap_or_default();
                let piece = rest.get(..rest.len().min(BODY_MAX)).unwrap_or_default();
                let head =
                    Head::new().word(id).word(*seq).word(message.len() as u64).word(*sent as u64);
                if conn.tx().push_slice(wire::COLL_DATA, head.as_slice(), piece).is_err() {
                    conn.notify();
                    return Submit::Retry;
                }
                *begun = true;
                *sent += piece.len();
            }
            let (addr, seq) = (*group, *seq);
            let sent = message.len();
            ep.stats.sent.add(sent);
            ep.stats.ring.add(sent);
            ep.peers.note(peer, || TraceEvent::new(EventKind::SentRing, 0, sent, 0));
            on_sent(ep, env, addr, seq);
            Submit::Done
        }
    }
}

fn on_sent(ep: &mut Endpoint, env: &mut Env<'_>, addr: u64, seq: u64) {
    let Some(op) = group(ep, addr).and_then(|g| g.ops.get_mut(&seq)) else {
        return;
    };
    op.sends -= 1;
    if op.sends == 0 && op.steps.is_empty() {
        complete(ep, env, addr, seq);
    }
}

/// Handles an item that could not be sent because the peer is unreachable.
pub(crate) fn on_unsent(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId, addr: u64, err: Errno) {
    if let Some(group) = group(ep, addr) {
        group.lost.insert(peer);
        fail_group(ep, env, addr, err);
    }
}

/// Handles the end of a peer: groups that need the peer end.
pub(crate) fn on_conn_lost(ep: &mut Endpoint, env: &mut Env<'_>, peer: PeerId) {
    // Later records of the peer belong to its next incarnation.
    resume(ep);
    let Some(coll) = ep.coll.as_mut() else {
        return;
    };
    coll.ready.retain(|r| r.peer != peer);
    coll.refused.retain(|r| r.peer != peer);
    coll.aborted.retain(|_, (by, _)| *by != peer);
    coll.inbox.forget_parts(peer);
    let mut ended = Vec::new();
    let mut waiting = Vec::new();
    for (addr, group) in coll.groups.iter_mut() {
        if group.rank_of(peer).is_none() || !group.lost.insert(peer) {
            continue;
        }
        if group.id == 0 {
            ended.push(*addr);
        }
        waiting.extend(group.ops.keys().map(|seq| (*addr, *seq)));
    }
    for addr in ended {
        fail_group(ep, env, addr, fi::FI_ECONNRESET);
    }
    // Operations continue with the messages that have arrived, and fail if they need more.
    for (addr, seq) in waiting {
        progress(ep, env, addr, seq);
    }
}

/// Ends all groups of this endpoint.
pub(crate) fn end_all(ep: &mut Endpoint, env: &mut Env<'_>, err: Errno) {
    let groups = ep.coll.as_ref().map(|c| c.groups.keys().copied().collect());
    let groups: Vec<u64> = groups.unwrap_or_default();
    for addr in groups {
        end_group(ep, env, addr, err);
    }
}

/// Ends a group here and notifies its members.
pub(crate) fn fail_group(ep: &mut Endpoint, env: &mut Env<'_>, addr: u64, err: Errno) {
    let Some(group) = group(ep, addr) else {
        return;
    };
    if group.broken.is_some() {
        return;
    }
    let (id, lost) = (group.id, std::mem::take(&mut group.lost));
    let others: Vec<PeerId> = group.others().filter(|p| !lost.contains(p)).collect();
    group.lost = lost;
    if id == 0 {
        refuse(ep, addr, err);
    } else {
        for peer in others {
            let head = Head::new().word(id).word(err.unsigned_abs().into()).word(0);
            send_note(ep, peer, wire::COLL_ABORT, head, addr);
        }
    }
    end_group(ep, env, addr, err);
}

/// Ends a group here, and fails its operations.
pub(crate) fn end_group(ep: &mut Endpoint, env: &mut Env<'_>, addr: u64, err: Errno) {
    let Some(group) = group(ep, addr) else {
        return;
    };
    if group.broken.replace(err).is_some() {
        return;
    }
    let id = group.id;
    let ops = std::mem::take(&mut group.ops);
    if id == 0 {
        report_join(ep, addr, Err(err));
    }
    if let Some(coll) = &mut ep.coll {
        coll.inbox.retain_groups(|of| of != id);
        coll.tidy();
    }
    resume(ep);
    for op in ops.into_values() {
        completion::tx_complete(ep, env, op.info(), err);
    }
}

pub(crate) fn send_note(ep: &mut Endpoint, peer: PeerId, kind: u8, head: Head, group: u64) {
    tx_queue::defer(ep, peer, PendingOp::Coll(CollOut::Note { kind, head, group }));
}

/// Handles a fragment of a message. Returns false if it is invalid.
pub(crate) fn on_data(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    words: &mut Words<'_>,
    body: Mem,
) -> Result<bool, RecordError> {
    let Some(coll) = ep.coll.as_mut() else {
        return Ok(true);
    };
    let (id, seq, len, offset) = (words.word(), words.word(), words.word(), words.word());
    let (Ok(len), Ok(offset)) = (usize::try_from(len), usize::try_from(offset)) else {
        return Ok(false);
    };
    let addr = coll.by_id.get(&id).copied();
    let group = addr.and_then(|addr| coll.groups.get(&addr));
    if group.is_some_and(|g| g.broken.is_some() || g.rank_of(peer).is_none()) {
        return Ok(true);
    }
    // The group was left or never existed, so no operation will take the message.
    if group.is_none() && !coll.may_begin_with(peer) {
        return Ok(true);
    }
    let known = group.is_some();
    let key = Key { id, seq, peer };
    let posted = group.filter(|g| seq <= g.last);
    if let (Some(addr), Some(group)) = (addr, posted) {
        // The operation has ended and takes no further message.
        let Some(op) = group.ops.get(&seq) else {
            return Ok(true);
        };
        if len > op.work.len() {
            fail_group(ep, env, addr, fi::FI_ETRUNC);
            return Ok(true);
        }
        if offset == 0 && coll.inbox.waiting(key) >= op.wants_of(group.rank_of(peer)) {
            return Ok(false);
        }
    }
    let ahead = posted.is_none();
    let whole = match coll.inbox.put(key, len, offset, &body) {
        Put::Invalid => return Ok(false),
        Put::NoMemory => return Err(RecordError::NoMemory),
        // A message from before this member left may continue while another group is joined.
        Put::OutOfPlace { begun } => return Ok(!begun && !known),
        Put::Whole => true,
        Put::Part => false,
    };
    if ahead && coll.inbox.is_full_of(peer) {
        pause(ep, peer);
    }
    ep.stats.received.add(body.len());
    ep.peers.note(peer, || TraceEvent::new(EventKind::Received, 0, body.len(), 0));
    if whole {
        if let Some(addr) = addr {
            progress(ep, env, addr, seq);
        }
    }
    Ok(true)
}

/// Stops reading from a member that is too far ahead.
#[cold]
fn pause(ep: &mut Endpoint, peer: PeerId) {
    if let Some(coll) = &mut ep.coll {
        if !std::mem::replace(&mut ep.peers.at_mut(peer).ahead, true) {
            coll.held.push(peer);
        }
    }
}

/// Resumes reading from members that were too far ahead.
pub(crate) fn resume(ep: &mut Endpoint) {
    let Some(coll) = &mut ep.coll else { return };
    for peer in coll.held.drain(..) {
        ep.peers.at_mut(peer).ahead = false;
    }
}

/// Handles the end of a group. Returns false if the peer reported more ends than possible.
pub(crate) fn on_abort(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    by: PeerId,
    id: u64,
    err: Errno,
    tell: bool,
) -> bool {
    let Some(coll) = ep.coll.as_mut() else {
        return true;
    };
    let Some(addr) = coll.by_id.get(&id).copied() else {
        if coll.may_begin_with(by) {
            let of_peer = |(other, _): &&(PeerId, Errno)| *other == by;
            if coll.aborted.len() >= READY_MAX
                && coll.aborted.values().filter(of_peer).count() >= READY_MAX
            {
                return false;
            }
            coll.aborted.insert(id, (by, err));
        }
        return true;
    };
    if coll.groups.get(&addr).is_some_and(|g| g.rank_of(by).is_some()) {
        if tell {
            fail_group(ep, env, addr, err);
        } else {
            end_group(ep, env, addr, err);
        }
    }
    true
}

/// Reports the result of a join to the application.
pub(crate) fn report_join(ep: &mut Endpoint, addr: u64, outcome: Result<(), Errno>) {
    let Some(group) = ep.coll.as_ref().and_then(|c| c.groups.get(&addr)) else {
        return;
    };
    let Some(eq) = &ep.eq else { return };
    match outcome {
        Ok(()) => {
            let fid = ptr::with_exposed_provenance::<u8>(group.fid);
            let context = ptr::with_exposed_provenance_mut(group.context);
            eq.push(fi::FI_JOIN_COMPLETE, &eq_entry(fid, context, 0));
        }
        Err(err) => eq.push_error(EqError {
            fid: group.fid,
            context: group.context,
            data: 0,
            err,
            prov_errno: -err,
            err_data: Vec::new(),
        }),
    }
}

/// Refuses the members that wait for a group which failed to start.
pub(crate) fn refuse(ep: &mut Endpoint, addr: u64, err: Errno) {
    let Some(Coll { groups, ready, refused, .. }) = ep.coll.as_deref_mut() else {
        return;
    };
    let Some(group) = groups.get(&addr) else {
        return;
    };
    if group.rank != 0 {
        // The leader detects it, or learns it from the reply to its next record.
        return;
    }
    let mut waiting = Vec::new();
    for peer in group.others() {
        let at = ready.iter().position(|r| r.peer == peer && r.membership == group.membership);
        match at.and_then(|at| ready.remove(at)) {
            Some(member) => waiting.push(member),
            None if group.lost.contains(&peer) => {}
            None => {
                // The bound protects against a member that never sends its request.
                if refused.len() >= READY_MAX
                    && refused.iter().filter(|r| r.peer == peer).count() >= READY_MAX
                {
                    if let Some(oldest) = refused.iter().position(|r| r.peer == peer) {
                        refused.remove(oldest);
                    }
                }
                refused.push(Refused { peer, membership: group.membership, err });
            }
        }
    }
    for member in waiting {
        let head = Head::new().word(member.number).word(err.unsigned_abs().into());
        send_note(ep, member.peer, wire::COLL_REFUSE, head, addr);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tables::coll_plan::Kind;
    use crate::engine::tests::Bed;

    #[test]
    fn an_operation_needs_a_joined_group() {
        let mut bed = Bed::new(|cfg| cfg.caps |= fi::FI_COLLECTIVE);
        let (root, datatype, op, count, context, flags) = (0, 0, 0, 0, 0, 0);
        let kind = Kind::Barrier;
        let args = CollArgs { kind, group: 1, root, datatype, op, count, context, flags };
        assert_eq!(bed.run(|ep, env| shape(ep, env, &args)).err(), Some(fi::FI_EINVAL));
        assert!(!is_collecting(&bed.ep));
        bed.run(|ep, env| end_all(ep, env, fi::FI_EOTHER));
    }
}

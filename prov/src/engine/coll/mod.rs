// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Collective operations: groups of endpoints that exchange data, and the messages of each member.
//!
//! Members exchange messages of a separate kind, identified by group and operation number. Any
//! number of groups and operations may be in progress, and members may start them at any time. A
//! message crosses the ring in fragments, in order with all other records for that peer. A message
//! for an operation that is not posted yet waits. An operation works on its own memory: the buffer
//! of the application is read when it is posted, and the result is written when it completes.
//!
//! Events drive all work: a call, a record, space in a ring. A group ends when a member is gone.
//! The member that detects this notifies the others.
//!
//! Not here: the messages of an operation (`plan`), waiting messages (`inbox`), creation of a group
//! (`join`).
//!
//! Semantics: fi_collective(3).

mod inbox;
mod join;
mod plan;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Range;

use libfabric_sys as fi;
use scif::PortId;
use scif_ring::copy::Mem;
use scif_ring::layout::BODY_MAX;

use super::envelope::RecordError;
use super::ops::What;
use super::peer_id::{ANY, PeerId};
use super::pending::{CollOut, TxOp};
use super::tx::Tried;
use super::wire::{self, Head, Words};
use super::{Env, EpState, Errno, split};
use crate::base::atomic_ops;
use crate::domain::DomainState;

#[cfg(test)]
pub(super) use inbox::MESSAGES_MAX as INBOX_MAX;
use inbox::{Inbox, Key, Put};
#[cfg(test)]
pub(super) use join::READY_MAX;
pub(crate) use join::{join, leave};
pub(crate) use plan::Kind;
use plan::{Place, Step};

/// Collective operation to start. [`lengths`] gives the lengths of its buffers.
#[derive(Debug)]
pub(crate) struct CollArgs {
    pub kind: Kind,
    pub group: u64,
    /// Address of the root member, if the operation has one.
    pub root: u64,
    pub datatype: u32,
    pub op: u32,
    pub count: usize,
    pub context: usize,
    pub flags: u64,
}

/// Lengths in bytes of the buffers of an operation at this member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lengths {
    pub read: usize,
    pub write: usize,
}

/// Collective state of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Coll {
    /// Groups by the address that the application uses.
    groups: BTreeMap<u64, Group>,
    /// Addresses of groups by the identity that members use.
    by_id: HashMap<u64, u64>,
    /// Messages that wait for their operation.
    inbox: Inbox,
    /// Members too far ahead, not read until an operation is posted or a group ends.
    held: Vec<PeerId>,
    /// Groups that ended before this member knew of their start, with the peer that reported it.
    aborted: HashMap<u64, (PeerId, Errno)>,
    /// Members that wait for this leader to start a group, oldest first.
    ready: VecDeque<join::Ready>,
    /// Members whose next request to join will be refused, since the group failed to start.
    refused: Vec<join::Refused>,
    /// Number of identities assigned so far.
    given: u64,
}

/// Group of a collective, from the join on.
#[derive(Debug)]
struct Group {
    /// Address and context of the C object, which events report.
    fid: usize,
    context: usize,
    /// Identity that members use; 0 until all have joined.
    id: u64,
    /// Digest of the member set, equal for all orders of its members.
    membership: u64,
    /// Peer numbers by rank; [`ANY`] stands for this endpoint.
    peers: Vec<PeerId>,
    /// Number that the application uses for each rank.
    slots: Vec<usize>,
    rank: usize,
    ops: BTreeMap<u64, Op>,
    /// Number of the last operation posted.
    last: u64,
    /// Members that are gone.
    lost: HashSet<PeerId>,
    /// Error that ended the group, if it has ended.
    broken: Option<Errno>,
}

/// Collective operation in progress.
#[derive(Debug)]
struct Op {
    steps: VecDeque<Step>,
    work: Vec<u8>,
    /// Number of messages that are not completely in the ring yet.
    sends: usize,
    store: Vec<(Range<usize>, usize)>,
    result: Mem,
    datatype: u32,
    op: u32,
    context: usize,
    flags: u64,
}

impl Op {
    /// Returns the number of messages that the operation still needs from the member of this rank.
    fn wants_of(&self, rank: Option<usize>) -> usize {
        let of = |step: &&Step| match step {
            Step::Receive { from, .. } | Step::Merge { from, .. } => Some(*from) == rank,
            Step::Send { .. } => false,
        };
        self.steps.iter().filter(of).count()
    }
}

impl Coll {
    /// Whether a group is being joined. Other members may know of its start before this one.
    fn is_joining(&self) -> bool {
        self.groups.values().any(Group::is_joining)
    }

    /// Returns the peers that a group or waiting data refers to, with repetitions.
    pub(super) fn peers(&self) -> impl Iterator<Item = PeerId> {
        let members = self.groups.values().flat_map(Group::others);
        let told = self.ready.iter().map(|r| r.peer);
        let told = told.chain(self.refused.iter().map(|r| r.peer));
        let ended = self.aborted.values().map(|(by, _)| *by);
        members.chain(told).chain(ended).chain(self.held.iter().copied()).chain(self.inbox.peers())
    }

    /// Whether a record of `peer` about an unknown group may concern a group that is being joined.
    fn may_begin_with(&self, peer: PeerId) -> bool {
        self.groups.values().any(|g| g.is_joining() && g.rank_of(peer).is_some())
    }

    /// Drops data about groups that this endpoint does not have and will not join.
    fn tidy(&mut self) {
        if !self.is_joining() {
            self.aborted.clear();
            self.inbox.retain_groups(|id| self.by_id.contains_key(&id));
        }
    }

    /// Returns the number of items kept for other members.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.inbox.len() + self.aborted.len() + self.ready.len() + self.refused.len()
    }
}

impl Group {
    fn is_joining(&self) -> bool {
        self.id == 0 && self.broken.is_none()
    }

    fn rank_of(&self, peer: PeerId) -> Option<usize> {
        self.peers.iter().position(|p| *p == peer)
    }

    /// Whether a join or an operation is outstanding.
    fn is_open(&self) -> bool {
        self.broken.is_none() && (self.id == 0 || !self.ops.is_empty())
    }

    /// Returns the other members.
    fn others(&self) -> impl Iterator<Item = PeerId> {
        self.peers.iter().copied().filter(|p| *p != ANY)
    }
}

/// Returns the lengths of the buffers of an operation.
///
/// # Errors
/// `FI_EINVAL` for an unknown group, a root that is no member, or more bytes than memory can hold.
/// `FI_EOPNOTSUPP` for an undefined operation.
pub(crate) fn lengths(st: &mut DomainState, ep: u32, a: &CollArgs) -> Result<Lengths, Errno> {
    let (e, mut env) = split(st, ep)?;
    let (size, members, is_root) =
        e.coll_shape(&mut env, a).map(|s| (s.size, s.members, s.is_root))?;
    let (read, write) = a.kind.blocks(members, is_root);
    let bytes = |blocks: usize| {
        let len = blocks.checked_mul(a.count)?.checked_mul(size)?;
        isize::try_from(len).ok().map(isize::cast_unsigned)
    };
    // The working memory holds both buffers.
    bytes(2 * members).ok_or(fi::FI_EINVAL)?;
    Ok(Lengths {
        read: bytes(read).ok_or(fi::FI_EINVAL)?,
        write: bytes(write).ok_or(fi::FI_EINVAL)?,
    })
}

/// Starts a collective operation, with buffers of the lengths that [`lengths`] returns.
///
/// # Errors
/// Errors of [`lengths`]. `FI_EOPBADSTATE` before the group is joined, and the error of the group
/// once it has ended. `FI_EFAULT` for unmappable buffers, `FI_ENOMEM` without working memory.
pub(crate) fn start(
    st: &mut DomainState,
    ep: u32,
    a: &CollArgs,
    (buf, result): (Mem, Mem),
) -> Result<(), Errno> {
    let (e, mut env) = split(st, ep)?;
    if super::nowhere(&[buf]) || super::nowhere(&[result]) {
        return Err(fi::FI_EFAULT);
    }
    e.coll_start(&mut env, a, &buf, result)?;
    e.flush_busy(&mut env);
    Ok(())
}

/// Returns the values of `fi_query_collective`: bytes of an element, elements of a call, members of
/// a group.
///
/// # Errors
/// `FI_EOPNOTSUPP` for an undefined operation.
pub(crate) fn query(coll: u32, datatype: u32, op: u32) -> Result<(usize, usize, usize), Errno> {
    let kind = Kind::from_raw(coll).ok_or(fi::FI_EOPNOTSUPP)?;
    let size = element(kind, datatype, op)?;
    let most = usize::try_from(isize::MAX).unwrap_or(0);
    let count = most.checked_div(size).unwrap_or(0);
    Ok((size, count, ANY.index()))
}

/// Returns the bytes of an element.
fn element(kind: Kind, datatype: u32, op: u32) -> Result<usize, Errno> {
    if kind == Kind::Barrier {
        return Ok(0);
    }
    if kind.reduces() && !atomic_ops::reduces(op, datatype) {
        return Err(fi::FI_EOPNOTSUPP);
    }
    atomic_ops::size_of(datatype).ok_or(fi::FI_EOPNOTSUPP)
}

/// Returns the members of a group that the endpoint has joined.
pub(crate) fn members(st: &DomainState, ep: u32, addr: u64) -> Option<Vec<PortId>> {
    let e = st.eps.get(ep)?;
    let group = e.coll.as_ref()?.groups.get(&addr).filter(|g| g.id != 0)?;
    let port = |peer: &PeerId| e.peers.get(*peer).map_or(e.links.sock.id(), |p| p.id);
    Some(group.peers.iter().map(port).collect())
}

/// Whether a group is being joined. Its members may end without a doorbell.
pub(crate) fn is_joining(st: &DomainState, ep: u32) -> bool {
    st.eps.get(ep).and_then(|e| e.coll.as_ref()).is_some_and(|c| c.is_joining())
}

struct Shape {
    size: usize,
    members: usize,
    root: usize,
    is_root: bool,
}

impl EpState {
    fn group(&mut self, addr: u64) -> Option<&mut Group> {
        self.coll.as_mut()?.groups.get_mut(&addr)
    }

    /// Whether a collective waits for members.
    pub(super) fn is_collecting(&self) -> bool {
        self.coll.as_ref().is_some_and(|c| c.groups.values().any(Group::is_open))
    }

    /// Whether a collective waits for this member.
    pub(super) fn collects_from(&self, peer: PeerId) -> bool {
        let waits = |g: &Group| g.is_open() && g.rank_of(peer).is_some();
        self.coll.as_ref().is_some_and(|c| c.groups.values().any(waits))
    }

    fn coll_shape(&mut self, env: &mut Env<'_>, a: &CollArgs) -> Result<Shape, Errno> {
        let size = element(a.kind, a.datatype, a.op)?;
        let root = if a.kind.is_rooted() {
            let id = env.avs.get(self.cfg.av).and_then(|av| av.port_id(a.root));
            let id = id.ok_or(fi::FI_EINVAL)?;
            Some(if id == self.links.sock.id() { ANY } else { self.peer_at(id) })
        } else {
            None
        };
        let group = self.group(a.group).ok_or(fi::FI_EINVAL)?;
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

    fn coll_start(
        &mut self,
        env: &mut Env<'_>,
        a: &CollArgs,
        buf: &Mem,
        result: Mem,
    ) -> Result<(), Errno> {
        let shape = self.coll_shape(env, a)?;
        let group = self.group(a.group).ok_or(fi::FI_EINVAL)?;
        let place = Place { rank: group.rank, root: shape.root, slots: &group.slots };
        let plan = plan::plan(a.kind, place, a.count * shape.size);
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
        self.coll_run(env, a.group, seq);
        self.coll_read_on();
        Ok(())
    }

    /// Executes the steps of an operation that can be done now.
    fn coll_run(&mut self, env: &mut Env<'_>, addr: u64, seq: u64) {
        loop {
            let Some(coll) = self.coll.as_mut() else {
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
                    self.coll_complete(env, addr, seq);
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
                    return self.coll_fail(env, addr, fi::FI_ECONNRESET);
                }
                self.defer(peer, TxOp::Coll(out));
                continue;
            }
            let Some(message) = coll.inbox.take(Key { id, seq, peer }) else {
                if group.lost.contains(&peer) {
                    self.coll_fail(env, addr, fi::FI_ECONNRESET);
                } else {
                    self.coll_touch(addr, peer);
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
                return self.coll_fail(env, addr, err);
            }
        }
    }

    fn coll_complete(&mut self, env: &mut Env<'_>, addr: u64, seq: u64) {
        let Some(op) = self.group(addr).and_then(|g| g.ops.remove(&seq)) else {
            return;
        };
        for (range, at) in &op.store {
            if let (Some(bytes), Some(place)) =
                (op.work.get(range.clone()), op.result.sub(*at, range.len()))
            {
                place.copy_from_slice(bytes);
            }
        }
        self.tx_complete(env, What::Collective, op.context, op.flags, 0, 0, 0);
    }

    /// Ensures a connection to `peer`, so that its end is detected.
    fn coll_touch(&mut self, addr: u64, peer: PeerId) {
        let known =
            self.peers.get(peer).is_none_or(|p| p.tx.is_some() || !p.queue.pending.is_empty());
        if !known && self.links.conns_of(peer).next().is_none() {
            self.defer(peer, TxOp::Coll(CollOut::Touch { group: addr }));
        }
    }

    /// Sends as much as the ring has space for.
    pub(super) fn try_coll(&mut self, env: &mut Env<'_>, peer: PeerId, out: &mut CollOut) -> Tried {
        let Some(conn) = self.peers.at(peer).tx else {
            return Tried::Later;
        };
        let Some(conn) = self.links.conn(conn) else {
            return Tried::Later;
        };
        match out {
            CollOut::Touch { .. } => Tried::Sent,
            CollOut::Note { kind, head, .. } => {
                let pushed = conn.tx().push_slice(*kind, head.as_slice(), &[]);
                if pushed.is_ok() { Tried::Sent } else { Tried::Later }
            }
            CollOut::Data { group, seq, range, sent, begun } => {
                let found = self.coll.as_ref().and_then(|c| c.groups.get(group));
                let Some((id, op)) = found.and_then(|g| Some((g.id, g.ops.get(seq)?))) else {
                    // The operation has ended meanwhile.
                    return Tried::Sent;
                };
                let message = op.work.get(range.clone()).unwrap_or_default();
                while !*begun || *sent < message.len() {
                    let rest = message.get(*sent..).unwrap_or_default();
                    let piece = rest.get(..rest.len().min(BODY_MAX)).unwrap_or_default();
                    let head = Head::new()
                        .word(id)
                        .word(*seq)
                        .word(message.len() as u64)
                        .word(*sent as u64);
                    if conn.tx().push_slice(wire::COLL_DATA, head.as_slice(), piece).is_err() {
                        conn.notify();
                        return Tried::Later;
                    }
                    *begun = true;
                    *sent += piece.len();
                }
                let (addr, seq) = (*group, *seq);
                let sent = message.len();
                self.stats.sent.add(sent);
                self.stats.ring.add(sent);
                self.coll_sent(env, addr, seq);
                Tried::Sent
            }
        }
    }

    fn coll_sent(&mut self, env: &mut Env<'_>, addr: u64, seq: u64) {
        let Some(op) = self.group(addr).and_then(|g| g.ops.get_mut(&seq)) else {
            return;
        };
        op.sends -= 1;
        if op.sends == 0 && op.steps.is_empty() {
            self.coll_complete(env, addr, seq);
        }
    }

    /// Handles an item that could not be sent because the peer is unreachable.
    pub(super) fn coll_unsent(&mut self, env: &mut Env<'_>, peer: PeerId, addr: u64, err: Errno) {
        if let Some(group) = self.group(addr) {
            group.lost.insert(peer);
            self.coll_fail(env, addr, err);
        }
    }

    /// Handles the end of a peer: groups that need the peer end.
    pub(super) fn coll_lost(&mut self, env: &mut Env<'_>, peer: PeerId) {
        // Later records of the peer belong to its next incarnation.
        self.coll_read_on();
        let Some(coll) = self.coll.as_mut() else {
            return;
        };
        coll.ready.retain(|r| r.peer != peer);
        coll.refused.retain(|r| r.peer != peer);
        coll.aborted.retain(|_, (by, _)| *by != peer);
        coll.inbox.forget_parts(peer);
        let mut ended = Vec::new();
        let mut waiting = Vec::new();
        for (addr, group) in &mut coll.groups {
            if group.rank_of(peer).is_none() || !group.lost.insert(peer) {
                continue;
            }
            if group.id == 0 {
                ended.push(*addr);
            }
            waiting.extend(group.ops.keys().map(|seq| (*addr, *seq)));
        }
        for addr in ended {
            self.coll_fail(env, addr, fi::FI_ECONNRESET);
        }
        // Operations continue with the messages that have arrived, and fail if they need more.
        for (addr, seq) in waiting {
            self.coll_run(env, addr, seq);
        }
    }

    /// Ends all groups of this endpoint.
    pub(super) fn coll_end_all(&mut self, env: &mut Env<'_>, err: Errno) {
        let groups = self.coll.as_ref().map(|c| c.groups.keys().copied().collect());
        let groups: Vec<u64> = groups.unwrap_or_default();
        for addr in groups {
            self.coll_end(env, addr, err);
        }
    }

    /// Ends a group here and notifies its members.
    fn coll_fail(&mut self, env: &mut Env<'_>, addr: u64, err: Errno) {
        let Some(group) = self.group(addr) else {
            return;
        };
        if group.broken.is_some() {
            return;
        }
        let (id, lost) = (group.id, std::mem::take(&mut group.lost));
        let others: Vec<PeerId> = group.others().filter(|p| !lost.contains(p)).collect();
        group.lost = lost;
        if id == 0 {
            self.refuse(addr, err);
        } else {
            for peer in others {
                let head = Head::new().word(id).word(err.unsigned_abs().into()).word(0);
                self.coll_note(peer, wire::COLL_ABORT, head, addr);
            }
        }
        self.coll_end(env, addr, err);
    }

    /// Ends a group here, and fails its operations.
    fn coll_end(&mut self, env: &mut Env<'_>, addr: u64, err: Errno) {
        let Some(group) = self.group(addr) else {
            return;
        };
        if group.broken.replace(err).is_some() {
            return;
        }
        let id = group.id;
        let ops = std::mem::take(&mut group.ops);
        if id == 0 {
            self.report_join(addr, Err(err));
        }
        if let Some(coll) = &mut self.coll {
            coll.inbox.retain_groups(|of| of != id);
            coll.tidy();
        }
        self.coll_read_on();
        for op in ops.into_values() {
            self.tx_complete(env, What::Collective, op.context, op.flags, 0, 0, err);
        }
    }

    fn coll_note(&mut self, peer: PeerId, kind: u8, head: Head, group: u64) {
        self.defer(peer, TxOp::Coll(CollOut::Note { kind, head, group }));
    }

    /// Handles a record of a member.
    pub(super) fn on_coll(
        &mut self,
        env: &mut Env<'_>,
        peer: PeerId,
        kind: u8,
        words: &mut Words<'_>,
        body: Mem,
    ) -> Result<(), RecordError> {
        if self.coll.is_none() {
            if kind == wire::COLL_JOIN {
                words.word();
                let head =
                    Head::new().word(words.word()).word(fi::FI_EOPNOTSUPP.unsigned_abs().into());
                self.answer(peer, wire::COLL_REFUSE, head, &[]);
            }
            return Ok(());
        }
        let sane = match kind {
            wire::COLL_DATA => self.on_coll_data(env, peer, words, body)?,
            wire::COLL_ABORT => {
                let (id, err, tell) = (words.word(), words.word(), words.word() != 0);
                self.on_abort(env, peer, id, error_of(err), tell)
            }
            _ => self.on_join(env, peer, kind, words),
        };
        sane.then_some(()).ok_or(RecordError::ProtocolError)
    }

    /// Handles a fragment of a message. Returns false if it is invalid.
    fn on_coll_data(
        &mut self,
        env: &mut Env<'_>,
        peer: PeerId,
        words: &mut Words<'_>,
        body: Mem,
    ) -> Result<bool, RecordError> {
        let Some(coll) = self.coll.as_mut() else {
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
                self.coll_fail(env, addr, fi::FI_ETRUNC);
                return Ok(true);
            }
            if offset == 0 && coll.inbox.waiting(key) >= op.wants_of(group.rank_of(peer)) {
                return Ok(false);
            }
        }
        let ahead = posted.is_none();
        let whole = match coll.inbox.put(key, len, offset, &body) {
            Put::Nonsense => return Ok(false),
            Put::NoMemory => return Err(RecordError::NoMemory),
            // A message from before this member left may continue while another group is joined.
            Put::OutOfPlace { begun } => return Ok(!begun && !known),
            Put::Whole => true,
            Put::Part => false,
        };
        if ahead && coll.inbox.is_full_of(peer) {
            self.coll_hold(peer);
        }
        self.stats.received.add(body.len());
        if whole && let Some(addr) = addr {
            self.coll_run(env, addr, seq);
        }
        Ok(true)
    }

    /// Stops reading from a member that is too far ahead.
    #[cold]
    fn coll_hold(&mut self, peer: PeerId) {
        if let Some(coll) = &mut self.coll
            && !std::mem::replace(&mut self.peers.at_mut(peer).ahead, true)
        {
            coll.held.push(peer);
        }
    }

    /// Resumes reading from members that were too far ahead.
    fn coll_read_on(&mut self) {
        let Some(coll) = &mut self.coll else { return };
        for peer in coll.held.drain(..) {
            self.peers.at_mut(peer).ahead = false;
        }
    }

    /// Handles the end of a group. Returns false if the peer reported more ends than possible.
    fn on_abort(&mut self, env: &mut Env<'_>, by: PeerId, id: u64, err: Errno, tell: bool) -> bool {
        let Some(coll) = self.coll.as_mut() else {
            return true;
        };
        let Some(addr) = coll.by_id.get(&id).copied() else {
            if coll.may_begin_with(by) {
                let of_peer = |(other, _): &&(PeerId, Errno)| *other == by;
                if coll.aborted.len() >= join::READY_MAX
                    && coll.aborted.values().filter(of_peer).count() >= join::READY_MAX
                {
                    return false;
                }
                coll.aborted.insert(id, (by, err));
            }
            return true;
        };
        if coll.groups.get(&addr).is_some_and(|g| g.rank_of(by).is_some()) {
            if tell {
                self.coll_fail(env, addr, err);
            } else {
                self.coll_end(env, addr, err);
            }
        }
        true
    }
}

/// Returns the positive error number that a peer sent, or `FI_EOTHER` if it is invalid.
fn error_of(word: u64) -> Errno {
    Errno::try_from(word).ok().filter(|err| *err > 0).unwrap_or(fi::FI_EOTHER)
}

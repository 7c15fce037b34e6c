// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Groups of a collective, and the operations in progress in them.
//!
//! Not here: the execution of an operation (`protocols::coll_run`).

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::Ipv4Addr;
use std::ops::Range;

use libfabric_sys as fi;
use scif::sorted::SortedMap;
use scif_ring::copy::Mem;

use crate::base::atomic_ops;
use crate::base::errno::Errno;
use crate::engine::tables::coll_inbox::Inbox;
use crate::engine::tables::coll_plan::{Kind, Step};
use crate::engine::tables::op_table::{CompletionInfo, OpKind};
use crate::engine::types::peer_id::{ANY, PeerId};

/// Largest number of groups for which one member may wait for this leader. More are an error.
pub(crate) const READY_MAX: usize = 1 << 14;

/// Member that waits for its leader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) peer: PeerId,
    pub(crate) membership: u64,
    /// Number of the group at that member.
    pub(crate) number: u64,
}

/// Member whose next join request comes too late.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    pub(crate) peer: PeerId,
    pub(crate) membership: u64,
    pub(crate) err: Errno,
}

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
    pub(crate) groups: SortedMap<u64, Group>,
    /// Addresses of groups by the identity that members use.
    pub(crate) by_id: HashMap<u64, u64>,
    /// Messages that wait for their operation.
    pub(crate) inbox: Inbox,
    /// Members too far ahead, not read until an operation is posted or a group ends.
    pub(crate) held: Vec<PeerId>,
    /// Groups that ended before this member knew of their start, with the peer that reported it.
    pub(crate) aborted: HashMap<u64, (PeerId, Errno)>,
    /// Members that wait for this leader to start a group, oldest first.
    pub(crate) ready: VecDeque<Ready>,
    /// Members whose next request to join will be refused, since the group failed to start.
    pub(crate) refused: Vec<Refused>,
    /// Number of identities assigned so far.
    pub(crate) given: u64,
}

/// Group of a collective, from the join on.
#[derive(Debug)]
pub(crate) struct Group {
    /// Address and context of the C object, which events report.
    pub(crate) fid: usize,
    pub(crate) context: usize,
    /// Identity that members use; 0 until all have joined.
    pub(crate) id: u64,
    /// Digest of the member set, equal for all orders of its members.
    pub(crate) membership: u64,
    /// Peer numbers by rank; [`ANY`] stands for this endpoint.
    pub(crate) peers: Vec<PeerId>,
    /// Number that the application uses for each rank.
    pub(crate) slots: Vec<usize>,
    pub(crate) rank: usize,
    pub(crate) ops: SortedMap<u64, Op>,
    /// Number of the last operation posted.
    pub(crate) last: u64,
    /// Members that have ended.
    pub(crate) lost: HashSet<PeerId>,
    /// Error that ended the group, if it has ended.
    pub(crate) broken: Option<Errno>,
}

/// Collective operation in progress.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) steps: VecDeque<Step>,
    pub(crate) work: Vec<u8>,
    /// Number of messages that are not completely in the ring yet.
    pub(crate) sends: usize,
    pub(crate) store: Vec<(Range<usize>, usize)>,
    pub(crate) result: Mem,
    pub(crate) datatype: u32,
    pub(crate) op: u32,
    pub(crate) context: usize,
    pub(crate) flags: u64,
}

impl Op {
    /// Returns the properties that the completion reports.
    pub(crate) fn info(&self) -> CompletionInfo {
        let (context, flags) = (self.context, self.flags);
        CompletionInfo { op_kind: OpKind::Collective, context, flags, tag: 0, len: 0 }
    }

    /// Returns the number of messages that the operation still needs from the member of this rank.
    pub(crate) fn wants_of(&self, rank: Option<usize>) -> usize {
        let of = |step: &&Step| match step {
            Step::Receive { from, .. } | Step::Merge { from, .. } => Some(*from) == rank,
            Step::Send { .. } => false,
        };
        self.steps.iter().filter(of).count()
    }
}

impl Coll {
    /// Whether a group is being joined. Other members may know of its start before this one.
    pub(crate) fn is_joining(&self) -> bool {
        self.groups.values().any(Group::is_joining)
    }

    /// Returns the peers that a group or waiting data refers to, with repetitions.
    pub(crate) fn peers(&self) -> impl Iterator<Item = PeerId> {
        let members = self.groups.values().flat_map(Group::others);
        let named = self.ready.iter().map(|r| r.peer);
        let named = named.chain(self.refused.iter().map(|r| r.peer));
        let ended = self.aborted.values().map(|(by, _)| *by);
        members.chain(named).chain(ended).chain(self.held.iter().copied()).chain(self.inbox.peers())
    }

    /// Whether a record of `peer` about an unknown group may concern a group that is being joined.
    pub(crate) fn may_begin_with(&self, peer: PeerId) -> bool {
        self.groups.values().any(|g| g.is_joining() && g.rank_of(peer).is_some())
    }

    /// Drops data about groups that this endpoint does not have and will not join.
    pub(crate) fn tidy(&mut self) {
        if !self.is_joining() {
            self.aborted.clear();
            self.inbox.retain_groups(|id| self.by_id.contains_key(&id));
        }
    }

    /// Returns the number of items kept for other members.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.inbox.len() + self.aborted.len() + self.ready.len() + self.refused.len()
    }
}

impl Group {
    pub(crate) fn is_joining(&self) -> bool {
        self.id == 0 && self.broken.is_none()
    }

    pub(crate) fn rank_of(&self, peer: PeerId) -> Option<usize> {
        self.peers.iter().position(|p| *p == peer)
    }

    /// Whether a join or an operation is outstanding.
    pub(crate) fn is_open(&self) -> bool {
        self.broken.is_none() && (self.id == 0 || !self.ops.is_empty())
    }

    /// Returns the other members.
    pub(crate) fn others(&self) -> impl Iterator<Item = PeerId> {
        self.peers.iter().copied().filter(|p| *p != ANY)
    }
}

/// Returns a hash of a list of numbers: not secret, equal in every process, and unlikely to
/// collide.
pub(crate) fn digest(of: impl Iterator<Item = u64>) -> u64 {
    // FNV-1a on words instead of bytes, and the finalizer of SplitMix64, which affects all bits.
    let mut hash = of.fold(0xcbf2_9ce4_8422_2325_u64, |hash, word| {
        (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3)
    });
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (hash ^ hash >> 31).max(1)
}

/// Name of a member, the same in every process.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct MemberName {
    pub(crate) node: u16,
    pub(crate) port: u16,
    /// IP address in the network; 0.0.0.0 in a group within one host.
    pub(crate) ip: Ipv4Addr,
}

pub(crate) fn word_of(name: MemberName) -> u64 {
    u64::from(name.ip.to_bits()) << 32 | u64::from(name.node) << 16 | u64::from(name.port)
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
pub(crate) fn element(kind: Kind, datatype: u32, op: u32) -> Result<usize, Errno> {
    if kind == Kind::Barrier {
        return Ok(0);
    }
    if kind.reduces() && !atomic_ops::reduces(op, datatype) {
        return Err(fi::FI_EOPNOTSUPP);
    }
    atomic_ops::size_of(datatype).ok_or(fi::FI_EOPNOTSUPP)
}

/// Returns the positive error number that a peer sent, or `FI_EOTHER` if it is invalid.
pub(crate) fn error_of(word: u64) -> Errno {
    Errno::try_from(word).ok().filter(|err| *err > 0).unwrap_or(fi::FI_EOTHER)
}

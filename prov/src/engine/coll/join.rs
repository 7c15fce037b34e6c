// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Creation of a group of endpoints, and departure of a member.
//!
//! The member with the lowest address is the leader. The others report to it that they are ready.
//! Once all are, the leader assigns the group an identity that no other group ever has, and
//! announces it. Repeated joins of the same set are matched in the order of the calls.
//!
//! Semantics: fi_collective(3), `fi_join_collective`.

use std::collections::{BTreeMap, HashSet};
use std::ptr;

use libfabric_sys as fi;
use scif::PortId;

use super::super::peer_id::{ANY, PeerId};
use super::super::wire::{self, Head, Words};
use super::super::{Env, EpState, Errno, split};
use super::{Coll, Group, error_of};
use crate::domain::DomainState;
use crate::state::eq_queue::{EqError, eq_entry};

/// Largest number of groups for which one member may wait for this leader. More are an error.
pub(in crate::engine) const READY_MAX: usize = 1 << 14;

/// Member that waits for its leader.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub(super) peer: PeerId,
    membership: u64,
    /// Number of the group at that member.
    number: u64,
}

/// Member whose next join request comes too late.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    pub(super) peer: PeerId,
    membership: u64,
    err: Errno,
}

/// Joins the group of `members`, in the application's order, under the new address `addr`. The
/// event queue reports the result, with the C object `(fid, context)`.
///
/// # Errors
/// `FI_EOPNOTSUPP` for an endpoint without collectives, `FI_ENOEQ` for one without event queue,
/// `FI_EINVAL` if the endpoint itself is not a member.
pub(crate) fn join(
    st: &mut DomainState,
    ep: u32,
    addr: u64,
    members: &[PortId],
    (fid, context): (usize, usize),
) -> Result<(), Errno> {
    let (e, mut env) = split(st, ep)?;
    if e.coll.is_none() {
        return Err(fi::FI_EOPNOTSUPP);
    }
    if e.eq.is_none() {
        return Err(fi::FI_ENOEQ);
    }
    let own = e.links.sock.id();
    if !members.contains(&own) {
        return Err(fi::FI_EINVAL);
    }
    let mut ranked: Vec<(PortId, usize)> = members.iter().copied().zip(0..).collect();
    ranked.sort_unstable_by_key(|(id, _)| (id.node, id.port));
    let group = Group {
        fid,
        context,
        id: 0,
        membership: digest(ranked.iter().map(|(id, _)| word_of(*id))),
        peers: ranked.iter().map(|(id, _)| if *id == own { ANY } else { e.peer_at(*id) }).collect(),
        slots: ranked.iter().map(|(_, slot)| *slot).collect(),
        rank: ranked.iter().position(|(id, _)| *id == own).unwrap_or(0),
        ops: BTreeMap::new(),
        last: 0,
        lost: HashSet::new(),
        broken: None,
    };
    let (rank, membership) = (group.rank, group.membership);
    let leader = group.peers.first().copied().unwrap_or(ANY);
    let others: Vec<PeerId> = group.others().collect();
    if let Some(coll) = &mut e.coll {
        coll.groups.insert(addr, group);
    }
    if rank == 0 {
        for peer in others {
            e.coll_touch(addr, peer);
        }
        e.begin_groups(&mut env);
    } else {
        let head = Head::new().word(membership).word(addr);
        e.coll_note(leader, wire::COLL_JOIN, head, addr);
    }
    e.flush_busy(&mut env);
    Ok(())
}

/// Leaves group `addr`, if it still exists. Its operations end with `FI_ECANCELED` at all members.
pub(crate) fn leave(st: &mut DomainState, ep: u32, addr: u64) {
    let Ok((e, mut env)) = split(st, ep) else {
        return;
    };
    let Some(group) = e.group(addr) else { return };
    let (id, busy, over) = (group.id, !group.ops.is_empty(), group.broken.is_some());
    let (rank, fid) = (group.rank, group.fid);
    let leader = group.peers.first().copied().unwrap_or(ANY);
    if !over {
        if id == 0 {
            if rank != 0 {
                e.coll_note(leader, wire::COLL_LEAVE, Head::new().word(addr), addr);
            }
        } else if busy {
            e.coll_fail(&mut env, addr, fi::FI_ECANCELED);
        }
    }
    if let Some(coll) = &mut e.coll {
        coll.groups.remove(&addr);
        if id != 0 {
            coll.by_id.remove(&id);
            coll.aborted.remove(&id);
            coll.inbox.retain_groups(|of| of != id);
        }
        coll.tidy();
    }
    e.coll_read_on();
    if let Some(eq) = &e.eq {
        eq.purge_fid(fid);
    }
    e.flush_busy(&mut env);
}

/// Returns a hash of a list of numbers: not secret, equal in every process, and unlikely to
/// collide.
fn digest(of: impl Iterator<Item = u64>) -> u64 {
    // FNV-1a on words instead of bytes, and the finalizer of SplitMix64, which affects all bits.
    let mut hash = of.fold(0xcbf2_9ce4_8422_2325_u64, |hash, word| {
        (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3)
    });
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (hash ^ hash >> 31).max(1)
}

fn word_of(id: PortId) -> u64 {
    u64::from(id.node) << 32 | u64::from(id.port)
}

impl EpState {
    /// Reports the result of a join to the application.
    pub(super) fn report_join(&mut self, addr: u64, outcome: Result<(), Errno>) {
        let Some(group) = self.coll.as_ref().and_then(|c| c.groups.get(&addr)) else {
            return;
        };
        let Some(eq) = &self.eq else { return };
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

    /// Starts the groups led by this member whose members are all ready, oldest first.
    fn begin_groups(&mut self, env: &mut Env<'_>) {
        let own = self.links.sock.id();
        let Some(coll) = self.coll.as_mut() else {
            return;
        };
        let mut begun = Vec::new();
        for (addr, group) in &mut coll.groups {
            if group.id != 0 || group.rank != 0 || group.broken.is_some() {
                continue;
            }
            let place = |peer: PeerId| {
                coll.ready.iter().position(|r| r.peer == peer && r.membership == group.membership)
            };
            if group.others().any(|peer| place(peer).is_none()) {
                continue;
            }
            let mut told = Vec::new();
            for peer in group.peers.iter().copied().filter(|p| *p != ANY) {
                let at = coll
                    .ready
                    .iter()
                    .position(|r| r.peer == peer && r.membership == group.membership);
                told.extend(at.and_then(|at| coll.ready.remove(at)));
            }
            coll.given += 1;
            // Unique to this incarnation of this endpoint.
            group.id = digest([word_of(own), scif::now_ns(), coll.given].into_iter());
            coll.by_id.insert(group.id, *addr);
            begun.push((*addr, group.id, told));
        }
        for (addr, id, told) in begun {
            for ready in told {
                let head = Head::new().word(ready.number).word(id);
                self.coll_note(ready.peer, wire::COLL_START, head, addr);
            }
            self.report_join(addr, Ok(()));
            self.catch_up(env, addr, id);
        }
        if let Some(coll) = &mut self.coll {
            coll.tidy();
        }
    }

    /// Ends a group whose end was reported before its start.
    fn catch_up(&mut self, env: &mut Env<'_>, addr: u64, id: u64) {
        let early = self.coll.as_mut().and_then(|c| c.aborted.remove(&id));
        if let Some((_, err)) = early {
            self.coll_end(env, addr, err);
        }
    }

    /// Refuses the members that wait for a group which failed to start.
    pub(in crate::engine) fn refuse(&mut self, addr: u64, err: Errno) {
        let Some(Coll { groups, ready, refused, .. }) = self.coll.as_deref_mut() else {
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
                        && let Some(oldest) = refused.iter().position(|r| r.peer == peer)
                    {
                        refused.remove(oldest);
                    }
                    refused.push(Refused { peer, membership: group.membership, err });
                }
            }
        }
        for member in waiting {
            let head = Head::new().word(member.number).word(err.unsigned_abs().into());
            self.coll_note(member.peer, wire::COLL_REFUSE, head, addr);
        }
    }

    /// Handles a record about joining. Returns false if it is invalid.
    pub(super) fn on_join(
        &mut self,
        env: &mut Env<'_>,
        peer: PeerId,
        kind: u8,
        words: &mut Words<'_>,
    ) -> bool {
        let Some(coll) = self.coll.as_mut() else {
            return true;
        };
        let (first, second) = (words.word(), words.word());
        match kind {
            wire::COLL_JOIN => {
                let late =
                    coll.refused.iter().position(|r| r.peer == peer && r.membership == first);
                if let Some(at) = late {
                    let err = coll.refused.remove(at).err;
                    let head = Head::new().word(second).word(err.unsigned_abs().into());
                    self.coll_note(peer, wire::COLL_REFUSE, head, 0);
                    return true;
                }
                if coll.ready.len() >= READY_MAX
                    && coll.ready.iter().filter(|r| r.peer == peer).count() >= READY_MAX
                {
                    return false;
                }
                coll.ready.push_back(Ready { peer, membership: first, number: second });
                self.begin_groups(env);
            }
            wire::COLL_LEAVE => coll.ready.retain(|r| r.peer != peer || r.number != first),
            // An identity belongs to one group only.
            wire::COLL_START if second == 0 || coll.by_id.contains_key(&second) => return false,
            wire::COLL_START => {
                let led = |g: &&mut Group| {
                    g.peers.first() == Some(&peer) && g.id == 0 && g.broken.is_none()
                };
                let Some(group) = coll.groups.get_mut(&first).filter(led) else {
                    // This member has left meanwhile. The others must not wait for it.
                    let err = u64::from(fi::FI_ECANCELED.unsigned_abs());
                    let head = Head::new().word(second).word(err).word(1);
                    self.answer(peer, wire::COLL_ABORT, head, &[]);
                    return true;
                };
                group.id = second;
                coll.by_id.insert(second, first);
                self.report_join(first, Ok(()));
                self.catch_up(env, first, second);
                if let Some(coll) = &mut self.coll {
                    coll.tidy();
                }
            }
            wire::COLL_REFUSE => {
                let led = |g: &&Group| g.peers.first() == Some(&peer) && g.id == 0;
                if coll.groups.get(&first).filter(led).is_some() {
                    self.coll_end(env, first, error_of(second));
                }
            }
            _ => {}
        }
        true
    }
}

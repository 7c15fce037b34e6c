// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Calls of collectives: join, operations, departure.
//!
//! Semantics: fi_collective(3).

use std::collections::HashSet;
use std::net::Ipv4Addr;

use libfabric_sys as fi;
use scif::PortId;
use scif::sorted::SortedMap;
use scif_ring::copy::Mem;

use crate::base::addr::Addr;
use crate::base::errno::Errno;
use crate::domain::calls::{self, split};
use crate::domain::state::DomainState;
use crate::engine::dispatch;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::peer_conn;
use crate::engine::protocols::{coll_join, coll_run};
use crate::engine::tables::coll_group::{CollArgs, Group, Lengths, MemberName, digest, word_of};
use crate::engine::types::peer_id::{ANY, PeerId};
use crate::engine::types::wire::{self, Head};

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
    let is_near = members.iter().all(|id| id.place == 0);
    let name = |id: PortId| {
        let ip = if is_near { Ipv4Addr::UNSPECIFIED } else { ip_of(e, &env, id) };
        MemberName { node: id.node, port: id.port, ip }
    };
    let mut ranked: Vec<(MemberName, PortId, usize)> =
        members.iter().zip(0..).map(|(id, slot)| (name(*id), *id, slot)).collect();
    ranked.sort_unstable_by_key(|(name, ..)| *name);
    let group = Group {
        fid,
        context,
        id: 0,
        membership: digest(ranked.iter().map(|(name, ..)| word_of(*name))),
        peers: ranked
            .iter()
            .map(|(_, id, _)| if *id == own { ANY } else { peer_conn::peer_at(e, *id) })
            .collect(),
        slots: ranked.iter().map(|(.., slot)| *slot).collect(),
        rank: ranked.iter().position(|(_, id, _)| *id == own).unwrap_or(0),
        ops: SortedMap::new(),
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
            coll_run::touch(e, addr, peer);
        }
        coll_join::begin_groups(e, &mut env);
    } else {
        let head = Head::new().word(membership).word(addr);
        coll_run::send_note(e, leader, wire::COLL_JOIN, head, addr);
    }
    dispatch::flush_busy(e, &mut env);
    Ok(())
}

/// Returns the IP address of a member in the network, as all hosts know it.
fn ip_of(e: &Endpoint, env: &Env<'_>, id: PortId) -> Ipv4Addr {
    if let Some(name) = id.network_name() {
        return *name.ip();
    }
    // The name of a member on this host contains the address. One that a user has typed may not.
    let bytes = env.avs.get(e.cfg.av).and_then(|av| av.bytes_of(id));
    let named = bytes.and_then(|bytes| Addr::from_bytes(&bytes)).filter(|addr| addr.host != 0);
    let own = e.links.sock.network_name().map_or(Ipv4Addr::UNSPECIFIED, |name| *name.ip());
    named.filter(|_| id != e.links.sock.id()).map_or(own, |addr| addr.ip)
}

/// Leaves group `addr`, if it still exists. Its operations end with `FI_ECANCELED` at all members.
pub(crate) fn leave(st: &mut DomainState, ep: u32, addr: u64) {
    let Ok((e, mut env)) = split(st, ep) else {
        return;
    };
    let Some(group) = coll_run::group(e, addr) else { return };
    let (id, busy, over) = (group.id, !group.ops.is_empty(), group.broken.is_some());
    let (rank, fid) = (group.rank, group.fid);
    let leader = group.peers.first().copied().unwrap_or(ANY);
    if !over {
        if id == 0 {
            if rank != 0 {
                coll_run::send_note(e, leader, wire::COLL_LEAVE, Head::new().word(addr), addr);
            }
        } else if busy {
            coll_run::fail_group(e, &mut env, addr, fi::FI_ECANCELED);
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
    coll_run::resume(e);
    if let Some(eq) = &e.eq {
        eq.purge_fid(fid);
    }
    dispatch::flush_busy(e, &mut env);
}

/// Returns the lengths of the buffers of an operation.
///
/// # Errors
/// `FI_EINVAL` for an unknown group, a root that is no member, or more bytes than memory can hold.
/// `FI_EOPNOTSUPP` for an undefined operation.
pub(crate) fn lengths(st: &mut DomainState, ep: u32, a: &CollArgs) -> Result<Lengths, Errno> {
    let (e, mut env) = split(st, ep)?;
    let (size, members, is_root) =
        coll_run::shape(e, &mut env, a).map(|s| (s.size, s.members, s.is_root))?;
    let (read, write) = a.kind.blocks(members, is_root);
    let bytes = |blocks: usize| {
        let len = blocks.checked_mul(a.count)?.checked_mul(size)?;
        isize::try_from(len).ok().map(isize::unsigned_abs)
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
    if calls::is_null_range(&[buf]) || calls::is_null_range(&[result]) {
        return Err(fi::FI_EFAULT);
    }
    coll_run::post(e, &mut env, a, &buf, result)?;
    dispatch::flush_busy(e, &mut env);
    Ok(())
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

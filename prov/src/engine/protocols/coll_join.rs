// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Creation of a group of endpoints, and departure of a member.
//!
//! The member with the lowest address is the leader. The others report to it that they are ready.
//! Once all are, the leader assigns the group an identity that no other group ever has, and
//! announces it. Repeated joins of the same set are matched in the order of the calls.
//!
//! Semantics: fi_collective(3), `fi_join_collective`.

use std::net::Ipv4Addr;

use libfabric_sys as fi;

use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::peer_conn;
use crate::engine::protocols::coll_run;
use crate::engine::tables::coll_group::{
    Group, MemberName, READY_MAX, Ready, digest, error_of, word_of,
};
use crate::engine::types::peer_id::{ANY, PeerId};
use crate::engine::types::wire::{self, Head, Words};

/// Starts the groups led by this member whose members are all ready, oldest first.
pub(crate) fn begin_groups(ep: &mut Endpoint, env: &mut Env<'_>) {
    let id = ep.links.sock.id();
    let ip = ep.links.sock.network_name().map_or(Ipv4Addr::UNSPECIFIED, |name| *name.ip());
    let own = MemberName { node: id.node, port: id.port, ip };
    let Some(coll) = ep.coll.as_mut() else {
        return;
    };
    let mut begun = Vec::new();
    for (addr, group) in coll.groups.iter_mut() {
        if group.id != 0 || group.rank != 0 || group.broken.is_some() {
            continue;
        }
        let place = |peer: PeerId| {
            coll.ready.iter().position(|r| r.peer == peer && r.membership == group.membership)
        };
        if group.others().any(|peer| place(peer).is_none()) {
            continue;
        }
        let mut started = Vec::new();
        for peer in group.peers.iter().copied().filter(|p| *p != ANY) {
            let at =
                coll.ready.iter().position(|r| r.peer == peer && r.membership == group.membership);
            started.extend(at.and_then(|at| coll.ready.remove(at)));
        }
        coll.given += 1;
        // Unique to this incarnation of this endpoint.
        group.id = digest([word_of(own), scif::now_ns(), coll.given].into_iter());
        coll.by_id.insert(group.id, *addr);
        begun.push((*addr, group.id, started));
    }
    for (addr, id, started) in begun {
        for ready in started {
            let head = Head::new().word(ready.number).word(id);
            coll_run::send_note(ep, ready.peer, wire::COLL_START, head, addr);
        }
        coll_run::report_join(ep, addr, Ok(()));
        catch_up(ep, env, addr, id);
    }
    if let Some(coll) = &mut ep.coll {
        coll.tidy();
    }
}

/// Ends a group whose end was reported before its start.
fn catch_up(ep: &mut Endpoint, env: &mut Env<'_>, addr: u64, id: u64) {
    let early = ep.coll.as_mut().and_then(|c| c.aborted.remove(&id));
    if let Some((_, err)) = early {
        coll_run::end_group(ep, env, addr, err);
    }
}

/// Handles a record about joining. Returns false if it is invalid.
pub(crate) fn on_join(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    peer: PeerId,
    kind: u8,
    words: &mut Words<'_>,
) -> bool {
    let Some(coll) = ep.coll.as_mut() else {
        return true;
    };
    let (first, second) = (words.word(), words.word());
    match kind {
        wire::COLL_JOIN => {
            let late = coll.refused.iter().position(|r| r.peer == peer && r.membership == first);
            if let Some(at) = late {
                let err = coll.refused.remove(at).err;
                let head = Head::new().word(second).word(err.unsigned_abs().into());
                coll_run::send_note(ep, peer, wire::COLL_REFUSE, head, 0);
                return true;
            }
            if coll.ready.len() >= READY_MAX
                && coll.ready.iter().filter(|r| r.peer == peer).count() >= READY_MAX
            {
                return false;
            }
            coll.ready.push_back(Ready { peer, membership: first, number: second });
            begin_groups(ep, env);
        }
        wire::COLL_LEAVE => coll.ready.retain(|r| r.peer != peer || r.number != first),
        // An identity belongs to one group only.
        wire::COLL_START if second == 0 || coll.by_id.contains_key(&second) => return false,
        wire::COLL_START => {
            let led =
                |g: &&mut Group| g.peers.first() == Some(&peer) && g.id == 0 && g.broken.is_none();
            let Some(group) = coll.groups.get_mut(&first).filter(led) else {
                // This member has left meanwhile. The others must not wait for it.
                let err = u64::from(fi::FI_ECANCELED.unsigned_abs());
                let head = Head::new().word(second).word(err).word(1);
                peer_conn::answer(ep, peer, wire::COLL_ABORT, head, &[]);
                return true;
            };
            group.id = second;
            coll.by_id.insert(second, first);
            coll_run::report_join(ep, first, Ok(()));
            catch_up(ep, env, first, second);
            if let Some(coll) = &mut ep.coll {
                coll.tidy();
            }
        }
        wire::COLL_REFUSE => {
            let led = |g: &&Group| g.peers.first() == Some(&peer) && g.id == 0;
            if coll.groups.get(&first).filter(led).is_some() {
                coll_run::end_group(ep, env, first, error_of(second));
            }
        }
        _ => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{Bed, head_of};

    #[test]
    fn a_member_waits_for_its_leader_until_it_leaves() {
        let mut bed = Bed::new(|cfg| cfg.caps |= fi::FI_COLLECTIVE);
        let id = bed.ep.links.sock.id();
        let peer = crate::engine::peers::peer_conn::peer_at(&mut bed.ep, id);
        let mut handle = |kind, first, second| {
            let head = head_of(&[first, second]);
            bed.run(|ep, env| on_join(ep, env, peer, kind, &mut Words::new(&head, 16)));
            bed.ep.coll.as_ref().unwrap().ready.len()
        };
        assert_eq!(handle(wire::COLL_JOIN, 11, 1), 1);
        assert_eq!(handle(wire::COLL_JOIN, 12, 2), 2);
        assert_eq!(handle(wire::COLL_LEAVE, 1, 0), 1);
    }
}

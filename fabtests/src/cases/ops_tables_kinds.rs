// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Less usual objects and states for the walk of `ops_tables`: poll sets and wait sets, scalable
//! endpoints and their contexts, sets of addresses, and groups. Also objects of another provider.
//! Mirrors fi_poll(3), fi_endpoint(3), fi_av_set(3), fi_collective(3), fi_peer(3).

use std::sync::Arc;

use scif_fabtests::prelude::*;

use super::ops_tables::{Bench, ObjectState, Subject, all_of, bench, scene, scenes};
use super::ops_tables_answers as state;
use super::peer::needs_peers;

pub(crate) const CASES: &[Case] = &[
    case("slots/sets", 1, |r| scenes(r, SETS)),
    case("slots/scalable_endpoints", 1, |r| scenes(r, SCALABLE)),
    case("slots/groups", 1, |r| scenes(r, GROUPS)),
    case("slots/objects_filled_by_a_peer", 1, peers),
    case("slots/triggered", 1, |r| scenes(r, TRIGGERED)),
    case("slots/with_a_prefix", 1, |r| scenes(r, PREFIXED)),
    case("slots/messages_only", 1, |r| scenes(r, MESSAGES)),
];

const SETS: &[ObjectState] = &[
    scene(state::POLL_SET, "a poll set", |r| {
        let bench = bench(r, sys::FI_EP_RDM)?;
        let set = supported("fi_poll_open", PollSet::open(&bench.domain, 0))?;
        bench.subject(Arc::new(set))
    }),
    scene(state::POLL_SET, "a poll set with a member", |r| {
        let bench = bench(r, sys::FI_EP_RDM)?;
        let set = supported("fi_poll_open", PollSet::open(&bench.domain, 0))?;
        let cntr = Cntr::open(&bench.domain, CntrAttr::default())?;
        set.add(&*cntr, 1)?;
        let set = Arc::new(set);
        let (mine, member) = (Arc::clone(&set), Arc::clone(&cntr));
        Ok(bench.subject(set)?.with(vec![cntr]).first(move || _ = mine.del(&*member)))
    }),
    scene(state::WAIT_SET, "a wait set", |r| wait_set(r, sys::FI_WAIT_UNSPEC)),
    scene(state::WAIT_SET, "a wait set with a descriptor", |r| wait_set(r, sys::FI_WAIT_FD)),
    scene(state::WAIT_SET, "a wait set that yields", |r| wait_set(r, sys::FI_WAIT_YIELD)),
    scene(state::WAIT_SET, "a wait set with members", |r| {
        let bench = bench(r, sys::FI_EP_RDM)?;
        let set = supported("fi_wait_open", WaitSet::open(&bench.fabric, sys::FI_WAIT_FD, 0))?;
        let others: Vec<Arc<dyn Fid>> =
            vec![set.cq(&bench.domain)?, set.cntr(&bench.domain)?, set.eq()?];
        Ok(bench.subject(Arc::new(set))?.first(move || drop(others)))
    }),
    scene(state::CQ_OF_WAIT_SET, "a queue of a wait set", |r| {
        let bench = bench(r, sys::FI_EP_RDM)?;
        let set = supported("fi_wait_open", WaitSet::open(&bench.fabric, sys::FI_WAIT_FD, 0))?;
        let cq = set.cq(&bench.domain)?;
        Ok(bench.subject(cq)?.with(vec![Arc::new(set)]))
    }),
    scene(state::EQ, "an event queue of a wait set", |r| {
        let bench = bench(r, sys::FI_EP_RDM)?;
        let set = supported("fi_wait_open", WaitSet::open(&bench.fabric, sys::FI_WAIT_FD, 0))?;
        let eq = set.eq()?;
        Ok(bench.subject(eq)?.with(vec![Arc::new(set)]))
    }),
    scene(state::CNTR, "a counter of a wait set", |r| {
        let bench = bench(r, sys::FI_EP_RDM)?;
        let set = supported("fi_wait_open", WaitSet::open(&bench.fabric, sys::FI_WAIT_FD, 0))?;
        let cntr = set.cntr(&bench.domain)?;
        Ok(bench.subject(cntr)?.with(vec![Arc::new(set)]))
    }),
    scene(state::CNTR, "a counter to poll", |r| {
        let bench = bench(r, sys::FI_EP_RDM)?;
        let cntr = Cntr::open(&bench.domain, CntrAttr::default())?;
        bench.subject(cntr)
    }),
];

/// Opens a domain of hints with additional `caps` and `mode`.
fn hinted(rank: &Rank, ep_type: u32, caps: u64, mode: u64) -> Outcome<Bench> {
    let spec = all_of(ep_type).with(|spec| {
        spec.hints.caps |= caps;
        spec.hints.mode = mode;
    });
    Bench::of(first_offer(rank, &spec)?)
}

/// Opens a domain with triggered operations.
fn triggers(rank: &Rank, ep_type: u32) -> Outcome<Bench> {
    hinted(rank, ep_type, sys::FI_TRIGGER, 0)
}

const TRIGGERED: &[ObjectState] = &[
    scene(state::NEW_EP, "a new endpoint", |r| triggers(r, sys::FI_EP_RDM)?.new_ep()),
    scene(state::EP, "an enabled endpoint", |r| triggers(r, sys::FI_EP_RDM)?.enabled_ep(false)),
    scene(state::EP_SELF, "an endpoint that knows itself", |r| {
        triggers(r, sys::FI_EP_RDM)?.enabled_ep(true)
    }),
    scene(state::NEW_EP, "a new datagram endpoint", |r| triggers(r, sys::FI_EP_DGRAM)?.new_ep()),
    scene(state::EP, "an enabled datagram endpoint", |r| {
        triggers(r, sys::FI_EP_DGRAM)?.enabled_ep(false)
    }),
    scene(state::NEW_MSG_EP, "a new connected endpoint", |r| triggers(r, sys::FI_EP_MSG)?.new_ep()),
    scene(state::MSG_EP, "an enabled connected endpoint", |r| {
        triggers(r, sys::FI_EP_MSG)?.enabled_ep(false)
    }),
    scene(state::NEW_PREFIX_EP, "a new endpoint with a prefix", |r| {
        triggers_behind_a_prefix(r, sys::FI_EP_RDM)?.new_ep()
    }),
    scene(state::PREFIX_EP, "an enabled endpoint with a prefix", |r| {
        triggers_behind_a_prefix(r, sys::FI_EP_RDM)?.enabled_ep(false)
    }),
    scene(state::PREFIX_EP_SELF, "an endpoint with a prefix that knows itself", |r| {
        triggers_behind_a_prefix(r, sys::FI_EP_RDM)?.enabled_ep(true)
    }),
    scene(state::PREFIX_MSG_EP, "an enabled connected endpoint with a prefix", |r| {
        triggers_behind_a_prefix(r, sys::FI_EP_MSG)?.enabled_ep(false)
    }),
    scene(state::CQ, "a queue", |r| {
        triggers(r, sys::FI_EP_RDM)?.read_cq(sys::FI_CQ_FORMAT_TAGGED, None)
    }),
    scene(state::CQ_WITH_ENTRY, "a queue with a completion", |r| {
        triggers(r, sys::FI_EP_RDM)?.read_cq(sys::FI_CQ_FORMAT_TAGGED, Some(false))
    }),
    scene(state::CQ_WITH_ERROR, "a queue with an error", |r| {
        triggers(r, sys::FI_EP_RDM)?.read_cq(sys::FI_CQ_FORMAT_TAGGED, Some(true))
    }),
];

/// Opens a domain with triggered operations and message prefixes.
fn triggers_behind_a_prefix(rank: &Rank, ep_type: u32) -> Outcome<Bench> {
    hinted(rank, ep_type, sys::FI_TRIGGER, sys::FI_MSG_PREFIX)
}

/// Opens a domain with message prefixes.
fn prefixed(rank: &Rank, ep_type: u32) -> Outcome<Bench> {
    hinted(rank, ep_type, 0, sys::FI_MSG_PREFIX)
}

const PREFIXED: &[ObjectState] = &[
    scene(state::NEW_PREFIX_EP, "a new endpoint", |r| prefixed(r, sys::FI_EP_RDM)?.new_ep()),
    scene(state::PREFIX_EP, "an enabled endpoint", |r| {
        prefixed(r, sys::FI_EP_RDM)?.enabled_ep(false)
    }),
    scene(state::PREFIX_EP_SELF, "an endpoint that knows itself", |r| {
        prefixed(r, sys::FI_EP_RDM)?.enabled_ep(true)
    }),
    scene(state::PREFIX_MSG_EP, "an enabled connected endpoint", |r| {
        prefixed(r, sys::FI_EP_MSG)?.enabled_ep(false)
    }),
];

/// Endpoints with messages only, without RMA and atomics.
const MESSAGES: &[ObjectState] = &[
    scene(state::NEW_SMALL_EP, "a new datagram endpoint", |r| {
        messages(r, sys::FI_EP_DGRAM)?.new_ep()
    }),
    scene(state::SMALL_MSG_EP, "an enabled connected endpoint", |r| {
        messages(r, sys::FI_EP_MSG)?.enabled_ep(false)
    }),
];

fn messages(rank: &Rank, ep_type: u32) -> Outcome<Bench> {
    let spec = Spec::caps(sys::FI_MSG | sys::FI_TAGGED).with(|spec| spec.hints.ep_type = ep_type);
    Bench::of(first_offer(rank, &spec)?)
}

fn wait_set(rank: &Rank, wait_obj: u32) -> Outcome<Subject> {
    let bench = bench(rank, sys::FI_EP_RDM)?;
    let set = supported("fi_wait_open", WaitSet::open(&bench.fabric, wait_obj, 0))?;
    bench.subject(Arc::new(set))
}

const SCALABLE: &[ObjectState] = &[
    scene(state::SEP, "a new scalable endpoint", |r| {
        let s = Scalable::open(r)?;
        s.bench.subject(s.sep)
    }),
    scene(state::SEP, "an enabled scalable endpoint", |r| {
        let s = Scalable::open(r)?;
        s.sep.enable()?;
        s.bench.subject(s.sep)
    }),
    scene(state::NEW_TX, "a new transmit context", |r| s_context(r, false, false)),
    scene(state::TX, "an enabled transmit context", |r| s_context(r, false, true)),
    scene(state::NEW_RX, "a new receive context", |r| s_context(r, true, false)),
    scene(state::RX, "an enabled receive context", |r| s_context(r, true, true)),
];

pub(super) struct Scalable {
    pub(super) bench: Bench,
    pub(super) sep: Arc<Ep>,
    pub(super) av: Arc<Av>,
}

impl Scalable {
    /// Opens a scalable endpoint with two contexts in each direction, and an address vector that
    /// can select them.
    pub(super) fn open(rank: &Rank) -> Outcome<Scalable> {
        let caps =
            sys::FI_MSG | sys::FI_TAGGED | sys::FI_RMA | sys::FI_ATOMIC | sys::FI_NAMED_RX_CTX;
        let mut info = first_offer(rank, &Spec::caps(caps))?;
        info.set_contexts(2, 2);
        let bench = Bench::of(info)?;
        let sep = supported("fi_scalable_ep", Ep::scalable(&bench.domain, &bench.info))?;
        let attr = AvAttr { rx_ctx_bits: 1, ..AvAttr::default() };
        let (av, _) = Av::open_with(&bench.domain, &attr)?;
        sep.attach(&av, 0)?;
        Ok(Scalable { bench, sep, av })
    }
}

fn s_context(rank: &Rank, receive: bool, enabled: bool) -> Outcome<Subject> {
    let Scalable { bench, sep, .. } = Scalable::open(rank)?;
    let (context, direction) = if receive {
        (sep.rx_context(1, None)?, sys::FI_RECV)
    } else {
        (sep.tx_context(1, None)?, sys::FI_TRANSMIT)
    };
    if enabled {
        context.attach(&bench.cq(sys::FI_CQ_FORMAT_TAGGED)?, direction)?;
        context.enable()?;
        sep.enable()?;
    }
    bench.subject(context)
}

const GROUPS: &[ObjectState] = &[
    scene(state::AV_SET, "a set of addresses", |r| {
        let bench = bench(r, sys::FI_EP_RDM)?;
        let set = supported("fi_av_set", AvSet::open(&bench.av()?, AvSetAttr::NONE))?;
        bench.subject(set)
    }),
    scene(state::NEW_COLL_EP, "a new endpoint that may join", |r| {
        let bench = Bench::of(first_offer(r, &joins())?)?;
        let ep = Ep::open(&bench.domain, &bench.info)?;
        bench.subject(ep)
    }),
    scene(state::COLL_EP, "an enabled endpoint that may join", |r| {
        let group = Group::open(r)?;
        group.bench.subject(group.ep)
    }),
    scene(state::OTHER, "a group of one", |r| {
        let group = Group::open(r)?;
        let mc = group.join(&[group.own])?;
        group.eq.sread(20_000, 0)?;
        group.bench.subject(Arc::new(mc))
    }),
    scene(state::OTHER, "a group that nobody else has joined", |r| {
        let group = Group::open(r)?;
        let mc = group.join(&[group.own, group.other])?;
        group.bench.subject(Arc::new(mc))
    }),
    scene(state::COLL_EP, "an endpoint in groups", |r| {
        let group = Group::open(r)?;
        let others: Vec<Arc<dyn Fid>> = vec![
            Arc::new(group.join(&[group.own])?),
            Arc::new(group.join(&[group.own, group.other])?),
        ];
        Ok(group.bench.subject(group.ep)?.with(others))
    }),
];

fn joins() -> Spec {
    Spec::caps(sys::FI_MSG | sys::FI_TAGGED | sys::FI_COLLECTIVE)
}

/// Endpoint that knows its own address and another one, which never joins a group.
pub(super) struct Group {
    pub(super) bench: Bench,
    pub(super) eq: Arc<Eq>,
    pub(super) av: Arc<Av>,
    pub(super) ep: Arc<Ep>,
    pub(super) own: u64,
    pub(super) other: u64,
}

impl Group {
    pub(super) fn open(rank: &Rank) -> Outcome<Group> {
        let bench = Bench::of(first_offer(rank, &joins())?)?;
        let (cq, eq) = (bench.cq(sys::FI_CQ_FORMAT_TAGGED)?, bench.eq(sys::FI_WAIT_UNSPEC)?);
        let av = bench.av()?;
        let ep = bench.ep(&bench.info, &cq, &eq, &av)?;
        ep.attach(&eq, 0)?;
        ep.enable()?;
        let own = av.insert(&ep.name()?)?;
        let other = bench.ep(&bench.info, &cq, &eq, &av)?;
        other.enable()?;
        let other = av.insert(&other.name()?)?;
        Ok(Group { bench, eq, av, ep, own, other })
    }

    pub(super) fn join(&self, members: &[u64]) -> Outcome<Mc> {
        let set = AvSet::open(&self.av, AvSetAttr::NONE)?;
        for member in members {
            set.insert(*member)?;
        }
        Ok(Mc::join(&self.ep, set.addr()?, Some(&set), 0, 1)?)
    }
}

const PEERS: &[ObjectState] = &[
    scene(state::PEER_CQ, "a queue of a peer", |r| {
        let (bench, owner) = owned(r)?;
        let cq = owner.open_cq(&bench.domain)?;
        bench.subject(cq)
    }),
    scene(state::PEER_CNTR, "a counter of a peer", |r| {
        let (bench, owner) = owned(r)?;
        let cntr = owner.open_cntr(&bench.domain)?;
        bench.subject(cntr)
    }),
    scene(state::PEER_SRX, "a receive context of a peer", |r| {
        let (bench, owner) = owned(r)?;
        let srx = owner.open_srx(&bench.domain)?;
        bench.subject(srx)
    }),
    scene(state::PEER_SRX_EP, "an endpoint whose receives are a peer's", |r| {
        let (bench, owner) = owned(r)?;
        let ep = Ep::open(&bench.domain, &bench.info)?;
        ep.attach(&bench.av()?, 0)?;
        ep.attach(&owner.open_cq(&bench.domain)?, sys::FI_TRANSMIT | sys::FI_RECV)?;
        ep.attach(&owner.open_srx(&bench.domain)?, 0)?;
        ep.enable()?;
        bench.subject(ep)
    }),
];

pub(super) fn owned(rank: &Rank) -> Outcome<(Bench, &'static Owner)> {
    let caps = sys::FI_MSG | sys::FI_TAGGED | sys::FI_PEER;
    Ok((Bench::of(first_offer(rank, &Spec::caps(caps))?)?, Owner::new()))
}

fn peers(rank: &Rank) -> Outcome {
    needs_peers(rank)?;
    scenes(rank, PEERS)
}

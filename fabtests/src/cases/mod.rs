// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The cases, one file for each area; their names begin with the area.

mod atomic;
mod atomic_shared;
mod av;
mod av_shared;
mod av_sources;
mod bad_input;
mod bad_rma;
mod closing;
mod cm;
mod cm_late;
mod cntr;
mod cntr_regions;
mod coll;
mod coll_death;
mod coll_sets;
mod cq;
mod death;
mod death_unaccepted;
mod degraded;
mod denied;
mod ep;
mod eq;
mod fence;
mod flood;
mod fork;
mod forms;
mod getinfo;
mod getinfo_hints;
mod itself;
mod kinds;
mod leaks;
mod log;
mod many_peers;
mod match_complete;
mod meeting;
mod migrate;
mod mr;
mod msg;
mod multi_recv;
mod numbers;
mod opening;
mod order;
mod order_waits;
mod over;
mod over_setups;
mod peek;
mod peer;
mod peer_sources;
mod progress_auto;
mod restart;
mod rma;
mod scalable;
mod selftest;
mod sets;
mod shared;
mod shared_many;
mod signals;
mod slots;
mod slots_answers;
mod slots_kinds;
mod slots_log;
mod slots_order;
mod tagged;
mod threads;
mod through_the_ring;
mod trigger;
mod wait;
mod wait_objects;
mod work;

use scif_fabtests::harness::Case;

const AREAS: &[&[Case]] = &[
    getinfo::CASES,
    getinfo_hints::CASES,
    ep::CASES,
    opening::CASES,
    av::CASES,
    av_sources::CASES,
    av_shared::CASES,
    mr::CASES,
    msg::CASES,
    tagged::CASES,
    peek::CASES,
    match_complete::CASES,
    peer::CASES,
    peer_sources::CASES,
    multi_recv::CASES,
    rma::CASES,
    bad_rma::CASES,
    atomic::CASES,
    atomic_shared::CASES,
    migrate::CASES,
    cq::CASES,
    cntr::CASES,
    cntr_regions::CASES,
    coll_sets::CASES,
    coll::CASES,
    trigger::CASES,
    work::CASES,
    fence::CASES,
    eq::CASES,
    cm::CASES,
    cm_late::CASES,
    over::CONNECTED,
    over::DATAGRAMS,
    shared::CASES,
    shared_many::CASES,
    over_setups::INBOX,
    over_setups::INBOX_CONNECTED,
    over_setups::INBOX_DATAGRAM,
    over_setups::OUTBOX,
    over_setups::OUTBOX_CONNECTED,
    over_setups::OUTBOX_DATAGRAM,
    over_setups::BOXES,
    over_setups::BOXES_CONNECTED,
    over_setups::BOXES_DATAGRAM,
    scalable::CASES,
    kinds::CASES,
    over_setups::PREFIX,
    over_setups::PREFIX_CONNECTED,
    over_setups::PREFIX_DATAGRAM,
    wait::CASES,
    wait_objects::CASES,
    signals::CASES,
    sets::CASES,
    bad_input::CASES,
    slots::CASES,
    slots_kinds::CASES,
    slots_log::CASES,
    slots_order::CASES,
    leaks::CASES,
    log::CASES,
    order::CASES,
    order_waits::CASES,
    itself::CASES,
    threads::CASES,
    progress_auto::CASES,
    denied::CASES,
    degraded::CASES,
    through_the_ring::CASES,
    many_peers::CASES,
    death::CASES,
    death_unaccepted::CASES,
    flood::CASES,
    coll_death::CASES,
    closing::CASES,
    restart::CASES,
    meeting::CASES,
    fork::CASES,
];

/// Returns every case, in the order of the areas.
pub(crate) fn all() -> impl Iterator<Item = Case> {
    AREAS.iter().flat_map(|area| area.iter().copied())
}

/// Returns the cases of the harness itself.
pub(crate) fn harness() -> impl Iterator<Item = Case> {
    selftest::CASES.iter().copied()
}

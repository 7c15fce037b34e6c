// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The cases, one file for each area; names begin with the area.

mod atomic;
mod atomic_shared;
mod av;
mod bad_input;
mod bad_rma;
mod cm;
mod cm_late;
mod cntr;
mod cq;
mod death;
mod denied;
mod ep;
mod eq;
mod fork;
mod forms;
mod getinfo;
mod itself;
mod kinds;
mod many_peers;
mod meeting;
mod mr;
mod msg;
mod multi_recv;
mod numbers;
mod order;
mod peek;
mod progress_auto;
mod restart;
mod rma;
mod selftest;
mod shared;
mod tagged;
mod threads;
mod through_the_ring;
mod wait;

use scif_fabtests::harness::Case;

const AREAS: &[&[Case]] = &[
    getinfo::CASES,
    ep::CASES,
    av::CASES,
    mr::CASES,
    msg::CASES,
    tagged::CASES,
    peek::CASES,
    multi_recv::CASES,
    rma::CASES,
    bad_rma::CASES,
    atomic::CASES,
    atomic_shared::CASES,
    cq::CASES,
    cntr::CASES,
    eq::CASES,
    cm::CASES,
    cm_late::CASES,
    shared::CASES,
    kinds::CASES,
    wait::CASES,
    bad_input::CASES,
    order::CASES,
    itself::CASES,
    threads::CASES,
    progress_auto::CASES,
    denied::CASES,
    through_the_ring::CASES,
    many_peers::CASES,
    death::CASES,
    restart::CASES,
    meeting::CASES,
    fork::CASES,
];

/// Every case, in the order of the areas.
pub(crate) fn all() -> impl Iterator<Item = Case> {
    AREAS.iter().flat_map(|area| area.iter().copied())
}

/// The harness's own cases.
pub(crate) fn harness() -> impl Iterator<Item = Case> {
    selftest::CASES.iter().copied()
}

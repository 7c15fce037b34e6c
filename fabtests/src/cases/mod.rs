// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The cases, one file for each area; names begin with the area.

mod atomic;
mod av;
mod bad_rma;
mod cntr;
mod cq;
mod ep;
mod eq;
mod forms;
mod getinfo;
mod mr;
mod msg;
mod multi_recv;
mod numbers;
mod peek;
mod rma;
mod selftest;
mod tagged;
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
    cq::CASES,
    cntr::CASES,
    eq::CASES,
    wait::CASES,
];

/// Every case, in the order of the areas.
pub(crate) fn all() -> impl Iterator<Item = Case> {
    AREAS.iter().flat_map(|area| area.iter().copied())
}

/// The harness's own cases.
pub(crate) fn harness() -> impl Iterator<Item = Case> {
    selftest::CASES.iter().copied()
}

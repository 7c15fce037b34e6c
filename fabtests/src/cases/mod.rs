// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The cases, one file for each area; names begin with the area.

mod atomic;
mod bad_rma;
mod cntr;
mod cq;
mod forms;
mod msg;
mod numbers;
mod rma;
mod selftest;
mod tagged;

use scif_fabtests::harness::Case;

const AREAS: &[&[Case]] = &[
    msg::CASES,
    tagged::CASES,
    rma::CASES,
    bad_rma::CASES,
    atomic::CASES,
    cq::CASES,
    cntr::CASES,
];

/// Every case, in the order of the areas.
pub(crate) fn all() -> impl Iterator<Item = Case> {
    AREAS.iter().flat_map(|area| area.iter().copied())
}

/// The harness's own cases.
pub(crate) fn harness() -> impl Iterator<Item = Case> {
    selftest::CASES.iter().copied()
}

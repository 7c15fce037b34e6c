// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Requirements on every transport, as cases that run on any of them.
//!
//! Not about properties of a single transport, which have tests of their own. A case creates its
//! own endpoints on the nodes of a [`Bed`] and leaves nothing behind. A runner prints the number of
//! cases that ran, and fails if none did.

mod bed;
mod ends;
mod links;
mod sharing;
mod sleep;

pub use bed::{Bed, Case, CaseError, CaseResult};

/// Returns all cases.
pub fn cases() -> impl Iterator<Item = Case> {
    [links::CASES, ends::CASES, sharing::CASES, sleep::CASES].into_iter().flatten().copied()
}

/// Runs every case; returns the names of all cases that ran, and descriptions of failures.
pub fn run(bed: &dyn Bed) -> (Vec<&'static str>, Vec<String>) {
    let (mut ran, mut failed) = (Vec::new(), Vec::new());
    for case in cases() {
        ran.push(case.name);
        if let Err(CaseError(why)) = (case.run)(bed) {
            failed.push(format!("{}: {why}", case.name));
        }
    }
    (ran, failed)
}

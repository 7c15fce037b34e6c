// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The cases, one file for each area; their names begin with the area.

mod absent_peers;
mod any_source;
mod atomic;
mod atomic_shared;
mod av;
mod av_shared;
mod av_sources;
mod bad_input;
mod bad_rma;
mod call_variants;
mod closing;
mod cm;
mod cm_late;
mod cntr;
mod cntr_regions;
mod coll;
mod coll_death;
mod coll_sets;
mod coop_rma;
mod cq;
mod death;
mod death_time;
mod death_unaccepted;
mod death_unmet;
mod death_windows;
mod deferred_work;
mod degraded;
mod denied;
mod driver_connect;
mod driver_data;
mod driver_exit;
mod ep;
mod eq;
mod fence;
mod five_hosts;
mod flood;
mod flow;
mod fork;
mod getinfo;
mod getinfo_hints;
mod hosts;
mod kinds;
mod large_rma;
mod leaks;
mod log;
mod loopback;
mod many_peers;
mod mapped;
mod match_complete;
mod matrix;
mod migrate;
mod mr;
mod msg;
mod multi_recv;
mod numbers;
mod opening;
mod ops_tables;
mod ops_tables_answers;
mod ops_tables_kinds;
mod ops_tables_log;
mod ops_tables_order;
mod order;
mod order_waits;
mod peek;
mod peer;
mod peer_sources;
mod progress_auto;
mod restart;
mod rma;
mod rma_mix;
mod scalable;
mod selftest;
mod sets;
mod shared;
mod shared_many;
mod signals;
mod sleepers;
mod stand_in;
mod tagged;
mod threads;
mod through_the_ring;
mod transient_peers;
mod trigger;
mod wait;
mod wait_objects;
mod windows;

use std::sync::OnceLock;

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
    any_source::CASES,
    peer::CASES,
    peer_sources::CASES,
    multi_recv::CASES,
    rma::CASES,
    rma_mix::CASES,
    coop_rma::CASES,
    large_rma::CASES,
    bad_rma::CASES,
    atomic::CASES,
    atomic_shared::CASES,
    mapped::CASES,
    migrate::CASES,
    cq::CASES,
    cntr::CASES,
    cntr_regions::CASES,
    coll_sets::CASES,
    coll::CASES,
    transient_peers::CASES,
    trigger::CASES,
    deferred_work::CASES,
    fence::CASES,
    eq::CASES,
    cm::CASES,
    cm_late::CASES,
    shared::CASES,
    shared_many::CASES,
    scalable::CASES,
    kinds::CASES,
    wait::CASES,
    sleepers::CASES,
    wait_objects::CASES,
    windows::CASES,
    signals::CASES,
    sets::CASES,
    bad_input::CASES,
    ops_tables::CASES,
    ops_tables_kinds::CASES,
    ops_tables_log::CASES,
    ops_tables_order::CASES,
    leaks::CASES,
    log::CASES,
    order::CASES,
    order_waits::CASES,
    loopback::CASES,
    threads::CASES,
    progress_auto::CASES,
    denied::CASES,
    driver_connect::CASES,
    driver_data::CASES,
    driver_exit::CASES,
    degraded::CASES,
    through_the_ring::CASES,
    many_peers::CASES,
    death::CASES,
    death_time::CASES,
    death_unaccepted::CASES,
    death_unmet::CASES,
    death_windows::CASES,
    flood::CASES,
    flow::CASES,
    five_hosts::CASES,
    coll_death::CASES,
    closing::CASES,
    hosts::CASES,
    restart::CASES,
    absent_peers::CASES,
    fork::CASES,
];

/// Returns every case: the areas in their order, then their cases over other set-ups.
pub(crate) fn all() -> Vec<Case> {
    // Keeps the names of the generated cases reachable, which memcheck counts as leaked otherwise.
    static ALL: OnceLock<Vec<Case>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let mut cases = AREAS.concat();
        cases.extend(matrix::over_set_ups(&cases));
        cases
    });
    all.clone()
}

/// Returns the cases of the harness itself.
pub(crate) fn harness() -> impl Iterator<Item = Case> {
    selftest::CASES.iter().copied()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_those_in_documents_exist() {
        let names: Vec<&str> = all().iter().map(|case| case.name).collect();
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
        let is_name = |text: &str| {
            let (area, case) = text.split_once('/').unwrap_or_default();
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            let case = case.strip_suffix('*').unwrap_or(case);
            !area.is_empty() && area.chars().all(plain) && case.chars().all(plain)
        };
        let exists = |named: &str| match named.strip_suffix('*') {
            Some(area) => names.iter().any(|name| name.starts_with(area)),
            None => names.contains(&named),
        };
        let named_in = |text: &'static str| {
            let rows = text.lines().filter(|line| line.starts_with('|'));
            rows.flat_map(|row| row.split('`')).filter(|text| is_name(text))
        };
        for named in named_in(include_str!("../../../docs/contract.md")) {
            assert!(exists(named), "docs/contract.md names {named}");
        }
        let calls: Vec<&str> = named_in(include_str!("../../../docs/scif-calls.md")).collect();
        for named in &calls {
            assert!(exists(named), "docs/scif-calls.md names {named}");
        }
        for name in names.iter().filter(|name| name.starts_with("driver/")) {
            assert!(calls.contains(name), "docs/scif-calls.md lacks {name}");
        }
    }
}

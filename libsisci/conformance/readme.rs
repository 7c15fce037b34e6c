// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Comparison of the tables of `libsisci/README.md` with the library and with the cases.

use std::collections::BTreeSet;

use crate::api::{Api, Case, numbers};
use crate::groups::GROUPS;
use crate::tables::{self, Row};

pub(crate) const CASES: &[Case] =
    &[("the tables name all functions and flags", tables_are_complete)];

/// Returns the names of all cases, with their groups.
fn all_cases() -> BTreeSet<String> {
    let of_group = |(group, cases): &(&str, &[Case])| -> Vec<String> {
        cases.iter().map(|(name, _)| format!("{group}/{name}")).collect()
    };
    let own = [("readme", CASES)];
    GROUPS.iter().chain(&own).flat_map(of_group).collect()
}

fn tables_are_complete(_api: &Api) {
    let (rows, cases, excused) = (tables::implemented(), all_cases(), tables::excused());
    for row in &rows {
        assert!(cases.contains(row.case), "{}: no case {}", row.function, row.case);
    }
    let functions: BTreeSet<&str> = rows.iter().map(|row| row.function).collect();
    let excused: BTreeSet<&str> = excused.iter().map(String::as_str).collect();
    assert!(functions.is_disjoint(&excused), "implemented and excused");
    let named: BTreeSet<&str> = functions.union(&excused).copied().collect();
    assert_eq!(named, tables::exported(), "the functions that the library exports");
    let flags: BTreeSet<&str> = rows.iter().flat_map(|row: &Row| row.flags.clone()).collect();
    let without: BTreeSet<&str> = tables::excused_flags().into_iter().collect();
    assert!(flags.is_disjoint(&without), "implemented and excused");
    let named: BTreeSet<&str> = flags.union(&without).copied().collect();
    // One name of the header is a second name of another flag.
    let second = |name: &&str| *name != "NO_MEMORY_LOOPBACK";
    let mut of_header: BTreeSet<&str> = numbers("SCI_FLAG_").into_iter().filter(second).collect();
    of_header.extend(["WRITE_BACK_CACHE_MAP", "FLUSH_CPU_BUFFERS_ONLY"]);
    assert_eq!(named, of_header, "the flags of the header");
    let counts = format!(
        "{} functions are implemented, {} are excused. {} flags are implemented or have no effect, \
         {} are excused. {} cases in",
        functions.len(),
        excused.len(),
        flags.len(),
        without.len(),
        cases.len()
    );
    assert!(tables::says(&counts), "libsisci/README.md: {counts}");
    println!("{counts} libsisci/conformance");
}

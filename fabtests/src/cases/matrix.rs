// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Cases of other areas over other set-ups: connected endpoints, datagrams, shared contexts and
//! message prefixes. Mirrors fi_endpoint(3), the types of endpoints and "Shared Contexts", and
//! fi_getinfo(3), "FI_MSG_PREFIX".
//!
//! A set-up takes every case of two ranks of its areas, except for those in [`EXCLUDED`].
//! Connecting is tested in `cm`, several endpoints on one context in `shared`, and properties of
//! datagrams and of prefixes in `kinds`.

use libfabric_sys as sys;
use scif_fabtests::harness::{Case, Setup};

/// Change to the usual set-up, over each type of endpoint.
struct Variant {
    /// First part of the names, behind which the type of endpoint follows.
    group: &'static str,
    /// Second part of the names.
    part: &'static str,
    /// Changes, without the type of endpoint.
    setup: Setup,
    /// Areas (`area/`) or single cases.
    cases: &'static [&'static str],
}

const VARIANTS: &[Variant] = &[
    Variant {
        group: "",
        part: "",
        setup: Setup::PLAIN,
        cases: &[
            "msg/",
            "tagged/",
            "match/",
            "peek/",
            "multi_recv/",
            "rma/",
            "bad_rma/",
            "atomic/",
            "trigger/",
            "cq/",
            "cntr/",
            "wait/",
            "order/",
            "progress_auto/",
        ],
    },
    Variant {
        group: "shared/",
        part: "rx_",
        setup: Setup { shared_rx: true, ..Setup::PLAIN },
        cases: &["msg/", "tagged/", "match/", "peek/", "multi_recv/"],
    },
    Variant {
        group: "shared/",
        part: "tx_",
        setup: Setup { shared_tx: true, ..Setup::PLAIN },
        cases: &[
            "msg/send",
            "msg/inject",
            "tagged/send",
            "tagged/inject",
            "rma/write",
            "atomic/base",
        ],
    },
    Variant {
        group: "shared/",
        part: "both_",
        setup: Setup { shared_tx: true, shared_rx: true, ..Setup::PLAIN },
        cases: &["msg/send", "tagged/send"],
    },
    Variant {
        group: "kinds/",
        part: "prefix_",
        setup: Setup { prefix: true, ..Setup::PLAIN },
        cases: &["msg/", "tagged/"],
    },
];

/// Types of endpoints, with their part of the names.
const KINDS: [(u32, &str); 3] =
    [(0, ""), (sys::FI_EP_MSG, "connected"), (sys::FI_EP_DGRAM, "datagram")];

/// Set-ups that leave out cases, the reason, and areas (`area/`) or single cases.
type Exclusion = (fn(&Setup) -> bool, &'static str, &'static [&'static str]);

const EXCLUDED: &[Exclusion] = &[
    (
        |setup| setup.ep_type == sys::FI_EP_MSG,
        "a connection has one source and no address vector",
        &["msg/av_table", "cq/unknown_source"],
    ),
    (
        |setup| setup.ep_type == sys::FI_EP_MSG,
        "the case opens a second endpoint, which would stay unconnected",
        &["progress_auto/endpoint_without_reads"],
    ),
    (
        |setup| setup.ep_type != 0,
        "the case opens a domain and an endpoint of its own",
        &["rma/domain_opened_for_messages"],
    ),
    (
        |setup| setup.ep_type == sys::FI_EP_DGRAM,
        "the usual set-up of datagrams requests no order",
        &[
            "order/write_after_message",
            "order/read_after_message",
            "order/atomic_after_message",
            "order/atomic_read_after_message",
        ],
    ),
    (
        |setup| setup.ep_type == sys::FI_EP_DGRAM,
        "a datagram completes before its delivery, for which the sender may have to make progress",
        &["msg/sender_makes_no_more_calls"],
    ),
    (
        |setup| setup.prefix,
        "the case has buffers without room for a prefix",
        &[
            "msg/sender_makes_no_more_calls",
            "msg/delivery_waits_for_the_receive",
            "msg/op_flags_inject",
            "msg/null_buffer",
            "msg/both_at_once",
            "msg/truncation",
            "msg/order_of_receives",
            "msg/unexpected_flood",
            "msg/sender_is_the_faster",
            "msg/many_outstanding",
            "msg/cancel",
            "msg/selective_completion",
            "tagged/reverse_tags",
            "tagged/ignore_bits",
            "tagged/same_tag_in_order",
            "tagged/not_mixed_with_msg",
            "tagged/all_64_bits",
            "tagged/truncation",
            "tagged/cancel",
            "tagged/source_ignored_without_cap",
            "tagged/null_buffer",
        ],
    ),
];

/// Returns the cases of `areas` over all set-ups.
pub(super) fn over_set_ups(areas: &[Case]) -> Vec<Case> {
    let mut cases = Vec::new();
    for variant in VARIANTS {
        for (ep_type, kind) in KINDS {
            let setup = Setup { ep_type, ..variant.setup };
            if setup == Setup::PLAIN {
                continue;
            }
            let slash = if variant.group.is_empty() {
                "/"
            } else if kind.is_empty() {
                ""
            } else {
                "_"
            };
            let prefix = format!("{}{kind}{slash}{}", variant.group, variant.part);
            let excluded = |case: &Case| {
                EXCLUDED.iter().any(|(applies, _, cases)| applies(&setup) && names(cases, case))
            };
            let chosen = areas.iter().filter(|case| case.ranks == 2 && names(variant.cases, case));
            for case in chosen.filter(|case| !excluded(case)) {
                let name = format!("{prefix}{}", case.name.replace('/', "_")).leak();
                cases.push(Case { name, setup, ..*case });
            }
        }
    }
    cases
}

/// Whether an area or a single case of `list` names the case.
fn names(list: &[&str], case: &Case) -> bool {
    list.iter().any(|item| {
        if item.ends_with('/') { case.name.starts_with(item) } else { case.name == *item }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_of_a_list_names_a_case() {
        let areas = super::super::AREAS.concat();
        let chosen = VARIANTS.iter().map(|variant| variant.cases);
        for item in chosen.chain(EXCLUDED.iter().map(|(_, _, cases)| *cases)).flatten() {
            assert!(areas.iter().any(|case| names(&[item], case)), "{item}");
        }
    }
}

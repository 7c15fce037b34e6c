// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Groups of cases.

use crate::api::Case;
use crate::{
    calls, copies, events, faults, general, handles, interrupts, kills, maps, names, queues,
    random, segments, threads,
};

/// Groups of cases, in the order of a run.
pub(crate) const GROUPS: &[(&str, &[Case])] = &[
    ("names", names::CASES),
    ("calls", calls::CASES),
    ("general", general::CASES),
    ("handles", handles::CASES),
    ("segments", segments::CASES),
    ("events", events::CASES),
    ("maps", maps::CASES),
    ("copies", copies::CASES),
    ("interrupts", interrupts::CASES),
    ("queues", queues::CASES),
    ("threads", threads::CASES),
    ("faults", faults::CASES),
    ("kills", kills::CASES),
    ("random", random::CASES),
];

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Cases that are not run over a driver, with the reason: they concern this library without a
//! driver, or the driver is known to differ. Each entry is a prefix: the full name of a case, or a
//! group.
//!
//! Not about `libscifdev.so`, over which all cases run, unless it has the traps of mainline's
//! driver.

/// Prefixes of names, and the reasons.
const OF_A_DRIVER: &[(&str, &str)] = &[
    ("nodes/", "a driver's nodes are cards"),
    ("shown/", "a driver does not show its endpoints"),
    ("edges/a_mapping_begins_", "mainline: a taken offset is not noticed"),
    ("edges/a_forked_child_has_no_mappings", "one node's mappings are a driver's own matter"),
    ("connections/nodes_are_", "a driver's nodes are cards"),
    ("connections/domains_", "a driver has none"),
    ("connections/reserved_ports_", "a device is opened by its owner only"),
    ("connections/nobody_accepts_in_time", "a driver's limit is 30 s and is not set"),
    ("holders/a_connect_is_given_up_", "a driver's limit is 30 s and is not set"),
    ("connections/closing_a_listener_", "mainline: accepted endpoints hold the port"),
    ("messages/a_blocked_call_ends_when_its_own", "a call keeps the endpoint alive"),
    ("windows/offsets_are_given_from_the_top", "MPSS 3: from 0x4000000000000000 up"),
    ("windows/a_suggested_offset_", "drivers choose an offset themselves"),
    ("windows/a_taken_offset_", "mainline: succeeds, at the same or a wrong place"),
    ("windows/a_mapping_outlives_the_window_", "mainline: found while it is mapped"),
    ("windows/a_lingering_window_", "mainline: a taken offset is not noticed"),
    ("windows/pages_that_cannot_move_", "all pages of a driver's windows can be mapped"),
    ("memory/huge_pages_", "all pages of a driver's windows can be mapped"),
    ("memory/large_pages_", "a driver pins pages and moves none"),
    ("memory/pages_in_use_", "a driver pins pages and moves none"),
    ("memory/shared_memory_", "all pages of a driver's windows can be mapped"),
    ("memory/pages_registered_", "all pages of a driver's windows can be mapped"),
    ("lent/", "a driver pins pages and lends none"),
    ("memory/pages_come_back_", "a driver pins pages and moves none"),
    ("memory/an_offset_is_free_", "mainline: a taken offset is not noticed"),
    ("memory/a_mapping_outlives_the_registration", "mainline: found while it is mapped"),
    ("timers/a_fence_ends_", "on one node every RMA is done when it returns"),
    ("rma/a_crash_with_rma_in_flight_", "on one node every RMA is done when it returns"),
    ("limits/", "a driver has its own"),
    ("holders/an_answer_that_was_heard_", "a driver leaves nothing to a process to hear"),
    ("connections/a_demanded_device_", "there is one"),
    ("fences/fences_look_", "on one node every mark is 0xdead"),
    (
        "connections/requests_of_the_dead_",
        "mainline: to accept a request that was given up never returns",
    ),
    (
        "connections/many_endpoints_share_a_listeners_port",
        "mainline: to accept a request that was given up never returns",
    ),
    (
        "holders/a_waiting_caller_is_killed",
        "mainline: to accept a request that was given up never returns",
    ),
    (
        "holders/one_holder_binds",
        "mainline: a listener is closed when the process that accepted last closes a copy of it",
    ),
    (
        "edges/accept_says_emfile",
        "mainline: a listener closed over a request that was given up locks it up",
    ),
    (
        "connections/the_backlog_is_what_was_said",
        "mainline: connects that do not wait are made one at a time",
    ),
    (
        "holders/a_child_forked_during_a_connect_",
        "mainline: connects that do not wait are made one at a time",
    ),
    (
        "edges/closing_ends_a_connect_under_way",
        "mainline: closing waits until a connect under way is answered",
    ),
    (
        "messages/signals_that_restart_are_not_seen",
        "mainline: a signal ends a call that has moved bytes",
    ),
    (
        "timers/a_send_goes_on_after_signals_that_restart",
        "mainline: a signal ends a call that has moved bytes",
    ),
    (
        "timers/a_recv_goes_on_after_signals_that_restart",
        "mainline: a signal ends a call that has moved bytes",
    ),
    ("windows/unregister_takes_whole_windows", "mainline: takes the whole first window of a range"),
    ("windows/every_kind_of_memory", "mainline: pages that cannot be written are EFAULT"),
    ("rma/plain_memory_that_is_not_there_", "mainline: ENXIO for some memory that is not there"),
    ("forks/a_child_has_copies", "mainline: after a fork the pinned pages are the first writer's"),
    ("forks/a_fork_waits", "mainline: ENODEV where the queue of the node is full for 3 s"),
    ("edges/after_a_fork", "mainline: after a fork the pinned pages are the first writer's"),
    ("edges/the_first_error_of_a_range", "mmap(2) refuses the offset before a driver sees it"),
    (
        "memory/a_window_whose_owner_unmaps",
        "mainline: memory of a mapped window is EFAULT in an RMA",
    ),
    ("life/a_childs_window_", "mainline: a taken offset is not noticed"),
    ("forks/a_killed_child_", "mainline: a taken offset is not noticed"),
];

/// Returns the excuses that match no case; `cases` are the existing names.
pub(crate) fn of_none(cases: &[String]) -> impl Iterator<Item = &'static str> {
    let begins = OF_A_DRIVER.iter().map(|(begin, _)| *begin);
    begins.filter(|begin| !cases.iter().any(|case| case.starts_with(begin)))
}

/// Returns the reason why a case is not run over a driver.
pub(crate) fn reason(full: &str) -> Option<&'static str> {
    OF_A_DRIVER.iter().find(|(begin, _)| full.starts_with(begin)).map(|(_, reason)| *reason)
}

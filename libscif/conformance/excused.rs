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
    ("edges/mapping_of_any_part_of_windows", "mainline: an occupied offset is not refused"),
    (
        "edges/forked_child_inherits_no_mapping",
        "a child inherits mappings of a driver within one node",
    ),
    ("connections/nodes_with_a_process_are_listed", "a driver's nodes are cards"),
    ("connections/domains_are_separate", "a driver has no domains"),
    ("connections/reserved_ports_require_a_capability", "only the owner of the device can open it"),
    ("connections/connect_times_out_", "the limit of a driver is 30 s and cannot be set"),
    (
        "connections/nonblocking_connect_times_out_",
        "the limit of a driver is 30 s and cannot be set",
    ),
    ("connections/connects_time_out_", "the limit of a driver is 30 s and cannot be set"),
    ("sharers/another_sharer_times_out_", "the limit of a driver is 30 s and cannot be set"),
    ("sharers/connect_of_a_dead_caller_", "the limit of a driver is 30 s and cannot be set"),
    (
        "connections/close_of_a_listener_refuses_waiting_requests_only",
        "mainline: accepted endpoints hold the port",
    ),
    (
        "messages/blocked_call_ends_at_the_close_of_its_endpoint",
        "over a driver a call keeps the endpoint open",
    ),
    ("windows/offsets_are_allocated_from_the_top", "MPSS 3: from 0x4000000000000000 up"),
    ("windows/suggested_offset_is_used_or_a_near_one", "drivers ignore a suggested offset"),
    ("windows/occupied_offset_is_refused", "mainline: succeeds, at the same or a wrong place"),
    (
        "windows/mapping_outlives_the_window_and_reserves_the_offset",
        "mainline: a deleted window is found while it is mapped",
    ),
    (
        "windows/deleted_window_ends_with_the_process_that_maps_it",
        "mainline: an occupied offset is not refused",
    ),
    (
        "windows/pages_in_place_serve_rma_but_no_mapping",
        "all pages of a driver's windows can be mapped",
    ),
    ("memory/hugetlb_pages_do_not_move", "all pages of a driver's windows can be mapped"),
    ("memory/huge_page", "a driver pins pages and moves none"),
    ("memory/pages_of_windows_in_place_do_not_move", "a driver pins pages and moves none"),
    ("memory/shared_memory_does_not_move", "all pages of a driver's windows can be mapped"),
    (
        "memory/pages_registered_over_two_connections_serve_both",
        "all pages of a driver's windows can be mapped",
    ),
    ("loans/", "a driver pins pages and has no loans"),
    (
        "memory/pages_move_back_after_a_connection_within_a_process",
        "a driver pins pages and moves none",
    ),
    ("memory/offset_is_free_after_", "mainline: an occupied offset is not refused"),
    (
        "memory/mapping_outlives_the_registration",
        "mainline: a deleted window is found while it is mapped",
    ),
    (
        "timers/signal_ends_a_fence_wait_that_can_be_repeated",
        "on one node every RMA is complete when the call returns",
    ),
    (
        "rma/crash_with_rma_in_progress_ends_the_connection",
        "on one node every RMA is complete when the call returns",
    ),
    ("limits/", "limits of a driver differ"),
    (
        "sharers/another_sharer_completes_a_connect_whose_answer_was_read",
        "over a driver no process reads the answer of a connect",
    ),
    ("connections/open_of_a_required_device_returns_its_errno", "a device exists"),
    ("fences/fences_check_their_arguments", "on one node every mark is 0xdead"),
    (
        "connections/accept_skips_requests_of_dead_callers",
        "mainline: an accept of a timed-out request never returns",
    ),
    (
        "connections/accepted_endpoints_share_the_port_of_the_listener",
        "mainline: an accept of a timed-out request never returns",
    ),
    (
        "sharers/kill_of_a_connecting_sharer",
        "mainline: an accept of a timed-out request never returns",
    ),
    (
        "sharers/sharers_bind_listen_and_accept_in_turn",
        "mainline: a listener is closed when the process that accepted last closes a copy of it",
    ),
    (
        "edges/accept_fails_with_emfile",
        "mainline: the close of a listener with a timed-out request locks up the driver",
    ),
    (
        "connections/backlog_limits_waiting_requests",
        "mainline: nonblocking connects are serialised",
    ),
    (
        "sharers/child_forked_during_a_connect_receives_the_answer",
        "mainline: nonblocking connects are serialised",
    ),
    (
        "edges/close_ends_a_connect_in_progress",
        "mainline: a close waits for the answer of a connect in progress",
    ),
    (
        "messages/signals_with_sa_restart_do_not_end_a_call",
        "mainline: a signal ends a call that has moved bytes",
    ),
    (
        "timers/send_continues_after_signals_with_sa_restart",
        "mainline: a signal ends a call that has moved bytes",
    ),
    (
        "timers/recv_continues_after_signals_with_sa_restart",
        "mainline: a signal ends a call that has moved bytes",
    ),
    (
        "windows/unregister_accepts_whole_windows_only",
        "mainline: deletes the whole first window of a range",
    ),
    ("windows/rma_on_every_kind_of_memory", "mainline: read-only pages are EFAULT"),
    ("rma/unmapped_local_memory_is_efault", "mainline: ENXIO for some unmapped memory"),
    (
        "forks/child_has_copies_of_windows",
        "mainline: after a fork the process that writes first loses the pinned pages",
    ),
    (
        "forks/fork_neither_waits_nor_inherits_a_held_lock",
        "mainline: ENODEV where the queue of the node is full for 3 s",
    ),
    (
        "edges/parent_keeps_its_window_after_a_fork",
        "mainline: after a fork the process that writes first loses the pinned pages",
    ),
    (
        "edges/first_error_of_a_range_is_returned",
        "mmap(2) refuses the offset before a driver sees it",
    ),
    (
        "memory/window_unmapped_by_its_owner_serves_the_peer",
        "mainline: memory of a mapped window is EFAULT in an RMA",
    ),
    (
        "life/window_of_a_child_belongs_to_the_endpoint",
        "mainline: an occupied offset is not refused",
    ),
    ("forks/parent_works_after_the_kill_of_a_child", "mainline: an occupied offset is not refused"),
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

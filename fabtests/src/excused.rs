// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Cases that are not run over a driver, or between hosts, with the reason: they concern shared
//! memory, or a difference that fi_scif(7) describes (OVER A DRIVER, SEVERAL HOSTS). Each entry is
//! a prefix: the full name of a case, or a group.

use crate::cases;

const CALLERS: &str = "callers wait until the listener has descriptors";
const FORK: &str = "a forked child keeps its parent's endpoints open in a driver";
const INHERITED: &str = "a forked child keeps its parent's connections over the network open";
const NEXT_CALL: &str = "the network sends while the sender makes progress";
const NEXT_PROGRESS: &str = "an operation without a connection waits for the next progress";
const NO_MEMORY: &str = "no process accesses the memory of another";
const THREADS: &str = "a thread closes a driver's descriptors after the call";

/// Prefix of names, and the reason.
pub(crate) type Excuse = (&'static str, &'static str);

/// Cases that do not concern a driver.
pub(crate) const OVER_A_DRIVER: &[Excuse] = &[
    ("peer/an_answered_request_", NEXT_PROGRESS),
    ("atomic/completes_without_the_target", NO_MEMORY),
    ("connected/atomic_completes_without_the_target", NO_MEMORY),
    ("datagram/atomic_completes_without_the_target", NO_MEMORY),
    ("rma/domain_opened_for_messages", NO_MEMORY),
    ("migrate/", "no memory moves"),
    ("mapped/", NO_MEMORY),
    ("cm/unread_requests", NEXT_PROGRESS),
    ("cm/callers_that_hang_up", NEXT_PROGRESS),
    ("pollset/queues_and_counters", NEXT_PROGRESS),
    ("loopback/messages", NEXT_PROGRESS),
    ("loopback/tagged", NEXT_PROGRESS),
    ("loopback/atomics", NEXT_PROGRESS),
    ("loopback/writes", NEXT_PROGRESS),
    ("ep/open_and_close_often", THREADS),
    ("leaks/", THREADS),
    ("transient_peers/", "a port keeps an endpoint open for its next request"),
    ("ring/sender_elsewhere", NO_MEMORY),
    ("many_peers/few_descriptors", "each connection has descriptors of its own"),
    ("denied/descriptors_of_the_server", CALLERS),
    ("denied/most_descriptors_of_the_server", CALLERS),
    ("degraded/", "they concern the failures of shared memory"),
    ("death/forked_", FORK),
    (
        "death/unconnected_source_asleep_",
        "a victim dies before the driver has answered the connect",
    ),
    ("fork/child_closes", FORK),
    ("coll_death/killed_with_a_fork", FORK),
    ("restart/after_death_with_a_fork", FORK),
];

/// Cases that do not concern ranks on several hosts.
pub(crate) const OVER_A_NETWORK: &[Excuse] = &[
    ("cm/unread_requests", NEXT_PROGRESS),
    ("peer/an_answered_request_", NEXT_PROGRESS),
    ("av/foreign_address", "addresses of other hosts are valid"),
    ("av/shared_", "a vector with a name is of one host"),
    ("windows/", "they choose another transport"),
    ("transient_peers/leave_no_state", "libfabric's tcp keeps the address of each peer"),
    ("coll_death/before_joining", "a peer from which nothing was heard may start late"),
    ("coll_death/killed_with_a_fork", INHERITED),
    ("restart/after_death_with_a_fork", INHERITED),
    ("restart/address_free_at_once", "a rank opens the address of another"),
    ("mapped/", NO_MEMORY),
    ("migrate/", "no memory moves"),
    ("degraded/", "they concern the failures of shared memory"),
    ("ring/", NO_MEMORY),
    ("rma/domain_opened_for_messages", NO_MEMORY),
    ("atomic/completes_without_the_target", NO_MEMORY),
    ("connected/atomic_completes_without_the_target", NO_MEMORY),
    ("datagram/atomic_completes_without_the_target", NO_MEMORY),
    ("msg/sender_makes_no_more_calls", NEXT_CALL),
    ("connected/msg_sender_makes_no_more_calls", NEXT_CALL),
    ("loopback/messages", NEXT_CALL),
    ("loopback/tagged", NEXT_CALL),
    ("loopback/atomics", NEXT_CALL),
    ("loopback/writes", NEXT_CALL),
    ("shared/rx_msg_sender_makes_no_more_calls", NEXT_CALL),
];

/// Returns the entries that match no case.
pub(crate) fn of_none(excuses: &[Excuse]) -> impl Iterator<Item = &'static str> {
    let cases = cases::all();
    let begins = excuses.iter().map(|(begin, _)| *begin);
    begins.filter(move |begin| !cases.iter().any(|case| case.name.starts_with(begin)))
}

/// Returns the reason why a case is not run.
pub(crate) fn reason(excuses: &[Excuse], name: &str) -> Option<&'static str> {
    excuses.iter().find(|(begin, _)| name.starts_with(begin)).map(|(_, reason)| *reason)
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Lines of the log about a network: each names host, provider and remedy.

use std::cell::RefCell;
use std::sync::Once;

use super::tests::{HostPair, memory, pair};
use super::watch::PeerWatch;
use super::wire::PeerLimits;
use crate::addr::PortId;
use crate::error::Reason;
use crate::remote_reads::ReadBegun;

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Logger that keeps the lines of each thread.
struct ThreadLines;

impl log::Log for ThreadLines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LINES.with(|lines| lines.borrow_mut().push(record.args().to_string()));
    }

    fn flush(&self) {}
}

/// Returns the lines that `work` logs.
fn lines_of(work: impl FnOnce()) -> Vec<String> {
    static SET: Once = Once::new();
    SET.call_once(|| {
        log::set_logger(&ThreadLines).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
    });
    LINES.with(|lines| lines.borrow_mut().clear());
    work();
    LINES.with(RefCell::take)
}

/// Checks that one line was logged, with the address of the peer, the provider and a remedy.
fn check(lines: &[String], host: &str, remedy: &str) {
    let [line] = lines else { panic!("{lines:?}") };
    assert!(line.contains(host) && line.contains("double") && line.contains(remedy), "{line}");
}

#[test]
fn a_lost_message_is_logged_with_its_peer() {
    let HostPair { net, mut a, mut b, ab, ba } = pair();
    let lines = lines_of(|| {
        net.state().held = true;
        assert!(a.send_record(ab, 7, b"", b"") && a.send_record(ab, 7, b"", b""));
        net.change(b.name, |messages| drop(messages.pop_front()));
        net.state().held = false;
        assert_eq!(b.closed(ba), Reason::Corrupt);
    });
    check(&lines, "10.1.1.1", "use another (FI_SCIF_NET)");
}

#[test]
fn a_read_that_does_not_end_is_logged_with_its_peer() {
    let HostPair { net, mut a, mut b, ab, ba } = pair();
    let exposed = a.conn(ab).remote_reads().unwrap().expose(&memory(vec![1; 8])).unwrap();
    net.state().held = true;
    let reads = b.conn(ba).remote_reads().unwrap();
    let ReadBegun::Reading(number) = reads.read(exposed, &memory(vec![0; 8])) else {
        panic!("refused");
    };
    let lines = lines_of(|| b.conn(ba).remote_reads().unwrap().finish(number, 0));
    check(&lines, "10.1.1.1", "Check that its process runs");
}

#[test]
fn silent_and_unreachable_peers_are_logged() {
    let peer = PortId::abroad(0, "10.1.1.9:700".parse().unwrap());
    let limits = PeerLimits { refused_ns: 1, silent_ns: 1 };
    let mut silent = PeerWatch::new(limits);
    silent.note_received(1);
    assert!(silent.take_ping(1_000_000_000));
    let lines = lines_of(|| assert!(silent.is_silent(2_000_000_000, peer, "double")));
    check(&lines, "10.1.1.9", "raise FI_SCIF_NET_SILENCE");
    let mut unmet = PeerWatch::new(limits);
    let lines = lines_of(|| {
        unmet.note_refused(1, peer, "double");
        unmet.note_refused(60_000_000_000, peer, "double");
    });
    check(&lines, "10.1.1.9", "no firewall is between the hosts");
}

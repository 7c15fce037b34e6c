// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Counts of operations, over the network in memory.

use super::double::{ONE_SIDED, REPLY};
use super::tests::{HostPair, memory, pair};
use crate::carried::{CarriedCounts, OpCount};
use crate::config::Config;
use crate::endpoint::Endpoint;
use crate::keys::Exports;
use crate::node::{Node, TransportKind};
use crate::outside_body::LongSend;
use crate::remote_reads::ReadBegun;

#[test]
fn both_sides_count_the_operations_that_cross_the_network() {
    let HostPair { net, mut a, mut b, ab, ba } = pair();
    assert_eq!(a.endpoint.carried(), Some(CarriedCounts::default()), "greetings are none");
    for (kind, len) in [(7, 0), (7, 3000), (ONE_SIDED, 5), (REPLY, 9), (7, 40)] {
        assert!(a.send_record(ab, kind, b"head", &vec![1; len]));
        a.events();
    }
    let append = &mut |message: &mut Vec<u8>| message.extend_from_slice(&[2; 50_000]);
    assert_eq!(a.conn(ab).send_long(7, b"", 50_000, append), LongSend::Sent);
    for _ in 0..20 {
        a.events();
        b.events();
        while b.receive_record(ba).is_some() {}
    }
    let messages = OpCount { ops: 4, bytes: 53_040 };
    let one_sided = OpCount { ops: 1, bytes: 4 };
    let sent = CarriedCounts { sent: messages, one_sided, ..CarriedCounts::default() };
    assert_eq!(a.endpoint.carried(), Some(sent));
    let received = CarriedCounts { received: messages, ..CarriedCounts::default() };
    assert_eq!(b.endpoint.carried(), Some(received));
    assert_eq!(b.conn(ba).bytes_sent(), 0);
    let (sent, received) = (a.conn(ab).bytes_sent(), b.conn(ba).bytes_received());
    // The long body is not taken, and its record is in the ring of the receiver only.
    assert!(sent > 53_049 && sent - 50_000 + 64 == received, "{sent}, {received}");
    assert!(b.conn(ba).take_body().is_none(), "its record was dropped");

    let (from, to) = (memory(vec![1; 100]), memory(vec![0; 30]));
    let exposed = a.conn(ab).remote_reads().unwrap().expose(&from).unwrap();
    net.state().no_reads = true;
    assert_eq!(b.conn(ba).remote_reads().unwrap().read(exposed, &to), ReadBegun::Later);
    net.state().no_reads = false;
    let begun = b.conn(ba).remote_reads().unwrap().read(exposed, &to);
    assert!(matches!(begun, ReadBegun::Reading(_)));
    let reads = OpCount { ops: 1, bytes: 30 };
    assert_eq!(b.endpoint.carried().map(|counts| counts.reads), Some(reads));
}

#[test]
fn an_endpoint_without_a_network_counts_nothing() {
    let node = Node::open(Config::default(), TransportKind::Local).unwrap();
    let endpoint = Endpoint::bind(&node, 0, Exports::default()).unwrap();
    assert_eq!((endpoint.carried(), endpoint.network_provider()), (None, None));
    let HostPair { a, .. } = pair();
    assert_eq!(a.endpoint.network_provider(), Some("double"));
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests: an endpoint whose peers write arbitrary records into their rings. They harm only
//! themselves.
//!
//! The peer is an endpoint of the engine without a provider, in this process. `fabtests` tests
//! correct peers, with two processes.

mod atomic_inline;
mod coll;
mod impostor;
mod numbers;
mod parting;
mod peek;
mod poison;
mod rest;
mod rma;
mod shared;
mod source_watch;
mod unexpected;

use std::sync::Arc;
use std::time::Instant;

use libfabric_sys as fi;
use scif::{ConnId, Exports, LinkEvent, Reason};
use scif_ring::chunks;
use scif_ring::copy::Mem;

use crate::base::addr;
use crate::domain::{calls, cm};
use crate::engine::endpoint::Endpoint;
use crate::engine::protocols::parting::WITHDRAW_NS;
use crate::engine::tables::op_table::{CompletionInfo, OpKind, OpTable, OutstandingOp};
use crate::engine::tables::peer::{MAX_UNACKED_MSGS, REPLY_QUEUE_MAX};
use crate::engine::tests::buffer;
use crate::engine::types::args::{EpConfig, RecvArgs, RmaArgs, RmaIov, SendArgs};
use crate::engine::types::iov::Iov;
use crate::engine::types::{cm_message, wire};
use crate::objects::handle::Domain;
use crate::objects::mr::wait_until_left;
use crate::state::av_table::AvState;
use crate::state::completion::{Completion, CqError};
use crate::state::cq_queue::CqState;
use crate::state::mr_table::Region;
use crate::state::waiters::WaitState;

fn send_args(iov: &[Mem], dest: u64, context: usize, flags: u64) -> SendArgs<'_> {
    SendArgs { iov, tag: None, data: None, dest, context, flags }
}

/// Entry of a completion queue.
#[derive(Debug)]
enum Came {
    Done(Completion),
    Failed(CqError),
}

struct Stage {
    domain: Box<Domain>,
    ep: u32,
    cq: u32,
    av: u32,
}

impl Stage {
    fn new() -> Stage {
        Stage::like(|_| {})
    }

    fn like(change: impl FnOnce(&mut EpConfig)) -> Stage {
        Stage::on(0, change)
    }

    /// Creates the endpoint under test on the given port; 0: any. See [`Stage::peer_on`].
    fn on(port: u16, change: impl FnOnce(&mut EpConfig)) -> Stage {
        let domain = Domain::for_test(fi::fi_version(2, 0), &fi::fi_domain_attr::default());
        let mut st = domain.shared.gate.lock();
        let cq = st.cqs.insert(CqState::new(64, WaitState::none())).unwrap();
        let av = st.avs.insert(AvState::default()).unwrap();
        drop(st);
        let mut cfg = EpConfig {
            caps: fi::FI_MSG | fi::FI_RMA | fi::FI_ATOMIC,
            tx_size: 64,
            rx_size: 64,
            inject_size: 64,
            av,
            tx_cq: Some(cq),
            rx_cq: Some(cq),
            source: true,
            directed: true,
            ..EpConfig::default()
        };
        change(&mut cfg);
        let exports = Exports { keys: Some(Arc::clone(&domain.shared.keys)) };
        let sock = scif::Endpoint::bind(&domain.shared.fabric.node, port, exports).unwrap();
        let ep = domain.shared.add_ep(Endpoint::new(cfg, sock)).unwrap();
        domain.shared.enable_ep(&mut domain.shared.gate.lock(), ep).unwrap();
        Stage { domain, ep, cq, av }
    }

    /// Runs a closure on the endpoint under test.
    fn with<R>(&self, work: impl FnOnce(&mut Endpoint) -> R) -> R {
        work(self.domain.shared.gate.lock().eps.get_mut(self.ep).unwrap())
    }

    fn poll(&self) {
        calls::progress(&mut self.domain.shared.gate.lock(), self.ep);
    }

    fn came(&self) -> Option<Came> {
        let mut st = self.domain.shared.gate.lock();
        let cq = st.cqs.get_mut(self.cq).unwrap();
        if let Some(error) = cq.take_error() {
            return Some(Came::Failed(error));
        }
        let mut found = None;
        cq.drain(1, |_, c| found = Some(Came::Done(*c)));
        found
    }

    /// Polls until `ready` returns a value.
    fn until<R>(&self, mut ready: impl FnMut() -> Option<R>) -> R {
        let begin = Instant::now();
        loop {
            self.poll();
            if let Some(found) = ready() {
                return found;
            }
            assert!(begin.elapsed().as_secs() < 300, "waited in vain");
            std::thread::yield_now();
        }
    }

    /// Creates a peer, and returns it with its number in the address vector.
    fn peer(&self) -> (RawPeer<'_>, u64) {
        self.peer_on(0)
    }

    /// Creates a peer on the given port; 0: any. Ports below [`scif::DYNAMIC_PORTS`] are lower than
    /// any dynamic port. They are free, since the tests have a domain of their own and no two tests
    /// share a port.
    fn peer_on(&self, port: u16) -> (RawPeer<'_>, u64) {
        let sock = scif::Endpoint::bind(&self.domain.shared.fabric.node, port, Exports::default())
            .unwrap();
        let mut st = self.domain.shared.gate.lock();
        let av = st.avs.get_mut(self.av).unwrap();
        let number = av.insert(sock.id(), [0; crate::base::addr::ADDR_LEN], None).unwrap();
        (RawPeer { stage: self, sock }, number)
    }

    /// Registers memory with key 5 that all peers may read and write.
    fn region(&self, len: usize) -> u32 {
        let iov = [buffer(vec![7; len])];
        let region = Region {
            iov: &iov,
            access: fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE,
            requested_key: 5,
            base: None,
        };
        self.domain.shared.gate.lock().mrs.register(&region).unwrap()
    }

    fn send(&self, dest: u64, len: usize) {
        let iov = [buffer(vec![3; len])];
        let args = send_args(&iov, dest, 0x5e, fi::FI_COMPLETION);
        calls::send(&mut self.domain.shared.gate.lock(), self.ep, &args).unwrap();
    }

    fn recv(&self, src: u64, len: usize, context: usize, flags: u64) {
        let args = RecvArgs {
            iov: &[buffer(vec![0; len])],
            src,
            tag: None,
            context,
            flags: flags | fi::FI_COMPLETION,
        };
        calls::recv(&mut self.domain.shared.gate.lock(), self.ep, &args).unwrap();
    }
}

/// Peer without a provider.
struct RawPeer<'s> {
    stage: &'s Stage,
    sock: scif::Endpoint,
}

impl RawPeer<'_> {
    /// Opens a connection that is up on both sides.
    fn connect(&mut self) -> ConnId {
        let victim = self.stage.with(|e| e.links.sock.id());
        let id = self.sock.connect(victim).unwrap();
        // The endpoint under test may connect at the same time.
        self.event_of(|event| *event == LinkEvent::Connected(id));
        id
    }

    fn event(&mut self) -> LinkEvent {
        self.event_of(|_| true)
    }

    fn event_of(&mut self, wanted: impl Fn(&LinkEvent) -> bool) -> LinkEvent {
        let mut events = Vec::new();
        self.stage.until(|| {
            self.sock.poll_links(&mut events);
            events.drain(..).find(&wanted)
        })
    }

    /// Pushes a record as soon as the ring has space.
    fn send_msg(&mut self, conn: ConnId, kind: u8, words: &[u64], body: &[u8]) {
        self.stage.until(|| self.try_send_msg(conn, kind, words, body).then_some(()));
    }

    fn try_send_msg(&mut self, conn: ConnId, kind: u8, words: &[u64], body: &[u8]) -> bool {
        let head: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let conn = self.sock.conn(conn).unwrap();
        let pushed = conn.tx().push_slice(kind, &head, body).is_ok();
        conn.notify();
        pushed
    }

    /// Returns kind, words and body length of the next record.
    fn recv_msg(&mut self, conn: ConnId) -> (u8, Vec<u64>, usize) {
        self.stage.until(|| self.try_recv_msg(conn))
    }

    fn try_recv_msg(&mut self, conn: ConnId) -> Option<(u8, Vec<u64>, usize)> {
        let ring = self.sock.conn(conn).unwrap().rx();
        let record = ring.peek().unwrap()?;
        let words = chunks::<u8, 8>(record.head());
        let heard =
            (record.kind, words.map(|w| u64::from_ne_bytes(*w)).collect(), record.body.len());
        ring.advance();
        ring.flush();
        Some(heard)
    }

    /// Checks the service of a connection with a receive and a message for it.
    fn check_service(&mut self, conn: ConnId) {
        self.stage.recv(fi::FI_ADDR_UNSPEC, 64, 0x600d, 0);
        self.send_msg(
            conn,
            wire::EAGER,
            &[],
            b"all is well, and more than a line of it is, so it is beside",
        );
        let came = self.stage.until(|| self.stage.came());
        assert!(matches!(came, Came::Done(c) if c.context == 0x600d), "{came:?}");
    }
}

#[test]
fn an_invalid_record_ends_its_connection_and_no_other() {
    let stage = Stage::new();
    stage.region(4096);
    let (mut honest, _) = stage.peer();
    let good = honest.connect();
    let word = |len: u64, block: u64| [1, len, 4096, block];
    let cases: [(&str, u8, &[u64], &[u8]); 10] = [
        ("an unknown kind", 0x7f, &[], b""),
        ("kind 0", 0, &[], b""),
        ("a message longer than memory", wire::RTS, &word(u64::MAX, 0), b""),
        ("a claim block beyond the last", wire::RTS, &word(1 << 20, 200), b""),
        ("half a piece", wire::RTS, &word(1 << 20, 0), &[1; 24]),
        ("pieces of another length", wire::RTS, &word(1 << 20, 0), &[1; 16]),
        ("a read of too much at once", wire::READ, &[5, 0, 1, 0, 1 << 30, 0], b""),
        (
            "a read whose answer ends beyond the last offset",
            wire::READ,
            &[5, 0, 1, u64::MAX - 2000, 4096, 0],
            b"",
        ),
        ("an atomic without operands", wire::ATOMIC, &[1, 0, u64::MAX], b""),
        ("an atomic cut short", wire::ATOMIC, &[1, 0, 0x0808_0000_0000], &[1; 5]),
    ];
    for (case, kind, words, body) in cases {
        let (mut bad, _) = stage.peer();
        let conn = bad.connect();
        bad.send_msg(conn, kind, words, body);
        assert_eq!(bad.event(), LinkEvent::Closed(conn, Reason::Reset), "{case}");
        assert!(stage.came().is_none(), "{case}");
        honest.check_service(good);
    }
}

#[test]
fn cts_is_valid_once_for_an_announced_message() {
    let stage = Stage::new();
    for again in [false, true] {
        let (mut bad, number) = stage.peer();
        let conn = bad.connect();
        stage.send(number, 100_000);
        let (kind, words, _) = bad.recv_msg(conn);
        assert_eq!(kind, wire::RTS);
        let want = if again { 100_000 } else { 100_001 };
        bad.send_msg(conn, wire::CTS, &[words[0], 1, want], b"");
        if again {
            bad.send_msg(conn, wire::CTS, &[words[0], 2, want], b"");
        }
        assert_eq!(bad.event(), LinkEvent::Closed(conn, Reason::Reset), "{again}");
        let came = stage.until(|| stage.came());
        assert!(matches!(&came, Came::Failed(e) if e.err == fi::FI_ECONNRESET), "{came:?}");
    }
    // A message that has arrived has no payload to send, however often a CTS requests it.
    let (mut bad, number) = stage.peer();
    let conn = bad.connect();
    let iov = [buffer(Vec::new())];
    let args = send_args(&iov, number, 1, fi::FI_COMPLETION | fi::FI_DELIVERY_COMPLETE);
    calls::send(&mut stage.domain.shared.gate.lock(), stage.ep, &args).unwrap();
    let (kind, words, _) = bad.recv_msg(conn);
    assert_eq!(kind & wire::WANT_ACK, wire::WANT_ACK);
    bad.send_msg(conn, wire::CTS, &[words[0], 1, 0], b"");
    assert_eq!(bad.event(), LinkEvent::Closed(conn, Reason::Reset));
    assert!(matches!(stage.until(|| stage.came()), Came::Failed(_)));
    // The destination of a read is an operation too, and private.
    let (mut bad, number) = stage.peer();
    let conn = bad.connect();
    bad.send_msg(conn, wire::EAGER, &[], b"so that the victim sends over this connection");
    let args = RmaArgs {
        write: false,
        iov: &[buffer(vec![0; 100_000])],
        rma: &[RmaIov { addr: 0, len: 100_000, key: 9 }],
        dest: number,
        data: None,
        context: 1,
        flags: fi::FI_COMPLETION,
    };
    calls::rma(&mut stage.domain.shared.gate.lock(), stage.ep, &args).unwrap();
    let (kind, words, _) = bad.recv_msg(conn);
    assert_eq!(kind, wire::READ);
    bad.send_msg(conn, wire::CTS, &[words[2], 1, 100_000], b"");
    assert_eq!(bad.event(), LinkEvent::Closed(conn, Reason::Reset));
}

#[test]
fn answers_of_others_and_to_nothing_change_nothing() {
    let stage = Stage::new();
    let (mut asked, number) = stage.peer();
    let (mut other, _) = stage.peer();
    let (mine, theirs) = (asked.connect(), other.connect());
    stage.send(number, 100_000);
    let (_, words, _) = asked.recv_msg(mine);
    let id = words[0];
    for kind in [wire::FIN, wire::ACK, wire::ATOMIC_REPLY, wire::READ_DATA] {
        other.send_msg(theirs, kind, &[id, 0, 0], b"");
        asked.send_msg(mine, kind, &[id ^ 1 << 40, 0, 0], b"");
        asked.send_msg(mine, kind, &[id ^ 1, 0, 0], b"");
    }
    other.send_msg(theirs, wire::STREAM, &[id, 0], &[1; 100]);
    other.check_service(theirs);
    asked.check_service(mine);
    assert!(stage.came().is_none(), "the message has not been taken");
    asked.send_msg(mine, wire::FIN, &[id, 0, 0], b"");
    let came = stage.until(|| stage.came());
    assert!(matches!(came, Came::Done(c) if c.context == 0x5e), "{came:?}");
}

/// Simultaneous open: each side sends on the connection that it opened. Replies to one arrive over
/// the other. Both end with the peer. A message that was answered completes, whichever end is seen
/// first.
#[test]
fn replies_over_one_connection_survive_the_end_of_the_other() {
    let stage = Stage::new();
    for round in 0..20 {
        let (mut peer, number) = stage.peer();
        stage.send(number, 100_000);
        let LinkEvent::Accepted(theirs, _) = peer.event() else {
            panic!("the victim did not connect");
        };
        let victim = stage.with(|e| e.links.sock.id());
        let mine = peer.sock.connect(victim).unwrap();
        let (kind, words, _) = peer.recv_msg(theirs);
        assert_eq!(kind, wire::RTS);
        assert!(peer.try_send_msg(mine, wire::FIN, &[words[0], 0], b""));
        let ends = if round % 4 < 2 { [theirs, mine] } else { [mine, theirs] };
        match round % 2 {
            0 => peer.sock.abandon(),
            _ => ends
                .into_iter()
                .for_each(|conn| peer.sock.close_conn(conn, scif::CloseHow::Orderly)),
        }
        let came = stage.until(|| stage.came());
        assert!(matches!(came, Came::Done(c) if c.context == 0x5e), "round {round}: {came:?}");
        // The next peer may get this port.
        stage.until(|| (stage.with(|e| e.links.sock.conn_count()) == 0).then_some(()));
    }
}

#[test]
fn peer_with_unread_replies_is_not_polled() {
    const PIECE: usize = 64 << 10;
    let stage = Stage::new();
    stage.region(64 << 10);
    for (request, answer_bytes) in [([5, 0, 1, 0, PIECE as u64, 0], PIECE), ([6, 0, 1, 0, 8, 0], 0)]
    {
        let (mut bad, _) = stage.peer();
        let conn = bad.connect();
        let mut asked = 0_usize;
        // Requests without limit, until none are accepted.
        let mut refused = 0;
        while refused < 1000 {
            if bad.try_send_msg(conn, wire::READ, &request, b"") {
                asked += 1;
                refused = 0;
            } else {
                refused += 1;
            }
            stage.poll();
            assert!(asked < 1_000_000, "a flood without end");
        }
        let unanswered = stage.with(|e| e.peers.iter().map(|p| p.queue.reply_bytes).max());
        assert!(
            unanswered > Some(REPLY_QUEUE_MAX) && unanswered < Some(2 * REPLY_QUEUE_MAX),
            "{unanswered:?}"
        );
        // Once the peer reads replies, each request is answered.
        let (mut bytes, mut answers) = (0, 0);
        while bytes < asked * answer_bytes || answers < asked {
            let (kind, words, len) = bad.recv_msg(conn);
            bytes += len;
            match kind {
                wire::ACK => answers += 1,
                wire::READ_DATA => answers += usize::from(words[1] + len as u64 == PIECE as u64),
                other => panic!("{other:#x}"),
            }
        }
        assert_eq!((answers, bytes), (asked, asked * answer_bytes));
        bad.check_service(conn);
        assert_eq!(stage.with(|e| e.peers.iter().map(|p| p.queue.reply_bytes).max()), Some(0));
    }
}

#[test]
fn unread_acknowledgements_are_charged_to_the_peer() {
    for (kind, answer) in
        [(wire::EAGER | wire::INLINE | wire::WANT_ACK, wire::ACK), (wire::RTS, wire::FIN)]
    {
        let stage = Stage::new();
        let (mut bad, _) = stage.peer();
        let conn = bad.connect();
        let (mut refused, mut asked) = (0, 0_u64);
        while refused < 1000 {
            if bad.try_send_msg(conn, kind, &[asked, 0, 0, 0], b"") {
                stage.recv(fi::FI_ADDR_UNSPEC, 0, 0, 0);
                asked += 1;
                refused = 0;
            } else {
                refused += 1;
            }
            stage.poll();
            while stage.came().is_some() {}
            assert!(asked < 1_000_000, "a flood without end");
        }
        let unanswered = stage.with(|e| e.peers.iter().map(|p| p.queue.reply_bytes).max());
        assert!(
            unanswered > Some(REPLY_QUEUE_MAX) && unanswered < Some(2 * REPLY_QUEUE_MAX),
            "{unanswered:?}"
        );
        for id in 0..asked {
            let (kind, words, _) = bad.recv_msg(conn);
            assert_eq!((kind, words[0]), (answer, id));
        }
        while stage.came().is_some() {}
        bad.check_service(conn);
        assert_eq!(stage.with(|e| e.peers.iter().map(|p| p.queue.reply_bytes).max()), Some(0));
    }
}

#[test]
fn unacknowledged_messages_are_limited() {
    for len in [8, 1 << 20] {
        let stage = Stage::new();
        let (mut slow, number) = stage.peer();
        let conn = slow.connect();
        slow.check_service(conn);
        let payload = [buffer(vec![3; len])];
        let args = send_args(&payload, number, 0x5e, fi::FI_COMPLETION | fi::FI_DELIVERY_COMPLETE);
        let send = || calls::send(&mut stage.domain.shared.gate.lock(), stage.ep, &args);
        let mut heard = Vec::new();
        while send().is_ok() {
            heard.extend(slow.try_recv_msg(conn).map(|(_, words, _)| words[0]));
            assert!(heard.len() <= MAX_UNACKED_MSGS as usize);
        }
        assert_eq!(heard.len(), MAX_UNACKED_MSGS as usize);
        // Each reply frees one credit.
        slow.send_msg(conn, wire::ACK, &[heard[0], 0], b"");
        let (_, words, _) = slow.recv_msg(conn);
        assert!(!heard.contains(&words[0]));
        assert_eq!(send(), Ok(()));
        assert_eq!(send(), Err(fi::FI_EAGAIN));
    }
}

#[test]
fn region_closes_despite_a_peer_with_a_hazard_pointer() {
    let stage = Stage::new();
    let index = stage.region(4096);
    let (mut bad, _) = stage.peer();
    let conn = bad.connect();
    let shared = &stage.domain.shared;
    let key = shared.gate.lock().mrs.remove(index).unwrap().key;
    let mut mark = |on: bool| {
        let mine = bad.sock.conn(conn).unwrap().my_mark();
        if on { mine.set(key.unwrap().slot()) } else { mine.clear() }
    };
    mark(true);
    let slot = key.unwrap().slot();
    assert!(crate::domain::migrate::slot_in_use(&mut shared.gate.lock(), slot));
    // A peer that leaves in time keeps its connection.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| wait_until_left(shared, key, u64::MAX));
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(!waiting.is_finished());
        mark(false);
    });
    assert_eq!(stage.with(|e| e.links.sock.conn_count()), 1);
    mark(true);
    wait_until_left(shared, key, 1_000_000);
    assert_eq!(stage.with(|e| e.links.sock.conn_count()), 0);
    assert_eq!(bad.event(), LinkEvent::Closed(conn, Reason::Reset));
    bad.sock.close_conn(conn, scif::CloseHow::Orderly);
    let conn = bad.connect();
    bad.check_service(conn);
}

#[test]
fn a_write_error_stays_with_its_connection() {
    let stage = Stage::new();
    stage.region(4096);
    let (mut peer, _) = stage.peer();
    let (first, second) = (peer.connect(), peer.connect());
    // Key 6 does not exist. The replies come over the first connection.
    peer.send_msg(first, wire::WRITE, &[6, 0, 1, 0, 0, 16], b"half of a write");
    peer.check_service(first);
    peer.send_msg(second, wire::WRITE, &[5, 0, 2, 0, wire::F_LAST, 8], b"a whole one");
    assert_eq!(peer.recv_msg(first).1, [2, 0]);
    peer.send_msg(first, wire::WRITE, &[5, 0, 1, 0, wire::F_LAST, 16], b"the other half");
    let (kind, words, _) = peer.recv_msg(first);
    assert!(kind == wire::ACK && words[0] == 1 && words[1] != 0, "{words:?}");
    peer.send_msg(first, wire::WRITE, &[5, 0, 3, 0, wire::F_LAST, 8], b"the next");
    assert_eq!(peer.recv_msg(first).1, [3, 0]);
}

#[test]
fn a_multi_receive_takes_messages_of_a_dead_sender() {
    let stage = Stage::new();
    let (mut peer, number) = stage.peer();
    let conn = peer.connect();
    for text in [&b"one"[..], b"two"] {
        let mut head = text.to_vec();
        head.resize(8, 0);
        let word = u64::from_ne_bytes(head.try_into().unwrap());
        peer.send_msg(conn, wire::EAGER | wire::INLINE, &[word], b"");
    }
    stage.until(|| (stage.with(|e| e.recv.msg.unexpected.len()) == 2).then_some(()));
    peer.sock.abandon();
    stage.until(|| stage.with(|e| e.peers.iter().any(|p| p.state.has_failed())).then_some(()));
    stage.recv(number, 4096, 0x3a, fi::FI_MULTI_RECV);
    let mut flags = 0;
    let mut messages = 0;
    while flags & fi::FI_MULTI_RECV == 0 {
        match stage.until(|| stage.came()) {
            Came::Done(c) => {
                assert_eq!((c.context, c.len), (0x3a, 8));
                messages += 1;
                flags |= c.flags;
            }
            Came::Failed(e) => {
                assert_eq!((e.c.context, e.err), (0x3a, fi::FI_ECONNRESET));
                flags |= e.c.flags;
            }
        }
    }
    assert_eq!((messages, stage.with(|e| e.recv.directed)), (2, 0));
    // No message of the peer is left, so that a receive directed to it fails at once.
    stage.recv(number, 64, 0x3b, 0);
    let came = stage.came();
    assert!(matches!(&came, Some(Came::Failed(e)) if e.c.context == 0x3b), "{came:?}");
}

#[test]
fn restarted_peer_is_answered_over_its_new_connection() {
    let stage = Stage::new();
    stage.region(4096);
    // The port is free between two incarnations, and must not be assigned dynamically.
    let port = 1;
    let (mut peer, _) = stage.peer_on(port);
    for life in 0..20 {
        let conn = peer.connect();
        peer.send_msg(conn, wire::READ, &[5, 0, life, 0, 8, wire::F_LAST], b"");
        assert_eq!(peer.recv_msg(conn).0, wire::READ_DATA, "life {life}");
        drop(peer);
        let sock = scif::Endpoint::bind(&stage.domain.shared.fabric.node, port, Exports::default())
            .unwrap();
        peer = RawPeer { stage: &stage, sock };
        // A request before the victim has seen the end of the old connection.
        let victim = stage.with(|e| e.links.sock.id());
        let conn = peer.sock.connect(victim).unwrap();
        assert!(peer.try_send_msg(conn, wire::READ, &[5, 0, life, 0, 8, wire::F_LAST], b""));
        assert_eq!(peer.recv_msg(conn).0, wire::READ_DATA, "life {life}, asked at once");
        peer.sock.close_conn(conn, scif::CloseHow::Orderly);
    }
}

#[test]
fn operations_of_two_lives_of_an_endpoint_have_different_numbers() {
    let label =
        || CompletionInfo { op_kind: OpKind::Message, context: 0, flags: 0, tag: 0, len: 0 };
    let op = || {
        OutstandingOp::new(crate::engine::types::peer_id::PeerId::new(0), label(), Iov::new(&[]))
    };
    let (mut one, mut two) = (OpTable::new(1_000), OpTable::new(5_000_000_000_000));
    let old = one.insert(op());
    assert_ne!(old, two.insert(op()));
    assert!(two.get_mut(old).is_none());
}

#[test]
fn silent_connections_do_not_block_the_answered_one() {
    let stage = Stage::like(|cfg| cfg.connected = true);
    let node = &stage.domain.shared.fabric.node;
    let bind = || scif::Endpoint::bind(node, 0, Exports::default()).unwrap();
    let (mut passive, mut strangers, mut answerer) = (bind(), bind(), bind());
    let port = stage.with(|e| e.links.sock.id());
    let name = addr::encode_peer(passive.id(), stage.with(|e| e.cfg.host));
    let mut st = stage.domain.shared.gate.lock();
    cm::connect(&mut st, stage.ep, (passive.id(), name), b"hello").unwrap();
    drop(st);
    let mut links = Vec::new();
    let said = stage.until(|| {
        passive.poll_links(&mut links);
        let conn = links.iter().find_map(|link| match link {
            LinkEvent::Accepted(conn, _) => Some(*conn),
            _ => None,
        })?;
        cm_message::recv_msg(passive.conn(conn)?).unwrap()
    });
    assert_eq!((said.kind, said.data.as_slice()), (wire::CM_REQUEST, &b"hello"[..]));
    for _ in 0..200 {
        strangers.connect(port).unwrap();
        stage.poll();
    }
    let answer = answerer.connect(port).unwrap();
    cm_message::send_msg(answerer.conn(answer).unwrap(), wire::CM_ACCEPT, said.number, &[]);
    let peer = stage.until(|| cm::peer_name(&stage.domain.shared.gate.lock(), stage.ep).ok());
    assert_eq!(peer, name);
    // All other connections are closed.
    stage.until(|| (stage.with(|e| e.links.sock.conn_count()) == 1).then_some(()));
}

#[test]
fn copying_peers_delay_a_close_once() {
    const PEERS: u32 = 40;
    let stage = Stage::new();
    let mut liars: Vec<_> = (0..PEERS).map(|_| stage.peer().0).collect();
    for liar in &mut liars {
        let conn = liar.connect();
        liar.check_service(conn);
        assert!(liar.sock.conn(conn).unwrap().enter());
    }
    let begin = scif::now_ns();
    stage.with(crate::engine::protocols::parting::revoke_all);
    let took = scif::now_ns() - begin;
    assert!(took >= WITHDRAW_NS && took < u64::from(PEERS) * WITHDRAW_NS / 2, "{took}");
}

/// Simultaneous open: the side with the higher port changes to the connection of the other side. No
/// message is lost or overtaken.
#[test]
fn two_connections_become_one() {
    const ROUNDS: u64 = 200;
    let stage = Stage::on(4, |_| {});
    let ours = stage.with(|e| e.links.sock.id());
    let mut peers: Vec<_> = [0, 2, 0, 3].map(|port| stage.peer_on(port)).into();
    let mut lowers = 0;
    for (peer, number) in &mut peers {
        let number = *number;
        stage.send(number, 8);
        let conn = peer.sock.connect(ours).unwrap();
        let LinkEvent::Accepted(theirs, _) =
            peer.event_of(|e| matches!(e, LinkEvent::Accepted(..)))
        else {
            panic!("not accepted")
        };
        assert_eq!(peer.recv_msg(theirs).2, 0);
        let mut over = [0_u64; 2];
        for round in 0..ROUNDS {
            stage.recv(fi::FI_ADDR_UNSPEC, 8, 7, 0);
            peer.send_msg(conn, wire::EAGER | wire::INLINE, &[round], b"");
            stage.until(|| {
                stage.came().filter(|came| matches!(came, Came::Done(c) if c.context == 7))
            });
            stage.send(number, 16);
            let at =
                stage.until(|| [theirs, conn].iter().position(|c| peer.try_recv_msg(*c).is_some()));
            over[at] += 1;
            assert!(at == 1 || over[1] == 0, "back again");
        }
        let lower = peer.sock.id() < ours;
        assert_eq!(over[1] > ROUNDS / 2, lower, "{over:?}");
        assert!(lower || over[1] == 0, "{over:?}");
        lowers += u32::from(lower);
    }
    assert_eq!(lowers, 2);
}

#[test]
fn registration_modes_of_old_and_new_applications() {
    assert_eq!(super::mr_modes(fi::FI_MR_UNSPEC), (false, false));
    assert_eq!(super::mr_modes(fi::FI_MR_BASIC), (true, true));
    assert_eq!(super::mr_modes(fi::FI_MR_SCALABLE), (false, false));
    assert_eq!(super::mr_modes(fi::FI_MR_VIRT_ADDR | fi::FI_MR_ALLOCATED), (true, false));
    assert_eq!(super::mr_modes(fi::FI_MR_PROV_KEY | fi::FI_MR_LOCAL), (false, true));
}

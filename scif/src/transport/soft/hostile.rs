// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests with peers that violate the protocol. Each one only ends its own connection, and the
//! endpoint continues to serve.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::SealFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use scif_ring::keytable::KeyEntry;
use scif_ring::{BELL_BYTES, KEYTABLE_BYTES};

use super::wire::{ARENA, Greeting, KEYS, PACKET_MAX, Packet, decode};
use super::{Soft, handshake, names::Names};
use crate::addr::PortId;
use crate::arena::ARENA_BYTES;
use crate::config::Config;
use crate::export::{Shared, Writers};
use crate::memory::RemoteMem;
use crate::node::{Node, TransportKind};
use crate::segment::{SEGMENT_BYTES, write_header};
use crate::slab::ConnId;
use crate::sys::fork::PrivateFd;
use crate::sys::memfd::{self, FIXED_SIZE};
use crate::sys::mmap::Mapping;
use crate::sys::pages::PAGE;
use crate::sys::{children, process, unix};
use crate::transport::{Shown, Transport};
use crate::{Endpoint, Exports, LinkEvent, Reason, Refusal};

const FAKE: PortId = PortId::new(2, 99);
const ID: ConnId = ConnId { index: 0, generation: 0 };

struct HandshakeStage {
    node: Arc<Node>,
    soft: Arc<Soft>,
    names: Names,
    shown: Shown,
}

impl HandshakeStage {
    fn new(test: &str) -> HandshakeStage {
        let domain = format!("hostile-{test}-{}", process::pid());
        let config = Config { node: 2, domain: Some(domain.clone()), ..Config::default() };
        let soft = Arc::new(Soft::open(config.clone()).unwrap());
        let bell = soft.share("scif:bell", BELL_BYTES, Writers::Peers).unwrap();
        bell.map.bell().unwrap();
        HandshakeStage {
            node: Node::open(config, TransportKind::Soft).unwrap(),
            names: Names::new(None, Some(&domain), process::uid()).unwrap(),
            shown: Shown { bell, keys: None },
            soft,
        }
    }

    fn victim(&self) -> Endpoint {
        Endpoint::bind(&self.node, 0, Exports::default()).unwrap()
    }

    /// Returns a socket connected as `FAKE` would connect it.
    fn raw(&self, dst: PortId) -> OwnedFd {
        let socket = unix::socket().unwrap();
        let mut serial = 0;
        self.names.bind_source(&socket, FAKE, &mut serial).unwrap();
        unix::connect(&socket, &self.names.listener(dst).unwrap()).unwrap();
        socket
    }

    fn hello(&self) -> Greeting {
        handshake::greeting(&self.soft, &self.shown, false, ID)
    }

    fn segment(&self) -> Shared {
        let segment = self.soft.share("scif:conn", SEGMENT_BYTES, Writers::Peers).unwrap();
        write_header(&segment.map).unwrap();
        segment
    }

    /// Returns a raw socket that the victim has accepted, the segment and doorbell that it sent,
    /// and the victim's connection.
    fn accepted(&self, victim: &mut Endpoint) -> (OwnedFd, Shared, OwnedFd, ConnId) {
        let socket = self.raw(victim.id());
        let (segment, bell) = (self.segment(), memory(BELL_BYTES, FIXED_SIZE));
        send(&socket, self.hello().encode(), &[segment.fd.as_ref().unwrap().as_fd(), bell.as_fd()]);
        let LinkEvent::Accepted(id, _) = wait_for(victim, |_| true) else { panic!("not accepted") };
        (socket, segment, bell, id)
    }
}

/// Returns memory as a careless or malicious peer would make it.
fn memory(len: usize, seals: SealFlags) -> OwnedFd {
    let fd = memfd::create("hostile", len).unwrap();
    if len >= SEGMENT_BYTES {
        write_header(&Mapping::shared(&fd, SEGMENT_BYTES, true).unwrap()).unwrap();
    } else if len == BELL_BYTES {
        Mapping::shared(&fd, len, true).unwrap().bell().unwrap();
    }
    memfd::seal(&fd, seals).unwrap();
    fd
}

/// Variant of `unix::send` with any number of descriptors.
fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
        .unwrap();
}

fn events(endpoint: &mut Endpoint) -> Vec<LinkEvent> {
    let mut out = Vec::new();
    endpoint.poll_links(&mut out);
    out
}

fn wait_for(endpoint: &mut Endpoint, mut done: impl FnMut(&LinkEvent) -> bool) -> LinkEvent {
    let begin = Instant::now();
    loop {
        if let Some(event) = events(endpoint).into_iter().find(&mut done) {
            return event;
        }
        assert!(begin.elapsed().as_secs() < 20, "waited in vain");
        std::thread::yield_now();
    }
}

/// Waits until the other end of a raw socket closes; returns its last packet.
fn last_word(socket: &OwnedFd) -> Option<Packet> {
    let mut last = None;
    let begin = Instant::now();
    loop {
        let mut buffer = [0; PACKET_MAX];
        match unix::receive(socket, &mut buffer) {
            Ok(received) if received.bytes == 0 => return last,
            Ok(received) => last = decode(&buffer[..received.bytes]).ok(),
            Err(rustix::io::Errno::AGAIN) => assert!(begin.elapsed().as_secs() < 20, "not hung up"),
            Err(_) => {}
        }
    }
}

/// Checks that an honest peer is still served.
fn check_service(stage: &HandshakeStage, victim: &mut Endpoint) {
    let mut honest = stage.victim();
    let id = honest.connect(victim.id()).unwrap();
    honest.conn(id).unwrap().tx().push_head(1, b"honest").unwrap();
    let LinkEvent::Accepted(at, from) = wait_for(victim, |e| matches!(e, LinkEvent::Accepted(..)))
    else {
        unreachable!()
    };
    assert_eq!(from, honest.id());
    assert_eq!(victim.conn(at).unwrap().rx().peek().unwrap().unwrap().head(), b"honest");
    wait_for(&mut honest, |e| *e == LinkEvent::Connected(id));
    victim.close_conn(at, crate::CloseHow::Orderly);
}

/// Returns a descriptor that is no memory.
fn event() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
}

/// First packet that a port refuses: name of the case, bytes, descriptors.
type BadHello = (&'static str, Vec<u8>, Vec<OwnedFd>);

/// Returns the packets that are wrong as such.
fn bad_packets(hello: Greeting) -> Vec<BadHello> {
    let good = || vec![memory(SEGMENT_BYTES, FIXED_SIZE), memory(BELL_BYTES, FIXED_SIZE)];
    let mut bad_bit = hello;
    bad_bit.bell_bit = 4096;
    let welcome = Greeting::new(true, 0, 0, 1, 2, 3);
    let long = [hello.encode(), &[0; 9]].concat();
    let mut other_version = hello.encode().to_vec();
    other_version[4] ^= 0x40;
    let mut other_layout = hello.encode().to_vec();
    other_layout[12] ^= 0x40;
    let mut other_magic = hello.encode().to_vec();
    other_magic[0] ^= 1;
    vec![
        ("garbage", b"GET / HTTP/1.1".to_vec(), vec![]),
        ("garbage with descriptors", vec![7; 48], good()),
        ("nothing", vec![], vec![]),
        ("a wake-up", vec![b'.'], vec![]),
        ("a goodbye", vec![b'B'], vec![]),
        ("too long", long, good()),
        ("cut", hello.encode()[..47].to_vec(), good()),
        ("another version", other_version, good()),
        ("another layout", other_layout, good()),
        ("another magic", other_magic, good()),
        ("a welcome", welcome.encode().to_vec(), good()),
        ("no descriptors", hello.encode().to_vec(), vec![]),
        ("one descriptor too few", hello.encode().to_vec(), good().drain(..1).collect()),
        ("nine descriptors", hello.encode().to_vec(), (0..9).map(|_| event()).collect()),
        ("a bit beyond the bell", bad_bit.encode().to_vec(), good()),
    ]
}

/// Returns good packets with descriptors that are wrong.
fn bad_descriptors(hello: Greeting) -> Vec<BadHello> {
    let mut with_keys = hello;
    with_keys.flags |= KEYS;
    let good = || vec![memory(SEGMENT_BYTES, FIXED_SIZE), memory(BELL_BYTES, FIXED_SIZE)];
    let segment = |len, seals| vec![memory(len, seals), memory(BELL_BYTES, FIXED_SIZE)];
    let bell = |len, seals| vec![memory(SEGMENT_BYTES, FIXED_SIZE), memory(len, seals)];
    let keys = |fd| {
        let mut fds = good();
        fds.push(fd);
        fds
    };
    let headless = memfd::create("hostile", SEGMENT_BYTES).unwrap();
    memfd::seal(&headless, FIXED_SIZE).unwrap();
    let blank_bell = memfd::create("hostile", BELL_BYTES).unwrap();
    memfd::seal(&blank_bell, FIXED_SIZE).unwrap();
    let writable = FIXED_SIZE;
    vec![
        ("keys announced and not sent", with_keys.encode().to_vec(), good()),
        (
            "keys sent and not announced",
            hello.encode().to_vec(),
            keys(memory(KEYTABLE_BYTES, FIXED_SIZE)),
        ),
        ("segment not sealed", hello.encode().to_vec(), segment(SEGMENT_BYTES, SealFlags::empty())),
        (
            "segment that can shrink",
            hello.encode().to_vec(),
            segment(SEGMENT_BYTES, SealFlags::GROW),
        ),
        ("segment too small", hello.encode().to_vec(), segment(BELL_BYTES, FIXED_SIZE)),
        ("segment empty", hello.encode().to_vec(), segment(0, FIXED_SIZE)),
        ("segment too large", hello.encode().to_vec(), segment(SEGMENT_BYTES + 4096, FIXED_SIZE)),
        (
            "segment not writable",
            hello.encode().to_vec(),
            segment(SEGMENT_BYTES, FIXED_SIZE | SealFlags::FUTURE_WRITE),
        ),
        (
            "segment without a header",
            hello.encode().to_vec(),
            vec![headless, memory(BELL_BYTES, FIXED_SIZE)],
        ),
        (
            "segment that is no memory",
            hello.encode().to_vec(),
            vec![event(), memory(BELL_BYTES, FIXED_SIZE)],
        ),
        ("bell not sealed", hello.encode().to_vec(), bell(BELL_BYTES, SealFlags::empty())),
        ("bell too small", hello.encode().to_vec(), bell(64, FIXED_SIZE)),
        (
            "bell blank",
            hello.encode().to_vec(),
            vec![memory(SEGMENT_BYTES, FIXED_SIZE), blank_bell],
        ),
        (
            "keys anyone can write",
            with_keys.encode().to_vec(),
            keys(memory(KEYTABLE_BYTES, writable)),
        ),
        (
            "keys too small",
            with_keys.encode().to_vec(),
            keys(memory(4096, FIXED_SIZE | SealFlags::FUTURE_WRITE)),
        ),
        ("keys that are no memory", with_keys.encode().to_vec(), keys(event())),
    ]
}

#[test]
fn bad_hellos_are_turned_away() {
    let stage = HandshakeStage::new("hello");
    let mut victim = stage.victim();
    let hello = stage.hello();
    let cases: Vec<BadHello> =
        bad_packets(hello).into_iter().chain(bad_descriptors(hello)).collect();
    let count = cases.len();
    for (name, bytes, fds) in cases {
        let socket = stage.raw(victim.id());
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        send(&socket, &bytes, &borrowed);
        assert_eq!(events(&mut victim), [], "{name}");
        let word = last_word(&socket);
        assert!(matches!(word, None | Some(Packet::Reset | Packet::No(_))), "{name}: {word:?}");
        if ["another version", "another layout", "bell blank"].contains(&name) {
            assert_eq!(word, Some(Packet::No(Reason::Refused(Refusal::Version))), "{name}");
        }
    }
    assert_eq!(victim.conn_count(), 0);
    check_service(&stage, &mut victim);
    println!("{count} bad hellos turned away");
}

#[test]
fn strange_sockets_are_turned_away() {
    let stage = HandshakeStage::new("socket");
    let mut victim = stage.victim();
    let addr = stage.names.listener(victim.id()).unwrap();
    // A socket without a name; one of another domain; one that closes at once.
    let unbound = unix::socket().unwrap();
    unix::connect(&unbound, &addr).unwrap();
    let foreign = unix::socket().unwrap();
    let names = Names::new(None, Some("elsewhere"), 0).unwrap();
    names.bind_source(&foreign, FAKE, &mut 0).unwrap();
    unix::connect(&foreign, &addr).unwrap();
    drop(stage.raw(victim.id()));
    assert_eq!(events(&mut victim), []);
    assert_eq!((last_word(&unbound), last_word(&foreign)), (None, None));
    check_service(&stage, &mut victim);

    // A slow peer is waited for, a silent one does no harm.
    let pending: Vec<OwnedFd> = (0..300).map(|_| stage.raw(victim.id())).collect();
    let slow = stage.raw(victim.id());
    for _ in 0..10 {
        assert_eq!(events(&mut victim), []);
    }
    let (segment, bell) = (stage.segment(), memory(BELL_BYTES, FIXED_SIZE));
    let fds = [segment.fd.as_ref().unwrap().as_fd(), bell.as_fd()];
    send(&slow, stage.hello().encode(), &fds);
    let LinkEvent::Accepted(id, from) = wait_for(&mut victim, |_| true) else {
        panic!("not accepted")
    };
    assert_eq!((from, victim.conn(id).unwrap().peer_pid()), (FAKE, process::pid()));
    drop(pending);
    check_service(&stage, &mut victim);
}

/// Returns a socket that listens at `FAKE`, bound by another process. Its queue takes one caller
/// more than `backlog`.
fn listener_of_another(names: &Names, backlog: i32) -> OwnedFd {
    let socket = unix::socket().unwrap();
    let child =
        children::in_child(|| i32::from(names.bind_listener(&socket, FAKE, backlog).is_err()));
    assert_eq!(child.result(), 0);
    socket
}

#[test]
fn another_user_does_not_get_the_name_of_a_process_that_listens() {
    let stage = HandshakeStage::new("impostor");
    let own = process::uid();
    // Connecting peers are of another user in the view of the first port, and of its own user for
    // the second.
    for (name, uid) in [("other", own ^ 1), ("own", own)] {
        let config = Config {
            node: 2,
            domain: Some(stage.names.domain().to_owned()),
            allow_uids: vec![own],
            ..Config::default()
        };
        let soft = Arc::new(Soft { uid, ..Soft::open(config).unwrap() });
        let bell = || {
            let bell = soft.share("scif:bell", BELL_BYTES, Writers::Peers).unwrap();
            bell.map.bell().unwrap();
            bell
        };
        let shown = Shown { bell: bell(), keys: None };
        let mut port = Arc::clone(&soft).bind(0, shown).unwrap();
        let dst = port.id();
        let mut answer = || {
            let socket = stage.raw(dst);
            let (segment, bell) = (stage.segment(), bell());
            let fds = [segment.fd.as_ref().unwrap().as_fd(), bell.fd.as_ref().unwrap().as_fd()];
            send(&socket, stage.hello().encode(), &fds);
            port.poll(&mut Vec::new());
            match port.accept(ID).map(|opened| opened.peer) {
                Some(peer) => Ok(peer),
                None => Err(last_word(&socket)),
            }
        };
        // A child of another test may have a copy of the listener.
        let close = |listener: OwnedFd| {
            drop(listener);
            drop(children::none());
        };
        let of_another = |reason| {
            if uid == own { Ok(FAKE) } else { Err(Some(Packet::No(reason))) }
        };
        assert_eq!(answer(), Ok(FAKE), "{name}: nobody listens there");
        let listener = unix::socket().unwrap();
        stage.names.bind_listener(&listener, FAKE, 8).unwrap();
        assert_eq!(answer(), Ok(FAKE), "{name}: this process does");
        close(listener);
        let listener = listener_of_another(&stage.names, 8);
        assert_eq!(answer(), of_another(Reason::Denied), "{name}: another process does");
        close(listener);
        let listener = listener_of_another(&stage.names, 0);
        let in_queue = stage.raw(FAKE);
        let full = Reason::Refused(Refusal::Resources);
        assert_eq!(answer(), of_another(full), "{name}: its queue is full");
        drop(in_queue);
        close(listener);
        assert_eq!(answer(), Ok(FAKE), "{name}: nobody listens any more");
        check_service(&stage, &mut stage.victim());
    }
}

#[test]
fn bad_packets_end_a_connection() {
    let stage = HandshakeStage::new("packet");
    let mut victim = stage.victim();
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let hello = stage.hello();
    let welcome = Greeting::new(true, 0, 0, 1, 2, 3);
    let cases: [(&str, &[u8], bool); 6] = [
        ("garbage", b"xyz", false),
        ("a second hello", hello.encode(), true),
        ("a welcome from the opener", welcome.encode(), true),
        ("a wake-up with a descriptor", b".", true),
        ("a refusal from the opener", b"N\x01", false),
        ("an unknown refusal", b"N\xff", false),
    ];
    let count = cases.len();
    for (name, bytes, with_fd) in cases {
        let (socket, _segment, _bell, id) = stage.accepted(&mut victim);
        let fds = if with_fd { vec![event.as_fd()] } else { vec![] };
        send(&socket, bytes, &fds);
        let end = wait_for(&mut victim, |_| true);
        assert_eq!(end, LinkEvent::Closed(id, Reason::Corrupt), "{name}");
        assert_eq!(last_word(&socket), Some(Packet::Reset), "{name}");
        victim.close_conn(id, crate::CloseHow::Reset);
    }
    // A flood of wake-ups is processed in pieces.
    let socket = stage.raw(victim.id());
    let (segment, bell) = (stage.segment(), memory(BELL_BYTES, FIXED_SIZE));
    send(&socket, hello.encode(), &[segment.fd.as_ref().unwrap().as_fd(), bell.as_fd()]);
    while unix::send(&socket, b".", &[]).is_ok() {}
    let LinkEvent::Accepted(id, _) = wait_for(&mut victim, |_| true) else { panic!("flood") };
    assert_eq!(events(&mut victim), []);
    assert!(victim.bell().any());
    drop(socket);
    assert_eq!(wait_for(&mut victim, |_| true), LinkEvent::Closed(id, Reason::Died));
    check_service(&stage, &mut victim);
    println!("{count} bad packets ended their connections");
}

#[test]
fn bad_answers_end_a_connection() {
    let stage = HandshakeStage::new("answer");
    let event = || rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let welcome = Greeting::new(true, 0, 0, 1, 2, 3);
    let keyed = Greeting::new(true, KEYS, 0, 1, 2, 3);
    let bell = || memory(BELL_BYTES, FIXED_SIZE);
    let version = Reason::Refused(Refusal::Version);
    let refusal = Greeting::refusal().encode().to_vec();
    let mut other_version = refusal.clone();
    other_version[4] ^= 0x40;
    type Answer = (&'static str, Vec<u8>, Vec<OwnedFd>, Option<Reason>);
    let cases: Vec<Answer> = vec![
        ("garbage", b"xyz".to_vec(), vec![], Some(Reason::Corrupt)),
        ("a hello", stage.hello().encode().to_vec(), vec![bell(), bell()], Some(Reason::Corrupt)),
        ("no bell", welcome.encode().to_vec(), vec![], Some(Reason::Corrupt)),
        ("two bells", welcome.encode().to_vec(), vec![bell(), bell()], Some(Reason::Corrupt)),
        ("a bell that is none", welcome.encode().to_vec(), vec![event()], Some(Reason::Corrupt)),
        (
            "a bell not sealed",
            welcome.encode().to_vec(),
            vec![memory(BELL_BYTES, SealFlags::empty())],
            Some(Reason::Corrupt),
        ),
        ("no keys", keyed.encode().to_vec(), vec![bell()], Some(Reason::Corrupt)),
        (
            "keys not sealed",
            keyed.encode().to_vec(),
            vec![bell(), memory(KEYTABLE_BYTES, FIXED_SIZE)],
            Some(Reason::Corrupt),
        ),
        ("not allowed", b"N\x01".to_vec(), vec![], Some(Reason::Denied)),
        ("shared memory of another version", refusal.clone(), vec![], Some(version)),
        ("another version", other_version, vec![], Some(version)),
        ("a refusal without a greeting", b"N\x02".to_vec(), vec![], Some(Reason::Corrupt)),
        ("no room", b"N\x04".to_vec(), vec![], Some(Reason::Refused(Refusal::Resources))),
        ("a good one", welcome.encode().to_vec(), vec![bell()], None),
    ];
    let count = cases.len();
    for (name, bytes, fds, expected) in cases {
        // No other process has the listener, so that its name is free at the end.
        let _alone = children::none();
        let listener = unix::socket().unwrap();
        stage.names.bind_listener(&listener, FAKE, 4).unwrap();
        let mut victim = stage.victim();
        let id = victim.connect(FAKE).unwrap();
        let socket = unix::accept(&listener).unwrap();
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        send(&socket, &bytes, &borrowed);
        // The victim also detects it inside a notify, and still reports it.
        victim.conn(id).unwrap().notify();
        let event = wait_for(&mut victim, |_| true);
        match expected {
            Some(reason) => assert_eq!(event, LinkEvent::Closed(id, reason), "{name}"),
            None => assert_eq!(event, LinkEvent::Connected(id)),
        }
        check_service(&stage, &mut victim);
    }
    println!("{count} answers judged");
}

/// A listener that closes gracefully sends a refusal. Silence therefore means death, also of a
/// process that `/proc` still shows as running.
#[test]
fn a_listener_that_hangs_up_without_a_word_has_died() {
    let _alone = children::none();
    let stage = HandshakeStage::new("hangup");
    let listener = unix::socket().unwrap();
    stage.names.bind_listener(&listener, FAKE, 0).unwrap();
    let mut victim = stage.victim();
    let id = victim.connect(FAKE).unwrap();
    // The backlog of 0 holds one.
    assert_eq!(victim.connect(FAKE), Err(crate::Error::Again));
    drop(listener);
    assert_eq!(wait_for(&mut victim, |_| true), LinkEvent::Closed(id, Reason::Died));
}

/// Arena of a peer: accepted only on request, and only with fixed, sufficient size. A window that
/// exceeds the arena, or has no offset, is never accessed.
#[test]
fn bad_arenas_end_a_connection() {
    let stage = HandshakeStage::new("arena");
    let mut victim = stage.victim();
    let entry = |window, window_len| KeyEntry {
        key: 7,
        base: 0x1000_0000,
        start: 0,
        len: 8 * PAGE as u64,
        access: 0,
        window,
        window_len,
    };
    let remote = |at, len| RemoteMem { addr: 0x1000_0000 + at, len };
    let event = || rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let good = || memory(ARENA_BYTES, FIXED_SIZE);
    let (page, end) = (PAGE as u64, ARENA_BYTES as u64);
    let cases: Vec<(&str, bool, Vec<OwnedFd>)> = vec![
        ("not asked for", false, vec![good()]),
        ("none", true, vec![]),
        ("two", true, vec![good(), good()]),
        ("too short", true, vec![memory(ARENA_BYTES / 2, FIXED_SIZE)]),
        ("one that can shrink", true, vec![memory(ARENA_BYTES, SealFlags::GROW)]),
        ("no memory", true, vec![event()]),
        ("a good one", true, vec![good()]),
    ];
    let count = cases.len();
    for (name, asked, fds) in cases {
        let (socket, _segment, _bell, id) = stage.accepted(&mut victim);
        if asked {
            let conn = victim.conn(id).unwrap();
            assert!(conn.window(&entry(page, page), &remote(0, 8)).is_none(), "{name}");
        }
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        send(&socket, &[ARENA], &borrowed);
        if name != "a good one" {
            let ended = wait_for(&mut victim, |_| true);
            assert_eq!(ended, LinkEvent::Closed(id, Reason::Corrupt), "{name}");
            assert_eq!(last_word(&socket), Some(Packet::Reset), "{name}");
            victim.close_conn(id, crate::CloseHow::Reset);
            continue;
        }
        assert_eq!(events(&mut victim), []);
        assert!(rustix::fs::ftruncate(&fds[0], 0).is_err());
        let conn = victim.conn(id).unwrap();
        let mut len = |window, window_len, at, len| {
            let mem = conn.window(&entry(window, window_len), &remote(at, len));
            mem.map(|mem| mem.len())
        };
        assert_eq!(len(page, page, 8, 16), Some(16));
        assert_eq!(len(end - page, page, page - 8, 8), Some(8));
        assert_eq!(len(0, page, 0, 8), None, "nowhere");
        assert_eq!(len(page, page, page - 8, 16), None, "behind the window");
        assert_eq!(len(end - page, 2 * page, page - 8, 16), None, "behind the arena");
        assert_eq!(len(end, page, 0, 8), None, "outside");
        assert_eq!(len(u64::MAX, u64::MAX, 1, 8), None, "beyond all");
        assert_eq!(len(page, u64::MAX, 8, u64::MAX), None, "longer than there is");
        victim.close_conn(id, crate::CloseHow::Reset);
    }
    check_service(&stage, &mut victim);
    println!("{count} arenas judged");
}

#[test]
fn garbage_in_shared_memory_is_harmless() {
    let stage = HandshakeStage::new("garbage");
    let mut victim = stage.victim();
    let mut seed = 1u64;
    for _ in 0..50 {
        let (_socket, segment, bell, id) = stage.accepted(&mut victim);
        let bell_map = Mapping::shared(&bell, BELL_BYTES, true).unwrap();
        let mut noise = |map: &Mapping, len: usize| {
            let bytes: Vec<u8> = std::iter::repeat_with(|| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                seed.to_be_bytes()[0]
            })
            .take(len)
            .collect();
            map.bytes(0, len).unwrap().copy_from_slice(&bytes);
        };
        for _ in 0..10 {
            noise(&segment.map, SEGMENT_BYTES);
            noise(&bell_map, BELL_BYTES);
            let conn = victim.conn(id).unwrap();
            for _ in 0..300 {
                let _ = conn.tx().push_head(1, b"x");
                conn.notify();
                if let Ok(Some(record)) = conn.rx().peek() {
                    assert!(record.head().len() <= scif_ring::HEAD_MAX);
                    conn.rx().advance();
                }
            }
            let _ = (conn.peer_mark().get(), conn.tx_claim(1).peer_offer(1), conn.keys().is_none());
            victim.slot_in_use(3);
        }
        assert_eq!(events(&mut victim), []);
        victim.close_conn(id, crate::CloseHow::Reset);
    }
    check_service(&stage, &mut victim);
}

#[test]
fn descriptors_are_private_to_this_process() {
    let stage = HandshakeStage::new("private");
    let fd = PrivateFd::new(memory(BELL_BYTES, FIXED_SIZE));
    assert!(!fd.is_inherited());
    assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    let mut victim = stage.victim();
    check_service(&stage, &mut victim);
}

#[test]
fn a_listener_that_dies_during_a_connect_has_died() {
    const ATTEMPTS: usize = 200;
    let stage = HandshakeStage::new("dying");
    let mut endpoint = stage.victim();
    let listener = unix::socket().unwrap();
    let _file = stage.names.bind_listener(&listener, FAKE, 16).unwrap();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Closes sockets without a packet, as the kernel does for a killed process.
            while ended.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
                drop(unix::accept(&listener));
            }
        });
        for _ in 0..ATTEMPTS {
            let id = endpoint.connect(FAKE).unwrap();
            assert_eq!(wait_for(&mut endpoint, |_| true), LinkEvent::Closed(id, Reason::Died));
            endpoint.close_conn(id, crate::CloseHow::Reset);
        }
        drop(end);
    });
}

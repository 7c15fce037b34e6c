// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests: a process that claims the port of a connected peer, and a peer that connects too often.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use scif::PortId;
use scif::names::Names;
use scif::sys::unix::Received;
use scif::sys::{children, descriptor, process, unix};

use super::{Came, RawPeer, Stage, fi};
use crate::engine::connections::CONNS_OF_PEER;
use crate::engine::types::wire;

/// Free port of the listener that captures a first packet.
const TRAP: u16 = 70;

/// Returns the first packet of a connection whose ring contains a message, and its descriptors.
fn first_packet(caller: &mut RawPeer<'_>, names: &Names) -> (Vec<u8>, Vec<OwnedFd>) {
    let trap = PortId { port: TRAP, ..caller.sock.id() };
    let listener = unix::socket().unwrap();
    unix::bind(&listener, &names.listener(trap).unwrap()).unwrap();
    unix::listen(&listener, 1).unwrap();
    let conn = caller.sock.connect(trap).unwrap();
    assert!(caller.try_send_msg(conn, wire::EAGER, &[], b"of an impostor"));
    let mut bytes = vec![0; 256];
    let socket = unix::accept(&listener).unwrap();
    let Received { bytes: len, fds, .. } = unix::receive(&socket, &mut bytes).unwrap();
    bytes.truncate(len);
    (bytes, fds)
}

/// Whether the other end of a socket has closed it.
fn is_closed(socket: &OwnedFd) -> bool {
    match unix::receive(socket, &mut [0; 256]) {
        Ok(received) => received.bytes == 0,
        Err(errno) => ![libc::EAGAIN, libc::ENOTCONN].contains(&errno.raw_os_error()),
    }
}

#[test]
fn an_impostor_is_reset_and_its_messages_are_not_read() {
    let stage = Stage::new();
    let (mut honest, _) = stage.peer();
    let good = honest.connect();
    honest.check_service(good);
    let domain = format!("test-{}", process::pid());
    let names = Names::new(None, Some(&domain), process::uid()).unwrap();
    let (bytes, fds) = first_packet(&mut stage.peer().0, &names);
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let socket = unix::socket().unwrap();
    names.bind_source(&socket, honest.sock.id(), &mut 1000).unwrap();
    let victim = names.listener(stage.with(|e| e.links.sock.id())).unwrap();
    let (end, ended) = unix::pair().unwrap();
    // The kernel reports the process that calls connect(2).
    let impostor = children::in_child(|| {
        let sent = unix::connect(&socket, &victim).and_then(|()| unix::send(&socket, &bytes, &fds));
        descriptor::wait_readable(&ended, -1);
        i32::from(sent.is_err())
    });
    stage.recv(fi::FI_ADDR_UNSPEC, 64, 1, 0);
    let came = stage.until(|| match stage.came() {
        None => is_closed(&socket).then_some(None),
        came => Some(came),
    });
    assert!(came.is_none(), "{came:?} in the name of the peer");
    unix::send(&end, b"x", &[]).unwrap();
    assert_eq!(impostor.result(), 0, "connected and sent");
    honest.send_msg(good, wire::EAGER, &[], b"of the peer");
    let came = stage.until(|| stage.came());
    assert!(matches!(came, Came::Done(c) if c.context == 1), "{came:?}");
}

#[test]
fn a_peer_has_a_limited_number_of_connections() {
    let stage = Stage::new();
    let (mut peer, _) = stage.peer();
    let first = peer.connect();
    for _ in 0..3 * CONNS_OF_PEER {
        peer.connect();
    }
    let count = || stage.with(|e| e.links.sock.conn_count());
    stage.until(|| (count() == CONNS_OF_PEER).then_some(()));
    peer.check_service(first);
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One connection's socket: the proof that the peer lives, the way to wake it, the answer and the goodbye.
//!
//! Not about opening it (`SoftPort`). See `unix(7)`.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use super::wire::{self, Greeting, PACKET_MAX, Packet};
use super::{Soft, handshake};
use crate::error::Reason;
use crate::life::Life;
use crate::segment::Side;
use crate::sys::epoll::Epoll;
use crate::sys::fork::PrivateFd;
use crate::sys::unix::{self, Credentials};
use crate::transport::{Farewell, Link, Shown, Signal};

#[derive(Debug)]
pub(super) struct SoftLink {
    /// `None`: ended.
    socket: Option<PrivateFd>,
    epoll: Arc<Epoll>,
    soft: Arc<Soft>,
    shown: Arc<Shown>,
    side: Side,
    answered: bool,
    /// The answer that could not be sent yet: too many descriptors in flight.
    welcome: Option<Greeting>,
    peer: Credentials,
    /// How many questions for its arena the peer has yet to answer.
    asked: u32,
    /// How often it got ours.
    given: u32,
}

/// An arena is mapped once; more than one answer is only owed to a peer that lost one.
const GIVEN_MAX: u32 = 16;

impl SoftLink {
    pub(super) fn new(
        socket: PrivateFd,
        epoll: Arc<Epoll>,
        soft: Arc<Soft>,
        shown: Arc<Shown>,
        peer: Credentials,
        welcome: Option<Greeting>,
    ) -> SoftLink {
        let side = if welcome.is_some() {
            Side::Acceptor
        } else {
            Side::Opener
        };
        let mut link = SoftLink {
            socket: Some(socket),
            epoll,
            soft,
            shown,
            side,
            answered: false,
            welcome,
            peer,
            asked: 0,
            given: 0,
        };
        link.send_welcome();
        link
    }

    fn send_welcome(&mut self) {
        let (Some(socket), Some(welcome)) = (&self.socket, &self.welcome) else {
            return;
        };
        match unix::send(
            socket,
            welcome.encode(),
            &handshake::descriptors(&self.shown, None),
        ) {
            Err(Errno::TOOMANYREFS | Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => {
                self.soft.raise_nofile();
            }
            // A peer that is gone is noticed by reading.
            Ok(()) | Err(_) => self.welcome = None,
        }
    }

    fn end(&mut self) {
        if let Some(socket) = self.socket.take() {
            self.epoll.remove(&socket);
        }
    }

    fn closed(&mut self, reason: Reason) -> Option<Signal> {
        if let (Reason::Corrupt, Some(socket)) = (reason, &self.socket) {
            let _ = unix::send(socket, &wire::reset(), &[]);
        }
        self.end();
        Some(Signal::Closed(reason))
    }

    /// Handles an end of file without a goodbye. A listener that closes in order refuses its callers first, so silence is
    /// death, whatever `/proc` says: the sockets of a dying process close before it is a zombie.
    fn broken_off(&mut self) -> Option<Signal> {
        self.closed(Reason::Died)
    }

    /// Answers a peer that wants to map what our windows lie in. If there is no room for the answer now it asks again.
    fn give_arena(&mut self) {
        let fd = self.shown.keys.as_ref().and_then(|keys| keys.arena_fd());
        let (Some(socket), Some(fd)) = (&self.socket, fd) else {
            return;
        };
        if self.given < GIVEN_MAX && unix::send(socket, &[wire::ARENA], &[fd]).is_ok() {
            self.given += 1;
        }
    }

    fn take_arena(&mut self, fds: &[OwnedFd]) -> Option<Signal> {
        let [fd] = fds else {
            return self.closed(Reason::Corrupt);
        };
        if self.asked == 0 {
            return self.closed(Reason::Corrupt);
        }
        self.asked -= 1;
        match handshake::map_arena(fd) {
            Ok(map) => Some(Signal::Shown(map)),
            Err(Reason::Corrupt) => self.closed(Reason::Corrupt),
            // No addresses left: then it is reached the other ways.
            Err(_) => Some(Signal::Wake),
        }
    }

    fn answer(&mut self, greeting: &Greeting, fds: &[OwnedFd]) -> Option<Signal> {
        if self.side == Side::Acceptor || self.answered {
            return self.closed(Reason::Corrupt);
        }
        self.answered = true;
        let life = Life::of(self.peer.pid);
        match handshake::remote(&self.soft, greeting, fds, &life, self.peer.uid) {
            Ok(remote) => Some(Signal::Up(Box::new(remote))),
            Err(reason) => self.closed(reason),
        }
    }
}

impl Link for SoftLink {
    fn pump(&mut self) -> Option<Signal> {
        if self.welcome.is_some() {
            self.send_welcome();
            if self.welcome.is_none() {
                // Until now the peer had no bell to ring: what it has published has to be looked for.
                return Some(Signal::Wake);
            }
        }
        let mut buffer = [0u8; PACKET_MAX];
        let mut retried = false;
        let received = loop {
            match unix::receive(self.socket.as_ref()?, &mut buffer) {
                Ok(received) => break received,
                Err(Errno::AGAIN) => return None,
                Err(Errno::INTR) => {}
                // Says once that the peer closed without reading all; what it sent before is still there.
                Err(Errno::CONNRESET) if !retried => retried = true,
                Err(_) => return self.broken_off(),
            }
        };
        if received.bytes == 0 {
            return self.broken_off();
        }
        let packet = buffer.get(..received.bytes).map(wire::decode);
        let Some(Ok(packet)) = packet.filter(|_| !received.cut) else {
            return self.closed(Reason::Corrupt);
        };
        match packet {
            Packet::Welcome(greeting) => self.answer(&greeting, &received.fds),
            Packet::Arena => self.take_arena(&received.fds),
            _ if !received.fds.is_empty() => self.closed(Reason::Corrupt),
            Packet::Wake => Some(Signal::Wake),
            Packet::Ask => {
                self.give_arena();
                Some(Signal::Wake)
            }
            Packet::Bye => self.closed(Reason::Orderly),
            Packet::Reset => self.closed(Reason::Reset),
            Packet::No(reason) if !self.answered && self.side == Side::Opener => self.closed(reason),
            Packet::No(_) | Packet::Hello(_) => self.closed(Reason::Corrupt),
        }
    }

    fn unsent(&self) -> bool {
        self.welcome.is_some()
    }

    fn wake(&mut self) {
        if let Some(socket) = &self.socket {
            // EAGAIN: it has not even read the earlier ones.
            let _ = unix::send(socket, &[wire::WAKE], &[]);
        }
    }

    fn ask(&mut self) {
        if let Some(socket) = &self.socket
            && unix::send(socket, &[wire::ASK], &[]).is_ok()
        {
            self.asked += 1;
        }
    }

    fn close(&mut self, how: Farewell) {
        if let Some(socket) = &self.socket {
            let said = match how {
                Farewell::Bye => unix::send(socket, &wire::bye(), &[]),
                Farewell::Reset => unix::send(socket, &wire::reset(), &[]),
                Farewell::Silent => Ok(()),
            };
            if let Err(errno) = said {
                log::debug!("goodbye not heard: {errno}");
            }
        }
        self.end();
    }
}

/// Tells a peer that it is not accepted. It may be gone already.
pub(super) fn refuse(socket: impl AsFd, reason: Reason) {
    let _ = match reason {
        Reason::Corrupt => unix::send(socket, &wire::reset(), &[]),
        _ => unix::send(socket, &wire::no(reason), &[]),
    };
}

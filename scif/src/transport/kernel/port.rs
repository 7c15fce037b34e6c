// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! A port over a driver: the endpoint that listens there, those that have called and not said who they are, and the set that
//! waits for all of them.
//!
//! Not about one connection once it is made (`link`). A driver names the endpoint that calls, which has a port of its own; at
//! which port its owner listens stands in the hello. The node is the driver's word, the port the caller's. Endpoints of one
//! process and transport meet without the driver.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno;
use scif_ring::BELL_BYTES;

use super::Kernel;
use super::link::{Arriving, Desk, KernelLink, Stream, errno, refused};
use super::relay::{Greeting, Said};
use crate::addr::PortId;
use crate::connection::ConnId;
use crate::epd::Failure;
use crate::error::{Error, Reason, Refusal, Result};
use crate::life::Life;
use crate::segment::{SEGMENT_BYTES, Side, write_header};
use crate::sys::epoll::Epoll;
use crate::sys::mmap::Mapping;
use crate::sys::time::now_ns;
use crate::transport::{Farewell, Opened, Port, Shown, Transport, Writers, conn_of, token};

/// Requests the driver lets wait: as many as the least of them.
const BACKLOG: i32 = 1024;
/// Requests taken from the listener per call.
const REQUESTS_PER_CALL: usize = 64;
/// Connected endpoints that have not said hello yet.
const MUTE_MAX: usize = 256;
/// How long they may take.
const MUTE_NS: u64 = 10_000_000_000;
/// How long a call is waited for before it is left to progress: that nobody listens is known by then.
const CALL_MS: i32 = 1;

/// Kinds of epoll token.
const CONN: u64 = 0;
const LISTENER: u64 = 1;
const MUTE: u64 = 2;
const NEAR: u64 = 3;

/// Who has called and said nothing so far.
#[derive(Debug)]
struct Mute {
    stream: Stream,
    from: PortId,
    hello: Arriving,
    since_ns: u64,
}

#[derive(Debug)]
pub(super) struct KernelPort {
    kernel: Arc<Kernel>,
    id: PortId,
    /// The same port for endpoints of this process; given up before the driver's, which another endpoint may have then.
    near: Box<dyn Port>,
    listener: Stream,
    desk: Arc<Desk>,
    /// In the order they came.
    mute: VecDeque<Mute>,
    /// Who said hello: from which port.
    guests: VecDeque<(Stream, PortId)>,
    tokens: Vec<u64>,
}

impl KernelPort {
    pub(super) fn bind(kernel: Arc<Kernel>, port: u16, shown: Shown) -> Result<KernelPort> {
        let listener = Stream::open(&kernel.device).map_err(|failure| os("scif_open", &failure))?;
        let wanted = PortId {
            node: kernel.node,
            port,
        };
        let port = listener
            .listen(port, BACKLOG)
            .map_err(|failure| match errno(&failure) {
                Errno::INVAL if port != 0 => Error::PortInUse(wanted),
                Errno::NOSPC => Error::NoPorts,
                _ => os("scif_bind", &failure),
            })?;
        let near = Arc::clone(&kernel.near).bind(port, shown)?;
        let bell = kernel.near.share("scif:bell", BELL_BYTES, Writers::Peers)?.map;
        bell.bell()?.set_sleeping(true);
        let epoll = Epoll::new().map_err(Error::os("epoll_create"))?;
        let any = ConnId {
            index: 0,
            generation: 0,
        };
        epoll
            .add(&listener, token(LISTENER, any))
            .map_err(Error::os("epoll_ctl"))?;
        epoll
            .add(near.wait_fd(), token(NEAR, any))
            .map_err(Error::os("epoll_ctl"))?;
        Ok(KernelPort {
            id: PortId {
                node: kernel.node,
                port,
            },
            kernel,
            listener,
            near,
            desk: Arc::new(Desk { epoll, port, bell }),
            mute: VecDeque::new(),
            guests: VecDeque::new(),
            tokens: Vec::new(),
        })
    }

    /// Takes who has called.
    fn take_requests(&mut self) {
        for _ in 0..REQUESTS_PER_CALL {
            let (from, stream) = match self.listener.accept() {
                Ok(Some(request)) => request,
                Ok(None) => return,
                Err(failure) => {
                    log::debug!("accept at {}: {failure}", self.id);
                    return;
                }
            };
            let id = ConnId {
                index: 0,
                generation: 0,
            };
            if let Err(errno) = self.desk.epoll.add(&stream, token(MUTE, id)) {
                log::debug!("epoll_ctl: {errno}");
                continue;
            }
            self.mute.push_back(Mute {
                stream,
                from,
                hello: Arriving::default(),
                since_ns: now_ns(),
            });
            if self.mute.len() > MUTE_MAX {
                self.mute.pop_front();
            }
        }
    }

    /// Hears those who have called: they become guests, or go.
    fn hear_mute(&mut self) {
        let now = now_ns();
        for mut mute in std::mem::take(&mut self.mute) {
            let refuse = |stream: &Stream, reason| {
                let _ = stream.send(&Greeting::no(reason).encode());
            };
            match mute.hello.hear(&mute.stream) {
                Ok(Some(Said::Hello(port))) => {
                    let node = mute.from.node;
                    self.guests.push_back((mute.stream, PortId { node, port }));
                }
                Ok(None) if now.saturating_sub(mute.since_ns) < MUTE_NS => self.mute.push_back(mute),
                Ok(_) => log::debug!("{} called {} and did not say who it is", mute.from, self.id),
                Err(reason) => {
                    log::debug!("{} called {}: {reason}", mute.from, self.id);
                    if let Reason::Refused(reason) = reason {
                        refuse(&mute.stream, reason);
                    }
                }
            }
        }
    }

    fn segment(&self) -> Result<Arc<Mapping>> {
        let segment = self
            .kernel
            .near
            .share("scif:conn", SEGMENT_BYTES, Writers::Peers)?
            .map;
        write_header(&segment)?;
        Ok(segment)
    }

    fn welcome(&mut self, stream: Stream, peer: PortId, id: ConnId) -> Result<Opened> {
        let segment = self.segment()?;
        let token = token(CONN, id);
        self.desk
            .epoll
            .change(&stream, token, false)
            .map_err(Error::os("epoll_ctl"))?;
        // The first bytes find an empty queue.
        let greeting = Greeting::welcome(self.id.port).encode();
        while matches!(stream.send(&greeting), Err(Failure::Interrupted)) {}
        let link = KernelLink::acceptor(&self.desk, stream, &segment, token)?;
        Ok(Opened {
            peer,
            side: Side::Acceptor,
            segment,
            link: Box::new(link),
            life: Life::of(0),
            remote: Some(self.desk.remote()),
        })
    }
}

fn os(call: &'static str, failure: &Failure) -> Error {
    Error::Os {
        call,
        errno: errno(failure),
    }
}

impl Port for KernelPort {
    fn id(&self) -> PortId {
        self.id
    }

    fn connect(&mut self, dst: PortId, id: ConnId) -> Result<Opened> {
        match self.near.connect(dst, id) {
            // Not of this process.
            Err(Error::Refused(_)) => {}
            done => return done,
        }
        let segment = self.segment()?;
        let stream = Stream::open(&self.kernel.device).map_err(|failure| os("scif_open", &failure))?;
        let mut connected = stream.connect(dst).map_err(|failure| refused(&failure, dst))?;
        if !connected {
            stream.wait_room(CALL_MS);
            connected = stream.connect(dst).map_err(|failure| refused(&failure, dst))?;
        }
        let token = token(CONN, id);
        self.desk
            .epoll
            .add_with_room(&stream, token)
            .map_err(Error::os("epoll_ctl"))?;
        let link = KernelLink::opener(&self.desk, stream, &segment, token, dst, connected)?;
        Ok(Opened {
            peer: dst,
            side: Side::Opener,
            segment,
            link: Box::new(link),
            life: Life::of(0),
            remote: None,
        })
    }

    fn poll(&mut self, ready: &mut Vec<ConnId>) {
        let mut tokens = std::mem::take(&mut self.tokens);
        if let Err(errno) = self.desk.epoll.wait(Some(0), |token| tokens.push(token)) {
            log::debug!("epoll_wait: {errno}");
        }
        let mut called = self
            .mute
            .front()
            .is_some_and(|oldest| now_ns().saturating_sub(oldest.since_ns) >= MUTE_NS);
        for token in tokens.drain(..) {
            match token >> 62 {
                CONN => ready.push(conn_of(token)),
                LISTENER => {
                    self.take_requests();
                    called = true;
                }
                MUTE => called = true,
                _ => {}
            }
        }
        self.tokens = tokens;
        if called {
            self.hear_mute();
        }
        self.near.poll(ready);
    }

    fn accept(&mut self, id: ConnId) -> Option<Opened> {
        if let Some(opened) = self.near.accept(id) {
            return Some(opened);
        }
        while let Some((stream, peer)) = self.guests.pop_front() {
            match self.welcome(stream, peer, id) {
                Ok(opened) => return Some(opened),
                Err(error) => log::debug!("a connection of {peer} was not accepted: {error}"),
            }
        }
        None
    }

    fn listener(&mut self, port: PortId) -> Option<i32> {
        self.near.listener(port)
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.desk.epoll.as_fd()
    }

    fn close(&mut self, how: Farewell) {
        self.near.close(how);
        if how == Farewell::Silent {
            return;
        }
        let closed = Greeting::no(Refusal::Closed).encode();
        let mute = self.mute.iter().map(|mute| &mute.stream);
        for stream in mute.chain(self.guests.iter().map(|(stream, _)| stream)) {
            let _ = stream.send(&closed);
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! A port over the calls of `scif.h`: the listening endpoint, its connect attempts, and the epoll
//! set of its owner.
//!
//! Not about an established connection (`link`). The calls report a connecting endpoint, which has
//! a port of its own; the hello contains the port at which its owner listens. So the driver or the
//! engine vouches for the node, but only the peer for the port. Endpoints of one process and
//! transport meet without the calls. No function of this file waits for a driver or a peer, except
//! a close: the threads do.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use scif_ring::BELL_BYTES;

use super::Scif;
use super::acceptor::{AcceptThread, GreetedPeer};
use super::calls::Calls;
use super::key_server::KeyServer;
use super::link::{CONN, LinkPeer, NEWS, PortShared, ScifLink};
use super::relay::RelayGreeting;
use super::stream::Stream;
use super::windows::{self, PeerNode};
use crate::addr::PortId;
use crate::error::{Error, Result};
use crate::export::{Shared, Writers};
use crate::failure::Failure;
use crate::liveness::ProcessProof;
use crate::peer_windows::WindowCounts;
use crate::segment::{SEGMENT_BYTES, Side, write_header};
use crate::slab::ConnId;
use crate::sys::errno::keep_errno;
use crate::sys::fork::Maker;
use crate::sys::mmap::Mapping;
use crate::transport::{CloseKind, Hold, Init, Opened, Port, Shown, Transport, conn_of, token};

/// Length of the driver's queue of requests: the least maximum of all drivers.
const BACKLOG: i32 = 1024;
/// Time for which a closing port waits until its peers have taken all sent data. The thread
/// continues afterwards.
const LINGER: Duration = Duration::from_secs(1);

/// Kind of the epoll token of endpoints of this process.
const NEAR: u64 = 3;

#[derive(Debug)]
pub(super) struct ScifPort {
    scif: Arc<Scif>,
    id: PortId,
    /// Counterpart for endpoints of this process, with this port number. It is closed before the
    /// driver's port, which another endpoint may then take.
    near: Box<dyn Port>,
    acceptor: AcceptThread,
    calls: Calls<GreetedPeer>,
    shared: Arc<PortShared>,
    /// Windows on the memory of our keys.
    key_server: Option<Arc<KeyServer>>,
    maker: Maker,
    closed: bool,
    tokens: Vec<u64>,
}

impl ScifPort {
    pub(super) fn bind(scif: Arc<Scif>, port: u16, shown: Shown) -> Result<ScifPort> {
        let listener = Stream::open(&scif.calls).map_err(|failure| os("scif_open", &failure))?;
        let wanted = PortId::new(scif.node, port);
        let port = listener.listen(port, BACKLOG).map_err(|failure| match failure.errno() {
            Errno::INVAL if port != 0 => Error::PortInUse(wanted),
            Errno::NOSPC => Error::NoPorts,
            _ => os("scif_bind", &failure),
        })?;
        let id = PortId::new(scif.node, port);
        let keys = shown.keys.clone().filter(|_| scif.calls.key_windows().is_some());
        let near = Arc::clone(&scif.near).bind(port, shown)?;
        let bell = scif.near.share("scif:bell", BELL_BYTES, Writers::Peers)?.map;
        bell.bell()?.set_sleeping(true);
        let sender = scif.sender()?;
        let calls = Calls::new(&scif.attempts, &sender);
        let key_server = keys.map(|keys| KeyServer::new(&keys, &sender)).transpose()?;
        let shared = Arc::new(PortShared::new(bell, sender, key_server.clone())?);
        let none = ConnId { index: 0, generation: 0 };
        shared.epoll.add(near.wait_fd(), token(NEAR, none)).map_err(Error::os("epoll_ctl"))?;
        Ok(ScifPort {
            acceptor: AcceptThread::open(id, listener, &shared, key_server.clone())?,
            scif,
            id,
            near,
            calls,
            shared,
            key_server,
            maker: Maker::here(),
            closed: false,
            tokens: Vec::new(),
        })
    }

    fn segment(&self) -> Result<Arc<Mapping>> {
        let segment = self.scif.near.share("scif:conn", SEGMENT_BYTES, Writers::Peers)?.map;
        write_header(&segment)?;
        Ok(segment)
    }

    /// Returns a connection over a greeted stream; an acceptor sends the welcome.
    fn join(&self, greeted: GreetedPeer, id: ConnId, side: Side) -> Result<Opened> {
        let token = token(CONN, id);
        let greeting = match side {
            Side::Opener => greeted.rings.confirmation(self.id.port, greeted.pass.get()),
            Side::Acceptor => RelayGreeting::welcome(self.id.port, greeted.pass.get()),
        };
        let joined = self.segment().and_then(|segment| {
            greeted.stream.greet(&greeting).map_err(|failure| os("scif_send", &failure))?;
            self.shared.epoll.add(&greeted.stream, token).map_err(Error::os("epoll_ctl"))?;
            Ok(segment)
        });
        let segment = match joined {
            Ok(segment) => segment,
            Err(error) => {
                self.shared.sender.dispose(greeted);
                return Err(error);
            }
        };
        let GreetedPeer { stream, from: peer, rings, pass, theirs } = greeted;
        let windows = rings.windows.clone();
        let place = if windows.is_some() { "lie in windows" } else { "are relayed" };
        log::debug!("the rings between {} and {peer} {place}", self.id);
        let remote = (side == Side::Acceptor).then(|| self.shared.remote(&rings));
        let ends = LinkPeer { token, peer, pass, theirs };
        let link = ScifLink::new(&self.shared, stream, &segment, rings, ends, side)?;
        Ok(Opened {
            peer,
            side,
            segment,
            windows,
            link: Box::new(link),
            liveness: ProcessProof::of(0),
            remote,
        })
    }

    fn reach(&mut self, dst: PortId, id: ConnId) -> Result<Opened> {
        match self.near.connect(dst, id) {
            // Not a port of this process.
            Err(Error::Refused(_)) => {}
            done => return done,
        }
        for died in self.shared.take_died() {
            self.calls.forget(died);
        }
        let calls = &self.scif.calls;
        let port = self.id.port;
        let node = PeerNode { number: dst.node, is_remote: dst.node != self.id.node };
        let passes = Arc::clone(&self.shared.passes);
        let prepare = || {
            let mut stream = Stream::open(calls).map_err(|failure| os("scif_open", &failure))?;
            Ok(move || {
                stream.connect(dst)?;
                let pass = passes.issue();
                let rings = windows::open(&mut stream, (port, pass.get()), node)?;
                Ok(GreetedPeer { stream, from: dst, rings, pass, theirs: None })
            })
        };
        let shared = Arc::clone(&self.shared);
        let greeted = self.calls.attempt(dst, prepare, move || shared.signal())?;
        self.join(greeted, id, Side::Opener)
    }

    fn collect_ready(&mut self, ready: &mut Vec<ConnId>) {
        let mut tokens = std::mem::take(&mut self.tokens);
        if let Err(errno) = self.shared.epoll.wait(Some(0), |token| tokens.push(token)) {
            log::debug!(
                "epoll_wait of a port failed: {errno}; it is repeated by the next progress call"
            );
        }
        for token in tokens.drain(..) {
            match token >> 62 {
                CONN => ready.push(conn_of(token)),
                NEWS => self.shared.take_news(ready),
                _ => {}
            }
        }
        self.tokens = tokens;
        self.calls.sweep();
        self.near.poll(ready);
    }

    fn accept_next(&mut self, id: ConnId) -> Option<Opened> {
        if let Some(opened) = self.near.accept(id) {
            return Some(opened);
        }
        while let Some(greeted) = self.acceptor.next() {
            let from = greeted.from;
            match self.join(greeted, id, Side::Acceptor) {
                Ok(opened) => return Some(opened),
                Err(error) => log::debug!("connection of {from} not accepted: {error}"),
            }
        }
        None
    }
}

fn os(call: &'static str, failure: &Failure) -> Error {
    Error::Os { call, errno: failure.errno() }
}

// As for the links, each entry point on the path of sends and polls restores errno.
impl Port for ScifPort {
    fn id(&self) -> PortId {
        self.id
    }

    fn connect(&mut self, dst: PortId, id: ConnId) -> Result<Opened> {
        keep_errno(|| self.reach(dst, id))
    }

    fn poll(&mut self, ready: &mut Vec<ConnId>) {
        keep_errno(|| self.collect_ready(ready));
    }

    fn accept(&mut self, id: ConnId) -> Option<Opened> {
        keep_errno(|| self.accept_next(id))
    }

    fn listener(&mut self, port: PortId) -> Option<i32> {
        self.near.listener(port)
    }

    fn whereabouts(&self, port: PortId) -> String {
        format!(
            "This process uses {}. Check that the peer runs, with the same FI_SCIF_TRANSPORT, \
             and that node {} is online",
            self.scif.settings(),
            port.node
        )
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.shared.epoll.as_fd()
    }

    fn revoke(&mut self, key: u64) {
        if let Some(server) = &self.key_server {
            keep_errno(|| server.end_loan(key));
        }
    }

    fn window_counts(&self) -> WindowCounts {
        let counts = self.key_server.as_ref().map(|server| server.counts()).unwrap_or_default();
        let (stream_sends, stream_bytes) = self.shared.lingering.sent();
        WindowCounts { fences: self.shared.fences.get(), stream_sends, stream_bytes, ..counts }
    }

    fn set_sleeping(&mut self, sleeping: bool) {
        self.shared.set_sleeping(sleeping);
    }

    fn close(&mut self, how: CloseKind) {
        // In a forked child the threads belong to the parent, and so do locks that they may hold.
        if self.closed || self.maker.is_ancestor() {
            return;
        }
        self.closed = true;
        self.near.close(how);
        self.calls.abandon();
        self.acceptor.close(how);
        if let Some(server) = &self.key_server {
            server.close();
        }
        if how != CloseKind::Abandon && !self.shared.lingering.wait(LINGER) {
            log::debug!("port {} closed; data that its peers have not taken is lost", self.id);
        }
    }
}

impl Drop for ScifPort {
    fn drop(&mut self) {
        self.close(CloseKind::Abandon);
    }
}

impl Transport for Scif {
    fn shared_table(
        self: Arc<Self>,
        name: &str,
        len: usize,
        make: Option<Init<'_>>,
    ) -> Result<Box<dyn Hold>> {
        self.table(name, len, make)
    }

    fn share(&self, name: &'static str, len: usize, writers: Writers) -> Result<Shared> {
        self.near.share(name, len, writers)
    }

    fn bind(self: Arc<Self>, port: u16, shown: Shown) -> Result<Box<dyn Port>> {
        Ok(Box::new(ScifPort::bind(self, port, shown)?))
    }

    fn host_hash(&self) -> u32 {
        self.host_hash
    }

    fn settings(&self) -> String {
        format!("{}, as node {}", self.calls.name(), self.node)
    }
}

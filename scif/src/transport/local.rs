// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Transport between the endpoints of one `Node` in one process: the test double of the other
//! transports. With a driver, such endpoints meet through it as well.
//!
//! Not about speed. Names are kept in the node, memory is anonymous, and a link is a pair of
//! queues; rings, doorbells and keys are the real ones.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use scif_ring::BELL_BITS;

use crate::addr::{DYNAMIC_PORTS, PortId, host_hash};
use crate::config::Config;
use crate::error::{Error, Reason, Refusal, Result};
use crate::export::{Shared, Writers};
use crate::liveness::ProcessProof;
use crate::memory::PeerMemory;
use crate::segment::{SEGMENT_BYTES, Side, write_header};
use crate::slab::ConnId;
use crate::sys::epoll::{Epoll, Event};
use crate::sys::errno::lock;
use crate::sys::mmap::Mapping;
use crate::sys::process;
use crate::transport::{CloseKind, Link, LinkUpdate, Opened, Port, Remote, Shown, Transport};

/// Maximum number of waiting connection requests at a port; further ones get [`Error::Again`].
const BACKLOG: usize = 4096;

/// All ports of a node.
#[derive(Debug)]
pub(crate) struct Local {
    node: u16,
    host_hash: u32,
    doors: Mutex<HashMap<u16, Weak<Door>>>,
}

/// A port, as other ports reach it.
#[derive(Debug)]
struct Door {
    inbox: Mutex<Inbox>,
    event: Event,
    shown: Shown,
}

#[derive(Debug, Default)]
struct Inbox {
    requests: VecDeque<Request>,
    ready: Vec<ConnId>,
}

#[derive(Debug)]
struct Request {
    from: PortId,
    segment: Arc<Mapping>,
    pipe: Arc<Pipe>,
    remote: Remote,
}

/// Both directions of a link; the opener reads index 0.
#[derive(Debug, Default)]
struct Pipe {
    ends: [Mutex<End>; 2],
}

#[derive(Debug, Default)]
struct End {
    signals: VecDeque<LinkUpdate>,
    /// Port to notify for this end's reader, once it has an id for the connection.
    reader: Option<(Arc<Door>, ConnId)>,
}

impl Pipe {
    fn end(&self, side: Side) -> MutexGuard<'_, End> {
        let [opener, acceptor] = &self.ends;
        lock(match side {
            Side::Opener => opener,
            Side::Acceptor => acceptor,
        })
    }

    /// Adds a signal to the queue of `to`, and notifies its port.
    fn post(&self, to: Side, signal: LinkUpdate) {
        let mut end = self.end(to);
        end.signals.push_back(signal);
        if let Some((door, id)) = &end.reader {
            lock(&door.inbox).ready.push(*id);
            door.event.signal();
        }
    }

    /// Sets `door` as the port to notify for `side`; also for signals that already wait.
    fn attach(&self, side: Side, door: Arc<Door>, id: ConnId) {
        let mut end = self.end(side);
        if !end.signals.is_empty() {
            lock(&door.inbox).ready.push(id);
            door.event.signal();
        }
        end.reader = Some((door, id));
    }
}

impl Local {
    pub(crate) fn open(config: &Config) -> Result<Local> {
        let host_hash = host_hash(None, config.domain.as_deref().unwrap_or_default())
            .map_err(Error::os("stat"))?;
        Ok(Local::of(config.node, host_hash))
    }

    /// Returns the transport for endpoints of `node` in this process.
    pub(crate) fn of(node: u16, host_hash: u32) -> Local {
        Local { node, host_hash, doors: Mutex::default() }
    }
}

impl Transport for Local {
    fn share(&self, _name: &'static str, len: usize, _writers: Writers) -> Result<Shared> {
        let map = Mapping::anonymous(len).map_err(Error::os("mmap"))?;
        Ok(Shared { map: Arc::new(map), fd: None })
    }

    fn bind(self: Arc<Self>, port: u16, shown: Shown) -> Result<Box<dyn Port>> {
        let mut doors = lock(&self.doors);
        let free = |doors: &HashMap<u16, Weak<Door>>, port: &u16| {
            doors.get(port).is_none_or(|door| door.strong_count() == 0)
        };
        let port = match port {
            0 => DYNAMIC_PORTS.into_iter().find(|port| free(&doors, port)).ok_or(Error::NoPorts)?,
            port if free(&doors, &port) => port,
            port => {
                return Err(Error::PortInUse(PortId::new(self.node, port)));
            }
        };
        let event = Event::new().map_err(Error::os("eventfd"))?;
        let epoll = Epoll::new().map_err(Error::os("epoll_create"))?;
        epoll.add(&event, 0).map_err(Error::os("epoll_ctl"))?;
        let door = Arc::new(Door { inbox: Mutex::default(), event, shown });
        doors.insert(port, Arc::downgrade(&door));
        drop(doors);
        let id = PortId::new(self.node, port);
        Ok(Box::new(LocalPort {
            local: self,
            id,
            door,
            epoll,
            requests: VecDeque::new(),
            closed: false,
        }))
    }

    fn host_hash(&self) -> u32 {
        self.host_hash
    }

    fn settings(&self) -> String {
        format!("node {} of process {}", self.node, std::process::id())
    }
}

#[derive(Debug)]
struct LocalPort {
    local: Arc<Local>,
    id: PortId,
    door: Arc<Door>,
    epoll: Epoll,
    requests: VecDeque<Request>,
    closed: bool,
}

impl LocalPort {
    fn remote(&self, id: ConnId) -> Remote {
        let shown = &self.door.shown;
        #[expect(clippy::cast_possible_truncation, reason = "less than BELL_BITS")]
        let bell_bit = (id.index as usize % BELL_BITS) as u32;
        Remote {
            bell: Arc::clone(&shown.bell.map),
            bell_bit,
            keys: shown.keys.as_ref().map(|keys| Arc::clone(&keys.shared().map)),
            memory: PeerMemory::own(),
            asymmetric: false,
        }
    }

    fn opened(
        &self,
        peer: PortId,
        side: Side,
        segment: Arc<Mapping>,
        pipe: Arc<Pipe>,
        remote: Option<Remote>,
    ) -> Opened {
        let link = LocalLink { pipe: Some(pipe), side };
        Opened {
            peer,
            side,
            segment,
            windows: None,
            link: Box::new(link),
            liveness: ProcessProof::of(process::pid()),
            remote,
        }
    }
}

impl Port for LocalPort {
    fn id(&self) -> PortId {
        self.id
    }

    fn connect(&mut self, dst: PortId, id: ConnId) -> Result<Opened> {
        let door = match lock(&self.local.doors).get(&dst.port).filter(|_| dst.node == self.id.node)
        {
            Some(door) => door.upgrade().ok_or(Error::Refused(dst))?,
            None => return Err(Error::Refused(dst)),
        };
        let segment = self.local.share("scif:conn", SEGMENT_BYTES, Writers::Peers)?.map;
        write_header(&segment)?;
        let pipe = Arc::new(Pipe::default());
        pipe.attach(Side::Opener, Arc::clone(&self.door), id);
        let mut inbox = lock(&door.inbox);
        if inbox.requests.len() >= BACKLOG {
            return Err(Error::Again);
        }
        inbox.requests.push_back(Request {
            from: self.id,
            segment: Arc::clone(&segment),
            pipe: Arc::clone(&pipe),
            remote: self.remote(id),
        });
        drop(inbox);
        door.event.signal();
        Ok(self.opened(dst, Side::Opener, segment, pipe, None))
    }

    fn poll(&mut self, ready: &mut Vec<ConnId>) {
        if self.door.event.drain() {
            let mut inbox = lock(&self.door.inbox);
            ready.append(&mut inbox.ready);
            self.requests.append(&mut inbox.requests);
        }
    }

    fn accept(&mut self, id: ConnId) -> Option<Opened> {
        let Request { from, segment, pipe, remote } = self.requests.pop_front()?;
        pipe.post(Side::Opener, LinkUpdate::Up(Box::new(self.remote(id))));
        pipe.attach(Side::Acceptor, Arc::clone(&self.door), id);
        Some(self.opened(from, Side::Acceptor, segment, pipe, Some(remote)))
    }

    fn listener(&mut self, port: PortId) -> Option<i32> {
        let doors = lock(&self.local.doors);
        let door = doors.get(&port.port).filter(|_| port.node == self.id.node)?;
        door.upgrade().map(|_| process::pid())
    }

    fn whereabouts(&self, port: PortId) -> String {
        format!("Only endpoints of this process can have {port}")
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn close(&mut self, how: CloseKind) {
        if self.closed {
            return;
        }
        self.closed = true;
        lock(&self.local.doors).remove(&self.id.port);
        let reason = match how {
            CloseKind::Abandon => Reason::Died,
            CloseKind::Graceful | CloseKind::Reset => Reason::Refused(Refusal::Closed),
        };
        let waiting = std::mem::take(&mut lock(&self.door.inbox).requests);
        for request in self.requests.drain(..).chain(waiting) {
            request.pipe.post(Side::Opener, LinkUpdate::Closed(reason));
        }
    }
}

impl Drop for LocalPort {
    fn drop(&mut self) {
        self.close(CloseKind::Abandon);
    }
}

#[derive(Debug)]
struct LocalLink {
    /// `None` after the end.
    pipe: Option<Arc<Pipe>>,
    side: Side,
}

impl Link for LocalLink {
    fn next_event(&mut self) -> Option<LinkUpdate> {
        let mut end = self.pipe.as_ref()?.end(self.side);
        let signal = end.signals.pop_front();
        // One notification stands for one `next_event`, so the remaining signals need another one.
        if let (Some((door, id)), false) = (&end.reader, end.signals.is_empty()) {
            lock(&door.inbox).ready.push(*id);
            door.event.signal();
        }
        signal
    }

    fn unsent(&self) -> bool {
        false
    }

    fn wake(&mut self) {
        if let Some(pipe) = &self.pipe {
            pipe.post(self.side.other(), LinkUpdate::Wake);
        }
    }

    fn close(&mut self, how: CloseKind) {
        let Some(pipe) = self.pipe.take() else { return };
        pipe.end(self.side).reader = None;
        let reason = match how {
            CloseKind::Graceful => Reason::Orderly,
            CloseKind::Reset => Reason::Reset,
            CloseKind::Abandon => Reason::Died,
        };
        pipe.post(self.side.other(), LinkUpdate::Closed(reason));
    }
}

impl Drop for LocalLink {
    fn drop(&mut self) {
        self.close(CloseKind::Abandon);
    }
}

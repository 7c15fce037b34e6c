// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The calls of `scif.h` on a SISCI library: each call as segments, copies and data interrupts, so
//! that the transport `scif` runs between nodes of an NTB or SISCI network.
//!
//! | call | by |
//! |---|---|
//! | bind, listen | a segment whose id names the port, and which contains the way to the process |
//! | connect, accept, send | frames in data interrupts, one interrupt for each process |
//! | end of a process | the end of its presence segment, to which each peer is connected |
//! | windows | segments, made by the library or on pages of the program |
//! | RMA | `SCIMemCpy` by the calling thread; a sequence checks the arrival |
//!
//! Only functions of the public interface are used. Not about rings and keys (`transport::scif`).

mod abi;
mod callbacks;
mod endpoint;
mod frame;
mod functions;
mod hub;
mod inbox;
mod library;
mod link;
mod windows;

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use scif_ring::Mem;

use self::endpoint::{Peer, SisciEndpoint};
use self::hub::Hub;
use self::windows::{OwnSegment, PagesUse, RMA};
use crate::addr::PortId;
use crate::config::Config;
use crate::error;
use crate::error::Error;
use crate::failure::Failure;
use crate::fence::Signal;
use crate::scif_calls::{ScifCalls, WindowKind};
use crate::sys::descriptor;
use crate::sys::errno::lock;
use crate::sys::mmap::Mapping;
use crate::sys::time::now_ns;
use crate::window_calls::{RmaMode, RmaWay, WindowAccess, WindowCalls};

/// Access of windows in which rings lie: reading and writing.
const ALL: u32 = 3;
/// Bytes that one call takes from a stream into a buffer of its own.
const RECEIVE_MAX: usize = 4096;
/// Time for each window of one close after the limit is over, which stopped peers may have used. A
/// shorter time ends windows under the copies of other peers.
const GRACE: Duration = Duration::from_millis(5);

/// Endpoints over a SISCI library, named by descriptors.
#[derive(Debug)]
pub(crate) struct Sisci {
    hub: Arc<Hub>,
    node: u16,
    endpoints: Mutex<HashMap<RawFd, Arc<SisciEndpoint>>>,
    /// Time for which `scif_connect` waits to be accepted.
    connect_limit: Duration,
    /// Time for which the end of a window waits for copies of the peer.
    rest_limit: Duration,
}

impl Sisci {
    /// Joins the node of the first adapter.
    ///
    /// # Errors
    /// No library, no adapter, or a node id above those of SCIF.
    pub(crate) fn open(config: &Config) -> error::Result<Sisci> {
        let hub = Hub::open()?;
        let id = hub.library.node();
        let node = u16::try_from(id).map_err(|_| {
            let tried = format!("node id {id} of {} is above {}", hub.library.name(), u16::MAX);
            Error::NoDriver { tried, errno: rustix::io::Errno::RANGE }
        })?;
        Ok(Sisci {
            hub,
            node,
            endpoints: Mutex::default(),
            connect_limit: Duration::from_millis(config.connect_timeout_ms),
            rest_limit: Duration::from_nanos(config.window_rest_ns),
        })
    }

    /// Returns the limit of each wait for a process that may be stopped, in milliseconds.
    fn limit_ms(&self) -> u32 {
        u32::try_from(self.connect_limit.as_millis()).unwrap_or(abi::INFINITE_TIMEOUT)
    }

    fn endpoint(&self, fd: RawFd) -> Result<Arc<SisciEndpoint>, Failure> {
        lock(&self.endpoints).get(&fd).cloned().ok_or(Failure::NotAnEndpoint)
    }
}

impl ScifCalls for Sisci {
    fn open(&self) -> Result<RawFd, Failure> {
        let endpoint = SisciEndpoint::new()?;
        let fd = descriptor::release(endpoint.descriptor()?);
        lock(&self.endpoints).insert(fd, endpoint);
        Ok(fd)
    }

    fn close(&self, fd: RawFd) {
        // Removed before the number is free.
        let endpoint = lock(&self.endpoints).remove(&fd);
        if let Some(endpoint) = endpoint {
            self.hub.inbox.unlisten(&endpoint);
            let rest = endpoint.close();
            self.hub.inbox.remove(rest.token);
            drop(rest);
        }
        let _ = descriptor::close(fd);
    }

    fn bind(&self, fd: RawFd, port: u16) -> Result<u16, Failure> {
        let endpoint = self.endpoint(fd)?;
        endpoint.bind(self.hub.bind(port)?)
    }

    fn listen(&self, fd: RawFd, _backlog: i32) -> Result<(), Failure> {
        let endpoint = self.endpoint(fd)?;
        // Entered first: a peer may find the segment as soon as it is offered.
        endpoint.listen(|port| {
            self.hub.inbox.listen(port.number, &endpoint);
            Ok(port.card.offer()?)
        })
    }

    fn connect(&self, fd: RawFd, dst: PortId) -> Result<(), Failure> {
        let endpoint = self.endpoint(fd)?;
        let process = self.hub.find(u32::from(dst.node), dst.port, self.limit_ms())?;
        let link =
            self.hub.link(process, self.limit_ms()).map_err(abi::SciCode::connect_failure)?;
        let token = self.hub.enter(&endpoint);
        let send = |from| self.hub.send_request(&link, token, (dst.port, from));
        if let Err(failure) = endpoint.connect(Arc::clone(&link), token, send) {
            self.hub.inbox.remove(token);
            return Err(failure);
        }
        endpoint.connected(self.connect_limit).inspect_err(|_| {
            // In this order: an answer finds either the endpoint or the given-up request.
            self.hub.inbox.give_up(token, &link);
            if endpoint.give_up() {
                self.hub.inbox.forget(token);
            }
        })
    }

    fn accept_into(&self, fd: RawFd, new: RawFd) -> Result<PortId, Failure> {
        let (listener, endpoint) = (self.endpoint(fd)?, self.endpoint(new)?);
        let (request, link) = listener.next_request()?;
        let token = self.hub.enter(&endpoint);
        let peer = Peer { link: Arc::clone(&link), token: request.token };
        let accepted = match u16::try_from(link.peer().node) {
            // A peer that is gone is noticed by the greeting.
            Ok(node) => endpoint.accept(peer, token).map(|()| PortId::new(node, request.from)),
            Err(_) => Err(Failure::Again),
        };
        accepted.inspect_err(|_| {
            self.hub.inbox.remove(token);
            link.refuse(request.token);
        })
    }

    fn send(&self, fd: RawFd, src: &Mem) -> Result<usize, Failure> {
        let endpoint = self.endpoint(fd)?;
        let mut bytes = vec![0; src.len()];
        src.copy_to_slice(&mut bytes);
        endpoint.send(&bytes, self.hub.chunk)
    }

    fn receive(&self, fd: RawFd, dst: &Mem) -> Result<usize, Failure> {
        let endpoint = self.endpoint(fd)?;
        let mut bytes = [0; RECEIVE_MAX];
        let len = bytes.len().min(dst.len());
        let to = bytes.get_mut(..len).unwrap_or_default();
        let n = endpoint.receive(to)?;
        dst.copy_from_slice(to.get(..n).unwrap_or_default());
        Ok(n)
    }

    fn window_kind(&self) -> Option<WindowKind> {
        Some(WindowKind::Segment)
    }

    fn share(&self, fd: RawFd, len: usize) -> Result<(Mapping, i64), Failure> {
        let endpoint = self.endpoint(fd)?;
        let segment = Arc::new(self.hub.library.segment(None, len, None)?);
        let map = segment.map(len)?;
        map.write(&vec![0; len]);
        segment.offer()?;
        let id = segment.id();
        let offset = endpoint.add_window(
            None,
            (0, len),
            (id, ALL),
            OwnSegment::Made(Arc::clone(&segment)),
        )?;
        let mapping = Mapping::held(map.address(), len, Box::new(map))?;
        Ok((mapping, offset))
    }

    fn map(&self, fd: RawFd, len: usize, offset: i64) -> Result<Mapping, Failure> {
        let window = self.endpoint(fd)?.peer_window_at(offset)?;
        let map = window.map(&self.hub.library, self.limit_ms())?;
        if map.size() < len || window.start() != 0 {
            return Err(Failure::NoWindow);
        }
        Ok(Mapping::held(map.address(), len, Box::new(map))?)
    }

    fn key_windows(&self) -> Option<&dyn WindowCalls> {
        Some(self)
    }

    fn nodes(&self) -> Result<(Vec<u16>, u16), Failure> {
        Ok((vec![self.node], self.node))
    }

    fn name(&self) -> String {
        format!("SISCI ({})", self.hub.library.name())
    }
}

impl WindowCalls for Sisci {
    fn register_at(
        &self,
        fd: RawFd,
        memory: (usize, usize),
        offset: i64,
        access: WindowAccess,
    ) -> Result<(), Failure> {
        let endpoint = self.endpoint(fd)?;
        let pages = PagesUse::new(&self.hub.pages, &self.hub.library, memory)?;
        let place = (pages.start, memory.1);
        let segment = (pages.id, access.flags().unsigned_abs() | RMA);
        endpoint.add_window(Some(offset), place, segment, OwnSegment::Program(pages)).map(drop)
    }

    /// Refuses all: pages would move for one message. Its payload crosses the ring.
    fn lend_at(&self, _fd: RawFd, _memory: (usize, usize), _offset: i64) -> Result<(), Failure> {
        Err(Failure::NotSupported)
    }

    fn unregister(&self, fd: RawFd, offset: i64, _len: usize) -> Result<(), Failure> {
        let endpoint = self.endpoint(fd)?;
        endpoint.withdraw(offset)?;
        endpoint.end_withdrawn(offset, self.rest_limit).map(drop)
    }

    fn hide(&self, fd: RawFd, offset: i64, _len: usize) -> Result<(), Failure> {
        self.endpoint(fd)?.withdraw(offset)
    }

    fn unregister_hidden(
        &self,
        fd: RawFd,
        (offset, _): (i64, usize),
        since_ns: u64,
    ) -> Result<(), Failure> {
        let waited = Duration::from_nanos(now_ns().saturating_sub(since_ns));
        let limit = self.rest_limit.saturating_sub(waited).max(GRACE);
        self.endpoint(fd)?.end_withdrawn(offset, limit).map(drop)
    }

    fn transfer(
        &self,
        fd: RawFd,
        way: RmaWay,
        near: &Mem,
        far: i64,
        _mode: RmaMode,
    ) -> Result<(), Failure> {
        let window = self.endpoint(fd)?.peer_window(far)?;
        window.copy(near, far, way == RmaWay::Read)
    }

    /// Returns a length that no RMA has: each is executed before its call returns.
    fn dma_min(&self) -> Option<u64> {
        Some(u64::MAX)
    }

    /// Fails, since no RMA by DMA was started.
    fn signal_after_own(&self, _fd: RawFd, _signal: Signal) -> Result<(), Failure> {
        Err(Failure::NotSupported)
    }
}

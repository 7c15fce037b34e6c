// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Table of the endpoints of a process, by descriptor number, and the list that the service thread
//! watches.
//!
//! Not about an endpoint's calls, nor about the work of the thread (`service`). A lookup in the
//! table needs no system call. An unknown number (inherited, or made by dup) is identified once by
//! fstat. The thread starts with the first endpoint and again in a forked child.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustix::io::Errno;
use scif::names::Names;
use scif::sorted::SortedMap;
use scif::sys::epoll::{self, Epoll};
use scif::sys::{descriptor, fork, pages, process, thread};
use scif::{Config, PortId};
use scif_ring::counter::{AtomicCounter, AtomicFlag};

use crate::dma::Workers;
use crate::endpoint::Epd;
use crate::failure::{Failure, Result};
use crate::lock::take;
use crate::node_events::NodeEvents;
use crate::nodes;
use crate::pins::Pins;
use crate::stat::Stats;
use crate::state::State;
use crate::window::{Filled, InflightDsts, OrphanArenas, TriedBack};

/// Sources of events for the service thread.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u64)]
pub(crate) enum Kind {
    /// End of the endpoint's descriptor.
    Descriptor = 0,
    /// Requests to a listening endpoint.
    Listener = 1,
    /// Socket of a connection or of a pending request.
    Link = 2,
    /// Question of another process to this one; belongs to no endpoint.
    Question = 3,
}

#[derive(Debug)]
pub(crate) struct Service {
    epoll: Arc<Epoll>,
    pub(crate) watched: SortedMap<u64, Arc<Epd>>,
    next_token: u64,
    /// Deadlines of connects for which no thread of this process waits, with the tokens of their
    /// endpoints.
    pub(crate) deadlines: SortedMap<(u64, u64), ()>,
    /// Closed endpoints whose windows RMAs still use, with the time at which each was found closed.
    pub(crate) in_use: Vec<(u64, Arc<Epd>)>,
    /// Time at which the thread wakes in any case.
    pub(crate) wakes: u64,
    /// Fork generation of the process whose thread watches.
    generation: u64,
}

/// State of a process for the calls of `scif.h`.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) names: Names,
    pub(crate) domain: String,
    pub(crate) uid: u32,
    /// Number of names given to connecting sockets so far.
    pub(crate) sources: Mutex<u32>,
    pub(crate) table: &'static EndpointTable,
    pub(crate) service: Mutex<Service>,
    pub(crate) workers: Arc<Workers>,
    pub(crate) orphan_arenas: OrphanArenas,
    /// Lock held while pages move back, and while windows are made of pages that are not moved.
    pub(crate) moving: Mutex<()>,
    pub(crate) targets: Arc<InflightDsts>,
    pub(crate) filled: Filled,
    /// Whether a window was ever made of pages that were not moved.
    pub(crate) unmoved: AtomicFlag,
    /// Whether an endpoint has pages that remain to be moved back.
    pub(crate) left_pages: AtomicFlag,
    /// Number of times that windows in place were deleted, by a call or with their endpoint. A
    /// change makes an attempt to move pages back due at once.
    pub(crate) released_unmoved: AtomicCounter,
    pub(crate) tried_back: Mutex<TriedBack>,
    /// Bound socket that shows the presence of this process on its node.
    pub(crate) presence: Mutex<OwnedFd>,
    stats: Stats,
    /// Eventfd shared by a fork group. A forked child signals it when it begins to use inherited
    /// endpoints. It also wakes the service thread to check the deadlines again.
    pub(crate) family: OwnedFd,
    /// Fork generation of the process whose service thread was started last.
    served: AtomicCounter,
    pub(crate) node_events: NodeEvents,
    pub(crate) pins: Pins,
    pub(crate) connect_work: Mutex<ConnectWork>,
    /// Body of the service thread.
    serve: Serve,
}

/// Connects of this process that wait for their turn (`mainline`).
#[derive(Debug, Default)]
pub(crate) struct ConnectWork {
    pub(crate) waiting: VecDeque<(Arc<Epd>, PortId)>,
    /// Fork generation of the process in which a thread makes them, if there is one.
    pub(crate) running: Option<u64>,
}

/// Body of the service thread, which this module starts without knowing its work.
pub(crate) type Serve = fn(&Arc<Inner>, &Epoll);

/// Token of `family`.
pub(crate) const FAMILY: u64 = 1 << 2 | Kind::Question as u64;
/// Endpoints by number. Never freed, because the fork handler holds its lock.
type EndpointTable = RwLock<Vec<Option<Arc<Epd>>>>;

fn index(fd: RawFd) -> Result<usize> {
    usize::try_from(fd).map_err(|_| Failure::BadDescriptor)
}

impl Inner {
    pub(crate) fn new(config: Config, serve: Serve) -> Result<Arc<Inner>> {
        let uid = process::uid();
        let domain = config.domain.clone().unwrap_or_else(|| uid.to_string());
        let names = Names::new(None, Some(&domain), uid)?;
        let presence = nodes::appear(&domain, config.node)?;
        let inner = Arc::new(Inner {
            names,
            domain,
            uid,
            sources: Mutex::new(0),
            table: Box::leak(Box::new(RwLock::new(Vec::new()))),
            service: Mutex::new(Service {
                epoll: Arc::new(Epoll::new()?),
                watched: SortedMap::new(),
                next_token: 0,
                deadlines: SortedMap::new(),
                in_use: Vec::new(),
                wakes: 0,
                generation: fork::generation(),
            }),
            workers: Arc::default(),
            orphan_arenas: OrphanArenas::default(),
            moving: Mutex::default(),
            targets: Arc::default(),
            filled: Filled::default(),
            unmoved: AtomicFlag::new(false),
            left_pages: AtomicFlag::new(false),
            released_unmoved: AtomicCounter::new(0),
            tried_back: Mutex::default(),
            presence: Mutex::new(presence),
            stats: Stats::new(config.node)?,
            family: epoll::inherited_event()?,
            served: AtomicCounter::new(fork::generation()),
            node_events: NodeEvents::default(),
            pins: Pins::default(),
            connect_work: Mutex::default(),
            serve,
            config,
        });
        let table = inner.table;
        fork::hold_while_forking(move || {
            Box::new(table.write().unwrap_or_else(PoisonError::into_inner))
        });
        {
            let service = take(&inner.service);
            service.epoll.add(&*take(&inner.presence), Kind::Question as u64)?;
            service.epoll.add_news(&inner.family, FAMILY)?;
            inner.start(&service)?;
        }
        let registry = Arc::downgrade(&inner);
        fork::prepare_to_fork(move || {
            if let Some(inner) = registry.upgrade() {
                inner.every().iter().for_each(|epd| epd.prepare());
            }
        });
        Ok(inner)
    }

    /// Starts the service thread of this process.
    fn start(self: &Arc<Self>, service: &Service) -> Result<()> {
        let (inner, epoll) = (Arc::clone(self), Arc::clone(&service.epoll));
        thread::spawn_quiet("scif", move || (inner.serve)(&inner, &epoll))
            .map_err(|_| Failure::NoMemory)
    }

    /// Starts the service thread of a forked child and watches everything that its parent watched.
    fn restart(self: &Arc<Self>) -> Result<()> {
        let mut service = take(&self.service);
        if service.generation == fork::generation() {
            return Ok(());
        }
        service.epoll = Arc::new(Epoll::new()?);
        // The parent's name disappears with the parent, so the child binds its own.
        let mut presence = take(&self.presence);
        *presence = nodes::appear(&self.domain, self.config.node)?;
        service.epoll.add(&*presence, Kind::Question as u64)?;
        drop(presence);
        let mut deadlines = SortedMap::new();
        for (&token, epd) in service.watched.iter() {
            service.epoll.add_hangup(&epd.bell, token << 2 | Kind::Descriptor as u64)?;
            if let Some(listener) =
                take(&epd.port_socket).as_ref().filter(|_| epd.sharer.state() == State::Listening)
            {
                service.epoll.add_news(listener, token << 2 | Kind::Listener as u64)?;
            }
            // Mappings that the parent made for copying do not exist in the child.
            epd.windows.forget_all();
            if let Some(link) = epd.link() {
                service.epoll.add(link.socket(), token << 2 | Kind::Link as u64)?;
                link.own.table.take_place();
            } else if let Some(pending) =
                take(&epd.pending).as_ref().filter(|_| epd.fd_handoff().is_some())
            {
                // The child watches the answer too. If its parent dies, it completes the connect or
                // gives it up. It misses an answer that the parent took and could not leave in the
                // hand-off.
                service.epoll.add(&pending.socket, token << 2 | Kind::Link as u64)?;
                deadlines.insert((epd.sharer.deadline(), token), ());
            }
        }
        service.deadlines = deadlines;
        service.in_use.clear();
        self.orphan_arenas.forget_all();
        service.epoll.add_news(&self.family, FAMILY)?;
        self.start(&service)?;
        // Set last, so that a failed start is repeated.
        service.generation = fork::generation();
        self.served.set(fork::generation());
        drop(service);
        epoll::signal(&self.family);
        Ok(())
    }

    /// Adds a socket of an endpoint to the watched ones.
    pub(crate) fn watch(&self, epd: &Arc<Epd>, kind: Kind, socket: impl AsFd) -> Result<()> {
        let service = take(&self.service);
        let token = epd.token << 2 | kind as u64;
        match kind {
            Kind::Descriptor => service.epoll.add_hangup(socket, token)?,
            Kind::Listener => service.epoll.add_news(socket, token)?,
            Kind::Link | Kind::Question => service.epoll.add(socket, token)?,
        }
        Ok(())
    }

    /// Adds a socket that may be watched already.
    pub(crate) fn watch_again(&self, epd: &Arc<Epd>, kind: Kind, socket: impl AsFd) -> Result<()> {
        #[cfg(test)]
        if crate::faults::is_struck(epd, crate::faults::FaultPoint::Watch) {
            return Err(Failure::Os(Errno::NOSPC));
        }
        match self.watch(epd, kind, socket) {
            Err(Failure::Os(Errno::EXIST)) => Ok(()),
            other => other,
        }
    }

    /// Removes a socket from the watched ones.
    pub(crate) fn unwatch(&self, socket: impl AsFd) {
        let epoll = Arc::clone(&take(&self.service).epoll);
        epoll.remove(socket);
    }

    /// Schedules the end of an endpoint's connect at its deadline. The caller holds the control
    /// lock.
    pub(crate) fn limit_connect(&self, epd: &Epd) {
        let deadline = epd.sharer.deadline();
        let mut service = take(&self.service);
        service.deadlines.insert((deadline, epd.token), ());
        if deadline < service.wakes {
            // The thread sleeps past the deadline. Later deadlines need no second signal.
            service.wakes = deadline;
            epoll::signal(&self.family);
        }
    }

    /// Removes the deadline of a connect that ended. The caller holds the control lock.
    pub(crate) fn unlimit_connect(&self, epd: &Epd) {
        let at = (epd.sharer.deadline(), epd.token);
        take(&self.service).deadlines.remove(&at);
    }

    /// Makes an endpoint, still private to the caller, and its descriptor.
    pub(crate) fn new_epd(&self, cloexec: bool) -> Result<(Epd, OwnedFd)> {
        let token = {
            let mut service = take(&self.service);
            service.next_token += 1;
            service.next_token
        };
        Epd::new(token, cloexec, &self.stats)
    }

    /// Hands an endpoint to the program and returns its number.
    pub(crate) fn hand_out(&self, epd: Arc<Epd>, a: OwnedFd) -> Result<RawFd> {
        {
            let _section = fork::section();
            {
                let mut service = take(&self.service);
                service.epoll.add_hangup(&epd.bell, epd.token << 2 | Kind::Descriptor as u64)?;
                service.watched.insert(epd.token, Arc::clone(&epd));
            }
            if fork::is_preparing() {
                epd.prepare();
            }
        }
        let fd = descriptor::release(a);
        match self.enter(fd, epd) {
            Ok(()) => Ok(fd),
            Err(failure) => {
                descriptor::take_back(fd);
                Err(failure)
            }
        }
    }

    pub(crate) fn enter(&self, fd: RawFd, epd: Arc<Epd>) -> Result<()> {
        let at = index(fd)?;
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if table.len() <= at {
            table.resize(at + 1, None);
        }
        if let Some(slot) = table.get_mut(at) {
            *slot = Some(epd);
        }
        Ok(())
    }

    /// Opens an endpoint and returns its number.
    pub(crate) fn open(self: &Arc<Self>) -> Result<RawFd> {
        self.in_this_process()?;
        let (epd, a) = self.new_epd(true)?;
        let fd = self.hand_out(Arc::new(epd), a)?;
        descriptor::hide_space(fd);
        Ok(fd)
    }

    #[inline]
    pub(crate) fn in_this_process(self: &Arc<Self>) -> Result<()> {
        // Costs one load: the fork generation changes in a forked child.
        if self.started_here() { Ok(()) } else { self.restart() }
    }

    /// Whether the service thread of this process was started.
    #[inline]
    pub(crate) fn started_here(&self) -> bool {
        self.served.get() == fork::generation()
    }

    /// Returns the endpoint of a number.
    ///
    /// # Errors
    /// [`Failure::BadDescriptor`], [`Failure::NotAnEndpoint`].
    #[inline]
    pub(crate) fn get(self: &Arc<Self>, fd: RawFd) -> Result<Arc<Epd>> {
        self.in_this_process()?;
        let at = index(fd)?;
        let known = {
            let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
            table.get(at).cloned().flatten()
        };
        match known {
            Some(epd) if !self.config.strict_fd || epd.verify(fd).is_ok() => Ok(epd),
            _ => self.identify(fd),
        }
    }

    /// Runs a call on the endpoint of a known number under the table's read lock, without a
    /// reference count. No thread can open or close an endpoint meanwhile. So the call must be
    /// short, make no system call and not touch memory of the program. `None`: unknown number, or
    /// the call returned nothing.
    #[inline]
    pub(crate) fn at_once<T>(
        &self,
        fd: RawFd,
        call: impl FnOnce(&Arc<Epd>) -> Option<T>,
    ) -> Option<T> {
        if self.config.strict_fd || !self.started_here() {
            return None;
        }
        let at = index(fd).ok()?;
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        call(table.get(at)?.as_ref()?)
    }

    /// Finds an endpoint by the file of its number.
    #[cold]
    pub(crate) fn identify(&self, fd: RawFd) -> Result<Arc<Epd>> {
        let found = descriptor::identify(fd).map(|id| {
            let service = take(&self.service);
            service.watched.values().find(|epd| epd.id() == id).cloned()
        });
        if let Ok(Some(epd)) = found {
            self.enter(fd, Arc::clone(&epd))?;
            return Ok(epd);
        }
        self.forget(fd);
        Err(if found.is_ok() { Failure::NotAnEndpoint } else { Failure::BadDescriptor })
    }

    pub(crate) fn forget(&self, fd: RawFd) -> Option<Arc<Epd>> {
        let at = index(fd).ok()?;
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.get_mut(at)?.take()
    }

    /// Whether a file is an arena of this process, and not one of a peer.
    pub(crate) fn is_own_arena(&self, file: pages::FileId) -> bool {
        let is_of = |epd: &Arc<Epd>| {
            epd.link().is_some_and(|link| pages::file_id(link.own.arena()) == Ok(file))
        };
        let watched = take(&self.service).watched.values().any(is_of);
        watched || self.orphan_arenas.has(file)
    }

    /// Returns all endpoints of this process.
    pub(crate) fn every(&self) -> Vec<Arc<Epd>> {
        take(&self.service).watched.values().cloned().collect()
    }

    /// Whether no connection between this process and `node` can be made.
    pub(crate) fn is_lost(&self, node: u16) -> bool {
        let trusted = |uid| uid == self.uid || uid == 0;
        let deadline = nodes::marker_deadline();
        let is_lost = |node| nodes::is_lost(&self.domain, node, deadline, trusted);
        is_lost(node) || (node != self.config.node && is_lost(self.config.node))
    }

    /// Returns the nodes that are online, the own node included.
    pub(crate) fn nodes(&self) -> Result<BTreeSet<u16>> {
        let trusted = |uid| uid == self.uid || uid == 0;
        let mut nodes = nodes::online(&self.domain, trusted).unwrap_or_default();
        nodes.insert(self.config.node);
        Ok(nodes)
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Membership of this process in its node, as peers reach it: data interrupt, presence segment,
//! links to other processes, and the thread that serves them.
//!
//! Not about single connections (`endpoint`).

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use rustix::io::Errno;
use scif_ring::AtomicCounter;

use super::abi::{INFINITE_TIMEOUT, SciCode};
use super::endpoint::{BoundPort, SisciEndpoint};
use super::frame::{CARD, Card, ConnectRequest, FRAME_MIN, Frame, FrameContent, HEAD, ProcessId};
use super::functions::Sci;
use super::inbox::{CallbackInbox, Task};
use super::library::{Library, LocalInterrupt, LocalSegment};
use super::link::{LinkOwner, ProcessLink};
use super::windows::PageTable;
use crate::error;
use crate::error::Error;
use crate::failure::Failure;
use crate::sys::errno::lock;
use crate::sys::mmap::PAGE;
use crate::sys::thread;

/// Id of the segment of port 0. The ids of all ports follow. Other programs must not use them.
const PORTS: u32 = 0x5C1F_0000;
/// Bits of segment ids from which the library searches free ones: outside of those of ports.
const FREE_IDS: u32 = 0x6000_0000;
/// Ports for endpoints that demand none, as those of SCIF.
const DYNAMIC_PORTS: std::ops::RangeInclusive<u16> = 1089..=u16::MAX;
/// Lengths of frames in bytes, of which the longest that arrives is used. A short one costs more
/// interrupts for a stream.
const FRAMES: [usize; 4] = [4096, 1024, 256, 64];
/// Time in which such a frame arrives.
const MEASURE_LIMIT: Duration = Duration::from_millis(200);
/// Pause before frames are sent again to a process whose queue is full, and before a window in use
/// is left. A longer one delays its connections, a shorter one takes its processor.
const REPEAT_PAUSE: Duration = Duration::from_micros(100);

/// Time in milliseconds for which the service thread waits for an answer of another process. A
/// stopped process delays all others by it.
const SERVE_LIMIT_MS: u32 = 200;

/// Membership of this process in its node.
#[derive(Debug)]
pub(super) struct Hub {
    pub(super) library: Arc<Library>,
    pub(super) inbox: Arc<CallbackInbox>,
    pub(super) pages: Arc<PageTable>,
    own: ProcessId,
    /// Bytes of a stream in one frame.
    pub(super) chunk: usize,
    links: Mutex<HashMap<ProcessId, Arc<ProcessLink>>>,
    /// Source of tokens, with keys from the system.
    random: RandomState,
    count: AtomicCounter,
    _interrupt: LocalInterrupt,
    _presence: LocalSegment,
}

fn os(call: &'static str, code: SciCode) -> Error {
    log::warn!("{call}: {code}; a fabric over SISCI cannot be opened. Check its driver and limits");
    Error::Os { call, errno: Failure::from(code).errno() }
}

impl Hub {
    /// Loads the library and starts the service thread.
    pub(super) fn open() -> error::Result<Arc<Hub>> {
        let random = RandomState::new();
        let number = |of: u64| random.hash_one(of);
        let first = u32::try_from(number(0) & 0x0FFF_FF80).unwrap_or(0);
        let library = Library::load(FREE_IDS | first).map_err(|why| {
            log::warn!(
                "no SISCI library: {why}. Install libsisci.so where the linker finds it \
                 (LD_LIBRARY_PATH), or choose another FI_SCIF_TRANSPORT"
            );
            Error::NoDriver { tried: why, errno: Errno::NOENT }
        })?;
        let inbox = Arc::new(CallbackInbox::default());
        let listener: Weak<CallbackInbox> = Arc::downgrade(&inbox);
        let interrupt =
            library.interrupt(listener).map_err(|code| os("SCICreateDataInterrupt", code))?;
        let presence = library.segment(None, PAGE, None).and_then(|presence| {
            presence.offer()?;
            Ok(presence)
        });
        let presence = presence.map_err(|code| os("SCICreateSegment", code))?;
        let own = ProcessId {
            node: library.node(),
            interrupt: interrupt.number(),
            presence: presence.id(),
            nonce: number(1),
        };
        let chunk = measure(&library, &inbox, own).unwrap_or(FRAME_MIN) - HEAD;
        log::debug!("{library:?} of node {}: {chunk} B of a stream in one interrupt", own.node);
        let hub = Arc::new(Hub {
            library,
            inbox,
            pages: Arc::default(),
            own,
            chunk,
            links: Mutex::default(),
            random,
            count: AtomicCounter::new(2),
            _interrupt: interrupt,
            _presence: presence,
        });
        let (inbox, served) = (Arc::clone(&hub.inbox), Arc::downgrade(&hub));
        thread::spawn_quiet("scif-sisci", move || serve(&inbox, &served)).map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
            Error::Os { call: "starting a thread for SISCI", errno }
        })?;
        Ok(hub)
    }

    /// Enters an endpoint under a new token, and returns the token.
    pub(super) fn enter(&self, endpoint: &Arc<SisciEndpoint>) -> u64 {
        self.inbox.enter(endpoint, || self.random.hash_one(self.count.add(1)))
    }

    /// Returns the link to a process. Waits for a stopped one, up to the limit in milliseconds.
    pub(super) fn link(&self, peer: ProcessId, limit_ms: u32) -> Sci<Arc<ProcessLink>> {
        let known = {
            let mut links = lock(&self.links);
            links.retain(|_, link| !link.is_lost());
            links.get(&peer).cloned()
        };
        if let Some(link) = known {
            return Ok(link);
        }
        // Without the lock, since it waits.
        let owner: Weak<CallbackInbox> = Arc::downgrade(&self.inbox);
        let link = ProcessLink::open(&self.library, owner, peer, limit_ms)?;
        Ok(Arc::clone(lock(&self.links).entry(peer).or_insert(link)))
    }

    /// Makes the segment of a port; port 0 for a dynamic one.
    pub(super) fn bind(&self, port: u16) -> Result<BoundPort, Failure> {
        if port != 0 {
            return self.port(port).map_err(|code| match code {
                SciCode::SEGMENTID_USED => Failure::Invalid,
                code => code.into(),
            });
        }
        let (first, last) = (*DYNAMIC_PORTS.start(), *DYNAMIC_PORTS.end());
        let count = u64::from(last - first) + 1;
        let begin = self.random.hash_one(self.count.add(1)) % count;
        for at in 0..count {
            let number = u64::from(first) + (begin + at) % count;
            match self.port(u16::try_from(number).unwrap_or(last)) {
                Err(SciCode::SEGMENTID_USED) => {}
                made => return Ok(made?),
            }
        }
        Err(Failure::NoPorts)
    }

    fn port(&self, number: u16) -> Sci<BoundPort> {
        let segment = self.library.segment(Some(PORTS | u32::from(number)), PAGE, None)?;
        let card = Arc::new(segment).map(PAGE)?;
        card.write(&Card::of(self.own).encode());
        Ok(BoundPort { number, card })
    }

    /// Finds the process that listens at a port. Waits for a stopped one, up to the limit in
    /// milliseconds.
    pub(super) fn find(&self, node: u32, port: u16, limit_ms: u32) -> Result<ProcessId, Failure> {
        let segment = self.library.connect(node, PORTS | u32::from(port), None, limit_ms);
        let map = segment.and_then(|segment| {
            if segment.size() < CARD { Err(SciCode::ILLEGAL_PARAMETER) } else { segment.map() }
        });
        let map = map.map_err(SciCode::connect_failure)?;
        let mut card = [0; CARD];
        map.read(&mut card);
        Card::decode(card, node).ok_or_else(|| {
            log::warn!(
                "segment {:#x} of node {node} is no port of this version of the library; \
                 connection refused. Use the same version in all processes",
                PORTS | u32::from(port)
            );
            Failure::Refused
        })
    }

    /// Sends a request to connect.
    pub(super) fn send_request(
        &self,
        link: &Arc<ProcessLink>,
        token: u64,
        (port, from): (u16, u16),
    ) -> Result<(), Failure> {
        let request = ConnectRequest::new(self.own, token, port, from);
        link.post(Frame { token: 0, number: 0, content: FrameContent::Connect(request) }.encode())
    }

    /// Lets a process connect to the listener at a port, or refuses it.
    fn admit(&self, request: ConnectRequest, listener: Option<&SisciEndpoint>) {
        let link = match self.link(request.process(), SERVE_LIMIT_MS) {
            Ok(link) => link,
            Err(code) => return log::debug!("a connecting process is gone: {code}"),
        };
        if !listener.is_some_and(|listener| listener.queue_request(request, &link)) {
            link.refuse(request.token);
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.inbox.stop();
    }
}

/// Returns the length of the longest frame that arrives, sent by this process to itself.
fn measure(library: &Arc<Library>, inbox: &Arc<CallbackInbox>, own: ProcessId) -> Option<usize> {
    let interrupt = library.connect_interrupt(own.node, own.interrupt, INFINITE_TIMEOUT).ok()?;
    FRAMES.into_iter().find_map(|length| {
        let payload = length - HEAD;
        let frame = Frame { token: 0, number: 0, content: FrameContent::Measure(payload) };
        interrupt.trigger(&frame.encode()).ok()?;
        // A longer frame may arrive late.
        Some(inbox.measured(payload, MEASURE_LIMIT)? + HEAD)
    })
}

/// Serves a process until it is dropped.
fn serve(inbox: &CallbackInbox, served: &Weak<Hub>) {
    let mut full: Vec<Arc<ProcessLink>> = Vec::new();
    // Windows of peers that copies in progress use.
    let mut used: Vec<(Arc<SisciEndpoint>, i64)> = Vec::new();
    loop {
        let is_idle = full.is_empty() && used.is_empty();
        let limit = (!is_idle).then_some(REPEAT_PAUSE);
        let Some(tasks) = inbox.tasks(limit) else { return };
        let Some(hub) = served.upgrade() else { return };
        for task in tasks {
            let done = thread::contained(|| match task {
                Task::Admit(request) => hub.admit(request, inbox.listener(request.port).as_deref()),
                Task::Leave(endpoint, offset) => {
                    if !endpoint.leave_window(offset) {
                        used.push((endpoint, offset));
                    }
                }
                Task::Open(endpoint, window) => {
                    endpoint.open_window(&window, &hub.library, SERVE_LIMIT_MS)
                }
                Task::Repeat(link) => full.push(link),
                Task::Lose => inbox.lose(),
                Task::Release(link, late) => late.into_iter().for_each(|token| link.refuse(token)),
            });
            if done.is_none() {
                log::warn!("internal error in the SISCI transport; please report it");
            }
        }
        let repeated = thread::contained(|| {
            full.retain(|link| link.flush());
            used.retain(|(endpoint, offset)| !endpoint.leave_window(*offset));
        });
        if repeated.is_none() {
            log::warn!("internal error in the SISCI transport; please report it");
        }
    }
}

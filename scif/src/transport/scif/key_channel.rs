// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Key channel of an initiator: a second connection to the peer, over which it asks for windows of
//! keys, and whose RMAs and fences it executes.
//!
//! A thread connects at the first RMA. Answers are cached. A window that the owner has
//! unregistered is noticed by ENXIO, since no offset is used twice. Without a channel, the peer
//! executes the operations.
//!
//! Not about the owner's side (`key_server`).

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use scif_ring::Mem;

use super::channel_pass::Pass;
use super::crossover::{Crossover, NodeLengths};
use super::key_frames::{ANSWER, DecodedAnswer, KeyQuestion, QUESTION};
use super::relay::RelayGreeting;
use super::sender::Wire;
use super::stream::Stream;
use crate::addr::PortId;
use crate::failure::Failure;
use crate::fence::Signal;
use crate::memory::RemoteMem;
use crate::peer_windows::{KeyLookup, KeyWindow, PeerWindows, WindowError};
use crate::slab::ConnId;
use crate::sys::errno::{keep_errno, lock};
use crate::sys::mmap::Mapping;
use crate::sys::pages::PAGE;
use crate::sys::thread;
use crate::window_calls::{RmaMode, RmaWay, WindowCalls};

/// Maximum number of questions without an answer: their answers fit the 4095 bytes of a driver's
/// queue.
const OPEN_MAX: usize = 32;
/// Windows in a row that the owner has removed before their first use. More than this, and the peer
/// executes the operations.
const STALE_MAX: u32 = 64;
/// Time in seconds for which the end of a channel waits for RMAs by DMA: the program may reuse
/// their buffers afterwards. At the limit the caller closes the channel, which waits for the
/// driver.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
/// Pause in microseconds between two looks at the end of these RMAs.
const DRAIN_PAUSE: Duration = Duration::from_micros(20);

const _: () = assert!(OPEN_MAX * ANSWER < 4095);

/// Owner of the connection that a channel belongs to.
pub(super) trait ChannelOwner: Send + Sync {
    /// Adds a channel to the set whose events make the owner poll the connection.
    fn add_channel(&self, stream: &Stream, id: ConnId) -> Result<(), Errno>;

    /// Removes a channel from the set.
    fn remove_channel(&self, stream: &Stream);

    /// Makes the owner poll the connection.
    fn poll_later(&self, id: ConnId);

    /// Counts a fence.
    fn count_fence(&self);

    /// Drops a value in the thread that closes endpoints.
    fn dispose_channel(&self, ended: Box<dyn Any + Send>);
}

debug_by_name!(ChannelOwner);

/// Window of this side, in which fences store the number of ended RMAs.
#[derive(Debug)]
struct FenceWord {
    map: Arc<Mapping>,
    offset: i64,
}

impl FenceWord {
    /// Registers a page at the channel. `None`: no RMA by DMA, since its end is not reported.
    fn register(stream: &mut Stream) -> Option<FenceWord> {
        let (calls, fd) = stream.parts();
        match calls.share(fd, PAGE) {
            Ok((map, offset)) => {
                let map = Arc::new(map);
                stream.keep(&map);
                Some(FenceWord { map, offset })
            }
            Err(failure) => {
                log::debug!("scif_register of the word of fences: {failure}; RMA uses the CPU");
                None
            }
        }
    }

    fn get(&self) -> u64 {
        self.map.word64(0).map_or(0, |word| word.get())
    }
}

/// Connected channel.
#[derive(Debug)]
struct OpenChannel {
    stream: Stream,
    word: Option<FenceWord>,
    /// Lengths from which DMA executes RMA.
    lengths: Arc<NodeLengths>,
}

impl OpenChannel {
    /// Connects to the port of the peer, with the claim of its pass. Waits for the driver.
    fn connect(mut stream: Stream, dst: PortId, claim: u64) -> Result<OpenChannel, Failure> {
        stream.connect(dst)?;
        stream.greet(&RelayGreeting::key_channel(claim))?;
        let word = FenceWord::register(&mut stream);
        let named = stream.parts().0.key_windows().and_then(WindowCalls::dma_min);
        let lengths = match named {
            Some(len) => NodeLengths::fixed(Crossover::at(len)),
            None => NodeLengths::of(dst.node),
        };
        Ok(OpenChannel { stream, word, lengths })
    }

    fn calls(&self) -> Option<(&dyn WindowCalls, RawFd)> {
        let (calls, fd) = self.stream.parts();
        Some((calls.key_windows()?, fd))
    }
}

/// Result of the connecting thread, once it has one.
type ChannelAttempt = Arc<Mutex<Option<Result<OpenChannel, Failure>>>>;

#[derive(Debug)]
enum ChannelStage {
    /// No RMA so far.
    Unused,
    Connecting(ChannelAttempt),
    Open(Box<OpenChannel>),
    /// Refused or ended: the peer executes all operations.
    Lost,
}

/// Answer about a key.
#[derive(Debug)]
enum Cached {
    Window(KeyWindow),
    /// Number of searches since the peer said that there is no window.
    Absent(u32),
}

/// Answers about keys, and questions without one.
#[derive(Debug)]
struct Answers {
    keys: HashMap<u64, Cached>,
    queried: HashSet<u64>,
    /// Next answer, as far as it has arrived.
    arriving: [u8; ANSWER],
    have: usize,
    /// Whether the owner requests notifications.
    notify: bool,
}

/// Key channel of one connection.
#[derive(Debug)]
pub(super) struct KeyChannel {
    owner: Arc<dyn ChannelOwner>,
    id: ConnId,
    peer: PortId,
    /// Pass of the peer, received over the connection of the messages.
    pass: Option<Pass>,
    /// Connection of the messages, of the same implementation.
    main: Arc<Stream>,
    stage: ChannelStage,
    answers: Answers,
    /// Number of windows in a row that had been removed.
    stale: u32,
    /// Number of RMAs by DMA that were started, and that number at the last fence.
    started: u64,
    fenced: u64,
    /// Number of RMAs by DMA that had ended when the channel did.
    drained: u64,
}

impl KeyChannel {
    pub(super) fn new(
        owner: &Arc<dyn ChannelOwner>,
        main: &Arc<Stream>,
        id: ConnId,
        peer: PortId,
    ) -> KeyChannel {
        KeyChannel {
            owner: Arc::clone(owner),
            id,
            peer,
            pass: None,
            main: Arc::clone(main),
            stage: ChannelStage::Unused,
            answers: Answers {
                keys: HashMap::new(),
                queried: HashSet::new(),
                arriving: [0; ANSWER],
                have: 0,
                notify: false,
            },
            stale: 0,
            started: 0,
            fenced: 0,
            drained: 0,
        }
    }

    /// Connects before the first question, since the peer can lend memory only to a channel.
    pub(super) fn open_early(&mut self) {
        if matches!(self.stage, ChannelStage::Unused) {
            self.connect();
        }
    }

    /// Whether RMAs can start.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.stage, ChannelStage::Open(_))
    }

    /// Starts a copy between memory and an offset of the peer. Returns its number if DMA executes
    /// it.
    pub(super) fn start_at(
        &mut self,
        way: RmaWay,
        near: &Mem,
        far: i64,
        mode: RmaMode,
    ) -> Result<Option<u64>, Failure> {
        self.transfer(way, std::slice::from_ref(near), far, mode)?;
        self.started += u64::from(mode == RmaMode::Dma);
        Ok((mode == RmaMode::Dma).then_some(self.started))
    }

    /// Notes the pass of the peer, once it is known.
    pub(super) fn set_pass(&mut self, pass: Option<Pass>) {
        self.pass = self.pass.or(pass);
    }

    /// Starts the thread that connects, once the pass of the peer is known.
    fn connect(&mut self) {
        let Some(Pass { claim, .. }) = self.pass else { return };
        self.stage = ChannelStage::Lost;
        let stream = match self.main.another() {
            Ok(stream) => stream,
            Err(failure) => return log::debug!("scif_open of a key channel: {failure}"),
        };
        let attempt: ChannelAttempt = Arc::default();
        let (outcome, owner) = (Arc::clone(&attempt), Arc::clone(&self.owner));
        let (peer, id) = (self.peer, self.id);
        let started = thread::spawn_quiet("scif-connect", move || {
            let connected = thread::contained(|| OpenChannel::connect(stream, peer, claim));
            *lock(&outcome) = Some(connected.unwrap_or(Err(Failure::Broken)));
            drop(outcome);
            owner.poll_later(id);
        });
        match started {
            Ok(()) => self.stage = ChannelStage::Connecting(attempt),
            Err(error) => log::debug!("starting a thread that connects: {error}"),
        }
    }

    /// Takes the outcome of the connecting thread, and the answers that have arrived.
    pub(super) fn poll(&mut self) {
        if let ChannelStage::Connecting(attempt) = &self.stage {
            let Some(outcome) = lock(attempt).take() else { return };
            self.stage = match outcome.and_then(|open| {
                self.owner.add_channel(&open.stream, self.id)?;
                Ok(open)
            }) {
                Ok(open) => ChannelStage::Open(Box::new(open)),
                Err(failure) => {
                    log::debug!("key channel to {}: {failure}; it executes RMA itself", self.peer);
                    ChannelStage::Lost
                }
            };
        }
        let proof = self.pass.map(|pass| pass.proof);
        if let ChannelStage::Open(open) = &self.stage {
            if self.answers.receive(&open.stream, proof).is_none() {
                self.lose();
            }
        }
    }

    /// Ends a connected channel, also before the connection ends. Its RMAs by DMA end first: a
    /// fence reports them, or the channel is closed before the return.
    pub(super) fn lose(&mut self) {
        if !matches!(self.stage, ChannelStage::Open(_)) {
            return;
        }
        self.drain();
        if let ChannelStage::Open(open) = std::mem::replace(&mut self.stage, ChannelStage::Lost) {
            log::debug!("key channel to {} has ended; it executes RMA itself", self.peer);
            self.owner.remove_channel(&open.stream);
            if self.drained == self.started {
                self.owner.dispose_channel(open);
            } else {
                log::debug!("RMA by DMA to {} has not ended; closing its channel", self.peer);
                drop(open);
            }
        }
        self.answers.keys.clear();
        self.answers.queried.clear();
    }

    /// Sends a question, once there is a channel with space for it. Returns false if there will be
    /// no answer.
    fn send_query(&mut self, key: u64) -> bool {
        if matches!(self.stage, ChannelStage::Unused) {
            self.connect();
        }
        let open = match &self.stage {
            ChannelStage::Open(open) => open,
            ChannelStage::Unused | ChannelStage::Connecting(_) => return true,
            ChannelStage::Lost => return false,
        };
        let queried = &mut self.answers.queried;
        if queried.contains(&key) || queried.len() >= OPEN_MAX {
            return true;
        }
        match open.stream.send(&KeyQuestion::encode(key)) {
            Ok(QUESTION) => {
                queried.insert(key);
                true
            }
            Ok(0) | Err(Failure::Interrupted) => true,
            _ => {
                self.lose();
                false
            }
        }
    }

    fn search(&mut self, key: u64) -> KeyLookup {
        let is_queried = match self.answers.keys.get_mut(&key) {
            Some(Cached::Window(window)) => return KeyLookup::Known(*window),
            Some(Cached::Absent(searches)) => {
                *searches = searches.wrapping_add(1);
                // The owner may have registered the key since.
                if searches.is_power_of_two() {
                    self.send_query(key);
                }
                false
            }
            None => self.send_query(key),
        };
        if is_queried { KeyLookup::Queried } else { KeyLookup::Absent }
    }

    fn transfer(
        &self,
        way: RmaWay,
        local: &[Mem],
        mut far: i64,
        mode: RmaMode,
    ) -> Result<(), Failure> {
        let ChannelStage::Open(open) = &self.stage else { return Err(Failure::Reset) };
        let (calls, fd) = open.calls().ok_or(Failure::NotSupported)?;
        for near in local.iter().filter(|near| !near.is_empty()) {
            calls.transfer(fd, way, near, far, mode)?;
            log::trace!("{way:?} of {:#x} bytes at {far:#x} by {mode:?}", near.len());
            far = far.checked_add_unsigned(near.len() as u64).ok_or(Failure::Invalid)?;
        }
        Ok(())
    }

    fn order_fence(&mut self) -> Result<(), Failure> {
        let ChannelStage::Open(open) = &self.stage else { return Err(Failure::Reset) };
        if self.started == self.fenced {
            return Ok(());
        }
        let (calls, fd) = open.calls().ok_or(Failure::NotSupported)?;
        let word = open.word.as_ref().ok_or(Failure::NotSupported)?;
        calls.signal_after_own(fd, Signal { offset: word.offset, value: self.started })?;
        log::trace!("scif_fence_signal({:#x}) = {}", word.offset, self.started);
        self.fenced = self.started;
        self.owner.count_fence();
        Ok(())
    }

    /// Waits for the RMAs by DMA, up to the limit, and notes how many have ended.
    fn drain(&mut self) {
        let end = Instant::now() + DRAIN_LIMIT;
        loop {
            let ordered = self.order_fence();
            self.drained = self.ended();
            let is_possible = match ordered {
                Ok(()) => true,
                Err(failure) => !is_end(&failure) || self.drained < self.fenced,
            };
            if self.drained == self.started || !is_possible || Instant::now() >= end {
                return;
            }
            std::thread::sleep(DRAIN_PAUSE);
        }
    }

    /// Returns the error for the caller. An ended channel is given up.
    fn failed(&mut self, failure: Failure) -> WindowError {
        if is_end(&failure) {
            self.lose();
        }
        WindowError::Failed(failure)
    }
}

/// Whether an error says that the channel has ended.
fn is_end(failure: &Failure) -> bool {
    matches!(failure.errno(), Errno::CONNRESET | Errno::NOTCONN | Errno::NODEV)
}

impl Answers {
    /// Receives answers; `None` at the end of the channel, or if another process answers.
    fn receive(&mut self, stream: &Stream, expected: Option<u64>) -> Option<()> {
        loop {
            let rest = self.arriving.get_mut(self.have..)?;
            match stream.receive(rest) {
                Ok(0) | Err(Failure::Interrupted) => return Some(()),
                Ok(n) => self.have += n,
                Err(_) => return None,
            }
            if self.have < ANSWER {
                continue;
            }
            self.have = 0;
            let DecodedAnswer { key, window, notify, proof } =
                DecodedAnswer::decode(self.arriving)?;
            if !self.queried.remove(&key) || Some(proof) != expected {
                return None;
            }
            self.notify = notify;
            match (window, self.keys.get(&key)) {
                // The number of searches grows, so that questions become rare.
                (None, Some(Cached::Absent(_))) => {}
                (window, _) => {
                    self.keys.insert(key, window.map_or(Cached::Absent(0), Cached::Window));
                }
            }
        }
    }
}

// Calls of a driver change errno, so each entry point restores it.
impl PeerWindows for KeyChannel {
    fn find(&mut self, key: u64) -> KeyLookup {
        keep_errno(|| self.search(key))
    }

    fn mode(&self, way: RmaWay, len: usize) -> RmaMode {
        let ChannelStage::Open(open) = &self.stage else { return RmaMode::Cpu };
        let is_long = len as u64 >= open.lengths.of_way(way);
        if open.word.is_some() && is_long { RmaMode::Dma } else { RmaMode::Cpu }
    }

    fn start(
        &mut self,
        way: RmaWay,
        local: &[Mem],
        window: &KeyWindow,
        remote: &RemoteMem,
        mode: RmaMode,
    ) -> Result<(), WindowError> {
        let far = window.offset_of(remote).ok_or(WindowError::Failed(Failure::Invalid))?;
        match keep_errno(|| self.transfer(way, local, far, mode)) {
            Ok(()) => {
                self.stale = 0;
                self.started += u64::from(mode == RmaMode::Dma);
                Ok(())
            }
            Err(failure) if matches!(failure.errno(), Errno::NXIO | Errno::PERM) => {
                self.answers.keys.remove(&window.entry.key);
                if self.stale == STALE_MAX {
                    return Err(WindowError::Failed(failure));
                }
                self.stale += 1;
                Err(WindowError::Stale)
            }
            Err(failure) => Err(self.failed(failure)),
        }
    }

    fn started(&self) -> u64 {
        self.started
    }

    fn ended(&self) -> u64 {
        match &self.stage {
            // A peer may reach the word, so it reports no end without a fence.
            ChannelStage::Open(open) => {
                open.word.as_ref().map_or(0, FenceWord::get).min(self.fenced)
            }
            _ => self.drained,
        }
    }

    fn fence(&mut self) -> Result<(), WindowError> {
        keep_errno(|| match self.order_fence() {
            // The next call orders it.
            Ok(()) | Err(Failure::Interrupted) => Ok(()),
            // The peer executes the other RMAs in progress and all later ones, in their order.
            Err(failure) => {
                self.lose();
                Err(WindowError::Failed(failure))
            }
        })
    }

    fn notify(&self) -> bool {
        self.answers.notify
    }
}

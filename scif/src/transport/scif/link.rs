// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One connection over the calls of `scif.h`: its greeting, its doorbells and end, and its records
//! where they cross the stream.
//!
//! Not about its establishment (`calls`, `acceptor`) nor about data for which the stream has no
//! space (`sender`). The calls report a closed peer: its process, its node, or only this
//! connection.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use scif_ring::{
    AtomicCounter, AtomicFlag, Bell, BellHandle, Forwarder, Mem, publish_fence, store_fence,
};

use super::channel_pass::{ChannelPasses, IssuedPass, Pass};
use super::key_channel::{ChannelOwner, KeyChannel};
use super::key_server::KeyServer;
use super::lent_reads::LentReads;
use super::relay::{GreetingKind, Incoming, ReceiveOutcome, bells, relay};
use super::sender::{Lingering, Outlet, Sender, Wire};
use super::stream::{Arriving, Stream};
use super::windows::Rings;
use crate::addr::PortId;
use crate::error::{Error, Reason, Result};
use crate::failure::Failure;
use crate::memory::PeerMemory;
use crate::peer_windows::PeerWindows;
use crate::remote_reads::{ReadBegun, ReadState, RemoteReads, WireMemory};
use crate::segment::{Side, Windows};
use crate::slab::ConnId;
use crate::sys::epoll::{Epoll, Event};
use crate::sys::errno::keep_errno;
use crate::sys::membarrier;
use crate::sys::mmap::{Mapping, OutOfRange};
use crate::transport::{CloseKind, Link, LinkUpdate, Remote, conn_of, token};

/// Kind of an epoll token that names a connection.
pub(super) const CONN: u64 = 0;
/// Kind of the epoll token of the port's event.
pub(super) const NEWS: u64 = 1;

/// State that the links of a port share with each other and with its threads.
#[derive(Debug)]
pub(super) struct PortShared {
    /// Epoll set of the owner. A connection is in it from its beginning to its end, for input
    /// alone: a driver joins the queue of waiters for input when a descriptor is added, and no
    /// other queue later.
    pub(super) epoll: Epoll,
    /// Doorbell whose owner always appears asleep, so that a producer calls the link, which sends.
    bell: Arc<Mapping>,
    /// Event in the set: readable while `news` has connections whose descriptors show no change.
    event: Event,
    /// Connections that the owner must check.
    news: Mutex<Vec<ConnId>>,
    pub(super) sender: Arc<Sender>,
    pub(super) lingering: Arc<Lingering>,
    sleep_flags: Mutex<SleepFlags>,
    /// Peers that died since the port last took the list.
    died: Mutex<Vec<PortId>>,
    warned: AtomicFlag,
    /// Fences behind RMA by DMA.
    pub(super) fences: AtomicCounter,
    /// Passes of the connections, for key channels.
    pub(super) passes: Arc<ChannelPasses>,
    /// Windows on own memory.
    pub(super) key_server: Option<Arc<KeyServer>>,
}

/// Doorbells in the windows of peers, in which we publish our sleep.
#[derive(Debug, Default)]
struct SleepFlags {
    /// State that a later connection begins with.
    asleep: bool,
    all: Vec<SleepFlag>,
}

/// Doorbell page in the window of a peer.
#[derive(Debug)]
struct SleepFlag {
    id: ConnId,
    bell: Bell,
    /// Whether the page lies behind a write-combined mapping.
    is_write_combined: bool,
    /// Last, so that it outlives the view.
    _window: Arc<Mapping>,
}

impl SleepFlag {
    /// Publishes whether the owner sleeps. Across nodes the flag is loaded back: the answer pushes
    /// earlier stores of the peer ahead of it. `Consumer::set_idle` does the same with its flag. No
    /// other load crosses.
    fn set(&self, sleeping: bool) {
        self.bell.set_sleeping(sleeping);
        if self.is_write_combined {
            store_fence();
            if sleeping {
                std::hint::black_box(self.bell.is_sleeping());
            }
        }
    }
}

impl PortShared {
    pub(super) fn new(
        bell: Arc<Mapping>,
        sender: Arc<Sender>,
        key_server: Option<Arc<KeyServer>>,
    ) -> Result<PortShared> {
        let epoll = Epoll::new().map_err(Error::os("epoll_create"))?;
        let event = Event::new().map_err(Error::os("eventfd"))?;
        let none = ConnId { index: 0, generation: 0 };
        epoll.add(&event, token(NEWS, none)).map_err(Error::os("epoll_ctl"))?;
        Ok(PortShared {
            epoll,
            bell,
            event,
            news: Mutex::default(),
            sender,
            lingering: Arc::default(),
            sleep_flags: Mutex::default(),
            died: Mutex::default(),
            warned: AtomicFlag::new(false),
            fences: AtomicCounter::new(0),
            passes: Arc::default(),
            key_server,
        })
    }

    fn news(&self) -> MutexGuard<'_, Vec<ConnId>> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the owner.
    pub(super) fn signal(&self) {
        self.event.signal();
    }

    /// Makes the owner check a connection.
    fn post(&self, id: ConnId) {
        let mut news = self.news();
        if !news.contains(&id) {
            news.push(id);
        }
        drop(news);
        self.signal();
    }

    /// Takes the connections to check.
    pub(super) fn take_news(&self, ready: &mut Vec<ConnId>) {
        self.event.drain();
        ready.append(&mut self.news());
    }

    fn sleep_flags(&self) -> MutexGuard<'_, SleepFlags> {
        self.sleep_flags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the doorbell of a new connection. The caller polls its ring afterwards: the owner may
    /// be about to sleep.
    fn add_sleep_flag(&self, flag: SleepFlag) {
        let mut flags = self.sleep_flags();
        if flags.asleep {
            flag.set(true);
            membarrier::barrier();
        }
        flags.all.push(flag);
    }

    /// Takes the peers that died since the last call.
    pub(super) fn take_died(&self) -> Vec<PortId> {
        std::mem::take(&mut *self.died.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Publishes in the windows of all peers, also of later ones, whether the owner sleeps.
    pub(super) fn set_sleeping(&self, sleeping: bool) {
        let mut flags = self.sleep_flags();
        flags.asleep = sleeping;
        for flag in &flags.all {
            flag.set(sleeping);
        }
    }

    /// Logs at warn the first time, later at debug.
    pub(super) fn warn_once(&self, text: fmt::Arguments<'_>) {
        if self.warned.swap(true) {
            log::debug!("{text}");
        } else {
            log::warn!("{text}");
        }
    }

    /// Returns the exports of a peer. If the link takes part in each push, the doorbell always
    /// appears asleep.
    pub(super) fn remote(&self, rings: &Rings) -> Remote {
        let direct = rings.windows.as_ref().filter(|windows| windows.copy.is_none());
        let bell = direct.map_or(&self.bell, |windows| &windows.own);
        Remote {
            bell: Arc::clone(bell),
            bell_bit: 0,
            keys: None,
            memory: PeerMemory::none(),
            asymmetric: direct.is_none() || rings.asymmetric,
        }
    }
}

impl ChannelOwner for PortShared {
    fn add_channel(&self, stream: &Stream, id: ConnId) -> std::result::Result<(), Errno> {
        self.epoll.add(stream, token(CONN, id))
    }

    fn remove_channel(&self, stream: &Stream) {
        self.epoll.remove(stream);
    }

    fn poll_later(&self, id: ConnId) {
        self.post(id);
    }

    fn count_fence(&self) {
        self.fences.add(1);
    }

    fn dispose_channel(&self, ended: Box<dyn Any + Send>) {
        self.sender.dispose(ended);
    }
}

#[derive(Debug)]
enum Stage {
    /// The answer of the peer's endpoint has not arrived completely.
    Greeted(Arriving),
    Up,
    /// The connection ended while it was established.
    Ended(Reason),
}

/// Forwarder of a link, and the doorbell of its peer. The mappings are kept with the rings.
#[derive(Debug)]
struct Forwarding {
    forwarder: Forwarder,
    bell: BellHandle,
}

impl Forwarding {
    fn of(windows: &Windows) -> std::result::Result<Option<Forwarding>, OutOfRange> {
        let Some(forwarder) = windows.forwarder()? else { return Ok(None) };
        Ok(Some(Forwarding { forwarder, bell: windows.own.bell_handle()? }))
    }

    /// Forwards what was pushed; returns whether the peer needs a doorbell for it.
    fn forward(&mut self) -> bool {
        self.forwarder.forward() && self.is_bell_needed()
    }

    /// Forwards what was pushed; returns whether the peer needs a doorbell, also without a new
    /// record: it may wait for space.
    fn wake(&mut self) -> bool {
        self.forwarder.forward();
        self.is_bell_needed()
    }

    fn is_bell_needed(&self) -> bool {
        publish_fence(false);
        self.forwarder.consumer_idle() || self.bell.sleeping()
    }
}

/// Resources of a link until its end.
#[derive(Debug)]
struct Ends {
    /// Windows of the peer's keys, once there was an RMA.
    keys: Option<Box<KeyChannel>>,
    reads: LentReads,
    stream: Arc<Stream>,
    outlet: Arc<Outlet>,
    /// Pass of this end: its end refuses the key channel of the peer.
    pass: IssuedPass,
}

/// Peer of a new link.
#[derive(Debug)]
pub(super) struct LinkPeer {
    /// Epoll token of the connection.
    pub(super) token: u64,
    pub(super) peer: PortId,
    /// Pass of this end.
    pub(super) pass: IssuedPass,
    /// Pass of the peer, once it is known.
    pub(super) theirs: Option<Pass>,
}

#[derive(Debug)]
pub(super) struct ScifLink {
    /// `None` after the end.
    ends: Option<Ends>,
    stage: Stage,
    incoming: Incoming,
    /// Present if the window of the peer is write-combined.
    forwarding: Option<Forwarding>,
    rings: Rings,
    peer: PortId,
    /// Pass of the peer, once it is known.
    theirs: Option<Pass>,
    shared: Arc<PortShared>,
    id: ConnId,
}

impl ScifLink {
    /// Returns the link of the opener (`Side::Opener`), which has sent the hello, or of the
    /// acceptor, which has sent the welcome.
    pub(super) fn new(
        shared: &Arc<PortShared>,
        stream: Stream,
        segment: &Arc<Mapping>,
        rings: Rings,
        LinkPeer { token, peer, pass, theirs }: LinkPeer,
        side: Side,
    ) -> std::result::Result<ScifLink, OutOfRange> {
        let mut forwarding = None;
        let (outgoing, incoming) = match &rings.windows {
            Some(windows) => {
                forwarding = Forwarding::of(windows)?;
                shared.add_sleep_flag(SleepFlag {
                    id: conn_of(token),
                    bell: windows.peer.bell()?,
                    is_write_combined: forwarding.is_some(),
                    _window: Arc::clone(&windows.peer),
                });
                bells()
            }
            None => relay(segment, side)?,
        };
        let stream = Arc::new(stream);
        let wire = Arc::clone(&stream) as Arc<dyn Wire>;
        let id = conn_of(token);
        let owner = Arc::clone(shared);
        let notify = move || owner.post(id);
        Ok(ScifLink {
            ends: Some(Ends {
                keys: None,
                reads: LentReads::default(),
                outlet: Outlet::new(
                    wire,
                    peer,
                    outgoing,
                    &shared.sender,
                    &shared.lingering,
                    notify,
                ),
                stream,
                pass,
            }),
            stage: match (rings.ended, side) {
                (Some(reason), _) => Stage::Ended(reason),
                (None, Side::Opener) => Stage::Greeted(Arriving::default()),
                (None, Side::Acceptor) => Stage::Up,
            },
            incoming,
            forwarding,
            rings,
            peer,
            theirs,
            shared: Arc::clone(shared),
            id,
        })
    }

    fn closed(&mut self, reason: Reason) -> LinkUpdate {
        if reason == Reason::Corrupt {
            if let Some(ends) = &self.ends {
                ends.outlet.reset();
            }
        }
        if reason == Reason::Died {
            self.shared.died.lock().unwrap_or_else(PoisonError::into_inner).push(self.peer);
        }
        self.leave();
        LinkUpdate::Closed(reason)
    }

    /// Gives the stream to the thread, which closes it after all data is sent: closing waits for
    /// the driver.
    fn leave(&mut self) {
        if let Some(mut ends) = self.ends.take() {
            self.shared.sleep_flags().all.retain(|flag| flag.id != self.id);
            if let Some(keys) = &mut ends.keys {
                keys.lose();
            }
            self.shared.epoll.remove(&ends.stream);
            self.shared.sender.dispose(ends);
        }
    }

    fn poll_update(&mut self) -> Option<LinkUpdate> {
        if let Some(keys) = self.ends.as_mut().and_then(|ends| ends.keys.as_mut()) {
            keys.poll();
        }
        let stream = &self.ends.as_ref()?.stream;
        let received = self.incoming.receive(|to| match stream.receive(to) {
            Err(Failure::Interrupted) => Ok(0),
            got => got,
        });
        if self.incoming.is_full() {
            // No descriptor reports what was received and not taken.
            self.shared.post(self.id);
        }
        match received {
            Ok(ReceiveOutcome::Nothing) => None,
            Ok(ReceiveOutcome::Records) => Some(LinkUpdate::Wake),
            Ok(ReceiveOutcome::End(reason)) => Some(self.closed(reason)),
            Err(failure) => {
                if failure.errno() != Errno::CONNRESET {
                    log::debug!("scif_recv: {failure}");
                }
                Some(self.closed(Reason::Died))
            }
        }
    }

    fn exchange(&mut self) -> Option<LinkUpdate> {
        let Ends { stream, outlet, .. } = self.ends.as_ref()?;
        // Early records follow our hello, independent of its answer.
        let needs_bell = self.forwarding.as_mut().is_some_and(Forwarding::forward);
        if needs_bell {
            outlet.ring_bell();
        } else {
            outlet.flush();
        }
        if outlet.failure().is_some() {
            return Some(self.closed(Reason::Died));
        }
        match &mut self.stage {
            Stage::Greeted(arriving) => match arriving.read(stream) {
                Ok(None) => None,
                Ok(Some(GreetingKind::Welcome(pass))) => {
                    self.stage = Stage::Up;
                    self.theirs = Some(pass);
                    Some(LinkUpdate::Up(Box::new(self.shared.remote(&self.rings))))
                }
                Ok(Some(GreetingKind::No(reason))) | Err(reason) => Some(self.closed(reason)),
                Ok(Some(_)) => Some(self.closed(Reason::Corrupt)),
            },
            Stage::Ended(reason) => {
                let reason = *reason;
                Some(self.closed(reason))
            }
            Stage::Up => self.poll_update(),
        }
    }

    /// Returns the channel to the windows of the peer, created at the first call, and its reads.
    fn key_channel(&mut self) -> Option<(&mut KeyChannel, &mut LentReads)> {
        let Ends { stream, keys, reads, .. } = self.ends.as_mut()?;
        stream.parts().0.key_windows()?;
        let keys = keys.get_or_insert_with(|| {
            let owner = Arc::clone(&self.shared) as Arc<dyn ChannelOwner>;
            Box::new(KeyChannel::new(&owner, stream, self.id, self.peer))
        });
        keys.set_pass(self.theirs);
        Some((&mut **keys, reads))
    }

    fn end(&mut self, how: CloseKind) {
        let Some(ends) = &self.ends else { return };
        match how {
            CloseKind::Graceful => {
                // The last frame announces what is in the ring.
                self.forwarding.as_mut().map(Forwarding::forward);
                ends.outlet.close();
            }
            CloseKind::Reset => ends.outlet.reset(),
            // A forked child, which has neither the threads nor the descriptors of its parent,
            // takes no lock.
            CloseKind::Abandon if ends.stream.is_inherited() => {
                self.ends = None;
                return;
            }
            CloseKind::Abandon => ends.outlet.abandon(),
        }
        self.leave();
    }
}

// Calls of the driver and waits for the port's threads change errno, so each entry point restores
// it.
impl Link for ScifLink {
    fn is_direct(&self) -> bool {
        false
    }

    fn rings_by_wake(&self) -> bool {
        self.rings.windows.is_some()
    }

    fn next_event(&mut self) -> Option<LinkUpdate> {
        keep_errno(|| self.exchange())
    }

    fn unsent(&self) -> bool {
        false
    }

    fn wake(&mut self) {
        let Some(ends) = &self.ends else { return };
        keep_errno(|| {
            if self.rings.windows.is_none() {
                ends.outlet.flush();
            } else if self.forwarding.as_mut().is_none_or(Forwarding::wake) {
                ends.outlet.ring_bell();
            }
        });
    }

    fn is_consumed_by_peer(&self) -> bool {
        self.rings.windows.is_some()
    }

    fn windows(&mut self) -> Option<&mut dyn PeerWindows> {
        self.key_channel().map(|(keys, _)| keys as &mut dyn PeerWindows)
    }

    fn remote_reads(&mut self) -> Option<&mut dyn RemoteReads> {
        self.ends.as_ref()?.stream.parts().0.key_windows()?;
        Some(self)
    }

    fn close(&mut self, how: CloseKind) {
        keep_errno(|| self.end(how));
    }
}

// Calls of the key channel change errno, so each entry point restores it.
impl RemoteReads for ScifLink {
    fn need_owner(&self) -> bool {
        false
    }

    fn prepare(&mut self) {
        keep_errno(|| {
            if let Some((keys, _)) = self.key_channel() {
                keys.open_early();
            }
        });
    }

    fn expose(&mut self, range: &Mem) -> Option<WireMemory> {
        let proof = self.ends.as_ref()?.pass.get().proof;
        keep_errno(|| self.shared.key_server.as_ref()?.lend(proof, range))
    }

    fn read(&mut self, from: WireMemory, to: &Mem) -> ReadBegun {
        keep_errno(|| {
            self.key_channel()
                .map_or(ReadBegun::Refused, |(keys, reads)| reads.begin(keys, from, to))
        })
    }

    fn state(&mut self, number: u64) -> ReadState {
        keep_errno(|| {
            self.key_channel().map_or(ReadState::Failed, |(keys, reads)| reads.state(keys, number))
        })
    }

    fn finish(&mut self, number: u64, end_ns: u64) {
        keep_errno(|| {
            if let Some((keys, reads)) = self.key_channel() {
                reads.finish(keys, number, end_ns);
            }
        });
    }
}

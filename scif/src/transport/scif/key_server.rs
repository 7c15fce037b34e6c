// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Windows on the memory of this process's keys: a thread for each port, which answers the
//! questions of initiators and registers the memory that they ask for.
//!
//! Each initiator connects a key channel to the port, beside the connection of its messages. The
//! windows belong to that channel, so its RMAs end with it. The answers need no progress of the
//! program. No window is mapped, so a driver frees the port at exit.
//!
//! An offset is used once for each channel. An initiator that still uses the window of a closed key
//! gets ENXIO, and never reaches the memory of a later key.
//!
//! Not about the initiator's side (`key_channel`).

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use scif_ring::{AtomicCounter, KeyEntry, Mem};

use super::key_frames::{DecodedAnswer, KeyQuestion, QUESTION};
use super::sender::{Sender, Wire};
use super::stream::Stream;
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::keys::{KeyPlace, KeyRights, RevokedKeys, SharedKeys, WindowRevoker};
use crate::peer_windows::{KeyWindow, WindowCounts};
use crate::remote_reads::WireMemory;
use crate::sys::epoll::Event;
use crate::sys::errno::lock;
use crate::sys::logging::OnceEach;
use crate::sys::pages::PAGE;
use crate::sys::time::now_ns;
use crate::sys::{descriptor, thread};
use crate::window_calls::{WindowAccess, WindowCalls};

/// Offset of the first window of a channel, in bytes: below those that drivers choose themselves.
const FIRST_OFFSET: i64 = 1 << 32;
/// Questions that one channel is answered before the others have their turn.
const ANSWERS_AT_ONCE: usize = 32;
/// Maximum number of channels of a port, each with a descriptor. This process executes the RMAs of
/// further initiators.
const CHANNELS_MAX: usize = 1024;
/// Maximum number of lent windows of a channel. With fewer of them, programs with many buffers
/// register one for each message.
const LENT_MAX: usize = 64;
/// Pause in milliseconds after a failed poll(2), in which no question is answered.
const POLL_PAUSE: Duration = Duration::from_millis(20);

/// Errors of registrations that were logged.
static REFUSED: OnceEach<i32> = OnceEach::new(16);

/// Pages of a window, and the access that it grants.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct WindowPages {
    begin: usize,
    len: usize,
    access: WindowAccess,
}

impl WindowPages {
    /// Returns the whole pages of a key; `None` if it has no bytes or grants no access.
    fn of(entry: &KeyEntry, rights: KeyRights) -> Option<WindowPages> {
        let (base, len) = (usize::try_from(entry.base).ok()?, usize::try_from(entry.len).ok()?);
        let begin = base - base % PAGE;
        let end = base.checked_add(len)?.checked_next_multiple_of(PAGE)?;
        let access = WindowAccess {
            read: entry.access & rights.read != 0,
            write: entry.access & rights.write != 0,
        };
        let is_used = len > 0 && (access.read || access.write);
        is_used.then_some(WindowPages { begin, len: end - begin, access })
    }
}

/// Registered window of a channel.
#[derive(Debug)]
struct RegisteredWindow {
    offset: i64,
    /// Keys that share it.
    keys: Vec<KeyPlace>,
}

/// Windows of one channel.
#[derive(Debug)]
struct ChannelWindows {
    next_offset: i64,
    by_pages: HashMap<WindowPages, RegisteredWindow>,
    by_key: HashMap<KeyPlace, WindowPages>,
    /// Lent windows that stay registered, the oldest first.
    lent: VecDeque<LentWindow>,
}

/// Window that no description names any more, and that is unregistered without a lock.
#[derive(Debug)]
struct RemovedWindow {
    stream: Arc<Stream>,
    offset: i64,
    len: usize,
    /// Whether it is hidden from RMA that has not begun.
    is_hidden: bool,
}

/// Window on the payloads of messages, which the peer reads.
#[derive(Clone, Copy, Debug)]
struct LentWindow {
    begin: usize,
    len: usize,
    offset: i64,
}

/// Memory that a window shows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum WindowUse {
    /// Pages of a key, hidden since a time in nanoseconds.
    Key { since_ns: u64 },
    /// Payloads of messages.
    Loan,
}

/// Removed windows whose accesses may still be in progress.
#[derive(Debug)]
struct EndingWindows {
    number: u64,
    /// Keys that shared them.
    keys: Vec<KeyPlace>,
    /// Hidden windows that no thread unregisters yet, and the time in nanoseconds at which the last
    /// one was hidden.
    hidden: Vec<RemovedWindow>,
    since_ns: u64,
}

impl EndingWindows {
    fn concern(&self, keys: RevokedKeys) -> bool {
        match keys {
            RevokedKeys::One(key) => self.keys.contains(&key),
            RevokedKeys::All => true,
        }
    }
}

/// Connected key channel of an initiator.
#[derive(Debug)]
struct ServedChannel {
    stream: Arc<Stream>,
    windows: ChannelWindows,
    question: [u8; QUESTION],
    have: usize,
    /// Proof of the pass of its connection.
    proof: u64,
}

#[derive(Debug, Default)]
struct Served {
    /// Channels, in the order of their arrival. Only the thread removes some.
    channels: Vec<ServedChannel>,
    /// Windows that threads are unregistering, and the number of the next ones.
    ending: Vec<EndingWindows>,
    next_ending: u64,
    /// Lent windows that serve one message each, by their keys, and the last key.
    lent_once: HashMap<u64, RemovedWindow>,
    last_lent: u64,
    /// Lent windows that the thread has to unregister.
    expired: Vec<RemovedWindow>,
    is_running: bool,
    is_stopped: bool,
}

/// Server of the keys of a port.
#[derive(Debug)]
pub(super) struct KeyServer {
    keys: Arc<SharedKeys>,
    sender: Arc<Sender>,
    served: Mutex<Served>,
    /// Signalled when an element of `Served::ending` is removed.
    ended: Condvar,
    /// Readable while the thread must look at `served`.
    event: Event,
    registered: AtomicCounter,
    unregistered: AtomicCounter,
}

impl KeyServer {
    /// Returns the server of a port. Its thread starts with the first channel.
    pub(super) fn new(keys: &Arc<SharedKeys>, sender: &Arc<Sender>) -> Result<Arc<KeyServer>> {
        let server = Arc::new(KeyServer {
            keys: Arc::clone(keys),
            sender: Arc::clone(sender),
            served: Mutex::default(),
            ended: Condvar::new(),
            event: Event::new().map_err(Error::os("eventfd"))?,
            registered: AtomicCounter::new(0),
            unregistered: AtomicCounter::new(0),
        });
        let revoker: Weak<KeyServer> = Arc::downgrade(&server);
        keys.add_revoker(revoker);
        Ok(server)
    }

    /// Takes over the channel of an initiator. Its answers contain the proof of a pass.
    pub(super) fn admit(self: &Arc<Self>, stream: Stream, proof: u64) {
        let channel = ServedChannel {
            stream: Arc::new(stream),
            windows: ChannelWindows {
                next_offset: FIRST_OFFSET,
                by_pages: HashMap::new(),
                by_key: HashMap::new(),
                lent: VecDeque::new(),
            },
            question: [0; QUESTION],
            have: 0,
            proof,
        };
        let mut served = lock(&self.served);
        if !served.is_running && !served.is_stopped {
            let server = Arc::clone(self);
            let started = thread::spawn_quiet("scif-keys", move || server.run());
            served.is_running = started.is_ok();
            if let Err(error) = started {
                log::debug!("starting a thread that registers windows: {error}");
            }
        }
        let has_room = served.channels.len() < CHANNELS_MAX;
        if served.is_running && !served.is_stopped && has_room {
            served.channels.push(channel);
        } else {
            self.sender.dispose(channel);
        }
        self.event.signal();
    }

    /// Ends the thread, which removes all windows first. Does not wait for it, since the caller has
    /// the lock of its domain. The close of a region waits for the accesses in progress on it, also
    /// while the thread unregisters its window.
    pub(super) fn close(&self) {
        lock(&self.served).is_stopped = true;
        self.event.signal();
    }

    /// Lets the peer of the connection with a proof read the payload of a message, until
    /// [`KeyServer::end_loan`] of its key. `None`: the payload must come another way. Does not wait
    /// for the thread.
    pub(super) fn lend(&self, proof: u64, payload: &Mem) -> Option<WireMemory> {
        let mut served = self.served.try_lock().ok()?;
        if served.is_stopped {
            return None;
        }
        let Served { channels, lent_once, last_lent, expired, .. } = &mut *served;
        let channel = channels.iter_mut().find(|channel| channel.proof == proof)?;
        let stream = Arc::clone(&channel.stream);
        let (calls, _) = stream.parts();
        let stays = calls.key_windows()?.lends_addresses();
        let known = if stays { channel.lent_around(payload) } else { None };
        let window = match known {
            Some(window) => window,
            None => {
                let window = channel.lend(payload)?;
                self.registered.add(1);
                window
            }
        };
        let within = payload.addr() - window.begin;
        let addr = u64::try_from(window.offset).ok()?.checked_add(within as u64)?;
        let LentWindow { offset, len, .. } = window;
        if !stays {
            *last_lent += 1;
            let key = *last_lent;
            lent_once.insert(key, RemovedWindow { stream, offset, len, is_hidden: false });
            return Some(WireMemory { addr, key });
        }
        if known.is_none() {
            channel.windows.lent.push_back(window);
        }
        if channel.windows.lent.len() > LENT_MAX {
            if let Some(LentWindow { offset, len, .. }) = channel.windows.lent.pop_front() {
                expired.push(RemovedWindow { stream, offset, len, is_hidden: false });
                self.event.signal();
            }
        }
        Some(WireMemory { addr, key: 0 })
    }

    /// Ends a loan for one message. The thread unregisters the window.
    pub(super) fn end_loan(&self, key: u64) {
        if key == 0 {
            return;
        }
        let mut served = lock(&self.served);
        if let Some(window) = served.lent_once.remove(&key) {
            served.expired.push(window);
            self.event.signal();
        }
    }

    /// Returns the numbers of windows.
    pub(super) fn counts(&self) -> WindowCounts {
        WindowCounts {
            registered: self.registered.get(),
            unregistered: self.unregistered.get(),
            ..WindowCounts::default()
        }
    }

    fn run(&self) {
        let mut entries = Vec::new();
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        loop {
            entries.clear();
            entries.push(entry(self.event.as_fd().as_raw_fd()));
            {
                let mut served = lock(&self.served);
                if served.is_stopped {
                    drop(served);
                    self.hide(RevokedKeys::All);
                    self.remove(RevokedKeys::All);
                    served = lock(&self.served);
                    let channels = std::mem::take(&mut served.channels);
                    let lent = std::mem::take(&mut served.lent_once);
                    let expired = std::mem::take(&mut served.expired);
                    drop(served);
                    // Their windows end with them.
                    self.sender.dispose((channels, lent, expired));
                    return;
                }
                entries.extend(served.channels.iter().map(|at| entry(at.stream.raw())));
            }
            if let Err(errno) = descriptor::poll_raw(&mut entries, -1) {
                log::debug!("poll of key channels: {errno}; again after {POLL_PAUSE:?}");
                std::thread::sleep(POLL_PAUSE);
            }
            self.event.drain();
            self.serve(entries.get(1..).unwrap_or_default());
            let expired = std::mem::take(&mut lock(&self.served).expired);
            expired.into_iter().for_each(|window| self.unregister(window, WindowUse::Loan));
        }
    }

    /// Answers the questions of the channels that poll(2) reported.
    fn serve(&self, entries: &[libc::pollfd]) {
        let mut served = lock(&self.served);
        if served.is_stopped {
            return;
        }
        let mut entries = entries.iter();
        let mut stays = |channel: &mut ServedChannel| {
            let is_ready = entries.next().is_some_and(|entry| entry.revents != 0);
            !is_ready || self.answer(channel).is_some()
        };
        let mut at = 0;
        while let Some(channel) = served.channels.get_mut(at) {
            if stays(channel) {
                at += 1;
            } else {
                self.sender.dispose(served.channels.remove(at));
            }
        }
    }

    /// Answers the questions that have arrived on a channel; `None` at its end.
    fn answer(&self, channel: &mut ServedChannel) -> Option<()> {
        for _ in 0..ANSWERS_AT_ONCE {
            let rest = channel.question.get_mut(channel.have..)?;
            match channel.stream.receive(rest) {
                Ok(0) | Err(Failure::Interrupted) => return Some(()),
                Ok(n) => channel.have += n,
                Err(_) => return None,
            }
            if channel.have < QUESTION {
                continue;
            }
            channel.have = 0;
            let key = KeyQuestion::decode(channel.question)?;
            let (found, notify) = self.keys.find(key);
            let window = found.and_then(|(place, entry)| self.window(channel, place, &entry));
            let answer = DecodedAnswer { key, window, notify, proof: channel.proof }.encode();
            // An initiator has fewer questions open than the queue has room for answers.
            if channel.stream.send(&answer).ok()? < answer.len() {
                return None;
            }
        }
        Some(())
    }

    /// Returns the window of a key, which is registered if the channel has none for its pages.
    fn window(
        &self,
        channel: &mut ServedChannel,
        place: KeyPlace,
        entry: &KeyEntry,
    ) -> Option<KeyWindow> {
        let pages = WindowPages::of(entry, self.keys.rights()?)?;
        let (calls, fd) = channel.stream.parts();
        let windows = &mut channel.windows;
        let offset = match windows.by_pages.get_mut(&pages) {
            Some(window) => {
                if !window.keys.contains(&place) {
                    window.keys.push(place);
                }
                window.offset
            }
            None => {
                let offset = windows.next_offset;
                let next = offset.checked_add_unsigned(pages.len as u64)?;
                let memory = (pages.begin, pages.len);
                let made = calls.key_windows()?.register_at(fd, memory, offset, pages.access);
                if let Err(failure) = made {
                    refuse(&failure);
                    return None;
                }
                log::trace!("scif_register({:#x}, {:#x}) = {offset:#x}", pages.begin, pages.len);
                self.registered.add(1);
                windows.next_offset = next;
                windows.by_pages.insert(pages, RegisteredWindow { offset, keys: vec![place] });
                offset
            }
        };
        windows.by_key.insert(place, pages);
        Some(KeyWindow { entry: *entry, begin: pages.begin as u64, len: pages.len as u64, offset })
    }

    fn unregister(&self, window: RemovedWindow, of: WindowUse) {
        let RemovedWindow { stream, offset, len, is_hidden } = window;
        self.unregistered.add(1);
        let (calls, fd) = stream.parts();
        let unregister = |calls: &dyn WindowCalls| match of {
            WindowUse::Key { .. } if !is_hidden => calls.unregister(fd, offset, len),
            WindowUse::Key { since_ns } => calls.unregister_hidden(fd, (offset, len), since_ns),
            WindowUse::Loan => calls.end_lent(fd, offset, len),
        };
        match calls.key_windows().map(unregister) {
            Some(Ok(())) => log::trace!("scif_unregister({offset:#x}, {len:#x})"),
            // The window ends with the channel.
            Some(Err(failure)) => {
                log::debug!("scif_unregister of the window of a key: {failure}");
            }
            None => {}
        }
        // The channel may have ended meanwhile: its close waits.
        self.sender.dispose(stream);
    }
}

impl ChannelWindows {
    /// Returns the pages of the windows on the memory of keys.
    fn of(&self, keys: RevokedKeys) -> Vec<WindowPages> {
        match keys {
            RevokedKeys::One(key) => self.by_key.get(&key).copied().into_iter().collect(),
            RevokedKeys::All => self.by_pages.keys().copied().collect(),
        }
    }
}

impl ServedChannel {
    /// Returns a lent window around a payload.
    fn lent_around(&self, payload: &Mem) -> Option<LentWindow> {
        let (from, to) = (payload.addr(), payload.addr().checked_add(payload.len())?);
        let around = |window: &&LentWindow| window.begin <= from && to <= window.begin + window.len;
        self.windows.lent.iter().rev().find(around).copied()
    }

    /// Registers the pages of a payload for the peer to read.
    fn lend(&mut self, payload: &Mem) -> Option<LentWindow> {
        let begin = payload.addr() - payload.addr() % PAGE;
        let end = payload.addr().checked_add(payload.len())?.checked_next_multiple_of(PAGE)?;
        let (len, offset) = (end - begin, self.windows.next_offset);
        let next = offset.checked_add_unsigned(len as u64)?;
        let (calls, fd) = self.stream.parts();
        if let Err(failure) = calls.key_windows()?.lend_at(fd, (begin, len), offset) {
            log::debug!("scif_register of a payload: {failure}; it crosses the ring");
            return None;
        }
        log::trace!("scif_register({begin:#x}, {len:#x}) = {offset:#x} of a payload");
        self.windows.next_offset = next;
        Some(LentWindow { begin, len, offset })
    }

    /// Removes one window from the descriptions, and all keys that share it: peers ask again. Adds
    /// these keys to `keys`.
    fn take(&mut self, pages: &WindowPages, keys: &mut Vec<KeyPlace>) -> Option<RemovedWindow> {
        let window = self.windows.by_pages.remove(pages)?;
        for key in &window.keys {
            self.windows.by_key.remove(key);
        }
        keys.extend(window.keys);
        let stream = Arc::clone(&self.stream);
        Some(RemovedWindow { stream, offset: window.offset, len: pages.len, is_hidden: false })
    }
}

/// Logs a failed registration, once for each error.
fn refuse(failure: &Failure) {
    if REFUSED.first(failure.raw_os_error()) {
        log::warn!(
            "scif_register of the memory of a key: {failure}; RMA of peers on it waits for the \
             progress of this process. Raise the limit of locked memory (ulimit -l) if it is ENOMEM"
        );
    }
}

impl WindowRevoker for KeyServer {
    /// Removes the windows from the descriptions, and hides them without the lock: a channel may be
    /// waiting for RMA on another window.
    fn hide(&self, keys: RevokedKeys) {
        let mut served = lock(&self.served);
        let (mut hidden, mut shared_by) = (Vec::new(), Vec::new());
        for channel in &mut served.channels {
            for pages in channel.windows.of(keys) {
                hidden.extend(channel.take(&pages, &mut shared_by));
            }
        }
        if hidden.is_empty() {
            return;
        }
        let number = served.next_ending;
        served.next_ending += 1;
        let ending =
            EndingWindows { number, keys: shared_by, hidden: Vec::new(), since_ns: now_ns() };
        served.ending.push(ending);
        drop(served);
        for window in &mut hidden {
            let (calls, fd) = window.stream.parts();
            match calls.key_windows().map(|calls| calls.hide(fd, window.offset, window.len)) {
                Some(Ok(())) => window.is_hidden = true,
                None => {}
                Some(Err(failure)) => {
                    log::debug!("hiding the window of a key: {failure}; it is unregistered whole");
                }
            }
        }
        let mut served = lock(&self.served);
        if let Some(ending) = served.ending.iter_mut().find(|ending| ending.number == number) {
            ending.hidden = hidden;
            ending.since_ns = now_ns();
        }
    }

    /// Unregisters hidden windows without the lock, since that waits for accesses in progress.
    /// Waits also for those of windows that another thread hides or unregisters.
    fn remove(&self, keys: RevokedKeys) {
        let mut served = lock(&self.served);
        // Later ones concern later keys.
        let last = served.next_ending;
        let is_awaited = |ending: &EndingWindows| ending.number < last && ending.concern(keys);
        loop {
            let is_hidden =
                |ending: &&mut EndingWindows| is_awaited(ending) && !ending.hidden.is_empty();
            let Some(ending) = served.ending.iter_mut().find(is_hidden) else { break };
            let (number, since_ns) = (ending.number, ending.since_ns);
            let hidden = std::mem::take(&mut ending.hidden);
            drop(served);
            for window in hidden {
                self.unregister(window, WindowUse::Key { since_ns });
            }
            served = lock(&self.served);
            served.ending.retain(|ending| ending.number != number);
            self.ended.notify_all();
        }
        let others = |served: &mut Served| served.ending.iter().any(is_awaited);
        let served = self.ended.wait_while(served, others);
        drop::<MutexGuard<'_, Served>>(served.unwrap_or_else(PoisonError::into_inner));
    }
}

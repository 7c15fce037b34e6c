// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Queue of events that the reporting objects hold.
//!
//! The queue has a lock of its own, under which no code of a domain is called. Its descriptor is
//! readable exactly while an event is queued. The C buffers are in `objects::eq`.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use libfabric_sys as fi;
use scif::{Maker, Waiter, Woken, cpu_relax_or_yield, now_ns};

use crate::base::errno::{self, Errno};
use crate::base::log::{Subsys, warn_about_peer};
use crate::state::fabric::FabricShared;
use crate::state::waiters::{MAX_SLEEP_NS, WaitObj};

/// Minimum of the limit on unread events of the application, which its attribute can raise. Above
/// the limit fi_eq_write returns `FI_EAGAIN`.
const MAX_USER_EVENTS: usize = 65536;
/// Maximum number of unread events about ends of peers. Further ones are dropped and counted
/// ([`EqShared::push_end`]).
const MAX_ENDS: usize = 4096;
/// Share of `MAX_ENDS` for peers outside all address vectors, which leaves the rest to known peers.
const MAX_ENDS_OF_STRANGERS: usize = MAX_ENDS / 2;
/// Longest sleep in nanoseconds while an attempt must be repeated. A longer one delays the attempt.
const SOON_NS: u64 = 1_000_000;
/// Maximum length in bytes of an event that an application writes. A longer one is refused with
/// `FI_EINVAL`.
const MAX_USER_BYTES: usize = 64 * 1024;

/// Event: its kind, and its entry as the bytes that C gets.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) kind: u32,
    pub(crate) bytes: Vec<u8>,
}

/// Error event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EqError {
    /// Address and context of the failed object; 0: the queue itself.
    pub(crate) fid: usize,
    pub(crate) context: usize,
    pub(crate) data: u64,
    /// Positive `FI_E*`.
    pub(crate) err: Errno,
    pub(crate) prov_errno: i32,
    pub(crate) err_data: Vec<u8>,
}

impl EqError {
    /// Returns the error that reports `dropped` events.
    fn overrun(dropped: u64) -> EqError {
        EqError {
            fid: 0,
            context: 0,
            data: dropped,
            err: fi::FI_EOVERRUN,
            prov_errno: -fi::FI_EOVERRUN,
            err_data: Vec::new(),
        }
    }
}

#[derive(Debug)]
enum Item {
    Event {
        event: Event,
        fid: usize,
        by_user: bool,
        /// Connection request that passes to the application with the event.
        request: Option<Box<dyn UnreadRequest>>,
    },
    Error {
        error: EqError,
        /// Whether the error reports the end of a peer.
        of_peer: bool,
    },
    /// Marker of the place at which events were dropped.
    Overrun,
}

#[derive(Debug, Default)]
pub(crate) struct EqState {
    items: VecDeque<Item>,
    by_user: usize,
    /// Number of items that report the end of a peer.
    ends: usize,
    /// Number of dropped events about ends of peers, reported by an [`Item::Overrun`].
    dropped: u64,
    /// Data of the last error read, for a caller without a buffer for it.
    pub(crate) lent: Vec<u8>,
    /// Whether the descriptor is readable.
    signalled: bool,
}

/// Event queue.
#[derive(Debug)]
pub(crate) struct EqShared {
    /// Fabric, held so that it cannot be closed.
    fabric: Arc<FabricShared>,
    pub(crate) obj: WaitObj,
    waiter: Option<Waiter>,
    writable: bool,
    max_user_events: usize,
    state: Mutex<EqState>,
    /// Sources of events, on which reading or waiting makes progress.
    sources: Mutex<Vec<Weak<dyn EventSource>>>,
    creator: Maker,
}

/// Unread connection request; dropping it rejects the request.
pub(crate) trait UnreadRequest: Send + Sync {
    /// Returns the address of the info that reports the request to the application.
    fn info(&self) -> usize;

    /// Passes the request to the application.
    fn give(self: Box<Self>);
}

scif::debug_by_name!(UnreadRequest);

/// Source of events, which makes progress only while a thread reads the event queue or waits for
/// it.
pub(crate) trait EventSource: Send + Sync {
    /// Makes progress. Returns true when it must be called again soon, since no descriptor
    /// announces the next event.
    fn progress(self: Arc<Self>) -> bool;
}

scif::debug_by_name!(EventSource);

impl EqShared {
    pub(crate) fn new(
        fabric: Arc<FabricShared>,
        attr: &fi::fi_eq_attr,
        obj: WaitObj,
    ) -> Result<EqShared, Errno> {
        let waiter = match obj {
            WaitObj::None | WaitObj::Yield => None,
            WaitObj::Unspec | WaitObj::Fd | WaitObj::PollFd | WaitObj::Set => {
                Some(Waiter::new().map_err(|e| errno::errno(&e))?)
            }
        };
        Ok(EqShared {
            fabric,
            obj,
            waiter,
            writable: attr.flags & fi::FI_WRITE != 0,
            max_user_events: attr.size.max(MAX_USER_EVENTS),
            state: Mutex::default(),
            sources: Mutex::default(),
            creator: Maker::here(),
        })
    }

    /// Whether the application's error entries have a size of their data.
    pub(crate) fn sizes_err_data(&self) -> bool {
        self.fabric.api_version >= fi::fi_version(1, 5)
    }

    /// Returns the process that created the queue. A forked child must not use the queue: it gets
    /// no events, and the lock may be held by a thread that it does not have.
    pub(crate) fn creator(&self) -> Maker {
        self.creator
    }

    /// Locks the state. A panic elsewhere leaves it consistent: every change is complete before any
    /// step can fail.
    fn lock(&self) -> MutexGuard<'_, EqState> {
        scif::keep_errno(|| self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the descriptor that waiting threads watch.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.waiter.as_ref().map(Waiter::fd)
    }

    pub(crate) fn raw_fd(&self) -> Result<c_int, Errno> {
        self.waiter.as_ref().map(|waiter| waiter.fd().as_raw_fd()).ok_or(fi::FI_ENODATA)
    }

    fn put(&self, state: &mut EqState, item: Item) {
        state.items.push_back(item);
        if let Some(waiter) = &self.waiter {
            if !state.signalled {
                state.signalled = true;
                waiter.signal();
            }
        }
    }

    /// Makes the descriptor unreadable once the queue is empty.
    fn settle(&self, state: &mut EqState) {
        if let Some(waiter) = &self.waiter {
            if state.signalled && state.items.is_empty() {
                state.signalled = false;
                waiter.drain();
            }
        }
    }

    /// Reports an event to the application. The entry begins with the address of the object
    /// concerned.
    pub(crate) fn push(&self, event: u32, entry: &[u8]) {
        let fid = entry.first_chunk().map_or(0, |head| usize::from_ne_bytes(*head));
        let event = Event { kind: event, bytes: entry.to_vec() };
        self.put(&mut self.lock(), Item::Event { event, fid, by_user: false, request: None });
    }

    /// Reports a connection request to the application.
    pub(crate) fn push_request(&self, fid: usize, request: Box<dyn UnreadRequest>, data: &[u8]) {
        let event = Event { kind: fi::FI_CONNREQ, bytes: cm_bytes(fid, request.info(), data) };
        self.put(
            &mut self.lock(),
            Item::Event { event, fid, by_user: false, request: Some(request) },
        );
    }

    /// Reports an error to the application.
    pub(crate) fn push_error(&self, error: EqError) {
        self.put(&mut self.lock(), Item::Error { error, of_peer: false });
    }

    /// Reports the end of a peer to the application.
    ///
    /// Peers determine the number of such events. When too many are unread, further ones are
    /// dropped. One event with `FI_EOVERRUN` and their number takes their place. The queue stays
    /// usable: no peer can disable it.
    pub(crate) fn push_end(&self, error: EqError) {
        let stranger = error.data == fi::FI_ADDR_NOTAVAIL;
        let most = if stranger { MAX_ENDS_OF_STRANGERS } else { MAX_ENDS };
        let mut state = self.lock();
        if state.ends < most {
            state.ends += 1;
            return self.put(&mut state, Item::Error { error, of_peer: true });
        }
        state.dropped += 1;
        if state.dropped == 1 {
            self.put(&mut state, Item::Overrun);
            warn_about_peer(
                Subsys::EpCtrl,
                format_args!(
                    "event queue has {} unread events about peers that ended; further ones are \
                     dropped and counted (FI_EOVERRUN). Read it with fi_eq_read",
                    state.ends
                ),
            );
        }
    }

    /// Removes the events of an object that is being closed, and rejects connection requests among
    /// them.
    pub(crate) fn purge_fid(&self, fid: usize) {
        let mut state = self.lock();
        let all = std::mem::take(&mut state.items);
        let (kept, gone): (VecDeque<_>, VecDeque<_>) =
            all.into_iter().partition(|item| match item {
                Item::Event { fid: of, by_user, .. } => *by_user || *of != fid,
                Item::Error { error, .. } => error.fid != fid,
                Item::Overrun => true,
            });
        let is_end = |item: &&Item| matches!(item, Item::Error { of_peer: true, .. });
        state.ends = kept.iter().filter(is_end).count();
        state.items = kept;
        self.settle(&mut state);
        drop(state);
        // The rejection takes the lock of the passive endpoint, under which requests are reported.
        drop(gone);
    }

    pub(crate) fn write(&self, event: u32, bytes: &[u8]) -> Result<(), Errno> {
        if !self.writable {
            return Err(fi::FI_ENOSYS);
        }
        if bytes.len() > MAX_USER_BYTES {
            return Err(fi::FI_EINVAL);
        }
        let mut state = self.lock();
        if state.by_user >= self.max_user_events {
            return Err(fi::FI_EAGAIN);
        }
        state.by_user += 1;
        let event = Event { kind: event, bytes: bytes.to_vec() };
        self.put(&mut state, Item::Event { event, fid: 0, by_user: true, request: None });
        Ok(())
    }

    /// Adds a source of events whose descriptor `fd` becomes readable when it has events.
    ///
    /// # Errors
    /// Errors of the system, when the descriptor cannot be watched.
    pub(crate) fn attach(
        &self,
        source: Weak<dyn EventSource>,
        fd: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        if let Some(waiter) = &self.waiter {
            waiter.add(fd).map_err(|e| errno::errno(&e))?;
        }
        self.follow(source);
        Ok(())
    }

    /// Adds a source of events that itself announces when to make progress.
    pub(crate) fn follow(&self, source: Weak<dyn EventSource>) {
        let mut sources = self.lock_sources();
        sources.retain(|source| source.strong_count() > 0);
        sources.push(source);
    }

    /// Stops watching a descriptor. Its source is removed after it is dropped.
    pub(crate) fn detach(&self, fd: BorrowedFd<'_>) {
        if let Some(waiter) = &self.waiter {
            waiter.remove(fd);
        }
    }

    fn lock_sources(&self) -> MutexGuard<'_, Vec<Weak<dyn EventSource>>> {
        scif::keep_errno(|| self.sources.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes progress on all sources. Returns true when it must be called again soon.
    pub(crate) fn progress(&self) -> bool {
        if self.creator.is_ancestor() {
            return false;
        }
        let mut sources = self.lock_sources();
        if sources.is_empty() {
            return false;
        }
        sources.retain(|source| source.strong_count() > 0);
        let alive: Vec<_> = sources.iter().filter_map(Weak::upgrade).collect();
        // Unlocked, since they may close and open other sources, and report events.
        drop(sources);
        let mut soon = false;
        for source in alive {
            soon |= source.progress();
        }
        soon
    }

    /// Returns the oldest event, in at most `room` bytes.
    pub(crate) fn read(&self, room: usize, peek: bool) -> Result<Event, Errno> {
        let mut state = self.lock();
        let (event, by_user) = match state.items.front() {
            None => return Err(fi::FI_EAGAIN),
            Some(Item::Error { .. } | Item::Overrun) => return Err(fi::FI_EAVAIL),
            Some(Item::Event { event, by_user, .. }) => (event, *by_user),
        };
        let all = event.bytes.len();
        // The entry of a connection event must fit; the data after it is truncated.
        let least = match event.kind {
            fi::FI_CONNREQ | fi::FI_CONNECTED | fi::FI_SHUTDOWN if !by_user => {
                all.min(size_of::<fi::fi_eq_cm_entry>())
            }
            // A caller without a buffer wants only the kind of the event.
            _ if room == 0 => 0,
            _ => all,
        };
        if room < least {
            return Err(fi::FI_ETOOSMALL);
        }
        let mut event = event.clone();
        event.bytes.truncate(room);
        if !peek {
            if let Some(Item::Event { request: Some(request), .. }) = state.items.pop_front() {
                request.give();
            }
            state.by_user -= usize::from(by_user);
            state.lent = Vec::new();
            self.settle(&mut state);
        }
        Ok(event)
    }

    /// Takes the error at the head. Its data is in `lent`, at least until the guard is dropped.
    pub(crate) fn take_error(
        &self,
        peek: bool,
    ) -> Result<(EqError, MutexGuard<'_, EqState>), Errno> {
        let mut state = self.lock();
        let (error, of_peer) = match state.items.front() {
            Some(Item::Error { error, of_peer }) => (error.clone(), *of_peer),
            Some(Item::Overrun) => (EqError::overrun(state.dropped), false),
            _ => return Err(fi::FI_EAGAIN),
        };
        state.lent.clone_from(&error.err_data);
        if !peek {
            if let Some(Item::Overrun) = state.items.pop_front() {
                state.dropped = 0;
            }
            state.ends -= usize::from(of_peer);
            self.settle(&mut state);
        }
        Ok((error, state))
    }

    pub(crate) fn sread(&self, room: usize, timeout_ms: c_int, peek: bool) -> Result<Event, Errno> {
        if matches!(self.obj, WaitObj::None | WaitObj::Set) {
            return Err(fi::FI_ENOSYS);
        }
        let deadline =
            u64::try_from(timeout_ms).ok().map(|ms| now_ns().saturating_add(ms * 1_000_000));
        let mut polls = 0;
        loop {
            let soon = self.progress();
            match self.read(room, peek) {
                Err(fi::FI_EAGAIN) => {}
                found => return found,
            }
            let left = deadline.map(|deadline| deadline.saturating_sub(now_ns()));
            if left == Some(0) {
                return Err(fi::FI_EAGAIN);
            }
            match &self.waiter {
                Some(waiter) => {
                    // After the longest sleep, a passive endpoint that lacked a descriptor for a
                    // caller retries.
                    let longest = if soon { SOON_NS } else { MAX_SLEEP_NS };
                    let timeout_ns = left.map_or(longest, |left| left.min(longest));
                    let woken =
                        waiter.wait_or_interrupt(Some(timeout_ns)).map_err(|e| errno::errno(&e))?;
                    if woken == Woken::Interrupted {
                        self.progress();
                        return self.read(room, peek);
                    }
                }
                None => {
                    polls += 1;
                    cpu_relax_or_yield(polls);
                }
            }
        }
    }

    /// Implements `fi_trywait`: checks that a thread may wait on the descriptor, because no event
    /// is queued and no attempt must be repeated.
    ///
    /// # Errors
    /// `FI_EAGAIN`: read again. `FI_EINVAL`: no wait object.
    pub(crate) fn try_wait(&self) -> Result<(), Errno> {
        if self.waiter.is_none() {
            return Err(fi::FI_EINVAL);
        }
        let soon = self.progress();
        if self.lock().items.is_empty() && !soon { Ok(()) } else { Err(fi::FI_EAGAIN) }
    }
}

/// Returns the bytes of a `struct fi_eq_entry`.
pub(crate) fn eq_entry<F>(
    fid: *const F,
    context: *mut c_void,
    data: u64,
) -> [u8; size_of::<fi::fi_eq_entry>()] {
    let fields = [
        fid.expose_provenance().to_ne_bytes(),
        context.expose_provenance().to_ne_bytes(),
        data.to_ne_bytes(),
    ];
    let mut bytes = [0; size_of::<fi::fi_eq_entry>()];
    for (to, from) in bytes.iter_mut().zip(fields.as_flattened()) {
        *to = *from;
    }
    bytes
}

/// Returns the bytes of a `struct fi_eq_cm_entry` without an info, followed by `data`.
pub(crate) fn cm_entry(fid: usize, data: &[u8]) -> Vec<u8> {
    cm_bytes(fid, 0, data)
}

fn cm_bytes(fid: usize, info: usize, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of::<fi::fi_eq_cm_entry>() + data.len());
    bytes.extend_from_slice(&fid.to_ne_bytes());
    bytes.extend_from_slice(&info.to_ne_bytes());
    bytes.extend_from_slice(data);
    bytes
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use scif::{Config, Node, TransportKind};

    use super::*;

    fn queue(wait_obj: u32, flags: u64) -> EqShared {
        let node = Node::open(Config::default(), TransportKind::Local).unwrap();
        let fabric = FabricShared::new(fi::fi_version(1, 17), node);
        EqShared::new(
            fabric,
            &fi::fi_eq_attr { wait_obj, flags, ..fi::fi_eq_attr::ZERO },
            WaitObj::from_c(wait_obj).unwrap(),
        )
        .unwrap()
    }

    fn entry_of(fid: usize) -> Vec<u8> {
        [fid, 2, 3].iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn error(fid: usize) -> EqError {
        EqError {
            fid,
            context: 7,
            data: 8,
            err: fi::FI_ECONNREFUSED,
            prov_errno: 9,
            err_data: b"no".to_vec(),
        }
    }

    #[test]
    fn events_come_in_order_and_an_error_in_its_place() {
        let eq = queue(fi::FI_WAIT_NONE, 0);
        eq.push(fi::FI_AV_COMPLETE, &entry_of(1));
        eq.push_error(error(1));
        eq.push(fi::FI_NOTIFY, &entry_of(1));
        assert_eq!(eq.read(24, true).unwrap().kind, fi::FI_AV_COMPLETE);
        assert_eq!(eq.read(24, false).unwrap().bytes, entry_of(1));
        assert_eq!(eq.read(24, false).err(), Some(fi::FI_EAVAIL));
        assert_eq!(eq.take_error(true).map(|(error, _)| error), Ok(error(1)), "a look leaves it");
        assert_eq!(eq.take_error(false).map(|(error, _)| error), Ok(error(1)));
        assert_eq!(eq.lock().lent, b"no");
        assert_eq!(eq.take_error(false).err(), Some(fi::FI_EAGAIN));
        assert_eq!(eq.read(24, false).unwrap().kind, fi::FI_NOTIFY);
        assert!(eq.lock().lent.is_empty(), "lent until the next read");
        assert_eq!(eq.read(24, false).err(), Some(fi::FI_EAGAIN));
    }

    #[test]
    fn entries_are_whole_and_connection_data_is_truncated() {
        let eq = queue(fi::FI_WAIT_NONE, fi::FI_WRITE);
        eq.write(fi::FI_CONNREQ, &entry_of(1)).unwrap();
        assert_eq!(eq.read(23, false).err(), Some(fi::FI_ETOOSMALL));
        assert_eq!(eq.read(24, false).unwrap().bytes.len(), 24);
        eq.push(fi::FI_CONNREQ, &entry_of(1));
        assert_eq!(eq.read(15, false).err(), Some(fi::FI_ETOOSMALL));
        assert_eq!(eq.read(20, false).unwrap().bytes, entry_of(1)[..20]);
    }

    #[test]
    fn writing_needs_permission_and_stays_within_bounds() {
        assert_eq!(queue(fi::FI_WAIT_NONE, 0).write(1, b"x"), Err(fi::FI_ENOSYS));
        let eq = queue(fi::FI_WAIT_NONE, fi::FI_WRITE);
        assert_eq!(eq.write(1, &vec![0; MAX_USER_BYTES + 1]), Err(fi::FI_EINVAL));
        for _ in 0..MAX_USER_EVENTS {
            eq.write(1, b"").unwrap();
        }
        assert_eq!(eq.write(1, b""), Err(fi::FI_EAGAIN));
        eq.read(0, false).unwrap();
        assert_eq!(eq.write(1, b""), Ok(()));
    }

    #[test]
    fn events_of_a_closed_object_are_removed_except_user_events() {
        let eq = queue(fi::FI_WAIT_FD, fi::FI_WRITE);
        eq.push(fi::FI_CONNECTED, &entry_of(5));
        eq.push_error(error(5));
        eq.push_error(error(6));
        eq.write(fi::FI_NOTIFY, &entry_of(5)).unwrap();
        eq.purge_fid(5);
        assert_eq!(eq.take_error(false).unwrap().0.fid, 6);
        assert_eq!(eq.read(24, false).unwrap().kind, fi::FI_NOTIFY);
        eq.push(fi::FI_CONNECTED, &entry_of(5));
        eq.purge_fid(5);
        assert_eq!(
            eq.waiter.as_ref().unwrap().wait(Some(0)),
            Ok(false),
            "an empty queue does not wake"
        );
    }

    #[test]
    fn unread_ends_of_peers_are_bounded_and_counted() {
        let eq = queue(fi::FI_WAIT_FD, 0);
        let end = |data| EqError { data, err: fi::FI_ECONNRESET, ..error(3) };
        let take = || eq.take_error(false).map(|(error, _)| (error.err, error.data));
        let strangers = MAX_ENDS_OF_STRANGERS as u64;
        for round in 0..2 {
            for _ in 0..10 * MAX_ENDS {
                eq.push_end(end(fi::FI_ADDR_NOTAVAIL));
            }
            assert_eq!(eq.lock().items.len(), MAX_ENDS_OF_STRANGERS + 1);
            // Events about known peers still fit, and keep their order.
            eq.push_end(end(5));
            eq.push(fi::FI_NOTIFY, &entry_of(1));
            for _ in 0..strangers {
                assert_eq!(take(), Ok((fi::FI_ECONNRESET, fi::FI_ADDR_NOTAVAIL)));
            }
            let lost = 10 * MAX_ENDS as u64 - strangers;
            let overrun = eq.take_error(true).map(|(error, _)| (error.err, error.data, error.fid));
            assert_eq!(overrun, Ok((fi::FI_EOVERRUN, lost, 0)), "a look leaves it");
            assert_eq!(eq.read(24, false).err(), Some(fi::FI_EAVAIL));
            assert_eq!(take(), Ok((fi::FI_EOVERRUN, lost)));
            assert_eq!(take(), Ok((fi::FI_ECONNRESET, 5)));
            assert_eq!(eq.read(24, false).unwrap().kind, fi::FI_NOTIFY);
            assert_eq!(eq.read(24, false).err(), Some(fi::FI_EAGAIN), "{round}");
            assert_eq!(eq.waiter.as_ref().unwrap().wait(Some(0)), Ok(false));
        }
        for _ in 0..2 * MAX_ENDS {
            eq.push_end(end(5));
        }
        assert_eq!(eq.lock().items.len(), MAX_ENDS + 1);
        // Removing the events of a closed object makes space again.
        eq.purge_fid(3);
        eq.push_end(end(fi::FI_ADDR_NOTAVAIL));
        assert_eq!(take(), Ok((fi::FI_EOVERRUN, MAX_ENDS as u64)));
        assert_eq!(take(), Ok((fi::FI_ECONNRESET, fi::FI_ADDR_NOTAVAIL)));
        assert_eq!(take(), Err(fi::FI_EAGAIN));
    }

    #[test]
    fn the_descriptor_is_readable_while_something_is_queued() {
        let eq = queue(fi::FI_WAIT_FD, 0);
        let readable = || eq.waiter.as_ref().unwrap().wait(Some(0)).unwrap();
        assert!(!readable() && eq.try_wait().is_ok());
        eq.push_error(error(1));
        eq.push(fi::FI_NOTIFY, &entry_of(1));
        assert!(readable() && eq.try_wait() == Err(fi::FI_EAGAIN));
        drop(eq.take_error(false).unwrap());
        assert!(readable());
        eq.read(24, false).unwrap();
        assert!(!readable() && eq.try_wait().is_ok());
    }

    #[test]
    fn a_blocking_read_ends_by_event_and_by_time() {
        for obj in [fi::FI_WAIT_UNSPEC, fi::FI_WAIT_YIELD] {
            let eq = queue(obj, 0);
            assert_eq!(eq.sread(24, 2, false).err(), Some(fi::FI_EAGAIN));
            thread::scope(|scope| {
                let reader = scope.spawn(|| eq.sread(24, -1, false));
                thread::sleep(Duration::from_millis(5));
                eq.push(fi::FI_NOTIFY, &entry_of(1));
                assert_eq!(reader.join().unwrap().unwrap().kind, fi::FI_NOTIFY);
            });
        }
        assert_eq!(queue(fi::FI_WAIT_NONE, 0).sread(24, 0, false).err(), Some(fi::FI_ENOSYS));
    }

    #[test]
    fn an_event_entry_is_its_three_fields() {
        let mut context = 0u8;
        let fid = &raw const context;
        let bytes = eq_entry(fid, (&raw mut context).cast(), 7);
        assert_eq!(bytes[..8], fid.addr().to_ne_bytes());
        assert_eq!(bytes[8..16], fid.addr().to_ne_bytes());
        assert_eq!(bytes[16..], 7u64.to_ne_bytes());
    }
}

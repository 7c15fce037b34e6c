// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! An endpoint: its place in a connection, the bytes of its stream, and its windows.
//!
//! The descriptor of an endpoint is an event, readable while a call has something to return. It is
//! always writable; without credit a sender retries after a backoff. A missing frame ends the
//! connection.
//! Not about the process at the other end (`link`).

use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use super::abi::SciCode;
use super::frame::{ConnectRequest, Frame, FrameContent, WindowCard};
use super::functions::Sci;
use super::library::{Library, LocalMap};
use super::link::ProcessLink;
use super::windows::{OwnSegment, PeerSegment};
use crate::failure::Failure;
use crate::sorted::SortedMap;
use crate::sys::epoll::Event;
use crate::sys::errno::lock;
use crate::sys::time::now_ns;

/// Bytes of a stream that may be under way or wait at the receiver. It holds more than the 4095 of
/// a driver, on which greetings and key requests rely.
const CREDIT: usize = 16 << 10;
/// First offset that the endpoint itself gives to a window, above all that its user chooses.
const FIRST_OFFSET: i64 = 1 << 44;
/// Number of requests that wait to be accepted. Further ones are refused.
const REQUESTS_MAX: usize = 1024;
/// Nanoseconds after a timeout of a peer for which its new windows are not mapped. A shorter time
/// lets a stopped peer delay the windows of others more often.
const SLOW_NS: u64 = 2_000_000_000;
/// Number of windows of a peer. A peer with more is malicious, and its connection is reset.
const WINDOWS_MAX: usize = 1 << 18;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum SisciStage {
    Unused,
    Listening,
    Connecting,
    Connected,
    /// Refused or ended: what has arrived can still be received.
    Ended,
}

/// Port with its segment, by which peers find this process.
#[derive(Debug)]
pub(super) struct BoundPort {
    pub(super) number: u16,
    pub(super) card: LocalMap,
}

/// Other end of a connection.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) link: Arc<ProcessLink>,
    pub(super) token: u64,
}

#[derive(Debug)]
struct SisciState {
    stage: SisciStage,
    port: Option<BoundPort>,
    requests: VecDeque<(ConnectRequest, Arc<ProcessLink>)>,
    peer: Option<Peer>,
    /// Token of this end, once it is connecting.
    token: u64,
    /// Number of the next frame to the peer, and of the next one from it.
    next_sent: u32,
    next_received: u32,
    /// Bytes sent of which the peer has not reported the receipt.
    in_flight: usize,
    /// Bytes received whose receipt was not reported.
    unreported: usize,
    incoming: VecDeque<u8>,
    /// Bytes behind a window that is not mapped yet: they may name it.
    held: VecDeque<u8>,
    /// Number of windows that the service thread has to map.
    unmapped: usize,
    /// Monotonic time in nanoseconds until which new windows of a peer that did not answer stay
    /// unmapped.
    slow_until_ns: u64,
    own_windows: SortedMap<i64, OwnSegment>,
    next_offset: i64,
    peer_windows: SortedMap<i64, Arc<PeerSegment>>,
    /// Withdrawn windows that the peer has not left.
    leaving: HashSet<i64>,
}

/// Parts of a closed endpoint, to be dropped outside of callbacks.
#[derive(Debug)]
pub(super) struct Rest {
    pub(super) token: u64,
    _parts: (Option<BoundPort>, Option<Peer>, SortedMap<i64, OwnSegment>),
    _windows: SortedMap<i64, Arc<PeerSegment>>,
    _requests: VecDeque<(ConnectRequest, Arc<ProcessLink>)>,
}

/// Frame that the service thread has to handle.
#[derive(Debug)]
pub(super) enum WindowNews {
    /// Window to map.
    New(Arc<PeerSegment>),
    /// Offset of a window to leave.
    Withdrawn(i64),
    /// Answer to a request that was given up.
    Late,
}

/// An endpoint.
#[derive(Debug)]
pub(super) struct SisciEndpoint {
    event: Event,
    state: Mutex<SisciState>,
    changed: Condvar,
}

impl SisciState {
    fn connected(&self) -> Result<Peer, Failure> {
        match (self.stage, &self.peer) {
            (SisciStage::Connected, Some(peer)) => Ok(peer.clone()),
            (SisciStage::Ended, _) => Err(Failure::Reset),
            _ => Err(Failure::NotConnected),
        }
    }

    /// Sends the next frame to the peer.
    fn post(&mut self, content: FrameContent<'_>) -> Result<(), Failure> {
        let peer = self.connected()?;
        let frame = Frame { token: peer.token, number: self.next_sent, content };
        peer.link.post(frame.encode())?;
        self.next_sent = self.next_sent.wrapping_add(1);
        Ok(())
    }

    /// Notes the result of mapping a window, at time `now` in nanoseconds.
    fn note_opened(&mut self, opened: Sci<()>, now: u64) {
        if let Err(code) = opened {
            log::debug!("SCIConnectSegment of a window: {code}; its owner executes RMA itself");
            if code == SciCode::TIMEOUT {
                self.slow_until_ns = now.saturating_add(SLOW_NS);
            }
        }
        self.unmapped = self.unmapped.saturating_sub(1);
    }

    fn is_readable(&self) -> bool {
        !self.requests.is_empty() || !self.incoming.is_empty() || self.stage == SisciStage::Ended
    }
}

impl SisciEndpoint {
    pub(super) fn new() -> Result<Arc<SisciEndpoint>, Errno> {
        let state = SisciState {
            stage: SisciStage::Unused,
            port: None,
            requests: VecDeque::new(),
            peer: None,
            token: 0,
            next_sent: 0,
            next_received: 0,
            in_flight: 0,
            unreported: 0,
            incoming: VecDeque::new(),
            held: VecDeque::new(),
            unmapped: 0,
            slow_until_ns: 0,
            own_windows: SortedMap::new(),
            next_offset: FIRST_OFFSET,
            peer_windows: SortedMap::new(),
            leaving: HashSet::new(),
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Ok(Arc::new(SisciEndpoint { event: Event::new()?, state, changed }))
    }

    /// Returns the descriptor of its user.
    pub(super) fn descriptor(&self) -> Result<OwnedFd, Failure> {
        let copy = self.event.as_fd().try_clone_to_owned();
        copy.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE).into())
    }

    fn lock(&self) -> MutexGuard<'_, SisciState> {
        lock(&self.state)
    }

    /// Makes the descriptor readable or not, as the state demands.
    fn show(&self, state: &mut SisciState) {
        if state.unmapped == 0 || state.stage == SisciStage::Ended {
            let SisciState { incoming, held, .. } = state;
            incoming.append(held);
        }
        if state.is_readable() {
            self.event.signal();
        } else {
            self.event.drain();
        }
    }

    fn end(&self, state: &mut SisciState) {
        if matches!(state.stage, SisciStage::Connecting | SisciStage::Connected) {
            state.stage = SisciStage::Ended;
            self.show(state);
            self.changed.notify_all();
        }
    }

    /// Ends the connection if its link is lost.
    pub(super) fn lose(&self) {
        let mut state = self.lock();
        if state.peer.as_ref().is_some_and(|peer| peer.link.is_lost()) {
            self.end(&mut state);
        }
    }

    /// Takes a frame of the peer, and returns a window for the service thread to handle.
    pub(super) fn take(&self, frame: &Frame<'_>) -> Option<WindowNews> {
        let mut state = self.lock();
        if !matches!(state.stage, SisciStage::Connecting | SisciStage::Connected) {
            let is_late = matches!(frame.content, FrameContent::Accept(_));
            return is_late.then_some(WindowNews::Late);
        }
        if frame.number != state.next_received {
            log::debug!("frame {} of a connection is missing; reset", state.next_received);
            self.end(&mut state);
            return None;
        }
        state.next_received = state.next_received.wrapping_add(1);
        let mut news = None;
        match (state.stage, frame.content) {
            (SisciStage::Connecting, FrameContent::Accept(token)) => {
                if let Some(peer) = &mut state.peer {
                    peer.token = token;
                }
                state.stage = SisciStage::Connected;
                self.changed.notify_all();
            }
            (SisciStage::Connected, FrameContent::Data(bytes))
                if bytes.len() + state.incoming.len() + state.held.len() <= CREDIT =>
            {
                state.held.extend(bytes);
                self.show(&mut state);
            }
            (SisciStage::Connected, FrameContent::Credit(bytes)) => {
                state.in_flight = state.in_flight.saturating_sub(bytes as usize);
            }
            (SisciStage::Connected, FrameContent::Window(card))
                if state.peer_windows.len() < WINDOWS_MAX
                    && !state.peer_windows.contains_key(&card.offset) =>
            {
                let node = state.peer.as_ref().map_or(0, |peer| peer.link.peer().node);
                let window = Arc::new(PeerSegment::new(node, card));
                if window.is_for_rma() {
                    state.unmapped += 1;
                    news = Some(WindowNews::New(Arc::clone(&window)));
                }
                state.peer_windows.insert(card.offset, window);
            }
            (SisciStage::Connected, FrameContent::Withdraw(offset)) => {
                news = Some(WindowNews::Withdrawn(offset));
            }
            (SisciStage::Connected, FrameContent::Left(offset)) => {
                state.leaving.remove(&offset);
                self.changed.notify_all();
            }
            _ => self.end(&mut state),
        }
        news
    }

    /// Maps a window of the peer, then shows the bytes behind its frame.
    pub(super) fn open_window(&self, window: &PeerSegment, library: &Arc<Library>, limit_ms: u32) {
        let is_slow = now_ns() < self.lock().slow_until_ns;
        let opened = if is_slow { Ok(()) } else { window.open(library, limit_ms) };
        let mut state = self.lock();
        state.note_opened(opened, now_ns());
        self.show(&mut state);
    }

    /// Leaves a window that the peer withdraws, and confirms that. Returns false while a copy is in
    /// progress; the caller then tries again.
    pub(super) fn leave_window(&self, offset: i64) -> bool {
        let window = self.lock().peer_windows.get(&offset).cloned();
        // Without the lock of the endpoint: the library is called.
        if window.is_some_and(|window| !window.try_leave()) {
            return false;
        }
        let mut state = self.lock();
        state.peer_windows.remove(&offset);
        // A lost peer waits no longer.
        let _ = state.post(FrameContent::Left(offset));
        true
    }

    /// Notes the port of an unused endpoint.
    pub(super) fn bind(&self, port: BoundPort) -> Result<u16, Failure> {
        let mut state = self.lock();
        if state.stage != SisciStage::Unused || state.port.is_some() {
            return Err(Failure::Invalid);
        }
        let number = port.number;
        state.port = Some(port);
        Ok(number)
    }

    /// Begins to listen at the port, with `offer`.
    pub(super) fn listen(
        &self,
        offer: impl FnOnce(&BoundPort) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut state = self.lock();
        match (&state.port, state.stage) {
            (Some(port), SisciStage::Unused) => {
                offer(port)?;
                state.stage = SisciStage::Listening;
                Ok(())
            }
            _ => Err(Failure::Invalid),
        }
    }

    /// Takes a request for the listener; returns whether it waits to be accepted.
    pub(super) fn queue_request(&self, request: ConnectRequest, link: &Arc<ProcessLink>) -> bool {
        let mut state = self.lock();
        let is_taken = state.stage == SisciStage::Listening && state.requests.len() < REQUESTS_MAX;
        if is_taken {
            state.requests.push_back((request, Arc::clone(link)));
            self.show(&mut state);
        }
        is_taken
    }

    /// Takes the next request of a listener.
    pub(super) fn next_request(&self) -> Result<(ConnectRequest, Arc<ProcessLink>), Failure> {
        let mut state = self.lock();
        if state.stage != SisciStage::Listening {
            return Err(Failure::Invalid);
        }
        let request = state.requests.pop_front();
        self.show(&mut state);
        request.ok_or(Failure::Again)
    }

    /// Enters the connection that a request asks for, with the token of this end.
    pub(super) fn accept(&self, peer: Peer, token: u64) -> Result<(), Failure> {
        let mut state = self.lock();
        if state.stage != SisciStage::Unused {
            return Err(Failure::Invalid);
        }
        state.stage = SisciStage::Connected;
        state.peer = Some(peer);
        state.token = token;
        state.post(FrameContent::Accept(token))
    }

    /// Begins to connect over a link with the token of this end; `send` sends the request.
    pub(super) fn connect(
        &self,
        link: Arc<ProcessLink>,
        token: u64,
        send: impl FnOnce(u16) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut state = self.lock();
        if state.stage != SisciStage::Unused {
            return Err(Failure::IsConnected);
        }
        state.stage = SisciStage::Connecting;
        state.peer = Some(Peer { link, token: 0 });
        state.token = token;
        send(state.port.as_ref().map_or(0, |port| port.number))
    }

    /// Waits until the request is accepted or refused, at most `limit`.
    pub(super) fn connected(&self, limit: Duration) -> Result<(), Failure> {
        let is_open = |state: &mut SisciState| state.stage == SisciStage::Connecting;
        let waited = self.changed.wait_timeout_while(self.lock(), limit, is_open);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match state.stage {
            SisciStage::Connected => Ok(()),
            SisciStage::Connecting => Err(Failure::Os(Errno::TIMEDOUT)),
            _ => Err(Failure::Refused),
        }
    }

    /// Ends a connection whose request was not answered in time. Returns whether an answer has come
    /// nevertheless; the peer is then told that the connection ends.
    pub(super) fn give_up(&self) -> bool {
        let mut state = self.lock();
        // A peer that is gone needs no frame.
        let _ = state.post(FrameContent::Close);
        self.end(&mut state);
        state.next_received > 0
    }

    /// Sends as many bytes as the peer has given credit for, in frames of at most `chunk`.
    pub(super) fn send(&self, bytes: &[u8], chunk: usize) -> Result<usize, Failure> {
        let mut state = self.lock();
        state.connected()?;
        let room = CREDIT.saturating_sub(state.in_flight).min(bytes.len());
        for part in bytes.get(..room).unwrap_or_default().chunks(chunk) {
            state.post(FrameContent::Data(part))?;
            state.in_flight += part.len();
        }
        Ok(room)
    }

    /// Receives bytes of the stream; 0 without any.
    pub(super) fn receive(&self, to: &mut [u8]) -> Result<usize, Failure> {
        let mut state = self.lock();
        let n = state.incoming.len().min(to.len());
        if n == 0 && state.stage != SisciStage::Connected {
            return state.connected().map(|_| 0);
        }
        to.iter_mut().zip(state.incoming.drain(..n)).for_each(|(to, byte)| *to = byte);
        self.show(&mut state);
        state.unreported += n;
        if state.unreported >= CREDIT / 2 {
            let bytes = u32::try_from(std::mem::take(&mut state.unreported)).unwrap_or(0);
            // The next call reports the end of the peer.
            let _ = state.post(FrameContent::Credit(bytes));
        }
        Ok(n)
    }

    /// Announces a window on `len` bytes at `offset`; without an offset, at one that is free.
    pub(super) fn add_window(
        &self,
        offset: Option<i64>,
        (start, len): (usize, usize),
        (segment, access): (u32, u32),
        window: OwnSegment,
    ) -> Result<i64, Failure> {
        let mut state = self.lock();
        let offset = offset.unwrap_or(state.next_offset);
        let end = offset.checked_add_unsigned(len as u64).ok_or(Failure::NoMemory)?;
        if offset == state.next_offset {
            state.next_offset = end;
        }
        let (len, start) = (len as u64, start as u64);
        state.post(FrameContent::Window(WindowCard { offset, len, start, segment, access }))?;
        state.own_windows.insert(offset, window);
        Ok(offset)
    }

    /// Withdraws a window without a wait for the peer. [`SisciEndpoint::end_withdrawn`] ends it.
    pub(super) fn withdraw(&self, offset: i64) -> Result<(), Failure> {
        let mut state = self.lock();
        if !state.own_windows.contains_key(&offset) {
            return Err(Failure::NoWindow);
        }
        // A lost peer leaves no window.
        if state.post(FrameContent::Withdraw(offset)).is_ok() {
            state.leaving.insert(offset);
        }
        Ok(())
    }

    /// Waits at most `limit` until the peer has left a withdrawn window.
    pub(super) fn end_withdrawn(
        &self,
        offset: i64,
        limit: Duration,
    ) -> Result<OwnSegment, Failure> {
        let mut state = self.lock();
        let window = state.own_windows.remove(&offset).ok_or(Failure::NoWindow)?;
        let is_used = |state: &mut SisciState| {
            state.stage == SisciStage::Connected && state.leaving.contains(&offset)
        };
        let waited = self.changed.wait_timeout_while(state, limit, is_used);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            log::warn!(
                "a peer has not left a window in time after it was withdrawn; the window ends \
                 under it. Check whether the peer is stopped"
            );
        }
        state.leaving.remove(&offset);
        Ok(window)
    }

    /// Returns the window of the peer around an offset.
    pub(super) fn peer_window(&self, far: i64) -> Result<Arc<PeerSegment>, Failure> {
        let state = self.lock();
        state.connected()?;
        let found = state.peer_windows.at_or_before(&far);
        found.map(|(_, window)| Arc::clone(window)).ok_or(Failure::NoWindow)
    }

    /// Returns the window of the peer that begins at an offset.
    pub(super) fn peer_window_at(&self, offset: i64) -> Result<Arc<PeerSegment>, Failure> {
        let state = self.lock();
        state.connected()?;
        state.peer_windows.get(&offset).cloned().ok_or(Failure::NoWindow)
    }

    /// Ends the connection and refuses all requests; returns what is left to drop.
    pub(super) fn close(&self) -> Rest {
        let mut state = self.lock();
        let _ = state.post(FrameContent::Close);
        for (request, link) in &state.requests {
            link.refuse(request.token);
        }
        state.stage = SisciStage::Ended;
        self.changed.notify_all();
        let parts = (state.port.take(), state.peer.take(), std::mem::take(&mut state.own_windows));
        Rest {
            token: state.token,
            _parts: parts,
            _windows: std::mem::take(&mut state.peer_windows),
            _requests: std::mem::take(&mut state.requests),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_a_slow_peer_are_mapped_again_later() {
        let endpoint = SisciEndpoint::new().unwrap();
        let mut state = endpoint.lock();
        state.unmapped = 3;
        state.note_opened(Ok(()), 5);
        state.note_opened(Err(SciCode::NO_SUCH_SEGMENT), 5);
        assert_eq!((state.unmapped, state.slow_until_ns), (1, 0));
        state.note_opened(Err(SciCode::TIMEOUT), 5);
        assert_eq!((state.unmapped, state.slow_until_ns), (0, 5 + SLOW_NS));
    }

    #[test]
    fn an_answer_to_a_given_up_request_is_late() {
        let accept = Frame { token: 7, number: 0, content: FrameContent::Accept(9) };
        let connecting = || {
            let endpoint = SisciEndpoint::new().unwrap();
            endpoint.lock().stage = SisciStage::Connecting;
            endpoint
        };
        let endpoint = connecting();
        assert!(!endpoint.give_up(), "no answer has come");
        assert!(matches!(endpoint.take(&accept), Some(WindowNews::Late)));
        assert_eq!(endpoint.lock().stage, SisciStage::Ended);
        let endpoint = connecting();
        assert!(endpoint.take(&accept).is_none());
        assert_eq!(endpoint.lock().stage, SisciStage::Connected);
        assert!(endpoint.give_up(), "an answer has come");
        assert_eq!(endpoint.lock().stage, SisciStage::Ended);
    }
}

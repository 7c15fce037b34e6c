// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Target of the library's callbacks: endpoints by their tokens, and tasks of the service thread.
//!
//! A callback only changes memory of this process, and leaves to the service thread whatever needs
//! a function of the library.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::callbacks::Listener;
use super::endpoint::{SisciEndpoint, WindowNews};
use super::frame::{ConnectRequest, Frame, FrameContent};
use super::link::{LinkOwner, ProcessLink};
use super::windows::PeerSegment;
use crate::sys::errno::lock;

/// Number of tasks that may wait. Requests to connect beyond it are dropped; their connects time
/// out, and the transport above tries again.
const TASKS_MAX: usize = 4096;
/// Number of given-up requests that are remembered. A peer that accepts one beyond them later is
/// not told that the connection has no other end.
const GIVEN_UP_MAX: usize = 1024;

/// Work of the service thread.
#[derive(Debug)]
pub(super) enum Task {
    /// Lets a process connect to a listener.
    Admit(ConnectRequest),
    /// Maps a window of the peer of an endpoint.
    Open(Arc<SisciEndpoint>, Arc<PeerSegment>),
    /// Leaves a window of the peer of an endpoint, and answers.
    Leave(Arc<SisciEndpoint>, i64),
    /// Sends the frames that wait at a link.
    Repeat(Arc<ProcessLink>),
    /// Ends the connections over lost links.
    Lose,
    /// Releases the link of a given-up request. A peer that accepted it, by its token, is told that
    /// the connection ends.
    Release(Arc<ProcessLink>, Option<u64>),
}

/// Links of the newest requests that were given up and not answered, by the token of this end.
#[derive(Debug)]
struct GivenUp<L>(VecDeque<(u64, L)>);

impl<L> Default for GivenUp<L> {
    fn default() -> GivenUp<L> {
        GivenUp(VecDeque::new())
    }
}

impl<L> GivenUp<L> {
    /// Enters a request. Returns the links of the oldest requests beyond [`GIVEN_UP_MAX`], and lost
    /// links.
    fn enter(&mut self, token: u64, link: L, is_lost: impl Fn(&L) -> bool) -> Vec<L> {
        self.0.push_back((token, link));
        let (lost, mut kept): (VecDeque<_>, VecDeque<_>) =
            self.0.drain(..).partition(|(_, link)| is_lost(link));
        let excess = kept.len().saturating_sub(GIVEN_UP_MAX);
        let released = kept.drain(..excess).chain(lost).map(|(_, link)| link).collect();
        self.0 = kept;
        released
    }

    /// Removes a request.
    fn take(&mut self, token: u64) -> Option<L> {
        let at = self.0.iter().position(|(entered, _)| *entered == token)?;
        self.0.remove(at).map(|(_, link)| link)
    }
}

#[derive(Debug, Default)]
struct Entries {
    endpoints: HashMap<u64, Arc<SisciEndpoint>>,
    listeners: HashMap<u16, Arc<SisciEndpoint>>,
    given_up: GivenUp<Arc<ProcessLink>>,
    tasks: VecDeque<Task>,
    is_stopped: bool,
    /// Length of the longest payload of a measuring frame.
    measured: Option<usize>,
}

/// Endpoints and tasks.
#[derive(Debug, Default)]
pub(super) struct CallbackInbox {
    entries: Mutex<Entries>,
    changed: Condvar,
}

impl CallbackInbox {
    /// Enters an endpoint under an unused token.
    pub(super) fn enter(
        &self,
        endpoint: &Arc<SisciEndpoint>,
        mut tokens: impl FnMut() -> u64,
    ) -> u64 {
        let mut entries = lock(&self.entries);
        loop {
            let token = tokens();
            if token != 0 && !entries.endpoints.contains_key(&token) {
                entries.endpoints.insert(token, Arc::clone(endpoint));
                return token;
            }
        }
    }

    pub(super) fn remove(&self, token: u64) {
        lock(&self.entries).endpoints.remove(&token);
    }

    /// Enters a request that its caller has given up, in place of its endpoint: the peer may accept
    /// it later, and would wait for frames of a connection without another end.
    pub(super) fn give_up(&self, token: u64, link: &Arc<ProcessLink>) {
        let mut entries = lock(&self.entries);
        let Entries { endpoints, given_up, tasks, .. } = &mut *entries;
        endpoints.remove(&token);
        // The service thread releases links, since the last use of one calls the library.
        let released = given_up.enter(token, Arc::clone(link), |link| link.is_lost());
        tasks.extend(released.into_iter().map(|link| Task::Release(link, None)));
        self.changed.notify_all();
    }

    /// Removes a given-up request that was answered.
    pub(super) fn forget(&self, token: u64) {
        let link = lock(&self.entries).given_up.take(token);
        drop(link);
    }

    /// Handles the answer to a given-up request.
    fn answered_late(&self, token: u64, content: FrameContent<'_>) {
        let link = lock(&self.entries).given_up.take(token);
        let Some(link) = link else { return };
        let peer = match content {
            FrameContent::Accept(token) => Some(token),
            _ => None,
        };
        self.push(Task::Release(link, peer));
    }

    /// Enters the listener of a port.
    pub(super) fn listen(&self, port: u16, listener: &Arc<SisciEndpoint>) {
        lock(&self.entries).listeners.insert(port, Arc::clone(listener));
    }

    /// Removes an endpoint that may listen.
    pub(super) fn unlisten(&self, endpoint: &Arc<SisciEndpoint>) {
        lock(&self.entries).listeners.retain(|_, listener| !Arc::ptr_eq(listener, endpoint));
    }

    /// Returns the listener of a port.
    pub(super) fn listener(&self, port: u16) -> Option<Arc<SisciEndpoint>> {
        lock(&self.entries).listeners.get(&port).cloned()
    }

    fn push(&self, task: Task) {
        let mut entries = lock(&self.entries);
        if entries.tasks.len() < TASKS_MAX || !matches!(task, Task::Admit(_)) {
            entries.tasks.push_back(task);
            self.changed.notify_all();
        }
    }

    /// Ends the service thread.
    pub(super) fn stop(&self) {
        lock(&self.entries).is_stopped = true;
        self.changed.notify_all();
    }

    /// Waits for tasks, at most `limit`, and takes them; `None` after the stop.
    pub(super) fn tasks(&self, limit: Option<Duration>) -> Option<VecDeque<Task>> {
        let entries = lock(&self.entries);
        let is_idle = |entries: &mut Entries| entries.tasks.is_empty() && !entries.is_stopped;
        let mut entries = match limit {
            None => self.changed.wait_while(entries, is_idle),
            Some(limit) => match self.changed.wait_timeout_while(entries, limit, is_idle) {
                Ok((entries, _)) => Ok(entries),
                Err(poisoned) => Ok(poisoned.into_inner().0),
            },
        }
        .unwrap_or_else(PoisonError::into_inner);
        (!entries.is_stopped).then(|| std::mem::take(&mut entries.tasks))
    }

    /// Waits for a measuring frame with a payload of at least this length, at most `limit`. Returns
    /// the length of its payload.
    pub(super) fn measured(&self, least: usize, limit: Duration) -> Option<usize> {
        let entries = lock(&self.entries);
        let is_missing = |at: &mut Entries| at.measured < Some(least);
        let waited = self.changed.wait_timeout_while(entries, limit, is_missing);
        let (entries, _) = waited.unwrap_or_else(PoisonError::into_inner);
        entries.measured.filter(|measured| *measured >= least)
    }
}

impl LinkOwner for CallbackInbox {
    fn lose(&self) {
        let endpoints: Vec<_> = lock(&self.entries).endpoints.values().cloned().collect();
        endpoints.iter().for_each(|endpoint| endpoint.lose());
    }

    fn lose_later(&self) {
        self.push(Task::Lose);
    }

    fn repeat(&self, link: &Arc<ProcessLink>) {
        self.push(Task::Repeat(Arc::clone(link)));
    }
}

impl Listener for CallbackInbox {
    fn data(&self, bytes: &[u8]) {
        let Some(frame) = Frame::decode(bytes) else { return };
        match frame.content {
            FrameContent::Connect(request) => self.push(Task::Admit(request)),
            FrameContent::Measure(len) => {
                let measured = &mut lock(&self.entries).measured;
                *measured = (*measured).max(Some(len));
                self.changed.notify_all();
            }
            _ => {
                let found = lock(&self.entries).endpoints.get(&frame.token).cloned();
                let Some(endpoint) = found else {
                    return self.answered_late(frame.token, frame.content);
                };
                match endpoint.take(&frame) {
                    Some(WindowNews::Late) => self.answered_late(frame.token, frame.content),
                    Some(WindowNews::New(window)) => self.push(Task::Open(endpoint, window)),
                    Some(WindowNews::Withdrawn(offset)) => {
                        self.push(Task::Leave(endpoint, offset));
                    }
                    None => {}
                }
            }
        }
    }

    fn lost(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_given_up_requests_are_kept() {
        let mut given_up = GivenUp::default();
        let last = GIVEN_UP_MAX as u64 + 2;
        let released: Vec<u64> =
            (1..=last).flat_map(|token| given_up.enter(token, token, |_| false)).collect();
        assert_eq!(released, [1, 2]);
        assert_eq!(given_up.0.len(), GIVEN_UP_MAX);
        assert_eq!((given_up.take(2), given_up.take(3), given_up.take(3)), (None, Some(3), None));
        assert_eq!(given_up.enter(last + 1, last + 1, |link| link % 2 == 1).len(), 512);
        assert_eq!(given_up.take(5), None, "a lost link is released");
        assert_eq!(given_up.take(4), Some(4));
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Threads of the library: each waits for descriptors of objects and for tasks.
//!
//! The service thread greets connecting processes and watches connections. The callback thread
//! calls functions of the program, which may wait for the service thread but not for itself.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use scif::slab::{Slab, SlabId};
use scif::sys::epoll::{Epoll, Event};
use scif::sys::thread::{contained, spawn_quiet};
use scif_ring::counter::AtomicFlag;

use crate::error::Outcome;
use crate::lock::take;

/// Token of the event that interrupts a wait; no identifier of a source has this value.
const WAKE: u64 = u64::MAX;

/// Object whose descriptor a thread watches.
pub(crate) trait Source: Send + Sync {
    /// Handles its input. Called again while input is left.
    fn ready(&self);
}

/// Work for a thread.
pub(crate) type Task = Box<dyn FnOnce() + Send>;

/// Thread with the descriptors that it watches.
pub(crate) struct Poller {
    epoll: Epoll,
    wake: Event,
    sources: Mutex<Slab<Arc<dyn Source>, SlabId>>,
    tasks: Mutex<VecDeque<Task>>,
    stopped: AtomicFlag,
}

fn token(id: SlabId) -> u64 {
    u64::from(id.generation) << 32 | u64::from(id.index)
}

fn id(token: u64) -> SlabId {
    let half = |n: u64| u32::try_from(n & u64::from(u32::MAX)).unwrap_or(0);
    SlabId { index: half(token), generation: half(token >> 32) }
}

impl Poller {
    /// Starts a thread.
    ///
    /// # Errors
    /// Errors of the system when descriptors or threads are short.
    pub(crate) fn start(name: &'static str) -> Outcome<Arc<Poller>> {
        let poller = Arc::new(Poller {
            epoll: Epoll::new()?,
            wake: Event::new()?,
            sources: Mutex::new(Slab::with_generation(1)),
            tasks: Mutex::new(VecDeque::new()),
            stopped: AtomicFlag::new(false),
        });
        poller.epoll.add(&poller.wake, WAKE)?;
        let own = Arc::clone(&poller);
        spawn_quiet(name, move || own.run())
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM))?;
        Ok(poller)
    }

    /// Watches a descriptor until `remove`.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn add(&self, fd: impl AsFd, source: Arc<dyn Source>) -> Outcome<SlabId> {
        let mut sources = take(&self.sources);
        let id = sources.insert(source).ok_or(Errno::NOMEM)?;
        if let Err(errno) = self.epoll.add(fd, token(id)) {
            sources.remove(id);
            return Err(errno.into());
        }
        Ok(id)
    }

    /// Ends the watch of a descriptor.
    pub(crate) fn remove(&self, fd: impl AsFd, id: SlabId) {
        self.epoll.remove(fd);
        let source = take(&self.sources).remove(id);
        drop(source);
    }

    /// Leaves work to the thread.
    pub(crate) fn post(&self, task: Task) {
        take(&self.tasks).push_back(task);
        self.wake.signal();
    }

    /// Ends the thread after its current work.
    pub(crate) fn stop(&self) {
        self.stopped.set(true);
        self.wake.signal();
    }

    fn run(&self) {
        let mut ready = Vec::new();
        while !self.stopped.get() {
            ready.clear();
            if self.epoll.wait(None, |token| ready.push(token)).is_err() {
                return;
            }
            for &token in &ready {
                if token == WAKE {
                    self.wake.drain();
                    self.work();
                    continue;
                }
                let source = take(&self.sources).get(id(token)).cloned();
                if let Some(source) = source {
                    contained(|| source.ready());
                }
            }
        }
    }

    fn work(&self) {
        loop {
            let task = take(&self.tasks).pop_front();
            let Some(task) = task else { return };
            contained(task);
        }
    }
}

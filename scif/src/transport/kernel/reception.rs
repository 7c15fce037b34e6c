// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Accepting over a driver: a thread for each port, which accepts at once and hears who calls.
//!
//! A caller is blocked in the driver until it is accepted, and a request that was given up after 30 s makes a later accept hang
//! for ever. So accepting does not depend on the progress of the process. The thread passes on only callers that have said
//! where they listen.
//!
//! Not about the connection once it is made (`link`).

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use rustix::io::Errno;
use scif_ring::Flag;

use super::link::{Arriving, Desk, Stream, errno};
use super::relay::{Greeting, Said};
use super::sender::Wire;
use crate::addr::PortId;
use crate::error::{Error, Reason, Refusal, Result};
use crate::sys::epoll::Event;
use crate::sys::time::now_ns;
use crate::sys::{descriptor, thread};
use crate::transport::Farewell;

/// Callers that have said who they are and wait for the endpoint; more wait in the driver.
const GUESTS_MAX: usize = 1024;
/// Callers that have not said who they are; the oldest goes for one more.
const MUTE_MAX: usize = 256;
/// Nanoseconds a caller has for saying it.
const MUTE_NS: u64 = 10_000_000_000;
/// Milliseconds between two looks at callers that say nothing.
const MUTE_CHECK_MS: i32 = 1000;
/// Milliseconds until the next accept where descriptors are short or too many callers wait.
const SHORT_PAUSE_MS: i32 = 20;
/// Time for which a closing port waits until its number is free again.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// A caller that has said where it listens.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) stream: Stream,
    pub(super) from: PortId,
}

/// State shared by the thread and the port.
#[derive(Debug)]
struct Hall {
    guests: Mutex<VecDeque<Guest>>,
    /// Readable once the port closes.
    stop: Event,
    stopped: Flag,
    /// No notification is sent.
    silent: Flag,
}

impl Hall {
    fn guests(&self) -> MutexGuard<'_, VecDeque<Guest>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that accepts, as its port sees it.
#[derive(Debug)]
pub(super) struct Reception {
    hall: Arc<Hall>,
    ended: mpsc::Receiver<()>,
}

impl Reception {
    /// Starts the thread for a stream that listens.
    pub(super) fn open(id: PortId, listener: Stream, desk: &Arc<Desk>) -> Result<Reception> {
        let hall = Arc::new(Hall {
            guests: Mutex::default(),
            stop: Event::new().map_err(Error::os("eventfd"))?,
            stopped: Flag::new(false),
            silent: Flag::new(false),
        });
        let (end, ended) = mpsc::channel::<()>();
        let mut clerk = Clerk {
            id,
            listener,
            spare: None,
            mute: VecDeque::new(),
            short: false,
            hall: Arc::clone(&hall),
            desk: Arc::clone(desk),
        };
        thread::spawn_quiet("scif-accept", move || {
            clerk.run();
            // The port is free before the end is told.
            drop(clerk);
            drop(end);
        })
        .map_err(|error| Error::Os {
            call: "starting a thread that accepts",
            errno: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
        })?;
        Ok(Reception { hall, ended })
    }

    /// The next caller.
    pub(super) fn next(&self) -> Option<Guest> {
        self.hall.guests().pop_front()
    }

    /// Ends the thread; unless `how` is silent, callers that wait hear that the listener has closed.
    pub(super) fn close(&self, how: Farewell) {
        self.hall.silent.set(how == Farewell::Silent);
        self.hall.stopped.set(true);
        self.hall.stop.signal();
        if self.ended.recv_timeout(CLOSE_LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
            log::warn!("the SCIF driver does not return from an accept; the port stays taken until it does");
        }
        let guests = std::mem::take(&mut *self.hall.guests());
        if how != Farewell::Silent {
            for guest in &guests {
                refuse(&guest.stream, Refusal::Closed);
            }
        }
    }
}

fn refuse(stream: &Stream, reason: Refusal) {
    // The first bytes find an empty queue.
    let _ = stream.send(&Greeting::no(reason).encode());
}

/// A caller that has said nothing so far.
#[derive(Debug)]
struct Mute {
    stream: Stream,
    from: PortId,
    hello: Arriving,
    since_ns: u64,
}

/// State of the thread.
struct Clerk {
    id: PortId,
    listener: Stream,
    /// An endpoint that the next caller gets.
    spare: Option<Stream>,
    /// In the order they came.
    mute: VecDeque<Mute>,
    /// The last accept failed for want of something.
    short: bool,
    hall: Arc<Hall>,
    desk: Arc<Desk>,
}

impl Clerk {
    fn run(&mut self) {
        let mut entries = Vec::new();
        loop {
            self.wait(&mut entries);
            if self.hall.stopped.get() {
                break;
            }
            let called = entries
                .get(1)
                .is_some_and(|entry| entry.fd >= 0 && entry.revents != 0);
            self.short = false;
            if called {
                self.accept();
            }
            self.hear();
        }
        for mute in self.mute.iter().filter(|_| !self.hall.silent.get()) {
            refuse(&mute.stream, Refusal::Closed);
        }
    }

    /// Waits for a caller, for one that says something, or for the end.
    fn wait(&mut self, entries: &mut Vec<libc::pollfd>) {
        let entry = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let crowded = self.hall.guests().len() >= GUESTS_MAX;
        // poll(2) passes over a negative number.
        let listener = if self.short || crowded {
            -1
        } else {
            self.listener.raw()
        };
        entries.clear();
        entries.extend([entry(self.hall.stop.as_fd().as_raw_fd()), entry(listener)]);
        entries.extend(self.mute.iter().map(|mute| entry(mute.stream.raw())));
        let limit = match () {
            () if self.short || crowded => SHORT_PAUSE_MS,
            () if !self.mute.is_empty() => MUTE_CHECK_MS,
            () => -1,
        };
        if let Err(errno) = descriptor::poll_raw(entries, limit) {
            log::debug!("poll: {errno}");
        }
    }

    /// Accepts one caller.
    fn accept(&mut self) {
        let spare = match self.spare.take() {
            Some(spare) => Ok(spare),
            None => self.listener.another(),
        };
        let accepted = spare.and_then(|spare| match self.listener.accept(&spare) {
            Ok(from) => Ok((spare, from)),
            Err(failure) => {
                self.spare = Some(spare);
                Err(failure)
            }
        });
        match accepted {
            Ok((stream, from)) => {
                self.mute.push_back(Mute {
                    stream,
                    from,
                    hello: Arriving::default(),
                    since_ns: now_ns(),
                });
                if self.mute.len() > MUTE_MAX
                    && let Some(oldest) = self.mute.pop_front()
                {
                    refuse(&oldest.stream, Refusal::Resources);
                }
            }
            Err(failure) => match errno(&failure) {
                // The caller has given up.
                Errno::AGAIN | Errno::INTR => {}
                errno => {
                    self.short = true;
                    self.desk.warn_once(format_args!(
                        "scif_accept at {}: {errno}; callers wait until it succeeds. Raise the limit of open files \
                         (ulimit -n) where these are short",
                        self.id
                    ));
                }
            },
        }
    }

    /// Hears those that have called: they become guests, or go.
    fn hear(&mut self) {
        let now = now_ns();
        for mut mute in std::mem::take(&mut self.mute) {
            match mute.hello.hear(&mute.stream) {
                Ok(Some(Said::Hello(port))) => {
                    let node = mute.from.node;
                    let from = PortId { node, port };
                    let stream = mute.stream;
                    self.hall.guests().push_back(Guest { stream, from });
                    self.desk.signal();
                }
                Ok(None) if now.saturating_sub(mute.since_ns) < MUTE_NS => self.mute.push_back(mute),
                Ok(_) => {
                    log::debug!("{} called {} and did not say who it is", mute.from, self.id);
                    // Silence would count as our death.
                    refuse(&mute.stream, Refusal::Resources);
                }
                Err(reason) => {
                    log::debug!("{} called {}: {reason}", mute.from, self.id);
                    if let Reason::Refused(reason) = reason {
                        refuse(&mute.stream, reason);
                    }
                }
            }
        }
    }
}

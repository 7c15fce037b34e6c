// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Where a thread sleeps until one of several descriptors has something or another thread says so.
//!
//! Not about arming what the descriptors belong to: do that first, look once more, then wait.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::sys::epoll::{Epoll, Event};
use crate::sys::time::now_ns;

const EVENT: u64 = 1;
const OTHER: u64 = 0;

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// Something is readable or signalled.
    Ready,
    /// The time has passed.
    Late,
    /// A handler of a signal has run.
    Interrupted,
}

/// A set of descriptors and a signal. Any thread may signal; adding and removing is safe while others wait.
#[derive(Debug)]
pub struct Waiter {
    epoll: Epoll,
    event: Event,
}

impl Waiter {
    /// An empty set.
    ///
    /// # Errors
    /// When descriptors are short.
    pub fn new() -> Result<Waiter> {
        let epoll = Epoll::new().map_err(Error::os("epoll_create"))?;
        let event = Event::new().map_err(Error::os("eventfd"))?;
        epoll.add(&event, EVENT).map_err(Error::os("epoll_ctl"))?;
        Ok(Waiter { epoll, event })
    }

    /// Adds a descriptor that ends waits while it is readable.
    ///
    /// # Errors
    /// When it is in already or cannot be waited for.
    pub fn add(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.epoll.add(fd, OTHER).map_err(Error::os("epoll_ctl"))
    }

    /// Takes a descriptor out; harmless when it is not in.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        self.epoll.remove(fd);
    }

    /// Sleeps until something is readable or signalled (`true`), or for `timeout_ns` (`false`; `None`: for ever).
    /// A signal stays until `drain`. A handled signal of the system does not end it.
    ///
    /// # Errors
    /// When the set itself fails, as in a forked child.
    pub fn wait(&self, timeout_ns: Option<u64>) -> Result<bool> {
        let deadline = timeout_ns.map(|ns| now_ns().saturating_add(ns));
        loop {
            let left = deadline.map(|end| end.saturating_sub(now_ns()));
            let mut any = false;
            self.epoll
                .wait(left, |_| any = true)
                .map_err(Error::os("epoll_wait"))?;
            if any || left == Some(0) {
                return Ok(any);
            }
        }
    }

    /// The same, but a handled signal of the system ends it. A process that is stopped and goes on sleeps on.
    ///
    /// # Errors
    /// See [`Waiter::wait`].
    pub fn wait_or_interrupt(&self, timeout_ns: Option<u64>) -> Result<Woken> {
        match self.epoll.ready(timeout_ns) {
            Ok(true) => Ok(Woken::Ready),
            Ok(false) => Ok(Woken::Late),
            Err(Errno::INTR) => Ok(Woken::Interrupted),
            Err(errno) => Err(Error::os("poll")(errno)),
        }
    }

    /// Ends the waits of others, now or their next one.
    pub fn signal(&self) {
        self.event.signal();
    }

    /// Takes the signals so far.
    pub fn drain(&self) {
        self.event.drain();
    }

    /// Readable while a wait would end at once: for callers that have their own loop.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_end_by_time_signal_and_descriptor() {
        let waiter = Waiter::new().unwrap();
        assert!(!waiter.wait(Some(0)).unwrap());
        let begin = now_ns();
        assert!(!waiter.wait(Some(3_000_000)).unwrap());
        assert_eq!(waiter.wait_or_interrupt(Some(0)).unwrap(), Woken::Late);
        assert_eq!(waiter.wait_or_interrupt(Some(3_000_000)).unwrap(), Woken::Late);
        assert!(now_ns() - begin >= 6_000_000);
        waiter.signal();
        assert!(waiter.wait(None).unwrap());
        assert!(waiter.wait(Some(0)).unwrap(), "a signal stays");
        assert_eq!(waiter.wait_or_interrupt(None).unwrap(), Woken::Ready);
        waiter.drain();
        assert!(!waiter.wait(Some(0)).unwrap());
        let other = Waiter::new().unwrap();
        waiter.add(other.fd()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(5));
                other.signal();
            });
            assert!(waiter.wait(None).unwrap());
        });
        waiter.remove(other.fd());
        assert!(!waiter.wait(Some(0)).unwrap());
    }
}

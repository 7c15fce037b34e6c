// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Sleep of a thread until one of several descriptors is readable or another thread signals.
//!
//! Not about arming the owners of the descriptors: arm first, poll once more, then wait.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::sys::epoll::{Epoll, Event};
use crate::sys::time::now_ns;

const EVENT: u64 = 1;
const OTHER: u64 = 0;

/// End of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// A descriptor is readable, or a signal was sent.
    Ready,
    /// The timeout has passed.
    Late,
    /// A signal handler has run.
    Interrupted,
}

/// A set of descriptors and an event. Any thread may signal it; adding and removing is safe while
/// others wait.
#[derive(Debug)]
pub struct Waiter {
    epoll: Epoll,
    event: Event,
}

impl Waiter {
    /// Returns an empty set.
    ///
    /// # Errors
    /// No descriptor is available.
    pub fn new() -> Result<Waiter> {
        let epoll = Epoll::new().map_err(Error::os("epoll_create"))?;
        let event = Event::new().map_err(Error::os("eventfd"))?;
        epoll.add(&event, EVENT).map_err(Error::os("epoll_ctl"))?;
        Ok(Waiter { epoll, event })
    }

    /// Adds a descriptor that ends waits while it is readable.
    ///
    /// # Errors
    /// The descriptor is already in the set or cannot be waited for.
    pub fn add(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.epoll.add(fd, OTHER).map_err(Error::os("epoll_ctl"))
    }

    /// Removes a descriptor; has no effect if it is not in the set.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        self.epoll.remove(fd);
    }

    /// Blocks until a descriptor is readable or a signal was sent (`true`), or for `timeout_ns`
    /// (`false`; `None`: without limit). A signal stays set until `drain`. A signal handler does
    /// not end the wait.
    ///
    /// # Errors
    /// The set itself fails, as in a forked child.
    pub fn wait(&self, timeout_ns: Option<u64>) -> Result<bool> {
        let deadline = timeout_ns.map(|ns| now_ns().saturating_add(ns));
        loop {
            let left = deadline.map(|end| end.saturating_sub(now_ns()));
            let mut any = false;
            self.epoll.wait(left, |_| any = true).map_err(Error::os("epoll_wait"))?;
            if any || left == Some(0) {
                return Ok(any);
            }
        }
    }

    /// Variant of [`Waiter::wait`] that a signal handler ends. A process that is stopped and
    /// continued keeps sleeping.
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

    /// Ends the present waits of other threads, or their next one.
    pub fn signal(&self) {
        self.event.signal();
    }

    /// Clears the signals sent so far.
    pub fn drain(&self) {
        self.event.drain();
    }

    /// Returns a descriptor that is readable while a wait would end at once, for callers with their
    /// own event loop.
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

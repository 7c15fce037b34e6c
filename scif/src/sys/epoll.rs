// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Sets of descriptors to wait for, and the event counter that interrupts a wait.
//! See `epoll(7)`, `eventfd(2)`.
#![expect(
    unsafe_code,
    reason = "epoll by hand: a stand-in for the device sees the calls, and checkers of memory no \
              argument left to chance"
)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;

use super::errno::keep_errno;
use super::fork::PrivateFd;
use super::logging::warn_of_denied;

/// Maximum number of events taken per call; the next call returns the rest.
const EVENTS_PER_WAIT: usize = 64;

/// An epoll instance. Level-triggered and for input only, unless stated otherwise.
#[derive(Debug)]
pub struct Epoll(PrivateFd);

impl Epoll {
    pub fn new() -> Result<Epoll, Errno> {
        let made = epoll::create(epoll::CreateFlags::CLOEXEC);
        let made = made.inspect_err(|errno| denied("epoll_create1", *errno))?;
        Ok(Epoll(PrivateFd::new(made)))
    }

    /// Calls epoll_ctl(2) through the C library, so that a preloaded stand-in for the device sees
    /// it.
    fn control(&self, op: i32, fd: impl AsFd, events: i32, token: u64) -> Result<(), Errno> {
        let events = u32::from_ne_bytes(events.to_ne_bytes());
        let mut event = libc::epoll_event { events, u64: token };
        let (set, fd) = (self.0.as_fd().as_raw_fd(), fd.as_fd().as_raw_fd());
        // SAFETY: both descriptors are borrowed for the call, and `event` is live.
        keep_errno(|| match unsafe { libc::epoll_ctl(set, op, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(super::process::last_errno()),
        })
    }

    pub fn add(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, token)
    }

    /// Adds a descriptor whose hang-up is reported, independent of available input; each change
    /// once.
    pub fn add_hangup(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLET, token)
    }

    /// Adds a descriptor that is reported once whenever new input arrives.
    pub fn add_news(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        let events = libc::EPOLLIN | libc::EPOLLET;
        self.control(libc::EPOLL_CTL_ADD, fd, events, token)
    }

    /// Removes a descriptor; its absence is no error.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// Waits at most `timeout_ns` (`None`: without limit) and passes the token of each ready
    /// descriptor to `each`. Reports nothing when interrupted by a signal.
    pub fn wait(&self, timeout_ns: Option<u64>, each: impl FnMut(u64)) -> Result<(), Errno> {
        // Whole milliseconds, rounded up: finer ones need epoll_pwait2, which older kernels and
        // filters lack.
        let timeout =
            timeout_ns.map_or(-1, |ns| i32::try_from(ns.div_ceil(1_000_000)).unwrap_or(i32::MAX));
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_PER_WAIT];
        let room = i32::try_from(events.len()).unwrap_or(0);
        let raw = self.0.as_fd().as_raw_fd();
        let waited = keep_errno(|| {
            // SAFETY: `events` is live and has `room` entries; the descriptor is open while `self`
            // exists.
            let count = unsafe { libc::epoll_wait(raw, events.as_mut_ptr(), room, timeout) };
            usize::try_from(count).map_err(|_| super::process::last_errno())
        });
        match waited {
            Ok(count) => events.iter().take(count).map(|event| event.u64).for_each(each),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        Ok(())
    }
}

impl Epoll {
    /// Waits at most `timeout_ns` (`None`: without limit) until a descriptor is ready; returns
    /// whether one is.
    ///
    /// # Errors
    /// `INTR` after a signal handler has run. A process that was stopped and continued keeps
    /// waiting: the kernel resumes poll(2) in that case, but not epoll_wait(2).
    pub(crate) fn ready(&self, timeout_ns: Option<u64>) -> Result<bool, Errno> {
        const SECOND: u64 = 1_000_000_000;
        // poll(2) ignores an invalid descriptor.
        if self.0.is_inherited() {
            return Err(Errno::BADF);
        }
        let limit = timeout_ns.map(|ns| Timespec {
            tv_sec: i64::try_from(ns / SECOND).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(ns % SECOND).unwrap_or(0),
        });
        let set = self.0.as_fd();
        let mut set = [PollFd::new(&set, PollFlags::IN)];
        let count = poll(&mut set, limit.as_ref())?;
        Ok(count > 0)
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns an event counter that a forked child inherits. It is never read: waiters use only its
/// change events.
pub fn inherited_event() -> Result<OwnedFd, Errno> {
    let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    made.inspect_err(|errno| denied("eventfd2", *errno))
}

fn denied(call: &'static str, errno: Errno) {
    let consequence = "endpoints and queues cannot be opened";
    warn_of_denied(call, errno, consequence, "permit it in the profile of the container");
}

/// Whether a descriptor from a peer is an event that `signal` writes without blocking. Writes to
/// other kinds may block, or raise SIGPIPE.
pub fn is_event(fd: &OwnedFd) -> bool {
    use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
    // Anonymous inodes have no type. Kinds that are no event refuse a write at once.
    fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Unknown)
        && fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK | OFlags::RDWR))
}

/// Signals all waiters on an event.
pub fn signal(event: &OwnedFd) {
    // EAGAIN only after 2^64 signals, which cannot happen.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// An event counter that is readable from `signal` to `drain`.
#[derive(Debug)]
pub struct Event(PrivateFd);

impl Event {
    pub fn new() -> Result<Event, Errno> {
        inherited_event().map(|fd| Event(PrivateFd::new(fd)))
    }

    pub fn signal(&self) {
        // EAGAIN: the counter is full, so it is readable already.
        let _ = rustix::io::write(self.0.as_fd(), &1u64.to_ne_bytes());
    }

    /// Clears the signals; returns whether one was set.
    pub fn drain(&self) -> bool {
        self.take() > 0
    }

    /// Clears the signals; returns their number.
    pub fn take(&self) -> u64 {
        let mut count = [0u8; 8];
        rustix::io::read(self.0.as_fd(), &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

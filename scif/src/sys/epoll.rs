// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Sets of descriptors to wait for, and the event counter that interrupts a wait.
//! See `epoll(7)`, `eventfd(2)`.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

use super::fork::PrivateFd;

/// Events taken per call; the rest is still there for the next one.
const EVENTS_PER_WAIT: usize = 64;

/// An epoll instance. Level-triggered, input only.
#[derive(Debug)]
pub(crate) struct Epoll(PrivateFd);

impl Epoll {
    pub(crate) fn new() -> Result<Epoll, Errno> {
        Ok(Epoll(PrivateFd::new(epoll::create(epoll::CreateFlags::CLOEXEC)?)))
    }

    pub(crate) fn add(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(self.0.as_fd(), fd, data, epoll::EventFlags::IN)
    }

    /// Reports a descriptor's end, whatever there is to read; each change of it once.
    pub(crate) fn add_hangup(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(self.0.as_fd(), fd, data, epoll::EventFlags::ET)
    }

    /// Reports a descriptor once each time something new is to be read.
    pub(crate) fn add_news(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(
            self.0.as_fd(),
            fd,
            data,
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )
    }

    /// Takes a descriptor out; that it was not in is no error.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(self.0.as_fd(), fd);
    }

    /// Waits at most `timeout_ns` (`None`: for ever) and hands the token of each ready descriptor to `each`.
    /// Interrupted by a signal it reports nothing.
    pub(crate) fn wait(&self, timeout_ns: Option<u64>, each: impl FnMut(u64)) -> Result<(), Errno> {
        // Whole milliseconds, rounded up: finer ones need epoll_pwait2, which older kernels and filters lack.
        let timeout = timeout_ns.map(|ns| {
            let ms = ns.div_ceil(1_000_000).min(i32::MAX as u64).cast_signed();
            Timespec {
                tv_sec: ms / 1000,
                tv_nsec: ms % 1000 * 1_000_000,
            }
        });
        let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_PER_WAIT];
        match epoll::wait(self.0.as_fd(), &mut space[..], timeout.as_ref()) {
            Ok((events, _)) => events.iter().map(|event| { event.data }.u64()).for_each(each),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        Ok(())
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An event counter that is readable from `signal` to `drain`.
#[derive(Debug)]
pub(crate) struct Event(PrivateFd);

impl Event {
    pub(crate) fn new() -> Result<Event, Errno> {
        Ok(Event(PrivateFd::new(eventfd(
            0,
            EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
        )?)))
    }

    pub(crate) fn signal(&self) {
        // EAGAIN: the counter is full, so it is readable already.
        let _ = rustix::io::write(self.0.as_fd(), &1u64.to_ne_bytes());
    }

    /// Takes the signals so far; whether there was one.
    pub(crate) fn drain(&self) -> bool {
        let mut count = [0u8; 8];
        rustix::io::read(self.0.as_fd(), &mut count).is_ok()
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "answers fi_control through the caller's pointers")]
//! Waiter slots of a queue or counter: the sleeping threads, their descriptors, and the wake-up by
//! events of this process.
//!
//! Arming endpoints and the decision to sleep are in the parent module.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use libfabric_sys as fi;
use scif::Waiter;

use crate::base::entry;
use crate::base::errno::{self, Errno};

/// Wait object of a queue or counter, as far as the distinction matters in this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitObj {
    /// No waiting.
    None,
    /// Blocking calls only; the provider chooses the means.
    Unspec,
    /// Descriptor for the application to poll.
    Fd,
    /// Descriptor as a list of one.
    PollFd,
    /// Blocking calls that poll and yield.
    Yield,
    /// Descriptor that a wait set watches.
    Set,
}

impl WaitObj {
    /// # Errors
    /// `FI_EINVAL` for wait sets (`wait::set`), mutexes and unknown objects.
    pub(crate) fn from_c(obj: fi::fi_wait_obj) -> Result<WaitObj, Errno> {
        match obj {
            fi::FI_WAIT_NONE => Ok(WaitObj::None),
            fi::FI_WAIT_UNSPEC => Ok(WaitObj::Unspec),
            fi::FI_WAIT_FD => Ok(WaitObj::Fd),
            fi::FI_WAIT_POLLFD => Ok(WaitObj::PollFd),
            fi::FI_WAIT_YIELD => Ok(WaitObj::Yield),
            _ => Err(fi::FI_EINVAL),
        }
    }

    /// Returns the result of `FI_GETWAITOBJ`; UNSPEC is implemented by a descriptor.
    pub(crate) fn to_c(self) -> fi::fi_wait_obj {
        match self {
            WaitObj::None => fi::FI_WAIT_NONE,
            WaitObj::Unspec | WaitObj::Fd => fi::FI_WAIT_FD,
            WaitObj::PollFd => fi::FI_WAIT_POLLFD,
            WaitObj::Yield => fi::FI_WAIT_YIELD,
            WaitObj::Set => fi::FI_WAIT_SET,
        }
    }

    pub(crate) fn sleeps(self) -> bool {
        !matches!(self, WaitObj::None | WaitObj::Yield)
    }
}

/// Waiter slot: descriptors of endpoints and an eventfd of its own.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) waiter: Arc<Waiter>,
    pub(crate) taken: bool,
    /// Whether its eventfd was signalled and not drained since.
    rung: bool,
}

/// Wait state of a queue or counter: the endpoints that report to it, and the waiter slots.
#[derive(Debug)]
pub(crate) struct Waits {
    pub(crate) obj: WaitObj,
    pub(crate) eps: Vec<u32>,
    /// Whether every endpoint of the domain reports to it, bound or not: a counter of a region.
    pub(crate) wide: bool,
    /// Whether a thread sleeps or polls the descriptor. Exactly then every endpoint in `eps` is
    /// armed once for this.
    pub(crate) watched: bool,
    /// Whether the application polls the descriptor of the first slot.
    pub(crate) fd_armed: bool,
    pub(crate) seats: Vec<Seat>,
    /// Number of poll sets that contain it.
    pub(crate) held: u32,
}

impl Waits {
    /// # Errors
    /// Errors of the system, when no descriptor is left.
    pub(crate) fn new(obj: WaitObj) -> Result<Waits, Errno> {
        let mut waits = Waits {
            obj,
            eps: Vec::new(),
            wide: false,
            watched: false,
            fd_armed: false,
            seats: Vec::new(),
            held: 0,
        };
        if obj.sleeps() {
            waits.seats.push(Seat { waiter: new_waiter()?, taken: false, rung: false });
        }
        Ok(waits)
    }

    /// Returns the state of a queue without waiting threads.
    #[cfg(test)]
    pub(crate) fn none() -> Waits {
        Waits {
            obj: WaitObj::None,
            eps: Vec::new(),
            wide: false,
            watched: false,
            fd_armed: false,
            seats: Vec::new(),
            held: 0,
        }
    }

    /// Whether every endpoint of the domain reports to it.
    pub(crate) fn is_wide(&self) -> bool {
        self.wide
    }

    /// Whether a poll set contains it.
    pub(crate) fn is_held(&self) -> bool {
        self.held > 0
    }

    /// Returns the endpoints that report to it.
    pub(crate) fn endpoints(&self) -> &[u32] {
        &self.eps
    }

    /// Wakes the sleeping threads, after an entry was added.
    #[inline]
    pub(crate) fn notify(&mut self) {
        if self.watched {
            self.ring();
        }
    }

    #[cold]
    fn ring(&mut self) {
        for seat in self.seats.iter_mut().filter(|s| s.taken && !s.rung) {
            seat.rung = true;
            seat.waiter.signal();
        }
    }

    /// Whether the application holds the descriptor and waits on it for a wake-up.
    #[inline]
    pub(crate) fn fd_is_armed(&self) -> bool {
        self.fd_armed
    }

    /// Returns the waiter whose descriptor the application may poll. A slot that exists for short
    /// sleeps only is not returned.
    pub(crate) fn waiter(&self) -> Option<&Arc<Waiter>> {
        let first = self.seats.first().filter(|_| self.obj.sleeps());
        first.map(|s| &s.waiter)
    }

    /// Returns the descriptor for `FI_GETWAIT`.
    pub(crate) fn raw_fd(&self) -> Option<c_int> {
        self.waiter().map(|w| w.fd().as_raw_fd())
    }

    /// Acquires a free slot, or creates one. `fd_of` returns the descriptor of an enabled endpoint.
    pub(crate) fn take_seat<'a>(
        &mut self,
        fd_of: impl Fn(u32) -> Option<BorrowedFd<'a>>,
    ) -> Result<(usize, Arc<Waiter>), Errno> {
        let free = self.seats.iter().position(|s| !s.taken);
        let at = match free {
            Some(at) => at,
            None => {
                let waiter = new_waiter()?;
                for fd in self.eps.iter().filter_map(|ep| fd_of(*ep)) {
                    watch(&waiter, fd)?;
                }
                self.seats.push(Seat { waiter, taken: false, rung: false });
                self.seats.len() - 1
            }
        };
        let seat = self.seats.get_mut(at).ok_or(fi::FI_EINVAL)?;
        seat.sit();
        Ok((at, Arc::clone(&seat.waiter)))
    }

    /// Releases a slot. Returns true when no slot is in use any more.
    pub(crate) fn leave_seat(&mut self, at: usize) -> bool {
        if let Some(seat) = self.seats.get_mut(at) {
            seat.stand_up();
            if at == 0 && self.fd_armed {
                // The application polls the same descriptor, so it must be woken as well.
                seat.taken = true;
                seat.rung = true;
                seat.waiter.signal();
            }
        }
        !self.seats.iter().any(|s| s.taken)
    }
}

impl Seat {
    /// Marks the slot as used. Earlier signals are discarded: the thread polls before it sleeps.
    pub(crate) fn sit(&mut self) {
        self.taken = true;
        self.rung = false;
        self.waiter.drain();
    }

    fn stand_up(&mut self) {
        if self.rung {
            self.waiter.drain();
        }
        self.rung = false;
        self.taken = false;
    }
}

fn new_waiter() -> Result<Arc<Waiter>, Errno> {
    Waiter::new().map(Arc::new).map_err(|e| errno::errno(&e))
}

pub(crate) fn watch(waiter: &Waiter, fd: BorrowedFd<'_>) -> Result<(), Errno> {
    waiter.add(fd).map_err(|e| errno::errno(&e))
}

/// Implements `FI_GETWAIT` and `FI_GETWAITOBJ` of a queue or counter.
///
/// # Errors
/// `FI_ENODATA`: there is no wait object. `FI_ETOOSMALL`: no space in the list of descriptors.
/// `FI_ENOSYS`: another command.
///
/// # Safety
/// `arg` is null or of the type of the command: `int *` or `struct fi_wait_pollfd *`; `enum
/// fi_wait_obj *`.
pub(crate) unsafe fn control(waits: &Waits, command: c_int, arg: *mut c_void) -> Result<(), Errno> {
    match command {
        fi::FI_GETWAITOBJ => {
            // SAFETY: null or space for an enum, by the caller's contract.
            unsafe { entry::put(arg.cast(), waits.obj.to_c()) }
        }
        fi::FI_GETWAIT => {
            let fd = waits.raw_fd().ok_or(fi::FI_ENODATA)?;
            if waits.obj == WaitObj::PollFd {
                // SAFETY: null or a list of descriptors, by the caller's contract.
                return unsafe { poll_list(fd, arg.cast()) };
            }
            // SAFETY: null or space for an int, by the caller's contract.
            unsafe { entry::put(arg.cast(), fd) }
        }
        _ => Err(fi::FI_ENOSYS),
    }
}

/// # Safety
/// `list` is null or a `struct fi_wait_pollfd` with space for its number of descriptors.
pub(crate) unsafe fn poll_list(fd: c_int, list: *mut fi::fi_wait_pollfd) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let list = unsafe { list.as_mut() }.ok_or(fi::FI_EINVAL)?;
    let room = std::mem::replace(&mut list.nfds, 1);
    // The list never changes.
    list.change_index = 1;
    if room == 0 {
        return Err(fi::FI_ETOOSMALL);
    }
    // SAFETY: null or space for one, by the caller's contract.
    unsafe { entry::put(list.fd, libc::pollfd { fd, events: libc::POLLIN, revents: 0 }) }
}

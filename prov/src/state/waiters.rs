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

/// Longest sleep in nanoseconds while operations are outstanding for which no peer rings the
/// doorbell. A longer one delays their timeouts.
pub(crate) const TIMER_SLEEP_NS: u64 = 20_000_000;
/// Longest sleep in nanoseconds while a ring is full or a connection is to be retried. A longer one
/// delays the retry.
pub(crate) const POLL_SLEEP_NS: u64 = 200_000;
/// Longest sleep in nanoseconds in all other cases. A wake-up lost because the peer died while
/// sending it costs this delay, not a hang.
pub(crate) const MAX_SLEEP_NS: u64 = 1_000_000_000;

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
pub(crate) struct WaiterSlot {
    pub(crate) waiter: Arc<Waiter>,
    pub(crate) taken: bool,
    /// Whether its eventfd was signalled and not drained since.
    signalled: bool,
}

/// Wait state of a queue or counter: the endpoints that report to it, and the waiter slots.
#[derive(Debug)]
pub(crate) struct WaitState {
    pub(crate) obj: WaitObj,
    pub(crate) eps: Vec<u32>,
    /// Whether every endpoint of the domain reports to it, bound or not: a counter of a region.
    pub(crate) wide: bool,
    /// Whether a thread sleeps or polls the descriptor. Exactly then every endpoint in `eps` is
    /// armed once for this.
    pub(crate) watched: bool,
    /// Whether the application polls the descriptor of the first slot.
    pub(crate) fd_armed: bool,
    pub(crate) slots: Vec<WaiterSlot>,
    /// Number of poll sets that contain it.
    pub(crate) held: u32,
}

impl WaitState {
    /// # Errors
    /// Errors of the system, when no descriptor is left.
    pub(crate) fn new(obj: WaitObj) -> Result<WaitState, Errno> {
        let mut waits = WaitState {
            obj,
            eps: Vec::new(),
            wide: false,
            watched: false,
            fd_armed: false,
            slots: Vec::new(),
            held: 0,
        };
        if obj.sleeps() {
            waits.slots.push(WaiterSlot { waiter: new_waiter()?, taken: false, signalled: false });
        }
        Ok(waits)
    }

    /// Returns the state of a queue without waiting threads.
    #[cfg(test)]
    pub(crate) fn none() -> WaitState {
        WaitState {
            obj: WaitObj::None,
            eps: Vec::new(),
            wide: false,
            watched: false,
            fd_armed: false,
            slots: Vec::new(),
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
        for slot in self.slots.iter_mut().filter(|s| s.taken && !s.signalled) {
            slot.signalled = true;
            slot.waiter.signal();
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
        let first = self.slots.first().filter(|_| self.obj.sleeps());
        first.map(|s| &s.waiter)
    }

    /// Returns the descriptor for `FI_GETWAIT`.
    pub(crate) fn raw_fd(&self) -> Option<c_int> {
        self.waiter().map(|w| w.fd().as_raw_fd())
    }

    /// Acquires a free slot, or creates one. `fd_of` returns the descriptor of an enabled endpoint.
    pub(crate) fn acquire<'a>(
        &mut self,
        fd_of: impl Fn(u32) -> Option<BorrowedFd<'a>>,
    ) -> Result<(usize, Arc<Waiter>), Errno> {
        let free = self.slots.iter().position(|s| !s.taken);
        let at = match free {
            Some(at) => at,
            None => {
                let waiter = new_waiter()?;
                for fd in self.eps.iter().filter_map(|ep| fd_of(*ep)) {
                    watch(&waiter, fd)?;
                }
                self.slots.push(WaiterSlot { waiter, taken: false, signalled: false });
                self.slots.len() - 1
            }
        };
        let slot = self.slots.get_mut(at).ok_or(fi::FI_EINVAL)?;
        slot.acquire();
        Ok((at, Arc::clone(&slot.waiter)))
    }

    /// Releases a slot. Returns true when no slot is in use any more.
    pub(crate) fn release(&mut self, at: usize) -> bool {
        if let Some(slot) = self.slots.get_mut(at) {
            slot.release();
            if at == 0 && self.fd_armed {
                // The application polls the same descriptor, so it must be woken as well.
                slot.taken = true;
                slot.signalled = true;
                slot.waiter.signal();
            }
        }
        !self.slots.iter().any(|s| s.taken)
    }
}

impl WaiterSlot {
    /// Marks the slot as used. Earlier signals are discarded: the thread polls before it sleeps.
    pub(crate) fn acquire(&mut self) {
        self.taken = true;
        self.signalled = false;
        self.waiter.drain();
    }

    fn release(&mut self) {
        if self.signalled {
            self.waiter.drain();
        }
        self.signalled = false;
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
pub(crate) unsafe fn control(
    waits: &WaitState,
    command: c_int,
    arg: *mut c_void,
) -> Result<(), Errno> {
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

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "answers fi_control through the caller's pointers")]
//! Where waiters of a queue or counter sit: who sleeps, on which descriptors, and how an event of this process wakes them.
//!
//! Not about arming endpoints nor about when to sleep: that is the parent's.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use libfabric_sys as fi;
use scif::Waiter;

use crate::data::EpState;
use crate::entry::{self, Errno};
use crate::slab::Slab;

/// The wait object of a queue or counter, as far as it makes a difference here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitObj {
    /// Nobody may wait.
    None,
    /// Blocking calls only; how is our choice.
    Unspec,
    /// A descriptor for the application to poll.
    Fd,
    /// The same as a list of one descriptor.
    PollFd,
    /// Blocking calls poll and yield.
    Yield,
    /// A descriptor that a wait set watches.
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

    /// What `FI_GETWAITOBJ` answers: a descriptor is what UNSPEC got.
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

/// A place to sleep: endpoints' descriptors and an event of its own.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) waiter: Arc<Waiter>,
    pub(super) taken: bool,
    /// Its event was signalled and not drained since.
    rung: bool,
}

/// The waiting side of a queue or counter: which endpoints feed it, and who wants to know.
#[derive(Debug)]
pub(crate) struct Waits {
    pub(super) obj: WaitObj,
    pub(super) eps: Vec<u32>,
    /// Every endpoint of the domain feeds it, whether it was bound to it or not: a counter of a region.
    pub(super) wide: bool,
    /// Somebody sleeps or polls the descriptor. Then, and only then, every endpoint in `eps` is armed once for this.
    pub(super) watched: bool,
    /// The application polls the descriptor of the first seat.
    pub(super) fd_armed: bool,
    pub(super) seats: Vec<Seat>,
    /// Poll sets that have it as a member.
    pub(super) held: u32,
}

impl Waits {
    /// # Errors
    /// The system's, when there is no descriptor left.
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
            waits.seats.push(Seat {
                waiter: new_waiter()?,
                taken: false,
                rung: false,
            });
        }
        Ok(waits)
    }

    /// For a queue nobody waits on.
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

    /// Whether every endpoint of the domain feeds this.
    pub(crate) fn is_wide(&self) -> bool {
        self.wide
    }

    /// Whether a poll set has it as a member.
    pub(crate) fn is_held(&self) -> bool {
        self.held > 0
    }

    /// The endpoints that feed this.
    pub(crate) fn endpoints(&self) -> &[u32] {
        &self.eps
    }

    /// Something was added: wakes whoever sleeps.
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

    /// Whether a descriptor was handed to the application and is waiting for a wake-up.
    #[inline]
    pub(crate) fn fd_is_armed(&self) -> bool {
        self.fd_armed
    }

    /// The waiter whose descriptor the application may poll. A seat that is there for naps is none of its business.
    pub(crate) fn waiter(&self) -> Option<&Arc<Waiter>> {
        let first = self.seats.first().filter(|_| self.obj.sleeps());
        first.map(|s| &s.waiter)
    }

    /// The descriptor of `FI_GETWAIT`.
    pub(crate) fn raw_fd(&self) -> Option<c_int> {
        self.waiter().map(|w| w.fd().as_raw_fd())
    }

    /// Finds a free seat, or makes one.
    pub(super) fn take_seat(&mut self, eps: &Slab<EpState>) -> Result<(usize, Arc<Waiter>), Errno> {
        let free = self.seats.iter().position(|s| !s.taken);
        let at = match free {
            Some(at) => at,
            None => {
                let waiter = new_waiter()?;
                for ep in self
                    .eps
                    .iter()
                    .filter_map(|ep| eps.get(*ep))
                    .filter(|ep| ep.enabled)
                {
                    watch(&waiter, ep.sock.wait_fd())?;
                }
                self.seats.push(Seat {
                    waiter,
                    taken: false,
                    rung: false,
                });
                self.seats.len() - 1
            }
        };
        let seat = self.seats.get_mut(at).ok_or(fi::FI_EINVAL)?;
        seat.sit();
        Ok((at, Arc::clone(&seat.waiter)))
    }

    /// Gives a seat back; true when nobody is left.
    pub(super) fn leave_seat(&mut self, at: usize) -> bool {
        if let Some(seat) = self.seats.get_mut(at) {
            seat.stand_up();
            if at == 0 && self.fd_armed {
                // The application polls the same descriptor: it has to look, too.
                seat.taken = true;
                seat.rung = true;
                seat.waiter.signal();
            }
        }
        !self.seats.iter().any(|s| s.taken)
    }
}

impl Seat {
    /// Old signals do not count: whoever sits down looks before sleeping.
    pub(super) fn sit(&mut self) {
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
    Waiter::new().map(Arc::new).map_err(|e| entry::errno(&e))
}

pub(super) fn watch(waiter: &Waiter, fd: BorrowedFd<'_>) -> Result<(), Errno> {
    waiter.add(fd).map_err(|e| entry::errno(&e))
}

/// `FI_GETWAIT` and `FI_GETWAITOBJ` of a queue or counter.
///
/// # Errors
/// `FI_ENODATA`: there is no wait object. `FI_ETOOSMALL`: no room in the list of descriptors. `FI_ENOSYS`: another command.
///
/// # Safety
/// `arg` is null or what the command takes: `int *` or `struct fi_wait_pollfd *`; `enum fi_wait_obj *`.
pub(crate) unsafe fn control(waits: &Waits, command: c_int, arg: *mut c_void) -> Result<(), Errno> {
    match command {
        fi::FI_GETWAITOBJ => {
            // SAFETY: null or room for an enum, by the caller's contract.
            unsafe { entry::put(arg.cast(), waits.obj.to_c()) }
        }
        fi::FI_GETWAIT => {
            let fd = waits.raw_fd().ok_or(fi::FI_ENODATA)?;
            if waits.obj == WaitObj::PollFd {
                // SAFETY: null or a list of descriptors, by the caller's contract.
                return unsafe { poll_list(fd, arg.cast()) };
            }
            // SAFETY: null or room for an int, by the caller's contract.
            unsafe { entry::put(arg.cast(), fd) }
        }
        _ => Err(fi::FI_ENOSYS),
    }
}

/// # Safety
/// `list` is null or a `struct fi_wait_pollfd` with room for as many descriptors as it says.
pub(crate) unsafe fn poll_list(fd: c_int, list: *mut fi::fi_wait_pollfd) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let list = unsafe { list.as_mut() }.ok_or(fi::FI_EINVAL)?;
    let room = std::mem::replace(&mut list.nfds, 1);
    // The list never changes.
    list.change_index = 1;
    if room == 0 {
        return Err(fi::FI_ETOOSMALL);
    }
    // SAFETY: null or room for one, by the caller's contract.
    unsafe {
        entry::put(
            list.fd,
            libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            },
        )
    }
}

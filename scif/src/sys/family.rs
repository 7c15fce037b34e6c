// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Fork group: processes related to this one by fork, which may share its memory; and the test
//! whether any is left.
//!
//! Every fork creates a pair of sockets. The parent keeps one end and the child the other; children
//! forked later inherit the ends of their parent. An end hangs up once every process with the other
//! end has ended or called `exec`. Not about the shared objects (`epd::holder`). See
//! `socketpair(2)`, `poll(2)`.
#![expect(unsafe_code, reason = "closes a descriptor in a forked child")]

use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use scif_ring::counter::{AtomicCounter, AtomicFlag};

use super::descriptor::{Identity, identity};
use super::time::now_ns;

/// Interval in nanoseconds between two checks of the ends. After the last relative has ended, calls
/// stay on their slow paths for up to this time.
const LOOK_NS: u64 = 10_000_000;

/// One end of a pair, and the identity of its socket. A program may close the descriptor without
/// knowing it, and the identity then shows that its number has been reused.
#[derive(Debug)]
struct Tie(OwnedFd, Identity);

static TIES: Mutex<Vec<Tie>> = Mutex::new(Vec::new());
/// Whether a relative may be left.
static RELATED: AtomicFlag = AtomicFlag::new(false);
/// Whether this process ever had a relative.
static EVER: AtomicFlag = AtomicFlag::new(false);
/// Whether no pair could be made at some fork. A relative is then assumed to exist permanently.
static UNTIED: AtomicFlag = AtomicFlag::new(false);
/// Time of the next check.
static NEXT: AtomicCounter = AtomicCounter::new(0);

/// A fork in progress: the locked list of ends, and the ends for the parent and the child.
#[derive(Debug)]
pub(super) struct Birth {
    ties: MutexGuard<'static, Vec<Tie>>,
    ends: Option<(Tie, Tie)>,
}

impl Tie {
    fn pair() -> Result<(Tie, Tie), rustix::io::Errno> {
        let flags = SocketFlags::CLOEXEC;
        let (one, other) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let (first, second) = (identity(&one)?, identity(&other)?);
        Ok((Tie(one, first), Tie(other, second)))
    }

    /// Whether the descriptor still refers to the original socket.
    fn is_itself(&self) -> bool {
        identity(&self.0) == Ok(self.1)
    }

    /// Whether a process with the other end is left. False also if the program has closed this one.
    fn holds(&self) -> bool {
        let mut entry = [PollFd::new(&self.0, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let polled = poll(&mut entry, Some(&now));
        let [entry] = entry;
        polled.is_err() || (entry.revents().is_empty() && self.is_itself())
    }

    /// Closes the end, unless its descriptor has been reused.
    fn let_go(self) {
        if self.is_itself() {
            // By a direct system call: in a forked child a library preloaded before the C library
            // may still hold its locks. SAFETY: this value owns the descriptor, checked to be the
            // original socket, and gives it up.
            unsafe { rustix::io::close(self.0.into_raw_fd()) };
        } else {
            let _closed_by_the_program = self.0.into_raw_fd();
        }
    }
}

/// Drops the ends whose other ends are closed.
fn sweep(ties: &mut Vec<Tie>) {
    let mut i = 0;
    while let Some(tie) = ties.get(i) {
        if tie.holds() {
            i += 1;
        } else {
            ties.swap_remove(i).let_go();
        }
    }
}

/// Prepares for a fork. The forking thread calls it, and passes the value to both processes.
pub(super) fn begin() -> Birth {
    let mut ties = TIES.lock().unwrap_or_else(PoisonError::into_inner);
    sweep(&mut ties);
    RELATED.set(true);
    EVER.set(true);
    let ends = Tie::pair().inspect_err(|_| UNTIED.set(true)).ok();
    // Memory is reserved before the fork.
    ties.reserve(1);
    Birth { ties, ends }
}

impl Birth {
    pub(super) fn in_parent(mut self) {
        if let Some((mine, childs)) = self.ends.take() {
            self.ties.push(mine);
            childs.let_go();
        }
    }

    pub(super) fn in_child(mut self) {
        if let Some((parents, mine)) = self.ends.take() {
            self.ties.push(mine);
            parents.let_go();
        }
    }
}

/// Whether memory of this process may also be mapped by a process that it forked, or that forked
/// it. Detects within [`LOOK_NS`] that the last of them has ended or called `exec`.
#[inline]
pub fn has_fork_group() -> bool {
    RELATED.get() && update()
}

/// Whether this process ever had relatives, which may have left work undone.
pub fn had_fork_group() -> bool {
    EVER.get()
}

#[cold]
fn update() -> bool {
    let now = now_ns();
    if UNTIED.get() || now < NEXT.get() {
        return true;
    }
    let mut ties = match TIES.try_lock() {
        Ok(ties) => ties,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        // A fork is in progress, or another thread checks.
        Err(TryLockError::WouldBlock) => return true,
    };
    NEXT.set(now.saturating_add(LOOK_NS));
    sweep(&mut ties);
    // Under the lock, so that a fork that begins now sets it again afterwards.
    RELATED.set(!ties.is_empty());
    !ties.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, AsRawFd, FromRawFd};

    #[test]
    fn socket_end_is_open_until_all_copies_of_the_other_close() {
        // A child of another test would have copies.
        let _alone = crate::sys::children::none();
        let (mine, other) = Tie::pair().unwrap();
        let copy = Tie(other.0.try_clone().unwrap(), other.1);
        let mut ties = vec![mine];
        drop(other.0);
        sweep(&mut ties);
        assert_eq!(ties.len(), 1);
        copy.let_go();
        sweep(&mut ties);
        assert!(ties.is_empty());
    }

    #[test]
    fn reused_descriptor_number_is_not_closed() {
        let _alone = crate::sys::children::none();
        let (mine, _other) = Tie::pair().unwrap();
        let number = mine.0.as_raw_fd();
        let file = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: a descriptor of the test, which `mine` keeps naming.
        assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number);
        let mut ties = vec![mine];
        sweep(&mut ties);
        assert!(ties.is_empty(), "it tells of nobody");
        // SAFETY: the sweep did not close the descriptor, so the test owns it.
        let still = unsafe { OwnedFd::from_raw_fd(number) };
        assert!(rustix::io::fcntl_getfd(still.as_fd()).is_ok());
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Descriptors that a forked child must not keep: an open copy of a connection's socket in a child would
//! hide the parent's death from its peers.
//!
//! Not about `exec`: every descriptor is CLOEXEC anyway. See `pthread_atfork(3)`.
//!
//! INVARIANT: a number is in the registry exactly while one [`PrivateFd`] of this process owns it. The child
//! closes what the registry names and empties it, so a [`PrivateFd`] dropped later in the child finds its
//! number gone and leaves whatever the child has since opened under that number alone.
#![expect(
    unsafe_code,
    reason = "pthread_atfork and the descriptors its child handler closes"
)]

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use scif_ring::counter::Count;

/// A set of descriptor numbers, as bits. Emptying it frees no memory: it is emptied in a forked child,
/// where the allocator is best left alone.
struct FdSet(Vec<u64>);

impl FdSet {
    fn place(fd: RawFd) -> Option<(usize, u64)> {
        let fd = usize::try_from(fd).ok()?;
        Some((fd / 64, 1 << (fd % 64)))
    }

    fn insert(&mut self, fd: RawFd) {
        let Some((word, bit)) = Self::place(fd) else {
            return;
        };
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        if let Some(w) = self.0.get_mut(word) {
            *w |= bit;
        }
    }

    fn remove(&mut self, fd: RawFd) -> bool {
        let Some((word, bit)) = Self::place(fd) else {
            return false;
        };
        let Some(w) = self.0.get_mut(word) else {
            return false;
        };
        let was_in = *w & bit != 0;
        *w &= !bit;
        was_in
    }

    fn drain(&mut self, mut each: impl FnMut(RawFd)) {
        let mut base = 0;
        for word in &mut self.0 {
            while *word != 0 {
                let bit = word.trailing_zeros();
                *word &= *word - 1;
                each(base + bit.cast_signed());
            }
            base += 64;
        }
    }
}

static OPEN: Mutex<FdSet> = Mutex::new(FdSet(Vec::new()));
/// Held by a thread of ours while it has locks that a forked child must not find taken.
static BUSY: Mutex<()> = Mutex::new(());
static FORKS: Count = Count::new(0);
static CHILDREN: Count = Count::new(0);
static INSTALL: Once = Once::new();

thread_local! {
    /// The registry's lock while this thread is inside `fork`: the child gets a consistent set.
    static HELD: RefCell<Option<MutexGuard<'static, FdSet>>> = const { RefCell::new(None) };
    /// As above: no thread of ours is in the middle of something.
    static QUIET: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
}

fn registry() -> MutexGuard<'static, FdSet> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// For a thread of ours: no fork happens while the guard lives.
pub(crate) fn busy() -> MutexGuard<'static, ()> {
    BUSY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether memory of this process may also be mapped by one that it forked, or that forked it.
pub(crate) fn has_relatives() -> bool {
    CHILDREN.get() != 0 || FORKS.get() != 0
}

extern "C" fn before_fork() {
    let quiet = busy();
    QUIET.with(|held| *held.borrow_mut() = Some(quiet));
    let guard = registry();
    HELD.with(|held| *held.borrow_mut() = Some(guard));
}

extern "C" fn after_fork_in_parent() {
    CHILDREN.add(1);
    HELD.with(|held| held.borrow_mut().take());
    QUIET.with(|held| held.borrow_mut().take());
}

extern "C" fn after_fork_in_child() {
    FORKS.add(1);
    let guard = HELD.with(|held| held.borrow_mut().take());
    if let Some(mut open) = guard {
        open.drain(|fd| {
            // SAFETY: the number is in the registry, so a PrivateFd owned it at the fork; draining takes that
            // ownership over (see the invariant above), and this drops it once.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        });
    }
    QUIET.with(|held| held.borrow_mut().take());
}

fn install() {
    INSTALL.call_once(|| {
        // SAFETY: the three handlers are functions of this library, which is never unloaded (-z nodelete),
        // and they neither unwind nor allocate in the child.
        let rc = unsafe {
            libc::pthread_atfork(
                Some(before_fork),
                Some(after_fork_in_parent),
                Some(after_fork_in_child),
            )
        };
        if rc != 0 {
            log::warn!("a forked child will keep connections open until it execs: pthread_atfork {rc}");
        }
    });
}

/// How many times this process is itself the child of a fork made since the library was loaded. An object
/// that remembers another number belongs to an ancestor.
#[inline]
pub(crate) fn generation() -> u64 {
    FORKS.get_relaxed()
}

/// The process that made an object. To a forked child the objects of its parent are of no use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Maker(u64);

impl Maker {
    /// This process.
    #[must_use]
    pub fn here() -> Maker {
        Maker(generation())
    }

    /// Whether this is a forked child of the maker. Known once the engine has shared memory or opened a socket: before
    /// that there is nothing that a child could spoil.
    #[inline]
    #[must_use]
    pub fn is_ancestor(self) -> bool {
        self.0 != generation()
    }
}

/// A descriptor that ends with this process and with its owner, and is closed in a forked child.
#[derive(Debug)]
pub(crate) struct PrivateFd {
    fd: Option<OwnedFd>,
    generation: u64,
}

impl PrivateFd {
    pub(crate) fn new(fd: OwnedFd) -> PrivateFd {
        install();
        registry().insert(fd.as_raw_fd());
        PrivateFd {
            fd: Some(fd),
            generation: generation(),
        }
    }

    /// Whether this is a forked child's copy: the descriptor is closed here, and what it stood for is the parent's.
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation != generation()
    }
}

impl AsFd for PrivateFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Some(fd) if self.generation == generation() => fd.as_fd(),
            // In a forked child: names no descriptor, so what is tried on it fails.
            _ => rustix::fs::CWD,
        }
    }
}

impl Drop for PrivateFd {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        let mut open = registry();
        if open.remove(fd.as_raw_fd()) {
            // Closed under the lock, so that a fork sees either the entry and the descriptor or neither.
            drop(fd);
        } else {
            let _closed_by_the_fork_handler = fd.into_raw_fd();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_inserts_removes_and_drains() {
        let mut set = FdSet(Vec::new());
        for fd in [0, 63, 64, 700] {
            set.insert(fd);
        }
        assert!(set.remove(63));
        assert!(!set.remove(63));
        assert!(!set.remove(5000));
        assert!(!set.remove(-1));
        let mut seen = Vec::new();
        set.drain(|fd| seen.push(fd));
        assert_eq!(seen, [0, 64, 700]);
        assert!(!set.remove(64));
    }

    #[test]
    fn descriptor_dropped_after_the_child_closed_it_closes_nothing() {
        let fd = PrivateFd::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap());
        let number = fd.as_fd().as_raw_fd();
        assert!(
            registry().remove(number),
            "as the child handler does, but for the close"
        );
        drop(fd);
        // SAFETY: the drop above did not close the number, so it is still ours to own.
        let still = unsafe { OwnedFd::from_raw_fd(number) };
        assert!(rustix::io::fcntl_getfd(&still).is_ok());
    }
}

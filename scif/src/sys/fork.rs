// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Handling of a fork by the library. A child must not keep descriptors (an open copy of a
//! connection's socket would hide the parent's death from its peers). It must not find locks taken,
//! and it gets copies of windows.
//!
//! Not about `exec`: every descriptor is CLOEXEC anyway. See `pthread_atfork(3)`.
//!
//! INVARIANT: a descriptor number is in the registry exactly while one [`PrivateFd`] of this
//! process owns it. The child closes the registered numbers and empties the registry. An inherited
//! [`PrivateFd`] owns no number, since the child may have opened another descriptor under it.
#![expect(unsafe_code, reason = "pthread_atfork and the descriptors its child handler closes")]

use std::any::Any;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{
    Mutex, MutexGuard, Once, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

use scif_ring::counter::{AtomicCounter, AtomicFlag};

use super::errno::{self, keep_errno};
use super::family::{self, Birth};
use super::parts::parts;

/// A set of descriptor numbers, as bits. Emptying it frees no memory, because it is emptied in a
/// forked child, where the allocator should not be used.
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
                each(base + bit as RawFd);
            }
            base += 64;
        }
    }
}

static OPEN: Mutex<FdSet> = Mutex::new(FdSet(Vec::new()));
/// Held by a thread of the library while it has locks that a forked child must not find taken.
static BUSY: Mutex<()> = Mutex::new(());
/// Locked for reading by a thread that is about to take a process-local lock; for writing by a
/// forking thread.
static GATE: RwLock<()> = RwLock::new(());
/// Functions that take the locks to be held during a fork.
static HOLDS: Mutex<Vec<HoldLocks>> = Mutex::new(Vec::new());
/// Functions that run before a fork, while other threads continue.
static PREPARE: Mutex<Vec<Prepare>> = Mutex::new(Vec::new());
/// Whether a fork is being prepared.
static PREPARING: AtomicFlag = AtomicFlag::new(false);
/// Function by which a child copies the moved pages of the program, once pages were moved into a
/// memfd.
static MOVED: OnceLock<fn()> = OnceLock::new();
static FORKS: AtomicCounter = AtomicCounter::new(0);
static INSTALL: Once = Once::new();

type HoldLocks = Box<dyn Fn() -> Box<dyn Any> + Send>;
type Prepare = Box<dyn Fn() + Send>;

/// Locks and resources of a forking thread; released in the order of the fields.
#[derive(Default)]
struct Forking {
    _prepare: Option<MutexGuard<'static, Vec<Prepare>>>,
    open: Option<MutexGuard<'static, FdSet>>,
    _holds: Vec<Box<dyn Any>>,
    _gate: Option<RwLockWriteGuard<'static, ()>>,
    _quiet: Option<MutexGuard<'static, ()>>,
    /// Pipe whose writing end the child closes once it has its copies.
    copied: Option<(OwnedFd, OwnedFd)>,
    /// Present only if a prepare function is registered.
    birth: Option<Birth>,
}

thread_local! {
    // None of these has a destructor, since they are used until the very end of a thread.
    static FORKING: Cell<Option<ManuallyDrop<Forking>>> = const { Cell::new(None) };
    /// Nesting depth of sections of this thread, and the guard of the outermost one.
    static SECTIONS: Cell<u32> = const { Cell::new(0) };
    static ENTERED: Cell<Option<ManuallyDrop<RwLockReadGuard<'static, ()>>>> =
        const { Cell::new(None) };
}

/// Guard that prevents forks by other threads, for taking locks of which a forked child has a copy.
#[derive(Debug)]
pub struct Section(std::marker::PhantomData<*mut ()>);

pub fn section() -> Section {
    let depth = SECTIONS.get();
    if depth == 0 {
        // A fork waits for sections only if its handlers are registered.
        install();
        // Without contention `errno` needs no protection.
        let guard = GATE
            .try_read()
            .unwrap_or_else(|_| keep_errno(|| GATE.read().unwrap_or_else(PoisonError::into_inner)));
        ENTERED.set(Some(ManuallyDrop::new(guard)));
    }
    SECTIONS.set(depth + 1);
    Section(std::marker::PhantomData)
}

impl Drop for Section {
    fn drop(&mut self) {
        let depth = SECTIONS.get() - 1;
        SECTIONS.set(depth);
        if depth == 0 {
            drop(ENTERED.take().map(ManuallyDrop::into_inner));
        }
    }
}

/// Registers a function that takes a lock for the forking thread, held from before until after the
/// fork in both processes.
pub fn hold_while_forking(hold: impl Fn() -> Box<dyn Any> + Send + 'static) {
    install();
    let mut holds = HOLDS.lock().unwrap_or_else(PoisonError::into_inner);
    holds.push(Box::new(hold));
}

/// Registers a function that the forking thread runs before it takes any lock.
pub fn prepare_to_fork(prepare: impl Fn() + Send + 'static) {
    install();
    let mut all = PREPARE.lock().unwrap_or_else(PoisonError::into_inner);
    all.push(Box::new(prepare));
}

/// Whether a thread prepares a fork and may already have enumerated the objects. The creator of a
/// new object must then prepare it, in the section that publishes the object. To be called after
/// the publication.
pub fn is_preparing() -> bool {
    PREPARING.get()
}

/// Notes that pages of the program are in a memfd from now on, and that a forked child calls
/// `make_own_copies`.
pub(super) fn moved(make_own_copies: fn()) {
    let _ = MOVED.set(make_own_copies);
}

fn registry() -> MutexGuard<'static, FdSet> {
    errno::lock(&OPEN)
}

/// Takes the lock that a forking thread takes.
#[cfg(test)]
pub(super) fn gate_as_a_forking_thread() -> RwLockWriteGuard<'static, ()> {
    keep_errno(|| GATE.write().unwrap_or_else(PoisonError::into_inner))
}

/// Prevents forks while the guard exists, for a thread of the library.
pub fn busy() -> MutexGuard<'static, ()> {
    BUSY.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn before_fork() {
    // Held until after the fork, so that a child does not find it taken by another thread.
    let prepare = PREPARE.lock().unwrap_or_else(PoisonError::into_inner);
    // Set before any prepare function enumerates objects.
    PREPARING.set(true);
    prepare.iter().for_each(|prepare| prepare());
    let quiet = busy();
    let gate = GATE.write().unwrap_or_else(PoisonError::into_inner);
    // No thread is in a section now: new objects appear after the fork.
    PREPARING.set(false);
    let holds = HOLDS.lock().unwrap_or_else(PoisonError::into_inner);
    let holds = holds.iter().map(|hold| hold()).collect();
    let copied = if MOVED.get().is_some() {
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok()
    } else {
        None
    };
    let birth = (!prepare.is_empty()).then(family::begin);
    let open = registry();
    FORKING.set(Some(ManuallyDrop::new(Forking {
        _prepare: Some(prepare),
        open: Some(open),
        _holds: holds,
        _gate: Some(gate),
        _quiet: Some(quiet),
        copied,
        birth,
    })));
}

extern "C" fn after_fork_in_parent() {
    let mut held = FORKING.take().map(ManuallyDrop::into_inner).unwrap_or_default();
    held.open.take();
    if let Some(birth) = held.birth.take() {
        birth.in_parent();
    }
    if let Some((read, write)) = held.copied.take() {
        drop(write);
        // The child's copy must be that of the moment of the fork, without later stores of the
        // parent. The read ends when the child has its copy, or has died.
        while rustix::io::read(&read, &mut [0u8; 1]) == Err(rustix::io::Errno::INTR) {}
    }
}

extern "C" fn after_fork_in_child() {
    FORKS.add(1);
    let mut held = FORKING.take().map(ManuallyDrop::into_inner).unwrap_or_default();
    if let Some(mut open) = held.open.take() {
        open.drain(|fd| {
            // By a direct system call: a library preloaded before the C library may still hold its
            // locks. SAFETY: the number is in the registry, so a PrivateFd owned it at the fork;
            // draining takes over that ownership (see the invariant above), and this closes it
            // once.
            unsafe { rustix::io::close(fd) };
        });
    }
    if let Some(birth) = held.birth.take() {
        birth.in_child();
    }
    parts().clear();
    if let Some(make_own_copies) = MOVED.get() {
        make_own_copies();
    }
}

fn install() {
    INSTALL.call_once(|| {
        // SAFETY: the three handlers are functions of this library, which is never unloaded (-z
        // nodelete), and they do not unwind. The C library makes its allocator usable in the child
        // before the child handler runs.
        let rc = unsafe {
            libc::pthread_atfork(
                Some(before_fork),
                Some(after_fork_in_parent),
                Some(after_fork_in_child),
            )
        };
        if rc != 0 {
            log::warn!(
                "pthread_atfork: {}: a forked child keeps the connections of its parent open, and \
                 peers detect the parent's death late. Call exec after fork",
                rustix::io::Errno::from_raw_os_error(rc)
            );
        }
    });
}

/// Returns the number of forks, since the library was loaded, that lead to this process as a child.
/// An object with another number belongs to an ancestor.
#[inline]
pub fn generation() -> u64 {
    FORKS.get_relaxed()
}

/// The process that created an object. A forked child cannot use the objects of its parent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Maker(u64);

impl Maker {
    /// Returns this process.
    #[inline]
    #[must_use]
    pub fn here() -> Maker {
        Maker(generation())
    }

    /// Whether this is a forked child of the creator. Known once the engine has shared memory or
    /// opened a socket; earlier there is nothing that a child could damage.
    #[inline]
    #[must_use]
    pub fn is_ancestor(self) -> bool {
        self.0 != generation()
    }
}

/// A descriptor that is closed with its owner, and in a forked child.
#[derive(Debug)]
pub struct PrivateFd {
    fd: Option<OwnedFd>,
    generation: u64,
}

impl PrivateFd {
    pub fn new(fd: OwnedFd) -> PrivateFd {
        install();
        registry().insert(fd.as_raw_fd());
        PrivateFd { fd: Some(fd), generation: generation() }
    }

    /// Returns the descriptor and gives up its ownership; `None` in a forked child, where it is
    /// closed.
    pub fn release(mut self) -> Option<OwnedFd> {
        let fd = self.fd.take()?;
        if !self.is_inherited() {
            registry().remove(fd.as_raw_fd());
            return Some(fd);
        }
        let _closed_by_the_fork_handler = fd.into_raw_fd();
        None
    }

    /// Whether this is a forked child's copy, whose descriptor is closed.
    pub fn is_inherited(&self) -> bool {
        self.generation != generation()
    }
}

impl AsFd for PrivateFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Some(fd) if self.generation == generation() => fd.as_fd(),
            // In a forked child: not a valid descriptor for these calls, so that they fail.
            _ => rustix::fs::CWD,
        }
    }
}

impl Drop for PrivateFd {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        if self.is_inherited() {
            let _closed_by_the_fork_handler = fd.into_raw_fd();
            return;
        }
        // Closed under the lock, so that a fork sees either the entry and the descriptor or
        // neither.
        let mut open = registry();
        open.remove(fd.as_raw_fd());
        drop(fd);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;

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
    fn an_inherited_descriptor_does_not_own_its_number() {
        let eventfd = || rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        for released in [false, true] {
            let (inherited, other) = (PrivateFd::new(eventfd()), eventfd());
            let number = inherited.as_fd().as_raw_fd();
            let child = super::super::children::in_child(|| {
                // SAFETY: the child handler closed the number, and no other thread opens it again.
                let mut new = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
                rustix::io::dup2(&other, &mut new).unwrap();
                let new = PrivateFd::new(ManuallyDrop::into_inner(new));
                let is_none = if released {
                    inherited.release().is_none()
                } else {
                    drop(inherited);
                    true
                };
                i32::from(is_none && rustix::io::fcntl_getfd(&new).is_ok())
            });
            assert_eq!(child.result(), 1, "released: {released}");
        }
    }
}

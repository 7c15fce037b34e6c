// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Mappings that must be gone when the process exits.
//!
//! Mainline's driver of SCIF keeps an endpoint for ever, if its process exits while it has a window
//! and maps one of the peer: the window holds the memory of the process, and the mapping in that
//! memory holds the endpoint. An exit handler puts private memory in place of these mappings. Other
//! threads may still store to them, without effect. See `atexit(3)`.
//!
//! Not about a process that is killed, or that calls `_exit(2)`: nothing helps there.
#![expect(unsafe_code, reason = "atexit, and mmap over ranges of the library")]

use std::panic::catch_unwind;
use std::sync::{Mutex, Once, TryLockError};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use scif_ring::AtomicFlag;

use super::errno::lock;
use super::fork::{self, Maker};

/// A mapping of the library, and the process that made it.
#[derive(Debug)]
struct ExitMapping {
    begin: usize,
    len: usize,
    maker: Maker,
}

static ENTRIES: Mutex<Vec<ExitMapping>> = Mutex::new(Vec::new());
static INSTALL: Once = Once::new();
/// Whether the handler has run in this process.
static EXITING: AtomicFlag = AtomicFlag::new(false);

/// Enters a mapping, which the caller has just made.
///
/// # Errors
/// ECANCELED: the process exits, so the caller has to remove the mapping.
pub(super) fn enter(begin: usize, len: usize) -> Result<(), Errno> {
    INSTALL.call_once(|| {
        // SAFETY: a function of this library, which takes no argument. A library that is unloaded
        // runs its handlers at that time.
        let _ = unsafe { libc::atexit(remove_all) };
    });
    // No forked child finds the lock taken.
    let _section = fork::section();
    let mut entries = lock(&ENTRIES);
    if EXITING.get() {
        return Err(Errno::CANCELED);
    }
    entries.push(ExitMapping { begin, len, maker: Maker::here() });
    Ok(())
}

/// Removes the entry of a mapping whose range is about to become free.
pub(super) fn leave(begin: usize) {
    let _section = fork::section();
    lock(&ENTRIES).retain(|entry| entry.begin != begin);
}

/// Puts private memory in place of a mapping that is entered. Views of it stay valid.
pub(super) fn replace(begin: usize) {
    let _section = fork::section();
    let mut entries = lock(&ENTRIES);
    entries.retain(|entry| {
        if entry.begin == begin {
            put_private(entry);
        }
        entry.begin != begin
    });
}

/// Puts private memory in place of the entered mapping around an address, whose pages a driver has
/// removed. Returns false without one. Safe in a signal handler of a thread that accessed the
/// mapping: no thread does so with the lock. Another thread may access it too, so it stays entered.
pub(super) fn replace_around(address: usize) -> bool {
    for _ in 0..ATTEMPTS {
        let entries = match ENTRIES.try_lock() {
            Ok(entries) => entries,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        let is_around = |entry: &&ExitMapping| {
            !entry.maker.is_ancestor()
                && address.checked_sub(entry.begin).is_some_and(|offset| offset < entry.len)
        };
        return entries.iter().find(is_around).inspect(|entry| put_private(entry)).is_some();
    }
    false
}

fn put_private(entry: &ExitMapping) {
    if entry.maker.is_ancestor() {
        // A forked child does not inherit the range: its addresses may be in other use.
        return;
    }
    let at = std::ptr::with_exposed_provenance_mut(entry.begin);
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the range is a mapping of the library, which removes the entry before the range.
    let _ = unsafe { rustix::mm::mmap_anonymous(at, entry.len, prot, flags) };
}

/// Exit handler. It takes no lock that another thread may keep: threads hold this one for short
/// steps only, except one that a signal handler has interrupted to exit.
extern "C" fn remove_all() {
    let _ = catch_unwind(|| {
        for _ in 0..ATTEMPTS {
            match ENTRIES.try_lock() {
                Ok(mut entries) => return remove(&mut entries),
                Err(TryLockError::Poisoned(poisoned)) => return remove(&mut poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            }
        }
    });
}

/// Number of attempts to take the lock at exit or in a handler of a signal, and the pause between
/// them: 100 ms in total.
const ATTEMPTS: u32 = 100;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(1);

fn remove(entries: &mut Vec<ExitMapping>) {
    EXITING.set(true);
    for entry in entries.drain(..) {
        put_private(&entry);
    }
}

#[cfg(test)]
mod tests {
    use crate::sys::mmap::{Mapping, PAGE};

    fn first_byte(map: &Mapping) -> u8 {
        let mut byte = [0];
        map.bytes(0, 1).unwrap().copy_to_slice(&mut byte);
        byte[0]
    }

    #[test]
    fn a_detached_mapping_leaves_private_memory() {
        let file = crate::sys::memfd::create("at-exit", PAGE).unwrap();
        let peer = Mapping::shared(&file, PAGE, true).unwrap();
        let mut map = Mapping::shared(&file, PAGE, true).unwrap();
        map.detach();
        peer.bytes(0, 1).unwrap().copy_from_slice(&[7]);
        assert_eq!(first_byte(&map), 7, "not entered: nothing happens");
        map.detach_at_exit().unwrap();
        let view = map.bytes(0, 1).unwrap();
        map.detach();
        assert_eq!(first_byte(&map), 0);
        view.copy_from_slice(&[9]);
        assert_eq!((first_byte(&map), first_byte(&peer)), (9, 7));
        map.detach();
        assert_eq!(first_byte(&map), 9, "once");
        drop(map);
        assert!(super::ENTRIES.lock().unwrap().is_empty());
    }
}

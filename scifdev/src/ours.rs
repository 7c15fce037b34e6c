// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Endpoints of this process, and the numbers of the program that name them.
//!
//! A number is marked when it is handed out, so that calls about other descriptors cost one load.
//! An unmarked number of an endpoint (made by `fcntl`, or too high) is recognised by the engine at
//! its first ioctl. Nothing in this module locks: `close` and `poll` may run in a signal handler.
//!
//! INVARIANT: while a thread is inside the engine its calls of the C library are forwarded, see
//! [`inside`].

use std::cell::Cell;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use once_cell::sync::OnceCell;
use scif::Config;
use scif::abi::Encoding;
use scif_api::{Endpoints, Failure, Result};
use scif_ring::counter::{AtomicCounter, AtomicFlag};

use crate::real;

/// Number of descriptors that can be marked; only the engine recognises higher ones.
const NUMBERS: usize = 1 << 20;

static ENDPOINTS: OnceCell<Endpoints> = OnceCell::new();
static OURS: [AtomicFlag; NUMBERS] = [const { AtomicFlag::new(false) }; NUMBERS];
/// Sets of epoll(7) with endpoints in them, and whether there ever was one.
static SETS: [AtomicFlag; NUMBERS] = [const { AtomicFlag::new(false) }; NUMBERS];
static HAS_SETS: AtomicFlag = AtomicFlag::new(false);
/// Endpoints that were accepted, but not yet moved to a number of the program.
static WAITING: [AtomicFlag; NUMBERS] = [const { AtomicFlag::new(false) }; NUMBERS];
/// Number of them, and one more than the highest of them ever.
static WAITING_COUNT: AtomicCounter = AtomicCounter::new(0);
static WAITING_END: AtomicCounter = AtomicCounter::new(0);

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside the engine; then its calls do not concern the device.
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

/// Runs a part of the engine. No panic leaves it, and errno stays unchanged.
pub(crate) fn inside<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    let outer = INSIDE.replace(true);
    let done = real::keep_errno(|| catch_unwind(AssertUnwindSafe(call)));
    INSIDE.set(outer);
    done.unwrap_or(Err(Failure::Broken))
}

/// Returns the endpoints, if the program has opened the device.
pub(crate) fn endpoints() -> Option<&'static Endpoints> {
    ENDPOINTS.get()
}

/// Returns the endpoints, made by the first open of the device that succeeds.
pub(crate) fn make_endpoints() -> Result<&'static Endpoints> {
    ENDPOINTS.get_or_try_init(|| {
        let config = Config::from_env();
        scif::logging::log_to_stderr("libscifdev", config.log);
        Endpoints::new(config)
    })
}

fn flag(set: &'static [AtomicFlag; NUMBERS], fd: RawFd) -> Option<&'static AtomicFlag> {
    set.get(usize::try_from(fd).ok()?)
}

/// Whether a number is marked as an endpoint.
pub(crate) fn is_marked(fd: RawFd) -> bool {
    flag(&OURS, fd).is_some_and(AtomicFlag::get)
}

/// Marks a number as an endpoint, or not. Returns whether it was.
pub(crate) fn mark(fd: RawFd, ours: bool) -> bool {
    flag(&OURS, fd).is_some_and(|flag| flag.swap(ours))
}

/// Marks a number as a set with endpoints in it, or not. Returns whether it was.
pub(crate) fn mark_set(fd: RawFd, set: bool) -> bool {
    if set {
        HAS_SETS.set(true);
    }
    HAS_SETS.get() && flag(&SETS, fd).is_some_and(|flag| flag.swap(set))
}

/// Whether a number is marked as a set with endpoints.
pub(crate) fn is_set(fd: RawFd) -> bool {
    HAS_SETS.get() && flag(&SETS, fd).is_some_and(AtomicFlag::get)
}

/// Whether there ever was a set with endpoints.
pub(crate) fn has_sets() -> bool {
    HAS_SETS.get()
}

const ENCODING: u64 = 0xff;
const PENDING: u64 = 0x100;
/// Bits of a label below the identifier of the listener.
const LISTENER: u32 = 16;

/// Returns the label of an endpoint, which records the device that opened it.
pub(crate) fn label(encoding: Encoding) -> u64 {
    u64::from(encoding as u32)
}

/// Returns the encoding of the device that opened an endpoint.
///
/// # Errors
/// [`Failure::BadDescriptor`] or [`Failure::NotAnEndpoint`] for another number.
pub(crate) fn encoding(endpoints: &Endpoints, fd: RawFd) -> Result<Encoding> {
    const POINTER: u64 = Encoding::Pointer as u64;
    match endpoints.label(fd)? & ENCODING {
        POINTER => Ok(Encoding::Pointer),
        _ => Ok(Encoding::Struct),
    }
}

/// Keeps an accepted endpoint until the program names its number. Returns the cookie for it. A
/// number too high to be marked is refused.
///
/// # Errors
/// [`Failure::NoMemory`]; [`Failure::BadDescriptor`] or [`Failure::NotAnEndpoint`] for a listener
/// that was closed meanwhile.
pub(crate) fn keep(endpoints: &Endpoints, accepted: RawFd, listener: RawFd) -> Result<u64> {
    let waiting = flag(&WAITING, accepted).ok_or(Failure::NoMemory)?;
    let from = endpoints.identifier(listener)? << LISTENER;
    endpoints.set_label(accepted, from | PENDING)?;
    waiting.set(true);
    WAITING_END.max(u64::from(accepted.unsigned_abs()) + 1);
    WAITING_COUNT.add(1);
    Ok(COOKIE | u64::from(accepted.unsigned_abs()))
}

/// Upper half of a cookie; neither a kernel address nor a descriptor number.
const COOKIE: u64 = 0x5c1f << 32;

/// Takes the accepted endpoint of a cookie, which stops waiting.
pub(crate) fn take_kept(cookie: u64) -> Option<RawFd> {
    if cookie >> 32 != COOKIE >> 32 {
        return None;
    }
    let fd = RawFd::try_from(cookie & 0xffff_ffff).ok()?;
    let was = flag(&WAITING, fd)?.swap(false);
    was.then(|| {
        WAITING_COUNT.sub(1);
        fd
    })
}

/// Closes the endpoints that listeners without a descriptor accepted and that were not moved to a
/// number.
pub(crate) fn drop_kept(endpoints: &Endpoints) {
    if WAITING_COUNT.get() == 0 {
        return;
    }
    for number in 0..WAITING_END.get() {
        let Ok(fd) = RawFd::try_from(number) else {
            return;
        };
        let waits = flag(&WAITING, fd).is_some_and(AtomicFlag::get);
        if waits
            && endpoints.label(fd).is_ok_and(|label| !endpoints.exists(label >> LISTENER))
            && take_kept(COOKIE | number) == Some(fd)
        {
            let _ = endpoints.close(fd);
        }
    }
}

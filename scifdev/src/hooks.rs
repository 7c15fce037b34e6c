// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Functions of the C library that are replaced. Each checks whether it concerns an endpoint, and
//! forwards all other calls unchanged.
//!
//! Not about the work for endpoints. C's variable argument is declared as a fixed one. On the
//! 64-bit machines that the driver supports both are passed alike, and a missing argument is never
//! used.
#![expect(unsafe_code, reason = "functions a C program calls by name, with pointers of its own")]

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong, c_void};
use std::time::Duration;

use libc::{
    epoll_event, fd_set, mode_t, nfds_t, off_t, pollfd, sigset_t, size_t, timespec, timeval,
};
use scif::abi::{self, Encoding};
use scif_api::{Endpoints, Failure, Result};

use crate::ours::{self, inside};
use crate::{calls, defects, ready, real, sets};

/// Converts a result for C: its value, or -1 with errno set.
fn answer(done: Result<c_int>) -> c_int {
    done.unwrap_or_else(|failure| {
        real::set_errno(failure.raw_os_error());
        -1
    })
}

fn count(done: Result<usize>) -> c_int {
    answer(done.and_then(|n| c_int::try_from(n).map_err(|_| Failure::Invalid)))
}

/// Returns the endpoints, if this number is one of them and the caller is not the engine.
fn served(fd: c_int) -> Option<&'static Endpoints> {
    if ours::is_inside() || !ours::is_marked(fd) {
        return None;
    }
    ours::endpoints()
}

/// Returns the encoding of the device at a path.
fn device(path: *const c_char) -> Option<Encoding> {
    if path.is_null() || ours::is_inside() {
        return None;
    }
    // SAFETY: not NULL; by the caller's contract a C string.
    match unsafe { CStr::from_ptr(path) }.to_bytes() {
        b"/dev/scif" => Some(Encoding::Struct),
        b"/dev/mic/scif" => Some(Encoding::Pointer),
        _ => None,
    }
}

/// Opens the device, which makes an endpoint.
fn open_device(encoding: Encoding, flags: c_int) -> c_int {
    answer(inside(|| {
        let endpoints = ours::make_endpoints()?;
        let fd = endpoints.open()?;
        endpoints.set_label(fd, ours::label(encoding))?;
        if flags & libc::O_CLOEXEC == 0 {
            real::set_cloexec(fd, false);
        }
        if flags & libc::O_NONBLOCK != 0 {
            real::set_nonblocking(fd);
        }
        ours::mark(fd, true);
        Ok(fd)
    }))
}

macro_rules! opens {
    ($($name:ident),*) => { $(
        /// open(2)
        // SAFETY: replaces the C library's function of this name, with the same signature.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            match device(path) {
                Some(encoding) => open_device(encoding, flags),
                // SAFETY: the caller's arguments, unchanged.
                None => unsafe { real::$name(path, flags, mode) },
            }
        }
    )* };
}
opens!(open, open64);

macro_rules! opens_at {
    ($($name:ident),*) => { $(
        /// openat(2); for an absolute path the directory has no effect.
        // SAFETY: replaces the C library's function of this name, with the same signature.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            dir: c_int,
            path: *const c_char,
            flags: c_int,
            mode: mode_t,
        ) -> c_int {
            match device(path) {
                Some(encoding) => open_device(encoding, flags),
                // SAFETY: the caller's arguments, unchanged.
                None => unsafe { real::$name(dir, path, flags, mode) },
            }
        }
    )* };
}
opens_at!(openat, openat64);

/// Defines the checked variants of an open without a mode.
macro_rules! opens_checked {
    ($($name:ident as $plain:ident),*) => { $(
        /// open(2), as compiled with checks.
        // SAFETY: replaces the C library's function of this name, with the same signature.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: the caller's arguments; no file is created, so the mode is unused.
            unsafe { $plain(path, flags, 0) }
        }
    )* };
}
opens_checked!(__open_2 as open, __open64_2 as open64);

macro_rules! opens_at_checked {
    ($($name:ident as $plain:ident),*) => { $(
        /// openat(2), as compiled with checks.
        // SAFETY: replaces the C library's function of this name, with the same signature.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: the caller's arguments; no file is created, so the mode is unused.
            unsafe { $plain(dir, path, flags, 0) }
        }
    )* };
}
opens_at_checked!(__openat_2 as openat, __openat64_2 as openat64);

/// ioctl(2)
// SAFETY: replaces the C library's function of this name, with the same signature.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, number: c_ulong, argument: *mut c_void) -> c_int {
    // Only the low 32 bits reach the kernel.
    #[expect(clippy::cast_possible_truncation, reason = "the kernel's cmd is an unsigned int")]
    let request = number as u32;
    let endpoints = ours::endpoints().filter(|_| !ours::is_inside());
    if let Some(endpoints) = endpoints {
        let marked = ours::is_marked(fd);
        // Requests that every file supports, handled before a driver.
        let general =
            [libc::FIOCLEX, libc::FIONCLEX, libc::FIONBIO, libc::FIOASYNC].contains(&number);
        if abi::is_ours(request) || (marked && !general) {
            let argument = argument.expose_provenance();
            match inside(|| calls::serve(endpoints, fd, request, argument)) {
                // Not an endpoint after all: the request is forwarded to its own file.
                Err(Failure::NotAnEndpoint | Failure::BadDescriptor) => {
                    ours::mark(fd, false);
                }
                done => {
                    if !marked {
                        ours::mark(fd, true);
                    }
                    return answer(done);
                }
            }
        }
    }
    // SAFETY: the caller's arguments, unchanged.
    unsafe { real::ioctl(fd, number, argument) }
}

/// Maps a window of the peer, for mmap(2) of an endpoint.
fn map(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> Option<*mut c_void> {
    let endpoints = if flags & libc::MAP_ANONYMOUS == 0 {
        served(fd)?
    } else {
        return None;
    };
    let at = at.expose_provenance();
    match inside(|| endpoints.map(fd, (at, len), offset, prot, flags)) {
        Ok(place) => Some(std::ptr::with_exposed_provenance_mut(place)),
        Err(failure) => {
            real::set_errno(failure.raw_os_error());
            Some(libc::MAP_FAILED)
        }
    }
}

macro_rules! maps {
    ($($name:ident),*) => { $(
        /// mmap(2)
        // SAFETY: replaces the C library's function of this name, with the same signature.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            at: *mut c_void,
            len: size_t,
            prot: c_int,
            flags: c_int,
            fd: c_int,
            offset: off_t,
        ) -> *mut c_void {
            match map(at, len, prot, flags, fd, offset) {
                Some(place) => place,
                // SAFETY: the caller's arguments, unchanged.
                None => unsafe { real::$name(at, len, prot, flags, fd, offset) },
            }
        }
    )* };
}
maps!(mmap, mmap64);

/// close(2)
// SAFETY: replaces the C library's function of this name, with the same signature.
#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    sets::forget(fd);
    match served(fd) {
        Some(endpoints) => {
            ours::mark(fd, false);
            answer(inside(|| {
                defects::hold_mapped(endpoints, fd);
                let closed = endpoints.close(fd);
                ours::drop_kept(endpoints);
                defects::release_unmapped(endpoints);
                closed.map(|()| 0)
            }))
        }
        // SAFETY: the caller's argument, unchanged.
        None => unsafe { real::close(fd) },
    }
}

/// Updates the marks after a number was made a copy of another.
fn copied(from: c_int, to: c_int) -> c_int {
    if to >= 0 && from != to && !ours::is_inside() {
        let ours = ours::is_marked(from);
        sets::forget(to);
        if ours::mark(to, ours) || ours {
            if let Some(endpoints) = ours::endpoints() {
                let _ = inside(|| {
                    endpoints.forget(to);
                    Ok(())
                });
            }
        }
    }
    to
}

/// dup(2)
// SAFETY: replaces the C library's function of this name, with the same signature.
#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller's argument, unchanged.
    copied(fd, unsafe { real::dup(fd) })
}

/// dup2(2)
// SAFETY: replaces the C library's function of this name, with the same signature.
#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(fd: c_int, number: c_int) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    copied(fd, unsafe { real::dup2(fd, number) })
}

/// dup3(2)
// SAFETY: replaces the C library's function of this name, with the same signature.
#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(fd: c_int, number: c_int, flags: c_int) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    copied(fd, unsafe { real::dup3(fd, number, flags) })
}

/// Whether the system accepts an array of entries. If not, the forwarded call reports the error.
fn is_there(entries: *mut pollfd, n: u32) -> bool {
    real::keep_errno(|| {
        // SAFETY: the program passes it for a poll. The system checks it, and writes only the bits
        // of entries.
        let rc = unsafe { real::poll(entries, n.into(), 0) };
        rc >= 0 || real::errno() == libc::EINTR
    })
}

/// Returns the entries of a poll and the endpoints, if one of the entries is an endpoint.
///
/// # Safety
/// `entries` is NULL, invalid, or an array of `n` that belongs to the caller alone during the call.
unsafe fn polled<'a>(
    entries: *mut pollfd,
    n: nfds_t,
) -> Option<(&'static Endpoints, &'a mut [pollfd])> {
    #[expect(clippy::cast_possible_truncation, reason = "the kernel's number is an unsigned int")]
    let n = n as u32;
    let endpoints =
        ours::endpoints().filter(|_| !ours::is_inside() && !entries.is_null() && n > 0)?;
    if !is_there(entries, n) {
        return None;
    }
    let n = usize::try_from(n).ok()?;
    // SAFETY: not NULL, and the system has just read and written `n` entries there; the rest is the
    // caller's contract.
    let entries = unsafe { std::slice::from_raw_parts_mut(entries, n) };
    entries.iter().any(|entry| ours::is_marked(entry.fd)).then_some((endpoints, entries))
}

/// poll(2)
// SAFETY: replaces the C library's function of this name, with the same signature.
#[unsafe(no_mangle)]
unsafe extern "C" fn poll(entries: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's contract.
    match unsafe { polled(entries, n) } {
        Some((endpoints, entries)) => count(inside(|| endpoints.poll(entries, timeout))),
        // SAFETY: the caller's arguments, unchanged.
        None => unsafe { real::poll(entries, n, timeout) },
    }
}

/// poll(2), as compiled with checks.
// SAFETY: replaces the C library's function of this name, with the same signature.
#[unsafe(no_mangle)]
unsafe extern "C" fn __poll_chk(
    entries: *mut pollfd,
    n: nfds_t,
    timeout: c_int,
    _room: size_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { poll(entries, n, timeout) }
}

fn nanoseconds(seconds: c_long, ns: c_long) -> Result<Duration> {
    let (seconds, ns) = (u64::try_from(seconds), u32::try_from(ns));
    match (seconds, ns) {
        (Ok(seconds), Ok(ns)) if ns < 1_000_000_000 => Ok(Duration::new(seconds, ns)),
        _ => Err(Failure::Invalid),
    }
}

/// Reads an optional time of the program.
///
/// # Safety
/// NULL, or a timespec of the caller.
unsafe fn limit(time: *const timespec) -> Result<Option<Duration>> {
    if time.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL; the rest is the caller's contract.
    let time = unsafe { time.read_unaligned() };
    nanoseconds(time.tv_sec, time.tv_nsec).map(Some)
}

/// ppoll(2)
// SAFETY: replaces the C library's function of this name, with the same signature.
#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(
    entries: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's contract.
    match unsafe { polled(entries, n) } {
        Some((endpoints, entries)) => {
            // SAFETY: the caller's contract.
            let limit = unsafe { limit(timeout) };
            count(limit.and_then(|limit| ready::wait(endpoints, entries, limit, mask)))
        }
        // SAFETY: the caller's arguments, unchanged.
        None => unsafe { real::ppoll(entries, n, timeout, mask) },
    }
}

/// ppoll(2), as compiled with checks.
// SAFETY: replaces the C library's function of this name, with the same signature.
#[unsafe(no_mangle)]
unsafe extern "C" fn __ppoll_chk(
    entries: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    _room: size_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { ppoll(entries, n, timeout, mask) }
}

/// Returns the sets of a select and the endpoints, if a set contains an endpoint.
///
/// # Safety
/// Each is NULL or a set of at least `n` descriptors.
unsafe fn selected(
    n: c_int,
    sets: [*mut fd_set; 3],
) -> Option<(&'static Endpoints, [ready::Set; 3])> {
    let endpoints = ours::endpoints().filter(|_| !ours::is_inside())?;
    let n = usize::try_from(n).ok()?;
    // SAFETY: the caller's contract.
    let sets = sets.map(|set| unsafe { ready::Set::new(set, n) });
    (0..n)
        .any(|fd| {
            c_int::try_from(fd).is_ok_and(ours::is_marked) && sets.iter().any(|set| set.has(fd))
        })
        .then_some((endpoints, sets))
}

/// select(2)
// SAFETY: replaces the C library's function of this name, with the same signature.
#[unsafe(no_mangle)]
unsafe extern "C" fn select(
    n: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the caller's contract.
    let Some((endpoints, sets)) = (unsafe { selected(n, [read, write, except]) }) else {
        // SAFETY: the caller's arguments, unchanged.
        return unsafe { real::select(n, read, write, except, timeout) };
    };
    if timeout.is_null() {
        return count(ready::select(endpoints, sets, None, std::ptr::null()));
    }
    // SAFETY: not NULL; by the caller's contract a timeval.
    let time = unsafe { timeout.read_unaligned() };
    let begin = std::time::Instant::now();
    let limit = nanoseconds(time.tv_sec, time.tv_usec.saturating_mul(1000));
    let done = limit.and_then(|limit| {
        let done = ready::select(endpoints, sets, Some(limit), std::ptr::null());
        // Linux stores the remaining time.
        let left = limit.saturating_sub(begin.elapsed());
        let left = timeval {
            tv_sec: c_long::try_from(left.as_secs()).unwrap_or(c_long::MAX),
            tv_usec: c_long::from(left.subsec_micros()),
        };
        // SAFETY: as above.
        unsafe { timeout.write_unaligned(left) };
        done
    });
    count(done)
}

/// pselect(2)
// SAFETY: replaces the C library's function of this name, with the same signature.
#[unsafe(no_mangle)]
unsafe extern "C" fn pselect(
    n: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's contract.
    match unsafe { selected(n, [read, write, except]) } {
        Some((endpoints, sets)) => {
            // SAFETY: the caller's contract.
            let limit = unsafe { limit(timeout) };
            count(limit.and_then(|limit| ready::select(endpoints, sets, limit, mask)))
        }
        // SAFETY: the caller's arguments, unchanged.
        None => unsafe { real::pselect(n, read, write, except, timeout, mask) },
    }
}

/// Returns the endpoints, if they emulate the driver's traps and this number is one of them.
fn trapped(fd: c_int) -> Option<&'static Endpoints> {
    served(fd).filter(|endpoints| endpoints.config().device_traps)
}

/// epoll_ctl(2)
// SAFETY: replaces the C library's function of this name, with the same signature.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    match trapped(fd) {
        Some(endpoints) => {
            // SAFETY: the program passes it for this call.
            let event = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
            answer(real::keep_errno(|| sets::change(endpoints, set, op, fd, event)).map(|()| 0))
        }
        // SAFETY: the caller's arguments, unchanged.
        None => unsafe { real::epoll_ctl(set, op, fd, event) },
    }
}

/// Waits for a set that has endpoints with the driver's traps. `None`: it is no such set.
///
/// # Safety
/// `events` has space for `n`, `mask` is NULL or a mask.
unsafe fn set_waited(
    set: c_int,
    events: *mut epoll_event,
    n: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> Option<c_int> {
    let endpoints = ours::endpoints().filter(|_| !ours::is_inside() && sets::is_set(set))?;
    let room = usize::try_from(n).ok().filter(|n| *n > 0 && !events.is_null())?;
    Some(count(sets::wait(endpoints, set, room, timeout, mask).map(|found| {
        for (i, event) in found.iter().enumerate() {
            // SAFETY: not NULL, and at most `room` were found; the rest is the caller's
            // contract.
            unsafe { events.wrapping_add(i).write_unaligned(*event) };
        }
        found.len()
    })))
}

/// epoll_wait(2)
// SAFETY: replaces the C library's function of this name, with the same signature.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    n: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: the caller's contract.
    match unsafe { set_waited(set, events, n, timeout, std::ptr::null()) } {
        Some(count) => count,
        // SAFETY: the caller's arguments, unchanged.
        None => unsafe { real::epoll_wait(set, events, n, timeout) },
    }
}

/// epoll_pwait(2)
// SAFETY: replaces the C library's function of this name, with the same signature.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    n: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's contract.
    match unsafe { set_waited(set, events, n, timeout, mask) } {
        Some(count) => count,
        // SAFETY: the caller's arguments, unchanged.
        None => unsafe { real::epoll_pwait(set, events, n, timeout, mask) },
    }
}

/// epoll_pwait2(2)
// SAFETY: replaces the C library's function of this name, with the same signature.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    n: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's contract.
    let limit = unsafe { limit(timeout) };
    let ms = limit.map(|limit| {
        limit.map_or(-1, |limit| {
            limit.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(c_int::MAX)
        })
    });
    match ms {
        // SAFETY: the caller's contract.
        Ok(ms) => match unsafe { set_waited(set, events, n, ms, mask) } {
            Some(count) => count,
            // SAFETY: the caller's arguments, unchanged.
            None => unsafe { real::epoll_pwait2(set, events, n, timeout, mask) },
        },
        Err(failure) => answer(Err(failure)),
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Next functions, after this library, of the names that it defines: in the C library, or in
//! another preloaded library. See `dlsym(3)`, `RTLD_NEXT`.
#![expect(unsafe_code, reason = "functions found by name")]

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::sync::OnceLock;

use libc::{
    epoll_event, fd_set, mode_t, nfds_t, off_t, pollfd, sigset_t, size_t, timespec, timeval,
};

fn find(at: &OnceLock<usize>, name: &CStr) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(*at.get_or_init(|| {
        // SAFETY: a live C string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        found.expose_provenance()
    }))
}

macro_rules! next {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $ret:ty, $failed:expr;)*) => { $(
        /// Calls the next function of this name.
        ///
        /// # Safety
        /// The contract of that function.
        pub(crate) unsafe fn $name($($arg: $kind),*) -> $ret {
            static AT: OnceLock<usize> = OnceLock::new();
            const NAME: &[u8] = concat!(stringify!($name), "\0").as_bytes();
            const CNAME: &CStr = match CStr::from_bytes_with_nul(NAME) {
                Ok(name) => name,
                Err(_) => c"",
            };
            type Function = unsafe extern "C" fn($($kind),*) -> $ret;
            let at = find(&AT, CNAME);
            if at.is_null() {
                return $failed;
            }
            // SAFETY: a function of the C library with this name has this type. On the machines
            // that the driver supports, a variable argument is passed like a fixed one.
            let function = unsafe { std::mem::transmute::<*mut c_void, Function>(at) };
            // SAFETY: the caller's contract.
            unsafe { function($($arg),*) }
        }
    )* };
}

next! {
    open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, -1;
    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, -1;
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, -1;
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, -1;
    ioctl(fd: c_int, number: c_ulong, argument: *mut c_void) -> c_int, -1;
    mmap(
        at: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t
    ) -> *mut c_void, libc::MAP_FAILED;
    mmap64(
        at: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t
    ) -> *mut c_void, libc::MAP_FAILED;
    close(fd: c_int) -> c_int, -1;
    dup(fd: c_int) -> c_int, -1;
    dup2(fd: c_int, number: c_int) -> c_int, -1;
    dup3(fd: c_int, number: c_int, flags: c_int) -> c_int, -1;
    poll(entries: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int, -1;
    ppoll(
        entries: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int, -1;
    select(
        n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval
    ) -> c_int, -1;
    epoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int, -1;
    epoll_wait(set: c_int, events: *mut epoll_event, n: c_int, timeout: c_int) -> c_int, -1;
    epoll_pwait(
        set: c_int, events: *mut epoll_event, n: c_int, timeout: c_int, mask: *const sigset_t
    ) -> c_int, -1;
    epoll_pwait2(
        set: c_int, events: *mut epoll_event, n: c_int, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int, -1;
    pselect(
        n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t
    ) -> c_int, -1;
}

/// Makes a number of the engine close-on-exec, or not.
pub(crate) fn set_cloexec(fd: c_int, on: bool) {
    let flags = if on { libc::FD_CLOEXEC } else { 0 };
    // SAFETY: changes a flag of a descriptor that was just made.
    unsafe { libc::fcntl(fd, libc::F_SETFD, flags) };
}

/// Makes a copy of a number of the engine, close-on-exec. `None`: no number is free.
pub(crate) fn duplicate(fd: c_int) -> Option<c_int> {
    // SAFETY: makes a descriptor; `fd` is one of the caller.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    (copy >= 0).then_some(copy)
}

/// Makes a number of the engine non-blocking.
pub(crate) fn set_nonblocking(fd: c_int) {
    // SAFETY: as above.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
}

/// Returns this thread's errno.
pub(crate) fn errno() -> c_int {
    // SAFETY: no argument; the address is that of this thread's errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above; the address is valid for this thread as long as it runs.
    unsafe { *place }
}

/// Sets this thread's errno.
pub(crate) fn set_errno(number: c_int) {
    // SAFETY: as in `errno`.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as in `errno`.
    unsafe { *place = number };
}

/// Runs a call that may change errno, and restores errno.
pub(crate) fn keep_errno<T>(call: impl FnOnce() -> T) -> T {
    let before = errno();
    let value = call();
    set_errno(before);
    value
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! libfabric's error numbers as a Rust error (fi_errno(3)), and the check that a call that succeeds leaves `errno` unchanged.
//!
//! Every call of this client asks its object for a pointer first, which sets `errno` to a marker, and has its return value
//! checked afterwards, which looks for the marker. So each case checks each of its calls. Exempt is fi_getinfo(3) when it
//! loads libfabric's providers or asks several: those change `errno`, as libfabric does itself.
#![expect(unsafe_code, reason = "errno is a variable of C")]

use std::cell::Cell;
use std::fmt;
use std::sync::OnceLock;

use crate::harness::Fail;

/// A positive `FI_E*` number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

/// What a call of libfabric returns.
pub type Result<T = ()> = std::result::Result<T, Errno>;

macro_rules! numbers {
    ($($name:ident = $value:expr;)*) => {
        impl Errno {
            $(#[doc = concat!("`FI_", stringify!($name), "`.")] pub const $name: Errno = Errno($value);)*

            /// Its name without `FI_`, where this client knows it.
            pub const fn name(self) -> Option<&'static str> {
                $(if self.0 == $value {
                    return Some(stringify!($name));
                })*
                None
            }
        }
    };
}

numbers! {
    EPERM = libc::EPERM;
    ENOENT = libc::ENOENT;
    EIO = libc::EIO;
    EBADF = libc::EBADF;
    EAGAIN = libc::EAGAIN;
    ENOMEM = libc::ENOMEM;
    EACCES = libc::EACCES;
    EFAULT = libc::EFAULT;
    EBUSY = libc::EBUSY;
    EINVAL = libc::EINVAL;
    EMFILE = libc::EMFILE;
    ENOSPC = libc::ENOSPC;
    ENOSYS = libc::ENOSYS;
    ENOMSG = libc::ENOMSG;
    ENODATA = libc::ENODATA;
    EOVERFLOW = libc::EOVERFLOW;
    EMSGSIZE = libc::EMSGSIZE;
    ENOPROTOOPT = libc::ENOPROTOOPT;
    EOPNOTSUPP = libc::EOPNOTSUPP;
    EADDRINUSE = libc::EADDRINUSE;
    EADDRNOTAVAIL = libc::EADDRNOTAVAIL;
    ENETUNREACH = libc::ENETUNREACH;
    ECONNABORTED = libc::ECONNABORTED;
    ECONNRESET = libc::ECONNRESET;
    ENOTCONN = libc::ENOTCONN;
    ESHUTDOWN = libc::ESHUTDOWN;
    ETIMEDOUT = libc::ETIMEDOUT;
    ECONNREFUSED = libc::ECONNREFUSED;
    EHOSTDOWN = libc::EHOSTDOWN;
    EALREADY = libc::EALREADY;
    EISCONN = libc::EISCONN;
    EHOSTUNREACH = libc::EHOSTUNREACH;
    EREMOTEIO = libc::EREMOTEIO;
    ECANCELED = libc::ECANCELED;
    EKEYREJECTED = libc::EKEYREJECTED;
    EOTHER = 256;
    ETOOSMALL = 257;
    EOPBADSTATE = 258;
    EAVAIL = 259;
    EBADFLAGS = 260;
    ENOEQ = 261;
    EDOMAIN = 262;
    ENOCQ = 263;
    ECRC = 264;
    ETRUNC = 265;
    ENOKEY = 266;
    ENOAV = 267;
    EOVERRUN = 268;
    ENORX = 269;
}

impl Errno {
    /// 0 or more is the value, less is a negated error number.
    ///
    /// # Errors
    /// The number; for a success that changed `errno` one that no call returns, which says so.
    pub fn check(code: isize) -> Result<usize> {
        let value =
            usize::try_from(code).map_err(|_| Errno(i32::try_from(code.wrapping_neg()).unwrap_or(i32::MAX)));
        match (value, unmark()) {
            (Ok(_), Some(changed)) => Err(Errno(CHANGED | changed)),
            (value, _) => value,
        }
    }

    /// As [`Errno::check`] for calls that return `int`.
    ///
    /// # Errors
    /// Those of [`Errno::check`].
    pub fn check_int(code: i32) -> Result<usize> {
        Errno::check(code as isize)
    }
}

/// Value of `errno` before each call; no error has this number.
const MARKER: i32 = 4711;
/// Upper half of an [`Errno`] for a call that succeeded and left the lower half in `errno`.
const CHANGED: i32 = MARKER << 16;

/// True when the provider under test has to leave `errno` unchanged.
static HELD: OnceLock<bool> = OnceLock::new();

thread_local! {
    /// True while a marker of this thread waits for its check.
    static MARKED: Cell<bool> = const { Cell::new(false) };
}

/// Switches the check on or off for this process; the first call decides.
pub fn hold_to_errno(held: bool) {
    HELD.get_or_init(|| held);
}

/// Sets `errno` to the marker, before a call.
#[inline]
pub(super) fn mark() {
    if HELD.get() == Some(&true) {
        MARKED.set(true);
        // SAFETY: takes no argument and returns the address of this thread's errno.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: valid for this thread as long as it runs.
        unsafe { *errno = MARKER };
    }
}

/// Returns the value of `errno` after a call if it is not the one that [`mark`] has set.
pub(super) fn unmark() -> Option<i32> {
    if !MARKED.replace(false) {
        return None;
    }
    // SAFETY: takes no argument and returns the address of this thread's errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: valid for this thread as long as it runs.
    let errno = unsafe { *errno };
    (errno != MARKER).then_some(errno)
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            _ if self.0 & CHANGED == CHANGED => {
                write!(f, "a success that left {} in errno", self.0 & !CHANGED)
            }
            Some(name) => write!(f, "FI_{name}"),
            None => write!(f, "error {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Errno> for Fail {
    #[track_caller]
    fn from(error: Errno) -> Fail {
        Fail::here(format_args!("unexpected {error}"))
    }
}

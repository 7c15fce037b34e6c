// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Error numbers of libfabric as a Rust error (fi_errno(3)), and the check that a successful call
//! leaves `errno` unchanged.
//!
//! Every call of this client first takes the pointer of its object, which sets `errno` to a marker.
//! The check of the return value then looks for the marker, so each case checks each of its calls.
//! Exempt is fi_getinfo(3) when it loads the providers or queries several of them: they change
//! `errno`, as libfabric itself does.
#![expect(unsafe_code, reason = "errno is a variable of C")]

use std::cell::Cell;
use std::fmt;
use std::sync::OnceLock;

use crate::harness::Fail;

/// A positive `FI_E*` number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

/// Result of a call of libfabric.
pub type Result<T = ()> = std::result::Result<T, Errno>;

macro_rules! numbers {
    ($($name:ident = $value:expr;)*) => {
        impl Errno {
            $(
                #[doc = concat!("`FI_", stringify!($name), "`.")]
                pub const $name: Errno = Errno($value);
            )*

            /// Name without `FI_`, if this client knows the number.
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
    /// Converts a return value: 0 or more is the value, less is a negated error number.
    ///
    /// # Errors
    /// The number. A success that changed `errno` yields a number that no call returns, and whose
    /// text names the cause.
    pub fn check(code: isize) -> Result<usize> {
        let value = usize::try_from(code)
            .map_err(|_| Errno(i32::try_from(code.wrapping_neg()).unwrap_or(i32::MAX)));
        match (value, unmark()) {
            (Ok(_), Some(changed)) => Err(Errno(CHANGED | changed)),
            (value, _) => value,
        }
    }

    /// Converts a return value of type `int` or `ssize_t` without a value in it.
    pub(super) fn done(code: impl TryInto<isize>) -> Result {
        Errno::check(code.try_into().unwrap_or(isize::MIN)).map(drop)
    }

    /// Converts a return value of type `int`, as [`Errno::check`] does.
    pub fn check_int(code: i32) -> Result<usize> {
        Errno::check(code as isize)
    }
}

/// Calls an operation of an open object: `op!(self.ops(), close(context))`, where `ops` returns the
/// object and its table.
macro_rules! op {
    ($object:expr, $op:ident($($arg:expr),* $(,)?)) => {{
        let (raw, ops) = $object?;
        // SAFETY: the object is open. Lists and messages are values of the caller, which outlive
        // the call; the memory of a `Buf` is never freed. The provider refuses null pointers.
        crate::fi::errno::Errno::done(unsafe { (ops.$op)(raw, $($arg),*) })
    }};
}
pub(super) use op;

/// Value of `errno` before each call; no error has this number.
const MARKER: i32 = 4711;
/// Upper half of an [`Errno`] for a call that succeeded and left the lower half in `errno`.
const CHANGED: i32 = MARKER << 16;

/// Whether the provider under test has to leave `errno` unchanged.
static HELD: OnceLock<bool> = OnceLock::new();

thread_local! {
    /// Whether a marker of this thread is set and not yet checked.
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
        // SAFETY: takes no argument and returns the address of `errno` of this thread.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: the address is valid until this thread ends.
        unsafe { *errno = MARKER };
    }
}

/// Returns the value of `errno` after a call if it is not the one that [`mark`] has set.
pub(super) fn unmark() -> Option<i32> {
    if !MARKED.replace(false) {
        return None;
    }
    // SAFETY: takes no argument and returns the address of `errno` of this thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the address is valid until this thread ends.
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

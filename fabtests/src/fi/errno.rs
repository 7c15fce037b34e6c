// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! libfabric's error numbers as a Rust error (fi_errno(3)).

use std::fmt;

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
    /// The number.
    pub fn check(code: isize) -> Result<usize> {
        usize::try_from(code).map_err(|_| Errno(i32::try_from(code.wrapping_neg()).unwrap_or(i32::MAX)))
    }

    /// As [`Errno::check`] for calls that return `int`.
    ///
    /// # Errors
    /// The number.
    pub fn check_int(code: i32) -> Result<usize> {
        usize::try_from(code).map_err(|_| Errno(code.wrapping_neg()))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
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

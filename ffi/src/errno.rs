// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Error numbers of `rdma/fi_errno.h`, positive. Functions of libfabric return them negated.
//!
//! Numbers below 256 belong to the system. Values in the installed header are compared with it at
//! build time.

use core::ffi::c_int;

use crate::flags::constants;

/// No error.
pub const FI_SUCCESS: c_int = 0;

constants! {
    c_int {
        FI_EPERM = libc::EPERM, FI_ENOENT = libc::ENOENT, FI_EINTR = libc::EINTR,
        FI_EIO = libc::EIO, FI_E2BIG = libc::E2BIG, FI_EBADF = libc::EBADF,
        FI_EAGAIN = libc::EAGAIN, FI_ENOMEM = libc::ENOMEM, FI_EACCES = libc::EACCES,
        FI_EFAULT = libc::EFAULT, FI_EBUSY = libc::EBUSY, FI_ENODEV = libc::ENODEV,
        FI_EINVAL = libc::EINVAL, FI_EMFILE = libc::EMFILE, FI_ENOSPC = libc::ENOSPC,
        FI_ENOSYS = libc::ENOSYS, FI_EWOULDBLOCK = libc::EWOULDBLOCK, FI_ENOMSG = libc::ENOMSG,
        FI_ENODATA = libc::ENODATA, FI_EPROTO = libc::EPROTO, FI_EOVERFLOW = libc::EOVERFLOW,
        FI_EMSGSIZE = libc::EMSGSIZE, FI_ENOPROTOOPT = libc::ENOPROTOOPT,
        FI_EOPNOTSUPP = libc::EOPNOTSUPP, FI_EADDRINUSE = libc::EADDRINUSE,
        FI_EADDRNOTAVAIL = libc::EADDRNOTAVAIL, FI_ENETDOWN = libc::ENETDOWN,
        FI_ENETUNREACH = libc::ENETUNREACH, FI_ECONNABORTED = libc::ECONNABORTED,
        FI_ECONNRESET = libc::ECONNRESET, FI_ENOBUFS = libc::ENOBUFS, FI_EISCONN = libc::EISCONN,
        FI_ENOTCONN = libc::ENOTCONN, FI_ESHUTDOWN = libc::ESHUTDOWN,
        FI_ETIMEDOUT = libc::ETIMEDOUT, FI_ECONNREFUSED = libc::ECONNREFUSED,
        FI_EHOSTDOWN = libc::EHOSTDOWN, FI_EHOSTUNREACH = libc::EHOSTUNREACH,
        FI_EALREADY = libc::EALREADY, FI_EINPROGRESS = libc::EINPROGRESS,
        FI_EREMOTEIO = libc::EREMOTEIO, FI_ECANCELED = libc::ECANCELED,
        FI_EKEYREJECTED = libc::EKEYREJECTED,
    }
    c_int {
        FI_EOTHER = 256, FI_ETOOSMALL = 257, FI_EOPBADSTATE = 258, FI_EAVAIL = 259,
        FI_EBADFLAGS = 260, FI_ENOEQ = 261, FI_EDOMAIN = 262, FI_ENOCQ = 263, FI_ECRC = 264,
        FI_ETRUNC = 265, FI_ENOKEY = 266, FI_ENOAV = 267, FI_EOVERRUN = 268, FI_ENORX = 269,
        // First number that only libfabric defines.
        FI_ERRNO_OFFSET = 256,
        // Since 1.20.
        FI_ENOMR = 270,
        // Since 2.2.
        FI_EFIREWALLADDR = 271,
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! From a failure to the number a C program finds in errno.

use libc::c_int;
use scif::epd::Failure;

pub(crate) fn number(failure: &Failure) -> c_int {
    match failure {
        Failure::BadDescriptor => libc::EBADF,
        Failure::NotAnEndpoint => libc::ENOTTY,
        Failure::Invalid => libc::EINVAL,
        Failure::NoAccess => libc::EACCES,
        Failure::IsConnected => libc::EISCONN,
        Failure::NotConnected => libc::ENOTCONN,
        Failure::Reset => libc::ECONNRESET,
        Failure::NotSupported => libc::EOPNOTSUPP,
        Failure::Refused => libc::ECONNREFUSED,
        Failure::NoNode => libc::ENODEV,
        Failure::InProgress => libc::EINPROGRESS,
        Failure::Again => libc::EAGAIN,
        Failure::NoPorts => libc::ENOSPC,
        Failure::Interrupted => libc::EINTR,
        Failure::BadAddress => libc::EFAULT,
        Failure::NoWindow => libc::ENXIO,
        Failure::NotPermitted => libc::EPERM,
        Failure::InUse => libc::EADDRINUSE,
        Failure::NoMemory => libc::ENOMEM,
        Failure::Broken => libc::EIO,
        Failure::Os(errno) => errno.raw_os_error(),
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Reasons why a call of `scif.h` fails, and their errno values for a C program.

use std::fmt;

use rustix::io::Errno;

use crate::error::Error;
use crate::sys::mmap::OutOfRange;

/// Reason why a call failed, each documented by its errno.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Failure {
    /// EBADF: no such descriptor.
    BadDescriptor,
    /// ENOTTY: a descriptor of something else.
    NotAnEndpoint,
    /// EINVAL: an argument or the endpoint's state does not allow the call.
    Invalid,
    /// EACCES: a port below 1024 without the privilege.
    NoAccess,
    /// EISCONN: bound, listening or connected already.
    IsConnected,
    /// ENOTCONN: not connected.
    NotConnected,
    /// ECONNRESET: the peer has closed, or its node is lost.
    Reset,
    /// EOPNOTSUPP: a listening endpoint cannot connect.
    NotSupported,
    /// ECONNREFUSED: no listener at the port, its queue is full, or the request was not accepted in
    /// time.
    Refused,
    /// ENODEV: no such node.
    NoNode,
    /// EINPROGRESS: the connect is in progress.
    InProgress,
    /// EAGAIN: no request waits to be accepted.
    Again,
    /// ENOSPC: no dynamic port is free.
    NoPorts,
    /// EINTR: a signal arrived, or the endpoint was closed meanwhile.
    Interrupted,
    /// EFAULT: memory that does not exist or does not allow the access.
    BadAddress,
    /// ENXIO: no window at the offset.
    NoWindow,
    /// EPERM: the window does not allow the access.
    NotPermitted,
    /// EADDRINUSE: another window occupies the offset.
    InUse,
    /// ENOMEM: no memory, or no space in the registered address space.
    NoMemory,
    /// EIO: the transfer failed.
    Broken,
    /// Error of the operating system.
    Os(Errno),
}

impl Failure {
    /// Returns the errno value for a C program.
    #[must_use]
    pub fn raw_os_error(&self) -> i32 {
        self.errno().raw_os_error()
    }

    /// Returns the error of the operating system.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Failure::BadDescriptor => Errno::BADF,
            Failure::NotAnEndpoint => Errno::NOTTY,
            Failure::Invalid => Errno::INVAL,
            Failure::NoAccess => Errno::ACCESS,
            Failure::IsConnected => Errno::ISCONN,
            Failure::NotConnected => Errno::NOTCONN,
            Failure::Reset => Errno::CONNRESET,
            Failure::NotSupported => Errno::OPNOTSUPP,
            Failure::Refused => Errno::CONNREFUSED,
            Failure::NoNode => Errno::NODEV,
            Failure::InProgress => Errno::INPROGRESS,
            Failure::Again => Errno::AGAIN,
            Failure::NoPorts => Errno::NOSPC,
            Failure::Interrupted => Errno::INTR,
            Failure::BadAddress => Errno::FAULT,
            Failure::NoWindow => Errno::NXIO,
            Failure::NotPermitted => Errno::PERM,
            Failure::InUse => Errno::ADDRINUSE,
            Failure::NoMemory => Errno::NOMEM,
            Failure::Broken => Errno::IO,
            Failure::Os(errno) => *errno,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Failure::BadDescriptor => "no such descriptor (EBADF)",
            Failure::NotAnEndpoint => "not an endpoint (ENOTTY)",
            Failure::Invalid => "invalid argument or state (EINVAL)",
            Failure::NoAccess => "the port is reserved (EACCES)",
            Failure::IsConnected => "the endpoint is in use already (EISCONN)",
            Failure::NotConnected => "not connected (ENOTCONN)",
            Failure::Reset => "the peer has closed, or its node is lost (ECONNRESET)",
            Failure::NotSupported => "a listening endpoint cannot connect (EOPNOTSUPP)",
            Failure::Refused => "connection refused (ECONNREFUSED)",
            Failure::NoNode => "no such node (ENODEV)",
            Failure::InProgress => "the connect is in progress (EINPROGRESS)",
            Failure::Again => "no connection request waits (EAGAIN)",
            Failure::NoPorts => "no dynamic port is free (ENOSPC)",
            Failure::Interrupted => "interrupted (EINTR)",
            Failure::BadAddress => "bad address (EFAULT)",
            Failure::NoWindow => "no window at this offset (ENXIO)",
            Failure::NotPermitted => "the window does not permit this access (EPERM)",
            Failure::InUse => "the offset is in use by another window (EADDRINUSE)",
            Failure::NoMemory => "no memory (ENOMEM)",
            Failure::Broken => "the transfer failed (EIO)",
            Failure::Os(errno) => return write!(f, "{errno}"),
        };
        f.write_str(text)
    }
}

impl std::error::Error for Failure {}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        match errno {
            Errno::BADF => Failure::BadDescriptor,
            Errno::NOMEM => Failure::NoMemory,
            Errno::INTR => Failure::Interrupted,
            other => Failure::Os(other),
        }
    }
}

/// Inconsistent sizes inside the library, which no caller can correct.
impl From<OutOfRange> for Failure {
    fn from(_: OutOfRange) -> Failure {
        Failure::Broken
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::PortInUse(_) => Failure::Invalid,
            Error::NoPorts => Failure::NoPorts,
            Error::Again
            | Error::Refused(_)
            | Error::Unanswered(_)
            | Error::Rejected { .. }
            | Error::Denied { .. } => Failure::Refused,
            Error::NoNetwork(_) => Failure::Os(Errno::HOSTUNREACH),
            Error::Config(_) => Failure::Os(Errno::NXIO),
            Error::Forked => Failure::Broken,
            Error::Os { errno, .. } | Error::NoDriver { errno, .. } => errno.into(),
        }
    }
}

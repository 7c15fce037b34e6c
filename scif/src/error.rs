// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Errors of the engine, and the extent of their consequences.
//!
//! Not about the errno of a C caller: each edge maps these errors in one exhaustive `match`.

use std::fmt;

use rustix::io::Errno;

use crate::addr::PortId;
use crate::sys::mmap::OutOfRange;

/// The result of a call into the engine.
pub type Result<T> = std::result::Result<T, Error>;

/// Extent of the objects that an error makes unusable.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scope {
    /// Only this call failed; it may succeed later or with other operands.
    Call,
    /// The endpoint is no longer usable.
    Endpoint,
    /// No endpoint of this node will work.
    Node,
}

/// A call that failed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Error {
    /// Another endpoint of the node has the port.
    PortInUse(PortId),
    /// All dynamic ports of the node are taken.
    NoPorts,
    /// The peer's backlog or the limit of descriptors in flight is full: retry from progress.
    Again,
    /// No endpoint listens at this port.
    Refused(PortId),
    /// The listener at this port has not accepted for a while, and may never: retry from progress.
    Unanswered(PortId),
    /// The port is on another host, which this endpoint cannot reach.
    NoNetwork(PortId),
    /// The endpoint at this port is on another host and refuses this process.
    Rejected {
        /// Port of the endpoint.
        port: PortId,
        /// Reason of the peer.
        refusal: Refusal,
    },
    /// The listener belongs to a user that is not allowed.
    Denied {
        /// Port of the listener.
        port: PortId,
        /// User of the listener's process.
        uid: u32,
    },
    /// Invalid setting, with the reason.
    Config(String),
    /// No SCIF driver can be used.
    NoDriver {
        /// Devices that were tried, each with the error of the system.
        tried: String,
        /// Most informative of these errors.
        errno: Errno,
    },
    /// Use of an object in a forked child of its creator.
    Forked,
    /// A system call failed.
    Os {
        /// Name of the system call, or its purpose.
        call: &'static str,
        /// Error of the call.
        errno: Errno,
    },
}

impl Error {
    pub(crate) fn os(call: &'static str) -> impl FnOnce(Errno) -> Error {
        move |errno| Error::Os { call, errno }
    }

    /// Returns the error of a network's call, by the number of the system.
    #[must_use]
    pub fn network(call: &'static str, errno: i32) -> Error {
        Error::Os { call, errno: Errno::from_raw_os_error(errno) }
    }

    /// Returns the extent of the error's consequences.
    #[must_use]
    pub fn scope(&self) -> Scope {
        match self {
            Error::PortInUse(_)
            | Error::NoPorts
            | Error::Again
            | Error::Refused(_)
            | Error::Unanswered(_)
            | Error::NoNetwork(_)
            | Error::Rejected { .. }
            | Error::Denied { .. }
            | Error::Os { .. } => Scope::Call,
            Error::Forked => Scope::Endpoint,
            Error::Config(_) | Error::NoDriver { .. } => Scope::Node,
        }
    }

    /// Returns the errno, if a system call caused the error.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Error::Os { errno, .. } | Error::NoDriver { errno, .. } => Some(errno.raw_os_error()),
            Error::PortInUse(_)
            | Error::NoPorts
            | Error::Again
            | Error::Refused(_)
            | Error::Unanswered(_)
            | Error::NoNetwork(_)
            | Error::Rejected { .. }
            | Error::Denied { .. }
            | Error::Config(_)
            | Error::Forked => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::PortInUse(id) => write!(f, "port {id} is in use"),
            Error::NoPorts => f.write_str("no dynamic port is free"),
            Error::Again => f.write_str("the peer cannot take a connection now"),
            Error::Refused(id) => write!(f, "no process listens at {id}"),
            Error::Unanswered(id) => write!(
                f,
                "the listener at {id} has not accepted the connection; its process may be stopped"
            ),
            Error::NoNetwork(id) => {
                write!(f, "{id} is on another host, and this endpoint has no network")
            }
            Error::Rejected { port, refusal } => {
                write!(f, "{port} refuses this process: {}", Reason::Refused(*refusal))
            }
            Error::Denied { port, uid } => write!(
                f,
                "the listener at {port} runs as user {uid}: not permitted by SCIF_ALLOW_UIDS"
            ),
            Error::Config(why) => f.write_str(why),
            Error::NoDriver { tried, .. } => write!(
                f,
                "no SCIF driver, tried {tried}: load the driver, name its device (SCIF_DEVICE), or \
                 do without (FI_SCIF_TRANSPORT=soft, SCIF_TRANSPORT=soft)"
            ),
            Error::Forked => f.write_str("not usable in a forked child"),
            Error::Os { call, errno } => write!(f, "{call}: {errno}"),
        }
    }
}

impl std::error::Error for Error {}

/// A view that does not fit its mapping: both sides disagree about sizes, which no caller can
/// correct.
impl From<OutOfRange> for Error {
    fn from(_: OutOfRange) -> Error {
        Error::Os { call: "view of shared memory", errno: Errno::FAULT }
    }
}

/// Reason for which a connection ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
    /// Graceful close of the peer: everything that it sent is in the ring.
    Orderly,
    /// The peer's process died, or closed without notice.
    Died,
    /// The peer reset the connection because of data that we sent or wrote.
    Reset,
    /// Never accepted.
    Refused(Refusal),
    /// The peer violated the protocol.
    Corrupt,
    /// One side does not allow the user of the other.
    Denied,
    /// Ended by this side, which cannot store as much as the peer sends.
    Exhausted,
}

/// Reason for which a connection was not accepted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// The listener closed before it handled the request.
    Closed,
    /// The listener has another version of the protocol.
    Version,
    /// The listener has no free descriptors or memory.
    Resources,
    /// The listener has another key of the job, or only one of both sides has a key.
    Key,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Orderly => "the peer closed the connection",
            Reason::Died => "the peer is gone",
            Reason::Reset => "the peer reset the connection, see its log",
            Reason::Refused(Refusal::Closed) => "the listener closed before it accepted",
            Reason::Refused(Refusal::Version) => "the peer speaks another version of the protocol",
            Reason::Refused(Refusal::Resources) => "the peer is out of descriptors or memory",
            Reason::Refused(Refusal::Key) => "the peer has another key (FI_SCIF_NET_KEY)",
            Reason::Corrupt => "the peer sent invalid data (a fault, or another version)",
            Reason::Denied => "one process does not allow the user of the other (SCIF_ALLOW_UIDS)",
            Reason::Exhausted => {
                "unexpected messages of the peer exceed the memory limit (FI_SCIF_UNEXPECTED_MAX)"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_a_text() {
        let id = PortId::new(1, 2);
        let all = [
            Error::PortInUse(id),
            Error::NoPorts,
            Error::Again,
            Error::Refused(id),
            Error::Unanswered(id),
            Error::NoNetwork(id),
            Error::Rejected { port: id, refusal: Refusal::Key },
            Error::Denied { port: id, uid: 3 },
            Error::Config("why".to_owned()),
            Error::Forked,
            Error::os("bind")(Errno::NOMEM),
            Error::NoDriver { tried: "/dev/scif: no such file".to_owned(), errno: Errno::NOENT },
        ];
        for error in all {
            assert!(!error.to_string().is_empty());
            let of_system = matches!(error, Error::Os { .. } | Error::NoDriver { .. });
            assert_eq!(error.raw_os_error().is_some(), of_system);
            let lasting =
                matches!(error, Error::Forked | Error::Config(_) | Error::NoDriver { .. });
            assert_eq!(error.scope() != Scope::Call, lasting);
        }
    }
}

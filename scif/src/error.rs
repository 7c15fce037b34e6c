// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! What can go wrong, and how far it reaches.
//!
//! Not about the errno a C caller sees: each edge maps these in one exhaustive `match`.

use std::fmt;

use rustix::io::Errno;

use crate::addr::PortId;
use crate::sys::mmap::OutOfRange;

/// The result of a call into the engine.
pub type Result<T> = std::result::Result<T, Error>;

/// What an error leaves usable.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scope {
    /// Only this call failed; the same call may work later or with other operands.
    Call,
    /// The endpoint is of no use any more.
    Endpoint,
    /// No endpoint of this node will work.
    Node,
}

/// A call that failed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Error {
    /// Another endpoint of the node has the port.
    PortInUse(PortId),
    /// Every dynamic port of the node is taken.
    NoPorts,
    /// The peer's backlog or the descriptors in flight are full: try again from progress.
    Again,
    /// Nobody listens there.
    Refused(PortId),
    /// A listener there has not accepted for a while, and may never: try again from progress.
    Unanswered(PortId),
    /// Somebody listens there whom we may not talk to.
    Denied {
        /// Where.
        port: PortId,
        /// The user it runs as.
        uid: u32,
    },
    /// A setting that cannot be used, and why.
    Config(String),
    /// No SCIF driver can be used.
    NoDriver {
        /// The devices that were tried, each with what the system said.
        tried: String,
        /// The more telling of these answers.
        errno: Errno,
    },
    /// This process is a forked child of the one that made the object.
    Forked,
    /// The operating system refused.
    Os {
        /// The system call, or what it was for.
        call: &'static str,
        /// Its answer.
        errno: Errno,
    },
}

impl Error {
    pub(crate) fn os(call: &'static str) -> impl FnOnce(Errno) -> Error {
        move |errno| Error::Os { call, errno }
    }

    /// What this error leaves usable.
    #[must_use]
    pub fn scope(&self) -> Scope {
        match self {
            Error::PortInUse(_)
            | Error::NoPorts
            | Error::Again
            | Error::Refused(_)
            | Error::Unanswered(_)
            | Error::Denied { .. }
            | Error::Os { .. } => Scope::Call,
            Error::Forked => Scope::Endpoint,
            Error::Config(_) | Error::NoDriver { .. } => Scope::Node,
        }
    }

    /// What the operating system said, where it spoke.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Error::Os { errno, .. } | Error::NoDriver { errno, .. } => Some(errno.raw_os_error()),
            Error::PortInUse(_)
            | Error::NoPorts
            | Error::Again
            | Error::Refused(_)
            | Error::Unanswered(_)
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
            Error::Refused(id) => write!(f, "nobody listens at {id}"),
            Error::Unanswered(id) => write!(f, "who listens at {id} does not accept"),
            Error::Denied { port, uid } => write!(f, "{port} belongs to user {uid}, who is not allowed"),
            Error::Config(why) => f.write_str(why),
            Error::NoDriver { tried, .. } => write!(
                f,
                "no SCIF driver, tried {tried}: load the driver, name its device (SCIF_DEVICE), or do without \
                 (FI_SCIF_TRANSPORT=soft, SCIF_TRANSPORT=soft)"
            ),
            Error::Forked => f.write_str("not usable in a forked child"),
            Error::Os { call, errno } => write!(f, "{call}: {errno}"),
        }
    }
}

impl std::error::Error for Error {}

/// A view that does not fit its mapping: the sizes here and there disagree, which no caller can mend.
impl From<OutOfRange> for Error {
    fn from(_: OutOfRange) -> Error {
        Error::Os {
            call: "view of shared memory",
            errno: Errno::FAULT,
        }
    }
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
    /// The peer said goodbye: everything it sent is in the ring.
    Orderly,
    /// The peer's process is gone, or closed without a word.
    Died,
    /// The peer ended it because of something we sent or wrote.
    Reset,
    /// Never accepted.
    Refused(Refusal),
    /// The peer sent or wrote what the protocol does not allow.
    Corrupt,
    /// The peer's user is not allowed here, or ours not there.
    Denied,
    /// Ended by this side, which cannot keep as much as the peer sends.
    Exhausted,
}

/// Why a connection was not accepted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// The listener closed before it looked.
    Closed,
    /// It speaks another version of the protocol.
    Version,
    /// It has no room: descriptors or memory.
    Resources,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Orderly => "the peer closed the connection",
            Reason::Died => "the peer is gone",
            Reason::Reset => "the peer reset the connection",
            Reason::Refused(Refusal::Closed) => "the listener closed before it accepted",
            Reason::Refused(Refusal::Version) => "the peer speaks another version of the protocol",
            Reason::Refused(Refusal::Resources) => "the peer is out of descriptors or memory",
            Reason::Corrupt => "the peer broke the protocol",
            Reason::Denied => "the users of both sides may not talk to each other",
            Reason::Exhausted => "the peer sends more than can be kept here",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_says_something() {
        let id = PortId { node: 1, port: 2 };
        let all = [
            Error::PortInUse(id),
            Error::NoPorts,
            Error::Again,
            Error::Refused(id),
            Error::Unanswered(id),
            Error::Denied { port: id, uid: 3 },
            Error::Config("why".to_owned()),
            Error::Forked,
            Error::os("bind")(Errno::NOMEM),
            Error::NoDriver {
                tried: "/dev/scif: no such file".to_owned(),
                errno: Errno::NOENT,
            },
        ];
        for error in all {
            assert!(!error.to_string().is_empty());
            let of_system = matches!(error, Error::Os { .. } | Error::NoDriver { .. });
            assert_eq!(error.raw_os_error().is_some(), of_system);
            let lasting = matches!(error, Error::Forked | Error::Config(_) | Error::NoDriver { .. });
            assert_eq!(error.scope() != Scope::Call, lasting);
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One event, and the kinds of events.

/// Declares the kinds with their numbers and names, in one table.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $number:literal, $name:literal;)*) => {
        /// Kind of an event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum EventKind {
            $($(#[$doc])* $kind = $number,)*
        }

        impl EventKind {
            /// All kinds, in the order of their numbers.
            pub const ALL: &[EventKind] = &[$(EventKind::$kind),*];

            /// Returns the kind with a number of a trace, which may be wrong.
            #[must_use]
            pub fn of(number: u8) -> Option<EventKind> {
                match number {
                    $($number => Some(EventKind::$kind),)*
                    _ => None,
                }
            }

            /// Returns the name that listings show.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(EventKind::$kind => $name,)*
                }
            }
        }
    };
}

kinds! {
    /// Receive posted.
    RecvPosted = 1, "post";
    /// Message matched with a receive, by its arrival or by the post.
    Matched = 2, "match";
    /// Receive complete.
    Received = 3, "received";
    /// Message arrived without a receive.
    Unexpected = 4, "unexpected";
    /// Message in the header of a record: sent and complete.
    SentInline = 5, "send inline";
    /// Message in the body of a record: sent.
    SentRing = 6, "send ring";
    /// Large message announced.
    RtsSent = 7, "RTS sent";
    /// Announcement arrived.
    RtsSeen = 8, "RTS seen";
    /// Payload requested as fragments.
    CtsSent = 9, "CTS sent";
    /// Request for fragments arrived.
    CtsSeen = 10, "CTS seen";
    /// Pull of an announced payload begun.
    PullBegun = 11, "pull begun";
    /// Buffer offered for a cooperative copy.
    Offered = 12, "offered";
    /// Payload pulled by the receiver.
    Pulled = 13, "pulled";
    /// Payload copied by both sides.
    Shared = 14, "shared copy";
    /// Payload received in fragments.
    Streamed = 15, "streamed";
    /// Operation that awaited a reply ended.
    Ended = 16, "ended";
    /// Operation not started yet: ring full, no connection, or one before it.
    Deferred = 17, "retry later";
    /// Connection with a peer up.
    PeerUp = 18, "peer up";
    /// Peer lost.
    PeerLost = 19, "peer lost";
    /// Write to memory of a peer posted.
    Write = 20, "write";
    /// Read of memory of a peer posted.
    Read = 21, "read";
    /// Atomic posted.
    Atomic = 22, "atomic";
    /// Direct copy denied or failed: the payload takes the ring.
    Fallback = 23, "fallback";
    /// Receive found posted. Its post was not recorded.
    RecvFound = 24, "posted";
}

/// Event with one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// Kind of the event.
    pub kind: EventKind,
    /// Tag of the message, or 0.
    pub tag: u64,
    /// Bytes of the payload.
    pub len: u64,
    /// Number of the operation, or context of the receive. It joins events of one message.
    pub id: u64,
    /// Error number, or 0.
    pub err: u8,
}

impl TraceEvent {
    /// Creates an event without error.
    #[inline]
    #[must_use]
    pub fn new(kind: EventKind, tag: u64, len: usize, id: u64) -> TraceEvent {
        TraceEvent { kind, tag, len: len as u64, id, err: 0 }
    }

    /// Returns the event with an error number. Numbers above 255 count as 255.
    #[must_use]
    pub fn failed(self, errno: i32) -> TraceEvent {
        TraceEvent { err: u8::try_from(errno.unsigned_abs()).unwrap_or(u8::MAX), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_found_by_its_number() {
        for kind in EventKind::ALL {
            assert_eq!(EventKind::of(*kind as u8), Some(*kind));
        }
        assert_eq!((EventKind::of(0), EventKind::of(200)), (None, None));
    }
}

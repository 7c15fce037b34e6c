// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! State of the connection of a connected endpoint (`FI_EP_MSG`).
//!
//! Not here: its establishment and its end (`protocols::cm`).

use scif::{ConnId, Error, PortId};

use crate::base::addr::ADDR_LEN;
use crate::engine::types::conn_request::ConnRequest;
use crate::engine::types::peer_id::{ANY, PeerId};

/// Bit of a request number that marks the request as sent.
pub(crate) const SENT: u64 = 1;

/// State of the connection of a connected endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Idle,
    /// The passive endpoint has the request, or will have it.
    Connecting,
    /// The connection to the caller is being made.
    Accepting,
    Up,
    Down,
}

/// Connection management of one endpoint.
#[derive(Debug)]
pub(crate) struct Cm {
    pub(crate) state: State,
    /// Number of the request that an acceptance answers.
    pub(crate) number: u64,
    /// Port of the passive endpoint, or of the caller.
    pub(crate) to: PortId,
    /// Address of the passive endpoint, as the application passed it.
    pub(crate) called: Option<[u8; ADDR_LEN]>,
    /// Connection that carries the request.
    pub(crate) request: Option<ConnId>,
    /// Connections of other endpoints that have not named a request yet.
    pub(crate) unidentified: Vec<ConnId>,
    /// Data of the application, until it is sent.
    pub(crate) data: Vec<u8>,
    /// Request that an acceptance answers, until the connection is open. A drop refuses it.
    pub(crate) call: Option<ConnRequest>,
    /// Peer number of the other side, once it is known.
    pub(crate) peer: PeerId,
    /// Time in nanoseconds of the first attempt to connect that was not answered, or of the first
    /// look at a peer of another host that has not answered.
    pub(crate) unanswered_since_ns: Option<u64>,
}

impl Cm {
    pub(crate) fn new() -> Cm {
        Cm {
            state: State::Idle,
            number: 0,
            to: PortId::new(0, 0),
            called: None,
            request: None,
            unidentified: Vec::new(),
            data: Vec::new(),
            call: None,
            peer: ANY,
            unanswered_since_ns: None,
        }
    }

    /// Whether the other side is on another host.
    pub(crate) fn is_abroad(&self) -> bool {
        self.to.place != 0
    }

    /// Whether the other side has not answered for `limit` nanoseconds.
    pub(crate) fn is_unanswered(&mut self, now: u64, limit: u64) -> bool {
        let since = *self.unanswered_since_ns.get_or_insert(now);
        now.saturating_sub(since) >= limit
    }

    /// Whether the connection has ended, or will never exist.
    pub(crate) fn is_down(&self) -> bool {
        self.state == State::Down
    }

    /// Whether an attempt to connect that failed with `error` is repeated. An attempt that is never
    /// answered, as over a driver or by another host, is given up `limit` nanoseconds after its
    /// first such error.
    pub(crate) fn repeats(&mut self, error: &Error, now: u64, limit: u64) -> bool {
        match error {
            Error::Again if !self.is_abroad() => true,
            Error::Again | Error::Unanswered(_) => !self.is_unanswered(now, limit),
            _ => false,
        }
    }

    /// Whether an unnamed connection exists. Its first record may name the request, so it must wake
    /// waiting threads.
    pub(crate) fn is_told_more(&self) -> bool {
        !self.unidentified.is_empty()
    }
}

impl Cm {
    pub(crate) fn data_sent(&self) -> bool {
        self.number & SENT != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    pub(crate) fn an_attempt_without_an_answer_is_given_up_in_time() {
        const LIMIT: u64 = 3_000_000_000;
        let to = PortId::new(0, 7);
        let mut cm = Cm::new();
        let rows = [
            (Error::Again, 10, true),
            (Error::Unanswered(to), 20, true),
            (Error::Again, LIMIT + 1000, true),
            (Error::Unanswered(to), LIMIT + 19, true),
            (Error::Unanswered(to), LIMIT + 20, false),
            (Error::Refused(to), 0, false),
        ];
        for (error, now, repeats) in rows {
            assert_eq!(cm.repeats(&error, now, LIMIT), repeats, "{error} at {now}");
        }
        let mut abroad = Cm::new();
        abroad.to = PortId { place: 1, ..to };
        for (now, repeats) in [(10, true), (9 + LIMIT, true), (10 + LIMIT, false)] {
            assert_eq!(abroad.repeats(&Error::Again, now, LIMIT), repeats, "at {now}");
        }
    }
}

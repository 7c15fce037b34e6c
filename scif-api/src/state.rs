// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! States of an endpoint, the calls allowed in each, and the errors of the others.
//!
//! Not about the effect of a call. Source: the states of the SCIF driver (`scif_epd.h`) and its
//! checks.

use crate::failure::{Failure, Result};

/// State of an endpoint between `scif_open` and its last close.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub(crate) enum State {
    Unbound = 0,
    Bound = 1,
    Listening = 2,
    Connected = 3,
    Connecting = 4,
    /// Closed on this side: threads still inside a call leave.
    Closing = 6,
    /// The peer has closed, or its node is lost.
    Disconnected = 8,
}

impl State {
    pub(crate) fn from_word(word: u32) -> State {
        match word {
            0 => State::Unbound,
            1 => State::Bound,
            2 => State::Listening,
            3 => State::Connected,
            4 => State::Connecting,
            8 => State::Disconnected,
            _ => State::Closing,
        }
    }

    pub(crate) fn may_bind(self) -> Result<()> {
        match self {
            State::Unbound => Ok(()),
            State::Bound => Err(Failure::Invalid),
            State::Listening
            | State::Connected
            | State::Connecting
            | State::Closing
            | State::Disconnected => Err(Failure::IsConnected),
        }
    }

    pub(crate) fn may_listen(self) -> Result<()> {
        match self {
            State::Bound => Ok(()),
            State::Unbound | State::Closing | State::Disconnected => Err(Failure::Invalid),
            State::Listening | State::Connected | State::Connecting => Err(Failure::IsConnected),
        }
    }

    /// Checks an endpoint with no asynchronous connect to collect.
    pub(crate) fn may_connect(self) -> Result<()> {
        match self {
            State::Unbound | State::Bound => Ok(()),
            State::Listening => Err(Failure::NotSupported),
            State::Connected | State::Connecting => Err(Failure::IsConnected),
            State::Disconnected | State::Closing => Err(Failure::Invalid),
        }
    }

    pub(crate) fn may_accept(self) -> Result<()> {
        match self {
            State::Listening => Ok(()),
            State::Unbound
            | State::Bound
            | State::Connected
            | State::Connecting
            | State::Closing
            | State::Disconnected => Err(Failure::Invalid),
        }
    }

    /// Checks for messages, windows, RMA, fences and mappings.
    pub(crate) fn may_use(self) -> Result<()> {
        match self {
            State::Connected => Ok(()),
            State::Disconnected => Err(Failure::Reset),
            State::Unbound
            | State::Bound
            | State::Listening
            | State::Connecting
            | State::Closing => Err(Failure::NotConnected),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [State; 7] = [
        State::Unbound,
        State::Bound,
        State::Listening,
        State::Connecting,
        State::Connected,
        State::Disconnected,
        State::Closing,
    ];

    #[test]
    fn the_matrix_is_the_drivers() {
        use Failure::{Invalid, IsConnected, NotConnected, NotSupported, Reset};
        type Row = [Result<()>; 7];
        let row = |f: fn(State) -> Result<()>| -> Row { ALL.map(f) };
        let (ok, inval, isconn) = (Ok(()), Err(Invalid), Err(IsConnected));
        assert_eq!(row(State::may_bind), [ok, inval, isconn, isconn, isconn, isconn, isconn]);
        assert_eq!(row(State::may_listen), [inval, ok, isconn, isconn, isconn, inval, inval]);
        assert_eq!(
            row(State::may_connect),
            [ok, ok, Err(NotSupported), isconn, isconn, inval, inval]
        );
        assert_eq!(row(State::may_accept), [inval, inval, ok, inval, inval, inval, inval]);
        let not = Err(NotConnected);
        assert_eq!(row(State::may_use), [not, not, not, not, ok, Err(Reset), not]);
        for state in ALL {
            assert_eq!(State::from_word(state as u32), state);
        }
    }
}

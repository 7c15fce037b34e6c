// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Numbers of the public SISCI interface: codes, flags and events that the transport uses.
//!
//! A program takes the codes from a header when it is compiled, so every library has these. Not
//! about the functions (`library`).

use std::fmt;

use rustix::io::Errno;

use crate::failure::Failure;

/// `sci_error_t`
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct SciCode(pub(super) u32);

/// Defines codes and their names.
macro_rules! codes {
    ($($name:ident = $value:literal;)*) => {
        impl SciCode {
            $(pub(super) const $name: SciCode = SciCode($value);)*

            fn name(self) -> Option<&'static str> {
                match self {
                    $(SciCode::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    OK = 0;
    BUSY = 0x4000_0900;
    FLAG_NOT_IMPLEMENTED = 0x4000_0901;
    ILLEGAL_FLAG = 0x4000_0902;
    NOSPC = 0x4000_0904;
    TIMEOUT = 0x4000_090A;
    OUT_OF_RANGE = 0x4000_090B;
    NO_SUCH_SEGMENT = 0x4000_090C;
    ILLEGAL_NODEID = 0x4000_090D;
    CONNECTION_REFUSED = 0x4000_090E;
    SIZE_ALIGNMENT = 0x4000_0910;
    OFFSET_ALIGNMENT = 0x4000_0911;
    ILLEGAL_PARAMETER = 0x4000_0912;
    ILLEGAL_ADDRESS = 0x4000_0915;
    SEGMENTID_USED = 0x4000_0918;
    SYSTEM = 0x4000_0919;
    NOT_CONNECTED = 0x4000_091B;
    NOT_AVAILABLE = 0x4000_091C;
    NO_SUCH_NODEID = 0x4000_0A00;
    NODE_NOT_RESPONDING = 0x4000_0A02;
    NO_REMOTE_LINK_ACCESS = 0x4000_0A04;
    NO_LINK_ACCESS = 0x4000_0A05;
    TRANSFER_FAILED = 0x4000_0A06;
}

impl SciCode {
    /// Returns the error of a connect.
    pub(super) fn connect_failure(self) -> Failure {
        match self {
            SciCode::ILLEGAL_NODEID
            | SciCode::NO_SUCH_NODEID
            | SciCode::NODE_NOT_RESPONDING
            | SciCode::NO_REMOTE_LINK_ACCESS
            | SciCode::NO_LINK_ACCESS => Failure::NoNode,
            SciCode::NOSPC => Failure::NoMemory,
            _ => Failure::Refused,
        }
    }
}

impl fmt::Display for SciCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "SCI_ERR_{name}"),
            None => write!(f, "sci_error_t {:#x}", self.0),
        }
    }
}

impl From<SciCode> for Failure {
    fn from(code: SciCode) -> Failure {
        match code {
            SciCode::NOSPC => Failure::NoMemory,
            SciCode::ILLEGAL_ADDRESS => Failure::BadAddress,
            SciCode::TRANSFER_FAILED | SciCode::NOT_CONNECTED => Failure::Reset,
            SciCode::OUT_OF_RANGE => Failure::NoWindow,
            SciCode::NOT_AVAILABLE => Failure::Os(Errno::AGAIN),
            _ => Failure::Broken,
        }
    }
}

/// `SCI_INFINITE_TIMEOUT`
pub(super) const INFINITE_TIMEOUT: u32 = u32::MAX;
/// Number of ids that `SCI_FLAG_AUTO_ID` tries.
pub(super) const AUTO_IDS: u32 = 128;

pub(super) const FLAG_USE_CALLBACK: u32 = 0x1;
pub(super) const FLAG_EMPTY: u32 = 0x2;
pub(super) const FLAG_LOCK_USER_MEM: u32 = 0x400;
pub(super) const FLAG_AUTO_ID: u32 = 0x2000_0000;

/// `sci_callback_action_t`
pub(super) const CALLBACK_CONTINUE: u32 = 2;
/// `sci_segment_cb_reason_t`
pub(super) const CB_DISCONNECT: u32 = 2;
pub(super) const CB_LOST: u32 = 5;
/// `sci_sequence_status_t`
pub(super) const SEQ_OK: u32 = 0;
pub(super) const SEQ_RETRIABLE: u32 = 1;
pub(super) const SEQ_PENDING: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_names_and_errors() {
        assert_eq!(SciCode::BUSY.to_string(), "SCI_ERR_BUSY");
        assert_eq!(SciCode(0x4000_0FFF).to_string(), "sci_error_t 0x40000fff");
        assert_eq!(SciCode::NO_SUCH_NODEID.connect_failure(), Failure::NoNode);
        assert_eq!(SciCode::NO_SUCH_SEGMENT.connect_failure(), Failure::Refused);
        assert_eq!(Failure::from(SciCode::TRANSFER_FAILED), Failure::Reset);
        assert_eq!(Failure::from(SciCode::TIMEOUT), Failure::Broken);
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Codes of `sisci_error.h`, and the failure of a call.

use std::ffi::CStr;

use rustix::io::Errno;

/// Defines the codes, each with its number and its name for people.
macro_rules! codes {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        /// `sci_error_t`
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        #[repr(u32)]
        pub(crate) enum SciError {
            /// `SCI_ERR_OK`
            Ok = 0,
            $(
                #[doc = concat!("`SCI_ERR_", $text, "`")]
                $name = 0x4000_0000 | $code,
            )*
        }

        impl SciError {
            /// Returns the code with a number; a number that is none counts as `System`.
            pub(crate) fn of(number: u32) -> SciError {
                match number {
                    0 => SciError::Ok,
                    $(n if n == SciError::$name.number() => SciError::$name,)*
                    _ => SciError::System,
                }
            }

            /// Returns the name of a number.
            pub(crate) fn text(number: u32) -> &'static CStr {
                match number {
                    0 => c"SCI_ERR_OK",
                    $(n if n == SciError::$name.number() => {
                        const TEXT: &CStr = match CStr::from_bytes_with_nul(
                            concat!("SCI_ERR_", $text, "\0").as_bytes(),
                        ) {
                            Ok(text) => text,
                            Err(_) => c"",
                        };
                        TEXT
                    })*
                    _ => c"unknown SISCI error",
                }
            }
        }
    };
}

codes! {
    Busy = 0x900, "BUSY";
    FlagNotImplemented = 0x901, "FLAG_NOT_IMPLEMENTED";
    IllegalFlag = 0x902, "ILLEGAL_FLAG";
    Nospc = 0x904, "NOSPC";
    ApiNospc = 0x905, "API_NOSPC";
    HwNospc = 0x906, "HW_NOSPC";
    NotImplemented = 0x907, "NOT_IMPLEMENTED";
    IllegalAdapterno = 0x908, "ILLEGAL_ADAPTERNO";
    NoSuchAdapterno = 0x909, "NO_SUCH_ADAPTERNO";
    Timeout = 0x90A, "TIMEOUT";
    OutOfRange = 0x90B, "OUT_OF_RANGE";
    NoSuchSegment = 0x90C, "NO_SUCH_SEGMENT";
    IllegalNodeid = 0x90D, "ILLEGAL_NODEID";
    ConnectionRefused = 0x90E, "CONNECTION_REFUSED";
    SegmentNotConnected = 0x90F, "SEGMENT_NOT_CONNECTED";
    SizeAlignment = 0x910, "SIZE_ALIGNMENT";
    OffsetAlignment = 0x911, "OFFSET_ALIGNMENT";
    IllegalParameter = 0x912, "ILLEGAL_PARAMETER";
    MaxEntries = 0x913, "MAX_ENTRIES";
    SegmentNotPrepared = 0x914, "SEGMENT_NOT_PREPARED";
    IllegalAddress = 0x915, "ILLEGAL_ADDRESS";
    IllegalOperation = 0x916, "ILLEGAL_OPERATION";
    IllegalQuery = 0x917, "ILLEGAL_QUERY";
    SegmentidUsed = 0x918, "SEGMENTID_USED";
    System = 0x919, "SYSTEM";
    Cancelled = 0x91A, "CANCELLED";
    NotConnected = 0x91B, "NOT_CONNECTED";
    NotAvailable = 0x91C, "NOT_AVAILABLE";
    InconsistentVersions = 0x91D, "INCONSISTENT_VERSIONS";
    CondIntRaceProblem = 0x91E, "COND_INT_RACE_PROBLEM";
    Overflow = 0x91F, "OVERFLOW";
    NotInitialized = 0x920, "NOT_INITIALIZED";
    Access = 0x921, "ACCESS";
    NotSupported = 0x922, "NOT_SUPPORTED";
    Deprecated = 0x923, "DEPRECATED";
    DmaNotAvailable = 0x924, "DMA_NOT_AVAILABLE";
    DmaDisabled = 0x925, "DMA_DISABLED";
    IntnoUsed = 0x926, "INTNO_USED";
    NoSuchNodeid = 0xA00, "NO_SUCH_NODEID";
    NodeNotResponding = 0xA02, "NODE_NOT_RESPONDING";
    NoRemoteLinkAccess = 0xA04, "NO_REMOTE_LINK_ACCESS";
    NoLinkAccess = 0xA05, "NO_LINK_ACCESS";
    TransferFailed = 0xA06, "TRANSFER_FAILED";
}

impl SciError {
    /// Returns its number in C.
    pub(crate) const fn number(self) -> u32 {
        self as u32
    }
}

/// Failure of a call: its code, and the errno that belongs to it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Failure {
    pub(crate) code: SciError,
    pub(crate) errno: Option<Errno>,
}

/// Result of a call.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl From<SciError> for Failure {
    fn from(code: SciError) -> Failure {
        Failure { code, errno: None }
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        let code = match errno {
            Errno::NOMEM | Errno::MFILE | Errno::NFILE | Errno::NOSPC | Errno::NOBUFS => {
                SciError::Nospc
            }
            _ => SciError::System,
        };
        Failure { code, errno: Some(errno) }
    }
}

impl From<scif::Error> for Failure {
    fn from(error: scif::Error) -> Failure {
        match error {
            scif::Error::Os { errno, .. } => errno.into(),
            _ => SciError::System.into(),
        }
    }
}

/// Fails with a code.
pub(crate) fn fail<T>(code: SciError) -> Outcome<T> {
    Err(code.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_one_code_and_one_name() {
        assert_eq!(SciError::Timeout.number(), 0x4000_090A);
        assert_eq!(SciError::of(0x4000_0A06), SciError::TransferFailed);
        assert_eq!(SciError::of(17), SciError::System);
        assert_eq!(SciError::text(0x4000_0900), c"SCI_ERR_BUSY");
        assert_eq!(SciError::text(5), c"unknown SISCI error");
    }
}

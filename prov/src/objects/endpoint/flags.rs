// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Flags of operations: those of calls, of endpoints and of attributes.
//!
//! Mirrors fi_endpoint(3), "OPERATION FLAGS".

use libfabric_sys as fi;

use crate::base::errno::Errno;
use crate::base::reason::because;

/// Completion levels: the event at which an operation counts as complete.
pub(crate) const LEVELS: u64 = fi::FI_INJECT_COMPLETE
    | fi::FI_TRANSMIT_COMPLETE
    | fi::FI_DELIVERY_COMPLETE
    | fi::FI_MATCH_COMPLETE;
/// Classes of operations and directions, which programs may repeat in the flags of a call.
pub(crate) const CLASSES: u64 = fi::FI_MSG
    | fi::FI_RMA
    | fi::FI_TAGGED
    | fi::FI_ATOMIC
    | fi::FI_READ
    | fi::FI_WRITE
    | fi::FI_RECV
    | fi::FI_SEND
    | fi::FI_REMOTE_READ
    | fi::FI_REMOTE_WRITE;
/// Flags allowed in a transmit attribute or `FI_SETOPSFLAG`.
pub(crate) const TX_OP_FLAGS: u64 =
    LEVELS | fi::FI_COMPLETION | fi::FI_INJECT | fi::FI_FENCE | fi::FI_MORE;
/// Flags allowed in a receive attribute or `FI_SETOPSFLAG`.
pub(crate) const RX_OP_FLAGS: u64 = LEVELS | fi::FI_COMPLETION | fi::FI_MULTI_RECV | fi::FI_MORE;
/// Flags that the transmitting `*msg` calls accept beside [`CLASSES`].
pub(crate) const TX_MSG_FLAGS: u64 = TX_OP_FLAGS | fi::FI_REMOTE_CQ_DATA | fi::FI_PRIORITY;
/// Flags that the receiving `*msg` calls accept beside [`CLASSES`].
pub(crate) const RX_MSG_FLAGS: u64 =
    RX_OP_FLAGS | fi::FI_PEEK | fi::FI_CLAIM | fi::FI_DISCARD | fi::FI_REMOTE_CQ_DATA;

/// Returns the error for `flags` of a call that accepts only `known` ones and [`CLASSES`], with the
/// wrong flags as its reason.
#[cold]
pub(crate) fn bad_flags(flags: u64, known: u64) -> Errno {
    let wrong = flags & !(known | CLASSES);
    if wrong == 0 {
        because(fi::FI_EBADFLAGS, format_args!("flags {flags:#x} contradict each other"))
    } else if wrong & fi::FI_COMMIT_COMPLETE != 0 {
        because(
            fi::FI_EBADFLAGS,
            format_args!("flags {wrong:#x}: there is no persistent memory for FI_COMMIT_COMPLETE"),
        )
    } else {
        because(fi::FI_EBADFLAGS, format_args!("flags {wrong:#x} are not supported in this call"))
    }
}

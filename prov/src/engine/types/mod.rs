// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Records, arguments and other values that all parts of the engine use.

pub(crate) mod access_counts;
pub(crate) mod args;
pub(crate) mod cm_message;
pub(crate) mod conn_request;
pub(crate) mod envelope;
pub(crate) mod iov;
pub(crate) mod peer_id;
pub(crate) mod peer_state;
pub(crate) mod rts;
pub(crate) mod stats;
pub(crate) mod wire;

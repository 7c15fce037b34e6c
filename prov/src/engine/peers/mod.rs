// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Operations on a peer: connect, control records, the queue of pending operations.

pub(crate) mod merge;
pub(crate) mod peer_conn;
pub(crate) mod sep_source;
pub(crate) mod tx_queue;

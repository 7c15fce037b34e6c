// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One direction of a connection: a single-producer single-consumer ring of records in memory
//! shared with the peer.
//!
//! A record has a head of at most 56 bytes in the cache line of its publication word. Its body of
//! at most [`BODY_MAX`](crate::BODY_MAX) is in the data area. So a small message moves one line,
//! with no read-modify-write, no lock and no call. Not about: wake-ups (`doorbell`), the meaning of
//! heads.
//!
//! A short reply to a record just received may be published in the reply line (`reply_line`)
//! instead of its slot, which then stays unchanged.
//!
//! Invariants. The consumer writes to a record only when it frees it, before it publishes that.
//! Positions are private to each side; both compute them by the same rule (`layout::body_start`).
//! Of shared words a side reads only the publication word, once per poll, and the consumer's two
//! counters. A peer that writes garbage can therefore forge heads, bodies and lengths, which are
//! checked ([`Corrupt`]), but cause no access outside the ring. Impossible counters of a consumer
//! are ignored, and its ring stays full: that harms the consumer alone.

mod consumer;
mod execution;
mod forwarder;
mod producer;
mod record;

pub use consumer::{Consumer, ConsumerOf};
pub use execution::Execution;
pub use forwarder::{Forwarder, ForwarderOf};
pub use producer::{Producer, ProducerOf};
pub use record::{InlineHandler, InlineRecord, PollOutcome, Record};

pub use crate::error::{Corrupt, LayoutError, PushError};
pub use crate::reply_line::PeerAck;

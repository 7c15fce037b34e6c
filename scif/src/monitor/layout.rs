// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Layout of monitoring memory: one page that describes the process, and one record for each
//! endpoint. All fields are words of 64 bits, so a reader needs no check of alignment.
//!
//! `scifctl(1)` explains the fields to users.

use scif_ring::snapshot_words;

/// Name of the memfd, as `/proc/PID/fd` shows it behind `/memfd:`.
pub const NAME: &str = "scif-monitor";
/// First word of the memory.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SCIFmon\0");
/// Version of this layout. A reader refuses other versions.
pub const VERSION: u64 = 3;

/// Words of the page of the process.
pub const PROCESS_WORDS: usize = 512;
/// Words of the record of an endpoint. A larger one lists more peers.
pub const RECORD_WORDS: usize = 5120;
/// Number of records. Further endpoints of a process are not published.
pub const RECORDS: usize = 128;
/// Bytes of the memory of a process, sparse: an unused record costs nothing.
pub const BYTES: usize = 8 * (PROCESS_WORDS + RECORDS * RECORD_WORDS);

/// Value of a number that is not known.
pub const UNKNOWN: u64 = u64::MAX;

/// Words of the page of the process.
pub mod process {
    /// Magic number, stored last.
    pub const MAGIC: usize = 0;
    /// Version of the layout.
    pub const VERSION: usize = 1;
    /// Process id, as the process itself sees it.
    pub const PID: usize = 2;
    /// Start time of the process in clock ticks after boot.
    pub const START: usize = 3;
    /// Monotonic time in nanoseconds at which the first endpoint was opened.
    pub const OPENED_NS: usize = 4;
    /// Rank in its job, or [`super::UNKNOWN`].
    pub const RANK: usize = 5;
    /// Number of ranks of the job, or [`super::UNKNOWN`].
    pub const SIZE: usize = 6;
    /// Interface version of libfabric: major version in the upper 16 of 32 bits.
    pub const LIBFABRIC: usize = 7;
    /// Number of endpoints opened without a free record.
    pub const UNPUBLISHED: usize = 8;
    /// Number of open endpoints with a record.
    pub const OPEN: usize = 9;
    /// Texts of [`super::TEXT_WORDS`] words each, padded with zeros: version of the provider.
    pub const PROVIDER: usize = 16;
    /// Launcher whose environment names the rank.
    pub const LAUNCHER: usize = 24;
    /// Identifier of the job, as its launcher names it.
    pub const JOB: usize = 32;
    /// Transport of the connections.
    pub const TRANSPORT: usize = 40;
    /// Command, as the kernel shows it.
    pub const COMMAND: usize = 48;
}

/// Words of a text. Longer texts are cut.
pub const TEXT_WORDS: usize = 8;

/// Words of the record of an endpoint.
pub mod record {
    /// 0 for a free record; else the number of the endpoint, in the order of opening.
    pub const NUMBER: usize = 0;
    /// Address: IP address of another host in the upper half, node in the bits from 16 on, port
    /// below.
    pub const PORT: usize = 1;
    /// Endpoint type, as libfabric numbers it.
    pub const TYPE: usize = 2;
    /// Monotonic time in nanoseconds at which the endpoint was opened.
    pub const OPENED_NS: usize = 3;
    /// Monotonic time in nanoseconds of a recent progress call, updated every few calls.
    pub const PROGRESS_NS: usize = 4;
    /// 1 while a thread sleeps in the library until the endpoint has an event.
    pub const ASLEEP: usize = 5;
    /// Text of [`super::TEXT_WORDS`] words: provider of the network to other hosts, empty without a
    /// network.
    pub const NETWORK: usize = 6;
    /// Counters that change with each operation.
    pub const COUNTERS: usize = 16;
    /// Snapshots of the outstanding operations.
    pub const OPS: usize = COUNTERS + super::COUNTER_WORDS;
    /// Snapshots of the peers.
    pub const PEERS: usize = OPS + super::snapshot_words(super::OPS_WORDS);
}

/// Words reserved for counters.
pub const COUNTER_WORDS: usize = 48;

/// Names of the counters, in order. Each `ops`, `bytes` pair counts operations and their bytes.
pub const COUNTERS: [&str; 40] = [
    "sent_ops",
    "sent_bytes",
    "received_ops",
    "received_bytes",
    "inline_ops",
    "inline_bytes",
    "ring_ops",
    "ring_bytes",
    "mapped_ops",
    "mapped_bytes",
    "maps_ops",
    "maps_bytes",
    "process_vm_ops",
    "process_vm_bytes",
    "coop_copy_ops",
    "coop_copy_bytes",
    "rma_ops",
    "rma_bytes",
    "atomics_ops",
    "atomics_bytes",
    "posted_ops",
    "posted_bytes",
    "withdrawn_ops",
    "withdrawn_bytes",
    "fallbacks",
    "no_direct",
    "unexpected",
    "lost_peers",
    "window_cpu_ops",
    "window_cpu_bytes",
    "window_dma_ops",
    "window_dma_bytes",
    "foreign_sent_ops",
    "foreign_sent_bytes",
    "foreign_received_ops",
    "foreign_received_bytes",
    "foreign_rma_ops",
    "foreign_rma_bytes",
    "network_reads_ops",
    "network_reads_bytes",
];

/// Words of a snapshot of operations.
pub mod ops {
    /// Monotonic time in nanoseconds of the snapshot.
    pub const TIME_NS: usize = 0;
    /// Number of operations listed.
    pub const LISTED: usize = 1;
    /// Receives that wait for a message, besides multi-receive buffers.
    pub const RECEIVES: usize = 2;
    /// Multi-receive buffers.
    pub const MULTI_RECVS: usize = 3;
    /// Unexpected messages.
    pub const UNEXPECTED: usize = 4;
    /// Payload bytes of unexpected messages that lie in memory of this process.
    pub const UNEXPECTED_BYTES: usize = 5;
    /// Operations that await a reply of their peer.
    pub const OUTSTANDING: usize = 6;
    /// Operations that wait for ring space or a connection.
    pub const PENDING: usize = 7;
    /// Large messages that are being received.
    pub const INCOMING: usize = 8;
    /// Copy of the counters.
    pub const COUNTERS: usize = 16;
    /// First listed operation.
    pub const FIRST: usize = COUNTERS + super::COUNTER_WORDS;
}

/// Number of operations in a snapshot: the oldest ones of each kind.
pub const OPS_LISTED: usize = 32;
/// Words of an operation.
pub const OP_WORDS: usize = 8;
/// Words of a snapshot of operations.
pub const OPS_WORDS: usize = ops::FIRST + OPS_LISTED * OP_WORDS;

/// Words of an operation.
pub mod op {
    /// Kind ([`super::OpKind`]), and from bit 8 on its state ([`super::OpState`]).
    pub const KIND: usize = 0;
    /// Address of the peer, or [`super::UNKNOWN`] for any source.
    pub const PEER: usize = 1;
    /// Tag.
    pub const TAG: usize = 2;
    /// Bits of the tag that a receive ignores.
    pub const IGNORE: usize = 3;
    /// Bytes of the message, or of the receive buffer.
    pub const LEN: usize = 4;
    /// Monotonic time in nanoseconds at which a snapshot first contained the operation.
    pub const SINCE_NS: usize = 5;
    /// Bytes transferred so far.
    pub const DONE: usize = 6;
}

/// Words of a snapshot of peers.
pub mod peers {
    /// Monotonic time in nanoseconds of the snapshot.
    pub const TIME_NS: usize = 0;
    /// Number of peers listed.
    pub const LISTED: usize = 1;
    /// Number of peers known.
    pub const KNOWN: usize = 2;
    /// First listed peer.
    pub const FIRST: usize = 8;
}

/// Words of a peer.
pub const PEER_WORDS: usize = 10;
/// Words of a snapshot of peers.
pub const PEERS_WORDS: usize = (RECORD_WORDS - record::PEERS - 2) / 2;
/// Number of peers in a snapshot.
pub const PEERS_LISTED: usize = (PEERS_WORDS - peers::FIRST) / PEER_WORDS;

/// Words of a peer.
pub mod peer {
    /// Address of the peer.
    pub const PORT: usize = 0;
    /// State ([`super::PeerState`]), and from bit 8 on the path of copies ([`super::CopyPath`]).
    pub const STATE: usize = 1;
    /// Process id, 0 if it is not visible.
    pub const PID: usize = 2;
    /// Records sent over the present connections. A short message is one record.
    pub const SENT: usize = 3;
    /// Records received.
    pub const RECEIVED: usize = 4;
    /// Operations that wait for ring space or a connection.
    pub const PENDING: usize = 5;
    /// Number of the error that refuses connections, 0 for none.
    pub const ERRNO: usize = 6;
    /// Operations that await a reply of the peer.
    pub const OUTSTANDING: usize = 7;
    /// Bytes sent over the present connections: cache lines of the ring, payloads past it, and
    /// copies.
    pub const SENT_BYTES: usize = 8;
    /// Bytes received.
    pub const RECEIVED_BYTES: usize = 9;
}

/// Defines an enumeration of words, and the names of its values.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$of:meta])* $value:ident = $number:literal $text:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        #[repr(u8)]
        pub enum $name { $($(#[$of])* $value = $number,)* }

        impl $name {
            /// Returns the value of a word of another process.
            #[must_use]
            pub fn from_word(word: u64) -> Option<$name> {
                match word & 0xff {
                    $($number => Some($name::$value),)*
                    _ => None,
                }
            }

            /// Returns the name that tables and JSON documents show.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $($name::$value => $text,)* }
            }
        }
    };
}

pub(super) use words;

words! {
    /// Kind of an operation.
    OpKind {
        /// Untagged receive.
        Recv = 1 "recv",
        /// Tagged receive.
        RecvTagged = 2 "trecv",
        /// Untagged send.
        Send = 3 "send",
        /// Tagged send.
        SendTagged = 4 "tsend",
        /// RMA write.
        Write = 5 "write",
        /// RMA read.
        Read = 6 "read",
        /// Atomic without a result.
        Atomic = 7 "atomic",
        /// Atomic with a result.
        FetchAtomic = 8 "fetch_atomic",
        /// Part of a collective.
        Collective = 9 "collective",
        /// Message without a receive.
        Unexpected = 10 "unexpected",
    }
}

words! {
    /// State of an operation.
    OpState {
        /// Receive that waits for a message, or message that waits for a receive.
        Unmatched = 1 "unmatched",
        /// Large message whose payload is on its way.
        Transfer = 2 "transfer",
        /// Operation that the peer has yet to take or execute.
        Announced = 3 "announced",
        /// Operation that waits for ring space or a connection.
        Pending = 4 "pending",
    }
}

words! {
    /// State of a peer.
    PeerState {
        /// No connection yet.
        Unconnected = 1 "unconnected",
        /// Connection attempted and not answered.
        Connecting = 2 "connecting",
        /// Connected.
        Connected = 3 "connected",
        /// Closed gracefully.
        Left = 4 "left",
        /// Died.
        Failed = 5 "failed",
    }
}

words! {
    /// Path of large messages and RMA with a peer.
    CopyPath {
        /// Copies by the ring only.
        Ring = 1 "ring",
        /// Copies by `process_vm_readv` and `process_vm_writev`.
        ProcessVm = 2 "process_vm",
        /// Copies in memory that both processes map.
        Mapped = 3 "mapped",
        /// No connection yet.
        Unknown = 4 "-",
        /// RMA on windows of the peer, over the calls of `scif.h` or a driver.
        Window = 5 "window",
        /// Copies by a network to another host.
        Network = 6 "network",
    }
}

const _: () = assert!(COUNTERS.len() <= COUNTER_WORDS);
const _: () = assert!(record::NETWORK + TEXT_WORDS <= record::COUNTERS);
const _: () = assert!(record::PEERS + snapshot_words(PEERS_WORDS) <= RECORD_WORDS);
const _: () = assert!(PEERS_LISTED >= 200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_another_process_are_checked() {
        assert_eq!(OpKind::from_word(4 | 3 << 8), Some(OpKind::SendTagged));
        assert_eq!(OpState::from_word(3), Some(OpState::Announced));
        assert_eq!((OpKind::from_word(0), OpKind::from_word(u64::MAX)), (None, None));
        assert_eq!(PeerState::from_word(5).map(PeerState::name), Some("failed"));
    }
}

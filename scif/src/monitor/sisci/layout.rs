// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Layout of the memory in which a process publishes its SISCI objects: one page that describes the
//! process, and one record for each object. All fields are words of 64 bits.

use crate::monitor::layout::words;

/// Name of the memfd, as `/proc/PID/fd` shows it behind `/memfd:`.
pub const NAME: &str = "scif-sisci";
/// First word of the memory.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SISCIobj");
/// Version of this layout. A reader refuses other versions.
pub const VERSION: u64 = 1;

/// Words of the page of the process.
pub const PROCESS_WORDS: usize = 512;
/// Words of the record of an object: two cache lines.
pub const RECORD_WORDS: usize = 16;
/// Number of records. Further objects of a process are counted, but not shown.
pub const RECORDS: usize = 8192;
/// Bytes of the memory of a process, sparse: an unused record costs nothing.
pub const BYTES: usize = 8 * (PROCESS_WORDS + RECORDS * RECORD_WORDS);

/// Words of the page of the process. The first four are those of `monitor::layout::process`.
pub mod process {
    /// Magic number, stored last.
    pub const MAGIC: usize = 0;
    /// Version of the layout.
    pub const VERSION: usize = 1;
    /// Process id, as the process itself sees it.
    pub const PID: usize = 2;
    /// Start time of the process in clock ticks after boot.
    pub const START: usize = 3;
    /// Node id.
    pub const NODE: usize = 4;
    /// Number of adapters.
    pub const ADAPTERS: usize = 5;
    /// Number of records that were ever used.
    pub const USED: usize = 6;
    /// Number of objects made without a free record.
    pub const UNPUBLISHED: usize = 7;
    /// Text of [`super::TEXT_WORDS`] words, padded with zeros: domain.
    pub const DOMAIN: usize = 16;
    /// Text of the same length: runtime directory, empty for abstract names.
    pub const DIR: usize = 32;
}

/// Words of a text. Longer texts are cut; no domain or runtime directory is longer.
pub const TEXT_WORDS: usize = 16;

/// Words of the record of an object.
pub mod record {
    /// 0 for a free record; else the serial number of the object. Stored last.
    pub const SERIAL: usize = 0;
    /// Kind ([`super::ObjectKind`]).
    pub const KIND: usize = 1;
    /// State ([`super::ObjectState`]).
    pub const STATE: usize = 2;
    /// Node of the segment or interrupt.
    pub const NODE: usize = 3;
    /// Id of the segment, or number of the interrupt.
    pub const NUMBER: usize = 4;
    /// Adapter of a connection; set of the adapters of an available segment, as bits, of which bit
    /// [`super::LOCAL_HOST_BIT`] is the own host.
    pub const ADAPTER: usize = 5;
    /// Bytes of the segment or mapping.
    pub const SIZE: usize = 6;
    /// Offset of a mapping in its segment.
    pub const OFFSET: usize = 7;
    /// Number of connected processes, or of owners of a connected interrupt.
    pub const PEERS: usize = 8;
    /// Set of flags ([`super::flag`]).
    pub const FLAGS: usize = 9;
    /// Process id of the owner of a connected segment, 0 if it is not visible.
    pub const OWNER: usize = 10;
    /// Address of a mapping.
    pub const ADDRESS: usize = 11;
    /// Number of delivered or sent interrupts.
    pub const COUNT: usize = 12;
}

/// Bit of the own host in a set of adapters.
pub const LOCAL_HOST_BIT: u32 = 63;

/// Flags of an object.
pub mod flag {
    /// Mapping that permits stores.
    pub const WRITABLE: u64 = 1;
    /// Mapping of a connected segment.
    pub const REMOTE: u64 = 2;
    /// Object with a callback.
    pub const CALLBACK: u64 = 4;
    /// Segment that processes of the node may attach, or interrupt number that owners share.
    pub const SHARED: u64 = 8;
    /// Interrupt that delivers each trigger.
    pub const COUNTING: u64 = 16;
    /// Segment that no process can connect.
    pub const PRIVATE: u64 = 32;
    /// Segment of a reflective memory group.
    pub const BROADCAST: u64 = 64;
    /// Names of the flags that lists show, in the order of the bits from `CALLBACK` on.
    pub const NAMES: [(u64, &str); 5] = [
        (CALLBACK, "callback"),
        (SHARED, "shared"),
        (COUNTING, "counting"),
        (PRIVATE, "private"),
        (BROADCAST, "broadcast"),
    ];
}

words! {
    /// Kind of an object.
    ObjectKind {
        /// Segment of the process.
        Segment = 1 "segment",
        /// Connection to a segment.
        Connection = 2 "connection",
        /// Mapping of a segment.
        Map = 3 "map",
        /// Interrupt of the process.
        Interrupt = 4 "interrupt",
        /// Data interrupt of the process.
        DataInterrupt = 5 "data",
        /// Connection to an interrupt.
        Trigger = 6 "trigger",
        /// Connection to a data interrupt.
        DataTrigger = 7 "data-trigger",
    }
}

words! {
    /// State of an object.
    ObjectState {
        /// Object without states.
        Present = 1 "-",
        /// Segment without memory.
        Empty = 2 "empty",
        /// Segment that was not prepared.
        Created = 3 "created",
        /// Segment that is not available.
        Prepared = 4 "prepared",
        /// Segment that processes may connect.
        Available = 5 "available",
        /// Segment of another process of the node, attached by this one.
        Attached = 6 "attached",
        /// Connection without an answer yet.
        Connecting = 7 "connecting",
        /// Connection that was refused.
        Refused = 8 "refused",
        /// Connection in use.
        Operational = 9 "operational",
        /// Connection whose segment is not operational.
        NotOperational = 10 "not-operational",
        /// Connection whose owner asked to disconnect.
        Disconnecting = 11 "disconnecting",
        /// Connection whose owner withdrew the segment, or died.
        Lost = 12 "lost",
    }
}

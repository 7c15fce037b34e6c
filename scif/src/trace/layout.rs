// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Layout of a trace in memory and in a file: 64-bit words in the byte order of the machine. A
//! header, the states of the chunks, then the chunks of records.

use scif_ring::SHORT_BIT;

use crate::addr::PortId;
use crate::trace::event::{EventKind, TraceEvent};

/// Number of records in a chunk. One endpoint fills a chunk; a larger one leaves more records
/// unused behind endpoints with few events. The first record is the place of an arrival whose time
/// is not known yet.
pub(crate) const CHUNK_RECORDS: usize = 512;
/// Number of chunks. A process keeps at least its last 1,044,480 events, less the unused ends of
/// chunks.
pub(crate) const CHUNKS: usize = 2048;
/// Words of a record.
pub(crate) const RECORD_WORDS: usize = 4;
/// Words of a short record, which has the time, kind, endpoint and peer of the last other record of
/// its chunk: two of them lie in the place of a record.
pub(crate) const SHORT_WORDS: usize = 2;
/// Words of a chunk.
pub(crate) const CHUNK_WORDS: usize = CHUNK_RECORDS * RECORD_WORDS;
/// Index of the first chunk state, behind the header: 0 for a free chunk, 1 for one that an
/// endpoint fills.
pub(crate) const STATES: usize = 512;
/// Index of the first record.
pub(crate) const RECORDS: usize = STATES + CHUNKS;
/// Bytes of a trace in memory: about 32 MiB.
pub(crate) const TRACE_BYTES: usize = 8 * (RECORDS + CHUNKS * CHUNK_WORDS);
/// Value of [`Field::Magic`]: the kind of file and its version.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"SCIFTRC4");
/// Number of words of the name of the program.
pub(crate) const COMMAND_WORDS: usize = 4;
/// Bits of the number of an event in the last word of a record. The others are the length, which
/// is thus known up to a TiB.
const ID_BITS: u32 = 24;

/// Words of the header, by index.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Field {
    Magic = 0,
    Pid = 1,
    /// Rank plus 1; 0 without a rank.
    Rank = 2,
    Node = 3,
    /// Clock of the records, and nanoseconds of CLOCK_MONOTONIC, at the same time: at the start.
    StartTicks = 4,
    StartNs = 5,
    /// Both clocks at the end; 0 while the process runs.
    EndTicks = 6,
    EndNs = 7,
    /// Number of chunks taken so far.
    Taken = 8,
    Command = 9,
}

/// Number by which records of one message are found: the upper bits of a product.
#[inline]
pub(crate) fn short_id(id: u64) -> u32 {
    let mixed = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - ID_BITS);
    u32::try_from(mixed).unwrap_or(0)
}

/// Endpoint and peer of an event, as its record has them.
#[derive(Clone, Copy, Debug)]
pub struct TraceNames(u64);

impl TraceNames {
    /// Returns the names of an endpoint and a peer.
    pub(crate) fn new(own_port: u16, peer: PortId) -> TraceNames {
        let peer = u64::from(peer.node) << 32 | u64::from(peer.port) << 48;
        TraceNames(peer | u64::from(own_port) << 16)
    }
}

/// Returns the words of a record behind its time.
#[inline]
pub(crate) fn encode(names: TraceNames, event: &TraceEvent) -> [u64; 3] {
    let names = names.0 | event.kind as u64 | u64::from(event.err) << 8;
    [names, event.tag, event.len << ID_BITS | u64::from(short_id(event.id))]
}

/// Returns the words of a short record, if the length of its message fits.
#[inline]
pub(crate) fn shorten([_, tag, size]: [u64; 3]) -> Option<[u64; SHORT_WORDS]> {
    (size & SHORT_BIT == 0).then_some([size, tag])
}

/// Returns the words of the record for which a short one stands, of those that name its kind,
/// endpoint and peer.
pub(crate) fn lengthen(names: u64, [size, tag]: [u64; SHORT_WORDS]) -> [u64; 3] {
    [names, tag, size & !SHORT_BIT]
}

/// Returns own port, peer and event of a record. The number of the event is its short one.
pub(crate) fn decode([names, tag, size]: [u64; 3]) -> Option<(u16, PortId, TraceEvent)> {
    let [kind, err, o0, o1, n0, n1, p0, p1] = names.to_le_bytes();
    let word = |low, high| u16::from_le_bytes([low, high]);
    let event = TraceEvent {
        kind: EventKind::of(kind)?,
        tag,
        len: size >> ID_BITS,
        id: size & ((1 << ID_BITS) - 1),
        err,
    };
    Some((word(o0, o1), PortId::new(word(n0, n1), word(p0, p1)), event))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_decoded_as_it_was_encoded() {
        let peer = PortId::new(3, 65_535);
        let event =
            TraceEvent { err: 111, ..TraceEvent::new(EventKind::Pulled, u64::MAX, 1 << 33, 77) };
        let (port, other, seen) = decode(encode(TraceNames::new(1089, peer), &event)).unwrap();
        assert_eq!((port, other, seen.id), (1089, peer, u64::from(short_id(77))));
        assert_eq!(TraceEvent { id: 77, ..seen }, event);
        let long = TraceEvent::new(EventKind::Write, 0, (1 << 40) - 1, 0);
        assert_eq!(decode(encode(TraceNames::new(0, peer), &long)).unwrap().2.len, long.len);
        assert!(decode([0, 0, 0]).is_none());
    }
}

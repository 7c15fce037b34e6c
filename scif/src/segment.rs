// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Layout of the shared memory of one connection, and the views of each side.
//!
//! Not about the inside of the parts, which the ring crate lays out. The opener creates the memory,
//! zeroed and sparse; the acceptor checks it. An untouched page costs nothing.
//!
//! | offset | content |
//! |---|---|
//! | 0 | header: magic, layout of the parts, size |
//! | 256, 384 | the opener's mark, the acceptor's mark |
//! | 512, 640 | the mark by which the opener leaves, the acceptor's |
//! | 768 | the reply line: the opener's half, the acceptor's |
//! | 4096, 12288 | claim blocks of messages from the opener, from the acceptor |
//! | 20480 | ring from the opener to the acceptor |
//! | 106496 | ring from the acceptor to the opener |
//!
//! Over the calls of `scif.h` the segment is private, and the rings lie in windows instead. Each
//! side has one, which the other maps and only writes:
//!
//! | offset | content, written by the peer |
//! |---|---|
//! | 0 | doorbell page, of which the peer uses the sleeping flag |
//! | 4096 | credits: what the peer writes as the consumer of our records |
//! | 8192 | ring from the peer to the owner of the window |

use std::sync::Arc;

use rustix::io::Errno;
use scif_ring::layout::{DATA_OFFSET, LAYOUT, SLOTS_OFFSET};
use scif_ring::{
    BELL_BYTES, CLAIM_BLOCKS, CLAIM_BYTES, CREDITS_BYTES, Consumer, DIRECTION_BYTES, Forwarder,
    HAZARD_BYTES, HazardPointer, Producer, REPLY_LINE_BYTES,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::sys::mmap::{Claims, Mapping, OutOfRange};

const MAGIC: [u8; 8] = *b"SCIFconn";
const MARKS: usize = 256;
const LEAVE_MARKS: usize = MARKS + 2 * HAZARD_BYTES;
const REPLY_LINE: usize = LEAVE_MARKS + 2 * HAZARD_BYTES;
const CLAIMS: usize = 4096;
const CLAIMS_BYTES: usize = CLAIM_BLOCKS * CLAIM_BYTES;
const RINGS: usize = CLAIMS + 2 * CLAIMS_BYTES;

/// Size in bytes of the shared memory of one connection.
pub(crate) const SEGMENT_BYTES: usize = RINGS + 2 * DIRECTION_BYTES;

/// Offsets in a window.
const CREDITS: usize = BELL_BYTES;
const WINDOW_RING: usize = CREDITS + CREDITS_BYTES;

/// Offset in a window of the bodies of records.
pub(crate) const WINDOW_DATA: usize = WINDOW_RING + DATA_OFFSET;
/// Size in bytes of the window of one side.
pub(crate) const WINDOW_BYTES: usize = WINDOW_RING + DIRECTION_BYTES;

const _: () = assert!(WINDOW_BYTES == 94_208 && WINDOW_BYTES % 4096 == 0);
const _: () = assert!(REPLY_LINE + REPLY_LINE_BYTES <= CLAIMS && MARKS % HAZARD_BYTES == 0);
const _: () = assert!(CLAIMS_BYTES == 8192 && RINGS == 20480 && SEGMENT_BYTES == 192_512);
const _: () = assert!(HEADER.bytes as usize == SEGMENT_BYTES);

/// First bytes of the segment, written by the opener before it is shared.
#[derive(Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    layout: u32,
    bytes: u32,
}

const HEADER: Header = Header { magic: MAGIC, layout: LAYOUT, bytes: 192_512 };

/// End of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Side {
    Opener,
    Acceptor,
}

impl Side {
    /// Returns the index of this side's part in pairs of equal parts.
    fn index(self) -> usize {
        match self {
            Side::Opener => 0,
            Side::Acceptor => 1,
        }
    }

    pub fn other(self) -> Side {
        match self {
            Side::Opener => Side::Acceptor,
            Side::Acceptor => Side::Opener,
        }
    }
}

/// The windows of a connection over the calls of `scif.h`.
#[derive(Clone, Debug)]
pub(crate) struct Windows {
    /// Memory of this side, which the peer writes.
    pub(crate) own: Arc<Mapping>,
    /// Memory of the peer, mapped here; only written.
    pub(crate) peer: Arc<Mapping>,
    /// Ordinary memory in which the producer writes the ring, if the mapping is write-combined.
    pub(crate) copy: Option<Arc<Mapping>>,
}

impl Windows {
    /// Returns the forwarder of a ring that the producer writes in ordinary memory.
    pub(crate) fn forwarder(&self) -> Result<Option<Forwarder>, OutOfRange> {
        let forwarder =
            |copy: &Arc<Mapping>| copy.forwarder((&self.peer, WINDOW_RING), (&self.own, CREDITS));
        self.copy.as_ref().map(forwarder).transpose()
    }
}

/// Releases the pages of both rings of a private segment: slots and bodies. Both are empty, so that
/// zeros are their content.
pub(crate) fn release_rings(segment: &Mapping) {
    for ring in [RINGS, RINGS + DIRECTION_BYTES] {
        segment.release_pages(ring + SLOTS_OFFSET, DIRECTION_BYTES - SLOTS_OFFSET);
    }
}

/// Returns memory for the copy of a ring.
pub(crate) fn ring_copy() -> Result<Arc<Mapping>, Errno> {
    Ok(Arc::new(Mapping::private_for_library(DIRECTION_BYTES)?))
}

/// One side's ends of all parts of a segment.
#[derive(Debug)]
pub(crate) struct Views {
    pub(crate) tx: Producer,
    pub(crate) rx: Consumer,
    pub(crate) my_mark: HazardPointer,
    pub(crate) peer_mark: HazardPointer,
    pub(crate) my_leave: HazardPointer,
    pub(crate) peer_leave: HazardPointer,
    pub(crate) tx_claims: Claims,
    pub(crate) rx_claims: Claims,
    /// Last field, so that it is dropped last.
    _map: Arc<Mapping>,
    /// In a box, as most connections have none.
    _windows: Option<Box<Windows>>,
}

impl Views {
    /// Returns the ends of a connection whose rings lie in windows; `map` is private.
    pub(crate) fn over(
        map: Arc<Mapping>,
        windows: Option<Windows>,
        side: Side,
    ) -> Result<Views, OutOfRange> {
        let mut views = Views::new(map, side)?;
        if let Some(Windows { own, peer, copy }) = &windows {
            views.rx = own.consumer_apart(WINDOW_RING, peer, CREDITS)?;
            views.tx = match copy {
                Some(copy) => {
                    views.rx.fence_credits();
                    copy.producer_apart(0, own, CREDITS)?
                }
                None => peer.producer_apart(WINDOW_RING, own, CREDITS)?,
            };
        }
        views._windows = windows.map(Box::new);
        Ok(views)
    }

    pub(crate) fn new(map: Arc<Mapping>, side: Side) -> Result<Views, OutOfRange> {
        let (mine, theirs) = (side.index(), side.other().index());
        Ok(Views {
            tx: map.producer(RINGS + mine * DIRECTION_BYTES, REPLY_LINE, mine)?,
            rx: map.consumer(RINGS + theirs * DIRECTION_BYTES, REPLY_LINE, theirs)?,
            my_mark: map.hazard_pointer(MARKS + mine * HAZARD_BYTES)?,
            peer_mark: map.hazard_pointer(MARKS + theirs * HAZARD_BYTES)?,
            my_leave: map.hazard_pointer(LEAVE_MARKS + mine * HAZARD_BYTES)?,
            peer_leave: map.hazard_pointer(LEAVE_MARKS + theirs * HAZARD_BYTES)?,
            tx_claims: map.claims(CLAIMS + mine * CLAIMS_BYTES)?,
            rx_claims: map.claims(CLAIMS + theirs * CLAIMS_BYTES)?,
            _map: map,
            _windows: None,
        })
    }
}

/// Writes the header of a segment into fresh memory.
pub(crate) fn write_header(map: &Mapping) -> Result<(), OutOfRange> {
    map.bytes(0, size_of::<Header>())?.copy_from_slice(HEADER.as_bytes());
    Ok(())
}

/// Whether memory of a peer is a segment with our layout.
pub(crate) fn check_header(map: &Mapping) -> bool {
    let mut copy = [0u8; size_of::<Header>()];
    map.bytes(0, copy.len()).is_ok_and(|bytes| bytes.copy_to_slice(&mut copy) == copy.len())
        && copy == HEADER.as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_meet_in_windows() {
        let window = || Arc::new(Mapping::private(WINDOW_BYTES).unwrap());
        let segment = || Arc::new(Mapping::private(SEGMENT_BYTES).unwrap());
        let (a, b) = (window(), window());
        let windows = |own: &Arc<Mapping>, peer: &Arc<Mapping>| {
            Some(Windows { own: Arc::clone(own), peer: Arc::clone(peer), copy: None })
        };
        let mut opener = Views::over(segment(), windows(&a, &b), Side::Opener).unwrap();
        let mut acceptor = Views::over(segment(), windows(&b, &a), Side::Acceptor).unwrap();
        for round in 0..1000_u32 {
            opener.tx.push_head(7, &round.to_le_bytes()).unwrap();
            acceptor.tx.push_head(8, &round.to_le_bytes()).unwrap();
            for (rx, kind) in [(&mut acceptor.rx, 7), (&mut opener.rx, 8)] {
                let record = rx.peek().unwrap().unwrap();
                assert_eq!((record.kind, record.head()), (kind, &round.to_le_bytes()[..]));
                rx.advance();
            }
        }
        opener.rx.set_idle(true);
        assert!(acceptor.tx.consumer_idle() && !opener.tx.consumer_idle());
        let bell = a.bell_handle().unwrap();
        b.bell().unwrap().set_sleeping(true);
        assert!(!bell.sleeping());
        a.bell().unwrap().set_sleeping(true);
        assert!(bell.sleeping());
    }

    #[test]
    fn records_are_forwarded_to_a_window() {
        let window = || Arc::new(Mapping::private(WINDOW_BYTES).unwrap());
        let (a, b) = (window(), window());
        let windows = |own: &Arc<Mapping>, peer: &Arc<Mapping>| Windows {
            own: Arc::clone(own),
            peer: Arc::clone(peer),
            copy: Some(ring_copy().unwrap()),
        };
        let (ours, theirs) = (windows(&a, &b), windows(&b, &a));
        let segment = || Arc::new(Mapping::private(SEGMENT_BYTES).unwrap());
        let mut forwarder = ours.forwarder().unwrap().unwrap();
        let mut opener = Views::over(segment(), Some(ours), Side::Opener).unwrap();
        let mut acceptor = Views::over(segment(), Some(theirs), Side::Acceptor).unwrap();
        assert!(!forwarder.forward());
        for round in 0..1000_u32 {
            opener.tx.push_slice(7, &round.to_le_bytes(), &[5; 3000]).unwrap();
            assert!(acceptor.rx.peek().unwrap().is_none(), "not before it is forwarded");
            assert!(forwarder.forward());
            let record = acceptor.rx.peek().unwrap().unwrap();
            assert_eq!((record.head(), record.body.len()), (&round.to_le_bytes()[..], 3000));
            acceptor.rx.advance();
        }
        acceptor.rx.set_idle(true);
        assert!(forwarder.consumer_idle() && opener.tx.consumer_idle());
        acceptor.rx.flush();
        assert!(opener.tx.all_consumed());
    }

    #[test]
    fn both_sides_meet() {
        let map = Arc::new(Mapping::anonymous(SEGMENT_BYTES).unwrap());
        assert!(!check_header(&map));
        write_header(&map).unwrap();
        assert!(check_header(&map));
        let mut a = Views::new(Arc::clone(&map), Side::Opener).unwrap();
        let mut b = Views::new(map, Side::Acceptor).unwrap();
        a.tx.push_head(7, b"to b").unwrap();
        b.tx.push_head(8, b"to a").unwrap();
        assert_eq!(b.rx.peek().unwrap().unwrap().kind, 7);
        assert_eq!(a.rx.peek().unwrap().unwrap().kind, 8);
        a.my_mark.set(3);
        assert_eq!((b.peer_mark.get(), b.my_mark.get()), (Some(3), None));
        a.tx_claims.get(2).reset(9);
        b.rx_claims.get(2).offer(9, 4096, 100, 64, 2);
        assert!(a.tx_claims.get(2).peer_offer(9).is_some());
        assert!(a.rx_claims.get(2).peer_offer(9).is_none());
    }
}

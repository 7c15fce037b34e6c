// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Connected part of an endpoint: the streams in both directions, the socket that proves the peer's
//! liveness, its doorbell, and the tables of both sides' memory.
//!
//! Not about its setup (`connect`), nor about the content of the streams.
//!
//! The segment is one memfd, made by the opener:
//!
//! | offset | content |
//! |---|---|
//! | 0 | magic |
//! | 128, 256 | whether the opener, the acceptor has closed |
//! | 384, 512 | words that change when an RMA of the opener, of the acceptor ends, or at the end |
//! | 4096, 270336 | stream from the opener, from the acceptor |

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use scif::segment::Side;
use scif::sys::memfd::{self, FIXED_SIZE};
use scif::sys::mmap::Mapping;
use scif::sys::{descriptor, futex, unix};
use scif_ring::{STREAM_BYTES, SharedU32, StreamRx, StreamTx, WakeWords, Wakeups};

use crate::failure::{Failure, Result};
use crate::sharer::Sharer;
use crate::window::space::{OwnSpace, PeerSpace, Spaces};
use crate::wire::{PACKET, Packet};

const MAGIC: u64 = u64::from_le_bytes(*b"SCIFepd1");
const CLOSED: [usize; 2] = [128, 256];
const FINISHED: [usize; 2] = [384, 512];
const STREAMS: usize = 4096;
/// Interval in nanoseconds at which a worker that waits for other sharers checks whether they have
/// died.
const WORKER_LOOK_NS: u64 = 10_000_000;
/// Size in bytes of the segment of a connection.
pub(crate) const SEGMENT_BYTES: usize = STREAMS + 2 * STREAM_BYTES;

/// Makes the memory of a new connection, and its descriptor for the peer.
pub(crate) fn new_segment() -> Result<(Mapping, OwnedFd)> {
    let fd = memfd::create("scif:stream", SEGMENT_BYTES)?;
    memfd::seal(&fd, FIXED_SIZE)?;
    let map = Mapping::shared(&fd, SEGMENT_BYTES, true)?;
    map.word64(0)?.set(MAGIC);
    Ok((map, fd))
}

/// Maps the memory that an opener sent.
pub(crate) fn adopt_segment(fd: &OwnedFd) -> Result<Mapping> {
    memfd::check(fd, SEGMENT_BYTES, FIXED_SIZE).map_err(|_| Failure::Broken)?;
    let map = Mapping::shared(fd, SEGMENT_BYTES, true)?;
    if map.word64(0)?.get() == MAGIC { Ok(map) } else { Err(Failure::Broken) }
}

/// One side of a connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) tx: StreamTx,
    pub(crate) rx: StreamRx,
    closed: [SharedU32; 2],
    /// Own word, then the peer's.
    finished: [SharedU32; 2],
    pub(crate) own: OwnSpace,
    pub(crate) peer: PeerSpace,
    peer_bell: OwnedFd,
    socket: OwnedFd,
    /// Process id of the peer, as reported by the kernel when the connection was made.
    pub(crate) peer_pid: i32,
    _segment: Mapping,
}

/// Parts of a connection.
pub(crate) struct Parts {
    pub(crate) segment: Mapping,
    pub(crate) side: Side,
    pub(crate) own: OwnSpace,
    pub(crate) peer: PeerSpace,
    pub(crate) peer_bell: OwnedFd,
    pub(crate) socket: OwnedFd,
    pub(crate) peer_pid: i32,
}

/// Connect that waits to be accepted.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) segment: Mapping,
    pub(crate) segment_fd: OwnedFd,
    pub(crate) own: OwnSpace,
    pub(crate) socket: OwnedFd,
    pub(crate) peer_pid: i32,
    /// Number of its packet in the hand-off, if there is a hand-off.
    pub(crate) number: u32,
}

fn index(side: Side) -> usize {
    match side {
        Side::Opener => 0,
        Side::Acceptor => 1,
    }
}

impl Link {
    pub(crate) fn new(parts: Parts, sharer: &Sharer) -> Result<Link> {
        let Parts { segment, side, own, peer, peer_bell, socket, peer_pid } = parts;
        let (mine, theirs) = (index(side), index(side.other()));
        let word = |places: [usize; 2], i: usize| -> Result<SharedU32> {
            let place = places.get(i).copied().ok_or(Failure::Broken)?;
            Ok(segment.word32(place)?)
        };
        Ok(Link {
            tx: segment.stream_tx(STREAMS + mine * STREAM_BYTES, sharer.sent, sharer.sent_seen)?,
            rx: segment.stream_rx(STREAMS + theirs * STREAM_BYTES, sharer.received)?,
            closed: [word(CLOSED, mine)?, word(CLOSED, theirs)?],
            finished: [word(FINISHED, mine)?, word(FINISHED, theirs)?],
            own,
            peer,
            peer_bell,
            socket,
            peer_pid,
            _segment: segment,
        })
    }

    /// Returns the user of the process at the other end, as of the time of the connect.
    pub(crate) fn peer_uid(&self) -> Result<u32> {
        Ok(unix::credentials(&self.socket)?.uid)
    }

    /// Notes that the descriptor shows space from the beginning. Called once, by the process that
    /// makes the connection.
    pub(crate) fn begins(&self) {
        self.tx.space().rung();
    }

    /// Returns the memory that each side shows the other.
    pub(crate) fn spaces(&self) -> Spaces<'_> {
        Spaces { own: &self.own, peer: &self.peer }
    }

    pub(crate) fn peer_bell(&self) -> BorrowedFd<'_> {
        self.peer_bell.as_fd()
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the peer has closed. The stream holds all bytes that it sent before.
    #[inline]
    pub(crate) fn peer_closed(&self) -> bool {
        let [_, theirs] = &self.closed;
        theirs.get() != 0
    }

    /// Signals the peer after sending, if it waits for bytes.
    #[inline]
    pub(crate) fn notify_data(&self) {
        let wakeups = self.tx.prepare_wake();
        if wakeups != Wakeups::default() {
            self.ring(wakeups, self.tx.data(), |bell| descriptor::show_data(bell));
        }
    }

    /// Signals the peer after receiving, if it waits for space.
    #[inline]
    pub(crate) fn notify_space(&self) {
        let wakeups = self.rx.prepare_wake();
        if wakeups != Wakeups::default() {
            self.ring(wakeups, self.rx.space(), |bell| descriptor::show_space(bell));
        }
    }

    /// Leaves the polling mode after receiving, in place of signalling the peer and settling the
    /// descriptor. Returns whether that was possible.
    #[inline]
    pub(crate) fn leaves_empty(&self) -> bool {
        let Some(wakeups) = self.rx.stop_polling() else {
            return false;
        };
        if wakeups != Wakeups::default() {
            self.ring(wakeups, self.rx.space(), |bell| descriptor::show_space(bell));
        }
        true
    }

    /// Repeats the signal of a sharer that died while it sent.
    pub(crate) fn resend_data_wakeup(&self) {
        self.ring(self.tx.repeat_wake(), self.tx.data(), |bell| descriptor::show_data(bell));
    }

    /// Repeats the signal of a sharer that died while it received.
    pub(crate) fn resend_space_wakeup(&self) {
        self.ring(self.rx.repeat_wake(), self.rx.space(), |bell| descriptor::show_space(bell));
    }

    #[cold]
    fn ring(&self, wakeups: Wakeups, wake_words: WakeWords, show: impl FnOnce(&OwnedFd)) {
        if wakeups.ring {
            show(&self.peer_bell);
            wake_words.complete_signal();
        }
        if wakeups.wake {
            futex::wake_all(&wake_words.seq());
        }
    }

    /// Reports that an RMA of this side has finished, and wakes the waiters of both sides.
    pub(crate) fn notify_finished(&self) {
        let [mine, _] = &self.finished;
        mine.add(1);
        futex::wake_all(mine);
    }

    /// Waits in a worker until all RMAs of a side up to `ticket` are finished, or no process is
    /// left that could finish them.
    pub(crate) fn wait_for(&self, of_peer: bool, ticket: u64) {
        let word = self.finished(of_peer);
        let sharers = if of_peer { &self.peer.table.sharers } else { &self.own.table.sharers };
        let mut looks = false;
        loop {
            let seen = word.get();
            if sharers.finished(ticket, looks).unwrap_or(true) || (of_peer && self.peer_closed()) {
                return;
            }
            looks = futex::wait(&word, seen, Some(WORKER_LOOK_NS)).is_err();
        }
    }

    /// Returns the word that changes when an RMA of this side, or of the peer, finishes.
    pub(crate) fn finished(&self, of_peer: bool) -> SharedU32 {
        let [mine, theirs] = self.finished;
        if of_peer { theirs } else { mine }
    }

    /// Wakes all threads of this side that wait for any event of this connection.
    pub(crate) fn disturb(&self) {
        for wake_words in [self.rx.data(), self.tx.space()] {
            wake_words.advance_seq();
            futex::wake_all(&wake_words.seq());
        }
        for word in &self.finished {
            word.add(1);
            futex::wake_all(word);
        }
    }

    /// Closes this side gracefully: sent bytes stay readable for the peer.
    pub(crate) fn send_bye(&self) {
        let [mine, _] = &self.closed;
        mine.set(1);
        for wake_words in [self.tx.data(), self.rx.space()] {
            wake_words.advance_seq();
            futex::wake_all(&wake_words.seq());
        }
        self.send_packet(Packet::Bye);
        descriptor::shut(&self.socket);
    }

    /// Ends the connection without notice, because the node is lost.
    pub(crate) fn cut(&self) {
        descriptor::shut(&self.socket);
    }

    /// Sends a packet. Reading detects a peer that has left.
    pub(crate) fn send_packet(&self, packet: Packet) {
        let _ = unix::send(&self.socket, &packet.encode(), &[]);
    }

    /// Drops the answer that made the connection, if the sharer that read it died before it dropped
    /// it.
    pub(crate) fn drop_welcome(&self) {
        let mut buffer = [0; PACKET + 1];
        let first = unix::peek(&self.socket, &mut buffer).map_or(0, |first| first.bytes);
        if buffer.get(..first).and_then(Packet::decode) == Some(Packet::Welcome) {
            let _ = unix::skip(&self.socket);
        }
    }

    /// Reads a packet of the peer, if one has arrived. `Some(None)`: the peer has left, or the
    /// packet is invalid.
    pub(crate) fn receive_packet(&self) -> Option<Option<Packet>> {
        let mut buffer = [0; PACKET + 1];
        match unix::receive(&self.socket, &mut buffer) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
            Err(_) => Some(None),
            Ok(received) => Some(buffer.get(..received.bytes).and_then(Packet::decode)),
        }
    }
}

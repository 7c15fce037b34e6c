// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Fragments: payloads that cross the ring in several records, on both sides. Used for large
//! messages without direct access, or where direct access is slower, and for data of reads.
//!
//! Not here: the decision for this method (`rendezvous`, `rma`).

use scif::ConnId;
use scif_ring::BODY_MAX;
use scif_ring::copy::{Mem, copy_iov, total_len};

use super::envelope::ProtocolError;
use super::ops::{Asked, What};
use super::peer_id::PeerId;
use super::pending::OutStream;
use super::rendezvous::How;
use super::wire::{self, Head, Words};
use super::{Env, EpState};

impl EpState {
    /// Returns the number by which the sender's fragments find incoming message `index`.
    fn receive_number(index: u32, stamp: u32) -> u64 {
        u64::from(stamp) << 32 | u64::from(index)
    }

    /// Requests the payload as fragments. `refused`: this side cannot reach the memory of the
    /// sender.
    pub(super) fn ask_for_stream(&mut self, index: u32, refused: bool) {
        let Some(m) = self.rndv.incoming.get_mut(index) else {
            return;
        };
        m.how = How::Streaming { done: 0 };
        let head = Head::new()
            .word(m.op())
            .word(Self::receive_number(index, m.stamp))
            .word(m.want as u64)
            .word(u64::from(refused));
        let peer = m.arrival.peer;
        self.answer(peer, wire::CTS, head, &[]);
    }

    /// Handles a `CTS`: the receiver requests operation `id` as fragments.
    pub(crate) fn on_cts(
        &mut self,
        peer: PeerId,
        words: &mut Words<'_>,
    ) -> Result<(), ProtocolError> {
        let (id, receive, want, refused) = (words.word(), words.word(), words.word(), words.word());
        if refused != 0 {
            self.peers.at_mut(peer).transfer.streamed = true;
        }
        let Some(op) = self.ops.get_mut(id) else {
            return Ok(());
        };
        let want = usize::try_from(want).map_err(|_| ProtocolError)?;
        let asked = if refused == 0 { Asked::Chosen } else { Asked::Refused };
        // Only the payload of an announced message may be requested: the buffers of reads and
        // fetches are private. It is requested once, with one exception. A receiver that chose the
        // ring may later try a pull, be denied access, and request the payload again
        // (`Asked::Refused`).
        if op.peer != peer
            || want == 0
            || !matches!(op.what, What::Message | What::Tagged)
            || want > op.len
            || op.kept.is_none() && total_len(op.iov.as_slice()) != op.len
            || op.asked >= asked
        {
            return Err(ProtocolError);
        }
        let again = std::mem::replace(&mut op.asked, asked) != Asked::Never;
        let p = self.peers.at_mut(peer);
        if again {
            // The first request is obsolete.
            p.queue
                .streams
                .retain(|stream| !matches!(stream, OutStream::Message { op, .. } if *op == id));
        }
        p.queue.streams.push_back(OutStream::Message { op: id, receive, done: 0, want });
        self.peers.mark_busy(peer);
        Ok(())
    }

    /// Handles a fragment of a payload that this side requested.
    pub(crate) fn on_stream(
        &mut self,
        env: &mut Env<'_>,
        peer: PeerId,
        receive: u64,
        offset: u64,
        body: Mem,
    ) -> Result<(), ProtocolError> {
        let index = u32::try_from(receive & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        let Some(m) = self.rndv.incoming.get_mut(index) else {
            return Ok(());
        };
        if u64::from(m.stamp) != receive >> 32 || m.arrival.peer != peer {
            return Ok(());
        }
        let How::Streaming { done } = &mut m.how else {
            return Err(ProtocolError);
        };
        if offset != *done as u64 || body.len() > m.want - *done {
            return Err(ProtocolError);
        }
        copy_iov(m.target.iov.as_slice(), *done, &[body], 0, body.len());
        *done += body.len();
        if *done == m.want
            && let Some(at) = self.rndv.order.iter().position(|i| *i == index)
        {
            self.end_incoming(env, at, index, 0);
        }
        Ok(())
    }

    /// Pushes fragments to `peer`, the oldest payload first. Returns true if any entered the ring.
    pub(crate) fn flush_streams(&mut self, peer: PeerId, conn: ConnId) -> bool {
        let mut pushed = false;
        loop {
            let p = self.peers.at_mut(peer);
            let Some(stream) = p.queue.streams.front_mut() else {
                return pushed;
            };
            let Some(c) = self.links.conn(conn) else {
                return pushed;
            };
            let (sent, finished) = match stream {
                OutStream::Message { op, receive, done, want } => match self.ops.get_mut(*op) {
                    None => (Ok(0), true),
                    Some(op) => {
                        let n = (*want - *done).min(BODY_MAX);
                        let head = Head::new().word(*receive).word(*done as u64);
                        let sent = match &op.kept {
                            Some(bytes) => {
                                let piece = bytes.get(*done..*done + n).unwrap_or_default();
                                c.tx().push_slice(wire::STREAM, head.as_slice(), piece)
                            }
                            None => c.tx().push(
                                wire::STREAM,
                                head.as_slice(),
                                op.iov.as_slice(),
                                *done,
                                n,
                            ),
                        };
                        if sent.is_ok() {
                            *done += n;
                        }
                        (sent.map(|()| n), *done == *want)
                    }
                },
                OutStream::Read { op, offset, bytes, done } => {
                    let n = (bytes.len() - *done).min(BODY_MAX);
                    let head = Head::new().word(*op).word(*offset + *done as u64);
                    let piece = bytes.get(*done..*done + n).unwrap_or_default();
                    let sent = c.tx().push_slice(wire::READ_DATA, head.as_slice(), piece);
                    if sent.is_ok() {
                        *done += n;
                    }
                    (sent.map(|()| n), *done == bytes.len())
                }
            };
            match sent {
                Ok(n) => {
                    pushed = true;
                    self.stats.ring.add(n);
                    c.notify();
                }
                Err(_) => return pushed,
            }
            if finished {
                p.queue.end_stream();
            }
        }
    }
}

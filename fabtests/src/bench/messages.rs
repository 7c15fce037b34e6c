// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Messages, tagged and not: latency, bandwidth, rate, and bandwidth between buffers that are used
//! meanwhile.
//!
//! The loops follow the pingpong and bw programs of fabtests. Messages up to the inject size are
//! injected. A sender waits for its completions, and after each window for a reply of eight bytes.

use scif_fabtests::fi::Buf;
use scif_fabtests::harness::Outcome;

use super::os::now_ns;
use super::port::Port;
use super::protocol::WINDOW;
use super::segment::Use;
use super::shm_barrier::ShmBarrier;
use super::touch;

const TAG: u64 = 0x5c1f;

/// Messages of one size on a port.
pub(crate) struct Messages<'a> {
    pub(crate) port: &'a Port,
    pub(crate) barrier: &'a ShmBarrier,
    pub(crate) tagged: bool,
    pub(crate) size: usize,
}

impl Messages<'_> {
    /// Sends a message. Returns the number of completions it will produce.
    #[inline]
    fn send(&self, buf: Buf) -> Outcome<u64> {
        let Port { ep, peer, inject, .. } = self.port;
        let injected = buf.len() <= *inject;
        self.port.post(|| match (self.tagged, injected) {
            (true, true) => ep.tinject(buf, *peer, TAG),
            (true, false) => ep.tsend(buf, *peer, TAG, 1),
            (false, true) => ep.inject(buf, *peer),
            (false, false) => ep.send(buf, *peer, 1),
        })?;
        Ok(u64::from(!injected))
    }

    #[inline]
    fn receive(&self, buf: Buf) -> Outcome {
        let Port { ep, .. } = self.port;
        let anybody = libfabric_sys::FI_ADDR_UNSPEC;
        self.port.post(|| {
            if self.tagged { ep.trecv(buf, anybody, TAG, 0, 2) } else { ep.recv(buf, anybody, 2) }
        })
    }

    fn meet(&self) -> Outcome {
        self.barrier.meet(|| self.port.progress())
    }

    fn buffers(&self) -> (Buf, Buf) {
        (self.port.out.sub(0, self.size), self.port.into.sub(0, self.size))
    }

    /// Time in nanoseconds of `count` round trips after `warm` untimed ones.
    pub(crate) fn pingpong(&self, warm: u64, count: u64) -> Outcome<u64> {
        let (out, into) = self.buffers();
        let (mut sent, mut received) = (self.port.sent(), self.port.received());
        self.receive(into)?;
        self.meet()?;
        let mut start = now_ns();
        for turn in 0..warm + count {
            if turn == warm {
                start = now_ns();
            }
            if self.barrier.rank == 0 {
                sent += self.send(out)?;
                self.port.wait_sent(sent)?;
            }
            received += 1;
            self.port.wait_received(received)?;
            if turn + 1 < warm + count {
                self.receive(into)?;
            }
            if self.barrier.rank != 0 {
                sent += self.send(out)?;
                self.port.wait_sent(sent)?;
            }
        }
        let end = now_ns();
        self.meet()?;
        Ok(end - start)
    }

    /// Time in nanoseconds of `count` windows from rank 0 to rank 1 after `warm` untimed ones.
    pub(crate) fn stream(&self, warm: u64, count: u64) -> Outcome<u64> {
        if self.barrier.rank == 0 {
            self.stream_out(warm, count)
        } else {
            self.stream_in(warm + count)
        }
    }

    fn stream_out(&self, warm: u64, count: u64) -> Outcome<u64> {
        let (out, _) = self.buffers();
        let answer = self.port.into.sub(0, 8);
        let (mut sent, mut received) = (self.port.sent(), self.port.received());
        self.meet()?;
        let mut start = now_ns();
        for window in 0..warm + count {
            if window == warm {
                start = now_ns();
            }
            self.receive(answer)?;
            for _ in 0..WINDOW {
                sent += self.send(out)?;
            }
            self.port.wait_sent(sent)?;
            received += 1;
            self.port.wait_received(received)?;
        }
        let end = now_ns();
        self.meet()?;
        Ok(end - start)
    }

    fn stream_in(&self, count: u64) -> Outcome<u64> {
        let (_, into) = self.buffers();
        let answer = self.port.out.sub(0, 8);
        let (mut sent, mut received) = (self.port.sent(), self.port.received());
        self.meet()?;
        for _ in 0..count {
            for _ in 0..WINDOW {
                self.receive(into)?;
            }
            received += WINDOW as u64;
            self.port.wait_received(received)?;
            sent += self.send(answer)?;
            self.port.wait_sent(sent)?;
        }
        self.meet()?;
        Ok(0)
    }

    /// Time in nanoseconds of `count` single messages, each from its send call to its completion at
    /// the receiver. Untimed, the sender writes its whole buffer before each, and the receiver
    /// reads its whole buffer after each.
    pub(crate) fn touched(&self, warm: u64, count: u64) -> Outcome<u64> {
        let (out, into) = self.buffers();
        let (mut sent, mut received) = (self.port.sent(), self.port.received());
        let sender = self.barrier.rank == 0;
        let (began, ended) =
            (self.barrier.segment.word(Use::Start0), self.barrier.segment.word(Use::End1));
        let mut total = 0;
        for turn in 0..warm + count {
            if sender {
                touch::write(out, turn);
            } else {
                self.receive(into)?;
            }
            self.meet()?;
            if sender {
                began.set(now_ns());
                sent += self.send(out)?;
                self.port.wait_sent(sent)?;
            } else {
                received += 1;
                self.port.wait_received(received)?;
                ended.set(now_ns());
                touch::read(into);
            }
            self.meet()?;
            if turn >= warm {
                total += ended.get().saturating_sub(began.get());
            }
        }
        Ok(total)
    }
}

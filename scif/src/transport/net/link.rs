// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One connection over a network, as the engine sees it.
//!
//! Not about its records and messages (`stream`, `mux`).

use scif_ring::Mem;

use super::outside::OutsideBodies;
use super::shared_mux::SharedMux;
use crate::outside_body::{LongSend, OutsideBody, OutsideBytes};
use crate::remote_reads::{ReadBegun, ReadState, ReadSupport, RemoteReads, WireMemory};
use crate::sys::errno::keep_errno;
use crate::sys::fork::Maker;
use crate::sys::time::now_ns;
use crate::transport::{CloseKind, Link, LinkUpdate};

#[derive(Debug)]
pub(super) struct NetLink {
    mux: SharedMux,
    token: u64,
    /// Bodies outside the ring, which may be read after the end of the connection.
    bodies: OutsideBodies,
    bytes: OutsideBytes,
    maker: Maker,
}

impl NetLink {
    pub(super) fn new(mux: &SharedMux, token: u64) -> NetLink {
        let (mux, bodies) = (mux.clone(), OutsideBodies::default());
        NetLink { mux, token, bodies, bytes: OutsideBytes::default(), maker: Maker::here() }
    }
}

// Calls of the network change errno, so each entry point restores it.
impl Link for NetLink {
    fn next_event(&mut self) -> Option<LinkUpdate> {
        keep_errno(|| self.mux.lock().next_event(self.token, &mut self.bodies))
    }

    fn unsent(&self) -> bool {
        false
    }

    fn wake(&mut self) {
        keep_errno(|| self.mux.lock().send(self.token));
    }

    fn is_direct(&self) -> bool {
        false
    }

    fn send_long(
        &mut self,
        record: (u8, &[u8]),
        len: usize,
        append: &mut dyn FnMut(&mut Vec<u8>),
    ) -> LongSend {
        let sent = keep_errno(|| self.mux.lock().send_long(self.token, record, len, append));
        if sent == LongSend::Sent {
            self.bytes.sent += len as u64;
        }
        sent
    }

    fn take_body(&mut self, number: u64) -> Option<OutsideBody> {
        self.mux.lock().move_bodies(self.token, &mut self.bodies);
        let body = self.bodies.take(number)?;
        self.bytes.received += body.bytes().len() as u64;
        Some(body)
    }

    fn outside_bytes(&self) -> OutsideBytes {
        self.bytes
    }

    fn give_back(&mut self, body: OutsideBody) {
        self.mux.lock().wire().give_back(body.into_buffer());
    }

    fn probe(&mut self) {
        keep_errno(|| self.mux.lock().probe(self.token, now_ns()));
    }

    fn remote_reads(&mut self) -> Option<&mut dyn RemoteReads> {
        Some(self)
    }

    fn close(&mut self, how: CloseKind) {
        // A thread of the parent may have held the lock when a child was forked.
        if !self.maker.is_ancestor() {
            keep_errno(|| {
                let mut mux = self.mux.lock();
                mux.give_back(&mut self.bodies);
                mux.close(self.token, how);
            });
        }
    }
}

impl RemoteReads for NetLink {
    fn support(&self) -> ReadSupport {
        self.mux.lock().read_support()
    }

    fn expose(&mut self, range: &Mem) -> Option<WireMemory> {
        keep_errno(|| self.mux.lock().expose(self.token, range))
    }

    fn read(&mut self, from: WireMemory, to: &Mem) -> ReadBegun {
        keep_errno(|| self.mux.lock().read(self.token, from, to))
    }

    fn state(&mut self, number: u64) -> ReadState {
        self.mux.lock().read_state(number)
    }

    fn finish(&mut self, number: u64, end_ns: u64) {
        keep_errno(|| self.mux.lock().finish_read(self.token, number, end_ns));
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One connection over a network, as the engine sees it.
//!
//! Not about its records and messages (`stream`, `desk`).

use std::sync::{Arc, Mutex};

use scif_ring::Mem;

use super::desk::NetDesk;
use crate::remote_reads::{ReadBegun, ReadState, RemoteReads, WireMemory};
use crate::sys::errno::{keep_errno, lock};
use crate::sys::fork::Maker;
use crate::sys::time::now_ns;
use crate::transport::{CloseKind, Link, LinkUpdate};

#[derive(Debug)]
pub(super) struct NetLink {
    desk: Arc<Mutex<NetDesk>>,
    token: u64,
    maker: Maker,
}

impl NetLink {
    pub(super) fn new(desk: &Arc<Mutex<NetDesk>>, token: u64) -> NetLink {
        NetLink { desk: Arc::clone(desk), token, maker: Maker::here() }
    }
}

// Calls of the network change errno, so each entry point restores it.
impl Link for NetLink {
    fn next_event(&mut self) -> Option<LinkUpdate> {
        keep_errno(|| lock(&self.desk).next_event(self.token))
    }

    fn unsent(&self) -> bool {
        false
    }

    fn wake(&mut self) {
        keep_errno(|| lock(&self.desk).flush(self.token));
    }

    fn is_direct(&self) -> bool {
        false
    }

    fn probe(&mut self) {
        keep_errno(|| lock(&self.desk).probe(self.token, now_ns()));
    }

    fn remote_reads(&mut self) -> Option<&mut dyn RemoteReads> {
        Some(self)
    }

    fn close(&mut self, how: CloseKind) {
        // A thread of the parent may have held the lock when a child was forked.
        if !self.maker.is_ancestor() {
            keep_errno(|| lock(&self.desk).close(self.token, how));
        }
    }
}

impl RemoteReads for NetLink {
    fn expose(&mut self, range: &Mem) -> Option<WireMemory> {
        keep_errno(|| lock(&self.desk).expose(self.token, range))
    }

    fn read(&mut self, from: WireMemory, to: &Mem) -> ReadBegun {
        keep_errno(|| lock(&self.desk).read(self.token, from, to))
    }

    fn state(&mut self, number: u64) -> ReadState {
        lock(&self.desk).read_state(number)
    }

    fn finish(&mut self, number: u64, end_ns: u64) {
        keep_errno(|| lock(&self.desk).finish_read(number, end_ns));
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Reads of payloads that the peer of a connection has lent: `scif_vreadfrom` on the key channel.
//!
//! The CPU copies a part in each check of the state, so that a long message delays no other peer.
//! DMA copies all of it, and a fence reports the end. Not about the loans (`key_server`).

use std::collections::HashMap;
use std::time::Duration;

use scif_ring::Mem;

use super::key_channel::KeyChannel;
use crate::peer_windows::PeerWindows;
use crate::remote_reads::{ReadBegun, ReadState, WireMemory};
use crate::sys::time::now_ns;
use crate::window_calls::{RmaMode, RmaWay};

/// Bytes that one check of a read copies at most. With more, a long message delays the others.
const READ_STEP: usize = 4 << 20;
/// Pause between two looks at the end of a read by DMA that must end.
const FINISH_PAUSE: Duration = Duration::from_micros(20);

/// Read in progress.
#[derive(Debug)]
pub(super) struct LentRead {
    far: i64,
    to: Mem,
    /// Bytes that the CPU has copied.
    done: usize,
    /// Number of the RMA that copies all bytes, if DMA does.
    dma: Option<u64>,
}

/// Reads of one connection, by their numbers.
#[derive(Debug, Default)]
pub(super) struct LentReads {
    open: HashMap<u64, LentRead>,
    last: u64,
}

impl LentReads {
    /// Begins to read memory that the peer has lent to this channel.
    pub(super) fn begin(
        &mut self,
        channel: &mut KeyChannel,
        from: WireMemory,
        to: &Mem,
    ) -> ReadBegun {
        let Ok(far) = i64::try_from(from.addr) else { return ReadBegun::Refused };
        if to.is_empty() || !channel.is_open() {
            return ReadBegun::Refused;
        }
        let mut dma = None;
        if channel.mode(RmaWay::Read, to.len()) == RmaMode::Dma {
            match channel.start_at(RmaWay::Read, to, far, RmaMode::Dma) {
                Ok(number) => dma = number,
                Err(failure) => {
                    log::debug!("scif_vreadfrom of a payload: {failure}; it crosses the ring");
                    return ReadBegun::Refused;
                }
            }
        }
        self.last += 1;
        self.open.insert(self.last, LentRead { far, to: *to, done: 0, dma });
        ReadBegun::Reading(self.last)
    }

    /// Advances a read and returns its state. The number of one that has ended is forgotten.
    pub(super) fn state(&mut self, channel: &mut KeyChannel, number: u64) -> ReadState {
        let Some(mut read) = self.open.remove(&number) else { return ReadState::Failed };
        let state = match read.dma {
            Some(dma) => dma_state(channel, dma),
            None => read.copy_part(channel),
        };
        if state == ReadState::Reading {
            self.open.insert(number, read);
        }
        state
    }

    /// Ends a read: by DMA after its end, or at `end_ns` with the channel.
    pub(super) fn finish(&mut self, channel: &mut KeyChannel, number: u64, end_ns: u64) {
        let Some(dma) = self.open.remove(&number).and_then(|read| read.dma) else { return };
        while dma_state(channel, dma) == ReadState::Reading {
            if now_ns() >= end_ns {
                return channel.lose();
            }
            std::thread::sleep(FINISH_PAUSE);
        }
    }
}

impl LentRead {
    fn copy_part(&mut self, channel: &mut KeyChannel) -> ReadState {
        let n = (self.to.len() - self.done).min(READ_STEP);
        let far = self.far.checked_add_unsigned(self.done as u64);
        let (Some(part), Some(far)) = (self.to.sub(self.done, n), far) else {
            return ReadState::Failed;
        };
        if let Err(failure) = channel.start_at(RmaWay::Read, &part, far, RmaMode::Cpu) {
            log::debug!("scif_vreadfrom of a payload: {failure}; it crosses the ring");
            return ReadState::Failed;
        }
        self.done += n;
        if self.done == self.to.len() { ReadState::Done } else { ReadState::Reading }
    }
}

/// Returns the state of an RMA by DMA, and orders a fence where one is due.
fn dma_state(channel: &mut KeyChannel, dma: u64) -> ReadState {
    if channel.ended() >= dma {
        return ReadState::Done;
    }
    let is_ordered = channel.fence().is_ok();
    match channel.ended() >= dma {
        true => ReadState::Done,
        // A lost channel has ended its RMAs before.
        false if is_ordered => ReadState::Reading,
        false => ReadState::Failed,
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Arguments of the operations of an endpoint, and its attributes.

use libfabric_sys as fi;
use scif_ring::copy::Mem;

use crate::base::atomic_ops::element::AtomicKind;
use crate::base::env::RmaPath;

/// Attributes and bindings of an endpoint.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "plain configuration")]
pub(crate) struct EpConfig {
    pub caps: u64,
    /// Message orders of the transmit attributes that the application relies on.
    pub msg_order: u64,
    pub tx_size: usize,
    pub rx_size: usize,
    pub inject_size: usize,
    /// Index of the bound address vector.
    pub av: u32,
    pub tx_cq: Option<u32>,
    pub rx_cq: Option<u32>,
    pub cntr_send: Option<u32>,
    pub cntr_recv: Option<u32>,
    pub cntr_read: Option<u32>,
    pub cntr_write: Option<u32>,
    pub cntr_remote_read: Option<u32>,
    pub cntr_remote_write: Option<u32>,
    /// Free bytes below which a multi-receive buffer is released.
    pub min_multi_recv: usize,
    pub rma_event: bool,
    /// Path of short writes.
    pub rma_path: RmaPath,
    /// Identifier of this host in addresses.
    pub host: u32,
    /// Whether completions report source addresses (`FI_SOURCE`).
    pub source: bool,
    /// Whether receives honour source addresses (`FI_DIRECTED_RECV`).
    pub directed: bool,
    /// `FI_COMPLETION` if every receive completes, because the queue was not bound selectively;
    /// else 0.
    pub rx_always: u64,
    /// Shared receive context that supplies the receives.
    pub srx: Option<u32>,
    /// Bytes of the message prefix before every payload. Lengths of received messages include them.
    pub prefix: usize,
    /// Whether [`EpConfig::srx`] stands for a context of a peer provider. That context is called
    /// only while the provider lets this endpoint make progress.
    pub peer: bool,
    /// Whether the endpoint has exactly one peer, by connection (`FI_EP_MSG`).
    pub connected: bool,
    /// Whether operations promise transmission only (`FI_EP_DGRAM`): a send waits for no receive.
    pub datagram: bool,
    /// Whether this is a receive context of a scalable endpoint. A source is then a whole endpoint
    /// (`group`).
    pub grouped: bool,
    /// Whether every message needs a check that the fast path omits.
    pub force_slow_path: bool,
}

impl EpConfig {
    /// Whether the endpoint connects to the sources of directed receives (`source_watch`).
    pub(crate) fn watches_sources(&self) -> bool {
        !self.datagram && !self.connected
    }

    /// Whether the endpoint was bound to this counter.
    pub(crate) fn counts_in(&self, cntr: u32) -> bool {
        [
            self.cntr_send,
            self.cntr_recv,
            self.cntr_read,
            self.cntr_write,
            self.cntr_remote_read,
            self.cntr_remote_write,
        ]
        .contains(&Some(cntr))
    }
}

/// Completion levels that wait for the target: the message was placed in its receive buffer or
/// discarded, or the access was executed. For messages this is more than `FI_DELIVERY_COMPLETE`
/// requires.
pub(crate) const AWAITS_TARGET: u64 = fi::FI_DELIVERY_COMPLETE | fi::FI_MATCH_COMPLETE;

/// Message to send. `flags` are final: `FI_COMPLETION` requests a success completion. `FI_INJECT`
/// makes the buffer reusable when the call returns.
#[derive(Debug)]
pub(crate) struct SendArgs<'a> {
    pub iov: &'a [Mem],
    pub tag: Option<u64>,
    pub data: Option<u64>,
    pub dest: u64,
    pub context: usize,
    pub flags: u64,
}

/// Receive to post, or a `FI_PEEK` / `FI_CLAIM` / `FI_DISCARD` request. `tag` is (tag, ignore).
#[derive(Debug)]
pub(crate) struct RecvArgs<'a> {
    pub iov: &'a [Mem],
    pub src: u64,
    pub tag: Option<(u64, u64)>,
    pub context: usize,
    pub flags: u64,
}

/// Range of a peer's registered memory; `addr` follows the addressing mode of the region.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RmaIov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

/// RMA operation to start.
#[derive(Debug)]
pub(crate) struct RmaArgs<'a> {
    pub write: bool,
    pub iov: &'a [Mem],
    pub rma: &'a [RmaIov],
    pub dest: u64,
    pub data: Option<u64>,
    pub context: usize,
    pub flags: u64,
}

/// Effect of an access on the memory of its target, which selects the counters of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Read,
    Write,
    /// Atomic that returns the old value and may store another one.
    ReadWrite,
}

impl Effect {
    /// Returns the effect of an atomic with operation `op`; `fetches`: it returns the old value.
    pub(crate) fn of_atomic(fetches: bool, op: u32) -> Effect {
        match (fetches, op) {
            (false, _) => Effect::Write,
            (true, fi::FI_ATOMIC_READ) => Effect::Read,
            (true, _) => Effect::ReadWrite,
        }
    }

    /// Returns the counters of an object that count the access, each of them once.
    pub(crate) fn counters(self, read: Option<u32>, write: Option<u32>) -> [Option<u32>; 2] {
        match self {
            Effect::Read => [read, None],
            Effect::Write => [None, write],
            Effect::ReadWrite => [read, write.filter(|_| read != write)],
        }
    }
}

/// Atomic operation; all lengths in bytes, all lists of equal total length.
#[derive(Debug)]
pub(crate) struct AtomicArgs<'a> {
    pub kind: AtomicKind,
    pub op: u32,
    pub datatype: u32,
    pub operand: &'a [Mem],
    pub compare: &'a [Mem],
    pub result: &'a [Mem],
    pub rma: &'a [RmaIov],
    pub dest: u64,
    pub data: Option<u64>,
    pub context: usize,
    pub flags: u64,
}

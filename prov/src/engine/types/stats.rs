// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Counters behind `FI_SCIF_STATS`, by data path. They prove that traffic went through this
//! endpoint.

use scif::{CarriedCounts, OpCount, WindowCounts};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Operations and bytes of one path.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct Path {
    pub ops: u64,
    pub bytes: u64,
}

impl Path {
    #[inline]
    pub(crate) fn add(&mut self, bytes: usize) {
        self.ops += 1;
        self.bytes += bytes as u64;
    }
}

/// Counters of RMA on windows of peers.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct WindowStats {
    /// Operations that the CPU executed.
    pub cpu: Path,
    /// Operations that DMA executed.
    pub dma: Path,
}

/// Counters of writes and reads by the ring that this side may withdraw.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct WriteStats {
    pub posted: Path,
    /// Records of them that this side executed after all.
    pub withdrawn: Path,
}

/// Counters of direct copies that the kernel denies.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct DenialStats {
    /// Messages and RMA that went through the ring because the kernel denied direct copies, or
    /// refused this one.
    pub fallbacks: u64,
    /// Peers with which the kernel has denied direct copies.
    pub no_direct: u64,
}

/// Counters of operations with peers on other hosts, as the network counts them.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct ForeignStats {
    /// Messages that were given to the network.
    pub sent: Path,
    /// Messages that have arrived.
    pub received: Path,
    /// RMA and atomics of this side.
    pub rma: Path,
    /// Reads of memory that the network executes for this side.
    pub reads: Path,
}

impl From<OpCount> for Path {
    fn from(count: OpCount) -> Path {
        Path { ops: count.ops, bytes: count.bytes }
    }
}

impl From<CarriedCounts> for ForeignStats {
    fn from(counts: CarriedCounts) -> ForeignStats {
        let CarriedCounts { sent, received, one_sided, reads } = counts;
        ForeignStats {
            sent: sent.into(),
            received: received.into(),
            rma: one_sided.into(),
            reads: reads.into(),
        }
    }
}

/// Plain counters, one set for each endpoint, written under the domain lock. Other processes read
/// them: `scif::monitor::layout` names them in this order.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes)]
#[repr(C)]
pub(crate) struct Stats {
    /// Messages sent, with the size of their payload.
    pub sent: Path,
    /// Messages received into a buffer of the application.
    pub received: Path,
    /// Payloads inline in their records.
    pub inline: Path,
    /// Payloads in bodies of records: eager messages, fragments, RMA executed by the target.
    pub ring: Path,
    /// Copies from or to pages that both processes map.
    pub mapped: Path,
    /// Regions of shared memory of peers that this side has mapped.
    pub maps: Path,
    /// Copies by `process_vm_readv`/`writev`, one operation for each call.
    pub process_vm: Path,
    /// Parts of large messages that this side copied in cooperative copies.
    pub coop_copy: Path,
    /// RMA and atomics initiated.
    pub rma: Path,
    pub atomics: Path,
    pub writes: WriteStats,
    pub denials: DenialStats,
    /// Unexpected messages.
    pub unexpected: u64,
    /// Peers that died.
    pub lost_peers: u64,
    /// RMA on windows, over the calls of `scif.h`.
    pub windows: WindowStats,
    pub foreign: ForeignStats,
}

const _: () = assert!(size_of::<Stats>() == 8 * scif::monitor::layout::COUNTERS.len());

impl Stats {
    /// Returns the counters in one line. Each value follows its name, so that tools can parse the
    /// line.
    pub(crate) fn line(&self, endpoint: &str, peers: usize, counts: WindowCounts) -> String {
        let p = |name: &str, path: &Path| format!(" {name} {}/{}", path.ops, path.bytes);
        format!(
            "scif: endpoint {endpoint} peers {peers}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{} \
            stream {}/{} fences {} windows {} unexpected {} fallbacks {} no_direct {} \
            (operations/bytes)",
            p("sent", &self.sent),
            p("received", &self.received),
            p("inline", &self.inline),
            p("ring", &self.ring),
            p("mapped", &self.mapped),
            p("maps", &self.maps),
            p("process_vm", &self.process_vm),
            p("both_sides", &self.coop_copy),
            p("rma", &self.rma),
            p("atomics", &self.atomics),
            p("posted", &self.writes.posted),
            p("withdrawn", &self.writes.withdrawn),
            p("window_cpu", &self.windows.cpu),
            p("window_dma", &self.windows.dma),
            p("foreign_sent", &self.foreign.sent),
            p("foreign_received", &self.foreign.received),
            p("foreign_rma", &self.foreign.rma),
            p("network_reads", &self.foreign.reads),
            counts.stream_sends,
            counts.stream_bytes,
            counts.fences,
            counts.registered,
            self.unexpected,
            self.denials.fallbacks,
            self.denials.no_direct,
        )
    }
}

#[cfg(test)]
mod tests {
    use scif::monitor::layout::COUNTERS;

    use super::*;

    #[test]
    fn the_names_of_the_counters_are_in_order() {
        let words: Vec<u8> = (1..=COUNTERS.len() as u64).flat_map(u64::to_ne_bytes).collect();
        let stats = Stats::read_from_bytes(&words).unwrap();
        let place = |name: &str| COUNTERS.iter().position(|counter| *counter == name).unwrap() + 1;
        let paths = [
            ("sent", stats.sent),
            ("received", stats.received),
            ("inline", stats.inline),
            ("ring", stats.ring),
            ("mapped", stats.mapped),
            ("maps", stats.maps),
            ("process_vm", stats.process_vm),
            ("coop_copy", stats.coop_copy),
            ("rma", stats.rma),
            ("atomics", stats.atomics),
            ("posted", stats.writes.posted),
            ("withdrawn", stats.writes.withdrawn),
            ("window_cpu", stats.windows.cpu),
            ("window_dma", stats.windows.dma),
            ("foreign_sent", stats.foreign.sent),
            ("foreign_received", stats.foreign.received),
            ("foreign_rma", stats.foreign.rma),
            ("network_reads", stats.foreign.reads),
        ];
        for (name, path) in paths {
            assert_eq!(path.ops, place(&format!("{name}_ops")) as u64, "{name}");
            assert_eq!(path.bytes, place(&format!("{name}_bytes")) as u64, "{name}");
        }
        let others = [
            ("fallbacks", stats.denials.fallbacks),
            ("no_direct", stats.denials.no_direct),
            ("unexpected", stats.unexpected),
            ("lost_peers", stats.lost_peers),
        ];
        for (name, value) in others {
            assert_eq!(value, place(name) as u64, "{name}");
        }
    }
}

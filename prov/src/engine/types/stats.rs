// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Counters behind `FI_SCIF_STATS`, by data path. They prove that traffic went through this
//! endpoint.

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
    /// Writes by the ring that the target executes without a reply, and those of them that this
    /// side executed after all.
    pub posted: Path,
    pub withdrawn: Path,
    /// Messages and RMA that went through the ring because the kernel denied direct copies, or
    /// refused this one.
    pub fallbacks: u64,
    /// Peers with which the kernel has denied direct copies.
    pub no_direct: u64,
    /// Unexpected messages.
    pub unexpected: u64,
    /// Peers that died.
    pub lost_peers: u64,
}

const _: () = assert!(size_of::<Stats>() == 8 * scif::monitor::layout::COUNTERS.len());

impl Stats {
    /// Returns the counters in one line. Each value follows its name, so that tools can parse the
    /// line.
    pub(crate) fn line(&self, endpoint: &str, peers: usize) -> String {
        let p = |name: &str, path: &Path| format!(" {name} {}/{}", path.ops, path.bytes);
        format!(
            "scif: endpoint {endpoint} peers {peers}{}{}{}{}{}{}{}{}{}{}{}{} unexpected {} \
            fallbacks {} no_direct {} (operations/bytes)",
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
            p("posted", &self.posted),
            p("withdrawn", &self.withdrawn),
            self.unexpected,
            self.fallbacks,
            self.no_direct,
        )
    }
}

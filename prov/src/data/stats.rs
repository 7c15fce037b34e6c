// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! What went which way: the counters behind `FI_SCIF_STATS`, the proof that traffic went through this endpoint.

/// Operations and bytes of one path.
#[derive(Clone, Copy, Debug, Default)]
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

/// Plain counters, one set per endpoint, written under the domain's gate.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    /// Messages sent, by size on the way out.
    pub sent: Path,
    /// Messages received into a user buffer.
    pub received: Path,
    /// Payload carried in the record's own cache line.
    pub inline: Path,
    /// Payload carried through the ring's data area (eager, streams, RMA executed by the target).
    pub ring: Path,
    /// Copied straight from or to pages both processes map.
    pub mapped: Path,
    /// Copied by `process_vm_readv`/`writev`, one operation a call.
    pub process_vm: Path,
    /// Parts of large messages this side copied while the other side copied too.
    pub both_sides: Path,
    /// RMA and atomics initiated.
    pub rma: Path,
    pub atomics: Path,
    /// Messages and RMA that would have been copied directly and went through the ring, since the kernel denies it for
    /// their peer or has refused this copy.
    pub fallbacks: u64,
    /// Peers with which the kernel has denied direct copies.
    pub no_direct: u64,
    /// Messages that came before their receive.
    pub unexpected: u64,
}

impl Stats {
    /// One line, field names first, so that it can be cut by tools.
    pub(crate) fn line(&self, endpoint: &str, peers: usize) -> String {
        let p = |name: &str, path: &Path| format!(" {name} {}/{}", path.ops, path.bytes);
        format!(
            "scif: endpoint {endpoint} peers {peers}{}{}{}{}{}{}{}{}{} unexpected {} fallbacks {} no_direct {} (operations/bytes)",
            p("sent", &self.sent),
            p("received", &self.received),
            p("inline", &self.inline),
            p("ring", &self.ring),
            p("mapped", &self.mapped),
            p("process_vm", &self.process_vm),
            p("both_sides", &self.both_sides),
            p("rma", &self.rma),
            p("atomics", &self.atomics),
            self.unexpected,
            self.fallbacks,
            self.no_direct,
        )
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Selection of the method for a large message that arrives alone: cooperative copy, or fragments
//! through the ring.
//!
//! If two cores are distant and the program touches its buffers between messages, cooperative copy
//! is slowest. Each line that a core writes into the memory of the other is fetched from the cache
//! of that core, and read back later. The ring, written with non-temporal stores, is then fastest.
//! With untouched buffers the opposite holds. Only the time distinguishes the cases, so both
//! methods are tried at intervals (`scif_ring::adaptive`). The measure is the cycle time: from the
//! end of a message to the end of the next, work of the program on its buffers included.
//!
//! The ring needs the sender. It is tried only while senders are found inside the library, and a
//! message that stalls is pulled. Not here: the methods themselves (`rendezvous`, `fragment`).

use scif_ring::adaptive::Prober;

use crate::engine::types::rts::BOTH_SIDES_MIN;

/// Number of length classes, by powers of two. The last one holds all longer messages.
const CLASSES: usize = 10;
/// Divisor of the cycle time. Fragments must save at least this part of it (5 %), since they occupy
/// the sender.
const MIN_GAIN: u64 = 20;

/// Protocol that moves the payload of a rendezvous.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RndvProto {
    /// Cooperative copy.
    CoopCopy,
    /// Fragments: the sender writes the payload into the ring.
    Fragments,
}

/// State of one length class.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    /// Choice between cooperative copy and, as the alternative, fragments.
    prober: Prober,
    /// End of the last message in nanoseconds, if nothing disturbed the cycle since.
    last_end_ns: Option<u64>,
}

/// Selector of the protocol for the messages of one peer.
#[derive(Debug, Default)]
pub(crate) struct RndvSelector([Class; CLASSES]);

impl RndvSelector {
    fn class(&mut self, len: usize) -> Option<&mut Class> {
        let class = (len / BOTH_SIDES_MIN).checked_ilog2()?;
        self.0.get_mut((class as usize).min(CLASSES - 1))
    }

    /// Selects the protocol for a message of `len` bytes. `alone`: no other message is being
    /// fetched. Returns `None` without a choice; the end of such a message is not reported.
    pub(crate) fn choose(&mut self, len: usize, alone: bool) -> Option<RndvProto> {
        if !alone {
            self.interrupted(len);
            return None;
        }
        Some(if self.class(len)?.prober.takes_alternative() {
            RndvProto::Fragments
        } else {
            RndvProto::CoopCopy
        })
    }

    /// Notes that a message has arrived by the selected protocol. `helped`: its sender took part.
    pub(crate) fn ended(&mut self, len: usize, proto: RndvProto, helped: bool, now_ns: u64) {
        let Some(class) = self.class(len) else { return };
        let last = class.last_end_ns.replace(now_ns);
        if !helped {
            return class.prober.postpone();
        }
        // The first message after a disturbance has no cycle. No probe is running then.
        let cycle = last.map_or(0, |last| now_ns.saturating_sub(last));
        let cost = match proto {
            RndvProto::CoopCopy => cycle,
            RndvProto::Fragments => cycle + cycle / MIN_GAIN,
        };
        class.prober.record(u32::try_from(cost).unwrap_or(u32::MAX));
    }

    /// Notes that a message stalled in the ring and was pulled: its sender was outside the library.
    pub(crate) fn on_sender_stalled(&mut self, len: usize) {
        if let Some(class) = self.class(len) {
            class.prober.fall_back();
        }
    }

    /// Notes that a message failed or needed another method.
    pub(crate) fn interrupted(&mut self, len: usize) {
        if let Some(class) = self.class(len) {
            class.last_end_ns = None;
            class.prober.interrupt();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 64 * 1024;
    /// Messages after which the first probe has certainly ended.
    const FIRST_PROBE: usize = 80;

    /// Sends messages of one length that arrive alone, with a fixed time per protocol. Returns how
    /// many were fragmented.
    fn run(
        selector: &mut RndvSelector,
        count: usize,
        [copy, ring]: [u64; 2],
        helped: bool,
    ) -> usize {
        let (mut now, mut fragmented) = (1_000_000, 0);
        for _ in 0..count {
            let proto = selector.choose(LEN, true).unwrap();
            now += if proto == RndvProto::Fragments { ring } else { copy };
            fragmented += usize::from(proto == RndvProto::Fragments);
            selector.ended(LEN, proto, helped, now);
        }
        fragmented
    }

    #[test]
    fn the_faster_protocol_is_taken() {
        for (times, proto) in [
            ([20_000, 9_000], RndvProto::Fragments),
            ([20_000, 19_500], RndvProto::CoopCopy),
            ([6_000, 9_000], RndvProto::CoopCopy),
            ([0, 0], RndvProto::CoopCopy),
        ] {
            let mut selector = RndvSelector::default();
            assert!(run(&mut selector, FIRST_PROBE, times, true) > 0);
            assert_eq!(selector.choose(LEN, true), Some(proto), "{times:?}");
        }
    }

    #[test]
    fn fragments_need_the_sender() {
        let mut selector = RndvSelector::default();
        assert_eq!(run(&mut selector, 10_000, [20_000, 9_000], false), 0);
        run(&mut selector, FIRST_PROBE, [20_000, 9_000], true);
        assert_eq!(selector.choose(LEN, true), Some(RndvProto::Fragments));
        selector.on_sender_stalled(LEN);
        assert_eq!(run(&mut selector, 4 * FIRST_PROBE, [20_000, 9_000], true), 0);
    }

    #[test]
    fn messages_in_a_batch_keep_the_protocol() {
        let mut selector = RndvSelector::default();
        while selector.choose(LEN, true) == Some(RndvProto::CoopCopy) {
            run(&mut selector, 1, [20_000, 9_000], true);
        }
        assert_eq!(selector.choose(LEN, false), None);
        assert_eq!(selector.choose(LEN, true), Some(RndvProto::CoopCopy), "the probe is discarded");
        assert_eq!(selector.choose(BOTH_SIDES_MIN - 1, true), None);
        assert!(selector.choose(1 << 30, true).is_some());
    }
}

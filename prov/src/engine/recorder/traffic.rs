// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Traffic of an endpoint by peer, size and time, as `FI_SCIF_STATS=json` reports it.

use std::collections::HashMap;
use std::fmt::Write;

use scif::PortId;
use scif::trace::EventKind;

use crate::engine::types::stats::Path;

/// Number of size classes: one for empty messages, and one for each power of two.
const SIZE_CLASSES: usize = 65;
/// Nanoseconds of the processor from one poll to the next above which the time between them is not
/// waiting: the program computes.
const BUSY_POLL_NS: u64 = 10_000;
/// Limit instead of it where others had the processor for more than a quarter of the time. A poll
/// after the turn of another process takes longer: its yield, two switches, and cold caches.
const COLD_POLL_NS: u64 = 100_000;

/// Messages and accesses between an endpoint and one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerTraffic {
    /// Process of the peer, or 0 before the first connection.
    pid: u32,
    /// Messages sent in headers of records, in bodies of records, and by announcement.
    sent: [Path; 3],
    /// Messages received, and those of them that were announced: pulled, copied by both sides, and
    /// in fragments.
    received: [Path; 4],
    /// Writes, reads and atomics of this side.
    accesses: [Path; 3],
}

/// Names of the members of [`PeerTraffic`], in their order.
const SENT: [&str; 3] = ["inline", "ring", "announced"];
const RECEIVED: [&str; 4] = ["all", "pulled", "both_sides", "fragments"];
const ACCESSES: [&str; 3] = ["writes", "reads", "atomics"];

/// Time that an endpoint has waited, measured between readings of its clock.
#[derive(Clone, Copy, Debug, Default)]
struct WaitClock {
    waited_ns: u64,
    last_ns: u64,
    polls: u32,
    received: u64,
    /// Thread of the last reading of its processor time, and that time.
    cpu: Option<(i32, u64)>,
    /// Nanoseconds since that reading in which polls followed each other closely.
    close_ns: u64,
}

impl WaitClock {
    /// Returns the part of the last `time` nanoseconds in which this thread had a processor, which
    /// `cpu` counts; all of them if the reading before is missing.
    fn on_cpu(&mut self, time: u64, (thread, ns): (i32, u64)) -> u64 {
        let close = std::mem::take(&mut self.close_ns);
        match self.cpu.replace((thread, ns)) {
            Some((same, before)) if same == thread => {
                ns.saturating_sub(before).saturating_sub(close).min(time)
            }
            _ => time,
        }
    }
}

/// Traffic of one endpoint.
#[derive(Debug)]
pub(crate) struct EndpointTraffic {
    own: PortId,
    kind: &'static str,
    opened_ns: u64,
    closed_ns: Option<u64>,
    peers: HashMap<PortId, PeerTraffic>,
    /// Messages sent by size class: class 0 is empty, class n has less than 2^n bytes.
    sizes: [u64; SIZE_CLASSES],
    clock: WaitClock,
}

impl EndpointTraffic {
    pub(crate) fn new(own: PortId, kind: &'static str, now: u64) -> EndpointTraffic {
        let clock = WaitClock { last_ns: now, ..WaitClock::default() };
        let (peers, sizes) = (HashMap::new(), [0; SIZE_CLASSES]);
        EndpointTraffic { own, kind, opened_ns: now, closed_ns: None, peers, sizes, clock }
    }

    /// Counts an event with a peer. Kinds that move no payload change nothing.
    pub(crate) fn count(&mut self, peer: PortId, kind: EventKind, len: u64, id: u64) {
        let of = self.peers.entry(peer).or_default();
        let [inline, ring, announced] = &mut of.sent;
        let [all, pulled, both, fragments] = &mut of.received;
        let [writes, reads, atomics] = &mut of.accesses;
        let path = match kind {
            EventKind::SentInline => inline,
            EventKind::SentRing => ring,
            EventKind::RtsSent => announced,
            EventKind::Received => all,
            EventKind::Pulled => pulled,
            EventKind::Shared => both,
            EventKind::Streamed => fragments,
            EventKind::Write => writes,
            EventKind::Read => reads,
            EventKind::Atomic => atomics,
            EventKind::PeerUp => {
                of.pid = u32::try_from(id).unwrap_or(0);
                return;
            }
            _ => return,
        };
        path.ops += 1;
        path.bytes += len;
        if matches!(kind, EventKind::SentInline | EventKind::SentRing | EventKind::RtsSent) {
            if let Some(class) = self.sizes.get_mut((u64::BITS - len.leading_zeros()) as usize) {
                *class += 1;
            }
        }
    }

    /// Notes a reading of the clock after `polls` polls and `received` messages in all. With
    /// `outstanding` operations the share of the empty polls in the time since the last reading
    /// was waiting. Time without a processor counts too: the polls of waiting processes yield. The
    /// processor time of this thread, `cpu`, is read only where polls are rare.
    pub(crate) fn tick(
        &mut self,
        now: u64,
        (polls, received): (u32, u64),
        outstanding: bool,
        cpu: impl FnOnce() -> (i32, u64),
    ) {
        let clock = &mut self.clock;
        let time = now.saturating_sub(clock.last_ns);
        let count = u64::from(polls.wrapping_sub(clock.polls));
        let empty = count.saturating_sub(received.saturating_sub(clock.received));
        let used = if time <= BUSY_POLL_NS * count {
            clock.close_ns += time;
            time
        } else {
            clock.on_cpu(time, cpu())
        };
        let limit = if used < time / 4 * 3 { COLD_POLL_NS } else { BUSY_POLL_NS };
        if outstanding && count > 0 && used <= limit * count {
            clock.waited_ns += time * empty / count;
        }
        (clock.last_ns, clock.polls, clock.received) = (now, polls, received);
    }

    /// Notes a sleep that has ended just now.
    pub(crate) fn slept(&mut self, now: u64, slept_ns: u64) {
        self.clock.waited_ns += slept_ns;
        self.clock.last_ns = now;
    }

    /// Notes the close of the endpoint.
    pub(crate) fn close(&mut self, now: u64) {
        self.closed_ns = Some(now);
    }

    /// Whether the endpoint is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed_ns.is_some()
    }

    /// Returns the JSON object of the endpoint at time `now`.
    pub(crate) fn json(&self, now: u64) -> String {
        let mut peers: Vec<_> = self.peers.iter().collect();
        peers.sort_unstable_by_key(|(id, _)| **id);
        let peers: Vec<String> = peers
            .iter()
            .map(|(id, of)| {
                format!(
                    "{{\"address\":\"{id}\",\"pid\":{},\"sent\":{},\"received\":{},\
                     \"accesses\":{}}}",
                    of.pid,
                    paths(&SENT, &of.sent),
                    paths(&RECEIVED, &of.received),
                    paths(&ACCESSES, &of.accesses)
                )
            })
            .collect();
        let sizes: Vec<String> = self.sizes.iter().map(u64::to_string).collect();
        format!(
            "{{\"address\":\"{}\",\"type\":\"{}\",\"open_ns\":{},\"waiting_ns\":{},\
             \"sizes\":[{}],\"peers\":[{}]}}",
            self.own,
            self.kind,
            self.closed_ns.unwrap_or(now).saturating_sub(self.opened_ns),
            self.clock.waited_ns,
            sizes.join(","),
            peers.join(",")
        )
    }
}

/// Returns an object with a pair, operations and bytes, for each name.
fn paths(names: &[&str], paths: &[Path]) -> String {
    let mut text = String::from("{");
    for (name, path) in names.iter().zip(paths) {
        let comma = if text.len() > 1 { "," } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(text, "{comma}\"{name}\":[{},{}]", path.ops, path.bytes);
    }
    text.push('}');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: PortId = PortId::new(0, 5);
    const PEER: PortId = PortId::new(0, 6);

    #[test]
    fn messages_are_counted_by_peer_path_and_size() {
        let mut traffic = EndpointTraffic::new(OWN, "rdm", 100);
        traffic.count(PEER, EventKind::PeerUp, 0, 77);
        for (kind, len) in [
            (EventKind::SentInline, 0),
            (EventKind::SentInline, 8),
            (EventKind::RtsSent, 1 << 20),
            (EventKind::Received, 3),
            (EventKind::Matched, 3),
        ] {
            traffic.count(PEER, kind, len, 0);
        }
        traffic.close(250);
        let text = traffic.json(900);
        assert!(text.starts_with("{\"address\":\"0:5\",\"type\":\"rdm\",\"open_ns\":150,"));
        let peer = "{\"address\":\"0:6\",\"pid\":77,\"sent\":{\"inline\":[2,8],\"ring\":[0,0],\
                    \"announced\":[1,1048576]},\"received\":{\"all\":[1,3],";
        assert!(text.contains(peer), "{text}");
        let sizes: Vec<u64> = text
            .split_once("\"sizes\":[")
            .and_then(|(_, rest)| rest.split_once(']'))
            .map(|(list, _)| list.split(',').map(|n| n.parse().unwrap()).collect())
            .unwrap();
        assert_eq!(sizes.len(), SIZE_CLASSES);
        assert_eq!((sizes[0], sizes[4], sizes[21], sizes.iter().sum::<u64>()), (1, 1, 1, 3));
    }

    #[test]
    fn only_empty_polls_that_follow_each_other_closely_are_waiting() {
        let waited = |polls, received, outstanding, time| {
            let mut traffic = EndpointTraffic::new(OWN, "rdm", 0);
            traffic.tick(time, (polls, received), outstanding, || (1, time));
            traffic.clock.waited_ns
        };
        assert_eq!(waited(10, 0, true, 1000), 1000);
        assert_eq!(waited(10, 4, true, 1000), 600);
        assert_eq!(waited(10, 40, true, 1000), 0, "a poll may receive several messages");
        assert_eq!(waited(10, 0, false, 1000), 0, "nothing was outstanding");
        assert_eq!(waited(10, 0, true, 10 * BUSY_POLL_NS + 10), 0, "the program computed");
        let mut traffic = EndpointTraffic::new(OWN, "rdm", 0);
        traffic.slept(5_000_000, 4_000_000);
        traffic.tick(5_001_000, (10, 0), true, || (1, 0));
        assert_eq!(traffic.clock.waited_ns, 4_001_000);
    }

    #[test]
    fn the_turns_of_other_processes_between_polls_are_waiting() {
        const MS: u64 = 1_000_000;
        let mut traffic = EndpointTraffic::new(OWN, "rdm", 0);
        let mut waited = |now, polls, cpu| {
            let before = traffic.clock.waited_ns;
            traffic.tick(now, (polls, 0), true, || cpu);
            traffic.clock.waited_ns - before
        };
        assert_eq!(waited(20 * MS, 8, (1, 9 * MS)), 0, "its processor time is not known yet");
        assert_eq!(waited(40 * MS, 16, (1, 9 * MS + 500_000)), 20 * MS);
        assert_eq!(waited(60 * MS, 24, (1, 19 * MS)), 0, "the program computed");
        assert_eq!(waited(61 * MS, 1024, (1, 20 * MS)), MS, "polls follow closely");
        assert_eq!(waited(81 * MS, 1032, (1, 20 * MS + 50_000)), 20 * MS);
        assert_eq!(waited(82 * MS, 1040, (1, 20 * MS + 950_000)), 0, "no turn of others");
        assert_eq!(waited(83 * MS, 1048, (1, 21 * MS + 450_000)), MS, "a turn of half the time");
        assert_eq!(waited(103 * MS, 1056, (2, 21 * MS + 500_000)), 0, "another thread polled");
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Hostile peer: connects as an honest one does, then pushes mutated records and sends false
//! replies to requests of the victim. It also stores into all shared memory and sends unexpected
//! packets.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{SocketAddrUnix, getpeername};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use scif::{
    CloseHow, Config, ConnId, Endpoint, Exports, LinkEvent, Node, PortId, SharedKeys, TransportKind,
};
use scif_fabtests::harness::{Fail, Outcome, Rank};
use scif_ring::{BODY_MAX, KeyEntry};

use crate::args::Args;
use crate::handshake::{Callers, send};
use crate::mutate::{Mutator, Record};
use crate::scribble::scribble;

/// Interval between two reports of the counts to the parent.
const BEAT: Duration = Duration::from_millis(100);
/// Number of last records kept for a report.
const KEPT: u64 = 32;
/// Bytes of the text of one record.
const LINE: usize = 192;

/// Counters of everything sent.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) records: u64,
    pub(crate) words: u64,
    pub(crate) handshakes: u64,
    pub(crate) packets: u64,
    pub(crate) connections: u64,
}

/// One attacker.
pub(crate) struct Attacker<'r> {
    rank: &'r Rank,
    pub(crate) args: &'r Args,
    pub(crate) mutator: Mutator,
    pub(crate) counts: Counts,
    pub(crate) domain: String,
    body: Vec<u8>,
    reported: Instant,
    /// Number of records reported so far.
    sum: u64,
}

/// Port at which an attacker sometimes listens, so that the victim can send to it.
pub(crate) fn port_of(index: usize) -> u16 {
    30_000 + 16 * u16::try_from(index).unwrap_or(0)
}

fn config() -> Config {
    Config { connect_timeout_ms: 1000, ..Config::from_env() }
}

pub(crate) fn run(rank: &Rank, args: &Args) -> Outcome {
    let (mut attacker, mut callers, config) = Attacker::new(rank, args)?;
    let node = Node::open(config, TransportKind::Soft).map_err(Fail::here)?;
    if args.crowd > 0 {
        return attacker.crowd(&node);
    }
    loop {
        if attacker.mutator.rng.one_in(3) {
            attacker.handshakes(&node, &mut callers)?;
        } else {
            attacker.session(&node)?;
        }
    }
}

impl<'r> Attacker<'r> {
    /// Returns an attacker, its raw connections and its configuration.
    pub(crate) fn new(rank: &'r Rank, args: &'r Args) -> Outcome<(Attacker<'r>, Callers, Config)> {
        let seed = args.seed ^ (rank.index as u64) << 32 ^ u64::from(rank.life) << 40;
        let config = config();
        let attacker = Attacker {
            rank,
            args,
            mutator: Mutator::new(seed, [args.key, args.base, args.len]),
            counts: Counts::default(),
            domain: config.domain.clone().unwrap_or_default(),
            body: (0..BODY_MAX).map(|n| n.to_le_bytes().first().copied().unwrap_or(0)).collect(),
            reported: Instant::now(),
            sum: 0,
        };
        // Not the port of a predecessor, whose listener may be in transit to the victim as a
        // descriptor.
        let trap = 40_000 + u16::try_from(rank.life % 20_000).unwrap_or(0);
        let callers = Callers::new(&attacker.domain, [args.port, args.honest], trap)?;
        Ok((attacker, callers, config))
    }

    /// Opens connections, each from a port of its own, and keeps the last ones.
    fn crowd(&mut self, node: &Arc<Node>) -> Outcome {
        let victim = PortId::new(0, self.args.port);
        let (mut open, mut events) = (VecDeque::new(), Vec::new());
        loop {
            let endpoint = Endpoint::bind(node, 0, Exports::default());
            if endpoint.is_err() || open.len() >= self.args.crowd {
                open.pop_front();
            }
            if let Ok(mut endpoint) = endpoint {
                while matches!(endpoint.connect(victim), Err(scif::Error::Again)) {
                    std::thread::yield_now();
                    self.beat()?;
                }
                self.counts.connections += 1;
                endpoint.poll_links(&mut events);
                events.clear();
                open.push_back(endpoint);
            }
            self.beat()?;
        }
    }

    /// Reports the counts since the last report to the parent. Fails when the parent has closed its
    /// end.
    pub(crate) fn beat(&mut self) -> Outcome {
        if self.reported.elapsed() < BEAT { Ok(()) } else { self.report() }
    }

    pub(crate) fn report(&mut self) -> Outcome {
        self.reported = Instant::now();
        let c = std::mem::take(&mut self.counts);
        self.sum += c.records;
        let text =
            format!("{} {} {} {} {}", c.records, c.words, c.handshakes, c.packets, c.connections);
        self.rank.send_to_parent(text.as_bytes())
    }

    /// Executes this program again in the same process: for the victim, its peer dies.
    pub(crate) fn start_again(&mut self) -> Outcome {
        self.report()?;
        let mut args: Vec<std::ffi::OsString> = std::env::args_os().skip(1).collect();
        args.extend(["--life".into(), (self.rank.life + 100_000).to_string().into()]);
        Err(std::process::Command::new("/proc/self/exe").args(args).exec().into())
    }

    /// Keeps a line for the report of a crash, in the file that is standard output.
    pub(crate) fn note(&mut self, subject: &str) {
        let number = self.sum + self.counts.records;
        let mut line = format!("{number} {subject}");
        line.truncate(LINE - 1);
        let at = number % KEPT * LINE as u64;
        // A missing line affects a report only.
        let _ = rustix::io::pwrite(
            std::io::stdout(),
            format!("{line:<width$}\n", width = LINE - 1).as_bytes(),
            at,
        );
    }

    /// Makes several connects with changed first packets.
    fn handshakes(&mut self, node: &Arc<Node>, callers: &mut Callers) -> Outcome {
        for _ in 0..40 {
            if callers.is_hungry() {
                let keys = self.keys(node)?;
                let Ok(mut endpoint) = Endpoint::bind(node, 0, Exports { keys }) else {
                    return Ok(());
                };
                let trap = PortId::new(0, callers.trap);
                if endpoint.connect(trap).is_ok() {
                    callers.catch()?;
                }
            }
            self.counts.handshakes += u64::from(callers.call(&mut self.mutator)?);
        }
        self.beat()
    }

    /// Returns a key table in which some keys name unmapped memory.
    fn keys(&mut self, node: &Arc<Node>) -> Outcome<Option<Arc<SharedKeys>>> {
        if self.mutator.rng.one_in(3) {
            return Ok(None);
        }
        let Ok(keys) = node.key_table() else {
            return Ok(None);
        };
        for key in 0..self.mutator.rng.below(6) as u64 {
            keys.insert(KeyEntry {
                key,
                base: self.mutator.word(),
                start: self.mutator.word(),
                len: self.mutator.word(),
                access: self.mutator.word(),
                window: self.mutator.word(),
                window_len: self.mutator.word(),
            });
        }
        Ok(Some(keys))
    }

    /// Runs one incarnation of a port: connects to the victim, and accepts its connects.
    fn session(&mut self, node: &Arc<Node>) -> Outcome {
        let port = if self.mutator.rng.one_in(2) { port_of(self.rank.index) } else { 0 };
        let keys = self.keys(node)?;
        let Ok(mut endpoint) = Endpoint::bind(node, port, Exports { keys }) else {
            return Ok(());
        };
        let victim = PortId::new(0, self.args.port);
        let mut open: Vec<ConnId> = endpoint.connect(victim).into_iter().collect();
        self.counts.connections += open.len() as u64;
        let mut events = Vec::new();
        for step in 0..20 + self.mutator.rng.below(600) {
            if step % 16 == 0 {
                endpoint.poll_links(&mut events);
                open.extend(events.iter().filter_map(|event| match event {
                    LinkEvent::Accepted(id, _) => Some(*id),
                    _ => None,
                }));
                let ended = events.drain(..).filter_map(|event| match event {
                    LinkEvent::Closed(id, _) => Some(id),
                    _ => None,
                });
                ended.for_each(|id| {
                    open.retain(|other| *other != id);
                    endpoint.close_conn(id, CloseHow::Reset);
                });
                self.beat()?;
            }
            let Some(id) = self.mutator.rng.pick(&open) else {
                if port == 0 {
                    return Ok(());
                }
                std::thread::yield_now();
                continue;
            };
            self.act(&mut endpoint, id);
        }
        if self.mutator.rng.one_in(4) {
            endpoint.abandon();
            return Ok(());
        }
        for id in open {
            let how = self.mutator.rng.pick(&[CloseHow::Orderly, CloseHow::Reset]);
            endpoint.close_conn(id, how.unwrap_or(CloseHow::Reset));
        }
        Ok(())
    }

    /// Executes one random operation on one connection.
    fn act(&mut self, endpoint: &mut Endpoint, id: ConnId) {
        match self.mutator.rng.below(100) {
            0..62 => {
                let record = self.mutator.record();
                self.push(endpoint, id, &record);
            }
            62..86 => {
                let head_seen = endpoint.conn(id).and_then(|conn| {
                    let record = conn.rx().peek().ok()??;
                    let head_seen = (record.kind, record.head().to_vec());
                    conn.rx().advance();
                    Some(head_seen)
                });
                if let Some((kind, head)) = head_seen {
                    self.mutator.learn(&head);
                    let record = self.mutator.answer(kind, &head);
                    self.push(endpoint, id, &record);
                }
            }
            86..91 => {
                let count = 1 + self.mutator.rng.below(40);
                self.note(&format!("{count} words"));
                self.counts.words += scribble(&mut self.mutator, count);
            }
            91..95 => {
                let slot = self.mutator.rng.below(1 << 16);
                let Some(conn) = endpoint.conn(id) else {
                    return;
                };
                conn.my_mark().set(u32::try_from(slot).unwrap_or(0));
                let _ = (conn.enter(), conn.is_up());
                if slot % 2 == 0 {
                    conn.exit();
                }
            }
            95..97 => {
                let [generation, addr, len, part, parts] =
                    std::array::from_fn(|_| self.mutator.word());
                let small = |word: u64| u32::try_from(word & 0xffff_ffff).unwrap_or(0);
                let Some(conn) = endpoint.conn(id) else {
                    return;
                };
                let claim = conn.rx_claim(small(generation) as usize % 32);
                claim.offer(small(generation), addr, len, small(part), small(parts));
            }
            97 => self.packets(),
            98 => std::thread::sleep(Duration::from_micros(200)),
            _ => {
                if let Some(conn) = endpoint.conn(id) {
                    conn.notify();
                }
            }
        }
    }

    /// Pushes a record and rings the doorbell; a record without space is not counted.
    fn push(&mut self, endpoint: &mut Endpoint, id: ConnId, record: &Record) {
        self.note(&format!(
            "record {:#04x} head {:02x?} body {}",
            record.kind, record.head, record.body
        ));
        let Some(conn) = endpoint.conn(id) else {
            return;
        };
        let body = self.body.get(..record.body).unwrap_or_default();
        if conn.tx().push_slice(record.kind, &record.head, body).is_ok() {
            self.counts.records += 1;
            conn.notify();
        } else {
            std::thread::yield_now();
        }
    }

    /// Sends garbage over the sockets of connections and callers.
    pub(crate) fn packets(&mut self) {
        let victim = format!("scif/{}/0/{}", self.domain, self.args.port);
        let Ok(pidfd) = pidfd_open(getpid(), PidfdFlags::empty()) else {
            return;
        };
        for number in 3..64 {
            let Ok(fd) = pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()) else {
                continue;
            };
            let peer = getpeername(&fd)
                .ok()
                .flatten()
                .and_then(|name| SocketAddrUnix::try_from(name).ok());
            let is_victim =
                peer.is_some_and(|peer| peer.abstract_name() == Some(victim.as_bytes()));
            if !is_victim || self.mutator.rng.one_in(2) {
                continue;
            }
            let bytes = self.mutator.packet(&[0; 48]);
            let with = self.mutator.rng.below(3);
            let fds = vec![pidfd.as_fd(); with];
            self.counts.packets += 1;
            self.note(&format!("packet {bytes:02x?}, {with} descriptors"));
            send(&fd, &bytes, &fds);
        }
    }
}

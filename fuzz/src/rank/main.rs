// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! `scif-rank`: one rank of a kill storm over `scif.h`, whose parent is the program `faults`.
//!
//! A rank sends, receives, registers, copies, fences, forks and executes. It checks every byte and
//! reports every failed call. The parent knows the time of each death and judges the reports.

mod line;

use std::collections::HashMap;
use std::process::ExitCode;

use clap::Parser;
use rustix::process::{Resource, Rlimit, setrlimit};
use scif::{Config, PortId, now_ns};
use scif_api::{Endpoints, Failure};
use scif_fabtests::check;
use scif_fabtests::harness::rank::Target;
use scif_fabtests::harness::sandbox::{self, in_child};
use scif_fabtests::harness::{Fail, Outcome, Rank, Rng};
use scif_fabtests::payload::RankId;

use line::{Line, failed};

/// Nanoseconds after which a connection with a peer known as dead counts as hanging and fails the
/// run.
const HANG_NS: u64 = 10_000_000_000;
/// Interval in nanoseconds between two reports of this rank's resources.
const BEAT_NS: u64 = 500_000_000;

/// Milliseconds after which a connect is abandoned. Reused ports can make ranks connect in a
/// circle, in which none of them accepts.
const CONNECT_MS: u64 = 2000;

/// Arguments of every rank of a storm. `lib`, `prov` and `kind` are for libfabric and unused.
#[derive(Debug, Parser)]
struct Args {
    #[arg(long)]
    lib: String,
    #[arg(long)]
    prov: String,
    #[arg(long)]
    kind: String,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    rank: u8,
    #[arg(long)]
    life: u16,
    /// Run with low limits of descriptors, address space, or locked memory
    #[arg(long)]
    limits: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let target =
        Target { lib: args.lib.into(), prov: args.prov, seed: args.seed, wrap: Vec::new() };
    let Ok(rank) = Rank::from_stdin(args.rank.into(), 6, args.life.into(), target) else {
        return ExitCode::FAILURE;
    };
    let me = RankId { slot: args.rank, life: args.life };
    let outcome = Storm::open(&rank, me, args.limits).and_then(|mut storm| {
        while !storm.turn()? {}
        Ok(())
    });
    rank.report(&outcome);
    ExitCode::from(u8::from(outcome.is_err()))
}

/// One rank.
struct Storm<'r> {
    rank: &'r Rank,
    scif: Endpoints,
    me: RankId,
    rng: Rng,
    listener: i32,
    lines: Vec<Line>,
    /// Dead peers, and the time at which this rank was notified.
    gone: HashMap<RankId, u64>,
    report: String,
    draining: bool,
    limited: bool,
    done: [u64; 6],
    beat: u64,
}

/// Lowers one limit of this process.
fn limit(rng: &mut Rng) -> Outcome {
    let (resource, least) = match rng.below(3) {
        0 => (Resource::Nofile, 24 + rng.below(60) as u64),
        1 => (Resource::As, (200 << 20) + ((rng.below(64) as u64) << 20)),
        _ => (Resource::Memlock, 4096 * rng.below(20) as u64),
    };
    let limit = Rlimit { current: Some(least), maximum: Some(least) };
    Ok(setrlimit(resource, limit)?)
}

impl<'r> Storm<'r> {
    fn open(rank: &'r Rank, me: RankId, limits: bool) -> Outcome<Storm<'r>> {
        let mut rng = Rng::new(rank.target.seed ^ u64::from(me.life) << 8 ^ u64::from(me.slot));
        let limited = limits && me.slot > 2;
        if limited {
            limit(&mut rng)?;
        }
        let config = Config { connect_timeout_ms: CONNECT_MS, ..Config::from_env() };
        let scif = Endpoints::new(config).map_err(failed)?;
        let listener = scif.open().map_err(failed)?;
        let port = scif.bind(listener, 0).map_err(failed)?;
        scif.listen(listener, 16).map_err(failed)?;
        rank.send_to_parent(format!("name 0 0 {port:04x}").as_bytes())?;
        Ok(Storm {
            rank,
            scif,
            me,
            rng,
            listener,
            lines: Vec::new(),
            gone: HashMap::new(),
            report: String::new(),
            draining: false,
            limited: limits,
            done: [0; 6],
            beat: 0,
        })
    }

    /// Serves the parent and every connection once. Returns true when the parent has ended the run.
    fn turn(&mut self) -> Outcome<bool> {
        while let Some(parts) = self.rank.receive_from_parent()? {
            for part in parts {
                let text = String::from_utf8_lossy(&part).into_owned();
                let words: Vec<&str> = text.split(' ').collect();
                match words.as_slice() {
                    ["quit"] => return Ok(true),
                    ["drain"] => self.draining = true,
                    ["gone", id] => {
                        self.gone.insert(id.parse().map_err(Fail::here)?, now_ns());
                    }
                    ["peer", id, .., port] => {
                        let port = u16::from_str_radix(port, 16).map_err(Fail::here)?;
                        self.call(id.parse().map_err(Fail::here)?, port);
                    }
                    _ => {}
                }
            }
        }
        match self.scif.accept(self.listener, false) {
            Ok((_, fd)) => self.begin(fd, None, false),
            Err(Failure::Again) => {}
            Err(e) => check!(self.limited, "accepting: {e:?}"),
        }
        let mut lines = std::mem::take(&mut self.lines);
        let mut busy = false;
        for line in &mut lines {
            let pause = now_ns().saturating_sub(line.stepped);
            match line.step(&self.scif, &mut self.rng, self.draining, &mut self.done)? {
                Ok(some) => busy |= some,
                Err(e) => {
                    line.over = true;
                    if let Some(id) = line.id {
                        self.told(id, 'x', (line.born, pause), e);
                    }
                }
            }
            line.stepped = now_ns();
            let gone = line.id.and_then(|id| self.gone.get(&id));
            let hangs = gone.is_some_and(|gone| !line.over && now_ns() - gone > HANG_NS);
            check!(!hangs, "a connection with {:?} lives 10 s after its death", line.id);
        }
        for line in lines.iter().filter(|line| line.over) {
            // The peer has died or closed; the number is free in any case.
            let _ = self.scif.close(line.fd);
        }
        lines.retain(|line| !line.over);
        self.lines.append(&mut lines);
        if self.rng.one_in(2000) && !self.draining {
            self.fork()?;
        }
        self.beat()?;
        if !busy {
            let _ = self.scif.poll(&mut [line::entry(self.listener)], 1);
        }
        Ok(false)
    }

    /// Forks a child that exits at once, or runs another program.
    fn fork(&mut self) -> Outcome {
        if self.rng.one_in(2) {
            check!(in_child(|| 7)? == 7, "a child's end");
        } else if !self.limited {
            check!(std::process::Command::new("/bin/true").status()?.success(), "another program");
        }
        if let Some(count) = self.done.get_mut(5) {
            *count += 1;
        }
        Ok(())
    }

    /// Connects to a peer with a higher slot. Peers with lower slots connect to this rank.
    fn call(&mut self, id: RankId, port: u16) {
        if id.slot <= self.me.slot {
            return;
        }
        let posted = now_ns();
        let Ok(fd) = self.scif.open() else { return };
        match self.scif.connect(fd, PortId::new(0, port)) {
            Ok(_) => self.begin(fd, Some(id), true),
            Err(e) => {
                let _ = self.scif.close(fd);
                // With a living peer this is a connect abandoned after CONNECT_MS.
                if e != Failure::Refused || self.gone.contains_key(&id) {
                    self.told(id, 'c', (posted, 0), e);
                }
            }
        }
    }

    fn begin(&mut self, fd: i32, id: Option<RankId>, opener: bool) {
        let posted = now_ns();
        match Line::new(&self.scif, fd, self.me, id, opener) {
            Ok(line) => self.lines.push(line),
            Err(e) => {
                let _ = self.scif.close(fd);
                if let Some(id) = id {
                    self.told(id, 'b', (posted, 0), e);
                }
            }
        }
    }

    /// Reports a failure, with the time of the posting and the length of the pause in which no call
    /// was made. Living ranks under limits may refuse each other, which is not reported.
    fn told(&mut self, id: RankId, kind: char, (posted, pause): (u64, u64), error: Failure) {
        if self.draining || (self.limited && !self.gone.contains_key(&id)) {
            return;
        }
        self.report.push_str(&format!("err {kind} {id} {posted} {} {pause} {error:?}\n", now_ns()));
    }

    /// Sends failures, and periodically counters and resources, to the parent.
    fn beat(&mut self) -> Outcome {
        if !self.report.is_empty() {
            self.rank.send_to_parent(self.report.as_bytes())?;
            self.report.clear();
        }
        if now_ns() - self.beat < BEAT_NS {
            return Ok(());
        }
        self.beat = now_ns();
        let drained = u8::from(self.draining && self.lines.iter().all(Line::is_idle));
        let text = match sandbox::usage() {
            // No descriptor is left to read the resources; a thread may take the last one in
            // between.
            Err(_) if self.limited => "0 0 0".to_owned(),
            held => held?,
        };
        let done: Vec<String> = self.done.iter().map(u64::to_string).collect();
        self.rank.send_to_parent(format!("beat {drained} {text} {}\n", done.join(" ")).as_bytes())
    }
}

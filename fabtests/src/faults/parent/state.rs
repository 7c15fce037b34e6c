// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! State of the parent: its ranks, and the counts of a run.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use scif_fabtests::harness::control::Answer;
use scif_fabtests::harness::{Fail, Outcome, Rng};
use scif_fabtests::payload::RankId;

use crate::args::Args;
use crate::judge::Judge;
use crate::schedule::{Schedule, Usage};

/// One process of the storm.
pub(super) struct Process {
    pub(super) id: RankId,
    pub(super) child: Child,
    pub(super) control: OwnedFd,
    pub(super) output: File,
    /// Introduction to other ranks, known once the rank has reported its name.
    pub(super) intro: Option<String>,
    pub(super) last_word: Instant,
    /// Time at which it was stopped, and time at which it is to continue.
    pub(super) stopped: Option<(u64, Instant)>,
    pub(super) setting: Option<(&'static str, &'static str)>,
    pub(super) killed_at: Instant,
    /// Time until its death, from the moment the others know its name.
    pub(super) lives_on: Option<Duration>,
    pub(super) drained: bool,
}

/// One run.
pub(super) struct Parent<'a> {
    pub(super) args: &'a Args,
    pub(super) domain: String,
    pub(super) rng: Rng,
    pub(super) schedule: Schedule,
    pub(super) judge: Judge,
    pub(super) ranks: Vec<Process>,
    pub(super) names: std::collections::HashMap<RankId, String>,
    pub(super) group: u64,
    pub(super) group_open: Vec<RankId>,
    pub(super) next_group: Instant,
    pub(super) next_stop: Instant,
    pub(super) pids: Vec<u32>,
    pub(super) kills: u64,
    pub(super) stops: u64,
    pub(super) odd: u64,
    /// Number of dead peers of silent links whose death only a send has shown.
    pub(super) unseen: u64,
    pub(super) groups: u64,
    pub(super) done: [u64; 6],
    pub(super) held: Vec<Usage>,
}

impl Parent<'_> {
    pub(super) fn new(args: &Args) -> Parent<'_> {
        let now = Instant::now();
        Parent {
            args,
            domain: format!("storm-{}", std::process::id()),
            rng: Rng::new(args.seed),
            schedule: Schedule::new(args.seed),
            judge: Judge::default(),
            ranks: Vec::new(),
            names: std::collections::HashMap::new(),
            group: 0,
            group_open: Vec::new(),
            next_group: now,
            next_stop: now,
            pids: Vec::new(),
            kills: 0,
            stops: 0,
            odd: 0,
            unseen: 0,
            groups: 0,
            done: [0; 6],
            held: Vec::new(),
        }
    }
}

pub(super) fn send_word(rank: &Process, word: &str) {
    // A dead rank receives no message; its exit status reports the death.
    let _ = Answer::Parts(vec![word.as_bytes().to_vec()]).send(&rank.control);
}

pub(super) fn signal(child: &Child, signal: Signal) -> Outcome {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    Ok(kill_process(pid.ok_or_else(|| Fail::here("a process number"))?, signal)?)
}

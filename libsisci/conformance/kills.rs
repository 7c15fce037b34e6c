// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Kills of an owner, a connector or a waiter at a random moment: all others see the loss.
//!
//! Each cycle has three new processes. The case process kills one of them, tells the others which,
//! and collects when they saw the loss.
#![expect(unsafe_code, reason = "callbacks")]

use std::ffi::c_void;
use std::os::unix::net::UnixDatagram;
use std::ptr::null_mut;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use scif_fabtests::harness::process::Process;

use crate::api::{Answer, Api, Case, Handle};
use crate::rig::{
    CONNECT, CONTINUE, DISCONNECT, LONG, LOST, Node, OTHER, OWNER, PATIENCE, SEQ_NOT_RETRIABLE,
    SEQ_OK, Told, code, told,
};

pub(crate) const CASES: &[Case] = &[("the others see each death", few)];

/// Node of the process that waits.
const WAITER: u32 = 12;
/// Number of cycles of the case. The option `--kills` runs more.
const FEW: u32 = 30;
/// Longest time in microseconds from the start of the processes to the kill. It covers their
/// initialization, connection and exchange.
const KILL_US: u64 = 6000;
/// Longest time in nanoseconds in which the loss should be seen. Later ones are counted.
const SOON_NS: u64 = 100_000_000;

fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap()
}

/// Side of a process's line to the case: gets the node of the victim, sends the time of the loss.
struct Line(UnixDatagram);

impl Line {
    /// Returns the node of the victim, once it is dead.
    fn victim(&self) -> Option<u32> {
        let mut bytes = [0; 4];
        self.0.set_nonblocking(true).unwrap();
        self.0.recv(&mut bytes).ok().map(|_| u32::from_le_bytes(bytes))
    }

    /// Reports the time of the loss, or that there was no connection to the victim.
    fn report(&self, time: Option<u64>) {
        self.0.set_nonblocking(false).unwrap();
        self.0.send(&time.unwrap_or(0).to_le_bytes()).unwrap();
    }
}

/// Owner of a segment and of an interrupt, which sees the loss of its connections.
fn owner(api: &Api, line: &Line) {
    let node = Node::join(api, OWNER);
    let segment = node.export(1, 4096, 0);
    let (mut interrupt, mut number) = (null_mut(), 1);
    let (at, number_at, fixed) = (&raw mut interrupt, &raw mut number, api.flag("FIXED_INTNO"));
    api.SCICreateInterrupt(node.sd, at, 0, number_at, None, null_mut(), fixed).unwrap();
    let (mut connected, mut lost, mut victim) = (Vec::new(), None, None);
    let end = now() + u64::from(LONG) * 1_000_000;
    while victim.is_none_or(|victim| connected.contains(&victim)) {
        assert!(now() < end, "node {victim:?} is dead and connected");
        match node.event(segment, 1) {
            Ok((CONNECT, from)) => connected.push(from),
            Ok((reason, from)) => {
                assert!([DISCONNECT, LOST].contains(&reason), "{reason}");
                connected.retain(|node| *node != from);
                lost = (reason == LOST).then(now);
            }
            Err(none) => assert_eq!(none, code::TIMEOUT),
        }
        let _ = api.SCIWaitForInterrupt(interrupt, 0, 0);
        victim = victim.or_else(|| line.victim());
    }
    line.report(lost);
    api.SCIRemoveInterrupt(interrupt, 0).unwrap();
    api.SCISetSegmentUnavailable(segment, 0, api.flag("FORCE_DISCONNECT")).unwrap();
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

/// Connects once the owner is there. Returns nothing if a process dies before.
fn connect(line: &Line, attempt: impl Fn() -> Answer<Handle>) -> Result<Handle, u32> {
    loop {
        match attempt() {
            Ok(remote) => return Ok(remote),
            Err(absent) => assert_eq!(absent, code::NO_SUCH_SEGMENT),
        }
        if let Some(victim) = line.victim() {
            return Err(victim);
        }
    }
}

/// Waits until the case tells who died.
fn told_victim(line: &Line) -> u32 {
    loop {
        if let Some(victim) = line.victim() {
            return victim;
        }
        std::thread::yield_now();
    }
}

unsafe extern "C" fn on_loss(arg: *mut c_void, _: Handle, reason: u32, _status: u32) -> u32 {
    if reason != LOST {
        return CONTINUE;
    }
    // SAFETY: `arg` comes from `told` for this type.
    unsafe { Told::<u64>::tell(arg, now()) }
}

/// Stores, checks and triggers until its callback gets the loss.
fn exchange(api: &Api, node: &Node<'_>, remote: Handle, calls: &Receiver<u64>) -> u64 {
    let (mut sequence, mut trigger) = (null_mut(), null_mut());
    // The owner may be dead already.
    let view = node.map(remote, 0, 4096).ok();
    if let Some(view) = view {
        api.SCICreateMapSequence(view.map, &raw mut sequence, 0).unwrap();
    }
    let at = &raw mut trigger;
    let triggers = api.SCIConnectInterrupt(node.sd, at, OWNER, 0, 1, LONG, 0).is_ok();
    let lost = loop {
        if let Some(view) = view {
            view.store(0, 1);
            let status = api.SCICheckSequence(sequence, 0).unwrap();
            assert!([SEQ_OK, SEQ_NOT_RETRIABLE].contains(&status), "{status}");
        }
        if triggers {
            if let Err(dead) = api.SCITriggerInterrupt(trigger, 0) {
                assert_eq!(dead, code::NOT_CONNECTED);
                break calls.recv_timeout(PATIENCE).unwrap();
            }
        }
        match calls.try_recv() {
            Ok(time) => break time,
            Err(none) => assert_eq!(none, TryRecvError::Empty),
        }
    };
    if triggers {
        api.SCIDisconnectInterrupt(trigger, 0).unwrap();
    }
    if let Some(view) = view {
        assert_eq!(api.SCICheckSequence(sequence, 0), Ok(SEQ_NOT_RETRIABLE));
        view.store(0, 2);
        api.SCIRemoveSequence(sequence, 0).unwrap();
        api.SCIUnmapSegment(view.map, 0).unwrap();
    }
    lost
}

/// Process that works with the segment, and has a callback for its loss.
fn connector(api: &Api, line: &Line) {
    let node = Node::join(api, OTHER);
    let (arg, calls) = told::<u64>(CONTINUE);
    let attempt = || {
        let mut remote = null_mut();
        let (at, flags) = (&raw mut remote, api.flag("USE_CALLBACK"));
        api.SCIConnectSegment(node.sd, at, OWNER, 1, 0, Some(on_loss), arg, LONG, flags)
            .map(|()| remote)
    };
    match connect(line, attempt) {
        Ok(remote) => {
            let lost = exchange(api, &node, remote, &calls);
            line.report((told_victim(line) == OWNER).then_some(lost));
            api.SCIDisconnectSegment(remote, 0).unwrap();
        }
        Err(_) => line.report(None),
    }
    node.leave();
}

/// Process that waits for the loss of the segment.
fn waiter(api: &Api, line: &Line) {
    let node = Node::join(api, WAITER);
    match connect(line, || node.connect(OWNER, 1)) {
        Ok(remote) => {
            assert_eq!(node.remote_event(remote, LONG), Ok((LOST, 0)));
            let lost = now();
            line.report((told_victim(line) == OWNER).then_some(lost));
            api.SCIDisconnectSegment(remote, 0).unwrap();
        }
        Err(_) => line.report(None),
    }
    node.leave();
}

/// Random numbers by a seed, so that an order of kills can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Times from a kill to the sights of the loss.
#[derive(Default)]
struct Losses {
    ns: Vec<u64>,
}

impl Losses {
    fn cycle(&mut self, api: &Api, random: &mut Random) {
        type Role = fn(&Api, &Line);
        let roles: [(u32, Role); 3] = [(OWNER, owner), (OTHER, connector), (WAITER, waiter)];
        let mut sides: Vec<(u32, UnixDatagram, Process)> = roles
            .into_iter()
            .map(|(node, role)| {
                let (mine, theirs) = UnixDatagram::pair().unwrap();
                let line = Line(theirs);
                (node, mine, Process::start(|| role(api, &line)))
            })
            .collect();
        std::thread::sleep(Duration::from_micros(random.below(KILL_US)));
        let index = usize::try_from(random.below(3)).unwrap();
        let (victim, _, process) = sides.swap_remove(index);
        let killed = now();
        process.kill();
        process.status().unwrap();
        for (_, line, _) in &sides {
            line.send(&victim.to_le_bytes()).unwrap();
        }
        for (node, line, process) in sides {
            let mut bytes = [0; 8];
            line.set_read_timeout(Some(PATIENCE)).unwrap();
            let told = line.recv(&mut bytes);
            assert!(told.is_ok(), "node {node} hangs after the death of node {victim}");
            let time = u64::from_le_bytes(bytes);
            self.ns.extend((time > 0).then(|| time.saturating_sub(killed)));
            process.wait();
        }
    }
}

/// Runs cycles of kills and returns a summary.
pub(crate) fn cycles(api: &Api, count: u32, seed: u64) -> String {
    let (mut losses, mut random) = (Losses::default(), Random(seed.max(1)));
    for _ in 0..count {
        losses.cycle(api, &mut random);
    }
    let ns = &mut losses.ns;
    ns.sort_unstable();
    let at = |part: usize| ns.get((ns.len() * part / 100).min(ns.len() - 1)).copied();
    assert!(count < FEW || !ns.is_empty(), "no kill hit a connection");
    let late = ns.iter().filter(|ns| **ns > SOON_NS).count();
    let us = |ns: Option<u64>| ns.unwrap_or(0) / 1000;
    let (median, slow, slowest) = (us(at(50)), us(at(99)), us(ns.last().copied()));
    format!(
        "{count} kills, seed {seed}: {} losses seen, median {median} us, 99 % {slow} us, slowest \
         {slowest} us, {late} after 100 ms",
        ns.len()
    )
}

/// Runs cycles for `--kills COUNT`.
pub(crate) fn run(api: &Api, count: u32, seed: u64) {
    println!("{}", cycles(api, count, seed));
    // Nothing is left of the dead.
    let node = Node::join(api, 16);
    for dead in [OWNER, OTHER, WAITER] {
        assert_eq!(api.SCIProbeNode(node.sd, 0, dead, 0), Err(code::NO_SUCH_NODEID), "{dead}");
    }
    node.leave();
}

fn few(api: &Api) {
    run(api, FEW, u64::from(std::process::id()));
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One rank of the storm: posts random operations of all kinds to all peers, checks every byte, and
//! reports every failed operation to the parent.
//!
//! The rank never decides whether a failure was right, because only the parent knows all deaths and
//! their times. The rank checks that no operation with a dead peer stays outstanding, and that no
//! byte is wrong.

mod state;
mod traffic;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use scif_fabtests::harness::Rng;
use scif_fabtests::harness::output::{from_hex, now_ns, to_hex};
use scif_fabtests::payload::RankId;
use scif_fabtests::prelude::*;

use super::coll::{Group, Rooms};
use super::links::{Link, OpKind, is_silent};
use super::net::{Kind, Net};

use state::{HANG_NS, Storm, Wait};

/// Interval in nanoseconds between two reports of this rank's resources.
const BEAT_NS: u64 = 500_000_000;
/// Maximum sleep of a wait in milliseconds, so that messages of the parent are received.
const NAP_MS: i32 = 20;

/// Runs until the parent ends the storm.
pub(crate) fn run(rank: &Rank, kind: Kind) -> Outcome {
    let me = RankId {
        slot: u8::try_from(rank.index).map_err(Fail::here)?,
        life: u16::try_from(rank.life).map_err(Fail::here)?,
    };
    let mut rng = Rng::new(rank.target.seed ^ u64::from(me.life) << 8 ^ u64::from(me.slot));
    let wait = rng.pick(&[Wait::Poll, Wait::Queue, Wait::Counter]);
    let auto = kind != Kind::Msg && rng.one_in(4);
    let net = Net::open(rank, kind, me, auto)?;
    let name = net.name()?;
    let own_addr = net.av.as_ref().map_or(Ok(0), |av| av.insert(&name))?;
    let mut storm = Storm {
        rank,
        me,
        rng,
        wait: wait.unwrap_or(Wait::Poll),
        links: HashMap::new(),
        ops: Vec::new(),
        free: Vec::new(),
        rooms: [Vec::new(), Vec::new(), Vec::new()],
        group: None,
        group_rooms: Rooms::new(),
        own_addr,
        one: Buf::of(&1_u64.to_ne_bytes()),
        report: String::new(),
        draining: false,
        done: [0; 6],
        beat: 0,
        polled: now_ns(),
        pauses: BTreeMap::new(),
        net,
    };
    if me.life == 0 && me.slot == 0 {
        storm.take_all_rooms();
    }
    let (key, base) = storm.net.remote.unwrap_or((0, 0));
    rank.send_to_parent(format!("name {key} {base} {}", to_hex(&name)).as_bytes())?;
    while !storm.step()? {}
    Ok(())
}

impl Storm<'_> {
    /// Executes one step of the loop. Returns true when the parent has ended the storm.
    fn step(&mut self) -> Outcome<bool> {
        while let Some(parts) = self.rank.receive_from_parent()? {
            for part in parts {
                let text = String::from_utf8_lossy(&part).into_owned();
                if text == "quit" {
                    return Ok(true);
                }
                self.handle_message(&text)?;
            }
        }
        let mut busy = self.progress()?;
        self.events()?;
        let all: Vec<RankId> = self.links.keys().copied().collect();
        for id in all {
            busy |= self.serve(id)?;
        }
        if let Some(group) = &mut self.group {
            busy |= group.drive(&self.net, &self.group_rooms, &mut self.report)?;
        }
        self.beat()?;
        if !busy {
            self.rest()?;
        }
        Ok(false)
    }

    /// Waits for an event.
    fn rest(&mut self) -> Outcome {
        let ended = match self.wait {
            Wait::Queue if !self.rng.one_in(8) => self
                .net
                .cq
                .sread(1, 0, NAP_MS)
                .map(|entries| entries.into_iter().try_for_each(|entry| self.completed(entry))),
            Wait::Counter if !self.rng.one_in(8) => {
                let seen = self.net.cntr.read()?;
                self.net.cntr.wait(seen + 1, NAP_MS).map(Ok)
            }
            _ => {
                std::thread::yield_now();
                return Ok(());
            }
        };
        self.polled = now_ns();
        match ended {
            Ok(outcome) => outcome,
            Err(Errno::EAGAIN | Errno::EAVAIL | Errno::ETIMEDOUT) => Ok(()),
            Err(e) => Err(Fail::here(format_args!("a wait: {e}"))),
        }
    }

    /// Handles one message of the parent.
    fn handle_message(&mut self, text: &str) -> Outcome {
        let words: Vec<&str> = text.split(' ').collect();
        let id = |at: usize| words.get(at).unwrap_or(&"").parse::<RankId>().map_err(Fail::here);
        let number = |at: usize| words.get(at).unwrap_or(&"").parse::<u64>().map_err(Fail::here);
        match words.first() {
            Some(&"peer") => {
                let name = from_hex(words.get(4).unwrap_or(&""));
                self.add_peer(id(1)?, (number(2)?, number(3)?), name)
            }
            Some(&"gone") => {
                if let Some(link) = self.links.get_mut(&id(1)?) {
                    link.gone = Some(now_ns());
                }
                Ok(())
            }
            Some(&"group") => {
                self.group = None;
                let members = (2..words.len()).map(id).collect::<Outcome<Vec<RankId>>>()?;
                self.join(number(1)?, members)
            }
            Some(&"drain") => {
                self.draining = true;
                Ok(())
            }
            _ => Err(Fail::here(format_args!("the parent said {text}"))),
        }
    }

    /// Adds another rank. Receives for its messages are posted before any send to it.
    fn add_peer(&mut self, id: RankId, remote: (u64, u64), name: Vec<u8>) -> Outcome {
        let mut link = self.links.remove(&id).unwrap_or_else(Link::unconnected);
        link.remote = Some(remote);
        link.limits.silent = is_silent(self.rank.target.seed, self.net.kind, self.me, id);
        if let (Some(av), Some(ep)) = (&self.net.av, &self.net.ep) {
            link.addr = av.insert(&name)?;
            link.ep = Some(Arc::clone(ep));
            link.ready = true;
        } else if id.slot > self.me.slot {
            let ep = self.net.endpoint(&self.net.info)?;
            match ep.connect(&name, self.me.to_string().as_bytes()) {
                Ok(()) => link.ep = Some(ep),
                Err(e) => self.fail_link(&mut link, id, 'c', now_ns(), e),
            }
        }
        link.name = name;
        self.links.insert(id, link);
        Ok(())
    }

    fn join(&mut self, number: u64, members: Vec<RankId>) -> Outcome {
        if number == 0 {
            return Ok(());
        }
        let addr = |id: &RankId| {
            if *id == self.me {
                return Some(self.own_addr);
            }
            let link = self.links.get(id).filter(|link| link.gone.is_none())?;
            Some(link.addr)
        };
        match members.iter().map(addr).collect::<Option<Vec<u64>>>() {
            Some(addrs) => self.group = Some(Group::join(&self.net, number, members, &addrs)?),
            None => self.report.push_str(&format!("gskip {number}\n")),
        }
        Ok(())
    }

    /// Handles events of connections and groups.
    fn events(&mut self) -> Outcome {
        loop {
            match self.net.eq.sread_cm(&self.net.info, 64, 0) {
                Err(Errno::EAGAIN | Errno::ETIMEDOUT) => return Ok(()),
                Err(Errno::EAVAIL) => {
                    let error = self.net.eq.readerr()?;
                    if let Some(group) = self.group.as_mut().filter(|group| group.is(error.fid)) {
                        group.refused(&error, &mut self.report);
                    } else if self.net.kind == Kind::Msg {
                        self.hung_up(error.fid, Errno(error.err));
                    }
                }
                Err(e) => return Err(Fail::here(format_args!("the event queue: {e}"))),
                Ok(event) if event.event == sys::FI_CONNREQ => {
                    let text = String::from_utf8_lossy(&event.data).into_owned();
                    let id: RankId = text.parse().map_err(Fail::here)?;
                    let info = event.info.ok_or_else(|| Fail::here("no info"))?;
                    let mut link = self.links.remove(&id).unwrap_or_else(Link::unconnected);
                    let ep = self.net.endpoint(&info)?;
                    match ep.accept(&[]) {
                        Ok(()) => link.ep = Some(ep),
                        Err(e) => self.fail_link(&mut link, id, 'c', now_ns(), e),
                    }
                    self.links.insert(id, link);
                }
                Ok(event) if event.event == sys::FI_CONNECTED => {
                    let of_it = |link: &&mut Link| link.is(event.fid);
                    if let Some(link) = self.links.values_mut().find(of_it) {
                        link.ready = true;
                    }
                }
                Ok(event) if event.event == sys::FI_SHUTDOWN => {
                    self.hung_up(event.fid, Errno::ESHUTDOWN)
                }
                Ok(event) if event.event == sys::FI_JOIN_COMPLETE => {
                    if let Some(group) = self.group.as_mut().filter(|group| group.is(event.fid)) {
                        group.is_joined();
                        self.report.push_str(&format!("gjoin {}\n", group.number));
                    }
                }
                Ok(event) => return Err(Fail::here(format_args!("event {}", event.event))),
            }
        }
    }

    /// Handles the end of a connection.
    fn hung_up(&mut self, fid: usize, why: Errno) {
        let found = self.links.iter().find(|(_, link)| link.is(fid));
        let Some(id) = found.map(|(id, _)| *id) else {
            return;
        };
        if let Some(mut link) = self.links.remove(&id) {
            if !self.draining {
                self.fail_link(&mut link, id, 'h', now_ns(), why);
            }
            link.limits.broken = true;
            self.links.insert(id, link);
        }
    }

    /// Checks the group for a hang, and sends the pending report to the parent.
    fn beat(&mut self) -> Outcome {
        if let Some(group) = &self.group {
            let gone = |id: &RankId| self.links.get(id).is_some_and(|link| link.gone.is_some());
            let since = group.open.filter(|_| group.members.iter().any(gone));
            let hangs = since.is_some_and(|since| now_ns() - since > HANG_NS + HANG_NS / 2);
            check!(!hangs, "an operation of group {} waits for the dead", group.number);
        }
        if !self.report.is_empty() {
            self.rank.send_to_parent(self.report.as_bytes())?;
            self.report.clear();
        }
        if now_ns() - self.beat < BEAT_NS {
            return Ok(());
        }
        self.beat = now_ns();
        let sends =
            self.ops.iter().flatten().filter(|op| !matches!(op.kind, OpKind::Recv(_))).count();
        let drained = u8::from(self.draining && sends == 0);
        let done: Vec<String> = self.done.iter().map(u64::to_string).collect();
        let text = format!("beat {drained} {} {}\n", sandbox::usage()?, done.join(" "));
        self.rank.send_to_parent(text.as_bytes())
    }
}

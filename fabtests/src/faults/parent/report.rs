// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Reports of the ranks, which the parent judges, and the report of the parent.

use std::io::{Read, Seek};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use scif_fabtests::harness::control::Say;
use scif_fabtests::harness::output::print_line;
use scif_fabtests::harness::{Fail, Outcome};

use super::state::{Parent, send_word};
use crate::judge::{Failed, distribution};
use crate::net::Kind;
use crate::schedule::Usage;
use scif_fabtests::payload::RankId;

impl Parent<'_> {
    pub(super) fn receive(&mut self, slot: usize) -> Outcome {
        let Some(rank) = self.ranks.get_mut(slot) else {
            return Ok(());
        };
        let id = rank.id;
        rank.last_word = Instant::now();
        match Say::recv(&rank.control) {
            Ok(Some(Say::Exchange(bytes))) => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                text.lines().try_for_each(|line| {
                    let words: Vec<&str> = line.split(' ').collect();
                    let judged = self.take(slot, id, &words);
                    judged.map_err(|why| Fail::here(format_args!("{why}; rank {id} said: {line}")))
                })
            }
            Ok(Some(Say::Failed(why) | Say::NotRun(why) | Say::NotHere(why))) => {
                Err(Fail::here(format_args!("rank {id}: {why}")))
            }
            // The exit status shows the end of the rank.
            Ok(_) | Err(rustix::io::Errno::CONNRESET) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Handles one line of a rank.
    pub(super) fn take(&mut self, slot: usize, id: RankId, words: &[&str]) -> Result<(), String> {
        let number =
            |at: usize| words.get(at).unwrap_or(&"").parse::<u64>().map_err(|e| e.to_string());
        let peer =
            |at: usize| words.get(at).unwrap_or(&"").parse::<RankId>().map_err(|e| e.to_string());
        match words.first() {
            Some(&"name") => {
                let intro = format!("peer {id} {}", words.get(1..).unwrap_or_default().join(" "));
                for other in self.ranks.iter().filter(|other| other.id != id) {
                    send_word(other, &intro);
                }
                self.names.insert(id, words.get(3).unwrap_or(&"").to_string());
                if let Some(rank) = self.ranks.get_mut(slot) {
                    rank.intro = Some(intro);
                    if let Some(time) = rank.lives_on {
                        rank.killed_at = rank.killed_at.min(Instant::now() + time);
                    }
                }
                Ok(())
            }
            Some(&"err") => {
                let failed = Failed {
                    at: id,
                    posted: number(3)?,
                    ended: number(4)?,
                    pause: number(5)?,
                    never_met: words.last() == Some(&"never-met"),
                    silent: words.last() == Some(&"silent"),
                };
                self.judge.error(failed, peer(2)?)
            }
            Some(&"gerr") => {
                let failed = Failed {
                    at: id,
                    posted: number(2)?,
                    ended: number(3)?,
                    pause: 0,
                    never_met: false,
                    silent: false,
                };
                if number(1)? == self.group {
                    self.group_open.retain(|open| *open != id);
                }
                self.judge.group_error(failed, number(1)?)
            }
            // Joined, or no longer to be joined. If a member has died, a later group waits for the
            // errors of all.
            Some(&"gjoin" | &"gskip") => {
                let number = number(1)?;
                let over = words.first() == Some(&"gskip") || !self.judge.group_is_broken(number);
                if number == self.group && over {
                    self.group_open.retain(|open| *open != id);
                }
                Ok(())
            }
            Some(&"unseen") => {
                self.unseen += 1;
                Ok(())
            }
            Some(&"odd") => {
                // A message under the address of another incarnation is right if the address was
                // reused.
                let [expected, from, to] = [peer(1)?, peer(2)?, peer(3)?];
                let same =
                    |a: RankId, b: RankId| a == b || self.names.get(&a) == self.names.get(&b);
                self.odd += 1;
                if same(expected, from) && same(id, to) {
                    Ok(())
                } else {
                    Err("a message for another".into())
                }
            }
            Some(&"beat") => self.beat(slot, number),
            _ => Err("an odd line".into()),
        }
    }

    /// Handles the regular report of a rank: usage and counts of the first one.
    fn beat(
        &mut self,
        slot: usize,
        number: impl Fn(usize) -> Result<u64, String>,
    ) -> Result<(), String> {
        if let Some(rank) = self.ranks.get_mut(slot) {
            rank.drained = number(1)? == 1;
        }
        if slot == 0 {
            self.held.push(Usage {
                descriptors: number(2)?,
                mappings: number(3)?,
                resident_kib: number(4)?,
            });
            for (at, done) in self.done.iter_mut().enumerate() {
                *done = number(5 + at)?;
            }
        }
        Ok(())
    }

    pub(super) fn print_results(&self) {
        let [sends, receives, writes, reads, fifth, sixth] = self.done;
        let (fifths, sixths) = match self.args.kind {
            Kind::Scif => ("fences", "forks"),
            Kind::Rdm | Kind::Msg | Kind::Dgram => ("atomics", "collectives"),
        };
        print_line(&format!(
            "     {} kills, {} stops, {} groups; rank 0: {sends} sends, {receives} receives, \
             {writes} writes, {reads} reads, {fifth} {fifths}, {sixth} {sixths}; \
             {} messages for a reused address",
            self.kills, self.stops, self.groups, self.odd
        ));
        print_line(&format!("     with the dead: {}", distribution(&self.judge.latencies)));
        print_line(&format!(
            "     without the survivor's longest pause between two polls: {}",
            distribution(&self.judge.attended)
        ));
        if !self.judge.never_met.is_empty() {
            print_line(&format!(
                "     with the dead never met (FI_SCIF_CONNECT_TIMEOUT): {}",
                distribution(&self.judge.never_met)
            ));
        }
        if !self.judge.silent.is_empty() || self.unseen > 0 {
            print_line(&format!(
                "     with the dead to which nothing was sent: {}; {} peers died before an attempt",
                distribution(&self.judge.silent),
                self.unseen
            ));
        }
        if !self.judge.group_latencies.is_empty() {
            print_line(&format!("     collectives: {}", distribution(&self.judge.group_latencies)));
        }
        if let (Some(first), Some(last)) = (self.held.first(), self.held.last()) {
            print_line(&format!("     rank 0 holds {first}, in the end {last}"));
        }
    }

    /// Returns the complaints of ranks in the 300 ms after a failure, which may have caused the
    /// first complaint.
    pub(super) fn other_failures(&mut self) -> String {
        std::thread::sleep(Duration::from_millis(300));
        let mut text = String::new();
        for rank in &self.ranks {
            let mut fds = [PollFd::new(&rank.control, PollFlags::IN)];
            while poll(&mut fds, Some(&Timespec::default())) == Ok(1) {
                match Say::recv(&rank.control) {
                    Ok(Some(Say::Failed(why))) => {
                        text.push_str(&format!("rank {}: {why}\n", rank.id))
                    }
                    Ok(Some(_)) => {}
                    _ => break,
                }
            }
        }
        text
    }

    /// Returns the state of all ranks, for the report of a failure.
    pub(super) fn where_all_are(&mut self) -> String {
        let mut text = String::new();
        for rank in &mut self.ranks {
            let pid = rank.child.id();
            let read = |file: &str| {
                std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
            };
            let status = read("status");
            let state = status.lines().find(|line| line.starts_with("State")).unwrap_or("ended");
            let mut output = String::new();
            let _ = rank.output.rewind().and_then(|()| rank.output.read_to_string(&mut output));
            let tail: Vec<&str> = output.lines().rev().take(12).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            text.push_str(&format!(
                "rank {} {:?} {state} {}, silent for {} ms\n    {}\n",
                rank.id,
                rank.setting,
                read("wchan"),
                rank.last_word.elapsed().as_millis(),
                tail.join("\n    ")
            ));
        }
        text
    }
}

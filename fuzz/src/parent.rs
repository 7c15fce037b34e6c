// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Parent of a run: starts victim, honest client and attackers, kills and replaces the attackers at
//! times, and judges the other two.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use scif_fabtests::harness::control::{Answer, Say, pair};
use scif_fabtests::harness::output::print_line;
use scif_fabtests::harness::{Fail, Outcome, Rng};

use crate::args::{Args, Role, Target};

/// Time limit for the start of the victim and the first reply to its client.
const START: Duration = Duration::from_secs(30);
/// Maximum number of log lines of each kind per second, and the number permitted in addition once.
const LINES_EACH: u64 = 10;
const LINES_ONCE: u64 = 100;

/// Names of the processes that must not end.
const IDS: [&str; 3] = ["victim", "honest client", "newcomer"];

struct Process {
    child: Child,
    control: OwnedFd,
    output: File,
    errors: File,
}

struct Run<'a> {
    args: Args,
    given: &'a Args,
    domain: String,
    rng: Rng,
    victim: Option<Process>,
    honest: Option<Process>,
    newcomer: Option<Process>,
    attackers: Vec<(Process, Instant)>,
    life: u32,
    counts: [u64; 5],
    pulses: u64,
    worst_us: u64,
    heard: Instant,
    newcomers: u64,
    newcomer_us: u64,
    newcomer_heard: Instant,
    attacker_ends: u64,
    resident_kib: (u64, u64),
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let subject = format!(
        "{:?} under {} attackers{}{}",
        args.target,
        args.attackers,
        if args.sleep { ", asleep" } else { "" },
        if args.auto { ", automatic progress" } else { "" }
    )
    .to_lowercase();
    print_line(&format!("fuzz of {subject}, seed {}", args.seed));
    let mut run = Run {
        args: args.clone(),
        given: args,
        domain: format!("fuzz-{}", std::process::id()),
        rng: Rng::new(args.seed),
        victim: None,
        honest: None,
        newcomer: None,
        attackers: Vec::new(),
        life: 0,
        counts: [0; 5],
        pulses: 0,
        worst_us: 0,
        heard: Instant::now(),
        newcomers: 0,
        newcomer_us: 0,
        newcomer_heard: Instant::now(),
        attacker_ends: 0,
        resident_kib: (0, 0),
    };
    let began = Instant::now();
    let mut outcome = run.attack();
    let last = run.last_records();
    for (attacker, _) in &mut run.attackers {
        let _ = attacker.child.kill();
        let _ = attacker.child.wait();
    }
    if outcome.is_ok() {
        outcome = run.judge(began.elapsed());
    }
    for process in [&mut run.honest, &mut run.newcomer, &mut run.victim].into_iter().flatten() {
        let _ = process.child.kill();
        let _ = process.child.wait();
    }
    let [records, words, handshakes, packets, connections] = run.counts;
    print_line(&format!(
        "     {records} records, {words} words, {handshakes} handshakes, {packets} packets, \
         {connections} connections; {} round trips, longest {} ms; {} newcomers, longest {} ms; \
         victim {} KiB, then {} KiB; {} attackers ended by themselves",
        run.pulses,
        run.worst_us / 1000,
        run.newcomers,
        run.newcomer_us / 1000,
        run.resident_kib.0,
        run.resident_kib.1,
        run.attacker_ends
    ));
    let (passed, failed) = match outcome {
        Ok(()) if args.crowd > 0 && connections > 0 => (connections, 0),
        Ok(()) if records > 0 => (records + handshakes, 0),
        Ok(()) => {
            print_line(&format!(
                "FAIL     fuzz of {subject}, seed {}\n    no attacker sent a record",
                args.seed
            ));
            (0, 1)
        }
        Err(Fail::Failed(why) | Fail::NotRun(why) | Fail::NotHere(why)) => {
            print_line(&format!(
                "FAIL     fuzz of {subject}, seed {}\n    {why}\n{last}",
                args.seed
            ));
            (0, 1)
        }
    };
    print_line(&format!("fuzz of {subject}: {passed} passed, {failed} failed"));
    ExitCode::from(u8::from(failed > 0))
}

impl Run<'_> {
    fn spawn(&mut self, role: Role, index: usize) -> Outcome<Process> {
        let (control, theirs) = pair()?;
        let file = |name: &str| memfd_create(name, MemfdFlags::CLOEXEC).map(File::from);
        let (output, errors) = (file("fuzz-output")?, file("fuzz-errors")?);
        let a = &self.args;
        let mut command = Command::new("/proc/self/exe");
        command
            .env("SCIF_DOMAIN", &self.domain)
            .env("SCIF_TRANSPORT", "soft")
            .arg("--lib")
            .arg(&a.lib);
        if role == Role::Victim {
            command.env("FI_LOG_LEVEL", "warn");
        } else {
            command.env("SCIF_LOG", "off");
        }
        let mut option = |name: &str, value: String| {
            command.arg(format!("--{name}")).arg(value);
        };
        option("target", format!("{:?}", a.target).to_lowercase());
        option("role", format!("{role:?}").to_lowercase());
        option("seed", a.seed.to_string());
        option("index", index.to_string());
        option("life", self.life.to_string());
        option("attackers", a.attackers.to_string());
        option("crowd", a.crowd.to_string());
        option("port", a.port.to_string());
        option("honest", a.honest.to_string());
        option("key", a.key.to_string());
        option("base", a.base.to_string());
        option("len", a.len.to_string());
        option("victim", a.victim.clone());
        if a.sleep && role == Role::Victim {
            command.arg("--sleep");
        }
        if a.auto && role == Role::Victim {
            command.arg("--auto");
        }
        self.life += 1;
        let child = command
            .stdin(Stdio::from(theirs))
            .stdout(output.try_clone()?)
            .stderr(errors.try_clone()?)
            .spawn()?;
        Ok(Process { child, control, output, errors })
    }

    fn attack(&mut self) -> Outcome {
        self.victim = Some(self.spawn(Role::Victim, 0)?);
        self.until("the victim's name", |run| !run.args.victim.is_empty())?;
        self.honest = Some(self.spawn(Role::Honest, 1)?);
        self.until("the first answer", |run| run.pulses > 0)?;
        if self.given.target == Target::Rdm {
            self.newcomer = Some(self.spawn(Role::Newcomer, 2 + self.given.attackers)?);
            self.until("the first newcomer", |run| run.newcomers > 0)?;
        }
        (self.worst_us, self.newcomer_us) = (0, 0);
        self.resident_kib.0 = self.resident();
        for index in 0..self.given.attackers {
            let attacker = self.spawn(Role::Attacker, 2 + index)?;
            let end = self.lifetime();
            self.attackers.push((attacker, end));
        }
        let begin = Instant::now();
        let over = |run: &Run<'_>| match run.given.records {
            Some(records) => run.counts.first() >= Some(&records),
            // A run without an attack proves nothing: a slow machine gets more time for the first
            // record.
            None => {
                let least = Duration::from_secs(run.given.seconds);
                let attacked = run.given.crowd > 0 || run.counts.first() > Some(&0);
                begin.elapsed() >= if attacked { least } else { least + START }
            }
        };
        while !over(self) {
            self.turn()?;
            for at in 0..self.attackers.len() {
                self.look_after(at)?;
            }
        }
        self.resident_kib.1 = self.resident();
        Ok(())
    }

    fn lifetime(&mut self) -> Instant {
        if self.given.crowd > 0 {
            return Instant::now() + Duration::from_secs(self.given.seconds) + START;
        }
        Instant::now() + Duration::from_millis(500 + self.rng.below(3000) as u64)
    }

    /// Kills an attacker that is due, and replaces one that has ended.
    fn look_after(&mut self, at: usize) -> Outcome {
        let Some((attacker, end)) = self.attackers.get_mut(at) else {
            return Ok(());
        };
        let ended = attacker.child.try_wait()?;
        if ended.is_none() && Instant::now() < *end {
            return Ok(());
        }
        let _ = attacker.child.kill();
        attacker.child.wait()?;
        if let Some(status) = ended {
            self.attacker_ends += 1;
            let mut why = text_of(&mut attacker.errors);
            while let Ok(Some(word)) = Say::recv(&attacker.control) {
                if !matches!(word, Say::Exchange(_)) {
                    why.push_str(&format!("{word:?}"));
                }
            }
            if self.attacker_ends <= 3 {
                print_line(&format!("     an attacker ended: {status} {}", why.trim()));
            }
        }
        let (fresh, end) = (self.spawn(Role::Attacker, 2 + at)?, self.lifetime());
        if let Some(place) = self.attackers.get_mut(at) {
            *place = (fresh, end);
        }
        Ok(())
    }

    fn until(&mut self, subject: &str, so: impl Fn(&Run<'_>) -> bool) -> Outcome {
        let begin = Instant::now();
        while !so(self) {
            if begin.elapsed() > START {
                return Err(Fail::here(format_args!("{subject} did not come: {}", self.errors())));
            }
            self.turn()?;
        }
        self.heard = Instant::now();
        Ok(())
    }

    /// Receives messages of all processes, and checks that victim and client are alive.
    fn turn(&mut self) -> Outcome {
        let all = [&self.victim, &self.honest, &self.newcomer].into_iter().flatten();
        let own = all.clone().count();
        let all: Vec<&OwnedFd> = all
            .chain(self.attackers.iter().map(|(attacker, _)| attacker))
            .map(|p| &p.control)
            .collect();
        let mut fds: Vec<PollFd<'_>> =
            all.iter().map(|fd| PollFd::new(*fd, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let mut said = Vec::new();
        for (at, fd) in fds.iter().enumerate() {
            let (true, Some(control)) = (fd.revents().contains(PollFlags::IN), all.get(at)) else {
                continue;
            };
            match Say::recv(control) {
                Ok(Some(Say::Exchange(bytes))) => {
                    said.push(String::from_utf8_lossy(&bytes).into_owned())
                }
                Ok(Some(Say::Failed(why) | Say::NotRun(why) | Say::NotHere(why))) if at < own => {
                    let id = IDS.get(at).unwrap_or(&"");
                    return Err(Fail::here(format_args!("{id}: {why}\n{}", self.errors())));
                }
                Ok(Some(word)) if self.attacker_ends < 3 => {
                    print_line(&format!("     an attacker: {word:?}"))
                }
                _ => {}
            }
        }
        for text in said {
            self.take(&text)?;
        }
        let mut ended = None;
        let processes = [&mut self.victim, &mut self.honest, &mut self.newcomer];
        for (id, process) in IDS.into_iter().zip(processes) {
            if let Some(status) =
                process.as_mut().map(|p| p.child.try_wait()).transpose()?.flatten()
            {
                ended.get_or_insert((id, status));
            }
        }
        if let Some((id, status)) = ended {
            return Err(Fail::here(format_args!("the {id} ended: {status}\n{}", self.errors())));
        }
        let silent = self.honest.is_some()
            && self.pulses > 0
            && self.heard.elapsed() > Duration::from_millis(10 * self.given.stall_ms);
        if silent {
            return Err(Fail::here(format_args!("the honest client hangs\n{}", self.errors())));
        }
        Ok(())
    }

    fn take(&mut self, text: &str) -> Outcome {
        let words: Vec<&str> = text.split_whitespace().collect();
        let number =
            |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        match words.first() {
            Some(&"victim") => {
                self.args.port = u16::try_from(number(1)).map_err(Fail::here)?;
                (self.args.key, self.args.base, self.args.len) = (number(2), number(3), number(4));
                self.args.victim = words.get(5).unwrap_or(&"").to_string();
            }
            Some(&"honest") => {
                self.args.honest = u16::try_from(number(1)).map_err(Fail::here)?;
                if let Some(victim) = &self.victim {
                    let word = format!("honest {}", words.get(2).unwrap_or(&""));
                    Answer::Parts(vec![word.into_bytes()]).send(&victim.control)?;
                }
            }
            Some(&"pulse") => {
                self.heard = Instant::now();
                self.pulses = number(1);
                self.worst_us = self.worst_us.max(number(2));
            }
            Some(&"newcomer") => {
                self.newcomer_heard = Instant::now();
                self.newcomers = number(1);
                self.newcomer_us = self.newcomer_us.max(number(2));
            }
            _ => {
                for (subject, sum) in self.counts.iter_mut().enumerate() {
                    *sum += number(subject);
                }
            }
        }
        Ok(())
    }

    fn resident(&self) -> u64 {
        let Some(victim) = &self.victim else { return 0 };
        let status = std::fs::read_to_string(format!("/proc/{}/status", victim.child.id()))
            .unwrap_or_default();
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        rss.and_then(|text| text.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }

    /// Returns the last output of the victim and its client.
    fn errors(&mut self) -> String {
        let mut text = String::new();
        for process in
            [&mut self.victim, &mut self.honest, &mut self.newcomer].into_iter().flatten()
        {
            let errors = text_of(&mut process.errors);
            let lines: Vec<&str> = errors.lines().collect();
            text.push_str(
                &lines.get(lines.len().saturating_sub(25)..).unwrap_or_default().join("\n"),
            );
            text.push('\n');
        }
        text
    }

    fn last_records(&mut self) -> String {
        let text = |(attacker, _): &mut (Process, _)| text_of(&mut attacker.output);
        self.attackers.iter_mut().map(text).collect()
    }

    /// Judges a run that all processes survived.
    fn judge(&mut self, took: Duration) -> Outcome {
        let victim = self.victim.as_mut().ok_or_else(|| Fail::here("no victim"))?;
        let errors = text_of(&mut victim.errors);
        if let Some(line) = panics(&errors).next() {
            let all = panics(&errors).count();
            return Err(Fail::here(format_args!("{all} panics: {line}")));
        }
        // Lines that peers cause have a limit, and lines about refused calls have a separate one.
        let (calls, peers): (Vec<&str>, Vec<&str>) =
            errors.lines().partition(|line| line.contains("reason()"));
        for lines in [calls, peers] {
            if lines.len() as u64 > LINES_ONCE + LINES_EACH * took.as_secs() {
                let last: Vec<&str> = lines.iter().rev().take(3).copied().collect();
                return Err(Fail::here(format_args!(
                    "{} lines of log, such as\n{}",
                    lines.len(),
                    last.join("\n")
                )));
            }
        }
        if self.worst_us > 1000 * self.given.stall_ms {
            return Err(Fail::here(format_args!(
                "the honest client waited {} ms",
                self.worst_us / 1000
            )));
        }
        // A newcomer that still waits counts.
        let waits = self.newcomer.is_some().then(|| self.newcomer_heard.elapsed().as_micros());
        let waits = u64::try_from(waits.unwrap_or(0)).unwrap_or(u64::MAX).max(self.newcomer_us);
        if waits > 1000 * self.given.newcomer_ms {
            return Err(Fail::here(format_args!("a newcomer waited {} ms", waits / 1000)));
        }
        let grown = self.resident_kib.1.saturating_sub(self.resident_kib.0) >> 10;
        if grown > self.given.grow_mib {
            return Err(Fail::here(format_args!("the victim grew by {grown} MiB")));
        }
        Ok(())
    }
}

/// Returns the lines about panics: of the standard library's hook, and of the provider's own hook.
fn panics(errors: &str) -> impl Iterator<Item = &str> {
    errors.lines().filter(|line| line.contains("panicked") || line.contains("internal error"))
}

fn text_of(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let _ = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::panics;

    #[test]
    fn panics_of_both_hooks_are_found() {
        let errors = "libfabric:1:scif:core: internal error at \
                      prov/src/engine/protocols/recv.rs:7, please report it: overflow\n\
                      libfabric:1:scif:ep_data: peer 0:7 wrote an invalid record into its ring\n\
                      thread 'main' panicked at fuzz/src/calls.rs:1:1:\n";
        assert_eq!(panics(errors).count(), 2);
    }
}

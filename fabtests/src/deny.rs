// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! `deny`: runs a command without permission for some system calls, or with a permission that
//! expires.
//!
//! Without `--after` the program installs the filter and executes the command in its place. With
//! `--after` it stays as the supervisor of every process of the command, and ends with the exit
//! code of the command.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode};
use std::sync::mpsc::channel;

use clap::Parser;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use scif_fabtests::harness::seccomp::{self, Questions};
use scif_fabtests::harness::{Fail, Outcome};

/// Runs a command whose processes get an error from some system calls, EPERM by default, as in a
/// container.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    /// Let the command make this many of the calls first, all its processes together
    #[arg(long, value_name = "CALLS")]
    after: Option<u64>,
    /// Fail with ENOSYS, as a system without such calls does
    #[arg(long, conflicts_with = "after")]
    nosys: bool,
    /// Groups of calls to deny: process_vm, pidfd, membarrier, userfaultfd, ptrace, memfd, epoll,
    /// eventfd
    #[arg(required = true, value_parser = calls)]
    calls: Vec<Calls>,
    /// The command
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
struct Calls(&'static [std::ffi::c_long]);

fn calls(name: &str) -> Result<Calls, String> {
    seccomp::group(name).map(Calls).ok_or_else(|| {
        let known: Vec<&str> = seccomp::GROUPS.iter().map(|(name, _)| *name).collect();
        format!("known are {}", known.join(", "))
    })
}

fn main() -> ExitCode {
    let args = Args::parse();
    let calls: Vec<_> = args.calls.iter().flat_map(|calls| calls.0).copied().collect();
    let ended = match args.after {
        None if args.nosys => become_command(&calls, libc::ENOSYS, &args.command),
        None => become_command(&calls, libc::EPERM, &args.command),
        Some(permits) => stand_over(calls, args.command, permits),
    };
    ended.unwrap_or_else(|fail| {
        let why = match fail {
            Fail::NotRun(why) | Fail::NotHere(why) | Fail::Failed(why) => why,
        };
        // Standard error may be closed; the exit code still reports the failure.
        let _ = writeln!(std::io::stderr().lock(), "deny: {why}");
        ExitCode::from(125)
    })
}

fn command(words: &[String]) -> Outcome<Command> {
    let (program, arguments) =
        words.split_first().ok_or_else(|| Fail::Failed("no command".into()))?;
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
}

fn become_command(calls: &[std::ffi::c_long], errno: i32, words: &[String]) -> Outcome<ExitCode> {
    seccomp::refuse(calls, errno)?;
    Err(command(words)?.exec().into())
}

fn stand_over(
    calls: Vec<std::ffi::c_long>,
    words: Vec<String>,
    mut permits: u64,
) -> Outcome<ExitCode> {
    let (here, there) = channel::<Outcome<(Questions, Child)>>();
    // The filter holds for the thread that installs it and its children, not for the supervisor.
    std::thread::spawn(move || {
        let started =
            seccomp::supervise(&calls).and_then(|asked| Ok((asked, command(&words)?.spawn()?)));
        // The receiver is waiting.
        let _ = here.send(started);
    });
    let (questions, mut child) = there.recv().map_err(Fail::here)??;
    loop {
        if let Some(status) = child.try_wait()? {
            let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
            return Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)));
        }
        let mut one = [PollFd::from_borrowed_fd(questions.as_fd(), PollFlags::IN)];
        let moment = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        match poll(&mut one, Some(&moment)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if one.iter().any(|asked| asked.revents().contains(PollFlags::IN)) {
            questions.answer(permits > 0)?;
            permits = permits.saturating_sub(1);
        }
    }
}

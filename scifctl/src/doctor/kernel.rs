// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Checks of the kernel: its version, and the calls that scif needs or is faster with. Copies
//! between processes are tried between two processes that are as unrelated as two ranks.

use std::io::{self, BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use scif::denial::Denial;
use scif::sys::pages::WriteFence;
use scif::sys::process_vm::{AccessError, Direction, RemoteMem, copy};
use scif::sys::{self, memfd, process, slice};
use serde_json::{Value, json};

use super::finding::{Finding, State};
use super::inputs::{Inputs, output, probe};
use crate::bandwidth::ChildGuard;
use crate::failure::Result;

/// Length in bytes of the memory that is copied between processes.
const COPIED: usize = 1 << 20;
/// Number of timed copies; the fastest counts.
const COPIES: usize = 16;
const YAMA: &str = "/proc/sys/kernel/yama/ptrace_scope";

pub(crate) fn check(inputs: &Inputs) -> Vec<Finding> {
    let copy = process_vm(inputs);
    let yama = yama(inputs, copy.state == State::Ok);
    vec![version(inputs), shared_memory(), userfaultfd(), pidfd(), yama, copy]
}

fn version(inputs: &Inputs) -> Finding {
    match inputs.read("/proc/sys/kernel/osrelease") {
        Some(release) => Finding::ok("kernel", format!("Linux {release}")),
        None => Finding::broken(
            "kernel",
            "/proc cannot be read: scif recognizes peers and their death by its files",
            "mount /proc",
        ),
    }
}

fn shared_memory() -> Finding {
    match memfd::create("scif:doctor", 4096) {
        Ok(_) => Finding::ok("memfd", "memfd_create works: shared memory of scif is of memfds"),
        Err(errno) => Finding::broken(
            "memfd",
            format!("memfd_create: {errno}; no endpoint can be opened"),
            "permit memfd_create in the seccomp profile of the container, and files of any size \
             (ulimit -f unlimited)",
        ),
    }
}

fn userfaultfd() -> Finding {
    if WriteFence::new().is_some() {
        return Finding::ok("userfaultfd", "works: pages can move while threads run");
    }
    Finding::slower(
        "userfaultfd",
        "denied: windows of scif_register stay in place, so peers cannot map them. Connections \
         with FI_SCIF_TRANSPORT=scif use the stream, and FI_SCIF_MR_MIGRATE=auto has no effect",
        "sysctl vm.unprivileged_userfaultfd=1, or a seccomp profile that permits userfaultfd",
    )
}

fn pidfd() -> Finding {
    let meaning = match sys::probe::pidfd() {
        Ok(()) => "pidfd_open works".to_owned(),
        Err(errno) => format!("pidfd_open: {errno}; no part of scif needs it"),
    };
    Finding::ok("pidfd", meaning)
}

/// Judges the restriction by Yama, of which a capability exempts. `copies`: a copy has succeeded.
fn yama(inputs: &Inputs, copies: bool) -> Finding {
    let scope = inputs.read(YAMA).and_then(|text| text.parse::<u32>().ok());
    match scope {
        None => Finding::ok("Yama", "absent: it restricts no copies between processes"),
        Some(0) => Finding::ok("Yama", "ptrace_scope 0: no restriction"),
        Some(1) if inputs.permits_ptracer() => Finding::ok(
            "Yama",
            "ptrace_scope 1: each process of scif permits copies by its peers (FI_SCIF_PTRACER)",
        ),
        Some(scope) if copies => {
            let text = "does not restrict this process (CAP_SYS_PTRACE)";
            Finding::ok("Yama", format!("ptrace_scope {scope} {text}"))
        }
        Some(1) => Finding::slower(
            "Yama",
            format!(
                "{YAMA} is 1, and FI_SCIF_PTRACER or SCIF_PTRACER is 0: processes may not copy \
                 from each other, and large messages go through the ring"
            ),
            "unset FI_SCIF_PTRACER and SCIF_PTRACER in every process, or sysctl \
             kernel.yama.ptrace_scope=0",
        ),
        Some(2) => Finding::slower(
            "Yama",
            format!(
                "{YAMA} is 2: only with CAP_SYS_PTRACE may processes copy from each other. Large \
                 messages go through the ring"
            ),
            "sysctl kernel.yama.ptrace_scope=1, or give CAP_SYS_PTRACE",
        ),
        Some(scope) => Finding::slower(
            "Yama",
            format!(
                "{YAMA} is {scope}: no process may copy from another, with any capability. Large \
                 messages go through the ring"
            ),
            "boot with kernel.yama.ptrace_scope at 1 or 0: it cannot be lowered before",
        ),
    }
}

/// Starts two processes, and lets one copy from the other.
fn process_vm(inputs: &Inputs) -> Finding {
    let answer = match copied(inputs.permits_ptracer()) {
        Ok(answer) => answer,
        Err(error) => json!({"error": format!("the probe has failed: {error}")}),
    };
    let subject = "process_vm";
    match (answer.get("megabytes_per_second").and_then(Value::as_f64), answer.get("error")) {
        (Some(rate), _) => Finding::ok(
            subject,
            format!("process_vm_readv copies between two processes, 1 MiB at {rate:.0} MB/s"),
        ),
        (None, error) => {
            let text = error.and_then(Value::as_str).unwrap_or("the probe has not answered");
            let (cause, remedy) = cause_and_remedy(text);
            let meaning = format!("{cause}. Messages above 16 KiB go through the ring, slower");
            Finding::new(State::Slower, subject, meaning, remedy)
        }
    }
}

/// Takes the explanation of a denial apart.
fn cause_and_remedy(text: &str) -> (&str, &str) {
    let cause = text.find("; ").unwrap_or(0);
    let remedy = text.get(cause..).and_then(|rest| rest.find(": ")).map(|at| cause + at);
    match remedy {
        Some(at) => (text.get(..at).unwrap_or(text), text.get(at + 2..).unwrap_or_default()),
        None => (text, "README, Containers"),
    }
}

fn copied(permits_ptracer: bool) -> io::Result<Value> {
    let mut command = probe(&["memory"])?;
    if permits_ptracer {
        command.arg("--ptracer");
    }
    let mut owner = ChildGuard(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
    let mut address = String::new();
    if let Some(out) = owner.0.stdout.take() {
        BufReader::new(out).read_line(&mut address)?;
    }
    let mut command = probe(&["copy", &owner.0.id().to_string(), address.trim()])?;
    let answer = output(&mut command, Duration::from_secs(5))?;
    Ok(serde_json::from_slice(&answer.stdout)?)
}

/// Returns byte `i` of the memory that is copied.
fn pattern(i: usize) -> u8 {
    (i % 251).to_le_bytes()[0]
}

/// Probe: keeps memory that another probe reads, until its input ends.
pub(crate) fn keep_memory(permits_ptracer: bool) -> Result<()> {
    let memory: Vec<u8> = (0..COPIED).map(pattern).collect();
    if permits_ptracer {
        // Without Yama this fails, and is not needed.
        let _ = process::allow_any_ptracer();
    }
    let mut out = io::stdout();
    writeln!(out, "{}", memory.as_ptr().expose_provenance())?;
    out.flush()?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    // The memory is in use until here.
    Ok(writeln!(out, "{}", memory.len())?)
}

/// Probe: copies from the process `pid`, and prints a JSON document with the rate or the error.
pub(crate) fn copy_memory(pid: i32, addr: u64) -> Result<()> {
    let mut buffer = vec![0; COPIED];
    let from = [RemoteMem { addr, len: COPIED as u64 }];
    let mut best = Duration::MAX;
    let mut answer = Ok(());
    for _ in 0..COPIES {
        let begin = Instant::now();
        answer = slice::with_bytes_mut(&mut buffer, |to| copy(pid, Direction::Read, &[*to], &from));
        best = best.min(begin.elapsed());
    }
    let same = buffer.iter().enumerate().all(|(i, byte)| *byte == pattern(i));
    let document = match answer {
        Ok(()) if same => {
            #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
            let rate = COPIED as f64 / best.as_secs_f64() / 1e6;
            json!({"megabytes_per_second": rate.round()})
        }
        Ok(()) => json!({"error": "process_vm_readv has copied other bytes than the peer has"}),
        Err(AccessError::Denied) => json!({"error": Denial::of_copy(pid).to_string()}),
        Err(other) => json!({"error": format!("process_vm_readv of process {pid}: {other:?}")}),
    };
    Ok(writeln!(io::stdout(), "{document}")?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use scif::Config;

    use super::*;
    use crate::doctor::env::Environment;

    fn with_yama(scope: &str, env: &[(&str, &str)], copies: bool) -> Finding {
        let root = std::env::temp_dir().join(format!(
            "scifctl-{}-yama-{scope}-{}",
            std::process::id(),
            env.len()
        ));
        let file = root.join(YAMA.trim_start_matches('/'));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, format!("{scope}\n")).unwrap();
        let inputs =
            Inputs { root: root.clone(), env: Environment::of(env), config: Config::default() };
        let found = yama(&inputs, copies);
        fs::remove_dir_all(root).unwrap();
        found
    }

    #[test]
    fn each_scope_of_yama_has_its_remedy() {
        let denied = |scope| with_yama(scope, &[], false);
        assert_eq!(denied("0").state, State::Ok);
        assert_eq!(denied("1").state, State::Ok);
        let switch = [("FI_SCIF_PTRACER", "0")];
        let found = with_yama("1", &switch, false);
        assert_eq!(found.state, State::Slower);
        assert!(found.action.contains("FI_SCIF_PTRACER"));
        assert!(denied("2").action.contains("ptrace_scope=1"));
        assert!(denied("3").action.contains("boot"));
        assert!(denied("3").meaning.contains("no process may copy"));
        for scope in ["1", "2"] {
            assert_eq!(with_yama(scope, &switch, true).state, State::Ok);
        }
    }

    #[test]
    fn explanations_are_parsed() {
        let text = "process_vm_readv of process 5: Operation not permitted; a filter denies it: \
                    start it with --cap-add=SYS_PTRACE";
        let (cause, remedy) = cause_and_remedy(text);
        assert!(cause.ends_with("a filter denies it"), "{cause}");
        assert_eq!(remedy, "start it with --cap-add=SYS_PTRACE");
        assert_eq!(cause_and_remedy("other").0, "other");
    }
}

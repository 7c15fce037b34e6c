// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Inputs of the checks: the files of the kernel, the environment, and the settings of the engine.

use std::fs;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

use scif::Config;
use scif::sys::process;

use super::env::Environment;

/// Time after the end of a command for which its output may stay open in other processes. Later
/// output is discarded.
const PAUSE: Duration = Duration::from_millis(500);

/// Inputs of the checks.
#[derive(Clone, Debug)]
pub(crate) struct Inputs {
    /// Directory below which files of the kernel are read; `/` except in tests.
    pub(crate) root: PathBuf,
    pub(crate) env: Environment,
    pub(crate) config: Config,
}

impl Inputs {
    /// Returns the path of a file of the kernel.
    pub(crate) fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    /// Reads a file of the kernel without the blanks at its ends.
    pub(crate) fn read(&self, absolute: &str) -> Option<String> {
        fs::read_to_string(self.path(absolute)).ok().map(|text| text.trim().to_owned())
    }

    /// Whether both switches that permit other processes to read this one's memory are on.
    pub(crate) fn permits_ptracer(&self) -> bool {
        self.config.ptracer && !self.env.is_off("FI_SCIF_PTRACER")
    }
}

/// Returns a command that runs a probe of this program.
pub(crate) fn probe(arguments: &[&str]) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("probe").args(arguments).stdin(Stdio::null());
    Ok(command)
}

/// Runs a command in a process group of its own, and kills the group after `limit`. Output that
/// stays open in a process that an ended command left is cut off after a pause.
///
/// # Errors
/// The command does not start, or `TimedOut`.
pub(crate) fn output(command: &mut Command, limit: Duration) -> io::Result<Output> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.process_group(0).spawn()?;
    let mut stdout = Stream::new(child.stdout.take());
    let mut stderr = Stream::new(child.stderr.take());
    let mut end = Instant::now() + limit;
    let mut status = None;
    loop {
        let open = stdout.is_open() | stderr.is_open();
        if status.is_some() && !open {
            break;
        }
        if Instant::now() > end {
            process::kill_group(child.id());
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
        if status.is_none() {
            status = child.try_wait()?;
            end = status.map_or(end, |_| end.min(Instant::now() + PAUSE));
        }
    }
    let Some(status) = status else {
        child.wait()?;
        return Err(io::ErrorKind::TimedOut.into());
    };
    Ok(Output { status, stdout: stdout.bytes, stderr: stderr.bytes })
}

/// Output of a command, read by a thread.
struct Stream {
    parts: Receiver<Vec<u8>>,
    bytes: Vec<u8>,
}

impl Stream {
    fn new(pipe: Option<impl Read + Send + 'static>) -> Stream {
        let (sender, parts) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            let mut pipe = pipe;
            while let Some(n) = pipe.as_mut().and_then(|pipe| pipe.read(&mut buffer).ok()) {
                let part = buffer.get(..n).unwrap_or_default();
                if part.is_empty() || sender.send(part.to_vec()).is_err() {
                    break;
                }
            }
        });
        Stream { parts, bytes: Vec::new() }
    }

    /// Takes the parts that have arrived. Whether more may follow.
    fn is_open(&mut self) -> bool {
        loop {
            match self.parts.try_recv() {
                Ok(part) => self.bytes.extend(part),
                Err(error) => return error == TryRecvError::Empty,
            }
        }
    }
}

/// Returns the file with this name in the first directory of a list like PATH that has it.
pub(crate) fn find_in(directories: &str, name: &str) -> Option<PathBuf> {
    directories
        .split(':')
        .filter(|directory| !directory.is_empty())
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, limit: Duration) -> io::Result<Output> {
        output(Command::new("sh").args(["-c", script]), limit)
    }

    #[test]
    fn a_process_that_a_command_leaves_does_not_delay_its_output() {
        let begin = Instant::now();
        let left = run("sleep 60 & echo said; echo $! >&2", Duration::from_secs(30)).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(20));
        assert!(left.status.success() && left.stdout == b"said\n");
        let pid = String::from_utf8(left.stderr).unwrap().trim().parse().unwrap();
        while matches!(process::state_of(pid), process::ProcessState::Seen(stat) if !stat.ended) {
            assert!(begin.elapsed() < Duration::from_secs(50), "the process is left behind");
        }
    }

    #[test]
    fn a_command_ends_at_its_limit_and_reads_no_input() {
        let late = run("sleep 60 | cat", Duration::from_millis(50));
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(run("cat", Duration::from_secs(30)).unwrap().stdout.is_empty());
    }
}

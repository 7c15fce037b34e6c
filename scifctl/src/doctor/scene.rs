// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Inputs of the checks: the files of the kernel, the environment, and the settings of the engine.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use scif::Config;

use super::env::Environment;

/// Inputs of the checks.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    /// Directory below which files of the kernel are read; `/` except in tests.
    pub(crate) root: PathBuf,
    pub(crate) env: Environment,
    pub(crate) config: Config,
}

impl Scene {
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

/// Runs a command, and kills it after `limit`.
///
/// # Errors
/// The command does not start, or `TimedOut`.
pub(crate) fn output(command: &mut Command, limit: Duration) -> io::Result<Output> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let readers = (child.stdout.take().map(reader), child.stderr.take().map(reader));
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begin.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let joined = |reader: Option<std::thread::JoinHandle<Vec<u8>>>| {
        reader.and_then(|thread| thread.join().ok()).unwrap_or_default()
    };
    Ok(Output { status, stdout: joined(readers.0), stderr: joined(readers.1) })
}

fn reader(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is still of use.
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

/// Returns the file with this name in the first directory of a list like PATH that has it.
pub(crate) fn find_in(directories: &str, name: &str) -> Option<PathBuf> {
    directories
        .split(':')
        .filter(|directory| !directory.is_empty())
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.is_file())
}

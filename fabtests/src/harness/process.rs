// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Forked processes of one case, and the cues by which two of them synchronise their steps.
//!
//! A rank of the driver is a program of its own. A forked process has the memory and descriptors of
//! its parent, for tests of both.
#![expect(unsafe_code, reason = "fork, signals and wait have no safe wrapper that fits")]

use std::io;
use std::os::unix::net::UnixDatagram;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Process id of the case, from which all its other processes are forked.
pub static CASE: OnceLock<u32> = OnceLock::new();

/// Signal that ends the process of a case when another process of it has reported a failure.
pub const SIDE_FAILED: i32 = libc::SIGTERM;

/// Makes this process the one of a case.
pub fn begin_case() {
    CASE.get_or_init(std::process::id);
}

/// Ends the case after one of its processes failed, since the others would wait for it.
fn end_case() {
    if let Some(&case) = CASE.get().filter(|&&case| case != std::process::id()) {
        // SAFETY: ends the process of the case, and with it all processes it started.
        unsafe { libc::kill(case as i32, SIDE_FAILED) };
    }
}

/// One end of a pair by which two processes synchronise their steps.
#[derive(Debug)]
pub struct Cue(UnixDatagram);

impl Cue {
    /// Returns both ends.
    pub fn pair() -> (Cue, Cue) {
        let (one, other) = UnixDatagram::pair().expect("a pair of sockets");
        (Cue(one), Cue(other))
    }

    /// Lets the other process continue.
    pub fn notify(&self) {
        self.0.send(&[1]).expect("the other process is gone");
    }

    /// Whether the other process has sent its cue already.
    pub fn is_notified(&self) -> bool {
        let mut byte = [0; 8];
        let blocks = |on: bool| self.0.set_nonblocking(!on).expect("a socket");
        blocks(false);
        let told = self.0.recv(&mut byte);
        blocks(true);
        told.is_ok_and(|n| n == 1)
    }

    /// Waits until the other process sends its cue.
    pub fn wait(&self) {
        let received = self.0.recv(&mut [0; 8]);
        assert_eq!(received.ok(), Some(1), "the other process is gone");
    }

    /// Lets the other process continue, and waits until it sends its cue.
    pub fn meet(&self) {
        self.notify();
        self.wait();
    }
}

/// Forked process that was not waited for.
#[derive(Debug)]
pub struct Process(libc::pid_t);

impl Process {
    /// Forks a process that exits with the result of `body`, without the exit handlers.
    pub fn fork(body: impl FnOnce() -> i32) -> io::Result<Process> {
        // SAFETY: callers fork before they start threads, or the child only makes the calls under
        // test and does not return from this function.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                let code = body();
                // SAFETY: ends this process.
                unsafe { libc::_exit(code) }
            }
            pid => Ok(Process(pid)),
        }
    }

    /// Starts a process that runs `body` and ends, at the latest with this one. A panic ends the
    /// case; [`wait`](Self::wait) asserts that there was none.
    pub fn start(body: impl FnOnce()) -> Process {
        let guarded = || {
            // SAFETY: makes the end of the parent end this process.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            if done.is_err() {
                end_case();
            }
            i32::from(done.is_err())
        };
        Process::fork(guarded).expect("a process")
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a child of ours that was not waited for.
        unsafe { libc::kill(self.0, signal) };
    }

    /// Kills it.
    pub fn kill(&self) {
        self.signal(libc::SIGKILL);
    }

    /// Returns its id.
    pub fn pid(&self) -> i32 {
        self.0
    }

    /// Stops it until `resume` or `kill`.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: a child of ours, and room for a status; returns when it has stopped.
        unsafe { libc::waitpid(self.0, &raw mut status, libc::WUNTRACED) };
    }

    /// Continues it after `stop`.
    pub fn resume(&self) {
        self.signal(libc::SIGCONT);
    }

    /// Waits for its end. Returns the status of `waitpid(2)`.
    pub fn status(self) -> io::Result<i32> {
        let mut status = 0;
        // SAFETY: a child of ours, and room for a status.
        let pid = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        if pid == self.0 { Ok(status) } else { Err(io::Error::last_os_error()) }
    }

    /// Waits for its end. Returns the exit status, or minus the signal.
    pub fn end(self) -> i32 {
        let status = self.status().expect("a child");
        if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
    }

    /// Whether it has ended, with all its threads and their resources.
    pub fn has_ended(&self) -> bool {
        // SAFETY: all zeroes is a valid siginfo.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let subject = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: a child of ours that was not waited for, and room for its state.
        unsafe { libc::waitid(libc::P_PID, self.0.unsigned_abs(), &raw mut info, subject) };
        info.si_signo != 0
    }

    /// Returns its end like `end`. When it takes longer than `limit`, calls `late` with its id, and
    /// kills it.
    pub fn end_within(self, limit: Duration, late: impl FnOnce(i32)) -> i32 {
        let begin = Instant::now();
        while !self.has_ended() {
            if begin.elapsed() > limit {
                late(self.0);
                self.kill();
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.end()
    }

    /// Waits for its end, and asserts that it succeeded.
    pub fn wait(self) {
        assert_eq!(self.end(), 0, "the other process failed");
    }
}

/// Returns where the threads of a process and of its descendants sleep, one a line: id and name,
/// function of the kernel, system call with its arguments.
#[must_use]
pub fn kernel_places(pid: i32) -> String {
    let mut text = String::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let [name, place, call] = ["comm", "wchan", "syscall"].map(read);
        text += &format!("    {pid} {}: {place} {}\n", name.trim(), call.trim());
        let children = read("children");
        text.extend(children.split(' ').filter_map(|pid| pid.parse().ok()).map(kernel_places));
    }
    text
}

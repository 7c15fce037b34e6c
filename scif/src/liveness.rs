// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Second proof of a peer's liveness: its process id and the start time of that process.
//!
//! The first proof is the connection's socket. This one needs no descriptor, and does not depend on
//! a forked child having closed its copy of that socket.

use crate::sys::process::{self, ProcessState};
use crate::sys::time::{now_ns, tick_ns};

/// Time in nanoseconds for which a result stays valid. A longer one delays the detection of a dead
/// peer.
const FRESH_NS: u64 = 1_000_000;
/// Maximum age in nanoseconds of a result before memory is accessed by process id. Less than the
/// kernel needs to reuse that id.
const RECENT_NS: u64 = 50_000_000;
/// Time in nanoseconds after the end of its connection for which an invisible process counts as
/// running. A longer one delays the end of its operations.
const HIDDEN_NS: u64 = 50_000_000;

/// One process at a process id, for its lifetime.
#[derive(Debug)]
pub struct ProcessProof {
    pid: i32,
    /// Start time; `None` if the process is not visible, so that this proof gives no information.
    start: Option<u64>,
    looked_ns: u64,
    ended: bool,
}

impl ProcessProof {
    /// Returns the present process with id `pid`; 0 for a process of another pid namespace.
    pub fn of(pid: i32) -> ProcessProof {
        let sight = if pid > 0 { process::state_of(pid) } else { ProcessState::Hidden };
        let (start, ended) = match sight {
            ProcessState::Seen(stat) => (Some(stat.start), stat.ended),
            ProcessState::Gone => (None, true),
            ProcessState::Hidden => (None, false),
        };
        ProcessProof { pid, start, looked_ns: now_ns(), ended }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    pub fn start(&self) -> Option<u64> {
        self.start
    }

    /// Whether the process still ran at most a millisecond ago. Once dead, it stays dead.
    pub(crate) fn alive(&mut self) -> bool {
        if self.ended || now_ns().wrapping_sub(self.looked_ns) < FRESH_NS {
            return !self.ended;
        }
        self.alive_now()
    }

    /// Returns whether the process may run after its connection has ended at `ended_ns`, or
    /// `u64::MAX` before. The connection is the only evidence of a process that cannot be seen.
    pub(crate) fn outlasts(&mut self, ended_ns: u64) -> bool {
        (self.start.is_some() || now_ns().saturating_sub(ended_ns) < HIDDEN_NS) && self.alive()
    }

    /// Whether the process still ran at most 50 ms ago; called before each access to its memory.
    #[inline]
    pub(crate) fn alive_recently(&mut self) -> bool {
        if self.ended || tick_ns().saturating_sub(self.looked_ns) < RECENT_NS {
            return !self.ended;
        }
        self.alive_now()
    }

    /// Whether the process still runs at this moment.
    pub(crate) fn alive_now(&mut self) -> bool {
        let (Some(start), false) = (self.start, self.ended) else {
            return !self.ended;
        };
        self.looked_ns = now_ns();
        self.ended = match process::state_of(self.pid) {
            ProcessState::Seen(stat) => stat.ended || stat.start != start,
            ProcessState::Gone => true,
            ProcessState::Hidden => false,
        };
        !self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::children;

    #[test]
    fn ends_with_the_process() {
        let mut me = ProcessProof::of(process::pid());
        assert!(me.alive() && me.start().is_some());
        let mut child = children::spawn(std::process::Command::new("sleep").arg("60"));
        let mut liveness = ProcessProof::of(child.id() as i32);
        assert!(liveness.alive());
        child.kill().unwrap();
        let begin = std::time::Instant::now();
        while liveness.alive() {
            assert!(begin.elapsed().as_secs() < 20);
        }
        child.wait().unwrap();
        assert!(!liveness.alive());
        let mut child = children::spawn(std::process::Command::new("sleep").arg("60"));
        let mut liveness = ProcessProof::of(child.id() as i32);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!liveness.alive_now(), "the last answer still held");
        assert!(ProcessProof::of(0).alive(), "invisible is not dead");
    }

    #[test]
    fn a_hidden_process_does_not_outlast_its_connection() {
        let long_ago = now_ns() - 2 * HIDDEN_NS;
        assert!(ProcessProof::of(process::pid()).outlasts(long_ago));
        let mut hidden = ProcessProof::of(0);
        assert!(hidden.outlasts(u64::MAX), "its connection has not ended");
        assert!(hidden.alive() && !hidden.outlasts(long_ago));
    }
}

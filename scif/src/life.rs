// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The second proof that a peer lives: its pid and when that process started.
//!
//! The first one is the connection's socket. This one needs no descriptor and does not depend on a forked child
//! having closed its copy of that socket.

use crate::sys::process::{self, Sight};
use crate::sys::time::{now_ns, tick_ns};

/// How long an answer holds.
const FRESH_NS: u64 = 1_000_000;
/// How old it may be where memory is touched by the process's number: less than it takes the kernel to come to that number again.
const RECENT_NS: u64 = 50_000_000;

/// A process, for as long as it exists.
#[derive(Debug)]
pub(crate) struct Life {
    pid: i32,
    /// `None`: not to be seen from here, so this proof says nothing.
    start: Option<u64>,
    looked_ns: u64,
    ended: bool,
}

impl Life {
    /// Of `pid` as it is now; 0 for a process of another pid namespace.
    pub(crate) fn of(pid: i32) -> Life {
        let sight = if pid > 0 {
            process::look(pid)
        } else {
            Sight::Hidden
        };
        let (start, ended) = match sight {
            Sight::Seen(stat) => (Some(stat.start), stat.ended),
            Sight::Gone => (None, true),
            Sight::Hidden => (None, false),
        };
        Life {
            pid,
            start,
            looked_ns: now_ns(),
            ended,
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    pub(crate) fn start(&self) -> Option<u64> {
        self.start
    }

    /// Whether it still runs, at most a millisecond ago. Once dead, always dead.
    pub(crate) fn alive(&mut self) -> bool {
        if self.ended || now_ns().wrapping_sub(self.looked_ns) < FRESH_NS {
            return !self.ended;
        }
        self.alive_now()
    }

    /// Whether it still ran some hundredths of a second ago; asked for each access to its memory.
    #[inline]
    pub(crate) fn alive_recently(&mut self) -> bool {
        if self.ended || tick_ns().saturating_sub(self.looked_ns) < RECENT_NS {
            return !self.ended;
        }
        self.alive_now()
    }

    /// Whether it still runs, as of this call.
    pub(crate) fn alive_now(&mut self) -> bool {
        let (Some(start), false) = (self.start, self.ended) else {
            return !self.ended;
        };
        self.looked_ns = now_ns();
        self.ended = match process::look(self.pid) {
            Sight::Seen(stat) => stat.ended || stat.start != start,
            Sight::Gone => true,
            Sight::Hidden => false,
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
        let mut me = Life::of(process::pid());
        assert!(me.alive() && me.start().is_some());
        let mut child = children::spawn(std::process::Command::new("sleep").arg("60"));
        let mut life = Life::of(child.id().cast_signed());
        assert!(life.alive());
        child.kill().unwrap();
        let begin = std::time::Instant::now();
        while life.alive() {
            assert!(begin.elapsed().as_secs() < 20);
        }
        child.wait().unwrap();
        assert!(!life.alive());
        let mut child = children::spawn(std::process::Command::new("sleep").arg("60"));
        let mut life = Life::of(child.id().cast_signed());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!life.alive_now(), "the last answer still held");
        assert!(Life::of(0).alive(), "invisible is not dead");
    }
}

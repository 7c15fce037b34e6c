// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Names whose processes have died or closed the endpoint, until a message reaches a new one there.
//!
//! A connection takes records before its peer has answered, so that peers may start in any order.
//! To a dead process such records would seem sent, and the close of the own endpoint would wait for
//! them. So a connect to its name waits until the network has taken a message to it.

use std::net::SocketAddrV4;

use super::wire::WirePeer;

/// Maximum number of names. Further ones displace the oldest, to which records seem sent again.
const NAMES_MAX: usize = 1024;
/// Pause in nanoseconds between two attempts. A longer one delays the first message to a new
/// process, a shorter one leaves the network less time to reach it.
const PAUSE_NS: u64 = 1_000_000;
/// Number of refused attempts after which a connect is refused. With fewer, a slow network to a new
/// process counts as none.
const ATTEMPTS: u32 = 50;

/// One name.
#[derive(Debug)]
pub(super) struct DeadName {
    name: SocketAddrV4,
    pub(super) to: WirePeer,
    /// Number of attempts that the network has refused.
    refused: u32,
    tried_ns: u64,
    /// Whether a process at that name has sent a message.
    is_heard: bool,
}

impl DeadName {
    /// Returns whether an attempt is due, and notes it.
    pub(super) fn take_attempt(&mut self, now: u64) -> bool {
        let is_due = now.saturating_sub(self.tried_ns) >= PAUSE_NS;
        if is_due {
            self.tried_ns = now;
        }
        is_due
    }

    /// Notes that the network has not taken a message.
    pub(super) fn note_refused(&mut self) {
        self.refused = self.refused.saturating_add(1);
    }

    /// Whether the network has refused often enough for a connect to fail.
    pub(super) fn is_refused(&self) -> bool {
        self.refused >= ATTEMPTS
    }

    pub(super) fn is_heard(&self) -> bool {
        self.is_heard
    }
}

/// The names, oldest first.
#[derive(Debug, Default)]
pub(super) struct DeadNames(Vec<DeadName>);

impl DeadNames {
    /// Notes the end of an endpoint. Returns the number of a name that is displaced, or that was
    /// noted before.
    pub(super) fn note_end(&mut self, name: SocketAddrV4, to: WirePeer) -> Option<WirePeer> {
        let displaced = match self.0.iter().position(|dead| dead.name == name) {
            Some(at) => Some(at),
            None => (self.0.len() >= NAMES_MAX).then_some(0),
        };
        let displaced = displaced.map(|at| self.0.remove(at).to);
        self.0.push(DeadName { name, to, refused: 0, tried_ns: 0, is_heard: false });
        displaced
    }

    pub(super) fn get_mut(&mut self, name: SocketAddrV4) -> Option<&mut DeadName> {
        self.0.iter_mut().find(|dead| dead.name == name)
    }

    /// Notes a greeting from that name.
    pub(super) fn note_heard(&mut self, name: SocketAddrV4) {
        if let Some(dead) = self.get_mut(name) {
            dead.is_heard = true;
        }
    }

    /// Removes a name. Returns its number.
    pub(super) fn remove(&mut self, name: SocketAddrV4) -> Option<WirePeer> {
        let at = self.0.iter().position(|dead| dead.name == name)?;
        Some(self.0.remove(at).to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_names_are_displaced() {
        let mut names = DeadNames::default();
        let name = |n: u64| SocketAddrV4::new([10, 1, 1, 1].into(), u16::try_from(n).unwrap() + 1);
        for n in 0..NAMES_MAX as u64 {
            assert_eq!(names.note_end(name(n), WirePeer(n)), None);
        }
        assert_eq!(names.note_end(name(0), WirePeer(7000)), Some(WirePeer(0)));
        assert_eq!(names.note_end(name(5000), WirePeer(5000)), Some(WirePeer(1)));
        assert!(names.get_mut(name(1)).is_none() && names.get_mut(name(0)).is_some());
        assert_eq!(names.remove(name(0)), Some(WirePeer(7000)));
        assert_eq!(names.remove(name(0)), None);
    }

    #[test]
    fn a_name_is_refused_after_enough_attempts_that_are_apart() {
        let mut names = DeadNames::default();
        let name = SocketAddrV4::new([10, 1, 1, 1].into(), 7);
        names.note_end(name, WirePeer(1));
        let dead = names.get_mut(name).unwrap();
        let mut now = 5 * PAUSE_NS;
        for _ in 0..ATTEMPTS {
            assert!(!dead.is_refused());
            assert!(dead.take_attempt(now) && !dead.take_attempt(now + PAUSE_NS - 1));
            dead.note_refused();
            now += PAUSE_NS;
        }
        assert!(dead.is_refused() && !dead.is_heard());
        names.note_heard(name);
        assert!(names.get_mut(name).is_some_and(|dead| dead.is_heard()));
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Protocol between a rank and its parent, one SEQPACKET message each. Only the encoding is
//! implemented in this file.
//!
//! For barriers, exchanges, kills, stops and respawns a rank waits for a reply; all other messages
//! have none.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

/// Maximum bytes of a message; longer texts are truncated. A few hundred addresses need less.
pub const LONGEST: usize = 96 * 1024;

/// Message of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Say {
    /// The rank has reached the barrier.
    Barrier,
    /// Contribution of the rank to an exchange.
    Exchange(Vec<u8>),
    /// Request to kill that rank with SIGKILL.
    Kill(usize),
    /// Request to stop that rank with SIGSTOP.
    Stop(usize),
    /// Request to continue that rank with SIGCONT.
    Resume(usize),
    /// Request to start that rank again; it is dead.
    Respawn(usize),
    /// From now on the death of the sending rank is part of the case.
    ExpectDeath,
    /// Current step of the rank.
    Step(String),
    /// The part of the rank has passed.
    Passed,
    /// The provider lacks a feature.
    NotRun(String),
    /// The library is too old for the case, or the system denies a call that it needs.
    NotHere(String),
    /// The part of the rank has failed.
    Failed(String),
}

/// Reply of the parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Permission to continue.
    Go,
    /// Contributions of all ranks, in rank order; empty for a dead rank.
    Parts(Vec<Vec<u8>>),
}

/// Returns a connected pair: the end of the parent and the end of the rank.
pub fn pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

impl Say {
    fn encode(&self) -> Vec<u8> {
        let (tag, rest): (u8, Vec<u8>) = match self {
            Say::Barrier => (b'b', Vec::new()),
            Say::Exchange(part) => (b'x', part.clone()),
            Say::Kill(rank) => (b'k', rank.to_le_bytes().to_vec()),
            Say::Stop(rank) => (b'h', rank.to_le_bytes().to_vec()),
            Say::Resume(rank) => (b'c', rank.to_le_bytes().to_vec()),
            Say::Respawn(rank) => (b'r', rank.to_le_bytes().to_vec()),
            Say::ExpectDeath => (b'd', Vec::new()),
            Say::Step(text) => (b's', text.clone().into_bytes()),
            Say::Passed => (b'p', Vec::new()),
            Say::NotRun(text) => (b'n', text.clone().into_bytes()),
            Say::NotHere(text) => (b'o', text.clone().into_bytes()),
            Say::Failed(text) => (b'f', text.clone().into_bytes()),
        };
        let mut out = vec![tag];
        out.extend(rest);
        out
    }

    fn decode(bytes: &[u8]) -> Option<Say> {
        let (tag, rest) = bytes.split_first()?;
        let text = || String::from_utf8_lossy(rest).into_owned();
        let rank = || rest.try_into().ok().map(usize::from_le_bytes);
        Some(match tag {
            b'b' => Say::Barrier,
            b'x' => Say::Exchange(rest.to_vec()),
            b'k' => Say::Kill(rank()?),
            b'h' => Say::Stop(rank()?),
            b'c' => Say::Resume(rank()?),
            b'r' => Say::Respawn(rank()?),
            b'd' => Say::ExpectDeath,
            b's' => Say::Step(text()),
            b'p' => Say::Passed,
            b'n' => Say::NotRun(text()),
            b'o' => Say::NotHere(text()),
            b'f' => Say::Failed(text()),
            _ => return None,
        })
    }

    /// Sends the message to the parent.
    ///
    /// # Errors
    /// `EMSGSIZE`: a contribution is too long.
    pub fn send(&self, to: impl AsFd) -> rustix::io::Result<()> {
        let mut bytes = self.encode();
        if bytes.len() > LONGEST && matches!(self, Say::Exchange(_)) {
            return Err(Errno::MSGSIZE);
        }
        bytes.truncate(LONGEST);
        send(to, &bytes, SendFlags::NOSIGNAL).map(drop)
    }

    /// Receives the next message of a rank. `None` when the rank has closed its end or sent an
    /// invalid message.
    pub fn recv(from: impl AsFd) -> rustix::io::Result<Option<Say>> {
        let mut buf = vec![0_u8; LONGEST];
        let (len, _) = recv(from, &mut buf[..], RecvFlags::empty())?;
        Ok(Say::decode(buf.get(..len).unwrap_or_default()))
    }
}

impl Answer {
    /// Sends the reply to a rank.
    pub fn send(&self, to: impl AsFd) -> rustix::io::Result<()> {
        let mut out = Vec::new();
        match self {
            Answer::Go => out.push(b'g'),
            Answer::Parts(parts) => {
                out.push(b'x');
                for part in parts {
                    out.extend(part.len().to_le_bytes());
                    out.extend(part);
                }
            }
        }
        send(to, &out, SendFlags::NOSIGNAL).map(drop)
    }

    /// Receives the reply of the parent. `None` when the parent has closed its end or sent an
    /// invalid message.
    pub fn recv(from: impl AsFd) -> rustix::io::Result<Option<Answer>> {
        let mut buf = vec![0_u8; LONGEST];
        let (len, _) = recv(from, &mut buf[..], RecvFlags::empty())?;
        Ok(Answer::decode(buf.get(..len).unwrap_or_default()))
    }

    fn decode(bytes: &[u8]) -> Option<Answer> {
        let (tag, mut rest) = bytes.split_first()?;
        match tag {
            b'g' => Some(Answer::Go),
            b'x' => {
                let mut parts = Vec::new();
                while !rest.is_empty() {
                    let (len, more) = rest.split_first_chunk::<{ size_of::<usize>() }>()?;
                    let (part, more) = more.split_at_checked(usize::from_le_bytes(*len))?;
                    parts.push(part.to_vec());
                    rest = more;
                }
                Some(Answer::Parts(parts))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_socket() {
        let (parent, rank) = pair().unwrap();
        for word in [
            Say::Barrier,
            Say::Exchange(vec![1, 2, 3]),
            Say::Kill(3),
            Say::Stop(2),
            Say::Resume(2),
            Say::Respawn(1),
            Say::ExpectDeath,
            Say::Step("here".into()),
            Say::Passed,
            Say::NotRun("no".into()),
            Say::NotHere("old".into()),
            Say::Failed("bad".into()),
        ] {
            word.send(&rank).unwrap();
            assert_eq!(Say::recv(&parent).unwrap(), Some(word));
        }
        for answer in [Answer::Go, Answer::Parts(vec![vec![], vec![9], vec![1, 2]])] {
            answer.send(&parent).unwrap();
            assert_eq!(Answer::recv(&rank).unwrap(), Some(answer));
        }
        let long = "x".repeat(LONGEST);
        let exchange = Say::Exchange(long.clone().into_bytes());
        assert_eq!(exchange.send(&rank), Err(Errno::MSGSIZE), "not a part of it");
        Say::Failed(long.clone()).send(&rank).unwrap();
        assert_eq!(Say::recv(&parent), Ok(Some(Say::Failed(long[1..].into()))));
        drop(rank);
        assert!(matches!(Say::recv(&parent), Ok(None) | Err(_)));
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The words between a rank and its parent, one SEQPACKET message each. Only the encoding lives here.
//!
//! A rank asks and, for barriers, exchanges, kills and respawns, waits for the answer; everything else is told.

use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

/// The longest message; more than a few hundred addresses need.
pub const LONGEST: usize = 96 * 1024;

/// What a rank says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Say {
    /// I am at the barrier.
    Barrier,
    /// My part of an exchange.
    Exchange(Vec<u8>),
    /// Kill that rank with SIGKILL.
    Kill(usize),
    /// Start that rank again; it is dead.
    Respawn(usize),
    /// My death from now on is part of the case.
    ExpectDeath,
    /// What I am doing.
    Step(String),
    /// My part of the case is over.
    Passed,
    /// The provider lacks a feature.
    NotRun(String),
    /// The library is too old for it.
    NotHere(String),
    /// Something is wrong.
    Failed(String),
}

/// What the parent answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Go on.
    Go,
    /// The parts of all ranks; dead ranks have an empty one.
    Parts(Vec<Vec<u8>>),
}

/// A connected pair: the parent's end and the rank's.
///
/// # Errors
/// Those of `socketpair(2)`.
pub fn pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
}

impl Say {
    fn encode(&self) -> Vec<u8> {
        let (tag, rest): (u8, Vec<u8>) = match self {
            Say::Barrier => (b'b', Vec::new()),
            Say::Exchange(part) => (b'x', part.clone()),
            Say::Kill(rank) => (b'k', rank.to_le_bytes().to_vec()),
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

    /// Sends it to the parent.
    ///
    /// # Errors
    /// Those of `send(2)`.
    pub fn send(&self, to: impl AsFd) -> rustix::io::Result<()> {
        let mut bytes = self.encode();
        bytes.truncate(LONGEST);
        send(to, &bytes, SendFlags::NOSIGNAL).map(drop)
    }

    /// Takes the next word of a rank; `None` when the rank has gone or speaks nonsense.
    ///
    /// # Errors
    /// Those of `recv(2)`.
    pub fn recv(from: impl AsFd) -> rustix::io::Result<Option<Say>> {
        let mut buf = vec![0_u8; LONGEST];
        let (len, _) = recv(from, &mut buf[..], RecvFlags::empty())?;
        Ok(Say::decode(buf.get(..len).unwrap_or_default()))
    }
}

impl Answer {
    /// Sends it to a rank.
    ///
    /// # Errors
    /// Those of `send(2)`.
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

    /// Takes the parent's answer; `None` when the parent has gone or speaks nonsense.
    ///
    /// # Errors
    /// Those of `recv(2)`.
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
        drop(rank);
        assert!(matches!(Say::recv(&parent), Ok(None) | Err(_)));
    }
}

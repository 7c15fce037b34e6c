// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Loss of a node: its start by an administrator, and its effect on every process that is connected
//! with the node.
//!
//! Not about the list of nodes (`nodes`). A node is lost while a process holds its marker, a
//! listening socket under a name of the node; then no connects to or from the node succeed. The
//! process that takes the marker sends a request to every process of the domain, through the socket
//! of its presence. The service threads then close their connections with the node and answer.
//! Source: the User Guide's section on the loss of a node; the driver's removal of one.

use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use scif::Config;
use scif::sys::time::now_ns;
use scif::sys::{descriptor, process, thread, unix};
use scif_ring::counter::AtomicFlag;

use crate::failure::{Failure, Result};
use crate::nodes::{self, Presence, QUESTIONS, domain_of, is_lost, marker, marker_deadline};
use crate::wire::{PACKET, Packet};

/// Nanoseconds that a process may take to answer. Afterwards it is reported as silent.
const ANSWER_NS: u64 = 1_000_000_000;
/// Time in milliseconds that the service thread waits for the question on a new connection. The
/// asking process sends it right after the connect; a silent one delays the thread by this time.
const QUESTION_MS: i32 = 1000;
/// Nanoseconds that the process which keeps a node lost may take to give it up. It answers or ends
/// at once, unless it is stopped.
const RESTORE_NS: u64 = 10_000_000_000;
/// Time for which the end of a loss waits until the name of the marker is free.
const END_LIMIT: Duration = Duration::from_secs(1);
/// Number of attempts to ask one process. On a busy machine more than `QUESTION_MS` may pass
/// between connect and question, and the other side then closes the connection.
const QUESTIONS_ASKED: u32 = 3;
/// Answers of the processes of a domain.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Answers {
    /// Number of connections that ended. Both sides count one, unless one side learnt of the end
    /// from the other first.
    pub ended: u32,
    /// Process ids of the processes that answered.
    pub answered: Vec<i32>,
    /// Process ids of the processes that did not answer in time.
    pub silent: Vec<i32>,
}

/// Listening socket that marks a node as lost.
#[derive(Debug)]
struct Marker {
    socket: OwnedFd,
    /// Whether the loss ends.
    ends: AtomicFlag,
}

/// Lost node, until this is dropped.
#[derive(Debug)]
pub struct FailedNode {
    marker: Arc<Marker>,
    /// Requests to end the loss, from the thread that empties the queue of the marker.
    restores: mpsc::Receiver<Result<OwnedFd>>,
}

impl FailedNode {
    /// Loses `node` for every process of the domain in `config`. From then on, its connections
    /// return ECONNRESET, accesses to mappings of its windows raise SIGBUS, and connects to it or
    /// from it return ENODEV. Takes a second if a process does not answer.
    ///
    /// # Errors
    /// [`Failure::InUse`]: the node is lost already.
    pub fn new(config: &Config, node: u16) -> Result<(FailedNode, Answers)> {
        FailedNode::within(config, node, Duration::from_nanos(ANSWER_NS))
    }

    /// Loses `node` like [`FailedNode::new`], but processes may take `limit` to answer. For a
    /// system so busy that a second is too short.
    ///
    /// # Errors
    /// Errors of [`FailedNode::new`].
    pub fn within(config: &Config, node: u16, limit: Duration) -> Result<(FailedNode, Answers)> {
        let domain = domain_of(config);
        let socket = unix::socket()?;
        unix::bind(&socket, &marker(&domain, node)?).map_err(|errno| match errno {
            Errno::ADDRINUSE => Failure::InUse,
            other => other.into(),
        })?;
        unix::listen(&socket, QUESTIONS)?;
        let (told, restores) = mpsc::channel();
        let marker = Marker { socket, ends: AtomicFlag::new(false) };
        let lost = FailedNode { marker: Arc::new(marker), restores };
        let marker = Arc::clone(&lost.marker);
        thread::spawn_quiet("scif-lost", move || keep(marker, &told))
            .map_err(|_| Failure::NoMemory)?;
        Ok((lost, query_all(&domain, Packet::Lose(node.into()), limit)))
    }

    /// Blocks until another process calls [`restore`].
    ///
    /// # Errors
    /// Errors of the system when it cannot wait.
    pub fn hold(self) -> Result<()> {
        let socket = self.restores.recv().map_err(|_| Failure::Broken)??;
        // Freed before the other process continues.
        drop(self);
        let _ = unix::send(&socket, &Packet::Restore.encode(), &[]);
        Ok(())
    }
}

impl Drop for FailedNode {
    fn drop(&mut self) {
        self.marker.ends.set(true);
        // Wakes the thread.
        let _ = unix::stop_listening(&self.marker.socket);
        // The thread closes its marker before the channel. A forked child has no thread.
        while self.restores.recv_timeout(END_LIMIT).is_ok() {}
    }
}

/// Empties the queue of a marker, so that questions find room in it. Passes requests to end the
/// loss to `restores`.
fn keep(marker: Arc<Marker>, restores: &mpsc::Sender<Result<OwnedFd>>) {
    let own = process::uid();
    while !marker.ends.get() {
        descriptor::wait_readable(&marker.socket, -1);
        match unix::accept(&marker.socket) {
            Ok(socket) => {
                let trusted =
                    unix::credentials(&socket).is_ok_and(|peer| peer.uid == own || peer.uid == 0);
                if trusted && matches!(read(&socket), Some(Packet::Restore)) {
                    let _ = restores.send(Ok(socket));
                }
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            Err(errno) => {
                let _ = restores.send(Err(errno.into()));
                break;
            }
        }
    }
    drop(marker);
}

/// Ends the loss of a node. Its endpoints stay disconnected; new ones can be made.
///
/// # Errors
/// [`Failure::NoNode`]: the node is not lost. [`Failure::NoAccess`]: another user lost it, or the
/// process that lost it does not answer within ten seconds.
pub fn restore(config: &Config, node: u16) -> Result<()> {
    let socket = unix::socket()?;
    match unix::connect(&socket, &marker(&domain_of(config), node)?) {
        Err(Errno::CONNREFUSED) => return Err(Failure::NoNode),
        other => other?,
    }
    unix::send(&socket, &Packet::Restore.encode(), &[])?;
    let begin = now_ns();
    while now_ns() - begin < RESTORE_NS {
        descriptor::wait_readable(&socket, QUESTION_MS);
        match unix::receive(&socket, &mut [0; PACKET + 1]) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(received) if received.bytes != 0 => return Ok(()),
            Ok(_) | Err(_) => break,
        }
    }
    Err(Failure::NoAccess)
}

/// Sends a question to each process on `node` in turn. Returns the time to each answer in
/// nanoseconds, or `None` for no answer within a second.
///
/// # Errors
/// [`Failure::NoNode`]: the node has no processes, or is lost.
pub fn ping(config: &Config, node: u16) -> Result<Vec<(i32, Option<u64>)>> {
    let domain = domain_of(config);
    let own = process::uid();
    let on_node = nodes::presences(&domain)
        .unwrap_or_default()
        .into_iter()
        .filter(|presence| presence.node == node)
        .collect::<Vec<_>>();
    let trusted = |uid| uid == own || uid == 0;
    if on_node.is_empty() || is_lost(&domain, node, marker_deadline(), trusted) {
        return Err(Failure::NoNode);
    }
    let one = |presence: Presence| {
        let begin = now_ns();
        let asked = query(&presence, Packet::Echo(7));
        let answer = asked.and_then(|socket| answer(&socket, begin + ANSWER_NS));
        (presence.pid, answer.map(|_| now_ns() - begin))
    };
    Ok(on_node.into_iter().map(one).collect())
}

pub(crate) fn read(socket: &OwnedFd) -> Option<Packet> {
    descriptor::wait_readable(socket, QUESTION_MS);
    let mut buffer = [0; PACKET + 1];
    let received = unix::receive(socket, &mut buffer).ok()?;
    buffer.get(..received.bytes).and_then(Packet::decode)
}

fn query(presence: &Presence, question: Packet) -> Option<OwnedFd> {
    let socket = unix::socket().ok()?;
    let name = SocketAddrUnix::new_abstract_name(presence.name.as_bytes()).ok()?;
    unix::connect(&socket, &name).ok()?;
    unix::send(&socket, &question.encode(), &[]).ok()?;
    Some(socket)
}

/// Returns the answer, if it arrives before the deadline.
fn answer(socket: &OwnedFd, deadline: u64) -> Option<u32> {
    loop {
        let mut buffer = [0; PACKET + 1];
        match unix::receive(socket, &mut buffer) {
            Ok(received) => {
                return match buffer.get(..received.bytes).and_then(Packet::decode)? {
                    Packet::Echo(n) | Packet::Ended(n) => Some(n),
                    _ => None,
                };
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return None,
        }
        let left = deadline.checked_sub(now_ns())?.div_ceil(1_000_000);
        descriptor::wait_readable(socket, i32::try_from(left).unwrap_or(i32::MAX));
    }
}

fn query_all(domain: &str, question: Packet, limit: Duration) -> Answers {
    let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
    let deadline = now_ns().saturating_add(limit);
    let asked: Vec<(Presence, Option<OwnedFd>)> = nodes::presences(domain)
        .unwrap_or_default()
        .into_iter()
        .map(|presence| {
            let socket = query(&presence, question);
            (presence, socket)
        })
        .collect();
    let mut answers = Answers::default();
    for (presence, mut socket) in asked {
        let mut answered = None;
        for _ in 0..QUESTIONS_ASKED {
            answered = socket.and_then(|socket| answer(&socket, deadline));
            if answered.is_some() || now_ns() >= deadline {
                break;
            }
            socket = query(&presence, question);
        }
        match answered {
            Some(n) => {
                answers.ended = answers.ended.saturating_add(n);
                answers.answered.push(presence.pid);
            }
            None => answers.silent.push(presence.pid),
        }
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_stays_lost_after_many_queries() {
        let domain = format!("questions-{}", process::pid());
        let config = Config { domain: Some(domain.clone()), ..Config::default() };
        let own = process::uid();
        let is_lost = || is_lost(&domain, 9, marker_deadline(), |uid| uid == own);
        let (lost, _) = FailedNode::new(&config, 9).unwrap();
        for question in 0..5 * QUESTIONS {
            assert!(is_lost(), "question {question}");
        }
        drop(lost);
        assert!(!is_lost());
    }

    #[test]
    fn process_with_an_expired_wait_is_queried_again() {
        let domain = format!("loss-{}", process::pid());
        let presence = nodes::appear(&domain, 9).unwrap();
        let asked = std::thread::spawn(move || {
            descriptor::wait_readable(&presence, -1);
            drop(unix::accept(&presence).unwrap());
            descriptor::wait_readable(&presence, -1);
            let socket = unix::accept(&presence).unwrap();
            assert_eq!(read(&socket), Some(Packet::Lose(7)));
            unix::send(&socket, &Packet::Ended(3).encode(), &[]).unwrap();
        });
        let answers = query_all(&domain, Packet::Lose(7), Duration::from_secs(30));
        assert_eq!((answers.ended, answers.answered.len()), (3, 1), "{answers:?}");
        asked.join().unwrap();
    }
}

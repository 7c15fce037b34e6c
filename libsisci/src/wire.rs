// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Packets between the processes of a connection, and the connecting side of the greeting.
//!
//! The connecting process sends a request, and the owner answers it, with descriptors if it
//! accepts. Later packets announce events. Nothing in a packet is trusted.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use scif::sys::{descriptor, unix};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::{Outcome, SciError, fail};

/// First word of each packet, with the version of the layout.
const MAGIC: u32 = 0x5349_0001;
/// Interval at which a full backlog is tried again.
const RETRY: Duration = Duration::from_millis(1);
/// Pause of the service thread after a connection that it could not accept. A shorter one loads a
/// processor while descriptors are short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Kind of a packet: its second word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub(crate) enum PacketKind {
    /// Connecting side: connects to the object; `value` is the flags.
    Connect = 1,
    /// Connecting side: attaches to a shared segment of the own node.
    Attach = 2,
    /// Owner: answer; `value` is the code, `size` the size of a segment.
    Answer = 3,
    /// Owner: event of the segment; `value` is the reason.
    Notice = 4,
    /// Connecting side: disconnects.
    Bye = 5,
}

impl PacketKind {
    fn of(number: u32) -> Option<PacketKind> {
        use PacketKind::{Answer, Attach, Bye, Connect, Notice};
        [Connect, Attach, Answer, Notice, Bye].into_iter().find(|kind| *kind as u32 == number)
    }
}

/// A packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Packet {
    pub(crate) magic: u32,
    pub(crate) kind: u32,
    /// Node of the sender.
    pub(crate) node: u32,
    /// Adapter that the connecting side uses.
    pub(crate) adapter: u32,
    pub(crate) value: u32,
    /// Number of the object, where the request does not name it.
    pub(crate) number: u32,
    pub(crate) size: u64,
}

impl Packet {
    pub(crate) fn new(kind: PacketKind) -> Packet {
        let kind = kind as u32;
        Packet { magic: MAGIC, kind, node: 0, adapter: 0, value: 0, number: 0, size: 0 }
    }

    /// Returns the kind, if the packet has a known one.
    pub(crate) fn kind(&self) -> Option<PacketKind> {
        PacketKind::of(self.kind).filter(|_| self.magic == MAGIC)
    }

    /// Sends it. Never blocks.
    pub(crate) fn send(&self, socket: impl AsFd, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        unix::send(socket, self.as_bytes(), fds)
    }
}

impl Packet {
    /// Sends it as the first packet of a connection.
    ///
    /// # Errors
    /// `NoSuchSegment` if the owner has ended since the connection; errors of the system.
    pub(crate) fn send_first(&self, socket: impl AsFd) -> Outcome<()> {
        match self.send(socket, &[]) {
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => fail(SciError::NoSuchSegment),
            sent => Ok(sent?),
        }
    }
}

/// State of the input of a socket.
#[derive(Debug)]
pub(crate) enum Input {
    /// Packet with its descriptors.
    Packet(Packet, Vec<OwnedFd>),
    /// No packet yet.
    Nothing,
    /// End of the connection, or a packet that is none.
    End,
}

/// Takes the next packet of a socket. Never blocks.
pub(crate) fn receive(socket: impl AsFd) -> Input {
    let mut bytes = [0; size_of::<Packet>() + 1];
    match unix::receive(socket, &mut bytes) {
        Ok(got) if got.bytes == size_of::<Packet>() && !got.cut => {
            match Packet::read_from_prefix(&bytes) {
                Ok((packet, _)) if packet.kind().is_some() => Input::Packet(packet, got.fds),
                _ => Input::End,
            }
        }
        Ok(_) => Input::End,
        Err(Errno::AGAIN | Errno::INTR) => Input::Nothing,
        Err(_) => Input::End,
    }
}

/// Time limit of a call: `None` for calls that wait without limit.
pub(crate) type Deadline = Option<Instant>;

/// Returns the deadline of a timeout in milliseconds, of which the largest means none.
pub(crate) fn deadline(timeout_ms: u32) -> Deadline {
    (timeout_ms != u32::MAX).then(|| Instant::now() + Duration::from_millis(timeout_ms.into()))
}

/// Whether a deadline has passed.
pub(crate) fn is_past(deadline: Deadline) -> bool {
    deadline.is_some_and(|end| Instant::now() >= end)
}

/// Returns an accepted connection, if one waited. Pauses when descriptors are short: the listening
/// socket remains readable.
pub(crate) fn next_connection(accepted: Result<OwnedFd, Errno>) -> Option<OwnedFd> {
    if matches!(accepted, Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) {
        std::thread::sleep(ACCEPT_PAUSE);
    }
    accepted.ok()
}

/// Waits until a descriptor is readable.
///
/// # Errors
/// `Timeout` at the deadline.
pub(crate) fn wait_readable(fd: impl AsFd, deadline: Deadline) -> Outcome<()> {
    loop {
        let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
        let limit = left.map_or(-1, |left| {
            i32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
        });
        descriptor::wait_readable(&fd, limit);
        if descriptor::readable(&fd) {
            return Ok(());
        }
        if left.is_some_and(|left| left.is_zero()) {
            return fail(SciError::Timeout);
        }
    }
}

/// Connects a new socket to a name.
///
/// # Errors
/// `NoSuchSegment` without a listener there, `Timeout` while its backlog is full, `Access` if its
/// owner is a user that is not `trusted`.
pub(crate) fn connect(
    address: &rustix::net::SocketAddrUnix,
    trusted: impl Fn(u32) -> bool,
    deadline: Deadline,
) -> Outcome<OwnedFd> {
    let socket = unix::socket()?;
    loop {
        match unix::connect(&socket, address) {
            Ok(()) => break,
            Err(Errno::CONNREFUSED | Errno::NOENT) => return fail(SciError::NoSuchSegment),
            Err(Errno::AGAIN) if is_past(deadline) => return fail(SciError::Timeout),
            Err(Errno::AGAIN | Errno::INTR) => std::thread::sleep(RETRY),
            Err(errno) => return Err(errno.into()),
        }
    }
    if trusted(unix::credentials(&socket)?.uid) { Ok(socket) } else { fail(SciError::Access) }
}

/// Waits for the answer to a request.
///
/// # Errors
/// The code in the answer; `NoSuchSegment` if the owner ends meanwhile; `Timeout`.
pub(crate) fn answer(socket: impl AsFd, deadline: Deadline) -> Outcome<(Packet, Vec<OwnedFd>)> {
    loop {
        match receive(&socket) {
            Input::Packet(packet, fds) => return accepted(packet, fds),
            Input::Nothing => wait_readable(&socket, deadline)?,
            Input::End => return fail(SciError::NoSuchSegment),
        }
    }
}

/// Checks an answer.
///
/// # Errors
/// The code in the answer.
pub(crate) fn accepted(packet: Packet, fds: Vec<OwnedFd>) -> Outcome<(Packet, Vec<OwnedFd>)> {
    match (packet.kind(), SciError::of(packet.value)) {
        (Some(PacketKind::Answer), SciError::Ok) => Ok((packet, fds)),
        (Some(PacketKind::Answer), code) => fail(code),
        _ => fail(SciError::ConnectionRefused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_checked() {
        let (a, b) = unix::pair().unwrap();
        assert!(matches!(receive(&b), Input::Nothing));
        let packet = Packet { size: 7, ..Packet::new(PacketKind::Answer) };
        packet.send(&a, &[]).unwrap();
        assert!(matches!(receive(&b), Input::Packet(got, _) if got == packet));
        for bad in [vec![0; size_of::<Packet>()], vec![1; 8], vec![1; 60]] {
            unix::send(&a, &bad, &[]).unwrap();
            assert!(matches!(receive(&b), Input::End), "{} bytes", bad.len());
        }
        drop(a);
        assert!(matches!(receive(&b), Input::End));
    }

    #[test]
    fn a_request_to_an_owner_that_ended_finds_no_segment() {
        let (a, b) = unix::pair().unwrap();
        drop(b);
        let failed = Packet::new(PacketKind::Connect).send_first(&a);
        assert_eq!(failed, fail(SciError::NoSuchSegment));
    }

    #[test]
    fn an_answer_that_does_not_come_is_a_timeout() {
        let (a, _b) = unix::pair().unwrap();
        let failed = answer(&a, deadline(1)).err().map(|failure| failure.code);
        assert_eq!(failed, Some(SciError::Timeout));
    }
}

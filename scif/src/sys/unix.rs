// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Unix sockets of packets that carry descriptors, and whom they lead to. See `unix(7)`.
//!
//! Not about what the packets mean, nor about the names.
#![expect(
    unsafe_code,
    reason = "SO_PEERCRED by hand: a peer of another pid namespace has pid 0"
)]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// Most descriptors taken from one packet; more are closed by the kernel and the packet counts as cut.
pub(crate) const FDS_MAX: usize = 4;
/// Most descriptors that processes which share an endpoint leave each other in a packet.
pub(crate) const LEFT_FDS_MAX: usize = 8;

/// Who is at the other end, as the kernel says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Credentials {
    /// 0: not visible from here (another pid namespace).
    pub(crate) pid: i32,
    pub(crate) uid: u32,
}

/// A packet that came in.
#[derive(Debug)]
pub(crate) struct Received {
    /// 0: the peer has closed.
    pub(crate) bytes: usize,
    /// Longer than the buffer, or more descriptors than could be taken.
    pub(crate) cut: bool,
    pub(crate) fds: Vec<OwnedFd>,
}

pub(crate) fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

pub(crate) fn bind(fd: impl AsFd, addr: &SocketAddrUnix) -> Result<(), Errno> {
    rustix::net::bind(fd, addr)
}

pub(crate) fn listen(fd: impl AsFd, backlog: i32) -> Result<(), Errno> {
    rustix::net::listen(fd, backlog)
}

/// Refuses every later caller of a listener; those that wait already can still be accepted.
pub(crate) fn stop_listening(fd: impl AsFd) -> Result<(), Errno> {
    rustix::net::shutdown(fd, rustix::net::Shutdown::Read)
}

pub(crate) fn connect(fd: impl AsFd, addr: &SocketAddrUnix) -> Result<(), Errno> {
    rustix::net::connect(fd, addr)
}

/// Both ends of a connection within this process and those it forks: what is sent to the first is read from the second.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// The next waiting connection. EAGAIN when none waits.
pub(crate) fn accept(fd: impl AsFd) -> Result<OwnedFd, Errno> {
    rustix::net::accept_with(fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// Whether it is a Unix socket that listens.
pub(crate) fn is_listener(fd: impl AsFd) -> bool {
    let fd = fd.as_fd();
    rustix::net::sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX)
        && rustix::net::sockopt::socket_acceptconn(fd) == Ok(true)
}

/// Sets whether calls on a socket wait. That belongs to the description, which every process with a copy shares.
pub(crate) fn set_waiting(fd: impl AsFd, waiting: bool) -> Result<(), Errno> {
    let fd = fd.as_fd();
    let mut flags = rustix::fs::fcntl_getfl(fd)?;
    flags.set(rustix::fs::OFlags::NONBLOCK, !waiting);
    rustix::fs::fcntl_setfl(fd, flags)
}

/// The name the other end is bound to.
pub(crate) fn peer_name(fd: impl AsFd) -> Option<SocketAddrUnix> {
    SocketAddrUnix::try_from(rustix::net::getpeername(fd).ok()??).ok()
}

/// `getsockopt(SO_PEERCRED)`: who called connect (seen from the accepting side) or listen.
pub(crate) fn credentials(fd: impl AsFd) -> Result<Credentials, Errno> {
    let mut cred = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    #[expect(clippy::cast_possible_truncation, reason = "12 bytes")]
    let mut len = size_of_val(&cred) as libc::socklen_t;
    let raw = fd.as_fd().as_raw_fd();
    // SAFETY: `cred` and `len` are live and `len` is the size of `cred`.
    let rc = unsafe {
        libc::getsockopt(
            raw,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut cred).cast(),
            &raw mut len,
        )
    };
    if rc != 0 {
        return Err(super::process::last_errno());
    }
    Ok(Credentials {
        pid: cred.pid,
        uid: cred.uid,
    })
}

/// Sends one packet, never blocks, never raises SIGPIPE.
pub(crate) fn send(fd: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    if fds.is_empty() {
        return rustix::net::send(fd, bytes, flags).map(|_| ());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(LEFT_FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOBIG);
    }
    rustix::net::sendmsg(fd, &[IoSlice::new(bytes)], &mut control, flags).map(|_| ())
}

/// Takes one packet, never blocks: EAGAIN when none is there.
pub(crate) fn receive(fd: impl AsFd, buffer: &mut [u8]) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    receive_into(fd, buffer, &mut space, RecvFlags::empty())
}

/// Copies of what is in the first packet and rides along, up to [`LEFT_FDS_MAX`]; it stays where it is.
pub(crate) fn peek(fd: impl AsFd, buffer: &mut [u8]) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(LEFT_FDS_MAX))];
    receive_into(fd, buffer, &mut space, RecvFlags::PEEK)
}

/// Drops the first packet, with what rides along.
pub(crate) fn skip(fd: impl AsFd) -> Result<(), Errno> {
    // What there is no room for is closed by the kernel.
    rustix::net::recv(fd, &mut [MaybeUninit::<u8>::uninit(); 1], RecvFlags::DONTWAIT).map(|_| ())
}

fn receive_into(
    fd: impl AsFd,
    buffer: &mut [u8],
    space: &mut [MaybeUninit<u8>],
    how: RecvFlags,
) -> Result<Received, Errno> {
    let mut control = RecvAncillaryBuffer::new(space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC | how;
    let message = rustix::net::recvmsg(fd, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights);
        }
    }
    let cut = message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    Ok(Received {
        bytes: message.bytes,
        cut,
        fds,
    })
}

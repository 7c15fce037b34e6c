// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Unix packet sockets that carry descriptors, and the identity of their peers. See `unix(7)`.
//!
//! Not about the meaning of packets, nor about the names.
#![expect(unsafe_code, reason = "SO_PEERCRED by hand: a peer of another pid namespace has pid 0")]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// Maximum number of descriptors taken from one packet. The kernel closes further ones, and the
/// packet counts as cut.
pub(crate) const FDS_MAX: usize = 4;
/// Maximum number of descriptors in a packet between sharers of an endpoint.
pub(crate) const LEFT_FDS_MAX: usize = 8;

/// Identity of the process at the other end, from the kernel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Credentials {
    /// Process id; 0 if it is not visible (another pid namespace).
    pub pid: i32,
    pub uid: u32,
}

/// A received packet.
#[derive(Debug)]
pub struct Received {
    /// Length; 0 if the peer has closed.
    pub bytes: usize,
    /// Whether it was longer than the buffer, or had more descriptors than could be taken.
    pub cut: bool,
    pub fds: Vec<OwnedFd>,
}

pub fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

pub fn bind(fd: impl AsFd, addr: &SocketAddrUnix) -> Result<(), Errno> {
    rustix::net::bind(fd, addr)
}

pub fn listen(fd: impl AsFd, backlog: i32) -> Result<(), Errno> {
    rustix::net::listen(fd, backlog)
}

/// Refuses all later connections to a listener; waiting ones can still be accepted.
pub fn stop_listening(fd: impl AsFd) -> Result<(), Errno> {
    rustix::net::shutdown(fd, rustix::net::Shutdown::Read)
}

pub fn connect(fd: impl AsFd, addr: &SocketAddrUnix) -> Result<(), Errno> {
    rustix::net::connect(fd, addr)
}

/// Returns both ends of a connection within this process and its forked children. Data sent to the
/// first end is read from the second.
pub fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Accepts the next waiting connection. EAGAIN without one.
pub fn accept(fd: impl AsFd) -> Result<OwnedFd, Errno> {
    rustix::net::accept_with(fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// Whether it is a listening Unix socket.
pub(crate) fn is_listener(fd: impl AsFd) -> bool {
    let fd = fd.as_fd();
    rustix::net::sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX)
        && rustix::net::sockopt::socket_acceptconn(fd) == Ok(true)
}

/// Whether it is a Unix socket for packets, to which [`send`] never blocks.
pub fn is_packet_socket(fd: impl AsFd) -> bool {
    let fd = fd.as_fd();
    rustix::net::sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX)
        && rustix::net::sockopt::socket_type(fd) == Ok(SocketType::SEQPACKET)
}

/// Sets whether calls on a socket block. The setting belongs to the description, shared by every
/// process with a copy.
pub(crate) fn set_waiting(fd: impl AsFd, waiting: bool) -> Result<(), Errno> {
    let fd = fd.as_fd();
    let mut flags = rustix::fs::fcntl_getfl(fd)?;
    flags.set(rustix::fs::OFlags::NONBLOCK, !waiting);
    rustix::fs::fcntl_setfl(fd, flags)
}

/// Returns the name to which the other end is bound.
pub fn peer_name(fd: impl AsFd) -> Option<SocketAddrUnix> {
    SocketAddrUnix::try_from(rustix::net::getpeername(fd).ok()??).ok()
}

/// Returns `getsockopt(SO_PEERCRED)`: the process that called connect (seen from the accepting
/// side) or listen.
pub fn credentials(fd: impl AsFd) -> Result<Credentials, Errno> {
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
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
    Ok(Credentials { pid: cred.pid, uid: cred.uid })
}

/// Sends one packet. Never blocks, never raises SIGPIPE.
pub fn send(fd: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
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

/// Receives one packet. Never blocks: EAGAIN without one.
pub fn receive(fd: impl AsFd, buffer: &mut [u8]) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    receive_into(fd, buffer, &mut space, RecvFlags::empty())
}

/// Returns copies of the first packet and up to [`LEFT_FDS_MAX`] attached descriptors, and leaves
/// the packet in place.
pub fn peek(fd: impl AsFd, buffer: &mut [u8]) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(LEFT_FDS_MAX))];
    receive_into(fd, buffer, &mut space, RecvFlags::PEEK)
}

/// Drops the first packet with its descriptors.
pub fn skip(fd: impl AsFd) -> Result<(), Errno> {
    // The kernel closes descriptors for which no space is given.
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
    Ok(Received { bytes: message.bytes, cut, fds })
}

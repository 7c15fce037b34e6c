// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The descriptor of an endpoint, made of a socket pair: end A belongs to the program, end B to the
//! library and the peer.
//!
//! A byte written to B makes A readable. Bytes written to A up to its limit make A not writable,
//! and taking them from B makes it writable again. When the last copy of A is closed, B hangs up. A
//! shutdown of B makes A hang up, and B too. The last close of A then appears as an error, since A
//! is left with an unread byte. See `socketpair(2)`, `unix(7)`.
//!
//! Not about the time of these changes.
#![expect(unsafe_code, reason = "the program names its descriptors by number")]

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType};

/// Maximum number of writes that fill a socket with the smallest buffer; two suffice on every known
/// kernel.
const FILL_MAX: usize = 64;

/// Identity of an open socket.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Identity {
    dev: u64,
    ino: u64,
}

impl Identity {
    pub fn inode(&self) -> u64 {
        self.ino
    }
}

/// Returns both ends of a new descriptor: A and B. A is close-on-exec if `cloexec`.
pub fn pair(cloexec: bool) -> Result<(OwnedFd, OwnedFd), Errno> {
    let (a, b) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::sockopt::set_socket_send_buffer_size(&a, 0)?;
    if !cloexec {
        rustix::io::fcntl_setfd(&a, rustix::io::FdFlags::empty())?;
    }
    Ok((a, b))
}

/// Whether a descriptor from a peer is of the kind of B: a write to another kind may block.
pub fn is_bell(b: &OwnedFd) -> bool {
    rustix::net::sockopt::socket_domain(b) == Ok(AddressFamily::UNIX)
        && rustix::net::sockopt::socket_type(b) == Ok(SocketType::STREAM)
}

/// Returns the identity of the socket behind a descriptor of the program. EBADF: not open.
pub fn identify(fd: RawFd) -> Result<Identity, Errno> {
    with_number(fd, |fd| identity(fd))
}

/// Returns the identity of a socket.
pub fn identity(fd: impl AsFd) -> Result<Identity, Errno> {
    let stat = rustix::fs::fstat(fd)?;
    Ok(Identity { dev: stat.st_dev, ino: stat.st_ino })
}

/// Runs `call` on a descriptor that stays owned by the program.
fn with_number<T>(
    fd: RawFd,
    call: impl FnOnce(BorrowedFd<'_>) -> Result<T, Errno>,
) -> Result<T, Errno> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: not negative; the system calls below check that it is open (EBADF), and no copy is
    // kept.
    call(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Closes a descriptor of the program.
pub fn close(fd: RawFd) -> Result<(), Errno> {
    // SAFETY: plain close(2), as the program requests; EBADF for a descriptor that is not open.
    if unsafe { libc::close(fd) } == 0 { Ok(()) } else { Err(super::process::last_errno()) }
}

/// Makes `to` a copy of `from`, and keeps the flags that the program has set on `to`.
pub fn replace(from: RawFd, to: RawFd) -> Result<(), Errno> {
    let (flags, status) =
        with_number(to, |to| Ok((rustix::io::fcntl_getfd(to)?, rustix::fs::fcntl_getfl(to)?)))?;
    let cloexec = if flags.contains(rustix::io::FdFlags::CLOEXEC) { libc::O_CLOEXEC } else { 0 };
    // SAFETY: dup3(2) on two descriptors of the program, as it requests.
    if unsafe { libc::dup3(from, to, cloexec) } < 0 {
        return Err(super::process::last_errno());
    }
    with_number(to, |to| rustix::fs::fcntl_setfl(to, status))
}

/// Passes a descriptor to the program.
pub fn release(fd: OwnedFd) -> RawFd {
    fd.into_raw_fd()
}

/// Takes ownership of a descriptor that the library opened and that has no other owner.
pub fn adopt(fd: RawFd) -> OwnedFd {
    // SAFETY: the number comes from `release` or from a call that opens, and has no other owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Takes back a descriptor that the program never received.
pub fn take_back(fd: RawFd) {
    drop(adopt(fd));
}

/// Whether the program has set O_NONBLOCK.
pub fn is_nonblocking(fd: RawFd) -> Result<bool, Errno> {
    with_number(fd, |fd| Ok(rustix::fs::fcntl_getfl(fd)?.contains(rustix::fs::OFlags::NONBLOCK)))
}

/// Makes A readable: writes one byte to B. A closed A is no error.
pub fn show_data(b: impl AsFd) {
    let _ = rustix::net::send(b, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Makes A not readable: takes its bytes.
pub fn hide_data(a: RawFd) {
    let _ = with_number(a, |a| {
        drain(a);
        Ok(())
    });
}

/// Makes A writable: takes the bytes in B.
pub fn show_space(b: impl AsFd) {
    drain(b);
}

/// Makes A not writable: fills its buffer.
pub fn hide_space(a: RawFd) {
    let _ = with_number(a, |a| {
        for _ in 0..FILL_MAX {
            if rustix::net::send(a, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_err()
                || !ready(a, PollFlags::OUT)
            {
                break;
            }
        }
        Ok(())
    });
}

fn drain(fd: impl AsFd) {
    let mut space = [MaybeUninit::<u8>::uninit(); 256];
    while let Ok((_, 1..)) | Err(Errno::INTR) =
        rustix::net::recv(&fd, &mut space, RecvFlags::DONTWAIT)
    {}
}

fn ready(fd: impl AsFd, events: PollFlags) -> bool {
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut set = [PollFd::new(&fd, events)];
    poll(&mut set, Some(&zero)).is_ok()
        && set.iter().any(|entry| entry.revents().intersects(events))
}

/// Waits until input is available, or for `limit_ms`; negative: without limit.
pub fn wait_readable(fd: impl AsFd, limit_ms: i32) {
    let limit = Timespec {
        tv_sec: i64::from(limit_ms / 1000),
        tv_nsec: i64::from(limit_ms % 1000) * 1_000_000,
    };
    let limit = (limit_ms >= 0).then_some(&limit);
    let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], limit);
}

/// Whether input waits in a socket, or a connection at a listening one.
pub fn readable(fd: impl AsFd) -> bool {
    ready(fd, PollFlags::IN)
}

/// Whether a descriptor of the program is readable.
#[cfg(any(test, feature = "testing"))]
pub fn shows_data(a: RawFd) -> bool {
    with_number(a, |a| Ok(readable(a))) == Ok(true)
}

/// Whether every copy of A is closed; `shut`: A was hung up before.
pub fn is_closed(b: impl AsFd, shut: bool) -> bool {
    ready(b, if shut { PollFlags::ERR } else { PollFlags::HUP })
}

/// Hangs up A. Returns false if every copy of it is already closed.
pub fn hang_up(b: impl AsFd) -> bool {
    let left = rustix::net::send(&b, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    shut(b);
    !matches!(left, Err(Errno::PIPE | Errno::CONNRESET))
}

/// Shuts a socket down for all its holders.
pub fn shut(socket: impl AsFd) {
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}

/// Calls poll(2) on the program's array: `entries` in the layout of `struct pollfd`.
pub fn poll_raw(entries: &mut [libc::pollfd], timeout_ms: i32) -> Result<usize, Errno> {
    let n = libc::nfds_t::try_from(entries.len()).map_err(|_| Errno::INVAL)?;
    // SAFETY: a live slice of pollfd and its length.
    let rc = unsafe { libc::poll(entries.as_mut_ptr(), n, timeout_ms) };
    usize::try_from(rc).map_err(|_| super::process::last_errno())
}

/// Checks that poll(2) accepts an array of the program: EINVAL for more entries than the limit of
/// descriptors, EFAULT for memory that is not mapped or not writable.
pub fn check_polled(at: usize, n: u32) -> Result<(), Errno> {
    let place = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: the program passes the array for a poll; the kernel checks the memory, and writes
    // only the result bits of entries.
    if unsafe { libc::poll(place, n.into(), 0) } >= 0 {
        return Ok(());
    }
    match super::process::last_errno() {
        // The array was read: no wait has begun that a signal could end.
        Errno::INTR => Ok(()),
        errno => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::children;
    use std::os::fd::AsRawFd;

    fn bits(fd: RawFd) -> i16 {
        let mut set = [libc::pollfd { fd, events: libc::POLLIN | libc::POLLOUT, revents: 0 }];
        poll_raw(&mut set, 0).unwrap();
        set[0].revents
    }

    #[test]
    fn every_readiness_can_be_shown_and_hidden() {
        let _alone = children::none();
        let (a, b) = pair(true).unwrap();
        let raw = a.as_raw_fd();
        assert_eq!(bits(raw), libc::POLLOUT);
        hide_space(raw);
        assert_eq!(bits(raw), 0);
        show_data(&b);
        assert_eq!(bits(raw), libc::POLLIN);
        show_space(&b);
        assert_eq!(bits(raw), libc::POLLIN | libc::POLLOUT);
        hide_data(raw);
        assert_eq!(bits(raw), libc::POLLOUT);
        assert!(!is_closed(&b, false));
        let copy = a.try_clone().unwrap();
        drop(a);
        assert!(!is_closed(&b, false));
        assert!(hang_up(&b));
        assert_eq!(bits(copy.as_raw_fd()) & libc::POLLHUP, libc::POLLHUP);
        assert_eq!(identify(-1), Err(Errno::BADF));
        assert_eq!(identify(copy.as_raw_fd()), identity(&copy));
        assert!(!is_closed(&b, true));
        drop(copy);
        assert!(is_closed(&b, true));
    }

    #[test]
    fn kernel_checks_the_poll_array() {
        let mut entry = libc::pollfd { fd: -1, events: 0, revents: 7 };
        let at = (&raw mut entry).expose_provenance();
        assert_eq!(check_polled(at, 1), Ok(()));
        assert_eq!(check_polled(at, u32::MAX), Err(Errno::INVAL));
        assert_eq!(check_polled(64, 1), Err(Errno::FAULT));
        assert_eq!(check_polled(64, 0), Ok(()));
    }

    #[test]
    fn only_a_bell_descriptor_is_recognised() {
        let (_a, b) = pair(true).unwrap();
        assert!(is_bell(&b));
        let socket = |family, kind| rustix::net::socket(family, kind, None).unwrap();
        assert!(!is_bell(&socket(AddressFamily::UNIX, SocketType::SEQPACKET)));
        assert!(!is_bell(&socket(AddressFamily::INET, SocketType::STREAM)));
        assert!(!is_bell(&rustix::pipe::pipe().unwrap().1));
    }

    #[test]
    fn the_last_close_hangs_b_up() {
        let _alone = children::none();
        let (a, b) = pair(true).unwrap();
        let raw = release(a);
        close(raw).unwrap();
        assert!(is_closed(&b, false));
        assert!(!hang_up(&b));
        let (a, b) = pair(false).unwrap();
        take_back(release(a));
        assert!(is_closed(&b, false));
    }
}

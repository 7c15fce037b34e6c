// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Hand-over of the descriptors of an endpoint that gets a port or a peer after a fork, to its
//! other sharers.
//!
//! Not about state that all sharers have anyway: memory (`sharer`), and descriptors from before the
//! fork. A hand-off is a pair of sockets that only sharers have. It is made before the fork of an
//! endpoint that is not connected and does not listen. One packet lies in it, with all descriptors
//! of the endpoint. Each sharer takes copies by MSG_PEEK, whichever sharer dies meanwhile; a sharer
//! that changes the endpoint replaces the packet. The peer has none of this. Source: section 3.5.1
//! of the User Guide.
//!
//! All of it happens under the control lock. The number of the valid packet lies in the memory of
//! the sharers, and is set after the packet was sent. Packets with other numbers were left by a
//! sharer that died in between, and are skipped.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use scif::logging::warn_about_peer;
use scif::sys::unix;

use crate::failure::Result;
use crate::sharer::Sharer;
use crate::window::space::OwnBook;
use crate::wire::{HANDOFF_BYTES, Left};

/// Pair of sockets, see the head of the file.
#[derive(Debug)]
pub(crate) struct FdHandoff {
    to: OwnedFd,
    from: OwnedFd,
    /// Window table of the future connection. It is made in advance, because the seals of a table
    /// prevent a sharer from mapping one that another makes.
    book: OwnBook,
}

impl FdHandoff {
    pub(crate) fn new(book: OwnBook) -> Result<FdHandoff> {
        let (to, from) = unix::pair()?;
        Ok(FdHandoff { to, from, book })
    }

    /// Returns the window table for a connection to be made.
    pub(crate) fn book(&self) -> OwnBook {
        self.book.clone()
    }

    /// Replaces the packet and returns its number.
    pub(crate) fn leave(&self, sharer: &Sharer, mut left: Left, fds: &[BorrowedFd<'_>]) -> u32 {
        left.number = sharer.leaving.add(1).wrapping_add(1);
        let first = unix::send(&self.to, &left.encode(), fds);
        sharer.left.set(left.number);
        self.skip_to(left.number);
        // The former packet has been removed, and its descriptors are not in flight any more.
        if let Err(errno) = first.or_else(|_| unix::send(&self.to, &left.encode(), fds)) {
            // The other sharers do without.
            warn_about_peer!(
                "endpoint at port {}: its descriptors could not be passed to the processes that \
                 share it: sendmsg: {errno}; they cannot use it. Raise the limit of open files \
                 (ulimit -n), which also limits descriptors in flight",
                sharer.port()
            );
        }
        left.number
    }

    /// Drops the packets before the given one.
    fn skip_to(&self, number: u32) {
        let first = || {
            let mut bytes = [0; HANDOFF_BYTES];
            unix::peek(&self.from, &mut bytes).map(|_| Left::decode(bytes))
        };
        while let Ok(Some(left)) = first() {
            if left.number == number || unix::skip(&self.from).is_err() {
                return;
            }
        }
    }

    /// Returns copies of the valid packet.
    pub(crate) fn fetch(&self, sharer: &Sharer) -> Option<(Left, Vec<OwnedFd>)> {
        let number = sharer.left.get();
        loop {
            let mut bytes = [0; HANDOFF_BYTES];
            let received = match unix::peek(&self.from, &mut bytes) {
                Err(Errno::INTR) => continue,
                other => other.ok()?,
            };
            let left = Left::decode(bytes)?;
            if left.number == number {
                if received.cut {
                    warn_about_peer!(
                        "endpoint at port {}: no free descriptors to take it over from another \
                         process: EMFILE. Raise the limit of open files (ulimit -n)",
                        sharer.port()
                    );
                    return None;
                }
                return Some((left, received.fds));
            }
            unix::skip(&self.from).ok()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::endpoint::Epd;
    use crate::wire::HandoffKind;

    fn fd_handoff() -> (FdHandoff, Epd) {
        let stats = super::super::stat::Stats::new(0).unwrap();
        let (epd, _a) = Epd::new(1, true, &stats).unwrap();
        (FdHandoff::new(OwnBook::new().unwrap()).unwrap(), epd)
    }

    fn leave(fd_handoff: &FdHandoff, epd: &Epd, pid: i32) -> u32 {
        let fd = scif::sys::memfd::create("scif-test", 4096).unwrap();
        fd_handoff.leave(&epd.sharer, Left::new(HandoffKind::Port, pid, true), &[fd.as_fd()])
    }

    #[test]
    fn the_last_packet_can_be_fetched_any_number_of_times() {
        let (fd_handoff, epd) = fd_handoff();
        assert!(fd_handoff.fetch(&epd.sharer).is_none());
        for pid in 1..40 {
            leave(&fd_handoff, &epd, pid);
            for _ in 0..3 {
                let (left, fds) = fd_handoff.fetch(&epd.sharer).unwrap();
                assert_eq!(
                    (left.peer_pid, left.kind, left.counted),
                    (pid, HandoffKind::Port, true)
                );
                assert_eq!(fds.len(), 1);
            }
        }
    }

    #[test]
    fn a_death_while_publishing_keeps_the_former_packet() {
        let (fd_handoff, epd) = fd_handoff();
        leave(&fd_handoff, &epd, 1);
        // Sent, but its number was not stored.
        let mut dead = Left::new(HandoffKind::Port, 2, false);
        dead.number = epd.sharer.leaving.add(1) + 1;
        unix::send(&fd_handoff.to, &dead.encode(), &[]).unwrap();
        assert_eq!(fd_handoff.fetch(&epd.sharer).unwrap().0.peer_pid, 1);
        // Sent with its number stored, but the former packet was not removed.
        let mut dead = Left::new(HandoffKind::Port, 3, false);
        dead.number = epd.sharer.leaving.add(1) + 1;
        unix::send(&fd_handoff.to, &dead.encode(), &[]).unwrap();
        epd.sharer.left.set(dead.number);
        assert_eq!(fd_handoff.fetch(&epd.sharer).unwrap().0.peer_pid, 3);
        leave(&fd_handoff, &epd, 4);
        assert_eq!(fd_handoff.fetch(&epd.sharer).unwrap().0.peer_pid, 4);
        assert!(unix::skip(&fd_handoff.from).is_ok());
        assert!(unix::skip(&fd_handoff.from).is_err(), "one packet");
    }

    #[test]
    fn packet_replaces_earlier_ones_if_the_queue_is_full() {
        let (fd_handoff, epd) = fd_handoff();
        let former = Left::new(HandoffKind::Port, 1, false).encode();
        while unix::send(&fd_handoff.to, &former, &[]).is_ok() {}
        let number = leave(&fd_handoff, &epd, 2);
        let (left, fds) = fd_handoff.fetch(&epd.sharer).unwrap();
        assert_eq!((left.number, left.peer_pid, fds.len()), (number, 2, 1));
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The memory of a peer: which way reaches it, and copies over that way.
//!
//! Not about which ranges may be touched (the key table says) nor about what to do when no way works (the ring).
//! The way is probed once when the connection comes up and given up for good by [`PeerMemory::deny`].

use rustix::io::Errno;
use scif_ring::Mem;

use crate::denial::Denial;
use crate::sys::process_vm::{self, Direction};

/// A range of the peer's address space.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RemoteMem {
    /// Where it starts, in the peer's address space.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
}

// Addresses of a peer are as wide as ours.
const _: () = assert!(size_of::<usize>() == size_of::<u64>());

impl RemoteMem {
    #[expect(clippy::cast_possible_truncation, reason = "as wide, asserted above")]
    pub(crate) fn address(&self) -> usize {
        self.addr as usize
    }

    pub(crate) fn len_bytes(&self) -> usize {
        usize::try_from(self.len).unwrap_or(usize::MAX)
    }
}

/// The best way to a peer's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Access {
    /// It is mapped here: plain copies.
    Mapped,
    /// `process_vm_readv` and `process_vm_writev`.
    ProcessVm,
    /// None: only the ring.
    None,
}

/// A copy that did not happen, or not all of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AccessError {
    /// Some address, there or here, is not mapped so.
    Fault,
    /// We may not touch that process. [`PeerMemory::deny`] saves the next try.
    Denied,
    /// That process does not exist any more, or has left the connection.
    Gone,
    /// It stopped after this many bytes.
    Short(usize),
}

/// The memory of one peer.
#[derive(Debug)]
pub struct PeerMemory {
    access: Access,
    pid: i32,
    denial: Option<Denial>,
}

impl PeerMemory {
    /// No way but the ring.
    pub(crate) fn none() -> PeerMemory {
        PeerMemory {
            access: Access::None,
            pid: 0,
            denial: None,
        }
    }

    /// Of this very process.
    pub(crate) fn own() -> PeerMemory {
        PeerMemory {
            access: Access::Mapped,
            pid: 0,
            denial: None,
        }
    }

    /// Of a process of another user: no way but the ring.
    pub(crate) fn of_user(pid: i32, uid: u32) -> PeerMemory {
        PeerMemory {
            access: Access::None,
            pid,
            denial: Some(Denial::of_user(pid, uid)),
        }
    }

    /// Of process `pid`, if its 8 bytes at `addr` can be read and hold `nonce`: which also proves that the pid
    /// is the one who told us the nonce.
    pub(crate) fn probe(pid: i32, addr: u64, nonce: u64) -> PeerMemory {
        let errno = match process_vm::read_u64(pid, addr) {
            Ok(read) if pid > 0 && read == nonce => {
                return PeerMemory {
                    access: Access::ProcessVm,
                    pid,
                    denial: None,
                };
            }
            Ok(_) => Errno::FAULT,
            Err(errno) => errno,
        };
        PeerMemory {
            access: Access::None,
            pid,
            // A number that was there and is not any more: the peer has died, which its socket tells.
            denial: (pid <= 0 || errno != Errno::SRCH).then(|| Denial::explain(pid, errno)),
        }
    }

    /// Reason for which the kernel denies direct copies, if it does.
    #[must_use]
    pub fn denial(&self) -> Option<&Denial> {
        self.denial.as_ref()
    }

    /// The best way that still works.
    #[inline]
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Copies from the peer: the shorter total of both lists.
    ///
    /// # Errors
    /// As [`AccessError`] says. Parts of `local` may have been written.
    pub fn read(&self, local: &[Mem], remote: &[RemoteMem]) -> Result<(), AccessError> {
        self.copy(Direction::Read, local, remote)
    }

    /// Copies to the peer: the shorter total of both lists.
    ///
    /// # Errors
    /// As [`AccessError`] says. Parts of `remote` may have been written.
    pub fn write(&self, local: &[Mem], remote: &[RemoteMem]) -> Result<(), AccessError> {
        self.copy(Direction::Write, local, remote)
    }

    fn copy(&self, direction: Direction, local: &[Mem], remote: &[RemoteMem]) -> Result<(), AccessError> {
        match self.access {
            Access::Mapped => {
                process_vm::copy_own(direction, local, remote);
                Ok(())
            }
            Access::ProcessVm => process_vm::copy(self.pid, direction, local, remote),
            Access::None => Err(AccessError::Denied),
        }
    }

    /// A range of the peer's memory as memory of ours, where it is mapped here.
    #[must_use]
    pub fn here(&self, remote: &RemoteMem) -> Option<Mem> {
        (self.access == Access::Mapped).then(|| process_vm::own(remote))
    }

    /// Gives the direct way up for this peer, which the kernel has denied on the way.
    pub fn deny(&mut self) {
        self.access = Access::None;
        self.denial = Some(Denial::explain(self.pid, Errno::PERM));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::denial::DenialCause;

    #[test]
    fn probe_wants_the_nonce() {
        let cell = Box::new(0x1234_5678_9abc_def0_u64);
        let addr = (&raw const *cell).expose_provenance() as u64;
        let me = crate::sys::process::pid();
        let reached = PeerMemory::probe(me, addr, *cell);
        assert_eq!((reached.access(), reached.denial()), (Access::ProcessVm, None));
        assert_eq!(PeerMemory::probe(me, addr, 1).access(), Access::None);
        assert_eq!(PeerMemory::probe(me, 16, 1).access(), Access::None);
        let unseen = PeerMemory::probe(0, addr, *cell);
        assert_eq!(unseen.access(), Access::None);
        assert_eq!(
            unseen.denial().map(Denial::cause),
            Some(DenialCause::PidNamespace)
        );
        let mut memory = PeerMemory::own();
        memory.deny();
        assert_eq!(memory.read(&[], &[]), Err(AccessError::Denied));
    }
}

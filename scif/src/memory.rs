// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory of a peer: the available path to it, and copies over that path.
//!
//! Not about permitted ranges (the key table) nor about the fallback without a path (the ring). The
//! path is probed once when the connection comes up, and abandoned permanently by
//! [`PeerMemory::deny`].

use rustix::io::Errno;
use scif_ring::Mem;

use crate::denial::Denial;
use crate::sys::bounce;
use crate::sys::process_vm::{self, Direction};
use crate::sys::time::now_ns;

pub use crate::sys::process_vm::{AccessError, RemoteMem};

/// Best path to a peer's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Access {
    /// Mapped in this process: plain copies.
    Mapped,
    /// `process_vm_readv` and `process_vm_writev`.
    ProcessVm,
    /// No path: only the ring.
    None,
}

/// The memory of one peer.
#[derive(Debug)]
pub struct PeerMemory {
    access: Access,
    pid: i32,
    /// Duration in nanoseconds of the shortest system call that copies from the peer.
    call_ns: u64,
    denial: Option<Denial>,
}

/// Number of timed calls of a probe. The first ones are longer, because nothing is in the caches.
const TIMED_CALLS: u32 = 4;

impl PeerMemory {
    /// Returns a peer without a path except the ring.
    pub(crate) fn none() -> PeerMemory {
        PeerMemory { access: Access::None, pid: 0, call_ns: 0, denial: None }
    }

    /// Returns the memory of this process itself.
    pub(crate) fn own() -> PeerMemory {
        PeerMemory { access: Access::Mapped, pid: 0, call_ns: 0, denial: None }
    }

    /// Returns the memory of a process of another user, without a path except the ring.
    pub(crate) fn of_user(pid: i32, uid: u32) -> PeerMemory {
        PeerMemory {
            access: Access::None,
            pid,
            call_ns: 0,
            denial: Some(Denial::of_user(pid, uid)),
        }
    }

    /// Returns the memory of process `pid`, if its 8 bytes at `addr` are readable and hold `nonce`.
    /// This also proves that the peer that sent the nonce has this process id.
    pub(crate) fn probe(pid: i32, addr: u64, nonce: u64) -> PeerMemory {
        let errno = match process_vm::read_u64(pid, addr) {
            Ok(read) if pid > 0 && read == nonce => {
                let call_ns = shortest_call_ns(pid, addr);
                return PeerMemory { access: Access::ProcessVm, pid, call_ns, denial: None };
            }
            Ok(_) => Errno::FAULT,
            Err(errno) => errno,
        };
        PeerMemory {
            access: Access::None,
            pid,
            call_ns: 0,
            // ESRCH: the peer has died since it sent the process id, as its socket shows.
            denial: (pid <= 0 || errno != Errno::SRCH).then(|| Denial::explain(pid, errno)),
        }
    }

    /// Returns the reason for which direct copies are denied, if they are.
    #[must_use]
    pub fn denial(&self) -> Option<&Denial> {
        self.denial.as_ref()
    }

    /// Returns the best path that still works.
    #[inline]
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the duration in nanoseconds of the shortest system call that copies from the peer; 0
    /// if no copy needs one.
    #[inline]
    #[must_use]
    pub fn call_ns(&self) -> u64 {
        self.call_ns
    }

    /// Copies from the peer: the shorter total of both lists.
    ///
    /// # Errors
    /// An [`AccessError`]. Parts of `local` may have been written.
    #[inline]
    pub fn read(&self, local: &[Mem], remote: &[RemoteMem]) -> Result<(), AccessError> {
        self.copy(Direction::Read, local, remote)
    }

    /// Copies to the peer: the shorter total of both lists.
    ///
    /// # Errors
    /// An [`AccessError`]. Parts of `remote` may have been written.
    #[inline]
    pub fn write(&self, local: &[Mem], remote: &[RemoteMem]) -> Result<(), AccessError> {
        self.copy(Direction::Write, local, remote)
    }

    #[inline]
    fn copy(
        &self,
        direction: Direction,
        local: &[Mem],
        remote: &[RemoteMem],
    ) -> Result<(), AccessError> {
        match self.access {
            Access::Mapped => {
                process_vm::copy_own(direction, local, remote);
                Ok(())
            }
            Access::ProcessVm => bounce::copy(self.pid, direction, local, remote),
            Access::None => Err(AccessError::Denied),
        }
    }

    /// Returns a range of the peer's memory as local memory, if it is mapped in this process.
    #[must_use]
    pub fn here(&self, remote: &RemoteMem) -> Option<Mem> {
        (self.access == Access::Mapped).then(|| process_vm::own(remote))
    }

    /// Abandons the direct path to this peer after a denial by the kernel.
    pub fn deny(&mut self) {
        self.access = Access::None;
        self.denial = Some(Denial::explain(self.pid, Errno::PERM));
    }
}

/// Returns the duration in nanoseconds of the shortest of some reads of the 8 bytes at `addr`.
fn shortest_call_ns(pid: i32, addr: u64) -> u64 {
    let timed = || {
        let begun = now_ns();
        let read = process_vm::read_u64(pid, addr);
        read.map_or(u64::MAX, |_| now_ns().saturating_sub(begun))
    };
    (0..TIMED_CALLS).map(|_| timed()).min().unwrap_or(u64::MAX)
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
        assert!((1..u64::MAX).contains(&reached.call_ns()));
        assert_eq!(PeerMemory::probe(me, addr, 1).access(), Access::None);
        assert_eq!(PeerMemory::probe(me, 16, 1).access(), Access::None);
        let unseen = PeerMemory::probe(0, addr, *cell);
        assert_eq!(unseen.access(), Access::None);
        assert_eq!(unseen.denial().map(Denial::cause), Some(DenialCause::PidNamespace));
        let mut memory = PeerMemory::own();
        memory.deny();
        assert_eq!(memory.read(&[], &[]), Err(AccessError::Denied));
    }
}

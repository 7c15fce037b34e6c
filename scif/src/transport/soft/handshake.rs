// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Greetings of both sides: our exports, and the checks of a peer's exports before they are mapped.
//!
//! Not about the time of sending. Nothing in a greeting is trusted. The identity comes from the
//! socket; descriptors must be memfds with the agreed seals and size; numbers must be in range. The
//! peer's memory is used only if its nonce can be read from it and its user is ours.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::SealFlags;
use rustix::io::Errno;
use scif_ring::{BELL_BITS, BELL_BYTES, KEYTABLE_BYTES};

use super::node::{KEYS_SEALED, Soft};
use super::wire::{Greeting, KEYS, MEMBARRIER};
use crate::arena::ARENA_BYTES;
use crate::error::{Reason, Refusal};
use crate::export::Shared;
use crate::liveness::ProcessProof;
use crate::memory::{Access, PeerMemory};
use crate::segment::{SEGMENT_BYTES, check_header};
use crate::slab::ConnId;
use crate::sys::membarrier;
use crate::sys::memfd::{self, FIXED_SIZE};
use crate::sys::mmap::Mapping;
use crate::sys::process::{self, ShownPid};
use crate::transport::{Remote, Shown};

/// Returns our greeting for connection `id`.
pub(super) fn greeting(soft: &Soft, shown: &Shown, welcome: bool, id: ConnId) -> Greeting {
    let mut flags = 0;
    if membarrier::register() {
        flags |= MEMBARRIER;
    }
    if shown.keys.as_ref().is_some_and(|keys| keys.shared().fd.is_some()) {
        flags |= KEYS;
    }
    #[expect(clippy::cast_possible_truncation, reason = "less than BELL_BITS")]
    let bell_bit = (id.index as usize % BELL_BITS) as u32;
    Greeting::new(welcome, flags, bell_bit, soft.nonce(), soft.nonce_addr(), soft.start)
}

/// Returns the descriptors of a greeting, after the segment's if present.
pub(super) fn descriptors<'a>(
    shown: &'a Shown,
    segment: Option<BorrowedFd<'a>>,
) -> Vec<BorrowedFd<'a>> {
    let of = |shared: &'a Shared| shared.fd.as_ref().map(AsFd::as_fd);
    let keys = shown.keys.as_ref().and_then(|keys| of(keys.shared()));
    segment.into_iter().chain(of(&shown.bell)).chain(keys).collect()
}

/// Maps and checks the segment of an opener.
pub(super) fn map_segment(fd: &OwnedFd) -> Result<Arc<Mapping>, Reason> {
    let map = map(fd, SEGMENT_BYTES, FIXED_SIZE, true)?;
    if check_header(&map) { Ok(map) } else { Err(Reason::Refused(Refusal::Version)) }
}

/// Maps and checks the arena of the peer with process id `pid`.
pub(super) fn map_arena(fd: &OwnedFd, pid: i32) -> Result<Mapping, Reason> {
    let owner = ShownPid(pid);
    memfd::check(fd, ARENA_BYTES, FIXED_SIZE).map_err(|unfit| {
        log::debug!("arena of {owner}: wrong size or seals ({unfit:?}): connection is reset");
        Reason::Corrupt
    })?;
    Mapping::part(fd, 0, ARENA_BYTES, true).map_err(|errno| match errno {
        Errno::NOMEM | Errno::AGAIN => {
            log::debug!(
                "arena of {owner}: mmap: {errno}: its memory is accessed without mapping, \
                 which is slower. Raise the limit of address space (ulimit -v)"
            );
            Reason::Refused(Refusal::Resources)
        }
        _ => {
            log::debug!("arena of {owner}: mmap: {errno}: connection is reset");
            Reason::Corrupt
        }
    })
}

/// Checks a peer's greeting and maps its exports; `fds` without the segment. `uid` is the user of
/// the peer, from the kernel.
pub(super) fn remote(
    soft: &Soft,
    greeting: &Greeting,
    fds: &[OwnedFd],
    liveness: &ProcessProof,
    uid: u32,
) -> Result<Remote, Reason> {
    let wants_keys = greeting.flags & KEYS != 0;
    let (bell, keys) = match (fds, wants_keys) {
        ([bell], false) => (bell, None),
        ([bell, keys], true) => (bell, Some(keys)),
        _ => return Err(Reason::Corrupt),
    };
    if greeting.bell_bit as usize >= BELL_BITS {
        return Err(Reason::Corrupt);
    }
    let bell = map(bell, BELL_BYTES, FIXED_SIZE, true)?;
    let keys = keys.map(|fd| map(fd, KEYTABLE_BYTES, KEYS_SEALED, false)).transpose()?;
    let laid_out_alike = bell.bell_handle().is_ok_and(|bell| bell.compatible())
        && keys.as_ref().is_none_or(|keys| keys.key_reader().is_ok_and(|keys| keys.compatible()));
    if !laid_out_alike {
        return Err(Reason::Refused(Refusal::Version));
    }
    Ok(Remote {
        bell,
        bell_bit: greeting.bell_bit,
        keys,
        memory: reach(soft, greeting, liveness, uid),
        asymmetric: membarrier::register() && greeting.flags & MEMBARRIER != 0,
    })
}

/// Returns the best path to the memory of the process at the other end, as identified by the
/// kernel.
///
/// Memory of another user's process is never accessed by its pid. Pid and start time survive an
/// exec, so such a peer could make a privileged process write into a setuid program. After an exec
/// by a peer of our own user the kernel denies the access. An exception is a process that may trace
/// every process; the peers of its user then have the same right.
fn reach(soft: &Soft, greeting: &Greeting, liveness: &ProcessProof, uid: u32) -> PeerMemory {
    let memory = if uid == soft.uid {
        PeerMemory::probe(liveness.pid(), greeting.nonce_addr, greeting.nonce)
    } else {
        PeerMemory::of_user(liveness.pid(), uid)
    };
    // Same pid, same start time, and the nonce is in our own memory: the peer is this process. The
    // pid alone would suffice if the kernel were reliable; gVisor, a kernel in user space, returns
    // the calling process as the peer of every socket.
    let same = liveness.pid() == process::pid()
        && liveness.start().is_some_and(|start| start == soft.start);
    let here = || {
        memory.access() == Access::ProcessVm
            || process::own_word(greeting.nonce_addr) == Some(greeting.nonce)
    };
    if same && here() {
        return PeerMemory::own();
    }
    memory
}

fn map(fd: &OwnedFd, len: usize, seals: SealFlags, writable: bool) -> Result<Arc<Mapping>, Reason> {
    memfd::check(fd, len, seals).map_err(|unfit| {
        log::debug!("a peer sent memory with wrong size or seals ({unfit:?}); it is not mapped");
        Reason::Corrupt
    })?;
    match Mapping::shared(fd, len, writable) {
        Ok(map) => Ok(Arc::new(map)),
        Err(Errno::NOMEM | Errno::AGAIN | Errno::MFILE | Errno::NFILE) => {
            Err(Reason::Refused(Refusal::Resources))
        }
        // Sealed against the agreed write access.
        Err(_) => Err(Reason::Corrupt),
    }
}

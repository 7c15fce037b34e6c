// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Copies between our memory and another process's, or within our own. See `process_vm_readv(2)`.
//!
//! Not about the choice of the path for a peer, which `memory` makes.
#![expect(unsafe_code, reason = "process_vm_*, and plain copies at addresses of this same process")]

use rustix::io::Errno;
use scif_ring::{Mem, copy_iov};

use super::errno::keep_errno;

/// Number of list elements passed to the kernel at once. Its limit is 1024.
const BATCH: usize = 64;

/// A range of the peer's address space.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RemoteMem {
    /// Start in the peer's address space.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
}

// Addresses of a peer have the width of ours.
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

/// Error of a copy that did not happen, or not completely.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AccessError {
    /// An address of either side is not mapped with the needed rights.
    Fault,
    /// The process may not be accessed. [`PeerMemory::deny`](crate::PeerMemory::deny) avoids
    /// further attempts.
    Denied,
    /// The process no longer exists, or has left the connection.
    Gone,
    /// The copy stopped after this many bytes.
    Short(usize),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Direction {
    /// From the peer to this process.
    Read,
    Write,
}

/// Position in a scatter list, for both kinds of element.
#[derive(Clone, Copy, Eq, PartialEq)]
struct Cursor {
    index: usize,
    offset: usize,
}

impl Cursor {
    fn skip(&mut self, mut bytes: usize, len_of: impl Fn(usize) -> Option<usize>) {
        while let Some(len) = len_of(self.index) {
            let left = len - self.offset;
            if bytes < left {
                self.offset += bytes;
                return;
            }
            bytes -= left;
            self.index += 1;
            self.offset = 0;
        }
    }

    /// Fills `out` with the elements from this position on; returns their number.
    fn fill(
        &self,
        out: &mut [libc::iovec],
        at: impl Fn(usize) -> Option<(*mut libc::c_void, usize)>,
    ) -> usize {
        let mut n = 0;
        let mut offset = self.offset;
        for (slot, index) in out.iter_mut().zip(self.index..) {
            let Some((base, len)) = at(index) else { break };
            *slot = libc::iovec { iov_base: base.wrapping_byte_add(offset), iov_len: len - offset };
            offset = 0;
            n += 1;
        }
        n
    }
}

/// Copies min(total of `local`, total of `remote`) bytes between the lists.
pub fn copy(
    pid: i32,
    direction: Direction,
    local: &[Mem],
    remote: &[RemoteMem],
) -> Result<(), AccessError> {
    keep_errno(|| match (local.len(), remote.len()) {
        // Most calls have one element each, and need not clear arrays for more.
        (1, 1) => copy_batches::<1>(pid, direction, local, remote),
        _ => copy_batches::<BATCH>(pid, direction, local, remote),
    })
}

fn copy_batches<const N: usize>(
    pid: i32,
    direction: Direction,
    local: &[Mem],
    remote: &[RemoteMem],
) -> Result<(), AccessError> {
    let total_local = scif_ring::total_len(local);
    let total_remote = remote.iter().fold(0usize, |sum, r| sum.saturating_add(r.len_bytes()));
    let wanted = total_local.min(total_remote);
    let mut done = 0;
    let (mut ours, mut theirs) = (Cursor { index: 0, offset: 0 }, Cursor { index: 0, offset: 0 });
    let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let (mut our_iov, mut their_iov) = ([empty; N], [empty; N]);
    while done < wanted {
        let n_ours =
            ours.fill(&mut our_iov, |i| local.get(i).map(|m| (m.as_ptr().cast(), m.len())));
        let n_theirs = theirs.fill(&mut their_iov, |i| {
            remote.get(i).map(|r| (std::ptr::without_provenance_mut(r.address()), r.len_bytes()))
        });
        // SAFETY: both arrays hold at least the given number of elements. Ours name memory that is
        // readable and writable while its `Mem` is in use (contract of `Mem::new`); the kernel
        // checks the other process's.
        let moved = unsafe {
            let call = match direction {
                Direction::Read => libc::process_vm_readv,
                Direction::Write => libc::process_vm_writev,
            };
            call(pid, our_iov.as_ptr(), n_ours as u64, their_iov.as_ptr(), n_theirs as u64, 0)
        };
        let moved = match usize::try_from(moved) {
            Ok(moved) => moved,
            Err(_) => return Err(classify(super::process::last_errno(), done)),
        };
        done += moved;
        let before = (ours, theirs);
        ours.skip(moved, |i| local.get(i).map(Mem::len));
        theirs.skip(moved, |i| remote.get(i).map(RemoteMem::len_bytes));
        if before == (ours, theirs) {
            // No progress, not even over an empty element: the kernel would return the same result
            // without end.
            return Err(AccessError::Short(done));
        }
    }
    Ok(())
}

/// Classifies a failure. After the first byte the caller needs the number of copied bytes; a
/// repeated attempt then returns the cause.
fn classify(errno: Errno, done: usize) -> AccessError {
    match errno {
        Errno::SRCH => AccessError::Gone,
        Errno::PERM | Errno::ACCESS | Errno::NOSYS => AccessError::Denied,
        _ if done > 0 => AccessError::Short(done),
        _ => AccessError::Fault,
    }
}

/// Reads the 8 bytes at `addr` of process `pid`.
///
/// # Errors
/// Errors of process_vm_readv(2); EFAULT also if fewer bytes are mapped.
pub(crate) fn read_u64(pid: i32, addr: u64) -> Result<u64, Errno> {
    let mut value = 0u64;
    let local = libc::iovec { iov_base: (&raw mut value).cast(), iov_len: size_of::<u64>() };
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(RemoteMem { addr, len: 8 }.address()),
        iov_len: size_of::<u64>(),
    };
    keep_errno(|| {
        // SAFETY: `value` has space for the bytes and exists until the call returns; the kernel
        // checks the other address.
        match unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) } {
            8 => Ok(()),
            -1 => Err(super::process::last_errno()),
            _ => Err(Errno::FAULT),
        }
    })?;
    Ok(value)
}

/// Returns the error with which the kernel denies the call even for the caller's own memory, as a
/// seccomp filter does.
pub(crate) fn denied_to_all() -> Option<Errno> {
    let pid = super::process::pid();
    keep_errno(|| {
        // SAFETY: on this process, with two empty lists.
        let moved =
            unsafe { libc::process_vm_readv(pid, std::ptr::null(), 0, std::ptr::null(), 0, 0) };
        (moved < 0).then(super::process::last_errno)
    })
}

/// Copies within this process, as a plain copy.
///
/// The addresses come from a peer, but that peer is this process: its owner registered or posted
/// the advertised memory in this process, under the same rules as `local`.
pub(crate) fn copy_own(direction: Direction, local: &[Mem], remote: &[RemoteMem]) {
    let mut ours = 0;
    for part in remote {
        let theirs = own(part);
        let done = match direction {
            Direction::Read => copy_iov_into(local, ours, &theirs),
            Direction::Write => copy_iov(&[theirs], 0, local, ours, theirs.len()),
        };
        ours += done;
    }
}

/// Returns a range of this process, advertised as above.
pub(crate) fn own(part: &RemoteMem) -> Mem {
    let at = std::ptr::with_exposed_provenance_mut(part.address());
    // SAFETY: `PeerMemory` is Mapped only for this process's own pid and start time. So the owner
    // of the range advertised it in this process, and keeps it valid until the operation completes
    // (contract of `Mem::new`).
    unsafe { Mem::new(at, part.len_bytes()) }
}

fn copy_iov_into(local: &[Mem], offset: usize, theirs: &Mem) -> usize {
    copy_iov(local, offset, &[*theirs], 0, theirs.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mem(v: &mut [u8]) -> Mem {
        // SAFETY: the tests keep their vectors and do not access them while the view is used.
        unsafe { Mem::new(v.as_mut_ptr(), v.len()) }
    }

    fn remote(v: &[u8]) -> RemoteMem {
        RemoteMem { addr: v.as_ptr().expose_provenance() as u64, len: v.len() as u64 }
    }

    #[test]
    fn lists_of_any_cut_are_copied() {
        let me = crate::sys::process::pid();
        let src: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        for (cut_l, cut_r) in
            [(100_000, 100_000), (7, 1000), (1000, 13), (3, 100_000), (100_000, 5), (64, 64)]
        {
            for own in [false, true] {
                let mut dst = vec![0u8; src.len()];
                let local: Vec<Mem> = dst.chunks_mut(cut_l).map(mem).collect();
                let theirs: Vec<RemoteMem> = src.chunks(cut_r).map(remote).collect();
                if own {
                    copy_own(Direction::Read, &local, &theirs);
                } else {
                    copy(me, Direction::Read, &local, &theirs).unwrap();
                }
                assert_eq!(dst, src, "{cut_l} {cut_r} {own}");

                let mut target = vec![0u8; src.len()];
                let mut source = src.clone();
                let local: Vec<Mem> = source.chunks_mut(cut_l).map(mem).collect();
                let theirs: Vec<RemoteMem> = target.chunks_mut(cut_r).map(|c| remote(c)).collect();
                if own {
                    copy_own(Direction::Write, &local, &theirs);
                } else {
                    copy(me, Direction::Write, &local, &theirs).unwrap();
                }
                assert_eq!(target, src, "{cut_l} {cut_r} {own}");
                target.clear();
            }
        }
    }

    #[test]
    fn failures_are_distinguished() {
        let me = crate::sys::process::pid();
        let mut buf = vec![0u8; 8192];
        let bad = RemoteMem { addr: 64, len: 16 };
        assert_eq!(copy(me, Direction::Read, &[mem(&mut buf)], &[bad]), Err(AccessError::Fault));
        let good = vec![1u8; 4096];
        let lists = [remote(&good), bad];
        assert_eq!(
            copy(me, Direction::Read, &[mem(&mut buf)], &lists),
            Err(AccessError::Short(4096))
        );
        let mut child = crate::sys::children::spawn(&mut std::process::Command::new("true"));
        child.wait().unwrap();
        let gone = child.id() as i32;
        assert_eq!(
            copy(gone, Direction::Read, &[mem(&mut buf)], &[remote(&good)]),
            Err(AccessError::Gone)
        );
        assert_eq!(read_u64(me, 8), Err(Errno::FAULT));
        let value = Box::new(77u64);
        assert_eq!(read_u64(me, (&raw const *value).expose_provenance() as u64), Ok(77));
    }

    #[test]
    fn empty_elements_do_not_stop_a_copy() {
        let me = crate::sys::process::pid();
        let src = vec![5u8; 100];
        let mut dst = vec![0u8; 100];
        let mut local = vec![Mem::empty(); 200];
        local.push(mem(&mut dst));
        copy(me, Direction::Read, &local, &[remote(&src)]).unwrap();
        assert_eq!(dst, src);
    }
}

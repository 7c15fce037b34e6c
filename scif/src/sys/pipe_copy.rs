// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Copies within this process through a pipe.
//!
//! For processes to which `process_vm_readv(2)` is denied even for their own memory. As with that
//! call, the kernel returns EFAULT for an absent page, where a plain copy would get a signal. It
//! copies twice.
#![expect(unsafe_code, reason = "write and read at addresses of this same process")]

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use scif_ring::Mem;

use super::errno::keep_errno;
use super::process_vm::{AccessError, Direction};

/// Length in bytes of a part, the usual capacity of a pipe. Each part costs two system calls.
const PART: usize = 64 << 10;

/// Copies between `local` and address `addr` of this process, which may be unmapped.
///
/// # Errors
/// `Denied`: no pipe can be created. `Fault`, `Short`: memory is absent or protected.
pub fn copy_own(direction: Direction, local: &Mem, addr: u64) -> Result<(), AccessError> {
    let addr = usize::try_from(addr).map_err(|_| AccessError::Fault)?;
    let (from, to) = match direction {
        Direction::Read => (addr, local.addr()),
        Direction::Write => (local.addr(), addr),
    };
    keep_errno(|| {
        let (out, input) =
            pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(|_| AccessError::Denied)?;
        let mut done = 0;
        while done < local.len() {
            let part = PART.min(local.len() - done);
            let moved = fill(&input, from.wrapping_add(done), part)
                .and_then(|filled| drain(&out, to.wrapping_add(done), filled));
            match moved {
                Ok(bytes) => done += bytes,
                Err(_) if done == 0 => return Err(AccessError::Fault),
                Err(_) => return Err(AccessError::Short(done)),
            }
        }
        Ok(())
    })
}

/// Writes at most `len` bytes at `from` into an empty pipe. Returns their number, at least 1.
fn fill(input: &OwnedFd, from: usize, len: usize) -> Result<usize, Errno> {
    // SAFETY: the kernel reads the memory, and returns EFAULT where none is mapped.
    count(|| unsafe { libc::write(input.as_raw_fd(), from as *const libc::c_void, len) })
}

/// Reads `len` bytes of a pipe to `to`. Returns `len`.
fn drain(out: &OwnedFd, to: usize, len: usize) -> Result<usize, Errno> {
    let mut done = 0;
    while done < len {
        let at = to.wrapping_add(done) as *mut libc::c_void;
        // SAFETY: the kernel writes the memory, and returns EFAULT where none is mapped. The caller
        // has registered or posted it as a destination.
        done += count(|| unsafe { libc::read(out.as_raw_fd(), at, len - done) })?;
    }
    Ok(done)
}

/// Repeats a call that a signal interrupts. Returns the number of bytes that it moved.
fn count(mut call: impl FnMut() -> isize) -> Result<usize, Errno> {
    loop {
        match usize::try_from(call()) {
            Ok(0) => return Err(Errno::FAULT),
            Ok(bytes) => return Ok(bytes),
            Err(_) => match super::process::last_errno() {
                Errno::INTR => {}
                errno => return Err(errno),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mmap::Mapping;

    #[test]
    fn both_directions_copy_all_bytes() {
        let map = Mapping::anonymous(1 << 20).unwrap();
        let text: Vec<u8> = (0..200_000u32).map(|i| i.to_le_bytes()[0] ^ 0x5a).collect();
        map.bytes(3, text.len()).unwrap().copy_from_slice(&text);
        let addr = |at: usize| (map.address() + at) as u64;
        copy_own(Direction::Read, &map.bytes(300_001, text.len()).unwrap(), addr(3)).unwrap();
        let local = map.bytes(300_001, text.len()).unwrap();
        copy_own(Direction::Write, &local, addr(600_007)).unwrap();
        let mut seen = vec![0; text.len()];
        map.bytes(600_007, text.len()).unwrap().copy_to_slice(&mut seen);
        assert_eq!(seen, text);
    }

    #[test]
    fn absent_memory_is_a_fault() {
        let map = Mapping::anonymous(4096).unwrap();
        let local = map.bytes(0, 16).unwrap();
        assert_eq!(copy_own(Direction::Read, &local, 64), Err(AccessError::Fault));
        assert_eq!(copy_own(Direction::Write, &local, 64), Err(AccessError::Fault));
    }
}

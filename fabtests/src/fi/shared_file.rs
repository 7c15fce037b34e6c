// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Shared memory of a case: memfds, files in `/dev/shm`, System V segments.
#![expect(unsafe_code, reason = "memory is mapped, and pages are handled by address")]

use std::fs::File;
use std::ptr::null_mut;

use rustix::fs::{MemfdFlags, SealFlags, memfd_create};
use rustix::io::{Errno, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::Buf;

const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// File that can be mapped.
#[derive(Debug)]
pub struct SharedFile {
    file: File,
}

impl SharedFile {
    /// Creates a memfd, sealed against shrinking if so wanted.
    pub fn memfd(name: &str, len: usize, is_sealed: bool) -> Result<SharedFile> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        if is_sealed {
            rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)?;
        }
        Ok(SharedFile { file: File::from(file) })
    }

    /// Opens a file of `len` bytes in `/dev/shm`, and creates it if it does not exist.
    pub fn shm(name: &str, len: usize) -> std::io::Result<SharedFile> {
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path(name))?;
        file.set_len(len as u64)?;
        Ok(SharedFile { file })
    }

    /// Maps a part, for writing as well if so wanted.
    pub fn map(&self, offset: usize, len: usize, write: bool) -> Result<Buf> {
        let prot = if write { RW } else { ProtFlags::READ };
        let (flags, at) = (MapFlags::SHARED, null_mut());
        // SAFETY: the kernel chooses an unused range, which the case keeps mapped while it uses it.
        let at = unsafe { rustix::mm::mmap(at, len, prot, flags, &self.file, offset as u64)? };
        Ok(Buf::at(at.cast(), len))
    }

    /// Changes the size in bytes.
    pub fn set_len(&self, len: usize) -> Result<()> {
        rustix::fs::ftruncate(&self.file, len as u64)
    }
}

fn path(name: &str) -> String {
    format!("/dev/shm/{name}")
}

/// Removes the name of a file in `/dev/shm`.
pub fn unlink_shm(name: &str) -> std::io::Result<()> {
    std::fs::remove_file(path(name))
}

/// Whether `process_vm_readv(2)` is permitted. Where it is denied, the provider maps no memory of
/// other processes.
pub fn is_process_vm_permitted() -> bool {
    let (from, mut to) = (1_u64, 0_u64);
    let len = size_of::<u64>();
    let local = libc::iovec { iov_base: (&raw mut to).cast(), iov_len: len };
    let remote = libc::iovec { iov_base: (&raw const from).cast_mut().cast(), iov_len: len };
    let pid = std::process::id() as i32;
    // SAFETY: both ranges are words of this frame, and only `to` is written.
    let n = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    n == len as isize
}

/// Returns the number of mappings of this process whose names contain `name`.
pub fn mappings_of(name: &str) -> std::io::Result<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    Ok(maps.lines().filter(|line| line.contains(name)).count())
}

/// Creates a System V segment that ends with its last mapping; returns its number and a mapping.
pub fn new_segment(len: usize) -> Result<(i32, Buf)> {
    // SAFETY: accesses no memory.
    let id = unsafe { libc::shmget(libc::IPC_PRIVATE, len, libc::IPC_CREAT | 0o600) };
    if id < 0 {
        return Err(Errno::NOMEM);
    }
    let segment = attach_segment(id, len);
    // SAFETY: the command needs no buffer.
    unsafe { libc::shmctl(id, libc::IPC_RMID, null_mut()) };
    Ok((id, segment?))
}

/// Maps a System V segment.
pub fn attach_segment(id: i32, len: usize) -> Result<Buf> {
    // SAFETY: the kernel chooses an unused range.
    let at = unsafe { libc::shmat(id, std::ptr::null(), 0) };
    if at.addr() == usize::MAX { Err(Errno::INVAL) } else { Ok(Buf::at(at.cast(), len)) }
}

impl Buf {
    /// Frees the pages of a shared mapping with `madvise(2)`.
    pub fn remove_contents(&self) -> Result<()> {
        // SAFETY: the pages belong to this case, which has no reference to them.
        unsafe { rustix::mm::madvise(self.ptr().cast(), self.len(), Advice::LinuxRemove) }
    }

    /// Asks for huge pages with `madvise(2)`.
    pub fn request_huge_pages(&self) -> Result<()> {
        // SAFETY: changes no byte.
        unsafe { rustix::mm::madvise(self.ptr().cast(), self.len(), Advice::LinuxHugepage) }
    }
}

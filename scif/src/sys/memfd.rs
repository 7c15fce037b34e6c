// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Anonymous memory with a descriptor for other processes, and the seals that make it safe to map
//! memory from another process. See `memfd_create(2)`, F_ADD_SEALS in `fcntl(2)`.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Once;

use rustix::fs::{FlockOperation, MemfdFlags, SealFlags};
use rustix::io::Errno;

use super::logging::warn_of_denied;
use super::maps::{FileId, file_id};
use super::mmap::Mapping;

/// Seals that fix the size: mapped memory stays backed.
pub const FIXED_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Seal that keeps other processes from writing, present and future mappings of this one aside.
pub const READ_ONLY: SealFlags = SealFlags::FUTURE_WRITE;

/// Reason for which a received descriptor was not mapped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BadMemory {
    /// Not a memfd, or its sender could still change the size, or it is writable against the
    /// agreement.
    Seals,
    Size,
}

/// Creates a sparse, zeroed memfd of `len` bytes without seals.
///
/// # Errors
/// ENOMEM: more than RLIMIT_FSIZE, where SIGXFSZ would end the program. Others of memfd_create.
pub fn create(name: &str, len: usize) -> Result<OwnedFd, Errno> {
    if !may_reach(len as u64) {
        return Err(Errno::NOMEM);
    }
    let fd = create_empty(name).inspect_err(|errno| {
        let consequence = "endpoints cannot be opened";
        warn_of_denied(
            "memfd_create",
            *errno,
            consequence,
            "permit memfd_create in the seccomp profile of the container",
        );
    })?;
    rustix::fs::ftruncate(&fd, len as u64)?;
    Ok(fd)
}

fn create_empty(name: &str) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // NOEXEC_SEAL is unknown before Linux 6.3.
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        other => other,
    }
}

/// Creates a memfd of `len` bytes with a writable mapping, which only processes of the same user
/// may open, and only to read. Logs nothing, since no transfer needs the memory.
///
/// # Errors
/// The errors of [`create`], of mmap(2) and of F_ADD_SEALS.
pub(crate) fn create_to_show(name: &str, len: usize) -> Result<(OwnedFd, Mapping), Errno> {
    if file_limit() < len as u64 {
        return Err(Errno::NOMEM);
    }
    let fd = create_empty(name)?;
    rustix::fs::ftruncate(&fd, len as u64)?;
    rustix::fs::fchmod(&fd, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    let map = Mapping::shared(&fd, len, true)?;
    // Without FUTURE_WRITE, before Linux 5.1, the user's own processes may still write.
    let fixed = FIXED_SIZE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, fixed | READ_ONLY)
        .or_else(|_| rustix::fs::fcntl_add_seals(&fd, fixed))?;
    Ok((fd, map))
}

/// Whether files may have `len` bytes. Otherwise a write of the last one ends the program by
/// SIGXFSZ.
pub(crate) fn may_reach(len: u64) -> bool {
    let limit = file_limit();
    let may = limit >= len;
    if !may {
        super::logging::warn_about_call!(
            "shared memory of {len} bytes (sparse) exceeds the limit of file sizes, {limit} \
             bytes: ENOMEM. Run with ulimit -f unlimited"
        );
    }
    may
}

/// Returns the largest size in bytes that files may have.
pub(crate) fn file_limit() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
    limit.current.unwrap_or(u64::MAX)
}

/// Opens the memfds of a process with a name, read-only, among `most` of its descriptors: each file
/// once. Concurrent readers, which hold descriptors of the same files, would otherwise open more
/// with each round.
///
/// # Errors
/// ENOENT: no such process. EACCES: the process may not be inspected.
pub(crate) fn open_named(pid: i32, name: &str, most: usize) -> Result<Vec<OwnedFd>, Errno> {
    let wanted = format!("/memfd:{name} (deleted)");
    let (mut found, mut known) = (Vec::new(), Vec::new());
    for entry in rustix::fs::Dir::new(rustix::fs::open(
        format!("/proc/{pid}/fd"),
        rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?)?
    .take(most)
    {
        let path = format!("/proc/{pid}/fd/{}", entry?.file_name().to_string_lossy());
        let is_it = rustix::fs::readlink(&path, Vec::new())
            .is_ok_and(|target| target.as_bytes() == wanted.as_bytes());
        let mut is_new = || {
            rustix::fs::stat(&path).is_ok_and(|file| {
                let id = (file.st_dev, file.st_ino);
                let is_new = !known.contains(&id);
                if is_new {
                    known.push(id);
                }
                is_new
            })
        };
        if is_it && is_new() {
            if let Ok(fd) = open_without_waiting(&path, rustix::fs::OFlags::RDONLY) {
                found.push(fd);
            }
        }
    }
    Ok(found)
}

/// Returns 64-bit word `at` of a file; `None` beyond its end.
pub(crate) fn word_of(fd: impl AsFd, at: usize) -> Option<u64> {
    let mut word = [0; 8];
    let read = rustix::io::pread(fd, &mut word, 8 * at as u64).ok()?;
    (read == word.len()).then(|| u64::from_ne_bytes(word))
}

/// Adds `seals` and forbids any further one.
///
/// # Errors
/// ENOSYS: the kernel has no [`SealFlags::FUTURE_WRITE`]. Others of F_ADD_SEALS.
pub fn seal(fd: impl AsFd, seals: SealFlags) -> Result<(), Errno> {
    static SAID: Once = Once::new();
    match rustix::fs::fcntl_add_seals(fd, seals | SealFlags::SEAL) {
        Err(Errno::INVAL) if seals.contains(SealFlags::FUTURE_WRITE) => {
            SAID.call_once(|| {
                log::warn!(
                    "F_ADD_SEALS: {}: this kernel has no F_SEAL_FUTURE_WRITE, which makes shared \
                     tables read-only for peers. RMA is not available, and scif_connect fails. \
                     Use Linux 5.1 or later, or a SCIF driver (SCIF_TRANSPORT=kernel, \
                     FI_SCIF_TRANSPORT=kernel)",
                    Errno::INVAL
                );
            });
            Err(Errno::NOSYS)
        }
        other => other,
    }
}

/// Checks that a received descriptor may be mapped: a memfd of exactly `len` bytes with at least
/// `seals`.
pub fn check(fd: impl AsFd, len: usize, seals: SealFlags) -> Result<(), BadMemory> {
    // EINVAL for anything but a memfd (or hugetlb file, whose size then differs).
    let has = rustix::fs::fcntl_get_seals(&fd).map_err(|_| BadMemory::Seals)?;
    if !has.contains(seals) {
        return Err(BadMemory::Seals);
    }
    // The size is read after the seal was seen, so it is final.
    let stat = rustix::fs::fstat(&fd).map_err(|_| BadMemory::Size)?;
    if u64::try_from(stat.st_size) == Ok(len as u64) { Ok(()) } else { Err(BadMemory::Size) }
}

/// Opens a memfd again, locked as shared until the last descriptor and mapping made from the new
/// description are closed.
pub fn reopen_shared(fd: impl AsFd) -> Result<OwnedFd, Errno> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let again = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
    rustix::fs::flock(&again, FlockOperation::NonBlockingLockShared)?;
    Ok(again)
}

/// Opens the memfd as [`open_of`] does, and locks it as [`reopen_shared`] does.
pub fn open_shared_of(pid: i32, file: FileId, write: bool) -> Result<OwnedFd, Errno> {
    let fd = open_of(pid, file, write)?;
    rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared)?;
    Ok(fd)
}

/// Opens the memfd behind a mapped file of a process, by a descriptor of that process.
///
/// # Errors
/// ENOENT: the process has no descriptor of it. EACCES: the process may not be inspected.
pub(crate) fn open_of(pid: i32, file: FileId, write: bool) -> Result<OwnedFd, Errno> {
    for entry in rustix::fs::Dir::new(rustix::fs::open(
        format!("/proc/{pid}/fd"),
        rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?)? {
        let path = format!("/proc/{pid}/fd/{}", entry?.file_name().to_string_lossy());
        // Only memfds are opened, since an open of other files may block.
        let is_memfd = rustix::fs::readlink(&path, Vec::new())
            .is_ok_and(|target| target.as_bytes().starts_with(b"/memfd:"));
        if !is_memfd {
            continue;
        }
        if let Ok(fd) = open_known(&path, file, write) {
            return Ok(fd);
        }
    }
    Err(Errno::NOENT)
}

/// Opens the file at a path, if it is the given one.
///
/// # Errors
/// ENOENT: another file. Others of open(2).
pub(crate) fn open_known(path: &str, file: FileId, write: bool) -> Result<OwnedFd, Errno> {
    let access = if write { rustix::fs::OFlags::RDWR } else { rustix::fs::OFlags::RDONLY };
    let fd = open_without_waiting(path, access)?;
    if file_id(&fd)? == file { Ok(fd) } else { Err(Errno::NOENT) }
}

/// Whether a file cannot shrink (`F_SEAL_SHRINK`).
pub(crate) fn is_unshrinkable(fd: impl AsFd) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

/// Opens the target of another process's descriptor. That process can replace it by a FIFO after
/// any check of its name, and opening one would wait for its other end.
fn open_without_waiting(path: &str, access: rustix::fs::OFlags) -> Result<OwnedFd, Errno> {
    let flags = access | rustix::fs::OFlags::CLOEXEC | rustix::fs::OFlags::NONBLOCK;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty())
}

/// Whether another description of the memfd has an exclusive lock.
pub(crate) fn is_locked(fd: impl AsFd) -> bool {
    match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared) {
        Ok(()) => rustix::fs::flock(&fd, FlockOperation::Unlock).is_err(),
        Err(_) => true,
    }
}

/// Whether a descriptor or mapping from `reopen_shared` of a memfd is left.
pub fn is_shared(fd: impl AsFd) -> bool {
    if rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).is_err() {
        return true;
    }
    let _ = rustix::fs::flock(&fd, FlockOperation::Unlock);
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_holds_the_lock_of_its_descriptor() {
        let _alone = crate::sys::children::none();
        let fd = create("scif-test", 8192).unwrap();
        assert!(!is_shared(&fd));
        let again = reopen_shared(&fd).unwrap();
        assert!(is_shared(&fd));
        let map = crate::sys::mmap::Mapping::part(&again, 4096, 4096, true).unwrap();
        drop(again);
        assert!(is_shared(&fd));
        drop(map);
        assert!(!is_shared(&fd));
    }

    #[test]
    fn each_file_is_opened_once() {
        let name = "scif-test-once";
        let (one, other) = (create(name, 4096).unwrap(), create(name, 4096).unwrap());
        let copies: Vec<_> = (0..50).map(|_| one.try_clone().unwrap()).collect();
        let own = crate::sys::process::pid();
        let found = open_named(own, name, usize::MAX).unwrap();
        assert_eq!(found.len(), 2);
        // The descriptors of a reader are found by the next one.
        assert_eq!(open_named(own, name, usize::MAX).unwrap().len(), 2);
        drop((copies, other));
    }

    #[test]
    fn memory_to_show_can_be_opened_by_its_user_to_read_only() {
        let (fd, map) = create_to_show("scif-test", 8192).unwrap();
        assert_eq!(check(&fd, 8192, FIXED_SIZE | READ_ONLY), Ok(()));
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_mode & 0o7777, 0o600);
        assert!(rustix::io::write(&fd, &[1]).is_err());
        map.bytes(0, 1).unwrap().copy_from_slice(&[7]);
        let mut byte = [0];
        assert_eq!(rustix::io::pread(&fd, &mut byte, 0), Ok(1));
        assert_eq!(byte, [7]);
    }

    #[test]
    fn open_of_a_fifo_does_not_block() {
        let path = std::env::temp_dir().join(format!("scif-fifo-{}", std::process::id()));
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
        let (told, opened) = std::sync::mpsc::channel();
        let name = path.to_str().unwrap().to_owned();
        std::thread::spawn(move || {
            told.send(open_without_waiting(&name, rustix::fs::OFlags::RDONLY).is_ok())
        });
        let opened = opened.recv_timeout(std::time::Duration::from_secs(20));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(opened, Ok(true));
    }

    #[test]
    fn seals_and_sizes_are_checked() {
        let fd = create("scif-test", 8192).unwrap();
        assert_eq!(check(&fd, 8192, FIXED_SIZE), Err(BadMemory::Seals));
        seal(&fd, FIXED_SIZE).unwrap();
        assert_eq!(check(&fd, 8192, FIXED_SIZE), Ok(()));
        assert_eq!(check(&fd, 4096, FIXED_SIZE), Err(BadMemory::Size));
        assert_eq!(check(&fd, 8192, FIXED_SIZE | SealFlags::FUTURE_WRITE), Err(BadMemory::Seals));
        assert!(rustix::fs::ftruncate(&fd, 0).is_err());
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        assert_eq!(check(&event, 0, FIXED_SIZE), Err(BadMemory::Seals));
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Removal of files in a runtime directory, locks on files by flock(2), and files of reports.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

pub(crate) fn unlink(path: &Path) -> Result<(), Errno> {
    rustix::fs::unlink(path)
}

/// Opens an empty file to write, which only its user may read. A file of that name is emptied if it
/// is a regular one of this user with no other name: in a directory that others may write, a link
/// or a FIFO may have the name. Safe in a signal handler.
///
/// # Errors
/// PERM: the name is that of another file. Errors of open(2).
pub fn create_own(path: &CStr) -> Result<OwnedFd, Errno> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::WRONLY
        | OFlags::CREATE
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::CLOEXEC;
    let fd = match rustix::fs::open(path, flags | OFlags::EXCL, mode) {
        Err(Errno::EXIST) => rustix::fs::open(path, flags, mode)?,
        created => return created,
    };
    let stat = rustix::fs::fstat(&fd)?;
    let is_own = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_nlink == 1;
    if !is_own {
        return Err(Errno::PERM);
    }
    rustix::fs::fchmod(&fd, mode)?;
    rustix::fs::ftruncate(&fd, 0)?;
    Ok(fd)
}

/// Opens a file to lock, and creates it if it does not exist.
pub(crate) fn open_lock(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::from_raw_mode(0o666))
}

/// Takes the lock, released when the descriptor closes; `WOULDBLOCK` if another process has it.
pub(crate) fn try_lock(fd: impl AsFd) -> Result<(), Errno> {
    rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive)
}

/// Releases the lock of `try_lock` before the descriptor closes.
pub(crate) fn unlock(fd: impl AsFd) -> Result<(), Errno> {
    rustix::fs::flock(fd, FlockOperation::Unlock)
}

/// Opens the same file again, so that its locks exclude those of the other descriptor.
pub(crate) fn reopen(fd: impl AsFd) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn only_a_regular_file_of_this_user_is_emptied() {
        let dir = std::env::temp_dir().join(format!("scif-own-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let name = |file: &str| dir.join(file);
        let create = |file| create_own(&CString::new(name(file).as_os_str().as_bytes()).unwrap());
        fs::write(name("old"), "text").unwrap();
        fs::set_permissions(name("old"), fs::Permissions::from_mode(0o666)).unwrap();
        for file in ["old", "new"] {
            rustix::io::write(create(file).unwrap(), b"report").unwrap();
            assert_eq!(fs::read(name(file)).unwrap(), b"report");
            assert_eq!(fs::metadata(name(file)).unwrap().permissions().mode() & 0o7777, 0o600);
        }
        symlink(name("old"), name("link")).unwrap();
        symlink(name("none"), name("dangling")).unwrap();
        fs::hard_link(name("new"), name("second")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, name("fifo"), Mode::RUSR | Mode::WUSR).unwrap();
        for file in ["link", "dangling", "second", "fifo", "."] {
            assert!(create(file).is_err(), "{file}");
        }
        // A reader of the FIFO, so that its open for writing succeeds.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let _reader = rustix::fs::open(name("fifo"), flags, Mode::empty()).unwrap();
        assert_eq!(create("fifo").unwrap_err(), Errno::PERM);
        for file in ["old", "new"] {
            assert_eq!(fs::read(name(file)).unwrap(), b"report", "{file}");
        }
        assert!(!name("none").exists());
        fs::remove_dir_all(&dir).unwrap();
    }
}

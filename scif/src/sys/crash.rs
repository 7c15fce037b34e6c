// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Files written without an allocation, for the handlers of `ending_signal`. See
//! `signal-safety(7)`.
#![expect(unsafe_code, reason = "a write of mapped memory")]

use std::ffi::CStr;

use rustix::io::Errno;

use super::file;
use super::mmap::Mapping;

/// Writes the first `len` bytes of a mapping to a file that only its user may read. Safe in a
/// signal handler.
///
/// # Errors
/// Errors of [`file::create_own`] and write(2); INVAL: the mapping is shorter.
pub(crate) fn write_file(path: &CStr, map: &Mapping, len: usize) -> Result<(), Errno> {
    let at = map.at(0, len, 1, false).map_err(|_| Errno::INVAL)?;
    let fd = file::create_own(path)?;
    let mut done = 0;
    while done < len {
        let from = at.cast_const().wrapping_add(done).cast();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&fd);
        // SAFETY: `at` checked the range, which stays mapped; the kernel only reads it.
        let written = unsafe { libc::write(fd, from, len - done) };
        match usize::try_from(written) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => done += count,
            Err(_) => match super::process::last_errno() {
                Errno::INTR => {}
                errno => return Err(errno),
            },
        }
    }
    Ok(())
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory of published records, and the reason why a process has none.

use std::os::fd::OwnedFd;

use crate::sys::memfd;
use crate::sys::mmap::Mapping;

/// Creates memory of `bytes` bytes with a name, for a process whose files may have `limit` bytes.
///
/// # Errors
/// Reason, and the limit to raise.
pub(super) fn create(name: &str, bytes: usize, limit: u64) -> Result<(OwnedFd, Mapping), String> {
    if limit < bytes as u64 {
        return Err(format!(
            "it takes {bytes} bytes, and files may have {limit}. Raise the limit of file sizes \
             (ulimit -f)"
        ));
    }
    memfd::create_to_show(name, bytes)
        .map_err(|errno| format!("{errno}. Raise the limit of open files (ulimit -n) or of memory"))
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, Rlimit, setrlimit};

    use super::*;
    use crate::sys::children;

    #[test]
    fn the_limit_to_raise_is_named() {
        let made = |limit| create("scif-test", 4096, limit).map(|_| ());
        assert_eq!(made(4096), Ok(()));
        let too_small = made(4095).unwrap_err();
        assert!(too_small.contains("ulimit -f"), "{too_small}");
        let child = children::in_child(|| {
            let none = Rlimit { current: Some(0), maximum: Some(0) };
            let is_set = setrlimit(Resource::Nofile, none);
            let reason = made(4096).err().unwrap_or_default();
            i32::from(is_set.is_err() || !reason.contains("ulimit -n"))
        });
        assert_eq!(child.result(), 0);
    }
}

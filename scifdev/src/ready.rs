// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! poll and select with the driver's bits. The descriptors themselves show an outdated state in two
//! cases (see `libscif`'s README), and wake sleepers.
//!
//! Not about epoll, which uses the descriptors themselves. See `poll(2)`, `select(2)`, and the poll
//! operation of the driver.
#![expect(unsafe_code, reason = "calls the C library, and sets that a program names")]

use std::ffi::{c_int, c_ulong};
use std::time::{Duration, Instant};

use libc::{nfds_t, pollfd, sigset_t, timespec};
use scif_api::{Endpoints, Failure, Result};

use crate::{ours, real};

/// Pause after a descriptor showed an outdated state: another thread is about to correct it.
const CORRECTING: Duration = Duration::from_micros(100);
const BITS: usize = c_ulong::BITS as usize;

/// Waits until an entry is ready, at most for `limit`, with the signals of `mask` blocked. Returns
/// the number of ready entries.
pub(crate) fn wait(
    endpoints: &Endpoints,
    entries: &mut [pollfd],
    limit: Option<Duration>,
    mask: *const sigset_t,
) -> Result<usize> {
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut shown = false;
    loop {
        let ready = ours::inside(|| endpoints.poll(entries, 0))?;
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if ready != 0 || (left == Some(Duration::ZERO) && limit != Some(Duration::ZERO)) {
            return Ok(ready);
        }
        let time = left.map(|left| timespec {
            tv_sec: libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        if shown {
            real::keep_errno(|| std::thread::sleep(CORRECTING));
        }
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let n = nfds_t::try_from(entries.len()).map_err(|_| Failure::Invalid)?;
        // SAFETY: live entries and their number; the time is live or NULL, the mask is the
        // program's or NULL.
        let rc = unsafe { real::ppoll(entries.as_mut_ptr(), n, time, mask) };
        if rc < 0 {
            return Err(Failure::Os(rustix::io::Errno::from_raw_os_error(real::errno())));
        }
        shown = rc > 0;
        if limit == Some(Duration::ZERO) {
            // Polled twice; signals that the mask admits were delivered in between.
            return ours::inside(|| endpoints.poll(entries, 0));
        }
    }
}

/// Set of select(2), or NULL.
#[derive(Clone, Copy)]
pub(crate) struct Set {
    words: *mut c_ulong,
    n: usize,
}

impl Set {
    /// # Safety
    /// NULL, or a set of at least `n` descriptors that belongs to the program during this call.
    pub(crate) unsafe fn new(set: *mut libc::fd_set, n: usize) -> Set {
        Set { words: set.cast(), n }
    }

    fn word(self, fd: usize) -> Option<*mut c_ulong> {
        (!self.words.is_null() && fd < self.n).then(|| self.words.wrapping_add(fd / BITS))
    }

    pub(crate) fn has(self, fd: usize) -> bool {
        self.word(fd).is_some_and(|word| {
            // SAFETY: the set has space for `n` descriptors and `fd` is one of them (`new`).
            let word = unsafe { word.read_unaligned() };
            word >> (fd % BITS) & 1 != 0
        })
    }

    fn set(self, fd: usize, on: bool) {
        if let Some(word) = self.word(fd) {
            // SAFETY: as in `has`.
            let old = unsafe { word.read_unaligned() };
            let bit: c_ulong = 1 << (fd % BITS);
            let new = if on { old | bit } else { old & !bit };
            // SAFETY: as in `has`.
            unsafe { word.write_unaligned(new) };
        }
    }
}

const READ: i16 = libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND;
const WRITE: i16 = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND;

/// Implements select(2) with `wait`. Returns the number of set bits.
pub(crate) fn select(
    endpoints: &Endpoints,
    sets: [Set; 3],
    limit: Option<Duration>,
    mask: *const sigset_t,
) -> Result<usize> {
    let [read, write, except] = sets;
    let n = read.n;
    let mut entries = Vec::new();
    for fd in 0..n {
        let mut events = 0;
        if read.has(fd) {
            events |= READ;
        }
        if write.has(fd) {
            events |= WRITE;
        }
        if except.has(fd) {
            events |= libc::POLLPRI;
        }
        if events != 0 {
            let fd = c_int::try_from(fd).map_err(|_| Failure::Invalid)?;
            entries.push(pollfd { fd, events, revents: 0 });
        }
    }
    wait(endpoints, &mut entries, limit, mask)?;
    if entries.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
        return Err(Failure::BadDescriptor);
    }
    let mut count = 0;
    for entry in &entries {
        let Ok(fd) = usize::try_from(entry.fd) else {
            continue;
        };
        // Bits of poll that each set of select represents.
        let tests = [
            (read, READ | libc::POLLHUP | libc::POLLERR),
            (write, WRITE | libc::POLLERR),
            (except, libc::POLLPRI),
        ];
        for (set, means) in tests {
            if set.has(fd) {
                let on = entry.revents & means != 0;
                set.set(fd, on);
                count += usize::from(on);
            }
        }
    }
    Ok(count)
}

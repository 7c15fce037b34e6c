// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Sleep on a word of memory shared between processes. See `futex(2)`.
//!
//! A sleep without a time limit is restarted by the kernel after a signal whose handler has
//! SA_RESTART; after another signal it ends with EINTR. With a limit every signal ends it.
#![expect(unsafe_code, reason = "futex(2) has no safe wrapper that leaves the word shared")]

use rustix::io::Errno;
use scif_ring::SharedU32;

use super::errno::keep_errno;
use super::process::last_errno;

/// Sleeps while `word` equals `value`, at most for `timeout_ns`. May return early without a cause.
///
/// # Errors
/// EAGAIN: `word` differed from `value` at the call. ETIMEDOUT: the time is over. EINTR: a signal.
pub fn wait(word: &SharedU32, value: u32, timeout_ns: Option<u64>) -> Result<(), Errno> {
    let limit = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    });
    let limit_at = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    keep_errno(|| {
        // SAFETY: the word is mapped while its handle exists (contract of `SharedU32::new`), and
        // the kernel only reads it; `limit_at` is null or a live timespec.
        let rc = unsafe {
            libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, limit_at)
        };
        if rc == 0 { Ok(()) } else { Err(last_errno()) }
    })
}

/// Wakes all sleepers on `word`.
pub fn wake_all(word: &SharedU32) {
    // SAFETY: only the address is used, as the name of a queue.
    let _ = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// `struct futex_waitv`
#[repr(C)]
struct FutexWait {
    value: u64,
    addr: u64,
    flags: u32,
    reserved: u32,
}

const SIZE_32: u32 = 2;
/// Maximum number of words on which the kernel waits at once.
const WORDS_MAX: usize = 128;
/// Duration of a sleep in place of futex_waitv(2), where the kernel lacks it or takes fewer words.
const BRIEFLY: std::time::Duration = std::time::Duration::from_micros(50);

/// Sleeps while each word has its value, at most for `timeout_ns`. May end spuriously.
pub fn wait_any(words: &[(SharedU32, u32)], timeout_ns: Option<u64>) {
    if let [(word, value)] = words {
        let _ = wait(word, *value, timeout_ns);
        return;
    }
    if words.iter().any(|(word, value)| word.get() != *value) {
        return;
    }
    let waiters: Vec<FutexWait> = words
        .iter()
        .map(|(word, value)| FutexWait {
            value: u64::from(*value),
            addr: word.as_ptr().expose_provenance() as u64,
            flags: SIZE_32,
            reserved: 0,
        })
        .collect();
    // The limit is an absolute time of CLOCK_MONOTONIC.
    let limit = timeout_ns.map(|ns| super::time::now_ns().saturating_add(ns));
    let limit = limit.map(|at| libc::timespec {
        tv_sec: (at / 1_000_000_000) as i64,
        tv_nsec: (at % 1_000_000_000) as i64,
    });
    let limit_at = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let denied = keep_errno(|| {
        // SAFETY: the array has at least the given number of live entries, whose words are mapped
        // while their handles exist; `limit_at` is null or a live timespec.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_futex_waitv,
                waiters.as_ptr(),
                waiters.len().min(WORDS_MAX + 1),
                0,
                limit_at,
                libc::CLOCK_MONOTONIC,
            )
        };
        rc < 0 && matches!(last_errno(), Errno::NOSYS | Errno::INVAL | Errno::PERM)
    });
    if denied {
        std::thread::sleep(BRIEFLY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mmap::Mapping;

    #[test]
    fn any_word_ends_a_sleep_for_several() {
        let map = Mapping::anonymous(4096).unwrap();
        let words: Vec<SharedU32> = (0..3).map(|i| map.word32(i * 64).unwrap()).collect();
        let watched: Vec<(SharedU32, u32)> = words.iter().map(|word| (*word, 0)).collect();
        wait_any(&watched, Some(1000));
        for word in &words {
            let other = *word;
            let waker = std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(5));
                other.set(1);
                wake_all(&other);
            });
            while word.get() == 0 {
                wait_any(&watched, None);
            }
            waker.join().unwrap();
            wait_any(&watched, None);
            word.set(0);
        }
        let many: Vec<(SharedU32, u32)> = (0..200).map(|_| (words[0], 0)).collect();
        wait_any(&many, Some(1000));
    }
}

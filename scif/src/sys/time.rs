// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The monotonic clock, and yielding the processor while polling. See `clock_gettime(2)`,
//! `sched_yield(2)`.
#![expect(unsafe_code, reason = "clock_gettime through the vdso, without Instant's opaque origin")]

/// Number of empty polls that only pause, before polls yield the processor. A poll takes about 50
/// ns, so this is some 4 µs.
const RELAXED_POLLS: u32 = 80;

/// Returns CLOCK_MONOTONIC in nanoseconds.
#[must_use]
#[inline]
pub fn now_ns() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a live timespec that the call fills; CLOCK_MONOTONIC always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut ts) };
    ts.tv_sec.unsigned_abs() * 1_000_000_000 + ts.tv_nsec.unsigned_abs()
}

/// Returns the same clock as of the last tick of the kernel: some milliseconds late, at a quarter
/// of the cost.
#[inline]
pub(crate) fn tick_ns() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one live timespec; the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut ts) };
    ts.tv_sec.unsigned_abs() * 1_000_000_000 + ts.tv_nsec.unsigned_abs()
}

/// Returns the number of this thread, and the nanoseconds that it has had a processor. Takes a
/// system call each.
#[must_use]
pub fn thread_cpu_ns() -> (i32, u64) {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one live timespec; the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut ts) };
    let ns = ts.tv_sec.unsigned_abs() * 1_000_000_000 + ts.tv_nsec.unsigned_abs();
    (rustix::thread::gettid().as_raw_nonzero().get(), ns)
}

/// Pauses a polling loop after its `n_empty_polls`-th consecutive empty poll. Early pauses keep the
/// processor. Later ones yield it to other runnable threads, so that two ranks on one core do not
/// wait for each other's time slice.
#[inline]
pub fn cpu_relax_or_yield(n_empty_polls: u32) {
    if n_empty_polls < RELAXED_POLLS {
        std::hint::spin_loop();
    } else {
        rustix::thread::sched_yield();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_goes_forward() {
        let a = now_ns();
        assert!(tick_ns() <= now_ns() && a - tick_ns().min(a) < 1_000_000_000);
        cpu_relax_or_yield(0);
        cpu_relax_or_yield(RELAXED_POLLS);
        assert!(now_ns() >= a && a > 0);
        let (thread, cpu) = thread_cpu_ns();
        while now_ns() - a < 1_000_000 {}
        let after = thread_cpu_ns();
        assert!(after.0 == thread && after.1 > cpu && after.1 - cpu <= now_ns() - a);
    }
}

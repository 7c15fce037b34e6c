// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Locks and waits that a panic elsewhere does not poison.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::wire::Deadline;

/// Takes a lock. Callers leave valid values at each point where they may panic.
pub(crate) fn take<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a change, or until the deadline. Returns whether the deadline has passed.
pub(crate) fn wait<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    deadline: Deadline,
) -> (MutexGuard<'a, T>, bool) {
    let Some(end) = deadline else {
        return (changed.wait(guard).unwrap_or_else(PoisonError::into_inner), false);
    };
    let left = end.saturating_duration_since(Instant::now());
    let (guard, _) = changed.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner);
    (guard, Instant::now() >= end)
}

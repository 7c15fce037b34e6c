// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Process-local locks that a forked child never finds taken.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use scif::sys::fork::{self, Section};

/// Guard of a process-local lock. No other thread forks meanwhile, so a child never finds the lock
/// taken.
#[derive(Debug)]
pub(crate) struct Taken<'a, T>(MutexGuard<'a, T>, Section);

impl<T> Deref for Taken<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Taken<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// Takes a lock that a panic does not poison: the guarded value is replaced whole. Not to be held
/// while sleeping.
pub(crate) fn take<T>(mutex: &Mutex<T>) -> Taken<'_, T> {
    let section = fork::section();
    Taken(mutex.lock().unwrap_or_else(PoisonError::into_inner), section)
}

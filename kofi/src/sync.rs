// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The one door to locks and threads: `std` in the product, loom under `--cfg loom`.
//!
//! A panic of a provider's code never happens under one of these locks, so what a poisoned one holds is whole.

pub(crate) use std::sync::Arc;
use std::sync::PoisonError;

#[cfg(loom)]
pub(crate) use loom::{
    sync::{Condvar, Mutex, MutexGuard},
    thread::{self, ThreadId},
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard},
    thread::{self, ThreadId},
};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Locks and threads of this crate: `std` in the product, loom under `--cfg loom`.
//!
//! No code of a provider runs under one of these locks, so the data in a poisoned one is
//! consistent.

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

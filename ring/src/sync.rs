// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The single source of atomics on shared memory: `core` in the product, loom under `--cfg loom`.
//!
//! Not about: atomics on user buffers (`rmw`) and on process-local state (`counter`), which no loom
//! model covers.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes that the other side of a mapping may write. Implements loom's interface over `core`'s
/// cell.
#[cfg(not(loom))]
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get().cast_const())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Ranges in which this process maps parts of memfds that the program may have mapped as well.
//!
//! Not about the mappings (`mmap`). A forked child has none of them.

use std::sync::{Mutex, MutexGuard};

use super::errno::lock;
use crate::sorted::SortedMap;

/// Begin and end of each range.
static PARTS: Mutex<SortedMap<usize, usize>> = Mutex::new(SortedMap::new());

/// Returns the list, for a caller in a section of `fork`: no fork finds the lock taken.
pub(super) fn parts() -> MutexGuard<'static, SortedMap<usize, usize>> {
    lock(&PARTS)
}

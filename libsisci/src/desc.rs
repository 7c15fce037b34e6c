// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Descriptor of `SCIOpen`, which owns all other objects.

use std::sync::Arc;

use scif_ring::counter::AtomicCounter;

use crate::context::Context;
use crate::error::{Outcome, SciError, fail};

/// Descriptor of the program.
pub(crate) struct Desc {
    pub(crate) context: Arc<Context>,
    /// Number of its objects that are not removed.
    objects: AtomicCounter,
}

impl Desc {
    pub(crate) fn new(context: Arc<Context>) -> Arc<Desc> {
        Arc::new(Desc { context, objects: AtomicCounter::new(0) })
    }

    /// Counts a new object.
    pub(crate) fn hold(&self) {
        self.objects.add(1);
    }

    /// Counts the removal of an object.
    pub(crate) fn release(&self) {
        self.objects.sub(1);
    }

    /// Checks that it owns no object.
    ///
    /// # Errors
    /// `Busy`.
    pub(crate) fn check_unused(&self) -> Outcome<()> {
        if self.objects.get() == 0 { Ok(()) } else { fail(SciError::Busy) }
    }
}

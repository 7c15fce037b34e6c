// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! What `rdma/fi_trigger.h` needs for a provider without triggered operations: the type of a work request, opaque.

use core::marker::{PhantomData, PhantomPinned};

/// Argument of `FI_QUEUE_WORK` and `FI_CANCEL_WORK`; only ever behind a pointer.
#[repr(C)]
#[derive(Debug)]
pub struct fi_deferred_work {
    opaque: [u8; 0],
    marker: PhantomData<(*mut u8, PhantomPinned)>,
}

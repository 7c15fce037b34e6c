// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! A thin client of libfabric. Every call uses the operations table of its object, exactly as the
//! inline functions of libfabric's headers do, and returns the result of that operation.
//!
//! There are no retries, no progress and no bookkeeping. Memory handed to the provider is a
//! [`Buf`], which is never freed, so no call can leave a dangling pointer. Objects are closed when
//! dropped, and keep their parents open. Threads may share and move objects; the caller must
//! respect the requested threading level, as in C.

mod av;
mod buf;
mod cm;
mod cntr;
mod collective;
mod cq;
mod ep;
mod eq;
mod errno;
mod fabric;
mod info;
mod library;
mod messages;
mod mr;
mod object;
mod one_sided;
mod pages;
mod peer;
mod sets;
mod shared;
mod shared_file;
mod trigger;
mod walk;

pub use av::{Av, AvAttr};
pub use buf::{Buf, pattern_bytes};
pub use cm::{CmEvent, Pep, Request};
pub use cntr::{Cntr, CntrAttr};
pub use collective::{AvSet, AvSetAttr, Collective, Mc};
pub use cq::{Cq, CqAttr, CqErr, Entry};
pub use ep::{Ep, rx_addr};
pub use eq::{Eq, EqAttr, EqErr, EqEvent};
pub use errno::{Errno, Result, hold_to_errno};
pub use fabric::{Domain, Fabric};
pub use info::{DomainAttr, Hints, Info};
pub use library::{Lib, version};
pub use messages::{NullMessage, TaggedMsg};
pub use mr::{Mr, MrRequest};
pub use object::Fid;
pub use one_sided::{AtomicTarget, Ioc, Kind as AtomicKind, RmaIoc, RmaIov, RmaMsg};
pub use pages::{maps_windows, may_hold_stores};
pub use peer::{Owner, Written};
pub use sets::{PollSet, WaitSet};
pub use shared::Stx;
pub use shared_file::{
    SharedFile, attach_segment, is_process_vm_permitted, mappings_of, new_segment, unlink_shm,
};
pub use trigger::{Operation, Work, WorkRequest, when, when_nothing};
pub use walk::{CallResult, Slot, Tables};

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "declares the C objects that calls may recover from pointers")]
//! Shared receive context, as a C object and as a target of receives.

use std::sync::Arc;

use libfabric_sys as fi;
use libfabric_sys::fid_ep;
use scif::Maker;

use super::transfer::{Receiver, check_recv};
use crate::base::entry;
use crate::base::errno::Errno;
use crate::domain::{DomainShared, srx};
use crate::engine::types::args::RecvArgs;

/// Object behind the `struct fid_ep` of a shared receive context.
#[repr(C)]
pub(crate) struct Srx {
    pub(crate) fid: fid_ep,
    pub(crate) dom: Arc<DomainShared>,
    pub(crate) creator: Maker,
    pub(crate) index: u32,
    pub(crate) op_flags: u64,
}

// SAFETY: repr(C) with a fid_ep first; FI_CLASS_SRX_CTX is in Srx objects only. The fields after
// the fid are Sync.
unsafe impl entry::Object for Srx {
    const FCLASS: usize = fi::FI_CLASS_SRX_CTX;
}

entry::created_by!(Srx, |object| object.creator);

impl Srx {
    /// Domain of this context.
    pub(crate) fn domain(&self) -> &Arc<DomainShared> {
        &self.dom
    }

    /// Index in `DomainState::srxs`.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }
}

impl Receiver for Srx {
    fn rx_flags(&self) -> u64 {
        self.op_flags
    }

    fn rx_always(&self) -> u64 {
        0
    }

    fn recv(&self, args: &RecvArgs<'_>) -> Result<isize, Errno> {
        entry::check_not_forked(self.creator)?;
        check_recv(args)?;
        srx::recv(&mut self.dom.gate.lock(), self.index, args)?;
        Ok(0)
    }
}

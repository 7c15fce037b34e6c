// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "other views of the object that C holds")]
//! Transmit and receive contexts of a scalable endpoint, as targets of operations.

use libfabric_sys as fi;

use super::ep::{Ep, Handle};
use super::transfer::{Receiver, Sender, check_recv};
use crate::base::entry::{self, Object};
use crate::base::errno::Errno;
use crate::domain::calls;
use crate::engine::types::args::{RecvArgs, SendArgs};

/// Transmit context.
#[repr(transparent)]
pub(crate) struct TxCtx(Ep);

/// Receive context.
#[repr(transparent)]
pub(crate) struct RxCtx(Ep);

// SAFETY: a transparent wrapper of an endpoint; `open` gives this class to transmit contexts only.
unsafe impl Object for TxCtx {
    const FCLASS: usize = fi::FI_CLASS_TX_CTX;
}

// SAFETY: a transparent wrapper of an endpoint; `open` gives this class to receive contexts only.
unsafe impl Object for RxCtx {
    const FCLASS: usize = fi::FI_CLASS_RX_CTX;
}

entry::created_by!(TxCtx, |object| object.0.core.creator);

impl Handle for TxCtx {
    fn ep(&self) -> &Ep {
        &self.0
    }
}

entry::created_by!(RxCtx, |object| object.0.core.creator);

impl Handle for RxCtx {
    fn ep(&self) -> &Ep {
        &self.0
    }
}

impl Sender for TxCtx {
    fn send(&self, args: &SendArgs<'_>) -> Result<isize, Errno> {
        self.0.send(args)
    }
}

impl Receiver for RxCtx {
    fn rx_flags(&self) -> u64 {
        self.0.rx_flags()
    }

    fn rx_always(&self) -> u64 {
        self.0.rx_always()
    }

    fn recv(&self, args: &RecvArgs<'_>) -> Result<isize, Errno> {
        let core = &self.0.core;
        entry::check_not_forked(core.creator)?;
        check_recv(args)?;
        calls::recv_slow(&mut core.dom.gate.lock(), core.idx(), args)?;
        Ok(0)
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "declares the C objects that calls may recover from pointers")]
//! Endpoint, as shared by its C objects: the endpoint itself, its aliases and later holders.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libfabric_sys as fi;
use libfabric_sys::fid_ep;
use scif::Maker;
use scif_ring::AtomicCounter;

use super::flags::{RX_OP_FLAGS, TX_OP_FLAGS, bad_flags};
use super::limits::SizeLimits;
use super::sep::ContextPlace;
use super::stx::StxShared;
use crate::base::addr::ADDR_LEN;
use crate::base::entry::Object;
use crate::base::errno::Errno;
use crate::domain::DomainShared;
use crate::objects::pep::request::HeldRequest;

/// State shared by an endpoint and its aliases.
#[derive(Debug)]
pub(crate) struct EpCore {
    pub(crate) dom: Arc<DomainShared>,
    pub(crate) creator: Maker,
    /// Index in [`crate::domain::DomainState::eps`]; fi_setname changes it, before the endpoint is
    /// enabled.
    pub(crate) idx: AtomicCounter,
    /// IP address in the name of the endpoint.
    pub(crate) ip: AtomicCounter,
    pub(crate) inject_size: usize,
    /// `FI_COMPLETION` when every transmit (receive) completes, because the queue was not bound
    /// selectively; else 0.
    pub(crate) tx_always: AtomicCounter,
    pub(crate) rx_always: AtomicCounter,
    /// Addresses of the endpoint and its aliases that C has not closed; empty until the first
    /// alias.
    pub(crate) handles: Mutex<Vec<usize>>,
    pub(crate) limits: SizeLimits,
    /// Connection request for which a connected endpoint was opened.
    pub(crate) request: Mutex<Option<HeldRequest>>,
    /// Shared transmit context to which the endpoint is bound.
    pub(crate) stx: Mutex<Option<Arc<StxShared>>>,
    /// Whether messages have a prefix.
    pub(crate) prefixed: bool,
    /// Whether the endpoint was opened with triggered operations.
    pub(crate) triggers: bool,
    /// Address of an endpoint that answers a request: the one of the passive endpoint.
    pub(crate) answers_as: Option<[u8; ADDR_LEN]>,
    /// Scalable endpoint of which this is a context, and which provides its address vector and
    /// event queue.
    pub(crate) place: Option<ContextPlace>,
}

/// `struct fid_ep`: an endpoint, or an alias of one.
#[repr(C)]
pub(crate) struct Ep {
    pub(crate) fid: fid_ep,
    pub(crate) core: Arc<EpCore>,
    pub(crate) tx_op_flags: AtomicCounter,
    pub(crate) rx_op_flags: AtomicCounter,
}

// SAFETY: repr(C) with a fid_ep first. FI_CLASS_EP is in Ep objects only, except in contexts, to
// which `context` gives other classes. An Arc and counts, all Sync, follow the fid.
unsafe impl Object for Ep {
    const FCLASS: usize = fi::FI_CLASS_EP;
}

crate::base::entry::created_by!(Ep, |object| object.core.creator);

/// Object with an endpoint: a C object of type `struct fid_ep`, or a holder that posts to the
/// endpoint later. The C object is the endpoint, an alias, or a context of a scalable endpoint.
pub(crate) trait Handle {
    fn ep(&self) -> &Ep;
}

impl Handle for Ep {
    #[inline(always)]
    fn ep(&self) -> &Ep {
        self
    }
}

impl Ep {
    /// Returns the default flags of the direction in `flags`.
    pub(crate) fn op_flags(&self, flags: u64) -> Result<&AtomicCounter, Errno> {
        match flags & (fi::FI_TRANSMIT | fi::FI_RECV) {
            fi::FI_TRANSMIT => Ok(&self.tx_op_flags),
            fi::FI_RECV => Ok(&self.rx_op_flags),
            _ => Err(fi::FI_EINVAL),
        }
    }

    /// Replaces the default flags of the direction in `flags` by the remaining bits.
    pub(crate) fn set_op_flags(&self, flags: u64) -> Result<(), Errno> {
        let place = self.op_flags(flags)?;
        let allowed = if flags & fi::FI_TRANSMIT != 0 { TX_OP_FLAGS } else { RX_OP_FLAGS };
        let allowed = if self.core.triggers { allowed | fi::FI_TRIGGER } else { allowed };
        let flags = flags & !(fi::FI_TRANSMIT | fi::FI_RECV);
        if flags & !allowed != 0 {
            return Err(bad_flags(flags, allowed));
        }
        place.set_relaxed(flags);
        Ok(())
    }

    /// Returns another handle for the endpoint, with `flags` as the default of the direction they
    /// contain.
    pub(crate) fn alias(&self, flags: u64) -> Result<Box<Ep>, Errno> {
        let alias = Box::new(Ep {
            fid: self.fid,
            core: Arc::clone(&self.core),
            tx_op_flags: AtomicCounter::new(self.tx_op_flags.get_relaxed()),
            rx_op_flags: AtomicCounter::new(self.rx_op_flags.get_relaxed()),
        });
        alias.set_op_flags(flags)?;
        Ok(alias)
    }
}

impl EpCore {
    pub(crate) fn new(dom: &Arc<DomainShared>, idx: u32, inject_size: usize) -> EpCore {
        EpCore {
            dom: Arc::clone(dom),
            creator: Maker::here(),
            idx: AtomicCounter::new(u64::from(idx)),
            ip: AtomicCounter::new(0),
            inject_size,
            tx_always: AtomicCounter::new(0),
            rx_always: AtomicCounter::new(0),
            handles: Mutex::new(Vec::new()),
            limits: SizeLimits::new(inject_size),
            request: Mutex::new(None),
            stx: Mutex::new(None),
            prefixed: false,
            triggers: false,
            answers_as: None,
            place: None,
        }
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "only indexes are stored here")]
    pub(crate) fn idx(&self) -> u32 {
        self.idx.get_relaxed() as u32
    }

    /// Records that the endpoint at `known` has an alias at `new`.
    pub(crate) fn add_handle(&self, known: usize, new: usize) {
        let mut handles = self.handles();
        if handles.is_empty() {
            handles.push(known);
        }
        handles.push(new);
    }

    /// Removes the handle at `gone` and the events that name it; the last removal closes the
    /// endpoint. Later events name a remaining handle.
    pub(crate) fn release(&self, gone: usize) {
        let mut st = self.dom.gate.lock();
        let mut handles = self.handles();
        handles.retain(|of| *of != gone);
        let left = handles.first().copied();
        drop(handles);
        if let Some(left) = left {
            if let Some(ep) = st.eps.get_mut(self.idx()).filter(|ep| ep.fid == gone) {
                ep.fid = left;
                if let Some(eq) = &ep.eq {
                    eq.purge_fid(gone);
                }
            }
            return;
        }
        let mut av = None;
        if let Some(ep) = st.eps.get_mut(self.idx()) {
            av = Some(ep.cfg.av);
            if let Some(eq) = ep.eq.take() {
                eq.detach(ep.links.sock.wait_fd());
                eq.purge_fid(ep.fid);
            }
        }
        drop(st);
        self.dom.close_ep(self.idx(), av);
        let request = self.request().take();
        // Dropping an unanswered request rejects it.
        drop(request);
        drop(self.stx().take());
    }

    pub(crate) fn handles(&self) -> MutexGuard<'_, Vec<usize>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the shared transmit context to which the endpoint is bound.
    pub(crate) fn stx(&self) -> MutexGuard<'_, Option<Arc<StxShared>>> {
        self.stx.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the connection request for which the endpoint was opened.
    pub(crate) fn request(&self) -> MutexGuard<'_, Option<HeldRequest>> {
        self.request.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "C calls in, with pointers")]
//! Scalable endpoints: one address with several transmit and receive contexts.
//!
//! Each context is an endpoint of its own whose port follows the first one (`ports`), so contexts
//! share no queue and no peer. This object holds the common state: address, address vector, event
//! queue. The data path depends on it only to match the source of a receive (`engine::group`).
//! Address vectors depend on it to select a context of an address, and to find the endpoint to
//! which a port belongs. The contexts are in `ep::context`.
//!
//! Mirrors fi_endpoint(3), "Scalable Endpoints".

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libfabric_sys as fi;
use libfabric_sys::{fid, fid_ep, fid_t};

use crate::base::addr::ContextCounts;
use crate::base::attr;
use crate::base::entry::{self, Object, guard_int, object, own};
use crate::base::errno::Errno;
use crate::domain::DomainShared;
use crate::objects::endpoint::sep::{ContextAttr, Direction, SepShared, of_rx, of_tx};
use crate::objects::ep::context;
use crate::objects::ep::open::EpRequest;
use crate::objects::eq::Eq;
use crate::objects::handle::{Av, Domain};
use crate::objects::no_ops::{NO_ATOMIC, NO_COLLECTIVE, NO_MSG, NO_RMA, NO_TAGGED};

/// Object behind the `struct fid_ep` of a scalable endpoint.
#[repr(C)]
pub(crate) struct Sep {
    fid: fid_ep,
    shared: Arc<SepShared>,
}

// SAFETY: repr(C) with a fid_ep first; FI_CLASS_SEP is in Sep objects only. An Arc of a Sync type
// follows the fid.
unsafe impl Object for Sep {
    const FCLASS: usize = fi::FI_CLASS_SEP;
}

entry::created_by!(Sep, |object| object.shared.creator);

static FID_OPS: fi::fi_ops = fi::fi_ops { close, bind, control, ..fi::FI_OPS_NOSYS };
static EP_OPS: fi::fi_ops_ep = fi::fi_ops_ep { tx_ctx, rx_ctx, ..fi::FI_OPS_EP_NOSYS };
static CM_OPS: fi::fi_ops_cm = fi::fi_ops_cm { setname, getname, ..fi::FI_OPS_CM_NOSYS };

/// `fi_scalable_ep`
///
/// Binds the ports of all contexts counted in `info->ep_attr`.
///
/// # Errors
/// `-FI_EINVAL` for an incomplete info, another type than `FI_EP_RDM`, shared or too many contexts,
/// triggered operations. `-FI_EADDRINUSE` when a port from that of the source address on is in use,
/// `-FI_EADDRNOTAVAIL` for an address of another host.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fi::fid_domain,
    info: *mut fi::fi_info,
    sep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_scalable_ep", || {
        // SAFETY: C passes an open domain.
        let domain = unsafe { own::<Domain, _>(domain) }?;
        // SAFETY: null or an info of libfabric.
        let EpRequest { info, ep_attr, tx, rx, src } = unsafe { EpRequest::of(info) }?;
        if sep.is_null() || ep_attr.type_ != fi::FI_EP_RDM || info.mode & fi::FI_MSG_PREFIX != 0 {
            return Err(fi::FI_EINVAL);
        }
        let group =
            ContextCounts::new(ep_attr.rx_ctx_cnt, ep_attr.tx_ctx_cnt).ok_or(fi::FI_EINVAL)?;
        let caps = if info.caps == 0 {
            (attr::TX_CAPS | attr::RX_CAPS & !attr::PRICED_CAPS) & !fi::FI_TRIGGER
        } else {
            info.caps
        };
        if caps & fi::FI_TRIGGER != 0 {
            return Err(fi::FI_EINVAL);
        }
        let new = Sep::open(&domain.shared, group, (src, caps), (tx, rx), context)?;
        let fid = (&raw const *new).expose_provenance();
        new.shared.named(fid);
        // SAFETY: not null; space for the new object.
        unsafe { entry::put(sep, entry::give(new)) }
    })
}

/// `fi_close`
///
/// # Errors
/// `-FI_EBUSY` while one of its contexts is open.
unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard_int("fi_close of a scalable endpoint", || {
        // SAFETY: C passes an open scalable endpoint.
        unsafe { own::<Sep, _>(fid) }?.shared.retire()?;
        // SAFETY: made by `open` and not used by C any more.
        drop(unsafe { entry::take::<Sep, _>(fid) }?);
        Ok(())
    })
}

/// `fi_scalable_ep_bind`
///
/// # Errors
/// `-FI_EINVAL` for objects that are bound to contexts or to no endpoint, or a binding that exists.
/// `-FI_EBADFLAGS` for flags, `-FI_EDOMAIN` for an object of another domain, `-FI_EOPBADSTATE` once
/// enabled.
unsafe extern "C" fn bind(fid: *mut fid, bfid: *mut fid, flags: u64) -> c_int {
    guard_int("fi_scalable_ep_bind", || {
        // SAFETY: C passes an open scalable endpoint.
        let sep = unsafe { own::<Sep, _>(fid) }?;
        if flags != 0 {
            return Err(fi::FI_EBADFLAGS);
        }
        // SAFETY: null or an open object, by the contract of fi_scalable_ep_bind.
        match unsafe { entry::class_of(bfid) }? {
            // SAFETY: as above.
            fi::FI_CLASS_AV => sep.shared.bind_av(unsafe { object::<Av, _>(bfid) }?),
            // SAFETY: as above.
            fi::FI_CLASS_EQ => sep.shared.bind_eq(unsafe { object::<Eq, _>(bfid) }?),
            _ => Err(fi::FI_EINVAL),
        }
    })
}

/// `fi_control`
///
/// # Errors
/// `-FI_ENOSYS` for other commands than `FI_ENABLE`; `-FI_ENOAV` without an address vector.
unsafe extern "C" fn control(fid: *mut fid, command: c_int, _arg: *mut c_void) -> c_int {
    guard_int("fi_control of a scalable endpoint", || {
        // SAFETY: C passes an open scalable endpoint.
        let sep = unsafe { own::<Sep, _>(fid) }?;
        match command {
            fi::FI_ENABLE => sep.shared.enable(),
            _ => Err(fi::FI_ENOSYS),
        }
    })
}

/// Defines `fi_tx_context` and `fi_rx_context`. Zero fields of `attr` take the values with which
/// the endpoint was opened.
///
/// They fail with `-FI_EINVAL` for an index out of range, or attributes that exceed the endpoint's,
/// and with `-FI_EBUSY` when that context is open.
macro_rules! context_calls {
    ($($name:ident, $call:literal, $attr:ty, $way:ident, $side:ident, $convert:ident;)*) => {$(
        unsafe extern "C" fn $name(
            sep: *mut fid_ep,
            index: c_int,
            attr: *mut $attr,
            out: *mut *mut fid_ep,
            context: *mut c_void,
        ) -> c_int {
            guard_int($call, || {
                // SAFETY: C passes an open scalable endpoint.
                let sep = unsafe { own::<Sep, _>(sep) }?;
                // SAFETY: null, or attributes that stay unchanged during the call.
                let request = unsafe { attr.as_ref() }.map($convert);
                let wanted = sep.shared.$side.narrowed(request)?;
                // SAFETY: null or space for the new object.
                unsafe { sep.open_context(Direction::$way, index, wanted, out, context) }
            })
        }
    )*};
}

context_calls! {
    tx_ctx, "fi_tx_context", fi::fi_tx_attr, Transmit, tx, of_tx;
    rx_ctx, "fi_rx_context", fi::fi_rx_attr, Receive, rx, of_rx;
}

/// `fi_setname`
///
/// # Errors
/// Errors of `fi_scalable_ep` for a source address; `-FI_EOPBADSTATE` once enabled or when a
/// context was opened.
unsafe extern "C" fn setname(fid: fid_t, addr: *mut c_void, addrlen: usize) -> c_int {
    guard_int("fi_setname", || {
        // SAFETY: C passes an open scalable endpoint.
        let sep = unsafe { own::<Sep, _>(fid) }?;
        // SAFETY: null or an address of the given length.
        let addr = unsafe { entry::slice(addr.cast_const().cast::<u8>(), addrlen) }?;
        sep.shared.set_name(addr)
    })
}

/// `fi_getname`
///
/// # Errors
/// `-FI_ETOOSMALL` when the address does not fit; `*addrlen` is its length in any case.
unsafe extern "C" fn getname(fid: fid_t, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    guard_int("fi_getname", || {
        // SAFETY: C passes an open scalable endpoint.
        let sep = unsafe { own::<Sep, _>(fid) }?;
        let name = sep.shared.name();
        // SAFETY: null, or the caller's buffer and its length.
        unsafe { entry::put_name(&name, addr, addrlen) }
    })
}

impl Sep {
    fn open(
        dom: &Arc<DomainShared>,
        group: ContextCounts,
        src: (&[u8], u64),
        attrs: (&fi::fi_tx_attr, &fi::fi_rx_attr),
        context: *mut c_void,
    ) -> Result<Box<Sep>, Errno> {
        let shared = SepShared::open(dom, group, src, attrs, context.expose_provenance())?;
        Ok(Box::new(Sep {
            fid: fid_ep {
                fid: fid { fclass: fi::FI_CLASS_SEP, context, ops: &raw const FID_OPS },
                ops: &raw const EP_OPS,
                cm: &raw const CM_OPS,
                msg: &raw const NO_MSG,
                rma: &raw const NO_RMA,
                tagged: &raw const NO_TAGGED,
                atomic: &raw const NO_ATOMIC,
                collective: &raw const NO_COLLECTIVE,
            },
            shared,
        }))
    }

    /// # Safety
    /// `out` is null or has space for the new object.
    unsafe fn open_context(
        &self,
        way: Direction,
        index: c_int,
        wanted: ContextAttr,
        out: *mut *mut fid_ep,
        context: *mut c_void,
    ) -> Result<(), Errno> {
        if out.is_null() {
            return Err(fi::FI_EINVAL);
        }
        let index = usize::try_from(index).map_err(|_| fi::FI_EINVAL)?;
        let (place, port) = self.shared.place(way, index)?;
        let new = context::open(place, port, wanted, context)?;
        // SAFETY: not null; space for the new object, by the caller's contract.
        unsafe { entry::put(out, new) }
    }
}

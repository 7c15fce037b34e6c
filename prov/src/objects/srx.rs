// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "C calls in, with pointers")]
//! Shared contexts: receives for several endpoints (`FI_CLASS_SRX_CTX`), and the transmit side that
//! several endpoints name (`FI_CLASS_STX_CTX`).
//!
//! A shared transmit context has no state: pending sends wait in a queue for each peer, and never
//! for another endpoint. It exists for programs that request one. The matching of receives and
//! messages is in `domain::srx`.
//!
//! Mirrors fi_endpoint(3), "Shared Contexts".

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Weak};

use libfabric_sys as fi;
use libfabric_sys::{fid, fid_ep, fid_t};
use scif::Maker;

use crate::base::entry::{self, guard, guard_int, own};
use crate::base::errno::Errno;
use crate::domain::{DomainShared, srx};
use crate::engine::tables::srx_state::SrxState;
use crate::objects::endpoint::flags::RX_OP_FLAGS;
use crate::objects::endpoint::srx::Srx;
use crate::objects::endpoint::stx::{Stx, StxShared};
use crate::objects::ep::opt;
use crate::objects::handle::Domain;
use crate::objects::no_ops::{NO_ATOMIC, NO_CM, NO_COLLECTIVE, NO_EP, NO_MSG, NO_RMA, NO_TAGGED};
use crate::objects::peer_import;
use crate::state::peer_owner;

static SRX_FID_OPS: fi::fi_ops = fi::fi_ops { close: close_srx, ..fi::FI_OPS_NOSYS };
static STX_FID_OPS: fi::fi_ops = fi::fi_ops { close: close_stx, ..fi::FI_OPS_NOSYS };
static SRX_OPS: fi::fi_ops_ep =
    fi::fi_ops_ep { cancel, getopt, setopt, rx_size_left, ..fi::FI_OPS_EP_NOSYS };
static STX_OPS: fi::fi_ops_ep = fi::FI_OPS_EP_NOSYS;

/// `fi_srx_context`
///
/// # Errors
/// For a context that stands for one of another provider (`FI_PEER`): `-FI_ENOSYS` with a host
/// before 2.3, `-FI_EINVAL` without an owner, or in a domain with automatic progress.
pub(crate) unsafe extern "C" fn open_srx(
    domain: *mut fi::fid_domain,
    attr: *mut fi::fi_rx_attr,
    srx: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_srx_context", || {
        // SAFETY: C passes an open domain.
        let domain = unsafe { own::<Domain, _>(domain) }?;
        // SAFETY: null, or attributes that stay unchanged during the call.
        let attr = unsafe { attr.as_ref() }.copied().unwrap_or_default();
        if srx.is_null() {
            return Err(fi::FI_EINVAL);
        }
        let dom = Arc::clone(&domain.shared);
        let is_peer = attr.op_flags & fi::FI_PEER != 0;
        if is_peer {
            if !peer_owner::is_known() {
                return Err(fi::FI_ENOSYS);
            }
            peer_import::check(&dom)?;
        }
        let index = dom.gate.lock().srxs.insert(SrxState::new()).ok_or(fi::FI_ENOMEM)?;
        if is_peer {
            let messages: Weak<DomainShared> = Arc::downgrade(&dom);
            // SAFETY: the context has the type that this flag requires, by the contract of
            // fi_peer(3).
            let owner = unsafe { peer_owner::PeerSrx::import(context, messages, index) };
            let mut st = dom.gate.lock();
            match owner {
                Ok(owner) => {
                    if let Some(state) = st.srxs.get_mut(index) {
                        state.owner = Some(Arc::new(owner));
                    }
                }
                Err(err) => {
                    st.srxs.remove(index);
                    return Err(err);
                }
            }
        }
        let new = Box::new(Srx {
            fid: fid_ep {
                fid: fid {
                    fclass: fi::FI_CLASS_SRX_CTX,
                    // The context of a peer object was only the means to pass the owner's object.
                    context: if is_peer { std::ptr::null_mut() } else { context },
                    ops: &raw const SRX_FID_OPS,
                },
                ops: if is_peer { &raw const NO_EP } else { &raw const SRX_OPS },
                cm: &raw const NO_CM,
                // Receives are posted to the owner's context.
                msg: if is_peer {
                    &raw const NO_MSG
                } else {
                    &raw const crate::objects::msg::SRX_OPS
                },
                rma: &raw const NO_RMA,
                tagged: if is_peer {
                    &raw const NO_TAGGED
                } else {
                    &raw const crate::objects::tagged::SRX_OPS
                },
                atomic: &raw const NO_ATOMIC,
                collective: &raw const NO_COLLECTIVE,
            },
            dom,
            creator: Maker::here(),
            index,
            op_flags: attr.op_flags & RX_OP_FLAGS,
        });
        // SAFETY: not null; space for the new object.
        unsafe { entry::put(srx, entry::give(new)) }
    })
}

/// `fi_close`
///
/// Posted receives that no endpoint has taken end without a completion.
///
/// # Errors
/// `-FI_EBUSY` while an endpoint is bound to it.
unsafe extern "C" fn close_srx(fid: *mut fid) -> c_int {
    guard_int("fi_close of a shared receive context", || {
        // SAFETY: C passes an open context.
        let srx = unsafe { own::<Srx, _>(fid) }?;
        {
            let mut st = srx.dom.gate.lock();
            if !st.srxs.get(srx.index).ok_or(fi::FI_EINVAL)?.eps.is_empty() {
                return Err(fi::FI_EBUSY);
            }
            st.srxs.remove(srx.index);
        }
        // SAFETY: made by `open_srx` and not used by C any more.
        drop(unsafe { entry::take::<Srx, _>(fid) }?);
        Ok(())
    })
}

/// `fi_cancel`
unsafe extern "C" fn cancel(fid: fid_t, context: *mut c_void) -> isize {
    guard("fi_cancel", || {
        // SAFETY: C passes an open context.
        let srx = unsafe { own::<Srx, _>(fid) }?;
        srx::cancel(&mut srx.dom.gate.lock(), srx.index, context.expose_provenance())?;
        Ok(0)
    })
}

/// `fi_getopt`
///
/// # Errors
/// `-FI_ENOPROTOOPT` for any option but `FI_OPT_MIN_MULTI_RECV`, `-FI_ETOOSMALL` when its value
/// does not fit.
unsafe extern "C" fn getopt(
    fid: fid_t,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: *mut usize,
) -> c_int {
    guard_int("fi_getopt", || {
        // SAFETY: C passes an open context.
        let srx = unsafe { own::<Srx, _>(fid) }?;
        is_option(level, optname)?;
        let st = srx.dom.gate.lock();
        let value = st.srxs.get(srx.index).ok_or(fi::FI_EINVAL)?.min_multi_recv;
        // SAFETY: null, or the caller's buffer and its length.
        unsafe { entry::put_option(value, optval, optlen) }
    })
}

/// `fi_setopt`
///
/// # Errors
/// `-FI_ENOPROTOOPT` for any option but `FI_OPT_MIN_MULTI_RECV`, `-FI_ETOOSMALL` for a value that
/// is too short.
unsafe extern "C" fn setopt(
    fid: fid_t,
    level: c_int,
    optname: c_int,
    optval: *const c_void,
    optlen: usize,
) -> c_int {
    guard_int("fi_setopt", || {
        // SAFETY: C passes an open context.
        let srx = unsafe { own::<Srx, _>(fid) }?;
        // SAFETY: null or a value of the given length.
        let value = unsafe { entry::slice(optval.cast::<u8>(), optlen) }?;
        is_option(level, optname)?;
        let size = opt::size(value)?;
        let mut st = srx.dom.gate.lock();
        st.srxs.get_mut(srx.index).ok_or(fi::FI_EINVAL)?.min_multi_recv = size;
        Ok(())
    })
}

/// Checks an option: a shared receive context has only one, the others belong to the endpoints.
fn is_option(level: c_int, optname: c_int) -> Result<(), Errno> {
    if (level, optname) == (fi::FI_OPT_ENDPOINT, fi::FI_OPT_MIN_MULTI_RECV) {
        Ok(())
    } else {
        Err(fi::FI_ENOPROTOOPT)
    }
}

/// `fi_rx_size_left`
///
/// Receives are never refused.
unsafe extern "C" fn rx_size_left(srx: *mut fid_ep) -> isize {
    guard("fi_rx_size_left", || {
        // SAFETY: C passes an open context.
        unsafe { own::<Srx, _>(srx) }?;
        isize::try_from(crate::base::attr::DEFAULT_SIZE).map_err(|_| fi::FI_EINVAL)
    })
}

/// `fi_stx_context`
pub(crate) unsafe extern "C" fn open_stx(
    domain: *mut fi::fid_domain,
    _attr: *mut fi::fi_tx_attr,
    stx: *mut *mut fi::fid_stx,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_stx_context", || {
        // SAFETY: C passes an open domain.
        let domain = unsafe { own::<Domain, _>(domain) }?;
        if stx.is_null() {
            return Err(fi::FI_EINVAL);
        }
        let dom = Arc::clone(&domain.shared);
        dom.gate.lock().open.stxs += 1;
        let new = Box::new(Stx {
            fid: fi::fid_stx {
                fid: fid { fclass: fi::FI_CLASS_STX_CTX, context, ops: &raw const STX_FID_OPS },
                ops: &raw const STX_OPS,
            },
            shared: Arc::new(StxShared { dom }),
        });
        // SAFETY: not null; space for the new object.
        unsafe { entry::put(stx, entry::give(new)) }
    })
}

/// `fi_close`
///
/// # Errors
/// `-FI_EBUSY` while an endpoint is bound to it.
unsafe extern "C" fn close_stx(fid: *mut fid) -> c_int {
    guard_int("fi_close of a shared transmit context", || {
        // SAFETY: C passes an open context.
        let stx = unsafe { own::<Stx, _>(fid) }?;
        if Arc::strong_count(&stx.shared) > 1 {
            return Err(fi::FI_EBUSY);
        }
        let mut st = stx.shared.dom.gate.lock();
        st.open.stxs = st.open.stxs.saturating_sub(1);
        drop(st);
        // SAFETY: made by `open_stx` and not used by C any more.
        drop(unsafe { entry::take::<Stx, _>(fid) }?);
        Ok(())
    })
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "thunks")]
//! Domains: opening, and the calls on a [`Domain`].
//!
//! Mirrors `struct fi_ops_domain` of `rdma/fi_domain.h`; fi_domain(3).

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libfabric_sys as fi;

use crate::base::errno::Errno;
use crate::base::{atomic_ops, entry, reason};
use crate::domain::DomainShared;
use crate::objects::ep::{self, work};
use crate::objects::eq::Eq;
use crate::objects::handle::Domain;
use crate::objects::{av, cntr, collective, cq, mr, poll, sep, srx};
use crate::state::fabric::FabricShared;

static FID_OPS: fi::fi_ops = fi::fi_ops { close, bind, control, ..fi::FI_OPS_NOSYS };
static OPS: fi::fi_ops_domain = fi::fi_ops_domain {
    av_open: av::open,
    cq_open: cq::open,
    endpoint: ep::open,
    scalable_ep: sep::open,
    cntr_open: cntr::open,
    poll_open: poll::open,
    stx_ctx: srx::open_stx,
    srx_ctx: srx::open_srx,
    query_atomic,
    query_collective: collective::query,
    endpoint2,
    ..fi::FI_OPS_DOMAIN_NOSYS
};

/// Opens a domain for `fi_domain` and `fi_domain2`, after the fabric was recovered.
///
/// # Errors
/// `FI_EINVAL`: an info without domain attributes, or `FI_PEER`. `FI_EOPNOTSUPP`: other flags.
/// Errors of the system, when it is out of a resource.
///
/// # Safety
/// `info` is null, or an info whose attributes stay unchanged during the call.
pub(crate) unsafe fn open(
    fabric: &Arc<FabricShared>,
    info: *const fi::fi_info,
    flags: u64,
    context: *mut c_void,
) -> Result<*mut fi::fid_domain, Errno> {
    // fi_peer(3): a provider that does not import domains returns FI_EINVAL.
    if flags & fi::FI_PEER != 0 {
        return Err(fi::FI_EINVAL);
    }
    if flags != 0 {
        return Err(fi::FI_EOPNOTSUPP);
    }
    // SAFETY: the caller's contract.
    let info = unsafe { info.as_ref() }.ok_or(fi::FI_EINVAL)?;
    // SAFETY: null, or unchanged during the call, by the caller's contract.
    let attr = unsafe { info.domain_attr.as_ref() }.ok_or(fi::FI_EINVAL)?;
    // SAFETY: null, or unchanged during the call, by the caller's contract.
    let connected = unsafe { info.ep_attr.as_ref() }.is_some_and(|ep| ep.type_ == fi::FI_EP_MSG);
    let events = connected || info.caps & fi::FI_COLLECTIVE != 0;
    Ok(entry::give(Domain::open(fabric, (info.caps, events), attr, context)?))
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    entry::guard_int("fi_close of a domain", || {
        // SAFETY: an open domain of this provider, not closed concurrently, by the contract of
        // fi_close.
        unsafe { entry::own::<Domain, _>(fid) }?.shared.retire()?;
        // SAFETY: made by `open` and not used after fi_close.
        drop(unsafe { entry::take::<Domain, _>(fid) }?);
        crate::base::log::settle();
        Ok(())
    })
}

unsafe extern "C" fn bind(fid: *mut fi::fid, other: *mut fi::fid, flags: u64) -> c_int {
    entry::guard_int("fi_domain_bind", || {
        // SAFETY: a live domain, by the contract of fi_domain_bind.
        let domain = unsafe { entry::own::<Domain, _>(fid) }?;
        // SAFETY: a live event queue or null, by the contract of fi_domain_bind; other classes are
        // refused.
        let eq = unsafe { entry::object::<Eq, _>(other) }?;
        domain.shared.bind_eq(eq.shared(), flags)
    })
}

unsafe extern "C" fn control(fid: *mut fi::fid, command: c_int, arg: *mut c_void) -> c_int {
    entry::guard_int("fi_control of a domain", || {
        // SAFETY: a live domain, by the contract of fi_control.
        let domain = unsafe { entry::own::<Domain, _>(fid) }?;
        match command {
            // SAFETY: arg is a struct fi_deferred_work, by the contract of fi_trigger(3).
            fi::FI_QUEUE_WORK => unsafe { work::queue_work(&domain.shared, arg.cast()) },
            fi::FI_CANCEL_WORK => work::cancel_work(&domain.shared, arg.cast()),
            // SAFETY: arg is null or a counter, by the contract of fi_trigger(3).
            fi::FI_FLUSH_WORK => unsafe { work::flush_work(&domain.shared, arg.cast()) },
            // SAFETY: arg is a struct fi_mr_map_raw, by the contract of fi_mr_map_raw.
            fi::FI_MAP_RAW_MR => unsafe { mr::map_raw(arg.cast()) },
            // A mapped key is the key itself.
            fi::FI_UNMAP_KEY => Ok(()),
            _ => Err(fi::FI_ENOSYS),
        }
    })
}

unsafe extern "C" fn query_atomic(
    _domain: *mut fi::fid_domain,
    datatype: fi::fi_datatype,
    op: fi::fi_op,
    attr: *mut fi::fi_atomic_attr,
    flags: u64,
) -> c_int {
    entry::guard_int("fi_query_atomic", || {
        let (size, count) =
            reason::expected(fi::FI_EOPNOTSUPP, atomic_ops::query(datatype, op, flags))?;
        // SAFETY: null or space for the result, by the contract of fi_query_atomic.
        unsafe { entry::put(attr, fi::fi_atomic_attr { count, size }) }
    })
}

unsafe extern "C" fn endpoint2(
    domain: *mut fi::fid_domain,
    info: *mut fi::fi_info,
    ep: *mut *mut fi::fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return -fi::FI_EOPNOTSUPP;
    }
    // SAFETY: the contract of fi_endpoint, which fi_endpoint2 without flags has as well.
    unsafe { ep::open(domain, info, ep, context) }
}

impl Domain {
    fn open(
        fabric: &Arc<FabricShared>,
        requested: (u64, bool),
        attr: &fi::fi_domain_attr,
        context: *mut c_void,
    ) -> Result<Box<Domain>, Errno> {
        let shared = DomainShared::open(fabric, requested, attr)?;
        Ok(Box::new(Domain {
            fid: fi::fid_domain {
                fid: fi::fid { fclass: fi::FI_CLASS_DOMAIN, context, ops: &raw const FID_OPS },
                ops: &raw const OPS,
                mr: &raw const mr::OPS,
            },
            shared,
        }))
    }
}

#[cfg(test)]
impl Domain {
    /// Opens a domain of its own fabric, for an application of interface version `api`.
    pub(crate) fn for_test(api: u32, attr: &fi::fi_domain_attr) -> Box<Domain> {
        let node = crate::state::fabric::open_node().unwrap();
        let fabric = FabricShared::new(api, node);
        Domain::open(&fabric, (fi::FI_MSG | fi::FI_RMA, false), attr, std::ptr::null_mut()).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::av_table::AvState;

    #[test]
    fn a_domain_closes_when_it_is_empty() {
        let attr =
            fi::fi_domain_attr { threading: fi::FI_THREAD_DOMAIN, ..fi::fi_domain_attr::default() };
        let domain = Domain::for_test(fi::fi_version(2, 0), &attr);
        assert!(domain.shared.gate.is_elided());
        let av = domain.shared.gate.lock().avs.insert(AvState::default()).unwrap();
        assert_eq!(domain.shared.retire(), Err(fi::FI_EBUSY));
        domain.shared.gate.lock().avs.remove(av);
        assert_eq!(domain.shared.retire(), Ok(()));
    }

    #[test]
    fn the_progress_thread_comes_and_goes() {
        let attr = fi::fi_domain_attr {
            threading: fi::FI_THREAD_DOMAIN,
            data_progress: fi::FI_PROGRESS_AUTO,
            ..fi::fi_domain_attr::default()
        };
        for nap_ms in [0, 5] {
            let domain = Domain::for_test(fi::fi_version(2, 0), &attr);
            assert!(!domain.shared.gate.is_elided());
            std::thread::sleep(std::time::Duration::from_millis(nap_ms));
            assert_eq!(domain.shared.retire(), Ok(()));
            assert_eq!(Arc::strong_count(&domain.shared), 1);
        }
    }
}

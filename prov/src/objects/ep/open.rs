// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "C calls in, with pointers")]
//! Opening of endpoints, with the operation tables of their capabilities.
//!
//! Mirrors fi_endpoint(3), "fi_endpoint".

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libfabric_sys as fi;
use libfabric_sys::{fid, fid_ep};
use scif_ring::AtomicCounter;

use super::calls::{ep_ops, fid_ops};
use super::cm;
use super::name::{getname, setname};
use crate::base::attr;
use crate::base::entry::{self, guard_int, own};
use crate::base::errno::Errno;
use crate::base::log::Subsys;
use crate::domain::DomainShared;
use crate::engine::endpoint::Endpoint;
use crate::engine::types::args::EpConfig;
use crate::objects::endpoint::ep::{Ep, EpCore};
use crate::objects::endpoint::flags::{RX_OP_FLAGS, TX_OP_FLAGS, bad_flags};
use crate::objects::handle::Domain;
use crate::objects::no_ops::{NO_ATOMIC, NO_COLLECTIVE, NO_MSG, NO_RMA, NO_TAGGED};
use crate::objects::{atomic, collective, msg, port, rma, tagged};

static FID_OPS: fi::fi_ops = fid_ops::<Ep>();
static EP_OPS: fi::fi_ops_ep = ep_ops::<Ep>();

static CM_OPS: fi::fi_ops_cm = fi::fi_ops_cm { setname, getname, ..fi::FI_OPS_CM_NOSYS };

static COLLECTIVE_CM_OPS: fi::fi_ops_cm =
    fi::fi_ops_cm { setname, getname, join: collective::join, ..fi::FI_OPS_CM_NOSYS };

/// Parts of an info from which an endpoint is opened, all present.
pub(crate) struct EpRequest<'a> {
    pub(crate) info: &'a fi::fi_info,
    pub(crate) ep_attr: &'a fi::fi_ep_attr,
    pub(crate) tx: &'a fi::fi_tx_attr,
    pub(crate) rx: &'a fi::fi_rx_attr,
    /// Source address; empty if none is requested.
    pub(crate) src: &'a [u8],
}

impl<'a> EpRequest<'a> {
    /// # Errors
    /// `FI_EINVAL` for an info that is missing or incomplete.
    ///
    /// # Safety
    /// `info` is null or an info of libfabric that is neither changed nor freed during `'a`.
    pub(crate) unsafe fn of(info: *const fi::fi_info) -> Result<EpRequest<'a>, Errno> {
        // SAFETY: null or an info, by the caller's contract.
        let info = unsafe { info.as_ref() }.ok_or(fi::FI_EINVAL)?;
        // SAFETY: null or the attributes of an info.
        let ep_attr = unsafe { info.ep_attr.as_ref() }.ok_or(fi::FI_EINVAL)?;
        // SAFETY: null or the attributes of an info.
        let tx = unsafe { info.tx_attr.as_ref() }.ok_or(fi::FI_EINVAL)?;
        // SAFETY: null or the attributes of an info.
        let rx = unsafe { info.rx_attr.as_ref() }.ok_or(fi::FI_EINVAL)?;
        let src_len = if info.src_addr.is_null() { 0 } else { info.src_addrlen };
        // SAFETY: an address of the given length, or none.
        let src = unsafe { entry::slice(info.src_addr.cast_const().cast::<u8>(), src_len) }?;
        Ok(EpRequest { info, ep_attr, tx, rx, src })
    }
}

/// `fi_endpoint`
///
/// # Errors
/// `-FI_EINVAL` for an incomplete or contradictory info, or the request of another endpoint.
/// `-FI_ENOSYS` for endpoint types that are not supported. `-FI_EADDRINUSE` when the port of the
/// source address is in use, `-FI_EADDRNOTAVAIL` for an address of another host.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fi::fid_domain,
    info: *mut fi::fi_info,
    ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_endpoint", || {
        // SAFETY: C passes an open domain.
        let domain = unsafe { own::<Domain, _>(domain) }?;
        // SAFETY: null or an info of libfabric.
        let EpRequest { info, ep_attr, tx, rx, src } = unsafe { EpRequest::of(info) }?;
        // An endpoint has one context of its own, or a shared one.
        let contexts = |count: usize| count > 1 && count != fi::FI_SHARED_CONTEXT;
        if ep.is_null() || contexts(ep_attr.tx_ctx_cnt) || contexts(ep_attr.rx_ctx_cnt) {
            return Err(fi::FI_EINVAL);
        }
        let origin = match ep_attr.type_ {
            // The event queue drives its collectives, in any thread.
            fi::FI_EP_RDM
                if info.caps & fi::FI_COLLECTIVE != 0 && domain.shared.gate.is_elided() =>
            {
                return one_thread("collectives");
            }
            fi::FI_EP_RDM | fi::FI_EP_DGRAM => None,
            fi::FI_EP_MSG if domain.shared.gate.is_elided() => {
                return one_thread("connected endpoints");
            }
            fi::FI_EP_MSG => {
                // SAFETY: null or an open object, by the contract of fi_endpoint.
                Some(unsafe { cm::Origin::of(info.handle) }?)
            }
            _ => return Err(fi::FI_EINVAL),
        };
        // An accepting endpoint has a port of its own: the source address in the info is the one of
        // the passive endpoint.
        let open = |src: &[u8]| {
            create(
                &domain.shared,
                (ep_attr.type_, info.caps, info.mode),
                tx,
                rx,
                (src, origin.as_ref()),
                context,
            )
        };
        let opened = match &origin {
            Some(cm::Origin::Port(pep)) => pep.give_port(|name| open(name)),
            Some(cm::Origin::Request(request)) => open(&request.source()),
            Some(cm::Origin::Active) | None => open(src),
        };
        if let Some(cm::Origin::Request(request)) = origin {
            match &opened {
                Ok(new) => *new.core.request() = Some(request),
                // C can then reject the request, or try again.
                Err(_) => request.give_back(),
            }
        }
        let new = entry::log_err(
            Subsys::EpCtrl,
            format_args!("fi_endpoint of type {}", ep_attr.type_),
            opened,
        )?;
        // SAFETY: not null; space for the new object.
        unsafe { entry::put(ep, entry::give(new)) }
    })
}

/// Refuses an endpoint that an event queue drives, in a domain opened for one thread at a time.
fn one_thread(feature: &str) -> Result<(), Errno> {
    entry::refused(
        Subsys::EpCtrl,
        format_args!(
            "fi_endpoint: {feature} need a domain for more than one thread: open it with what \
             fi_getinfo gives for them"
        ),
        fi::FI_EINVAL,
    )
}

/// Creates an endpoint of the requested type, capabilities and mode.
fn create(
    dom: &Arc<DomainShared>,
    request: (u32, u64, u64),
    tx: &fi::fi_tx_attr,
    rx: &fi::fi_rx_attr,
    (src, origin): (&[u8], Option<&cm::Origin>),
    context: *mut c_void,
) -> Result<Box<Ep>, Errno> {
    if tx.op_flags & (fi::FI_COMMIT_COMPLETE | fi::FI_MULTICAST) != 0 {
        // With these flags, completions of sends would promise more than the provider delivers.
        return Err(bad_flags(tx.op_flags, TX_OP_FLAGS));
    }
    let cfg = config(dom, request, tx, rx, origin.is_some());
    let (caps, inject_size, connected) = (cfg.caps, cfg.inject_size, cfg.connected);
    let (prefixed, triggers) = (cfg.prefix != 0, caps & fi::FI_TRIGGER != 0);
    if triggers && !dom.triggers {
        return Err(fi::FI_EINVAL);
    }
    // An endpoint that answers a request of this host needs no network.
    let networked = match origin {
        Some(cm::Origin::Request(request)) => request.is_from_abroad(),
        Some(cm::Origin::Active | cm::Origin::Port(_)) | None => true,
    };
    let sock = port::take_port(dom, src, networked)?;
    let ip = sock.network_name().map_or_else(|| port::ip_of(src), |name| *name.ip());
    let idx = dom.add_ep(Endpoint::new(cfg, sock))?;
    let core = EpCore {
        ip: AtomicCounter::new(u64::from(ip.to_bits())),
        prefixed,
        triggers,
        answers_as: match origin {
            Some(cm::Origin::Request(request)) => request.name(),
            Some(cm::Origin::Active | cm::Origin::Port(_)) | None => None,
        },
        ..EpCore::new(dom, idx, inject_size)
    };
    let has = |cap: u64| caps & cap != 0;
    Ok(Box::new(Ep {
        fid: fid_ep {
            fid: fid { fclass: fi::FI_CLASS_EP, context, ops: &raw const FID_OPS },
            ops: &raw const EP_OPS,
            cm: match (connected, has(fi::FI_COLLECTIVE)) {
                (true, _) => &raw const cm::OPS,
                (false, true) => &raw const COLLECTIVE_CM_OPS,
                (false, false) => &raw const CM_OPS,
            },
            msg: match (has(fi::FI_MSG), triggers, prefixed) {
                (true, true, _) => &raw const msg::TRIGGER_OPS,
                (true, false, false) => &raw const msg::OPS,
                (true, false, true) => &raw const msg::PREFIX_OPS,
                (false, ..) => &raw const NO_MSG,
            },
            rma: match (has(fi::FI_RMA), triggers) {
                (true, true) => &raw const rma::TRIGGER_OPS,
                (true, false) => &raw const rma::OPS,
                (false, _) => &raw const NO_RMA,
            },
            tagged: match (has(fi::FI_TAGGED), triggers, prefixed) {
                (true, true, _) => &raw const tagged::TRIGGER_OPS,
                (true, false, false) => &raw const tagged::OPS,
                (true, false, true) => &raw const tagged::PREFIX_OPS,
                (false, ..) => &raw const NO_TAGGED,
            },
            atomic: match (has(fi::FI_ATOMIC), triggers) {
                (true, true) => &raw const atomic::TRIGGER_OPS,
                (true, false) => &raw const atomic::OPS,
                (false, _) => &raw const NO_ATOMIC,
            },
            collective: if has(fi::FI_COLLECTIVE) {
                &raw const collective::OPS
            } else {
                &raw const NO_COLLECTIVE
            },
        },
        core: Arc::new(core),
        tx_op_flags: AtomicCounter::new(tx.op_flags & TX_OP_FLAGS),
        rx_op_flags: AtomicCounter::new(rx.op_flags & RX_OP_FLAGS),
    }))
}

/// Returns the configuration of an endpoint that is not bound yet.
fn config(
    dom: &DomainShared,
    (type_, caps, mode): (u32, u64, u64),
    tx: &fi::fi_tx_attr,
    rx: &fi::fi_rx_attr,
    connected: bool,
) -> EpConfig {
    let caps = if caps == 0 { (attr::TX_CAPS | attr::RX_CAPS) & !fi::FI_TRIGGER } else { caps };
    let or_default = |size: usize, default: usize| if size == 0 { default } else { size };
    EpConfig {
        caps,
        msg_order: tx.msg_order,
        tx_size: or_default(tx.size, attr::DEFAULT_SIZE),
        rx_size: or_default(rx.size, attr::DEFAULT_SIZE),
        inject_size: or_default(tx.inject_size, attr::INJECT_SIZE).min(attr::INJECT_SIZE),
        av: u32::MAX,
        min_multi_recv: attr::MIN_MULTI_RECV,
        rma_event: caps & fi::FI_RMA_EVENT != 0,
        host: dom.fabric.node.host_hash(),
        source: caps & fi::FI_SOURCE != 0 && !connected,
        directed: caps & fi::FI_DIRECTED_RECV != 0 && !connected,
        connected,
        datagram: type_ == fi::FI_EP_DGRAM,
        prefix: if mode & fi::FI_MSG_PREFIX == 0 { 0 } else { attr::MSG_PREFIX_SIZE },
        ..EpConfig::default()
    }
}

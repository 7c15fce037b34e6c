// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "C calls in, with pointers")]
//! Endpoints: the C object from `fi_endpoint` to `fi_close`, its aliases and its flags.
//!
//! The work of an enabled endpoint is in `data`, the path of calls to it in [`post`]. Options are
//! in `opt`, bindings in `bind`, addresses in `name`.
//!
//! # Invariants
//!
//! - The SCIF port is bound when the endpoint is opened, so that its name is known and other
//!   processes may connect before it is enabled.
//! - An alias shares everything with its endpoint except the default flags; closing the last of
//!   them frees the state.
//! - A table of an operation class without which the endpoint was opened returns `-FI_ENOSYS`.
//!
//! Mirrors fi_endpoint(3).

mod bind;
mod cm;
mod coll;
pub(crate) mod context;
pub(crate) mod name;
pub(crate) mod opt;
pub(crate) mod post;
pub(crate) mod prefix;
#[cfg(test)]
mod tests;
pub(crate) mod trigger;

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libfabric_sys as fi;
use libfabric_sys::{fid, fid_ep, fid_t};
use scif::{Maker, TransportKind};
use scif_ring::AtomicCounter;

use crate::base::addr::ADDR_LEN;
use crate::base::attr;
use crate::base::entry::{self, CreatedBy, Object, guard, guard_int, own};
use crate::base::errno::Errno;
use crate::base::log::Subsys;
use crate::domain::DomainShared;
use crate::domain::triggered;
use crate::engine::endpoint::Endpoint;
use crate::engine::types::args::EpConfig;
use crate::objects::handle::Domain;
use crate::objects::no_ops::{NO_ATOMIC, NO_COLLECTIVE, NO_MSG, NO_RMA, NO_TAGGED};
use crate::objects::pep::request::HeldRequest;
use crate::objects::port;
use crate::objects::sep::ContextPlace;
use crate::objects::srx::StxShared;
use post::{RX_OP_FLAGS, TX_OP_FLAGS};

/// State shared by an endpoint and its aliases.
#[derive(Debug)]
struct Core {
    dom: Arc<DomainShared>,
    creator: Maker,
    /// Index in [`crate::domain::DomainState::eps`]; fi_setname changes it, before the endpoint is
    /// enabled.
    idx: AtomicCounter,
    /// IP address in the name of the endpoint.
    ip: AtomicCounter,
    inject_size: usize,
    /// `FI_COMPLETION` when every transmit (receive) completes, because the queue was not bound
    /// selectively; else 0.
    tx_always: AtomicCounter,
    rx_always: AtomicCounter,
    /// Addresses of the endpoint and its aliases that C has not closed; empty until the first
    /// alias.
    handles: Mutex<Vec<usize>>,
    limits: opt::SizeLimits,
    /// Connection request for which a connected endpoint was opened.
    request: Mutex<Option<HeldRequest>>,
    /// Shared transmit context to which the endpoint is bound.
    stx: Mutex<Option<Arc<StxShared>>>,
    /// Whether messages have a prefix.
    prefixed: bool,
    /// Whether the endpoint was opened with triggered operations.
    triggers: bool,
    /// Address of an endpoint that answers a request: the one of the passive endpoint.
    answers_as: Option<[u8; ADDR_LEN]>,
    /// Scalable endpoint of which this is a context, and which provides its address vector and
    /// event queue.
    place: Option<ContextPlace>,
}

/// `struct fid_ep`: an endpoint, or an alias of one.
#[repr(C)]
pub(crate) struct Ep {
    fid: fid_ep,
    core: Arc<Core>,
    tx_op_flags: AtomicCounter,
    rx_op_flags: AtomicCounter,
}

// SAFETY: repr(C) with a fid_ep first. FI_CLASS_EP is in Ep objects only, except in contexts, to
// which `context` gives other classes. An Arc and counts, all Sync, follow the fid.
unsafe impl Object for Ep {
    const FCLASS: usize = fi::FI_CLASS_EP;
}

impl CreatedBy for Ep {
    fn creator(&self) -> Maker {
        self.core.creator
    }
}

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

const fn fid_ops<H: Handle + CreatedBy>() -> fi::fi_ops {
    fi::fi_ops { close: close::<H>, bind: bind::<H>, control: control::<H>, ..fi::FI_OPS_NOSYS }
}

const fn ep_ops<H: Handle + CreatedBy>() -> fi::fi_ops_ep {
    fi::fi_ops_ep {
        cancel: cancel::<H>,
        getopt: getopt::<H>,
        setopt: setopt::<H>,
        rx_size_left: rx_size_left::<H>,
        ..fi::FI_OPS_EP_NOSYS
    }
}

static FID_OPS: fi::fi_ops = fid_ops::<Ep>();
static EP_OPS: fi::fi_ops_ep = ep_ops::<Ep>();

static CM_OPS: fi::fi_ops_cm = fi::fi_ops_cm { setname, getname, ..fi::FI_OPS_CM_NOSYS };

static COLLECTIVE_CM_OPS: fi::fi_ops_cm = fi::fi_ops_cm {
    setname,
    getname,
    join: crate::objects::collective::join,
    ..fi::FI_OPS_CM_NOSYS
};

/// `int fi_close(struct fid *ep)`
///
/// With aliases, only the last close releases the endpoint.
unsafe extern "C" fn close<H: Handle + CreatedBy>(fid: *mut fid) -> c_int {
    guard_int("fi_close of an endpoint", || {
        // SAFETY: C passes an open endpoint.
        unsafe { own::<H, _>(fid) }?;
        // SAFETY: returned by `open` or `alias`, and not used by C any more.
        let ep = unsafe { entry::take::<H, _>(fid) }?;
        ep.ep().core.release(fid.addr());
        Ok(())
    })
}

/// `int fi_ep_bind(struct fid_ep *ep, struct fid *bfid, uint64_t flags)`
///
/// # Errors
/// `-FI_EINVAL` for objects that are not bound to endpoints, or a binding that exists.
/// `-FI_EBADFLAGS` for flags that do not apply to the object, `-FI_EDOMAIN` for an object of
/// another domain. `-FI_EOPBADSTATE` once enabled, for any object but a counter.
unsafe extern "C" fn bind<H: Handle + CreatedBy>(
    fid: *mut fid,
    bfid: *mut fid,
    flags: u64,
) -> c_int {
    guard_int("fi_ep_bind", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { own::<H, _>(fid) }?.ep();
        let subject = bind::EventSubject {
            fid: fid.expose_provenance(),
            context: ep.fid.fid.context.expose_provenance(),
        };
        // SAFETY: C passes null or an open object.
        let bound = unsafe { ep.core.bind(subject, bfid, flags) };
        // SAFETY: as above.
        let class = unsafe { entry::class_of(bfid) }.unwrap_or(fi::FI_CLASS_UNSPEC);
        entry::log_err(
            Subsys::EpCtrl,
            format_args!("fi_ep_bind of an object of class {class} with flags {flags:#x}"),
            bound,
        )
    })
}

/// `int fi_control(struct fid *ep, int command, void *arg)`
///
/// # Errors
/// `-FI_ENOSYS` for commands that do not apply to endpoints; see [`Core::enable`] for `FI_ENABLE`.
unsafe extern "C" fn control<H: Handle + CreatedBy>(
    fid: *mut fid,
    command: c_int,
    arg: *mut c_void,
) -> c_int {
    guard_int("fi_control of an endpoint", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { own::<H, _>(fid) }?.ep();
        match command {
            fi::FI_ENABLE => {
                entry::log_err(Subsys::EpCtrl, format_args!("fi_enable"), ep.core.enable())
            }
            fi::FI_GETOPSFLAG => {
                // SAFETY: null or the argument of this command.
                let flags = unsafe { arg.cast::<u64>().as_mut() }.ok_or(fi::FI_EINVAL)?;
                *flags = ep.op_flags(*flags)?.get_relaxed();
                Ok(())
            }
            fi::FI_SETOPSFLAG => {
                // SAFETY: null or the argument of this command.
                let flags = unsafe { arg.cast::<u64>().as_ref() }.ok_or(fi::FI_EINVAL)?;
                ep.set_op_flags(*flags)
            }
            fi::FI_ALIAS => {
                // SAFETY: null or the argument of this command.
                let alias = unsafe { arg.cast::<fi::fi_alias>().as_ref() }.ok_or(fi::FI_EINVAL)?;
                if alias.fid.is_null() {
                    return Err(fi::FI_EINVAL);
                }
                let made = entry::give::<Ep, fid>(ep.alias(alias.flags)?);
                ep.core.add_handle(fid.addr(), made.addr());
                // SAFETY: not null; space for the new object.
                unsafe { entry::put(alias.fid, made) }
            }
            _ => Err(fi::FI_ENOSYS),
        }
    })
}

/// `ssize_t fi_cancel(struct fid_ep *ep, void *context)`
unsafe extern "C" fn cancel<H: Handle + CreatedBy>(fid: fid_t, context: *mut c_void) -> isize {
    guard("fi_cancel", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { own::<H, _>(fid) }?.ep();
        triggered::cancel_operation(
            &mut ep.core.dom.gate.lock(),
            ep.core.idx(),
            context.expose_provenance(),
        )?;
        Ok(0)
    })
}

/// `int fi_getopt(struct fid *ep, int level, int optname, void *optval, size_t *optlen)`
///
/// # Errors
/// `-FI_ENOPROTOOPT` for an option that cannot be read, `-FI_ETOOSMALL` when its value does not
/// fit.
unsafe extern "C" fn getopt<H: Handle + CreatedBy>(
    fid: fid_t,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: *mut usize,
) -> c_int {
    guard_int("fi_getopt", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { own::<H, _>(fid) }?.ep();
        let value = ep.core.option(level, optname);
        entry::log_err(
            Subsys::EpCtrl,
            format_args!("fi_getopt of option {optname} at level {level}"),
            // SAFETY: null, or the caller's buffer and its length.
            value.and_then(|value| unsafe { entry::put_option(value, optval, optlen) }),
        )
    })
}

/// `int fi_setopt(struct fid *ep, int level, int optname, const void *optval, size_t optlen)`
///
/// # Errors
/// `-FI_ENOPROTOOPT` for an option that cannot be set, `-FI_ETOOSMALL` for a value that is too
/// short, `-FI_EINVAL` or `-FI_EOPNOTSUPP` for one that cannot be.
unsafe extern "C" fn setopt<H: Handle + CreatedBy>(
    fid: fid_t,
    level: c_int,
    optname: c_int,
    optval: *const c_void,
    optlen: usize,
) -> c_int {
    guard_int("fi_setopt", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { own::<H, _>(fid) }?.ep();
        // SAFETY: null or a value of the given length.
        let value = unsafe { entry::slice(optval.cast::<u8>(), optlen) }?;
        entry::log_err(
            Subsys::EpCtrl,
            format_args!(
                "fi_setopt of option {optname} at level {level} to {:02x?}",
                value.get(..16).unwrap_or(value)
            ),
            ep.core.set_option(level, optname, value),
        )
    })
}

/// `ssize_t fi_rx_size_left(struct fid_ep *ep)`
///
/// Receives are never refused, so the requested size is always left. The counterpart for transmits
/// is not supported: the number left depends on the peer.
unsafe extern "C" fn rx_size_left<H: Handle + CreatedBy>(ep: *mut fid_ep) -> isize {
    guard("fi_rx_size_left", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { own::<H, _>(ep) }?.ep();
        let st = ep.core.dom.gate.lock();
        let ep = st.eps.get(ep.core.idx()).filter(|ep| ep.enabled).ok_or(fi::FI_EOPBADSTATE)?;
        isize::try_from(ep.cfg.rx_size).map_err(|_| fi::FI_EINVAL)
    })
}

/// `int fi_setname(fid_t fid, void *addr, size_t addrlen)`
///
/// # Errors
/// `-FI_EINVAL` for a malformed address, `-FI_EADDRNOTAVAIL` for an address of another host,
/// `-FI_EADDRINUSE` for one in use, `-FI_EOPBADSTATE` once enabled.
unsafe extern "C" fn setname(fid: fid_t, addr: *mut c_void, addrlen: usize) -> c_int {
    guard_int("fi_setname", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { own::<Ep, _>(fid) }?;
        // SAFETY: null or an address of the given length.
        let addr = unsafe { entry::slice(addr.cast_const().cast::<u8>(), addrlen) }?;
        ep.core.set_name(addr)
    })
}

/// `int fi_getname(fid_t fid, void *addr, size_t *addrlen)`
///
/// # Errors
/// `-FI_ETOOSMALL` when the address does not fit; `*addrlen` is its length in any case.
unsafe extern "C" fn getname(fid: fid_t, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    guard_int("fi_getname", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { own::<Ep, _>(fid) }?;
        let name = ep.core.name()?;
        // SAFETY: null, or the caller's buffer and its length.
        unsafe { entry::put_name(&name, addr, addrlen) }
    })
}

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

/// `int fi_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void
/// *context)`
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
            Ep::open(
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
            Some(cm::Origin::Request(_)) => open(&[]),
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

impl Ep {
    fn open(
        dom: &Arc<DomainShared>,
        (type_, caps, mode): (u32, u64, u64),
        tx: &fi::fi_tx_attr,
        rx: &fi::fi_rx_attr,
        (src, origin): (&[u8], Option<&cm::Origin>),
        context: *mut c_void,
    ) -> Result<Box<Ep>, Errno> {
        let caps = if caps == 0 { (attr::TX_CAPS | attr::RX_CAPS) & !fi::FI_TRIGGER } else { caps };
        let or_default = |size: usize, default: usize| if size == 0 { default } else { size };
        let cfg = EpConfig {
            caps,
            msg_order: tx.msg_order,
            tx_size: or_default(tx.size, attr::DEFAULT_SIZE),
            rx_size: or_default(rx.size, attr::DEFAULT_SIZE),
            inject_size: or_default(tx.inject_size, attr::INJECT_SIZE).min(attr::INJECT_SIZE),
            av: u32::MAX,
            min_multi_recv: attr::MIN_MULTI_RECV,
            rma_event: caps & fi::FI_RMA_EVENT != 0,
            host: dom.fabric.node.host_hash(),
            source: caps & fi::FI_SOURCE != 0 && origin.is_none(),
            directed: caps & fi::FI_DIRECTED_RECV != 0 && origin.is_none(),
            connected: origin.is_some(),
            datagram: type_ == fi::FI_EP_DGRAM,
            watches_sources: origin.is_none()
                && type_ != fi::FI_EP_DGRAM
                && dom.fabric.node.kind() != TransportKind::Kernel,
            prefix: if mode & fi::FI_MSG_PREFIX == 0 { 0 } else { attr::MSG_PREFIX_SIZE },
            ..EpConfig::default()
        };
        if tx.op_flags & (fi::FI_COMMIT_COMPLETE | fi::FI_MULTICAST) != 0 {
            // With these flags, completions of sends would promise more than the provider delivers.
            return Err(post::bad_flags(tx.op_flags, TX_OP_FLAGS));
        }
        let prefixed = cfg.prefix != 0;
        let triggers = caps & fi::FI_TRIGGER != 0;
        if triggers && !dom.triggers {
            return Err(fi::FI_EINVAL);
        }
        let inject_size = cfg.inject_size;
        let connected = cfg.connected;
        let sock = port::take_port(dom, src)?;
        let idx = dom.add_ep(Endpoint::new(cfg, sock))?;
        let core = Core {
            ip: AtomicCounter::new(u64::from(port::ip_of(src).to_bits())),
            prefixed,
            triggers,
            answers_as: match origin {
                Some(cm::Origin::Request(request)) => request.name(),
                Some(cm::Origin::Active | cm::Origin::Port(_)) | None => None,
            },
            ..Core::new(dom, idx, inject_size)
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
                    (true, true, _) => &raw const crate::objects::msg::TRIGGER_OPS,
                    (true, false, false) => &raw const crate::objects::msg::OPS,
                    (true, false, true) => &raw const crate::objects::msg::PREFIX_OPS,
                    (false, ..) => &raw const NO_MSG,
                },
                rma: match (has(fi::FI_RMA), triggers) {
                    (true, true) => &raw const crate::objects::rma::TRIGGER_OPS,
                    (true, false) => &raw const crate::objects::rma::OPS,
                    (false, _) => &raw const NO_RMA,
                },
                tagged: match (has(fi::FI_TAGGED), triggers, prefixed) {
                    (true, true, _) => &raw const crate::objects::tagged::TRIGGER_OPS,
                    (true, false, false) => &raw const crate::objects::tagged::OPS,
                    (true, false, true) => &raw const crate::objects::tagged::PREFIX_OPS,
                    (false, ..) => &raw const NO_TAGGED,
                },
                atomic: match (has(fi::FI_ATOMIC), triggers) {
                    (true, true) => &raw const crate::objects::atomic::TRIGGER_OPS,
                    (true, false) => &raw const crate::objects::atomic::OPS,
                    (false, _) => &raw const NO_ATOMIC,
                },
                collective: if has(fi::FI_COLLECTIVE) {
                    &raw const crate::objects::collective::OPS
                } else {
                    &raw const NO_COLLECTIVE
                },
            },
            core: Arc::new(core),
            tx_op_flags: AtomicCounter::new(tx.op_flags & TX_OP_FLAGS),
            rx_op_flags: AtomicCounter::new(rx.op_flags & RX_OP_FLAGS),
        }))
    }

    /// Returns the default flags of the direction in `flags`.
    fn op_flags(&self, flags: u64) -> Result<&AtomicCounter, Errno> {
        match flags & (fi::FI_TRANSMIT | fi::FI_RECV) {
            fi::FI_TRANSMIT => Ok(&self.tx_op_flags),
            fi::FI_RECV => Ok(&self.rx_op_flags),
            _ => Err(fi::FI_EINVAL),
        }
    }

    /// Replaces the default flags of the direction in `flags` by the remaining bits.
    fn set_op_flags(&self, flags: u64) -> Result<(), Errno> {
        let place = self.op_flags(flags)?;
        let allowed = if flags & fi::FI_TRANSMIT != 0 { TX_OP_FLAGS } else { RX_OP_FLAGS };
        let allowed = if self.core.triggers { allowed | fi::FI_TRIGGER } else { allowed };
        let flags = flags & !(fi::FI_TRANSMIT | fi::FI_RECV);
        if flags & !allowed != 0 {
            return Err(post::bad_flags(flags, allowed));
        }
        place.set_relaxed(flags);
        Ok(())
    }

    /// Returns another handle for the endpoint, with `flags` as the default of the direction they
    /// contain.
    fn alias(&self, flags: u64) -> Result<Box<Ep>, Errno> {
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

impl Core {
    fn new(dom: &Arc<DomainShared>, idx: u32, inject_size: usize) -> Core {
        Core {
            dom: Arc::clone(dom),
            creator: Maker::here(),
            idx: AtomicCounter::new(u64::from(idx)),
            ip: AtomicCounter::new(0),
            inject_size,
            tx_always: AtomicCounter::new(0),
            rx_always: AtomicCounter::new(0),
            handles: Mutex::new(Vec::new()),
            limits: opt::SizeLimits::new(inject_size),
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
    fn idx(&self) -> u32 {
        self.idx.get_relaxed() as u32
    }

    /// Records that the endpoint at `known` has an alias at `new`.
    fn add_handle(&self, known: usize, new: usize) {
        let mut handles = self.handles();
        if handles.is_empty() {
            handles.push(known);
        }
        handles.push(new);
    }

    /// Removes the handle at `gone` and the events that name it; the last removal closes the
    /// endpoint. Later events name a remaining handle.
    fn release(&self, gone: usize) {
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

    fn handles(&self) -> MutexGuard<'_, Vec<usize>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the shared transmit context to which the endpoint is bound.
    fn stx(&self) -> MutexGuard<'_, Option<Arc<StxShared>>> {
        self.stx.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the connection request for which the endpoint was opened.
    fn request(&self) -> MutexGuard<'_, Option<HeldRequest>> {
        self.request.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

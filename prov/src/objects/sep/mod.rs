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

mod ports;

use std::ffi::{c_int, c_void};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libfabric_sys as fi;
use libfabric_sys::{fid, fid_ep, fid_t};
use scif::{Maker, PortId};

use crate::base::addr::{ADDR_LEN, Addr, ContextCounts};
use crate::base::attr;
use crate::base::entry::{self, Object, guard_int, object, own};
use crate::base::errno::Errno;
use crate::domain::{DomainShared, DomainState};
use crate::objects::ep::EpRequest;
use crate::objects::ep::context::{self, ContextAttr};
use crate::objects::eq::Eq;
use crate::objects::handle::Av;
use crate::objects::handle::Domain;
use crate::objects::no_ops::{NO_ATOMIC, NO_COLLECTIVE, NO_MSG, NO_RMA, NO_TAGGED};
use crate::objects::port;
use crate::state::eq_queue::EqShared;
use ports::Ports;

/// Direction of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Transmit,
    Receive,
}

/// Position of an open context in its scalable endpoint; dropping it releases the port.
#[derive(Debug)]
pub(crate) struct ContextPlace {
    pub(crate) sep: Arc<SepShared>,
    pub(crate) way: Direction,
    at: usize,
}

impl Drop for ContextPlace {
    fn drop(&mut self) {
        self.sep.state().ports.close(self.at);
    }
}

/// Scalable endpoint, as shared with its contexts.
#[derive(Debug)]
pub(crate) struct SepShared {
    pub(crate) dom: Arc<DomainShared>,
    creator: Maker,
    group: ContextCounts,
    tx: ContextAttr,
    rx: ContextAttr,
    /// Context of the C object, reported in events.
    context: usize,
    state: Mutex<SepState>,
}

#[derive(Debug)]
struct SepState {
    ports: Ports,
    /// IP address in the name of the endpoint.
    ip: Ipv4Addr,
    /// Index of its address vector.
    av: Option<u32>,
    eq: Option<Arc<EqShared>>,
    fid: usize,
    enabled: bool,
}

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

impl entry::CreatedBy for Sep {
    fn creator(&self) -> Maker {
        self.shared.creator
    }
}

static FID_OPS: fi::fi_ops = fi::fi_ops { close, bind, control, ..fi::FI_OPS_NOSYS };
static EP_OPS: fi::fi_ops_ep = fi::fi_ops_ep { tx_ctx, rx_ctx, ..fi::FI_OPS_EP_NOSYS };
static CM_OPS: fi::fi_ops_cm = fi::fi_ops_cm { setname, getname, ..fi::FI_OPS_CM_NOSYS };

/// `int fi_scalable_ep(struct fid_domain *domain, struct fi_info *info, struct fid_ep **sep, void
/// *context)`
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
        new.shared.state().fid = fid;
        // SAFETY: not null; space for the new object.
        unsafe { entry::put(sep, entry::give(new)) }
    })
}

/// `int fi_close(struct fid *sep)`
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

/// `int fi_scalable_ep_bind(struct fid_ep *sep, struct fid *bfid, uint64_t flags)`
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

/// `int fi_control(struct fid *sep, int command, void *arg)`
///
/// # Errors
/// `-FI_ENOSYS` for other commands than `FI_ENABLE`; `-FI_ENOAV` without an address vector.
unsafe extern "C" fn control(fid: *mut fid, command: c_int, _arg: *mut c_void) -> c_int {
    guard_int("fi_control of a scalable endpoint", || {
        // SAFETY: C passes an open scalable endpoint.
        let sep = unsafe { own::<Sep, _>(fid) }?;
        match command {
            fi::FI_ENABLE => {
                let mut state = sep.shared.state();
                state.av.ok_or(fi::FI_ENOAV)?;
                state.enabled = true;
                Ok(())
            }
            _ => Err(fi::FI_ENOSYS),
        }
    })
}

/// `int fi_tx_context(struct fid_ep *sep, int index, struct fi_tx_attr *attr, struct fid_ep
/// **tx_ep, void *context)`
///
/// Zero fields of `attr` take the values with which the endpoint was opened.
///
/// # Errors
/// `-FI_EINVAL` for an index out of range, or attributes that exceed the endpoint's; `-FI_EBUSY`
/// when that context is open.
unsafe extern "C" fn tx_ctx(
    sep: *mut fid_ep,
    index: c_int,
    attr: *mut fi::fi_tx_attr,
    tx_ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_tx_context", || {
        // SAFETY: C passes an open scalable endpoint.
        let sep = unsafe { own::<Sep, _>(sep) }?;
        // SAFETY: null, or attributes that stay unchanged during the call.
        let asked = unsafe { attr.as_ref() }.map(of_tx);
        let wanted = sep.shared.tx.narrowed(asked)?;
        // SAFETY: null or space for the new object.
        unsafe { sep.open_context(Direction::Transmit, index, wanted, tx_ep, context) }
    })
}

/// `int fi_rx_context(struct fid_ep *sep, int index, struct fi_rx_attr *attr, struct fid_ep
/// **rx_ep, void *context)`
///
/// # Errors
/// Errors of `fi_tx_context`.
unsafe extern "C" fn rx_ctx(
    sep: *mut fid_ep,
    index: c_int,
    attr: *mut fi::fi_rx_attr,
    rx_ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_rx_context", || {
        // SAFETY: C passes an open scalable endpoint.
        let sep = unsafe { own::<Sep, _>(sep) }?;
        // SAFETY: null, or attributes that stay unchanged during the call.
        let asked = unsafe { attr.as_ref() }.map(of_rx);
        let wanted = sep.shared.rx.narrowed(asked)?;
        // SAFETY: null or space for the new object.
        unsafe { sep.open_context(Direction::Receive, index, wanted, rx_ep, context) }
    })
}

/// `int fi_setname(fid_t fid, void *addr, size_t addrlen)`
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

/// `int fi_getname(fid_t fid, void *addr, size_t *addrlen)`
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

fn of_tx(attr: &fi::fi_tx_attr) -> ContextAttr {
    ContextAttr {
        caps: attr.caps,
        op_flags: attr.op_flags,
        msg_order: attr.msg_order,
        inject_size: attr.inject_size,
        size: attr.size,
    }
}

fn of_rx(attr: &fi::fi_rx_attr) -> ContextAttr {
    ContextAttr {
        caps: attr.caps,
        op_flags: attr.op_flags,
        msg_order: attr.msg_order,
        inject_size: 0,
        size: attr.size,
    }
}

impl ContextAttr {
    /// Returns the default attributes of the contexts of one direction.
    fn of_endpoint(self, caps: u64) -> ContextAttr {
        let or_default = |size: usize, default: usize| if size == 0 { default } else { size };
        ContextAttr {
            caps,
            size: or_default(self.size, attr::DEFAULT_SIZE),
            inject_size: or_default(self.inject_size, attr::INJECT_SIZE).min(attr::INJECT_SIZE),
            ..self
        }
    }

    /// Returns the attributes of one context, which may request less than the endpoint's.
    fn narrowed(self, asked: Option<ContextAttr>) -> Result<ContextAttr, Errno> {
        let Some(asked) = asked else { return Ok(self) };
        // A context may name directions that the endpoint did not name.
        let known = self.caps
            | attr::TX_CAPS & !attr::RX_CAPS
            | attr::RX_CAPS & !attr::TX_CAPS & !attr::PRICED_CAPS;
        if asked.caps & !known != 0
            || asked.inject_size > self.inject_size
            || asked.size > attr::MAX_SIZE
        {
            return Err(fi::FI_EINVAL);
        }
        let or = |asked: u64, own: u64| if asked == 0 { own } else { asked };
        let or_size = |asked: usize, own: usize| if asked == 0 { own } else { asked };
        Ok(ContextAttr {
            caps: or(asked.caps, self.caps),
            // Default flags of the context, even if there are none.
            op_flags: asked.op_flags,
            msg_order: or(asked.msg_order, self.msg_order),
            inject_size: or_size(asked.inject_size, self.inject_size),
            size: or_size(asked.size, self.size),
        })
    }
}

impl Sep {
    fn open(
        dom: &Arc<DomainShared>,
        group: ContextCounts,
        (src, caps): (&[u8], u64),
        (tx, rx): (&fi::fi_tx_attr, &fi::fi_rx_attr),
        context: *mut c_void,
    ) -> Result<Box<Sep>, Errno> {
        let ports = Ports::take(dom, src, group)?;
        dom.gate.lock().open.seps += 1;
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
            shared: Arc::new(SepShared {
                dom: Arc::clone(dom),
                creator: Maker::here(),
                group,
                tx: of_tx(tx).of_endpoint(caps),
                rx: of_rx(rx).of_endpoint(caps),
                context: context.expose_provenance(),
                state: Mutex::new(SepState {
                    ports,
                    ip: port::ip_of(src),
                    av: None,
                    eq: None,
                    fid: 0,
                    enabled: false,
                }),
            }),
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

impl SepShared {
    fn state(&self) -> MutexGuard<'_, SepState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the position of context `index`, and its port.
    fn place(
        self: &Arc<Self>,
        way: Direction,
        index: usize,
    ) -> Result<(ContextPlace, scif::Endpoint), Errno> {
        let at = match way {
            Direction::Receive if index < self.group.rx() => index,
            Direction::Transmit if index < self.group.tx() => self.group.rx() + index,
            _ => return Err(fi::FI_EINVAL),
        };
        let port = self.state().ports.open(&self.dom, at)?;
        let sep = Arc::clone(self);
        Ok((ContextPlace { sep, way, at }, port))
    }

    fn name(&self) -> [u8; ADDR_LEN] {
        let state = self.state();
        let node = &self.dom.fabric.node;
        let id = PortId { node: node.id(), port: state.ports.first() };
        Addr::of_group(state.ip, id, node.host_hash(), self.group).to_bytes()
    }

    fn set_name(&self, name: &[u8]) -> Result<(), Errno> {
        let name: &[u8] = name.first_chunk::<ADDR_LEN>().ok_or(fi::FI_EINVAL)?;
        let wanted = port::requested(&self.dom.fabric, name)?.port;
        let mut state = self.state();
        if state.enabled || !state.ports.untouched() {
            return Err(fi::FI_EOPBADSTATE);
        }
        if wanted == 0 || wanted != state.ports.first() {
            state.ports = Ports::take(&self.dom, name, self.group)?;
        }
        state.ip = port::ip_of(name);
        Ok(())
    }

    fn bind_av(&self, av: &Av) -> Result<(), Errno> {
        if !Arc::ptr_eq(av.domain(), &self.dom) {
            return Err(fi::FI_EDOMAIN);
        }
        // The domain lock is taken first, as when a context is enabled.
        let mut st = self.dom.gate.lock();
        let mut state = self.state();
        if state.enabled {
            return Err(fi::FI_EOPBADSTATE);
        }
        if state.av.is_some() {
            return Err(fi::FI_EINVAL);
        }
        st.avs.get_mut(av.index()).ok_or(fi::FI_EINVAL)?.endpoints += 1;
        state.av = Some(av.index());
        Ok(())
    }

    fn bind_eq(&self, eq: &Eq) -> Result<(), Errno> {
        let mut state = self.state();
        if state.enabled {
            return Err(fi::FI_EOPBADSTATE);
        }
        if state.eq.is_some() {
            return Err(fi::FI_EINVAL);
        }
        state.eq = Some(Arc::clone(eq.shared()));
        Ok(())
    }

    /// Gives a context that is about to be enabled the bindings of the endpoint.
    ///
    /// # Errors
    /// `FI_ENOAV` without an address vector.
    pub(crate) fn equip(&self, st: &mut DomainState, idx: u32) -> Result<(), Errno> {
        let state = self.state();
        let av = state.av.ok_or(fi::FI_ENOAV)?;
        let ep = st.eps.get_mut(idx).ok_or(fi::FI_EINVAL)?;
        ep.eq.clone_from(&state.eq);
        (ep.fid, ep.context) = (state.fid, self.context);
        if ep.cfg.av == u32::MAX {
            ep.cfg.av = av;
            st.avs.get_mut(av).ok_or(fi::FI_EINVAL)?.endpoints += 1;
        }
        Ok(())
    }

    fn retire(&self) -> Result<(), Errno> {
        let mut st = self.dom.gate.lock();
        let state = self.state();
        if state.ports.any_open() {
            return Err(fi::FI_EBUSY);
        }
        st.open.seps = st.open.seps.saturating_sub(1);
        if let Some(av) = state.av.and_then(|av| st.avs.get_mut(av)) {
            av.endpoints = av.endpoints.saturating_sub(1);
        }
        drop(st);
        if let Some(eq) = &state.eq {
            eq.purge_fid(state.fid);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: ContextAttr = ContextAttr {
        caps: fi::FI_MSG | fi::FI_TAGGED,
        op_flags: fi::FI_COMPLETION,
        msg_order: fi::FI_ORDER_SAS,
        inject_size: 64,
        size: 128,
    };
    const NONE: ContextAttr =
        ContextAttr { caps: 0, op_flags: 0, msg_order: 0, inject_size: 0, size: 0 };

    #[test]
    fn a_context_may_ask_for_less() {
        let same = OWN.narrowed(None).unwrap();
        assert_eq!((same.caps, same.op_flags), (OWN.caps, OWN.op_flags));
        let less = OWN
            .narrowed(Some(ContextAttr { caps: fi::FI_MSG | fi::FI_SEND, size: 4, ..NONE }))
            .unwrap();
        assert_eq!(less.caps, fi::FI_MSG | fi::FI_SEND);
        assert_eq!((less.size, less.inject_size), (4, OWN.inject_size));
        assert_eq!(less.op_flags, 0);
    }

    #[test]
    fn a_context_cannot_ask_for_more() {
        for more in [
            ContextAttr { caps: fi::FI_RMA, ..NONE },
            ContextAttr { inject_size: OWN.inject_size + 1, ..NONE },
            ContextAttr { size: attr::MAX_SIZE + 1, ..NONE },
        ] {
            assert_eq!(OWN.narrowed(Some(more)).err(), Some(fi::FI_EINVAL));
        }
    }
}

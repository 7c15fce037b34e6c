// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Scalable endpoint, as shared with its contexts: ports, address vector and event queue.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libfabric_sys as fi;
use scif::{Maker, PortId};

use super::ports::Ports;
use crate::base::addr::{ADDR_LEN, Addr, ContextCounts};
use crate::base::attr;
use crate::base::errno::Errno;
use crate::domain::{DomainShared, DomainState};
use crate::objects::eq::Eq;
use crate::objects::handle::Av;
use crate::objects::port;
use crate::state::eq_queue::EqShared;

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
    pub(crate) creator: Maker,
    group: ContextCounts,
    pub(crate) tx: ContextAttr,
    pub(crate) rx: ContextAttr,
    /// Context of the C object, reported in events.
    context: usize,
    state: Mutex<SepState>,
}

#[derive(Debug)]
struct SepState {
    ports: Ports,
    /// Index of its address vector.
    av: Option<u32>,
    eq: Option<Arc<EqShared>>,
    fid: usize,
    enabled: bool,
}

/// Attributes with which a context is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContextAttr {
    pub(crate) caps: u64,
    pub(crate) op_flags: u64,
    pub(crate) msg_order: u64,
    pub(crate) inject_size: usize,
    /// Number of operations that may be outstanding.
    pub(crate) size: usize,
}

pub(crate) fn of_tx(attr: &fi::fi_tx_attr) -> ContextAttr {
    ContextAttr {
        caps: attr.caps,
        op_flags: attr.op_flags,
        msg_order: attr.msg_order,
        inject_size: attr.inject_size,
        size: attr.size,
    }
}

pub(crate) fn of_rx(attr: &fi::fi_rx_attr) -> ContextAttr {
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
    pub(crate) fn narrowed(self, request: Option<ContextAttr>) -> Result<ContextAttr, Errno> {
        let Some(request) = request else { return Ok(self) };
        // A context may name directions that the endpoint did not name.
        let known = self.caps
            | attr::TX_CAPS & !attr::RX_CAPS
            | attr::RX_CAPS & !attr::TX_CAPS & !attr::PRICED_CAPS;
        if request.caps & !known != 0
            || request.inject_size > self.inject_size
            || request.size > attr::MAX_SIZE
        {
            return Err(fi::FI_EINVAL);
        }
        let or = |request: u64, own: u64| if request == 0 { own } else { request };
        let or_size = |request: usize, own: usize| if request == 0 { own } else { request };
        Ok(ContextAttr {
            caps: or(request.caps, self.caps),
            // Default flags of the context, even if there are none.
            op_flags: request.op_flags,
            msg_order: or(request.msg_order, self.msg_order),
            inject_size: or_size(request.inject_size, self.inject_size),
            size: or_size(request.size, self.size),
        })
    }
}

impl SepShared {
    /// Binds the ports of a scalable endpoint with the capabilities `caps`.
    pub(crate) fn open(
        dom: &Arc<DomainShared>,
        group: ContextCounts,
        (src, caps): (&[u8], u64),
        (tx, rx): (&fi::fi_tx_attr, &fi::fi_rx_attr),
        context: usize,
    ) -> Result<Arc<SepShared>, Errno> {
        let ports = Ports::take(dom, src, group)?;
        dom.gate.lock().open.seps += 1;
        let state = SepState { ports, av: None, eq: None, fid: 0, enabled: false };
        Ok(Arc::new(SepShared {
            dom: Arc::clone(dom),
            creator: Maker::here(),
            group,
            tx: of_tx(tx).of_endpoint(caps),
            rx: of_rx(rx).of_endpoint(caps),
            context,
            state: Mutex::new(state),
        }))
    }

    /// Sets the address of the C object, by which events name the endpoint.
    pub(crate) fn named(&self, fid: usize) {
        self.state().fid = fid;
    }

    /// Enables the endpoint.
    ///
    /// # Errors
    /// `FI_ENOAV` without an address vector.
    pub(crate) fn enable(&self) -> Result<(), Errno> {
        let mut state = self.state();
        state.av.ok_or(fi::FI_ENOAV)?;
        state.enabled = true;
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, SepState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the position of context `index`, and its port.
    pub(crate) fn place(
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

    pub(crate) fn name(&self) -> [u8; ADDR_LEN] {
        let state = self.state();
        let node = &self.dom.fabric.node;
        let id = PortId::new(node.id(), state.ports.first());
        Addr::of_group(state.ports.name_ip(), id, node.host_hash(), self.group).to_bytes()
    }

    pub(crate) fn set_name(&self, name: &[u8]) -> Result<(), Errno> {
        let name: &[u8] = name.first_chunk::<ADDR_LEN>().ok_or(fi::FI_EINVAL)?;
        let wanted = port::requested(&self.dom.fabric, name)?.port;
        let mut state = self.state();
        if state.enabled || !state.ports.untouched() {
            return Err(fi::FI_EOPBADSTATE);
        }
        if wanted == 0 || wanted != state.ports.first() {
            state.ports = Ports::take(&self.dom, name, self.group)?;
        }
        Ok(())
    }

    pub(crate) fn bind_av(&self, av: &Av) -> Result<(), Errno> {
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

    pub(crate) fn bind_eq(&self, eq: &Eq) -> Result<(), Errno> {
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

    pub(crate) fn retire(&self) -> Result<(), Errno> {
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
    fn context_accepts_smaller_attributes() {
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
    fn context_refuses_larger_attributes() {
        for more in [
            ContextAttr { caps: fi::FI_RMA, ..NONE },
            ContextAttr { inject_size: OWN.inject_size + 1, ..NONE },
            ContextAttr { size: attr::MAX_SIZE + 1, ..NONE },
        ] {
            assert_eq!(OWN.narrowed(Some(more)).err(), Some(fi::FI_EINVAL));
        }
    }
}

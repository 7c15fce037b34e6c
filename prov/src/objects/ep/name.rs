// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Address of an endpoint: the SCIF port it binds, and the bytes that name it.
//!
//! Mirrors fi_cm(3), "fi_setname / fi_getname".

use std::net::Ipv4Addr;

use libfabric_sys as fi;

use super::Core;
use crate::base::addr::{self, ADDR_LEN};
use crate::base::errno::Errno;
use crate::engine::endpoint::Endpoint;
use crate::objects::port::{ip_of, requested, take_port};

impl Core {
    /// Returns the bytes of the endpoint's address.
    pub(super) fn name(&self) -> Result<[u8; ADDR_LEN], Errno> {
        if let Some(name) = self.answers_as {
            return Ok(name);
        }
        let id = self.dom.gate.lock().eps.get(self.idx()).ok_or(fi::FI_EINVAL)?.links.sock.id();
        let bits = u32::try_from(self.ip.get_relaxed()).map_err(|_| fi::FI_EINVAL)?;
        Ok(addr::encode(Ipv4Addr::from_bits(bits), id, self.dom.fabric.node.host_hash()))
    }

    /// Moves the endpoint to the port of another address, with all its bindings.
    pub(super) fn set_name(&self, name: &[u8]) -> Result<(), Errno> {
        let wanted =
            requested(&self.dom.fabric, name.first_chunk::<ADDR_LEN>().ok_or(fi::FI_EINVAL)?)?;
        let (cfg, now) = {
            let st = self.dom.gate.lock();
            let ep = st.eps.get(self.idx()).ok_or(fi::FI_EINVAL)?;
            if ep.enabled {
                return Err(fi::FI_EOPBADSTATE);
            }
            (ep.cfg.clone(), ep.links.sock.id())
        };
        if wanted != now {
            let (old, av) = (self.idx(), cfg.av);
            let new = self.dom.add_ep(Endpoint::new(cfg, take_port(&self.dom, name)?))?;
            let moved = self.bind_like(&mut self.dom.gate.lock(), new, old);
            if moved.is_err() {
                self.dom.close_ep(new, Some(av));
                return moved;
            }
            self.idx.set(u64::from(new));
            self.dom.close_ep(old, Some(av));
        }
        self.ip.set_relaxed(u64::from(ip_of(name).to_bits()));
        Ok(())
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "C calls in, with pointers")]
//! Address of an endpoint: the SCIF port it binds, and the bytes that name it.
//!
//! Mirrors fi_cm(3), "fi_setname / fi_getname".

use std::ffi::{c_int, c_void};
use std::net::Ipv4Addr;

use libfabric_sys as fi;
use libfabric_sys::fid_t;

use super::bind::bind_like;
use crate::base::addr::{self, ADDR_LEN};
use crate::base::entry::{self, guard_int, own};
use crate::base::errno::Errno;
use crate::engine::endpoint::Endpoint;
use crate::objects::endpoint::ep::{Ep, EpCore};
use crate::objects::port::{ip_of, requested, take_port};

/// `fi_setname`
///
/// # Errors
/// `-FI_EINVAL` for a malformed address, `-FI_EADDRNOTAVAIL` for an address of another host,
/// `-FI_EADDRINUSE` for one in use, `-FI_EOPBADSTATE` once enabled.
pub(super) unsafe extern "C" fn setname(fid: fid_t, addr: *mut c_void, addrlen: usize) -> c_int {
    guard_int("fi_setname", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { own::<Ep, _>(fid) }?;
        // SAFETY: null or an address of the given length.
        let addr = unsafe { entry::slice(addr.cast_const().cast::<u8>(), addrlen) }?;
        set_name(&ep.core, addr)
    })
}

/// `fi_getname`
///
/// # Errors
/// `-FI_ETOOSMALL` when the address does not fit; `*addrlen` is its length in any case.
pub(super) unsafe extern "C" fn getname(
    fid: fid_t,
    addr: *mut c_void,
    addrlen: *mut usize,
) -> c_int {
    guard_int("fi_getname", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { own::<Ep, _>(fid) }?;
        let name = name_of(&ep.core)?;
        // SAFETY: null, or the caller's buffer and its length.
        unsafe { entry::put_name(&name, addr, addrlen) }
    })
}

/// Returns the bytes of the endpoint's address.
fn name_of(core: &EpCore) -> Result<[u8; ADDR_LEN], Errno> {
    if let Some(name) = core.answers_as {
        return Ok(name);
    }
    let id = core.dom.gate.lock().eps.get(core.idx()).ok_or(fi::FI_EINVAL)?.links.sock.id();
    let bits = u32::try_from(core.ip.get_relaxed()).map_err(|_| fi::FI_EINVAL)?;
    Ok(addr::encode(Ipv4Addr::from_bits(bits), id, core.dom.fabric.node.host_hash()))
}

/// Moves the endpoint to the port of another address, with all its bindings.
fn set_name(core: &EpCore, name: &[u8]) -> Result<(), Errno> {
    let wanted = requested(&core.dom.fabric, name.first_chunk::<ADDR_LEN>().ok_or(fi::FI_EINVAL)?)?;
    let (cfg, now, networked) = {
        let st = core.dom.gate.lock();
        let ep = st.eps.get(core.idx()).ok_or(fi::FI_EINVAL)?;
        if ep.enabled {
            return Err(fi::FI_EOPBADSTATE);
        }
        let sock = &ep.links.sock;
        (ep.cfg.clone(), sock.id(), sock.network_name().is_some())
    };
    let mut ip = ip_of(name);
    if wanted != now {
        let (old, av) = (core.idx(), cfg.av);
        let sock = take_port(&core.dom, name, networked)?;
        ip = sock.network_name().map_or(ip, |name| *name.ip());
        let new = core.dom.add_ep(Endpoint::new(cfg, sock))?;
        let moved = bind_like(core, &mut core.dom.gate.lock(), new, old);
        if moved.is_err() {
            core.dom.close_ep(new, Some(av));
            return moved;
        }
        core.idx.set(u64::from(new));
        core.dom.close_ep(old, Some(av));
    }
    core.ip.set_relaxed(u64::from(ip.to_bits()));
    Ok(())
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "recovers the objects that C binds")]
//! Bindings of an endpoint.
//!
//! Mirrors fi_endpoint(3), "fi_ep_bind".

use std::sync::Arc;

use libfabric_sys as fi;
use libfabric_sys::fid;

use crate::base::entry::{class_of, object};
use crate::base::errno::Errno;
use crate::base::reason::because;
use crate::domain::{DomainShared, DomainState};
use crate::engine::types::args::EpConfig;
use crate::objects::cntr::Cntr;
use crate::objects::cq::Cq;
use crate::objects::endpoint::ep::EpCore;
use crate::objects::endpoint::sep::Direction;
use crate::objects::endpoint::srx::Srx;
use crate::objects::endpoint::stx::Stx;
use crate::objects::eq::Eq;
use crate::objects::handle::Av;

/// Flags with which a completion queue can be bound.
const CQ_FLAGS: u64 = fi::FI_TRANSMIT | fi::FI_RECV | fi::FI_SELECTIVE_COMPLETION;
/// Flags with which a counter can be bound.
const CNTR_FLAGS: u64 = fi::FI_SEND
    | fi::FI_RECV
    | fi::FI_READ
    | fi::FI_WRITE
    | fi::FI_REMOTE_READ
    | fi::FI_REMOTE_WRITE;

/// Address and context of an endpoint's C object, reported in its events.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventSubject {
    pub(super) fid: usize,
    pub(super) context: usize,
}

/// Binds an object to the endpoint whose C object is `owner`.
///
/// # Safety
/// `bfid` is null or points to an open object of this provider.
pub(super) unsafe fn bind(
    core: &EpCore,
    subject: EventSubject,
    bfid: *const fid,
    flags: u64,
) -> Result<(), Errno> {
    // SAFETY: null or an open object, by the caller's contract.
    match unsafe { class_of(bfid) }? {
        // A context has completion objects of its own; the other bindings belong to its
        // scalable endpoint.
        class if core.place.is_some() && !matches!(class, fi::FI_CLASS_CQ | fi::FI_CLASS_CNTR) => {
            Err(because(
                fi::FI_EINVAL,
                format_args!(
                    "a context of a scalable endpoint takes completion queues and counters only"
                ),
            ))
        }
        // SAFETY: an open object, by the caller's contract.
        fi::FI_CLASS_CQ => bind_cq(core, unsafe { object::<Cq, _>(bfid) }?, flags),
        // SAFETY: an open object, by the caller's contract.
        fi::FI_CLASS_CNTR => bind_cntr(core, unsafe { object::<Cntr, _>(bfid) }?, flags),
        // SAFETY: an open object, by the caller's contract.
        fi::FI_CLASS_AV => bind_av(core, unsafe { object::<Av, _>(bfid) }?, flags),
        // SAFETY: an open object, by the caller's contract.
        fi::FI_CLASS_EQ => bind_eq(core, unsafe { object::<Eq, _>(bfid) }?, flags, subject),
        // SAFETY: an open object, by the caller's contract.
        fi::FI_CLASS_SRX_CTX => bind_srx(core, unsafe { object::<Srx, _>(bfid) }?, flags),
        // SAFETY: an open object, by the caller's contract.
        fi::FI_CLASS_STX_CTX => bind_stx(core, unsafe { object::<Stx, _>(bfid) }?, flags),
        _ => Err(because(
            fi::FI_EINVAL,
            format_args!("objects of this class are not bound to endpoints"),
        )),
    }
}

fn bind_srx(core: &EpCore, srx: &Srx, flags: u64) -> Result<(), Errno> {
    no_flags(flags)?;
    if core.prefixed {
        return Err(because(
            fi::FI_EINVAL,
            format_args!(
                "an endpoint with message prefixes (FI_MSG_PREFIX) cannot draw from a shared \
                     receive context: its receives leave no room for them; fi_getinfo grants no \
                     prefixes to hints whose rx_ctx_cnt is FI_SHARED_CONTEXT"
            ),
        ));
    }
    while_disabled(core, srx.domain(), |st, idx| {
        if config(st, idx)?.srx.is_some() {
            return Err(taken("a shared receive context"));
        }
        let state = st.srxs.get_mut(srx.index()).ok_or(fi::FI_EINVAL)?;
        state.eps.push(idx);
        let peer = state.owner.is_some();
        let cfg = config(st, idx)?;
        cfg.srx = Some(srx.index());
        cfg.peer = peer;
        Ok(())
    })
}

fn bind_stx(core: &EpCore, stx: &Stx, flags: u64) -> Result<(), Errno> {
    no_flags(flags)?;
    while_disabled(core, &stx.shared.dom, |_, _| {
        let mut place = core.stx();
        if place.is_some() {
            return Err(taken("a shared transmit context"));
        }
        *place = Some(Arc::clone(&stx.shared));
        Ok(())
    })
}

fn bind_cq(core: &EpCore, cq: &Cq, flags: u64) -> Result<(), Errno> {
    only(flags, CQ_FLAGS, "a completion queue")?;
    if is_other_direction(core, flags) {
        return Err(because(
            fi::FI_EBADFLAGS,
            format_args!("a context of one direction has no completions of the other"),
        ));
    }
    let (tx, rx) = (flags & fi::FI_TRANSMIT != 0, flags & fi::FI_RECV != 0);
    while_disabled(core, cq.domain(), |st, idx| {
        let cfg = config(st, idx)?;
        if (tx && cfg.tx_cq.is_some()) || (rx && cfg.rx_cq.is_some()) {
            return Err(taken("a completion queue for this direction"));
        }
        if tx || rx {
            core.dom.bind_cq(st, idx, cq.index())?;
        }
        let always = if flags & fi::FI_SELECTIVE_COMPLETION == 0 { fi::FI_COMPLETION } else { 0 };
        let cfg = config(st, idx)?;
        if tx {
            cfg.tx_cq = Some(cq.index());
            core.tx_always.set_relaxed(always);
        }
        if rx {
            cfg.rx_cq = Some(cq.index());
            cfg.rx_always = always;
            core.rx_always.set_relaxed(always);
        }
        Ok(())
    })
}

fn bind_cntr(core: &EpCore, cntr: &Cntr, flags: u64) -> Result<(), Errno> {
    only(flags, CNTR_FLAGS, "a counter")?;
    // Allowed after fi_enable as well, as in other providers: OpenSHMEM binds its counters
    // then.
    let counts_accesses = flags & (fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE) != 0;
    rebind(core, cntr.domain(), |st, idx| {
        if counters(config(st, idx)?).any(|(flag, place)| flags & flag != 0 && place.is_some()) {
            return Err(taken("a counter for this direction"));
        }
        if flags != 0 {
            core.dom.bind_cntr(st, idx, cntr.index())?;
        }
        if counts_accesses {
            st.mrs.request_access_events();
        }
        for (_, place) in counters(config(st, idx)?).filter(|(flag, _)| flags & flag != 0) {
            *place = Some(cntr.index());
        }
        Ok(())
    })?;
    if counts_accesses {
        // Without the domain lock: it waits for accesses in progress.
        core.dom.keys.remove_all_windows();
    }
    Ok(())
}

fn bind_av(core: &EpCore, av: &Av, flags: u64) -> Result<(), Errno> {
    no_flags(flags)?;
    while_disabled(core, av.domain(), |st, idx| {
        let DomainState { eps, avs, .. } = st;
        let ep = eps.get_mut(idx).ok_or(fi::FI_EINVAL)?;
        if ep.cfg.av != u32::MAX {
            return Err(taken("an address vector"));
        }
        avs.get_mut(av.index()).ok_or(fi::FI_EINVAL)?.endpoints += 1;
        ep.cfg.av = av.index();
        Ok(())
    })
}

fn bind_eq(core: &EpCore, eq: &Eq, flags: u64, subject: EventSubject) -> Result<(), Errno> {
    no_flags(flags)?;
    while_disabled(core, &core.dom, |st, idx| {
        let ep = st.eps.get_mut(idx).ok_or(fi::FI_EINVAL)?;
        if ep.eq.is_some() {
            return Err(taken("an event queue"));
        }
        ep.eq = Some(Arc::clone(eq.shared()));
        ep.fid = subject.fid;
        ep.context = subject.context;
        Ok(())
    })
}

/// Whether `flags` request completions of the direction that the context does not have.
fn is_other_direction(core: &EpCore, flags: u64) -> bool {
    core.place.as_ref().is_some_and(|place| match place.way {
        Direction::Transmit => flags & fi::FI_RECV != 0,
        Direction::Receive => flags & fi::FI_TRANSMIT != 0,
    })
}

/// Changes a binding to an object of `dom` under the domain lock, unless the endpoint is
/// enabled.
fn while_disabled(
    core: &EpCore,
    dom: &Arc<DomainShared>,
    change: impl FnOnce(&mut DomainState, u32) -> Result<(), Errno>,
) -> Result<(), Errno> {
    rebind(core, dom, |st, idx| {
        if st.eps.get(idx).ok_or(fi::FI_EINVAL)?.enabled {
            return Err(because(
                fi::FI_EOPBADSTATE,
                format_args!("the endpoint is enabled, and takes counters only"),
            ));
        }
        change(st, idx)
    })
}

/// Changes a binding to an object of `dom` under the domain lock.
fn rebind(
    core: &EpCore,
    dom: &Arc<DomainShared>,
    change: impl FnOnce(&mut DomainState, u32) -> Result<(), Errno>,
) -> Result<(), Errno> {
    if !Arc::ptr_eq(dom, &core.dom) {
        return Err(because(
            fi::FI_EDOMAIN,
            format_args!("the endpoint and the object were opened in different domains"),
        ));
    }
    change(&mut core.dom.gate.lock(), core.idx())
}

/// Binds the new state `idx` to the objects of `old`.
pub(super) fn bind_like(
    core: &EpCore,
    st: &mut DomainState,
    idx: u32,
    old: u32,
) -> Result<(), Errno> {
    let mut cfg = config(st, old)?.clone();
    // Counted first, since the close of the new state decrements the count even if a later step
    // fails.
    if let Some(av) = st.avs.get_mut(cfg.av) {
        av.endpoints += 1;
    }
    for cq in [cfg.tx_cq, cfg.rx_cq].into_iter().flatten() {
        core.dom.bind_cq(st, idx, cq)?;
    }
    for cntr in counters(&mut cfg).filter_map(|(_, place)| *place) {
        core.dom.bind_cntr(st, idx, cntr)?;
    }
    if let Some(srx) = cfg.srx.and_then(|srx| st.srxs.get_mut(srx)) {
        srx.eps.push(idx);
    }
    let was = st.eps.get_mut(old).ok_or(fi::FI_EINVAL)?;
    let (eq, fid, context) = (was.eq.take(), was.fid, was.context);
    let now = st.eps.get_mut(idx).ok_or(fi::FI_EINVAL)?;
    (now.eq, now.fid, now.context) = (eq, fid, context);
    Ok(())
}

fn no_flags(flags: u64) -> Result<(), Errno> {
    only(flags, 0, "an object of this class")
}

/// Refuses flags that the binding of `what` does not accept.
fn only(flags: u64, allowed: u64, object: &str) -> Result<(), Errno> {
    match flags & !allowed {
        0 => Ok(()),
        wrong => Err(because(
            fi::FI_EBADFLAGS,
            format_args!("{object} is not bound with flags {wrong:#x}"),
        )),
    }
}

fn taken(object: &str) -> Errno {
    because(fi::FI_EINVAL, format_args!("the endpoint has {object} already"))
}

fn config(st: &mut DomainState, idx: u32) -> Result<&mut EpConfig, Errno> {
    st.eps.get_mut(idx).map(|ep| &mut ep.cfg).ok_or(fi::FI_EINVAL)
}

/// Returns the counters of an endpoint with the flags that bind them.
fn counters(cfg: &mut EpConfig) -> impl Iterator<Item = (u64, &mut Option<u32>)> {
    [
        (fi::FI_SEND, &mut cfg.cntr_send),
        (fi::FI_RECV, &mut cfg.cntr_recv),
        (fi::FI_READ, &mut cfg.cntr_read),
        (fi::FI_WRITE, &mut cfg.cntr_write),
        (fi::FI_REMOTE_READ, &mut cfg.cntr_remote_read),
        (fi::FI_REMOTE_WRITE, &mut cfg.cntr_remote_write),
    ]
    .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_flag_has_its_place() {
        let mut cfg = EpConfig::default();
        let flags = counters(&mut cfg).fold(0, |all, (flag, place)| {
            *place = u32::try_from(flag).ok();
            all | flag
        });
        assert_eq!(flags, CNTR_FLAGS);
        assert_eq!(cfg.cntr_remote_read.map(u64::from), Some(fi::FI_REMOTE_READ));
    }
}

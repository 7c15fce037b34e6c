// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "recovers the objects that C binds")]
//! Bindings of an endpoint, and the check that they suffice to enable it.
//!
//! Mirrors fi_endpoint(3), "fi_ep_bind" and "fi_enable".

use std::sync::{Arc, Weak};

use libfabric_sys as fi;
use libfabric_sys::fid;

use super::Core;
use crate::base::entry::{class_of, object};
use crate::base::errno::Errno;
use crate::base::reason::because;
use crate::domain::{DomainShared, DomainState};
use crate::engine::types::args::EpConfig;
use crate::objects::cntr::Cntr;
use crate::objects::cq::Cq;
use crate::objects::eq::Eq;
use crate::objects::handle::Av;
use crate::objects::sep::Direction;
use crate::objects::srx::{Srx, Stx};

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

impl Core {
    /// Binds an object to the endpoint whose C object is `owner`.
    ///
    /// # Safety
    ///
    /// `bfid` is null or points to an open object of this provider.
    pub(super) unsafe fn bind(
        &self,
        subject: EventSubject,
        bfid: *const fid,
        flags: u64,
    ) -> Result<(), Errno> {
        // SAFETY: null or an open object, by the caller's contract.
        match unsafe { class_of(bfid) }? {
            // A context has completion objects of its own; the other bindings belong to its
            // scalable endpoint.
            class
                if self.place.is_some()
                    && !matches!(class, fi::FI_CLASS_CQ | fi::FI_CLASS_CNTR) =>
            {
                Err(because(
                    fi::FI_EINVAL,
                    format_args!(
                        "a context of a scalable endpoint takes completion queues and counters only"
                    ),
                ))
            }
            // SAFETY: an open object, by the caller's contract.
            fi::FI_CLASS_CQ => self.bind_cq(unsafe { object::<Cq, _>(bfid) }?, flags),
            // SAFETY: an open object, by the caller's contract.
            fi::FI_CLASS_CNTR => self.bind_cntr(unsafe { object::<Cntr, _>(bfid) }?, flags),
            // SAFETY: an open object, by the caller's contract.
            fi::FI_CLASS_AV => self.bind_av(unsafe { object::<Av, _>(bfid) }?, flags),
            // SAFETY: an open object, by the caller's contract.
            fi::FI_CLASS_EQ => self.bind_eq(unsafe { object::<Eq, _>(bfid) }?, flags, subject),
            // SAFETY: an open object, by the caller's contract.
            fi::FI_CLASS_SRX_CTX => self.bind_srx(unsafe { object::<Srx, _>(bfid) }?, flags),
            // SAFETY: an open object, by the caller's contract.
            fi::FI_CLASS_STX_CTX => self.bind_stx(unsafe { object::<Stx, _>(bfid) }?, flags),
            _ => Err(because(
                fi::FI_EINVAL,
                format_args!("objects of this class are not bound to endpoints"),
            )),
        }
    }

    fn bind_srx(&self, srx: &Srx, flags: u64) -> Result<(), Errno> {
        no_flags(flags)?;
        if self.prefixed {
            return Err(because(
                fi::FI_EINVAL,
                format_args!(
                    "an endpoint with message prefixes (FI_MSG_PREFIX) cannot draw from a shared \
                     receive context: its receives leave no room for them; fi_getinfo grants no \
                     prefixes to hints whose rx_ctx_cnt is FI_SHARED_CONTEXT"
                ),
            ));
        }
        self.while_disabled(srx.domain(), |st, idx| {
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

    fn bind_stx(&self, stx: &Stx, flags: u64) -> Result<(), Errno> {
        no_flags(flags)?;
        self.while_disabled(&stx.shared.dom, |_, _| {
            let mut place = self.stx();
            if place.is_some() {
                return Err(taken("a shared transmit context"));
            }
            *place = Some(Arc::clone(&stx.shared));
            Ok(())
        })
    }

    fn bind_cq(&self, cq: &Cq, flags: u64) -> Result<(), Errno> {
        only(flags, CQ_FLAGS, "a completion queue")?;
        if self.is_other_direction(flags) {
            return Err(because(
                fi::FI_EBADFLAGS,
                format_args!("a context of one direction has no completions of the other"),
            ));
        }
        let (tx, rx) = (flags & fi::FI_TRANSMIT != 0, flags & fi::FI_RECV != 0);
        self.while_disabled(cq.domain(), |st, idx| {
            let cfg = config(st, idx)?;
            if (tx && cfg.tx_cq.is_some()) || (rx && cfg.rx_cq.is_some()) {
                return Err(taken("a completion queue for this direction"));
            }
            if tx || rx {
                self.dom.bind_cq(st, idx, cq.index())?;
            }
            let always =
                if flags & fi::FI_SELECTIVE_COMPLETION == 0 { fi::FI_COMPLETION } else { 0 };
            let cfg = config(st, idx)?;
            if tx {
                cfg.tx_cq = Some(cq.index());
                self.tx_always.set_relaxed(always);
            }
            if rx {
                cfg.rx_cq = Some(cq.index());
                cfg.rx_always = always;
                self.rx_always.set_relaxed(always);
            }
            Ok(())
        })
    }

    fn bind_cntr(&self, cntr: &Cntr, flags: u64) -> Result<(), Errno> {
        only(flags, CNTR_FLAGS, "a counter")?;
        // Allowed after fi_enable as well, as in other providers: OpenSHMEM binds its counters
        // then.
        self.change(cntr.domain(), |st, idx| {
            if counters(config(st, idx)?).any(|(flag, place)| flags & flag != 0 && place.is_some())
            {
                return Err(taken("a counter for this direction"));
            }
            if flags != 0 {
                self.dom.bind_cntr(st, idx, cntr.index())?;
            }
            if flags & (fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE) != 0 {
                st.mrs.ask_for_events();
            }
            for (_, place) in counters(config(st, idx)?).filter(|(flag, _)| flags & flag != 0) {
                *place = Some(cntr.index());
            }
            Ok(())
        })
    }

    fn bind_av(&self, av: &Av, flags: u64) -> Result<(), Errno> {
        no_flags(flags)?;
        self.while_disabled(av.domain(), |st, idx| {
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

    fn bind_eq(&self, eq: &Eq, flags: u64, subject: EventSubject) -> Result<(), Errno> {
        no_flags(flags)?;
        self.while_disabled(&self.dom, |st, idx| {
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
    fn is_other_direction(&self, flags: u64) -> bool {
        self.place.as_ref().is_some_and(|place| match place.way {
            Direction::Transmit => flags & fi::FI_RECV != 0,
            Direction::Receive => flags & fi::FI_TRANSMIT != 0,
        })
    }

    /// Changes a binding to an object of `dom` under the domain lock, unless the endpoint is
    /// enabled.
    fn while_disabled(
        &self,
        dom: &Arc<DomainShared>,
        change: impl FnOnce(&mut DomainState, u32) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.change(dom, |st, idx| {
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
    fn change(
        &self,
        dom: &Arc<DomainShared>,
        change: impl FnOnce(&mut DomainState, u32) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if !Arc::ptr_eq(dom, &self.dom) {
            return Err(because(
                fi::FI_EDOMAIN,
                format_args!("the endpoint and the object were opened in different domains"),
            ));
        }
        change(&mut self.dom.gate.lock(), self.idx())
    }

    /// Enables the endpoint. No error if it is enabled already.
    ///
    /// # Errors
    ///
    /// `FI_ENOCQ` when a requested direction has neither queue nor counter, `FI_ENOAV` without
    /// address vector, `FI_EOTHER` after an internal error of this endpoint. Errors of the system,
    /// when its descriptor cannot be watched.
    pub(super) fn enable(self: &Arc<Core>) -> Result<(), Errno> {
        let mut st = self.dom.gate.lock();
        if let Some(place) = &self.place {
            place.sep.equip(&mut st, self.idx())?;
        }
        let ep = st.eps.get_mut(self.idx()).ok_or(fi::FI_EINVAL)?;
        if ep.enabled {
            return Ok(());
        }
        ep.check_sound()?;
        is_complete(&ep.cfg)?;
        if ep.cfg.connected {
            self.attach(ep)?;
        } else if ep.cfg.caps & fi::FI_COLLECTIVE != 0
            && let Some(eq) = &ep.eq
        {
            let source: Weak<Core> = Arc::downgrade(self);
            eq.follow(source);
        }
        self.dom.enable_ep(&mut st, self.idx())
    }

    /// Binds the new state `idx` to the objects of `old`.
    pub(super) fn bind_like(&self, st: &mut DomainState, idx: u32, old: u32) -> Result<(), Errno> {
        let mut cfg = config(st, old)?.clone();
        // Counted first, since the close of the new state decrements the count even if a later step
        // fails.
        if let Some(av) = st.avs.get_mut(cfg.av) {
            av.endpoints += 1;
        }
        for cq in [cfg.tx_cq, cfg.rx_cq].into_iter().flatten() {
            self.dom.bind_cq(st, idx, cq)?;
        }
        for cntr in counters(&mut cfg).filter_map(|(_, place)| *place) {
            self.dom.bind_cntr(st, idx, cntr)?;
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

/// Checks that every requested operation has a queue or counter that reports it.
fn is_complete(cfg: &EpConfig) -> Result<(), Errno> {
    // Without a direction, all directions are meant.
    let has = |kinds: u64, direction: u64, directions: u64| {
        cfg.caps & kinds != 0 && (cfg.caps & direction != 0 || cfg.caps & directions == 0)
    };
    let (messages, both) = (fi::FI_MSG | fi::FI_TAGGED, fi::FI_SEND | fi::FI_RECV);
    let (accesses, started) = (fi::FI_RMA | fi::FI_ATOMIC, fi::FI_READ | fi::FI_WRITE);
    let all = started | fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE;
    let transmits = has(messages, fi::FI_SEND, both) || has(accesses, started, all);
    let tx = cfg.tx_cq.or(cfg.cntr_send).or(cfg.cntr_read).or(cfg.cntr_write);
    let rx = cfg.rx_cq.or(cfg.cntr_recv);
    let missing =
        match (transmits && tx.is_none(), has(messages, fi::FI_RECV, both) && rx.is_none()) {
            (true, _) => Some("transmits (FI_TRANSMIT)"),
            (_, true) => Some("receives (FI_RECV)"),
            _ => None,
        };
    if let Some(direction) = missing {
        let why = format_args!("neither a completion queue nor a counter is bound for {direction}");
        return Err(because(fi::FI_ENOCQ, why));
    }
    if cfg.av == u32::MAX && !cfg.connected {
        return Err(fi::FI_ENOAV);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(caps: u64, tx: bool, rx: bool) -> EpConfig {
        EpConfig { caps, tx_cq: tx.then_some(0), rx_cq: rx.then_some(0), ..EpConfig::default() }
    }

    #[test]
    fn each_direction_needs_a_place_to_complete() {
        assert_eq!(is_complete(&bound(fi::FI_MSG, true, true)), Ok(()));
        assert_eq!(is_complete(&bound(fi::FI_MSG, true, false)), Err(fi::FI_ENOCQ));
        assert_eq!(is_complete(&bound(fi::FI_MSG, false, true)), Err(fi::FI_ENOCQ));
        assert_eq!(is_complete(&bound(fi::FI_TAGGED | fi::FI_SEND, true, false)), Ok(()));
        assert_eq!(is_complete(&bound(fi::FI_TAGGED | fi::FI_RECV, false, true)), Ok(()));
        assert_eq!(is_complete(&bound(fi::FI_RMA, true, false)), Ok(()));
        assert_eq!(is_complete(&bound(fi::FI_RMA, false, true)), Err(fi::FI_ENOCQ));
        assert_eq!(is_complete(&bound(fi::FI_RMA | fi::FI_REMOTE_WRITE, false, false)), Ok(()));
        assert_eq!(
            is_complete(&bound(fi::FI_ATOMIC | fi::FI_READ, false, false)),
            Err(fi::FI_ENOCQ)
        );
    }

    #[test]
    fn counters_are_places_to_complete() {
        let cfg = EpConfig {
            caps: fi::FI_MSG,
            cntr_send: Some(0),
            cntr_recv: Some(0),
            ..EpConfig::default()
        };
        assert_eq!(is_complete(&cfg), Ok(()));
    }

    #[test]
    fn an_address_vector_is_needed() {
        let cfg = EpConfig { av: u32::MAX, ..bound(fi::FI_MSG, true, true) };
        assert_eq!(is_complete(&cfg), Err(fi::FI_ENOAV));
    }

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

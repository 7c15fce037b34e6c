// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Enabling of an endpoint, and the event queue that drives it from then on.
//!
//! Mirrors fi_endpoint(3), "fi_enable".

use std::sync::{Arc, Weak};

use libfabric_sys as fi;

use crate::base::errno::Errno;
use crate::base::reason::because;
use crate::domain::{calls, cm, coll};
use crate::engine::endpoint::Endpoint;
use crate::engine::types::args::EpConfig;
use crate::objects::endpoint::ep::EpCore;
use crate::state::eq_queue::EventSource;

/// Enables the endpoint. No error if it is enabled already.
///
/// # Errors
/// `FI_ENOCQ` when a requested direction has neither queue nor counter, `FI_ENOAV` without
/// address vector, `FI_EOTHER` after an internal error of this endpoint. Errors of the system,
/// when its descriptor cannot be watched.
pub(super) fn enable(core: &Arc<EpCore>) -> Result<(), Errno> {
    let mut st = core.dom.gate.lock();
    if let Some(place) = &core.place {
        place.sep.equip(&mut st, core.idx())?;
    }
    let ep = st.eps.get_mut(core.idx()).ok_or(fi::FI_EINVAL)?;
    if ep.enabled {
        return Ok(());
    }
    ep.check_sound()?;
    is_complete(&ep.cfg)?;
    if ep.cfg.connected {
        attach(core, ep)?;
    } else if ep.cfg.caps & fi::FI_COLLECTIVE != 0 {
        if let Some(eq) = &ep.eq {
            let source: Weak<EpCore> = Arc::downgrade(core);
            eq.follow(source);
        }
    }
    core.dom.enable_ep(&mut st, core.idx())
}

/// Makes the event queue drive the connection from now on.
fn attach(core: &Arc<EpCore>, ep: &mut Endpoint) -> Result<(), Errno> {
    let eq = ep.eq.clone().ok_or(fi::FI_ENOEQ)?;
    let source: Weak<EpCore> = Arc::downgrade(core);
    // A thread that sleeps on the queue already has not asked this endpoint. The call makes the
    // descriptor report what other hosts send.
    ep.links.sock.may_sleep();
    eq.attach(source, ep.links.sock.wait_fd())
}

impl EventSource for EpCore {
    fn progress(self: Arc<Self>) -> bool {
        let mut st = self.dom.gate.lock();
        if st.eps.get(self.idx()).is_some_and(|ep| !ep.cfg.connected) {
            if !calls::uses_peer_srx(&mut st, self.idx()) {
                calls::progress(&mut st, self.idx());
            }
            return coll::is_joining(&st, self.idx());
        }
        let soon = cm::links(&mut st, self.idx());
        if calls::has_wakes(&st, self.idx()) {
            self.dom.notify_sleepers(&mut st, self.idx());
        }
        soon
    }
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
        return Err(because(
            fi::FI_ENOCQ,
            format_args!("neither a completion queue nor a counter is bound for {direction}"),
        ));
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
}

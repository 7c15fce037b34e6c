// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Usual set-up of two ranks over connected endpoints, with which a case for reliable endpoints can
//! run too. Rank 0 listens, and rank 1 connects. Tests of connecting itself are in the cases' `cm`.

use libfabric_sys as sys;

use super::{Rig, Spec, offer};
use crate::check_eq;
use crate::fi::{CmEvent, Domain, Eq, EqAttr, Errno, Fabric, Pep};
use crate::harness::{Fail, Outcome, Rank};

/// Time limit in milliseconds for an event. It guards against hangs; no measurement uses it.
const PATIENCE_MS: i32 = 20_000;

impl<'r> Rig<'r> {
    /// Opens all objects and exchanges addresses with the other ranks.
    ///
    /// # Errors
    /// `NotRun` when the provider has no such offer; a failure of any call.
    pub fn open(rank: &'r Rank, spec: &Spec) -> Outcome<Rig<'r>> {
        rank.made.get_or_init(|| ());
        let setup = rank.setup;
        let spec = spec.clone().with(|spec| {
            if setup.shared_tx {
                spec.hints.tx_ctx_cnt = sys::FI_SHARED_CONTEXT;
            }
            if setup.shared_rx {
                spec.hints.rx_ctx_cnt = sys::FI_SHARED_CONTEXT;
            }
            if setup.prefix {
                spec.hints.mode |= sys::FI_MSG_PREFIX;
            }
        });
        let rig = match setup.ep_type {
            0 => Rig::open_alone(rank, &spec)?.meet(),
            sys::FI_EP_MSG => connect(rank, &spec),
            other => {
                let spec = spec.with(|spec| {
                    spec.hints.ep_type = other;
                    // Datagrams have no order.
                    spec.hints.tx.msg_order = 0;
                    spec.hints.rx.msg_order = 0;
                });
                Rig::open_alone(rank, &spec)?.meet()
            }
        }?;
        if setup.prefix && rig.prefix() == 0 {
            return Err(Fail::NotRun("no message prefixes".into()));
        }
        Ok(rig)
    }
}

/// Opens all objects and connects the two ranks.
///
/// # Errors
/// `NotRun` when the provider has no such offer; a failure of any call.
fn connect<'r>(rank: &'r Rank, spec: &Spec) -> Outcome<Rig<'r>> {
    check_eq!(rank.count, 2, "a connection has two ends");
    let spec = spec.clone().with(|spec| {
        spec.hints.ep_type = sys::FI_EP_MSG;
        spec.eq = true;
    });
    let info = offer(rank, &spec)?;
    let fabric = Fabric::open(&info)?;
    let domain = Domain::open(&fabric, &info)?;
    let attr = EqAttr { wait_obj: sys::FI_WAIT_UNSPEC, ..EqAttr::default() };
    let mut rig = if rank.index == 0 {
        let eq = Eq::open(&fabric, attr)?;
        let pep = Pep::open(&fabric, &info)?;
        pep.attach(&eq)?;
        pep.listen()?;
        rank.exchange(&pep.name()?, &mut || Ok(()))?;
        let request = eq.sread_cm(&info, 0, PATIENCE_MS)?;
        check_eq!((request.event, request.fid), (sys::FI_CONNREQ, pep.address()?));
        let mut info = request.info.ok_or_else(|| Fail::here("a request without an info"))?;
        if let Some(mr_mode) = spec.opened_mr_mode {
            info.set_mr_mode(mr_mode);
        }
        let rig = Rig::open_in(rank, info, &fabric, &domain, &spec)?;
        rig.ep.accept(&[])?;
        connected(&rig)?;
        rig
    } else {
        let names = rank.exchange(&[], &mut || Ok(()))?;
        let name = names.first().ok_or_else(|| Fail::here("no name of rank 0"))?;
        let rig = Rig::open_in(rank, info, &fabric, &domain, &spec)?;
        rig.ep.connect(name, &[])?;
        connected(&rig)?;
        rig
    };
    // A connected endpoint ignores the destination address.
    rig.peers = vec![0; rank.count];
    rig.names = rig.exchange(&rig.ep.name()?)?;
    Ok(rig)
}

/// Waits for the connection.
fn connected(rig: &Rig<'_>) -> Outcome {
    let eq = rig.eq.as_ref().ok_or_else(|| Fail::here("no event queue"))?;
    match eq.sread_cm(&rig.info, 0, PATIENCE_MS) {
        Ok(CmEvent { event, fid, .. }) => {
            check_eq!((event, fid), (sys::FI_CONNECTED, rig.ep.address()?));
            Ok(())
        }
        Err(Errno::EAVAIL) => Err(Fail::here(format_args!("not connected: {:?}", eq.readerr()?))),
        Err(e) => Err(Fail::here(e)),
    }
}

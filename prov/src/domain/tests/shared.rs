// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests: shared receive contexts.

use libfabric_sys as fi;

use super::{Came, Stage, buffer};
use crate::domain::calls::recv;
use crate::domain::triggers::{Action, Condition, Work};
use crate::domain::{srx, triggered};
use crate::engine::tables::srx_state::SrxState;
use crate::engine::types::args::RecvArgs;
use crate::engine::types::iov::Iov;
use crate::state::counter::CntrState;
use crate::state::waiters::WaitState;

const CONTEXT: usize = 7;

#[test]
fn cancel_of_a_shared_context_keeps_operations_of_its_endpoints() {
    let stage = Stage::new();
    let (peer, number) = stage.peer();
    let st = &mut *stage.domain.shared.gate.lock();
    let mut state = SrxState::new();
    state.eps.push(stage.ep);
    let srx = st.srxs.insert(state).unwrap();
    st.eps.get_mut(stage.ep).unwrap().cfg.srx = Some(srx);
    let cntr = st.cntrs.insert(CntrState::new(WaitState::none())).unwrap();
    let iov = [buffer(vec![0; 8])];
    let args = RecvArgs {
        iov: &iov,
        src: fi::FI_ADDR_UNSPEC,
        tag: None,
        context: CONTEXT,
        flags: fi::FI_COMPLETION,
    };
    // A receive and a triggered send of the endpoint, with the context of the receive to cancel.
    recv(st, stage.ep, &args).unwrap();
    let when = Condition { cntr, threshold: 1, errors: false };
    let work = Work {
        action: Action::Send { iov: Iov::new(&iov), tag: None, data: None, dest: number },
        ep: Some(stage.ep),
        context: CONTEXT,
        flags: fi::FI_COMPLETION,
        queued: None,
    };
    triggered::post(st, when, work).unwrap();
    srx::recv(st, srx, &args).unwrap();
    // The second call finds nothing.
    srx::cancel(st, srx, CONTEXT).unwrap();
    srx::cancel(st, srx, CONTEXT).unwrap();
    let e = st.eps.get_mut(stage.ep).unwrap();
    assert_eq!(e.recv.queue(false).posted.len(), 1);
    assert!(!st.triggers.is_empty());
    let cq = st.cqs.get_mut(stage.cq).unwrap();
    let cancelled = cq.take_error().map(Came::Failed);
    assert!(
        matches!(&cancelled, Some(Came::Failed(e)) if e.err == fi::FI_ECANCELED),
        "{cancelled:?}"
    );
    assert!(cq.take_error().is_none());
    drop(peer);
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Panics on the data path, and the state after them.
//!
//! A panic while a record is handled ends the connection of the record (`breach`). Any other panic
//! leaves the endpoint half changed, so it is poisoned. Its operations end with `FI_EOTHER` in the
//! next progress call, and its connections are reset. Later calls are refused, so that the same
//! panic does not recur in each of them.
//!
//! Not here: the log (`scif::logging`), and the return of a call (`entry`).

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

use libfabric_sys as fi;
use scif::{CloseHow, ConnId};

use super::endpoint::Health;
use super::{Env, EpState, Errno};
use crate::base::log::{Subsys, warn};
use crate::domain::DomainState;
use crate::state::eq_queue::EqError;

/// Poisons its endpoint when dropped, which happens only during unwinding.
struct Unwound<'a> {
    st: &'a mut DomainState,
    ep: u32,
}

impl Drop for Unwound<'_> {
    #[cold]
    fn drop(&mut self) {
        if let Some(e) = self.st.eps.get_mut(self.ep) {
            e.enabled = false;
            e.health = Health::Poisoned;
        }
    }
}

/// Runs `body`. A panic in it poisons endpoint `ep`. Costs nothing without a panic.
#[inline(always)]
pub(super) fn guarded<R>(
    st: &mut DomainState,
    ep: u32,
    body: impl FnOnce(&mut DomainState) -> R,
) -> R {
    let unwound = Unwound { st, ep };
    let done = body(&mut *unwound.st);
    // No panic occurred, so the guard must not be dropped.
    let _kept = ManuallyDrop::new(unwound);
    done
}

/// Ends the operations of endpoint `ep`, if it is poisoned and they have not ended yet.
#[cold]
pub(super) fn end(st: &mut DomainState, ep: u32) {
    let DomainState { eps, cqs, cntrs, avs, mrs, srxs, .. } = st;
    let Some(e) = eps.get_mut(ep).filter(|e| e.health == Health::Poisoned) else {
        return;
    };
    // Set first: a second panic ends the attempt, and there is no third.
    e.health = Health::Ended;
    let mut env = Env { cqs, cntrs, avs, mrs, srxs };
    let ended = catch_unwind(AssertUnwindSafe(|| e.end_everything(&mut env)));
    let all = if ended.is_ok() { "all" } else { "some" };
    warn(
        Subsys::EpData,
        format_args!(
            "endpoint {} cannot be used any more after an internal error: {all} of its operations end with FI_EOTHER",
            e.links.sock.id()
        ),
    );
}

impl EpState {
    /// Returns the error of a refused call.
    #[cold]
    pub(super) fn refusal(&self) -> Errno {
        self.check_sound().err().unwrap_or(fi::FI_EOPBADSTATE)
    }

    /// Refuses new operations of an endpoint that a panic has left half changed.
    ///
    /// # Errors
    /// `FI_EOTHER`: the endpoint is poisoned.
    pub(crate) fn check_sound(&self) -> Result<(), Errno> {
        match self.health {
            Health::Sound => Ok(()),
            Health::Poisoned | Health::Ended => Err(fi::FI_EOTHER),
        }
    }

    fn end_everything(&mut self, env: &mut Env<'_>) {
        let err = fi::FI_EOTHER;
        let fetched = self.end_fetches();
        for (target, arrival) in fetched {
            self.complete_recv(env, &target, &arrival, 0, err);
        }
        for tagged in [true, false] {
            for posted in self.recv.queue(tagged).posted.extract(|_| true) {
                self.fail_posted(env, tagged, posted, err);
            }
            self.recv.queue(tagged).unexpected.retain(|_| false);
        }
        self.coll_end_all(env, err);
        for peer in self.peers.ids() {
            for op in self.ops.of_peer(peer) {
                self.finish_op(env, peer, op, err);
            }
            self.fail_pending(env, peer, err);
        }
        let conns: Vec<ConnId> = self.links.sock.conns().collect();
        for conn in conns {
            self.links.sock.close_conn(conn, CloseHow::Reset);
        }
        self.links.active.clear();
        self.links.idle.clear();
        self.peers.busy.clear();
        if let Some(eq) = &self.eq {
            eq.push_error(EqError {
                fid: self.fid,
                context: self.context,
                data: fi::FI_ADDR_NOTAVAIL,
                err,
                prov_errno: -err,
                err_data: Vec::new(),
            });
        }
    }
}

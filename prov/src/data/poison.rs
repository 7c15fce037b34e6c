// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Panics on the data path, and the state they leave behind.
//!
//! A panic while a record is handled ends the connection it came over (`breach`). Any other one leaves an endpoint half
//! changed: it is poisoned. Its operations end with `FI_EOTHER` in the next progress, its connections are reset, and later
//! calls are refused, so that the same panic does not come again in every call.
//!
//! Not about the log (`scif::logging`), nor about how a call returns (`entry`).

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

use libfabric_sys as fi;
use scif::{CloseHow, ConnId};

use super::{Env, EpState, Errno};
use crate::domain::DomainState;
use crate::eq::EqError;
use crate::log::{Subsys, warn};

/// Whether an endpoint can be used.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Health {
    #[default]
    Sound,
    /// A panic has left it half changed.
    Poisoned,
    /// So it was, and its operations have ended.
    Ended,
}

/// Poisons its endpoint when it is dropped, which only unwinding does.
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

/// Runs `body`; a panic in it poisons endpoint `ep`. Costs nothing where there is none.
#[inline(always)]
pub(super) fn guarded<R>(st: &mut DomainState, ep: u32, body: impl FnOnce(&mut DomainState) -> R) -> R {
    let unwound = Unwound { st, ep };
    let done = body(&mut *unwound.st);
    // No panic: it is not to be dropped.
    let _kept = ManuallyDrop::new(unwound);
    done
}

/// Ends the operations of endpoint `ep`, if it is poisoned and they have not ended.
#[cold]
pub(super) fn end(st: &mut DomainState, ep: u32) {
    let DomainState {
        eps,
        cqs,
        cntrs,
        avs,
        mrs,
        srxs,
        ..
    } = st;
    let Some(e) = eps.get_mut(ep).filter(|e| e.health == Health::Poisoned) else {
        return;
    };
    // Before anything else: a second panic ends the attempt, and there is no third.
    e.health = Health::Ended;
    let mut env = Env {
        cqs,
        cntrs,
        avs,
        mrs,
        srxs,
    };
    let ended = catch_unwind(AssertUnwindSafe(|| e.end_everything(&mut env)));
    let all = if ended.is_ok() { "all" } else { "some" };
    warn(
        Subsys::EpData,
        format_args!(
            "endpoint {} cannot be used any more after an internal error: {all} of its operations end with FI_EOTHER",
            e.sock.id()
        ),
    );
}

impl EpState {
    /// Reason of a refused call.
    #[cold]
    pub(super) fn refusal(&self) -> Errno {
        self.check_sound().err().unwrap_or(fi::FI_EOPBADSTATE)
    }

    /// Refuses what would let operations into an endpoint that a panic has left half changed.
    ///
    /// # Errors
    /// `FI_EOTHER`: it is poisoned.
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
            for posted in self.queue(tagged).posted.extract(|_| true) {
                self.fail_posted(env, tagged, posted, err);
            }
            self.queue(tagged).unexpected.retain(|_| false);
        }
        self.coll_end_all(env, err);
        for peer in 0..u32::try_from(self.peers.len()).unwrap_or(u32::MAX) {
            for op in self.ops.of_peer(peer) {
                self.finish_op(env, peer, op, err);
            }
            self.fail_pending(env, peer, err);
        }
        let conns: Vec<ConnId> = self.sock.conns().collect();
        for conn in conns {
            self.sock.close_conn(conn, CloseHow::Reset);
        }
        self.live.clear();
        self.resting.clear();
        self.busy.clear();
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

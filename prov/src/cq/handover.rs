// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! A completion queue that stands for another provider's: what completes is handed to its owner when the owner reads this one.
//!
//! Not here: the owner's functions (`crate::peer`).
//!
//! Mirrors fi_peer(3), "PEER CQ".

use std::sync::{Mutex, PoisonError, TryLockError};

use libfabric_sys as fi;
use scif::cpu_relax_or_yield;

use super::{Cq, EMPTY_READS};
use crate::entry::{self, Errno};
use crate::peer::PeerCq;
use crate::wait;

/// Whose queue it stands for.
#[derive(Debug)]
pub(super) struct Owner {
    cq: PeerCq,
    /// Who hands over: one thread at a time keeps the order.
    turn: Mutex<()>,
}

impl Owner {
    pub(super) fn new(cq: PeerCq) -> Owner {
        Owner {
            cq,
            turn: Mutex::new(()),
        }
    }
}

impl Cq {
    /// Makes progress, and hands over what has completed.
    pub(super) fn hand_over(&self, owner: &Owner) -> Result<isize, Errno> {
        entry::made_here(self.maker)?;
        let turn = match owner.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => PoisonError::into_inner(turn),
            Err(TryLockError::WouldBlock) => return Err(fi::FI_EAGAIN),
        };
        let (ended, freed, empty) = {
            let mut guard = self.dom.gate.lock();
            let st = &mut *guard;
            let cq = st.cqs.get_mut(self.index).ok_or(fi::FI_EINVAL)?;
            if cq.waits.fd_is_armed() {
                wait::disarm_fd(st, self.target());
            }
            wait::progress_all(st, self.target());
            let cq = st.cqs.get_mut(self.index).ok_or(fi::FI_EINVAL)?;
            let (ended, freed) = cq.take_all();
            cq.empty_polls = if ended.is_empty() {
                cq.empty_polls.saturating_add(1)
            } else {
                0
            };
            (ended, freed, cq.empty_polls)
        };
        if ended.is_empty() && freed.is_empty() {
            drop(turn);
            if empty > EMPTY_READS {
                cpu_relax_or_yield(empty);
            }
            return Err(fi::FI_EAGAIN);
        }
        for one in &ended {
            match one {
                Ok(completion) => owner.cq.write(completion),
                Err(error) => owner.cq.write_err(error),
            }
        }
        // A receive goes back when its owner knows how it ended.
        for held in freed {
            held.free();
        }
        Ok(0)
    }
}

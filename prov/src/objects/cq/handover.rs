// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Completion queue that stands for a queue of another provider.
//!
//! Completions are handed to the owner's queue when the owner reads this one, and kept while the
//! owner's queue is full. The owner's functions are in `crate::state::peer_owner`.
//!
//! Mirrors fi_peer(3), "PEER CQ".

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use libfabric_sys as fi;
use scif::cpu_relax_or_yield;

use super::{Cq, EMPTY_READS};
use crate::base::entry;
use crate::base::errno::{self, Errno};
use crate::domain::wait;
use crate::state::cq_queue::{Completion, CqError};
use crate::state::peer_owner::{PeerCq, PeerRxEntry};

/// Queue of the other provider, with the completions it has not accepted yet.
#[derive(Debug)]
pub(super) struct Owner {
    cq: PeerCq,
    /// Completions to hand over, locked by one thread at a time to keep their order.
    turn: Mutex<Kept>,
}

/// Completions that a full owner's queue has not accepted yet, offered again before newer ones.
#[derive(Debug, Default)]
struct Kept {
    ended: VecDeque<Result<Completion, CqError>>,
    /// Receives to give back after all of `ended`.
    freed: Vec<PeerRxEntry>,
    /// Whether a refusal for another reason than a full queue was logged.
    refused: bool,
}

impl Owner {
    pub(super) fn new(cq: PeerCq) -> Owner {
        Owner {
            cq,
            turn: Mutex::default(),
        }
    }

    /// Returns the lock for handing over, unless another thread holds it.
    fn turn(&self) -> Option<MutexGuard<'_, Kept>> {
        match self.turn.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(turn)) => Some(PoisonError::into_inner(turn)),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether completions wait for space in the owner's queue, or another thread is handing over.
    pub(super) fn keeps(&self) -> bool {
        self.turn().is_none_or(|kept| !kept.ended.is_empty())
    }

    /// Offers the kept completions, oldest first. Returns the number accepted.
    fn offer(&self, kept: &mut Kept) -> usize {
        let mut taken = 0;
        while let Some(one) = kept.ended.front() {
            let answer = match one {
                Ok(completion) => self.cq.write(completion),
                Err(error) => self.cq.write_err(error),
            };
            if let Err(err) = answer {
                if err != fi::FI_EAGAIN && !std::mem::replace(&mut kept.refused, true) {
                    log::warn!(
                        target: "cq",
                        "completion queue of the peer provider refused an entry: {}; it is offered \
                         again",
                        errno::text(err)
                    );
                }
                return taken;
            }
            kept.ended.pop_front();
            taken += 1;
        }
        // A receive is given back after its owner knows its result.
        for held in kept.freed.drain(..) {
            held.free();
        }
        taken
    }
}

impl Cq {
    /// Makes progress, and hands over the completed operations.
    pub(super) fn hand_over(&self, owner: &Owner) -> Result<isize, Errno> {
        entry::made_here(self.maker)?;
        let mut kept = owner.turn().ok_or(fi::FI_EAGAIN)?;
        let empty = {
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
            kept.ended.extend(ended);
            kept.freed.extend(freed);
            cq.empty_polls
        };
        let idle = kept.ended.is_empty() && kept.freed.is_empty();
        let taken = owner.offer(&mut kept);
        if taken > 0 || (!idle && kept.ended.is_empty()) {
            return Ok(0);
        }
        drop(kept);
        if idle && empty > EMPTY_READS {
            cpu_relax_or_yield(empty);
        }
        Err(fi::FI_EAGAIN)
    }
}

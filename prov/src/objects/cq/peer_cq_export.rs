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

use crate::base::errno;
use crate::state::completion::{Completion, CqError};
use crate::state::peer_owner::{PeerCq, PeerRxEntry};

/// Queue of the other provider, with the completions it has not accepted yet.
#[derive(Debug)]
pub(super) struct PeerCqSink {
    cq: PeerCq,
    /// Completions to hand over, locked by one thread at a time to keep their order.
    turn: Mutex<Backlog>,
}

/// Completions that a full owner's queue has not accepted yet, offered again before newer ones.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pub(super) ended: VecDeque<Result<Completion, CqError>>,
    /// Receives to give back after all of `ended`.
    pub(super) freed: Vec<PeerRxEntry>,
    /// Whether a refusal for another reason than a full queue was logged.
    refused: bool,
}

impl PeerCqSink {
    pub(super) fn new(cq: PeerCq) -> PeerCqSink {
        PeerCqSink { cq, turn: Mutex::default() }
    }

    /// Returns the lock for handing over, unless another thread holds it.
    pub(super) fn turn(&self) -> Option<MutexGuard<'_, Backlog>> {
        match self.turn.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(turn)) => Some(PoisonError::into_inner(turn)),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether completions wait for space in the owner's queue, or another thread is handing over.
    pub(super) fn has_backlog(&self) -> bool {
        self.turn().is_none_or(|backlog| !backlog.ended.is_empty())
    }

    /// Offers the backlog, oldest first. Returns the number accepted.
    pub(super) fn offer(&self, backlog: &mut Backlog) -> usize {
        let mut taken = 0;
        while let Some(one) = backlog.ended.front() {
            let answer = match one {
                Ok(completion) => self.cq.write(completion),
                Err(error) => self.cq.write_err(error),
            };
            if let Err(err) = answer {
                if err != fi::FI_EAGAIN && !std::mem::replace(&mut backlog.refused, true) {
                    log::warn!(
                        target: "cq",
                        "completion queue of the peer provider refused an entry: {}; it is offered \
                         again",
                        errno::text(err)
                    );
                }
                return taken;
            }
            backlog.ended.pop_front();
            taken += 1;
        }
        // A receive is given back after its owner knows its result.
        for held in backlog.freed.drain(..) {
            held.free();
        }
        taken
    }
}

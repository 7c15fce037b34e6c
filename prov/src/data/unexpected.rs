// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory of messages that have met no receive: how much one peer and the process may hold, and what gives way.
//!
//! A message that arrives before its receive is copied out of the ring, and a peer decides how many do. Each such message is
//! charged to its sender and to the process until it is received or dropped. Beyond the limit (`FI_SCIF_UNEXPECTED_MAX`),
//! or where the allocator has no more, room is made in this order: messages of peers that have no connection any more, then
//! those of the peer that holds the most. Its connection is reset.
//!
//! Not about which receive a message meets (`matching`), nor about holding back honest senders (`progress`).

use std::sync::Arc;

use libfabric_sys as fi;
use scif::{ConnId, Reason};
use scif_ring::Count;

use super::matching::Arrived;
use super::peer::OWED_MAX;
use super::rx::RecordError;
use super::{Env, EpState};
use crate::log::{Subsys, info_about_peer, warn_about_peer};

/// Bytes charged for a message beside its payload: its description, and what the allocator adds.
pub(super) const ENTRY_BYTES: u64 = 256;
/// Bytes that every peer may have: one that has no more is not reset for the limit of the process.
const SHARE_MIN: u64 = 1 << 20;
/// Bytes of messages that an endpoint keeps of peers that died; beyond, those of the peer that died first go, all at once.
pub(super) const DEAD_MAX: u64 = 1 << 20;
/// Departed peers on record, from which on those whose messages are gone are struck off.
const PRUNE_AT: usize = 64;
/// Value of [`super::peer::Peer::owed`] for a peer of which nothing is read any more, because it is about to be reset.
const EXHAUSTED: usize = usize::MAX;
const _: () = assert!(EXHAUSTED > OWED_MAX);

/// Bytes charged in this process.
static PROCESS: Count = Count::new(0);

/// Bytes charged for one message; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    bytes: u64,
    peer: Arc<Count>,
    process: &'static Count,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.peer.sub(self.bytes);
        self.process.sub(self.bytes);
    }
}

/// Messages of a peer that has no connection any more.
#[derive(Debug)]
struct Departed {
    load: Arc<Count>,
    died: bool,
}

/// Limits and bookkeeping of one endpoint.
#[derive(Debug)]
pub(super) struct Limits {
    /// Bytes that the process keeps, and twice what one peer may have.
    pub(super) max: u64,
    pub(super) process: &'static Count,
    /// Peers without a connection, in the order of their departure.
    departed: Vec<Departed>,
    prune_at: usize,
    /// Some peer is [`EXHAUSTED`].
    exhausted: bool,
}

impl Limits {
    pub(super) fn new(max: usize) -> Limits {
        Limits {
            max: (max as u64).max(2 * SHARE_MIN),
            process: &PROCESS,
            departed: Vec::new(),
            prune_at: PRUNE_AT,
            exhausted: false,
        }
    }
}

impl EpState {
    /// Bytes of messages of `peer` that have met no receive.
    pub(super) fn unexpected_of(&self, peer: u32) -> u64 {
        let p = self.peers.get(peer as usize);
        p.and_then(|p| p.unexpected.as_ref()).map_or(0, |load| load.get())
    }

    /// Charges a message of `peer` that has met no receive, and allocates what it needs.
    ///
    /// # Errors
    /// [`RecordError::NoMemory`] when `peer` is the one whose connection has to go.
    #[cold]
    pub(super) fn keep_bytes<T>(
        &mut self,
        env: &mut Env<'_>,
        peer: u32,
        len: usize,
        mut allocate: impl FnMut() -> Option<T>,
    ) -> Result<(T, Charge), RecordError> {
        let bytes = len as u64 + ENTRY_BYTES;
        loop {
            let load = match self.peers.get_mut(peer as usize) {
                Some(p) => Arc::clone(p.unexpected.get_or_insert_default()),
                None => return Err(RecordError::Nonsense),
            };
            let held = load.get() + bytes;
            let limits = &self.limits;
            if held > limits.max / 2 {
                return Err(RecordError::NoMemory);
            }
            let short = held > SHARE_MIN && limits.process.get() + bytes > limits.max;
            if !short && let Some(place) = allocate() {
                load.add(bytes);
                limits.process.add(bytes);
                let charge = Charge {
                    bytes,
                    peer: load,
                    process: limits.process,
                };
                return Ok((place, charge));
            }
            if !self.make_room(env, peer) {
                return Err(RecordError::NoMemory);
            }
        }
    }

    /// Gives memory back for a message of `asking`. False: it is `asking` that holds the most.
    fn make_room(&mut self, env: &mut Env<'_>, asking: u32) -> bool {
        while !self.limits.departed.is_empty() {
            let Departed { load, .. } = self.limits.departed.remove(0);
            if load.get() > 0 {
                self.drop_unexpected(env, &load);
                return true;
            }
        }
        let heaviest = (0..self.peers.len())
            .filter_map(|peer| u32::try_from(peer).ok())
            .max_by_key(|peer| self.unexpected_of(*peer));
        let Some(heaviest) = heaviest.filter(|peer| *peer != asking && self.unexpected_of(*peer) > SHARE_MIN)
        else {
            return false;
        };
        self.exhaust(heaviest);
        self.drop_unexpected_of(env, heaviest);
        true
    }

    /// Reads nothing more of `peer`, whose connection is reset in the next look at the clock.
    #[cold]
    pub(super) fn exhaust(&mut self, peer: u32) {
        if let Some(p) = self.peers.get_mut(peer as usize) {
            p.owed = EXHAUSTED;
            self.limits.exhausted = true;
        }
    }

    /// Resets the connections of peers that [`EpState::exhaust`] has named.
    #[inline]
    pub(super) fn end_exhausted(&mut self, env: &mut Env<'_>) {
        if std::mem::take(&mut self.limits.exhausted) {
            self.end_all_exhausted(env);
        }
    }

    #[cold]
    fn end_all_exhausted(&mut self, env: &mut Env<'_>) {
        loop {
            let over = |peer: u32| self.peers.get(peer as usize).is_some_and(|p| p.owed == EXHAUSTED);
            let found = self.live.iter().chain(&self.resting).find(|l| over(l.peer));
            let Some((conn, peer)) = found.map(|l| (l.conn, l.peer)) else {
                return;
            };
            self.end_for_memory(env, conn, peer);
        }
    }

    /// Resets a connection over which more has come than can be kept.
    #[cold]
    pub(super) fn end_for_memory(&mut self, env: &mut Env<'_>, conn: ConnId, peer: u32) {
        let Some((id, held)) = self
            .peers
            .get(peer as usize)
            .map(|p| (p.id, self.unexpected_of(peer)))
        else {
            return;
        };
        self.drop_unexpected_of(env, peer);
        let pid = self.sock.conn(conn).map_or(0, |c| c.peer_pid());
        warn_about_peer(
            Subsys::EpData,
            format_args!(
                "process {pid} at {id} sends more than can be kept; {held} bytes of its messages had no receive, {} bytes those \
             of all peers, at most {} are kept (FI_SCIF_UNEXPECTED_MAX): connection reset with error {}",
                self.limits.process.get(),
                self.limits.max,
                fi::FI_ENOMEM
            ),
        );
        self.lose(env, conn, Reason::Exhausted);
    }

    /// Drops the messages of `peer` that have met no receive.
    fn drop_unexpected_of(&mut self, env: &mut Env<'_>, peer: u32) {
        if let Some(load) = self.peers.get(peer as usize).and_then(|p| p.unexpected.clone()) {
            self.drop_unexpected(env, &load);
        }
    }

    /// Drops the messages that `load` counts.
    fn drop_unexpected(&mut self, env: &mut Env<'_>, load: &Arc<Count>) {
        let is_of_it = |m: &Arrived| Arc::ptr_eq(&m.charge.peer, load);
        self.msg.unexpected.retain(|m| !is_of_it(m));
        self.tagged.unexpected.retain(|m| !is_of_it(m));
        if let Some(srx) = self.cfg.srx.and_then(|srx| env.srxs.get_mut(srx)) {
            srx.forget_messages(self.sock.id(), is_of_it);
        }
    }

    /// The last connection with `peer` is gone. What it left stays receivable, of the dead within a bound.
    pub(super) fn departed(&mut self, env: &mut Env<'_>, peer: u32, died: bool) {
        if self.conns_of(peer).next().is_some() {
            // Its next incarnation is connected already and shares the load: nothing of it may be dropped.
            return;
        }
        // Whoever has this number next is another one.
        let left = self
            .peers
            .get_mut(peer as usize)
            .and_then(|p| p.unexpected.take());
        let Some(load) = left.filter(|load| load.get() > 0) else {
            return;
        };
        if died && load.get() > DEAD_MAX {
            info_about_peer(
                Subsys::EpData,
                format_args!(
                    "{} bytes of messages that no receive has matched are dropped with their sender, peer {peer}, which died",
                    load.get()
                ),
            );
            return self.drop_unexpected(env, &load);
        }
        let departed = &mut self.limits.departed;
        if departed.len() >= self.limits.prune_at {
            departed.retain(|d| d.load.get() > 0);
            self.limits.prune_at = PRUNE_AT.max(2 * departed.len());
        }
        departed.push(Departed { load, died });
        let dead = |departed: &[Departed]| -> u64 {
            let dead = departed.iter().filter(|d| d.died);
            dead.map(|d| d.load.get()).sum()
        };
        while dead(&self.limits.departed) > DEAD_MAX
            && let Some(first) = self.limits.departed.iter().position(|d| d.died)
        {
            let first = self.limits.departed.remove(first);
            self.drop_unexpected(env, &first.load);
        }
    }
}

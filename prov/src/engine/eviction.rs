// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Accounting of unexpected messages, and their eviction beyond the limits (`unexpected`).

use std::sync::Arc;

use libfabric_sys as fi;
use scif::{ConnId, Reason};
use scif_ring::AtomicCounter;

use super::envelope::RecordError;
use super::matching::Arrived;
use super::peer_id::PeerId;
use super::unexpected::{Charge, DEAD_MAX, Departed, ENTRY_BYTES, EXHAUSTED, PRUNE_AT, SHARE_MIN};
use super::{Env, EpState};
use crate::base::log::{Subsys, info_about_peer, warn_about_peer};

impl EpState {
    /// Returns the bytes of unexpected messages of `peer`.
    pub(super) fn unexpected_of(&self, peer: PeerId) -> u64 {
        self.peers.at(peer).unexpected.as_ref().map_or(0, |load| load.get())
    }

    /// Charges an unexpected message of `peer` and allocates its memory.
    ///
    /// # Errors
    /// [`RecordError::NoMemory`] if the connection of `peer` itself must be reset.
    #[cold]
    pub(super) fn keep_bytes<T>(
        &mut self,
        env: &mut Env<'_>,
        peer: PeerId,
        len: usize,
        mut allocate: impl FnMut() -> Option<T>,
    ) -> Result<(T, Charge), RecordError> {
        let bytes = len as u64 + ENTRY_BYTES;
        loop {
            let load = Arc::clone(self.peers.at_mut(peer).unexpected.get_or_insert_default());
            let held = load.get() + bytes;
            let limits = &self.recv.limits;
            if held > limits.max / 2 {
                return Err(RecordError::NoMemory);
            }
            let short = held > SHARE_MIN && limits.process.get() + bytes > limits.max;
            if !short && let Some(place) = allocate() {
                load.add(bytes);
                limits.process.add(bytes);
                let charge = Charge { bytes, peer: load, process: limits.process };
                return Ok((place, charge));
            }
            if !self.make_room(env, peer) {
                return Err(RecordError::NoMemory);
            }
        }
    }

    /// Releases memory for a message of `asking`. Returns false if `asking` itself holds the most.
    fn make_room(&mut self, env: &mut Env<'_>, asking: PeerId) -> bool {
        while !self.recv.limits.departed.is_empty() {
            let Departed { load, .. } = self.recv.limits.departed.remove(0);
            if load.get() > 0 {
                self.drop_unexpected(env, &load);
                return true;
            }
        }
        let heaviest = self.peers.ids().max_by_key(|peer| self.unexpected_of(*peer));
        let Some(heaviest) =
            heaviest.filter(|peer| *peer != asking && self.unexpected_of(*peer) > SHARE_MIN)
        else {
            return false;
        };
        self.exhaust(heaviest);
        self.drop_unexpected_of(env, heaviest);
        true
    }

    /// Stops reading from `peer`. Its connection is reset at the next housekeeping.
    #[cold]
    pub(super) fn exhaust(&mut self, peer: PeerId) {
        self.peers.at_mut(peer).queue.reply_bytes = EXHAUSTED;
        self.recv.limits.exhausted = true;
    }

    /// Resets the connections of peers marked by [`EpState::exhaust`].
    #[inline]
    pub(super) fn end_exhausted(&mut self, env: &mut Env<'_>) {
        if std::mem::take(&mut self.recv.limits.exhausted) {
            self.end_all_exhausted(env);
        }
    }

    #[cold]
    fn end_all_exhausted(&mut self, env: &mut Env<'_>) {
        loop {
            let over = |peer: PeerId| self.peers.at(peer).queue.reply_bytes == EXHAUSTED;
            let found = self.links.iter().find(|l| over(l.peer));
            let Some((conn, peer)) = found.map(|l| (l.conn, l.peer)) else {
                return;
            };
            self.end_for_memory(env, conn, peer);
        }
    }

    /// Resets a connection whose messages exceed the memory limits.
    #[cold]
    pub(super) fn end_for_memory(&mut self, env: &mut Env<'_>, conn: ConnId, peer: PeerId) {
        let (id, held) = (self.peers.at(peer).id, self.unexpected_of(peer));
        self.drop_unexpected_of(env, peer);
        let pid = self.links.conn(conn).map_or(0, |c| c.peer_pid());
        warn_about_peer(
            Subsys::EpData,
            format_args!(
                "process {pid} at {id} sends more than can be kept; {held} bytes of its messages had no receive, {} bytes those \
             of all peers, at most {} are kept (FI_SCIF_UNEXPECTED_MAX): connection reset with error {}",
                self.recv.limits.process.get(),
                self.recv.limits.max,
                fi::FI_ENOMEM
            ),
        );
        self.lose(env, conn, Reason::Exhausted);
    }

    /// Drops the unexpected messages of `peer`.
    fn drop_unexpected_of(&mut self, env: &mut Env<'_>, peer: PeerId) {
        if let Some(load) = self.peers.at(peer).unexpected.clone() {
            self.drop_unexpected(env, &load);
        }
    }

    /// Drops the messages that are counted in `load`.
    fn drop_unexpected(&mut self, env: &mut Env<'_>, load: &Arc<AtomicCounter>) {
        let is_of_it = |m: &Arrived| Arc::ptr_eq(&m.charge.peer, load);
        self.recv.msg.unexpected.retain(|m| !is_of_it(m));
        self.recv.tagged.unexpected.retain(|m| !is_of_it(m));
        if let Some(srx) = self.cfg.srx.and_then(|srx| env.srxs.get_mut(srx)) {
            srx.forget_messages(self.links.sock.id(), is_of_it);
        }
    }

    /// Handles the end of the last connection with `peer`. Its messages stay receivable, up to a
    /// limit if the peer died.
    pub(super) fn departed(&mut self, env: &mut Env<'_>, peer: PeerId, died: bool) {
        if self.links.conns_of(peer).next().is_some() {
            // The next incarnation of the peer is connected already and shares the load. Nothing
            // may be dropped.
            return;
        }
        // The peer number may be reused by another peer.
        let left = self.peers.at_mut(peer).unexpected.take();
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
        let departed = &mut self.recv.limits.departed;
        if departed.len() >= self.recv.limits.prune_at {
            departed.retain(|d| d.load.get() > 0);
            self.recv.limits.prune_at = PRUNE_AT.max(2 * departed.len());
        }
        departed.push(Departed { load, died });
        let dead = |departed: &[Departed]| -> u64 {
            let dead = departed.iter().filter(|d| d.died);
            dead.map(|d| d.load.get()).sum()
        };
        while dead(&self.recv.limits.departed) > DEAD_MAX
            && let Some(first) = self.recv.limits.departed.iter().position(|d| d.died)
        {
            let first = self.recv.limits.departed.remove(first);
            self.drop_unexpected(env, &first.load);
        }
    }
}

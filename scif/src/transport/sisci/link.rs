// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Way to one other process: its data interrupt, by which frames leave in their order, and the
//! connection to its presence segment, which reports its end.
//!
//! Not about the connections that share it (`endpoint`).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

use scif_ring::AtomicFlag;

use super::abi::SciCode;
use super::callbacks::Listener;
use super::frame::{Frame, FrameContent, ProcessId};
use super::functions::Sci;
use super::library::{Library, RemoteInterrupt, RemoteSegment};
use crate::failure::Failure;
use crate::sys::errno::lock;

/// Owner of the links of a process.
pub(super) trait LinkOwner: Send + Sync {
    /// Ends the connections over lost links.
    fn lose(&self);

    /// Variant of [`LinkOwner::lose`] for a caller that holds locks of endpoints.
    fn lose_later(&self);

    /// Flushes a link, now and until nothing waits there.
    fn repeat(&self, link: &Arc<ProcessLink>);
}

/// Watch over the end of a process.
struct Watch {
    owner: Weak<dyn LinkOwner>,
    is_lost: AtomicFlag,
}

impl Listener for Watch {
    fn data(&self, _bytes: &[u8]) {}

    fn lost(&self) {
        self.is_lost.set(true);
        if let Some(owner) = self.owner.upgrade() {
            owner.lose();
        }
    }
}

/// Way to one other process.
pub(super) struct ProcessLink {
    peer: ProcessId,
    interrupt: RemoteInterrupt,
    watch: Arc<Watch>,
    /// Frames for which the queue of the peer had no space.
    waiting: Mutex<VecDeque<Vec<u8>>>,
    owner: Weak<dyn LinkOwner>,
    _presence: RemoteSegment,
}

impl std::fmt::Debug for ProcessLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.peer)
    }
}

impl ProcessLink {
    /// Connects to a process.
    pub(super) fn open(
        library: &Arc<Library>,
        owner: Weak<dyn LinkOwner>,
        peer: ProcessId,
        limit_ms: u32,
    ) -> Sci<Arc<ProcessLink>> {
        let is_lost = AtomicFlag::new(false);
        let watch = Arc::new(Watch { owner: Weak::clone(&owner), is_lost });
        let listener: Weak<Watch> = Arc::downgrade(&watch);
        let presence = library.connect(peer.node, peer.presence, Some(listener), limit_ms)?;
        let interrupt = library.connect_interrupt(peer.node, peer.interrupt, limit_ms)?;
        let waiting = Mutex::default();
        Ok(Arc::new(ProcessLink { peer, interrupt, watch, waiting, owner, _presence: presence }))
    }

    pub(super) fn peer(&self) -> ProcessId {
        self.peer
    }

    pub(super) fn is_lost(&self) -> bool {
        self.watch.is_lost.get()
    }

    /// Sends a frame behind all earlier ones. Without space in the queue of the peer it waits here.
    ///
    /// # Errors
    /// [`Failure::Reset`]: the process is gone.
    pub(super) fn post(self: &Arc<Self>, frame: Vec<u8>) -> Result<(), Failure> {
        let mut waiting = lock(&self.waiting);
        if self.is_lost() {
            return Err(Failure::Reset);
        }
        if waiting.is_empty() && self.trigger(&frame)? {
            return Ok(());
        }
        waiting.push_back(frame);
        if waiting.len() == 1 {
            if let Some(owner) = self.owner.upgrade() {
                owner.repeat(self);
            }
        }
        Ok(())
    }

    /// Refuses a request to connect, by its token.
    pub(super) fn refuse(self: &Arc<Self>, token: u64) {
        // A peer that is gone needs no refusal.
        let _ = self.post(Frame { token, number: 0, content: FrameContent::Close }.encode());
    }

    /// Sends frames that wait; returns whether some are left.
    pub(super) fn flush(&self) -> bool {
        let mut waiting = lock(&self.waiting);
        while let Some(frame) = waiting.front() {
            match self.trigger(frame) {
                Ok(true) => drop(waiting.pop_front()),
                Ok(false) => return true,
                Err(_) => waiting.clear(),
            }
        }
        false
    }

    /// Sends a frame; returns false without space.
    fn trigger(&self, frame: &[u8]) -> Result<bool, Failure> {
        match self.interrupt.trigger(frame) {
            Ok(()) => Ok(true),
            Err(SciCode::NOSPC) => Ok(false),
            Err(code) => {
                log::debug!(
                    "SCITriggerDataInterrupt to node {}: {code}; its connections are reset",
                    self.peer.node
                );
                self.watch.is_lost.set(true);
                if let Some(owner) = self.owner.upgrade() {
                    owner.lose_later();
                }
                Err(Failure::Reset)
            }
        }
    }
}

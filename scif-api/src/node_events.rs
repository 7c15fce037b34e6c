// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Handlers of the events of nodes, and the nodes that were reported to them.
//!
//! Not about the thread that lists the nodes (`kernel_mode`).

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};

use scif::logging::warn_about_call;
use scif::sys::fork;
use scif::sys::thread::contained;

use crate::lock::take;

/// Event of a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NodeEvent {
    /// `SCIF_NODE_ADDED`: it is online.
    Added(u16),
    /// `SCIF_NODE_REMOVED`: it is lost, or its last process has ended.
    Removed(u16),
}

type Handler = Arc<dyn Fn(NodeEvent) + Send + Sync>;

/// Handlers and known nodes.
#[derive(Default)]
pub(crate) struct NodeEvents {
    pub(crate) handlers: Mutex<Handlers>,
    /// Nodes that were reported to the handlers.
    pub(crate) known: Mutex<BTreeSet<u16>>,
}

/// Handlers of node events, of one process.
#[derive(Default)]
pub(crate) struct Handlers {
    /// Fork generation of the process.
    generation: u64,
    all: Vec<Handler>,
}

impl Handlers {
    /// Returns the handlers of this process. Handlers of a parent belong to the parent.
    pub(crate) fn here(&self) -> &[Handler] {
        if self.generation == fork::generation() { &self.all } else { &[] }
    }

    /// Adds a handler, and returns the ones of a parent.
    pub(crate) fn add(&mut self, handler: Handler) -> Vec<Handler> {
        let inherited = if self.generation == fork::generation() {
            Vec::new()
        } else {
            self.generation = fork::generation();
            std::mem::take(&mut self.all)
        };
        self.all.push(handler);
        inherited
    }
}

impl fmt::Debug for NodeEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeEvents").finish_non_exhaustive()
    }
}

impl NodeEvents {
    fn notify(&self, event: NodeEvent) {
        let handlers = take(&self.handlers).here().to_vec();
        for handler in handlers {
            if contained(|| handler(event)).is_none() {
                warn_about_call!(
                    "a handler of node events has panicked at {event:?}; other handlers and later \
                     events are not affected. Correct the handler"
                );
            }
        }
    }

    /// Reports that a node is about to be lost, so that handlers return its pages.
    pub(crate) fn loses(&self, node: u16) {
        if take(&self.known).remove(&node) {
            self.notify(NodeEvent::Removed(node));
        }
    }

    pub(crate) fn report_changes(&self, now: &BTreeSet<u16>) {
        let (added, removed): (Vec<u16>, Vec<u16>) = {
            let mut known = take(&self.known);
            let added = now.difference(&known).copied().collect();
            let removed = known.difference(now).copied().collect();
            known.clone_from(now);
            (added, removed)
        };
        for node in removed {
            self.notify(NodeEvent::Removed(node));
        }
        for node in added {
            self.notify(NodeEvent::Added(node));
        }
    }
}

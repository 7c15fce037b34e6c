// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The calls of `scif.h` as a transport of the engine's endpoints: a node and its ports.
//!
//! Not about the implementation of the calls ([`ScifCalls`]). No descriptor passes between nodes.
//! The rings of a connection lie in windows that the peer maps. Where that is refused, each side
//! has them in its own memory, and pushed records cross the stream. All other memory of a peer is
//! only accessed by operations that the peer itself executes.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::io::Errno;
use scif_ring::AtomicCounter;

use super::sender::Sender;
use crate::addr::network_hash;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::scif_calls::ScifCalls;
use crate::sys::fork;
use crate::transport::local::Local;
use crate::transport::soft::Soft;
use crate::transport::{Hold, Init, Transport};

/// State of a node that its ports over the calls share.
#[derive(Debug)]
pub(crate) struct Scif {
    pub(super) calls: Arc<dyn ScifCalls>,
    pub(super) node: u16,
    /// Transport between endpoints of this process.
    pub(super) near: Arc<Local>,
    /// Number of connect attempts in progress on threads.
    pub(super) attempts: Arc<AtomicCounter>,
    /// Thread that sends, while a port uses it.
    sender: Mutex<Weak<Sender>>,
    pub(super) host_hash: u32,
    /// Settings of the names of shared tables.
    config: Config,
}

/// Transport shared by the endpoints of a process on one node, also of several fabrics. Endpoints
/// of another copy of this library meet over the driver.
#[derive(Debug)]
struct Meeting {
    node: u16,
    host_hash: u32,
    /// Fork generation of the process: a forked child has none of its parent's endpoints.
    generation: u64,
    near: Weak<Local>,
}

static MEETINGS: Mutex<Vec<Meeting>> = Mutex::new(Vec::new());

fn near(node: u16, host_hash: u32) -> Arc<Local> {
    let generation = fork::generation();
    let mut meetings = MEETINGS.lock().unwrap_or_else(PoisonError::into_inner);
    meetings.retain(|at| at.generation == generation && at.near.strong_count() > 0);
    let known = meetings
        .iter()
        .find(|at| (at.node, at.host_hash) == (node, host_hash))
        .and_then(|at| at.near.upgrade());
    known.unwrap_or_else(|| {
        let near = Arc::new(Local::of(node, host_hash));
        meetings.push(Meeting { node, host_hash, generation, near: Arc::downgrade(&near) });
        near
    })
}

impl Scif {
    /// Joins the node of the calls.
    pub(crate) fn open(calls: Arc<dyn ScifCalls>, config: &Config) -> Result<Scif> {
        let failed =
            |failure: Failure| Error::Os { call: "scif_get_nodeIDs", errno: failure.errno() };
        let (online, node) = calls.nodes().map_err(failed)?;
        if online.is_empty() {
            return Err(Error::Os {
                call: "scif_get_nodeIDs, of a driver without a node",
                errno: Errno::NODEV,
            });
        }
        let host_hash = network_hash(config.domain.as_deref());
        Ok(Scif {
            calls,
            node,
            near: near(node, host_hash),
            attempts: Arc::new(AtomicCounter::new(0)),
            sender: Mutex::new(Weak::new()),
            host_hash,
            // No process accesses the memory of this one.
            config: Config { ptracer: false, ..config.clone() },
        })
    }

    /// Maps a shared table. The processes of a host share it without the calls, by the names of the
    /// transport `soft`.
    pub(super) fn table(
        &self,
        name: &str,
        len: usize,
        make: Option<Init<'_>>,
    ) -> Result<Box<dyn Hold>> {
        Arc::new(Soft::open(self.config.clone())?).shared_table(name, len, make)
    }

    /// Returns the thread that sends for all ports of the node.
    pub(super) fn sender(&self) -> Result<Arc<Sender>> {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = sender.upgrade() {
            return Ok(running);
        }
        let started = Sender::start()?;
        *sender = Arc::downgrade(&started);
        Ok(started)
    }

    /// Returns the number of this node, from the implementation.
    pub(crate) fn node(&self) -> u16 {
        self.node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoints_of_a_process_meet_where_their_nodes_are_one() {
        let one = near(3, 77);
        assert!(Arc::ptr_eq(&one, &near(3, 77)));
        assert!(!Arc::ptr_eq(&one, &near(4, 77)));
        assert!(!Arc::ptr_eq(&one, &near(3, 78)));
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! A node as one process sees it: its number and its transport.
//!
//! Not about other nodes. Cheap: one per fabric. Mirrors `scif_get_nodeIDs` of `scif.h`.

use std::sync::Arc;

use rustix::io::Errno;
use scif_ring::KEYTABLE_BYTES;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::export::Writers;
use crate::keys::SharedKeys;
use crate::scif_calls::ScifCalls;
use crate::sys::process;
use crate::transport::Transport;
use crate::transport::kernel::Device;
use crate::transport::local::Local;
use crate::transport::scif::Scif;
use crate::transport::sisci::Sisci;
use crate::transport::soft::Soft;

/// Transport of a node's connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TransportKind {
    /// Other processes of this host, without a driver.
    Soft,
    /// Endpoints of the same `Node` only: the test double.
    Local,
    /// All processes that the SCIF driver of this system reaches.
    Kernel,
    /// All processes that the calls of `scif.h` reach, over any implementation
    /// ([`Node::open_over`]).
    Scif,
    /// All processes that a SISCI library of this system reaches.
    Sisci,
    /// A working driver if one exists, otherwise `Soft`. [`Node::kind`] returns the choice.
    Auto,
}

/// The node of this process.
#[derive(Debug)]
pub struct Node {
    id: u16,
    kind: TransportKind,
    transport: Arc<dyn Transport>,
}

impl Node {
    /// Opens a node.
    ///
    /// # Errors
    /// [`crate::Error::Config`] for an invalid setting, or the error of opening the driver.
    pub fn open(config: Config, kind: TransportKind) -> Result<Arc<Node>> {
        config.warn();
        let soft = |config: Config| -> Result<(u16, TransportKind, Arc<dyn Transport>)> {
            let id = config.node;
            let transport = Arc::new(Soft::open(config)?);
            Ok((id, TransportKind::Soft, transport))
        };
        let driver = |config: &Config| -> Result<(u16, TransportKind, Arc<dyn Transport>)> {
            let transport = Arc::new(Scif::open(Arc::new(Device::find(config)?), config)?);
            Ok((transport.node(), TransportKind::Kernel, transport))
        };
        let sisci = |config: &Config| -> Result<(u16, TransportKind, Arc<dyn Transport>)> {
            let transport = Arc::new(Scif::open(Arc::new(Sisci::open(config)?), config)?);
            Ok((transport.node(), TransportKind::Sisci, transport))
        };
        let (id, kind, transport) = match kind {
            TransportKind::Soft => soft(config)?,
            TransportKind::Kernel => driver(&config)?,
            TransportKind::Sisci => sisci(&config)?,
            TransportKind::Auto => match driver(&config) {
                Ok(opened) => opened,
                Err(why) => {
                    log::debug!(
                        "SCIF driver not used: {why}. The transport is soft (shared memory)"
                    );
                    soft(config)?
                }
            },
            TransportKind::Local => {
                let transport: Arc<dyn Transport> = Arc::new(Local::open(&config)?);
                (config.node, kind, transport)
            }
            TransportKind::Scif => {
                return Err(Error::Os { call: "a node over no calls", errno: Errno::INVAL });
            }
        };
        Ok(Arc::new(Node { id, kind, transport }))
    }

    /// Opens a node over the calls of `scif.h`.
    ///
    /// # Errors
    /// No node is online, or the error of the call that lists them.
    pub fn open_over(calls: Arc<dyn ScifCalls>, config: &Config) -> Result<Arc<Node>> {
        let transport = Arc::new(Scif::open(calls, config)?);
        Ok(Arc::new(Node { id: transport.node(), kind: TransportKind::Scif, transport }))
    }

    /// Returns the number of the node.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Returns the transport of its connections.
    #[must_use]
    pub fn kind(&self) -> TransportKind {
        self.kind
    }

    /// Returns a value that is equal for two processes exactly if they reach each other's endpoints
    /// by node and port. Over a driver it is equal for all, since one driver's network cannot be
    /// distinguished from another's. Never 0.
    #[must_use]
    pub fn host_hash(&self) -> u32 {
        self.transport.host_hash()
    }

    /// Returns the settings that decide which processes this one can meet, for a line of the log.
    #[must_use]
    pub fn settings(&self) -> String {
        self.transport.settings()
    }

    /// Returns the method of copies between the memory of two processes of this node.
    ///
    /// # Errors
    /// The cause that prevents direct copies and the remedy, for a line of the log.
    pub fn copy_path(&self) -> std::result::Result<String, String> {
        match self.kind {
            TransportKind::Kernel => Err("the driver carries everything".to_owned()),
            TransportKind::Scif => Err("the calls of scif.h carry everything".to_owned()),
            TransportKind::Sisci => Err("the SISCI library carries everything".to_owned()),
            TransportKind::Local => Ok("in memory of this process".to_owned()),
            TransportKind::Soft | TransportKind::Auto => crate::denial::prospect(),
        }
    }

    /// Returns an empty key table for endpoints of this node.
    ///
    /// # Errors
    /// The memory cannot be allocated.
    pub fn key_table(&self) -> Result<Arc<SharedKeys>> {
        let shared = self.transport.share("scif:keys", KEYTABLE_BYTES, Writers::Owner)?;
        SharedKeys::new(shared)
    }

    /// Returns the number of the user of this process.
    #[must_use]
    pub fn user() -> u32 {
        process::uid()
    }

    pub(crate) fn transport(&self) -> &dyn Transport {
        &*self.transport
    }

    pub(crate) fn transport_arc(&self) -> Arc<dyn Transport> {
        Arc::clone(&self.transport)
    }
}

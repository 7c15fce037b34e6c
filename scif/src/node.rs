// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! A node as one process sees it: its number, its transport, and what was done to the process for it.
//!
//! Not about other nodes. Cheap: one per fabric. Mirrors `scif_get_nodeIDs` of `scif.h`.

use std::sync::{Arc, Mutex, PoisonError};

use crate::config::Config;
use crate::error::Result;
use crate::transport::Transport;
use crate::transport::kernel::Kernel;
use crate::transport::local::Local;
use crate::transport::soft::Soft;

/// What carries the connections of a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TransportKind {
    /// Other processes of this host, without a driver.
    Soft,
    /// Endpoints of this very `Node` only: the test double.
    Local,
    /// Whoever the SCIF driver of this system reaches.
    Kernel,
    /// The driver if there is one that works, else `Soft`. [`Node::kind`] tells which.
    Auto,
}

/// Things to tell the user, each once.
#[derive(Debug, Default)]
pub(crate) struct Notices(Mutex<Vec<String>>);

impl Notices {
    pub(crate) fn say(&self, what: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The node this process is on.
#[derive(Debug)]
pub struct Node {
    id: u16,
    kind: TransportKind,
    transport: Arc<dyn Transport>,
    notices: Arc<Notices>,
}

impl Node {
    /// Takes part in a node.
    ///
    /// # Errors
    /// [`crate::Error::Config`] for a setting that cannot be used, or what opening the driver said.
    pub fn open(config: Config, kind: TransportKind) -> Result<Arc<Node>> {
        let notices = Arc::new(Notices::default());
        for warning in &config.warnings {
            notices.say(warning.clone());
        }
        let soft = |config: Config| -> Result<(u16, TransportKind, Arc<dyn Transport>)> {
            let id = config.node;
            let transport = Arc::new(Soft::open(config, Arc::clone(&notices))?);
            Ok((id, TransportKind::Soft, transport))
        };
        let driver = |config: &Config| -> Result<(u16, TransportKind, Arc<dyn Transport>)> {
            let transport = Arc::new(Kernel::open(config)?);
            Ok((transport.node(), TransportKind::Kernel, transport))
        };
        let (id, kind, transport) = match kind {
            TransportKind::Soft => soft(config)?,
            TransportKind::Kernel => driver(&config)?,
            TransportKind::Auto => match driver(&config) {
                Ok(opened) => opened,
                Err(why) => {
                    log::debug!("no SCIF driver: {why}");
                    soft(config)?
                }
            },
            TransportKind::Local => {
                let transport: Arc<dyn Transport> = Arc::new(Local::open(&config)?);
                (config.node, kind, transport)
            }
        };
        Ok(Arc::new(Node {
            id,
            kind,
            transport,
            notices,
        }))
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.id
    }

    /// What carries its connections.
    #[must_use]
    pub fn kind(&self) -> TransportKind {
        self.kind
    }

    /// The same for two processes exactly if they reach each other's endpoints by node and port; over a driver the same for
    /// all, since nothing tells one driver's network from another's. Never 0.
    #[must_use]
    pub fn host_hash(&self) -> u32 {
        self.transport.host_hash()
    }

    /// What the user should know and has not been told: changes made to the process, settings not understood.
    pub fn notes(&self) -> Vec<String> {
        self.notices.take()
    }

    pub(crate) fn transport(&self) -> &dyn Transport {
        &*self.transport
    }

    pub(crate) fn transport_arc(&self) -> Arc<dyn Transport> {
        Arc::clone(&self.transport)
    }
}

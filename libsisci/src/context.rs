// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Membership of this process in its node: settings, names, threads, and the socket by which other
//! processes find the node.

use std::sync::{Arc, Mutex, OnceLock};

use rustix::io::Errno;
use scif::monitor::sisci::{ObjectFields, ObjectRecord, ObjectTable, SisciIdentity};
use scif::names::{Names, SocketFile};
use scif::sys::fork::{Maker, PrivateFd};
use scif::sys::{process, unix};

use crate::config::Settings;
use crate::error::{Outcome, SciError, fail};
use crate::fault::Faults;
use crate::lock::take;
use crate::node::{self, Kind, NodeId, PROCESSES_MAX};
use crate::poller::{Poller, Source};
use crate::transfers::TransferThread;
use crate::wire::{self, Deadline};

/// Number of connections that wait to be accepted at one object.
pub(crate) const BACKLOG: i32 = 128;

/// Membership of a node, from `SCIInitialize` to `SCITerminate`.
pub(crate) struct Context {
    pub(crate) settings: Settings,
    pub(crate) names: Names,
    /// Thread that greets connecting processes and watches connections.
    pub(crate) service: Arc<Poller>,
    /// Thread that calls functions of the program.
    pub(crate) callbacks: Arc<Poller>,
    /// Thread that executes transfers, started by the first queue.
    transfers: OnceLock<Arc<TransferThread>>,
    pub(crate) faults: Faults,
    /// Memory in which `scifctl` finds the objects of this process.
    shown: Option<Arc<ObjectTable>>,
    maker: Maker,
    uid: u32,
    presence: Mutex<Option<Arc<Presence>>>,
}

/// Socket of a process under its node's name. Its connections are closed at once.
struct Presence {
    socket: PrivateFd,
    file: Option<SocketFile>,
}

impl Source for Presence {
    fn ready(&self) {
        while wire::next_connection(unix::accept(&self.socket)).is_some() {}
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            file.remove();
        }
    }
}

/// Returns the description of this process for `scifctl`.
fn identity(settings: &Settings, names: &Names) -> SisciIdentity {
    let (dir, domain) = match names {
        Names::Abstract { domain } => (String::new(), domain),
        Names::Dir { dir, domain } => (dir.display().to_string(), domain),
    };
    let (node, adapters) = (settings.node.number(), settings.adapters);
    SisciIdentity { node, adapters, domain: domain.clone(), dir }
}

impl Context {
    /// Joins the node of the settings.
    ///
    /// # Errors
    /// Errors of the system when descriptors or threads are short.
    pub(crate) fn new(settings: Settings) -> Outcome<Arc<Context>> {
        settings.engine.warn();
        let uid = process::uid();
        let engine = &settings.engine;
        let names = Names::new(engine.runtime_dir.as_deref(), engine.domain.as_deref(), uid)
            .inspect_err(|error| log::warn!("SCIInitialize: {error}"))?;
        let context = Arc::new(Context {
            service: Poller::start("sisci-service")?,
            callbacks: Poller::start("sisci-callback")?,
            transfers: OnceLock::new(),
            faults: Faults::new(settings.faults.clone()),
            shown: ObjectTable::create(&identity(&settings, &names)),
            maker: Maker::here(),
            uid,
            presence: Mutex::new(None),
            names,
            settings,
        });
        context.join()?;
        Ok(context)
    }

    fn join(&self) -> Outcome<()> {
        for process in 0..PROCESSES_MAX {
            let socket = unix::socket()?;
            let name = node::name_of(self.settings.node, Kind::Process, process);
            match self.bind(&name, socket) {
                Ok((socket, file)) => {
                    let presence = Arc::new(Presence { socket, file });
                    self.service.add(&presence.socket, Arc::clone(&presence) as Arc<dyn Source>)?;
                    *take(&self.presence) = Some(presence);
                    return Ok(());
                }
                Err(failure) if failure.errno == Some(Errno::ADDRINUSE) => {}
                Err(failure) => return Err(failure),
            }
        }
        log::warn!(
            "node {}: {PROCESSES_MAX} processes, and no more can join it; SCI_ERR_NOSPC. Give \
             some of them another SISCI_NODE",
            self.settings.node.number()
        );
        fail(SciError::Nospc)
    }

    /// Publishes an object for `scifctl` until the record is dropped.
    pub(crate) fn publish(&self, fields: &ObjectFields) -> ObjectRecord {
        self.shown.as_ref().map(|table| table.publish(fields)).unwrap_or_default()
    }

    /// Binds a socket to a name and listens.
    ///
    /// # Errors
    /// `System` with `EADDRINUSE` if the name is taken.
    pub(crate) fn bind(
        &self,
        name: &str,
        socket: std::os::fd::OwnedFd,
    ) -> Outcome<(PrivateFd, Option<SocketFile>)> {
        let file = self.names.bind_named(&socket, name, BACKLOG)?;
        Ok((PrivateFd::new(socket), file))
    }

    /// Connects to a name.
    ///
    /// # Errors
    /// Errors of [`wire::connect`].
    pub(crate) fn connect(&self, name: &str, deadline: Deadline) -> Outcome<PrivateFd> {
        let address = self.names.named(name)?;
        wire::connect(&address, |uid| self.trusts(uid), deadline).map(PrivateFd::new)
    }

    /// Whether processes of a user may connect to this one.
    pub(crate) fn trusts(&self, uid: u32) -> bool {
        uid == self.uid || uid == 0 || self.settings.engine.allow_uids.contains(&uid)
    }

    /// Whether a process of a node exists.
    pub(crate) fn is_online(&self, node: NodeId) -> bool {
        node == self.settings.node
            || !self.is_lost(node.number())
                && (0..PROCESSES_MAX).any(|process| {
                    self.connect(&node::name_of(node, Kind::Process, process), wire::deadline(0))
                        .map_or_else(|failure| failure.code == SciError::Timeout, |_| true)
                })
    }

    /// Whether an injected fault separates this process from a node.
    pub(crate) fn is_lost(&self, node: u32) -> bool {
        NodeId::new(node).is_some_and(|node| self.faults.is_lost(self.settings.node, node))
    }

    /// Checks an adapter number.
    ///
    /// # Errors
    /// `IllegalAdapterno`, `NoSuchAdapterno`.
    pub(crate) fn check_adapter(&self, adapter: u32) -> Outcome<()> {
        node::check_adapter(adapter, self.settings.adapters)
    }

    /// Returns the thread that executes transfers.
    ///
    /// # Errors
    /// Errors of the system when descriptors or threads are short.
    pub(crate) fn transfers(&self) -> Outcome<&Arc<TransferThread>> {
        let _starting = take(&self.presence);
        if self.transfers.get().is_none() {
            let _ = self.transfers.set(TransferThread::start()?);
        }
        self.transfers.get().ok_or(SciError::System.into())
    }

    /// Whether this is a forked child of the process that joined.
    pub(crate) fn is_inherited(&self) -> bool {
        self.maker.is_ancestor()
    }

    /// Leaves the node, and ends the threads.
    pub(crate) fn leave(&self) {
        take(&self.presence).take();
        self.faults.stop();
        self.service.stop();
        self.callbacks.stop();
        if let Some(transfers) = self.transfers.get() {
            transfers.stop();
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Fabric, as shared by all objects opened on it, and its SCIF node.

use std::sync::{Arc, OnceLock};

use scif::monitor::ProcessIdentity;
use scif::{Config, Maker, Node, TransportKind};
use scif_api::Backend;
use scif_ring::counter::AtomicCounter;

use crate::base::errno::{self, Errno};
use crate::base::log::Subsys;
use crate::base::reason::warn_about_call;
use crate::base::{env, host};
use crate::net::NetDomain;

/// Part of a fabric that all objects opened on it hold.
#[derive(Debug)]
pub(crate) struct FabricShared {
    /// Interface version of the application, which determines the fields of its structures.
    pub(crate) api_version: u32,
    pub(crate) node: Arc<Node>,
    pub(crate) creator: Maker,
    /// Number of open domains.
    pub(crate) domains: AtomicCounter,
    /// Network to other hosts, once a passive endpoint uses one.
    pub(crate) net: OnceLock<Arc<NetDomain>>,
}

impl FabricShared {
    pub(crate) fn new(api_version: u32, node: Arc<Node>) -> Arc<FabricShared> {
        Arc::new(FabricShared {
            api_version,
            node,
            creator: Maker::here(),
            domains: AtomicCounter::new(0),
            net: OnceLock::new(),
        })
    }
}

/// Opens the SCIF node of this process, as set in the environment.
///
/// # Errors
/// Errors of the engine, as libfabric's numbers; the reason is logged.
pub(crate) fn open_node() -> Result<Arc<Node>, Errno> {
    let config = Config::from_env();
    let config = Config {
        ptracer: config.ptracer && env::env().ptracer,
        refuse_after_ms: env::env().connect_timeout_ns / 1_000_000,
        // Endpoints of a test connect only within this process.
        #[cfg(test)]
        domain: Some(format!("test-{}", std::process::id())),
        ..config
    };
    let window_rest_ns = env::env().mr_close_timeout_ns;
    let opened = match env::env().transport {
        TransportKind::Scif => open_over_calls(&Config { window_rest_ns, ..config }),
        TransportKind::Sisci => {
            Node::open(Config { window_rest_ns, ..config }, TransportKind::Sisci)
        }
        kind => Node::open(config, kind),
    };
    opened.map_err(|error| failed(&error))
}

/// Describes this process to readers of its published state, with the transport of `node`.
pub(crate) fn publish_process(node: &Node) {
    scif::monitor::publish_process(|| {
        let launcher = env::launcher();
        ProcessIdentity {
            rank: launcher.rank,
            size: launcher.size,
            libfabric: host::loaded_version(),
            provider: env!("CARGO_PKG_VERSION").to_owned(),
            launcher: launcher.name.to_owned(),
            job: launcher.job,
            transport: format!("{:?}", node.kind()).to_lowercase(),
        }
    });
}

/// Opens the node of the calls of `scif.h`.
fn open_over_calls(config: &Config) -> scif::Result<Arc<Node>> {
    let calls = Backend::new(config.clone())
        .map_err(|failure| scif::Error::Os { call: "scif_open", errno: failure.errno() })?;
    Node::open_over(Arc::new(calls), config)
}

fn failed(error: &scif::Error) -> Errno {
    warn_about_call(Subsys::Fabric, format_args!("cannot open the SCIF node: {error}"));
    errno::errno(error)
}

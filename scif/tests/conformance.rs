// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Conformance suite on every transport, with a check that no descriptor remains open.
//!
//! One test, so that no other code opens descriptors meanwhile.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test says what it expects and counts what it ran"
)]

use std::path::PathBuf;
use std::sync::Arc;

use scif::conformance::{self, Bed};
use scif::{Config, Node, TransportKind};

/// One node for all: only its endpoints can be reached.
struct LocalBed(Arc<Node>);

impl Bed for LocalBed {
    fn node(&self) -> scif::Result<Arc<Node>> {
        Ok(Arc::clone(&self.0))
    }

    fn foreign(&self) -> scif::Result<Arc<Node>> {
        Node::open(Config::default(), TransportKind::Local)
    }
}

/// A new node for each request.
struct SoftBed {
    config: Config,
    foreign: Config,
}

impl Bed for SoftBed {
    fn node(&self) -> scif::Result<Arc<Node>> {
        Node::open(self.config.clone(), TransportKind::Soft)
    }

    fn foreign(&self) -> scif::Result<Arc<Node>> {
        Node::open(self.foreign.clone(), TransportKind::Soft)
    }
}

fn open_descriptors() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    entries.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok()).collect()
}

fn check(name: &str, bed: &dyn Bed) {
    let before = open_descriptors().len();
    let (ran, failed) = conformance::run(bed);
    println!("{name}: {} cases ran, {} failed", ran.len(), failed.len());
    assert!(failed.is_empty(), "{name}: {failed:#?}");
    assert_eq!(ran.len(), 32, "a case was lost or not counted: {ran:#?}");
    let after = open_descriptors();
    assert_eq!(after.len(), before, "{name} left descriptors open: {after:?}");
}

#[test]
fn every_transport_conforms() {
    let domain = |suffix: &str| Some(format!("suite-{}{suffix}", std::process::id()));
    let local = Node::open(Config::default(), TransportKind::Local).unwrap();
    check("local", &LocalBed(local));
    let config = Config { node: 1, domain: domain(""), ..Config::default() };
    let foreign = Config { domain: domain("-other"), ..config.clone() };
    check("soft", &SoftBed { config: config.clone(), foreign });

    let dir = std::env::temp_dir().join(format!("scif-suite-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let in_dir = Config { runtime_dir: Some(dir.clone()), ..config.clone() };
    check("soft in a directory", &SoftBed { config: in_dir, foreign: config });
    let left: Vec<_> =
        std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"], "socket files were left behind");
    std::fs::remove_dir_all(&dir).unwrap();
    println!(
        "kernel: not by this suite; over a driver or its stand-in libscif's suite runs, and the \
         provider's"
    );
}

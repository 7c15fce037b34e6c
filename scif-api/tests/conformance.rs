// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Cases of the conformance suite about sleep, on the provider's transport over the calls of
//! `scif.h`.
//!
//! A program of its own: forked children of other tests would share its endpoints.
#![expect(clippy::unwrap_used, reason = "a test says what it expects")]

use std::sync::Arc;

use scif::conformance::{self, Bed};
use scif::{Carrier, Config, Node};
use scif_api::Backend;
use scif_ring::AtomicCounter;

const CASES: [&str; 4] = [
    "records of later connections wake",
    "ends wake",
    "no wake-up is lost",
    "no first record is lost",
];

/// Nodes over the calls. Endpoints of different ones do not meet inside this process.
struct CallsBed(AtomicCounter);

impl CallsBed {
    fn open(&self, domain: &str) -> scif::Result<Arc<Node>> {
        let config = |suffix: u64| Config {
            carrier: Carrier::Soft,
            domain: Some(format!("{domain}-{}-{suffix}", std::process::id())),
            ..Config::default()
        };
        let backend = Backend::new(config(0)).unwrap();
        Node::open_over(Arc::new(backend), &config(1 + self.0.add(1)))
    }
}

impl Bed for CallsBed {
    fn node(&self) -> scif::Result<Arc<Node>> {
        self.open("bed")
    }

    fn foreign(&self) -> scif::Result<Arc<Node>> {
        self.open("foreign")
    }
}

#[test]
fn no_wake_up_over_the_calls_is_lost() {
    let bed = CallsBed(AtomicCounter::new(0));
    let cases: Vec<_> = conformance::cases().filter(|case| CASES.contains(&case.name)).collect();
    assert_eq!(cases.len(), CASES.len());
    for case in cases {
        let failed = (case.run)(&bed).err().map(|error| error.0);
        assert_eq!(failed, None, "{}", case.name);
    }
}

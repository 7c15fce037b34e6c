// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Requirements on every transport, as cases that run on any of them.
//!
//! Not about properties of a single transport, which have tests of their own. A case creates its
//! own endpoints on the nodes of a [`Bed`] and leaves nothing behind. A runner prints the number of
//! cases that ran, and fails if none did.

mod ends;
mod links;
mod sharing;
mod sleep;

use std::sync::Arc;
use std::time::{Duration, Instant};

use scif_ring::Record;

use crate::{ConnId, Endpoint, Exports, LinkEvent, Node, PortId, Reason};

/// Environment of the suite.
pub trait Bed: Sync {
    /// Returns a node; endpoints of all nodes from this call reach each other.
    ///
    /// # Errors
    /// As [`Node::open`].
    fn node(&self) -> crate::Result<Arc<Node>>;

    /// Returns a node whose endpoints do not reach endpoints of the others.
    ///
    /// # Errors
    /// As [`Node::open`].
    fn stranger(&self) -> crate::Result<Arc<Node>>;
}

/// Reason for which a case failed.
#[derive(Debug)]
pub struct Failure(pub String);

impl<E: std::fmt::Display> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure(error.to_string())
    }
}

/// Result of a case.
pub type Outcome = Result<(), Failure>;

/// One requirement on every transport.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Short description.
    pub name: &'static str,
    /// Function that checks it.
    pub run: fn(&dyn Bed) -> Outcome,
}

/// Returns all cases.
pub fn cases() -> impl Iterator<Item = Case> {
    [links::CASES, ends::CASES, sharing::CASES, sleep::CASES]
        .into_iter()
        .flatten()
        .copied()
}

/// Runs every case; returns the names of all cases that ran, and descriptions of failures.
pub fn run(bed: &dyn Bed) -> (Vec<&'static str>, Vec<String>) {
    let (mut ran, mut failed) = (Vec::new(), Vec::new());
    for case in cases() {
        ran.push(case.name);
        if let Err(Failure(why)) = (case.run)(bed) {
            failed.push(format!("{}: {why}", case.name));
        }
    }
    (ran, failed)
}

/// Fails the case unless the condition holds.
macro_rules! ensure {
    ($condition:expr $(,)?) => {
        if !$condition {
            return Err(crate::conformance::Failure(format!("line {}: {}", line!(), stringify!($condition))));
        }
    };
    ($condition:expr, $($why:tt)+) => {
        if !$condition {
            return Err(crate::conformance::Failure(format!("line {}: {}", line!(), format_args!($($why)+))));
        }
    };
}
use ensure;

/// Maximum time of any wait; not a measurement.
const PATIENCE: Duration = Duration::from_secs(30);

/// Repeats a query until it returns a result.
fn until<T>(what: &str, mut ask: impl FnMut() -> Result<Option<T>, Failure>) -> Result<T, Failure> {
    let begin = Instant::now();
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if begin.elapsed() > PATIENCE {
            return Err(Failure(format!("waited in vain for {what}")));
        }
        std::thread::yield_now();
    }
}

fn events(endpoint: &mut Endpoint) -> Vec<LinkEvent> {
    let mut out = Vec::new();
    endpoint.poll_links(&mut out);
    out
}

fn bind(node: &Arc<Node>) -> crate::Result<Endpoint> {
    Endpoint::bind(node, 0, Exports::default())
}

fn accepted(endpoint: &mut Endpoint) -> Result<(ConnId, PortId), Failure> {
    until("a connection to accept", || {
        Ok(events(endpoint).into_iter().find_map(|event| match event {
            LinkEvent::Accepted(id, from) => Some((id, from)),
            LinkEvent::Connected(_) | LinkEvent::Closed(..) => None,
        }))
    })
}

fn connected(endpoint: &mut Endpoint, id: ConnId) -> Outcome {
    until("an answer", || {
        Ok(events(endpoint).contains(&LinkEvent::Connected(id)).then_some(()))
    })
}

fn closed(endpoint: &mut Endpoint, id: ConnId) -> Result<Reason, Failure> {
    until("the end of a connection", || {
        Ok(events(endpoint).into_iter().find_map(|event| match event {
            LinkEvent::Closed(which, reason) if which == id => Some(reason),
            _ => None,
        }))
    })
}

/// Two endpoints and the connection between them; `a` is the opener.
struct Pair {
    a: Endpoint,
    b: Endpoint,
    ab: ConnId,
    ba: ConnId,
}

fn pair(bed: &dyn Bed) -> Result<Pair, Failure> {
    pair_with(bed, Exports::default())
}

/// Returns a pair whose endpoint `b` exports `exports`.
fn pair_with(bed: &dyn Bed, exports: Exports) -> Result<Pair, Failure> {
    let mut a = bind(&bed.node()?)?;
    let mut b = Endpoint::bind(&bed.node()?, 0, exports)?;
    let ab = a.connect(b.id())?;
    let (ba, from) = accepted(&mut b)?;
    ensure!(from == a.id());
    connected(&mut a, ab)?;
    Ok(Pair { a, b, ab, ba })
}

fn conn(endpoint: &mut Endpoint, id: ConnId) -> Result<&mut crate::Connection, Failure> {
    endpoint
        .conn(id)
        .ok_or_else(|| Failure("no such connection".to_owned()))
}

/// Publishes a record and notifies the peer.
fn say(endpoint: &mut Endpoint, id: ConnId, kind: u8, head: &[u8]) -> Outcome {
    let connection = conn(endpoint, id)?;
    connection
        .tx()
        .push_head(kind, head)
        .map_err(|e| Failure(format!("push: {e:?}")))?;
    connection.notify();
    Ok(())
}

/// Takes the next record, if any.
fn listen(endpoint: &mut Endpoint, id: ConnId) -> Result<Option<Record>, Failure> {
    let rx = conn(endpoint, id)?.rx();
    let record = rx.peek().map_err(|e| Failure(format!("peek: {e:?}")))?;
    if record.is_some() {
        rx.advance();
    }
    Ok(record)
}

/// Waits for a record of `kind` with this head.
fn hear(endpoint: &mut Endpoint, id: ConnId, kind: u8, head: &[u8]) -> Outcome {
    let record = until("a record", || listen(endpoint, id))?;
    ensure!(record.kind == kind && record.head() == head, "heard {record:?}");
    Ok(())
}

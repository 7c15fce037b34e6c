// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Environment of the cases, and the steps that several of them take.

use std::sync::Arc;
use std::time::{Duration, Instant};

use scif_ring::Record;

use crate::{ConnId, Endpoint, Error, Exports, LinkEvent, Node, PortId, Reason};

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
    fn foreign(&self) -> crate::Result<Arc<Node>>;
}

/// Reason for which a case failed.
#[derive(Debug)]
pub struct CaseError(pub String);

impl<E: std::fmt::Display> From<E> for CaseError {
    fn from(error: E) -> CaseError {
        CaseError(error.to_string())
    }
}

/// Result of a case.
pub type CaseResult = Result<(), CaseError>;

/// One requirement on every transport.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Short description.
    pub name: &'static str,
    /// Function that checks it.
    pub run: fn(&dyn Bed) -> CaseResult,
}

/// Fails the case unless the condition holds.
macro_rules! ensure {
    ($condition:expr $(,)?) => {
        if !$condition {
            let why = format!("line {}: {}", line!(), stringify!($condition));
            return Err(crate::conformance::bed::CaseError(why));
        }
    };
    ($condition:expr, $($why:tt)+) => {
        if !$condition {
            let why = format!("line {}: {}", line!(), format_args!($($why)+));
            return Err(crate::conformance::bed::CaseError(why));
        }
    };
}
pub(super) use ensure;

/// Maximum time of any wait; not a measurement.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Repeats a query until it returns a result.
pub(super) fn until<T>(
    awaited: &str,
    mut ask: impl FnMut() -> Result<Option<T>, CaseError>,
) -> Result<T, CaseError> {
    let begin = Instant::now();
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if begin.elapsed() > PATIENCE {
            return Err(CaseError(format!("waited in vain for {awaited}")));
        }
        std::thread::yield_now();
    }
}

pub(super) fn events(endpoint: &mut Endpoint) -> Vec<LinkEvent> {
    let mut out = Vec::new();
    endpoint.poll_links(&mut out);
    out
}

pub(super) fn bind(node: &Arc<Node>) -> crate::Result<Endpoint> {
    Endpoint::bind(node, 0, Exports::default())
}

/// Opens a connection, as often as its peer cannot accept yet.
pub(super) fn connect(endpoint: &mut Endpoint, dst: PortId) -> Result<ConnId, CaseError> {
    until("room in the backlog", || match endpoint.connect(dst) {
        Ok(id) => Ok(Some(id)),
        Err(Error::Again) => Ok(None),
        Err(error) => Err(error.into()),
    })
}

pub(super) fn accepted(endpoint: &mut Endpoint) -> Result<(ConnId, PortId), CaseError> {
    until("a connection to accept", || {
        Ok(events(endpoint).into_iter().find_map(|event| match event {
            LinkEvent::Accepted(id, from) => Some((id, from)),
            LinkEvent::Connected(_) | LinkEvent::Closed(..) => None,
        }))
    })
}

pub(super) fn connected(endpoint: &mut Endpoint, id: ConnId) -> CaseResult {
    until("an answer", || Ok(events(endpoint).contains(&LinkEvent::Connected(id)).then_some(())))
}

pub(super) fn closed(endpoint: &mut Endpoint, id: ConnId) -> Result<Reason, CaseError> {
    until("the end of a connection", || {
        Ok(events(endpoint).into_iter().find_map(|event| match event {
            LinkEvent::Closed(which, reason) if which == id => Some(reason),
            _ => None,
        }))
    })
}

/// Two endpoints and the connection between them; `a` is the opener.
pub(super) struct Pair {
    pub(super) a: Endpoint,
    pub(super) b: Endpoint,
    pub(super) ab: ConnId,
    pub(super) ba: ConnId,
}

pub(super) fn pair(bed: &dyn Bed) -> Result<Pair, CaseError> {
    pair_with(bed, Exports::default())
}

/// Returns a pair whose endpoint `b` exports `exports`.
pub(super) fn pair_with(bed: &dyn Bed, exports: Exports) -> Result<Pair, CaseError> {
    let mut a = bind(&bed.node()?)?;
    let mut b = Endpoint::bind(&bed.node()?, 0, exports)?;
    let ab = connect(&mut a, b.id())?;
    let (ba, from) = accepted(&mut b)?;
    ensure!(from == a.id());
    connected(&mut a, ab)?;
    Ok(Pair { a, b, ab, ba })
}

pub(super) fn conn(
    endpoint: &mut Endpoint,
    id: ConnId,
) -> Result<&mut crate::Connection, CaseError> {
    endpoint.conn(id).ok_or_else(|| CaseError("no such connection".to_owned()))
}

/// Publishes a record and notifies the peer.
pub(super) fn send_record(
    endpoint: &mut Endpoint,
    id: ConnId,
    kind: u8,
    head: &[u8],
) -> CaseResult {
    let connection = conn(endpoint, id)?;
    connection.tx().push_head(kind, head).map_err(|e| CaseError(format!("push: {e:?}")))?;
    connection.notify();
    Ok(())
}

/// Takes the next record, if any.
pub(super) fn listen(endpoint: &mut Endpoint, id: ConnId) -> Result<Option<Record>, CaseError> {
    let rx = conn(endpoint, id)?.rx();
    let record = rx.peek().map_err(|e| CaseError(format!("peek: {e:?}")))?;
    if record.is_some() {
        rx.advance();
    }
    Ok(record)
}

/// Waits for a record of `kind` with this head.
pub(super) fn receive_record(
    endpoint: &mut Endpoint,
    id: ConnId,
    kind: u8,
    head: &[u8],
) -> CaseResult {
    let record = until("a record", || listen(endpoint, id))?;
    ensure!(record.kind == kind && record.head() == head, "heard {record:?}");
    Ok(())
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Connection of a connected endpoint (`FI_EP_MSG`): its establishment and its end.
//!
//! The caller connects to the port of the passive endpoint and sends a request there: a random
//! number and data of the application. The acceptor opens a second connection, from its own port
//! directly to the caller, and begins it with that number. This connection carries the messages,
//! and the caller accepts no other. A refusal returns over the first connection.
//!
//! Not here: the passive side (`pep`), and the data path once the endpoint is connected. It is the
//! one of every endpoint, with exactly one peer.
//!
//! Semantics: fi_cm(3), fi_eq(3).

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use libfabric_sys as fi;
use scif::{CloseHow, ConnId, Connection, Error, PortId, Reason};

use super::conn_request::ConnRequest;
use super::peer_id::{ANY, PeerId};
use super::wire::{self, Head, Words};
use super::{Env, EpState, Errno, split};
use crate::base::attr::CM_DATA_SIZE;
use crate::base::log::Subsys;
use crate::base::{entry, errno};
use crate::domain::DomainState;
use crate::state::eq_queue::{EqError, cm_entry};

/// State of the connection of a connected endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// The passive endpoint has the request, or will have it.
    Calling,
    /// The connection to the caller is being made.
    Answering,
    Up,
    Down,
}

/// Connection management of one endpoint.
#[derive(Debug)]
pub(crate) struct Cm {
    state: State,
    /// Number of the request that an acceptance answers.
    number: u64,
    /// Port of the passive endpoint, or of the caller.
    to: PortId,
    /// Connection that carries the request.
    request: Option<ConnId>,
    /// Connections of other endpoints that have not named a request yet.
    unnamed: Vec<ConnId>,
    /// Data of the application, until it is sent.
    data: Vec<u8>,
    /// Request that an acceptance answers, until the connection is open. A drop refuses it.
    call: Option<ConnRequest>,
    /// Peer number of the other side, once it is known.
    peer: PeerId,
    /// Time in nanoseconds of the first attempt to connect that was not answered.
    unanswered_since_ns: Option<u64>,
}

/// Content of a connection management record.
#[derive(Debug)]
pub(crate) struct Said {
    pub kind: u8,
    pub number: u64,
    pub data: Vec<u8>,
}

/// Sends record `kind` for request `number` over a new connection, whose ring has space.
pub(crate) fn say(conn: &mut Connection, kind: u8, number: u64, data: &[u8]) -> bool {
    let head = Head::new().word(number);
    let said = conn.tx().push_slice(kind, head.as_slice(), data).is_ok();
    conn.notify();
    said
}

/// Returns the next connection management record. Any other record is an error.
pub(crate) fn hear(conn: &mut Connection) -> Result<Option<Said>, ()> {
    let Some(record) = conn.rx().peek().map_err(|_| ())? else {
        return Ok(None);
    };
    if record.kind & 0xf0 != wire::CM || record.body.len() > CM_DATA_SIZE {
        return Err(());
    }
    let mut data = vec![0; record.body.len()];
    record.body.copy_to_slice(&mut data);
    let said =
        Said { kind: record.kind, number: Words::new(&record.head, record.head_len).word(), data };
    conn.rx().advance();
    Ok(Some(said))
}

/// Sends a connection request to the passive endpoint at `to`.
pub(crate) fn connect(st: &mut DomainState, ep: u32, to: PortId, data: &[u8]) -> Result<(), Errno> {
    let number = RandomState::new().build_hasher().finish() & !SENT;
    begin(st, ep, State::Calling, (to, number), None, data)
}

/// Answers a request. The caller learns of the result once the connection to it is open, or has
/// failed.
pub(crate) fn accept(
    st: &mut DomainState,
    ep: u32,
    call: ConnRequest,
    data: &[u8],
) -> Result<(), Errno> {
    let request = (call.from, call.number);
    begin(st, ep, State::Answering, request, Some(call), data)
}

fn begin(
    st: &mut DomainState,
    ep: u32,
    state: State,
    (to, number): (PortId, u64),
    call: Option<ConnRequest>,
    data: &[u8],
) -> Result<(), Errno> {
    let (e, mut env) = split(st, ep)?;
    let cm = e.cm.as_mut().ok_or(fi::FI_ENOSYS)?;
    match cm.state {
        State::Idle => {}
        State::Calling | State::Answering => return Err(fi::FI_EALREADY),
        State::Up => return Err(fi::FI_EISCONN),
        State::Down => {
            let call = if call.is_some() { "fi_accept" } else { "fi_connect" };
            let what =
                format_args!("{call} of an endpoint whose connection is over: it needs a new one");
            return entry::refused(Subsys::EpCtrl, what, fi::FI_EOPBADSTATE);
        }
    }
    (cm.state, cm.to, cm.number, cm.data) = (state, to, number, data.to_vec());
    cm.call = call;
    e.cm_step(&mut env);
    Ok(())
}

/// Ends the connection of an endpoint. Data that the peer has not sent yet never arrives.
pub(crate) fn shutdown(st: &mut DomainState, ep: u32) -> Result<(), Errno> {
    let (e, mut env) = split(st, ep)?;
    let state = e.cm.as_ref().ok_or(fi::FI_ENOSYS)?.state;
    match state {
        State::Idle => return Err(fi::FI_ENOTCONN),
        State::Down => return Ok(()),
        State::Calling | State::Answering | State::Up => {}
    }
    e.drain_before_close(&mut env);
    e.cm_hang_up(&mut env);
    Ok(())
}

/// Polls for events of the connection only, as a read of the event queue does.
///
/// Returns true if the next poll is due soon, since no notification will come.
pub(crate) fn links(st: &mut DomainState, ep: u32) -> bool {
    let Ok((e, mut env)) = split(st, ep) else {
        return false;
    };
    if e.draws_from_another(&env) {
        e.look_for_events(&mut env);
    } else {
        e.look_at_links(&mut env);
    }
    // A thread may sleep on receives that the end of the connection fails.
    e.cm_step(&mut env);
    e.cm.as_ref().is_some_and(|cm| match cm.state {
        State::Calling => cm.request.is_none() && !cm.data_sent(),
        State::Answering => cm.peer == ANY,
        State::Idle | State::Up | State::Down => false,
    })
}

/// Fails the receives that were posted after the end of the connection, before a thread sleeps on
/// their queue.
pub(crate) fn settle(st: &mut DomainState, ep: u32) {
    if let Ok((e, mut env)) = split(st, ep) {
        e.cm_step(&mut env);
    }
}

/// Returns the port of the peer of a connected endpoint.
pub(crate) fn peer(st: &DomainState, ep: u32) -> Result<PortId, Errno> {
    let cm = st.eps.get(ep).and_then(|e| e.cm.as_ref()).ok_or(fi::FI_ENOSYS)?;
    match cm.state {
        State::Up => Ok(cm.to),
        State::Idle | State::Calling | State::Answering | State::Down => Err(fi::FI_ENOTCONN),
    }
}

impl Cm {
    pub(crate) fn new() -> Cm {
        Cm {
            state: State::Idle,
            number: 0,
            to: PortId { node: 0, port: 0 },
            request: None,
            unnamed: Vec::new(),
            data: Vec::new(),
            call: None,
            peer: ANY,
            unanswered_since_ns: None,
        }
    }

    /// Whether the connection has ended, or will never exist.
    pub(super) fn is_down(&self) -> bool {
        self.state == State::Down
    }

    /// Whether an attempt to connect that failed with `error` is repeated. An attempt that is never
    /// answered, as over a driver, is given up `limit` nanoseconds after its first such error.
    fn repeats(&mut self, error: &Error, now: u64, limit: u64) -> bool {
        match error {
            Error::Again => true,
            Error::Unanswered(_) => {
                let since = *self.unanswered_since_ns.get_or_insert(now);
                now.saturating_sub(since) < limit
            }
            _ => false,
        }
    }

    /// Whether an unnamed connection exists. Its first record may name the request, so it must wake
    /// waiting threads.
    pub(super) fn is_told_more(&self) -> bool {
        !self.unnamed.is_empty()
    }
}

impl EpState {
    /// Returns the only peer of a connected endpoint, whatever address an operation names.
    #[cold]
    pub(crate) fn connected_peer(&self) -> Result<PeerId, Errno> {
        let cm = self.cm.as_ref().ok_or(fi::FI_ENOAV)?;
        match cm.state {
            State::Idle | State::Calling => Err(fi::FI_ENOTCONN),
            State::Answering if cm.peer == ANY => Err(fi::FI_ENOTCONN),
            State::Answering | State::Up => Ok(cm.peer),
            State::Down => Err(fi::FI_ESHUTDOWN),
        }
    }

    /// Advances a connection that is not up yet, and flushes the receives of one that has ended.
    pub(crate) fn cm_step(&mut self, env: &mut Env<'_>) {
        let Some(cm) = &self.cm else { return };
        match cm.state {
            State::Calling if cm.request.is_none() && !cm.data_sent() => self.call(env),
            State::Calling => self.look_for_answer(),
            State::Answering if cm.peer == ANY => self.open_line(env),
            State::Down => self.flush_receives(env, fi::FI_ECANCELED),
            State::Idle | State::Answering | State::Up => {}
        }
    }

    /// Connects to the passive endpoint and sends the request.
    fn call(&mut self, env: &mut Env<'_>) {
        let Some(cm) = self.cm.as_mut() else { return };
        match self.links.sock.connect(cm.to) {
            Ok(id) => {
                let data = std::mem::take(&mut cm.data);
                cm.request = Some(id);
                cm.number |= SENT;
                if let Some(conn) = self.links.conn(id) {
                    say(conn, wire::CM_REQUEST, cm.number, &data);
                }
            }
            Err(error) => self.cm_not_connected(env, &error),
        }
    }

    /// Opens the connection for messages to the caller.
    fn open_line(&mut self, env: &mut Env<'_>) {
        let Some(cm) = self.cm.as_mut() else { return };
        let (to, number) = (cm.to, cm.number);
        match self.links.sock.connect(to) {
            Ok(id) => {
                let data = std::mem::take(&mut cm.data);
                if let Some(conn) = self.links.conn(id) {
                    say(conn, wire::CM_ACCEPT, number, &data);
                }
                self.settle_on(id, to);
                // Reported before the caller learns that it is connected: an event of its next
                // operation must not precede this one.
                self.cm_up(&[]);
                if let Some(call) = self.cm.as_mut().and_then(|cm| cm.call.take()) {
                    call.taken();
                }
            }
            Err(error) => self.cm_not_connected(env, &error),
        }
    }

    /// Handles a failed attempt to connect to the other side.
    #[cold]
    fn cm_not_connected(&mut self, env: &mut Env<'_>, error: &Error) {
        let Some(cm) = &mut self.cm else { return };
        if !cm.repeats(error, scif::now_ns(), crate::base::env::env().connect_timeout_ns) {
            self.cm_unreachable(error);
            self.cm_failed(env, errno::errno(error), Vec::new());
        }
    }

    /// Logs, once for each cause, that the other side of a connection cannot be reached.
    #[cold]
    fn cm_unreachable(&self, error: &Error) {
        match error {
            Error::Refused(id) => self.nobody_listens(*id, None),
            error => {
                let to = self.cm.as_ref().map(|cm| cm.to).unwrap_or_default();
                crate::base::log::connect_failed(to, error, errno::errno(error));
            }
        }
    }

    /// Makes `id` the connection for messages.
    fn settle_on(&mut self, id: ConnId, port: PortId) {
        let peer = self.peer_at(port);
        self.links.add(id, peer);
        self.peers.at_mut(peer).tx = Some(id);
        if let Some(cm) = &mut self.cm {
            cm.peer = peer;
        }
        self.note_access(id, peer);
    }

    /// Handles a connection to this connected endpoint. The one that names our request is the peer.
    pub(crate) fn cm_accepted(&mut self, conn: ConnId) {
        match &mut self.cm {
            Some(cm) if cm.state == State::Calling => cm.unnamed.push(conn),
            _ => return self.links.sock.close_conn(conn, CloseHow::Reset),
        }
        // The record that names the request may come a moment later, and must then wake waiting
        // threads.
        self.links.sock.arm();
        self.look_for_answer();
        // Silent connections must not keep out the one that answers.
        if let Some(cm) = self.cm.as_mut().filter(|cm| cm.unnamed.len() > MOST_UNNAMED) {
            let longest = cm.unnamed.remove(0);
            self.links.sock.close_conn(longest, CloseHow::Reset);
        }
    }

    /// Reads the first records of unnamed connections, and takes the one that answers the request.
    fn look_for_answer(&mut self) {
        let Some(cm) = &mut self.cm else { return };
        let number = cm.number;
        for id in std::mem::take(&mut cm.unnamed) {
            let heard = match self.links.conn(id) {
                Some(conn) => hear(conn).map(|said| (said, conn.peer())),
                None => continue,
            };
            let calling = self.cm.as_ref().is_some_and(|cm| cm.state == State::Calling);
            match heard {
                Ok((None, _)) if calling => {
                    if let Some(cm) = &mut self.cm {
                        cm.unnamed.push(id);
                    }
                }
                Ok((Some(said), port))
                    if calling && said.kind == wire::CM_ACCEPT && said.number == number =>
                {
                    self.settle_on(id, port);
                    if let Some(request) = self.cm.as_mut().and_then(|cm| cm.request.take()) {
                        self.links.sock.close_conn(request, CloseHow::Orderly);
                    }
                    self.cm_up(&said.data);
                }
                _ => self.links.sock.close_conn(id, CloseHow::Reset),
            }
        }
        // Earlier connections that have sent nothing yet.
        if let Some(cm) = self.cm.as_mut().filter(|cm| cm.state != State::Calling) {
            for id in std::mem::take(&mut cm.unnamed) {
                self.links.sock.close_conn(id, CloseHow::Reset);
            }
        }
    }

    fn cm_up(&mut self, data: &[u8]) {
        let Some(cm) = &mut self.cm else { return };
        cm.state = State::Up;
        self.peers.at_mut(cm.peer).state.on_up();
        if !self.links.armed {
            self.links.sock.disarm();
        }
        if let Some(eq) = &self.eq {
            eq.push(fi::FI_CONNECTED, &cm_entry(self.fid, data));
        }
    }

    /// Handles the end of a connection without messages. Returns false if the connection carries
    /// messages.
    pub(crate) fn cm_closed(&mut self, env: &mut Env<'_>, conn: ConnId, reason: Reason) -> bool {
        // An answer counts even if its connection ended at once.
        self.look_for_answer();
        let Some(cm) = &mut self.cm else { return false };
        if cm.request != Some(conn) {
            let before = cm.unnamed.len();
            cm.unnamed.retain(|id| *id != conn);
            let nameless = cm.unnamed.len() != before;
            if nameless {
                self.links.sock.close_conn(conn, CloseHow::Orderly);
            }
            return nameless;
        }
        cm.request = None;
        let number = cm.number;
        let said = self.links.conn(conn).and_then(|c| hear(c).ok().flatten());
        self.links.sock.close_conn(conn, CloseHow::Orderly);
        match said {
            // The connection for messages exists already: it was opened before this record was
            // sent.
            Some(said) if said.kind == wire::CM_TAKEN && said.number == number => {}
            Some(said) if said.kind == wire::CM_REJECT && said.number == number => {
                self.cm_failed(env, fi::FI_ECONNREFUSED, said.data);
            }
            _ => {
                let err = match reason {
                    Reason::Died | Reason::Corrupt => fi::FI_ECONNRESET,
                    _ => fi::FI_ECONNREFUSED,
                };
                self.cm_failed(env, err, Vec::new());
            }
        }
        true
    }

    fn cm_failed(&mut self, env: &mut Env<'_>, err: Errno, err_data: Vec<u8>) {
        let Some(cm) = &mut self.cm else { return };
        cm.state = State::Down;
        drop(cm.call.take());
        // No connection is awaited any more.
        self.look_for_answer();
        if let Some(eq) = &self.eq {
            eq.push_error(EqError {
                fid: self.fid,
                context: self.context,
                data: 0,
                err,
                prov_errno: -err,
                err_data,
            });
        }
        self.flush_receives(env, fi::FI_ECANCELED);
    }

    /// Handles the end of the connection for messages.
    pub(crate) fn cm_ended(&mut self, env: &mut Env<'_>, died: bool) {
        let Some(cm) = &mut self.cm else { return };
        let was = std::mem::replace(&mut cm.state, State::Down);
        match (was, &self.eq) {
            (State::Up, _) => self.tell_shutdown(),
            (State::Answering, Some(_)) => {
                return self.cm_failed(env, fi::FI_ECONNRESET, Vec::new());
            }
            _ => {}
        }
        // After a graceful end, `cm_step` does this later.
        if died {
            self.flush_receives(env, fi::FI_ECONNRESET);
        }
    }

    /// Notes that the connection for messages has ended. The records in its ring are handled later.
    pub(super) fn cm_over(&mut self) {
        let Some(cm) = self.cm.as_mut().filter(|cm| cm.state == State::Up) else {
            return;
        };
        cm.state = State::Down;
        self.tell_shutdown();
    }

    fn tell_shutdown(&self) {
        if let Some(eq) = &self.eq {
            eq.push(fi::FI_SHUTDOWN, &cm_entry(self.fid, &[]));
        }
    }

    /// Ends the connection from this side.
    fn cm_hang_up(&mut self, env: &mut Env<'_>) {
        let Some(cm) = &mut self.cm else { return };
        let was = std::mem::replace(&mut cm.state, State::Down);
        drop(cm.call.take());
        let mut spare = std::mem::take(&mut cm.unnamed);
        spare.extend(cm.request.take());
        for conn in spare {
            self.links.sock.close_conn(conn, CloseHow::Orderly);
        }
        let conns: Vec<ConnId> = self.links.iter().map(|l| l.conn).collect();
        for conn in conns {
            self.lose(env, conn, Reason::Orderly);
        }
        self.flush_receives(env, fi::FI_ECANCELED);
        if let (State::Up, Some(eq)) = (was, &self.eq) {
            eq.push(fi::FI_SHUTDOWN, &cm_entry(self.fid, &[]));
        }
    }

    /// Fails all receives, since no message can arrive any more.
    fn flush_receives(&mut self, env: &mut Env<'_>, err: Errno) {
        for tagged in [true, false] {
            for posted in self.recv.queue(tagged).posted.extract(|_| true) {
                self.fail_posted(env, tagged, posted, err);
            }
        }
    }
}

/// Bit of a request number that marks the request as sent.
const SENT: u64 = 1;
/// Number of connections that may wait to be named. Beyond it the oldest is closed.
const MOST_UNNAMED: usize = 8;

impl Cm {
    fn data_sent(&self) -> bool {
        self.number & SENT != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_without_an_answer_is_given_up_in_time() {
        const LIMIT: u64 = 3_000_000_000;
        let to = PortId { node: 0, port: 7 };
        let mut cm = Cm::new();
        let rows = [
            (Error::Again, 10, true),
            (Error::Unanswered(to), 20, true),
            (Error::Again, LIMIT + 1000, true),
            (Error::Unanswered(to), LIMIT + 19, true),
            (Error::Unanswered(to), LIMIT + 20, false),
            (Error::Refused(to), 0, false),
        ];
        for (error, now, repeats) in rows {
            assert_eq!(cm.repeats(&error, now, LIMIT), repeats, "{error} at {now}");
        }
    }
}

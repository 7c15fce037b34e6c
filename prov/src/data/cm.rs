// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The connection of a connected endpoint (`FI_EP_MSG`): how it comes to be, and how it ends.
//!
//! The caller connects to the passive endpoint's port and leaves a request there: a number of its own choosing and the
//! application's data. Who accepts opens a second connection, from a port of its own straight to the caller's, and begins it
//! with that number; this one carries the messages, and the caller takes no other. A refusal comes back over the first.
//!
//! Not here: the passive side (`pep`), and what travels once the endpoint is connected: that is the data path of every
//! endpoint, with exactly one peer.
//!
//! Semantics: fi_cm(3), fi_eq(3).

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use libfabric_sys as fi;
use scif::{CloseHow, ConnId, Connection, Error, PortId, Reason};

use super::matching::ANY;
use super::wire::{self, Head, Words};
use super::{Env, EpState, Errno, Live, split};
use crate::attr::CM_DATA_SIZE;
use crate::domain::DomainState;
use crate::entry;
use crate::eq::{EqError, cm_entry};
use crate::log::Subsys;
use crate::pep::Call;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// The passive endpoint has our request, or will have it.
    Calling,
    /// Our connection to the caller is on its way.
    Answering,
    Up,
    Down,
}

/// The connection management of one endpoint.
#[derive(Debug)]
pub(crate) struct Cm {
    state: State,
    /// Which request an acceptance answers.
    number: u64,
    /// The passive endpoint's port, or the caller's.
    to: PortId,
    /// The connection that carries the request.
    request: Option<ConnId>,
    /// Connections of others that have yet to say which request they answer.
    unnamed: Vec<ConnId>,
    /// The application's data, until it is sent.
    data: Vec<u8>,
    /// What an acceptance answers, until it is on its way: refused if it never is.
    call: Option<Call>,
    /// Who is at the other end, once it is known.
    peer: u32,
}

/// What the application learns of a record of connection management.
#[derive(Debug)]
pub(crate) struct Said {
    pub kind: u8,
    pub number: u64,
    pub data: Vec<u8>,
}

/// Says `kind` of request `number` over a new connection, whose ring has room for it.
pub(crate) fn say(conn: &mut Connection, kind: u8, number: u64, data: &[u8]) -> bool {
    let head = Head::new().word(number);
    let said = conn.tx().push_slice(kind, head.as_slice(), data).is_ok();
    conn.notify();
    said
}

/// The next record of connection management; an error when it is none.
pub(crate) fn hear(conn: &mut Connection) -> Result<Option<Said>, ()> {
    let Some(record) = conn.rx().peek().map_err(|_| ())? else {
        return Ok(None);
    };
    if record.kind & 0xf0 != wire::CM || record.body.len() > CM_DATA_SIZE {
        return Err(());
    }
    let mut data = vec![0; record.body.len()];
    record.body.copy_to_slice(&mut data);
    let said = Said {
        kind: record.kind,
        number: Words::new(&record.head, record.head_len).word(),
        data,
    };
    conn.rx().advance();
    Ok(Some(said))
}

/// Calls the passive endpoint at `to`.
pub(crate) fn connect(st: &mut DomainState, ep: u32, to: PortId, data: &[u8]) -> Result<(), Errno> {
    let number = RandomState::new().build_hasher().finish() & !SENT;
    begin(st, ep, State::Calling, (to, number), None, data)
}

/// Answers a request. Its caller hears of it once the connection to it is open, or that it failed.
pub(crate) fn accept(st: &mut DomainState, ep: u32, call: Call, data: &[u8]) -> Result<(), Errno> {
    let request = (call.from, call.number);
    begin(st, ep, State::Answering, request, Some(call), data)
}

fn begin(
    st: &mut DomainState,
    ep: u32,
    state: State,
    (to, number): (PortId, u64),
    call: Option<Call>,
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
            let what = format_args!("{call} of an endpoint whose connection is over: it needs a new one");
            return entry::refused(Subsys::EpCtrl, what, fi::FI_EOPBADSTATE);
        }
    }
    (cm.state, cm.to, cm.number, cm.data) = (state, to, number, data.to_vec());
    cm.call = call;
    e.cm_step(&mut env);
    Ok(())
}

/// Ends the connection of an endpoint: what its peer has not sent yet never comes.
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

/// Looks for news of the connection only, as reading the event queue does.
///
/// True: look again soon, nothing tells when.
pub(crate) fn links(st: &mut DomainState, ep: u32) -> bool {
    let Ok((e, mut env)) = split(st, ep) else {
        return false;
    };
    if e.draws_from_another(&env) {
        e.look_for_events(&mut env);
    } else {
        e.look_at_links(&mut env);
    }
    // Somebody may sleep on what its end takes along.
    e.cm_step(&mut env);
    e.cm.as_ref().is_some_and(|cm| match cm.state {
        State::Calling => cm.request.is_none() && !cm.data_sent(),
        State::Answering => cm.peer == ANY,
        State::Idle | State::Up | State::Down => false,
    })
}

/// Before somebody sleeps on what a connected endpoint feeds: ends receives that were posted after its connection had ended.
pub(crate) fn settle(st: &mut DomainState, ep: u32) {
    if let Ok((e, mut env)) = split(st, ep) {
        e.cm_step(&mut env);
    }
}

/// Where the peer of a connected endpoint is.
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
        }
    }

    /// Whether there is no connection any more, and will be none.
    pub(super) fn is_down(&self) -> bool {
        self.state == State::Down
    }

    /// Whether a connection is there whose first word shall wake whoever waits for it.
    pub(super) fn is_told_more(&self) -> bool {
        !self.unnamed.is_empty()
    }
}

impl EpState {
    /// The one peer of a connected endpoint, whatever address an operation names.
    #[cold]
    pub(crate) fn connected_peer(&self) -> Result<u32, Errno> {
        let cm = self.cm.as_ref().ok_or(fi::FI_ENOAV)?;
        match cm.state {
            State::Idle | State::Calling => Err(fi::FI_ENOTCONN),
            State::Answering | State::Up => Ok(cm.peer),
            State::Down => Err(fi::FI_ESHUTDOWN),
        }
    }

    /// Moves what can move of a connection that is not up yet.
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

    fn call(&mut self, env: &mut Env<'_>) {
        let Some(cm) = self.cm.as_mut() else { return };
        match self.sock.connect(cm.to) {
            Ok(id) => {
                let data = std::mem::take(&mut cm.data);
                cm.request = Some(id);
                cm.number |= SENT;
                if let Some(conn) = self.sock.conn(id) {
                    say(conn, wire::CM_REQUEST, cm.number, &data);
                }
            }
            Err(Error::Again | Error::Unanswered(_)) => {}
            Err(error) => {
                self.cm_unreachable(&error);
                self.cm_failed(env, entry::errno(&error), Vec::new());
            }
        }
    }

    fn open_line(&mut self, env: &mut Env<'_>) {
        let Some(cm) = self.cm.as_mut() else { return };
        let (to, number) = (cm.to, cm.number);
        match self.sock.connect(to) {
            Ok(id) => {
                let data = std::mem::take(&mut cm.data);
                if let Some(conn) = self.sock.conn(id) {
                    say(conn, wire::CM_ACCEPT, number, &data);
                }
                self.settle_on(id, to);
                // Now, not once the caller knows: what it does next must not be heard of before.
                self.cm_up(&[]);
                if let Some(call) = self.cm.as_mut().and_then(|cm| cm.call.take()) {
                    call.taken();
                }
            }
            Err(Error::Again | Error::Unanswered(_)) => {}
            Err(error) => {
                self.cm_unreachable(&error);
                self.cm_failed(env, entry::errno(&error), Vec::new());
            }
        }
    }

    /// Logs why the other side of a connection cannot be reached. Once for each cause.
    #[cold]
    fn cm_unreachable(&self, error: &Error) {
        match error {
            Error::Refused(id) => self.nobody_listens(*id, None),
            error => {
                let to = self.cm.as_ref().map(|cm| cm.to).unwrap_or_default();
                crate::log::hindered(to, error, entry::errno(error));
            }
        }
    }

    /// Makes `id` the connection that messages take.
    fn settle_on(&mut self, id: ConnId, port: PortId) {
        let peer = self.peer_at(port);
        self.live.push(Live {
            conn: id,
            peer,
            empty: 0,
        });
        if let Some(p) = self.peers.get_mut(peer as usize) {
            p.tx = Some(id);
        }
        if let Some(cm) = &mut self.cm {
            cm.peer = peer;
        }
        self.note_access(id, peer);
    }

    /// Somebody connected to a connected endpoint: whoever names our request is the peer.
    pub(crate) fn cm_accepted(&mut self, conn: ConnId) {
        match &mut self.cm {
            Some(cm) if cm.state == State::Calling => cm.unnamed.push(conn),
            _ => return self.sock.close_conn(conn, CloseHow::Reset),
        }
        // What names the request may come a moment later, and then shall wake whoever waits for it.
        self.sock.arm();
        self.look_for_answer();
        // Those who say nothing must not keep out the one who answers.
        if let Some(cm) = self.cm.as_mut().filter(|cm| cm.unnamed.len() > MOST_UNNAMED) {
            let longest = cm.unnamed.remove(0);
            self.sock.close_conn(longest, CloseHow::Reset);
        }
    }

    fn look_for_answer(&mut self) {
        let Some(cm) = &mut self.cm else { return };
        let number = cm.number;
        for id in std::mem::take(&mut cm.unnamed) {
            let heard = match self.sock.conn(id) {
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
                        self.sock.close_conn(request, CloseHow::Orderly);
                    }
                    self.cm_up(&said.data);
                }
                _ => self.sock.close_conn(id, CloseHow::Reset),
            }
        }
        // Those before the one that answered, who said nothing yet.
        if let Some(cm) = self.cm.as_mut().filter(|cm| cm.state != State::Calling) {
            for id in std::mem::take(&mut cm.unnamed) {
                self.sock.close_conn(id, CloseHow::Reset);
            }
        }
    }

    fn cm_up(&mut self, data: &[u8]) {
        let Some(cm) = &mut self.cm else { return };
        cm.state = State::Up;
        if let Some(p) = self.peers.get_mut(cm.peer as usize) {
            p.was_up = true;
        }
        if !self.armed {
            self.sock.disarm();
        }
        if let Some(eq) = &self.eq {
            eq.push(fi::FI_CONNECTED, &cm_entry(self.fid, data));
        }
    }

    /// A connection ended that carries no messages. False: it does.
    pub(crate) fn cm_closed(&mut self, env: &mut Env<'_>, conn: ConnId, reason: Reason) -> bool {
        // An answer that ends as soon as it began is one all the same.
        self.look_for_answer();
        let Some(cm) = &mut self.cm else { return false };
        if cm.request != Some(conn) {
            let before = cm.unnamed.len();
            cm.unnamed.retain(|id| *id != conn);
            let nameless = cm.unnamed.len() != before;
            if nameless {
                self.sock.close_conn(conn, CloseHow::Orderly);
            }
            return nameless;
        }
        cm.request = None;
        let number = cm.number;
        let said = self.sock.conn(conn).and_then(|c| hear(c).ok().flatten());
        self.sock.close_conn(conn, CloseHow::Orderly);
        match said {
            // The connection itself is there already: it was opened before this was said.
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
        // Nobody who connected is awaited any more.
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

    /// The connection that carried messages is gone.
    pub(crate) fn cm_ended(&mut self, env: &mut Env<'_>, died: bool) {
        let Some(cm) = &mut self.cm else { return };
        let was = std::mem::replace(&mut cm.state, State::Down);
        match (was, &self.eq) {
            (State::Up, _) => self.tell_shutdown(),
            (State::Answering, Some(_)) => return self.cm_failed(env, fi::FI_ECONNRESET, Vec::new()),
            _ => {}
        }
        // After an end in order `cm_step` does it, in its time.
        if died {
            self.flush_receives(env, fi::FI_ECONNRESET);
        }
    }

    /// The connection that carried messages has ended. What its ring still holds is taken in later.
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

    /// This side ends the connection.
    fn cm_hang_up(&mut self, env: &mut Env<'_>) {
        let Some(cm) = &mut self.cm else { return };
        let was = std::mem::replace(&mut cm.state, State::Down);
        drop(cm.call.take());
        let mut spare = std::mem::take(&mut cm.unnamed);
        spare.extend(cm.request.take());
        for conn in spare {
            self.sock.close_conn(conn, CloseHow::Orderly);
        }
        let conns: Vec<ConnId> = self.live.iter().chain(&self.resting).map(|l| l.conn).collect();
        for conn in conns {
            self.lose(env, conn, Reason::Orderly);
        }
        self.flush_receives(env, fi::FI_ECANCELED);
        if let (State::Up, Some(eq)) = (was, &self.eq) {
            eq.push(fi::FI_SHUTDOWN, &cm_entry(self.fid, &[]));
        }
    }

    /// Ends what no message will come for any more.
    fn flush_receives(&mut self, env: &mut Env<'_>, err: Errno) {
        for tagged in [true, false] {
            for posted in self.queue(tagged).posted.extract(|_| true) {
                self.fail_posted(env, tagged, posted, err);
            }
        }
    }
}

/// The bit of a request's number that says it was sent.
const SENT: u64 = 1;
/// Connections that may wait to be named; of more, the oldest goes.
const MOST_UNNAMED: usize = 8;

impl Cm {
    fn data_sent(&self) -> bool {
        self.number & SENT != 0
    }
}

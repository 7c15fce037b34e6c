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

use libfabric_sys as fi;
use scif::{CloseHow, ConnId, Error, PortId, Reason};

use crate::base::errno::{self, Errno};
use crate::engine::completions::recv_completion;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::peer_conn;
use crate::engine::tables::cm_state::{SENT, State};
use crate::engine::types::cm_message::{recv_msg, send_msg};
use crate::engine::types::peer_id::ANY;
use crate::engine::types::wire;
use crate::state::eq_queue::{EqError, cm_entry};

/// Advances a connection that is not up yet, and flushes the receives of one that has ended.
pub(crate) fn progress(ep: &mut Endpoint, env: &mut Env<'_>) {
    let Some(cm) = &ep.cm else { return };
    match cm.state {
        State::Connecting if cm.request.is_none() && !cm.data_sent() => call(ep, env),
        State::Connecting => look_for_answer(ep),
        State::Accepting if cm.peer == ANY => open_line(ep, env),
        State::Down => flush_receives(ep, env, fi::FI_ECANCELED),
        State::Idle | State::Accepting | State::Up => {}
    }
}

/// Connects to the passive endpoint and sends the request.
fn call(ep: &mut Endpoint, env: &mut Env<'_>) {
    let Some(cm) = ep.cm.as_mut() else { return };
    match ep.links.sock.connect(cm.to) {
        Ok(id) => {
            let data = std::mem::take(&mut cm.data);
            cm.request = Some(id);
            cm.number |= SENT;
            if let Some(conn) = ep.links.conn(id) {
                send_msg(conn, wire::CM_REQUEST, cm.number, &data);
            }
        }
        Err(error) => on_connect_failed(ep, env, &error),
    }
}

/// Opens the connection for messages to the caller.
fn open_line(ep: &mut Endpoint, env: &mut Env<'_>) {
    let Some(cm) = ep.cm.as_mut() else { return };
    let (to, number) = (cm.to, cm.number);
    match ep.links.sock.connect(to) {
        Ok(id) => {
            let data = std::mem::take(&mut cm.data);
            if let Some(conn) = ep.links.conn(id) {
                send_msg(conn, wire::CM_ACCEPT, number, &data);
            }
            settle_on(ep, id, to);
            // A network takes messages to a caller that has ended.
            if to.place == 0 {
                on_line_open(ep);
            }
        }
        Err(error) => on_connect_failed(ep, env, &error),
    }
}

/// Reports that the connection to the caller is open, and answers the request.
fn on_line_open(ep: &mut Endpoint) {
    // Reported before the caller learns that it is connected: an event of its next operation must
    // not precede this one.
    on_up(ep, &[]);
    if let Some(call) = ep.cm.as_mut().and_then(|cm| cm.call.take()) {
        call.taken();
    }
}

/// Handles the answer of a caller on another host, which has the connection for messages now.
pub(crate) fn on_connected(ep: &mut Endpoint, conn: ConnId) {
    let is_line = ep.cm.as_ref().is_some_and(|cm| cm.state == State::Accepting);
    if is_line && setup_conn(ep) == Some(conn) {
        on_line_open(ep);
    }
}

/// Returns the connection that leads to the other side: the one for messages, or before it the one
/// of the request.
fn setup_conn(ep: &Endpoint) -> Option<ConnId> {
    let cm = ep.cm.as_ref()?;
    cm.request.or_else(|| (cm.peer != ANY).then(|| ep.peers.at(cm.peer).tx).flatten())
}

/// Asks the network whether the other side lives, if that is on another host. Returns a connection
/// that was not answered for `limit` nanoseconds: nobody is there.
pub(crate) fn look_for_peer(ep: &mut Endpoint, now: u64, limit: u64) -> Option<ConnId> {
    let cm = ep.cm.as_ref().filter(|cm| cm.is_abroad() && !cm.is_down())?;
    let is_awaited = matches!(cm.state, State::Connecting | State::Accepting);
    let conn = setup_conn(ep)?;
    let was_up = ep.links.conn(conn).map(|c| {
        c.probe();
        c.was_up()
    });
    let cm = ep.cm.as_mut().filter(|_| is_awaited && was_up == Some(false))?;
    cm.is_unanswered(now, limit).then_some(conn)
}

/// Handles a failed attempt to connect to the other side.
#[cold]
fn on_connect_failed(ep: &mut Endpoint, env: &mut Env<'_>, error: &Error) {
    let Some(cm) = &mut ep.cm else { return };
    if !cm.repeats(error, scif::now_ns(), crate::base::env::env().connect_timeout_ns) {
        // The other host has not answered in time.
        let unanswered = Error::Refused(cm.to);
        let error = if *error == Error::Again { &unanswered } else { error };
        log_unreachable(ep, error);
        fail(ep, env, errno::errno(error), Vec::new());
    }
}

/// Logs, once for each cause, that the other side of a connection cannot be reached.
#[cold]
fn log_unreachable(ep: &Endpoint, error: &Error) {
    match error {
        Error::Refused(id) => peer_conn::log_no_listener(ep, *id, None),
        // The network logs it for each peer.
        Error::Rejected { .. } => {}
        error => {
            let to = ep.cm.as_ref().map(|cm| cm.to).unwrap_or_default();
            crate::base::log::connect_failed(to, error, errno::errno(error));
        }
    }
}

/// Makes `id` the connection for messages.
fn settle_on(ep: &mut Endpoint, id: ConnId, port: PortId) {
    let peer = peer_conn::peer_at(ep, port);
    ep.links.add(id, peer);
    ep.peers.at_mut(peer).tx = Some(id);
    if let Some(cm) = &mut ep.cm {
        cm.peer = peer;
    }
    peer_conn::note_access(ep, id, peer);
}

/// Handles a connection to this connected endpoint. The one that names our request is the peer.
pub(crate) fn on_accepted(ep: &mut Endpoint, conn: ConnId) {
    match &mut ep.cm {
        Some(cm) if cm.state == State::Connecting => cm.unidentified.push(conn),
        _ => return ep.links.sock.close_conn(conn, CloseHow::Reset),
    }
    // The record that names the request may come a moment later, and must then wake waiting
    // threads.
    ep.links.sock.arm();
    look_for_answer(ep);
    // Silent connections must not keep out the one that answers.
    if let Some(cm) = ep.cm.as_mut().filter(|cm| cm.unidentified.len() > UNIDENTIFIED_MAX) {
        let longest = cm.unidentified.remove(0);
        ep.links.sock.close_conn(longest, CloseHow::Reset);
    }
}

/// Reads the first records of unnamed connections, and takes the one that answers the request.
fn look_for_answer(ep: &mut Endpoint) {
    let Some(cm) = &mut ep.cm else { return };
    let number = cm.number;
    for id in std::mem::take(&mut cm.unidentified) {
        let received = match ep.links.conn(id) {
            Some(conn) => recv_msg(conn).map(|message| (message, conn.peer())),
            None => continue,
        };
        let calling = ep.cm.as_ref().is_some_and(|cm| cm.state == State::Connecting);
        match received {
            Ok((None, _)) if calling => {
                if let Some(cm) = &mut ep.cm {
                    cm.unidentified.push(id);
                }
            }
            Ok((Some(message), port))
                if calling && message.kind == wire::CM_ACCEPT && message.number == number =>
            {
                settle_on(ep, id, port);
                if let Some(request) = ep.cm.as_mut().and_then(|cm| cm.request.take()) {
                    ep.links.sock.close_conn(request, CloseHow::Orderly);
                }
                on_up(ep, &message.data);
            }
            _ => ep.links.sock.close_conn(id, CloseHow::Reset),
        }
    }
    // Earlier connections that have sent nothing yet.
    if let Some(cm) = ep.cm.as_mut().filter(|cm| cm.state != State::Connecting) {
        for id in std::mem::take(&mut cm.unidentified) {
            ep.links.sock.close_conn(id, CloseHow::Reset);
        }
    }
}

fn on_up(ep: &mut Endpoint, data: &[u8]) {
    let Some(cm) = &mut ep.cm else { return };
    cm.state = State::Up;
    ep.peers.at_mut(cm.peer).state.on_up();
    if !ep.links.armed {
        ep.links.sock.disarm();
    }
    if let Some(eq) = &ep.eq {
        eq.push(fi::FI_CONNECTED, &cm_entry(ep.fid, data));
    }
}

/// Handles the end of a connection without messages. Returns false if the connection carries
/// messages.
pub(crate) fn on_setup_lost(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    conn: ConnId,
    reason: Reason,
) -> bool {
    // An answer counts even if its connection ended at once.
    look_for_answer(ep);
    let Some(cm) = &mut ep.cm else { return false };
    if cm.request != Some(conn) {
        let before = cm.unidentified.len();
        cm.unidentified.retain(|id| *id != conn);
        let nameless = cm.unidentified.len() != before;
        if nameless {
            ep.links.sock.close_conn(conn, CloseHow::Orderly);
        }
        return nameless;
    }
    cm.request = None;
    let (number, to) = (cm.number, cm.to);
    let was_up = ep.links.conn(conn).is_some_and(|c| c.was_up());
    let message = ep.links.conn(conn).and_then(|c| recv_msg(c).ok().flatten());
    // A network knows of no listener only that no answer comes.
    let is_unmet = to.place != 0 && !was_up && matches!(reason, Reason::Died);
    if is_unmet {
        peer_conn::log_no_listener(ep, to, None);
    }
    let how = if is_unmet { CloseHow::Reset } else { CloseHow::Orderly };
    ep.links.sock.close_conn(conn, how);
    match message {
        // The connection for messages exists already: it was opened before this record was
        // sent.
        Some(message) if message.kind == wire::CM_TAKEN && message.number == number => {}
        Some(message) if message.kind == wire::CM_REJECT && message.number == number => {
            fail(ep, env, fi::FI_ECONNREFUSED, message.data);
        }
        _ => {
            let err = match reason {
                Reason::Died | Reason::Corrupt if !is_unmet => fi::FI_ECONNRESET,
                _ => fi::FI_ECONNREFUSED,
            };
            fail(ep, env, err, Vec::new());
        }
    }
    true
}

fn fail(ep: &mut Endpoint, env: &mut Env<'_>, err: Errno, err_data: Vec<u8>) {
    let Some(cm) = &mut ep.cm else { return };
    cm.state = State::Down;
    drop(cm.call.take());
    // No connection is awaited any more.
    look_for_answer(ep);
    if let Some(eq) = &ep.eq {
        eq.push_error(EqError {
            fid: ep.fid,
            context: ep.context,
            data: 0,
            err,
            prov_errno: -err,
            err_data,
        });
    }
    flush_receives(ep, env, fi::FI_ECANCELED);
}

/// Handles the end of the connection for messages.
pub(crate) fn on_conn_lost(ep: &mut Endpoint, env: &mut Env<'_>, died: bool) {
    let Some(cm) = &mut ep.cm else { return };
    let was = std::mem::replace(&mut cm.state, State::Down);
    match (was, &ep.eq) {
        (State::Up, _) => report_shutdown(ep),
        (State::Accepting, Some(_)) => {
            return fail(ep, env, fi::FI_ECONNRESET, Vec::new());
        }
        _ => {}
    }
    // After a graceful end, `progress` does this later.
    if died {
        flush_receives(ep, env, fi::FI_ECONNRESET);
    }
}

/// Notes that the connection for messages has ended. The records in its ring are handled later.
pub(crate) fn on_conn_closing(ep: &mut Endpoint) {
    let Some(cm) = ep.cm.as_mut().filter(|cm| cm.state == State::Up) else {
        return;
    };
    cm.state = State::Down;
    report_shutdown(ep);
}

fn report_shutdown(ep: &Endpoint) {
    if let Some(eq) = &ep.eq {
        eq.push(fi::FI_SHUTDOWN, &cm_entry(ep.fid, &[]));
    }
}

/// Begins the end of the connection from this side, and closes the connections without messages.
/// Returns whether the connection was up.
pub(crate) fn begin_hang_up(ep: &mut Endpoint) -> bool {
    let Some(cm) = &mut ep.cm else { return false };
    let was = std::mem::replace(&mut cm.state, State::Down);
    drop(cm.call.take());
    let mut spare = std::mem::take(&mut cm.unidentified);
    spare.extend(cm.request.take());
    for conn in spare {
        ep.links.sock.close_conn(conn, CloseHow::Orderly);
    }
    was == State::Up
}

/// Completes the end of a connection whose messages have been received.
pub(crate) fn end_hang_up(ep: &mut Endpoint, env: &mut Env<'_>, was_up: bool) {
    flush_receives(ep, env, fi::FI_ECANCELED);
    if was_up {
        report_shutdown(ep);
    }
}

/// Fails all receives, since no message can arrive any more.
fn flush_receives(ep: &mut Endpoint, env: &mut Env<'_>, err: Errno) {
    for tagged in [true, false] {
        for posted in ep.recv.queue(tagged).posted.extract(|_| true) {
            recv_completion::fail_posted(ep, env, tagged, posted, err);
        }
    }
}

/// Number of connections that may wait to be named. Beyond it the oldest is closed.
const UNIDENTIFIED_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::Bed;

    #[test]
    fn receives_of_an_ended_connection_are_flushed() {
        let mut bed = Bed::new(|cfg| cfg.connected = true);
        bed.recv(&crate::engine::tests::buffer(vec![0; 8]));
        bed.run(progress);
        assert!(bed.completion().is_none(), "the connection may still come");
        assert!(!begin_hang_up(&mut bed.ep), "it was never up");
        bed.run(progress);
        assert_eq!(bed.completion().unwrap().unwrap_err().err, fi::FI_ECANCELED);
    }

    #[test]
    fn an_endpoint_without_connection_management_has_only_connections_for_messages() {
        let mut bed = Bed::new(|_| {});
        let conn = ConnId { index: 0, generation: 1 };
        assert!(!bed.run(|ep, env| on_setup_lost(ep, env, conn, Reason::Died)));
    }
}

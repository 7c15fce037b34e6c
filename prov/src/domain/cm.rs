// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Calls that make and end the connection of a connected endpoint.
//!
//! Semantics: fi_cm(3).

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use libfabric_sys as fi;
use scif::{PortId, Reason};

use crate::base::addr::{self, ADDR_LEN};
use crate::base::errno::Errno;
use crate::base::log::Subsys;
use crate::base::{entry, env};
use crate::domain::calls::split;
use crate::domain::state::DomainState;
use crate::engine::protocols::{cm, srx};
use crate::engine::tables::cm_state::{SENT, State};
use crate::engine::types::conn_request::ConnRequest;
use crate::engine::types::peer_id::ANY;
use crate::engine::{connections, progress};

/// Sends a connection request to the passive endpoint at `to`, whose address is `name`.
pub(crate) fn connect(
    st: &mut DomainState,
    ep: u32,
    (to, name): (PortId, [u8; ADDR_LEN]),
    data: &[u8],
) -> Result<(), Errno> {
    let number = RandomState::new().build_hasher().finish() & !SENT;
    begin(st, ep, State::Connecting, (to, number), None, data)?;
    if let Some(cm) = st.eps.get_mut(ep).and_then(|e| e.cm.as_mut()) {
        cm.called = Some(name);
    }
    Ok(())
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
    begin(st, ep, State::Accepting, request, Some(call), data)
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
        State::Connecting | State::Accepting => return Err(fi::FI_EALREADY),
        State::Up => return Err(fi::FI_EISCONN),
        State::Down => {
            let call = if call.is_some() { "fi_accept" } else { "fi_connect" };
            return entry::refused(
                Subsys::EpCtrl,
                format_args!("{call} of an endpoint whose connection is over: it needs a new one"),
                fi::FI_EOPBADSTATE,
            );
        }
    }
    (cm.state, cm.to, cm.number, cm.data) = (state, to, number, data.to_vec());
    cm.call = call;
    cm::progress(e, &mut env);
    Ok(())
}

/// Ends the connection of an endpoint. Data that the peer has not sent yet never arrives.
pub(crate) fn shutdown(st: &mut DomainState, ep: u32) -> Result<(), Errno> {
    let (e, mut env) = split(st, ep)?;
    let state = e.cm.as_ref().ok_or(fi::FI_ENOSYS)?.state;
    match state {
        State::Idle => return Err(fi::FI_ENOTCONN),
        State::Down => return Ok(()),
        State::Connecting | State::Accepting | State::Up => {}
    }
    progress::drain_before_close(e, &mut env);
    let was_up = cm::begin_hang_up(e);
    connections::end_all(e, &mut env, Reason::Orderly);
    cm::end_hang_up(e, &mut env, was_up);
    Ok(())
}

/// Polls for events of the connection only, as a read of the event queue does.
///
/// Returns true if the next poll is due soon, since no notification will come.
pub(crate) fn links(st: &mut DomainState, ep: u32) -> bool {
    let Ok((e, mut env)) = split(st, ep) else {
        return false;
    };
    if srx::uses_peer_srx(e, &env) {
        connections::look_for_events(e, &mut env);
    } else {
        connections::poll_connections(e, &mut env);
    }
    // A thread may sleep on receives that the end of the connection fails.
    cm::progress(e, &mut env);
    if let Some(conn) = cm::look_for_peer(e, scif::now_ns(), env::env().connect_timeout_ns) {
        connections::on_conn_lost(e, &mut env, conn, Reason::Died);
    }
    let is_due = e.cm.as_ref().is_some_and(|cm| match cm.state {
        State::Connecting => cm.request.is_none() && !cm.data_sent(),
        State::Accepting => cm.peer == ANY,
        State::Idle | State::Up | State::Down => false,
    });
    // The network's descriptor does not report its own work that waits.
    is_due || !e.links.sock.may_sleep()
}

/// Returns the address of the peer of a connected endpoint.
pub(crate) fn peer_name(st: &DomainState, ep: u32) -> Result<[u8; ADDR_LEN], Errno> {
    let e = st.eps.get(ep).ok_or(fi::FI_ENOSYS)?;
    let cm = e.cm.as_ref().ok_or(fi::FI_ENOSYS)?;
    match cm.state {
        // Over a network, the hash of the host and the IP address are known from the address that
        // the caller has.
        State::Up => Ok(match cm.called.filter(|_| e.links.sock.network_name().is_some()) {
            Some(name) => name,
            None => addr::encode_peer(cm.to, e.cfg.host),
        }),
        State::Idle | State::Connecting | State::Accepting | State::Down => Err(fi::FI_ENOTCONN),
    }
}

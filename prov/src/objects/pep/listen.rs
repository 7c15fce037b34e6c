// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Work of a passive endpoint: it binds a SCIF port, receives connection requests, and answers
//! them.
//!
//! A request stays a connection of the passive endpoint until it is answered. Messages use another
//! connection, which the accepting endpoint opens (`engine::cm`). Requests are received while the
//! event queue is read or waited for.
//!
//! Semantics: fi_cm(3).

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use libfabric_sys as fi;
use scif::{CloseHow, ConnId, Endpoint, LinkEvent, PortId};

use super::request::{Unread, handle_of};
use crate::base::addr::{self, ADDR_LEN};
use crate::base::errno::Errno;
use crate::engine::types::cm_message::{recv_msg, send_msg};
use crate::engine::types::conn_request::{ConnRequest, Responder};
use crate::engine::types::wire;
use crate::objects::getinfo::owned::OwnedInfo;
use crate::objects::port;
use crate::state::eq_queue::{EqShared, EventSource};
use crate::state::fabric::FabricShared;

/// Maximum number of unread or unanswered requests; further ones are refused.
const MOST_CALLS: usize = 4096;

/// Passive endpoint, as shared with its event queue and its unanswered requests.
#[derive(Debug)]
pub(crate) struct PepShared(Mutex<PepState>);

#[derive(Debug)]
struct PepState {
    /// Fabric; `None` once the endpoint is closed.
    fabric: Option<Arc<FabricShared>>,
    eq: Option<Arc<EqShared>>,
    /// Bound port, kept while requests are unanswered.
    sock: Option<Endpoint>,
    /// Address of a port that was released in vain, and could not be bound again yet.
    rebind: Option<[u8; ADDR_LEN]>,
    listening: bool,
    calls: Vec<Caller>,
    info: OwnedInfo,
    ip: Ipv4Addr,
    fid: usize,
    links: Vec<LinkEvent>,
}

/// Connecting peer.
#[derive(Clone, Copy, Debug)]
struct Caller {
    conn: ConnId,
    port: PortId,
    /// Whether the request was reported to the application.
    reported: bool,
}

impl PepShared {
    pub(super) fn open(
        fabric: &Arc<FabricShared>,
        info: OwnedInfo,
        src: &[u8],
    ) -> Result<Arc<PepShared>, Errno> {
        let sock = port::take_passive_port(fabric, src)?;
        Ok(Arc::new(PepShared(Mutex::new(PepState {
            ip: ip_in_name(&sock, src),
            sock: Some(sock),
            fabric: Some(Arc::clone(fabric)),
            eq: None,
            rebind: None,
            listening: false,
            calls: Vec::new(),
            info,
            fid: 0,
            links: Vec::new(),
        }))))
    }

    /// Locks the state. A panic elsewhere leaves it consistent: every change is complete before any
    /// step can fail.
    fn lock(&self) -> MutexGuard<'_, PepState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the address by which events name the endpoint.
    pub(super) fn named(&self, fid: usize) {
        self.lock().fid = fid;
    }

    pub(super) fn bind(&self, eq: &Arc<EqShared>) -> Result<(), Errno> {
        let mut state = self.lock();
        if state.eq.is_some() {
            return Err(fi::FI_EINVAL);
        }
        state.eq = Some(Arc::clone(eq));
        Ok(())
    }

    pub(super) fn set_name(&self, name: &[u8]) -> Result<(), Errno> {
        let name = name.first_chunk::<ADDR_LEN>().ok_or(fi::FI_EINVAL)?;
        let mut state = self.lock();
        if state.listening {
            return Err(fi::FI_EOPBADSTATE);
        }
        let fabric = state.fabric.clone().ok_or(fi::FI_EOPBADSTATE)?;
        let wanted = port::requested(&fabric, name)?;
        if state.sock.as_ref().is_none_or(|sock| sock.id() != wanted) {
            state.sock = Some(port::take_passive_port(&fabric, name)?);
            state.rebind = None;
        }
        if let Some(sock) = &state.sock {
            state.ip = ip_in_name(sock, name);
        }
        Ok(())
    }

    pub(super) fn name(&self) -> Result<[u8; ADDR_LEN], Errno> {
        self.lock().name()
    }

    pub(super) fn listen(self: &Arc<PepShared>) -> Result<(), Errno> {
        let mut state = self.lock();
        let eq = state.eq.clone().ok_or(fi::FI_ENOEQ)?;
        if state.listening {
            return Ok(());
        }
        state.bind_again()?;
        let sock = state.sock.as_mut().ok_or(fi::FI_EOPBADSTATE)?;
        // Armed permanently, since its rings are not polled: a later writer wakes the waiting
        // threads.
        sock.arm();
        let source: Weak<PepShared> = Arc::downgrade(self);
        eq.attach(source, sock.wait_fd())?;
        state.listening = true;
        Ok(())
    }

    /// Releases the port for an active endpoint that `take` opens there; `take` gets the address.
    /// On failure the port is bound again: at once, or by the next call that needs it.
    ///
    /// # Errors
    /// `FI_EOPBADSTATE` once it listens or has released its port. Errors of `take`.
    pub(crate) fn give_port<T>(
        &self,
        take: impl FnOnce(&[u8; ADDR_LEN]) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let mut state = self.lock();
        if state.listening {
            return Err(fi::FI_EOPBADSTATE);
        }
        let name = state.name()?;
        state.sock = None;
        state.rebind = None;
        let taken = take(&name);
        if taken.is_err() {
            state.rebind = Some(name);
            // A transport may release descriptors and ports later.
            let _ = state.bind_again();
        }
        taken
    }

    pub(super) fn close(&self) {
        let (eq, fid) = {
            let mut state = self.lock();
            state.listening = false;
            let PepState { sock, calls, eq, .. } = &mut *state;
            if let Some(sock) = sock {
                if let Some(eq) = eq {
                    eq.detach(sock.wait_fd());
                }
                for call in calls.iter().filter(|call| !call.reported) {
                    sock.close_conn(call.conn, CloseHow::Orderly);
                }
                calls.retain(|call| call.reported);
            }
            state.fabric = None;
            state.leave();
            (state.eq.take(), state.fid)
        };
        // Unread requests are rejected now, which takes the lock.
        if let Some(eq) = eq {
            eq.purge_fid(fid);
        }
    }

    /// Creates the request of a caller for the application to answer.
    fn request(
        self: &Arc<PepShared>,
        name: [u8; ADDR_LEN],
        caller: Caller,
        number: u64,
    ) -> ConnRequest {
        let pep: Arc<PepShared> = Arc::clone(self);
        ConnRequest { pep, conn: caller.conn, from: caller.port, number, name, answered: false }
    }
}

impl PepState {
    /// Binds the port that [`PepShared::give_port`] has released in vain.
    fn bind_again(&mut self) -> Result<(), Errno> {
        if let Some(name) = self.rebind {
            let fabric = self.fabric.as_ref().ok_or(fi::FI_EOPBADSTATE)?;
            self.sock = Some(port::take_passive_port(fabric, &name)?);
            self.rebind = None;
        }
        Ok(())
    }

    fn name(&self) -> Result<[u8; ADDR_LEN], Errno> {
        if let Some(name) = self.rebind {
            return Ok(name);
        }
        let id = self.sock.as_ref().ok_or(fi::FI_EOPBADSTATE)?.id();
        Ok(addr::encode(self.ip, id, self.host()?))
    }

    fn host(&self) -> Result<u32, Errno> {
        let fabric = self.fabric.as_ref().ok_or(fi::FI_EOPBADSTATE)?;
        Ok(fabric.node.host_hash())
    }

    /// Releases the port after the close, once all requests are answered.
    fn leave(&mut self) {
        if self.fabric.is_none() && self.calls.is_empty() {
            self.sock = None;
        }
    }

    /// Accepts connections, and handles callers that disconnected.
    fn poll_connections(&mut self) {
        let Some(sock) = &mut self.sock else { return };
        sock.poll_links(&mut self.links);
        for link in self.links.drain(..) {
            match link {
                LinkEvent::Accepted(conn, port) if self.calls.len() < MOST_CALLS => {
                    self.calls.push(Caller { conn, port, reported: false });
                }
                LinkEvent::Accepted(conn, _) => sock.close_conn(conn, CloseHow::Orderly),
                LinkEvent::Connected(_) => {}
                LinkEvent::Closed(conn, _) => {
                    sock.close_conn(conn, CloseHow::Orderly);
                    // A request that was reported has no caller any more when it is answered, and
                    // counts until then. Callers that disconnect and reconnect thus cannot fill the
                    // event queue.
                    self.calls.retain(|call| call.reported || call.conn != conn);
                }
            }
        }
    }

    /// Returns the next unreported request, with its number and data.
    fn next_request(&mut self) -> Option<(Caller, u64, Vec<u8>)> {
        let mut at = 0;
        while let Some(call) = self.calls.get(at).copied() {
            let received = match self.sock.as_mut().and_then(|sock| sock.conn(call.conn)) {
                Some(conn) if !call.reported => recv_msg(conn),
                _ => {
                    at += 1;
                    continue;
                }
            };
            match received {
                Ok(None) => at += 1,
                Ok(Some(message)) if message.kind == wire::CM_REQUEST => {
                    if let Some(call) = self.calls.get_mut(at) {
                        call.reported = true;
                    }
                    return Some((call, message.number, message.data));
                }
                Ok(Some(_)) | Err(()) => {
                    self.calls.remove(at);
                    if let Some(sock) = &mut self.sock {
                        sock.close_conn(call.conn, CloseHow::Reset);
                    }
                }
            }
        }
        None
    }
}

impl Responder for PepShared {
    fn finish(&self, conn: ConnId, kind: u8, number: u64, data: &[u8]) {
        let mut state = self.lock();
        if let Some(sock) = &mut state.sock {
            if let Some(conn) = sock.conn(conn) {
                send_msg(conn, kind, number, data);
            }
            sock.close_conn(conn, CloseHow::Orderly);
        }
        state.calls.retain(|call| call.conn != conn);
        state.leave();
    }
}

impl EventSource for PepShared {
    fn progress(self: Arc<Self>) -> bool {
        let mut state = self.lock();
        if !state.listening {
            return false;
        }
        state.poll_connections();
        while let Some((caller, number, data)) = state.next_request() {
            let name = state.name();
            let handle = handle_of(self.request(name.unwrap_or_default(), caller, number));
            let info = name.and_then(|name| {
                let peer = addr::encode_peer(caller.port, state.host()?);
                state.info.with_addresses(name, peer, handle).ok_or(fi::FI_ENOMEM)
            });
            let unread = Box::new(Unread { info: info.ok(), handle });
            match &state.eq {
                // Under the lock, so that no event refers to an endpoint that was closed meanwhile.
                Some(eq) if unread.info.is_some() => eq.push_request(state.fid, unread, &data),
                _ => {
                    // Dropping it rejects the request, which takes the lock.
                    drop(state);
                    drop(unread);
                    state = self.lock();
                }
            }
        }
        // The network's descriptor does not report its own work that waits.
        state.sock.as_mut().is_some_and(|sock| !sock.may_sleep())
    }
}

/// Returns the IP address in the name of a port that `src` requested.
fn ip_in_name(sock: &Endpoint, src: &[u8]) -> Ipv4Addr {
    sock.network_name().map_or_else(|| port::ip_of(src), |name| *name.ip())
}

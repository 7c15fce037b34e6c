// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Accepting side of connections to an object: its listening socket, and its clients, which are the
//! processes connected to it.
//!
//! The service thread reads the sockets. A call that needs the current number of clients reads them
//! too ([`Server::refresh`]).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use scif::names::SocketFile;
use scif::slab::{Slab, SlabId};
use scif::sys::fork::PrivateFd;
use scif::sys::unix;

use crate::context::Context;
use crate::error::{Outcome, SciError};
use crate::events::EventReason;
use crate::lock::take;
use crate::poller::Source;
use crate::wire::{Input, Packet, PacketKind, next_connection, receive};

/// Parts of an answer to an accepted client: the size of the object and a descriptor.
pub(crate) struct Grant {
    pub(crate) size: u64,
    pub(crate) fd: OwnedFd,
}

/// Object with clients.
pub(crate) trait Host: Send + Sync {
    /// Decides about a request.
    ///
    /// # Errors
    /// The code that the connecting process gets.
    fn admit(&self, request: &Packet) -> Outcome<Grant>;
    /// Records an admitted client.
    fn joined(&self, request: &Packet);
    /// Records that an admitted client has left, or died.
    fn left(&self, request: &Packet, gracefully: bool);
}

/// Process connected to an object, or about to be.
struct Client {
    context: Arc<Context>,
    socket: PrivateFd,
    server: Weak<Server>,
    place: OnceLock<SlabId>,
    source: OnceLock<SlabId>,
    /// Admitted request; `None` before it, and after the end.
    request: Mutex<Option<Packet>>,
    /// Held while a thread handles input, so that packets are handled in their order.
    reading: Mutex<()>,
}

/// Listening socket of an object, with its clients.
pub(crate) struct Server {
    own: Weak<Server>,
    context: Arc<Context>,
    /// `None` once it is closed. The name is free as soon as the socket is.
    socket: Mutex<Option<PrivateFd>>,
    file: Option<SocketFile>,
    source: OnceLock<SlabId>,
    host: OnceLock<Weak<dyn Host>>,
    clients: Mutex<Slab<Arc<Client>, SlabId>>,
}

impl Server {
    /// Listens at a name. Clients are admitted once [`Server::serve`] was called.
    ///
    /// # Errors
    /// `System` with `EADDRINUSE` if the name is taken.
    pub(crate) fn new(context: &Arc<Context>, name: &str) -> Outcome<Arc<Server>> {
        let (socket, file) = context.bind(name, unix::socket()?)?;
        Ok(Arc::new_cyclic(|own| Server {
            own: own.clone(),
            context: Arc::clone(context),
            socket: Mutex::new(Some(socket)),
            file,
            source: OnceLock::new(),
            host: OnceLock::new(),
            clients: Mutex::new(Slab::with_generation(1)),
        }))
    }

    /// Begins to admit clients of `host`.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn serve(&self, host: Weak<dyn Host>) -> Outcome<()> {
        let _ = self.host.set(host);
        if let (Some(own), Some(socket)) = (self.own.upgrade(), take(&self.socket).as_ref()) {
            let source = self.context.service.add(socket, own)?;
            let _ = self.source.set(source);
        }
        Ok(())
    }

    fn host(&self) -> Option<Arc<dyn Host>> {
        self.host.get()?.upgrade()
    }

    fn list(&self) -> Vec<Arc<Client>> {
        take(&self.clients).iter().map(|(_, client)| Arc::clone(client)).collect()
    }

    /// Returns the number of admitted clients.
    pub(crate) fn admitted(&self) -> usize {
        self.list().iter().filter(|client| take(&client.request).is_some()).count()
    }

    /// Returns the number of admitted clients that are connected. Attached processes do not count.
    pub(crate) fn connected(&self) -> usize {
        let connects = |client: &&Arc<Client>| {
            take(&client.request).is_some_and(|r| r.kind() == Some(PacketKind::Connect))
        };
        self.list().iter().filter(connects).count()
    }

    /// Reads all sockets, so that clients which have left are no more counted.
    pub(crate) fn refresh(&self) {
        self.list().iter().for_each(|client| client.ready());
    }

    /// Sends an event to admitted clients, chosen by their requests.
    pub(crate) fn announce(&self, reason: EventReason, chosen: impl Fn(&Packet) -> bool) {
        let notice = Packet { value: reason as u32, ..Packet::new(PacketKind::Notice) };
        for client in self.list() {
            let request = *take(&client.request);
            // A client that does not read its events is disconnected.
            if request.is_some_and(|request| chosen(&request))
                && notice.send(&client.socket, &[]).is_err()
            {
                self.drop_client(&client);
            }
        }
    }

    /// Disconnects admitted clients, chosen by their requests, without an event at the owner.
    pub(crate) fn disconnect(&self, chosen: impl Fn(&Packet) -> bool) {
        for client in self.list() {
            let request = *take(&client.request);
            if request.is_some_and(|request| chosen(&request)) {
                take(&client.request).take();
                self.drop_client(&client);
            }
        }
    }

    /// Disconnects admitted clients, chosen by their requests, as if they had died.
    pub(crate) fn lose(&self, chosen: impl Fn(&Packet) -> bool) {
        for client in self.list() {
            let request = *take(&client.request);
            if request.is_some_and(|request| chosen(&request)) {
                client.end(self, false);
            }
        }
    }

    fn drop_client(&self, client: &Client) {
        if let Some(place) = client.place.get() {
            let dropped = take(&self.clients).remove(*place);
            drop(dropped);
        }
        // After the removal from the list, at which `welcome` looks once the source is set.
        client.unwatch();
        scif::sys::descriptor::shut(&client.socket);
    }

    fn welcome(&self, socket: OwnedFd) {
        let trusted = unix::credentials(&socket).is_ok_and(|peer| self.context.trusts(peer.uid));
        if !trusted {
            let refusal =
                Packet { value: SciError::Access.number(), ..Packet::new(PacketKind::Answer) };
            let _ = refusal.send(&socket, &[]);
            return;
        }
        let client = Arc::new(Client {
            context: Arc::clone(&self.context),
            socket: PrivateFd::new(socket),
            server: self.own.clone(),
            place: OnceLock::new(),
            source: OnceLock::new(),
            request: Mutex::new(None),
            reading: Mutex::new(()),
        });
        if let Some(place) = take(&self.clients).insert(Arc::clone(&client)) {
            let _ = client.place.set(place);
        }
        client.ready();
        if client.is_listed() {
            match self.context.service.add(&client.socket, Arc::clone(&client) as Arc<dyn Source>) {
                Ok(source) => {
                    let _ = client.source.set(source);
                    // Another thread may have dropped the client meanwhile.
                    if !client.is_listed() {
                        client.unwatch();
                    }
                }
                Err(_) => self.drop_client(&client),
            }
        }
        // A close before the client was listed has not dropped it.
        if take(&self.socket).is_none() {
            self.drop_client(&client);
        }
    }

    /// Stops to listen, and disconnects all clients.
    pub(crate) fn close(&self) {
        if let Some(socket) = take(&self.socket).take() {
            if let Some(source) = self.source.get() {
                self.context.service.remove(&socket, *source);
            }
        }
        self.list().iter().for_each(|client| {
            take(&client.request).take();
            self.drop_client(client);
        });
        if let Some(file) = &self.file {
            file.remove();
        }
    }
}

impl Source for Server {
    fn ready(&self) {
        loop {
            let accepted = take(&self.socket).as_ref().map(unix::accept);
            let Some(socket) = accepted.and_then(next_connection) else { return };
            self.welcome(socket);
        }
    }
}

impl Client {
    /// Ends the watch of its socket.
    fn unwatch(&self) {
        if let Some(source) = self.source.get() {
            self.context.service.remove(&self.socket, *source);
        }
    }

    fn is_listed(&self) -> bool {
        let Some(server) = self.server.upgrade() else { return false };
        let clients = take(&server.clients);
        self.place.get().is_some_and(|place| clients.get(*place).is_some())
    }

    /// Answers a request.
    fn greet(&self, server: &Server, request: &Packet) {
        let mut answer = Packet::new(PacketKind::Answer);
        answer.node = server.context.settings.node.number();
        let host = server.host();
        let granted =
            host.as_ref().map_or(Err(SciError::NoSuchSegment.into()), |host| host.admit(request));
        let Ok(grant) = &granted else {
            answer.value = granted.err().map_or(SciError::System, |failure| failure.code).number();
            let _ = answer.send(&self.socket, &[]);
            return server.drop_client(self);
        };
        answer.size = grant.size;
        let sent = {
            // Held so that no event of the object is sent before the answer.
            let mut admitted = take(&self.request);
            let sent = answer.send(&self.socket, &[grant.fd.as_fd()]);
            *admitted = sent.is_ok().then_some(*request);
            sent
        };
        if sent.is_err() {
            return server.drop_client(self);
        }
        if let Some(host) = host {
            host.joined(request);
        }
    }

    fn end(&self, server: &Server, gracefully: bool) {
        let request = take(&self.request).take();
        server.drop_client(self);
        if let (Some(request), Some(host)) = (request, server.host()) {
            host.left(&request, gracefully);
        }
    }
}

impl Source for Client {
    fn ready(&self) {
        let Some(server) = self.server.upgrade() else { return self.unwatch() };
        let _reading = take(&self.reading);
        loop {
            match receive(&self.socket) {
                Input::Packet(packet, _) => match packet.kind() {
                    Some(PacketKind::Connect | PacketKind::Attach)
                        if take(&self.request).is_none() && self.is_listed() =>
                    {
                        self.greet(&server, &packet);
                    }
                    Some(PacketKind::Bye) => return self.end(&server, true),
                    _ => return self.end(&server, false),
                },
                Input::Nothing => return,
                Input::End => return self.end(&server, false),
            }
            if !self.is_listed() {
                return;
            }
        }
    }
}

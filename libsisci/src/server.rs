// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Accepting side of connections to an object: its listening socket, and its guests, which are the
//! processes connected to it.
//!
//! The service thread reads the sockets. A call that needs the current number of guests reads them
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
use crate::wire::{Input, Packet, PacketKind, receive};

/// Parts of an answer to an accepted guest: the size of the object and a descriptor.
pub(crate) struct Grant {
    pub(crate) size: u64,
    pub(crate) fd: OwnedFd,
}

/// Object with guests.
pub(crate) trait Host: Send + Sync {
    /// Decides about a request.
    ///
    /// # Errors
    /// The code that the connecting process gets.
    fn admit(&self, request: &Packet) -> Outcome<Grant>;
    /// Records an admitted guest.
    fn joined(&self, request: &Packet);
    /// Records that an admitted guest has left, or died.
    fn left(&self, request: &Packet, gracefully: bool);
}

/// Process connected to an object, or about to be.
struct Guest {
    socket: PrivateFd,
    server: Weak<Server>,
    place: OnceLock<SlabId>,
    source: OnceLock<SlabId>,
    /// Admitted request; `None` before it, and after the end.
    request: Mutex<Option<Packet>>,
    /// Held while a thread handles input, so that packets are handled in their order.
    reading: Mutex<()>,
}

/// Listening socket of an object, with its guests.
pub(crate) struct Server {
    own: Weak<Server>,
    context: Arc<Context>,
    /// `None` once it is closed. The name is free as soon as the socket is.
    socket: Mutex<Option<PrivateFd>>,
    file: Option<SocketFile>,
    source: OnceLock<SlabId>,
    host: OnceLock<Weak<dyn Host>>,
    guests: Mutex<Slab<Arc<Guest>, SlabId>>,
}

impl Server {
    /// Listens at a name. Guests are admitted once [`Server::serve`] was called.
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
            guests: Mutex::new(Slab::with_generation(1)),
        }))
    }

    /// Begins to admit guests of `host`.
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

    fn list(&self) -> Vec<Arc<Guest>> {
        take(&self.guests).iter().map(|(_, guest)| Arc::clone(guest)).collect()
    }

    /// Returns the number of admitted guests.
    pub(crate) fn admitted(&self) -> usize {
        self.list().iter().filter(|guest| take(&guest.request).is_some()).count()
    }

    /// Reads all sockets, so that guests which have left are no more counted.
    pub(crate) fn refresh(&self) {
        self.list().iter().for_each(|guest| guest.ready());
    }

    /// Sends an event to all guests.
    pub(crate) fn announce(&self, reason: EventReason) {
        let notice = Packet { value: reason as u32, ..Packet::new(PacketKind::Notice) };
        for guest in self.list() {
            if take(&guest.request).is_some() {
                // A guest that does not read its events is disconnected.
                if notice.send(&guest.socket, &[]).is_err() {
                    self.drop_guest(&guest);
                }
            }
        }
    }

    /// Disconnects all guests without an event at the owner.
    pub(crate) fn disconnect_all(&self) {
        for guest in self.list() {
            take(&guest.request).take();
            self.drop_guest(&guest);
        }
    }

    fn drop_guest(&self, guest: &Guest) {
        if let Some(source) = guest.source.get() {
            self.context.service.remove(&guest.socket, *source);
        }
        scif::sys::descriptor::shut(&guest.socket);
        if let Some(place) = guest.place.get() {
            let dropped = take(&self.guests).remove(*place);
            drop(dropped);
        }
    }

    fn welcome(&self, socket: OwnedFd) {
        let trusted = unix::credentials(&socket).is_ok_and(|peer| self.context.trusts(peer.uid));
        if !trusted {
            let refusal =
                Packet { value: SciError::Access.number(), ..Packet::new(PacketKind::Answer) };
            let _ = refusal.send(&socket, &[]);
            return;
        }
        let guest = Arc::new(Guest {
            socket: PrivateFd::new(socket),
            server: self.own.clone(),
            place: OnceLock::new(),
            source: OnceLock::new(),
            request: Mutex::new(None),
            reading: Mutex::new(()),
        });
        if let Some(place) = take(&self.guests).insert(Arc::clone(&guest)) {
            let _ = guest.place.set(place);
        }
        guest.ready();
        if guest.is_listed() {
            match self.context.service.add(&guest.socket, Arc::clone(&guest) as Arc<dyn Source>) {
                Ok(source) => {
                    let _ = guest.source.set(source);
                }
                Err(_) => self.drop_guest(&guest),
            }
        }
    }

    /// Stops to listen, and disconnects all guests.
    pub(crate) fn close(&self) {
        if let Some(socket) = take(&self.socket).take()
            && let Some(source) = self.source.get()
        {
            self.context.service.remove(&socket, *source);
        }
        self.disconnect_all();
        if let Some(file) = &self.file {
            file.remove();
        }
    }
}

impl Source for Server {
    fn ready(&self) {
        let accept = || take(&self.socket).as_ref().and_then(|own| unix::accept(own).ok());
        while let Some(socket) = accept() {
            self.welcome(socket);
        }
    }
}

impl Guest {
    fn is_listed(&self) -> bool {
        let Some(server) = self.server.upgrade() else { return false };
        let guests = take(&server.guests);
        self.place.get().is_some_and(|place| guests.get(*place).is_some())
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
            return server.drop_guest(self);
        };
        answer.size = grant.size;
        *take(&self.request) = Some(*request);
        if answer.send(&self.socket, &[grant.fd.as_fd()]).is_err() {
            take(&self.request).take();
            return server.drop_guest(self);
        }
        if let Some(host) = host {
            host.joined(request);
        }
    }

    fn end(&self, server: &Server, gracefully: bool) {
        let request = take(&self.request).take();
        server.drop_guest(self);
        if let (Some(request), Some(host)) = (request, server.host()) {
            host.left(&request, gracefully);
        }
    }
}

impl Source for Guest {
    fn ready(&self) {
        let Some(server) = self.server.upgrade() else { return };
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

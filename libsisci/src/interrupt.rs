// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Interrupts of this process: an event counter, or with data a socket whose sending end the
//! connected processes share.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::io::Errno;
use scif::monitor::sisci::layout::{ObjectKind, flag, record};
use scif::monitor::sisci::{ObjectFields, ObjectRecord};
use scif::slab::SlabId;
use scif::sys::epoll::Event;
use scif::sys::fork::PrivateFd;
use scif::sys::{descriptor, unix};

use crate::callback::Callback;
use crate::context::Context;
use crate::desc::Desc;
use crate::error::{Outcome, SciError, fail};
use crate::flags;
use crate::lock::take;
use crate::node::{self, Kind};
use crate::poller::Source;
use crate::server::{Grant, Host, Server};
use crate::wire::{Deadline, Packet, is_past, wait_readable};

/// Maximum length in bytes of the data of one interrupt. More is refused.
pub(crate) const DATA_MAX: usize = 4096;
/// Number of interrupt numbers that are tried for an interrupt without a fixed one.
const NUMBERS: u32 = 1 << 16;
/// Maximum number of owners that share an interrupt number.
pub(crate) const OWNERS_MAX: u32 = 16;

/// Delivery of an interrupt: its data, empty without any.
pub(crate) type Delivery = Vec<u8>;

/// Means by which an interrupt arrives.
enum Line {
    /// Counter of triggers.
    Plain(Event),
    /// Receiving and sending end.
    Data { rx: PrivateFd, tx: PrivateFd },
}

impl Line {
    fn new(kind: Kind) -> Outcome<Line> {
        if kind == Kind::DataInterrupt {
            let (tx, rx) = unix::pair()?;
            return Ok(Line::Data { rx: PrivateFd::new(rx), tx: PrivateFd::new(tx) });
        }
        Ok(Line::Plain(Event::new()?))
    }

    /// Returns the descriptor that is readable after a trigger.
    fn input(&self) -> BorrowedFd<'_> {
        match self {
            Line::Plain(event) => event.as_fd(),
            Line::Data { rx, .. } => rx.as_fd(),
        }
    }

    /// Returns the descriptor to which a trigger writes.
    fn output(&self) -> BorrowedFd<'_> {
        match self {
            Line::Plain(event) => event.as_fd(),
            Line::Data { tx, .. } => tx.as_fd(),
        }
    }

    /// Makes it readable for all who wait.
    fn end(&self) {
        match self {
            Line::Plain(event) => event.signal(),
            Line::Data { tx, .. } => descriptor::shut(tx),
        }
    }
}

#[derive(Debug, Default)]
struct InterruptState {
    /// Triggers taken from the counter and not delivered yet.
    counted: u64,
    /// Data that was longer than the buffer of its receiver.
    kept: Option<Delivery>,
    removed: bool,
}

/// Interrupt of this process.
pub(crate) struct Interrupt {
    own: OnceLock<std::sync::Weak<Interrupt>>,
    desc: Arc<Desc>,
    pub(crate) number: u32,
    pub(crate) kind: Kind,
    counting: bool,
    line: Line,
    callback: Option<Arc<Callback<Delivery>>>,
    server: Arc<Server>,
    source: OnceLock<SlabId>,
    state: Mutex<InterruptState>,
    /// Record for `scifctl`.
    shown: ObjectRecord,
}

/// Request for an interrupt.
pub(crate) struct NewInterrupt {
    pub(crate) kind: Kind,
    pub(crate) adapter: u32,
    /// Number that the program demands.
    pub(crate) fixed: Option<u32>,
    pub(crate) flags: u32,
    pub(crate) callback: Option<Callback<Delivery>>,
}

impl NewInterrupt {
    /// Returns the fields that `scifctl` shows.
    fn fields(&self, node: u32, number: u32) -> ObjectFields {
        let is_data = self.kind == Kind::DataInterrupt;
        let kind = if is_data { ObjectKind::DataInterrupt } else { ObjectKind::Interrupt };
        let flags = [
            (flags::USE_CALLBACK, flag::CALLBACK),
            (flags::SHARED_INT, flag::SHARED),
            (flags::COUNTING_INT, flag::COUNTING),
        ];
        let flags = flags.into_iter().filter(|(of_program, _)| self.flags & of_program != 0);
        let flags = flags.map(|(_, shown)| shown).sum();
        ObjectFields { flags, ..ObjectFields::new(kind, node, number) }
    }
}

/// Takes data without waiting.
///
/// # Errors
/// `NotConnected` if the socket was shut: no more data can arrive.
fn next_data(rx: impl AsFd) -> Outcome<Option<Delivery>> {
    let mut bytes = [0; DATA_MAX + 1];
    match unix::receive(rx, &mut bytes) {
        Ok(got) if got.bytes == 0 => fail(SciError::NotConnected),
        Ok(got) if !got.cut => Ok(bytes.get(1..got.bytes).map(<[u8]>::to_vec)),
        _ => Ok(None),
    }
}

fn is_bound(context: &Context, name: &str) -> bool {
    context
        .connect(name, crate::wire::deadline(0))
        .map_or_else(|failure| failure.code == SciError::Timeout, |_| true)
}

/// Listens at an interrupt number, alone or beside other owners.
fn listen(
    context: &Arc<Context>,
    kind: Kind,
    number: u32,
    shared: bool,
) -> Outcome<Option<Arc<Server>>> {
    let node = context.settings.node;
    let alone = node::name_of(node, kind, number);
    let owners = || (0..OWNERS_MAX).map(|owner| node::shared_name(node, kind, number, owner));
    if shared && is_bound(context, &alone) || !shared && owners().any(|n| is_bound(context, &n)) {
        return Ok(None);
    }
    let names = if shared { owners().collect() } else { vec![alone] };
    for name in names {
        match Server::new(context, &name) {
            Ok(server) => return Ok(Some(server)),
            Err(failure) if failure.errno == Some(Errno::ADDRINUSE) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(None)
}

impl Interrupt {
    /// Makes an interrupt (`SCICreateInterrupt`, `SCICreateDataInterrupt`).
    ///
    /// # Errors
    /// `IntnoUsed` for a fixed number that is taken, `Nospc`, and errors of the adapter
    /// number.
    pub(crate) fn new(desc: &Arc<Desc>, new: NewInterrupt) -> Outcome<Arc<Interrupt>> {
        let context = &desc.context;
        context.check_adapter(new.adapter)?;
        let shared = new.flags & flags::SHARED_INT != 0;
        let found = match new.fixed {
            Some(number) => {
                let server = listen(context, new.kind, number, shared)?;
                (number, server.ok_or(SciError::IntnoUsed)?)
            }
            None => Interrupt::free_number(context, new.kind, shared)?,
        };
        let (number, server) = found;
        let shown = context.publish(&new.fields(context.settings.node.number(), number));
        let interrupt = Arc::new(Interrupt {
            own: OnceLock::new(),
            desc: Arc::clone(desc),
            number,
            kind: new.kind,
            counting: new.flags & flags::COUNTING_INT != 0,
            line: Line::new(new.kind)?,
            callback: new.callback.map(Arc::new),
            server,
            source: OnceLock::new(),
            state: Mutex::new(InterruptState::default()),
            shown,
        });
        let _ = interrupt.own.set(Arc::downgrade(&interrupt));
        desc.hold();
        Ok(interrupt)
    }

    fn free_number(
        context: &Arc<Context>,
        kind: Kind,
        shared: bool,
    ) -> Outcome<(u32, Arc<Server>)> {
        for number in 1..NUMBERS {
            if let Some(server) = listen(context, kind, number, shared)? {
                return Ok((number, server));
            }
        }
        fail(SciError::Nospc)
    }

    /// Begins to accept connections and to deliver, once the program can know the handle.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn serve(&self) -> Outcome<()> {
        let Some(own) = self.own.get() else { return fail(SciError::System) };
        if let (Some(_), Some(source)) = (&self.callback, own.upgrade()) {
            let source = self.desc.context.callbacks.add(self.line.input(), source)?;
            let _ = self.source.set(source);
        }
        let host: std::sync::Weak<Interrupt> = own.clone();
        self.server.serve(host)
    }

    /// Removes it. Calls that wait for it fail.
    ///
    /// # Errors
    /// `IllegalParameter` if it was removed.
    pub(crate) fn remove(&self) -> Outcome<()> {
        if std::mem::replace(&mut take(&self.state).removed, true) {
            return fail(SciError::IllegalParameter);
        }
        self.unwatch();
        self.server.close();
        self.line.end();
        if let Some(callback) = &self.callback {
            callback.close();
        }
        self.desc.release();
        Ok(())
    }

    /// Ends the calls of the callback.
    fn unwatch(&self) {
        if let Some(source) = self.source.get() {
            self.desc.context.callbacks.remove(self.line.input(), *source);
        }
    }

    /// Takes a trigger without waiting.
    fn poll(&self) -> Outcome<Option<Delivery>> {
        let mut state = take(&self.state);
        if state.removed {
            return fail(SciError::Cancelled);
        }
        match &self.line {
            Line::Plain(event) => {
                if state.counted == 0 {
                    let count = event.take();
                    state.counted = if self.counting { count } else { count.min(1) };
                }
                if state.counted == 0 {
                    return Ok(None);
                }
                state.counted -= 1;
                self.shown.count();
                Ok(Some(Delivery::new()))
            }
            Line::Data { rx, .. } => {
                if let Some(data) = state.kept.take() {
                    return Ok(Some(data));
                }
                let data = next_data(rx)?;
                if data.is_some() {
                    self.shown.count();
                }
                Ok(data)
            }
        }
    }

    /// Publishes the number of connections.
    fn show_connections(&self) {
        self.shown.set(record::PEERS, self.server.connected() as u64);
    }

    /// Waits for a trigger, and returns its data.
    ///
    /// # Errors
    /// `Timeout`; `Cancelled` by its removal; `IllegalOperation` with a callback; `OutOfRange` for
    /// data longer than `room`, which stays for the next wait; `NotConnected` if a client has shut
    /// the socket of the data.
    pub(crate) fn wait(&self, room: usize, deadline: Deadline) -> Outcome<Delivery> {
        if self.callback.is_some() {
            return fail(SciError::IllegalOperation);
        }
        loop {
            match self.poll()? {
                Some(data) if data.len() > room => {
                    take(&self.state).kept = Some(data);
                    return fail(SciError::OutOfRange);
                }
                Some(data) => return Ok(data),
                None if is_past(deadline) => return fail(SciError::Timeout),
                None => wait_readable(self.line.input(), deadline)?,
            }
        }
    }

    /// Returns the length in bytes of data that was too long for its receiver.
    pub(crate) fn kept_len(&self) -> usize {
        take(&self.state).kept.as_ref().map_or(0, Vec::len)
    }
}

impl Source for Interrupt {
    fn ready(&self) {
        let Some(callback) = &self.callback else { return };
        loop {
            match self.poll() {
                Ok(Some(data)) => callback.call(&data),
                Ok(None) => return,
                Err(_) => return self.unwatch(),
            }
        }
    }
}

impl Host for Interrupt {
    fn admit(&self, _request: &Packet) -> Outcome<Grant> {
        let fd = self.line.output().try_clone_to_owned().map_err(|_| SciError::Nospc)?;
        Ok(Grant { size: 0, fd })
    }

    fn joined(&self, _request: &Packet) {
        self.show_connections();
    }

    fn left(&self, _request: &Packet, _gracefully: bool) {
        self.show_connections();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_ends_with_its_socket() {
        let (tx, rx) = unix::pair().unwrap();
        assert_eq!(next_data(&rx), Ok(None));
        for (sent, data) in [(&[1, 7][..], Some(vec![7])), (&[1], Some(Vec::new()))] {
            unix::send(&tx, sent, &[]).unwrap();
            assert_eq!(next_data(&rx), Ok(data));
        }
        unix::send(&tx, &[1; DATA_MAX + 2], &[]).unwrap();
        assert_eq!(next_data(&rx), Ok(None), "too long");
        descriptor::shut(&tx);
        assert_eq!(next_data(&rx), fail(SciError::NotConnected));
    }
}

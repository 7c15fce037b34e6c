// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Segment of another process: connection, state, events.

use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};

use scif::monitor::sisci::layout::{ObjectKind, ObjectState, flag, record};
use scif::monitor::sisci::{ObjectFields, ObjectRecord};
use scif::slab::SlabId;
use scif::sys::fork::PrivateFd;
use scif::sys::unix;

use crate::callback::Callback;
use crate::context::Context;
use crate::desc::Desc;
use crate::error::{Outcome, SciError, fail};
use crate::events::{EventQueue, EventReason, next_event};
use crate::flags;
use crate::local_segment::MEMBERS_MAX;
use crate::lock::take;
use crate::memory::Memory;
use crate::node::{self, BROADCAST_NODE, Kind, NodeId};
use crate::poller::Source;
use crate::wire::{self, Deadline, Input, Packet, PacketKind, receive};

/// State of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// Request sent, no answer yet.
    Connecting,
    /// Request refused.
    Refused,
    Operational,
    NotOperational,
    /// Owner requested the disconnection.
    Disconnecting,
    /// Owner has withdrawn the segment, or died.
    Lost,
}

impl Phase {
    /// Returns the state that `scifctl` shows.
    fn shown(self) -> ObjectState {
        match self {
            Phase::Connecting => ObjectState::Connecting,
            Phase::Refused => ObjectState::Refused,
            Phase::Operational => ObjectState::Operational,
            Phase::NotOperational => ObjectState::NotOperational,
            Phase::Disconnecting => ObjectState::Disconnecting,
            Phase::Lost => ObjectState::Lost,
        }
    }
}

/// Event of a remote segment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RemoteEvent {
    pub(crate) reason: EventReason,
    pub(crate) status: SciError,
}

struct RemoteState {
    phase: Phase,
    memory: Option<Arc<Memory>>,
    events: EventQueue<RemoteEvent>,
    uses: usize,
    closed: bool,
}

/// Segment to connect to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) node: u32,
    pub(crate) id: u32,
    pub(crate) adapter: u32,
    pub(crate) flags: u32,
}

/// Connection to a segment of another process.
pub(crate) struct RemoteSegment {
    own: Weak<RemoteSegment>,
    pub(crate) desc: Arc<Desc>,
    pub(crate) target: Target,
    callback: Option<Arc<Callback<RemoteEvent>>>,
    /// Connection to the owner; `None` if no owner was found.
    socket: Option<PrivateFd>,
    source: OnceLock<SlabId>,
    state: Mutex<RemoteState>,
    changed: Condvar,
    /// Record for `scifctl`.
    shown: ObjectRecord,
}

impl Target {
    fn check(&self, context: &Context) -> Outcome<()> {
        context.check_adapter(self.adapter)?;
        if self.flags & flags::BROADCAST != 0 {
            return if self.node == BROADCAST_NODE {
                Ok(())
            } else {
                fail(SciError::IllegalNodeid)
            };
        }
        NodeId::checked(self.node).map(drop)
    }

    /// Returns the names at which the segment, or a member of the group, may listen.
    fn names(&self) -> Outcome<Vec<String>> {
        if self.flags & flags::BROADCAST == 0 {
            return Ok(vec![node::name_of(NodeId::checked(self.node)?, Kind::Segment, self.id)]);
        }
        Ok((0..MEMBERS_MAX).map(|member| node::member_name(self.id, member)).collect())
    }

    /// Sends a request to a name.
    fn request(&self, context: &Context, name: &str, deadline: Deadline) -> Outcome<PrivateFd> {
        if context.is_lost(self.node) {
            return fail(SciError::NoSuchSegment);
        }
        let request = Packet {
            node: context.settings.node.number(),
            adapter: self.adapter,
            value: self.flags,
            ..Packet::new(PacketKind::Connect)
        };
        let socket = context.connect(name, deadline)?;
        request.send_first(&socket)?;
        Ok(socket)
    }

    /// Sends a request to the segment, or to members of a group until one accepts, and waits for
    /// the answer.
    fn connect(&self, context: &Context, deadline: Deadline) -> Outcome<(PrivateFd, Arc<Memory>)> {
        let mut failed = SciError::NoSuchSegment.into();
        for name in self.names()? {
            let answered = self.request(context, &name, deadline).and_then(|socket| {
                let (answer, fds) = wire::answer(&socket, deadline)?;
                Ok((socket, granted(answer, fds)?))
            });
            match answered {
                Err(failure) if failure.code == SciError::NoSuchSegment => failed = failure,
                other => return other,
            }
        }
        Err(failed)
    }
}

/// Takes the memory out of an answer.
fn granted(answer: Packet, fds: Vec<std::os::fd::OwnedFd>) -> Outcome<Arc<Memory>> {
    let (answer, mut fds) = wire::accepted(answer, fds)?;
    let fd = fds.pop().ok_or(SciError::ConnectionRefused)?;
    Memory::of_peer(fd, answer.size).map(Arc::new)
}

impl RemoteSegment {
    /// Connects and waits for the answer (`SCIConnectSegment`).
    ///
    /// # Errors
    /// `NoSuchSegment`, `Timeout`, `ConnectionRefused`, and those of the numbers.
    pub(crate) fn connect(
        desc: &Arc<Desc>,
        target: Target,
        callback: Option<Callback<RemoteEvent>>,
        deadline: Deadline,
    ) -> Outcome<Arc<RemoteSegment>> {
        target.check(&desc.context)?;
        let (socket, memory) = target.connect(&desc.context, deadline)?;
        let phase = Phase::Operational;
        Ok(RemoteSegment::over(desc, target, callback, (Some(socket), Some(memory), phase)))
    }

    /// Begins to connect (`SCI_FLAG_ASYNCHRONOUS_CONNECT`). An event reports the result.
    ///
    /// # Errors
    /// Errors of the numbers.
    pub(crate) fn begin(
        desc: &Arc<Desc>,
        target: Target,
        callback: Option<Callback<RemoteEvent>>,
    ) -> Outcome<Arc<RemoteSegment>> {
        target.check(&desc.context)?;
        let request = |name: String| target.request(&desc.context, &name, wire::deadline(0)).ok();
        let socket = target.names()?.into_iter().find_map(request);
        Ok(RemoteSegment::over(desc, target, callback, (socket, None, Phase::Connecting)))
    }

    fn over(
        desc: &Arc<Desc>,
        target: Target,
        callback: Option<Callback<RemoteEvent>>,
        (socket, memory, phase): (Option<PrivateFd>, Option<Arc<Memory>>, Phase),
    ) -> Arc<RemoteSegment> {
        desc.hold();
        let owner = socket.as_ref().and_then(|socket| unix::credentials(socket).ok());
        let fields = ObjectFields {
            state: phase.shown(),
            adapter: u64::from(target.adapter),
            size: memory.as_ref().map_or(0, |memory| memory.size() as u64),
            flags: if callback.is_some() { flag::CALLBACK } else { 0 },
            owner: owner.map_or(0, |owner| owner.pid),
            ..ObjectFields::new(ObjectKind::Connection, target.node, target.id)
        };
        Arc::new_cyclic(|own| RemoteSegment {
            own: own.clone(),
            desc: Arc::clone(desc),
            target,
            callback: callback.map(Arc::new),
            socket,
            source: OnceLock::new(),
            state: Mutex::new(RemoteState {
                phase,
                memory,
                events: EventQueue::default(),
                uses: 0,
                closed: false,
            }),
            changed: Condvar::new(),
            shown: desc.context.publish(&fields),
        })
    }

    /// Changes the state of the connection.
    fn enter(&self, state: &mut RemoteState, phase: Phase) {
        state.phase = phase;
        self.shown.set_state(phase.shown());
    }

    /// Begins to report events, once the program can know the handle.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn watch(&self) -> Outcome<()> {
        let (Some(socket), Some(own)) = (&self.socket, self.own.upgrade()) else {
            self.refused(SciError::NoSuchSegment);
            return Ok(());
        };
        let source = self.desc.context.service.add(socket, own)?;
        let _ = self.source.set(source);
        Ok(())
    }

    fn unwatch(&self) {
        if let (Some(socket), Some(source)) = (&self.socket, self.source.get()) {
            self.desc.context.service.remove(socket, *source);
        }
    }

    fn refused(&self, status: SciError) {
        {
            let mut state = take(&self.state);
            if state.phase != Phase::Connecting {
                return;
            }
            self.enter(&mut state, Phase::Refused);
        }
        self.happened(RemoteEvent { reason: EventReason::Connect, status });
    }

    fn happened(&self, event: RemoteEvent) {
        if let Some(callback) = &self.callback {
            let callback = Arc::clone(callback);
            self.desc.context.callbacks.post(Box::new(move || callback.call(&event)));
            return;
        }
        take(&self.state).events.push(event);
        self.changed.notify_all();
    }

    fn notice(&self, reason: EventReason) {
        let phase = match reason {
            EventReason::Lost => return self.lost(),
            EventReason::Disconnect => Phase::Disconnecting,
            EventReason::NotOperational => Phase::NotOperational,
            EventReason::Operational => Phase::Operational,
            EventReason::Connect => return,
        };
        {
            let mut state = take(&self.state);
            // An injected fault may have ended the connection while this thread read its socket.
            if matches!(state.phase, Phase::Lost | Phase::Refused) {
                return;
            }
            self.enter(&mut state, phase);
        }
        self.happened(RemoteEvent { reason, status: SciError::Ok });
    }

    /// Loses a connection to a node that an injected fault cuts off.
    pub(crate) fn lose(&self) {
        if self.desc.context.is_lost(self.target.node) {
            self.lost();
        }
    }

    fn lost(&self) {
        self.unwatch();
        let was = {
            let mut state = take(&self.state);
            let was = state.phase;
            if matches!(was, Phase::Lost | Phase::Refused) || state.closed {
                return;
            }
            let lost = if was == Phase::Connecting { Phase::Refused } else { Phase::Lost };
            self.enter(&mut state, lost);
            was
        };
        let event = if was == Phase::Connecting {
            RemoteEvent { reason: EventReason::Connect, status: SciError::NoSuchSegment }
        } else {
            RemoteEvent { reason: EventReason::Lost, status: SciError::Ok }
        };
        self.happened(event);
    }

    fn answered(&self, answer: Packet, fds: Vec<std::os::fd::OwnedFd>) {
        match granted(answer, fds) {
            Ok(memory) => {
                let mut state = take(&self.state);
                if state.phase != Phase::Connecting {
                    return;
                }
                self.shown.set(record::SIZE, memory.size() as u64);
                state.memory = Some(memory);
                self.enter(&mut state, Phase::Operational);
                drop(state);
                self.happened(RemoteEvent { reason: EventReason::Connect, status: SciError::Ok });
            }
            Err(failure) => {
                self.unwatch();
                self.refused(failure.code);
            }
        }
    }

    /// Returns its state.
    pub(crate) fn phase(&self) -> Phase {
        take(&self.state).phase
    }

    /// Returns the size in bytes; 0 before it is connected.
    pub(crate) fn size(&self) -> usize {
        take(&self.state).memory.as_ref().map_or(0, |memory| memory.size())
    }

    /// Returns its memory for a mapping or transfer, which counts until [`RemoteSegment::put`].
    ///
    /// # Errors
    /// `SegmentNotConnected` if it is not connected, or lost.
    pub(crate) fn get(&self) -> Outcome<Arc<Memory>> {
        let mut state = take(&self.state);
        let usable = !state.closed && !matches!(state.phase, Phase::Lost);
        let memory = state.memory.clone().filter(|_| usable);
        let memory = memory.ok_or(SciError::SegmentNotConnected)?;
        state.uses += 1;
        Ok(memory)
    }

    /// Ends a use.
    pub(crate) fn put(&self) {
        let mut state = take(&self.state);
        state.uses = state.uses.saturating_sub(1);
    }

    /// Waits for an event (`SCIWaitForRemoteSegmentEvent`).
    ///
    /// # Errors
    /// `Timeout`; `Cancelled` by the disconnection; `Overflow`; `IllegalOperation` with a callback.
    pub(crate) fn wait_event(&self, deadline: Deadline) -> Outcome<RemoteEvent> {
        if self.callback.is_some() {
            return fail(SciError::IllegalOperation);
        }
        next_event(
            (&self.state, &self.changed),
            |state| (state.closed, &mut state.events),
            deadline,
        )
    }

    /// Disconnects (`SCIDisconnectSegment`). Calls that wait for its events fail.
    ///
    /// # Errors
    /// `Busy` while it is mapped or in a transfer.
    pub(crate) fn disconnect(&self) -> Outcome<()> {
        {
            let mut state = take(&self.state);
            if state.uses > 0 || state.closed {
                return fail(SciError::Busy);
            }
            state.closed = true;
        }
        self.changed.notify_all();
        self.unwatch();
        if let Some(socket) = &self.socket {
            let _ = Packet::new(PacketKind::Bye).send(socket, &[]);
            scif::sys::descriptor::shut(socket);
        }
        if let Some(callback) = &self.callback {
            callback.close();
        }
        self.desc.release();
        Ok(())
    }
}

impl Source for RemoteSegment {
    fn ready(&self) {
        let Some(socket) = &self.socket else { return };
        loop {
            match receive(socket) {
                Input::Packet(packet, fds) => match packet.kind() {
                    Some(PacketKind::Answer) if self.phase() == Phase::Connecting => {
                        self.answered(packet, fds);
                    }
                    Some(PacketKind::Notice) => match EventReason::of(packet.value) {
                        Some(reason) => self.notice(reason),
                        None => return self.lost(),
                    },
                    _ => return self.lost(),
                },
                Input::Nothing => return,
                Input::End => return self.lost(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::config::Settings;

    #[test]
    fn a_connection_that_has_ended_changes_no_more() {
        let engine = scif::Config {
            domain: Some(format!("ended-{}", std::process::id())),
            ..scif::Config::default()
        };
        let context = Context::new(Settings::from_lookup(engine, |_| None)).unwrap();
        let desc = Desc::new(Arc::clone(&context));
        let target = Target { node: 8, id: 1, adapter: 0, flags: 0 };
        let over = |phase| RemoteSegment::over(&desc, target, None, (None, None, phase));
        let now = wire::deadline(0);
        let lost = over(Phase::Operational);
        lost.lost();
        lost.notice(EventReason::Operational);
        assert_eq!(lost.phase(), Phase::Lost);
        assert_eq!(lost.wait_event(now).unwrap().reason, EventReason::Lost);
        assert_eq!(lost.wait_event(now), fail(SciError::Timeout), "no other event");
        let refused = over(Phase::Connecting);
        refused.lost();
        let memory = Memory::new(4096).unwrap();
        let answer = Packet { size: 4096, ..Packet::new(PacketKind::Answer) };
        refused.answered(answer, vec![memory.fd().as_fd().try_clone_to_owned().unwrap()]);
        refused.refused(SciError::Access);
        assert_eq!((refused.phase(), refused.size()), (Phase::Refused, 0));
        assert_eq!(refused.wait_event(now).unwrap().status, SciError::NoSuchSegment);
        assert_eq!(refused.wait_event(now), fail(SciError::Timeout), "no other event");
        context.leave();
    }
}

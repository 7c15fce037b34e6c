// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Segment of this process: its memory, its state at each adapter, and its connections.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, Weak};

use rustix::io::Errno;
use scif::monitor::sisci::layout::{LOCAL_HOST_BIT, ObjectKind, ObjectState, flag, record};
use scif::monitor::sisci::{ObjectFields, ObjectRecord};

use crate::callback::Callback;
use crate::context::Context;
use crate::desc::Desc;
use crate::error::{Failure, Outcome, SciError, fail};
use crate::events::{EventQueue, EventReason, next_event};
use crate::flags;
use crate::lock::take;
use crate::memory::Memory;
use crate::node::{self, Kind, LOCAL_HOST};
use crate::server::{Grant, Host, Server};
use crate::wire::{self, Deadline, Packet, PacketKind};

/// Number of ids that `SCI_FLAG_AUTO_ID` tries.
const AUTO_IDS: u32 = 128;
/// Time in milliseconds in which a member of a group answers, and in which a process joins it. A
/// group whose members give no memory is refused afterwards.
const GROUP_MS: u32 = 1000;
/// Maximum number of members of a reflective memory group.
pub(crate) const MEMBERS_MAX: u32 = 32;

/// State of a segment at one adapter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Access {
    Prepared,
    Available,
}

/// Event of a local segment: reason, node and adapter of the other side, and code.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct LocalEvent {
    pub(crate) reason: EventReason,
    pub(crate) node: u32,
    pub(crate) adapter: u32,
    pub(crate) status: SciError,
}

#[derive(Default)]
struct LocalState {
    memory: Option<Arc<Memory>>,
    adapters: BTreeMap<u32, Access>,
    events: EventQueue<LocalEvent>,
    /// Number of mappings and transfers that use it.
    uses: usize,
    shared: bool,
    removed: bool,
}

impl LocalState {
    /// Whether a process may connect through an adapter. The own host reaches all adapters, and all
    /// reach what is available at the own host.
    fn is_available(&self, adapter: u32) -> bool {
        self.adapters.iter().any(|(at, access)| {
            *access == Access::Available
                && (*at == adapter || *at == LOCAL_HOST || adapter == LOCAL_HOST)
        })
    }
}

/// Segment of this process.
pub(crate) struct LocalSegment {
    pub(crate) desc: Arc<Desc>,
    pub(crate) id: u32,
    pub(crate) size: usize,
    flags: u32,
    callback: Option<Arc<Callback<LocalEvent>>>,
    /// Listening sockets: none of a private or attached segment.
    servers: Vec<Arc<Server>>,
    state: Mutex<LocalState>,
    changed: Condvar,
    /// Record for `scifctl`.
    shown: ObjectRecord,
    /// Connection to the owner of an attached segment.
    _owner: Option<scif::sys::fork::PrivateFd>,
}

/// Request for a segment.
pub(crate) struct NewSegment {
    pub(crate) id: u32,
    pub(crate) size: usize,
    pub(crate) flags: u32,
    pub(crate) callback: Option<Callback<LocalEvent>>,
}

fn is_taken(failure: &Failure) -> bool {
    failure.errno == Some(Errno::ADDRINUSE)
}

/// Listens at the id of a segment, or at the next free one.
fn listen(context: &Arc<Context>, id: u32, flags: u32) -> Outcome<(u32, Arc<Server>)> {
    let tries = if flags & flags::AUTO_ID == 0 { 1 } else { AUTO_IDS };
    for number in (0..tries).map(|n| id.wrapping_add(n)) {
        let name = node::name_of(context.settings.node, Kind::Segment, number);
        match Server::new(context, &name) {
            Ok(server) => return Ok((number, server)),
            Err(failure) if is_taken(&failure) => {}
            Err(failure) => return Err(failure),
        }
    }
    fail(SciError::SegmentidUsed)
}

/// Returns the flags of a segment that `scifctl` shows.
fn shown_flags(flags: u32) -> u64 {
    [
        (flags::USE_CALLBACK, flag::CALLBACK),
        (flags::PRIVATE, flag::PRIVATE),
        (flags::BROADCAST, flag::BROADCAST),
    ]
    .into_iter()
    .filter(|(of_program, _)| flags & of_program != 0)
    .map(|(_, shown)| shown)
    .sum()
}

/// Joins a reflective memory group. Returns its memory, if it has a member already.
///
/// # Errors
/// `IllegalParameter` for another size than the group's; `Nospc`; the code of its members, if none
/// gives its memory in time.
fn join_group(
    context: &Arc<Context>,
    group: u32,
    size: usize,
) -> Outcome<(Arc<Server>, Option<Memory>)> {
    let end = wire::deadline(GROUP_MS);
    loop {
        let names = || (0..MEMBERS_MAX).map(|member| node::member_name(group, member));
        let mut refusal = SciError::NoSuchSegment.into();
        let memory = names().find_map(|name| match member_memory(context, &name) {
            Ok(memory) => Some(memory),
            Err(failure) => {
                if failure.code != SciError::NoSuchSegment {
                    refusal = failure;
                }
                None
            }
        });
        if memory.as_ref().is_some_and(|memory| memory.size() != size) {
            return fail(SciError::IllegalParameter);
        }
        let mut taken = false;
        for name in names() {
            match Server::new(context, &name) {
                Ok(server) => return Ok((server, memory)),
                Err(failure) if is_taken(&failure) => taken = true,
                Err(failure) => return Err(failure),
            }
            if memory.is_none() {
                // Another first member was faster: its memory counts.
                break;
            }
        }
        if memory.is_some() || !taken {
            return fail(SciError::Nospc);
        }
        if wire::is_past(end) {
            return Err(refusal);
        }
        std::thread::yield_now();
    }
}

/// Asks a member of a group for the memory of the group.
fn member_memory(context: &Context, name: &str) -> Outcome<Memory> {
    let deadline = wire::deadline(GROUP_MS);
    let socket = context.connect(name, deadline)?;
    let request = Packet {
        node: context.settings.node.number(),
        value: flags::BROADCAST,
        ..Packet::new(PacketKind::Attach)
    };
    request.send_first(&socket)?;
    let (answer, mut fds) = wire::answer(&socket, deadline)?;
    Memory::of_peer(fds.pop().ok_or(SciError::ConnectionRefused)?, answer.size)
}

impl LocalSegment {
    /// Makes a segment (`SCICreateSegment`).
    ///
    /// # Errors
    /// `SegmentidUsed`, `SizeAlignment` for no bytes, `Nospc`.
    pub(crate) fn new(desc: &Arc<Desc>, new: NewSegment) -> Outcome<Arc<LocalSegment>> {
        if new.size == 0 {
            return fail(SciError::SizeAlignment);
        }
        let has = |flag| new.flags & flag != 0;
        let context = &desc.context;
        let (mut servers, mut id, mut memory) = (Vec::new(), new.id, None);
        if has(flags::BROADCAST) {
            let (server, group) = join_group(context, id, new.size)?;
            servers.push(server);
            memory = group;
        }
        if !has(flags::PRIVATE) && (!has(flags::BROADCAST) || has(flags::ALLOW_UNICAST)) {
            let (number, server) = listen(context, id, new.flags)?;
            servers.push(server);
            id = number;
        }
        if memory.is_none() && !has(flags::EMPTY) {
            memory = Some(Memory::new(new.size)?);
        }
        let state = if memory.is_some() { ObjectState::Created } else { ObjectState::Empty };
        let fields = ObjectFields {
            state,
            size: new.size as u64,
            flags: shown_flags(new.flags),
            ..ObjectFields::new(ObjectKind::Segment, context.settings.node.number(), id)
        };
        let segment = Arc::new(LocalSegment {
            desc: Arc::clone(desc),
            id,
            size: new.size,
            flags: new.flags,
            callback: new.callback.map(Arc::new),
            servers,
            state: Mutex::new(LocalState { memory: memory.map(Arc::new), ..LocalState::default() }),
            changed: Condvar::new(),
            shown: context.publish(&fields),
            _owner: None,
        });
        for server in &segment.servers {
            let host: Weak<LocalSegment> = Arc::downgrade(&segment);
            server.serve(host)?;
        }
        desc.hold();
        Ok(segment)
    }

    /// Attaches to a shared segment of another process of this node (`SCIAttachLocalSegment`).
    ///
    /// # Errors
    /// `Access` if it is not shared, `NoSuchSegment`.
    pub(crate) fn attach(desc: &Arc<Desc>, new: NewSegment) -> Outcome<Arc<LocalSegment>> {
        let context = &desc.context;
        let name = node::name_of(context.settings.node, Kind::Segment, new.id);
        let socket = context.connect(&name, None)?;
        let request =
            Packet { node: context.settings.node.number(), ..Packet::new(PacketKind::Attach) };
        request.send_first(&socket)?;
        let (answer, mut fds) = wire::answer(&socket, None)?;
        let fd = fds.pop().ok_or(SciError::ConnectionRefused)?;
        let memory = Memory::of_peer(fd, answer.size)?;
        let fields = ObjectFields {
            state: ObjectState::Attached,
            size: memory.size() as u64,
            flags: shown_flags(new.flags),
            ..ObjectFields::new(ObjectKind::Segment, context.settings.node.number(), new.id)
        };
        desc.hold();
        Ok(Arc::new(LocalSegment {
            desc: Arc::clone(desc),
            id: new.id,
            size: memory.size(),
            flags: new.flags,
            callback: new.callback.map(Arc::new),
            servers: Vec::new(),
            state: Mutex::new(LocalState {
                memory: Some(Arc::new(memory)),
                ..LocalState::default()
            }),
            changed: Condvar::new(),
            shown: context.publish(&fields),
            _owner: Some(socket),
        }))
    }

    /// Makes it reachable through an adapter (`SCIPrepareSegment`).
    ///
    /// # Errors
    /// Errors of the adapter number; `IllegalOperation` while it is empty.
    pub(crate) fn prepare(&self, adapter: u32) -> Outcome<()> {
        self.desc.context.check_adapter(adapter)?;
        let mut state = take(&self.state);
        if state.memory.is_none() {
            return fail(SciError::IllegalOperation);
        }
        state.adapters.entry(adapter).or_insert(Access::Prepared);
        self.show(&state);
        Ok(())
    }

    /// Whether it was prepared for an adapter, or for the own host.
    pub(crate) fn is_prepared(&self, adapter: u32) -> bool {
        let state = take(&self.state);
        state.adapters.contains_key(&adapter) || state.adapters.contains_key(&LOCAL_HOST)
    }

    /// Permits connections (`SCISetSegmentAvailable`).
    ///
    /// # Errors
    /// Errors of the adapter number; `SegmentNotPrepared`; `IllegalOperation` for a private
    /// segment.
    pub(crate) fn set_available(&self, adapter: u32) -> Outcome<()> {
        self.desc.context.check_adapter(adapter)?;
        self.check_connectable()?;
        let mut state = take(&self.state);
        let access = state.adapters.get_mut(&adapter).ok_or(SciError::SegmentNotPrepared)?;
        *access = Access::Available;
        self.show(&state);
        Ok(())
    }

    /// Refuses later connections (`SCISetSegmentUnavailable`). Present ones of the adapter get
    /// `event`.
    ///
    /// # Errors
    /// Errors of the adapter number; `IllegalOperation` if it was not available.
    pub(crate) fn set_unavailable(&self, adapter: u32, event: Option<EventReason>) -> Outcome<()> {
        self.desc.context.check_adapter(adapter)?;
        self.check_connectable()?;
        {
            let mut state = take(&self.state);
            match state.adapters.get_mut(&adapter) {
                Some(access) if *access == Access::Available => *access = Access::Prepared,
                _ => return fail(SciError::IllegalOperation),
            }
            self.show(&state);
        }
        let Some(event) = event else { return Ok(()) };
        let is_affected = |request: &Packet| {
            request.kind() == Some(PacketKind::Connect)
                && (request.adapter == adapter || !take(&self.state).is_available(request.adapter))
        };
        for server in &self.servers {
            server.announce(event, is_affected);
            if event == EventReason::Lost {
                server.disconnect(is_affected);
            }
        }
        self.show_connections();
        Ok(())
    }

    /// Publishes a changed state.
    fn show(&self, state: &LocalState) {
        let adapters: u64 = state
            .adapters
            .iter()
            .filter(|(_, access)| **access == Access::Available)
            .map(|(adapter, _)| 1_u64 << (*adapter).min(LOCAL_HOST_BIT))
            .sum();
        let shown = match (&state.memory, adapters, state.adapters.is_empty()) {
            (None, ..) => ObjectState::Empty,
            (_, 0, true) => ObjectState::Created,
            (_, 0, false) => ObjectState::Prepared,
            _ => ObjectState::Available,
        };
        self.shown.set_state(shown);
        self.shown.set(record::ADAPTER, adapters);
        if state.shared {
            self.shown.set(record::FLAGS, shown_flags(self.flags) | flag::SHARED);
        }
    }

    /// Publishes the number of connections.
    fn show_connections(&self) {
        let connected: usize = self.servers.iter().map(|server| server.connected()).sum();
        self.shown.set(record::PEERS, connected as u64);
    }

    fn check_connectable(&self) -> Outcome<()> {
        if self.servers.is_empty() { fail(SciError::IllegalOperation) } else { Ok(()) }
    }

    /// Marks it as attachable by processes of the node (`SCIShareSegment`).
    ///
    /// # Errors
    /// `IllegalOperation` for a private segment, or without memory.
    pub(crate) fn share(&self) -> Outcome<()> {
        self.check_connectable()?;
        let mut state = take(&self.state);
        if state.memory.is_none() {
            return fail(SciError::IllegalOperation);
        }
        state.shared = true;
        self.show(&state);
        Ok(())
    }

    /// Removes it (`SCIRemoveSegment`). Calls that wait for its events fail.
    ///
    /// # Errors
    /// `Busy` while it is mapped, connected or in a transfer, unless `force`.
    pub(crate) fn remove(&self, force: bool) -> Outcome<()> {
        for server in &self.servers {
            server.refresh();
        }
        {
            let mut state = take(&self.state);
            let connected = || self.servers.iter().any(|server| server.admitted() > 0);
            if state.removed || state.uses > 0 || (!force && connected()) {
                return fail(SciError::Busy);
            }
            state.removed = true;
            state.adapters.clear();
        }
        self.changed.notify_all();
        for server in &self.servers {
            server.announce(EventReason::Lost, |_| true);
            server.close();
        }
        if let Some(memory) = &take(&self.state).memory {
            memory.restore();
        }
        if let Some(callback) = &self.callback {
            callback.close();
        }
        self.desc.release();
        Ok(())
    }

    /// Waits for an event (`SCIWaitForLocalSegmentEvent`).
    ///
    /// # Errors
    /// `Timeout`; `Cancelled` by its removal; `Overflow`; `IllegalOperation` with a callback.
    pub(crate) fn wait_event(&self, deadline: Deadline) -> Outcome<LocalEvent> {
        if self.callback.is_some() {
            return fail(SciError::IllegalOperation);
        }
        next_event(
            (&self.state, &self.changed),
            |state| (state.removed, &mut state.events),
            deadline,
        )
    }

    /// Loses the connections of nodes that an injected fault cuts off.
    pub(crate) fn lose(&self) {
        let context = &self.desc.context;
        self.servers.iter().for_each(|server| server.lose(|request| context.is_lost(request.node)));
    }

    fn happened(&self, event: LocalEvent) {
        if let Some(callback) = &self.callback {
            let callback = Arc::clone(callback);
            self.desc.context.callbacks.post(Box::new(move || callback.call(&event)));
            return;
        }
        take(&self.state).events.push(event);
        self.changed.notify_all();
    }

    /// Gives an empty segment memory of the program (`SCIRegisterSegmentMemory`).
    ///
    /// # Errors
    /// `IllegalOperation` unless it is empty; `OutOfRange` for another size than its own; errors
    /// of [`Memory::of_program`].
    pub(crate) fn fill(&self, addr: usize, size: usize) -> Outcome<()> {
        let mut state = take(&self.state);
        if self.flags & flags::EMPTY == 0 || state.memory.is_some() || state.removed {
            return fail(SciError::IllegalOperation);
        }
        if size != self.size {
            return fail(SciError::OutOfRange);
        }
        state.memory = Some(Arc::new(Memory::of_program(addr, size)?));
        self.show(&state);
        Ok(())
    }

    /// Returns its memory for a mapping or transfer, which counts until [`LocalSegment::put`].
    ///
    /// # Errors
    /// `IllegalOperation` while it is empty.
    pub(crate) fn get(&self) -> Outcome<Arc<Memory>> {
        let mut state = take(&self.state);
        let memory = state.memory.clone().filter(|_| !state.removed);
        let memory = memory.ok_or(SciError::IllegalOperation)?;
        state.uses += 1;
        Ok(memory)
    }

    /// Ends a use.
    pub(crate) fn put(&self) {
        let mut state = take(&self.state);
        state.uses = state.uses.saturating_sub(1);
    }
}

impl Host for LocalSegment {
    fn admit(&self, request: &Packet) -> Outcome<Grant> {
        let state = take(&self.state);
        let memory = state.memory.as_ref().filter(|_| !state.removed);
        let memory = memory.ok_or(SciError::NoSuchSegment)?;
        if self.desc.context.is_lost(request.node) {
            return fail(SciError::NoSuchSegment);
        }
        let is_of_group = self.flags & flags::BROADCAST != 0;
        if request.kind() == Some(PacketKind::Attach) {
            let to_group = request.value & flags::BROADCAST != 0 && is_of_group;
            if !to_group && !state.shared {
                return fail(SciError::Access);
            }
        } else if !state.is_available(request.adapter) {
            return fail(SciError::NoSuchSegment);
        }
        let fd: OwnedFd = memory.fd().try_clone_to_owned().map_err(|_| SciError::Nospc)?;
        Ok(Grant { size: memory.size() as u64, fd })
    }

    fn joined(&self, request: &Packet) {
        self.tell(request, EventReason::Connect);
    }

    fn left(&self, request: &Packet, gracefully: bool) {
        let reason = if gracefully { EventReason::Disconnect } else { EventReason::Lost };
        self.tell(request, reason);
    }
}

impl LocalSegment {
    /// Reports an event of a connection. Attached processes are no connections.
    fn tell(&self, request: &Packet, reason: EventReason) {
        if request.kind() == Some(PacketKind::Connect) {
            self.show_connections();
            self.happened(LocalEvent {
                reason,
                node: request.node,
                adapter: request.adapter,
                status: SciError::Ok,
            });
        }
    }
}

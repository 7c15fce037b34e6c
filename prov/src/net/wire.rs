// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "posts buffers to another provider through C")]
//! End of a network: an endpoint of another provider, with the buffers of its operations.
//!
//! Not about the content of messages. Each operation has a slot with its buffer, which the provider
//! owns from the post to the completion. The address of a slot's context identifies it.

use std::cell::UnsafeCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr;
use std::sync::Arc;

use libfabric_sys as fi;
use scif::{
    JobKey, MESSAGE_MAX, Maker, NetWire, PeerLimits, ReadPosted, ReadSupport, WireEvent,
    WireMemory, WirePeer,
};
use scif_ring::copy::Mem;

use super::{NetDomain, call, call_fid, checked, close, note_failure};
use crate::base::addr::{ADDR_LEN, Addr};
use crate::base::env;
use crate::base::errno::{self, Errno};
use crate::base::log::{Subsys, warn};

/// Maximum number of endpoints of a domain whose descriptors are watched. The kernel permits ten
/// descriptor sets of the program to watch one socket through ours, and all endpoints of `tcp`
/// share their sockets (`epoll_ctl(2)`, EINVAL). Further endpoints poll instead of waiting.
const WATCHED_MAX: usize = 8;
/// Number of receives that are posted. A smaller one stops the network's progress while a poll
/// handles messages, a larger one occupies 64.5 KiB more each, beyond a level-2 cache.
const RECEIVES: usize = 16;
/// Maximum number of sends in progress. Further ones wait in the rings.
const SENDS: usize = 64;
/// Maximum number of reads of memory in progress. Further ones wait for their turn.
const MEMORY_READS: usize = 64;
/// Maximum number of buffers that are kept for later messages. A smaller one costs allocations, a
/// larger one occupies 64.5 KiB more each.
const SPARE_MAX: usize = 8;
/// Maximum number of buffers of receives that are taken and not given back. A smaller one costs
/// copies, a larger one occupies 64.5 KiB more each.
const TAKEN_MAX: usize = 8;
/// Number of completions taken by one read.
const COMPLETIONS: usize = 16;
/// Maximum number of reads of one poll, so that a flood of messages does not hold the caller.
const READS: usize = 2;

/// Memory that the provider uses during an operation, as large as the largest that it may ask for.
type Context = UnsafeCell<fi::fi_context2>;

/// Message that was sent, or could not be.
#[derive(Debug)]
struct InFlight {
    to: WirePeer,
    /// Owned by the provider until the completion, so not read or written here.
    message: Vec<u8>,
}

/// Receives of an endpoint.
#[derive(Debug)]
struct Receives {
    buffers: Vec<Vec<u8>>,
    /// Buffers of the full length that were given back, and the number of those that are not.
    spare: Vec<Vec<u8>>,
    taken_buffers: usize,
    /// Receives to post again before the next read of completions. A reply of the caller to their
    /// messages is sent first.
    taken: Vec<usize>,
}

impl Receives {
    fn new() -> Receives {
        let buffers = (0..RECEIVES).map(|_| vec![0; MESSAGE_MAX]).collect();
        let taken = Vec::with_capacity(RECEIVES);
        Receives { buffers, spare: Vec::new(), taken_buffers: 0, taken }
    }

    /// Passes on the message of a receive, of `len` bytes. It is copied if too many buffers are
    /// taken, so that a peer cannot occupy them by short bodies.
    fn deliver(&mut self, slot: usize, len: usize, on: &mut dyn FnMut(WireEvent<'_>)) {
        let Some(buffer) = self.buffers.get_mut(slot) else { return };
        let Some(bytes) = buffer.get(..len) else { return };
        if self.taken_buffers >= TAKEN_MAX {
            return on(WireEvent::Message(&mut bytes.to_vec(), len));
        }
        on(WireEvent::Message(buffer, len));
        self.taken_buffers += usize::from(buffer.is_empty());
    }

    /// Keeps a buffer that was taken, for a later receive.
    fn give_back(&mut self, buffer: Vec<u8>) {
        if buffer.len() == MESSAGE_MAX {
            self.taken_buffers = self.taken_buffers.saturating_sub(1);
            self.spare.push(buffer);
        }
    }

    /// Returns the buffer of a receive that is to be posted.
    fn buffer(&mut self, slot: usize) -> Option<&mut Vec<u8>> {
        let buffer = self.buffers.get_mut(slot)?;
        if buffer.len() < MESSAGE_MAX {
            // The last one was taken.
            *buffer = self.spare.pop().unwrap_or_else(|| vec![0; MESSAGE_MAX]);
        }
        Some(buffer)
    }
}

/// Sends of an endpoint.
#[derive(Debug)]
struct Sends {
    slots: Vec<Option<InFlight>>,
    free: Vec<usize>,
    /// Buffers without content, for the next messages.
    spare: Vec<Vec<u8>>,
}

impl Sends {
    fn new() -> Sends {
        let slots = (0..SENDS).map(|_| None).collect();
        Sends { slots, free: (0..SENDS).rev().collect(), spare: Vec::new() }
    }

    /// Frees the slot of a send.
    fn finish(&mut self, at: usize) -> Option<InFlight> {
        let sent = self.slots.get_mut(at)?.take()?;
        self.free.push(at);
        Some(sent)
    }

    /// Keeps the buffer of a message, for a later one.
    fn keep(&mut self, sent: InFlight) {
        let InFlight { mut message, .. } = sent;
        if self.spare.len() < SPARE_MAX {
            message.clear();
            self.spare.push(message);
        }
    }
}

/// End of a network.
#[derive(Debug)]
pub(crate) struct EndpointWire {
    net: Arc<NetDomain>,
    ep: *mut fi::fid_ep,
    cq: *mut fi::fid_cq,
    fd: RawFd,
    name: SocketAddrV4,
    provider: String,
    /// Contexts of the receives, then of the sends, then of the reads of memory.
    contexts: Box<[Context]>,
    receives: Receives,
    sends: Sends,
    /// Completions of the last read.
    polled: [fi::fi_cq_msg_entry; COMPLETIONS],
    memory: MemoryReads,
    /// Messages whose post failed.
    lost: VecDeque<InFlight>,
    /// Numbers of peers, each with the number of its uses.
    uses: HashMap<u64, usize>,
    /// Uses that end once no message to the peer is in progress.
    ending: Vec<WirePeer>,
    creator: Maker,
}

// SAFETY: the objects may be used by any thread, one at a time. A wire is used by one thread at a
// time, and takes the gate of its domain for each call.
unsafe impl Send for EndpointWire {}

/// Reads of memory, in both directions.
#[derive(Debug)]
struct MemoryReads {
    /// Numbers of the reads in progress, and their peers.
    reads: Vec<Option<(u64, WirePeer)>>,
    free: Vec<usize>,
    /// Registrations of memory that peers may read.
    exposed: HashMap<u64, *mut fi::fid_mr>,
}

impl EndpointWire {
    /// Opens an endpoint with that port, 0 for any, at `ip`, or at the provider's first address if
    /// that is not specified.
    ///
    /// # Errors
    /// Errors of the provider.
    pub(crate) fn open(
        net: &Arc<NetDomain>,
        ip: Ipv4Addr,
        port: u16,
    ) -> Result<EndpointWire, Errno> {
        let contexts =
            (0..RECEIVES + SENDS + MEMORY_READS).map(|_| UnsafeCell::default()).collect();
        let mut wire = EndpointWire {
            net: Arc::clone(net),
            ep: ptr::null_mut(),
            cq: ptr::null_mut(),
            fd: -1,
            name: SocketAddrV4::new(ip, port),
            provider: net.provider().to_string_lossy().into_owned(),
            contexts,
            receives: Receives::new(),
            sends: Sends::new(),
            polled: [fi::fi_cq_msg_entry::default(); COMPLETIONS],
            memory: MemoryReads {
                reads: vec![None; MEMORY_READS],
                free: (0..MEMORY_READS).rev().collect(),
                exposed: HashMap::new(),
            },
            lost: VecDeque::new(),
            uses: HashMap::new(),
            ending: Vec::new(),
            creator: Maker::here(),
        };
        if let Err(errno) = wire.set_up() {
            wire.warn_of(SocketAddrV4::new(ip, port), errno);
            return Err(errno);
        }
        Ok(wire)
    }

    /// Logs that no endpoint can be opened at `wanted`.
    fn warn_of(&self, wanted: SocketAddrV4, errno: Errno) {
        let remedy = match errno {
            fi::FI_EADDRINUSE => "Another process has the port: request another one, or any",
            fi::FI_EADDRNOTAVAIL => "Request an address of an interface of this host that is up",
            fi::FI_EMFILE => "Raise the limit of open files (ulimit -n)",
            fi::FI_ENOMEM => "Raise the limit of memory (ulimit -v, control group)",
            _ => {
                "FI_LOG_LEVEL=warn shows the reason of the provider; FI_SCIF_NET selects another \
                 one, or 'none'"
            }
        };
        let text = errno::text(errno);
        warn(
            Subsys::EpCtrl,
            format_args!(
                "no endpoint of the network {} can be opened at {wanted}: {text}. {remedy}",
                self.provider
            ),
        );
    }

    fn set_up(&mut self) -> Result<(), Errno> {
        let net = Arc::clone(&self.net);
        let mut objects = net.lock();
        let mut attr = fi::fi_cq_attr {
            size: RECEIVES + SENDS + MEMORY_READS,
            flags: 0,
            format: fi::FI_CQ_FORMAT_MSG,
            wait_obj: fi::FI_WAIT_FD,
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: ptr::null_mut(),
        };
        let context = ptr::null_mut();
        let code = call!(objects.domain, ops.cq_open(&raw mut attr, &raw mut self.cq, context));
        checked(net.provider(), "fi_cq_open", code)?;
        if objects.watched < WATCHED_MAX {
            let fd = (&raw mut self.fd).cast::<c_void>();
            checked(
                net.provider(),
                "fi_control for FI_GETWAIT",
                call_fid!(self.cq, control(fi::FI_GETWAIT, fd)),
            )?;
            objects.watched += 1;
        }
        // SAFETY: the info of the domain.
        let own = unsafe { (net.openers.dupinfo)(objects.info) };
        if own.is_null() {
            return Err(fi::FI_ENOMEM);
        }
        self.name_source(own);
        let context = ptr::null_mut();
        let code = call!(objects.domain, ops.endpoint(own, &raw mut self.ep, context));
        // SAFETY: made by dupinfo, and not used below.
        unsafe { (net.openers.freeinfo)(own) };
        checked(net.provider(), "fi_endpoint", code)?;
        let flags = fi::FI_TRANSMIT | fi::FI_RECV;
        checked(
            net.provider(),
            "fi_ep_bind of the queue",
            call_fid!(self.ep, bind(self.cq.cast(), flags)),
        )?;
        checked(
            net.provider(),
            "fi_ep_bind of the vector",
            call_fid!(self.ep, bind(objects.av.cast(), 0)),
        )?;
        let none = ptr::null_mut();
        checked(net.provider(), "fi_enable", call_fid!(self.ep, control(fi::FI_ENABLE, none)))?;
        let mut bytes = [0_u8; ADDR_LEN];
        let mut len = ADDR_LEN;
        let code = call!(self.ep, cm.getname(bytes.as_mut_ptr().cast(), &raw mut len));
        checked(net.provider(), "fi_getname", code)?;
        let name = Addr::from_bytes(&bytes).filter(|name| name.port != 0 && len == ADDR_LEN);
        let name = name.ok_or(fi::FI_EADDRNOTAVAIL)?;
        self.name = SocketAddrV4::new(name.ip, name.port);
        drop(objects);
        for slot in 0..RECEIVES {
            self.post_receive(slot)?;
        }
        Ok(())
    }

    /// Writes the requested address into the info of the endpoint.
    fn name_source(&self, info: *mut fi::fi_info) {
        // SAFETY: a copy that nobody else has.
        let Some(info) = (unsafe { info.as_mut() }) else { return };
        if info.src_addrlen != ADDR_LEN || info.src_addr.is_null() {
            return;
        }
        let at = info.src_addr.cast::<[u8; ADDR_LEN]>();
        // SAFETY: an address of that length. Any alignment is read.
        let Some(own) = Addr::from_bytes(&unsafe { at.read_unaligned() }) else { return };
        let ip = *self.name.ip();
        let is_given = !ip.is_unspecified() && !ip.is_loopback();
        let ip = if is_given { ip } else { own.ip };
        let bytes = Addr::this_host(ip, self.name.port()).to_bytes();
        // SAFETY: as above, and no one else reads it.
        unsafe { at.write_unaligned(bytes) };
    }

    fn context(&self, at: usize) -> *mut c_void {
        self.contexts.get(at).map_or(ptr::null_mut(), |context| context.get().cast())
    }

    /// Returns the index of an operation's context.
    fn slot_of(&self, context: *mut c_void) -> Option<usize> {
        let behind = context.addr().checked_sub(self.contexts.as_ptr().addr())?;
        let at = behind / size_of::<Context>();
        (at < self.contexts.len() && behind % size_of::<Context>() == 0).then_some(at)
    }

    fn post_receive(&mut self, slot: usize) -> Result<(), Errno> {
        let context = self.context(slot);
        let Some(buffer) = self.receives.buffer(slot) else { return Err(fi::FI_EINVAL) };
        let (to, len) = (buffer.as_mut_ptr().cast(), buffer.len());
        let _gate = self.net.lock();
        let none = ptr::null_mut();
        let code = call!(self.ep, msg.recv(to, len, none, fi::FI_ADDR_UNSPEC, context));
        // FI_EAGAIN: more are posted than the endpoint announces, which cannot happen.
        checked(self.net.provider(), "fi_recv", i32::try_from(code).unwrap_or(-fi::FI_EOTHER))
    }

    /// Handles one completion.
    fn complete(&mut self, entry: &fi::fi_cq_msg_entry, on: &mut dyn FnMut(WireEvent<'_>)) {
        let Some(slot) = self.slot_of(entry.op_context) else { return };
        if let Some(at) = slot.checked_sub(RECEIVES + SENDS) {
            return self.end_read(at, true, on);
        }
        if slot >= RECEIVES {
            if let Some(sent) = self.sends.finish(slot - RECEIVES) {
                self.sends.keep(sent);
            }
            return;
        }
        self.receives.deliver(slot, entry.len, on);
        self.receives.taken.push(slot);
    }

    /// Posts the receives again whose messages were handled.
    fn repost_taken(&mut self) {
        while let Some(slot) = self.receives.taken.pop() {
            self.repost(slot);
        }
    }

    /// Posts a receive again, unless the network is stopped. Its queue may still report some.
    fn repost(&mut self, slot: usize) {
        if self.ep.is_null() {
            return;
        }
        if let Err(errno) = self.post_receive(slot) {
            let provider = self.net.provider();
            note_failure(
                provider,
                format_args!("a receive is missing from now on, {}", errno::text(errno)),
            );
        }
    }

    /// Frees the slot of a read of memory, and reports its end.
    fn end_read(&mut self, at: usize, is_done: bool, on: &mut dyn FnMut(WireEvent<'_>)) {
        let Some((number, _)) = self.memory.reads.get_mut(at).and_then(Option::take) else {
            return;
        };
        self.memory.free.push(at);
        on(WireEvent::ReadEnded { number, is_done });
    }

    /// Ends the uses of peers to which no message is in progress. A later loss of one would be
    /// reported for the next peer with its number.
    fn end_uses(&mut self) {
        for peer in std::mem::take(&mut self.ending) {
            if self.sends.slots.iter().flatten().any(|sent| sent.to == peer) {
                self.ending.push(peer);
                continue;
            }
            self.net.lock().release(peer.0);
            if let Some(uses) = self.uses.get_mut(&peer.0) {
                *uses -= 1;
                if *uses == 0 {
                    self.uses.remove(&peer.0);
                }
            }
        }
    }

    /// Logs that an operation with a peer has failed.
    fn note_lost(&self, operation: &str, peer: Option<WirePeer>, errno: Errno) {
        let objects = self.net.lock();
        let peer = objects.shown(peer.map_or(u64::MAX, |peer| peer.0));
        let text = errno::text(errno);
        note_failure(
            objects.provider,
            format_args!("{operation} {peer} failed, {text}. Check that host and its process"),
        );
    }

    /// Handles one failed operation.
    fn fail(&mut self, on: &mut dyn FnMut(WireEvent<'_>)) {
        let mut entry = fi::fi_cq_err_entry::default();
        let gate = self.net.lock();
        let count = call!(self.cq, ops.readerr(&raw mut entry, 0));
        drop(gate);
        let Some(slot) = (count == 1).then(|| self.slot_of(entry.op_context)).flatten() else {
            return;
        };
        if slot < RECEIVES {
            self.repost(slot);
        } else if let Some(at) = slot.checked_sub(RECEIVES + SENDS) {
            let from = self.memory.reads.get(at).copied().flatten().map(|(_, from)| from);
            self.note_lost("a read from", from, entry.err);
            self.end_read(at, false, on);
        } else if let Some(sent) = self.sends.finish(slot - RECEIVES) {
            self.note_lost("a message to", Some(sent.to), entry.err);
            on(WireEvent::Lost(sent.to, &sent.message));
            self.sends.keep(sent);
        }
    }
}

impl NetWire for EndpointWire {
    fn name(&self) -> SocketAddrV4 {
        self.name
    }

    fn provider(&self) -> &str {
        &self.provider
    }

    fn limits(&self) -> PeerLimits {
        let limits = env::env().net;
        PeerLimits { refused_ns: limits.timeout_ns, silent_ns: limits.silence_ns }
    }

    fn key(&self) -> Option<JobKey> {
        env::env().net.key
    }

    fn peer(&mut self, name: SocketAddrV4) -> scif::Result<WirePeer> {
        let number = self.net.lock().peer(name);
        let number = number.map_err(|errno| scif::Error::network("fi_av_insert", errno))?;
        *self.uses.entry(number).or_default() += 1;
        Ok(WirePeer(number))
    }

    fn release(&mut self, peer: WirePeer) {
        self.ending.push(peer);
    }

    fn buffer(&mut self) -> Vec<u8> {
        self.sends.spare.pop().unwrap_or_else(|| Vec::with_capacity(MESSAGE_MAX))
    }

    fn give_back(&mut self, buffer: Vec<u8>) {
        self.receives.give_back(buffer);
    }

    fn send(&mut self, to: WirePeer, message: Vec<u8>) -> Result<(), Vec<u8>> {
        if self.ep.is_null() {
            self.lost.push_back(InFlight { to, message });
            return Ok(());
        }
        let Some(at) = self.sends.free.pop() else {
            return Err(message);
        };
        let context = self.context(RECEIVES + at);
        let (from, len) = (message.as_ptr().cast(), message.len());
        let gate = self.net.lock();
        let none = ptr::null_mut();
        let code = call!(self.ep, msg.send(from, len, none, to.0, context));
        drop(gate);
        if code == 0 {
            if let Some(slot) = self.sends.slots.get_mut(at) {
                *slot = Some(InFlight { to, message });
            }
            return Ok(());
        }
        self.sends.free.push(at);
        if code == -(fi::FI_EAGAIN as isize) {
            return Err(message);
        }
        let errno = i32::try_from(-code).unwrap_or(fi::FI_EOTHER);
        self.note_lost("a message to", Some(to), errno);
        self.lost.push_back(InFlight { to, message });
        Ok(())
    }

    fn poll(&mut self, on: &mut dyn FnMut(WireEvent<'_>)) {
        for _ in 0..READS {
            self.repost_taken();
            let gate = self.net.lock();
            let count = call!(self.cq, ops.read(self.polled.as_mut_ptr().cast(), COMPLETIONS));
            drop(gate);
            if count == -(fi::FI_EAVAIL as isize) {
                self.fail(on);
                continue;
            }
            let count = usize::try_from(count).unwrap_or(0);
            for at in 0..count.min(COMPLETIONS) {
                if let Some(entry) = self.polled.get(at).copied() {
                    self.complete(&entry, on);
                }
            }
            if count < COMPLETIONS {
                break;
            }
        }
        // Without a posted receive the network may stop reading, and its descriptor stays silent.
        if self.receives.taken.len() == RECEIVES {
            self.repost_taken();
        }
        while let Some(sent) = self.lost.pop_front() {
            on(WireEvent::Lost(sent.to, &sent.message));
            self.sends.keep(sent);
        }
        if !self.ending.is_empty() {
            self.end_uses();
        }
    }

    fn has_room(&self) -> bool {
        !self.sends.free.is_empty()
    }

    fn read_support(&self) -> ReadSupport {
        match self.net.lock().reads {
            None => ReadSupport::None,
            Some(rules) if rules.is_ordered => ReadSupport::Ordered,
            Some(_) => ReadSupport::Unordered,
        }
    }

    fn expose(&mut self, range: &Mem) -> Option<WireMemory> {
        let objects = self.net.lock();
        let rules = objects.reads.filter(|rules| range.len() <= rules.len_max)?;
        let wanted =
            if rules.chooses_keys { 0 } else { RandomState::new().build_hasher().finish() };
        let mut mr = ptr::null_mut();
        let (from, len, context) =
            (range.as_ptr().cast_const().cast(), range.len(), ptr::null_mut());
        let (access, key) = (fi::FI_REMOTE_READ, wanted & rules.key_max);
        let code =
            call!(objects.domain, mr.reg(from, len, access, 0, key, 0, &raw mut mr, context));
        checked(self.net.provider(), "fi_mr_reg", code).ok()?;
        // SAFETY: a new registration.
        let key = unsafe { (*mr).key };
        self.memory.exposed.insert(key, mr);
        Some(WireMemory { addr: if rules.by_address { range.addr() as u64 } else { 0 }, key })
    }

    fn revoke(&mut self, key: u64) {
        if let Some(mr) = self.memory.exposed.remove(&key) {
            let _gate = self.net.lock();
            close(self.net.provider(), mr, "fi_close of a registration");
        }
    }

    fn read(&mut self, from: WirePeer, memory: WireMemory, to: &Mem, number: u64) -> ReadPosted {
        let objects = self.net.lock();
        let rules = objects.reads.filter(|rules| to.len() <= rules.len_max);
        if self.ep.is_null() || rules.is_none() {
            return ReadPosted::Refused;
        }
        let Some(at) = self.memory.free.pop() else { return ReadPosted::Later };
        let context = self.context(RECEIVES + SENDS + at);
        let (into, len, none) = (to.as_ptr().cast(), to.len(), ptr::null_mut());
        let WireMemory { addr, key } = memory;
        let code = call!(self.ep, rma.read(into, len, none, from.0, addr, key, context));
        if code == 0 {
            if let Some(slot) = self.memory.reads.get_mut(at) {
                *slot = Some((number, from));
            }
            return ReadPosted::Taken;
        }
        self.memory.free.push(at);
        if code == -(fi::FI_EAGAIN as isize) {
            return ReadPosted::Later;
        }
        let errno = i32::try_from(-code).unwrap_or(fi::FI_EOTHER);
        drop(objects);
        self.note_lost("a read from", Some(from), errno);
        ReadPosted::Refused
    }

    fn stop(&mut self) {
        let net = Arc::clone(&self.net);
        let _gate = net.lock();
        let ep = std::mem::replace(&mut self.ep, ptr::null_mut());
        close(net.provider(), ep, "fi_close of the endpoint");
    }

    fn is_quiet(&self) -> bool {
        self.sends.free.len() == SENDS
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor of the completion queue, open until the wire is dropped.
        (self.fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(self.fd) })
    }

    fn may_sleep(&mut self) -> bool {
        // The next poll reports these losses.
        if !self.lost.is_empty() {
            return false;
        }
        let objects = self.net.lock();
        let mut fids: [*mut fi::fid; 1] = [self.cq.cast()];
        call!(objects.fabric, ops.trywait(fids.as_mut_ptr(), 1)) == 0
    }
}

impl Drop for EndpointWire {
    fn drop(&mut self) {
        // The sockets belong to the parent as well, and the parent's buffers are in use.
        if self.creator.is_ancestor() {
            return;
        }
        let net = Arc::clone(&self.net);
        let mut objects = net.lock();
        close(net.provider(), self.ep, "fi_close of the endpoint");
        close(net.provider(), self.cq, "fi_close of the queue");
        objects.watched -= usize::from(self.fd >= 0);
        for (number, uses) in std::mem::take(&mut self.uses) {
            (0..uses).for_each(|_| objects.release(number));
        }
        for mr in std::mem::take(&mut self.memory.exposed).into_values() {
            close(net.provider(), mr, "fi_close of a registration");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Delivers a message whose buffer the caller takes; returns that buffer.
    fn delivered(receives: &mut Receives, slot: usize, content: &[u8]) -> Vec<u8> {
        let len = content.len();
        receives.buffer(slot).unwrap()[..len].copy_from_slice(content);
        let mut taken = Vec::new();
        receives.deliver(slot, len, &mut |event| {
            let WireEvent::Message(buffer, len) = event else { panic!("{event:?}") };
            assert_eq!(&buffer[..len], content);
            taken = std::mem::take(buffer);
        });
        taken
    }

    #[test]
    fn buffers_of_receives_are_taken_up_to_a_limit_and_then_copied() {
        let mut receives = Receives::new();
        let mut taken: Vec<Vec<u8>> =
            (0..TAKEN_MAX).map(|slot| delivered(&mut receives, slot, &[7; 2000])).collect();
        assert!(taken.iter().all(|buffer| buffer.len() == MESSAGE_MAX));
        let last = TAKEN_MAX;
        for content in [&[1; 9][..], &[], &[2; MESSAGE_MAX - 1]] {
            let at = receives.buffers[last].as_ptr();
            let copy = delivered(&mut receives, last, content);
            assert_eq!((copy.len(), receives.buffers[last].as_ptr()), (content.len(), at));
            receives.give_back(copy);
        }
        receives.give_back(taken.pop().unwrap());
        assert_eq!(delivered(&mut receives, last, b"again").len(), MESSAGE_MAX);
        assert_eq!(delivered(&mut receives, last, b"copied").len(), 6);
    }

    #[test]
    fn messages_that_are_not_taken_leave_their_buffers() {
        let mut receives = Receives::new();
        for number in 0..2 * TAKEN_MAX {
            let slot = number % RECEIVES;
            let mut events = 0;
            receives.deliver(slot, 100, &mut |_| events += 1);
            assert_eq!((events, receives.taken_buffers), (1, 0));
        }
        let mut none = |event: WireEvent<'_>| panic!("{event:?}");
        receives.deliver(RECEIVES, 100, &mut none);
        receives.deliver(0, MESSAGE_MAX + 1, &mut none);
    }

    #[test]
    fn buffers_that_were_given_back_replace_taken_ones() {
        let mut receives = Receives::new();
        let taken = delivered(&mut receives, 3, b"first");
        let at = taken.as_ptr();
        receives.give_back(taken);
        assert_eq!(receives.buffer(3).unwrap().as_ptr(), at);
        drop(delivered(&mut receives, 3, b"second"));
        assert_eq!(receives.buffer(3).unwrap().len(), MESSAGE_MAX, "another one");
    }
}

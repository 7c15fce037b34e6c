// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Foundation of the cases: processes that are nodes, and segments between them.
#![expect(unsafe_code, reason = "the environment, and memory of mappings")]

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use scif_fabtests::harness::process::{Cue, Process};

use crate::api::{Answer, Api, Handle};

/// Codes of errors without their mask.
pub(crate) mod code {
    pub(crate) const BUSY: u32 = 0x900;
    pub(crate) const FLAG_NOT_IMPLEMENTED: u32 = 0x901;
    pub(crate) const ILLEGAL_FLAG: u32 = 0x902;
    pub(crate) const NOSPC: u32 = 0x904;
    pub(crate) const ILLEGAL_ADAPTERNO: u32 = 0x908;
    pub(crate) const NO_SUCH_ADAPTERNO: u32 = 0x909;
    pub(crate) const TIMEOUT: u32 = 0x90A;
    pub(crate) const OUT_OF_RANGE: u32 = 0x90B;
    pub(crate) const NO_SUCH_SEGMENT: u32 = 0x90C;
    pub(crate) const ILLEGAL_NODEID: u32 = 0x90D;
    pub(crate) const SEGMENT_NOT_CONNECTED: u32 = 0x90F;
    pub(crate) const SIZE_ALIGNMENT: u32 = 0x910;
    pub(crate) const OFFSET_ALIGNMENT: u32 = 0x911;
    pub(crate) const ILLEGAL_PARAMETER: u32 = 0x912;
    pub(crate) const MAX_ENTRIES: u32 = 0x913;
    pub(crate) const SEGMENT_NOT_PREPARED: u32 = 0x914;
    pub(crate) const ILLEGAL_ADDRESS: u32 = 0x915;
    pub(crate) const ILLEGAL_OPERATION: u32 = 0x916;
    pub(crate) const ILLEGAL_QUERY: u32 = 0x917;
    pub(crate) const SEGMENTID_USED: u32 = 0x918;
    pub(crate) const SYSTEM: u32 = 0x919;
    pub(crate) const CANCELLED: u32 = 0x91A;
    pub(crate) const NOT_CONNECTED: u32 = 0x91B;
    pub(crate) const OVERFLOW: u32 = 0x91F;
    pub(crate) const NOT_INITIALIZED: u32 = 0x920;
    pub(crate) const ACCESS: u32 = 0x921;
    pub(crate) const NOT_SUPPORTED: u32 = 0x922;
    pub(crate) const INTNO_USED: u32 = 0x926;
    pub(crate) const NO_SUCH_NODEID: u32 = 0xA00;
    pub(crate) const TRANSFER_FAILED: u32 = 0xA06;
}

/// Reasons of events.
pub(crate) const CONNECT: u32 = 1;
pub(crate) const DISCONNECT: u32 = 2;
pub(crate) const LOST: u32 = 5;
/// `SCI_SEQ_OK`, `SCI_SEQ_RETRIABLE`, `SCI_SEQ_NOT_RETRIABLE`
pub(crate) const SEQ_OK: u32 = 0;
pub(crate) const SEQ_RETRIABLE: u32 = 1;
pub(crate) const SEQ_NOT_RETRIABLE: u32 = 2;
/// `SCI_CALLBACK_CANCEL`, `SCI_CALLBACK_CONTINUE`
pub(crate) const CANCEL: u32 = 1;
pub(crate) const CONTINUE: u32 = 2;
/// States of a DMA queue.
pub(crate) const IDLE: u32 = 0;
pub(crate) const GATHER: u32 = 1;
pub(crate) const POSTED: u32 = 2;
pub(crate) const DONE: u32 = 3;
/// `SCI_INFINITE_TIMEOUT`
pub(crate) const INFINITE: u32 = u32::MAX;
/// Time in milliseconds after which an event that has to come counts as missing.
pub(crate) const LONG: u32 = 60_000;
/// Time in milliseconds for an event that must not come.
pub(crate) const SHORT: u32 = 50;
/// Nodes of the processes of a case.
pub(crate) const OWNER: u32 = 4;
pub(crate) const OTHER: u32 = 8;

pub(crate) fn set_env(name: &str, value: &str) {
    // SAFETY: called before the library is used, in a process with one thread.
    unsafe { std::env::set_var(name, value) };
}

/// Descriptor of a case.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    pub(crate) api: &'a Api,
    pub(crate) sd: Handle,
}

impl<'a> Node<'a> {
    /// Joins a node and opens a descriptor.
    pub(crate) fn join(api: &'a Api, node: u32) -> Node<'a> {
        set_env("SISCI_NODE", &node.to_string());
        api.SCIInitialize(0).unwrap();
        Node { api, sd: open(api).unwrap() }
    }

    pub(crate) fn create(&self, id: u32, size: usize, flags: u32) -> Answer<Handle> {
        let mut segment = null_mut();
        self.api
            .SCICreateSegment(self.sd, &raw mut segment, id, size, None, null_mut(), flags)
            .map(|()| segment)
    }

    /// Creates a segment that others can connect to.
    pub(crate) fn export(&self, id: u32, size: usize, flags: u32) -> Handle {
        let segment = self.create(id, size, flags).unwrap();
        self.api.SCIPrepareSegment(segment, 0, 0).unwrap();
        self.api.SCISetSegmentAvailable(segment, 0, 0).unwrap();
        segment
    }

    pub(crate) fn connect(&self, node: u32, id: u32) -> Answer<Handle> {
        self.connect_with(node, id, 0)
    }

    pub(crate) fn connect_with(&self, node: u32, id: u32, flags: u32) -> Answer<Handle> {
        let mut segment = null_mut();
        let at = &raw mut segment;
        self.api
            .SCIConnectSegment(self.sd, at, node, id, 0, None, null_mut(), LONG, flags)
            .map(|()| segment)
    }

    pub(crate) fn map(&self, segment: Handle, offset: usize, size: usize) -> Answer<View> {
        let mut map = null_mut();
        let at =
            self.api.SCIMapRemoteSegment(segment, &raw mut map, offset, size, null_mut(), 0)?;
        Ok(View { map, at: at.expose_provenance() })
    }

    pub(crate) fn map_local(&self, segment: Handle, offset: usize, size: usize) -> Answer<View> {
        let mut map = null_mut();
        let at = self.api.SCIMapLocalSegment(segment, &raw mut map, offset, size, null_mut(), 0)?;
        Ok(View { map, at: at.expose_provenance() })
    }

    /// Waits for an event of a local segment: reason and node.
    pub(crate) fn event(&self, segment: Handle, timeout: u32) -> Answer<(u32, u32)> {
        let (mut node, mut adapter) = (0, u32::MAX);
        let (node_at, adapter_at) = (&raw mut node, &raw mut adapter);
        let reason =
            self.api.SCIWaitForLocalSegmentEvent(segment, node_at, adapter_at, timeout, 0)?;
        assert_eq!(adapter, 0);
        Ok((reason, node))
    }

    /// Waits for an event of a remote segment: reason and status.
    pub(crate) fn remote_event(&self, segment: Handle, timeout: u32) -> Answer<(u32, u32)> {
        let mut status = u32::MAX;
        let reason = self.api.SCIWaitForRemoteSegmentEvent(segment, &raw mut status, timeout, 0)?;
        Ok((reason, status & 0xFFF))
    }

    /// Closes the descriptor and leaves the node.
    pub(crate) fn leave(self) {
        self.api.SCIClose(self.sd, 0).unwrap();
        self.api.terminate();
        let unusable = open(self.api);
        assert_eq!(unusable.err(), Some(code::NOT_INITIALIZED), "an object is left");
    }
}

pub(crate) fn open(api: &Api) -> Answer<Handle> {
    let mut sd = null_mut();
    api.SCIOpen(&raw mut sd, 0).map(|()| sd)
}

/// Mapping of a case.
#[derive(Clone, Copy)]
pub(crate) struct View {
    pub(crate) map: Handle,
    pub(crate) at: usize,
}

impl View {
    pub(crate) fn store(&self, offset: usize, value: u32) {
        let at = std::ptr::with_exposed_provenance_mut::<u32>(self.at + offset);
        // SAFETY: memory of a mapping of the case.
        unsafe { at.write_volatile(value) };
    }

    pub(crate) fn load(&self, offset: usize) -> u32 {
        let at = std::ptr::with_exposed_provenance::<u32>(self.at + offset);
        // SAFETY: as in `store`.
        unsafe { at.read_volatile() }
    }
}

/// Runs a case in two processes, each with its own node. They meet by cues.
pub(crate) fn two(
    api: &Api,
    owner: impl FnOnce(Node<'_>, &Cue),
    other: impl FnOnce(Node<'_>, &Cue),
) {
    let (mine, theirs) = Cue::pair();
    let process = Process::start(move || other(Node::join(api, OTHER), &theirs));
    owner(Node::join(api, OWNER), &mine);
    process.wait();
}

/// Runs a case whose other process is killed when the owner asks for it.
pub(crate) fn two_with_kill(
    api: &Api,
    owner: impl FnOnce(Node<'_>, &Cue, &Process),
    other: impl FnOnce(Node<'_>, &Cue),
) {
    let (mine, theirs) = Cue::pair();
    let process = Process::start(move || other(Node::join(api, OTHER), &theirs));
    owner(Node::join(api, OWNER), &mine, &process);
}

/// Waits until the process is killed.
pub(crate) fn sleep_for_ever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Channel from a callback to its case.
pub(crate) struct Told<T> {
    sender: Mutex<Sender<T>>,
    action: u32,
}

/// Makes the argument of a callback, which lives as long as the process.
pub(crate) fn told<T>(action: u32) -> (*mut c_void, Receiver<T>) {
    let (sender, receiver) = channel();
    let told = Box::leak(Box::new(Told { sender: Mutex::new(sender), action }));
    (std::ptr::from_mut(told).cast(), receiver)
}

impl<T> Told<T> {
    /// Passes a value on from a callback, and returns the action that the case wants.
    ///
    /// # Safety
    /// `arg` comes from [`told`] for the same type.
    pub(crate) unsafe fn tell(arg: *mut c_void, value: T) -> u32 {
        // SAFETY: the caller's contract; the value is never freed.
        let told = unsafe { &*arg.cast::<Told<T>>() };
        let _ = told.sender.lock().unwrap().send(value);
        told.action
    }
}

/// Time for which a case waits for a callback.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until the kernel has closed all descriptors of a killed process: until each of its threads
/// has ended.
pub(crate) fn until_gone(process: &Process) {
    let is_left = || {
        let place = format!("/proc/{}", process.pid());
        let threads = std::fs::read_dir(format!("{place}/task")).map_or(0, Iterator::count);
        let status = std::fs::read_to_string(format!("{place}/status")).unwrap_or_default();
        threads > 1 || (threads == 1 && !status.contains("State:\tZ"))
    };
    while is_left() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Functions of a SISCI library that is found when a fabric is opened, and the objects that they
//! make. Each object ends its handle when it is dropped.
//!
//! Not about the meaning of segments and interrupts for connections (`hub`).
#![expect(unsafe_code, reason = "functions of a C library, and memory of segments")]

use std::ffi::CStr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use scif_ring::Mem;

use super::abi::{self, SciCode};
use super::callbacks::{Listed, Listener, on_data, on_segment};
use super::functions::{Flags, Functions, Handle, Sci, SegmentCallback, checked, load_error};
use crate::sys::errno::lock;
use crate::sys::fork::Maker;
use crate::sys::time::now_ns;

/// Names of the library: that of the linker's directories, and that of the product's installation.
const NAMES: [&CStr; 2] = [c"libsisci.so", c"/opt/DIS/lib64/libsisci.so"];
/// Number of adapters that are tried: no host has more.
const ADAPTERS: u32 = 16;
/// Objects for which one descriptor of the library is used. The product permits 32 of one kind.
const OBJECTS_MAX: usize = 24;
/// Number of starting ids from which a free segment id is searched.
const ID_TRIES: u32 = 16;
/// Time in nanoseconds for which the removal of a segment is repeated while the library reports
/// that it is in use. Afterwards it stays until the process ends.
const REMOVE_NS: u64 = 1_000_000_000;
/// Pause between these attempts.
const REMOVE_PAUSE: Duration = Duration::from_millis(1);
/// Number of times that a copy is repeated after a transfer error of the link, before the copy
/// fails.
const COPY_TRIES: u32 = 100;

/// A loaded and initialized library, with the adapter in use.
pub(super) struct Library {
    functions: Arc<Functions>,
    flags: Flags,
    name: String,
    adapter: u32,
    node: u32,
    maker: Maker,
    descs: Mutex<Vec<Arc<Desc>>>,
    /// Number by which the next search of a free segment id starts.
    next_id: Mutex<u32>,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} adapter {}", self.name, self.adapter)
    }
}

impl Library {
    /// Loads and initializes the library, and chooses the first adapter with a node id.
    ///
    /// # Errors
    /// A text about what is missing.
    pub(super) fn load(first_id: u32) -> Result<Arc<Library>, String> {
        let mut tried = Vec::new();
        for name in NAMES {
            // SAFETY: a C string; the initialisers of the library may run now.
            let at = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            let text = name.to_string_lossy().into_owned();
            if at.is_null() {
                tried.push(format!("{text}: {}", load_error()));
                continue;
            }
            // Never unloaded: threads of the library run its code until the process ends.
            let found = Functions::find(at).and_then(|found| Ok((found, Flags::find(at)?)));
            match found {
                Ok((functions, flags)) => {
                    return Library::start(Arc::new(functions), flags, text, first_id);
                }
                Err(missing) => tried.push(format!("{text} does not export {missing}")),
            }
        }
        Err(tried.join("; "))
    }

    fn start(
        functions: Arc<Functions>,
        flags: Flags,
        name: String,
        first_id: u32,
    ) -> Result<Arc<Library>, String> {
        // SAFETY: the function of the header, with a place for its code.
        checked(|code| unsafe { (functions.initialize)(0, code) })
            .map_err(|code| format!("{name}: SCIInitialize: {code}"))?;
        let mut last = SciCode::OK;
        for adapter in 0..ADAPTERS {
            let mut node = 0;
            // SAFETY: as above; `node` is a place for the id.
            match checked(|code| unsafe { (functions.local_node)(adapter, &raw mut node, 0, code) })
            {
                Ok(()) => {
                    return Ok(Arc::new(Library {
                        functions,
                        flags,
                        name,
                        adapter,
                        node,
                        maker: Maker::here(),
                        descs: Mutex::default(),
                        next_id: Mutex::new(first_id),
                    }));
                }
                Err(code) => last = code,
            }
        }
        Err(format!("{name}: no adapter has a node id: {last}"))
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the node id of the adapter.
    pub(super) fn node(&self) -> u32 {
        self.node
    }

    /// Whether a parent of this process initialized the library: its objects are the parent's.
    fn is_inherited(&self) -> bool {
        self.maker.is_ancestor()
    }

    /// Returns a descriptor with few enough objects.
    fn desc(self: &Arc<Self>) -> Sci<Arc<Desc>> {
        let mut descs = lock(&self.descs);
        // Closes descriptors without objects.
        descs.retain(|desc| Arc::strong_count(desc) > 1);
        if let Some(desc) = descs.iter().find(|desc| Arc::strong_count(desc) <= OBJECTS_MAX) {
            return Ok(Arc::clone(desc));
        }
        let mut handle = std::ptr::null_mut();
        // SAFETY: a place for the handle, and one for the code.
        checked(|code| unsafe { (self.functions.open)(&raw mut handle, 0, code) })?;
        let functions = Arc::clone(&self.functions);
        let desc = Arc::new(Desc { functions, handle, maker: self.maker });
        descs.push(Arc::clone(&desc));
        Ok(desc)
    }

    fn next_id(&self) -> u32 {
        let mut next = lock(&self.next_id);
        *next = next.wrapping_add(abi::AUTO_IDS);
        *next
    }

    /// Makes a segment. Without `memory` the library allocates it. A number of `id` is demanded;
    /// `None`: any free one.
    pub(super) fn segment(
        self: &Arc<Self>,
        id: Option<u32>,
        size: usize,
        memory: Option<usize>,
    ) -> Sci<LocalSegment> {
        let desc = self.desc()?;
        let empty = if memory.is_some() { abi::FLAG_EMPTY } else { 0 };
        let mut tries = if id.is_some() { 1 } else { ID_TRIES };
        let handle = loop {
            let (id, auto) = id.map_or_else(|| (self.next_id(), abi::FLAG_AUTO_ID), |id| (id, 0));
            let mut handle = std::ptr::null_mut();
            let none = std::ptr::null_mut();
            // SAFETY: an open descriptor, and places for the handle and the code; no callback.
            let made = checked(|code| unsafe {
                let at = &raw mut handle;
                (self.functions.create_segment)(
                    desc.handle,
                    at,
                    id,
                    size,
                    none,
                    none,
                    empty | auto,
                    code,
                );
            });
            tries -= 1;
            match made {
                Ok(()) => break handle,
                Err(SciCode::SEGMENTID_USED) if tries > 0 => {}
                Err(code) => return Err(code),
            }
        };
        let segment = LocalSegment { library: Arc::clone(self), _desc: desc, handle };
        if let Some(addr) = memory {
            segment.register(addr, size)?;
        }
        // SAFETY: the handle is open.
        checked(|code| unsafe { (self.functions.prepare)(handle, self.adapter, 0, code) })?;
        Ok(segment)
    }

    /// Connects to a segment. `listener` is notified of its end. Waits for a stopped owner, up to
    /// the limit in milliseconds if the library observes it.
    pub(super) fn connect(
        self: &Arc<Self>,
        node: u32,
        id: u32,
        listener: Option<Weak<dyn Listener>>,
        limit_ms: u32,
    ) -> Sci<RemoteSegment> {
        let desc = self.desc()?;
        let listed = listener.map(Listed::enter);
        let argument = listed.as_ref().map_or(std::ptr::null_mut(), Listed::argument);
        let callback = listed.as_ref().map(|_| on_segment as SegmentCallback);
        let flags = if listed.is_some() { abi::FLAG_USE_CALLBACK } else { 0 };
        let mut handle = std::ptr::null_mut();
        // SAFETY: an open descriptor, places for the handle and the code, and a callback that
        // accepts any argument.
        checked(|code| unsafe {
            let at = &raw mut handle;
            (self.functions.connect_segment)(
                desc.handle,
                at,
                node,
                id,
                self.adapter,
                callback,
                argument,
                limit_ms,
                flags,
                code,
            );
        })?;
        Ok(RemoteSegment { library: Arc::clone(self), _desc: desc, handle, _listed: listed })
    }

    /// Makes a data interrupt whose data `listener` takes.
    pub(super) fn interrupt(self: &Arc<Self>, listener: Weak<dyn Listener>) -> Sci<LocalInterrupt> {
        let desc = self.desc()?;
        let listed = Listed::enter(listener);
        let (mut handle, mut number) = (std::ptr::null_mut(), 0);
        // SAFETY: as in `connect`; `number` is a place for the number.
        checked(|code| unsafe {
            (self.functions.create_interrupt)(
                desc.handle,
                &raw mut handle,
                self.adapter,
                &raw mut number,
                Some(on_data),
                listed.argument(),
                abi::FLAG_USE_CALLBACK,
                code,
            );
        })?;
        let library = Arc::clone(self);
        Ok(LocalInterrupt { library, _desc: desc, handle, number, _listed: listed })
    }

    /// Connects to a data interrupt. Waits for a stopped owner, up to the limit in milliseconds if
    /// the library observes it.
    pub(super) fn connect_interrupt(
        self: &Arc<Self>,
        node: u32,
        number: u32,
        limit_ms: u32,
    ) -> Sci<RemoteInterrupt> {
        let desc = self.desc()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: as in `connect`.
        checked(|code| unsafe {
            let at = &raw mut handle;
            (self.functions.connect_interrupt)(
                desc.handle,
                at,
                node,
                self.adapter,
                number,
                limit_ms,
                0,
                code,
            );
        })?;
        Ok(RemoteInterrupt { library: Arc::clone(self), _desc: desc, handle })
    }
}

/// Descriptor of the library, which limits the number of objects of each.
struct Desc {
    functions: Arc<Functions>,
    handle: Handle,
    maker: Maker,
}

impl Drop for Desc {
    fn drop(&mut self) {
        if !self.maker.is_ancestor() {
            // SAFETY: an open descriptor, without objects: each of them holds it.
            let _ = checked(|code| unsafe { (self.functions.close)(self.handle, 0, code) });
        }
    }
}

/// Implements what all objects with a handle have in common.
macro_rules! handles {
    ($($object:ident)*) => {$(
        // SAFETY: a handle may be used on any thread; the functions with threads are found first.
        unsafe impl Send for $object {}
        // SAFETY: as above.
        unsafe impl Sync for $object {}

        impl std::fmt::Debug for $object {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($object))
            }
        }
    )*};
}

handles! { Desc LocalSegment RemoteSegment LocalInterrupt RemoteInterrupt LocalMap RemoteMap }

/// Segment of this process.
pub(super) struct LocalSegment {
    library: Arc<Library>,
    _desc: Arc<Desc>,
    handle: Handle,
}

impl LocalSegment {
    fn register(&self, addr: usize, size: usize) -> Sci<()> {
        let at = std::ptr::with_exposed_provenance_mut(addr);
        let try_with = |flags| {
            // SAFETY: an open segment without memory; the caller keeps the range.
            checked(|code| unsafe {
                (self.library.functions.register_memory)(at, size, self.handle, flags, code);
            })
        };
        match try_with(abi::FLAG_LOCK_USER_MEM) {
            // A library of an earlier interface, in which the memory is locked anyway.
            Err(SciCode::ILLEGAL_FLAG | SciCode::FLAG_NOT_IMPLEMENTED) => try_with(0),
            registered => registered,
        }
    }

    pub(super) fn id(&self) -> u32 {
        // SAFETY: the handle is open.
        unsafe { (self.library.functions.segment_id)(self.handle) }
    }

    /// Permits connections.
    pub(super) fn offer(&self) -> Sci<()> {
        let Library { functions, adapter, .. } = &*self.library;
        // SAFETY: the handle is open.
        checked(|code| unsafe { (functions.set_available)(self.handle, *adapter, 0, code) })
    }

    /// Maps it for this process.
    pub(super) fn map(self: &Arc<Self>, size: usize) -> Sci<LocalMap> {
        let (mut handle, none) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: an open segment, and places for the handle and the code.
        let at = checked(|code| unsafe {
            let to = &raw mut handle;
            (self.library.functions.map_local)(self.handle, to, 0, size, none, 0, code)
        })?;
        Ok(LocalMap { segment: Arc::clone(self), handle, at, size })
    }
}

impl Drop for LocalSegment {
    fn drop(&mut self) {
        if self.library.is_inherited() {
            return;
        }
        let Library { functions, flags, adapter, .. } = &*self.library;
        let end = now_ns() + REMOVE_NS;
        loop {
            // SAFETY: the handle is open.
            let removed = checked(|code| unsafe {
                (functions.remove_segment)(self.handle, 0, code);
            });
            match removed {
                Err(SciCode::BUSY) if now_ns() < end => {}
                Ok(()) => return,
                Err(code) => {
                    return log::debug!("SCIRemoveSegment: {code}; it stays until the exit");
                }
            }
            // SAFETY: as above.
            let _ = checked(|code| unsafe {
                let force = flags.force_disconnect;
                (functions.set_unavailable)(self.handle, *adapter, force, code);
            });
            std::thread::sleep(REMOVE_PAUSE);
        }
    }
}

/// Mapping of a segment of this process.
pub(super) struct LocalMap {
    segment: Arc<LocalSegment>,
    handle: Handle,
    at: *mut u8,
    size: usize,
}

impl LocalMap {
    pub(super) fn address(&self) -> usize {
        self.at.expose_provenance()
    }

    /// Permits connections to its segment.
    pub(super) fn offer(&self) -> Sci<()> {
        self.segment.offer()
    }

    /// Writes bytes at its start.
    pub(super) fn write(&self, bytes: &[u8]) {
        // SAFETY: mapped with this size until `self` is dropped.
        let mem = unsafe { Mem::new(self.at, self.size) };
        if let Some(start) = mem.sub(0, bytes.len()) {
            start.copy_from_slice(bytes);
        }
    }
}

impl Drop for LocalMap {
    fn drop(&mut self) {
        let library = &self.segment.library;
        if !library.is_inherited() {
            // SAFETY: the handle is open, and all views of the range are gone.
            let _ = checked(|code| unsafe { (library.functions.unmap)(self.handle, 0, code) });
        }
    }
}

/// Connected segment of another process.
pub(super) struct RemoteSegment {
    library: Arc<Library>,
    _desc: Arc<Desc>,
    handle: Handle,
    _listed: Option<Listed>,
}

impl RemoteSegment {
    pub(super) fn size(&self) -> usize {
        // SAFETY: the handle is open.
        unsafe { (self.library.functions.remote_size)(self.handle) }
    }

    /// Maps all of it.
    pub(super) fn map(self) -> Sci<RemoteMap> {
        let size = self.size();
        let (mut handle, none) = (std::ptr::null_mut(), std::ptr::null_mut());
        let functions = &self.library.functions;
        // SAFETY: a connected segment, and places for the handle and the code.
        let at = checked(|code| unsafe {
            (functions.map_remote)(self.handle, &raw mut handle, 0, size, none, 0, code)
        })?;
        let mut sequence = std::ptr::null_mut();
        // SAFETY: an open mapping, and places for the handle and the code.
        let made = checked(|code| unsafe {
            (functions.create_sequence)(handle, &raw mut sequence, 0, code);
        });
        let map = RemoteMap { segment: self, handle, sequence, at, size };
        made.map(|()| map)
    }
}

impl Drop for RemoteSegment {
    fn drop(&mut self) {
        if !self.library.is_inherited() {
            let functions = &self.library.functions;
            // SAFETY: the handle is open, and its mapping is gone.
            let _ = checked(|code| unsafe { (functions.disconnect_segment)(self.handle, 0, code) });
        }
    }
}

/// Mapping of a segment of another process, with a sequence that reports errors of transfers.
pub(super) struct RemoteMap {
    segment: RemoteSegment,
    handle: Handle,
    /// Null if it could not be made.
    sequence: Handle,
    at: *mut u8,
    size: usize,
}

impl RemoteMap {
    pub(super) fn address(&self) -> usize {
        self.at.expose_provenance()
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    fn is_started(&self) -> bool {
        let start = self.segment.library.functions.start_sequence;
        (0..COPY_TRIES).any(|_| {
            // SAFETY: the sequence is open.
            checked(|code| unsafe { start(self.sequence, 0, code) }) == Ok(abi::SEQ_OK)
        })
    }

    /// Copies between memory of this process and the segment. Returns once the bytes have arrived.
    ///
    /// # Errors
    /// `OUT_OF_RANGE`; `TRANSFER_FAILED` if the owner or the link is gone.
    pub(super) fn copy(&self, near: &Mem, offset: usize, is_read: bool) -> Sci<()> {
        let inside = offset.checked_add(near.len()).is_some_and(|end| end <= self.size);
        if !inside {
            return Err(SciCode::OUT_OF_RANGE);
        }
        for _ in 0..COPY_TRIES {
            if !self.is_started() {
                return Err(SciCode::TRANSFER_FAILED);
            }
            self.copy_once(near, offset, is_read)?;
            let check = self.segment.library.functions.check_sequence;
            // SAFETY: the sequence is open.
            match checked(|code| unsafe { check(self.sequence, 0, code) })? {
                abi::SEQ_OK => return Ok(()),
                abi::SEQ_RETRIABLE | abi::SEQ_PENDING => {}
                _ => return Err(SciCode::TRANSFER_FAILED),
            }
        }
        Err(SciCode::TRANSFER_FAILED)
    }

    fn copy_once(&self, near: &Mem, offset: usize, is_read: bool) -> Sci<()> {
        let (copy, len) = (self.segment.library.functions.copy, near.len());
        let flags = if is_read { self.segment.library.flags.block_read } else { 0 };
        // SAFETY: the sequence and the mapping are open, the range lies inside, and `near` is
        // memory that the caller keeps.
        let copied = checked(|code| unsafe {
            copy(self.sequence, near.as_ptr(), self.handle, offset, len, flags, code);
        });
        if !matches!(copied, Err(SciCode::SIZE_ALIGNMENT | SciCode::OFFSET_ALIGNMENT)) {
            return copied;
        }
        // SAFETY: mapped with this size until `self` is dropped.
        let far = unsafe { Mem::new(self.at, self.size) };
        let far = far.sub(offset, len).ok_or(SciCode::OUT_OF_RANGE)?;
        let _ = if is_read { near.copy_from(&far) } else { far.copy_from(near) };
        Ok(())
    }

    /// Reads bytes at its start.
    pub(super) fn read(&self, to: &mut [u8]) {
        // SAFETY: as in `copy_once`.
        let far = unsafe { Mem::new(self.at, self.size) };
        if let Some(start) = far.sub(0, to.len()) {
            start.copy_to_slice(to);
        }
    }
}

impl Drop for RemoteMap {
    fn drop(&mut self) {
        let library = &self.segment.library;
        if library.is_inherited() {
            return;
        }
        if !self.sequence.is_null() {
            let remove = library.functions.remove_sequence;
            // SAFETY: the sequence is open.
            let _ = checked(|code| unsafe { remove(self.sequence, 0, code) });
        }
        // SAFETY: the mapping is open, and all views of the range are gone.
        let _ = checked(|code| unsafe { (library.functions.unmap)(self.handle, 0, code) });
    }
}

/// Data interrupt of this process.
pub(super) struct LocalInterrupt {
    library: Arc<Library>,
    _desc: Arc<Desc>,
    handle: Handle,
    number: u32,
    _listed: Listed,
}

impl LocalInterrupt {
    pub(super) fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for LocalInterrupt {
    fn drop(&mut self) {
        if !self.library.is_inherited() {
            let remove = self.library.functions.remove_interrupt;
            // SAFETY: the handle is open.
            let _ = checked(|code| unsafe { remove(self.handle, 0, code) });
        }
    }
}

/// Connected data interrupt of another process.
pub(super) struct RemoteInterrupt {
    library: Arc<Library>,
    _desc: Arc<Desc>,
    handle: Handle,
}

impl RemoteInterrupt {
    /// Sends data.
    ///
    /// # Errors
    /// `NOSPC` while the queue of the receiver is full.
    pub(super) fn trigger(&self, bytes: &[u8]) -> Sci<()> {
        let (trigger, at) = (self.library.functions.trigger, bytes.as_ptr());
        let length = u32::try_from(bytes.len()).map_err(|_| SciCode::SIZE_ALIGNMENT)?;
        // SAFETY: an open handle, and bytes that are only read until the return.
        checked(|code| unsafe { trigger(self.handle, at, length, 0, code) })
    }
}

impl Drop for RemoteInterrupt {
    fn drop(&mut self) {
        if !self.library.is_inherited() {
            let disconnect = self.library.functions.disconnect_interrupt;
            // SAFETY: the handle is open.
            let _ = checked(|code| unsafe { disconnect(self.handle, 0, code) });
        }
    }
}

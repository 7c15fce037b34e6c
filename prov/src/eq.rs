// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "thunks: events are copied to and from the caller's buffers")]
//! Event queues: what happened to objects, in order, apart from data transfers.
//!
//! An [`Eq`] is what C holds, an [`EqShared`] what the objects that report through it hold. The queue has a lock of its
//! own, under which nothing of a domain is called, and its descriptor is readable exactly while an event is queued.
//!
//! Not here: who reports what.
//!
//! Mirrors `struct fi_ops_eq` of `rdma/fi_eq.h`; fi_eq(3).

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libfabric_sys as fi;
use scif::{Waiter, cpu_relax_or_yield, now_ns};

use crate::entry::{self, Errno};
use crate::fabric::{Fabric, FabricShared};
use crate::wait::WaitObj;

/// Events of the application that wait to be read, beyond those the attribute asked room for.
const MAX_USER_EVENTS: usize = 65536;
/// The longest event an application may write.
const MAX_USER_BYTES: usize = 64 * 1024;

/// What C holds as `struct fid_eq`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Eq {
    fid: fi::fid_eq,
    shared: Arc<EqShared>,
}

// SAFETY: repr(C) with a fid_eq first; FI_CLASS_EQ is in Eq objects only. Behind the head is an Arc of a Sync type.
unsafe impl entry::Object for Eq {
    const FCLASS: usize = fi::FI_CLASS_EQ;
}

static FID_OPS: fi::fi_ops = fi::fi_ops { close, control, ..fi::FI_OPS_NOSYS };
static OPS: fi::fi_ops_eq = fi::fi_ops_eq { read, readerr, write, sread, strerror, ..fi::FI_OPS_EQ_NOSYS };

/// `int fi_eq_open(struct fid_fabric *, struct fi_eq_attr *, struct fid_eq **, void *context)`
///
/// # Errors
/// `FI_EINVAL`: a wait object that is none of ours. The system's, when there is no descriptor left.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fi::fid_fabric,
    attr: *mut fi::fi_eq_attr,
    eq: *mut *mut fi::fid_eq,
    context: *mut c_void,
) -> c_int {
    entry::guard_int(|| {
        // SAFETY: a live fabric, by the contract of fi_eq_open.
        let fabric = unsafe { entry::object::<Fabric, _>(fabric) }?;
        // SAFETY: null, or attributes that stay unchanged during the call.
        let attr = unsafe { attr.as_ref() }.copied().unwrap_or_default();
        if eq.is_null() {
            return Err(fi::FI_EINVAL);
        }
        let shared = Arc::new(EqShared::new(Arc::clone(fabric.shared()), &attr)?);
        let head = fi::fid { fclass: fi::FI_CLASS_EQ, context, ops: &raw const FID_OPS };
        let new = Box::new(Eq { fid: fi::fid_eq { fid: head, ops: &raw const OPS }, shared });
        // SAFETY: not null; C passes room for the result.
        unsafe { entry::put(eq, entry::give(new)) }
    })
}

/// # Errors
/// `FI_EBUSY`: something still reports through this queue.
unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    entry::guard_int(|| {
        // SAFETY: a queue of ours that nobody closes meanwhile, by the contract of fi_close.
        let eq = unsafe { entry::object::<Eq, _>(fid) }?;
        if Arc::strong_count(&eq.shared) > 1 {
            return Err(fi::FI_EBUSY);
        }
        // SAFETY: made by `open`; nobody uses it after fi_close.
        drop(unsafe { entry::take::<Eq, _>(fid) }?);
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut fi::fid, command: c_int, arg: *mut c_void) -> c_int {
    entry::guard_int(|| {
        // SAFETY: a live queue, by the contract of fi_control.
        let eq = unsafe { entry::object::<Eq, _>(fid) }?;
        match command {
            // SAFETY: room for the object's kind, by the contract of FI_GETWAITOBJ.
            fi::FI_GETWAITOBJ => unsafe { entry::put(arg.cast(), eq.shared.obj.to_c()) },
            fi::FI_GETWAIT if eq.shared.obj == WaitObj::PollFd => {
                // SAFETY: null or a list as FI_GETWAIT takes it for FI_WAIT_POLLFD.
                let list = unsafe { arg.cast::<fi::fi_wait_pollfd>().as_mut() }.ok_or(fi::FI_EINVAL)?;
                let room = list.nfds;
                list.nfds = 1;
                if room < 1 {
                    return Err(fi::FI_ETOOSMALL);
                }
                let fd = libc::pollfd { fd: eq.shared.raw_fd()?, events: libc::POLLIN, revents: 0 };
                // SAFETY: room for one entry, as nfds said.
                unsafe { entry::put(list.fd, fd) }
            }
            // SAFETY: room for a descriptor, by the contract of FI_GETWAIT.
            fi::FI_GETWAIT => unsafe { entry::put(arg.cast(), eq.shared.raw_fd()?) },
            _ => Err(fi::FI_ENOSYS),
        }
    })
}

unsafe extern "C" fn read(eq: *mut fi::fid_eq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> isize {
    entry::guard(|| {
        // SAFETY: a live queue, by the contract of fi_eq_read.
        let eq = unsafe { entry::object::<Eq, _>(eq) }?;
        let found = eq.shared.read(len, flags & fi::FI_PEEK != 0)?;
        // SAFETY: places for the event and for len bytes.
        unsafe { deliver(&found, event, buf) }
    })
}

unsafe extern "C" fn sread(
    eq: *mut fi::fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    entry::guard(|| {
        // SAFETY: a live queue, by the contract of fi_eq_sread.
        let eq = unsafe { entry::object::<Eq, _>(eq) }?;
        let found = eq.shared.sread(len, timeout, flags & fi::FI_PEEK != 0)?;
        // SAFETY: places for the event and for len bytes.
        unsafe { deliver(&found, event, buf) }
    })
}

/// Hands an event to the caller; returns its length.
///
/// # Safety
/// `event` is null or valid for writing; `buf` has room for the event's bytes, which were cut to it.
unsafe fn deliver(found: &Event, event: *mut u32, buf: *mut c_void) -> Result<isize, Errno> {
    // SAFETY: null or valid, by the caller's contract.
    unsafe { entry::put(event, found.kind) }?;
    if !found.bytes.is_empty() {
        // SAFETY: room for them (caller's contract), and a queue's own bytes do not overlap a caller's buffer.
        unsafe { ptr::copy_nonoverlapping(found.bytes.as_ptr(), buf.cast::<u8>(), found.bytes.len()) };
    }
    isize::try_from(found.bytes.len()).map_err(|_| fi::FI_EINVAL)
}

/// Only the fields that the application's interface version knows are read and written.
unsafe extern "C" fn readerr(eq: *mut fi::fid_eq, buf: *mut fi::fi_eq_err_entry, flags: u64) -> isize {
    /// What a caller from before 1.5 has: no size of the data behind the pointer to it.
    const OLD_LEN: usize = offset_of!(fi::fi_eq_err_entry, err_data_size);
    entry::guard(|| {
        // SAFETY: a live queue, by the contract of fi_eq_readerr.
        let eq = unsafe { entry::object::<Eq, _>(eq) }?;
        if buf.is_null() {
            return Err(fi::FI_EINVAL);
        }
        let len = if eq.shared.sizes_err_data() { size_of::<fi::fi_eq_err_entry>() } else { OLD_LEN };
        let mut out = fi::fi_eq_err_entry::ZERO;
        // SAFETY: the caller's entry has len bytes in its interface version, and the local one has no fewer.
        unsafe { ptr::copy_nonoverlapping(buf.cast::<u8>(), (&raw mut out).cast::<u8>(), len) };
        let room = if out.err_data.is_null() { 0 } else { out.err_data_size };
        let (error, state) = eq.shared.take_error(flags & fi::FI_PEEK != 0)?;
        if room == 0 {
            // Lent: the queue keeps it until it is read again.
            let data = &state.lent;
            out.err_data = if data.is_empty() { ptr::null_mut() } else { data.as_ptr().cast_mut().cast() };
            out.err_data_size = data.len();
        } else {
            out.err_data_size = room.min(state.lent.len());
            // SAFETY: the caller has room for `room` bytes at err_data; lent is the queue's own memory.
            unsafe { ptr::copy_nonoverlapping(state.lent.as_ptr(), out.err_data.cast::<u8>(), out.err_data_size) };
        }
        drop(state);
        out.fid = ptr::with_exposed_provenance_mut(error.fid);
        out.context = ptr::with_exposed_provenance_mut(error.context);
        out.data = error.data;
        out.err = error.err;
        out.prov_errno = error.prov_errno;
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping((&raw const out).cast::<u8>(), buf.cast::<u8>(), len) };
        isize::try_from(len).map_err(|_| fi::FI_EINVAL)
    })
}

unsafe extern "C" fn write(eq: *mut fi::fid_eq, event: u32, buf: *const c_void, len: usize, _flags: u64) -> isize {
    entry::guard(|| {
        // SAFETY: a live queue, by the contract of fi_eq_write.
        let eq = unsafe { entry::object::<Eq, _>(eq) }?;
        // SAFETY: len bytes that stay unchanged during the call.
        eq.shared.write(event, unsafe { entry::slice(buf.cast::<u8>(), len) }?)?;
        isize::try_from(len).map_err(|_| fi::FI_EINVAL)
    })
}

unsafe extern "C" fn strerror(
    _eq: *mut fi::fid_eq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: buf is null or has room for len bytes, by the contract of fi_eq_strerror.
    unsafe { entry::strerror(prov_errno, buf, len) }
}

impl Eq {
    pub(crate) fn shared(&self) -> &Arc<EqShared> {
        &self.shared
    }
}

/// One event: its kind, and its entry as the bytes that C gets.
#[derive(Clone, Debug)]
struct Event {
    kind: u32,
    bytes: Vec<u8>,
}

/// An event that is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EqError {
    /// Address of the object it happened to, and that object's context.
    pub(crate) fid: usize,
    pub(crate) context: usize,
    pub(crate) data: u64,
    /// A positive `FI_E*`.
    pub(crate) err: Errno,
    pub(crate) prov_errno: i32,
    pub(crate) err_data: Vec<u8>,
}

#[derive(Debug)]
enum Item {
    Event { event: Event, fid: usize, by_user: bool },
    Error(EqError),
}

#[derive(Debug, Default)]
struct State {
    items: VecDeque<Item>,
    by_user: usize,
    /// Data of the last error read, for a caller that had no room for it.
    lent: Vec<u8>,
    /// The descriptor is readable.
    signalled: bool,
}

/// The queue itself.
#[derive(Debug)]
pub(crate) struct EqShared {
    /// Keeps the fabric from being closed.
    fabric: Arc<FabricShared>,
    obj: WaitObj,
    waiter: Option<Waiter>,
    writable: bool,
    max_user_events: usize,
    state: Mutex<State>,
}

impl EqShared {
    fn new(fabric: Arc<FabricShared>, attr: &fi::fi_eq_attr) -> Result<EqShared, Errno> {
        let obj = WaitObj::from_c(attr.wait_obj)?;
        let waiter = match obj {
            WaitObj::None | WaitObj::Yield => None,
            WaitObj::Unspec | WaitObj::Fd | WaitObj::PollFd => Some(Waiter::new().map_err(|e| entry::errno(&e))?),
        };
        Ok(EqShared {
            fabric,
            obj,
            waiter,
            writable: attr.flags & fi::FI_WRITE != 0,
            max_user_events: attr.size.max(MAX_USER_EVENTS),
            state: Mutex::default(),
        })
    }

    /// Whether the application's error entries say how long their data is.
    fn sizes_err_data(&self) -> bool {
        self.fabric.api_version >= fi::fi_version(1, 5)
    }

    /// A panic elsewhere leaves the queue whole: every change of it is complete before anything can fail.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn raw_fd(&self) -> Result<c_int, Errno> {
        self.waiter.as_ref().map(|waiter| waiter.fd().as_raw_fd()).ok_or(fi::FI_ENODATA)
    }

    fn put(&self, state: &mut State, item: Item) {
        state.items.push_back(item);
        if let Some(waiter) = &self.waiter
            && !state.signalled
        {
            state.signalled = true;
            waiter.signal();
        }
    }

    /// Once the queue is empty its descriptor is not readable.
    fn settle(&self, state: &mut State) {
        if let Some(waiter) = &self.waiter
            && state.signalled
            && state.items.is_empty()
        {
            state.signalled = false;
            waiter.drain();
        }
    }

    /// Reports an event to the application. The entry begins with the address of the object it happened to.
    pub(crate) fn push(&self, event: u32, entry: &[u8]) {
        let fid = entry.first_chunk().map_or(0, |head| usize::from_ne_bytes(*head));
        let event = Event { kind: event, bytes: entry.to_vec() };
        self.put(&mut self.lock(), Item::Event { event, fid, by_user: false });
    }

    /// Reports an error to the application.
    pub(crate) fn push_error(&self, error: EqError) {
        self.put(&mut self.lock(), Item::Error(error));
    }

    /// Forgets what was reported about an object that is being closed.
    pub(crate) fn purge_fid(&self, fid: usize) {
        let mut state = self.lock();
        state.items.retain(|item| match item {
            Item::Event { fid: of, by_user, .. } => *by_user || *of != fid,
            Item::Error(error) => error.fid != fid,
        });
        self.settle(&mut state);
    }

    fn write(&self, event: u32, bytes: &[u8]) -> Result<(), Errno> {
        if !self.writable {
            return Err(fi::FI_ENOSYS);
        }
        if bytes.len() > MAX_USER_BYTES {
            return Err(fi::FI_EINVAL);
        }
        let mut state = self.lock();
        if state.by_user >= self.max_user_events {
            return Err(fi::FI_EAGAIN);
        }
        state.by_user += 1;
        let event = Event { kind: event, bytes: bytes.to_vec() };
        self.put(&mut state, Item::Event { event, fid: 0, by_user: true });
        Ok(())
    }

    /// The oldest event, in at most `room` bytes.
    fn read(&self, room: usize, peek: bool) -> Result<Event, Errno> {
        let mut state = self.lock();
        let (event, by_user) = match state.items.front() {
            None => return Err(fi::FI_EAGAIN),
            Some(Item::Error(_)) => return Err(fi::FI_EAVAIL),
            Some(Item::Event { event, by_user, .. }) => (event, *by_user),
        };
        let all = event.bytes.len();
        // Data behind the entry of a connection event comes as far as there is room; an entry comes whole.
        let least = match event.kind {
            fi::FI_CONNREQ | fi::FI_CONNECTED | fi::FI_SHUTDOWN if !by_user => all.min(size_of::<fi::fi_eq_cm_entry>()),
            _ => all,
        };
        if room < least {
            return Err(fi::FI_ETOOSMALL);
        }
        let mut event = event.clone();
        event.bytes.truncate(room);
        if !peek {
            state.items.pop_front();
            state.by_user -= usize::from(by_user);
            state.lent = Vec::new();
            self.settle(&mut state);
        }
        Ok(event)
    }

    /// The error at the head. Its data is in `lent`, for as long as the guard is held at least.
    fn take_error(&self, peek: bool) -> Result<(EqError, MutexGuard<'_, State>), Errno> {
        let mut state = self.lock();
        let Some(Item::Error(error)) = state.items.front() else { return Err(fi::FI_EAGAIN) };
        let error = error.clone();
        state.lent.clone_from(&error.err_data);
        if !peek {
            state.items.pop_front();
            self.settle(&mut state);
        }
        Ok((error, state))
    }

    fn sread(&self, room: usize, timeout_ms: c_int, peek: bool) -> Result<Event, Errno> {
        if self.obj == WaitObj::None {
            return Err(fi::FI_ENOSYS);
        }
        let deadline = u64::try_from(timeout_ms).ok().map(|ms| now_ns().saturating_add(ms * 1_000_000));
        let mut polls = 0;
        loop {
            match self.read(room, peek) {
                Err(fi::FI_EAGAIN) => {}
                found => return found,
            }
            let left = deadline.map(|deadline| deadline.saturating_sub(now_ns()));
            if left == Some(0) {
                return Err(fi::FI_EAGAIN);
            }
            match &self.waiter {
                Some(waiter) => drop(waiter.wait(left)),
                None => {
                    polls += 1;
                    cpu_relax_or_yield(polls);
                }
            }
        }
    }

    /// For `fi_trywait`: whether the descriptor may be waited on, that is, nothing is queued.
    ///
    /// # Errors
    /// `FI_EAGAIN`: there is something to read. `FI_EINVAL`: no wait object.
    pub(crate) fn try_wait(&self) -> Result<(), Errno> {
        if self.waiter.is_none() {
            return Err(fi::FI_EINVAL);
        }
        if self.lock().items.is_empty() { Ok(()) } else { Err(fi::FI_EAGAIN) }
    }
}


#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use scif::{Config, Node, TransportKind};

    use super::*;

    fn queue(wait_obj: u32, flags: u64) -> EqShared {
        let node = Node::open(Config::default(), TransportKind::Local).unwrap();
        let fabric = Arc::new(FabricShared { api_version: fi::fi_version(1, 17), node });
        EqShared::new(fabric, &fi::fi_eq_attr { wait_obj, flags, ..fi::fi_eq_attr::ZERO }).unwrap()
    }

    fn entry_of(fid: usize) -> Vec<u8> {
        [fid, 2, 3].iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn error(fid: usize) -> EqError {
        EqError { fid, context: 7, data: 8, err: fi::FI_ECONNREFUSED, prov_errno: 9, err_data: b"no".to_vec() }
    }

    #[test]
    fn events_come_in_order_and_an_error_in_its_place() {
        let eq = queue(fi::FI_WAIT_NONE, 0);
        eq.push(fi::FI_AV_COMPLETE, &entry_of(1));
        eq.push_error(error(1));
        eq.push(fi::FI_NOTIFY, &entry_of(1));
        assert_eq!(eq.read(24, true).unwrap().kind, fi::FI_AV_COMPLETE);
        assert_eq!(eq.read(24, false).unwrap().bytes, entry_of(1));
        assert_eq!(eq.read(24, false).err(), Some(fi::FI_EAVAIL));
        assert_eq!(eq.take_error(true).map(|(error, _)| error), Ok(error(1)), "a look leaves it");
        assert_eq!(eq.take_error(false).map(|(error, _)| error), Ok(error(1)));
        assert_eq!(eq.lock().lent, b"no");
        assert_eq!(eq.take_error(false).err(), Some(fi::FI_EAGAIN));
        assert_eq!(eq.read(24, false).unwrap().kind, fi::FI_NOTIFY);
        assert!(eq.lock().lent.is_empty(), "lent until the next read");
        assert_eq!(eq.read(24, false).err(), Some(fi::FI_EAGAIN));
    }

    #[test]
    fn entries_come_whole_and_connection_data_as_far_as_there_is_room() {
        let eq = queue(fi::FI_WAIT_NONE, fi::FI_WRITE);
        eq.write(fi::FI_CONNREQ, &entry_of(1)).unwrap();
        assert_eq!(eq.read(23, false).err(), Some(fi::FI_ETOOSMALL));
        assert_eq!(eq.read(24, false).unwrap().bytes.len(), 24);
        eq.push(fi::FI_CONNREQ, &entry_of(1));
        assert_eq!(eq.read(15, false).err(), Some(fi::FI_ETOOSMALL));
        assert_eq!(eq.read(20, false).unwrap().bytes, entry_of(1)[..20]);
    }

    #[test]
    fn writing_needs_permission_and_stays_within_bounds() {
        assert_eq!(queue(fi::FI_WAIT_NONE, 0).write(1, b"x"), Err(fi::FI_ENOSYS));
        let eq = queue(fi::FI_WAIT_NONE, fi::FI_WRITE);
        assert_eq!(eq.write(1, &vec![0; MAX_USER_BYTES + 1]), Err(fi::FI_EINVAL));
        for _ in 0..MAX_USER_EVENTS {
            eq.write(1, b"").unwrap();
        }
        assert_eq!(eq.write(1, b""), Err(fi::FI_EAGAIN));
        eq.read(0, false).unwrap();
        assert_eq!(eq.write(1, b""), Ok(()));
    }

    #[test]
    fn a_closed_object_leaves_no_event_but_the_applications_own() {
        let eq = queue(fi::FI_WAIT_FD, fi::FI_WRITE);
        eq.push(fi::FI_CONNECTED, &entry_of(5));
        eq.push_error(error(5));
        eq.push_error(error(6));
        eq.write(fi::FI_NOTIFY, &entry_of(5)).unwrap();
        eq.purge_fid(5);
        assert_eq!(eq.take_error(false).unwrap().0.fid, 6);
        assert_eq!(eq.read(24, false).unwrap().kind, fi::FI_NOTIFY);
        eq.push(fi::FI_CONNECTED, &entry_of(5));
        eq.purge_fid(5);
        assert_eq!(eq.waiter.as_ref().unwrap().wait(Some(0)), Ok(false), "an empty queue does not wake");
    }

    #[test]
    fn the_descriptor_is_readable_while_something_is_queued() {
        let eq = queue(fi::FI_WAIT_FD, 0);
        let readable = || eq.waiter.as_ref().unwrap().wait(Some(0)).unwrap();
        assert!(!readable() && eq.try_wait().is_ok());
        eq.push_error(error(1));
        eq.push(fi::FI_NOTIFY, &entry_of(1));
        assert!(readable() && eq.try_wait() == Err(fi::FI_EAGAIN));
        drop(eq.take_error(false).unwrap());
        assert!(readable());
        eq.read(24, false).unwrap();
        assert!(!readable() && eq.try_wait().is_ok());
    }

    #[test]
    fn a_blocking_read_ends_by_event_and_by_time() {
        for obj in [fi::FI_WAIT_UNSPEC, fi::FI_WAIT_YIELD] {
            let eq = queue(obj, 0);
            assert_eq!(eq.sread(24, 2, false).err(), Some(fi::FI_EAGAIN));
            thread::scope(|scope| {
                let reader = scope.spawn(|| eq.sread(24, -1, false));
                thread::sleep(Duration::from_millis(5));
                eq.push(fi::FI_NOTIFY, &entry_of(1));
                assert_eq!(reader.join().unwrap().unwrap().kind, fi::FI_NOTIFY);
            });
        }
        assert_eq!(queue(fi::FI_WAIT_NONE, 0).sread(24, 0, false).err(), Some(fi::FI_ENOSYS));
    }
}

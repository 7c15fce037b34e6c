// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Owner side of a peer provider: a completion queue, a counter and a receive context of the test
//! itself (fi_peer(3)).
//!
//! For one thread only.
#![expect(unsafe_code, reason = "callbacks of C")]

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libfabric_sys as sys;

use super::buf::Buf;
use super::cntr::Cntr;
use super::cq::Cq;
use super::ep::Ep;
use super::errno::{Errno, Result};
use super::fabric::Domain;

/// Entry that a peer wrote into a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    pub context: usize,
    pub flags: u64,
    pub len: usize,
    pub data: u64,
    pub tag: u64,
    /// Source address, as the peer reports it.
    pub src: u64,
    /// 0 for a success.
    pub err: i32,
}

/// Calls that an owner received, in order.
#[derive(Debug, Default)]
pub struct CallLog {
    pub written: Vec<Written>,
    pub good: u64,
    pub bad: u64,
    /// Whether the queue refuses entries as full.
    pub full: bool,
    /// Number of refused entries.
    pub refused: usize,
    /// Number of messages for which the peer requested a receive.
    pub asked: usize,
    posted: Vec<Receive>,
    waiting: Vec<PeerEntry>,
    /// Number of receives that the peer freed.
    pub freed: usize,
    /// Number of notices that source addresses may be known now.
    pub told: usize,
}

#[derive(Debug, Clone, Copy)]
struct Receive {
    /// Source address; `FI_ADDR_UNSPEC` accepts any.
    from: u64,
    tagged: bool,
    tag: u64,
    ignore: u64,
    buf: Buf,
    /// Number of list elements that describe the buffer.
    pieces: usize,
    context: usize,
}

#[derive(Debug, Clone, Copy)]
struct PeerEntry(*mut sys::fi_peer_rx_entry);

// SAFETY: an entry belongs to the owner of its list.
unsafe impl Send for PeerEntry {}

/// All owners. Memory that is never freed stays reachable for memcheck.
static OWNERS: Mutex<Vec<&'static Owner>> = Mutex::new(Vec::new());

/// Objects of the owner, as a peer sees them; never freed.
#[repr(C)]
pub struct Owner {
    cq: sys::fid_peer_cq,
    cntr: sys::fid_peer_cntr,
    /// The peer stores its functions in this object.
    srx: UnsafeCell<sys::fid_peer_srx>,
    call_log: Mutex<CallLog>,
}

// SAFETY: the pointers refer to statics; a lock guards the rest.
unsafe impl Sync for Owner {}
// SAFETY: as above.
unsafe impl Send for Owner {}

const fn head(fclass: usize) -> sys::fid {
    sys::fid { fclass, context: ptr::null_mut(), ops: ptr::null() }
}

static CQ_OPS: sys::fi_ops_cq_owner =
    sys::fi_ops_cq_owner { size: size_of::<sys::fi_ops_cq_owner>(), write, writeerr };
static CNTR_OPS: sys::fi_ops_cntr_owner =
    sys::fi_ops_cntr_owner { size: size_of::<sys::fi_ops_cntr_owner>(), inc, incerr };
static SRX_OPS: sys::fi_ops_srx_owner = sys::fi_ops_srx_owner {
    size: size_of::<sys::fi_ops_srx_owner>(),
    get_msg,
    get_tag,
    queue_msg: queue,
    queue_tag: queue,
    foreach_unspec_addr: Some(for_each),
    free_entry,
};

/// Returns the owner that has `object` as its field at `offset` bytes.
///
/// # Safety
/// `object` is that field of an [`Owner`], which is never freed.
unsafe fn owner<'a, T>(object: *const T, offset: usize) -> &'a Owner {
    // SAFETY: the caller's contract.
    let at = unsafe { object.byte_sub(offset) };
    // SAFETY: as above.
    unsafe { &*at.cast::<Owner>() }
}

unsafe extern "C" fn write(
    cq: *mut sys::fid_peer_cq,
    context: *mut c_void,
    flags: u64,
    len: usize,
    _buf: *mut c_void,
    data: u64,
    tag: u64,
    src: u64,
) -> isize {
    // SAFETY: `cq` is the queue given to the peer.
    let owner = unsafe { owner(cq, std::mem::offset_of!(Owner, cq)) };
    owner.enter(Written { context: context.addr(), flags, len, data, tag, src, err: 0 })
}

unsafe extern "C" fn writeerr(
    cq: *mut sys::fid_peer_cq,
    entry: *const sys::fi_cq_err_entry,
) -> isize {
    // SAFETY: `cq` is the queue given to the peer.
    let owner = unsafe { owner(cq, std::mem::offset_of!(Owner, cq)) };
    // SAFETY: the entry outlives the call.
    let entry = unsafe { &*entry };
    owner.enter(Written {
        context: entry.op_context.addr(),
        flags: entry.flags,
        len: entry.len,
        data: entry.data,
        tag: entry.tag,
        src: entry.src_addr,
        err: entry.err,
    })
}

unsafe extern "C" fn inc(cntr: *mut sys::fid_peer_cntr) {
    // SAFETY: `cntr` is the counter given to the peer.
    unsafe { owner(cntr, std::mem::offset_of!(Owner, cntr)) }.call_log().good += 1;
}

unsafe extern "C" fn incerr(cntr: *mut sys::fid_peer_cntr) {
    // SAFETY: `cntr` is the counter given to the peer.
    unsafe { owner(cntr, std::mem::offset_of!(Owner, cntr)) }.call_log().bad += 1;
}

unsafe extern "C" fn get_msg(
    srx: *mut sys::fid_peer_srx,
    attr: *mut sys::fi_peer_match_attr,
    entry: *mut *mut sys::fi_peer_rx_entry,
) -> i32 {
    // SAFETY: these are the arguments of the peer.
    unsafe { get(srx, attr, entry, false) }
}

unsafe extern "C" fn get_tag(
    srx: *mut sys::fid_peer_srx,
    attr: *mut sys::fi_peer_match_attr,
    entry: *mut *mut sys::fi_peer_rx_entry,
) -> i32 {
    // SAFETY: these are the arguments of the peer.
    unsafe { get(srx, attr, entry, true) }
}

unsafe fn get(
    srx: *mut sys::fid_peer_srx,
    attr: *mut sys::fi_peer_match_attr,
    entry: *mut *mut sys::fi_peer_rx_entry,
    tagged: bool,
) -> i32 {
    // SAFETY: `srx` is the receive context given to the peer.
    let owner = unsafe { owner(srx, std::mem::offset_of!(Owner, srx)) };
    // SAFETY: the attributes outlive the call.
    let attr = unsafe { &*attr };
    let new = Box::leak(Box::new(sys::fi_peer_rx_entry {
        srx,
        addr: attr.addr,
        msg_size: attr.msg_size,
        tag: attr.tag,
        cq_data: 0,
        flags: sys::FI_RECV | if tagged { sys::FI_TAGGED } else { sys::FI_MSG },
        context: ptr::null_mut(),
        count: 0,
        desc: ptr::null_mut(),
        peer_context: ptr::null_mut(),
        owner_context: ptr::null_mut(),
        iov: ptr::null_mut(),
    }));
    let mut call_log = owner.call_log();
    call_log.asked += 1;
    let at = call_log.posted.iter().position(|r| r.takes(tagged, attr.tag, attr.addr));
    let code = match at {
        Some(at) => {
            let receive = call_log.posted.remove(at);
            fill(new, receive);
            0
        }
        None => -sys::FI_ENOENT,
    };
    drop(call_log);
    // SAFETY: `entry` holds one pointer.
    unsafe { *entry = new };
    code
}

fn fill(entry: &mut sys::fi_peer_rx_entry, receive: Receive) {
    let len = receive.buf.len();
    let piece = len.div_ceil(receive.pieces);
    let list: Box<[sys::iovec]> = (0..receive.pieces)
        .map(|at| sys::iovec {
            iov_base: receive.buf.ptr().wrapping_add((at * piece).min(len)).cast(),
            iov_len: piece.min(len.saturating_sub(at * piece)),
        })
        .collect();
    entry.count = list.len();
    entry.iov = Box::leak(list).as_mut_ptr();
    entry.context = ptr::without_provenance_mut(receive.context);
}

unsafe extern "C" fn queue(entry: *mut sys::fi_peer_rx_entry) -> i32 {
    // SAFETY: the entry was made by `get`.
    let srx = unsafe { (*entry).srx };
    // SAFETY: `srx` is the receive context given to the peer.
    let owner = unsafe { owner(srx, std::mem::offset_of!(Owner, srx)) };
    owner.call_log().waiting.push(PeerEntry(entry));
    0
}

/// Requests the source address of each queued message that has none.
unsafe extern "C" fn for_each(srx: *mut sys::fid_peer_srx, get_addr: sys::fi_peer_get_addr) {
    // SAFETY: `srx` is the receive context given to the peer.
    let owner = unsafe { owner(srx, std::mem::offset_of!(Owner, srx)) };
    let waiting: Vec<PeerEntry> = {
        let mut call_log = owner.call_log();
        call_log.told += 1;
        call_log.waiting.clone()
    };
    for PeerEntry(entry) in waiting {
        // SAFETY: this owner holds the entries of the list.
        let entry = unsafe { &mut *entry };
        if entry.addr == sys::FI_ADDR_UNSPEC {
            // SAFETY: the peer's own function, for an entry that the peer queued.
            entry.addr = unsafe { get_addr(entry) };
        }
    }
}

unsafe extern "C" fn free_entry(entry: *mut sys::fi_peer_rx_entry) {
    // SAFETY: the entry was made by `get`.
    let srx = unsafe { (*entry).srx };
    // SAFETY: `srx` is the receive context given to the peer.
    unsafe { owner(srx, std::mem::offset_of!(Owner, srx)) }.call_log().freed += 1;
    // SAFETY: the peer returns the entry to the owner.
    unsafe { forget(entry) };
}

/// Frees an entry and the lists of [`fill`], so that memcheck reports later accesses.
///
/// # Safety
/// `entry` was made by `get` and has no later uses.
unsafe fn forget(entry: *mut sys::fi_peer_rx_entry) {
    // SAFETY: leaked by `get`, by the caller's contract.
    let entry = unsafe { Box::from_raw(entry) };
    if !entry.iov.is_null() {
        // SAFETY: leaked by `fill`.
        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(entry.iov, entry.count)) });
    }
}

impl Receive {
    /// Whether the receive accepts such a message.
    fn takes(&self, tagged: bool, tag: u64, from: u64) -> bool {
        self.tagged == tagged
            && (self.tag ^ tag) & !self.ignore == 0
            && (self.from == sys::FI_ADDR_UNSPEC || self.from == from)
    }
}

impl CallLog {
    /// Number of queued messages.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

impl Owner {
    /// Returns an owner with all objects.
    pub fn new() -> &'static Owner {
        let owner: &'static Owner = Box::leak(Box::new(Owner {
            cq: sys::fid_peer_cq {
                fid: head(sys::FI_CLASS_PEER_CQ),
                owner_ops: (&raw const CQ_OPS).cast_mut(),
            },
            cntr: sys::fid_peer_cntr {
                fid: head(sys::FI_CLASS_PEER_CNTR),
                owner_ops: (&raw const CNTR_OPS).cast_mut(),
            },
            srx: UnsafeCell::new(sys::fid_peer_srx {
                ep_fid: sys::fid_ep {
                    fid: head(sys::FI_CLASS_PEER_SRX),
                    ops: ptr::null(),
                    cm: ptr::null(),
                    msg: ptr::null(),
                    rma: ptr::null(),
                    tagged: ptr::null(),
                    atomic: ptr::null(),
                    collective: ptr::null(),
                },
                owner_ops: (&raw const SRX_OPS).cast_mut(),
                peer_ops: ptr::null(),
            }),
            call_log: Mutex::default(),
        }));
        OWNERS.lock().unwrap_or_else(PoisonError::into_inner).push(owner);
        owner
    }

    /// Appends an entry to the queue. Returns the return value for the peer.
    fn enter(&self, entry: Written) -> isize {
        let mut call_log = self.call_log();
        if call_log.full {
            call_log.refused += 1;
            return -sys::FI_EAGAIN as isize;
        }
        call_log.written.push(entry);
        0
    }

    /// Calls received so far.
    pub fn call_log(&self) -> MutexGuard<'_, CallLog> {
        self.call_log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a receive, which takes the oldest queued message of any source.
    pub fn receive(&self, tagged: Option<(u64, u64)>, buf: Buf, context: usize) -> Result {
        self.receive_from(sys::FI_ADDR_UNSPEC, tagged, buf, context)
    }

    /// Posts a tagged receive into a buffer that a list of `pieces` elements describes.
    pub fn receive_in_pieces(
        &self,
        tag: u64,
        (buf, pieces): (Buf, usize),
        context: usize,
    ) -> Result {
        self.post(Receive {
            from: sys::FI_ADDR_UNSPEC,
            tagged: true,
            tag,
            ignore: 0,
            buf,
            pieces,
            context,
        })
    }

    /// Posts a receive for messages of one source, given by its address at the peer.
    pub fn receive_from(
        &self,
        from: u64,
        tagged: Option<(u64, u64)>,
        buf: Buf,
        context: usize,
    ) -> Result {
        let (tag, ignore) = tagged.unwrap_or((0, u64::MAX));
        self.post(Receive { from, tagged: tagged.is_some(), tag, ignore, buf, pieces: 1, context })
    }

    fn post(&self, receive: Receive) -> Result {
        let mut call_log = self.call_log();
        let Some(PeerEntry(entry)) = take(&mut call_log.waiting, &receive) else {
            call_log.posted.push(receive);
            return Ok(());
        };
        drop(call_log);
        // SAFETY: the entry was made by `get`, and the peer has queued it.
        fill(unsafe { &mut *entry }, receive);
        let ops = self.peer_ops()?;
        let start = if receive.tagged { ops.start_tag } else { ops.start_msg };
        // SAFETY: the peer's own function, for an entry that the peer queued.
        Errno::check_int(unsafe { start(entry) }).map(drop)
    }

    /// Discards the oldest queued message with this tag. Returns false when there is none.
    pub fn discard(&self, tag: u64) -> Result<bool> {
        let receive = Receive {
            from: sys::FI_ADDR_UNSPEC,
            tagged: true,
            tag,
            ignore: 0,
            buf: Buf::null(0),
            pieces: 1,
            context: 0,
        };
        let Some(PeerEntry(entry)) = take(&mut self.call_log().waiting, &receive) else {
            return Ok(false);
        };
        let ops = self.peer_ops()?;
        // SAFETY: the peer's own function, for an entry that the peer queued.
        Errno::check_int(unsafe { (ops.discard_tag)(entry) })?;
        // SAFETY: the entry still belongs to the owner, which does not use it any more.
        unsafe { forget(entry) };
        Ok(true)
    }

    fn peer_ops(&self) -> Result<&sys::fi_ops_srx_peer> {
        // SAFETY: written once, when the peer was opened.
        let ops = unsafe { (*self.srx.get()).peer_ops };
        // SAFETY: null, or a table of the peer that lives as long as the provider.
        unsafe { ops.as_ref() }.ok_or(Errno::EINVAL)
    }

    /// Source addresses of the queued messages, oldest first.
    pub fn senders(&self) -> Vec<u64> {
        let sender = |PeerEntry(entry): &PeerEntry| {
            // SAFETY: this owner holds the entries of the list.
            unsafe { (**entry).addr }
        };
        self.call_log().waiting.iter().map(sender).collect()
    }

    /// Number of queued messages.
    pub fn waiting(&self) -> usize {
        self.call_log().waiting()
    }

    /// `fi_cq_open` with `FI_PEER`.
    pub fn open_cq(&'static self, domain: &Arc<Domain>) -> Result<Arc<Cq>> {
        let mut context = sys::fi_peer_cq_context {
            size: size_of::<sys::fi_peer_cq_context>(),
            cq: (&raw const self.cq).cast_mut(),
        };
        // SAFETY: the context has the type for `FI_PEER`, and the owner is never freed.
        unsafe { Cq::open_peer(domain, (&raw mut context).cast()) }
    }

    /// `fi_cntr_open` with `FI_PEER`.
    pub fn open_cntr(&'static self, domain: &Arc<Domain>) -> Result<Arc<Cntr>> {
        let mut context = sys::fi_peer_cntr_context {
            size: size_of::<sys::fi_peer_cntr_context>(),
            cntr: (&raw const self.cntr).cast_mut(),
        };
        // SAFETY: the context has the type for `FI_PEER`, and the owner is never freed.
        unsafe { Cntr::open_peer(domain, (&raw mut context).cast()) }
    }

    /// `fi_srx_context` with `FI_PEER`.
    pub fn open_srx(&'static self, domain: &Arc<Domain>) -> Result<Arc<Ep>> {
        let mut context = sys::fi_peer_srx_context {
            size: size_of::<sys::fi_peer_srx_context>(),
            srx: self.srx.get(),
        };
        // SAFETY: the context has the type for `FI_PEER`, and the owner is never freed.
        unsafe { Ep::open_peer_srx(domain, (&raw mut context).cast()) }
    }
}

fn take(waiting: &mut Vec<PeerEntry>, receive: &Receive) -> Option<PeerEntry> {
    let at = waiting.iter().position(|PeerEntry(entry)| {
        // SAFETY: this owner holds the entries of the list.
        let entry = unsafe { &**entry };
        receive.takes(entry.flags & sys::FI_TAGGED != 0, entry.tag, entry.addr)
    })?;
    Some(waiting.remove(at))
}

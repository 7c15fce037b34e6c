// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "calls what another provider imports into this one")]
//! Objects of another provider that this one fills: its completion queue, its counter, its receive context (`FI_PEER`).
//!
//! What completes is gathered in a queue or counter of ours and handed to the owner when the owner reads that: outside of our
//! lock, in the owner's thread, under whatever lock the owner took. Only a receive context is asked at once, when a message
//! comes; the owner has its lock then, since messages are taken in only where it lets us make progress. So there is no peer
//! in a domain that progresses by itself.
//!
//! The structures are those of libfabric 2.3 and later. Before, they had other layouts, and there are no peers.
//!
//! Mirrors fi_peer(3).

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Weak};

use libfabric_sys as fi;
use scif_ring::Mem;

use crate::cq::{Completion, CqError};
use crate::data::shared;
use crate::domain::DomainShared;
use crate::entry::{self, Errno};
use crate::ep::post::Buffers;

/// Whether objects can be imported into a domain.
///
/// # Errors
/// `FI_EINVAL` where the host has another layout of them, or the domain progresses by itself.
pub(crate) fn check(dom: &DomainShared) -> Result<(), Errno> {
    if !is_known() || dom.is_auto() {
        return Err(fi::FI_EINVAL);
    }
    Ok(())
}

/// Whether the host has the layout that is known here.
pub(crate) fn is_known() -> bool {
    crate::host::version() >= SINCE
}

/// The first release with the layout that is known here.
pub(crate) const SINCE: u32 = fi::fi_version(2, 3);

/// A completion queue of the owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerCq(NonNull<fi::fid_peer_cq>);

// SAFETY: an object of libfabric belongs to no thread; the owner locks what it must (fi_peer(3)).
unsafe impl Send for PeerCq {}
// SAFETY: as above.
unsafe impl Sync for PeerCq {}

impl PeerCq {
    /// # Errors
    /// As [`check`], and `FI_EINVAL` for a context without a queue.
    ///
    /// # Safety
    /// `context` is null or what `fi_cq_open` gets with `FI_PEER`; the queue it names outlives the value.
    pub(crate) unsafe fn import(dom: &DomainShared, context: *const c_void) -> Result<PeerCq, Errno> {
        check(dom)?;
        // SAFETY: null or this structure, by the caller's contract.
        let context = unsafe { context.cast::<fi::fi_peer_cq_context>().as_ref() };
        let cq = context.and_then(|c| NonNull::new(c.cq)).ok_or(fi::FI_EINVAL)?;
        // SAFETY: a live object, by the caller's contract.
        if unsafe { cq.as_ref() }.owner_ops.is_null() {
            return Err(fi::FI_EINVAL);
        }
        Ok(PeerCq(cq))
    }

    fn ops(&self) -> &fi::fi_ops_cq_owner {
        // SAFETY: the owner keeps it as long as the queue that was opened with it.
        let cq = unsafe { self.0.as_ref() };
        // SAFETY: not null (`import`), and as long-lived.
        unsafe { &*cq.owner_ops }
    }

    /// # Errors
    /// The owner's: `FI_EAGAIN` when its queue is full. It has not taken the completion then.
    pub(crate) fn write(&self, c: &Completion) -> Result<(), Errno> {
        // SAFETY: the owner's function, for the owner's object.
        let code = unsafe {
            (self.ops().write)(
                self.0.as_ptr(),
                ptr::with_exposed_provenance_mut(c.context),
                c.flags,
                c.len,
                ptr::with_exposed_provenance_mut(c.buf),
                c.data,
                c.tag,
                c.src,
            )
        };
        taken(code)
    }

    /// # Errors
    /// As [`PeerCq::write`].
    pub(crate) fn write_err(&self, e: &CqError) -> Result<(), Errno> {
        let mut err_data = e.err_data.clone();
        let entry = fi::fi_cq_err_entry {
            op_context: ptr::with_exposed_provenance_mut(e.c.context),
            flags: e.c.flags,
            len: e.c.len,
            buf: ptr::with_exposed_provenance_mut(e.c.buf),
            data: e.c.data,
            tag: e.c.tag,
            olen: e.olen,
            err: e.err,
            prov_errno: e.prov_errno,
            err_data: err_data.as_mut_ptr().cast(),
            err_data_size: err_data.len(),
            src_addr: e.c.src,
        };
        // SAFETY: the owner's function, for the owner's object; it copies what it wants of the entry.
        taken(unsafe { (self.ops().writeerr)(self.0.as_ptr(), &raw const entry) })
    }
}

/// What an owner's answer to a completion says: negative codes mean that it was not taken.
fn taken(code: isize) -> Result<(), Errno> {
    if code >= 0 {
        return Ok(());
    }
    Err(Errno::try_from(-code).unwrap_or(fi::FI_EOTHER))
}

/// A counter of the owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerCntr(NonNull<fi::fid_peer_cntr>);

// SAFETY: as for `PeerCq`.
unsafe impl Send for PeerCntr {}
// SAFETY: as for `PeerCq`.
unsafe impl Sync for PeerCntr {}

impl PeerCntr {
    /// # Errors
    /// As [`check`], and `FI_EINVAL` for a context without a counter.
    ///
    /// # Safety
    /// `context` is null or what `fi_cntr_open` gets with `FI_PEER`; the counter it names outlives the value.
    pub(crate) unsafe fn import(dom: &DomainShared, context: *const c_void) -> Result<PeerCntr, Errno> {
        check(dom)?;
        // SAFETY: null or this structure, by the caller's contract.
        let context = unsafe { context.cast::<fi::fi_peer_cntr_context>().as_ref() };
        let cntr = context.and_then(|c| NonNull::new(c.cntr)).ok_or(fi::FI_EINVAL)?;
        // SAFETY: a live object, by the caller's contract.
        if unsafe { cntr.as_ref() }.owner_ops.is_null() {
            return Err(fi::FI_EINVAL);
        }
        Ok(PeerCntr(cntr))
    }

    /// Counts so many successes and failures.
    pub(crate) fn add(&self, (good, bad): (u64, u64)) {
        // SAFETY: the owner keeps it as long as the counter that was opened with it.
        let cntr = unsafe { self.0.as_ref() };
        // SAFETY: not null (`import`), and as long-lived.
        let ops = unsafe { &*cntr.owner_ops };
        for _ in 0..good {
            // SAFETY: the owner's function, for the owner's object.
            unsafe { (ops.inc)(self.0.as_ptr()) };
        }
        for _ in 0..bad {
            // SAFETY: the owner's function, for the owner's object.
            unsafe { (ops.incerr)(self.0.as_ptr()) };
        }
    }
}

/// A receive context of the owner.
pub(crate) struct PeerSrx {
    at: NonNull<fi::fid_peer_srx>,
    dom: Weak<DomainShared>,
    /// Place in `DomainState::srxs` of the context that stands for it.
    index: u32,
}

// SAFETY: as for `PeerCq`.
unsafe impl Send for PeerSrx {}
// SAFETY: as for `PeerCq`.
unsafe impl Sync for PeerSrx {}

impl fmt::Debug for PeerSrx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PeerSrx").field(&self.at).finish()
    }
}

static PEER_OPS: fi::fi_ops_srx_peer = fi::fi_ops_srx_peer {
    size: size_of::<fi::fi_ops_srx_peer>(),
    start_msg: start,
    start_tag: start,
    discard_msg: discard,
    discard_tag: discard,
};

/// An entry of the owner's that is in our hands: a receive that a message met, or room for one that met none.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    srx: Arc<PeerSrx>,
    at: NonNull<fi::fi_peer_rx_entry>,
}

// SAFETY: as for `PeerCq`; whoever holds an entry is the only one to touch it.
unsafe impl Send for Held {}
// SAFETY: as above.
unsafe impl Sync for Held {}

/// What a message is asked for by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) tagged: bool,
    /// `FI_ADDR_UNSPEC` while it is unknown.
    pub(crate) addr: u64,
    pub(crate) len: usize,
    pub(crate) tag: u64,
}

/// What a receive says.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) iov: Buffers,
    pub(crate) context: usize,
    pub(crate) flags: u64,
}

/// What an entry carries for us while a message waits with the owner.
struct Ticket {
    srx: Arc<PeerSrx>,
    number: u32,
}

impl PeerSrx {
    /// # Errors
    /// `FI_EINVAL` for a context without a receive context.
    ///
    /// # Safety
    /// `context` is null or what `fi_srx_context` gets with `FI_PEER`; the receive context it names outlives the value.
    pub(crate) unsafe fn import(
        context: *const c_void,
        dom: &Arc<DomainShared>,
        index: u32,
    ) -> Result<PeerSrx, Errno> {
        // SAFETY: null or this structure, by the caller's contract.
        let context = unsafe { context.cast::<fi::fi_peer_srx_context>().as_ref() };
        let mut at = context.and_then(|c| NonNull::new(c.srx)).ok_or(fi::FI_EINVAL)?;
        // SAFETY: a live object that the owner lends for this (fi_peer(3)).
        let srx = unsafe { at.as_mut() };
        if srx.owner_ops.is_null() {
            return Err(fi::FI_EINVAL);
        }
        srx.peer_ops = &raw const PEER_OPS;
        Ok(PeerSrx {
            at,
            dom: Arc::downgrade(dom),
            index,
        })
    }

    fn ops(&self) -> &fi::fi_ops_srx_owner {
        // SAFETY: the owner keeps it as long as the context that was opened with it.
        let srx = unsafe { self.at.as_ref() };
        // SAFETY: not null (`import`), and as long-lived.
        unsafe { &*srx.owner_ops }
    }

    /// Asks for a receive. The second part is its place; without one the message is unexpected.
    ///
    /// # Errors
    /// The owner's, when it has no room.
    pub(crate) fn get(self: &Arc<Self>, asked: Asked) -> Result<(Held, Option<Place>), Errno> {
        let mut attr = fi::fi_peer_match_attr {
            addr: asked.addr,
            msg_size: asked.len,
            tag: if asked.tagged { asked.tag } else { 0 },
        };
        let get = if asked.tagged {
            self.ops().get_tag
        } else {
            self.ops().get_msg
        };
        let mut entry = ptr::null_mut();
        // SAFETY: the owner's function, for the owner's object.
        let code = unsafe { get(self.at.as_ptr(), &raw mut attr, &raw mut entry) };
        let found = match -code {
            0 => true,
            fi::FI_ENOENT => false,
            err => return Err(err),
        };
        let held = Held {
            srx: Arc::clone(self),
            at: NonNull::new(entry).ok_or(fi::FI_ENOMEM)?,
        };
        let place = if found { Some(held.place()?) } else { None };
        Ok((held, place))
    }

    /// Tells the owner that addresses which it does not know may be known now.
    fn addresses_changed(&self) {
        if let Some(for_each) = self.ops().foreach_unspec_addr {
            // SAFETY: the owner's function, for the owner's object.
            unsafe { for_each(self.at.as_ptr(), addr_of) };
        }
    }
}

impl Held {
    /// Where the message goes.
    fn place(&self) -> Result<Place, Errno> {
        // SAFETY: the owner's entry is ours until it is queued or freed.
        let entry = unsafe { self.at.as_ref() };
        Ok(Place {
            // SAFETY: the receive's buffers are valid until it completes.
            iov: unsafe { Buffers::from_iovec(entry.iov, entry.count) }?,
            context: entry.context.expose_provenance(),
            flags: entry.flags,
        })
    }

    /// Leaves the entry of an unexpected message, which waits here under `number`, with the owner.
    ///
    /// # Errors
    /// The owner's; the entry is ours still.
    pub(crate) fn queue(&self, tagged: bool, data: Option<u64>, number: u32) -> Result<(), Errno> {
        let ticket = Box::new(Ticket {
            srx: Arc::clone(&self.srx),
            number,
        });
        let mut at = self.at;
        // SAFETY: as in `place`.
        let entry = unsafe { at.as_mut() };
        if let Some(data) = data {
            entry.cq_data = data;
            entry.flags |= fi::FI_REMOTE_CQ_DATA;
        }
        entry.peer_context = Box::into_raw(ticket).cast();
        let queue = if tagged {
            self.srx.ops().queue_tag
        } else {
            self.srx.ops().queue_msg
        };
        // SAFETY: the owner's function, for the owner's entry.
        match unsafe { queue(at.as_ptr()) } {
            0 => Ok(()),
            code => {
                // SAFETY: the owner did not take it; made above.
                drop(unsafe { take_ticket(at.as_ptr()) });
                Err(-code)
            }
        }
    }

    /// The receive is complete: gives the entry back.
    pub(crate) fn free(self) {
        // SAFETY: the owner's function, for the owner's entry, which nobody uses afterwards.
        unsafe { (self.srx.ops().free_entry)(self.at.as_ptr()) };
    }
}

/// Takes what [`Held::queue`] left in an entry.
///
/// # Safety
/// `entry` is null or an entry of the owner's that we queued, and has not come back since.
unsafe fn take_ticket(entry: *mut fi::fi_peer_rx_entry) -> Option<Box<Ticket>> {
    // SAFETY: null or a live entry, by the caller's contract.
    let entry = unsafe { entry.as_mut() }?;
    let ticket = std::mem::replace(&mut entry.peer_context, ptr::null_mut()).cast::<Ticket>();
    // SAFETY: null, or made by `queue` and not taken yet, by the caller's contract.
    (!ticket.is_null()).then(|| unsafe { Box::from_raw(ticket) })
}

/// `int start_msg(struct fi_peer_rx_entry *)`: a receive has met an unexpected message.
///
/// # Errors
/// `-FI_EINVAL` for an entry that does not wait, `-FI_ECONNRESET` when its endpoint is closed, `-FI_EINVAL` for more buffers than
/// a receive takes.
unsafe extern "C" fn start(entry: *mut fi::fi_peer_rx_entry) -> c_int {
    entry::guard_int("start_msg of a peer context", || {
        // SAFETY: an entry that we queued, by the contract of fi_peer(3).
        let ticket = unsafe { take_ticket(entry) }.ok_or(fi::FI_EINVAL)?;
        let held = Held {
            srx: Arc::clone(&ticket.srx),
            at: NonNull::new(entry).ok_or(fi::FI_EINVAL)?,
        };
        let place = held.place()?;
        let dom = ticket.srx.dom.upgrade().ok_or(fi::FI_ECONNRESET)?;
        let mut st = dom.gate.lock();
        shared::start(&mut st, ticket.srx.index, ticket.number, held, &place)
    })
}

/// `int discard_msg(struct fi_peer_rx_entry *)`: an unexpected message is not wanted. The entry stays the owner's.
unsafe extern "C" fn discard(entry: *mut fi::fi_peer_rx_entry) -> c_int {
    entry::guard_int("discard_msg of a peer context", || {
        // SAFETY: an entry that we queued, by the contract of fi_peer(3).
        let ticket = unsafe { take_ticket(entry) }.ok_or(fi::FI_EINVAL)?;
        if let Some(dom) = ticket.srx.dom.upgrade() {
            shared::discard(&mut dom.gate.lock(), ticket.srx.index, ticket.number);
        }
        Ok(())
    })
}

/// Who the message of a waiting entry is from.
unsafe extern "C" fn addr_of(entry: *mut fi::fi_peer_rx_entry) -> fi::fi_addr_t {
    entry::guard_or(fi::FI_ADDR_UNSPEC, || {
        // SAFETY: an entry that we queued, by the contract of fi_peer(3).
        let Some(entry) = (unsafe { entry.as_ref() }) else {
            return fi::FI_ADDR_UNSPEC;
        };
        // SAFETY: what `queue` left there; the entry is still with the owner.
        let Some(ticket) = (unsafe { entry.peer_context.cast::<Ticket>().as_ref() }) else {
            return fi::FI_ADDR_UNSPEC;
        };
        ticket.srx.dom.upgrade().map_or(fi::FI_ADDR_UNSPEC, |dom| {
            shared::source(&dom.gate.lock(), ticket.srx.index, ticket.number)
        })
    })
}

/// Addresses were inserted into vector `av`: owners may know more senders now.
pub(crate) fn addresses_changed(dom: &DomainShared, av: u32) {
    let owners = shared::owners(&dom.gate.lock(), av);
    for srx in owners {
        srx.addresses_changed();
    }
}

/// The buffers of a place, and how much they hold.
pub(crate) fn room(place: &Place) -> (&[Mem], usize) {
    let iov = place.iov.as_slice();
    (iov, scif_ring::total_len(iov))
}

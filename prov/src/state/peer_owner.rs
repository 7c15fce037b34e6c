// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "calls what another provider imports into this one")]
//! Objects of another provider that this one fills: its completion queue, its counter, its receive
//! context (`FI_PEER`).
//!
//! A receive context is called at once, when a message arrives. The owner then holds its lock,
//! since messages are received only where it calls for progress.
//!
//! The structures are from libfabric 2.3 and later. Earlier releases have other layouts, and get no
//! peers.
//!
//! Mirrors fi_peer(3).

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Weak};

use libfabric_sys as fi;
use scif_ring::Mem;

use crate::base::errno::Errno;
use crate::base::log::Subsys;
use crate::base::reason::warn_about_call;
use crate::base::{buffers, entry, host};
use crate::state::completion::{Completion, CqError};

/// Whether the host has the layout that this crate uses.
pub(crate) fn is_known() -> bool {
    host::version() >= SINCE
}

/// First release with the layout that this crate uses.
pub(crate) const SINCE: u32 = fi::fi_version(2, 3);

/// Completion queue of the owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerCq(NonNull<fi::fid_peer_cq>);

// SAFETY: an object of libfabric is bound to no thread; the owner takes the locks it needs
// (fi_peer(3)).
unsafe impl Send for PeerCq {}
// SAFETY: as above.
unsafe impl Sync for PeerCq {}

impl PeerCq {
    /// # Errors
    /// `FI_EINVAL` for a context without a queue.
    ///
    /// # Safety
    /// `context` is null or the argument of `fi_cq_open` with `FI_PEER`; the queue in it outlives
    /// the value.
    pub(crate) unsafe fn import(context: *const c_void) -> Result<PeerCq, Errno> {
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
    /// Errors of the owner: `FI_EAGAIN` when its queue is full. The completion was not accepted
    /// then.
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
        // SAFETY: the owner's function, for the owner's object; it copies the data that it needs
        // from the entry.
        taken(unsafe { (self.ops().writeerr)(self.0.as_ptr(), &raw const entry) })
    }
}

/// Converts the owner's return code for a completion: negative codes mean that it was not accepted.
fn taken(code: isize) -> Result<(), Errno> {
    if code >= 0 {
        return Ok(());
    }
    Err(Errno::try_from(-code).unwrap_or(fi::FI_EOTHER))
}

/// Counter of the owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerCntr(NonNull<fi::fid_peer_cntr>);

// SAFETY: as for `PeerCq`.
unsafe impl Send for PeerCntr {}
// SAFETY: as for `PeerCq`.
unsafe impl Sync for PeerCntr {}

impl PeerCntr {
    /// # Errors
    /// `FI_EINVAL` for a context without a counter.
    ///
    /// # Safety
    /// `context` is null or the argument of `fi_cntr_open` with `FI_PEER`; the counter in it
    /// outlives the value.
    pub(crate) unsafe fn import(context: *const c_void) -> Result<PeerCntr, Errno> {
        // SAFETY: null or this structure, by the caller's contract.
        let context = unsafe { context.cast::<fi::fi_peer_cntr_context>().as_ref() };
        let cntr = context.and_then(|c| NonNull::new(c.cntr)).ok_or(fi::FI_EINVAL)?;
        // SAFETY: a live object, by the caller's contract.
        if unsafe { cntr.as_ref() }.owner_ops.is_null() {
            return Err(fi::FI_EINVAL);
        }
        Ok(PeerCntr(cntr))
    }

    /// Adds the given numbers of successes and failures.
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

/// Unexpected messages that wait in this provider for a receive of the owner.
pub(crate) trait WaitingMessages: Send + Sync {
    /// Starts the copy of message `number` of context `srx` into a receive of the owner.
    ///
    /// # Errors
    /// `FI_EINVAL` for an unknown message, `FI_ECONNRESET` for one that was lost with its endpoint.
    fn start(&self, srx: u32, number: u32, entry: PeerRxEntry, recv: PeerRecv)
    -> Result<(), Errno>;

    /// Drops message `number` of context `srx`.
    fn discard(&self, srx: u32, number: u32);

    /// Returns the sender of message `number` of context `srx`; `FI_ADDR_UNSPEC` while no address
    /// vector names it.
    fn source(&self, srx: u32, number: u32) -> u64;
}

/// Receive context of the owner.
pub(crate) struct PeerSrx {
    at: NonNull<fi::fid_peer_srx>,
    messages: Weak<dyn WaitingMessages>,
    /// Index in `DomainState::srxs` of the context that stands for it.
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

/// Entry of the owner that this provider holds: a receive that matched a message, or a record of an
/// unexpected one.
#[derive(Clone, Debug)]
pub(crate) struct PeerRxEntry {
    srx: Arc<PeerSrx>,
    at: NonNull<fi::fi_peer_rx_entry>,
}

// SAFETY: as for `PeerCq`; only the holder of an entry accesses it.
unsafe impl Send for PeerRxEntry {}
// SAFETY: as above.
unsafe impl Sync for PeerRxEntry {}

/// Properties of a message for which a receive is requested.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatchQuery {
    pub(crate) tagged: bool,
    /// Source address; `FI_ADDR_UNSPEC` while it is unknown.
    pub(crate) addr: u64,
    pub(crate) len: usize,
    pub(crate) tag: u64,
}

/// Buffers, context and flags of a receive.
#[derive(Debug)]
pub(crate) struct PeerRecv {
    pub(crate) iov: Vec<Mem>,
    pub(crate) context: usize,
    pub(crate) flags: u64,
}

/// Entry for a message, with the receive that matched it.
pub(crate) type OwnerMatch = (PeerRxEntry, Option<PeerRecv>);

/// Data attached to an entry while an unexpected message waits with the owner.
struct Ticket {
    srx: Arc<PeerSrx>,
    number: u32,
}

impl PeerSrx {
    /// # Errors
    /// `FI_EINVAL` for a context without a receive context.
    ///
    /// # Safety
    /// `context` is null or the argument of `fi_srx_context` with `FI_PEER`; the receive context in
    /// it outlives the value.
    pub(crate) unsafe fn import(
        context: *const c_void,
        messages: Weak<dyn WaitingMessages>,
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
        Ok(PeerSrx { at, messages, index })
    }

    fn ops(&self) -> &fi::fi_ops_srx_owner {
        // SAFETY: the owner keeps it as long as the context that was opened with it.
        let srx = unsafe { self.at.as_ref() };
        // SAFETY: not null (`import`), and as long-lived.
        unsafe { &*srx.owner_ops }
    }

    /// Requests a receive for a message. The second part of the result is the receive; without one
    /// the message is unexpected.
    ///
    /// # Errors
    /// Errors of the owner, when it has no space.
    pub(crate) fn get(self: &Arc<Self>, asked: MatchQuery) -> Result<OwnerMatch, Errno> {
        let mut attr = fi::fi_peer_match_attr {
            addr: asked.addr,
            msg_size: asked.len,
            tag: if asked.tagged { asked.tag } else { 0 },
        };
        let get = if asked.tagged { self.ops().get_tag } else { self.ops().get_msg };
        let mut entry = ptr::null_mut();
        // SAFETY: the owner's function, for the owner's object.
        let code = unsafe { get(self.at.as_ptr(), &raw mut attr, &raw mut entry) };
        let found = match -code {
            0 => true,
            fi::FI_ENOENT => false,
            err => return Err(err),
        };
        let held =
            PeerRxEntry { srx: Arc::clone(self), at: NonNull::new(entry).ok_or(fi::FI_ENOMEM)? };
        let place = found.then(|| held.place());
        Ok((held, place))
    }

    /// Notifies the owner that addresses unknown to it may be known now.
    pub(crate) fn addresses_changed(&self) {
        if let Some(for_each) = self.ops().foreach_unspec_addr {
            // SAFETY: the owner's function, for the owner's object.
            unsafe { for_each(self.at.as_ptr(), addr_of) };
        }
    }
}

impl PeerRxEntry {
    /// Returns the receive of the entry. The owner may permit longer lists than this provider, and
    /// expects a completion of every receive that it hands over. So any length is taken, and an
    /// invalid list counts as empty: its receive ends with `FI_ETRUNC`.
    fn place(&self) -> PeerRecv {
        // SAFETY: the entry belongs to this provider until it is queued or freed.
        let entry = unsafe { self.at.as_ref() };
        // SAFETY: the receive's buffers are valid until it completes.
        let iov = unsafe { buffers::buffers(entry.iov, entry.count) };
        let iov = iov.unwrap_or_else(|errno| {
            warn_about_call(
                Subsys::EpData,
                format_args!(
                    "a receive of another provider has an invalid list of {} buffers (error \
                     {errno}): its message ends with FI_ETRUNC",
                    entry.count
                ),
            );
            Vec::new()
        });
        PeerRecv { iov, context: entry.context.expose_provenance(), flags: entry.flags }
    }

    /// Queues the entry of an unexpected message with the owner; the message waits in this provider
    /// under `number`.
    ///
    /// # Errors
    /// Errors of the owner; the entry still belongs to this provider.
    pub(crate) fn queue(&self, tagged: bool, data: Option<u64>, number: u32) -> Result<(), Errno> {
        let ticket = Box::new(Ticket { srx: Arc::clone(&self.srx), number });
        let mut at = self.at;
        // SAFETY: as in `place`.
        let entry = unsafe { at.as_mut() };
        if let Some(data) = data {
            entry.cq_data = data;
            entry.flags |= fi::FI_REMOTE_CQ_DATA;
        }
        entry.peer_context = Box::into_raw(ticket).cast();
        let queue = if tagged { self.srx.ops().queue_tag } else { self.srx.ops().queue_msg };
        // SAFETY: the owner's function, for the owner's entry.
        match unsafe { queue(at.as_ptr()) } {
            0 => Ok(()),
            code => {
                // SAFETY: the owner did not accept it; made above.
                drop(unsafe { take_ticket(at.as_ptr()) });
                Err(-code)
            }
        }
    }

    /// Gives the entry of a complete receive back.
    pub(crate) fn free(self) {
        // SAFETY: the owner's function, for the owner's entry, which is not used afterwards.
        unsafe { (self.srx.ops().free_entry)(self.at.as_ptr()) };
    }
}

/// Takes the ticket that [`PeerRxEntry::queue`] attached to an entry.
///
/// # Safety
/// `entry` is null or an entry of the owner that was queued, and has not come back since.
unsafe fn take_ticket(entry: *mut fi::fi_peer_rx_entry) -> Option<Box<Ticket>> {
    // SAFETY: null or a live entry, by the caller's contract.
    let entry = unsafe { entry.as_mut() }?;
    let ticket = std::mem::replace(&mut entry.peer_context, ptr::null_mut()).cast::<Ticket>();
    // SAFETY: null, or made by `queue` and not taken yet, by the caller's contract.
    (!ticket.is_null()).then(|| unsafe { Box::from_raw(ticket) })
}

/// `start_msg`: a receive has matched an unexpected message.
///
/// # Errors
/// `-FI_EINVAL` for an entry that does not wait, `-FI_ECONNRESET` when its endpoint is closed.
unsafe extern "C" fn start(entry: *mut fi::fi_peer_rx_entry) -> c_int {
    entry::guard_int("start_msg of a peer context", || {
        // SAFETY: an entry queued by this provider, by the contract of fi_peer(3).
        let ticket = unsafe { take_ticket(entry) }.ok_or(fi::FI_EINVAL)?;
        let held = PeerRxEntry {
            srx: Arc::clone(&ticket.srx),
            at: NonNull::new(entry).ok_or(fi::FI_EINVAL)?,
        };
        let place = held.place();
        let messages = ticket.srx.messages.upgrade().ok_or(fi::FI_ECONNRESET)?;
        messages.start(ticket.srx.index, ticket.number, held, place)
    })
}

/// `discard_msg`: discards an unexpected message. The entry stays with the owner.
unsafe extern "C" fn discard(entry: *mut fi::fi_peer_rx_entry) -> c_int {
    entry::guard_int("discard_msg of a peer context", || {
        // SAFETY: an entry queued by this provider, by the contract of fi_peer(3).
        let ticket = unsafe { take_ticket(entry) }.ok_or(fi::FI_EINVAL)?;
        if let Some(messages) = ticket.srx.messages.upgrade() {
            messages.discard(ticket.srx.index, ticket.number);
        }
        Ok(())
    })
}

/// Returns the source of the message of a waiting entry.
unsafe extern "C" fn addr_of(entry: *mut fi::fi_peer_rx_entry) -> fi::fi_addr_t {
    entry::guard_or(fi::FI_ADDR_UNSPEC, || {
        // SAFETY: an entry queued by this provider, by the contract of fi_peer(3).
        let Some(entry) = (unsafe { entry.as_ref() }) else {
            return fi::FI_ADDR_UNSPEC;
        };
        // SAFETY: null or the ticket attached by `queue`; the entry is still with the owner.
        let Some(ticket) = (unsafe { entry.peer_context.cast::<Ticket>().as_ref() }) else {
            return fi::FI_ADDR_UNSPEC;
        };
        let messages = ticket.srx.messages.upgrade();
        messages
            .map_or(fi::FI_ADDR_UNSPEC, |messages| messages.source(ticket.srx.index, ticket.number))
    })
}

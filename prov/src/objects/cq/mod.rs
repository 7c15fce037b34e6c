// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(
    unsafe_code,
    reason = "thunks: entries are written into the caller's buffer in the caller's format"
)]
//! Completion queues: the C object around a [`CqState`].
//!
//! Operations that complete are in `data`, and the sleep of a reader is in `wait`. A read makes
//! progress on the endpoints bound to the queue, unless enough completions are ready. A program
//! that only reads completions therefore keeps everything moving.
//!
//! Mirrors `struct fi_ops_cq` of `rdma/fi_eq.h`; fi_cq(3).

mod entries;
mod peer_cq_export;
#[cfg(test)]
mod tests;

use std::ffi::{c_char, c_int, c_void};
use std::mem::{MaybeUninit, offset_of, size_of};
use std::ptr;
use std::sync::Arc;

use libfabric_sys as fi;
use scif::slab::Slab;
use scif::{Maker, Waiter, cpu_relax_or_yield, now_ns, threads};
use scif_ring::counter::AtomicFlag;

use crate::base::entry;
use crate::base::errno::{self, Errno};
use crate::base::log::Subsys;
use crate::domain::wait::{self, WaitOutcome};
use crate::domain::{DomainShared, DomainState, Target, bindings, calls, triggered};
use crate::engine::channel::link_set::Repeated;
use crate::engine::fast_path::{CompletionSink, DirectPoll, ToQueue};
use crate::objects::handle::Domain;
use crate::objects::peer_import;
use crate::objects::wait_set::{SetMember, wait_object};
use crate::state::completion::{Completion, CqError};
use crate::state::cq_queue::{CqState, Format};
use crate::state::oversubscription::{self, SleepEnd};
use crate::state::peer_owner::PeerCq;
use crate::state::waiters::{self, WaitObj, WaitState};

use entries::Entries;
use peer_cq_export::PeerCqSink;

/// Object behind `struct fid_cq`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Cq {
    fid: fi::fid_cq,
    dom: Arc<DomainShared>,
    creator: Maker,
    index: u32,
    format: Format,
    obj: WaitObj,
    /// Whether a blocking read waits for as many entries as its condition requires.
    threshold: bool,
    /// Whether `fi_cq_signal` was called and no blocking read has returned for it yet.
    signalled: AtomicFlag,
    waiter: Option<Arc<Waiter>>,
    _set: Option<SetMember>,
    /// Queue of another provider for which this one stands.
    owner: Option<PeerCqSink>,
}

// SAFETY: repr(C) with a fid_cq first; FI_CLASS_CQ is in Cq objects only. The fields after the fid
// are Sync; the domain lock guards everything else.
unsafe impl entry::Object for Cq {
    const FCLASS: usize = fi::FI_CLASS_CQ;
}

entry::created_by!(Cq, |object| object.creator);

static FID_OPS: fi::fi_ops = fi::fi_ops { close, control, ..fi::FI_OPS_NOSYS };
static OPS: fi::fi_ops_cq = fi::fi_ops_cq {
    read,
    readfrom,
    readerr,
    sread,
    sreadfrom,
    signal,
    strerror,
    ..fi::FI_OPS_CQ_NOSYS
};

/// Operations in a domain with triggered work: a read may have changed a counter.
static TRIGGER_OPS: fi::fi_ops_cq =
    fi::fi_ops_cq { read: read_and_run, readfrom: readfrom_and_run, ..OPS };

/// Operations of a queue that stands for one of another provider: the application reads the owner's
/// queue.
static PEER_OPS: fi::fi_ops_cq = fi::fi_ops_cq { read: read_peer, strerror, ..fi::FI_OPS_CQ_NOSYS };

/// `fi_cq_open`
pub(crate) unsafe extern "C" fn open(
    domain: *mut fi::fid_domain,
    attr: *mut fi::fi_cq_attr,
    cq: *mut *mut fi::fid_cq,
    context: *mut c_void,
) -> c_int {
    entry::guard_int("fi_cq_open", || {
        // SAFETY: a live domain, by the contract of fi_cq_open.
        let domain = unsafe { entry::own::<Domain, _>(domain) }?;
        // SAFETY: null, or attributes that stay unchanged during the call.
        let attr = unsafe { attr.as_ref() }.ok_or(fi::FI_EINVAL)?;
        if cq.is_null() {
            return Err(fi::FI_EINVAL);
        }
        let owner = (attr.flags & fi::FI_PEER != 0).then(|| {
            peer_import::check(&domain.shared)?;
            // SAFETY: the context has the type that this flag requires, by the contract of
            // fi_peer(3).
            unsafe { PeerCq::import(context) }
        });
        let new = entry::log_err(
            Subsys::EpCtrl,
            format_args!(
                "fi_cq_open with flags {:#x}, format {}, wait object {} and condition {}",
                attr.flags, attr.format, attr.wait_obj, attr.wait_cond
            ),
            owner.transpose().and_then(|owner| Cq::open(&domain.shared, attr, owner, context)),
        )?;
        // SAFETY: not null; the caller passes space for the result.
        unsafe { entry::put(cq, entry::give(new)) }
    })
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    entry::guard_int("fi_close of a completion queue", || {
        // SAFETY: an open queue of this provider, not closed concurrently, by the contract of
        // fi_close.
        let retired = unsafe { entry::own::<Cq, _>(fid) }?.retire();
        entry::log_err(Subsys::EpCtrl, format_args!("fi_close of a completion queue"), retired)?;
        // SAFETY: made by `open` and not used after fi_close.
        drop(unsafe { entry::take::<Cq, _>(fid) }?);
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut fi::fid, command: c_int, arg: *mut c_void) -> c_int {
    entry::guard_int("fi_control of a completion queue", || {
        // SAFETY: a live queue, by the contract of fi_control.
        let cq = unsafe { entry::own::<Cq, _>(fid) }?;
        let guard = cq.dom.gate.lock();
        let waits = &guard.cqs.get(cq.index).ok_or(fi::FI_EINVAL)?.waits;
        // SAFETY: arg has the type that the command takes, by the contract of fi_control.
        unsafe { waiters::control(waits, command, arg) }
    })
}

unsafe extern "C" fn read(cq: *mut fi::fid_cq, buf: *mut c_void, count: usize) -> isize {
    entry::guard("fi_cq_read", || {
        // SAFETY: a live queue, by the contract of fi_cq_read.
        let cq = unsafe { entry::object::<Cq, _>(cq) }?;
        // SAFETY: space for count entries of the queue's format.
        cq.read(&unsafe { Entries::new(buf, count, ptr::null_mut()) })
    })
}

/// Makes progress and hands over the completed operations. The queue itself has no entries to read.
///
/// # Errors
/// `-FI_ENOSYS` for a call that requests entries, `-FI_EAGAIN` when no operation completed.
unsafe extern "C" fn read_peer(cq: *mut fi::fid_cq, buf: *mut c_void, count: usize) -> isize {
    entry::guard("fi_cq_read of a queue of another provider", || {
        // SAFETY: a live queue, by the contract of fi_cq_read.
        let cq = unsafe { entry::object::<Cq, _>(cq) }?;
        let owner = cq.owner.as_ref().ok_or(fi::FI_EINVAL)?;
        if !buf.is_null() || count != 0 {
            return Err(fi::FI_ENOSYS);
        }
        cq.flush_to_owner(owner)
    })
}

unsafe extern "C" fn readfrom(
    cq: *mut fi::fid_cq,
    buf: *mut c_void,
    count: usize,
    src_addr: *mut fi::fi_addr_t,
) -> isize {
    entry::guard("fi_cq_readfrom", || {
        // SAFETY: a live queue, by the contract of fi_cq_readfrom.
        let cq = unsafe { entry::object::<Cq, _>(cq) }?;
        // SAFETY: space for count entries of the queue's format, and for count addresses.
        cq.read(&unsafe { Entries::new(buf, count, src_addr) })
    })
}

unsafe extern "C" fn read_and_run(cq: *mut fi::fid_cq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: the contract of fi_cq_readfrom, without source addresses.
    unsafe { readfrom_and_run(cq, buf, count, ptr::null_mut()) }
}

unsafe extern "C" fn readfrom_and_run(
    cq: *mut fi::fid_cq,
    buf: *mut c_void,
    count: usize,
    src_addr: *mut fi::fi_addr_t,
) -> isize {
    entry::guard("fi_cq_readfrom", || {
        // SAFETY: a live queue, by the contract of fi_cq_readfrom.
        let cq = unsafe { entry::own::<Cq, _>(cq) }?;
        // SAFETY: space for count entries of the queue's format, and for count addresses.
        let read = cq.read(&unsafe { Entries::new(buf, count, src_addr) });
        triggered::run(&mut cq.dom.gate.lock());
        read
    })
}

unsafe extern "C" fn sread(
    cq: *mut fi::fid_cq,
    buf: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    entry::guard("fi_cq_sread", || {
        // SAFETY: a live queue, by the contract of fi_cq_sread.
        let cq = unsafe { entry::object::<Cq, _>(cq) }?;
        // SAFETY: space for count entries of the queue's format.
        cq.sread(&unsafe { Entries::new(buf, count, ptr::null_mut()) }, cond.addr(), timeout)
    })
}

unsafe extern "C" fn sreadfrom(
    cq: *mut fi::fid_cq,
    buf: *mut c_void,
    count: usize,
    src_addr: *mut fi::fi_addr_t,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    entry::guard("fi_cq_sreadfrom", || {
        // SAFETY: a live queue, by the contract of fi_cq_sreadfrom.
        let cq = unsafe { entry::object::<Cq, _>(cq) }?;
        // SAFETY: space for count entries of the queue's format, and for count addresses.
        cq.sread(&unsafe { Entries::new(buf, count, src_addr) }, cond.addr(), timeout)
    })
}

/// Reads and writes only the fields that the interface version of the application has.
unsafe extern "C" fn readerr(
    cq: *mut fi::fid_cq,
    buf: *mut fi::fi_cq_err_entry,
    _flags: u64,
) -> isize {
    entry::guard("fi_cq_readerr", || {
        // SAFETY: a live queue, by the contract of fi_cq_readerr.
        let cq = unsafe { entry::object::<Cq, _>(cq) }?;
        if buf.is_null() {
            return Err(fi::FI_EINVAL);
        }
        let len = err_entry_len(cq.dom.api);
        let mut local = MaybeUninit::<fi::fi_cq_err_entry>::zeroed();
        // SAFETY: the caller's entry has at least `len` bytes in its interface version, and so has
        // the local one.
        unsafe { ptr::copy_nonoverlapping(buf.cast::<u8>(), local.as_mut_ptr().cast::<u8>(), len) };
        // SAFETY: integers and raw pointers accept any bytes, and the zeroed entry has no
        // uninitialised byte.
        let mut e = unsafe { local.assume_init() };
        let room =
            if len > offset_of!(fi::fi_cq_err_entry, err_data_size) { e.err_data_size } else { 0 };
        let found = cq.take_error(&mut e, room)?;
        if let Some(data) = found {
            // SAFETY: `take_error` leaves err_data unchanged when it returns data, at most
            // err_data_size bytes.
            unsafe { ptr::copy_nonoverlapping(data.as_ptr(), e.err_data.cast::<u8>(), data.len()) };
        }
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping((&raw const e).cast::<u8>(), buf.cast::<u8>(), len) };
        Ok(1)
    })
}

unsafe extern "C" fn signal(cq: *mut fi::fid_cq) -> c_int {
    entry::guard_int("fi_cq_signal", || {
        // SAFETY: a live queue, by the contract of fi_cq_signal.
        unsafe { entry::object::<Cq, _>(cq) }?.signal()
    })
}

unsafe extern "C" fn strerror(
    _cq: *mut fi::fid_cq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: buf is null or has space for len bytes, by the contract of fi_cq_strerror.
    unsafe { errno::strerror(prov_errno, buf, len) }
}

/// Read of an empty queue that takes completions directly as they are delivered.
struct Reader<'a> {
    cq: &'a Cq,
    out: Entries,
    found: usize,
}

impl CompletionSink for Reader<'_> {
    #[inline(always)]
    fn deliver(&mut self, cqs: &mut Slab<CqState>, cq: u32, c: Completion) {
        // `poll_direct` may handle more messages than the buffer has space for.
        if cq == self.cq.index && self.found < self.out.count {
            self.out.put(self.cq.format, self.found, &c);
            self.found += 1;
        } else {
            ToQueue.deliver(cqs, cq, c);
        }
    }

    #[inline(always)]
    fn bypassed(&self) -> usize {
        self.found
    }
}

/// Returns the size of `struct fi_cq_err_entry` in interface version `api`.
fn err_entry_len(api: u32) -> usize {
    if api < fi::fi_version(1, 5) {
        offset_of!(fi::fi_cq_err_entry, err_data_size)
    } else if api < fi::fi_version(1, 20) {
        offset_of!(fi::fi_cq_err_entry, src_addr)
    } else {
        size_of::<fi::fi_cq_err_entry>()
    }
}

impl Cq {
    /// Makes progress, and hands over the completed operations.
    fn flush_to_owner(&self, owner: &PeerCqSink) -> Result<isize, Errno> {
        entry::check_not_forked(self.creator)?;
        let mut kept = owner.turn().ok_or(fi::FI_EAGAIN)?;
        let yields = {
            let mut guard = self.dom.gate.lock();
            let st = &mut *guard;
            let cq = st.cqs.get_mut(self.index).ok_or(fi::FI_EINVAL)?;
            if cq.waits.fd_is_armed() {
                wait::disarm_fd(st, self.target());
            }
            wait::progress_all(st, self.target());
            let cq = st.cqs.get_mut(self.index).ok_or(fi::FI_EINVAL)?;
            let (ended, freed) = cq.take_all();
            let yields = ended.is_empty() && cq.detector.note_empty();
            if !ended.is_empty() {
                cq.detector.note_event();
            }
            kept.ended.extend(ended);
            kept.freed.extend(freed);
            yields
        };
        let idle = kept.ended.is_empty() && kept.freed.is_empty();
        let taken = owner.offer(&mut kept);
        if taken > 0 || (!idle && kept.ended.is_empty()) {
            return Ok(0);
        }
        drop(kept);
        if idle && yields {
            self.yield_cpu()?;
        }
        Err(fi::FI_EAGAIN)
    }

    fn open(
        dom: &Arc<DomainShared>,
        attr: &fi::fi_cq_attr,
        owner: Option<PeerCq>,
        context: *mut c_void,
    ) -> Result<Box<Cq>, Errno> {
        if attr.flags & !(fi::FI_AFFINITY | fi::FI_PEER) != 0
            || (attr.flags & fi::FI_PEER != 0) != owner.is_some()
        {
            return Err(fi::FI_EINVAL);
        }
        let format = match attr.format {
            fi::FI_CQ_FORMAT_UNSPEC | fi::FI_CQ_FORMAT_CONTEXT => Format::Context,
            fi::FI_CQ_FORMAT_MSG => Format::Msg,
            fi::FI_CQ_FORMAT_DATA => Format::Data,
            fi::FI_CQ_FORMAT_TAGGED => Format::Tagged,
            _ => return Err(fi::FI_EINVAL),
        };
        // SAFETY: a live set where one is required, by the contract of fi_cq_open.
        let (obj, set) = unsafe { wait_object(attr.wait_obj, attr.wait_set) }?;
        let threshold = match attr.wait_cond {
            _ if obj == WaitObj::None => false,
            fi::FI_CQ_COND_NONE => false,
            fi::FI_CQ_COND_THRESHOLD => true,
            _ => return Err(fi::FI_EINVAL),
        };
        let mut state = CqState::new(attr.size, WaitState::new(obj)?);
        if owner.is_some() {
            state.keep_receives();
        }
        let waiter = state.waits.waiter().map(Arc::clone);
        let index = dom.gate.lock().cqs.insert(state).ok_or(fi::FI_ENOMEM)?;
        let set = match SetMember::join(set, dom, Target::Cq(index), waiter.clone()) {
            Ok(set) => set,
            Err(err) => {
                dom.gate.lock().cqs.remove(index);
                return Err(err);
            }
        };
        Ok(Box::new(Cq {
            fid: fi::fid_cq {
                fid: fi::fid {
                    fclass: fi::FI_CLASS_CQ,
                    // The context of a peer queue was only the means to pass the owner's queue.
                    context: if owner.is_none() { context } else { ptr::null_mut() },
                    ops: &raw const FID_OPS,
                },
                ops: if owner.is_some() {
                    &raw const PEER_OPS
                } else if dom.triggers {
                    &raw const TRIGGER_OPS
                } else {
                    &raw const OPS
                },
            },
            dom: Arc::clone(dom),
            creator: Maker::here(),
            index,
            format,
            obj,
            threshold,
            signalled: AtomicFlag::new(false),
            waiter,
            _set: set,
            owner: owner.map(PeerCqSink::new),
        }))
    }

    /// Domain of this queue.
    pub(crate) fn domain(&self) -> &Arc<DomainShared> {
        &self.dom
    }

    /// Index in [`DomainState::cqs`].
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    fn target(&self) -> Target {
        Target::Cq(self.index)
    }

    fn retire(&self) -> Result<(), Errno> {
        let mut st = self.dom.gate.lock();
        let state = st.cqs.get(self.index).ok_or(fi::FI_EINVAL)?;
        if !state.waits.endpoints().is_empty() || state.waits.is_held() {
            return Err(fi::FI_EBUSY);
        }
        wait::disarm_fd(&mut st, self.target());
        st.cqs.remove(self.index);
        Ok(())
    }

    #[inline(always)]
    fn read(&self, out: &Entries) -> Result<isize, Errno> {
        entry::check_not_forked(self.creator)?;
        let yields = 'read: {
            let (mut guard, unchanged) = self.dom.gate.lock_noting();
            let st = &mut *guard;
            if unchanged {
                match self.read_again(st) {
                    Ok(yields) => {
                        guard.release_unchanged();
                        break 'read yields;
                    }
                    Err(Some(at)) => {
                        let to = Reader { cq: self, out: *out, found: 0 };
                        match calls::receive_at(st, at, self.index, out.count, to) {
                            DirectPoll::Received(found @ 1..) => {
                                self.note_polled(st);
                                return Ok(found as isize);
                            }
                            DirectPoll::OneSided => {
                                return self.end_one_sided(st, &{ *out });
                            }
                            _ => {}
                        }
                    }
                    Err(None) => {}
                }
            }
            let cq = st.cqs.get_mut(self.index).ok_or(fi::FI_EINVAL)?;
            if !st.last_read.note(self.target(), unchanged) {
                cq.detector.reset();
            }
            let mut poll = DirectPoll::Busy;
            let watched = if cq.is_empty() { cq.waits.endpoints() } else { &[] };
            if let [ep] = *watched {
                let to = Reader { cq: self, out: *out, found: 0 };
                poll = calls::poll_direct(st, ep, self.index, out.count, to);
                match poll {
                    DirectPoll::Received(found @ 1..) => {
                        self.note_polled(st);
                        return Ok(found as isize);
                    }
                    DirectPoll::OneSided => return self.end_one_sided(st, &{ *out }),
                    _ => {}
                }
            } else if out.count == 1 {
                if let Some(c) = cq.pop_ready() {
                    out.put(self.format, 0, c);
                    cq.detector.note_event();
                    return Ok(1);
                }
            }
            // Copies of `out` go there. A reference would force it out of its registers.
            if poll != DirectPoll::Empty {
                let found = match poll {
                    DirectPoll::Progressed => self.read_queue(st, &{ *out })?,
                    _ => self.read_with_progress(st, &{ *out }, poll == DirectPoll::Busy)?,
                };
                if let Some(found) = found {
                    return found;
                }
            }
            let cq = st.cqs.get_mut(self.index).ok_or(fi::FI_EINVAL)?;
            let yields = cq.detector.note_empty();
            if poll == DirectPoll::Empty {
                guard.release_unchanged();
            }
            yields
        };
        if yields {
            // Not returned as it is: a result in memory would stay there on all paths.
            let found = self.yield_or_sleep(&{ *out })?;
            return Ok(found);
        }
        Err(fi::FI_EAGAIN)
    }

    /// Repeats a read that found nothing, since no call has changed the domain since. Returns
    /// whether a yield is due.
    ///
    /// # Errors
    /// Endpoint and index of a ring that may hold a record; `None` if other work is due.
    #[inline(always)]
    fn read_again(&self, st: &mut DomainState) -> Result<bool, Option<(u32, usize)>> {
        let DomainState { cqs, eps, last_read, .. } = st;
        let cq = cqs.get_mut(self.index).filter(|_| last_read.is(self.target())).ok_or(None)?;
        let &[ep] = cq.waits.endpoints() else { return Err(None) };
        match calls::poll_again(eps, ep) {
            Repeated::Silent => Ok(cq.detector.note_empty()),
            Repeated::Ready(at) => Err(Some((ep, at))),
            Repeated::Other => Err(None),
        }
    }

    /// Notes entries that a direct poll returned without access to the queue.
    #[inline(always)]
    fn note_polled(&self, st: &mut DomainState) {
        if let Some(cq) = st.cqs.get_mut(self.index) {
            cq.note_progress();
            cq.detector.note_event();
        }
    }

    /// Returns the result of a read that has handled one-sided records. A program may wait for
    /// those that put no entry into the queue.
    #[inline(never)]
    fn end_one_sided(&self, st: &mut DomainState, out: &Entries) -> Result<isize, Errno> {
        let cq = st.cqs.get_mut(self.index).ok_or(fi::FI_EINVAL)?;
        cq.note_progress();
        cq.detector.note_event();
        self.copy_to_user(cq, out).unwrap_or(Err(fi::FI_EAGAIN))
    }

    /// Returns the result of a read after progress; `None` when the queue is empty.
    #[inline(never)]
    fn read_queue(
        &self,
        st: &mut DomainState,
        out: &Entries,
    ) -> Result<Option<Result<isize, Errno>>, Errno> {
        let is_progress = self.has_far_records(st);
        let cq = st.cqs.get_mut(self.index).ok_or(fi::FI_EINVAL)?;
        if is_progress {
            cq.detector.note_event();
        }
        Ok(self.copy_to_user(cq, out))
    }

    /// Whether the last full poll has handled records of other hosts. A program may wait for those
    /// that put no entry into the queue, such as answers to one-sided operations. A yield after
    /// each of them would be a part of the time of the next operation.
    fn has_far_records(&self, st: &mut DomainState) -> bool {
        let mut has = false;
        bindings::each_ep(st, self.target(), |st, ep| has |= calls::has_far_records(st, ep));
        has
    }

    /// Makes progress, unless enough entries are ready, and returns the result of a read; `None`
    /// when the queue is empty. `may_be_short`: progress begins with a short poll.
    #[inline(never)]
    fn read_with_progress(
        &self,
        st: &mut DomainState,
        out: &Entries,
        may_be_short: bool,
    ) -> Result<Option<Result<isize, Errno>>, Errno> {
        let cq = st.cqs.get_mut(self.index).ok_or(fi::FI_EINVAL)?;
        // A call without entries requests progress. Operations that complete at once must not
        // starve the others.
        let enough = out.count > 0 && (cq.ready() >= out.count || cq.has_error()) && !cq.is_due();
        if cq.waits.fd_is_armed() {
            wait::disarm_fd(st, self.target());
        }
        let mut is_one_sided = false;
        if !enough && may_be_short {
            is_one_sided = wait::poll(st, self.target());
        } else if !enough {
            wait::progress(st, self.target());
        }
        let is_progress = is_one_sided || !enough && self.has_far_records(st);
        let cq = st.cqs.get_mut(self.index).ok_or(fi::FI_EINVAL)?;
        if is_progress {
            // A program may wait for writes of its peers, which put no entry here.
            cq.detector.note_event();
        }
        Ok(self.copy_to_user(cq, out))
    }

    /// Yields the processor once, if a yield is due. Returns whether to sleep instead of the next
    /// yield.
    #[cold]
    fn yield_cpu(&self) -> Result<bool, Errno> {
        let begin = now_ns();
        {
            let mut guard = self.dom.gate.lock();
            let cq = guard.cqs.get_mut(self.index).ok_or(fi::FI_EINVAL)?;
            if !cq.detector.is_yield_due(begin) {
                return Ok(false);
            }
        }
        cpu_relax_or_yield(u32::MAX);
        let end = now_ns();
        let mut guard = self.dom.gate.lock();
        let cq = guard.cqs.get_mut(self.index).ok_or(fi::FI_EINVAL)?;
        Ok(cq.detector.note_yield(begin, end))
    }

    /// Yields the processor after many empty reads, and sleeps briefly under oversubscription.
    #[cold]
    fn yield_or_sleep(&self, out: &Entries) -> Result<isize, Errno> {
        // A call without entries waits for another event, and a user of the descriptor sleeps on
        // that.
        if !self.yield_cpu()? || out.count == 0 || self.obj.sleeps() {
            return Err(fi::FI_EAGAIN);
        }
        if !self.is_all_there_is() {
            let mut guard = self.dom.gate.lock();
            guard.cqs.get_mut(self.index).ok_or(fi::FI_EINVAL)?.detector.disable();
            return Err(fi::FI_EAGAIN);
        }
        let slept = wait::nap_for(&self.dom, self.target(), oversubscription::SLEEP_NS, |st| {
            self.copy_to_user(st.cqs.get_mut(self.index)?, out)
        });
        let mut guard = self.dom.gate.lock();
        let cq = guard.cqs.get_mut(self.index).ok_or(fi::FI_EINVAL)?;
        // No descriptor is available. The application did not request this sleep, so it gets no
        // error.
        let Ok((found, slept)) = slept else {
            cq.detector.disable();
            return Err(fi::FI_EAGAIN);
        };
        let ended = match (&found, slept) {
            (Some(_), WaitOutcome::Some) => SleepEnd::Event,
            (None, WaitOutcome::Whole) => SleepEnd::Timeout,
            _ => SleepEnd::Other,
        };
        cq.detector.note_sleep(ended, now_ns());
        found.unwrap_or(Err(fi::FI_EAGAIN))
    }

    /// Whether a sleeping reader delays no other work of this process: another domain, or a thread
    /// that the domain lock would keep out during the call.
    fn is_all_there_is(&self) -> bool {
        self.dom.fabric.domains.get_relaxed() == 1 && (!self.dom.gate.is_elided() || threads() == 1)
    }

    /// Returns the result of a read now; `None` when the queue is empty.
    #[inline]
    fn copy_to_user(&self, cq: &mut CqState, out: &Entries) -> Option<Result<isize, Errno>> {
        let n = cq.drain(out.count, |at, c| out.put(self.format, at, c));
        if n > 0 {
            cq.detector.note_event();
            return Some(Ok(n as isize));
        }
        if cq.error_is_next() {
            return Some(Err(fi::FI_EAVAIL));
        }
        // No entries were requested, but some are ready.
        (out.count == 0 && !cq.is_empty()).then_some(Ok(0))
    }

    fn sread(&self, out: &Entries, cond: usize, timeout: c_int) -> Result<isize, Errno> {
        entry::check_not_forked(self.creator)?;
        if matches!(self.obj, WaitObj::None | WaitObj::Set) {
            return Err(fi::FI_ENOSYS);
        }
        let want = if self.threshold { cond.clamp(1, out.count.max(1)) } else { 1 };
        let look = |st: &mut DomainState| {
            let cq = st.cqs.get_mut(self.index)?;
            if cq.ready() >= want || cq.has_error() {
                return self.copy_to_user(cq, out);
            }
            self.signalled.swap(false).then_some(Err(fi::FI_EAGAIN))
        };
        {
            let mut st = self.dom.gate.lock();
            let waits = &st.cqs.get(self.index).ok_or(fi::FI_EINVAL)?.waits;
            if waits.fd_is_armed() {
                wait::disarm_fd(&mut st, self.target());
            }
        }
        // A call without space for an entry would wait for an entry that it cannot take.
        let timeout = if out.count == 0 { 0 } else { timeout };
        if let Some(found) = wait::block(&self.dom, self.target(), timeout, look)? {
            return found;
        }
        // After a timeout, fewer entries than the threshold are returned as well.
        let mut st = self.dom.gate.lock();
        let cq = st.cqs.get_mut(self.index).ok_or(fi::FI_EINVAL)?;
        self.copy_to_user(cq, out).unwrap_or(Err(fi::FI_EAGAIN))
    }

    fn signal(&self) -> Result<(), Errno> {
        if self.obj == WaitObj::None {
            return Err(fi::FI_ENOSYS);
        }
        let waiter = self.waiter.as_ref();
        if self.dom.gate.is_elided() {
            // Another thread may run in the domain, so no state under the elided domain lock is
            // touched. Without locks a sleeper occupies the first waiter slot.
            self.signalled.set(true);
            waiter.iter().for_each(|w| w.signal());
            return Ok(());
        }
        let mut st = self.dom.gate.lock();
        let waits = &mut st.cqs.get_mut(self.index).ok_or(fi::FI_EINVAL)?.waits;
        self.signalled.set(true);
        waits.notify();
        Ok(())
    }

    /// Fills `e` with the next error. `room` is the size in bytes of the caller's `err_data`. If it
    /// is 0, `e` points to a buffer of the queue that stays valid until the next call. Returns the
    /// bytes to copy to the caller's buffer.
    fn take_error(
        &self,
        e: &mut fi::fi_cq_err_entry,
        room: usize,
    ) -> Result<Option<Vec<u8>>, Errno> {
        entry::check_not_forked(self.creator)?;
        let mut st = self.dom.gate.lock();
        let cq = st.cqs.get_mut(self.index).ok_or(fi::FI_EINVAL)?;
        cq.lent = Vec::new();
        let CqError { c, err, prov_errno, olen, mut err_data } =
            cq.take_error().ok_or(fi::FI_EAGAIN)?;
        cq.detector.note_event();
        e.op_context = ptr::with_exposed_provenance_mut(c.context);
        e.flags = c.flags;
        e.len = c.len;
        e.buf = ptr::with_exposed_provenance_mut(c.buf);
        e.data = c.data;
        e.tag = c.tag;
        e.olen = olen;
        e.err = err;
        e.prov_errno = prov_errno;
        e.src_addr = c.src;
        if room > 0 && !e.err_data.is_null() {
            err_data.truncate(room);
            e.err_data_size = err_data.len();
            return Ok(Some(err_data));
        }
        cq.lent = err_data;
        e.err_data_size = cq.lent.len();
        e.err_data = if cq.lent.is_empty() { ptr::null_mut() } else { cq.lent.as_mut_ptr().cast() };
        Ok(None)
    }

    /// Implements `fi_trywait`.
    pub(crate) fn try_wait(&self) -> Result<(), Errno> {
        if self.owner.as_ref().is_some_and(PeerCqSink::has_backlog) {
            return Err(fi::FI_EAGAIN);
        }
        wait::try_wait(&self.dom, self.target(), |st| {
            st.cqs.get(self.index).is_some_and(|cq| !cq.is_empty())
        })
    }
}

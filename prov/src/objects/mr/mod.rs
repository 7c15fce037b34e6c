// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "thunks; registered memory is the application's word")]
//! Memory regions: the C object around an entry of [`MrTable`].
//!
//! Accesses of peers to a region are in `data`. Registration neither pins nor maps memory: a region
//! is a range of addresses, and refreshing or enabling one has no effect. Closing a region waits
//! until no peer accesses it any more.
//!
//! Mirrors `struct fi_ops_mr` of `rdma/fi_domain.h`; fi_mr(3).

use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, offset_of, size_of};
use std::ptr;
use std::sync::Arc;

use libfabric_sys as fi;
use scif::{RemovedKey, cpu_relax_or_yield, now_ns};
use scif_ring::copy::Mem;

use crate::base::errno::Errno;
use crate::base::log::Subsys;
use crate::base::{attr, entry, env};
use crate::domain::{DomainShared, DomainState, bindings, calls, migrate};

use crate::objects::cntr::Cntr;
use crate::objects::handle::Domain;
use crate::state::eq_queue::eq_entry;
use crate::state::mr_table::Region;

/// Size in bytes of a raw key, which is the key itself.
const RAW_KEY: usize = size_of::<u64>();

/// Object behind `struct fid_mr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Mr {
    fid: fi::fid_mr,
    dom: Arc<DomainShared>,
    index: u32,
}

// SAFETY: repr(C) with a fid_mr first; FI_CLASS_MR is in Mr objects only. The fields after the fid
// are Sync; the domain lock guards everything else.
unsafe impl entry::Object for Mr {
    const FCLASS: usize = fi::FI_CLASS_MR;
}

crate::base::entry::created_by!(Mr, |object| object.dom.creator);

static FID_OPS: fi::fi_ops = fi::fi_ops { close, bind, control, ..fi::FI_OPS_NOSYS };
pub(crate) static OPS: fi::fi_ops_mr = fi::fi_ops_mr { reg, regv, regattr, ..fi::FI_OPS_MR_NOSYS };

/// Common arguments of the three registration calls.
struct RegisterArgs<'a> {
    /// List of buffers, or the error that it caused.
    iov: Result<&'a [fi::iovec], Errno>,
    flags: u64,
    access: u64,
    offset: u64,
    requested_key: u64,
    context: *mut c_void,
    base: Option<&'a Mr>,
}

/// Refuses unknown flags. The known ones are hints about use and memory, which have no effect.
fn known(flags: u64) -> Result<(), Errno> {
    const KNOWN: u64 = fi::FI_RMA_EVENT
        | fi::FI_RMA_PMEM
        | fi::FI_MR_SINGLE_USE
        | fi::FI_HMEM_HOST_ALLOC
        | fi::FI_HMEM_DEVICE_ONLY;
    if flags & !KNOWN == 0 { Ok(()) } else { Err(fi::FI_EBADFLAGS) }
}

/// Returns the list of a region's parts.
///
/// # Errors
/// `FI_EINVAL` for more parts than a region can have, or a missing list.
///
/// # Safety
/// `iov` is null or has `count` elements, unchanged during `'a`.
unsafe fn pieces<'a>(iov: *const fi::iovec, count: usize) -> Result<&'a [fi::iovec], Errno> {
    if count > attr::MR_IOV_LIMIT {
        return Err(fi::FI_EINVAL);
    }
    // SAFETY: the caller's contract.
    unsafe { entry::slice(iov, count) }
}

unsafe extern "C" fn reg(
    fid: *mut fi::fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fi::fid_mr,
    context: *mut c_void,
) -> c_int {
    entry::guard_int("fi_mr_reg", || {
        let iov = [fi::iovec { iov_base: buf.cast_mut(), iov_len: len }];
        let request = RegisterArgs {
            iov: Ok(&iov),
            flags,
            access,
            offset,
            requested_key,
            context,
            base: None,
        };
        // SAFETY: fid and mr are as fi_mr_reg requires.
        unsafe { register(fid, &request, mr) }
    })
}

unsafe extern "C" fn regv(
    fid: *mut fi::fid,
    iov: *const fi::iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fi::fid_mr,
    context: *mut c_void,
) -> c_int {
    entry::guard_int("fi_mr_regv", || {
        let request = RegisterArgs {
            // SAFETY: count elements, by the contract of fi_mr_regv.
            iov: unsafe { pieces(iov, count) },
            flags,
            access,
            offset,
            requested_key,
            context,
            base: None,
        };
        // SAFETY: fid and mr are as fi_mr_regv requires.
        unsafe { register(fid, &request, mr) }
    })
}

/// Reads only the attributes that the interface version of the application has.
unsafe extern "C" fn regattr(
    fid: *mut fi::fid,
    attr: *const fi::fi_mr_attr,
    flags: u64,
    mr: *mut *mut fi::fid_mr,
) -> c_int {
    entry::guard_int("fi_mr_regattr", || {
        // SAFETY: a live domain, by the contract of fi_mr_regattr.
        let domain = unsafe { entry::own::<Domain, _>(fid) }?;
        if attr.is_null() {
            return entry::log_err(
                Subsys::Mr,
                format_args!("fi_mr_regattr without attributes"),
                Err(fi::FI_EINVAL),
            );
        }
        let mut local = MaybeUninit::<fi::fi_mr_attr>::zeroed();
        // SAFETY: the caller's attributes have at least this length in its interface version, and
        // so has the local copy.
        unsafe {
            ptr::copy_nonoverlapping(
                attr.cast::<u8>(),
                local.as_mut_ptr().cast(),
                attr_len(domain.shared.api),
            )
        };
        // SAFETY: integers and raw pointers accept any bytes, and the zeroed copy has no
        // uninitialised byte.
        let attr = unsafe { local.assume_init() };
        let iov = if flags & fi::FI_MR_DMABUF == 0 {
            // SAFETY: iov_count elements, by the contract of fi_mr_regattr.
            unsafe { pieces(attr.mr_iov, attr.iov_count) }
        } else {
            Err(fi::FI_EOPNOTSUPP)
        };
        let base = if attr.base_mr.is_null() {
            None
        } else {
            // SAFETY: a live region, by the contract of fi_mr_regattr.
            let base = unsafe { entry::own::<Mr, _>(attr.base_mr) };
            Some(entry::log_err(
                Subsys::Mr,
                format_args!("fi_mr_regattr with a base_mr that is no memory region"),
                base,
            )?)
        };
        let request = RegisterArgs {
            iov,
            flags: flags & !fi::FI_MR_DMABUF,
            access: attr.access,
            offset: attr.offset,
            requested_key: attr.requested_key,
            context: attr.context,
            base,
        };
        // SAFETY: fid and mr are as fi_mr_regattr requires.
        unsafe { register(fid, &request, mr) }
    })
}

/// # Safety
/// `fid` belongs to a domain; `mr` is null or has space for the result.
unsafe fn register(
    fid: *mut fi::fid,
    request: &RegisterArgs<'_>,
    mr: *mut *mut fi::fid_mr,
) -> Result<(), Errno> {
    // SAFETY: a live domain, by the caller's contract.
    let domain = unsafe { entry::own::<Domain, _>(fid) }?;
    let new = known(request.flags).and_then(|()| {
        if mr.is_null() {
            return Err(fi::FI_EINVAL);
        }
        Mr::open(&domain.shared, request)
    });
    let new = entry::log_err(
        Subsys::Mr,
        format_args!(
            "fi_mr_reg under key {:#x} for access {:#x} with offset {} and flags {:#x}",
            request.requested_key, request.access, request.offset, request.flags
        ),
        new,
    )?;
    let context = request.context;
    let given = entry::give::<Mr, fi::fid_mr>(new);
    // The result is written before the event that announces it. SAFETY: not null, with space for
    // the result by the caller's contract.
    unsafe { entry::put(mr, given) }?;
    let events = domain.shared.gate.lock().mr_events.clone();
    if let Some(eq) = events {
        eq.push(fi::FI_MR_COMPLETE, &eq_entry(given, context, 0));
    }
    Ok(())
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    entry::guard_int("fi_close of a memory region", || {
        // SAFETY: an open region of this provider, not closed concurrently, by the contract of
        // fi_close.
        unsafe { entry::own::<Mr, _>(fid) }?.retire(fid.addr())?;
        // SAFETY: made by `register` and not used after fi_close.
        drop(unsafe { entry::take::<Mr, _>(fid) }?);
        Ok(())
    })
}

unsafe extern "C" fn bind(fid: *mut fi::fid, other: *mut fi::fid, flags: u64) -> c_int {
    entry::guard_int("fi_mr_bind", || {
        // SAFETY: a live region, by the contract of fi_mr_bind.
        let mr = unsafe { entry::own::<Mr, _>(fid) }?;
        // SAFETY: null or a live object, by the contract of fi_mr_bind.
        let class = unsafe { entry::class_of(other) }?;
        let bound = match class {
            // Regions belong to the domain, so that every endpoint of it can access them already.
            fi::FI_CLASS_EP | fi::FI_CLASS_SEP | fi::FI_CLASS_RX_CTX if flags == 0 => Ok(()),
            fi::FI_CLASS_EP | fi::FI_CLASS_SEP | fi::FI_CLASS_RX_CTX => Err(fi::FI_EBADFLAGS),
            // SAFETY: as above.
            fi::FI_CLASS_CNTR => mr.bind_cntr(unsafe { entry::object::<Cntr, _>(other) }?, flags),
            _ => Err(fi::FI_EINVAL),
        };
        entry::log_err(
            Subsys::Mr,
            format_args!("fi_mr_bind of an object of class {class} with flags {flags:#x}"),
            bound,
        )
    })
}

unsafe extern "C" fn control(fid: *mut fi::fid, command: c_int, arg: *mut c_void) -> c_int {
    entry::guard_int("fi_control of a memory region", || {
        // SAFETY: a live region, by the contract of fi_control.
        let mr = unsafe { entry::own::<Mr, _>(fid) }?;
        match command {
            fi::FI_ENABLE | fi::FI_REFRESH => Ok(()),
            // SAFETY: arg is a struct fi_mr_raw_attr, by the contract of fi_mr_raw_attr.
            fi::FI_GET_RAW_MR => unsafe { mr.raw_attr(arg.cast()) },
            _ => Err(fi::FI_ENOSYS),
        }
    })
}

/// Implements `fi_mr_map_raw`: the key as eight raw bytes.
///
/// # Safety
/// `arg` is null or a `struct fi_mr_map_raw` whose pointers are valid as fi_mr(3) requires.
pub(crate) unsafe fn map_raw(arg: *const fi::fi_mr_map_raw) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let map = unsafe { arg.as_ref() }.ok_or(fi::FI_EINVAL)?;
    // SAFETY: key_size bytes, by the caller's contract.
    let raw = unsafe { entry::slice(map.raw_key.cast_const(), map.key_size) }?;
    let raw: [u8; RAW_KEY] = raw.try_into().map_err(|_| fi::FI_EINVAL)?;
    // SAFETY: null or space for a key, by the caller's contract.
    unsafe { entry::put(map.key, u64::from_ne_bytes(raw)) }
}

/// Returns the size of `struct fi_mr_attr` in interface version `api`.
fn attr_len(api: u32) -> usize {
    if api < fi::fi_version(1, 5) {
        offset_of!(fi::fi_mr_attr, auth_key_size)
    } else if api < fi::fi_version(1, 10) {
        offset_of!(fi::fi_mr_attr, iface)
    } else if api < fi::fi_version(1, 19) {
        offset_of!(fi::fi_mr_attr, hmem_data)
    } else if api < fi::fi_version(1, 22) {
        offset_of!(fi::fi_mr_attr, page_size)
    } else if api < fi::fi_version(2, 0) {
        offset_of!(fi::fi_mr_attr, base_mr)
    } else {
        size_of::<fi::fi_mr_attr>()
    }
}

/// Waits until no peer is in an access that it began through a key before its revocation. Copies
/// are short: a peer that is not done after `limit_ns` is stopped or faulty, and its connection is
/// reset. The caller does not hold the domain lock, which other threads need meanwhile.
pub(crate) fn wait_until_left(dom: &DomainShared, key: Option<RemovedKey>, limit_ns: u64) {
    let Some(key) = key else { return };
    let end = now_ns().saturating_add(limit_ns);
    dom.keys.remove_windows(key);
    let slot = key.slot();
    let mut polls = 0;
    loop {
        let mut st = dom.gate.lock();
        if !migrate::slot_in_use(&mut st, slot) {
            return;
        }
        if now_ns() >= end {
            calls::evict_accessors(&mut st, slot);
        }
        drop(st);
        polls += 1;
        cpu_relax_or_yield(polls);
    }
}

/// Waits until no network accesses a region that was removed. After `limit_ns`, the connections and
/// the network that still do so end.
fn wait_for_network(dom: &DomainShared, key: u64, limit_ns: u64) {
    let end = now_ns().saturating_add(limit_ns);
    let mut polls = 0;
    while calls::settle_network(&mut dom.gate.lock(), key, now_ns() >= end) {
        polls += 1;
        cpu_relax_or_yield(polls);
    }
}

/// Counts the accesses to region `mr` selected by `flags` in counter `cntr`, all of them or none.
/// Returns the key through which peers may still access the region.
///
/// # Errors
/// `FI_EINVAL`: no such region or counter, or the region has one for these accesses. Errors of the
/// system, when an endpoint cannot be watched.
fn bind_cntr(
    st: &mut DomainState,
    mr: u32,
    cntr: u32,
    flags: u64,
) -> Result<Option<RemovedKey>, Errno> {
    st.mrs.can_bind_cntr(mr, flags)?;
    // Peers may access the region through any endpoint.
    bindings::widen(st, cntr)?;
    st.mrs.bind_cntr(mr, cntr, flags)
}

impl Mr {
    fn open(dom: &Arc<DomainShared>, request: &RegisterArgs<'_>) -> Result<Box<Mr>, Errno> {
        if request.offset != 0 {
            return Err(fi::FI_EINVAL);
        }
        let base = match request.base {
            Some(base) if !Arc::ptr_eq(&base.dom, dom) => return Err(fi::FI_EINVAL),
            base => base.map(|b| b.index),
        };
        let pieces = request.iov?.iter().map(|piece| {
            // SAFETY: by the registration the application promises that the range may be accessed
            // until the region is closed. An access to unmapped pages fails in the kernel or, in
            // the own process, is the fault it would be anyway.
            unsafe { Mem::new(piece.iov_base.cast(), piece.iov_len) }
        });
        let pieces: Vec<Mem> = pieces.collect();
        let region = Region {
            iov: &pieces,
            access: request.access,
            requested_key: request.requested_key,
            base,
        };
        let (index, key) = {
            let mut st = dom.gate.lock();
            let index = st.mrs.register(&region)?;
            (index, st.mrs.key(index))
        };
        let fid =
            fi::fid { fclass: fi::FI_CLASS_MR, context: request.context, ops: &raw const FID_OPS };
        let mut mr = Box::new(Mr {
            fid: fi::fid_mr { fid, mem_desc: ptr::null_mut(), key },
            dom: Arc::clone(dom),
            index,
        });
        // Descriptors are ignored; any value but null marks a registration.
        mr.fid.mem_desc = ptr::from_mut(mr.as_mut()).cast();
        Ok(mr)
    }

    /// Removes the region at `fid`, and the event that names it.
    fn retire(&self, fid: usize) -> Result<(), Errno> {
        let mut st = self.dom.gate.lock();
        let key = st.mrs.key(self.index);
        let left = st.mrs.remove(self.index)?;
        let is_read = calls::revoke_from_network(&mut st, key);
        let events = st.mr_events.clone();
        drop(st);
        if let Some(eq) = events {
            eq.purge_fid(fid);
        }
        let limit_ns = env::env().mr_close_timeout_ns;
        wait_until_left(&self.dom, left.key, limit_ns);
        if is_read {
            wait_for_network(&self.dom, key, limit_ns);
        }
        left.settle();
        Ok(())
    }

    fn bind_cntr(&self, cntr: &Cntr, flags: u64) -> Result<(), Errno> {
        if flags & !(fi::FI_REMOTE_WRITE | fi::FI_REMOTE_READ) != 0 || flags == 0 {
            return Err(fi::FI_EBADFLAGS);
        }
        if !Arc::ptr_eq(cntr.domain(), &self.dom) {
            return Err(fi::FI_EINVAL);
        }
        let key = bind_cntr(&mut self.dom.gate.lock(), self.index, cntr.index(), flags)?;
        wait_until_left(&self.dom, key, env::env().mr_close_timeout_ns);
        Ok(())
    }

    /// # Safety
    /// `arg` is null or a `struct fi_mr_raw_attr` whose pointers are valid as fi_mr(3) requires.
    unsafe fn raw_attr(&self, arg: *const fi::fi_mr_raw_attr) -> Result<(), Errno> {
        // SAFETY: the caller's contract.
        let raw = unsafe { arg.as_ref() }.ok_or(fi::FI_EINVAL)?;
        // SAFETY: null or the size of the key's buffer, by the caller's contract.
        let room = unsafe { raw.key_size.as_ref() }.copied().ok_or(fi::FI_EINVAL)?;
        // SAFETY: checked not to be null.
        unsafe { entry::put(raw.key_size, RAW_KEY) }?;
        if room < RAW_KEY {
            return Err(fi::FI_ETOOSMALL);
        }
        let (start, key) = {
            let st = self.dom.gate.lock();
            (st.mrs.start(self.index), st.mrs.key(self.index))
        };
        // SAFETY: null or space for an address, by the caller's contract.
        unsafe { entry::put(raw.base_addr, start) }?;
        // SAFETY: null or at least RAW_KEY bytes, by the caller's contract and the check above.
        unsafe { entry::put(raw.raw_key.cast::<[u8; RAW_KEY]>(), key.to_ne_bytes()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Target;
    use crate::state::counter::CntrState;
    use crate::state::waiters::WaitState;

    #[test]
    fn a_counter_is_bound_wholly_or_not_at_all() {
        let domain = Domain::for_test(fi::fi_version(2, 0), &fi::fi_domain_attr::default());
        let mut st = domain.shared.gate.lock();
        let region = Region {
            // SAFETY: never read or written.
            iov: &[unsafe { Mem::new(ptr::without_provenance_mut(4096), 64) }],
            access: fi::FI_REMOTE_WRITE,
            requested_key: 5,
            base: None,
        };
        let mr = st.mrs.register(&region).unwrap();
        let cntr = st.cntrs.insert(CntrState::new(WaitState::none())).unwrap();
        let write = fi::FI_REMOTE_WRITE;
        assert_eq!(bind_cntr(&mut st, mr, cntr + 1, write), Err(fi::FI_EINVAL));
        assert_eq!(st.mrs.cntr_of(5, false), None);
        assert_eq!(bind_cntr(&mut st, mr + 1, cntr, write), Err(fi::FI_EINVAL));
        assert!(!bindings::is_wide(&st, Target::Cntr(cntr)));
        assert!(bind_cntr(&mut st, mr, cntr, write).is_ok());
        assert_eq!(st.mrs.cntr_of(5, false), Some(cntr));
        assert!(bindings::is_wide(&st, Target::Cntr(cntr)));
        assert_eq!(bind_cntr(&mut st, mr, cntr, write), Err(fi::FI_EINVAL));
    }
}

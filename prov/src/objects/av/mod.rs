// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "thunks")]
//! Address vectors: the calls on an [`Av`], the C object around an [`AvState`].
//!
//! The bytes of an address are in `addr`, name resolution in `resolve`. Insertion is immediate.
//! With `FI_EVENT` its result is also reported through an event queue. An address of another host
//! is refused with one warning that names the remedy, so that later calls do not hang.
//!
//! Mirrors `struct fi_ops_av` of `rdma/fi_domain.h`; fi_av(3).

#[cfg(test)]
mod tests;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::ptr;
use std::sync::{Arc, OnceLock};

use libfabric_sys as fi;

use crate::base::addr::{self, ADDR_LEN, Addr, AddrError, LocalHost};
use crate::base::errno::Errno;
use crate::base::log::{self, Subsys};
use crate::base::{entry, resolve};
use crate::domain::DomainShared;
use crate::net;
use crate::objects::eq::Eq;
use crate::objects::handle::{Av, Domain};
use crate::state::av_shared::SharedAv;
use crate::state::av_table::{AvState, RX_CTX_BITS_MAX};
use crate::state::eq_queue::{EqError, EqShared, eq_entry};

type Bytes = [u8; ADDR_LEN];

static FID_OPS: fi::fi_ops = fi::fi_ops { close, bind, ..fi::FI_OPS_NOSYS };
static OPS: fi::fi_ops_av = fi::fi_ops_av {
    insert,
    insertsvc,
    insertsym,
    remove,
    lookup,
    straddr,
    set_user_id,
    av_set: crate::objects::av_set::open,
    ..fi::FI_OPS_AV_NOSYS
};

/// `fi_av_open`
pub(crate) unsafe extern "C" fn open(
    domain: *mut fi::fid_domain,
    attr: *mut fi::fi_av_attr,
    av: *mut *mut fi::fid_av,
    context: *mut c_void,
) -> c_int {
    entry::guard_int("fi_av_open", || {
        // SAFETY: a live domain, by the contract of fi_av_open.
        let domain = unsafe { entry::own::<Domain, _>(domain) }?;
        // SAFETY: null, or attributes that only this call uses meanwhile: type is written back.
        let attr = unsafe { attr.as_mut() }.ok_or(fi::FI_EINVAL)?;
        if av.is_null() {
            return Err(fi::FI_EINVAL);
        }
        // SAFETY: null or a C string, by the contract of fi_av_open.
        let name = unsafe { entry::string(attr.name) };
        let (kind, flags) = (attr.type_, attr.flags);
        let new = entry::log_err(
            Subsys::Av,
            format_args!("fi_av_open of type {kind} with flags {flags:#x}"),
            Av::open(&domain.shared, attr, name, context),
        )?;
        if attr.type_ == fi::FI_AV_UNSPEC {
            attr.type_ = fi::FI_AV_MAP;
        }
        // SAFETY: not null; the caller passes space for the result.
        unsafe { entry::put(av, entry::give(new)) }
    })
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    entry::guard_int("fi_close of an address vector", || {
        // SAFETY: an open vector of this provider, not closed concurrently, by the contract of
        // fi_close.
        let retired = unsafe { entry::own::<Av, _>(fid) }?.retire(fid.addr());
        entry::log_err(Subsys::Av, format_args!("fi_close of an address vector"), retired)?;
        // SAFETY: made by `open` and not used after fi_close.
        drop(unsafe { entry::take::<Av, _>(fid) }?);
        Ok(())
    })
}

unsafe extern "C" fn bind(fid: *mut fi::fid, other: *mut fi::fid, flags: u64) -> c_int {
    entry::guard_int("fi_av_bind", || {
        // SAFETY: a live vector, by the contract of fi_av_bind.
        let av = unsafe { entry::own::<Av, _>(fid) }?;
        // SAFETY: a live event queue or null, by the contract of fi_av_bind; other classes are
        // refused.
        let eq = unsafe { entry::object::<Eq, _>(other) }?;
        av.bind_eq(eq.shared(), flags)
    })
}

unsafe extern "C" fn insert(
    av: *mut fi::fid_av,
    addrs: *const c_void,
    count: usize,
    fi_addr: *mut fi::fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    entry::guard_int("fi_av_insert", || {
        // SAFETY: a live vector, by the contract of fi_av_insert.
        let av = unsafe { entry::own::<Av, _>(av) }?;
        // SAFETY: count addresses of this format, by the contract of fi_av_insert.
        let addrs = unsafe { entry::slice(addrs.cast::<Bytes>(), count) }?;
        // SAFETY: space for count results, and for count errors with FI_SYNC_ERR.
        let report = unsafe { Report::new(count, fi_addr, flags, context) }?;
        av.insert(addrs.iter().copied().map(Some), count, report)
    })
}

unsafe extern "C" fn insertsvc(
    av: *mut fi::fid_av,
    node: *const c_char,
    service: *const c_char,
    fi_addr: *mut fi::fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the contract of fi_av_insertsym with counts of one.
    unsafe { insertsym(av, node, 1, service, 1, fi_addr, flags, context) }
}

unsafe extern "C" fn insertsym(
    av: *mut fi::fid_av,
    node: *const c_char,
    nodecnt: usize,
    service: *const c_char,
    svccnt: usize,
    fi_addr: *mut fi::fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    entry::guard_int("fi_av_insertsym", || {
        // SAFETY: a live vector, by the contract of fi_av_insertsym.
        let av = unsafe { entry::own::<Av, _>(av) }?;
        // SAFETY: null or a C string, by the contract of fi_av_insertsym.
        let node = unsafe { entry::string(node) };
        // SAFETY: null or a C string, by the contract of fi_av_insertsym.
        let service = unsafe { entry::string(service) }.ok_or(fi::FI_EINVAL)?;
        let count = nodecnt.checked_mul(svccnt).ok_or(fi::FI_EINVAL)?;
        // SAFETY: space for count results, and for count errors with FI_SYNC_ERR.
        let report = unsafe { Report::new(count, fi_addr, flags, context) }?;
        let names = (0..nodecnt).flat_map(|n| (0..svccnt).map(move |s| (n, s)));
        av.insert(names.map(|(n, s)| named(node, n, service, s)), count, report)
    })
}

unsafe extern "C" fn remove(
    av: *mut fi::fid_av,
    fi_addr: *mut fi::fi_addr_t,
    count: usize,
    flags: u64,
) -> c_int {
    entry::guard_int("fi_av_remove", || {
        // SAFETY: a live vector, by the contract of fi_av_remove.
        let av = unsafe { entry::own::<Av, _>(av) }?;
        // SAFETY: count addresses, by the contract of fi_av_remove.
        let addrs = unsafe { entry::slice(fi_addr.cast_const(), count) }?;
        av.remove(addrs, flags)
    })
}

unsafe extern "C" fn lookup(
    av: *mut fi::fid_av,
    fi_addr: fi::fi_addr_t,
    addr: *mut c_void,
    addrlen: *mut usize,
) -> c_int {
    entry::guard_int("fi_av_lookup", || {
        // SAFETY: a live vector, by the contract of fi_av_lookup.
        let av = unsafe { entry::own::<Av, _>(av) }?;
        let bytes = av
            .dom
            .gate
            .lock()
            .avs
            .get(av.index)
            .and_then(|s| s.bytes(fi_addr))
            .ok_or(fi::FI_EINVAL)?;
        // SAFETY: null or the length of the buffer, by the contract of fi_av_lookup.
        let room = unsafe { addrlen.as_ref() }.copied().ok_or(fi::FI_EINVAL)?;
        if room > 0 && addr.is_null() {
            return Err(fi::FI_EINVAL);
        }
        // SAFETY: the buffer has at least `room` bytes, by the contract of fi_av_lookup.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), addr.cast(), room.min(ADDR_LEN)) };
        // SAFETY: checked not to be null.
        unsafe { entry::put(addrlen, ADDR_LEN) }
    })
}

unsafe extern "C" fn straddr(
    _av: *mut fi::fid_av,
    addr: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    entry::guard_or(ptr::null(), || {
        // SAFETY: null or an address of this format, by the contract of fi_av_straddr.
        let bytes = unsafe { addr.cast::<Bytes>().as_ref() };
        // SAFETY: null or the length of the buffer, by the contract of fi_av_straddr.
        let (Some(bytes), Some(room)) = (bytes, unsafe { len.as_ref() }.copied()) else {
            return ptr::null();
        };
        let text =
            Addr::from_bytes(bytes).map_or_else(|| "not an address".to_owned(), |a| a.to_string());
        // SAFETY: not null. The length includes the NUL, as in libfabric.
        let stored = unsafe { entry::put(len, text.len() + 1) };
        debug_assert!(stored.is_ok());
        if buf.is_null() || room == 0 {
            return buf;
        }
        let n = text.len().min(room - 1);
        // SAFETY: `room` bytes, by the contract of fi_av_straddr.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr(), buf.cast(), n) };
        // SAFETY: n is below `room`.
        let end = unsafe { buf.add(n) };
        // SAFETY: as above.
        unsafe { end.write(0) };
        buf
    })
}

/// `fi_av_set_user_id`
///
/// # Errors
/// `-FI_EINVAL` for an address that is not in the vector, or a vector opened without
/// `FI_AV_USER_ID`. `-FI_EBADFLAGS` for nonzero flags.
unsafe extern "C" fn set_user_id(
    av: *mut fi::fid_av,
    fi_addr: fi::fi_addr_t,
    user_id: fi::fi_addr_t,
    flags: u64,
) -> c_int {
    entry::guard_int("fi_av_set_user_id", || {
        // SAFETY: a live vector, by the contract of fi_av_set_user_id.
        let av = unsafe { entry::own::<Av, _>(av) }?;
        if flags != 0 {
            return Err(fi::FI_EBADFLAGS);
        }
        let mut st = av.dom.gate.lock();
        let state = st.avs.get_mut(av.index).ok_or(fi::FI_EINVAL)?;
        if av.users && state.set_user(fi_addr, user_id) { Ok(()) } else { Err(fi::FI_EINVAL) }
    })
}

/// Destination of the results of an insertion.
struct Report {
    fi_addr: *mut fi::fi_addr_t,
    /// Whether `fi_addr` holds user identifiers for the addresses on input (`FI_AV_USER_ID`).
    has_user_ids: bool,
    /// One error number per address, with `FI_SYNC_ERR`.
    errors: *mut c_int,
    context: *mut c_void,
    count: usize,
}

impl Report {
    /// # Errors
    /// `FI_EBADFLAGS` for flags that are not supported. `FI_EINVAL` for `FI_SYNC_ERR` without an
    /// array for errors, or `FI_AV_USER_ID` without identifiers.
    ///
    /// # Safety
    /// `fi_addr` is null or has space for `count` addresses, which are initialised with
    /// `FI_AV_USER_ID`. With `FI_SYNC_ERR`, `context` has space for `count` `int`s.
    unsafe fn new(
        count: usize,
        fi_addr: *mut fi::fi_addr_t,
        flags: u64,
        context: *mut c_void,
    ) -> Result<Report, Errno> {
        if flags & !(fi::FI_MORE | fi::FI_SYNC_ERR | fi::FI_AV_USER_ID) != 0 {
            return Err(fi::FI_EBADFLAGS);
        }
        let has_user_ids = flags & fi::FI_AV_USER_ID != 0;
        if has_user_ids && fi_addr.is_null() && count > 0 {
            return Err(fi::FI_EINVAL);
        }
        let errors: *mut c_int =
            if flags & fi::FI_SYNC_ERR == 0 { ptr::null_mut() } else { context.cast() };
        if flags & fi::FI_SYNC_ERR != 0 && errors.is_null() && count > 0 {
            return Err(fi::FI_EINVAL);
        }
        Ok(Report { fi_addr, has_user_ids, errors, context, count })
    }

    /// Returns the user identifier to report in place of the index of address `at`.
    fn user(&self, at: usize) -> Option<u64> {
        if !self.has_user_ids || at >= self.count {
            return None;
        }
        // SAFETY: `new` promised `count` elements, and a non-null array with this flag.
        let slot = unsafe { self.fi_addr.add(at) };
        // SAFETY: as above; with this flag the caller has written them.
        Some(unsafe { slot.read() })
    }

    fn put(&self, at: usize, outcome: Result<u64, Errno>) {
        if at >= self.count {
            return;
        }
        if !self.fi_addr.is_null() {
            // SAFETY: `new` promised `count` elements.
            let slot = unsafe { self.fi_addr.add(at) };
            // SAFETY: as above.
            unsafe { slot.write(outcome.unwrap_or(fi::FI_ADDR_NOTAVAIL)) };
        }
        if !self.errors.is_null() {
            // SAFETY: `new` promised `count` elements.
            let slot = unsafe { self.errors.add(at) };
            // SAFETY: as above.
            unsafe { slot.write(outcome.err().unwrap_or(0)) };
        }
    }
}

impl Av {
    fn open(
        dom: &Arc<DomainShared>,
        attr: &mut fi::fi_av_attr,
        name: Option<&CStr>,
        context: *mut c_void,
    ) -> Result<Box<Av>, Errno> {
        if attr.type_ > fi::FI_AV_TABLE {
            return Err(fi::FI_EINVAL);
        }
        let known = fi::FI_EVENT | fi::FI_READ | fi::FI_SYMMETRIC | fi::FI_AV_USER_ID | fi::FI_PEER;
        if attr.flags & !known != 0 {
            return Err(fi::FI_EBADFLAGS);
        }
        let bits = u32::try_from(attr.rx_ctx_bits)
            .ok()
            .filter(|bits| *bits <= RX_CTX_BITS_MAX)
            .ok_or(fi::FI_EINVAL)?;
        let users = attr.flags & fi::FI_AV_USER_ID != 0;
        // A vector without a name is private. Other providers of libfabric ignore the flag for it
        // as well.
        let read_only = attr.flags & fi::FI_READ != 0 && name.is_some();
        let state = match name {
            None => AvState::new(attr.count, bits, users),
            Some(name) => {
                let name = name.to_str().map_err(|_| fi::FI_EINVAL)?;
                let shared = SharedAv::open(&dom.fabric.node, name, read_only, bits)?;
                if attr.map_addr.is_null() {
                    attr.map_addr = ptr::with_exposed_provenance_mut(shared.map_addr());
                }
                AvState::of_shared(shared, bits, users)
            }
        };
        let index = dom.gate.lock().avs.insert(state).ok_or(fi::FI_ENOMEM)?;
        Ok(Box::new(Av {
            fid: fi::fid_av {
                fid: fi::fid { fclass: fi::FI_CLASS_AV, context, ops: &raw const FID_OPS },
                ops: &raw const OPS,
            },
            dom: Arc::clone(dom),
            index,
            reader: LocalHost::of(&dom.fabric.node),
            events: attr.flags & fi::FI_EVENT != 0,
            users,
            read_only,
            eq: OnceLock::new(),
        }))
    }

    /// Removes the vector at `fid` from the domain, and the events that name it from its event
    /// queue.
    fn retire(&self, fid: usize) -> Result<(), Errno> {
        let mut st = self.dom.gate.lock();
        let state = st.avs.get(self.index).ok_or(fi::FI_EINVAL)?;
        if state.endpoints != 0 || state.sets != 0 {
            return Err(fi::FI_EBUSY);
        }
        let gone = st.avs.remove(self.index);
        drop(st);
        // Dropped after the lock is released, since leaving a shared vector is slow.
        drop(gone);
        if let Some(eq) = self.eq.get() {
            eq.purge_fid(fid);
        }
        Ok(())
    }

    fn bind_eq(&self, eq: &Arc<EqShared>, flags: u64) -> Result<(), Errno> {
        if flags != 0 {
            return Err(fi::FI_EBADFLAGS);
        }
        self.eq.set(Arc::clone(eq)).map_err(|_| fi::FI_EINVAL)
    }

    /// Inserts addresses (`None`: a name that did not resolve). Returns the number inserted, or 0
    /// when an event reports it.
    fn insert(
        &self,
        addrs: impl Iterator<Item = Option<Bytes>>,
        count: usize,
        report: Report,
    ) -> Result<c_int, Errno> {
        let count = c_int::try_from(count).map_err(|_| fi::FI_EINVAL)?;
        if self.read_only {
            return Err(fi::FI_EACCES);
        }
        if self.users && report.has_user_ids {
            return Err(fi::FI_EINVAL);
        }
        let eq = match (self.events, self.eq.get()) {
            (true, None) => return Err(fi::FI_ENOEQ),
            (true, Some(eq)) => Some(eq),
            (false, _) => None,
        };
        let fid = &raw const self.fid;
        let mut failed = 0;
        for (at, bytes) in addrs.enumerate() {
            let outcome = self.insert_one(bytes, report.user(at));
            report.put(at, outcome);
            if let Err(err) = outcome {
                failed += 1;
                if let Some(eq) = eq {
                    eq.push_error(EqError {
                        fid: fid.expose_provenance(),
                        context: report.context.expose_provenance(),
                        data: at as u64,
                        err,
                        prov_errno: -err,
                        err_data: Vec::new(),
                    });
                }
            }
        }
        crate::objects::peer_import::addresses_changed(&self.dom, self.index);
        let inserted = count - failed;
        let Some(eq) = eq else { return Ok(inserted) };
        let data = u64::try_from(inserted).unwrap_or(0);
        eq.push(fi::FI_AV_COMPLETE, &eq_entry(fid, report.context, data));
        Ok(0)
    }

    fn insert_one(&self, bytes: Option<Bytes>, user: Option<u64>) -> Result<u64, Errno> {
        let bytes = bytes.ok_or(fi::FI_EADDRNOTAVAIL)?;
        let id = addr::decode(&bytes, self.reader).map_err(|why| match why {
            AddrError::Malformed => fi::FI_EINVAL,
            AddrError::OtherHost(_) | AddrError::OtherIp(_) => {
                log::foreign_address(&why, &self.dom.fabric.node, net::suggested);
                fi::FI_EHOSTUNREACH
            }
        })?;
        let mut st = self.dom.gate.lock();
        let state = st.avs.get_mut(self.index).ok_or(fi::FI_EINVAL)?;
        state.insert(id, bytes, user)
    }

    /// Removes from the end, so that the next insertions reuse the indexes in their original order.
    fn remove(&self, addrs: &[fi::fi_addr_t], flags: u64) -> Result<(), Errno> {
        if flags != 0 {
            return Err(fi::FI_EINVAL);
        }
        let mut st = self.dom.gate.lock();
        let state = st.avs.get_mut(self.index).ok_or(fi::FI_EINVAL)?;
        let mut all = Ok(());
        for addr in addrs.iter().rev() {
            all = state.remove(*addr).and(all);
        }
        all
    }
}

/// Returns the address with the node name raised by `n` and the service raised by `s`, as in
/// fi_av_insertsym.
fn named(node: Option<&CStr>, n: usize, service: &CStr, s: usize) -> Option<Bytes> {
    let service = if s == 0 { service.to_owned() } else { count_up(service, s)? };
    let numeric = node.and_then(|node| node.to_str().ok()?.parse::<Ipv4Addr>().ok());
    let (ip, port) = match (node, numeric) {
        (Some(_), Some(first)) => {
            let ip = Ipv4Addr::from_bits(first.to_bits().checked_add(u32::try_from(n).ok()?)?);
            (ip, resolve::resolve(None, Some(&service), false)?.1)
        }
        // Without a node there is no name to raise.
        (None, _) if n > 0 => return None,
        (Some(node), None) if n > 0 => {
            resolve::resolve(Some(&count_up(node, n)?), Some(&service), false)?
        }
        (node, _) => resolve::resolve(node, Some(&service), false)?,
    };
    Some(Addr::this_host(ip, port).to_bytes())
}

/// Returns `name` with its decimal suffix raised by `by`, at least as wide as before; `None`
/// without a suffix.
fn count_up(name: &CStr, by: usize) -> Option<CString> {
    let name = name.to_str().ok()?;
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = name.get(stem.len()..).filter(|d| !d.is_empty())?;
    let number = digits.parse::<usize>().ok()?.checked_add(by)?;
    let mut raised = stem.to_owned();
    write!(raised, "{number:0width$}", width = digits.len()).ok()?;
    CString::new(raised).ok()
}

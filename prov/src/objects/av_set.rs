// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "thunks")]
//! Address vector sets: ordered subsets of an address vector that define the members of
//! collectives.
//!
//! A set is a list of `fi_addr_t`. A change is local and takes time proportional to its length.
//! Later changes of a set, or its close, do not affect the groups that were joined with it.
//!
//! The groups themselves are in `collective` and `engine::coll`.
//!
//! Mirrors `struct fi_ops_av_set` of `rdma/fi_collective.h`; fi_av_set(3).

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libfabric_sys as fi;
use scif::Maker;

use crate::base::entry;
use crate::base::errno::Errno;
use crate::domain::{DomainShared, DomainState};
use crate::objects::handle::Av;
use crate::state::av_set::{AvSetState, in_range};

/// Flags that restrict a set to some collectives; they are accepted, and every set supports all
/// collectives.
const KINDS: u64 = fi::FI_BARRIER_SET
    | fi::FI_BROADCAST_SET
    | fi::FI_ALLTOALL_SET
    | fi::FI_ALLREDUCE_SET
    | fi::FI_ALLGATHER_SET
    | fi::FI_REDUCE_SCATTER_SET
    | fi::FI_REDUCE_SET
    | fi::FI_SCATTER_SET
    | fi::FI_GATHER_SET;

/// Object behind `struct fid_av_set`.
#[repr(C)]
pub(crate) struct AvSet {
    fid: fi::fid_av_set,
    dom: Arc<DomainShared>,
    creator: Maker,
    index: u32,
}

// SAFETY: repr(C) with a fid_av_set first; FI_CLASS_AV_SET is in AvSet objects only. An Arc of Sync
// state follows the fid.
unsafe impl entry::Object for AvSet {
    const FCLASS: usize = fi::FI_CLASS_AV_SET;
}

entry::created_by!(AvSet, |object| object.creator);

static FID_OPS: fi::fi_ops = fi::fi_ops { close, ..fi::FI_OPS_NOSYS };
static OPS: fi::fi_ops_av_set = fi::fi_ops_av_set {
    size: size_of::<fi::fi_ops_av_set>(),
    set_union,
    intersect,
    diff,
    insert,
    remove,
    addr,
};

/// `fi_av_set`
///
/// # Errors
/// `-FI_EINVAL` for a range without stride, or a communication key, since no manager of keys
/// exists. `-FI_EBADFLAGS` for unknown flags.
pub(crate) unsafe extern "C" fn open(
    av: *mut fi::fid_av,
    attr: *mut fi::fi_av_set_attr,
    set: *mut *mut fi::fid_av_set,
    context: *mut c_void,
) -> c_int {
    entry::guard_int("fi_av_set", || {
        // SAFETY: a live vector, by the contract of fi_av_set.
        let av = unsafe { entry::own::<Av, _>(av) }?;
        // SAFETY: null, or attributes that stay unchanged during the call.
        let attr = unsafe { attr.as_ref() }.ok_or(fi::FI_EINVAL)?;
        if set.is_null() {
            return Err(fi::FI_EINVAL);
        }
        let new = AvSet::open(av, attr, context)?;
        // SAFETY: not null; the caller passes space for the result.
        unsafe { entry::put(set, entry::give(new)) }
    })
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    entry::guard_int("fi_close of an address set", || {
        // SAFETY: an open set of this provider, not closed concurrently, by the contract of
        // fi_close.
        unsafe { entry::own::<AvSet, _>(fid) }?;
        // SAFETY: made by `open` and not used after fi_close.
        let set = unsafe { entry::take::<AvSet, _>(fid) }?;
        let mut st = set.dom.gate.lock();
        if let Some(state) = st.av_sets.remove(set.index) {
            if let Some(av) = st.avs.get_mut(state.av) {
                av.sets = av.sets.saturating_sub(1);
            }
        }
        Ok(())
    })
}

unsafe extern "C" fn set_union(dst: *mut fi::fid_av_set, src: *const fi::fid_av_set) -> c_int {
    // SAFETY: live sets, by the contract of fi_av_set_union.
    entry::guard_int("fi_av_set_union", || unsafe { with_other(dst, src, AvSetState::unite) })
}

unsafe extern "C" fn intersect(dst: *mut fi::fid_av_set, src: *const fi::fid_av_set) -> c_int {
    // SAFETY: live sets, by the contract of fi_av_set_intersect.
    entry::guard_int("fi_av_set_intersect", || unsafe {
        with_other(dst, src, |set, other| set.keep(other, true))
    })
}

unsafe extern "C" fn diff(dst: *mut fi::fid_av_set, src: *const fi::fid_av_set) -> c_int {
    // SAFETY: live sets, by the contract of fi_av_set_diff.
    entry::guard_int("fi_av_set_diff", || unsafe {
        with_other(dst, src, |set, other| set.keep(other, false))
    })
}

/// # Errors
/// `-FI_EINVAL` for an address outside the vector or already in the set.
unsafe extern "C" fn insert(set: *mut fi::fid_av_set, addr: fi::fi_addr_t) -> c_int {
    entry::guard_int("fi_av_set_insert", || {
        // SAFETY: a live set, by the contract of fi_av_set_insert.
        let set = unsafe { entry::own::<AvSet, _>(set) }?;
        let mut st = set.dom.gate.lock();
        let DomainState { av_sets, avs, .. } = &mut *st;
        let state = av_sets.get_mut(set.index).ok_or(fi::FI_EINVAL)?;
        let av = avs.get(state.av).ok_or(fi::FI_EINVAL)?;
        if av.port_id(addr).is_none() || state.members.contains(&addr) {
            return Err(fi::FI_EINVAL);
        }
        state.members.push(addr);
        Ok(())
    })
}

/// # Errors
/// `-FI_EINVAL` for an address that is not in the set.
unsafe extern "C" fn remove(set: *mut fi::fid_av_set, addr: fi::fi_addr_t) -> c_int {
    entry::guard_int("fi_av_set_remove", || {
        // SAFETY: a live set, by the contract of fi_av_set_remove.
        let set = unsafe { entry::own::<AvSet, _>(set) }?;
        let mut st = set.dom.gate.lock();
        let state = st.av_sets.get_mut(set.index).ok_or(fi::FI_EINVAL)?;
        let at = state.members.iter().position(|member| *member == addr);
        state.members.remove(at.ok_or(fi::FI_EINVAL)?);
        Ok(())
    })
}

unsafe extern "C" fn addr(set: *mut fi::fid_av_set, coll_addr: *mut fi::fi_addr_t) -> c_int {
    entry::guard_int("fi_av_set_addr", || {
        // SAFETY: a live set, by the contract of fi_av_set_addr.
        let set = unsafe { entry::own::<AvSet, _>(set) }?;
        let st = set.dom.gate.lock();
        let addr = st.av_sets.get(set.index).ok_or(fi::FI_EINVAL)?.addr;
        // SAFETY: null or space for the result, by the contract of fi_av_set_addr.
        unsafe { entry::put(coll_addr, addr) }
    })
}

/// Changes the set `dst` by the members of `src`.
///
/// # Errors
/// `FI_EINVAL` for sets of different vectors.
///
/// # Safety
/// Both point to open sets.
unsafe fn with_other(
    dst: *const fi::fid_av_set,
    src: *const fi::fid_av_set,
    change: impl FnOnce(&mut AvSetState, &[u64]),
) -> Result<(), Errno> {
    // SAFETY: a live set, by the caller's contract.
    let dst = unsafe { entry::own::<AvSet, _>(dst) }?;
    // SAFETY: a live set, by the caller's contract.
    let src = unsafe { entry::own::<AvSet, _>(src) }?;
    if !Arc::ptr_eq(&dst.dom, &src.dom) {
        return Err(fi::FI_EINVAL);
    }
    let mut st = dst.dom.gate.lock();
    let other = st.av_sets.get(src.index).ok_or(fi::FI_EINVAL)?;
    let (av, members) = (other.av, other.members.clone());
    let state = st.av_sets.get_mut(dst.index).ok_or(fi::FI_EINVAL)?;
    if state.av != av {
        return Err(fi::FI_EINVAL);
    }
    change(state, &members);
    Ok(())
}

impl AvSet {
    fn open(av: &Av, attr: &fi::fi_av_set_attr, context: *mut c_void) -> Result<Box<AvSet>, Errno> {
        if attr.flags & !(KINDS | fi::FI_UNIVERSE) != 0 {
            return Err(fi::FI_EBADFLAGS);
        }
        if attr.comm_key_size != 0 {
            return Err(fi::FI_EINVAL);
        }
        let dom = av.domain();
        let mut guard = dom.gate.lock();
        let st = &mut *guard;
        let vector = st.avs.get_mut(av.index()).ok_or(fi::FI_EINVAL)?;
        let members = if attr.flags & fi::FI_UNIVERSE != 0 {
            vector.addrs().collect()
        } else {
            in_range(vector, attr)?
        };
        vector.sets += 1;
        let addr = st.next_coll_addr();
        let state = AvSetState { av: av.index(), members, addr };
        let index = st.av_sets.insert(state).ok_or(fi::FI_ENOMEM)?;
        drop(guard);
        Ok(Box::new(AvSet {
            fid: fi::fid_av_set {
                fid: fi::fid { fclass: fi::FI_CLASS_AV_SET, context, ops: &raw const FID_OPS },
                ops: &raw const OPS,
            },
            dom: Arc::clone(dom),
            creator: Maker::here(),
            index,
        }))
    }

    pub(crate) fn domain(&self) -> &Arc<DomainShared> {
        &self.dom
    }

    /// Index in `DomainState::av_sets`.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }
}

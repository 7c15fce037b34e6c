// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "C calls in, with pointers")]
//! Collectives: joining a group, `struct fi_ops_collective` from C's arguments to the arguments of
//! the data path, and the query of supported operations.
//!
//! `count` is the number of elements of one block. A block is the whole array of a broadcast or a
//! reduction. Where blocks are distributed (scatter, gather, all-gather, all-to-all,
//! reduce-scatter), it is the data between two members. Blocks are in the order of the address
//! vector set with which the caller joined. `root_addr` is an address of the endpoint's vector. The
//! `desc` arguments are ignored.
//!
//! An operation completes on the transmit queue with `FI_COLLECTIVE`, and counts like an atomic
//! write. The message schedules are in `engine::coll`.
//!
//! Mirrors fi_collective(3).

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libfabric_sys as fi;
use libfabric_sys::{fi_addr_t, fi_datatype, fi_op, fid_ep};
use scif::Maker;

use crate::base::buffers::buffer;
use crate::base::entry::{self, guard, guard_int, object};
use crate::base::errno::Errno;
use crate::base::reason;
use crate::domain::{DomainShared, coll};
use crate::engine::tables::coll_group::{self, CollArgs};
use crate::engine::tables::coll_plan::Kind;
use crate::objects::av_set::AvSet;
use crate::objects::endpoint::ep::Ep;

pub(crate) static OPS: fi::fi_ops_collective = fi::fi_ops_collective {
    size: size_of::<fi::fi_ops_collective>(),
    barrier,
    broadcast,
    alltoall,
    allreduce,
    allgather,
    reduce_scatter,
    reduce,
    scatter,
    gather,
    msg,
    barrier2,
};

/// Group that an endpoint joined; the object behind `struct fid_mc`.
#[repr(C)]
struct Mc {
    fid: fi::fid_mc,
    dom: Arc<DomainShared>,
    creator: Maker,
    /// Index of the endpoint when it joined. After its close no group has this address.
    ep: u32,
}

// SAFETY: repr(C) with a fid_mc first; FI_CLASS_MC is in Mc objects only. An Arc of Sync state
// follows the fid.
unsafe impl entry::Object for Mc {
    const FCLASS: usize = fi::FI_CLASS_MC;
}

entry::created_by!(Mc, |object| object.creator);

static MC_OPS: fi::fi_ops = fi::fi_ops { close: close_mc, ..fi::FI_OPS_NOSYS };

/// `fi_join_collective`, which C calls as `fi_join` with `FI_COLLECTIVE`.
///
/// The event queue reports the result, `FI_JOIN_COMPLETE` or an error. Before that no operation can
/// be posted.
///
/// # Errors
/// `-FI_EINVAL` without a set, for a set of another domain or address vector, or one without the
/// endpoint. `-FI_EINVAL` also for a `coll_addr` that is neither `FI_ADDR_NOTAVAIL` nor of a set or
/// group with all members of the set. `-FI_ENOSYS` for multicast, `-FI_EBADFLAGS`, `-FI_ENOEQ`
/// without event queue, `-FI_EOPBADSTATE` before the endpoint is enabled.
pub(crate) unsafe extern "C" fn join(
    ep: *mut fid_ep,
    addr: *const c_void,
    flags: u64,
    mc: *mut *mut fi::fid_mc,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_join_collective", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { object::<Ep, _>(ep) }?;
        if flags & fi::FI_COLLECTIVE == 0 {
            return Err(fi::FI_ENOSYS);
        }
        // A member sends and receives, so both flags are accepted.
        if flags & !(fi::FI_COLLECTIVE | fi::FI_SEND | fi::FI_RECV) != 0 {
            return Err(fi::FI_EBADFLAGS);
        }
        // SAFETY: null, or the structure that fi_join_collective passes with this flag.
        let of = unsafe { addr.cast::<fi::fi_collective_addr>().as_ref() }.ok_or(fi::FI_EINVAL)?;
        // SAFETY: null or a live set, by the contract of fi_join_collective.
        let set = unsafe { entry::own::<AvSet, _>(of.set) }?;
        if mc.is_null() {
            return Err(fi::FI_EINVAL);
        }
        let new = Mc::join(ep, of.coll_addr, set, context)?;
        // SAFETY: not null; the caller passes space for the result.
        unsafe { entry::put(mc, entry::give(new)) }
    })
}

/// `fi_close`
///
/// Outstanding operations end with `FI_ECANCELED`, at this and the other members.
unsafe extern "C" fn close_mc(fid: *mut fi::fid) -> c_int {
    guard_int("fi_close of a collective group", || {
        // SAFETY: an open group of this provider, not closed concurrently, by the contract of
        // fi_close.
        unsafe { entry::own::<Mc, _>(fid) }?;
        // SAFETY: made by `join` and not used after fi_close.
        let mc = unsafe { entry::take::<Mc, _>(fid) }?;
        let mut st = mc.dom.gate.lock();
        st.open.mcs = st.open.mcs.saturating_sub(1);
        coll::leave(&mut st, mc.ep, mc.fid.fi_addr);
        Ok(())
    })
}

/// `fi_query_collective`
///
/// # Errors
/// `-FI_EOPNOTSUPP` for an undefined combination, `-FI_EINVAL` without attributes, `-FI_EBADFLAGS`
/// for any flag.
pub(crate) unsafe extern "C" fn query(
    _domain: *mut fi::fid_domain,
    coll: fi::fi_collective_op,
    attr: *mut fi::fi_collective_attr,
    flags: u64,
) -> c_int {
    guard_int("fi_query_collective", || {
        if flags != 0 {
            return Err(fi::FI_EBADFLAGS);
        }
        // SAFETY: null, or attributes that only this call uses.
        let attr = unsafe { attr.as_mut() }.ok_or(fi::FI_EINVAL)?;
        let (size, count, members) =
            reason::expected(fi::FI_EOPNOTSUPP, coll_group::query(coll, attr.datatype, attr.op))?;
        attr.datatype_attr = fi::fi_atomic_attr { count, size };
        attr.max_members = members;
        Ok(())
    })
}

/// `fi_barrier`
unsafe extern "C" fn barrier(ep: *mut fid_ep, coll_addr: fi_addr_t, context: *mut c_void) -> isize {
    // SAFETY: C passes an open endpoint.
    unsafe { barrier2(ep, coll_addr, 0, context) }
}

/// `fi_barrier2`
unsafe extern "C" fn barrier2(
    ep: *mut fid_ep,
    coll_addr: fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> isize {
    let call =
        Call { datatype: fi::FI_VOID, ..Call::new(Kind::Barrier, coll_addr, flags, context) };
    // SAFETY: C passes an open endpoint; a barrier has no buffers.
    guard("fi_barrier", || unsafe { call.post(ep) })
}

/// `fi_broadcast`
unsafe extern "C" fn broadcast(
    ep: *mut fid_ep,
    buf: *mut c_void,
    count: usize,
    _desc: *mut c_void,
    coll_addr: fi_addr_t,
    root: fi_addr_t,
    datatype: fi_datatype,
    flags: u64,
    context: *mut c_void,
) -> isize {
    let call = Call {
        buf,
        result: buf,
        count,
        root,
        datatype,
        ..Call::new(Kind::Broadcast, coll_addr, flags, context)
    };
    // SAFETY: C passes an open endpoint, and a buffer of count elements that belongs to the
    // operation until it completes.
    guard("fi_broadcast", || unsafe { call.post(ep) })
}

/// Defines the functions of collectives with a source and a result. `root` and `op` are arguments
/// that not every collective has.
macro_rules! collectives {
    ($($name:ident, $call:literal, $kind:ident [$($root:ident)?] [$($op:ident)?];)*) => {$(
        unsafe extern "C" fn $name(
            ep: *mut fid_ep,
            buf: *const c_void,
            count: usize,
            _desc: *mut c_void,
            result: *mut c_void,
            _result_desc: *mut c_void,
            coll_addr: fi_addr_t,
            $($root: fi_addr_t,)?
            datatype: fi_datatype,
            $($op: fi_op,)?
            flags: u64,
            context: *mut c_void,
        ) -> isize {
            let call = Call {
                buf,
                result,
                count,
                $($root,)?
                datatype,
                $($op,)?
                ..Call::new(Kind::$kind, coll_addr, flags, context)
            };
            // SAFETY: C passes an open endpoint, and buffers of the lengths that fi_collective(3)
            // requires of this member. They belong to the operation until it completes.
            guard($call, || unsafe { call.post(ep) })
        }
    )*};
}

collectives! {
    alltoall, "fi_alltoall", AllToAll [] [];
    allreduce, "fi_allreduce", AllReduce [] [op];
    allgather, "fi_allgather", AllGather [] [];
    reduce_scatter, "fi_reduce_scatter", ReduceScatter [] [op];
    reduce, "fi_reduce", Reduce [root] [op];
    scatter, "fi_scatter", Scatter [root] [];
    gather, "fi_gather", Gather [root] [];
}

/// Starts the operation that a `struct fi_msg_collective` describes; its `count` is the one of the
/// first element.
///
/// # Errors
/// `-FI_EINVAL` for buffers in several parts, or missing ones.
unsafe extern "C" fn msg(
    ep: *mut fid_ep,
    msg: *const fi::fi_msg_collective,
    resultv: *mut fi::fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    guard("a collective of another provider", || {
        // SAFETY: null, or a message that stays unchanged during the call.
        let msg = unsafe { msg.as_ref() }.ok_or(fi::FI_EINVAL)?;
        let kind = Kind::from_raw(msg.coll).ok_or(fi::FI_EOPNOTSUPP)?;
        // SAFETY: null or the given number of elements, by the contract of the call.
        let read = unsafe { entry::slice(msg.msg_iov, msg.iov_count) }?;
        // SAFETY: null or the given number of elements, by the contract of the call.
        let written = unsafe { entry::slice(resultv.cast_const(), result_count) }?;
        let (buf, count) = match read {
            [] if kind == Kind::Barrier => (std::ptr::null_mut(), 0),
            [one] => (one.addr, one.count),
            _ => return Err(fi::FI_EINVAL),
        };
        let result = match written {
            [] if kind == Kind::Broadcast => buf,
            [] => std::ptr::null_mut(),
            [one] => one.addr,
            _ => return Err(fi::FI_EINVAL),
        };
        let call = Call {
            buf: buf.cast_const(),
            result,
            count,
            root: msg.root_addr,
            datatype: msg.datatype,
            op: msg.op,
            ..Call::new(kind, msg.coll_addr, flags, msg.context)
        };
        // SAFETY: C passes an open endpoint, and buffers as for the call that the message
        // describes.
        unsafe { call.post(ep) }
    })
}

/// Arguments of one call.
struct Call {
    kind: Kind,
    group: fi_addr_t,
    flags: u64,
    context: *mut c_void,
    buf: *const c_void,
    result: *mut c_void,
    count: usize,
    root: fi_addr_t,
    datatype: fi_datatype,
    op: fi_op,
}

impl Call {
    fn new(kind: Kind, group: fi_addr_t, flags: u64, context: *mut c_void) -> Call {
        Call {
            kind,
            group,
            flags,
            context,
            buf: std::ptr::null(),
            result: std::ptr::null_mut(),
            count: 0,
            root: fi::FI_ADDR_UNSPEC,
            datatype: fi::FI_UINT8,
            op: fi::FI_NOOP,
        }
    }

    /// # Safety
    /// `ep` is an open endpoint. The buffers have the lengths that the operation has at this
    /// member, and stay valid until it completes.
    unsafe fn post(&self, ep: *mut fid_ep) -> Result<isize, Errno> {
        // SAFETY: an open endpoint, by the caller's contract.
        let ep = unsafe { object::<Ep, _>(ep) }?;
        let args = CollArgs {
            kind: self.kind,
            group: self.group,
            root: self.root,
            datatype: self.datatype,
            op: self.op,
            count: self.count,
            context: self.context.expose_provenance(),
            flags: ep.tx_flags() | ep.tx_msg_flags(self.flags)?,
        };
        ep.collective(&args, |lengths| {
            // SAFETY: the operation reads at most this length, by the caller's contract.
            let buf = unsafe { buffer(self.buf, lengths.read) }?;
            // SAFETY: the operation writes at most this length, by the caller's contract.
            let result = unsafe { buffer(self.result, lengths.write) }?;
            Ok((buf, result))
        })
    }
}

impl Mc {
    fn join(
        ep: &Ep,
        parent: fi_addr_t,
        set: &AvSet,
        context: *mut c_void,
    ) -> Result<Box<Mc>, Errno> {
        let dom = ep.domain();
        if !Arc::ptr_eq(dom, set.domain()) {
            return Err(fi::FI_EINVAL);
        }
        let mut new = Box::new(Mc {
            fid: fi::fid_mc {
                fid: fi::fid { fclass: fi::FI_CLASS_MC, context, ops: &raw const MC_OPS },
                fi_addr: fi::FI_ADDR_NOTAVAIL,
            },
            dom: Arc::clone(dom),
            creator: Maker::here(),
            ep: 0,
        });
        let name = ((&raw const *new).expose_provenance(), context.expose_provenance());
        let (index, addr) = ep.join(parent, set.index(), name)?;
        new.ep = index;
        new.fid.fi_addr = addr;
        Ok(new)
    }
}

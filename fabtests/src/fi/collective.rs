// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Address vector sets and collectives (fi_av_set(3), fi_collective(3)).
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;

use super::av::Av;
use super::buf::Buf;
use super::ep::Ep;
use super::errno::{Errno, Result, op};
use super::fabric::Domain;
use super::object::{Object, is_fid, table};

/// Set of addresses of an address vector.
#[derive(Debug)]
pub struct AvSet {
    object: Object<sys::fid_av_set>,
    _av: Arc<Av>,
}

is_fid!(AvSet);

/// Addresses of a new set.
#[derive(Debug, Clone, Copy)]
pub struct AvSetAttr {
    pub start: u64,
    pub end: u64,
    pub stride: u64,
    pub flags: u64,
}

impl AvSetAttr {
    /// Empty set.
    pub const NONE: AvSetAttr =
        AvSetAttr { start: sys::FI_ADDR_NOTAVAIL, end: sys::FI_ADDR_NOTAVAIL, stride: 0, flags: 0 };
}

/// Collective group that an endpoint has joined or is joining.
pub struct Mc {
    object: Object<sys::fid_mc>,
    _ep: Arc<Ep>,
}

is_fid!(Mc);

/// One collective operation; each kind uses only the fields it needs.
#[derive(Debug, Clone, Copy)]
pub struct Collective {
    /// `FI_BARRIER` and the other kinds.
    pub kind: u32,
    pub buf: Buf,
    pub result: Buf,
    pub count: usize,
    pub group: u64,
    pub root: u64,
    pub datatype: u32,
    pub op: u32,
    pub flags: u64,
    pub context: usize,
}

impl AvSet {
    /// `fi_av_set`.
    pub fn open(av: &Arc<Av>, attr: AvSetAttr) -> Result<Arc<AvSet>> {
        let raw = av.object.raw()?;
        // SAFETY: the vector is open.
        let ops = unsafe { (*raw).ops };
        // SAFETY: an open vector has its operations, valid while the vector is open.
        let open = unsafe { (*ops).av_set };
        let mut attr = sys::fi_av_set_attr {
            count: 0,
            start_addr: attr.start,
            end_addr: attr.end,
            stride: attr.stride,
            comm_key_size: 0,
            comm_key: ptr::null_mut(),
            flags: attr.flags,
        };
        let mut set = ptr::null_mut();
        // SAFETY: the vector is open and one pointer is written to `set`.
        Errno::check_int(unsafe { open(raw, &raw mut attr, &raw mut set, ptr::null_mut()) })?;
        // SAFETY: the provider has just opened the object for this call.
        let object = unsafe { Object::adopt(set) }?;
        Ok(Arc::new(AvSet { object, _av: Arc::clone(av) }))
    }

    table!(fn ops: fid_av_set.ops -> fi_ops_av_set);

    /// `fi_av_set_insert`.
    pub fn insert(&self, addr: u64) -> Result {
        op!(self.ops(), insert(addr))
    }

    /// `fi_av_set_remove`.
    pub fn remove(&self, addr: u64) -> Result {
        op!(self.ops(), remove(addr))
    }

    /// `fi_av_set_union`.
    pub fn union(&self, other: &AvSet) -> Result {
        op!(self.ops(), set_union(other.object.raw()?))
    }

    /// `fi_av_set_intersect`.
    pub fn intersect(&self, other: &AvSet) -> Result {
        op!(self.ops(), intersect(other.object.raw()?))
    }

    /// `fi_av_set_diff`.
    pub fn diff(&self, other: &AvSet) -> Result {
        op!(self.ops(), diff(other.object.raw()?))
    }

    /// `fi_av_set_addr`.
    pub fn addr(&self) -> Result<u64> {
        let (set, ops) = self.ops()?;
        let mut addr = sys::FI_ADDR_NOTAVAIL;
        // SAFETY: the set is open and one address is written.
        Errno::check_int(unsafe { (ops.addr)(set, &raw mut addr) })?;
        Ok(addr)
    }
}

impl Mc {
    /// `fi_join_collective`; `None` passes a null set.
    pub fn join(
        ep: &Arc<Ep>,
        parent: u64,
        set: Option<&AvSet>,
        flags: u64,
        context: usize,
    ) -> Result<Mc> {
        let (raw, cm) = ep.cm()?;
        let set = match set {
            Some(set) => set.object.raw()?.cast_const(),
            None => ptr::null(),
        };
        let addr = sys::fi_collective_addr { set, coll_addr: parent };
        let mut mc = ptr::null_mut();
        // SAFETY: endpoint and set are open, and one pointer is written to `mc`.
        let code = unsafe {
            (cm.join)(
                raw,
                (&raw const addr).cast(),
                flags | sys::FI_COLLECTIVE,
                &raw mut mc,
                ptr::without_provenance_mut(context),
            )
        };
        Errno::check_int(code)?;
        // SAFETY: the provider has just opened the object for this call.
        let object = unsafe { Object::adopt(mc) }?;
        Ok(Mc { object, _ep: Arc::clone(ep) })
    }

    /// `fi_mc_addr`.
    pub fn addr(&self) -> Result<u64> {
        let raw = self.object.raw()?;
        // SAFETY: the object is open.
        Ok(unsafe { (*raw).fi_addr })
    }

    /// Address of the object, as reported in events.
    pub fn address(&self) -> Result<usize> {
        Ok(self.object.raw()?.addr())
    }
}

impl Collective {
    /// Call of this kind: `fi_barrier2`, `fi_broadcast` and so on.
    ///
    /// # Errors
    /// Errors of the call; `EINVAL` for an unknown kind.
    pub fn post(&self, ep: &Ep) -> Result {
        let (c, ep) = (self, ep.object.raw()?);
        // SAFETY: the endpoint is open.
        let ops = unsafe { (*ep).collective };
        if ops.is_null() {
            return Err(Errno::ENOSYS);
        }
        // SAFETY: the table of an open endpoint lives as long as the endpoint.
        let ops = unsafe { &*ops };
        let (buf, result) = (c.buf.ptr().cast(), c.result.ptr().cast());
        let (none, context) = (ptr::null_mut(), ptr::without_provenance_mut(c.context));
        let (n, group, root, datatype, op, flags) =
            (c.count, c.group, c.root, c.datatype, c.op, c.flags);
        macro_rules! call {
            ($call:ident: $($arg:expr),*) => {
                // SAFETY: the endpoint is open; buffers are never freed, and the case chooses valid
                // lengths.
                unsafe { (ops.$call)(ep, $($arg),*) }
            };
        }
        let code = match c.kind {
            sys::FI_BARRIER => call!(barrier2: group, flags, context),
            sys::FI_BROADCAST => {
                call!(broadcast: buf, n, none, group, root, datatype, flags, context)
            }
            sys::FI_ALLTOALL => {
                call!(alltoall: buf, n, none, result, none, group, datatype, flags, context)
            }
            sys::FI_ALLREDUCE => {
                call!(allreduce: buf, n, none, result, none, group, datatype, op, flags, context)
            }
            sys::FI_ALLGATHER => {
                call!(allgather: buf, n, none, result, none, group, datatype, flags, context)
            }
            sys::FI_REDUCE_SCATTER => {
                call!(
                    reduce_scatter: buf, n, none, result, none, group, datatype, op, flags, context
                )
            }
            sys::FI_REDUCE => {
                call!(reduce: buf, n, none, result, none, group, root, datatype, op, flags, context)
            }
            sys::FI_SCATTER => {
                call!(scatter: buf, n, none, result, none, group, root, datatype, flags, context)
            }
            sys::FI_GATHER => {
                call!(gather: buf, n, none, result, none, group, root, datatype, flags, context)
            }
            _ => return Err(Errno::EINVAL),
        };
        Errno::check(code).map(drop)
    }

    /// `fi_barrier`.
    pub fn plain_barrier(ep: &Ep, group: u64, context: usize) -> Result {
        let ep = ep.object.raw()?;
        // SAFETY: the endpoint is open.
        let ops = unsafe { (*ep).collective };
        // SAFETY: the table of an open endpoint lives as long as the endpoint.
        let barrier = unsafe { (*ops).barrier };
        // SAFETY: the endpoint is open.
        Errno::check(unsafe { barrier(ep, group, ptr::without_provenance_mut(context)) }).map(drop)
    }

    /// Call of any kind through the `msg` operation.
    pub fn post_msg(&self, ep: &Ep) -> Result {
        let (c, ep) = (self, ep.object.raw()?);
        // SAFETY: the endpoint is open.
        let ops = unsafe { (*ep).collective };
        // SAFETY: the table of an open endpoint lives as long as the endpoint.
        let call = unsafe { (*ops).msg };
        let from = sys::fi_ioc { addr: c.buf.ptr().cast(), count: c.count };
        let mut to = sys::fi_ioc { addr: c.result.ptr().cast(), count: c.count };
        let msg = sys::fi_msg_collective {
            msg_iov: &raw const from,
            desc: ptr::null_mut(),
            iov_count: 1,
            coll_addr: c.group,
            root_addr: c.root,
            coll: c.kind,
            datatype: c.datatype,
            op: c.op,
            context: ptr::without_provenance_mut(c.context),
        };
        // SAFETY: the endpoint is open; buffers are never freed, and the case chooses valid
        // lengths.
        let code = unsafe { call(ep, &raw const msg, &raw mut to, ptr::null_mut(), 1, c.flags) };
        Errno::check(code).map(drop)
    }
}

impl Domain {
    /// `fi_query_collective`. Returns bytes of an element, elements of a call, and members of a
    /// group.
    pub fn query_collective(
        &self,
        kind: u32,
        datatype: u32,
        op: u32,
        flags: u64,
    ) -> Result<(usize, usize, usize)> {
        let (raw, ops) = self.ops()?;
        let mut attr =
            sys::fi_collective_attr { op, datatype, ..sys::fi_collective_attr::default() };
        // SAFETY: the domain is open; the attributes outlive the call.
        Errno::check_int(unsafe { (ops.query_collective)(raw, kind, &raw mut attr, flags) })?;
        Ok((attr.datatype_attr.size, attr.datatype_attr.count, attr.max_members))
    }
}

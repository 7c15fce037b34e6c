// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Names that most cases need.

pub use libfabric_sys as sys;

pub use crate::fi::{
    AtomicKind, AtomicTarget, Av, AvAttr, AvSet, AvSetAttr, Buf, Cntr, CntrAttr, Collective, Cq,
    CqAttr, Domain, Entry, Ep, Eq, EqAttr, Errno, Fabric, Fid, Info, Ioc, Mc, Mr, MrRequest, Owner,
    Pep, PollSet, RmaIov, RmaMsg, Stx, TaggedMsg, WaitSet, version,
};
pub use crate::harness::{Case, Fail, Outcome, Rank, case, sandbox};
pub use crate::rig::{
    Queues, Remote, Rig, Spec, first_domain, first_offer, load, needs_library, offers, supported,
};
pub use crate::{check, check_eq};

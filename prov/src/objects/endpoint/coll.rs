// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Path of collective calls from their C entry points to the data path.
//!
//! Mirrors fi_collective(3).

use std::sync::Arc;

use libfabric_sys as fi;
use scif_ring::Mem;

use super::ep::Ep;
use crate::base::entry;
use crate::base::errno::Errno;
use crate::domain::{DomainShared, coll};
use crate::engine::tables::coll_group::{CollArgs, Lengths};

impl Ep {
    pub(crate) fn domain(&self) -> &Arc<DomainShared> {
        &self.core.dom
    }

    /// Joins the group of the members of a set. Returns the endpoint's index and the group's
    /// address. Events refer to the object `name`.
    ///
    /// # Errors
    /// `FI_EINVAL` for a set of another address vector, or a parent that lacks some of its members.
    /// Errors of [`coll::join`].
    pub(crate) fn join(
        &self,
        parent: u64,
        set: u32,
        name: (usize, usize),
    ) -> Result<(u32, u64), Errno> {
        entry::check_not_forked(self.core.creator)?;
        let mut st = self.core.dom.gate.lock();
        let ep = self.core.idx();
        let state = st.av_sets.get(set).ok_or(fi::FI_EINVAL)?;
        let (av, members) = (state.av(), state.ports(&st.avs)?);
        let state = st.eps.get(ep).ok_or(fi::FI_EINVAL)?;
        if state.cfg.av != av {
            return Err(fi::FI_EINVAL);
        }
        if parent != fi::FI_ADDR_NOTAVAIL {
            let of_set = st.av_sets.iter().find(|(_, set)| set.addr == parent);
            let within = match of_set {
                Some((_, set)) => set.ports(&st.avs)?,
                None => coll::members(&st, ep, parent).ok_or(fi::FI_EINVAL)?,
            };
            if members.iter().any(|member| !within.contains(member)) {
                return Err(fi::FI_EINVAL);
            }
        }
        let addr = st.next_coll_addr();
        coll::join(&mut st, ep, addr, &members, name)?;
        st.open.mcs += 1;
        Ok((ep, addr))
    }

    /// Starts a collective operation. `buffers` returns buffers of the lengths passed to it.
    pub(crate) fn collective(
        &self,
        args: &CollArgs,
        buffers: impl FnOnce(Lengths) -> Result<(Mem, Mem), Errno>,
    ) -> Result<isize, Errno> {
        entry::check_not_forked(self.core.creator)?;
        let mut st = self.core.dom.gate.lock();
        let ep = self.core.idx();
        let lengths = coll::lengths(&mut st, ep, args)?;
        coll::start(&mut st, ep, args, buffers(lengths)?)?;
        Ok(0)
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Parts of a domain that an endpoint uses.

use scif::slab::Slab;

use crate::engine::tables::srx_state::SrxState;
use crate::state::av_table::AvState;
use crate::state::counter::CntrState;
use crate::state::cq_queue::CqState;
use crate::state::mr_table::MrTable;

/// Parts of a domain that the data path uses, borrowed separately from the endpoint.
pub(crate) struct Env<'a> {
    pub cqs: &'a mut Slab<CqState>,
    pub cntrs: &'a mut Slab<CntrState>,
    pub avs: &'a Slab<AvState>,
    pub mrs: &'a mut MrTable,
    pub srxs: &'a mut Slab<SrxState>,
}

impl Env<'_> {
    /// Returns the parts again, for a function that is not inlined. The caller can then keep its
    /// own references in registers.
    #[inline(always)]
    pub(crate) fn again(&mut self) -> Env<'_> {
        let Env { cqs, cntrs, avs, mrs, srxs } = self;
        Env { cqs, cntrs, avs, mrs, srxs }
    }
}

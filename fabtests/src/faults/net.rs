// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Objects of one rank of the storm: domain, queues, memory and endpoints, of any of the three
//! kinds of endpoint.

use std::sync::Arc;

use scif_fabtests::fi::Hints;
use scif_fabtests::payload::{RankId, SIZES};
use scif_fabtests::prelude::*;

/// Kind of endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Reliable datagrams.
    Rdm,
    /// Connections.
    Msg,
    /// Datagrams.
    Dgram,
    /// No libfabric endpoint: endpoints of `scif.h`, in ranks of another program.
    Scif,
}

/// Maximum number of ranks of a storm.
pub(crate) const RANKS: usize = 6;
/// Bytes of a region that belong to one initiator. Outstanding accesses of its previous incarnation
/// hit another part.
const PART: usize = SIZES[2];
const LIVES: usize = 2;
/// Words for atomics of each initiator, one for each incarnation; incarnation 512 uses the first
/// again.
const COUNTERS: usize = 512;
const WORDS: usize = RANKS * LIVES * PART;

/// Offset of the part of an initiator in a region.
pub(crate) fn part_of(id: RankId) -> u64 {
    ((usize::from(id.slot) * LIVES + usize::from(id.life) % LIVES) * PART) as u64
}

/// Offset of the word for atomics of an initiator in a region.
pub(crate) fn word_of(id: RankId) -> u64 {
    (WORDS + 8 * (usize::from(id.slot) * COUNTERS + usize::from(id.life) % COUNTERS)) as u64
}

/// Objects of one rank.
pub(crate) struct Net {
    pub(crate) kind: Kind,
    pub(crate) info: Info,
    pub(crate) domain: Arc<Domain>,
    pub(crate) cq: Arc<Cq>,
    pub(crate) eq: Arc<Eq>,
    pub(crate) cntr: Arc<Cntr>,
    pub(crate) av: Option<Arc<Av>>,
    /// Endpoint for all peers; for connections each peer has its own endpoint instead.
    pub(crate) ep: Option<Arc<Ep>>,
    pub(crate) pep: Option<Arc<Pep>>,
    /// Key of the region that peers access, and the RMA address of its first byte.
    pub(crate) remote: Option<(u64, u64)>,
    region: Option<Arc<Mr>>,
}

impl Net {
    /// Opens all objects; `auto` requests automatic progress.
    pub(crate) fn open(rank: &Rank, kind: Kind, me: RankId, auto: bool) -> Outcome<Net> {
        let messages = sys::FI_MSG | sys::FI_TAGGED;
        let memory = sys::FI_RMA | sys::FI_ATOMIC;
        let (ep_type, caps) = match kind {
            Kind::Rdm => {
                (sys::FI_EP_RDM, messages | memory | sys::FI_DIRECTED_RECV | sys::FI_COLLECTIVE)
            }
            Kind::Msg => (sys::FI_EP_MSG, messages | memory),
            Kind::Scif => return Err(Fail::here("ranks of another program")),
            Kind::Dgram => (sys::FI_EP_DGRAM, messages | sys::FI_DIRECTED_RECV),
        };
        let mut hints = Hints { caps, ep_type, ..Hints::default() };
        if kind != Kind::Dgram {
            hints.tx.msg_order = sys::FI_ORDER_SAS;
            hints.rx.msg_order = sys::FI_ORDER_SAS;
        }
        if auto {
            hints.data_progress = sys::FI_PROGRESS_AUTO;
            hints.control_progress = sys::FI_PROGRESS_AUTO;
        }
        let info = offers(rank, load(rank)?, &hints)?.into_iter().next();
        let info = info.ok_or_else(|| Fail::here("an empty list"))?;
        let fabric = Fabric::open(&info)?;
        let domain = Domain::open(&fabric, &info)?;
        let wait_obj = sys::FI_WAIT_UNSPEC;
        let cq_attr = CqAttr { format: sys::FI_CQ_FORMAT_TAGGED, wait_obj, ..CqAttr::default() };
        let eq_attr = EqAttr { wait_obj, ..EqAttr::default() };
        let cntr_attr = CntrAttr { wait_obj, ..CntrAttr::default() };
        let mut net = Net {
            kind,
            cq: Cq::open(&domain, cq_attr)?,
            eq: Eq::open(&fabric, eq_attr)?,
            cntr: Cntr::open(&domain, cntr_attr)?,
            av: None,
            ep: None,
            pep: None,
            remote: None,
            region: None,
            domain,
            info,
        };
        if kind == Kind::Msg {
            let pep = Pep::open(&fabric, &net.info)?;
            pep.attach(&net.eq)?;
            pep.listen()?;
            net.pep = Some(pep);
        } else {
            net.av = Some(Av::open(&net.domain, net.info.domain().av_type, RANKS)?);
            net.ep = Some(net.endpoint(&net.info)?);
        }
        if kind != Kind::Dgram {
            net.register(me)?;
        }
        Ok(net)
    }

    fn register(&mut self, me: RankId) -> Outcome {
        let buf = Buf::new(WORDS + 8 * RANKS * COUNTERS);
        let spec = MrRequest {
            access: sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE,
            // Each incarnation has another key, so that an access meant for a dead rank never
            // succeeds at its successor.
            key: 0x1000 + 8 * u64::from(me.life) + u64::from(me.slot),
            flags: 0,
        };
        let region = Mr::reg(&self.domain, buf, spec)?;
        let mode = self.info.domain().mr_mode;
        if let (true, Some(ep)) = (mode & sys::FI_MR_ENDPOINT != 0, &self.ep) {
            use scif_fabtests::fi::Fid;
            region.bind(ep.as_ref(), 0)?;
            region.enable()?;
        }
        let absolute = mode & (sys::FI_MR_VIRT_ADDR | sys::FI_MR_BASIC) != 0;
        self.remote = Some((region.key()?, if absolute { buf.addr64() } else { 0 }));
        self.region = Some(region);
        Ok(())
    }

    /// Opens an enabled endpoint.
    pub(crate) fn endpoint(&self, info: &Info) -> Outcome<Arc<Ep>> {
        let ep = Ep::open(&self.domain, info)?;
        ep.attach(&self.eq, 0)?;
        ep.attach(&self.cq, sys::FI_TRANSMIT | sys::FI_RECV)?;
        ep.attach(&self.cntr, sys::FI_SEND | sys::FI_RECV)?;
        if let Some(av) = &self.av {
            ep.attach(av, 0)?;
        }
        ep.enable()?;
        Ok(ep)
    }

    /// Name under which others reach this rank.
    pub(crate) fn name(&self) -> Outcome<Vec<u8>> {
        match (&self.pep, &self.ep) {
            (Some(pep), _) => Ok(pep.name()?),
            (None, Some(ep)) => Ok(ep.name()?),
            (None, None) => Err(Fail::here("no endpoint")),
        }
    }
}

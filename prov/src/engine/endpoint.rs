// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! State of the data path of an endpoint.

use std::sync::Arc;

use libfabric_sys as fi;

use crate::base::errno::Errno;
use crate::engine::channel::link_set::LinkSet;
use crate::engine::channel::rx_throttle::RxThrottle;
use crate::engine::recorder::Recorder;
use crate::engine::tables::cm_state::Cm;
use crate::engine::tables::coll_group::Coll;
use crate::engine::tables::incoming::Rendezvous;
use crate::engine::tables::monitor::Monitor;
use crate::engine::tables::op_table::OpTable;
use crate::engine::tables::peer_table::PeerTable;
use crate::engine::tables::recv_queues::RecvQueues;
use crate::engine::tables::rma_state::RmaTarget;
use crate::engine::types::args::EpConfig;
use crate::state::eq_queue::EqShared;

/// Usability of an endpoint.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Health {
    #[default]
    Sound,
    /// Half changed by a panic.
    Poisoned,
    /// Half changed by a panic, with all operations ended.
    Drained,
}

/// State of the data path of one endpoint.
pub(crate) struct Endpoint {
    pub cfg: EpConfig,
    pub links: LinkSet,
    pub enabled: bool,
    pub(crate) health: Health,
    /// Counters, and what other processes see of the endpoint.
    pub stats: Monitor,
    /// Address and context of the C object, which events report.
    pub fid: usize,
    pub context: usize,
    /// Event queue that reports failed peers.
    pub eq: Option<Arc<EqShared>>,
    /// Present for connected endpoints only.
    pub(crate) cm: Option<Box<Cm>>,
    /// Present for endpoints with collectives only.
    pub(crate) coll: Option<Box<Coll>>,
    pub(crate) peers: PeerTable,
    pub(crate) recv: RecvQueues,
    pub ops: OpTable,
    pub(crate) rndv: Rendezvous,
    pub(crate) rma_target: RmaTarget,
    pub(crate) throttle: RxThrottle,
}

impl Endpoint {
    pub(crate) fn new(cfg: EpConfig, sock: scif::Endpoint) -> Endpoint {
        let cfg = EpConfig {
            rma_path: crate::base::env::env().rma,
            force_slow_path: cfg.caps & fi::FI_SOURCE_ERR != 0 || cfg.grouped && cfg.directed,
            ..cfg
        };
        let mut peers = PeerTable::new();
        peers.recorder = Recorder::open(sock.id(), &cfg);
        Endpoint {
            links: LinkSet::new(sock),
            enabled: false,
            health: Health::Sound,
            stats: Monitor::new(),
            fid: 0,
            context: 0,
            eq: None,
            cm: cfg.connected.then(|| Box::new(Cm::new())),
            coll: (cfg.caps & fi::FI_COLLECTIVE != 0).then(Box::default),
            peers,
            recv: RecvQueues::new(crate::base::env::env().unexpected_max),
            ops: OpTable::new(scif::now_ns()),
            rndv: Rendezvous::default(),
            rma_target: RmaTarget::default(),
            throttle: RxThrottle::default(),
            cfg,
        }
    }

    /// Whether only the rings can bring new work.
    #[inline(always)]
    pub(crate) fn is_quiescent(&self) -> bool {
        self.rndv.is_idle()
            && self.rma_target.network.is_idle()
            && self.peers.is_idle()
            && self.rma_target.done.is_empty()
    }

    /// Returns the error of a refused call.
    #[cold]
    pub(crate) fn refusal(&self) -> Errno {
        self.check_sound().err().unwrap_or(fi::FI_EOPBADSTATE)
    }

    /// Refuses new operations of an endpoint that a panic has left half changed.
    ///
    /// # Errors
    /// `FI_EOTHER`: the endpoint is poisoned.
    pub(crate) fn check_sound(&self) -> Result<(), Errno> {
        match self.health {
            Health::Sound => Ok(()),
            Health::Poisoned | Health::Drained => Err(fi::FI_EOTHER),
        }
    }
}

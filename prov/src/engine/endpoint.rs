// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! State of the data path of an endpoint.

use std::sync::Arc;

use libfabric_sys as fi;
use scif::Endpoint;

use super::args::EpConfig;
use super::cm::Cm;
use super::coll::Coll;
use super::link_set::LinkSet;
use super::ops::Ops;
use super::peer_table::PeerTable;
use super::recv_queues::RecvQueues;
use super::rendezvous::Rendezvous;
use super::rma::RmaTarget;
use super::rx_throttle::RxThrottle;
use super::stats::Stats;
use crate::state::eq_queue::EqShared;

/// Usability of an endpoint.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Health {
    #[default]
    Sound,
    /// Half changed by a panic.
    Poisoned,
    /// Half changed by a panic, with all operations ended.
    Ended,
}

/// State of the data path of one endpoint.
pub(crate) struct EpState {
    pub cfg: EpConfig,
    pub links: LinkSet,
    pub enabled: bool,
    pub(super) health: Health,
    pub stats: Stats,
    /// Address and context of the C object, which events report.
    pub fid: usize,
    pub context: usize,
    /// Event queue that reports failed peers.
    pub eq: Option<Arc<EqShared>>,
    /// Present for connected endpoints only.
    pub(super) cm: Option<Box<Cm>>,
    /// Present for endpoints with collectives only.
    pub(super) coll: Option<Box<Coll>>,
    pub(super) peers: PeerTable,
    pub(super) recv: RecvQueues,
    pub ops: Ops,
    pub(super) rndv: Rendezvous,
    pub(super) rma_target: RmaTarget,
    pub(super) throttle: RxThrottle,
}

impl EpState {
    pub(crate) fn new(cfg: EpConfig, sock: Endpoint) -> EpState {
        let cfg = EpConfig {
            careful: cfg.caps & fi::FI_SOURCE_ERR != 0 || cfg.grouped && cfg.directed,
            ..cfg
        };
        EpState {
            links: LinkSet::new(sock),
            enabled: false,
            health: Health::Sound,
            stats: Stats::default(),
            fid: 0,
            context: 0,
            eq: None,
            cm: cfg.connected.then(|| Box::new(Cm::new())),
            coll: (cfg.caps & fi::FI_COLLECTIVE != 0).then(Box::default),
            peers: PeerTable::new(),
            recv: RecvQueues::new(crate::base::env::env().unexpected_max),
            ops: Ops::new(scif::now_ns()),
            rndv: Rendezvous::default(),
            rma_target: RmaTarget::default(),
            throttle: RxThrottle::default(),
            cfg,
        }
    }
}

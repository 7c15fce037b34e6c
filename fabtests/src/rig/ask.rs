// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! What a case wants of its endpoint, as plain data.

use libfabric_sys as sys;

use crate::fi::Hints;

/// What a case wants of its endpoint.
#[derive(Debug, Clone, Default)]
pub struct Ask {
    pub hints: Hints,
    /// Zero is the tagged format.
    pub format: u32,
    pub cq_size: usize,
    pub wait_obj: u32,
    pub wait_cond: u32,
    /// Bind the queues with `FI_SELECTIVE_COMPLETION`.
    pub selective: bool,
    /// One queue for both directions.
    pub one_cq: bool,
    /// Read with `fi_cq_readfrom`.
    pub sources: bool,
    /// A counter for each of these: `FI_SEND`, `FI_RECV`, `FI_READ`, `FI_WRITE`, `FI_REMOTE_READ`, `FI_REMOTE_WRITE`.
    pub counters: u64,
    /// No queue at all: counters only.
    pub no_cq: bool,
    /// Open the domain with this `mr_mode`, whatever was answered.
    pub opened_mr_mode: Option<i32>,
    /// An event queue bound to the endpoint.
    pub eq: bool,
}

impl Ask {
    /// A reliable endpoint with these capabilities.
    pub fn caps(caps: u64) -> Ask {
        let mut ask = Ask::default();
        ask.hints.caps = caps;
        ask.hints.ep_type = sys::FI_EP_RDM;
        ask.hints.resource_mgmt = sys::FI_RM_ENABLED;
        ask
    }

    /// The same with a change.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Ask)) -> Ask {
        change(&mut self);
        self
    }

    /// Messages, tagged or not.
    pub fn messages(tagged: bool) -> Ask {
        Ask::caps(if tagged { sys::FI_TAGGED } else { sys::FI_MSG }).with(|ask| {
            ask.hints.tx.msg_order = sys::FI_ORDER_SAS;
            ask.hints.rx.msg_order = sys::FI_ORDER_SAS;
        })
    }
}

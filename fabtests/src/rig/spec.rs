// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Requirements of a case for its endpoint, as plain data.

use libfabric_sys as sys;

use crate::fi::Hints;

/// Completion queues of an endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Queues {
    /// One for each direction.
    #[default]
    Two,
    /// One for both directions.
    One,
    /// None bound: the endpoint has counters only.
    Unbound,
}

/// Requirements of a case for its endpoint.
#[derive(Debug, Clone, Default)]
pub struct Spec {
    pub hints: Hints,
    /// Format of the completion queues; zero selects the tagged format.
    pub format: u32,
    pub cq_size: usize,
    pub wait_obj: u32,
    pub wait_cond: u32,
    /// Whether queues are bound with `FI_SELECTIVE_COMPLETION`.
    pub selective: bool,
    pub queues: Queues,
    /// Whether queues are read with `fi_cq_readfrom`.
    pub sources: bool,
    /// Events that get a counter each: `FI_SEND`, `FI_RECV`, `FI_READ`, `FI_WRITE`,
    /// `FI_REMOTE_READ`, `FI_REMOTE_WRITE`.
    pub counters: u64,
    /// `mr_mode` with which the domain is opened instead of the offered one.
    pub opened_mr_mode: Option<i32>,
    /// Whether an event queue is bound to the endpoint.
    pub eq: bool,
}

impl Spec {
    /// Returns the requirements of a reliable endpoint with these capabilities.
    pub fn caps(caps: u64) -> Spec {
        let mut spec = Spec::default();
        spec.hints.caps = caps;
        spec.hints.ep_type = sys::FI_EP_RDM;
        spec.hints.resource_mgmt = sys::FI_RM_ENABLED;
        spec
    }

    /// Returns the requirements after a change.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Spec)) -> Spec {
        change(&mut self);
        self
    }

    /// Returns the requirements for messages, tagged or not.
    pub fn messages(tagged: bool) -> Spec {
        Spec::caps(if tagged { sys::FI_TAGGED } else { sys::FI_MSG }).with(|spec| {
            spec.hints.tx.msg_order = sys::FI_ORDER_SAS;
            spec.hints.rx.msg_order = sys::FI_ORDER_SAS;
        })
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tables of an endpoint: peers, operations, receives, groups. Pure data without I/O.

pub(crate) mod cm_state;
pub(crate) mod coll_group;
pub(crate) mod coll_inbox;
pub(crate) mod coll_plan;
pub(crate) mod coop_choice;
pub(crate) mod incoming;
pub(crate) mod monitor;
pub(crate) mod multi;
pub(crate) mod network_rma;
pub(crate) mod op_table;
pub(crate) mod parts_choice;
pub(crate) mod peer;
pub(crate) mod peer_table;
pub(crate) mod pending;
pub(crate) mod posted_writes;
pub(crate) mod recv_queues;
pub(crate) mod rma_state;
pub(crate) mod rndv_select;
pub(crate) mod srx_state;
pub(crate) mod tag_match;
pub(crate) mod unexpected;
pub(crate) mod unmet;
pub(crate) mod write_queue;

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! State of the objects of a domain: queues, tables and waiter slots. None of it knows an endpoint.

pub(crate) mod av_set;
pub(crate) mod av_shared;
pub(crate) mod av_table;
pub(crate) mod completion;
pub(crate) mod counter;
pub(crate) mod cq_queue;
pub(crate) mod eq_queue;
pub(crate) mod fabric;
pub(crate) mod mr_table;
pub(crate) mod oversubscription;
pub(crate) mod peer_owner;
pub(crate) mod port_range;
pub(crate) mod waiters;

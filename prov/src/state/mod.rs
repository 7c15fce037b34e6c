// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! State of the objects of a domain: queues, tables and waiter slots. None of it knows an endpoint.

pub(crate) mod av_shared;
pub(crate) mod av_table;
pub(crate) mod cq_queue;
pub(crate) mod eq_queue;
pub(crate) mod mr_table;
pub(crate) mod waiters;

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Protocols between two endpoints, on both sides.

pub(crate) mod atomic;
pub(crate) mod atomic_direct;
pub(crate) mod atomic_inline;
pub(crate) mod atomic_target;
pub(crate) mod cm;
pub(crate) mod coll;
pub(crate) mod coll_join;
pub(crate) mod coll_run;
pub(crate) mod eviction;
pub(crate) mod fragment;
pub(crate) mod parting;
pub(crate) mod recv;
pub(crate) mod rendezvous;
pub(crate) mod rma;
pub(crate) mod rma_target;
pub(crate) mod send;
pub(crate) mod srx;

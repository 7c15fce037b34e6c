// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Protocols between two endpoints, on both sides.
//!
//! A protocol is a module over an endpoint. Its state is a struct (`tables`) of the endpoint or of
//! a peer. These names are common to all protocols:
//!
//! * `post`: starts an operation of the application
//! * `submit`: tries a pending operation again. `Submit::Retry` leaves it pending
//! * `on_record`: decodes and handles a record of its kinds. The returned error ends the connection
//! * `progress`: continues unfinished work
//! * `on_conn_lost`: handles the end of a connection
//!
//! `dispatch` and `connections` select the protocol. No protocol calls them.

pub(crate) mod atomic;
pub(crate) mod atomic_direct;
pub(crate) mod atomic_inline;
pub(crate) mod atomic_target;
pub(crate) mod cm;
pub(crate) mod coll;
pub(crate) mod coll_join;
pub(crate) mod coll_run;
pub(crate) mod coop_parts;
pub(crate) mod coop_rma;
pub(crate) mod eviction;
pub(crate) mod fragment;
pub(crate) mod key_maps;
pub(crate) mod long_record;
pub(crate) mod network_read;
pub(crate) mod network_rma;
pub(crate) mod network_rma_end;
pub(crate) mod parting;
pub(crate) mod posted_parts;
pub(crate) mod posted_read;
pub(crate) mod posted_read_target;
pub(crate) mod posted_records;
pub(crate) mod posted_write;
pub(crate) mod posted_write_target;
pub(crate) mod recv;
pub(crate) mod rendezvous;
pub(crate) mod rma;
pub(crate) mod rma_target;
pub(crate) mod send;
pub(crate) mod srx;
pub(crate) mod window_rma;

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The libfabric provider `scif`: `libscif-fi.so`, one exported symbol, `fi_prov_ini`.
//!
//! One file per fabric object under libfabric's own names. A C call enters through a thunk at the top of the
//! object's file, which recovers the object, turns pointers into safe arguments and calls safe code; the data path
//! is in `data`. Nothing here makes a system call or names an atomic: that is the engine's (`scif`) and the
//! ring's (`scif-ring`) business.
//!
//! Mirrors `rdma/providers/fi_prov.h`.

mod addr;
mod atomic;
mod atomic_ops;
mod attr;
mod av;
mod cntr;
mod cq;
mod data;
mod domain;
mod entry;
mod env;
mod ep;
mod eq;
mod fabric;
mod getinfo;
mod host;
mod log;
mod mr;
mod msg;
mod rma;
mod slab;
mod tagged;
mod wait;

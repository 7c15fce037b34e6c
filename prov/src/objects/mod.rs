// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Fabric objects, one module each under libfabric's names, with the calls that libfabric makes.
//!
//! A call recovers its object, turns pointers into safe arguments and calls safe code below. An
//! object that opens others stands above them. Types that both sides need are in `handle` and
//! `endpoint`.

pub(crate) mod atomic;
pub(crate) mod av;
pub(crate) mod av_set;
pub(crate) mod cntr;
pub(crate) mod collective;
pub(crate) mod cq;
pub(crate) mod domain;
pub(crate) mod endpoint;
pub(crate) mod ep;
pub(crate) mod eq;
pub(crate) mod fabric;
pub(crate) mod getinfo;
pub(crate) mod handle;
pub(crate) mod mr;
pub(crate) mod msg;
mod no_ops;
mod open_fabrics;
pub(crate) mod peer_import;
pub(crate) mod pep;
pub(crate) mod poll;
mod port;
pub(crate) mod rma;
pub(crate) mod sep;
pub(crate) mod srx;
pub(crate) mod tagged;
pub(crate) mod wait_set;

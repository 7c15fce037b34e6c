// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Endpoints, contexts and shared contexts as C objects, and the operations posted to them.
//!
//! The calls that open, bind and configure them are in `ep`, `sep` and `srx`. The operation tables
//! of transfers are in `msg`, `tagged`, `rma`, `atomic` and `collective`.

mod coll;
pub(crate) mod context;
pub(crate) mod ep;
pub(crate) mod flags;
mod limits;
pub(crate) mod message_calls;
mod ports;
pub(crate) mod prefix;
pub(crate) mod sep;
pub(crate) mod srx;
pub(crate) mod stx;
pub(crate) mod transfer;
pub(crate) mod trigger;

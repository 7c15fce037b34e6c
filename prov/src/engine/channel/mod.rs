// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Connections and rings of an endpoint, and backpressure.

pub(crate) mod link_set;
pub(crate) mod rx_throttle;

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Base of the provider: addresses, attributes, settings, log, errors and the entry of C calls.
//!
//! Independent of objects, endpoints and domains.

pub(crate) mod addr;
pub(crate) mod atomic_ops;
pub(crate) mod attr;
pub(crate) mod buffers;
pub(crate) mod entry;
pub(crate) mod env;
pub(crate) mod errno;
pub(crate) mod host;
pub(crate) mod log;
pub(crate) mod net_settings;
pub(crate) mod reason;
pub(crate) mod resolve;

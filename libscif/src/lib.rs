// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Functions of `include/scif.h` over the engine, in `libscif.so.0`.
//!
//! Not about their effect: each thunk checks its C arguments and makes one call. The header is the
//! documentation.

mod connection;
mod entry;
mod memory;

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! `libscif.so.0`: the functions of `include/scif.h`, over the engine.
//!
//! Not about what they do: each thunk checks what C can get wrong and makes one call. The header is the documentation.

mod connection;
mod entry;
mod memory;

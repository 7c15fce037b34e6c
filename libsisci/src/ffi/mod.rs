// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! C functions of the library. Each checks its C arguments and makes one call.

mod constants;
mod device;
mod dma;
mod entry;
mod general;
mod interrupts;
mod local;
mod query;
mod remote;
mod transfers;

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Preload library `libscifdev.so`: `/dev/scif` and `/dev/mic/scif`, served by the engine, for
//! programs that call the driver themselves.
//!
//! Not about the effect of the calls, which belongs to the engine, nor about programs that use
//! `libscif.so`, which need no device. `hooks` defines the functions of the C library by which a
//! program reaches a device. Calls that do not concern an endpoint are forwarded to the C library
//! (`real`). The engine's own calls are forwarded too, so the engine never uses this device. The
//! README lists the limits.

mod calls;
mod defects;
mod hooks;
mod memory;
mod ours;
mod ready;
mod real;
mod sets;

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! `libscifdev.so`, to be preloaded: `/dev/scif` and `/dev/mic/scif`, served by the engine, for programs that call the
//! driver themselves.
//!
//! Not about what the calls do, which is the engine's, nor about programs that use `libscif.so`, which need no device. The
//! functions of the C library by which a program reaches a device are defined here (`hooks`); whatever is not about an
//! endpoint goes on to the C library (`real`), and so does all that the engine itself calls: it never meets this device.
//! The README says what is out of reach.

mod calls;
mod hooks;
mod memory;
mod ours;
mod ready;
mod real;
mod sets;

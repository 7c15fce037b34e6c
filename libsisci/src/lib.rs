// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Functions of `include/sisci_api.h` over the engine, in `libsisci.so`.
//!
//! Processes of a host play nodes. Each segment and interrupt listens at a name of its node, and a
//! connection is a Unix socket, which the kernel closes with its process. The modules below `ffi`
//! check C arguments; all other modules are free of `unsafe`.

mod callback;
mod config;
mod context;
mod copy_slots;
mod desc;
mod dma;
mod error;
mod events;
mod fault;
mod ffi;
mod flags;
mod interrupt;
mod local_segment;
mod lock;
mod map;
mod memory;
mod node;
mod objects;
mod poller;
mod query;
mod remote_interrupt;
mod remote_segment;
mod server;
mod transfers;
mod wire;

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Connections over the calls of `scif.h`, over any implementation: a driver of the kernel, or the
//! engine of the crate `scif-api`.
//!
//! Not about the calls themselves ([`ScifCalls`](crate::ScifCalls)).

mod acceptor;
mod calls;
mod carry;
mod channel_pass;
mod crossover;
mod key_channel;
mod key_frames;
mod key_server;
mod lent_reads;
mod link;
mod port;
mod relay;
mod sender;
mod stream;
mod windows;

pub(crate) use self::carry::Scif;

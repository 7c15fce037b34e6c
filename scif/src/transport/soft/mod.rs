// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Transport between processes of one host without a driver: memfds, Unix sockets, `process_vm`.
//!
//! Not about bytes on the socket (`wire`), names (`names`), and checks of greetings (`handshake`).
//!
//! A port is a listening SOCK_SEQPACKET socket. The opener creates the segment and sends it with
//! its first packet, so it can publish before it is accepted; the acceptor answers with its
//! doorbell and keys. The socket then remains as proof of liveness. The first packet also carries
//! the opener's doorbell and keys, because the acceptor needs them at once. All descriptors but the
//! socket are closed as soon as they are mapped.

mod handshake;
#[cfg(test)]
mod hostile;
mod link;
#[doc(hidden)]
pub mod names;
mod node;
mod port;
mod shared_table;
mod spare;
#[doc(hidden)]
pub mod whereabouts;
pub(crate) mod wire;

use std::sync::Arc;

use crate::error::Result;
use crate::export::{Shared, Writers};
use crate::transport::{Hold, Init, Port, Shown, Transport};
pub(crate) use node::Soft;
use port::SoftPort;

impl Transport for Soft {
    fn shared_table(
        self: Arc<Self>,
        name: &str,
        len: usize,
        make: Option<Init<'_>>,
    ) -> Result<Box<dyn Hold>> {
        shared_table::open(self, name, len, make)
    }

    fn share(&self, name: &'static str, len: usize, writers: Writers) -> Result<Shared> {
        self.shared_memory(name, len, writers)
    }

    fn bind(self: Arc<Self>, port: u16, shown: Shown) -> Result<Box<dyn Port>> {
        Ok(Box::new(SoftPort::bind(self, port, shown)?))
    }

    fn host_hash(&self) -> u32 {
        self.host_hash
    }

    fn settings(&self) -> String {
        self.names.settings()
    }
}

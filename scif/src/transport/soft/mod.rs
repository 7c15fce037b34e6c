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

mod board;
mod handshake;
#[cfg(test)]
mod hostile;
mod link;
#[doc(hidden)]
pub mod names;
mod port;
mod spare;
#[doc(hidden)]
pub mod whereabouts;
pub(crate) mod wire;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Once};

use rustix::io::Errno;

use crate::addr::host_hash;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::life::Life;
use crate::sys::fork::PrivateFd;
use crate::sys::memfd::{self, FIXED_SIZE};
use crate::sys::mmap::Mapping;
use crate::sys::process;
use crate::transport::{Hold, Init, Port, Shared, Shown, Transport, Writers};
use names::Names;
use port::SoftPort;
use spare::Spare;

/// State of a node that its soft ports share.
#[derive(Debug)]
pub(crate) struct Soft {
    node: u16,
    names: Names,
    host_hash: u32,
    uid: u32,
    allow_uids: Vec<u32>,
    /// Nonce at a stable address of its own, by which peers prove that they access the right
    /// process.
    nonce: Box<u64>,
    /// Start time of this process; 0 if it is unknown.
    start: u64,
    raised: Once,
    spare: Spare,
    /// Time in nanoseconds for which a listener may lack descriptors before it refuses connecting
    /// peers.
    refuse_after_ns: u64,
}

impl Soft {
    pub(crate) fn open(config: Config) -> Result<Soft> {
        let dir = config.runtime_dir.as_deref();
        let uid = process::uid();
        let names = Names::new(dir, config.domain.as_deref(), uid)?;
        let host_hash = host_hash(dir, names.domain()).map_err(Error::os("stat"))?;
        allow_readers(config.ptracer);
        Ok(Soft {
            node: config.node,
            names,
            host_hash,
            uid,
            allow_uids: config.allow_uids,
            nonce: Box::new(RandomState::new().build_hasher().finish() | 1),
            start: Life::of(process::pid()).start().unwrap_or(0),
            raised: Once::new(),
            spare: Spare::new(),
            refuse_after_ns: config.refuse_after_ms.saturating_mul(1_000_000),
        })
    }

    fn admits(&self, uid: u32) -> bool {
        uid == self.uid || self.allow_uids.contains(&uid)
    }

    fn nonce(&self) -> u64 {
        *self.nonce
    }

    fn nonce_addr(&self) -> u64 {
        (&raw const *self.nonce).expose_provenance() as u64
    }

    /// Raises the limit of open descriptors to the hard limit, once, after a lack of descriptors.
    fn raise_nofile(&self) {
        self.raised.call_once(|| {
            if let Some((from, to)) = process::raise_nofile() {
                log::info!("raised the limit of open files (RLIMIT_NOFILE) from {from} to {to}");
            } else {
                let limit = process::nofile();
                log::warn!(
                    "out of descriptors, and the limit of open files, {limit}, is the highest this process may have: raise it \
                     before the start (ulimit -Hn, LimitNOFILE of systemd, limits.conf)"
                );
            }
        });
    }

    /// Runs a call that allocates a descriptor, and repeats it once after a lack of descriptors.
    fn with_descriptor<T>(
        &self,
        mut call: impl FnMut() -> std::result::Result<T, Errno>,
    ) -> std::result::Result<T, Errno> {
        match call() {
            Err(Errno::MFILE) => {
                self.raise_nofile();
                call()
            }
            other => other,
        }
    }
}

/// Permits peers to read our memory where Yama would deny it.
fn allow_readers(wanted: bool) {
    match process::yama_scope() {
        0 => {}
        1 if wanted => match process::allow_any_ptracer() {
            Ok(()) => log::info!(
                "set PR_SET_PTRACER_ANY, since kernel.yama.ptrace_scope is 1: peers read large messages directly"
            ),
            Err(errno) => log::info!("large messages go through the ring: PR_SET_PTRACER {errno}"),
        },
        scope => log::info!("large messages go through the ring, kernel.yama.ptrace_scope is {scope}"),
    }
}

impl Transport for Soft {
    fn board(self: Arc<Self>, name: &str, len: usize, make: Option<Init<'_>>) -> Result<Box<dyn Hold>> {
        board::open(self, name, len, make)
    }

    fn share(&self, name: &'static str, len: usize, writers: Writers) -> Result<Shared> {
        let fd = self
            .with_descriptor(|| memfd::create(name, len))
            .map_err(Error::os("memfd_create"))?;
        // Our mapping precedes the seal, which then leaves it the only writable one.
        let map = Mapping::shared(&fd, len, true).map_err(Error::os("mmap"))?;
        let seals = match writers {
            Writers::Owner => handshake::KEYS_SEALED,
            Writers::Peers => FIXED_SIZE,
        };
        memfd::seal(&fd, seals).map_err(Error::os("F_ADD_SEALS"))?;
        Ok(Shared {
            map: Arc::new(map),
            fd: Some(PrivateFd::new(fd)),
        })
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

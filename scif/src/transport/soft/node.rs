// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! State of a node that its ports share: names, admitted users, the nonce, descriptors in reserve.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Once};

use rustix::fs::SealFlags;
use rustix::io::Errno;

use super::names::Names;
use super::spare::Spare;
use crate::addr::host_hash;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::export::{Shared, Writers};
use crate::liveness::ProcessProof;
use crate::sys::fork::PrivateFd;
use crate::sys::memfd::{self, FIXED_SIZE};
use crate::sys::mmap::Mapping;
use crate::sys::process;

/// Seals of a key table: also against every writer except the owner's mapping.
pub(super) const KEYS_SEALED: SealFlags = FIXED_SIZE.union(SealFlags::FUTURE_WRITE);

/// State of a node.
#[derive(Debug)]
pub(crate) struct Soft {
    pub(super) node: u16,
    pub(super) names: Names,
    pub(super) host_hash: u32,
    pub(super) uid: u32,
    pub(super) allow_uids: Vec<u32>,
    /// Nonce at a stable address of its own, by which peers prove that they access the right
    /// process.
    pub(super) nonce: Box<u64>,
    /// Start time of this process; 0 if it is unknown.
    pub(super) start: u64,
    pub(super) raised: Once,
    pub(super) spare: Spare,
    /// Time in nanoseconds for which a listener may lack descriptors before it refuses connecting
    /// peers.
    pub(super) refuse_after_ns: u64,
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
            start: ProcessProof::of(process::pid()).start().unwrap_or(0),
            raised: Once::new(),
            spare: Spare::new(),
            refuse_after_ns: config.refuse_after_ms.saturating_mul(1_000_000),
        })
    }

    /// Creates zeroed memory that can be exported to peers.
    pub(super) fn shared_memory(
        &self,
        name: &'static str,
        len: usize,
        writers: Writers,
    ) -> Result<Shared> {
        let fd =
            self.with_descriptor(|| memfd::create(name, len)).map_err(Error::os("memfd_create"))?;
        // Our mapping precedes the seal, which then leaves it the only writable one.
        let map = Mapping::shared(&fd, len, true).map_err(Error::os("mmap"))?;
        let seals = match writers {
            Writers::Owner => KEYS_SEALED,
            Writers::Peers => FIXED_SIZE,
        };
        memfd::seal(&fd, seals).map_err(Error::os("F_ADD_SEALS"))?;
        Ok(Shared { map: Arc::new(map), fd: Some(PrivateFd::new(fd)) })
    }

    pub(super) fn admits(&self, uid: u32) -> bool {
        uid == self.uid || self.allow_uids.contains(&uid)
    }

    pub(super) fn nonce(&self) -> u64 {
        *self.nonce
    }

    pub(super) fn nonce_addr(&self) -> u64 {
        (&raw const *self.nonce).expose_provenance() as u64
    }

    /// Raises the limit of open descriptors to the hard limit, once, after a lack of descriptors.
    pub(super) fn raise_nofile(&self) {
        self.raised.call_once(|| {
            if let Some((from, to)) = process::raise_nofile() {
                log::info!("raised the limit of open files (RLIMIT_NOFILE) from {from} to {to}");
            } else {
                let limit = process::nofile();
                log::warn!(
                    "all {limit} descriptors are in use, and the process may not raise its limit \
                     (RLIMIT_NOFILE): raise the hard limit before the start (ulimit -Hn, \
                     LimitNOFILE of systemd, limits.conf)"
                );
            }
        });
    }

    /// Runs a call that allocates a descriptor, and repeats it once after a lack of descriptors.
    pub(super) fn with_descriptor<T>(
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
                "set PR_SET_PTRACER_ANY, since kernel.yama.ptrace_scope is 1: peers read large \
                 messages directly"
            ),
            Err(errno) => log::info!("large messages go through the ring: PR_SET_PTRACER {errno}"),
        },
        scope => {
            log::info!("large messages go through the ring, kernel.yama.ptrace_scope is {scope}")
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory for remote access: registration in the mode of the provider, and exchange of addresses
//! and keys.

use std::sync::Arc;

use libfabric_sys as sys;

use super::Rig;
use crate::fi::{AtomicTarget, Buf, Fid, Mr, MrRequest};
use crate::harness::{Fail, Outcome};

/// Memory of one rank for remote access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Address for operations: virtual or counted from zero, as the mode of the provider requires.
    pub addr: u64,
    pub key: u64,
    pub len: usize,
}

impl Remote {
    /// Returns the target of an atomic operation at the start of the memory.
    pub fn atomic(self, dest: u64, datatype: u32, op: u32, context: usize) -> AtomicTarget {
        AtomicTarget { dest, addr: self.addr, key: self.key, datatype, op, context }
    }

    /// Returns the target of a sum of 64-bit numbers at the start of the memory.
    pub fn sum(self, dest: u64, context: usize) -> AtomicTarget {
        AtomicTarget::sum(dest, self.addr, self.key, context)
    }
}

impl Rig<'_> {
    /// Returns a key that this rank has not used yet.
    pub fn fresh_key(&self) -> u64 {
        let key = self.next_key.get();
        self.next_key.set(key + 1);
        key
    }

    /// Registers memory in the mode of the provider, and returns its remote description.
    ///
    /// # Errors
    /// A failure of any call; `NotRun` for modes that no case supports.
    pub fn register(&self, buf: Buf, access: u64) -> Outcome<(Arc<Mr>, Remote)> {
        let spec = MrRequest { access, key: self.fresh_key(), flags: 0 };
        let mr = Mr::reg(&self.domain, buf, spec)?;
        let remote = self.ready_region(&mr, buf)?;
        Ok((mr, remote))
    }

    /// Binds and enables a region if the mode requires it, and returns its remote description.
    ///
    /// # Errors
    /// A failure of any call; `NotRun` for modes that no case supports.
    pub fn ready_region(&self, mr: &Mr, buf: Buf) -> Outcome<Remote> {
        let mode = self.info.domain().mr_mode;
        if mode & sys::FI_MR_RAW != 0 {
            return Err(Fail::NotRun("raw keys".into()));
        }
        if mode & sys::FI_MR_ENDPOINT != 0 {
            mr.bind(self.ep.as_ref(), 0)?;
            mr.enable()?;
        }
        let absolute = mode & (sys::FI_MR_VIRT_ADDR | sys::FI_MR_BASIC) != 0;
        let addr = if absolute { buf.addr64() } else { 0 };
        Ok(Remote { addr, key: mr.key()?, len: buf.len() })
    }

    /// Registers memory and exchanges its description. Returns the region and the descriptions of
    /// all ranks.
    pub fn share(&self, buf: Buf, access: u64) -> Outcome<(Arc<Mr>, Vec<Remote>)> {
        let (mr, mine) = self.register(buf, access)?;
        let all = self.exchange_remote(mine)?;
        Ok((mr, all))
    }

    /// Returns a buffer, after [`share`](Self::share), before its results.
    pub fn share_buf(&self, buf: Buf, access: u64) -> Outcome<(Buf, Arc<Mr>, Vec<Remote>)> {
        let (mr, all) = self.share(buf, access)?;
        Ok((buf, mr, all))
    }

    /// Exchanges the descriptions of regions.
    pub fn exchange_remote(&self, mine: Remote) -> Outcome<Vec<Remote>> {
        let mut bytes = Vec::new();
        bytes.extend(mine.addr.to_le_bytes());
        bytes.extend(mine.key.to_le_bytes());
        bytes.extend(mine.len.to_le_bytes());
        let parts = self.exchange(&bytes)?;
        let word = |part: &[u8], at: usize| {
            part.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
        };
        let remote = |part: &Vec<u8>| Remote {
            addr: word(part, 0),
            key: word(part, 8),
            len: usize::try_from(word(part, 16)).unwrap_or(0),
        };
        Ok(parts.iter().map(remote).collect())
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Passes of key channels: random numbers that the two ends of a connection exchange. They bind a
//! key channel to the connection.
//!
//! The greeting of a connection contains the pass of its sender. An initiator connects its key
//! channel to a port number, which another process may have by then. So the owner admits only a
//! channel that names the claim of a living connection, and one for each. Its answers contain the
//! proof, which only the process at the other end of that connection knows.
//!
//! Not about the frames of a channel (`key_frames`).

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::sys::errno::lock;

/// Two random numbers of one end of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Pass {
    /// Number that the initiator names when it connects its channel.
    pub(super) claim: u64,
    /// Number that the owner names in each answer.
    pub(super) proof: u64,
}

impl Pass {
    /// Pass in greetings that need none.
    pub(super) const NONE: Pass = Pass { claim: 0, proof: 0 };
}

/// Passes that a port has issued for its living connections.
#[derive(Debug, Default)]
pub(super) struct ChannelPasses {
    /// Source of the numbers, with keys from the system.
    source: RandomState,
    issued: Mutex<Issued>,
}

#[derive(Debug, Default)]
struct Issued {
    count: u64,
    /// Proofs by claim; `None` once a channel was admitted.
    proofs: HashMap<u64, Option<u64>>,
}

impl ChannelPasses {
    /// Issues the pass of a new connection.
    pub(super) fn issue(self: &Arc<Self>) -> IssuedPass {
        let mut issued = lock(&self.issued);
        let pass = loop {
            issued.count += 1;
            let number = |which: u8| self.source.hash_one((issued.count, which));
            let pass = Pass { claim: number(0), proof: number(1) };
            if pass.claim != 0 && !issued.proofs.contains_key(&pass.claim) {
                break pass;
            }
        };
        issued.proofs.insert(pass.claim, Some(pass.proof));
        IssuedPass { pass, passes: Arc::clone(self) }
    }

    /// Admits the channel with a claim; returns its proof. `None`: no living connection has issued
    /// the claim, or it was used.
    pub(super) fn admit(&self, claim: u64) -> Option<u64> {
        lock(&self.issued).proofs.get_mut(&claim)?.take()
    }
}

/// Pass of this end of a connection, valid until it is dropped.
#[derive(Debug)]
pub(super) struct IssuedPass {
    pass: Pass,
    passes: Arc<ChannelPasses>,
}

impl IssuedPass {
    pub(super) fn get(&self) -> Pass {
        self.pass
    }
}

impl Drop for IssuedPass {
    fn drop(&mut self) {
        lock(&self.passes.issued).proofs.remove(&self.pass.claim);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_admits_one_channel_of_a_living_connection() {
        let passes: Arc<ChannelPasses> = Arc::default();
        let (first, second) = (passes.issue(), passes.issue());
        assert_ne!(first.get(), second.get());
        assert_eq!(passes.admit(first.get().claim ^ second.get().claim), None);
        assert_eq!(passes.admit(0), None);
        assert_eq!(passes.admit(first.get().claim), Some(first.get().proof));
        assert_eq!(passes.admit(first.get().claim), None, "used");
        let claim = second.get().claim;
        drop(second);
        assert_eq!(passes.admit(claim), None, "the connection has ended");
    }

    #[test]
    fn passes_of_two_ports_differ() {
        let (one, other): (Arc<ChannelPasses>, Arc<ChannelPasses>) = Default::default();
        assert_ne!(one.issue().get(), other.issue().get());
    }
}

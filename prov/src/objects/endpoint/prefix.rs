// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "another view of the object that C holds")]
//! Message prefixes (`FI_MSG_PREFIX`): space for a header of the provider before every message.
//!
//! The provider has no such header and skips the space. Endpoints with prefixes have operation
//! tables of their own, so that endpoints without them pay no cost. The length of a received
//! message includes its prefix, as does the length of a posted buffer.
//!
//! Mirrors fi_getinfo(3), "FI_MSG_PREFIX".

use libfabric_sys as fi;
use scif_ring::Mem;

use super::ep::{Ep, Handle};
use super::transfer::{Receiver, Sender};
use crate::base::attr::MSG_PREFIX_SIZE;
use crate::base::buffers::Buffers;
use crate::base::entry::Object;
use crate::base::errno::Errno;
use crate::engine::types::args::{RecvArgs, SendArgs};

/// Endpoint opened with prefixes.
#[repr(transparent)]
pub(crate) struct Prefixed(Ep);

// SAFETY: a transparent wrapper of an endpoint; all such objects are of the class of endpoints.
unsafe impl Object for Prefixed {
    const FCLASS: usize = <Ep as Object>::FCLASS;
}

/// Returns the buffers of a message after its prefix, which is complete in the first buffer.
fn behind(iov: &[Mem]) -> Result<Buffers, Errno> {
    let mut first = true;
    Buffers::of(iov, Mem::empty(), |m| {
        if !std::mem::take(&mut first) {
            return Ok(*m);
        }
        let len = m.len().checked_sub(MSG_PREFIX_SIZE).ok_or(fi::FI_EINVAL)?;
        m.sub(MSG_PREFIX_SIZE, len).ok_or(fi::FI_EINVAL)
    })
}

/// Returns the buffers of a message of `ep`, with or without prefixes.
pub(super) fn message(ep: &Ep, iov: &[Mem]) -> Result<Buffers, Errno> {
    if ep.core.prefixed { behind(iov) } else { Buffers::of(iov, Mem::empty(), |m| Ok(*m)) }
}

/// Refuses multi-receive buffers: each of their messages would need its own prefix.
pub(super) fn check_recv(args: &RecvArgs<'_>) -> Result<(), Errno> {
    if args.flags & fi::FI_MULTI_RECV != 0 {
        return Err(fi::FI_EOPNOTSUPP);
    }
    Ok(())
}

crate::base::entry::created_by!(Prefixed, |object| object.0.core.creator);

impl Handle for Prefixed {
    fn ep(&self) -> &Ep {
        &self.0
    }
}

impl Sender for Prefixed {
    fn send(&self, args: &SendArgs<'_>) -> Result<isize, Errno> {
        let iov = behind(args.iov)?;
        self.0.send(&SendArgs { iov: iov.as_slice(), ..*args })
    }
}

impl Receiver for Prefixed {
    fn rx_flags(&self) -> u64 {
        self.0.rx_flags()
    }

    fn rx_always(&self) -> u64 {
        self.0.rx_always()
    }

    fn recv(&self, args: &RecvArgs<'_>) -> Result<isize, Errno> {
        check_recv(args)?;
        if args.flags & (fi::FI_PEEK | fi::FI_DISCARD) != 0 {
            return self.0.recv(args);
        }
        let iov = behind(args.iov)?;
        self.0.recv(&RecvArgs { iov: iov.as_slice(), ..*args })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_whole_in_the_first_buffer() {
        let mut bytes = [0_u8; 40];
        // SAFETY: the array outlives its description.
        let whole = unsafe { Mem::new(bytes.as_mut_ptr(), bytes.len()) };
        let left = behind(&[whole, whole]).unwrap();
        let lens: Vec<usize> = left.as_slice().iter().map(Mem::len).collect();
        assert_eq!(lens, [40 - MSG_PREFIX_SIZE, 40]);
        let short = whole.sub(0, MSG_PREFIX_SIZE - 1).unwrap();
        assert!(behind(&[short, whole]).is_err());
        assert!(behind(&[]).unwrap().as_slice().is_empty());
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Scatter list that an operation keeps until it completes. A single element, the usual case, needs
//! no allocation.

use scif_ring::copy::{Mem, slice_iov};

/// List of memory ranges.
#[derive(Clone, Debug)]
pub(crate) enum Iov {
    One([Mem; 1]),
    List(Box<[Mem]>),
}

impl Iov {
    #[inline]
    pub(crate) fn new(list: &[Mem]) -> Iov {
        match list {
            [] => Iov::One([Mem::empty()]),
            [one] => Iov::One([*one]),
            many => Iov::List(many.into()),
        }
    }

    /// Creates a list of any length in the general form, which the fast path declines.
    pub(crate) fn list(list: &[Mem]) -> Iov {
        Iov::List(list.into())
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[Mem] {
        match self {
            Iov::One(one) => one,
            Iov::List(many) => many,
        }
    }

    /// Returns the only range, if the list has one element.
    #[inline]
    pub(crate) fn contiguous(&self) -> Option<Mem> {
        match self {
            Iov::One([one]) => Some(*one),
            Iov::List(_) => None,
        }
    }

    #[inline]
    pub(crate) fn first_addr(&self) -> usize {
        self.as_slice().first().map_or(0, Mem::addr)
    }
}

/// Returns the sub-list of `iov` that covers `len` bytes from `off`.
pub(crate) fn sub_iov(iov: &[Mem], off: usize, len: usize) -> Vec<Mem> {
    let mut out = Vec::new();
    slice_iov(iov, off, len, &mut out);
    out
}

/// Returns the bytes of a scatter list in one vector.
pub(crate) fn gather(iov: &[Mem]) -> Vec<u8> {
    let mut out = vec![0; scif_ring::copy::total_len(iov)];
    gather_into(iov, &mut out);
    out
}

/// Returns a vector of `len` zeros, or `None` without memory. For lengths that a peer chooses.
pub(crate) fn zeros(len: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).ok()?;
    bytes.resize(len, 0);
    Some(bytes)
}

/// Returns a copy of `bytes`, or `None` without memory.
pub(crate) fn copy_of(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).ok()?;
    copy.extend_from_slice(bytes);
    Some(copy)
}

/// Returns the bytes of one memory range, or `None` without memory.
pub(crate) fn bytes_of(mem: &Mem) -> Option<Vec<u8>> {
    let mut bytes = zeros(mem.len())?;
    mem.copy_to_slice(&mut bytes);
    Some(bytes)
}

/// Copies the bytes of a scatter list into `out`, as far as they fit.
pub(crate) fn gather_into(iov: &[Mem], out: &mut [u8]) {
    let mut at = 0;
    for piece in iov {
        if let Some(to) = out.get_mut(at..) {
            at += piece.copy_to_slice(to);
        }
    }
}

/// Copies local bytes into a scatter list. Returns the number of bytes that fitted.
pub(crate) fn scatter(to: &[Mem], bytes: &[u8]) -> usize {
    let mut rest = bytes;
    for piece in to {
        let n = piece.copy_from_slice(rest);
        rest = rest.get(n..).unwrap_or_default();
    }
    bytes.len() - rest.len()
}

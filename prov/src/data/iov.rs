// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Scatter list that an operation keeps until it completes. A single element, the usual case, needs
//! no allocation.

use scif_ring::copy::{Mem, slice_iov};

/// List of memory ranges.
#[derive(Clone, Debug)]
pub(crate) enum Iov {
    One([Mem; 1]),
    Many(Box<[Mem]>),
}

impl Iov {
    #[inline]
    pub(crate) fn new(list: &[Mem]) -> Iov {
        match list {
            [] => Iov::One([Mem::empty()]),
            [one] => Iov::One([*one]),
            many => Iov::Many(many.into()),
        }
    }

    /// Creates a list of any length in the general form, which the fast path declines.
    pub(crate) fn list(list: &[Mem]) -> Iov {
        Iov::Many(list.into())
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[Mem] {
        match self {
            Iov::One(one) => one,
            Iov::Many(many) => many,
        }
    }

    /// Returns the only range, if the list has one element.
    #[inline]
    pub(crate) fn contiguous(&self) -> Option<Mem> {
        match self {
            Iov::One([one]) => Some(*one),
            Iov::Many(_) => None,
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

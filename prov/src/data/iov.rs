// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! A scatter list an operation keeps until it completes: nearly always one element, then without an allocation.

use scif_ring::copy::Mem;

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

    /// The same as a list, whatever its length: what comes for it goes the general way.
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

    /// The one contiguous range, when it is one.
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

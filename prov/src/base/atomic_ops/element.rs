// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Operations of atomics, and the requirements on a type on which they work.

use scif_ring::{Mem, rmw};

/// Kind of an atomic, by the values that it returns and compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicKind {
    Write,
    Fetch,
    Compare,
}

/// `enum fi_op`, in its order: the discriminants are the C values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Min,
    Max,
    Sum,
    Prod,
    LogicalOr,
    LogicalAnd,
    BitOr,
    BitAnd,
    LogicalXor,
    BitXor,
    Read,
    Write,
    SwapEq,
    SwapNe,
    SwapLe,
    SwapLt,
    SwapGe,
    SwapGt,
    SwapMask,
    Diff,
}

impl Op {
    const ALL: [Op; 20] = [
        Op::Min,
        Op::Max,
        Op::Sum,
        Op::Prod,
        Op::LogicalOr,
        Op::LogicalAnd,
        Op::BitOr,
        Op::BitAnd,
        Op::LogicalXor,
        Op::BitXor,
        Op::Read,
        Op::Write,
        Op::SwapEq,
        Op::SwapNe,
        Op::SwapLe,
        Op::SwapLt,
        Op::SwapGe,
        Op::SwapGt,
        Op::SwapMask,
        Op::Diff,
    ];

    pub(super) fn from_raw(raw: u32) -> Option<Op> {
        Op::ALL.get(usize::try_from(raw).ok()?).copied()
    }

    /// Whether the operation takes a comparison (or mask) operand.
    pub(super) fn is_swap(self) -> bool {
        matches!(
            self,
            Op::SwapEq
                | Op::SwapNe
                | Op::SwapLe
                | Op::SwapLt
                | Op::SwapGe
                | Op::SwapGt
                | Op::SwapMask
        )
    }

    /// Whether the operation compares values by order.
    pub(super) fn needs_order(self) -> bool {
        matches!(self, Op::Min | Op::Max | Op::SwapLe | Op::SwapLt | Op::SwapGe | Op::SwapGt)
    }

    /// Whether the operation works on bits rather than on values.
    pub(super) fn needs_bits(self) -> bool {
        matches!(self, Op::BitOr | Op::BitAnd | Op::BitXor | Op::SwapMask)
    }

    pub(super) fn belongs_to(self, kind: AtomicKind) -> bool {
        match kind {
            AtomicKind::Write => !self.is_swap() && self != Op::Read,
            AtomicKind::Fetch => !self.is_swap(),
            AtomicKind::Compare => self.is_swap(),
        }
    }
}

/// Value of an atomic operation.
pub(super) trait Element: Copy {
    /// Size in bytes.
    const SIZE: usize;

    /// Returns the value in native byte order; missing bytes read as zero.
    fn get(bytes: &[u8]) -> Self;

    /// Stores the value; `bytes` has [`Self::SIZE`] bytes.
    fn put(self, bytes: &mut [u8]);

    /// Returns the target's new value. Only called for operations that the type supports.
    fn combine(op: Op, target: Self, operand: Self, compare: Self) -> Self;

    /// Executes on an aligned target with the CPU's atomic instructions; `None` when there are none
    /// for the type.
    #[inline]
    fn execute(_op: Op, _target: &Mem, _operand: Self, _compare: Self) -> Option<Self> {
        None
    }
}

/// Executes on a target that fits a machine word, through conversions that keep every bit.
#[inline]
pub(super) fn execute_word<E: Element, W: rmw::AtomicPrimitive>(
    op: Op,
    target: &Mem,
    operand: E,
    compare: E,
    from_word: impl Fn(W) -> E,
    into_word: impl Fn(E) -> W,
) -> Option<E> {
    let old = if op == Op::Read {
        rmw::load::<W>(target)
    } else {
        rmw::update::<W>(target, |word| {
            into_word(E::combine(op, from_word(word), operand, compare))
        })
    };
    old.map(from_word)
}

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
pub(super) enum ElementOp {
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

impl ElementOp {
    const ALL: [ElementOp; 20] = [
        ElementOp::Min,
        ElementOp::Max,
        ElementOp::Sum,
        ElementOp::Prod,
        ElementOp::LogicalOr,
        ElementOp::LogicalAnd,
        ElementOp::BitOr,
        ElementOp::BitAnd,
        ElementOp::LogicalXor,
        ElementOp::BitXor,
        ElementOp::Read,
        ElementOp::Write,
        ElementOp::SwapEq,
        ElementOp::SwapNe,
        ElementOp::SwapLe,
        ElementOp::SwapLt,
        ElementOp::SwapGe,
        ElementOp::SwapGt,
        ElementOp::SwapMask,
        ElementOp::Diff,
    ];

    pub(super) fn from_raw(raw: u32) -> Option<ElementOp> {
        ElementOp::ALL.get(usize::try_from(raw).ok()?).copied()
    }

    /// Whether the operation takes a comparison (or mask) operand.
    pub(super) fn is_swap(self) -> bool {
        matches!(
            self,
            ElementOp::SwapEq
                | ElementOp::SwapNe
                | ElementOp::SwapLe
                | ElementOp::SwapLt
                | ElementOp::SwapGe
                | ElementOp::SwapGt
                | ElementOp::SwapMask
        )
    }

    /// Whether the operation compares values by order.
    pub(super) fn needs_order(self) -> bool {
        matches!(
            self,
            ElementOp::Min
                | ElementOp::Max
                | ElementOp::SwapLe
                | ElementOp::SwapLt
                | ElementOp::SwapGe
                | ElementOp::SwapGt
        )
    }

    /// Whether the operation works on bits rather than on values.
    pub(super) fn needs_bits(self) -> bool {
        matches!(
            self,
            ElementOp::BitOr | ElementOp::BitAnd | ElementOp::BitXor | ElementOp::SwapMask
        )
    }

    pub(super) fn belongs_to(self, kind: AtomicKind) -> bool {
        match kind {
            AtomicKind::Write => !self.is_swap() && self != ElementOp::Read,
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
    fn combine(op: ElementOp, target: Self, operand: Self, compare: Self) -> Self;

    /// Executes on an aligned target with the CPU's atomic instructions; `None` when there are none
    /// for the type.
    #[inline]
    fn execute(_op: ElementOp, _target: &Mem, _operand: Self, _compare: Self) -> Option<Self> {
        None
    }
}

/// Executes on a target that fits a machine word, through conversions that keep every bit.
#[inline]
pub(super) fn execute_word<E: Element, W: rmw::AtomicPrimitive>(
    op: ElementOp,
    target: &Mem,
    operand: E,
    compare: E,
    from_word: impl Fn(W) -> E,
    into_word: impl Fn(E) -> W,
) -> Option<E> {
    let old = if op == ElementOp::Read {
        rmw::load::<W>(target)
    } else {
        rmw::update::<W>(target, |word| {
            into_word(E::combine(op, from_word(word), operand, compare))
        })
    };
    old.map(from_word)
}

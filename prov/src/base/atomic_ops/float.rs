// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Atomic operations on `float` and `double`, and the requirements on any real floating point type.
//!
//! Comparisons follow C: a NaN is neither greater, smaller nor equal, and counts as true.

use super::element::{Element, ElementOp, execute_word};
use scif_ring::Mem;
use std::cmp::Ordering;

/// Arithmetic of a real floating point type.
pub(super) trait Real: Copy {
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// Compares two values; `None` when one of them is not a number.
    fn order(self, other: Self) -> Option<Ordering>;
    fn is_true(self) -> bool;
    fn from_bool(value: bool) -> Self;
}

/// Implements [`Element::combine`] of every real type. Bitwise operations are undefined and leave
/// the target unchanged.
#[inline]
pub(super) fn combine<R: Real>(op: ElementOp, target: R, operand: R, compare: R) -> R {
    let pick = |swap: bool| if swap { operand } else { target };
    match op {
        ElementOp::Min => pick(operand.order(target) == Some(Ordering::Less)),
        ElementOp::Max => pick(operand.order(target) == Some(Ordering::Greater)),
        ElementOp::Sum => target.add(operand),
        ElementOp::Diff => target.sub(operand),
        ElementOp::Prod => target.mul(operand),
        ElementOp::LogicalOr => R::from_bool(target.is_true() || operand.is_true()),
        ElementOp::LogicalAnd => R::from_bool(target.is_true() && operand.is_true()),
        ElementOp::LogicalXor => R::from_bool(target.is_true() != operand.is_true()),
        ElementOp::Write => operand,
        ElementOp::SwapEq => pick(compare.order(target) == Some(Ordering::Equal)),
        ElementOp::SwapNe => pick(compare.order(target) != Some(Ordering::Equal)),
        ElementOp::SwapLe => pick(compare.order(target).is_some_and(Ordering::is_le)),
        ElementOp::SwapLt => pick(compare.order(target).is_some_and(Ordering::is_lt)),
        ElementOp::SwapGe => pick(compare.order(target).is_some_and(Ordering::is_ge)),
        ElementOp::SwapGt => pick(compare.order(target).is_some_and(Ordering::is_gt)),
        ElementOp::Read
        | ElementOp::BitOr
        | ElementOp::BitAnd
        | ElementOp::BitXor
        | ElementOp::SwapMask => target,
    }
}

macro_rules! floats {
    ($($type:ty: $word:ty),*) => {$(
        impl Real for $type {
            #[inline]
            fn add(self, other: Self) -> Self {
                self + other
            }

            #[inline]
            fn sub(self, other: Self) -> Self {
                self - other
            }

            #[inline]
            fn mul(self, other: Self) -> Self {
                self * other
            }

            #[inline]
            fn order(self, other: Self) -> Option<Ordering> {
                self.partial_cmp(&other)
            }

            #[inline]
            fn is_true(self) -> bool {
                self != 0.0
            }

            #[inline]
            fn from_bool(value: bool) -> Self {
                if value { 1.0 } else { 0.0 }
            }
        }

        impl Element for $type {
            const SIZE: usize = size_of::<$type>();

            #[inline]
            fn get(bytes: &[u8]) -> Self {
                bytes.try_into().map_or(0.0, <$type>::from_ne_bytes)
            }

            #[inline]
            fn put(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }

            #[inline]
            fn combine(op: ElementOp, target: Self, operand: Self, compare: Self) -> Self {
                combine(op, target, operand, compare)
            }

            #[inline]
            fn execute(op: ElementOp, target: &Mem, operand: Self, compare: Self) -> Option<Self> {
                let (value, word) = (<$type>::from_bits, <$type>::to_bits);
                execute_word::<Self, $word>(op, target, operand, compare, value, word)
            }
        }
    )*};
}

floats!(f32: u32, f64: u64);

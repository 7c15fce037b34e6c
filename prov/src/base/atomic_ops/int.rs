// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Atomic operations on integers of 8 to 128 bits. Sums and products wrap around, as in C's
//! unsigned arithmetic.

use super::element::{Element, ElementOp, execute_word};
use scif_ring::{Mem, rmw};

macro_rules! combine_integers {
    ($type:ty) => {
        #[inline]
        fn combine(op: ElementOp, target: Self, operand: Self, compare: Self) -> Self {
            let pick = |swap: bool| if swap { operand } else { target };
            match op {
                ElementOp::Min => target.min(operand),
                ElementOp::Max => target.max(operand),
                ElementOp::Sum => target.wrapping_add(operand),
                ElementOp::Diff => target.wrapping_sub(operand),
                ElementOp::Prod => target.wrapping_mul(operand),
                ElementOp::LogicalOr => <$type>::from(target != 0 || operand != 0),
                ElementOp::LogicalAnd => <$type>::from(target != 0 && operand != 0),
                ElementOp::LogicalXor => <$type>::from((target != 0) != (operand != 0)),
                ElementOp::BitOr => target | operand,
                ElementOp::BitAnd => target & operand,
                ElementOp::BitXor => target ^ operand,
                ElementOp::Read => target,
                ElementOp::Write => operand,
                ElementOp::SwapEq => pick(compare == target),
                ElementOp::SwapNe => pick(compare != target),
                ElementOp::SwapLe => pick(compare <= target),
                ElementOp::SwapLt => pick(compare < target),
                ElementOp::SwapGe => pick(compare >= target),
                ElementOp::SwapGt => pick(compare > target),
                ElementOp::SwapMask => (operand & compare) | (target & !compare),
            }
        }
    };
}

macro_rules! bytes_of_integers {
    ($type:ty) => {
        const SIZE: usize = size_of::<$type>();

        #[inline]
        fn get(bytes: &[u8]) -> Self {
            bytes.try_into().map_or(0, <$type>::from_ne_bytes)
        }

        #[inline]
        fn put(self, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.to_ne_bytes());
        }
    };
}

macro_rules! word_integers {
    ($($type:ty: $word:ty),*) => {$(
        impl Element for $type {
            bytes_of_integers!($type);
            combine_integers!($type);

            #[inline]
            fn execute(op: ElementOp, target: &Mem, operand: Self, compare: Self) -> Option<Self> {
                let word = |value: Self| <$word>::from_ne_bytes(value.to_ne_bytes());
                let value = |word: $word| Self::from_ne_bytes(word.to_ne_bytes());
                // The usual operations have an instruction that needs no retry loop.
                match op {
                    ElementOp::Sum => rmw::fetch_add(target, word(operand)).map(value),
                    ElementOp::Write => rmw::swap(target, word(operand)).map(value),
                    ElementOp::SwapEq => {
                        let (expected, new) = (word(compare), word(operand));
                        let (Ok(old) | Err(old)) = rmw::compare_exchange(target, expected, new)?;
                        Some(value(old))
                    }
                    _ => execute_word(op, target, operand, compare, value, word),
                }
            }
        }
    )*};
}

macro_rules! wide_integers {
    ($($type:ty),*) => {$(
        impl Element for $type {
            bytes_of_integers!($type);
            combine_integers!($type);
        }
    )*};
}

word_integers!(i8: u8, u8: u8, i16: u16, u16: u16, i32: u32, u32: u32, i64: u64, u64: u64);
wide_integers!(i128, u128);

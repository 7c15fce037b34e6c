// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Atomic operations on integers of 8 to 128 bits. Sums and products wrap around, as in C's
//! unsigned arithmetic.

use super::element::{Element, Op, execute_word};
use scif_ring::{Mem, rmw};

macro_rules! combine_integers {
    ($type:ty) => {
        #[inline]
        fn combine(op: Op, target: Self, operand: Self, compare: Self) -> Self {
            let pick = |swap: bool| if swap { operand } else { target };
            match op {
                Op::Min => target.min(operand),
                Op::Max => target.max(operand),
                Op::Sum => target.wrapping_add(operand),
                Op::Diff => target.wrapping_sub(operand),
                Op::Prod => target.wrapping_mul(operand),
                Op::LogicalOr => <$type>::from(target != 0 || operand != 0),
                Op::LogicalAnd => <$type>::from(target != 0 && operand != 0),
                Op::LogicalXor => <$type>::from((target != 0) != (operand != 0)),
                Op::BitOr => target | operand,
                Op::BitAnd => target & operand,
                Op::BitXor => target ^ operand,
                Op::Read => target,
                Op::Write => operand,
                Op::SwapEq => pick(compare == target),
                Op::SwapNe => pick(compare != target),
                Op::SwapLe => pick(compare <= target),
                Op::SwapLt => pick(compare < target),
                Op::SwapGe => pick(compare >= target),
                Op::SwapGt => pick(compare > target),
                Op::SwapMask => (operand & compare) | (target & !compare),
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
            fn execute(op: Op, target: &Mem, operand: Self, compare: Self) -> Option<Self> {
                let word = |value: Self| <$word>::from_ne_bytes(value.to_ne_bytes());
                let value = |word: $word| Self::from_ne_bytes(word.to_ne_bytes());
                // The usual operations have an instruction that needs no retry loop.
                match op {
                    Op::Sum => rmw::fetch_add(target, word(operand)).map(value),
                    Op::Write => rmw::swap(target, word(operand)).map(value),
                    Op::SwapEq => {
                        let (Ok(old) | Err(old)) = rmw::compare_exchange(target, word(compare), word(operand))?;
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

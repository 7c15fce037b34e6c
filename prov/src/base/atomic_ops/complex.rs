// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Atomic operations on complex numbers: a real and an imaginary part, in that order, of any real
//! type.
//!
//! Complex numbers have no order; the operations that need one are not defined and leave the target
//! as it is.

use super::element::{Element, ElementOp, execute_word};
use super::float::Real;
use libfabric_sys::LongDouble;
use scif_ring::Mem;
use std::cmp::Ordering;

/// `float complex`, `double complex` or `long double complex`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Complex<R> {
    pub(super) re: R,
    pub(super) im: R,
}

impl<R: Real> Complex<R> {
    #[inline]
    fn is_true(self) -> bool {
        self.re.is_true() || self.im.is_true()
    }

    #[inline]
    fn from_bool(value: bool) -> Complex<R> {
        Complex { re: R::from_bool(value), im: R::from_bool(false) }
    }

    #[inline]
    fn equals(self, other: Complex<R>) -> bool {
        self.re.order(other.re) == Some(Ordering::Equal)
            && self.im.order(other.im) == Some(Ordering::Equal)
    }

    #[inline]
    fn mul(self, other: Complex<R>) -> Complex<R> {
        Complex {
            re: self.re.mul(other.re).sub(self.im.mul(other.im)),
            im: self.re.mul(other.im).add(self.im.mul(other.re)),
        }
    }
}

#[inline]
fn combine<R: Real>(
    op: ElementOp,
    target: Complex<R>,
    operand: Complex<R>,
    compare: Complex<R>,
) -> Complex<R> {
    let pick = |swap: bool| if swap { operand } else { target };
    match op {
        ElementOp::Sum => Complex { re: target.re.add(operand.re), im: target.im.add(operand.im) },
        ElementOp::Diff => Complex { re: target.re.sub(operand.re), im: target.im.sub(operand.im) },
        ElementOp::Prod => target.mul(operand),
        ElementOp::LogicalOr => Complex::from_bool(target.is_true() || operand.is_true()),
        ElementOp::LogicalAnd => Complex::from_bool(target.is_true() && operand.is_true()),
        ElementOp::LogicalXor => Complex::from_bool(target.is_true() != operand.is_true()),
        ElementOp::Write => operand,
        ElementOp::SwapEq => pick(compare.equals(target)),
        ElementOp::SwapNe => pick(!compare.equals(target)),
        ElementOp::Read
        | ElementOp::Min
        | ElementOp::Max
        | ElementOp::BitOr
        | ElementOp::BitAnd
        | ElementOp::BitXor
        | ElementOp::SwapLe
        | ElementOp::SwapLt
        | ElementOp::SwapGe
        | ElementOp::SwapGt
        | ElementOp::SwapMask => target,
    }
}

/// Defines the layout: real part, then imaginary part.
macro_rules! parts_of_complex {
    ($real:ty) => {
        const SIZE: usize = 2 * <$real>::SIZE;

        #[inline]
        fn get(bytes: &[u8]) -> Self {
            let (re, im) = bytes.split_at_checked(<$real>::SIZE).unwrap_or_default();
            Complex { re: <$real>::get(re), im: <$real>::get(im) }
        }

        #[inline]
        fn put(self, bytes: &mut [u8]) {
            let (re, im) = bytes.split_at_mut(<$real>::SIZE);
            self.re.put(re);
            self.im.put(im);
        }

        #[inline]
        fn combine(op: ElementOp, target: Self, operand: Self, compare: Self) -> Self {
            combine(op, target, operand, compare)
        }
    };
}

impl Element for Complex<f32> {
    parts_of_complex!(f32);

    #[inline]
    fn execute(op: ElementOp, target: &Mem, operand: Self, compare: Self) -> Option<Self> {
        let into_word = |value: Self| {
            let mut bytes = [0; 8];
            value.put(&mut bytes);
            u64::from_ne_bytes(bytes)
        };
        execute_word::<Self, u64>(
            op,
            target,
            operand,
            compare,
            |word| Self::get(&word.to_ne_bytes()),
            into_word,
        )
    }
}

impl Element for Complex<f64> {
    parts_of_complex!(f64);
}

impl Element for Complex<LongDouble> {
    parts_of_complex!(LongDouble);
}

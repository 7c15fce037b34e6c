// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Atomic operations on `long double`. Its format depends on the platform's C compiler, so the
//! arithmetic is in C.

use super::element::{Element, ElementOp};
use super::float::{self, Real};
use libfabric_sys::LongDouble;
use std::cmp::Ordering;

impl Real for LongDouble {
    fn add(self, other: Self) -> Self {
        LongDouble::add(self, other)
    }

    fn sub(self, other: Self) -> Self {
        LongDouble::sub(self, other)
    }

    fn mul(self, other: Self) -> Self {
        LongDouble::mul(self, other)
    }

    fn order(self, other: Self) -> Option<Ordering> {
        LongDouble::order(self, other)
    }

    fn is_true(self) -> bool {
        LongDouble::order(self, LongDouble::from_i64(0)) != Some(Ordering::Equal)
    }

    fn from_bool(value: bool) -> Self {
        LongDouble::from_i64(i64::from(value))
    }
}

impl Element for LongDouble {
    const SIZE: usize = size_of::<LongDouble>();

    fn get(bytes: &[u8]) -> Self {
        LongDouble::from_ne_bytes(bytes.try_into().unwrap_or_default())
    }

    fn put(self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.to_ne_bytes());
    }

    fn combine(op: ElementOp, target: Self, operand: Self, compare: Self) -> Self {
        float::combine(op, target, operand, compare)
    }
}

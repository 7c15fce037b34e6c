// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! C's `long double`, as bytes on which C code computes: Rust has no such type.
//!
//! The functions are in `longdouble.c`. They do not depend on libfabric, but this crate contains
//! all C code.

#![expect(unsafe_code, reason = "calls C functions")]

use std::cmp::Ordering;
use std::ffi::{c_int, c_longlong};

/// `long double` in memory: 16 bytes with the alignment of C, padding included. Every bit pattern
/// is allowed.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub struct LongDouble([u8; 16]);

unsafe extern "C" {
    fn scif_fi_long_double_add(out: *mut LongDouble, a: *const LongDouble, b: *const LongDouble);
    fn scif_fi_long_double_sub(out: *mut LongDouble, a: *const LongDouble, b: *const LongDouble);
    fn scif_fi_long_double_mul(out: *mut LongDouble, a: *const LongDouble, b: *const LongDouble);
    fn scif_fi_long_double_order(a: *const LongDouble, b: *const LongDouble) -> c_int;
    fn scif_fi_long_double_from_i64(out: *mut LongDouble, value: c_longlong);
}

#[expect(
    clippy::should_implement_trait,
    reason = "called by name from generic arithmetic, not as operators"
)]
impl LongDouble {
    /// Returns the value with the memory representation `bytes`.
    #[must_use]
    pub const fn from_ne_bytes(bytes: [u8; 16]) -> LongDouble {
        LongDouble(bytes)
    }

    /// Returns the memory representation, padding included.
    #[must_use]
    pub const fn to_ne_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Returns the value nearest to an integer.
    #[must_use]
    pub fn from_i64(value: i64) -> LongDouble {
        let mut out = LongDouble([0; 16]);
        // SAFETY: `out` has size and alignment of a long double (asserted in longdouble.c).
        unsafe { scif_fi_long_double_from_i64(&raw mut out, value) };
        out
    }

    /// Returns the sum.
    #[must_use]
    pub fn add(self, other: LongDouble) -> LongDouble {
        let mut out = LongDouble([0; 16]);
        // SAFETY: the three have size and alignment of a long double (asserted in longdouble.c).
        unsafe { scif_fi_long_double_add(&raw mut out, &raw const self, &raw const other) };
        out
    }

    /// Returns the difference.
    #[must_use]
    pub fn sub(self, other: LongDouble) -> LongDouble {
        let mut out = LongDouble([0; 16]);
        // SAFETY: the three have size and alignment of a long double (asserted in longdouble.c).
        unsafe { scif_fi_long_double_sub(&raw mut out, &raw const self, &raw const other) };
        out
    }

    /// Returns the product.
    #[must_use]
    pub fn mul(self, other: LongDouble) -> LongDouble {
        let mut out = LongDouble([0; 16]);
        // SAFETY: the three have size and alignment of a long double (asserted in longdouble.c).
        unsafe { scif_fi_long_double_mul(&raw mut out, &raw const self, &raw const other) };
        out
    }

    /// Compares the values; `None` when either is not a number.
    #[must_use]
    pub fn order(self, other: LongDouble) -> Option<Ordering> {
        // SAFETY: both have size and alignment of a long double (asserted in longdouble.c).
        match unsafe { scif_fi_long_double_order(&raw const self, &raw const other) } {
            -1 => Some(Ordering::Less),
            0 => Some(Ordering::Equal),
            1 => Some(Ordering::Greater),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LongDouble;
    use std::cmp::Ordering;

    #[test]
    fn computes_like_integers() {
        let (seven, minus_three) = (LongDouble::from_i64(7), LongDouble::from_i64(-3));
        let equals =
            |a: LongDouble, b: i64| a.order(LongDouble::from_i64(b)) == Some(Ordering::Equal);
        assert!(equals(seven.add(minus_three), 4));
        assert!(equals(seven.sub(minus_three), 10));
        assert!(equals(seven.mul(minus_three), -21));
        assert_eq!(minus_three.order(seven), Some(Ordering::Less));
        assert_eq!(seven.order(minus_three), Some(Ordering::Greater));
    }

    #[test]
    fn keeps_bits_that_a_double_would_lose() {
        let big = LongDouble::from_i64(i64::MAX);
        assert_eq!(big.sub(LongDouble::from_i64(1)).order(big), Some(Ordering::Less));
    }

    #[test]
    fn padding_of_results_is_zero() {
        let sum = LongDouble::from_i64(1).add(LongDouble::from_i64(2));
        assert_eq!(sum.to_ne_bytes(), LongDouble::from_i64(3).to_ne_bytes());
    }
}

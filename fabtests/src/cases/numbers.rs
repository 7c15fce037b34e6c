// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Expected results of atomic operations, computed from fi_atomic(3): one element of any datatype
//! as bytes.
//!
//! Values are small integers, so that every floating-point type represents them and their sums and
//! products exactly.

use libfabric_sys as sys;
use scif_fabtests::fi::AtomicKind;

/// Every datatype of libfabric 1.17: number, name, bytes.
pub(crate) const TYPES: &[(u32, &str, usize)] = &[
    (sys::FI_INT8, "int8", 1),
    (sys::FI_UINT8, "uint8", 1),
    (sys::FI_INT16, "int16", 2),
    (sys::FI_UINT16, "uint16", 2),
    (sys::FI_INT32, "int32", 4),
    (sys::FI_UINT32, "uint32", 4),
    (sys::FI_INT64, "int64", 8),
    (sys::FI_UINT64, "uint64", 8),
    (sys::FI_FLOAT, "float", 4),
    (sys::FI_DOUBLE, "double", 8),
    (sys::FI_FLOAT_COMPLEX, "float complex", 8),
    (sys::FI_DOUBLE_COMPLEX, "double complex", 16),
    (sys::FI_LONG_DOUBLE, "long double", 16),
    (sys::FI_LONG_DOUBLE_COMPLEX, "long double complex", 32),
    (sys::FI_INT128, "int128", 16),
    (sys::FI_UINT128, "uint128", 16),
];

/// Every operation of libfabric 1.17; `FI_DIFF` exists since 2.0.
pub(crate) const OPS: &[(u32, &str)] = &[
    (sys::FI_MIN, "min"),
    (sys::FI_MAX, "max"),
    (sys::FI_SUM, "sum"),
    (sys::FI_PROD, "prod"),
    (sys::FI_LOR, "lor"),
    (sys::FI_LAND, "land"),
    (sys::FI_BOR, "bor"),
    (sys::FI_BAND, "band"),
    (sys::FI_LXOR, "lxor"),
    (sys::FI_BXOR, "bxor"),
    (sys::FI_ATOMIC_READ, "read"),
    (sys::FI_ATOMIC_WRITE, "write"),
    (sys::FI_CSWAP, "cswap"),
    (sys::FI_CSWAP_NE, "cswap_ne"),
    (sys::FI_CSWAP_LE, "cswap_le"),
    (sys::FI_CSWAP_LT, "cswap_lt"),
    (sys::FI_CSWAP_GE, "cswap_ge"),
    (sys::FI_CSWAP_GT, "cswap_gt"),
    (sys::FI_MSWAP, "mswap"),
];

fn is_complex(datatype: u32) -> bool {
    matches!(datatype, sys::FI_FLOAT_COMPLEX | sys::FI_DOUBLE_COMPLEX | sys::FI_LONG_DOUBLE_COMPLEX)
}

fn is_real(datatype: u32) -> bool {
    matches!(datatype, sys::FI_FLOAT | sys::FI_DOUBLE | sys::FI_LONG_DOUBLE)
}

/// Whether fi_atomic(3) defines this operation on this type in this family of calls.
pub(crate) fn defined(kind: AtomicKind, op: u32, datatype: u32) -> bool {
    let bitwise = matches!(op, sys::FI_BOR | sys::FI_BAND | sys::FI_BXOR | sys::FI_MSWAP);
    let ordered = matches!(
        op,
        sys::FI_MIN
            | sys::FI_MAX
            | sys::FI_CSWAP_LE
            | sys::FI_CSWAP_LT
            | sys::FI_CSWAP_GE
            | sys::FI_CSWAP_GT
    );
    let family = match kind {
        AtomicKind::Write => {
            op <= sys::FI_BXOR || matches!(op, sys::FI_ATOMIC_WRITE | sys::FI_DIFF)
        }
        AtomicKind::Fetch => op <= sys::FI_ATOMIC_WRITE || op == sys::FI_DIFF,
        AtomicKind::Compare => (sys::FI_CSWAP..=sys::FI_MSWAP).contains(&op),
    };
    family
        && !(bitwise && (is_complex(datatype) || is_real(datatype)))
        && !(ordered && is_complex(datatype))
}

/// Encodes an integer as an element. The imaginary part of a complex one is the integer plus one.
pub(crate) fn encode(datatype: u32, value: i8) -> Vec<u8> {
    let whole = i128::from(value);
    match datatype {
        sys::FI_FLOAT => f32::from(value).to_le_bytes().to_vec(),
        sys::FI_DOUBLE => f64::from(value).to_le_bytes().to_vec(),
        sys::FI_LONG_DOUBLE => extended(f64::from(value)),
        sys::FI_FLOAT_COMPLEX => {
            [f32::from(value), f32::from(value) + 1.0].map(f32::to_le_bytes).concat()
        }
        sys::FI_DOUBLE_COMPLEX => {
            [f64::from(value), f64::from(value) + 1.0].map(f64::to_le_bytes).concat()
        }
        sys::FI_LONG_DOUBLE_COMPLEX => {
            [extended(f64::from(value)), extended(f64::from(value) + 1.0)].concat()
        }
        _ => {
            let mut bytes = whole.to_le_bytes().to_vec();
            bytes.truncate(size(datatype));
            bytes
        }
    }
}

/// Bytes of an element.
pub(crate) fn size(datatype: u32) -> usize {
    TYPES.iter().find(|(number, ..)| *number == datatype).map_or(0, |(.., size)| *size)
}

/// Returns the value of the target after the operation.
pub(crate) fn after(
    op: u32,
    datatype: u32,
    target: &[u8],
    operand: &[u8],
    compare: &[u8],
) -> Vec<u8> {
    match datatype {
        sys::FI_FLOAT | sys::FI_DOUBLE | sys::FI_LONG_DOUBLE => {
            let value = real(
                op,
                decode(datatype, target),
                decode(datatype, operand),
                decode(datatype, compare),
            );
            match datatype {
                // Sums and products of small integers are exact in every type.
                #[expect(clippy::cast_possible_truncation, reason = "a small whole number")]
                sys::FI_FLOAT => (value as f32).to_le_bytes().to_vec(),
                sys::FI_DOUBLE => value.to_le_bytes().to_vec(),
                _ => extended(value),
            }
        }
        sys::FI_FLOAT_COMPLEX | sys::FI_DOUBLE_COMPLEX | sys::FI_LONG_DOUBLE_COMPLEX => {
            complex(op, datatype, target, operand, compare)
        }
        _ => {
            let signed = matches!(
                datatype,
                sys::FI_INT8 | sys::FI_INT16 | sys::FI_INT32 | sys::FI_INT64 | sys::FI_INT128
            );
            let value = if signed {
                let wide = |bytes| i128::of(extend(bytes, true));
                whole(op, wide(target), wide(operand), wide(compare)).bits()
            } else {
                let wide = |bytes| extend(bytes, false);
                whole(op, wide(target), wide(operand), wide(compare))
            };
            let mut bytes = value.to_le_bytes().to_vec();
            bytes.truncate(target.len());
            bytes
        }
    }
}

fn extend(bytes: &[u8], signed: bool) -> u128 {
    let negative = signed && bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut wide = [if negative { 0xff } else { 0 }; 16];
    for (to, from) in wide.iter_mut().zip(bytes) {
        *to = *from;
    }
    u128::from_le_bytes(wide)
}

/// Executes an operation of ordered numbers; `truth` converts to 0 or 1.
fn ordered<T: PartialOrd + Copy>(
    op: u32,
    t: T,
    o: T,
    c: T,
    zero: T,
    truth: impl Fn(bool) -> T,
) -> Option<T> {
    let swap = |condition: bool| Some(if condition { o } else { t });
    match op {
        sys::FI_MIN => swap(o < t),
        sys::FI_MAX => swap(o > t),
        sys::FI_LOR => Some(truth(t != zero || o != zero)),
        sys::FI_LAND => Some(truth(t != zero && o != zero)),
        sys::FI_LXOR => Some(truth((t != zero) != (o != zero))),
        sys::FI_ATOMIC_READ => Some(t),
        sys::FI_ATOMIC_WRITE => Some(o),
        sys::FI_CSWAP => swap(c == t),
        sys::FI_CSWAP_NE => swap(c != t),
        sys::FI_CSWAP_LE => swap(c <= t),
        sys::FI_CSWAP_LT => swap(c < t),
        sys::FI_CSWAP_GE => swap(c >= t),
        sys::FI_CSWAP_GT => swap(c > t),
        _ => None,
    }
}

trait Whole: Copy + PartialOrd + From<bool> {
    fn sum(self, other: Self) -> Self;
    fn difference(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn bits(self) -> u128;
    fn of(bits: u128) -> Self;
}

impl Whole for i128 {
    fn sum(self, other: i128) -> i128 {
        self.wrapping_add(other)
    }
    fn difference(self, other: i128) -> i128 {
        self.wrapping_sub(other)
    }
    fn product(self, other: i128) -> i128 {
        self.wrapping_mul(other)
    }
    fn bits(self) -> u128 {
        u128::from_ne_bytes(self.to_ne_bytes())
    }
    fn of(bits: u128) -> i128 {
        bits as i128
    }
}

impl Whole for u128 {
    fn sum(self, other: u128) -> u128 {
        self.wrapping_add(other)
    }
    fn difference(self, other: u128) -> u128 {
        self.wrapping_sub(other)
    }
    fn product(self, other: u128) -> u128 {
        self.wrapping_mul(other)
    }
    fn bits(self) -> u128 {
        self
    }
    fn of(bits: u128) -> u128 {
        bits
    }
}

fn whole<T: Whole>(op: u32, t: T, o: T, c: T) -> T {
    match op {
        sys::FI_SUM => t.sum(o),
        sys::FI_DIFF => t.difference(o),
        sys::FI_PROD => t.product(o),
        sys::FI_BOR => T::of(t.bits() | o.bits()),
        sys::FI_BAND => T::of(t.bits() & o.bits()),
        sys::FI_BXOR => T::of(t.bits() ^ o.bits()),
        sys::FI_MSWAP => T::of((o.bits() & c.bits()) | (t.bits() & !c.bits())),
        _ => ordered(op, t, o, c, T::from(false), T::from).unwrap_or(t),
    }
}

fn real(op: u32, t: f64, o: f64, c: f64) -> f64 {
    match op {
        sys::FI_SUM => t + o,
        sys::FI_DIFF => t - o,
        sys::FI_PROD => t * o,
        _ => ordered(op, t, o, c, 0.0, |truth| if truth { 1.0 } else { 0.0 }).unwrap_or(t),
    }
}

fn complex(op: u32, datatype: u32, target: &[u8], operand: &[u8], compare: &[u8]) -> Vec<u8> {
    let part = match datatype {
        sys::FI_FLOAT_COMPLEX => sys::FI_FLOAT,
        sys::FI_DOUBLE_COMPLEX => sys::FI_DOUBLE,
        _ => sys::FI_LONG_DOUBLE,
    };
    let split = |bytes: &[u8]| {
        let (re, im) = bytes.split_at(bytes.len() / 2);
        (decode(part, re), decode(part, im))
    };
    let (t, o, c) = (split(target), split(operand), split(compare));
    let truth = |yes: bool| (if yes { 1.0 } else { 0.0 }, 0.0);
    let some = |value: (f64, f64)| value != (0.0, 0.0);
    let (re, im) = match op {
        sys::FI_SUM => (t.0 + o.0, t.1 + o.1),
        sys::FI_DIFF => (t.0 - o.0, t.1 - o.1),
        sys::FI_PROD => (t.0 * o.0 - t.1 * o.1, t.0 * o.1 + t.1 * o.0),
        sys::FI_LOR => truth(some(t) || some(o)),
        sys::FI_LAND => truth(some(t) && some(o)),
        sys::FI_LXOR => truth(some(t) != some(o)),
        sys::FI_ATOMIC_WRITE => o,
        sys::FI_CSWAP if c == t => o,
        sys::FI_CSWAP_NE if c != t => o,
        _ => t,
    };
    #[expect(clippy::cast_possible_truncation, reason = "a small whole number")]
    match part {
        sys::FI_FLOAT => [re as f32, im as f32].map(f32::to_le_bytes).concat(),
        sys::FI_DOUBLE => [re, im].map(f64::to_le_bytes).concat(),
        _ => [extended(re), extended(im)].concat(),
    }
}

fn decode(datatype: u32, bytes: &[u8]) -> f64 {
    match datatype {
        sys::FI_FLOAT => bytes.try_into().map_or(0.0, |b| f64::from(f32::from_le_bytes(b))),
        sys::FI_DOUBLE => bytes.try_into().map_or(0.0, f64::from_le_bytes),
        _ => from_extended(bytes),
    }
}

/// Difference of the exponents of `long double` and `f64`.
const EXPONENT_OFFSET: u16 = 16_383 - 1023;

/// Returns a number as the `long double` of the x87: 80 bits, padded to 16 bytes.
#[cfg(target_arch = "x86_64")]
fn extended(value: f64) -> Vec<u8> {
    let (sign, exponent, fraction) = parts(value);
    // The leading 1 is stored, except that of zero.
    let mantissa = if exponent == 0 { 0 } else { (1 << 63) | (fraction << 11) };
    let mut bytes = mantissa.to_le_bytes().to_vec();
    bytes.extend((sign << 15 | exponent).to_le_bytes());
    bytes.resize(16, 0);
    bytes
}

#[cfg(target_arch = "x86_64")]
fn from_extended(bytes: &[u8]) -> f64 {
    let mantissa = bytes.get(..8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    let top = bytes.get(8..10).and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes);
    if mantissa == 0 { 0.0 } else { joined(top, mantissa >> 11 & FRACTION) }
}

/// Returns a number as the `long double` of other machines: binary128 of IEEE 754.
#[cfg(not(target_arch = "x86_64"))]
fn extended(value: f64) -> Vec<u8> {
    let (sign, exponent, fraction) = parts(value);
    (u128::from(sign << 15 | exponent) << 112 | u128::from(fraction) << 60).to_le_bytes().to_vec()
}

#[cfg(not(target_arch = "x86_64"))]
fn from_extended(bytes: &[u8]) -> f64 {
    let bits = bytes.try_into().map_or(0, u128::from_le_bytes);
    #[expect(clippy::cast_possible_truncation, reason = "16 and 52 bits are left")]
    let (top, fraction) = ((bits >> 112) as u16, (bits >> 60) as u64 & FRACTION);
    if bits << 1 == 0 { 0.0 } else { joined(top, fraction) }
}

/// Bits of the fraction of an `f64`.
const FRACTION: u64 = (1 << 52) - 1;

/// Returns sign, exponent of a `long double`, and fraction of a number that is zero or normal.
fn parts(value: f64) -> (u16, u16, u64) {
    let bits = value.to_bits();
    let exponent = u16::try_from(bits >> 52 & 0x7ff).unwrap_or(0);
    let exponent = if exponent == 0 { 0 } else { exponent + EXPONENT_OFFSET };
    (u16::from(bits >> 63 != 0), exponent, bits & FRACTION)
}

/// Returns the number of these bits: sign and exponent of a `long double`, and the fraction.
fn joined(top: u16, fraction: u64) -> f64 {
    let exponent = u64::from((top & 0x7fff) - EXPONENT_OFFSET);
    f64::from_bits(u64::from(top >> 15) << 63 | exponent << 52 | fraction)
}

/// Whether two elements have the same value; padding of the x87's format is ignored.
pub(crate) fn same(datatype: u32, a: &[u8], b: &[u8]) -> bool {
    match datatype {
        sys::FI_LONG_DOUBLE | sys::FI_LONG_DOUBLE_COMPLEX => {
            a.len() == b.len()
                && a.chunks(16).zip(b.chunks(16)).all(|(a, b)| {
                    let (a, b) = (from_extended(a), from_extended(b));
                    a.to_bits() == b.to_bits() || (a == 0.0 && b == 0.0)
                })
        }
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_numbers_round_trip() {
        for value in [0.0, 1.0, -1.0, 2.0, 3.5, -117.0, 1e6] {
            assert_eq!(from_extended(&extended(value)), value);
        }
        // 1.0 is 3fff and, where it is stored, the leading 1 of the fraction.
        let one = extended(1.0);
        if cfg!(target_arch = "x86_64") {
            assert_eq!(one[..10], [0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f]);
        } else {
            assert_eq!(one[14..], [0xff, 0x3f]);
            assert_eq!(one[..14], [0; 14]);
        }
    }

    #[test]
    fn operations_follow_the_manual() {
        let e = |v| encode(sys::FI_INT16, v);
        let run = |op, t, o, c| after(op, sys::FI_INT16, &e(t), &e(o), &e(c));
        assert_eq!(run(sys::FI_SUM, 5, -7, 0), e(-2));
        assert_eq!(run(sys::FI_DIFF, 5, 7, 0), e(-2));
        assert_eq!(run(sys::FI_MIN, 5, -7, 0), e(-7));
        assert_eq!(run(sys::FI_CSWAP_LT, 5, 9, 4), e(9));
        assert_eq!(run(sys::FI_CSWAP_LT, 5, 9, 5), e(5));
        assert_eq!(run(sys::FI_MSWAP, 0b1100, 0b0011, 0b0110), e(0b1010));
        let f = |v| encode(sys::FI_FLOAT_COMPLEX, v);
        // (1+2i)(2+3i) = -4+7i
        let product = after(sys::FI_PROD, sys::FI_FLOAT_COMPLEX, &f(1), &f(2), &f(0));
        assert_eq!(product, [-4.0_f32, 7.0].map(f32::to_le_bytes).concat());
    }
}

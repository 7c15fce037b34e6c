// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests of every operation on every datatype against a model without shared code.
//!
//! In the model, integers are bit patterns of 128 bits with a width and a sign, and floating point
//! numbers are pairs of small integers.

#![expect(unsafe_code, reason = "names test buffers as memory")]

use super::*;
use libfabric_sys as fi;
use std::cmp::Ordering;
use std::sync::Arc;

/// Structure of a datatype's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Integer { bits: u32, signed: bool },
    Real,
    Complex,
}

/// Number, size and family of the datatypes; the size of an element is its size in C.
const TYPES: [(u32, usize, Family); 16] = [
    (fi::FI_INT8, 1, Family::Integer { bits: 8, signed: true }),
    (fi::FI_UINT8, 1, Family::Integer { bits: 8, signed: false }),
    (fi::FI_INT16, 2, Family::Integer { bits: 16, signed: true }),
    (fi::FI_UINT16, 2, Family::Integer { bits: 16, signed: false }),
    (fi::FI_INT32, 4, Family::Integer { bits: 32, signed: true }),
    (fi::FI_UINT32, 4, Family::Integer { bits: 32, signed: false }),
    (fi::FI_INT64, 8, Family::Integer { bits: 64, signed: true }),
    (fi::FI_UINT64, 8, Family::Integer { bits: 64, signed: false }),
    (fi::FI_FLOAT, 4, Family::Real),
    (fi::FI_DOUBLE, 8, Family::Real),
    (fi::FI_FLOAT_COMPLEX, 8, Family::Complex),
    (fi::FI_DOUBLE_COMPLEX, 16, Family::Complex),
    (fi::FI_LONG_DOUBLE, 16, Family::Real),
    (fi::FI_LONG_DOUBLE_COMPLEX, 32, Family::Complex),
    (fi::FI_INT128, 16, Family::Integer { bits: 128, signed: true }),
    (fi::FI_UINT128, 16, Family::Integer { bits: 128, signed: false }),
];

const WRITE_OPS: [u32; 12] = [
    fi::FI_MIN,
    fi::FI_MAX,
    fi::FI_SUM,
    fi::FI_PROD,
    fi::FI_LOR,
    fi::FI_LAND,
    fi::FI_BOR,
    fi::FI_BAND,
    fi::FI_LXOR,
    fi::FI_BXOR,
    fi::FI_ATOMIC_WRITE,
    fi::FI_DIFF,
];
const SWAP_OPS: [u32; 7] = [
    fi::FI_CSWAP,
    fi::FI_CSWAP_NE,
    fi::FI_CSWAP_LE,
    fi::FI_CSWAP_LT,
    fi::FI_CSWAP_GE,
    fi::FI_CSWAP_GT,
    fi::FI_MSWAP,
];
const BIT_OPS: [u32; 4] = [fi::FI_BOR, fi::FI_BAND, fi::FI_BXOR, fi::FI_MSWAP];
const ORDER_OPS: [u32; 6] =
    [fi::FI_MIN, fi::FI_MAX, fi::FI_CSWAP_LE, fi::FI_CSWAP_LT, fi::FI_CSWAP_GE, fi::FI_CSWAP_GT];

fn all_ops() -> impl Iterator<Item = u32> {
    WRITE_OPS.into_iter().chain(SWAP_OPS).chain([fi::FI_ATOMIC_READ])
}

fn defined(op: u32, family: Family) -> bool {
    match family {
        Family::Integer { .. } => true,
        Family::Real => !BIT_OPS.contains(&op),
        Family::Complex => !BIT_OPS.contains(&op) && !ORDER_OPS.contains(&op),
    }
}

/// Value of the model: a bit pattern, or a real and an imaginary part.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Bits(u128),
    Number(i64, i64),
}

fn samples(family: Family) -> Vec<Value> {
    match family {
        Family::Integer { bits, .. } => {
            let mask = u128::MAX >> (128 - bits);
            let top = 1u128 << (bits - 1);
            [0, 1, 2, 0x55, top - 1, top, top + 1, mask - 1, mask]
                .map(|v| Value::Bits(v & mask))
                .to_vec()
        }
        Family::Real => [0, 1, -2, 3, 7, -5].map(|v| Value::Number(v, 0)).to_vec(),
        Family::Complex => [(0, 0), (1, 0), (0, 1), (-2, 3), (7, -5), (-2, -3)]
            .map(|(re, im)| Value::Number(re, im))
            .to_vec(),
    }
}

fn encode(datatype: u32, value: Value) -> Vec<u8> {
    let (_, size, _) = TYPES[datatype as usize];
    match (datatype, value) {
        (_, Value::Bits(bits)) => bits.to_le_bytes()[..size].to_vec(),
        (fi::FI_FLOAT, Value::Number(re, _)) => (re as f32).to_ne_bytes().to_vec(),
        (fi::FI_DOUBLE, Value::Number(re, _)) => (re as f64).to_ne_bytes().to_vec(),
        (fi::FI_LONG_DOUBLE, Value::Number(re, _)) => {
            LongDouble::from_i64(re).to_ne_bytes().to_vec()
        }
        (fi::FI_FLOAT_COMPLEX, Value::Number(re, im)) => {
            [encode(fi::FI_FLOAT, Value::Number(re, 0)), encode(fi::FI_FLOAT, Value::Number(im, 0))]
                .concat()
        }
        (fi::FI_DOUBLE_COMPLEX, Value::Number(re, im)) => [
            encode(fi::FI_DOUBLE, Value::Number(re, 0)),
            encode(fi::FI_DOUBLE, Value::Number(im, 0)),
        ]
        .concat(),
        (_, Value::Number(re, im)) => {
            [re, im].map(|v| encode(fi::FI_LONG_DOUBLE, Value::Number(v, 0))).concat()
        }
    }
}

fn model(op: u32, family: Family, target: Value, operand: Value, compare: Value) -> Value {
    match (family, target, operand, compare) {
        (Family::Integer { bits, signed }, Value::Bits(t), Value::Bits(o), Value::Bits(c)) => {
            Value::Bits(model_bits(op, bits, signed, t, o, c))
        }
        (_, Value::Number(..), Value::Number(..), Value::Number(..)) => {
            model_number(op, target, operand, compare)
        }
        other => panic!("{other:?}"),
    }
}

fn model_bits(op: u32, bits: u32, signed: bool, t: u128, o: u128, c: u128) -> u128 {
    let mask = u128::MAX >> (128 - bits);
    // Flipping the sign bit turns the order of signed numbers into that of unsigned ones.
    let key = |v: u128| if signed { v ^ (1 << (bits - 1)) } else { v };
    let order = key(c).cmp(&key(t));
    let pick = |swap: bool| if swap { o } else { t };
    let result = match op {
        fi::FI_MIN => pick(key(o) < key(t)),
        fi::FI_MAX => pick(key(o) > key(t)),
        fi::FI_SUM => t.wrapping_add(o),
        fi::FI_DIFF => t.wrapping_add((!o).wrapping_add(1)),
        fi::FI_PROD => t.wrapping_mul(o),
        fi::FI_LOR => u128::from(t != 0 || o != 0),
        fi::FI_LAND => u128::from(t != 0 && o != 0),
        fi::FI_LXOR => u128::from((t == 0) ^ (o == 0)),
        fi::FI_BOR => t | o,
        fi::FI_BAND => t & o,
        fi::FI_BXOR => t ^ o,
        fi::FI_ATOMIC_READ => t,
        fi::FI_ATOMIC_WRITE => o,
        fi::FI_CSWAP => pick(order == Ordering::Equal),
        fi::FI_CSWAP_NE => pick(order != Ordering::Equal),
        fi::FI_CSWAP_LE => pick(order != Ordering::Greater),
        fi::FI_CSWAP_LT => pick(order == Ordering::Less),
        fi::FI_CSWAP_GE => pick(order != Ordering::Less),
        fi::FI_CSWAP_GT => pick(order == Ordering::Greater),
        fi::FI_MSWAP => (o & c) | (t & !c),
        other => panic!("{other}"),
    };
    result & mask
}

fn model_number(op: u32, target: Value, operand: Value, compare: Value) -> Value {
    let parts = |v| match v {
        Value::Number(re, im) => (re, im),
        Value::Bits(_) => panic!("{v:?}"),
    };
    let ((tr, ti), (or, oi), (cr, ci)) = (parts(target), parts(operand), parts(compare));
    let truth = |v: bool| Value::Number(i64::from(v), 0);
    let (t, o) = ((tr, ti) != (0, 0), (or, oi) != (0, 0));
    let pick = |swap: bool| if swap { operand } else { target };
    let equal = (cr, ci) == (tr, ti);
    match op {
        fi::FI_MIN => pick(or < tr),
        fi::FI_MAX => pick(or > tr),
        fi::FI_SUM => Value::Number(tr + or, ti + oi),
        fi::FI_DIFF => Value::Number(tr - or, ti - oi),
        fi::FI_PROD => Value::Number(tr * or - ti * oi, tr * oi + ti * or),
        fi::FI_LOR => truth(t || o),
        fi::FI_LAND => truth(t && o),
        fi::FI_LXOR => truth(t ^ o),
        fi::FI_ATOMIC_READ => target,
        fi::FI_ATOMIC_WRITE => operand,
        fi::FI_CSWAP => pick(equal),
        fi::FI_CSWAP_NE => pick(!equal),
        fi::FI_CSWAP_LE => pick(cr <= tr),
        fi::FI_CSWAP_LT => pick(cr < tr),
        fi::FI_CSWAP_GE => pick(cr >= tr),
        fi::FI_CSWAP_GT => pick(cr > tr),
        other => panic!("{other}"),
    }
}

/// Memory at an address that is `skew` more than a multiple of 64, with a guard byte on either
/// side.
struct Arena {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Arena {
    const GUARD: u8 = 0xa5;

    fn new(content: &[u8], skew: usize) -> Arena {
        let mut bytes = vec![Arena::GUARD; content.len() + 256];
        let start = bytes.as_ptr().align_offset(64) + 64 + skew;
        bytes[start..start + content.len()].copy_from_slice(content);
        Arena { bytes, start, len: content.len() }
    }

    fn mem(&mut self) -> Mem {
        // SAFETY: inside `bytes`, which outlives the use of the Mem in these tests.
        unsafe { Mem::new(self.bytes[self.start..].as_mut_ptr(), self.len) }
    }

    fn content(&self) -> &[u8] {
        assert_eq!(self.bytes[self.start - 1], Arena::GUARD);
        assert_eq!(self.bytes[self.start + self.len], Arena::GUARD);
        &self.bytes[self.start..self.start + self.len]
    }
}

/// Compares results. Zero of either sign is the same number, and C does not define the sign of a
/// computed zero.
fn same(datatype: u32, a: &[u8], b: &[u8]) -> bool {
    let real = |size: usize, is_equal: fn(&[u8], &[u8]) -> bool| {
        a.chunks(size).zip(b.chunks(size)).all(|(a, b)| is_equal(a, b))
    };
    match datatype {
        fi::FI_FLOAT | fi::FI_FLOAT_COMPLEX => real(4, |a, b| f32::get(a) == f32::get(b)),
        fi::FI_DOUBLE | fi::FI_DOUBLE_COMPLEX => real(8, |a, b| f64::get(a) == f64::get(b)),
        fi::FI_LONG_DOUBLE | fi::FI_LONG_DOUBLE_COMPLEX => {
            real(16, |a, b| LongDouble::get(a).order(LongDouble::get(b)) == Some(Ordering::Equal))
        }
        _ => a == b,
    }
}

#[test]
fn every_operation_on_every_type_matches_the_model() {
    let mut cases = 0;
    for (datatype, size, family) in TYPES {
        let values = samples(family);
        let pairs = || values.iter().enumerate().flat_map(|o| values.iter().map(move |c| (o, c)));
        for op in all_ops().filter(|op| defined(*op, family)) {
            for ((at, operand), compare) in pairs() {
                // Several elements with different operands per call.
                let operands: Vec<Value> =
                    values.iter().cycle().skip(at).take(values.len()).copied().collect();
                let bytes =
                    |v: &[Value]| v.iter().flat_map(|v| encode(datatype, *v)).collect::<Vec<u8>>();
                let expected: Vec<Value> = values
                    .iter()
                    .zip(&operands)
                    .map(|(t, o)| model(op, family, *t, *o, *compare))
                    .collect();
                assert_eq!(operands[0], *operand);
                let compares = vec![*compare; values.len()];
                for skew in [0, 1] {
                    let mut target = Arena::new(&bytes(&values), skew);
                    let mut result = vec![0; size * values.len()];
                    let mem = target.mem();
                    apply(op, datatype, &mem, &bytes(&operands), &bytes(&compares), &mut result)
                        .unwrap();
                    let name = format!(
                        "op {op} type {datatype} operands {operands:?} compare {compare:?}"
                    );
                    assert!(
                        same(datatype, target.content(), &bytes(&expected)),
                        "{name} skew {skew}"
                    );
                    assert!(
                        same(datatype, &result, &bytes(&values)),
                        "{name} skew {skew}: old values"
                    );
                    cases += 1;
                }
            }
        }
    }
    assert_eq!(cases, 10 * 20 * 2 * 81 + 3 * 16 * 2 * 36 + 3 * 10 * 2 * 36);
}

#[test]
fn the_valid_combinations_are_those_of_the_man_page() {
    for (datatype, size, family) in TYPES {
        assert_eq!(size_of(datatype), Some(size));
        for op in all_ops() {
            let write = WRITE_OPS.contains(&op);
            let swap = SWAP_OPS.contains(&op);
            let read = op == fi::FI_ATOMIC_READ;
            let defined = defined(op, family);
            assert_eq!(
                valid(op, datatype, AtomicKind::Write),
                defined && write,
                "write {op} {datatype}"
            );
            assert_eq!(
                valid(op, datatype, AtomicKind::Fetch),
                defined && (write || read),
                "fetch {op} {datatype}"
            );
            assert_eq!(
                valid(op, datatype, AtomicKind::Compare),
                defined && swap,
                "compare {op} {datatype}"
            );
            if !defined {
                let mut target = Arena::new(&vec![0; size], 0);
                let zeros = vec![0; size];
                let mem = target.mem();
                assert_eq!(
                    apply(op, datatype, &mem, &zeros, &zeros, &mut []),
                    Err(fi::FI_EOPNOTSUPP)
                );
            }
        }
    }
}

#[test]
fn unknown_types_and_operations_are_not_supported() {
    for datatype in [
        fi::FI_FLOAT16,
        fi::FI_BFLOAT16,
        fi::FI_FLOAT8_E4M3,
        fi::FI_FLOAT8_E5M2,
        fi::FI_VOID,
        u32::MAX,
    ] {
        assert_eq!(size_of(datatype), None);
        assert!(!valid(fi::FI_SUM, datatype, AtomicKind::Write));
        assert_eq!(query(datatype, fi::FI_SUM, 0), Err(fi::FI_EOPNOTSUPP));
    }
    for op in [fi::FI_NOOP, fi::FI_DIFF + 1, u32::MAX] {
        for kind in [AtomicKind::Write, AtomicKind::Fetch, AtomicKind::Compare] {
            assert!(!valid(op, fi::FI_INT32, kind));
        }
    }
}

#[test]
fn queries_return_sizes_counts_and_invalid_flags() {
    assert_eq!(query(fi::FI_UINT64, fi::FI_SUM, 0), Ok((8, MAX_ATOMIC_BYTES / 8)));
    assert_eq!(query(fi::FI_UINT64, fi::FI_ATOMIC_READ, 0), Err(fi::FI_EOPNOTSUPP));
    assert_eq!(query(fi::FI_UINT64, fi::FI_ATOMIC_READ, fi::FI_FETCH_ATOMIC), Ok((8, 512)));
    assert_eq!(query(fi::FI_INT128, fi::FI_CSWAP, fi::FI_COMPARE_ATOMIC), Ok((16, 256)));
    assert_eq!(query(fi::FI_INT128, fi::FI_CSWAP, fi::FI_FETCH_ATOMIC), Err(fi::FI_EOPNOTSUPP));
    let both = fi::FI_FETCH_ATOMIC | fi::FI_COMPARE_ATOMIC;
    assert_eq!(query(fi::FI_UINT64, fi::FI_SUM, both), Err(fi::FI_EBADFLAGS));
    assert_eq!(query(fi::FI_UINT64, fi::FI_SUM, fi::FI_INJECT), Err(fi::FI_EBADFLAGS));
}

#[test]
fn lengths_that_do_not_agree_are_refused() {
    let mut target = Arena::new(&[0; 12], 0);
    let mem = target.mem();
    let (op, eight) = (fi::FI_SUM, [1; 8]);
    assert_eq!(
        apply(op, fi::FI_INT64, &mem, &[1; 12], &[], &mut []),
        Err(fi::FI_EINVAL),
        "half an element"
    );
    assert_eq!(
        apply(op, fi::FI_INT32, &mem, &eight, &[], &mut []),
        Err(fi::FI_EINVAL),
        "short operand"
    );
    assert_eq!(
        apply(op, fi::FI_INT32, &mem, &[1; 12], &[], &mut [0; 8]),
        Err(fi::FI_EINVAL),
        "short result"
    );
    let cswap = fi::FI_CSWAP;
    assert_eq!(
        apply(cswap, fi::FI_INT32, &mem, &[1; 12], &eight, &mut []),
        Err(fi::FI_EINVAL),
        "short compare"
    );
    assert_eq!(target.content(), [0; 12]);
}

#[test]
fn reading_does_not_write() {
    static READ_ONLY: [u64; 8] = [0x0102_0304_0506_0708; 8];
    for (datatype, _, _) in TYPES {
        for skew in [0, 1] {
            let at = READ_ONLY.as_ptr().cast::<u8>().wrapping_add(skew).cast_mut();
            // SAFETY: inside READ_ONLY; only read, as this test checks.
            let mem = unsafe { Mem::new(at, 32) };
            let mut result = [0; 32];
            apply(fi::FI_ATOMIC_READ, datatype, &mem, &[], &[], &mut result).unwrap();
            let mut expected = [0; 32];
            mem.copy_to_slice(&mut expected);
            assert_eq!(result, expected);
        }
    }
}

#[test]
fn comparisons_with_nan_are_those_of_c() {
    let nan = f64::NAN.to_ne_bytes();
    let run = |op, target: f64, operand: &[u8], compare: &[u8]| {
        let mut arena = Arena::new(&target.to_ne_bytes(), 0);
        let mem = arena.mem();
        apply(op, fi::FI_DOUBLE, &mem, operand, compare, &mut []).unwrap();
        f64::get(arena.content())
    };
    let nine = 9f64.to_ne_bytes();
    assert!(run(fi::FI_MIN, 1.0, &nan, &[]) == 1.0 && run(fi::FI_MAX, 1.0, &nan, &[]) == 1.0);
    assert!(run(fi::FI_LAND, 1.0, &nan, &[]) == 1.0, "a NaN is true");
    assert!(run(fi::FI_CSWAP_NE, 1.0, &nine, &nan) == 9.0);
    for op in [fi::FI_CSWAP, fi::FI_CSWAP_LE, fi::FI_CSWAP_LT, fi::FI_CSWAP_GE, fi::FI_CSWAP_GT] {
        assert!(run(op, 1.0, &nine, &nan) == 1.0, "{op}");
    }
}

#[test]
fn no_update_is_lost() {
    const THREADS: i64 = 4;
    const ROUNDS: i64 = 5000;
    for (datatype, size, family) in TYPES.into_iter().filter(|(_, size, _)| *size >= 4) {
        for skew in [0, 1] {
            let one = if matches!(family, Family::Integer { .. }) {
                Value::Bits(1)
            } else {
                Value::Number(1, 0)
            };
            let operand = Arc::new(encode(datatype, one));
            let mut target = Arena::new(&vec![0; size], skew);
            let mem = target.mem();
            let threads: Vec<_> = (0..THREADS)
                .map(|_| {
                    let operand = Arc::clone(&operand);
                    let add = move |_| {
                        apply(fi::FI_SUM, datatype, &mem, &operand, &[], &mut []).unwrap();
                    };
                    std::thread::spawn(move || (0..ROUNDS).for_each(add))
                })
                .collect();
            threads.into_iter().for_each(|t| t.join().unwrap());
            let total = THREADS * ROUNDS;
            let sum = match family {
                Family::Integer { .. } => Value::Bits(total.unsigned_abs().into()),
                _ => Value::Number(total, 0),
            };
            assert!(
                same(datatype, target.content(), &encode(datatype, sum)),
                "type {datatype} skew {skew}"
            );
        }
    }
}

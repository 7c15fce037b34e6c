// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Effect of each atomic operation on each datatype, and the supported combinations.
//!
//! The file names the operations and datatypes of `rdma/fi_domain.h` and applies them to memory.
//! The code does not depend on endpoints, keys or completions. The arithmetic is in the files
//! beside it, one per family of types.
//!
//! # Invariants
//!
//! - An element of at most 8 bytes at a naturally aligned address is changed by one atomic
//!   instruction (or a compare-and-swap loop). Any number of executors, also in other processes,
//!   may work on it at once.
//! - All other elements are changed under one lock of this process and must only be executed by the
//!   process that owns the memory.
//! - `FI_ATOMIC_READ` never writes its target: the memory may be read-only.
//!
//! Mirrors `fi_atomic(3)`.

mod complex;
pub(crate) mod element;
mod float;
mod int;
mod long_double;
#[cfg(test)]
mod tests;

use crate::base::errno::Errno;
use libfabric_sys as fi;
use libfabric_sys::LongDouble;
use scif_ring::Mem;
use std::sync::{Mutex, PoisonError};

use element::{AtomicKind, Element, ElementOp};

/// Maximum number of bytes in each of operand, comparison and result of one operation. Longer ones
/// are refused.
pub(crate) const MAX_ATOMIC_BYTES: usize = 4096;

/// Lock for elements without a suitable atomic instruction.
static WIDE: Mutex<()> = Mutex::new(());

/// `enum fi_datatype` up to libfabric 1.17, in its order. The 8- and 16-bit floating point types
/// that were added later have no agreed arithmetic on CPUs and are not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DataType {
    Int8,
    Uint8,
    Int16,
    Uint16,
    Int32,
    Uint32,
    Int64,
    Uint64,
    Float,
    Double,
    FloatComplex,
    DoubleComplex,
    LongDouble,
    LongDoubleComplex,
    Int128,
    Uint128,
}

impl DataType {
    const ALL: [DataType; 16] = [
        DataType::Int8,
        DataType::Uint8,
        DataType::Int16,
        DataType::Uint16,
        DataType::Int32,
        DataType::Uint32,
        DataType::Int64,
        DataType::Uint64,
        DataType::Float,
        DataType::Double,
        DataType::FloatComplex,
        DataType::DoubleComplex,
        DataType::LongDouble,
        DataType::LongDoubleComplex,
        DataType::Int128,
        DataType::Uint128,
    ];

    fn from_raw(raw: u32) -> Option<DataType> {
        DataType::ALL.get(usize::try_from(raw).ok()?).copied()
    }

    #[inline]
    fn size(self) -> usize {
        match self {
            DataType::Int8 | DataType::Uint8 => 1,
            DataType::Int16 | DataType::Uint16 => 2,
            DataType::Int32 | DataType::Uint32 | DataType::Float => 4,
            DataType::Int64 | DataType::Uint64 | DataType::Double | DataType::FloatComplex => 8,
            DataType::DoubleComplex
            | DataType::LongDouble
            | DataType::Int128
            | DataType::Uint128 => 16,
            DataType::LongDoubleComplex => 32,
        }
    }

    fn supports(self, op: ElementOp) -> bool {
        match self {
            DataType::FloatComplex | DataType::DoubleComplex | DataType::LongDoubleComplex => {
                !op.needs_order() && !op.needs_bits()
            }
            DataType::Float | DataType::Double | DataType::LongDouble => !op.needs_bits(),
            _ => true,
        }
    }
}

/// Returns the size in bytes of one element of `datatype`; `None` for a datatype that is not
/// supported.
#[inline]
pub(crate) fn size_of(datatype: u32) -> Option<usize> {
    DataType::from_raw(datatype).map(DataType::size)
}

/// Whether calls of this kind may use `op` on `datatype`.
#[inline]
pub(crate) fn valid(op: u32, datatype: u32, kind: AtomicKind) -> bool {
    match (ElementOp::from_raw(op), DataType::from_raw(datatype)) {
        (Some(op), Some(datatype)) => op.belongs_to(kind) && datatype.supports(op),
        _ => false,
    }
}

/// Returns the result of `fi_query_atomic`: size in bytes of an element and maximum number of
/// elements in one call.
///
/// # Errors
/// `FI_EBADFLAGS` for flags other than one of `FI_FETCH_ATOMIC` and `FI_COMPARE_ATOMIC`;
/// `FI_EOPNOTSUPP` for a combination that is not defined or not supported, and for `FI_TAGGED`.
pub(crate) fn query(datatype: u32, op: u32, flags: u64) -> Result<(usize, usize), Errno> {
    const FETCH: u64 = fi::FI_FETCH_ATOMIC;
    const COMPARE: u64 = fi::FI_COMPARE_ATOMIC;
    let kind = match flags {
        0 => AtomicKind::Write,
        FETCH => AtomicKind::Fetch,
        COMPARE => AtomicKind::Compare,
        fi::FI_TAGGED => return Err(fi::FI_EOPNOTSUPP),
        _ => return Err(fi::FI_EBADFLAGS),
    };
    query_kind(datatype, op, kind)
}

/// Like [`query`], for a known kind.
///
/// # Errors
/// `FI_EOPNOTSUPP` for a combination that is not defined or not supported.
pub(crate) fn query_kind(
    datatype: u32,
    op: u32,
    kind: AtomicKind,
) -> Result<(usize, usize), Errno> {
    if !valid(op, datatype, kind) {
        return Err(fi::FI_EOPNOTSUPP);
    }
    let size = size_of(datatype).ok_or(fi::FI_EOPNOTSUPP)?;
    Ok((size, MAX_ATOMIC_BYTES / size))
}

/// Applies `op` to every element of `target` and stores the previous values in `result`, unless
/// that is empty.
///
/// `operand` has the length of the target (ignored by `FI_ATOMIC_READ`), and so has `compare` for
/// the swap operations.
///
/// # Errors
/// `FI_EOPNOTSUPP` for an undefined combination, `FI_EINVAL` when the lengths do not agree.
pub(crate) fn apply(
    op: u32,
    datatype: u32,
    target: &Mem,
    operand: &[u8],
    compare: &[u8],
    result: &mut [u8],
) -> Result<(), Errno> {
    let op = ElementOp::from_raw(op).ok_or(fi::FI_EOPNOTSUPP)?;
    let datatype = DataType::from_raw(datatype).ok_or(fi::FI_EOPNOTSUPP)?;
    if !datatype.supports(op) {
        return Err(fi::FI_EOPNOTSUPP);
    }
    let len = target.len();
    let agree = len % datatype.size() == 0
        && (op == ElementOp::Read || operand.len() == len)
        && (!op.is_swap() || compare.len() == len)
        && (result.is_empty() || result.len() == len);
    if !agree {
        return Err(fi::FI_EINVAL);
    }
    let job = Job { op, target, operand, compare, result };
    match datatype {
        DataType::Int8 => job.run::<i8>(),
        DataType::Uint8 => job.run::<u8>(),
        DataType::Int16 => job.run::<i16>(),
        DataType::Uint16 => job.run::<u16>(),
        DataType::Int32 => job.run::<i32>(),
        DataType::Uint32 => job.run::<u32>(),
        DataType::Int64 => job.run::<i64>(),
        DataType::Uint64 => job.run::<u64>(),
        DataType::Float => job.run::<f32>(),
        DataType::Double => job.run::<f64>(),
        DataType::FloatComplex => job.run::<complex::Complex<f32>>(),
        DataType::DoubleComplex => job.run::<complex::Complex<f64>>(),
        DataType::LongDouble => job.run::<LongDouble>(),
        DataType::LongDoubleComplex => job.run::<complex::Complex<LongDouble>>(),
        DataType::Int128 => job.run::<i128>(),
        DataType::Uint128 => job.run::<u128>(),
    }
    Ok(())
}

/// Whether values of `datatype` can be merged by `op` in any order, as a reduction does.
pub(crate) fn reduces(op: u32, datatype: u32) -> bool {
    match (ElementOp::from_raw(op), DataType::from_raw(datatype)) {
        (Some(ElementOp::Read | ElementOp::Write | ElementOp::Diff), _) => false,
        (Some(op), Some(datatype)) => !op.is_swap() && datatype.supports(op),
        _ => false,
    }
}

/// Merges every element of `operand` into the corresponding one of `target`: private memory of this
/// process.
///
/// # Errors
/// `FI_EOPNOTSUPP` for a combination that does not reduce, `FI_EINVAL` when the lengths do not
/// agree.
pub(crate) fn fold(op: u32, datatype: u32, target: &mut [u8], operand: &[u8]) -> Result<(), Errno> {
    let (Some(op), Some(datatype), true) =
        (ElementOp::from_raw(op), DataType::from_raw(datatype), reduces(op, datatype))
    else {
        return Err(fi::FI_EOPNOTSUPP);
    };
    if target.len() != operand.len() || target.len() % datatype.size() != 0 {
        return Err(fi::FI_EINVAL);
    }
    match datatype {
        DataType::Int8 => merge::<i8>(op, target, operand),
        DataType::Uint8 => merge::<u8>(op, target, operand),
        DataType::Int16 => merge::<i16>(op, target, operand),
        DataType::Uint16 => merge::<u16>(op, target, operand),
        DataType::Int32 => merge::<i32>(op, target, operand),
        DataType::Uint32 => merge::<u32>(op, target, operand),
        DataType::Int64 => merge::<i64>(op, target, operand),
        DataType::Uint64 => merge::<u64>(op, target, operand),
        DataType::Float => merge::<f32>(op, target, operand),
        DataType::Double => merge::<f64>(op, target, operand),
        DataType::FloatComplex => merge::<complex::Complex<f32>>(op, target, operand),
        DataType::DoubleComplex => merge::<complex::Complex<f64>>(op, target, operand),
        DataType::LongDouble => merge::<LongDouble>(op, target, operand),
        DataType::LongDoubleComplex => merge::<complex::Complex<LongDouble>>(op, target, operand),
        DataType::Int128 => merge::<i128>(op, target, operand),
        DataType::Uint128 => merge::<u128>(op, target, operand),
    }
    Ok(())
}

fn merge<E: Element>(op: ElementOp, target: &mut [u8], operand: &[u8]) {
    for (to, from) in target.chunks_exact_mut(E::SIZE).zip(operand.chunks_exact(E::SIZE)) {
        let from = E::get(from);
        E::combine(op, E::get(to), from, from).put(to);
    }
}

/// Validated call of [`apply`].
struct Job<'a> {
    op: ElementOp,
    target: &'a Mem,
    operand: &'a [u8],
    compare: &'a [u8],
    result: &'a mut [u8],
}

impl Job<'_> {
    fn run<E: Element>(self) {
        // All elements have the alignment of the first: either all are aligned or none is.
        let direct = E::SIZE <= 8 && self.target.addr() % E::SIZE == 0;
        let guard = (!direct)
            .then(|| scif::keep_errno(|| WIDE.lock().unwrap_or_else(PoisonError::into_inner)));
        for at in (0..self.target.len()).step_by(E::SIZE) {
            let Some(cell) = self.target.sub(at, E::SIZE) else {
                break;
            };
            let operand = E::get(element(self.operand, at, E::SIZE));
            let compare = E::get(element(self.compare, at, E::SIZE));
            let old = if direct { E::execute(self.op, &cell, operand, compare) } else { None };
            let old = old.unwrap_or_else(|| execute_locked(self.op, &cell, operand, compare));
            if let Some(out) = self.result.get_mut(at..at + E::SIZE) {
                old.put(out);
            }
        }
        drop(guard);
    }
}

/// Returns the bytes of the element at `at`, none when the list has no such element.
#[inline]
fn element(bytes: &[u8], at: usize, size: usize) -> &[u8] {
    bytes.get(at..at + size).unwrap_or_default()
}

/// Executes a plain read-modify-write of memory without a suitable atomic instruction; the caller
/// holds [`WIDE`].
fn execute_locked<E: Element>(op: ElementOp, target: &Mem, operand: E, compare: E) -> E {
    let mut bytes = [0u8; 32];
    let bytes = bytes.get_mut(..E::SIZE).unwrap_or_default();
    target.copy_to_slice(bytes);
    let old = E::get(bytes);
    if op != ElementOp::Read {
        E::combine(op, old, operand, compare).put(bytes);
        target.copy_from_slice(bytes);
    }
    old
}

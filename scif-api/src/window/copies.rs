// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Copying between two lists of byte ranges, each mapped by this process or at an address of some
//! process.
//!
//! Not about windows. This processor copies mapped memory. The kernel copies other memory, and
//! returns an error instead of faulting. Two unmapped ranges are copied through a bounce buffer.

use std::sync::Arc;

use scif::sys::mmap::{Mapping, PAGE};
use scif::sys::process_vm::Direction;
use scif::sys::{bounce, pipe_copy, process};
use scif::{AccessError, RemoteMem};
use scif_ring::{Mem, SharedU32, SharedU64, full_fence};

use crate::failure::{Failure, Result};

/// Bytes in a cache line; an ordered copy writes the last line of the destination last.
const LINE: usize = 64;
/// Size in bytes of the bounce buffer between two unmapped ranges. A smaller one needs more system
/// calls for each copy.
const BOUNCE: usize = 64 << 10;

/// Range of bytes.
#[derive(Clone, Debug)]
pub(crate) enum Spot {
    /// Mapped in this process, as long as the mapping is kept.
    Here { mem: Mem, map: Arc<Mapping>, at: usize },
    /// Memory of this process that the caller answers for.
    Own(Mem),
    /// Memory of a process, which may be this one.
    Of { pid: i32, addr: u64, len: usize },
}

impl Spot {
    pub(crate) fn len(&self) -> usize {
        match self {
            Spot::Here { mem, .. } | Spot::Own(mem) => mem.len(),
            Spot::Of { len, .. } => *len,
        }
    }

    fn part(&self, skip: usize, len: usize) -> Result<Spot> {
        match self {
            Spot::Here { mem, map, at } => Ok(Spot::Here {
                mem: mem.sub(skip, len).ok_or(Failure::Broken)?,
                map: Arc::clone(map),
                at: at + skip,
            }),
            Spot::Own(mem) => Ok(Spot::Own(mem.sub(skip, len).ok_or(Failure::Broken)?)),
            Spot::Of { pid, addr, .. } => {
                Ok(Spot::Of { pid: *pid, addr: addr.wrapping_add(skip as u64), len })
            }
        }
    }

    /// Whether it is unmapped memory of a process.
    pub(crate) fn is_of(&self, process: i32) -> bool {
        matches!(self, Spot::Of { pid, .. } if *pid == process)
    }

    pub(crate) fn is_here(&self) -> bool {
        matches!(self, Spot::Here { .. })
    }
}

/// Splits both lists into pairs of equal length.
pub(crate) fn pairs(dst: &[Spot], src: &[Spot]) -> Result<Vec<(Spot, Spot)>> {
    let mut out = Vec::with_capacity(dst.len().max(src.len()));
    let (mut d, mut s) = (dst.iter(), src.iter());
    let (mut to, mut from) = (d.next().cloned(), s.next().cloned());
    while let (Some(a), Some(b)) = (&to, &from) {
        let n = a.len().min(b.len());
        out.push((a.part(0, n)?, b.part(0, n)?));
        let rest = |spot: &Spot| {
            if spot.len() > n { spot.part(n, spot.len() - n).map(Some) } else { Ok(None) }
        };
        let (a, b) = (rest(a)?, rest(b)?);
        to = a.or_else(|| d.next().cloned());
        from = b.or_else(|| s.next().cloned());
    }
    Ok(out)
}

fn failed(error: AccessError, pid: i32) -> Failure {
    match error {
        AccessError::Fault | AccessError::Short(_) if pid == process::pid() => Failure::BadAddress,
        AccessError::Denied => {
            scif::denial::warn_of_window(pid);
            Failure::Broken
        }
        AccessError::Fault | AccessError::Short(_) => Failure::Broken,
        AccessError::Gone => Failure::Reset,
    }
}

fn by_kernel(pid: i32, direction: Direction, mem: Mem, addr: u64) -> Result<()> {
    let remote = RemoteMem { addr, len: mem.len() as u64 };
    let copied = match bounce::copy(pid, direction, &[mem], &[remote]) {
        // Memory of the program needs no right: the thread that copies belongs to it.
        Err(AccessError::Denied) if pid == process::pid() => {
            pipe_copy::copy_own(direction, &mem, addr)
        }
        copied => copied,
    };
    copied.map_err(|error| failed(error, pid))
}

fn copy_one(dst: &Spot, src: &Spot) -> Result<()> {
    match (dst, src) {
        (
            Spot::Here { mem: to, .. } | Spot::Own(to),
            Spot::Here { mem: from, .. } | Spot::Own(from),
        ) => {
            to.copy_from(from);
            Ok(())
        }
        (Spot::Here { mem, .. } | Spot::Own(mem), Spot::Of { pid, addr, .. }) => {
            by_kernel(*pid, Direction::Read, *mem, *addr)
        }
        (Spot::Of { pid, addr, .. }, Spot::Here { mem, .. } | Spot::Own(mem)) => {
            by_kernel(*pid, Direction::Write, *mem, *addr)
        }
        (Spot::Of { pid: to, addr: at, len }, Spot::Of { pid: from, addr, .. }) => {
            // At the alignment of the source, or a cache line past it: the kernel is slow at
            // neither of both copies.
            let is_bad = (1..32).contains(&(at.wrapping_sub(*addr) % PAGE as u64));
            let skew = usize::try_from(addr % PAGE as u64).unwrap_or(0);
            let skew = if is_bad { skew + LINE } else { skew };
            let buffer = Mapping::anonymous(BOUNCE + 2 * PAGE)?;
            let mut done = 0;
            while done < *len {
                let n = BOUNCE.min(len - done);
                let piece = buffer.bytes(skew, n)?;
                by_kernel(*from, Direction::Read, piece, addr.wrapping_add(done as u64))?;
                by_kernel(*to, Direction::Write, piece, at.wrapping_add(done as u64))?;
                done += n;
            }
            Ok(())
        }
    }
}

/// Copies each pair. If `ordered`, the last line of the last pair is written after everything else.
pub(crate) fn copy(pairs: &[(Spot, Spot)], ordered: bool) -> Result<()> {
    for (i, (dst, src)) in pairs.iter().enumerate() {
        let len = dst.len();
        if ordered && i + 1 == pairs.len() && len > LINE {
            // The tail is the part in the cache line of the destination's last byte.
            let at = match dst {
                Spot::Here { mem, .. } | Spot::Own(mem) => mem.addr(),
                Spot::Of { addr, .. } => usize::try_from(*addr).unwrap_or(0),
            };
            let tail = ((at + len - 1) % LINE + 1).min(len - 1);
            copy_one(&dst.part(0, len - tail)?, &src.part(0, len - tail)?)?;
            full_fence();
            copy_one(&dst.part(len - tail, tail)?, &src.part(len - tail, tail)?)?;
        } else {
            copy_one(dst, src)?;
        }
    }
    Ok(())
}

/// Stores a value after everything written before: as one word at a multiple of 8, else in two
/// halves.
pub(crate) fn store(spot: &Spot, value: u64) -> Result<()> {
    full_fence();
    match spot {
        Spot::Here { map, at, .. } => {
            if let Ok(word) = map.word64(*at) {
                SharedU64::set(&word, value);
            } else {
                let [low, high] = halves(value);
                SharedU32::set(&map.word32(*at)?, low);
                SharedU32::set(&map.word32(*at + 4)?, high);
            }
            Ok(())
        }
        Spot::Own(_) => Err(Failure::Broken),
        Spot::Of { pid, addr, .. } => {
            let buffer = Mapping::anonymous(4096)?;
            buffer.word64(0)?.set(value);
            by_kernel(*pid, Direction::Write, buffer.bytes(0, 8)?, *addr)
        }
    }
}

fn halves(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_ne_bytes();
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
}

/// Stores values in order, until one cannot be stored.
pub(crate) fn store_all(stores: &[(Spot, u64)]) -> Result<()> {
    stores.iter().try_for_each(|(spot, value)| store(spot, *value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(map: &Arc<Mapping>, at: usize, len: usize) -> Spot {
        Spot::Here { mem: map.bytes(at, len).unwrap(), map: Arc::clone(map), at }
    }

    fn of(map: &Arc<Mapping>, at: usize, len: usize) -> Spot {
        Spot::Of { pid: process::pid(), addr: (map.address() + at) as u64, len }
    }

    fn own(map: &Arc<Mapping>, at: usize, len: usize) -> Spot {
        Spot::Own(map.bytes(at, len).unwrap())
    }

    #[test]
    fn every_pair_of_places_and_every_cut_is_copied() {
        let map = Arc::new(Mapping::anonymous(1 << 20).unwrap());
        for i in 0..200_000usize {
            map.bytes(i, 1).unwrap().copy_from_slice(&[i.to_le_bytes()[0]]);
        }
        for place in [here, of, own] {
            for other in [here, of, own] {
                for ordered in [false, true] {
                    let src =
                        [place(&map, 3, 1), place(&map, 4, 99_999), place(&map, 100_003, 70_001)];
                    let dst = [other(&map, 300_001, 150_000), other(&map, 450_001, 20_001)];
                    map.bytes(300_001, 170_001).unwrap().copy_from_slice(&vec![0; 170_001]);
                    copy(&pairs(&dst, &src).unwrap(), ordered).unwrap();
                    let (mut a, mut b) = (vec![0u8; 170_001], vec![0u8; 170_001]);
                    map.bytes(3, 170_001).unwrap().copy_to_slice(&mut a);
                    map.bytes(300_001, 170_001).unwrap().copy_to_slice(&mut b);
                    assert!(a == b);
                }
            }
        }
    }

    #[test]
    fn values_are_stored_at_any_multiple_of_four() {
        let map = Arc::new(Mapping::anonymous(4096).unwrap());
        for (i, place) in
            [here(&map, 8, 8), here(&map, 20, 8), of(&map, 36, 8)].into_iter().enumerate()
        {
            store(&place, 0x1122_3344_5566_7788).unwrap();
            let mut bytes = [0u8; 8];
            map.bytes([8, 20, 36][i], 8).unwrap().copy_to_slice(&mut bytes);
            assert_eq!(u64::from_ne_bytes(bytes), 0x1122_3344_5566_7788);
        }
    }

    #[test]
    fn unmapped_memory_is_an_error() {
        let map = Arc::new(Mapping::anonymous(4096).unwrap());
        let nowhere = Spot::Of { pid: process::pid(), addr: 64, len: 16 };
        assert_eq!(copy(&[(here(&map, 0, 16), nowhere)], false), Err(Failure::BadAddress));
    }
}

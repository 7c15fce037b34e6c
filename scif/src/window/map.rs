// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Mapping windows of the peer into the program. Source: `scif_mmap`.

use super::state::Part;
use super::table::Place;
use crate::epd::{Epd, Failure, Inner, Result};
use crate::sys::pages::{self, PAGE};

const MAP_FIXED: i32 = 0x10;
const READ: i32 = 1;
const WRITE: i32 = 2;

impl Inner {
    /// Maps `len` bytes at `offset` of the peer's registered address space; where.
    pub(crate) fn map(
        &self,
        epd: &Epd,
        addr: usize,
        len: usize,
        offset: i64,
        prot: i32,
        flags: i32,
    ) -> Result<usize> {
        let size = len.checked_next_multiple_of(PAGE).ok_or(Failure::NoMemory)?;
        let fixed = flags & MAP_FIXED != 0;
        if size == 0 || offset % PAGE as i64 != 0 || (fixed && !addr.is_multiple_of(PAGE)) {
            return Err(Failure::Invalid);
        }
        let link = epd.connected()?;
        let (read, write) = (prot & READ != 0, prot & WRITE != 0);
        // Until the mapping is there the window may not be given back.
        let copying = link.own.table.copying()?;
        let at = u64::try_from(offset).map_err(|_| Failure::NoWindow)?;
        let runs = link.peer.table.runs(at, size as u64, read, write)?;
        let pieces: Vec<(u64, usize)> = runs
            .iter()
            .map(|run| match run.place() {
                Place::Arena(at) => Ok((at, usize::try_from(run.len).map_err(|_| Failure::NoMemory)?)),
                Place::InPlace { .. } => Err(Failure::NoMemory),
            })
            .collect::<Result<_>>()?;
        let base = pages::reserve_for_program(addr, size, fixed, origin(&pieces))?;
        let mut next = base;
        let mut parts = Vec::with_capacity(pieces.len());
        for (at, len) in pieces {
            if let Err(errno) = pages::map_for_program(next, len, read, write, link.peer.arena(), at) {
                let _ = pages::unmap(base, size);
                return Err(errno.into());
            }
            parts.push(Part {
                begin: next,
                len,
                from: at,
            });
            next += len;
        }
        epd.windows.map(&parts);
        link.own.table.map_one()?;
        epd.holder.record.mapped();
        drop(copying);
        Ok(base)
    }
}

/// Where in the arena the mapping would begin if all of it were one with the largest piece: at addresses that lie so large
/// pages are mapped as such.
fn origin(pieces: &[(u64, usize)]) -> u64 {
    let mut before = 0u64;
    let mut largest = (0, 0);
    for &(at, len) in pieces {
        largest = largest.max((len, at.wrapping_sub(before)));
        before += len as u64;
    }
    largest.1
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Mapping windows of the peer into the program. Source: `scif_mmap`.

use std::os::fd::{AsFd, OwnedFd};

use scif::sys::memfd::{self, FIXED_SIZE};
use scif::sys::pages::{self, FileId, PAGE};

use super::spots::believed;
use crate::endpoint::Epd;
use crate::failure::{Failure, Result};
use crate::link::Link;
use crate::registry::Inner;
use crate::window::state::Part;
use crate::window::table::{ARENA_BYTES, Place, Run};

const MAP_FIXED: i32 = 0x10;
const READ: i32 = 1;
const WRITE: i32 = 2;

/// Maps `len` bytes at `offset` of the peer's registered address space and returns the address.
pub(crate) fn map(
    inner: &Inner,
    epd: &Epd,
    (addr, len): (usize, usize),
    offset: i64,
    prot: i32,
    flags: i32,
) -> Result<usize> {
    let size = len.checked_next_multiple_of(PAGE).ok_or(Failure::NoMemory)?;
    let fixed = flags & MAP_FIXED != 0;
    if size == 0 || offset % PAGE as i64 != 0 || (fixed && addr % PAGE != 0) {
        return Err(Failure::Invalid);
    }
    let link = epd.connected()?;
    let (read, write) = (prot & READ != 0, prot & WRITE != 0);
    // Until the mapping exists, the pages of the window must not be released.
    let copying = link.own.table.copying()?;
    let at = u64::try_from(offset).map_err(|_| Failure::NoWindow)?;
    let runs = link.peer.table.runs(at, size as u64, read, write)?;
    let pieces = pieces(link, &runs, write)?;
    let peers = pages::file_id(link.peer.arena())?;
    let fills =
        fixed && addr.checked_add(size).is_some_and(|end| pages::is_within_memory(addr, end));
    let base = pages::reserve_for_program(addr, size, fixed, origin(&pieces))?;
    let mut next = base;
    let mut parts = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let (fd, arena) = match &piece.lent {
            Some((fd, arena)) => (fd.as_fd(), *arena),
            None => (link.peer.arena(), peers),
        };
        if let Err(errno) = pages::map_for_program(next, piece.len, read, write, fd, piece.at) {
            let _ = pages::unmap(base, size);
            return Err(errno.into());
        }
        parts.push(Part {
            begin: next,
            len: piece.len,
            from: piece.at,
            arena,
            serial: piece.serial,
        });
        next += piece.len;
    }
    epd.windows.map(&parts);
    if fills {
        inner.filled.enter(base, base + size);
    }
    link.own.table.map_one()?;
    epd.sharer.record.mapped();
    drop(copying);
    Ok(base)
}

/// Part of a mapping to be made.
#[derive(Debug)]
struct Piece {
    /// Offset in the arena.
    at: u64,
    len: usize,
    serial: u32,
    /// Arena of another connection of the peer's process; `None`: that of this one.
    lent: Option<(OwnedFd, FileId)>,
}

/// Splits runs of windows into the parts of a mapping.
fn pieces(link: &Link, runs: &[Run], write: bool) -> Result<Vec<Piece>> {
    let mut pieces = Vec::with_capacity(runs.len());
    for run in runs {
        let serial = run.window.serial;
        match run.place() {
            Place::Arena(at) => pieces.push(Piece {
                at,
                len: usize::try_from(run.len).map_err(|_| Failure::NoMemory)?,
                serial,
                lent: None,
            }),
            Place::Unmoved { addr, pid } => {
                let pid = believed(link, pid).map_err(|_| Failure::NoMemory)?;
                lent_pieces(pid, (addr, run.len), serial, write, &mut pieces)
                    .ok_or(Failure::NoMemory)?;
            }
        }
    }
    Ok(pieces)
}

/// Appends the parts of a mapping of memory in place, which lies in arenas of the process's other
/// connections. `None`: it lies elsewhere, or that process may not be inspected.
fn lent_pieces(
    pid: i32,
    (addr, len): (u64, u64),
    serial: u32,
    write: bool,
    pieces: &mut Vec<Piece>,
) -> Option<()> {
    let mut at = usize::try_from(addr).ok()?;
    let end = at.checked_add(usize::try_from(len).ok()?)?;
    for area in pages::areas_of(pid)? {
        if area.end <= at || area.begin >= end {
            continue;
        }
        if area.begin > at || !area.is_of_arena() {
            return None;
        }
        let area = area.between(at, end);
        let arena = memfd::open_shared_of(pid, area.file, write).ok()?;
        // A file that another process presents as an arena may be anything.
        memfd::check(&arena, ARENA_BYTES, FIXED_SIZE).ok()?;
        at = area.end;
        pieces.push(Piece {
            at: area.offset,
            len: area.end - area.begin,
            serial,
            lent: Some((arena, area.file)),
        });
    }
    (at == end).then_some(())
}

/// Returns the offset at which the mapping would begin if it were contiguous in the arena around
/// its largest piece. At an address of the same alignment, huge pages are mapped as huge pages.
fn origin(pieces: &[Piece]) -> u64 {
    let mut before = 0u64;
    let mut largest = (0, 0);
    for piece in pieces {
        largest = largest.max((piece.len, piece.at.wrapping_sub(before)));
        before += piece.len as u64;
    }
    largest.1
}

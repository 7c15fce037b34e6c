// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Reading and writing windows of the peer.
//!
//! Not about fences. The caller copies. Long transfers that need not be waited for are queued for a
//! DMA thread, under a number that fences count. Plain memory of the program is touched before
//! that, so that absent memory is reported at once. The thread accesses it through the kernel, so
//! the program may unmap it meanwhile. The caller's own copies access memory that it answers for
//! directly, and other memory through the kernel. Source: `scif_readfrom`, `scif_writeto`,
//! `scif_vreadfrom`, `scif_vwriteto`.

pub(crate) mod fence;
pub(crate) mod map;
mod spots;

use std::sync::Arc;

use scif::sys::{pages, process};
use scif_ring::Mem;

use self::spots::spots;
use crate::dma::Work;
use crate::endpoint::Epd;
use crate::failure::{Failure, Result};
use crate::link::Link;
use crate::registry::Inner;
use crate::window::copies::{self, Spot};
use crate::window::table::{Place, Window};

const USECPU: i32 = 1;
const SYNC: i32 = 4;
const ORDERED: i32 = 8;
const KNOWN: i32 = 15;
/// Length in bytes up to which a window is looked up without lists of ranges. The time of a longer
/// copy hides that of the lists.
const SHORT_MAX: usize = 4096;

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Way {
    /// From the peer to this side.
    Read,
    /// From this side to the peer.
    Write,
}

/// Memory at this side.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Near {
    /// Offset in the registered address space.
    Window(i64),
    /// Address in the program, at which memory may be absent.
    Memory(usize),
    /// Memory that the caller answers for, at an address of the program.
    Lent(Mem),
}

impl Near {
    /// Returns the address, of memory that is not registered.
    fn addr(&self) -> Option<usize> {
        match self {
            Near::Window(_) => None,
            Near::Memory(addr) => Some(*addr),
            Near::Lent(mem) => Some(mem.addr()),
        }
    }
}

/// Copies `len` bytes between this side and `far` of the peer's registered address space.
pub(crate) fn transfer(
    inner: &Inner,
    epd: &Arc<Epd>,
    way: Way,
    near: Near,
    (far, len): (i64, usize),
    flags: i32,
) -> Result<()> {
    let link = epd.connected()?;
    if (flags != 0 && flags & KNOWN == 0) || len == 0 {
        return Err(Failure::Invalid);
    }
    if let Near::Lent(mem) = near {
        let is_short = flags == USECPU && len <= SHORT_MAX;
        if is_short && copy_short(epd, link, way, &mem, far)? {
            return Ok(());
        }
    }
    let size = len as u64;
    let written = near.addr().filter(|_| way == Way::Read);
    let target = written.map(|addr| inner.targets.target(&inner.moving, addr, len));
    let may_wait = flags & (USECPU | SYNC) == 0 && size >= inner.config.dma_min;
    let copying = link.own.table.copying()?;
    let near_spots = match near {
        Near::Window(offset) => {
            let offset = u64::try_from(offset).map_err(|_| Failure::NoWindow)?;
            let runs = link.own.table.runs(offset, size, way == Way::Write, way == Way::Read)?;
            spots(epd, link, false, &runs)?
        }
        // A thread copies it later, when it may be absent.
        Near::Lent(mem) if !may_wait => vec![Spot::Own(mem)],
        Near::Memory(_) | Near::Lent(_) => {
            let addr = near.addr().ok_or(Failure::Broken)? as u64;
            vec![Spot::Of { pid: process::pid(), addr, len }]
        }
    };
    let far = u64::try_from(far).map_err(|_| Failure::NoWindow)?;
    let runs = link.peer.table.runs(far, size, way == Way::Read, way == Way::Write)?;
    let far_spots = spots(epd, link, true, &runs)?;
    let pairs = match way {
        Way::Read => copies::pairs(&near_spots, &far_spots),
        Way::Write => copies::pairs(&far_spots, &near_spots),
    }?;
    epd.sharer.record.rma(way == Way::Read, len);
    let ordered = flags & ORDERED != 0;
    let reachable = |spot: &Spot| spot.is_here() || spot.is_of(process::pid());
    if may_wait && pairs.iter().all(|(dst, src)| reachable(dst) && reachable(src)) {
        if let Some(addr) = near.addr() {
            pages::touch(addr, len, way == Way::Read).map_err(|_| Failure::BadAddress)?;
        }
        let work = Work::Copy { pairs, ordered, target };
        let queued = inner.workers.queue(epd, link, inner.config.dma_channels, work);
        drop(copying);
        return queued;
    }
    copies::copy(&pairs, ordered)?;
    drop((copying, target));
    if flags & SYNC != 0 { fence::wait_own(inner, epd, link) } else { Ok(()) }
}

/// Copies between memory that the caller answers for and one window of the peer in its arena.
/// Returns false, and has copied nothing, for other ranges.
fn copy_short(epd: &Epd, link: &Link, way: Way, near: &Mem, far: i64) -> Result<bool> {
    let Ok(at) = u64::try_from(far) else { return Ok(false) };
    let copying = link.own.table.copying()?;
    let is_whole = |window: &Window| {
        let allowed = if way == Way::Read { window.read } else { window.write };
        allowed && window.end() - at >= near.len() as u64
    };
    let Some(window) = link.peer.table.at(at)?.filter(is_whole) else { return Ok(false) };
    let Place::Arena(base) = window.place else { return Ok(false) };
    let map = epd.windows.mapping(link.spaces(), true, &window, base)?;
    let skip = usize::try_from(at - window.offset).map_err(|_| Failure::NoWindow)?;
    epd.sharer.record.rma(way == Way::Read, near.len());
    // Memory of the program that moves meanwhile is protected from stores of this thread.
    let (dst, src) = match way {
        Way::Read => (*near, map.bytes_to_read(skip, near.len())?),
        Way::Write => (map.bytes(skip, near.len())?, *near),
    };
    dst.copy_from(&src);
    drop((map, copying));
    Ok(true)
}

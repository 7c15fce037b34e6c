// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Reading and writing windows of the peer.
//!
//! Not about fences. The caller copies. Long transfers that need not be waited for are queued for a
//! DMA thread, under a number that fences count. Plain memory of the program is touched before
//! that, so that absent memory is reported at once. The thread accesses it through the kernel, so
//! the program may unmap it meanwhile. Source: `scif_readfrom`, `scif_writeto`, `scif_vreadfrom`,
//! `scif_vwriteto`.

use std::sync::Arc;

use scif::logging::OnceEach;
use scif::sys::{pages, process};

use super::copies::{self, Spot};
use super::table::{Place, Run};
use crate::{Epd, Failure, Inner, Link, Result};

/// Users for which the cause of a failed RMA was logged.
static OTHER_USERS: OnceEach<u32> = OnceEach::new(16);

const USECPU: i32 = 1;
const SYNC: i32 = 4;
const ORDERED: i32 = 8;
const KNOWN: i32 = 15;

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
    /// Address in the program.
    Memory(usize),
}

/// Returns the byte ranges of runs of windows.
pub(crate) fn spots(epd: &Epd, link: &Link, of_peer: bool, runs: &[Run]) -> Result<Vec<Spot>> {
    runs.iter()
        .map(|run| {
            let len = usize::try_from(run.len).map_err(|_| Failure::NoWindow)?;
            match (run.window.place, run.place()) {
                (Place::Arena(base), _) => {
                    let map = epd.windows.mapping(link, of_peer, &run.window, base)?;
                    let at = usize::try_from(run.skip).map_err(|_| Failure::NoWindow)?;
                    let mem = map.bytes(at, len).or_else(|_| map.bytes_to_read(at, len))?;
                    Ok(Spot::Here { mem, map, at })
                }
                (Place::InPlace { .. }, Place::InPlace { addr, pid }) => Ok(Spot::Of {
                    // A peer names the process of its windows. The name is trusted only as
                    // `believed` allows.
                    pid: if of_peer { believed(link, pid)? } else { pid },
                    addr,
                    len,
                }),
                (Place::InPlace { .. }, Place::Arena(_)) => Err(Failure::Broken),
            }
        })
        .collect()
}

/// Checks the process that a peer names for a window. It must be the connected one, or one that
/// shares the endpoint with it, of the same user as this process. Any other could make this process
/// write where the peer may not. A peer of another user is never trusted: it could name any process
/// of ours, or run a setuid program under its own pid.
pub(super) fn believed(link: &Link, pid: i32) -> Result<i32> {
    let uid = link.peer_uid()?;
    if uid != process::uid() {
        if OTHER_USERS.first(uid) {
            log::warn!(
                "RMA on a window of user {uid} fails with EIO: its pages were not moved into \
                 shared memory, and other users cannot access them. Register memory from malloc or \
                 mmap, or run both processes as one user"
            );
        }
        return Err(Failure::Broken);
    }
    let holders = &link.peer.table.holders;
    let same = pid == link.peer_pid
        || (holders.has(pid) && holders.has(link.peer_pid) && process::owner(pid) == Some(process::uid()));
    if same { Ok(pid) } else { Err(Failure::Broken) }
}

impl Inner {
    /// Copies `len` bytes between this side and `far` of the peer's registered address space.
    pub(crate) fn transfer(
        &self,
        epd: &Arc<Epd>,
        way: Way,
        near: Near,
        len: usize,
        far: i64,
        flags: i32,
    ) -> Result<()> {
        let link = epd.connected()?;
        if (flags != 0 && flags & KNOWN == 0) || len == 0 {
            return Err(Failure::Invalid);
        }
        let size = len as u64;
        let target = match near {
            Near::Memory(addr) if way == Way::Read => Some(self.target(addr, len)),
            _ => None,
        };
        let copying = link.own.table.copying()?;
        let near_spots = match near {
            Near::Window(offset) => {
                let offset = u64::try_from(offset).map_err(|_| Failure::NoWindow)?;
                let runs = link
                    .own
                    .table
                    .runs(offset, size, way == Way::Write, way == Way::Read)?;
                spots(epd, link, false, &runs)?
            }
            Near::Memory(addr) => vec![Spot::Of {
                pid: process::pid(),
                addr: addr as u64,
                len,
            }],
        };
        let far = u64::try_from(far).map_err(|_| Failure::NoWindow)?;
        let runs = link
            .peer
            .table
            .runs(far, size, way == Way::Read, way == Way::Write)?;
        let far_spots = spots(epd, link, true, &runs)?;
        let pairs = match way {
            Way::Read => copies::pairs(&near_spots, &far_spots),
            Way::Write => copies::pairs(&far_spots, &near_spots),
        }?;
        epd.holder.record.rma(way == Way::Read, len);
        let ordered = flags & ORDERED != 0;
        let may_wait = flags & (USECPU | SYNC) == 0 && size >= self.config.dma_min;
        let reachable = |spot: &Spot| spot.is_here() || spot.is_of(process::pid());
        if may_wait && pairs.iter().all(|(dst, src)| reachable(dst) && reachable(src)) {
            if let Near::Memory(addr) = near {
                pages::touch(addr, len, way == Way::Read).map_err(|_| Failure::BadAddress)?;
            }
            let queued = self
                .workers
                .queue(epd, link, self.config.dma_channels, pairs, ordered, target);
            drop(copying);
            return queued;
        }
        copies::copy(&pairs, ordered)?;
        drop((copying, target));
        if flags & SYNC != 0 {
            self.wait_own(epd, link)
        } else {
            Ok(())
        }
    }
}

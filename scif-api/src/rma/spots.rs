// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory behind the windows of a transfer or a fence, and the processes that a peer may name.
//!
//! Not about the table of windows (`table`) nor about copies (`copies`).

use scif::logging::OnceEach;
use scif::sys::process;

use crate::endpoint::Epd;
use crate::failure::{Failure, Result};
use crate::link::Link;
use crate::window::copies::Spot;
use crate::window::table::{Place, Run};

/// Users for which the cause of a failed RMA was logged.
static OTHER_USERS: OnceEach<u32> = OnceEach::new(16);

/// Returns the byte ranges of runs of windows.
pub(crate) fn spots(epd: &Epd, link: &Link, of_peer: bool, runs: &[Run]) -> Result<Vec<Spot>> {
    runs.iter()
        .map(|run| {
            let len = usize::try_from(run.len).map_err(|_| Failure::NoWindow)?;
            match (run.window.place, run.place()) {
                (Place::Arena(base), _) => {
                    let map = epd.windows.mapping(link.spaces(), of_peer, &run.window, base)?;
                    let at = usize::try_from(run.skip).map_err(|_| Failure::NoWindow)?;
                    let mem = map.bytes(at, len).or_else(|_| map.bytes_to_read(at, len))?;
                    Ok(Spot::Here { mem, map, at })
                }
                (Place::Unmoved { .. }, Place::Unmoved { addr, pid }) => Ok(Spot::Of {
                    // A peer names the process of its windows. The name is trusted only as
                    // `believed` allows.
                    pid: if of_peer { believed(link, pid)? } else { pid },
                    addr,
                    len,
                }),
                (Place::Unmoved { .. }, Place::Arena(_)) => Err(Failure::Broken),
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
    let sharers = &link.peer.table.sharers;
    let same = pid == link.peer_pid
        || (sharers.has(pid)
            && sharers.has(link.peer_pid)
            && process::owner(pid) == Some(process::uid()));
    if same { Ok(pid) } else { Err(Failure::Broken) }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Collective groups of the storm: joined on request of the parent, used one operation at a time
//! until they end.

use scif_fabtests::fi::{CqErr, EqErr};
use scif_fabtests::harness::output::now_ns;
use scif_fabtests::payload::RankId;
use scif_fabtests::prelude::*;

use super::net::Net;

/// Smallest context of a group's operations; each group has its own.
pub(crate) const CONTEXT: usize = 1 << 20;
/// Number of words in a reduction.
const WORDS: usize = 100;

/// One collective group.
pub(crate) struct Group {
    pub(crate) number: u64,
    pub(crate) members: Vec<RankId>,
    mc: Mc,
    joined: bool,
    round: u64,
    /// Time at which the join or the current operation was posted.
    pub(crate) open: Option<u64>,
    over: bool,
}

/// Buffers for the operations of all groups.
pub(crate) struct Rooms {
    from: Buf,
    to: Buf,
}

impl Rooms {
    pub(crate) fn new() -> Rooms {
        Rooms { from: Buf::new(8 * WORDS), to: Buf::new(8 * WORDS) }
    }
}

/// Returns the report line for the end of a group.
fn ended(number: u64, posted: u64, err: Errno) -> String {
    format!("gerr {number} {posted} {} {err}\n", now_ns())
}

impl Group {
    /// Starts to join a group of `members` with the addresses `addrs`.
    pub(crate) fn join(
        net: &Net,
        number: u64,
        members: Vec<RankId>,
        addrs: &[u64],
    ) -> Outcome<Group> {
        let (Some(av), Some(ep)) = (&net.av, &net.ep) else {
            return Err(Fail::here("a group without a vector"));
        };
        let set = AvSet::open(av, AvSetAttr::NONE)?;
        for addr in addrs {
            set.insert(*addr)?;
        }
        let posted = now_ns();
        let mc = Mc::join(ep, set.addr()?, Some(&set), 0, CONTEXT)?;
        set.close()?;
        Ok(Group { number, members, mc, joined: false, round: 0, open: Some(posted), over: false })
    }

    /// Starts the next operation if none is outstanding. Returns whether it started one.
    pub(crate) fn drive(&mut self, net: &Net, rooms: &Rooms, report: &mut String) -> Outcome<bool> {
        let Some(ep) = net.ep.as_ref().filter(|_| self.joined && !self.over && self.open.is_none())
        else {
            return Ok(false);
        };
        let mine = self.round.wrapping_mul(1000);
        (0..WORDS).for_each(|at| rooms.from.store_u64(8 * at, mine + at as u64));
        let call = Collective {
            kind: if self.round % 4 == 3 { sys::FI_BARRIER } else { sys::FI_ALLREDUCE },
            buf: rooms.from,
            result: rooms.to,
            count: WORDS,
            group: self.mc.addr()?,
            root: sys::FI_ADDR_UNSPEC,
            datatype: sys::FI_UINT64,
            op: sys::FI_SUM,
            flags: 0,
            context: self.context(),
        };
        let posted = now_ns();
        match call.post(ep) {
            Ok(()) => self.open = Some(posted),
            Err(Errno::EAGAIN) => return Ok(false),
            Err(err) => {
                self.over = true;
                report.push_str(&ended(self.number, posted, err));
            }
        }
        Ok(!self.over)
    }

    /// Checks the completed operation.
    pub(crate) fn done(&mut self, rooms: &Rooms) -> Outcome {
        let mine = self.round.wrapping_mul(1000);
        let count = self.members.len() as u64;
        if self.round % 4 != 3 {
            for at in 0..WORDS {
                check_eq!(
                    rooms.to.load_u64(8 * at),
                    count * (mine + at as u64),
                    "a sum of a group"
                );
            }
        }
        self.open = None;
        self.round += 1;
        Ok(())
    }

    /// Handles the failure of the current operation.
    pub(crate) fn failed(&mut self, error: &CqErr, report: &mut String) {
        if let (false, Some(posted)) = (self.over, self.open.take()) {
            report.push_str(&ended(self.number, posted, error.err));
        }
        self.over = true;
    }

    /// Context of the operations of this group.
    pub(crate) fn context(&self) -> usize {
        CONTEXT + usize::try_from(self.number).unwrap_or(0)
    }

    /// Whether an event of this object is about this group.
    pub(crate) fn is(&self, fid: usize) -> bool {
        self.mc.address() == Ok(fid)
    }

    pub(crate) fn is_joined(&mut self) {
        self.joined = true;
        self.open = None;
    }

    /// Handles an error event of the join.
    pub(crate) fn refused(&mut self, error: &EqErr, report: &mut String) {
        if let Some(posted) = self.open.take() {
            report.push_str(&ended(self.number, posted, Errno(error.err)));
        }
        self.over = true;
    }
}

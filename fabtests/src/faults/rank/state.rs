// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! State of one rank of the storm: its links, operations, buffers and pending report.

use std::collections::{BTreeMap, HashMap};

use scif_fabtests::fi::{Buf, Errno};
use scif_fabtests::harness::output::now_ns;
use scif_fabtests::harness::{Rank, Rng};
use scif_fabtests::payload::{RankId, SIZES};

use crate::coll::{Group, Rooms};
use crate::links::{Link, Op, WINDOW};
use crate::net::{Kind, Net, RANKS};

/// Nanoseconds after which an operation with a peer known as dead counts as hanging and fails the
/// run.
pub(super) const HANG_NS: u64 = 10_000_000_000;
/// Nanoseconds after a death in which receives from a silent peer end by themselves.
pub(super) const SILENT_NS: u64 = 1_000_000_000;
/// Number of polls ([`Link::polls`]) before a death, after which the provider must have connected
/// to a silent peer.
pub(super) const POLLS_ENOUGH: u32 = 30;

/// Method of waiting for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    Poll,
    Queue,
    Counter,
}

/// One rank.
pub(super) struct Storm<'r> {
    pub(super) rank: &'r Rank,
    pub(super) me: RankId,
    pub(super) net: Net,
    pub(super) rng: Rng,
    pub(super) wait: Wait,
    pub(super) links: HashMap<RankId, Link>,
    pub(super) ops: Vec<Option<Op>>,
    pub(super) free: Vec<usize>,
    pub(super) rooms: [Vec<Buf>; 3],
    pub(super) group: Option<Group>,
    pub(super) group_rooms: Rooms,
    pub(super) own_addr: u64,
    /// Operand of every atomic: 1.
    pub(super) one: Buf,
    pub(super) report: String,
    pub(super) draining: bool,
    pub(super) done: [u64; 6],
    pub(super) beat: u64,
    /// End of the last poll, and the pauses before recent polls by their ends, in nanoseconds.
    pub(super) polled: u64,
    pub(super) pauses: BTreeMap<u64, u64>,
}

impl Storm<'_> {
    /// Allocates as many buffers as are ever needed, so that they do not make the memory of the
    /// survivor grow.
    pub(super) fn take_all_rooms(&mut self) {
        for (class, size) in SIZES.into_iter().enumerate() {
            let most =
                RANKS * (2 * WINDOW.get(class).copied().unwrap_or(0) + 4) + 64 / size.min(64);
            for _ in 0..most {
                let buf = Buf::new(size);
                buf.fill(1);
                self.give_room(class, buf);
            }
        }
    }

    pub(super) fn room(&mut self, class: usize) -> Buf {
        let class = class % SIZES.len();
        let kept = self.rooms.get_mut(class).and_then(Vec::pop);
        kept.unwrap_or_else(|| Buf::new(SIZES.get(class).copied().unwrap_or(8)))
    }

    pub(super) fn give_room(&mut self, class: usize, buf: Buf) {
        if let Some(rooms) = self.rooms.get_mut(class % SIZES.len()) {
            rooms.push(buf);
        }
    }

    pub(super) fn fail_link(
        &mut self,
        link: &mut Link,
        id: RankId,
        kind: char,
        posted: u64,
        err: Errno,
    ) {
        link.limits.broken = true;
        // A connected endpoint is refused at once.
        let never_met =
            err == Errno::ECONNREFUSED && !link.history.met && self.net.kind != Kind::Msg;
        let met = if never_met {
            " never-met"
        } else if link.limits.silent && !link.history.called {
            " silent"
        } else {
            ""
        };
        self.report.push_str(&format!(
            "err {kind} {id} {posted} {} {} {err}{met}\n",
            now_ns(),
            self.longest_pause()
        ));
    }

    /// Returns the longest recent pause between two polls, in nanoseconds.
    pub(super) fn longest_pause(&self) -> u64 {
        self.pauses.values().copied().max().unwrap_or(0)
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Progress of the RMAs of one side of a connection. Each queued RMA has a number. Each sharer
//! process publishes its oldest unfinished number and the number of its calls that copy now.
//!
//! Not about windows. A fork makes several sharers, each with its own worker, and each may be
//! killed. So a mark is reached when no living sharer has an older number; a count of finished RMAs
//! would not suffice. A process gets a place with its first RMA or registration; without a free
//! place it copies inside its calls and moves no pages. The peer reads all of it and writes none.

use std::sync::Mutex;

use scif::sys::process::{self, ProcessState};
use scif::sys::{fork, process::pid};
use scif_ring::counter::AtomicCounter;
use scif_ring::{SharedU64, SharedWords, full_fence};

use crate::failure::{Failure, Result};
use crate::lock::take;

/// Number of places. Further processes copy inside their calls.
pub(crate) const SHARERS_MAX: usize = 32;
/// Words of a place: process token, oldest number, copying calls.
pub(crate) const SHARER_WORDS: usize = 8;

const TOKEN: usize = 0;
const OLDEST: usize = 1;
const COPYING: usize = 2;

/// Whether a place, whose words `read` returns, has no RMA queued and no call that copies. In this
/// order: a call that has found a window is seen as copying, or what it has queued is seen.
fn rests(read: &dyn Fn(usize) -> Result<u64>) -> Result<bool> {
    Ok(read(COPYING)? == 0 && read(OLDEST)? == 0)
}

/// Places, for reading.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sharers {
    places: SharedWords,
    /// Number of RMAs queued so far.
    queued: SharedU64,
    /// Number of calls that copy now, of processes without a place.
    others_copying: SharedU64,
}

/// Returns the token of this process: process id and start time in one word, never 0.
fn process_token() -> u64 {
    match process::state_of(pid()) {
        ProcessState::Seen(stat) => name(pid(), stat.start),
        ProcessState::Gone | ProcessState::Hidden => name(pid(), 0),
    }
}

fn name(pid: i32, start: u64) -> u64 {
    start << 32 | u64::from(pid.unsigned_abs())
}

#[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
fn pid_of(token: u64) -> i32 {
    token as i32
}

/// Whether the process of a token has ended.
fn is_dead(token: u64) -> bool {
    match process::state_of(pid_of(token)) {
        ProcessState::Seen(stat) => {
            stat.ended || (token >> 32 != 0 && name(pid_of(token), stat.start) != token)
        }
        ProcessState::Gone => true,
        ProcessState::Hidden => false,
    }
}

impl Sharers {
    pub(crate) fn over(
        places: SharedWords,
        queued: SharedU64,
        others_copying: SharedU64,
    ) -> Sharers {
        Sharers { places, queued, others_copying }
    }

    fn word(&self, place: usize, which: usize) -> Result<SharedU64> {
        self.places.get(place * SHARER_WORDS + which).ok_or(Failure::Broken)
    }

    /// Returns the number of RMAs queued so far.
    pub(crate) fn queued(&self) -> u64 {
        self.queued.get()
    }

    /// Whether all RMAs up to a number are finished, or belonged to a process that ended. `ends`:
    /// whether to check for ended processes, which takes system calls.
    pub(crate) fn finished(&self, ticket: u64, ends: bool) -> Result<bool> {
        self.all_places(ends, |read| {
            let oldest = read(OLDEST)?;
            Ok(oldest == 0 || oldest > ticket)
        })
    }

    /// Whether no call copies, or looks up windows.
    pub(crate) fn copy_none(&self, ends: bool) -> Result<bool> {
        Ok(self.others_copying.get() == 0
            && self.all_places(ends, |read| Ok(read(COPYING)? == 0))?)
    }

    /// Whether no RMA is queued and no call copies.
    pub(crate) fn at_rest(&self, ends: bool) -> Result<bool> {
        Ok(self.others_copying.get() == 0 && self.all_places(ends, rests)?)
    }

    /// Whether `so` holds for all places. A place of an ended process satisfies it if `ends`.
    fn all_places(
        &self,
        ends: bool,
        so: impl Fn(&dyn Fn(usize) -> Result<u64>) -> Result<bool>,
    ) -> Result<bool> {
        for place in 0..SHARERS_MAX {
            let token = self.word(place, TOKEN)?.get();
            if token == 0 {
                continue;
            }
            let is_so = so(&|which| Ok(self.word(place, which)?.get()))?;
            if !(is_so || ends && is_dead(token)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the living processes with a place, except this one.
    pub(crate) fn others(&self) -> Vec<i32> {
        (0..SHARERS_MAX)
            .filter_map(|place| self.word(place, TOKEN).ok())
            .map(|word| word.get())
            .filter(|&token| token != 0 && pid_of(token) != pid() && !is_dead(token))
            .map(pid_of)
            .collect()
    }

    /// Whether another process has a place, including one that died and was not removed yet.
    pub(crate) fn shared(&self) -> bool {
        (0..SHARERS_MAX)
            .filter_map(|place| self.word(place, TOKEN).ok())
            .any(|word| word.get() != 0 && pid_of(word.get()) != pid())
    }

    /// Frees the places of processes that ended or called `exec`. Returns whether there were any.
    /// Only for the own side.
    ///
    /// A process that calls `exec` keeps its process id and start time, so its token names a living
    /// process. Only its absence from the fork group shows that it has left: its ends of the socket
    /// pairs were closed. If `alone` finds no other process in the group, every place of another
    /// process is freed. `alone` runs after the tokens were read, since a child forked later may
    /// claim a place.
    pub(crate) fn reap(&self, alone: impl FnOnce() -> bool) -> bool {
        let words = |place| {
            let token = self.word(place, TOKEN).ok()?;
            Some((
                token,
                token.get(),
                self.word(place, OLDEST).ok()?,
                self.word(place, COPYING).ok()?,
            ))
        };
        let mut named: Vec<_> = (0..SHARERS_MAX).filter_map(words).collect();
        named.retain(|&(_, name, ..)| name != 0 && pid_of(name) != pid());
        let all = !named.is_empty() && alone();
        let mut found = false;
        for (token, name, oldest, copying) in named {
            if (all || is_dead(name)) && token.compare_exchange(name, process_token()) {
                oldest.set(0);
                copying.set(0);
                token.set(0);
                found = true;
            }
        }
        found
    }

    /// Whether a process has a place. Then process ids have the same meaning for the peer and this
    /// process.
    pub(crate) fn has(&self, pid: i32) -> bool {
        pid > 0
            && (0..SHARERS_MAX)
                .any(|place| self.word(place, TOKEN).is_ok_and(|word| pid_of(word.get()) == pid))
    }
}

/// Place of this process, once it has one.
#[derive(Debug, Default)]
pub(crate) struct Own {
    /// Fork generation of the process plus one in the upper bits; the place plus one in the lower 8
    /// bits, or 0 without a place.
    place: AtomicCounter,
    /// Numbers of this process's unfinished RMAs, in ascending order.
    unfinished: Mutex<Vec<u64>>,
    claiming: Mutex<()>,
}

impl Own {
    /// Returns the place of this process, and claims one if necessary.
    pub(crate) fn place(&self, sharers: &Sharers) -> Option<usize> {
        let mine = (fork::generation() + 1) << 8;
        let known = self.place.get();
        let known = if known & !0xff == mine {
            known
        } else {
            let _claiming = take(&self.claiming);
            if self.place.get() & !0xff != mine {
                // RMAs that a parent had not finished belong to the parent.
                take(&self.unfinished).clear();
                let got = claim(sharers).map_or(0, |place| place as u64 + 1);
                self.place.set(mine | got);
            }
            self.place.get()
        };
        usize::try_from(known & 0xff).ok()?.checked_sub(1)
    }

    /// Queues one more RMA and returns its number. `None`: this process has no place.
    pub(crate) fn queue(&self, sharers: &Sharers) -> Result<Option<u64>> {
        let Some(place) = self.place(sharers) else {
            return Ok(None);
        };
        let oldest = sharers.word(place, OLDEST)?;
        let mut unfinished = take(&self.unfinished);
        if unfinished.is_empty() {
            // Set before the new number is counted: a thread that saw it as queued, and no older
            // number here, would take it for finished. `queued() + 1` is at most the new number.
            oldest.set(sharers.queued() + 1);
        }
        let ticket = sharers.queued.add(1) + 1;
        if unfinished.is_empty() {
            oldest.set(ticket);
        }
        unfinished.push(ticket);
        Ok(Some(ticket))
    }

    /// Marks an RMA of this process as finished.
    pub(crate) fn finish(&self, sharers: &Sharers, ticket: u64) -> Result<()> {
        let Some(place) = self.place(sharers) else {
            return Ok(());
        };
        let mut unfinished = take(&self.unfinished);
        unfinished.retain(|&other| other != ticket);
        sharers.word(place, OLDEST)?.set(unfinished.first().copied().unwrap_or(0));
        Ok(())
    }

    /// Marks a call of this process as copying, from its window lookup until the value is dropped.
    /// SYNC POINT: this fence pairs with the one in `wait_for_rest`, which runs between a
    /// deletion and `at_rest`.
    pub(crate) fn copying(&self, sharers: &Sharers) -> Result<Copying> {
        let word = match self.place(sharers) {
            Some(place) => sharers.word(place, COPYING)?,
            None => sharers.others_copying,
        };
        word.add(1);
        full_fence();
        Ok(Copying(word))
    }
}

/// Claims a place that is free or belongs to an ended process.
fn claim(sharers: &Sharers) -> Option<usize> {
    let me = process_token();
    for ends in [false, true] {
        for place in 0..SHARERS_MAX {
            let token = sharers.word(place, TOKEN).ok()?;
            let before = token.get();
            let free = before == 0 || (ends && is_dead(before));
            if free && token.compare_exchange(before, me) {
                sharers.word(place, OLDEST).ok()?.set(0);
                sharers.word(place, COPYING).ok()?.set(0);
                return Some(place);
            }
        }
    }
    None
}

/// Marker of a call that copies, see [`Own::copying`].
#[derive(Debug)]
pub(crate) struct Copying(SharedU64);

impl Drop for Copying {
    fn drop(&mut self) {
        self.0.sub(1);
    }
}

#[cfg(test)]
mod tests {
    use scif::sys::children;
    use scif::sys::mmap::Mapping;

    use super::*;

    fn sharers(map: &Mapping) -> Sharers {
        Sharers::over(
            map.words(0, SHARERS_MAX * SHARER_WORDS).unwrap(),
            map.word64(2048).unwrap(),
            map.word64(2056).unwrap(),
        )
    }

    #[test]
    fn a_mark_waits_for_every_living_sharer() {
        let map = Mapping::anonymous(4096).unwrap();
        let all = sharers(&map);
        let own = Own::default();
        let first = own.queue(&all).unwrap().unwrap();
        // Second sharer: some process that exists.
        let mut child = children::spawn(std::process::Command::new("sleep").arg("60"));
        let ProcessState::Seen(stat) = process::state_of(child.id() as i32) else {
            panic!("cannot see a child")
        };
        all.word(1, TOKEN).unwrap().set(name(child.id() as i32, stat.start));
        all.word(1, OLDEST).unwrap().set(2);
        all.queued.set(2);
        let third = own.queue(&all).unwrap().unwrap();
        assert_eq!((first, third), (1, 3));
        own.finish(&all, first).unwrap();
        assert!(all.finished(1, false).unwrap());
        assert!(!all.finished(2, true).unwrap(), "the other sharer copies");
        own.finish(&all, third).unwrap();
        assert!(!all.finished(3, true).unwrap() && !all.at_rest(true).unwrap());
        assert_eq!(all.others(), [child.id() as i32]);
        assert!(all.shared());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!all.finished(3, false).unwrap(), "no check for deaths");
        assert!(all.finished(3, true).unwrap() && all.at_rest(true).unwrap());
        assert!(all.others().is_empty() && all.shared());
        assert!(all.reap(|| false) && !all.reap(|| true) && !all.shared());
        assert!(all.finished(3, false).unwrap() && all.at_rest(false).unwrap());
    }

    #[test]
    fn exec_frees_the_place_once_the_fork_group_has_ended() {
        let map = Mapping::anonymous(4096).unwrap();
        let all = sharers(&map);
        let own = Own::default();
        let ticket = own.queue(&all).unwrap().unwrap();
        // Existing process, as after a call of exec.
        all.word(1, TOKEN).unwrap().set(name(1, 0));
        all.word(1, OLDEST).unwrap().set(1);
        assert!(!all.reap(|| false) && all.shared());
        assert!(all.reap(|| true) && !all.shared());
        assert!(!all.finished(ticket, false).unwrap(), "what is of this process stays");
        own.finish(&all, ticket).unwrap();
        assert!(all.finished(ticket, false).unwrap());
    }

    #[test]
    fn numbers_may_be_finished_in_any_order() {
        let map = Mapping::anonymous(4096).unwrap();
        let all = sharers(&map);
        let own = Own::default();
        let tickets: Vec<u64> = (0..3).map(|_| own.queue(&all).unwrap().unwrap()).collect();
        own.finish(&all, tickets[1]).unwrap();
        assert!(!all.finished(tickets[1], false).unwrap());
        own.finish(&all, tickets[0]).unwrap();
        assert!(
            all.finished(tickets[1], false).unwrap() && !all.finished(tickets[2], false).unwrap()
        );
        own.finish(&all, tickets[2]).unwrap();
        let copying = own.copying(&all).unwrap();
        assert!(!all.at_rest(false).unwrap());
        drop(copying);
        assert!(all.at_rest(false).unwrap());
    }

    #[test]
    fn an_rma_that_is_queued_meanwhile_is_seen() {
        let map = Mapping::anonymous(4096).unwrap();
        let all = sharers(&map);
        let own = Own::default();
        for before in [0, 1] {
            let copying = std::cell::Cell::new(Some(own.copying(&all).unwrap()));
            let (reads, ticket) = (std::cell::Cell::new(0), std::cell::Cell::new(None));
            let read = |which: usize| {
                if reads.replace(reads.get() + 1) == before {
                    ticket.set(own.queue(&all)?);
                    drop(copying.take());
                }
                Ok(all.word(0, which)?.get())
            };
            assert_eq!(rests(&read), Ok(false), "queued before read {before}");
            drop(copying.take());
            let queued = ticket.get().map_or_else(|| own.queue(&all).unwrap(), Some);
            own.finish(&all, queued.unwrap()).unwrap();
            assert!(all.at_rest(false).unwrap());
        }
    }

    #[test]
    fn a_process_without_a_place_counts_too() {
        let map = Mapping::anonymous(4096).unwrap();
        let all = sharers(&map);
        for place in 0..SHARERS_MAX {
            all.word(place, TOKEN).unwrap().set(name(1, 0));
        }
        let own = Own::default();
        assert_eq!(own.queue(&all).unwrap(), None);
        let copying = own.copying(&all).unwrap();
        assert!(!all.at_rest(true).unwrap());
        drop(copying);
        assert!(all.at_rest(true).unwrap());
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! What the RMAs of one side of a connection are at: a number for each that is queued, and for every process that holds
//! the endpoint the oldest one it has not finished and how many of its calls copy just now.
//!
//! Not about windows. A fork makes several holders, each with a worker of its own, and each may be killed: a mark is
//! reached when no living holder has an older number, not when so many were finished. A process gets a place with its
//! first RMA; one that finds none copies within its calls. The peer reads all of it and writes none.

use std::sync::Mutex;

use scif_ring::counter::Count;
use scif_ring::{Word64, Words, full_fence};

use crate::epd::{Failure, Result, take};
use crate::sys::process::{self, Sight};
use crate::sys::{fork, process::pid};

/// Places for holders.
pub(crate) const HOLDERS_MAX: usize = 32;
/// Words a place takes: who, oldest, copying.
pub(crate) const HOLDER_WORDS: usize = 8;

const WHO: usize = 0;
const OLDEST: usize = 1;
const COPYING: usize = 2;

/// The places, read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holders {
    places: Words,
    /// RMAs queued so far.
    queued: Word64,
    /// Calls of processes without a place that copy just now.
    others_copying: Word64,
}

/// A process and when it started, in a word; 0 for none.
fn who_am_i() -> u64 {
    match process::look(pid()) {
        Sight::Seen(stat) => name(pid(), stat.start),
        Sight::Gone | Sight::Hidden => name(pid(), 0),
    }
}

fn name(pid: i32, start: u64) -> u64 {
    start << 32 | u64::from(pid.cast_unsigned())
}

#[expect(clippy::cast_possible_truncation, reason = "takes a word apart")]
fn pid_of(who: u64) -> i32 {
    (who as u32).cast_signed()
}

/// Whether a process that is named is no more.
fn is_dead(who: u64) -> bool {
    match process::look(pid_of(who)) {
        Sight::Seen(stat) => stat.ended || (who >> 32 != 0 && name(pid_of(who), stat.start) != who),
        Sight::Gone => true,
        Sight::Hidden => false,
    }
}

impl Holders {
    pub(crate) fn over(places: Words, queued: Word64, others_copying: Word64) -> Holders {
        Holders {
            places,
            queued,
            others_copying,
        }
    }

    fn word(&self, place: usize, which: usize) -> Result<Word64> {
        self.places
            .get(place * HOLDER_WORDS + which)
            .ok_or(Failure::Broken)
    }

    /// RMAs queued so far.
    pub(crate) fn queued(&self) -> u64 {
        self.queued.get()
    }

    /// Whether all RMAs up to a number are finished, or were left by a process that ended. `ends`: whether to look for
    /// such, which takes system calls.
    pub(crate) fn finished(&self, ticket: u64, ends: bool) -> Result<bool> {
        self.all_places(ends, |oldest, _| oldest == 0 || oldest > ticket)
    }

    /// Whether nothing is queued and no call copies.
    pub(crate) fn at_rest(&self, ends: bool) -> Result<bool> {
        Ok(self.others_copying.get() == 0
            && self.all_places(ends, |oldest, copying| oldest == 0 && copying == 0)?)
    }

    /// Whether `so` of all places; one of a process that ended counts as if.
    fn all_places(&self, ends: bool, so: impl Fn(u64, u64) -> bool) -> Result<bool> {
        for place in 0..HOLDERS_MAX {
            let who = self.word(place, WHO)?.get();
            if who == 0 {
                continue;
            }
            let is_so = so(self.word(place, OLDEST)?.get(), self.word(place, COPYING)?.get());
            if !(is_so || ends && is_dead(who)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The processes that have a place and live, but this one.
    pub(crate) fn others(&self) -> Vec<i32> {
        (0..HOLDERS_MAX)
            .filter_map(|place| self.word(place, WHO).ok())
            .map(|word| word.get())
            .filter(|&who| who != 0 && pid_of(who) != pid() && !is_dead(who))
            .map(pid_of)
            .collect()
    }

    /// Whether another process has a place, be it one that died and was not buried yet.
    pub(crate) fn shared(&self) -> bool {
        (0..HOLDERS_MAX)
            .filter_map(|place| self.word(place, WHO).ok())
            .any(|word| word.get() != 0 && pid_of(word.get()) != pid())
    }

    /// Frees the places of processes that ended or called `exec`; whether there were such. Only for one's own side.
    ///
    /// A process that calls `exec` keeps its number and its start. It is known by having left this process without relatives
    /// (`alone`, asked after the names were read): every place of another process is then without an owner.
    pub(crate) fn bury(&self, alone: impl FnOnce() -> bool) -> bool {
        let words = |place| {
            let who = self.word(place, WHO).ok()?;
            Some((
                who,
                who.get(),
                self.word(place, OLDEST).ok()?,
                self.word(place, COPYING).ok()?,
            ))
        };
        let mut named: Vec<_> = (0..HOLDERS_MAX).filter_map(words).collect();
        named.retain(|&(_, name, ..)| name != 0 && pid_of(name) != pid());
        let all = !named.is_empty() && alone();
        let mut found = false;
        for (who, name, oldest, copying) in named {
            if (all || is_dead(name)) && who.change(name, who_am_i()) {
                oldest.set(0);
                copying.set(0);
                who.set(0);
                found = true;
            }
        }
        found
    }

    /// Whether a process has a place: then the numbers of processes mean to the peer what they mean here.
    pub(crate) fn has(&self, pid: i32) -> bool {
        pid > 0
            && (0..HOLDERS_MAX).any(|place| self.word(place, WHO).is_ok_and(|word| pid_of(word.get()) == pid))
    }
}

/// This process's place, once it has one.
#[derive(Debug, Default)]
pub(crate) struct Own {
    /// Forks behind the process, plus one, above; the place plus one, or 0 for none to be had, below.
    place: Count,
    /// Numbers of this process's RMAs that are not finished, in their order.
    unfinished: Mutex<Vec<u64>>,
    claiming: Mutex<()>,
}

impl Own {
    /// The place of this process.
    pub(crate) fn place(&self, holders: &Holders) -> Option<usize> {
        let mine = (fork::generation() + 1) << 8;
        let known = self.place.get();
        let known = if known & !0xff == mine {
            known
        } else {
            let _claiming = take(&self.claiming);
            if self.place.get() & !0xff != mine {
                // What a parent had not finished is the parent's.
                take(&self.unfinished).clear();
                let got = claim(holders).map_or(0, |place| place as u64 + 1);
                self.place.set(mine | got);
            }
            self.place.get()
        };
        usize::try_from(known & 0xff).ok()?.checked_sub(1)
    }

    /// One more RMA is queued; its number. `None`: this process has no place.
    pub(crate) fn queue(&self, holders: &Holders) -> Result<Option<u64>> {
        let Some(place) = self.place(holders) else {
            return Ok(None);
        };
        let oldest = holders.word(place, OLDEST)?;
        let mut unfinished = take(&self.unfinished);
        if unfinished.is_empty() {
            // At most its number, and there before anybody can have seen a number as high.
            oldest.set(holders.queued() + 1);
        }
        let ticket = holders.queued.add(1) + 1;
        if unfinished.is_empty() {
            oldest.set(ticket);
        }
        unfinished.push(ticket);
        Ok(Some(ticket))
    }

    /// An RMA of this process is finished.
    pub(crate) fn finish(&self, holders: &Holders, ticket: u64) -> Result<()> {
        let Some(place) = self.place(holders) else {
            return Ok(());
        };
        let mut unfinished = take(&self.unfinished);
        unfinished.retain(|&other| other != ticket);
        holders
            .word(place, OLDEST)?
            .set(unfinished.first().copied().unwrap_or(0));
        Ok(())
    }

    /// A call of this process looks windows up and copies, until the value is dropped. SYNC POINT: with the fence, pairs
    /// with the fence of whoever deletes a window and then looks at `at_rest`.
    pub(crate) fn copying(&self, holders: &Holders) -> Result<Copying> {
        let word = match self.place(holders) {
            Some(place) => holders.word(place, COPYING)?,
            None => holders.others_copying,
        };
        word.add(1);
        full_fence();
        Ok(Copying(word))
    }
}

/// Takes a place that is free, or whose process ended.
fn claim(holders: &Holders) -> Option<usize> {
    let me = who_am_i();
    for ends in [false, true] {
        for place in 0..HOLDERS_MAX {
            let who = holders.word(place, WHO).ok()?;
            let before = who.get();
            let free = before == 0 || (ends && is_dead(before));
            if free && who.change(before, me) {
                holders.word(place, OLDEST).ok()?.set(0);
                holders.word(place, COPYING).ok()?.set(0);
                return Some(place);
            }
        }
    }
    None
}

/// See [`Own::copying`].
#[derive(Debug)]
pub(crate) struct Copying(Word64);

impl Drop for Copying {
    fn drop(&mut self) {
        self.0.sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::children;
    use crate::sys::mmap::Mapping;

    fn holders(map: &Mapping) -> Holders {
        Holders::over(
            map.words(0, HOLDERS_MAX * HOLDER_WORDS).unwrap(),
            map.word64(2048).unwrap(),
            map.word64(2056).unwrap(),
        )
    }

    #[test]
    fn a_mark_waits_for_every_holder_and_for_no_dead_one() {
        let map = Mapping::anonymous(4096).unwrap();
        let all = holders(&map);
        let own = Own::default();
        let first = own.queue(&all).unwrap().unwrap();
        // A second holder: some process that lives.
        let mut child = children::spawn(std::process::Command::new("sleep").arg("60"));
        let Sight::Seen(stat) = process::look(child.id().cast_signed()) else {
            panic!("cannot see a child")
        };
        all.word(1, WHO)
            .unwrap()
            .set(name(child.id().cast_signed(), stat.start));
        all.word(1, OLDEST).unwrap().set(2);
        all.queued.set(2);
        let third = own.queue(&all).unwrap().unwrap();
        assert_eq!((first, third), (1, 3));
        own.finish(&all, first).unwrap();
        assert!(all.finished(1, false).unwrap());
        assert!(!all.finished(2, true).unwrap(), "the other holder is at it");
        own.finish(&all, third).unwrap();
        assert!(!all.finished(3, true).unwrap() && !all.at_rest(true).unwrap());
        assert_eq!(all.others(), [child.id().cast_signed()]);
        assert!(all.shared());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!all.finished(3, false).unwrap(), "nobody looked");
        assert!(all.finished(3, true).unwrap() && all.at_rest(true).unwrap());
        assert!(all.others().is_empty() && all.shared());
        assert!(all.bury(|| false) && !all.bury(|| true) && !all.shared());
        assert!(all.finished(3, false).unwrap() && all.at_rest(false).unwrap());
    }

    #[test]
    fn who_calls_exec_leaves_its_place_when_no_relative_is_left() {
        let map = Mapping::anonymous(4096).unwrap();
        let all = holders(&map);
        let own = Own::default();
        let ticket = own.queue(&all).unwrap().unwrap();
        // A process that lives, as one does that has called exec.
        all.word(1, WHO).unwrap().set(name(1, 0));
        all.word(1, OLDEST).unwrap().set(1);
        assert!(!all.bury(|| false) && all.shared());
        assert!(all.bury(|| true) && !all.shared());
        assert!(
            !all.finished(ticket, false).unwrap(),
            "what is of this process stays"
        );
        own.finish(&all, ticket).unwrap();
        assert!(all.finished(ticket, false).unwrap());
    }

    #[test]
    fn numbers_may_be_finished_in_any_order() {
        let map = Mapping::anonymous(4096).unwrap();
        let all = holders(&map);
        let own = Own::default();
        let tickets: Vec<u64> = (0..3).map(|_| own.queue(&all).unwrap().unwrap()).collect();
        own.finish(&all, tickets[1]).unwrap();
        assert!(!all.finished(tickets[1], false).unwrap());
        own.finish(&all, tickets[0]).unwrap();
        assert!(all.finished(tickets[1], false).unwrap() && !all.finished(tickets[2], false).unwrap());
        own.finish(&all, tickets[2]).unwrap();
        let copying = own.copying(&all).unwrap();
        assert!(!all.at_rest(false).unwrap());
        drop(copying);
        assert!(all.at_rest(false).unwrap());
    }

    #[test]
    fn who_finds_no_place_counts_too() {
        let map = Mapping::anonymous(4096).unwrap();
        let all = holders(&map);
        for place in 0..HOLDERS_MAX {
            all.word(place, WHO).unwrap().set(name(1, 0));
        }
        let own = Own::default();
        assert_eq!(own.queue(&all).unwrap(), None);
        let copying = own.copying(&all).unwrap();
        assert!(!all.at_rest(true).unwrap());
        drop(copying);
        assert!(all.at_rest(true).unwrap());
    }
}

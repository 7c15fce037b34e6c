// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The threads that copy what need not be waited for: each works off a queue, in the order in which it was filled.
//!
//! Not about what is copied, nor about fences. A thread starts with the first transfer that is left to it, gets no
//! signals, and is not there in a forked child until that leaves something to its own. An endpoint has always the same
//! one. What is queued when the program leaves by `exit` is done before.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use scif_ring::counter::{Count, Flag};

use super::copies::{self, Spot};
use super::targets::Target;
use super::watcher::Watcher;
use crate::epd::{Epd, Failure, Link, Result, take};
use crate::logging::warn_about_peer;
use crate::sys::time::{cpu_relax_or_yield, now_ns};
use crate::sys::{fork, thread};

/// How often a program that leaves looks whether the queues are empty.
const DRAIN: Duration = Duration::from_micros(100);
/// How long a worker that has nothing to do looks before it sleeps.
const LINGER_NS: u64 = 200_000;

/// What is left to a worker.
enum Work {
    Copy {
        pairs: Vec<(Spot, Spot)>,
        ordered: bool,
        target: Option<Target>,
    },
    Store(Vec<(Spot, u64)>),
}

struct Job {
    epd: Arc<Epd>,
    ticket: u64,
    work: Work,
}

/// A queue and who works it off.
#[derive(Default)]
struct Channel {
    jobs: Mutex<Jobs>,
    worker: OnceLock<Thread>,
    /// How many jobs there ever were.
    queued: Count,
    /// Whether the worker sleeps or is about to.
    asleep: Flag,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    /// Whether the worker is at one that it has taken.
    busy: bool,
}

/// The channels of one process.
#[derive(Default)]
struct Channels {
    /// Of the process that is of this many forks.
    generation: u64,
    started: Vec<(u64, Arc<Channel>)>,
}

/// The threads of one process.
#[derive(Default)]
pub(crate) struct Workers {
    channels: Mutex<Channels>,
    watcher: Mutex<Option<(u64, Arc<Watcher>)>>,
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workers")
            .field("threads", &self.threads())
            .finish()
    }
}

fn do_job(job: Job) {
    let Some(link) = job.epd.link() else { return };
    let done = match job.work {
        Work::Copy {
            pairs,
            ordered,
            target,
        } => {
            let copied = copies::copy(&pairs, ordered);
            // Before a fence says so: the pages may move then.
            drop(target);
            copied
        }
        Work::Store(stores) => {
            // Our own before it are finished; those of other holders may not be.
            link.wait_for(false, job.ticket - 1);
            store_all(&stores)
        }
    };
    match done {
        Ok(()) => {}
        Err(Failure::BadAddress) => {
            warn_about_peer!(
                "an RMA was not done: the program unmapped or protected its memory before a fence said so"
            );
        }
        Err(failure) => warn_about_peer!("an RMA was not done: {failure}"),
    }
    if let Err(failure) = link.own.table.finish(job.ticket) {
        warn_about_peer!("an RMA does not count as done: {failure}");
    }
    link.tell_finished();
}

pub(super) fn store_all(stores: &[(Spot, u64)]) -> Result<()> {
    stores
        .iter()
        .try_for_each(|(spot, value)| copies::store(spot, *value))
}

impl Channel {
    fn run(&self) {
        let _ = self.worker.set(std::thread::current());
        loop {
            let seen = self.queued.get();
            let job = {
                let mut jobs = take(&self.jobs);
                let job = jobs.waiting.pop_front();
                jobs.busy = job.is_some();
                job
            };
            match job {
                Some(job) => do_job(job),
                None => self.rest(seen),
            }
        }
    }

    /// Until more than `seen` was queued; may end for no reason. Transfers come in flocks, and waking somebody costs the
    /// caller more than the rest of its call: so the worker looks for a while before it sleeps.
    fn rest(&self, seen: u64) {
        let begin = now_ns();
        let mut looks = 0;
        while now_ns() - begin < LINGER_NS {
            if self.queued.get() != seen {
                return;
            }
            looks += 1;
            cpu_relax_or_yield(looks);
        }
        self.asleep.set(true);
        if self.is_empty() {
            std::thread::park();
        }
        self.asleep.set(false);
    }

    fn is_empty(&self) -> bool {
        take(&self.jobs).waiting.is_empty()
    }

    fn is_idle(&self) -> bool {
        let jobs = take(&self.jobs);
        !jobs.busy && jobs.waiting.is_empty()
    }
}

impl Workers {
    /// How many threads of this process are ours, but for the service thread.
    pub(crate) fn threads(&self) -> usize {
        let here = fork::generation();
        let channels = take(&self.channels);
        let copiers = if channels.generation == here {
            channels.started.len()
        } else {
            0
        };
        let watcher = take(&self.watcher).as_ref().is_some_and(|(g, _)| *g == here);
        copiers + usize::from(watcher)
    }

    /// The channel of an endpoint, started if it is not.
    fn channel(self: &Arc<Self>, epd: &Epd, count: u64) -> Result<Arc<Channel>> {
        let number = epd.token % count.max(1);
        let mut channels = take(&self.channels);
        if channels.generation != fork::generation() {
            // What a parent has queued is the parent's.
            *channels = Channels {
                generation: fork::generation(),
                started: Vec::new(),
            };
        }
        if let Some((_, channel)) = channels.started.iter().find(|(n, _)| *n == number) {
            return Ok(Arc::clone(channel));
        }
        let channel = Arc::new(Channel::default());
        let runner = Arc::clone(&channel);
        thread::spawn_quiet("scif-dma", move || runner.run()).map_err(|_| Failure::NoMemory)?;
        if channels.started.is_empty() {
            let workers = Arc::downgrade(self);
            thread::at_exit(move || {
                if let Some(workers) = workers.upgrade() {
                    workers.drain();
                }
            });
        }
        channels.started.push((number, Arc::clone(&channel)));
        Ok(channel)
    }

    /// Until nothing is queued any more in this process.
    fn drain(&self) {
        let started: Vec<Arc<Channel>> = {
            let channels = take(&self.channels);
            if channels.generation != fork::generation() {
                return;
            }
            channels.started.iter().map(|(_, c)| Arc::clone(c)).collect()
        };
        while !started.iter().all(|channel| channel.is_idle()) {
            std::thread::sleep(DRAIN);
        }
    }

    /// Leaves work to a worker; gives it back if it has to be done at once.
    fn give(self: &Arc<Self>, epd: &Arc<Epd>, link: &Link, count: u64, work: Work) -> Result<Option<Work>> {
        if !link.own.table.take_place() {
            return Ok(Some(work));
        }
        let channel = self.channel(epd, count)?;
        {
            // Numbered and queued under one lock, so that numbers and queue agree.
            let mut jobs = take(&channel.jobs);
            let Some(ticket) = link.own.table.queue()? else {
                return Ok(Some(work));
            };
            jobs.waiting.push_back(Job {
                epd: Arc::clone(epd),
                ticket,
                work,
            });
            channel.queued.add(1);
        }
        // The lock orders: a worker that found nothing before this was queued has said so before it looked.
        if channel.asleep.get()
            && let Some(worker) = channel.worker.get()
        {
            worker.unpark();
        }
        Ok(None)
    }

    /// Leaves a transfer to a worker.
    pub(crate) fn queue(
        self: &Arc<Self>,
        epd: &Arc<Epd>,
        link: &Link,
        count: u64,
        pairs: Vec<(Spot, Spot)>,
        ordered: bool,
        target: Option<Target>,
    ) -> Result<()> {
        let work = Work::Copy {
            pairs,
            ordered,
            target,
        };
        match self.give(epd, link, count, work)? {
            Some(Work::Copy {
                pairs,
                ordered,
                target,
            }) => {
                let copied = copies::copy(&pairs, ordered);
                drop(target);
                copied
            }
            _ => Ok(()),
        }
    }

    /// Stores values when what was queued before is finished.
    pub(crate) fn store_after_own(
        self: &Arc<Self>,
        epd: &Arc<Epd>,
        link: &Link,
        count: u64,
        stores: Vec<(Spot, u64)>,
    ) -> Result<()> {
        let holders = &link.own.table.holders;
        let queued = holders.queued();
        if holders.finished(queued, false)? {
            return store_all(&stores);
        }
        match self.give(epd, link, count, Work::Store(stores))? {
            Some(Work::Store(stores)) => {
                link.wait_for(false, queued);
                store_all(&stores)
            }
            _ => Ok(()),
        }
    }

    /// Stores values when the peer has finished what it had queued.
    pub(crate) fn store_after_peer(
        &self,
        epd: &Arc<Epd>,
        link: &Link,
        stores: Vec<(Spot, u64)>,
    ) -> Result<()> {
        let holders = &link.peer.table.holders;
        let ticket = holders.queued();
        if holders.finished(ticket, false)? {
            return store_all(&stores);
        }
        let watcher = {
            let mut slot = take(&self.watcher);
            match &*slot {
                Some((generation, watcher)) if *generation == fork::generation() => Arc::clone(watcher),
                _ => {
                    let watcher = Watcher::start()?;
                    *slot = Some((fork::generation(), Arc::clone(&watcher)));
                    watcher
                }
            }
        };
        watcher.add(epd, ticket, stores);
        Ok(())
    }
}

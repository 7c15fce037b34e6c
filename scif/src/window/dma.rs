// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The thread that copies what need not be waited for, in the order in which it was queued.
//!
//! Not about what is copied. It starts with the first transfer that is left to it, gets no signals, and is not there in
//! a forked child until that leaves something to its own. One a process: all RMAs of an endpoint finish in their order,
//! so that two counters say which have.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use scif_ring::counter::Count;

use super::copies::{self, Spot};
use crate::epd::{Epd, Failure, Link, Result, take};
use crate::sys::{fork, thread};

/// How long the thread for the peer's RMAs sleeps between two looks.
const LOOK: Duration = Duration::from_micros(50);

/// What is left to the worker.
enum Work {
    Copy { pairs: Vec<(Spot, Spot)>, ordered: bool },
    Store(Vec<(Spot, u64)>),
}

struct Job {
    epd: Arc<Epd>,
    work: Work,
}

/// Values to store when the peer has finished so many RMAs.
struct Awaited {
    epd: Arc<Epd>,
    ticket: u64,
    stores: Vec<(Spot, u64)>,
}

/// The threads of one process.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    /// Of the process that is of this many forks.
    copier: Mutex<Option<(u64, Sender<Job>)>>,
    watcher: Mutex<Option<(u64, Sender<Awaited>)>>,
    threads: Count,
}

/// A sender to a thread of this process, which is started if there is none.
fn sender<T: Send + 'static>(
    slot: &Mutex<Option<(u64, Sender<T>)>>,
    threads: &Count,
    name: &str,
    run: impl FnOnce(std::sync::mpsc::Receiver<T>) + Send + 'static,
) -> Result<Sender<T>> {
    let mut slot = take(slot);
    if let Some((generation, sender)) = &*slot
        && *generation == fork::generation()
    {
        return Ok(sender.clone());
    }
    let (sender, receiver) = channel();
    thread::spawn_quiet(name, move || run(receiver)).map_err(|_| Failure::NoMemory)?;
    threads.add(1);
    *slot = Some((fork::generation(), sender.clone()));
    Ok(sender)
}

fn do_job(job: &Job) {
    let Some(link) = job.epd.link() else { return };
    let done = match &job.work {
        Work::Copy { pairs, ordered } => copies::copy(pairs, *ordered),
        Work::Store(stores) => store_all(stores),
    };
    if let Err(failure) = done.and_then(|()| link.own.table.finish()) {
        log::warn!("an RMA was not done: {failure}");
    }
    link.tell_finished();
}

fn store_all(stores: &[(Spot, u64)]) -> Result<()> {
    stores
        .iter()
        .try_for_each(|(spot, value)| copies::store(spot, *value))
}

/// Stores what has become due; keeps what has not.
fn look_at(awaited: &mut Vec<Awaited>) {
    awaited.retain(|entry| {
        let Some(link) = entry.epd.link() else {
            return false;
        };
        if entry.epd.over(link) {
            // The signals of RMAs that nobody finishes never fire.
            return false;
        }
        let finished = link
            .peer
            .table
            .tickets()
            .is_ok_and(|(_, finished)| finished >= entry.ticket);
        if finished && let Err(failure) = store_all(&entry.stores) {
            log::warn!("a fence did not signal: {failure}");
        }
        !finished
    });
}

impl Workers {
    /// How many threads of this process are ours.
    pub(crate) fn threads(&self) -> usize {
        // The service thread besides.
        let copier = take(&self.copier)
            .as_ref()
            .is_some_and(|(g, _)| *g == fork::generation());
        let watcher = take(&self.watcher)
            .as_ref()
            .is_some_and(|(g, _)| *g == fork::generation());
        1 + usize::from(copier) + usize::from(watcher)
    }

    fn give(&self, epd: &Arc<Epd>, link: &Link, work: Work) -> Result<()> {
        let sender = sender(&self.copier, &self.threads, "scif-dma", |jobs| {
            for job in jobs {
                do_job(&job);
            }
        })?;
        // Numbered and queued under one lock, so that numbers and queue agree.
        let slot = take(&self.copier);
        link.own.table.queue()?;
        let sent = sender.send(Job {
            epd: Arc::clone(epd),
            work,
        });
        drop(slot);
        sent.map_err(|_| Failure::Broken)
    }

    /// Leaves a transfer to the worker.
    pub(crate) fn queue(
        &self,
        epd: &Arc<Epd>,
        link: &Link,
        pairs: Vec<(Spot, Spot)>,
        ordered: bool,
    ) -> Result<()> {
        self.give(epd, link, Work::Copy { pairs, ordered })
    }

    /// Stores values when what was queued before is finished.
    pub(crate) fn store_after_own(
        &self,
        epd: &Arc<Epd>,
        link: &Link,
        stores: Vec<(Spot, u64)>,
    ) -> Result<()> {
        let (queued, finished) = link.own.table.tickets()?;
        if finished >= queued {
            return store_all(&stores);
        }
        self.give(epd, link, Work::Store(stores))
    }

    /// Stores values when the peer has finished what it had queued.
    pub(crate) fn store_after_peer(
        &self,
        epd: &Arc<Epd>,
        link: &Link,
        stores: Vec<(Spot, u64)>,
    ) -> Result<()> {
        let (ticket, _) = link.peer.table.tickets()?;
        let finished = link.peer.table.tickets()?.1;
        if finished >= ticket {
            return store_all(&stores);
        }
        let sender = sender(&self.watcher, &self.threads, "scif-fence", |entries| {
            let mut awaited: Vec<Awaited> = Vec::new();
            loop {
                match if awaited.is_empty() {
                    entries.recv().ok()
                } else {
                    entries.recv_timeout(LOOK).ok()
                } {
                    Some(entry) => awaited.push(entry),
                    None if awaited.is_empty() => return,
                    None => {}
                }
                look_at(&mut awaited);
            }
        })?;
        sender
            .send(Awaited {
                epd: Arc::clone(epd),
                ticket,
                stores,
            })
            .map_err(|_| Failure::Broken)
    }
}

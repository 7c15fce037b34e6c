// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! DMA threads, which copy transfers that need not be waited for. Each handles a queue in order.
//!
//! Not about the content of transfers, nor about fences. A thread starts with its first transfer
//! and gets no signals. A forked child has none until it queues a transfer. An endpoint always uses
//! the same thread. Transfers in the queue when the program calls `exit` are completed first.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use scif::logging::warn_about_peer;
use scif::sys::time::{cpu_relax_or_yield, now_ns};
use scif::sys::{fork, thread};
use scif_ring::counter::{AtomicCounter, AtomicFlag};

use crate::endpoint::Epd;
use crate::failure::{Failure, Result};
use crate::fence_signaller::{FenceSignaller, end_after_panic};
use crate::link::Link;
use crate::lock::take;
use crate::window::copies::{self, Spot, store_all};
use crate::window::inflight_dsts::Target;

/// Interval between checks whether the queues are empty, when the program exits.
const DRAIN: Duration = Duration::from_micros(100);
/// Nanoseconds for which an idle worker polls before it sleeps. A sleeping worker costs the next
/// caller a wake-up.
const LINGER_NS: u64 = 200_000;

/// Work for a DMA thread.
pub(crate) enum Work {
    Copy { pairs: Vec<(Spot, Spot)>, ordered: bool, target: Option<Target> },
    Store(Vec<(Spot, u64)>),
}

struct Job {
    epd: Arc<Epd>,
    ticket: u64,
    work: Work,
}

/// Queue with its thread.
#[derive(Default)]
struct Channel {
    jobs: Mutex<Jobs>,
    worker: OnceLock<Thread>,
    /// Number of jobs that were ever queued.
    queued: AtomicCounter,
    /// Whether the worker sleeps or is about to.
    asleep: AtomicFlag,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    /// Whether the worker is executing a job.
    busy: bool,
}

/// Channels of one process.
#[derive(Default)]
struct Channels {
    /// Fork generation of the process.
    generation: u64,
    started: Vec<(u64, Arc<Channel>)>,
}

/// Threads of one process.
#[derive(Default)]
pub(crate) struct Workers {
    channels: Mutex<Channels>,
    fence_signaller: Mutex<Option<(u64, Arc<FenceSignaller>)>>,
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workers").field("threads", &self.threads()).finish()
    }
}

/// Executes a job and marks it as finished. A panic ends its connection.
fn do_job(job: Job) {
    let Some(link) = job.epd.link() else { return };
    let port = || job.epd.sharer.port();
    let operation = match job.work {
        Work::Copy { .. } => "an asynchronous RMA",
        Work::Store(_) => "a fence signal",
    };
    let done = thread::contained(|| {
        #[cfg(test)]
        crate::faults::strike(&job.epd, crate::faults::FaultPoint::Rma);
        execute(link, job.ticket, job.work)
    });
    match done {
        Some(Ok(())) => {}
        Some(Err(Failure::BadAddress)) => {
            warn_about_peer!(
                "{operation} of the endpoint at port {} failed: EFAULT: the program unmapped or \
                 protected the local memory before a fence had completed. Call scif_fence_wait \
                 first",
                port()
            );
        }
        Some(Err(failure)) => warn_about_peer!(
            "{operation} of the endpoint at port {} failed: {failure}; the data was not \
             transferred",
            port()
        ),
        None => end_after_panic(&job.epd, operation),
    }
    if let Err(failure) = link.own.table.finish(job.ticket) {
        warn_about_peer!(
            "endpoint at port {}: completion of {operation} could not be recorded: {failure}; \
             fences may wait for ever. Close the endpoint, and please report it",
            port()
        );
    }
    link.notify_finished();
}

/// Executes the work of a job.
fn execute(link: &Link, ticket: u64, work: Work) -> Result<()> {
    match work {
        Work::Copy { pairs, ordered, target } => {
            let copied = copies::copy(&pairs, ordered);
            // Dropped before the RMA counts as finished: from then on the pages may move.
            drop(target);
            copied
        }
        Work::Store(stores) => {
            // Own RMAs before it are finished; the ones of other sharers may not be.
            link.wait_for(false, ticket - 1);
            store_all(&stores)
        }
    }
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

    /// Waits until more than `seen` jobs were queued; may return early. Transfers come in bursts,
    /// and a wake-up costs the caller more than the rest of its call. So the worker polls before it
    /// sleeps.
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
    /// Returns the number of threads of this process that belong to the library, except the service
    /// thread.
    pub(crate) fn threads(&self) -> usize {
        let here = fork::generation();
        let channels = take(&self.channels);
        let copiers = if channels.generation == here { channels.started.len() } else { 0 };
        let fence_signaller = take(&self.fence_signaller).as_ref().is_some_and(|(g, _)| *g == here);
        copiers + usize::from(fence_signaller)
    }

    /// Returns the channel of an endpoint, and starts it if necessary.
    fn channel(self: &Arc<Self>, epd: &Epd, count: u64) -> Result<Arc<Channel>> {
        let number = epd.token % count.max(1);
        let mut channels = take(&self.channels);
        if channels.generation != fork::generation() {
            // Jobs that a parent has queued belong to the parent.
            *channels = Channels { generation: fork::generation(), started: Vec::new() };
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

    /// Waits until the queues of this process are empty.
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

    /// Queues work for a thread. Returns it if it must be done at once.
    fn give(
        self: &Arc<Self>,
        epd: &Arc<Epd>,
        link: &Link,
        count: u64,
        work: Work,
    ) -> Result<Option<Work>> {
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
            jobs.waiting.push_back(Job { epd: Arc::clone(epd), ticket, work });
            channel.queued.add(1);
        }
        // A worker sets `asleep`, and then checks the queue under the lock of `jobs`. If it missed
        // this job, the flag is visible here.
        if channel.asleep.get() {
            if let Some(worker) = channel.worker.get() {
                worker.unpark();
            }
        }
        Ok(None)
    }

    /// Queues a transfer for a DMA thread.
    pub(crate) fn queue(
        self: &Arc<Self>,
        epd: &Arc<Epd>,
        link: &Link,
        count: u64,
        work: Work,
    ) -> Result<()> {
        match self.give(epd, link, count, work)? {
            Some(Work::Copy { pairs, ordered, target }) => {
                let copied = copies::copy(&pairs, ordered);
                drop(target);
                copied
            }
            _ => Ok(()),
        }
    }

    /// Stores values when the RMAs queued before are finished.
    pub(crate) fn store_after_own(
        self: &Arc<Self>,
        epd: &Arc<Epd>,
        link: &Link,
        count: u64,
        stores: Vec<(Spot, u64)>,
    ) -> Result<()> {
        let sharers = &link.own.table.sharers;
        let queued = sharers.queued();
        if sharers.finished(queued, false)? {
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

    /// Stores values when the peer has finished the RMAs that it had queued.
    pub(crate) fn store_after_peer(
        &self,
        epd: &Arc<Epd>,
        link: &Link,
        stores: Vec<(Spot, u64)>,
    ) -> Result<()> {
        let sharers = &link.peer.table.sharers;
        let ticket = sharers.queued();
        if sharers.finished(ticket, false)? {
            return store_all(&stores);
        }
        let fence_signaller = {
            let mut slot = take(&self.fence_signaller);
            match &*slot {
                Some((generation, fence_signaller)) if *generation == fork::generation() => {
                    Arc::clone(fence_signaller)
                }
                _ => {
                    let fence_signaller = FenceSignaller::start()?;
                    *slot = Some((fork::generation(), Arc::clone(&fence_signaller)));
                    fence_signaller
                }
            }
        };
        fence_signaller.add(epd, ticket, stores);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use scif::Config;
    use scif::sys::pages::PAGE;

    use super::*;
    use crate::faults::{FaultPoint, arm, until};
    use crate::{Endpoints, FenceSide, Pages, Signal, connected, endpoints};

    const FIXED: i32 = 0x10;
    const READ_WRITE: i32 = 3;

    /// Whether both ends of a connection are reset.
    fn are_reset(scif: &Endpoints, fds: [i32; 2]) -> bool {
        fds.iter().all(|fd| scif.usable(*fd) == Err(Failure::Reset))
    }

    #[test]
    fn a_panic_over_an_rma_resets_its_connection_and_no_other() {
        let scif = Endpoints::new(Config {
            domain: Some(format!("panic-rma-{}", std::process::id())),
            dma_min: 1,
            ..Config::default()
        })
        .unwrap();
        let source = Pages::new(PAGE).unwrap();
        source.write(0, b"sent").unwrap();
        for strikes in [true, true, false] {
            let target = Pages::new(PAGE).unwrap();
            let (a, b) = connected(&scif, &scif);
            scif.register(b, (target.addr(), PAGE), 0x1000, READ_WRITE, FIXED).unwrap();
            if strikes {
                arm(&scif, a, FaultPoint::Rma);
            }
            scif.write_from_memory(a, source.addr(), PAGE, 0x1000, 0).unwrap();
            let epd = scif.0.get(a).unwrap();
            let sharers = &epd.link().unwrap().own.table.sharers;
            until("the RMA counts as finished", || {
                sharers.finished(sharers.queued(), false) == Ok(true)
            });
            if strikes {
                until("reset", || are_reset(&scif, [a, b]));
            } else {
                let mark = scif.fence_mark(a, FenceSide::Own).unwrap();
                assert_eq!(scif.fence_wait(a, mark), Ok(()));
                let mut bytes = [0; 4];
                target.read(0, &mut bytes).unwrap();
                assert_eq!(&bytes, b"sent");
            }
            scif.close(a).unwrap();
            scif.close(b).unwrap();
        }
    }

    #[test]
    fn a_panic_over_a_fence_signal_resets_its_connection_and_no_other() {
        let scif = endpoints("panic-signal", 0);
        for strikes in [true, true, false] {
            let target = Pages::new(PAGE).unwrap();
            let (a, b) = connected(&scif, &scif);
            scif.register(a, (target.addr(), PAGE), 0x1000, READ_WRITE, FIXED).unwrap();
            let peer = scif.0.get(b).unwrap();
            let link = peer.link().unwrap();
            link.own.table.take_place();
            let ticket = link.own.table.queue().unwrap().unwrap();
            let local = Some(Signal { offset: 0x1000, value: 7 });
            scif.fence_signal(a, FenceSide::Peer, local, None).unwrap();
            if strikes {
                arm(&scif, a, FaultPoint::Signal);
            }
            link.own.table.finish(ticket).unwrap();
            link.notify_finished();
            if strikes {
                until("reset", || are_reset(&scif, [a, b]));
            } else {
                until("the value is stored", || {
                    let mut bytes = [0; 8];
                    target.read(0, &mut bytes).unwrap();
                    u64::from_ne_bytes(bytes) == 7
                });
            }
            scif.close(a).unwrap();
            scif.close(b).unwrap();
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Several threads: on one endpoint under `FI_THREAD_SAFE`, and each with its own domain under
//! `FI_THREAD_DOMAIN`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use scif_fabtests::fi::Result;
use scif_fabtests::prelude::*;

use super::rma::{REMOTE, from};

pub(crate) const CASES: &[Case] = &[
    case("threads/one_endpoint", 2, |r| one_endpoint(&Rig::open(r, &safe(Spec::messages(true)))?)),
    case("threads/one_poster_one_reader", 2, poster_and_reader),
    case("threads/sleeping_reader", 2, sleeping_reader),
    case("threads/own_domains", 2, own_domains),
    case("threads/atomics", 2, atomics),
    case("threads/opening_and_closing", 1, |r| {
        opening_and_closing(&Rig::open(r, &safe(Spec::messages(false)))?)
    }),
];

const THREADS: usize = 4;
const SIZES: &[usize] = &[8, 64, 3000, 20_000, 200_000];

fn safe(spec: Spec) -> Spec {
    spec.with(|spec| {
        spec.hints.threading = sys::FI_THREAD_SAFE;
        spec.queues = Queues::One;
        spec.wait_obj = sys::FI_WAIT_UNSPEC;
    })
}

/// Queue read by several threads. Each takes its own entries, identified by the upper half of the
/// context.
struct Shared {
    cq: Arc<Cq>,
    done: Mutex<Vec<VecDeque<Entry>>>,
}

impl Shared {
    fn new(cq: &Arc<Cq>) -> Shared {
        Shared { cq: Arc::clone(cq), done: Mutex::new(vec![VecDeque::new(); THREADS]) }
    }

    fn read(&self) -> Outcome {
        match self.cq.read(16) {
            Ok(entries) => {
                let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
                for entry in entries {
                    let slot = done.get_mut(entry.context >> 16);
                    slot.ok_or_else(|| Fail::here("nobody's completion"))?.push_back(entry);
                }
                Ok(())
            }
            Err(Errno::EAGAIN) => Ok(()),
            Err(e) => Err(Fail::here(format_args!("{e}: {:?}", self.cq.readerr(0)))),
        }
    }

    fn next(&self, thread: usize) -> Outcome<Entry> {
        loop {
            let found = {
                let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
                done.get_mut(thread).and_then(VecDeque::pop_front)
            };
            if let Some(entry) = found {
                return Ok(entry);
            }
            self.read()?;
            std::thread::yield_now();
        }
    }

    fn post(&self, mut call: impl FnMut() -> Result) -> Outcome {
        loop {
            match call() {
                Ok(()) => return Ok(()),
                Err(Errno::EAGAIN) => self.read()?,
                Err(e) => return Err(e.into()),
            }
        }
    }
}

fn each_thread(work: impl Fn(usize) -> Outcome + Sync) -> Outcome {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(Fail::here("a thread has panicked")))
        })
    })
}

/// Tests four threads on each side, each with its own tag, on one endpoint and one queue.
fn one_endpoint(rig: &Rig<'_>) -> Outcome {
    check_eq!(rig.info.domain().threading, sys::FI_THREAD_SAFE);
    let (ep, peer, shared) = (&rig.ep, rig.peer(), Shared::new(&rig.rx.cq));
    rig.rank.step("four threads on one endpoint");
    each_thread(|thread| {
        for round in 0..200_usize {
            let size = SIZES.get(round % SIZES.len()).copied().unwrap_or(8);
            let seed = (thread * 1000 + round) as u64;
            let (from, to, tag) = (Buf::pattern(size, seed), Buf::new(size), thread as u64);
            let context = |kind: usize| (thread << 16) | kind;
            shared.post(|| ep.trecv(to, sys::FI_ADDR_UNSPEC, tag, 0, context(1)))?;
            shared.post(|| ep.tsend(from, peer, tag, context(2)))?;
            let (a, b) = (shared.next(thread)?, shared.next(thread)?);
            check_eq!((a.context & 0xffff) + (b.context & 0xffff), 3);
            check_eq!(to.differs(size, seed), None, "thread {thread}, round {round}");
        }
        Ok(())
    })?;
    rig.barrier()
}

/// Posts until the provider has room, while another thread reads the queue.
fn retried(post: impl Fn() -> Result) -> Outcome {
    loop {
        match post() {
            Ok(()) => return Ok(()),
            Err(Errno::EAGAIN) => std::thread::yield_now(),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Tests one thread that only posts, and another that only reads.
fn poster_and_reader(rank: &Rank) -> Outcome {
    const COUNT: usize = 5000;
    let rig = Rig::open(rank, &safe(Spec::messages(false)))?;
    let (ep, peer, cq) = (&rig.ep, rig.peer(), &rig.rx.cq);
    rank.step("one posts, one reads");
    std::thread::scope(|scope| {
        let poster = scope.spawn(|| -> Outcome {
            let bufs: Vec<Buf> = (0..64).map(|_| Buf::new(64)).collect();
            for (index, &buf) in bufs.iter().cycle().take(COUNT).enumerate() {
                retried(|| match rank.index {
                    0 => ep.send(buf, peer, index),
                    _ => ep.recv(buf, sys::FI_ADDR_UNSPEC, index),
                })?;
            }
            Ok(())
        });
        let mut done = 0;
        while done < COUNT {
            match cq.read(16) {
                Ok(entries) => done += entries.len(),
                Err(Errno::EAGAIN) => std::thread::yield_now(),
                Err(e) => return Err(Fail::here(format_args!("{e}: {:?}", cq.readerr(0)))),
            }
        }
        poster.join().unwrap_or_else(|_| Err(Fail::here("the poster has panicked")))
    })?;
    rig.barrier()
}

/// Tests that a thread asleep in the queue does not block posts of others, and that these wake it.
fn sleeping_reader(rank: &Rank) -> Outcome {
    const COUNT: usize = 500;
    let rig = Rig::open(rank, &safe(Spec::messages(false)))?;
    let (ep, peer, cq) = (&rig.ep, rig.peer(), &rig.rx.cq);
    rank.step("one sleeps in the queue, one posts");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| -> Outcome {
            let mut done = 0;
            while done < 2 * COUNT {
                match cq.sread(16, 0, -1) {
                    Ok(entries) => done += entries.len(),
                    Err(Errno::EAGAIN) => {}
                    Err(e) => return Err(Fail::here(format_args!("{e}: {:?}", cq.readerr(0)))),
                }
            }
            Ok(())
        });
        for index in 0..COUNT {
            let size = if index % 20 == 0 { 100_000 } else { 8 };
            let (from, to) = (Buf::new(size), Buf::new(100_000));
            retried(|| ep.recv(to, sys::FI_ADDR_UNSPEC, 1))?;
            retried(|| ep.send(from, peer, 2))?;
            if index % 10 == 0 {
                std::thread::sleep(std::time::Duration::from_micros(500));
            }
        }
        reader.join().unwrap_or_else(|_| Err(Fail::here("the reader has panicked")))
    })?;
    rig.barrier()
}

struct Own {
    ep: Arc<Ep>,
    av: Arc<Av>,
    cq: Arc<Cq>,
}

/// Tests threads with separate objects, opened from one info, without a common lock.
fn own_domains(rank: &Rank) -> Outcome {
    let spec = Spec::messages(false).with(|spec| spec.hints.threading = sys::FI_THREAD_DOMAIN);
    let info = first_offer(rank, &spec)?;
    let fabric = Fabric::open(&info)?;
    let open = || -> Outcome<Own> {
        let domain = Domain::open(&fabric, &info)?;
        let ep = Ep::open(&domain, &info)?;
        let av = Av::open(&domain, sys::FI_AV_UNSPEC, 1)?;
        let attr = CqAttr { format: sys::FI_CQ_FORMAT_TAGGED, ..CqAttr::default() };
        let cq = Cq::open(&domain, attr)?;
        ep.attach(&av, 0)?;
        ep.attach(&cq, sys::FI_TRANSMIT | sys::FI_RECV)?;
        ep.enable()?;
        Ok(Own { ep, av, cq })
    };
    let own: Vec<Own> = (0..THREADS).map(|_| open()).collect::<Outcome<_>>()?;
    let names: Vec<Vec<u8>> = own.iter().map(|own| own.ep.name()).collect::<Result<_>>()?;
    let parts = rank.exchange(&names.concat(), &mut || Ok(()))?;
    let theirs = parts.get(rank.peer()).ok_or_else(|| Fail::here("no names"))?;
    let len = theirs.len() / THREADS;
    rank.step("four threads with domains of their own");
    each_thread(|thread| {
        let own = own.get(thread).ok_or_else(|| Fail::here("no such thread"))?;
        let name =
            theirs.get(thread * len..(thread + 1) * len).ok_or_else(|| Fail::here("no name"))?;
        let peer = own.av.insert(name)?;
        let next = |open: &mut usize| -> Outcome {
            match own.cq.read(16) {
                Ok(entries) => *open -= entries.len(),
                Err(Errno::EAGAIN) => std::thread::yield_now(),
                Err(e) => return Err(Fail::here(format_args!("{e}: {:?}", own.cq.readerr(0)))),
            }
            Ok(())
        };
        for round in 0..300_usize {
            let size = SIZES.get(round % SIZES.len()).copied().unwrap_or(8);
            let seed = (thread * 1000 + round) as u64;
            let (from, to) = (Buf::pattern(size, seed), Buf::new(size));
            let mut open = 0;
            own.ep.recv(to, sys::FI_ADDR_UNSPEC, 1)?;
            open += 1;
            while own.ep.send(from, peer, 2) == Err(Errno::EAGAIN) {
                next(&mut open)?;
            }
            open += 1;
            while open > 0 {
                next(&mut open)?;
            }
            check_eq!(to.differs(size, seed), None, "thread {thread}, round {round}");
        }
        Ok(())
    })?;
    rank.barrier(&mut || {
        for own in &own {
            let _ = own.cq.progress();
        }
        Ok(())
    })
}

/// Tests that threads of both ranks can add to one word of rank 0.
fn atomics(rank: &Rank) -> Outcome {
    const ROUNDS: u64 = 1000;
    let rig = Rig::open(rank, &safe(super::atomic::spec()))?;
    let (memory, _mr, remotes) = rig.share_buf(Buf::new(64), REMOTE)?;
    let at: Remote = from(&remotes, 0, 0)?;
    let (ep, to, shared) = (&rig.ep, rig.to(0), Shared::new(&rig.tx.cq));
    rank.step("four threads with atomics");
    each_thread(|thread| {
        let one = Ioc { buf: Buf::of(&1_u64.to_le_bytes()), count: 1 };
        let old = Buf::new(8);
        let place = at.sum(to, thread << 16);
        let mut last = None;
        for _ in 0..ROUNDS {
            shared.post(|| ep.fetch_atomic(&place, one, old))?;
            shared.next(thread)?;
            let seen = old.load_u64(0);
            check!(last.is_none_or(|last| last < seen), "{seen} after {last:?}");
            last = Some(seen);
        }
        Ok(())
    })?;
    rig.barrier()?;
    check!(
        rank.index != 0 || memory.load_u64(0) == 2 * ROUNDS * THREADS as u64,
        "{}",
        memory.load_u64(0)
    );
    rig.barrier()
}

fn opening_and_closing(rig: &Rig<'_>) -> Outcome {
    let (domain, info) = (&rig.domain, &rig.info);
    each_thread(|_| {
        for _ in 0..50 {
            let ep = Ep::open(domain, info)?;
            let av = Av::open(domain, sys::FI_AV_UNSPEC, 1)?;
            let cq = Cq::open(domain, CqAttr::default())?;
            ep.attach(&av, 0)?;
            ep.attach(&cq, sys::FI_TRANSMIT | sys::FI_RECV)?;
            ep.enable()?;
            let me = av.insert(&ep.name()?)?;
            let buf = Buf::new(8);
            ep.recv(buf, sys::FI_ADDR_UNSPEC, 1)?;
            while ep.send(buf, me, 2) == Err(Errno::EAGAIN) {
                let _ = cq.progress();
            }
            let mut done = 0;
            while done < 2 {
                match cq.read(4) {
                    Ok(entries) => done += entries.len(),
                    Err(Errno::EAGAIN) => std::thread::yield_now(),
                    Err(e) => return Err(Fail::here(e)),
                }
            }
        }
        Ok(())
    })
}

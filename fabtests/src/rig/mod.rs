// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Usual set-up of a case: one domain, one endpoint with its queues, and the addresses of all ranks
//! in the vector.
//!
//! A wait always makes progress on all queues, so that a provider with manual progress serves its
//! peers meanwhile. Completions read in a wait are kept in order. Cases about opening objects call
//! the client directly.

mod connected;
mod memory;
mod queue;
mod spec;

use std::cell::Cell;
use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libfabric_sys as sys;

pub use self::memory::Remote;
pub use self::queue::{Done, Queue};
pub use self::spec::{Queues, Spec};
use crate::fi::{
    Av, Cntr, CntrAttr, Cq, CqAttr, CqErr, Domain, Entry, Ep, Eq, EqAttr, Errno, Fabric, Hints,
    Info, Lib, Result, Stx, hold_to_errno,
};
use crate::harness::{Fail, Outcome, Rank};

/// Time without an event after which a wait reports its place to the parent.
const SILENCE: Duration = Duration::from_secs(2);
/// Number of polls that empty a full ring of the provider.
pub const RINGFUL: usize = 8;

/// Usual set-up.
pub struct Rig<'r> {
    pub rank: &'r Rank,
    pub lib: &'static Lib,
    pub info: Info,
    pub fabric: Arc<Fabric>,
    pub domain: Arc<Domain>,
    pub ep: Arc<Ep>,
    /// Object to which receives are posted: the endpoint, or its shared receive context.
    pub inbox: Arc<Ep>,
    pub av: Arc<Av>,
    pub tx: Queue,
    pub rx: Queue,
    pub counters: Vec<(u64, Arc<Cntr>)>,
    /// Event queue, if requested.
    pub eq: Option<Arc<Eq>>,
    /// Addresses (`fi_addr_t`) of all ranks, by rank.
    pub peers: Vec<u64>,
    /// Names of all ranks, by rank.
    pub names: Vec<Vec<u8>>,
    next_key: Cell<u64>,
}

/// Loads the library under test.
pub fn load(rank: &Rank) -> Outcome<&'static Lib> {
    hold_to_errno(rank.target.prov == "scif");
    Lib::open(&rank.target.lib).map_err(Fail::here)
}

/// Returns the offers of the provider under test. A provider without an offer for these hints is
/// not run.
///
/// # Errors
/// `NotRun` for `FI_ENODATA`, a failure for anything else.
pub fn offers(rank: &Rank, lib: &'static Lib, hints: &Hints) -> Outcome<Vec<Info>> {
    let mut hints = hints.clone();
    hints.prov = Some(rank.target.prov.clone());
    match lib.getinfo(lib.version(), None, None, 0, Some(&hints)) {
        Ok(list) => Ok(list),
        Err(Errno::ENODATA) => Err(Fail::NotRun(format!("no offer for caps {:#x}", hints.caps))),
        Err(e) => Err(Fail::here(format_args!("fi_getinfo: {e}"))),
    }
}

/// Returns the first offer.
///
/// # Errors
/// Errors of [`offers`].
pub fn first_offer(rank: &Rank, spec: &Spec) -> Outcome<Info> {
    let list = offers(rank, load(rank)?, &spec.hints)?;
    list.into_iter().next().ok_or_else(|| Fail::here("an empty list"))
}

/// Opens the fabric and the domain of the first offer.
///
/// # Errors
/// Errors of [`offers`].
pub fn first_domain(rank: &Rank, spec: &Spec) -> Outcome<(Info, Arc<Fabric>, Arc<Domain>)> {
    let info = first_offer(rank, spec)?;
    let fabric = Fabric::open(&info)?;
    let domain = Domain::open(&fabric, &info)?;
    Ok((info, fabric, domain))
}

/// Returns the first offer, changed as the case requires.
fn offer(rank: &Rank, spec: &Spec) -> Outcome<Info> {
    let mut info = first_offer(rank, spec)?;
    if let Some(mr_mode) = spec.opened_mr_mode {
        info.set_mr_mode(mr_mode);
    }
    Ok(info)
}

/// Ends the case as not run if the library is older than release `since`.
///
/// # Errors
/// `NotHere` for an older library; a failure when it cannot be loaded.
pub fn needs_library(rank: &Rank, since: u32, subject: &str) -> Outcome {
    let lib = load(rank)?;
    if lib.version() >= since {
        return Ok(());
    }
    let (major, minor) = (since >> 16, since & 0xffff);
    let why = format!("{subject}: since libfabric {major}.{minor}");
    Err(Fail::NotHere(why))
}

/// Turns an unsupported call into "not run".
///
/// # Errors
/// `NotRun` for `FI_ENOSYS` and `FI_EOPNOTSUPP`, a failure for anything else.
#[track_caller]
pub fn supported<T>(subject: &str, result: Result<T>) -> Outcome<T> {
    match result {
        Ok(value) => Ok(value),
        Err(Errno::ENOSYS | Errno::EOPNOTSUPP) => {
            let why = format!("{subject} is not supported");
            Err(Fail::NotRun(why))
        }
        Err(e) => Err(Fail::here(format_args!("{subject}: {e}"))),
    }
}

impl<'r> Rig<'r> {
    /// Opens all objects without any peer.
    ///
    /// # Errors
    /// `NotRun` when the provider has no such offer; a failure of any call.
    pub fn open_alone(rank: &'r Rank, spec: &Spec) -> Outcome<Rig<'r>> {
        let info = offer(rank, spec)?;
        let fabric = Fabric::open(&info)?;
        let domain = Domain::open(&fabric, &info)?;
        Rig::open_in(rank, info, &fabric, &domain, spec)
    }

    /// Opens all objects at a given address, as [`Rig::open_alone`] does.
    ///
    /// # Errors
    /// `NotRun` when the provider has no such offer; a failure of any call.
    pub fn open_at(rank: &'r Rank, spec: &Spec, name: &[u8]) -> Outcome<Rig<'r>> {
        let mut info = offer(rank, spec)?;
        info.set_src_addr(name);
        let fabric = Fabric::open(&info)?;
        let domain = Domain::open(&fabric, &info)?;
        Rig::open_in(rank, info, &fabric, &domain, spec)
    }

    /// Opens all other objects in a domain that is open already.
    pub fn open_in(
        rank: &'r Rank,
        info: Info,
        fabric: &Arc<Fabric>,
        domain: &Arc<Domain>,
        spec: &Spec,
    ) -> Outcome<Rig<'r>> {
        let av = Av::open(domain, info.domain().av_type, rank.count)?;
        Rig::open_on(rank, info, (fabric, domain), av, spec)
    }

    /// Opens all other objects in an open domain with a vector of the caller.
    pub fn open_on(
        rank: &'r Rank,
        info: Info,
        (fabric, domain): (&Arc<Fabric>, &Arc<Domain>),
        av: Arc<Av>,
        spec: &Spec,
    ) -> Outcome<Rig<'r>> {
        let cq_attr = CqAttr {
            size: spec.cq_size,
            flags: 0,
            format: if spec.format == 0 { sys::FI_CQ_FORMAT_TAGGED } else { spec.format },
            wait_obj: spec.wait_obj,
            wait_cond: spec.wait_cond,
        };
        let open_cq = || match Cq::open(domain, cq_attr) {
            Err(Errno::ENOSYS) => Err(Fail::NotRun("no such completion queue".into())),
            other => Ok(other?),
        };
        let tx = Queue::new(open_cq()?, spec.sources);
        let rx = match spec.queues {
            Queues::One => tx.clone(),
            Queues::Two | Queues::Unbound => Queue::new(open_cq()?, spec.sources),
        };
        let ep = Ep::open(domain, &info)?;
        if info.ep().type_ != sys::FI_EP_MSG {
            ep.attach(&av, 0)?;
        }
        let inbox = if spec.hints.rx_ctx_cnt == sys::FI_SHARED_CONTEXT {
            let srx = Ep::shared_receive_with(domain, spec.hints.rx.op_flags);
            let srx = supported("fi_srx_context", srx)?;
            ep.attach(&srx, 0)?;
            srx
        } else {
            Arc::clone(&ep)
        };
        if spec.hints.tx_ctx_cnt == sys::FI_SHARED_CONTEXT {
            ep.attach(&supported("fi_stx_context", Stx::open(domain))?, 0)?;
        }
        let eq = if spec.eq {
            let attr = EqAttr { wait_obj: sys::FI_WAIT_UNSPEC, ..EqAttr::default() };
            let eq = Eq::open(fabric, attr)?;
            ep.attach(&eq, 0)?;
            Some(eq)
        } else {
            None
        };
        let selective = if spec.selective { sys::FI_SELECTIVE_COMPLETION } else { 0 };
        match spec.queues {
            Queues::One => ep.attach(&tx.cq, sys::FI_TRANSMIT | sys::FI_RECV | selective)?,
            Queues::Two => {
                ep.attach(&tx.cq, sys::FI_TRANSMIT | selective)?;
                ep.attach(&rx.cq, sys::FI_RECV | selective)?;
            }
            Queues::Unbound => {}
        }
        let mut counters = Vec::new();
        for bit in (0..64).map(|shift| 1_u64 << shift).filter(|bit| spec.counters & bit != 0) {
            let attr = CntrAttr { wait_obj: sys::FI_WAIT_UNSPEC, ..CntrAttr::default() };
            let cntr = supported("fi_cntr_open", Cntr::open(domain, attr))?;
            supported("binding a counter", ep.attach(&cntr, bit))?;
            counters.push((bit, cntr));
        }
        ep.enable()?;
        Ok(Rig {
            rank,
            lib: info.lib(),
            fabric: Arc::clone(fabric),
            domain: Arc::clone(domain),
            ep,
            inbox,
            av,
            tx,
            rx,
            counters,
            eq,
            peers: Vec::new(),
            names: Vec::new(),
            next_key: Cell::new(0x1000),
            info,
        })
    }

    /// Exchanges names with the running ranks and inserts them into the vector.
    pub fn meet(mut self) -> Outcome<Rig<'r>> {
        let name = self.ep.name()?;
        self.names = self.exchange(&name)?;
        self.peers = self
            .names
            .iter()
            .map(
                |name| {
                    if name.is_empty() { Ok(sys::FI_ADDR_NOTAVAIL) } else { self.av.insert(name) }
                },
            )
            .collect::<Result<_>>()?;
        self.barrier()?;
        Ok(self)
    }

    /// Bytes of the prefix before each message (`FI_MSG_PREFIX`).
    pub fn prefix(&self) -> usize {
        self.info.ep().msg_prefix_size
    }

    /// Address (`fi_addr_t`) of a rank.
    pub fn to(&self, rank: usize) -> u64 {
        self.peers.get(rank).copied().unwrap_or(sys::FI_ADDR_NOTAVAIL)
    }

    /// Address (`fi_addr_t`) of the other of two ranks.
    pub fn peer(&self) -> u64 {
        self.to(self.rank.peer())
    }

    /// Makes progress on all objects and keeps the completions.
    pub fn pump(&self) -> Outcome {
        for (_, cntr) in &self.counters {
            cntr.read()?;
        }
        self.tx.pump()?;
        self.rx.pump()
    }

    /// Makes progress and reads no completion.
    pub fn progress(&self) -> Outcome {
        for (_, cntr) in &self.counters {
            cntr.read()?;
        }
        self.tx.progress()?;
        self.rx.progress()
    }

    /// Waits for all ranks with progress, and makes progress once more at the end. Operations
    /// posted before any rank entered, at most a full ring, have been executed then. Completions
    /// stay in the queues, because the case may read them.
    pub fn barrier(&self) -> Outcome {
        self.rank.barrier(&mut || self.progress())?;
        (0..RINGFUL).try_for_each(|_| self.progress())
    }

    /// Exchanges bytes with all ranks, with progress.
    pub fn exchange(&self, mine: &[u8]) -> Outcome<Vec<Vec<u8>>> {
        self.rank.exchange(mine, &mut || self.pump())
    }

    /// Makes progress until `ready` returns a value.
    ///
    /// # Errors
    /// Errors of `ready`, and when a queue cannot be read.
    #[track_caller]
    pub fn wait<T>(
        &self,
        subject: &str,
        mut ready: impl FnMut() -> Outcome<Option<T>>,
    ) -> Outcome<T> {
        let at = Location::caller();
        let (start, mut told) = (Instant::now(), false);
        loop {
            self.pump()?;
            if let Some(value) = ready()? {
                return Ok(value);
            }
            if !told && start.elapsed() > SILENCE {
                told = true;
                self.rank.step(format_args!(
                    "waiting for {subject} at {}:{}",
                    at.file(),
                    at.line()
                ));
            }
            std::thread::yield_now();
        }
    }

    /// Repeats a call with progress while it returns `FI_EAGAIN`.
    ///
    /// # Errors
    /// Any other error of the call.
    #[track_caller]
    pub fn post<T>(&self, mut call: impl FnMut() -> Result<T>) -> Outcome<T> {
        let at = Location::caller();
        self.wait("room to post", || match call() {
            Ok(value) => Ok(Some(value)),
            Err(Errno::EAGAIN) => Ok(None),
            Err(e) => Err(Fail::Failed(format!("{}:{}: posting: {e}", at.file(), at.line()))),
        })
    }

    /// Returns the next completion of a queue; an error entry is a failure.
    ///
    /// # Errors
    /// If an error entry comes first.
    #[track_caller]
    pub fn next(&self, queue: &Queue) -> Outcome<Entry> {
        let at = Location::caller();
        self.wait("a completion", || match queue.take() {
            None => Ok(None),
            Some(Ok(entry)) => Ok(Some(entry)),
            Some(Err(e)) => Err(Fail::Failed(format!(
                "{}:{}: an error entry came: {e:?}",
                at.file(),
                at.line()
            ))),
        })
    }

    /// Returns the next error entry of a queue; a completion is a failure.
    ///
    /// # Errors
    /// If a completion comes first.
    #[track_caller]
    pub fn next_error(&self, queue: &Queue) -> Outcome<CqErr> {
        let at = Location::caller();
        self.wait("an error entry", || match queue.take() {
            None => Ok(None),
            Some(Err(error)) => Ok(Some(error)),
            Some(Ok(e)) => {
                Err(Fail::Failed(format!("{}:{}: a completion came: {e:?}", at.file(), at.line())))
            }
        })
    }

    /// Returns the error of an operation that must fail: the error of the call or of its error
    /// entry.
    ///
    /// # Errors
    /// If the operation succeeds, or an entry of another operation comes.
    #[track_caller]
    pub fn failure(
        &self,
        queue: &Queue,
        context: usize,
        mut call: impl FnMut() -> Result,
    ) -> Outcome<Errno> {
        let mut refused = None;
        self.wait("room to post", || match call() {
            Ok(()) => Ok(Some(())),
            Err(Errno::EAGAIN) => Ok(None),
            Err(error) => {
                refused = Some(error);
                Ok(Some(()))
            }
        })?;
        if let Some(error) = refused {
            return Ok(error);
        }
        let error = self.next_error(queue)?;
        if error.context == context {
            Ok(error.err)
        } else {
            Err(Fail::here(format_args!("context {context:#x} was to fail, not {error:x?}")))
        }
    }

    #[track_caller]
    fn completed(&self, queue: &Queue, context: usize) -> Outcome<Entry> {
        let entry = self.next(queue)?;
        if entry.context == context {
            Ok(entry)
        } else {
            Err(Fail::here(format_args!("context {context:#x} was to complete, not {entry:x?}")))
        }
    }

    /// Returns the next completion of the transmit side, which must be for `context`.
    ///
    /// # Errors
    /// If the entry is an error or has another context.
    #[track_caller]
    pub fn sent(&self, context: usize) -> Outcome<Entry> {
        self.completed(&self.tx, context)
    }

    /// Posts an operation. Returns its completion, the next one of the transmit side.
    ///
    /// # Errors
    /// If the entry is an error or has another context.
    #[track_caller]
    pub fn complete<T>(&self, context: usize, call: impl FnMut() -> Result<T>) -> Outcome<Entry> {
        self.post(call)?;
        self.sent(context)
    }

    /// Returns the next completion of the receive side, which must be for `context`.
    ///
    /// # Errors
    /// If the entry is an error or has another context.
    #[track_caller]
    pub fn received(&self, context: usize) -> Outcome<Entry> {
        self.completed(&self.rx, context)
    }

    /// Makes progress for a time in which no operation may complete.
    ///
    /// # Errors
    /// If an operation completes.
    #[track_caller]
    pub fn silence(&self, time: Duration) -> Outcome {
        let start = Instant::now();
        while start.elapsed() < time {
            self.pump()?;
            for queue in [&self.tx, &self.rx] {
                if let Some(entry) = queue.take() {
                    return Err(Fail::here(format_args!(
                        "nothing was to complete, but {entry:x?}"
                    )));
                }
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Returns the counter bound for a direction.
    ///
    /// # Errors
    /// If the case did not request one.
    pub fn counter(&self, bit: u64) -> Outcome<&Arc<Cntr>> {
        let found = self.counters.iter().find(|(have, _)| *have == bit);
        found
            .map(|(_, cntr)| cntr)
            .ok_or_else(|| Fail::here("a case uses a counter that its requirements lack"))
    }

    /// Makes progress until a counter has at least `value`.
    ///
    /// # Errors
    /// If the counter counts an error.
    #[track_caller]
    pub fn counted(&self, bit: u64, value: u64) -> Outcome {
        let cntr = self.counter(bit)?;
        let errors = cntr.readerr()?;
        self.wait("a counter", || {
            if cntr.readerr()? != errors {
                return Err(Fail::here("the counter counts an error"));
            }
            Ok((cntr.read()? >= value).then_some(()))
        })
    }
}

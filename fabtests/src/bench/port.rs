// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Endpoint for measurements: one per family of operations, opened as by the benchmarks of
//! fabtests, with the address of the other rank in its vector.
//!
//! Completions are only counted. Every loop waits for numbers, so that the timed part allocates and
//! searches nothing.

use std::cell::Cell;
use std::sync::Arc;

use scif_fabtests::fi::{Hints, Lib, Result, SharedFile};
use scif_fabtests::prelude::*;

use super::segment::{LARGEST, Use};
use super::shm_barrier::ShmBarrier;

/// Operations that share an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Tagged,
    Msg,
    Rma,
    Atomic,
}

impl Family {
    fn caps(self) -> u64 {
        match self {
            Family::Tagged => sys::FI_TAGGED,
            Family::Msg => sys::FI_MSG,
            Family::Rma => sys::FI_MSG | sys::FI_RMA,
            Family::Atomic => sys::FI_MSG | sys::FI_ATOMIC,
        }
    }
}

/// Memory of the other rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Far {
    pub(crate) addr: u64,
    pub(crate) key: u64,
}

/// Enabled endpoint with its objects.
pub(crate) struct Port {
    pub(crate) ep: Arc<Ep>,
    pub(crate) tx: Arc<Cq>,
    pub(crate) rx: Arc<Cq>,
    pub(crate) av: Arc<Av>,
    info: Info,
    domain: Arc<Domain>,
    pub(crate) inject: usize,
    /// Address of the other rank, after the exchange of names.
    pub(crate) peer: u64,
    /// Source buffer of sends and writes.
    pub(crate) out: Buf,
    /// Target buffer of receives, and of writes by the other rank.
    pub(crate) into: Buf,
    /// File of the target buffer if it is shared memory, open so that peers can find it.
    file: Option<SharedFile>,
    pub(crate) far: Option<Far>,
    region: Option<Arc<Mr>>,
    sent: Cell<u64>,
    received: Cell<u64>,
}

/// Returns the first offer of a provider for `hints`; without an offer the provider lacks the
/// feature.
fn offer(lib: &'static Lib, provider: &str, hints: &Hints) -> Outcome<Info> {
    // Without a source address the sockets of tcp bind to an interface, not to the loopback.
    let node = provider.starts_with("tcp").then_some("127.0.0.1");
    let flags = if node.is_some() { sys::FI_SOURCE } else { 0 };
    match lib.getinfo(lib.version(), node, None, flags, Some(hints)) {
        Ok(list) => list.into_iter().next().ok_or_else(|| Fail::here("an empty list")),
        Err(Errno::ENODATA) => Err(Fail::NotRun(format!("no offer for caps {:#x}", hints.caps))),
        Err(e) => Err(Fail::here(format_args!("fi_getinfo: {e}"))),
    }
}

/// Returns the hints of all families; `directed` adds receives from one sender.
fn hints(provider: &str, (family, threading): (Family, u32), directed: bool) -> Hints {
    let mut hints = Hints {
        caps: family.caps() | if directed { sys::FI_DIRECTED_RECV } else { 0 },
        ep_type: sys::FI_EP_RDM,
        threading,
        resource_mgmt: sys::FI_RM_ENABLED,
        mr_mode: sys::FI_MR_VIRT_ADDR | sys::FI_MR_ALLOCATED | sys::FI_MR_PROV_KEY,
        prov: Some(provider.to_owned()),
        ..Hints::default()
    };
    if matches!(family, Family::Tagged | Family::Msg) {
        hints.tx.msg_order = sys::FI_ORDER_SAS;
        hints.rx.msg_order = sys::FI_ORDER_SAS;
    }
    hints
}

/// Kind of a port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PortKind {
    pub(crate) family: Family,
    /// Whether receives name their sender.
    pub(crate) is_directed: bool,
    /// Whether the target buffer is shared memory that peers can map.
    pub(crate) is_shared: bool,
}

/// Domain in which endpoints of one family are opened one after another.
pub(crate) struct Room {
    info: Info,
    domain: Arc<Domain>,
}

impl Room {
    /// Opens fabric and domain for a family and a threading model.
    pub(crate) fn open(
        lib: &'static Lib,
        provider: &str,
        kind: (Family, u32),
        directed: bool,
    ) -> Outcome<Room> {
        let info = offer(lib, provider, &hints(provider, kind, directed))?;
        let fabric = Fabric::open(&info)?;
        let domain = Domain::open(&fabric, &info)?;
        Ok(Room { info, domain })
    }

    /// Opens a counter.
    pub(crate) fn counter(&self, attr: CntrAttr) -> Outcome<Arc<Cntr>> {
        Ok(Cntr::open(&self.domain, attr)?)
    }

    /// Opens and enables an endpoint without any peer, with buffers of `room` bytes. The counter
    /// counts received messages, if there is one.
    pub(crate) fn port(&self, room: usize, cntr: Option<&Arc<Cntr>>) -> Outcome<Port> {
        let (info, domain) = (self.info.dup()?, &self.domain);
        let cq_attr = CqAttr {
            size: info.tx().size.max(info.rx().size).max(128),
            format: sys::FI_CQ_FORMAT_CONTEXT,
            wait_obj: sys::FI_WAIT_NONE,
            ..CqAttr::default()
        };
        let tx = Cq::open(domain, cq_attr)?;
        let rx = Cq::open(domain, cq_attr)?;
        let av = Av::open(domain, info.domain().av_type, 0)?;
        let ep = Ep::open(domain, &info)?;
        ep.attach(&av, 0)?;
        ep.attach(&tx, sys::FI_TRANSMIT)?;
        ep.attach(&rx, sys::FI_RECV)?;
        if let Some(cntr) = cntr {
            ep.attach(cntr, sys::FI_RECV)?;
        }
        ep.enable()?;
        let (out, into) = (Buf::new(room), Buf::new(room));
        out.fill(1);
        into.fill(2);
        Ok(Port {
            inject: info.tx().inject_size,
            ep,
            tx,
            rx,
            av,
            info,
            domain: Arc::clone(domain),
            peer: sys::FI_ADDR_NOTAVAIL,
            out,
            into,
            file: None,
            far: None,
            region: None,
            sent: Cell::new(0),
            received: Cell::new(0),
        })
    }
}

impl Port {
    /// Opens the endpoint of a family and exchanges names with the other rank, which makes the same
    /// call.
    pub(crate) fn open(
        lib: &'static Lib,
        provider: &str,
        kind: PortKind,
        barrier: &ShmBarrier,
    ) -> Outcome<Port> {
        let family = kind.family;
        let room = Room::open(lib, provider, (family, sys::FI_THREAD_DOMAIN), kind.is_directed)?;
        let mut port = room.port(LARGEST, None)?;
        if kind.is_shared {
            let file = SharedFile::memfd("bench", LARGEST, true)?;
            port.into = file.map(0, LARGEST, true)?;
            port.file = Some(file);
        }
        barrier.segment.put_name(barrier.rank, &port.ep.name()?);
        if matches!(family, Family::Rma | Family::Atomic) {
            port.expose(barrier)?;
        }
        barrier.meet(|| port.progress())?;
        port.peer = port.av.insert(&barrier.segment.name(1 - barrier.rank))?;
        if port.region.is_some() {
            port.far = Some(Far {
                addr: barrier.theirs([Use::Addr0, Use::Addr1]).get(),
                key: barrier.theirs([Use::Key0, Use::Key1]).get(),
            });
        }
        barrier.meet(|| port.progress())?;
        port.greet(family == Family::Tagged)?;
        barrier.meet(|| port.progress())?;
        Ok(port)
    }

    /// Exchanges a message with the other rank, so that no measurement includes a connect.
    fn greet(&self, tagged: bool) -> Outcome {
        const GREETING: u64 = 0xa10;
        let (out, into) = (self.out.sub(0, 8), self.into.sub(0, 8));
        let anybody = sys::FI_ADDR_UNSPEC;
        self.post(|| match tagged {
            true => self.ep.trecv(into, anybody, GREETING, 0, 4),
            false => self.ep.recv(into, anybody, 4),
        })?;
        self.post(|| match tagged {
            true => self.ep.tsend(out, self.peer, GREETING, 5),
            false => self.ep.send(out, self.peer, 5),
        })?;
        self.wait_received(1)?;
        while self.sent() < 1 {
            self.progress()?;
        }
        Ok(())
    }

    /// Registers memory and publishes its address and key.
    fn expose(&mut self, barrier: &ShmBarrier) -> Outcome {
        let mode = self.info.domain().mr_mode;
        if mode & sys::FI_MR_RAW != 0 {
            return Err(Fail::NotRun("raw keys".into()));
        }
        let access = sys::FI_READ | sys::FI_WRITE | sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;
        let spec = MrRequest { access, key: 0x5c1f, flags: 0 };
        let region = Mr::reg(&self.domain, self.into, spec)?;
        if mode & sys::FI_MR_ENDPOINT != 0 {
            scif_fabtests::fi::Fid::bind(region.as_ref(), self.ep.as_ref(), 0)?;
            region.enable()?;
        }
        let absolute = mode & (sys::FI_MR_VIRT_ADDR | sys::FI_MR_BASIC) != 0;
        barrier.mine([Use::Addr0, Use::Addr1]).set(if absolute { self.into.addr64() } else { 0 });
        barrier.mine([Use::Key0, Use::Key1]).set(region.key()?);
        self.region = Some(region);
        Ok(())
    }

    /// Counts the completions of a queue.
    #[inline]
    fn count(queue: &Cq, counter: &Cell<u64>) -> Result<usize> {
        match queue.read_count() {
            Ok(some) => {
                counter.set(counter.get() + some as u64);
                Ok(some)
            }
            Err(Errno::EAGAIN) => Ok(0),
            Err(e) => Err(e),
        }
    }

    /// Explains a failed read: by the error entry of the queue, if there is one.
    #[cold]
    fn explain(queue: &Cq, error: Errno) -> Fail {
        match (error, queue.readerr(64)) {
            (Errno::EAVAIL, Ok(entry)) => {
                Fail::here(format_args!("completion with {} ({})", entry.err, entry.prov_errno))
            }
            _ => Fail::here(format_args!("reading a queue: {error}")),
        }
    }

    /// Counts completions of sent operations.
    #[inline]
    pub(crate) fn poll_sent(&self) -> Outcome<usize> {
        Port::count(&self.tx, &self.sent).map_err(|e| Port::explain(&self.tx, e))
    }

    /// Counts completions of received messages.
    #[inline]
    pub(crate) fn poll_received(&self) -> Outcome<usize> {
        Port::count(&self.rx, &self.received).map_err(|e| Port::explain(&self.rx, e))
    }

    /// Makes progress.
    pub(crate) fn progress(&self) -> Outcome {
        self.poll_sent()?;
        self.poll_received()?;
        Ok(())
    }

    /// Number of completions of sent operations so far.
    #[inline]
    pub(crate) fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// Number of completions of received messages so far.
    #[inline]
    pub(crate) fn received(&self) -> u64 {
        self.received.get()
    }

    /// Waits until `until` operations have completed in total.
    #[inline]
    pub(crate) fn wait_sent(&self, until: u64) -> Outcome {
        while self.sent.get() < until {
            self.poll_sent()?;
        }
        Ok(())
    }

    /// Waits until `until` messages have arrived in total.
    #[inline]
    pub(crate) fn wait_received(&self, until: u64) -> Outcome {
        while self.received.get() < until {
            self.poll_received()?;
        }
        Ok(())
    }

    /// Repeats a call while it returns `FI_EAGAIN`, with progress between.
    #[inline]
    pub(crate) fn post(&self, mut call: impl FnMut() -> Result) -> Outcome {
        loop {
            match call() {
                Ok(()) => return Ok(()),
                Err(Errno::EAGAIN) => self.progress()?,
                Err(e) => return Err(refused(e)),
            }
        }
    }
}

/// Classifies the error of a refused call.
#[cold]
pub(crate) fn refused(error: Errno) -> Fail {
    match error {
        Errno::ENOSYS | Errno::EOPNOTSUPP => Fail::NotRun(format!("posting: {error}")),
        _ => Fail::here(format_args!("posting: {error}")),
    }
}

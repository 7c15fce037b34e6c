// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Accepting over a driver: a thread for each port, which accepts at once and reads the hello.
//!
//! The driver blocks a connecting peer until it is accepted. A request that was abandoned after 30
//! s makes a later accept hang without end. So accepting must not depend on the progress of the
//! process. The thread passes on only peers whose hello has arrived.
//!
//! Not about an established connection (`link`).

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use rustix::io::Errno;
use scif_ring::AtomicFlag;

use super::channel_pass::{IssuedPass, Pass};
use super::key_server::KeyServer;
use super::link::PortShared;
use super::relay::{GreetingKind, Offer, RelayGreeting};
use super::sender::Wire;
use super::stream::{Arriving, Stream};
use super::windows::{Offered, PeerNode, Rings};
use crate::addr::PortId;
use crate::error::{Error, Reason, Refusal, Result};
use crate::sys::epoll::Event;
use crate::sys::time::now_ns;
use crate::sys::{descriptor, thread};
use crate::transport::CloseKind;

/// Maximum number of peers with a hello that wait for the endpoint; further ones wait in the
/// driver.
const GREETED_MAX: usize = 1024;
/// Maximum number of peers without a hello; beyond it the oldest is refused.
const UNGREETED_MAX: usize = 256;
/// Time in nanoseconds for which a peer may stay without its next greeting before it is refused.
const GREETING_NS: u64 = 10_000_000_000;
/// Interval in milliseconds between checks of peers without a hello.
const GREETING_CHECK_MS: i32 = 1000;
/// Time in milliseconds until the next accept after a lack of descriptors, or with too many waiting
/// peers.
const SHORT_PAUSE_MS: i32 = 20;
/// Time for which a closing port waits until its number is free again.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// An accepted peer whose hello has arrived.
#[derive(Debug)]
pub(super) struct GreetedPeer {
    pub(super) stream: Stream,
    pub(super) from: PortId,
    pub(super) rings: Rings,
    /// Pass of this end.
    pub(super) pass: IssuedPass,
    /// Pass of an opener.
    pub(super) theirs: Option<Pass>,
}

/// State shared by the thread and the port.
#[derive(Debug)]
struct AcceptQueue {
    greeted: Mutex<VecDeque<GreetedPeer>>,
    /// Readable once the port closes.
    stop: Event,
    stopped: AtomicFlag,
    /// Whether peers are not notified of the close.
    silent: AtomicFlag,
}

impl AcceptQueue {
    fn greeted(&self) -> MutexGuard<'_, VecDeque<GreetedPeer>> {
        self.greeted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The accepting thread, in its port's view.
#[derive(Debug)]
pub(super) struct AcceptThread {
    queue: Arc<AcceptQueue>,
    shared: Arc<PortShared>,
    ended: mpsc::Receiver<()>,
}

impl AcceptThread {
    /// Starts the thread for a listening stream.
    pub(super) fn open(
        id: PortId,
        listener: Stream,
        shared: &Arc<PortShared>,
        key_server: Option<Arc<KeyServer>>,
    ) -> Result<AcceptThread> {
        let queue = Arc::new(AcceptQueue {
            greeted: Mutex::default(),
            stop: Event::new().map_err(Error::os("eventfd"))?,
            stopped: AtomicFlag::new(false),
            silent: AtomicFlag::new(false),
        });
        let (end, ended) = mpsc::channel::<()>();
        let mut acceptor = Acceptor {
            id,
            listener,
            spare: None,
            ungreeted: VecDeque::new(),
            short: false,
            queue: Arc::clone(&queue),
            shared: Arc::clone(shared),
            key_server,
        };
        thread::spawn_quiet("scif-accept", move || {
            acceptor.run();
            // The port is free before the end is reported.
            drop(acceptor);
            drop(end);
        })
        .map_err(|error| Error::Os {
            call: "starting a thread that accepts",
            errno: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
        })?;
        Ok(AcceptThread { queue, shared: Arc::clone(shared), ended })
    }

    pub(super) fn next(&self) -> Option<GreetedPeer> {
        self.queue.greeted().pop_front()
    }

    /// Ends the thread. Unless `how` is silent, waiting peers are refused.
    pub(super) fn close(&self, how: CloseKind) {
        self.queue.silent.set(how == CloseKind::Abandon);
        self.queue.stopped.set(true);
        self.queue.stop.signal();
        if self.ended.recv_timeout(CLOSE_LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
            log::warn!(
                "the SCIF driver has not returned from accept within {} s after the close of a \
                 port; the port stays in use. Check the driver (dmesg), and restart the program",
                CLOSE_LIMIT.as_secs()
            );
        }
        let greeted = std::mem::take(&mut *self.queue.greeted());
        if how != CloseKind::Abandon {
            for peer in &greeted {
                refuse(&peer.stream, Refusal::Closed);
            }
        }
        self.shared.sender.dispose(greeted);
    }
}

fn refuse(stream: &Stream, reason: Refusal) {
    // The first bytes find an empty queue.
    let _ = stream.send(&RelayGreeting::no(reason).encode());
}

/// An accepted peer whose greeting is not complete.
#[derive(Debug)]
struct UngreetedPeer {
    stream: Stream,
    /// Port of the peer's endpoint; after its hello, the one at which it listens.
    from: PortId,
    /// Node of the peer, and whether it is another one than ours.
    node: PeerNode,
    /// Next greeting, as far as it has arrived.
    greeting: Arriving,
    /// Windows offered to it, after a hello with one.
    offered: Option<Offered>,
    /// Pass of this end.
    pass: IssuedPass,
    /// Pass of the peer, after its hello.
    theirs: Option<Pass>,
    /// Time since which its next greeting is due.
    since_ns: u64,
}

/// Progress of a greeting.
enum GreetingProgress {
    Incomplete(UngreetedPeer),
    Complete(GreetedPeer),
    KeyChannel(UngreetedPeer, u64),
    Invalid(UngreetedPeer, Option<Reason>),
}

impl UngreetedPeer {
    /// Reads more of the greeting, and answers a hello with a window.
    fn read(mut self) -> GreetingProgress {
        match (self.greeting.read(&self.stream), self.offered.take()) {
            (Ok(None), offered) => GreetingProgress::Incomplete(UngreetedPeer { offered, ..self }),
            (Ok(Some(GreetingKind::Hello(port, offer, pass))), None) => {
                self.from.port = port;
                self.theirs = Some(pass);
                self.answer(offer)
            }
            (Ok(Some(GreetingKind::Ready(mapped))), Some(offered)) => match offered.confirm(mapped)
            {
                Ok(rings) => self.complete(rings),
                Err(reason) => GreetingProgress::Invalid(self, Some(reason)),
            },
            (Ok(Some(GreetingKind::KeyChannel(claim))), None) => {
                GreetingProgress::KeyChannel(self, claim)
            }
            (Ok(Some(_)), _) => GreetingProgress::Invalid(self, None),
            (Err(reason), _) => GreetingProgress::Invalid(self, Some(reason)),
        }
    }

    fn answer(mut self, hello: Offer) -> GreetingProgress {
        let Some(offset) = hello.window else { return self.complete(Rings::relayed()) };
        match Offered::answer(&mut self.stream, hello, offset, self.node) {
            Ok(offered) => GreetingProgress::Incomplete(UngreetedPeer {
                greeting: Arriving::default(),
                offered: Some(offered),
                since_ns: now_ns(),
                ..self
            }),
            Err(_) => GreetingProgress::Invalid(self, Some(Reason::Died)),
        }
    }

    fn complete(self, rings: Rings) -> GreetingProgress {
        let UngreetedPeer { stream, from, pass, theirs, .. } = self;
        GreetingProgress::Complete(GreetedPeer { stream, from, rings, pass, theirs })
    }
}

/// State of the thread.
struct Acceptor {
    id: PortId,
    listener: Stream,
    /// Endpoint for the next accept.
    spare: Option<Stream>,
    /// Peers without a hello, in the order of their arrival.
    ungreeted: VecDeque<UngreetedPeer>,
    /// Whether the last accept failed for lack of a resource.
    short: bool,
    queue: Arc<AcceptQueue>,
    shared: Arc<PortShared>,
    /// Server of key channels.
    key_server: Option<Arc<KeyServer>>,
}

impl Acceptor {
    fn run(&mut self) {
        let mut entries = Vec::new();
        loop {
            self.wait(&mut entries);
            if self.queue.stopped.get() {
                break;
            }
            let called = entries.get(1).is_some_and(|entry| entry.fd >= 0 && entry.revents != 0);
            self.short = false;
            if called {
                self.accept();
            }
            self.read_hellos();
        }
        for ungreeted in std::mem::take(&mut self.ungreeted) {
            self.leave(ungreeted, Some(Refusal::Closed).filter(|_| !self.queue.silent.get()));
        }
    }

    /// Refuses a peer, unless it is not to be notified. Another thread closes the connection, since
    /// that waits for the peer if there is a window.
    fn leave(&self, peer: UngreetedPeer, reason: Option<Refusal>) {
        if let Some(reason) = reason {
            refuse(&peer.stream, reason);
        }
        self.shared.sender.dispose(peer);
    }

    /// Waits for a connecting peer, for a hello, or for the stop event.
    fn wait(&mut self, entries: &mut Vec<libc::pollfd>) {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let crowded = self.queue.greeted().len() >= GREETED_MAX;
        // poll(2) ignores a negative number.
        let listener = if self.short || crowded { -1 } else { self.listener.raw() };
        entries.clear();
        entries.extend([entry(self.queue.stop.as_fd().as_raw_fd()), entry(listener)]);
        entries.extend(self.ungreeted.iter().map(|ungreeted| entry(ungreeted.stream.raw())));
        let limit = match () {
            () if self.short || crowded => SHORT_PAUSE_MS,
            () if !self.ungreeted.is_empty() => GREETING_CHECK_MS,
            () => -1,
        };
        if let Err(errno) = descriptor::poll_raw(entries, limit) {
            log::debug!("poll: {errno}");
        }
    }

    /// Accepts one peer.
    fn accept(&mut self) {
        let spare = match self.spare.take() {
            Some(spare) => Ok(spare),
            None => self.listener.another(),
        };
        let accepted = spare.and_then(|spare| match self.listener.accept(&spare) {
            Ok(from) => Ok((spare, from)),
            Err(failure) => {
                self.spare = Some(spare);
                Err(failure)
            }
        });
        match accepted {
            Ok((stream, from)) => {
                self.ungreeted.push_back(UngreetedPeer {
                    stream,
                    from,
                    node: PeerNode { number: from.node, is_remote: from.node != self.id.node },
                    greeting: Arriving::default(),
                    offered: None,
                    pass: self.shared.passes.issue(),
                    theirs: None,
                    since_ns: now_ns(),
                });
                if self.ungreeted.len() > UNGREETED_MAX {
                    if let Some(oldest) = self.ungreeted.pop_front() {
                        self.leave(oldest, Some(Refusal::Resources));
                    }
                }
            }
            Err(failure) => match failure.errno() {
                // The peer has given up.
                Errno::AGAIN | Errno::INTR => {}
                errno => {
                    self.short = true;
                    self.shared.warn_once(format_args!(
                        "scif_accept at {}: {errno}; callers wait until it succeeds. Raise the \
                         limit of open files (ulimit -n) where these are short",
                        self.id
                    ));
                }
            },
        }
    }

    /// Reads hellos. Peers with a valid one are greeted; others are refused or dropped, also
    /// after the time limit.
    fn read_hellos(&mut self) {
        let now = now_ns();
        for ungreeted in std::mem::take(&mut self.ungreeted) {
            match ungreeted.read() {
                GreetingProgress::Complete(greeted) => {
                    self.queue.greeted().push_back(greeted);
                    self.shared.signal();
                }
                GreetingProgress::KeyChannel(peer, claim) => {
                    let admitted = self.key_server.as_ref().zip(self.shared.passes.admit(claim));
                    match admitted {
                        Some((server, proof)) => server.admit(peer.stream, proof),
                        None => {
                            log::debug!(
                                "{} connected a key channel to {} without the pass of a \
                                 connection; refused",
                                peer.from,
                                self.id
                            );
                            self.leave(peer, Some(Refusal::Closed));
                        }
                    }
                }
                GreetingProgress::Incomplete(ungreeted)
                    if now.saturating_sub(ungreeted.since_ns) < GREETING_NS =>
                {
                    self.ungreeted.push_back(ungreeted);
                }
                GreetingProgress::Incomplete(ungreeted)
                | GreetingProgress::Invalid(ungreeted, None) => {
                    log::debug!(
                        "{} connected to {} and sent no valid greeting within {} s; refused",
                        ungreeted.from,
                        self.id,
                        GREETING_NS / 1_000_000_000
                    );
                    // Without a refusal, the peer would assume that we died.
                    self.leave(ungreeted, Some(Refusal::Resources));
                }
                GreetingProgress::Invalid(ungreeted, Some(reason)) => {
                    log::debug!("{} connected to {}: {reason}; refused", ungreeted.from, self.id);
                    let refusal = match reason {
                        Reason::Refused(refusal) => Some(refusal),
                        _ => None,
                    };
                    self.leave(ungreeted, refusal);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::RawFd;

    use rustix::fs::{Mode, OFlags};
    use scif_ring::{AtomicCounter, BELL_BYTES, Mem};

    use super::*;
    use crate::failure::Failure;
    use crate::scif_calls::{ScifCalls, WindowKind};
    use crate::sys::errno::lock;
    use crate::sys::mmap::Mapping;
    use crate::transport::scif::channel_pass::ChannelPasses;
    use crate::transport::scif::sender::Sender;

    type CallResult<T> = std::result::Result<T, Failure>;

    const ID: PortId = PortId::new(1, 7);
    const LIMIT_NS: u64 = 10_000_000_000;

    /// Calls with `callers` peers that say nothing but `said`. The close of an endpoint in
    /// `waiting` blocks while the test has the other end of `gate`.
    #[derive(Debug)]
    struct SilentCalls {
        callers: u64,
        accepted: AtomicCounter,
        waiting: Mutex<Vec<RawFd>>,
        gate: Mutex<mpsc::Receiver<()>>,
        said: Mutex<VecDeque<u8>>,
    }

    impl ScifCalls for SilentCalls {
        fn open(&self) -> CallResult<RawFd> {
            // Always reported as readable.
            let file = rustix::fs::open("/dev/null", OFlags::CLOEXEC, Mode::empty())?;
            Ok(descriptor::release(file))
        }

        fn close(&self, fd: RawFd) {
            let waits = lock(&self.waiting).contains(&fd);
            lock(&self.waiting).retain(|waiting| *waiting != fd);
            if waits {
                let _ = lock(&self.gate).recv();
            }
            descriptor::close(fd).unwrap();
        }

        fn bind(&self, _: RawFd, port: u16) -> CallResult<u16> {
            Ok(port)
        }

        fn listen(&self, _: RawFd, _: i32) -> CallResult<()> {
            Ok(())
        }

        fn connect(&self, _: RawFd, _: PortId) -> CallResult<()> {
            Ok(())
        }

        fn accept_into(&self, _: RawFd, new: RawFd) -> CallResult<PortId> {
            if self.accepted.get() == self.callers {
                return Err(Failure::Again);
            }
            lock(&self.waiting).push(new);
            self.accepted.add(1);
            Ok(ID)
        }

        fn send(&self, _: RawFd, src: &Mem) -> CallResult<usize> {
            Ok(src.len())
        }

        fn receive(&self, _: RawFd, dst: &Mem) -> CallResult<usize> {
            let mut said = lock(&self.said);
            let n = said.len().min(dst.len());
            dst.copy_from_slice(&said.drain(..n).collect::<Vec<u8>>());
            Ok(n)
        }

        fn window_kind(&self) -> Option<WindowKind> {
            None
        }

        fn share(&self, _: RawFd, _: usize) -> CallResult<(Mapping, i64)> {
            Err(Failure::NoMemory)
        }

        fn map(&self, _: RawFd, _: usize, _: i64) -> CallResult<Mapping> {
            Err(Failure::NoMemory)
        }

        fn nodes(&self) -> CallResult<(Vec<u16>, u16)> {
            Ok((vec![ID.node], ID.node))
        }

        fn name(&self) -> String {
            "silent peers".to_owned()
        }
    }

    /// Opens the acceptor of a port with silent callers. Closes block until the second value is
    /// dropped.
    fn acceptor(callers: u64) -> (AcceptThread, mpsc::Sender<()>, Arc<SilentCalls>) {
        let (gate, closed) = mpsc::channel();
        let calls = Arc::new(SilentCalls {
            callers,
            accepted: AtomicCounter::new(0),
            waiting: Mutex::default(),
            gate: Mutex::new(closed),
            said: Mutex::default(),
        });
        let listener = stream(&calls);
        listener.listen(ID.port, 1).unwrap();
        let bell = Arc::new(Mapping::anonymous(BELL_BYTES).unwrap());
        let shared = Arc::new(PortShared::new(bell, Sender::start().unwrap(), None).unwrap());
        (AcceptThread::open(ID, listener, &shared, None).unwrap(), gate, calls)
    }

    fn stream(calls: &Arc<SilentCalls>) -> Stream {
        Stream::open(&(Arc::clone(calls) as Arc<dyn ScifCalls>)).unwrap()
    }

    #[test]
    fn an_answered_peer_has_time_for_its_confirmation() {
        let (acceptor, gate, calls) = acceptor(0);
        let offer = Offer { window: Some(0), membarrier: false };
        lock(&calls.said).extend(RelayGreeting::hello(ID.port, offer, Pass::NONE).encode());
        let peer = UngreetedPeer {
            stream: stream(&calls),
            from: ID,
            node: PeerNode { number: ID.node, is_remote: false },
            greeting: Arriving::default(),
            offered: None,
            pass: acceptor.shared.passes.issue(),
            theirs: None,
            since_ns: 0,
        };
        let before = now_ns();
        let GreetingProgress::Incomplete(peer) = peer.read() else {
            panic!("a hello with a window is answered");
        };
        assert!(peer.since_ns >= before);
        acceptor.close(CloseKind::Graceful);
        drop(gate);
    }

    #[test]
    fn a_close_that_waits_holds_up_no_accept() {
        const CALLERS: u64 = UNGREETED_MAX as u64 + 20;
        let (acceptor, gate, calls) = acceptor(CALLERS);
        let end = now_ns() + LIMIT_NS;
        while calls.accepted.get() < CALLERS {
            assert!(now_ns() < end, "accepted only {}", calls.accepted.get());
            std::thread::yield_now();
        }
        acceptor.close(CloseKind::Graceful);
        drop(gate);
    }

    #[test]
    fn a_port_closes_without_waiting_for_its_greeted_peers() {
        let (acceptor, gate, calls) = acceptor(0);
        let passes: Arc<ChannelPasses> = Arc::default();
        let greeted = GreetedPeer {
            stream: stream(&calls),
            from: ID,
            rings: Rings::relayed(),
            pass: passes.issue(),
            theirs: None,
        };
        lock(&calls.waiting).push(greeted.stream.raw());
        acceptor.queue.greeted().push_back(greeted);
        let (told, closed) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                acceptor.close(CloseKind::Graceful);
                told.send(()).unwrap();
            });
            let result = closed.recv_timeout(Duration::from_nanos(LIMIT_NS));
            drop(gate);
            assert_eq!(result, Ok(()));
        });
    }
}

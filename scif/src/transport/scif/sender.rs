// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Sending over a driver: the outgoing half of each connection, the thread that sends data for
//! which the driver had no space, and the thread that closes descriptors.
//!
//! An operation completes once its record is in the ring, and its process may never call the
//! library again. The pushing thread sends as much as fits the driver's queue; the sender thread
//! waits for space and sends the rest. The other thread closes, since closing waits for the driver,
//! or for the peer's answer about its mappings of a window.
//!
//! Not about connecting (`calls`, `acceptor`) nor about receiving (`link`).

use std::any::Any;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError, mpsc};
use std::time::Duration;

use rustix::io::Errno;
use scif_ring::{AtomicCounter, AtomicFlag};

use super::relay::Outgoing;
use crate::addr::PortId;
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::sys::descriptor;
use crate::sys::epoll::Event;
use crate::sys::errno::lock;
use crate::sys::logging::warn_about_peer;
use crate::sys::thread::{self, contained};
use crate::sys::time::now_ns;

/// Time in nanoseconds for which a connection closed by this side waits for its peer to take the
/// last bytes. Afterwards they are lost.
const LINGER_NS: u64 = 60_000_000_000;
/// Interval in milliseconds between checks of lingering connections. A longer one keeps their
/// descriptors open for longer.
const LINGER_CHECK_MS: i32 = 1000;
/// Pause after a round in which descriptors reported space but took nothing: the driver is about to
/// report the end of a peer.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(1);

/// Sending end of a byte stream.
pub(super) trait Wire: Send + Sync {
    /// Sends without blocking; returns the number of bytes taken, 0 without space.
    fn send(&self, bytes: &[u8]) -> std::result::Result<usize, Failure>;

    /// Returns the descriptor to wait on for space.
    fn raw(&self) -> RawFd;
}

debug_by_name!(Wire);

/// Connections of one port that were closed before all data was sent, and the data that all its
/// connections have sent.
#[derive(Debug, Default)]
pub(super) struct Lingering {
    over: Mutex<Vec<Arc<AtomicFlag>>>,
    changed: Condvar,
    sends: AtomicCounter,
    bytes: AtomicCounter,
}

impl Lingering {
    fn add(&self, over: &Arc<AtomicFlag>) {
        let mut all = lock(&self.over);
        all.retain(|over| !over.get());
        all.push(Arc::clone(over));
    }

    fn count(&self, bytes: usize) {
        self.sends.add(1);
        self.bytes.add(bytes as u64);
    }

    /// Returns the number of sends, and of their bytes.
    pub(super) fn sent(&self) -> (u64, u64) {
        (self.sends.get(), self.bytes.get())
    }

    fn notify(&self) {
        // Locked, so that a waiter either has not checked yet or already sleeps.
        let _all = lock(&self.over);
        self.changed.notify_all();
    }

    /// Blocks until all data is sent or lost, for at most `limit`; returns whether it is.
    pub(super) fn wait(&self, limit: Duration) -> bool {
        let (mut all, _) = self
            .changed
            .wait_timeout_while(lock(&self.over), limit, |all| !all.iter().all(|over| over.get()))
            .unwrap_or_else(PoisonError::into_inner);
        all.retain(|over| !over.get());
        all.is_empty()
    }
}

/// State of an outlet, used in turn by its owner and the thread.
#[derive(Debug)]
struct Out {
    records: Outgoing,
    /// Whether the closing frame was appended to the records.
    ended: bool,
    /// Whether the thread has the outlet.
    handed: bool,
    /// Whether the driver has taken bytes since this was cleared.
    moved: bool,
}

/// Result of one attempt to send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Flushed {
    /// All is sent, or another thread sends at present.
    Done,
    /// No space; the thread already has it.
    Blocked,
    /// The caller must give it to the thread.
    HandOver,
}

/// Callback to the owner.
struct Notify(Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for Notify {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Notify")
    }
}

/// Outgoing half of one connection.
#[derive(Debug)]
pub(super) struct Outlet {
    wire: Arc<dyn Wire>,
    peer: PortId,
    out: Mutex<Out>,
    /// Whether another thread wants to send and found `out` locked: the holder then retries after
    /// unlocking.
    wanted: AtomicFlag,
    /// Whether a doorbell is to be sent.
    bell: AtomicFlag,
    /// Whether the owner has closed it gracefully: a last frame follows the records.
    closing: AtomicFlag,
    /// Time of the close in nanoseconds.
    closed_ns: AtomicCounter,
    /// Whether sending has ended permanently.
    over: Arc<AtomicFlag>,
    /// Errno of the failure that ends the connection; 0 for none.
    failed: AtomicCounter,
    /// Makes the owner check for a failure.
    notify: Notify,
    lingering: Arc<Lingering>,
    sender: Arc<Sender>,
}

impl Outlet {
    pub(super) fn new(
        wire: Arc<dyn Wire>,
        peer: PortId,
        records: Outgoing,
        sender: &Arc<Sender>,
        lingering: &Arc<Lingering>,
        notify: impl Fn() + Send + Sync + 'static,
    ) -> Arc<Outlet> {
        Arc::new(Outlet {
            wire,
            peer,
            out: Mutex::new(Out { records, ended: false, handed: false, moved: false }),
            wanted: AtomicFlag::new(false),
            bell: AtomicFlag::new(false),
            closing: AtomicFlag::new(false),
            closed_ns: AtomicCounter::new(0),
            over: Arc::new(AtomicFlag::new(false)),
            failed: AtomicCounter::new(0),
            notify: Notify(Box::new(notify)),
            lingering: Arc::clone(lingering),
            sender: Arc::clone(sender),
        })
    }

    /// Sends as much as the driver accepts; the thread sends the rest. Never blocks.
    pub(super) fn flush(self: &Arc<Self>) {
        if self.try_flush() == Flushed::HandOver {
            self.sender.take(Arc::clone(self));
        }
    }

    /// Sends a doorbell, for rings in windows. Never blocks.
    pub(super) fn ring_bell(self: &Arc<Self>) {
        self.bell.set(true);
        self.flush();
    }

    /// Closes it gracefully: the last frame follows the records that the endpoint has pushed.
    pub(super) fn close(self: &Arc<Self>) {
        self.closed_ns.set(now_ns());
        self.closing.set(true);
        self.flush();
        if !self.over.get() {
            self.lingering.add(&self.over);
        }
    }

    /// Sends a reset if the driver has space, and nothing after it.
    pub(super) fn reset(&self) {
        if let Ok(mut out) = self.out.try_lock() {
            if !self.over.get() {
                out.records.end(false);
                let _ = out.records.flush(|bytes| self.wire.send(bytes));
            }
        }
        self.over.set(true);
    }

    /// Stops sending.
    pub(super) fn abandon(&self) {
        self.over.set(true);
    }

    /// Returns the failure that ends the connection. A closed peer is no failure: data that it sent
    /// before is received first.
    pub(super) fn failure(&self) -> Option<Errno> {
        match self.failed.get() {
            0 => None,
            number => i32::try_from(number).ok().map(Errno::from_raw_os_error),
        }
    }

    fn try_flush(&self) -> Flushed {
        let mut result = Flushed::Done;
        loop {
            // Both sides exchange the flag, so one of them sees the other: either the holder of the
            // lock retries, or its unlock is seen by this thread.
            self.wanted.swap(true);
            let mut out = match self.out.try_lock() {
                Ok(out) => out,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return result,
            };
            self.wanted.swap(false);
            let done = self.send(&mut out);
            if !done && !out.handed {
                out.handed = true;
                result = Flushed::HandOver;
            } else if !done && result == Flushed::Done {
                result = Flushed::Blocked;
            }
            drop(out);
            if !self.wanted.swap(false) {
                return result;
            }
        }
    }

    /// Sends until nothing is left, the driver has no space (returns false), or the connection has
    /// failed.
    fn send(&self, out: &mut Out) -> bool {
        if self.over.get() {
            return true;
        }
        loop {
            let Out { records, moved, .. } = &mut *out;
            if self.bell.swap(false) {
                records.ring_bell();
            }
            let sent = records.flush(|bytes| match self.wire.send(bytes) {
                Err(Failure::Interrupted) => Ok(0),
                Ok(0) => Ok(0),
                Ok(n) => {
                    *moved = true;
                    self.lingering.count(n);
                    Ok(n)
                }
                failed => failed,
            });
            match sent {
                Ok(false) => return false,
                Ok(true) if !self.closing.get() => return true,
                Ok(true) if !out.ended => {
                    out.ended = true;
                    out.records.end(true);
                }
                Ok(true) => break,
                Err(failure) => {
                    self.fail(failure.errno());
                    break;
                }
            }
        }
        self.finish();
        true
    }

    /// Records a failed send. The bytes given to a failed call may have arrived, so they are never
    /// sent again.
    fn fail(&self, errno: Errno) {
        match errno {
            // The peer has closed, as the receiving side finds after the last of its bytes.
            Errno::CONNRESET | Errno::NOTCONN => {}
            _ => {
                warn_about_peer!(
                    "scif_send to {}: {errno}; the connection is ended, and what was sent on it \
                     may be lost. Look for a node that is down or overloaded (dmesg)",
                    self.peer
                );
                self.failed.set(u64::from(errno.raw_os_error().unsigned_abs()));
                self.notify.0();
            }
        }
    }

    /// Ends the connection after a panic in the sending thread.
    #[cold]
    fn end_after_panic(&self) {
        warn_about_peer!(
            "the connection to {} has ended because of an internal error; data sent on it may be \
             lost",
            self.peer
        );
        self.failed.set(u64::from(Errno::IO.raw_os_error().unsigned_abs()));
        self.finish();
        let _ = contained(|| self.notify.0());
    }

    fn finish(&self) {
        self.over.set(true);
        if self.closing.get() {
            self.lingering.notify();
        }
    }

    /// Continues in the thread, after the descriptor was reported. Returns whether it stays with
    /// the thread, and whether bytes were taken.
    fn resume(&self) -> (bool, bool) {
        {
            let mut out = lock(&self.out);
            out.handed = false;
            out.moved = false;
        }
        let stays = self.try_flush() == Flushed::HandOver;
        let moved = !stays || lock(&self.out).moved;
        (stays, moved)
    }

    /// Gives up a closed connection whose peer takes no data; returns whether it did.
    fn expire(&self, now: u64) -> bool {
        let expired = self.closing.get()
            && !self.over.get()
            && now.saturating_sub(self.closed_ns.get()) > LINGER_NS;
        if expired {
            warn_about_peer!(
                "{} has not received all data within {} s after the close; the rest is discarded. \
                 Check that the peer process runs and is not stopped",
                self.peer,
                LINGER_NS / 1_000_000_000
            );
            self.finish();
        }
        expired
    }
}

/// The sending thread and the closing one, in their users' view.
#[derive(Debug)]
pub(super) struct Sender {
    shared: Arc<SenderQueue>,
    /// Values whose drop waits for the driver or a peer.
    closing: mpsc::Sender<Box<dyn Any + Send>>,
}

#[derive(Debug)]
struct SenderQueue {
    /// Readable while there is new work.
    event: Event,
    blocked: Mutex<Vec<Arc<Outlet>>>,
    /// Whether the last user is dropped.
    unused: AtomicFlag,
}

impl Sender {
    /// Starts the threads. They end after the last user is dropped, once all data is sent and all
    /// values are dropped.
    pub(super) fn start() -> Result<Arc<Sender>> {
        let shared = Arc::new(SenderQueue {
            event: Event::new().map_err(Error::os("eventfd"))?,
            blocked: Mutex::default(),
            unused: AtomicFlag::new(false),
        });
        let inbox = Arc::clone(&shared);
        let (closing, dropped) = mpsc::channel();
        let failed = |call| {
            move |error: std::io::Error| Error::Os {
                call,
                errno: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
            }
        };
        // Started first: without users it ends at once.
        thread::spawn_quiet("scif-close", move || drop_all(&dropped))
            .map_err(failed("starting a thread that closes"))?;
        thread::spawn_quiet("scif-send", move || inbox.run())
            .map_err(failed("starting a thread that sends"))?;
        Ok(Arc::new(Sender { shared, closing }))
    }

    fn take(&self, outlet: Arc<Outlet>) {
        lock(&self.shared.blocked).push(outlet);
        self.shared.event.signal();
    }

    /// Drops a value in the closing thread.
    pub(super) fn dispose(&self, thing: impl Any + Send) {
        // The thread receives as long as there is a sender.
        let _ = self.closing.send(Box::new(thing));
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.shared.unused.set(true);
        self.shared.event.signal();
    }
}

impl SenderQueue {
    fn run(&self) {
        let mut blocked: Vec<Arc<Outlet>> = Vec::new();
        let mut entries = Vec::new();
        loop {
            // Read before the list is taken: a later change signals again.
            let unused = self.unused.get();
            blocked.append(&mut lock(&self.blocked));
            if unused && blocked.is_empty() {
                return;
            }
            self.wait(&blocked, &mut entries);
            self.event.drain();
            send_ready(&mut blocked, &entries);
        }
    }

    /// Waits for space at one of the outlets, or for new work.
    fn wait(&self, blocked: &[Arc<Outlet>], entries: &mut Vec<libc::pollfd>) {
        let entry = |fd, events| libc::pollfd { fd, events, revents: 0 };
        entries.clear();
        entries.push(entry(self.event.as_fd().as_raw_fd(), libc::POLLIN));
        entries.extend(blocked.iter().map(|outlet| entry(outlet.wire.raw(), libc::POLLOUT)));
        let limit =
            if blocked.iter().any(|outlet| outlet.closing.get()) { LINGER_CHECK_MS } else { -1 };
        // poll(2) instead of an epoll set: a driver has a queue of waiters for each direction,
        // joined only by a new poll.
        if let Err(errno) = descriptor::poll_raw(entries, limit) {
            log::debug!("poll: {errno}");
        }
    }
}

/// Drops values until there are no more users.
fn drop_all(dropped: &mpsc::Receiver<Box<dyn Any + Send>>) {
    for thing in dropped {
        if contained(|| drop(thing)).is_none() {
            warn_about_peer!(
                "internal error while a connection over the calls of scif.h was closed; it may \
                 stay open until the program ends. Please report it"
            );
        }
    }
}

/// Sends on the outlets with space, and keeps the ones with more to send.
fn send_ready(blocked: &mut Vec<Arc<Outlet>>, entries: &[libc::pollfd]) {
    let now = now_ns();
    let (mut ready, mut moved) = (false, false);
    // The first entry is the event.
    let mut entries = entries.iter().skip(1);
    let mut stays = |outlet: &Arc<Outlet>| {
        let reported = entries.next().is_some_and(|entry| entry.revents != 0);
        if outlet.expire(now) {
            return false;
        }
        if !reported {
            return !outlet.over.get();
        }
        let Some((stays, took)) = contained(|| outlet.resume()) else {
            outlet.end_after_panic();
            return false;
        };
        ready = true;
        moved |= took;
        stays
    };
    let mut gone = Vec::new();
    blocked.retain(|outlet| {
        let stays = stays(outlet);
        if !stays {
            gone.push(Arc::clone(outlet));
        }
        stays
    });
    // This thread may be the last user, and must not wait for the close.
    for outlet in gone {
        let sender = Arc::clone(&outlet.sender);
        sender.dispose(outlet);
    }
    if ready && !moved {
        std::thread::sleep(NO_ROOM_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;

    use rustix::net::SendFlags;
    use scif_ring::layout::BODY_MAX;

    use super::*;
    use crate::segment::{SEGMENT_BYTES, Side, Views};
    use crate::sys::mmap::Mapping;
    use crate::sys::time::cpu_relax_or_yield;
    use crate::transport::scif::relay::relay;

    const PEER: PortId = PortId::new(1, 7);
    /// Size in bytes of a frame before its head, and of the last frame.
    const FRAME: usize = 8;
    const LIMIT: Duration = Duration::from_secs(10);

    /// A stream with a short queue.
    #[derive(Debug)]
    struct Socket(OwnedFd);

    impl Wire for Socket {
        fn send(&self, bytes: &[u8]) -> std::result::Result<usize, Failure> {
            match rustix::net::send(&self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Err(Errno::AGAIN) => Ok(0),
                Err(Errno::PIPE) => Err(Failure::Reset),
                sent => Ok(sent?),
            }
        }

        fn raw(&self) -> RawFd {
            self.0.as_raw_fd()
        }
    }

    fn socket() -> (Arc<Socket>, UnixStream) {
        let (a, b) = UnixStream::pair().unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&a, 4096).unwrap();
        b.set_read_timeout(Some(LIMIT)).unwrap();
        (Arc::new(Socket(a.into())), b)
    }

    /// Returns an endpoint's end of a connection, and its outlet.
    fn outlet(
        wire: Arc<dyn Wire>,
        sender: &Arc<Sender>,
        notify: impl Fn() + Send + Sync + 'static,
    ) -> (Views, Arc<Outlet>) {
        let map = Arc::new(Mapping::anonymous(SEGMENT_BYTES).unwrap());
        let views = Views::new(Arc::clone(&map), Side::Opener).unwrap();
        let (outgoing, _) = relay(&map, Side::Opener).unwrap();
        let outlet = Outlet::new(wire, PEER, outgoing, sender, &Arc::default(), notify);
        (views, outlet)
    }

    #[test]
    fn records_without_room_leave_without_another_call() {
        let sender = Sender::start().unwrap();
        let (wire, mut peer) = socket();
        let (mut views, outlet) = outlet(wire, &sender, || ());
        views.tx.push_slice(1, &[], &[5; BODY_MAX]).unwrap();
        outlet.flush();
        let mut got = vec![0; FRAME + BODY_MAX];
        peer.read_exact(&mut got).unwrap();
        assert!(got.iter().skip(FRAME).all(|byte| *byte == 5));
    }

    #[test]
    fn records_pushed_meanwhile_keep_their_order() {
        const COUNT: u32 = 2000;
        let sender = Sender::start().unwrap();
        let (wire, mut peer) = socket();
        let (mut views, outlet) = outlet(wire, &sender, || ());
        let reader = std::thread::spawn(move || {
            for i in 0..COUNT {
                let mut frame = [0; FRAME + 1500];
                peer.read_exact(&mut frame).unwrap();
                assert!(frame[FRAME..].iter().all(|byte| *byte == i.to_le_bytes()[0]));
            }
            peer
        });
        let end = now_ns() + 60_000_000_000;
        for i in 0..COUNT {
            while views.tx.push_slice(1, &[], &[i.to_le_bytes()[0]; 1500]).is_err() {
                assert!(now_ns() < end);
                outlet.flush();
                std::thread::yield_now();
            }
            outlet.flush();
        }
        let mut peer = reader.join().unwrap();
        outlet.close();
        drop((outlet, views));
        let mut rest = Vec::new();
        peer.read_to_end(&mut rest).unwrap();
        assert_eq!(rest.len(), FRAME, "the last frame and nothing else");
    }

    #[test]
    fn a_record_pushed_while_another_thread_sends_is_not_forgotten() {
        const ROUNDS: u64 = 10_000;
        let sender = Sender::start().unwrap();
        let (wire, mut peer) = socket();
        let (mut views, outlet) = outlet(wire, &sender, || ());
        let (begin, done) = (Arc::new(AtomicCounter::new(0)), Arc::new(AtomicCounter::new(0)));
        let other = {
            let (outlet, begin, done) =
                (Arc::clone(&outlet), Arc::clone(&begin), Arc::clone(&done));
            std::thread::spawn(move || {
                for i in 0..ROUNDS {
                    (0..).take_while(|_| begin.get() <= i).for_each(cpu_relax_or_yield);
                    outlet.flush();
                    done.set(i + 1);
                }
            })
        };
        for i in 0..ROUNDS {
            begin.set(i + 1);
            // A little later in each round, up to the duration of a send.
            for _ in 0..i % 100 {
                std::hint::spin_loop();
            }
            views.tx.push_head(1, b"news").unwrap();
            outlet.flush();
            while done.get() <= i {
                std::thread::yield_now();
            }
            peer.read_exact(&mut [0; FRAME + 4]).unwrap();
        }
        other.join().unwrap();
    }

    #[test]
    fn a_closed_connection_is_sent_to_its_end() {
        let sender = Sender::start().unwrap();
        let (wire, mut peer) = socket();
        let (mut views, outlet) = outlet(wire, &sender, || ());
        views.tx.push_slice(1, &[], &[5; BODY_MAX]).unwrap();
        outlet.close();
        let lingering = Arc::clone(&outlet.lingering);
        assert!(!lingering.wait(Duration::ZERO));
        sender.dispose((outlet, views));
        let mut got = Vec::new();
        peer.read_to_end(&mut got).unwrap();
        assert_eq!(got.len(), FRAME + BODY_MAX + FRAME);
        assert!(lingering.wait(LIMIT));
    }

    /// A driver that fails after it has taken the bytes.
    #[derive(Debug)]
    struct Failing(Mutex<Vec<u8>>, Failure);

    impl Wire for Failing {
        fn send(&self, bytes: &[u8]) -> std::result::Result<usize, Failure> {
            lock(&self.0).extend(bytes);
            Err(self.1)
        }

        fn raw(&self) -> RawFd {
            -1
        }
    }

    #[test]
    fn a_failed_send_ends_the_connection_and_is_not_repeated() {
        for (failure, told) in [
            (Failure::NoNode, Some(Errno::NODEV)),
            (Failure::NoMemory, Some(Errno::NOMEM)),
            (Failure::Reset, None),
            (Failure::NotConnected, None),
        ] {
            let sender = Sender::start().unwrap();
            let wire = Arc::new(Failing(Mutex::default(), failure));
            let notified = Arc::new(AtomicCounter::new(0));
            let count = Arc::clone(&notified);
            let (mut views, outlet) =
                outlet(Arc::clone(&wire) as Arc<dyn Wire>, &sender, move || {
                    count.add(1);
                });
            views.tx.push_head(1, b"once").unwrap();
            outlet.flush();
            assert_eq!(outlet.failure(), told);
            assert_eq!(notified.get(), u64::from(told.is_some()));
            views.tx.push_head(1, b"later").unwrap();
            outlet.flush();
            outlet.close();
            assert_eq!(lock(&wire.0).len(), FRAME + 4, "{failure}: sent once");
            assert!(outlet.lingering.wait(Duration::ZERO), "nothing is waited for");
        }
    }

    /// A driver that has no space at first, and panics when it has.
    #[derive(Debug)]
    struct Panicking(AtomicCounter, Event);

    impl Wire for Panicking {
        fn send(&self, _: &[u8]) -> std::result::Result<usize, Failure> {
            assert_eq!(self.0.add(1), 0, "on purpose");
            Ok(0)
        }

        fn raw(&self) -> RawFd {
            self.1.as_fd().as_raw_fd()
        }
    }

    #[test]
    fn a_panic_in_the_thread_ends_its_connection_and_no_other() {
        let sender = Sender::start().unwrap();
        let (told, news) = mpsc::channel();
        let told = Mutex::new(told);
        let wire = Arc::new(Panicking(AtomicCounter::new(0), Event::new().unwrap()));
        let (mut views, outlet) = outlet(wire, &sender, move || {
            let _ = lock(&told).send(());
        });
        views.tx.push_head(1, b"lost").unwrap();
        outlet.flush();
        news.recv_timeout(LIMIT).unwrap();
        assert_eq!(outlet.failure(), Some(Errno::IO));
        outlet.close();
        assert!(outlet.lingering.wait(Duration::ZERO), "nothing is waited for");
        let (wire, mut peer) = socket();
        let (mut views, other) = self::outlet(wire, &sender, || ());
        views.tx.push_slice(1, &[], &[5; BODY_MAX]).unwrap();
        other.flush();
        peer.read_exact(&mut vec![0; FRAME + BODY_MAX]).unwrap();
    }

    /// A value whose drop panics.
    struct Broken(mpsc::Sender<()>);

    impl Drop for Broken {
        fn drop(&mut self) {
            let _ = self.0.send(());
            panic!("on purpose");
        }
    }

    #[test]
    fn a_panicking_drop_does_not_end_the_thread() {
        let sender = Sender::start().unwrap();
        let (begun, news) = mpsc::channel();
        for _ in 0..2 {
            sender.dispose(Broken(begun.clone()));
            news.recv_timeout(LIMIT).unwrap();
        }
    }

    /// A value whose drop blocks, like the close of a driver's descriptor.
    struct Slow {
        begun: mpsc::Sender<()>,
        go_on: mpsc::Receiver<()>,
    }

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.begun.send(());
            let _ = self.go_on.recv_timeout(LIMIT);
        }
    }

    #[test]
    fn neither_disposing_nor_sending_waits_for_an_earlier_drop() {
        let sender = Sender::start().unwrap();
        let (begun, news) = mpsc::channel();
        let (go_on, wait) = mpsc::channel();
        sender.dispose(Slow { begun, go_on: wait });
        news.recv_timeout(LIMIT).unwrap();
        sender.dispose(());
        let (wire, mut peer) = socket();
        let (mut views, outlet) = outlet(wire, &sender, || ());
        views.tx.push_slice(1, &[], &[5; BODY_MAX]).unwrap();
        outlet.flush();
        peer.read_exact(&mut vec![0; FRAME + BODY_MAX]).unwrap();
        assert!(go_on.send(()).is_ok(), "the first drop is still under way");
    }

    #[test]
    fn the_thread_ends_with_its_last_user() {
        let sender = Sender::start().unwrap();
        let shared = Arc::downgrade(&sender.shared);
        drop(sender);
        let end = now_ns() + 10_000_000_000;
        while shared.strong_count() > 0 {
            assert!(now_ns() < end);
            std::thread::yield_now();
        }
    }
}

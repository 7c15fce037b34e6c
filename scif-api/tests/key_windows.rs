// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Windows of memory keys over the engine: the calls of `scif.h` that become of a registration, an
//! RMA and its completion, and the life of windows.
//!
//! The owner of the keys makes no progress in any test once it is connected.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test says what it expects")]

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use scif::failure::Failure;
use scif::sys::mmap::Mapping;
use scif::sys::slice::{with_bytes, with_bytes_mut};
use scif::{
    Carrier, Config, ConnId, Endpoint, Exports, KeyLookup, KeyRights, KeyWindow, LinkEvent, Node,
    PeerWindows, PortId, ReadBegun, ReadState, RemoteMem, RmaMode, RmaWay, ScifCalls, SharedKeys,
    Signal, WindowAccess, WindowCalls, WindowError, WindowKind, WireMemory,
};
use scif_api::{Backend, Pages};
use scif_ring::{KeyEntry, Mem};

type CallResult<T> = Result<T, Failure>;

const READ: u64 = 1;
const WRITE: u64 = 2;
const PAGE: usize = 4096;
/// Length in bytes of a question for a key.
const QUESTION: usize = 16;
/// Time within which an expected event must occur.
const LIMIT: Duration = Duration::from_secs(60);

/// Calls that are noted before they are executed, by their names in `scif.h`.
#[derive(Debug)]
struct Noted {
    backend: Backend,
    log: Arc<Mutex<Vec<String>>>,
    /// Error of the next fence.
    fence_error: Arc<Mutex<Option<Failure>>>,
    differences: Differences,
    /// Times since which windows were hidden when they were unregistered.
    hidden_since: Arc<Mutex<Vec<u64>>>,
}

/// Properties in which the calls differ from those of the engine.
#[derive(Clone, Copy, Debug)]
struct Differences {
    /// Whether lent windows are those of the engine, or pinned ones as of a driver.
    lends_addresses: bool,
    /// Whether the rings lie in windows.
    has_rings: bool,
    /// Length from which RMA is left to DMA; `None`: it is measured.
    dma_min: Option<u64>,
}

const PLAIN: Differences =
    Differences { lends_addresses: true, has_rings: false, dma_min: Some(u64::MAX) };

impl Noted {
    fn note(&self, call: String) {
        self.log.lock().unwrap().push(call);
    }
}

impl ScifCalls for Noted {
    fn open(&self) -> CallResult<RawFd> {
        ScifCalls::open(&self.backend)
    }

    fn close(&self, fd: RawFd) {
        ScifCalls::close(&self.backend, fd);
    }

    fn bind(&self, fd: RawFd, port: u16) -> CallResult<u16> {
        ScifCalls::bind(&self.backend, fd, port)
    }

    fn listen(&self, fd: RawFd, backlog: i32) -> CallResult<()> {
        ScifCalls::listen(&self.backend, fd, backlog)
    }

    fn connect(&self, fd: RawFd, dst: PortId) -> CallResult<()> {
        ScifCalls::connect(&self.backend, fd, dst)
    }

    fn accept_into(&self, fd: RawFd, new: RawFd) -> CallResult<PortId> {
        self.backend.accept_into(fd, new)
    }

    fn send(&self, fd: RawFd, src: &Mem) -> CallResult<usize> {
        if src.len() == QUESTION {
            self.note(format!("scif_send of {QUESTION}"));
        }
        ScifCalls::send(&self.backend, fd, src)
    }

    fn receive(&self, fd: RawFd, dst: &Mem) -> CallResult<usize> {
        ScifCalls::receive(&self.backend, fd, dst)
    }

    fn window_kind(&self) -> Option<WindowKind> {
        self.differences.has_rings.then_some(WindowKind::Shared)
    }

    fn share(&self, fd: RawFd, len: usize) -> CallResult<(Mapping, i64)> {
        self.note(format!("scif_register of {len}"));
        ScifCalls::share(&self.backend, fd, len)
    }

    fn map(&self, fd: RawFd, len: usize, offset: i64) -> CallResult<Mapping> {
        ScifCalls::map(&self.backend, fd, len, offset)
    }

    fn key_windows(&self) -> Option<&dyn WindowCalls> {
        Some(self)
    }

    fn nodes(&self) -> CallResult<(Vec<u16>, u16)> {
        ScifCalls::nodes(&self.backend)
    }

    fn name(&self) -> String {
        ScifCalls::name(&self.backend)
    }
}

impl WindowCalls for Noted {
    fn register_at(
        &self,
        fd: RawFd,
        memory: (usize, usize),
        offset: i64,
        access: WindowAccess,
    ) -> CallResult<()> {
        self.note(format!("scif_register of {} for {access:?}", memory.1));
        self.backend.register_at(fd, memory, offset, access)
    }

    fn lend_at(&self, fd: RawFd, memory: (usize, usize), offset: i64) -> CallResult<()> {
        self.note(format!("scif_register of {} of a payload", memory.1));
        match self.differences.lends_addresses {
            true => self.backend.lend_at(fd, memory, offset),
            false => {
                let access = WindowAccess { read: true, write: false };
                self.backend.register_at(fd, memory, offset, access)
            }
        }
    }

    fn lends_addresses(&self) -> bool {
        self.differences.lends_addresses
    }

    fn unregister(&self, fd: RawFd, offset: i64, len: usize) -> CallResult<()> {
        self.note(format!("scif_unregister of {len}"));
        WindowCalls::unregister(&self.backend, fd, offset, len)
    }

    fn hide(&self, fd: RawFd, offset: i64, len: usize) -> CallResult<()> {
        self.note(format!("hide {len}"));
        self.backend.hide(fd, offset, len)
    }

    fn unregister_hidden(
        &self,
        fd: RawFd,
        (offset, len): (i64, usize),
        since_ns: u64,
    ) -> CallResult<()> {
        self.note(format!("scif_unregister of {len}"));
        self.hidden_since.lock().unwrap().push(since_ns);
        self.backend.unregister_hidden(fd, (offset, len), since_ns)
    }

    fn transfer(
        &self,
        fd: RawFd,
        way: RmaWay,
        near: &Mem,
        far: i64,
        mode: RmaMode,
    ) -> CallResult<()> {
        self.note(format!("{way:?} of {} by {mode:?}", near.len()));
        self.backend.transfer(fd, way, near, far, mode)
    }

    fn dma_min(&self) -> Option<u64> {
        self.differences.dma_min
    }

    fn signal_after_own(&self, fd: RawFd, signal: Signal) -> CallResult<()> {
        self.note(format!("scif_fence_signal of {}", signal.value));
        if let Some(failure) = self.fence_error.lock().unwrap().take() {
            return Err(failure);
        }
        self.backend.signal_after_own(fd, signal)
    }
}

/// Initiator, and the owner of keys, which is never polled.
struct Pair {
    initiator: Endpoint,
    conn: ConnId,
    owner: Option<Endpoint>,
    keys: Arc<SharedKeys>,
    log: Arc<Mutex<Vec<String>>>,
    fence_error: Arc<Mutex<Option<Failure>>>,
    hidden_since: Arc<Mutex<Vec<u64>>>,
}

/// Repeats `step` until it returns a value.
fn until<T>(mut step: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(value) = step() {
            return value;
        }
        assert!(Instant::now() < end, "an expected event has not occurred");
        std::thread::yield_now();
    }
}

impl Pair {
    fn new(name: &str) -> Pair {
        Pair::with(name, PLAIN)
    }

    fn with(name: &str, differences: Differences) -> Pair {
        let pair = Pair::connect(name, differences);
        pair.log.lock().unwrap().clear();
        pair
    }

    /// Returns a pair whose log has the calls of the connection.
    fn connect(name: &str, differences: Differences) -> Pair {
        let config = |suffix: &str| Config {
            carrier: Carrier::Soft,
            domain: Some(format!("{name}-{}{suffix}", std::process::id())),
            ..Config::default()
        };
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let fence_error: Arc<Mutex<Option<Failure>>> = Arc::default();
        let hidden_since: Arc<Mutex<Vec<u64>>> = Arc::default();
        // Endpoints of different domains do not meet inside this process.
        let [mine, theirs] = ["-a", "-b"].map(|suffix| {
            let backend = Backend::new(config("")).unwrap();
            let fence_error = Arc::clone(&fence_error);
            let (log, hidden_since) = (Arc::clone(&log), Arc::clone(&hidden_since));
            let noted = Noted { backend, log, fence_error, differences, hidden_since };
            Node::open_over(Arc::new(noted), &config(suffix)).unwrap()
        });
        let keys = theirs.key_table().unwrap();
        keys.permit_windows(KeyRights { read: READ, write: WRITE });
        let exports = Exports { keys: Some(Arc::clone(&keys)) };
        let mut owner = Endpoint::bind(&theirs, 0, exports).unwrap();
        let mut initiator = Endpoint::bind(&mine, 0, Exports::default()).unwrap();
        let conn = until(|| initiator.connect(owner.id()).ok());
        let (mut events, mut others) = (Vec::new(), Vec::new());
        until(|| {
            initiator.poll_links(&mut events);
            owner.poll_links(&mut others);
            events.contains(&LinkEvent::Connected(conn)).then_some(())
        });
        Pair { initiator, conn, owner: Some(owner), keys, log, fence_error, hidden_since }
    }

    fn windows(&mut self) -> &mut dyn PeerWindows {
        self.initiator.conn(self.conn).unwrap().windows().expect("a transport with windows")
    }

    /// Registers a key for a range of pages; returns its slot.
    fn key(&self, key: u64, pages: &Pages, (at, len): (usize, usize), access: u64) -> u32 {
        let base = (pages.addr() + at) as u64;
        let entry = KeyEntry { key, base, len: len as u64, access, ..KeyEntry::default() };
        self.keys.insert(entry).expect("a free slot")
    }

    /// Removes a key and its windows.
    fn close_key(&self, slot: u32) {
        self.keys.remove_windows(self.keys.remove(slot));
    }

    /// Searches for a key until the owner has answered.
    fn find(&mut self, key: u64) -> Option<KeyWindow> {
        until(|| {
            self.initiator.poll_links(&mut Vec::new());
            match self.windows().find(key) {
                KeyLookup::Known(window) => Some(Some(window)),
                KeyLookup::Absent => Some(None),
                KeyLookup::Queried => None,
            }
        })
    }

    fn write(
        &mut self,
        window: &KeyWindow,
        bytes: &[u8],
        mode: RmaMode,
    ) -> Result<(), WindowError> {
        let remote = RemoteMem { addr: window.entry.base, len: bytes.len() as u64 };
        with_bytes(bytes, |mem| self.windows().start(RmaWay::Write, &[*mem], window, &remote, mode))
    }

    fn read(&mut self, window: &KeyWindow, len: usize) -> Vec<u8> {
        let remote = RemoteMem { addr: window.entry.base, len: len as u64 };
        let mut bytes = vec![0; len];
        with_bytes_mut(&mut bytes, |mem| {
            self.windows().start(RmaWay::Read, &[*mem], window, &remote, RmaMode::Cpu)
        })
        .unwrap();
        bytes
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
}

#[test]
fn a_registration_a_write_and_its_completion_are_calls_of_scif_h() {
    let _alone = scif::sys::children::none();
    let mut pair = Pair::new("sequence");
    let pages = Pages::new(2 * PAGE).unwrap();
    pair.key(7, &pages, (PAGE + 8, 64), READ | WRITE);
    let window = pair.find(7).expect("a window");
    pair.write(&window, &[1; 8], RmaMode::Cpu).unwrap();
    assert_eq!(pages.load(PAGE + 8), Ok(u64::from_ne_bytes([1; 8])));
    // Two RMAs, and one fence behind both.
    for byte in [2, 3] {
        pair.write(&window, &[byte; 16], RmaMode::Dma).unwrap();
    }
    assert_eq!((pair.windows().started(), pair.windows().ended()), (2, 0));
    assert_eq!(pair.windows().fence(), Ok(()));
    assert_eq!(pair.windows().fence(), Ok(()), "nothing was started since");
    assert_eq!(pair.initiator.window_counts().fences, 1);
    until(|| (pair.windows().ended() == 2).then_some(()));
    assert_eq!(pages.load(PAGE + 16), Ok(u64::from_ne_bytes([3; 8])));
    assert_eq!(pair.read(&window, 8), [3; 8]);
    let log = pair.log();
    let access = WindowAccess { read: true, write: true };
    let expected = [
        "scif_register of 4096".to_owned(),
        "scif_send of 16".to_owned(),
        format!("scif_register of 4096 for {access:?}"),
        "Write of 8 by Cpu".to_owned(),
        "Write of 16 by Dma".to_owned(),
        "Write of 16 by Dma".to_owned(),
        "scif_fence_signal of 2".to_owned(),
        "Read of 8 by Cpu".to_owned(),
    ];
    assert_eq!(log, expected, "first the page of fences, then the key");
}

#[test]
fn the_first_connection_measures_dma_unless_its_length_is_named() {
    let _alone = scif::sys::children::none();
    let rmas = |pair: &Pair| -> Vec<String> {
        pair.log().into_iter().filter(|call| call.contains(" by ")).collect()
    };
    let rings = Differences { has_rings: true, ..PLAIN };
    let mut named = Pair::connect("named", Differences { dma_min: Some(8192), ..rings });
    assert_eq!(rmas(&named), [""; 0]);
    let pages = Pages::new(PAGE).unwrap();
    named.key(7, &pages, (0, 64), READ | WRITE);
    named.find(7).expect("a window");
    let modes = [8191, 8192].map(|len| named.windows().mode(RmaWay::Write, len));
    assert_eq!(modes, [RmaMode::Cpu, RmaMode::Dma]);
    let measured = Differences { dma_min: None, ..rings };
    let mut first = Pair::connect("measured", measured);
    let calls = rmas(&first);
    for way in ["Write", "Read"] {
        let by = |mode: &str| format!("{way} of 4096 by {mode}");
        assert!(calls.contains(&by("Cpu")) && calls.contains(&by("Dma")), "{calls:?}");
    }
    // The rings carry records, whatever was measured.
    let pages = Pages::new(PAGE).unwrap();
    first.key(7, &pages, (0, 64), READ | WRITE);
    first.find(7).expect("a window");
    for way in [RmaWay::Read, RmaWay::Write] {
        assert_eq!(first.windows().mode(way, 4095), RmaMode::Cpu);
        assert_eq!(first.windows().mode(way, 256 << 10), RmaMode::Dma);
    }
    let second = Pair::connect("measured-before", measured);
    assert_eq!(rmas(&second), [""; 0]);
}

/// Lends a payload of the owner to the initiator, until the owner can.
fn lend(pair: &mut Pair, payload: &[u8]) -> WireMemory {
    until(|| {
        pair.initiator.poll_links(&mut Vec::new());
        let owner = pair.owner.as_mut().unwrap();
        let conn = owner.conns().next().unwrap();
        let reads = owner.conn(conn).unwrap().remote_reads().unwrap();
        with_bytes(payload, |mem| reads.expose(mem))
    })
}

#[test]
fn a_payload_is_read_from_a_window_of_its_sender() {
    const LEN: usize = 3 * PAGE;
    let _alone = scif::sys::children::none();
    for lends_addresses in [true, false] {
        let differences = Differences { lends_addresses, ..PLAIN };
        let mut pair = Pair::with(&format!("payload-{lends_addresses}"), differences);
        pair.initiator.conn(pair.conn).unwrap().remote_reads().unwrap().prepare();
        let mut payload = vec![0; LEN];
        for round in 1..=3_u8 {
            payload.fill(round);
            let from = lend(&mut pair, &payload);
            assert_eq!(from.key == 0, lends_addresses);
            let mut bytes = vec![0; LEN];
            with_bytes_mut(&mut bytes, |to| {
                // Reads are refused until this side knows that its channel is open.
                let number = until(|| {
                    pair.initiator.poll_links(&mut Vec::new());
                    let conn = pair.initiator.conn(pair.conn).unwrap();
                    match conn.remote_reads().unwrap().read(from, to) {
                        ReadBegun::Reading(number) => Some(number),
                        ReadBegun::Later | ReadBegun::Refused => None,
                    }
                });
                let reads = pair.initiator.conn(pair.conn).unwrap().remote_reads().unwrap();
                until(|| (reads.state(number) == ReadState::Done).then_some(()));
                assert_eq!(reads.state(number), ReadState::Failed, "forgotten");
            });
            assert_eq!(bytes, payload);
            pair.owner.as_mut().unwrap().revoke(from.key);
        }
        let counted = |pair: &Pair, call: &str| {
            pair.log().iter().filter(|line| line.starts_with(call)).count()
        };
        let (registered, unregistered) = if lends_addresses { (1, 0) } else { (3, 3) };
        until(|| (counted(&pair, "scif_unregister") == unregistered).then_some(()));
        let lent = pair.log().iter().filter(|line| line.ends_with("of a payload")).count();
        assert_eq!(lent, registered, "{:?}", pair.log());
        assert_eq!(counted(&pair, &format!("Read of {LEN} by Cpu")), 3, "{:?}", pair.log());
        let outside = WireMemory { addr: 1 << 40, key: 0 };
        let reads = pair.initiator.conn(pair.conn).unwrap().remote_reads().unwrap();
        with_bytes_mut(&mut [0; 8], |to| {
            let ReadBegun::Reading(number) = reads.read(outside, to) else { panic!("not begun") };
            assert_eq!(reads.state(number), ReadState::Failed, "no such window");
        });
    }
}

#[test]
fn a_failed_fence_ends_the_channel_after_the_rmas_in_progress() {
    let _alone = scif::sys::children::none();
    let mut pair = Pair::new("fence");
    let pages = Pages::new(PAGE).unwrap();
    pair.key(7, &pages, (0, 64), READ | WRITE);
    let window = pair.find(7).expect("a window");
    let fail = |pair: &Pair, failure| *pair.fence_error.lock().unwrap() = Some(failure);
    pair.write(&window, &[1; 8], RmaMode::Dma).unwrap();
    fail(&pair, Failure::Interrupted);
    assert_eq!(pair.windows().fence(), Ok(()), "the next call orders it");
    assert_eq!(pair.windows().ended(), 0);
    pair.write(&window, &[2; 8], RmaMode::Dma).unwrap();
    fail(&pair, Failure::NoMemory);
    assert!(pair.windows().fence().is_err());
    assert_eq!(pair.windows().ended(), 2, "no RMA is executed twice");
    assert_eq!(pages.load(0), Ok(u64::from_ne_bytes([2; 8])));
    assert_eq!(pair.windows().find(7), KeyLookup::Absent);
    assert!(pair.write(&window, &[3; 8], RmaMode::Dma).is_err());
}

#[test]
fn questions_for_an_absent_key_become_rare() {
    const SEARCHES: usize = 64;
    let _alone = scif::sys::children::none();
    let mut pair = Pair::new("rare");
    for _ in 0..SEARCHES {
        assert_eq!(pair.find(9), None);
        // The answer to this question is taken before the next search.
        std::thread::sleep(Duration::from_millis(2));
    }
    let asked = pair.log().iter().filter(|call| call.starts_with("scif_send")).count();
    assert!((2..=8).contains(&asked), "{asked} questions in {SEARCHES} searches");
}

#[test]
fn a_key_is_searched_again_after_many_removed_windows() {
    // More than the limit of windows removed in a row.
    const REMOVED: u64 = 70;
    let _alone = scif::sys::children::none();
    let mut pair = Pair::new("stale");
    let pages = Pages::new(PAGE).unwrap();
    for _ in 0..REMOVED {
        let slot = pair.key(7, &pages, (0, 64), READ | WRITE);
        let window = until(|| pair.find(7));
        pair.close_key(slot);
        assert!(pair.write(&window, &[1; 8], RmaMode::Cpu).is_err());
    }
    pair.key(7, &pages, (0, 64), READ | WRITE);
    let window = until(|| pair.find(7));
    assert_eq!(pair.write(&window, &[2; 8], RmaMode::Cpu), Ok(()));
    assert_eq!(pages.load(0), Ok(u64::from_ne_bytes([2; 8])));
}

#[test]
fn a_closed_key_is_out_of_reach_at_once() {
    let _alone = scif::sys::children::none();
    let mut pair = Pair::new("closed");
    let pages = Pages::new(PAGE).unwrap();
    let slot = pair.key(7, &pages, (0, 64), READ | WRITE);
    let old = pair.find(7).expect("a window");
    pair.close_key(slot);
    assert_eq!(pair.log().last().map(String::as_str), Some("scif_unregister of 4096"));
    assert_eq!(pair.write(&old, &[1; 8], RmaMode::Cpu), Err(WindowError::Stale));
    assert_eq!(pair.find(7), None, "the owner has no such key");
    // Another key of that number, on other pages.
    drop(pages);
    let pages = Pages::new(PAGE).unwrap();
    pair.key(7, &pages, (0, 64), READ | WRITE);
    assert_eq!(pair.write(&old, &[1; 8], RmaMode::Cpu), Err(WindowError::Stale));
    let new = until(|| pair.find(7));
    assert_ne!(new, old);
    pair.write(&new, &[2; 8], RmaMode::Cpu).unwrap();
    assert_eq!(pages.load(0), Ok(u64::from_ne_bytes([2; 8])));
}

/// Else the limits of waits for several stopped peers would add up.
#[test]
fn all_windows_are_hidden_before_the_wait_for_accesses_to_one() {
    let _alone = scif::sys::children::none();
    let mut pair = Pair::new("hidden");
    let pages = Pages::new(3 * PAGE).unwrap();
    for key in 0..3 {
        let at = usize::try_from(key).unwrap() * PAGE;
        pair.key(key, &pages, (at, 64), READ | WRITE);
        pair.find(key).expect("a window");
    }
    pair.log.lock().unwrap().clear();
    pair.keys.remove_all_windows();
    let expected = ["hide 4096", "scif_unregister of 4096"].map(|call| [call; 3]).concat();
    assert_eq!(pair.log(), expected);
    let since = pair.hidden_since.lock().unwrap().clone();
    assert!(since.len() == 3 && since.iter().all(|time| *time == since[0]), "{since:?}");
}

#[test]
fn windows_of_a_removed_key_are_not_those_of_a_later_key_in_its_slot() {
    let _alone = scif::sys::children::none();
    let mut pair = Pair::new("slots");
    let pages = Pages::new(2 * PAGE).unwrap();
    let slot = pair.key(7, &pages, (0, 64), READ | WRITE);
    let old = pair.find(7).expect("a window");
    let removed = pair.keys.remove(slot);
    // Another thread registers memory before the windows are removed.
    assert_eq!(pair.key(7, &pages, (PAGE, 64), READ | WRITE), slot);
    assert_eq!(pair.write(&old, &[1; 8], RmaMode::Cpu), Ok(()), "its close has not returned");
    pair.keys.remove_windows(removed);
    assert_eq!(pair.write(&old, &[2; 8], RmaMode::Cpu), Err(WindowError::Stale));
    let new = until(|| pair.find(7));
    pair.keys.remove_windows(removed);
    assert_eq!(pair.write(&new, &[3; 8], RmaMode::Cpu), Ok(()));
    assert_eq!(
        (pages.load(0), pages.load(PAGE)),
        (Ok(0x0101_0101_0101_0101), Ok(0x0303_0303_0303_0303))
    );
}

#[test]
fn keys_of_the_same_pages_share_a_window_until_one_is_closed() {
    let _alone = scif::sys::children::none();
    let mut pair = Pair::new("shared");
    let pages = Pages::new(PAGE).unwrap();
    let slot = pair.key(1, &pages, (0, 64), READ | WRITE);
    pair.key(2, &pages, (64, 64), READ | WRITE);
    pair.key(3, &pages, (0, 64), READ);
    let [first, second, read_only] = [1, 2, 3].map(|key| pair.find(key).expect("a window"));
    let registered = |pair: &Pair| pair.owner.as_ref().unwrap().window_counts().registered;
    assert_eq!(registered(&pair), 2, "one for each access");
    assert_eq!(pair.write(&read_only, &[9; 8], RmaMode::Cpu), Err(WindowError::Stale));
    pair.close_key(slot);
    assert_eq!(pair.write(&first, &[1; 8], RmaMode::Cpu), Err(WindowError::Stale));
    assert_eq!(pair.write(&second, &[1; 8], RmaMode::Cpu), Err(WindowError::Stale));
    let second = pair.find(2).expect("a new window");
    pair.write(&second, &[2; 8], RmaMode::Cpu).unwrap();
    assert_eq!(pages.load(64), Ok(u64::from_ne_bytes([2; 8])));
    assert_eq!(registered(&pair), 3);
}

#[test]
fn memory_that_is_not_there_gets_no_window() {
    let _alone = scif::sys::children::none();
    let mut pair = Pair::new("absent");
    let pages = Pages::new(PAGE).unwrap();
    pair.key(1, &pages, (0, 0), READ);
    pair.key(2, &pages, (0, 64), 0);
    let entry = KeyEntry { key: 3, base: 0, len: 64, access: READ, ..KeyEntry::default() };
    pair.keys.insert(entry).unwrap();
    for key in [1, 2, 3, 4] {
        assert_eq!(pair.find(key), None, "key {key}");
    }
    pair.key(5, &pages, (0, 64), READ);
    assert!(pair.find(5).is_some(), "the channel still answers");
}

#[test]
fn each_closed_key_loses_its_window() {
    // More of them, and their mappings, in the conformance case `windows/many_keys`.
    const KEYS: u64 = 500;
    let _alone = scif::sys::children::none();
    let mut pair = Pair::new("many");
    let pages = Pages::new(PAGE).unwrap();
    for key in 0..KEYS {
        let slot = pair.key(key, &pages, (0, PAGE), READ | WRITE);
        let window = pair.find(key).expect("a window");
        pair.write(&window, &key.to_ne_bytes(), RmaMode::Cpu).unwrap();
        assert_eq!(pages.load(0), Ok(key));
        pair.close_key(slot);
    }
    let counts = pair.owner.as_ref().unwrap().window_counts();
    assert_eq!((counts.registered, counts.unregistered), (KEYS, KEYS));
}

#[test]
fn the_close_of_the_owner_removes_its_windows() {
    let _alone = scif::sys::children::none();
    let mut pair = Pair::new("owner-closes");
    let pages = Pages::new(PAGE).unwrap();
    pair.key(7, &pages, (0, 64), READ | WRITE);
    let window = pair.find(7).expect("a window");
    drop(pair.owner.take());
    // A thread of the owner removes them.
    until(|| pair.write(&window, &[1; 8], RmaMode::Cpu).is_err().then_some(()));
    pages.store(0, 5).unwrap();
    assert!(pair.write(&window, &[1; 8], RmaMode::Cpu).is_err());
    assert_eq!(pages.load(0), Ok(5));
}

/// A process without a connection gets no key channel, whatever claim it invents.
#[test]
fn a_foreign_process_gets_no_answer_about_keys() {
    let _alone = scif::sys::children::none();
    let mut pair = Pair::new("foreign");
    let pages = Pages::new(PAGE).unwrap();
    pair.key(7, &pages, (0, 64), READ | WRITE);
    pair.find(7).expect("a window for the peer");
    let to = pair.owner.as_ref().unwrap().id();
    let domain = Some(format!("foreign-{}", std::process::id()));
    let config = Config { carrier: Carrier::Soft, domain, ..Config::default() };
    let foreign = Backend::new(config).unwrap();
    for claim in [0_u64, 1, u64::MAX] {
        let fd = ScifCalls::open(&foreign).unwrap();
        ScifCalls::connect(&foreign, fd, to).unwrap();
        let (version, zeros) = (3_u16.to_le_bytes(), [0; 8]);
        let layout = scif_ring::layout::LAYOUT.to_le_bytes();
        let greeting: [&[u8]; 9] = [
            b"ScKe",
            &version,
            b"K\0",
            &layout,
            &zeros[..4],
            &[0xff; 8],
            &claim.to_le_bytes(),
            &zeros,
            &[],
        ];
        let question: [&[u8]; 3] = [b"ScKq", &zeros[..4], &7_u64.to_le_bytes()];
        let bytes = [greeting.concat(), question.concat()].concat();
        with_bytes(&bytes, |mem| ScifCalls::send(&foreign, fd, mem)).unwrap();
        let mut heard = Vec::new();
        until(|| {
            let mut part = [0; 64];
            match with_bytes_mut(&mut part, |mem| ScifCalls::receive(&foreign, fd, mem)) {
                Ok(count) => heard.extend_from_slice(&part[..count]),
                Err(_) => return Some(()),
            }
            heard.starts_with(b"ScKa").then_some(())
        });
        assert!(!heard.starts_with(b"ScKa"), "an answer for claim {claim:#x}");
        ScifCalls::close(&foreign, fd);
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Benchmark of the library: each figure with a reference figure of the machine, measured in turns;
//! medians.
//!
//! `scif-conformance --bench`. Not about promises: no figure passes or fails. Two processes, each
//! pinned to one of the first two allowed processors. On virtual machines the distance of these
//! processors changes, and every figure with it. So the round trip of a cache line is measured
//! before and after each pair, and printed beside it.
#![expect(unsafe_code, reason = "memcpy, affinity, epoll")]
#![expect(clippy::cast_precision_loss, reason = "nanoseconds and ratios are printed")]

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::Instant;

use scif_fabtests::harness::cpus::{pin, two_cpus};
use scif_fabtests::harness::process::{Cue, Process};

use crate::api::Api;
use crate::bulk::{self, Kind, SystemStreams, Transfer};
use crate::rig::*;

const PORT: u16 = 2050;
const PAIRS: usize = 21;
const TRIPS: u64 = 20_000;
/// Number of round trips in which both sides sleep.
const SLEEPING_TRIPS: u64 = 2000;
/// Size of a probe of the processors' distance: the median of `BATCHES` batches of `PROBE_TRIPS`
/// round trips.
const BATCHES: usize = 5;
const PROBE_TRIPS: u64 = 100;
const BIG: usize = 16 << 20;
const WINDOW: i64 = 0x1000_0000;
const LINE: usize = 128;

fn relax() {
    std::hint::spin_loop();
}

/// Echoes every received number, until 0 arrives.
fn echo(at: usize) {
    let mut last = 0;
    loop {
        let n = peek64(at);
        if n == u64::MAX {
            return;
        }
        if n != last {
            last = n;
            poke64(at + LINE, n);
        } else {
            relax();
        }
    }
}

/// Returns the nanoseconds of one of `trips` round trips.
fn timed(trips: u64, mut trip: impl FnMut()) -> f64 {
    let begin = Instant::now();
    for _ in 0..trips {
        trip();
    }
    begin.elapsed().as_nanos() as f64 / trips as f64
}

/// Measures round trips over two words that are 0.
fn words(at: usize, trips: u64) -> f64 {
    let mut n = 0;
    let mut trip = || {
        n += 1;
        poke64(at, n);
        while peek64(at + LINE) != n {
            relax();
        }
    };
    // The peer may not have started yet.
    trip();
    timed(trips, trip)
}

/// Epoll set on which a thread sleeps until there are bytes to read.
struct Sleeper(i32);

impl Sleeper {
    fn on(fd: i32) -> Sleeper {
        // SAFETY: makes a descriptor.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: two descriptors and a live event.
        let rc = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        assert_eq!(rc, 0, "epoll: {}", std::io::Error::last_os_error());
        Sleeper(epoll)
    }

    fn sleep(&self) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        let n = unsafe { libc::epoll_wait(self.0, &raw mut event, 1, -1) };
        assert_eq!(n, 1);
    }
}

/// Sends one message by a non-blocking call; the sleep is in epoll.
fn send_now(api: &Api, epd: i32, bytes: &[u8; 8]) {
    assert_eq!(api.send(epd, bytes, 0), Ok(8), "there is room");
}

fn receive_asleep(api: &Api, epd: i32, sleeper: &Sleeper, bytes: &mut [u8; 8]) {
    let mut done = 0;
    while done < bytes.len() {
        sleeper.sleep();
        done += api.recv(epd, &mut bytes[done..], 0).unwrap() as usize;
    }
}

/// Receives one message like `receive_asleep`, but through a socket.
fn read_asleep(mut socket: &UnixStream, sleeper: &Sleeper, bytes: &mut [u8; 8]) {
    sleeper.sleep();
    socket.read_exact(bytes).unwrap();
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Next task of the peer.
#[derive(Clone, Copy)]
#[repr(u64)]
enum Task {
    /// Echo over its window, or over the raw words, until the end.
    Window = 1,
    Raw,
    /// Echo of messages by blocking calls, by non-blocking calls, and through a socket.
    Blocking,
    Asleep,
    Socket,
    /// Receiving of the transfer beside the task's number.
    Transfer,
}

/// Offset of the task's number in the page of the raw words.
const TASK: usize = 2 * LINE;
/// Offset of the word that describes a transfer.
const TRANSFER: usize = TASK + 8;

/// Other process, which sleeps while it has no task.
struct Peer<'a> {
    raw: usize,
    cue: &'a Cue,
}

impl Peer<'_> {
    /// Runs `part` while the peer executes `task`.
    fn with<T>(&self, task: Task, part: impl FnOnce() -> T) -> T {
        poke64(self.raw + TASK, task as u64);
        self.cue.notify();
        self.cue.wait();
        let done = part();
        self.cue.wait();
        done
    }

    /// Returns the nanoseconds of a round trip: this process writes a number into a word at `at`,
    /// and the peer, which executes `task`, repeats it in another word.
    fn words(&self, task: Task, at: usize, trips: u64) -> f64 {
        reset(at);
        self.with(task, || {
            let ns = words(at, trips);
            poke64(at, u64::MAX);
            ns
        })
    }

    fn raw_words(&self) -> f64 {
        self.words(Task::Raw, self.raw, TRIPS)
    }

    /// Returns the current distance of the two processors: the round trip of a cache line.
    fn probe(&self) -> f64 {
        let batch = || self.words(Task::Raw, self.raw, PROBE_TRIPS);
        median((0..BATCHES).map(|_| batch()).collect())
    }

    /// Prints the medians of two figures taken in turns, and of their ratios; and minimum, median
    /// and maximum of the probes around them.
    fn compare(&self, subject: &str, unit: &str, aim: &str, mut each: impl FnMut() -> (f64, f64)) {
        each();
        let mut probes = vec![self.probe()];
        let pairs: Vec<(f64, f64)> = (0..PAIRS)
            .map(|_| {
                let pair = each();
                probes.push(self.probe());
                pair
            })
            .collect();
        let ours = median(pairs.iter().map(|p| p.0).collect());
        let reference = median(pairs.iter().map(|p| p.1).collect());
        let ratio = median(pairs.iter().map(|p| p.0 / p.1).collect());
        probes.sort_by(f64::total_cmp);
        let (least, most) = (probes[0], probes[probes.len() - 1]);
        println!(
            "{subject:56} {ours:10.1} {reference:10.1} {unit:5} {ratio:6.3}  {aim:8} {:4.0} \
             ({least:.0} to {most:.0})",
            median(probes)
        );
    }
}

/// Runs the peer: one task after the other, until it is killed.
fn peer(
    api: &Api,
    raw: usize,
    cue: &Cue,
    (socket, streams): (&UnixStream, &SystemStreams),
    cpu: usize,
) {
    pin(cpu).unwrap();
    cue.wait();
    let epd = api.open();
    api.connect(epd, 0, PORT).unwrap();
    let at = pages(BIG / PAGE);
    for i in (0..BIG).step_by(8) {
        poke64(at + i, i as u64);
    }
    for i in (0..PAGE).step_by(8) {
        poke64(at + i, 0);
    }
    api.register(epd, (at, BIG), WINDOW, RW, FIXED).unwrap();
    let (on_endpoint, on_socket) = (Sleeper::on(epd), Sleeper::on(socket.as_raw_fd()));
    cue.notify();
    loop {
        cue.wait();
        cue.notify();
        let mut bytes = [0; 8];
        match peek64(raw + TASK) {
            task if task == Task::Window as u64 => echo(at),
            task if task == Task::Raw as u64 => echo(raw),
            task if task == Task::Blocking as u64 => {
                for _ in 0..TRIPS {
                    api.recv(epd, &mut bytes, BLOCK).unwrap();
                    api.send(epd, &bytes, BLOCK).unwrap();
                }
            }
            task if task == Task::Asleep as u64 => {
                for _ in 0..SLEEPING_TRIPS {
                    receive_asleep(api, epd, &on_endpoint, &mut bytes);
                    send_now(api, epd, &bytes);
                }
            }
            task if task == Task::Socket as u64 => {
                for _ in 0..SLEEPING_TRIPS {
                    read_asleep(socket, &on_socket, &mut bytes);
                    (&*socket).write_all(&bytes).unwrap();
                }
            }
            task if task == Task::Transfer as u64 => {
                streams.receive(api, epd, Transfer::from_word(peek64(raw + TRANSFER)));
            }
            other => panic!("no task: {other}"),
        }
        cue.notify();
    }
}

/// Runs a loop of arithmetic for about two milliseconds and returns its time in nanoseconds.
fn compute(turns: u64) -> f64 {
    let begin = Instant::now();
    let mut n = 1u64;
    for i in 0..turns {
        n = std::hint::black_box(n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i));
    }
    std::hint::black_box(n);
    begin.elapsed().as_nanos() as f64
}

/// Sets both words of `echo` to 0.
fn reset(at: usize) {
    poke64(at, 0);
    poke64(at + LINE, 0);
}

/// Returns the nanoseconds of a load from memory, where each address depends on the load before.
fn random_load(at: usize, len: usize, loads: u64) -> f64 {
    let mut n = 1u64;
    timed(loads, || {
        n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // The loaded value is 0, but the next address still waits for it.
        n = n.wrapping_add(peek64(at + (n >> 32) as usize % (len / 64) * 64));
    })
}

/// Measures loads from memory on huge pages while it is registered and afterwards, against memory
/// of the same kind that is never registered.
fn large_pages(api: &Api, epd: i32, peer: &Peer<'_>) {
    const LEN: usize = 64 << 20;
    const LARGE: usize = 2 << 20;
    const LOADS: u64 = 1_000_000;
    const AT: i64 = 0x8000_0000;
    let [at, other] = [(); 2].map(|()| {
        let at = pages((LEN + LARGE) / PAGE).next_multiple_of(LARGE);
        wants_huge_pages(at, LEN);
        (0..LEN).step_by(PAGE).for_each(|i| poke64(at + i, 0));
        at
    });
    let large = || (of_kind(at, LEN, "AnonHugePages") + of_kind(at, LEN, "ShmemPmdMapped")) >> 20;
    let register = || api.register(epd, (at, LEN), AT, RW, FIXED).unwrap();
    let unregister = || api.unregister(epd, AT, LEN).unwrap();
    let load = |at| random_load(at, LEN, LOADS);
    let before = large();
    register();
    let registered = large();
    unregister();
    let after = large();
    println!(
        "MiB of 64 on large pages: {before} before, {registered} while registered, \
         {after} afterwards"
    );
    let aim = "<= 1.05";
    peer.compare("a load from 64 MiB while registered, never", "ns", aim, || {
        register();
        let loads = (load(at), load(other));
        unregister();
        loads
    });
    peer.compare("a load from 64 MiB after unregistering, never", "ns", aim, || {
        register();
        unregister();
        (load(at), load(other))
    });
}

/// Cost of calls after a fork whose child has used the endpoint and ended, beside the cost before
/// it.
fn after_a_fork(api: &Api, epd: i32, peer: &Peer<'_>) {
    let round_trip = || {
        let mut bytes = [7; 8];
        peer.with(Task::Blocking, || {
            timed(TRIPS, || {
                api.send(epd, &bytes, BLOCK).unwrap();
                api.recv(epd, &mut bytes, BLOCK).unwrap();
            })
        })
    };
    let write_one = || assert_eq!(api.writeto(epd, WINDOW, 8, WINDOW, SYNC), Ok(0));
    let write = || timed(TRIPS, write_one);
    let figures: [(&str, &dyn Fn() -> f64); 2] = [
        ("8 bytes there and back after a fork, before", &round_trip),
        ("scif_writeto SYNC of 8 bytes after a fork, before", &write),
    ];
    let measure = |figure: &dyn Fn() -> f64| median((0..PAIRS).map(|_| figure()).collect());
    let before = figures.map(|(_, figure)| measure(figure));
    Process::start(write_one).wait();
    // The library notices the end of the child within 10 ms.
    std::thread::sleep(std::time::Duration::from_millis(20));
    for ((subject, figure), before) in figures.into_iter().zip(before) {
        let after = measure(figure);
        println!(
            "{subject:56} {after:10.1} {before:10.1} {:5} {:6.3}  <= 1.2",
            "ns",
            after / before
        );
    }
}

fn copy(to: usize, from: usize, len: usize) {
    // SAFETY: mapped memory of the benchmark, which does not overlap.
    unsafe {
        libc::memcpy(
            std::ptr::with_exposed_provenance_mut(to),
            std::ptr::with_exposed_provenance(from),
            len,
        )
    };
}

/// Compares the stream with those of the system, and writes to a window with TCP.
fn bulk_streams(api: &Api, epd: i32, streams: &SystemStreams, peer: &Peer<'_>) {
    let rate = |kind, size| {
        let transfer = Transfer { kind, size };
        poke64(peer.raw + TRANSFER, transfer.word());
        peer.with(Task::Transfer, || streams.send(api, epd, transfer))
    };
    for size in [4 << 10, 64 << 10, 256 << 10, 1 << 20] {
        for (kind, name) in Kind::OF_SYSTEM {
            let subject = format!("scif_send of {} KiB, {name} (bandwidth)", size >> 10);
            let aim = if size < 64 << 10 || kind == Kind::Tcp { "" } else { ">= 1.5" };
            peer.compare(&subject, "MB/s", aim, || (rate(Kind::Scif, size), rate(kind, size)));
        }
    }
    const LEN: usize = 1 << 20;
    peer.compare("scif_writeto SYNC of 1 MiB, TCP (bandwidth)", "MB/s", "", || {
        const TURNS: usize = 64;
        let begin = Instant::now();
        for _ in 0..TURNS {
            api.writeto(epd, WINDOW, LEN, WINDOW, SYNC).unwrap();
        }
        let ours = (LEN * TURNS) as f64 / 1e6 / begin.elapsed().as_secs_f64();
        (ours, rate(Kind::Tcp, LEN))
    });
}

/// Returns the microseconds of a copy of 1 MiB by process_vm_readv(2) within this process, with the
/// destination `offset` bytes past the source modulo a page: the shortest of five.
fn kernel_copy(at: usize, offset: usize) -> f64 {
    const LEN: usize = 1 << 20;
    let range =
        |at| libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(at), iov_len: LEN };
    let (to, from) = (range(at + LEN + offset), range(at));
    let pid = std::process::id() as i32;
    let time = || {
        let begin = Instant::now();
        // SAFETY: two ranges of the benchmark, which do not overlap.
        let n = unsafe { libc::process_vm_readv(pid, &raw const to, 1, &raw const from, 1, 0) };
        assert_eq!(n, LEN as isize);
        begin.elapsed().as_nanos() as f64 / 1e3
    };
    (0..5).map(|_| time()).fold(f64::INFINITY, f64::min)
}

/// Prints the cost of a copy by the kernel at relative offsets, against that of aligned buffers. On
/// some processors offsets of 1 to 31 take four times as long, and the library avoids them.
fn kernel_copies() {
    let at = pages(3 << 8);
    (0..3 << 20).step_by(PAGE).for_each(|i| poke64(at + i, 1));
    for offset in [1, 8, 16, 31, 32, 64, 2048, 4080] {
        let costs: Vec<(f64, f64)> =
            (0..PAIRS).map(|_| (kernel_copy(at, offset), kernel_copy(at, 0))).collect();
        let [ours, even] = [0, 1].map(|which| {
            median(costs.iter().map(|cost| if which == 0 { cost.0 } else { cost.1 }).collect())
        });
        let subject = format!("process_vm_readv of 1 MiB at an offset of {offset}, of 0");
        println!("{subject:56} {ours:10.1} {even:10.1} {:5} {:6.3}", "us", ours / even);
    }
}

/// Prints the cost of registering a page, and of unregistering it.
fn registrations(api: &Api, epd: i32) {
    for (len, huge) in [(1 << 20, false), (64 << 20, false), (64 << 20, true), (1 << 30, false)] {
        let rounds = if len == 1 << 30 { 3 } else { PAIRS };
        let costs: Vec<(f64, f64)> =
            (0..rounds).map(|_| bulk::registration(api, epd, len, huge)).collect();
        let kind = if huge { " of huge pages" } else { "" };
        let subject = format!("registering, unregistering {} MiB{kind}, a page", len >> 20);
        let [on, off] = [0, 1].map(|which| {
            median(costs.iter().map(|cost| if which == 0 { cost.0 } else { cost.1 }).collect())
        });
        println!("{subject:56} {on:10.2} {off:10.2} {:5} {:6}  <= 1.5", "us", "");
    }
}

pub(crate) fn run(api: impl Fn() -> Api, short: bool) {
    static DOMAIN: OnceLock<String> = OnceLock::new();
    set_env("SCIF_DOMAIN", DOMAIN.get_or_init(|| format!("bench-{}", std::process::id())));
    let raw = map(PAGE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
    let [here, there] = two_cpus().unwrap();
    assert_ne!(here, there, "two processors are needed, and this process may run on one");
    let (mine, theirs) = Cue::pair();
    let (socket, far_socket) = UnixStream::pair().unwrap();
    let streams = SystemStreams::new();
    let far = (&far_socket, &streams);
    let other = Process::start(|| peer(&api(), raw, &theirs, far, there));
    let api = api();
    let (listener, _) = api.listener(PORT, 1);
    mine.notify();
    let (_, epd) = api.accept(listener, BLOCK).unwrap();
    let near = pages(BIG / PAGE);
    for i in (0..BIG).step_by(8) {
        poke64(near + i, i as u64);
    }
    api.register(epd, (near, BIG), WINDOW, RW, FIXED).unwrap();
    mine.wait();
    // The threads of the library start before this one is pinned.
    api.writeto(epd, WINDOW, 4 << 20, WINDOW, 0).unwrap();
    let mark = api.fence_mark(epd, 1).unwrap();
    api.fence_wait(epd, mark).unwrap();
    let far = api.mmap(epd, (0, BIG), RW, 0, WINDOW).unwrap();
    for i in (0..PAGE).step_by(8) {
        poke64(far + i, 0);
    }
    pin(here).unwrap();
    println!("on processors {here} and {there}");
    let peer = Peer { raw, cue: &mine };
    println!(
        "{:56} {:>10} {:>10} {:5} {:>6}  {:8} line, ns",
        "", "scif", "reference", "", "ratio", "aim"
    );
    bulk_streams(&api, epd, &streams, &peer);
    registrations(&api, epd);
    kernel_copies();
    if !short {
        measure(&api, epd, &Places { near, far, socket }, &peer);
    }
    other.kill();
    other.end();
}

struct Places {
    near: usize,
    far: usize,
    socket: UnixStream,
}

fn measure(api: &Api, epd: i32, at: &Places, peer: &Peer<'_>) {
    peer.compare("8 bytes there and back through scif_mmap, raw", "ns", "<= 1.1", || {
        (peer.words(Task::Window, at.far, TRIPS), peer.raw_words())
    });
    peer.compare("8 bytes there and back by blocking send, recv, raw", "ns", "<= 2", || {
        let mut bytes = [7; 8];
        let ours = peer.with(Task::Blocking, || {
            timed(TRIPS, || {
                api.send(epd, &bytes, BLOCK).unwrap();
                api.recv(epd, &mut bytes, BLOCK).unwrap();
            })
        });
        (ours, peer.raw_words())
    });
    let (on_endpoint, on_socket) = (Sleeper::on(epd), Sleeper::on(at.socket.as_raw_fd()));
    peer.compare("8 bytes there and back non-blocking, epoll; a socketpair", "ns", "", || {
        let mut bytes = [7; 8];
        let ours = peer.with(Task::Asleep, || {
            timed(SLEEPING_TRIPS, || {
                send_now(api, epd, &bytes);
                receive_asleep(api, epd, &on_endpoint, &mut bytes);
            })
        });
        let raw = peer.with(Task::Socket, || {
            timed(SLEEPING_TRIPS, || {
                (&at.socket).write_all(&bytes).unwrap();
                read_asleep(&at.socket, &on_socket, &mut bytes);
            })
        });
        (ours, raw)
    });
    for (len, turns) in [(1usize << 20, 40), (16 << 20, 3)] {
        let subject = format!("scif_writeto SYNC of {} MiB, memcpy (bandwidth)", len >> 20);
        peer.compare(&subject, "MB/s", ">= 0.95", || {
            let rate = |begin: Instant| (len * turns) as f64 / 1e6 / begin.elapsed().as_secs_f64();
            let begin = Instant::now();
            for _ in 0..turns {
                api.writeto(epd, WINDOW, len, WINDOW, SYNC).unwrap();
            }
            let ours = rate(begin);
            let begin = Instant::now();
            for _ in 0..turns {
                copy(at.far, at.near, len);
            }
            (ours, rate(begin))
        });
    }
    const LEN: usize = 4 << 20;
    let wait = || {
        let mark = api.fence_mark(epd, 1).unwrap();
        api.fence_wait(epd, mark).unwrap();
    };
    peer.compare("the call of a 4 MiB write, and with SYNC", "us", "<= 0.1", || {
        let begin = Instant::now();
        api.writeto(epd, WINDOW, LEN, WINDOW, 0).unwrap();
        let ours = begin.elapsed().as_nanos() as f64 / 1e3;
        wait();
        let begin = Instant::now();
        api.writeto(epd, WINDOW, LEN, WINDOW, SYNC).unwrap();
        (ours, begin.elapsed().as_nanos() as f64 / 1e3)
    });
    peer.compare("computing beside 4 MiB writes, and alone", "us", "<= 1.15", || {
        const TURNS: u64 = 4_000_000;
        for _ in 0..16 {
            api.writeto(epd, WINDOW, LEN, WINDOW, 0).unwrap();
        }
        let beside = compute(TURNS);
        wait();
        (beside / 1e3, compute(TURNS) / 1e3)
    });
    large_pages(api, epd, peer);
    after_a_fork(api, epd, peer);
}

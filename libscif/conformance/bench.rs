// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! What the library costs beside what the machine costs: each figure with its reference, measured in turns, medians.
//!
//! `scif-conformance --bench`. Not about promises: nothing here passes or fails. Two processes, each kept on a processor
//! of its own where there are two; how far apart these are, the raw figures say.
#![expect(
    unsafe_code,
    reason = "memcpy, affinity, and words that another process changes"
)]
#![expect(clippy::cast_precision_loss, reason = "nanoseconds and ratios are printed")]

use std::sync::OnceLock;
use std::time::Instant;

use crate::api::Api;
use crate::rig::{BLOCK, Cue, FIXED, PAGE, Process, RW, SYNC, map, pages, peek64, poke64, set_env};

const PORT: u16 = 2050;
const PAIRS: usize = 21;
const TRIPS: u64 = 20_000;
const BIG: usize = 16 << 20;
const WINDOW: i64 = 0x1000_0000;
const LINE: usize = 128;

/// Keeps this thread on one processor.
fn pin(cpu: usize) {
    // SAFETY: all zeroes is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: a live set, and a small number.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: a live set of the size said. Refused where there is one processor: then all share it.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
}

fn relax() {
    std::hint::spin_loop();
}

/// Answers every number it is sent, until 0 comes.
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

/// Nanoseconds of a round trip over two words.
fn words(at: usize, from: &mut u64) -> f64 {
    let begin = Instant::now();
    for _ in 0..TRIPS {
        *from += 1;
        poke64(at, *from);
        while peek64(at + LINE) != *from {
            relax();
        }
    }
    begin.elapsed().as_nanos() as f64 / TRIPS as f64
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Prints the medians of two figures taken in turns, and of their ratios.
fn compare(what: &str, unit: &str, aim: &str, mut each: impl FnMut() -> (f64, f64)) {
    each();
    let pairs: Vec<(f64, f64)> = (0..PAIRS).map(|_| each()).collect();
    let ours = median(pairs.iter().map(|p| p.0).collect());
    let reference = median(pairs.iter().map(|p| p.1).collect());
    let ratio = median(pairs.iter().map(|p| p.0 / p.1).collect());
    println!("{what:52} {ours:10.1} {reference:10.1} {unit:5} {ratio:6.3}  {aim}");
}

/// The peer: answers over the raw words, over its window, over messages, then sleeps.
fn peer(api: &Api, raw: usize, cue: &Cue) {
    pin(1);
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
    api.register(epd, at, BIG, WINDOW, RW, FIXED).unwrap();
    cue.tell();
    for _ in 0..=PAIRS {
        echo(at);
        cue.tell();
        cue.wait();
        echo(raw);
        cue.tell();
        cue.wait();
    }
    for _ in 0..=PAIRS {
        let mut byte = [0; 8];
        for _ in 0..TRIPS {
            api.recv(epd, &mut byte, BLOCK).unwrap();
            api.send(epd, &byte, BLOCK).unwrap();
        }
        echo(raw);
        cue.tell();
        cue.wait();
    }
    // Asleep from now on.
    cue.wait();
}

/// Turns of a loop of arithmetic that take about two milliseconds; how long they took, in nanoseconds.
fn compute(turns: u64) -> f64 {
    let begin = Instant::now();
    let mut n = 1u64;
    for i in 0..turns {
        n = std::hint::black_box(n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i));
    }
    std::hint::black_box(n);
    begin.elapsed().as_nanos() as f64
}

/// Both words of `echo` as they were in the beginning.
fn reset(at: usize) {
    poke64(at, 0);
    poke64(at + LINE, 0);
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

pub(crate) fn run(api: impl Fn() -> Api) {
    static DOMAIN: OnceLock<String> = OnceLock::new();
    set_env(
        "SCIF_DOMAIN",
        DOMAIN.get_or_init(|| format!("bench-{}", std::process::id())),
    );
    let raw = map(
        PAGE,
        libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        libc::PROT_READ | libc::PROT_WRITE,
    );
    let (mine, theirs) = Cue::pair();
    let other = Process::start(|| peer(&api(), raw, &theirs));
    let api = api();
    let listener = api.open();
    api.bind(listener, PORT).unwrap();
    api.listen(listener, 1).unwrap();
    mine.tell();
    let (_, epd) = api.accept(listener, BLOCK).unwrap();
    let near = pages(BIG / PAGE);
    for i in (0..BIG).step_by(8) {
        poke64(near + i, i as u64);
    }
    api.register(epd, near, BIG, WINDOW, RW, FIXED).unwrap();
    mine.wait();
    // The threads of the library start before this one is kept where it is.
    api.writeto(epd, WINDOW, 4 << 20, WINDOW, 0).unwrap();
    let mark = api.fence_mark(epd, 1).unwrap();
    api.fence_wait(epd, mark).unwrap();
    let far = api.mmap(epd, 0, BIG, RW, 0, WINDOW).unwrap();
    for i in (0..PAGE).step_by(8) {
        poke64(far + i, 0);
    }
    pin(0);
    measure(&api, epd, &Places { raw, near, far }, &mine);
    mine.tell();
    other.wait();
}

struct Places {
    raw: usize,
    near: usize,
    far: usize,
}

fn measure(api: &Api, epd: i32, at: &Places, peer: &Cue) {
    println!(
        "{:52} {:>10} {:>10} {:5} {:>6}",
        "", "scif", "reference", "", "ratio"
    );
    let (mut n, mut m) = (0, 0);
    compare(
        "8 bytes there and back through scif_mmap, raw",
        "ns",
        "<= 1.1",
        || {
            let ours = words(at.far, &mut n);
            poke64(at.far, u64::MAX);
            peer.wait();
            reset(at.far);
            n = 0;
            peer.tell();
            let raw = words(at.raw, &mut m);
            poke64(at.raw, u64::MAX);
            peer.wait();
            reset(at.raw);
            m = 0;
            peer.tell();
            (ours, raw)
        },
    );
    compare(
        "8 bytes there and back by blocking send, recv, raw",
        "ns",
        "<= 2",
        || {
            let mut bytes = [7; 8];
            let begin = Instant::now();
            for _ in 0..TRIPS {
                api.send(epd, &bytes, BLOCK).unwrap();
                api.recv(epd, &mut bytes, BLOCK).unwrap();
            }
            let ours = begin.elapsed().as_nanos() as f64 / TRIPS as f64;
            let raw = words(at.raw, &mut m);
            poke64(at.raw, u64::MAX);
            peer.wait();
            reset(at.raw);
            m = 0;
            peer.tell();
            (ours, raw)
        },
    );
    for (len, turns) in [(1usize << 20, 40), (16 << 20, 3)] {
        let what = format!("scif_writeto SYNC of {} MiB, memcpy (bandwidth)", len >> 20);
        compare(&what, "MB/s", ">= 0.95", || {
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
    compare("the call of a 4 MiB write, and with SYNC", "us", "<= 0.1", || {
        let begin = Instant::now();
        api.writeto(epd, WINDOW, LEN, WINDOW, 0).unwrap();
        let ours = begin.elapsed().as_nanos() as f64 / 1e3;
        wait();
        let begin = Instant::now();
        api.writeto(epd, WINDOW, LEN, WINDOW, SYNC).unwrap();
        (ours, begin.elapsed().as_nanos() as f64 / 1e3)
    });
    compare(
        "computing beside 4 MiB writes, and alone",
        "us",
        "<= 1.15",
        || {
            const TURNS: u64 = 4_000_000;
            for _ in 0..16 {
                api.writeto(epd, WINDOW, LEN, WINDOW, 0).unwrap();
            }
            let beside = compute(TURNS);
            wait();
            (beside / 1e3, compute(TURNS) / 1e3)
        },
    );
}

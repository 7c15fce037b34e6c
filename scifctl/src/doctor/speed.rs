// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Check of latency and bandwidth between two processes on two cores, against the limits of the
//! machine: the hand-over of a cache line between two threads, and a copy within one process.

use std::hint::spin_loop;
use std::io::{self, Write};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use scif::sys::mmap::{Mapping, PAGE};
use scif::sys::{self, process};
use scif::{Carrier, Config};
use serde_json::{Value, json};

use super::finding::Finding;
use super::inputs::{Inputs, output, probe};
use crate::bandwidth::{self, ChildGuard, SAMPLE_BYTES};
use crate::failure::{Problem, Result};

/// Time for which each limit of the machine is measured. A shorter one is less exact.
const TIME: Duration = Duration::from_millis(100);
/// Time after which the probe is ended, so that `scifctl doctor` does not hang.
const LIMIT: Duration = Duration::from_secs(5);
/// Number of hand-overs or messages in a batch. The fastest batch counts, so that other programs
/// on the two cores hardly matter.
const BATCH: u32 = 20;
/// Latency, in hand-overs of a line and additional nanoseconds, above which it is not ok. A
/// message takes one hand-over and the instructions of two calls.
const LATENCY_MAX: (f64, f64) = (4.0, 300.0);
/// Fraction of the machine's bandwidth below which it is not ok.
const BANDWIDTH_MIN: f64 = 0.4;

pub(crate) fn check(_: &Inputs) -> Vec<Finding> {
    let Some([first, second]) = cores() else {
        let text = "not measured: this process has one processor";
        return vec![Finding::ok("latency", text)];
    };
    let answer = probe(&["speed", &first.to_string(), &second.to_string()])
        .and_then(|mut command| output(&mut command, LIMIT));
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return vec![failed(&error.to_string())],
    };
    let document: Value = serde_json::from_slice(&answer.stdout).unwrap_or_default();
    let number = |key: &str| document.get(key).and_then(Value::as_f64);
    match (number("hand_over"), number("latency"), number("copy"), number("bandwidth")) {
        (Some(hand_over), Some(latency), Some(copy), Some(bandwidth)) => {
            vec![judge_latency(latency, hand_over), judge_bandwidth(bandwidth, copy)]
        }
        _ => vec![failed(String::from_utf8_lossy(&answer.stderr).trim())],
    }
}

fn failed(reason: &str) -> Finding {
    let reason = reason.trim_start_matches("scifctl: ");
    Finding::broken(
        "latency",
        format!("two processes could not exchange messages: {reason}"),
        "first remove the causes that the other lines name",
    )
}

fn judge_latency(latency: f64, hand_over: f64) -> Finding {
    let meaning = format!(
        "16 B from process to process in {latency:.0} ns, a cache line from core to core in \
         {hand_over:.0} ns"
    );
    if latency <= LATENCY_MAX.0 * hand_over + LATENCY_MAX.1 {
        return Finding::ok("latency", meaning);
    }
    let action = "end other programs on these processors, and run this again";
    Finding::slower("latency", meaning + ": more than the machine explains", action)
}

fn judge_bandwidth(bandwidth: f64, copy: f64) -> Finding {
    let meaning = format!(
        "1 MiB from process to process at {bandwidth:.0} MB/s, within a process at {copy:.0} MB/s"
    );
    if bandwidth >= BANDWIDTH_MIN * copy {
        return Finding::ok("bandwidth", meaning);
    }
    let action = "end other programs on these processors; remove what denies process_vm_readv";
    Finding::slower("bandwidth", meaning, action)
}

/// Returns two processors of this process, on different cores if possible.
fn cores() -> Option<[usize; 2]> {
    let core = |cpu: usize| {
        let place = format!("/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list");
        std::fs::read_to_string(place).unwrap_or_else(|_| cpu.to_string())
    };
    let all = sys::probe::processors();
    let first = *all.first()?;
    let other = all.iter().skip(1).find(|cpu| core(**cpu) != core(first)).or(all.get(1))?;
    Some([first, *other])
}

/// Probe: measures on two processors, and prints a JSON document.
pub(crate) fn measure(config: &Config, cpus: [usize; 2]) -> Result<()> {
    let [first, second] = cpus;
    let hand_over = hand_over(first, second)?;
    let copy = copy_rate();
    let own = Config {
        domain: Some(format!("doctor-{}", process::pid())),
        carrier: Carrier::Soft,
        ..config.clone()
    };
    // The other side inherits the processor, and ends with this process.
    sys::probe::pin(second);
    let mut command = probe(&["serve", own.domain.as_deref().unwrap_or_default()])?;
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut server = ChildGuard(child);
    sys::probe::pin(first);
    let to = bandwidth::address_of(&mut server)?;
    let sample = bandwidth::sample(&own, to, BATCH)?;
    let document = json!({
        "hand_over": hand_over,
        "latency": sample.latency_ns,
        "copy": copy,
        "bandwidth": sample.bytes_per_second / 1e6,
    });
    Ok(writeln!(io::stdout(), "{document}")?)
}

/// Probe: the other side of a measurement, until its input ends.
pub(crate) fn serve(config: &Config, domain: &str) -> Result<()> {
    thread::spawn(|| {
        // An error is an end as well.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        process::kill_self();
    });
    let domain = Some(domain.to_owned());
    bandwidth::serve(&Config { domain, carrier: Carrier::Soft, ..config.clone() }, 0)
}

/// Returns nanoseconds in which a cache line passes from one processor to the other.
fn hand_over(first: usize, second: usize) -> Result<f64> {
    let refused = |_| Problem::Failed("no memory for a shared word".to_owned());
    let memory = Mapping::anonymous(PAGE).map_err(|errno| Problem::Failed(errno.to_string()))?;
    let word = memory.word64(0).map_err(refused)?;
    let best = thread::scope(|scope| {
        scope.spawn(move || {
            sys::probe::pin(second);
            // Even values are answers.
            let mut last = 0;
            while last != u64::MAX {
                let value = word.get();
                if value % 2 == 1 && value != last {
                    word.set(value + u64::from(value != u64::MAX));
                    last = value;
                }
                spin_loop();
            }
        });
        sys::probe::pin(first);
        let (begin, mut best, mut value) = (Instant::now(), Duration::MAX, 0);
        while begin.elapsed() < TIME {
            let batch = Instant::now();
            for _ in 0..BATCH {
                word.set(value + 1);
                value += 2;
                while word.get() != value {
                    spin_loop();
                }
            }
            best = best.min(batch.elapsed());
        }
        word.set(u64::MAX);
        best
    });
    Ok(best.as_secs_f64() * 1e9 / f64::from(2 * BATCH))
}

/// Returns the megabytes per second of a copy within this process.
fn copy_rate() -> f64 {
    let from = vec![1u8; SAMPLE_BYTES];
    let mut to = vec![0u8; SAMPLE_BYTES];
    let (begin, mut best) = (Instant::now(), Duration::MAX);
    while begin.elapsed() < TIME {
        let one = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
        best = best.min(one.elapsed());
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let bytes = SAMPLE_BYTES as f64;
    bytes / best.as_secs_f64() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    #[test]
    fn the_machine_is_the_measure() {
        assert_eq!(judge_latency(400.0, 100.0).state, State::Ok);
        assert_eq!(judge_latency(5000.0, 100.0).state, State::Slower);
        assert_eq!(judge_bandwidth(9000.0, 10000.0).state, State::Ok);
        let slow = judge_bandwidth(900.0, 10000.0);
        assert!(slow.state == State::Slower && slow.action.contains("process_vm_readv"));
        let broken = failed("scifctl: scif_open: no memory");
        assert!(broken.meaning.ends_with("messages: scif_open: no memory"));
    }

    #[test]
    fn limits_of_the_machine_are_measured() {
        assert!(copy_rate() > 10.0);
        if let Some([first, second]) = cores() {
            assert_ne!(first, second);
            let measured = thread::spawn(move || hand_over(first, second)).join().unwrap();
            assert!(measured.is_ok_and(|ns| ns > 1.0));
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Aims for the figures and their verdicts, one line each. Only `--judge` turns a missed aim into a
//! failure of the run.

use std::fmt::Write;

use super::placement::Placement;
use super::protocol::Test;
use super::report::Report;
use super::sampler::size_name;

/// Aim for a figure of this provider, against a rival or a bound.
struct Aim {
    label: String,
    test: &'static str,
    size: usize,
    against: Against,
    least: bool,
    bound: f64,
}

enum Against {
    /// Median of the first subject whose label begins with this text.
    Rival(&'static str),
    /// Another row of this provider.
    Own(&'static str),
    /// The bound itself.
    Number,
}

fn rival(label: &str, test: &'static str, size: usize, least: bool, bound: f64) -> Aim {
    Aim {
        label: format!("{label}, {}, over shm", size_name(size)),
        test,
        size,
        against: Against::Rival("shm"),
        least,
        bound,
    }
}

fn number(label: &str, test: &'static str, size: usize, bound: f64) -> Aim {
    Aim { label: label.to_owned(), test, size, against: Against::Number, least: false, bound }
}

fn aims() -> Vec<Aim> {
    let (k, m) = (1 << 10, 1 << 20);
    let line = Aim {
        label: "tagged latency, 8, over a line handed over".into(),
        test: "tagged_lat",
        size: 8,
        against: Against::Rival("line"),
        least: false,
        bound: 1.5,
    };
    let idle = Aim {
        label: "tagged latency, 8, with idle peers, over without".into(),
        test: "idle_with",
        size: 8,
        against: Against::Own("idle_without"),
        least: false,
        bound: 1.05,
    };
    let mut aims = vec![
        rival("tagged latency", "tagged_lat", 8, false, 0.75),
        line,
        rival("tagged bandwidth, buffers reused", "tagged_bw", 64 * k, true, 1.1),
        rival("tagged bandwidth, buffers reused", "tagged_bw", m, true, 1.8),
        rival("tagged bandwidth, buffers reused", "tagged_bw", 4 * m, true, 1.7),
        rival("tagged bandwidth, buffers touched", "tagged_touched", 64 * k, true, 1.25),
        rival("tagged message rate", "tagged_rate", 8, true, 1.3),
        rival("RMA write one way, bandwidth", "write_bw", m, true, 0.97),
        idle,
        number("idle peer, memory each, bytes", "idle_bytes_each", 8, 65536.0),
        number("idle peer, descriptors each", "idle_fds_each", 8, 1.0),
        number("endpoint opened and enabled, us", "endpoint_ready", 8, 500.0),
        number("endpoint without peers, memory, bytes", "endpoint_bytes", 8, 1_048_576.0),
    ];
    for (label, test) in [
        ("kill -9 of the receiver", "kill_sender_survives"),
        ("kill -9 of the sender", "kill_receiver_survives"),
    ] {
        for size in [8, 64 * k, 4 * m] {
            aims.push(number(&format!("{label}, {}, ms", size_name(size)), test, size, 100.0));
        }
    }
    aims
}

/// Whether an aim needs this figure.
pub(crate) fn judged(test: Test, size: usize) -> bool {
    aims().iter().any(|aim| aim.test == test.word() && aim.size == size)
}

/// Returns the lines, and the number of aims that do not hold or were not measured. Empty if none
/// of their figures was measured.
pub(crate) fn judge(report: &Report<'_>) -> (String, usize) {
    let Some(ours) = report.subjects.iter().position(|subject| subject.label == "scif") else {
        return (String::new(), 0);
    };
    let mut missed = 0;
    let mut out = format!("\n{:<54} {:>10} {:>10}  \n", "aim", "value", "target");
    for aim in aims() {
        let label = match aim.against {
            Against::Rival(label) => label,
            _ => "scif",
        };
        let other_test = match aim.against {
            Against::Own(test) => test,
            _ => aim.test,
        };
        let other = report.subjects.iter().position(|subject| subject.label.starts_with(label));
        let both = |place: Placement| {
            let mine = report.row(ours, aim.test, aim.size, place)?;
            Some((mine, report.row(other?, other_test, aim.size, place)?))
        };
        let (mine, other) = Placement::ALL.into_iter().find_map(both).unzip();
        let sign = if aim.least { ">=" } else { "<=" };
        let target = format!("{sign} {}", aim.bound);
        let (Some(mine), Some(other)) = (mine, other) else {
            missed += 1;
            let _ = writeln!(out, "{:<54} {:>10} {target:>10}  not measured", aim.label, "-");
            continue;
        };
        let value = match aim.against {
            // A bound must hold for the largest sample.
            Against::Number => mine.spread.max,
            _ => mine.spread.median / other.spread.median,
        };
        let holds = if aim.least { value >= aim.bound } else { value <= aim.bound };
        if !holds || mine.inside {
            missed += 1;
        }
        let verdict = match holds {
            // The aims require targets that do other work meanwhile.
            _ if mine.inside => "does not hold: the target had to call the library",
            true => "holds",
            false => "does not hold",
        };
        let doubt = match (mine.placement, other.placement) {
            ("far", "far") | ("mid", "mid") | ("any", _) => "",
            ("near", "near") => " (near, no samples of two cores)",
            ("near" | "near-noisy", _) => " (near, no samples of two cores, disturbed)",
            _ => " (disturbed)",
        };
        let _ = writeln!(out, "{:<54} {value:>10.3} {target:>10}  {verdict}{doubt}", aim.label);
    }
    (out, missed)
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! `bench`: measures providers of libfabric and the machine they run on, side by side in one run.
//!
//! The program is the parent, which decides and reports. It starts itself again as each rank that
//! measures. The exit code is a failure only when a measurement was impossible, not because of its
//! result, unless aims are judged.

mod empty_poll;
mod limits;
mod messages;
mod onesided;
mod options;
mod os;
mod oversub;
mod pair;
mod placement;
mod plot;
mod port;
mod protocol;
mod rank;
mod report;
mod sampler;
mod segment;
mod shm_barrier;
mod stress;
mod targets;
mod touch;

use std::io::Write;
use std::process::ExitCode;

use scif_fabtests::harness::cpus::two_cpus;
use scif_fabtests::harness::{Fail, Outcome};

use limits::Limit;
use options::Options;
use pair::{BenchError, Pair, Subject};
use protocol::{Order, Reply};
use report::{Machine, Report};
use sampler::{PATIENCE, Sampler, progress};

/// System load above which other programs disturb the run.
const QUIET_LOAD: f64 = 0.5;

fn main() -> ExitCode {
    let options = Options::parse();
    let outcome = match options.identity() {
        Some(identity) => rank::serve(identity),
        None => options.probe.map_or_else(|| measure(&options), |count| probe(&options, count)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Fail::NotRun(why) | Fail::NotHere(why) | Fail::Failed(why)) => {
            let _ = writeln!(std::io::stderr(), "bench: {why}");
            ExitCode::FAILURE
        }
    }
}

fn print_line(text: &str) {
    // Standard output may be closed; the files are written anyway.
    let _ = write!(std::io::stdout().lock(), "{text}");
}

/// Prints the two processors and the median round trip of a cache line between them.
fn probe(options: &Options, count: u64) -> Outcome {
    let [first, second] = two_cpus()?;
    if first == second {
        return Err(Fail::NotRun("only one processor is allowed, two are necessary".into()));
    }
    let pair = Pair::start(&options.limit(Limit::Line), &[Some(first), Some(second)])?;
    let replies = pair.order(&Order::Probe(count), PATIENCE).map_err(Fail::here)?;
    let Some(Reply::Numbers(mut trips)) = replies.into_iter().next() else {
        return Err(Fail::here("the ranks sent no round trips"));
    };
    trips.sort_unstable();
    let median = trips.get(trips.len() / 2).copied().unwrap_or(0);
    print_line(&format!("{first} {second} {}\n", median / 1000));
    Ok(())
}

fn measure(options: &Options) -> Outcome {
    let machine = Machine::look();
    let cpus = two_cpus()?;
    let subjects = options.subjects()?;
    let plan = options.plan();
    let [first, second] = cpus;
    print_line(&format!(
        "{}, Linux {}, processors {first} and {second}, load {:.2}{}\n",
        machine.name,
        machine.kernel,
        machine.load,
        if machine.load > QUIET_LOAD { ": noisy, numbers are not to be trusted" } else { "" }
    ));
    if first == second {
        print_line(
            "only one processor is allowed: ranks take turns, \
             and nothing here says anything about two\n",
        );
    }
    let mut sampler = Sampler::new(&subjects, &plan, targets::judged, cpus);
    sampler.run()?;
    let (probes, dropped, cells, left_out) =
        (sampler.probes, sampler.dropped, sampler.cells, sampler.left_out);
    let mut report = Report::new(&subjects, &cells);
    for (index, subject) in subjects
        .iter()
        .enumerate()
        .filter(|(_, subject)| !(subject.limit || subject.denied || subject.shared))
    {
        ordeals(options, cpus, (index, subject), &mut report);
    }
    progress("", true);
    let mut text = report.tables();
    text.push_str(&report::legend());
    text.push_str(&format!(
        "\n{}\nsamples taken again: {} because the placement changed, \
         {} because of more than {} context switches; {} waits for two cores\n",
        probes.describe(),
        dropped.flipped,
        dropped.switched,
        plan.switches,
        dropped.near
    ));
    if left_out > 0 {
        text.push_str(&format!("left out for want of time: {left_out} numbers\n"));
    }
    for remark in &report.remarks {
        text.push_str(&format!("{remark}\n"));
    }
    let (aims, missed) = targets::judge(&report);
    text.push_str(&aims);
    print_line(&text);
    if let Some(dir) = &options.out {
        std::fs::create_dir_all(dir)?;
        std::fs::write(dir.join("bench.csv"), report.csv(&machine))?;
        std::fs::write(dir.join("bench.txt"), &text)?;
        plot::draw(&report, &dir.join("bench.svg")).map_err(Fail::Failed)?;
        print_line(&format!(
            "\nwritten: {0}/bench.csv, {0}/bench.txt, {0}/bench.svg\n",
            dir.display()
        ));
    }
    if report.rows.is_empty() {
        return Err(Fail::Failed("nothing could be measured".into()));
    }
    if options.judge && (missed > 0 || aims.is_empty()) {
        return Err(Fail::Failed(format!("{missed} aims do not hold or were not measured")));
    }
    Ok(())
}

/// Measures idle peers and deaths of one subject.
fn ordeals(
    options: &Options,
    cpus: [usize; 2],
    (index, subject): (usize, &Subject),
    report: &mut Report<'_>,
) {
    let complain = |label: &str, error: &BenchError, report: &mut Report<'_>| {
        report.remarks.push(format!("{}, {label}: {error}", subject.label));
    };
    if options.idle > 0 && subject.label == options.idle_prov {
        let samples = options.samples();
        match stress::idle(subject, cpus, options.idle, samples, options.switches) {
            Ok(cost) => report.add_idle(index, &cost),
            Err(error) => complain("idle peers", &error, report),
        }
    }
    // A provider that never detects a death takes the full time limit, so one death of each size
    // suffices.
    let ours = subject.label == "scif";
    let deaths = if ours { options.deaths } else { options.deaths_of_others };
    let kinds = [true, false]
        .into_iter()
        .flat_map(|sends| [8, 64 << 10, 4 << 20].map(|size| (sends, size)));
    for (sends, size) in kinds.filter(|(sends, _)| ours || *sends) {
        let mut notices = Vec::new();
        for round in 0..deaths {
            let label =
                format!("kill -9 of {}: size {size}, {} of {deaths}", subject.label, round + 1);
            progress(&label, round == 0);
            match stress::death(subject, cpus, size, sends) {
                Ok(notice) => notices.push(notice),
                Err(error) => {
                    complain("kill -9", &error, report);
                    break;
                }
            }
        }
        if !notices.is_empty() {
            report.add_deaths(index, sends, size, &notices);
        }
    }
}

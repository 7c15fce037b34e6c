// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Results of a run: medians with their spread, as a file of comma-separated values and as tables
//! with ratios.
//!
//! The aims are in `targets`, the figures in `plot`.

use std::fmt::Write;
use std::process::Command;

use super::limits::Limit;
use super::pair::Subject;
use super::placement::Placement;
use super::protocol::Test;
use super::sampler::{Series, Value, size_name};
use super::stress::{IdleCost, Notice};

/// Median and extremes of samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) n: usize,
}

impl Spread {
    /// Returns the spread of `values`; `None` without samples.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let n = values.len();
        let (min, max) = (*values.first()?, *values.last()?);
        let (low, high) = (*values.get((n - 1) / 2)?, *values.get(n / 2)?);
        Some(Spread { median: f64::midpoint(low, high), min, max, n })
    }
}

/// One line of the file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) subject: usize,
    pub(crate) test: String,
    pub(crate) size: usize,
    pub(crate) buffers: &'static str,
    /// `far`, `mid` or `near`, with `-noisy` for samples disturbed by other programs; `any` if the
    /// placement does not matter.
    pub(crate) placement: &'static str,
    pub(crate) spread: Spread,
    pub(crate) unit: &'static str,
    /// Whether the target of a one-sided operation had to call the library.
    pub(crate) inside: bool,
}

/// Value in milliseconds for a death that was never noticed: the time after which a rank gives up.
const GAVE_UP_MS: f64 = 2500.0;

/// Placements, best first.
const PLACES: [&str; 7] = ["far", "far-noisy", "mid", "mid-noisy", "near", "near-noisy", "any"];

/// All results of a run.
pub(crate) struct Report<'a> {
    pub(crate) subjects: &'a [Subject],
    pub(crate) rows: Vec<Row>,
    /// Facts that the rows do not show: a missing feature, a failure, a target that had to call the
    /// library.
    pub(crate) remarks: Vec<String>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(subjects: &'a [Subject], cells: &[Series]) -> Report<'a> {
        let mut report = Report { subjects, rows: Vec::new(), remarks: Vec::new() };
        for cell in cells {
            for place in PLACES {
                let fits =
                    |taken: &&Value| place_name(Placement::of(taken.ps), taken.noisy) == place;
                if let Some(spread) =
                    Spread::of(cell.taken.iter().filter(fits).map(|taken| taken.value))
                {
                    report.rows.push(Row {
                        subject: cell.subject,
                        test: cell.test.word().to_owned(),
                        size: cell.size,
                        buffers: cell.test.buffers(),
                        placement: place,
                        spread,
                        unit: cell.test.unit(),
                        inside: cell.inside && !cell.test.is_atomic(),
                    });
                }
            }
            if let Some(error) = &cell.error {
                let line = format!("{}, {}: {error}", report.label(cell.subject), cell.test);
                if !report.remarks.contains(&line) {
                    report.remarks.push(line);
                }
            }
        }
        report.remark_inside(cells);
        report
    }

    /// Adds remarks about one-sided operations that needed the target.
    fn remark_inside(&mut self, cells: &[Series]) {
        for subject in 0..self.subjects.len() {
            let mut tests: Vec<String> = Vec::new();
            for &test in Test::ALL {
                let of_test =
                    cells.iter().filter(|cell| cell.subject == subject && cell.test == test);
                let sizes: Vec<String> = of_test
                    .filter(|cell| cell.inside && !cell.test.is_atomic())
                    .map(|cell| size_name(cell.size))
                    .collect();
                if !sizes.is_empty() {
                    tests.push(format!("{test} ({})", sizes.join(" ")));
                }
            }
            if !tests.is_empty() {
                let label = self.label(subject);
                let line =
                    format!("{label}, with the target calling the library: {}", tests.join(", "));
                self.remarks.push(line);
            }
        }
    }

    pub(crate) fn label(&self, subject: usize) -> &str {
        self.subjects.get(subject).map_or("?", |subject| &subject.label)
    }

    /// Returns the row to show: far if there is one, else the best placement.
    pub(crate) fn shown(&self, subject: usize, test: &str, size: usize) -> Option<&Row> {
        let rows = || {
            let of_subject = self.rows.iter().filter(move |row| row.subject == subject);
            of_subject.filter(move |row| row.size == size && row.test == test)
        };
        PLACES.iter().find_map(|place| rows().find(|row| row.placement == *place))
    }

    /// Returns the row of one placement: from quiet samples if there are any, else from disturbed
    /// ones.
    pub(crate) fn row(
        &self,
        subject: usize,
        test: &str,
        size: usize,
        place: Placement,
    ) -> Option<&Row> {
        let names = [place.word(), place.noisy_word(), "any"];
        let of = |name: &&'static str| {
            self.rows.iter().find(|row| {
                row.subject == subject
                    && row.size == size
                    && row.test == test
                    && row.placement == *name
            })
        };
        names.iter().find_map(of)
    }

    pub(crate) fn add_idle(&mut self, subject: usize, cost: &IdleCost) {
        let size = 8;
        let place = place_name(cost.placement, cost.noisy);
        for (test, list) in [("idle_without", &cost.without), ("idle_with", &cost.with)] {
            if let Some(spread) = Spread::of(list.iter().copied()) {
                self.push(subject, test, size, spread, (place, "us"));
            }
        }
        for (test, value, unit) in [
            ("idle_bytes_each", cost.bytes_each, "bytes"),
            ("idle_fds_each", cost.fds_each, "descriptors"),
            ("endpoint_ready", cost.endpoint_us, "us"),
            ("endpoint_bytes", cost.endpoint_bytes, "bytes"),
        ] {
            if let Some(spread) = Spread::of([value]) {
                self.push(subject, test, size, spread, ("any", unit));
            }
        }
    }

    /// Adds the notices of deaths; deaths that were never noticed add a remark as well.
    pub(crate) fn add_deaths(
        &mut self,
        subject: usize,
        sends: bool,
        size: usize,
        notices: &[Notice],
    ) {
        let survivor = if sends { "sender" } else { "receiver" };
        let times = notices.iter().map(|notice| match notice {
            Notice::Completion(ms) | Notice::Refusal(ms) => *ms,
            Notice::Never => GAVE_UP_MS,
        });
        if let Some(spread) = Spread::of(times) {
            self.push(subject, &format!("kill_{survivor}_survives"), size, spread, ("any", "ms"));
        }
        let count = |is: fn(&Notice) -> bool| notices.iter().filter(|notice| is(notice)).count();
        let never = count(|notice| *notice == Notice::Never);
        if never > 0 {
            let (label, size) = (self.label(subject).to_owned(), size_name(size));
            self.remarks.push(format!(
                "{label}, kill -9: the {survivor} of {size} heard nothing for {GAVE_UP_MS} ms, \
                 {never} of {} times",
                notices.len()
            ));
        }
        if count(|notice| matches!(notice, Notice::Refusal(_))) > 0 {
            let (label, size) = (self.label(subject).to_owned(), size_name(size));
            self.remarks.push(format!(
                "{label}, kill -9: the {survivor} of {size} learnt it by a refused call"
            ));
        }
    }

    fn push(
        &mut self,
        subject: usize,
        test: &str,
        size: usize,
        spread: Spread,
        (placement, unit): (&'static str, &'static str),
    ) {
        self.rows.push(Row {
            subject,
            test: test.to_owned(),
            size,
            buffers: "reused",
            placement,
            spread,
            unit,
            inside: false,
        });
    }

    /// Returns the file of comma-separated values.
    pub(crate) fn csv(&self, machine: &Machine) -> String {
        let mut out = String::from(
            "machine,kernel,commit,date,provider,libfabric,test,size,buffers,placement,\
             median,min,max,n,unit\n",
        );
        for row in &self.rows {
            let version = self.subjects.get(row.subject).map_or("", |subject| &subject.version);
            let Spread { median, min, max, n } = row.spread;
            // A write to a string cannot fail.
            let _ = writeln!(
                out,
                "{},{},{},{},{},{version},{},{},{},{},{median:.4},{min:.4},{max:.4},{n},{}",
                machine.name,
                machine.kernel,
                machine.commit,
                machine.date,
                self.label(row.subject),
                row.test,
                row.size,
                row.buffers,
                row.placement,
                row.unit
            );
        }
        out
    }

    /// Returns the tables: a line for each size, a column for each subject, and the ratio of `ours`
    /// to the others.
    pub(crate) fn tables(&self) -> String {
        let mut out = String::new();
        for &test in Test::ALL {
            let mut sizes: Vec<usize> = self
                .rows
                .iter()
                .filter(|row| row.test == test.word())
                .map(|row| row.size)
                .collect();
            sizes.sort_unstable();
            sizes.dedup();
            for place in Placement::ALL {
                self.table(&mut out, test, &sizes, place);
            }
        }
        out
    }

    fn table(&self, out: &mut String, test: Test, sizes: &[usize], place: Placement) {
        let has =
            |subject: usize, size: usize| self.row(subject, test.word(), size, place).is_some();
        let columns: Vec<usize> = (0..self.subjects.len())
            .filter(|&subject| sizes.iter().any(|&size| has(subject, size)))
            .collect();
        if columns.is_empty() {
            return;
        }
        let ours = columns.iter().copied().find(|&at| self.label(at) == "scif");
        let is_rival = |at: &usize| {
            let bound = matches!(self.label(*at), "line" | "process_vm");
            let limit = self.subjects.get(*at).is_some_and(|subject| subject.limit);
            ours.is_some_and(|ours| ours != *at) && (bound || !limit)
        };
        let rivals: Vec<usize> = columns.iter().copied().filter(is_rival).collect();
        let mut lines = vec![vec!["size".to_owned()]];
        if let Some(head) = lines.first_mut() {
            head.extend(columns.iter().map(|&column| self.label(column).to_owned()));
            head.extend(rivals.iter().map(|&rival| format!("/{}", self.label(rival))));
        }
        let seen = |size: &usize| columns.iter().any(|&subject| has(subject, *size));
        for &size in sizes.iter().filter(|size| seen(size)) {
            let shown = |subject| self.row(subject, test.word(), size, place);
            let mut line = vec![size_name(size)];
            line.extend(
                columns.iter().map(|&column| shown(column).map_or_else(|| "-".into(), figure)),
            );
            let mine = ours.and_then(shown);
            line.extend(rivals.iter().map(|&rival| {
                let both = mine.zip(shown(rival));
                both.map_or_else(
                    || "-".into(),
                    |(mine, other)| format!("{:.2}", mine.spread.median / other.spread.median),
                )
            }));
            lines.push(line);
        }
        let _ = writeln!(out, "\n{}, {}, {}", test.title(), test.unit(), place.word());
        align(out, &lines);
    }
}

fn place_name(place: Placement, noisy: bool) -> &'static str {
    if noisy { place.noisy_word() } else { place.word() }
}

/// Appends lines of words with aligned columns.
fn align(out: &mut String, lines: &[Vec<String>]) {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let words = lines.iter().filter_map(|line| line.get(column));
        words.map(String::len).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for line in lines {
        for (word, width) in line.iter().zip(&widths) {
            let _ = write!(out, "  {word:>width$}");
        }
        out.push('\n');
    }
}

/// Formats a median with its spread; `~` marks disturbed samples.
fn figure(row: &Row) -> String {
    let Spread { median, min, max, .. } = row.spread;
    let digits = |value: f64| {
        if value >= 1000.0 {
            format!("{value:.0}")
        } else if value >= 10.0 {
            format!("{value:.1}")
        } else {
            format!("{value:.3}")
        }
    };
    let noisy = if row.placement.ends_with("noisy") { "~" } else { "" };
    format!("{noisy}{} ({}-{})", digits(median), digits(min), digits(max))
}

/// Machine, kernel, commit and date of the measurement.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) kernel: String,
    pub(crate) commit: String,
    pub(crate) date: String,
    pub(crate) load: f64,
}

impl Machine {
    pub(crate) fn look() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let command = |words: &[&str]| {
            let (program, arguments) = words.split_first().unwrap_or((&"true", &[]));
            let output = Command::new(program).args(arguments).output();
            let text =
                output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
            String::from_utf8_lossy(&text.unwrap_or_default()).trim().to_owned()
        };
        // A comma would start another column.
        let clean = |text: String| text.trim().replace([',', '\n'], " ");
        let cpu = read("/proc/cpuinfo");
        let model = cpu
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map_or("unknown processor", |(_, model)| model.trim());
        Machine {
            name: clean(format!("{} {model}", read("/proc/sys/kernel/hostname").trim())),
            kernel: clean(read("/proc/sys/kernel/osrelease")),
            commit: clean(command(&["git", "describe", "--always", "--dirty", "--tags"])),
            date: clean(command(&["date", "-u", "+%Y-%m-%dT%H:%M:%SZ"])),
            load: read("/proc/loadavg")
                .split_whitespace()
                .next()
                .and_then(|word| word.parse().ok())
                .unwrap_or(0.0),
        }
    }
}

/// Returns the names of the limits with explanations, for the end of the tables.
pub(crate) fn legend() -> String {
    let explain = |limit: Limit| match limit {
        Limit::Line => "a line handed over; lines passed through a ring of 256",
        Limit::Copy => "one processor copies",
        Limit::Copy2 => "both processors copy one half each",
        Limit::ProcessVm => "the receiver calls process_vm_readv",
        Limit::ProcessVm2 => "it reads one half while the sender writes the other",
    };
    let lines = Limit::ALL.map(|limit| format!("  {}: {}\n", limit.name(), explain(limit)));
    format!("\nlimits of the machine:\n{}", lines.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_the_middle() {
        let spread = Spread::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!((spread.min, spread.median, spread.max, spread.n), (1.0, 2.0, 3.0, 3));
        assert!((Spread::of([1.0, 2.0]).unwrap().median - 1.5).abs() < 1e-12);
        assert_eq!(Spread::of([]), None);
    }
}

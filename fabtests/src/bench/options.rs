// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Command line: tests to measure, libraries to use, and the arguments with which the program
//! starts itself.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use scif_fabtests::fi::Lib;
use scif_fabtests::harness::{Fail, Outcome};

use super::limits::Limit;
use super::pair::Subject;
use super::protocol::Test;
use super::rank::Identity;
use super::sampler::Plan;

/// Latency, bandwidth and message rate of libfabric providers and of the machine itself, measured
/// in turns.
///
/// Names of tests: tagged_{lat,bw,touched,rate} msg_{lat,bw,rate} write_{lat,poll,bw,touched,rate}
/// read_{lat,bw,rate} atomic_{sum,fetch,cswap}_{lat,rate} empty_poll_{cq,talked,safe,cntr,peek}; a
/// part of a name selects all tests that contain it.
#[derive(Debug, Parser)]
#[command(version, about)]
pub(crate) struct Options {
    /// Providers; NAME@LIBRARY takes one from another libfabric
    #[arg(long, value_delimiter = ',', default_value = "scif,shm,tcp")]
    prov: Vec<String>,
    /// Run only tests whose name contains one of these; "none" leaves all tests out
    #[arg(long, value_delimiter = ',')]
    tests: Vec<String>,
    /// Message sizes in bytes, with K or M
    #[arg(long, value_delimiter = ',', value_parser = size)]
    sizes: Vec<usize>,
    /// The libfabric to load
    #[arg(long, default_value = "libfabric.so.1")]
    lib: PathBuf,
    /// The libfabric to load shm from, to compare with the shm of another release
    #[arg(long)]
    shm_lib: Option<PathBuf>,
    /// Directory for bench.csv, bench.txt and bench.svg
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
    /// Fewer sizes, fewer samples, no idle peers: less than a minute
    #[arg(long)]
    quick: bool,
    /// Fail when an aim does not hold or was not measured
    #[arg(long)]
    pub(crate) judge: bool,
    /// Approximate time limit for the tests, in seconds
    #[arg(long)]
    seconds: Option<u64>,
    /// Additional seconds to wait, if there are aims, until the two processors are on different
    /// cores; 300, or 20 with --quick
    #[arg(long)]
    patience: Option<u64>,
    /// Number of samples to keep of each figure
    #[arg(long)]
    samples: Option<usize>,
    /// Number of involuntary context switches above which a sample counts as noisy
    #[arg(long, default_value_t = 4)]
    pub(crate) switches: u64,
    /// Number of idle peers whose cost is measured; 1000, or 0 with --quick
    #[arg(long = "idle", value_name = "PEERS")]
    idle_asked: Option<u64>,
    #[arg(skip)]
    pub(crate) idle: u64,
    /// Provider for the idle peers
    #[arg(long, default_value = "scif")]
    pub(crate) idle_prov: String,
    /// Deaths of each kind for scif: 3, or 1 with --quick; for other providers one of each size, or
    /// none with --quick
    #[arg(long = "deaths", value_name = "COUNT")]
    deaths_asked: Option<u32>,
    #[arg(skip)]
    pub(crate) deaths: u32,
    #[arg(skip)]
    pub(crate) deaths_of_others: u32,
    #[command(flatten)]
    also: SubjectOptions,
    /// Print the first two allowed processors and the round trip of a cache line between them in
    /// nanoseconds, the median of COUNT measurements, and measure nothing else
    #[arg(long, value_name = "COUNT")]
    pub(crate) probe: Option<u64>,

    #[arg(long, hide = true)]
    rank_of: Option<String>,
    #[arg(long, hide = true, default_value_t = 0)]
    rank: usize,
    #[arg(long, hide = true)]
    cpu: Option<usize>,
    #[arg(long, hide = true)]
    segment: Option<PathBuf>,
}

const SIZES: [usize; 9] =
    [8, 64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
const QUICK_SIZES: [usize; 4] = [8, 64 << 10, 1 << 20, 4 << 20];

fn size(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (text.get(..text.len() - 1).unwrap_or_default(), 10),
        Some(b'M' | b'm') => (text.get(..text.len() - 1).unwrap_or_default(), 20),
        _ => (text, 0),
    };
    let size = digits.parse::<usize>().map_err(|e| e.to_string())?.saturating_mul(1 << shift);
    if (1..=super::segment::LARGEST).contains(&size) {
        Ok(size)
    } else {
        Err("sizes go from 1 to 4M".into())
    }
}

/// Additional subjects of the measurement, and omitted ones.
#[derive(Debug, clap::Args)]
struct SubjectOptions {
    /// Measure scif once more with process_vm_readv and process_vm_writev denied
    #[arg(long)]
    deny_process_vm: bool,
    /// Measure scif once more with shared memory as targets, which peers can map
    #[arg(long)]
    shared_memory: bool,
    /// Leave out the limits of the machine
    #[arg(long)]
    no_limits: bool,
}

impl Options {
    /// Parses the command line and derives the dependent values.
    pub(crate) fn parse() -> Options {
        let mut options = <Options as Parser>::parse();
        options.idle = options.idle_asked.unwrap_or(if options.quick { 0 } else { 1000 });
        options.deaths = options.deaths_asked.unwrap_or(if options.quick { 1 } else { 3 });
        options.deaths_of_others = options.deaths_asked.unwrap_or(u32::from(!options.quick)).min(1);
        options
    }

    /// Returns the identity of this process as a rank, if it is one.
    pub(crate) fn identity(&self) -> Option<Identity> {
        Some(Identity {
            rank: self.rank,
            provider: self.rank_of.clone()?,
            lib: self.lib.clone(),
            segment: self.segment.clone().unwrap_or_default(),
            cpu: self.cpu,
            deny_process_vm: self.also.deny_process_vm,
            shared_memory: self.also.shared_memory,
        })
    }

    pub(crate) fn samples(&self) -> usize {
        self.samples.unwrap_or(if self.quick { 5 } else { 7 })
    }

    /// Returns the plan of the measurement.
    pub(crate) fn plan(&self) -> Plan {
        let wanted = |test: &Test| {
            self.tests.is_empty()
                || self.tests.iter().any(|word| test.word().contains(word.as_str()))
        };
        let sizes = match (self.sizes.is_empty(), self.quick) {
            (false, _) => self.sizes.clone(),
            (true, true) => QUICK_SIZES.to_vec(),
            (true, false) => SIZES.to_vec(),
        };
        let seconds = self.seconds.unwrap_or(if self.quick { 34 } else { 165 });
        Plan {
            tests: Test::ALL.iter().copied().filter(wanted).collect(),
            sizes,
            samples: self.samples(),
            budget: Duration::from_secs(seconds),
            patience: Duration::from_secs(self.patience.unwrap_or(if self.quick {
                20
            } else {
                300
            })),
            switches: self.switches,
        }
    }

    /// Returns the providers and limits, in the order of their turns.
    pub(crate) fn subjects(&self) -> Outcome<Vec<Subject>> {
        let mut subjects: Vec<Subject> = Vec::new();
        for word in &self.prov {
            let (name, lib) = match word.split_once('@') {
                Some((name, lib)) => (name, Path::new(lib)),
                None if word == "shm" => {
                    (word.as_str(), self.shm_lib.as_deref().unwrap_or(&self.lib))
                }
                None => (word.as_str(), self.lib.as_path()),
            };
            let version = Lib::open(lib).map_err(Fail::Failed)?.version_text();
            let taken = subjects.iter().any(|subject| subject.label == name);
            let label = if taken { format!("{name}-{version}") } else { name.to_owned() };
            subjects.push(provider(name, label, lib, version));
        }
        if let Some(scif) = subjects.iter().find(|subject| subject.provider == "scif").cloned() {
            let denied = Subject { label: "scif-ring".into(), denied: true, ..scif.clone() };
            let calls =
                Subject { label: "scif-calls".into(), settings: OVER_CALLS, ..scif.clone() };
            subjects.extend((!self.quick).then_some(calls));
            let shared = Subject { label: "scif-shared".into(), shared: true, ..scif };
            subjects.extend(self.also.deny_process_vm.then_some(denied));
            subjects.extend(self.also.shared_memory.then_some(shared));
        }
        if !self.also.no_limits {
            subjects.extend(Limit::ALL.map(|limit| self.limit(limit)));
        }
        Ok(subjects)
    }

    /// Returns the subject of a limit.
    pub(crate) fn limit(&self, limit: Limit) -> Subject {
        let name = limit.name();
        Subject { limit: true, ..provider(name, name.into(), &self.lib, String::new()) }
    }
}

/// Settings of the provider over the calls of scif.h, without a driver.
const OVER_CALLS: &[(&str, &str)] = &[("FI_SCIF_TRANSPORT", "scif"), ("SCIF_TRANSPORT", "soft")];

fn provider(name: &str, label: String, lib: &Path, version: String) -> Subject {
    Subject {
        label,
        provider: name.to_owned(),
        lib: lib.to_path_buf(),
        version,
        limit: false,
        denied: false,
        shared: false,
        settings: &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_accept_unit_suffixes() {
        assert_eq!((size("8"), size("64K"), size("4M")), (Ok(8), Ok(65536), Ok(4 << 20)));
        assert!(
            size("5M").is_err() && size("0").is_err() && size("x").is_err() && size("").is_err()
        );
    }

    #[test]
    fn the_command_line_is_sound() {
        <Options as clap::CommandFactory>::command().debug_assert();
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Arguments of the storm, which the parent repeats for its ranks.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;
use scif_fabtests::payload::RankId;

use super::net::Kind;

/// Kills and stops ranks of a libfabric provider
#[derive(Debug, Parser)]
#[command(version, about)]
pub(crate) struct Args {
    /// The libfabric to load
    #[arg(long, default_value = "libfabric.so.1")]
    pub(crate) lib: PathBuf,
    /// The provider to test
    #[arg(long, default_value = "scif")]
    pub(crate) prov: String,
    /// Kind of endpoint
    #[arg(long, value_enum, default_value = "rdm")]
    pub(crate) kind: Kind,
    /// Duration of the storm, in seconds
    #[arg(long, default_value_t = 30)]
    pub(crate) seconds: u64,
    /// End after this many kills, however long that takes
    #[arg(long)]
    pub(crate) kills: Option<u64>,
    /// Program of the ranks, in place of this one
    #[arg(long, default_value = "/proc/self/exe")]
    pub(crate) rank_program: PathBuf,
    /// Give ranks low limits of all resources
    #[arg(long)]
    pub(crate) limits: bool,
    /// Fail if the 99.9th percentile from death to error is longer
    #[arg(long)]
    pub(crate) p999_ms: Option<u64>,
    /// The seed; FAULTS_SEED does the same
    #[arg(long, env = "FAULTS_SEED", default_value_t = 1)]
    pub(crate) seed: u64,
    #[arg(long, hide = true)]
    pub(crate) rank: Option<usize>,
    #[arg(long, hide = true, default_value_t = 0)]
    pub(crate) life: u32,
}

impl Args {
    /// Arguments with which the program runs as one rank.
    pub(crate) fn of_rank(&self, id: RankId) -> Vec<OsString> {
        let words = [
            "--lib".into(),
            self.lib.clone().into_os_string(),
            "--prov".into(),
            self.prov.clone().into(),
            "--kind".into(),
            format!("{:?}", self.kind).to_lowercase().into(),
            "--seed".into(),
            self.seed.to_string().into(),
            "--rank".into(),
            id.slot.to_string().into(),
            "--life".into(),
            id.life.to_string().into(),
        ];
        let limits = self.limits.then(|| "--limits".into());
        words.into_iter().chain(limits).collect()
    }
}

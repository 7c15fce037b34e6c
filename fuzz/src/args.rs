// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Arguments of a run, which the parent repeats for its processes.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Target of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// A reliable endpoint of the provider.
    Rdm,
    /// A passive endpoint of the provider, and connected ones.
    Msg,
    /// A datagram endpoint of the provider.
    Dgram,
    /// An endpoint of `scif.h`.
    Scif,
}

/// Part of a process in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    Victim,
    Honest,
    Newcomer,
    Attacker,
}

/// Runs hostile peers against the provider or scif.h
#[derive(Debug, Clone, Parser)]
#[command(version, about)]
pub(crate) struct Args {
    /// The libfabric to load
    #[arg(long, default_value = "libfabric.so.1")]
    pub(crate) lib: PathBuf,
    /// Target of the attack
    #[arg(long, value_enum, default_value = "rdm")]
    pub(crate) target: Target,
    /// Duration of the attack in seconds
    #[arg(long, default_value_t = 10)]
    pub(crate) seconds: u64,
    /// Number of concurrent attackers
    #[arg(long, default_value_t = 1)]
    pub(crate) attackers: usize,
    /// End after this many records, however long that takes
    #[arg(long)]
    pub(crate) records: Option<u64>,
    /// Let the victim sleep in fi_cq_sread
    #[arg(long)]
    pub(crate) sleep: bool,
    /// Let the victim request automatic progress
    #[arg(long)]
    pub(crate) auto: bool,
    /// Maximum time in milliseconds that the honest client may wait for a reply
    #[arg(long, default_value_t = 1000)]
    pub(crate) stall_ms: u64,
    /// Maximum time in milliseconds for which a newcomer to a reliable endpoint may wait
    #[arg(long, default_value_t = 2000)]
    pub(crate) newcomer_ms: u64,
    /// Number of connections that each attacker opens and keeps, in place of records
    #[arg(long, default_value_t = 0)]
    pub(crate) crowd: usize,
    /// Maximum growth of the victim in MiB
    #[arg(long, default_value_t = 256)]
    pub(crate) grow_mib: u64,
    /// The seed; FAULTS_SEED does the same
    #[arg(long, env = "FAULTS_SEED", default_value_t = 1)]
    pub(crate) seed: u64,
    #[arg(long, hide = true, value_enum)]
    pub(crate) role: Option<Role>,
    #[arg(long, hide = true, default_value_t = 0)]
    pub(crate) index: usize,
    #[arg(long, hide = true, default_value_t = 0, overrides_with = "life")]
    pub(crate) life: u32,
    #[arg(long, hide = true, default_value_t = 0)]
    pub(crate) port: u16,
    /// Port of the honest client, whose name attackers sometimes use
    #[arg(long, hide = true, default_value_t = 0)]
    pub(crate) honest: u16,
    #[arg(long, hide = true, default_value_t = 0)]
    pub(crate) key: u64,
    #[arg(long, hide = true, default_value_t = 0)]
    pub(crate) base: u64,
    #[arg(long, hide = true, default_value_t = 0)]
    pub(crate) len: u64,
    #[arg(long, hide = true, default_value = "")]
    pub(crate) victim: String,
}

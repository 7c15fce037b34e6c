// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Command line: commands and their options. Not about the effect of the commands.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Parser, Subcommand, ValueEnum};
use scif::PortId;

/// Shows SCIF nodes, endpoints, connections and windows; tests connections; loses and restores
/// nodes
#[derive(Debug, Parser)]
#[command(
    after_help = "Sees the processes of its SCIF_DOMAIN, or of its user. See scifctl(1).",
    name = "scifctl",
    version,
    flatten_help = true,
    propagate_version = true,
    disable_help_subcommand = true
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Command of the user.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists nodes with their processes and ports
    Nodes(ListOptions),
    /// Lists the endpoints of every process with their counters, those of libfabric first
    Endpoints(ListOptions),
    /// Lists the peers of the libfabric endpoints of a process
    #[command(args_override_self = true)]
    Peers {
        /// Process id
        pid: i32,
        #[command(flatten)]
        options: WatchOptions,
    },
    /// Shows all that a process publishes about its libfabric endpoints
    #[command(args_override_self = true)]
    Dump {
        /// Process id
        pid: i32,
        #[command(flatten)]
        options: WatchOptions,
    },
    /// Shows which processes with libfabric endpoints wait for which, and deadlocks
    Job(WatchOptions),
    /// Shows message rates of processes with libfabric endpoints
    Top(WatchOptions),
    /// Prints the counters of the libfabric endpoints of a process
    #[command(args_override_self = true)]
    Stats {
        /// Process id
        pid: i32,
        #[command(flatten)]
        options: WatchOptions,
    },
    /// Lists present and former connections
    Connections(ListOptions),
    /// Summarizes registered memory by endpoint, or by process if there are many endpoints
    #[command(args_override_self = true)]
    Windows {
        #[command(flatten)]
        options: ListOptions,
        /// List each window
        #[arg(long)]
        all: bool,
    },
    /// Lists nodes, segments, connections, mappings and interrupts of SISCI
    Sisci(SisciOptions),
    /// Measures the response times of the processes of a node
    #[command(args_override_self = true)]
    Ping {
        /// Number of the node
        node: u16,
        /// Number of queries, one per second
        #[arg(long, value_name = "N", require_equals = true, default_value_t = 4)]
        count: u64,
        /// Print one JSON document per line
        #[arg(long)]
        json: bool,
    },
    /// Measures the bandwidth to a `bw --serve`, or to one that it starts
    Bw(BandwidthOptions),
    /// Loses or restores a node
    #[command(subcommand)]
    Node(NodeCommand),
    /// Checks this system, its MPIs and their settings; exit status 0: ok, 1: slower, 2: broken,
    /// 3: failed
    Doctor(DoctorOptions),
    /// Summarizes the files of FI_SCIF_STATS=json in tables and a drawing
    Report(ReportOptions),
    /// Shows the events of FI_SCIF_TRACE, of processes or files
    Trace(TraceOptions),
    /// Part of a check that needs its own process
    #[command(subcommand, hide = true)]
    Probe(Probe),
}

#[derive(Debug, clap::Args)]
#[command(args_override_self = true)]
pub(crate) struct DoctorOptions {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
    /// Read the files of the kernel below DIR, for tests
    #[arg(long, value_name = "DIR", require_equals = true, default_value = "/", hide = true)]
    pub(crate) root: PathBuf,
}

#[derive(Debug, clap::Args)]
#[command(args_override_self = true)]
pub(crate) struct ReportOptions {
    /// Files scif-stats.PID.json of one job
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// File of the drawing
    #[arg(long, value_name = "FILE", require_equals = true, default_value = "scif-report.svg")]
    pub(crate) svg: PathBuf,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(args_override_self = true)]
pub(crate) struct TraceOptions {
    /// Processes by their numbers, also stopped or hung ones, and files FILE.PID
    #[arg(required = true, value_name = "PID|FILE")]
    pub(crate) sources: Vec<String>,
    /// Write the JSON format of Chrome, for ui.perfetto.dev
    #[arg(long)]
    pub(crate) perfetto: bool,
    /// Copy the trace as it is, into a file that this command can read
    #[arg(long, conflicts_with = "perfetto")]
    pub(crate) raw: bool,
    /// File for the output, instead of the standard output stream
    #[arg(long, value_name = "FILE", require_equals = true)]
    pub(crate) output: Option<PathBuf>,
    /// Number of events listed, the last ones of all sources
    #[arg(long, value_name = "N", require_equals = true, default_value_t = 100)]
    pub(crate) last: usize,
}

/// Process of the doctor.
#[derive(Debug, Subcommand)]
pub(crate) enum Probe {
    /// Keep memory for another process to read
    Memory {
        #[arg(long)]
        ptracer: bool,
    },
    /// Measure latency and bandwidth between two processors
    Speed { first: usize, second: usize },
    /// Be the other side of this measurement
    Serve { domain: String },
    /// Load a libfabric and list its providers
    Libfabric { file: String },
    /// Load a SISCI library and ask it for its node
    Sisci { file: String },
    /// Copy memory of another process
    Copy { pid: i32, address: u64 },
}

#[derive(Debug, Subcommand)]
#[command(flatten_help = true, disable_help_subcommand = true)]
pub(crate) enum NodeCommand {
    /// Ends all connections of a node; it stays lost until it is restored
    Lose {
        /// Number of the node
        node: u16,
    },
    /// Keeps a node lost; `lose` starts it.
    #[command(hide = true)]
    Hold { node: u16 },
    /// Makes a lost node usable again
    Restore {
        /// Number of the node
        node: u16,
    },
}

#[derive(Debug, clap::Args)]
#[command(args_override_self = true)]
pub(crate) struct WatchOptions {
    /// Print one JSON document per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Repeat every S seconds
    #[arg(long, visible_alias = "live", value_name = "S", num_args = 0..=1, require_equals = true,
          default_missing_value = "1", value_parser = interval)]
    pub(crate) watch: Option<f64>,
    /// Number of repetitions with --watch [default: no limit]
    #[arg(long, value_name = "N", require_equals = true)]
    pub(crate) count: Option<u64>,
}

#[derive(Debug, clap::Args)]
#[command(args_override_self = true)]
pub(crate) struct ListOptions {
    /// Print one JSON document per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Repeat every S seconds, with rates per second for connections
    #[arg(long, visible_alias = "watch", value_name = "S", num_args = 0..=1, require_equals = true,
          default_missing_value = "1", value_parser = interval)]
    pub(crate) live: Option<f64>,
    /// Number of repetitions with --live [default: no limit]
    #[arg(long, value_name = "N", require_equals = true)]
    pub(crate) count: Option<u64>,
    /// Show only this node
    #[arg(long, value_name = "N", require_equals = true)]
    pub(crate) node: Option<u16>,
}

/// List of SISCI objects.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum SisciList {
    Nodes,
    Segments,
    Connections,
    Maps,
    Interrupts,
}

#[derive(Debug, clap::Args)]
#[command(args_override_self = true)]
pub(crate) struct SisciOptions {
    /// List to show [default: all]
    #[arg(value_name = "LIST")]
    pub(crate) list: Option<SisciList>,
    #[command(flatten)]
    pub(crate) watch: WatchOptions,
    /// Show only this SISCI node
    #[arg(long, value_name = "N", require_equals = true)]
    pub(crate) node: Option<u32>,
}

#[derive(Debug, clap::Args)]
#[command(args_override_self = true)]
pub(crate) struct BandwidthOptions {
    /// Address of a `bw --serve`, as it prints it
    #[arg(value_name = "NODE:PORT", value_parser = port_id)]
    pub(crate) to: Option<PortId>,
    /// Be the server; without PORT, or with 0, at a free port, which is printed
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true,
          default_missing_value = "0", conflicts_with_all = ["to", "max", "progress", "json"])]
    pub(crate) serve: Option<u16>,
    /// Size of the largest transfer
    #[arg(long, value_name = "BYTES", require_equals = true, default_value_t = 4 << 20,
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=1 << 30))]
    pub(crate) max: usize,
    /// Show a progress bar even if the standard error stream is no terminal
    #[arg(long)]
    pub(crate) progress: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

fn interval(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.01..=86400.0).contains(seconds))
        .ok_or_else(|| "not between 0.01 and 86400 seconds".to_owned())
}

/// Parses the form `NODE:PORT`.
pub(crate) fn port_id(text: &str) -> Result<PortId, String> {
    text.split_once(':')
        .and_then(|(node, port)| Some(PortId::new(node.parse().ok()?, port.parse().ok()?)))
        .ok_or_else(|| "not of the form NODE:PORT".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    fn parse(line: &str) -> Result<Command, ErrorKind> {
        let words = std::iter::once("scifctl").chain(line.split_whitespace());
        match Args::try_parse_from(words) {
            Ok(args) => Ok(args.command),
            Err(error) => Err(error.kind()),
        }
    }

    #[test]
    fn valid_lines_are_parsed() {
        assert!(matches!(parse("nodes --json"), Ok(Command::Nodes(options)) if options.json));
        let last = parse("nodes --json --count=2 --json --count=3");
        assert!(matches!(last, Ok(Command::Nodes(options)) if options.count == Some(3)));
        assert!(matches!(parse("windows --all --all"), Ok(Command::Windows { all: true, .. })));
        assert!(matches!(parse("ping 3 --count=2 --count=3"), Ok(Command::Ping { count: 3, .. })));
        assert_eq!(parse("nodes --version").err(), Some(ErrorKind::DisplayVersion));
        assert!(matches!(parse("ping 3"), Ok(Command::Ping { node: 3, count: 4, json: false })));
        let to = PortId::new(1, 2050);
        assert!(matches!(
            parse("bw 1:2050 --max=4096"),
            Ok(Command::Bw(options)) if options.to == Some(to) && options.max == 4096
        ));
        for (line, port) in [("bw --serve", 0), ("bw --serve=2050", 2050)] {
            assert!(matches!(parse(line), Ok(Command::Bw(options)) if options.serve == Some(port)));
        }
        assert!(matches!(parse("node lose 2"), Ok(Command::Node(NodeCommand::Lose { node: 2 }))));
        assert!(matches!(parse("windows --all"), Ok(Command::Windows { all: true, .. })));
        assert!(matches!(parse("nodes --live"), Ok(Command::Nodes(o)) if o.live == Some(1.0)));
        let Ok(Command::Windows { options, all }) = parse("windows --live=0.5 --count=3") else {
            panic!("not parsed");
        };
        assert_eq!((options.live, options.count, all), (Some(0.5), Some(3), false));
        assert!(matches!(parse("nodes --node=7"), Ok(Command::Nodes(o)) if o.node == Some(7)));
        assert!(
            matches!(parse("dump 7 --json"), Ok(Command::Dump { pid: 7, options }) if options.json)
        );
        for line in ["job --watch=0.5 --count=3", "top --live=0.5 --count=3"] {
            let Ok(Command::Job(options) | Command::Top(options)) = parse(line) else {
                panic!("not parsed: {line}");
            };
            assert_eq!((options.watch, options.count, options.json), (Some(0.5), Some(3), false));
        }
        let Ok(Command::Sisci(options)) = parse("sisci maps --node=8 --watch=0.5 --json") else {
            panic!("not parsed");
        };
        assert_eq!((options.list, options.node), (Some(SisciList::Maps), Some(8)));
        assert_eq!((options.watch.watch, options.watch.json), (Some(0.5), true));
        assert!(matches!(parse("sisci"), Ok(Command::Sisci(options)) if options.list.is_none()));
        for line in ["--help", "nodes --help", "node lose --help"] {
            assert_eq!(parse(line).err(), Some(ErrorKind::DisplayHelp), "{line}");
        }
        assert_eq!(parse("--version").err(), Some(ErrorKind::DisplayVersion));
    }

    #[test]
    fn the_doctor_reads_this_system() {
        let Ok(Command::Doctor(options)) = parse("doctor --json") else { panic!("not parsed") };
        assert!(options.json && options.root == std::path::Path::new("/"));
        assert!(parse("probe").is_err());
    }

    #[test]
    fn invalid_lines_are_refused() {
        for line in [
            "",
            "dance",
            "ping",
            "ping x",
            "ping 70000",
            "nodes --max=3",
            "nodes --live=0",
            "bw 1",
            "bw --max=0",
            "bw 1:2050 --serve",
            "bw --serve --json",
            "node lose",
            "node lose 1 2",
            "nodes --wide",
            "nodes --all",
            "node lose 1 --json",
            "doctor --live",
            "peers",
            "dump x",
            "job 3",
            "sisci ports",
            "sisci maps segments",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}

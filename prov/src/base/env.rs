// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! User settings: the parameters `FI_SCIF_*`, in one table, read once when the provider is loaded.
//!
//! The provider registers the parameters with the host (`fi_info -e`), which may also read them
//! from its configuration file. Without a host the environment is read. An invalid value is logged
//! once and ignored. The settings of the engine itself (`SCIF_*`) are elsewhere.
//!
//! No other file of the provider reads the environment.

use std::ffi::{CStr, CString, OsString, c_int};
use std::path::PathBuf;
use std::sync::OnceLock;

use libfabric_sys::{FI_EINVAL, FI_ENOSYS, FI_PARAM_BOOL, FI_PARAM_STRING, ParamValue};

use scif::launcher::{self, Launcher};
use scif::{MapPolicy, TransportKind};

use crate::base::host;
use crate::base::log::{Subsys, warn};
use crate::base::net_settings::{NetChoice, NetSettings};

/// Settings: the defaults of the table, or the values of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "plain configuration")]
pub(crate) struct Settings {
    /// Report of the counters.
    pub(crate) stats: StatsReport,
    /// Directory of the files of [`StatsReport::Json`].
    pub(crate) stats_dir: PathBuf,
    /// File of the trace, to which the process number is appended. Empty: no trace.
    pub(crate) trace: PathBuf,
    /// Whether Yama's restriction on the memory of this process is lifted if it prevents copies.
    pub(crate) ptracer: bool,
    /// Whether the death of a peer also fails receives from any source.
    pub(crate) peer_death_any: bool,
    /// Largest message, in bytes, that goes through the ring although direct access would be
    /// possible. [`EAGER_AUTO`]: it depends on the peer.
    pub(crate) eager_size: usize,
    /// Whether data is copied between processes by `process_vm_readv` and `process_vm_writev`.
    pub(crate) process_vm: bool,
    /// Whether large messages use the cooperative copy while both sides wait for them.
    pub(crate) coop_copy: bool,
    /// Nanoseconds for which a first connection to a port without listener is retried.
    pub(crate) connect_timeout_ns: u64,
    /// Nanoseconds for which closing a region waits for a peer that accesses it.
    pub(crate) mr_close_timeout_ns: u64,
    /// Whether memory that peers access frequently migrates to pages that they can map.
    pub(crate) migrate: bool,
    /// Shared memory of peers that is mapped when it is accessed frequently.
    pub(crate) map: MapPolicy,
    /// Path of short writes.
    pub(crate) rma: RmaPath,
    /// Transport of the connections.
    pub(crate) transport: TransportKind,
    /// Maximum number of bytes that the process keeps in unexpected messages.
    pub(crate) unexpected_max: usize,
    pub(crate) net: NetSettings,
}

/// Whether `FI_PROVIDER` excludes a provider (`^NAME,...`).
pub(crate) fn is_excluded(provider: &CStr) -> bool {
    std::env::var("FI_PROVIDER").is_ok_and(|list| excludes(&list, &provider.to_string_lossy()))
}

fn excludes(list: &str, provider: &str) -> bool {
    let names = list.trim().strip_prefix('^').unwrap_or_default();
    names.split(',').any(|name| name.trim().eq_ignore_ascii_case(provider))
}

/// Report of the counters of the endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StatsReport {
    #[default]
    None,
    /// Line on the standard error stream when an endpoint closes.
    Line,
    /// File of the process, with the traffic of each peer.
    Json,
}

/// Path of short writes to a target in another process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RmaPath {
    /// By the ring while the target polls, else directly.
    Auto,
    /// By the ring whenever possible. Writes that the target does not execute are withdrawn.
    Ring,
    /// Directly.
    #[default]
    Direct,
}

/// Value of the eager size that lets the duration of a direct copy decide.
pub(crate) const EAGER_AUTO: usize = usize::MAX;

/// Type of a parameter, and the field that it sets.
enum ParamKind {
    Bool(fn(&mut Settings) -> &mut bool),
    /// Report of the counters.
    Stats(fn(&mut Settings) -> &mut StatsReport),
    /// Path of a file or directory; `off`: an empty path.
    Path(fn(&mut Settings) -> &mut PathBuf),
    /// One of two words; the second sets the field to true.
    Choice(&'static str, &'static str, fn(&mut Settings) -> &mut bool),
    /// Shared memory that is mapped.
    Map(fn(&mut Settings) -> &mut MapPolicy),
    /// Path of short writes.
    Rma(fn(&mut Settings) -> &mut RmaPath),
    /// Transport of the connections.
    Transport(fn(&mut Settings) -> &mut TransportKind),
    /// Network to other hosts.
    Net(fn(&mut Settings) -> &mut NetChoice),
    /// Domain of that network.
    NetDomain(fn(&mut Settings) -> &mut NetSettings),
    /// Key of the job, which no line of the log contains.
    NetKey(fn(&mut Settings) -> &mut NetSettings),
    /// Number of bytes, with K, M or G for powers of 1024, or `auto`: [`EAGER_AUTO`].
    Size(fn(&mut Settings) -> &mut usize),
    /// Number of bytes as for [`ParamKind::Size`], or `auto`: a quarter of the memory that the
    /// process may have.
    Memory(fn(&mut Settings) -> &mut usize),
    /// Number of seconds or milliseconds, with its unit.
    Time(fn(&mut Settings) -> &mut u64),
}

struct Param {
    /// Name in lower case, without `FI_SCIF_`.
    name: &'static CStr,
    kind: ParamKind,
    default: &'static str,
    help: &'static str,
}

static TABLE: &[Param] = &[
    Param {
        name: c"stats",
        kind: ParamKind::Stats(|env| &mut env.stats),
        default: "0",
        help: "Report the counters: 1, a line on the standard error stream when an endpoint is \
               closed; 'json', a file for each process, with traffic by peer, for 'scifctl report'",
    },
    Param {
        name: c"stats_dir",
        kind: ParamKind::Path(|env| &mut env.stats_dir),
        default: ".",
        help: "Directory of the files scif-stats.PID.json of FI_SCIF_STATS=json",
    },
    Param {
        name: c"trace",
        kind: ParamKind::Path(|env| &mut env.trace),
        default: "off",
        help: "Record the last million protocol events of each process in memory, and write them \
               to this file, with the process number appended, at its exit; 'scifctl trace' reads \
               both",
    },
    Param {
        name: c"ptracer",
        kind: ParamKind::Bool(|env| &mut env.ptracer),
        default: "1",
        help: "Where Yama (kernel.yama.ptrace_scope) keeps processes of one user from copying each \
               other's memory, permit it for this process by PR_SET_PTRACER_ANY; otherwise large \
               messages take the slower way",
    },
    Param {
        name: c"peer_death",
        kind: ParamKind::Choice("matched", "any", |env| &mut env.peer_death_any),
        default: "matched",
        help: "Which receives fail when a peer dies: 'matched', those that the peer had begun to \
               fill or that name it; 'any', also those open to any source",
    },
    Param {
        name: c"eager_size",
        kind: ParamKind::Size(|env| &mut env.eager_size),
        default: "auto",
        help: "Largest message in bytes, at most 16K, that is copied through the ring, twice but \
               without waiting for the receiver; longer ones are copied once, from memory to \
               memory, or where that is denied, through the ring after the receiver has asked for \
               them. 'auto' is 4K to 16K, the more the longer a system call that copies takes",
    },
    Param {
        name: c"process_vm",
        kind: ParamKind::Bool(|env| &mut env.process_vm),
        default: "1",
        help: "Copy large messages by process_vm_readv and process_vm_writev where the system \
               permits it",
    },
    Param {
        name: c"both_sides",
        kind: ParamKind::Bool(|env| &mut env.coop_copy),
        default: "1",
        help: "Let sender and receiver both copy parts of a large message while both wait for it",
    },
    Param {
        name: c"unexpected_max",
        kind: ParamKind::Memory(|env| &mut env.unexpected_max),
        default: "auto",
        help: "Bytes of messages that came before their receives and are kept by the process; one \
               peer may have half of them. Beyond, the connection of the peer that has the most is \
               reset with FI_ENOMEM. 'auto' is a quarter of the memory that the process may have",
    },
    Param {
        name: c"connect_timeout",
        kind: ParamKind::Time(|env| &mut env.connect_timeout_ns),
        default: "3s",
        help: "Time for which operations to an address without a listener are retried before they \
               fail with FI_ECONNREFUSED, such as 3s or 200ms",
    },
    Param {
        name: c"mr_close_timeout",
        kind: ParamKind::Time(|env| &mut env.mr_close_timeout_ns),
        default: "10s",
        help: "Time for which closing a memory region waits for a living peer in the middle of an \
               access, before the connection to that peer is reset, such as 10s or 500ms",
    },
    Param {
        name: c"mr_migrate",
        kind: ParamKind::Choice("never", "auto", |env| &mut env.migrate),
        default: "never",
        help: "Whether frequently accessed registered memory migrates to pages that peers can map: \
               'never'; 'auto', while it is registered, and only whole pages of plain private \
               memory. Not for programs in which another device or library pins the same pages",
    },
    Param {
        name: c"map",
        kind: ParamKind::Map(|env| &mut env.map),
        default: "sealed",
        help: "Registered memory of peers that is mapped here when it is accessed frequently: \
               'off', none; 'sealed', shared memory that cannot shrink; 'auto', also unsealed \
               memfds and files in /dev/shm. A process that truncates one ends those that access \
               it",
    },
    Param {
        name: c"rma",
        kind: ParamKind::Rma(|env| &mut env.rma),
        default: "auto",
        help: "Path of writes up to 64 KiB and short reads: 'auto', by the ring while the target \
               polls, else directly; 'ring', by the ring also if it is silent; 'direct'. One that \
               the target does not execute in time is withdrawn and done directly",
    },
    Param {
        name: c"transport",
        kind: ParamKind::Transport(|env| &mut env.transport),
        default: "soft",
        help: "Transport of connections: 'soft', memory that the processes of one host share; \
               'scif', the calls of scif.h, over a driver or without (SCIF_TRANSPORT), not \
               complete yet; 'kernel', the SCIF driver, also between its nodes; 'sisci', a SISCI \
               library, also between its nodes; 'auto', the driver if there is one that works",
    },
    Param {
        name: c"net",
        kind: ParamKind::Net(|env| &mut env.net.choice),
        default: "auto",
        help: "Provider of libfabric that carries messages to other hosts: 'none', all peers are \
               on this host; 'tcp', libfabric 1.18 and later; 'net', the same of libfabric 1.17; \
               'auto', one of both if the launcher has ranks on other hosts, else none. Others, \
               such as 'tcp;ofi_rxm', need FI_PROVIDER='scif,tcp;scif'. Only with \
               FI_SCIF_TRANSPORT=soft",
    },
    Param {
        name: c"net_domain",
        kind: ParamKind::NetDomain(|env| &mut env.net),
        default: "any",
        help: "Domain of the provider of FI_SCIF_NET, such as the network interface eth0. 'any': \
               its first one",
    },
    Param {
        name: c"net_key",
        kind: ParamKind::NetKey(|env| &mut env.net),
        default: "none",
        help: "Key of the job, a text that all processes have. Peers on other hosts with another \
               key, or without one, are refused. 'none': everybody who reaches an endpoint can \
               connect to it",
    },
    Param {
        name: c"net_timeout",
        kind: ParamKind::Time(|env| &mut env.net.timeout_ns),
        default: "2s",
        help: "Time for which the network may refuse messages to a peer on another host that has \
               answered before. Then the peer counts as dead, such as 2s or 500ms",
    },
    Param {
        name: c"net_silence",
        kind: ParamKind::Time(|env| &mut env.net.silence_ns),
        default: "0s",
        help: "Time for which a peer on another host may leave pings unanswered while an operation \
               waits for it. Then it counts as dead, even if it computes or is stopped. '0s': no \
               limit; the disappearance of a host is noticed when the network notices it",
    },
];

/// Returns the settings of this process.
pub(crate) fn env() -> &'static Settings {
    static ENV: OnceLock<Settings> = OnceLock::new();
    ENV.get_or_init(|| {
        let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        for unknown in scif::unknown_settings("FI_SCIF_", &names(), set) {
            warn(Subsys::Core, format_args!("{unknown}"));
        }
        let mut settings = read(query, |name, value, wanted| {
            warn(
                Subsys::Core,
                format_args!("FI_SCIF_{name}={value}: invalid, default used. Set {wanted}"),
            );
        });
        let spans_hosts = || launcher::spans_hosts(|name| std::env::var(name).ok());
        settings.net.choice = settings.net.choice.settle(spans_hosts);
        settings
    })
}

/// Returns the place of this process in its job.
pub(crate) fn launcher() -> Launcher {
    launcher::place(|name| std::env::var(name).ok())
}

/// Returns the name of a parameter in the environment.
fn variable(param: &Param) -> String {
    format!("FI_SCIF_{}", param.name.to_string_lossy().to_ascii_uppercase())
}

fn names() -> Vec<String> {
    TABLE.iter().map(variable).collect()
}

/// Registers the parameters with the host and reads them.
pub(crate) fn init() {
    env();
}

/// Value of a parameter as set by the user.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ParamAnswer {
    Nothing,
    Text(String),
    Bool(bool),
    /// Invalid value that the host has rejected and logged.
    Refused,
}

fn query(param: &Param) -> ParamAnswer {
    let kind = match param.kind {
        ParamKind::Bool(_) => FI_PARAM_BOOL,
        ParamKind::Choice(..)
        | ParamKind::Stats(_)
        | ParamKind::Path(_)
        | ParamKind::Transport(_)
        | ParamKind::Map(_)
        | ParamKind::Rma(_)
        | ParamKind::Net(_)
        | ParamKind::NetDomain(_)
        | ParamKind::NetKey(_)
        | ParamKind::Size(_)
        | ParamKind::Memory(_)
        | ParamKind::Time(_) => FI_PARAM_STRING,
    };
    let help =
        CString::new(format!("{} (default: {})", param.help, param.default)).unwrap_or_default();
    let environment = || std::env::var_os(variable(param));
    if matches!(param.kind, ParamKind::NetKey(_)) {
        host::define_secret(param.name, kind, &help);
        return answer_of(Err(FI_ENOSYS), environment);
    }
    answer_of(host::param(param.name, kind, &help), environment)
}

fn answer_of(
    answer: Result<ParamValue, c_int>,
    environment: impl FnOnce() -> Option<OsString>,
) -> ParamAnswer {
    match answer {
        Ok(ParamValue::Bool(value)) => ParamAnswer::Bool(value),
        Ok(ParamValue::String(text)) => ParamAnswer::Text(text.to_string_lossy().into_owned()),
        Ok(ParamValue::Int(_) | ParamValue::Size(_)) => ParamAnswer::Nothing,
        Err(FI_EINVAL) => ParamAnswer::Refused,
        Err(FI_ENOSYS) => environment().map_or(ParamAnswer::Nothing, |text| {
            ParamAnswer::Text(text.to_string_lossy().into_owned())
        }),
        Err(_) => ParamAnswer::Nothing,
    }
}

fn read(query: impl Fn(&Param) -> ParamAnswer, complain: impl Fn(&str, &str, &str)) -> Settings {
    let mut env = Settings {
        stats: StatsReport::None,
        stats_dir: PathBuf::new(),
        trace: PathBuf::new(),
        ptracer: false,
        peer_death_any: false,
        eager_size: 0,
        process_vm: false,
        coop_copy: false,
        connect_timeout_ns: 0,
        mr_close_timeout_ns: 0,
        migrate: false,
        map: MapPolicy::Off,
        rma: RmaPath::Direct,
        transport: TransportKind::Soft,
        unexpected_max: 0,
        net: NetSettings::default(),
    };
    for param in TABLE {
        let set = set(param, &mut env, param.default);
        debug_assert_eq!(set, Ok(()), "the table's own defaults can be used");
        match query(param) {
            ParamAnswer::Nothing | ParamAnswer::Refused => {}
            ParamAnswer::Bool(value) => {
                if let ParamKind::Bool(field) = param.kind {
                    *field(&mut env) = value;
                }
            }
            ParamAnswer::Text(text) => {
                if let Err(wanted) = self::set(param, &mut env, text.trim()) {
                    complain(&param.name.to_string_lossy().to_ascii_uppercase(), &text, &wanted);
                }
            }
        }
    }
    env
}

/// # Errors
/// Description of the valid values.
fn set(param: &Param, env: &mut Settings, text: &str) -> Result<(), String> {
    match param.kind {
        ParamKind::Bool(field) => *field(env) = parse_bool(text).ok_or("0 or 1")?,
        ParamKind::Stats(field) => {
            *field(env) = match parse_bool(text) {
                Some(false) => StatsReport::None,
                Some(true) => StatsReport::Line,
                None if text.eq_ignore_ascii_case("json") => StatsReport::Json,
                None => return Err("0, 1 or 'json'".to_owned()),
            }
        }
        ParamKind::Path(field) => {
            *field(env) = PathBuf::from(if text.eq_ignore_ascii_case("off") { "" } else { text })
        }
        ParamKind::Choice(no, yes, field) => {
            *field(env) = match text {
                _ if text.eq_ignore_ascii_case(yes) => true,
                _ if text.eq_ignore_ascii_case(no) => false,
                _ => return Err(format!("'{no}' or '{yes}'")),
            }
        }
        ParamKind::Map(field) => {
            *field(env) = match text {
                _ if text.eq_ignore_ascii_case("off") => MapPolicy::Off,
                _ if text.eq_ignore_ascii_case("sealed") => MapPolicy::Sealed,
                _ if text.eq_ignore_ascii_case("auto") => MapPolicy::Auto,
                _ => return Err("'off', 'sealed' or 'auto'".to_owned()),
            }
        }
        ParamKind::Rma(field) => {
            *field(env) = match text {
                _ if text.eq_ignore_ascii_case("auto") => RmaPath::Auto,
                _ if text.eq_ignore_ascii_case("ring") => RmaPath::Ring,
                _ if text.eq_ignore_ascii_case("direct") => RmaPath::Direct,
                _ => return Err("'auto', 'ring' or 'direct'".to_owned()),
            }
        }
        ParamKind::Transport(field) => {
            *field(env) =
                parse_transport(text).ok_or("'soft', 'scif', 'kernel', 'sisci' or 'auto'")?
        }
        ParamKind::Net(field) => {
            *field(env) = match text {
                _ if text.eq_ignore_ascii_case("none") => NetChoice::None,
                _ if text.eq_ignore_ascii_case("auto") => NetChoice::Auto,
                _ => NetChoice::named(&text.to_ascii_lowercase())
                    .ok_or("'auto', 'none' or the name of a provider such as 'tcp'")?,
            }
        }
        ParamKind::NetDomain(field) => field(env).set_domain(text)?,
        ParamKind::NetKey(field) => field(env).set_key(text),
        ParamKind::Size(field) => {
            *field(env) = match text {
                _ if text.eq_ignore_ascii_case("auto") => EAGER_AUTO,
                _ => parse_size(text).ok_or("'auto' or a number of bytes such as 16384 or 16K")?,
            }
        }
        ParamKind::Memory(field) => {
            *field(env) = match text {
                _ if text.eq_ignore_ascii_case("auto") => auto_memory(),
                _ => parse_size(text).ok_or("'auto' or a number of bytes such as 1G")?,
            }
        }
        ParamKind::Time(field) => {
            *field(env) = parse_time(text).ok_or("a time such as 3s or 200ms")?
        }
    }
    Ok(())
}

fn parse_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "yes" | "on" | "true" | "y" => Some(true),
        "0" | "no" | "off" | "false" | "n" => Some(false),
        _ => None,
    }
}

fn parse_transport(text: &str) -> Option<TransportKind> {
    match text.to_ascii_lowercase().as_str() {
        "soft" => Some(TransportKind::Soft),
        "kernel" => Some(TransportKind::Kernel),
        "scif" => Some(TransportKind::Scif),
        "sisci" => Some(TransportKind::Sisci),
        "auto" => Some(TransportKind::Auto),
        _ => None,
    }
}

fn parse_size(text: &str) -> Option<usize> {
    let (digits, unit) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (text.get(..at)?, 1 << 10),
        (at, 'm' | 'M') => (text.get(..at)?, 1 << 20),
        (at, 'g' | 'G') => (text.get(..at)?, 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

/// Returns a quarter of the memory limit, and leaves three quarters to the program. Programs with
/// more unexpected messages than that rarely end well anyway.
fn auto_memory() -> usize {
    usize::try_from(scif::memory_limit() / 4).unwrap_or(usize::MAX)
}

fn parse_time(text: &str) -> Option<u64> {
    let (digits, unit_ns) = match text.strip_suffix("ms") {
        Some(digits) => (digits, 1_000_000),
        None => (text.strip_suffix('s')?, 1_000_000_000),
    };
    digits.trim_end().parse::<u64>().ok()?.checked_mul(unit_ns)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use scif::JobKey;

    use super::*;
    use crate::base::net_settings::PROVIDER_NAME_MAX;

    /// Checks that the manual page has every parameter with its default, and no other.
    #[test]
    fn the_manual_page_has_the_table() {
        let page = include_str!("../../../man/fi_scif.7");
        let section = page
            .split(".SH RUNTIME PARAMETERS\n")
            .nth(1)
            .and_then(|rest| rest.split(".SH ").next())
            .unwrap();
        let entries: Vec<&str> = section.split(".TP\n").skip(1).collect();
        assert_eq!(entries.len(), TABLE.len());
        for param in TABLE {
            let name = param.name.to_str().unwrap().to_ascii_uppercase();
            let head = format!(".B FI_SCIF_{name}\n");
            let entry = entries.iter().find(|e| e.starts_with(&head)).unwrap();
            let text: Vec<&str> = entry.split_whitespace().collect();
            let default = param.default;
            assert!(
                text.join(" ").contains(&format!("Default {default}."))
                    || text.windows(2).any(|w| w == [default, "(default)"]),
                "{name}: {entry}"
            );
        }
    }

    fn with(values: &[(&str, &str)]) -> (Settings, Vec<String>) {
        let complaints = RefCell::new(Vec::new());
        let env = read(
            |param| {
                let name = param.name.to_str().unwrap();
                values
                    .iter()
                    .find(|(n, _)| *n == name)
                    .map_or(ParamAnswer::Nothing, |(_, v)| ParamAnswer::Text((*v).to_owned()))
            },
            |name, _, _| complaints.borrow_mut().push(name.to_owned()),
        );
        (env, complaints.into_inner())
    }

    #[test]
    fn defaults_apply_without_settings() {
        let (env, complaints) = with(&[]);
        assert!(complaints.is_empty());
        assert!(
            env.stats == StatsReport::None
                && env.ptracer
                && !env.peer_death_any
                && env.process_vm
                && env.coop_copy
        );
        assert_eq!(
            (env.eager_size, env.transport, env.migrate),
            (EAGER_AUTO, TransportKind::Soft, false)
        );
        assert_eq!(
            (env.connect_timeout_ns, env.mr_close_timeout_ns),
            (3_000_000_000, 10_000_000_000)
        );
        assert_eq!((env.net.timeout_ns, env.net.silence_ns), (2_000_000_000, 0));
        assert_eq!((env.net.domain, env.net.key), (None, None));
    }

    #[test]
    fn values_are_taken_with_their_units() {
        let (env, complaints) = with(&[
            ("stats", "yes"),
            ("ptracer", "off"),
            ("peer_death", "ANY"),
            ("eager_size", " 2k "),
            ("connect_timeout", "200ms"),
            ("mr_close_timeout", "2 s"),
            ("net_timeout", "5s"),
            ("net_silence", "90s"),
            ("net_domain", "eth0"),
            ("net_key", " some words "),
            ("transport", "Kernel"),
            ("mr_migrate", "Auto"),
            ("map", "Auto"),
            ("unexpected_max", "64M"),
        ]);
        assert!(complaints.is_empty());
        assert_eq!((env.map, with(&[]).0.map), (MapPolicy::Auto, MapPolicy::Sealed));
        assert_eq!(env.stats, StatsReport::Line);
        assert_eq!(with(&[("stats", "JSON")]).0.stats, StatsReport::Json);
        assert!(env.migrate && !env.ptracer && env.peer_death_any);
        assert_eq!((env.eager_size, env.transport), (2048, TransportKind::Kernel));
        assert_eq!(env.unexpected_max, 64 << 20);
        assert_eq!((env.connect_timeout_ns, env.mr_close_timeout_ns), (200_000_000, 2_000_000_000));
        assert_eq!((env.net.timeout_ns, env.net.silence_ns), (5_000_000_000, 90_000_000_000));
        assert_eq!((env.net.domain, env.net.key), (Some(c"eth0"), JobKey::new("some words")));
        assert!(!format!("{env:?}").contains("words"), "no log has the key");
    }

    #[test]
    fn invalid_values_are_logged_once_and_change_nothing() {
        let (env, complaints) = with(&[
            ("stats", "perhaps"),
            ("peer_death", "some"),
            ("eager_size", "16X"),
            ("process_vm", ""),
            ("connect_timeout", "3"),
            ("transport", "pcie"),
        ]);
        assert_eq!(env, with(&[]).0);
        assert_eq!(
            complaints,
            ["STATS", "PEER_DEATH", "EAGER_SIZE", "PROCESS_VM", "CONNECT_TIMEOUT", "TRANSPORT"]
        );
    }

    #[test]
    fn a_network_is_named_by_its_provider() {
        for (text, name) in [("TCP", c"tcp"), ("tcp;ofi_rxm", c"tcp;ofi_rxm"), ("x-1", c"x-1")] {
            let (env, complaints) = with(&[("net", text)]);
            assert_eq!((env.net.choice.providers(), complaints.len()), (&[name][..], 0));
        }
        for text in ["", "tcp;", ";ofi_rxm", "tcp ofi", "7", &"t".repeat(PROVIDER_NAME_MAX + 1)] {
            let (env, complaints) = with(&[("net", text)]);
            assert_eq!(env.net.choice, NetChoice::Auto, "{text}");
            assert_eq!(complaints, ["NET"], "{text}");
        }
    }

    #[test]
    fn providers_are_excluded_by_name() {
        for (list, excluded) in [("^tcp", true), ("^efa, TCP", true), ("^tcp;ofi_rxm", false)] {
            assert_eq!(excludes(list, "tcp"), excluded, "{list}");
        }
        assert!(!excludes("scif,tcp", "tcp") && !excludes("", "tcp"));
    }

    #[test]
    fn sizes() {
        for (text, size) in [
            ("0", Some(0)),
            ("1M", Some(1 << 20)),
            ("2g", Some(2 << 30)),
            ("k", None),
            ("-1", None),
        ] {
            assert_eq!(parse_size(text), size, "{text}");
        }
        assert_eq!(parse_size("99999999999999999999"), None);
        assert_eq!(parse_size("17179869184G"), None);
    }

    #[test]
    fn times_have_a_unit() {
        for (text, ns) in [
            ("0s", Some(0)),
            ("15ms", Some(15_000_000)),
            ("4s", Some(4_000_000_000)),
            ("4", None),
            ("s", None),
            ("-1s", None),
            ("1h", None),
            ("99999999999s", None),
        ] {
            assert_eq!(parse_time(text), ns, "{text}");
        }
    }

    #[test]
    fn environment_is_read_without_a_host_only() {
        let environment = || Some(OsString::from("1"));
        assert_eq!(answer_of(Err(FI_ENOSYS), environment), ParamAnswer::Text("1".to_owned()));
        assert_eq!(answer_of(Err(libfabric_sys::FI_ENODATA), environment), ParamAnswer::Nothing);
        assert_eq!(answer_of(Err(FI_EINVAL), environment), ParamAnswer::Refused);
        assert_eq!(answer_of(Ok(ParamValue::Bool(false)), environment), ParamAnswer::Bool(false));
    }
}

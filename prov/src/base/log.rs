// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Messages to the user, in the host's log, including the messages of the engine.
//!
//! `FI_LOG_LEVEL`, `FI_LOG_PROV` and `FI_LOG_SUBSYS` select the lines that are printed. Without a
//! host there is no log. The data path logs nothing except lines that appear once.
//!
//! No line can flood the log. [`warn`] and [`info`] are for lines that cannot repeat without limit:
//! once for each object, or once for each cause (`scif::logging::OnceEach`). A line that a peer can
//! cause uses [`warn_about_peer`] or [`info_about_peer`], a line about a refused call uses
//! [`about_call`]. These have a limited number per second, shared with the engine's lines.
//! Suppressed lines are counted and reported by one line.
//!
//! Mirrors `rdma/providers/fi_log.h`.

use std::ffi::{CStr, CString, OsStr, c_int};
use std::fmt;
use std::io::Write;
use std::panic::Location;
use std::path::Path;
use std::sync::Once;

use libfabric_sys as fi;
use scif::logging::{Budget, CALLS, OnceEach, PEERS};
use scif::{Access, AccessError, Connection, Denial, DenialCause, Node, PortId, keep_errno};

use crate::base::host;

/// Subject of a message: the values of `enum fi_log_subsys` that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subsys {
    Core,
    Fabric,
    EpCtrl,
    EpData,
    Av,
    Mr,
}

impl Subsys {
    const ALL: [Subsys; 6] =
        [Subsys::Core, Subsys::Fabric, Subsys::EpCtrl, Subsys::EpData, Subsys::Av, Subsys::Mr];

    fn number(self) -> u32 {
        match self {
            Subsys::Core => fi::FI_LOG_CORE,
            Subsys::Fabric => fi::FI_LOG_FABRIC,
            Subsys::EpCtrl => fi::FI_LOG_EP_CTRL,
            Subsys::EpData => fi::FI_LOG_EP_DATA,
            Subsys::Av => fi::FI_LOG_AV,
            Subsys::Mr => fi::FI_LOG_MR,
        }
    }

    /// Returns the subsystem of a module of the engine, by its path.
    fn of_target(target: &str) -> Subsys {
        match target.split("::").nth(1) {
            Some("endpoint" | "connection" | "transport" | "life" | "segment") => Subsys::EpCtrl,
            Some("memory" | "keys") => Subsys::Mr,
            Some("node" | "config" | "addr") => Subsys::Fabric,
            _ => Subsys::Core,
        }
    }
}

/// Logs at warn a fact that the user should act on or know.
#[track_caller]
#[cold]
pub(crate) fn warn(subsys: Subsys, text: fmt::Arguments<'_>) {
    log_at(fi::FI_LOG_WARN, subsys, text, Location::caller());
}

/// Logs at info a fact that explains a decision; at most one line per object, none per operation.
#[track_caller]
#[cold]
pub(crate) fn info(subsys: Subsys, text: fmt::Arguments<'_>) {
    log_at(fi::FI_LOG_INFO, subsys, text, Location::caller());
}

/// Logs at warn a line that a peer can cause: at most 10 lines a second.
#[track_caller]
#[cold]
pub(crate) fn warn_about_peer(subsys: Subsys, text: fmt::Arguments<'_>) {
    log_within(&PEERS, fi::FI_LOG_WARN, subsys, text, Location::caller());
}

/// Logs at info a line that a peer can cause: from the same 10 lines a second as
/// [`warn_about_peer`].
#[track_caller]
#[cold]
pub(crate) fn info_about_peer(subsys: Subsys, text: fmt::Arguments<'_>) {
    log_within(&PEERS, fi::FI_LOG_INFO, subsys, text, Location::caller());
}

/// Logs a line about a refused call: the first 64 lines, then at most 10 lines a
/// second.
#[track_caller]
#[cold]
pub(crate) fn about_call(level: u32, subsys: Subsys, text: fmt::Arguments<'_>) {
    log_within(&CALLS, level, subsys, text, Location::caller());
}

/// Returns whether the host prints warnings of any subsystem.
pub(crate) fn prints_warnings() -> bool {
    Subsys::ALL.iter().any(|subsys| host::log_enabled(fi::FI_LOG_WARN, subsys.number()))
}

/// Reports the lines that were suppressed and that no later line has reported: at the end of a
/// domain.
#[track_caller]
#[cold]
pub(crate) fn settle() {
    let place = Location::caller();
    for budget in [&PEERS, &CALLS] {
        budget.settle(|report| log_at(fi::FI_LOG_WARN, Subsys::Core, report, place));
    }
}

/// Logs at warn that the kernel denies direct copies with a peer, whose data goes through the ring.
/// Once for each cause.
#[cold]
pub(crate) fn no_direct_copy(peer: PortId, denial: &Denial) {
    static LOGGED: OnceEach<DenialCause> = OnceEach::new(16);
    if LOGGED.first(denial.cause()) {
        warn(
            Subsys::EpData,
            format_args!(
                "no direct copy with {peer}: its large messages and RMA go through the ring, in \
                 two copies instead of one, and slower. {denial}"
            ),
        );
    }
}

/// Logs at info the copy path of the first peer, and of the first one with another path.
/// `process_vm`: the user has not disabled direct copies.
#[cold]
pub(crate) fn first_peer(conn: &Connection, process_vm: bool) {
    static LOGGED: OnceEach<&str> = OnceEach::new(4);
    let path = match conn.memory().access() {
        _ if conn.peer().network_name().is_some() => "read by the network, from memory to memory",
        Access::Mapped => "in memory of this process",
        Access::ProcessVm if process_vm => "copied once, by process_vm_readv and process_vm_writev",
        Access::ProcessVm => "copied twice, through the ring, by FI_SCIF_PROCESS_VM",
        Access::None => "copied twice, through the ring",
    };
    if LOGGED.first(path) {
        let why = conn.memory().denial().map(|denial| format!(". {denial}"));
        info(
            Subsys::EpCtrl,
            format_args!(
                "first peer with this copy path: process {} at {}, large messages and RMA {path}{}",
                conn.peer_pid(),
                conn.peer(),
                why.unwrap_or_default()
            ),
        );
    }
}

/// Logs at info that one direct copy has failed and its data goes through the ring. Once for each
/// cause.
#[cold]
pub(crate) fn fall_back(peer: PortId, pid: c_int, error: &AccessError) {
    static LOGGED: OnceEach<&str> = OnceEach::new(4);
    let cause = match error {
        // Logged with its cause by `no_direct_copy`.
        AccessError::Denied => return,
        AccessError::Fault => "bad address",
        AccessError::Gone => "no such process",
        AccessError::Short(_) => "short copy",
    };
    if LOGGED.first(cause) {
        info(
            Subsys::EpData,
            format_args!(
                "a direct copy with process {pid} at {peer} failed, {cause}: its data goes through \
                 the ring"
            ),
        );
    }
}

/// Logs at warn that no process listens at a port, after `waited_ns` of tries, or at the only try.
/// Once for each port, and for a few ports only. `whereabouts` returns advice on the check to make.
#[cold]
pub(crate) fn no_listener(
    peer: PortId,
    waited_ns: Option<u64>,
    whereabouts: impl FnOnce() -> String,
) {
    static LOGGED: OnceEach<PortId> = OnceEach::new(4);
    if !host::log_enabled(fi::FI_LOG_WARN, Subsys::EpCtrl.number()) || !LOGGED.first(peer) {
        return;
    }
    let text = whereabouts();
    let form = if peer.network_name().is_some() { "" } else { " (node:port)" };
    match waited_ns.map(|ns| ns / 1_000_000) {
        Some(waited) => warn(
            Subsys::EpCtrl,
            format_args!(
                "no process listens at {peer}{form}, tried for {waited} ms: sends to it fail with \
                 FI_ECONNREFUSED when FI_SCIF_CONNECT_TIMEOUT has passed. {text}"
            ),
        ),
        None => warn(
            Subsys::EpCtrl,
            format_args!(
                "no process listens at {peer}{form}: fi_connect fails with FI_ECONNREFUSED. {text}"
            ),
        ),
    }
}

/// Logs at warn the reason for which an address has no endpoint on this host. Once in a process.
///
/// `network`: provider that carries messages to other hosts where the user chooses it.
#[cold]
pub(crate) fn foreign_address(
    why: &dyn fmt::Display,
    node: &Node,
    network: impl FnOnce() -> &'static CStr,
) {
    static LOGGED: Once = Once::new();
    LOGGED.call_once(|| {
        let (user, settings) = (Node::user(), node.settings());
        let (host, network) = (scif::host_name(), network().to_string_lossy());
        warn(
            Subsys::Av,
            format_args!(
                "{why}. On {host} scif has opened no network to other hosts: FI_SCIF_NET is \
                 'none', or 'auto' and the launcher names no other host, as for a job that \
                 starts ranks later. Set FI_SCIF_NET={network} on all hosts, or choose another \
                 provider (FI_PROVIDER). This process (user {user}) has {settings}"
            ),
        );
    });
}

/// Logs a local error that prevents a connection to a peer. Once for each cause.
#[cold]
pub(crate) fn connect_failed(peer: PortId, why: &dyn fmt::Display, errno: c_int) {
    static LOGGED: OnceEach<c_int> = OnceEach::new(16);
    let advice = match errno {
        fi::FI_EMFILE => "; raise the limit of open files (ulimit -n)",
        fi::FI_ENOMEM | fi::FI_ENOSPC | fi::FI_ENOBUFS => {
            "; this process is out of memory or at its limit (ulimit -v, cgroup)"
        }
        fi::FI_EACCES => {
            "; run both as one user, or add to SCIF_ALLOW_UIDS of each process the user of the \
             other"
        }
        _ => "",
    };
    if LOGGED.first(errno) {
        warn(
            Subsys::EpCtrl,
            format_args!(
                "no connection to {peer}: {why}{advice}. Sends to it fail if that lasts for \
             FI_SCIF_CONNECT_TIMEOUT"
            ),
        );
    }
}

/// Prints a line of statistics (`FI_SCIF_STATS`) on the standard error stream, in one write so that
/// lines of several ranks do not mix.
#[cold]
pub(crate) fn stats_line(line: &str) {
    // A closed stream is no reason to fail.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

fn log_at(level: u32, subsys: Subsys, text: fmt::Arguments<'_>, place: &Location<'_>) {
    if host::log_enabled(level, subsys.number()) {
        send(level, subsys, text, place.file(), place.line());
    }
}

fn log_within(
    budget: &Budget,
    level: u32,
    subsys: Subsys,
    text: fmt::Arguments<'_>,
    place: &Location<'_>,
) {
    if host::log_enabled(level, subsys.number())
        && budget.allows(|report| log_at(fi::FI_LOG_WARN, Subsys::Core, report, place))
    {
        send(level, subsys, text, place.file(), place.line());
    }
}

fn send(level: u32, subsys: Subsys, text: fmt::Arguments<'_>, file: &str, line: u32) {
    // The host prints with the C library, which may change errno.
    keep_errno(|| {
        host::log(
            level,
            subsys.number(),
            &c_string(module(file)),
            line,
            &c_string(&text.to_string()),
        );
    });
}

/// Returns the name of the module in a file.
fn module(file: &str) -> &str {
    let path = Path::new(file);
    let own = path.file_stem().filter(|stem| *stem != "mod");
    let of_directory = || path.parent().and_then(Path::file_name);
    own.or_else(of_directory).and_then(OsStr::to_str).unwrap_or("scif")
}

/// Returns the text up to its first NUL.
fn c_string(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    text.get(..end).and_then(|text| CString::new(text).ok()).unwrap_or_default()
}

/// Receiver of the engine's messages from the `log` crate.
struct Bridge;

fn level(level: log::Level) -> u32 {
    match level {
        log::Level::Error | log::Level::Warn => fi::FI_LOG_WARN,
        log::Level::Info => fi::FI_LOG_INFO,
        log::Level::Debug => fi::FI_LOG_DEBUG,
        log::Level::Trace => fi::FI_LOG_TRACE,
    }
}

impl log::Log for Bridge {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        host::log_enabled(level(metadata.level()), Subsys::of_target(metadata.target()).number())
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            let subsys = Subsys::of_target(record.target());
            let file = record.file().unwrap_or("scif");
            send(level(record.level()), subsys, *record.args(), file, record.line().unwrap_or(0));
        }
    }

    fn flush(&self) {}
}

/// Connects the engine's messages with the host's log. Levels that the host does not print are not
/// formatted.
pub(crate) fn init() {
    // The first logger stays: a program that links this crate may have its own.
    if log::set_logger(&Bridge).is_ok() {
        let any = |level| Subsys::ALL.iter().any(|s| host::log_enabled(level, s.number()));
        log::set_max_level(if any(fi::FI_LOG_DEBUG) {
            log::LevelFilter::Debug
        } else if any(fi::FI_LOG_INFO) {
            log::LevelFilter::Info
        } else {
            log::LevelFilter::Warn
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_of_the_engine_have_a_subsystem() {
        assert_eq!(Subsys::of_target("scif::endpoint"), Subsys::EpCtrl);
        assert_eq!(Subsys::of_target("scif::transport::soft"), Subsys::EpCtrl);
        assert_eq!(Subsys::of_target("scif::memory"), Subsys::Mr);
        assert_eq!(Subsys::of_target("scif"), Subsys::Core);
    }

    #[test]
    fn files_are_named_by_module() {
        assert_eq!(module("prov/src/eq.rs"), "eq");
        assert_eq!(module("prov/src/getinfo/mod.rs"), "getinfo");
        assert_eq!(module(""), "scif");
    }

    #[test]
    fn text_ends_at_a_nul() {
        assert_eq!(c_string("abc").as_c_str(), c"abc");
        assert_eq!(c_string("a\0c").as_c_str(), c"a");
        assert_eq!(c_string("").as_c_str(), c"");
    }
}

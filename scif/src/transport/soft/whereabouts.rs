// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Explanation of a port without a listener: settings of this process, and listeners of the same
//! number that it cannot reach.
//!
//! The kernel lists the Unix sockets of a network namespace, including sockets of other domains,
//! directories and users. Not on the path of a successful connection.

use std::fmt::Write;
use std::path::Path;
use std::sync::Mutex;

use super::names::Names;
use super::wire::Build;
use crate::addr::PortId;
use crate::config::is_domain;
use crate::logging::OnceEach;
use crate::sorted::SortedMap;
use crate::sys::errno::{keep_errno, lock};
use crate::sys::process::{self, ShownPid};
use crate::sys::time::now_ns;

/// List of bound Unix sockets, one per line: the flags in the fourth column, the name in the last.
const LIST: &str = "/proc/net/unix";
/// Flags of a listening socket, `__SO_ACCEPTCON`.
const LISTENS: &str = "00010000";
/// Maximum number of listeners named in one line of the log, which keeps the line readable.
const NAMED_MAX: usize = 4;
/// Time in nanoseconds for which connects to one port fail before that is logged: processes start
/// at different times.
const PATIENCE_NS: u64 = 2_000_000_000;
/// Maximum number of ports that are remembered, and logged, in a process. Failures at further ports
/// are not logged.
const PORTS_MAX: usize = 8;

/// Ports at which connects found no listener.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<SortedMap<PortId, RefusalRecord>>);

#[derive(Clone, Copy, Debug)]
struct RefusalRecord {
    since_ns: u64,
    is_reported: bool,
}

impl Refusals {
    /// Notes a connect that found no listener. Returns, once for each port, the duration in seconds
    /// of such failures, when it is time to log it.
    pub(crate) fn note(&self, id: PortId, now_ns: u64) -> Option<u64> {
        let mut known = lock(&self.0);
        if known.len() >= PORTS_MAX && !known.contains_key(&id) {
            return None;
        }
        let refusal =
            known.get_or_insert_with(id, || RefusalRecord { since_ns: now_ns, is_reported: false });
        let for_ns = now_ns.saturating_sub(refusal.since_ns);
        if refusal.is_reported || for_ns < PATIENCE_NS {
            return None;
        }
        refusal.is_reported = true;
        Some(for_ns / 1_000_000_000)
    }

    /// Forgets the refusals at a port, unless they were logged.
    fn forget(&self, id: PortId) {
        let mut known = lock(&self.0);
        if known.get(&id).is_some_and(|refusal| !refusal.is_reported) {
            known.remove(&id);
        }
    }
}

static REFUSALS: Refusals = Refusals(Mutex::new(SortedMap::new()));

/// Notes that a connect to `id` succeeded: a later failure is timed anew.
pub fn note_answer(id: PortId) {
    REFUSALS.forget(id);
}

/// Notes a refused connect. Logs, once for each port, that no listener exists after failures of
/// some duration.
pub fn warn_of_silence(names: &Names, id: PortId) {
    if let Some(seconds) = REFUSALS.note(id, now_ns()) {
        log::warn!(
            "no process listens at {id} (node:port), tried for {seconds} s: ECONNREFUSED. {}",
            names.whereabouts(id)
        );
    }
}

/// Logs, once for each user, that this process refuses connections of that user.
pub fn warn_of_user(uid: u32, at: PortId) {
    static SAID: OnceEach<u32> = OnceEach::new(8);
    if SAID.first(uid) {
        log::warn!(
            "a connection of user {uid} to {at} was refused, this process runs as user {own}: add \
             {uid} to SCIF_ALLOW_UIDS of this process and {own} to that of the peer, or run both \
             as one user",
            own = process::uid()
        );
    }
}

/// Logs, once for each process, that process `pid` runs a build with which this one cannot exchange
/// packets.
pub(super) fn warn_of_build(pid: i32, build: Build) {
    static SAID: OnceEach<i32> = OnceEach::new(8);
    if SAID.first(pid) {
        log::warn!("{}", another_build(pid, build));
    }
}

fn another_build(pid: i32, build: Build) -> String {
    format!(
        "a connection with {} was refused: that process runs scif {build}, this process scif {}: \
         use one version of scif in all processes of a job",
        ShownPid(pid),
        Build::OWN
    )
}

/// Settings under which an endpoint listens, as far as its name shows.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Place {
    dir: Option<String>,
    domain: String,
}

impl Place {
    fn of(names: &Names) -> Place {
        let (dir, domain) = match names {
            Names::Abstract { domain } => (None, domain),
            Names::Dir { dir, domain } => (Some(dir.display().to_string()), domain),
        };
        Place { dir, domain: domain.clone() }
    }

    /// Returns the settings of a listener at `id` from a line of the list. Any user can choose such
    /// names. A name that this library would not create may be aimed at the reader of the log, and
    /// is skipped.
    fn of_line(line: &str, id: PortId) -> Option<Place> {
        let mut fields = line.split_ascii_whitespace();
        if fields.nth(3)? != LISTENS {
            return None;
        }
        let name = fields.nth(3)?;
        if let Some(name) = name.strip_prefix("@scif/") {
            let domain = name.strip_suffix(&format!("/{}/{}", id.node, id.port))?;
            return is_domain(domain).then(|| Place { dir: None, domain: domain.to_owned() });
        }
        let path = Path::new(name.strip_suffix(&format!(".{}.{}", id.node, id.port))?);
        let (dir, domain) = (path.parent()?.to_str()?, path.file_name()?.to_str()?);
        let is_usual = path.is_absolute() && !dir.contains(char::is_control) && is_domain(domain);
        is_usual.then(|| Place { dir: Some(dir.to_owned()), domain: domain.to_owned() })
    }

    fn describe(&self, text: &mut String) {
        // Writing to a string does not fail.
        let _ = match self.domain.parse::<u32>() {
            Ok(uid) => write!(text, "SCIF_DOMAIN unset by user {uid}"),
            Err(_) => write!(text, "SCIF_DOMAIN={}", self.domain),
        };
        let _ = match &self.dir {
            Some(dir) => write!(text, " and SCIF_RUNTIME_DIR={dir}"),
            None => write!(text, " and SCIF_RUNTIME_DIR unset"),
        };
    }
}

impl Names {
    /// Returns the settings that decide which processes this one can meet, for a line of the log.
    pub(crate) fn settings(&self) -> String {
        let mut text = String::new();
        Place::of(self).describe(&mut text);
        text
    }

    /// Returns hints for a log line about a missing listener at `id`.
    pub(crate) fn whereabouts(&self, id: PortId) -> String {
        let list = keep_errno(|| std::fs::read(LIST)).unwrap_or_default();
        self.whereabouts_in(&String::from_utf8_lossy(&list), id)
    }

    fn whereabouts_in(&self, list: &str, id: PortId) -> String {
        let own = Place::of(self);
        let others: SortedMap<Place, ()> = list
            .lines()
            .filter_map(|line| Place::of_line(line, id))
            .filter(|place| *place != own)
            .map(|place| (place, ()))
            .collect();
        let mut text = format!("This process (user {}) has ", process::uid());
        own.describe(&mut text);
        if others.is_empty() {
            text.push_str(
                ". Check that the peer runs, on this host and in this network namespace, and with \
                 the same SCIF_DOMAIN, SCIF_RUNTIME_DIR and user",
            );
            return text;
        }
        text.push_str("; an endpoint with that port has ");
        for (at, place) in others.keys().take(NAMED_MAX).enumerate() {
            text.push_str(if at > 0 { ", another " } else { "" });
            place.describe(&mut text);
        }
        text.push_str(
            ". Set SCIF_DOMAIN and SCIF_RUNTIME_DIR alike in both; processes of two users also \
             need SCIF_ALLOW_UIDS",
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: PortId = PortId::new(3, 77);

    #[test]
    fn a_process_of_another_build_is_named_where_its_number_is_known() {
        let names_it = |pid, name: &str| {
            let text = another_build(pid, Build::OWN);
            assert!(text.starts_with(&format!("a connection with {name} was refused")), "{text}");
        };
        names_it(4711, "process 4711");
        names_it(0, "a process of another pid namespace");
    }

    fn names(dir: Option<&Path>, domain: &str) -> Names {
        Names::new(dir, Some(domain), 5).unwrap()
    }

    #[test]
    fn listeners_of_other_places_are_named() {
        let list = "Num RefCount Protocol Flags Type St Inode Path\n\
                    0: 00000002 00000000 00010000 0005 01 11 @scif/job/3/77\n\
                    0: 00000002 00000000 00010000 0005 01 12 @scif/1000/3/77\n\
                    0: 00000002 00000000 00000000 0005 03 13 @scif/connected/3/77\n\
                    0: 00000002 00000000 00010000 0005 01 14 @scif/third/3/78\n\
                    0: 00000002 00000000 00010000 0005 01 15 @scif/a/b/3/77\n\
                    0: 00000002 00000000 00010000 0005 01 16 /run/x/job.3.77\n\
                    0: 00000002 00000000 00010000 0005 01 16 relative.3.77\n\
                    0: 00000002 00000000 00010000 0005 01 16 /run/\x1b[2Jy/dir.3.77\n\
                    0: 00000002 00000000 00010000 0005 01 16 @scif/\x1b[2J/3/77\n\
                    0: 00000002 00000000 00010000 0005 01 16 \
                    @scif/call-this-number-to-have-your-account-restored/3/77\n\
                    0: 00000002 00000000 00010000 0005 01 17\n";
        let text = names(None, "mine").whereabouts_in(list, ID);
        for part in [
            "has SCIF_DOMAIN=mine and SCIF_RUNTIME_DIR unset",
            "SCIF_DOMAIN=job and SCIF_RUNTIME_DIR unset",
            "SCIF_DOMAIN unset by user 1000",
            "SCIF_DOMAIN=job and SCIF_RUNTIME_DIR=/run/x",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        for part in ["connected", "third", "a/b", "relative", "\x1b", "call-this"] {
            assert!(!text.contains(part), "{part}: {text}");
        }
        let text = names(Some(&std::env::temp_dir()), "job").whereabouts_in(list, ID);
        assert!(text.contains("another SCIF_DOMAIN=job and SCIF_RUNTIME_DIR unset"));
    }

    #[test]
    fn without_any_listener_the_settings_are_to_be_checked() {
        let own = "0: 00000002 00000000 00010000 0005 01 11 @scif/mine/3/77\n";
        for list in ["", own] {
            let text = names(None, "mine").whereabouts_in(list, ID);
            for part in ["SCIF_DOMAIN=mine", "network namespace", "SCIF_RUNTIME_DIR", "user"] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        assert!(names(None, "0").settings().contains("SCIF_DOMAIN unset by user 0"));
    }

    #[test]
    fn a_port_is_told_once_and_after_some_seconds() {
        const S: u64 = 1_000_000_000;
        let refusals = Refusals::default();
        let reported: Vec<_> =
            (0..60).filter_map(|tenth| refusals.note(ID, S * 5 + tenth * S / 10)).collect();
        assert_eq!(reported, [2]);
        refusals.forget(ID);
        assert_eq!(refusals.note(ID, S * 5000), None, "reported already");
        let other = PortId::new(3, 78);
        assert_eq!(refusals.note(other, 0), None);
        refusals.forget(other);
        assert_eq!(refusals.note(other, S * 40), None, "it was there meanwhile");
        assert_eq!(refusals.note(other, S * 43), Some(3));
        for port in 0..100 {
            assert_eq!(refusals.note(PortId::new(0, port), 50 * S), None);
        }
        let later = (0..100).filter_map(|port| refusals.note(PortId::new(0, port), 90 * S));
        assert_eq!(later.count(), PORTS_MAX - 2);
    }
}

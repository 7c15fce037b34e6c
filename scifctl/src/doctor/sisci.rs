// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Check of SISCI: the library that programs load, the node of the environment, and segments of
//! dead owners in the domain.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use scif::monitor::sisci::layout::{ObjectKind, ObjectState};
use scif::monitor::sisci::report::{self, SisciProcess};
use scif::sys::process;
use serde_json::Value;

use super::finding::Finding;
use super::inputs::{Inputs, output, probe};
use super::provider::document_in;
use crate::table::bytes;

const SUBJECT: &str = "SISCI";
/// Names of the library: that of the linker's directories, and that of the product's installation.
const NAMES: [&str; 2] = ["libsisci.so", "/opt/DIS/lib64/libsisci.so"];
/// Time for which the library may initialize. After it, the probe is killed and reported.
const LIMIT: Duration = Duration::from_secs(5);
/// Directories of installed libraries, relative ones from the directory of this program.
const INSTALLED: [&str; 5] =
    ["../lib", "../lib/x86_64-linux-gnu", "../../build/lib", "/usr/local/lib", "/usr/lib64"];
/// Text of the loader about a file that does not exist.
const ABSENT: &str = "No such file";
/// Number of files that a finding names. The next run names further ones.
const FILES_NAMED: usize = 4;

/// Answer of a library.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Answer {
    file: String,
    version: Option<String>,
    /// Node id of the first adapter that has one.
    node: Option<u64>,
    /// Lines of its log about settings that it ignores.
    warnings: Vec<String>,
}

/// Loads a library in another process, in a domain of its own.
///
/// # Errors
/// Reason for which it cannot be loaded, or does not answer.
fn load(name: &str) -> Result<Answer, String> {
    let mut command = probe(&["sisci", name]).map_err(|error| error.to_string())?;
    command.env("SCIF_DOMAIN", format!("doctor-{}", process::pid())).env_remove("SCIF_LOG");
    let answer = output(&mut command, LIMIT).map_err(|error| format!("{name}: {error}"))?;
    let log = String::from_utf8_lossy(&answer.stderr).into_owned();
    let Some(document) = document_in(&String::from_utf8_lossy(&answer.stdout)) else {
        let last = log.lines().last().unwrap_or("no answer").trim_start_matches("scifctl: ");
        return Err(format!("{name}: {last} ({})", answer.status));
    };
    let text = |key: &str| document.get(key).and_then(Value::as_str).map(str::to_owned);
    let warnings = log.lines().filter_map(|line| line.find("SISCI_").and_then(|at| line.get(at..)));
    Ok(Answer {
        file: text("file").unwrap_or_else(|| name.to_owned()),
        version: text("version"),
        node: document.get("node").and_then(Value::as_u64),
        warnings: warnings.map(str::to_owned).collect(),
    })
}

pub(crate) fn check(inputs: &Inputs) -> Vec<Finding> {
    let mut reasons = Vec::new();
    let answer = NAMES.iter().find_map(|name| load(name).map_err(|e| reasons.push(e)).ok());
    let mut found = match answer {
        Some(answer) => present(inputs, &answer),
        None => vec![absent(inputs, &reasons, installed_dir().as_deref())],
    };
    let domain = inputs.config.domain.clone().unwrap_or_else(|| process::uid().to_string());
    let dir = inputs.config.runtime_dir.as_deref();
    let dir_name = dir.map(|dir| dir.display().to_string()).unwrap_or_default();
    let processes = report::processes_in(&domain, &dir_name).unwrap_or_default();
    found.extend(stale(&processes));
    if let Some(dir) = dir {
        // Files first: the socket of a process that starts meanwhile is in the later list.
        let files = socket_files(dir, &domain);
        let listeners = inputs.read("/proc/net/unix").unwrap_or_default();
        found.extend(stale_files(files, &listeners));
    }
    found
}

/// Whether the provider is to use a SISCI library.
fn is_required(inputs: &Inputs) -> bool {
    inputs.env.is("FI_SCIF_TRANSPORT", "sisci")
}

/// Returns the findings about a library that answers.
fn present(inputs: &Inputs, answer: &Answer) -> Vec<Finding> {
    let version = answer.version.as_deref().unwrap_or("version not told");
    let name = format!("{version} from {}", answer.file);
    let mut found = vec![match answer.node {
        Some(node) => Finding::ok(SUBJECT, format!("{name}, node {node}")),
        None if is_required(inputs) => Finding::broken(
            SUBJECT,
            format!("{name}, no adapter has a node id, but FI_SCIF_TRANSPORT=sisci requires one"),
            "configure the adapters, or FI_SCIF_TRANSPORT=soft",
        ),
        None => Finding::ok(SUBJECT, format!("{name}, no adapter has a node id")),
    }];
    found.extend(answer.warnings.iter().map(|text| {
        Finding::slower(SUBJECT, text, "correct or unset it; docs/env.md lists all settings")
    }));
    found
}

/// Returns the finding about a library that no program can load. `dir` has an installed one.
fn absent(inputs: &Inputs, reasons: &[String], dir: Option<&Path>) -> Finding {
    let place = dir.map(|dir| format!("LD_LIBRARY_PATH={}", dir.display()));
    let broken = reasons.iter().find(|reason| !reason.contains(ABSENT));
    if let Some(reason) = broken {
        let action = "replace the file by one that loads, or take its directory out of the path";
        return Finding::broken(SUBJECT, reason, action);
    }
    if is_required(inputs) {
        return Finding::broken(
            SUBJECT,
            "the linker finds no libsisci.so, but FI_SCIF_TRANSPORT=sisci requires one",
            place.unwrap_or_else(|| "install libsisci.so, or FI_SCIF_TRANSPORT=soft".to_owned()),
        );
    }
    let text = match place {
        Some(place) => format!("programs find libsisci.so with {place} only; none is required"),
        None => "no libsisci.so, and none is required".to_owned(),
    };
    Finding::ok(SUBJECT, text)
}

/// Returns the finding about connections to segments whose owners are gone.
fn stale(processes: &[SisciProcess]) -> Option<Finding> {
    let (mut pids, mut segments, mut size) = (Vec::new(), 0_usize, 0_u64);
    for process in processes {
        let lost = process.objects.iter().filter(|object| {
            object.kind == ObjectKind::Connection && object.state == ObjectState::Lost
        });
        let before = segments;
        for object in lost {
            segments += 1;
            size = size.saturating_add(object.size);
        }
        if segments > before {
            pids.push(process.pid.to_string());
        }
    }
    (segments > 0).then(|| {
        Finding::slower(
            SUBJECT,
            format!(
                "{segments} segments of owners that died or withdrew them, {} bytes, are still \
                 connected by processes {}",
                bytes(size),
                pids.join(" ")
            ),
            "let the programs call SCIDisconnectSegment after SCI_CB_LOST, or end them",
        )
    })
}

/// Returns the socket files of SISCI objects of a domain.
fn socket_files(dir: &Path, domain: &str) -> Vec<PathBuf> {
    let prefix = format!("{domain}.sisci.");
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    let mut files: Vec<PathBuf> = files.map(|entry| entry.path()).collect();
    files.sort_unstable();
    files
}

/// Returns the finding about socket files without a listener. It names files and no pattern, which
/// would match those of live processes too.
fn stale_files(mut files: Vec<PathBuf>, listeners: &str) -> Option<Finding> {
    let is_bound = |path: &Path| {
        let name = format!(" {}", path.display());
        listeners.lines().any(|line| line.ends_with(&name))
    };
    files.retain(|path| !is_bound(path));
    let count = files.len();
    (count > 0).then(|| {
        let text = format!(
            "{count} socket files of segments, interrupts or processes have no listener in this \
             network namespace: their owners were killed, or are in another namespace"
        );
        let named: Vec<String> =
            files.iter().take(FILES_NAMED).map(|path| path.display().to_string()).collect();
        let again = if count > FILES_NAMED { ", then run doctor again for the others" } else { "" };
        let action = format!("remove {} if no container uses them{again}", named.join(" "));
        Finding::slower(SUBJECT, text, action)
    })
}

/// Returns a directory that has the library.
fn installed_dir() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let own = own.parent()?;
    INSTALLED
        .iter()
        .map(|dir| own.join(dir))
        .find(|dir| dir.join("libsisci.so").is_file())
        .and_then(|dir| dir.canonicalize().ok())
}

#[cfg(test)]
mod tests {
    use scif::Config;
    use scif::monitor::sisci::report::SisciObject;

    use super::*;
    use crate::doctor::env::Environment;
    use crate::doctor::finding::State;

    fn inputs(env: &[(&str, &str)]) -> Inputs {
        let env = Environment::of(env);
        Inputs { root: PathBuf::from("/"), env, config: Config::default() }
    }

    const REQUIRED: (&str, &str) = ("FI_SCIF_TRANSPORT", "sisci");

    #[test]
    fn a_missing_library_matters_only_if_it_is_required() {
        let none = ["libsisci.so: No such file or directory".to_owned()];
        let dir = Some(Path::new("/x/lib"));
        let found = absent(&inputs(&[]), &none, dir);
        assert_eq!(found.state, State::Ok);
        assert!(found.meaning.contains("LD_LIBRARY_PATH=/x/lib"), "{}", found.meaning);
        assert!(absent(&inputs(&[]), &none, None).meaning.starts_with("no libsisci.so"));
        let found = absent(&inputs(&[REQUIRED]), &none, dir);
        assert_eq!((found.state, found.action.as_str()), (State::Broken, "LD_LIBRARY_PATH=/x/lib"));
        let bad = ["libsisci.so: file too short".to_owned()];
        let found = absent(&inputs(&[]), &bad, None);
        assert!(found.state == State::Broken && found.meaning.contains("too short"));
    }

    #[test]
    fn the_node_and_ignored_settings_are_told() {
        let answer = Answer {
            file: "/x/libsisci.so".to_owned(),
            version: Some("SISCI_API 2".to_owned()),
            node: Some(8),
            warnings: vec!["SISCI_NODE ignored".to_owned()],
        };
        let found = present(&inputs(&[]), &answer);
        assert_eq!(found[0], Finding::ok(SUBJECT, "SISCI_API 2 from /x/libsisci.so, node 8"));
        assert!(found[1].state == State::Slower && found[1].meaning == "SISCI_NODE ignored");
        let none = Answer { node: None, warnings: Vec::new(), ..answer };
        assert_eq!(present(&inputs(&[]), &none)[0].state, State::Ok);
        assert_eq!(present(&inputs(&[REQUIRED]), &none)[0].state, State::Broken);
    }

    #[test]
    fn segments_of_dead_owners_are_counted() {
        let object = |kind, state| SisciObject {
            serial: 1,
            kind,
            state,
            node: 8,
            number: 1,
            adapter: 0,
            size: 1024,
            offset: 0,
            peers: 0,
            flags: 0,
            owner: None,
            address: 0,
            count: 0,
        };
        let lost = object(ObjectKind::Connection, ObjectState::Lost);
        let used = object(ObjectKind::Connection, ObjectState::Operational);
        let process = |pid, objects| SisciProcess { pid, objects, ..SisciProcess::default() };
        assert_eq!(stale(&[process(7, vec![used])]), None);
        let all = [process(7, vec![lost, used, lost]), process(8, vec![used])];
        let found = stale(&all).unwrap();
        assert!(found.meaning.starts_with("2 segments") && found.meaning.ends_with("processes 7"));
        assert!(found.meaning.contains(" 2K bytes"), "{}", found.meaning);
    }

    #[test]
    fn socket_files_without_a_listener_are_named() {
        let dir = std::env::temp_dir().join(format!("scifctl-{}-sisci", process::pid()));
        fs::create_dir_all(&dir).unwrap();
        for name in ["d.sisci.4.segment.1", "d.sisci.4.segment.2", "d.0.2050", "e.sisci.4.data.1"] {
            fs::write(dir.join(name), "").unwrap();
        }
        let listeners =
            format!("0: 2 0 00010000 0005 01 1 {}/d.sisci.4.segment.1\n", dir.display());
        let files = socket_files(&dir, "d");
        fs::remove_dir_all(&dir).unwrap();
        let stale = |listeners: &str| stale_files(files.clone(), listeners).unwrap();
        let (one, all) = (stale(&listeners), stale(""));
        assert!(one.meaning.starts_with("1 socket files"), "{}", one.meaning);
        assert!(all.meaning.starts_with("2 socket files"), "{}", all.meaning);
        let stale_name = dir.join("d.sisci.4.segment.2").display().to_string();
        assert_eq!(one.action, format!("remove {stale_name} if no container uses them"));
        let many: Vec<PathBuf> = (0..=FILES_NAMED).map(|i| dir.join(i.to_string())).collect();
        let action = stale_files(many, "").unwrap().action;
        assert!(action.contains("/3 if") && action.ends_with("for the others"), "{action}");
    }
}

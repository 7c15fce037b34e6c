// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Check of libfabric: its version, whether it lists scif, from which file, and the cause if not.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::finding::{Finding, State};
use super::inputs::{Inputs, output, probe};

/// Name by which programs load libfabric.
pub(crate) const SONAME: &str = "libfabric.so.1";
const FILE: &str = "libscif-fi.so";
/// Time for which the providers of a libfabric may initialise. After it, the probe is killed and
/// reported.
const LIMIT: Duration = Duration::from_secs(5);
/// Directories of installed providers, relative ones from the directory of this program.
const INSTALLED: [&str; 6] = [
    "../lib/libfabric",
    "../lib/x86_64-linux-gnu/libfabric",
    "../../build/provider",
    "/usr/lib/x86_64-linux-gnu/libfabric",
    "/usr/local/lib/libfabric",
    "/usr/lib64/libfabric",
];

/// Answer of a libfabric.
#[derive(Clone, Debug, Default)]
pub(crate) struct Library {
    pub(crate) version: String,
    pub(crate) file: String,
    /// Names of its providers in their order.
    pub(crate) providers: Vec<String>,
    /// File of scif, if it is listed.
    pub(crate) scif: Option<String>,
    /// Providers that may carry messages between hosts, also hidden ones.
    pub(crate) networks: Vec<Network>,
    /// Lines of its log.
    pub(crate) log: Vec<String>,
}

/// Provider that libfabric has, also one that FI_PROVIDER hides.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Network {
    pub(crate) name: String,
    /// Property without which it cannot carry messages; empty if it has all.
    pub(crate) lacks: String,
    /// IP address of its first endpoint.
    pub(crate) address: Option<String>,
}

impl Network {
    /// Reads an object of the probe.
    pub(crate) fn of(object: &Value) -> Option<Network> {
        let text = |key: &str| object.get(key).and_then(Value::as_str).map(str::to_owned);
        Some(Network {
            name: text("name")?,
            lacks: text("lacks").unwrap_or_default(),
            address: text("address"),
        })
    }

    /// Whether it can carry messages.
    pub(crate) fn fits(&self) -> bool {
        self.lacks.is_empty()
    }

    /// Whether other hosts can reach its address.
    pub(crate) fn is_reachable(&self) -> bool {
        self.address.as_ref().is_none_or(|address| !address.starts_with("127."))
    }
}

impl Library {
    /// Loads a libfabric in another process.
    ///
    /// # Errors
    /// Reason for which it cannot be loaded, or does not answer.
    pub(crate) fn load(name: &str) -> Result<Library, String> {
        let mut command = probe(&["libfabric", name]).map_err(|error| error.to_string())?;
        command.env("FI_LOG_LEVEL", "info").env_remove("FI_LOG_PROV").env_remove("FI_LOG_SUBSYS");
        let answer = output(&mut command, LIMIT).map_err(|error| error.to_string())?;
        let log: Vec<String> =
            String::from_utf8_lossy(&answer.stderr).lines().map(str::to_owned).collect();
        let Some(document) = document_in(&String::from_utf8_lossy(&answer.stdout)) else {
            let last = log.last().map_or("no answer", |line| line.trim_start_matches("scifctl: "));
            return Err(match answer.status.success() {
                true => "no answer".to_owned(),
                false => format!("{last} ({})", answer.status),
            });
        };
        let text = |key: &str| document.get(key).and_then(Value::as_str).map(str::to_owned);
        let providers = document.get("providers").and_then(Value::as_array);
        let networks = document.get("networks").and_then(Value::as_array);
        let names = providers.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
        Ok(Library {
            version: text("version").unwrap_or_default(),
            file: text("file").unwrap_or_else(|| name.to_owned()),
            providers: names.collect(),
            scif: text("scif"),
            networks: networks.into_iter().flatten().filter_map(Network::of).collect(),
            log,
        })
    }
}

/// Returns the document of the probe, the last one beside lines that providers print.
pub(super) fn document_in(text: &str) -> Option<Value> {
    let line = text.lines().rfind(|line| line.starts_with('{'))?;
    serde_json::from_str(line).ok()
}

/// Checks the libfabric of the system, and returns it. `has_another`: whether an MPI has its own.
pub(crate) fn check(inputs: &Inputs, has_another: bool) -> (Vec<Finding>, Option<Library>) {
    let library = match Library::load(SONAME) {
        Ok(library) => library,
        Err(reason) => return (vec![absent(&reason, has_another)], None),
    };
    let mut found =
        vec![Finding::ok("libfabric", format!("{} from {}", library.version, library.file))];
    found.push(listed(inputs, "provider", &library));
    let invalid = library.log.iter().filter(|line| line.contains("invalid, default used"));
    found.extend(invalid.map(|line| {
        let text = line.find("FI_SCIF_").and_then(|at| line.get(at..)).unwrap_or(line);
        Finding::slower("settings", text, "correct or unset it; docs/env.md lists all settings")
    }));
    (found, Some(library))
}

/// Returns the finding for a system without libfabric.
fn absent(reason: &str, has_another: bool) -> Finding {
    if has_another {
        return Finding::ok(
            "libfabric",
            "none of the system; only MPIs with their own can use scif",
        );
    }
    Finding::broken(
        "libfabric",
        format!("{reason}; only an MPI with its own libfabric can use the provider"),
        "apt-get install libfabric1, or LD_LIBRARY_PATH with the directory of a libfabric.so.1",
    )
}

/// Returns whether a libfabric lists scif, and first; otherwise the cause.
pub(crate) fn listed(inputs: &Inputs, subject: &str, library: &Library) -> Finding {
    let Some(file) = &library.scif else {
        let (cause, remedy) = cause(inputs, library);
        let text =
            format!("{} (libfabric {}) does not list scif: {cause}", library.file, library.version);
        return Finding::broken(subject, text, remedy);
    };
    let before: Vec<&str> =
        library.providers.iter().map(String::as_str).take_while(|name| *name != "scif").collect();
    match before.first() {
        Some(first) => Finding::slower(
            subject,
            format!(
                "scif is listed from {file}, but after {}: a program that names no provider \
                 takes {first}",
                before.join(", ")
            ),
            "FI_PROVIDER=scif",
        ),
        None => Finding::new(State::Ok, subject, format!("scif from {file}"), ""),
    }
}

/// Returns cause and remedy for a libfabric that does not list scif.
fn cause(inputs: &Inputs, library: &Library) -> (String, String) {
    if let Some(filter) = inputs.env.get("FI_PROVIDER").filter(|filter| !selects(filter)) {
        return (
            format!("FI_PROVIDER={filter} excludes it"),
            "FI_PROVIDER=scif in the environment of every rank".to_owned(),
        );
    }
    if let Some(line) = library.log.iter().find(|line| line.contains(FILE) && is_failure(line)) {
        let text = line.rsplit_once("> ").map_or(line.as_str(), |(_, text)| text).trim();
        return (text.to_owned(), format!("replace {FILE} by one that this libfabric loads"));
    }
    let place = provider_dir().map_or_else(
        || format!("FI_PROVIDER_PATH=DIRECTORY, the one of {FILE}"),
        |dir| format!("FI_PROVIDER_PATH={}", dir.display()),
    );
    match inputs.env.get("FI_PROVIDER_PATH") {
        None => {
            ("FI_PROVIDER_PATH is not set, and its own directory has no scif".to_owned(), place)
        }
        Some(path) => {
            let entries = path.split(':').map(|entry| entry.trim_start_matches(['@', '+']));
            let entries = entries.filter(|entry| !entry.is_empty()).map(Path::new);
            if let Some(entry) = entries.clone().find(|entry| !entry.exists()) {
                let text = format!("FI_PROVIDER_PATH: {} does not exist", entry.display());
                return (text, place);
            }
            // An entry is a directory, or after `+` a file.
            let mut files = entries.map(|entry| match entry.ends_with(FILE) {
                true => entry.to_owned(),
                false => entry.join(FILE),
            });
            match files.find(|file| file.is_file()) {
                Some(file) => {
                    let text = format!("{} does not load", file.display());
                    (text, format!("replace {FILE} by one that was built for this system"))
                }
                None => (format!("FI_PROVIDER_PATH={path} has no {FILE}"), place),
            }
        }
    }
}

fn is_failure(line: &str) -> bool {
    ["dlopen", "cannot", "undefined", "fi_version"].iter().any(|word| line.contains(word))
}

/// Whether a value of FI_PROVIDER lets scif through.
fn selects(filter: &str) -> bool {
    let names = |list: &str| list.split([',', ';']).any(|name| name.eq_ignore_ascii_case("scif"));
    match filter.strip_prefix('^') {
        Some(excluded) => !names(excluded),
        None => names(filter),
    }
}

/// Returns a directory that has the provider.
fn provider_dir() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let own = own.parent()?;
    INSTALLED
        .iter()
        .map(|dir| own.join(dir))
        .find(|dir| dir.join(FILE).is_file())
        .and_then(|dir| dir.canonicalize().ok())
}

#[cfg(test)]
mod tests {
    use scif::Config;

    use super::*;
    use crate::doctor::env::Environment;

    fn unlisted(env: &[(&str, &str)], log: &[&str]) -> Finding {
        let inputs = Inputs {
            root: PathBuf::from("/"),
            env: Environment::of(env),
            config: Config::default(),
        };
        let log = log.iter().map(|line| (*line).to_owned()).collect();
        listed(&inputs, "provider", &Library { log, ..Library::default() })
    }

    #[test]
    fn the_system_needs_no_libfabric_where_an_mpi_has_its_own() {
        assert_eq!(absent("not found", true).state, State::Ok);
        let needed = absent("not found", false);
        assert_eq!(needed.state, State::Broken);
        assert!(needed.meaning.starts_with("not found") && !needed.action.is_empty());
    }

    #[test]
    fn each_cause_of_absence_has_its_remedy() {
        let found = unlisted(&[("FI_PROVIDER", "tcp")], &[]);
        assert_eq!((found.state, found.action.contains("FI_PROVIDER=scif")), (State::Broken, true));
        let path = [("FI_PROVIDER", "scif"), ("FI_PROVIDER_PATH", "/nonexistent")];
        assert!(unlisted(&path, &[]).meaning.contains("/nonexistent does not exist"));
        assert!(unlisted(&[], &[]).meaning.contains("FI_PROVIDER_PATH is not set"));
        let dir = std::env::temp_dir().join(format!("scifctl-{}-path", std::process::id()));
        let file = dir.join(FILE);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(&file, "").unwrap();
        let paths = [format!("+{}", file.display()), format!(":@{}:", dir.display())];
        let found = paths.map(|path| unlisted(&[("FI_PROVIDER_PATH", &path)], &[]).meaning);
        std::fs::remove_dir_all(&dir).unwrap();
        for meaning in found {
            assert!(meaning.ends_with(&format!("{} does not load", file.display())), "{meaning}");
        }
        let line = "libfabric:5:core:core:ofi_reg_dl_prov():659<info> dlopen(/x/libscif-fi.so): no";
        assert!(unlisted(&[], &[line]).meaning.contains("dlopen(/x/libscif-fi.so): no"));
    }

    #[test]
    fn lines_of_providers_are_no_answer() {
        let text = "psm3: hello\n{\"version\":\"1.17\"}\nbye\n";
        assert_eq!(document_in(text).unwrap()["version"], "1.17");
        assert_eq!(document_in("psm3: hello\n"), None);
    }

    #[test]
    fn filters_are_read_as_by_libfabric() {
        for (filter, selected) in
            [("scif", true), ("tcp,scif", true), ("^tcp", true), ("^scif", false), ("tcp", false)]
        {
            assert_eq!(selects(filter), selected, "{filter}");
        }
    }

    #[test]
    fn a_provider_before_scif_is_named() {
        let inputs = Inputs {
            root: PathBuf::from("/"),
            env: Environment::default(),
            config: Config::default(),
        };
        let library = |names: &[&str]| Library {
            providers: names.iter().map(|name| (*name).to_owned()).collect(),
            scif: Some("/x/libscif-fi.so".to_owned()),
            ..Library::default()
        };
        assert_eq!(listed(&inputs, "provider", &library(&["scif", "tcp"])).state, State::Ok);
        let found = listed(&inputs, "provider", &library(&["psm3", "scif"]));
        assert!(found.state == State::Slower && found.meaning.contains("takes psm3"));
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Checks of the settings of scif: present, unknown, invalid and contradictory ones.

use scif::unknown_settings;

use super::finding::Finding;
use super::inputs::Inputs;

/// Table of all settings.
const TABLE: &str = include_str!("../../../docs/env.md");

const SUBJECT: &str = "settings";

/// Returns the names in the table that begin with `prefix`.
fn known(prefix: &str) -> Vec<String> {
    let names = TABLE.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    names.filter(|name| name.starts_with(prefix)).map(str::to_owned).collect()
}

pub(crate) fn check(inputs: &Inputs) -> Vec<Finding> {
    let mut found = vec![present(inputs)];
    let of_provider = known("FI_SCIF_");
    let unknown = unknown_settings("FI_SCIF_", &of_provider, inputs.env.names().cloned());
    let warnings = unknown.chain(inputs.config.warnings.iter().cloned());
    found.extend(warnings.map(|text| {
        Finding::slower(SUBJECT, text, "correct or unset it; docs/env.md lists all settings")
    }));
    found.extend(contradictions(inputs));
    found
}

fn present(inputs: &Inputs) -> Finding {
    let known = [known("FI_SCIF_"), known("SCIF_"), known("SISCI_")].concat();
    let set: Vec<String> =
        known.iter().filter_map(|name| Some(format!("{name}={}", inputs.env.get(name)?))).collect();
    let text = if set.is_empty() { "none: all defaults".to_owned() } else { set.join(" ") };
    Finding::ok(SUBJECT, text)
}

fn contradictions(inputs: &Inputs) -> Vec<Finding> {
    let env = &inputs.env;
    let mut found = Vec::new();
    let mut slower = |meaning: &str, action: &str| {
        found.push(Finding::slower(SUBJECT, meaning, action));
    };
    if env.is_off("FI_SCIF_PROCESS_VM") {
        slower(
            "FI_SCIF_PROCESS_VM=0: large messages go through the ring",
            "unset FI_SCIF_PROCESS_VM, unless this is a test",
        );
    }
    if env.get("FI_SCIF_PTRACER").is_some()
        && env.is_off("FI_SCIF_PTRACER") == inputs.config.ptracer
    {
        slower(
            "FI_SCIF_PTRACER and SCIF_PTRACER differ: both must permit it, so it is not permitted",
            "set both to 1, or unset both",
        );
    }
    if env.is("FI_SCIF_TRANSPORT", "kernel") && env.is("SCIF_TRANSPORT", "soft") {
        slower(
            "FI_SCIF_TRANSPORT=kernel and SCIF_TRANSPORT=soft: the provider uses a driver, and \
             programs for scif.h do not",
            "set both to one value",
        );
    }
    if env.is("FI_SCIF_TRANSPORT", "kernel") && inputs.config.runtime_dir.is_some() {
        slower("SCIF_RUNTIME_DIR has no effect with a driver", "unset SCIF_RUNTIME_DIR");
    }
    if let Some(dir) = inputs.config.runtime_dir.as_ref().filter(|dir| !dir.is_dir()) {
        let meaning = format!(
            "SCIF_RUNTIME_DIR={} is no directory: no endpoint can be opened",
            dir.display()
        );
        let action = "create it, owned by this user, or unset SCIF_RUNTIME_DIR";
        found.push(Finding::broken(SUBJECT, meaning, action));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use scif::Config;

    use super::*;
    use crate::doctor::env::Environment;
    use crate::doctor::finding::State;

    fn found(env: &[(&str, &str)], config: Config) -> Vec<Finding> {
        check(&Inputs { root: PathBuf::from("/"), env: Environment::of(env), config })
    }

    #[test]
    fn the_table_has_both_families() {
        for name in ["FI_SCIF_PTRACER", "FI_SCIF_MAP"] {
            assert!(known("FI_SCIF_").iter().any(|known| known == name), "{name}");
        }
        assert!(known("SCIF_").iter().any(|known| known == "SCIF_DOMAIN"));
        assert!(known("SCIF_").iter().all(|known| !known.contains(' ')));
    }

    #[test]
    fn unknown_and_contradictory_settings_are_named() {
        assert_eq!(found(&[], Config::default()).len(), 1);
        let all = found(&[("FI_SCIF_PTRACR", "1"), ("FI_SCIF_MAP", "off")], Config::default());
        assert_eq!(all[0].meaning, "FI_SCIF_MAP=off");
        assert!(all[1].meaning.contains("FI_SCIF_PTRACER"), "{all:?}");
        let off = found(&[("FI_SCIF_PTRACER", "0")], Config::default());
        assert!(off[1].meaning.contains("differ"), "{off:?}");
        let off = Config { ptracer: false, ..Config::default() };
        assert_eq!(found(&[("FI_SCIF_PTRACER", "0")], off).len(), 1);
        let gone = Config { runtime_dir: Some(PathBuf::from("/nonexistent")), ..Config::default() };
        assert_eq!(found(&[], gone)[1].state, State::Broken);
    }
}

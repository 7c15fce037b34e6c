// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Settings of this library; the only file of it that reads the environment.

use std::env;
use std::ops::RangeInclusive;

use scif::{Config, unknown_settings};

use crate::fault::{self, FaultPlan};
use crate::node::{NodeId, default_node};

/// Possible numbers of adapters of a node.
const ADAPTERS: RangeInclusive<u32> = 1..=16;

/// Settings in force.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Settings that all interfaces of the engine share.
    pub(crate) engine: Config,
    /// SISCI node of this process (`SISCI_NODE`).
    pub(crate) node: NodeId,
    /// Number of adapters of every node (`SISCI_ADAPTERS`); adapters have the numbers below it.
    pub(crate) adapters: u32,
    /// Errors to inject (`SISCI_FAULT`).
    pub(crate) faults: FaultPlan,
}

impl Settings {
    /// Reads the environment. An invalid value leaves the default and adds a warning.
    pub(crate) fn from_env() -> Settings {
        let mut settings = Settings::from_lookup(Config::from_env(), |name| {
            env::var(name).ok().filter(|value| !value.is_empty())
        });
        let names = ["SISCI_NODE", "SISCI_ADAPTERS", "SISCI_FAULT"].map(str::to_owned);
        let set = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        settings.engine.warnings.extend(unknown_settings("SISCI_", &names, set));
        settings
    }

    pub(crate) fn from_lookup(engine: Config, lookup: impl Fn(&str) -> Option<String>) -> Settings {
        let node = default_node(engine.node);
        let mut settings = Settings { engine, node, adapters: 1, faults: FaultPlan::default() };
        if let Some(value) = lookup("SISCI_NODE") {
            match value.parse().ok().and_then(NodeId::new) {
                Some(node) => settings.node = node,
                None => settings.warn("SISCI_NODE", &value, "not a multiple of 4 from 4 on"),
            }
        }
        if let Some(value) = lookup("SISCI_ADAPTERS") {
            match value.parse() {
                Ok(count) if ADAPTERS.contains(&count) => settings.adapters = count,
                _ => settings.warn("SISCI_ADAPTERS", &value, "not a number from 1 to 16"),
            }
        }
        if let Some(value) = lookup("SISCI_FAULT") {
            match FaultPlan::parse(&value) {
                Some(faults) => settings.faults = faults,
                None => settings.warn("SISCI_FAULT", &value, fault::FORM),
            }
        }
        settings
    }

    fn warn(&mut self, name: &str, value: &str, reason: &str) {
        self.engine.warnings.push(format!("{name} ignored, {reason}: {value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_follow_the_nodes_of_scif() {
        let with = |node, pairs: &[(&str, &str)]| {
            let engine = Config { node, ..Config::default() };
            Settings::from_lookup(engine, |name| {
                pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(with(0, &[]).node.number(), 4);
        assert_eq!(with(61, &[]).node.number(), 248);
        assert_eq!(with(62, &[]).node.number(), 256, "252 is the broadcast node");
        let settings = with(1, &[("SISCI_NODE", "16"), ("SISCI_ADAPTERS", "2")]);
        assert_eq!((settings.node.number(), settings.adapters), (16, 2));
        let settings = with(1, &[("SISCI_NODE", "6"), ("SISCI_ADAPTERS", "17")]);
        assert_eq!((settings.node.number(), settings.adapters), (8, 1));
        assert_eq!(settings.engine.warnings.len(), 2);
        let settings = with(1, &[("SISCI_FAULT", "retriable:1/0")]);
        assert_eq!(settings.faults, FaultPlan::default());
        let warning = settings.engine.warnings.concat();
        assert!(warning.contains("retriable:N/M") && warning.ends_with(": retriable:1/0"));
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! State of all SISCI processes of a domain.

use std::collections::BTreeMap;

use scif::Config;
use scif::monitor::sisci::layout::ObjectKind;
use scif::monitor::sisci::report::{self, SisciObject, SisciProcess};
use scif::sys::process;
use scif_api::introspect;

use crate::args::SisciList;
use crate::failure::Result;

/// State of all processes of a domain at one time.
#[derive(Debug, Default)]
pub(crate) struct SisciView {
    pub(crate) processes: Vec<SisciProcess>,
    /// Number of processes without state that this program can read, by their nodes.
    pub(crate) hidden: BTreeMap<u32, usize>,
}

impl SisciView {
    /// Reads the state of the domain in `config`.
    pub(crate) fn now(config: &Config) -> Result<SisciView> {
        let domain = config.domain.clone().unwrap_or_else(|| process::uid().to_string());
        let dir = config.runtime_dir.as_ref().map(|dir| dir.display().to_string());
        let dir = dir.unwrap_or_default();
        let processes = report::processes_in(&domain, &dir)?;
        let mut hidden = introspect::sisci_nodes(config)?;
        for process in processes.iter().filter(|process| process.other_version.is_none()) {
            if let Some(count) = hidden.get_mut(&process.node) {
                *count = count.saturating_sub(1);
            }
        }
        hidden.retain(|_, count| *count > 0);
        Ok(SisciView { processes, hidden })
    }

    /// Leaves out the processes of other nodes. The node of state of another version is unknown.
    pub(super) fn on_node(mut self, node: Option<u32>) -> SisciView {
        let Some(node) = node else { return self };
        self.processes.retain(|process| process.other_version.is_some() || process.node == node);
        self.hidden.retain(|hidden, _| *hidden == node);
        self
    }

    /// Returns the objects of some kinds, with their processes.
    pub(crate) fn objects<'a>(
        &'a self,
        kinds: &'a [ObjectKind],
    ) -> impl Iterator<Item = (&'a SisciProcess, &'a SisciObject)> {
        self.processes.iter().flat_map(move |process| {
            let chosen = move |object: &&SisciObject| kinds.contains(&object.kind);
            process.objects.iter().filter(chosen).map(move |object| (process, object))
        })
    }
}

/// Kinds of the interrupts of a process, and of its connections to interrupts.
pub(super) const INTERRUPTS: [ObjectKind; 4] = [
    ObjectKind::Interrupt,
    ObjectKind::DataInterrupt,
    ObjectKind::Trigger,
    ObjectKind::DataTrigger,
];

/// Lists in the order of the output.
pub(super) const LISTS: [SisciList; 5] = [
    SisciList::Nodes,
    SisciList::Segments,
    SisciList::Connections,
    SisciList::Maps,
    SisciList::Interrupts,
];

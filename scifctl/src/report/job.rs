// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Job: its processes, and the amounts between each two of them.

use crate::report::input::{Amount, Process};
use crate::table::bytes;

/// Processes of a job, and the amounts between each two of them.
#[derive(Debug)]
pub(super) struct TrafficJob {
    pub(super) processes: Vec<Process>,
    /// Messages from the process of the row to that of the column. The last column is for peers
    /// without a file.
    pub(super) sent: Vec<Vec<Amount>>,
    /// Messages that the process of the row has received from that of the column.
    pub(super) received: Vec<Vec<Amount>>,
    /// RMA and atomics of the process of the row at that of the column.
    pub(super) accesses: Vec<Vec<Amount>>,
}

impl TrafficJob {
    pub(super) fn new(processes: Vec<Process>) -> TrafficJob {
        let row = vec![Amount::default(); processes.len() + 1];
        let empty = vec![row; processes.len()];
        let (mut sent, mut received, mut accesses) = (empty.clone(), empty.clone(), empty);
        for (from, process) in processes.iter().enumerate() {
            for peer in &process.peers {
                let to = owner_of(&processes, &peer.address, peer.pid);
                add(&mut sent, (from, to), &peer.sent);
                add(&mut received, (from, to), peer.received.get(..1).unwrap_or_default());
                add(&mut accesses, (from, to), &peer.accesses);
            }
        }
        TrafficJob { processes, sent, received, accesses }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.processes.iter().map(Process::name)
    }

    /// Whether a peer has no file.
    pub(super) fn has_others(&self) -> bool {
        let last = |row: &Vec<Amount>| row.last().is_some_and(|sum| sum.ops > 0);
        self.sent.iter().chain(&self.received).chain(&self.accesses).any(last)
    }

    /// Returns the number of messages by size class over all processes.
    pub(super) fn sizes(&self) -> Vec<u64> {
        let classes = self.processes.iter().map(|p| p.sizes.len()).max().unwrap_or(0);
        (0..classes)
            .map(|class| {
                let of = |p: &Process| p.sizes.get(class).copied().unwrap_or(0);
                self.processes.iter().fold(0, |sum: u64, p| sum.saturating_add(of(p)))
            })
            .collect()
    }
}

/// Returns the index of the process with an address; beyond the last one if it has no file. Ports
/// are used again, so the process number decides if it is known.
fn owner_of(processes: &[Process], address: &str, pid: u64) -> usize {
    let has = |process: &&Process| process.addresses.iter().any(|own| own == address);
    let same = |process: &Process| has(&process) && process.pid == pid;
    processes
        .iter()
        .position(same)
        .or_else(|| processes.iter().position(|p| pid == 0 && has(&p)))
        .unwrap_or(processes.len())
}

fn add(matrix: &mut [Vec<Amount>], (row, column): (usize, usize), amounts: &[Amount]) {
    if let Some(cell) = matrix.get_mut(row).and_then(|row| row.get_mut(column)) {
        *cell = amounts.iter().fold(*cell, |sum, amount| sum.plus(*amount));
    }
}

/// Returns the lowest size of a class, as text.
pub(super) fn class_name(class: usize) -> String {
    match u32::try_from(class) {
        Ok(0) => "0".to_owned(),
        Ok(class @ 1..=63) => bytes(1 << (class - 1)),
        _ => bytes(1 << 63),
    }
}

/// Returns the sum of amounts.
pub(super) fn sum<'a>(amounts: impl IntoIterator<Item = &'a Amount>) -> Amount {
    amounts.into_iter().fold(Amount::default(), |sum, amount| sum.plus(*amount))
}

/// Returns the share of waiting in the time of a process, in percent.
pub(super) fn waiting_percent(process: &Process) -> u64 {
    let share = u128::from(process.waiting_ns) * 100 / u128::from(process.open_ns.max(1));
    u64::try_from(share.min(100)).unwrap_or(100)
}

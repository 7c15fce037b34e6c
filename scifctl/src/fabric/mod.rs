// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Endpoints of the libfabric provider, from the state that their processes publish.
//!
//! Not about the endpoints of `scif.h` (`show`).

mod activity;
mod document;
mod job;
mod texts;
mod top;
mod waits;
mod watch;

use crate::args::WatchOptions;
use crate::failure::Result;
use watch::process;

pub(crate) use document::endpoints as endpoint_objects;
pub(crate) use texts::{cut, endpoints as endpoint_table};
pub(crate) use top::top;
pub(crate) use watch::{processes, repeat};

/// Whether a process publishes endpoints of the provider.
pub(crate) fn has_endpoints(pid: i32) -> bool {
    process(pid).is_ok()
}

/// Shows the peers of a process.
pub(crate) fn peers(pid: i32, options: &WatchOptions) -> Result<()> {
    repeat(options, || {
        let (process, all) = (process(pid)?, processes()?);
        Ok((texts::peers(&process, &all), document::process(&process, &all)))
    })
}

/// Shows everything that a process publishes.
pub(crate) fn dump(pid: i32, options: &WatchOptions) -> Result<()> {
    repeat(options, || {
        let (process, all) = (process(pid)?, processes()?);
        Ok((texts::dump(&process, &all), document::process(&process, &all)))
    })
}

/// Shows the processes of this user's jobs, and which of them wait for which.
pub(crate) fn job(options: &WatchOptions) -> Result<()> {
    repeat(options, || {
        let all = processes()?;
        let job = job::Job::of(&all, scif::now_ns());
        Ok((job.text(), job.document()))
    })
}

/// Prints the counters of a process, as FI_SCIF_STATS=1 does when an endpoint closes.
pub(crate) fn stats(pid: i32, options: &WatchOptions) -> Result<()> {
    repeat(options, || {
        let process = process(pid)?;
        Ok((texts::stats(&process), document::stats(&process)))
    })
}

#[cfg(test)]
mod tests {
    use scif::monitor::layout::{self, BYTES, PROCESS_WORDS, RECORD_WORDS, process, record};
    use scif::monitor::report::{self, Seen};
    use scif::sys::mmap::Mapping;

    use super::*;
    use crate::hostile::{INPUTS, Words};

    /// Number of endpoints in a hostile table.
    const ENDPOINTS: usize = 2;
    /// Number of words that differ from one table to the next.
    const CHANGES: usize = 24;

    /// Changes some words of a table. Counts and kinds are changed more often than the rest.
    fn change(map: &Mapping, words: &mut Words) {
        let put = |at: usize, value: u64| map.word64(8 * at).unwrap().set_relaxed(value);
        for _ in 0..CHANGES {
            let first = PROCESS_WORDS + words.below(ENDPOINTS) * RECORD_WORDS;
            let (ops, peers) = (first + record::OPS, first + record::PEERS);
            let at = match words.below(8) {
                0 => words.below(64),
                1 => first + words.below(64),
                // Numbers of snapshots, and the first words of both copies.
                2 => ops + words.below(12),
                3 => peers + words.below(12),
                4 => ops + 2 + layout::OPS_WORDS + words.below(10),
                5 => ops + words.below(2 * layout::OPS_WORDS),
                6 => peers + words.below(200),
                _ => first + words.below(RECORD_WORDS),
            };
            put(at, words.odd() << (8 * words.below(2)));
            // An operation with a kind and a state, or almost.
            let copy = words.below(2) * layout::OPS_WORDS;
            let op = layout::OP_WORDS * words.below(layout::OPS_LISTED) + layout::op::KIND;
            let kind = (words.next() % 12) | ((words.next() % 6) << 8);
            put(ops + 2 + copy + layout::ops::FIRST + op, kind);
        }
        // A snapshot that seems to be overwritten is read a thousand times: a few of these suffice.
        for at in [record::OPS, record::PEERS] {
            for endpoint in 0..ENDPOINTS {
                let begun = PROCESS_WORDS + endpoint * RECORD_WORDS + at;
                if words.below(64) > 0 {
                    put(begun, map.word64(8 * (begun + 1)).unwrap().get_relaxed());
                }
            }
        }
        let own = [(process::MAGIC, layout::MAGIC), (process::VERSION, layout::VERSION)];
        own.into_iter().chain([(process::PID, 5), (process::START, 6)]).for_each(|(at, value)| {
            put(at, value);
        });
    }

    #[test]
    fn any_table_of_an_owner_is_shown() {
        let map = Mapping::anonymous(BYTES).unwrap();
        let seen = Seen { pid: 7, own_pid: 5, start: 6, state: 'S', command: "hostile".to_owned() };
        let mut words = Words(0x9e37_79b9_7f4a_7c15);
        let (mut endpoints, mut listed) = (0, 0);
        for _ in 0..INPUTS {
            change(&map, &mut words);
            let all = [report::parse(&map, &seen).unwrap()];
            endpoints += all[0].endpoints.len();
            listed += all[0].endpoints.iter().map(|one| one.ops.listed.len()).sum::<usize>();
            let job = job::Job::of(&all, words.odd());
            assert!(job.document().is_object() && job.text().contains("RANK"));
            assert!(texts::dump(&all[0], &all).starts_with("process 7"));
            assert!(document::process(&all[0], &all).is_object());
            let _ = (texts::peers(&all[0], &all), texts::endpoints(&all), texts::stats(&all[0]));
        }
        assert!(endpoints > INPUTS / 2 && listed > INPUTS, "{endpoints}, {listed}");
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Report of a job from the files of `FI_SCIF_STATS=json`: tables, a JSON document, and a drawing.

mod input;
mod job;
mod svg;

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::args::ReportOptions;
use crate::failure::{Problem, Result};
use crate::table::{bytes, columns};
use input::{Amount, Process};
use job::{TrafficJob, class_name, sum, waiting_percent};

/// Number of processes up to which the table of the matrix has a column for each. More of them
/// would exceed 100 columns; then there is a row for each pair with the most bytes.
const MATRIX_COLUMNS: usize = 9;
/// Number of pairs in the table of the pairs with the most bytes.
const PAIRS: usize = 20;

/// Prints the report of some files, and draws it.
///
/// # Errors
/// A file is wrong, or the drawing cannot be written.
pub(crate) fn run(options: &ReportOptions) -> Result<()> {
    let job = TrafficJob::new(input::read(&options.files)?);
    std::fs::write(&options.svg, svg::draw(&job))
        .map_err(|error| Problem::Failed(format!("{}: {error}", options.svg.display())))?;
    let text = if options.json { format!("{}\n", document(&job)) } else { tables(&job) };
    io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// Returns the sums of a process by path: the paths of sent messages, then those of received ones.
fn by_path(process: &Process) -> [Amount; 7] {
    process.peers.iter().fold([Amount::default(); 7], |sums, peer| {
        let [inline, ring, announced] = peer.sent;
        let [all, pulled, both, fragments] = peer.received;
        let of = [inline, ring, announced, all, pulled, both, fragments];
        let mut sums = sums;
        sums.iter_mut().zip(of).for_each(|(sum, amount)| *sum = sum.plus(amount));
        sums
    })
}

fn tables(job: &TrafficJob) -> String {
    let head = [
        "RANK",
        "PID",
        "COMMAND",
        "SENT",
        "INLINE",
        "RING",
        "ANNOUNCED",
        "RECEIVED",
        "PULLED",
        "BOTH",
        "FRAGMENTS",
        "WAITING",
    ];
    let rows: Vec<Vec<String>> = job
        .processes
        .iter()
        .map(|process| {
            let [inline, ring, announced, all, pulled, both, fragments] = by_path(process);
            let sent = sum([&inline, &ring, &announced]);
            let rank = process.rank.map_or("-".to_owned(), |rank| rank.to_string());
            let mut row = vec![rank, process.pid.to_string(), process.command.clone()];
            let amounts = [sent, inline, ring, announced, all, pulled, both, fragments];
            row.extend(amounts.map(|amount| bytes(amount.bytes)));
            row.push(format!("{}%", waiting_percent(process)));
            row
        })
        .collect();
    let matrix = if job.processes.len() <= MATRIX_COLUMNS { matrix(job) } else { pairs(job) };
    let sizes: Vec<Vec<String>> = job
        .sizes()
        .iter()
        .enumerate()
        .filter(|(_, count)| **count > 0)
        .map(|(class, count)| vec![class_name(class), count.to_string()])
        .collect();
    let all = sum(job.sent.iter().flatten());
    format!(
        "{}\n{matrix}\n{}{} messages, {} sent\n",
        columns(&head, &rows),
        columns(&["SIZE FROM", "MESSAGES"], &sizes),
        all.ops,
        bytes(all.bytes)
    )
}

/// Returns the table of bytes sent from the process of a row to that of a column.
fn matrix(job: &TrafficJob) -> String {
    let mut head = vec!["FROM\\TO".to_owned()];
    head.extend(job.names());
    if job.has_others() {
        head.push("OTHER".to_owned());
    }
    let rows: Vec<Vec<String>> = job
        .names()
        .zip(&job.sent)
        .map(|(name, row)| {
            let cells = row.iter().take(head.len() - 1).map(|amount| bytes(amount.bytes));
            std::iter::once(name).chain(cells).collect()
        })
        .collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    columns(&head, &rows)
}

/// Returns the table of the pairs with the most bytes.
fn pairs(job: &TrafficJob) -> String {
    let names: Vec<String> = job.names().chain(["other".to_owned()]).collect();
    let mut pairs: Vec<(Amount, usize, usize)> = Vec::new();
    for (from, row) in job.sent.iter().enumerate() {
        let used = row.iter().enumerate().filter(|(_, amount)| amount.ops > 0);
        pairs.extend(used.map(|(to, amount)| (*amount, from, to)));
    }
    pairs.sort_by_key(|(amount, ..)| std::cmp::Reverse(amount.bytes));
    let name = |at: usize| names.get(at).cloned().unwrap_or_default();
    let rows: Vec<Vec<String>> = pairs
        .iter()
        .take(PAIRS)
        .map(|(amount, from, to)| {
            vec![name(*from), name(*to), amount.ops.to_string(), bytes(amount.bytes)]
        })
        .collect();
    columns(&["FROM", "TO", "MESSAGES", "BYTES"], &rows)
}

fn document(job: &TrafficJob) -> Value {
    let amounts = |matrix: &[Vec<Amount>], of: fn(&Amount) -> u64| -> Vec<Vec<u64>> {
        matrix.iter().map(|row| row.iter().map(of).collect()).collect()
    };
    let both = |matrix: &[Vec<Amount>]| {
        json!({
            "operations": amounts(matrix, |amount| amount.ops),
            "bytes": amounts(matrix, |amount| amount.bytes),
        })
    };
    let processes: Vec<Value> = job
        .processes
        .iter()
        .map(|process| {
            json!({
                "rank": process.rank,
                "pid": process.pid,
                "command": process.command,
                "open_ns": process.open_ns,
                "waiting_ns": process.waiting_ns,
            })
        })
        .collect();
    json!({
        "processes": processes,
        "sent": both(&job.sent),
        "received": both(&job.received),
        "accesses": both(&job.accesses),
        "sizes": job.sizes(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hostile::{INPUTS, Words};

    fn job() -> TrafficJob {
        let room = std::env::temp_dir().join(format!("scifctl-report-{}", std::process::id()));
        std::fs::create_dir_all(&room).unwrap();
        let files: Vec<_> = [
            input::example(1, "0:8", ("0:7", 100), 3 << 20),
            input::example(0, "0:7", ("0:8", 101), 1 << 20),
            input::example(2, "0:9", ("0:99", 7), 64),
        ]
        .iter()
        .enumerate()
        .map(|(number, text)| {
            let file = room.join(number.to_string());
            std::fs::write(&file, text).unwrap();
            file
        })
        .collect();
        let job = TrafficJob::new(input::read(&files).unwrap());
        let twice = [files[0].clone(), files[0].clone()];
        assert!(input::read(&twice).is_err(), "one process has two files");
        std::fs::remove_dir_all(room).unwrap();
        job
    }

    #[test]
    fn any_files_are_reported_or_refused() {
        let good = [
            input::example(1, "0:8", ("0:7", 100), 3 << 20),
            input::example(0, "0:7", ("0:8", 101), u64::MAX),
        ];
        let mut words = Words(0x0fed_cba9_8765_4321);
        let mut read = 0;
        for _ in 0..INPUTS {
            let mut processes = Vec::new();
            for text in &good {
                // Replaces a number, or any bytes.
                let mut bytes = text.clone().into_bytes();
                for _ in 0..words.below(4) {
                    let at = words.below(bytes.len());
                    let digits = |byte: &u8| byte.is_ascii_digit();
                    let first = bytes.iter().skip(at).position(digits).map_or(at, |n| at + n);
                    let len = bytes.iter().skip(first).take_while(|byte| digits(byte)).count();
                    bytes.splice(first..first + len, words.odd().to_string().into_bytes());
                }
                if words.below(4) == 0 {
                    words.spoil(&mut bytes);
                }
                processes.extend(input::parse(&String::from_utf8_lossy(&bytes)));
            }
            read += processes.len();
            let job = TrafficJob::new(processes);
            assert!(!tables(&job).is_empty() && document(&job).is_object());
            assert!(svg::draw(&job).ends_with("</svg>\n"));
        }
        assert!(read > INPUTS, "{read}");
    }

    #[test]
    fn the_matrix_has_the_bytes_of_each_pair() {
        let job = job();
        let bytes = document(&job)["sent"]["bytes"].clone();
        assert_eq!(bytes, json!([[0, 1_048_584, 0, 0], [3_145_736, 0, 0, 0], [0, 0, 0, 72]]));
        assert_eq!(document(&job)["received"]["bytes"][0], json!([0, 9, 0, 0]));
        assert!(job.has_others());
    }

    #[test]
    fn tables_fit_the_width() {
        let text = tables(&job());
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(text.contains("FROM\\TO") && text.contains("25%"), "{text}");
        assert!(text.ends_with("6 messages, 4M sent\n"), "{text}");
    }

    #[test]
    fn many_processes_have_a_table_of_pairs() {
        let processes = (0..20).map(|rank| Process {
            pid: 100 + rank,
            rank: Some(rank),
            addresses: vec![format!("0:{rank}")],
            peers: (0..20)
                .map(|to| input::Peer {
                    address: format!("0:{to}"),
                    sent: [Amount { ops: 1, bytes: rank * 100 + to }; 3],
                    ..input::Peer::default()
                })
                .collect(),
            ..Process::default()
        });
        let job = TrafficJob::new(processes.collect());
        let text = pairs(&job);
        assert_eq!(text.lines().count(), PAIRS + 1);
        assert!(text.lines().nth(1).unwrap().starts_with("  19  19"), "{text}");
        assert!(!svg::draw(&job).is_empty());
    }
}

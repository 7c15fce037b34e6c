// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Files of `FI_SCIF_STATS=json`. A file may have any content: members that are missing or wrong
//! are an error of the file, with its name.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use crate::failure::{Problem, Result};

/// Largest file in bytes that is read. A process writes about 300 bytes for each peer.
const FILE_MAX: u64 = 1 << 30;
/// Number of size classes of a file that are read; the largest message has less than 2^64 bytes.
const CLASSES_MAX: usize = 65;

/// Operations and bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Amount {
    pub(super) ops: u64,
    pub(super) bytes: u64,
}

impl Amount {
    /// Returns the sum, at most the largest number.
    pub(super) fn plus(self, other: Amount) -> Amount {
        Amount {
            ops: self.ops.saturating_add(other.ops),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

/// Traffic with one peer.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) address: String,
    pub(super) pid: u64,
    /// Messages sent: inline, by the ring, announced.
    pub(super) sent: [Amount; 3],
    /// Messages received: all, pulled, copied by both sides, in fragments.
    pub(super) received: [Amount; 4],
    /// Writes, reads, atomics.
    pub(super) accesses: [Amount; 3],
}

/// Process with the sums of its endpoints.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) pid: u64,
    pub(super) rank: Option<u64>,
    pub(super) command: String,
    pub(super) addresses: Vec<String>,
    /// Longest time in nanoseconds that an endpoint was open.
    pub(super) open_ns: u64,
    pub(super) waiting_ns: u64,
    pub(super) sizes: Vec<u64>,
    pub(super) peers: Vec<Peer>,
}

impl Process {
    /// Returns the rank, or the process number where there is none.
    pub(super) fn name(&self) -> String {
        self.rank.map_or_else(|| format!("pid {}", self.pid), |rank| rank.to_string())
    }
}

/// Reads the files, in the order of ranks and process numbers.
///
/// # Errors
/// A file cannot be read, is not of this kind, or two have the same process.
pub(super) fn read(files: &[impl AsRef<Path>]) -> Result<Vec<Process>> {
    let mut processes = Vec::new();
    for file in files {
        let file = file.as_ref();
        let failed = |why: String| Problem::Failed(format!("{}: {why}", file.display()));
        let text = text_of(file, FILE_MAX).map_err(failed)?;
        processes.push(parse(&text).map_err(failed)?);
    }
    processes.sort_by_key(|process| (process.rank.is_none(), process.rank, process.pid));
    let twice = processes.windows(2).find(|pair| matches!(pair, [a, b] if a.pid == b.pid));
    if let Some([first, _]) = twice {
        return Err(Problem::Failed(format!("process {} has two files", first.pid)));
    }
    Ok(processes)
}

/// Returns the text of a file.
///
/// # Errors
/// Text: the file cannot be read, or has more than `most` bytes.
fn text_of(file: &Path, most: u64) -> std::result::Result<String, String> {
    let mut text = String::new();
    let read = File::open(file).and_then(|file| file.take(most + 1).read_to_string(&mut text));
    match read {
        Ok(size) if size as u64 > most => Err(format!("more than {most} bytes")),
        Ok(_) => Ok(text),
        Err(error) => Err(error.to_string()),
    }
}

/// # Errors
/// Text about the first member that is wrong.
pub(super) fn parse(text: &str) -> std::result::Result<Process, String> {
    let document: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if document.get("format").and_then(Value::as_str) != Some("scif-stats") {
        return Err("not a file of FI_SCIF_STATS=json".to_owned());
    }
    if document.get("version").and_then(Value::as_u64) != Some(1) {
        return Err("written by another version of the provider".to_owned());
    }
    let mut process = Process {
        pid: number(&document, "pid")?,
        rank: document.get("rank").and_then(Value::as_u64),
        command: word(&document, "command")?,
        ..Process::default()
    };
    for endpoint in list(&document, "endpoints")? {
        process.addresses.push(word(endpoint, "address")?);
        process.open_ns = process.open_ns.max(number(endpoint, "open_ns")?);
        process.waiting_ns = process.waiting_ns.saturating_add(number(endpoint, "waiting_ns")?);
        for (class, count) in list(endpoint, "sizes")?.iter().take(CLASSES_MAX).enumerate() {
            let count = count.as_u64().ok_or("sizes: not numbers")?;
            process.sizes.resize(process.sizes.len().max(class + 1), 0);
            if let Some(sum) = process.sizes.get_mut(class) {
                *sum = sum.saturating_add(count);
            }
        }
        for peer in list(endpoint, "peers")? {
            process.peers.push(Peer {
                address: word(peer, "address")?,
                pid: number(peer, "pid")?,
                sent: amounts(peer, "sent", ["inline", "ring", "announced"])?,
                received: amounts(peer, "received", ["all", "pulled", "both_sides", "fragments"])?,
                accesses: amounts(peer, "accesses", ["writes", "reads", "atomics"])?,
            });
        }
    }
    Ok(process)
}

fn number(object: &Value, name: &str) -> std::result::Result<u64, String> {
    object.get(name).and_then(Value::as_u64).ok_or_else(|| format!("{name}: not a number"))
}

/// Returns a text without control characters, of at most 64 characters.
fn word(object: &Value, name: &str) -> std::result::Result<String, String> {
    let text = object.get(name).and_then(Value::as_str);
    let text = text.ok_or_else(|| format!("{name}: not a text"))?;
    Ok(text.chars().filter(|c| !c.is_control()).take(64).collect())
}

fn list<'a>(object: &'a Value, name: &str) -> std::result::Result<&'a [Value], String> {
    let list = object.get(name).and_then(Value::as_array);
    list.map(Vec::as_slice).ok_or_else(|| format!("{name}: not a list"))
}

fn amounts<const N: usize>(
    object: &Value,
    name: &str,
    names: [&str; N],
) -> std::result::Result<[Amount; N], String> {
    let mut amounts = [Amount::default(); N];
    for (amount, member) in amounts.iter_mut().zip(names) {
        let pair = object.get(name).and_then(|of| of.get(member)).and_then(Value::as_array);
        *amount = match pair.map(Vec::as_slice) {
            Some([ops, bytes]) => match (ops.as_u64(), bytes.as_u64()) {
                (Some(ops), Some(bytes)) => Amount { ops, bytes },
                _ => return Err(format!("{name}.{member}: not a pair of numbers")),
            },
            _ => return Err(format!("{name}.{member}: not a pair")),
        };
    }
    Ok(amounts)
}

/// Returns the text of a file, with one endpoint and one peer.
#[cfg(test)]
pub(super) fn example(rank: u64, own: &str, peer: (&str, u64), bytes: u64) -> String {
    format!(
        "{{\"format\":\"scif-stats\",\"version\":1,\"pid\":{},\"command\":\"app\",\
         \"rank\":{rank},\"endpoints\":[{{\"address\":\"{own}\",\"open_ns\":2000000000,\
         \"waiting_ns\":500000000,\"sizes\":[0,2,1],\"peers\":[{{\"address\":\"{}\",\"pid\":{},\
         \"sent\":{{\"inline\":[1,8],\"ring\":[0,0],\"announced\":[1,{bytes}]}},\
         \"received\":{{\"all\":[1,9],\"pulled\":[0,0],\"both_sides\":[0,0],\"fragments\":[0,0]}},\
         \"accesses\":{{\"writes\":[0,0],\"reads\":[0,0],\"atomics\":[0,0]}}}}]}}]}}",
        100 + rank,
        peer.0,
        peer.1,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_whole() {
        let process = parse(&example(3, "0:7", ("0:8", 104), 1 << 20)).unwrap();
        assert_eq!((process.pid, process.rank, process.name().as_str()), (103, Some(3), "3"));
        assert_eq!(process.peers[0].sent[2], Amount { ops: 1, bytes: 1 << 20 });
        assert_eq!((process.sizes[1], process.waiting_ns), (2, 500_000_000));
    }

    #[test]
    fn a_file_without_end_is_refused() {
        let error = text_of(Path::new("/dev/zero"), 4096).unwrap_err();
        assert_eq!(error, "more than 4096 bytes");
    }

    #[test]
    fn a_wrong_file_is_an_error_with_the_member() {
        let good = example(0, "0:7", ("0:8", 104), 5);
        for (from, to, why) in [
            ("scif-stats", "other", "FI_SCIF_STATS"),
            ("\"version\":1", "\"version\":2", "version"),
            ("\"pid\":100", "\"pid\":-1", "pid: not a number"),
            ("[1,8]", "[1]", "sent.inline: not a pair"),
            ("[0,2,1]", "[0,\"x\"]", "sizes"),
            ("}]}]}", "}]}]", "EOF"),
        ] {
            let error = parse(&good.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}

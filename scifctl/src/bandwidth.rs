// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Bandwidth to another node: messages, RMA in both directions, and copies through a mapping.
//!
//! The server registers a window and receives as requested; all measurements are made by the
//! client. A request is 16 bytes: kind and number of bytes. An answer is one byte.

use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::os::fd::RawFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use scif::{Config, PortId};
use scif_api::{Endpoints, Failure, Pages};
use serde_json::{Map, Value, json};

use crate::args::{BandwidthOptions, port_id};
use crate::failure::{Problem, Result};
use crate::table::{bytes, columns};

/// Offset of the windows.
const OFFSET: i64 = 0;
const READ_WRITE: i32 = 3;
const FIXED: i32 = 0x10;
const SYNC: i32 = 4;
/// Kind of a request: register a window of this number of bytes, or receive this number of bytes.
const REGISTER: u64 = 1;
const RECEIVE: u64 = 2;
/// Size in bytes of the smallest transfer; each next one is four times as large.
const SMALLEST: usize = 64;
/// Duration of each measurement. A shorter one is less exact.
const TIME: Duration = Duration::from_millis(60);
/// Maximum number of bytes between two answers.
const ROUND: usize = 8 << 20;
const BAR: usize = 32;

fn failed(action: &'static str) -> impl Fn(Failure) -> Problem {
    move |failure| Problem::Failed(format!("{action}: {failure}"))
}

/// Kind of transfer to measure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Send,
    WriteTo,
    ReadFrom,
    Mapping,
}

const KINDS: [(Kind, &str); 4] = [
    (Kind::Send, "send"),
    (Kind::WriteTo, "writeto"),
    (Kind::ReadFrom, "readfrom"),
    (Kind::Mapping, "mmap"),
];

/// One side of a connection.
struct End {
    endpoints: Endpoints,
    fd: RawFd,
}

impl End {
    fn request(&self, kind: u64, n: usize) -> Result<()> {
        let mut words = [0; 16];
        let (first, count) = words.split_at_mut(8);
        first.copy_from_slice(&kind.to_le_bytes());
        count.copy_from_slice(&(n as u64).to_le_bytes());
        self.endpoints.send_bytes(self.fd, &words, true).map_err(failed("scif_send"))?;
        Ok(())
    }

    fn answered(&self) -> Result<()> {
        self.endpoints.receive_bytes(self.fd, &mut [0], true).map_err(failed("scif_recv"))?;
        Ok(())
    }
}

/// Runs the server: listens on `port`, prints its address, and serves one client after the other.
pub(crate) fn serve(config: &Config, port: u16) -> Result<()> {
    let endpoints = Endpoints::new(config.clone()).map_err(failed("SCIF"))?;
    let listener = endpoints.open().map_err(failed("scif_open"))?;
    let port = endpoints.bind(listener, port).map_err(failed("scif_bind"))?;
    endpoints.listen(listener, 8).map_err(failed("scif_listen"))?;
    let mut out = io::stdout();
    let id = PortId::new(config.node, port);
    writeln!(out, "{id}")?;
    out.flush()?;
    loop {
        let (_, fd) = endpoints.accept(listener, true).map_err(failed("scif_accept"))?;
        // A client that leaves does not stop the server.
        if let Err(Problem::Failed(cause)) = serve_one(&endpoints, fd) {
            writeln!(io::stderr(), "scifctl: {cause}")?;
        }
        endpoints.close(fd).map_err(failed("scif_close"))?;
    }
}

fn invalid_request() -> Problem {
    Problem::Failed(
        "invalid request from the peer: use one version of scifctl on both sides".to_owned(),
    )
}

fn serve_one(endpoints: &Endpoints, fd: RawFd) -> Result<()> {
    let mut buffer = vec![0; 256 << 10];
    let mut window: Option<Pages> = None;
    loop {
        let mut request = [0; 16];
        match endpoints.receive_bytes(fd, &mut request, true) {
            Ok(16) => {}
            Ok(_) | Err(Failure::Reset) => return Ok(()),
            Err(failure) => return Err(failed("scif_recv")(failure)),
        }
        let (kind, n) = request.split_at(8);
        let word = |bytes: &[u8]| bytes.first_chunk().copied().map_or(0, u64::from_le_bytes);
        let n = usize::try_from(word(n)).map_err(|_| invalid_request())?;
        match word(kind) {
            REGISTER if n <= 1 << 30 && window.is_none() => {
                let pages = Pages::new(n).map_err(failed("memory"))?;
                endpoints
                    .register(fd, (pages.addr(), pages.len()), OFFSET, READ_WRITE, FIXED)
                    .map_err(failed("scif_register"))?;
                window = Some(pages);
            }
            RECEIVE => {
                let mut left = n;
                while left > 0 {
                    let size = buffer.len().min(left);
                    let part = buffer.get_mut(..size).unwrap_or_default();
                    left -= endpoints.receive_bytes(fd, part, true).map_err(failed("scif_recv"))?;
                }
            }
            _ => return Err(invalid_request()),
        }
        endpoints.send_bytes(fd, &[1], true).map_err(failed("scif_send"))?;
    }
}

/// Process that is killed when dropped.
pub(crate) struct ChildGuard(pub(crate) Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_server() -> Result<(ChildGuard, PortId)> {
    let child = Command::new(std::env::current_exe()?)
        .args(["bw", "--serve"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut server = ChildGuard(child);
    let id = address_of(&mut server)?;
    Ok((server, id))
}

/// Reads the address that a server prints.
pub(crate) fn address_of(server: &mut ChildGuard) -> Result<PortId> {
    let mut line = String::new();
    if let Some(out) = server.0.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    port_id(line.trim()).map_err(|_| Problem::Failed("the other side did not start".to_owned()))
}

/// Progress bar on the standard error stream.
struct Progress {
    shown: bool,
    steps: usize,
    done: usize,
}

impl Progress {
    fn step(&mut self, label: &str, size: usize) {
        if !self.shown {
            return;
        }
        let full = BAR * self.done / self.steps.max(1);
        let percent = 100 * self.done / self.steps.max(1);
        let bar = format!("{}{}", "#".repeat(full), ".".repeat(BAR - full));
        // A failed progress bar does not stop the measurement.
        let _ = write!(io::stderr(), "\r[{bar}] {percent:3} % {label} {:<6}", bytes(size as u64));
        self.done += 1;
    }

    fn end(&self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r{:width$}\r", "", width = BAR + 32);
        }
    }
}

/// Returns the bandwidth in bytes per second of transfers of `size`.
fn rate(end: &End, kind: Kind, size: usize, buffer: &[u8], mapping: &Pages) -> Result<f64> {
    let part = buffer.get(..size).unwrap_or_default();
    let per_round = (ROUND / size).clamp(1, 4096);
    let round = || -> Result<()> {
        if kind == Kind::Send {
            end.request(RECEIVE, size * per_round)?;
        }
        for _ in 0..per_round {
            match kind {
                Kind::Send => end.endpoints.send_bytes(end.fd, part, true).map(drop),
                Kind::WriteTo => end.endpoints.write_to(end.fd, OFFSET, size, OFFSET, SYNC),
                Kind::ReadFrom => end.endpoints.read_from(end.fd, OFFSET, size, OFFSET, SYNC),
                Kind::Mapping => mapping.write(0, part),
            }
            .map_err(failed("transfer"))?;
        }
        if kind == Kind::Send { end.answered() } else { Ok(()) }
    };
    round()?;
    let (begin, mut rounds) = (Instant::now(), 0u32);
    while begin.elapsed() < TIME {
        round()?;
        rounds += 1;
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let moved = (size * per_round) as f64 * f64::from(rounds);
    Ok(moved / begin.elapsed().as_secs_f64())
}

/// Serves, or measures and prints.
pub(crate) fn run(config: &Config, options: &BandwidthOptions) -> Result<()> {
    match options.serve {
        Some(port) => serve(config, port),
        None => measure(config, options),
    }
}

/// Connects to a server; both sides register windows of `max` bytes.
fn connected(config: &Config, to: PortId, max: usize) -> Result<(End, Pages)> {
    let endpoints = Endpoints::new(config.clone()).map_err(failed("SCIF"))?;
    let fd = endpoints.open().map_err(failed("scif_open"))?;
    endpoints.connect(fd, to).map_err(failed("scif_connect"))?;
    let end = End { endpoints, fd };
    end.request(REGISTER, max)?;
    end.answered()?;
    let own = Pages::new(max).map_err(failed("memory"))?;
    end.endpoints
        .register(fd, (own.addr(), own.len()), OFFSET, READ_WRITE, FIXED)
        .map_err(failed("scif_register"))?;
    Ok((end, own))
}

/// Bytes of the transfers of a sample.
pub(crate) const SAMPLE_BYTES: usize = 1 << 20;

/// Speed of a connection.
pub(crate) struct Sample {
    pub(crate) latency_ns: f64,
    pub(crate) bytes_per_second: f64,
}

/// Measures the latency of requests and answers, and the bandwidth of writes: the best batch of
/// `batch` round trips, and the best write.
pub(crate) fn sample(config: &Config, to: PortId, batch: u32) -> Result<Sample> {
    let (end, _own) = connected(config, to, SAMPLE_BYTES)?;
    let (begin, mut round_trips) = (Instant::now(), Duration::MAX);
    while begin.elapsed() < 8 * TIME {
        let one = Instant::now();
        for _ in 0..batch {
            end.request(RECEIVE, 0)?;
            end.answered()?;
        }
        round_trips = round_trips.min(one.elapsed());
    }
    let (begin, mut write) = (Instant::now(), Duration::MAX);
    while begin.elapsed() < 4 * TIME {
        let one = Instant::now();
        end.endpoints
            .write_to(end.fd, OFFSET, SAMPLE_BYTES, OFFSET, SYNC)
            .map_err(failed("scif_writeto"))?;
        write = write.min(one.elapsed());
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let bytes = SAMPLE_BYTES as f64;
    Ok(Sample {
        latency_ns: round_trips.as_secs_f64() * 1e9 / f64::from(2 * batch),
        bytes_per_second: bytes / write.as_secs_f64(),
    })
}

fn measure(config: &Config, options: &BandwidthOptions) -> Result<()> {
    let max = options.max;
    let (_server, to) = match options.to {
        Some(to) => (None, to),
        None => {
            let (server, to) = start_server()?;
            (Some(server), to)
        }
    };
    let (end, _own) = connected(config, to, max)?;
    let fd = end.fd;
    let mapping = end.endpoints.map_pages(fd, max, OFFSET, true).map_err(failed("scif_mmap"))?;
    let buffer = vec![1; max];
    let sizes: Vec<usize> = std::iter::successors(Some(SMALLEST.min(max)), |size| Some(size * 4))
        .take_while(|size| *size <= max)
        .collect();
    let mut progress = Progress {
        shown: options.progress || io::stderr().is_terminal(),
        steps: sizes.len() * KINDS.len(),
        done: 0,
    };
    let mut rows = Vec::new();
    for size in sizes {
        let mut rates = Vec::new();
        for (kind, name) in KINDS {
            progress.step(name, size);
            rates.push((name, rate(&end, kind, size, &buffer, &mapping)? / 1e6));
        }
        rows.push((size, rates));
    }
    progress.end();
    print(&rows, options.json, to)?;
    end.endpoints.close(fd).map_err(failed("scif_close"))
}

fn print(rows: &[(usize, Vec<(&str, f64)>)], as_json: bool, to: PortId) -> Result<()> {
    let mut out = io::stdout().lock();
    if as_json {
        // One decimal, like in the table.
        let rounded = |rate: f64| json!((rate * 10.0).round() / 10.0);
        let entry = |(name, rate): &(&str, f64)| ((*name).to_owned(), rounded(*rate));
        let lines = rows.iter().map(|(size, rates)| {
            let size = std::iter::once(("bytes".to_owned(), json!(size)));
            Value::Object(size.chain(rates.iter().map(entry)).collect::<Map<_, _>>())
        });
        let lines: Vec<Value> = lines.collect();
        let document = json!({"to": to.to_string(), "megabytes_per_second": lines});
        return Ok(writeln!(out, "{document}")?);
    }
    let table: Vec<Vec<String>> = rows
        .iter()
        .map(|(size, rates)| {
            std::iter::once(bytes(*size as u64))
                .chain(rates.iter().map(|(_, rate)| format!("{rate:.1}")))
                .collect()
        })
        .collect();
    let mut head = vec!["BYTES"];
    head.extend(KINDS.iter().map(|(_, name)| *name));
    write!(out, "MB/s to {to}\n{}", columns(&head, &table))?;
    Ok(())
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Work of a rank that is not timed itself. It opens many endpoints that each exchange one message,
//! measures the resources of a process, or keeps up traffic until the peer is dead.

use libfabric_sys::FI_THREAD_DOMAIN;
use scif_fabtests::fi::{Errno, Lib};
use scif_fabtests::harness::sandbox::open_files;
use scif_fabtests::harness::{Fail, Outcome};

use super::os::now_ns;
use super::port::{Family, Port, PortKind, Room};
use super::shm_barrier::ShmBarrier;

const HELLO: u64 = 0xa11;
const WELCOME: u64 = 0xa12;
const TRAFFIC: u64 = 0xa13;
/// Maximum bytes of a name; a provider with longer names is not measured.
const NAME_ROOM: usize = 256;
/// Maximum number of outstanding operations.
const DEPTH: u64 = 16;
/// Nanoseconds of silence after which a dead peer counts as never noticed.
const DEADLINE_NS: u64 = 2_500_000_000;

/// Receives a name from each of `count` unknown endpoints and replies to each.
pub(crate) fn adopt(port: &Port, count: u64) -> Outcome {
    let (into, out) = (port.into.sub(0, NAME_ROOM + 8), port.out.sub(0, 8));
    for _ in 0..count {
        let received = port.received();
        port.post(|| port.ep.trecv(into, libfabric_sys::FI_ADDR_UNSPEC, HELLO, 0, 4))?;
        port.wait_received(received + 1)?;
        let len = usize::try_from(into.load_u64(0)).map_err(Fail::here)?.min(NAME_ROOM);
        let stranger = port.av.insert(&into.get(8, len))?;
        let sent = port.sent();
        port.post(|| port.ep.tsend(out, stranger, WELCOME, 5))?;
        port.wait_sent(sent + 1)?;
    }
    Ok(())
}

/// Opens `count` endpoints, each of which sends its name to `host` and receives a reply.
pub(crate) fn visit(
    lib: &'static Lib,
    provider: &str,
    count: u64,
    host: &[u8],
) -> Outcome<Vec<Port>> {
    let room = Room::open(lib, provider, (Family::Tagged, FI_THREAD_DOMAIN), false)?;
    let mut ports = Vec::new();
    for _ in 0..count {
        let port = room.port(NAME_ROOM + 8, None)?;
        let name = port.ep.name()?;
        if name.len() > NAME_ROOM {
            return Err(Fail::NotRun("names are too long".into()));
        }
        port.out.put(0, &(name.len() as u64).to_le_bytes());
        port.out.put(8, &name);
        let host = port.av.insert(host)?;
        port.post(|| port.ep.trecv(port.into, libfabric_sys::FI_ADDR_UNSPEC, WELCOME, 0, 4))?;
        port.post(|| port.ep.tsend(port.out, host, HELLO, 5))?;
        ports.push(port);
    }
    while ports.iter().any(|port| port.received() == 0 || port.sent() == 0) {
        ports.iter().try_for_each(Port::progress)?;
        std::thread::yield_now();
    }
    Ok(ports)
}

/// Opens and enables `count` endpoints without peers, each with its queues and address vector.
/// Returns the median of the nanoseconds of each, and the resident bytes of each.
pub(crate) fn start(lib: &'static Lib, provider: &str, count: u64) -> Outcome<Vec<u64>> {
    let room = Room::open(lib, provider, (Family::Tagged, FI_THREAD_DOMAIN), false)?;
    // The one-time needs of the domain belong to the first endpoint.
    let _first = room.port(8, None)?;
    let before = weigh()?;
    let (mut ports, mut times) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let begin = now_ns();
        ports.push(room.port(8, None)?);
        times.push(now_ns() - begin);
    }
    times.sort_unstable();
    let bytes = |weighed: &[u64]| weighed.first().copied().unwrap_or(0);
    let each = bytes(&weigh()?).saturating_sub(bytes(&before)) / count.max(1);
    Ok(vec![times.get(times.len() / 2).copied().unwrap_or(0), each])
}

/// Returns resident bytes and open descriptors of this process.
pub(crate) fn weigh() -> Outcome<Vec<u64>> {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let resident = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Rss:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .ok_or_else(|| Fail::here("no Rss in smaps_rollup"))?;
    Ok(vec![resident * 1024, open_files()? as u64])
}

/// Opens the endpoint for [`suffer`]. A receive from any source rightly outlives a dead peer; a
/// directed receive does not, where the provider supports one.
pub(crate) fn direct(lib: &'static Lib, provider: &str, barrier: &ShmBarrier) -> Outcome<Port> {
    let open = |is_directed| {
        let kind = PortKind { family: Family::Tagged, is_directed, is_shared: false };
        Port::open(lib, provider, kind, barrier)
    };
    match open(true) {
        Err(Fail::NotRun(_)) => open(false),
        other => other,
    }
}

/// Sends to the peer, or receives from it, until an error reports its death. Returns the time of
/// the error, and 1 for an error completion or 2 for a refused call. Returns zeros after
/// [`DEADLINE_NS`] without an error.
pub(crate) fn suffer(port: &Port, size: usize, sends: bool) -> Vec<u64> {
    let (out, into) = (port.out.sub(0, size), port.into.sub(0, size));
    let started = now_ns();
    let count = || if sends { port.sent() } else { port.received() };
    let mut posted = count();
    for turn in 1_u64.. {
        let done = count();
        if posted - done < DEPTH {
            let result = if sends {
                port.ep.tsend(out, port.peer, TRAFFIC, 6)
            } else {
                port.ep.trecv(into, port.peer, TRAFFIC, 0, 6)
            };
            match result {
                Ok(()) => posted += 1,
                Err(Errno::EAGAIN) => {}
                Err(_) => return vec![now_ns(), 2],
            }
        }
        if port.progress().is_err() {
            return vec![now_ns(), 1];
        }
        if turn % 256 == 0 && now_ns() - started > DEADLINE_NS {
            break;
        }
    }
    vec![0, 0]
}

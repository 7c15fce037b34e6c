// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Surprising behaviour of mainline's driver with connects, with occupied offsets, and at the exit
//! of a program (`Config::device_traps`).
//!
//! Connects that return EINPROGRESS are made one at a time. The driver has one work item for all
//! processes of a node. It sends a request, waits up to 30 s for the answer, and takes the next
//! one. A call that collects a result or closes an endpoint waits until the work item is idle.
//!
//! The emulation has one thread per process while connects are to be made. For each connect the
//! thread binds one socket name of the node, which no other process can bind meanwhile. The name is
//! freed if the process dies. Blocking connects run in the thread of their caller, as in the
//! driver.
//!
//! A request that was given up stays with its listener. The driver never returns from accepting it,
//! and locks up when the listener is closed. In this emulation both are errors.
//!
//! The driver keeps an endpoint for ever, with its port, if its process exits while it has a window
//! and maps one of the peer. This emulation reports it, after the exit handlers of the program.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use scif::sys::fork::{self, PrivateFd};
use scif::sys::{thread, unix};
use scif::{Config, PortId};

use crate::endpoint::Epd;
use crate::failure::{Failure, Result};
use crate::lock::take;
use crate::registry::Inner;
use crate::sharer::Async;
use crate::state::State;
use crate::window::table::{OFFSET_MAX, OwnTable};
use crate::wire::{PACKET, Packet};

/// Pause between two attempts to take the name of the node.
const RETRY: Duration = Duration::from_millis(1);
/// Nanoseconds between checks of the endpoint for which the thread waits, independent of its
/// events.
const LOOK_NS: u64 = 10_000_000;

/// Makes one connect in the thread of this module.
pub(crate) type MakeConnect = fn(&Arc<Inner>, &Arc<Epd>, PortId);

/// Takes the name under which connects of this node are made. `None`: another process or thread
/// has it.
fn connect_turn(inner: &Inner) -> Result<Option<PrivateFd>> {
    let name = format!("scif/{}/{}/connect", inner.domain, inner.config.node);
    let socket = unix::socket()?;
    match unix::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?) {
        // A forked child does not keep the name.
        Ok(()) => Ok(Some(PrivateFd::new(socket))),
        Err(Errno::ADDRINUSE) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Queues a connect for the thread, which calls `make`. The caller holds the control lock and has
/// entered [`State::Connecting`].
///
/// # Errors
/// [`Failure::NoMemory`] if no thread can be started.
pub(crate) fn connect_later(
    inner: &Arc<Inner>,
    epd: &Arc<Epd>,
    dst: PortId,
    make: MakeConnect,
) -> Result<()> {
    let mut work = take(&inner.connect_work);
    let here = work.running == Some(fork::generation());
    if !here {
        // The parent makes the connects that it has queued.
        work.waiting.clear();
    }
    work.waiting.push_back((Arc::clone(epd), dst));
    if !here {
        let inner = Arc::clone(inner);
        if thread::spawn_quiet("scif connect", move || make_connects(&inner, make)).is_err() {
            work.waiting.pop_back();
            return Err(Failure::NoMemory);
        }
        work.running = Some(fork::generation());
    }
    Ok(())
}

fn make_connects(inner: &Arc<Inner>, make: MakeConnect) {
    loop {
        let next = {
            let _busy = fork::busy();
            let mut work = take(&inner.connect_work);
            let next = work.waiting.pop_front();
            if next.is_none() {
                work.running = None;
            }
            next
        };
        let Some((epd, dst)) = next else { return };
        let turn = loop {
            match connect_turn(inner) {
                Ok(None) => std::thread::sleep(RETRY),
                Ok(turn) => break turn,
                Err(failure) => {
                    log::warn!(
                        "SCIF_DEVICE_TRAPS: socket name of the node for asynchronous connects \
                         could not be bound: {failure}; the connects are not serialised. Raise \
                         the limit of open files (ulimit -n)"
                    );
                    break None;
                }
            }
        };
        {
            let _busy = fork::busy();
            make(inner, &epd, dst);
        }
        while epd.sharer.asynchronous() == Async::Running && epd.sharer.state() == State::Connecting
        {
            let event = epd.sharer.event();
            if epd.sharer.asynchronous() == Async::Running {
                let _ = epd.sharer.wait(event, Some(LOOK_NS));
            }
        }
        drop(turn);
    }
}

/// Waits until no connect of the node is in progress or queued in this process, like
/// `flush_work`.
pub(crate) fn flush_connects(inner: &Inner) {
    loop {
        let mine = take(&inner.connect_work).running == Some(fork::generation());
        if !mine && !matches!(connect_turn(inner), Ok(None)) {
            return;
        }
        std::thread::sleep(RETRY);
    }
}

/// Whether the opener sent a `Bye` after its hello because it stopped waiting.
fn was_given_up(socket: &OwnedFd) -> bool {
    let mut buffer = [0; PACKET + 1];
    let next = unix::peek(socket, &mut buffer).map_or(0, |next| next.bytes);
    buffer.get(..next).and_then(Packet::decode) == Some(Packet::Bye)
}

/// Marks a request at its listener as given up.
pub(crate) fn leave_request(inner: &Inner, socket: &OwnedFd) {
    if inner.config.device_traps {
        let _ = unix::send(socket, &Packet::Bye.encode(), &[]);
    }
}

/// Checks a request after its hello was read.
///
/// # Errors
/// ENOTRECOVERABLE: the driver would never return from accepting it.
pub(crate) fn check_request(
    inner: &Inner,
    listener: &Epd,
    socket: &OwnedFd,
    from: PortId,
) -> Result<()> {
    if !inner.config.device_traps || !was_given_up(socket) {
        return Ok(());
    }
    log::error!(
        "accept at port {}: the request of {from} has timed out. With mainline's driver this \
         call would block for ever; the emulation (SCIF_DEVICE_TRAPS) returns ENOTRECOVERABLE. \
         Keep a thread waiting in accept",
        listener.sharer.port()
    );
    Err(Failure::Os(Errno::NOTRECOVERABLE))
}

/// Checks the queued requests of an endpoint that ends. Returns and logs whether the driver
/// would lock up.
pub(crate) fn look_for_lockup(inner: &Inner, epd: &Epd) -> bool {
    if !inner.config.device_traps || epd.sharer.state() != State::Listening {
        return false;
    }
    let socket = take(&epd.port_socket);
    let mut requests = std::iter::from_fn(|| unix::accept(socket.as_ref()?).ok());
    let locks_up = requests.any(|request| {
        let hello = unix::receive(&request, &mut [0; PACKET + 1]);
        hello.is_ok() && was_given_up(&request)
    });
    if locks_up {
        log::error!(
            "close of the listener at port {}: a request has timed out in its queue. With \
             mainline's driver this close would block for ever (SCIF_DEVICE_TRAPS). Keep a \
             thread waiting in accept",
            epd.sharer.port()
        );
    }
    locks_up
}

/// Returns the offset of a window that is registered with SCIF_MAP_FIXED over other ones. The
/// driver does not refuse it. Within another window it takes the offset of that one, and RMA finds
/// the older window. Otherwise it takes the end of the last window below the end of the range.
///
/// # Errors
/// [`Failure::InUse`] without the traps, [`Failure::NoMemory`] at the end of the address space.
pub(crate) fn occupied_place(config: &Config, table: &OwnTable, at: u64, size: u64) -> Result<u64> {
    if !config.device_traps {
        return Err(Failure::InUse);
    }
    let (mut begin, end) = (at, at + size);
    for window in table.all()? {
        if window.offset >= end || window.end() <= begin {
            continue;
        }
        if begin >= window.offset && end <= window.end() {
            begin = window.offset;
            break;
        }
        if end > window.end() {
            begin = window.end();
        }
    }
    if size > OFFSET_MAX - begin { Err(Failure::NoMemory) } else { Ok(begin) }
}

/// Reports at each later exit of the process the ports that the driver would keep.
pub(crate) fn report_kept_ports(inner: &Arc<Inner>) {
    if !inner.config.device_traps {
        return;
    }
    let inner = Arc::downgrade(inner);
    thread::at_exit(move || {
        if let Some(inner) = inner.upgrade() {
            look_for_kept_ports(&inner);
        }
    });
}

/// Returns the number of endpoints that the driver would keep if the process exited now, and logs
/// them.
fn look_for_kept_ports(inner: &Inner) -> usize {
    let has_window = |epd: &Epd| {
        let windows = epd.link().map(|link| link.own.table.all());
        windows.is_some_and(|all| all.is_ok_and(|all| all.iter().any(|window| !window.deleted)))
    };
    let every = inner.every();
    let kept = every.iter().filter(|epd| has_window(epd) && epd.windows.is_anything_mapped());
    kept.inspect(|epd| {
        log::error!(
            "exit with a window and a mapping of the peer's on the endpoint at port {}: mainline's \
             driver would keep the port until the system restarts (SCIF_DEVICE_TRAPS). Unmap the \
             window first",
            epd.sharer.port()
        );
    })
    .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Endpoints, Pages, connected};

    fn endpoints(name: &str, device_traps: bool) -> Endpoints {
        Endpoints::new(Config {
            domain: Some(format!("{name}-{}", std::process::id())),
            connect_timeout_ms: 50,
            device_traps,
            ..Config::default()
        })
        .unwrap()
    }

    /// Makes a listener with a request that was given up.
    fn left_alone(scif: &Endpoints) -> i32 {
        let listener = scif.open().unwrap();
        let port = scif.bind(listener, 0).unwrap();
        scif.listen(listener, 4).unwrap();
        let opener = scif.open().unwrap();
        assert_eq!(scif.connect(opener, PortId::new(0, port)), Err(Failure::Refused));
        listener
    }

    #[test]
    fn accept_of_a_timed_out_request_fails() {
        let scif = endpoints("wedge", true);
        let listener = left_alone(&scif);
        let wedged = Failure::Os(Errno::NOTRECOVERABLE);
        assert_eq!(scif.accept(listener, true).err(), Some(wedged));
        assert_eq!(scif.accept(listener, false).err(), Some(Failure::Again));
        let scif = endpoints("no-wedge", false);
        let listener = left_alone(&scif);
        assert_eq!(scif.accept(listener, false).err(), Some(Failure::Again));
    }

    #[test]
    fn a_window_and_a_mapping_on_one_endpoint_keep_its_port() {
        const LEN: usize = 4096;
        let _alone = scif::sys::children::none();
        let scif = endpoints("kept", true);
        let (a, b) = connected(&scif, &scif);
        let [mine, theirs] = [(); 2].map(|()| Pages::new(LEN).unwrap());
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let at = scif.register(b, (theirs.addr(), LEN), 0, rights, 0).unwrap();
        let mapped = scif.map(a, (0, LEN), at, rights, 0).unwrap();
        assert_eq!(look_for_kept_ports(&scif.0), 0, "no window of its own");
        scif.register(a, (mine.addr(), LEN), 0, rights, 0).unwrap();
        assert_eq!(look_for_kept_ports(&scif.0), 1);
        scif.unmap(mapped, LEN).unwrap();
        assert_eq!(look_for_kept_ports(&scif.0), 0);
        scif.close(a).unwrap();
        scif.close(b).unwrap();
    }

    #[test]
    fn an_occupied_offset_is_not_refused() {
        const LEN: usize = 4096;
        const FIXED: i32 = 0x10;
        for traps in [true, false] {
            let _alone = scif::sys::children::none();
            let scif = endpoints(&format!("occupied-{traps}"), traps);
            let (a, b) = connected(&scif, &scif);
            let memory = Pages::new(5 * LEN).unwrap();
            let register = |page: usize, pages: usize, offset| {
                let range = (memory.addr() + page * LEN, pages * LEN);
                scif.register(a, range, offset, libc::PROT_READ, FIXED)
            };
            assert_eq!(register(0, 1, 0x1_0000), Ok(0x1_0000));
            assert_eq!(register(1, 1, 0x1_1000), Ok(0x1_1000));
            let over = |at| if traps { Ok(at) } else { Err(Failure::InUse) };
            assert_eq!(register(2, 1, 0x1_0000), over(0x1_0000));
            assert_eq!(register(2, 3, 0xf000), over(0x1_1000));
            scif.close(a).unwrap();
            scif.close(b).unwrap();
        }
    }

    #[test]
    fn timed_out_request_blocks_the_close_of_its_listener() {
        for traps in [true, false] {
            let scif = endpoints(&format!("end-{traps}"), traps);
            let listener = left_alone(&scif);
            let epd = scif.0.get(listener).unwrap();
            assert_eq!(look_for_lockup(&scif.0, &epd), traps);
            assert!(!look_for_lockup(&scif.0, &epd), "nothing is left");
        }
    }
}

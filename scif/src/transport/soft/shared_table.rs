// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Search for a shared table by its name, through a listening socket that all its holders share.
//!
//! Any holder sends a connecting process the memory and the listening socket itself. So the name
//! lasts as long as any holder, and the kernel removes it with the last. Each holder has a thread
//! that sleeps until a process connects, because a computing program answers no request otherwise.
//!
//! Not about the content of the memory.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use scif_ring::AtomicFlag;

use super::node::Soft;
use crate::error::{Error, Result};
use crate::sys::fork::{Maker, PrivateFd};
use crate::sys::logging::warn_about_peer;
use crate::sys::memfd::{self, FIXED_SIZE};
use crate::sys::mmap::Mapping;
use crate::sys::time::now_ns;
use crate::sys::{file, thread, unix};
use crate::transport::{Hold, Init};
use crate::waiter::Waiter;

/// Content of a holder's answer, sent with [memory, listener].
const HERE: &[u8] = b"B1";
const BACKLOG: i32 = 4096;
/// Time in nanoseconds that a holder may take to answer. Afterwards the request is repeated.
const ANSWER_NS: u64 = 1_000_000_000;
const TRIES: u32 = 10;
const LOCK_TRIES: u32 = 5000;
const PAUSE: Duration = Duration::from_millis(1);
/// Time in nanoseconds for which a holder that closes the table waits for its thread. Afterwards it
/// connects to the table, to end a sleep in `accept`.
const END_QUIET_NS: u64 = 5_000_000;
/// Time in nanoseconds after which the thread is left behind, with the listener. The thread ends
/// with the next connecting process.
const END_NS: u64 = 200_000_000;
const END_PAUSE: Duration = Duration::from_micros(50);

/// State that the service thread sends to connecting processes.
#[derive(Debug)]
struct OfferedTable {
    soft: Arc<Soft>,
    memory: PrivateFd,
    listener: PrivateFd,
    waiter: Waiter,
    stop: AtomicFlag,
}

/// One holder.
#[derive(Debug)]
struct SoftTable {
    map: Mapping,
    /// A second descriptor of the memory: locks of one descriptor and its copies do not exclude
    /// each other.
    own: PrivateFd,
    name: String,
    addr: SocketAddrUnix,
    maker: Maker,
    shown: Option<Arc<OfferedTable>>,
    service: Option<JoinHandle<()>>,
}

/// Memory of a shared table and its listening socket.
struct Found {
    memory: OwnedFd,
    listener: OwnedFd,
}

pub(super) fn open(
    soft: Arc<Soft>,
    name: &str,
    len: usize,
    make: Option<Init<'_>>,
) -> Result<Box<dyn Hold>> {
    let addr = soft.names.shared_table(name)?;
    let found = find(&soft, name, len, make)?;
    memfd::check(&found.memory, len, FIXED_SIZE).map_err(|_| strange())?;
    let map = Mapping::shared(&found.memory, len, make.is_some()).map_err(Error::os("mmap"))?;
    let own = file::reopen(&found.memory).map_err(Error::os("open"))?;
    let waiter = Waiter::new()?;
    waiter.add(found.listener.as_fd())?;
    let shown = Arc::new(OfferedTable {
        soft,
        memory: PrivateFd::new(found.memory),
        listener: PrivateFd::new(found.listener),
        waiter,
        stop: AtomicFlag::new(false),
    });
    let service = {
        let shown = Arc::clone(&shown);
        thread::spawn_joined("scif-table", move || shown.serve()).map_err(|e| Error::Os {
            call: "thread",
            errno: e.raw_os_error().map_or(Errno::AGAIN, Errno::from_raw_os_error),
        })?
    };
    Ok(Box::new(SoftTable {
        map,
        own: PrivateFd::new(own),
        name: name.to_owned(),
        addr,
        maker: Maker::here(),
        shown: Some(shown),
        service: Some(service),
    }))
}

/// Returns the error for a name taken by a foreign program.
fn strange() -> Error {
    Error::Os { call: "shared table of that name", errno: Errno::INVAL }
}

/// Requests the table from a holder, or creates it if none exists.
fn find(soft: &Soft, name: &str, len: usize, make: Option<Init<'_>>) -> Result<Found> {
    let addr = soft.names.shared_table(name)?;
    let mut last = Errno::TIMEDOUT;
    for _ in 0..TRIES {
        let socket = soft.with_descriptor(unix::socket).map_err(Error::os("socket"))?;
        match unix::connect(&socket, &addr) {
            Ok(()) => match receive_answer(soft, &socket)? {
                Some(found) => return Ok(found),
                // The holder has just closed the table, or is stopped.
                None => last = Errno::TIMEDOUT,
            },
            Err(errno @ (Errno::CONNREFUSED | Errno::NOENT)) => {
                let Some(make) = make else {
                    return Err(Error::Os { call: "connect", errno: Errno::NOENT });
                };
                match create(soft, name, len, make) {
                    // Another process is about to listen.
                    Err(Error::Os { errno: Errno::ADDRINUSE, .. }) => last = errno,
                    other => return other,
                }
            }
            Err(errno @ Errno::AGAIN) => last = errno,
            Err(errno) => {
                return Err(Error::Os { call: "connect", errno });
            }
        }
        std::thread::sleep(PAUSE);
    }
    Err(Error::Os { call: "shared table", errno: last })
}

/// Receives the answer of the holder that accepts `socket`; `None` without an answer.
fn receive_answer(soft: &Soft, socket: &OwnedFd) -> Result<Option<Found>> {
    let uid = unix::credentials(socket).map_err(Error::os("SO_PEERCRED"))?.uid;
    if !soft.admits(uid) {
        return Err(Error::Os { call: "shared table of another user", errno: Errno::ACCESS });
    }
    let waiter = Waiter::new()?;
    waiter.add(socket.as_fd())?;
    waiter.wait(Some(ANSWER_NS))?;
    let mut bytes = [0; 8];
    let Ok(answer) = unix::receive(socket, &mut bytes) else {
        return Ok(None);
    };
    if answer.bytes == 0 {
        return Ok(None);
    }
    let mut fds = answer.fds.into_iter();
    match (bytes.get(..answer.bytes), fds.next(), fds.next()) {
        (Some(said), Some(memory), Some(listener))
            if said == HERE && !answer.cut && unix::is_listener(&listener) =>
        {
            Ok(Some(Found { memory, listener }))
        }
        _ => Err(strange()),
    }
}

fn create(soft: &Soft, name: &str, len: usize, make: Init<'_>) -> Result<Found> {
    let memory = soft
        .with_descriptor(|| memfd::create("scif:table", len))
        .map_err(Error::os("memfd_create"))?;
    make(&Mapping::shared(&memory, len, true).map_err(Error::os("mmap"))?)?;
    memfd::seal(&memory, FIXED_SIZE).map_err(Error::os("F_ADD_SEALS"))?;
    let listener = soft.with_descriptor(unix::socket).map_err(Error::os("socket"))?;
    soft.names.bind_table(&listener, name, BACKLOG)?;
    Ok(Found { memory, listener })
}

impl OfferedTable {
    /// Answers connecting processes until the stop flag is set.
    fn serve(&self) {
        while self.waiter.wait(None).is_ok() && !self.stop.get() {
            // Every holder can change that for all. A change between the two calls blocks only this
            // thread, and every wait for the thread is bounded.
            let _ = unix::set_waiting(&self.listener, false);
            match unix::accept(&self.listener) {
                Ok(caller) => self.answer(&caller),
                // Another holder was quicker.
                Err(Errno::AGAIN) => {}
                // For example a lack of descriptors: the connecting process keeps waiting.
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Waits for the thread, whose stop flag is set, within a bound.
    fn end(&self, service: JoinHandle<()>, addr: &SocketAddrUnix) {
        let begin = now_ns();
        while !service.is_finished() {
            let waited = now_ns() - begin;
            if waited > END_NS {
                warn_about_peer!(
                    "shared table {addr:?}: thread scif-table did not end within {} ms, probably \
                     because another process with the table disturbs accept; the name stays in use \
                     until that process ends. Find it with: ss -xlp",
                    END_NS / 1_000_000
                );
                return;
            }
            if waited > END_QUIET_NS {
                let _ = unix::set_waiting(&self.listener, false);
                if let Ok(caller) = unix::socket() {
                    // Any holder may accept the connection; then the next attempt follows.
                    let _ = unix::connect(&caller, addr);
                }
                std::thread::sleep(PAUSE);
            }
            std::thread::sleep(END_PAUSE);
        }
        let _ = service.join();
    }

    fn answer(&self, caller: &OwnedFd) {
        let known = unix::credentials(caller).is_ok_and(|c| self.soft.admits(c.uid));
        if known {
            // A process that has closed its socket needs no answer.
            let _ = unix::send(caller, HERE, &[self.memory.as_fd(), self.listener.as_fd()]);
        }
    }
}

impl Hold for SoftTable {
    fn map(&self) -> &Mapping {
        &self.map
    }

    fn lock(&self) -> Result<()> {
        for _ in 0..LOCK_TRIES {
            match file::try_lock(&self.own) {
                Ok(()) => return Ok(()),
                // Held for some microseconds; a stopped holder must not block us without end.
                Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(PAUSE),
                Err(errno) => {
                    return Err(Error::Os { call: "flock", errno });
                }
            }
        }
        Err(Error::Os { call: "flock", errno: Errno::WOULDBLOCK })
    }

    fn unlock(&self) {
        let _ = file::unlock(&self.own);
    }
}

impl Drop for SoftTable {
    fn drop(&mut self) {
        let Some(shown) = self.shown.take() else {
            return;
        };
        if self.maker.is_ancestor() {
            // The descriptors and the thread belong to the parent: in a child, the handle of the
            // thread names memory with another use.
            let _never = std::mem::ManuallyDrop::new(self.service.take());
            return;
        }
        shown.stop.set(true);
        shown.waiter.signal();
        if let Some(service) = self.service.take() {
            shown.end(service, &self.addr);
        }
        let soft = Arc::clone(&shown.soft);
        // The name disappears with the socket, unless others hold it.
        drop(shown);
        soft.names.tidy_table(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;
    use crate::config::Config;

    fn fill(_: &Mapping) -> Result<()> {
        Ok(())
    }

    /// Accepts every connection of `listener`, until that is shut down, and makes accept block for
    /// all its holders.
    fn take_callers(listener: &OwnedFd) {
        loop {
            let _ = unix::set_waiting(listener, true);
            match unix::accept(listener) {
                Ok(_) | Err(Errno::AGAIN) => {}
                Err(_) => return,
            }
        }
    }

    #[test]
    fn a_holder_that_makes_accept_wait_does_not_hold_up_a_close() {
        let config = Config {
            domain: Some(format!("table-held-{}", std::process::id())),
            ..Config::default()
        };
        let soft = Arc::new(Soft::open(config).unwrap());
        let held = create(&soft, "held", 64, &fill).unwrap();
        let victim = std::thread::scope(|scope| {
            let opened = scope.spawn(|| open(Arc::clone(&soft), "held", 64, Some(&fill)));
            let caller = loop {
                match unix::accept(&held.listener) {
                    Ok(caller) => break caller,
                    Err(_) => std::thread::yield_now(),
                }
            };
            unix::send(&caller, HERE, &[held.memory.as_fd(), held.listener.as_fd()]).unwrap();
            opened.join().unwrap().unwrap()
        });
        let addr = soft.names.shared_table("held").unwrap();
        let listener = Arc::new(held.listener);
        let thief = {
            let listener = Arc::clone(&listener);
            std::thread::spawn(move || take_callers(&listener))
        };
        let begin = Instant::now();
        let mut callers = Vec::new();
        while !thread::sleeps_in_accept("scif-table") {
            assert!(begin.elapsed().as_secs() < 60, "the thread was never held up");
            let caller = unix::socket().unwrap();
            let _ = unix::connect(&caller, &addr);
            callers.push(caller);
            if callers.len() > 100 {
                // Connections in the queue stay there, and a busy machine needs many attempts.
                callers.clear();
            }
            std::thread::sleep(END_PAUSE);
        }
        drop(callers);
        let (told, ended) = mpsc::channel();
        std::thread::spawn(move || {
            drop(victim);
            told.send(())
        });
        let ended = ended.recv_timeout(Duration::from_secs(20));
        // Releases all threads that sleep on the listener.
        unix::stop_listening(&*listener).unwrap();
        thief.join().unwrap();
        assert_eq!(ended, Ok(()), "the close waits for a thread that is held up");
    }
}

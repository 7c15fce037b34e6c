// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! An endpoint shared by parent and child after a fork, as in `fork.c` and in section 3.5.1 of the
//! SCIF User Guide. Each registers a window in the single registered address space and fills the
//! window of the other by an RMA from the peer. The peer is a process that the parent starts from
//! the same program.
#![expect(clippy::print_stdout, reason = "an example")]
#![expect(unsafe_code, reason = "fork")]

use std::error::Error;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use scif::{Config, PortId};
use scif_api::{Endpoints, Failure, Pages};

const PORT: u16 = 2052;
const PAGE: usize = 0x1000;
const PARENTS: i64 = 0x10000;
const CHILDS: i64 = 0x20000;
const PEERS: i64 = 0x40000;
const READ: i32 = 1;
const READ_WRITE: i32 = 3;
const FIXED: i32 = 0x10;
const SYNC: i32 = 4;

type Outcome = Result<(), Box<dyn Error>>;

/// Runs the peer: a window of two pages, one for each sharer.
fn peer(scif: &Endpoints) -> Outcome {
    let listener = scif.open()?;
    scif.bind(listener, PORT)?;
    scif.listen(listener, 1)?;
    let (_, epd) = scif.accept(listener, true)?;
    let memory = Pages::new(2 * PAGE)?;
    memory.write(0, b"for the child ")?;
    memory.write(PAGE, b"for the parent")?;
    scif.register(epd, (memory.addr(), 2 * PAGE), PEERS, READ, FIXED)?;
    scif.send_bytes(epd, &[0], true)?;
    // Until the last of the two has closed.
    assert_eq!(scif.receive_bytes(epd, &mut [0], true), Err(Failure::Reset));
    Ok(scif.close(epd)?)
}

/// One sharer of the endpoint.
struct Holder<'a> {
    scif: &'a Endpoints,
    epd: i32,
    other: &'a UnixDatagram,
}

impl Holder<'_> {
    /// Waits until the other sharer has reached this point.
    fn meet(&self) -> std::io::Result<()> {
        self.other.send(&[0])?;
        self.other.recv(&mut [0])?;
        Ok(())
    }

    fn hold(&self, own: i64, others: i64, source: i64, expected: &[u8]) -> Outcome {
        // Allocated after the fork, so that no copy-on-write separates the memory from its window.
        let memory = Pages::new(PAGE)?;
        self.scif.register(self.epd, (memory.addr(), PAGE), own, READ_WRITE, FIXED)?;
        self.meet()?;
        self.scif.read_from(self.epd, others, PAGE, source, SYNC)?;
        self.meet()?;
        let mut text = [0; 14];
        memory.read(0, &mut text)?;
        println!("fork: the window at {own:#x} holds: {}", String::from_utf8_lossy(&text));
        assert_eq!(text, expected);
        Ok(self.scif.close(self.epd)?)
    }
}

fn main() -> Outcome {
    let scif = Endpoints::new(Config::from_env())?;
    if std::env::args().nth(1).is_some() {
        return peer(&scif);
    }
    let mut other = Command::new(std::env::current_exe()?).arg("peer").spawn()?;
    let epd = scif.open()?;
    while let Err(failure) = scif.connect(epd, PortId::new(0, PORT)) {
        if failure != Failure::Refused {
            return Err(failure.into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    scif.receive_bytes(epd, &mut [0], true)?;

    let (parents, childs) = UnixDatagram::pair()?;
    // SAFETY: the only threads of this program are the library's, which permit a fork.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    let scif = &scif;
    if child == 0 {
        let other = &childs;
        return Holder { scif, epd, other }.hold(
            CHILDS,
            PARENTS,
            PEERS + PAGE as i64,
            b"for the child ",
        );
    }
    let holder = Holder { scif, epd, other: &parents };
    holder.hold(PARENTS, CHILDS, PEERS, b"for the parent")?;
    let mut status = 0;
    // SAFETY: `child` is a child of this process, and `status` is valid for the result.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    assert!(other.wait()?.success());
    Ok(())
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Parts of the benchmark that move many bytes: streams in bulk, beside streams of the system, and
//! registration.
//!
//! Not about the order of the measurements (`bench`).
#![expect(clippy::cast_precision_loss, reason = "rates are printed")]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use crate::api::Api;
use crate::rig::{BLOCK, FIXED, PAGE, RW, pages, poke64, unmap, wants_huge_pages};

/// Number of bytes of one measurement of a stream.
const TOTAL: usize = 64 << 20;
/// Offset of the window of a registration.
const AT: i64 = 0x2_0000_0000;

/// Streams of the system between the two processes, made before the fork.
pub(crate) struct SystemStreams {
    pipe: (File, File),
    unix: (UnixStream, UnixStream),
    tcp: (TcpStream, TcpStream),
}

/// Kind of a stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Scif = 0,
    Pipe,
    Unix,
    Tcp,
}

impl Kind {
    pub(crate) const OF_SYSTEM: [(Kind, &str); 3] =
        [(Kind::Pipe, "a pipe"), (Kind::Unix, "a Unix socket"), (Kind::Tcp, "TCP")];

    fn of(number: u64) -> Kind {
        match number {
            0 => Kind::Scif,
            1 => Kind::Pipe,
            2 => Kind::Unix,
            _ => Kind::Tcp,
        }
    }
}

/// Transfer of `TOTAL` bytes in messages of one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) kind: Kind,
    pub(crate) size: usize,
}

impl Transfer {
    /// Packs it into a word for the peer.
    pub(crate) fn word(self) -> u64 {
        (self.size as u64) << 8 | self.kind as u64
    }

    pub(crate) fn from_word(word: u64) -> Transfer {
        Transfer { kind: Kind::of(word & 0xff), size: (word >> 8) as usize }
    }
}

impl SystemStreams {
    pub(crate) fn new() -> SystemStreams {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let (from, to) = rustix::pipe::pipe().unwrap();
        SystemStreams {
            pipe: (File::from(from), File::from(to)),
            unix: UnixStream::pair().unwrap(),
            tcp: (near, far),
        }
    }

    /// Sends a transfer; returns the rate in MB/s.
    pub(crate) fn send(&self, api: &Api, epd: i32, transfer: Transfer) -> f64 {
        let bytes = vec![7; transfer.size];
        let begin = Instant::now();
        for _ in 0..TOTAL / transfer.size {
            match transfer.kind {
                Kind::Scif => {
                    assert_eq!(api.send(epd, &bytes, BLOCK), Ok(bytes.len() as i32));
                }
                Kind::Pipe => (&self.pipe.1).write_all(&bytes).unwrap(),
                Kind::Unix => (&self.unix.0).write_all(&bytes).unwrap(),
                Kind::Tcp => (&self.tcp.0).write_all(&bytes).unwrap(),
            }
        }
        TOTAL as f64 / 1e6 / begin.elapsed().as_secs_f64()
    }

    /// Receives a transfer in the peer.
    pub(crate) fn receive(&self, api: &Api, epd: i32, transfer: Transfer) {
        let mut bytes = vec![0; transfer.size];
        for _ in 0..TOTAL / transfer.size {
            match transfer.kind {
                Kind::Scif => {
                    assert_eq!(api.recv(epd, &mut bytes, BLOCK), Ok(bytes.len() as i32));
                }
                Kind::Pipe => (&self.pipe.0).read_exact(&mut bytes).unwrap(),
                Kind::Unix => (&self.unix.1).read_exact(&mut bytes).unwrap(),
                Kind::Tcp => (&self.tcp.1).read_exact(&mut bytes).unwrap(),
            }
        }
    }
}

/// Returns the microseconds a page of registering and of unregistering `len` bytes of written
/// memory.
pub(crate) fn registration(api: &Api, epd: i32, len: usize, huge: bool) -> (f64, f64) {
    const LARGE: usize = 2 << 20;
    let raw = pages((len + LARGE) / PAGE);
    let at = raw.next_multiple_of(LARGE);
    if huge {
        wants_huge_pages(at, len);
    }
    (0..len).step_by(PAGE).for_each(|i| poke64(at + i, 1));
    let each = |begin: Instant| begin.elapsed().as_nanos() as f64 / 1e3 / (len / PAGE) as f64;
    let begin = Instant::now();
    api.register(epd, (at, len), AT, RW, FIXED).unwrap();
    let registered = each(begin);
    let begin = Instant::now();
    api.unregister(epd, AT, len).unwrap();
    let unregistered = each(begin);
    unmap(raw, len + LARGE);
    (registered, unregistered)
}

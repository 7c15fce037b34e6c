// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Rings in windows: each side registers memory at the connection, and maps that of its peer.
//!
//! Not about the layout of a window (`segment`). The offsets cross the stream: the hello of the
//! opener, the offer of the acceptor, and the opener's confirmation. If one side cannot register or
//! map, both relay records over the stream. All of it runs in threads, since the calls may wait for
//! the driver of the peer.

use std::sync::Arc;

use rustix::io::Errno;

use super::channel_pass::Pass;
use super::crossover::{UnusedWindows, measure_once};
use super::relay::{GreetingKind, Offer, RelayGreeting};
use super::sender::Wire;
use super::stream::{Arriving, Stream};
use crate::error::Reason;
use crate::failure::Failure;
use crate::scif_calls::WindowKind;
use crate::segment::{WINDOW_BYTES, Windows, ring_copy};
use crate::sys::mmap::Mapping;
use crate::sys::time::now_ns;
use crate::sys::{descriptor, membarrier};

/// Time in nanoseconds for which an opener waits for the offer, as long as a driver waits for an
/// accept.
const OFFER_NS: u64 = 30_000_000_000;
/// Interval in milliseconds between checks of that time.
const OFFER_CHECK_MS: i32 = 1000;

/// Place of the rings of a connection.
#[derive(Debug)]
pub(super) struct Rings {
    /// `None` if records are relayed.
    pub(super) windows: Option<Windows>,
    /// Whether both sides execute `membarrier` before they sleep.
    pub(super) asymmetric: bool,
    /// Reason for which the connection ended before the rings were agreed upon.
    pub(super) ended: Option<Reason>,
    /// Whether the hello was sent and the offer has arrived.
    is_offered: bool,
}

impl Rings {
    /// Returns the place of rings that are relayed.
    pub(super) fn relayed() -> Rings {
        Rings { windows: None, asymmetric: false, ended: None, is_offered: false }
    }

    /// Returns the opener's last greeting, after which the acceptor accepts.
    pub(super) fn confirmation(&self, port: u16, pass: Pass) -> RelayGreeting {
        match self.is_offered {
            true => RelayGreeting::ready(self.windows.is_some()),
            false => RelayGreeting::hello(port, offer(None), pass),
        }
    }

    fn ended(reason: Reason) -> Rings {
        Rings { ended: Some(reason), ..Rings::relayed() }
    }
}

/// Node of a peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerNode {
    pub(super) number: u16,
    /// Whether it is not the node of this side.
    pub(super) is_remote: bool,
}

/// Registered memory of this side.
#[derive(Debug)]
pub(super) struct OwnWindow {
    map: Arc<Mapping>,
    offset: i64,
}

impl OwnWindow {
    /// Registers memory at a connection; `None` where rings do not lie in windows.
    pub(super) fn register(stream: &mut Stream) -> Option<OwnWindow> {
        let (calls, fd) = stream.parts();
        calls.window_kind()?;
        match calls.share(fd, WINDOW_BYTES) {
            Ok((map, offset)) => {
                let map = Arc::new(map);
                stream.keep(&map);
                Some(OwnWindow { map, offset })
            }
            Err(failure) => {
                log::debug!("scif_register of rings: {failure}; records cross the stream");
                None
            }
        }
    }

    fn with(self, peer: Option<PeerWindow>) -> Option<Windows> {
        let PeerWindow { map, copy } = peer?;
        Some(Windows { own: self.map, peer: map, copy })
    }
}

/// Window of the peer, mapped here.
#[derive(Debug)]
struct PeerWindow {
    map: Arc<Mapping>,
    /// Memory for a copy of the ring, if the mapping is write-combined.
    copy: Option<Arc<Mapping>>,
}

/// Maps the window of the peer.
fn map(stream: &mut Stream, offset: i64, node: PeerNode) -> Option<PeerWindow> {
    let (calls, fd) = stream.parts();
    let kind = calls.window_kind()?;
    let mapped = calls.map(fd, WINDOW_BYTES, offset).and_then(|mut map| {
        if kind == WindowKind::Pinned {
            map.detach_at_exit()?;
            map.detach_at_loss();
        }
        let is_write_combined = kind != WindowKind::Shared && node.is_remote;
        let copy = is_write_combined.then(ring_copy).transpose()?;
        Ok(PeerWindow { map: Arc::new(map), copy })
    });
    match mapped {
        Ok(peer) => {
            stream.keep_mapping(&peer.map);
            Some(peer)
        }
        Err(failure) => {
            log::debug!("scif_mmap of rings: {failure}; records cross the stream");
            None
        }
    }
}

/// Measures RMA between windows that carry no record yet. Returns whether they can carry some.
fn measure(stream: &Stream, own: &OwnWindow, peer_offset: i64, node: PeerNode) -> bool {
    let (calls, fd) = stream.parts();
    let Some(calls) = calls.key_windows() else { return true };
    let OwnWindow { map: own, offset: own_offset } = own;
    let own_offset = *own_offset;
    measure_once(node.number, &UnusedWindows { calls, fd, own, own_offset, peer_offset })
}

fn offer(own: Option<&OwnWindow>) -> Offer {
    Offer { window: own.map(|own| own.offset), membarrier: membarrier::register() }
}

/// Agrees with the acceptor on the place of the rings, if this side offers a window. The acceptor
/// accepts after the confirmation, which is sent when the endpoint takes the connection.
///
/// # Errors
/// The acceptor does not answer, or errors of `scif_send`.
pub(super) fn open(
    stream: &mut Stream,
    (port, pass): (u16, Pass),
    node: PeerNode,
) -> Result<Rings, Failure> {
    let Some(own) = OwnWindow::register(stream) else { return Ok(Rings::relayed()) };
    let hello = offer(Some(&own));
    stream.greet(&RelayGreeting::hello(port, hello, pass))?;
    let offered = match receive_offer(stream)? {
        Ok(offered) => offered,
        Err(reason) => return Ok(Rings::ended(reason)),
    };
    let peer = offered.window.and_then(|offset| {
        map(stream, offset, node).filter(|_| measure(stream, &own, offset, node))
    });
    let asymmetric = hello.membarrier && offered.membarrier;
    Ok(Rings { windows: own.with(peer), asymmetric, ended: None, is_offered: true })
}

/// Waits for the acceptor's offer; returns the reason if the connection ends before.
fn receive_offer(stream: &Stream) -> Result<Result<Offer, Reason>, Failure> {
    let mut arriving = Arriving::default();
    let begun = now_ns();
    loop {
        match arriving.read(stream) {
            Ok(Some(GreetingKind::Offer(offered))) => return Ok(Ok(offered)),
            Ok(Some(GreetingKind::No(reason))) | Err(reason) => return Ok(Err(reason)),
            Ok(Some(_)) => return Ok(Err(Reason::Corrupt)),
            Ok(None) if now_ns().saturating_sub(begun) > OFFER_NS => {
                return Err(Failure::Os(Errno::TIMEDOUT));
            }
            Ok(None) => {
                let mut entry =
                    [libc::pollfd { fd: stream.raw(), events: libc::POLLIN, revents: 0 }];
                let _ = descriptor::poll_raw(&mut entry, OFFER_CHECK_MS);
            }
        }
    }
}

/// Windows of a connection that the opener has not confirmed.
#[derive(Debug)]
pub(super) struct Offered(Rings);

impl Offered {
    /// Answers a hello with the window `offset`.
    ///
    /// # Errors
    /// Errors of `scif_send`.
    pub(super) fn answer(
        stream: &mut Stream,
        hello: Offer,
        offset: i64,
        node: PeerNode,
    ) -> Result<Offered, Failure> {
        let peer = map(stream, offset, node);
        let own = peer.as_ref().and_then(|_| OwnWindow::register(stream));
        let own = own.filter(|own| measure(stream, own, offset, node));
        let answer = offer(own.as_ref());
        stream.greet(&RelayGreeting::offer(answer))?;
        let asymmetric = hello.membarrier && answer.membarrier;
        let windows = own.and_then(|own| own.with(peer));
        Ok(Offered(Rings { windows, asymmetric, ended: None, is_offered: true }))
    }

    /// Ends the agreement. `mapped`: the opener uses the windows.
    ///
    /// # Errors
    /// The opener confirms windows that were not offered.
    pub(super) fn confirm(self, mapped: bool) -> Result<Rings, Reason> {
        match (mapped, self.0.windows.is_some()) {
            (true, true) => Ok(self.0),
            (true, false) => Err(Reason::Corrupt),
            (false, _) => Ok(Rings::relayed()),
        }
    }
}

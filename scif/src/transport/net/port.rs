// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! A port that other hosts reach over a network, and this host over another transport.
//!
//! Not about the network's messages (`mux`). Both have the same port number. The place of a
//! destination decides between them.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::link::NetLink;
use super::mux::NetMux;
use super::shared_mux::SharedMux;
use super::sleep_watch::SleepWatch;
use super::stream::Accepted;
use super::wire::NetWire;
use crate::addr::PortId;
use crate::carried::{CarriedCounts, OpDecoder};
use crate::error::{Error, Result};
use crate::liveness::ProcessProof;
use crate::segment::Side;
use crate::slab::ConnId;
use crate::sys::epoll::{Epoll, Event};
use crate::sys::errno::keep_errno;
use crate::sys::fork::Maker;
use crate::sys::time::now_ns;
use crate::transport::{CloseKind, Opened, Port};

/// Time in nanoseconds for which a closing port waits until the network has sent all messages.
/// Later ones are lost.
const LINGER_NS: u64 = 1_000_000_000;
/// Time between two looks at the network while a closing port waits. A longer one delays the close.
const LINGER_NAP: Duration = Duration::from_micros(50);

/// Time in nanoseconds after the last message for which a port with unsent records keeps others
/// awake. Later its peers have stopped, and a longer one costs processor time.
const SENDING_NS: u64 = 3_000_000_000;

/// Kinds of descriptors in the set to wait for.
const NEAR: u64 = 0;
const FAR: u64 = 1;
const AWAKE: u64 = 2;

#[derive(Debug)]
pub(crate) struct NetPort {
    near: Box<dyn Port>,
    mux: SharedMux,
    epoll: Epoll,
    /// Event that prevents a sleep for which the network has no descriptor, or work.
    awake: Event,
    is_awake: bool,
    watch: SleepWatch,
    provider: String,
    maker: Maker,
    closed: bool,
    /// Connections with changes, found while the owner of another port made progress.
    relayed: Vec<ConnId>,
}

impl NetPort {
    /// Joins a port of this host and the end of a network with the same number.
    pub(crate) fn join(
        near: Box<dyn Port>,
        wire: Box<dyn NetWire>,
        decoder: OpDecoder,
    ) -> Result<NetPort> {
        let epoll = Epoll::new().map_err(Error::os("epoll_create"))?;
        let awake = Event::new().map_err(Error::os("eventfd"))?;
        epoll.add(near.wait_fd(), NEAR).map_err(Error::os("epoll_ctl"))?;
        epoll.add(&awake, AWAKE).map_err(Error::os("epoll_ctl"))?;
        let provider = wire.provider().to_owned();
        let mux = SharedMux::new(NetMux::new(wire, decoder, near.id().node)?);
        Ok(NetPort {
            near,
            mux,
            epoll,
            awake,
            is_awake: false,
            watch: SleepWatch::default(),
            provider,
            maker: Maker::here(),
            closed: false,
            relayed: Vec::new(),
        })
    }

    /// Returns a connection for its owner. `is_up`: the peer has answered.
    fn opened(&self, accepted: Accepted, is_up: bool) -> Opened {
        let Accepted { token, peer, side, segment } = accepted;
        Opened {
            peer,
            side,
            segment,
            windows: None,
            link: Box::new(NetLink::new(&self.mux, token)),
            liveness: ProcessProof::of(0),
            remote: is_up.then(|| self.mux.lock().remote()),
        }
    }

    /// Whether the network's descriptor reports all that happens from now on.
    fn is_announced(&mut self) -> bool {
        let NetPort { mux, epoll, watch, .. } = self;
        let mut mux = mux.lock();
        if !watch.is_added() {
            let fd = mux.wire().wait_fd();
            if fd.is_none_or(|fd| epoll.add(fd, FAR).is_err()) {
                return false;
            }
            watch.note_added();
        }
        mux.may_sleep()
    }

    fn set_awake(&mut self, awake: bool) {
        if std::mem::replace(&mut self.is_awake, awake) == awake {
            return;
        }
        if awake {
            self.awake.signal();
        } else {
            self.awake.drain();
        }
    }

    /// Waits for a limited time until all messages are sent.
    fn linger(&self) {
        let end = now_ns() + LINGER_NS;
        let mut ended = Vec::new();
        loop {
            let mut mux = self.mux.lock();
            mux.poll(&mut ended);
            if mux.is_quiet() {
                return;
            }
            drop(mux);
            if now_ns() > end {
                log::debug!(
                    "port {} closed; unsent data over {} is lost. Check that processes on other \
                     hosts make progress",
                    self.near.id(),
                    self.provider
                );
                return;
            }
            std::thread::sleep(LINGER_NAP);
        }
    }
}

impl Port for NetPort {
    fn id(&self) -> PortId {
        self.near.id()
    }

    fn connect(&mut self, dst: PortId, id: ConnId) -> Result<Opened> {
        if dst.place == 0 {
            return self.near.connect(dst, id);
        }
        let (token, segment) = keep_errno(|| self.mux.lock().connect(dst, id))?;
        let begun = Accepted { token, peer: dst, side: Side::Opener, segment };
        Ok(self.opened(begun, false))
    }

    fn poll(&mut self, ready: &mut Vec<ConnId>) {
        self.near.poll(ready);
        ready.append(&mut self.relayed);
        keep_errno(|| self.mux.lock().poll(ready));
    }

    fn poll_network(&mut self, ready: &mut Vec<ConnId>, woken: &mut Vec<ConnId>) -> bool {
        keep_errno(|| {
            let mut mux = self.mux.lock();
            if self.watch.is_unused() {
                if let Some(fd) = mux.wire().wait_fd() {
                    self.epoll.remove(fd);
                }
            }
            ready.append(&mut self.relayed);
            mux.poll_records(ready, woken);
            mux.has_requests()
        })
    }

    fn relay(&mut self) {
        let mut mux = self.mux.lock();
        if mux.unsent_since().is_some() {
            keep_errno(|| mux.poll(&mut self.relayed));
            self.relayed.sort_unstable_by_key(|id| id.index);
            self.relayed.dedup();
        }
    }

    fn is_sending(&self, now: u64) -> bool {
        let since = self.mux.lock().unsent_since();
        since.is_some_and(|since| now.saturating_sub(since) < SENDING_NS)
    }

    fn accept(&mut self, id: ConnId) -> Option<Opened> {
        if let Some(opened) = self.near.accept(id) {
            return Some(opened);
        }
        let accepted = keep_errno(|| self.mux.lock().accept(id))?;
        Some(self.opened(accepted, true))
    }

    fn listener(&mut self, port: PortId) -> Option<i32> {
        if port.place == 0 { self.near.listener(port) } else { None }
    }

    fn whereabouts(&self, port: PortId) -> String {
        if port.place == 0 {
            return self.near.whereabouts(port);
        }
        format!(
            "The peer is on another host, reached over {}. Check that its process runs with the \
             same FI_SCIF_NET, and that no firewall is between the hosts",
            self.provider
        )
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn set_sleeping(&mut self, sleeping: bool) {
        self.near.set_sleeping(sleeping);
        self.watch.set_asleep(sleeping);
        keep_errno(|| {
            let awake = sleeping && !self.is_announced();
            self.set_awake(awake);
        });
    }

    fn may_sleep(&mut self) -> bool {
        self.watch.keep();
        keep_errno(|| {
            let is_announced = self.is_announced();
            if is_announced {
                self.set_awake(false);
            }
            is_announced
        })
    }

    fn is_parked(&self) -> bool {
        self.near.is_parked()
    }

    fn network_provider(&self) -> Option<&str> {
        Some(&self.provider)
    }

    fn carried(&self) -> Option<CarriedCounts> {
        Some(self.mux.lock().counts())
    }

    fn revoke(&mut self, key: u64) {
        keep_errno(|| self.mux.lock().revoke(key));
    }

    fn is_expecting(&self, now: u64) -> bool {
        self.mux.lock().is_expecting(now)
    }

    fn close(&mut self, how: CloseKind) {
        if self.closed {
            return;
        }
        self.closed = true;
        self.near.close(how);
        if self.maker.is_ancestor() {
            return;
        }
        keep_errno(|| {
            if how == CloseKind::Abandon {
                return;
            }
            let mut mux = self.mux.lock();
            mux.poll(&mut Vec::new());
            mux.refuse_all();
            drop(mux);
            self.linger();
        });
    }
}

impl Drop for NetPort {
    fn drop(&mut self) {
        self.close(CloseKind::Abandon);
    }
}

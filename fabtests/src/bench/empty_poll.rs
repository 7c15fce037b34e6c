// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Polls that find nothing: reads of an empty queue, reads of a counter, peeks.
//!
//! A program that computes and polls in turn pays for each of them. The peers are endpoints of the
//! same process, which are not polled meanwhile.

use std::sync::Arc;
use std::time::Duration;

use scif_fabtests::fi::Lib;
use scif_fabtests::prelude::*;

use super::os::now_ns;
use super::port::{Family, Port, Room};
use super::protocol::Test;

const TAG: u64 = 0x5c20;
/// Time for which the peers are silent after their messages, before the timed part.
const SILENCE: Duration = Duration::from_millis(20);

/// Endpoint with silent peers.
pub(crate) struct EmptyPoll {
    port: Port,
    cntr: Arc<Cntr>,
    peers: Vec<Port>,
    threading: u32,
}

impl EmptyPoll {
    /// Opens an endpoint and its peers, each of which has sent it a message.
    pub(crate) fn open(
        lib: &'static Lib,
        provider: &str,
        test: Test,
        peers: usize,
    ) -> Outcome<EmptyPoll> {
        let threading = threading(test);
        let room = Room::open(lib, provider, (Family::Tagged, threading), false)?;
        let cntr =
            room.counter(CntrAttr { events: sys::FI_CNTR_EVENTS_COMP, ..CntrAttr::default() })?;
        let port = room.port(8, Some(&cntr))?;
        let name = port.ep.name()?;
        let mut poll = EmptyPoll { port, cntr, peers: Vec::new(), threading };
        for _ in 0..peers {
            let mut peer = room.port(8, None)?;
            peer.peer = peer.av.insert(&name)?;
            poll.peers.push(peer);
        }
        poll.talk()?;
        Ok(poll)
    }

    /// Whether it serves samples of `test` with that number of peers.
    pub(crate) fn serves(&self, test: Test, peers: usize) -> bool {
        (self.threading, self.peers.len()) == (threading(test), peers)
    }

    /// Makes each peer send a message.
    fn talk(&self) -> Outcome {
        for peer in &self.peers {
            let (sent, received) = (peer.sent() + 1, self.port.received() + 1);
            let anybody = sys::FI_ADDR_UNSPEC;
            self.port.post(|| self.port.ep.trecv(self.port.into, anybody, TAG, 0, 1))?;
            let both = || {
                self.port.progress()?;
                peer.progress()
            };
            while let Err(error) = peer.ep.tsend(peer.out, peer.peer, TAG, 2) {
                if error != Errno::EAGAIN {
                    return Err(Fail::here(format_args!("posting: {error}")));
                }
                both()?;
            }
            while peer.sent() < sent || self.port.received() < received {
                both()?;
            }
        }
        Ok(())
    }

    /// Time in nanoseconds of `count` polls after `warm` untimed ones.
    pub(crate) fn run(&self, test: Test, warm: u64, count: u64) -> Outcome<u64> {
        let rx = &self.port.rx;
        match test {
            Test::PollCntr => timed(warm, count, || Ok(self.cntr.read().map(drop)?)),
            Test::PollPeek => timed(warm, count, || {
                let wanted = TaggedMsg::from(sys::FI_ADDR_UNSPEC, TAG, 0, 0);
                self.port.ep.trecvmsg(&[], wanted, sys::FI_PEEK | sys::FI_COMPLETION)?;
                loop {
                    match rx.read_count() {
                        Err(Errno::EAVAIL) => return Ok(rx.readerr(0).map(drop)?),
                        Err(Errno::EAGAIN) => {}
                        other => return Err(Fail::here(format_args!("a peek found {other:?}"))),
                    }
                }
            }),
            _ => {
                if test == Test::PollTalked {
                    self.talk()?;
                    std::thread::sleep(SILENCE);
                }
                timed(warm, count, || match rx.read_count() {
                    Err(Errno::EAGAIN) => Ok(()),
                    other => Err(Fail::here(format_args!("an empty queue returned {other:?}"))),
                })
            }
        }
    }
}

/// Returns the threading model in which a test polls.
fn threading(test: Test) -> u32 {
    if test == Test::PollSafe { sys::FI_THREAD_SAFE } else { sys::FI_THREAD_DOMAIN }
}

fn timed(warm: u64, count: u64, poll: impl Fn() -> Outcome) -> Outcome<u64> {
    for _ in 0..warm {
        poll()?;
    }
    let start = now_ns();
    for _ in 0..count {
        poll()?;
    }
    Ok(now_ns() - start)
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One of the two processes of a pair: executes the orders of its parent, one after another, until
//! the parent ends.
//!
//! Both ranks of a pair receive the same order and meet in shared memory. The results of rank 0 are
//! used.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use scif_fabtests::fi::Lib;
use scif_fabtests::harness::cpus::pin;
use scif_fabtests::harness::sandbox::deny_process_vm;
use scif_fabtests::harness::{Fail, Outcome};

use super::empty_poll::EmptyPoll;
use super::limits::{Bounds, Limit};
use super::messages::Messages;
use super::onesided::OneSided;
use super::port::{Family, Port, PortKind};
use super::protocol::{Kind, Measured, Order, Reply, Sample, Test, receive_order, send_word};
use super::segment::{Segment, Use};
use super::shm_barrier::ShmBarrier;
use super::{os, oversub, placement};

/// Identity of a rank.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) rank: usize,
    pub(crate) provider: String,
    pub(crate) lib: PathBuf,
    pub(crate) segment: PathBuf,
    pub(crate) cpu: Option<usize>,
    pub(crate) deny_process_vm: bool,
    pub(crate) shared_memory: bool,
}

/// One rank with its open objects.
pub(crate) struct Rank {
    identity: Identity,
    barrier: ShmBarrier,
    lib: Option<&'static Lib>,
    ports: Vec<(Family, Port)>,
    bounds: Option<Bounds>,
    /// Idle endpoints.
    oversub: Vec<Port>,
    empty_poll: Option<EmptyPoll>,
}

/// Returns the family of endpoint that a test needs.
fn family(test: Test) -> Family {
    match test {
        Test::TaggedLat | Test::TaggedBw | Test::TaggedTouched | Test::TaggedRate => Family::Tagged,
        Test::MsgLat | Test::MsgBw | Test::MsgRate => Family::Msg,
        Test::WriteLat
        | Test::WritePoll
        | Test::WriteBw
        | Test::WriteTouched
        | Test::WriteRate
        | Test::ReadLat
        | Test::ReadBw
        | Test::ReadRate => Family::Rma,
        Test::SumLat
        | Test::SumRate
        | Test::FetchLat
        | Test::FetchRate
        | Test::CswapLat
        | Test::CswapRate => Family::Atomic,
        Test::PollCq | Test::PollTalked | Test::PollSafe | Test::PollCntr | Test::PollPeek => {
            Family::Tagged
        }
    }
}

/// Serves the parent at standard input until it closes its end.
pub(crate) fn serve(identity: Identity) -> Outcome {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let control: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned()?;
    let segment = Segment::open(&identity.segment)?;
    let mut rank = Rank {
        barrier: ShmBarrier::new(segment, identity.rank),
        identity,
        lib: None,
        ports: Vec::new(),
        bounds: None,
        oversub: Vec::new(),
        empty_poll: None,
    };
    if let Some(cpu) = rank.identity.cpu {
        pin(cpu)?;
    }
    if rank.identity.deny_process_vm {
        deny_process_vm()?;
    }
    while let Some(order) = receive_order(&control)? {
        let reply = match rank.obey(&order) {
            Ok(reply) => reply,
            Err(Fail::NotRun(why) | Fail::NotHere(why)) => Reply::Lacks(why),
            Err(Fail::Failed(why)) => Reply::Failed(why),
        };
        send_word(&control, &reply)?;
    }
    Ok(())
}

impl Rank {
    fn obey(&mut self, order: &Order) -> Outcome<Reply> {
        match order {
            Order::Run(sample) => self.sample(sample),
            Order::Probe(count) => {
                let probes = (0..*count).map(|_| placement::probe(&self.barrier)).collect();
                Ok(Reply::Numbers(probes))
            }
            Order::Name => {
                let port = self.port(Family::Tagged)?;
                Ok(Reply::Bytes(port.ep.name()?))
            }
            Order::Adopt(count) => {
                oversub::adopt(self.port(Family::Tagged)?, *count)?;
                Ok(Reply::Numbers(vec![*count]))
            }
            Order::Visit(count, name) => {
                os::raise_open_files()?;
                self.oversub = oversub::visit(self.lib()?, &self.identity.provider, *count, name)?;
                Ok(Reply::Numbers(vec![self.oversub.len() as u64]))
            }
            Order::Start(count) => {
                let costs = oversub::start(self.lib()?, &self.identity.provider, *count)?;
                Ok(Reply::Numbers(costs))
            }
            Order::Weigh => Ok(Reply::Numbers(oversub::weigh()?)),
            Order::Direct => {
                let port = oversub::direct(self.lib()?, &self.identity.provider, &self.barrier)?;
                self.ports.push((Family::Tagged, port));
                Ok(Reply::Numbers(Vec::new()))
            }
            Order::Suffer(size, sends) => {
                let sends = *sends == (self.identity.rank == 0);
                let end = oversub::suffer(self.port(Family::Tagged)?, *size, sends);
                Ok(Reply::Numbers(end))
            }
        }
    }

    fn lib(&mut self) -> Outcome<&'static Lib> {
        match self.lib {
            Some(lib) => Ok(lib),
            None => {
                let lib = Lib::open(&self.identity.lib).map_err(Fail::NotRun)?;
                self.lib = Some(lib);
                Ok(lib)
            }
        }
    }

    /// Returns the endpoint of a family, which both ranks open at the first use.
    fn port(&mut self, family: Family) -> Outcome<&Port> {
        if !self.ports.iter().any(|(have, _)| *have == family) {
            let lib = self.lib()?;
            let Identity { provider, shared_memory, .. } = &self.identity;
            let kind = PortKind { family, is_directed: false, is_shared: *shared_memory };
            let port = Port::open(lib, provider, kind, &self.barrier)?;
            self.ports.push((family, port));
        }
        let found = self.ports.iter().find(|(have, _)| *have == family);
        found.map(|(_, port)| port).ok_or_else(|| Fail::here("a port that was just opened"))
    }

    /// Takes one sample between two probes.
    fn sample(&mut self, sample: &Sample) -> Outcome<Reply> {
        let limit = Limit::from_name(&self.identity.provider);
        // All objects are opened before the timed part.
        match limit {
            Some(limit) if self.bounds.is_none() => {
                self.bounds = Some(Bounds::open(limit, &self.barrier)?)
            }
            Some(_) => {}
            None => drop(self.port(family(sample.test))?),
        }
        let before_ps = placement::probe(&self.barrier);
        if before_ps < sample.least_ps {
            return Ok(Reply::Misplaced(before_ps));
        }
        let switches = os::involuntary_switches();
        let warm = (sample.count / 10).clamp(1, 1000);
        let (ns, stalled) = match &self.bounds {
            Some(bounds) => (bounds.run(&self.barrier, sample, warm)?, false),
            None if sample.test.kind() == Kind::Poll => (self.poll(sample, warm)?, false),
            None => self.operate(sample, warm)?,
        };
        let switches = os::involuntary_switches() - switches;
        let after_ps = placement::probe(&self.barrier);
        // The report is the larger number of context switches of the two ranks. The parent reads
        // only the report of rank 0, so rank 1 passes its number through the segment.
        let word = self.barrier.segment.word(Use::Spare1);
        if self.identity.rank == 1 {
            word.set(switches);
        }
        self.barrier.meet_idly();
        Ok(Reply::Measured(Measured {
            ns,
            before_ps,
            after_ps,
            switches: switches.max(word.get()),
            stalled,
        }))
    }

    /// Measures empty polls in rank 0, with peers in the same process.
    fn poll(&mut self, sample: &Sample, warm: u64) -> Outcome<u64> {
        if self.identity.rank != 0 {
            return Ok(0);
        }
        let (test, peers) = (sample.test, sample.size);
        let open = match self.empty_poll.take().filter(|open| open.serves(test, peers)) {
            Some(open) => open,
            None => EmptyPoll::open(self.lib()?, &self.identity.provider, test, peers)?,
        };
        self.empty_poll.insert(open).run(test, warm, sample.count)
    }

    fn operate(&mut self, sample: &Sample, warm: u64) -> Outcome<(u64, bool)> {
        let family = family(sample.test);
        let found = self.ports.iter().find(|(have, _)| *have == family);
        let port = found.map(|(_, port)| port).ok_or_else(|| Fail::here("no port"))?;
        let messages = Messages {
            port,
            barrier: &self.barrier,
            tagged: family == Family::Tagged,
            size: sample.size,
        };
        let time = match sample.test {
            Test::TaggedLat | Test::MsgLat => messages.pingpong(warm, sample.count)?,
            Test::TaggedBw | Test::MsgBw | Test::TaggedRate | Test::MsgRate => {
                messages.stream(warm, sample.count)?
            }
            Test::TaggedTouched => messages.touched(warm, sample.count)?,
            _ => {
                let one_sided = OneSided {
                    port,
                    barrier: &self.barrier,
                    test: sample.test,
                    size: sample.size,
                    inside: sample.inside,
                    stalled: Cell::new(false),
                };
                let time = one_sided.run(warm, sample.count)?;
                return Ok((time, one_sided.stalled.get()));
            }
        };
        Ok((time, false))
    }
}

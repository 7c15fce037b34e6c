// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Victim of libfabric: serves its honest client, with outstanding operations of every kind with
//! its attackers.

use std::sync::Arc;

use libfabric_sys as sys;
use scif_fabtests::check;
use scif_fabtests::fi::{
    AtomicTarget, AvSet, AvSetAttr, Buf, Entry, Ep, Errno, Info, Ioc, Mc, Pep,
};
use scif_fabtests::harness::output::{from_hex, to_hex};
use scif_fabtests::harness::{Fail, Outcome, Rank, Rng};
use scif_fabtests::rig::{Done, Rig};

use crate::args::{Args, Target};
use crate::attacker::port_of as attacker_port;
use crate::honest::{self, HONEST, port_of};

/// Contexts: the honest client's message and its reply, operations with attackers, receives that
/// are posted again.
const PING: usize = 1;
const PONG: usize = 2;
const OTHER: usize = 3;
const WILD: usize = 0x100;
/// Number of receives for any source.
const RECEIVES: usize = 24;
/// Maximum number of outstanding operations with attackers.
const MOST: usize = 200;
/// Maximum number of open connections of attackers.
const LINES: usize = 24;
/// Duration of one sleep in milliseconds.
const NAP_MS: i32 = 20;

/// Endpoint and the address of its peer.
#[derive(Clone)]
struct Side {
    ep: Arc<Ep>,
    addr: u64,
}

struct Victim<'r> {
    rig: Rig<'r>,
    args: &'r Args,
    rng: Rng,
    honest: Option<Side>,
    others: Vec<Side>,
    wild: Vec<Buf>,
    ping: Buf,
    scratch: Buf,
    group: Option<Mc>,
    under_way: usize,
}

pub(crate) fn run(rank: &Rank, args: &Args) -> Outcome {
    let spec = honest::spec(args);
    let rig = Rig::open_alone(rank, &spec)?;
    let region = Buf::new(1 << 20);
    let access = sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;
    let remote = match args.target {
        Target::Dgram => None,
        _ => Some(rig.register(region, access)?),
    };
    let (key, base) = remote.as_ref().map_or((0, 0), |(_, remote)| (remote.key, remote.addr));
    let pep = if args.target == Target::Msg {
        let pep = Pep::open(&rig.fabric, &rig.info)?;
        pep.attach(rig.eq.as_ref().ok_or_else(|| Fail::here("no event queue"))?)?;
        pep.listen()?;
        Some(pep)
    } else {
        None
    };
    let name = pep.as_ref().map_or_else(|| rig.ep.name(), |pep| pep.name())?;
    let mut victim = Victim {
        args,
        rng: Rng::new(args.seed),
        honest: None,
        others: Vec::new(),
        wild: (0..RECEIVES).map(|at| Buf::new(if at % 3 == 0 { 64 } else { 20_000 })).collect(),
        ping: Buf::new(40_000),
        scratch: Buf::new(1 << 20),
        group: None,
        under_way: 0,
        rig,
    };
    if pep.is_none() {
        let side = Side { ep: Arc::clone(&victim.rig.ep), addr: sys::FI_ADDR_UNSPEC };
        (0..RECEIVES).try_for_each(|at| victim.post_wild(&side, at))?;
        // Attackers sometimes listen at known ports.
        for index in 2..4 {
            let mut addr = name.clone();
            if let Some(port) = addr.get_mut(2..4) {
                port.copy_from_slice(&attacker_port(index).to_be_bytes());
            }
            let addr = victim.rig.av.insert(&addr)?;
            victim.others.push(Side { addr, ..side.clone() });
        }
    }
    rank.send_to_parent(
        format!("victim {} {key} {base} {} {}", port_of(&name), region.len(), to_hex(&name))
            .as_bytes(),
    )?;
    let canary = Buf::new(4096);
    canary.fill(0xa5);
    loop {
        if let Some(parts) = rank.receive_from_parent()? {
            let text = parts
                .first()
                .map(|part| String::from_utf8_lossy(part).into_owned())
                .unwrap_or_default();
            match text.strip_prefix("honest ") {
                Some(name) => {
                    let addr = victim.rig.av.insert(&from_hex(name))?;
                    let ep = Arc::clone(&victim.rig.ep);
                    victim.honest = Some(Side { ep, addr });
                    victim.listen()?;
                }
                None => break,
            }
        }
        victim.progress()?;
        victim.events(pep.as_deref())?;
        if victim.rng.one_in(4) {
            victim.disturb()?;
        }
        if victim.rng.one_in(1 << 12) {
            check!(
                canary.bytes().iter().all(|byte| *byte == 0xa5),
                "a byte changed that nobody named"
            );
        }
    }
    Ok(())
}

impl Victim<'_> {
    fn progress(&mut self) -> Outcome {
        if self.args.sleep {
            match self.rig.tx.cq.sread(1, 0, NAP_MS) {
                Ok(entries) => entries.into_iter().try_for_each(|entry| self.ended(Ok(entry)))?,
                Err(Errno::EAGAIN | Errno::EAVAIL | Errno::ETIMEDOUT) => {}
                Err(e) => return Err(Fail::here(e)),
            }
        }
        self.rig.tx.pump()?;
        let mut any = false;
        while let Some(done) = self.rig.tx.take() {
            any = true;
            self.ended(done)?;
        }
        if !any {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Handles the end of an operation.
    fn ended(&mut self, done: Done) -> Outcome {
        let context = match &done {
            Ok(entry) => entry.context,
            Err(error) => error.context,
        };
        match (context, done) {
            (PING, Ok(entry)) => self.answer(&entry)?,
            (PING, Err(e)) => {
                return Err(Fail::here(format_args!("the honest client's message: {e:?}")));
            }
            (PONG, Err(e)) => {
                return Err(Fail::here(format_args!("the answer to the honest client: {e:?}")));
            }
            (PONG, Ok(_)) => {}
            (OTHER, _) => self.under_way = self.under_way.saturating_sub(1),
            (at, _) if !self.others.is_empty() && self.args.target != Target::Msg => {
                let side = Side { ep: Arc::clone(&self.rig.ep), addr: sys::FI_ADDR_UNSPEC };
                self.post_wild(&side, at.wrapping_sub(WILD))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn answer(&mut self, entry: &Entry) -> Outcome {
        let Some(honest) = self.honest.clone() else {
            return Ok(());
        };
        let back = self.ping.sub(0, entry.len.min(self.ping.len()));
        self.rig.post(|| honest.ep.tsend(back, honest.addr, HONEST | 1, PONG))?;
        self.listen()
    }

    /// Posts the receive for the honest client's next message, which comes only after the reply to
    /// the last one.
    fn listen(&mut self) -> Outcome {
        let Some(honest) = self.honest.clone() else {
            return Ok(());
        };
        self.rig.post(|| honest.ep.trecv(self.ping, honest.addr, HONEST, 0, PING))
    }

    /// Posts a receive for any source.
    fn post_wild(&mut self, side: &Side, at: usize) -> Outcome {
        let Some(buf) = self.wild.get(at).copied() else {
            return Ok(());
        };
        let any = sys::FI_ADDR_UNSPEC;
        let posted = if at == 1 && self.args.target != Target::Dgram {
            let flags = sys::FI_MULTI_RECV | sys::FI_COMPLETION;
            side.ep.recvmsg(&[buf], any, WILD + at, flags)
        } else if at % 2 == 0 {
            side.ep.recv(buf, any, WILD + at)
        } else {
            side.ep.trecv(buf, any, 0, !HONEST, WILD + at)
        };
        match posted {
            Ok(()) | Err(Errno::EAGAIN) => Ok(()),
            Err(e) if self.args.target == Target::Msg => {
                // An ended connection accepts no receive.
                let _ = e;
                Ok(())
            }
            Err(e) => Err(Fail::here(e)),
        }
    }

    fn events(&mut self, pep: Option<&Pep>) -> Outcome {
        let Some(eq) = self.rig.eq.clone() else {
            return Ok(());
        };
        match eq.sread_cm(&self.rig.info, 256, 0) {
            Ok(event) => match (event.info, pep) {
                (Some(info), Some(pep)) => self.called(pep, &info, &event.data),
                _ if event.event == sys::FI_SHUTDOWN => {
                    let over = |side: &Side| side.ep.address() == Ok(event.fid);
                    self.others.retain(|side| !over(side));
                    check!(
                        !self.honest.as_ref().is_some_and(over),
                        "the honest client was hung up on"
                    );
                    Ok(())
                }
                _ => Ok(()),
            },
            Err(Errno::EAVAIL) => {
                eq.readerr()?;
                Ok(())
            }
            Err(Errno::EAGAIN | Errno::ETIMEDOUT) => Ok(()),
            Err(e) => Err(Fail::here(e)),
        }
    }

    /// Handles a connection request. The honest client identifies itself, but so can an attacker.
    fn called(&mut self, pep: &Pep, info: &Info, data: &[u8]) -> Outcome {
        if self.honest.is_some() && self.rng.one_in(8) {
            let _ = pep.reject(info, b"no");
            return Ok(());
        }
        let ep = Ep::open(&self.rig.domain, info)?;
        if let Some(eq) = &self.rig.eq {
            ep.attach(eq, 0)?;
        }
        ep.attach(&self.rig.tx.cq, sys::FI_TRANSMIT | sys::FI_RECV)?;
        ep.enable()?;
        let side = Side { ep, addr: 0 };
        if self.honest.is_none() && data == b"honest" {
            self.honest = Some(side.clone());
            self.listen()?;
            side.ep.accept(&[])?;
            return Ok(());
        }
        for at in 0..3 {
            self.post_wild(&side, at)?;
        }
        if side.ep.accept(b"yes").is_ok() {
            if self.others.len() >= LINES {
                self.others.remove(0);
            }
            self.others.push(side);
        }
        Ok(())
    }

    /// Posts one random operation with an attacker.
    fn disturb(&mut self) -> Outcome {
        if self.others.is_empty() || self.under_way >= MOST {
            if self.rng.one_in(64) {
                let _ = self.rig.ep.cancel(OTHER);
            }
            return Ok(());
        }
        let at = self.rng.below(self.others.len());
        let Some(Side { ep, addr }) = self.others.get(at).cloned() else {
            return Ok(());
        };
        let len = self.rng.pick(&[8, 100, 5000, 20_000, 200_000, 1 << 20]).unwrap_or(8);
        let buf = self.scratch.sub(0, len);
        let (key, place) = (self.rng.below(6) as u64, self.rng.below(1 << 16) as u64);
        let directed = if self.args.target == Target::Msg { 0 } else { addr };
        let posted = match self.rng.below(9) {
            0 => ep.send(buf, addr, OTHER),
            1 => ep.tsend(buf, addr, 5, OTHER),
            2 => ep.trecv(buf, directed, 5, !HONEST, OTHER),
            3 => ep.recv(buf, directed, OTHER),
            4 => ep.write(buf, addr, place, key, OTHER),
            5 => ep.read(buf, addr, place, key, OTHER),
            6 | 7 => {
                let target = AtomicTarget {
                    dest: addr,
                    addr: place & !7,
                    key,
                    datatype: sys::FI_UINT64,
                    op: sys::FI_SUM,
                    context: OTHER,
                };
                let operand = Ioc { buf: self.scratch, count: 1 };
                ep.fetch_atomic(&target, operand, self.scratch.sub(64, 8))
            }
            _ => return self.regroup(addr),
        };
        // An attacker can cause refused operations as well.
        self.under_way += usize::from(posted.is_ok());
        Ok(())
    }

    /// Joins a group with an attacker, in place of the last one.
    fn regroup(&mut self, addr: u64) -> Outcome {
        if self.args.target != Target::Rdm || !self.rng.one_in(50) {
            return Ok(());
        }
        self.group = None;
        let own = self.rig.av.insert(&self.rig.ep.name()?)?;
        let set = AvSet::open(&self.rig.av, AvSetAttr::NONE)?;
        set.insert(own)?;
        set.insert(addr)?;
        self.group = Mc::join(&self.rig.ep, set.addr()?, Some(&set), 0, OTHER).ok();
        Ok(())
    }
}

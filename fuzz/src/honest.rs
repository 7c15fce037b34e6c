// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Honest client of a victim of libfabric: endless round trips, each checked and timed.

use std::time::{Duration, Instant};

use libfabric_sys as sys;
use scif_fabtests::fi::Buf;
use scif_fabtests::harness::output::{from_hex, to_hex};
use scif_fabtests::harness::{Fail, Outcome, Rank};
use scif_fabtests::rig::{Queues, Rig, Spec};
use scif_fabtests::{check, check_eq};

use crate::args::{Args, Target};

/// Tag bit of the honest client's messages, which no receive for others matches.
pub(crate) const HONEST: u64 = 1 << 63;
/// Bytes of the messages, used in turn.
const SIZES: [usize; 5] = [8, 64, 8, 4096, 40_000];

/// Returns the port in the name of an endpoint.
pub(crate) fn port_of(name: &[u8]) -> u16 {
    name.get(2..4).and_then(|b| b.try_into().ok()).map_or(0, u16::from_be_bytes)
}

/// Connects the single endpoint of a client.
fn msg_line(rig: &Rig<'_>, name: &[u8]) -> Outcome {
    rig.ep.connect(name, b"honest")?;
    let eq = rig.eq.as_ref().ok_or_else(|| Fail::here("no event queue"))?;
    let event = eq.sread_cm(&rig.info, 0, 20_000)?;
    check!(event.event == sys::FI_CONNECTED, "event {}", event.event);
    Ok(())
}

/// Times of round trips, reported to the parent.
pub(crate) struct Pulse<'r> {
    rank: &'r Rank,
    sender: &'static str,
    last: Instant,
    reported: Instant,
    worst: Duration,
    count: u64,
}

impl<'r> Pulse<'r> {
    pub(crate) fn new(rank: &'r Rank, sender: &'static str) -> Pulse<'r> {
        let (last, reported) = (Instant::now(), Instant::now());
        Pulse { rank, sender, last, reported, worst: Duration::ZERO, count: 0 }
    }

    /// Counts one round trip. Returns true when the parent has ended the run.
    pub(crate) fn beat(&mut self) -> Outcome<bool> {
        let now = Instant::now();
        self.worst = self.worst.max(now - self.last);
        self.last = now;
        self.count += 1;
        if now - self.reported > Duration::from_millis(100) {
            self.reported = now;
            let text = format!("{} {} {}", self.sender, self.count, self.worst.as_micros());
            self.worst = Duration::ZERO;
            self.rank.send_to_parent(text.as_bytes())?;
            return Ok(self.rank.receive_from_parent()?.is_some());
        }
        Ok(false)
    }
}

/// Returns the capabilities of a victim and its honest client.
pub(crate) fn spec(args: &Args) -> Spec {
    let mut caps = sys::FI_MSG | sys::FI_TAGGED;
    if args.target != Target::Msg {
        caps |= sys::FI_DIRECTED_RECV;
    }
    if args.target != Target::Dgram {
        caps |= sys::FI_RMA | sys::FI_ATOMIC | sys::FI_MULTI_RECV;
    }
    if args.target == Target::Rdm {
        caps |= sys::FI_COLLECTIVE;
    }
    Spec::caps(caps).with(|spec| {
        spec.hints.ep_type = match args.target {
            Target::Msg => sys::FI_EP_MSG,
            Target::Dgram => sys::FI_EP_DGRAM,
            _ => sys::FI_EP_RDM,
        };
        spec.queues = Queues::One;
        spec.eq = true;
        spec.wait_obj = sys::FI_WAIT_UNSPEC;
        if args.auto {
            spec.hints.data_progress = sys::FI_PROGRESS_AUTO;
        }
    })
}

pub(crate) fn run(rank: &Rank, args: &Args) -> Outcome {
    let spec = spec(args);
    let name = from_hex(&args.victim);
    let rig = Rig::open_alone(rank, &spec)?;
    let victim = if args.target == Target::Msg {
        msg_line(&rig, &name)?;
        0
    } else {
        let own = rig.ep.name()?;
        rank.send_to_parent(format!("honest {} {}", port_of(&own), to_hex(&own)).as_bytes())?;
        rig.av.insert(&name)?
    };
    // The victim waits for this address before it replies.
    let mut pulse = Pulse::new(rank, "pulse");
    let bufs: Vec<(Buf, Buf)> =
        SIZES.iter().map(|size| (Buf::new(*size), Buf::new(*size))).collect();
    for (n, (out, back)) in (0_u64..).zip(bufs.iter().cycle()) {
        out.fill_pattern(n);
        rig.post(|| rig.ep.trecv(*back, victim, HONEST | 1, 0, 1))?;
        rig.post(|| rig.ep.tsend(*out, victim, HONEST, 2))?;
        let (mut sent, mut received) = (false, false);
        while !(sent && received) {
            let entry = rig.next(&rig.tx)?;
            sent |= entry.context == 2;
            received |= entry.context == 1;
        }
        check_eq!(back.differs(back.len(), n), None, "round trip {n}");
        if pulse.beat()? {
            break;
        }
    }
    Ok(())
}

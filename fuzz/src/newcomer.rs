// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Newcomers to a reliable endpoint under attack: an endpoint is opened, connects, delivers one
//! message and is closed, again and again. Each delivery is timed.

use libfabric_sys as sys;
use scif_fabtests::fi::{Buf, Ep, TaggedMsg};
use scif_fabtests::harness::output::from_hex;
use scif_fabtests::harness::{Outcome, Rank};
use scif_fabtests::rig::Rig;

use crate::args::Args;
use crate::honest::{Pulse, spec};

/// Context of the message.
const SENT: usize = 1;

pub(crate) fn run(rank: &Rank, args: &Args) -> Outcome {
    let rig = Rig::open_alone(rank, &spec(args))?;
    let victim = rig.av.insert(&from_hex(&args.victim))?;
    let (from, flags) = (Buf::new(8), sys::FI_DELIVERY_COMPLETE | sys::FI_COMPLETION);
    let mut pulse = Pulse::new(rank, "newcomer");
    loop {
        let ep = Ep::open(&rig.domain, &rig.info)?;
        ep.attach(&rig.av, 0)?;
        ep.attach(&rig.tx.cq, sys::FI_TRANSMIT | sys::FI_RECV)?;
        ep.enable()?;
        // An attacker may have taken the name of this endpoint. Then another one tries, and the
        // time runs on.
        rig.post(|| ep.tsendmsg(&[from], TaggedMsg::to(victim, 0, SENT), flags))?;
        let is_delivered = rig.sent(SENT).is_ok();
        drop(ep);
        if is_delivered && pulse.beat()? {
            return Ok(());
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Memory of operations that were outstanding when an endpoint was closed: no access hits it
//! afterwards. Mirrors fi_endpoint(3), "fi_close".

use std::time::{Duration, Instant};

use scif_fabtests::prelude::*;

pub(crate) const CASES: &[Case] = &[
    case("closing/receives_whose_sender_computes", 2, |rank| receives(rank, false)),
    case("closing/receives_whose_sender_helps", 2, |rank| receives(rank, true)),
    case("closing/sends_whose_receiver_computes", 2, sends),
    case("closing/sends_without_a_receive", 2, unexpected_sends),
];

const SIZES: [usize; 5] = [12_000, 20_000, 100_000, 1 << 20, 5 << 20];
/// Largest of these sizes that is in the ring once its send has returned.
const EAGER: usize = 12_000;
const MESSAGES: usize = 4;
/// Byte that fills the memory after the close.
const AFTER: u8 = 0x5a;

fn rig<'r>(rank: &'r Rank) -> Outcome<Rig<'r>> {
    let rig = Rig::open(rank, &Spec::messages(true))?;
    rig.post(|| rig.ep.tsend(Buf::new(8), rig.peer(), 0, 1))?;
    rig.post(|| rig.ep.trecv(Buf::new(8), rig.peer(), 0, 0, 2))?;
    rig.received(2)?;
    rig.sent(1)?;
    rig.barrier()?;
    Ok(rig)
}

fn alone(rank: &Rank) -> Outcome {
    rank.barrier(&mut || Ok(()))
}

/// Tests a close of the receiver while its sender does not poll yet, or makes a cooperative copy.
fn receives(rank: &Rank, helps: bool) -> Outcome {
    for size in SIZES {
        let rig = rig(rank)?;
        let bufs: Vec<Buf> = (0..MESSAGES).map(|_| Buf::pattern(size, 7)).collect();
        if rank.index == 0 {
            for (tag, buf) in (1..).zip(&bufs) {
                rig.post(|| rig.ep.tsend(*buf, rig.peer(), tag, 3))?;
            }
            alone(rank)?;
            rank.barrier(&mut || if helps { rig.pump() } else { Ok(()) })?;
            for _ in 0..500 {
                rig.pump()?;
            }
            alone(rank)?;
        } else {
            for (tag, buf) in (1..).zip(&bufs) {
                rig.post(|| rig.ep.trecv(*buf, rig.peer(), tag, 0, 4))?;
            }
            alone(rank)?;
            rig.pump()?;
            drop(rig);
            bufs.iter().for_each(|buf| buf.fill(AFTER));
            alone(rank)?;
            alone(rank)?;
            for buf in &bufs {
                check!(buf.bytes().iter().all(|byte| *byte == AFTER), "written after fi_close");
            }
        }
    }
    Ok(())
}

/// Tests a close of the sender before its receiver polls. A receive completes with the sent bytes
/// or with an error.
fn sends(rank: &Rank) -> Outcome {
    sender_closes(rank, true)
}

fn unexpected_sends(rank: &Rank) -> Outcome {
    sender_closes(rank, false)
}

fn sender_closes(rank: &Rank, posted: bool) -> Outcome {
    for size in SIZES {
        let rig = rig(rank)?;
        let bufs: Vec<Buf> = (0..MESSAGES).map(|_| Buf::new(size)).collect();
        if rank.index == 0 {
            for (tag, buf) in (1..).zip(&bufs) {
                buf.fill_pattern(7);
                rig.post(|| rig.ep.tsend(*buf, rig.peer(), tag, 3))?;
            }
            alone(rank)?;
            drop(rig);
            bufs.iter().for_each(|buf| buf.fill(AFTER));
            alone(rank)?;
            alone(rank)?;
        } else {
            let receive = |tag: u64, buf: Buf| {
                let context = usize::try_from(tag).unwrap_or(0);
                rig.post(|| rig.ep.trecv(buf, sys::FI_ADDR_UNSPEC, tag, 0, context))
            };
            let post = || (1..).zip(&bufs).try_for_each(|(tag, buf)| receive(tag, *buf));
            if posted {
                post()?;
            }
            alone(rank)?;
            alone(rank)?;
            if !posted {
                post()?;
            }
            let begin = Instant::now();
            let mut ended = 0;
            while ended < MESSAGES && begin.elapsed() < Duration::from_millis(300) {
                rig.pump()?;
                while let Some(end) = rig.rx.take() {
                    ended += 1;
                    let context = end.map_or(0, |entry| entry.context);
                    let buf = bufs.get(context.wrapping_sub(1));
                    check_eq!(buf.and_then(|buf| buf.differs(size, 7)), None);
                }
            }
            check!(size > EAGER || ended == MESSAGES, "{ended} of {MESSAGES} messages of {size} B");
            alone(rank)?;
        }
    }
    Ok(())
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Source addresses that a peer provider reports for messages, by which its owner matches them; and
//! reports of memory operations to the owner. Mirrors fi_peer(3).
//!
//! All other tests of peers are in `peer`.

use scif_fabtests::prelude::*;

use super::peer::{LENS, Side, side_with, spec};
use super::rma::REMOTE;

pub(crate) const CASES: &[Case] = &[
    case("peer/directed_receives_first", 3, |r| directed(r, false)),
    case("peer/directed_messages_first", 3, |r| directed(r, true)),
    case("peer/numbers_of_the_vector", 3, plain),
    case("peer/sender_inserted_late", 2, late),
    case("peer/rma_and_atomics", 2, rma),
];

/// Identifier of a rank in this process.
const fn id(rank: usize) -> u64 {
    0xdead_beef_0000_1000 + rank as u64
}

fn side(rank: &Rank) -> Outcome<Side<'_>> {
    side_with(rank, &spec().with(|spec| spec.hints.caps |= sys::FI_SOURCE | sys::FI_AV_USER_ID))
}

fn names(side: &Side<'_>) -> Outcome<Vec<Vec<u8>>> {
    side.rank.exchange(&side.ep.name()?, &mut || side.pump())
}

/// Tests equal messages of two senders: each receive takes the message of its source.
fn directed(rank: &Rank, first: bool) -> Outcome {
    let side = side(rank)?;
    let mut to = Vec::new();
    for (at, name) in names(&side)?.iter().enumerate() {
        to.push(side.av.insert_told(name, id(at))?);
    }
    check_sources(&side, &to, &[id(0), id(1), id(2)], first)
}

/// Tests that without identifiers the source is the number in the vector.
fn plain(rank: &Rank) -> Outcome {
    let side = side_with(rank, &spec().with(|spec| spec.hints.caps |= sys::FI_SOURCE))?;
    let to = side.meet()?;
    check_sources(&side, &to, &to, true)
}

fn check_sources(side: &Side<'_>, to: &[u64], ids: &[u64], first: bool) -> Outcome {
    let rank = side.rank;
    let number =
        |of: &[u64], rank: usize| of.get(rank).copied().ok_or_else(|| Fail::here("no number"));
    for len in LENS {
        if rank.index > 0 {
            if !first {
                side.barrier()?;
            }
            let (seed, receiver) = (rank.index as u64, number(to, 0)?);
            let (tagged, plain) = (Buf::pattern(len, seed), Buf::pattern(len, seed + 50));
            side.post(|ep| ep.tsend(tagged, receiver, 7, 1))?;
            side.post(|ep| ep.send(plain, receiver, 2))?;
            if first {
                side.barrier()?;
            }
            side.written(2)?;
        } else {
            if first {
                side.barrier()?;
                side.until(|owner| owner.waiting() == 4)?;
            }
            let mut posted = Vec::new();
            // Not in the order of arrival.
            for source in [2, 1] {
                let (tagged, plain, from) = (Buf::new(len), Buf::new(len), number(ids, source)?);
                side.owner.receive_from(from, None, plain, source)?;
                side.owner.receive_from(from, Some((7, 0)), tagged, source)?;
                posted.push((source as u64, tagged, plain));
            }
            if !first {
                side.barrier()?;
            }
            for came in side.written(4)? {
                check_eq!((came.src, came.len, came.err), (number(ids, came.context)?, len, 0));
            }
            for (seed, tagged, plain) in posted {
                check_eq!(tagged.differs(len, seed), None);
                check_eq!(plain.differs(len, seed + 50), None);
            }
        }
        side.barrier()?;
    }
    Ok(())
}

/// Tests a sender that is unknown when its messages arrive and known once it is inserted. The owner
/// is notified and requests the address.
fn late(rank: &Rank) -> Outcome {
    const WAITING: [usize; 3] = [8, 3000, 100_000];
    let side = side(rank)?;
    let names = names(&side)?;
    let name = |rank: usize| names.get(rank).ok_or_else(|| Fail::here("no name"));
    if rank.index == 1 {
        let to = side.av.insert(name(0)?)?;
        for (tag, len) in (1..).zip(WAITING) {
            side.post(|ep| ep.tsend(Buf::pattern(len, tag), to, tag, 1))?;
        }
        side.written(WAITING.len())?;
        return side.barrier();
    }
    side.until(|owner| owner.waiting() == WAITING.len())?;
    check_eq!(side.owner.senders(), vec![sys::FI_ADDR_UNSPEC; WAITING.len()]);
    // Neither another address nor another vector identifies the sender.
    Av::open(&side.domain, sys::FI_AV_TABLE, 4)?.insert(name(1)?)?;
    side.av.insert_told(name(0)?, id(0))?;
    check_eq!(side.owner.senders(), vec![sys::FI_ADDR_UNSPEC; WAITING.len()]);
    let before = side.owner.call_log().told;
    side.av.insert_told(name(1)?, id(1))?;
    check_eq!(side.owner.call_log().told, before + 1, "how often the owner was told");
    check_eq!(side.owner.senders(), vec![id(1); WAITING.len()]);
    // A receive for another source gets no message.
    side.owner.receive_from(id(0), Some((1, 0)), Buf::new(8), 99)?;
    for (tag, len) in (1..).zip(WAITING) {
        let buf = Buf::new(len);
        side.owner.receive_from(id(1), Some((tag, 0)), buf, len)?;
        let came = side.written(1)?;
        let came = came.first().ok_or_else(|| Fail::here("an entry"))?;
        check_eq!((came.context, came.src, came.err), (len, id(1), 0));
        check_eq!(buf.differs(len, tag), None);
    }
    side.barrier()
}

/// Tests that operations on memory complete in the queue and the counter of the owner, also when
/// they fail.
fn rma(rank: &Rank) -> Outcome {
    let caps = sys::FI_RMA | sys::FI_ATOMIC;
    let side = side_with(rank, &spec().with(|spec| spec.hints.caps |= caps))?;
    let to = side.meet()?.get(rank.peer()).copied().unwrap_or(0);
    let memory = Buf::new(8 + 2_000_000);
    memory.store_u64(0, 5);
    let request = MrRequest { access: REMOTE, key: 77, flags: 0 };
    let mr = Mr::reg(&side.domain, memory, request)?;
    let key = mr.key()?;
    side.barrier()?;
    let place = AtomicTarget::sum(to, 0, key, 3);
    let one = Ioc { buf: Buf::of(&2_u64.to_ne_bytes()), count: 1 };
    let fetched = Buf::new(8);
    let mut good = 0;
    let mut done = |context: usize, flags: u64| -> Outcome {
        let came = side.written(1)?;
        good += 1;
        check_eq!(came.len(), 1);
        let came = came.first().ok_or_else(|| Fail::here("an entry"))?;
        check_eq!((came.context, came.flags, came.err), (context, flags, 0));
        side.until(|owner| owner.call_log().good == good)?;
        Ok(())
    };
    side.post(|ep| ep.atomic(&place, one))?;
    done(3, sys::FI_ATOMIC | sys::FI_WRITE)?;
    side.post(|ep| ep.fetch_atomic(&place, one, fetched))?;
    done(3, sys::FI_ATOMIC | sys::FI_READ)?;
    check_eq!(fetched.load_u64(0), 7);
    for len in LENS {
        let (put, got) = (Buf::pattern(len, 4), Buf::new(len));
        side.post(|ep| ep.write(put, to, 8, key, 1))?;
        done(1, sys::FI_RMA | sys::FI_WRITE)?;
        side.post(|ep| ep.read(got, to, 8, key, 2))?;
        done(2, sys::FI_RMA | sys::FI_READ)?;
        check_eq!(got.differs(len, 4), None);
    }
    check_eq!(side.owner.call_log().bad, 0);
    side.post(|ep| ep.write(Buf::new(8), to, 0, key + 1, 9))?;
    let came = side.written(1)?;
    check!(came.iter().all(|w| w.context == 9 && w.err != 0), "{came:x?}");
    side.until(|owner| owner.call_log().bad == 1)?;
    check_eq!(side.owner.call_log().good, good);
    side.barrier()
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests without privileges that providers on one host use: access to the memory of other
//! processes, and descriptors. All operations still work.

use scif_fabtests::prelude::*;

use super::atomic::spec;
use super::call_variants::{self, RecvCall, SendCall, Timing};
use super::rma::{REMOTE, announce, from, wait_for_announcement};

pub(crate) const CASES: &[Case] = &[
    case("denied/process_vm_of_the_sender", 2, |r| process_vm(r, |r| r.index == 0, false)),
    case("denied/process_vm_of_the_receiver", 2, |r| process_vm(r, |r| r.index == 1, false)),
    case("denied/process_vm_of_both", 2, |r| process_vm(r, |_| true, false)),
    case("denied/process_vm_of_the_sender_later", 2, |r| process_vm(r, |r| r.index == 0, true)),
    case("denied/process_vm_of_the_receiver_later", 2, |r| process_vm(r, |r| r.index == 1, true)),
    case("denied/process_vm_of_both_later", 2, |r| process_vm(r, |_| true, true)),
    case("denied/process_vm_during_transfers", 2, under_way),
    case("denied/descriptors_of_the_server", 2, |r| server_without_descriptors(r, 0)).under(SERVER),
    case("denied/most_descriptors_of_the_server", 2, |r| server_without_descriptors(r, 4))
        .under(SERVER),
    case("denied/memory_of_another_user", 2, another_user)
        .under(&[("SCIF_ALLOW_UIDS", "0,65534"), ("SCIF_DOMAIN", "users")]),
];

const SERVER: &[(&str, &str)] = &[("FI_SCIF_CONNECT_TIMEOUT", "300ms"), ("FI_LOG_LEVEL", "warn")];

/// Tests a server without descriptors for a connection. It refuses the caller in the end; both
/// sides log the cause and continue.
fn server_without_descriptors(rank: &Rank, left: usize) -> Outcome {
    rank.only_scif("a setting of another provider")?;
    let spec = Spec::caps(sys::FI_MSG | sys::FI_TAGGED | sys::FI_DIRECTED_RECV)
        .with(|spec| spec.eq = true);
    let rig = Rig::open(rank, &spec)?;
    let (outcome, text) = sandbox::stderr_of(|| {
        if rank.index == 0 {
            rig.barrier()?;
            refused(&rig)?;
            return rig.barrier();
        }
        sandbox::with_files_left(left, || {
            rig.barrier()?;
            rank.step("serving without descriptors");
            rig.barrier()
        })?
    })?;
    outcome?;
    let why = if rank.index == 0 {
        "the peer is out of descriptors"
    } else {
        "no free descriptor for connecting peers"
    };
    check_eq!(text.matches(why).count(), 1, "{text}");
    rig.barrier()?;
    call_variants::plain_message(&rig, 100, Timing::Expected)
}

fn refused(rig: &Rig<'_>) -> Outcome {
    rig.post(|| rig.ep.trecv(Buf::new(8), rig.peer(), 1, 0, 1))?;
    rig.post(|| rig.ep.tsend(Buf::new(8), rig.peer(), 1, 2))?;
    rig.post(|| rig.ep.tsend(Buf::new(1 << 20), rig.peer(), 1, 3))?;
    check_eq!(rig.sent(2)?.context, 2, "the short message was in the ring");
    for (queue, context) in [(&rig.tx, 3), (&rig.rx, 1)] {
        let error = rig.next_error(queue)?;
        check_eq!((error.context, error.err), (context, Errno::ECONNREFUSED));
    }
    let eq = rig.eq.as_ref().ok_or_else(|| Fail::here("no event queue"))?;
    check_eq!(eq.read(0), Err(Errno::EAVAIL));
    check_eq!(eq.readerr()?.data, rig.peer());
    Ok(())
}

fn process_vm(rank: &Rank, denied: fn(&Rank) -> bool, later: bool) -> Outcome {
    if denied(rank) && !later {
        sandbox::deny_process_vm()?;
    }
    let rig = Rig::open(rank, &spec())?;
    let (memory, _mr, remotes) = rig.share_buf(Buf::new(5 << 20), REMOTE)?;
    if later {
        work(&rig, memory, &remotes)?;
        if denied(rank) {
            sandbox::deny_process_vm()?;
        }
        rig.barrier()?;
    }
    work(&rig, memory, &remotes)
}

/// Tests that peers of different users access no memory of each other, whatever rights one of them
/// has.
fn another_user(rank: &Rank) -> Outcome {
    // An unprivileged user may be unable to read the libraries.
    offers(rank, load(rank)?, &spec().hints)?;
    if rank.index == 1 && !sandbox::become_ordinary_user() {
        return Err(Fail::NotHere("another user: this one cannot change to it".into()));
    }
    let rig = Rig::open(rank, &spec())?;
    let (memory, _mr, remotes) = rig.share_buf(Buf::new(5 << 20), REMOTE)?;
    work(&rig, memory, &remotes)
}

/// Transfers messages, RMA and atomics of all sizes.
fn work(rig: &Rig<'_>, memory: Buf, remotes: &[scif_fabtests::rig::Remote]) -> Outcome {
    for &size in call_variants::SIZES.iter().filter(|&&size| size >= 1000) {
        for timing in [Timing::Expected, Timing::Unexpected] {
            call_variants::one_message(rig, SendCall::Send, RecvCall::Recv, false, size, timing)?;
        }
        let at = from(remotes, rig.rank.peer(), 33)?;
        let (buf, back) = (Buf::pattern(size, 6), Buf::new(size));
        rig.complete(1, || rig.ep.write(buf, rig.peer(), at.addr, at.key, 1))?;
        announce(rig, rig.peer())?;
        wait_for_announcement(rig)?;
        check_eq!(memory.sub(33, size).differs(size, 6), None);
        rig.complete(2, || rig.ep.read(back, rig.peer(), at.addr, at.key, 2))?;
        check_eq!(back.differs(size, 6), None);
        rig.barrier()?;
    }
    let at = from(remotes, rig.rank.peer(), 0)?;
    let place = at.sum(rig.peer(), 3);
    memory.store_u64(0, 0);
    rig.barrier()?;
    for _ in 0..100 {
        rig.complete(3, || {
            rig.ep.atomic(&place, Ioc { buf: Buf::of(&1_u64.to_le_bytes()), count: 1 })
        })?;
    }
    announce(rig, rig.peer())?;
    wait_for_announcement(rig)?;
    check_eq!(memory.load_u64(0), 100);
    rig.barrier()
}

/// Tests the loss of the right during large messages and RMA.
fn under_way(rank: &Rank) -> Outcome {
    const SIZE: usize = 3 << 20;
    let rig = Rig::open(rank, &spec())?;
    let (memory, _mr, remotes) = rig.share_buf(Buf::new(SIZE), REMOTE)?;
    let at = from(&remotes, rank.peer(), 0)?;
    for round in 0..12 {
        let (from, to, put) =
            (Buf::pattern(SIZE, round), Buf::new(SIZE), Buf::pattern(SIZE, round + 100));
        rig.post(|| rig.ep.send(from, rig.peer(), 1))?;
        rig.post(|| rig.ep.write(put, rig.peer(), at.addr, at.key, 2))?;
        rig.post(|| rig.ep.recv(to, sys::FI_ADDR_UNSPEC, 3))?;
        if round == 4 + rank.index as u64 * 3 {
            sandbox::deny_process_vm()?;
        }
        rig.received(3)?;
        check_eq!(rig.next(&rig.tx)?.context + rig.next(&rig.tx)?.context, 3);
        check_eq!(to.differs(SIZE, round), None);
        announce(&rig, rig.peer())?;
        wait_for_announcement(&rig)?;
        check_eq!(memory.differs(SIZE, round + 100), None);
        rig.barrier()?;
    }
    Ok(())
}

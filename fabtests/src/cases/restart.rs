// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Peers that return at the same address: after a death, or after the close of an endpoint. Others
//! continue with the `fi_addr_t` they have.

use scif_fabtests::prelude::*;

pub(crate) const CASES: &[Case] = &[
    case("restart/after_death", 2, |r| after_death(r, LIVES, false)),
    case("restart/after_death_with_a_fork", 2, |r| after_death(r, LIVES, true)),
    case("restart/after_death_in_a_runtime_dir", 2, |r| after_death(r, LIVES, false))
        .under(RUNTIME_DIR),
    case("restart/hundred_deaths", 2, |r| after_death(r, 100, false)).under(SOON).within(600),
    case("restart/after_closing", 2, after_closing),
    case("restart/after_closing_in_a_runtime_dir", 2, after_closing).under(RUNTIME_DIR),
    case("restart/address_free_at_once", 2, |r| free_at_once(&Rig::open(r, &spec())?)),
];

/// Setting for sockets with names in the file system, which a successor takes over after a death.
const RUNTIME_DIR: &[(&str, &str)] = &[("SCIF_RUNTIME_DIR", "{dir}")];
/// Setting with which deaths are noticed soon between hosts.
const SOON: &[(&str, &str)] = &[("FI_SCIF_NET_TIMEOUT", "200ms")];
const LIVES: u32 = 5;
/// Number of dead peers whose memory a process keeps for `scifctl`.
const KEPT: usize = 16;
/// Context of the receive that is open when every second life ends.
const UNANSWERED: usize = 8;

fn spec() -> Spec {
    Spec::messages(false).with(|spec| spec.hints.caps |= sys::FI_TAGGED | sys::FI_DIRECTED_RECV)
}

/// Exchanges messages in both directions. Each receive names its source, which an insertion has
/// declared alive: it must not end with the error of the former process at the address.
fn talk(rig: &Rig<'_>, other: u64, seed: u64) -> Outcome {
    for size in [8, 3000, 100_000, 1 << 20] {
        let (from, to) = (Buf::pattern(size, seed), Buf::new(size));
        rig.post(|| rig.ep.recv(to, other, 1))?;
        rig.post(|| rig.ep.send(from, other, 2))?;
        rig.received(1)?;
        rig.sent(2)?;
        check_eq!(to.differs(size, seed), None, "life {seed}, {size} B");
    }
    Ok(())
}

/// Tests a process that dies and returns `lives` times. No message of a later life ends an
/// operation that waited for a former one, and none is lost.
fn after_death(rank: &Rank, lives: u32, forked: bool) -> Outcome {
    if rank.index == 1 {
        // The survivor sends the former address of this rank, and its own address.
        let parts = rank.exchange(&[], &mut || Ok(()))?;
        let (mine, other) = names(&parts)?;
        let rig = if mine.is_empty() {
            Rig::open_alone(rank, &spec())?
        } else {
            Rig::open_at(rank, &spec(), &mine)?
        };
        check!(mine.is_empty() || rig.ep.name()? == mine, "another name than asked for");
        let other = rig.av.insert(&other)?;
        rig.exchange(&rig.ep.name()?)?;
        talk(&rig, other, u64::from(rank.life))?;
        if rank.life < lives {
            if forked {
                sandbox::fork_sleeper()?;
            }
            rank.expect_death()?;
            rig.barrier()?;
            return sandbox::die();
        }
        return rig.barrier();
    }
    let rig = Rig::open_alone(rank, &spec())?;
    let mine = rig.ep.name()?;
    let (mut known, mut number, mut files) = (Vec::new(), 0, 0);
    for life in 0..=lives {
        let mut message = vec![u8::try_from(known.len()).map_err(Fail::here)?];
        message.extend(&known);
        message.extend(&mine);
        rig.exchange(&message)?;
        let parts = rig.exchange(&mine)?;
        let name = parts.get(1).cloned().unwrap_or_default();
        if life == 0 {
            number = rig.av.insert(&name)?;
            known = name;
        } else {
            check_eq!(name, known);
            check_eq!(rig.av.insert(&name)?, number);
        }
        talk(&rig, number, u64::from(life))?;
        if life == 1 {
            files = sandbox::open_files()?;
        }
        rig.barrier()?;
        if life < lives {
            // Without it, the survivor learns of the death from a send alone.
            let waits = life % 2 == 1;
            if waits {
                rig.post(|| rig.ep.trecv(Buf::new(8), number, 9, 0, UNANSWERED))?;
            }
            rank.kill(1)?;
            // Outstanding operations with the dead peer end before its next incarnation starts.
            rank.step("sending until the death is noticed");
            loop {
                rig.post(|| rig.ep.tsend(Buf::new(8), number, 9, 7))?;
                if rig.wait("the send or its failure", || Ok(rig.tx.take()))?.is_err() {
                    break;
                }
            }
            if waits {
                let error = rig.next_error(&rig.rx)?;
                check_eq!((error.context, error.err), (UNANSWERED, Errno::ECONNRESET));
            }
            rank.respawn(1)?;
        }
    }
    // One descriptor more or less, because a simultaneous open may leave two connections.
    // Connections of former incarnations may end a moment after the death was noticed on another.
    // The time limit reports connections that never end.
    let kept = if lives > LIVES { KEPT } else { 0 };
    rank.step(format_args!("letting go of all but {files} descriptors and {kept}"));
    while sandbox::open_files()? > files + 1 + kept {
        rig.pump()?;
        std::thread::yield_now();
    }
    Ok(())
}

fn names(parts: &[Vec<u8>]) -> Outcome<(Vec<u8>, Vec<u8>)> {
    let message = parts.first().ok_or_else(|| Fail::here("no message"))?;
    let (&len, rest) = message.split_first().ok_or_else(|| Fail::here("an empty message"))?;
    let (mine, other) =
        rest.split_at_checked(usize::from(len)).ok_or_else(|| Fail::here("a short message"))?;
    Ok((mine.to_vec(), other.to_vec()))
}

/// Tests a process that repeatedly closes its endpoint and opens another one at the same address.
fn after_closing(rank: &Rank) -> Outcome {
    if rank.index == 0 {
        let rig = Rig::open(rank, &spec())?;
        for life in 0..10 {
            talk(&rig, rig.to(1), life)?;
            rig.barrier()?;
            // Closed and open again. A message sent before this rank has noticed may enter the
            // closed endpoint and be lost, unless its sender waits for delivery.
            rig.barrier()?;
            rank.step("sending until it is delivered");
            let flags = sys::FI_DELIVERY_COMPLETE | sys::FI_COMPLETION;
            loop {
                rig.post(|| {
                    rig.ep.tsendmsg(&[Buf::new(8)], TaggedMsg::to(rig.to(1), 5, 7), flags)
                })?;
                if rig.wait("the delivery or its failure", || Ok(rig.tx.take()))?.is_ok() {
                    break;
                }
            }
        }
        return rig.barrier();
    }
    let mut rig = Rig::open(rank, &spec())?;
    let (name, other) = (rig.ep.name()?, rig.names.first().cloned().unwrap_or_default());
    let mut to = rig.to(0);
    for life in 0..10 {
        talk(&rig, to, life)?;
        rig.barrier()?;
        drop(rig);
        rig = Rig::open_at(rank, &spec(), &name)?;
        to = rig.av.insert(&other)?;
        rig.barrier()?;
        rig.post(|| rig.ep.trecv(Buf::new(8), sys::FI_ADDR_UNSPEC, 5, 0, 6))?;
        rig.received(6)?;
    }
    rig.barrier()
}

/// Tests that an address is free as soon as its owner has died or closed it, whatever its peers do.
fn free_at_once(rig: &Rig<'_>) -> Outcome {
    talk(rig, rig.peer(), 1)?;
    if rig.rank.index == 1 {
        rig.rank.expect_death()?;
        rig.barrier()?;
        return sandbox::die();
    }
    rig.barrier()?;
    rig.rank.kill(1)?;
    let name = rig.names.get(1).cloned().unwrap_or_default();
    // This process takes the address over before it has noticed the death.
    let second = Rig::open_at(rig.rank, &spec(), &name)?;
    check_eq!(second.ep.name()?, name);
    Ok(())
}

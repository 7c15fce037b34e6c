// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! `scif.h` under attack: a victim that accepts, sends, receives, registers and copies; its honest
//! client; and the attack.

use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use scif::{Config, PortId};
use scif_api::{Endpoints, Pages, PollFd};
use scif_fabtests::harness::{Fail, Outcome, Rank, Rng};
use scif_fabtests::{check, check_eq};

use crate::args::Args;
use crate::attacker::Attacker;
use crate::handshake::Callers;
use crate::honest::Pulse;
use crate::scribble::scribble;

const PAGE: usize = 4096;
/// Offset of the victim's window.
const WINDOW: i64 = 0x10_0000;
/// `SCIF_MAP_FIXED`.
const FIXED: i32 = 0x10;
/// First bytes of the honest client; any other first bytes are an attacker's.
const HONEST: &[u8; 8] = b"honest..";

fn open(config: Config) -> Outcome<Endpoints> {
    Endpoints::new(config).map_err(|e| Fail::here(format_args!("{e:?}")))
}

fn failed(e: impl std::fmt::Debug) -> Fail {
    Fail::here(format_args!("{e:?}"))
}

const fn entry(fd: RawFd, events: i16) -> PollFd {
    PollFd { fd, events, revents: 0 }
}

/// Runs the victim: echoes 64 bytes to the honest client, and makes calls that an attacker may
/// disturb.
pub(crate) fn victim(rank: &Rank) -> Outcome {
    let scif = open(Config::from_env())?;
    let listener = scif.open().map_err(failed)?;
    let port = scif.bind(listener, 0).map_err(failed)?;
    scif.listen(listener, 64).map_err(failed)?;
    rank.send_to_parent(format!("victim {port} 0 {WINDOW} {PAGE} -").as_bytes())?;
    let pages = Pages::new(4 * PAGE).map_err(failed)?;
    let mut rng = Rng::new(rank.target.seed);
    let mut open: Vec<(RawFd, Option<bool>)> = Vec::new();
    let mut buffer = [0; 64];
    loop {
        if rank.receive_from_parent()?.is_some() {
            return Ok(());
        }
        let mut busy = false;
        if let Ok((_, fd)) = scif.accept(listener, false) {
            let _ = scif.register(fd, (pages.addr(), 2 * PAGE), WINDOW, 3, FIXED);
            open.push((fd, None));
            busy = true;
        }
        let mut ended = Vec::new();
        for (fd, honest) in &mut open {
            match scif.receive_bytes(*fd, &mut buffer, false) {
                Ok(n) if n > 0 => {
                    busy = true;
                    let honest = honest.get_or_insert(buffer.starts_with(HONEST));
                    let _ = scif.send_bytes(*fd, buffer.get(..n).unwrap_or_default(), *honest);
                }
                Err(e) if e.raw_os_error() != 11 => ended.push(*fd),
                _ => {}
            }
            if rng.one_in(4) && *honest != Some(true) {
                disturbed(&scif, &mut rng, *fd, *honest, &pages);
            }
        }
        for fd in ended {
            open.retain(|(other, _)| *other != fd);
            let _ = scif.close(fd);
        }
        if !busy {
            let mut entries: Vec<PollFd> = open.iter().map(|(fd, _)| entry(*fd, 1)).collect();
            entries.push(entry(listener, 1));
            let _ = scif.poll(&mut entries, 5);
        }
    }
}

/// Makes calls whose outcome the attacker controls; none may hang. Bytes are sent only to a peer
/// known as an attacker, because the honest client reads only its own echo.
fn disturbed(scif: &Endpoints, rng: &mut Rng, fd: RawFd, honest: Option<bool>, pages: &Pages) {
    let far = WINDOW + (PAGE * rng.below(4)) as i64;
    let at = pages.addr() + 2 * PAGE;
    let _ = match rng.below(7) {
        0 if honest == Some(false) => scif.send_bytes(fd, &[7; 48], false).map(drop),
        1 => scif.read_to_memory(fd, at, PAGE, far, 0),
        2 => scif.write_from_memory(fd, at, 64, far, 4),
        3 => scif.read_from(fd, WINDOW, 64, far, 0),
        4 => scif.fence_mark(fd, scif_api::FenceSide::Own).map(drop),
        5 => scif.map_pages(fd, PAGE, far, false).map(drop),
        _ => scif.poll(&mut [entry(fd, 5)], 0).map(drop),
    };
}

/// Runs the honest client: endless round trips of 64 bytes.
pub(crate) fn honest(rank: &Rank, args: &Args) -> Outcome {
    let scif = open(Config::from_env())?;
    let mut pulse = Pulse::new(rank, "pulse");
    let fd = scif.open().map_err(failed)?;
    let victim = PortId::new(0, args.port);
    scif.connect(fd, victim).map_err(failed)?;
    for n in 0_u64.. {
        let mut bytes = [0; 64];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = n.wrapping_add(at as u64).to_le_bytes().first().copied().unwrap_or(0);
        }
        if let Some(first) = bytes.first_chunk_mut::<8>() {
            *first = *HONEST;
        }
        check_eq!(scif.send_bytes(fd, &bytes, true).map_err(failed)?, 64);
        let mut back = [0; 64];
        let mut at = 0;
        while let Some(rest) = back.get_mut(at..).filter(|rest| !rest.is_empty()) {
            at += scif.receive_bytes(fd, rest, true).map_err(failed)?;
        }
        check!(back == bytes, "round trip {n} brought {back:?}");
        if pulse.beat()? {
            break;
        }
    }
    Ok(())
}

/// Attacks a victim of `scif.h`.
pub(crate) fn attack(rank: &Rank, args: &Args) -> Outcome {
    let (mut attacker, mut callers, config) = Attacker::new(rank, args)?;
    let scif = std::sync::Arc::new(open(config)?);
    loop {
        if attacker.mutator.rng.one_in(3) {
            for _ in 0..30 {
                if callers.is_hungry() {
                    catch(&scif, &mut callers)?;
                }
                attacker.counts.handshakes += u64::from(callers.call(&mut attacker.mutator)?);
            }
        } else {
            session(&mut attacker, &scif)?;
        }
        attacker.beat()?;
    }
}

/// Captures the first packet of an honest connect, which fails when the trap closes its socket.
fn catch(scif: &std::sync::Arc<Endpoints>, callers: &mut Callers) -> Outcome {
    let Ok(fd) = scif.open() else { return Ok(()) };
    let trap = PortId::new(0, callers.trap);
    let call = {
        let scif = std::sync::Arc::clone(scif);
        std::thread::spawn(move || scif.connect(fd, trap).is_ok())
    };
    let begin = Instant::now();
    while !callers.catch()? && begin.elapsed() < Duration::from_secs(2) {
        std::thread::yield_now();
    }
    let _ = call.join();
    let _ = scif.close(fd);
    Ok(())
}

fn session(attacker: &mut Attacker<'_>, scif: &Endpoints) -> Outcome {
    let Ok(fd) = scif.open() else { return Ok(()) };
    let victim = PortId::new(0, attacker.args.port);
    if scif.connect(fd, victim).is_err() {
        let _ = scif.close(fd);
        return Ok(());
    }
    attacker.counts.connections += 1;
    let pages = Pages::new(4 * PAGE);
    for _ in 0..10 + attacker.mutator.rng.below(300) {
        attacker.counts.records += 1;
        let [one, other] =
            [attacker.mutator.word(), attacker.mutator.word()].map(|word| word as i64);
        let place = attacker.mutator.rng.below(4096);
        let subject = attacker.mutator.rng.below(16);
        attacker.note(&format!("call {subject} {one:#x} {other:#x} {place}"));
        let bytes = vec![0x55; place];
        let _ = match (subject, &pages) {
            (0..5, _) => scif.send_bytes(fd, &bytes, false).map(drop),
            (5..7, _) => scif.receive_bytes(fd, &mut vec![0; place + 1], false).map(drop),
            (7, Ok(pages)) => {
                scif.register(fd, (pages.addr(), 2 * PAGE), WINDOW, 3, FIXED).map(drop)
            }
            (8, Ok(pages)) => {
                scif.register(fd, (pages.addr(), PAGE * (1 + place % 4)), one, 3, 0).map(drop)
            }
            (9, _) => scif.unregister(fd, WINDOW, PAGE),
            (10, Ok(pages)) => scif.read_to_memory(fd, pages.addr(), place, WINDOW, 0),
            (11, Ok(pages)) => scif.write_from_memory(fd, pages.addr(), place, WINDOW, 0),
            (12, Ok(pages)) => scif.write_from_memory(fd, pages.addr(), place, other, 4),
            (13, _) => scif.map_pages(fd, PAGE, WINDOW, true).map(drop),
            _ => {
                attacker.packets();
                Ok(())
            }
        };
        attacker.beat()?;
    }
    if attacker.mutator.rng.one_in(3) {
        let _ = scif.close(fd);
        return Ok(());
    }
    // The library of this process trusts its own memory, so it is not called any more.
    for _ in 0..10 + attacker.mutator.rng.below(400) {
        let count = 1 + attacker.mutator.rng.below(40);
        attacker.counts.records += 1;
        attacker.note(&format!("{count} words"));
        attacker.counts.words += scribble(&mut attacker.mutator, count);
        if attacker.mutator.rng.one_in(8) {
            attacker.packets();
        }
        if attacker.mutator.rng.one_in(8) {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    attacker.start_again()
}

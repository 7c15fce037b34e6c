// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Names of endpoints, keys of jobs, domains of networks, and processes that end without closing
//! their endpoints. The ranks are on several hosts when the program runs with `--over-network`.

use scif_fabtests::prelude::*;

pub(crate) const CASES: &[Case] = &[
    case("hosts/names", 2, names),
    case("hosts/equal_hashes", 2, equal_hashes),
    case("hosts/names_with_a_key", 2, names).under(&[("FI_SCIF_NET_KEY", "a key")]),
    case("hosts/another_key", 4, |r| keys(r, "sesame of one")).under(KEYS),
    case("hosts/no_key", 4, |r| keys(r, "none")).under(KEYS),
    case("hosts/domain", 1, domain).under(&[("FI_SCIF_NET_DOMAIN", "lo")]),
    case("hosts/no_such_domain", 1, no_such_domain)
        .under(&[("FI_SCIF_NET_DOMAIN", "nowhere"), ("FI_LOG_LEVEL", "warn")]),
    case("hosts/exit_without_close", 2, |r| exit(r, sys::FI_PROGRESS_MANUAL)),
    case("hosts/exit_without_close_under_auto_progress", 2, |r| exit(r, sys::FI_PROGRESS_AUTO)),
];

const KEYS: &[(&str, &str)] = &[
    ("FI_SCIF_NET_KEY", "sesame of all"),
    ("FI_SCIF_CONNECT_TIMEOUT", "300ms"),
    ("FI_LOG_LEVEL", "warn"),
];

/// Rank whose key is not that of the others.
const OUTSIDER: usize = 3;

const SIZES: [usize; 3] = [8, 5000, 300_000];

fn spec() -> Spec {
    let caps = sys::FI_MSG | sys::FI_TAGGED | sys::FI_SOURCE | sys::FI_DIRECTED_RECV;
    Spec::caps(caps).with(|spec| spec.sources = true)
}

/// Opens an endpoint without peers.
fn rig(rank: &Rank) -> Outcome<Rig<'_>> {
    let rig = Rig::open_alone(rank, &spec())?;
    if rig.info.addr_format() != sys::FI_SOCKADDR_IN {
        return Err(Fail::NotRun("addresses are not sockaddr_in".into()));
    }
    Ok(rig)
}

/// Returns the peer's part of an exchange.
fn of_peer(rig: &Rig<'_>, mine: &[u8]) -> Outcome<Vec<u8>> {
    let all = rig.exchange(mine)?;
    all.get(rig.rank.peer()).cloned().ok_or_else(|| Fail::here("nothing of the peer"))
}

/// Returns a name with other bytes from `at` on.
fn with(name: &[u8], at: usize, bytes: &[u8]) -> Outcome<Vec<u8>> {
    let mut changed = name.to_vec();
    let part = changed.get_mut(at..at + bytes.len()).ok_or_else(|| Fail::here("a short name"))?;
    part.copy_from_slice(bytes);
    Ok(changed)
}

/// Exchanges messages with the peer at `to`, which is their only source. Half of the receives name
/// it.
fn talk(rig: &Rig<'_>, to: u64, seed: u64) -> Outcome {
    for (at, size) in SIZES.into_iter().enumerate() {
        let (from, into) = (Buf::pattern(size, seed), Buf::new(size));
        let src = if at % 2 == 0 { to } else { sys::FI_ADDR_UNSPEC };
        rig.post(|| rig.ep.trecv(into, src, seed, 0, 1))?;
        rig.post(|| rig.ep.tsend(from, to, seed, 2))?;
        let entry = rig.received(1)?;
        check_eq!((entry.len, entry.src), (size, Some(to)));
        check_eq!(into.differs(size, seed), None);
        rig.sent(2)?;
    }
    rig.barrier()
}

/// Tests that a vector returns the bytes of a name, and that a name and the address that a user
/// would type for it are one peer, in either order.
fn names(rank: &Rank) -> Outcome {
    let rig = rig(rank)?;
    let own = rig.ep.name()?;
    let theirs = of_peer(&rig, &own)?;
    let typed = with(&theirs, 8, &[0; 8])?;
    check!(typed != theirs, "a name without identity");
    let to = rig.av.insert(&typed)?;
    talk(&rig, to, 1)?;
    check_eq!(rig.av.insert(&theirs)?, to);
    check_eq!(rig.av.lookup(to, 64)?, (typed.clone(), typed.len()));
    talk(&rig, to, 2)?;

    let again = Rig::open_alone(rank, &spec())?;
    let own = again.ep.name()?;
    let theirs = of_peer(&again, &own)?;
    let to = again.av.insert(&theirs)?;
    check_eq!(again.av.insert(&with(&theirs, 8, &[0; 8])?)?, to);
    let (known, len) = again.av.lookup(to, 64)?;
    check_eq!((&known, len), (&theirs, theirs.len()));
    // Each rank receives what the other one has in its vector.
    check_eq!(of_peer(&again, &known)?, own);
    talk(&again, to, 3)
}

/// Tests two hosts whose hashes agree, as names with a forged hash have them, and then two
/// endpoints at one port number of both.
fn equal_hashes(rank: &Rank) -> Outcome {
    let rig = rig(rank)?;
    let own = rig.ep.name()?;
    let theirs = of_peer(&rig, &own)?;
    let hash = own.get(12..16).ok_or_else(|| Fail::here("a short name"))?;
    let forged = with(&theirs, 12, hash)?;
    let to = rig.av.insert(&forged)?;
    talk(&rig, to, 1)?;
    if forged == theirs {
        // Of one host, or of two that share a directory with the port numbers.
        return rig.barrier();
    }
    let port = (if rank.index == 0 { &own } else { &theirs }).get(2..4).unwrap_or_default();
    let twin = match rank.index {
        0 => rig,
        _ => Rig::open_at(rank, &spec(), &with(&own, 2, port)?)?,
    };
    let own = twin.ep.name()?;
    let theirs = of_peer(&twin, &own)?;
    let forged = with(&theirs, 12, hash)?;
    let differing: Vec<usize> =
        (0..own.len()).filter(|at| own.get(*at) != forged.get(*at)).collect();
    check!(!differing.is_empty() && differing.iter().all(|at| (4..8).contains(at)), "{forged:?}");
    let to = twin.av.insert(&forged)?;
    talk(&twin, to, 2)
}

/// Whether two names are of endpoints on two hosts: address or hash differ.
fn are_apart(a: &[u8], b: &[u8]) -> bool {
    a.get(4..8) != b.get(4..8) || a.get(12..16) != b.get(12..16)
}

/// Tests one rank with another key. Operations between it and ranks on other hosts fail, with one
/// line of the log for each peer. All other pairs exchange messages.
fn keys(rank: &Rank, key: &str) -> Outcome {
    rank.only_scif("a setting of another provider")?;
    if rank.index == OUTSIDER {
        sandbox::set_env("FI_SCIF_NET_KEY", key)?;
    }
    let rig = rig(rank)?;
    let own = rig.ep.name()?;
    let names = rig.exchange(&own)?;
    let is_refused = |to: usize| {
        let is_outsider = (to == OUTSIDER) != (rank.index == OUTSIDER);
        is_outsider && names.get(to).is_some_and(|name| are_apart(name, &own))
    };
    let peers: Vec<(usize, u64)> = (0..names.len())
        .filter(|to| *to != rank.index)
        .map(|to| Ok((to, rig.av.insert(names.get(to).map_or(&own, |name| name))?)))
        .collect::<Outcome<_>>()?;
    let (done, text) = sandbox::stderr_of(|| -> Outcome {
        for (to, addr) in &peers {
            // A short message without a key is complete before it is refused.
            let short = if rank.index == OUTSIDER && key == "none" { None } else { Some(8) };
            for size in short.into_iter().chain([100_000, 100_000]) {
                if is_refused(*to) {
                    let send = || rig.ep.tsend(Buf::new(size), *addr, 7, 3);
                    check_eq!(rig.failure(&rig.tx, 3, send)?, Errno::ECONNREFUSED);
                }
            }
        }
        rig.barrier()?;
        let others = || peers.iter().filter(|(to, _)| !is_refused(*to));
        for (_, addr) in others() {
            rig.post(|| rig.ep.trecv(Buf::new(5000), *addr, 1, 0, 1))?;
            rig.post(|| rig.ep.tsend(Buf::new(5000), *addr, 1, 2))?;
        }
        for _ in others() {
            check_eq!(rig.received(1)?.len, 5000);
            rig.sent(2)?;
        }
        rig.barrier()
    })?;
    done?;
    for (to, _) in &peers {
        let of_peer = names.get(*to).and_then(|name| Some((name.get(2..4)?, name.get(4..8)?)));
        let Some((&[high, low], &[a, b, c, d])) = of_peer else {
            return Err(Fail::here("a short name"));
        };
        let name = format!("{a}.{b}.{c}.{d}:{} over ", u16::from_be_bytes([high, low]));
        let lines = text.lines().filter(|line| line.contains(&name)).count();
        check_eq!(lines, usize::from(is_refused(*to)), "{name}: {text}");
    }
    let refusals = peers.iter().filter(|(to, _)| is_refused(*to)).count();
    check_eq!(text.matches("FI_SCIF_NET_KEY").count(), refusals, "{text}");
    check!(!text.contains("sesame"), "the log has a key: {text}");
    rig.barrier()
}

/// Returns the network that is chosen.
pub(super) fn network() -> Option<String> {
    std::env::var("FI_SCIF_NET").ok().filter(|net| net != "auto" && net != "none")
}

/// Returns `NotHere` where no network is chosen.
pub(super) fn needs_network(rank: &Rank) -> Outcome {
    rank.only_scif("a setting of another provider")?;
    match network() {
        Some(_) => Ok(()),
        None => Err(Fail::NotHere("no network is chosen (FI_SCIF_NET)".into())),
    }
}

/// Tests that the address of an endpoint is of the domain that the user has chosen.
fn domain(rank: &Rank) -> Outcome {
    needs_network(rank)?;
    let rig = rig(rank)?;
    check_eq!(rig.ep.name()?.get(4..8), Some(&[127, 0, 0, 1][..]));
    Ok(())
}

/// Tests that an endpoint over a domain that does not exist is refused, and that the line has those
/// that exist.
fn no_such_domain(rank: &Rank) -> Outcome {
    needs_network(rank)?;
    let (opened, text) =
        sandbox::stderr_of(|| Rig::open_alone(rank, &spec()).map(drop).map_err(drop))?;
    check_eq!(opened, Err(()));
    let line = text.lines().find(|line| line.contains("FI_SCIF_NET_DOMAIN=nowhere"));
    let listed = line.and_then(|line| line.split("one of: ").nth(1)).unwrap_or_default();
    check!(listed.split(", ").any(|name| name == "lo"), "{text}");
    Ok(())
}

/// Tests that a process may exit with open objects, while a message of its own is under way. The
/// other one is told, and then exits in the same way.
fn exit(rank: &Rank, progress: u32) -> Outcome {
    let spec = spec().with(|spec| spec.hints.data_progress = progress);
    let rig = Rig::open(rank, &spec)?;
    talk(&rig, rig.peer(), 1)?;
    if rank.index == 1 {
        rig.post(|| rig.ep.tsend(Buf::new(300_000), rig.peer(), 9, 3))?;
    } else {
        rig.post(|| rig.ep.trecv(Buf::new(8), rig.peer(), 5, 0, 4))?;
    }
    rig.barrier()?;
    if rank.index == 0 {
        let begin = std::time::Instant::now();
        let error = rig.next_error(&rig.rx)?;
        check_eq!(error.context, 4);
        rank.step(format_args!("{} after {} ms", error.err, begin.elapsed().as_millis()));
    }
    // Never closed: the process exits after the report of this rank, whose status the case checks.
    Box::leak(Box::new(rig));
    Ok(())
}

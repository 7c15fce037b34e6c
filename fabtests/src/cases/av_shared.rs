// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Address vectors that processes share under a name. Mirrors fi_av(3), "name", "map_addr" and
//! "FI_READ".

use scif_fabtests::prelude::*;

pub(crate) const CASES: &[Case] = &[
    case("av/shared_with_readers", 3, readers),
    case("av/shared_by_writers", 3, writers),
    case("av/shared_outlives_its_maker", 2, outlives),
    case("av/shared_name_is_free_again", 2, free_again),
    case("av/shared_in_one_process", 1, |r| in_one_process(&Rig::open_alone(r, &spec())?)),
    case("av/shared_source_comes_late", 2, comes_late),
];

fn spec() -> Spec {
    Spec::caps(sys::FI_MSG | sys::FI_SOURCE | sys::FI_SHARED_AV).with(|spec| spec.sources = true)
}

/// Returns a name that no other run uses.
fn name(rank: &Rank, subject: &str) -> String {
    format!("{subject}.{:x}", rank.target.seed)
}

fn named<'a>(name: &'a str, flags: u64) -> AvAttr<'a> {
    AvAttr { name: Some(name), flags, ..AvAttr::default() }
}

/// Opens an endpoint with a shared vector, which rank 0 opens first.
fn rig<'r>(rank: &'r Rank, name: &str, flags: u64) -> Outcome<(Rig<'r>, usize)> {
    let plain = Rig::open_alone(rank, &spec())?;
    if rank.index > 0 {
        plain.barrier()?;
    }
    let (av, map_addr) = Av::open_with(&plain.domain, &named(name, flags))?;
    let rig = Rig::open_on(rank, plain.info.dup()?, (&plain.fabric, &plain.domain), av, &spec())?;
    if rank.index == 0 {
        plain.barrier()?;
    }
    Ok((rig, map_addr))
}

/// Returns element `at` of the array at `map_addr`.
fn mapped(map_addr: usize, at: usize) -> Outcome<u64> {
    // Through the kernel, which reports an unmapped address as an error.
    let mut bytes = [0_u8; 8];
    let memory = std::fs::File::open("/proc/self/mem")?;
    std::os::unix::fs::FileExt::read_exact_at(&memory, &mut bytes, (map_addr + 8 * at) as u64)?;
    Ok(u64::from_ne_bytes(bytes))
}

fn one_message(rig: &Rig<'_>, to: u64, from: u64) -> Outcome {
    let buf = Buf::new(8);
    rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 1)?;
    rig.post(|| rig.ep.send(Buf::pattern(8, to), to, 2))?;
    check_eq!(rig.received(1)?.src, Some(from));
    rig.sent(2)?;
    Ok(())
}

/// Tests one inserting process: all others use its addresses, as numbers or from the array.
fn readers(rank: &Rank) -> Outcome {
    let name = name(rank, "readers");
    let flags = if rank.index == 0 { 0 } else { sys::FI_READ };
    let (rig, map_addr) = rig(rank, &name, flags)?;
    check!(map_addr != 0, "no address of the array");
    check_eq!(mapped(map_addr, 0)?, sys::FI_ADDR_NOTAVAIL);
    let names = rig.exchange(&rig.ep.name()?)?;
    if rank.index == 0 {
        for name in &names {
            rig.av.insert(name)?;
        }
    } else {
        check_eq!(rig.av.insert(&rig.ep.name()?), Err(Errno::EACCES));
    }
    rig.barrier()?;
    for (at, name) in names.iter().enumerate() {
        let addr = mapped(map_addr, at)?;
        check_eq!(&rig.av.lookup(addr, 64)?.0, name);
    }
    check_eq!(mapped(map_addr, names.len())?, sys::FI_ADDR_NOTAVAIL);
    let next = mapped(map_addr, (rank.index + 1) % rank.count)?;
    let last = mapped(map_addr, (rank.index + rank.count - 1) % rank.count)?;
    one_message(&rig, next, last)?;
    if rank.index > 0 {
        check_eq!(rig.av.remove(&[next], 0), Err(Errno::EACCES));
    }
    rig.barrier()?;
    // An address removed by one process is removed for all.
    if rank.index == 0 {
        rig.av.remove(&[mapped(map_addr, 1)?], 0)?;
    }
    rig.barrier()?;
    check_eq!(mapped(map_addr, 1)?, sys::FI_ADDR_NOTAVAIL);
    check_eq!(rig.av.lookup(1, 64).err(), Some(Errno::EINVAL));
    rig.barrier()
}

/// Tests concurrent insertions of all addresses by all ranks: each address gets one number, the
/// same for all.
fn writers(rank: &Rank) -> Outcome {
    let name = name(rank, "writers");
    let (rig, _) = rig(rank, &name, 0)?;
    let own = rig.ep.name()?;
    let names = rig.exchange(&own)?;
    let mut addrs = Vec::new();
    for step in 0..names.len() {
        let at = (rank.index + step) % names.len();
        let name = names.get(at).ok_or_else(|| Fail::here("a name"))?;
        addrs.push((at, rig.av.insert(name)?));
    }
    addrs.sort_unstable();
    let mine: Vec<u8> = addrs.iter().flat_map(|(_, addr)| addr.to_ne_bytes()).collect();
    for theirs in rig.exchange(&mine)? {
        check_eq!(theirs, mine);
    }
    let mut numbers: Vec<u64> = addrs.iter().map(|(_, addr)| *addr).collect();
    let of = |rank: usize| numbers.get(rank).copied().unwrap_or(u64::MAX);
    one_message(
        &rig,
        of((rank.index + 1) % rank.count),
        of((rank.index + rank.count - 1) % rank.count),
    )?;
    numbers.sort_unstable();
    check_eq!(numbers, (0..names.len() as u64).collect::<Vec<_>>());
    rig.barrier()
}

/// Tests the death of the process that created the vector. Processes that have it open continue,
/// and others still find it.
fn outlives(rank: &Rank) -> Outcome {
    let name = name(rank, "outlives");
    let (rig, _) = rig(rank, &name, 0)?;
    let own = rig.ep.name()?;
    if rank.index == 0 {
        rig.av.insert(&own)?;
        rank.expect_death()?;
        rig.barrier()?;
        loop {
            std::thread::park();
        }
    }
    rig.barrier()?;
    rank.kill(0)?;
    let (late, _) = Av::open_with(&rig.domain, &named(&name, 0))?;
    check!(late.lookup(0, 64)?.0 != own, "the other's address is there");
    check_eq!(late.insert(&own), Ok(1));
    check_eq!(rig.av.lookup(1, 64)?.0, own);
    Ok(())
}

/// Tests that the name exists exactly as long as a process has the vector, whether it closes the
/// vector or dies.
fn free_again(rank: &Rank) -> Outcome {
    let name = name(rank, "free");
    let rig = Rig::open_alone(rank, &spec())?;
    let read = || Av::open_with(&rig.domain, &named(&name, sys::FI_READ)).map(|(av, _)| av);
    check_eq!(read().err(), Some(Errno::ENOENT));
    rig.barrier()?;
    if rank.index == 1 {
        let (_held, _) = Av::open_with(&rig.domain, &named(&name, 0))?;
        rank.expect_death()?;
        rig.barrier()?;
        loop {
            std::thread::park();
        }
    }
    rig.barrier()?;
    let reader = read()?;
    rank.kill(1)?;
    let another = read()?;
    check_eq!(reader.close(), Ok(()));
    let third = read()?;
    check_eq!(another.close(), Ok(()));
    check_eq!(third.close(), Ok(()));
    check_eq!(read().err(), Some(Errno::ENOENT));
    let (anew, _) = Av::open_with(&rig.domain, &named(&name, 0))?;
    check_eq!(anew.insert(&rig.ep.name()?), Ok(0));
    check_eq!(anew.close(), Ok(()));
    check_eq!(read().err(), Some(Errno::ENOENT));
    check_eq!(remains(&name)?, Vec::<String>::new());
    Ok(())
}

/// Returns the files whose name contains the name of a vector.
fn remains(name: &str) -> Outcome<Vec<String>> {
    let stem = name.split('.').next().unwrap_or(name);
    let mut found = Vec::new();
    for file in std::fs::read_dir("/dev/shm")? {
        let file = file?.file_name().to_string_lossy().into_owned();
        if file.contains(stem) && file.contains("scif") {
            found.push(file);
        }
    }
    let sockets = std::fs::read_to_string("/proc/self/net/unix")?;
    let seed = name.rsplit('.').next().unwrap_or(name);
    found.extend(sockets.lines().filter(|l| l.contains(seed)).map(str::to_owned));
    Ok(found)
}

fn in_one_process(rig: &Rig<'_>) -> Outcome {
    let name = name(rig.rank, "one");
    let open = |flags: u64| Av::open_with(&rig.domain, &named(&name, flags));
    check_eq!(open(sys::FI_READ).err(), Some(Errno::ENOENT));
    let too_long = "x".repeat(200);
    check!(Av::open_with(&rig.domain, &named(&too_long, 0)).is_err(), "a name of 200 letters");
    let (first, at) = open(0)?;
    let (second, also_at) = open(0)?;
    check!(at != 0 && also_at != 0, "no address of the array");
    let own = rig.ep.name()?;
    check_eq!(first.insert(&own), Ok(0));
    check_eq!(second.insert(&own), Ok(0));
    check_eq!(second.lookup(0, 64)?.0, own);
    check_eq!(second.remove(&[0], 0), Ok(()));
    check_eq!(first.lookup(0, 64)?.0, own);
    check_eq!(first.remove(&[0], 0), Ok(()));
    check_eq!(first.remove(&[0], 0), Err(Errno::EINVAL));
    check_eq!(second.lookup(0, 64).err(), Some(Errno::EINVAL));
    // A number is used once, so that a stale number refers to no other address.
    check_eq!(first.insert(&own), Ok(1));
    // An array address chosen by the caller is not replaced.
    let chosen = AvAttr { map_addr: 0x1000, ..named(&name, 0) };
    check_eq!(Av::open_with(&rig.domain, &chosen)?.1, 0x1000);
    Ok(())
}

/// Tests a source that is inserted after its first message: later messages report it.
fn comes_late(rank: &Rank) -> Outcome {
    let name = name(rank, "late");
    let (rig, _) = rig(rank, &name, 0)?;
    let names = rig.exchange(&rig.ep.name()?)?;
    if rank.index == 0 {
        let buf = Buf::new(8);
        rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 1)?;
        check_eq!(rig.received(1)?.src, Some(sys::FI_ADDR_NOTAVAIL));
        rig.barrier()?;
        rig.barrier()?;
        rig.ep.recv(buf, sys::FI_ADDR_UNSPEC, 1)?;
        check_eq!(rig.received(1)?.src, Some(1));
        return rig.barrier();
    }
    let to = rig.av.insert(names.first().ok_or_else(|| Fail::here("no name"))?)?;
    rig.complete(2, || rig.ep.send(Buf::pattern(8, 1), to, 2))?;
    rig.barrier()?;
    check_eq!(rig.av.insert(&rig.ep.name()?), Ok(1));
    rig.barrier()?;
    rig.complete(2, || rig.ep.send(Buf::pattern(8, 1), to, 2))?;
    rig.barrier()
}

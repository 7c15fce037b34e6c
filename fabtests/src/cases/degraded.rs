// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests that degradation is reported. Each slower path and each unreachable peer has one line at
//! level warn in the log of libfabric, with cause and remedy, once per process.

use scif_fabtests::harness::seccomp;
use scif_fabtests::prelude::*;

use super::call_variants::{self, Timing};
use super::rma::{REMOTE, announce, from, wait_for_announcement};
use super::{atomic, cm, migrate};

const WARN: &[(&str, &str)] = &[("FI_LOG_LEVEL", "warn"), ("FI_SCIF_STATS", "1")];
const SOON: &[(&str, &str)] =
    &[("FI_LOG_LEVEL", "info"), ("FI_SCIF_CONNECT_TIMEOUT", "200ms"), ("SCIF_DOMAIN", "degraded")];

const USERS: &[(&str, &str)] = &[
    ("FI_LOG_LEVEL", "warn"),
    ("FI_SCIF_STATS", "1"),
    ("SCIF_DOMAIN", "degraded"),
    ("SCIF_ALLOW_UIDS", "0,65534"),
];
const MIGRATE: &[(&str, &str)] = &[("FI_LOG_LEVEL", "warn"), ("FI_SCIF_MR_MIGRATE", "auto")];
const DRIVER: &[(&str, &str)] = &[("FI_LOG_LEVEL", "warn"), ("FI_SCIF_TRANSPORT", "kernel")];
const MISSPELT: &[(&str, &str)] =
    &[("FI_LOG_LEVEL", "warn"), ("FI_SCIF_EAGER_SIZ", "1"), ("SCIF_DOMIAN", "x")];
const INFO: &[(&str, &str)] = &[("FI_LOG_LEVEL", "info")];
/// Port below the dynamic ones, which no other case of this domain binds.
const UNUSED_PORT: u16 = 77;
/// Start of the log line about a denied attempt.
const DENIED: &str = "process_vm_readv of process";

pub(crate) const CASES: &[Case] = &[
    case("degraded/process_vm_by_seccomp", 2, |r| {
        process_vm(r, sandbox::deny_process_vm, &[DENIED, "seccomp", "--cap-add=SYS_PTRACE"])
    })
    .under(WARN),
    case("degraded/process_vm_by_yama_scope_1", 2, |r| {
        let words = [DENIED, "/proc/sys/kernel/yama/ptrace_scope is 1", "SCIF_PTRACER"];
        process_vm(r, || sandbox::pretend_yama(1), &words)
    })
    .under(WARN),
    case("degraded/process_vm_by_yama_scope_2", 2, |r| {
        let words = [DENIED, "/proc/sys/kernel/yama/ptrace_scope is 2", "CAP_SYS_PTRACE"];
        process_vm(r, || sandbox::pretend_yama(2), &words)
    })
    .under(WARN),
    case("degraded/peer_of_another_user_that_is_allowed", 2, |r| {
        let change = || {
            if r.index == 1 { become_ordinary_user() } else { Ok(()) }
        };
        process_vm(r, change, &["belongs to user", "different users", "run both as one user"])
    })
    .under(USERS),
    case("degraded/process_vm_on_the_way", 2, process_vm_later).under(WARN),
    case("degraded/peer_in_another_domain", 2, |r| {
        foreign(r, || sandbox::set_env("SCIF_DOMAIN", "elsewhere"))
    })
    .under(WARN),
    case("degraded/peer_with_another_runtime_dir", 2, |r| {
        let dir = runtime_dir()?;
        foreign(r, || sandbox::set_env("SCIF_RUNTIME_DIR", &dir))
    })
    .under(WARN),
    case("degraded/peer_in_another_network_namespace", 2, |r| foreign(r, sandbox::leave_network))
        .under(WARN),
    case("degraded/peer_of_another_user", 2, |r| foreign(r, become_ordinary_user)).under(WARN),
    case("degraded/peer_of_another_user_in_the_same_domain", 2, other_user).under(SOON),
    case("degraded/no_listener", 2, |r| no_listener(r, || Ok(()), &["network namespace"]))
        .under(SOON),
    case("degraded/no_peer_to_connect_to", 1, no_target).under(SOON),
    case("degraded/listener_in_another_domain", 2, |r| {
        let words = ["SCIF_DOMAIN=elsewhere and SCIF_RUNTIME_DIR unset. Set"];
        no_listener(r, || sandbox::set_env("SCIF_DOMAIN", "elsewhere"), &words)
    })
    .under(SOON),
    case("degraded/listener_with_a_runtime_dir", 2, |r| {
        let dir = runtime_dir()?;
        let words = format!("SCIF_RUNTIME_DIR={dir}. Set");
        no_listener(r, || sandbox::set_env("SCIF_RUNTIME_DIR", &dir), &[&words])
    })
    .under(SOON),
    case("degraded/memfd_create", 1, |r| {
        let deny = || seccomp::deny(&[libc::SYS_memfd_create]);
        call(r, deny, &["memfd_create: ", "Operation not permitted", "profile of the container"])
    })
    .under(WARN),
    case("degraded/epoll_create1", 1, |r| {
        let deny = || seccomp::refuse(&[libc::SYS_epoll_create1], libc::ENOSYS);
        call(r, deny, &["epoll_create1: ", "Function not implemented", "profile of the container"])
    })
    .under(WARN),
    case("degraded/kernel_without_a_seal", 1, |r| {
        let deny = || seccomp::refuse_seals(libc::F_SEAL_FUTURE_WRITE);
        call(r, deny, &["F_ADD_SEALS: ", "F_SEAL_FUTURE_WRITE", "Linux 5.1"])
    })
    .under(WARN),
    case("degraded/userfaultfd", 2, userfaultfd).under(MIGRATE),
    case("degraded/no_driver", 1, no_driver).under(DRIVER),
    case("degraded/misspelt_settings", 1, misspelt).under(MISSPELT),
    case("degraded/line_about_the_fabric", 1, fabric).under(INFO),
    case("degraded/copy_path_of_the_first_peer", 2, first_peer).under(INFO),
];

/// Loads the provider before any denial.
fn loaded(rank: &Rank) -> Outcome {
    rank.only_scif("the log of another provider")?;
    offers(rank, load(rank)?, &Spec::messages(false).hints).map(drop)
}

/// Returns a socket directory of this user, because a directory with sockets of another user is
/// refused.
fn runtime_dir() -> Result<String, Fail> {
    let dir = format!("/tmp/conformance-{}", rustix::process::getuid().as_raw());
    std::fs::create_dir_all(&dir).map_err(Fail::here)?;
    Ok(dir)
}

/// Changes to another user than that of the other rank.
fn become_ordinary_user() -> Outcome {
    let user = rustix::process::getuid().as_raw();
    if user != sandbox::ORDINARY_USER && sandbox::become_ordinary_user() {
        return Ok(());
    }
    Err(Fail::NotHere("another user is not permitted".into()))
}

/// Returns the lines that contain all of these words.
fn with<'a>(text: &'a str, words: &[&str]) -> Vec<&'a str> {
    text.lines().filter(|line| words.iter().all(|word| line.contains(word))).collect()
}

/// Transfers a large message and an RMA in both directions, with two endpoints one after another.
fn work(rank: &Rank, mut between: impl FnMut() -> Outcome) -> Outcome {
    for _ in 0..2 {
        let rig = Rig::open(rank, &atomic::spec())?;
        let (memory, _mr, remotes) = rig.share_buf(Buf::new(1 << 20), REMOTE)?;
        for _ in 0..2 {
            call_variants::plain_message(&rig, memory.len(), Timing::Expected)?;
            let at = from(&remotes, rank.peer(), 0)?;
            rig.complete(1, || {
                rig.ep.write(Buf::pattern(memory.len(), 6), rig.peer(), at.addr, at.key, 1)
            })?;
            announce(&rig, rig.peer())?;
            wait_for_announcement(&rig)?;
            check_eq!(memory.differs(memory.len(), 6), None);
            rig.barrier()?;
            between()?;
            rig.barrier()?;
        }
    }
    Ok(())
}

/// Tests that a call denied from the start has one line, and that the counters of each endpoint
/// show it.
fn process_vm(rank: &Rank, deny: impl FnOnce() -> Outcome, words: &[&str]) -> Outcome {
    loaded(rank)?;
    deny()?;
    let (done, text) = sandbox::stderr_of(|| work(rank, || Ok(())))?;
    done?;
    let told = with(&text, &["no direct copy with"]);
    check_eq!(told.len(), 1, "{text}");
    check_eq!(with(&text, words), told, "{text}");
    check_eq!(with(&text, &["no_direct 1 "]).len(), 2, "{text}");
    check_eq!(with(&text, &["fallbacks 0 "]).len(), 0, "{text}");
    Ok(())
}

/// Tests that a call denied later has one line as well.
fn process_vm_later(rank: &Rank) -> Outcome {
    loaded(rank)?;
    let mut denied = !sandbox::may_call_process_vm();
    if denied {
        return Err(Fail::NotHere("process_vm is denied from the start".into()));
    }
    let (done, text) = sandbox::stderr_of(|| {
        work(rank, || {
            if !std::mem::replace(&mut denied, true) {
                sandbox::deny_process_vm()?;
            }
            Ok(())
        })
    })?;
    done?;
    check_eq!(with(&text, &["no direct copy with", "seccomp"]).len(), 1, "{text}");
    check_eq!(with(&text, &["no_direct 1 "]).len(), 2, "{text}");
    Ok(())
}

/// Tests that an unreachable address is reported at insertion and at getinfo.
fn foreign(rank: &Rank, leave: impl FnOnce() -> Outcome) -> Outcome {
    loaded(rank)?;
    let other = rank.index == 1;
    let (done, text) = sandbox::stderr_of(|| {
        if other {
            leave()?;
        }
        let rig = Rig::open_alone(rank, &Spec::messages(false))?;
        let names = rig.exchange(&rig.ep.name()?)?;
        let name = names.get(rank.peer()).ok_or_else(|| Fail::here("the other said nothing"))?;
        for _ in 0..2 {
            check_eq!(rig.av.insert(name), Err(Errno::EADDRNOTAVAIL));
            let mut hints = Spec::messages(false).hints;
            hints.prov = Some(rank.target.prov.clone());
            hints.dest_addr = name.clone();
            let found = rig.lib.getinfo(rig.lib.version(), None, None, 0, Some(&hints));
            check_eq!(found.map(|list| list.len()), Err(Errno::ENODATA));
        }
        rig.barrier()
    })?;
    done?;
    let words =
        ["cannot be reached", "SCIF_DOMAIN", "SCIF_RUNTIME_DIR", "network namespace", "user"];
    check_eq!(with(&text, &words).len(), 1, "{text}");
    check_eq!(text.lines().filter(|line| line.contains("cannot be reached")).count(), 1, "{text}");
    Ok(())
}

/// Tests a peer of another user in the same SCIF_DOMAIN, which refuses: both sides name the setting
/// to change.
fn other_user(rank: &Rank) -> Outcome {
    loaded(rank)?;
    let (done, text) = sandbox::stderr_of(|| {
        if rank.index == 1 {
            become_ordinary_user()?;
        }
        let rig = Rig::open(rank, &Spec::messages(false))?;
        if rank.index == 0 {
            for size in [8, 100_000] {
                let error =
                    rig.failure(&rig.tx, 3, || rig.ep.send(Buf::new(size), rig.peer(), 3))?;
                check_eq!(error, Errno::EACCES);
            }
        }
        rig.barrier()
    })?;
    done?;
    check_eq!(with(&text, &["user", "SCIF_ALLOW_UIDS"]).len(), 1, "{text}");
    Ok(())
}

/// Tests an address without a host, as typed by a user, without a reachable listener at its port.
fn no_listener(rank: &Rank, leave: impl FnOnce() -> Outcome, words: &[&str]) -> Outcome {
    loaded(rank)?;
    if rank.index == 1 {
        leave()?;
        let rig = Rig::open_alone(rank, &Spec::messages(false))?;
        let name = rig.ep.name()?;
        if words == ["network namespace"] {
            drop(rig);
            rank.exchange(&name, &mut || Ok(()))?;
            return rank.barrier(&mut || Ok(()));
        }
        rig.exchange(&name)?;
        return rig.barrier();
    }
    let rig = Rig::open_alone(rank, &Spec::messages(false))?;
    let names = rig.exchange(&[])?;
    let mut name = names.get(1).cloned().unwrap_or_default();
    check_eq!(name.len(), size_of::<libc::sockaddr_in>());
    if let Some(zero) = name.get_mut(8..) {
        zero.fill(0);
    }
    let port = name.get(2..4).and_then(|port| port.try_into().ok()).map_or(0, u16::from_be_bytes);
    let (done, text) = sandbox::stderr_of(|| {
        let to = rig.av.insert(&name)?;
        for size in [8, 100_000] {
            let error = rig.failure(&rig.tx, 3, || rig.ep.send(Buf::new(size), to, 3))?;
            check_eq!(error, Errno::ECONNREFUSED);
        }
        Ok(())
    })?;
    done?;
    let told = with(&text, &[&format!("no process listens at 0:{port} "), "SCIF_DOMAIN=degraded"]);
    check_eq!(told.len(), 1, "{text}");
    check_eq!(with(&text, words), told, "{text}");
    check!(!text.contains(" died"), "{text}");
    rig.barrier()
}

/// Tests a connect that is refused at once: the line must not report a timeout.
fn no_target(rank: &Rank) -> Outcome {
    loaded(rank)?;
    let bare = cm::bare(rank)?;
    let line = bare.line(&bare.info)?;
    let mut name = line.ep.name()?;
    if let Some(port) = name.get_mut(2..4) {
        port.copy_from_slice(&UNUSED_PORT.to_be_bytes());
    }
    let (done, text) = sandbox::stderr_of(|| -> Outcome {
        line.ep.connect(&name, &[])?;
        let answer = bare.eq.sread_cm(&bare.info, 0, cm::PATIENCE_MS);
        check_eq!(answer.err(), Some(Errno::EAVAIL));
        check_eq!(Errno(bare.eq.readerr()?.err), Errno::ECONNREFUSED);
        Ok(())
    })?;
    done?;
    let words =
        ["no process listens at", "fi_connect fails with FI_ECONNREFUSED", "SCIF_DOMAIN=degraded"];
    let told = with(&text, &["no process listens at"]);
    check_eq!(told.len(), 1, "{text}");
    check_eq!(with(&text, &words), told, "{text}");
    check!(!told.concat().contains("FI_SCIF_CONNECT_TIMEOUT"), "{text}");
    Ok(())
}

/// Tests a system call without which no endpoint opens: one line names the call, for any number of
/// attempts.
fn call(rank: &Rank, deny: impl FnOnce() -> Outcome, words: &[&str]) -> Outcome {
    loaded(rank)?;
    let spec = Spec::caps(sys::FI_MSG | sys::FI_RMA);
    let (opened, text) = sandbox::stderr_of(|| -> Outcome<[bool; 2]> {
        deny()?;
        Ok([(); 2].map(|()| Rig::open_alone(rank, &spec).is_ok()))
    })?;
    check_eq!(opened?, [false; 2]);
    check_eq!(with(&text, words).len(), 1, "{text}");
    Ok(())
}

/// Tests memory that is to migrate without userfaultfd write protection.
fn userfaultfd(rank: &Rank) -> Outcome {
    loaded(rank)?;
    let (done, text) = sandbox::stderr_of(|| migrate::stores_cannot_be_held(rank))?;
    done?;
    let words = ["userfaultfd: ", "Operation not permitted", "vm.unprivileged_userfaultfd"];
    check_eq!(with(&text, &words).len(), rank.index, "{text}");
    Ok(())
}

/// Tests a missing driver: the line names the devices that were tried.
fn no_driver(rank: &Rank) -> Outcome {
    const DEVICES: [&str; 2] = ["/dev/scif", "/dev/mic/scif"];
    loaded(rank)?;
    if DEVICES.iter().any(|device| std::path::Path::new(device).exists()) {
        return Err(Fail::NotHere("this system has a driver".into()));
    }
    let spec = Spec::messages(false);
    let (opened, text) = sandbox::stderr_of(|| Rig::open_alone(rank, &spec).is_ok())?;
    check!(!opened);
    let words = DEVICES.map(|device| format!("{device}: No such file or directory"));
    let words = [&words[0], &words[1], "SCIF_DEVICE", "FI_SCIF_TRANSPORT=soft"];
    check_eq!(with(&text, &words).len(), 1, "{text}");
    Ok(())
}

/// Tests that each unknown setting is reported once, with the nearest known one.
fn misspelt(rank: &Rank) -> Outcome {
    let (done, text) = sandbox::stderr_of(|| -> Outcome {
        loaded(rank)?;
        for _ in 0..2 {
            Rig::open_alone(rank, &Spec::messages(false))?;
        }
        Ok(())
    })?;
    done?;
    for words in [["FI_SCIF_EAGER_SIZ ", " FI_SCIF_EAGER_SIZE"], ["SCIF_DOMIAN ", " SCIF_DOMAIN"]] {
        check_eq!(with(&text, &words).len(), 1, "{text}");
    }
    check_eq!(with(&text, &["is not a setting"]).len(), 2, "{text}");
    Ok(())
}

/// Tests that one line names the library and its available mechanisms.
fn fabric(rank: &Rank) -> Outcome {
    loaded(rank)?;
    let spec = Spec::messages(false);
    let (done, text) = sandbox::stderr_of(|| Rig::open_alone(rank, &spec).map(drop))?;
    done?;
    let version = format!("scif {} from ", env!("CARGO_PKG_VERSION"));
    let words = [version.as_str(), ".so", "transport soft", "SCIF_DOMAIN", "process_vm_readv"];
    check_eq!(with(&text, &words).len(), 1, "{text}");
    Ok(())
}

/// Tests that one line names the first peer, and the path of its large messages.
fn first_peer(rank: &Rank) -> Outcome {
    loaded(rank)?;
    let (done, text) = sandbox::stderr_of(|| work(rank, || Ok(())))?;
    done?;
    let lines = with(&text, &["first peer with this copy path: process", "large messages and RMA"]);
    check_eq!(lines.len(), 1, "{text}");
    Ok(())
}

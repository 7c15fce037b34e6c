// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Displayed state of endpoints, compared with their activity.
//!
//! Not about its format. The state is read by `introspect` of `scif-api`, like `scifctl`, from
//! outside the library.

use scif_fabtests::harness::process::Process;

use crate::api::Case;
use crate::placement::server;
use crate::rig::{BLOCK, FIXED, PAGE, RW, SYNC, pages, peek, sleeps, until};
use scif::Config;
use scif_api::introspect::{self, Endpoint, Registered};

/// Returns the endpoints of a process that are in a state.
fn of(pid: u32, state: &str) -> Vec<Endpoint> {
    let pid = i32::try_from(pid).unwrap();
    let processes = introspect::processes(&Config::from_env()).unwrap();
    let process = processes.into_iter().find(|process| process.pid == pid);
    let process = process.unwrap();
    assert_eq!(process.denied, None);
    let all = process.endpoints.into_iter();
    all.filter(|endpoint| endpoint.state == state).collect()
}

fn one(pid: u32) -> Endpoint {
    let all = of(pid, "CONNECTED");
    assert_eq!(all.len(), 1);
    all[0].clone()
}

fn switches(pid: i32) -> u64 {
    let mut sum = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        sum += status
            .lines()
            .filter_map(|line| line.split_once("ctxt_switches:")?.1.trim().parse::<u64>().ok())
            .sum::<u64>();
    }
    sum
}

pub(crate) const CASES: &[Case] = &[
    ("counters_and_windows_match_the_endpoint", |api| {
        server(api, |epd, cue| {
            let at = pages(3);
            api.register(epd, (at, 2 * PAGE), 0x10000, RW, FIXED).unwrap();
            api.register(epd, (at + 2 * PAGE, PAGE), 0x20000, 1, FIXED).unwrap();
            assert_eq!(api.send(epd, &[0; 100], BLOCK), Ok(100));
            cue.meet();
            assert_eq!(api.recv(epd, &mut [0; 7], BLOCK), Ok(7));
            let shown = one(std::process::id());
            assert_eq!(shown.descriptors, [epd]);
            assert_eq!(
                (shown.own.node, shown.own.port, shown.sent, shown.received),
                (1, crate::placement::case_port(), 100, 7)
            );
            assert_eq!((shown.reads, shown.writes, shown.mapped), ((0, 0), (0, 0), 0));
            let window =
                |offset, len, write| Registered { offset, len, read: true, write, mappable: true };
            assert_eq!(
                shown.windows,
                [window(0x10000, 2 * PAGE as u64, true), window(0x20000, PAGE as u64, false)]
            );
            let (peer, pid) = shown.peer.unwrap();
            assert_eq!(peer.node, 2);
            let other = one(pid.unsigned_abs());
            assert_eq!((other.sent, other.received), (7, 100));
            assert_eq!((other.own, other.peer.unwrap().0), (peer, shown.own));
            assert_eq!(other.reads, (2, 20));
            assert_eq!(other.writes, (1, PAGE as u64));
            assert_eq!((other.mapped, other.windows.len()), (1, 0));
            api.unregister(epd, 0x20000, PAGE).unwrap();
            assert_eq!(one(std::process::id()).windows.len(), 1);
            let nodes = introspect::nodes(&Config::from_env()).unwrap();
            assert_eq!(nodes.iter().map(|n| n.node).collect::<Vec<_>>(), [1, 2]);
            cue.meet();
            until("the other side is gone", || api.poll(epd, 0, 10) != 0);
            until("that is shown", || of(std::process::id(), "DISCONNECTED").len() == 1);
            api.close(epd).unwrap();
            assert!(of(std::process::id(), "DISCONNECTED").is_empty());
        })
        .client(|epd, cue| {
            cue.wait();
            assert_eq!(api.recv(epd, &mut [0; 100], BLOCK), Ok(100));
            assert_eq!(api.send(epd, &[0; 7], BLOCK), Ok(7));
            let own = pages(1);
            assert_eq!(api.vreadfrom(epd, own, 10, 0x10000, SYNC), Ok(0));
            assert_eq!(api.vreadfrom(epd, own, 10, 0x20000, SYNC), Ok(0));
            assert_eq!(api.vwriteto(epd, own, PAGE, 0x11000, SYNC), Ok(0));
            peek(api.mmap(epd, (0, PAGE), RW, 0, 0x10000).unwrap());
            cue.meet();
            api.close(epd).unwrap();
            cue.notify();
        });
    }),
    ("forked_child_shows_shared_and_own_endpoints", |api| {
        server(api, |epd, _| {
            assert_eq!(api.recv(epd, &mut [0; 5], BLOCK), Ok(5));
            let _ = api.recv(epd, &mut [0], BLOCK);
        })
        .client(|epd, _| {
            assert_eq!(api.send(epd, b"ab", BLOCK), Ok(2));
            Process::start(|| {
                assert_eq!(api.send(epd, b"cde", BLOCK), Ok(3));
                let own = api.open();
                let shown = of(std::process::id(), "UNBOUND");
                assert_eq!((shown.len(), &shown[0].descriptors[..]), (1, &[own][..]));
                assert_eq!(one(std::process::id()).sent, 5, "of the endpoint, whoever sent");
            })
            .wait();
            assert_eq!(one(std::process::id()).sent, 5);
            assert!(of(std::process::id(), "UNBOUND").is_empty());
        });
    }),
    ("reading_the_state_wakes_no_process", |api| {
        server(api, |epd, _| {
            let (_, pid) = one(std::process::id()).peer.unwrap();
            until("it is connected, and sleeps", || {
                of(pid.unsigned_abs(), "CONNECTED").len() == 1 && sleeps(pid)
            });
            let before = switches(pid);
            for _ in 0..50 {
                assert_eq!(one(pid.unsigned_abs()).own.node, 2);
            }
            assert_eq!(switches(pid), before);
            assert_eq!(api.send(epd, b"x", BLOCK), Ok(1));
        })
        .client(|epd, _| {
            assert_eq!(api.recv(epd, &mut [0], BLOCK), Ok(1));
        });
    }),
];

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Faults that a setting injects.

use std::ptr::null_mut;

use crate::api::{Api, Case, Handle};
use crate::rig::{
    CONNECT, DONE, INFINITE, LONG, LOST, Node, OTHER, OWNER, SEQ_NOT_RETRIABLE, SEQ_OK,
    SEQ_RETRIABLE, View, code, set_env, two,
};

pub(crate) const CASES: &[Case] = &[
    ("checks of sequences fail and succeed again", sequences),
    ("a checked copy that fails has moved nothing", copies),
    ("a DMA transfer that fails has moved nothing", transfers),
    ("copies without a check do not fail", unchecked),
    ("an invalid value injects nothing", invalid),
    ("a connection to a lost node is LOST", lost),
    ("a lost node loses its own connections", own_loss),
    ("an interrupt of a lost node is not triggered", lost_interrupt),
    ("a lost node is not found", absent),
    ("other nodes are not lost", others),
    ("SCITerminate does not wait for a loss", terminate),
];

/// Node that has mapped a segment of its own by a connection.
struct Path<'a> {
    node: Node<'a>,
    segment: Handle,
    remote: Handle,
    view: View,
}

impl<'a> Path<'a> {
    fn open(api: &'a Api) -> Path<'a> {
        let node = Node::join(api, OWNER);
        let segment = node.export(1, 64, 0);
        let remote = node.connect(OWNER, 1).unwrap();
        let view = node.map(remote, 0, 64).unwrap();
        Path { node, segment, remote, view }
    }

    fn close(self) {
        self.node.api.SCIUnmapSegment(self.view.map, 0).unwrap();
        self.node.api.SCIDisconnectSegment(self.remote, 0).unwrap();
        self.node.api.SCIRemoveSegment(self.segment, 0).unwrap();
        self.node.leave();
    }
}

/// State `SCI_DMAQUEUE_ERROR`.
const ERROR: u32 = 5;

fn sequences(api: &Api) {
    set_env("SISCI_FAULT", "retriable:1/3");
    let path = Path::open(api);
    let mut sequence = null_mut();
    api.SCICreateMapSequence(path.view.map, &raw mut sequence, 0).unwrap();
    let mut checks = Vec::new();
    for _ in 0..6 {
        assert_eq!(api.SCIStartSequence(sequence, 0), Ok(SEQ_OK));
        path.view.store(0, 1);
        checks.push(api.SCICheckSequence(sequence, 0).unwrap());
    }
    let third = [SEQ_OK, SEQ_OK, SEQ_RETRIABLE];
    assert_eq!(checks, [third, third].concat());
    api.SCIRemoveSequence(sequence, 0).unwrap();
    path.close();
}

fn copies(api: &Api) {
    set_env("SISCI_FAULT", "retriable:1/2");
    let path = Path::open(api);
    let check = api.flag("ERROR_CHECK");
    for round in 0..4_u32 {
        let mut word = round + 1;
        let at = (&raw mut word).cast();
        let failed = Err(code::TRANSFER_FAILED);
        let (expected, left) = if round % 2 == 0 { (Ok(()), round + 1) } else { (failed, round) };
        assert_eq!(api.SCIMemCpy(null_mut(), at, path.view.map, 0, 4, check), expected);
        assert_eq!(path.view.load(0), left);
    }
    path.close();
}

fn transfers(api: &Api) {
    set_env("SISCI_FAULT", "retriable:1/2");
    let path = Path::open(api);
    let source = path.node.create(2, 64, api.flag("PRIVATE")).unwrap();
    api.SCIPrepareSegment(source, 0, 0).unwrap();
    let from = path.node.map_local(source, 0, 64).unwrap();
    let mut queue = null_mut();
    api.SCICreateDMAQueue(path.node.sd, &raw mut queue, 0, 1, 0).unwrap();
    for (value, state, left) in [(1, DONE, 1), (2, ERROR, 1), (3, DONE, 3)] {
        from.store(0, value);
        api.SCIStartDmaTransfer(queue, source, path.remote, 0, 4, 0, None, null_mut(), 0).unwrap();
        assert_eq!(api.SCIWaitForDMAQueue(queue, INFINITE, 0), Ok(state));
        assert_eq!(path.view.load(0), left);
    }
    api.SCIRemoveDMAQueue(queue, 0).unwrap();
    api.SCIUnmapSegment(from.map, 0).unwrap();
    api.SCIRemoveSegment(source, 0).unwrap();
    path.close();
}

fn unchecked(api: &Api) {
    set_env("SISCI_FAULT", "retriable:1/1");
    all_copies_succeed(api, 0);
}

fn invalid(api: &Api) {
    set_env("SISCI_FAULT", "retriable:1/1,");
    all_copies_succeed(api, api.flag("ERROR_CHECK"));
}

fn all_copies_succeed(api: &Api, flags: u32) {
    let path = Path::open(api);
    let mut word = 7_u32;
    let at = (&raw mut word).cast();
    for _ in 0..3 {
        api.SCIMemCpy(null_mut(), at, path.view.map, 0, 4, flags).unwrap();
    }
    assert_eq!(path.view.load(0), 7);
    path.close();
}

/// Connects node 8 to a segment of node 4, and waits for the loss of a node at both.
fn lose(api: &Api, fault: &str) {
    set_env("SISCI_FAULT", fault);
    two(
        api,
        |node, cue| {
            let segment = node.export(1, 64, 0);
            cue.notify();
            assert_eq!(node.event(segment, LONG), Ok((CONNECT, OTHER)));
            assert_eq!(node.event(segment, LONG), Ok((LOST, OTHER)));
            cue.notify();
            cue.wait();
            api.SCIRemoveSegment(segment, 0).unwrap();
            node.leave();
        },
        |node, cue| {
            cue.wait();
            let remote = node.connect(OWNER, 1).unwrap();
            let view = node.map(remote, 0, 64).unwrap();
            let mut sequence = null_mut();
            api.SCICreateMapSequence(view.map, &raw mut sequence, 0).unwrap();
            assert_eq!(node.remote_event(remote, LONG), Ok((LOST, 0)));
            assert_eq!(api.SCICheckSequence(sequence, 0), Ok(SEQ_NOT_RETRIABLE));
            view.store(0, 1);
            cue.wait();
            api.SCIRemoveSequence(sequence, 0).unwrap();
            api.SCIUnmapSegment(view.map, 0).unwrap();
            api.SCIDisconnectSegment(remote, 0).unwrap();
            assert_eq!(node.connect(OWNER, 1), Err(code::NO_SUCH_SEGMENT));
            cue.notify();
            node.leave();
        },
    );
}

fn lost(api: &Api) {
    lose(api, "lost:node4@4s");
}

fn own_loss(api: &Api) {
    lose(api, "lost:node8@4000ms");
}

fn lost_interrupt(api: &Api) {
    set_env("SISCI_FAULT", "lost:node8@4s");
    two(
        api,
        |node, cue| {
            let (mut interrupt, mut number) = (null_mut(), 3);
            let fixed = api.flag("FIXED_INTNO");
            let (at, number_at) = (&raw mut interrupt, &raw mut number);
            api.SCICreateInterrupt(node.sd, at, 0, number_at, None, null_mut(), fixed).unwrap();
            cue.notify();
            cue.wait();
            api.SCIRemoveInterrupt(interrupt, 0).unwrap();
            node.leave();
        },
        |node, cue| {
            cue.wait();
            let mut interrupt = null_mut();
            let at = &raw mut interrupt;
            api.SCIConnectInterrupt(node.sd, at, OWNER, 0, 3, LONG, 0).unwrap();
            let failed = loop {
                match api.SCITriggerInterrupt(interrupt, 0) {
                    Ok(()) => std::thread::yield_now(),
                    Err(failed) => break failed,
                }
            };
            assert_eq!(failed, code::NOT_CONNECTED);
            api.SCIDisconnectInterrupt(interrupt, 0).unwrap();
            let again = api.SCIConnectInterrupt(node.sd, at, OWNER, 0, 3, LONG, 0);
            assert_eq!(again, Err(code::NO_SUCH_SEGMENT));
            cue.notify();
            node.leave();
        },
    );
}

fn absent(api: &Api) {
    set_env("SISCI_FAULT", "lost:node8@0s");
    two(
        api,
        |node, cue| {
            cue.wait();
            assert_eq!(api.SCIProbeNode(node.sd, 0, OTHER, 0), Err(code::NO_SUCH_NODEID));
            assert_eq!(api.SCIProbeNode(node.sd, 0, OWNER, 0), Ok(1));
            cue.notify();
            node.leave();
        },
        |node, cue| {
            cue.notify();
            cue.wait();
            node.leave();
        },
    );
}

fn others(api: &Api) {
    set_env("SISCI_FAULT", "lost:node12@0s");
    two(
        api,
        |node, cue| {
            let segment = node.export(1, 64, 0);
            cue.notify();
            assert_eq!(node.event(segment, LONG), Ok((CONNECT, OTHER)));
            assert_eq!(node.event(segment, LONG).map(|(_, node)| node), Ok(OTHER));
            api.SCIRemoveSegment(segment, 0).unwrap();
            node.leave();
        },
        |node, cue| {
            cue.wait();
            let remote = node.connect(OWNER, 1).unwrap();
            assert_eq!(api.SCIProbeNode(node.sd, 0, OWNER, 0), Ok(1));
            api.SCIDisconnectSegment(remote, 0).unwrap();
            node.leave();
        },
    );
}

fn terminate(api: &Api) {
    set_env("SISCI_FAULT", "lost:node8@1000000s");
    for _ in 0..3 {
        let node = Node::join(api, OWNER);
        let segment = node.export(1, 64, 0);
        api.SCIRemoveSegment(segment, 0).unwrap();
        node.leave();
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Wrong handles and pointers: null, closed, invented, of another type.

use std::ptr::{null_mut, without_provenance_mut};

use crate::api::{Answer, Api, Case, Handle};
use crate::rig::{Node, OWNER, code};

pub(crate) const CASES: &[Case] = &[
    ("null and invented handles are refused", invented),
    ("closed handles are refused", closed),
    ("handles of another type are refused", other_type),
    ("null places for results are refused", null_places),
    ("illegal flags are refused", illegal_flags),
    ("a callback without a function is refused", null_callback),
];

/// Calls each function that takes a handle first.
fn all(api: &Api, handle: Handle) -> Vec<(&'static str, Answer<()>)> {
    let mut word = 0;
    let number = &raw mut word;
    let mut made = null_mut();
    let at = &raw mut made;
    let arg = null_mut();
    vec![
        ("SCIClose", api.SCIClose(handle, 0)),
        ("SCIProbeNode", api.SCIProbeNode(handle, 0, OWNER, 0).map(drop)),
        ("SCICreateSegment", api.SCICreateSegment(handle, at, 1, 64, None, arg, 0)),
        ("SCIPrepareSegment", api.SCIPrepareSegment(handle, 0, 0)),
        ("SCISetSegmentAvailable", api.SCISetSegmentAvailable(handle, 0, 0)),
        ("SCISetSegmentUnavailable", api.SCISetSegmentUnavailable(handle, 0, 0)),
        ("SCIRemoveSegment", api.SCIRemoveSegment(handle, 0)),
        (
            "SCIWaitForLocalSegmentEvent",
            api.SCIWaitForLocalSegmentEvent(handle, number, number, 0, 0).map(drop),
        ),
        ("SCIShareSegment", api.SCIShareSegment(handle, 0)),
        ("SCIConnectSegment", api.SCIConnectSegment(handle, at, OWNER, 1, 0, None, arg, 0, 0)),
        ("SCIDisconnectSegment", api.SCIDisconnectSegment(handle, 0)),
        (
            "SCIWaitForRemoteSegmentEvent",
            api.SCIWaitForRemoteSegmentEvent(handle, number, 0, 0).map(drop),
        ),
        ("SCIMapRemoteSegment", api.SCIMapRemoteSegment(handle, at, 0, 64, arg, 0).map(drop)),
        ("SCIMapLocalSegment", api.SCIMapLocalSegment(handle, at, 0, 64, arg, 0).map(drop)),
        ("SCIUnmapSegment", api.SCIUnmapSegment(handle, 0)),
        ("SCICreateMapSequence", api.SCICreateMapSequence(handle, at, 0)),
        ("SCIRemoveSequence", api.SCIRemoveSequence(handle, 0)),
        ("SCIStartSequence", api.SCIStartSequence(handle, 0).map(drop)),
        ("SCICheckSequence", api.SCICheckSequence(handle, 0).map(drop)),
        ("SCIMemCpy", api.SCIMemCpy(null_mut(), number.cast(), handle, 0, 4, 0)),
        ("SCICreateInterrupt", api.SCICreateInterrupt(handle, at, 0, number, None, arg, 0)),
        ("SCIRemoveInterrupt", api.SCIRemoveInterrupt(handle, 0)),
        ("SCIWaitForInterrupt", api.SCIWaitForInterrupt(handle, 0, 0)),
        ("SCIConnectInterrupt", api.SCIConnectInterrupt(handle, at, OWNER, 0, 1, 0, 0)),
        ("SCIDisconnectInterrupt", api.SCIDisconnectInterrupt(handle, 0)),
        ("SCITriggerInterrupt", api.SCITriggerInterrupt(handle, 0)),
        ("SCICreateDataInterrupt", api.SCICreateDataInterrupt(handle, at, 0, number, None, arg, 0)),
        ("SCIRemoveDataInterrupt", api.SCIRemoveDataInterrupt(handle, 0)),
        (
            "SCIWaitForDataInterrupt",
            api.SCIWaitForDataInterrupt(handle, number.cast(), number, 0, 0),
        ),
        ("SCIConnectDataInterrupt", api.SCIConnectDataInterrupt(handle, at, OWNER, 0, 1, 0, 0)),
        ("SCIDisconnectDataInterrupt", api.SCIDisconnectDataInterrupt(handle, 0)),
        ("SCITriggerDataInterrupt", api.SCITriggerDataInterrupt(handle, number.cast(), 4, 0)),
        ("SCICreateDMAQueue", api.SCICreateDMAQueue(handle, at, 0, 1, 0)),
        ("SCIRemoveDMAQueue", api.SCIRemoveDMAQueue(handle, 0)),
        ("SCIWaitForDMAQueue", api.SCIWaitForDMAQueue(handle, 0, 0).map(drop)),
        ("SCIAbortDMAQueue", api.SCIAbortDMAQueue(handle, 0)),
        ("SCIResetDMAQueue", api.SCIResetDMAQueue(handle, 0)),
    ]
}

fn check(api: &Api, handle: Handle, kind: &str, is_own: fn(&str) -> bool) {
    for (name, answer) in all(api, handle) {
        if !is_own(name) {
            assert_eq!(answer, Err(code::ILLEGAL_PARAMETER), "{name} with {kind}");
        }
    }
}

fn invented(api: &Api) {
    let node = Node::join(api, OWNER);
    for value in [0, 1, usize::MAX, 0x7FFF_0000_1000, 1 << 32 | 77, node.sd.addr() ^ 1 << 32] {
        check(api, without_provenance_mut(value), &format!("{value:#x}"), |_| false);
    }
    node.leave();
}

fn closed(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.create(1, 64, 0).unwrap();
    api.SCIRemoveSegment(segment, 0).unwrap();
    check(api, segment, "a closed handle", |_| false);
    let again = node.create(1, 64, 0).unwrap();
    assert_ne!(again, segment, "a handle is not used again");
    api.SCIRemoveSegment(again, 0).unwrap();
    node.leave();
}

fn other_type(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.create(1, 64, api.flag("PRIVATE")).unwrap();
    let view = node.map_local(segment, 0, 64).unwrap();
    check(api, view.map, "a map", |name| {
        ["SCIUnmapSegment", "SCICreateMapSequence", "SCIMemCpy"].contains(&name)
    });
    api.SCIUnmapSegment(view.map, 0).unwrap_or_else(|left| assert_eq!(left, 0x912, "unmapped"));
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn null_places(api: &Api) {
    let node = Node::join(api, OWNER);
    let (sd, none) = (node.sd, null_mut());
    let segment = node.export(1, 64, 0);
    let answers = [
        ("SCIOpen", api.SCIOpen(null_mut(), 0)),
        ("SCICreateSegment", api.SCICreateSegment(sd, null_mut(), 2, 64, None, none, 0)),
        ("SCIConnectSegment", api.SCIConnectSegment(sd, null_mut(), OWNER, 1, 0, None, none, 0, 0)),
        (
            "SCIMapLocalSegment",
            api.SCIMapLocalSegment(segment, null_mut(), 0, 64, none, 0).map(drop),
        ),
        (
            "SCICreateInterrupt",
            api.SCICreateInterrupt(sd, null_mut(), 0, null_mut(), None, none, 0),
        ),
        ("SCICreateDMAQueue", api.SCICreateDMAQueue(sd, null_mut(), 0, 1, 0)),
        (
            "SCIWaitForLocalSegmentEvent",
            api.SCIWaitForLocalSegmentEvent(segment, null_mut(), null_mut(), 0, 0).map(drop),
        ),
    ];
    for (name, answer) in answers {
        assert_eq!(answer, Err(code::ILLEGAL_PARAMETER), "{name}");
    }
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn illegal_flags(api: &Api) {
    const ALL: u32 = 1 << 30;
    let node = Node::join(api, OWNER);
    let segment = node.export(1, 64, 0);
    let mut made = null_mut();
    let (at, none) = (&raw mut made, null_mut());
    let group = api.flag("BROADCAST");
    let answers = [
        ("SCIOpen", api.SCIOpen(at, ALL)),
        ("SCICreateSegment", node.create(2, 64, ALL).map(drop)),
        ("SCIPrepareSegment", api.SCIPrepareSegment(segment, 0, ALL)),
        ("SCISetSegmentAvailable", api.SCISetSegmentAvailable(segment, 0, 1)),
        ("SCISetSegmentUnavailable", api.SCISetSegmentUnavailable(segment, 0, ALL)),
        ("SCIRemoveSegment", api.SCIRemoveSegment(segment, ALL)),
        ("SCIConnectSegment", node.connect_with(OWNER, 1, ALL).map(drop)),
        ("SCIMapLocalSegment", api.SCIMapLocalSegment(segment, at, 0, 64, none, ALL).map(drop)),
        ("SCICacheSync", api.SCICacheSync(none, none, 0, ALL)),
        ("SCIMemWrite", api.SCIMemWrite(none, none, 0, ALL)),
        ("SCICreateDMAQueue", api.SCICreateDMAQueue(node.sd, at, 0, 1, ALL)),
        ("a group without memory", node.create(2, 64, api.flag("EMPTY") | group).map(drop)),
        ("unicast without a group", node.create(2, 64, api.flag("ALLOW_UNICAST")).map(drop)),
    ];
    for (name, answer) in answers {
        assert_eq!(answer, Err(code::ILLEGAL_FLAG), "{name}");
    }
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn null_callback(api: &Api) {
    let node = Node::join(api, OWNER);
    let flag = api.flag("USE_CALLBACK");
    assert_eq!(node.create(1, 64, flag), Err(code::ILLEGAL_PARAMETER));
    let segment = node.export(1, 64, 0);
    assert_eq!(node.connect_with(OWNER, 1, flag), Err(code::ILLEGAL_PARAMETER));
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

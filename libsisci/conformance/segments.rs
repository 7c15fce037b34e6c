// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! States of segments, and connections to them.
#![expect(unsafe_code, reason = "memory of the program")]

use std::alloc::Layout;
use std::ffi::c_void;
use std::ptr::null_mut;

use crate::api::{Api, Case};
use crate::rig::{
    DISCONNECT, LONG, LOST, Node, OTHER, OWNER, SHORT, View, code, sleep_for_ever, two,
    two_with_kill,
};

pub(crate) const CASES: &[Case] = &[
    ("a segment has its id and size", id_and_size),
    ("an id is used once on a node", id_used),
    ("an id is used once on a node by all processes", id_used_by_another),
    ("AUTO_ID finds a free id", auto_id),
    ("a segment of no bytes is refused", no_bytes),
    ("a segment larger than the machine is refused", too_large),
    ("PRIVATE is never reachable", private),
    ("EMPTY has no memory", empty),
    ("an empty segment takes memory of the program", registered),
    ("other memory is refused", wrong_memory),
    ("availability needs preparation", states),
    ("an unprepared segment is not found", not_found),
    ("another process connects", connect),
    ("a connection outlives unavailability", unavailable),
    ("NOTIFY asks to disconnect", notify),
    ("NOTIFY concerns one adapter", notify_of_adapter),
    ("FORCE_DISCONNECT ends connections", force_disconnect),
    ("a connected segment is not removed", busy),
    ("FORCE_REMOVE removes a connected segment", force_remove),
    ("many connections of one process", many_connections),
    ("SCIAttachLocalSegment needs SCIShareSegment", attach),
    ("members of a group share memory", group),
    ("a group needs its flag and node", group_needs),
    ("a group is reachable by any available member", any_member),
    ("a member is reachable with ALLOW_UNICAST", unicast),
    ("a stopped member does not stop others", stopped_member),
    ("hints about memory have no effect", hints),
    ("another process attaches to a shared segment", attach_elsewhere),
    ("a segment is connected through its adapter", through_adapter),
    ("a group is connected asynchronously", asynchronous_group),
];

fn id_and_size(api: &Api) {
    let node = Node::join(api, OWNER);
    for (id, size) in [(0, 1), (7, 4096), (u32::MAX, 5000)] {
        let segment = node.create(id, size, 0).unwrap();
        assert_eq!(api.ask::<u32>("SCIGetLocalSegmentId", segment), id);
        assert_eq!(api.ask::<usize>("SCIGetLocalSegmentSize", segment), size);
        api.SCIRemoveSegment(segment, 0).unwrap();
    }
    node.leave();
}

fn id_used(api: &Api) {
    let node = Node::join(api, OWNER);
    let first = node.create(1, 64, 0).unwrap();
    assert_eq!(node.create(1, 64, 0), Err(code::SEGMENTID_USED));
    api.SCIRemoveSegment(first, 0).unwrap();
    let second = node.create(1, 64, 0).unwrap();
    api.SCIRemoveSegment(second, 0).unwrap();
    node.leave();
}

fn id_used_by_another(api: &Api) {
    two(
        api,
        |node, cue| {
            let segment = node.create(1, 64, 0).unwrap();
            cue.meet();
            api.SCIRemoveSegment(segment, 0).unwrap();
            node.leave();
        },
        |node, cue| {
            node.leave();
            cue.wait();
            let same = Node::join(api, OWNER);
            assert_eq!(same.create(1, 64, 0), Err(code::SEGMENTID_USED));
            same.leave();
            cue.notify();
        },
    );
}

fn auto_id(api: &Api) {
    let node = Node::join(api, OWNER);
    let auto = api.flag("AUTO_ID");
    let segments: Vec<_> = (0..10).map(|_| node.create(1024, 64, auto).unwrap()).collect();
    for (segment, id) in segments.iter().zip(1024..) {
        assert_eq!(api.ask::<u32>("SCIGetLocalSegmentId", *segment), id);
    }
    for segment in segments {
        api.SCIRemoveSegment(segment, 0).unwrap();
    }
    node.leave();
}

fn no_bytes(api: &Api) {
    let node = Node::join(api, OWNER);
    assert_eq!(node.create(1, 0, 0), Err(code::SIZE_ALIGNMENT));
    node.leave();
}

fn too_large(api: &Api) {
    let node = Node::join(api, OWNER);
    for size in [1 << 60, usize::MAX] {
        assert_eq!(node.create(1, size, 0), Err(code::NOSPC), "{size:#x}");
    }
    node.leave();
}

fn private(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.create(1, 64, api.flag("PRIVATE")).unwrap();
    let other = node.create(1, 64, api.flag("PRIVATE")).unwrap();
    api.SCIPrepareSegment(segment, 0, 0).unwrap();
    assert_eq!(api.SCISetSegmentAvailable(segment, 0, 0), Err(code::ILLEGAL_OPERATION));
    assert_eq!(node.connect(OWNER, 1), Err(code::NO_SUCH_SEGMENT));
    api.SCIRemoveSegment(segment, 0).unwrap();
    api.SCIRemoveSegment(other, 0).unwrap();
    node.leave();
}

fn empty(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.create(1, 4096, api.flag("EMPTY")).unwrap();
    assert_eq!(api.SCIPrepareSegment(segment, 0, 0), Err(code::ILLEGAL_OPERATION));
    assert_eq!(node.map_local(segment, 0, 64).err(), Some(code::ILLEGAL_OPERATION));
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

/// Allocates pages of the program.
fn pages(n: usize) -> *mut c_void {
    let layout = Layout::from_size_align(n * 4096, 4096).unwrap();
    // SAFETY: a layout of some bytes.
    let at = unsafe { std::alloc::alloc_zeroed(layout) };
    assert!(!at.is_null());
    at.cast()
}

fn registered(api: &Api) {
    let node = Node::join(api, OWNER);
    let memory = pages(4);
    let own = View { map: null_mut(), at: memory.expose_provenance() };
    own.store(4096, 5);
    let segment = node.create(1, 4 * 4096, api.flag("EMPTY")).unwrap();
    api.SCIRegisterSegmentMemory(memory, 4 * 4096, segment, 0).unwrap();
    let again = api.SCIRegisterSegmentMemory(memory, 4 * 4096, segment, 0);
    assert_eq!(again, Err(code::ILLEGAL_OPERATION));
    api.SCIPrepareSegment(segment, 0, 0).unwrap();
    api.SCISetSegmentAvailable(segment, 0, 0).unwrap();
    let remote = node.connect(OWNER, 1).unwrap();
    let view = node.map(remote, 0, 4 * 4096).unwrap();
    assert_eq!(view.load(4096), 5, "the content moves with the pages");
    view.store(8, 6);
    assert_eq!(own.load(8), 6, "one memory");
    api.SCIUnmapSegment(view.map, 0).unwrap();
    api.SCIDisconnectSegment(remote, 0).unwrap();
    api.SCIRemoveSegment(segment, 0).unwrap();
    assert_eq!((own.load(8), own.load(4096)), (6, 5), "still memory of the program");
    node.leave();
}

fn wrong_memory(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.create(1, 4096, api.flag("EMPTY")).unwrap();
    let memory = pages(2);
    let register = |at: *mut c_void, size| api.SCIRegisterSegmentMemory(at, size, segment, 0);
    assert_eq!(register(memory, 8192), Err(code::OUT_OF_RANGE));
    assert_eq!(register(memory.wrapping_byte_add(8), 4096), Err(code::ILLEGAL_ADDRESS));
    assert_eq!(register(null_mut(), 4096), Err(code::ILLEGAL_ADDRESS));
    let full = node.create(2, 4096, 0).unwrap();
    let filled = api.SCIRegisterSegmentMemory(memory, 4096, full, 0);
    assert_eq!(filled, Err(code::ILLEGAL_OPERATION));
    for segment in [segment, full] {
        api.SCIRemoveSegment(segment, 0).unwrap();
    }
    node.leave();
}

fn states(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.create(1, 64, 0).unwrap();
    assert_eq!(api.SCISetSegmentAvailable(segment, 0, 0), Err(code::SEGMENT_NOT_PREPARED));
    assert_eq!(api.SCISetSegmentUnavailable(segment, 0, 0), Err(code::ILLEGAL_OPERATION));
    api.SCIPrepareSegment(segment, 0, 0).unwrap();
    assert_eq!(api.SCISetSegmentUnavailable(segment, 0, 0), Err(code::ILLEGAL_OPERATION));
    for _ in 0..2 {
        api.SCISetSegmentAvailable(segment, 0, 0).unwrap();
        api.SCISetSegmentUnavailable(segment, 0, 0).unwrap();
    }
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn not_found(api: &Api) {
    let node = Node::join(api, OWNER);
    assert_eq!(node.connect(OWNER, 1), Err(code::NO_SUCH_SEGMENT));
    assert_eq!(node.connect(OTHER, 1), Err(code::NO_SUCH_SEGMENT), "a node without a process");
    let segment = node.create(1, 64, 0).unwrap();
    assert_eq!(node.connect(OWNER, 1), Err(code::NO_SUCH_SEGMENT));
    api.SCIPrepareSegment(segment, 0, 0).unwrap();
    assert_eq!(node.connect(OWNER, 1), Err(code::NO_SUCH_SEGMENT));
    api.SCISetSegmentAvailable(segment, 0, 0).unwrap();
    let remote = node.connect(OWNER, 1).unwrap();
    api.SCIDisconnectSegment(remote, 0).unwrap();
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn connect(api: &Api) {
    two(
        api,
        |node, cue| {
            let segment = node.export(7, 5000, 0);
            let view = node.map_local(segment, 0, 5000).unwrap();
            cue.meet();
            assert_eq!(view.load(4996), 77);
            api.SCIUnmapSegment(view.map, 0).unwrap();
            api.SCIRemoveSegment(segment, 0).unwrap();
            node.leave();
        },
        |node, cue| {
            cue.wait();
            let remote = node.connect(OWNER, 7).unwrap();
            assert_eq!(api.ask::<usize>("SCIGetRemoteSegmentSize", remote), 5000);
            assert_eq!(api.ask::<u32>("SCIGetRemoteSegmentId", remote), 7);
            assert_eq!(api.ask::<u32>("SCIGetRemoteSegmentNodeId", remote), OWNER);
            let view = node.map(remote, 0, 5000).unwrap();
            view.store(4996, 77);
            assert_eq!(api.SCIDisconnectSegment(remote, 0), Err(code::BUSY), "mapped");
            api.SCIUnmapSegment(view.map, 0).unwrap();
            api.SCIDisconnectSegment(remote, 0).unwrap();
            node.leave();
            cue.notify();
        },
    );
}

fn unavailable(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.export(1, 64, 0);
    let remote = node.connect(OWNER, 1).unwrap();
    api.SCISetSegmentUnavailable(segment, 0, 0).unwrap();
    assert_eq!(node.connect(OWNER, 1), Err(code::NO_SUCH_SEGMENT));
    let view = node.map(remote, 0, 64).unwrap();
    view.store(0, 5);
    assert_eq!(node.remote_event(remote, 0), Err(code::TIMEOUT));
    api.SCIUnmapSegment(view.map, 0).unwrap();
    api.SCIDisconnectSegment(remote, 0).unwrap();
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn notify(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.export(1, 64, 0);
    let remote = node.connect(OWNER, 1).unwrap();
    api.SCISetSegmentUnavailable(segment, 0, api.flag("NOTIFY")).unwrap();
    assert_eq!(node.remote_event(remote, LONG), Ok((DISCONNECT, 0)));
    let view = node.map(remote, 0, 64).unwrap();
    api.SCIUnmapSegment(view.map, 0).unwrap();
    assert_eq!(api.SCIRemoveSegment(segment, 0), Err(code::BUSY));
    api.SCIDisconnectSegment(remote, 0).unwrap();
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn notify_of_adapter(api: &Api) {
    let node = Node::join(api, OWNER);
    let host = api.constant("SCI_LOCAL_HOST");
    let segment = node.export(1, 64, 0);
    api.SCIPrepareSegment(segment, host, 0).unwrap();
    api.SCISetSegmentAvailable(segment, host, 0).unwrap();
    let remote = node.connect(OWNER, 1).unwrap();
    let mut other = null_mut();
    let at = &raw mut other;
    api.SCIConnectSegment(node.sd, at, OWNER, 1, host, None, null_mut(), LONG, 0).unwrap();
    api.SCISetSegmentUnavailable(segment, 0, api.flag("NOTIFY")).unwrap();
    assert_eq!(node.remote_event(remote, LONG), Ok((DISCONNECT, 0)));
    assert_eq!(node.remote_event(other, SHORT), Err(code::TIMEOUT), "of another adapter");
    api.SCISetSegmentUnavailable(segment, host, api.flag("NOTIFY")).unwrap();
    assert_eq!(node.remote_event(other, LONG), Ok((DISCONNECT, 0)));
    for remote in [remote, other] {
        api.SCIDisconnectSegment(remote, 0).unwrap();
    }
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn force_disconnect(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.export(1, 64, 0);
    let remote = node.connect(OWNER, 1).unwrap();
    api.SCISetSegmentUnavailable(segment, 0, api.flag("FORCE_DISCONNECT")).unwrap();
    assert_eq!(node.remote_event(remote, LONG), Ok((LOST, 0)));
    assert_eq!(node.map(remote, 0, 64).err(), Some(code::SEGMENT_NOT_CONNECTED));
    api.SCIRemoveSegment(segment, 0).unwrap();
    api.SCIDisconnectSegment(remote, 0).unwrap();
    node.leave();
}

fn busy(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.export(1, 64, 0);
    let remote = node.connect(OWNER, 1).unwrap();
    assert_eq!(api.SCIRemoveSegment(segment, 0), Err(code::BUSY), "connected");
    api.SCIDisconnectSegment(remote, 0).unwrap();
    let view = node.map_local(segment, 0, 64).unwrap();
    assert_eq!(api.SCIRemoveSegment(segment, 0), Err(code::BUSY), "mapped");
    let force = api.flag("FORCE_REMOVE");
    assert_eq!(api.SCIRemoveSegment(segment, force), Err(code::BUSY), "mapped by its owner");
    api.SCIUnmapSegment(view.map, 0).unwrap();
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn force_remove(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.export(1, 64, 0);
    let remote = node.connect(OWNER, 1).unwrap();
    let view = node.map(remote, 0, 64).unwrap();
    api.SCIRemoveSegment(segment, api.flag("FORCE_REMOVE")).unwrap();
    assert_eq!(node.remote_event(remote, LONG), Ok((LOST, 0)));
    view.store(0, 9);
    assert_eq!(view.load(0), 9, "a mapping of a lost segment is valid memory");
    api.SCIUnmapSegment(view.map, 0).unwrap();
    api.SCIDisconnectSegment(remote, 0).unwrap();
    node.leave();
}

fn many_connections(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.export(1, 64, 0);
    let remotes: Vec<_> = (0..100).map(|_| node.connect(OWNER, 1).unwrap()).collect();
    for remote in remotes {
        assert_eq!(api.SCIRemoveSegment(segment, 0), Err(code::BUSY));
        api.SCIDisconnectSegment(remote, 0).unwrap();
    }
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn attach(api: &Api) {
    let node = Node::join(api, OWNER);
    let attach = |id| {
        let (mut segment, mut size) = (null_mut(), 0);
        let (at, size_at) = (&raw mut segment, &raw mut size);
        api.SCIAttachLocalSegment(node.sd, at, id, size_at, None, null_mut(), 0)
            .map(|()| (segment, size))
    };
    let segment = node.export(1, 5000, 0);
    assert_eq!(attach(2).err(), Some(code::NO_SUCH_SEGMENT));
    assert_eq!(attach(1).err(), Some(code::ACCESS));
    api.SCIShareSegment(segment, 0).unwrap();
    let (attached, size) = attach(1).unwrap();
    assert_eq!(size, 5000);
    let (own, other) =
        (node.map_local(segment, 0, 64).unwrap(), node.map_local(attached, 0, 64).unwrap());
    own.store(8, 3);
    assert_eq!(other.load(8), 3);
    for map in [own.map, other.map] {
        api.SCIUnmapSegment(map, 0).unwrap();
    }
    assert_eq!(api.SCIRemoveSegment(segment, 0), Err(code::BUSY), "attached");
    api.SCIRemoveSegment(attached, 0).unwrap();
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn group(api: &Api) {
    let broadcast = api.flag("BROADCAST");
    two(
        api,
        |node, cue| {
            let member = node.export(5, 4096, broadcast);
            let own = node.map_local(member, 0, 4096).unwrap();
            cue.meet();
            let all = node.connect_with(252, 5, broadcast).unwrap();
            let view = node.map(all, 0, 4096).unwrap();
            view.store(16, 21);
            assert_eq!(own.load(16), 21);
            cue.meet();
            for map in [own.map, view.map] {
                api.SCIUnmapSegment(map, 0).unwrap();
            }
            api.SCIDisconnectSegment(all, 0).unwrap();
            cue.wait();
            api.SCIRemoveSegment(member, 0).unwrap();
            node.leave();
        },
        |node, cue| {
            cue.wait();
            let size = node.create(5, 8192, broadcast);
            assert_eq!(size, Err(code::ILLEGAL_PARAMETER), "members have one size");
            let member = node.export(5, 4096, broadcast);
            let own = node.map_local(member, 0, 4096).unwrap();
            cue.meet();
            assert_eq!(own.load(16), 21, "a store of another member");
            cue.notify();
            api.SCIUnmapSegment(own.map, 0).unwrap();
            api.SCIRemoveSegment(member, 0).unwrap();
            node.leave();
            cue.notify();
        },
    );
}

fn group_needs(api: &Api) {
    let node = Node::join(api, OWNER);
    let broadcast = api.flag("BROADCAST");
    assert_eq!(node.connect_with(252, 5, broadcast), Err(code::NO_SUCH_SEGMENT));
    assert_eq!(node.connect_with(OWNER, 5, broadcast), Err(code::ILLEGAL_NODEID));
    assert_eq!(node.connect(252, 5), Err(code::ILLEGAL_NODEID));
    let member = node.export(5, 64, broadcast);
    assert_eq!(node.connect(OWNER, 5), Err(code::NO_SUCH_SEGMENT), "without ALLOW_UNICAST");
    api.SCIRemoveSegment(member, 0).unwrap();
    node.leave();
}

fn any_member(api: &Api) {
    let node = Node::join(api, OWNER);
    let broadcast = api.flag("BROADCAST");
    let first = node.create(5, 64, broadcast).unwrap();
    assert_eq!(node.connect_with(252, 5, broadcast), Err(code::NO_SUCH_SEGMENT));
    let second = node.export(5, 64, broadcast);
    let remote = node.connect_with(252, 5, broadcast).unwrap();
    api.SCIDisconnectSegment(remote, 0).unwrap();
    for member in [first, second] {
        api.SCIRemoveSegment(member, 0).unwrap();
    }
    node.leave();
}

fn unicast(api: &Api) {
    let node = Node::join(api, OWNER);
    let member = node.export(5, 64, api.flag("BROADCAST") | api.flag("ALLOW_UNICAST"));
    let remote = node.connect(OWNER, 5).unwrap();
    api.SCIDisconnectSegment(remote, 0).unwrap();
    api.SCIRemoveSegment(member, 0).unwrap();
    node.leave();
}

fn stopped_member(api: &Api) {
    let broadcast = api.flag("BROADCAST");
    two_with_kill(
        api,
        |node, cue, other| {
            cue.wait();
            other.stop();
            assert_eq!(node.create(5, 64, broadcast), Err(code::TIMEOUT));
            other.kill();
            crate::rig::until_gone(other);
            let member = node.create(5, 64, broadcast).unwrap();
            api.SCIRemoveSegment(member, 0).unwrap();
            node.leave();
        },
        |node, cue| {
            node.export(5, 64, broadcast);
            cue.notify();
            sleep_for_ever();
        },
    );
}

fn hints(api: &Api) {
    let node = Node::join(api, OWNER);
    let global = node.export(1, 4096, api.flag("DMA_GLOBAL"));
    let empty = node.create(2, 4096, api.flag("EMPTY")).unwrap();
    let lock = api.flag("LOCK_USER_MEM");
    api.SCIRegisterSegmentMemory(pages(1), 4096, empty, lock).unwrap();
    api.SCIPrepareSegment(empty, 0, api.flag("DMA_SOURCE_ONLY")).unwrap();
    api.SCISetSegmentAvailable(empty, 0, 0).unwrap();
    for id in [1, 2] {
        let remote = node.connect(OWNER, id).unwrap();
        let view = node.map(remote, 0, 4096).unwrap();
        view.store(0, id);
        assert_eq!(view.load(0), id);
        api.SCIUnmapSegment(view.map, 0).unwrap();
        api.SCIDisconnectSegment(remote, 0).unwrap();
    }
    for segment in [global, empty] {
        api.SCIRemoveSegment(segment, 0).unwrap();
    }
    node.leave();
}

fn attach_elsewhere(api: &Api) {
    two(
        api,
        |node, cue| {
            let segment = node.export(3, 4096, 0);
            let view = node.map_local(segment, 0, 64).unwrap();
            api.SCIShareSegment(segment, 0).unwrap();
            cue.meet();
            assert_eq!(view.load(0), 41, "a store of the process that attached");
            api.SCIUnmapSegment(view.map, 0).unwrap();
            api.SCIRemoveSegment(segment, 0).unwrap();
            node.leave();
        },
        |node, cue| {
            node.leave();
            cue.wait();
            let same = Node::join(api, OWNER);
            let (mut segment, mut size) = (null_mut(), 0);
            let (at, size_at) = (&raw mut segment, &raw mut size);
            api.SCIAttachLocalSegment(same.sd, at, 3, size_at, None, null_mut(), 0).unwrap();
            assert_eq!(size, 4096);
            assert_eq!(api.ask::<u32>("SCIGetLocalSegmentId", segment), 3);
            let view = same.map_local(segment, 0, 64).unwrap();
            view.store(0, 41);
            api.SCIUnmapSegment(view.map, 0).unwrap();
            api.SCIRemoveSegment(segment, 0).unwrap();
            same.leave();
            cue.notify();
        },
    );
}

fn through_adapter(api: &Api) {
    crate::rig::set_env("SISCI_ADAPTERS", "2");
    two(
        api,
        |node, cue| {
            let segment = node.create(1, 64, 0).unwrap();
            api.SCIPrepareSegment(segment, 1, 0).unwrap();
            api.SCISetSegmentAvailable(segment, 1, 0).unwrap();
            cue.notify();
            let (mut from, mut adapter) = (0, 0);
            let (from_at, adapter_at) = (&raw mut from, &raw mut adapter);
            let reason = api.SCIWaitForLocalSegmentEvent(segment, from_at, adapter_at, LONG, 0);
            assert_eq!((reason, from, adapter), (Ok(crate::rig::CONNECT), OTHER, 1));
            cue.wait();
            api.SCIRemoveSegment(segment, 0).unwrap();
            node.leave();
        },
        |node, cue| {
            cue.wait();
            assert_eq!(node.connect(OWNER, 1), Err(code::NO_SUCH_SEGMENT), "adapter 0");
            let mut remote = null_mut();
            let at = &raw mut remote;
            api.SCIConnectSegment(node.sd, at, OWNER, 1, 1, None, null_mut(), LONG, 0).unwrap();
            api.SCIDisconnectSegment(remote, 0).unwrap();
            node.leave();
            cue.notify();
        },
    );
}

fn asynchronous_group(api: &Api) {
    let node = Node::join(api, OWNER);
    let broadcast = api.flag("BROADCAST");
    let member = node.export(5, 64, broadcast);
    let flags = broadcast | api.flag("ASYNCHRONOUS_CONNECT");
    let remote = node.connect_with(252, 5, flags).unwrap();
    assert_eq!(node.remote_event(remote, LONG), Ok((crate::rig::CONNECT, 0)));
    let mut map = null_mut();
    let at = &raw mut map;
    api.SCIMapRemoteSegment(remote, at, 0, 64, null_mut(), broadcast).unwrap();
    api.SCIUnmapSegment(map, 0).unwrap();
    api.SCIDisconnectSegment(remote, 0).unwrap();
    api.SCIRemoveSegment(member, 0).unwrap();
    node.leave();
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Events and callbacks of segments, and the death of either side.
#![expect(unsafe_code, reason = "callbacks")]

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::api::{Api, Case, Handle};
use crate::rig::{
    CANCEL, CONNECT, CONTINUE, DISCONNECT, LONG, LOST, Node, OTHER, OWNER, PATIENCE,
    SEQ_NOT_RETRIABLE, SHORT, Told, code, sleep_for_ever, told, two, two_with_kill,
};

pub(crate) const CASES: &[Case] = &[
    ("the owner sees a connection and its end", owner_sees),
    ("a wait without an event ends in time", timeouts),
    ("a wait ends with its segment", cancelled),
    ("events beyond 32 are reported as lost", overflow),
    ("a callback of the owner gets the events", owner_callback),
    ("a callback that cancels is called once", cancelling_callback),
    ("a callback of a connection gets the loss", remote_callback),
    ("a callback may connect and disconnect", callback_calls),
    ("a segment with a callback has no wait", no_wait),
    ("ASYNCHRONOUS_CONNECT reports success", asynchronous),
    ("ASYNCHRONOUS_CONNECT reports failure", asynchronous_failure),
    ("the death of the owner is LOST", owner_killed),
    ("the death of a connection is LOST", connection_killed),
    ("a killed owner's id is free", killed_id),
    ("death is seen again and again", deaths),
];

fn owner_sees(api: &Api) {
    two(
        api,
        |node, cue| {
            let segment = node.export(1, 64, 0);
            cue.notify();
            assert_eq!(node.event(segment, LONG), Ok((CONNECT, OTHER)));
            cue.notify();
            assert_eq!(node.event(segment, LONG), Ok((DISCONNECT, OTHER)));
            api.SCIRemoveSegment(segment, 0).unwrap();
            node.leave();
        },
        |node, cue| {
            cue.wait();
            let remote = node.connect(OWNER, 1).unwrap();
            cue.wait();
            api.SCIDisconnectSegment(remote, 0).unwrap();
            node.leave();
        },
    );
}

fn timeouts(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.export(1, 64, 0);
    let remote = node.connect(OWNER, 1).unwrap();
    assert_eq!(node.event(segment, LONG), Ok((CONNECT, OWNER)));
    for timeout in [0, 1, SHORT] {
        assert_eq!(node.event(segment, timeout), Err(code::TIMEOUT));
        assert_eq!(node.remote_event(remote, timeout), Err(code::TIMEOUT));
    }
    api.SCIDisconnectSegment(remote, 0).unwrap();
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn cancelled(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.export(1, 64, 0);
    let remote = node.connect(OWNER, 1).unwrap();
    assert_eq!(node.event(segment, LONG), Ok((CONNECT, OWNER)));
    let (local_at, remote_at, sd) = (segment.addr(), remote.addr(), node.sd.addr());
    let handle = std::ptr::without_provenance_mut;
    std::thread::scope(|scope| {
        let waits =
            scope.spawn(move || Node { api, sd: handle(sd) }.remote_event(handle(remote_at), LONG));
        std::thread::sleep(std::time::Duration::from_millis(20));
        api.SCIDisconnectSegment(remote, 0).unwrap();
        let ended = waits.join().unwrap();
        assert!(matches!(ended, Err(code::CANCELLED | code::ILLEGAL_PARAMETER)), "{ended:?}");
        assert_eq!(node.event(segment, LONG), Ok((DISCONNECT, OWNER)));
        let waits = scope.spawn(move || Node { api, sd: handle(sd) }.event(handle(local_at), LONG));
        std::thread::sleep(std::time::Duration::from_millis(20));
        api.SCIRemoveSegment(segment, 0).unwrap();
        let ended = waits.join().unwrap();
        assert!(matches!(ended, Err(code::CANCELLED | code::ILLEGAL_PARAMETER)), "{ended:?}");
    });
    node.leave();
}

fn overflow(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.export(1, 64, 0);
    // An answer is sent before its event, and after the events of earlier connections. So at least
    // 39 events exist, and the later ones are lost until the overflow is reported.
    let remotes: Vec<_> = (0..40).map(|_| node.connect(OWNER, 1).unwrap()).collect();
    for remote in remotes {
        api.SCIDisconnectSegment(remote, 0).unwrap();
    }
    for _ in 0..32 {
        assert_eq!(node.event(segment, LONG), Ok((CONNECT, OWNER)));
    }
    assert_eq!(node.event(segment, LONG), Err(code::OVERFLOW));
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

/// Event of a local segment, as its callback gets it: handle, reason, node, adapter, code.
type LocalCall = (usize, u32, u32, u32, u32);

unsafe extern "C" fn on_local(
    arg: *mut c_void,
    segment: Handle,
    reason: u32,
    node: u32,
    adapter: u32,
    status: u32,
) -> u32 {
    // SAFETY: `arg` comes from `told` for this type.
    unsafe { Told::<LocalCall>::tell(arg, (segment.addr(), reason, node, adapter, status)) }
}

unsafe extern "C" fn on_remote(arg: *mut c_void, segment: Handle, reason: u32, status: u32) -> u32 {
    // SAFETY: `arg` comes from `told` for this type.
    unsafe { Told::<(usize, u32, u32)>::tell(arg, (segment.addr(), reason, status)) }
}

fn export_with_callback(node: &Node<'_>, arg: *mut c_void) -> Handle {
    let mut segment = null_mut();
    let (at, flags) = (&raw mut segment, node.api.flag("USE_CALLBACK"));
    node.api.SCICreateSegment(node.sd, at, 1, 64, Some(on_local), arg, flags).unwrap();
    node.api.SCIPrepareSegment(segment, 0, 0).unwrap();
    node.api.SCISetSegmentAvailable(segment, 0, 0).unwrap();
    segment
}

fn owner_callback(api: &Api) {
    let node = Node::join(api, OWNER);
    let (arg, calls) = told::<LocalCall>(CONTINUE);
    let segment = export_with_callback(&node, arg);
    for _ in 0..3 {
        let remote = node.connect(OWNER, 1).unwrap();
        let call = calls.recv_timeout(PATIENCE).unwrap();
        assert_eq!(call, (segment.addr(), CONNECT, OWNER, 0, 0));
        api.SCIDisconnectSegment(remote, 0).unwrap();
        let call = calls.recv_timeout(PATIENCE).unwrap();
        assert_eq!(call, (segment.addr(), DISCONNECT, OWNER, 0, 0));
    }
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn cancelling_callback(api: &Api) {
    let node = Node::join(api, OWNER);
    let (arg, calls) = told::<LocalCall>(CANCEL);
    let segment = export_with_callback(&node, arg);
    let remote = node.connect(OWNER, 1).unwrap();
    // The removal of the segment would drop an event that waits.
    assert_eq!(calls.recv_timeout(PATIENCE).map(|call| call.1), Ok(CONNECT));
    api.SCIDisconnectSegment(remote, 0).unwrap();
    for _ in 0..3 {
        let remote = node.connect(OWNER, 1).unwrap();
        api.SCIDisconnectSegment(remote, 0).unwrap();
    }
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
    assert!(calls.try_recv().is_err(), "called again after SCI_CALLBACK_CANCEL");
}

fn connect_with_callback(node: &Node<'_>, id: u32, arg: *mut c_void, flags: u32) -> Handle {
    let mut remote = null_mut();
    let (at, flags) = (&raw mut remote, flags | node.api.flag("USE_CALLBACK"));
    node.api
        .SCIConnectSegment(node.sd, at, OWNER, id, 0, Some(on_remote), arg, LONG, flags)
        .unwrap();
    remote
}

fn remote_callback(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.export(1, 64, 0);
    let (arg, calls) = told::<(usize, u32, u32)>(CONTINUE);
    let remote = connect_with_callback(&node, 1, arg, 0);
    api.SCISetSegmentUnavailable(segment, 0, api.flag("NOTIFY")).unwrap();
    assert_eq!(calls.recv_timeout(PATIENCE), Ok((remote.addr(), DISCONNECT, 0)));
    api.SCIRemoveSegment(segment, api.flag("FORCE_REMOVE")).unwrap();
    assert_eq!(calls.recv_timeout(PATIENCE), Ok((remote.addr(), LOST, 0)));
    api.SCIDisconnectSegment(remote, 0).unwrap();
    node.leave();
}

/// Library, descriptor and channel of a callback that makes calls.
struct Caller {
    api: Api,
    sd: usize,
    done: std::sync::mpsc::Sender<u32>,
}

unsafe extern "C" fn on_local_calls(
    arg: *mut c_void,
    _segment: Handle,
    reason: u32,
    _node: u32,
    _adapter: u32,
    _status: u32,
) -> u32 {
    // SAFETY: `arg` is a `Caller` that lives as long as the process.
    let caller = unsafe { &*arg.cast::<Caller>() };
    let node = Node { api: &caller.api, sd: std::ptr::without_provenance_mut(caller.sd) };
    if reason == CONNECT {
        let remote = node.connect(OWNER, 2).unwrap();
        caller.api.SCIDisconnectSegment(remote, 0).unwrap();
    }
    caller.done.send(reason).unwrap();
    CONTINUE
}

fn callback_calls(api: &Api) {
    let node = Node::join(api, OWNER);
    let second = node.export(2, 64, 0);
    let (done, calls) = std::sync::mpsc::channel();
    let caller = Box::leak(Box::new(Caller { api: *api, sd: node.sd.addr(), done }));
    let (mut segment, arg) = (null_mut(), std::ptr::from_mut(caller).cast());
    let (at, flags) = (&raw mut segment, api.flag("USE_CALLBACK"));
    api.SCICreateSegment(node.sd, at, 1, 64, Some(on_local_calls), arg, flags).unwrap();
    api.SCIPrepareSegment(segment, 0, 0).unwrap();
    api.SCISetSegmentAvailable(segment, 0, 0).unwrap();
    let remote = node.connect(OWNER, 1).unwrap();
    assert_eq!(calls.recv_timeout(PATIENCE), Ok(CONNECT));
    api.SCIDisconnectSegment(remote, 0).unwrap();
    assert_eq!(calls.recv_timeout(PATIENCE), Ok(DISCONNECT));
    api.SCIRemoveSegment(segment, 0).unwrap();
    api.SCIRemoveSegment(second, 0).unwrap();
    node.leave();
}

fn no_wait(api: &Api) {
    let node = Node::join(api, OWNER);
    let (arg, _calls) = told::<LocalCall>(CONTINUE);
    let segment = export_with_callback(&node, arg);
    assert_eq!(node.event(segment, 0), Err(code::ILLEGAL_OPERATION));
    let (arg, _more) = told::<(usize, u32, u32)>(CONTINUE);
    let remote = connect_with_callback(&node, 1, arg, 0);
    assert_eq!(node.remote_event(remote, 0), Err(code::ILLEGAL_OPERATION));
    api.SCIDisconnectSegment(remote, 0).unwrap();
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn asynchronous(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.export(1, 64, 0);
    let flag = api.flag("ASYNCHRONOUS_CONNECT");
    let remote = node.connect_with(OWNER, 1, flag).unwrap();
    assert_eq!(node.remote_event(remote, LONG), Ok((CONNECT, 0)));
    let view = node.map(remote, 0, 64).unwrap();
    api.SCIUnmapSegment(view.map, 0).unwrap();
    let (arg, calls) = told::<(usize, u32, u32)>(CONTINUE);
    let second = connect_with_callback(&node, 1, arg, flag);
    assert_eq!(calls.recv_timeout(PATIENCE), Ok((second.addr(), CONNECT, 0)));
    for remote in [remote, second] {
        api.SCIDisconnectSegment(remote, 0).unwrap();
    }
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn asynchronous_failure(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.create(1, 64, 0).unwrap();
    for id in [1, 2] {
        let remote = node.connect_with(OWNER, id, api.flag("ASYNCHRONOUS_CONNECT")).unwrap();
        assert_eq!(node.remote_event(remote, LONG), Ok((CONNECT, code::NO_SUCH_SEGMENT)), "{id}");
        assert_eq!(node.map(remote, 0, 64).err(), Some(code::SEGMENT_NOT_CONNECTED));
        api.SCIDisconnectSegment(remote, 0).unwrap();
    }
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn owner_killed(api: &Api) {
    two_with_kill(
        api,
        |node, cue, other| {
            cue.wait();
            let remote = node.connect(OTHER, 1).unwrap();
            let view = node.map(remote, 0, 64).unwrap();
            let mut sequence = null_mut();
            api.SCICreateMapSequence(view.map, &raw mut sequence, 0).unwrap();
            other.kill();
            assert_eq!(node.remote_event(remote, LONG), Ok((LOST, 0)));
            assert_eq!(api.SCICheckSequence(sequence, 0), Ok(SEQ_NOT_RETRIABLE));
            assert_eq!(api.SCIStartSequence(sequence, 0), Ok(SEQ_NOT_RETRIABLE));
            view.store(0, 1);
            let mut word = [2_u8; 4];
            let (at, check) = (word.as_mut_ptr().cast(), api.flag("ERROR_CHECK"));
            let copied = api.SCIMemCpy(sequence, at, view.map, 0, 4, check);
            assert_eq!(copied, Err(code::TRANSFER_FAILED));
            assert_eq!(node.connect(OTHER, 1), Err(code::NO_SUCH_SEGMENT));
            api.SCIRemoveSequence(sequence, 0).unwrap();
            api.SCIUnmapSegment(view.map, 0).unwrap();
            api.SCIDisconnectSegment(remote, 0).unwrap();
            node.leave();
        },
        |node, cue| {
            node.export(1, 64, 0);
            cue.notify();
            sleep_for_ever();
        },
    );
}

fn connection_killed(api: &Api) {
    two_with_kill(
        api,
        |node, cue, other| {
            let segment = node.export(1, 64, 0);
            cue.notify();
            assert_eq!(node.event(segment, LONG), Ok((CONNECT, OTHER)));
            other.kill();
            assert_eq!(node.event(segment, LONG), Ok((LOST, OTHER)));
            api.SCIRemoveSegment(segment, 0).unwrap();
            node.leave();
        },
        |node, cue| {
            cue.wait();
            node.connect(OWNER, 1).unwrap();
            sleep_for_ever();
        },
    );
}

fn killed_id(api: &Api) {
    two_with_kill(
        api,
        |node, cue, other| {
            node.leave();
            let node = Node::join(api, OTHER);
            cue.wait();
            assert_eq!(node.create(1, 64, 0), Err(code::SEGMENTID_USED));
            other.kill();
            crate::rig::until_gone(other);
            let segment = node.create(1, 64, 0).unwrap();
            api.SCIRemoveSegment(segment, 0).unwrap();
            node.leave();
        },
        |node, cue| {
            node.export(1, 64, 0);
            cue.notify();
            sleep_for_ever();
        },
    );
}

/// Number of processes that die one after the other.
const DEATHS: u32 = 50;

fn deaths(api: &Api) {
    use scif_fabtests::harness::process::{Cue, Process};
    // The processes are forked before this one has threads of the library.
    let others: Vec<(Cue, Process)> = (0..DEATHS)
        .map(|_| {
            let (mine, theirs) = Cue::pair();
            let process = Process::start(|| {
                theirs.wait();
                let node = Node::join(api, OTHER);
                node.export(1, 64, 0);
                node.connect(OWNER, 1).unwrap();
                theirs.notify();
                sleep_for_ever();
            });
            (mine, process)
        })
        .collect();
    let node = Node::join(api, OWNER);
    let segment = node.export(1, 64, 0);
    for (cue, process) in &others {
        cue.meet();
        let remote = node.connect(OTHER, 1).unwrap();
        assert_eq!(node.event(segment, LONG), Ok((CONNECT, OTHER)));
        process.kill();
        assert_eq!(node.remote_event(remote, LONG), Ok((LOST, 0)));
        assert_eq!(node.event(segment, LONG), Ok((LOST, OTHER)));
        api.SCIDisconnectSegment(remote, 0).unwrap();
        crate::rig::until_gone(process);
    }
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Interrupts without and with data.
#![expect(unsafe_code, reason = "callbacks and their data")]

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::api::{Answer, Api, Case, Handle};
use crate::rig::{
    CANCEL, CONTINUE, LONG, Node, OTHER, OWNER, PATIENCE, SHORT, Told, code, sleep_for_ever, told,
    two, two_with_kill,
};

pub(crate) const CASES: &[Case] = &[
    ("an interrupt wakes a wait", wakes),
    ("numbers are given, or fixed", numbers),
    ("numbers of both kinds are apart", kinds),
    ("an absent number is not found", absent),
    ("triggers before a wait count as one", coalesce),
    ("COUNTING_INT counts each trigger", counting),
    ("SHARED_INT reaches all owners", shared),
    ("SHARED_INT and a lone owner exclude each other", shared_excludes),
    ("a callback gets each interrupt", callback),
    ("a wait ends with its interrupt", cancelled),
    ("a wait without a trigger ends in time", timeout),
    ("data arrives whole and in order", data),
    ("data longer than the buffer stays", long_data),
    ("a full queue is NOSPC", full),
    ("data of many processes arrives", many),
    ("a data callback gets the bytes", data_callback),
    ("a trigger to a dead owner fails", dead_owner),
    ("a trigger to a removed interrupt fails", removed),
    ("SHARED_INT reaches owners in several processes", shared_elsewhere),
    ("COUNTING_INT is legal for a connection", counting_connection),
    ("flags of other interrupts are refused", other_flags),
];

fn create(node: &Node<'_>, fixed: Option<u32>, flags: u32) -> Answer<(Handle, u32)> {
    let (mut interrupt, mut number) = (null_mut(), fixed.unwrap_or(0));
    let flags = flags | if fixed.is_some() { node.api.flag("FIXED_INTNO") } else { 0 };
    let (at, number_at) = (&raw mut interrupt, &raw mut number);
    node.api
        .SCICreateInterrupt(node.sd, at, 0, number_at, None, null_mut(), flags)
        .map(|()| (interrupt, number))
}

fn create_data(node: &Node<'_>, fixed: Option<u32>) -> Answer<(Handle, u32)> {
    let (mut interrupt, mut number) = (null_mut(), fixed.unwrap_or(0));
    let flags = if fixed.is_some() { node.api.flag("FIXED_INTNO") } else { 0 };
    let (at, number_at) = (&raw mut interrupt, &raw mut number);
    node.api
        .SCICreateDataInterrupt(node.sd, at, 0, number_at, None, null_mut(), flags)
        .map(|()| (interrupt, number))
}

fn connect(node: &Node<'_>, id: u32, number: u32) -> Answer<Handle> {
    let mut remote = null_mut();
    node.api.SCIConnectInterrupt(node.sd, &raw mut remote, id, 0, number, LONG, 0).map(|()| remote)
}

fn connect_data(node: &Node<'_>, id: u32, number: u32) -> Answer<Handle> {
    let mut remote = null_mut();
    node.api
        .SCIConnectDataInterrupt(node.sd, &raw mut remote, id, 0, number, LONG, 0)
        .map(|()| remote)
}

fn send(api: &Api, remote: Handle, bytes: &[u8]) -> Answer<()> {
    let mut copy = bytes.to_vec();
    let len = u32::try_from(bytes.len()).unwrap();
    api.SCITriggerDataInterrupt(remote, copy.as_mut_ptr().cast(), len, 0)
}

fn receive(api: &Api, interrupt: Handle, room: u32, timeout: u32) -> Answer<Vec<u8>> {
    let mut bytes = vec![0; room as usize];
    let mut len = room;
    let at = bytes.as_mut_ptr().cast();
    api.SCIWaitForDataInterrupt(interrupt, at, &raw mut len, timeout, 0)?;
    bytes.truncate(len as usize);
    Ok(bytes)
}

fn wakes(api: &Api) {
    two(
        api,
        |node, cue| {
            let (interrupt, number) = create(&node, Some(42), 0).unwrap();
            assert_eq!(number, 42);
            cue.notify();
            for _ in 0..3 {
                api.SCIWaitForInterrupt(interrupt, LONG, 0).unwrap();
                cue.notify();
            }
            cue.wait();
            api.SCIRemoveInterrupt(interrupt, 0).unwrap();
            node.leave();
        },
        |node, cue| {
            cue.wait();
            let remote = connect(&node, OWNER, 42).unwrap();
            for _ in 0..3 {
                api.SCITriggerInterrupt(remote, 0).unwrap();
                cue.wait();
            }
            api.SCIDisconnectInterrupt(remote, 0).unwrap();
            node.leave();
            cue.notify();
        },
    );
}

fn numbers(api: &Api) {
    let node = Node::join(api, OWNER);
    let (first, a) = create(&node, None, 0).unwrap();
    let (second, b) = create(&node, None, 0).unwrap();
    assert_ne!(a, b);
    assert_eq!(create(&node, Some(a), 0), Err(code::INTNO_USED));
    api.SCIRemoveInterrupt(first, 0).unwrap();
    let (third, c) = create(&node, Some(a), 0).unwrap();
    assert_eq!(c, a);
    for interrupt in [second, third] {
        api.SCIRemoveInterrupt(interrupt, 0).unwrap();
    }
    node.leave();
}

fn kinds(api: &Api) {
    let node = Node::join(api, OWNER);
    let (plain, _) = create(&node, Some(7), 0).unwrap();
    let (data, _) = create_data(&node, Some(7)).unwrap();
    assert_eq!(create_data(&node, Some(7)), Err(code::INTNO_USED));
    assert_eq!(api.SCIRemoveDataInterrupt(plain, 0), Err(code::ILLEGAL_PARAMETER));
    assert_eq!(api.SCIRemoveInterrupt(data, 0), Err(code::ILLEGAL_PARAMETER));
    api.SCIRemoveInterrupt(plain, 0).unwrap();
    api.SCIRemoveDataInterrupt(data, 0).unwrap();
    node.leave();
}

fn absent(api: &Api) {
    let node = Node::join(api, OWNER);
    assert_eq!(connect(&node, OWNER, 1), Err(code::NO_SUCH_SEGMENT));
    assert_eq!(connect(&node, OTHER, 1), Err(code::NO_SUCH_SEGMENT));
    assert_eq!(connect(&node, 6, 1), Err(code::ILLEGAL_NODEID));
    assert_eq!(connect_data(&node, OWNER, 1), Err(code::NO_SUCH_SEGMENT));
    node.leave();
}

/// Triggers an interrupt of the own node five times, and counts its waits.
fn count(api: &Api, flags: u32) -> usize {
    let node = Node::join(api, OWNER);
    let (interrupt, number) = create(&node, None, flags).unwrap();
    let remote = connect(&node, OWNER, number).unwrap();
    for _ in 0..5 {
        api.SCITriggerInterrupt(remote, 0).unwrap();
    }
    let waits = (0..10).take_while(|_| api.SCIWaitForInterrupt(interrupt, 0, 0).is_ok()).count();
    api.SCIDisconnectInterrupt(remote, 0).unwrap();
    api.SCIRemoveInterrupt(interrupt, 0).unwrap();
    node.leave();
    waits
}

fn coalesce(api: &Api) {
    assert_eq!(count(api, 0), 1);
}

fn counting(api: &Api) {
    assert_eq!(count(api, api.flag("COUNTING_INT")), 5);
}

fn shared(api: &Api) {
    let node = Node::join(api, OWNER);
    let flag = api.flag("SHARED_INT");
    let (first, _) = create(&node, Some(9), flag).unwrap();
    let (second, _) = create(&node, Some(9), flag).unwrap();
    let remote = connect(&node, OWNER, 9).unwrap();
    api.SCITriggerInterrupt(remote, 0).unwrap();
    for interrupt in [first, second] {
        api.SCIWaitForInterrupt(interrupt, LONG, 0).unwrap();
        api.SCIRemoveInterrupt(interrupt, 0).unwrap();
    }
    api.SCIDisconnectInterrupt(remote, 0).unwrap();
    node.leave();
}

fn shared_excludes(api: &Api) {
    let node = Node::join(api, OWNER);
    let flag = api.flag("SHARED_INT");
    let (alone, _) = create(&node, Some(9), 0).unwrap();
    assert_eq!(create(&node, Some(9), flag), Err(code::INTNO_USED));
    api.SCIRemoveInterrupt(alone, 0).unwrap();
    let (shared, _) = create(&node, Some(9), flag).unwrap();
    assert_eq!(create(&node, Some(9), 0), Err(code::INTNO_USED));
    api.SCIRemoveInterrupt(shared, 0).unwrap();
    node.leave();
}

unsafe extern "C" fn on_plain(arg: *mut c_void, interrupt: Handle, status: u32) -> u32 {
    // SAFETY: `arg` comes from `told` for this type.
    unsafe { Told::<(usize, u32)>::tell(arg, (interrupt.addr(), status)) }
}

fn callback(api: &Api) {
    let node = Node::join(api, OWNER);
    for action in [CONTINUE, CANCEL] {
        let (arg, calls) = told::<(usize, u32)>(action);
        let (mut interrupt, mut number) = (null_mut(), 0);
        let (at, number_at) = (&raw mut interrupt, &raw mut number);
        let flags = api.flag("USE_CALLBACK");
        api.SCICreateInterrupt(node.sd, at, 0, number_at, Some(on_plain), arg, flags).unwrap();
        assert_eq!(api.SCIWaitForInterrupt(interrupt, 0, 0), Err(code::ILLEGAL_OPERATION));
        let remote = connect(&node, OWNER, number).unwrap();
        for round in 0..5 {
            api.SCITriggerInterrupt(remote, 0).unwrap();
            if action == CONTINUE || round == 0 {
                assert_eq!(calls.recv_timeout(PATIENCE), Ok((interrupt.addr(), 0)));
            }
        }
        api.SCIDisconnectInterrupt(remote, 0).unwrap();
        api.SCIRemoveInterrupt(interrupt, 0).unwrap();
        assert!(calls.try_recv().is_err(), "one call for each trigger");
    }
    node.leave();
}

fn cancelled(api: &Api) {
    let node = Node::join(api, OWNER);
    let (plain, _) = create(&node, None, 0).unwrap();
    let (data, _) = create_data(&node, None).unwrap();
    let (plain_at, data_at) = (plain.addr(), data.addr());
    let handle = std::ptr::without_provenance_mut;
    std::thread::scope(|scope| {
        let first = scope.spawn(move || api.SCIWaitForInterrupt(handle(plain_at), LONG, 0));
        let second = scope.spawn(move || receive(api, handle(data_at), 64, LONG));
        std::thread::sleep(std::time::Duration::from_millis(20));
        api.SCIRemoveInterrupt(plain, 0).unwrap();
        api.SCIRemoveDataInterrupt(data, 0).unwrap();
        let ended = first.join().unwrap();
        assert!(matches!(ended, Err(code::CANCELLED | code::ILLEGAL_PARAMETER)), "{ended:?}");
        let ended = second.join().unwrap();
        assert!(matches!(ended, Err(code::CANCELLED | code::ILLEGAL_PARAMETER)), "{ended:?}");
    });
    node.leave();
}

fn timeout(api: &Api) {
    let node = Node::join(api, OWNER);
    let (plain, _) = create(&node, None, 0).unwrap();
    let (data, _) = create_data(&node, None).unwrap();
    for time in [0, 1, SHORT] {
        assert_eq!(api.SCIWaitForInterrupt(plain, time, 0), Err(code::TIMEOUT));
        assert_eq!(receive(api, data, 64, time), Err(code::TIMEOUT));
    }
    api.SCIRemoveInterrupt(plain, 0).unwrap();
    api.SCIRemoveDataInterrupt(data, 0).unwrap();
    node.leave();
}

fn data(api: &Api) {
    two(
        api,
        |node, cue| {
            let (interrupt, _) = create_data(&node, Some(3)).unwrap();
            cue.notify();
            for len in [0, 1, 50, 256, 4096_u16] {
                let byte = u8::try_from(len % 251).unwrap();
                let expected = vec![byte; usize::from(len)];
                assert_eq!(receive(api, interrupt, 4096, LONG), Ok(expected));
            }
            cue.wait();
            api.SCIRemoveDataInterrupt(interrupt, 0).unwrap();
            node.leave();
        },
        |node, cue| {
            cue.wait();
            let remote = connect_data(&node, OWNER, 3).unwrap();
            for len in [0, 1, 50, 256, 4096_u16] {
                let byte = u8::try_from(len % 251).unwrap();
                send(api, remote, &vec![byte; usize::from(len)]).unwrap();
            }
            assert_eq!(send(api, remote, &[0; 4097]), Err(code::OUT_OF_RANGE));
            api.SCIDisconnectDataInterrupt(remote, 0).unwrap();
            node.leave();
            cue.notify();
        },
    );
}

fn long_data(api: &Api) {
    let node = Node::join(api, OWNER);
    let (interrupt, number) = create_data(&node, None).unwrap();
    let remote = connect_data(&node, OWNER, number).unwrap();
    send(api, remote, &[5; 40]).unwrap();
    let (mut bytes, mut len) = ([0_u8; 64], 39);
    let at = bytes.as_mut_ptr().cast();
    let waited = api.SCIWaitForDataInterrupt(interrupt, at, &raw mut len, LONG, 0);
    assert_eq!((waited, len), (Err(code::OUT_OF_RANGE), 40), "the length that is needed");
    assert_eq!(receive(api, interrupt, len, 0), Ok(vec![5; 40]));
    api.SCIDisconnectDataInterrupt(remote, 0).unwrap();
    api.SCIRemoveDataInterrupt(interrupt, 0).unwrap();
    node.leave();
}

fn full(api: &Api) {
    let node = Node::join(api, OWNER);
    let (interrupt, number) = create_data(&node, None).unwrap();
    let remote = connect_data(&node, OWNER, number).unwrap();
    let mut sent = 0_u32;
    let refused = loop {
        match send(api, remote, &sent.to_le_bytes()) {
            Ok(()) => sent += 1,
            Err(code) => break code,
        }
    };
    assert_eq!(refused, code::NOSPC);
    assert!(sent >= 2, "{sent} in the queue");
    for n in 0..sent {
        assert_eq!(receive(api, interrupt, 64, 0), Ok(n.to_le_bytes().to_vec()));
    }
    send(api, remote, b"again").unwrap();
    assert_eq!(receive(api, interrupt, 64, 0), Ok(b"again".to_vec()));
    api.SCIDisconnectDataInterrupt(remote, 0).unwrap();
    api.SCIRemoveDataInterrupt(interrupt, 0).unwrap();
    node.leave();
}

/// Number of threads, each with a connection, that trigger one interrupt.
const SENDERS: u8 = 4;
/// Number of triggers of each.
const EACH: usize = 500;

/// Sends once the queue has room.
fn send_patiently(api: &Api, remote: Handle, bytes: &[u8]) {
    while send(api, remote, bytes) == Err(code::NOSPC) {
        std::thread::yield_now();
    }
}

fn many(api: &Api) {
    let node = Node::join(api, OWNER);
    let (interrupt, number) = create_data(&node, None).unwrap();
    let sd = node.sd.addr();
    std::thread::scope(|scope| {
        for sender in 0..SENDERS {
            scope.spawn(move || {
                let node = Node { api, sd: std::ptr::without_provenance_mut(sd) };
                let remote = connect_data(&node, OWNER, number).unwrap();
                (0..EACH).for_each(|_| send_patiently(api, remote, &[sender; 8]));
                api.SCIDisconnectDataInterrupt(remote, 0).unwrap();
            });
        }
        let mut counts = [0; SENDERS as usize];
        for _ in 0..usize::from(SENDERS) * EACH {
            let bytes = receive(api, interrupt, 64, LONG).unwrap();
            assert_eq!(bytes, [bytes[0]; 8]);
            counts[usize::from(bytes[0])] += 1;
        }
        assert_eq!(counts, [EACH; SENDERS as usize]);
    });
    api.SCIRemoveDataInterrupt(interrupt, 0).unwrap();
    node.leave();
}

unsafe extern "C" fn on_data(
    arg: *mut c_void,
    interrupt: Handle,
    data: *mut c_void,
    length: u32,
    status: u32,
) -> u32 {
    assert_eq!(status, 0);
    // SAFETY: the library passes that many bytes.
    let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length as usize) };
    // SAFETY: `arg` comes from `told` for this type.
    unsafe { Told::<(usize, Vec<u8>)>::tell(arg, (interrupt.addr(), bytes.to_vec())) }
}

fn data_callback(api: &Api) {
    let node = Node::join(api, OWNER);
    let (arg, calls) = told::<(usize, Vec<u8>)>(CONTINUE);
    let (mut interrupt, mut number) = (null_mut(), 0);
    let (at, number_at) = (&raw mut interrupt, &raw mut number);
    let flags = api.flag("USE_CALLBACK");
    api.SCICreateDataInterrupt(node.sd, at, 0, number_at, Some(on_data), arg, flags).unwrap();
    let remote = connect_data(&node, OWNER, number).unwrap();
    for n in 0..20_u8 {
        send(api, remote, &vec![n; usize::from(n)]).unwrap();
    }
    for n in 0..20_u8 {
        let call = calls.recv_timeout(PATIENCE).unwrap();
        assert_eq!(call, (interrupt.addr(), vec![n; usize::from(n)]));
    }
    api.SCIDisconnectDataInterrupt(remote, 0).unwrap();
    api.SCIRemoveDataInterrupt(interrupt, 0).unwrap();
    node.leave();
}

fn dead_owner(api: &Api) {
    two_with_kill(
        api,
        |node, cue, other| {
            cue.wait();
            let plain = connect(&node, OTHER, 1).unwrap();
            let data = connect_data(&node, OTHER, 1).unwrap();
            other.kill();
            crate::rig::until_gone(other);
            assert_eq!(api.SCITriggerInterrupt(plain, 0), Err(code::NOT_CONNECTED));
            assert_eq!(send(api, data, b"x"), Err(code::NOT_CONNECTED));
            api.SCIDisconnectInterrupt(plain, 0).unwrap();
            api.SCIDisconnectDataInterrupt(data, 0).unwrap();
            node.leave();
        },
        |node, cue| {
            create(&node, Some(1), 0).unwrap();
            create_data(&node, Some(1)).unwrap();
            cue.notify();
            sleep_for_ever();
        },
    );
}

fn removed(api: &Api) {
    let node = Node::join(api, OWNER);
    let (interrupt, number) = create(&node, None, 0).unwrap();
    let remote = connect(&node, OWNER, number).unwrap();
    api.SCIRemoveInterrupt(interrupt, 0).unwrap();
    assert_eq!(api.SCITriggerInterrupt(remote, 0), Err(code::NOT_CONNECTED));
    api.SCIDisconnectInterrupt(remote, 0).unwrap();
    node.leave();
}

fn shared_elsewhere(api: &Api) {
    let flag = api.flag("SHARED_INT");
    two(
        api,
        |node, cue| {
            let (interrupt, _) = create(&node, Some(11), flag).unwrap();
            cue.meet();
            let remote = connect(&node, OWNER, 11).unwrap();
            api.SCITriggerInterrupt(remote, 0).unwrap();
            api.SCIWaitForInterrupt(interrupt, LONG, 0).unwrap();
            cue.wait();
            api.SCIDisconnectInterrupt(remote, 0).unwrap();
            api.SCIRemoveInterrupt(interrupt, 0).unwrap();
            node.leave();
        },
        |node, cue| {
            node.leave();
            let same = Node::join(api, OWNER);
            cue.wait();
            let (interrupt, _) = create(&same, Some(11), flag).unwrap();
            cue.notify();
            api.SCIWaitForInterrupt(interrupt, LONG, 0).unwrap();
            cue.notify();
            api.SCIRemoveInterrupt(interrupt, 0).unwrap();
            same.leave();
        },
    );
}

fn counting_connection(api: &Api) {
    let node = Node::join(api, OWNER);
    let counting = api.flag("COUNTING_INT");
    let (interrupt, number) = create(&node, None, counting).unwrap();
    let mut remote = null_mut();
    let at = &raw mut remote;
    api.SCIConnectInterrupt(node.sd, at, OWNER, 0, number, LONG, counting).unwrap();
    for _ in 0..3 {
        api.SCITriggerInterrupt(remote, 0).unwrap();
    }
    let waits = (0..5).take_while(|_| api.SCIWaitForInterrupt(interrupt, 0, 0).is_ok()).count();
    assert_eq!(waits, 3);
    api.SCIDisconnectInterrupt(remote, 0).unwrap();
    api.SCIRemoveInterrupt(interrupt, 0).unwrap();
    node.leave();
}

fn other_flags(api: &Api) {
    let node = Node::join(api, OWNER);
    for name in ["CONDITIONAL_INTERRUPT", "SHARE_EXTERNAL"] {
        assert_eq!(create(&node, None, api.flag(name)), Err(code::ILLEGAL_FLAG), "{name}");
    }
    let (mut interrupt, mut number) = (null_mut(), 0);
    let (at, number_at, none) = (&raw mut interrupt, &raw mut number, null_mut());
    let shared = api.flag("SHARED_INT");
    let made = api.SCICreateDataInterrupt(node.sd, at, 0, number_at, None, none, shared);
    assert_eq!(made, Err(code::ILLEGAL_FLAG), "data has one receiver");
    node.leave();
}

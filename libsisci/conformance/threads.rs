// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Calls of several threads of one process at once.
#![expect(unsafe_code, reason = "callbacks")]

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Barrier;
use std::thread::ThreadId;
use std::time::Duration;

use crate::api::{Answer, Api, Case, Handle};
use crate::rig::{
    CONNECT, CONTINUE, DISCONNECT, DONE, LONG, Node, OWNER, PATIENCE, SEQ_OK, Told, code, open,
    told, two,
};

pub(crate) const CASES: &[Case] = &[
    ("threads make, connect and remove segments", segments),
    ("one of many threads gets an id", one_id),
    ("AUTO_ID gives each thread an id of its own", auto_ids),
    ("threads copy to parts of one map", copies),
    ("threads have sequences on one map", sequences),
    ("threads connect to another process", connections),
    ("each counted trigger wakes one thread", counted),
    ("each datum reaches one thread", data),
    ("each event reaches one thread", events),
    ("a removal wakes all threads that wait", removal_wakes),
    ("threads transfer with queues of their own", queues),
    ("threads share a queue", one_queue),
    ("an abort of another thread ends a transfer", abort),
    ("callbacks come from one thread of the library", callback_thread),
    ("threads initialize and terminate", initialize),
    ("threads open and close descriptors", descriptors),
    ("one of many removals of an object succeeds", one_removal),
];

/// Number of threads of a case.
const THREADS: u32 = 4;
/// Number of rounds of each thread.
const ROUNDS: u32 = 100;

/// Runs `body` in several threads at once, each with its number, and returns their results.
fn crowd<T: Send>(api: &Api, sd: Handle, body: impl Fn(Node<'_>, u32) -> T + Sync) -> Vec<T> {
    let (start, sd) = (Barrier::new(THREADS as usize), sd.addr());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|n| {
                let (body, start) = (&body, &start);
                scope.spawn(move || {
                    start.wait();
                    body(Node { api, sd: without_provenance_mut(sd) }, n)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn segments(api: &Api) {
    let node = Node::join(api, OWNER);
    crowd(api, node.sd, |node, n| {
        for round in 0..ROUNDS {
            let segment = node.export(n, 4096, 0);
            let remote = node.connect(OWNER, n).unwrap();
            let (local, view) =
                (node.map_local(segment, 0, 64).unwrap(), node.map(remote, 0, 64).unwrap());
            view.store(8, round);
            assert_eq!(local.load(8), round);
            for map in [local.map, view.map] {
                api.SCIUnmapSegment(map, 0).unwrap();
            }
            api.SCIDisconnectSegment(remote, 0).unwrap();
            api.SCIRemoveSegment(segment, 0).unwrap();
        }
    });
    node.leave();
}

fn one_id(api: &Api) {
    let node = Node::join(api, OWNER);
    for _ in 0..ROUNDS {
        let made = crowd(api, node.sd, |node, _| node.create(1, 64, 0).map(|made| made.addr()));
        let won: Vec<usize> = made.iter().filter_map(|made| made.ok()).collect();
        assert_eq!(won.len(), 1, "{made:?}");
        assert!(made.iter().all(|made| made.is_ok() || *made == Err(code::SEGMENTID_USED)));
        api.SCIRemoveSegment(without_provenance_mut(won[0]), 0).unwrap();
    }
    node.leave();
}

fn auto_ids(api: &Api) {
    let node = Node::join(api, OWNER);
    let auto = api.flag("AUTO_ID");
    let made = crowd(api, node.sd, |node, _| {
        let make = |_| node.create(100, 64, auto).map(|made| made.addr()).unwrap();
        (0..8).map(make).collect::<Vec<usize>>()
    });
    let made: Vec<Handle> = made.into_iter().flatten().map(without_provenance_mut).collect();
    let ids: BTreeSet<u32> =
        made.iter().map(|segment| api.ask("SCIGetLocalSegmentId", *segment)).collect();
    assert_eq!(ids.len(), made.len(), "each id once: {ids:?}");
    for segment in made {
        api.SCIRemoveSegment(segment, 0).unwrap();
    }
    node.leave();
}

fn copies(api: &Api) {
    const PART: usize = 8192;
    let node = Node::join(api, OWNER);
    let size = PART * THREADS as usize;
    let segment = node.export(1, size, 0);
    let remote = node.connect(OWNER, 1).unwrap();
    let view = node.map(remote, 0, size).unwrap();
    let map = view.map.addr();
    crowd(api, node.sd, |_, n| {
        for round in 0..ROUNDS {
            let byte = u8::try_from((n * ROUNDS + round) % 251).unwrap();
            let (mut from, mut to) = ([byte; PART], [0_u8; PART]);
            let (map, offset) = (without_provenance_mut(map), PART * n as usize);
            let at = from.as_mut_ptr().cast();
            api.SCIMemCpy(null_mut(), at, map, offset, PART, 0).unwrap();
            let (at, read) = (to.as_mut_ptr().cast(), api.flag("BLOCK_READ"));
            api.SCIMemCpy(null_mut(), at, map, offset, PART, read).unwrap();
            assert!(from == to, "bytes of another thread");
        }
    });
    api.SCIUnmapSegment(view.map, 0).unwrap();
    api.SCIDisconnectSegment(remote, 0).unwrap();
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn sequences(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.export(1, 4096, 0);
    let remote = node.connect(OWNER, 1).unwrap();
    let view = node.map(remote, 0, 4096).unwrap();
    let map = view.map.addr();
    crowd(api, node.sd, |_, _| {
        for _ in 0..ROUNDS {
            let mut sequence = null_mut();
            api.SCICreateMapSequence(without_provenance_mut(map), &raw mut sequence, 0).unwrap();
            assert_eq!(api.SCIStartSequence(sequence, 0), Ok(SEQ_OK));
            assert_eq!(api.SCICheckSequence(sequence, 0), Ok(SEQ_OK));
            let unmapped = api.SCIUnmapSegment(without_provenance_mut(map), 0);
            assert_eq!(unmapped, Err(code::BUSY));
            api.SCIRemoveSequence(sequence, 0).unwrap();
        }
    });
    api.SCIUnmapSegment(view.map, 0).unwrap();
    api.SCIDisconnectSegment(remote, 0).unwrap();
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn connections(api: &Api) {
    two(
        api,
        |node, cue| {
            let segment = node.export(1, 4096, 0);
            cue.meet();
            api.SCIRemoveSegment(segment, 0).unwrap();
            node.leave();
        },
        |node, cue| {
            cue.wait();
            crowd(api, node.sd, |node, _| {
                for _ in 0..ROUNDS {
                    let remote = node.connect(OWNER, 1).unwrap();
                    assert_eq!(api.ask::<usize>("SCIGetRemoteSegmentSize", remote), 4096);
                    api.SCIDisconnectSegment(remote, 0).unwrap();
                }
            });
            node.leave();
            cue.notify();
        },
    );
}

/// Makes an interrupt of the own node and connects to it.
fn interrupt(node: &Node<'_>, flags: u32) -> (Handle, Handle) {
    let (mut interrupt, mut remote, mut number) = (null_mut(), null_mut(), 0);
    let (at, number_at) = (&raw mut interrupt, &raw mut number);
    let api = node.api;
    api.SCICreateInterrupt(node.sd, at, 0, number_at, None, null_mut(), flags).unwrap();
    api.SCIConnectInterrupt(node.sd, &raw mut remote, OWNER, 0, number, LONG, 0).unwrap();
    (interrupt, remote)
}

fn end_interrupt(api: &Api, (interrupt, remote): (Handle, Handle)) {
    api.SCIDisconnectInterrupt(remote, 0).unwrap();
    api.SCIRemoveInterrupt(interrupt, 0).unwrap();
}

fn counted(api: &Api) {
    let node = Node::join(api, OWNER);
    let pair = interrupt(&node, api.flag("COUNTING_INT"));
    let (local, remote) = (pair.0.addr(), pair.1.addr());
    crowd(api, node.sd, |_, _| {
        for _ in 0..ROUNDS {
            api.SCITriggerInterrupt(without_provenance_mut(remote), 0).unwrap();
            api.SCIWaitForInterrupt(without_provenance_mut(local), LONG, 0).unwrap();
        }
    });
    assert_eq!(api.SCIWaitForInterrupt(pair.0, 0, 0), Err(code::TIMEOUT), "one wait a trigger");
    end_interrupt(api, pair);
    node.leave();
}

fn data(api: &Api) {
    let node = Node::join(api, OWNER);
    let (mut interrupt, mut remote, mut number) = (null_mut(), null_mut(), 0);
    let (at, number_at, none) = (&raw mut interrupt, &raw mut number, null_mut());
    api.SCICreateDataInterrupt(node.sd, at, 0, number_at, None, none, 0).unwrap();
    api.SCIConnectDataInterrupt(node.sd, &raw mut remote, OWNER, 0, number, LONG, 0).unwrap();
    let (local, far) = (interrupt.addr(), remote.addr());
    let got = crowd(api, node.sd, |_, n| {
        let receive = |round: u32| {
            let mut word = (n * ROUNDS + round).to_le_bytes();
            let (at, far) = (word.as_mut_ptr().cast(), without_provenance_mut(far));
            while api.SCITriggerDataInterrupt(far, at, 4, 0) == Err(code::NOSPC) {
                std::thread::yield_now();
            }
            let (at, mut len) = (word.as_mut_ptr().cast(), 4);
            let local = without_provenance_mut(local);
            api.SCIWaitForDataInterrupt(local, at, &raw mut len, LONG, 0).unwrap();
            assert_eq!(len, 4);
            u32::from_le_bytes(word)
        };
        (0..ROUNDS).map(receive).collect::<Vec<u32>>()
    });
    let mut got: Vec<u32> = got.into_iter().flatten().collect();
    got.sort_unstable();
    assert!(got.into_iter().eq(0..THREADS * ROUNDS), "each datum once");
    api.SCIDisconnectDataInterrupt(remote, 0).unwrap();
    api.SCIRemoveDataInterrupt(interrupt, 0).unwrap();
    node.leave();
}

fn events(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.export(1, 64, 0);
    let at = segment.addr();
    let reasons = crowd(api, node.sd, |node, _| {
        let segment = without_provenance_mut(at);
        let round = |_| {
            let remote = node.connect(OWNER, 1).unwrap();
            api.SCIDisconnectSegment(remote, 0).unwrap();
            [node.event(segment, LONG).unwrap().0, node.event(segment, LONG).unwrap().0]
        };
        (0..4).map(round).collect::<Vec<[u32; 2]>>()
    });
    let reasons: Vec<u32> = reasons.into_iter().flatten().flatten().collect();
    for reason in [CONNECT, DISCONNECT] {
        let count = reasons.iter().filter(|seen| **seen == reason).count();
        assert_eq!(count, reasons.len() / 2, "{reasons:?}");
    }
    assert_eq!(node.event(segment, 0), Err(code::TIMEOUT));
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

/// Whether a wait has ended because its object was removed.
fn is_cancelled<T>(ended: &Answer<T>) -> bool {
    matches!(ended, Err(code::CANCELLED | code::ILLEGAL_PARAMETER))
}

fn removal_wakes(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.export(1, 64, 0);
    let pair = interrupt(&node, 0);
    let (segment_at, local, sd) = (segment.addr(), pair.0.addr(), node.sd);
    std::thread::scope(|scope| {
        let sd = sd.addr();
        let waits = scope.spawn(move || {
            let node = Node { api, sd: without_provenance_mut(sd) };
            crowd(api, node.sd, |node, n| {
                if n % 2 == 0 {
                    is_cancelled(&node.event(without_provenance_mut(segment_at), LONG))
                } else {
                    is_cancelled(&api.SCIWaitForInterrupt(without_provenance_mut(local), LONG, 0))
                }
            })
        });
        std::thread::sleep(Duration::from_millis(20));
        end_interrupt(api, pair);
        api.SCIRemoveSegment(segment, 0).unwrap();
        assert_eq!(waits.join().unwrap(), [true; THREADS as usize]);
    });
    node.leave();
}

/// Segments of a transfer inside of the own node.
struct Ends {
    local: Handle,
    target: Handle,
    remote: Handle,
}

impl Ends {
    fn new(node: &Node<'_>, id: u32, size: usize) -> Ends {
        let local = node.create(2 * id, size, 0).unwrap();
        node.api.SCIPrepareSegment(local, 0, 0).unwrap();
        let target = node.export(2 * id + 1, size, 0);
        Ends { local, target, remote: node.connect(OWNER, 2 * id + 1).unwrap() }
    }

    fn start(&self, api: &Api, queue: Handle, size: usize, flags: u32) -> Answer<()> {
        let (local, remote) = (self.local, self.remote);
        api.SCIStartDmaTransfer(queue, local, remote, 0, size, 0, None, null_mut(), flags)
    }

    fn end(self, api: &Api) {
        api.SCIDisconnectSegment(self.remote, 0).unwrap();
        for segment in [self.local, self.target] {
            api.SCIRemoveSegment(segment, 0).unwrap();
        }
    }
}

fn new_queue(node: &Node<'_>) -> Handle {
    let mut queue = null_mut();
    node.api.SCICreateDMAQueue(node.sd, &raw mut queue, 0, 4, 0).unwrap();
    queue
}

fn queues(api: &Api) {
    let node = Node::join(api, OWNER);
    crowd(api, node.sd, |node, n| {
        let (ends, queue) = (Ends::new(&node, n, 65_536), new_queue(&node));
        let (from, to) = (
            node.map_local(ends.local, 0, 65_536).unwrap(),
            node.map_local(ends.target, 0, 65_536).unwrap(),
        );
        for round in 0..ROUNDS {
            from.store(65_532, n * ROUNDS + round);
            let wait = if round % 2 == 0 { 0 } else { api.flag("DMA_WAIT") };
            ends.start(api, queue, 65_536, wait).unwrap();
            assert_eq!(api.SCIWaitForDMAQueue(queue, LONG, 0), Ok(DONE));
            assert_eq!(to.load(65_532), n * ROUNDS + round);
        }
        for map in [from.map, to.map] {
            api.SCIUnmapSegment(map, 0).unwrap();
        }
        api.SCIRemoveDMAQueue(queue, 0).unwrap();
        ends.end(api);
    });
    node.leave();
}

fn one_queue(api: &Api) {
    let node = Node::join(api, OWNER);
    let (ends, queue) = (Ends::new(&node, 1, 1 << 20), new_queue(&node));
    let (local, remote, at) = (ends.local.addr(), ends.remote.addr(), queue.addr());
    let started = crowd(api, node.sd, |_, _| {
        let ends = Ends {
            local: without_provenance_mut(local),
            target: null_mut(),
            remote: without_provenance_mut(remote),
        };
        let queue = without_provenance_mut(at);
        let start = |_: &u32| match ends.start(api, queue, 1 << 20, 0) {
            Ok(()) => true,
            refused => {
                assert_eq!(refused, Err(code::ILLEGAL_OPERATION), "another transfer");
                false
            }
        };
        let started = (0..ROUNDS).filter(start).count();
        assert_eq!(api.SCIWaitForDMAQueue(queue, LONG, 0), Ok(DONE));
        started
    });
    assert!(started.iter().sum::<usize>() > 0, "{started:?}");
    api.SCIRemoveDMAQueue(queue, 0).unwrap();
    ends.end(api);
    node.leave();
}

fn abort(api: &Api) {
    const SIZE: usize = 64 << 20;
    /// `SCI_DMAQUEUE_ABORTED`
    const ABORTED: u32 = 4;
    let node = Node::join(api, OWNER);
    let (ends, queue) = (Ends::new(&node, 1, SIZE), new_queue(&node));
    let at = queue.addr();
    ends.start(api, queue, SIZE, 0).unwrap();
    let aborted = std::thread::scope(|scope| {
        let thread = scope.spawn(move || api.SCIAbortDMAQueue(without_provenance_mut(at), 0));
        thread.join().unwrap()
    });
    let state = api.SCIWaitForDMAQueue(queue, LONG, 0).unwrap();
    match aborted {
        Ok(()) => assert!([ABORTED, DONE].contains(&state), "{state}"),
        Err(late) => assert_eq!((late, state), (code::ILLEGAL_OPERATION, DONE)),
    }
    ends.start(api, queue, 4096, 0).unwrap();
    assert_eq!(api.SCIWaitForDMAQueue(queue, LONG, 0), Ok(DONE), "after an abort");
    api.SCIRemoveDMAQueue(queue, 0).unwrap();
    ends.end(api);
    node.leave();
}

unsafe extern "C" fn on_plain(arg: *mut c_void, _interrupt: Handle, _status: u32) -> u32 {
    // SAFETY: `arg` comes from `told` for this type.
    unsafe { Told::<ThreadId>::tell(arg, std::thread::current().id()) }
}

fn callback_thread(api: &Api) {
    let node = Node::join(api, OWNER);
    let (arg, calls) = told::<ThreadId>(CONTINUE);
    let (mut interrupt, mut remote, mut number) = (null_mut(), null_mut(), 0);
    let (at, number_at, flags) = (&raw mut interrupt, &raw mut number, api.flag("USE_CALLBACK"));
    api.SCICreateInterrupt(node.sd, at, 0, number_at, Some(on_plain), arg, flags).unwrap();
    api.SCIConnectInterrupt(node.sd, &raw mut remote, OWNER, 0, number, LONG, 0).unwrap();
    let mut callers = Vec::new();
    for _ in 0..5 {
        api.SCITriggerInterrupt(remote, 0).unwrap();
        callers.push(calls.recv_timeout(PATIENCE).unwrap());
    }
    assert!(callers.iter().all(|caller| *caller == callers[0]), "{callers:?}");
    assert_ne!(callers[0], std::thread::current().id());
    end_interrupt(api, (interrupt, remote));
    node.leave();
}

fn initialize(api: &Api) {
    let node = Node::join(api, OWNER);
    crowd(api, node.sd, |_, _| {
        for _ in 0..ROUNDS {
            api.SCIInitialize(0).unwrap();
            api.terminate();
        }
    });
    node.leave();
}

fn descriptors(api: &Api) {
    let node = Node::join(api, OWNER);
    crowd(api, node.sd, |_, n| {
        for _ in 0..ROUNDS {
            let own = Node { api, sd: open(api).unwrap() };
            let segment = own.create(n, 64, 0).unwrap();
            assert_eq!(api.SCIClose(own.sd, 0), Err(code::BUSY));
            api.SCIRemoveSegment(segment, 0).unwrap();
            api.SCIClose(own.sd, 0).unwrap();
        }
    });
    node.leave();
}

fn one_removal(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.export(1, 4096, 0);
    let remote = node.connect(OWNER, 1).unwrap();
    let view = node.map(remote, 0, 4096).unwrap();
    type End = fn(&Api, Handle) -> Answer<()>;
    let ends: [(&str, End); 8] = [
        ("SCIClose", |api, handle| api.SCIClose(handle, 0)),
        ("SCIRemoveSegment", |api, handle| api.SCIRemoveSegment(handle, 0)),
        ("SCIDisconnectSegment", |api, handle| api.SCIDisconnectSegment(handle, 0)),
        ("SCIUnmapSegment", |api, handle| api.SCIUnmapSegment(handle, 0)),
        ("SCIRemoveSequence", |api, handle| api.SCIRemoveSequence(handle, 0)),
        ("SCIRemoveDMAQueue", |api, handle| api.SCIRemoveDMAQueue(handle, 0)),
        ("SCIRemoveInterrupt", |api, handle| api.SCIRemoveInterrupt(handle, 0)),
        ("SCIDisconnectInterrupt", |api, handle| api.SCIDisconnectInterrupt(handle, 0)),
    ];
    let make = |_| {
        let mut sequence = null_mut();
        api.SCICreateMapSequence(view.map, &raw mut sequence, 0).unwrap();
        let (local, far) = interrupt(&node, 0);
        [
            open(api).unwrap(),
            node.create(7, 64, api.flag("PRIVATE")).unwrap(),
            node.connect(OWNER, 1).unwrap(),
            node.map(remote, 0, 64).unwrap().map,
            sequence,
            new_queue(&node),
            local,
            far,
        ]
        .map(Handle::addr)
    };
    let objects: Vec<[usize; 8]> = (0..ROUNDS).map(make).collect();
    for (i, (name, end)) in ends.iter().enumerate() {
        // A thread whose removal fails is faster, so it meets the others at the next object.
        let ended = crowd(api, node.sd, |_, _| {
            let ends = |object: &&[usize; 8]| end(api, without_provenance_mut(object[i])).is_ok();
            objects.iter().filter(ends).count()
        });
        assert_eq!(ended.iter().sum::<usize>(), objects.len(), "{name}: {ended:?}");
    }
    api.SCIUnmapSegment(view.map, 0).unwrap();
    api.SCIDisconnectSegment(remote, 0).unwrap();
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

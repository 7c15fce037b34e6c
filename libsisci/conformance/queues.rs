// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! DMA queues.
#![expect(unsafe_code, reason = "callbacks")]

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use crate::api::{Answer, Api, Case, Handle, PlainFunction};
use crate::rig::{
    CONTINUE, DONE, GATHER, IDLE, INFINITE, LONG, Node, OTHER, OWNER, PATIENCE, POSTED, SHORT,
    Told, View, code, sleep_for_ever, told, two_with_kill,
};

pub(crate) const CASES: &[Case] = &[
    ("a transfer writes, another reads", both_ways),
    ("DMA_WAIT returns at the end", wait_flag),
    ("a vector moves its parts", vector),
    ("a vector has limits", vector_limits),
    ("a callback tells the end", callback),
    ("a removed queue calls no callback", removed),
    ("transfers from memory of the program", user_memory),
    ("wrong offsets and sizes are refused", wrong_ranges),
    ("an unprepared segment is refused", unprepared),
    ("enqueue, post and reset", chain),
    ("states without a transfer", states),
    ("a segment in a transfer is busy", in_use),
    ("a transfer to a lost segment fails", lost),
    ("modes of a queue have no effect", modes),
    ("a vector reads", vector_reads),
    ("memory of the program is read to", user_memory_reads),
    ("enqueued transfers read, and call back", chain_reads),
    ("a broadcast transfer reaches a group", broadcast),
    ("a short transfer ends before its start returns", short),
    ("transfers of several queues are waited for in any order", any_order),
    ("a program that polls sees the end", polled),
];

const SIZE: usize = 8 << 20;

struct Bed<'a> {
    node: Node<'a>,
    api: &'a Api,
    queue: Handle,
    local: Handle,
    target: Handle,
    remote: Handle,
    from: View,
    to: View,
}

impl<'a> Bed<'a> {
    fn new(api: &'a Api) -> Bed<'a> {
        let node = Node::join(api, OWNER);
        let local = node.create(1, SIZE, 0).unwrap();
        api.SCIPrepareSegment(local, 0, api.flag("DMA_SOURCE_ONLY")).unwrap();
        let target = node.export(2, SIZE, 0);
        let remote = node.connect(OWNER, 2).unwrap();
        let (from, to) =
            (node.map_local(local, 0, SIZE).unwrap(), node.map_local(target, 0, SIZE).unwrap());
        let mut queue = null_mut();
        api.SCICreateDMAQueue(node.sd, &raw mut queue, 0, 16, 0).unwrap();
        Bed { node, api, queue, local, target, remote, from, to }
    }

    fn start(&self, from: usize, size: usize, to: usize, flags: u32) -> Answer<()> {
        self.start_with((from, size, to), None, null_mut(), flags)
    }

    fn start_with(
        &self,
        (from, size, to): (usize, usize, usize),
        callback: PlainFunction,
        arg: *mut c_void,
        flags: u32,
    ) -> Answer<()> {
        let (queue, local, remote) = (self.queue, self.local, self.remote);
        self.api.SCIStartDmaTransfer(queue, local, remote, from, size, to, callback, arg, flags)
    }

    fn done(&self) {
        assert_eq!(self.api.SCIWaitForDMAQueue(self.queue, LONG, 0), Ok(DONE));
    }

    fn end(self) {
        let api = self.api;
        api.SCIRemoveDMAQueue(self.queue, 0).unwrap();
        for view in [self.from, self.to] {
            api.SCIUnmapSegment(view.map, 0).unwrap();
        }
        api.SCIDisconnectSegment(self.remote, 0).unwrap();
        for segment in [self.local, self.target] {
            api.SCIRemoveSegment(segment, 0).unwrap();
        }
        self.node.leave();
    }
}

fn both_ways(api: &Api) {
    let bed = Bed::new(api);
    bed.from.store(8, 11);
    bed.from.store(SIZE - 4, 12);
    bed.start(0, SIZE, 0, 0).unwrap();
    bed.done();
    assert_eq!((bed.to.load(8), bed.to.load(SIZE - 4)), (11, 12));
    bed.to.store(64, 13);
    bed.start(128, 4, 64, api.flag("DMA_READ")).unwrap();
    bed.done();
    assert_eq!(bed.from.load(128), 13);
    bed.end();
}

fn wait_flag(api: &Api) {
    let bed = Bed::new(api);
    bed.from.store(0, 7);
    bed.start(0, 4, 16, api.flag("DMA_WAIT")).unwrap();
    assert_eq!(bed.to.load(16), 7);
    assert_eq!(api.ask::<u32>("SCIDMAQueueState", bed.queue), DONE);
    bed.end();
}

fn vector(api: &Api) {
    let bed = Bed::new(api);
    let parts: Vec<[u32; 4]> = (0..8).map(|n| [4, n * 64, n * 128, 0]).collect();
    for n in 0..8 {
        bed.from.store(n * 64, 100 + u32::try_from(n).unwrap());
    }
    for flags in [0, api.flag("DMA_WAIT")] {
        let (queue, local, remote) = (bed.queue, bed.local, bed.remote);
        let at = parts.as_ptr();
        api.SCIStartDmaTransferVec(queue, local, remote, 8, at, None, null_mut(), flags).unwrap();
        bed.done();
    }
    for n in 0..8 {
        assert_eq!(bed.to.load(n * 128), 100 + u32::try_from(n).unwrap());
    }
    bed.end();
}

fn vector_limits(api: &Api) {
    let bed = Bed::new(api);
    let parts = vec![[4, 0, 0, 0]; 300];
    let start = |count| {
        let (queue, local, remote) = (bed.queue, bed.local, bed.remote);
        let at = parts.as_ptr();
        api.SCIStartDmaTransferVec(queue, local, remote, count, at, None, null_mut(), 0)
    };
    assert_eq!(start(0), Err(code::ILLEGAL_PARAMETER));
    assert_eq!(start(17), Err(code::MAX_ENTRIES), "more than the entries of the queue");
    assert_eq!(start(300), Err(code::MAX_ENTRIES));
    start(16).unwrap();
    bed.done();
    bed.end();
}

unsafe extern "C" fn on_end(arg: *mut c_void, queue: Handle, status: u32) -> u32 {
    // SAFETY: `arg` comes from `told` for this type.
    unsafe { Told::<(usize, u32)>::tell(arg, (queue.addr(), status)) }
}

fn callback(api: &Api) {
    let bed = Bed::new(api);
    let (arg, calls) = told::<(usize, u32)>(CONTINUE);
    for _ in 0..3 {
        bed.start_with((0, SIZE, 0), Some(on_end), arg, api.flag("USE_CALLBACK")).unwrap();
        assert_eq!(calls.recv_timeout(PATIENCE), Ok((bed.queue.addr(), 0)));
        bed.done();
    }
    bed.end();
}

unsafe extern "C" fn on_end_slowly(arg: *mut c_void, queue: Handle, status: u32) -> u32 {
    std::thread::sleep(Duration::from_millis(SHORT.into()) / 2);
    // SAFETY: the contract of `on_end`.
    unsafe { on_end(arg, queue, status) }
}

fn removed(api: &Api) {
    let bed = Bed::new(api);
    let (arg, calls) = told::<(usize, u32)>(CONTINUE);
    for _ in 0..3 {
        bed.start_with((0, 4, 0), Some(on_end_slowly), arg, api.flag("USE_CALLBACK")).unwrap();
        bed.done();
    }
    bed.end();
    calls.try_iter().for_each(drop);
    let late = calls.recv_timeout(Duration::from_millis((3 * SHORT).into()));
    assert_eq!(late, Err(RecvTimeoutError::Timeout));
}

fn user_memory(api: &Api) {
    let bed = Bed::new(api);
    let mut bytes = vec![9_u8; 4096];
    let at = bytes.as_mut_ptr().cast();
    let flags = api.flag("DMA_USER_MEM");
    let (queue, remote) = (bed.queue, bed.remote);
    api.SCIStartDmaTransferMem(queue, at, remote, 4096, 64, None, null_mut(), flags).unwrap();
    bed.done();
    assert_eq!(bed.to.load(64), 0x0909_0909);
    bed.end();
}

fn wrong_ranges(api: &Api) {
    let bed = Bed::new(api);
    assert_eq!(bed.start(0, 0, 0, 0), Err(code::SIZE_ALIGNMENT));
    for (from, size, to) in
        [(0, SIZE + 4, 0), (SIZE, 4, 0), (0, 4, SIZE), (usize::MAX, 4, 0), (0, usize::MAX, 4)]
    {
        assert_eq!(bed.start(from, size, to, 0), Err(code::OUT_OF_RANGE), "{from} {size} {to}");
    }
    assert_eq!(api.ask::<u32>("SCIDMAQueueState", bed.queue), IDLE);
    bed.end();
}

fn unprepared(api: &Api) {
    let bed = Bed::new(api);
    let segment = bed.node.create(3, 4096, 0).unwrap();
    let (queue, remote) = (bed.queue, bed.remote);
    let started = api.SCIStartDmaTransfer(queue, segment, remote, 0, 4, 0, None, null_mut(), 0);
    assert_eq!(started, Err(code::SEGMENT_NOT_PREPARED));
    api.SCIRemoveSegment(segment, 0).unwrap();
    bed.end();
}

fn chain(api: &Api) {
    let bed = Bed::new(api);
    let (queue, local, remote) = (bed.queue, bed.local, bed.remote);
    let none = null_mut();
    assert_eq!(api.SCIPostDMAQueue(queue, None, none, 0), Err(code::ILLEGAL_OPERATION));
    bed.from.store(0, 31);
    bed.from.store(64, 32);
    assert_eq!(api.SCIEnqueueDMATransfer(queue, local, remote, 0, 256, 4, 0), Ok(GATHER));
    assert_eq!(api.SCIEnqueueDMATransfer(queue, local, remote, 64, 512, 4, 0), Ok(GATHER));
    assert_eq!(bed.start(0, 4, 0, 0), Err(code::ILLEGAL_OPERATION), "while it gathers");
    api.SCIPostDMAQueue(queue, None, none, 0).unwrap();
    bed.done();
    assert_eq!((bed.to.load(256), bed.to.load(512)), (31, 32));
    let again = api.SCIEnqueueDMATransfer(queue, local, remote, 0, 0, 4, 0);
    assert_eq!(again, Err(code::ILLEGAL_OPERATION), "before a reset");
    api.SCIResetDMAQueue(queue, 0).unwrap();
    for _ in 0..16 {
        api.SCIEnqueueDMATransfer(queue, local, remote, 0, 0, 4, 0).unwrap();
    }
    let more = api.SCIEnqueueDMATransfer(queue, local, remote, 0, 0, 4, 0);
    assert_eq!(more, Err(code::MAX_ENTRIES));
    api.SCIResetDMAQueue(queue, 0).unwrap();
    bed.end();
}

fn states(api: &Api) {
    let bed = Bed::new(api);
    assert_eq!(api.ask::<u32>("SCIDMAQueueState", bed.queue), IDLE);
    let waited = api.SCIWaitForDMAQueue(bed.queue, INFINITE, 0);
    assert_eq!(waited, Err(code::ILLEGAL_OPERATION));
    assert_eq!(api.SCIAbortDMAQueue(bed.queue, 0), Err(code::ILLEGAL_OPERATION));
    let mut queue = null_mut();
    let at = &raw mut queue;
    assert_eq!(api.SCICreateDMAQueue(bed.node.sd, at, 0, 0, 0), Err(code::ILLEGAL_PARAMETER));
    assert_eq!(api.SCICreateDMAQueue(bed.node.sd, at, 1, 1, 0), Err(code::NO_SUCH_ADAPTERNO));
    bed.end();
}

fn in_use(api: &Api) {
    let bed = Bed::new(api);
    let (queue, local, remote) = (bed.queue, bed.local, bed.remote);
    api.SCIEnqueueDMATransfer(queue, local, remote, 0, 0, 4, 0).unwrap();
    assert_eq!(api.SCIDisconnectSegment(remote, 0), Err(code::BUSY));
    api.SCIUnmapSegment(bed.from.map, 0).unwrap();
    assert_eq!(api.SCIRemoveSegment(local, 0), Err(code::BUSY));
    let from = bed.node.map_local(local, 0, SIZE).unwrap();
    api.SCIResetDMAQueue(queue, 0).unwrap();
    Bed { from, ..bed }.end();
}

fn lost(api: &Api) {
    two_with_kill(
        api,
        |node, cue, other| {
            let local = node.create(1, 64, 0).unwrap();
            api.SCIPrepareSegment(local, 0, 0).unwrap();
            let mut queue = null_mut();
            api.SCICreateDMAQueue(node.sd, &raw mut queue, 0, 1, 0).unwrap();
            cue.wait();
            let remote = node.connect(OTHER, 1).unwrap();
            other.kill();
            assert!(node.remote_event(remote, LONG).is_ok());
            let started =
                api.SCIStartDmaTransfer(queue, local, remote, 0, 4, 0, None, null_mut(), 0);
            assert_eq!(started, Err(code::SEGMENT_NOT_CONNECTED));
            api.SCIDisconnectSegment(remote, 0).unwrap();
            api.SCIRemoveDMAQueue(queue, 0).unwrap();
            api.SCIRemoveSegment(local, 0).unwrap();
            node.leave();
        },
        |node, cue| {
            node.export(1, 64, 0);
            cue.notify();
            sleep_for_ever();
        },
    );
}

fn modes(api: &Api) {
    let bed = Bed::new(api);
    let names = ["DMA_ADAPTER", "DMA_GLOBAL", "DMA_SYSDMA"];
    for (value, name) in (1..).zip(names) {
        let mut queue = null_mut();
        let flag = api.flag(name);
        api.SCICreateDMAQueue(bed.node.sd, &raw mut queue, 0, 1, flag).unwrap();
        api.SCIRemoveDMAQueue(queue, 0).unwrap();
        bed.from.store(0, value);
        bed.start(0, 4, 0, flag | api.flag("DMA_WAIT")).unwrap();
        assert_eq!(bed.to.load(0), value, "{name}");
    }
    let mut queue = null_mut();
    let physical = api.SCICreateDMAQueue(bed.node.sd, &raw mut queue, 0, 1, api.flag("DMA_PHDMA"));
    assert_eq!(physical, Err(code::FLAG_NOT_IMPLEMENTED));
    bed.end();
}

fn vector_reads(api: &Api) {
    let bed = Bed::new(api);
    bed.to.store(128, 8);
    bed.to.store(512, 9);
    let parts = [[4, 0, 128, 0], [4, 64, 512, 0]];
    let (queue, local, remote) = (bed.queue, bed.local, bed.remote);
    let (at, read) = (parts.as_ptr(), api.flag("DMA_READ"));
    api.SCIStartDmaTransferVec(queue, local, remote, 2, at, None, null_mut(), read).unwrap();
    bed.done();
    assert_eq!((bed.from.load(0), bed.from.load(64)), (8, 9));
    bed.end();
}

fn user_memory_reads(api: &Api) {
    let bed = Bed::new(api);
    bed.to.store(64, 0x0505_0505);
    let mut bytes = [0_u8; 4];
    let at = bytes.as_mut_ptr().cast();
    let flags = api.flag("DMA_USER_MEM") | api.flag("DMA_READ");
    let (queue, remote) = (bed.queue, bed.remote);
    api.SCIStartDmaTransferMem(queue, at, remote, 4, 64, None, null_mut(), flags).unwrap();
    bed.done();
    assert_eq!(bytes, [5; 4]);
    bed.end();
}

fn chain_reads(api: &Api) {
    let bed = Bed::new(api);
    let (queue, local, remote) = (bed.queue, bed.local, bed.remote);
    bed.to.store(256, 77);
    let read = api.flag("DMA_READ");
    assert_eq!(api.SCIEnqueueDMATransfer(queue, local, remote, 8, 256, 4, read), Ok(GATHER));
    let (arg, calls) = told::<(usize, u32)>(CONTINUE);
    api.SCIPostDMAQueue(queue, Some(on_end), arg, api.flag("USE_CALLBACK")).unwrap();
    assert_eq!(calls.recv_timeout(PATIENCE), Ok((queue.addr(), 0)));
    bed.done();
    assert_eq!(bed.from.load(8), 77);
    bed.end();
}

fn broadcast(api: &Api) {
    let bed = Bed::new(api);
    let flag = api.flag("BROADCAST");
    let member = bed.node.export(9, 4096, flag);
    let view = bed.node.map_local(member, 0, 4096).unwrap();
    let group = bed.node.connect_with(252, 9, flag).unwrap();
    bed.from.store(0, 61);
    let (queue, local) = (bed.queue, bed.local);
    api.SCIStartDmaTransfer(queue, local, group, 0, 4, 16, None, null_mut(), flag).unwrap();
    bed.done();
    assert_eq!(view.load(16), 61);
    api.SCIDisconnectSegment(group, 0).unwrap();
    api.SCIUnmapSegment(view.map, 0).unwrap();
    api.SCIRemoveSegment(member, 0).unwrap();
    bed.end();
}

fn short(api: &Api) {
    let bed = Bed::new(api);
    let (arg, calls) = told::<(usize, u32)>(CONTINUE);
    for (size, value) in [(4, 1), (4096, 2)] {
        bed.from.store(size - 4, value);
        bed.start_with((0, size, 0), Some(on_end), arg, api.flag("USE_CALLBACK")).unwrap();
        assert_eq!(api.ask::<u32>("SCIDMAQueueState", bed.queue), DONE);
        assert_eq!(bed.to.load(size - 4), value);
        assert_eq!(calls.recv_timeout(PATIENCE), Ok((bed.queue.addr(), 0)));
        bed.done();
    }
    assert_eq!(api.SCIAbortDMAQueue(bed.queue, 0), Err(code::ILLEGAL_OPERATION), "ended");
    bed.end();
}

fn any_order(api: &Api) {
    const QUEUES: u32 = 8;
    let bed = Bed::new(api);
    let part = SIZE / QUEUES as usize;
    let (arg, calls) = told::<(usize, u32)>(CONTINUE);
    let queues: Vec<Handle> = (0..QUEUES)
        .map(|_| {
            let mut queue = null_mut();
            api.SCICreateDMAQueue(bed.node.sd, &raw mut queue, 0, 1, 0).unwrap();
            queue
        })
        .collect();
    let (local, remote, flags) = (bed.local, bed.remote, api.flag("USE_CALLBACK"));
    for round in 0..10 {
        for (n, queue) in (0..QUEUES).zip(&queues) {
            let at = n as usize * part;
            bed.from.store(at + part - 4, 100 * round + n);
            api.SCIStartDmaTransfer(*queue, local, remote, at, part, at, Some(on_end), arg, flags)
                .unwrap();
        }
        // The thread of the library begins with the first one, this thread with the last one.
        for (n, queue) in (0..QUEUES).zip(&queues).rev() {
            assert_eq!(api.SCIWaitForDMAQueue(*queue, INFINITE, 0), Ok(DONE));
            assert_eq!(bed.to.load((n as usize + 1) * part - 4), 100 * round + n);
        }
        let mut ended: Vec<_> =
            queues.iter().map(|_| calls.recv_timeout(PATIENCE).unwrap()).collect();
        ended.sort_unstable();
        let mut expected: Vec<_> = queues.iter().map(|queue| (queue.addr(), 0)).collect();
        expected.sort_unstable();
        assert_eq!(ended, expected, "one call for each queue");
    }
    for queue in queues {
        api.SCIRemoveDMAQueue(queue, 0).unwrap();
    }
    bed.end();
}

fn polled(api: &Api) {
    let bed = Bed::new(api);
    for value in 1..=20 {
        bed.from.store(SIZE - 4, value);
        bed.start(0, SIZE, 0, 0).unwrap();
        let mut state = POSTED;
        while state == POSTED {
            state = api.ask::<u32>("SCIDMAQueueState", bed.queue);
        }
        assert_eq!((state, bed.to.load(SIZE - 4)), (DONE, value));
    }
    bed.end();
}

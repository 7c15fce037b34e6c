// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Test bed: endpoints of this process with queues of their own, without a domain.

#![expect(unsafe_code, reason = "names the buffers of the tests")]

use libfabric_sys as fi;
use scif::Exports;
use scif::slab::Slab;
use scif_ring::copy::{Mem, total_len};

use crate::base::addr::ADDR_LEN;
use crate::base::atomic_ops::element::AtomicKind;
use crate::base::env::RmaPath;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::peer_conn;
use crate::engine::progress;
use crate::engine::protocols::{posted_write, recv, send};
use crate::engine::tables::srx_state::SrxState;
use crate::engine::types::args::{AtomicArgs, EpConfig, RecvArgs, RmaArgs, RmaIov, SendArgs};
use crate::engine::types::peer_id::PeerId;
use crate::state::av_table::AvState;
use crate::state::completion::{Completion, CqError};
use crate::state::counter::CntrState;
use crate::state::cq_queue::CqState;
use crate::state::fabric::open_node;
use crate::state::mr_table::{MrTable, Region};
use crate::state::waiters::WaitState;

/// Returns a buffer that outlives the test, so that no operation can outlive it.
pub(crate) fn buffer(bytes: Vec<u8>) -> Mem {
    let leaked = bytes.leak();
    // SAFETY: The bytes are leaked, and accessed through this `Mem` only.
    unsafe { Mem::new(leaked.as_mut_ptr(), leaked.len()) }
}

/// Returns the bytes of a buffer.
pub(crate) fn bytes_of(mem: &Mem) -> Vec<u8> {
    let mut bytes = vec![0; mem.len()];
    mem.copy_to_slice(&mut bytes);
    bytes
}

/// Returns the head of a record.
pub(crate) fn head_of(words: &[u64]) -> [u8; scif_ring::HEAD_MAX] {
    let mut head = [0; scif_ring::HEAD_MAX];
    for (to, word) in head.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    head
}

/// Returns the arguments of a sum of 64-bit numbers; callers change the rest.
pub(crate) fn sum_args<'a>(operand: &'a [Mem], rma: &'a [RmaIov]) -> AtomicArgs<'a> {
    AtomicArgs {
        kind: AtomicKind::Write,
        op: fi::FI_SUM,
        datatype: fi::FI_UINT64,
        operand,
        compare: &[],
        result: &[],
        rma,
        dest: 0,
        data: None,
        context: 4,
        flags: fi::FI_COMPLETION,
    }
}

/// Endpoint with the tables that its operations use.
pub(crate) struct Bed {
    pub(crate) ep: Endpoint,
    cqs: Slab<CqState>,
    pub(crate) cntrs: Slab<CntrState>,
    avs: Slab<AvState>,
    mrs: MrTable,
    pub(crate) srxs: Slab<SrxState>,
}

impl Bed {
    /// Opens an endpoint whose configuration `change` adapts.
    pub(crate) fn new(change: impl FnOnce(&mut EpConfig)) -> Bed {
        let node = open_node().unwrap();
        let keys = node.key_table().unwrap();
        let (mut cqs, mut avs, mut cntrs) = (Slab::new(), Slab::new(), Slab::new());
        let cq = cqs.insert(CqState::new(64, WaitState::none()));
        let cntr = cntrs.insert(CntrState::new(WaitState::none()));
        let mut cfg = EpConfig {
            caps: fi::FI_MSG | fi::FI_RMA | fi::FI_ATOMIC,
            tx_size: 4,
            rx_size: 64,
            inject_size: 64,
            av: avs.insert(AvState::default()).unwrap(),
            tx_cq: cq,
            rx_cq: cq,
            cntr_remote_write: cntr,
            rma_event: true,
            source: true,
            directed: true,
            ..EpConfig::default()
        };
        change(&mut cfg);
        let sock = scif::Endpoint::bind(&node, 0, Exports { keys: Some(keys.clone()) }).unwrap();
        let mut ep = Endpoint::new(cfg, sock);
        ep.enabled = true;
        Bed { ep, cqs, cntrs, avs, mrs: MrTable::new(false, false, Some(keys)), srxs: Slab::new() }
    }

    /// Opens two endpoints. Each has the other one at address 0.
    pub(crate) fn pair() -> [Bed; 2] {
        let mut pair = [Bed::new(|_| {}), Bed::new(|_| {})];
        let ids = [1, 0].map(|other: usize| pair[other].ep.links.sock.id());
        for (bed, id) in pair.iter_mut().zip(ids) {
            let av = bed.avs.get_mut(bed.ep.cfg.av).unwrap();
            assert_eq!(av.insert(id, [0; ADDR_LEN], None), Ok(0));
        }
        pair
    }

    /// Calls `work` on the endpoint and what its operations use.
    pub(crate) fn run<R>(&mut self, work: impl FnOnce(&mut Endpoint, &mut Env<'_>) -> R) -> R {
        let Bed { ep, cqs, cntrs, avs, mrs, srxs } = self;
        work(ep, &mut Env { cqs, cntrs, avs, mrs, srxs })
    }

    /// Returns the number of the peer at address 0.
    pub(crate) fn peer(&mut self) -> PeerId {
        self.run(|ep, env| peer_conn::peer_of(ep, env, 0)).unwrap()
    }

    /// Registers memory under key 5 for all accesses.
    pub(crate) fn register(&mut self, iov: &[Mem]) {
        let access = fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE;
        let region = Region { iov, access, requested_key: 5, base: None };
        self.mrs.register(&region).unwrap();
    }

    /// Sends a message of `payload` to address 0.
    pub(crate) fn send(&mut self, payload: &Mem) -> Result<(), i32> {
        let iov = [payload.sub(0, payload.len()).unwrap()];
        let (tag, data, dest, context) = (Some(7), None, 0, 1);
        let args = SendArgs { iov: &iov, tag, data, dest, context, flags: fi::FI_COMPLETION };
        self.run(|ep, env| send::post(ep, env, &args))
    }

    /// Posts a receive for any message with the tag of [`Bed::send`].
    pub(crate) fn recv(&mut self, to: &Mem) {
        let iov = [to.sub(0, to.len()).unwrap()];
        let (src, tag, context) = (fi::FI_ADDR_UNSPEC, Some((7, 0)), 2);
        let args = RecvArgs { iov: &iov, src, tag, context, flags: fi::FI_COMPLETION };
        self.run(|ep, env| recv::post(ep, env, &args)).unwrap();
    }

    /// Returns the next completion or error.
    pub(crate) fn completion(&mut self) -> Option<Result<Completion, CqError>> {
        let cq = self.cqs.get_mut(0).unwrap();
        if let Some(error) = cq.take_error() {
            return Some(Err(error));
        }
        let mut found = None;
        cq.drain(1, |_, c| found = Some(Ok(*c)));
        found
    }
}

/// Polls both endpoints until `ready` returns a value.
pub(crate) fn poll_until<R>(
    pair: &mut [Bed; 2],
    mut ready: impl FnMut(&mut [Bed; 2]) -> Option<R>,
) -> R {
    let begin = std::time::Instant::now();
    loop {
        for bed in &mut *pair {
            bed.run(progress::progress);
        }
        if let Some(found) = ready(pair) {
            return found;
        }
        assert!(begin.elapsed().as_secs() < 300, "waited in vain");
        std::thread::yield_now();
    }
}

/// Returns the next completion of the endpoint at index `at`, whose operation succeeded.
pub(crate) fn completed(pair: &mut [Bed; 2], at: usize) -> Completion {
    poll_until(pair, |pair| pair[at].completion()).unwrap()
}

/// Connects the first endpoint to the second one.
pub(crate) fn connect(pair: &mut [Bed; 2]) {
    let peer = pair[0].peer();
    pair[0].run(|ep, _| peer_conn::tx_conn(ep, peer)).unwrap();
    poll_until(pair, |pair| {
        let conn = pair[0].ep.peers.at(peer).tx?;
        pair[0].ep.links.conn(conn).is_some_and(|c| c.is_up()).then_some(())
    });
}

/// Returns connected endpoints of which the first posts writes by the ring, and memory of `len`
/// bytes of the second one with key 5.
pub(crate) fn posting_pair(len: usize) -> ([Bed; 2], Mem) {
    let mut pair = Bed::pair();
    let memory = buffer(vec![0; len]);
    pair[1].register(&[memory.sub(0, len).unwrap()]);
    connect(&mut pair);
    pair[0].ep.cfg.rma_path = RmaPath::Ring;
    (pair, memory)
}

/// Starts a write of `iov`, with context 3.
pub(crate) fn post_write(bed: &mut Bed, (key, addr): (u64, u64), iov: &[Mem], data: Option<u64>) {
    let rma = [RmaIov { addr, len: total_len(iov), key }];
    let flags = fi::FI_COMPLETION;
    let args = RmaArgs { write: true, iov, rma: &rma, dest: 0, data, context: 3, flags };
    let post = |ep: &mut Endpoint, env: &mut Env<'_>| {
        if posted_write::post_again(ep, env, &args)? {
            return Ok(());
        }
        posted_write::post(ep, env, &args)
    };
    bed.run(post).unwrap();
}

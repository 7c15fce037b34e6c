// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Completion queues through their C interface: entry formats, error entries of every interface
//! version, blocking reads.
#![expect(unsafe_code, reason = "calls thunks as C does")]

use std::time::{Duration, Instant};

use scif::{Exports, PortId};
use scif_ring::copy::Mem;

use super::*;
use crate::domain::{bindings, calls};
use crate::engine::endpoint::Endpoint;
use crate::engine::types::args::{EpConfig, RecvArgs};
use crate::engine::types::wire;

const V1_4: u32 = fi::fi_version(1, 4);
const V1_17: u32 = fi::fi_version(1, 17);
const V2_0: u32 = fi::fi_version(2, 0);

struct CqRig {
    cq: *mut fi::fid_cq,
    index: u32,
    domain: Box<Domain>,
}

impl CqRig {
    fn new(api: u32, attr: fi::fi_cq_attr) -> CqRig {
        let domain = Domain::for_test(api, &fi::fi_domain_attr::default());
        let cq = Cq::open(&domain.shared, &attr, None, ptr::null_mut()).unwrap();
        let index = cq.index;
        CqRig { cq: entry::give(cq), index, domain }
    }

    fn state<R>(&self, f: impl FnOnce(&mut CqState) -> R) -> R {
        f(self.domain.shared.gate.lock().cqs.get_mut(self.index).unwrap())
    }

    fn read<T>(&self, out: &mut [T]) -> isize {
        // SAFETY: an open queue; the tests pass entries of its format.
        unsafe { read(self.cq, out.as_mut_ptr().cast(), out.len()) }
    }

    fn sread(&self, timeout: c_int) -> isize {
        let mut context = 0usize;
        // SAFETY: an open queue with the smallest entries, and space for one.
        unsafe { sread(self.cq, (&raw mut context).cast(), 1, ptr::null(), timeout) }
    }
}

impl Drop for CqRig {
    fn drop(&mut self) {
        // SAFETY: an open queue, not used afterwards.
        assert_eq!(unsafe { close(self.cq.cast()) }, 0);
    }
}

fn attr(format: fi::fi_cq_format, wait_obj: fi::fi_wait_obj) -> fi::fi_cq_attr {
    fi::fi_cq_attr { format, wait_obj, ..fi::fi_cq_attr::default() }
}

fn completion(n: usize) -> Completion {
    Completion { context: n, flags: 2, len: 3, buf: 4, data: 5, tag: 6, src: 7 }
}

fn failure(err_data: &[u8]) -> CqError {
    CqError {
        c: completion(9),
        err: fi::FI_ETRUNC,
        prov_errno: -1,
        olen: 8,
        err_data: err_data.to_vec(),
    }
}

#[test]
fn each_format_is_as_long_as_its_entry() {
    for (format, words) in [
        (fi::FI_CQ_FORMAT_UNSPEC, 1),
        (fi::FI_CQ_FORMAT_CONTEXT, 1),
        (fi::FI_CQ_FORMAT_MSG, 3),
        (fi::FI_CQ_FORMAT_DATA, 5),
        (fi::FI_CQ_FORMAT_TAGGED, 6),
    ] {
        let rig = CqRig::new(V2_0, attr(format, fi::FI_WAIT_NONE));
        rig.state(|q| (0..2).for_each(|n| q.success(completion(n))));
        let mut out = [0usize; 14];
        let mut src = [0u64; 3];
        // SAFETY: an open queue, space for two entries of any format and for three addresses.
        let n = unsafe { readfrom(rig.cq, out.as_mut_ptr().cast(), 2, src.as_mut_ptr()) };
        assert_eq!(n, 2);
        assert_eq!(src, [7, 7, 0]);
        let entry = |n| [n, 2, 3, 4, 5, 6];
        assert_eq!(out[..words], entry(0)[..words]);
        assert_eq!(out[words..2 * words], entry(1)[..words]);
        assert!(out[2 * words..].iter().all(|word| *word == 0));
    }
}

#[test]
fn empty_reads_and_reads_without_space() {
    let rig = CqRig::new(V2_0, attr(fi::FI_CQ_FORMAT_CONTEXT, fi::FI_WAIT_NONE));
    let eagain = -(fi::FI_EAGAIN as isize);
    assert_eq!(rig.read(&mut [0usize]), eagain);
    // SAFETY: an open queue; no buffer.
    let probe = || unsafe { read(rig.cq, ptr::null_mut(), 0) };
    assert_eq!(probe(), eagain);
    rig.state(|q| q.success(completion(1)));
    assert_eq!(probe(), 0);
    // SAFETY: an open queue; a missing buffer counts as no space.
    assert_eq!(unsafe { read(rig.cq, ptr::null_mut(), 5) }, 0);
    assert_eq!(rig.read(&mut [0usize; 4]), 1);
    rig.state(|q| q.error(failure(&[])));
    assert_eq!(probe(), -(fi::FI_EAVAIL as isize));
    // SAFETY: null is no queue.
    let refused = unsafe { read(ptr::null_mut(), ptr::null_mut(), 0) };
    assert_eq!(refused, -(fi::FI_EINVAL as isize));
}

#[test]
fn error_entries_have_the_length_of_the_application_version() {
    for (api, len) in [(V1_4, 72), (V1_17, 80), (V2_0, 88)] {
        let rig = CqRig::new(api, attr(fi::FI_CQ_FORMAT_CONTEXT, fi::FI_WAIT_NONE));
        rig.state(|q| q.error(failure(&[])));
        let mut raw = [0u64; 11];
        // Sentinel behind the entry: data that only an application with err_data_size has.
        raw[len / 8..].fill(u64::MAX);
        let entry = raw.as_mut_ptr().cast::<fi::fi_cq_err_entry>();
        // SAFETY: an open queue and a whole entry.
        assert_eq!(unsafe { readerr(rig.cq, entry, 0) }, 1);
        assert!(raw[len / 8..].iter().all(|word| *word == u64::MAX));
        assert_eq!(raw[..7], [9, 2, 3, 4, 5, 6, 8]);
        // SAFETY: filled in by readerr.
        let e = unsafe { entry.read() };
        assert_eq!((e.err, e.prov_errno), (fi::FI_ETRUNC, -1));
        assert!(len < 88 || e.src_addr == 7);
        // SAFETY: as above.
        assert_eq!(unsafe { readerr(rig.cq, entry, 0) }, -(fi::FI_EAGAIN as isize));
    }
}

#[test]
fn error_data_is_copied_or_lent() {
    let rig = CqRig::new(V2_0, attr(fi::FI_CQ_FORMAT_CONTEXT, fi::FI_WAIT_NONE));
    rig.state(|q| (0..2).for_each(|_| q.error(failure(b"because"))));
    let mut room = [0u8; 4];
    let mut e = fi::fi_cq_err_entry {
        err_data: room.as_mut_ptr().cast(),
        err_data_size: room.len(),
        ..fi::fi_cq_err_entry::default()
    };
    // SAFETY: an open queue, an entry, and space for its data.
    assert_eq!(unsafe { readerr(rig.cq, &raw mut e, 0) }, 1);
    assert_eq!((&room, e.err_data_size), (b"beca", 4));
    e = fi::fi_cq_err_entry::default();
    // SAFETY: an open queue and an entry without space for data.
    assert_eq!(unsafe { readerr(rig.cq, &raw mut e, 0) }, 1);
    // SAFETY: lent until the next error of the queue is read.
    let lent = unsafe { std::slice::from_raw_parts(e.err_data.cast::<u8>(), e.err_data_size) };
    assert_eq!(lent, b"because");
}

#[test]
fn blocking_reads_end_by_entry_by_time_and_by_signal() {
    for obj in [fi::FI_WAIT_UNSPEC, fi::FI_WAIT_FD, fi::FI_WAIT_YIELD] {
        let rig = CqRig::new(V2_0, attr(fi::FI_CQ_FORMAT_CONTEXT, obj));
        let eagain = -(fi::FI_EAGAIN as isize);
        assert_eq!(rig.sread(0), eagain);
        let began = Instant::now();
        assert_eq!(rig.sread(20), eagain);
        assert!(began.elapsed() >= Duration::from_millis(20));
        // SAFETY: an open queue.
        assert_eq!(unsafe { signal(rig.cq) }, 0);
        assert_eq!(rig.sread(-1), eagain);
        rig.state(|q| q.success(completion(1)));
        assert_eq!(rig.sread(-1), 1);

        let dom = Arc::clone(&rig.domain.shared);
        let index = rig.index;
        let other = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            dom.gate.lock().cqs.get_mut(index).unwrap().success(completion(2));
        });
        assert_eq!(rig.sread(-1), 1);
        other.join().unwrap();
    }
    let rig = CqRig::new(V2_0, attr(fi::FI_CQ_FORMAT_CONTEXT, fi::FI_WAIT_NONE));
    assert_eq!(rig.sread(0), -(fi::FI_ENOSYS as isize));
}

#[test]
fn threshold_waits_for_that_many_entries() {
    let mut attr = attr(fi::FI_CQ_FORMAT_CONTEXT, fi::FI_WAIT_UNSPEC);
    attr.wait_cond = fi::FI_CQ_COND_THRESHOLD;
    let rig = CqRig::new(V2_0, attr);
    let mut out = [0usize; 8];
    let mut want = |n: usize, timeout| {
        let cond = ptr::without_provenance(n);
        // SAFETY: an open queue, and space for eight entries.
        unsafe { sread(rig.cq, out.as_mut_ptr().cast(), 8, cond, timeout) }
    };
    rig.state(|q| (0..3).for_each(|n| q.success(completion(n))));
    assert_eq!(want(3, -1), 3);
    rig.state(|q| (0..2).for_each(|n| q.success(completion(n))));
    assert_eq!(want(3, 5), 2);
    rig.state(|q| {
        q.success(completion(1));
        q.error(failure(&[]));
    });
    assert_eq!(want(3, -1), 1);
    assert_eq!(want(3, -1), -(fi::FI_EAVAIL as isize));
}

#[test]
fn polled_descriptor_reports_entries_of_other_threads() {
    let rig = CqRig::new(V2_0, attr(fi::FI_CQ_FORMAT_CONTEXT, fi::FI_WAIT_FD));
    let mut fd: c_int = -1;
    // SAFETY: an open queue, and space for a descriptor.
    let status = unsafe { control(rig.cq.cast(), fi::FI_GETWAIT, (&raw mut fd).cast()) };
    assert_eq!(status, 0);
    let readable = || {
        let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor.
        unsafe { libc::poll(&raw mut p, 1, 0) == 1 }
    };
    // SAFETY: an open queue.
    let cq = unsafe { entry::object::<Cq, _>(rig.cq) }.unwrap();
    assert_eq!(cq.try_wait(), Ok(()));
    assert!(!readable());
    rig.state(|q| q.success(completion(1)));
    assert!(readable());
    assert_eq!(cq.try_wait(), Err(fi::FI_EAGAIN));
    assert_eq!(rig.read(&mut [0usize; 2]), 1);
    assert_eq!(cq.try_wait(), Ok(()));
    assert!(!readable());
    // A blocking read takes the entry before the polling thread, which then finds none.
    rig.state(|q| q.success(completion(1)));
    assert_eq!(rig.sread(-1), 1);
    assert_eq!(cq.try_wait(), Ok(()));
    assert!(!readable());
}

#[test]
fn timed_waits_end_with_an_entry_and_leave_no_wait_object() {
    let rig = CqRig::new(V2_0, attr(fi::FI_CQ_FORMAT_CONTEXT, fi::FI_WAIT_NONE));
    let (domain, index) = (&rig.domain.shared, rig.index);
    let look = |st: &mut DomainState| {
        let cq = st.cqs.get_mut(index)?;
        (cq.drain(1, |_, _| ()) > 0).then_some(())
    };
    let timed_wait = |ns| wait::nap_for(domain, Target::Cq(index), ns, look);
    assert_eq!(timed_wait(1_000_000), Ok((None, WaitOutcome::Whole)));
    let woken = || {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                let mut st = domain.gate.lock();
                st.cqs.get_mut(index).unwrap().success(completion(1));
            });
            timed_wait(20_000_000_000)
        })
    };
    // A thread that loses its processor for too long comes too late to sleep.
    let mut tries = std::iter::repeat_with(woken).take(50);
    let slept = tries.find(|slept| *slept != Ok((Some(()), WaitOutcome::Not)));
    assert_eq!(slept, Some(Ok((Some(()), WaitOutcome::Some))));
    rig.state(|q| q.success(completion(2)));
    assert_eq!(timed_wait(0), Ok((Some(()), WaitOutcome::Not)));
    let mut fd: c_int = -1;
    // SAFETY: an open queue, and space for a descriptor.
    let status = unsafe { control(rig.cq.cast(), fi::FI_GETWAIT, (&raw mut fd).cast()) };
    assert_eq!(status, -fi::FI_ENODATA);
    // SAFETY: an open queue.
    let cq = unsafe { entry::object::<Cq, _>(rig.cq) }.unwrap();
    assert_eq!(cq.try_wait(), Err(fi::FI_EINVAL));
    assert_eq!(rig.sread(0), -(fi::FI_ENOSYS as isize));
}

#[test]
fn unsupported_wait_objects_are_refused() {
    let domain = Domain::for_test(V2_0, &fi::fi_domain_attr::default());
    let open =
        |attr: &fi::fi_cq_attr| Cq::open(&domain.shared, attr, None, ptr::null_mut()).map(|_| ());
    for obj in [fi::FI_WAIT_SET, fi::FI_WAIT_MUTEX_COND, 77] {
        assert_eq!(open(&attr(fi::FI_CQ_FORMAT_MSG, obj)), Err(fi::FI_EINVAL));
    }
    assert_eq!(open(&attr(9, fi::FI_WAIT_NONE)), Err(fi::FI_EINVAL));
    let peer =
        fi::fi_cq_attr { flags: fi::FI_PEER, ..attr(fi::FI_CQ_FORMAT_MSG, fi::FI_WAIT_NONE) };
    assert_eq!(open(&peer), Err(fi::FI_EINVAL));
    let rig = CqRig::new(V2_0, attr(fi::FI_CQ_FORMAT_MSG, fi::FI_WAIT_NONE));
    let mut fd: c_int = -1;
    // SAFETY: an open queue, and space for a descriptor.
    let status = unsafe { control(rig.cq.cast(), fi::FI_GETWAIT, (&raw mut fd).cast()) };
    assert_eq!(status, -fi::FI_ENODATA);
}

/// Opens an endpoint that receives into the queue of a rig, and a peer for it.
fn receiver(rig: &CqRig) -> (u32, PortId, scif::Endpoint) {
    let domain = &rig.domain.shared;
    let bind = || scif::Endpoint::bind(&domain.fabric.node, 0, Exports::default()).unwrap();
    let cfg =
        EpConfig { caps: fi::FI_MSG, rx_size: 64, rx_cq: Some(rig.index), ..EpConfig::default() };
    let peer = bind();
    let sock = bind();
    let to = sock.id();
    let ep = domain.add_ep(Endpoint::new(cfg, sock)).unwrap();
    let mut st = domain.gate.lock();
    bindings::bind_ep(&mut st, Target::Cq(rig.index), ep).unwrap();
    domain.enable_ep(&mut st, ep).unwrap();
    (ep, to, peer)
}

/// Posts a receive of eight bytes.
fn post(domain: &DomainShared, ep: u32, context: usize) {
    let buffer = vec![0u8; 8].leak();
    // SAFETY: leaked, and accessed through this description only.
    let iov = [unsafe { Mem::new(buffer.as_mut_ptr(), buffer.len()) }];
    let args = RecvArgs {
        iov: &iov,
        src: fi::FI_ADDR_UNSPEC,
        tag: None,
        context,
        flags: fi::FI_COMPLETION,
    };
    calls::recv(&mut domain.gate.lock(), ep, &args).unwrap();
}

#[test]
fn a_nap_ends_with_a_message() {
    let rig = CqRig::new(V2_0, attr(fi::FI_CQ_FORMAT_CONTEXT, fi::FI_WAIT_NONE));
    let (domain, index) = (&rig.domain.shared, rig.index);
    let (ep, to, mut peer) = receiver(&rig);
    let conn = peer.connect(to).unwrap();
    let mut naps = 0;
    // A thread that loses its processor for too long comes too late to sleep.
    for round in 0..50 {
        post(domain, ep, round);
        let sender = &mut peer;
        let found = std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                let conn = sender.conn(conn).unwrap();
                conn.tx().push_head(wire::EAGER | wire::INLINE, &[1; 8]).unwrap();
                conn.notify();
            });
            let begin = Instant::now();
            loop {
                let look = |st: &mut DomainState| {
                    let cq = st.cqs.get_mut(index)?;
                    (cq.drain(1, |_, c| assert_eq!(c.context, round)) > 0).then_some(())
                };
                match wait::nap_for(domain, Target::Cq(index), 20_000_000_000, look).unwrap() {
                    (Some(()), slept) => break slept,
                    // Woken by another event, such as the start of the connection.
                    (None, slept) => assert_ne!(slept, WaitOutcome::Whole),
                }
                assert!(begin.elapsed() < Duration::from_secs(20), "woken in vain");
            }
        });
        assert_ne!(found, WaitOutcome::Whole, "round {round}");
        naps += u32::from(found == WaitOutcome::Some);
        if naps == 8 {
            break;
        }
    }
    assert_eq!(naps, 8);
    domain.close_ep(ep, None);
}

#[test]
fn completions_read_straight_from_a_ring_end_a_row_of_empty_reads() {
    let rig = CqRig::new(V2_0, attr(fi::FI_CQ_FORMAT_CONTEXT, fi::FI_WAIT_NONE));
    let domain = &rig.domain.shared;
    let (ep, to, mut peer) = receiver(&rig);
    let conn = peer.connect(to).unwrap();
    let begin = Instant::now();
    // The path of a message depends on the poll that finds it. The first record of a ring never
    // takes the fast path.
    for round in 0..32 {
        post(domain, ep, round);
        let mut context = [usize::MAX];
        assert_eq!(rig.read(&mut context), -(fi::FI_EAGAIN as isize));
        assert!(rig.state(|q| q.detector.empty_polls()) > 0);
        peer.conn(conn).unwrap().tx().push_head(wire::EAGER | wire::INLINE, &[1; 8]).unwrap();
        while rig.read(&mut context) != 1 {
            peer.poll_links(&mut Vec::new());
            assert!(begin.elapsed() < Duration::from_secs(20), "waited in vain");
        }
        assert_eq!(context, [round]);
        assert_eq!(rig.state(|q| q.detector.empty_polls()), 0, "round {round}");
    }
    domain.close_ep(ep, None);
}

#[test]
fn records_of_other_hosts_end_a_row_of_empty_reads() {
    let rig = CqRig::new(V2_0, attr(fi::FI_CQ_FORMAT_CONTEXT, fi::FI_WAIT_NONE));
    let domain = &rig.domain.shared;
    let (ep, to, mut peer) = receiver(&rig);
    let conn = peer.connect(to).unwrap();
    let begin = Instant::now();
    let read = |peer: &mut scif::Endpoint| {
        assert_eq!(rig.read(&mut [usize::MAX]), -(fi::FI_EAGAIN as isize));
        peer.poll_links(&mut Vec::new());
        assert!(begin.elapsed() < Duration::from_secs(20), "waited in vain");
    };
    // No receive takes these messages, so they put no entry into the queue.
    for (round, is_far) in [false, true, false, true].into_iter().enumerate() {
        while rig.state(|q| q.detector.empty_polls()) < 3 {
            read(&mut peer);
        }
        for link in &mut domain.gate.lock().eps.get_mut(ep).unwrap().links.active {
            link.is_far = is_far;
        }
        peer.conn(conn).unwrap().tx().push_head(wire::EAGER | wire::INLINE, &[1; 8]).unwrap();
        while domain.gate.lock().eps.get(ep).unwrap().recv.unexpected() == round {
            read(&mut peer);
        }
        assert_eq!(rig.state(|q| q.detector.empty_polls()) <= 1, is_far, "round {round}");
    }
    domain.close_ep(ep, None);
}

#[test]
fn reads_that_always_find_something_make_progress_too() {
    let rig = CqRig::new(V2_0, attr(fi::FI_CQ_FORMAT_CONTEXT, fi::FI_WAIT_NONE));
    let domain = &rig.domain.shared;
    let cfg = EpConfig { caps: fi::FI_MSG, tx_cq: Some(rig.index), ..EpConfig::default() };
    let sock = scif::Endpoint::bind(&domain.fabric.node, 0, Exports::default()).unwrap();
    let ep = domain.add_ep(Endpoint::new(cfg, sock)).unwrap();
    {
        let mut st = domain.gate.lock();
        bindings::bind_ep(&mut st, Target::Cq(rig.index), ep).unwrap();
        domain.enable_ep(&mut st, ep).unwrap();
    }
    let polls = || calls::polls(&domain.gate.lock(), ep);
    for _ in 0..4 {
        let before = polls();
        for round in 0..100 {
            rig.state(|q| q.success(completion(round)));
            let mut context = [usize::MAX];
            assert_eq!(rig.read(&mut context), 1);
            assert_eq!(context, [round]);
        }
        assert_ne!(before, polls());
    }
    domain.close_ep(ep, None);
}

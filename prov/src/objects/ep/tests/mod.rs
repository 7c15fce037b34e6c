// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Endpoints through their C interface, in one process that sends to itself.

#![expect(unsafe_code, reason = "calls the tables as C does")]

mod transfer;

use std::ffi::c_int;
use std::net::Ipv4Addr;
use std::ptr::{null, null_mut};

use libfabric_sys as fi;
use libfabric_sys::{fid, fid_ep};

use crate::base::addr::{ADDR_LEN, Addr};
use crate::base::atomic_ops::MAX_ATOMIC_BYTES;
use crate::base::attr::{self, INJECT_SIZE};
use crate::base::entry::own;
use crate::engine::panic_test::STRUCK;
use crate::objects::handle::Domain;

/// Calls a slot of one of an object's tables, with the object as first argument.
macro_rules! call {
    ($object:expr, $table:ident.$slot:ident($($arg:expr),*)) => {{
        let object = $object;
        // SAFETY: an open object of this provider.
        let table = unsafe { &*(*object).$table };
        // SAFETY: an open object, and the arguments of the test.
        unsafe { (table.$slot)(object.cast(), $($arg),*) }
    }};
}

/// Calls a slot of the table that every object has.
macro_rules! fid_call {
    ($object:expr, $slot:ident($($arg:expr),*)) => {{
        let object: *mut libfabric_sys::fid = $object.cast();
        // SAFETY: an open object of this provider.
        let table = unsafe { &*(*object).ops };
        // SAFETY: an open object, and the arguments of the test.
        unsafe { (table.$slot)(object, $($arg),*) }
    }};
}

use {call, fid_call};

/// Opens an object and returns it instead of writing it to an output argument.
fn made<T>(open: impl FnOnce(*mut *mut T) -> c_int) -> Result<*mut T, c_int> {
    let mut object = null_mut();
    match open(&raw mut object) {
        0 => Ok(object),
        error => Err(error),
    }
}

/// Info of this provider, from which endpoints are opened.
struct TestInfo {
    info: fi::fi_info,
    ep: fi::fi_ep_attr,
    tx: fi::fi_tx_attr,
    rx: fi::fi_rx_attr,
    domain: fi::fi_domain_attr,
}

impl TestInfo {
    fn new(caps: u64) -> Box<TestInfo> {
        let mut new = Box::new(TestInfo {
            info: fi::fi_info { caps, addr_format: fi::FI_SOCKADDR_IN, ..fi::fi_info::default() },
            ep: fi::fi_ep_attr { type_: fi::FI_EP_RDM, ..fi::fi_ep_attr::default() },
            tx: fi::fi_tx_attr::default(),
            rx: fi::fi_rx_attr::default(),
            domain: fi::fi_domain_attr {
                threading: fi::FI_THREAD_SAFE,
                ..fi::fi_domain_attr::default()
            },
        });
        new.info.ep_attr = &raw mut new.ep;
        new.info.tx_attr = &raw mut new.tx;
        new.info.rx_attr = &raw mut new.rx;
        new.info.domain_attr = &raw mut new.domain;
        new
    }
}

/// Fabric and domain, with objects to which endpoints are bound.
struct EpRig {
    info: Box<TestInfo>,
    fabric: *mut fi::fid_fabric,
    domain: *mut fi::fid_domain,
    av: *mut fi::fid_av,
    cq: *mut fi::fid_cq,
    cntr: *mut fi::fid_cntr,
}

const ALL: u64 = fi::FI_MSG | fi::FI_TAGGED | fi::FI_RMA | fi::FI_ATOMIC;
const BOTH: u64 = fi::FI_TRANSMIT | fi::FI_RECV;

impl EpRig {
    fn new(caps: u64) -> EpRig {
        let mut info = TestInfo::new(caps);
        let mut attr = fi::fi_fabric_attr {
            api_version: fi::fi_version(1, 20),
            ..fi::fi_fabric_attr::default()
        };
        // SAFETY: attributes and space for the result.
        let fabric =
            made(|out| unsafe { crate::objects::fabric::open(&raw mut attr, out, null_mut()) })
                .unwrap();
        let domain =
            made(|out| call!(fabric, ops.domain(&raw mut info.info, out, null_mut()))).unwrap();
        let mut av = fi::fi_av_attr::default();
        let av = made(|out| call!(domain, ops.av_open(&raw mut av, out, null_mut()))).unwrap();
        let mut cq =
            fi::fi_cq_attr { format: fi::FI_CQ_FORMAT_TAGGED, ..fi::fi_cq_attr::default() };
        let cq = made(|out| call!(domain, ops.cq_open(&raw mut cq, out, null_mut()))).unwrap();
        let mut cntr = fi::fi_cntr_attr::default();
        let cntr =
            made(|out| call!(domain, ops.cntr_open(&raw mut cntr, out, null_mut()))).unwrap();
        EpRig { info, fabric, domain, av, cq, cntr }
    }

    fn open(&mut self) -> Result<*mut fid_ep, c_int> {
        let info = &raw mut self.info.info;
        made(|out| call!(self.domain, ops.endpoint(info, out, null_mut())))
    }

    fn bound(&mut self, cq_flags: u64) -> *mut fid_ep {
        let ep = self.open().unwrap();
        assert_eq!(fid_call!(ep, bind(self.cq.cast(), cq_flags)), 0);
        assert_eq!(fid_call!(ep, bind(self.av.cast(), 0)), 0);
        ep
    }

    fn enabled(&mut self, cq_flags: u64) -> *mut fid_ep {
        let ep = self.bound(cq_flags);
        assert_eq!(enable(ep), 0);
        ep
    }

    /// Returns a set-up with one endpoint, and the address of that endpoint in its own vector.
    fn with_itself() -> (EpRig, *mut fid_ep, u64) {
        let mut rig = EpRig::new(ALL);
        let ep = rig.enabled(BOTH);
        let me = rig.insert(ep);
        (rig, ep, me)
    }

    /// Inserts the endpoint's own address. Returns its index in the address vector.
    fn insert(&self, ep: *mut fid_ep) -> u64 {
        let mut addr = fi::FI_ADDR_UNSPEC;
        let name = name(ep);
        let n = call!(self.av, ops.insert(name.as_ptr().cast(), 1, &raw mut addr, 0, null_mut()));
        assert_eq!(n, 1);
        addr
    }

    /// Reads the completions that need no action of another process.
    fn completions(&self) -> Vec<fi::fi_cq_tagged_entry> {
        let mut all = Vec::new();
        for _ in 0..100 {
            let mut entry = fi::fi_cq_tagged_entry::default();
            match call!(self.cq, ops.read((&raw mut entry).cast(), 1)) {
                1 => all.push(entry),
                n => assert_eq!(n, -(fi::FI_EAGAIN as isize)),
            }
        }
        all
    }

    fn close(self, eps: &[*mut fid_ep]) {
        for ep in eps {
            assert_eq!(close(*ep), 0);
        }
        assert_eq!(fid_call!(self.cntr, close()), 0);
        assert_eq!(fid_call!(self.cq, close()), 0);
        assert_eq!(fid_call!(self.av, close()), 0);
        assert_eq!(fid_call!(self.domain, close()), 0);
        assert_eq!(fid_call!(self.fabric, close()), 0);
    }
}

fn enable(ep: *mut fid_ep) -> c_int {
    fid_call!(ep, control(fi::FI_ENABLE, null_mut()))
}

fn close(ep: *mut fid_ep) -> c_int {
    fid_call!(ep, close())
}

fn name(ep: *mut fid_ep) -> [u8; ADDR_LEN] {
    let mut name = [0; ADDR_LEN];
    let mut len = name.len();
    assert_eq!(call!(ep, cm.getname(name.as_mut_ptr().cast(), &raw mut len)), 0);
    assert_eq!(len, ADDR_LEN);
    name
}

fn errno(result: isize) -> c_int {
    c_int::try_from(-result).unwrap()
}

fn send(ep: *mut fid_ep, dest: u64, text: &[u8]) -> isize {
    call!(ep, msg.send(text.as_ptr().cast(), text.len(), null_mut(), dest, null_mut()))
}

fn control(ep: *mut fid_ep, command: c_int, flags: &mut u64) -> c_int {
    fid_call!(ep, control(command, (&raw mut *flags).cast()))
}

#[test]
fn a_poisoned_endpoint_is_not_enabled_again() {
    let mut rig = EpRig::new(ALL);
    let ep = rig.enabled(BOTH);
    // SAFETY: an open domain of this provider.
    let domain = unsafe { own::<Domain, _>(rig.domain) }.unwrap();
    let mut st = domain.shared.gate.lock();
    for at in 0..st.eps.bound() {
        st.eps.get_mut(at).unwrap().cfg.inject_size = STRUCK;
    }
    drop(st);
    let mut entry = fi::fi_cq_tagged_entry::default();
    let read = call!(rig.cq, ops.read((&raw mut entry).cast(), 1));
    assert_eq!(errno(read), fi::FI_EOTHER);
    assert_eq!(enable(ep), -fi::FI_EOTHER);
    assert_eq!(errno(send(ep, 0, b"too late")), fi::FI_EOTHER);
    assert_eq!(rig.completions().len(), 0);
    rig.close(&[ep]);
}

#[test]
fn bindings_are_checked() {
    let mut rig = EpRig::new(ALL);
    let ep = rig.open().unwrap();
    let (cq, cntr, av): (*mut fid, *mut fid, *mut fid) =
        (rig.cq.cast(), rig.cntr.cast(), rig.av.cast());
    assert_eq!(fid_call!(ep, bind(null_mut(), 0)), -fi::FI_EINVAL);
    assert_eq!(fid_call!(ep, bind(ep.cast(), 0)), -fi::FI_EINVAL, "wrong class");
    assert_eq!(fid_call!(ep, bind(cq, fi::FI_READ)), -fi::FI_EBADFLAGS);
    assert_eq!(enable(ep), -fi::FI_ENOCQ);
    assert_eq!(fid_call!(ep, bind(cq, fi::FI_TRANSMIT)), 0);
    assert_eq!(fid_call!(ep, bind(cq, BOTH)), -fi::FI_EINVAL, "one direction twice");
    assert_eq!(enable(ep), -fi::FI_ENOCQ);
    assert_eq!(fid_call!(ep, bind(cq, fi::FI_RECV | fi::FI_SELECTIVE_COMPLETION)), 0);
    assert_eq!(enable(ep), -fi::FI_ENOAV);
    assert_eq!(fid_call!(ep, bind(cntr, fi::FI_TAGGED)), -fi::FI_EBADFLAGS);
    assert_eq!(fid_call!(ep, bind(cntr, fi::FI_READ | fi::FI_REMOTE_WRITE)), 0);
    assert_eq!(
        fid_call!(ep, bind(cntr, fi::FI_WRITE | fi::FI_READ)),
        -fi::FI_EINVAL,
        "one event twice"
    );
    assert_eq!(fid_call!(ep, bind(av, fi::FI_RECV)), -fi::FI_EBADFLAGS);
    assert_eq!(fid_call!(ep, bind(av, 0)), 0);
    assert_eq!(fid_call!(ep, bind(av, 0)), -fi::FI_EINVAL, "a second address vector");
    let too_early = -(fi::FI_EOPBADSTATE as isize);
    assert_eq!(send(ep, 0, b"too early"), too_early);
    assert_eq!(call!(ep, ops.rx_size_left()), too_early);
    assert_eq!(call!(ep, ops.cancel(null_mut())), too_early);
    assert_eq!(enable(ep), 0);
    assert_eq!(call!(ep, ops.rx_size_left()), attr::DEFAULT_SIZE as isize);
    assert_eq!(call!(ep, ops.cancel(null_mut())), 0, "nothing to cancel");
    assert_eq!(enable(ep), 0);
    // A counter may be bound later to a direction without one; no other object may.
    assert_eq!(fid_call!(ep, bind(cntr, fi::FI_SEND | fi::FI_RECV)), 0);
    assert_eq!(fid_call!(ep, bind(cntr, fi::FI_SEND)), -fi::FI_EINVAL);
    assert_eq!(fid_call!(ep, bind(cntr, fi::FI_READ)), -fi::FI_EINVAL);
    assert_eq!(fid_call!(ep, bind(cq, fi::FI_RECV)), -fi::FI_EOPBADSTATE);
    assert_eq!(fid_call!(ep, bind(av, 0)), -fi::FI_EOPBADSTATE);
    let me = rig.insert(ep);
    assert_eq!(send(ep, me, b"counted"), 0);
    assert_eq!(call!(rig.cntr, ops.read()), 1);
    for busy in [cq, cntr, av, rig.domain.cast()] {
        assert_eq!(fid_call!(busy, close()), -fi::FI_EBUSY);
    }
    rig.close(&[ep]);
}

#[test]
fn objects_of_another_domain_are_refused() {
    let (mut one, other) = (EpRig::new(ALL), EpRig::new(ALL));
    let ep = one.open().unwrap();
    assert_eq!(fid_call!(ep, bind(other.cq.cast(), BOTH)), -fi::FI_EDOMAIN);
    assert_eq!(fid_call!(ep, bind(other.av.cast(), 0)), -fi::FI_EDOMAIN);
    one.close(&[ep]);
    other.close(&[]);
}

#[test]
fn only_whole_infos_of_the_offered_type_open_endpoints() {
    let mut rig = EpRig::new(ALL);
    for type_ in [fi::FI_EP_UNSPEC, fi::FI_EP_DGRAM + 100] {
        rig.info.ep.type_ = type_;
        assert_eq!(rig.open(), Err(-fi::FI_EINVAL));
    }
    rig.info.ep.type_ = fi::FI_EP_RDM;
    rig.info.tx.op_flags = fi::FI_COMMIT_COMPLETE;
    assert_eq!(rig.open(), Err(-fi::FI_EBADFLAGS), "no persistent memory");
    rig.info.info.tx_attr = null_mut();
    assert_eq!(rig.open(), Err(-fi::FI_EINVAL));
    let null = made(|out| call!(rig.domain, ops.endpoint(null_mut(), out, null_mut())));
    assert_eq!(null, Err(-fi::FI_EINVAL));
    rig.close(&[]);
}

#[test]
fn operation_classes_without_capability_are_absent() {
    let mut rig = EpRig::new(fi::FI_MSG);
    let ep = rig.enabled(BOTH);
    let nosys = -(fi::FI_ENOSYS as isize);
    assert_eq!(call!(ep, tagged.inject(null(), 0, 0, 0)), nosys);
    assert_eq!(call!(ep, rma.inject(null(), 0, 0, 0, 0)), nosys);
    assert_eq!(call!(ep, atomic.inject(null(), 0, 0, 0, 0, fi::FI_INT8, fi::FI_SUM)), nosys);
    assert_eq!(call!(ep, collective.barrier(0, null_mut())), nosys);
    assert_eq!(call!(ep, cm.shutdown(0)), -fi::FI_ENOSYS);
    rig.close(&[ep]);
}

#[test]
fn names_have_a_length_a_port_and_one_owner() {
    let mut rig = EpRig::new(ALL);
    let ep = rig.open().unwrap();
    let mut len = 0;
    assert_eq!(call!(ep, cm.getname(null_mut(), &raw mut len)), -fi::FI_ETOOSMALL);
    assert_eq!(len, ADDR_LEN);
    let mut short = [0u8; 4];
    len = short.len();
    assert_eq!(call!(ep, cm.getname(short.as_mut_ptr().cast(), &raw mut len)), -fi::FI_ETOOSMALL);
    assert_eq!((len, short), (ADDR_LEN, [0; 4]));

    // A second endpoint may take another name, and the first one's name only after the first is
    // closed. Port 6 is below the dynamic range, so no other endpoint gets it meanwhile.
    let mut taken = Addr::this_host(Ipv4Addr::LOCALHOST, 6).to_bytes();
    assert_eq!(call!(ep, cm.setname(taken.as_mut_ptr().cast(), ADDR_LEN)), 0);
    taken = name(ep);
    let other = rig.bound(BOTH);
    let own = name(other);
    assert_eq!(call!(other, cm.setname(taken.as_mut_ptr().cast(), ADDR_LEN)), -fi::FI_EADDRINUSE);
    rig.info.info.src_addr = taken.as_mut_ptr().cast();
    rig.info.info.src_addrlen = ADDR_LEN;
    assert_eq!(rig.open(), Err(-fi::FI_EADDRINUSE));
    assert_eq!(name(other), own);
    assert_eq!(close(ep), 0);
    assert_eq!(call!(other, cm.setname(taken.as_mut_ptr().cast(), ADDR_LEN)), 0);
    assert_eq!(name(other), taken);

    assert_eq!(call!(other, cm.setname(taken.as_mut_ptr().cast(), 3)), -fi::FI_EINVAL);
    assert_eq!(enable(other), 0, "the bindings moved along");
    assert_eq!(call!(other, cm.setname(taken.as_mut_ptr().cast(), ADDR_LEN)), -fi::FI_EOPBADSTATE);
    let me = rig.insert(other);
    assert_eq!(send(other, me, b"moved"), 0);
    rig.close(&[other]);
}

#[test]
fn foreign_addresses_are_not_taken() {
    let mut rig = EpRig::new(ALL);
    let ep = rig.open().unwrap();
    let mut foreign = name(ep);
    foreign[15] ^= 1;
    rig.info.info.src_addr = foreign.as_mut_ptr().cast();
    rig.info.info.src_addrlen = ADDR_LEN;
    assert_eq!(rig.open(), Err(-fi::FI_EADDRNOTAVAIL));
    rig.close(&[ep]);
}

#[test]
fn options_have_values_and_limits() {
    let mut rig = EpRig::new(ALL);
    let ep = rig.open().unwrap();
    let get = |option| {
        let (mut value, mut len) = (0usize, size_of::<usize>());
        let result = call!(
            ep,
            ops.getopt(fi::FI_OPT_ENDPOINT, option, (&raw mut value).cast(), &raw mut len)
        );
        (result, value)
    };
    let set = |option, value: &[u8]| {
        call!(ep, ops.setopt(fi::FI_OPT_ENDPOINT, option, value.as_ptr().cast(), value.len()))
    };
    let size = |value: usize| value.to_ne_bytes();
    assert_eq!(set(fi::FI_OPT_MIN_MULTI_RECV, &size(1 << 20)), 0);
    assert_eq!(get(fi::FI_OPT_MIN_MULTI_RECV), (0, 1 << 20));
    assert_eq!(set(fi::FI_OPT_MIN_MULTI_RECV, &[1, 2]), -fi::FI_ETOOSMALL);
    assert_eq!(get(fi::FI_OPT_INJECT_TAGGED_SIZE), (0, INJECT_SIZE));
    assert_eq!(get(fi::FI_OPT_MAX_ATOMIC_SIZE), (0, MAX_ATOMIC_BYTES));
    assert_eq!(set(fi::FI_OPT_MAX_MSG_SIZE, &size(100)), 0);
    assert_eq!(set(fi::FI_OPT_MAX_MSG_SIZE, &size(101)), -fi::FI_EINVAL);
    assert_eq!(get(fi::FI_OPT_MAX_MSG_SIZE), (0, 100));
    assert_eq!(set(fi::FI_OPT_SHARED_MEMORY_PERMITTED, &[1]), 0);
    assert_eq!(set(fi::FI_OPT_SHARED_MEMORY_PERMITTED, &[0]), -fi::FI_EOPNOTSUPP);
    assert_eq!(set(fi::FI_OPT_CUDA_API_PERMITTED, &[0]), -fi::FI_EINVAL);
    assert_eq!(set(fi::FI_OPT_CM_DATA_SIZE, &size(1)), -fi::FI_ENOPROTOOPT);
    assert_eq!(get(fi::FI_OPT_CM_DATA_SIZE).0, -fi::FI_ENOPROTOOPT);
    assert_eq!(get(c_int::MAX).0, -fi::FI_ENOPROTOOPT);
    let (mut byte, mut len) = (0u8, 1usize);
    let option = fi::FI_OPT_MIN_MULTI_RECV;
    let result =
        call!(ep, ops.getopt(fi::FI_OPT_ENDPOINT, option, (&raw mut byte).cast(), &raw mut len));
    assert_eq!((result, len), (-fi::FI_ETOOSMALL, size_of::<usize>()));
    let level = call!(ep, ops.getopt(99, option, (&raw mut byte).cast(), &raw mut len));
    assert_eq!(level, -fi::FI_ENOPROTOOPT);
    rig.close(&[ep]);
}

#[test]
fn aliases_differ_in_their_flags_and_keep_the_endpoint() {
    let mut rig = EpRig::new(ALL);
    rig.info.tx.op_flags = fi::FI_TRANSMIT_COMPLETE;
    let ep = rig.enabled(BOTH | fi::FI_SELECTIVE_COMPLETION);
    let me = rig.insert(ep);
    let alias = |flags| {
        made(|out| {
            let mut args = fi::fi_alias { fid: out, flags };
            fid_call!(ep, control(fi::FI_ALIAS, (&raw mut args).cast()))
        })
    };
    assert_eq!(alias(fi::FI_COMPLETION), Err(-fi::FI_EINVAL), "no direction");
    assert_eq!(alias(BOTH), Err(-fi::FI_EINVAL), "two directions");
    assert_eq!(alias(fi::FI_TRANSMIT | fi::FI_TRIGGER), Err(-fi::FI_EBADFLAGS));
    let loud: *mut fid_ep = alias(fi::FI_TRANSMIT | fi::FI_COMPLETION).unwrap().cast();

    let mut flags = fi::FI_TRANSMIT;
    assert_eq!(control(ep, fi::FI_GETOPSFLAG, &mut flags), 0);
    assert_eq!(flags, fi::FI_TRANSMIT_COMPLETE);
    flags = fi::FI_TRANSMIT;
    assert_eq!(control(loud, fi::FI_GETOPSFLAG, &mut flags), 0);
    assert_eq!(flags, fi::FI_COMPLETION);
    flags = fi::FI_RECV | fi::FI_MULTI_RECV;
    assert_eq!(control(ep, fi::FI_SETOPSFLAG, &mut flags), 0);
    flags = fi::FI_RECV;
    assert_eq!(control(ep, fi::FI_GETOPSFLAG, &mut flags), 0);
    assert_eq!(flags, fi::FI_MULTI_RECV);
    flags = fi::FI_RECV | fi::FI_INJECT;
    assert_eq!(control(ep, fi::FI_SETOPSFLAG, &mut flags), -fi::FI_EBADFLAGS);

    assert_eq!(send(ep, me, b"quiet"), 0);
    assert!(rig.completions().is_empty());
    assert_eq!(close(ep), 0);
    assert_eq!(send(loud, me, b"loud"), 0);
    let done = rig.completions();
    assert_eq!(done.iter().map(|c| c.flags).collect::<Vec<_>>(), [fi::FI_SEND | fi::FI_MSG]);
    rig.close(&[loud]);
}

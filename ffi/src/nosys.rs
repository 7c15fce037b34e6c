// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Operation tables whose every slot is a function that answers "not supported", so that a provider writes only the
//! slots it has: `static OPS: fi_ops_cq = fi_ops_cq { read: cq_read, ..FI_OPS_CQ_NOSYS };`
//!
//! A function that returns a code returns `-FI_ENOSYS`. Those that cannot say "unknown" for a text, as libfabric's own
//! stubs do, and 0 for a count. `size` is that of the table this crate knows: older hosts ignore the rest, newer ones
//! do not look behind it.

use core::ffi::{c_char, c_int};

use crate::{
    FI_ENOSYS, fi_ops, fi_ops_atomic, fi_ops_av, fi_ops_av_set, fi_ops_cm, fi_ops_cntr, fi_ops_collective,
    fi_ops_cq, fi_ops_domain, fi_ops_ep, fi_ops_eq, fi_ops_fabric, fi_ops_mr, fi_ops_msg, fi_ops_poll,
    fi_ops_rma, fi_ops_tagged, fi_ops_wait,
};

/// How a return type says "not supported".
trait NotSupported {
    const ANSWER: Self;
}

impl NotSupported for c_int {
    const ANSWER: Self = -FI_ENOSYS;
}

impl NotSupported for isize {
    const ANSWER: Self = -(FI_ENOSYS as isize);
}

impl NotSupported for u64 {
    const ANSWER: Self = 0;
}

impl NotSupported for *const c_char {
    const ANSWER: Self = c"unknown".as_ptr();
}

/// One function per number of arguments; the slot it is put in infers the types.
macro_rules! stubs {
    ($($name:ident($($arg:ident)*))*) => {$(
        extern "C" fn $name<R: NotSupported, $($arg),*>($(_: $arg),*) -> R {
            R::ANSWER
        }
    )*};
}

stubs! {
    no1(A)
    no2(A B)
    no3(A B C)
    no4(A B C D)
    no5(A B C D E)
    no6(A B C D E F)
    no7(A B C D E F G)
    no8(A B C D E F G H)
    no9(A B C D E F G H I)
    no10(A B C D E F G H I J)
    no11(A B C D E F G H I J K)
    no12(A B C D E F G H I J K L)
    no13(A B C D E F G H I J K L M)
    no14(A B C D E F G H I J K L M N)
    no16(A B C D E F G H I J K L M N O P)
}

pub const FI_OPS_NOSYS: fi_ops = fi_ops {
    size: size_of::<fi_ops>(),
    close: no1,
    bind: no3,
    control: no3,
    ops_open: no5,
    tostr: no3,
    ops_set: no5,
};

pub const FI_OPS_FABRIC_NOSYS: fi_ops_fabric = fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain: no4,
    passive_ep: no4,
    eq_open: no4,
    wait_open: no3,
    trywait: no3,
    domain2: no5,
};

pub const FI_OPS_AV_NOSYS: fi_ops_av = fi_ops_av {
    size: size_of::<fi_ops_av>(),
    insert: no6,
    insertsvc: no6,
    insertsym: no8,
    remove: no4,
    lookup: no4,
    straddr: no4,
    av_set: no4,
    insert_auth_key: no5,
    lookup_auth_key: no4,
    set_user_id: no4,
};

pub const FI_OPS_DOMAIN_NOSYS: fi_ops_domain = fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open: no4,
    cq_open: no4,
    endpoint: no4,
    scalable_ep: no4,
    cntr_open: no4,
    poll_open: no3,
    stx_ctx: no4,
    srx_ctx: no4,
    query_atomic: no5,
    query_collective: no4,
    endpoint2: no5,
};

pub const FI_OPS_MR_NOSYS: fi_ops_mr = fi_ops_mr {
    size: size_of::<fi_ops_mr>(),
    reg: no9,
    regv: no9,
    regattr: no4,
};

pub const FI_OPS_EP_NOSYS: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: no2,
    getopt: no5,
    setopt: no5,
    tx_ctx: no5,
    rx_ctx: no5,
    rx_size_left: no1,
    tx_size_left: no1,
};

pub const FI_OPS_MSG_NOSYS: fi_ops_msg = fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
    recv: no6,
    recvv: no6,
    recvmsg: no3,
    send: no6,
    sendv: no6,
    sendmsg: no3,
    inject: no4,
    senddata: no7,
    injectdata: no5,
};

pub const FI_OPS_WAIT_NOSYS: fi_ops_wait = fi_ops_wait {
    size: size_of::<fi_ops_wait>(),
    wait: no2,
};

pub const FI_OPS_POLL_NOSYS: fi_ops_poll = fi_ops_poll {
    size: size_of::<fi_ops_poll>(),
    poll: no3,
    poll_add: no3,
    poll_del: no3,
};

pub const FI_OPS_EQ_NOSYS: fi_ops_eq = fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: no5,
    readerr: no3,
    write: no5,
    sread: no6,
    strerror: no5,
};

pub const FI_OPS_CQ_NOSYS: fi_ops_cq = fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: no3,
    readfrom: no4,
    readerr: no3,
    sread: no5,
    sreadfrom: no6,
    signal: no1,
    strerror: no5,
};

pub const FI_OPS_CNTR_NOSYS: fi_ops_cntr = fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read: no1,
    readerr: no1,
    add: no2,
    set: no2,
    wait: no3,
    adderr: no2,
    seterr: no2,
};

pub const FI_OPS_RMA_NOSYS: fi_ops_rma = fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read: no8,
    readv: no8,
    readmsg: no3,
    write: no8,
    writev: no8,
    writemsg: no3,
    inject: no6,
    writedata: no9,
    injectdata: no7,
};

pub const FI_OPS_TAGGED_NOSYS: fi_ops_tagged = fi_ops_tagged {
    size: size_of::<fi_ops_tagged>(),
    recv: no8,
    recvv: no8,
    recvmsg: no3,
    send: no7,
    sendv: no7,
    sendmsg: no3,
    inject: no5,
    senddata: no8,
    injectdata: no6,
};

pub const FI_OPS_ATOMIC_NOSYS: fi_ops_atomic = fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write: no10,
    writev: no10,
    writemsg: no3,
    inject: no8,
    readwrite: no12,
    readwritev: no13,
    readwritemsg: no6,
    compwrite: no14,
    compwritev: no16,
    compwritemsg: no9,
    writevalid: no4,
    readwritevalid: no4,
    compwritevalid: no4,
};

pub const FI_OPS_CM_NOSYS: fi_ops_cm = fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname: no3,
    getname: no3,
    getpeer: no3,
    connect: no4,
    listen: no1,
    accept: no3,
    reject: no4,
    shutdown: no2,
    join: no5,
};

pub const FI_OPS_AV_SET_NOSYS: fi_ops_av_set = fi_ops_av_set {
    size: size_of::<fi_ops_av_set>(),
    set_union: no2,
    intersect: no2,
    diff: no2,
    insert: no2,
    remove: no2,
    addr: no2,
};

pub const FI_OPS_COLLECTIVE_NOSYS: fi_ops_collective = fi_ops_collective {
    size: size_of::<fi_ops_collective>(),
    barrier: no3,
    broadcast: no9,
    alltoall: no10,
    allreduce: no11,
    allgather: no10,
    reduce_scatter: no11,
    reduce: no12,
    scatter: no11,
    gather: no11,
    msg: no6,
    barrier2: no4,
};

#[cfg(test)]
mod tests {
    #![expect(
        unsafe_code,
        clippy::multiple_unsafe_ops_per_block,
        reason = "calls through C function pointers"
    )]

    use core::ptr::{null, null_mut};

    use super::*;

    #[test]
    fn codes_say_enosys() {
        // SAFETY: the stubs ignore their arguments.
        unsafe {
            assert_eq!((FI_OPS_NOSYS.close)(null_mut()), -38);
            assert_eq!((FI_OPS_NOSYS.bind)(null_mut(), null_mut(), 1), -38);
            assert_eq!((FI_OPS_CM_NOSYS.getname)(null_mut(), null_mut(), null_mut()), -38);
            assert_eq!((FI_OPS_MSG_NOSYS.inject)(null_mut(), null(), 8, 0), -38);
            let a = (FI_OPS_ATOMIC_NOSYS.compwritev)(
                null_mut(),
                null(),
                null_mut(),
                1,
                null(),
                null_mut(),
                1,
                null_mut(),
                null_mut(),
                1,
                0,
                0,
                0,
                0,
                0,
                null_mut(),
            );
            assert_eq!(a, -38);
        }
    }

    #[test]
    fn counts_are_zero_and_texts_unknown() {
        // SAFETY: the stub ignores its argument.
        assert_eq!(unsafe { (FI_OPS_CNTR_NOSYS.readerr)(null_mut()) }, 0);
        // SAFETY: the stub ignores its arguments.
        let text = unsafe { (FI_OPS_CQ_NOSYS.strerror)(null_mut(), 0, null(), null_mut(), 0) };
        // SAFETY: the stub returns a static C string.
        assert_eq!(unsafe { core::ffi::CStr::from_ptr(text) }, c"unknown");
    }

    #[test]
    fn size_is_of_the_table() {
        assert_eq!(FI_OPS_AV_NOSYS.size, 88);
        assert_eq!(FI_OPS_COLLECTIVE_NOSYS.size, 96);
    }
}

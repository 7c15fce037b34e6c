// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Operation tables of stubs that return "not supported". A provider writes only the slots that it
//! implements: `static OPS: fi_ops_cq = fi_ops_cq { read: cq_read, ..FI_OPS_CQ_NOSYS };`
//!
//! A stub that returns a code returns `-FI_ENOSYS`. The others return "unknown" for a text, like
//! libfabric's own stubs, and 0 for a count. `size` is the size of the table in this crate: older
//! hosts ignore the rest, newer ones read no further.

use core::ffi::{c_char, c_int};
use core::marker::PhantomData;
use std::panic::catch_unwind;
use std::sync::OnceLock;

use crate::{
    FI_ENOSYS, fi_ops, fi_ops_atomic, fi_ops_av, fi_ops_av_set, fi_ops_cm, fi_ops_cntr,
    fi_ops_collective, fi_ops_cq, fi_ops_domain, fi_ops_ep, fi_ops_eq, fi_ops_fabric, fi_ops_mr,
    fi_ops_msg, fi_ops_poll, fi_ops_rma, fi_ops_tagged, fi_ops_wait,
};

/// Value of a return type for "not supported".
trait NotSupported {
    const ANSWER: Self;
    /// Whether the value is an error.
    const IS_ERROR: bool;
}

impl NotSupported for c_int {
    const ANSWER: Self = -FI_ENOSYS;
    const IS_ERROR: bool = true;
}

impl NotSupported for isize {
    const ANSWER: Self = -(FI_ENOSYS as isize);
    const IS_ERROR: bool = true;
}

impl NotSupported for u64 {
    const ANSWER: Self = 0;
    const IS_ERROR: bool = false;
}

impl NotSupported for *const c_char {
    const ANSWER: Self = c"unknown".as_ptr();
    const IS_ERROR: bool = false;
}

/// Name of the call of a slot.
trait Named {
    const NAME: &'static str;
}

macro_rules! named {
    ($name:literal) => {{
        enum Call {}
        impl Named for Call {
            const NAME: &'static str = $name;
        }
        PhantomData::<Call>
    }};
}

static LISTENER: OnceLock<fn(&'static str)> = OnceLock::new();

/// Registers a `listener` that gets the name of each call for which a stub returns `-FI_ENOSYS`.
/// Later ones are ignored.
pub fn on_unsupported(listener: fn(&'static str)) {
    LISTENER.get_or_init(|| listener);
}

fn answer<N: Named, R: NotSupported>() -> R {
    if R::IS_ERROR
        && let Some(listener) = LISTENER.get()
    {
        // A panic must not reach C.
        let _ = catch_unwind(|| listener(N::NAME));
    }
    R::ANSWER
}

/// Defines one function per number of arguments; the types follow from the slot.
macro_rules! stubs {
    ($($name:ident($($arg:ident)*))*) => {$(
        const fn $name<Call: Named, R: NotSupported, $($arg),*>(
            _: PhantomData<Call>,
        ) -> unsafe extern "C" fn($($arg),*) -> R {
            extern "C" fn stub<Call: Named, R: NotSupported, $($arg),*>($(_: $arg),*) -> R {
                answer::<Call, R>()
            }
            stub::<Call, R, $($arg),*>
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
    close: no1(named!("fi_close")),
    bind: no3(named!("a fi_bind")),
    control: no3(named!("fi_control")),
    ops_open: no5(named!("fi_open_ops")),
    tostr: no3(named!("fi_tostr of an object")),
    ops_set: no5(named!("fi_set_ops")),
};

pub const FI_OPS_FABRIC_NOSYS: fi_ops_fabric = fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain: no4(named!("fi_domain")),
    passive_ep: no4(named!("fi_passive_ep")),
    eq_open: no4(named!("fi_eq_open")),
    wait_open: no3(named!("fi_wait_open")),
    trywait: no3(named!("fi_trywait")),
    domain2: no5(named!("fi_domain2")),
};

pub const FI_OPS_AV_NOSYS: fi_ops_av = fi_ops_av {
    size: size_of::<fi_ops_av>(),
    insert: no6(named!("fi_av_insert")),
    insertsvc: no6(named!("fi_av_insertsvc")),
    insertsym: no8(named!("fi_av_insertsym")),
    remove: no4(named!("fi_av_remove")),
    lookup: no4(named!("fi_av_lookup")),
    straddr: no4(named!("fi_av_straddr")),
    av_set: no4(named!("fi_av_set")),
    insert_auth_key: no5(named!("fi_av_insert_auth_key")),
    lookup_auth_key: no4(named!("fi_av_lookup_auth_key")),
    set_user_id: no4(named!("fi_av_set_user_id")),
};

pub const FI_OPS_DOMAIN_NOSYS: fi_ops_domain = fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open: no4(named!("fi_av_open")),
    cq_open: no4(named!("fi_cq_open")),
    endpoint: no4(named!("fi_endpoint")),
    scalable_ep: no4(named!("fi_scalable_ep")),
    cntr_open: no4(named!("fi_cntr_open")),
    poll_open: no3(named!("fi_poll_open")),
    stx_ctx: no4(named!("fi_stx_context")),
    srx_ctx: no4(named!("fi_srx_context")),
    query_atomic: no5(named!("fi_query_atomic")),
    query_collective: no4(named!("fi_query_collective")),
    endpoint2: no5(named!("fi_endpoint2")),
};

pub const FI_OPS_MR_NOSYS: fi_ops_mr = fi_ops_mr {
    size: size_of::<fi_ops_mr>(),
    reg: no9(named!("fi_mr_reg")),
    regv: no9(named!("fi_mr_regv")),
    regattr: no4(named!("fi_mr_regattr")),
};

pub const FI_OPS_EP_NOSYS: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: no2(named!("fi_cancel")),
    getopt: no5(named!("fi_getopt")),
    setopt: no5(named!("fi_setopt")),
    tx_ctx: no5(named!("fi_tx_context")),
    rx_ctx: no5(named!("fi_rx_context")),
    rx_size_left: no1(named!("fi_rx_size_left")),
    tx_size_left: no1(named!("fi_tx_size_left")),
};

pub const FI_OPS_MSG_NOSYS: fi_ops_msg = fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
    recv: no6(named!("fi_recv")),
    recvv: no6(named!("fi_recvv")),
    recvmsg: no3(named!("fi_recvmsg")),
    send: no6(named!("fi_send")),
    sendv: no6(named!("fi_sendv")),
    sendmsg: no3(named!("fi_sendmsg")),
    inject: no4(named!("fi_inject")),
    senddata: no7(named!("fi_senddata")),
    injectdata: no5(named!("fi_injectdata")),
};

pub const FI_OPS_WAIT_NOSYS: fi_ops_wait =
    fi_ops_wait { size: size_of::<fi_ops_wait>(), wait: no2(named!("fi_wait")) };

pub const FI_OPS_POLL_NOSYS: fi_ops_poll = fi_ops_poll {
    size: size_of::<fi_ops_poll>(),
    poll: no3(named!("fi_poll")),
    poll_add: no3(named!("fi_poll_add")),
    poll_del: no3(named!("fi_poll_del")),
};

pub const FI_OPS_EQ_NOSYS: fi_ops_eq = fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: no5(named!("fi_eq_read")),
    readerr: no3(named!("fi_eq_readerr")),
    write: no5(named!("fi_eq_write")),
    sread: no6(named!("fi_eq_sread")),
    strerror: no5(named!("fi_eq_strerror")),
};

pub const FI_OPS_CQ_NOSYS: fi_ops_cq = fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: no3(named!("fi_cq_read")),
    readfrom: no4(named!("fi_cq_readfrom")),
    readerr: no3(named!("fi_cq_readerr")),
    sread: no5(named!("fi_cq_sread")),
    sreadfrom: no6(named!("fi_cq_sreadfrom")),
    signal: no1(named!("fi_cq_signal")),
    strerror: no5(named!("fi_cq_strerror")),
};

pub const FI_OPS_CNTR_NOSYS: fi_ops_cntr = fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read: no1(named!("fi_cntr_read")),
    readerr: no1(named!("fi_cntr_readerr")),
    add: no2(named!("fi_cntr_add")),
    set: no2(named!("fi_cntr_set")),
    wait: no3(named!("fi_cntr_wait")),
    adderr: no2(named!("fi_cntr_adderr")),
    seterr: no2(named!("fi_cntr_seterr")),
};

pub const FI_OPS_RMA_NOSYS: fi_ops_rma = fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read: no8(named!("fi_read")),
    readv: no8(named!("fi_readv")),
    readmsg: no3(named!("fi_readmsg")),
    write: no8(named!("fi_write")),
    writev: no8(named!("fi_writev")),
    writemsg: no3(named!("fi_writemsg")),
    inject: no6(named!("fi_inject_write")),
    writedata: no9(named!("fi_writedata")),
    injectdata: no7(named!("fi_inject_writedata")),
};

pub const FI_OPS_TAGGED_NOSYS: fi_ops_tagged = fi_ops_tagged {
    size: size_of::<fi_ops_tagged>(),
    recv: no8(named!("fi_trecv")),
    recvv: no8(named!("fi_trecvv")),
    recvmsg: no3(named!("fi_trecvmsg")),
    send: no7(named!("fi_tsend")),
    sendv: no7(named!("fi_tsendv")),
    sendmsg: no3(named!("fi_tsendmsg")),
    inject: no5(named!("fi_tinject")),
    senddata: no8(named!("fi_tsenddata")),
    injectdata: no6(named!("fi_tinjectdata")),
};

pub const FI_OPS_ATOMIC_NOSYS: fi_ops_atomic = fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write: no10(named!("fi_atomic")),
    writev: no10(named!("fi_atomicv")),
    writemsg: no3(named!("fi_atomicmsg")),
    inject: no8(named!("fi_inject_atomic")),
    readwrite: no12(named!("fi_fetch_atomic")),
    readwritev: no13(named!("fi_fetch_atomicv")),
    readwritemsg: no6(named!("fi_fetch_atomicmsg")),
    compwrite: no14(named!("fi_compare_atomic")),
    compwritev: no16(named!("fi_compare_atomicv")),
    compwritemsg: no9(named!("fi_compare_atomicmsg")),
    writevalid: no4(named!("fi_atomicvalid")),
    readwritevalid: no4(named!("fi_fetch_atomicvalid")),
    compwritevalid: no4(named!("fi_compare_atomicvalid")),
};

pub const FI_OPS_CM_NOSYS: fi_ops_cm = fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname: no3(named!("fi_setname")),
    getname: no3(named!("fi_getname")),
    getpeer: no3(named!("fi_getpeer")),
    connect: no4(named!("fi_connect")),
    listen: no1(named!("fi_listen")),
    accept: no3(named!("fi_accept")),
    reject: no4(named!("fi_reject")),
    shutdown: no2(named!("fi_shutdown")),
    join: no5(named!("fi_join")),
};

pub const FI_OPS_AV_SET_NOSYS: fi_ops_av_set = fi_ops_av_set {
    size: size_of::<fi_ops_av_set>(),
    set_union: no2(named!("fi_av_set_union")),
    intersect: no2(named!("fi_av_set_intersect")),
    diff: no2(named!("fi_av_set_diff")),
    insert: no2(named!("fi_av_set_insert")),
    remove: no2(named!("fi_av_set_remove")),
    addr: no2(named!("fi_av_set_addr")),
};

pub const FI_OPS_COLLECTIVE_NOSYS: fi_ops_collective = fi_ops_collective {
    size: size_of::<fi_ops_collective>(),
    barrier: no3(named!("fi_barrier")),
    broadcast: no9(named!("fi_broadcast")),
    alltoall: no10(named!("fi_alltoall")),
    allreduce: no11(named!("fi_allreduce")),
    allgather: no10(named!("fi_allgather")),
    reduce_scatter: no11(named!("fi_reduce_scatter")),
    reduce: no12(named!("fi_reduce")),
    scatter: no11(named!("fi_scatter")),
    gather: no11(named!("fi_gather")),
    msg: no6(named!("a collective transfer")),
    barrier2: no4(named!("fi_barrier2")),
};

#[cfg(test)]
mod tests {
    #![expect(
        unsafe_code,
        clippy::multiple_unsafe_ops_per_block,
        reason = "calls through C function pointers"
    )]

    use core::ptr::{null, null_mut};
    use std::sync::Mutex;

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
    fn each_refusal_is_heard_of() {
        static HEARD: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
        on_unsupported(|name| {
            HEARD.lock().unwrap().push(name);
            assert_ne!(name, "fi_reject", "a panic that ends in the stub");
        });
        // SAFETY: the stubs ignore their arguments.
        unsafe {
            (FI_OPS_CM_NOSYS.listen)(null_mut());
            (FI_OPS_CNTR_NOSYS.read)(null_mut());
            (FI_OPS_TAGGED_NOSYS.inject)(null_mut(), null(), 8, 0, 0);
            let answer = (FI_OPS_CM_NOSYS.reject)(null_mut(), null_mut(), null(), 0);
            assert_eq!(answer, -FI_ENOSYS);
        }
        let heard = HEARD.lock().unwrap();
        assert!(heard.contains(&"fi_listen") && heard.contains(&"fi_tinject"));
        assert!(!heard.contains(&"fi_cntr_read"), "a count is no refusal");
    }

    #[test]
    fn size_is_of_the_table() {
        assert_eq!(FI_OPS_AV_NOSYS.size, 88);
        assert_eq!(FI_OPS_COLLECTIVE_NOSYS.size, 96);
    }
}

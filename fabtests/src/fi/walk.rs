// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Calls of every function of every operations table of an object, with meaningless arguments.
//!
//! The first argument of each is an object; all other pointers are null, and all numbers are equal.
//! Only members within the `size` of a table are called. The cases evaluate the results.
//!
//! Mirrors `rdma/fabric.h`, `rdma/fi_domain.h`, `rdma/fi_endpoint.h`, `rdma/fi_cm.h`,
//! `rdma/fi_eq.h`, `rdma/fi_rma.h`, `rdma/fi_tagged.h`, `rdma/fi_atomic.h`, `rdma/fi_collective.h`.
#![expect(unsafe_code, reason = "functions behind pointers are called with nonsense")]

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::{fmt, ptr};

use libfabric_sys as sys;

use super::errno::{Errno, Result};
use super::object::Fid;

/// Maximum number of arguments of a libfabric function.
const MOST: usize = 16;

/// Result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallResult {
    /// Result of a function that returns `int` or `ssize_t`.
    Code(i64),
    /// Result of a function that returns an unsigned number.
    Number(u64),
    /// Whether a function that returns a text returned one.
    Text(bool),
}

/// Type of an argument.
trait Word {
    const POINTER: bool;
    fn of(word: usize) -> Self;
}

impl<T> Word for *mut T {
    const POINTER: bool = true;
    fn of(word: usize) -> Self {
        ptr::with_exposed_provenance_mut(word)
    }
}

impl<T> Word for *const T {
    const POINTER: bool = true;
    fn of(word: usize) -> Self {
        ptr::with_exposed_provenance(word)
    }
}

impl Word for u32 {
    const POINTER: bool = false;
    #[expect(clippy::cast_possible_truncation, reason = "an argument is as wide as it is")]
    fn of(word: usize) -> Self {
        word as u32
    }
}

impl Word for i32 {
    const POINTER: bool = false;
    fn of(word: usize) -> Self {
        u32::of(word) as i32
    }
}

impl Word for u64 {
    const POINTER: bool = false;
    fn of(word: usize) -> Self {
        word as u64
    }
}

impl Word for usize {
    const POINTER: bool = false;
    fn of(word: usize) -> Self {
        word
    }
}

/// Type of a result.
trait Returned {
    fn answer(self) -> CallResult;
}

impl Returned for c_int {
    fn answer(self) -> CallResult {
        CallResult::Code(i64::from(self))
    }
}

impl Returned for isize {
    fn answer(self) -> CallResult {
        CallResult::Code(self as i64)
    }
}

impl Returned for u64 {
    fn answer(self) -> CallResult {
        CallResult::Number(self)
    }
}

impl Returned for *const c_char {
    fn answer(self) -> CallResult {
        CallResult::Text(!self.is_null())
    }
}

/// Function pointer whose arguments are words.
trait Function: Copy + 'static {
    const POINTERS: &'static [bool];

    /// # Safety
    /// The callee must accept these arguments.
    unsafe fn with(self, words: &[usize; MOST]) -> CallResult;
}

macro_rules! functions {
    ($(($($arg:ident)*))*) => {$(
        impl<R: Returned + 'static, $($arg: Word + 'static),*> Function
            for unsafe extern "C" fn($($arg),*) -> R
        {
            const POINTERS: &'static [bool] = &[$($arg::POINTER),*];

            unsafe fn with(self, words: &[usize; MOST]) -> CallResult {
                let mut words = words.iter().copied();
                // SAFETY: the caller's contract.
                unsafe { self($($arg::of(words.next().unwrap_or(0))),*) }.answer()
            }
        }
    )*};
}

functions! {
    (A)
    (A B)
    (A B C)
    (A B C D)
    (A B C D E)
    (A B C D E F)
    (A B C D E F G)
    (A B C D E F G H)
    (A B C D E F G H I)
    (A B C D E F G H I J)
    (A B C D E F G H I J K)
    (A B C D E F G H I J K L)
    (A B C D E F G H I J K L M)
    (A B C D E F G H I J K L M N)
    (A B C D E F G H I J K L M N O)
    (A B C D E F G H I J K L M N O P)
}

/// Function that takes its arguments as words.
type Call = dyn Fn(&[usize; MOST]) -> CallResult;

/// One function of a table.
pub struct Slot {
    /// Name of the table without `fi_ops`, then of the member: `msg.recv`.
    pub name: String,
    pointers: &'static [bool],
    call: Box<Call>,
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Slot {
    fn new<F: Function>(name: String, function: F) -> Slot {
        Slot {
            name,
            pointers: F::POINTERS,
            // SAFETY: none. The reaction to meaningless arguments is under test, in a process that
            // may crash.
            call: Box::new(move |words| unsafe { function.with(words) }),
        }
    }

    /// Calls the function on `object`, an open object or null. Every other pointer is null, and
    /// every length, count or flag is `number`.
    pub fn call(&self, object: Option<&dyn Fid>, number: usize) -> Result<CallResult> {
        let first = match object {
            Some(object) => object.raw_fid()?.expose_provenance(),
            None => 0,
        };
        let mut words = [0; MOST];
        for (word, pointer) in words.iter_mut().zip(self.pointers) {
            *word = if *pointer { 0 } else { number };
        }
        if let Some(word) = words.first_mut() {
            *word = first;
        }
        Ok((self.call)(&words))
    }
}

/// Operations tables of an object.
#[derive(Debug, Default)]
pub struct Tables {
    /// Functions in the order of the object's tables and their members.
    pub slots: Vec<Slot>,
    /// Null tables, and null members within the `size` of their table.
    pub holes: Vec<String>,
}

impl Tables {
    /// Reads the tables of an open object.
    ///
    /// # Errors
    /// `EBADF` after a close, `EINVAL` for a class without known tables.
    pub fn of(object: &dyn Fid) -> Result<Tables> {
        let (fid, class) = (object.raw_fid()?, object.class()?);
        let mut all = Tables::default();
        // SAFETY: an open object begins with a `struct fid`.
        all.base(unsafe { (*fid).ops });
        match class {
            // SAFETY: the class identifies the structure of the object.
            sys::FI_CLASS_FABRIC => all.fabric(unsafe { *fid.cast::<sys::fid_fabric>() }.ops),
            sys::FI_CLASS_DOMAIN => {
                // SAFETY: as above.
                let domain = unsafe { *fid.cast::<sys::fid_domain>() };
                all.domain(domain.ops);
                all.mr(domain.mr);
            }
            sys::FI_CLASS_EP
            | sys::FI_CLASS_SEP
            | sys::FI_CLASS_TX_CTX
            | sys::FI_CLASS_RX_CTX
            | sys::FI_CLASS_SRX_CTX => {
                // SAFETY: as above.
                let ep = unsafe { *fid.cast::<sys::fid_ep>() };
                all.ep(ep.ops);
                all.cm(ep.cm);
                all.msg(ep.msg);
                all.rma(ep.rma);
                all.tagged(ep.tagged);
                all.atomic(ep.atomic);
                all.collective(ep.collective);
            }
            sys::FI_CLASS_PEP => {
                // SAFETY: as above.
                let pep = unsafe { *fid.cast::<sys::fid_pep>() };
                all.ep(pep.ops);
                all.cm(pep.cm);
            }
            // SAFETY: as above.
            sys::FI_CLASS_STX_CTX => all.ep(unsafe { *fid.cast::<sys::fid_stx>() }.ops),
            // SAFETY: as above.
            sys::FI_CLASS_AV => all.av(unsafe { *fid.cast::<sys::fid_av>() }.ops),
            // SAFETY: as above.
            sys::FI_CLASS_AV_SET => all.av_set(unsafe { *fid.cast::<sys::fid_av_set>() }.ops),
            // SAFETY: as above.
            sys::FI_CLASS_CQ => all.cq(unsafe { *fid.cast::<sys::fid_cq>() }.ops),
            // SAFETY: as above.
            sys::FI_CLASS_EQ => all.eq(unsafe { *fid.cast::<sys::fid_eq>() }.ops),
            // SAFETY: as above.
            sys::FI_CLASS_CNTR => all.cntr(unsafe { *fid.cast::<sys::fid_cntr>() }.ops),
            // SAFETY: as above.
            sys::FI_CLASS_POLL => all.poll(unsafe { *fid.cast::<sys::fid_poll>() }.ops),
            // SAFETY: as above.
            sys::FI_CLASS_WAIT => all.wait(unsafe { *fid.cast::<sys::fid_wait>() }.ops),
            sys::FI_CLASS_MR | sys::FI_CLASS_MC | sys::FI_CLASS_CONNREQ => {}
            _ => return Err(Errno::EINVAL),
        }
        Ok(all)
    }
}

/// Defines a function for each table, which collects the members within its `size`.
macro_rules! tables {
    ($($table:ident: $type:ident { $($slot:ident)* })*) => {
        impl Tables {
            $(fn $table(&mut self, ops: *const sys::$type) {
                let table = stringify!($table);
                if ops.is_null() {
                    return self.holes.push(table.into());
                }
                // SAFETY: the table of an open object lives as long as the object, and begins with
                // its size.
                let size = unsafe { (*ops).size };
                let mut known = size_of::<usize>();
                $(
                    let at = offset_of!(sys::$type, $slot);
                    known = known.max(at + size_of::<usize>());
                    if at < size {
                        let name = format!("{table}.{}", stringify!($slot));
                        // SAFETY: within the size of the table.
                        let word = unsafe { ops.byte_add(at).cast::<*const c_void>().read() };
                        if word.is_null() {
                            self.holes.push(name);
                        } else {
                            // SAFETY: within the size of the table, and not null.
                            self.slots.push(Slot::new(name, unsafe { (*ops).$slot }));
                        }
                    }
                )*
                let whole = size % size_of::<usize>() == 0;
                if known < size_of::<sys::$type>() || size > known || !whole {
                    self.holes.push(format!("{table}: {size} bytes, {known} known"));
                }
            })*
        }
    };
}

tables! {
    base: fi_ops { bind control ops_open tostr ops_set close }
    fabric: fi_ops_fabric { domain passive_ep eq_open wait_open trywait domain2 }
    domain: fi_ops_domain {
        av_open cq_open endpoint scalable_ep cntr_open poll_open stx_ctx srx_ctx query_atomic
        query_collective endpoint2
    }
    mr: fi_ops_mr { reg regv regattr }
    ep: fi_ops_ep { cancel getopt setopt tx_ctx rx_ctx rx_size_left tx_size_left }
    cm: fi_ops_cm { setname getname getpeer connect listen accept reject shutdown join }
    msg: fi_ops_msg { recv recvv recvmsg send sendv sendmsg inject senddata injectdata }
    rma: fi_ops_rma { read readv readmsg write writev writemsg inject writedata injectdata }
    tagged: fi_ops_tagged { recv recvv recvmsg send sendv sendmsg inject senddata injectdata }
    atomic: fi_ops_atomic {
        write writev writemsg inject readwrite readwritev readwritemsg compwrite compwritev
        compwritemsg writevalid readwritevalid compwritevalid
    }
    collective: fi_ops_collective {
        barrier broadcast alltoall allreduce allgather reduce_scatter reduce scatter gather msg
        barrier2
    }
    av: fi_ops_av {
        insert insertsvc insertsym remove lookup straddr av_set insert_auth_key lookup_auth_key
        set_user_id
    }
    av_set: fi_ops_av_set { set_union intersect diff insert remove addr }
    cq: fi_ops_cq { read readfrom readerr sread sreadfrom signal strerror }
    eq: fi_ops_eq { read readerr write sread strerror }
    cntr: fi_ops_cntr { read readerr add set wait adderr seterr }
    poll: fi_ops_poll { poll poll_add poll_del }
    wait: fi_ops_wait { wait }
}

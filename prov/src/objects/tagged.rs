// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "C calls in, with pointers")]
//! Tagged messages: `struct fi_ops_tagged`, from C's arguments to the arguments of the data path.
//!
//! All 64 bits of a tag match. `FI_MULTI_RECV` is for untagged receives: plain calls drop it from
//! the endpoint's flags, `fi_trecvmsg` refuses it. Otherwise the calls behave as in `msg`.
//!
//! Mirrors fi_tagged(3).

use std::ffi::c_void;

use libfabric_sys as fi;
use libfabric_sys::{fi_addr_t, fi_msg_tagged, fid_ep, iovec};

use crate::base::buffers::{Buffers, buffer};
use crate::base::entry::{Object, guard, object};
use crate::base::errno::Errno;
use crate::engine::types::args::{RecvArgs, SendArgs};
use crate::objects::endpoint::context::{RxCtx, TxCtx};
use crate::objects::endpoint::ep::Ep;
use crate::objects::endpoint::message_calls::{message_calls, message_tables};
use crate::objects::endpoint::prefix::Prefixed;
use crate::objects::endpoint::srx::Srx;
use crate::objects::endpoint::transfer::{Receiver, Sender};
use crate::objects::endpoint::trigger::Triggered;

message_tables!(fi::fi_ops_tagged, fi::FI_OPS_TAGGED_NOSYS);

message_calls! {
    "t", fi_msg_tagged, unfit: fi::FI_MULTI_RECV,
    rx tag: (tag, ignore) Some((tag, ignore)), |msg| Some((msg.tag, msg.ignore)),
    tx tag: (tag) Some(tag), |msg| Some(msg.tag),
}

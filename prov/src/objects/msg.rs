// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "C calls in, with pointers")]
//! Untagged messages: `struct fi_ops_msg`, from C's arguments to the arguments of the data path.
//!
//! The `desc` arguments are ignored: memory need not be registered to be sent. Every call returns
//! at once. It fails with `-FI_EAGAIN` when the endpoint's queue is full and `-FI_EOPBADSTATE`
//! before `fi_enable`.
//!
//! Mirrors fi_msg(3).

use std::ffi::c_void;

use libfabric_sys as fi;
use libfabric_sys::{fi_addr_t, fi_msg, fid_ep, iovec};

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

message_tables!(fi::fi_ops_msg, fi::FI_OPS_MSG_NOSYS);

message_calls! {
    "", fi_msg, unfit: 0,
    rx tag: () None, |msg| None,
    tx tag: () None, |msg| None,
}

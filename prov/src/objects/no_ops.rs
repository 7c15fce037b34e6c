// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Operation tables of the classes that an object does not support: each call fails with
//! `-FI_ENOSYS`.

use libfabric_sys as fi;

pub(super) static NO_ATOMIC: fi::fi_ops_atomic = fi::FI_OPS_ATOMIC_NOSYS;
pub(super) static NO_CM: fi::fi_ops_cm = fi::FI_OPS_CM_NOSYS;
pub(super) static NO_COLLECTIVE: fi::fi_ops_collective = fi::FI_OPS_COLLECTIVE_NOSYS;
pub(super) static NO_EP: fi::fi_ops_ep = fi::FI_OPS_EP_NOSYS;
pub(super) static NO_MSG: fi::fi_ops_msg = fi::FI_OPS_MSG_NOSYS;
pub(super) static NO_RMA: fi::fi_ops_rma = fi::FI_OPS_RMA_NOSYS;
pub(super) static NO_TAGGED: fi::fi_ops_tagged = fi::FI_OPS_TAGGED_NOSYS;

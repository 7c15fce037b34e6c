// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! `Default` for the structures with pointers: all zero, the usual initial value in C.
//!
//! Operation tables and objects are excluded, since zero is not a valid value for them.
#![expect(unsafe_code, reason = "makes values out of zero bytes")]

use crate::{
    fi_av_attr, fi_cntr_attr, fi_context, fi_context2, fi_cq_attr, fi_cq_data_entry, fi_cq_entry,
    fi_cq_err_entry, fi_cq_msg_entry, fi_cq_tagged_entry, fi_domain_attr, fi_ep_attr, fi_eq_attr,
    fi_eq_cm_entry, fi_eq_entry, fi_eq_err_entry, fi_fabric_attr, fi_info, fi_ioc, fi_mr_attr,
    fi_mr_dmabuf, fi_msg, fi_msg_atomic, fi_msg_rma, fi_msg_tagged,
};

macro_rules! zero_is_a_value {
    ($($name:ident)*) => {$(
        impl $name {
            /// Value with all bytes zero.
            // SAFETY: the structure consists of integers and raw pointers, for which zero is valid.
            pub const ZERO: Self = unsafe { core::mem::zeroed() };
        }

        impl Default for $name {
            fn default() -> Self {
                Self::ZERO
            }
        }
    )*};
}

zero_is_a_value! {
    fi_av_attr fi_cntr_attr fi_context fi_context2 fi_cq_attr fi_cq_data_entry fi_cq_entry
    fi_cq_err_entry fi_cq_msg_entry fi_cq_tagged_entry fi_domain_attr fi_ep_attr fi_eq_attr
    fi_eq_cm_entry fi_eq_entry fi_eq_err_entry fi_fabric_attr fi_info fi_ioc fi_mr_attr fi_mr_dmabuf
    fi_msg fi_msg_atomic fi_msg_rma fi_msg_tagged
}

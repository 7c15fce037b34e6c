// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Cases of other areas with shared contexts and with message prefixes, over every kind of
//! endpoint. Mirrors fi_endpoint(3), "Shared Contexts", and fi_getinfo(3), "FI_MSG_PREFIX".
//!
//! Several endpoints on one context are tested in `shared`, properties of prefixes in `kinds`.

use libfabric_sys as sys;
use scif_fabtests::harness::{Case, Setup, case};

use super::over::{kind, over};

/// Returns the set-up with a shared receive context only.
const fn inbox(ep_type: u32) -> Setup {
    Setup {
        shared_rx: true,
        ..kind(ep_type)
    }
}

/// Returns the set-up with a shared transmit context only.
const fn outbox(ep_type: u32) -> Setup {
    Setup {
        shared_tx: true,
        ..kind(ep_type)
    }
}

/// Returns the set-up with both shared contexts.
const fn boxes(ep_type: u32) -> Setup {
    Setup {
        shared_tx: true,
        ..inbox(ep_type)
    }
}

const fn prefix(ep_type: u32) -> Setup {
    Setup {
        prefix: true,
        ..kind(ep_type)
    }
}

pub(crate) const INBOX: &[Case] = over![
    inbox(0),
    "shared/rx_msg_send" = "msg/send",
    "shared/rx_msg_sendv" = "msg/sendv",
    "shared/rx_msg_sendmsg" = "msg/sendmsg",
    "shared/rx_msg_inject" = "msg/inject",
    "shared/rx_msg_senddata" = "msg/senddata",
    "shared/rx_msg_injectdata" = "msg/injectdata",
    "shared/rx_msg_recvv" = "msg/recvv",
    "shared/rx_msg_recvmsg" = "msg/recvmsg",
    "shared/rx_msg_sendv_recvv" = "msg/sendv_recvv",
    "shared/rx_msg_sendmsg_cq_data" = "msg/sendmsg_cq_data",
    "shared/rx_msg_delivery_waits_for_the_receive" = "msg/delivery_waits_for_the_receive",
    "shared/rx_match_waits_for_the_receive" = "match/waits_for_the_receive",
    "shared/rx_msg_null_buffer" = "msg/null_buffer",
    "shared/rx_msg_both_at_once" = "msg/both_at_once",
    "shared/rx_msg_truncation" = "msg/truncation",
    "shared/rx_msg_order_of_receives" = "msg/order_of_receives",
    "shared/rx_msg_cancel" = "msg/cancel",
    "shared/rx_msg_selective_completion" = "msg/selective_completion",
    "shared/rx_tagged_send" = "tagged/send",
    "shared/rx_tagged_senddata" = "tagged/senddata",
    "shared/rx_tagged_recvv" = "tagged/recvv",
    "shared/rx_tagged_recvmsg" = "tagged/recvmsg",
    "shared/rx_tagged_reverse_tags" = "tagged/reverse_tags",
    "shared/rx_tagged_ignore_bits" = "tagged/ignore_bits",
    "shared/rx_tagged_same_tag_in_order" = "tagged/same_tag_in_order",
    "shared/rx_tagged_not_mixed_with_msg" = "tagged/not_mixed_with_msg",
    "shared/rx_tagged_all_64_bits" = "tagged/all_64_bits",
    "shared/rx_tagged_truncation" = "tagged/truncation",
    "shared/rx_tagged_cancel" = "tagged/cancel",
    "shared/rx_peek_nothing" = "peek/nothing",
    "shared/rx_peek_finds" = "peek/finds",
    "shared/rx_peek_claim" = "peek/claim",
    "shared/rx_peek_claimed_is_nobody_elses" = "peek/claimed_is_nobody_elses",
    "shared/rx_peek_discard" = "peek/discard",
    "shared/rx_peek_claim_and_discard" = "peek/claim_and_discard",
    "shared/rx_peek_order" = "peek/order",
    "shared/rx_multi_recv_small" = "multi_recv/small",
    "shared/rx_multi_recv_large" = "multi_recv/large",
    "shared/rx_multi_recv_mixed" = "multi_recv/mixed",
    "shared/rx_multi_recv_op_flags" = "multi_recv/op_flags",
    "shared/rx_multi_recv_message_does_not_fit" = "multi_recv/message_does_not_fit",
    "shared/rx_multi_recv_cancel" = "multi_recv/cancel",
    "shared/rx_multi_recv_cq_data" = "multi_recv/cq_data",
    "shared/rx_multi_recv_unexpected" = "multi_recv/unexpected",
    "shared/rx_multi_recv_option" = "multi_recv/option",
];

pub(crate) const INBOX_CONNECTED: &[Case] = over![
    inbox(sys::FI_EP_MSG),
    "shared/connected_rx_msg_send" = "msg/send",
    "shared/connected_rx_msg_sendv" = "msg/sendv",
    "shared/connected_rx_msg_sendmsg" = "msg/sendmsg",
    "shared/connected_rx_msg_inject" = "msg/inject",
    "shared/connected_rx_msg_senddata" = "msg/senddata",
    "shared/connected_rx_msg_injectdata" = "msg/injectdata",
    "shared/connected_rx_msg_recvv" = "msg/recvv",
    "shared/connected_rx_msg_recvmsg" = "msg/recvmsg",
    "shared/connected_rx_msg_sendv_recvv" = "msg/sendv_recvv",
    "shared/connected_rx_msg_sendmsg_cq_data" = "msg/sendmsg_cq_data",
    "shared/connected_rx_msg_delivery_waits_for_the_receive" = "msg/delivery_waits_for_the_receive",
    "shared/connected_rx_match_waits_for_the_receive" = "match/waits_for_the_receive",
    "shared/connected_rx_msg_null_buffer" = "msg/null_buffer",
    "shared/connected_rx_msg_both_at_once" = "msg/both_at_once",
    "shared/connected_rx_msg_truncation" = "msg/truncation",
    "shared/connected_rx_msg_order_of_receives" = "msg/order_of_receives",
    "shared/connected_rx_msg_cancel" = "msg/cancel",
    "shared/connected_rx_msg_selective_completion" = "msg/selective_completion",
    "shared/connected_rx_tagged_send" = "tagged/send",
    "shared/connected_rx_tagged_senddata" = "tagged/senddata",
    "shared/connected_rx_tagged_recvv" = "tagged/recvv",
    "shared/connected_rx_tagged_recvmsg" = "tagged/recvmsg",
    "shared/connected_rx_tagged_reverse_tags" = "tagged/reverse_tags",
    "shared/connected_rx_tagged_ignore_bits" = "tagged/ignore_bits",
    "shared/connected_rx_tagged_same_tag_in_order" = "tagged/same_tag_in_order",
    "shared/connected_rx_tagged_not_mixed_with_msg" = "tagged/not_mixed_with_msg",
    "shared/connected_rx_tagged_all_64_bits" = "tagged/all_64_bits",
    "shared/connected_rx_tagged_truncation" = "tagged/truncation",
    "shared/connected_rx_tagged_cancel" = "tagged/cancel",
    "shared/connected_rx_peek_nothing" = "peek/nothing",
    "shared/connected_rx_peek_finds" = "peek/finds",
    "shared/connected_rx_peek_claim" = "peek/claim",
    "shared/connected_rx_peek_claimed_is_nobody_elses" = "peek/claimed_is_nobody_elses",
    "shared/connected_rx_peek_discard" = "peek/discard",
    "shared/connected_rx_peek_claim_and_discard" = "peek/claim_and_discard",
    "shared/connected_rx_peek_order" = "peek/order",
    "shared/connected_rx_multi_recv_small" = "multi_recv/small",
    "shared/connected_rx_multi_recv_large" = "multi_recv/large",
    "shared/connected_rx_multi_recv_mixed" = "multi_recv/mixed",
    "shared/connected_rx_multi_recv_op_flags" = "multi_recv/op_flags",
    "shared/connected_rx_multi_recv_message_does_not_fit" = "multi_recv/message_does_not_fit",
    "shared/connected_rx_multi_recv_cancel" = "multi_recv/cancel",
    "shared/connected_rx_multi_recv_cq_data" = "multi_recv/cq_data",
    "shared/connected_rx_multi_recv_unexpected" = "multi_recv/unexpected",
    "shared/connected_rx_multi_recv_option" = "multi_recv/option",
];

pub(crate) const INBOX_DATAGRAM: &[Case] = over![
    inbox(sys::FI_EP_DGRAM),
    "shared/datagram_rx_msg_send" = "msg/send",
    "shared/datagram_rx_msg_sendv" = "msg/sendv",
    "shared/datagram_rx_msg_inject" = "msg/inject",
    "shared/datagram_rx_msg_senddata" = "msg/senddata",
    "shared/datagram_rx_msg_recvv" = "msg/recvv",
    "shared/datagram_rx_msg_recvmsg" = "msg/recvmsg",
    "shared/datagram_rx_msg_truncation" = "msg/truncation",
    "shared/datagram_rx_msg_cancel" = "msg/cancel",
    "shared/datagram_rx_msg_selective_completion" = "msg/selective_completion",
    "shared/datagram_rx_tagged_send" = "tagged/send",
    "shared/datagram_rx_tagged_senddata" = "tagged/senddata",
    "shared/datagram_rx_tagged_recvv" = "tagged/recvv",
    "shared/datagram_rx_tagged_recvmsg" = "tagged/recvmsg",
    "shared/datagram_rx_tagged_reverse_tags" = "tagged/reverse_tags",
    "shared/datagram_rx_tagged_not_mixed_with_msg" = "tagged/not_mixed_with_msg",
    "shared/datagram_rx_tagged_cancel" = "tagged/cancel",
    "shared/datagram_rx_peek_finds" = "peek/finds",
    "shared/datagram_rx_peek_claim" = "peek/claim",
    "shared/datagram_rx_multi_recv_small" = "multi_recv/small",
    "shared/datagram_rx_multi_recv_large" = "multi_recv/large",
    "shared/datagram_rx_multi_recv_mixed" = "multi_recv/mixed",
];

pub(crate) const OUTBOX: &[Case] = over![
    outbox(0),
    "shared/tx_msg_send" = "msg/send",
    "shared/tx_msg_inject" = "msg/inject",
    "shared/tx_tagged_send" = "tagged/send",
    "shared/tx_tagged_inject" = "tagged/inject",
    "shared/tx_rma_write" = "rma/write",
    "shared/tx_atomic_base" = "atomic/base",
];

pub(crate) const OUTBOX_CONNECTED: &[Case] = over![
    outbox(sys::FI_EP_MSG),
    "shared/connected_tx_msg_send" = "msg/send",
    "shared/connected_tx_msg_inject" = "msg/inject",
    "shared/connected_tx_tagged_send" = "tagged/send",
    "shared/connected_tx_tagged_inject" = "tagged/inject",
    "shared/connected_tx_rma_write" = "rma/write",
    "shared/connected_tx_atomic_base" = "atomic/base",
];

pub(crate) const OUTBOX_DATAGRAM: &[Case] = over![
    outbox(sys::FI_EP_DGRAM),
    "shared/datagram_tx_msg_send" = "msg/send",
    "shared/datagram_tx_msg_inject" = "msg/inject",
    "shared/datagram_tx_tagged_send" = "tagged/send",
    "shared/datagram_tx_tagged_inject" = "tagged/inject",
    "shared/datagram_tx_rma_write" = "rma/write",
    "shared/datagram_tx_atomic_base" = "atomic/base",
];

pub(crate) const BOXES: &[Case] = over![
    boxes(0),
    "shared/both_msg_send" = "msg/send",
    "shared/both_tagged_send" = "tagged/send",
];

pub(crate) const BOXES_CONNECTED: &[Case] = over![
    boxes(sys::FI_EP_MSG),
    "shared/connected_both_msg_send" = "msg/send",
    "shared/connected_both_tagged_send" = "tagged/send",
];

pub(crate) const BOXES_DATAGRAM: &[Case] = over![
    boxes(sys::FI_EP_DGRAM),
    "shared/datagram_both_msg_send" = "msg/send",
    "shared/datagram_both_tagged_send" = "tagged/send",
];

pub(crate) const PREFIX: &[Case] = over![
    prefix(0),
    "kinds/prefix_msg_send" = "msg/send",
    "kinds/prefix_msg_sendv" = "msg/sendv",
    "kinds/prefix_msg_sendmsg" = "msg/sendmsg",
    "kinds/prefix_msg_inject" = "msg/inject",
    "kinds/prefix_msg_senddata" = "msg/senddata",
    "kinds/prefix_msg_injectdata" = "msg/injectdata",
    "kinds/prefix_msg_recvv" = "msg/recvv",
    "kinds/prefix_msg_recvmsg" = "msg/recvmsg",
    "kinds/prefix_msg_sendv_recvv" = "msg/sendv_recvv",
    "kinds/prefix_msg_sendmsg_cq_data" = "msg/sendmsg_cq_data",
    "kinds/prefix_msg_sendmsg_inject" = "msg/sendmsg_inject",
    "kinds/prefix_msg_delivery_complete" = "msg/delivery_complete",
    "kinds/prefix_tagged_send" = "tagged/send",
    "kinds/prefix_tagged_sendv" = "tagged/sendv",
    "kinds/prefix_tagged_sendmsg" = "tagged/sendmsg",
    "kinds/prefix_tagged_inject" = "tagged/inject",
    "kinds/prefix_tagged_senddata" = "tagged/senddata",
    "kinds/prefix_tagged_injectdata" = "tagged/injectdata",
    "kinds/prefix_tagged_recvv" = "tagged/recvv",
    "kinds/prefix_tagged_recvmsg" = "tagged/recvmsg",
    "kinds/prefix_tagged_sendmsg_cq_data" = "tagged/sendmsg_cq_data",
    "kinds/prefix_tagged_delivery_complete" = "tagged/delivery_complete",
];

pub(crate) const PREFIX_CONNECTED: &[Case] = over![
    prefix(sys::FI_EP_MSG),
    "kinds/connected_prefix_msg_send" = "msg/send",
    "kinds/connected_prefix_msg_sendv" = "msg/sendv",
    "kinds/connected_prefix_msg_sendmsg" = "msg/sendmsg",
    "kinds/connected_prefix_msg_inject" = "msg/inject",
    "kinds/connected_prefix_msg_senddata" = "msg/senddata",
    "kinds/connected_prefix_msg_injectdata" = "msg/injectdata",
    "kinds/connected_prefix_msg_recvv" = "msg/recvv",
    "kinds/connected_prefix_msg_recvmsg" = "msg/recvmsg",
    "kinds/connected_prefix_msg_sendv_recvv" = "msg/sendv_recvv",
    "kinds/connected_prefix_msg_sendmsg_cq_data" = "msg/sendmsg_cq_data",
    "kinds/connected_prefix_msg_sendmsg_inject" = "msg/sendmsg_inject",
    "kinds/connected_prefix_msg_delivery_complete" = "msg/delivery_complete",
    "kinds/connected_prefix_tagged_send" = "tagged/send",
    "kinds/connected_prefix_tagged_sendv" = "tagged/sendv",
    "kinds/connected_prefix_tagged_sendmsg" = "tagged/sendmsg",
    "kinds/connected_prefix_tagged_inject" = "tagged/inject",
    "kinds/connected_prefix_tagged_senddata" = "tagged/senddata",
    "kinds/connected_prefix_tagged_injectdata" = "tagged/injectdata",
    "kinds/connected_prefix_tagged_recvv" = "tagged/recvv",
    "kinds/connected_prefix_tagged_recvmsg" = "tagged/recvmsg",
    "kinds/connected_prefix_tagged_sendmsg_cq_data" = "tagged/sendmsg_cq_data",
    "kinds/connected_prefix_tagged_delivery_complete" = "tagged/delivery_complete",
];

pub(crate) const PREFIX_DATAGRAM: &[Case] = over![
    prefix(sys::FI_EP_DGRAM),
    "kinds/datagram_prefix_msg_send" = "msg/send",
    "kinds/datagram_prefix_msg_sendv" = "msg/sendv",
    "kinds/datagram_prefix_msg_sendmsg" = "msg/sendmsg",
    "kinds/datagram_prefix_msg_inject" = "msg/inject",
    "kinds/datagram_prefix_msg_senddata" = "msg/senddata",
    "kinds/datagram_prefix_msg_injectdata" = "msg/injectdata",
    "kinds/datagram_prefix_msg_recvv" = "msg/recvv",
    "kinds/datagram_prefix_msg_recvmsg" = "msg/recvmsg",
    "kinds/datagram_prefix_msg_sendv_recvv" = "msg/sendv_recvv",
    "kinds/datagram_prefix_msg_sendmsg_cq_data" = "msg/sendmsg_cq_data",
    "kinds/datagram_prefix_msg_sendmsg_inject" = "msg/sendmsg_inject",
    "kinds/datagram_prefix_tagged_send" = "tagged/send",
    "kinds/datagram_prefix_tagged_sendv" = "tagged/sendv",
    "kinds/datagram_prefix_tagged_sendmsg" = "tagged/sendmsg",
    "kinds/datagram_prefix_tagged_inject" = "tagged/inject",
    "kinds/datagram_prefix_tagged_senddata" = "tagged/senddata",
    "kinds/datagram_prefix_tagged_injectdata" = "tagged/injectdata",
    "kinds/datagram_prefix_tagged_recvv" = "tagged/recvv",
    "kinds/datagram_prefix_tagged_recvmsg" = "tagged/recvmsg",
    "kinds/datagram_prefix_tagged_sendmsg_cq_data" = "tagged/sendmsg_cq_data",
];

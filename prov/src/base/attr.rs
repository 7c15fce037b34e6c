// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Offers of the provider as constant tables: capabilities, orders, limits, one [`Offer`] per
//! endpoint type.
//!
//! The comparison of hints with these tables is in `getinfo`.
//!
//! Mirrors fi_getinfo(3), fi_domain(3) and fi_endpoint(3).

use std::ffi::CStr;

use libfabric_sys::{
    FI_ATOMIC, FI_AV_USER_ID, FI_COLLECTIVE, FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_DIRECTED_RECV,
    FI_EP_DGRAM, FI_EP_MSG, FI_EP_RDM, FI_FENCE, FI_INJECT, FI_INJECT_COMPLETE, FI_LOCAL_COMM,
    FI_MATCH_COMPLETE, FI_MSG, FI_MULTI_RECV, FI_NAMED_RX_CTX, FI_ORDER_ATOMIC_RAR,
    FI_ORDER_ATOMIC_RAW, FI_ORDER_ATOMIC_WAR, FI_ORDER_ATOMIC_WAW, FI_ORDER_RAR, FI_ORDER_RAS,
    FI_ORDER_RAW, FI_ORDER_RMA_RAR, FI_ORDER_RMA_RAW, FI_ORDER_RMA_WAR, FI_ORDER_RMA_WAW,
    FI_ORDER_SAR, FI_ORDER_SAS, FI_ORDER_SAW, FI_ORDER_WAR, FI_ORDER_WAS, FI_ORDER_WAW, FI_PEER,
    FI_READ, FI_RECV, FI_REMOTE_COMM, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RMA, FI_RMA_EVENT,
    FI_SEND, FI_SHARED_AV, FI_SOURCE, FI_SOURCE_ERR, FI_TAGGED, FI_TRANSMIT_COMPLETE, FI_TRIGGER,
    FI_WRITE,
};

/// Name of the provider, of its one fabric and of its one domain.
pub(crate) const NAME: &CStr = c"scif";

/// Interface version for which this source was written, `FI_VERSION(2, 5)`.
pub(crate) const FI_VERSION_OWN: u32 = version(2, 5);

/// Version of the package, as `fi_info` shows it and libfabric compares it.
///
/// Of two files with a provider of this name, libfabric takes the newer one. Of two that differ
/// only in their patch level, it takes the one found first.
pub(crate) const RELEASE: u32 =
    version(number(env!("CARGO_PKG_VERSION_MAJOR")), number(env!("CARGO_PKG_VERSION_MINOR")));

/// Returns `FI_VERSION(major, minor)`.
pub(crate) const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

/// Returns the value of a decimal build variable.
const fn number(s: &str) -> u32 {
    match u32::from_str_radix(s, 10) {
        Ok(n) => n,
        Err(_) => 0,
    }
}

/// `FI_PROTO_*` number of the RDM endpoint: "SCI" and the type of the endpoint in ASCII.
///
/// fi_endpoint(3) marks a provider's own numbers by bit 31. Programs that store protocols as `int`,
/// such as Mercury, treat negative ones as "unspecified". Therefore bit 31 stays clear, and the
/// numbers are far above the ones that libfabric assigns consecutively.
pub(crate) const PROTO_SCIF_RDM: u32 = u32::from_be_bytes(*b"SCIR");
/// `FI_PROTO_*` number of the connected endpoint.
pub(crate) const PROTO_SCIF_MSG: u32 = u32::from_be_bytes(*b"SCIM");
/// `FI_PROTO_*` number of the datagram endpoint.
pub(crate) const PROTO_SCIF_DGRAM: u32 = u32::from_be_bytes(*b"SCID");
/// Version of the protocol, raised when endpoints of two releases no longer understand each other.
pub(crate) const PROTO_VERSION: u32 = 1;

/// Maximum number of entries per local buffer list that hints may request. Longer lists are
/// refused.
pub(crate) const IOV_LIMIT: usize = 8;
/// Number of entries per local buffer list without a request in the hints, as in libfabric's other
/// providers between processes.
///
/// Programs use all entries that are reported. fabtests' `fi_ubertest` makes lists of six entries
/// whose lengths do not add up to the message length, and then reports the received data as wrong.
pub(crate) const DEFAULT_IOV_LIMIT: usize = 4;
/// Maximum number of entries per remote buffer list. Longer lists are refused.
pub(crate) const RMA_IOV_LIMIT: usize = 8;
/// Maximum number of entries per remote buffer list below another provider: the number of lnx.
pub(crate) const PEER_RMA_IOV_LIMIT: usize = 4;
/// Maximum number of entries per memory registration. Longer lists are refused.
pub(crate) const MR_IOV_LIMIT: usize = 8;
/// Maximum number of bytes in an inject call, copied before it returns. A longer message is
/// refused.
pub(crate) const INJECT_SIZE: usize = 4096;
/// Number of operations that may be outstanding per direction, unless the hints request another
/// number.
pub(crate) const DEFAULT_SIZE: usize = 1024;
/// Maximum number of outstanding operations that hints may request. Hints above it match no offer.
pub(crate) const MAX_SIZE: usize = 65536;
/// Size in bytes of remote CQ data.
pub(crate) const CQ_DATA_SIZE: usize = 8;
/// Size in bytes of a memory key.
pub(crate) const MR_KEY_SIZE: usize = 8;
/// Maximum number of data bytes in an error entry of a queue.
pub(crate) const MAX_ERR_DATA: usize = 256;
/// Size in bytes of a message prefix (`FI_MSG_PREFIX`).
pub(crate) const MSG_PREFIX_SIZE: usize = 16;
/// Maximum number of data bytes in a connection request or its answer. More data is refused.
pub(crate) const CM_DATA_SIZE: usize = 256;
/// Advisory limit on the number of objects; only memory limits them.
pub(crate) const OBJECT_CNT: usize = 1 << 15;
/// Advisory limit on the number of counters, lower because each may own a descriptor.
pub(crate) const CNTR_CNT: usize = 256;
/// Advisory limit on the number of memory regions; only memory limits them.
pub(crate) const MR_CNT: usize = 1 << 20;
/// Maximum number of contexts per direction of a scalable endpoint. Each has a port, and more are
/// refused.
pub(crate) const MAX_CONTEXTS: usize = 64;
/// Default number of free bytes below which a multi-receive buffer is released. A larger one wastes
/// more of each buffer.
pub(crate) const MIN_MULTI_RECV: usize = 64;

/// Tag format: all 64 bits.
pub(crate) const MEM_TAG_FORMAT: u64 = u64::MAX;

/// Capabilities of the transmit side.
pub(crate) const TX_CAPS: u64 = FI_MSG
    | FI_TAGGED
    | FI_RMA
    | FI_ATOMIC
    | FI_SEND
    | FI_READ
    | FI_WRITE
    | FI_NAMED_RX_CTX
    | FI_FENCE
    | FI_TRIGGER;
/// Capabilities of the receive side.
pub(crate) const RX_CAPS: u64 = FI_MSG
    | FI_TAGGED
    | FI_RMA
    | FI_ATOMIC
    | FI_RECV
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_MULTI_RECV
    | FI_DIRECTED_RECV
    | FI_RMA_EVENT
    | FI_SOURCE
    | FI_SOURCE_ERR
    | FI_TRIGGER;
/// Capabilities of the domain.
pub(crate) const DOMAIN_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;
/// Capabilities of the domain that are granted on request only.
pub(crate) const ASKED_DOMAIN_CAPS: u64 = FI_SHARED_AV | FI_AV_USER_ID | FI_PEER;

/// Kinds of message operations. A request for a kind without a direction gets all of
/// `MSG_DIRECTIONS`.
pub(crate) const MSG_KINDS: u64 = FI_MSG | FI_TAGGED;
/// Directions of message operations.
pub(crate) const MSG_DIRECTIONS: u64 = FI_SEND | FI_RECV;
/// Kinds of one-sided operations. A request for a kind without a direction gets all of
/// `RMA_DIRECTIONS`.
pub(crate) const RMA_KINDS: u64 = FI_RMA | FI_ATOMIC;
/// Directions of one-sided operations.
pub(crate) const RMA_DIRECTIONS: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

/// Secondary capabilities without cost, which are granted without a request.
pub(crate) const FREE_CAPS: u64 = FI_MULTI_RECV | FI_FENCE | DOMAIN_CAPS;
/// Secondary capabilities with a cost per operation, which are granted on request only.
///
/// A program that repeats the answer to a request without hints would otherwise pay for
/// notifications that it never reads. Some MPIs take other code paths if receive contexts have
/// names.
pub(crate) const PRICED_CAPS: u64 = FI_SOURCE
    | FI_SOURCE_ERR
    | FI_RMA_EVENT
    | FI_COLLECTIVE
    | FI_TRIGGER
    | FI_NAMED_RX_CTX
    | ASKED_DOMAIN_CAPS;

/// Flags that transmit attributes may request.
pub(crate) const TX_OP_FLAGS: u64 = FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_MATCH_COMPLETE;
/// Flags that receive attributes may request.
pub(crate) const RX_OP_FLAGS: u64 = FI_COMPLETION | FI_MULTI_RECV;

/// Message orders that always hold.
pub(crate) const MSG_ORDER: u64 = FI_ORDER_SAS
    | FI_ORDER_SAR
    | FI_ORDER_SAW
    | FI_ORDER_RAR
    | FI_ORDER_RAW
    | FI_ORDER_WAR
    | FI_ORDER_WAW
    | FI_ORDER_RMA_RAR
    | FI_ORDER_RMA_RAW
    | FI_ORDER_RMA_WAR
    | FI_ORDER_RMA_WAW
    | FI_ORDER_ATOMIC_RAR
    | FI_ORDER_ATOMIC_RAW
    | FI_ORDER_ATOMIC_WAR
    | FI_ORDER_ATOMIC_WAW;
/// Message orders that are granted on request only, since RMA after a message waits until the peer
/// consumed the message.
pub(crate) const PRICED_ORDER: u64 = FI_ORDER_RAS | FI_ORDER_WAS;

/// Endpoint type with its attributes, from which an info is made.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) ep_type: u32,
    pub(crate) protocol: u32,
    pub(crate) caps: u64,
    pub(crate) tx_caps: u64,
    pub(crate) rx_caps: u64,
    pub(crate) tx_op_flags: u64,
    pub(crate) rx_op_flags: u64,
    /// Orders reported unless hints request fewer.
    pub(crate) msg_order: u64,
    /// Orders reported only to hints that request them.
    pub(crate) msg_order_priced: u64,
    pub(crate) max_msg_size: usize,
}

/// Returns the maximum number of contexts per direction: contexts of scalable endpoints have no
/// triggered operations.
pub(crate) fn most_contexts(offer: &Offer, caps: u64) -> usize {
    if offer.ep_type == FI_EP_RDM && caps & FI_TRIGGER == 0 { MAX_CONTEXTS } else { 1 }
}

/// Offers in the order in which infos are returned.
pub(crate) static OFFERS: &[Offer] = &[RDM, MSG, DGRAM];

const RDM: Offer = Offer {
    ep_type: FI_EP_RDM,
    protocol: PROTO_SCIF_RDM,
    caps: TX_CAPS | RX_CAPS | FI_COLLECTIVE | DOMAIN_CAPS | ASKED_DOMAIN_CAPS,
    tx_caps: TX_CAPS | FI_COLLECTIVE,
    rx_caps: RX_CAPS | FI_COLLECTIVE,
    tx_op_flags: TX_OP_FLAGS,
    rx_op_flags: RX_OP_FLAGS,
    msg_order: MSG_ORDER,
    msg_order_priced: PRICED_ORDER,
    max_msg_size: usize::MAX,
};

/// Connected endpoint: it has one peer, so there is no source to report or to select.
const MSG: Offer = Offer {
    ep_type: FI_EP_MSG,
    protocol: PROTO_SCIF_MSG,
    caps: RDM.caps & !(SOURCES | GROUPS | FI_COLLECTIVE | FI_PEER),
    tx_caps: TX_CAPS & !GROUPS,
    rx_caps: RX_CAPS & !SOURCES,
    ..RDM
};

/// Datagram endpoint. Datagrams arrive, and in order, unless their sender closes or dies before,
/// which exceeds the requirements.
const DGRAM: Offer = Offer {
    ep_type: FI_EP_DGRAM,
    protocol: PROTO_SCIF_DGRAM,
    caps: RDM.caps & !(GROUPS | FI_COLLECTIVE | FI_PEER),
    tx_caps: TX_CAPS & !GROUPS,
    rx_caps: RX_CAPS,
    ..RDM
};

/// Capabilities that distinguish peers.
const SOURCES: u64 = FI_SOURCE | FI_SOURCE_ERR | FI_DIRECTED_RECV;

/// Capabilities of endpoints with several contexts.
const GROUPS: u64 = FI_NAMED_RX_CTX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_and_costly_capabilities_are_disjoint_and_offered() {
        for offer in OFFERS {
            assert_eq!(FREE_CAPS & PRICED_CAPS, 0);
            assert_eq!(FREE_CAPS & !offer.caps, 0);
            assert_eq!(
                offer.caps & !(offer.tx_caps | offer.rx_caps | ASKED_DOMAIN_CAPS),
                DOMAIN_CAPS
            );
            assert_eq!(offer.msg_order & offer.msg_order_priced, 0);
        }
    }

    #[test]
    fn protocol_numbers_are_positive_and_not_libfabrics() {
        for offer in OFFERS {
            assert!(offer.protocol as i32 > 1 << 16, "{:#x}", offer.protocol);
        }
    }

    #[test]
    fn the_release_is_that_of_the_package() {
        let shown = format!("{}.{}.", RELEASE >> 16, RELEASE & 0xffff);
        assert!(env!("CARGO_PKG_VERSION").starts_with(&shown));
        assert_eq!(number("12"), 12);
    }
}

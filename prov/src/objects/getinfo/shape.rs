// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Answer to hints that fit an offer: the requested values where the program gave any, the
//! provider's own elsewhere.
//!
//! The comparison with the offer is in `matching`, the memory for C in `alloc`.

use std::ffi::CString;
use std::ptr;

use libfabric_sys::{
    FI_MSG_PREFIX, FI_MULTI_RECV, FI_NAMED_RX_CTX, FI_PEER, FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL,
    FI_RM_ENABLED, FI_SHARED_CONTEXT, FI_THREAD_SAFE, fi_domain_attr, fi_ep_attr, fi_fabric_attr,
    fi_rx_attr, fi_tx_attr, fid_t,
};

use super::hints::Hints;
use super::matching::{InfoRequest, mr_mode};
use crate::base::addr::{ADDR_LEN, Addr};
use crate::base::attr::{self, Offer};

/// Source, always known, and destination.
pub(super) type Addrs = (Addr, Option<Addr>);

/// `struct fi_info` in safe values; names and addresses are attached when C gets it.
#[derive(Clone, Debug)]
pub(super) struct InfoParts {
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) src: [u8; ADDR_LEN],
    pub(super) dest: Option<[u8; ADDR_LEN]>,
    pub(super) handle: fid_t,
    pub(super) tx: fi_tx_attr,
    pub(super) rx: fi_rx_attr,
    pub(super) ep: fi_ep_attr,
    pub(super) domain: fi_domain_attr,
    pub(super) fabric: fi_fabric_attr,
    /// Provider name of a connection request; libfabric adds it only to the answers of fi_getinfo.
    pub(super) prov_name: Option<CString>,
}

pub(super) fn shape(offer: &Offer, asked: &InfoRequest<'_>, (src, dest): Addrs) -> InfoParts {
    let hints = asked.hints;
    let in_domain = hints.and_then(|h| h.domain).map_or(0, |d| d.caps);
    let (fabric, domain) = crate::objects::open_fabrics::first_open();
    let contexts = hints.map_or(1, |h| contexts(offer, h));
    let mode = hints.map_or(0, |h| prefix(h, contexts));
    let without = if mode == 0 { 0 } else { FI_MULTI_RECV };
    let caps =
        caps(offer, hints.map_or(0, |h| h.caps)) & !without | in_domain & attr::ASKED_DOMAIN_CAPS;
    InfoParts {
        caps,
        mode,
        prov_name: None,
        src: src.to_bytes(),
        dest: dest.map(|addr| addr.to_bytes()),
        handle: hints.map_or(ptr::null_mut(), |h| h.handle),
        tx: fi_tx_attr { mode, ..tx_attr(offer, caps, hints.and_then(|h| h.tx.as_ref())) },
        rx: fi_rx_attr { mode, ..rx_attr(offer, caps, hints.and_then(|h| h.rx.as_ref())) },
        ep: fi_ep_attr {
            msg_prefix_size: if mode == 0 { 0 } else { attr::MSG_PREFIX_SIZE },
            ..ep_attr(offer, hints.and_then(|h| h.ep.as_ref()))
        },
        domain: fi_domain_attr {
            domain,
            // Programs that see contexts without a request for them take other code paths.
            max_ep_stx_ctx: shared(hints.and_then(|h| h.ep).map(|ep| ep.tx_ctx_cnt)),
            max_ep_srx_ctx: shared(hints.and_then(|h| h.ep).map(|ep| ep.rx_ctx_cnt)),
            max_ep_tx_ctx: contexts,
            max_ep_rx_ctx: contexts,
            caps: attr::DOMAIN_CAPS | caps & attr::ASKED_DOMAIN_CAPS,
            ..domain_attr(asked.version, hints.and_then(|h| h.domain.as_ref()))
        },
        // libfabric writes the provider's name, its version and the interface version.
        fabric: fi_fabric_attr { fabric, ..fi_fabric_attr::ZERO },
    }
}

/// Returns the capabilities granted to a request for `wanted`.
///
/// Without a request, all primary capabilities are granted, except the costly ones. A kind without
/// directions gets all of its directions. Free secondary capabilities are always included.
fn caps(offer: &Offer, wanted: u64) -> u64 {
    let primary = if wanted == 0 { offer.caps & !attr::PRICED_CAPS } else { wanted };
    with_directions(primary) | offer.caps & attr::FREE_CAPS
}

fn with_directions(caps: u64) -> u64 {
    let complete = |kinds, directions| {
        if caps & kinds != 0 && caps & directions == 0 { directions } else { 0 }
    };
    caps | complete(attr::MSG_KINDS, attr::MSG_DIRECTIONS)
        | complete(attr::RMA_KINDS, attr::RMA_DIRECTIONS)
}

/// Returns the part of `caps` for one side, restricted by a hint for that side.
fn side(caps: u64, side: u64, hint: u64) -> u64 {
    let hint = if hint == 0 { caps } else { with_directions(hint) | attr::FREE_CAPS };
    caps & side & hint
}

fn or<T: Default + PartialEq>(hint: T, default: T) -> T {
    if hint == T::default() { default } else { hint }
}

/// Returns the mode for message prefixes, which must be named: a program that accepts all modes
/// does not get it.
///
/// Contexts do not know whether their messages have a prefix. The messages in a multi-receive
/// buffer have no space for one each. Requests for these get no prefix.
fn prefix(hints: &Hints<'_>, contexts: usize) -> u64 {
    let shared = hints.ep.is_some_and(|ep| ep.rx_ctx_cnt == FI_SHARED_CONTEXT);
    let rx = hints.rx.map_or(0, |rx| rx.caps | rx.op_flags);
    let many = (hints.caps | rx) & FI_MULTI_RECV != 0;
    if hints.mode == u64::MAX || contexts > 1 || shared || many {
        0
    } else {
        hints.mode & FI_MSG_PREFIX
    }
}

/// Returns the number of shared contexts for a program with this hint for contexts.
fn shared(hint: Option<usize>) -> usize {
    if hint == Some(FI_SHARED_CONTEXT) { attr::OBJECT_CNT } else { 0 }
}

/// Returns the number of contexts per direction of one endpoint: one, unless the hints request
/// more.
fn contexts(offer: &Offer, hints: &Hints<'_>) -> usize {
    let more = |count: usize| count > 1 && count != FI_SHARED_CONTEXT;
    let asks = hints.caps & FI_NAMED_RX_CTX != 0
        || hints.ep.is_some_and(|ep| more(ep.tx_ctx_cnt) || more(ep.rx_ctx_cnt))
        || hints.domain.is_some_and(|d| more(d.max_ep_tx_ctx) || more(d.max_ep_rx_ctx));
    if asks { attr::most_contexts(offer, hints.caps) } else { 1 }
}

fn tx_attr(offer: &Offer, caps: u64, hint: Option<&fi_tx_attr>) -> fi_tx_attr {
    let hint = hint.copied().unwrap_or_default();
    // lnx passes its members' limits to its user, and then rejects them as above its own.
    let most_ranges =
        if caps & FI_PEER == 0 { attr::RMA_IOV_LIMIT } else { attr::PEER_RMA_IOV_LIMIT };
    fi_tx_attr {
        caps: side(caps, offer.tx_caps, hint.caps),
        mode: 0,
        // The default flags of an endpoint, so only requested ones are set.
        op_flags: hint.op_flags,
        msg_order: or(hint.msg_order, offer.msg_order),
        comp_order: 0,
        inject_size: or(hint.inject_size, attr::INJECT_SIZE),
        size: or(hint.size, attr::DEFAULT_SIZE),
        iov_limit: or(hint.iov_limit, attr::DEFAULT_IOV_LIMIT),
        rma_iov_limit: or(hint.rma_iov_limit, most_ranges),
        tclass: 0,
    }
}

fn rx_attr(offer: &Offer, caps: u64, hint: Option<&fi_rx_attr>) -> fi_rx_attr {
    let hint = hint.copied().unwrap_or_default();
    fi_rx_attr {
        caps: side(caps, offer.rx_caps, hint.caps),
        mode: 0,
        op_flags: hint.op_flags,
        msg_order: or(hint.msg_order, offer.msg_order),
        comp_order: 0,
        total_buffered_recv: hint.total_buffered_recv,
        size: or(hint.size, attr::DEFAULT_SIZE),
        iov_limit: or(hint.iov_limit, attr::DEFAULT_IOV_LIMIT),
    }
}

fn ep_attr(offer: &Offer, hint: Option<&fi_ep_attr>) -> fi_ep_attr {
    let hint = hint.copied().unwrap_or_default();
    fi_ep_attr {
        type_: offer.ep_type,
        protocol: offer.protocol,
        protocol_version: attr::PROTO_VERSION,
        max_msg_size: offer.max_msg_size,
        msg_prefix_size: 0,
        max_order_raw_size: or(hint.max_order_raw_size, usize::MAX),
        max_order_war_size: or(hint.max_order_war_size, usize::MAX),
        max_order_waw_size: or(hint.max_order_waw_size, usize::MAX),
        mem_tag_format: attr::MEM_TAG_FORMAT,
        tx_ctx_cnt: hint.tx_ctx_cnt.max(1),
        rx_ctx_cnt: hint.rx_ctx_cnt.max(1),
        auth_key_size: 0,
        auth_key: ptr::null_mut(),
    }
}

fn domain_attr(version: u32, hint: Option<&fi_domain_attr>) -> fi_domain_attr {
    let hint = hint.copied().unwrap_or_default();
    let level = |hint: u32, default| if hint == 0 { default } else { hint };
    fi_domain_attr {
        threading: level(hint.threading, FI_THREAD_SAFE),
        control_progress: level(hint.control_progress, FI_PROGRESS_AUTO),
        data_progress: level(hint.data_progress, FI_PROGRESS_MANUAL),
        resource_mgmt: FI_RM_ENABLED,
        av_type: hint.av_type,
        // An unsupported mode was refused before.
        mr_mode: mr_mode(version, hint.mr_mode).unwrap_or(0),
        mr_key_size: attr::MR_KEY_SIZE,
        cq_data_size: attr::CQ_DATA_SIZE,
        cq_cnt: attr::OBJECT_CNT,
        ep_cnt: attr::OBJECT_CNT,
        tx_ctx_cnt: attr::OBJECT_CNT,
        rx_ctx_cnt: attr::OBJECT_CNT,
        max_ep_tx_ctx: 1,
        max_ep_rx_ctx: 1,
        cntr_cnt: attr::CNTR_CNT,
        mr_iov_limit: attr::MR_IOV_LIMIT,
        caps: 0,
        max_err_data: attr::MAX_ERR_DATA,
        mr_cnt: attr::MR_CNT,
        max_cntr_value: u64::MAX,
        max_err_cntr_value: u64::MAX,
        ..fi_domain_attr::ZERO
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use libfabric_sys::{
        FI_AV_TABLE, FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_FENCE, FI_LOCAL_COMM, FI_MSG,
        FI_ORDER_ATOMIC_RAR, FI_ORDER_RAS, FI_ORDER_SAS, FI_READ, FI_RECV, FI_REMOTE_COMM,
        FI_REMOTE_READ, FI_RMA, FI_RMA_EVENT, FI_SEND, FI_SOURCE, FI_TAGGED, FI_THREAD_DOMAIN,
        FI_WRITE, fi_version,
    };

    use super::super::matching;
    use super::*;
    use crate::base::addr::Addr;
    use crate::base::attr::OFFERS;

    const V: u32 = fi_version(2, 5);
    const ADDRS: Addrs = (Addr::this_host(Ipv4Addr::LOCALHOST, 0), None);

    fn answer(hints: Option<&Hints<'_>>) -> InfoParts {
        shape(&OFFERS[0], &InfoRequest { version: V, host: V, hints }, ADDRS)
    }

    fn granted(wanted: u64) -> u64 {
        answer(Some(&Hints { caps: wanted, ..Hints::default() })).caps
    }

    const UNASKED: u64 = FI_MULTI_RECV | FI_FENCE | FI_LOCAL_COMM | FI_REMOTE_COMM;

    #[test]
    fn directions_are_completed_only_when_none_is_named() {
        assert_eq!(granted(FI_MSG), FI_MSG | FI_SEND | FI_RECV | UNASKED);
        assert_eq!(granted(FI_TAGGED | FI_SEND), FI_TAGGED | FI_SEND | UNASKED);
        assert_eq!(granted(FI_RMA | FI_READ), FI_RMA | FI_READ | UNASKED);
        assert_eq!(granted(FI_RMA), FI_RMA | attr::RMA_DIRECTIONS | UNASKED);
        assert_eq!(
            granted(FI_MSG | FI_RMA | FI_RECV),
            FI_MSG | FI_RMA | FI_RECV | attr::RMA_DIRECTIONS | UNASKED
        );
    }

    #[test]
    fn costly_capabilities_require_a_hint() {
        assert_eq!(answer(None).caps, OFFERS[0].caps & !attr::PRICED_CAPS);
        assert_eq!(granted(0), OFFERS[0].caps & !attr::PRICED_CAPS);
        let asked = FI_MSG | FI_SOURCE | FI_RMA_EVENT;
        assert_eq!(granted(asked) & attr::PRICED_CAPS, FI_SOURCE | FI_RMA_EVENT);
    }

    #[test]
    fn each_side_has_its_own_capabilities() {
        let info = answer(Some(&Hints { caps: FI_MSG | FI_RMA | FI_SOURCE, ..Hints::default() }));
        assert_eq!(info.tx.caps, FI_MSG | FI_RMA | FI_SEND | FI_READ | FI_WRITE | FI_FENCE);
        assert_eq!(
            info.rx.caps & (FI_SOURCE | FI_RECV | FI_SEND | FI_REMOTE_READ),
            FI_SOURCE | FI_RECV | FI_REMOTE_READ
        );
        let tx = fi_tx_attr { caps: FI_MSG, ..fi_tx_attr::default() };
        let narrowed = answer(Some(&Hints { tx: Some(tx), ..Hints::default() }));
        assert_eq!(narrowed.tx.caps, FI_MSG | FI_SEND | FI_FENCE);
    }

    #[test]
    fn without_hints_guaranteed_orders_are_set_and_no_flags() {
        let info = answer(None);
        assert_eq!(info.tx.msg_order, attr::MSG_ORDER);
        assert_eq!(info.tx.msg_order & (FI_ORDER_ATOMIC_RAR | FI_ORDER_RAS), FI_ORDER_ATOMIC_RAR);
        assert_eq!((info.tx.op_flags, info.rx.op_flags), (0, 0));
        assert_eq!(
            (info.domain.data_progress, info.domain.control_progress),
            (FI_PROGRESS_MANUAL, FI_PROGRESS_AUTO)
        );
        assert_eq!((info.domain.threading, info.domain.mr_mode), (FI_THREAD_SAFE, 0));
    }

    #[test]
    fn requested_values_are_repeated() {
        let mut domain = fi_domain_attr::ZERO;
        (domain.threading, domain.av_type, domain.data_progress) =
            (FI_THREAD_DOMAIN, FI_AV_TABLE, FI_PROGRESS_AUTO);
        let tx = fi_tx_attr {
            op_flags: FI_COMPLETION | FI_DELIVERY_COMPLETE,
            msg_order: FI_ORDER_SAS,
            inject_size: 64,
            size: 2048,
            iov_limit: 1,
            ..fi_tx_attr::default()
        };
        let info = answer(Some(&Hints { domain: Some(domain), tx: Some(tx), ..Hints::default() }));
        assert_eq!(info.domain.threading, FI_THREAD_DOMAIN);
        assert_eq!(
            (info.domain.av_type, info.domain.data_progress),
            (FI_AV_TABLE, FI_PROGRESS_AUTO)
        );
        assert_eq!((info.tx.op_flags, info.tx.msg_order), (tx.op_flags, tx.msg_order));
        assert_eq!((info.tx.inject_size, info.tx.size, info.tx.iov_limit), (64, 2048, 1));
        assert_eq!(info.tx.rma_iov_limit, attr::RMA_IOV_LIMIT);
    }

    #[test]
    fn an_answer_fits_as_the_next_hint() {
        for caps in [0, FI_MSG, FI_TAGGED | FI_SEND, FI_RMA | FI_RMA_EVENT | FI_SOURCE] {
            let info = answer(Some(&Hints { caps, ..Hints::default() }));
            let again = Hints {
                caps: info.caps,
                src: Some(&info.src),
                tx: Some(info.tx),
                rx: Some(info.rx),
                ep: Some(info.ep),
                domain: Some(info.domain),
                domain_name: Some(attr::NAME),
                fabric: Some(info.fabric),
                fabric_name: Some(attr::NAME),
                ..Hints::default()
            };
            let asked = InfoRequest { version: V, host: V, hints: Some(&again) };
            assert_eq!(matching::check(&OFFERS[0], &asked), Ok(()));
            let second = shape(&OFFERS[0], &asked, ADDRS);
            assert_eq!(
                (second.caps, second.tx.caps, second.rx.caps),
                (info.caps, info.tx.caps, info.rx.caps)
            );
        }
    }
}

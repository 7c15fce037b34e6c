// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Comparison of an offer of the provider with a program's hints, in the order of libfabric.
//!
//! A hint of zero requests nothing. Addresses are in `super`, the construction of the answer is in
//! `shape`.

use std::ffi::CStr;

use libfabric_sys::{
    FI_AV_TABLE, FI_FORMAT_UNSPEC, FI_MR_BASIC, FI_MR_SCALABLE, FI_PEER, FI_PROGRESS_AUTO,
    FI_PROGRESS_CONTROL_UNIFIED, FI_RM_ENABLED, FI_SHARED_CONTEXT, FI_SOCKADDR, FI_SOCKADDR_IN,
    FI_SOCKADDR_IP, FI_THREAD_ENDPOINT, fi_domain_attr, fi_ep_attr, fi_fabric_attr, fi_rx_attr,
    fi_tx_attr, fi_version,
};

use super::hints::Hints;
use crate::base::attr::{self, Offer};
use crate::state::peer_owner;

/// Request of a program.
#[derive(Debug)]
pub(super) struct InfoRequest<'a> {
    /// Interface version of the program; 0 accepts any.
    pub(super) version: u32,
    /// Version of the library.
    pub(super) host: u32,
    pub(super) hints: Option<&'a Hints<'a>>,
}

/// Description of a mismatch for the log.
pub(super) type Miss = &'static str;

/// # Errors
/// The first hint that the offer does not meet.
pub(super) fn check(offer: &Offer, asked: &InfoRequest<'_>) -> Result<(), Miss> {
    let Some(hints) = asked.hints else {
        return Ok(());
    };
    if let Some(ep) = &hints.ep {
        fits(ep.type_ == 0 || ep.type_ == offer.ep_type, "endpoint type")?;
    }
    fits(subset(hints.caps, offer.caps), "capabilities")?;
    let wanted = hints.caps | hints.domain.as_ref().map_or(0, |domain| domain.caps);
    if wanted & FI_PEER != 0 {
        fits(offer.caps & FI_PEER != 0, "peers of such endpoints")?;
        fits(asked.host >= peer_owner::SINCE, "peers of this library's version")?;
        let auto = hints.domain.as_ref().is_some_and(|d| d.data_progress == FI_PROGRESS_AUTO);
        fits(!auto, "peers that progress by themselves")?;
    }
    fits(
        matches!(
            hints.addr_format,
            FI_FORMAT_UNSPEC | FI_SOCKADDR | FI_SOCKADDR_IN | FI_SOCKADDR_IP
        ),
        "address format",
    )?;
    fits(named(hints.fabric_name), "fabric name")?;
    fits(named(hints.domain_name), "domain name")?;
    hints.fabric.as_ref().map_or(Ok(()), fabric)?;
    hints.domain.as_ref().map_or(Ok(()), |domain| domain_attr(domain, asked))?;
    hints.ep.as_ref().map_or(Ok(()), |ep| ep_attr(ep, offer, hints.caps))?;
    hints.tx.as_ref().map_or(Ok(()), |tx| tx_attr(tx, offer))?;
    hints.rx.as_ref().map_or(Ok(()), |rx| rx_attr(rx, offer, asked.host))
}

fn fits(condition: bool, miss: Miss) -> Result<(), Miss> {
    condition.then_some(()).ok_or(miss)
}

fn subset(wanted: u64, offered: u64) -> bool {
    wanted & !offered == 0
}

fn named(name: Option<&CStr>) -> bool {
    name.is_none_or(|name| name.to_bytes().eq_ignore_ascii_case(attr::NAME.to_bytes()))
}

fn fabric(hint: &fi_fabric_attr) -> Result<(), Miss> {
    fits(hint.prov_version == 0 || hint.prov_version == attr::RELEASE, "provider version")?;
    fits(hint.api_version <= crate::base::host::claimed_version(), "interface version")
}

fn domain_attr(hint: &fi_domain_attr, asked: &InfoRequest<'_>) -> Result<(), Miss> {
    // Every threading and progress level of libfabric is supported.
    fits(hint.threading <= FI_THREAD_ENDPOINT, "threading")?;
    fits(hint.control_progress <= FI_PROGRESS_CONTROL_UNIFIED, "control progress")?;
    fits(hint.data_progress <= FI_PROGRESS_CONTROL_UNIFIED, "data progress")?;
    fits(hint.resource_mgmt <= FI_RM_ENABLED, "resource management")?;
    fits(hint.av_type <= FI_AV_TABLE, "address vector type")?;
    fits(hint.cq_data_size <= attr::CQ_DATA_SIZE, "size of CQ data")?;
    fits(mr_mode(asked.version, hint.mr_mode).is_some(), "registration mode")?;
    fits(hint.cntr_cnt <= attr::CNTR_CNT, "number of counters")?;
    fits(hint.mr_iov_limit <= attr::MR_IOV_LIMIT, "entries per registration")?;
    fits(hint.mr_cnt <= attr::MR_CNT, "number of registrations")?;
    fits(hint.max_err_data <= attr::MAX_ERR_DATA, "size of error data")?;
    fits(subset(hint.caps, attr::DOMAIN_CAPS | attr::ASKED_DOMAIN_CAPS), "domain capabilities")?;
    fits(hint.auth_key_size == 0 && hint.max_ep_auth_key == 0, "authorization keys")
}

fn ep_attr(hint: &fi_ep_attr, offer: &Offer, caps: u64) -> Result<(), Miss> {
    fits(hint.protocol == 0 || hint.protocol == offer.protocol, "protocol")?;
    fits(
        hint.protocol_version == 0 || hint.protocol_version == attr::PROTO_VERSION,
        "protocol version",
    )?;
    fits(hint.max_msg_size <= offer.max_msg_size, "message size")?;
    // Ordered sizes and tag formats need no check: all are supported.
    let most = attr::most_contexts(offer, caps);
    let contexts = |count: usize| count <= most || count == FI_SHARED_CONTEXT;
    fits(contexts(hint.tx_ctx_cnt), "transmit contexts")?;
    fits(contexts(hint.rx_ctx_cnt), "receive contexts")?;
    fits(hint.auth_key_size == 0, "authorization key")
}

fn tx_attr(hint: &fi_tx_attr, offer: &Offer) -> Result<(), Miss> {
    // Bits of the other direction are ignored.
    fits(subset(hint.caps, offer.caps), "transmit capabilities")?;
    fits(subset(hint.op_flags, offer.tx_op_flags), "transmit flags")?;
    fits(subset(hint.msg_order, offer.msg_order | offer.msg_order_priced), "transmit order")?;
    fits(hint.comp_order == 0, "order of transmit completions")?;
    fits(hint.inject_size <= attr::INJECT_SIZE, "inject size")?;
    fits(hint.size <= attr::MAX_SIZE, "transmit size")?;
    fits(hint.iov_limit <= attr::IOV_LIMIT, "transmit entries")?;
    fits(hint.rma_iov_limit <= attr::RMA_IOV_LIMIT, "RMA entries")
}

fn rx_attr(hint: &fi_rx_attr, offer: &Offer, host: u32) -> Result<(), Miss> {
    fits(subset(hint.caps, offer.caps), "receive capabilities")?;
    fits(subset(hint.op_flags, offer.rx_op_flags), "receive flags")?;
    fits(subset(hint.msg_order, offer.msg_order | offer.msg_order_priced), "receive order")?;
    fits(hint.comp_order == 0, "order of receive completions")?;
    // Before 2.0 a program could request buffering, which this provider does not limit; since then
    // it must not.
    fits(hint.total_buffered_recv == 0 || host < fi_version(2, 0), "buffered receive")?;
    fits(hint.size <= attr::MAX_SIZE, "receive size")?;
    fits(hint.iov_limit <= attr::IOV_LIMIT, "receive entries")
}

/// Returns the registration mode for a program of interface `version` that requested `asked`;
/// `None` when it is not one of libfabric's.
///
/// No mode bit is needed, and the answer omits unneeded bits: peers use offsets into regions, and
/// the application chooses the keys. Some programs rely on these although they offer other modes;
/// the converse is unknown.
pub(super) fn mr_mode(version: u32, asked: i32) -> Option<i32> {
    let old_style = FI_MR_BASIC | FI_MR_SCALABLE;
    if asked & old_style != 0 {
        // The old modes are values, not bits, and exclude each other.
        return (asked == FI_MR_BASIC || asked == FI_MR_SCALABLE).then_some(asked);
    }
    // Version 0 accepts any interface and is not a program from before 1.5.
    if version != 0 && version < fi_version(1, 5) {
        return (asked == 0).then_some(FI_MR_SCALABLE);
    }
    Some(0)
}

#[cfg(test)]
mod tests {
    use libfabric_sys::{
        FI_DELIVERY_COMPLETE, FI_DIRECTED_RECV, FI_EP_DGRAM, FI_EP_MSG, FI_EP_RDM, FI_HMEM,
        FI_LOCAL_COMM, FI_MR_ALLOCATED, FI_MR_ENDPOINT, FI_MR_LOCAL, FI_MR_PROV_KEY,
        FI_MR_VIRT_ADDR, FI_MSG, FI_MULTICAST, FI_ORDER_SAS, FI_ORDER_STRICT, FI_ORDER_WAS,
        FI_REMOTE_COMM, FI_SHARED_CONTEXT, FI_SOCKADDR_IN6, FI_TAGGED, FI_THREAD_DOMAIN,
        FI_TRIGGER,
    };

    use super::*;

    const V: u32 = fi_version(2, 5);

    fn check_offer(hints: &Hints<'_>) -> Result<(), Miss> {
        check(&attr::OFFERS[0], &InfoRequest { version: V, host: V, hints: Some(hints) })
    }

    fn with_ep(f: impl FnOnce(&mut fi_ep_attr)) -> Result<(), Miss> {
        let mut ep = fi_ep_attr::ZERO;
        f(&mut ep);
        check_offer(&Hints { ep: Some(ep), ..Hints::default() })
    }

    fn with_domain(f: impl FnOnce(&mut fi_domain_attr)) -> Result<(), Miss> {
        let mut domain = fi_domain_attr::ZERO;
        f(&mut domain);
        check_offer(&Hints { domain: Some(domain), ..Hints::default() })
    }

    fn with_tx(tx: fi_tx_attr) -> Result<(), Miss> {
        check_offer(&Hints { tx: Some(tx), ..Hints::default() })
    }

    #[test]
    fn no_hints_and_empty_hints_fit() {
        assert_eq!(
            check(&attr::OFFERS[0], &InfoRequest { version: V, host: V, hints: None }),
            Ok(())
        );
        assert_eq!(check_offer(&Hints::default()), Ok(()));
    }

    #[test]
    fn endpoint_types() {
        assert_eq!(with_ep(|ep| ep.type_ = FI_EP_RDM), Ok(()));
        assert!(with_ep(|ep| ep.type_ = FI_EP_MSG).is_err());
        assert!(with_ep(|ep| ep.type_ = FI_EP_DGRAM).is_err());
    }

    #[test]
    fn capabilities() {
        let caps = |caps| check_offer(&Hints { caps, ..Hints::default() });
        assert_eq!(
            caps(FI_TAGGED | FI_LOCAL_COMM | FI_REMOTE_COMM | FI_DIRECTED_RECV | FI_TRIGGER),
            Ok(())
        );
        for missing in [FI_HMEM, FI_MULTICAST, 1 << 63] {
            assert_eq!(caps(FI_MSG | missing), Err("capabilities"));
        }
    }

    #[test]
    fn formats() {
        for (format, fit) in [
            (FI_SOCKADDR, true),
            (FI_SOCKADDR_IN, true),
            (FI_SOCKADDR_IP, true),
            (FI_SOCKADDR_IN6, false),
        ] {
            assert_eq!(
                check_offer(&Hints { addr_format: format, ..Hints::default() }).is_ok(),
                fit
            );
        }
    }

    #[test]
    fn names_are_compared_without_case() {
        assert_eq!(
            check_offer(&Hints {
                domain_name: Some(c"SCIF"),
                fabric_name: Some(c"scif"),
                ..Hints::default()
            }),
            Ok(())
        );
        assert!(check_offer(&Hints { domain_name: Some(c"scif0"), ..Hints::default() }).is_err());
        assert!(check_offer(&Hints { fabric_name: Some(c""), ..Hints::default() }).is_err());
    }

    #[test]
    fn domains() {
        assert_eq!(
            with_domain(|d| (d.threading, d.data_progress) = (FI_THREAD_DOMAIN, FI_PROGRESS_AUTO)),
            Ok(())
        );
        assert_eq!(with_domain(|d| (d.cq_data_size, d.max_cntr_value) = (4, u64::MAX)), Ok(()));
        assert!(with_domain(|d| d.threading = 6).is_err());
        assert!(with_domain(|d| d.data_progress = 4).is_err());
        assert!(with_domain(|d| d.cq_data_size = 9).is_err());
        assert!(with_domain(|d| d.mr_iov_limit = attr::MR_IOV_LIMIT + 1).is_err());
        assert!(with_domain(|d| d.caps = FI_HMEM).is_err());
        assert!(with_domain(|d| d.auth_key_size = 8).is_err());
        assert!(with_domain(|d| d.max_ep_auth_key = 1).is_err());
    }

    #[test]
    fn endpoints() {
        assert_eq!(
            with_ep(
                |ep| (ep.tx_ctx_cnt, ep.max_msg_size, ep.mem_tag_format) = (1, usize::MAX, 0xff)
            ),
            Ok(())
        );
        assert_eq!(with_ep(|ep| ep.tx_ctx_cnt = FI_SHARED_CONTEXT), Ok(()));
        assert_eq!(with_ep(|ep| ep.rx_ctx_cnt = attr::MAX_CONTEXTS), Ok(()));
        assert!(with_ep(|ep| ep.rx_ctx_cnt = attr::MAX_CONTEXTS + 1).is_err());
        let two = fi_ep_attr { tx_ctx_cnt: 2, ..fi_ep_attr::default() };
        let triggered =
            check_offer(&Hints { caps: FI_MSG | FI_TRIGGER, ep: Some(two), ..Hints::default() });
        assert_eq!(triggered, Err("transmit contexts"));
        assert!(with_ep(|ep| ep.protocol = 1).is_err());
    }

    #[test]
    fn contexts() {
        let flags = |op_flags| with_tx(fi_tx_attr { op_flags, ..fi_tx_attr::default() });
        assert_eq!(flags(FI_DELIVERY_COMPLETE), Ok(()));
        assert!(flags(libfabric_sys::FI_COMMIT_COMPLETE).is_err());
        let order = |msg_order| with_tx(fi_tx_attr { msg_order, ..fi_tx_attr::default() });
        assert_eq!(order(FI_ORDER_SAS | FI_ORDER_WAS), Ok(()));
        assert_eq!(order(FI_ORDER_STRICT), Ok(()));
        assert!(order(1 << 40).is_err());
        assert!(
            with_tx(fi_tx_attr { comp_order: FI_ORDER_STRICT, ..fi_tx_attr::default() }).is_err()
        );
        assert!(
            with_tx(fi_tx_attr { inject_size: attr::INJECT_SIZE + 1, ..fi_tx_attr::default() })
                .is_err()
        );
        assert_eq!(
            with_tx(fi_tx_attr {
                size: attr::MAX_SIZE,
                iov_limit: attr::IOV_LIMIT,
                ..fi_tx_attr::default()
            }),
            Ok(())
        );
    }

    #[test]
    fn buffered_receive_is_of_the_old_releases() {
        let rx = fi_rx_attr { total_buffered_recv: 1 << 20, ..fi_rx_attr::default() };
        let hints = Hints { rx: Some(rx), ..Hints::default() };
        let check_offer = |host| {
            check(&attr::OFFERS[0], &InfoRequest { version: host, host, hints: Some(&hints) })
        };
        assert_eq!(check_offer(fi_version(1, 17)), Ok(()));
        assert!(check_offer(fi_version(2, 0)).is_err());
    }

    #[test]
    fn registration_modes() {
        let everything =
            FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
        let (old, new) = (fi_version(1, 4), fi_version(1, 9));
        for (version, asked, answer) in [
            (new, 0, Some(0)),
            (new, everything, Some(0)),
            (new, FI_MR_ENDPOINT, Some(0)),
            (new, FI_MR_BASIC, Some(FI_MR_BASIC)),
            (new, FI_MR_SCALABLE, Some(FI_MR_SCALABLE)),
            (new, FI_MR_BASIC | FI_MR_SCALABLE, None),
            (new, FI_MR_BASIC | FI_MR_LOCAL, None),
            (old, 0, Some(FI_MR_SCALABLE)),
            (old, FI_MR_BASIC, Some(FI_MR_BASIC)),
            (old, FI_MR_LOCAL, None),
            (0, 0, Some(0)),
            (0, FI_MR_VIRT_ADDR, Some(0)),
        ] {
            assert_eq!(mr_mode(version, asked), answer, "version {version:#x}, mode {asked:#x}");
        }
    }
}

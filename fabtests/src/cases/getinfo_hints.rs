// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Hints one by one: each value is in the offer, and more than the maximum yields none. Mirrors
//! fi_getinfo(3), fi_endpoint(3), fi_domain(3), fi_fabric(3), the attributes.
//!
//! Capabilities, orders, memory registration modes, threading and names are in `getinfo`.

use scif_fabtests::fi::Hints;
use scif_fabtests::prelude::*;

use super::getinfo::{InfoQuery, ours, query};

pub(crate) const CASES: &[Case] = &[
    case("getinfo/endpoint_types", 1, endpoint_types),
    case("getinfo/sizes_beyond_the_limits", 1, beyond),
    case("getinfo/sizes_come_back", 1, echoed),
    case("getinfo/versions_of_parts", 1, parts),
    case("getinfo/order_of_completions", 1, completions),
    case("getinfo/sides", 1, sides),
    case("getinfo/any_mode", 1, any_mode),
    case("getinfo/modes_of_old", 1, old_modes),
    case("getinfo/open_objects", 1, open_objects),
    case("getinfo/shared_and_many_contexts", 1, contexts),
    case("getinfo/formats_of_others", 1, other_formats),
    case("getinfo/any_format_of_the_internet", 1, any_internet),
];

const TYPES: [u32; 3] = [sys::FI_EP_RDM, sys::FI_EP_MSG, sys::FI_EP_DGRAM];

fn endpoint_types(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    let of = |ep_type| -> Outcome<Vec<u32>> {
        let list = query.offers(|hints| hints.ep_type = ep_type)?;
        Ok(list.iter().map(|info| info.ep().type_).collect())
    };
    check_eq!(of(sys::FI_EP_UNSPEC)?, TYPES.to_vec());
    for ep_type in TYPES {
        check_eq!(of(ep_type)?, vec![ep_type]);
    }
    // Stream endpoints and similar types, which no longer exist.
    for other in [4, 5] {
        query.none("a type of endpoint", |hints| hints.ep_type = other)?;
    }
    let everything = query.lib.getinfo(query.lib.version(), None, None, 0, None)?;
    let kinds: Vec<u32> = ours(everything, rank).iter().map(|info| info.ep().type_).collect();
    check_eq!(kinds, TYPES.to_vec());
    Ok(())
}

/// Function that requests more than these limits: of counters, regions, error data and pieces of a
/// region.
type Raise = fn(&mut Hints, &[usize; 4]);

/// Tests one more than each limit, for each type of endpoint.
fn beyond(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    for ep_type in TYPES {
        let info = query.one(|hints| hints.ep_type = ep_type)?;
        let domain = info.domain();
        let most = [domain.cntr_cnt, domain.mr_cnt, domain.max_err_data, domain.mr_iov_limit];
        let raise: [(&str, Raise); 9] = [
            ("counters", |h, m| h.cntr_cnt = m[0] + 1),
            ("regions", |h, m| h.mr_cnt = m[1] + 1),
            ("bytes of error data", |h, m| h.max_err_data = m[2] + 1),
            ("pieces of a region", |h, m| h.mr_iov_limit = m[3] + 1),
            ("operations posted", |h, _| h.tx.size = 1 << 40),
            ("receives posted", |h, _| h.rx.size = 1 << 40),
            ("bytes of a key", |h, _| h.auth_key_size = 8),
            ("bytes of data in a completion", |h, _| h.cq_data_size = 9),
            ("bytes injected", |h, _| h.tx.inject_size = 1 << 30),
        ];
        for (subject, raise) in raise {
            query.none(subject, |hints| {
                hints.ep_type = ep_type;
                raise(hints, &most);
            })?;
        }
        // The maximum.
        query.one(|hints| {
            hints.ep_type = ep_type;
            [hints.cntr_cnt, hints.mr_cnt, hints.max_err_data, hints.mr_iov_limit] = most;
            hints.max_msg_size = info.ep().max_msg_size;
        })?;
        if let Some(more) = info.ep().max_msg_size.checked_add(1) {
            query.none("bytes of a message", |hints| {
                hints.ep_type = ep_type;
                hints.max_msg_size = more;
            })?;
        }
    }
    Ok(())
}

fn echoed(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    let info = query.one(|hints| {
        hints.tx.size = 17;
        hints.rx.size = 33;
        hints.tx.iov_limit = 2;
        hints.rx.iov_limit = 3;
        hints.tx.rma_iov_limit = 1;
        hints.tx.inject_size = 100;
        hints.max_order_raw_size = 64;
        hints.max_order_war_size = 128;
        hints.max_order_waw_size = 256;
        hints.caps = sys::FI_MSG | sys::FI_RMA;
    })?;
    let (tx, rx, ep) = (info.tx(), info.rx(), info.ep());
    check_eq!((tx.size, rx.size), (17, 33));
    check_eq!((tx.iov_limit, rx.iov_limit, tx.rma_iov_limit), (2, 3, 1));
    check_eq!(tx.inject_size, 100);
    check_eq!(
        (ep.max_order_raw_size, ep.max_order_war_size, ep.max_order_waw_size),
        (64, 128, 256)
    );
    // An endpoint with these attributes works.
    let fabric = Fabric::open(&info)?;
    let domain = Domain::open(&fabric, &info)?;
    Ep::open(&domain, &info)?;
    Ok(())
}

fn parts(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    let info = query.one(|_| {})?;
    let (release, protocol) = (info.prov_version(), info.ep().protocol_version);
    check!(release > 0 && protocol > 0);
    if rank.target.prov == "scif" {
        let shown = format!("{}.{}.", release >> 16, release & 0xffff);
        check!(env!("CARGO_PKG_VERSION").starts_with(&shown), "version {shown}");
    }
    // A program may store the value as an int, and treat a value that is not positive as
    // unspecified.
    for info in query.offers(|_| {})? {
        check!(info.ep().protocol as i32 > 0, "{:#x}", info.ep().protocol);
    }
    query.one(|hints| (hints.prov_version, hints.protocol_version) = (release, protocol))?;
    query.none("another release", |hints| hints.prov_version = release + 1)?;
    query.none("another protocol", |hints| hints.protocol_version = protocol + 1)?;
    query.one(|hints| hints.api_version = version(1, 5))?;
    query.one(|hints| hints.api_version = query.lib.version())?;
    Ok(())
}

/// Tests that completions have no promised order, and that messages are buffered as memory permits.
fn completions(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    let info = query.one(|_| {})?;
    check_eq!((info.tx().comp_order, info.rx().comp_order), (0, 0));
    for order in [sys::FI_ORDER_STRICT, sys::FI_ORDER_DATA] {
        query.none("ordered transmits", |hints| hints.tx.comp_order = order)?;
        query.none("ordered receives", |hints| hints.rx.comp_order = order)?;
    }
    let buffered = query.offers(|hints| hints.rx.total_buffered_recv = 1 << 20);
    check_eq!(buffered.is_ok(), query.lib.version() < version(2, 0));
    Ok(())
}

/// Tests that each side has its own capabilities, a subset of the endpoint's. Flags of the other
/// side are unknown.
fn sides(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    let info = query.one(|hints| {
        hints.caps = sys::FI_MSG | sys::FI_TAGGED;
        hints.tx.caps = sys::FI_TAGGED | sys::FI_SEND;
        hints.rx.caps = sys::FI_MSG | sys::FI_RECV;
    })?;
    let kinds = sys::FI_MSG | sys::FI_TAGGED | sys::FI_SEND | sys::FI_RECV;
    check_eq!(info.tx().caps & kinds, sys::FI_TAGGED | sys::FI_SEND);
    check_eq!(info.rx().caps & kinds, sys::FI_MSG | sys::FI_RECV);
    query.none("a capability to transmit", |hints| hints.tx.caps = sys::FI_HMEM)?;
    query.none("a capability to receive", |hints| hints.rx.caps = sys::FI_HMEM)?;
    query.none("a flag of receives", |hints| hints.tx.op_flags = sys::FI_MULTI_RECV)?;
    query.none("a flag of transmits", |hints| hints.rx.op_flags = sys::FI_DELIVERY_COMPLETE)?;
    query.none("a capability of domains", |hints| hints.domain_caps = sys::FI_HMEM)?;
    query.one(|hints| hints.domain_caps = sys::FI_LOCAL_COMM | sys::FI_REMOTE_COMM)?;
    Ok(())
}

/// Tests that a program that supports any mode needs none.
fn any_mode(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    let info = query.one(|hints| (hints.mode, hints.domain_mode) = (u64::MAX, u64::MAX))?;
    check_eq!((info.mode(), info.domain().mode), (0, 0));
    check_eq!(info.ep().msg_prefix_size, 0);
    Ok(())
}

/// Tests memory registration modes of programs older than 1.5.
fn old_modes(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    let ask = |mode, mr_mode| -> Result<Vec<Info>, Errno> {
        let mut hints =
            Hints { ep_type: sys::FI_EP_RDM, caps: sys::FI_RMA, mode, mr_mode, ..Hints::default() };
        hints.prov = Some(rank.target.prov.clone());
        query.lib.getinfo(version(1, 4), None, None, 0, Some(&hints))
    };
    for mode in [0, sys::FI_LOCAL_MR, sys::FI_CONTEXT | sys::FI_LOCAL_MR] {
        for mr_mode in [sys::FI_MR_UNSPEC, sys::FI_MR_BASIC, sys::FI_MR_SCALABLE] {
            let list = ask(mode, mr_mode)?;
            let info = list.first().ok_or_else(|| Fail::here("an empty list"))?;
            check_eq!(info.mode() & sys::FI_LOCAL_MR, 0);
            let answer = info.domain().mr_mode;
            check!([sys::FI_MR_BASIC, sys::FI_MR_SCALABLE].contains(&answer), "mode {answer:#x}");
            check!(mr_mode == sys::FI_MR_UNSPEC || answer == mr_mode);
        }
    }
    // Single bits exist since 1.5.
    check_eq!(ask(0, sys::FI_MR_VIRT_ADDR).map(drop), Err(Errno::ENODATA));
    Ok(())
}

/// Tests that the offer refers to open objects of its names.
fn open_objects(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    let info = query.one(|_| {})?;
    let fabric = Fabric::open(&info)?;
    let domain = Domain::open(&fabric, &info)?;
    check_eq!(info.names(&*fabric, &*domain)?, (false, false));
    let again = query.one(|_| {})?;
    check_eq!(again.names(&*fabric, &*domain)?, (true, true));
    check_eq!((domain.close(), fabric.close()), (Ok(()), Ok(())));
    let (fabric, domain) = {
        let fabric = Fabric::open(&again)?;
        let domain = Domain::open(&fabric, &again)?;
        (fabric, domain)
    };
    check_eq!(query.one(|_| {})?.names(&*fabric, &*domain)?, (true, true));
    Ok(())
}

/// Tests that contexts are reported on request, and their maximum.
fn contexts(rank: &Rank) -> Outcome {
    let query: InfoQuery<'_> = query(rank)?;
    let shared = sys::FI_SHARED_CONTEXT;
    for ep_type in TYPES {
        let info = query.one(|hints| {
            hints.ep_type = ep_type;
            (hints.tx_ctx_cnt, hints.rx_ctx_cnt) = (shared, shared);
        })?;
        check_eq!((info.ep().tx_ctx_cnt, info.ep().rx_ctx_cnt), (shared, shared));
        let many = query.offers(|hints| {
            hints.ep_type = ep_type;
            (hints.tx_ctx_cnt, hints.rx_ctx_cnt) = (2, 2);
        });
        check_eq!(many.is_ok(), ep_type == sys::FI_EP_RDM);
        query.none("contexts", |hints| {
            hints.ep_type = ep_type;
            hints.rx_ctx_cnt = 1 << 20;
        })?;
    }
    // Endpoints with triggered operations cannot have several contexts.
    query.none("triggers in contexts", |hints| {
        hints.caps = sys::FI_MSG | sys::FI_TRIGGER;
        hints.tx_ctx_cnt = 2;
    })?;
    Ok(())
}

/// Tests that no type of endpoint offers text addresses or longer ones.
fn other_formats(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    for ep_type in TYPES {
        for (subject, format) in
            [("addresses as text", sys::FI_ADDR_STR), ("addresses of IPv6", sys::FI_SOCKADDR_IN6)]
        {
            query.none(subject, |hints| {
                hints.ep_type = ep_type;
                hints.addr_format = format;
            })?;
        }
    }
    Ok(())
}

/// Tests that a request for either version of IP yields the available one.
fn any_internet(rank: &Rank) -> Outcome {
    needs_library(rank, version(2, 3), "a format for both versions of IP")?;
    let query = query(rank)?;
    for ep_type in TYPES {
        let info = query.one(|hints| {
            hints.ep_type = ep_type;
            hints.addr_format = sys::FI_SOCKADDR_IP;
        })?;
        check_eq!(info.ep().type_, ep_type);
        check_eq!(info.addr_format(), sys::FI_SOCKADDR_IN);
        check_eq!(info.src_addr().len(), 16);
    }
    Ok(())
}

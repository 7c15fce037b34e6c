// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Offers of the provider for hints. Mirrors fi_getinfo(3).

use scif_fabtests::fi::{Hints, Lib};
use scif_fabtests::prelude::*;

pub(crate) const CASES: &[Case] = &[
    case("getinfo/null_hints", 1, null_hints),
    case("getinfo/versions", 1, versions),
    case("getinfo/each_capability", 1, each_capability),
    case("getinfo/source_only_on_request", 1, source_on_request),
    case("getinfo/threading_and_progress", 1, threading),
    case("getinfo/modes_of_memory", 1, memory_modes),
    case("getinfo/orders", 1, orders),
    case("getinfo/operation_flags", 1, op_flags),
    case("getinfo/names", 1, names),
    case("getinfo/limits", 1, limits),
    case("getinfo/nodes_and_services", 1, nodes),
    case("getinfo/numeric_hosts", 1, numeric_hosts),
    case("getinfo/formats", 1, formats),
    case("getinfo/offer_as_hints", 1, offer_as_hints),
    case("getinfo/mpi_libraries", 1, mpi_libraries),
];

pub(super) struct InfoQuery<'r> {
    pub(super) lib: &'static Lib,
    rank: &'r Rank,
}

impl InfoQuery<'_> {
    pub(super) fn offers(&self, change: impl FnOnce(&mut Hints)) -> Result<Vec<Info>, Errno> {
        let mut hints = Hints { ep_type: sys::FI_EP_RDM, ..Hints::default() };
        hints.prov = Some(self.rank.target.prov.clone());
        change(&mut hints);
        self.lib.getinfo(self.lib.version(), None, None, 0, Some(&hints))
    }

    pub(super) fn one(&self, change: impl FnOnce(&mut Hints)) -> Outcome<Info> {
        match self.offers(change) {
            Ok(list) => list.into_iter().next().ok_or_else(|| Fail::here("an empty list")),
            Err(e) => Err(Fail::here(format_args!("fi_getinfo: {e}"))),
        }
    }

    #[track_caller]
    pub(super) fn none(&self, subject: &str, change: impl FnOnce(&mut Hints)) -> Outcome {
        match self.offers(change) {
            Err(Errno::ENODATA) => Ok(()),
            Ok(_) => Err(Fail::here(format_args!("{subject}: an offer"))),
            Err(e) => Err(Fail::here(format_args!("{subject}: {e}"))),
        }
    }
}

/// Returns the set-up of this file. Skips the case for other providers, because their results
/// differ.
pub(super) fn query(rank: &Rank) -> Outcome<InfoQuery<'_>> {
    if rank.target.prov == "scif" {
        Ok(InfoQuery { lib: load(rank)?, rank })
    } else {
        Err(Fail::NotRun("promises of another provider".into()))
    }
}

pub(super) fn ours(list: Vec<Info>, rank: &Rank) -> Vec<Info> {
    list.into_iter().filter(|info| info.prov_name() == rank.target.prov).collect()
}

fn null_hints(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    for version in [0, version(1, 5), version(1, 17), query.lib.version()] {
        let list = query.lib.getinfo(version, None, None, 0, None)?;
        let list = ours(list, rank);
        let info =
            list.first().ok_or_else(|| Fail::here(format_args!("nothing at {version:#x}")))?;
        check_eq!(info.ep().type_, sys::FI_EP_RDM);
        let all = sys::FI_MSG | sys::FI_TAGGED | sys::FI_RMA | sys::FI_ATOMIC | sys::FI_MULTI_RECV;
        let all = all | sys::FI_DIRECTED_RECV | sys::FI_LOCAL_COMM | sys::FI_REMOTE_COMM;
        check_eq!(info.caps() & all, all, "version {version:#x}");
        check_eq!(info.mode(), 0);
        check!(!info.src_addr().is_empty());
        let order = sys::FI_ORDER_ATOMIC_RAR
            | sys::FI_ORDER_ATOMIC_RAW
            | sys::FI_ORDER_ATOMIC_WAR
            | sys::FI_ORDER_ATOMIC_WAW
            | sys::FI_ORDER_SAS;
        check_eq!(info.tx().msg_order & order, order);
        let domain = info.domain();
        check_eq!(
            (domain.data_progress, domain.control_progress),
            (sys::FI_PROGRESS_MANUAL, sys::FI_PROGRESS_AUTO)
        );
        check_eq!((domain.mr_key_size, domain.cq_data_size), (8, 8));
        check_eq!((domain.max_ep_tx_ctx, domain.max_ep_rx_ctx), (1, 1));
        check!(info.tx().inject_size >= 4096, "{}", info.tx().inject_size);
        check!(info.ep().max_msg_size > 1 << 40);
        // The info can be opened unchanged.
        let fabric = Fabric::open(info)?;
        let domain = Domain::open(&fabric, info)?;
        Ep::open(&domain, info)?;
    }
    Ok(())
}

/// Returns hints for messages of this provider.
fn messages(rank: &Rank) -> Hints {
    Hints {
        ep_type: sys::FI_EP_RDM,
        caps: sys::FI_MSG,
        prov: Some(rank.target.prov.clone()),
        ..Hints::default()
    }
}

fn versions(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    let hints = messages(rank);
    for minor in [0, 1, 4, 5, 9, 12, 17] {
        let list = query.lib.getinfo(version(1, minor), None, None, 0, Some(&hints))?;
        check!(!list.is_empty(), "nothing at 1.{minor}");
    }
    let newer = query.lib.version() + 0x1_0000;
    check!(query.lib.getinfo(newer, None, None, 0, Some(&hints)).is_err());
    Ok(())
}

fn each_capability(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    let offered = [
        sys::FI_MSG,
        sys::FI_TAGGED,
        sys::FI_RMA,
        sys::FI_ATOMIC,
        sys::FI_MSG | sys::FI_MULTI_RECV,
        sys::FI_TAGGED | sys::FI_DIRECTED_RECV,
        sys::FI_RMA | sys::FI_RMA_EVENT,
        sys::FI_MSG | sys::FI_SOURCE,
        sys::FI_MSG | sys::FI_LOCAL_COMM,
        sys::FI_MSG | sys::FI_REMOTE_COMM,
        sys::FI_MSG | sys::FI_SEND,
        sys::FI_MSG | sys::FI_RECV,
        sys::FI_RMA | sys::FI_READ,
        sys::FI_RMA | sys::FI_REMOTE_WRITE,
        sys::FI_MSG | sys::FI_NAMED_RX_CTX,
        sys::FI_MSG | sys::FI_SHARED_AV,
        sys::FI_MSG | sys::FI_AV_USER_ID,
        sys::FI_TAGGED | sys::FI_LOCAL_COMM | sys::FI_REMOTE_COMM | sys::FI_DIRECTED_RECV,
    ];
    let primary = sys::FI_MSG | sys::FI_TAGGED | sys::FI_RMA | sys::FI_ATOMIC | sys::FI_RMA_EVENT;
    for caps in offered {
        let info = query.one(|hints| hints.caps = caps)?;
        check_eq!(info.caps() & caps, caps, "{caps:#x}");
        check_eq!(
            info.caps() & primary & !caps,
            0,
            "more than {caps:#x} was offered: {:#x}",
            info.caps()
        );
    }
    for caps in [sys::FI_HMEM, sys::FI_MULTICAST, sys::FI_RMA_PMEM] {
        query.none("a capability nobody has here", |hints| hints.caps = sys::FI_MSG | caps)?;
    }
    Ok(())
}

fn source_on_request(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    check_eq!(query.one(|_| {})?.caps() & sys::FI_SOURCE, 0);
    check_eq!(query.one(|hints| hints.caps = sys::FI_TAGGED)?.caps() & sys::FI_SOURCE, 0);
    let with = query.one(|hints| hints.caps = sys::FI_TAGGED | sys::FI_SOURCE)?;
    check!(with.caps() & sys::FI_SOURCE != 0);
    Ok(())
}

/// Tests that the requested threading level is returned, as an MPI library requires.
fn threading(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    for level in [sys::FI_THREAD_SAFE, sys::FI_THREAD_DOMAIN, sys::FI_THREAD_COMPLETION] {
        check_eq!(query.one(|hints| hints.threading = level)?.domain().threading, level);
    }
    for progress in [sys::FI_PROGRESS_AUTO, sys::FI_PROGRESS_MANUAL] {
        let domain = query.one(|hints| {
            hints.data_progress = progress;
            hints.control_progress = progress;
        })?;
        let domain = domain.domain();
        check_eq!((domain.data_progress, domain.control_progress), (progress, progress));
    }
    for rm in [sys::FI_RM_ENABLED, sys::FI_RM_DISABLED] {
        query.one(|hints| hints.resource_mgmt = rm)?;
    }
    for av_type in [sys::FI_AV_MAP, sys::FI_AV_TABLE] {
        check_eq!(query.one(|hints| hints.av_type = av_type)?.domain().av_type, av_type);
    }
    Ok(())
}

fn memory_modes(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    let bits = [
        sys::FI_MR_LOCAL,
        sys::FI_MR_RAW,
        sys::FI_MR_VIRT_ADDR,
        sys::FI_MR_ALLOCATED,
        sys::FI_MR_PROV_KEY,
        sys::FI_MR_ENDPOINT,
        sys::FI_MR_RMA_EVENT,
    ];
    // Every combination of modes that a program supports.
    for set in 0..1_u32 << bits.len() {
        let mode: i32 =
            bits.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1).map(|(_, bit)| bit).sum();
        let info = query.one(|hints| {
            hints.caps = sys::FI_RMA | sys::FI_MSG;
            hints.mr_mode = mode;
        })?;
        check_eq!(info.domain().mr_mode & !mode, 0, "mode {mode:#x}");
    }
    for mode in [sys::FI_MR_BASIC, sys::FI_MR_SCALABLE] {
        let info = query.one(|hints| {
            hints.caps = sys::FI_RMA;
            hints.mr_mode = mode;
        })?;
        check_eq!(info.domain().mr_mode, mode);
    }
    Ok(())
}

fn orders(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    let offered = query.one(|_| {})?.tx().msg_order;
    for bit in (0..64).map(|at| 1_u64 << at) {
        let answer = query.offers(|hints| hints.tx.msg_order = bit);
        let known = offered & bit != 0 || bit == sys::FI_ORDER_RAS || bit == sys::FI_ORDER_WAS;
        check_eq!(answer.is_ok(), known, "order {bit:#x}");
        if let Ok(list) = answer {
            for info in list {
                check!(info.tx().msg_order & bit != 0, "order {bit:#x} was not returned");
            }
        }
    }
    Ok(())
}

fn op_flags(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    for flags in [
        sys::FI_COMPLETION,
        sys::FI_INJECT,
        sys::FI_INJECT_COMPLETE,
        sys::FI_TRANSMIT_COMPLETE,
        sys::FI_DELIVERY_COMPLETE,
        sys::FI_DELIVERY_COMPLETE | sys::FI_COMPLETION,
        sys::FI_MATCH_COMPLETE,
    ] {
        let info = query.one(|hints| hints.tx.op_flags = flags)?;
        check_eq!(info.tx().op_flags & flags, flags);
    }
    query
        .none("commit to persistent memory", |hints| hints.tx.op_flags = sys::FI_COMMIT_COMPLETE)?;
    let info = query.one(|hints| hints.rx.op_flags = sys::FI_MULTI_RECV | sys::FI_COMPLETION)?;
    check_eq!(info.rx().op_flags, sys::FI_MULTI_RECV | sys::FI_COMPLETION);
    Ok(())
}

fn names(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    let info = query.one(|_| {})?;
    check_eq!(info.prov_name(), rank.target.prov);
    let (fabric, domain) = (info.fabric_name(), info.domain().name);
    check!(!fabric.is_empty() && !domain.is_empty());
    query.one(|hints| {
        hints.fabric = Some(fabric);
        hints.domain = Some(domain);
    })?;
    query.none("a wrong fabric", |hints| hints.fabric = Some("elsewhere".into()))?;
    query.none("a wrong domain", |hints| hints.domain = Some("elsewhere".into()))?;
    query.none("a wrong endpoint type", |hints| hints.ep_type = 77)?;
    query.none("a wrong protocol", |hints| hints.protocol = sys::FI_PROTO_SOCK_TCP)?;
    Ok(())
}

fn limits(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    let info = query.one(|_| {})?;
    let (tx, rx, domain) = (info.tx(), info.rx(), info.domain());
    query.one(|hints| {
        hints.tx.inject_size = tx.inject_size;
        hints.tx.size = tx.size;
        hints.tx.iov_limit = tx.iov_limit;
        hints.tx.rma_iov_limit = tx.rma_iov_limit;
        hints.rx.size = rx.size;
        hints.rx.iov_limit = rx.iov_limit;
        hints.cq_data_size = domain.cq_data_size;
    })?;
    query.none("inject size", |hints| hints.tx.inject_size = tx.inject_size + 1)?;
    // The defaults equal those of other providers; more is available on request.
    check_eq!((tx.iov_limit, rx.iov_limit), (4, 4));
    let most = 8;
    let longer = query.one(|hints| {
        hints.tx.iov_limit = most;
        hints.rx.iov_limit = most;
    })?;
    check_eq!((longer.tx().iov_limit, longer.rx().iov_limit), (most, most));
    query.none("iov limit", |hints| hints.tx.iov_limit = most + 1)?;
    query.none("receive iov limit", |hints| hints.rx.iov_limit = most + 1)?;
    query.none("rma iov limit", |hints| hints.tx.rma_iov_limit = tx.rma_iov_limit + 1)?;
    query.none("cq data size", |hints| hints.cq_data_size = domain.cq_data_size + 1)?;
    // The maximum number of contexts is reported only on request of more than one.
    let most = query.one(|hints| hints.tx_ctx_cnt = 2)?.domain().max_ep_tx_ctx;
    query.one(|hints| hints.tx_ctx_cnt = most)?;
    query.none("contexts", |hints| hints.tx_ctx_cnt = most + 1)?;
    query.none("region pieces", |hints| hints.mr_iov_limit = domain.mr_iov_limit + 1)?;
    let smaller = query.one(|hints| hints.tx.inject_size = 64)?;
    check!(smaller.tx().inject_size >= 64);
    Ok(())
}

fn nodes(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    let hints = messages(rank);
    let (lib, version) = (query.lib, query.lib.version());
    let ask = |node, service, flags| lib.getinfo(version, node, service, flags, Some(&hints));
    let first =
        |list: Vec<Info>| list.into_iter().next().ok_or_else(|| Fail::here("an empty list"));
    let port = 9_228_u16.to_be_bytes();
    let server = first(ask(Some("127.0.0.1"), Some("9228"), sys::FI_SOURCE)?)?;
    check_eq!(server.src_addr().get(2..4), Some(port.as_slice()));
    check!(server.dest_addr().is_empty());
    let client = first(ask(Some("127.0.0.1"), Some("9228"), 0)?)?;
    check_eq!(client.dest_addr().get(2..4), Some(port.as_slice()));
    check!(!client.src_addr().is_empty());
    first(ask(None, Some("9228"), sys::FI_SOURCE)?)?;
    first(ask(Some("localhost"), None, 0)?)?;
    check!(ask(None, None, sys::FI_SOURCE).is_err(), "a source without a name");
    check_eq!(ask(Some("g00n13s"), Some("9228"), 0).err(), Some(Errno::ENODATA));
    check_eq!(ask(Some("192.0.2.1"), Some("9228"), 0).err(), Some(Errno::ENODATA));
    check!(ask(Some("127.0.0.1"), Some("no such service"), 0).is_err());
    Ok(())
}

/// Tests that with `FI_NUMERICHOST` a host name is no address, even if it resolves.
fn numeric_hosts(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    let hints = messages(rank);
    let (lib, version) = (query.lib, query.lib.version());
    let ask = |node, service, flags| -> Result<Info, Errno> {
        let list = lib.getinfo(version, node, service, flags, Some(&hints))?;
        list.into_iter().next().ok_or(Errno::EOTHER)
    };
    let place = [9_228_u16.to_be_bytes().as_slice(), &[127, 0, 0, 1]].concat();
    for side in [0, sys::FI_SOURCE] {
        for service in [None, Some("9228")] {
            let named = ask(Some("127.0.0.1"), service, side | sys::FI_NUMERICHOST)?;
            let addr = if side == 0 { named.dest_addr() } else { named.src_addr() };
            check_eq!(addr.get(4..8), place.get(2..));
            check!(service.is_none() || addr.get(2..8) == Some(place.as_slice()));
            // This name resolves.
            ask(Some("localhost"), service, side)?;
            for node in ["localhost", "::1", ""] {
                let found = ask(Some(node), service, side | sys::FI_NUMERICHOST);
                check_eq!(found.err(), Some(Errno::ENODATA), "{node:?}, side {side:#x}");
            }
        }
        ask(None, Some("9228"), side | sys::FI_NUMERICHOST)?;
    }
    Ok(())
}

fn formats(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    for format in [sys::FI_FORMAT_UNSPEC, sys::FI_SOCKADDR, sys::FI_SOCKADDR_IN] {
        let info = query.one(|hints| hints.addr_format = format)?;
        check_eq!(info.addr_format(), sys::FI_SOCKADDR_IN);
        check_eq!(info.src_addr().len(), 16);
    }
    for format in [sys::FI_ADDR_PSMX, sys::FI_SOCKADDR_IB, 12_345] {
        query.none("a wrong format", |hints| hints.addr_format = format)?;
    }
    Ok(())
}

/// Tests that an offer is accepted as hints.
fn offer_as_hints(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    for caps in [0, sys::FI_MSG, sys::FI_TAGGED | sys::FI_SOURCE, sys::FI_RMA | sys::FI_ATOMIC] {
        let mut info = query.one(|hints| hints.caps = caps)?;
        for _ in 0..3 {
            let list = query.lib.getinfo_like(query.lib.version(), None, None, 0, Some(&info))?;
            let again = list.into_iter().next().ok_or_else(|| Fail::here("an empty list"))?;
            check_eq!(again.caps(), info.caps());
            check_eq!(again.domain(), info.domain());
            check_eq!(again.tx().msg_order, info.tx().msg_order);
            info = again;
        }
    }
    Ok(())
}

/// Tests the hints of Open MPI, MPICH and Intel MPI.
fn mpi_libraries(rank: &Rank) -> Outcome {
    let query = query(rank)?;
    let open_mpi = query.one(|hints| {
        hints.caps =
            sys::FI_TAGGED | sys::FI_LOCAL_COMM | sys::FI_REMOTE_COMM | sys::FI_DIRECTED_RECV;
        hints.mode = sys::FI_CONTEXT | sys::FI_CONTEXT2;
        hints.tx.msg_order = sys::FI_ORDER_SAS;
        hints.rx.msg_order = sys::FI_ORDER_SAS;
        hints.tx.op_flags = sys::FI_COMPLETION;
        hints.rx.op_flags = sys::FI_COMPLETION;
        hints.threading = sys::FI_THREAD_DOMAIN;
        hints.cq_data_size = 4;
        hints.resource_mgmt = sys::FI_RM_ENABLED;
        hints.av_type = sys::FI_AV_MAP;
    })?;
    check!(open_mpi.ep().mem_tag_format >> 63 == 1, "all bits of the tag are needed");
    let mpich = query.one(|hints| {
        hints.caps = sys::FI_MSG
            | sys::FI_TAGGED
            | sys::FI_RMA
            | sys::FI_ATOMIC
            | sys::FI_MULTI_RECV
            | sys::FI_DIRECTED_RECV
            | sys::FI_READ
            | sys::FI_WRITE
            | sys::FI_SEND
            | sys::FI_RECV
            | sys::FI_REMOTE_READ
            | sys::FI_REMOTE_WRITE;
        hints.mode = sys::FI_CONTEXT | sys::FI_ASYNC_IOV | sys::FI_RX_CQ_DATA | sys::FI_CONTEXT2;
        hints.threading = sys::FI_THREAD_DOMAIN;
        hints.data_progress = sys::FI_PROGRESS_MANUAL;
        hints.control_progress = sys::FI_PROGRESS_MANUAL;
        hints.resource_mgmt = sys::FI_RM_ENABLED;
        hints.av_type = sys::FI_AV_TABLE;
        hints.mr_mode = sys::FI_MR_ENDPOINT;
        hints.domain_mode = sys::FI_RESTRICTED_COMP;
        hints.tx.op_flags = sys::FI_COMPLETION | sys::FI_DELIVERY_COMPLETE;
        hints.tx.msg_order = sys::FI_ORDER_SAS
            | sys::FI_ORDER_ATOMIC_RAR
            | sys::FI_ORDER_ATOMIC_RAW
            | sys::FI_ORDER_ATOMIC_WAR
            | sys::FI_ORDER_ATOMIC_WAW;
        hints.rx.msg_order = sys::FI_ORDER_SAS;
        hints.rx.op_flags = sys::FI_COMPLETION;
    })?;
    check_eq!(mpich.domain().threading, sys::FI_THREAD_DOMAIN);
    check_eq!(mpich.domain().av_type, sys::FI_AV_TABLE);
    let btl = query.one(|hints| {
        hints.caps = sys::FI_RMA | sys::FI_ATOMIC;
        hints.mr_mode = sys::FI_MR_ALLOCATED | sys::FI_MR_PROV_KEY | sys::FI_MR_VIRT_ADDR;
        hints.tx.op_flags = sys::FI_DELIVERY_COMPLETE | sys::FI_COMPLETION;
        hints.tx.iov_limit = 1;
        hints.rx.iov_limit = 1;
        hints.threading = sys::FI_THREAD_SAFE;
        hints.av_type = sys::FI_AV_MAP;
    })?;
    check_eq!(btl.domain().threading, sys::FI_THREAD_SAFE);
    Ok(())
}

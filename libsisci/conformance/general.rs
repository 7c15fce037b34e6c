// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Library, descriptors, nodes and queries.

use std::ffi::{CString, c_void};
use std::ptr::null_mut;

use scif_fabtests::harness::process::Process;

use crate::api::{Api, Case, Handle, numbers};
use crate::rig::{LONG, Node, OTHER, OWNER, code, open, set_env, two, two_with_kill};

pub(crate) const CASES: &[Case] = &[
    ("nothing opens before SCIInitialize", not_initialized),
    ("SCIInitialize counts", initialize_counts),
    ("SCITerminate keeps open objects", terminate_keeps_objects),
    ("SCIClose is refused while objects are left", close_is_refused),
    ("the node id comes from the setting", node_id),
    ("the node id follows the node of scif", node_id_of_scif),
    ("a node of a live process is reachable", probe),
    ("a node without a process is not", probe_absent),
    ("a node ends with its last process", probe_killed),
    ("illegal nodes and adapters are told apart", illegal_numbers),
    ("a setting gives the number of adapters", adapters),
    ("adapters have names", names_of_adapters),
    ("queries of the adapter", query_adapter),
    ("queries of texts", query_texts),
    ("queries of the system and of transfers", query_system),
    ("unknown queries are refused", query_unknown),
    ("a forked child initializes for itself", forked_child),
    ("a forked child cannot copy to a map of its parent", forked_copy),
    ("descriptors own their objects", descriptors),
    ("types and families of adapters have a text", adapter_texts),
    ("each subcommand of the adapter has an answer", query_adapter_all),
    ("devices are not queried", query_device),
];

fn not_initialized(api: &Api) {
    assert_eq!(open(api), Err(code::NOT_INITIALIZED));
    let mut node = 0;
    assert_eq!(api.SCIGetLocalNodeId(0, &raw mut node, 0), Err(code::NOT_INITIALIZED));
    assert_eq!(api.SCIInitialize(1), Err(code::ILLEGAL_FLAG));
    assert_eq!(open(api), Err(code::NOT_INITIALIZED));
}

fn initialize_counts(api: &Api) {
    api.SCIInitialize(0).unwrap();
    api.SCIInitialize(0).unwrap();
    api.terminate();
    let sd = open(api).unwrap();
    api.SCIClose(sd, 0).unwrap();
    api.terminate();
    assert_eq!(open(api), Err(code::NOT_INITIALIZED));
    api.SCIInitialize(0).unwrap();
    Node { api, sd: open(api).unwrap() }.leave();
}

fn terminate_keeps_objects(api: &Api) {
    let node = Node::join(api, OWNER);
    api.terminate();
    let segment = node.create(1, 4096, 0).unwrap();
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn close_is_refused(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.create(1, 4096, 0).unwrap();
    assert_eq!(api.SCIClose(node.sd, 0), Err(code::BUSY));
    api.SCIRemoveSegment(segment, 0).unwrap();
    assert_eq!(api.SCIClose(node.sd, 1), Err(code::ILLEGAL_FLAG));
    node.leave();
}

fn node_id(api: &Api) {
    let node = Node::join(api, 16);
    let mut id = 0;
    api.SCIGetLocalNodeId(0, &raw mut id, 0).unwrap();
    assert_eq!(id, 16);
    assert_eq!(api.SCIGetLocalNodeId(0, null_mut(), 0), Err(code::ILLEGAL_PARAMETER));
    assert_eq!(api.SCIGetLocalNodeId(0, &raw mut id, 4), Err(code::ILLEGAL_FLAG));
    node.leave();
}

fn node_id_of_scif(api: &Api) {
    set_env("SCIF_NODE", "2");
    api.SCIInitialize(0).unwrap();
    let mut id = 0;
    api.SCIGetLocalNodeId(0, &raw mut id, 0).unwrap();
    assert_eq!(id, 12);
    api.terminate();
}

fn probe(api: &Api) {
    two(
        api,
        |node, cue| {
            cue.wait();
            assert_eq!(api.SCIProbeNode(node.sd, 0, OTHER, 0), Ok(1));
            assert_eq!(api.SCIProbeNode(node.sd, 0, OWNER, 0), Ok(1), "the own node");
            cue.notify();
            node.leave();
        },
        |node, cue| {
            cue.meet();
            node.leave();
        },
    );
}

fn probe_absent(api: &Api) {
    let node = Node::join(api, OWNER);
    assert_eq!(api.SCIProbeNode(node.sd, 0, OTHER, 0), Err(code::NO_SUCH_NODEID));
    node.leave();
}

fn probe_killed(api: &Api) {
    two_with_kill(
        api,
        |node, cue, other| {
            cue.wait();
            assert_eq!(api.SCIProbeNode(node.sd, 0, OTHER, 0), Ok(1));
            other.kill();
            crate::rig::until_gone(other);
            assert_eq!(api.SCIProbeNode(node.sd, 0, OTHER, 0), Err(code::NO_SUCH_NODEID));
            node.leave();
        },
        |_node, cue| {
            cue.notify();
            crate::rig::sleep_for_ever();
        },
    );
}

fn illegal_numbers(api: &Api) {
    let node = Node::join(api, OWNER);
    let probe = |adapter, id| api.SCIProbeNode(node.sd, adapter, id, 0);
    for illegal in [0, 6, 252, u32::MAX] {
        assert_eq!(probe(0, illegal), Err(code::ILLEGAL_NODEID), "{illegal}");
    }
    assert_eq!(probe(1, OWNER), Err(code::NO_SUCH_ADAPTERNO));
    assert_eq!(probe(16, OWNER), Err(code::ILLEGAL_ADAPTERNO));
    assert_eq!(probe(api.constant("SCI_LOCAL_HOST"), OWNER), Ok(1));
    assert_eq!(api.SCIProbeNode(node.sd, 0, OWNER, 1), Err(code::ILLEGAL_FLAG));
    assert_eq!(node.connect(6, 1), Err(code::ILLEGAL_NODEID));
    node.leave();
}

fn adapters(api: &Api) {
    set_env("SISCI_ADAPTERS", "2");
    let node = Node::join(api, OWNER);
    let segment = node.create(1, 4096, 0).unwrap();
    for (adapter, answer) in [
        (0, Ok(())),
        (1, Ok(())),
        (2, Err(code::NO_SUCH_ADAPTERNO)),
        (16, Err(code::ILLEGAL_ADAPTERNO)),
    ] {
        assert_eq!(api.SCIPrepareSegment(segment, adapter, 0), answer, "{adapter}");
    }
    api.SCISetSegmentAvailable(segment, 1, 0).unwrap();
    assert_eq!(node.connect(OWNER, 1), Err(code::NO_SUCH_SEGMENT), "not available at adapter 0");
    let mut remote = null_mut();
    let at = &raw mut remote;
    api.SCIConnectSegment(node.sd, at, OWNER, 1, 1, None, null_mut(), LONG, 0).unwrap();
    api.SCIDisconnectSegment(remote, 0).unwrap();
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn names_of_adapters(api: &Api) {
    let node = Node::join(api, OWNER);
    let (mut list, mut kind) = ([1; 8], 9);
    let mut ask = |name: &str| {
        let name = CString::new(name).unwrap();
        let (list_at, kind_at) = (&raw mut list, &raw mut kind);
        api.SCIGetNodeIdByAdapterName(name.as_ptr(), list_at, kind_at, 0).map(|()| list)
    };
    assert_eq!(ask("node12_a0"), Ok([12, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(ask("node12"), Ok([12, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(ask("host"), Err(code::ILLEGAL_PARAMETER));
    node.leave();
}

#[repr(C)]
struct QueryAdapter {
    adapter: u32,
    port: u32,
    subcommand: u32,
    data: *mut u32,
}

fn query_adapter(api: &Api) {
    let node = Node::join(api, OWNER);
    let ask = |adapter, name: &str| {
        let mut answer = u32::MAX;
        let subcommand = api.constant(&format!("SCI_Q_ADAPTER_{name}"));
        let mut query = QueryAdapter { adapter, port: 0, subcommand, data: &raw mut answer };
        let at: *mut QueryAdapter = &raw mut query;
        api.SCIQuery(api.constant("SCI_Q_ADAPTER"), at.cast(), 0).map(|()| answer)
    };
    assert_eq!(ask(0, "NODEID"), Ok(OWNER));
    assert_eq!(ask(0, "LINK_OPERATIONAL"), Ok(1));
    assert_eq!(ask(0, "BDF"), Ok(0));
    assert_eq!(ask(0, "CONFIGURED"), Ok(1));
    assert!(ask(0, "DMA_SIZE_ALIGNMENT").unwrap() > 0);
    assert_eq!(ask(1, "NODEID"), Err(code::NO_SUCH_ADAPTERNO));
    assert_eq!(ask(0, "ATT_PAGE_SIZE"), Err(code::ILLEGAL_QUERY));
    node.leave();
}

#[repr(C)]
struct QueryString {
    text: *mut u8,
    length: u32,
}

fn query_texts(api: &Api) {
    let node = Node::join(api, OWNER);
    for name in ["SCI_Q_VENDORID", "SCI_Q_API", "SCI_Q_SISCI_DRIVER_VERSION"] {
        for length in [1_u32, 3, 64] {
            let mut text = [b'x'; 80];
            let mut query = QueryString { text: text.as_mut_ptr(), length };
            let at: *mut QueryString = &raw mut query;
            api.SCIQuery(api.constant(name), at.cast(), 0).unwrap();
            let end = text.iter().position(|byte| *byte == 0).unwrap();
            assert!(end < length as usize, "{name}: {end} of {length}");
            assert_eq!(text[64], b'x');
        }
    }
    node.leave();
}

#[repr(C)]
struct QuerySystem {
    subcommand: u32,
    data: *mut u32,
}

#[repr(C)]
struct QueryDma {
    adapter: u32,
    subcommand: u32,
    data: *mut c_void,
}

fn query_system(api: &Api) {
    let node = Node::join(api, OWNER);
    let mut answer = 0;
    let subcommand = api.constant("SCI_Q_SYSTEM_CPU_CACHE_LINE_SIZE");
    let mut query = QuerySystem { subcommand, data: &raw mut answer };
    let at: *mut QuerySystem = &raw mut query;
    api.SCIQuery(api.constant("SCI_Q_SYSTEM"), at.cast(), 0).unwrap();
    assert_eq!(answer, 64);
    let mut capabilities = [0_u32; 8];
    let subcommand = api.constant("SCI_Q_DMA_CAPABILITIES");
    let mut query = QueryDma { adapter: 0, subcommand, data: capabilities.as_mut_ptr().cast() };
    let at: *mut QueryDma = &raw mut query;
    api.SCIQuery(api.constant("SCI_Q_DMA"), at.cast(), api.flag("DMA_SYSDMA")).unwrap();
    assert_eq!((capabilities[0], capabilities[2]), (1, 256), "channels, parts of a vector");
    node.leave();
}

fn query_unknown(api: &Api) {
    let node = Node::join(api, OWNER);
    assert_eq!(api.SCIQuery(999, null_mut(), 0), Err(code::ILLEGAL_QUERY));
    let adapter = api.constant("SCI_Q_ADAPTER");
    assert_eq!(api.SCIQuery(adapter, null_mut(), 0), Err(code::ILLEGAL_PARAMETER));
    assert_eq!(api.SCIQuery(adapter, null_mut(), 1), Err(code::ILLEGAL_FLAG));
    node.leave();
}

fn forked_child(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment: Handle = node.export(1, 4096, 0);
    let child = Process::start(|| {
        assert_eq!(api.SCIRemoveSegment(segment, 0), Err(code::NOT_INITIALIZED));
        assert_eq!(open(api), Err(code::NOT_INITIALIZED));
        let own = Node::join(api, OTHER);
        let remote = own.connect(OWNER, 1).unwrap();
        api.SCIDisconnectSegment(remote, 0).unwrap();
        own.leave();
    });
    child.wait();
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn forked_copy(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.export(1, 4096, 0);
    let remote = node.connect(OWNER, 1).unwrap();
    let view = node.map(remote, 0, 4096).unwrap();
    let copy = |mut value: u32, flags| {
        api.SCIMemCpy(null_mut(), (&raw mut value).cast(), view.map, 0, 4, flags)
    };
    // The second copy finds known handles.
    for _ in 0..2 {
        copy(1, 0).unwrap();
    }
    let child = Process::start(|| {
        for flags in [0, api.flag("BLOCK_READ")] {
            assert_eq!(copy(2, flags), Err(code::NOT_INITIALIZED));
        }
    });
    child.wait();
    assert_eq!(view.load(0), 1);
    copy(3, 0).unwrap();
    api.SCIUnmapSegment(view.map, 0).unwrap();
    api.SCIDisconnectSegment(remote, 0).unwrap();
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn descriptors(api: &Api) {
    let node = Node::join(api, OWNER);
    let mut second = null_mut();
    api.SCIOpen(&raw mut second, api.flag("THREAD_SAFE")).unwrap();
    let (first, second) = (node, Node { api, sd: second });
    let segment = first.create(1, 64, 0).unwrap();
    assert_eq!(second.create(1, 64, 0), Err(code::SEGMENTID_USED), "one node");
    assert_eq!(api.SCIClose(first.sd, 0), Err(code::BUSY));
    api.SCIClose(second.sd, 0).unwrap();
    assert_eq!(second.create(2, 64, 0), Err(code::ILLEGAL_PARAMETER), "closed");
    api.SCIRemoveSegment(segment, 0).unwrap();
    first.leave();
}

fn adapter_texts(api: &Api) {
    for number in [0, 1, u32::MAX] {
        assert_eq!(api.text("SCIGetAdapterTypeString", number), "SOFT");
        assert_eq!(api.text("SCIGetAdapterFamilyString", number), "SOFT");
    }
}

/// Subcommands that describe the SCI ring or the address tables of old adapters.
const WITHOUT_MEANING: [&str; 12] = [
    "ATT_AVAILABLE_ENTRIES",
    "ATT_NUMBER_OF_ENTRIES",
    "ATT_PAGE_SIZE",
    "B_LINK_FREQUENCY",
    "CONNECTED_TO_EXPECTED_SWITCH_PORT",
    "IO_BUS_FREQUENCY",
    "LINK_SPEED",
    "LINK_UPTIME",
    "LINK_WIDTH",
    "LOCAL_SWITCH_PORT_NUMBER",
    "LOCAL_SWITCH_TYPE",
    "SCI_LINK_FREQUENCY",
];

fn query_adapter_all(api: &Api) {
    let node = Node::join(api, OWNER);
    for name in numbers("SCI_Q_ADAPTER_") {
        let mut answer = u32::MAX;
        let subcommand = api.constant(&format!("SCI_Q_ADAPTER_{name}"));
        let mut query = QueryAdapter { adapter: 0, port: 0, subcommand, data: &raw mut answer };
        let at: *mut QueryAdapter = &raw mut query;
        let asked = api.SCIQuery(api.constant("SCI_Q_ADAPTER"), at.cast(), 0);
        let streams = name.contains("STREAM") || name.starts_with("PHYS_");
        if streams || WITHOUT_MEANING.contains(&name) {
            assert_eq!((asked, answer), (Err(code::ILLEGAL_QUERY), u32::MAX), "{name}");
        } else {
            assert_eq!(asked, Ok(()), "{name}");
        }
    }
    node.leave();
}

fn query_device(api: &Api) {
    let node = Node::join(api, OWNER);
    let mut answer = 0_u64;
    let asked = api.SCIQuery(api.constant("SCI_Q_DEVICE"), (&raw mut answer).cast(), 0);
    assert_eq!(asked, Err(code::NOT_SUPPORTED));
    node.leave();
}

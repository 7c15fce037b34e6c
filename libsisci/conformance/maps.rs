// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Mappings and sequences.
#![expect(unsafe_code, reason = "memory at fixed addresses")]

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::api::{Answer, Api, Case, Handle};
use crate::rig::{Node, OWNER, SEQ_OK, View, code};

pub(crate) const CASES: &[Case] = &[
    ("both maps show one memory", shared),
    ("parts at any offset of words", parts),
    ("parts past the end are refused", past_the_end),
    ("unaligned offsets are refused", unaligned),
    ("a map of no bytes is refused", no_bytes),
    ("READONLY_MAP refuses copies to it", readonly),
    ("FIXED_MAP_ADDR maps at an address", fixed),
    ("wrong fixed addresses are refused", wrong_fixed),
    ("hints about hardware have no effect", hints),
    ("flags without an implementation are told apart", absent_flags),
    ("SCIGetMapPointer gives the address", pointer),
    ("a map with a sequence is not unmapped", busy),
    ("a sequence needs a remote map", remote_only),
    ("a sequence of a live segment is OK", sequence_ok),
    ("a query tells maps of the own node", query_map),
    ("flags of local maps", local_flags),
    ("physical addresses are not told", no_physical_address),
    ("barriers and flushes take a sequence or none", barriers),
];

struct Pair<'a> {
    node: Node<'a>,
    segment: Handle,
    remote: Handle,
}

impl<'a> Pair<'a> {
    fn new(api: &'a Api, size: usize) -> Pair<'a> {
        let node = Node::join(api, OWNER);
        let segment = node.export(1, size, 0);
        let remote = node.connect(OWNER, 1).unwrap();
        Pair { node, segment, remote }
    }

    fn map_at(&self, offset: usize, addr: usize, flags: u32) -> Answer<View> {
        let mut map = null_mut();
        let addr = std::ptr::with_exposed_provenance_mut(addr);
        let at = &raw mut map;
        let at = self.node.api.SCIMapRemoteSegment(self.remote, at, offset, 4096, addr, flags)?;
        Ok(View { map, at: at.expose_provenance() })
    }

    fn end(self, maps: &[Handle]) {
        let api = self.node.api;
        for map in maps {
            api.SCIUnmapSegment(*map, 0).unwrap();
        }
        api.SCIDisconnectSegment(self.remote, 0).unwrap();
        api.SCIRemoveSegment(self.segment, 0).unwrap();
        self.node.leave();
    }
}

fn shared(api: &Api) {
    let pair = Pair::new(api, 1 << 20);
    let local = pair.node.map_local(pair.segment, 0, 1 << 20).unwrap();
    let remote = pair.node.map(pair.remote, 0, 1 << 20).unwrap();
    for offset in (0..1 << 20).step_by(4096) {
        assert_eq!(local.load(offset), 0, "zeroed");
        remote.store(offset, 7);
        assert_eq!(local.load(offset), 7);
    }
    pair.end(&[local.map, remote.map]);
}

fn parts(api: &Api) {
    let pair = Pair::new(api, 3 * 4096);
    let whole = pair.node.map(pair.remote, 0, 3 * 4096).unwrap();
    for (offset, size) in [(4, 4), (4092, 8), (4096, 4096), (5000, 7000), (12284, 4)] {
        let part = pair.node.map(pair.remote, offset, size).unwrap();
        part.store(0, 5 + u32::try_from(offset).unwrap());
        assert_eq!(whole.load(offset), part.load(0));
        api.SCIUnmapSegment(part.map, 0).unwrap();
    }
    pair.end(&[whole.map]);
}

fn past_the_end(api: &Api) {
    let pair = Pair::new(api, 5000);
    for (offset, size) in [(0, 5001), (5000, 4), (4996, 8), (usize::MAX - 3, 8), (4, usize::MAX)] {
        let remote = pair.node.map(pair.remote, offset, size).err();
        assert_eq!(remote, Some(code::OUT_OF_RANGE), "{offset:#x} {size:#x}");
        let local = pair.node.map_local(pair.segment, offset, size).err();
        assert_eq!(local, Some(code::OUT_OF_RANGE), "{offset:#x} {size:#x}");
    }
    pair.end(&[]);
}

fn unaligned(api: &Api) {
    let pair = Pair::new(api, 4096);
    for offset in [1, 2, 7] {
        assert_eq!(pair.node.map(pair.remote, offset, 4).err(), Some(code::OFFSET_ALIGNMENT));
    }
    pair.end(&[]);
}

fn no_bytes(api: &Api) {
    let pair = Pair::new(api, 4096);
    assert_eq!(pair.node.map(pair.remote, 0, 0).err(), Some(code::SIZE_ALIGNMENT));
    pair.end(&[]);
}

fn readonly(api: &Api) {
    let pair = Pair::new(api, 4096);
    let view = pair.map_at(0, 0, api.flag("READONLY_MAP")).unwrap();
    assert_eq!(view.load(0), 0);
    let mut word = [1_u8; 4];
    let at = word.as_mut_ptr().cast();
    assert_eq!(api.SCIMemCopy(at, view.map, 0, 4, 0), Err(code::ILLEGAL_OPERATION));
    api.SCIMemCopy(at, view.map, 0, 4, api.flag("BLOCK_READ")).unwrap();
    assert_eq!(word, [0; 4]);
    pair.end(&[view.map]);
}

/// Reserves two pages of addresses.
fn reserve() -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the kernel picks an unused range.
    let at = unsafe { libc::mmap(null_mut(), 8192, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.expose_provenance()
}

fn fixed(api: &Api) {
    let pair = Pair::new(api, 8192);
    let place = reserve();
    let view = pair.map_at(0, place, api.flag("FIXED_MAP_ADDR")).unwrap();
    assert_eq!(view.at, place);
    view.store(0, 3);
    assert_eq!(view.load(0), 3);
    pair.end(&[view.map]);
}

fn wrong_fixed(api: &Api) {
    let pair = Pair::new(api, 8192);
    let flag = api.flag("FIXED_MAP_ADDR");
    for (offset, addr) in [(0, 0), (0, reserve() + 8), (8, reserve())] {
        let mapped = pair.map_at(offset, addr, flag).err();
        assert_eq!(mapped, Some(code::ILLEGAL_ADDRESS), "{offset} {addr:#x}");
    }
    pair.end(&[]);
}

fn hints(api: &Api) {
    let pair = Pair::new(api, 4096);
    let names = [
        "LOCK_OPERATION",
        "IO_MAP_IOSPACE",
        "NO_MEMORY_LOOPBACK_MAP",
        "SHARED_MAP",
        "READ_PREFETCH_AGGR_HOLD_MAP",
        "READ_PREFETCH_NO_HOLD_MAP",
        "WRITES_DISABLE_GATHER_MAP",
        "DISABLE_128_BYTES_PACKETS",
        "BROADCAST",
    ];
    let flags = names.iter().map(|name| api.flag(name));
    let maps: Vec<Handle> = flags
        .chain([api.constant("WRITE_BACK_CACHE_MAP")])
        .map(|flag| {
            let view = pair.map_at(0, 0, flag).unwrap();
            view.store(0, 1);
            view.map
        })
        .collect();
    pair.end(&maps);
}

fn absent_flags(api: &Api) {
    let pair = Pair::new(api, 4096);
    for name in ["CONDITIONAL_INTERRUPT_MAP", "UNCONDITIONAL_DATA_INTERRUPT_MAP", "DMOVE_MAP"] {
        let mapped = pair.map_at(0, 0, api.flag(name)).err();
        assert_eq!(mapped, Some(code::FLAG_NOT_IMPLEMENTED), "{name}");
    }
    assert_eq!(pair.map_at(0, 0, 1 << 30).err(), Some(code::ILLEGAL_FLAG));
    pair.end(&[]);
}

fn pointer(api: &Api) {
    let pair = Pair::new(api, 4096);
    let view = pair.node.map(pair.remote, 64, 64).unwrap();
    let at: usize = api.ask("SCIGetMapPointer", view.map);
    assert_eq!(at, view.at);
    pair.end(&[view.map]);
}

fn busy(api: &Api) {
    let pair = Pair::new(api, 4096);
    let view = pair.node.map(pair.remote, 0, 64).unwrap();
    let mut sequence = null_mut();
    api.SCICreateMapSequence(view.map, &raw mut sequence, 0).unwrap();
    assert_eq!(api.SCIUnmapSegment(view.map, 0), Err(code::BUSY));
    api.SCIRemoveSequence(sequence, 0).unwrap();
    pair.end(&[view.map]);
}

fn remote_only(api: &Api) {
    let pair = Pair::new(api, 4096);
    let view = pair.node.map_local(pair.segment, 0, 64).unwrap();
    let mut sequence = null_mut();
    let made = api.SCICreateMapSequence(view.map, &raw mut sequence, 0);
    assert_eq!(made, Err(code::ILLEGAL_PARAMETER));
    pair.end(&[view.map]);
}

fn sequence_ok(api: &Api) {
    let pair = Pair::new(api, 4096);
    let view = pair.node.map(pair.remote, 0, 64).unwrap();
    let mut sequence = null_mut();
    api.SCICreateMapSequence(view.map, &raw mut sequence, api.flag("FAST_BARRIER")).unwrap();
    for flags in [0, api.flag("NO_FLUSH"), api.flag("NO_FLUSH") | api.flag("NO_STORE_BARRIER")] {
        assert_eq!(api.SCIStartSequence(sequence, 0), Ok(SEQ_OK));
        view.store(0, 1);
        api.order("SCIFlush", sequence, 0);
        assert_eq!(api.SCICheckSequence(sequence, flags), Ok(SEQ_OK));
    }
    assert_eq!(api.SCIStartSequence(sequence, 1), Err(code::ILLEGAL_FLAG));
    assert_eq!(api.SCICheckSequence(sequence, 8), Err(code::ILLEGAL_FLAG));
    api.SCIRemoveSequence(sequence, 0).unwrap();
    pair.end(&[view.map]);
}

#[repr(C)]
struct QueryObject {
    object: Handle,
    subcommand: u32,
    data: u64,
}

fn ask(api: &Api, command: &str, object: Handle, subcommand: &str) -> Answer<u64> {
    let subcommand = api.constant(subcommand);
    let mut query = QueryObject { object, subcommand, data: u64::MAX };
    let at: *mut QueryObject = &raw mut query;
    api.SCIQuery(api.constant(command), at.cast::<c_void>(), 0).map(|()| query.data)
}

fn query_map(api: &Api) {
    let pair = Pair::new(api, 4096);
    let view = pair.node.map(pair.remote, 0, 64).unwrap();
    let ask = |command: &str, object, subcommand: &str| ask(api, command, object, subcommand);
    let own = "SCI_Q_MAP_MAPPED_TO_LOCAL_TARGET";
    assert_eq!(ask("SCI_Q_MAP", view.map, own), Ok(1));
    assert_eq!(ask("SCI_Q_MAP", pair.remote, own), Err(code::ILLEGAL_PARAMETER));
    let address = "SCI_Q_LOCAL_SEGMENT_IOADDR";
    assert_eq!(ask("SCI_Q_LOCAL_SEGMENT", pair.segment, address), Ok(0));
    let address = "SCI_Q_REMOTE_SEGMENT_IOADDR";
    assert_eq!(ask("SCI_Q_REMOTE_SEGMENT", pair.remote, address), Ok(0));
    pair.end(&[view.map]);
}

fn local_flags(api: &Api) {
    let pair = Pair::new(api, 4096);
    let map = |addr: usize, flags| {
        let mut map = null_mut();
        let (at, addr) = (&raw mut map, std::ptr::with_exposed_provenance_mut(addr));
        let at = api.SCIMapLocalSegment(pair.segment, at, 0, 4096, addr, flags)?;
        Ok::<View, u32>(View { map, at: at.expose_provenance() })
    };
    let (place, fixed) = (reserve(), api.flag("FIXED_MAP_ADDR"));
    let at_place = map(place, fixed).unwrap();
    assert_eq!(at_place.at, place);
    assert_eq!(map(reserve() + 4, fixed).err(), Some(code::ILLEGAL_ADDRESS));
    let readonly = map(0, api.flag("READONLY_MAP")).unwrap();
    at_place.store(8, 5);
    assert_eq!(readonly.load(8), 5);
    let mut word = [1_u8; 4];
    let at = word.as_mut_ptr().cast();
    assert_eq!(api.SCIMemCopy(at, readonly.map, 0, 4, 0), Err(code::ILLEGAL_OPERATION));
    assert_eq!(map(0, api.flag("SHARED_MAP")).err(), Some(code::ILLEGAL_FLAG), "a remote map's");
    pair.end(&[at_place.map, readonly.map]);
}

fn no_physical_address(api: &Api) {
    let pair = Pair::new(api, 4096);
    let view = pair.node.map(pair.remote, 0, 64).unwrap();
    assert_eq!(api.ask::<u64>("SCIGetMapPhysAddr", view.map), 0);
    assert_eq!(ask(api, "SCI_Q_MAP", view.map, "SCI_Q_MAP_IOADDR"), Ok(0));
    for (command, object, subcommand) in [
        ("SCI_Q_MAP", view.map, "SCI_Q_MAP_PHYS_ADDR"),
        ("SCI_Q_LOCAL_SEGMENT", pair.segment, "SCI_Q_LOCAL_SEGMENT_PHYS_ADDR"),
        ("SCI_Q_LOCAL_SEGMENT", pair.segment, "SCI_Q_LOCAL_SEGMENT_VIRTUAL_KERNEL_ADDR"),
    ] {
        let answer = ask(api, command, object, subcommand);
        assert_eq!(answer, Err(code::ILLEGAL_QUERY), "{subcommand}");
    }
    pair.end(&[view.map]);
}

fn barriers(api: &Api) {
    let pair = Pair::new(api, 4096);
    let view = pair.node.map(pair.remote, 0, 64).unwrap();
    let mut sequence = null_mut();
    api.SCICreateMapSequence(view.map, &raw mut sequence, 0).unwrap();
    let only = api.flag("FLUSH_CPU_BUFFERS_ONLY");
    for sequence in [sequence, null_mut()] {
        for (name, flags) in [
            ("SCIStoreBarrier", 0),
            ("SCIFlush", 0),
            ("SCIFlush", only),
            ("SCIFlushReadBuffers", 0),
        ] {
            view.store(0, flags);
            api.order(name, sequence, flags);
            assert_eq!(view.load(0), flags, "{name}");
        }
    }
    api.SCIRemoveSequence(sequence, 0).unwrap();
    pair.end(&[view.map]);
}

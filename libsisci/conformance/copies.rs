// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Copies by the calling processor.

use std::ptr::null_mut;

use crate::api::{Api, Case, Handle};
use crate::rig::{Node, OWNER, View, code};

pub(crate) const CASES: &[Case] = &[
    ("SCIMemCpy writes and reads", both_ways),
    ("SCIMemCpy with a sequence", with_sequence),
    ("copies past the end are refused", past_the_end),
    ("copies at unaligned offsets are refused", unaligned),
    ("SCIMemWrite writes to an address", write),
    ("SCITransferBlock copies between maps", block),
    ("SCICacheSync takes a map or none", cache),
    ("null memory is refused", null_memory),
    ("a copy to an unmapped map is refused", after_unmap),
    ("SCIMemCopy needs no sequence", without_sequence),
    ("overlapping copies move", overlapping),
    ("the copy routine cannot be chosen", copy_routine),
];

const SIZE: usize = 1 << 20;

fn with(api: &Api, run: impl FnOnce(View, View)) {
    let node = Node::join(api, OWNER);
    let segment = node.export(1, SIZE, 0);
    let remote = node.connect(OWNER, 1).unwrap();
    let local = node.map_local(segment, 0, SIZE).unwrap();
    let view = node.map(remote, 0, SIZE).unwrap();
    run(local, view);
    for map in [local.map, view.map] {
        api.SCIUnmapSegment(map, 0).unwrap();
    }
    api.SCIDisconnectSegment(remote, 0).unwrap();
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..=u8::MAX).cycle().map(|byte| byte.wrapping_mul(7) ^ seed).take(len).collect()
}

/// Lengths that select each way to copy.
const LENGTHS: [usize; 8] = [0, 1, 4, 63, 64, 4096, 65_537, SIZE - 8];

fn copy(api: &Api, sequence: Handle, view: View) {
    for (len, seed) in LENGTHS.into_iter().zip(1..) {
        for flags in [0, api.flag("ERROR_CHECK")] {
            let mut bytes = pattern(len.max(1), seed);
            let at = bytes.as_mut_ptr().cast();
            api.SCIMemCpy(sequence, at, view.map, 8, len, flags).unwrap();
            let mut read = vec![0_u8; len.max(1)];
            let at = read.as_mut_ptr().cast();
            let flags = flags | api.flag("BLOCK_READ");
            api.SCIMemCpy(sequence, at, view.map, 8, len, flags).unwrap();
            assert_eq!(read[..len], bytes[..len], "{len} bytes");
        }
    }
}

fn both_ways(api: &Api) {
    with(api, |_, view| copy(api, null_mut(), view));
}

fn with_sequence(api: &Api) {
    with(api, |local, view| {
        let mut sequence = null_mut();
        api.SCICreateMapSequence(view.map, &raw mut sequence, 0).unwrap();
        copy(api, sequence, view);
        let mut word = [1_u8; 4];
        let at = word.as_mut_ptr().cast();
        let wrong = api.SCIMemCpy(view.map, at, view.map, 0, 4, 0);
        assert_eq!(wrong, Err(code::ILLEGAL_PARAMETER));
        api.SCIMemCpy(sequence, at, view.map, 0, 4, 0).unwrap();
        assert_eq!(local.load(0), 0x0101_0101);
        api.SCIRemoveSequence(sequence, 0).unwrap();
    });
}

fn past_the_end(api: &Api) {
    with(api, |_, view| {
        let mut bytes = vec![0_u8; SIZE + 8];
        let at = bytes.as_mut_ptr().cast();
        for (offset, size) in [(0, SIZE + 1), (SIZE - 4, 8), (usize::MAX - 3, 4), (4, usize::MAX)] {
            for flags in [0, api.flag("BLOCK_READ")] {
                let copied = api.SCIMemCpy(null_mut(), at, view.map, offset, size, flags);
                assert_eq!(copied, Err(code::OUT_OF_RANGE), "{offset:#x} {size:#x}");
            }
        }
        assert_eq!(api.SCIMemCopy(at, view.map, SIZE, 4, 0), Err(code::OUT_OF_RANGE));
    });
}

fn unaligned(api: &Api) {
    with(api, |_, view| {
        let mut word = [0_u8; 4];
        let at = word.as_mut_ptr().cast();
        let copied = api.SCIMemCpy(null_mut(), at, view.map, 3, 1, 0);
        assert_eq!(copied, Err(code::OFFSET_ALIGNMENT));
    });
}

fn write(api: &Api) {
    with(api, |local, view| {
        let mut bytes = pattern(64, 3);
        let target = std::ptr::with_exposed_provenance_mut(view.at + 128);
        api.SCIMemWrite(bytes.as_mut_ptr().cast(), target, 64, 0).unwrap();
        assert_eq!(local.load(128).to_le_bytes(), bytes[..4]);
    });
}

fn block(api: &Api) {
    with(api, |local, view| {
        local.store(0, 0x0102_0304);
        api.SCITransferBlock(local.map, 0, view.map, 4096, 4, 0).unwrap();
        assert_eq!(local.load(4096), 0x0102_0304);
        let past = api.SCITransferBlock(local.map, SIZE, view.map, 0, 4, 0);
        assert_eq!(past, Err(code::OUT_OF_RANGE));
        let past = api.SCITransferBlock(local.map, 0, view.map, SIZE, 4, 0);
        assert_eq!(past, Err(code::OUT_OF_RANGE));
    });
}

fn cache(api: &Api) {
    with(api, |_, view| {
        let at = std::ptr::with_exposed_provenance_mut(view.at);
        let both = api.flag("CACHE_FLUSH") | api.flag("CACHE_INVALIDATE");
        api.SCICacheSync(view.map, at, 64, both).unwrap();
        api.SCICacheSync(null_mut(), at, 64, api.flag("CACHE_FLUSH")).unwrap();
        assert_eq!(api.SCICacheSync(at, at, 64, 0), Err(code::ILLEGAL_PARAMETER));
    });
}

fn null_memory(api: &Api) {
    with(api, |_, view| {
        let copied = api.SCIMemCpy(null_mut(), null_mut(), view.map, 0, 4, 0);
        assert_eq!(copied, Err(code::ILLEGAL_PARAMETER));
        let written = api.SCIMemWrite(null_mut(), null_mut(), 4, 0);
        assert_eq!(written, Err(code::ILLEGAL_PARAMETER));
    });
}

fn after_unmap(api: &Api) {
    let node = Node::join(api, OWNER);
    let segment = node.export(1, 4096, 0);
    let remote = node.connect(OWNER, 1).unwrap();
    let mut word = [1_u8; 4];
    let at = word.as_mut_ptr().cast();
    for _ in 0..3 {
        let view = node.map(remote, 0, 64).unwrap();
        let mut sequence = null_mut();
        api.SCICreateMapSequence(view.map, &raw mut sequence, 0).unwrap();
        for _ in 0..2 {
            api.SCIMemCpy(sequence, at, view.map, 0, 4, 0).unwrap();
        }
        api.SCIRemoveSequence(sequence, 0).unwrap();
        let copied = api.SCIMemCpy(sequence, at, view.map, 0, 4, 0);
        assert_eq!(copied, Err(code::ILLEGAL_PARAMETER), "a removed sequence");
        api.SCIMemCpy(null_mut(), at, view.map, 0, 4, 0).unwrap();
        api.SCIUnmapSegment(view.map, 0).unwrap();
        let copied = api.SCIMemCpy(null_mut(), at, view.map, 0, 4, 0);
        assert_eq!(copied, Err(code::ILLEGAL_PARAMETER), "an unmapped map");
    }
    api.SCIDisconnectSegment(remote, 0).unwrap();
    api.SCIRemoveSegment(segment, 0).unwrap();
    node.leave();
}

/// Copies within a segment, by lengths of which each has another routine.
fn overlapping(api: &Api) {
    with(api, |local, view| {
        for len in [64, 4096, 65_536] {
            for (from, to) in [(0, 8), (8, 0), (0, len), (len, 0)] {
                for at in (0..2 * len).step_by(4) {
                    local.store(at, u32::try_from(at).unwrap());
                }
                let source = std::ptr::with_exposed_provenance_mut(view.at + from);
                api.SCIMemCpy(null_mut(), source, view.map, to, len, 0).unwrap();
                let is_wrong = |at: &usize| local.load(to + at) as usize != from + at;
                let wrong = (0..len).step_by(4).find(is_wrong);
                assert_eq!(wrong, None, "{len} bytes from {from} to {to}");
            }
        }
    });
}

fn without_sequence(api: &Api) {
    with(api, |local, view| {
        let (read, check) = (api.flag("BLOCK_READ"), api.flag("ERROR_CHECK"));
        for (value, flags) in [(3_u32, 0), (4, check)] {
            let (mut word, mut back) = (value, 0_u32);
            api.SCIMemCopy((&raw mut word).cast(), view.map, 64, 4, flags).unwrap();
            assert_eq!(local.load(64), value);
            api.SCIMemCopy((&raw mut back).cast(), view.map, 64, 4, flags | read).unwrap();
            assert_eq!(back, value);
        }
        let mut word = 0_u32;
        let copied = api.SCIMemCopy((&raw mut word).cast(), view.map, 0, 4, 1 << 30);
        assert_eq!(copied, Err(code::ILLEGAL_FLAG));
    });
}

fn copy_routine(api: &Api) {
    for number in [0, 5, u32::MAX] {
        api.number("SetSciMemCopyFunction", number);
        assert_eq!(api.number("GetSciMemCopyFunction", 0), 0, "one routine serves all");
    }
    with(api, |_, view| copy(api, null_mut(), view));
}

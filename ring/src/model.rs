// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The structures of this crate in boxes for loom, whose atomics cannot lie over raw bytes.
//!
//! Not about: the product; only built with `--cfg loom`. The code under test is the product's, over
//! other memory.

#![expect(
    unsafe_code,
    clippy::missing_panics_doc,
    clippy::indexing_slicing,
    reason = "makes views of boxed structures, for the models alone"
)]

use crate::claim::Claim;
use crate::doorbell::{BellHandleOf, BellOf};
use crate::keytable::{HazardPointer, KeyReaderOf, KeyTableOf, KeyTableRef};
use crate::layout::{
    BellOwner, BellPage, BellPolled, BellSummary, ClaimBlock, ConsumerLine, ControlLines, DataArea,
    ExecutedLine, ExecutingLine, HazardLine, KeyHeader, KeySlot, OfferLine, PartLine, ProducerLine,
    ReplyHalf, ReplyLine, RingRegion, Slot,
};
use crate::reply_line::ReplyHalfRef;
use crate::shared_word::{SharedU32, SharedU64};
use crate::spsc::{ConsumerOf, ProducerOf};
use crate::stream::{StreamParts, StreamRx, StreamTx};
use crate::sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell};
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::sync::Arc;

fn word() -> AtomicU64 {
    AtomicU64::new(0)
}

fn half() -> AtomicU32 {
    AtomicU32::new(0)
}

/// A view that keeps its memory alive.
#[derive(Debug)]
pub struct OwnedView<V, B> {
    view: V,
    _boxed: Arc<B>,
}

impl<V, B> Deref for OwnedView<V, B> {
    type Target = V;
    fn deref(&self) -> &V {
        &self.view
    }
}

impl<V, B> DerefMut for OwnedView<V, B> {
    fn deref_mut(&mut self) -> &mut V {
        &mut self.view
    }
}

/// Memory of one direction.
#[derive(Debug)]
pub struct ModelRing {
    /// Lines beside the slots, and those that the consumer writes.
    lines: [ControlLines; 2],
    slots: Box<[Slot]>,
    cells: Box<[UnsafeCell<()>]>,
    bytes: Box<[core::cell::UnsafeCell<u8>]>,
}

// SAFETY: the protocol orders accesses to the bytes, and loom checks this on `cells`.
unsafe impl Send for ModelRing {}
// SAFETY: as above.
unsafe impl Sync for ModelRing {}

fn lines() -> ControlLines {
    ControlLines {
        producer: ProducerLine { layout: half(), withdrawn: word(), settled: word() },
        consumer: ConsumerLine { consumed: word(), consumed_data: word(), idle: half() },
        executing: ExecutingLine { busy: word() },
        executed: ExecutedLine { count: word(), failures: word() },
        failures: core::array::from_fn(|_| word()),
    }
}

fn lay<const SLOTS: usize, const DATA: usize>() -> (Arc<ModelRing>, RingRegion) {
    assert!(SLOTS.is_power_of_two() && DATA.is_power_of_two() && DATA >= 256);
    let boxed = Arc::new(ModelRing {
        lines: [lines(), lines()],
        slots: (0..SLOTS).map(|_| Slot { word: word(), head: UnsafeCell::new([0; 7]) }).collect(),
        cells: (0..DATA / 64).map(|_| UnsafeCell::new(())).collect(),
        bytes: (0..DATA).map(|_| core::cell::UnsafeCell::new(0)).collect(),
    });
    let region = RingRegion {
        lines: &raw const boxed.lines[0],
        credits: &raw const boxed.lines[1],
        slots: boxed.slots.as_ptr(),
        area: DataArea {
            bytes: boxed.bytes.as_ptr().cast_mut().cast(),
            cells: boxed.cells.as_ptr(),
        },
    };
    (boxed, region)
}

/// Returns both ends of a direction with a small geometry.
pub fn direction<const SLOTS: usize, const DATA: usize>()
-> (OwnedView<ProducerOf<SLOTS, DATA>, ModelRing>, OwnedView<ConsumerOf<SLOTS, DATA>, ModelRing>) {
    let (boxed, region) = lay::<SLOTS, DATA>();
    (
        OwnedView { view: ProducerOf::over(region), _boxed: Arc::clone(&boxed) },
        OwnedView { view: ConsumerOf::over(region), _boxed: boxed },
    )
}

/// Memory of a connection's rings and reply line.
#[derive(Debug)]
pub struct ModelConnection {
    _directions: [Arc<ModelRing>; 2],
    reply_line: ReplyLine,
}

// SAFETY: as for `ModelRing`; the protocol orders accesses to the line, and loom checks this.
unsafe impl Send for ModelConnection {}
// SAFETY: as above.
unsafe impl Sync for ModelConnection {}

/// Returns the ends of a connection with a reply line: producer and consumer of each side.
pub fn connection<const SLOTS: usize, const DATA: usize>() -> [(
    OwnedView<ProducerOf<SLOTS, DATA>, ModelConnection>,
    OwnedView<ConsumerOf<SLOTS, DATA>, ModelConnection>,
); 2] {
    let (first, second) = (lay::<SLOTS, DATA>(), lay::<SLOTS, DATA>());
    let boxed = Arc::new(ModelConnection {
        _directions: [first.0, second.0],
        reply_line: ReplyLine {
            halves: core::array::from_fn(|_| ReplyHalf {
                word: word(),
                head: UnsafeCell::new([0; 3]),
            }),
        },
    });
    let regions = [first.1, second.1];
    let half = |second| {
        // SAFETY: the returned views keep the line alive.
        unsafe { ReplyHalfRef::new(&raw const boxed.reply_line, second) }
    };
    [0, 1].map(|mine: usize| {
        let (mut tx, mut rx) =
            (ProducerOf::over(regions[mine]), ConsumerOf::over(regions[1 - mine]));
        tx.attach_reply_half(half(mine == 1));
        rx.attach_reply_half(half(mine == 0));
        (
            OwnedView { view: tx, _boxed: Arc::clone(&boxed) },
            OwnedView { view: rx, _boxed: Arc::clone(&boxed) },
        )
    })
}

/// Returns a doorbell and two handles of it.
pub fn bell<const WORDS: usize>()
-> (OwnedView<BellOf<WORDS>, BellPage<WORDS>>, [OwnedView<BellHandleOf<WORDS>, BellPage<WORDS>>; 2])
{
    let boxed = Arc::new(BellPage {
        owner: BellOwner { layout: half(), sleeping: half() },
        summary: BellSummary { bits: word() },
        words: core::array::from_fn(|_| word()),
        polled: BellPolled { time_ns: word() },
    });
    let page: *const BellPage<WORDS> = &raw const *boxed;
    let handle = || OwnedView { view: BellHandleOf { page }, _boxed: Arc::clone(&boxed) };
    let handles = [handle(), handle()];
    (OwnedView { view: BellOf { page }, _boxed: boxed }, handles)
}

/// Memory of a key table.
#[derive(Debug)]
pub struct ModelKeyTable {
    header: KeyHeader,
    slots: Box<[KeySlot]>,
}

/// Returns both sides of a key table.
pub fn keys<const SLOTS: usize>()
-> (OwnedView<KeyTableOf<SLOTS>, ModelKeyTable>, OwnedView<KeyReaderOf<SLOTS>, ModelKeyTable>) {
    let slot = |_| KeySlot {
        generation: word(),
        key: word(),
        base: word(),
        start: word(),
        len: word(),
        access: word(),
        window: word(),
        window_len: word(),
    };
    let boxed = Arc::new(ModelKeyTable {
        header: KeyHeader { layout: half(), notify: half() },
        slots: (0..SLOTS).map(slot).collect(),
    });
    let table = KeyTableRef { header: &raw const boxed.header, slots: boxed.slots.as_ptr() };
    (
        OwnedView { view: KeyTableOf::over(table), _boxed: Arc::clone(&boxed) },
        OwnedView { view: KeyReaderOf { table }, _boxed: boxed },
    )
}

/// Returns both views of a hazard pointer.
pub fn hazard_pointer() -> [OwnedView<HazardPointer, HazardLine>; 2] {
    let boxed = Arc::new(HazardLine { slot: word() });
    let line: *const HazardLine = &raw const *boxed;
    [
        OwnedView { view: HazardPointer { line }, _boxed: Arc::clone(&boxed) },
        OwnedView { view: HazardPointer { line }, _boxed: boxed },
    ]
}

/// Variant of `HazardPointer::set` without the fence, for a loom model that must fail.
pub fn set_hazard_without_fence(hazard: &OwnedView<HazardPointer, HazardLine>, slot: u32) {
    hazard._boxed.slot.store(u64::from(slot) + 1, Ordering::Relaxed);
}

/// Returns both views of a claim block.
pub fn claim() -> [OwnedView<Claim, ClaimBlock>; 2] {
    let boxed = Arc::new(ClaimBlock {
        offer: OfferLine {
            word: word(),
            dst_addr: word(),
            len: word(),
            part: half(),
            parts: half(),
        },
        parts: PartLine { claims: word(), done: half(), failed: half() },
    });
    let block: *const ClaimBlock = &raw const *boxed;
    [
        OwnedView { view: Claim { block }, _boxed: Arc::clone(&boxed) },
        OwnedView { view: Claim { block }, _boxed: boxed },
    ]
}

/// Memory of a stream, with a word by which its sides announce their close, and one for the state
/// of a descriptor.
#[derive(Debug)]
pub struct ModelStream {
    parts: StreamParts,
    own: [AtomicU64; 3],
    others: [AtomicU32; 2],
}

// SAFETY: the protocol orders accesses to the bytes, and loom checks this on `cells`.
unsafe impl Send for ModelStream {}
// SAFETY: as above.
unsafe impl Sync for ModelStream {}

/// Returns both ends of a stream of three bytes, the close word, and the descriptor word.
pub fn stream()
-> (OwnedView<StreamTx, ModelStream>, OwnedView<StreamRx, ModelStream>, [SharedU32; 2]) {
    let boxed = Arc::new(ModelStream {
        parts: StreamParts {
            positions: [word(), word(), word()],
            inline: [word(), word()],
            words: core::array::from_fn(|_| half()),
            bytes: core::cell::UnsafeCell::new([0; 4]),
            cells: core::array::from_fn(|_| UnsafeCell::new(())),
        },
        own: [word(), word(), word()],
        others: [half(), half()],
    });
    // SAFETY: kept by the ends of the stream, which the models drop last.
    let own = |i: usize| unsafe { SharedU64::new(NonNull::from(&boxed.own[i]).cast()) };
    // SAFETY: as above.
    let other = |i: usize| unsafe { SharedU32::new(NonNull::from(&boxed.others[i]).cast()) };
    let (tx, rx) = (
        StreamTx::from_parts(&boxed.parts, own(0), own(1)),
        StreamRx::from_parts(&boxed.parts, own(2)),
    );
    let words = [other(0), other(1)];
    (
        OwnedView { view: tx, _boxed: Arc::clone(&boxed) },
        OwnedView { view: rx, _boxed: boxed },
        words,
    )
}

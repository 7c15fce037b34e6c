// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Use of a buffer between two operations, as by an application: writing all of it, reading all of
//! it.

use scif_fabtests::fi::Buf;
use scif_ring::Mem;

const PAGE: usize = 4096;
const LINE: usize = 64;

#[expect(clippy::cast_possible_truncation, reason = "any byte that changes will do")]
fn page(turn: u64) -> [u8; PAGE] {
    [turn as u8; PAGE]
}

/// Writes every byte.
pub(crate) fn write(buf: Buf, turn: u64) {
    let page = page(turn);
    for at in (0..buf.len()).step_by(PAGE) {
        let len = PAGE.min(buf.len() - at);
        buf.put(at, page.get(..len).unwrap_or_default());
    }
}

/// Reads one word of every cache line.
pub(crate) fn read(buf: Buf) {
    let lines = (0..buf.len() & !7).step_by(LINE);
    std::hint::black_box(lines.fold(0, |sum: u64, at| sum ^ buf.load_u64(at)));
}

/// Writes every byte of memory that is no provider buffer.
pub(crate) fn write_mem(mem: &Mem, turn: u64) {
    let page = page(turn);
    for at in (0..mem.len()).step_by(PAGE) {
        if let Some(part) = mem.sub(at, PAGE.min(mem.len() - at)) {
            part.copy_from_slice(&page);
        }
    }
}

/// Reads every byte of memory that is no provider buffer.
pub(crate) fn read_mem(mem: &Mem) {
    let mut page = [0_u8; PAGE];
    for at in (0..mem.len()).step_by(PAGE) {
        if let Some(part) = mem.sub(at, PAGE.min(mem.len() - at)) {
            part.copy_to_slice(&mut page);
            std::hint::black_box(&page);
        }
    }
}

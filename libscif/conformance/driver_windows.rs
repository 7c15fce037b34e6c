// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Measured answers about windows, RMA and fences, like the other ones in `driver_rows`.

use crate::ioctl::*;
use crate::measured::{Row, answer_text, done, other, other_without_traps, row, same};
use crate::rig::{FIXED, PAGE, RW, pages, peek64, poke64, protect};

const R: i32 = 1;
const W: i32 = 2;
pub(crate) const SELF: u64 = 1;
const PEER: u64 = 2;
const LOCAL: u64 = 0x10;
const REMOTE: u64 = 0x20;
/// Offset without a window.
const NOWHERE: i64 = 0x90_0000;
/// Address without memory, now and later: below the range that a system maps.
const NO_MEMORY: usize = 0x1000;

pub(crate) fn hex(answer: Result<i64, i32>) -> String {
    answer_text(answer.map(|offset| format!("{offset:#x}")))
}

/// Registers new pages as a window.
pub(crate) fn window(fd: i32, n: usize, offset: i64, prot: i32) -> usize {
    let at = pages(n);
    assert_eq!(register_for(fd, at, n * PAGE, offset, prot, FIXED), Ok(offset));
    at
}

/// Registers a new page.
pub(crate) fn register_one(fd: i32, offset: i64, prot: i32, flags: i32) -> Result<i64, i32> {
    register_for(fd, pages(1), PAGE, offset, prot, flags)
}

/// Reason for which the stand-in gives other offsets.
const NEAR: &str = "the guide: near the suggested offset";

pub(crate) const ROWS: &[Row] = &[
    row! { "allocated_offsets", |_| {
            let (a, _b, _) = connection();
            let any = |n, offset| hex(register(a, pages(n), n * PAGE, offset, 0));
        }
        any(1, 0x50000) =>
            other_without_traps("of one page, another offset suggested", "0x7fffffffffffe000",
                "0x50000", NEAR),
        any(2, 0x50000) =>
            other_without_traps("of two pages", "0x7fffffffffffc000", "0x51000", NEAR),
        any(1, 0x50000) =>
            other_without_traps("of one page", "0x7fffffffffffb000", "0x4f000", NEAR),
        any(1, -1) =>
            other_without_traps("of one page, with -1 suggested", "0x7fffffffffffa000",
                "0x7fffffffffffe000", "the highest offset is still free"),
    },
    row! { "fixed_twice", |_| {
            let (a, _b, _) = connection();
            let fixed = || hex(register_one(a, 0x10000, RW, FIXED));
        }
        fixed() => same("first", "0x10000"),
        fixed() =>
            other_without_traps("second, at the same offset", "0x10000", "EADDRINUSE",
                "a defect: two windows at one offset"),
    },
    row! { "fixed_over_other_windows", |_| {
            let (a, _b, _) = connection();
            window(a, 1, 0x10000, RW);
            window(a, 1, 0x11000, RW);
        }
        hex(register(a, pages(3), 3 * PAGE, 0xf000, FIXED)) =>
            other_without_traps("from before two windows to behind them", "0x11000", "EADDRINUSE",
                "a defect: another offset than the requested one"),
    },
    row! { "fixed_at_the_beginning", |_| {
            let (a, _b, _) = connection();
        }
        hex(register_one(a, 0, RW, FIXED)) => same("offset 0", "0x0"),
        hex(register_one(a, 0x5000, 0, FIXED)) => same("protection 0", "0x5000"),
    },
    row! { "arguments_of_register", |_| {
            let (a, _b, _) = connection();
            let at = pages(2);
        }
        hex(register_for(a, at, PAGE, 0, 4, 0)) => same("protection 4", "EINVAL"),
        hex(register(a, at, PAGE, 0, 0x20)) => same("SCIF_MAP_KERNEL", "EINVAL"),
        hex(register(a, at + 16, PAGE, 0, 0)) => same("an address within a page", "EINVAL"),
        hex(register(a, at, 0, 0, 0)) => same("length 0", "EINVAL"),
        hex(register(a, at, 100, 0, 0)) => same("length 100", "EINVAL"),
        hex(register(a, at, PAGE, 0x10010, FIXED)) => same("FIXED within a page", "EINVAL"),
        hex(register(a, at, PAGE, -4096, FIXED)) => same("FIXED below 0", "EINVAL"),
    },
    row! { "register_unmapped_memory", |_| {
            let (a, _b, _) = connection();
        }
        hex(register(a, NO_MEMORY, PAGE, 0, 0)) => same("unmapped memory", "EFAULT"),
    },
    row! { "register_read_only_memory", |_| {
            let (a, _b, _) = connection();
            let at = pages(1);
            protect(at, PAGE, libc::PROT_READ);
        }
        hex(register_for(a, at, PAGE, 0x10000, RW, FIXED)) =>
            other_without_traps("read-only memory, for reading and writing", "EFAULT", "0x10000",
                "a window restricts the peer, not the program"),
    },
    row! { "writeto_from_a_mapping", |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, RW);
            window(a, 1, 0x20000, RW);
            let mapped = map(b, PAGE, 0x10000).unwrap() as u64;
        }
        done(copy(b, VWRITETO, mapped, 8, 0x20000, 0)) =>
            other("a mapping of the peer's window as the source", "EFAULT", "ok",
                "a mapping is used like other memory"),
    },
    row! { "writeto_over_two_windows", |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, RW);
            window(a, 1, 0x11000, RW);
            window(b, 1, 0x20000, RW);
        }
        done(copy(b, WRITETO, 0x20000, PAGE, 0x10800, 0)) =>
            same("from the middle of one window to the middle of the next", "ok"),
    },
    row! { "protection", |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, R);
            window(a, 1, 0x12000, W);
            window(b, 1, 0x20000, RW);
        }
        done(copy(b, WRITETO, 0x20000, 8, 0x10000, 0)) => same("writeto a read-only one", "EPERM"),
        done(copy(b, READFROM, 0x20000, 8, 0x12000, 0)) =>
            same("readfrom a write-only one", "EPERM"),
    },
    row! { "arguments_of_rma", |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, RW);
            window(b, 2, 0x20000, RW);
            let write =
                |len, far: i64, flags| done(copy(b, WRITETO, 0x20000, len, far as u64, flags));
        }
        write(PAGE + 1, 0x10000, 0) => same("past the end", "ENXIO"),
        write(8, NOWHERE, 0) => same("an unknown offset", "ENXIO"),
        write(8, -4096, 0) => same("a negative offset", "ENXIO"),
        write(0, 0x10000, 0) => same("length 0", "EINVAL"),
        write(8, 0x10000, 0x10) => same("flags 0x10", "EINVAL"),
        write(8, 0x10000, 0x1f) => same("flags 0x1f", "ok"),
    },
    row! { "vreadfrom_to_unmapped_memory", |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, RW);
            let readonly = pages(1);
            protect(readonly, PAGE, libc::PROT_READ);
        }
        done(copy(b, VREADFROM, NO_MEMORY as u64, 8, 0x10000, 0)) =>
            same("to unmapped memory", "EFAULT"),
        done(copy(b, VREADFROM, readonly as u64, 8, 0x10000, 0)) =>
            same("to read-only memory", "EFAULT"),
    },
    row! { "mmap", |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, R);
            window(a, 1, 0x12000, RW);
            let try_it = |offset, prot, flags| done(map_for(b, PAGE, offset, prot, flags));
        }
        try_it(0x10000, RW, libc::MAP_SHARED) => same("a read-only window for writing", "EPERM"),
        try_it(0x10000, R, libc::MAP_SHARED) => same("a read-only window for reading", "ok"),
        try_it(NOWHERE, R, libc::MAP_SHARED) => same("an unknown offset", "ENXIO"),
        try_it(0x10000, R, libc::MAP_PRIVATE) => same("MAP_PRIVATE to read", "ok"),
        try_it(0x12000, RW, libc::MAP_PRIVATE) => same("MAP_PRIVATE to write", "ok"),
    },
    row! { "fence_marks", |_| {
            let (a, _b, _) = connection();
            let hex = |mark: Result<u32, i32>| answer_text(mark.map(|mark| format!("{mark:#x}")));
            let own = mark(a, SELF);
        }
        hex(own) =>
            other("SCIF_FENCE_INIT_SELF", "0xdead", "0x0", "RMAs are counted, also within a node"),
        hex(mark(a, PEER)) =>
            other("SCIF_FENCE_INIT_PEER", "0xdead", "0x80000000",
                "RMAs of the peer are counted too; their marks are negative, as between nodes"),
        answer_text(wait(a, own.unwrap())) => same("wait for the returned mark", "0"),
        answer_text(wait(a, 1)) => same("wait for 1", "EINVAL"),
        hex(mark(a, 3)) => same("flags 3", "EINVAL"),
        hex(mark(a, 4)) => same("flags 4", "EINVAL"),
    },
    Row {
        name: "fence_signals",
        calls: |_| {
            let (a, b, _) = connection();
            let (near, far) = (window(a, 1, 0x10000, RW), window(b, 1, 0x20000, RW));
            let mut heard = Vec::new();
            for (side, value) in [(SELF, 5), (PEER, 7)] {
                let both = side | LOCAL | REMOTE;
                heard.push(done(signal(a, (0x10000, value), (0x20008, value + 1), both)));
                heard.push(format!("{} {}", peek64(near), peek64(far + 8)));
            }
            heard
        },
        answers: &[
            same("for own RMAs", "ok"),
            same("the stored values", "5 6"),
            same("for RMAs of the peer", "ok"),
            same("the stored values for RMAs of the peer", "7 8"),
        ],
    },
    row! { "arguments_of_fence_signal", |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, RW);
            window(a, 1, 0x12000, R);
            window(b, 1, 0x20000, RW);
            let near = |offset| done(signal(a, (offset, 1), (0, 0), SELF | LOCAL));
        }
        near(0x10004) => same("a multiple of 4", "ok"),
        near(0x10002) => same("a multiple of 2", "EINVAL"),
        near(0x10ffc) => same("the last 4 bytes", "ENXIO"),
        near(0x12000) => same("a read-only window", "EPERM"),
        near(NOWHERE) => same("an unknown offset", "ENXIO"),
        done(signal(a, (0x10000, 1), (0x20000, 1), SELF)) => same("without a target", "EINVAL"),
        done(signal(a, (0, 0), (NOWHERE, 1), PEER | REMOTE)) =>
            same("for RMAs of the peer, an unknown offset", "ENXIO"),
    },
    row! { "arguments_of_unregister", |_| {
            let (a, _b, _) = connection();
            window(a, 2, 0x10000, RW);
            let out = |offset, len| done(unregister(a, offset, len));
        }
        out(0x10000, PAGE) => same("half a window", "ENXIO"),
        out(NOWHERE, PAGE) => same("an unknown offset", "ENXIO"),
        out(-4096, PAGE) => same("a negative offset", "EINVAL"),
        out(0x10000, 0) => same("length 0", "EINVAL"),
        out(0x10000, 2 * PAGE) => same("the whole window", "ok"),
        out(0x10000, 2 * PAGE) => same("again", "ENXIO"),
    },
    Row {
        name: "unregister_a_mapped_window",
        calls: |_| {
            let (a, b, _) = connection();
            let at = window(a, 1, 0x10000, RW);
            let mapped = map(b, PAGE, 0x10000).unwrap();
            let memory = pages(1) as u64;
            let mut heard = vec![
                done(unregister(a, 0x10000, PAGE)),
                done(unregister(a, 0x10000, PAGE)),
                done(copy(b, VWRITETO, memory, 8, 0x10000, 0)),
            ];
            poke64(mapped + 64, 77);
            heard.push(peek64(at + 64).to_string());
            heard
        },
        answers: &[
            same("once", "ok"),
            other("again", "ok", "ENXIO", "the guide: an unregistered window does not exist"),
            other("RMA by the peer", "ok", "ENXIO", "the guide: RMA cannot access it"),
            same("value at the owner after a store of 77", "77"),
        ],
    },
];

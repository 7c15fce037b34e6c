// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Measured answers about windows, RMA and fences, like the other ones in `driver_rows`.

use crate::ioctl::*;
use crate::measured::{Row, done, other, row, said, same};
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
    said(answer.map(|offset| format!("{offset:#x}")))
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
const NEAR: &str = "the guide: near the offset that is named";

pub(crate) const ROWS: &[Row] = &[
    row! { "offsets_that_are_given", |_| {
            let (a, _b, _) = connection();
            let any = |n, offset| hex(register(a, pages(n), n * PAGE, offset, 0));
        }
        any(1, 0x50000) =>
            other("of a page, though another is named", "0x7fffffffffffe000", "0x50000", NEAR),
        any(2, 0x50000) => other("of two", "0x7fffffffffffc000", "0x51000", NEAR),
        any(1, 0x50000) => other("of one", "0x7fffffffffffb000", "0x4f000", NEAR),
        any(1, -1) =>
            other("of one, -1 named", "0x7fffffffffffa000", "0x7fffffffffffe000",
                "the first that nobody named"),
    },
    row! { "fixed_twice", |_| {
            let (a, _b, _) = connection();
            let fixed = || hex(register_one(a, 0x10000, RW, FIXED));
        }
        fixed() => same("the first time", "0x10000"),
        fixed() =>
            other("the second time", "0x10000", "EADDRINUSE",
                "a defect: two windows at one offset"),
    },
    row! { "fixed_over_others", |_| {
            let (a, _b, _) = connection();
            window(a, 1, 0x10000, RW);
            window(a, 1, 0x11000, RW);
        }
        hex(register(a, pages(3), 3 * PAGE, 0xf000, FIXED)) =>
            other("from before to behind", "0x11000", "EADDRINUSE",
                "a defect: elsewhere than was asked for"),
    },
    row! { "fixed_at_the_beginning", |_| {
            let (a, _b, _) = connection();
        }
        hex(register_one(a, 0, RW, FIXED)) => same("offset 0", "0x0"),
        hex(register_one(a, 0x5000, 0, FIXED)) => same("protection 0", "0x5000"),
    },
    row! { "what_register_looks_at", |_| {
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
    row! { "register_where_nothing_is", |_| {
            let (a, _b, _) = connection();
        }
        hex(register(a, NO_MEMORY, PAGE, 0, 0)) => same("unmapped memory", "EFAULT"),
    },
    row! { "register_what_cannot_be_written", |_| {
            let (a, _b, _) = connection();
            let at = pages(1);
            protect(at, PAGE, libc::PROT_READ);
        }
        hex(register_for(a, at, PAGE, 0x10000, RW, FIXED)) =>
            other("constant memory, for writing too", "EFAULT", "0x10000",
                "a window says what peers may do, its memory what the program may"),
    },
    row! { "writeto_from_what_is_mapped", |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, RW);
            window(a, 1, 0x20000, RW);
            let mapped = map(b, PAGE, 0x10000).unwrap() as u64;
        }
        done(copy(b, VWRITETO, mapped, 8, 0x20000, 0)) =>
            other("a mapping of the peer's window as the source", "EFAULT", "ok",
                "memory as any other"),
    },
    row! { "writeto_over_two_windows", |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, RW);
            window(a, 1, 0x11000, RW);
            window(b, 1, 0x20000, RW);
        }
        done(copy(b, WRITETO, 0x20000, PAGE, 0x10800, 0)) =>
            same("from the middle of one to that of the next", "ok"),
    },
    row! { "protection", |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, R);
            window(a, 1, 0x12000, W);
            window(b, 1, 0x20000, RW);
        }
        done(copy(b, WRITETO, 0x20000, 8, 0x10000, 0)) => same("writeto what may be read", "EPERM"),
        done(copy(b, READFROM, 0x20000, 8, 0x12000, 0)) =>
            same("readfrom what may be written", "EPERM"),
    },
    row! { "what_rma_looks_at", |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, RW);
            window(b, 2, 0x20000, RW);
            let write =
                |len, far: i64, flags| done(copy(b, WRITETO, 0x20000, len, far as u64, flags));
        }
        write(PAGE + 1, 0x10000, 0) => same("past the end", "ENXIO"),
        write(8, NOWHERE, 0) => same("an unknown offset", "ENXIO"),
        write(8, -4096, 0) => same("a negative one", "ENXIO"),
        write(0, 0x10000, 0) => same("length 0", "EINVAL"),
        write(8, 0x10000, 0x10) => same("flags 0x10", "EINVAL"),
        write(8, 0x10000, 0x1f) => same("flags 0x1f", "ok"),
    },
    row! { "vreadfrom_to_no_memory", |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, RW);
            let readonly = pages(1);
            protect(readonly, PAGE, libc::PROT_READ);
        }
        done(copy(b, VREADFROM, NO_MEMORY as u64, 8, 0x10000, 0)) =>
            same("where nothing is", "EFAULT"),
        done(copy(b, VREADFROM, readonly as u64, 8, 0x10000, 0)) =>
            same("where nothing may be written", "EFAULT"),
    },
    row! { "mmap", |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, R);
            window(a, 1, 0x12000, RW);
            let try_it = |offset, prot, flags| done(map_for(b, PAGE, offset, prot, flags));
        }
        try_it(0x10000, RW, libc::MAP_SHARED) => same("to write what may be read", "EPERM"),
        try_it(0x10000, R, libc::MAP_SHARED) => same("to read it", "ok"),
        try_it(NOWHERE, R, libc::MAP_SHARED) => same("an unknown offset", "ENXIO"),
        try_it(0x10000, R, libc::MAP_PRIVATE) => same("MAP_PRIVATE to read", "ok"),
        try_it(0x12000, RW, libc::MAP_PRIVATE) => same("MAP_PRIVATE to write", "ok"),
    },
    row! { "marks", |_| {
            let (a, _b, _) = connection();
            let hex = |mark: Result<u32, i32>| said(mark.map(|mark| format!("{mark:#x}")));
            let own = mark(a, SELF);
        }
        hex(own) =>
            other("SCIF_FENCE_INIT_SELF", "0xdead", "0x0", "RMAs are counted, also within a node"),
        hex(mark(a, PEER)) =>
            other("SCIF_FENCE_INIT_PEER", "0xdead", "0x80000000",
                "the peer's are counted; their marks are negative, as between nodes"),
        said(wait(a, own.unwrap())) => same("wait for what was given", "0"),
        said(wait(a, 1)) => same("wait for 1", "EINVAL"),
        hex(mark(a, 3)) => same("flags 3", "EINVAL"),
        hex(mark(a, 4)) => same("flags 4", "EINVAL"),
    },
    Row {
        name: "signals",
        ask: |_| {
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
            same("of our own", "ok"),
            same("what is there then", "5 6"),
            same("of the peer's", "ok"),
            same("what is there then, again", "7 8"),
        ],
    },
    row! { "what_signals_look_at", |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, RW);
            window(a, 1, 0x12000, R);
            window(b, 1, 0x20000, RW);
            let near = |offset| done(signal(a, (offset, 1), (0, 0), SELF | LOCAL));
        }
        near(0x10004) => same("a multiple of 4", "ok"),
        near(0x10002) => same("of 2", "EINVAL"),
        near(0x10ffc) => same("the last 4 bytes", "ENXIO"),
        near(0x12000) => same("what may be read", "EPERM"),
        near(NOWHERE) => same("an unknown offset", "ENXIO"),
        done(signal(a, (0x10000, 1), (0x20000, 1), SELF)) => same("no side", "EINVAL"),
        done(signal(a, (0, 0), (NOWHERE, 1), PEER | REMOTE)) =>
            same("of the peer's, an unknown offset", "ENXIO"),
    },
    row! { "what_unregister_looks_at", |_| {
            let (a, _b, _) = connection();
            window(a, 2, 0x10000, RW);
            let out = |offset, len| done(unregister(a, offset, len));
        }
        out(0x10000, PAGE) => same("half a window", "ENXIO"),
        out(NOWHERE, PAGE) => same("an unknown offset", "ENXIO"),
        out(-4096, PAGE) => same("a negative one", "EINVAL"),
        out(0x10000, 0) => same("length 0", "EINVAL"),
        out(0x10000, 2 * PAGE) => same("all of it", "ok"),
        out(0x10000, 2 * PAGE) => same("once more", "ENXIO"),
    },
    Row {
        name: "unregister_what_is_mapped",
        ask: |_| {
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
            other(
                "once more",
                "ok",
                "ENXIO",
                "the guide: a window is gone when it was unregistered",
            ),
            other("RMA by the peer", "ok", "ENXIO", "the guide: RMA does not find it any more"),
            same("what its owner sees of a store of 77", "77"),
        ],
    },
];

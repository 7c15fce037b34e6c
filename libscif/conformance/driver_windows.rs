// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Measured answers about windows, RMA and fences, like the other ones in `driver_rows`.

use crate::ioctl::*;
use crate::measured::{Row, done, other, said, same};
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
    Row {
        name: "offsets_that_are_given",
        ask: |_| {
            let (a, _b, _) = connection();
            let any = |n, offset| hex(register(a, pages(n), n * PAGE, offset, 0));
            vec![any(1, 0x50000), any(2, 0x50000), any(1, 0x50000), any(1, -1)]
        },
        answers: &[
            other("of a page, though another is named", "0x7fffffffffffe000", "0x50000", NEAR),
            other("of two", "0x7fffffffffffc000", "0x51000", NEAR),
            other("of one", "0x7fffffffffffb000", "0x4f000", NEAR),
            other(
                "of one, -1 named",
                "0x7fffffffffffa000",
                "0x7fffffffffffe000",
                "the first that nobody named",
            ),
        ],
    },
    Row {
        name: "fixed_twice",
        ask: |_| {
            let (a, _b, _) = connection();
            let fixed = || hex(register_one(a, 0x10000, RW, FIXED));
            vec![fixed(), fixed()]
        },
        answers: &[
            same("the first time", "0x10000"),
            other(
                "the second time",
                "0x10000",
                "EADDRINUSE",
                "a defect: two windows at one offset",
            ),
        ],
    },
    Row {
        name: "fixed_over_others",
        ask: |_| {
            let (a, _b, _) = connection();
            window(a, 1, 0x10000, RW);
            window(a, 1, 0x11000, RW);
            vec![hex(register(a, pages(3), 3 * PAGE, 0xf000, FIXED))]
        },
        answers: &[other(
            "from before to behind",
            "0x11000",
            "EADDRINUSE",
            "a defect: elsewhere than was asked for",
        )],
    },
    Row {
        name: "fixed_at_the_beginning",
        ask: |_| {
            let (a, _b, _) = connection();
            vec![hex(register_one(a, 0, RW, FIXED)), hex(register_one(a, 0x5000, 0, FIXED))]
        },
        answers: &[same("offset 0", "0x0"), same("protection 0", "0x5000")],
    },
    Row {
        name: "what_register_looks_at",
        ask: |_| {
            let (a, _b, _) = connection();
            let at = pages(2);
            vec![
                hex(register_for(a, at, PAGE, 0, 4, 0)),
                hex(register(a, at, PAGE, 0, 0x20)),
                hex(register(a, at + 16, PAGE, 0, 0)),
                hex(register(a, at, 0, 0, 0)),
                hex(register(a, at, 100, 0, 0)),
                hex(register(a, at, PAGE, 0x10010, FIXED)),
                hex(register(a, at, PAGE, -4096, FIXED)),
            ]
        },
        answers: &[
            same("protection 4", "EINVAL"),
            same("SCIF_MAP_KERNEL", "EINVAL"),
            same("an address within a page", "EINVAL"),
            same("length 0", "EINVAL"),
            same("length 100", "EINVAL"),
            same("FIXED within a page", "EINVAL"),
            same("FIXED below 0", "EINVAL"),
        ],
    },
    Row {
        name: "register_where_nothing_is",
        ask: |_| {
            let (a, _b, _) = connection();
            vec![hex(register(a, NO_MEMORY, PAGE, 0, 0))]
        },
        answers: &[same("unmapped memory", "EFAULT")],
    },
    Row {
        name: "register_what_cannot_be_written",
        ask: |_| {
            let (a, _b, _) = connection();
            let at = pages(1);
            protect(at, PAGE, libc::PROT_READ);
            vec![hex(register_for(a, at, PAGE, 0x10000, RW, FIXED))]
        },
        answers: &[other(
            "constant memory, for writing too",
            "EFAULT",
            "0x10000",
            "a window says what peers may do, its memory what the program may",
        )],
    },
    Row {
        name: "writeto_from_what_is_mapped",
        ask: |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, RW);
            window(a, 1, 0x20000, RW);
            let mapped = map(b, PAGE, 0x10000).unwrap() as u64;
            vec![done(copy(b, VWRITETO, mapped, 8, 0x20000, 0))]
        },
        answers: &[other(
            "a mapping of the peer's window as the source",
            "EFAULT",
            "ok",
            "memory as any other",
        )],
    },
    Row {
        name: "writeto_over_two_windows",
        ask: |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, RW);
            window(a, 1, 0x11000, RW);
            window(b, 1, 0x20000, RW);
            vec![done(copy(b, WRITETO, 0x20000, PAGE, 0x10800, 0))]
        },
        answers: &[same("from the middle of one to that of the next", "ok")],
    },
    Row {
        name: "protection",
        ask: |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, R);
            window(a, 1, 0x12000, W);
            window(b, 1, 0x20000, RW);
            vec![
                done(copy(b, WRITETO, 0x20000, 8, 0x10000, 0)),
                done(copy(b, READFROM, 0x20000, 8, 0x12000, 0)),
            ]
        },
        answers: &[
            same("writeto what may be read", "EPERM"),
            same("readfrom what may be written", "EPERM"),
        ],
    },
    Row {
        name: "what_rma_looks_at",
        ask: |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, RW);
            window(b, 2, 0x20000, RW);
            let write =
                |len, far: i64, flags| done(copy(b, WRITETO, 0x20000, len, far as u64, flags));
            vec![
                write(PAGE + 1, 0x10000, 0),
                write(8, NOWHERE, 0),
                write(8, -4096, 0),
                write(0, 0x10000, 0),
                write(8, 0x10000, 0x10),
                write(8, 0x10000, 0x1f),
            ]
        },
        answers: &[
            same("past the end", "ENXIO"),
            same("an unknown offset", "ENXIO"),
            same("a negative one", "ENXIO"),
            same("length 0", "EINVAL"),
            same("flags 0x10", "EINVAL"),
            same("flags 0x1f", "ok"),
        ],
    },
    Row {
        name: "vreadfrom_to_no_memory",
        ask: |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, RW);
            let readonly = pages(1);
            protect(readonly, PAGE, libc::PROT_READ);
            vec![
                done(copy(b, VREADFROM, NO_MEMORY as u64, 8, 0x10000, 0)),
                done(copy(b, VREADFROM, readonly as u64, 8, 0x10000, 0)),
            ]
        },
        answers: &[
            same("where nothing is", "EFAULT"),
            same("where nothing may be written", "EFAULT"),
        ],
    },
    Row {
        name: "mmap",
        ask: |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, R);
            window(a, 1, 0x12000, RW);
            let try_it = |offset, prot, flags| done(map_for(b, PAGE, offset, prot, flags));
            vec![
                try_it(0x10000, RW, libc::MAP_SHARED),
                try_it(0x10000, R, libc::MAP_SHARED),
                try_it(NOWHERE, R, libc::MAP_SHARED),
                try_it(0x10000, R, libc::MAP_PRIVATE),
                try_it(0x12000, RW, libc::MAP_PRIVATE),
            ]
        },
        answers: &[
            same("to write what may be read", "EPERM"),
            same("to read it", "ok"),
            same("an unknown offset", "ENXIO"),
            same("MAP_PRIVATE to read", "ok"),
            same("MAP_PRIVATE to write", "ok"),
        ],
    },
    Row {
        name: "marks",
        ask: |_| {
            let (a, _b, _) = connection();
            let hex = |mark: Result<u32, i32>| said(mark.map(|mark| format!("{mark:#x}")));
            let own = mark(a, SELF);
            vec![
                hex(own),
                hex(mark(a, PEER)),
                said(wait(a, own.unwrap())),
                said(wait(a, 1)),
                hex(mark(a, 3)),
                hex(mark(a, 4)),
            ]
        },
        answers: &[
            other("SCIF_FENCE_INIT_SELF", "0xdead", "0x0", "RMAs are counted, also within a node"),
            other(
                "SCIF_FENCE_INIT_PEER",
                "0xdead",
                "0x80000000",
                "the peer's are counted; their marks are negative, as between nodes",
            ),
            same("wait for what was given", "0"),
            same("wait for 1", "EINVAL"),
            same("flags 3", "EINVAL"),
            same("flags 4", "EINVAL"),
        ],
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
    Row {
        name: "what_signals_look_at",
        ask: |_| {
            let (a, b, _) = connection();
            window(a, 1, 0x10000, RW);
            window(a, 1, 0x12000, R);
            window(b, 1, 0x20000, RW);
            let near = |offset| done(signal(a, (offset, 1), (0, 0), SELF | LOCAL));
            vec![
                near(0x10004),
                near(0x10002),
                near(0x10ffc),
                near(0x12000),
                near(NOWHERE),
                done(signal(a, (0x10000, 1), (0x20000, 1), SELF)),
                done(signal(a, (0, 0), (NOWHERE, 1), PEER | REMOTE)),
            ]
        },
        answers: &[
            same("a multiple of 4", "ok"),
            same("of 2", "EINVAL"),
            same("the last 4 bytes", "ENXIO"),
            same("what may be read", "EPERM"),
            same("an unknown offset", "ENXIO"),
            same("no side", "EINVAL"),
            same("of the peer's, an unknown offset", "ENXIO"),
        ],
    },
    Row {
        name: "what_unregister_looks_at",
        ask: |_| {
            let (a, _b, _) = connection();
            window(a, 2, 0x10000, RW);
            let out = |offset, len| done(unregister(a, offset, len));
            vec![
                out(0x10000, PAGE),
                out(NOWHERE, PAGE),
                out(-4096, PAGE),
                out(0x10000, 0),
                out(0x10000, 2 * PAGE),
                out(0x10000, 2 * PAGE),
            ]
        },
        answers: &[
            same("half a window", "ENXIO"),
            same("an unknown offset", "ENXIO"),
            same("a negative one", "EINVAL"),
            same("length 0", "EINVAL"),
            same("all of it", "ok"),
            same("once more", "ENXIO"),
        ],
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

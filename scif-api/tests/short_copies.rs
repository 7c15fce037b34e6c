// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Short copies of the provider to and from windows of the engine, at the borders of windows.
#![expect(clippy::unwrap_used, reason = "a test says what it expects")]

use std::os::fd::RawFd;

use scif::failure::Failure;
use scif::sys::slice::{with_bytes, with_bytes_mut};
use scif::{Carrier, Config, PortId, RmaMode, RmaWay, ScifCalls, WindowAccess, WindowCalls};
use scif_api::{Backend, Pages};

const PAGE: usize = 4096;
/// Offsets of two adjacent windows, of one that grants reads, and of one that is unregistered.
const FIRST: i64 = 1 << 32;
const SECOND: i64 = FIRST + PAGE as i64;
const TO_READ: i64 = FIRST + (1 << 20);
const REMOVED: i64 = FIRST + (2 << 20);

/// Connected endpoints: the initiator, and the owner of windows.
fn connected(backend: &Backend) -> (RawFd, RawFd) {
    let calls: &dyn ScifCalls = backend;
    let listener = calls.open().unwrap();
    let port = calls.bind(listener, 0).unwrap();
    calls.listen(listener, 1).unwrap();
    let (initiator, owner) = (calls.open().unwrap(), calls.open().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| calls.connect(initiator, PortId::new(0, port)).unwrap());
        while calls.accept_into(listener, owner) == Err(Failure::Again) {
            std::thread::yield_now();
        }
    });
    calls.close(listener);
    (initiator, owner)
}

#[test]
fn a_short_copy_has_the_result_of_a_long_one_at_each_border() {
    let _alone = scif::sys::children::none();
    let config = Config {
        carrier: Carrier::Soft,
        domain: Some(format!("short-{}", std::process::id())),
        ..Config::default()
    };
    let backend = Backend::new(config).unwrap();
    let (initiator, owner) = connected(&backend);
    let pages = Pages::new(4 * PAGE).unwrap();
    let both = WindowAccess { read: true, write: true };
    let windows = [
        (FIRST, 0, both),
        (SECOND, PAGE, both),
        (TO_READ, 2 * PAGE, WindowAccess { read: true, write: false }),
        (REMOVED, 3 * PAGE, both),
    ];
    for (offset, at, access) in windows {
        backend.register_at(owner, (pages.addr() + at, PAGE), offset, access).unwrap();
    }
    let write = |offset, bytes: [u8; 8]| {
        with_bytes(&bytes, |mem| {
            backend.transfer(initiator, RmaWay::Write, mem, offset, RmaMode::Cpu)
        })
    };
    let read = |offset| {
        let mut bytes = [0; 8];
        with_bytes_mut(&mut bytes, |mem| {
            backend.transfer(initiator, RmaWay::Read, mem, offset, RmaMode::Cpu)
        })
        .map(|()| u64::from_ne_bytes(bytes))
    };
    let last = PAGE as i64 - 8;
    for (round, (offset, at)) in
        [(FIRST, 0), (FIRST + last, PAGE - 8), (SECOND + last, 2 * PAGE - 8)].iter().enumerate()
    {
        let byte = u8::try_from(round + 1).unwrap();
        write(*offset, [byte; 8]).unwrap();
        let value = u64::from_ne_bytes([byte; 8]);
        assert_eq!(pages.load(*at), Ok(value), "at {offset:#x}");
        assert_eq!(read(*offset), Ok(value), "at {offset:#x}");
    }
    // Half of it in each of two windows.
    write(SECOND - 4, [7; 8]).unwrap();
    assert_eq!(read(SECOND - 4), Ok(u64::from_ne_bytes([7; 8])));
    assert_eq!(pages.load(PAGE).unwrap() & 0xffff_ffff, 0x0707_0707);
    // Beyond the last window, half of it; where no window is; at no offset.
    for offset in [SECOND + last + 4, FIRST - 8, REMOVED + (1 << 20), -8] {
        assert_eq!(write(offset, [9; 8]), Err(Failure::NoWindow), "{offset:#x}");
        assert_eq!(read(offset), Err(Failure::NoWindow), "{offset:#x}");
    }
    pages.store(2 * PAGE, 5).unwrap();
    assert_eq!(read(TO_READ), Ok(5));
    assert_eq!(write(TO_READ, [9; 8]), Err(Failure::NotPermitted));
    assert_eq!(pages.load(2 * PAGE), Ok(5));
    write(REMOVED, [1; 8]).unwrap();
    WindowCalls::unregister(&backend, owner, REMOVED, PAGE).unwrap();
    assert_eq!(write(REMOVED, [9; 8]), Err(Failure::NoWindow));
    assert_eq!(pages.load(3 * PAGE), Ok(u64::from_ne_bytes([1; 8])));
    for fd in [initiator, owner] {
        ScifCalls::close(&backend, fd);
    }
}

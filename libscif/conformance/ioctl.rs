// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! ioctls of the device, for a program without a library. The numbers and bytes follow the drivers'
//! headers. They are written a second time, so that an error common to the library and the device
//! is detected.
#![expect(unsafe_code, reason = "ioctls")]

use std::ffi::{CString, c_void};

use crate::api::called;
use crate::rig::{BLOCK, OUT, RW, plain_close, raw_poll, set_nonblocking};
use libc::EINPROGRESS;

/// Argument of an ioctl: words of 8 bytes, as all arguments are aligned.
pub(crate) type Words = [u64; 5];

/// Numbers of the ioctls by their low byte: of mainline Linux and MPSS 4, and of MPSS 3.
pub(crate) const NUMBERS: [(u32, u32); 18] = [
    (0, 0),
    (0xc008_7301, 0xc008_7301),
    (0x4004_7302, 0x4004_7302),
    (0xc008_7303, 0xc008_7303),
    (0xc010_7304, 0xc008_7304),
    (0xc008_7305, 0xc008_7305),
    (0xc018_7306, 0xc008_7306),
    (0xc018_7307, 0xc008_7307),
    (0xc028_7308, 0xc008_7308),
    (0xc010_7309, 0xc008_7309),
    (0xc028_730a, 0xc008_730a),
    (0xc028_730b, 0xc008_730b),
    (0xc028_730c, 0xc008_730c),
    (0xc028_730d, 0xc008_730d),
    (0xc018_730e, 0xc008_730e),
    (0xc010_730f, 0xc008_730f),
    (0xc004_7310, 0xc004_7310),
    (0xc028_7311, 0xc008_7311),
];
pub(crate) const BIND: usize = 1;
pub(crate) const LISTEN: usize = 2;
pub(crate) const CONNECT: usize = 3;
pub(crate) const ACCEPTREQ: usize = 4;
pub(crate) const ACCEPTREG: usize = 5;
pub(crate) const SEND: usize = 6;
pub(crate) const RECV: usize = 7;
pub(crate) const REG: usize = 8;
pub(crate) const UNREG: usize = 9;
pub(crate) const READFROM: usize = 10;
pub(crate) const WRITETO: usize = 11;
pub(crate) const VREADFROM: usize = 12;
pub(crate) const VWRITETO: usize = 13;
pub(crate) const GET_NODEIDS: usize = 14;
pub(crate) const FENCE_MARK: usize = 15;
pub(crate) const FENCE_WAIT: usize = 16;
pub(crate) const FENCE_SIGNAL: usize = 17;
pub(crate) const GET_VERSION: u32 = 0x7317;

pub(crate) fn path() -> String {
    std::env::var("SCIF_DEVICE").unwrap_or_else(|_| "/dev/scif".to_owned())
}

/// Whether it is the device of MPSS 3.
pub(crate) fn is_old() -> bool {
    path() == "/dev/mic/scif"
}

pub(crate) fn try_open(flags: i32) -> Result<i32, i32> {
    let path = CString::new(path()).unwrap();
    // SAFETY: a C string.
    called(&-1, || unsafe { libc::open(path.as_ptr(), libc::O_RDWR | flags) })
}

pub(crate) fn open_with(flags: i32) -> i32 {
    try_open(flags).unwrap()
}

pub(crate) fn open() -> i32 {
    open_with(0)
}

/// Makes any request, with any argument.
pub(crate) fn raw(fd: i32, number: u32, argument: usize) -> Result<i32, i32> {
    let argument: *mut c_void = std::ptr::with_exposed_provenance_mut(argument);
    // SAFETY: an argument of the length in the number, or one that is wrong on purpose.
    called(&-1, || unsafe { libc::ioctl(fd, number.into(), argument) })
}

pub(crate) fn number(call: usize) -> u32 {
    if is_old() { NUMBERS[call].1 } else { NUMBERS[call].0 }
}

/// Makes a call with a structure and returns its content afterwards.
pub(crate) fn call_with_words(fd: i32, call: usize, mut words: Words) -> Result<Words, i32> {
    raw(fd, number(call), words.as_mut_ptr().expose_provenance())?;
    Ok(words)
}

pub(crate) fn call_with_number(fd: i32, call: usize, value: usize) -> Result<i32, i32> {
    raw(fd, number(call), value)
}

/// Packs two 32-bit numbers, the lower address first.
pub(crate) fn two32(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

pub(crate) fn low(word: u64) -> u32 {
    (word & 0xffff_ffff) as u32
}

/// Returns the major number of a character device, or `None` for another file.
pub(crate) fn device_number(fd: i32) -> Option<u32> {
    // SAFETY: all zeroes is a valid stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: room for the state of the descriptor.
    assert_eq!(unsafe { libc::fstat(fd, &raw mut stat) }, 0);
    (stat.st_mode & libc::S_IFMT == libc::S_IFCHR).then(|| libc::major(stat.st_rdev))
}

pub(crate) fn bind_to(fd: i32, port: u16) -> Result<u32, i32> {
    call_with_words(fd, BIND, [port.into(), 0, 0, 0, 0]).map(|words| low(words[0]))
}

/// Binds to a dynamic port.
pub(crate) fn bind(fd: i32) -> u32 {
    bind_to(fd, 0).unwrap()
}

pub(crate) fn listen(fd: i32, backlog: i32) -> Result<i32, i32> {
    call_with_number(fd, LISTEN, backlog as u32 as usize)
}

pub(crate) fn connect_to(fd: i32, node: u16, port: u32) -> Result<u64, i32> {
    let request = u64::from(node) << 32 | u64::from(port) << 48;
    call_with_words(fd, CONNECT, [request, 0, 0, 0, 0]).map(|words| words[0] >> 16 & 0xffff)
}

/// Connects to a port of the own node.
pub(crate) fn connect(fd: i32, port: u32) -> Result<u64, i32> {
    connect_to(fd, 0, port)
}

/// Makes the first half of an accept: the peer's node and port, and the cookie.
pub(crate) fn accept_request(fd: i32, flags: u32) -> Result<(u64, u64), i32> {
    call_with_words(fd, ACCEPTREQ, [flags.into(), 0, 0, 0, 0])
        .map(|words| (words[0] >> 32, words[1]))
}

/// Makes the second half of an accept.
pub(crate) fn put_accepted(fd: i32, cookie: u64) -> Result<(), i32> {
    call_with_words(fd, ACCEPTREG, [cookie, 0, 0, 0, 0]).map(drop)
}

/// Answer of `GET_NODEIDS`.
pub(crate) struct Nodes {
    pub(crate) online: u32,
    pub(crate) own: u16,
    /// Number of node numbers written, at most 8.
    pub(crate) listed: u32,
}

pub(crate) fn nodes(fd: i32) -> Result<Nodes, i32> {
    let (mut nodes, mut own) = ([u16::MAX; 8], u16::MAX);
    let list = nodes.as_mut_ptr().expose_provenance() as u64;
    let me = (&raw mut own).expose_provenance() as u64;
    let words = if is_old() { [list, 8, me, 0, 0] } else { [list, me, 8, 0, 0] };
    let words = call_with_words(fd, GET_NODEIDS, words)?;
    // SAFETY: live, and written by the call.
    let own = unsafe { (&raw const own).read_volatile() };
    // SAFETY: as above.
    let nodes = unsafe { (&raw const nodes).read_volatile() };
    Ok(Nodes {
        online: low(words[if is_old() { 1 } else { 2 }]),
        own,
        listed: nodes.iter().filter(|&&node| node != u16::MAX).count() as u32,
    })
}

pub(crate) fn message(fd: i32, call: usize, bytes: &mut [u8], flags: u32) -> Result<u32, i32> {
    let at = bytes.as_mut_ptr().expose_provenance() as u64;
    let words = [at, two32(bytes.len() as u32, flags), 0xffff_ffff, 0, 0];
    call_with_words(fd, call, words).map(|words| low(words[2]))
}

pub(crate) fn send(fd: i32, bytes: &[u8], flags: u32) -> Result<u32, i32> {
    message(fd, SEND, &mut bytes.to_vec(), flags)
}

/// Makes a connection: acceptor, opener, and the opener's port.
pub(crate) fn connection() -> (i32, i32, u32) {
    let (listener, opener) = (open(), open());
    let port = bind(listener);
    listen(listener, 4).unwrap();
    let from = bind(opener);
    set_nonblocking(opener, true);
    assert_eq!(connect(opener, port), Err(EINPROGRESS));
    let acceptor = open();
    let (peer, cookie) = accept_request(listener, BLOCK as u32).unwrap();
    assert_eq!(peer >> 16, u64::from(from), "where the peer is");
    put_accepted(acceptor, cookie).unwrap();
    assert_eq!(raw_poll(opener, OUT, -1), OUT);
    assert_eq!(connect(opener, port), Ok(u64::from(from)), "our own port");
    set_nonblocking(opener, false);
    plain_close(listener);
    (acceptor, opener, from)
}

pub(crate) fn register_for(
    fd: i32,
    at: usize,
    len: usize,
    offset: i64,
    prot: i32,
    flags: i32,
) -> Result<i64, i32> {
    let how = two32(prot as u32, flags as u32);
    call_with_words(fd, REG, [at as u64, len as u64, offset as u64, how, 99])
        .map(|words| words[4] as i64)
}

pub(crate) fn register(
    fd: i32,
    at: usize,
    len: usize,
    offset: i64,
    flags: i32,
) -> Result<i64, i32> {
    register_for(fd, at, len, offset, RW, flags)
}

pub(crate) fn unregister(fd: i32, offset: i64, len: usize) -> Result<(), i32> {
    call_with_words(fd, UNREG, [offset as u64, len as u64, 0, 0, 0]).map(drop)
}

pub(crate) fn copy(
    fd: i32,
    call: usize,
    near: u64,
    len: usize,
    far: u64,
    flags: u32,
) -> Result<(), i32> {
    let (offset, addr) = if call < VREADFROM { (near, 0) } else { (0, near) };
    call_with_words(fd, call, [offset, len as u64, far, addr, flags.into()]).map(drop)
}

pub(crate) fn map_for(
    fd: i32,
    len: usize,
    offset: i64,
    prot: i32,
    flags: i32,
) -> Result<usize, i32> {
    // SAFETY: the kernel, or the stand-in, picks a free range.
    let map = || unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, fd, offset) };
    called(&libc::MAP_FAILED, map).map(<*mut c_void>::expose_provenance)
}

pub(crate) fn map(fd: i32, len: usize, offset: i64) -> Result<usize, i32> {
    map_for(fd, len, offset, RW, libc::MAP_SHARED)
}

/// Returns a mark of a fence.
pub(crate) fn mark(fd: i32, flags: u64) -> Result<u32, i32> {
    let mut mark = 0u32;
    let to = (&raw mut mark).expose_provenance() as u64;
    call_with_words(fd, FENCE_MARK, [flags, to, 0, 0, 0])?;
    // SAFETY: live, and written by the call.
    Ok(unsafe { (&raw const mark).read_volatile() })
}

pub(crate) fn wait(fd: i32, mark: u32) -> Result<i32, i32> {
    call_with_number(fd, FENCE_WAIT, mark as usize)
}

/// Stores values at this side and at the peer, as the flags select.
pub(crate) fn signal(fd: i32, near: (i64, u64), far: (i64, u64), flags: u64) -> Result<(), i32> {
    call_with_words(fd, FENCE_SIGNAL, [near.0 as u64, near.1, far.0 as u64, far.1, flags]).map(drop)
}

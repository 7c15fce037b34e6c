// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Library under test, opened by name as by a program's loader, with the signatures of `scif.h`.
#![expect(unsafe_code, reason = "calls C functions found by name")]

use std::ffi::{CString, c_char, c_int, c_long, c_uint, c_void};

/// Name and function of a case.
pub(crate) type Case = (&'static str, fn(&Api));

/// Result of a call: its value, or errno.
pub(crate) type Answer<T> = Result<T, i32>;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct PortId {
    pub(crate) node: u16,
    pub(crate) port: u16,
}

macro_rules! api {
    ($($field:ident: fn($($arg:ty),*) -> $ret:ty;)*) => {
        #[derive(Clone, Copy)]
        #[expect(non_snake_case, reason = "names of scif.h")]
        struct Table { $($field: unsafe extern "C" fn($($arg),*) -> $ret,)* }

        impl Table {
            fn load(handle: *mut c_void) -> Table {
                Table { $($field: {
                    let name = CString::new(stringify!($field)).unwrap();
                    // SAFETY: an open handle and a C string.
                    let at = unsafe { libc::dlsym(handle, name.as_ptr()) };
                    assert!(!at.is_null(), "no {}", stringify!($field));
                    // SAFETY: the library promises this signature under this name.
                    unsafe {
                        std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($arg),*) -> $ret,
                        >(at)
                    }
                },)* }
            }
        }
    };
}

api! {
    scif_open: fn() -> c_int;
    scif_close: fn(c_int) -> c_int;
    scif_bind: fn(c_int, u16) -> c_int;
    scif_listen: fn(c_int, c_int) -> c_int;
    scif_connect: fn(c_int, *const PortId) -> c_int;
    scif_accept: fn(c_int, *mut PortId, *mut c_int, c_int) -> c_int;
    scif_send: fn(c_int, *const c_void, c_int, c_int) -> c_int;
    scif_recv: fn(c_int, *mut c_void, c_int, c_int) -> c_int;
    scif_register: fn(c_int, *mut c_void, usize, i64, c_int, c_int) -> i64;
    scif_unregister: fn(c_int, i64, usize) -> c_int;
    scif_mmap: fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
    scif_munmap: fn(*mut c_void, usize) -> c_int;
    scif_readfrom: fn(c_int, i64, usize, i64, c_int) -> c_int;
    scif_writeto: fn(c_int, i64, usize, i64, c_int) -> c_int;
    scif_vreadfrom: fn(c_int, *mut c_void, usize, i64, c_int) -> c_int;
    scif_vwriteto: fn(c_int, *mut c_void, usize, i64, c_int) -> c_int;
    scif_fence_mark: fn(c_int, c_int, *mut c_int) -> c_int;
    scif_fence_wait: fn(c_int, c_int) -> c_int;
    scif_fence_signal: fn(c_int, i64, u64, i64, u64, c_int) -> c_int;
    scif_get_nodeIDs: fn(*mut u16, c_int, *mut u16) -> c_int;
    scif_get_fd: fn(c_int) -> c_int;
    scif_poll: fn(*mut libc::pollfd, c_uint, c_long) -> c_int;
}

/// Functions of the library behind a safe interface: pointers from slices, errors from errno.
#[derive(Clone, Copy)]
pub(crate) struct Api(Table);

/// Value of errno before every call; a successful call leaves it unchanged.
pub(crate) const ERRNO: i32 = 4711;

fn errno() -> *mut i32 {
    // SAFETY: no argument; returns the address of this thread's errno.
    unsafe { libc::__errno_location() }
}

/// Makes a C call with errno set, and asserts that success leaves errno unchanged.
pub(crate) fn called<T: PartialEq + std::fmt::Debug>(
    failed: &T,
    call: impl FnOnce() -> T,
) -> Answer<T> {
    // SAFETY: this thread's errno, which is valid as long as the thread runs.
    unsafe { errno().write(ERRNO) };
    let value = call();
    // SAFETY: as above.
    let after = unsafe { errno().read() };
    if value == *failed {
        return Err(after);
    }
    assert_eq!(after, ERRNO, "errno after a call that succeeded with {value:?}");
    Ok(value)
}

// SAFETY of every call below: the signature is the one of `scif.h`. Pointers come from live
// references of the passed length, from mappings of the test, or are wrong on purpose where the
// function promises an error for that.
macro_rules! call {
    ($self:ident.$f:ident($($arg:expr),*)) => {{
        // SAFETY: see above.
        called(&-1, || unsafe { ($self.0.$f)($($arg),*) })
    }};
}

impl Api {
    pub(crate) fn open_library(path: &str) -> Api {
        let path = CString::new(path).unwrap();
        // SAFETY: a C string.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: after a failure it is a C string.
            let why: *const c_char = unsafe { libc::dlerror() };
            // SAFETY: as above.
            panic!("{}", unsafe { std::ffi::CStr::from_ptr(why) }.to_string_lossy());
        }
        Api(Table::load(handle))
    }

    pub(crate) fn open(&self) -> c_int {
        call!(self.scif_open()).unwrap()
    }
    pub(crate) fn try_open(&self) -> Answer<c_int> {
        call!(self.scif_open())
    }
    pub(crate) fn close(&self, epd: c_int) -> Answer<c_int> {
        call!(self.scif_close(epd))
    }
    pub(crate) fn bind(&self, epd: c_int, port: u16) -> Answer<c_int> {
        call!(self.scif_bind(epd, port))
    }
    pub(crate) fn listen(&self, epd: c_int, backlog: c_int) -> Answer<c_int> {
        call!(self.scif_listen(epd, backlog))
    }
    /// Opens an endpoint that listens at a port; 0: at a free one. Returns the endpoint and its
    /// port.
    pub(crate) fn listener(&self, port: u16, backlog: c_int) -> (c_int, u16) {
        let epd = self.open();
        let port = self.bind(epd, port).unwrap().try_into().unwrap();
        self.listen(epd, backlog).unwrap();
        (epd, port)
    }
    pub(crate) fn connect(&self, epd: c_int, node: u16, port: u16) -> Answer<c_int> {
        call!(self.scif_connect(epd, &PortId { node, port }))
    }
    pub(crate) fn connect_null(&self, epd: c_int) -> Answer<c_int> {
        call!(self.scif_connect(epd, std::ptr::null()))
    }
    pub(crate) fn accept(&self, epd: c_int, flags: c_int) -> Answer<(PortId, c_int)> {
        let (mut peer, mut new) = (PortId::default(), -1);
        call!(self.scif_accept(epd, &raw mut peer, &raw mut new, flags)).map(|_| (peer, new))
    }
    pub(crate) fn accept_null(&self, epd: c_int) -> Answer<c_int> {
        call!(self.scif_accept(epd, std::ptr::null_mut(), std::ptr::null_mut(), 1))
    }
    pub(crate) fn send(&self, epd: c_int, msg: &[u8], flags: c_int) -> Answer<c_int> {
        call!(self.scif_send(epd, msg.as_ptr().cast(), msg.len().try_into().unwrap(), flags))
    }
    pub(crate) fn recv(&self, epd: c_int, msg: &mut [u8], flags: c_int) -> Answer<c_int> {
        call!(self.scif_recv(epd, msg.as_mut_ptr().cast(), msg.len().try_into().unwrap(), flags))
    }
    /// Receives exactly `N` bytes.
    pub(crate) fn recv_array<const N: usize>(&self, epd: c_int) -> [u8; N] {
        let mut bytes = [0; N];
        assert_eq!(self.recv(epd, &mut bytes, 1), Ok(N.try_into().unwrap()));
        bytes
    }
    /// Sends from an address of any kind.
    pub(crate) fn send_from(&self, epd: c_int, at: usize, len: c_int) -> Answer<c_int> {
        call!(self.scif_send(epd, std::ptr::with_exposed_provenance(at), len, 1))
    }
    /// Receives to an address of any kind.
    pub(crate) fn recv_to(&self, epd: c_int, at: usize, len: c_int) -> Answer<c_int> {
        call!(self.scif_recv(epd, std::ptr::with_exposed_provenance_mut(at), len, 1))
    }
    /// Sends with a NULL buffer and a separate length.
    pub(crate) fn send_null(&self, epd: c_int, len: c_int, flags: c_int) -> Answer<c_int> {
        call!(self.scif_send(epd, std::ptr::null(), len, flags))
    }
    pub(crate) fn recv_null(&self, epd: c_int, len: c_int, flags: c_int) -> Answer<c_int> {
        call!(self.scif_recv(epd, std::ptr::null_mut(), len, flags))
    }
    pub(crate) fn register(
        &self,
        epd: c_int,
        (at, len): (usize, usize),
        offset: i64,
        prot: c_int,
        flags: c_int,
    ) -> Answer<i64> {
        call!(self.scif_register(
            epd,
            std::ptr::with_exposed_provenance_mut(at),
            len,
            offset,
            prot,
            flags
        ))
    }
    pub(crate) fn unregister(&self, epd: c_int, offset: i64, len: usize) -> Answer<c_int> {
        call!(self.scif_unregister(epd, offset, len))
    }
    pub(crate) fn mmap(
        &self,
        epd: c_int,
        (at, len): (usize, usize),
        prot: c_int,
        flags: c_int,
        offset: i64,
    ) -> Answer<usize> {
        let place: *mut c_void = std::ptr::with_exposed_provenance_mut(at);
        let map = || {
            // SAFETY: see above; MAP_FIXED is only used over memory of the test.
            unsafe { (self.0.scif_mmap)(place, len, prot, flags, epd, offset) }.expose_provenance()
        };
        called(&usize::MAX, map)
    }
    pub(crate) fn munmap(&self, at: usize, len: usize) -> Answer<c_int> {
        call!(self.scif_munmap(std::ptr::with_exposed_provenance_mut(at), len))
    }
    pub(crate) fn readfrom(
        &self,
        epd: c_int,
        near: i64,
        len: usize,
        far: i64,
        flags: c_int,
    ) -> Answer<c_int> {
        call!(self.scif_readfrom(epd, near, len, far, flags))
    }
    pub(crate) fn writeto(
        &self,
        epd: c_int,
        near: i64,
        len: usize,
        far: i64,
        flags: c_int,
    ) -> Answer<c_int> {
        call!(self.scif_writeto(epd, near, len, far, flags))
    }
    pub(crate) fn vreadfrom(
        &self,
        epd: c_int,
        at: usize,
        len: usize,
        far: i64,
        flags: c_int,
    ) -> Answer<c_int> {
        call!(self.scif_vreadfrom(epd, std::ptr::with_exposed_provenance_mut(at), len, far, flags))
    }
    pub(crate) fn vwriteto(
        &self,
        epd: c_int,
        at: usize,
        len: usize,
        far: i64,
        flags: c_int,
    ) -> Answer<c_int> {
        call!(self.scif_vwriteto(epd, std::ptr::with_exposed_provenance_mut(at), len, far, flags))
    }
    pub(crate) fn fence_mark(&self, epd: c_int, flags: c_int) -> Answer<c_int> {
        let mut mark = 0;
        call!(self.scif_fence_mark(epd, flags, &raw mut mark)).map(|_| mark)
    }
    pub(crate) fn fence_mark_null(&self, epd: c_int, flags: c_int) -> Answer<c_int> {
        call!(self.scif_fence_mark(epd, flags, std::ptr::null_mut()))
    }
    pub(crate) fn fence_wait(&self, epd: c_int, mark: c_int) -> Answer<c_int> {
        call!(self.scif_fence_wait(epd, mark))
    }
    pub(crate) fn fence_signal(
        &self,
        epd: c_int,
        (loff, lval): (i64, u64),
        (roff, rval): (i64, u64),
        flags: c_int,
    ) -> Answer<c_int> {
        call!(self.scif_fence_signal(epd, loff, lval, roff, rval, flags))
    }
    pub(crate) fn nodes(&self, room: usize) -> (Answer<c_int>, Vec<u16>, u16) {
        let (mut nodes, mut own) = (vec![u16::MAX; room], u16::MAX);
        let n = call!(self.scif_get_nodeIDs(
            nodes.as_mut_ptr(),
            room.try_into().unwrap(),
            &raw mut own
        ));
        (n, nodes, own)
    }
    pub(crate) fn nodes_null(&self) -> Answer<c_int> {
        call!(self.scif_get_nodeIDs(std::ptr::null_mut(), 4, std::ptr::null_mut()))
    }
    pub(crate) fn fd(&self, epd: c_int) -> c_int {
        call!(self.scif_get_fd(epd)).unwrap()
    }
    /// Returns the bits of one endpoint.
    pub(crate) fn poll(&self, epd: c_int, events: i16, timeout: c_long) -> i16 {
        let mut entry = libc::pollfd { fd: epd, events, revents: 0 };
        call!(self.scif_poll(&raw mut entry, 1, timeout)).unwrap();
        entry.revents
    }
    pub(crate) fn poll_null(&self, count: c_uint) -> Answer<c_int> {
        self.poll_at(0, count)
    }
    /// Polls an array at an address of any kind.
    pub(crate) fn poll_at(&self, at: usize, count: c_uint) -> Answer<c_int> {
        call!(self.scif_poll(std::ptr::with_exposed_provenance_mut(at), count, 0))
    }
    pub(crate) fn poll_all(&self, entries: &mut [libc::pollfd], timeout: c_long) -> Answer<c_int> {
        call!(self.scif_poll(entries.as_mut_ptr(), entries.len().try_into().unwrap(), timeout))
    }
}

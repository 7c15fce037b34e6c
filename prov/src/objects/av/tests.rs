// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Address vectors through their C interface, and the raising of names by symmetric insertion.
#![expect(unsafe_code, reason = "calls thunks as C does")]

use super::*;

const UNSET: u64 = 0xdead;

struct AvRig {
    av: *mut fi::fid_av,
    // Declared last, so that it is closed after the vector.
    _domain: Box<Domain>,
}

impl AvRig {
    fn new() -> AvRig {
        let domain = Domain::for_test(fi::fi_version(1, 20), &fi::fi_domain_attr::default());
        let mut attr = fi::fi_av_attr { type_: fi::FI_AV_TABLE, ..fi::fi_av_attr::default() };
        let av = entry::give(Av::open(&domain.shared, &mut attr, None, ptr::null_mut()).unwrap());
        AvRig { av, _domain: domain }
    }

    fn insert(&self, addrs: &[Bytes], fi_addr: &mut [u64], errors: Option<&mut [c_int]>) -> c_int {
        let flags = if errors.is_some() { fi::FI_SYNC_ERR } else { 0 };
        let errors = errors.map_or(ptr::null_mut(), |e| e.as_mut_ptr().cast());
        let out = if fi_addr.is_empty() { ptr::null_mut() } else { fi_addr.as_mut_ptr() };
        // SAFETY: an open vector; the lists are as long as `addrs` or absent.
        unsafe { insert(self.av, addrs.as_ptr().cast(), addrs.len(), out, flags, errors) }
    }

    fn remove(&self, addrs: &mut [u64]) -> c_int {
        // SAFETY: an open vector, and a list of the given length.
        unsafe { remove(self.av, addrs.as_mut_ptr(), addrs.len(), 0) }
    }

    fn lookup(&self, fi_addr: u64, room: usize) -> (c_int, Bytes, usize) {
        let (mut bytes, mut len) = ([0; ADDR_LEN], room);
        // SAFETY: an open vector, and a buffer of at least `room` bytes.
        let status = unsafe { lookup(self.av, fi_addr, bytes.as_mut_ptr().cast(), &raw mut len) };
        (status, bytes, len)
    }
}

impl Drop for AvRig {
    fn drop(&mut self) {
        // SAFETY: an open vector, not used afterwards.
        assert_eq!(unsafe { close(self.av.cast()) }, 0);
    }
}

fn local(port: u16) -> Bytes {
    Addr::this_host(Ipv4Addr::LOCALHOST, port).to_bytes()
}

/// Returns the address of a port on another host.
fn foreign(port: u16) -> Bytes {
    Addr { host: 1, ..Addr::this_host(Ipv4Addr::LOCALHOST, port) }.to_bytes()
}

#[test]
fn good_and_bad_addresses_together() {
    let rig = AvRig::new();
    let (mut out, mut errors) = ([UNSET; 4], [-1; 4]);
    let addrs = [local(10), [0; ADDR_LEN], foreign(11), local(12)];
    assert_eq!(rig.insert(&addrs, &mut out, Some(&mut errors)), 2);
    assert_eq!(out, [0, fi::FI_ADDR_NOTAVAIL, fi::FI_ADDR_NOTAVAIL, 1]);
    assert_eq!(errors, [0, fi::FI_EINVAL, fi::FI_EHOSTUNREACH, 0]);
    assert_eq!(rig.insert(&addrs[..1], &mut [], None), 1);
    assert_eq!(rig.insert(&[], &mut [], None), 0);
    // SAFETY: an open vector; the flag is refused before any address is read.
    let refused =
        unsafe { insert(rig.av, ptr::null(), 0, ptr::null_mut(), fi::FI_EVENT, ptr::null_mut()) };
    assert_eq!(refused, -fi::FI_EBADFLAGS);
}

#[test]
fn lookup_returns_the_full_length() {
    let rig = AvRig::new();
    assert_eq!(rig.insert(&[local(77)], &mut [UNSET], None), 1);
    assert_eq!(rig.lookup(0, ADDR_LEN), (0, local(77), ADDR_LEN));
    let (status, bytes, len) = rig.lookup(0, 4);
    assert_eq!((status, len), (0, ADDR_LEN));
    assert_eq!(bytes[..4], local(77)[..4]);
    assert_eq!(bytes[4..], [0; 12]);
    assert_eq!(rig.lookup(1, ADDR_LEN).0, -fi::FI_EINVAL);
}

#[test]
fn removal_is_from_the_end_and_once() {
    let rig = AvRig::new();
    let mut out = [UNSET; 3];
    assert_eq!(rig.insert(&[local(1), local(2), local(3)], &mut out, None), 3);
    assert_eq!(rig.remove(&mut out[1..]), 0);
    assert_eq!(rig.remove(&mut [2]), -fi::FI_EINVAL);
    assert_eq!(rig.insert(&[local(4)], &mut out, None), 1);
    assert_eq!(out[0], 1);
}

#[test]
fn text_of_an_address() {
    let bytes = local(9228);
    let (mut text, mut len) = ([1u8; 8], 8);
    // SAFETY: an address, and a buffer of the given length.
    let at = unsafe {
        straddr(ptr::null_mut(), bytes.as_ptr().cast(), text.as_mut_ptr().cast(), &raw mut len)
    };
    assert_eq!(at.cast::<u8>(), text.as_ptr());
    assert_eq!(&text, b"fi_sock\0");
    assert_eq!(len, "fi_sockaddr_in://127.0.0.1:9228".len() + 1);
}

#[test]
fn asynchronous_insertion_needs_a_queue() {
    let domain = Domain::for_test(fi::fi_version(1, 17), &fi::fi_domain_attr::default());
    let mut attr = fi::fi_av_attr { flags: fi::FI_EVENT, ..fi::fi_av_attr::default() };
    let av = entry::give::<Av, fi::fid_av>(
        Av::open(&domain.shared, &mut attr, None, ptr::null_mut()).unwrap(),
    );
    let addr = local(1);
    // SAFETY: an open vector and one address.
    let status =
        unsafe { insert(av, addr.as_ptr().cast(), 1, ptr::null_mut(), 0, ptr::null_mut()) };
    assert_eq!(status, -fi::FI_ENOEQ);
    // SAFETY: an open vector, not used afterwards.
    assert_eq!(unsafe { close(av.cast()) }, 0);
}

#[test]
fn unsupported_attributes_are_refused_at_once() {
    let domain = Domain::for_test(fi::fi_version(1, 17), &fi::fi_domain_attr::default());
    let open = |attr: &fi::fi_av_attr| {
        Av::open(&domain.shared, &mut { *attr }, None, ptr::null_mut()).map(|_| ())
    };
    let plain = fi::fi_av_attr::default();
    for rx_ctx_bits in [-1, 17] {
        assert_eq!(open(&fi::fi_av_attr { rx_ctx_bits, ..plain }), Err(fi::FI_EINVAL));
    }
    // Flags about shared vectors have no effect on a vector without a name.
    let flags = fi::FI_READ | fi::FI_PEER;
    assert_eq!(open(&fi::fi_av_attr { flags, ..plain }), Ok(()));
    assert_eq!(open(&fi::fi_av_attr { type_: 9, ..plain }), Err(fi::FI_EINVAL));
    assert_eq!(open(&fi::fi_av_attr { flags: 1, ..plain }), Err(fi::FI_EBADFLAGS));
}

#[test]
fn names_count_up() {
    let up = |name: &CStr, by| count_up(name, by).map(|s| s.into_string().unwrap());
    assert_eq!(up(c"host10", 1).as_deref(), Some("host11"));
    assert_eq!(up(c"n009", 1).as_deref(), Some("n010"));
    assert_eq!(up(c"5000", 7).as_deref(), Some("5007"));
    assert_eq!(up(c"localhost", 1), None);
    assert_eq!(up(c"99999999999999999999999", 1), None);
}

#[test]
fn symmetric_names() {
    let of = |n, s| named(Some(c"127.0.0.1"), n, c"5000", s).and_then(|b| Addr::from_bytes(&b));
    let at = |last, port| Some(Addr::this_host(Ipv4Addr::new(127, 0, 0, last), port));
    assert_eq!(of(0, 0), at(1, 5000));
    assert_eq!(of(0, 1), at(1, 5001));
    assert_eq!(of(1, 0), at(2, 5000));
    assert_eq!(named(Some(c"127.0.0.1"), 0, c"no-such-service", 0), None);
    assert_eq!(named(Some(c"255.255.255.255"), 1, c"5000", 0), None);
    // Without a node there is no name to raise.
    assert_eq!(named(None, 1, c"5000", 0), None);
    let default = named(None, 0, c"5000", 0).and_then(|b| Addr::from_bytes(&b));
    assert_eq!(default, at(1, 5000));
}

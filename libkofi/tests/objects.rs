// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests of objects that providers made, as C makes them: fabrics returned twice or passed on,
//! tables that are short or have gaps, NICs of unloaded providers, structures of every length
//! before an unreadable page.
//!
//! Registration and removal of providers are in `edge`.
#![expect(
    unsafe_code,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "a test that plays C: what it passes are its own statics and allocations"
)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kofi_c::abi::*;
use kofi_c::kofi_provider;
use kofi_c::register::*;
use libfabric_sys as fi;
use libkofi as kofi_c;

const KOFI_1_0: u32 = fi::fi_version(1, 0);
const API: u32 = fi::fi_version(1, 17);

/// The single fabric, which is counted and stays, with inputs and results of its functions. One
/// test at a time.
struct State {
    fabric: usize,
    opened: u32,
    inside_close: Option<fn() -> c_int>,
    nics: i32,
}

static STATE: Mutex<State> =
    Mutex::new(State { fabric: 0, opened: 0, inside_close: None, nics: 0 });
static TURN: Mutex<()> = Mutex::new(());

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shortest possible `struct fi_ops`.
#[repr(C)]
struct ShortOps {
    size: usize,
    close: unsafe extern "C" fn(*mut fi::fid) -> c_int,
}

unsafe extern "C" fn close_kept(_: *mut fi::fid) -> c_int {
    let inside = state().inside_close.take();
    let code = inside.map_or(0, |inside| inside());
    if code == 0 {
        state().opened -= 1;
    }
    code
}

static FABRIC_OPS: fi::fi_ops_fabric = fi::FI_OPS_FABRIC_NOSYS;

/// Opens the single fabric, whose table ends before an unreadable page.
unsafe extern "C" fn open_kept(
    _attr: *mut fi::fi_fabric_attr,
    fabric: *mut *mut fi::fid_fabric,
    context: *mut c_void,
) -> c_int {
    let mut state = state();
    if state.fabric == 0 {
        let ops = fence(&ShortOps { size: size_of::<ShortOps>(), close: close_kept });
        let new = fi::fid_fabric {
            fid: fi::fid { fclass: fi::FI_CLASS_FABRIC, context, ops: ops.cast() },
            ops: &raw const FABRIC_OPS,
            api_version: 0,
        };
        state.fabric = Box::into_raw(Box::new(new)).expose_provenance();
    }
    state.opened += 1;
    unsafe { fabric.write(ptr::with_exposed_provenance_mut(state.fabric)) };
    0
}

/// Opens the fabric of the other provider and passes it on.
unsafe extern "C" fn open_other(
    _attr: *mut fi::fi_fabric_attr,
    fabric: *mut *mut fi::fid_fabric,
    _context: *mut c_void,
) -> c_int {
    match open(c"kept") {
        Ok(other) => unsafe { fabric.write(other) },
        Err(code) => return code,
    }
    0
}

fn provider(name: &'static CStr) -> &'static mut kofi_provider {
    Box::leak(Box::new(kofi_provider {
        name: name.as_ptr(),
        version: fi::fi_version(0, 1),
        getinfo: None,
        freeinfo: None,
        fabric: Some(open_kept),
    }))
}

fn open(provider: &CStr) -> Result<*mut fi::fid_fabric, c_int> {
    let mut attr = fi::fi_fabric_attr {
        name: c"net".as_ptr().cast_mut(),
        prov_name: provider.as_ptr().cast_mut(),
        api_version: API,
        ..fi::fi_fabric_attr::ZERO
    };
    let mut fabric = ptr::null_mut();
    match unsafe { kofi_abi_fabric(1, &raw mut attr, &raw mut fabric, ptr::null_mut()) } {
        0 => Ok(fabric),
        code => Err(code),
    }
}

/// Closes a fabric, as `fi_close` in the header does.
fn close(fabric: *mut fi::fid_fabric) -> c_int {
    unsafe { ((*(*fabric).fid.ops.cast::<ShortOps>()).close)(fabric.cast()) }
}

/// Returns a copy of a structure at the end of a page, before one that cannot be read.
fn fence<T>(value: &T) -> *mut T {
    fence_bytes(ptr::from_ref(value).cast(), size_of::<T>()).cast()
}

fn fence_bytes(from: *const u8, len: usize) -> *mut u8 {
    const PAGE: usize = 65536;
    assert!(len <= PAGE);
    unsafe {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let pages = libc::mmap(ptr::null_mut(), 2 * PAGE, rights, flags, -1, 0).cast::<u8>();
        assert_eq!(libc::mprotect(pages.add(PAGE).cast(), PAGE, libc::PROT_NONE), 0);
        let to = pages.add(PAGE - len);
        ptr::copy_nonoverlapping(from, to, len);
        to
    }
}

#[test]
fn one_fabric_is_returned_several_times() {
    let _turn = turn();
    let kept = provider(c"kept");
    for _ in 0..2 {
        assert_eq!(unsafe { kofi_provider_register(KOFI_1_0, kept) }, 0);
        let (one, two) = (open(c"kept").unwrap(), open(c"kept").unwrap());
        assert_eq!(one, two);
        assert_eq!(unsafe { (*one).api_version }, API);
        assert_eq!(kofi_provider_deregister_timed(kept, 0), -fi::FI_EBUSY);
        assert_eq!(close(one), 0);
        assert_eq!(kofi_provider_deregister_timed(kept, 0), -fi::FI_EBUSY);
        assert_eq!(close(two), 0);
        assert_eq!(kofi_provider_deregister_timed(kept, 0), 0);
        assert_eq!(state().opened, 0);
        assert_eq!(close(two), -fi::FI_EINVAL, "once too often");
    }
}

#[test]
fn a_close_may_fail_while_another_does_not() {
    let _turn = turn();
    let kept = provider(c"kept");
    assert_eq!(unsafe { kofi_provider_register(KOFI_1_0, kept) }, 0);
    let (one, _two) = (open(c"kept").unwrap(), open(c"kept").unwrap());
    // During the first close another thread closes its own opening of the fabric, and even opens it
    // again.
    state().inside_close = Some(|| {
        let other = std::thread::spawn(|| {
            let fabric = ptr::with_exposed_provenance_mut(state().fabric);
            assert_eq!(close(fabric), 0);
            assert_eq!(open(c"kept").unwrap(), fabric);
            assert_eq!(close(fabric), 0);
        });
        other.join().unwrap();
        -fi::FI_EBUSY
    });
    assert_eq!(close(one), -fi::FI_EBUSY, "the provider's own answer");
    assert_eq!(kofi_provider_deregister_timed(kept, 0), -fi::FI_EBUSY);
    assert_eq!(close(one), 0);
    assert_eq!(kofi_provider_deregister_timed(kept, 0), 0);
    assert_eq!(state().opened, 0);
}

#[test]
fn wrapped_fabric_keeps_both_providers() {
    let _turn = turn();
    let (kept, outer) = (provider(c"kept"), provider(c"outer"));
    outer.fabric = Some(open_other);
    assert_eq!(unsafe { kofi_provider_register(KOFI_1_0, kept) }, 0);
    assert_eq!(unsafe { kofi_provider_register(KOFI_1_0, outer) }, 0);
    let own = open(c"kept").unwrap();
    let given = open(c"outer").unwrap();
    assert_eq!(kofi_provider_deregister_timed(outer, 0), -fi::FI_EBUSY);
    assert_eq!(close(given), 0);
    assert_eq!(kofi_provider_deregister_timed(outer, 0), 0);
    assert_eq!(kofi_provider_deregister_timed(kept, 0), -fi::FI_EBUSY);
    assert_eq!(close(own), 0);
    assert_eq!(kofi_provider_deregister_timed(kept, 0), 0);
    assert_eq!(state().opened, 0);
}

/// Operation table of a NIC whose maker implements none of the functions.
static NIC_OPS: [usize; 7] = [56, 0, 0, 0, 0, 0, 0];

/// Returns an info with a NIC whose functions count, and whose parts belong to the program.
unsafe extern "C" fn getinfo_nic(
    _version: u32,
    _node: *const c_char,
    _service: c_int,
    _flags: u64,
    _hints: *mut fi::fi_info,
    info: *mut *mut fi::fi_info,
) -> c_int {
    state().nics += 1;
    let text = |text: &CStr| unsafe { libc::strdup(text.as_ptr()) };
    let nic = fi::fid_nic {
        fid: fi::fid {
            fclass: fi::FI_CLASS_NIC,
            context: ptr::null_mut(),
            ops: NIC_OPS.as_ptr().cast(),
        },
        device_attr: Box::into_raw(Box::new(fi::fi_device_attr {
            name: text(c"nic0"),
            device_id: ptr::null_mut(),
            device_version: ptr::null_mut(),
            vendor_id: ptr::null_mut(),
            driver: text(c"soft"),
            firmware: ptr::null_mut(),
        })),
        bus_attr: Box::into_raw(Box::new(fi::fi_bus_attr {
            bus_type: fi::FI_BUS_PCI,
            attr: fi::fi_pci_attr { bus_id: 7, ..fi::fi_pci_attr::default() },
        })),
        link_attr: Box::into_raw(Box::new(fi::fi_link_attr {
            address: ptr::null_mut(),
            mtu: 9000,
            speed: 1,
            state: fi::FI_LINK_UP,
            network_type: text(c"none"),
        })),
        prov_attr: ptr::null_mut(),
    };
    unsafe {
        let new = kofi_abi_dupinfo(3, ptr::null());
        (*(*new).fabric_attr).name = text(c"net");
        (*new).nic = Box::into_raw(Box::new(nic));
        info.write(new);
    }
    0
}

/// Makes the provider's data unusable, as its owner may after its removal.
unsafe extern "C" fn freeinfo_nic(info: *mut fi::fi_info) -> c_int {
    state().nics -= 1;
    unsafe {
        let nic = (*info).nic;
        (*info).nic = ptr::null_mut();
        let device = Box::from_raw((*nic).device_attr);
        libc::memset(device.name.cast(), i32::from(b'#'), 4);
        drop(Box::from_raw((*nic).bus_attr));
        drop(Box::from_raw((*nic).link_attr));
        (*nic).fid.ops = ptr::without_provenance(8);
        (*nic).device_attr = ptr::null_mut();
        kofi_abi_freeinfo(info);
    }
    0
}

#[test]
fn the_nic_of_a_provider_that_left_can_be_read_copied_and_freed() {
    let _turn = turn();
    let owner = provider(c"with-nic");
    owner.getinfo = Some(getinfo_nic);
    owner.freeinfo = Some(freeinfo_nic);
    assert_eq!(unsafe { kofi_provider_register(KOFI_1_0, owner) }, 0);
    let hints = unsafe { kofi_abi_dupinfo(3, ptr::null()) };
    unsafe { (*(*hints).fabric_attr).prov_name = libc::strdup(c"with-nic".as_ptr()) };
    let mut list = ptr::null_mut();
    let null = ptr::null();
    let code = unsafe { kofi_abi_getinfo(3, API, null, null, 0, hints, &raw mut list) };
    assert_eq!((code, state().nics), (0, 0));
    assert_eq!(kofi_provider_deregister_timed(owner, 0), 0);
    let copy = unsafe { kofi_abi_dupinfo(3, list) };
    unsafe { kofi_abi_freeinfo(list) };
    let nic = unsafe { (*copy).nic };
    assert_eq!(unsafe { CStr::from_ptr((*(*nic).device_attr).name) }, c"nic0");
    let text =
        unsafe { CStr::from_ptr(kofi_abi_tostr(copy.cast_const().cast(), fi::FI_TYPE_INFO)) }
            .to_string_lossy();
    for line in [
        "\n    nic:\n        fi_device_attr:\n            name: nic0\n",
        "\n            driver: soft\n",
        "\n            fi_pci_attr:\n                domain_id: 0\n                bus_id: 7\n",
        "\n            mtu: 9000\n",
        "\n            state: FI_LINK_UP\n            network_type: none\n",
    ] {
        assert!(text.contains(line), "{line:?}: {text}");
    }
    unsafe { kofi_abi_freeinfo(copy) };
    // A program's NIC without a dup function is omitted, and without a close function it stays.
    unsafe {
        let mut nic = fi::fid_nic {
            fid: fi::fid {
                fclass: fi::FI_CLASS_NIC,
                context: ptr::null_mut(),
                ops: NIC_OPS.as_ptr().cast(),
            },
            device_attr: ptr::null_mut(),
            bus_attr: ptr::null_mut(),
            link_attr: ptr::null_mut(),
            prov_attr: ptr::null_mut(),
        };
        (*hints).nic = &raw mut nic;
        let copy = kofi_abi_dupinfo(3, hints);
        assert!((*copy).nic.is_null());
        kofi_abi_freeinfo(copy);
        let text = CStr::from_ptr(kofi_abi_tostr(hints.cast_const().cast(), fi::FI_TYPE_INFO));
        assert!(text.to_string_lossy().contains("\n    nic: 0x"), "{text:?}");
        kofi_abi_freeinfo(hints);
    }
}

/// Returns an info without attributes, and without a spare byte.
unsafe extern "C" fn getinfo_bare(
    _version: u32,
    _node: *const c_char,
    _service: c_int,
    _flags: u64,
    _hints: *mut fi::fi_info,
    info: *mut *mut fi::fi_info,
) -> c_int {
    unsafe { info.write(libc::calloc(1, size_of::<fi::fi_info>()).cast()) };
    0
}

#[test]
fn omitted_attributes_are_allocated() {
    let _turn = turn();
    let owner = provider(c"bare");
    owner.getinfo = Some(getinfo_bare);
    assert_eq!(unsafe { kofi_provider_register(KOFI_1_0, owner) }, 0);
    let hints = unsafe { kofi_abi_dupinfo(3, ptr::null()) };
    unsafe { (*(*hints).fabric_attr).prov_name = libc::strdup(c"bare".as_ptr()) };
    let (mut list, null) = (ptr::null_mut(), ptr::null());
    let code = unsafe { kofi_abi_getinfo(3, API, null, null, 0, hints, &raw mut list) };
    assert_eq!(code, 0);
    let info = unsafe { *list };
    assert_eq!(unsafe { CStr::from_ptr((*info.fabric_attr).prov_name) }, c"bare");
    assert!(!info.tx_attr.is_null() && !info.rx_attr.is_null());
    assert!(!info.ep_attr.is_null() && !info.domain_attr.is_null());
    for infos in [hints, list] {
        unsafe { kofi_abi_freeinfo(infos) };
    }
    assert_eq!(kofi_provider_deregister_timed(owner, 0), 0);
}

/// Checks infos whose parts each end before an unreadable page.
#[test]
fn of_an_old_program_not_one_byte_more_is_read() {
    // It asks each registered provider, and the others count what theirs are asked.
    let _turn = turn();
    let full = unsafe { kofi_abi_dupinfo(9, ptr::null()) };
    unsafe { (*(*full).domain_attr).name = libc::strdup(c"dom".as_ptr()) };
    // The sizes of fi_info, fi_tx_attr, fi_ep_attr, fi_domain_attr and fi_fabric_attr in the
    // headers of each node.
    for (node, sizes) in [
        (0, [112, 72, 80, 120, 32]),
        (1, [112, 72, 96, 184, 32]),
        (2, [120, 72, 96, 184, 32]),
        (3, [120, 80, 96, 192, 32]),
        (7, [120, 80, 96, 200, 32]),
        (8, [120, 80, 96, 208, 32]),
        (9, [120, 80, 96, 224, 32]),
    ] {
        let mut parts = unsafe { *full };
        parts.tx_attr = fence_bytes(parts.tx_attr.cast(), sizes[1]).cast();
        parts.ep_attr = fence_bytes(parts.ep_attr.cast(), sizes[2]).cast();
        parts.domain_attr = fence_bytes(parts.domain_attr.cast(), sizes[3]).cast();
        parts.fabric_attr = fence_bytes(parts.fabric_attr.cast(), sizes[4]).cast();
        parts.rx_attr = fence(&unsafe { *parts.rx_attr });
        let info = fence_bytes((&raw const parts).cast(), sizes[0]).cast::<fi::fi_info>();
        let copy = unsafe { kofi_abi_dupinfo(node, info) };
        assert_eq!(unsafe { CStr::from_ptr((*(*copy).domain_attr).name) }, c"dom");
        unsafe { kofi_abi_freeinfo(copy) };
        let mut list = ptr::null_mut();
        let null = ptr::null();
        let code = unsafe { kofi_abi_getinfo(node, API, null, null, 0, info, &raw mut list) };
        assert_eq!((code, list), (-fi::FI_ENODATA, ptr::null_mut()), "no domain has that name");
        let mut fabric = ptr::null_mut();
        let none = ptr::null_mut();
        let attr = parts.fabric_attr;
        let code = unsafe { kofi_abi_fabric(node.min(1), attr, &raw mut fabric, none) };
        assert_eq!(code, -fi::FI_EINVAL, "it has no names");
    }
    unsafe { kofi_abi_freeinfo(full) };
}

/// Checks structures of a program that are as small as in its headers.
#[test]
fn errors_and_regions_of_older_headers_are_printed() {
    let entry = fi::fi_cq_err_entry { err: 5, ..fi::fi_cq_err_entry::ZERO };
    let old = fence_bytes((&raw const entry).cast(), 80);
    let text = |data: *const u8, kind| {
        let text = unsafe { kofi_abi_tostr(data.cast(), kind) };
        unsafe { CString::from(CStr::from_ptr(text)) }.into_string().unwrap()
    };
    assert!(text(old, fi::FI_TYPE_CQ_ERR_ENTRY).contains("\n    err: 5\n"));
    let region = fi::fi_mr_attr { offset: 16, ..fi::fi_mr_attr::ZERO };
    let old = fence_bytes((&raw const region).cast(), 80);
    assert!(text(old, fi::FI_TYPE_MR_ATTR).contains("\n    offset: 0x10\n"));
}

#[test]
fn concurrent_texts_are_valid_memory() {
    let (first, second) = (fi::FI_EP_RDM, fi::FI_EP_MSG);
    let first = unsafe { kofi_abi_tostr((&raw const first).cast(), fi::FI_TYPE_EP_TYPE) };
    let second = unsafe { kofi_abi_tostr((&raw const second).cast(), fi::FI_TYPE_EP_TYPE) };
    assert_eq!(first, second);
    assert_eq!(unsafe { CStr::from_ptr(second) }, c"FI_EP_MSG");
}

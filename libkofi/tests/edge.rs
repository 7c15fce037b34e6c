// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Tests of the C functions as a C program calls them: register, query, open, close, deregister.
//! They cover the nine defects of the kernel registries as far as C can show them, and infos of
//! every layout.
//!
//! The registry's own rules are in kofi/tests, symbols and real programs in fabtests/kofi.
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
use kofi_c::info::Layout;
use kofi_c::kofi_provider;
use kofi_c::register::*;
use libfabric_sys as fi;
use libkofi as kofi_c;

const KOFI_1_0: u32 = fi::fi_version(1, 0);
const KFI_1_7: u32 = fi::fi_version(1, 7);
const API: u32 = fi::fi_version(1, 17);
/// Version node to which programs are linked.
const NODE: u32 = 3;

/// Inputs and results of the toy provider's functions; one test at a time.
#[derive(Default)]
struct Toy {
    answer: c_int,
    empty: bool,
    asked: u32,
    service: c_int,
    freed: u32,
    cleanups: u32,
    open: u32,
    close_answer: c_int,
    inside: Option<fn()>,
}

static TOY: Mutex<Option<Toy>> = Mutex::new(None);
static TURN: Mutex<()> = Mutex::new(());

fn with<R>(use_it: impl FnOnce(&mut Toy) -> R) -> R {
    let mut toy = TOY.lock().unwrap_or_else(PoisonError::into_inner);
    use_it(toy.get_or_insert_default())
}

fn turn() -> MutexGuard<'static, ()> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    *TOY.lock().unwrap_or_else(PoisonError::into_inner) = None;
    turn
}

unsafe fn answer(info: *mut *mut fi::fi_info) -> c_int {
    let (code, empty, inside) = with(|toy| {
        toy.asked += 1;
        (toy.answer, toy.empty, toy.inside)
    });
    if let Some(inside) = inside {
        inside();
    }
    if code == 0 && !empty {
        unsafe {
            let new = kofi_abi_dupinfo(NODE, ptr::null());
            (*(*new).fabric_attr).name = libc::strdup(c"toynet".as_ptr());
            (*(*new).domain_attr).name = libc::strdup(c"toydom".as_ptr());
            info.write(new);
        }
    }
    code
}

unsafe extern "C" fn slides_getinfo(
    _version: u32,
    _node: *const c_char,
    service: c_int,
    _flags: u64,
    hints: *mut fi::fi_info,
    info: *mut *mut fi::fi_info,
) -> c_int {
    with(|toy| toy.service = service);
    // The slides do not declare them const, so a provider may change them.
    if let Some(hints) = unsafe { hints.as_mut() } {
        let name = unsafe { &mut (*hints.fabric_attr).name };
        unsafe { libc::free(std::mem::replace(name, ptr::null_mut()).cast()) };
        hints.caps = u64::MAX;
    }
    unsafe { answer(info) }
}

unsafe extern "C" fn final_getinfo(
    _version: u32,
    _node: *const c_char,
    _service: *const c_char,
    _flags: u64,
    _hints: *const fi::fi_info,
    info: *mut *mut fi::fi_info,
) -> c_int {
    unsafe { answer(info) }
}

unsafe extern "C" fn freeinfo(info: *mut fi::fi_info) -> c_int {
    with(|toy| toy.freed += 1);
    unsafe { kofi_abi_freeinfo(info) };
    0
}

unsafe extern "C" fn cleanup() {
    with(|toy| toy.cleanups += 1);
}

static FID_OPS: fi::fi_ops = fi::fi_ops { close: close_fabric, ..fi::FI_OPS_NOSYS };
static FABRIC_OPS: fi::fi_ops_fabric = fi::FI_OPS_FABRIC_NOSYS;

unsafe extern "C" fn open_fabric(
    _attr: *mut fi::fi_fabric_attr,
    fabric: *mut *mut fi::fid_fabric,
    context: *mut c_void,
) -> c_int {
    let (code, inside) = with(|toy| (toy.answer, toy.inside));
    if let Some(inside) = inside {
        inside();
    }
    if code == 0 {
        with(|toy| toy.open += 1);
        let new = fi::fid_fabric {
            fid: fi::fid { fclass: fi::FI_CLASS_FABRIC, context, ops: &raw const FID_OPS },
            ops: &raw const FABRIC_OPS,
            api_version: 0,
        };
        unsafe { fabric.write(Box::into_raw(Box::new(new))) };
    }
    code
}

unsafe extern "C" fn close_fabric(fid: *mut fi::fid) -> c_int {
    let code = with(|toy| toy.close_answer);
    if code == 0 {
        with(|toy| toy.open -= 1);
        drop(unsafe { Box::from_raw(fid.cast::<fi::fid_fabric>()) });
    }
    code
}

/// Returns a description in the form of the slides; leaked, as a provider's is static.
fn slides(name: &'static CStr, minor: u16) -> &'static mut kofi_provider {
    Box::leak(Box::new(kofi_provider {
        name: name.as_ptr(),
        version: fi::fi_version(0, minor.into()),
        getinfo: Some(slides_getinfo),
        freeinfo: Some(freeinfo),
        fabric: Some(open_fabric),
    }))
}

/// Returns a description in the final form.
fn last(name: &'static CStr, minor: u16) -> &'static mut fi::fi_provider {
    Box::leak(Box::new(fi::fi_provider {
        version: fi::fi_version(0, minor.into()),
        fi_version: KFI_1_7,
        context: fi::ofi_prov_context::EMPTY,
        name: name.as_ptr(),
        getinfo: Some(final_getinfo),
        fabric: Some(open_fabric),
        cleanup: Some(cleanup),
    }))
}

/// Hints with the name of a provider.
struct Hints(*mut fi::fi_info);

impl Hints {
    fn of(provider: &CStr) -> Self {
        let hints = unsafe { kofi_abi_dupinfo(NODE, ptr::null()) };
        unsafe { (*(*hints).fabric_attr).prov_name = libc::strdup(provider.as_ptr()) };
        Hints(hints)
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        unsafe { kofi_abi_freeinfo(self.0) };
    }
}

/// Returns the providers that answer, by name and version.
fn query(hints: Option<&CStr>) -> Result<Vec<(CString, u32)>, c_int> {
    let hints = hints.map(Hints::of);
    let mut list = ptr::dangling_mut();
    let code = unsafe {
        kofi_abi_getinfo(
            NODE,
            API,
            ptr::null(),
            c"9300".as_ptr(),
            0,
            hints.as_ref().map_or(ptr::null(), |hints| hints.0.cast_const()),
            &raw mut list,
        )
    };
    if code != 0 {
        assert!(list.is_null(), "without an answer there is no list");
        return Err(code);
    }
    let mut found = Vec::new();
    let mut at = list;
    while !at.is_null() {
        let attr = unsafe { &*(*at).fabric_attr };
        assert_eq!(attr.api_version, API);
        found.push((unsafe { CStr::from_ptr(attr.prov_name) }.to_owned(), attr.prov_version));
        at = unsafe { (*at).next };
        assert!(found.len() < 100, "the list has no end");
    }
    unsafe { kofi_abi_freeinfo(list) };
    Ok(found)
}

fn open(provider: &CStr) -> Result<*mut fi::fid_fabric, c_int> {
    let mut attr = fi::fi_fabric_attr {
        name: c"toynet".as_ptr().cast_mut(),
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
    unsafe { ((*(*fabric).fid.ops).close)(fabric.cast()) }
}

#[test]
fn an_invalid_registration_has_its_error() {
    let _turn = turn();
    assert_eq!(unsafe { kofi_provider_register(KOFI_1_0, ptr::null_mut()) }, -fi::FI_EINVAL);
    assert_eq!(unsafe { kfi_provider_register(ptr::null_mut()) }, -fi::FI_EINVAL);
    assert_eq!(kofi_provider_deregister(ptr::null_mut()), -fi::FI_EINVAL);
    assert_eq!(kfi_provider_deregister(ptr::null_mut()), -fi::FI_EINVAL);
    let bad = slides(c"edge-bad", 1);
    let name = std::mem::replace(&mut bad.name, ptr::null());
    assert_eq!(unsafe { kofi_provider_register(KOFI_1_0, bad) }, -fi::FI_EINVAL, "null name");
    bad.name = c"".as_ptr();
    assert_eq!(unsafe { kofi_provider_register(KOFI_1_0, bad) }, -fi::FI_EINVAL, "empty name");
    bad.name = name;
    for version in [fi::fi_version(1, 1), fi::fi_version(2, 0), 0] {
        assert_eq!(unsafe { kofi_provider_register(version, bad) }, -fi::FI_ENOSYS, "{version:#x}");
    }
    // The layout of another version is unknown, including the place of its name.
    bad.name = ptr::without_provenance(8);
    assert_eq!(unsafe { kofi_provider_register(fi::fi_version(2, 0), bad) }, -fi::FI_ENOSYS);
    bad.name = name;
    let fabric = bad.fabric.take();
    assert_eq!(unsafe { kofi_provider_register(KOFI_1_0, bad) }, -fi::FI_EINVAL, "no fabric");
    bad.fabric = fabric;
    let newer = last(c"edge-bad", 1);
    newer.name = ptr::without_provenance(8);
    for version in [fi::fi_version(1, 8), fi::fi_version(2, 5)] {
        newer.fi_version = version;
        assert_eq!(unsafe { kfi_provider_register(newer) }, -fi::FI_ENOSYS, "{version:#x}");
    }
    assert_eq!(kofi_provider_deregister(bad), -fi::FI_ENODATA);
    assert_eq!(with(|toy| toy.cleanups), 0, "defect 5");
    assert_eq!(open(c"edge-bad"), Err(-fi::FI_ENODEV));
}

#[test]
fn defect_1_names_are_exact() {
    let _turn = turn();
    let (a, b) = (slides(c"edge-a", 2), slides(c"edge-b", 1));
    assert_eq!(unsafe { kofi_provider_register(KOFI_1_0, a) }, 0);
    assert_eq!(unsafe { kofi_provider_register(KOFI_1_0, b) }, 0);
    assert_eq!(query(Some(c"edge-a")), Ok(vec![(c"edge-a".to_owned(), 2)]));
    assert_eq!(query(Some(c"edge-b")), Ok(vec![(c"edge-b".to_owned(), 1)]));
    for name in [c"edge-c", c"EDGE-A", c"edge-a;edge-b", c"edge"] {
        assert_eq!(query(Some(name)), Err(-fi::FI_ENODATA), "{name:?}");
        assert_eq!(open(name), Err(-fi::FI_ENODEV), "{name:?}");
    }
    assert_eq!(with(|toy| toy.service), 9300);
    assert_eq!(kofi_provider_deregister(a), 0);
    assert_eq!(open(c"edge-a"), Err(-fi::FI_ENODEV), "a provider that has left");
    assert_eq!(kofi_provider_deregister(b), 0);
}

#[test]
fn defect_2_and_6_versions_replace_and_repetitions_change_nothing() {
    let _turn = turn();
    let (old, new) = (last(c"edge-v", 1), last(c"edge-v", 2));
    assert_eq!(unsafe { kfi_provider_register(old) }, 0);
    assert_eq!(unsafe { kfi_provider_register(old) }, -libc::EEXIST);
    assert_eq!(unsafe { kfi_provider_register(new) }, 0);
    assert_eq!(with(|toy| toy.cleanups), 1, "of the older one, which nobody used");
    assert_eq!(unsafe { kfi_provider_register(old) }, -libc::EEXIST);
    assert_eq!(query(Some(c"edge-v")), Ok(vec![(c"edge-v".to_owned(), 2)]));
    assert_eq!(kfi_provider_deregister_timed(old, 0), 0);
    assert_eq!(kfi_provider_deregister_timed(new, 0), 0);
    assert_eq!(kfi_provider_deregister_timed(new, 0), -fi::FI_ENODATA);
    assert_eq!(with(|toy| toy.cleanups), 2);
}

#[test]
fn defect_3_one_error_spoils_no_list() {
    let _turn = turn();
    let good = slides(c"edge-good", 1);
    assert_eq!(unsafe { kofi_provider_register(KOFI_1_0, good) }, 0);
    let with_good = query(None).unwrap();
    with(|toy| toy.answer = -fi::FI_EIO);
    assert_eq!(query(Some(c"edge-good")), Err(-fi::FI_ENODATA));
    let without = query(None).unwrap();
    assert_eq!(without.len() + 1, with_good.len(), "scif is left: {without:?}");
    with(|toy| (toy.answer, toy.empty) = (0, true));
    assert_eq!(query(Some(c"edge-good")), Err(-fi::FI_ENODATA));
    assert_eq!(query(None), Ok(without));
    assert_eq!(kofi_provider_deregister(good), 0);
    assert_eq!(with(|toy| toy.freed), 1, "a list goes back to who made it");
}

#[test]
fn providers_change_copies_of_the_hints() {
    let _turn = turn();
    let (one, two) = (slides(c"edge-one", 1), slides(c"edge-two", 1));
    assert_eq!(unsafe { kofi_provider_register(KOFI_1_0, one) }, 0);
    assert_eq!(unsafe { kofi_provider_register(KOFI_1_0, two) }, 0);
    let hints = unsafe { kofi_abi_dupinfo(NODE, ptr::null()) };
    unsafe { (*(*hints).fabric_attr).name = libc::strdup(c"toynet".as_ptr()) };
    let (mut list, null) = (ptr::null_mut(), ptr::null());
    let code = unsafe { kofi_abi_getinfo(NODE, API, null, null, 0, hints, &raw mut list) };
    assert_eq!((code, with(|toy| toy.asked)), (0, 2));
    assert!(!unsafe { (*list).next }.is_null(), "both fit");
    assert_eq!(unsafe { CStr::from_ptr((*(*hints).fabric_attr).name) }, c"toynet");
    for infos in [hints, list] {
        unsafe { kofi_abi_freeinfo(infos) };
    }
    assert_eq!(kofi_provider_deregister(one), 0);
    assert_eq!(kofi_provider_deregister(two), 0);
}

#[test]
fn defect_4_a_provider_may_call_the_library_that_calls_it() {
    static INNER: Mutex<Option<usize>> = Mutex::new(None);
    let _turn = turn();
    let (outer, inner) = (slides(c"edge-outer", 1), slides(c"edge-inner", 1));
    *INNER.lock().unwrap() = Some(ptr::from_mut(inner).expose_provenance());
    assert_eq!(unsafe { kofi_provider_register(KOFI_1_0, outer) }, 0);
    with(|toy| {
        toy.inside = Some(|| {
            let Some(inner) = INNER.lock().unwrap().take() else {
                return;
            };
            let inner = ptr::with_exposed_provenance_mut(inner);
            assert_eq!(unsafe { kofi_provider_register(KOFI_1_0, inner) }, 0);
            assert_eq!(query(Some(c"edge-inner")).unwrap().len(), 1);
            assert_eq!(kofi_provider_deregister_timed(inner, -1), 0);
        });
    });
    assert_eq!(query(Some(c"edge-outer")).unwrap().len(), 1);
    assert_eq!(with(|toy| toy.asked), 2);
    assert_eq!(kofi_provider_deregister(outer), 0);
}

#[test]
fn defect_7_and_8_an_open_fabric_keeps_its_provider() {
    let _turn = turn();
    let provider = last(c"edge-open", 1);
    assert_eq!(unsafe { kfi_provider_register(provider) }, 0);
    let (one, two) = (open(c"edge-open").unwrap(), open(c"edge-open").unwrap());
    assert_eq!(unsafe { (*one).api_version }, API);
    assert_eq!(kfi_provider_deregister_timed(provider, 0), -fi::FI_EBUSY);
    assert_eq!(open(c"edge-open"), Err(-fi::FI_ENODEV));
    assert_eq!(unsafe { kfi_provider_register(provider) }, -fi::FI_EBUSY);
    with(|toy| toy.close_answer = -fi::FI_EBUSY);
    assert_eq!(close(one), -fi::FI_EBUSY, "the provider's own answer");
    with(|toy| toy.close_answer = 0);
    assert_eq!(close(one), 0);
    assert_eq!((with(|toy| toy.cleanups), with(|toy| toy.open)), (0, 1));
    assert_eq!(kfi_provider_deregister_timed(provider, 1), -fi::FI_EBUSY);
    assert_eq!(close(two), 0);
    assert_eq!((with(|toy| toy.cleanups), with(|toy| toy.open)), (1, 0));
    assert_eq!(kfi_provider_deregister(provider), 0);
    assert_eq!(with(|toy| toy.cleanups), 1);
}

#[test]
fn defect_8_a_slow_open_stalls_no_call() {
    let _turn = turn();
    let provider = slides(c"edge-slow", 1);
    assert_eq!(unsafe { kofi_provider_register(KOFI_1_0, provider) }, 0);
    with(|toy| {
        toy.inside = Some(|| {
            with(|toy| toy.inside = None);
            let other = std::thread::spawn(|| query(Some(c"edge-slow")));
            assert_eq!(other.join().unwrap().unwrap().len(), 1);
        });
    });
    let fabric = open(c"edge-slow").unwrap();
    assert_eq!(close(fabric), 0);
    assert_eq!(kofi_provider_deregister(provider), 0);
}

#[test]
fn a_fabric_that_fails_to_open_leaves_nothing() {
    let _turn = turn();
    let provider = slides(c"edge-fail", 1);
    assert_eq!(unsafe { kofi_provider_register(KOFI_1_0, provider) }, 0);
    with(|toy| toy.answer = -fi::FI_EACCES);
    assert_eq!(open(c"edge-fail"), Err(-fi::FI_EACCES));
    assert_eq!(kofi_provider_deregister_timed(provider, 0), 0);
    let mut fabric = ptr::null_mut();
    for attr in [
        fi::fi_fabric_attr::ZERO,
        fi::fi_fabric_attr {
            prov_name: c"edge-fail".as_ptr().cast_mut(),
            ..fi::fi_fabric_attr::ZERO
        },
    ] {
        let mut attr = attr;
        let code = unsafe { kofi_abi_fabric(1, &raw mut attr, &raw mut fabric, ptr::null_mut()) };
        assert_eq!(code, -fi::FI_EINVAL);
    }
}

#[test]
fn scif_is_there_from_the_start() {
    let _turn = turn();
    assert!(!query(Some(c"scif")).unwrap().is_empty());
    let mut list = ptr::null_mut();
    let code = unsafe {
        kofi_abi_getinfo(
            NODE,
            API,
            ptr::null(),
            ptr::null(),
            fi::FI_PROV_ATTR_ONLY,
            ptr::null(),
            &raw mut list,
        )
    };
    assert_eq!(code, 0);
    let name = unsafe { CStr::from_ptr((*(*list).fabric_attr).prov_name) };
    assert!(!name.is_empty());
    unsafe { kofi_abi_freeinfo(list) };
    let newer = kofi_abi_version() + 1;
    let code = unsafe {
        kofi_abi_getinfo(NODE, newer, ptr::null(), ptr::null(), 0, ptr::null(), &raw mut list)
    };
    assert_eq!(code, -fi::FI_ENOSYS);
}

/// Checks the copies with a value in each field that a longer layout has. `objects` checks that no
/// further byte is read.
#[test]
fn infos_of_every_layout_are_copied_at_their_size() {
    let full = unsafe { kofi_abi_dupinfo(9, ptr::null()) };
    unsafe {
        let domain = &mut *(*full).domain_attr;
        domain.cntr_cnt = 11;
        domain.tclass = 12;
        domain.max_ep_auth_key = 13;
        domain.max_group_id = 14;
        domain.max_cntr_value = 15;
        (*(*full).tx_attr).tclass = 16;
        (*(*full).ep_attr).auth_key_size = 17;
        (*(*full).fabric_attr).api_version = 18;
        domain.name = libc::strdup(c"dom".as_ptr());
        (*full).src_addr = libc::strdup(c"address".as_ptr()).cast();
        (*full).src_addrlen = 8;
    }
    for (node, kept) in [
        (0, [0, 0, 0, 0, 0, 0, 0, 0]),
        (1, [11, 0, 0, 0, 0, 0, 17, 18]),
        (2, [11, 0, 0, 0, 0, 0, 17, 18]),
        (3, [11, 12, 0, 0, 0, 16, 17, 18]),
        (7, [11, 12, 13, 0, 0, 16, 17, 18]),
        (8, [11, 12, 13, 14, 0, 16, 17, 18]),
        (9, [11, 12, 13, 14, 15, 16, 17, 18]),
    ] {
        let copy = unsafe { kofi_abi_dupinfo(node, full) };
        let domain = unsafe { *(*copy).domain_attr };
        let found = unsafe {
            [
                domain.cntr_cnt,
                domain.tclass as usize,
                domain.max_ep_auth_key,
                domain.max_group_id as usize,
                usize::try_from(domain.max_cntr_value).unwrap(),
                (*(*copy).tx_attr).tclass as usize,
                (*(*copy).ep_attr).auth_key_size,
                (*(*copy).fabric_attr).api_version as usize,
            ]
        };
        assert_eq!(found, kept, "FABRIC_1.{node}");
        assert_eq!(unsafe { CStr::from_ptr(domain.name) }, c"dom");
        assert_eq!(unsafe { CStr::from_ptr((*copy).src_addr.cast()) }, c"address");
        assert_ne!(domain.name, unsafe { (*(*full).domain_attr).name });
        unsafe { kofi_abi_freeinfo(copy) };
    }
    unsafe { kofi_abi_freeinfo(full) };
    println!("7 layouts, from {:?} to {:?}", Layout::V1_0, Layout::CURRENT);
}

#[test]
fn parameters_and_texts_are_libfabrics() {
    let (mut list, mut count) = (ptr::null_mut(), 0);
    assert_eq!(unsafe { kofi_abi_getparams(&raw mut list, &raw mut count) }, 0);
    let names: Vec<_> = (0..usize::try_from(count).unwrap())
        .map(|at| unsafe { CStr::from_ptr((*list.add(at)).name) }.to_str().unwrap().to_owned())
        .collect();
    unsafe { kofi_abi_freeparams(list) };
    for name in ["FI_PROVIDER", "FI_LOG_LEVEL", "FI_SCIF_STATS"] {
        assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
    }
    let mut value = 0;
    let code =
        unsafe { kofi_abi_param_get(ptr::null(), c"nosuch".as_ptr(), (&raw mut value).cast()) };
    assert_eq!(code, -fi::FI_ENOENT);
    assert_eq!(
        unsafe { kofi_abi_param_get(ptr::null(), ptr::null(), ptr::null_mut()) },
        -fi::FI_EINVAL
    );
    let mut buffer = [1 as c_char; 6];
    let data = fi::FI_EP_RDM;
    let text = unsafe {
        kofi_abi_tostr_r(
            buffer.as_mut_ptr(),
            buffer.len(),
            (&raw const data).cast(),
            fi::FI_TYPE_EP_TYPE,
        )
    };
    assert_eq!(unsafe { CStr::from_ptr(text) }, c"FI_EP");
}

fn open_by_name(name: &CStr, version: u32, flags: u64) -> Result<*mut fi::fid, c_int> {
    let mut fid = ptr::null_mut();
    let none = ptr::null_mut();
    match unsafe { kofi_abi_open(version, name.as_ptr(), none, 0, flags, &raw mut fid, none) } {
        0 => Ok(fid),
        code => Err(code),
    }
}

static LOGGED: Mutex<Vec<CString>> = Mutex::new(Vec::new());

unsafe extern "C" fn log_enabled_always(
    _prov: *const fi::fi_provider,
    _level: u32,
    _subsys: u32,
    _flags: u64,
) -> c_int {
    1
}

unsafe extern "C" fn keep_log_line(
    prov: *const fi::fi_provider,
    _level: u32,
    _subsys: u32,
    _func: *const c_char,
    _line: c_int,
    text: *const c_char,
) {
    let (name, text) = unsafe { (CStr::from_ptr((*prov).name), CStr::from_ptr(text)) };
    let line = CString::new([name.to_bytes(), b": ", text.to_bytes()].concat());
    let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
    logged.extend(line);
}

#[test]
fn a_program_may_bring_its_log() {
    let _turn = turn();
    assert_eq!(open_by_name(c"mr_cache", API, 0), Err(-fi::FI_ENOSYS));
    assert_eq!(open_by_name(c"logging", API, 1), Err(-fi::FI_EBADFLAGS));
    assert_eq!(open_by_name(c"logging", fi::fi_version(1, 12), 0), Err(-fi::FI_EINVAL));
    let log = open_by_name(c"logging", API, 0).unwrap();
    let early = open_by_name(c"logging", API, 0).unwrap();
    let mut ops = kofi_c::open::fi_ops_log {
        size: size_of::<kofi_c::open::fi_ops_log>(),
        enabled: Some(log_enabled_always),
        ready: None,
        log: Some(keep_log_line),
    };
    let mut own = kofi_c::open::fid_logging {
        fid: fi::fid { fclass: fi::FI_CLASS_LOG, context: ptr::null_mut(), ops: ptr::null() },
        ops: &raw mut ops,
    };
    let own = (&raw mut own).cast::<fi::fid>();
    assert_eq!(unsafe { ((*(*log).ops).bind)(log, own, 1) }, -fi::FI_EINVAL);
    assert_eq!(unsafe { ((*(*log).ops).bind)(log, own, 0) }, 0);
    assert_eq!(unsafe { ((*(*log).ops).close)(log) }, 0);
    assert_eq!(open_by_name(c"logging", API, 0), Err(-fi::FI_EALREADY));
    assert_eq!(unsafe { ((*(*early).ops).bind)(early, own, 0) }, -fi::FI_EALREADY);
    assert_eq!(unsafe { ((*(*early).ops).close)(early) }, 0);
    unsafe { kofi_abi_log(ptr::null(), 0, 0, c"here".as_ptr(), 1, c"heard".as_ptr()) };
    // The program's function decides whether a frequent message is logged, the library decides how
    // often.
    let mut showtime = 0;
    let mut ready =
        || unsafe { kofi_abi_log_ready(ptr::null(), fi::FI_LOG_DEBUG, 0, &raw mut showtime) };
    assert_eq!((ready(), ready()), (1, 0));
    // Messages of the library itself reach the program's log as well.
    let (mut list, null) = (ptr::null_mut(), ptr::null());
    let newer = kofi_abi_version() + 1;
    let code = unsafe { kofi_abi_getinfo(NODE, newer, null, null, 0, ptr::null(), &raw mut list) };
    assert_eq!(code, -fi::FI_ENOSYS);
    let logged = LOGGED.lock().unwrap().clone();
    assert!(logged.iter().any(|text| &**text == c"core: heard"), "{logged:?}");
    let librarys = |text: &CString| {
        let text = text.to_bytes();
        text.starts_with(b"core: fi_getinfo for interface version") && text.ends_with(b"\n")
    };
    assert!(logged.iter().any(librarys), "{logged:?}");
    assert_eq!(unsafe { ((*(*own).ops).close)(own) }, 0);
    let log = open_by_name(c"logging", API, 0).unwrap();
    assert_eq!(unsafe { ((*(*log).ops).close)(log) }, 0);
}

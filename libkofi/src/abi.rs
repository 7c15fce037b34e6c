// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Implementations of the `fi_*` symbols: `link/versions.c` gives each symbol its versions and
//! calls one of these functions.
//!
//! Except `kofi_provider_adopt`, the functions are no interface for programs. The prototypes are
//! from `rdma/fabric.h` and related headers, with the version node as first argument where the
//! layout depends on it.
#![expect(unsafe_code, reason = "pointers from C")]

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use libfabric_sys::{FI_EINVAL, fi_fabric_attr, fi_info, fi_param, fi_provider, fid, fid_fabric};

use crate::ffi::{guard, guard_or, provider_name, string};
use crate::getinfo::Arguments;
use crate::info::{self, Layout};
use crate::startup::init;
use crate::version::VERSION;
use crate::{dl_provider, errors, fabric, getinfo, log, open, param, tostr};

/// `fi_getinfo`
///
/// # Safety
/// The contract of fi_getinfo(3); infos have the layout of the version node `FABRIC_1.<node>`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kofi_abi_getinfo(
    at: u32,
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int {
    let arguments = Arguments { version, node, service, flags, hints, info };
    guard(|| {
        init();
        // SAFETY: the caller's contract.
        unsafe { getinfo::getinfo(&arguments, &Layout::of_node(at)) }
    })
}

/// `fi_dupinfo`
///
/// # Safety
/// `info` is null or an info of the layout of that version node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kofi_abi_dupinfo(at: u32, info: *const fi_info) -> *mut fi_info {
    // SAFETY: the caller's contract.
    guard_or(ptr::null_mut(), || unsafe { info::dup(info, &Layout::of_node(at)) })
}

/// `fi_freeinfo`
///
/// # Safety
/// `info` is null or a list of infos that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kofi_abi_freeinfo(info: *mut fi_info) {
    // SAFETY: the caller's contract.
    guard_or((), || unsafe { info::free(info) });
}

/// `fi_fabric`
///
/// # Safety
/// The contract of fi_fabric(3), with an attribute of the layout of that version node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kofi_abi_fabric(
    at: u32,
    attr: *mut fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        init();
        // SAFETY: the caller's contract.
        unsafe { fabric::open(attr, &Layout::of_node(at), fabric, context) }
    })
}

/// `fi_fabric2`
///
/// # Safety
/// The contract of fi_fabric(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kofi_abi_fabric2(
    info: *mut fi_info,
    fabric: *mut *mut fid_fabric,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        init();
        // SAFETY: null or an info, by the caller's contract.
        let info = unsafe { info.as_ref() }.filter(|_| flags == 0).ok_or(FI_EINVAL)?;
        // SAFETY: the caller's contract.
        unsafe { fabric::open(info.fabric_attr, &Layout::CURRENT, fabric, context) }
    })
}

/// `fi_version`
#[unsafe(no_mangle)]
pub extern "C" fn kofi_abi_version() -> u32 {
    VERSION
}

/// `fi_open`
///
/// # Safety
/// `name` is null or a C string, `fid` null or space for an object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kofi_abi_open(
    version: u32,
    name: *const c_char,
    _attr: *mut c_void,
    attr_len: usize,
    flags: u64,
    fid: *mut *mut fid,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let name = unsafe { string(name) };
        // SAFETY: the caller's contract.
        unsafe { open::open(version, name, attr_len, flags, fid, context) }
    })
}

/// `fi_strerror`
#[unsafe(no_mangle)]
pub extern "C" fn kofi_abi_strerror(errnum: c_int) -> *const c_char {
    errors::strerror(errnum)
}

/// `fi_tostr_r`
///
/// # Safety
/// `data` is null or points to a value of type `kind`. `buf` is null or has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kofi_abi_tostr_r(
    buf: *mut c_char,
    len: usize,
    data: *const c_void,
    kind: u32,
) -> *mut c_char {
    guard_or(ptr::null_mut(), || {
        if buf.is_null() || data.is_null() || len == 0 {
            return ptr::null_mut();
        }
        // SAFETY: the caller's contract.
        let text = unsafe { tostr::tostr(data, kind) };
        // SAFETY: the buffer is not empty; this terminates the text.
        unsafe { buf.write(0) };
        // SAFETY: the buffer has `len` bytes and a terminating zero.
        unsafe { tostr::append(buf, len, &text) };
        buf
    })
}

/// `fi_tostr`: the text is valid until this thread's next call, and its buffer until the thread
/// ends.
///
/// # Safety
/// `data` is null or points to a value of type `kind`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kofi_abi_tostr(data: *const c_void, kind: u32) -> *mut c_char {
    /// Size in bytes of the buffer, as in libfabric.
    const LEN: usize = 8192;
    thread_local! {
        // One buffer for all calls of a thread. A program that prints two texts at once prints the
        // second one twice, but reads no freed memory.
        static TEXT: RefCell<Box<[c_char; LEN]>> = RefCell::new(Box::new([0; LEN]));
    }
    guard_or(ptr::null_mut(), || {
        let text = TEXT.with_borrow_mut(|text| text.as_mut_ptr());
        // SAFETY: the caller's contract; the buffer is this thread's and has `LEN` bytes.
        unsafe { kofi_abi_tostr_r(text, LEN, data, kind) }
    })
}

/// `fi_log_enabled`
///
/// # Safety
/// `prov` is null or a provider's description.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kofi_abi_log_enabled(
    prov: *const fi_provider,
    level: u32,
    subsys: u32,
) -> c_int {
    // SAFETY: the caller's contract.
    guard_or(0, || c_int::from(unsafe { log::enabled(prov, level, subsys) }))
}

/// `fi_log_ready`
///
/// # Safety
/// `prov` is null or a provider's description, `showtime` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kofi_abi_log_ready(
    prov: *const fi_provider,
    level: u32,
    subsys: u32,
    showtime: *mut u64,
) -> c_int {
    guard_or(0, || {
        if let Some(ready) = open::imported().and_then(|ops| ops.ready) {
            // SAFETY: the program's function, by its prototype.
            return unsafe { ready(open::speaker(prov), level, subsys, 0, showtime) };
        }
        // SAFETY: the caller's contract.
        let enabled = unsafe { log::enabled(prov, level, subsys) };
        // SAFETY: the caller's contract.
        let showtime = unsafe { showtime.as_mut() };
        let ready = enabled && showtime.is_none_or(log::due);
        c_int::from(ready)
    })
}

/// `fi_log`, formatted.
///
/// # Safety
/// `prov` is null or a provider's description. `func` and `text` are null or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kofi_abi_log(
    prov: *const fi_provider,
    level: u32,
    subsys: u32,
    func: *const c_char,
    line: c_int,
    text: *const c_char,
) {
    // SAFETY: the caller's contract.
    guard_or((), || unsafe {
        log::write(prov, level, subsys, func, line, text);
    });
}

/// `fi_param_define`, formatted.
///
/// # Safety
/// `prov` is null or a provider's description. `parameter` and `help` are null or C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kofi_abi_param_define(
    prov: *const fi_provider,
    parameter: *const c_char,
    kind: u32,
    help: *const c_char,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let owner = unsafe { provider_name(prov) };
        // SAFETY: the caller's contract.
        let parameter = unsafe { string(parameter) }.ok_or(FI_EINVAL)?;
        // SAFETY: the caller's contract.
        let help = unsafe { string(help) }.ok_or(FI_EINVAL)?;
        param::define(prov.addr(), owner, parameter, kind, help)
    })
}

/// `fi_param_get`
///
/// # Safety
/// `parameter` is null or a C string. `value` is null or has space for a value of the parameter's
/// type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kofi_abi_param_get(
    prov: *const fi_provider,
    parameter: *const c_char,
    value: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let parameter = unsafe { string(parameter) }.ok_or(FI_EINVAL)?;
        if value.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: the caller's contract.
        unsafe { param::get(prov.addr(), parameter, value) }
    })
}

/// `fi_getparams`
///
/// # Safety
/// `params` and `count` are null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kofi_abi_getparams(
    params: *mut *mut fi_param,
    count: *mut c_int,
) -> c_int {
    guard(|| {
        init();
        if params.is_null() || count.is_null() {
            return Err(FI_EINVAL);
        }
        let (list, number) = param::list()?;
        // SAFETY: not null.
        unsafe { params.write(list) };
        // SAFETY: not null.
        unsafe { count.write(number) };
        Ok(())
    })
}

/// `fi_freeparams`
///
/// # Safety
/// `params` is null or came from `fi_getparams`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kofi_abi_freeparams(params: *mut fi_param) {
    // SAFETY: the caller's contract.
    guard_or((), || unsafe { param::free_list(params) });
}

/// `int kofi_provider_adopt(const char *file)`
///
/// # Safety
/// `file` is null or a C string; the initialisers of the file may run now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kofi_provider_adopt(file: *const c_char) -> c_int {
    guard(|| {
        // SAFETY: null or a C string, by the caller's contract.
        let file = unsafe { string(file) }.ok_or(FI_EINVAL)?;
        init();
        // SAFETY: the caller's contract.
        unsafe { dl_provider::file(file) }
    })
}

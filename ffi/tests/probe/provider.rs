// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Provider without infos, for `tests/host.rs`: it finds its host when it is loaded and reports it
//! in the host's log.
#![expect(unsafe_code, reason = "is a libfabric provider")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use libfabric_sys::{
    FI_EALREADY, FI_ENODATA, FI_LOG_CORE, FI_LOG_WARN, FI_PARAM_BOOL, FI_PARAM_INT,
    FI_PARAM_SIZE_T, FI_PARAM_STRING, Host, Provider, fi_fabric_attr, fi_info, fi_param_type,
    fi_provider, fi_version, fid_fabric, ofi_prov_context,
};

static PROVIDER: Provider = Provider::new(
    c"probe",
    (fi_version(0, 1), fi_version(1, 17)),
    ofi_prov_context::NO_LAYERING,
    getinfo,
    fabric,
    None,
);

unsafe extern "C" fn getinfo(
    _version: u32,
    _node: *const c_char,
    _service: *const c_char,
    _flags: u64,
    _hints: *const fi_info,
    _info: *mut *mut fi_info,
) -> c_int {
    -FI_ENODATA
}

unsafe extern "C" fn fabric(
    _attr: *mut fi_fabric_attr,
    _fabric: *mut *mut fid_fabric,
    _context: *mut c_void,
) -> c_int {
    -FI_ENODATA
}

fn print_line(host: &Host, line: &str) {
    let text = CString::new(line).unwrap_or_default();
    host.log(&PROVIDER, FI_LOG_WARN, FI_LOG_CORE, (c"probe", line!()), &text);
}

/// Defines a parameter and logs its value.
fn param(host: &Host, name: &CStr, kind: fi_param_type) {
    match host.param_define(&PROVIDER, name, kind, c"100% of the probe's help") {
        Ok(param) => print_line(host, &format!("param {name:?} {:?}", host.param_get(&param))),
        Err(e) => print_line(host, &format!("param {name:?} undefined {e}")),
    }
}

/// `struct fi_provider *fi_prov_ini(void)`
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    // SAFETY: the host is used in this call only.
    let on_stack = unsafe { Host::from_stack() };
    // SAFETY: as above.
    let mapped = unsafe { Host::from_mapped() };
    let host = on_stack.unwrap_or_default();
    print_line(&host, &format!("stack {:?} version {:#x}", host.path(), host.version()));
    print_line(&host, &format!("mapped {:?}", mapped.unwrap_or_default().path()));
    print_line(
        &host,
        &format!("100%s enabled {}", host.log_enabled(&PROVIDER, FI_LOG_WARN, FI_LOG_CORE)),
    );
    let (mut showtime, mut ready) = (0, [false; 2]);
    for r in &mut ready {
        *r = host.log_ready(&PROVIDER, FI_LOG_WARN, FI_LOG_CORE, &mut showtime);
    }
    print_line(&host, &format!("ready {ready:?}"));
    param(&host, c"text", FI_PARAM_STRING);
    param(&host, c"number", FI_PARAM_INT);
    param(&host, c"size", FI_PARAM_SIZE_T);
    param(&host, c"switch", FI_PARAM_BOOL);
    param(&host, c"nonsense", FI_PARAM_BOOL);
    param(&host, c"unset", FI_PARAM_INT);
    let again = host.param_define(&PROVIDER, c"number", FI_PARAM_STRING, c"again").err();
    print_line(&host, &format!("again {}", again == Some(FI_EALREADY)));
    // SAFETY: this is `fi_prov_ini`.
    unsafe { PROVIDER.set_fi_version(host.version()) };
    PROVIDER.as_ptr()
}

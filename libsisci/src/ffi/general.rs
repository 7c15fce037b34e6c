// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Library, descriptors, nodes and names of errors.

#![expect(unsafe_code, reason = "functions a C program calls by name, with pointers of its own")]

use std::ffi::{CStr, c_char, c_void};

use crate::desc::Desc;
use crate::error::{Outcome, SciError, fail};
use crate::ffi::entry::{Handle, OwnHandle, check_flags, guard, need, not_supported, object, put};
use crate::flags;
use crate::node::NodeId;
use crate::objects;

/// Number of node ids that `dis_nodeId_list_t` holds, with the terminating 0.
const NODE_LIST: usize = 8;
/// `dis_virt_adapter_t`: an adapter with its own node id.
const PHYSICAL_ADAPTER: u32 = 0;

/// `void SCIInitialize(unsigned flags, sci_error_t *error)`
// SAFETY: sisci_api.h declares this name with this signature.
#[unsafe(no_mangle)]
extern "C" fn SCIInitialize(flags: u32, error: *mut u32) {
    guard(error, (), || {
        check_flags(flags, 0)?;
        objects::initialize()
    });
}

/// `void SCITerminate(void)`
// SAFETY: as `SCIInitialize`.
#[unsafe(no_mangle)]
extern "C" fn SCITerminate() {
    guard(std::ptr::null_mut(), (), || {
        objects::terminate();
        Ok(())
    });
}

/// `void SCIOpen(sci_desc_t *sd, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCIInitialize`.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCIOpen(sd: *mut Handle, flags: u32, error: *mut u32) {
    guard(error, (), || {
        let context = objects::context()?;
        check_flags(flags, flags::THREAD_SAFE)?;
        need(sd)?;
        // SAFETY: by the caller's contract space for a handle.
        unsafe { OwnHandle::default().publish(&Desc::new(context), sd, || Ok(())) }
    });
}

/// `void SCIClose(sci_desc_t sd, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCIInitialize`.
#[unsafe(no_mangle)]
extern "C" fn SCIClose(sd: Handle, flags: u32, error: *mut u32) {
    guard(error, (), || {
        object::<Desc>(sd)?;
        check_flags(flags, 0)?;
        objects::take_out(sd.addr(), Desc::check_unused).map(drop)
    });
}

/// `int SCIProbeNode(sci_desc_t sd, unsigned adapter, unsigned node, unsigned flags, sci_error_t
/// *error)`
// SAFETY: as `SCIInitialize`.
#[unsafe(no_mangle)]
extern "C" fn SCIProbeNode(
    sd: Handle,
    adapter: u32,
    node: u32,
    flags: u32,
    error: *mut u32,
) -> i32 {
    guard(error, 0, || {
        let desc = object::<Desc>(sd)?;
        check_flags(flags, 0)?;
        desc.context.check_adapter(adapter)?;
        let node = NodeId::checked(node)?;
        if desc.context.is_online(node) { Ok(1) } else { fail(SciError::NoSuchNodeid) }
    })
}

/// `void SCIGetLocalNodeId(unsigned adapter, unsigned *node, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCIInitialize`.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCIGetLocalNodeId(adapter: u32, node: *mut u32, flags: u32, error: *mut u32) {
    guard(error, (), || {
        let context = objects::context()?;
        check_flags(flags, 0)?;
        context.check_adapter(adapter)?;
        // SAFETY: by the caller's contract space for a number.
        unsafe { put(node, context.settings.node.number()) }
    });
}

/// Returns the node id in the name of an adapter: `nodeN` or `nodeN_aM`.
fn node_of_name(name: &str, adapters: u32) -> Outcome<NodeId> {
    let (node, adapter) = name.split_once("_a").unwrap_or((name, "0"));
    let node = node.strip_prefix("node").and_then(|number| number.parse().ok());
    let exists = adapter.parse().is_ok_and(|adapter: u32| adapter < adapters);
    let node = node.filter(|_| exists).and_then(NodeId::new);
    node.ok_or(SciError::IllegalParameter.into())
}

/// `void SCIGetNodeIdByAdapterName(char *name, dis_nodeId_list_t *list, dis_virt_adapter_t *type,
/// unsigned flags, sci_error_t *error)`
// SAFETY: as `SCIInitialize`.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCIGetNodeIdByAdapterName(
    name: *const c_char,
    list: *mut [u32; NODE_LIST],
    kind: *mut u32,
    flags: u32,
    error: *mut u32,
) {
    guard(error, (), || {
        let context = objects::context()?;
        check_flags(flags, 0)?;
        need(name)?;
        // SAFETY: not null; by the caller's contract a string.
        let name = unsafe { CStr::from_ptr(name) }.to_str();
        let name = name.map_err(|_| SciError::IllegalParameter)?;
        let node = node_of_name(name, context.settings.adapters)?;
        let mut found = [0; NODE_LIST];
        if let Some(first) = found.first_mut() {
            *first = node.number();
        }
        // SAFETY: by the caller's contract space for a list.
        unsafe { put(list, found) }?;
        // SAFETY: by the caller's contract space for a type.
        unsafe { put(kind, PHYSICAL_ADAPTER) }
    });
}

/// `void SCIGetNodeInfoByAdapterName(char *name, unsigned *adapter, dis_nodeId_list_t *list,
/// dis_virt_adapter_t *type, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCIInitialize`.
#[unsafe(no_mangle)]
extern "C" fn SCIGetNodeInfoByAdapterName(
    _name: *const c_char,
    _adapter: *mut u32,
    _list: *mut c_void,
    _kind: *mut u32,
    _flags: u32,
    error: *mut u32,
) {
    guard(error, (), || not_supported("SCIGetNodeInfoByAdapterName"));
}

/// `const char *SCIGetErrorString(sci_error_t code)`
// SAFETY: as `SCIInitialize`.
#[unsafe(no_mangle)]
extern "C" fn SCIGetErrorString(code: u32) -> *const c_char {
    SciError::text(code).as_ptr()
}

/// `const char *SCIGetAdapterTypeString(unsigned type)`
// SAFETY: as `SCIInitialize`.
#[unsafe(no_mangle)]
extern "C" fn SCIGetAdapterTypeString(_kind: u32) -> *const c_char {
    c"SOFT".as_ptr()
}

/// `const char *SCIGetAdapterFamilyString(unsigned family)`
// SAFETY: as `SCIInitialize`.
#[unsafe(no_mangle)]
extern "C" fn SCIGetAdapterFamilyString(_family: u32) -> *const c_char {
    c"SOFT".as_ptr()
}

/// `unsigned SCIGetCSRRegister(sci_desc_t sd, unsigned adapter, unsigned node, unsigned offset,
/// unsigned flags, sci_error_t *error)`
// SAFETY: as `SCIInitialize`.
#[unsafe(no_mangle)]
extern "C" fn SCIGetCSRRegister(
    _sd: Handle,
    _adapter: u32,
    _node: u32,
    _offset: u32,
    _flags: u32,
    error: *mut u32,
) -> u32 {
    guard(error, 0, || not_supported("SCIGetCSRRegister"))
}

/// `void SCISetCSRRegister(sci_desc_t sd, unsigned adapter, unsigned node, unsigned offset,
/// unsigned value, unsigned flags, sci_error_t *error)`
// SAFETY: as `SCIInitialize`.
#[unsafe(no_mangle)]
extern "C" fn SCISetCSRRegister(
    _sd: Handle,
    _adapter: u32,
    _node: u32,
    _offset: u32,
    _value: u32,
    _flags: u32,
    error: *mut u32,
) {
    guard(error, (), || not_supported("SCISetCSRRegister"));
}

/// `unsigned SCIGetLocalCSR(sci_desc_t sd, unsigned adapter, unsigned offset, unsigned flags,
/// sci_error_t *error)`
// SAFETY: as `SCIInitialize`.
#[unsafe(no_mangle)]
extern "C" fn SCIGetLocalCSR(
    _sd: Handle,
    _adapter: u32,
    _offset: u32,
    _flags: u32,
    error: *mut u32,
) -> u32 {
    guard(error, 0, || not_supported("SCIGetLocalCSR"))
}

/// `void SCISetLocalCSR(sci_desc_t sd, unsigned adapter, unsigned offset, unsigned value, unsigned
/// flags, sci_error_t *error)`
// SAFETY: as `SCIInitialize`.
#[unsafe(no_mangle)]
extern "C" fn SCISetLocalCSR(
    _sd: Handle,
    _adapter: u32,
    _offset: u32,
    _value: u32,
    _flags: u32,
    error: *mut u32,
) {
    guard(error, (), || not_supported("SCISetLocalCSR"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_adapters_name_nodes() {
        for (name, node) in [("node8", Some(8)), ("node8_a1", Some(8)), ("node8_a2", None)] {
            let found = node_of_name(name, 2).ok().map(NodeId::number);
            assert_eq!(found, node, "{name}");
        }
        for bad in ["", "8", "node6", "node252", "node8_a", "node8_ax"] {
            assert!(node_of_name(bad, 2).is_err(), "{bad}");
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Infos in C's heap: creation, copy and release, in all layouts that old programs may use.
//!
//! The parts of an info grew: `struct fi_info` itself by the NIC, the domain's attributes seven
//! times. The version node of the called function determines a program's layout. A program may read
//! any info of this library in its layout, since fields were only appended. From an info of the
//! program, no more bytes may be read than its layout has. Infos of this library are larger than
//! any layout and zero where no field was copied.
//!
//! Mirrors fi_getinfo(3); the history is that of `rdma/fabric.h`.
#![expect(unsafe_code, reason = "C structures of several sizes")]

use std::ffi::c_void;
use std::mem::{offset_of, size_of};
use std::ptr;

use libfabric_sys::{
    FI_DUP, FI_ENOMEM, FI_ENOSYS, fi_domain_attr, fi_ep_attr, fi_fabric_attr, fi_info, fi_rx_attr,
    fi_tx_attr, fid, fid_nic,
};

use crate::ffi::{Errno, release};
use crate::heap::{MIN_PART_SIZE, attribute, bytes, copy, empty, text, there};
use crate::nic;
use crate::ops::OpsTable;

/// Size in bytes of each part in a program's layout.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    info: usize,
    tx: usize,
    ep: usize,
    domain: usize,
    fabric: usize,
}

impl Layout {
    /// Layout of `FABRIC_1.9`, libfabric 2.5: all fields known to this library.
    pub const CURRENT: Layout = Layout {
        info: size_of::<fi_info>(),
        tx: size_of::<fi_tx_attr>(),
        ep: size_of::<fi_ep_attr>(),
        domain: size_of::<fi_domain_attr>(),
        fabric: size_of::<fi_fabric_attr>(),
    };
    /// Layout of `FABRIC_1.8`, libfabric 2.0: no limits of counters.
    pub const V1_8: Layout =
        Layout { domain: offset_of!(fi_domain_attr, max_cntr_value), ..Self::CURRENT };
    /// Layout of `FABRIC_1.7`, libfabric 1.20: no groups.
    pub const V1_7: Layout =
        Layout { domain: offset_of!(fi_domain_attr, max_group_id), ..Self::V1_8 };
    /// Layout of `FABRIC_1.3`, libfabric 1.9: no endpoint keys.
    pub const V1_3: Layout =
        Layout { domain: offset_of!(fi_domain_attr, max_ep_auth_key), ..Self::V1_7 };
    /// Layout of `FABRIC_1.2`, libfabric 1.7: no traffic classes.
    pub const V1_2: Layout = Layout {
        tx: offset_of!(fi_tx_attr, tclass),
        domain: offset_of!(fi_domain_attr, tclass),
        ..Self::V1_3
    };
    /// Layout of `FABRIC_1.1`, libfabric 1.5: no NIC.
    pub const V1_1: Layout = Layout { info: offset_of!(fi_info, nic), ..Self::V1_2 };
    /// Layout of `FABRIC_1.0`, libfabric 1.0: no keys for authorization, no counts of counters and
    /// regions, no version.
    pub const V1_0: Layout = Layout {
        ep: offset_of!(fi_ep_attr, auth_key_size),
        domain: offset_of!(fi_domain_attr, cntr_cnt),
        fabric: offset_of!(fi_fabric_attr, api_version),
        ..Self::V1_1
    };

    /// Returns the layout of a version node, by its minor number.
    pub(crate) fn of_node(minor: u32) -> Layout {
        match minor {
            0 => Self::V1_0,
            1 => Self::V1_1,
            2 => Self::V1_2,
            3..=6 => Self::V1_3,
            7 => Self::V1_7,
            8 => Self::V1_8,
            _ => Self::CURRENT,
        }
    }

    /// Returns the layout of a provider that claims to implement this interface.
    pub(crate) fn of_interface(version: u32) -> Layout {
        use libfabric_sys::fi_version;
        let since = [
            (fi_version(2, 5), Self::CURRENT),
            (fi_version(2, 0), Self::V1_8),
            (fi_version(1, 20), Self::V1_7),
            (fi_version(1, 9), Self::V1_3),
            (fi_version(1, 7), Self::V1_2),
            (fi_version(1, 5), Self::V1_1),
        ];
        let known = since.into_iter().find(|(first, _)| version >= *first);
        known.map_or(Self::V1_0, |(_, layout)| layout)
    }

    /// Returns the size in bytes of `struct fi_fabric_attr`.
    pub(crate) fn fabric_len(&self) -> usize {
        self.fabric
    }
}

/// Returns an info without values and with all attributes; null without memory.
pub(crate) fn alloc() -> *mut fi_info {
    let new = empty::<fi_info>();
    // SAFETY: null, or zeroed memory, which is a value of the structure.
    unsafe { complete(new) }
}

/// Adds the missing attributes to an info. Without memory it is freed, and null is returned.
///
/// # Safety
/// `new` is null or an info of this library, in no list.
unsafe fn complete(new: *mut fi_info) -> *mut fi_info {
    /// Allocates a missing attribute. Returns whether it exists then.
    fn there_is<T>(attr: &mut *mut T) -> bool {
        if attr.is_null() {
            *attr = empty();
        }
        !attr.is_null()
    }
    // SAFETY: null or an info, by the caller's contract.
    let Some(info) = (unsafe { new.as_mut() }) else {
        return new;
    };
    let whole = there_is(&mut info.tx_attr)
        && there_is(&mut info.rx_attr)
        && there_is(&mut info.ep_attr)
        && there_is(&mut info.domain_attr)
        && there_is(&mut info.fabric_attr);
    if whole {
        return new;
    }
    // SAFETY: an info of this library, by the caller's contract.
    unsafe { free(new) };
    ptr::null_mut()
}

/// Returns a copy of one info, without the infos that follow it in a list; for null, an empty one.
/// Null without memory.
///
/// # Safety
/// `info` is null or an info of that layout that stays unchanged during the call.
pub(crate) unsafe fn dup(info: *const fi_info, layout: &Layout) -> *mut fi_info {
    // SAFETY: the caller's contract.
    unsafe { dup_with(info, layout, nic_by_itself) }
}

/// Returns a copy as by [`dup`], but independent of the provider that made the info, which may be
/// unloaded. The copy has all attributes, since programs and libfabric do not check that.
///
/// # Safety
/// The contract of [`dup`].
pub(crate) unsafe fn dup_whole(info: *const fi_info, layout: &Layout) -> *mut fi_info {
    // SAFETY: the caller's contract.
    let copy = unsafe { dup_with(info, layout, nic::copy) };
    // SAFETY: null, or made by the line above.
    unsafe { complete(copy) }
}

/// # Safety
/// The contract of [`dup`]; `nic` copies a NIC, or null.
unsafe fn dup_with(
    info: *const fi_info,
    layout: &Layout,
    nic: unsafe fn(*const fid_nic) -> Result<*mut fid_nic, Errno>,
) -> *mut fi_info {
    if info.is_null() {
        return alloc();
    }
    // SAFETY: the info has this length by the caller's contract.
    let new = unsafe { copy(info, layout.info) };
    // SAFETY: null, or a zeroed structure with the copied bytes.
    let Some(to) = (unsafe { new.as_mut() }) else {
        return new;
    };
    // The fields of the program's info; `to` owns none of its pointers yet.
    let from = *to;
    to.next = ptr::null_mut();
    to.src_addr = ptr::null_mut();
    to.dest_addr = ptr::null_mut();
    to.tx_attr = ptr::null_mut();
    to.rx_attr = ptr::null_mut();
    to.ep_attr = ptr::null_mut();
    to.domain_attr = ptr::null_mut();
    to.fabric_attr = ptr::null_mut();
    to.nic = ptr::null_mut();
    // SAFETY: `from` holds the pointers of an info of that layout, by the caller's contract.
    let filled = unsafe { fill(to, &from, layout) };
    // SAFETY: null or a NIC; with a layout that has none the field was not copied and is null.
    let copied = filled.and_then(|()| unsafe { nic(from.nic) });
    if let Ok(copied) = copied {
        to.nic = copied;
        return new;
    }
    // SAFETY: `to` contains only pointers to copies.
    unsafe { free(new) };
    ptr::null_mut()
}

/// Copies the objects to which an info points, except the NIC.
///
/// # Errors
/// `FI_ENOMEM`; `to` then holds the copies made before.
///
/// # Safety
/// The pointers in `from` are null or the pointers of an info of that layout.
unsafe fn fill(to: &mut fi_info, from: &fi_info, layout: &Layout) -> Result<(), Errno> {
    // SAFETY: null or an address of that length.
    to.src_addr = there(from.src_addr, unsafe { bytes(from.src_addr, from.src_addrlen) })?;
    // SAFETY: null or an address of that length.
    to.dest_addr = there(from.dest_addr, unsafe { bytes(from.dest_addr, from.dest_addrlen) })?;
    // SAFETY: null or an attribute of that layout.
    to.tx_attr = unsafe { attribute(from.tx_attr, layout.tx) }?;
    // SAFETY: null or an attribute, which never changed.
    to.rx_attr = unsafe { attribute(from.rx_attr, size_of::<fi_rx_attr>()) }?;
    // SAFETY: null or an attribute of that layout.
    to.ep_attr = unsafe { attribute(from.ep_attr, layout.ep) }?;
    // SAFETY: null, or made by the line above.
    if let Some(ep) = unsafe { to.ep_attr.as_mut() } {
        let key = std::mem::replace(&mut ep.auth_key, ptr::null_mut());
        // SAFETY: null or a key of that length.
        ep.auth_key = there(key, unsafe { bytes(key.cast(), ep.auth_key_size) }.cast())?;
    }
    // SAFETY: null or an attribute of that layout.
    to.domain_attr = unsafe { attribute(from.domain_attr, layout.domain) }?;
    // SAFETY: null, or made by the line above.
    if let Some(domain) = unsafe { to.domain_attr.as_mut() } {
        let name = std::mem::replace(&mut domain.name, ptr::null_mut());
        let key = std::mem::replace(&mut domain.auth_key, ptr::null_mut());
        // SAFETY: null or a C string.
        domain.name = unsafe { text(name) }?;
        // SAFETY: null or a key of that length.
        domain.auth_key = there(key, unsafe { bytes(key.cast(), domain.auth_key_size) }.cast())?;
    }
    // SAFETY: null or an attribute of that layout.
    to.fabric_attr = unsafe { attribute(from.fabric_attr, layout.fabric) }?;
    // SAFETY: null, or made by the line above.
    if let Some(fabric) = unsafe { to.fabric_attr.as_mut() } {
        let name = std::mem::replace(&mut fabric.name, ptr::null_mut());
        let prov_name = std::mem::replace(&mut fabric.prov_name, ptr::null_mut());
        // SAFETY: null or a C string.
        fabric.name = unsafe { text(name) }?;
        // SAFETY: null or a C string.
        fabric.prov_name = unsafe { text(prov_name) }?;
    }
    Ok(())
}

/// Returns the copy that a NIC makes of itself; a NIC without that function is omitted.
///
/// # Safety
/// `from` is null or a NIC.
unsafe fn nic_by_itself(from: *const fid_nic) -> Result<*mut fid_nic, Errno> {
    // SAFETY: null or a NIC, which begins with a `struct fid`.
    let ops = unsafe { OpsTable::of_object(from.cast()) };
    let Some(control) = ops.and_then(|ops| ops.control) else {
        return Ok(ptr::null_mut());
    };
    let mut copied = ptr::null_mut::<fid_nic>();
    // SAFETY: the NIC's own function; it writes the address of a copy.
    let code = unsafe { control(from.cast_mut().cast::<fid>(), FI_DUP, (&raw mut copied).cast()) };
    match code {
        0 => Ok(copied),
        code if code == -FI_ENOSYS => Ok(ptr::null_mut()),
        code => Err(code.saturating_abs()),
    }
}

/// `void fi_freeinfo(struct fi_info *info)`: frees a list.
///
/// # Safety
/// `info` is null or a list of infos in C's heap that is not used any more.
pub(crate) unsafe fn free(info: *mut fi_info) {
    // SAFETY: the caller's contract.
    unsafe { free_of(info, &Layout::CURRENT) };
}

/// Frees a list that this library did not make.
///
/// # Safety
/// The contract of [`free`], with infos of that layout.
pub(crate) unsafe fn free_of(mut info: *mut fi_info, layout: &Layout) {
    while !info.is_null() {
        let mut parts = fi_info::ZERO;
        // SAFETY: the info has this length by the caller's contract, `parts` has space for more.
        unsafe {
            ptr::copy_nonoverlapping(info.cast::<u8>(), (&raw mut parts).cast::<u8>(), layout.info)
        };
        // Only the owned pointers of the attributes are read: an attribute made by a program may be
        // smaller.
        let (ep, domain, fabric) = (parts.ep_attr, parts.domain_attr, parts.fabric_attr);
        for (piece, offset, len) in [
            (ep.cast::<u8>(), offset_of!(fi_ep_attr, auth_key), layout.ep),
            (domain.cast(), offset_of!(fi_domain_attr, auth_key), layout.domain),
            (domain.cast(), offset_of!(fi_domain_attr, name), layout.domain),
            (fabric.cast(), offset_of!(fi_fabric_attr, name), layout.fabric),
            (fabric.cast(), offset_of!(fi_fabric_attr, prov_name), layout.fabric),
        ] {
            if piece.is_null() || offset >= len {
                continue;
            }
            // SAFETY: a pointer in an attribute of that layout.
            let owned = unsafe { piece.wrapping_add(offset).cast::<*mut c_void>().read() };
            // SAFETY: the attribute's own.
            unsafe { release(owned) };
        }
        // SAFETY: null or the info's NIC.
        unsafe { close_nic(parts.nic) };
        let pieces: [*mut c_void; 8] = [
            parts.src_addr,
            parts.dest_addr,
            parts.tx_attr.cast(),
            parts.rx_attr.cast(),
            parts.ep_attr.cast(),
            parts.domain_attr.cast(),
            parts.fabric_attr.cast(),
            info.cast(),
        ];
        for piece in pieces {
            // SAFETY: a piece of the info, in C's heap by the caller's contract.
            unsafe { release(piece) };
        }
        info = parts.next;
    }
}

/// # Safety
/// `nic` is null or a NIC that is not used any more.
unsafe fn close_nic(nic: *mut fid_nic) {
    // SAFETY: null or a NIC, which begins with a `struct fid`.
    let ops = unsafe { OpsTable::of_object(nic.cast()) };
    if let Some(close) = ops.and_then(|ops| ops.close) {
        // SAFETY: the NIC's own function. An error cannot be handled.
        unsafe { close(nic.cast::<fid>()) };
    }
}

/// Makes a list of single infos, in their order.
///
/// # Safety
/// Each is an info that is in no list.
pub(crate) unsafe fn chain(infos: &[*mut fi_info]) -> *mut fi_info {
    let mut head = ptr::null_mut();
    for &info in infos.iter().rev() {
        // SAFETY: an info, by the caller's contract.
        if let Some(parts) = unsafe { info.as_mut() } {
            parts.next = head;
            head = info;
        }
    }
    head
}

const _: () = {
    assert!(Layout::V1_0.info == 112 && Layout::V1_0.tx == 72 && Layout::V1_0.ep == 80);
    assert!(Layout::V1_0.domain == 120 && Layout::V1_0.fabric == 28);
    assert!(Layout::V1_2.info == 120 && Layout::V1_2.domain == 184);
    assert!(Layout::V1_3.domain == 192 && Layout::V1_7.domain == 200);
    assert!(Layout::V1_8.domain == 208 && Layout::CURRENT.domain == 224);
    assert!(size_of::<fi_domain_attr>() <= MIN_PART_SIZE && size_of::<fi_info>() <= MIN_PART_SIZE);
};

/// Info of this library, freed on drop.
#[derive(Debug)]
pub(crate) struct Owned(pub(crate) *mut fi_info);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: made by [`dup`], and no reference to it outlives the value.
        unsafe { free(self.0) };
    }
}

/// Returns a copy of a program's hints.
///
/// # Errors
/// `FI_ENOMEM`
///
/// # Safety
/// `hints` is null or an info of that layout.
pub(crate) unsafe fn copy_hints(
    hints: *const fi_info,
    layout: &Layout,
) -> Result<Option<Owned>, Errno> {
    if hints.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's contract.
    let copy = Owned(unsafe { dup(hints, layout) });
    if copy.0.is_null() { Err(FI_ENOMEM) } else { Ok(Some(copy)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libfabric_sys::fi_version;

    #[test]
    fn a_provider_has_the_layout_of_its_release() {
        for (major, minor, info, domain) in [
            (1, 3, 112, 120),
            (1, 4, 112, 120),
            (1, 5, 112, 184),
            (1, 8, 120, 184),
            (1, 17, 120, 192),
            (1, 22, 120, 200),
            (2, 4, 120, 208),
            (2, 5, 120, 224),
            (2, 255, 120, 224),
        ] {
            let layout = Layout::of_interface(fi_version(major, minor));
            assert_eq!((layout.info, layout.domain), (info, domain), "{major}.{minor}");
        }
    }
}

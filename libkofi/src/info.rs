// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Infos in C's heap: making, copying, freeing; and the layouts that programs linked long ago still have.
//!
//! The pieces of an info grew: `struct fi_info` itself by the NIC, the domain's attributes seven times. Which layout a
//! program has is told by the version node of the function it calls. It may read any info of ours by it, since all
//! fields only ever were added behind; from an info of its own no more may be read than it has. What is made here is
//! larger than any layout and zero where nothing was copied.
//!
//! Mirrors fi_getinfo(3); the history is that of `rdma/fabric.h`.
#![expect(unsafe_code, reason = "C structures of several sizes")]

use std::ffi::{c_char, c_void};
use std::mem::{offset_of, size_of};
use std::ptr;

use libfabric_sys::{
    FI_DUP, FI_ENOMEM, FI_ENOSYS, fi_domain_attr, fi_ep_attr, fi_fabric_attr, fi_info, fi_rx_attr,
    fi_tx_attr, fid, fid_nic,
};

use crate::edge::{Errno, release, strdup, string};
use crate::nic;
use crate::ops::Table;

/// What a piece occupies at least.
const ROOM: usize = 512;

/// How many bytes of each piece a program has.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    info: usize,
    tx: usize,
    ep: usize,
    domain: usize,
    fabric: usize,
}

impl Layout {
    /// Of `FABRIC_1.9`, libfabric 2.5: all that is known here.
    pub const CURRENT: Layout = Layout {
        info: size_of::<fi_info>(),
        tx: size_of::<fi_tx_attr>(),
        ep: size_of::<fi_ep_attr>(),
        domain: size_of::<fi_domain_attr>(),
        fabric: size_of::<fi_fabric_attr>(),
    };
    /// Of `FABRIC_1.8`, libfabric 2.0: no limits of counters.
    pub const V1_8: Layout = Layout {
        domain: offset_of!(fi_domain_attr, max_cntr_value),
        ..Self::CURRENT
    };
    /// Of `FABRIC_1.7`, libfabric 1.20: no groups.
    pub const V1_7: Layout = Layout {
        domain: offset_of!(fi_domain_attr, max_group_id),
        ..Self::V1_8
    };
    /// Of `FABRIC_1.3`, libfabric 1.9: no endpoint keys.
    pub const V1_3: Layout = Layout {
        domain: offset_of!(fi_domain_attr, max_ep_auth_key),
        ..Self::V1_7
    };
    /// Of `FABRIC_1.2`, libfabric 1.7: no traffic classes.
    pub const V1_2: Layout = Layout {
        tx: offset_of!(fi_tx_attr, tclass),
        domain: offset_of!(fi_domain_attr, tclass),
        ..Self::V1_3
    };
    /// Of `FABRIC_1.1`, libfabric 1.5: no NIC.
    pub const V1_1: Layout = Layout {
        info: offset_of!(fi_info, nic),
        ..Self::V1_2
    };
    /// Of `FABRIC_1.0`, libfabric 1.0: no keys for authorization, no counts of counters and regions, no version.
    pub const V1_0: Layout = Layout {
        ep: offset_of!(fi_ep_attr, auth_key_size),
        domain: offset_of!(fi_domain_attr, cntr_cnt),
        fabric: offset_of!(fi_fabric_attr, api_version),
        ..Self::V1_1
    };

    /// By the minor number of the version node.
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

    /// Of a provider that says to implement this interface.
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

    /// How many bytes of `struct fi_fabric_attr` there are.
    pub(crate) fn fabric_len(&self) -> usize {
        self.fabric
    }
}

/// Zeroed memory of C's heap for a piece; null without memory.
fn empty<T>() -> *mut T {
    // SAFETY: no requirement.
    unsafe { libc::calloc(1, size_of::<T>().max(ROOM)) }.cast()
}

/// A copy of the first `len` bytes of a piece; null without memory.
///
/// # Safety
/// `from` has `len` bytes, which is at most the size of a T.
unsafe fn copy<T>(from: *const T, len: usize) -> *mut T {
    let new = empty::<T>();
    if !new.is_null() {
        // SAFETY: `from` has the bytes by the caller's contract, `new` has room for a T at least.
        unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), new.cast::<u8>(), len) };
    }
    new
}

/// A copy of bytes that another field counts; null of null, and without memory.
///
/// # Safety
/// `from` is null or has `len` bytes.
unsafe fn bytes(from: *const c_void, len: usize) -> *mut c_void {
    if from.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: no requirement. Something is allocated even for nothing, so that null means: no memory.
    let new = unsafe { libc::calloc(1, len.max(1)) };
    if !new.is_null() {
        // SAFETY: both have `len` bytes.
        unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), new.cast::<u8>(), len) };
    }
    new
}

/// An info without values and with all attributes; null without memory.
pub(crate) fn alloc() -> *mut fi_info {
    let new = empty::<fi_info>();
    // SAFETY: null, or zeroed memory, which is a value of the structure.
    unsafe { complete(new) }
}

/// Gives an info the attributes that it has not. Without memory it is freed, and null is returned.
///
/// # Safety
/// `new` is null or an info of our own, in no list.
unsafe fn complete(new: *mut fi_info) -> *mut fi_info {
    /// Whether there is an attribute now.
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
    // SAFETY: ours, by the caller's contract.
    unsafe { free(new) };
    ptr::null_mut()
}

/// A copy of one info, without what follows it in a list; of null, an empty one. Null without memory.
///
/// # Safety
/// `info` is null or an info of that layout that nobody changes during the call.
pub(crate) unsafe fn dup(info: *const fi_info, layout: &Layout) -> *mut fi_info {
    // SAFETY: the caller's contract.
    unsafe { dup_with(info, layout, nic_by_itself) }
}

/// The same, but the copy needs nothing of who made the info, who may leave; and it has all attributes, as programs and
/// libfabric do not look whether it has.
///
/// # Safety
/// As for [`dup`].
pub(crate) unsafe fn dup_whole(info: *const fi_info, layout: &Layout) -> *mut fi_info {
    // SAFETY: the caller's contract.
    let copy = unsafe { dup_with(info, layout, nic::copy) };
    // SAFETY: null, or made by the line above.
    unsafe { complete(copy) }
}

/// # Safety
/// As for [`dup`]; `nic` copies a NIC, or null.
unsafe fn dup_with(
    info: *const fi_info,
    layout: &Layout,
    nic: unsafe fn(*const fid_nic) -> Result<*mut fid_nic, Errno>,
) -> *mut fi_info {
    if info.is_null() {
        return alloc();
    }
    // SAFETY: the info has as many bytes by the caller's contract.
    let new = unsafe { copy(info, layout.info) };
    // SAFETY: null, or a zeroed structure with bytes of another.
    let Some(to) = (unsafe { new.as_mut() }) else {
        return new;
    };
    // What the program's own copy says, field by field; `to` owns nothing yet.
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
    // SAFETY: `to` holds nothing but what was copied.
    unsafe { free(new) };
    ptr::null_mut()
}

/// Copies what an info points to, but for the NIC.
///
/// # Errors
/// `FI_ENOMEM`; `to` then holds what was copied until then.
///
/// # Safety
/// The pointers in `from` are null or those of an info of that layout.
unsafe fn fill(to: &mut fi_info, from: &fi_info, layout: &Layout) -> Result<(), Errno> {
    // SAFETY: null or an address of that length.
    to.src_addr = there(from.src_addr, unsafe { bytes(from.src_addr, from.src_addrlen) })?;
    // SAFETY: null or an address of that length.
    to.dest_addr = there(from.dest_addr, unsafe {
        bytes(from.dest_addr, from.dest_addrlen)
    })?;
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
        // SAFETY: null or a string.
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
        // SAFETY: null or a string.
        fabric.name = unsafe { text(name) }?;
        // SAFETY: null or a string.
        fabric.prov_name = unsafe { text(prov_name) }?;
    }
    Ok(())
}

/// A null copy of what is not null means that memory ran out.
fn there<T>(original: *mut T, copied: *mut T) -> Result<*mut T, Errno> {
    if copied.is_null() && !original.is_null() {
        Err(FI_ENOMEM)
    } else {
        Ok(copied)
    }
}

/// # Safety
/// `from` is null or has `len` bytes, at most the size of a T.
pub(crate) unsafe fn attribute<T>(from: *mut T, len: usize) -> Result<*mut T, Errno> {
    if from.is_null() {
        return Ok(from);
    }
    // SAFETY: the caller's contract.
    there(from, unsafe { copy(from, len) })
}

/// # Safety
/// `from` is null or a string.
pub(crate) unsafe fn text(from: *mut c_char) -> Result<*mut c_char, Errno> {
    // SAFETY: the caller's contract.
    there(from, strdup(unsafe { string(from) }))
}

/// A NIC copies itself; one that cannot is left out.
///
/// # Safety
/// `from` is null or a NIC.
unsafe fn nic_by_itself(from: *const fid_nic) -> Result<*mut fid_nic, Errno> {
    // SAFETY: null or a NIC, which begins with an object's head.
    let ops = unsafe { Table::of_object(from.cast()) };
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
/// `info` is null or a list of infos in C's heap that nobody uses any more.
pub(crate) unsafe fn free(info: *mut fi_info) {
    // SAFETY: the caller's contract.
    unsafe { free_of(info, &Layout::CURRENT) };
}

/// Frees a list that somebody else made.
///
/// # Safety
/// As for [`free`], with infos of that layout.
pub(crate) unsafe fn free_of(mut info: *mut fi_info, layout: &Layout) {
    while !info.is_null() {
        let mut parts = fi_info::ZERO;
        // SAFETY: the info has as many bytes by the caller's contract, `parts` has room for more.
        unsafe { ptr::copy_nonoverlapping(info.cast::<u8>(), (&raw mut parts).cast::<u8>(), layout.info) };
        // Of the attributes only what they own is read: a program that made one itself may have a smaller one.
        let (ep, domain, fabric) = (parts.ep_attr, parts.domain_attr, parts.fabric_attr);
        for (piece, offset, len) in [
            (ep.cast::<u8>(), offset_of!(fi_ep_attr, auth_key), layout.ep),
            (domain.cast(), offset_of!(fi_domain_attr, auth_key), layout.domain),
            (domain.cast(), offset_of!(fi_domain_attr, name), layout.domain),
            (fabric.cast(), offset_of!(fi_fabric_attr, name), layout.fabric),
            (
                fabric.cast(),
                offset_of!(fi_fabric_attr, prov_name),
                layout.fabric,
            ),
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
/// `nic` is null or a NIC that nobody uses any more.
unsafe fn close_nic(nic: *mut fid_nic) {
    // SAFETY: null or a NIC, which begins with an object's head.
    let ops = unsafe { Table::of_object(nic.cast()) };
    if let Some(close) = ops.and_then(|ops| ops.close) {
        // SAFETY: the NIC's own function. Nobody could do anything about an error.
        unsafe { close(nic.cast::<fid>()) };
    }
}

/// A list from single infos, in their order.
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
    assert!(size_of::<fi_domain_attr>() <= ROOM && size_of::<fi_info>() <= ROOM);
};

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

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Structures as YAML: the name, then a line for each field, indented under it.
//!
//! Single values are in `names`.
#![expect(unsafe_code, reason = "reads C structures")]

use std::ffi::{CStr, c_char, c_void};
use std::fmt::{Display, Write as _};
use std::mem::{offset_of, size_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV6};
use std::ptr;

use libfabric_sys as fi;
use libfabric_sys::{
    fi_av_attr, fi_bus_attr, fi_cntr_attr, fi_cq_attr, fi_cq_err_entry, fi_device_attr,
    fi_domain_attr, fi_ep_attr, fi_fabric_attr, fi_info, fi_link_attr, fi_mr_attr, fi_rx_attr,
    fi_tx_attr, fid, fid_nic,
};

use super::names::{self, NameTable};
use crate::ffi::string;
use crate::ops::OpsTable;

/// Indentation of one level.
const TAB: &str = "    ";

/// Structure that is being written.
struct Yaml {
    out: String,
    indent: String,
}

impl Yaml {
    fn new(name: &str, indent: &str) -> Self {
        Self { out: format!("{indent}{name}:\n"), indent: format!("{indent}{TAB}") }
    }

    fn field(&mut self, name: &str, value: impl Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "{}{name}: {value}", self.indent);
    }

    fn flags(&mut self, name: &str, table: NameTable, value: u64) {
        self.field(name, format_args!("[ {} ]", names::flags(table, value)));
    }

    fn one(&mut self, name: &str, table: NameTable, value: u32) {
        self.field(name, names::one(table, value.into()));
    }

    fn pointer(&mut self, name: &str, value: *const c_void) {
        if value.is_null() {
            self.field(name, "(nil)");
        } else {
            self.field(name, format_args!("{value:p}"));
        }
    }

    /// # Safety
    /// `value` is null or a C string.
    unsafe fn text(&mut self, name: &str, value: *const c_char) {
        // SAFETY: the caller's contract.
        let text = unsafe { string(value) };
        self.field(name, text.map_or("(null)".into(), CStr::to_string_lossy));
    }

    fn version(&mut self, name: &str, value: u32) {
        self.field(name, format_args!("{}.{}", value >> 16, value & 0xffff));
    }

    /// Writes a nested structure, or a line with `(null)` if there is none.
    fn inner<T>(&mut self, name: &str, value: Option<&T>, write: impl FnOnce(&T, &mut Yaml)) {
        match value {
            None => self.field(name, "(null)"),
            Some(value) => {
                let mut inner = Yaml::new(name, &self.indent);
                write(value, &mut inner);
                self.out.push_str(&inner.out);
            }
        }
    }

    /// # Safety
    /// `object` is null or an object.
    unsafe fn object(&mut self, name: &str, object: *const fid) {
        let mut buffer = [0_u8; 4096];
        // SAFETY: the caller's contract.
        if let Some(tostr) = unsafe { OpsTable::of_object(object) }.and_then(|ops| ops.tostr) {
            // SAFETY: the object's own function, with a buffer of that size, which stays terminated
            // by a zero.
            unsafe { tostr(object, buffer.as_mut_ptr().cast(), buffer.len() - 1) };
        }
        match CStr::from_bytes_until_nul(&buffer) {
            Ok(text) if !text.is_empty() => self.out.push_str(&text.to_string_lossy()),
            _ => self.pointer(name, object.cast()),
        }
    }
}

/// Returns a copy of the first bytes of a structure, which may have fewer fields than the current
/// one; `None` for null.
///
/// # Safety
/// `from` is null or has `len` bytes.
unsafe fn first<T: Default>(from: *const T, len: usize) -> Option<T> {
    if from.is_null() {
        return None;
    }
    let mut copy = T::default();
    let len = len.min(size_of::<T>());
    // SAFETY: `from` has this length by the caller's contract, the copy has space for it.
    unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut copy).cast::<u8>(), len) };
    Some(copy)
}

/// Returns the text of a structure; `None` for an unknown type. All but two are read in the size of
/// libfabric 2.5, as in libfabric.
///
/// # Safety
/// `data` points to a value of type `kind`.
pub(super) unsafe fn text(data: *const c_void, kind: u32) -> Option<String> {
    macro_rules! structure {
        ($structure:ident, $write:ident) => {
            structure!($structure, $write, size_of::<$structure>())
        };
        ($structure:ident, $write:ident, $len:expr) => {{
            // SAFETY: `data` points to this structure, by the caller's contract and the type of the
            // arm.
            let value = unsafe { first(data.cast::<$structure>(), $len) }?;
            let mut yaml = Yaml::new(stringify!($structure), "");
            $write(&value, &mut yaml);
            yaml.out
        }};
    }
    Some(match kind {
        fi::FI_TYPE_INFO => structure!(fi_info, info),
        fi::FI_TYPE_TX_ATTR => structure!(fi_tx_attr, tx_attr),
        fi::FI_TYPE_RX_ATTR => structure!(fi_rx_attr, rx_attr),
        fi::FI_TYPE_EP_ATTR => structure!(fi_ep_attr, ep_attr),
        fi::FI_TYPE_DOMAIN_ATTR => structure!(fi_domain_attr, domain_attr),
        fi::FI_TYPE_FABRIC_ATTR => structure!(fi_fabric_attr, fabric_attr),
        fi::FI_TYPE_AV_ATTR => structure!(fi_av_attr, av_attr),
        fi::FI_TYPE_CQ_ATTR => structure!(fi_cq_attr, cq_attr),
        fi::FI_TYPE_CNTR_ATTR => structure!(fi_cntr_attr, cntr_attr),
        fi::FI_TYPE_MR_ATTR => structure!(fi_mr_attr, mr_attr, offset_of!(fi_mr_attr, hmem_data)),
        fi::FI_TYPE_CQ_ERR_ENTRY => {
            structure!(fi_cq_err_entry, cq_err_entry, offset_of!(fi_cq_err_entry, src_addr))
        }
        fi::FI_TYPE_FID => {
            let mut yaml = Yaml { out: String::new(), indent: String::new() };
            // SAFETY: an object, by the caller's contract.
            unsafe { yaml.object("fid", data.cast()) };
            yaml.out
        }
        _ => return None,
    })
}

/// Returns the text of a NIC, at the level of an info's attributes.
///
/// # Safety
/// `nic` is null or a NIC.
pub(super) unsafe fn nic(nic: *const fid_nic) -> String {
    let mut to = Yaml::new("nic", TAB);
    // SAFETY: null or a NIC, by the caller's contract.
    let Some(nic) = (unsafe { nic.as_ref() }) else {
        return to.out;
    };
    // SAFETY: null or an attribute.
    to.inner("fi_device_attr", unsafe { nic.device_attr.as_ref() }, device_attr);
    // SAFETY: null or an attribute.
    to.inner("fi_bus_attr", unsafe { nic.bus_attr.as_ref() }, bus_attr);
    // SAFETY: null or an attribute.
    to.inner("fi_link_attr", unsafe { nic.link_attr.as_ref() }, link_attr);
    to.out
}

/// Writes fields of a structure under their own names.
macro_rules! fields {
    ($to:ident, $of:ident: $($name:ident),*) => {
        $($to.field(stringify!($name), $of.$name);)*
    };
}

fn device_attr(attr: &fi_device_attr, to: &mut Yaml) {
    for (name, value) in [
        ("name", attr.name),
        ("device_id", attr.device_id),
        ("device_version", attr.device_version),
        ("vendor_id", attr.vendor_id),
        ("driver", attr.driver),
        ("firmware", attr.firmware),
    ] {
        // SAFETY: null or a C string.
        unsafe { to.text(name, value) };
    }
}

fn bus_attr(attr: &fi_bus_attr, to: &mut Yaml) {
    to.one("bus_type", names::BUS_TYPE, attr.bus_type);
    if attr.bus_type == fi::FI_BUS_PCI {
        to.inner("fi_pci_attr", Some(&attr.attr), |pci, to| {
            fields!(to, pci: domain_id, bus_id, device_id, function_id);
        });
    }
}

fn link_attr(attr: &fi_link_attr, to: &mut Yaml) {
    // SAFETY: null or a C string.
    unsafe { to.text("address", attr.address) };
    fields!(to, attr: mtu, speed);
    to.one("state", names::LINK_STATE, attr.state);
    // SAFETY: null or a C string.
    unsafe { to.text("network_type", attr.network_type) };
}

fn info(info: &fi_info, to: &mut Yaml) {
    to.flags("caps", names::CAPS, info.caps);
    to.flags("mode", names::MODE, info.mode);
    to.one("addr_format", names::ADDR_FORMAT, info.addr_format);
    fields!(to, info: src_addrlen, dest_addrlen);
    // SAFETY: null or an address of that format and length.
    to.field("src_addr", unsafe { address(info.src_addr, info.src_addrlen, info.addr_format) });
    // SAFETY: null or an address of that format and length.
    to.field("dest_addr", unsafe { address(info.dest_addr, info.dest_addrlen, info.addr_format) });
    // SAFETY: null or an object.
    unsafe { to.object("handle", info.handle) };
    macro_rules! attribute {
        ($structure:ident, $write:ident) => {
            // SAFETY: null or an attribute.
            let value = unsafe { first(info.$write.cast_const(), size_of::<$structure>()) };
            to.inner(stringify!($structure), value.as_ref(), $write);
        };
    }
    attribute!(fi_tx_attr, tx_attr);
    attribute!(fi_rx_attr, rx_attr);
    attribute!(fi_ep_attr, ep_attr);
    attribute!(fi_domain_attr, domain_attr);
    attribute!(fi_fabric_attr, fabric_attr);
    // SAFETY: null or a NIC, which begins with a `struct fid`.
    unsafe { to.object("nic", info.nic.cast()) };
}

/// Returns the text of an address in libfabric's form.
///
/// # Safety
/// `addr` is null or has `len` bytes.
unsafe fn address(addr: *const c_void, len: usize, format: u32) -> String {
    if addr.is_null() {
        return "(null)".to_owned();
    }
    // SAFETY: the caller's contract.
    let bytes = unsafe { std::slice::from_raw_parts(addr.cast::<u8>(), len) };
    let port = || Some(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?));
    // The family in the bytes decides where the format leaves it open.
    let family =
        bytes.get(..2).and_then(|two| Some(i32::from(u16::from_ne_bytes(two.try_into().ok()?))));
    let format = match (format, family) {
        (fi::FI_SOCKADDR | fi::FI_SOCKADDR_IP, Some(libc::AF_INET)) => fi::FI_SOCKADDR_IN,
        (fi::FI_SOCKADDR | fi::FI_SOCKADDR_IP, Some(libc::AF_INET6)) => fi::FI_SOCKADDR_IN6,
        _ => format,
    };
    let known = match format {
        fi::FI_SOCKADDR_IN => bytes.get(4..8).and_then(|ip| {
            let ip = Ipv4Addr::from(<[u8; 4]>::try_from(ip).ok()?);
            Some(format!("fi_sockaddr_in://{ip}:{}", port()?))
        }),
        fi::FI_SOCKADDR_IN6 => bytes.get(8..24).and_then(|ip| {
            let ip = Ipv6Addr::from(<[u8; 16]>::try_from(ip).ok()?);
            Some(format!("fi_sockaddr_in6://{}", SocketAddrV6::new(ip, port()?, 0, 0)))
        }),
        fi::FI_ADDR_STR => Some(String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()),
        _ => None,
    };
    known.unwrap_or_else(|| {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("fi_addr://{hex}")
    })
}

fn tx_attr(attr: &fi_tx_attr, to: &mut Yaml) {
    to.flags("caps", names::CAPS, attr.caps);
    to.flags("mode", names::MODE, attr.mode);
    to.flags("op_flags", names::OP_FLAGS, attr.op_flags);
    to.flags("msg_order", names::MSG_ORDER, attr.msg_order);
    fields!(to, attr: inject_size, size, iov_limit, rma_iov_limit);
    to.field("tclass", format_args!("{:#x}", attr.tclass));
}

fn rx_attr(attr: &fi_rx_attr, to: &mut Yaml) {
    to.flags("caps", names::CAPS, attr.caps);
    to.flags("mode", names::MODE, attr.mode);
    to.flags("op_flags", names::OP_FLAGS, attr.op_flags);
    to.flags("msg_order", names::MSG_ORDER, attr.msg_order);
    fields!(to, attr: size, iov_limit);
}

fn ep_attr(attr: &fi_ep_attr, to: &mut Yaml) {
    to.one("type", names::EP_TYPE, attr.type_);
    to.one("protocol", names::PROTOCOL, attr.protocol);
    fields!(to, attr: protocol_version, max_msg_size, msg_prefix_size, max_order_raw_size);
    fields!(to, attr: max_order_war_size, max_order_waw_size);
    to.field("mem_tag_format", format_args!("{:#018x}", attr.mem_tag_format));
    for (name, count) in [("tx_ctx_cnt", attr.tx_ctx_cnt), ("rx_ctx_cnt", attr.rx_ctx_cnt)] {
        if count == fi::FI_SHARED_CONTEXT {
            to.field(name, "FI_SHARED_CONTEXT");
        } else {
            to.field(name, count);
        }
    }
    to.field("auth_key_size", attr.auth_key_size);
}

fn domain_attr(attr: &fi_domain_attr, to: &mut Yaml) {
    to.pointer("domain", attr.domain.cast_const().cast());
    // SAFETY: null or a C string.
    unsafe { to.text("name", attr.name) };
    to.one("threading", names::THREADING, attr.threading);
    to.one("progress", names::PROGRESS, attr.data_progress);
    to.one("resource_mgmt", names::RESOURCE_MGMT, attr.resource_mgmt);
    to.one("av_type", names::AV_TYPE, attr.av_type);
    to.flags("mr_mode", names::MR_MODE, u64::from(u32::from_ne_bytes(attr.mr_mode.to_ne_bytes())));
    fields!(to, attr: mr_key_size, cq_data_size, cq_cnt, ep_cnt, tx_ctx_cnt, rx_ctx_cnt);
    fields!(to, attr: max_ep_tx_ctx, max_ep_rx_ctx, max_ep_stx_ctx, max_ep_srx_ctx, cntr_cnt);
    fields!(to, attr: mr_iov_limit);
    to.flags("caps", names::CAPS, attr.caps);
    to.flags("mode", names::MODE, attr.mode);
    fields!(to, attr: auth_key_size, max_err_data, mr_cnt);
    to.field("tclass", format_args!("{:#x}", attr.tclass));
    fields!(to, attr: max_ep_auth_key, max_group_id, max_cntr_value, max_err_cntr_value);
}

fn fabric_attr(attr: &fi_fabric_attr, to: &mut Yaml) {
    // SAFETY: null or a C string.
    unsafe { to.text("name", attr.name) };
    // SAFETY: null or a C string.
    unsafe { to.text("prov_name", attr.prov_name) };
    to.version("prov_version", attr.prov_version);
    to.version("api_version", attr.api_version);
}

fn av_attr(attr: &fi_av_attr, to: &mut Yaml) {
    to.one("type", names::AV_TYPE, attr.type_);
    fields!(to, attr: count, ep_per_node);
    // SAFETY: null or a C string.
    unsafe { to.text("name", attr.name) };
    to.flags("flags", names::AV_FLAGS, attr.flags);
}

fn cq_attr(attr: &fi_cq_attr, to: &mut Yaml) {
    to.field("size", attr.size);
    to.flags("flags", names::CQ_FLAGS, attr.flags);
    to.one("format", names::CQ_FORMAT, attr.format);
    to.one("wait_obj", names::WAIT_OBJ, attr.wait_obj);
    to.field("signaling_vector", attr.signaling_vector);
    to.one("wait_cond", names::CQ_COND, attr.wait_cond);
}

fn cntr_attr(attr: &fi_cntr_attr, to: &mut Yaml) {
    to.one("events", names::CNTR_EVENTS, attr.events);
    to.one("wait_obj", names::WAIT_OBJ, attr.wait_obj);
    to.field("flags", format_args!("{:#x}", attr.flags));
}

fn mr_attr(attr: &fi_mr_attr, to: &mut Yaml) {
    to.pointer("mr_iov", attr.mr_iov.cast());
    to.field("iov_count", attr.iov_count);
    to.flags("access", names::ACCESS, attr.access);
    to.field("offset", format_args!("{:#x}", attr.offset));
    to.field("requested_key", format_args!("{:#x}", attr.requested_key));
    to.pointer("context", attr.context.cast_const());
    to.field("auth_key_size", attr.auth_key_size);
    to.one("iface", names::HMEM_IFACE, attr.iface);
}

fn cq_err_entry(entry: &fi_cq_err_entry, to: &mut Yaml) {
    to.pointer("op_context", entry.op_context.cast_const());
    to.field("flags", format_args!("{:#x}", entry.flags));
    to.field("len", entry.len);
    to.pointer("buf", entry.buf.cast_const());
    to.field("data", entry.data);
    to.field("tag", format_args!("{:#x}", entry.tag));
    fields!(to, entry: olen, err, prov_errno);
    to.pointer("err_data", entry.err_data.cast_const());
    to.field("err_data_size", entry.err_data_size);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_libfabric_writes_them() {
        let of = |bytes: &[u8], format| {
            // SAFETY: a slice and its length.
            unsafe { address(bytes.as_ptr().cast(), bytes.len(), format) }
        };
        let mut v4 = vec![2, 0, 0x24, 0x0c, 127, 0, 0, 1];
        v4.resize(16, 0);
        assert_eq!(of(&v4, fi::FI_SOCKADDR_IN), "fi_sockaddr_in://127.0.0.1:9228");
        assert_eq!(of(&v4, fi::FI_SOCKADDR), "fi_sockaddr_in://127.0.0.1:9228");
        assert_eq!(of(&v4[..3], fi::FI_SOCKADDR_IN), "fi_addr://020024");
        let mut v6 = vec![10, 0, 0, 80, 0, 0, 0, 0];
        v6.extend([0; 15]);
        v6.extend([1, 0, 0, 0, 0]);
        assert_eq!(of(&v6, fi::FI_SOCKADDR_IP), "fi_sockaddr_in6://[::1]:80");
        assert_eq!(of(b"fi_shm://1\0", fi::FI_ADDR_STR), "fi_shm://1");
    }
}

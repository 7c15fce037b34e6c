// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! `fi_tostr`: printable texts. Structures are YAML in libfabric's form, so that scripts can read
//! the output of both.
//!
//! Mirrors fi_tostr(3).
#![expect(unsafe_code, reason = "data of whatever type the caller says")]

mod names;
mod structs;

use std::ffi::{c_char, c_void};
use std::ptr;

use libfabric_sys as fi;

use crate::log;
use names::NameTable;

/// Names for a numeric type.
enum Value {
    Flags(NameTable),
    /// Enumeration of 32 bits, as all of C's.
    One(NameTable),
}

/// Returns the table of a type; `None` for structures and texts.
fn value_of(kind: u32) -> Option<Value> {
    Some(match kind {
        fi::FI_TYPE_EP_TYPE => Value::One(names::EP_TYPE),
        fi::FI_TYPE_CAPS => Value::Flags(names::CAPS),
        fi::FI_TYPE_OP_FLAGS => Value::Flags(names::OP_FLAGS),
        fi::FI_TYPE_ADDR_FORMAT => Value::One(names::ADDR_FORMAT),
        fi::FI_TYPE_THREADING => Value::One(names::THREADING),
        fi::FI_TYPE_PROGRESS => Value::One(names::PROGRESS),
        fi::FI_TYPE_PROTOCOL => Value::One(names::PROTOCOL),
        fi::FI_TYPE_OP_TYPE => Value::One(names::OP_TYPE),
        fi::FI_TYPE_MSG_ORDER => Value::Flags(names::MSG_ORDER),
        fi::FI_TYPE_MODE => Value::Flags(names::MODE),
        fi::FI_TYPE_AV_TYPE => Value::One(names::AV_TYPE),
        fi::FI_TYPE_ATOMIC_TYPE => Value::One(names::DATATYPE),
        fi::FI_TYPE_ATOMIC_OP => Value::One(names::ATOMIC_OP),
        fi::FI_TYPE_EQ_EVENT => Value::One(names::EQ_EVENT),
        fi::FI_TYPE_CQ_EVENT_FLAGS => Value::Flags(names::CQ_EVENT),
        fi::FI_TYPE_COLLECTIVE_OP => Value::One(names::COLLECTIVE_OP),
        fi::FI_TYPE_HMEM_IFACE => Value::One(names::HMEM_IFACE),
        fi::FI_TYPE_CQ_FORMAT => Value::One(names::CQ_FORMAT),
        fi::FI_TYPE_CQ_WAIT_COND => Value::One(names::CQ_COND),
        fi::FI_TYPE_WAIT_OBJ => Value::One(names::WAIT_OBJ),
        _ => return None,
    })
}

/// Returns the text of the value at `data`.
///
/// # Safety
/// `data` points to a value of type `kind` that stays unchanged during the call.
pub(crate) unsafe fn tostr(data: *const c_void, kind: u32) -> String {
    match value_of(kind) {
        Some(Value::Flags(table)) => {
            // SAFETY: flags have 64 bits.
            return names::flags(table, unsafe { data.cast::<u64>().read() });
        }
        Some(Value::One(table)) => {
            // SAFETY: enumerations have 32 bits.
            let value = unsafe { data.cast::<u32>().read() };
            return names::one(table, value.into()).to_owned();
        }
        None => {}
    }
    match kind {
        fi::FI_TYPE_VERSION => format!("kofi {}", env!("CARGO_PKG_VERSION")),
        fi::FI_TYPE_MR_MODE => {
            // SAFETY: the modes of regions have 32 bits.
            names::flags(names::MR_MODE, unsafe { data.cast::<u32>().read() }.into())
        }
        // SAFETY: enumerations have 32 bits.
        fi::FI_TYPE_LOG_LEVEL => listed(&log::LEVELS, unsafe { data.cast::<u32>().read() }),
        // SAFETY: enumerations have 32 bits.
        fi::FI_TYPE_LOG_SUBSYS => listed(&log::SUBSYSTEMS, unsafe { data.cast::<u32>().read() }),
        // SAFETY: a structure of that type, by the caller's contract.
        _ => unsafe { structs::text(data, kind) }.unwrap_or_else(|| "Unknown type".to_owned()),
    }
}

/// Returns the text of a NIC, as a part of an info.
///
/// # Safety
/// `nic` is null or a NIC that stays unchanged during the call.
pub(crate) unsafe fn nic(nic: *const fi::fid_nic) -> String {
    // SAFETY: the caller's contract.
    unsafe { structs::nic(nic) }
}

/// Appends a text to the content of a buffer, truncated to the free space.
///
/// # Safety
/// `buf` has `len` bytes, among them a zero.
pub(crate) unsafe fn append(buf: *mut c_char, len: usize, text: &str) {
    // SAFETY: the caller's contract.
    let used = unsafe { libc::strnlen(buf, len) };
    let Some(room) = len.checked_sub(used + 1) else {
        return;
    };
    let to = buf.wrapping_add(used);
    let end = text.len().min(room);
    // SAFETY: the buffer has this many free bytes after its content, and one more.
    unsafe { ptr::copy_nonoverlapping(text.as_ptr(), to.cast::<u8>(), end) };
    // SAFETY: inside the buffer.
    unsafe { to.wrapping_add(end).write(0) };
}

fn listed(names: &[&str], number: u32) -> String {
    let name = usize::try_from(number).ok().and_then(|at| names.get(at));
    (*name.unwrap_or(&"Unknown")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<T>(value: &T, kind: u32) -> String {
        // SAFETY: the tests pass values of that type.
        unsafe { tostr((&raw const *value).cast(), kind) }
    }

    #[test]
    fn values_are_read_at_their_width() {
        assert_eq!(of(&fi::FI_EP_RDM, fi::FI_TYPE_EP_TYPE), "FI_EP_RDM");
        assert_eq!(of(&(fi::FI_MSG | fi::FI_RMA), fi::FI_TYPE_CAPS), "FI_MSG, FI_RMA");
        assert_eq!(of(&3_u32, fi::FI_TYPE_LOG_LEVEL), "debug");
        assert_eq!(of(&0_u32, 9999), "Unknown type");
        assert_eq!(of(&10_u32, fi::FI_TYPE_OP_TYPE), "FI_OP_CNTR_ADD");
        assert_eq!(of(&11_u32, fi::FI_TYPE_OP_TYPE), "Unknown");
    }

    #[test]
    fn an_info_is_yaml() {
        let info = crate::info::alloc();
        // SAFETY: made above.
        let text = unsafe { tostr(info.cast_const().cast(), fi::FI_TYPE_INFO) };
        // SAFETY: made above.
        unsafe { crate::info::free(info) };
        assert!(text.starts_with("fi_info:\n    caps: [  ]\n"), "{text}");
        for part in ["tx_attr", "rx_attr", "ep_attr", "domain_attr", "fabric_attr"] {
            assert!(text.contains(&format!("\n    fi_{part}:\n        ")), "{part}: {text}");
        }
        for newer in ["max_ep_auth_key", "max_group_id", "max_cntr_value", "max_err_cntr_value"] {
            assert!(text.contains(&format!("\n        {newer}: 0\n")), "{newer}: {text}");
        }
        assert!(!text.contains('\t') && text.ends_with('\n'));
    }

    #[test]
    fn a_text_is_cut_where_its_place_ends() {
        let mut buffer = [1 as c_char; 6];
        buffer[1] = 0;
        // SAFETY: a buffer with a zero, and its length less one.
        unsafe { append(buffer.as_mut_ptr(), 5, "abcdef") };
        assert_eq!(buffer.map(i32::from), [1, 97, 98, 99, 0, 1]);
        // SAFETY: as above.
        unsafe { append(buffer.as_mut_ptr(), 5, "g") };
        assert_eq!(buffer.map(i32::from), [1, 97, 98, 99, 0, 1]);
    }
}

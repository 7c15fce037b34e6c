// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! `fi_strerror`: texts of error numbers. Numbers below 256 belong to the system, the others
//! libfabric's own.
//!
//! Mirrors fi_errno(3).
#![expect(unsafe_code, reason = "asks the C library for texts")]

use std::ffi::{CStr, c_char, c_int};

use libfabric_sys as fi;

/// `const char *fi_strerror(int errnum)`: never null; the sign does not matter.
pub(crate) fn strerror(errnum: c_int) -> *const c_char {
    let number = errnum.saturating_abs();
    if number < fi::FI_ERRNO_OFFSET {
        // SAFETY: any number is allowed; the text belongs to the C library.
        return unsafe { libc::strerror(number) }.cast_const();
    }
    own(number).as_ptr()
}

/// Returns the text for a log.
pub(crate) fn text(errnum: c_int) -> String {
    // SAFETY: never null, and valid at least until this thread's next call.
    unsafe { CStr::from_ptr(strerror(errnum)) }.to_string_lossy().into_owned()
}

fn own(number: c_int) -> &'static CStr {
    match number {
        fi::FI_ETOOSMALL => c"The buffer is too small",
        fi::FI_EOPBADSTATE => c"Not possible in this state",
        fi::FI_EAVAIL => c"An error waits to be read",
        fi::FI_EBADFLAGS => c"Flags are not supported",
        fi::FI_ENOEQ => c"No event queue",
        fi::FI_EDOMAIN => c"Of another domain",
        fi::FI_ENOCQ => c"No completion queue",
        fi::FI_ECRC => c"Checksum is wrong",
        fi::FI_ETRUNC => c"The message was longer than the buffer",
        fi::FI_ENOKEY => c"No such memory key",
        fi::FI_ENOAV => c"No address vector",
        fi::FI_EOVERRUN => c"The queue has overrun",
        fi::FI_ENORX => c"The receiver has no buffer",
        fi::FI_ENOMR => c"No room for another memory region",
        fi::FI_EFIREWALLADDR => c"The host is behind a firewall",
        _ => c"Unspecified error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_text() {
        assert_eq!(text(2), "No such file or directory");
        assert_eq!(text(-fi::FI_ETRUNC), "The message was longer than the buffer");
        assert_eq!(text(c_int::MIN), "Unspecified error");
        assert_eq!(text(fi::FI_EOTHER), text(9999));
    }
}

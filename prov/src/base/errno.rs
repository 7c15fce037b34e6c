// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "texts of the C library")]
//! Error numbers of libfabric: their texts, and the numbers of the engine's errors.
//!
//! No other file maps errors of the engine to error numbers.

use std::ffi::{CStr, c_char, c_int};

use libfabric_sys as fi;

/// Positive `FI_E*` number. C sees it negated.
pub(crate) type Errno = c_int;

/// Returns the libfabric number of an engine error.
pub(crate) fn errno(error: &scif::Error) -> Errno {
    match error {
        scif::Error::PortInUse(_) => fi::FI_EADDRINUSE,
        scif::Error::NoPorts => fi::FI_EADDRNOTAVAIL,
        scif::Error::Again => fi::FI_EAGAIN,
        scif::Error::Refused(_) | scif::Error::Rejected { .. } => fi::FI_ECONNREFUSED,
        scif::Error::Unanswered(_) => fi::FI_ETIMEDOUT,
        scif::Error::NoNetwork(_) => fi::FI_EHOSTUNREACH,
        scif::Error::Denied { .. } => fi::FI_EACCES,
        scif::Error::Config(_) => fi::FI_EINVAL,
        scif::Error::Forked => fi::FI_EOPBADSTATE,
        scif::Error::Os { errno, .. } | scif::Error::NoDriver { errno, .. } => errno.raw_os_error(),
    }
}

/// Returns the text of an error number, like `strerror` of a queue; copied to `buf` if there is
/// one.
///
/// # Safety
/// `buf` is null or has space for `len` bytes.
pub(crate) unsafe fn strerror(errno: Errno, buf: *mut c_char, len: usize) -> *const c_char {
    let errno = errno.wrapping_abs();
    let text = match own_text(errno) {
        Some(text) => text.as_ptr(),
        // SAFETY: any number is allowed; the result is a C string, valid at least until this
        // thread's next call.
        None => unsafe { libc::strerror(errno) },
    };
    let Some(last) = len.checked_sub(1).filter(|_| !buf.is_null()) else {
        return text;
    };
    // SAFETY: text is a C string, and buf has space for len = last + 1 bytes (caller's contract).
    unsafe { libc::strncpy(buf, text, last) };
    // SAFETY: within these len bytes.
    unsafe { buf.wrapping_add(last).write(0) };
    buf
}

/// Returns the text of an error number, for the log.
pub(crate) fn text(errno: Errno) -> String {
    // SAFETY: no buffer; the text is valid until this thread's next call.
    let text = unsafe { strerror(errno, std::ptr::null_mut(), 0) };
    // SAFETY: a C string, as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Returns the text of a number that only libfabric defines.
fn own_text(errno: Errno) -> Option<&'static CStr> {
    Some(match errno {
        fi::FI_EOTHER => c"internal error",
        fi::FI_ETOOSMALL => c"the buffer is too small",
        fi::FI_EOPBADSTATE => c"not possible in this state",
        fi::FI_EAVAIL => c"an error waits to be read",
        fi::FI_EBADFLAGS => c"flags are not supported",
        fi::FI_ENOEQ => c"no event queue",
        fi::FI_EDOMAIN => c"of another domain",
        fi::FI_ENOCQ => c"no completion queue",
        fi::FI_ECRC => c"data was damaged",
        fi::FI_ETRUNC => c"the message was longer than the buffer",
        fi::FI_ENOKEY => c"no such memory key",
        fi::FI_ENOAV => c"no address vector",
        fi::FI_EOVERRUN => c"the queue overran",
        fi::FI_ENORX => c"no receive buffer",
        fi::FI_ENOMR => c"no room for another registration",
        fi::FI_EFIREWALLADDR => c"the host is behind a firewall",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_of_the_engine_has_a_number() {
        let port = scif::PortId::new(0, 1);
        for (error, number) in [
            (scif::Error::PortInUse(port), fi::FI_EADDRINUSE),
            (scif::Error::NoPorts, fi::FI_EADDRNOTAVAIL),
            (scif::Error::Again, fi::FI_EAGAIN),
            (scif::Error::Refused(port), fi::FI_ECONNREFUSED),
            (scif::Error::Unanswered(port), fi::FI_ETIMEDOUT),
            (scif::Error::NoNetwork(port), fi::FI_EHOSTUNREACH),
            (scif::Error::Rejected { port, refusal: scif::Refusal::Key }, fi::FI_ECONNREFUSED),
            (scif::Error::Denied { port, uid: 1 }, fi::FI_EACCES),
            (scif::Error::Config(String::new()), fi::FI_EINVAL),
            (scif::Error::Forked, fi::FI_EOPBADSTATE),
        ] {
            assert_eq!(errno(&error), number);
        }
    }

    #[test]
    fn texts_fit_the_callers_buffer() {
        let mut room = [1 as c_char; 8];
        // SAFETY: room has 8 bytes.
        let text = unsafe { strerror(-fi::FI_ETRUNC, room.as_mut_ptr(), room.len()) };
        // SAFETY: a string that ends in NUL.
        assert_eq!(unsafe { CStr::from_ptr(text) }, c"the mes");
        // SAFETY: null is allowed.
        let text = unsafe { strerror(fi::FI_ENOENT, std::ptr::null_mut(), 0) };
        // SAFETY: a string that ends in NUL.
        assert_eq!(unsafe { CStr::from_ptr(text) }, c"No such file or directory");
    }
}

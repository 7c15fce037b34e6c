// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Operation tables of stubs that return "not supported". A provider writes only the slots that it
//! implements: `static OPS: fi_ops_cq = fi_ops_cq { read: cq_read, ..FI_OPS_CQ_NOSYS };`
//!
//! A stub that returns a code returns `-FI_ENOSYS`. The others return "unknown" for a text, like
//! libfabric's own stubs, and 0 for a count. `size` is the size of the table in this crate: older
//! hosts ignore the rest, newer ones read no further.

use core::ffi::{c_char, c_int};
use std::panic::catch_unwind;
use std::sync::OnceLock;

use crate::FI_ENOSYS;

/// Value of a return type for "not supported".
pub(crate) trait NotSupported {
    const ANSWER: Self;
    /// Whether the value is an error.
    const IS_ERROR: bool;
}

impl NotSupported for c_int {
    const ANSWER: Self = -FI_ENOSYS;
    const IS_ERROR: bool = true;
}

impl NotSupported for isize {
    const ANSWER: Self = -(FI_ENOSYS as isize);
    const IS_ERROR: bool = true;
}

impl NotSupported for u64 {
    const ANSWER: Self = 0;
    const IS_ERROR: bool = false;
}

impl NotSupported for *const c_char {
    const ANSWER: Self = c"unknown".as_ptr();
    const IS_ERROR: bool = false;
}

static LISTENER: OnceLock<fn(&'static str)> = OnceLock::new();

/// Registers a `listener` that gets the name of each call for which a stub returns `-FI_ENOSYS`.
/// Later ones are ignored.
pub fn on_unsupported(listener: fn(&'static str)) {
    LISTENER.get_or_init(|| listener);
}

/// Returns the value for "not supported" from the slot of a call.
pub(crate) fn answer<R: NotSupported>(call: &'static str) -> R {
    if R::IS_ERROR {
        if let Some(listener) = LISTENER.get() {
            // A panic must not reach C.
            let _ = catch_unwind(|| listener(call));
        }
    }
    R::ANSWER
}

/// Defines a table of operations, and a constant table whose slots return "not supported". Each
/// slot begins with the name of its call, which the listener gets.
///
/// The build reads structures and fields from the text, one per line.
macro_rules! table {
    ($stubs:ident;
    $(#[$about:meta])*
    pub struct $table:ident {
        pub size: usize,
        $($(#[$since:meta])*
        pub $slot:ident: $call:literal ($($arg:ident: $type:ty),*) -> $result:ty,)*
    }) => {
        $(#[$about])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $table {
            pub size: usize,
            $($(#[$since])* pub $slot: unsafe extern "C" fn($($arg: $type),*) -> $result,)*
        }

        pub const $stubs: $table = $table {
            size: size_of::<$table>(),
            $($slot: {
                extern "C" fn stub($(_: $type),*) -> $result {
                    $crate::nosys::answer($call)
                }
                stub
            },)*
        };
    };
}
pub(crate) use table;

#[cfg(test)]
mod tests {
    #![expect(
        unsafe_code,
        clippy::multiple_unsafe_ops_per_block,
        reason = "calls through C function pointers"
    )]

    use core::ptr::{null, null_mut};
    use std::sync::Mutex;

    use super::*;
    use crate::*;

    #[test]
    fn codes_report_enosys() {
        // SAFETY: the stubs ignore their arguments.
        unsafe {
            assert_eq!((FI_OPS_NOSYS.close)(null_mut()), -38);
            assert_eq!((FI_OPS_NOSYS.bind)(null_mut(), null_mut(), 1), -38);
            assert_eq!((FI_OPS_CM_NOSYS.getname)(null_mut(), null_mut(), null_mut()), -38);
            assert_eq!((FI_OPS_MSG_NOSYS.inject)(null_mut(), null(), 8, 0), -38);
            let a = (FI_OPS_ATOMIC_NOSYS.compwritev)(
                null_mut(),
                null(),
                null_mut(),
                1,
                null(),
                null_mut(),
                1,
                null_mut(),
                null_mut(),
                1,
                0,
                0,
                0,
                0,
                0,
                null_mut(),
            );
            assert_eq!(a, -38);
        }
    }

    #[test]
    fn counts_are_zero_and_texts_unknown() {
        // SAFETY: the stub ignores its argument.
        assert_eq!(unsafe { (FI_OPS_CNTR_NOSYS.readerr)(null_mut()) }, 0);
        // SAFETY: the stub ignores its arguments.
        let text = unsafe { (FI_OPS_CQ_NOSYS.strerror)(null_mut(), 0, null(), null_mut(), 0) };
        // SAFETY: the stub returns a static C string.
        assert_eq!(unsafe { core::ffi::CStr::from_ptr(text) }, c"unknown");
    }

    #[test]
    fn each_refusal_is_reported() {
        static UNSUPPORTED: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
        on_unsupported(|name| {
            UNSUPPORTED.lock().unwrap().push(name);
            assert_ne!(name, "fi_reject", "a panic that ends in the stub");
        });
        // SAFETY: the stubs ignore their arguments.
        unsafe {
            (FI_OPS_CM_NOSYS.listen)(null_mut());
            (FI_OPS_CNTR_NOSYS.read)(null_mut());
            (FI_OPS_TAGGED_NOSYS.inject)(null_mut(), null(), 8, 0, 0);
            let answer = (FI_OPS_CM_NOSYS.reject)(null_mut(), null_mut(), null(), 0);
            assert_eq!(answer, -FI_ENOSYS);
        }
        let unsupported = UNSUPPORTED.lock().unwrap();
        assert!(unsupported.contains(&"fi_listen") && unsupported.contains(&"fi_tinject"));
        assert!(!unsupported.contains(&"fi_cntr_read"), "a count is no refusal");
    }

    #[test]
    fn size_is_of_the_table() {
        assert_eq!(FI_OPS_AV_NOSYS.size, 88);
        assert_eq!(FI_OPS_COLLECTIVE_NOSYS.size, 96);
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Handler of SIGBUS for mappings of the library whose pages may disappear.
//!
//! A driver removes the pages of a node that gets lost from all mappings. The owner of a connection
//! learns of the loss later, from its stream, and may store to the mapping before. The handler puts
//! private memory in place of such a mapping, so that the store has no effect. Every other SIGBUS
//! goes to the action that was set before. See `sigaction(2)`, `signal-safety(7)`.
//!
//! Not about a handler that the program sets later: it replaces this one.
#![expect(unsafe_code, reason = "a signal handler, and the call of the one before it")]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Once, OnceLock};

use super::errno::keep_errno;
use super::{at_exit, ending_signal};

static INSTALL: Once = Once::new();
/// Action of the program at the time of `install`.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Sets the handler, once for each process.
pub(super) fn install() {
    INSTALL.call_once(|| {
        let mut old = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: reads the action into a struct of this function.
        if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), old.as_mut_ptr()) } != 0 {
            return;
        }
        // SAFETY: filled by the successful call. The handler finds it from its first call on.
        let _ = BEFORE.set(unsafe { old.assume_init() });
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) = on_sigbus;
        set(handler as usize, libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART);
    });
}

/// Sets the action of SIGBUS.
fn set(action: libc::sighandler_t, flags: i32) {
    // SAFETY: zeros are a valid action, with an empty mask.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    new.sa_sigaction = action;
    new.sa_flags = flags;
    // SAFETY: the callers pass the default action, or the handler of this module, which does only
    // what is safe in a handler and is never unloaded.
    unsafe { libc::sigaction(libc::SIGBUS, &raw const new, ptr::null_mut()) };
}

extern "C" fn on_sigbus(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    keep_errno(|| {
        // SAFETY: the kernel passes a valid description with SA_SIGINFO.
        let described = unsafe { info.as_ref() };
        // Positive codes are those of accesses; others come from a process.
        let fault = described.filter(|info| info.si_code > 0);
        // SAFETY: the kernel fills the address for a SIGBUS of an access.
        let address = fault.map(|info| unsafe { info.si_addr() }.addr());
        if !address.is_some_and(at_exit::replace_around) {
            pass_on((signal, info, context), fault.is_some());
        }
    });
}

/// Calls the action that was set before.
fn pass_on((signal, info, context): (i32, *mut libc::siginfo_t, *mut c_void), is_fault: bool) {
    let (action, flags) =
        BEFORE.get().map_or((libc::SIG_DFL, 0), |old| (old.sa_sigaction, old.sa_flags));
    match action {
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            ending_signal::run_before_end();
            set(libc::SIG_DFL, 0);
            // SAFETY: raise is safe in a handler. The signal ends the program after the return.
            unsafe { libc::raise(signal) };
        }
        _ => {
            if flags & libc::SA_RESETHAND != 0 {
                set(libc::SIG_DFL, 0);
            }
            let handler = ptr::with_exposed_provenance::<c_void>(action);
            if flags & libc::SA_SIGINFO == 0 {
                // SAFETY: the program has set this function as a handler of one argument.
                let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
                handler(signal);
            } else {
                // SAFETY: as above, of three arguments.
                let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) =
                    unsafe { std::mem::transmute(handler) };
                handler(signal, info, context);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mmap::{Mapping, PAGE};
    use crate::sys::{children, memfd};

    /// Shared mapping of a file that has become empty.
    fn lost(is_temporary: bool) -> Mapping {
        let file = memfd::create("lost", PAGE).unwrap();
        let mut map = Mapping::shared(&file, PAGE, true).unwrap();
        if is_temporary {
            map.detach_at_exit().unwrap();
            map.detach_at_loss();
        }
        rustix::fs::ftruncate(&file, 0).unwrap();
        map
    }

    fn store(map: &Mapping, byte: u8) {
        map.bytes(PAGE - 1, 1).unwrap().copy_from_slice(&[byte]);
    }

    extern "C" fn exit_quietly(_: i32) {
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(3) };
    }

    // One test, since the handler is set once for each process.
    #[test]
    fn only_stores_to_lost_pages_of_the_library_have_no_effect() {
        let program_has_a_handler = children::in_child(|| {
            set(exit_quietly as *const () as usize, 0);
            let map = lost(true);
            store(&map, 7);
            // The calls before have not ended the child with this status.
            if INSTALL.is_completed() {
                store(&lost(false), 7);
            }
            4
        });
        assert_eq!(program_has_a_handler.result(), 3);
        let map = lost(true);
        store(&map, 7);
        store(&map, 8);
        let mut byte = [0];
        map.bytes(PAGE - 1, 1).unwrap().copy_to_slice(&mut byte);
        assert_eq!(byte, [8], "private memory");
        map.detach();
        let another_access = children::in_child(|| {
            store(&lost(false), 7);
            0
        });
        let sent = children::in_child(|| {
            // The handler of the standard library restores the default action at the first one.
            for _ in 0..2 {
                // SAFETY: sends a signal to this process.
                unsafe { libc::raise(libc::SIGBUS) };
            }
            0
        });
        assert_eq!((another_access.result(), sent.result()), (-1, -1), "killed");
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Functions that the library calls, and the objects that receive what they report.
//!
//! Not about the meaning of the data (`inbox`, `link`).
#![expect(unsafe_code, reason = "callbacks of a C library")]

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, Weak};

use super::abi::{self, SciCode};
use super::functions::Handle;
use crate::sys::errno::lock;
use crate::sys::fork;
use crate::sys::thread::contained;

/// Receiver of callbacks. The library calls it on a thread of its own, in which no function of the
/// library may be called.
pub(super) trait Listener: Send + Sync {
    /// Takes the data of one interrupt.
    fn data(&self, bytes: &[u8]);

    /// Notes that the owner of a connected segment is gone.
    fn lost(&self);
}

/// Receivers, by the number that their callbacks get as an argument. A number that is no longer
/// listed is ignored.
static LISTENERS: Mutex<Option<Listeners>> = Mutex::new(None);

#[derive(Default)]
struct Listeners {
    last: usize,
    by_number: HashMap<usize, Weak<dyn Listener>>,
}

/// Entry of a receiver in the list, removed when dropped.
#[derive(Debug)]
pub(super) struct Listed(usize);

impl Listed {
    pub(super) fn enter(listener: Weak<dyn Listener>) -> Listed {
        let _section = fork::section();
        let mut listeners = lock(&LISTENERS);
        let listeners = listeners.get_or_insert_default();
        listeners.last += 1;
        listeners.by_number.insert(listeners.last, listener);
        Listed(listeners.last)
    }

    pub(super) fn argument(&self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.0)
    }

    fn find(argument: *mut c_void) -> Option<Arc<dyn Listener>> {
        let _section = fork::section();
        let listeners = lock(&LISTENERS);
        listeners.as_ref()?.by_number.get(&argument.addr())?.upgrade()
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let _section = fork::section();
        if let Some(listeners) = lock(&LISTENERS).as_mut() {
            listeners.by_number.remove(&self.0);
        }
    }
}

/// Receives the data of an interrupt (`sci_cb_data_interrupt_t`).
pub(super) unsafe extern "C" fn on_data(
    argument: *mut c_void,
    _interrupt: Handle,
    data: *mut c_void,
    length: u32,
    status: u32,
) -> u32 {
    contained(|| {
        let Some(listener) = Listed::find(argument).filter(|_| status == SciCode::OK.0) else {
            return;
        };
        if !data.is_null() {
            // SAFETY: by the contract of the callback `length` bytes, valid until it returns.
            listener.data(unsafe { std::slice::from_raw_parts(data.cast(), length as usize) });
        }
    });
    abi::CALLBACK_CONTINUE
}

/// Receives an event of a connected segment (`sci_cb_remote_segment_t`).
pub(super) unsafe extern "C" fn on_segment(
    argument: *mut c_void,
    _segment: Handle,
    reason: u32,
    _status: u32,
) -> u32 {
    contained(|| {
        if matches!(reason, abi::CB_DISCONNECT | abi::CB_LOST) {
            if let Some(listener) = Listed::find(argument) {
                listener.lost();
            }
        }
    });
    abi::CALLBACK_CONTINUE
}

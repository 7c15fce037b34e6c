// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! A reserved descriptor, with which a process without free descriptors can still refuse connecting
//! peers.
//!
//! Not about the decision to refuse (`port`). See "The special problem of accept()ing when you
//! can't" in libev's manual.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

use rustix::io::Errno;

use crate::sys::errno::lock;
use crate::sys::fork::PrivateFd;
use crate::sys::unix;

/// One descriptor number of this process, released for the duration of one refusal.
#[derive(Debug)]
pub(super) struct Spare(Mutex<Option<PrivateFd>>);

impl Spare {
    /// Reserves a descriptor; none if the process has none left.
    pub(super) fn new() -> Spare {
        Spare(Mutex::new(reserve()))
    }

    /// Accepts the next waiting peer of `listener` and refuses it by `refuse`. Returns false if
    /// none waits, or none can be accepted.
    pub(super) fn refuse_next(&self, listener: impl AsFd, refuse: impl Fn(&OwnedFd)) -> bool {
        match accept(&listener) {
            Ok(socket) => {
                refuse(&socket);
                return true;
            }
            Err(Errno::MFILE | Errno::NFILE) => {}
            Err(_) => return false,
        }
        let mut spare = lock(&self.0);
        drop(spare.take());
        let accepted = accept(&listener);
        if let Ok(socket) = &accepted {
            refuse(socket);
        }
        let refused = accepted.is_ok();
        // The number of the socket becomes the spare one again.
        drop(accepted);
        *spare = reserve();
        refused
    }
}

fn reserve() -> Option<PrivateFd> {
    unix::socket().ok().map(PrivateFd::new)
}

/// Accepts the next peer that has not closed meanwhile.
fn accept(listener: &impl AsFd) -> Result<OwnedFd, Errno> {
    loop {
        match unix::accept(listener) {
            Err(Errno::CONNABORTED | Errno::INTR) => {}
            other => return other,
        }
    }
}

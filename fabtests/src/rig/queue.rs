// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Completion queue that keeps the entries read during a wait for something else.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use crate::fi::{Cq, CqErr, Entry, Errno};
use crate::harness::{Fail, Outcome};

/// Completion, or an error entry in its place.
pub type Done = std::result::Result<Entry, CqErr>;

/// Completion queue with its read but unused entries. Clones share both.
#[derive(Clone)]
pub struct Queue {
    pub cq: Arc<Cq>,
    sources: bool,
    kept: Rc<RefCell<VecDeque<Done>>>,
}

impl Queue {
    /// Returns a queue that is read through this object only.
    pub fn new(cq: Arc<Cq>, sources: bool) -> Queue {
        Queue { cq, sources, kept: Rc::default() }
    }

    /// Reads all available entries.
    ///
    /// # Errors
    /// If a read returns anything but entries, no entry, or `FI_EAVAIL`.
    pub fn pump(&self) -> Outcome {
        loop {
            let read = if self.sources { self.cq.readfrom(16) } else { self.cq.read(16) };
            match read {
                Ok(entries) if entries.is_empty() => return Ok(()),
                Ok(entries) => self.kept.borrow_mut().extend(entries.into_iter().map(Ok)),
                Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno::EAVAIL) => {
                    let error = self.cq.readerr(64)?;
                    self.kept.borrow_mut().push_back(Err(error));
                }
                Err(e) => return Err(Fail::here(format_args!("reading a queue: {e}"))),
            }
        }
    }

    /// Makes progress and reads no entry.
    ///
    /// # Errors
    /// If the read returns anything but entries, no entry, or `FI_EAVAIL`.
    pub fn progress(&self) -> Outcome {
        match self.cq.progress() {
            Ok(_) | Err(Errno::EAGAIN | Errno::EAVAIL) => Ok(()),
            Err(e) => Err(Fail::here(format_args!("progress of a queue: {e}"))),
        }
    }

    /// Returns the oldest unused completion or error.
    pub fn take(&self) -> Option<Done> {
        self.kept.borrow_mut().pop_front()
    }

    /// Number of entries that are read and unused.
    pub fn kept(&self) -> usize {
        self.kept.borrow().len()
    }
}

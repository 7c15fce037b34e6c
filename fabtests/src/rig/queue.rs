// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! A completion queue that keeps what was read on the way to something else.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use crate::fi::{Cq, CqErr, Entry, Errno};
use crate::harness::{Fail, Outcome};

/// A completion, or the error entry that came instead.
pub type Done = std::result::Result<Entry, CqErr>;

/// A completion queue and what was read of it but not yet asked for. Clones are the same queue.
#[derive(Clone)]
pub struct Queue {
    pub cq: Arc<Cq>,
    sources: bool,
    kept: Rc<RefCell<VecDeque<Done>>>,
}

impl Queue {
    /// A queue to be read through this.
    pub fn new(cq: Arc<Cq>, sources: bool) -> Queue {
        Queue {
            cq,
            sources,
            kept: Rc::default(),
        }
    }

    /// Reads what is there.
    ///
    /// # Errors
    /// When a read answers something else than entries, nothing, or "an error waits".
    pub fn pump(&self) -> Outcome {
        loop {
            let read = if self.sources {
                self.cq.readfrom(16)
            } else {
                self.cq.read(16)
            };
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

    /// Makes progress and reads nothing.
    ///
    /// # Errors
    /// When the queue answers something else than entries, nothing, or "an error waits".
    pub fn progress(&self) -> Outcome {
        match self.cq.progress() {
            Ok(_) | Err(Errno::EAGAIN | Errno::EAVAIL) => Ok(()),
            Err(e) => Err(Fail::here(format_args!("progress of a queue: {e}"))),
        }
    }

    /// The oldest completion or error read so far.
    pub fn take(&self) -> Option<Done> {
        self.kept.borrow_mut().pop_front()
    }

    /// How many were read and not taken.
    pub fn kept(&self) -> usize {
        self.kept.borrow().len()
    }
}

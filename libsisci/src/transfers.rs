// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Thread that executes transfers, and its wake-up.
//!
//! The program waits for the end of the call that starts a transfer. So the thread preempts no
//! other one when it is woken, and is woken only if it sleeps.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

use rustix::io::Errno;
use scif::sys::thread::{contained, set_batch, spawn_quiet};

use crate::error::Outcome;
use crate::lock::{take, wait};

/// Object with transfers.
pub(crate) trait Transferor: Send + Sync {
    /// Executes a transfer that was started, unless another thread does.
    fn transfer(&self);
}

#[derive(Default)]
struct Posted {
    transfers: VecDeque<Arc<dyn Transferor>>,
    /// Whether the thread sleeps and no wake-up is under way.
    is_asleep: bool,
    is_stopped: bool,
}

/// Thread that executes transfers.
#[derive(Default)]
pub(crate) struct TransferThread {
    posted: Mutex<Posted>,
    /// Signalled when the thread has to wake up.
    changed: Condvar,
}

impl TransferThread {
    /// Starts a thread.
    ///
    /// # Errors
    /// Errors of the system when threads are short.
    pub(crate) fn start() -> Outcome<Arc<TransferThread>> {
        let thread = Arc::new(TransferThread::default());
        let own = Arc::clone(&thread);
        spawn_quiet("sisci-dma", move || own.run())
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM))?;
        Ok(thread)
    }

    /// Leaves a transfer of an object to the thread.
    pub(crate) fn post(&self, object: Arc<dyn Transferor>) {
        self.change(|posted| posted.transfers.push_back(object));
    }

    /// Ends the thread after the transfers that were posted.
    pub(crate) fn stop(&self) {
        self.change(|posted| posted.is_stopped = true);
    }

    fn change(&self, change: impl FnOnce(&mut Posted)) {
        let is_asleep = {
            let mut posted = take(&self.posted);
            change(&mut posted);
            std::mem::take(&mut posted.is_asleep)
        };
        if is_asleep {
            self.changed.notify_one();
        }
    }

    fn run(&self) {
        set_batch();
        while let Some(object) = self.next() {
            contained(|| object.transfer());
        }
    }

    /// Waits for the next object; `None` at the end.
    fn next(&self) -> Option<Arc<dyn Transferor>> {
        let mut posted = take(&self.posted);
        loop {
            if let Some(object) = posted.transfers.pop_front() {
                return Some(object);
            }
            if posted.is_stopped {
                return None;
            }
            posted.is_asleep = true;
            (posted, _) = wait(&self.changed, posted, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use super::*;

    /// Object that reports its number, behind a wait for the test.
    struct Numbered(u32, Mutex<Receiver<()>>, Sender<u32>);

    impl Transferor for Numbered {
        fn transfer(&self) {
            take(&self.1).recv().unwrap();
            self.2.send(self.0).unwrap();
        }
    }

    #[test]
    fn transfers_before_the_stop_are_executed_in_their_order() {
        let thread = TransferThread::start().unwrap();
        let (reports, ended) = channel();
        let mut permits = Vec::new();
        for number in 0..3 {
            let (permit, permitted) = channel();
            thread.post(Arc::new(Numbered(number, Mutex::new(permitted), reports.clone())));
            permits.push(permit);
        }
        thread.stop();
        drop(reports);
        assert!(ended.try_recv().is_err(), "the first one waits");
        permits.iter().for_each(|permit| permit.send(()).unwrap());
        let limit = Duration::from_secs(60);
        let numbers: Vec<u32> = (0..3).map(|_| ended.recv_timeout(limit).unwrap()).collect();
        assert_eq!(numbers, [0, 1, 2]);
        // The thread has dropped all objects, and with them their senders.
        assert_eq!(ended.recv_timeout(limit), Err(std::sync::mpsc::RecvTimeoutError::Disconnected));
    }
}

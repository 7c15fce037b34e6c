// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Connecting over a driver: one thread per attempt, since the driver blocks its caller for up to
//! 30 s.
//!
//! Non-blocking calls would not help. The driver executes all of them in one work item of the
//! system, and completing or closing one waits for whichever comes next.
//!
//! Not about an established connection (`link`). The caller repeats `attempt` until an attempt is
//! answered. An abandoned attempt ends when the driver answers it.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use scif_ring::AtomicCounter;

use super::sender::Sender;
use crate::addr::PortId;
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::sys::thread;
use crate::sys::time::now_ns;

/// Maximum number of attempts in progress, each with a thread. Listeners that never accept occupy
/// them for 30 s; further attempts have to wait.
const CALLS_MAX: u64 = 64;
/// Time for which the caller itself waits for the answer, once per attempt: enough for a listener
/// that accepts at once, and for both sides to agree upon windows on a busy host. A program that
/// next polls only another queue makes no later attempt.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// Time in nanoseconds after which an attempt counts as unanswered. A listener accepts at once even
/// while its process computes.
const UNANSWERED_NS: u64 = 250_000_000;
/// Time in nanoseconds between a refusal and the next attempt at the same port. A shorter one makes
/// a waiting process busy with calls.
const REFUSED_PAUSE_NS: u64 = 1_000_000;
/// Time in nanoseconds for which an answer is kept that no caller takes. Less than the time for
/// which the peer waits for the next greeting.
const UNCLAIMED_NS: u64 = 5_000_000_000;

/// Answer of the driver, and its time in nanoseconds.
type Answer<T> = Option<(u64, std::result::Result<T, Failure>)>;

#[derive(Debug)]
struct Outcome<T> {
    answer: Mutex<Answer<T>>,
    answered: Condvar,
}

impl<T> Outcome<T> {
    fn lock(&self) -> MutexGuard<'_, Answer<T>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Attempt<T> {
    since_ns: u64,
    outcome: Arc<Outcome<T>>,
}

/// Connect attempts of one port, and their outcomes.
#[derive(Debug)]
pub(super) struct Calls<T: Send + 'static> {
    open: HashMap<PortId, Attempt<T>>,
    /// Number of attempts in progress of all ports of the node.
    under_way: Arc<AtomicCounter>,
    sender: Arc<Sender>,
}

/// Counts an attempt in progress until its thread ends in any way.
struct UnderWay(Arc<AtomicCounter>);

impl UnderWay {
    fn begin(count: &Arc<AtomicCounter>) -> Option<UnderWay> {
        let begun = UnderWay(Arc::clone(count));
        // Counted until dropped.
        (count.add(1) < CALLS_MAX).then_some(begun)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.sub(1);
    }
}

impl<T: Send + 'static> Calls<T> {
    pub(super) fn new(under_way: &Arc<AtomicCounter>, sender: &Arc<Sender>) -> Calls<T> {
        Calls { open: HashMap::new(), under_way: Arc::clone(under_way), sender: Arc::clone(sender) }
    }

    /// Takes the connection to `dst` once the attempt is answered; starts the attempt if none
    /// exists. `prepare` returns the call, which blocks; `notify` runs after the answer has
    /// arrived.
    ///
    /// # Errors
    /// [`Error::Again`] soon after the start, [`Error::Unanswered`] later; the driver's answer;
    /// errors of `prepare`.
    pub(super) fn attempt<C>(
        &mut self,
        dst: PortId,
        prepare: impl FnOnce() -> Result<C>,
        notify: impl FnOnce() + Send + 'static,
    ) -> Result<T>
    where
        C: FnOnce() -> std::result::Result<T, Failure> + Send + 'static,
    {
        let now = now_ns();
        let Some(call) = self.open.get(&dst) else {
            return self.start(dst, prepare()?, notify);
        };
        let outcome = Arc::clone(&call.outcome);
        let mut answer = outcome.lock();
        match &*answer {
            None if now.saturating_sub(call.since_ns) < UNANSWERED_NS => return Err(Error::Again),
            None => return Err(Error::Unanswered(dst)),
            // A refusal is told at least once, however late the caller asks.
            Some((at, Err(failure))) => {
                let answered = refused(failure, dst);
                if now.saturating_sub(*at) >= REFUSED_PAUSE_NS {
                    self.open.remove(&dst);
                }
                return Err(answered);
            }
            // The peer may have given up meanwhile.
            Some((at, Ok(_))) if now.saturating_sub(*at) >= UNCLAIMED_NS => {
                drop(answer);
                // Not the last reference: this thread must not wait for the close.
                drop(outcome);
                self.forget(dst);
                return self.start(dst, prepare()?, notify);
            }
            Some((_, Ok(_))) => {}
        }
        self.open.remove(&dst);
        match answer.take() {
            Some((_, Ok(connected))) => Ok(connected),
            _ => Err(Error::Again),
        }
    }

    fn start(
        &mut self,
        dst: PortId,
        call: impl FnOnce() -> std::result::Result<T, Failure> + Send + 'static,
        notify: impl FnOnce() + Send + 'static,
    ) -> Result<T> {
        let Some(under_way) = UnderWay::begin(&self.under_way) else {
            return Err(Error::Again);
        };
        let outcome = Arc::new(Outcome { answer: Mutex::new(None), answered: Condvar::new() });
        let to_tell = Arc::clone(&outcome);
        thread::spawn_quiet("scif-connect", move || {
            // A panic is an answer as well: callers would wait for ever without one.
            let answer = thread::contained(call).unwrap_or(Err(Failure::Broken));
            drop(under_way);
            *to_tell.lock() = Some((now_ns(), answer));
            to_tell.answered.notify_all();
            notify();
        })
        .map_err(|error| Error::Os {
            call: "starting a thread that connects",
            errno: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
        })?;
        let (mut answer, _) = outcome
            .answered
            .wait_timeout_while(outcome.lock(), FIRST_WAIT, |answer| answer.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        let answered = match &mut *answer {
            Some((_, Ok(_))) => match answer.take() {
                Some((_, Ok(connected))) => return Ok(connected),
                _ => Error::Again,
            },
            Some((_, Err(failure))) => refused(failure, dst),
            None => Error::Again,
        };
        drop(answer);
        let since_ns = now_ns();
        self.open.insert(dst, Attempt { since_ns, outcome });
        Err(answered)
    }

    /// Drops answers that no caller takes.
    pub(super) fn sweep(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let now = now_ns();
        let sender = &self.sender;
        self.open.retain(|_, call| {
            let kept = call
                .outcome
                .lock()
                .as_ref()
                .is_none_or(|(at, _)| now.saturating_sub(*at) < UNCLAIMED_NS);
            if !kept {
                sender.dispose(Arc::clone(&call.outcome));
            }
            kept
        });
    }

    /// Leaves the attempt to connect to `dst` to its thread, also if it is answered: the answer is
    /// that of an earlier process.
    pub(super) fn forget(&mut self, dst: PortId) {
        if let Some(call) = self.open.remove(&dst) {
            self.sender.dispose(call);
        }
    }

    /// Leaves all attempts to their threads.
    pub(super) fn abandon(&mut self) {
        for (_, call) in self.open.drain() {
            self.sender.dispose(call);
        }
    }
}

/// Converts a failed attempt to an error for the peer at `dst`.
fn refused(failure: &Failure, dst: PortId) -> Error {
    match failure.errno() {
        Errno::CONNREFUSED | Errno::NODEV | Errno::TIMEDOUT => Error::Refused(dst),
        Errno::NOSPC => Error::NoPorts,
        errno => Error::Os { call: "scif_connect", errno },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const DST: PortId = PortId::new(1, 7);

    fn calls() -> Calls<u32> {
        Calls::new(&Arc::new(AtomicCounter::new(0)), &Sender::start().unwrap())
    }

    /// Repeats `attempt` until the answer has arrived, for at most 10 s.
    fn attempt_until_answered(calls: &mut Calls<u32>) -> Result<u32> {
        let end = now_ns() + 10_000_000_000;
        loop {
            let attempted =
                calls.attempt(DST, || -> Result<fn() -> _> { Err(Error::Forked) }, || ());
            match attempted {
                Err(Error::Again | Error::Unanswered(_)) if now_ns() < end => {
                    std::thread::yield_now()
                }
                answered => return answered,
            }
        }
    }

    #[test]
    fn an_unanswered_call_delays_no_other() {
        let mut calls = calls();
        let (answer, driver) = mpsc::channel::<std::result::Result<u32, Failure>>();
        let (answered, news) = mpsc::channel();
        let begun = now_ns();
        let call = move || driver.recv().unwrap_or(Err(Failure::Refused));
        let attempted = calls.attempt(DST, || Ok(call), move || answered.send(()).unwrap());
        assert_eq!(attempted, Err(Error::Again));
        assert!(now_ns() - begun < 10_000_000_000, "not the 30 s of a driver");
        let other = PortId::new(1, 8);
        let quick = attempt_other(&mut calls, other);
        assert_eq!(quick, Ok(8), "another call is not held up");
        answer.send(Ok(7)).unwrap();
        news.recv().unwrap();
        assert_eq!(attempt_until_answered(&mut calls), Ok(7));
        assert_eq!(calls.under_way.get(), 0);
        assert!(calls.open.is_empty());
    }

    #[test]
    fn a_call_that_panics_is_answered() {
        let mut calls = calls();
        let panics = || -> std::result::Result<u32, Failure> { panic!("on purpose") };
        let failed = Error::Os { call: "scif_connect", errno: Errno::IO };
        let mut attempted = calls.attempt(DST, || Ok(panics), || ());
        let end = now_ns() + 10_000_000_000;
        while matches!(attempted, Err(Error::Again | Error::Unanswered(_))) && now_ns() < end {
            std::thread::yield_now();
            attempted = calls.attempt(DST, || Ok(panics), || ());
        }
        assert_eq!(attempted, Err(failed));
        assert_eq!(attempt_other(&mut calls, PortId::new(1, 8)), Ok(8));
    }

    fn attempt_other(calls: &mut Calls<u32>, dst: PortId) -> Result<u32> {
        let end = now_ns() + 10_000_000_000;
        loop {
            match calls.attempt(dst, || Ok(|| Ok(8)), || ()) {
                Err(Error::Again | Error::Unanswered(_)) if now_ns() < end => {
                    std::thread::yield_now()
                }
                answered => return answered,
            }
        }
    }

    /// Returns calls with an answer of `DST` that was not taken.
    fn answered() -> Calls<u32> {
        let mut calls = calls();
        let (answer, driver) = mpsc::channel::<()>();
        let (answered, news) = mpsc::channel();
        let accepted = move || {
            let _ = driver.recv();
            Ok(7)
        };
        let attempted = calls.attempt(DST, || Ok(accepted), move || answered.send(()).unwrap());
        assert_eq!(attempted, Err(Error::Again));
        answer.send(()).unwrap();
        news.recv().unwrap();
        calls
    }

    #[test]
    fn the_answer_of_a_process_that_died_is_not_taken() {
        let mut calls = answered();
        calls.forget(DST);
        let again = || -> Result<fn() -> _> { Err(Error::Forked) };
        assert_eq!(calls.attempt(DST, again, || ()), Err(Error::Forked), "a new call");
    }

    #[test]
    fn an_answer_past_its_time_is_not_taken() {
        let mut calls = answered();
        let outcome = Arc::clone(&calls.open.get(&DST).unwrap().outcome);
        outcome.lock().as_mut().unwrap().0 -= UNCLAIMED_NS;
        let again = || -> Result<fn() -> _> { Err(Error::Forked) };
        assert_eq!(calls.attempt(DST, again, || ()), Err(Error::Forked), "a new call");
    }

    #[test]
    fn a_refusal_is_told_and_then_tried_again() {
        let mut calls = calls();
        let refuse = || Ok(|| Err(Failure::Refused));
        let mut attempted = calls.attempt(DST, refuse, || ());
        let end = now_ns() + 10_000_000_000;
        while matches!(attempted, Err(Error::Again | Error::Unanswered(_))) && now_ns() < end {
            attempted = calls.attempt(DST, refuse, || ());
        }
        assert_eq!(attempted, Err(Error::Refused(DST)));
        while calls.attempt(DST, || -> Result<fn() -> _> { Err(Error::Forked) }, || ())
            == Err(Error::Refused(DST))
        {
            assert!(now_ns() < end, "a new call is made soon");
        }
        assert!(calls.open.is_empty());
    }

    #[test]
    fn a_refusal_is_told_to_a_caller_that_asks_late() {
        let mut calls = calls();
        let (answer, driver) = mpsc::channel::<()>();
        let (answered, news) = mpsc::channel();
        let refuse = move || {
            let _ = driver.recv();
            Err(Failure::Refused)
        };
        assert_eq!(
            calls.attempt(DST, || Ok(refuse), move || answered.send(()).unwrap()),
            Err(Error::Again)
        );
        answer.send(()).unwrap();
        news.recv().unwrap();
        std::thread::sleep(Duration::from_nanos(2 * REFUSED_PAUSE_NS));
        let again = || -> Result<fn() -> _> { Err(Error::Forked) };
        assert_eq!(calls.attempt(DST, again, || ()), Err(Error::Refused(DST)));
        assert_eq!(calls.attempt(DST, again, || ()), Err(Error::Forked), "a new call");
    }

    #[test]
    fn calls_have_a_limit_and_leave_it() {
        let mut calls = calls();
        let (gate, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let port = |i: u64| PortId::new(1, u16::try_from(i).unwrap() + 1);
        let blocked = |wait: &Arc<Mutex<mpsc::Receiver<()>>>| {
            let wait = Arc::clone(wait);
            move || {
                let _ = wait.lock().map(|wait| wait.recv());
                Ok(1)
            }
        };
        for i in 0..CALLS_MAX {
            assert_eq!(calls.attempt(port(i), || Ok(blocked(&wait)), || ()), Err(Error::Again));
        }
        assert_eq!(calls.open.len() as u64, CALLS_MAX);
        assert_eq!(
            calls.attempt(port(CALLS_MAX), || Ok(blocked(&wait)), || ()),
            Err(Error::Again),
            "one too many"
        );
        assert_eq!(calls.open.len() as u64, CALLS_MAX);
        calls.abandon();
        let under_way = Arc::clone(&calls.under_way);
        drop(calls);
        drop(gate);
        let end = now_ns() + 10_000_000_000;
        while under_way.get() > 0 && now_ns() < end {
            std::thread::yield_now();
        }
        assert_eq!(under_way.get(), 0);
    }
}

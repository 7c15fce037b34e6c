// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "masks signals around the creation of a thread")]
//! Progress thread of a domain with automatic data progress.
//!
//! One thread per domain accepts, matches and executes while the application computes. It sleeps on
//! the descriptors of all endpoints. While the application polls some endpoints itself, the thread
//! leaves these alone and does not sleep on descriptors. It polls the other endpoints every
//! millisecond, or without a pause while they are active. It arms no endpoint meanwhile, so peers
//! send no wake-ups.
//!
//! Mirrors fi_domain(3), "data_progress".

use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use libfabric_sys as fi;
use scif::{Waiter, cpu_relax_or_yield, now_ns};
use scif_ring::counter::AtomicFlag;

use crate::base::errno::Errno;
use crate::base::log::{Subsys, warn};
use crate::domain::bindings::{arm_ep, disarm_ep};
use crate::domain::progress_handle::AutoProgress;
use crate::domain::state::{DomainShared, DomainState};
use crate::domain::{calls, triggered};
use crate::state::waiters::{MAX_SLEEP_NS, POLL_SLEEP_NS, TIMER_SLEEP_NS};

/// Number of panics after which the thread ends. A poisoned endpoint causes no second one, so this
/// many indicate a defect outside the endpoints.
const PANICS_MAX: usize = 64;
/// Nanoseconds for which the thread keeps polling after activity. A longer time uses more processor
/// time.
const LINGER_NS: u64 = 50_000;
/// Interval between checks whether the application still makes progress itself.
const AWAY: Duration = Duration::from_millis(1);

/// Starts the thread with all signals blocked, since they belong to the application.
pub(crate) fn start(auto: &AutoProgress, dom: &Arc<DomainShared>) -> Result<(), Errno> {
    let worker = Worker {
        dom: Arc::clone(dom),
        waiter: Arc::clone(&auto.waiter),
        stop: Arc::clone(&auto.stop),
    };
    let blocked = BlockedSignals::all();
    let thread =
        std::thread::Builder::new().name("scif-progress".to_owned()).spawn(move || worker.run());
    drop(blocked);
    let thread = thread.map_err(|e| e.raw_os_error().unwrap_or(fi::FI_ENOMEM))?;
    *auto.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
    Ok(())
}

/// Blocks all signals of the current thread until dropped.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn all() -> BlockedSignals {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `all` has space for a signal set.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        let mut old = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: `all` was filled above and `old` has space for a signal set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr()) };
        // SAFETY: zeroed, then filled by pthread_sigmask.
        BlockedSignals(unsafe { old.assume_init() })
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set that pthread_sigmask returned; a null pointer for the old one is allowed.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// State of the thread.
struct Worker {
    dom: Arc<DomainShared>,
    waiter: Arc<Waiter>,
    stop: Arc<AtomicFlag>,
}

impl Worker {
    /// Runs until it is stopped, and continues after a panic, which has poisoned the endpoint that
    /// caused it.
    fn run(self) {
        for _ in 0..PANICS_MAX {
            if catch_unwind(AssertUnwindSafe(|| self.work())).is_ok() {
                return;
            }
        }
        warn(
            Subsys::Core,
            format_args!(
                "automatic progress of a domain ends after {PANICS_MAX} internal errors: \
                operations move on only while the program \
                 makes calls. Please report it"
            ),
        );
    }

    fn work(&self) {
        let mut seen = Vec::new();
        let mut busy_until = now_ns();
        let mut quiet = 0;
        while !self.stop.get() {
            let mut guard = self.dom.gate.lock();
            let st = &mut *guard;
            let before = activity(st);
            if progress_unattended(st, &mut seen) {
                let moved = activity(st) != before;
                drop(guard);
                self.waiter.drain();
                if self.stop.get() {
                    return;
                }
                if moved {
                    // The thread keeps polling, since the application may not call again soon.
                    busy_until = now_ns() + LINGER_NS;
                    quiet += 1;
                    cpu_relax_or_yield(quiet);
                } else {
                    quiet = 0;
                    std::thread::sleep(AWAY);
                }
                continue;
            }
            let now = now_ns();
            if activity(st) != before || more(st) {
                busy_until = now + LINGER_NS;
                quiet = 0;
            }
            if now < busy_until {
                drop(guard);
                quiet += 1;
                cpu_relax_or_yield(quiet);
                continue;
            }
            // Quiet for a while: arm, poll once more, sleep.
            self.waiter.drain();
            st.auto_armed = enabled(st);
            for at in 0..st.auto_armed.len() {
                st.auto_armed.get(at).copied().into_iter().for_each(|ep| arm_ep(st, ep));
            }
            let before = activity(st);
            progress_all(st);
            note_polls(st, &mut seen);
            let timer = st.auto_armed.iter().any(|ep| calls::wants_timer(st, *ep));
            let poll = st.auto_armed.iter().any(|ep| calls::wants_poll(st, *ep));
            let nothing = activity(st) == before && !more(st) && !self.stop.get();
            if nothing {
                drop(guard);
                let nap_ns = match timer {
                    _ if poll => POLL_SLEEP_NS,
                    true => TIMER_SLEEP_NS,
                    false => MAX_SLEEP_NS,
                };
                // A failure of the wait set is reported by the next attempt to create one.
                let _ = self.waiter.wait(Some(nap_ns));
                guard = self.dom.gate.lock();
            }
            let st = &mut *guard;
            for ep in std::mem::take(&mut st.auto_armed) {
                disarm_ep(st, ep);
            }
            busy_until = now_ns() + LINGER_NS;
            quiet = 0;
        }
    }
}

fn enabled(st: &DomainState) -> Vec<u32> {
    st.eps.iter().filter(|(_, ep)| ep.enabled).map(|(index, _)| index).collect()
}

fn progress_all(st: &mut DomainState) {
    for ep in 0..st.eps.bound() {
        calls::progress(st, ep);
    }
    if !st.triggers.is_empty() {
        triggered::run(st);
    }
}

/// Makes progress on the endpoints that the application has not polled since the counts in `seen`.
/// Returns whether the application has polled any.
fn progress_unattended(st: &mut DomainState, seen: &mut Vec<u32>) -> bool {
    let mut app_active = false;
    for ep in 0..st.eps.bound() {
        match calls::polls(st, ep) {
            Some(polls) if seen.get(ep as usize).is_some_and(|seen| *seen != polls) => {
                app_active = true
            }
            // A panic may have poisoned the endpoint; the call then ends its operations.
            Some(_) | None => calls::progress(st, ep),
        }
    }
    if !st.triggers.is_empty() {
        triggered::run(st);
    }
    note_polls(st, seen);
    app_active
}

/// Records the number of polls of each endpoint.
fn note_polls(st: &DomainState, seen: &mut Vec<u32>) {
    seen.clear();
    seen.extend((0..st.eps.bound()).map(|ep| calls::polls(st, ep).unwrap_or(0)));
}

/// Whether a poll stopped early and left records unread.
fn more(st: &DomainState) -> bool {
    st.eps.iter().any(|(ep, _)| calls::has_more(st, ep))
}

/// Returns a number that changes with every send, receive or copied byte range.
fn activity(st: &DomainState) -> u64 {
    st.eps.iter().fold(0, |sum, (_, ep)| {
        let s = &ep.stats;
        [s.sent, s.received, s.ring, s.mapped, s.process_vm, s.coop_copy]
            .iter()
            .fold(sum, |sum, p| sum.wrapping_add(p.ops))
    })
}

#[cfg(test)]
mod tests {
    use scif::Exports;

    use super::*;
    use crate::engine::endpoint::Endpoint;
    use crate::engine::types::args::EpConfig;
    use crate::objects::handle::Domain;

    #[test]
    fn thread_polls_endpoints_that_the_application_does_not_read() {
        let domain = Domain::for_test(fi::fi_version(2, 0), &fi::fi_domain_attr::default());
        let dom = &domain.shared;
        let [app_active, unattended] = [(); 2].map(|()| {
            let sock = scif::Endpoint::bind(&dom.fabric.node, 0, Exports::default()).unwrap();
            let ep = dom.add_ep(Endpoint::new(EpConfig::default(), sock)).unwrap();
            dom.enable_ep(&mut dom.gate.lock(), ep).unwrap();
            ep
        });
        let mut guard = dom.gate.lock();
        let st = &mut *guard;
        let mut seen = Vec::new();
        assert!(!progress_unattended(st, &mut seen), "nobody else was here");
        for _ in 0..3 {
            calls::progress(st, app_active);
            let before = [app_active, unattended].map(|ep| calls::polls(st, ep));
            assert!(progress_unattended(st, &mut seen));
            let after = [app_active, unattended].map(|ep| calls::polls(st, ep));
            assert_eq!(before[0], after[0]);
            assert_ne!(before[1], after[1]);
        }
        assert!(!progress_unattended(st, &mut seen));
    }
}

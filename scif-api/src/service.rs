// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Service thread of a process: it watches the sockets of all endpoints and sleeps in epoll.
//!
//! The thread ends an endpoint after the last close of its descriptor, disconnects it at the end of
//! its peer, and completes its connect at an answer. It makes a listener readable at a request. It
//! gives up connects that are not accepted in time and for which no thread of this process waits.
//! No message passes through it.
//!
//! A panic in its work for one endpoint, such as one that a peer causes, poisons that endpoint and
//! no other. Not about starting the thread (`registry`).

use std::os::fd::RawFd;
use std::sync::{Arc, PoisonError};

use scif::logging::warn_about_peer;
use scif::sys::epoll::Epoll;
use scif::sys::thread::contained;
use scif::sys::time::now_ns;
use scif::sys::{descriptor, family, fork, unix};

use super::endpoint::{Epd, take};
use super::messages;
use super::registry::{FAMILY, Inner, Kind};
use super::state::State;

/// Interval in nanoseconds at which the thread checks for processes of the fork group that have
/// died.
const FORK_GROUP_NS: u64 = 100_000_000;

impl Inner {
    pub(super) fn serve(self: &Arc<Self>, epoll: &Epoll) {
        loop {
            let mut ready = Vec::new();
            let (related, limit) = {
                let _busy = fork::busy();
                let related = self.has_fork_group();
                (related, self.nap(related.then_some(FORK_GROUP_NS)))
            };
            if let Err(errno) = epoll.wait(limit, |token| ready.push(token)) {
                log::warn!(
                    "service thread has ended: epoll_wait: {errno}; closes and failures of peers \
                     are no longer detected. Restart the program"
                );
                return;
            }
            // A child forked in between would find the locks of this thread taken for ever.
            let _busy = fork::busy();
            if related {
                self.for_each(|epd| self.reap_sharers(epd));
            }
            let mut ended = false;
            for token in ready {
                if token == Kind::Question as u64 {
                    let _ = contained(|| self.asked(&take(&self.presence)));
                } else if token == FAMILY {
                    self.for_each(|epd| {
                        self.inherit(epd);
                        epd.windows.forget_copies();
                    });
                } else {
                    ended |= self.notice(epoll, token);
                }
            }
            if ended {
                let _ = contained(|| self.take_back());
            }
            // Done last: an answer that arrived in time counts.
            self.give_up_due();
        }
    }

    /// Handles one event. Returns whether an endpoint has ended with it.
    fn notice(&self, epoll: &Epoll, token: u64) -> bool {
        let epd = take(&self.service).watched.get(&(token >> 2)).cloned();
        let Some(epd) = epd else { return false };
        match token & 3 {
            // Handled even for a poisoned endpoint, so that it is removed.
            kind if kind == Kind::Descriptor as u64 => self.end_if_closed(&epd),
            kind if kind == Kind::Listener as u64 => {
                self.tend(&epd, || Self::requested(&epd)).is_some()
            }
            _ => self.tend(&epd, || self.linked(epoll, &epd)).unwrap_or(false),
        }
    }

    /// Runs `work` for every endpoint.
    fn for_each(&self, work: impl Fn(&Arc<Epd>)) {
        for epd in self.every() {
            let _ = self.tend(&epd, || work(&epd));
        }
    }

    /// Runs `work` for an endpoint on the service thread, unless the endpoint is poisoned. A panic
    /// in it poisons the endpoint: its connection or connect ends, and the thread ignores it until
    /// its close. `None` if `work` did not run or panicked.
    fn tend<T>(&self, epd: &Arc<Epd>, work: impl FnOnce() -> T) -> Option<T> {
        if epd.poisoned.get() {
            return None;
        }
        let done = contained(work);
        if done.is_none() {
            self.poison(epd);
        }
        done
    }

    #[cold]
    fn poison(&self, epd: &Arc<Epd>) {
        // Set first: a second panic ends the attempt, and there is no third.
        epd.poisoned.set(true);
        let port = epd.sharer.port();
        let _ = contained(|| {
            let listener = take(&epd.port_socket).take();
            if let Some(listener) = listener {
                // Other processes may have copies of the socket, so closing it does not refuse its
                // callers, neither later nor waiting ones.
                let _ = unix::stop_listening(&listener);
                self.unwatch(&listener);
                while unix::accept(&listener).is_ok() {}
            }
            if let Some(link) = epd.link() {
                self.unwatch(link.socket());
            }
            epd.sharer.pass(State::Listening, State::Disconnected);
            self.cut_off(epd)
        });
        warn_about_peer!(
            "the endpoint at port {port} cannot be used any more after an internal error: close it \
             and open another one"
        );
    }

    /// Runs the end of an endpoint. A panic leaves the remaining steps undone, but releases all
    /// waiters for the end.
    pub(super) fn survive_end(&self, epd: &Epd, end: impl FnOnce()) {
        if contained(end).is_some() {
            return;
        }
        // Frees the peer and the port, if the panic came before.
        let _ = contained(|| epd.end());
        epd.set_ended();
        warn_about_peer!(
            "internal error while the endpoint at port {} was closed; its peer may keep mappings \
             of its memory. Restart both programs and report the error",
            epd.sharer.port()
        );
    }

    /// Returns the time for which the thread may sleep: until the first deadline, and at most
    /// `most`.
    fn nap(&self, most: Option<u64>) -> Option<u64> {
        let mut service = take(&self.service);
        let due = service.deadlines.first().map(|&(deadline, _)| deadline);
        if due.is_none() && most.is_none() {
            service.wakes = u64::MAX;
            return None;
        }
        let now = now_ns();
        let end = most.map_or(u64::MAX, |most| now.saturating_add(most));
        service.wakes = due.map_or(end, |due| due.min(end));
        Some(service.wakes.saturating_sub(now))
    }

    /// Gives up the connects that were not accepted in time.
    fn give_up_due(&self) {
        let mut due = Vec::new();
        {
            let mut service = take(&self.service);
            if service.deadlines.is_empty() {
                return;
            }
            let now = now_ns();
            while let Some(&first) =
                service.deadlines.first().filter(|(deadline, _)| *deadline <= now)
            {
                service.deadlines.remove(&first);
                due.extend(service.watched.get(&first.1).cloned());
            }
        }
        for epd in due {
            let _ = self.tend(&epd, || self.connect_is_due(&epd));
        }
    }

    /// Whether other processes share endpoints of this one, or did and were not removed yet.
    fn has_fork_group(&self) -> bool {
        let shared =
            |epd: &Arc<Epd>| epd.link().is_some_and(|link| link.own.table.sharers.shared());
        family::had_fork_group() && take(&self.service).watched.values().any(shared)
    }

    /// Repairs the state after sharers that died or called `exec`: RMAs that remain unfinished, and
    /// a descriptor that shows an old state.
    fn reap_sharers(&self, epd: &Arc<Epd>) {
        let Some(link) = epd.link() else { return };
        if !link.own.table.sharers.reap(|| !family::has_fork_group()) {
            return;
        }
        link.tell_finished();
        let number = {
            let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
            let of = |slot: &Option<Arc<Epd>>| {
                slot.as_ref().is_some_and(|other| Arc::ptr_eq(other, epd))
            };
            table.iter().position(of)
        };
        if let Some(fd) = number.and_then(|fd| RawFd::try_from(fd).ok())
            && let Err(failure) = messages::recover(epd, link, fd)
        {
            log::debug!(
                "endpoint at port {}: repair after the death of a process that shared it failed: \
                 {failure}",
                epd.sharer.port()
            );
        }
    }

    /// Handles new requests at a listener.
    fn requested(epd: &Epd) {
        #[cfg(test)]
        tests::strike(epd, tests::FaultPoint::Request);
        let _held = epd.sharer.control.lock();
        if take(&epd.port_socket).as_ref().is_some_and(descriptor::readable) {
            descriptor::show_data(&epd.bell);
        }
        epd.sharer.happened();
    }

    /// Handles an event of the socket of a connection or request. Returns whether the endpoint has
    /// ended with it.
    fn linked(&self, epoll: &Epoll, epd: &Arc<Epd>) -> bool {
        #[cfg(test)]
        tests::strike(epd, tests::FaultPoint::Socket);
        let Some(link) = epd.link() else {
            self.answered(epd);
            return false;
        };
        while let Some(heard) = link.hear() {
            if !heard.is_some_and(|packet| self.take_packet(epd, link, packet)) {
                epoll.remove(link.socket());
                epd.disconnect();
                return self.end_if_closed(epd);
            }
        }
        false
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Mutex;
    use std::time::Instant;

    use scif::PortId;
    use scif::sys::descriptor;

    use super::*;
    use crate::{Endpoints, Failure, connected, endpoints};

    /// Place in the work of the service thread.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(crate) enum FaultPoint {
        Request,
        Socket,
        End,
        /// Asynchronous RMA, in a DMA thread.
        Rma,
        /// Store of a fence on the peer's RMAs.
        Signal,
    }

    /// Endpoints, by the inode of their descriptor, and the places at which the thread panics on
    /// them.
    static STRUCK: Mutex<Vec<(u64, FaultPoint)>> = Mutex::new(Vec::new());

    /// Panics once at a place that [`arm`] has named.
    pub(crate) fn strike(epd: &Epd, place: FaultPoint) {
        let at = (epd.id().inode(), place);
        let struck = {
            let mut all = take(&STRUCK);
            let before = all.len();
            all.retain(|one| *one != at);
            all.len() < before
        };
        assert!(!struck, "on purpose: {place:?}");
    }

    pub(crate) fn arm(scif: &Endpoints, fd: RawFd, place: FaultPoint) {
        take(&STRUCK).push((scif.0.get(fd).unwrap().id().inode(), place));
    }

    pub(crate) fn until(condition: &str, so: impl Fn() -> bool) {
        assert!(happens(so), "never: {condition}");
    }

    /// Waits until `so` holds, for at most 10 s. Returns whether it does.
    pub(crate) fn happens(so: impl Fn() -> bool) -> bool {
        let begin = Instant::now();
        while !so() {
            if begin.elapsed().as_secs() >= 10 {
                return false;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        true
    }

    /// Makes a connection, for which the opener's service thread must work.
    fn check_service(scif: &Endpoints) {
        let (a, b) = connected(scif, scif);
        scif.close(a).unwrap();
        scif.close(b).unwrap();
    }

    #[test]
    fn a_panic_over_a_connection_ends_it_and_no_other() {
        let scif = endpoints("panic-link", 0);
        let (good, _other) = connected(&scif, &scif);
        for _ in 0..3 {
            let (a, b) = connected(&scif, &scif);
            arm(&scif, a, FaultPoint::Socket);
            let far = scif.0.get(b).unwrap();
            far.link().unwrap().say(super::super::Packet::Mapped { serial: 0, mapped: false });
            for fd in [a, b] {
                until("reset", || scif.usable(fd) == Err(Failure::Reset));
            }
            scif.close(a).unwrap();
            scif.close(b).unwrap();
        }
        assert_eq!(scif.usable(good), Ok(()));
        check_service(&scif);
    }

    #[test]
    fn a_panic_over_an_answer_gives_the_connect_up() {
        let scif = endpoints("panic-answer", 0);
        let listener = scif.open().unwrap();
        let port = scif.bind(listener, 0).unwrap();
        scif.listen(listener, 1).unwrap();
        let opener = scif.open().unwrap();
        arm(&scif, opener, FaultPoint::Socket);
        let accepted = std::thread::scope(|scope| {
            let accepting = scope.spawn(|| scif.accept(listener, true));
            let begin = Instant::now();
            let refused = scif.connect(opener, PortId { node: 0, port });
            assert_eq!(refused, Err(Failure::Refused));
            let limit = u128::from(scif.config().connect_timeout_ms);
            assert!(begin.elapsed().as_millis() < limit, "given up before its time");
            accepting.join().unwrap()
        });
        let (_, accepted) = accepted.unwrap();
        until("the acceptor is told", || scif.usable(accepted) == Err(Failure::Reset));
        check_service(&scif);
    }

    #[test]
    fn a_panic_over_a_listener_refuses_its_callers() {
        let scif = endpoints("panic-request", 0);
        let listener = scif.open().unwrap();
        let port = scif.bind(listener, 0).unwrap();
        scif.listen(listener, 1).unwrap();
        let epd = scif.0.get(listener).unwrap();
        // As a forked child has it.
        let copy = take(&epd.port_socket).as_ref().unwrap().try_clone().unwrap();
        arm(&scif, listener, FaultPoint::Request);
        let begin = Instant::now();
        for _ in 0..2 {
            let opener = scif.open().unwrap();
            assert_eq!(scif.connect(opener, PortId { node: 0, port }), Err(Failure::Refused));
        }
        let limit = u128::from(scif.config().connect_timeout_ms);
        assert!(begin.elapsed().as_millis() < limit, "refused at once");
        drop(copy);
        assert_eq!(scif.accept(listener, true).err(), Some(Failure::Invalid));
        scif.close(listener).unwrap();
        check_service(&scif);
    }

    #[test]
    fn a_panic_over_an_end_releases_its_waiters() {
        // A child of another test would have a copy of the descriptor, and its close would not be
        // the last.
        let _alone = scif::sys::children::none();
        let scif = endpoints("panic-end", 0);
        for by_the_thread in [true, false] {
            let (a, b) = connected(&scif, &scif);
            arm(&scif, a, FaultPoint::End);
            let epd = scif.0.get(a).unwrap();
            if by_the_thread {
                descriptor::close(a).unwrap();
            } else {
                scif.close(a).unwrap();
            }
            until("ended", || !scif.0.every().iter().any(|other| Arc::ptr_eq(other, &epd)));
            until("the peer is told", || scif.usable(b) == Err(Failure::Reset));
            epd.wait_ended();
            scif.close(b).unwrap();
        }
        check_service(&scif);
    }
}

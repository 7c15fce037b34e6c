// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Service thread of a process: it watches the sockets of all endpoints and sleeps in epoll.
//!
//! The thread ends an endpoint after the last close of its descriptor. It disconnects an endpoint
//! at the end of its peer, and completes its connect at an answer. It makes a listener readable at
//! a request. It gives up connects that are not accepted in time and for which no thread of this
//! process waits. No message passes through it.
//!
//! A panic in its work for one endpoint, such as one that a peer causes, poisons that endpoint and
//! no other. Not about starting the thread (`registry`).

use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Arc, PoisonError};

use scif::logging::warn_about_peer;
use scif::sys::epoll::Epoll;
use scif::sys::thread::contained;
use scif::sys::time::now_ns;
use scif::sys::{descriptor, family, fork, process, unix};

use crate::endpoint::Epd;
#[cfg(test)]
use crate::faults;
use crate::lock::take;
use crate::registration::{deletion, page_restore};
use crate::registry::{FAMILY, Inner, Kind};
use crate::state::State;
use crate::wire::Packet;
use crate::{connect, ending, messages, node_failure, sharing};

/// Interval in nanoseconds at which the thread checks for processes of the fork group that have
/// died.
const FORK_GROUP_NS: u64 = 100_000_000;
/// Interval in nanoseconds at which the thread checks whether RMAs still use the windows of a
/// closed endpoint. Its end is late by that time.
const IN_USE_NS: u64 = 1_000_000;

pub(super) fn serve(inner: &Arc<Inner>, epoll: &Epoll) {
    loop {
        let mut ready = Vec::new();
        let (related, limit) = {
            let _busy = fork::busy();
            let related = has_fork_group(inner);
            let waits = !take(&inner.service).in_use.is_empty();
            let most = related.then_some(FORK_GROUP_NS);
            (related, nap(inner, if waits { Some(IN_USE_NS) } else { most }))
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
            for_each(inner, |epd| reap_sharers(inner, epd));
        }
        let mut ended = false;
        for token in ready {
            if token == Kind::Question as u64 {
                let _ = contained(|| answer_questions(inner, &take(&inner.presence)));
            } else if token == FAMILY {
                for_each(inner, |epd| {
                    sharing::inherit(inner, epd);
                    epd.windows.forget_copies();
                });
            } else {
                ended |= notice(inner, epoll, token);
            }
        }
        ended |= end_unused(inner);
        if ended {
            let _ = contained(|| page_restore::take_back(inner));
        }
        // Done last: an answer that arrived in time counts.
        give_up_due(inner);
    }
}

/// Handles one event. Returns whether an endpoint has ended with it.
fn notice(inner: &Inner, epoll: &Epoll, token: u64) -> bool {
    let epd = take(&inner.service).watched.get(&(token >> 2)).cloned();
    let Some(epd) = epd else { return false };
    match token & 3 {
        // Handled even for a poisoned endpoint, so that it is removed.
        kind if kind == Kind::Descriptor as u64 => {
            if epd.is_closed() {
                take(&inner.service).in_use.push((now_ns(), epd));
            }
            false
        }
        kind if kind == Kind::Listener as u64 => tend(inner, &epd, || requested(&epd)).is_some(),
        _ => tend(inner, &epd, || linked(inner, epoll, &epd)).unwrap_or(false),
    }
}

/// Ends the closed endpoints whose windows no RMA uses any more. A peer that never finishes an RMA
/// holds up the end of its endpoint, and not this thread. Returns whether an endpoint has ended.
fn end_unused(inner: &Inner) -> bool {
    let closed = std::mem::take(&mut take(&inner.service).in_use);
    let mut ended = false;
    for (since, epd) in closed {
        let waited = now_ns().saturating_sub(since);
        if contained(|| deletion::are_windows_in_use(inner, &epd, waited)) == Some(true) {
            take(&inner.service).in_use.push((since, epd));
        } else {
            ended |= ending::end_if_closed(inner, &epd);
        }
    }
    ended
}

/// Runs `work` for every endpoint.
fn for_each(inner: &Inner, work: impl Fn(&Arc<Epd>)) {
    for epd in inner.every() {
        let _ = tend(inner, &epd, || work(&epd));
    }
}

/// Runs `work` for an endpoint on the service thread, unless the endpoint is poisoned. A panic
/// in it poisons the endpoint: its connection or connect ends, and the thread ignores it until
/// its close. `None` if `work` did not run or panicked.
fn tend<T>(inner: &Inner, epd: &Arc<Epd>, work: impl FnOnce() -> T) -> Option<T> {
    if epd.poisoned.get() {
        return None;
    }
    let done = contained(work);
    if done.is_none() {
        poison(inner, epd);
    }
    done
}

#[cold]
fn poison(inner: &Inner, epd: &Arc<Epd>) {
    // Set first: a second panic ends the attempt, and there is no third.
    epd.poisoned.set(true);
    let port = epd.sharer.port();
    let _ = contained(|| {
        let listener = take(&epd.port_socket).take();
        if let Some(listener) = listener {
            // Other processes may have copies of the socket, so closing it does not refuse its
            // callers, neither later nor waiting ones.
            let _ = unix::stop_listening(&listener);
            inner.unwatch(&listener);
            while unix::accept(&listener).is_ok() {}
        }
        epd.silent_callers.clear();
        if let Some(link) = epd.link() {
            inner.unwatch(link.socket());
        }
        epd.sharer.pass(State::Listening, State::Disconnected);
        cut_off(inner, epd)
    });
    warn_about_peer!(
        "the endpoint at port {port} cannot be used any more after an internal error: close it \
         and open another one"
    );
}

/// Handles questions to this process. Called by the service thread.
pub(crate) fn answer_questions(inner: &Inner, presence: &OwnedFd) {
    while let Ok(socket) = unix::accept(presence) {
        if !unix::credentials(&socket).is_ok_and(|peer| peer.uid == inner.uid || peer.uid == 0) {
            continue;
        }
        match node_failure::read(&socket) {
            Some(Packet::Lose(node)) => {
                let (ended, mapped) = lose(inner, node);
                let _ = unix::send(&socket, &Packet::Ended(ended).encode(), &[]);
                if mapped && inner.config.node_lost_kill {
                    process::kill_self();
                }
            }
            Some(Packet::Echo(n)) => {
                let _ = unix::send(&socket, &Packet::Echo(n).encode(), &[]);
            }
            _ => {}
        }
    }
}

/// Closes every connection with `node`, which may be the own node. Returns their number, and
/// whether pages were mapped.
fn lose(inner: &Inner, node: u32) -> (u32, bool) {
    let (mut ended, mut mapped) = (0, false);
    if let Ok(number) = u16::try_from(node) {
        inner.node_events.loses(number);
    }
    for epd in inner.every() {
        if u32::from(epd.sharer.peer().node) == node || u32::from(inner.config.node) == node {
            let (was_connected, had_mappings) = lose_one(inner, &epd);
            ended += u32::from(was_connected);
            mapped |= had_mappings;
        }
    }
    (ended, mapped)
}

fn lose_one(inner: &Inner, epd: &Arc<Epd>) -> (bool, bool) {
    let Some(was_connected) = cut_off(inner, epd) else {
        return (false, false);
    };
    let kill = inner.config.node_lost_kill;
    (was_connected, epd.windows.lose_mappings(!kill))
}

/// Gives up a pending connect and cuts a connection. Returns whether the endpoint was
/// connected, `None` where it never was.
pub(super) fn cut_off(inner: &Inner, epd: &Arc<Epd>) -> Option<bool> {
    {
        let _held = epd.sharer.control.lock();
        if epd.sharer.state() == State::Connecting {
            connect::give_up(inner, epd);
        }
    }
    sharing::inherit(inner, epd);
    let link = epd.link()?;
    let was_connected = epd.sharer.state() == State::Connected;
    epd.disconnect();
    link.cut();
    Some(was_connected)
}

/// Returns the time for which the thread may sleep: until the first deadline, and at most
/// `most`.
fn nap(inner: &Inner, most: Option<u64>) -> Option<u64> {
    let mut service = take(&inner.service);
    let due = service.deadlines.first().map(|(&(deadline, _), ())| deadline);
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
fn give_up_due(inner: &Inner) {
    let mut due = Vec::new();
    {
        let mut service = take(&inner.service);
        if service.deadlines.is_empty() {
            return;
        }
        let now = now_ns();
        while let Some(&first) =
            service.deadlines.first().map(|(at, ())| at).filter(|(deadline, _)| *deadline <= now)
        {
            service.deadlines.remove(&first);
            due.extend(service.watched.get(&first.1).cloned());
        }
    }
    for epd in due {
        let _ = tend(inner, &epd, || connect::connect_is_due(inner, &epd));
    }
}

/// Whether other processes share endpoints of this one, or did and were not removed yet.
fn has_fork_group(inner: &Inner) -> bool {
    let shared = |epd: &Arc<Epd>| epd.link().is_some_and(|link| link.own.table.sharers.shared());
    family::had_fork_group() && take(&inner.service).watched.values().any(shared)
}

/// Repairs the state after sharers that died or called `exec`: RMAs that remain unfinished, and
/// a descriptor that shows an old state.
fn reap_sharers(inner: &Inner, epd: &Arc<Epd>) {
    let Some(link) = epd.link() else { return };
    if !link.own.table.sharers.reap(|| !family::has_fork_group()) {
        return;
    }
    link.notify_finished();
    let number = {
        let table = inner.table.read().unwrap_or_else(PoisonError::into_inner);
        let of =
            |slot: &Option<Arc<Epd>>| slot.as_ref().is_some_and(|other| Arc::ptr_eq(other, epd));
        table.iter().position(of)
    };
    if let Some(fd) = number.and_then(|fd| RawFd::try_from(fd).ok()) {
        if let Err(failure) = messages::recover(epd, link, fd) {
            log::debug!(
                "endpoint at port {}: its state could not be recovered after the death of a \
                 process that shared it: {failure}; a poll of its descriptor may miss data or \
                 space",
                epd.sharer.port()
            );
        }
    }
}

/// Handles new requests at a listener.
fn requested(epd: &Epd) {
    #[cfg(test)]
    faults::strike(epd, faults::FaultPoint::Request);
    let _held = epd.sharer.control.lock();
    if epd.has_request() {
        descriptor::show_data(&epd.bell);
    }
    epd.sharer.happened();
}

/// Handles an event of the socket of a connection or request. Returns whether the endpoint has
/// ended with it.
fn linked(inner: &Inner, epoll: &Epoll, epd: &Arc<Epd>) -> bool {
    #[cfg(test)]
    faults::strike(epd, faults::FaultPoint::Socket);
    let Some(link) = epd.link() else {
        connect::answered(inner, epd);
        return false;
    };
    while let Some(received) = link.receive_packet() {
        if !received.is_some_and(|packet| deletion::take_packet(epd, link, packet)) {
            epoll.remove(link.socket());
            epd.disconnect();
            return ending::end_if_closed(inner, epd);
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use scif::PortId;
    use scif::sys::descriptor;

    use super::*;
    use crate::faults::{FaultPoint, arm, until};
    use crate::{Endpoints, Failure, connected, endpoints};

    /// Makes a connection, for which the opener's service thread must work.
    fn check_service(scif: &Endpoints) {
        let (a, b) = connected(scif, scif);
        scif.close(a).unwrap();
        scif.close(b).unwrap();
    }

    #[test]
    fn panic_during_connection_work_ends_that_connection_only() {
        let scif = endpoints("panic-link", 0);
        let (good, _other) = connected(&scif, &scif);
        for _ in 0..3 {
            let (a, b) = connected(&scif, &scif);
            arm(&scif, a, FaultPoint::Socket);
            let far = scif.0.get(b).unwrap();
            far.link().unwrap().send_packet(Packet::Mapped { serial: 0, mapped: false });
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
    fn panic_during_an_answer_abandons_the_connect() {
        let scif = endpoints("panic-answer", 0);
        let listener = scif.open().unwrap();
        let port = scif.bind(listener, 0).unwrap();
        scif.listen(listener, 1).unwrap();
        let opener = scif.open().unwrap();
        arm(&scif, opener, FaultPoint::Socket);
        let accepted = std::thread::scope(|scope| {
            let accepting = scope.spawn(|| scif.accept(listener, true));
            let begin = Instant::now();
            let refused = scif.connect(opener, PortId::new(0, port));
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
    fn panic_during_an_accept_refuses_the_callers() {
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
            assert_eq!(scif.connect(opener, PortId::new(0, port)), Err(Failure::Refused));
        }
        let limit = u128::from(scif.config().connect_timeout_ms);
        assert!(begin.elapsed().as_millis() < limit, "refused at once");
        drop(copy);
        assert_eq!(scif.accept(listener, true).err(), Some(Failure::Invalid));
        scif.close(listener).unwrap();
        check_service(&scif);
    }

    #[test]
    fn peer_inside_an_rma_does_not_delay_others() {
        // A child of another test would have a copy of the descriptor.
        let _alone = scif::sys::children::none();
        let scif = endpoints("in-use", 0);
        let (a, b) = connected(&scif, &scif);
        let (epd, far) = (scif.0.get(a).unwrap(), scif.0.get(b).unwrap());
        let copying = far.link().unwrap().own.table.copying().unwrap();
        descriptor::close(a).unwrap();
        until("closed", || !take(&scif.0.service).in_use.is_empty());
        check_service(&scif);
        let is_known = || scif.0.every().iter().any(|other| Arc::ptr_eq(other, &epd));
        assert!(is_known(), "ended during an RMA");
        drop(copying);
        until("ended", || !is_known());
        scif.close(b).unwrap();
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

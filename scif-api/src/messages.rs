// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Sending and receiving over a byte stream in each direction, complete or as much as possible at
//! once.
//!
//! Not about the queue itself (`scif_ring::stream`). A thread inside a call polls the stream. On
//! leaving it makes the descriptor show the current state. Source: `scif_send`, `scif_recv`.

use std::os::fd::RawFd;
use std::sync::Arc;

use scif::sys::lock::Held;
use scif::sys::time::{cpu_relax_or_yield, now_ns};
use scif::sys::{descriptor, family, futex, slice};
use scif_ring::{FdAction, INLINE_MAX, Mem, STREAM_PART, STREAM_ROOM, WakeWords};

use crate::endpoint::Epd;
use crate::failure::{Failure, Result};
use crate::link::Link;
use crate::registry::Inner;
use crate::state::State;

/// Nanoseconds that a peer may take between announcing a signal (`RINGING`) and sending it.
/// Afterwards this side stops waiting and marks the peer as late.
const RINGING_NS: u64 = 1_000_000;
/// Polls between two readings of the clock. More make the spin limit less exact.
const LOOKS: u32 = 16;

/// Returns the link of an endpoint that is or was connected. Bytes that the peer sent remain
/// receivable after its close.
fn once_connected(epd: &Epd) -> Result<&Link> {
    match epd.sharer.state() {
        State::Connected | State::Disconnected => epd.link().ok_or(Failure::NotConnected),
        State::Unbound | State::Bound | State::Listening | State::Connecting | State::Closing => {
            Err(Failure::NotConnected)
        }
    }
}

/// Fast path: sends a short message without a reference count on the endpoint. `None`: the message
/// was not sent, and the slow path must send it.
#[inline]
pub(crate) fn send_short(inner: &Inner, fd: RawFd, src: &Mem) -> Option<usize> {
    let n = src.len();
    let mut bytes = [0; INLINE_MAX];
    // A page fault in the program's memory must happen before any lock is taken.
    src.copy_to_slice(bytes.get_mut(..n)?);
    let awaited =
        slice::with_bytes(bytes.get(..n)?, |src| inner.at_once(fd, |epd| push_short(epd, src)))?;
    if let Some(epd) = awaited {
        let _held = epd.sharer.sending.kept();
        if let Some(link) = epd.link() {
            link.notify_data();
        }
    }
    Some(n)
}

/// Pushes the message while the table lock keeps the endpoint open. If the peer waits for it,
/// returns the endpoint with its sending lock still held.
#[inline]
fn push_short(epd: &Arc<Epd>, src: &Mem) -> Option<Option<Arc<Epd>>> {
    let link = epd.link().filter(|link| !epd.over(link))?;
    let held = epd.sharer.sending.try_lock()?;
    if held.owner_died() || !link.tx.push_whole(src) {
        return None;
    }
    epd.sharer.record.sent(src.len());
    Some(link.tx.is_awaited().then(|| {
        held.keep();
        Arc::clone(epd)
    }))
}

/// Sends as many bytes of `src` as fit, or all of them if `wait`. Returns the number of bytes.
pub(crate) fn send(epd: &Epd, fd: RawFd, src: &Mem, wait: bool, spin_ns: u64) -> Result<usize> {
    let link = once_connected(epd)?;
    let held = epd.sharer.sending.lock();
    if held.owner_died() {
        recover_sending(epd, link, fd, &held)?;
    }
    // A call that does not wait moves no more than a driver would.
    let most = if wait { STREAM_PART } else { STREAM_ROOM };
    let mut done = 0;
    let outcome = loop {
        if epd.over(link) {
            break Err(Failure::Reset);
        }
        let part = src.sub(done, (src.len() - done).min(most)).ok_or(Failure::Invalid)?;
        let Ok(n) = link.tx.push(&part) else {
            epd.disconnect();
            break Err(Failure::Reset);
        };
        if n != 0 {
            done += n;
            epd.sharer.record.sent(n);
            link.notify_data();
        }
        if done == src.len() || !wait {
            break Ok(());
        }
        if n != 0 {
            continue;
        }
        let full = || link.tx.room() == Ok(0) && !epd.over(link);
        // The descriptor shows space while this thread polls for it.
        if poll_while(spin_ns, full) {
            if let Err(failure) =
                settle_space(epd, link, fd).and_then(|()| sleep(epd, fd, link.tx.space(), full))
            {
                break Err(failure);
            }
        }
    };
    if link.tx.appears_full() && !epd.over(link) {
        settled(done, settle_space(epd, link, fd))?;
    }
    partial(done, outcome)
}

/// Receives the available bytes, or fills `dst` if `wait`. Returns the number of bytes.
pub(crate) fn receive(epd: &Epd, fd: RawFd, dst: &Mem, wait: bool, spin_ns: u64) -> Result<usize> {
    let link = once_connected(epd)?;
    let held = epd.sharer.receiving.lock();
    if held.owner_died() {
        recover_receiving(epd, link, fd, &held)?;
    }
    // A polling sharer gets no signals. If it were killed, the others would get none either.
    if wait && !family::has_fork_group() {
        link.rx.data().start_polling();
    }
    let demands = wait && dst.len() > STREAM_ROOM;
    if demands {
        link.rx.announce_demand(dst.len());
    }
    let mut done = 0;
    let outcome = loop {
        // Read first: after the end, the stream holds all bytes that will ever arrive.
        let over = epd.over(link);
        let part = dst.sub(done, (dst.len() - done).min(STREAM_PART)).ok_or(Failure::Invalid)?;
        let Ok(n) = link.rx.pull(&part) else {
            epd.disconnect();
            break Err(Failure::Reset);
        };
        done += n;
        epd.sharer.record.received(n);
        if done == dst.len() {
            break Ok(());
        }
        // One step takes only a part of them.
        if over && n == 0 {
            break Err(Failure::Reset);
        }
        if !wait {
            break Ok(());
        }
        if n != 0 {
            link.notify_space();
            continue;
        }
        let empty = || link.rx.ready() == Ok(0) && !epd.over(link);
        if poll_while(spin_ns, empty) {
            if let Err(failure) = sleep(epd, fd, link.rx.data(), empty) {
                break Err(failure);
            }
        }
        link.rx.prefetch_wake_word();
    };
    if demands && done != dst.len() {
        link.rx.withdraw_demand();
    }
    // A late peer may have left a signal to undo, which needs the slow path.
    let quick = done != 0 && epd.sharer.state() == State::Connected && !epd.sharer.peer_was_late();
    if quick && link.leaves_empty() {
        return partial(done, outcome);
    }
    if done != 0 {
        link.notify_space();
    } else if !wait {
        epd.verify(fd)?;
    }
    settled(done, settle_data(epd, link, fd))?;
    partial(done, outcome)
}

/// Discards the outcome of settling a descriptor if bytes were moved. A number that now names
/// another endpoint cannot be settled. Only a call that moved nothing may be repeated on the new
/// endpoint.
fn settled(done: usize, outcome: Result<()>) -> Result<()> {
    if done == 0 { outcome } else { Ok(()) }
}

/// Reports moved bytes in preference to the reason why no more were moved.
fn partial(done: usize, outcome: Result<()>) -> Result<usize> {
    match outcome {
        Err(failure) if done == 0 => Err(failure),
        _ => Ok(done),
    }
}

/// Polls for at most `spin_ns` while `nothing` is true. Returns whether it still is.
#[inline]
fn poll_while(spin_ns: u64, nothing: impl Fn() -> bool) -> bool {
    let mut since = None;
    let mut looks = 0u32;
    while nothing() {
        if looks % LOOKS == 0 {
            let now = now_ns();
            if now.saturating_sub(*since.get_or_insert(now)) >= spin_ns {
                break;
            }
        }
        looks += 1;
        cpu_relax_or_yield(looks);
    }
    nothing()
}

/// Sleeps while `nothing` is true.
fn sleep(epd: &Epd, fd: RawFd, wake_words: WakeWords, nothing: impl Fn() -> bool) -> Result<()> {
    epd.verify(fd)?;
    let seq = wake_words.sleep_begins();
    let slept = if nothing() { futex::wait(&wake_words.seq(), seq, None) } else { Ok(()) };
    wake_words.sleep_ends();
    match slept {
        Ok(()) | Err(rustix::io::Errno::AGAIN) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Makes the descriptor show whether there are bytes to receive. The caller holds the receiving
/// lock.
pub(crate) fn settle_data(epd: &Epd, link: &Link, fd: RawFd) -> Result<()> {
    let make = |show| make_data(epd, fd, show);
    settle(epd, link.rx.data(), || link.rx.next_fd_action(), make)
}

/// Makes the descriptor show whether there is space to send. The caller holds the sending lock.
pub(crate) fn settle_space(epd: &Epd, link: &Link, fd: RawFd) -> Result<()> {
    let make = |show| make_space(epd, fd, show);
    settle(epd, link.tx.space(), || link.tx.next_fd_action(), make)
}

fn make_data(epd: &Epd, fd: RawFd, show: bool) -> Result<()> {
    if show {
        descriptor::show_data(&epd.bell);
    } else {
        epd.verify(fd)?;
        descriptor::hide_data(fd);
    }
    Ok(())
}

fn make_space(epd: &Epd, fd: RawFd, show: bool) -> Result<()> {
    if show {
        descriptor::show_space(&epd.bell);
    } else {
        epd.verify(fd)?;
        descriptor::hide_space(fd);
    }
    Ok(())
}

fn settle(
    epd: &Epd,
    wake_words: WakeWords,
    next_action: impl Fn() -> FdAction,
    make: impl Fn(bool) -> Result<()>,
) -> Result<()> {
    let mut since = None;
    let mut hidden = false;
    loop {
        // A descriptor that hung up shows everything permanently.
        if epd.sharer.state() != State::Connected {
            return Ok(());
        }
        match next_action() {
            FdAction::Done if epd.sharer.peer_was_late() && !hidden && wake_words.disarm() => {
                make(false)?;
                wake_words.armed();
                hidden = true;
            }
            FdAction::Done => return Ok(()),
            FdAction::Signal => make(true)?,
            FdAction::Clear => {
                make(false)?;
                wake_words.armed();
            }
            FdAction::Wait => {
                let now = now_ns();
                if now.saturating_sub(*since.get_or_insert(now)) > RINGING_NS {
                    // Set first: the sharer that recovers after our death must know.
                    epd.sharer.set_peer_late();
                    if wake_words.give_up_waiting() {
                        make(false)?;
                        wake_words.armed();
                    }
                }
                cpu_relax_or_yield(u32::MAX);
            }
        }
    }
}

/// Recovers from a sharer that died with the receiving lock: repeats its steps for this side and
/// for the peer.
fn recover_receiving(epd: &Epd, link: &Link, fd: RawFd, held: &Held<'_>) -> Result<()> {
    link.rx.withdraw_demand();
    link.resend_space_wakeup();
    if epd.sharer.state() == State::Connected && link.rx.data().reset_after_crash() {
        make_data(epd, fd, false)?;
        link.rx.data().armed();
    }
    settle_data(epd, link, fd)?;
    held.recovered();
    Ok(())
}

/// Recovers from a sharer that died with the sending lock, like `recover_receiving`.
fn recover_sending(epd: &Epd, link: &Link, fd: RawFd, held: &Held<'_>) -> Result<()> {
    link.resend_data_wakeup();
    if epd.sharer.state() == State::Connected && link.tx.space().reset_after_crash() {
        make_space(epd, fd, false)?;
        link.tx.space().armed();
    }
    settle_space(epd, link, fd)?;
    held.recovered();
    Ok(())
}

/// Makes the descriptor show the current state, unless a sharer inside a call is about to. Repeats
/// the work of a sharer that died inside a call, unless another sharer holds that lock. The other
/// one learnt of the death when it took the lock, and repeats the work itself.
pub(crate) fn recover(epd: &Epd, link: &Link, fd: RawFd) -> Result<()> {
    let received = epd.sharer.receiving.try_lock().map(|held| {
        if held.owner_died() {
            recover_receiving(epd, link, fd, &held)
        } else {
            settle_data(epd, link, fd)
        }
    });
    let sent = epd.sharer.sending.try_lock().map(|held| {
        if held.owner_died() {
            recover_sending(epd, link, fd, &held)
        } else {
            settle_space(epd, link, fd)
        }
    });
    received.into_iter().chain(sent).collect()
}

/// Requests signals for bytes from now on, and shows bytes that already arrived. The caller holds
/// the receiving lock. The connection is new, so there is nothing to hide.
pub(crate) fn show_data(epd: &Epd, link: &Link) {
    if link.rx.next_fd_action() == FdAction::Signal {
        descriptor::show_data(&epd.bell);
    }
}

#[cfg(test)]
mod tests {
    use scif::sys::children;

    use super::*;
    use crate::Endpoints;
    use crate::kernel_mode::tests::{connected, endpoints};

    /// A peer announces a signal and sends it after one sharer stopped waiting for it. Another
    /// sharer, which does not know, finds the stream empty and hides the signal.
    #[test]
    fn a_late_ring_is_hidden_by_any_sharer() {
        let scif = endpoints("late", 0);
        let (a, b) = connected(&scif, &scif);
        let shows = || descriptor::shows_data(a);
        let (wait, go) = rustix::pipe::pipe().unwrap();
        let child = children::in_child(|| {
            let mut byte = [0];
            let started = rustix::io::read(&wait, &mut byte) == Ok(1);
            let shown = shows();
            let nothing = scif.receive_bytes(a, &mut byte, false) == Ok(0);
            i32::from(started && shown && nothing && !shows())
        });
        let peer = scif.0.get(b).unwrap();
        let link = peer.link().unwrap();
        assert_eq!(scif::sys::slice::with_bytes(&[7], |mem| link.tx.push(mem)), Ok(1));
        assert!(link.tx.prepare_wake().ring);
        let mut byte = [0];
        assert_eq!(scif.receive_bytes(a, &mut byte, false), Ok(1));
        assert!(!shows());
        descriptor::show_data(link.peer_bell());
        link.tx.data().complete_signal();
        rustix::io::write(&go, &[1]).unwrap();
        assert_eq!(child.result(), 1);
    }

    /// Makes two connections and moves the second acceptor to the number of the first, unnoticed by
    /// the library.
    fn renamed(name: &str) -> (Endpoints, [RawFd; 4]) {
        let scif = endpoints(name, 0);
        let (a, b) = connected(&scif, &scif);
        let (c, d) = connected(&scif, &scif);
        let kept = scif.open().unwrap();
        descriptor::replace(a, kept).unwrap();
        descriptor::replace(c, a).unwrap();
        (scif, [a, b, c, d])
    }

    #[test]
    fn received_bytes_count_after_the_descriptor_was_replaced() {
        let (scif, [a, b, c, d]) = renamed("received");
        // Otherwise the call need not settle the descriptor.
        scif.0.get(a).unwrap().sharer.set_peer_late();
        assert_eq!(scif.send_bytes(b, b"mine", false), Ok(4));
        assert_eq!(scif.send_bytes(d, b"your", false), Ok(4));
        let mut bytes = [0; 4];
        assert_eq!(scif.receive_bytes(a, &mut bytes, false), Ok(4));
        assert_eq!(&bytes, b"mine");
        assert_eq!(scif.receive_bytes(c, &mut bytes, false), Ok(4));
        assert_eq!(&bytes, b"your");
    }

    #[test]
    fn sent_bytes_count_after_the_descriptor_was_replaced() {
        let (scif, [a, b, _c, d]) = renamed("sent");
        assert_eq!(scif.send_bytes(a, &[1; 5000], false), Ok(4095));
        let mut bytes = [0; 5000];
        assert_eq!(scif.receive_bytes(d, &mut bytes, false), Ok(0), "sent once");
        // Nothing fits in the first connection, so the call is repeated on the new one.
        assert_eq!(scif.send_bytes(a, b"more", false), Ok(4));
        assert_eq!(scif.receive_bytes(d, &mut bytes, false), Ok(4));
        assert_eq!(scif.receive_bytes(b, &mut bytes, false), Ok(4095));
    }

    #[test]
    fn receive_returns_all_parts_sent_before_the_close() {
        let scif = endpoints("parts", 0);
        let (a, b) = connected(&scif, &scif);
        scif.0.get(a).unwrap().link().unwrap().rx.announce_demand(30_000);
        assert_eq!(scif.send_bytes(b, &[7; 20_000], true), Ok(20_000));
        scif.close(b).unwrap();
        let mut bytes = [0; 30_000];
        assert_eq!(scif.receive_bytes(a, &mut bytes, true), Ok(20_000));
        assert!(bytes.iter().take(20_000).all(|byte| *byte == 7));
        assert_eq!(scif.receive_bytes(a, &mut bytes, true), Err(Failure::Reset));
    }

    /// A sharer is killed in a receive of more bytes than the queue takes without one.
    #[test]
    fn the_demand_of_a_killed_sharer_is_withdrawn() {
        let scif = endpoints("demand", 0);
        let (a, b) = connected(&scif, &scif);
        let room = || scif.0.get(b).unwrap().link().unwrap().tx.room();
        let killed = children::in_child(|| {
            let receiver = scif.0.get(a).unwrap();
            let held = receiver.sharer.receiving.lock();
            receiver.link().unwrap().rx.announce_demand(20_000);
            let _ = std::mem::ManuallyDrop::new(held);
            // Asked here: the service thread may withdraw it as soon as the child has ended.
            i32::from(room() == Ok(20_000 + STREAM_ROOM))
        });
        assert_eq!(killed.result(), 1);
        assert_eq!(scif.receive_bytes(a, &mut [0], false), Ok(0));
        assert_eq!(room(), Ok(STREAM_ROOM));
    }

    /// A sharer is killed between announcing a signal and sending it. The next sender sends it, and
    /// so does the thread that notices the death.
    #[test]
    fn the_wakeups_of_a_killed_sharer_are_resent() {
        for by_sending in [true, false] {
            let scif = endpoints("killed", 0);
            let (a, b) = connected(&scif, &scif);
            let killed = children::in_child(|| {
                let sender = scif.0.get(b).unwrap();
                let link = sender.link().unwrap();
                let held = sender.sharer.sending.lock();
                let pushed = scif::sys::slice::with_bytes(&[7], |mem| link.tx.push(mem));
                let rings = link.tx.prepare_wake().ring;
                let _ = std::mem::ManuallyDrop::new(held);
                i32::from(pushed == Ok(1) && rings)
            });
            assert_eq!(killed.result(), 1);
            let mut count = 1;
            if by_sending {
                assert_eq!(scif.send_bytes(b, &[8], false), Ok(1));
                count += 1;
            } else {
                let sender = scif.0.get(b).unwrap();
                recover(&sender, sender.link().unwrap(), b).unwrap();
            }
            assert!(descriptor::shows_data(a));
            let mut bytes = [0; 3];
            assert_eq!(scif.receive_bytes(a, &mut bytes, false), Ok(count));
            assert_eq!(bytes.get(..count), [7, 8].get(..count));
            assert!(!descriptor::shows_data(a));
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Models of the byte stream: sleepers, state of a descriptor, late signals, closing. Queues of
//! four bytes.

use loom::sync::Arc;
use loom::thread::{spawn, yield_now};
use scif_ring::model::stream;
use scif_ring::{FdAction, Mem, STREAM_PART, SharedU32, StreamRx, StreamTx, WakeWords, Wakeups};

/// Model of futex(2): the comparison and the start of the sleep are one step.
#[derive(Clone)]
struct Futex(Arc<(loom::sync::Mutex<()>, loom::sync::Condvar)>);

impl Futex {
    fn new() -> Futex {
        Futex(Arc::new((loom::sync::Mutex::new(()), loom::sync::Condvar::new())))
    }

    fn wait(&self, word: SharedU32, seen: u32) {
        let held = self.0.0.lock().unwrap();
        if word.get() == seen {
            drop(self.0.1.wait(held).unwrap());
        }
    }

    fn wake(&self) {
        let held = self.0.0.lock().unwrap();
        self.0.1.notify_all();
        drop(held);
    }

    fn wake_if_owed(&self, wakeups: Wakeups) {
        if wakeups.wake {
            self.wake();
        }
    }
}

fn mem(bytes: &mut [u8]) -> Mem {
    // SAFETY: the caller does not use the bytes meanwhile.
    unsafe { Mem::new(bytes.as_mut_ptr(), bytes.len()) }
}

/// Takes at most two bytes, and checks that they continue the sequence.
fn take_next(rx: &StreamRx, next: &mut u8) -> usize {
    let mut bytes = [0; 2];
    let n = rx.pull(&mem(&mut bytes)).unwrap();
    for byte in &bytes[..n] {
        assert_eq!(*byte, *next);
        *next += 1;
    }
    n
}

fn sleep(futex: &Futex, wake_words: WakeWords, fenced: bool, nothing: impl Fn() -> bool) {
    let seq =
        if fenced { wake_words.sleep_begins() } else { wake_words.sleep_begins_without_fence() };
    if nothing() {
        futex.wait(wake_words.seq(), seq);
    }
    wake_words.sleep_ends();
}

/// Bytes arrive once and in order, over the end of the queue, and none is overwritten before it is
/// taken.
pub(crate) fn stream_bytes_in_order() {
    let (tx, rx, _) = stream();
    let t = spawn(move || {
        let mut bytes = [1, 2, 3, 4, 5];
        let mut done = 0;
        while done < bytes.len() {
            let end = bytes.len().min(done + 2);
            match tx.push(&mem(&mut bytes[done..end])).unwrap() {
                0 => yield_now(),
                n => done += n,
            }
        }
    });
    let mut next = 1;
    while next <= 5 {
        if take_next(&rx, &mut next) == 0 {
            yield_now();
        }
    }
    t.join().unwrap();
}

/// Single bytes, which travel in the line of the position, arrive once and in order.
pub(crate) fn stream_short(push: fn(&StreamTx, &Mem)) {
    let (tx, rx, _) = stream();
    let t = spawn(move || {
        for byte in 1..=3 {
            push(&tx, &mem(&mut [byte]));
        }
    });
    let mut next = 1;
    while next <= 3 {
        if take_next(&rx, &mut next) == 0 {
            yield_now();
        }
    }
    t.join().unwrap();
}

#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Without {
    Nothing,
    SleepersFence,
    SendersFence,
}

/// A sleeper for bytes, or for space, is woken: loom reports a sleeper that is not.
pub(crate) fn stream_sleepers(without: Without, leaves: bool) {
    let (tx, rx, _) = stream();
    let (data, space) = (Futex::new(), Futex::new());
    let (theirs, room) = (data.clone(), space.clone());
    let count: u8 = if without == Without::Nothing { 5 } else { 1 };
    let t = spawn(move || {
        let mut byte = 1;
        while byte <= count {
            if tx.push(&mem(&mut [byte])).unwrap() == 0 {
                sleep(&room, tx.space(), true, || tx.room() == Ok(0));
                continue;
            }
            byte += 1;
            theirs.wake_if_owed(if without == Without::SendersFence {
                tx.prepare_wake_without_fence()
            } else {
                tx.prepare_wake()
            });
        }
    });
    let mut next = 1;
    while next <= count {
        if take_next(&rx, &mut next) == 0 {
            let fenced = without != Without::SleepersFence;
            sleep(&data, rx.data(), fenced, || rx.ready() == Ok(0));
        } else {
            let left = if leaves { rx.stop_polling() } else { None };
            space.wake_if_owed(left.unwrap_or_else(|| rx.prepare_wake()));
        }
    }
    t.join().unwrap();
}

/// A receive demands all bytes while the sender fills the queue, sleeping for space: it is woken,
/// and no byte is overwritten before it is taken.
pub(crate) fn stream_demanded() {
    const COUNT: u8 = 6;
    let (tx, rx, _) = stream();
    let (data, space) = (Futex::new(), Futex::new());
    let (theirs, room) = (data.clone(), space.clone());
    let t = spawn(move || {
        let mut bytes: Vec<u8> = (1..=COUNT).collect();
        let mut done = 0;
        while done < bytes.len() {
            let end = bytes.len().min(done + STREAM_PART);
            match tx.push(&mem(&mut bytes[done..end])).unwrap() {
                0 => sleep(&room, tx.space(), true, || tx.room() == Ok(0)),
                n => {
                    done += n;
                    theirs.wake_if_owed(tx.prepare_wake());
                }
            }
        }
    });
    rx.announce_demand(COUNT.into());
    let mut next = 1;
    while next <= COUNT {
        if take_next(&rx, &mut next) == 0 {
            sleep(&data, rx.data(), true, || rx.ready() == Ok(0));
        } else {
            space.wake_if_owed(rx.prepare_wake());
        }
    }
    t.join().unwrap();
}

/// The descriptor shows bytes left in the queue, whether the receiver leaves before or after they
/// arrive.
pub(crate) fn stream_descriptor(fenced: bool, leaves: bool) {
    let (tx, rx, [_, shown]) = stream();
    let rx = Arc::new(rx);
    let t = spawn(move || {
        for byte in 1..=2 {
            assert_eq!(tx.push(&mem(&mut [byte])), Ok(1));
            let wakeups = if fenced { tx.prepare_wake() } else { tx.prepare_wake_without_fence() };
            if wakeups.ring {
                shown.set(1);
                tx.data().rung();
            }
        }
        tx
    });
    let mut next = 1;
    rx.data().start_polling();
    take_next(&rx, &mut next);
    let left = leaves && rx.stop_polling().is_some();
    while !left {
        match rx.next_fd_action() {
            FdAction::Done => break,
            FdAction::Signal => shown.set(1),
            FdAction::Clear => {
                shown.set(0);
                rx.data().armed();
            }
            FdAction::Wait => yield_now(),
        }
    }
    let tx = t.join().unwrap();
    assert!(rx.ready() == Ok(0) || shown.get() == 1);
    drop(tx);
}

/// Ends a call of the receiver without waiting for a signal, which may arrive at any later time.
fn leave(rx: &StreamRx, shown: SharedU32, late: &mut bool, twice: bool) {
    let mut hidden = !twice;
    loop {
        match rx.next_fd_action() {
            FdAction::Done if *late && !hidden && rx.data().disarm() => {
                shown.set(0);
                rx.data().armed();
                hidden = true;
            }
            FdAction::Done => return,
            FdAction::Signal => shown.set(1),
            FdAction::Clear => {
                shown.set(0);
                rx.data().armed();
            }
            FdAction::Wait => {
                *late = true;
                if rx.data().give_up_waiting() {
                    shown.set(0);
                    rx.data().armed();
                }
            }
        }
    }
}

/// After both sides have left, the descriptor shows the content of the queue; it shows nothing
/// after one more call that takes everything.
fn shows_the_queue(rx: &StreamRx, shown: SharedU32, late: &mut bool, next: &mut u8, twice: bool) {
    assert!(rx.ready() == Ok(0) || shown.get() == 1, "bytes that nobody shows");
    while take_next(rx, next) != 0 {}
    leave(rx, shown, late, twice);
    assert_eq!(shown.get(), 0, "shows what is not there");
}

/// The receiver gives up waiting for a signal, which arrives later, or never. After both sides have
/// left, the descriptor shows the content of the queue, and nothing after one more call that takes
/// everything. This fails if a late signal is recorded by a plain store, not `compared`, or if the
/// descriptor is not cleared `twice`.
pub(crate) fn late_ring(count: u8, compared: bool, twice: bool) {
    let (tx, rx, [_, shown]) = stream();
    let (mut late, mut next) = (false, 1);
    leave(&rx, shown, &mut late, twice);
    let t = spawn(move || {
        for byte in 1..=count {
            assert_eq!(tx.push(&mem(&mut [byte])), Ok(1));
            if tx.prepare_wake().ring {
                shown.set(1);
                let signalled = if compared { WakeWords::complete_signal } else { WakeWords::rung };
                signalled(&tx.data());
            }
        }
        tx
    });
    for _ in 0..2 {
        take_next(&rx, &mut next);
        leave(&rx, shown, &mut late, twice);
    }
    let _tx = t.join().unwrap();
    shows_the_queue(&rx, shown, &mut late, &mut next, twice);
}

/// A sender is killed after it announced a signal, and another one continues in its place. The
/// successor repeats the signal, and the descriptor shows the content of the queue, whether the
/// receiver gave up waiting or not. This fails if the successor only continues.
pub(crate) fn teller_killed(retold: bool) {
    let (tx, rx, [_, shown]) = stream();
    let (mut late, mut next) = (false, 1);
    leave(&rx, shown, &mut late, true);
    let t = spawn(move || {
        assert_eq!(tx.push(&mem(&mut [1])), Ok(1));
        if tx.prepare_wake().ring {
            let wakeups = if retold { tx.repeat_wake() } else { Wakeups::default() };
            if wakeups.ring {
                shown.set(1);
                tx.data().complete_signal();
            }
        }
        assert_eq!(tx.push(&mem(&mut [2])), Ok(1));
        if tx.prepare_wake().ring {
            shown.set(1);
            tx.data().complete_signal();
        }
        tx
    });
    take_next(&rx, &mut next);
    leave(&rx, shown, &mut late, true);
    let _tx = t.join().unwrap();
    shows_the_queue(&rx, shown, &mut late, &mut next, true);
}

/// A receiver is killed at any point of a call, and another one continues in its place.
pub(crate) fn waiter_killed(doubted: bool, shows: bool) {
    let (tx, rx, [_, shown]) = stream();
    let (mut late, mut next) = (false, 1);
    leave(&rx, shown, &mut late, true);
    let t = spawn(move || {
        for byte in 1..=2 {
            assert_eq!(tx.push(&mem(&mut [byte])), Ok(1));
            if tx.prepare_wake().ring {
                shown.set(1);
                tx.data().complete_signal();
            }
        }
        tx
    });
    // Runs the call up to its end: the action was determined, executed or not, and not recorded.
    if take_next(&rx, &mut next) == 0 {
        rx.data().sleep_begins();
    }
    match rx.next_fd_action() {
        FdAction::Signal if shows => shown.set(1),
        FdAction::Clear if shows => shown.set(0),
        _ => {}
    }
    if doubted && rx.data().reset_after_crash() {
        shown.set(0);
        rx.data().armed();
    }
    leave(&rx, shown, &mut late, true);
    let _tx = t.join().unwrap();
    shows_the_queue(&rx, shown, &mut late, &mut next, true);
}

/// A sender closes: the receiver gets every byte, then the end, asleep or not.
pub(crate) fn stream_closed_by_the_sender() {
    let (tx, rx, [closed, _]) = stream();
    let data = Futex::new();
    let theirs = data.clone();
    let t = spawn(move || {
        for byte in 1..=2 {
            assert_eq!(tx.push(&mem(&mut [byte])), Ok(1));
            theirs.wake_if_owed(tx.prepare_wake());
        }
        closed.set(1);
        tx.data().advance_seq();
        theirs.wake();
    });
    let mut next = 1;
    loop {
        let over = closed.get() != 0;
        if take_next(&rx, &mut next) != 0 {
            continue;
        }
        if over {
            break;
        }
        sleep(&data, rx.data(), true, || rx.ready() == Ok(0) && closed.get() == 0);
    }
    assert_eq!(next, 3);
    t.join().unwrap();
}

/// A receiver closes while the other side waits for space.
pub(crate) fn stream_closed_by_the_receiver() {
    let (tx, rx, [closed, _]) = stream();
    let space = Futex::new();
    let room = space.clone();
    let t = spawn(move || {
        let mut byte = 1;
        while closed.get() == 0 {
            if tx.push(&mem(&mut [byte])).unwrap() == 0 {
                sleep(&room, tx.space(), true, || tx.room() == Ok(0) && closed.get() == 0);
            } else {
                byte += 1;
            }
            if byte > 5 {
                break;
            }
        }
    });
    let mut next = 1;
    if take_next(&rx, &mut next) != 0 {
        space.wake_if_owed(rx.prepare_wake());
    }
    closed.set(1);
    rx.space().advance_seq();
    space.wake();
    t.join().unwrap();
}

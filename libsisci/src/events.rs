// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Events of segments, in a queue for a thread that waits or for a callback.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex};

use crate::error::{Outcome, SciError, fail};
use crate::lock::{take, wait};
use crate::wire::Deadline;

/// Number of events that a segment keeps for a later wait. Further ones are lost, and the wait
/// after the kept ones reports `SCI_ERR_OVERFLOW`.
const EVENTS_MAX: usize = 32;

/// `sci_segment_cb_reason_t`
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub(crate) enum EventReason {
    Connect = 1,
    Disconnect = 2,
    NotOperational = 3,
    Operational = 4,
    Lost = 5,
}

impl EventReason {
    /// Returns the reason with a number.
    pub(crate) fn of(number: u32) -> Option<EventReason> {
        use EventReason::{Connect, Disconnect, Lost, NotOperational, Operational};
        [Connect, Disconnect, NotOperational, Operational, Lost]
            .into_iter()
            .find(|reason| *reason as u32 == number)
    }
}

/// Events that wait.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    events: VecDeque<E>,
    overflown: bool,
}

impl<E> Default for EventQueue<E> {
    fn default() -> EventQueue<E> {
        EventQueue { events: VecDeque::new(), overflown: false }
    }
}

impl<E> EventQueue<E> {
    /// Appends an event. Events after a lost one are lost too, until `pop` has reported it.
    pub(crate) fn push(&mut self, event: E) {
        if self.events.len() < EVENTS_MAX && !self.overflown {
            self.events.push_back(event);
        } else {
            self.overflown = true;
        }
    }

    /// Takes the oldest event; `None` without one.
    ///
    /// # Errors
    /// `Overflow`, once, after the last event before the lost ones.
    pub(crate) fn pop(&mut self) -> Outcome<Option<E>> {
        match self.events.pop_front() {
            None if std::mem::take(&mut self.overflown) => fail(SciError::Overflow),
            event => Ok(event),
        }
    }
}

/// Waits for the next event of an object. `parts` reports whether the object has ended, and returns
/// its queue.
///
/// # Errors
/// `Timeout`; `Cancelled` by its end; `Overflow`.
pub(crate) fn next_event<S, E>(
    (state, changed): (&Mutex<S>, &Condvar),
    parts: impl for<'a> Fn(&'a mut S) -> (bool, &'a mut EventQueue<E>),
    deadline: Deadline,
) -> Outcome<E> {
    let (mut state, mut late) = (take(state), false);
    loop {
        let (ended, events) = parts(&mut state);
        if ended {
            return fail(SciError::Cancelled);
        }
        if let Some(event) = events.pop()? {
            return Ok(event);
        }
        if late {
            return fail(SciError::Timeout);
        }
        (state, late) = wait(changed, state, deadline);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_events_are_reported_once_and_in_their_place() {
        let mut queue = EventQueue::default();
        for n in 0..=EVENTS_MAX {
            queue.push(n);
        }
        for n in 0..EVENTS_MAX {
            assert_eq!(queue.pop(), Ok(Some(n)));
            queue.push(100);
        }
        assert_eq!(queue.pop(), fail(SciError::Overflow));
        assert_eq!(queue.pop(), Ok(None));
        queue.push(101);
        assert_eq!(queue.pop(), Ok(Some(101)));
    }
}

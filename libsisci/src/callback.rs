// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Callback of an object: called by the callback thread, one call at a time, until it requests no
//! more or its object ends.

use std::sync::{Condvar, Mutex};
use std::thread::{self, ThreadId};

use crate::lock::take;

/// Decision of a callback about later events.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Action {
    Cancel,
    Continue,
}

/// Function of the program with its argument.
pub(crate) type Function<E> = Box<dyn Fn(&E) -> Action + Send + Sync>;

#[derive(Debug, Default)]
struct State {
    closed: bool,
    caller: Option<ThreadId>,
}

/// Callback of an object for events of type `E`.
pub(crate) struct Callback<E> {
    function: Function<E>,
    state: Mutex<State>,
    left: Condvar,
}

impl<E> Callback<E> {
    pub(crate) fn new(function: Function<E>) -> Callback<E> {
        Callback { function, state: Mutex::new(State::default()), left: Condvar::new() }
    }

    /// Calls the function, unless it is closed.
    pub(crate) fn call(&self, event: &E) {
        {
            let mut state = take(&self.state);
            if state.closed {
                return;
            }
            state.caller = Some(thread::current().id());
        }
        let action = (self.function)(event);
        let mut state = take(&self.state);
        state.caller = None;
        state.closed |= action == Action::Cancel;
        self.left.notify_all();
    }

    /// Closes it, and waits for the end of a call in another thread.
    pub(crate) fn close(&self) {
        let mut state = take(&self.state);
        state.closed = true;
        while state.caller.is_some_and(|caller| caller != thread::current().id()) {
            (state, _) = crate::lock::wait(&self.left, state, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn a_close_waits_for_the_call() {
        let (entered, inside) = channel();
        let (release, released) = channel::<()>();
        let released = Mutex::new(released);
        let callback = Arc::new(Callback::new(Box::new(move |_: &u32| {
            entered.send(()).unwrap();
            take(&released).recv().unwrap();
            Action::Continue
        })));
        let called = Arc::clone(&callback);
        let caller = thread::spawn(move || called.call(&1));
        inside.recv().unwrap();
        let closed = Arc::clone(&callback);
        let (told, end) = channel();
        let closer = thread::spawn(move || {
            closed.close();
            told.send(()).unwrap();
        });
        assert!(end.recv_timeout(Duration::from_millis(20)).is_err());
        release.send(()).unwrap();
        caller.join().unwrap();
        closer.join().unwrap();
        callback.call(&2);
        assert!(inside.try_recv().is_err(), "closed");
    }

    #[test]
    fn a_callback_that_cancels_is_called_once() {
        let (told, calls) = channel();
        let told = Mutex::new(told);
        let callback = Callback::new(Box::new(move |event: &u32| {
            take(&told).send(*event).unwrap();
            Action::Cancel
        }));
        callback.call(&1);
        callback.call(&2);
        assert_eq!((calls.try_recv(), calls.try_recv().is_err()), (Ok(1), true));
    }
}

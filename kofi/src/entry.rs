// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Registered provider: the calls in progress, the references to it, and its removal.
//!
//! An entry is live, then draining (unlinked, but still referenced), then cleaning, then gone;
//! never back. The thread that releases the last reference of a draining entry runs its clean-up.
//! The set of entries is in `registry`.

use std::ffi::{CStr, CString};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
#[cfg(not(loom))]
use std::time::Instant;

use crate::error::{DeregisterError, Timeout};
use crate::sync::{Arc, Condvar, Mutex, ThreadId, lock, thread};
use crate::version::Version;

/// Object that can be registered.
pub trait Provider {
    /// Identity of a provider; for a C structure, its address.
    type Id: Clone + PartialEq + fmt::Debug;

    fn id(&self) -> Self::Id;

    /// Cleans up. Called once, after the last reference is gone, without a lock.
    fn cleanup(&self);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Live,
    Draining,
    Cleaning,
    Gone,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Number of calls in progress and open fabrics.
    references: usize,
    /// Threads of the calls in progress, one element for each call.
    inside: Vec<ThreadId>,
}

/// Provider with its name.
pub(crate) struct Entry<P: Provider> {
    pub(crate) name: CString,
    pub(crate) version: Version,
    pub(crate) provider: P,
    state: Mutex<State>,
    gone: Condvar,
}

impl<P: Provider> fmt::Debug for Entry<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} {:?}", self.name, self.version, self.provider.id())
    }
}

impl<P: Provider> Entry<P> {
    pub(crate) fn new(name: CString, version: Version, provider: P) -> Self {
        Self {
            name,
            version,
            provider,
            state: Mutex::new(State { phase: Phase::Live, references: 0, inside: Vec::new() }),
            gone: Condvar::new(),
        }
    }

    /// Begins a call, unless the entry is being removed.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Call<P>> {
        let mut state = lock(&self.state);
        if state.phase != Phase::Live {
            return None;
        }
        Some(Call::begin(self, &mut state))
    }

    pub(crate) fn is_gone(&self) -> bool {
        lock(&self.state).phase == Phase::Gone
    }

    /// Refuses further calls. Cleans up if there are no references.
    pub(crate) fn retire(&self) {
        let mut state = lock(&self.state);
        if state.phase == Phase::Live {
            state.phase = Phase::Draining;
        }
        drop(state);
        self.finish();
    }

    /// Cleans up if the last reference of a draining entry is gone.
    fn finish(&self) {
        let mut state = lock(&self.state);
        if state.phase != Phase::Draining || state.references > 0 {
            return;
        }
        state.phase = Phase::Cleaning;
        state.inside.push(thread::current().id());
        drop(state);
        // Waiting threads are woken even when the clean-up panics.
        let cleaned = Cleaned(self);
        self.provider.cleanup();
        drop(cleaned);
    }

    /// Waits until the entry is gone.
    pub(crate) fn wait(&self, timeout: Timeout) -> Result<(), DeregisterError> {
        let own = thread::current().id();
        let mut state = lock(&self.state);
        #[cfg(not(loom))]
        let deadline = match timeout {
            Timeout::Limit(limit) => Instant::now().checked_add(limit),
            Timeout::Forever => None,
        };
        while state.phase != Phase::Gone {
            if state.inside.contains(&own) {
                return Err(DeregisterError::Inside);
            }
            #[cfg(not(loom))]
            if let Some(deadline) = deadline {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(DeregisterError::Busy(state.references));
                }
                let waited = self.gone.wait_timeout(state, left);
                state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
                continue;
            }
            // loom has no clock, so a time limit counts as expired.
            #[cfg(loom)]
            if let Timeout::Limit(_) = timeout {
                return Err(DeregisterError::Busy(state.references));
            }
            let waited = self.gone.wait(state);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        Ok(())
    }

    fn release(&self, call_of: Option<&ThreadId>) {
        let mut state = lock(&self.state);
        state.references = state.references.saturating_sub(1);
        if let Some(thread) = call_of {
            if let Some(at) = state.inside.iter().position(|inside| inside == thread) {
                state.inside.swap_remove(at);
            }
        }
        drop(state);
        self.finish();
    }
}

/// Guard that marks an entry as gone at the end of its clean-up.
struct Cleaned<'a, P: Provider>(&'a Entry<P>);

impl<P: Provider> Drop for Cleaned<'_, P> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.phase = Phase::Gone;
        state.inside.clear();
        drop(state);
        self.0.gone.notify_all();
    }
}

/// Call into a provider, in progress on this thread. The provider is not cleaned up before its end.
pub struct Call<P: Provider> {
    entry: Arc<Entry<P>>,
    thread: ThreadId,
    /// Marker that binds a call to the thread on which it began.
    bound: PhantomData<*const ()>,
}

impl<P: Provider> Call<P> {
    fn begin(entry: &Arc<Entry<P>>, state: &mut State) -> Self {
        let thread = thread::current().id();
        state.references += 1;
        state.inside.push(thread);
        Self { entry: Arc::clone(entry), thread, bound: PhantomData }
    }

    #[must_use]
    pub fn name(&self) -> &CStr {
        &self.entry.name
    }

    #[must_use]
    pub fn version(&self) -> Version {
        self.entry.version
    }

    /// Returns a reference that outlasts the call: the provider has opened a fabric.
    #[must_use]
    pub fn hold(&self) -> Hold<P> {
        // The call itself is a reference, so the entry is not gone, even if it is draining.
        lock(&self.entry.state).references += 1;
        Hold(Arc::clone(&self.entry))
    }
}

impl<P: Provider> Deref for Call<P> {
    type Target = P;

    fn deref(&self) -> &P {
        &self.entry.provider
    }
}

impl<P: Provider> Drop for Call<P> {
    fn drop(&mut self) {
        self.entry.release(Some(&self.thread));
    }
}

impl<P: Provider> fmt::Debug for Call<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call into {:?}", self.entry)
    }
}

/// Open fabric. The provider is not cleaned up before it is dropped, on any thread.
pub struct Hold<P: Provider>(Arc<Entry<P>>);

impl<P: Provider> Hold<P> {
    /// Begins a call, for instance to close the fabric, which a draining provider must still serve.
    #[must_use]
    pub fn enter(&self) -> Call<P> {
        Call::begin(&self.0, &mut lock(&self.0.state))
    }
}

impl<P: Provider> Drop for Hold<P> {
    fn drop(&mut self) {
        self.0.release(None);
    }
}

impl<P: Provider> fmt::Debug for Hold<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fabric of {:?}", self.0)
    }
}

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Set of registered providers: their order, their names, registration and removal.
//!
//! The end of a removed provider is in `entry`.

use std::ffi::{CStr, CString};
use std::fmt;

use crate::entry::{Call, Entry, Provider};
use crate::error::{DeregisterError, RegisterError, Timeout};
use crate::sync::{Arc, Mutex, lock};
use crate::version::Version;

/// Arguments of a registration.
#[derive(Debug)]
pub struct Offer<'a, P> {
    /// Interface version for which the provider was written.
    pub interface: Version,
    pub name: Option<&'a CStr>,
    /// Version of the provider: of two with one name the newer is used.
    pub version: Version,
    pub provider: P,
}

struct Inner<P: Provider> {
    /// Registered entries in the order of registration; names differ.
    live: Vec<Arc<Entry<P>>>,
    /// Unlinked entries, until their owner has got the result that they are gone.
    retired: Vec<Arc<Entry<P>>>,
}

/// Providers of one process, or of one test.
pub struct Registry<P: Provider> {
    interface: Version,
    inner: Mutex<Inner<P>>,
}

impl<P: Provider> fmt::Debug for Registry<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&lock(&self.inner).live).finish()
    }
}

impl<P: Provider> Registry<P> {
    /// Creates an empty registry that accepts providers written for `interface`.
    #[must_use]
    pub fn new(interface: Version) -> Self {
        let inner = Inner { live: Vec::new(), retired: Vec::new() };
        Self { interface, inner: Mutex::new(inner) }
    }

    /// Adds a provider after the others, or in the place of an older one of its name, which drains
    /// then.
    ///
    /// # Errors
    /// See [`RegisterError`]. The registry is then unchanged.
    pub fn register(&self, offer: Offer<'_, P>) -> Result<(), RegisterError> {
        let name = offer.name.filter(|name| !name.is_empty()).ok_or(RegisterError::Nameless)?;
        if !self.interface.understands(offer.interface) {
            return Err(RegisterError::Interface(offer.interface));
        }
        let id = offer.provider.id();
        let mut inner = lock(&self.inner);
        if inner.live.iter().any(|entry| entry.provider.id() == id) {
            return Err(RegisterError::Registered);
        }
        if inner.retired.iter().any(|entry| entry.provider.id() == id && !entry.is_gone()) {
            return Err(RegisterError::Draining);
        }
        let older = inner.live.iter_mut().find(|entry| *entry.name == *name);
        if let Some(older) = &older {
            if older.version >= offer.version {
                return Err(RegisterError::Exists(older.version));
            }
        }
        let new = Arc::new(Entry::new(CString::from(name), offer.version, offer.provider));
        let replaced = match older {
            Some(place) => Some(std::mem::replace(place, new)),
            None => {
                inner.live.push(new);
                None
            }
        };
        inner.retired.retain(|entry| entry.provider.id() != id);
        inner.retired.extend(replaced.clone());
        drop(inner);
        if let Some(replaced) = replaced {
            replaced.retire();
        }
        Ok(())
    }

    /// Removes a provider and waits until it is gone. A provider that was replaced by a newer one
    /// remains known until it has been deregistered as well.
    ///
    /// # Errors
    /// See [`DeregisterError`].
    pub fn deregister(&self, id: &P::Id, timeout: Timeout) -> Result<(), DeregisterError> {
        let mut inner = lock(&self.inner);
        let entry = if let Some(at) = inner.live.iter().position(|entry| entry.provider.id() == *id)
        {
            let entry = inner.live.remove(at);
            inner.retired.push(Arc::clone(&entry));
            entry
        } else {
            let mut retired = inner.retired.iter();
            let found = retired.find(|entry| entry.provider.id() == *id);
            Arc::clone(found.ok_or(DeregisterError::Unknown)?)
        };
        drop(inner);
        entry.retire();
        entry.wait(timeout)?;
        lock(&self.inner).retired.retain(|other| !Arc::ptr_eq(other, &entry));
        Ok(())
    }

    /// Begins a call into the provider of exactly this name.
    pub fn enter(&self, name: &CStr) -> Option<Call<P>> {
        // Entries in the list are live: an entry is unlinked under this lock first.
        let inner = lock(&self.inner);
        inner.live.iter().find(|entry| *entry.name == *name)?.enter()
    }

    /// Begins a call into each provider, in the order of registration; each ends before the next
    /// begins. Providers registered or removed after this call are skipped.
    pub fn calls(&self) -> impl Iterator<Item = Call<P>> + use<P> {
        let entries = lock(&self.inner).live.clone();
        entries.into_iter().filter_map(|entry| entry.enter())
    }

    /// Queries all providers and concatenates their answers.
    ///
    /// # Errors
    /// The last error, if no provider returned an answer; `None` if there was no error either.
    pub fn gather<T, E>(
        &self,
        mut query: impl FnMut(&Call<P>) -> Result<Vec<T>, E>,
    ) -> Result<Vec<T>, Option<E>> {
        let mut answers = Vec::new();
        let mut last = None;
        for call in self.calls() {
            match query(&call) {
                Ok(more) => answers.extend(more),
                Err(error) => last = Some(error),
            }
        }
        if answers.is_empty() { Err(last) } else { Ok(answers) }
    }

    /// Removes all providers. Unused ones are cleaned up at once, the others after their last
    /// reference.
    pub fn clear(&self) {
        let mut inner = lock(&self.inner);
        let live = std::mem::take(&mut inner.live);
        inner.retired.clear();
        drop(inner);
        for entry in live {
            entry.retire();
        }
    }
}

impl<P: Provider> Drop for Registry<P> {
    fn drop(&mut self) {
        self.clear();
    }
}

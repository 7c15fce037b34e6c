// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Which providers there are: in what order, under which names, and how they come and go.
//!
//! Not here: when one that left is gone (`entry`).

use std::ffi::{CStr, CString};
use std::fmt;
use std::time::Duration;

use crate::entry::{Call, Entry, Provider};
use crate::sync::{Arc, Mutex, lock};
use crate::version::Version;

/// What is registered.
#[derive(Debug)]
pub struct Offer<'a, P> {
    /// The interface the provider was written to.
    pub interface: Version,
    pub name: Option<&'a CStr>,
    /// The provider's own version: of two with one name the newer is meant.
    pub version: Version,
    pub provider: P,
}

/// Why a provider was not registered. Nothing of it was called then, its clean-up neither.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has no name, or an empty one.
    Nameless,
    /// It was written to an interface that is not understood here.
    Interface(Version),
    /// It is registered already.
    Registered,
    /// Its name is registered already, with this version, not older.
    Exists(Version),
    /// An earlier registration of the same provider is still in use.
    Draining,
}

/// How long to wait for a provider to be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    Forever,
    /// Zero: do not wait.
    Limit(Duration),
}

/// Why a provider that was deregistered is not gone. But for `Unknown` it is unlinked: nobody finds it any more, and
/// its clean-up runs after the last reference is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// It is not registered.
    Unknown,
    /// The time is over; so many calls and fabrics are left. Asking again waits again.
    Busy(usize),
    /// The caller is itself inside a call of that provider.
    Inside,
}

struct Inner<P: Provider> {
    /// In the order of registration; names differ.
    live: Vec<Arc<Entry<P>>>,
    /// Unlinked, until their owner was told that they are gone.
    retired: Vec<Arc<Entry<P>>>,
}

/// The providers of one process, or of one test.
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
    /// A registry without providers that understands those written to `interface`.
    #[must_use]
    pub fn new(interface: Version) -> Self {
        let inner = Inner {
            live: Vec::new(),
            retired: Vec::new(),
        };
        Self {
            interface,
            inner: Mutex::new(inner),
        }
    }

    /// Adds a provider behind the others; or in the place of an older one of its name, which drains then.
    ///
    /// # Errors
    /// As [`Refusal`] says. The registry is then as it was.
    pub fn register(&self, offer: Offer<'_, P>) -> Result<(), Refusal> {
        let name = offer
            .name
            .filter(|name| !name.is_empty())
            .ok_or(Refusal::Nameless)?;
        if !self.interface.understands(offer.interface) {
            return Err(Refusal::Interface(offer.interface));
        }
        let id = offer.provider.id();
        let mut inner = lock(&self.inner);
        if inner.live.iter().any(|entry| entry.provider.id() == id) {
            return Err(Refusal::Registered);
        }
        if inner
            .retired
            .iter()
            .any(|entry| entry.provider.id() == id && !entry.is_gone())
        {
            return Err(Refusal::Draining);
        }
        let older = inner.live.iter_mut().find(|entry| *entry.name == *name);
        if let Some(older) = &older
            && older.version >= offer.version
        {
            return Err(Refusal::Exists(older.version));
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

    /// Removes a provider and waits until it is gone. One that a newer provider has replaced is known until it has been
    /// deregistered as well.
    ///
    /// # Errors
    /// As [`Leaving`] says.
    pub fn deregister(&self, id: &P::Id, patience: Patience) -> Result<(), Leaving> {
        let mut inner = lock(&self.inner);
        let entry = if let Some(at) = inner.live.iter().position(|entry| entry.provider.id() == *id) {
            let entry = inner.live.remove(at);
            inner.retired.push(Arc::clone(&entry));
            entry
        } else {
            let mut retired = inner.retired.iter();
            let found = retired.find(|entry| entry.provider.id() == *id);
            Arc::clone(found.ok_or(Leaving::Unknown)?)
        };
        drop(inner);
        entry.retire();
        entry.wait(patience)?;
        lock(&self.inner)
            .retired
            .retain(|other| !Arc::ptr_eq(other, &entry));
        Ok(())
    }

    /// Begins a call into the provider of exactly this name.
    pub fn enter(&self, name: &CStr) -> Option<Call<P>> {
        // What is in the list is live: it is unlinked under this lock first.
        let inner = lock(&self.inner);
        inner.live.iter().find(|entry| *entry.name == *name)?.enter()
    }

    /// Begins a call into one provider after the other, in the order of registration; each ends before the next begins.
    /// Who came later than this call is not asked, who left meanwhile neither.
    pub fn calls(&self) -> impl Iterator<Item = Call<P>> + use<P> {
        let entries = lock(&self.inner).live.clone();
        entries.into_iter().filter_map(|entry| entry.enter())
    }

    /// Asks all providers and chains what they answer.
    ///
    /// # Errors
    /// The last error, if no provider answered anything; `None` if there was none either.
    pub fn gather<T, E>(
        &self,
        mut ask: impl FnMut(&Call<P>) -> Result<Vec<T>, E>,
    ) -> Result<Vec<T>, Option<E>> {
        let mut answers = Vec::new();
        let mut last = None;
        for call in self.calls() {
            match ask(&call) {
                Ok(more) => answers.extend(more),
                Err(error) => last = Some(error),
            }
        }
        if answers.is_empty() {
            Err(last)
        } else {
            Ok(answers)
        }
    }

    /// Removes all providers. Who is not in use is cleaned up at once, the others after their last reference.
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

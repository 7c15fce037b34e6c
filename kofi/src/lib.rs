// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Registry of fabric providers in one process: `kofi_provider_register` and related calls.
//!
//! A provider is any object with an identity and a clean-up ([`Provider`]). The registry stores the
//! providers in the order in which they are queried, and selects the newer of two with one name. It
//! also determines when a deregistered provider is gone: after the last call into it has returned
//! and the last fabric opened through it is closed. Then its clean-up runs, once.
//!
//! * No lock is held while a provider's code runs: it may register, find and deregister itself.
//! * A [`Call`] is one call in progress, bound to its thread. A [`Hold`] is an open fabric, kept by
//!   the framework and not by the provider, so that it cannot be lost.
//! * A thread that waits for a provider inside one of its calls gets an error
//!   ([`DeregisterError::Inside`]) instead of a deadlock.
//!
//! The C interface and the answers of providers are elsewhere.

#![forbid(unsafe_code)]

mod entry;
mod error;
mod registry;
mod sync;
mod version;

pub use entry::{Call, Hold, Provider};
pub use error::{DeregisterError, RegisterError, Timeout};
pub use registry::{Offer, Registry};
pub use version::Version;

// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! A registry of fabric providers, for one process: `kofi_provider_register` and what follows from it.
//!
//! A provider is anything with an identity and a clean-up ([`Provider`]); what it can be asked is its own business. The
//! registry says who is there, in which order they are asked, which of two with one name is meant, and when one that
//! was deregistered is really gone: after the last call into it has returned and the last fabric opened through it is
//! closed. Then its clean-up runs, once.
//!
//! * No lock is held while a provider's code runs: it may register, look up and deregister itself.
//! * A [`Call`] is one call in progress, bound to its thread. A [`Hold`] is an open fabric, kept by the framework and
//!   not by the provider, which cannot forget it.
//! * Who waits for a provider from inside one of its calls is told so ([`Leaving::Inside`]) instead of waiting for
//!   itself.
//!
//! Not here: the C interface, and what a provider answers with.

#![forbid(unsafe_code)]

mod entry;
mod registry;
mod sync;
mod version;

pub use entry::{Call, Hold, Provider};
pub use registry::{Leaving, Offer, Patience, Refusal, Registry};
pub use version::Version;

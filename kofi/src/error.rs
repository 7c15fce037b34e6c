// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Errors of a registration and of a removal, and the time limit of a removal.

use std::time::Duration;

use crate::version::Version;

/// Reason for which a provider was not registered. None of its functions was called then, not even
/// its clean-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisterError {
    /// Missing or empty name.
    Nameless,
    /// Interface version that this framework does not support.
    Interface(Version),
    /// Provider that is registered already.
    Registered,
    /// Name that is registered already, with this version, which is not older.
    Exists(Version),
    /// Provider whose earlier registration is still in use.
    Draining,
}

/// Time limit for a provider to be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    Forever,
    /// Duration of the wait; zero: do not wait.
    Limit(Duration),
}

/// Reason for which a deregistered provider is not gone. Except for `Unknown` it is unlinked: no
/// call finds it any more, and its clean-up runs after the last reference is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeregisterError {
    /// Provider that is not registered.
    Unknown,
    /// Timeout, with the number of remaining calls and fabrics. Another call waits again.
    Busy(usize),
    /// Caller that is itself inside a call of that provider.
    Inside,
}

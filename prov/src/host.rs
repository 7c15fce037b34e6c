// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! The libfabric that loaded this provider: its version, its log, its parameters.
//!
//! A process may hold several libfabrics that load this same file: the last one to call is talked to, and what a struct
//! of theirs is read for is what the oldest of them has.

use std::ffi::{CStr, c_int};
use std::sync::{PoisonError, RwLock};

use libfabric_sys::{FI_ENOSYS, Host, ParamValue, fi_param_type};

use crate::{PROVIDER, attr};

#[derive(Debug)]
struct State {
    host: Host,
    /// Of all that called; `None` before the first.
    oldest: Option<u32>,
    newest: u32,
}

static STATE: RwLock<State> = RwLock::new(State {
    host: Host::NONE,
    oldest: None,
    newest: 0,
});

fn with<R>(f: impl FnOnce(&State) -> R) -> R {
    f(&STATE.read().unwrap_or_else(PoisonError::into_inner))
}

/// A libfabric loads this provider: from now on it is the one to talk to.
pub(crate) fn enter(host: Host) {
    let mut state = STATE.write().unwrap_or_else(PoisonError::into_inner);
    let version = host.version();
    state.oldest = Some(state.oldest.map_or(version, |oldest| oldest.min(version)));
    state.newest = state.newest.max(version);
    state.host = host;
}

/// A libfabric goes away: nothing of it may be called any more.
pub(crate) fn leave() {
    STATE.write().unwrap_or_else(PoisonError::into_inner).host = Host::NONE;
}

/// The interface version whose structs every host has.
pub(crate) fn version() -> u32 {
    with(|state| state.oldest.unwrap_or(Host::OLDEST))
}

/// The interface version to claim: a host skips a provider that claims less than an application asks for.
pub(crate) fn claimed_version() -> u32 {
    with(|state| state.newest.max(attr::FI_VERSION_OWN))
}

/// Whether the host prints messages of this level and subsystem.
pub(crate) fn log_enabled(level: u32, subsys: u32) -> bool {
    with(|state| state.host.log_enabled(&PROVIDER, level, subsys))
}

pub(crate) fn log(level: u32, subsys: u32, func: &CStr, line: u32, text: &CStr) {
    with(|state| state.host.log(&PROVIDER, level, subsys, func, line, text));
}

/// Makes a parameter known to the host and asks for its value.
///
/// # Errors
/// `FI_ENODATA`: not set. `FI_EINVAL`: set to what it cannot be. `FI_ENOSYS`: the host has no parameters.
pub(crate) fn param(name: &CStr, kind: fi_param_type, help: &CStr) -> Result<ParamValue, c_int> {
    with(|state| {
        let param = state
            .host
            .param_define(&PROVIDER, name, kind, help)
            .map_err(|_| FI_ENOSYS)?;
        state.host.param_get(&param)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_called_without_a_host() {
        assert_eq!(version(), Host::OLDEST);
        assert_eq!(claimed_version(), attr::FI_VERSION_OWN);
        assert!(!log_enabled(0, 0));
        log(0, 0, c"f", 1, c"nobody hears this");
        assert_eq!(param(c"stats", 0, c"help"), Err(FI_ENOSYS));
    }
}

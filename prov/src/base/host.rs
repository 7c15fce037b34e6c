// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Host: the libfabric that loaded this provider, with its version, its log and its parameters.
//!
//! A process may hold several libfabrics that load this same file. The last one that called is
//! used. Structures are read in the layout of the oldest.

use std::ffi::{CStr, c_int};
use std::sync::{PoisonError, RwLock};

use libfabric_sys::{FI_ENOSYS, Host, Openers, ParamValue, Provider, fi_param_type};

use crate::base::attr;

#[derive(Debug)]
struct HostState {
    /// The last libfabric that called, and this provider as it knows it; `None` before the first
    /// and after the last.
    caller: Option<(Host, &'static Provider)>,
    /// Oldest version of all that called; `None` before the first.
    oldest: Option<u32>,
    newest: u32,
}

static STATE: RwLock<HostState> = RwLock::new(HostState { caller: None, oldest: None, newest: 0 });

fn with<R>(f: impl FnOnce(&HostState) -> R) -> R {
    f(&STATE.read().unwrap_or_else(PoisonError::into_inner))
}

/// Records that a libfabric loads this provider, which uses that one from now on.
pub(crate) fn enter(host: Host, provider: &'static Provider) {
    let mut state = STATE.write().unwrap_or_else(PoisonError::into_inner);
    let version = host.version();
    state.oldest = Some(state.oldest.map_or(version, |oldest| oldest.min(version)));
    state.newest = state.newest.max(version);
    state.caller = Some((host, provider));
}

/// Records that a libfabric is unloaded and must not be called any more.
pub(crate) fn leave() {
    STATE.write().unwrap_or_else(PoisonError::into_inner).caller = None;
}

/// Returns the interface version whose structures every host has.
pub(crate) fn version() -> u32 {
    with(|state| state.oldest.unwrap_or(Host::OLDEST))
}

/// Returns the newest interface version of the libfabrics that loaded this provider; 0 before the
/// first.
pub(crate) fn loaded_version() -> u32 {
    with(|state| state.newest)
}

/// Returns the interface version to claim. A host skips a provider that claims less than an
/// application requests.
pub(crate) fn claimed_version() -> u32 {
    with(|state| state.newest.max(attr::FI_VERSION_OWN))
}

/// Whether the host prints messages of this level and subsystem.
pub(crate) fn log_enabled(level: u32, subsys: u32) -> bool {
    with(|state| {
        let (host, provider) = state.caller.as_ref()?;
        Some(host.log_enabled(provider, level, subsys))
    })
    .unwrap_or(false)
}

pub(crate) fn log(level: u32, subsys: u32, func: &CStr, line: u32, text: &CStr) {
    with(|state| {
        if let Some((host, provider)) = &state.caller {
            host.log(provider, level, subsys, (func, line), text);
        }
    });
}

/// Returns the functions by which this provider opens objects of others; `None` without a host that
/// has any.
pub(crate) fn openers() -> Option<Openers> {
    with(|state| state.caller.as_ref()?.0.openers())
}

/// Registers a parameter with the host and returns its value.
///
/// # Errors
/// `FI_ENODATA`: not set. `FI_EINVAL`: set to an invalid value. `FI_ENOSYS`: the host has no
/// parameters.
pub(crate) fn param(name: &CStr, kind: fi_param_type, help: &CStr) -> Result<ParamValue, c_int> {
    with(|state| {
        let (host, provider) = state.caller.as_ref().ok_or(FI_ENOSYS)?;
        let param = host.param_define(provider, name, kind, help).map_err(|_| FI_ENOSYS)?;
        host.param_get(&param)
    })
}

/// Registers a parameter with the host, whose value the host does not read: it would log it.
pub(crate) fn define_secret(name: &CStr, kind: fi_param_type, help: &CStr) {
    with(|state| {
        let (host, provider) = state.caller.as_ref()?;
        host.param_define(provider, name, kind, help).ok().map(|_| ())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_called_without_a_host() {
        assert_eq!(version(), Host::OLDEST);
        assert_eq!(claimed_version(), attr::FI_VERSION_OWN);
        assert!(!log_enabled(0, 0));
        assert!(openers().is_none());
        log(0, 0, c"f", 1, c"nobody hears this");
        assert_eq!(param(c"stats", 0, c"help"), Err(FI_ENOSYS));
    }
}

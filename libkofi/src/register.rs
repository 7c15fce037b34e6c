// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Registration and removal of providers by their own calls. Their manual is `kofi.h`.
#![expect(unsafe_code, reason = "descriptions from C")]

use std::ffi::{CStr, c_int};
use std::time::Duration;

use kofi::{DeregisterError, Offer, RegisterError, Timeout, Version};
use libfabric_sys::{FI_EALREADY, FI_EBUSY, FI_EINVAL, FI_ENODATA, FI_ENOSYS, fi_provider};

use crate::ffi::{Errno, guard, string};
use crate::provider::{Origin, Vector, kofi_provider};
use crate::registry::registry;
use crate::version::{KFI_VERSION, KOFI_VERSION};
use crate::{log, param};

/// `errno` for a name that is registered already.
const EEXIST: Errno = libc::EEXIST;
/// `errno` for a thread that would wait for itself.
const EDEADLK: Errno = libc::EDEADLK;

pub(crate) fn register_errno(error: &RegisterError) -> Errno {
    match error {
        RegisterError::Nameless => FI_EINVAL,
        RegisterError::Interface(_) => FI_ENOSYS,
        RegisterError::Exists(_) | RegisterError::Registered => EEXIST,
        RegisterError::Draining => FI_EBUSY,
    }
}

fn deregister_errno(error: &DeregisterError) -> Errno {
    match error {
        DeregisterError::Unknown => FI_ENODATA,
        DeregisterError::Busy(_) => FI_EBUSY,
        DeregisterError::Inside => EDEADLK,
    }
}

/// Adds a provider.
///
/// # Errors
/// See `kofi_provider_register` in `kofi.h`.
pub(crate) fn add(
    interface: Version,
    name: Option<&CStr>,
    version: u32,
    vector: Vector,
) -> Result<(), RegisterError> {
    let offer = Offer { interface, name, version: Version(version), provider: vector };
    let shown = name.unwrap_or_default().to_string_lossy();
    match registry().register(offer) {
        Ok(()) => {
            let version = Version(version);
            log::info(format_args!(
                "provider {shown} {}.{} registered",
                version.major(),
                version.minor()
            ));
            Ok(())
        }
        Err(error) => {
            log::info(format_args!("provider {shown} not registered: {error:?}"));
            Err(error)
        }
    }
}

/// `int kofi_provider_register(uint32_t version, struct kofi_provider *provider)`
///
/// # Safety
/// `provider` is null or a description that stays until it is deregistered, as do its functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kofi_provider_register(
    version: u32,
    provider: *mut kofi_provider,
) -> c_int {
    guard(|| {
        // SAFETY: null or a description, by the caller's contract.
        let description = unsafe { provider.as_ref() }.ok_or(FI_EINVAL)?;
        // No field of a structure of another version may be read, not even the name.
        if !KOFI_VERSION.understands(Version(version)) {
            return Err(FI_ENOSYS);
        }
        // SAFETY: null or a C string, by the caller's contract.
        let name = unsafe { string(description.name) }.ok_or(FI_EINVAL)?;
        let vector = Vector::of_slides(description, provider.addr()).ok_or(FI_EINVAL)?;
        let added = add(KFI_VERSION, Some(name), description.version, vector);
        added.map_err(|why| register_errno(&why))
    })
}

/// `int kfi_provider_register(struct kfi_provider *provider)`
///
/// # Safety
/// The contract of [`kofi_provider_register`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kfi_provider_register(provider: *mut fi_provider) -> c_int {
    guard(|| {
        // SAFETY: null or a description, by the caller's contract.
        let description = unsafe { provider.as_ref() }.ok_or(FI_EINVAL)?;
        // No other field of a structure of another version may be read.
        if !KFI_VERSION.understands(Version(description.fi_version)) {
            return Err(FI_ENOSYS);
        }
        // SAFETY: null or a C string, by the caller's contract.
        let name = unsafe { string(description.name) }.ok_or(FI_EINVAL)?;
        let vector =
            Vector::of_final(description, provider.addr(), Origin::Registered).ok_or(FI_EINVAL)?;
        add(Version(description.fi_version), Some(name), description.version, vector)
            .map_err(|why| register_errno(&why))
    })
}

fn remove(id: usize, timeout: Timeout) -> c_int {
    guard(|| {
        if id == 0 {
            return Err(FI_EINVAL);
        }
        registry().deregister(&id, timeout).map_err(|why| deregister_errno(&why))
    })
}

/// Converts a number of milliseconds to a time limit; negative means no limit.
fn timeout(milliseconds: i64) -> Timeout {
    let limit = u64::try_from(milliseconds).map(Duration::from_millis);
    limit.map_or(Timeout::Forever, Timeout::Limit)
}

fn usual_timeout() -> Timeout {
    timeout(param::own_number(c"FI_KOFI_DEREGISTER_TIMEOUT").unwrap_or(3000))
}

/// `int kofi_provider_deregister(struct kofi_provider *provider)`
#[unsafe(no_mangle)]
pub extern "C" fn kofi_provider_deregister(provider: *mut kofi_provider) -> c_int {
    remove(provider.addr(), usual_timeout())
}

/// `int kofi_provider_deregister_timed(struct kofi_provider *provider, int timeout_ms)`
#[unsafe(no_mangle)]
pub extern "C" fn kofi_provider_deregister_timed(
    provider: *mut kofi_provider,
    timeout_ms: c_int,
) -> c_int {
    remove(provider.addr(), timeout(i64::from(timeout_ms)))
}

/// `int kfi_provider_deregister(struct kfi_provider *provider)`
#[unsafe(no_mangle)]
pub extern "C" fn kfi_provider_deregister(provider: *mut fi_provider) -> c_int {
    remove(provider.addr(), usual_timeout())
}

/// `int kfi_provider_deregister_timed(struct kfi_provider *provider, int timeout_ms)`
#[unsafe(no_mangle)]
pub extern "C" fn kfi_provider_deregister_timed(
    provider: *mut fi_provider,
    timeout_ms: c_int,
) -> c_int {
    remove(provider.addr(), timeout(i64::from(timeout_ms)))
}

const _: () = assert!(EEXIST == 17 && EDEADLK == 35 && FI_EALREADY == 114);

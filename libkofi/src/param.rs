// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Parameters: the definitions of `fi_param_define`, and their values, which come only from the
//! environment (this library reads no libfabric.conf).
//!
//! A parameter `stats` of the provider `scif` is the variable `FI_SCIF_STATS`; without a provider,
//! `FI_STATS`.
//!
//! Mirrors fi_param_define(3), fi_param_get(3) and fi_getparams(3). This is the only file that
//! reads the environment.
#![expect(unsafe_code, reason = "lists and values in C's heap")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::size_of;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libfabric_sys::{
    FI_EINVAL, FI_ENODATA, FI_ENOENT, FI_ENOMEM, FI_PARAM_BOOL, FI_PARAM_INT, FI_PARAM_SIZE_T,
    FI_PARAM_STRING, ParamValue, fi_param, fi_param_type,
};

use crate::ffi::{Errno, release, strdup};

/// Defined parameter.
#[derive(Clone, Debug)]
struct Param {
    /// Address of the provider's description; 0 for the library itself.
    owner: usize,
    name: CString,
    kind: fi_param_type,
    help: CString,
    variable: CString,
}

static PARAMS: Mutex<Vec<Param>> = Mutex::new(Vec::new());

fn params() -> MutexGuard<'static, Vec<Param>> {
    PARAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Defines the parameters of the library itself.
pub(crate) fn define_own() {
    for (name, kind, help) in [
        (
            c"provider",
            FI_PARAM_STRING,
            c"only these providers, with commas; with a leading ^ all others (default: all)",
        ),
        (
            c"provider_path",
            FI_PARAM_STRING,
            c"directories, with colons, whose *fi.so are adopted, or +FILE (default: none)",
        ),
        (
            c"log_level",
            FI_PARAM_STRING,
            c"what is printed: warn, trace, info, debug (default: nothing)",
        ),
        (
            c"log_prov",
            FI_PARAM_STRING,
            c"only what these providers print, with commas; with a leading ^ all others",
        ),
        (
            c"log_subsys",
            FI_PARAM_STRING,
            c"only what these subsystems print, with commas; with a leading ^ all others",
        ),
        (
            c"log_interval",
            FI_PARAM_INT,
            c"milliseconds between two prints of a message that comes often (default: 2000)",
        ),
        (
            c"kofi_deregister_timeout",
            FI_PARAM_INT,
            c"milliseconds that kofi_provider_deregister waits, -1 for no limit (default: 3000)",
        ),
    ] {
        // None of these definitions is refused.
        let _ = define(0, None, name, kind, help);
    }
}

/// `int fi_param_define(provider, name, type, help)`; a second definition has no effect.
///
/// # Errors
/// `FI_EINVAL`: no help.
pub(crate) fn define(
    owner: usize,
    provider: Option<&CStr>,
    name: &CStr,
    kind: fi_param_type,
    help: &CStr,
) -> Result<(), Errno> {
    if help.is_empty() {
        return Err(FI_EINVAL);
    }
    let mut variable = b"FI_".to_vec();
    let mut text = Vec::new();
    if let Some(provider) = provider {
        variable.extend_from_slice(provider.to_bytes());
        variable.push(b'_');
        text.extend_from_slice(provider.to_bytes());
        text.extend_from_slice(b": ");
    }
    variable.extend_from_slice(name.to_bytes());
    variable.make_ascii_uppercase();
    text.extend_from_slice(help.to_bytes());
    let param = Param {
        owner,
        name: name.to_owned(),
        kind,
        help: CString::new(text).unwrap_or_default(),
        variable: CString::new(variable).unwrap_or_default(),
    };
    let mut params = params();
    if !params.iter().any(|known| known.owner == owner && *known.name == *name) {
        params.push(param);
    }
    Ok(())
}

/// Removes the parameters of a provider that is gone.
pub(crate) fn undefine(owner: usize) {
    params().retain(|param| param.owner != owner);
}

/// Returns the value in the environment, valid until the variable changes; null when there is none.
fn variable(name: &CStr) -> *mut c_char {
    // SAFETY: a C string. Like every user of getenv(3), this relies on no concurrent change of the
    // environment.
    unsafe { libc::getenv(name.as_ptr()) }
}

/// Returns a setting of the library itself, by its variable.
pub(crate) fn own(name: &CStr) -> Option<CString> {
    let value = variable(name);
    // SAFETY: not null, so a C string.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_owned())
}

/// Returns a numeric setting of the library itself.
pub(crate) fn own_number(name: &CStr) -> Option<i64> {
    own(name)?.to_str().ok()?.trim().parse().ok()
}

fn find(owner: usize, name: &CStr) -> Result<Param, Errno> {
    let params = params();
    let mut known = params.iter();
    let found = known.find(|param| param.owner == owner && *param.name == *name);
    found.cloned().ok_or(FI_ENOENT)
}

/// Returns the value of a parameter, for code in this library.
///
/// # Errors
/// `FI_ENOENT`: not defined. `FI_ENODATA`: not set. `FI_EINVAL`: set to an invalid value, or of an
/// unknown type.
pub(crate) fn value(owner: usize, name: &CStr) -> Result<ParamValue, Errno> {
    let param = find(owner, name)?;
    let text = own(&param.variable).ok_or(FI_ENODATA)?;
    Ok(match param.kind {
        FI_PARAM_STRING => ParamValue::String(text),
        FI_PARAM_INT => ParamValue::Int(as_int(number(&text))),
        FI_PARAM_SIZE_T => ParamValue::Size(as_size(number(&text))),
        FI_PARAM_BOOL => ParamValue::Bool(boolean(&text).ok_or(FI_EINVAL)?),
        _ => return Err(FI_EINVAL),
    })
}

/// `int fi_param_get(provider, name, value)`
///
/// # Safety
/// `to` has space for a value of the parameter's type.
pub(crate) unsafe fn get(owner: usize, name: &CStr, to: *mut c_void) -> Result<(), Errno> {
    match value(owner, name)? {
        // SAFETY: the space is that of an int.
        ParamValue::Int(number) => unsafe { to.cast::<c_int>().write(number) },
        // SAFETY: the space is that of an int.
        ParamValue::Bool(yes) => unsafe { to.cast::<c_int>().write(c_int::from(yes)) },
        // SAFETY: the space is that of a size_t.
        ParamValue::Size(size) => unsafe { to.cast::<usize>().write(size) },
        ParamValue::String(_) => {
            let text = variable(&find(owner, name)?.variable);
            // SAFETY: the space is that of a pointer.
            unsafe { to.cast::<*mut c_char>().write(text) }
        }
    }
    Ok(())
}

/// Parses a number with strtol(3) and base 0, as libfabric does: an invalid one is 0.
fn number(text: &CStr) -> i64 {
    // SAFETY: a C string; a null end pointer is allowed.
    unsafe { libc::strtol(text.as_ptr(), ptr::null_mut(), 0) }
}

/// Converts a number as a C assignment does.
#[expect(clippy::cast_possible_truncation, reason = "what libfabric does")]
fn as_int(number: i64) -> c_int {
    number as c_int
}

/// Converts a number as a C assignment does: many providers use -1 for no limit.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "what libfabric does")]
fn as_size(number: i64) -> usize {
    number as usize
}

fn boolean(text: &CStr) -> Option<bool> {
    match text.to_bytes().to_ascii_lowercase().as_slice() {
        b"1" | b"true" | b"yes" | b"on" => Some(true),
        b"0" | b"false" | b"no" | b"off" => Some(false),
        _ => None,
    }
}

/// `int fi_getparams(struct fi_param **params, int *count)`: all defined parameters, followed by an
/// entry of zeroes.
///
/// # Errors
/// `FI_ENOMEM`
pub(crate) fn list() -> Result<(*mut fi_param, c_int), Errno> {
    let known = params().clone();
    // SAFETY: any size is valid.
    let array = unsafe { libc::calloc(known.len() + 1, size_of::<fi_param>()) }.cast::<fi_param>();
    if array.is_null() {
        return Err(FI_ENOMEM);
    }
    for (at, param) in known.iter().enumerate() {
        let entry = fi_param {
            name: strdup(Some(&param.variable)),
            type_: param.kind,
            help_string: strdup(Some(&param.help)),
            value: strdup(own(&param.variable).as_deref()),
        };
        // SAFETY: `at` is below the number of entries.
        unsafe { array.wrapping_add(at).write(entry) };
        if entry.name.is_null() || entry.help_string.is_null() {
            // SAFETY: made above; an entry without a name ends the list.
            unsafe { free_list(array) };
            return Err(FI_ENOMEM);
        }
    }
    Ok((array, c_int::try_from(known.len()).unwrap_or(c_int::MAX)))
}

/// `void fi_freeparams(struct fi_param *params)`
///
/// # Safety
/// `array` is null or came from [`list`], and is not used any more.
pub(crate) unsafe fn free_list(array: *mut fi_param) {
    let mut at = array;
    // SAFETY: null, or an entry of the array, which ends with one of zeroes.
    while let Some(&entry) = unsafe { at.as_ref() }.filter(|entry| !entry.name.is_null()) {
        for text in [entry.name, entry.help_string, entry.value] {
            // SAFETY: null, or made by strdup(3) in `list`.
            unsafe { release(text.cast_mut()) };
        }
        at = at.wrapping_add(1);
    }
    // SAFETY: null, or made by calloc(3) in `list`.
    unsafe { release(array) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_texts_contain_their_provider() {
        define(41, Some(c"toy"), c"speed", FI_PARAM_INT, c"how fast").unwrap();
        assert_eq!(define(41, Some(c"toy"), c"speed", FI_PARAM_INT, c""), Err(FI_EINVAL));
        let param = find(41, c"speed").unwrap();
        assert_eq!((&*param.variable, &*param.help), (c"FI_TOY_SPEED", c"toy: how fast"));
        assert_eq!(value(41, c"speed"), Err(FI_ENODATA));
        assert_eq!(value(41, c"weight"), Err(FI_ENOENT));
        undefine(41);
        assert_eq!(value(41, c"speed"), Err(FI_ENOENT));
    }

    #[test]
    fn values_are_read_as_libfabric_reads_them() {
        assert_eq!((number(c"0x10"), number(c"010"), number(c"-3"), number(c"x")), (16, 8, -3, 0));
        assert_eq!((as_int(-1), as_int(1 << 32), as_size(-1)), (-1, 0, usize::MAX));
        assert_eq!(
            (boolean(c"Yes"), boolean(c"off"), boolean(c"2")),
            (Some(true), Some(false), None)
        );
    }

    #[test]
    fn the_list_ends_with_zeroes() {
        define(42, None, c"listed", FI_PARAM_BOOL, c"help").unwrap();
        let (array, count) = list().unwrap();
        assert!(count > 0);
        let end = array.wrapping_add(usize::try_from(count).unwrap());
        // SAFETY: the entry after the last.
        assert!(unsafe { end.as_ref() }.unwrap().name.is_null());
        // SAFETY: made above.
        unsafe { free_list(array) };
    }
}

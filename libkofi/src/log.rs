// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Log: lines on the standard error stream, selected by `FI_LOG_LEVEL`, `FI_LOG_PROV` and
//! `FI_LOG_SUBSYS`. Each line is one write, so that lines of several processes do not mix.
//!
//! Mirrors fi_log(3). Messages are formatted before: variable arguments are handled in C
//! (`link/versions.c`).
#![expect(unsafe_code, reason = "C strings, and functions of the program")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::io::Write;
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fmt, ptr};

use libfabric_sys::fi_provider;

use crate::ffi::{provider_name, string};
use crate::filter::Filter;
use crate::{open, param};

/// Names of the levels, by number.
pub(crate) const LEVELS: [&str; 4] = ["warn", "trace", "info", "debug"];
/// Names of the subsystems, by number.
pub(crate) const SUBSYSTEMS: [&str; 10] =
    ["core", "fabric", "domain", "ep_ctrl", "ep_data", "av", "cq", "eq", "mr", "cntr"];

const WARN: u32 = libfabric_sys::FI_LOG_WARN;
const INFO: u32 = libfabric_sys::FI_LOG_INFO;

#[derive(Debug)]
struct Settings {
    /// Highest level that is printed.
    level: Option<u32>,
    providers: Filter,
    subsystems: Filter,
    interval: Duration,
    start: Instant,
}

static SETTINGS: LazyLock<Settings> = LazyLock::new(|| Settings {
    level: param::own(c"FI_LOG_LEVEL").map(|level| level_of(&level)),
    providers: Filter::new(param::own(c"FI_LOG_PROV").as_deref()),
    subsystems: Filter::new(param::own(c"FI_LOG_SUBSYS").as_deref()),
    interval: Duration::from_millis(
        param::own_number(c"FI_LOG_INTERVAL").and_then(|ms| u64::try_from(ms).ok()).unwrap_or(2000),
    ),
    start: Instant::now(),
});

/// Returns the number of a level. An unknown name means the first level, as in libfabric.
fn level_of(name: &CStr) -> u32 {
    let wanted = name.to_bytes();
    let known = (0..).zip(LEVELS).find(|(_, level)| wanted.eq_ignore_ascii_case(level.as_bytes()));
    known.map_or(WARN, |(number, _)| number)
}

fn name_of(names: &'static [&'static str], number: u32) -> &'static str {
    usize::try_from(number).ok().and_then(|at| names.get(at)).copied().unwrap_or("unknown")
}

/// `int fi_log_enabled(provider, level, subsys)`: the imported log decides, if there is one.
///
/// # Safety
/// `prov` is null or a provider's description.
pub(crate) unsafe fn enabled(prov: *const fi_provider, level: u32, subsys: u32) -> bool {
    if let Some(enabled) = open::imported().and_then(|ops| ops.enabled) {
        // SAFETY: the program's function, by its prototype.
        return unsafe { enabled(open::speaker(prov), level, subsys, 0) } != 0;
    }
    let settings = &*SETTINGS;
    settings.level.is_some_and(|highest| level <= highest)
        // SAFETY: the caller's contract.
        && settings.providers.passes(unsafe { name(prov) }.to_bytes())
        && settings
            .subsystems
            .passes(name_of(&SUBSYSTEMS, subsys).as_bytes())
}

/// Returns the name of the provider that logs.
///
/// # Safety
/// `prov` is null or a provider's description.
unsafe fn name<'a>(prov: *const fi_provider) -> &'a CStr {
    // SAFETY: the caller's contract.
    unsafe { provider_name(prov) }.unwrap_or(c"core")
}

/// Whether a frequent message is due again (`fi_log_ready`). `showtime` is the time in milliseconds
/// at which it is due; it starts at 0.
pub(crate) fn due(showtime: &mut u64) -> bool {
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let now = milliseconds(SETTINGS.start.elapsed());
    if now < *showtime {
        return false;
    }
    *showtime = now.saturating_add(milliseconds(SETTINGS.interval));
    true
}

/// `void fi_log(provider, level, subsys, func, line, text)`: into the imported log, if there is
/// one. Does not check that the level is enabled.
///
/// # Safety
/// `prov` is null or a provider's description. `func` and `text` are null or C strings.
pub(crate) unsafe fn write(
    prov: *const fi_provider,
    level: u32,
    subsys: u32,
    func: *const c_char,
    line: c_int,
    text: *const c_char,
) {
    if let Some(log) = open::imported().and_then(|ops| ops.log) {
        // SAFETY: the program's function, by its prototype.
        return unsafe { log(open::speaker(prov), level, subsys, func, line, text) };
    }
    // SAFETY: the caller's contract.
    let func = unsafe { string(func) }.unwrap_or_default();
    // SAFETY: the caller's contract.
    let text = unsafe { string(text) }.unwrap_or_default().to_bytes();
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let mut out = format!(
        "libkofi:{}:{time}::{}:{}:{}():{line}<{}> ",
        std::process::id(),
        // SAFETY: the caller's contract.
        unsafe { name(prov) }.to_string_lossy(),
        name_of(&SUBSYSTEMS, subsys),
        func.to_string_lossy(),
        name_of(&LEVELS, level),
    )
    .into_bytes();
    out.extend_from_slice(text);
    if !text.ends_with(b"\n") {
        out.push(b'\n');
    }
    // A closed stream is no reason to fail.
    let _ = std::io::stderr().write_all(&out);
}

/// Logs a message of the library itself, like one of a provider: into the log imported by the
/// program, if there is one.
fn log_message(level: u32, text: fmt::Arguments<'_>) {
    let subsys = libfabric_sys::FI_LOG_CORE;
    // SAFETY: null is allowed.
    if unsafe { !enabled(ptr::null(), level, subsys) } {
        return;
    }
    let text = CString::new(format!("{text}\n")).unwrap_or_default();
    let (func, text) = (c"kofi".as_ptr(), text.as_ptr());
    // SAFETY: null is allowed; two C strings.
    unsafe { write(ptr::null(), level, subsys, func, 0, text) };
}

/// Logs a fact that the user should act on.
pub(crate) fn warn(text: fmt::Arguments<'_>) {
    log_message(WARN, text);
}

/// Logs a fact that explains a decision.
pub(crate) fn info(text: fmt::Arguments<'_>) {
    log_message(INFO, text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_libfabrics_numbers() {
        for (name, number) in [
            (c"warn", WARN),
            (c"TRACE", libfabric_sys::FI_LOG_TRACE),
            (c"info", INFO),
            (c"debug", libfabric_sys::FI_LOG_DEBUG),
            (c"nonsense", WARN),
        ] {
            assert_eq!(level_of(name), number, "{name:?}");
        }
        assert_eq!(name_of(&SUBSYSTEMS, libfabric_sys::FI_LOG_CNTR), "cntr");
        assert_eq!(name_of(&SUBSYSTEMS, 99), "unknown");
    }
}
